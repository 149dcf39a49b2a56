"""What gpulab gives stays as it was: a result that could be changed would no longer be what its badge says."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

import gpulab

# What is built up or moves on while something runs, and goes no further.
WORKING = {
    *("_working_copy._Given", "_working_copy._Manifest", "compression._channels.Chain", "compression._channels._Walk"),
    *("kernels._simulate._alone_counts._Rows", "kernels._simulate._alone_counts._Counted", "kernels._simulate._alone_values.Turns"),
    *("kernels._simulate._counters.Line", "kernels._simulate._counters.Access", "kernels._simulate._counters.Counters"),
    *("kernels._simulate._frame.Loop", "kernels._simulate._frame.Frame", "kernels._simulate._machine.Launch"),
    *("kernels._simulate._registry.Call", "kernels._simulate._source.Source"),
    *("kernels._simulate.report.Step", "kernels._simulate.report.StepAccess", "memory._tracker.Record"),
    *("parallel._observe._Live", "parallel._observe.Observer", "parallel._rank_step._Share", "parallel._scaling_step.Turns"),
    *("parallel._strategies.Setting", "timing._contenders.Contender", "timing._job.Kept", "timing._job.Job", "timing._lock._Wait"),
    *("training._images.LoadedBatch", "training._options.Settled", "transfer._break_even._Search", "transfer._lanes.Passes"),
}


def _dataclasses() -> dict[str, type]:
    found = {}
    for module in pkgutil.walk_packages(gpulab.__path__, "gpulab."):
        if not module.name.endswith("_numba_worker"):  # a program of its own
            for kind in vars(importlib.import_module(module.name)).values():
                if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.name:
                    found[f"{module.name}.{kind.__qualname__}".removeprefix("gpulab.")] = kind
    return found


CLASSES = _dataclasses()


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - WORKING))
def test_no_field_can_be_set(name: str) -> None:
    """Each dataclass that is no working state refuses it, with whatever in its fields."""
    one = object.__new__(CLASSES[name])
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(CLASSES[name])[0].name, 1)


def test_the_walk_finds_the_classes() -> None:
    """It would find none where an import failed silently; and no working state is listed that is none."""
    assert len(CLASSES) > 300
    assert CLASSES.keys() >= WORKING
