"""What the compiler, the microscope and a launch say of a kernel stays as it was said."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

from gpulab import kernels

# What changes while a kernel is read or runs.
WORKING = {"Source", "Call", "Turns", "Loop", "Frame", "Launch", "Line", "Access", "Counters", "Step", "StepAccess", "_Rows", "_Counted"}
CLASSES = sorted(
    {
        kind
        for module in pkgutil.walk_packages(kernels.__path__, "gpulab.kernels.")
        if not module.name.endswith("_numba_worker")  # a program of its own
        for kind in vars(importlib.import_module(module.name)).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.name and kind.__name__ not in WORKING
    },
    key=lambda kind: kind.__qualname__,
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__qualname__)
def test_no_field_can_be_set(cls: type) -> None:
    """Each dataclass that is no working state refuses it, with whatever in its fields."""
    one = object.__new__(cls)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(cls)[0].name, 1)
