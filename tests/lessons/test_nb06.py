"""Notebook 06's material: what its questions make of results, its three timelines, recorded options, and a library loaded whole."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import devices, lessons, recordings, training
from gpulab.errors import InputError
from gpulab.evidence import Environment, Evidence, Note
from gpulab.lessons import _nb06, _nb06_exercises, _nb06_memory, _nb06_timelines
from gpulab.lessons.content import Never, Refused, Unmeasured
from gpulab.recordings import Entry, Recording, Timing
from gpulab.training import CompileCost, FitResult, PipelineResult, RaceResult, StepSpan


def test_pipelines_answer_the_first_questions() -> None:
    """60 ms of loading before 20 ms of computing: 75 % waiting; half the step gives 80 / 70 the images; both sides carry their badge."""
    p = training.model_pipeline(0.06, 0.02, copy_seconds=0)
    assert _nb06.STALL_SHARE.outcome(p) == pytest.approx(75)
    assert _nb06.FASTER.outcome((p, training.replay(p, compute_seconds=0.01))) == pytest.approx(80 / 70)
    assert set(_nb06.FASTER.sides((p, p))) == {"the loading", "the accelerator"}
    assert _nb06.FASTER.sides(3) == {}


@pytest.mark.parametrize(
    ("workers", "prefetch", "says"),
    [
        (1, 2, "1 worker hands over a batch every 120 ms"),
        (2, 2, "2 workers hand over a batch every 60.0 ms"),
        (1, 13, "1 worker, 13 ahead, makes 13 batches in the host's memory; there is room for 12"),
        (7, 2, "7 workers, each 2 ahead, are 14 batches in the host's memory; there is room for 12"),
    ],
)
def test_one_worker_is_one(workers: int, prefetch: int, says: str) -> None:
    """120 ms of loading over the workers; what is ahead is workers times prefetch."""
    with pytest.raises(Refused, match=re.escape(says)):
        _nb06_exercises.STALL.check({"workers": workers, "prefetch": prefetch})


def test_a_compilation_that_never_pays_is_no_answer() -> None:
    """Slower than before, or not compiled at all: the reveal says so instead of a number."""
    evidence = Evidence.measured("A CPU")
    cost = CompileCost("it", "cpu", 0.0, 2.0, 0.01, 0.005, (0.0095, 0.0105), (0.0045, 0.0055), 0.0, "", (), evidence)
    assert _nb06.COMPILE.outcome(cost) == 400
    with pytest.raises(Never, match="and no saving was shown"):
        _nb06.COMPILE.outcome(dataclasses.replace(cost, compiled_seconds=0.02, compiled_interval=(0.019, 0.021)))
    with pytest.raises(Unmeasured, match=r"g\+\+"):
        _nb06.COMPILE.outcome(dataclasses.replace(cost, compile_seconds=None, compiled_seconds=None, reason="there is no g++"))


def test_a_saving_within_the_noise_is_no_answer() -> None:
    """Where the ends of both intervals, or none, leave open whether a call is faster, neither a number nor "never" is graded."""
    cost = CompileCost(
        "it", "cpu", 0.0, 2.0, 0.01, 0.009, (0.009, 0.011), (0.008, 0.0095), 0.0, "", (), Evidence.measured("A CPU")
    )  # saves -0.5 to 3 ms
    for one in (cost, dataclasses.replace(cost, compiled_seconds=0.0105, compiled_interval=(0.0095, 0.012)),
                dataclasses.replace(cost, eager_interval=None)):  # fmt: skip
        with pytest.raises(Unmeasured, match="within the noise") as why:
            _nb06.COMPILE.outcome(one)
        assert not isinstance(why.value, Never)


def test_a_break_even_within_a_wide_interval_judges_nobody() -> None:
    """Of 2,000 s of compiling and 1 s saved, surely 0.25 to 2 s: who said 8,000 calls may be right, so 2,000 is no answer."""
    cost = CompileCost("it", "cpu", 0.0, 2000.0, 10.0, 9.0, (9.5, 10.5), (8.5, 9.25), 0.0, "", (), Evidence.measured("A CPU"))
    with pytest.raises(Unmeasured, match=r"it may be 1,000 calls or 8,000\. Run the cell that compiles, and this one, again"):
        _nb06.COMPILE.outcome(cost)
    assert _nb06.COMPILE.outcome(dataclasses.replace(cost, eager_interval=(9.75, 10.5))) == 2000  # from 1,000 to 4,000


def test_a_break_even_may_be_three_times_as_early_or_as_late() -> None:
    """3,001.5 s over 1.5 s saved are 2,001 calls; over 4.5 and 0.5 s 667 and 6,003, a third and three times that: still close."""
    cost = CompileCost("it", "cpu", 0.0, 3001.5, 10.0, 8.5, (9.5, 11.5), (7.0, 9.0), 0.0, "", (), Evidence.measured("A CPU"))
    assert _nb06.COMPILE.outcome(cost) == 2001
    for wider, says in (
        ({"eager_interval": (9.499, 11.5)}, "667 calls or 6,016"),
        ({"eager_interval": (9.5, 11.51)}, "666 calls or 6,003"),
    ):
        with pytest.raises(Unmeasured, match=says):
            _nb06.COMPILE.outcome(dataclasses.replace(cost, **wider))


def test_a_compiled_form_with_other_results_never_pays() -> None:
    """However quick it is: the reveal says what the race said of the results, and gives no number of calls."""
    cost = CompileCost(
        "it", "cpu", 0.0, 2.0, 0.01, 0.005, (0.0095, 0.0105), (0.0045, 0.0055), 0.5, "",
        (Note("contended", "others"), Note("disagree", "compiled: the result differs.")), Evidence.measured("A CPU"),
    )  # fmt: skip
    with pytest.raises(Unmeasured, match="compiled: the result differs"):
        _nb06.COMPILE.outcome(cost)


def _run(step: float, spread: float) -> PipelineResult:
    """24 steps whose means over blocks of four are 1 - spread and 1 + spread times so many seconds, in turn."""
    ends, compute = 0.0, []
    for k in range(24):
        ends += step * (1 + spread * (-1) ** (k // 4)) if k else step
        compute.append(StepSpan("compute", k, 0, ends - step / 2, ends))
    return dataclasses.replace(training.model_pipeline(0.06, 0.02), spans=tuple(compute))


def test_two_runs_that_jump_about_are_no_answer() -> None:
    """Twice the images a second, where both runs were even; with steps that wander by 40 % the ratio may be anything from 1 to 4."""
    assert _nb06.WORKERS.outcome((_run(0.08, 0.0), _run(0.04, 0.0))) == pytest.approx(2)
    with pytest.raises(Unmeasured, match="jumped about"):
        _nb06.WORKERS.outcome((_run(0.08, 0.4), _run(0.04, 0.4)))
    short = dataclasses.replace(_run(0.04, 0.0), spans=_run(0.04, 0.0).spans[:8])
    with pytest.raises(Unmeasured, match="for an interval"):
        _nb06.WORKERS.outcome((_run(0.08, 0.0), short))


def test_a_race_of_checkpointing_needs_a_narrow_interval() -> None:
    """0.75 times the samples a second are 4/3 of the time; without an interval, or with one of 0.5 to 1.1, nothing is graded."""
    run = FitResult.__new__(FitResult)
    race = RaceResult("t", ("a", "b"), run, run, 0.75, (0.72, 0.78), None, None, (), Evidence.measured("A CPU"))
    assert _nb06.CHECKPOINT.outcome(race) == pytest.approx(4 / 3)
    for interval, says in ((None, "for an interval"), ((0.5, 1.1), "0.91x or 2.00x")):
        with pytest.raises(Unmeasured, match=says):
            _nb06.CHECKPOINT.outcome(dataclasses.replace(race, speedup_interval=interval))


def test_a_loop_that_fetches_once_at_its_end_is_right() -> None:
    """06.7 takes .to("cpu") behind the loop, and batches that are moved to where the model lies, as code for any device does."""

    def frugal(model, optimizer, batches):
        total, right, device = 0.0, 0, next(model.parameters()).device
        for batch in batches:
            inputs, labels = (part.to(device) for part in batch)
            optimizer.zero_grad()
            scores = model(inputs)
            loss = torch.nn.functional.cross_entropy(scores, labels)
            loss.backward()
            optimizer.step()
            total, right = total + loss.detach(), right + (scores.argmax(1) == labels).sum()
        return total.to("cpu").item(), right.to("cpu").item()

    assert "2 waits in all" in _nb06_exercises._check_frugal(frugal)


ONCE = "losses, hits = torch.stack(losses).cpu(), torch.stack(hits).cpu()\n    return "
READ = {
    "on the next line": "total = sum(losses).cpu(); right = sum(hits).cpu()\n    return total.item(), right.item()",
    "by to": "total, right = sum(losses).to('cpu'), sum(hits).to('cpu')\n    return float(total), int(right)",
    "added on the host": ONCE + "losses.sum().item(), hits.sum().item()",
    "one after the other": ONCE + "sum(float(x) for x in losses), sum(int(x) for x in hits)",
    "printed": "total, right = sum(losses).cpu(), sum(hits).cpu()\n    print(f'{total:.3f}')\n    return float(total), int(right)",
}
KEPT = _nb06_exercises._LOOP_BODY + "        losses.append(loss.detach())\n        hits.append((scores.argmax(1) == labels).sum())\n"


def _frugal(end: str) -> Any:
    names: dict[str, Any] = {"torch": torch}
    exec(f"def frugal(model, optimizer, batches):\n    losses, hits = [], []\n{KEPT}    {end}", names)
    return names["frugal"]


@pytest.mark.parametrize("end", READ.values(), ids=READ)
def test_what_was_fetched_once_may_be_read_often(end: str) -> None:
    """06.7: two fetches behind the loop are two waits, wherever and however often their numbers are read then."""
    assert "2 waits in all" in _nb06_exercises._check_frugal(_frugal(end))


def test_a_loop_that_fetches_both_numbers_at_once_waits_once() -> None:
    """06.7 as the exercise is called: one fetch of both is one wait, in the singular."""
    end = "return torch.stack([sum(losses), sum(hits).float()]).tolist()"
    assert _nb06_exercises._check_frugal(_frugal(end)).startswith("1 wait in all instead of 16, ")
    found = training.hidden_waits(lambda: torch.ones(3).sum().item(), device="cpu")
    assert "1 wait at 1 place" in repr(found)


def test_each_loss_read_by_itself_waits_by_itself() -> None:
    """06.7: kept in lists and read behind the loop, eight losses and eight counts are sixteen waits."""
    with pytest.raises(Refused, match="would wait 16 times in 8 steps"):
        _nb06_exercises._check_frugal(_frugal("return sum(x.item() for x in losses), sum(x.item() for x in hits)"))


def test_the_budget_is_kept_by_what_the_hint_says() -> None:
    """Four parts and half precision are enough too, as with checkpointing, the solution; two means without parts, or parts alone, are
    among the usual wrong answers, which are all tried elsewhere.
    """
    assert lessons.check("06.12", {"accumulate": 4, "checkpoint": False, "precision": "bfloat16"}).state == "passed"
    wrong = [usual.source for usual in _nb06_memory.BUDGET.usual]
    assert 'means = {"accumulate": 1, "checkpoint": True, "precision": "bfloat16"}' in wrong
    assert 'means = {"accumulate": 4, "checkpoint": False, "precision": "float32"}' in wrong
    assert "four parts and one more" in _nb06_memory.BUDGET.hints[-1]


def test_four_tensors_of_256_rows_fit_and_a_row_more_does_not() -> None:
    """06.14: of 8 KiB a row, in 8 MiB; nothing of a step is alive when the next one begins."""
    diary = _nb06_memory._Attempts()
    with diary.room:
        diary.step(256)
        with pytest.raises(torch.OutOfMemoryError):
            diary.step(257)
    assert (diary.batches, diary.done, diary.held) == ([256, 257], [256], [0, 0])


def test_where_nothing_fits_the_error_is_raised_and_not_handed_back() -> None:
    """06.14: in 8 KiB one of the four tensors of one item fits; from 4 on that is 4, 2 and 1."""
    tried: list[int] = []

    def halved(step: Any, batch: int) -> Any:
        while batch >= 1:
            tried.append(batch)
            try:
                step(batch)
            except torch.OutOfMemoryError:
                batch //= 2
        return torch.OutOfMemoryError("none")

    with pytest.raises(Refused, match=re.escape("In 8.00 KiB not even one item fits, and you returned an OutOfMemoryError (")):
        _nb06_memory._check_hopeless(halved)
    assert tried == [4, 2, 1]


def test_an_error_that_is_none_of_memory_is_met_once() -> None:
    """06.14: with a step of 8, by a function that lets it pass; one that tries again is told how often, and ended after a hundred times."""
    asked: list[int] = []

    def trying(times: int) -> Any:
        def recover(step: Any, batch: int) -> None:
            for _ in range(times):
                asked.append(batch)
                with contextlib.suppress(RuntimeError):
                    step(batch)

        return recover

    _nb06_memory._check_another(trying(1))
    assert asked == [8]
    with pytest.raises(Refused, match=r"^A step whose error is not one of memory .* was called 100 times\. A smaller batch does not"):
        _nb06_memory._check_another(trying(100))
    with pytest.raises(Refused, match=r"^Your function called step more than 100 times, though its error was not one of memory\.$"):
        _nb06_memory._check_another(trying(200))
    assert asked == [8] * (1 + 100 + 101)


def test_the_timelines_are_bound_by_what_the_exercise_says() -> None:
    """A by data, B by its link, C by the accelerator; another letter is refused."""
    assert [lessons.timeline(letter).bottleneck for letter in "ABC"] == ["data", "copy", "compute"]
    with pytest.raises(InputError, match="letter"):
        lessons.timeline("D")


@pytest.mark.parametrize(
    ("letter", "loading", "copy", "compute", "workers", "alone"),
    [
        ("A", 0.240, 0.002, 0.015, 6, "80.0 ms on a core of its own (2 cores)"),
        ("B", 0.030, 0.045, 0.020, 4, "30.0 ms on a core of its own (8 cores)"),
        ("C", 0.040, 0.001, 0.030, 4, "40.0 ms on a core of its own (8 cores)"),
    ],
)
def test_the_timelines_by_hand(letter: str, loading: float, copy: float, compute: float, workers: int, alone: str) -> None:
    """24 steps of 64 images each; A's 80 ms of loading take three times as long, for six workers share two cores."""
    found = _nb06_timelines.timeline(letter)
    assert (found.workers, found.steps) == (workers, 24)
    assert (found.loading_seconds, found.copy_seconds, found.compute_seconds) == pytest.approx((loading, copy, compute))
    assert alone in str(found.evidence.assumptions)


