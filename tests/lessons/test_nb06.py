"""Notebook 06's material: what its questions make of results, its three timelines, recorded options, and a library loaded whole."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpulab import devices, lessons, recordings, training
from gpulab.errors import InputError
from gpulab.evidence import Environment, Evidence
from gpulab.lessons import _nb06
from gpulab.lessons._content import Unmeasured
from gpulab.recordings import Entry, Recording, Timing
from gpulab.training import CompileCost


def test_pipelines_answer_the_first_questions() -> None:
    """60 ms of loading before 20 ms of computing: 75 % waiting; half the step gives 80 / 70 the images; both sides carry their badge."""
    p = training.model_pipeline(0.06, 0.02, copy_seconds=0)
    assert _nb06.STALL_SHARE.outcome(p) == pytest.approx(75)
    assert _nb06.FASTER.outcome((p, training.replay(p, compute_seconds=0.01))) == pytest.approx(80 / 70)
    assert set(_nb06.FASTER.sides((p, p))) == {"the loading", "the accelerator"}
    assert _nb06.FASTER.sides(3) == {}


def test_a_compilation_that_never_pays_is_no_answer() -> None:
    """Slower than before, or not compiled at all: the reveal says so instead of a number."""
    cost = CompileCost("it", "cpu", 0.0, 2.0, 0.01, 0.005, None, None, 0.0, "", (), Evidence.measured("A CPU"))
    assert _nb06.COMPILE.outcome(cost) == 400
    with pytest.raises(Unmeasured, match="no call was faster"):
        _nb06.COMPILE.outcome(dataclasses.replace(cost, compiled_seconds=0.02))
    with pytest.raises(Unmeasured, match=r"g\+\+"):
        _nb06.COMPILE.outcome(dataclasses.replace(cost, compile_seconds=None, compiled_seconds=None, reason="there is no g++"))


def test_the_timelines_are_bound_by_what_the_exercise_says() -> None:
    """A by data, B by its link, C by the accelerator; another letter is refused."""
    assert [lessons.timeline(letter).bottleneck for letter in "ABC"] == ["data", "copy", "compute"]
    with pytest.raises(InputError, match="letter"):
        lessons.timeline("D")


def test_recorded_options_list_what_gpus_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's training steps appear with number, interval and badge; CPUs and other experiments do not; none is "not recorded yet"."""
    monkeypatch.setattr(recordings, "readable", dict)
    assert lessons.recorded_options().evidence is None
    assert "not recorded yet" in str(lessons.recorded_options().table())
    timing = Timing(np.full(5, 0.02), 5, 0.02, (0.019, 0.021), 0.1, 0.01, None, 1, None, None, ())
    entries = (Entry("training", {"model": "cnn", "means": "compile", "steps": 10}, timing), Entry("transfer", {"nbytes": 8}, timing))
    gpu = dataclasses.replace(devices.environment("cpu"), device="Far GPU", device_kind="cuda")

    def recording(name: str, environment: Environment) -> Recording:
        return Recording(name, environment, {}, {}, "0.1.0", entries)

    monkeypatch.setattr(recordings, "readable", lambda: {"far": recording("far", gpu), "near": recording("near", HERE)})
    found = lessons.recorded_options()
    assert found.rows == (("far", "training: cnn, compile, 10 steps", "20.0 ms (95 % 19.0 ms to 21.0 ms)"),)
    assert "RECORDED on Far GPU" in found.evidence.sentence


HERE = devices.environment("cpu")
