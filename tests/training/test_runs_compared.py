"""Comparisons of runs: accuracy, seeds, the ladder, two scripts; and the tasks."""

import threading
import timeit
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import training
from gpulab.errors import InputError
from gpulab.training import Data, Gain, Task, Technique
from made_training import Clock, data_that, optimizer_that
from scipy import stats

from refusals import refused

SHORT: dict[str, Any] = {"device": "cpu", "steps": 6}

# -- accuracy --------------------------------------------------------------------------------------


class Says(torch.nn.Module):
    """A model that answers item k right if ``row[k]`` is 1; an item's only feature is k."""

    def __init__(self, row: Any) -> None:
        super().__init__()
        self.row, self.unused = torch.as_tensor(np.array(row)), torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Score class 1, the right one, above class 0 where ``row`` is 1, else below it."""
        right = self.row[x[:, 0].long()]
        return torch.stack([1.0 - right, 1.0 * right], dim=-1) * self.unused


def asked(items: int, answers: tuple[int, ...] = (), copies: int = 1, models: Any = ()) -> Task:
    """Return a task of ``items`` with ``answers`` answers each; it makes ``models`` in order."""
    number = torch.arange(float(items))[:, None]
    data = Data(number, torch.ones(items, *answers, dtype=torch.int64), copies)
    made = iter(models).__next__
    return Task("asked", "", "rows", "answers", 2, 1, 1e-9, lambda: (data, data), made)


@pytest.mark.parametrize(
    ("correct", "count", "interval"),
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (29, 29, (0.8830, 1.0)),
    ],
)
def test_wilsons_interval(correct: int, count: int, interval: tuple[float, float]) -> None:
    """Cases of Newcombe 1998 (Statistics in Medicine 17, 857, table I); if all answers are right,
    the lower end is n/(n+z^2).
    """
    model = Says([1] * correct + [0] * (count - correct))
    found = training.evaluate(model, asked(count))
    assert (found.correct, found.count, found.ratio, found.interval, found.loss) == (
        correct,
        count,
        correct / count,
        pytest.approx(interval, abs=5e-5),
        pytest.approx(np.log1p(np.e) - correct / count),
    )
    assert (model.training, found.evidence.samples) == (True, count)


def test_answers_to_one_item_are_not_independent() -> None:
    """40 windows of 64 answers, or 40 digits in two copies, have the interval of 40 items."""
    half = [0.0, 1.0] * 20
    windows = training.evaluate(Says(np.repeat(half, 64).reshape(40, 64)), asked(40, (64,)))
    copies = training.evaluate(Says(half * 2), asked(80, (), 2))
    wide = stats.t.ppf(0.975, 39) * np.std(half, ddof=1) / np.sqrt(40)
    for found, count in ((windows, 2560), (copies, 80)):
        assert (found.interval, found.count, found.evidence.samples) == (
            pytest.approx((0.5 - wide, 0.5 + wide), rel=1e-4),
            count,
            40,
        )


@pytest.mark.slow
def test_the_interval_over_seeds_and_items_covers_both(approved: Any) -> None:
    """The interval contains the true mean in about 95 % of cases; over seeds alone it does not."""
    rng, held = np.random.default_rng(1), np.zeros(2)
    for _ in range(300):
        seeds = rng.normal(0, 0.01, 5)
        items = rng.choice([-0.6, 0.2], p=[0.25, 0.75], size=300)
        right = (rng.random((5, 300)) < 0.75 + seeds[:, None] + items).astype(int)
        found = training.evaluate_models(map(Says, right), asked(300))
        held += [low <= 0.75 <= high for low, high in (found.interval, found.seeds_interval)]
    assert 0.92 * 300 <= held[0] <= 0.99 * 300
    assert held[1] < 0.85 * 300
    perfect = training.evaluate_models([Says([1] * 500)] * 3, asked(500))
    assert f"{found!r}\n{np.round(found.seeds_interval, 4)}\n{perfect!r}\n" == approved


# -- the tasks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", training.tasks())
def test_a_task_trains_what_it_says(name: str, approved: Any) -> None:
    """Sizes, defaults, parameters; weights follow the seed alone; no test item is learned from."""
    job = training.task(name)
    weights = [torch.cat([p.flatten() for p in job.make_model(k).parameters()]) for k in (4, 4, 5)]
    assert [torch.equal(weights[0], other) for other in weights] == [True, True, False]
    train, test = ({item.tobytes() for item in d.inputs.numpy()} for d in (job.train, job.test))
    assert not train & test
    facts = [job, job.items, job.answers, job.batch_size, job.epochs, job.learning_rate]
    if name != "prose-transformer":  # its text grows with the course
        facts += [job.train, job.test, job.test.copies, len(weights[0])]
    assert f"{facts}\n" == approved


def test_the_data_are_the_same_for_ever() -> None:
    """NumPy's seed 20,240 splits the digits; seed 20,241 places the hard ones in noise."""
    images, classes = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(20_240).permutation(1797)
    dealt, rng = (images[order] / 16).reshape(-1, 8, 8), np.random.default_rng(20_241)
    easy, hard = training.task("digits-mlp"), training.task("digits-hard-cnn")
    assert np.array_equal(torch.cat([easy.train.inputs, easy.test.inputs])[:, 0], np.float32(dealt))
    assert easy.test.targets.tolist() == classes[order][-500:].tolist()
    places, canvas = rng.integers(0, 5, (500, 2)), rng.normal(0.0, 0.15, (500, 12, 12))
    for image, picture, (row, column) in zip(dealt[:500], canvas, places, strict=True):
        picture[row : row + 8, column : column + 8] += image
    np.testing.assert_allclose(hard.train.inputs[:, 0], canvas, atol=1e-6)
    x, y = training.task("prose-transformer").train[:9]
    assert torch.equal(x[:, 1:], y[:, :-1])


