"""The speed-up ladder: known times give known gains, alone and together; what is missing, too slow or less accurate is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from training_clock import Clock

from gpulab import networks, recordings, training
from gpulab.errors import InputError, StoppedError
from gpulab.training import Data, Gain, LadderResult, Task, Technique, _ladder
from gpulab.training._evaluate import Answers
from gpulab.training._seeds import difference_over_seeds

LOAD, UPDATE = 4.0, 4.0  # seconds of a step of the script: taking the batch, and the optimizer


class SlowData(Data):
    """Data of which taking a batch takes its time; whoever holds the tensors themselves pays nothing."""

    clock: Clock

    def __getitem__(self, indices: Any) -> tuple[Any, Any]:
        """Let the time of loading pass."""
        self.clock.spend(LOAD)
        return super().__getitem__(indices)


class Slow(torch.optim.SGD):
    """An optimizer whose step takes a known time."""

    def __init__(self, parameters: Any, clock: Clock, seconds: float) -> None:
        super().__init__(parameters, lr=0.01)
        self.clock, self.seconds = clock, seconds

    def step(self, closure: Any = None) -> Any:
        """Take the time, update."""
        self.clock.spend(self.seconds)
        return super().step(closure)


def scripted(*chosen: Technique, clock: Clock, **options: Any) -> LadderResult:
    """Climb on a task whose seconds are known: 4 of loading and 4 of the optimizer a step."""
    generator = torch.Generator().manual_seed(0)
    data = SlowData(torch.randn(64, 3, generator=generator), torch.randint(2, (64,), generator=generator))
    object.__setattr__(data, "clock", clock)
    task = Task("scripted", "a line", "rows", "classes", 4, 1, 0.01, lambda: (data, data), lambda: torch.nn.Linear(3, 2))
    start = {"batch_size": 4, "optimizer": updating(clock, UPDATE)}
    return training.ladder(task, chosen, start=start, device="cpu", clock=clock, **{"deadline": 1e9, "seeds": 0, **options})


def updating(clock: Clock, seconds: float) -> Any:
    """Return a function that makes the optimizer whose step takes so long."""
    return lambda parameters: Slow(parameters, clock, seconds)


RESIDENT = Technique("resident", "data on the device", "loading", {"loading": "resident"})


def test_techniques_that_mend_different_parts_give_more_than_their_product() -> None:
    """By hand: 8 s a step; without loading 4 s (2x); with a quick optimizer 5 s (1.6x); with both 1 s: 8x against a product of 3.2x."""
    clock = Clock()
    quick = Technique("quick", "quick optimizer", "the optimizer", {"optimizer": updating(clock, 1.0)})
    found = scripted(RESIDENT, quick, clock=clock)
    assert [rung.alone.ratio for rung in found.rungs] == pytest.approx([2.0, 1.6], rel=1e-3)
    assert [rung.gain.ratio for rung in found.rungs] == pytest.approx([2.0, 4.0], rel=1e-3)
    assert [rung.removed.ratio for rung in found.rungs] == pytest.approx([5.0, 4.0], rel=1e-3)
    assert (found.together.ratio, found.product.ratio) == pytest.approx((8.0, 3.2), rel=1e-3)
    assert found.overstated.ratio == pytest.approx(0.4, rel=1e-3)
    assert found.overstated.verdict == "slower"
    assert "more than the product" in found.sentence
    assert all(gain.interval and gain.interval[0] <= gain.ratio <= gain.interval[1] for gain in (found.together, found.product))
    assert found.start.samples_per_second == pytest.approx(4 / 8, rel=1e-3)


def test_techniques_that_mend_the_same_part_give_less_than_their_product() -> None:
    """By hand: the optimizer's 4 s become 2 s (8/6) or 1 s (8/5); with both options the second one stands: 1.6x, not 2.13x."""
    clock = Clock()
    half = Technique("half", "half", "the optimizer", {"optimizer": updating(clock, 2.0)})
    quick = Technique("quick", "quick", "the optimizer", {"optimizer": updating(clock, 1.0)})
    found = scripted(half, quick, clock=clock)
    assert (found.together.ratio, found.product.ratio) == pytest.approx((8 / 5, 8 / 6 * 8 / 5), rel=1e-3)
    assert found.overstated.verdict == "faster"
    assert "promises more" in found.sentence
    assert found.rungs[0].removed == Gain(1.0, (1.0, 1.0))  # the second one took its place: the form was not timed against itself
    assert [note.sentence for note in found.notes if "takes its place" in note.sentence] == [
        "half: quick takes its place, so that nothing changes without it at the end."
    ]
    assert f"{found.overstated}" in found.product_evidence.sentence
    assert found.product_evidence.badge == "MODELLED"


