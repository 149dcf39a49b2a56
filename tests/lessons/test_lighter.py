"""What notebook 07 measures: sparse against dense, groups, changed answers; and that its budget can be met in several ways."""

from __future__ import annotations

import dataclasses
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpulab import compression, lessons, timing, training
from gpulab.compression import Weighing
from gpulab.compression.results import WeighedModel
from gpulab.errors import InputError
from gpulab.evidence import Evidence, Note
from gpulab.lessons import _lighter, _nb07, _nb07_exercises
from gpulab.lessons._lighter import SparseRace, SparseRow
from gpulab.lessons.content import Never, Refused, Unmeasured

LIVE = Evidence.measured("a CPU")


def race(*pairs: tuple[float, float], disturbed: int | None = None) -> SparseRace:
    """Rows of (share, times as fast); one may be without an interval."""
    rows = [SparseRow(share, 1e-3 * ratio, 1e-3, ratio, (0.99 * ratio, 1.01 * ratio)) for share, ratio in pairs]
    if disturbed is not None:
        rows[disturbed] = dataclasses.replace(rows[disturbed], ratio_interval=None)
    return SparseRace("x", tuple(rows), LIVE)


def test_break_even_is_where_csr_stays_ahead():
    """One lucky row at 50 % does not count when 70 % loses again; none at all is said."""
    assert race((0.5, 1.1), (0.7, 0.9), (0.9, 1.2), (0.98, 3.0)).break_even_share == 0.9
    assert race((0.5, 2.0), (0.9, 3.0)).break_even_share == 0.5
    assert race((0.5, 0.2), (0.9, 0.8)).break_even_share is None
    assert "none of these" in repr(race((0.5, 0.2)))
    with pytest.raises(Unmeasured, match="any share"):
        _nb07._break_even(race((0.5, 0.2)))


def test_the_order_in_which_shares_were_tried_decides_nothing():
    """The rows of the test above, turned round and shuffled; a share at which CSR wins by too little to tell is named."""
    assert race((0.98, 3.0), (0.9, 1.2), (0.7, 0.9), (0.5, 1.1)).break_even_share == 0.9
    assert race((0.9, 1.2), (0.5, 1.1), (0.98, 3.0), (0.7, 0.9)).break_even_share == 0.9
    assert race((0.9, 0.8), (0.5, 1.5)).break_even_share is None
    assert _nb07._break_even(race((0.98, 3.0), (0.9, 1.2), (0.7, 0.9))) == 90
    with pytest.raises(Unmeasured, match="at 90% zeros CSR is"):
        _nb07._break_even(race((0.98, 3.0), (0.9, 1.005), (0.7, 0.5)))
    with pytest.raises(Never, match="up to 90%"):
        _nb07._break_even(race((0.9, 0.5), (0.7, 0.4)))


def test_a_break_even_between_disturbed_rows_is_no_answer():
    """Where it lies, the last row to lose and the first to win must have an interval; the others need none."""
    rows = ((0.5, 0.8), (0.7, 0.9), (0.9, 1.2), (0.98, 3.0))
    assert _nb07._break_even(race(*rows)) == pytest.approx(90.0)
    for row in (1, 2):
        with pytest.raises(Unmeasured, match="disturbed"):
            _nb07._break_even(race(*rows, disturbed=row))
    for row in (0, 3):
        assert _nb07._break_even(race(*rows, disturbed=row)) == pytest.approx(90.0)
    with pytest.raises(Unmeasured, match="disturbed"):
        _nb07._break_even(race((0.5, 0.2), (0.9, 0.8), disturbed=1))