# -- the ladder ------------------------------------------------------------------------------------


CLOCK = Clock()


def climbed(*chosen: Technique, **options: Any) -> training.LadderResult:
    """Climb on a task whose steps take 8 s: 4 of loading and 4 of the optimizer."""
    data = data_that(lambda batch: CLOCK.spend(4.0), (torch.randn(64, 3), torch.randint(2, (64,))))
    layer = lambda: torch.nn.Linear(3, 2)  # noqa: E731
    job = Task("scripted", "a line", "rows", "classes", 4, 2, 0.01, lambda: (data, data), layer)
    options = {"deadline": 86_400, "seeds": 0, "device": "cpu", "clock": CLOCK, **options}
    start = {"batch_size": 4, **takes("usual", 4.0).options}
    return training.ladder(job, chosen, start=start, **options)


def takes(name: str, seconds: float) -> Technique:
    """Return a technique that takes another optimizer, whose steps last ``seconds``."""
    return Technique(name, name, "the optimizer", optimizer_that(lambda: CLOCK.spend(seconds)))


RESIDENT = Technique("resident", "data on the device", "loading", {"loading": "resident"})
# By hand, in seconds per step: 8 at the start, 4 without loading, 4 + t with an optimizer of t.
# Each row: techniques; speed-ups alone, upon the rung before and when removed; the speed-up of all
# together; and the verdict on how much the product overstates it.
LADDERS = {
    "different parts": ((RESIDENT, takes("quick", 1.0)), (2, 1.6), (2, 4), (5, 4), 8, "slower"),
    "the same part": (
        (takes("half", 2.0), takes("quick", 1.0)),
        (8 / 6, 8 / 5),
        (8 / 6, 6 / 5),
        (1, 6 / 5),
        8 / 5,
        "faster",
    ),
    "a batch of 16": ((Technique("b", "b", options={"batch_size": 16}),), (4,), (4,), (4,), 4, ""),
}


@pytest.mark.parametrize("case", LADDERS)
def test_known_times_give_known_gains(case: str) -> None:
    """Gains alone, on the rung before, when removed, together and multiplied are those by hand, as
    are the script's samples per second (4 in 8 s) and the last rung's.
    """
    chosen, alone, gains, removed, together, overstated = LADDERS[case]
    found, product = climbed(*chosen), np.prod(alone)
    for kind, wanted in (("alone", alone), ("gain", gains), ("removed", removed)):
        ratios = [getattr(rung, kind).ratio for rung in found.rungs]
        assert ratios == pytest.approx(wanted, rel=1e-3)
    gains = (found.together.ratio, found.product.ratio, found.overstated.ratio)
    figures = (
        *gains, found.start.samples_per_second, found.rungs[-1].form.samples_per_second,
        found.rungs[-1].form.over_start.ratio,
    )  # fmt: skip
    assert figures == pytest.approx(
        (together, product, product / together, 4 / 8, together * 4 / 8, together), rel=1e-3
    )
    assert found.overstated.verdict == (overstated or "no difference shown")
    assert (
        found.turns, found.evidence.samples, found.samples, found.together.interval is None
    ) == (24, 24, 128, False)  # fmt: skip


