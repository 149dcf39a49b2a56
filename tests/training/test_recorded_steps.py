"""Two ways to train on a recorded machine, by hand on an invented one."""

from __future__ import annotations

import dataclasses

import pytest
from test_recordings import a_recording, a_timing

from gpulab import training
from gpulab.errors import InputError
from gpulab.recordings import Entry


def step(seconds: float, model: str, precision: str, means: str = "plain", steps: int = 10) -> Entry:
    """A case of ``steps`` steps, 10 % wide."""
    timing = a_timing(median_seconds=seconds, interval_seconds=(0.9 * seconds, 1.1 * seconds), sample_count=40)
    return Entry("training", {"model": model, "precision": precision, "means": means, "steps": steps}, timing)


MACHINE = a_recording(
    entries=(
        step(20e-3, "cnn", "float32"), step(10e-3, "cnn", "bfloat16"), step(5e-3, "cnn", "bfloat16", "compile"),
        step(80e-3, "transformer", "float32"), Entry("training", {"model": "transformer", "precision": "bfloat16", "means": "plain",
                                                                   "steps": 10}, None, "time did not reach it"),
    )
)  # fmt: skip


def test_a_step_of_each_model_that_has_both() -> None:
    """20 ms over 10 ms for ten steps: 2 ms and 1 ms a step, from 1.8 / 1.1 to 2.2 / 0.9; the transformer lacks one."""
    found = training.recorded_steps(MACHINE, {}, {"precision": "bfloat16"})
    (row,) = found.rows
    assert (row.model, row.samples) == ("cnn", 40)
    assert (row.first_seconds, row.second_seconds, row.speedup) == (pytest.approx(2e-3), pytest.approx(1e-3), pytest.approx(2))
    assert row.speedup_interval == pytest.approx((1.8 / 1.1, 2.2 / 0.9))
    assert found.evidence.badge == "RECORDED"
    assert found.table()[1] == [("cnn", "2.00 ms", "1.00 ms", "2.00x [1.64x, 2.44x]")]
    assert repr(found) == "<bfloat16, plain over float32, plain on test: cnn 2.00x>"
    bare = dataclasses.replace(found, rows=(dataclasses.replace(row, speedup_interval=None),))
    assert bare.table()[1] == [("cnn", "2.00 ms", "1.00 ms", "2.00x")]
    assert training.RecordedSteps.from_dict(found.to_dict()).to_dict() == found.to_dict()


def test_means_and_precision_together() -> None:
    """From float32 to compiled bfloat16: four times."""
    (row,) = training.recorded_steps(MACHINE, {}, {"precision": "bfloat16", "means": "compile"}).rows
    assert row.speedup == pytest.approx(4)


def test_what_was_not_recorded_is_said() -> None:
    """Neither a precision that nobody recorded nor a way against itself has a row."""
    for second in ({"precision": "float8"}, {"means": "graph"}, {}):
        found = training.recorded_steps(MACHINE, {}, second)
        assert found.rows == ()
        assert "not recorded yet" in repr(found)
        assert found.table()[1][0][0] == "not recorded yet"


def test_bad_input_is_refused() -> None:
    """In a sentence."""
    with pytest.raises(InputError, match="is no recording"):
        training.recorded_steps("nvidia-h200", {}, {})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="second has 'batch'"):
        training.recorded_steps(MACHINE, {}, {"batch": "8"})
    with pytest.raises(InputError, match="first has 'bfloat16'"):
        training.recorded_steps(MACHINE, "bfloat16", {})  # type: ignore[arg-type]
