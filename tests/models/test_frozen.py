"""What the models give stays as it was: a result that could be changed would no longer be what its badge says."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

from gpulab import models

CLASSES = sorted(
    {
        kind
        for module in pkgutil.iter_modules(models.__path__, "gpulab.models.")
        for kind in vars(importlib.import_module(module.name)).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.name
    },
    key=lambda kind: kind.__qualname__,
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__qualname__)
def test_no_field_can_be_set(cls: type) -> None:
    """Each dataclass of the models refuses it, with whatever in its fields."""
    one = object.__new__(cls)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(cls)[0].name, 1)
