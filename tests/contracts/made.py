"""Every result class of the package, and an instance of each whose values all differ."""

import collections.abc
import dataclasses
import enum
import importlib
import itertools
import pkgutil
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import gpulab
import numpy as np
from gpulab.evidence import Evidence
from gpulab.results import Result

_NOT_RESULTS = ("gpulab.widgets", "gpulab.figures")
# Values of fields that a class checks beyond their types, so that most values are refused.
_FITTING: dict[str, dict[str, Any]] = {
    "recordings.Entry": {"reason": None},
    "recordings.Timing": {
        "sample_count": 2,
        "median_seconds": 1.5,
        "interval_seconds": (1.0, 2.0),
    },
    "models.CollectiveCost": {"operation": "all_reduce", "algorithm": "ring"},
    "models.StageSchedule": {"schedule": "gpipe", "stages": 1, "microbatches": 1, "chunks": 1},
    "parallel.ScheduleRun": {"schedule": "gpipe", "stages": 1, "microbatches": 1, "chunks": 1},
    "parallel.RankSpan": {"rank": 0, "kind": "compute"},
    "parallel.RankReport": {
        "most_by_category": {
            "parameters": 1024,
            "gradients": 2048,
            "optimizer": 3072,
            "activations": 4096,
        },
        "peak_by_category": {},
    },
    "models.StagePass": {"stage": 0, "end": 90.0},
    "lessons.Rosetta": {"language": "MATLAB", "names": ("gpuArray", "gather")},
    "lessons.Rubric": {"notebooks": ("02",), "points": {"02.5": 2.0}, "open_share": 0.5},
    "models.Occupancy": {"allowed": {"warps": 8, "registers": 9, "shared": 10, "blocks": 11}},
    "models.SmLimits": {"compute_capability": "9.0"},
    "precision.AutocastRow": {"policy": None},
}


def name_of(cls: type) -> str:
    """Return the public package and the class: ``timing.Measurement``."""
    return f"{cls.__module__.split('.')[1]}.{cls.__qualname__}"


def result_classes() -> dict[str, type[Result]]:
    """Import the package's public modules; return every subclass of ``Result``, by name."""
    for module in pkgutil.walk_packages(gpulab.__path__, "gpulab."):
        if not module.name.startswith(_NOT_RESULTS) and not module.name.split(".")[1].startswith(
            "_"
        ):
            importlib.import_module(module.name)

    def below(cls: type) -> Iterator[type]:
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    found = (cls for cls in below(Result) if cls.__module__.startswith("gpulab."))
    return dict(sorted((name_of(cls), cls) for cls in found))


class _Made:
    """How instances are filled: ``silent`` empties texts; ``bare`` sets optional fields to None and
    takes the other of two values: False, the last of several words, a modelled badge.
    """

    silent = bare = False


def instance(cls: type[Result], silent: bool = False, bare: bool = False) -> Result:
    """Return an instance whose numbers all differ and whose texts are the fields' names.

    ``silent`` leaves texts empty, and ``bare`` sets each field to None that may be None; it also
    has no flag set, and evidence that is modelled.
    """
    _Made.silent, _Made.bare = silent, bare
    return _instance(cls, itertools.count(1))


def _instance(cls: type[Result], numbers: Iterator[int]) -> Result:
    fields = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    return cls(**_fields(cls, fields, numbers))


def _fields(cls: type, names: Iterable[str], numbers: Iterator[int]) -> dict[str, Any]:
    hints, fitting = typing.get_type_hints(cls), _FITTING.get(name_of(cls), {})
    return {
        name: fitting[name] if name in fitting else _value(hints[name], name, numbers)
        for name in names
    }


def _value(hint: Any, name: str, numbers: Iterator[int]) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {"anything": [next(numbers), "two", None]}
    if _Made.bare and type(None) in inner:
        return None
    if origin in (typing.Union, types.UnionType):
        return _value(next(kind for kind in inner if kind is not type(None)), name, numbers)
    if origin is typing.Literal:
        return inner[-1 if _Made.bare else 0]
    if np.ndarray in (hint, origin):
        return np.array([next(numbers) + 0.1, next(numbers) + 0.9])
    if hasattr(hint, "_fields"):  # a named tuple: a row
        return hint(**_fields(hint, hint._fields, numbers))
    if origin is tuple:
        kinds = inner[:1] * 2 if inner[-1] is Ellipsis else inner
        return tuple(_value(kind, name, numbers) for kind in kinds)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return {
            _value(inner[0], f"{name} key", numbers): _value(inner[1], name, numbers)
            for _ in range(2)
        }
    if isinstance(origin, type) and issubclass(origin, collections.abc.Sequence):
        return [_value(inner[0], name, numbers)]
    if hint is Evidence:
        return (
            Evidence.modelled("a formula", "its source")
            if _Made.bare
            else Evidence.measured("a device", 7, "2026-01-02T03:04:05+00:00")
        )
    if isinstance(hint, type) and issubclass(hint, Result):
        return _instance(hint, numbers)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list(hint)[-1 if _Made.bare else 0]
    number = next(numbers)
    if hint is str and _Made.silent and "name" not in name:
        return ""
    return {int: number, float: number + 0.25, str: f"{name} {number}", bool: not _Made.bare}[hint]