def test_a_larger_batch_is_compared_by_the_sample() -> None:
    """A batch of 16 takes as long a step as one of 4 here: four times the samples a second, and a quarter of the updates."""
    found = scripted(Technique("batch", "larger batch", options={"batch_size": 16}), clock=Clock())
    assert found.together.ratio == pytest.approx(4.0, rel=1e-3)
    assert found.rungs[0].form.batch_size == 16


def test_what_slows_every_combination_is_left_out_with_its_figure() -> None:
    """An optimizer of 36 s makes a sample take 5 times as long: it is measured alone and not climbed; one of 400 s is not even timed."""
    clock = Clock()
    slow = Technique("slow", "slow optimizer", options={"optimizer": updating(clock, 36.0)})
    hopeless = Technique("hopeless", "hopeless", options={"optimizer": updating(clock, 400.0)})
    found = scripted(slow, RESIDENT, hopeless, clock=clock)
    assert [rung.name for rung in found.rungs] == ["resident"]
    first, second = found.left_out
    assert first.alone is not None
    assert first.alone.ratio == pytest.approx(8 / 40, rel=1e-3)
    assert "5.00x as long" in first.reason
    assert second.alone is None
    with pytest.raises(InputError, match="none of these techniques"):
        scripted(slow, clock=clock)


@pytest.mark.parametrize("slow", [dict.fromkeys(range(1, 7), 20.0), {3: 400.0}], ids=["its first six steps", "its third, for minutes"])
def test_a_busy_moment_makes_no_technique_hopeless(slow: dict[int, float]) -> None:
    """Each form's first six steps take 24 s where the script's take 8, or its third 404, as beside another program; else 8: climbed."""
    clock = Clock()

    class Disturbed(Slow):
        """Slow in some steps."""

        taken = 0

        def step(self, closure: Any = None) -> Any:
            """Take the time, update."""
            self.taken += 1
            self.seconds = slow.get(self.taken, UPDATE)
            return super().step(closure)

    busy = Technique("busy", "busy", options={"optimizer": lambda parameters: Disturbed(parameters, clock, UPDATE)})
    found = scripted(busy, clock=clock)
    assert [rung.name for rung in found.rungs] == ["busy"]
    assert found.rungs[0].alone.ratio == pytest.approx(1.0, rel=1e-3)


def test_a_program_that_begins_and_stays_makes_no_technique_hopeless() -> None:
    """After the script's first six steps (a loading and an update each) all takes three times as long, the script too: climbed."""

    class Busy(Clock):
        """Slow after the twelfth time."""

        spent = 0

        def spend(self, seconds: float) -> None:
            """Let more time pass."""
            self.spent += 1
            super().spend(seconds if self.spent <= 12 else 3 * seconds)

    clock = Busy()
    found = scripted(Technique("same", "same", options={"optimizer": updating(clock, UPDATE)}), clock=clock)
    assert [rung.name for rung in found.rungs] == ["same"]
    assert found.rungs[0].alone.ratio == pytest.approx(1.0, rel=1e-3)


class Compiler:
    """Stands in for ``torch.compile``: of each batch size so many runs are compiled, and the next raises."""

    def __init__(self, most: dict[int, int]) -> None:
        self.most = most

    def __call__(self, model: Any, *, dynamic: bool) -> Any:
        """Return a model that fails where no run of its batch size is left."""
        left: list[int] = []

        def compiled(inputs: torch.Tensor) -> Any:
            if not left:
                left.append(self.most.get(len(inputs), 1000))
                self.most[len(inputs)] = left[0] - 1
            if left[0] < 1:
                raise RuntimeError("no backend on this planet")
            return model(inputs)

        return compiled