def test_a_break_even_at_rows_that_do_not_tell_is_no_answer():
    """The first to win must win for sure, the last to lose gain less than a tenth for sure; a true tie is no win and no noise."""

    def with_interval(found: SparseRace, row: int, interval: tuple[float, float]) -> SparseRace:
        rows = list(found.rows)
        rows[row] = dataclasses.replace(rows[row], ratio_interval=interval)
        return dataclasses.replace(found, rows=tuple(rows))

    won, lost = race((0.5, 0.8), (0.7, 0.9), (0.9, 1.29), (0.98, 3.0)), race((0.5, 0.2), (0.98, 0.995))
    at_the_edge = ((won, 2, (1.0, 1.6)), (won, 1, (0.7, 1.1)))  # as fast, and a tenth faster: neither is sure
    for found, row, interval in ((won, 2, (0.2, 7.59)), (won, 1, (0.7, 1.2)), (lost, 1, (0.5, 1.3)), *at_the_edge):
        with pytest.raises(Unmeasured, match=f"at {found.rows[row].share:.0%} zeros .* does not tell who wins"):
            _nb07._break_even(with_interval(found, row, interval))
    for row, interval in ((1, (0.97, 1.03)), (1, (0.97, 1.099)), (2, (1.001, 1.6))):
        assert _nb07._break_even(with_interval(won, row, interval)) == pytest.approx(90.0)
    assert _nb07._break_even(with_interval(won, 0, (0.2, 7.59))) == pytest.approx(90.0)
    assert _nb07._break_even(race((0.5, 1.2), (0.98, 3.0))) == pytest.approx(50.0)
    with pytest.raises(Never, match="any share"):
        _nb07._break_even(lost)


def _weighing(*models: tuple[float, tuple[float, float] | None, tuple[float, float] | None]) -> Weighing:
    """Three forms by (seconds, interval of the seconds, interval of the gain on the first)."""
    rows = [
        WeighedModel(label, 1, 1, 0, (), 1.0, 1, 1, s, span, s, None, gain and sum(gain) / 2, gain, (), (), LIVE)
        for label, (s, span, gain) in zip(("float32", "8-bit weights", "8-bit kernels"), models, strict=True)
    ]
    return Weighing("", "a CPU", 64, tuple(rows), (), LIVE, None)  # type: ignore[arg-type]


def test_the_fastest_of_three_forms_must_be_apart_from_the_next():
    """Against float32 the turns decide; two others by the intervals of their times; overlapping or missing ones are no answer."""
    wide = (0.1, 9.0)
    sure = {
        "8-bit kernels": ((3.0, wide, None), (4.0, wide, (0.6, 0.9)), (1.0, wide, (2.5, 3.5))),
        "float32": ((1.0, wide, None), (4.0, wide, (0.2, 0.3)), (2.0, wide, (0.4, 0.6))),
        "8-bit weights, float32 arithmetic": ((3.0, wide, None), (1.0, (0.9, 1.1), (2.5, 3.5)), (2.0, (1.8, 2.2), (1.4, 1.6))),
    }
    for name, models in sure.items():
        assert _nb07.INTEGERS.outcome(_weighing(*models)) == name
    unsure = (
        ((3.0, wide, None), (4.0, wide, (0.6, 0.9)), (2.9, wide, (0.9, 1.2))),
        ((1.0, wide, None), (4.0, wide, (0.2, 0.3)), (1.1, wide, None)),
        ((3.0, wide, None), (1.0, (0.9, 1.9), (2.5, 3.5)), (2.0, (1.8, 2.2), (1.4, 1.6))),
        ((3.0, wide, None), (1.0, None, (2.5, 3.5)), (2.0, (1.8, 2.2), (1.4, 1.6))),
        ((3.0, wide, None), (1.0, (0.9, 1.8), (2.5, 3.5)), (2.0, (1.8, 2.2), (1.4, 1.6))),  # they touch
    )
    for models in unsure:
        with pytest.raises(Unmeasured, match="does not tell"):
            _nb07.INTEGERS.outcome(_weighing(*models))


@pytest.mark.parametrize(
    "guard",
    [
        lambda s: torch.where(s == 0, 1.0, s),
        lambda s: s.clamp_min(torch.finfo(torch.float32).eps),  # as PyTorch's observers do
        lambda s: s.clamp_min(1e-12),
        lambda s: s + 1e-8,
    ],
    ids=["where", "eps", "1e-12", "plus"],
)
def test_each_guard_against_a_row_of_zeros_is_right(guard: Any):
    """What stands in for the scale of a row that holds nothing does not matter: its codes are zero."""

    def quantise(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
        scales = guard(weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1))
        return (weight / scales).round(), scales

    assert "half a step" in _nb07_exercises._check_quantise(quantise)


