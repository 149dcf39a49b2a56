"""The recorder's experiment on input pipelines: each kind of case runs in a moment, and a machine without Pillow still has the loops."""

from __future__ import annotations

import importlib.util

import pytest

from gpulab import devices, recorder
from gpulab.recorder import _pipeline


def cases():
    """The cases of this CPU by what tells them apart."""
    (experiment,) = recorder.experiments(["pipeline"])
    return {tuple(case.params.values()): case for case in experiment.cases(devices.find("cpu"))}


@pytest.mark.parametrize("key", [("decode", 2, 16), ("step", 1, 2, 16), ("loop", 1, 3), ("loop", 0, 3)])
def test_each_kind_of_case_is_measured(key, monkeypatch, tmp_path):
    """A case, made small here, gives a measurement with its own label and lets its workers go."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))  # nobody else's measurement is waited for
    for name, value in (("_BATCH", 2), ("_SIZE", 16), ("_LOOP_STEPS", 3)):
        monkeypatch.setattr(_pipeline, name, value)
    m = cases()[key].time(0.05)
    assert m.median_seconds > 0
    assert key[0] in m.label or "steps" in m.label


def test_a_machine_without_pillow_records_the_loops(monkeypatch):
    """A bare machine lacks Pillow: what needs it is not planned."""
    monkeypatch.setattr(_pipeline.importlib.util, "find_spec", lambda name: None)
    assert {key[0] for key in cases()} == {"loop"}
    monkeypatch.undo()
    assert importlib.util.find_spec("PIL") is not None
    assert {key[0] for key in cases()} == {"loop", "decode", "step"}