BATCH = Technique("batch", "larger batch", options={"batch_size": 16})
COMPILE = Technique("compile", "compiled", options={"compile": True})


def test_what_falls_back_upon_those_below_is_not_climbed_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled alone it runs, upon the larger batch the compiler fails: left out, with the reason; the same for one below it."""
    monkeypatch.setenv("CXX", "g++")
    for chosen, left in (((BATCH, COMPILE), "compile"), ((COMPILE, BATCH), "batch")):
        monkeypatch.setattr(torch, "compile", Compiler({16: 0}))
        found = scripted(*chosen, clock=Clock(), turns=1)
        assert [rung.name for rung in found.rungs] == [one.name for one in chosen if one.name != left]
        assert [one.name for one in found.left_out] == [left]
        below = chosen[0].title
        assert found.left_out[0].reason.startswith(f"Added to {below}: torch.compile failed (RuntimeError: no backend on this planet")


def test_a_form_that_lacks_one_of_its_techniques_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second compiled run of batches of 4 fails: that of all techniques but the larger batch, which the notes name once."""
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr(torch, "compile", Compiler({4: 1}))
    found = scripted(BATCH, COMPILE, RESIDENT, clock=Clock(), turns=1)
    assert [rung.name for rung in found.rungs] == ["batch", "compile", "resident"]
    told = [note.sentence for note in found.notes if note.code == "skipped"]
    assert len(told) == 1
    assert told[0].startswith("compiled + data on the device: torch.compile failed")


def test_what_replaces_another_or_loses_a_part_of_itself_is_climbed() -> None:
    """A second batch size stands for the first; a prefetch that nothing pins on a CPU is still one, and that is told once."""
    larger = Technique("larger", "much larger batch", options={"batch_size": 32})
    ahead = Technique("ahead", "pinned prefetch", options={"prefetch": 2, "pinned": True})
    found = scripted(BATCH, larger, ahead, clock=Clock(), turns=1)
    assert [rung.name for rung in found.rungs] == ["batch", "larger", "ahead"]
    assert [note.sentence.partition(": ")[0] for note in found.notes if "pageable" in note.sentence] == ["pinned prefetch"]


def test_few_turns_give_no_interval_and_a_deadline_ends_them() -> None:
    """Below 20 turns nothing is claimed; after the deadline the 20 are there."""
    found = scripted(RESIDENT, clock=Clock(), turns=3)
    assert (found.turns, found.together.interval, found.together.verdict) == (3, None, "no interval")
    assert "no-interval" in [note.code for note in found.notes]
    found = scripted(RESIDENT, clock=Clock(), turns=30, deadline=1.0)
    assert found.turns == 20
    assert found.together.interval is not None