def test_recorded_options_may_be_chosen_and_stand_by_what_they_are_compared_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one model in one number format one means stands after the other, as recorded; only those asked for, and a machine that has none
    gives no evidence.
    """
    timing = Timing(np.full(5, 0.02), 5, 0.02, None, 0.1, 0.01, None, 1, None, None, ())

    def entry(model: str, precision: str, means: str) -> Entry:
        return Entry("training", {"model": model, "precision": precision, "means": means}, timing)

    there = (entry("mlp", "b", "plain"), entry("cnn", "b", "plain"), entry("cnn", "a", "graph"), entry("mlp", "b", "graph"),
             entry("cnn", "b", "compile"), entry("cnn", "a", "plain"))  # fmt: skip
    gpu = dataclasses.replace(devices.environment("cpu"), device="Far GPU", device_kind="cuda")
    monkeypatch.setattr(recordings, "readable", lambda: {"far": Recording("far", gpu, {}, {}, "0.1.0", there)})
    stands = ["cnn, a, graph", "cnn, a, plain", "cnn, b, plain", "cnn, b, compile", "mlp, b, plain", "mlp, b, graph"]
    assert [row[1:] for row in _nb06_timelines.recorded_options().rows] == [(f"training: {what}", "20.0 ms") for what in stands]
    assert [row[1] for row in lessons.recorded_options(["plain", "compile"]).rows] == [
        f"training: {what}" for what in stands if "graph" not in what
    ]
    assert lessons.recorded_options(["fused"]) == lessons.RecordedOptions((), ())


def test_recorded_options_list_what_gpus_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's training steps appear with number, interval and badge; CPUs and other experiments do not; none is "not recorded yet"."""
    monkeypatch.setattr(recordings, "readable", dict)
    assert lessons.recorded_options().evidence == ()
    assert "not recorded yet" in str(lessons.recorded_options().table())
    timing = Timing(np.full(5, 0.02), 5, 0.02, (0.019, 0.021), 0.1, 0.01, None, 1, None, None, ())
    entries = (Entry("training", {"model": "cnn", "means": "compile", "steps": 10}, timing), Entry("transfer", {"nbytes": 8}, timing))
    gpu = dataclasses.replace(devices.environment("cpu"), device="Far GPU", device_kind="cuda")

    def recording(name: str, environment: Environment) -> Recording:
        return Recording(name, environment, {}, {}, "0.1.0", entries)

    monkeypatch.setattr(recordings, "readable", lambda: {"far": recording("far", gpu), "near": recording("near", HERE)})
    found = lessons.recorded_options()
    assert found.rows == (("far", "training: cnn, compile, 10 steps", "20.0 ms (95 % 19.0 ms to 21.0 ms)"),)
    assert [each.sentence.startswith("RECORDED on Far GPU") for each in found.evidence] == [True]
    assert "n = " not in found.caption(), "that of the last row would be said of all"
    other = dataclasses.replace(recording("more", gpu), environment=dataclasses.replace(gpu, device="Other GPU"))
    monkeypatch.setattr(recordings, "readable", lambda: {"far": recording("far", gpu), "more": other})
    lines = lessons.recorded_options().caption().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["RECORDED on Far GPU", "RECORDED on Other GPU"]
    assert all(f"on {name} GPU, " in lessons.recorded_options()._repr_html_() for name in ("Far", "Other"))


HERE = devices.environment("cpu")