def test_small_counts_are_close_by_their_difference(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    """One changed digit: 0 and 3 are as good as each other within two digits, 5 is off; of fifty, 20 is close by the factor of 3."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    for predicted, measured, verdict in (
        (0, 1, "close"),
        (3, 1, "close"),
        (5, 1, "off"),
        (1, 0, "close"),
        (3, 0, "off"),
        (20, 50, "close"),
    ):
        (tmp_path / "progress.json").unlink(missing_ok=True)
        lessons.predict("07.7", "how many?", unit="digits")
        lessons.answer("07.7", predicted)
        assert lessons.reveal("07.7", measured).verdict == verdict


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured times are the work's FLOPs at 1 GFLOP/s, so that the tables can be worked out by hand."""

    def compare(runs: Any, x: Any, **_: Any) -> Any:
        seconds = [0.1 / 2**k for k in range(len(runs))]
        rows = [
            SimpleNamespace(
                name=name, speedup=None if not k else seconds[0] / seconds[k], speedup_interval=None,
                measurement=SimpleNamespace(median_seconds=seconds[k], interval_seconds=None),
            )
            for k, name in enumerate(runs)
        ]  # fmt: skip
        for run in runs.values():
            run(x)
        return SimpleNamespace(rows=rows, evidence=LIVE)

    monkeypatch.setattr(timing, "compare", compare)


def test_the_groups_are_counted_by_hand(scripted: None):
    """8 images of 16x16, 128 channels, 3x3: 2 * 8 * 256 * 128 * 128 * 9 FLOP for the full one, divided by the groups."""
    found = lessons.grouping(device="cpu")
    full = 2 * 8 * 256 * 128 * 128 * 9
    assert [row.flops for row in found.rows] == [full, full / 4, full / 32, full / 128]
    assert [row.parameters for row in found.rows] == [128 * 128 * 9 // g for g in (1, 4, 32, 128)]
    assert found.depthwise.speedup == 8.0
    assert "1/128 of the FLOPs" in repr(found)


def test_the_sparse_race_has_a_row_for_each_share(scripted: None):
    """Each share is tried, dense and in CSR, on the same zeros."""
    found = lessons.sparse_race((0.5, 0.9), device="cpu")
    assert [row.share for row in found.rows] == [0.5, 0.9]
    assert [row.ratio for row in found.rows] == [2.0, 2.0]
    assert found.label == "linear layer 1024 x 1024 on 64 rows"
    with pytest.raises(InputError, match="no shares"):
        lessons.sparse_race((), device="cpu")


def test_layers_have_the_same_weights_in_each_run_and_leave_the_learners_own_chance_alone(monkeypatch: pytest.MonkeyPatch):
    """So that two runs of a cell differ by the machine alone, and what the learner draws next does not depend on them."""
    drawn: list[torch.Tensor] = []

    def race(models: dict[str, Any], x: torch.Tensor) -> Any:
        drawn.append(torch.cat([x.flatten(), *(weight.flatten() for one in models.values() for weight in one.parameters())]))
        raise StopIteration

    monkeypatch.setattr(_lighter, "_FEATURES", 8)
    monkeypatch.setattr(_lighter, "_race", race)
    for call in (lambda: lessons.sparse_race((0.5,), device="cpu"), lambda: lessons.grouping(device="cpu")):
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = torch.random.get_rng_state()
            with pytest.raises(StopIteration):
                call()
            assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.equal(drawn[-1], drawn[-2])


def test_apples_gpu_has_no_csr_so_the_cpu_races(scripted: None, monkeypatch: pytest.MonkeyPatch):
    """And with a CPU's sizes."""
    from gpulab.devices import Device

    monkeypatch.setattr(_lighter, "_FEATURES", 8)
    monkeypatch.setattr(_lighter.devices, "default", lambda: Device("mps", 0))
    assert lessons.sparse_race((0.5,)).label == "linear layer 8 x 8 on 64 rows"


def test_one_core_is_timed_and_only_for_the_threads_own_work(monkeypatch: pytest.MonkeyPatch):
    """The clock counts this thread alone, and nothing of the product is done by another; afterwards all threads are back."""
    seen: list[Any] = []

    def race(models: dict[str, Any], x: Any, **named: Any) -> Any:
        seen.append((list(models), len(x), torch.get_num_threads(), named))
        return SimpleNamespace(rows=["as trained", "yours"])

    monkeypatch.setattr(_lighter, "_reference", lambda task: torch.nn.Linear(1, 1))

    class Items:
        def __getitem__(self, which: slice) -> Any:
            return torch.ones(10, 1)[which], None

    monkeypatch.setattr(_lighter.training, "task", lambda name: SimpleNamespace(test=Items()))
    monkeypatch.setattr(_lighter, "_race", race)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert _lighter.time_against_trained(torch.nn.Linear(1, 1), 3, 0.5) == "yours"
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [(["as trained", "yours"], 3, 1, {"clock": time.thread_time, "seconds": 0.5})]


@pytest.mark.parametrize(("ticks_a_second", "clock"), [(64, "perf_counter"), (1_000_000, "thread_time")])
def test_a_thread_clock_that_ticks_more_rarely_than_a_batch_takes_is_not_used(
    ticks_a_second: int, clock: str, monkeypatch: pytest.MonkeyPatch
):
    """Windows moves a thread's time on 64 times a second: a batch of 6 ms would take nothing or 16 ms, and a right answer be refused."""
    seen: list[Any] = []
    readings = iter(k // 10 / ticks_a_second for k in range(1000))
    monkeypatch.setattr(_lighter, "_reference", lambda task: torch.nn.Linear(1, 1))
    monkeypatch.setattr(_lighter.training, "task", lambda name: SimpleNamespace(test=torch.ones(1, 10, 1)))
    monkeypatch.setattr(_lighter, "_race", lambda models, x, **named: (seen.append(named["clock"]), SimpleNamespace(rows=[0, 1]))[1])
    monkeypatch.setattr(time, "thread_time", lambda: next(readings))
    _lighter.time_against_trained(torch.nn.Linear(1, 1), 1)
    assert seen == [getattr(time, clock)]


def test_an_accelerator_is_given_more_to_do(scripted: None, monkeypatch: pytest.MonkeyPatch):
    """On a GPU the linear layer has 4096 features and the images are 64 of 56x56: small ones would show what starting a kernel takes."""
    from gpulab.devices import Device

    gpu = Device("cuda", 0)
    monkeypatch.setattr(_lighter.devices, "find", lambda _: gpu)
    monkeypatch.setattr(Device, "__str__", lambda _: "meta")
    monkeypatch.setattr(_lighter.compression, "prune", lambda layer, _: layer)
    monkeypatch.setattr(_lighter.compression, "finish", lambda layer: layer)
    monkeypatch.setattr(_lighter.compression, "to_sparse", lambda layer: layer)
    assert "4096 x 4096" in lessons.sparse_race((0.5,), device="a GPU").label
    assert lessons.grouping(device="a GPU").rows[0].flops == 2 * 64 * 56**2 * 128 * 128 * 9


def test_forms_are_measured_where_the_device_is_asked(monkeypatch: pytest.MonkeyPatch):
    """The linear layer on many rows only, each with its time; a form that is refused has its reason; without a GPU recordings speak."""
    asked = []

    def measured(experiment: str, wanted: Any, device: Any, deadline: float) -> Any:
        params = [
            {"layer": "linear", "form": "dense", "zeros": 0.0, "rows": 64},
            {"layer": "linear", "form": "csr", "zeros": 0.5, "rows": 64},
            {"layer": "linear", "form": "csr", "zeros": 0.9, "rows": 2},
            {"layer": "linear", "form": "dense", "zeros": 0.0, "rows": 1},
            {"layer": "convolution", "form": "dense", "groups": 1},
        ]
        asked.extend(each for each in params if wanted(each))
        took = SimpleNamespace(
            median_seconds=1e-3, interval_seconds=(0.9e-3, 1.1e-3), notes=(Note("contended", "x"), Note("deadline", "x")), evidence=LIVE
        )
        return [(params[0], "not here: no kernel"), (params[2], took)]

    monkeypatch.setattr(_lighter._live, "measured", measured)
    found = lessons.layer_forms("cpu")
    assert [(each["form"], each["rows"]) for each in asked] == [("dense", 64), ("csr", 2)]
    assert [row[1:] for row in found.rows] == [
        ("layer linear, form dense, zeros 0.0, rows 64", "not here: no kernel"),
        ("layer linear, form csr, zeros 0.9, rows 2", "1.00 ms [900 us, 1.10 ms] (contended)"),
    ]
    assert found.table()[0][0] == "measured on"
    monkeypatch.setattr(_lighter.recordings, "readable", dict)
    monkeypatch.setattr(_lighter.devices, "default", lambda: _lighter.devices.find("cpu"))
    assert lessons.layer_forms().rows == ()


class Says(torch.nn.Module):
    """A model that always gives the same class."""

    def __init__(self, digit: int) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(torch.nn.functional.one_hot(torch.tensor(digit), 10).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return its scores for each image."""
        return self.scores.expand(len(x), 10)


def test_changed_answers_are_counted():
    """A model against itself changes nothing; two that always say different digits change all 500."""
    pytest.importorskip("sklearn")
    assert lessons.changed_answers(Says(3), Says(3)) == 0
    assert lessons.changed_answers(Says(3), Says(4)) == 500


def test_nothing_recorded_is_said(monkeypatch: pytest.MonkeyPatch):
    """Without a recorded accelerator the table says so, and no number stands in it."""
    monkeypatch.setattr(_lighter.recordings, "readable", dict)
    table = lessons.recorded_forms().table()[1]
    assert list(table) == [("not recorded yet", "", "")]


def test_each_machine_of_the_recorded_forms_has_its_badge_line(monkeypatch: pytest.MonkeyPatch):
    """Of the recording as a whole: the rows have numbers of samples of their own, and that of the last one was said of all."""
    own = _lighter.recordings.load("nvidia-h200")
    other = dataclasses.replace(own, name="a100", environment=dataclasses.replace(own.environment, device="NVIDIA A100"))
    monkeypatch.setattr(_lighter.recordings, "readable", lambda: {"a100": other, "nvidia-h200": own})
    found = lessons.recorded_forms()
    assert [line.partition(",")[0] for line in found.caption().splitlines()] == ["RECORDED on NVIDIA A100", "RECORDED on NVIDIA H200"]
    assert "n = " not in found.caption()
    assert all(f"on {name}, " in found._repr_html_() for name in ("NVIDIA A100", "NVIDIA H200"))
    assert lessons.recorded_forms().from_dict(found.to_dict()) == found


def test_recorded_forms_that_are_compared_stand_together():
    """In each recording a layer's rows follow one another, its dense form first: then the eye can compare."""
    rows = [row for row in lessons.recorded_forms().rows if row[0] == "nvidia-h200"]
    params = [dict(part.split(" ", 1) for part in row[1].split(", ")) for row in rows]
    groups = [(each["layer"], each.get("rows"), each["dtype"]) for each in params]
    assert len(groups) > 10
    starts = [k for k, group in enumerate(groups) if k == 0 or group != groups[k - 1]]
    assert len(starts) == len(set(groups))
    for start in starts:
        if any(each["form"] == "dense" for each, group in zip(params, groups, strict=True) if group == groups[start]):
            assert params[start]["form"] == "dense"


def test_a_gain_without_an_interval_is_no_answer():
    """Where a neighbour took the interval, 07.1 has no measured answer, and says why; with one it has."""

    def of(interval: Any) -> Any:
        models = [SimpleNamespace(speedup=None, speedup_interval=None), SimpleNamespace(speedup=3.9, speedup_interval=interval)]
        return SimpleNamespace(models=models)

    for interval in (None, (3.6, 4.2)):
        weighing = Weighing("t", "a CPU", 1, tuple(of(interval).models), (), LIVE, None)  # type: ignore[arg-type]
        if interval is None:
            with pytest.raises(Unmeasured, match="for an interval"):
                _nb07.MASKED.outcome(weighing)
            shown = lessons.reveal("07.1", weighing)
            assert (shown.verdict, shown.badges, shown.captions()) == ("not measured", "", [])
            assert "MEASURED" not in repr(shown) + str(shown.table())
        else:
            assert _nb07.MASKED.outcome(weighing) == 3.9
            assert lessons.reveal("07.1", weighing).badges == "MEASURED"


def test_a_depthwise_gain_without_an_interval_is_no_answer(scripted: None):
    """The scripted clock gives no interval, so 07.12 is not measured; with one it is the ratio."""
    found = lessons.grouping(device="cpu")
    with pytest.raises(Unmeasured, match="Run the cell that times the groups"):
        _nb07.DEPTHWISE.outcome(found)
    sure = dataclasses.replace(found.depthwise, speedup_interval=(7.5, 8.5))
    assert _nb07.DEPTHWISE.outcome(dataclasses.replace(found, rows=(*found.rows[:-1], sure))) == 8.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda m: _tuned(compression.prune(m, 0.5, structured=True), then=lambda s: _tuned(compression.prune(s, 0.5))),
        lambda m: compression.quantize(_tuned(compression.prune(m, 0.5, structured=True)), bits=8),
        lambda m: compression.share_weights(_tuned(compression.prune(m, 0.5, structured=True)), 32),
    ],
    ids=["channels and zeros", "channels and 8 bits", "channels and shared values"],
)
def test_several_ways_meet_the_budget(make: Any):
    """The budget has many right answers: three others than the printed solution pass the check."""
    pytest.importorskip("sklearn")
    assert "within the budget" in _nb07_exercises._check_budget(make(lessons.trained()))


def _tuned(model: Any, then: Any = None) -> Any:
    training.fit("digits-cnn", model=model, epochs=4, device="cpu")
    return model if then is None else then(model)


def _round(share: float, least: float | None, most: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(speedup=1 / share, speedup_interval=None if least is None else (1 / most, 1 / least))


@pytest.mark.parametrize(
    ("rounds", "passes", "says"),
    [
        ([_round(0.8, 0.7, 0.9)], False, "what saves time"),
        ([_round(0.5, 0.4, 0.6)], True, "0.50 of the time: within the budget"),
        ([_round(0.99, 0.6, 1.8), _round(0.98, 0.9, 1.1)], False, "0.98 of the time: longer"),
        ([_round(0.8, 0.6, 1.2), _round(0.9, None), _round(0.5, 0.45, 0.55)], True, "0.50 of the time: within"),
        ([_round(share, 0.3, 1.5) for share in (0.5, 0.7, 0.4, 0.5)], True, "0.50 of the time (the middle of several"),
        ([_round(share, 0.3, 1.5) for share in (0.9, 0.7, 0.4, 0.9)], False, "0.80 of the time (the middle of several"),
    ],
    ids=["over", "under", "chance, then over", "noise, then under", "never sure, under", "never sure, over"],
)
def test_the_time_limit_is_judged_by_a_whole_interval(monkeypatch: pytest.MonkeyPatch, rounds: list[Any], passes: bool, says: str):
    """An interval that reaches over the limit decides nothing and is measured again; noise neither passes nor refuses by itself."""
    pytest.importorskip("sklearn")
    limits = lessons.budget()
    monkeypatch.setattr(_nb07_exercises.training, "evaluate", lambda *_: SimpleNamespace(ratio=0.99))
    small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    assert limits.longest_time == 0.65
    given = iter(rounds)
    monkeypatch.setattr(_lighter, "time_against_trained", lambda *_: next(given))
    monkeypatch.setattr(_lighter, "trained", lambda: small)
    with nullcontext() if passes else pytest.raises(Refused) as refused:
        said = _nb07_exercises._check_budget(small)
    assert says in (said if passes else refused.value.args[0])
    assert next(given, None) is None, "a round was not asked for"


class Sleepy(torch.nn.Module):
    """A model that loses its core for a while in each call, as on a crowded machine."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the model's scores, late."""
        time.sleep(0.03)
        return self.model(x)


def test_what_else_the_machine_does_is_not_charged_to_the_answer(monkeypatch: pytest.MonkeyPatch):
    """A network that waits 30 ms a call, five times as long as it computes, is as fast as the same one that does not wait."""
    pytest.importorskip("sklearn")
    network = training.task("digits-cnn").make_model(0)
    monkeypatch.setattr(_lighter, "_reference", lambda _: network)
    threads = torch.get_num_threads()
    row = _lighter.time_against_trained(Sleepy(network), 256)
    assert row.speedup is not None
    assert 0.6 < row.speedup < 1.6
    assert torch.get_num_threads() == threads