def test_a_stop_and_the_progress_are_heard() -> None:
    """Progress rises; a stop before the end raises."""
    seen: list[float] = []
    scripted(RESIDENT, clock=Clock(), turns=2, progress=lambda fraction, text: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    with pytest.raises(StoppedError, match="stopped before"):
        scripted(RESIDENT, clock=Clock(), stop=lambda: True)


@pytest.mark.parametrize(
    ("at", "turns", "when"),
    [("turn 3", 2, "after 2 of 4 turns"), ("training", 4, "before every form was trained to the end, so there is no accuracy")],
)
def test_a_stop_after_the_first_turn_keeps_what_was_reached(at: str, turns: int, when: str) -> None:
    """8 s a step of the script, 4 without the loading: twice as fast, whether turns or trainings to the end are cut short."""
    said: list[str] = []
    found = scripted(
        RESIDENT, clock=Clock(), turns=4, seeds=2, samples=8, progress=lambda fraction, text: said.append(text),
        stop=lambda: bool(said) and (said[-1].startswith("turn 2") if at == "turn 3" else said[-1].startswith(at)),
    )  # fmt: skip
    assert (found.turns, found.seeds, found.start_accuracy, found.rungs[0].learned) == (turns, (), None, None)
    assert found.together.ratio == pytest.approx(2.0, rel=1e-3)
    told = f"stopped: The ladder was stopped {when}; what is shown is what was reached. Run it again for the rest."
    assert [str(note) for note in found.notes if note.code == "stopped"] == [told]


def test_a_cpu_lacks_what_it_lacks_and_recordings_speak_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its reason; where a GPU recorded it, the figure stands beside it, else "not recorded yet"."""
    chosen = ("batch", "tf32", "autotune", "graph", "ranks")
    options: dict[str, Any] = {"start": {"batch_size": 2}, "device": "cpu", "seeds": 0, "turns": 1}
    found = training.ladder("prose-transformer", chosen, **options)
    assert [one.name for one in found.left_out] == ["tf32", "autotune", "graph", "ranks"]
    h200 = recordings.load("nvidia-h200")
    steps = training.recorded_steps(h200, {}, {"means": "graph"})
    graph = next(one for one in found.left_out if one.name == "graph")
    assert {(machine, gain.ratio) for machine, _, gain in graph.recorded} == {("nvidia-h200", row.speedup) for row in steps.rows}
    assert [evidence.badge for evidence in found.recorded_evidence] == ["RECORDED"]
    assert LadderResult.from_dict(found.to_dict()) == found
    monkeypatch.setattr(recordings, "readable", dict)
    nothing = training.ladder("prose-transformer", chosen, **options)
    assert all("not recorded yet" in row for row in nothing.left_out_table()[1] if row[0])
    layout = training.ladder("prose-transformer", ("batch", "layout"), **options)
    assert "no channels to put last" in layout.left_out[0].reason


def test_a_precision_that_a_cpu_lacks_is_no_rung_of_ones_own() -> None:
    """What would run in the place of a technique of one's own is not climbed under its name."""
    mine = Technique("mine", "rounded products", options={"precision": "tf32"})
    found = training.ladder("prose-transformer", ("batch", mine), start={"batch_size": 2}, device="cpu", seeds=0, turns=1)
    assert [rung.name for rung in found.rungs] == ["batch"]
    assert "no TF32" in found.left_out[0].reason


def test_accuracy_is_checked_at_equal_samples_and_a_loss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate of nearly zero learns nothing: lost, and named once; reading no loss changes no bit; the steps follow from the samples."""
    crawl = Technique("crawl", "crawling", options={"learning_rate": 1e-12})
    chosen = ("waits", crawl, "batch")
    monkeypatch.setattr(_ladder, "_slower", lambda run, other: 1.0)  # what other programs make of a millisecond is not asked here
    found = training.ladder("digits-mlp", chosen, device="cpu", seeds=2, samples=3200, turns=1)
    waits, crawled, batch = (rung.learned for rung in found.rungs)
    assert waits is not None
    assert waits.same_losses
    assert (waits.difference, waits.steps) == (0.0, 200)
    assert crawled is not None
    assert (crawled.verdict, crawled.interval[1] < 0) == ("lost", True)
    assert batch is not None
    assert (batch.steps, batch.same_losses, batch.verdict) == (50, False, "lost")
    assert [rung.name for rung in found.hurting] == ["crawl"]
    assert "from here on: crawling" in found.sentence


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("digits-mlp", ["nothing"]), {}, "there is no 'nothing'"),
        (("digits-mlp", []), {}, "expected some, each once"),
        (("digits-mlp", ["batch", "batch"]), {}, "each once"),
        (("digits-mlp", "batch"), {}, "expected several"),
        (("digits-mlp", ["batch"]), {"leave_out": ["graph"]}, "leave_out"),
        (("digits-mlp", ["batch"]), {"turns": 0}, "turns is 0"),
        (("digits-mlp", ["batch"]), {"seeds": -1}, "seeds is -1"),
        (("digits-mlp", ["batch"]), {"samples": 0.5}, "samples is 0.5"),
        (("digits-mlp", ["batch"]), {"tolerance": float("nan")}, "tolerance"),
        (("digits-mlp", ["batch"]), {"threads": 0}, "threads is 0"),
        (("digits-mlp", ["batch"]), {"start": {"bach": 3}}, "bach"),
        (("digits-mlp", ["batch"]), {"start": ["batch_size"]}, "start is .* options of fit by name"),
        (("digits-mlp", ["batch"]), {"start": {"model": networks.mlp(64, 8, 10)}}, "start has a model, a SmallMLP, .* one for each"),
        (
            ("digits-mlp", [Technique("x", "an x", options={"model": networks.mlp(64, 8, 10)})]),
            {},
            "an x has a model, a SmallMLP, .* function that makes one",
        ),
        (("digits-mlp", [Technique("x", "an x", options={"batch_size": 10**9})]), {}, "ladder, an x: .*batch_size"),
        (("digits-mlp", [Technique("x", "an x", options={"learning_rate": 1e30})]), {"start": {}}, "is no number"),
    ],
)
def test_what_cannot_be_climbed(arguments: Any, options: Any, words: str) -> None:
    """One sentence with the value and what to do."""
    with pytest.raises(InputError, match=words):
        training.ladder(*arguments, **{"device": "cpu", "seeds": 0, "turns": 1, **options})


def test_a_technique_that_is_none() -> None:
    """Said when it is made."""
    with pytest.raises(InputError, match="title"):
        Technique("x", "")
    with pytest.raises(InputError, match="options of fit"):
        Technique("x", "an x", options=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (None, "no interval"),
        ((1.01, 1.2), "faster"),
        ((0.5, 0.99), "slower"),
        ((0.99, 1.3), "no difference shown"),
        ((1.0, 1.3), "no difference shown"),
    ],
)
def test_what_an_interval_allows_to_say(interval: Any, verdict: str) -> None:
    """The interval decides, never the ratio."""
    assert Gain(1.1, interval).verdict == verdict


def answers(rows: list[list[float]]) -> list[Answers]:
    """Models by their right answers."""
    return [Answers(np.array(row), 1, 0.5, "digits", "A CPU") for row in rows]


def test_differences_over_seeds_know_of_seeds_and_items() -> None:
    """Two seeds that disagree on the sign leave everything open; equal answers are not called equal for certain; by hand: the mean."""
    before = answers([[1.0] * 80 + [0.0] * 20] * 2)
    same = difference_over_seeds(before, before)
    assert same[0] == 0.0
    assert same[1][0] < 0 < same[1][1]
    apart = answers([[1.0] * 90 + [0.0] * 10, [1.0] * 70 + [0.0] * 30])
    mean, interval = difference_over_seeds(before, apart)
    assert mean == pytest.approx(0.0)
    assert interval[0] < -0.1 < 0.1 < interval[1]
    better = answers([[1.0] * 90 + [0.0] * 10] * 2)
    mean, interval = difference_over_seeds(before, better)
    assert mean == pytest.approx(0.1)
    assert 0 < interval[0] < 0.1 < interval[1]


def test_a_second_ladder_does_not_train_the_script_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's models are those of the first, bit for bit; another seed or start is trained anew."""
    steps: list[int] = []
    real = training.Run.advance

    def advance(run: Any, count: int = 1) -> Any:
        steps.append(count)
        return real(run, count)

    monkeypatch.setattr(_ladder, "_slower", lambda run, other: 1.0)  # what other programs make of a millisecond is not asked here
    # On some processors fused steps give the same bits, and with them the script's answers: then only the script is trained.
    monkeypatch.setattr(_ladder, "_same", lambda one, other: False)
    options: dict[str, Any] = {"device": "cpu", "seeds": 1, "samples": 320, "turns": 1, "start": {"batch_size": 32}}
    first = training.ladder("digits-mlp", ["fused"], **options)
    monkeypatch.setattr(training.Run, "advance", advance)
    second = training.ladder("digits-mlp", ["fused"], **options)
    again = len(steps)
    training.ladder("digits-mlp", ["fused"], **{**options, "start": {"batch_size": 16}})
    assert second.start_accuracy == first.start_accuracy
    assert len(steps) - again == again + 1
