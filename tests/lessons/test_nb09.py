"""Notebook 09's material: what its questions make of a ladder, the claims beside it, the step made of parts, and the learner's script."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib
from contextlib import nullcontext
from typing import Any

import pytest

from gpulab import claims, devices, lessons, recordings, training
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.lessons import _nb09, _nb09_script
from gpulab.lessons.content import Refused, Unmeasured
from gpulab.training import Gain, LadderForm, LadderResult, Learned, Rung, ScriptsResult, SeedsAccuracy, _scripts

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "09_speedup_ladder.ipynb"
_FORM = LadderForm((), 16, 100.0, None, Gain(1.0, None), 0.1, {}, None)


def learned(verdict: str) -> Learned:
    """What a rung learned, with that verdict."""
    accuracy = SeedsAccuracy((), 0.9, None, (0.8, 1.0), "digits", Evidence.measured("A CPU"))
    return Learned(accuracy, -0.1, (-0.2, -0.05), 10, False, verdict)


def ladder(overstated: Gain, verdict: str = "kept", together: Gain = Gain(2.5, (2, 3))) -> LadderResult:  # noqa: B008 - frozen
    """Two rungs: the first gains most alone, the second alone still gives something at the end."""
    sure, none = Gain(1.5, (1.4, 1.6)), Gain(1.1, (0.9, 1.3))
    rungs = (
        Rung("fused", "fused optimizer", "x", _FORM, sure, Gain(3.0, (2.0, 4.0)), none, None),
        Rung("batch", "larger batch", "x", _FORM, sure, sure, sure, learned(verdict)),
    )
    return LadderResult(
        "digits", "cpu", 1, (0,), 0.02, _FORM, None, rungs, together, Gain(4.5, (3, 6)), overstated, (), (), 24, (),
        Evidence.measured("A CPU"), devices.environment("cpu"),
    )  # fmt: skip


def test_a_ladder_answers_the_questions() -> None:
    """All together, the best by itself, the product by its interval, what still counts, and the accuracy of the last rung."""
    found = ladder(Gain(1.8, (1.2, 2.4)))
    assert _nb09.TOGETHER_GAIN.outcome(found) == 2.5
    assert _nb09.MOST.outcome(found) == "fused optimizer"
    assert _nb09.STILL.outcome(found) == 1
    assert [_nb09.PRODUCT.outcome(ladder(Gain(1.8, span))) for span in ((1.2, 2.4), (0.5, 0.8), (0.8, 2.4))] == [
        _nb09.MORE, _nb09.LESS, _nb09.SAME,
    ]  # fmt: skip
    with pytest.raises(Unmeasured, match="turns"):
        _nb09.PRODUCT.outcome(ladder(Gain(1.8, None)))
    assert [_nb09.SAME_SAMPLES.outcome(ladder(Gain(1.0, None), word)) for word in ("kept", "lost", "not decided")] == [
        _nb09.KEPT, _nb09.LOST, _nb09.UNDECIDED,
    ]  # fmt: skip
    with pytest.raises(Unmeasured, match="recorded"):
        _nb09.GRAPH.outcome(None)
    with pytest.raises(Unmeasured, match=r"3\.44x \(no interval\): too few steps"):
        _nb09.GRAPH.outcome(Gain(3.44, None))
    assert _nb09.GRAPH.outcome(Gain(3.44, (3.0, 4.0))) == 3.44


@pytest.mark.parametrize(
    ("interval", "says"),
    [(None, "too few turns"), ((1.9, 2.6), "it may be 1.90x or 2.60x"), ((2.4, 3.3), "it may be 2.40x or 3.30x")],
)
def test_a_gain_together_without_a_narrow_interval_judges_nobody(interval: Any, says: str) -> None:
    """A prediction is close within a factor of 1.3: of 2.5x that is 1.92x to 3.25x; an interval beyond it, or none, leaves it open."""
    shown = ladder(Gain(1.8, None), together=Gain(2.5, interval))
    with pytest.raises(Unmeasured, match=says):
        _nb09.TOGETHER_GAIN.outcome(shown)
    assert _nb09.TOGETHER_GAIN.outcome(4.0) == 4.0


def test_without_intervals_nobody_is_told_that_no_technique_counts_at_the_end() -> None:
    """From fewer than 20 turns no ratio has an interval: what is still missed is not known, and no answer is 0."""
    made = ladder(Gain(1.8, None))
    rungs = tuple(dataclasses.replace(rung, removed=Gain(1.5, None)) for rung in made.rungs)
    with pytest.raises(Unmeasured, match="too few turns"):
        _nb09.STILL.outcome(dataclasses.replace(made, rungs=rungs))
    assert _nb09.STILL.outcome(3) == 3


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (Gain(3.0, (2.0, 4.0)), Gain(1.5, (1.4, 1.6)), ""),
        (Gain(3.0, (2.0, 4.0)), Gain(2.9, (2.8, 3.0)), r"fused optimizer 3.00x \[2.00x, 4.00x\], larger batch 2.90x"),
        (Gain(3.0, (2.0, 4.0)), Gain(1.9, (1.8, 2.0)), r"larger batch 1.90x \[1.80x, 2.00x\]"),  # they touch
        (Gain(3.0, (2.9, 3.1)), Gain(2.0, None), "larger batch 2.00x"),
        (Gain(3.0, None), Gain(2.0, (1.9, 2.1)), "fused optimizer 3.00x"),
    ],
)
def test_which_gains_most_is_answered_by_intervals_alone(first: Gain, second: Gain, says: str) -> None:
    """Rule 1 holds for the course's own question: where the best two overlap, nobody is told that the other one is wrong."""
    made = ladder(Gain(1.8, None))
    rungs = tuple(dataclasses.replace(rung, alone=gain) for rung, gain in zip(made.rungs, (first, second), strict=True))
    asked = dataclasses.replace(made, rungs=rungs)
    if not says:
        assert _nb09.MOST.outcome(asked) == "fused optimizer"
        return
    with pytest.raises(Unmeasured, match=says):
        _nb09.MOST.outcome(asked)


