"""Notebook 09's material: what its questions make of a ladder, the claims beside it, the step made of parts, and the learner's script."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib

import pytest

from gpulab import claims, devices, lessons, recordings, training
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.lessons import _nb09
from gpulab.lessons._content import Unmeasured
from gpulab.training import Gain, LadderForm, LadderResult, Learned, Rung, SeedsAccuracy

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "09_speedup_ladder.ipynb"
_FORM = LadderForm((), 16, 100.0, None, Gain(1.0, None), 0.1, {}, None)


def learned(verdict: str) -> Learned:
    """What a rung learned, with that verdict."""
    accuracy = SeedsAccuracy((), 0.9, None, (0.8, 1.0), "digits", Evidence.measured("A CPU"))
    return Learned(accuracy, -0.1, (-0.2, -0.05), 10, False, verdict)


def ladder(overstated: Gain, verdict: str = "kept") -> LadderResult:
    """Two rungs: the first gains most alone, the second alone still gives something at the end."""
    sure, none = Gain(1.5, (1.4, 1.6)), Gain(1.1, (0.9, 1.3))
    rungs = (
        Rung("fused", "fused optimizer", "x", _FORM, sure, Gain(3.0, (2.0, 4.0)), none, None),
        Rung("batch", "larger batch", "x", _FORM, sure, sure, sure, learned(verdict)),
    )
    return LadderResult(
        "digits", "cpu", 1, (0,), 0.02, _FORM, None, rungs, Gain(2.5, (2, 3)), Gain(4.5, (3, 6)), overstated, (), (), 24, (),
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
    ("first", "second", "says"),
    [
        (Gain(3.0, (2.0, 4.0)), Gain(1.5, (1.4, 1.6)), ""),
        (Gain(3.0, (2.0, 4.0)), Gain(2.9, (2.8, 3.0)), r"fused optimizer 3.00x \[2.00x, 4.00x\], larger batch 2.90x"),
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