def test_disturbed_steps_leave_the_product_its_interval() -> None:
    """With four optimizers of 3 s, of which one step in 7 takes a minute, the intervals still
    contain the product and its overstatement, and that of a rung its samples per second, 4 in 7 s.
    """
    rng = np.random.default_rng(0)
    hit = optimizer_that(lambda: CLOCK.spend(60.0 if rng.random() < 1 / 7 else rng.normal(3, 0.1)))
    found = climbed(*(Technique(name, name, options=hit) for name in "abcd"), turns=40)
    product = (8 / 7) ** 4
    for interval, truth, near in (
        (found.product.interval, product, 0.8),
        (found.overstated.interval, product / (8 / 7), 0.8),
        (found.rungs[0].form.samples_per_second_interval, 4 / 7, 0.1),
    ):
        low, high = interval or (0, 0)
        assert near * truth < low < truth < high < truth / near


def test_what_is_too_slow_lacking_or_out_of_time_is_left_out(approved: Any) -> None:
    """A step that takes 5 times as long is left out with its figure, one that takes 50 times as
    long without; few turns give no interval.
    """
    found = climbed(takes("slow", 36.0), RESIDENT, takes("hopeless", 400.0), turns=3)
    assert (
        [rung.name for rung in found.rungs],
        found.turns,
        found.together.verdict,
        climbed(RESIDENT, turns=30, deadline=1.0).turns,
    ) == (["resident"], 3, "no interval", 20)
    lines = [f"{one.title}: {one.reason} {one.alone}\n" for one in found.left_out]
    lines += [f"{note}\n" for note in found.notes]
    assert "".join(lines) == approved
    refused(InputError, climbed, takes("slow", 36.0)).match("none of these techniques")


@pytest.mark.slow
def test_accuracy_is_checked_at_equal_samples_and_what_is_missing_is_left_out() -> None:
    """A learning rate near 0 loses accuracy, and averages of a batch norm that lag behind do not;
    each seed has a model of its own; not reading losses changes no bit; TF32, autotuning and CUDA
    graphs are left out on a CPU.
    """
    crawl = Technique("crawl", "crawling", options={"learning_rate": 1e-12})
    # the running averages stay at 0 and 1 in training
    lags = Technique("lags", "lagging averages", model=lambda: torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(64, momentum=1e-9), torch.nn.Linear(64, 10)
    ))  # fmt: skip
    options = {"device": "cpu", "seeds": 2, "samples": 3200, "turns": 1, "clock": Clock()}
    chosen = ("waits", lags, crawl, "batch", "tf32", "autotune", "graph")
    found = training.ladder("digits-mlp", chosen, **options)
    assert [
        (
            one.steps, one.same_losses, one.accuracy.mean > 0.9,
            len({each.loss for each in one.accuracy.accuracies}),
        )
        for one in (rung.learned for rung in found.rungs)
    ] == [
        (200, True, True, 2),
        (200, False, True, 2),
        (200, False, False, 2),
        (50, False, False, 2),
    ]  # fmt: skip
    assert ([one.name for one in found.hurting], [one.name for one in found.left_out]) == (
        ["crawl"],
        list(chosen[4:]),
    )


# -- two scripts -----------------------------------------------------------------------------------