def test_the_choices_of_the_notebook_are_those_of_the_answers() -> None:
    """What a reveal may answer can be chosen."""
    text = "".join("".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code")
    for words in (_nb09.MORE, _nb09.SAME, _nb09.LESS, _nb09.KEPT, _nb09.LOST, _nb09.UNDECIDED):
        assert f'"{words}"' in text


def test_the_script_of_the_notebook_is_that_of_the_check() -> None:
    """The learner beats the very lines that are shown: all that the loop does is the same."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    shown = "".join(next(cell["source"] for cell in cells if cell["id"] == "script"))
    checked = inspect.getsource(lessons.beginners_script)

    def loop(source: str) -> list[str]:
        lines = [line.split("#")[0].strip().replace("str(device)", "device") for line in source.splitlines()]
        lines = [line.replace("losses.append(loss.item())", "loss.item()") for line in lines]
        return [line for line in lines[next(k for k, line in enumerate(lines) if "optimizer =" in line) :] if line and "losses" not in line]

    assert loop(shown) == loop(checked)


FASTER, REACHES, SLOWER, NONE = Gain(1.2, (1.1, 1.3)), Gain(1.2, (0.9, 1.5)), Gain(0.9, (0.8, 0.95)), Gain(3.0, None)
SURE, LATER = Gain(1.15, (1.12, 1.18)), Gain(1.05, (0.98, 1.12))


def scripts(gain: Gain, samples: int = 192, lost: bool = False) -> ScriptsResult:
    """What was found of two scripts, the first of which takes 192 samples."""
    accuracy = SeedsAccuracy((), 0.9, None, (0.8, 1.0), "digits", Evidence.measured("A CPU"))
    return ScriptsResult(
        "digits-cnn", "cpu", ("script", "mine"), 64, (2.0, 1.0), gain, (192, samples), (accuracy, accuracy), 0.0,
        (-0.2, -0.1) if lost else (-0.01, 0.01), 0.02, (), Evidence.measured("A CPU"), devices.environment("cpu"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "passes", "says"),
    [
        ([FASTER, SURE], True, "mine is 1.15x [1.12x, 1.18x] as fast as script"),
        ([FASTER, LATER, REACHES, LATER], False, "1.05x [0.98x, 1.12x], no difference shown. The interval has to"),
        ([FASTER, SLOWER], False, "0.90x [0.80x, 0.95x], slower"),
        ([SLOWER], False, "0.90x [0.80x, 0.95x], slower"),
        ([REACHES, FASTER, SURE], True, "1.15x [1.12x, 1.18x]"),
        ([NONE, REACHES, FASTER, SURE], True, "1.15x [1.12x, 1.18x]"),
        ([FASTER, NONE, FASTER, LATER], False, "1.05x [0.98x, 1.12x], no difference shown"),
        ([REACHES, REACHES, LATER, FASTER], False, "1.05x [0.98x, 1.12x], no difference shown"),
        ([REACHES, REACHES, REACHES, NONE], False, "3.00x, but the times wander so much that they allow no interval. Close what else runs"),
    ],
    ids=["twice", "once, by chance", "then slower", "slower", "noise, then twice", "noise, then twice at last", "never two in succession",
         "once, at last", "noise"],
)  # fmt: skip
def test_faster_is_what_two_series_in_succession_say(monkeypatch: pytest.MonkeyPatch, rounds: list[Gain], passes: bool, says: str) -> None:
    """One interval above 1 is not enough, and one that reaches over 1, or none, is no answer: noise neither passes nor refuses."""
    given, longer = iter(rounds), [0.0]

    def measured(*asked: Any) -> Gain:
        longer.append(asked[-1])
        return next(given)

    monkeypatch.setattr(_nb09_script, "_tried", lambda *_: None)
    monkeypatch.setattr(_nb09_script, "_as_many", lambda *_: None)
    monkeypatch.setattr(training, "compare_scripts", lambda *_, **__: scripts(next(given)))
    monkeypatch.setattr(_nb09_script, "gain_in_turns", measured)
    with nullcontext() if passes else pytest.raises(Refused) as refused:
        said = _nb09_script._check_script(lambda model, data: None)
    assert says in (said if passes else refused.value.args[0])
    assert next(given, None) is None, "a series was not asked for"
    assert longer == sorted(set(longer)), "each is longer than the one before"


@pytest.mark.parametrize(("wrong", "says"), [({"samples": 64}, "trains less"), ({"lost": True}, "less accurate")])
def test_what_does_other_work_is_refused_without_another_series(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], says: str) -> None:
    """Whether it is faster is no question then."""
    monkeypatch.setattr(_nb09_script, "_tried", lambda *_: None)
    monkeypatch.setattr(_nb09_script, "_as_many", lambda *_: None)
    monkeypatch.setattr(_nb09_script, "gain_in_turns", lambda *_: pytest.fail("measured again"))
    for gain in (FASTER, REACHES, NONE):
        monkeypatch.setattr(training, "compare_scripts", lambda *_, gain=gain, **__: scripts(gain, **wrong))
        with pytest.raises(Refused, match=says):
            _nb09_script._check_script(lambda model, data: None)


def test_another_series_of_turns_is_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same script twice, at least 0.5 s each in a usual series and so three times that, but never more than 20 s."""
    asked: list[float] = []
    compare = _scripts.compare_within

    def short(limits: Any, *args: Any, **named: Any) -> Any:
        asked.append(limits.deadline)
        return compare(dataclasses.replace(limits, deadline=0.01), *args, **named)

    monkeypatch.setattr(_scripts, "compare_within", short)
    monkeypatch.setattr(_scripts._Script, "seconds", lambda *_: 1e-6)
    job = training.task("digits-mlp")
    little, where = training.Data(*job.train[slice(0, 16)]), devices.find("cpu")

    def one(model: Any, data: Any) -> None:
        model(data.inputs)

    for longer in (3, 100):
        assert _scripts.gain_in_turns(one, one, job, little, where, longer).ratio > 0
    assert asked == [1.5, 20.0]


def test_a_step_of_parts_is_amdahls_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 8 ms of 20 left at a tenth and an eighth: 0.1 ms, so 20 / 12.1; and loading and starting, 20 / (0.8 + 0.6 + 6)."""
    same = lessons.step_of_parts("data on the device", "prefetch")
    assert same.together == pytest.approx(20 / 12.1)
    assert same.product == pytest.approx(20 / 12.8 * 20 / 13)
    other = lessons.step_of_parts("data on the device", "CUDA graph")
    assert other.together == pytest.approx(20 / 7.4)
    assert same.product > same.together
    assert other.product < other.together
    assert same.evidence.badge == "MODELLED"
    with pytest.raises(InputError, match="no 'magic'"):
        lessons.step_of_parts("magic")


def test_the_claims_are_the_ledgers() -> None:
    """Every technique has a claim, every verdict is the ledger's own, and each machine has its badge."""
    found = lessons.ladder_claims()
    assert {title for title, _ in found.rows} == {technique.title for technique in training.techniques()}
    known = {(f.claim.key, f.recording): f.verdict for f in claims.ledger().findings}
    assert all(known[f.claim.key, f.recording] is f.verdict for _, f in found.rows)
    assert "RECORDED on NVIDIA H200" in found.caption()


def test_recorded_gains_are_those_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph's two figures are the recorder's; what nobody recorded says so; without recordings all of it does."""
    found = lessons.technique_gains()
    steps = training.recorded_steps(recordings.load("nvidia-h200"), {}, {"means": "graph"})
    assert {gain.ratio for _, title, _, gain in found.rows if title == "CUDA graph"} == {row.speedup for row in steps.rows}
    assert "parallel ranks" in found.missing
    assert [case for _, title, case, _ in found.rows if title == "cuDNN autotune"] == ["one convolution"]
    assert all(case for _, _, case, _ in found.rows)
    assert any(row[1] == "not recorded yet" for row in found.table()[1])
    monkeypatch.setattr(recordings, "readable", dict)
    assert lessons.technique_gains().rows == ()
    assert len(lessons.technique_gains().missing) == len(training.techniques())
    assert lessons.recorded_ladders() == ()


def test_a_ladder_of_one_technique_is_a_result_like_any_other() -> None:
    """It goes through JSON."""
    found = ladder(Gain(1.8, (1.2, 2.4)))
    assert LadderResult.from_dict(found.to_dict()) == found
    assert dataclasses.replace(found, turns=25) != found