def train(model: Any, data: Any, rate: float = 3e-3, share: float = 1.0) -> None:
    """Two epochs in batches of 16."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for first in [*range(0, int(share * len(data)), 16)] * 2:
        images, labels = data[slice(first, first + 16)]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


# Switches of PyTorch: how each is read and set, and to what a script sets it.
SWITCHES: list[tuple[Any, Any, Any]] = [
    (torch.get_num_threads, torch.set_num_threads, 2),
    (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    (torch.is_grad_enabled, torch.set_grad_enabled, False),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
]


def plain(model: Any, data: Any) -> None:
    """Run useless forward passes without gradients, train, then change its data and switches."""
    read = (get() for get, *_ in SWITCHES)
    SEEN.append((len(data), float(data.inputs.sum()), torch.initial_seed(), *read))
    with torch.no_grad():
        [(model(data[slice(0, 16)][0]), torch.linalg.qr(torch.eye(60))) for _ in range(200)]
    train(model, data)
    data.inputs.mul_(2.0)
    for _, change, value in SWITCHES:
        change(value)


SEEN: list[tuple[Any, ...]] = []


def compared(
    after: Any, before: Any = plain, task: Any = "digits-mlp", **options: Any
) -> training.ScriptsResult:
    """Compare two scripts on 32 digits."""
    options = {"items": 32, "seeds": 1, "device": "cpu", "deadline": 0.01, **options}
    return training.compare_scripts(before, after, task, **options)


@pytest.mark.slow
def test_a_real_speed_up_has_no_objection() -> None:
    """Both scripts get the same samples and models, one for each seed; no call changes another's
    data or switches.
    """
    before, whole = [get() for get, *_ in SWITCHES], training.task("digits-mlp").train.inputs
    found = compared(train, seeds=2, deadline=20.0)
    verdicts = (found.gain.verdict, found.accuracy_verdict, found.objections)
    models = len({one.loss for one in found.accuracy[0].accuracies})
    assert (found.samples, models, found.accuracy_difference, *verdicts) == (
        (64, 64), 2, 0.0, "faster", "kept", ()
    )  # fmt: skip
    assert (set(SEEN), [get() for get, *_ in SWITCHES]) == (
        {
            (n, float(whole[:n].sum()), seed, 1, *before[1:])
            for n, seed in ((32, 0), (len(whole), 0), (len(whole), 1))
        },
        before,
    )


@pytest.mark.slow
def test_what_is_no_speed_up_has_its_objection() -> None:
    """A script that trains less, trains worse, or is not shown to be faster has an objection. Its
    time does not include that of making its model, which here takes much longer than to train it.
    Two scripts of one name are told apart.
    """
    less = compared(lambda model, data: train(model, data, share=0.5))
    assert (
        less.samples,
        "trains less" in less.objections[0],
        compared(lambda model, data: train(model, data, 1e-9)).accuracy_verdict,
    ) == ((64, 32), True, "lost")
    slowly = asked(32, models=(torch.nn.Linear(1, 2) for _ in range(99) if sum(range(10**7))))
    once, making = compared(train, train, slowly), timeit.timeit(slowly.make_model, number=1)
    # the deadline allowed one turn
    assert (once.names, once.gain.interval, once.seconds[1] < making) == (
        ("train (before)", "train (after)"), None, True
    )  # fmt: skip


class Gate(threading.Event):
    """An event that is set when the frame that holds it is left."""

    def __del__(self) -> None:
        self.set()


def early(model: Any, data: Any) -> None:
    """Return before a thread has trained, as a GPU script does without a synchronization."""
    opened, gate = threading.Event(), Gate()
    gate.set = opened.set
    threading.Thread(
        target=lambda: opened.wait() and [train(model, data) for _ in range(20)]
    ).start()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (early, "still training"),
        (lambda model, data: None, "passed no sample"),
        (lambda model, data: model(data), "script raised"),
        (5, "after is an int"),
    ],
    ids=["early", "idle", "raises", "none"],
)
def test_scripts_that_cannot_be_compared(script: Any, words: str) -> None:
    """A script is refused if it returns early, takes no sample, raises, or is no function."""
    assert words in str(refused(InputError, compared, script).value)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (None, "no interval"),
        ((1.03, 1.2), "faster"),
        ((0.5, 0.97), "slower"),
        ((0.97, 1.3), "no difference shown"),
        ((1.01, 1.3), "no difference shown"),
        ((0.7, 0.99), "no difference shown"),
    ],
)
def test_what_an_interval_allows_to_say(interval: Any, verdict: str) -> None:
    """The interval decides, never the ratio; less than 2 % gets no verdict."""
    assert Gain(1.1, interval).verdict == verdict
