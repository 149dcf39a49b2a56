"""Every result class of the package, found by itself: JSON both ways, and no number without a badge."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import importlib
import json
import math
import pkgutil
import types
import typing
from typing import Any

import numpy as np
import pytest

import gpulab
from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result


def _all_results() -> list[type[Result]]:
    for module in pkgutil.walk_packages(gpulab.__path__, "gpulab."):
        if not module.name.startswith(("gpulab.widgets", "gpulab.figures", "gpulab._html", "gpulab._lab", "gpulab._jupyter")):
            importlib.import_module(module.name)

    def below(cls: type) -> set[type]:
        return {kind for child in cls.__subclasses__() for kind in (child, *below(child))}

    return sorted((kind for kind in below(Result) if kind.__module__.startswith("gpulab")), key=lambda kind: kind.__qualname__)


RESULTS = _all_results()
# Fields that a class checks against each other, so that a value of the right type alone would not do.
FITTING: dict[str, dict[str, Any]] = {
    "Entry": {"reason": None},
    "Timing": {"sample_count": 2, "median_seconds": 1.5, "interval_seconds": (1.0, 2.0)},
    "CollectiveCost": {"operation": "all_reduce", "algorithm": "ring"},
    "CollectivePoint": {"sent_bytes": (8, 8), "algorithm_bytes": (8.0, 8.0)},
    "CollectiveSweep": {"operation": "all_reduce", "algorithm": "ring", "ranks": 2},
    "StageSchedule": {"schedule": "gpipe", "stages": 1, "microbatches": 1, "chunks": 1},
    "ScheduleRun": {"schedule": "gpipe", "stages": 1, "microbatches": 1, "chunks": 1},
    "StagePass": {"stage": 0, "end": 0.2},
    "Rubric": {"notebooks": ("02",), "points": {"02.5": 2.0}},
}


def _made(hint: Any) -> Any:
    """Return some value of a type: finite, positive, and not its default."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {"anything": [1, "two", None]}
    if origin in (typing.Union, types.UnionType):
        return _made(next(option for option in inner if option is not type(None)))
    if origin is typing.Literal:
        return inner[0]
    if hint is np.ndarray or origin is np.ndarray:
        return np.array([1.5, 2.5])
    if origin is tuple:
        return (_made(inner[0]),) if inner[-1] is Ellipsis else tuple(_made(kind) for kind in inner)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return {_made(inner[0]): _made(inner[1])}
    if isinstance(origin, type) and issubclass(origin, collections.abc.Sequence):
        return [_made(inner[0])]
    if hint is Evidence:
        return Evidence.measured("a device", 7, "2026-01-02T03:04:05+00:00")
    if isinstance(hint, type) and issubclass(hint, Result):
        return _instance(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    return {int: 3, float: 0.1, str: "words", bool: True}[hint]


def _instance(cls: type[Result]) -> Result:
    hints = typing.get_type_hints(cls)
    fields = {field.name: _made(hints[field.name]) for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    return cls(**{**fields, **FITTING.get(cls.__name__, {})})


@pytest.mark.parametrize("cls", RESULTS, ids=lambda cls: cls.__qualname__)
def test_round_trip(cls: type[Result]) -> None:
    """What to_dict gives is strict JSON, and from_dict gives an equal result back from its text."""
    one = _made(cls)
    text = json.dumps(one.to_dict(), allow_nan=False)
    again = cls.from_dict(json.loads(text))
    assert type(again) is cls
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        before, after = getattr(one, field.name), getattr(again, field.name)
        if isinstance(before, (str, int, float, bool, type(None))):
            assert after == before


# A recorded time that is not finite is refused on purpose (tests/recordings), and so are points without an end (tests/lessons).
@pytest.mark.parametrize("cls", [cls for cls in RESULTS if cls.__name__ not in {"Timing", "Rubric"}], ids=lambda cls: cls.__qualname__)
def test_not_finite_numbers_survive(cls: type[Result]) -> None:
    """A nan or an infinity in a float field is text in the file and a number again after it."""
    one = _made(cls)
    names = [name for name, hint in typing.get_type_hints(cls).items() if hint is float]
    for name in names:
        for value in (math.inf, math.nan):
            again = cls.from_dict(json.loads(json.dumps(dataclasses.replace(one, **{name: value}).to_dict(), allow_nan=False)))  # type: ignore[type-var]
            got = getattr(again, name)
            assert got == value or (math.isnan(got) and math.isnan(value))


def _parts(hint: Any) -> set[type]:
    if isinstance(hint, type) and issubclass(hint, Result):
        return {hint}
    return {part for inner in typing.get_args(hint) for part in _parts(inner)}


def _tells_where_from(cls: type) -> bool:
    return "evidence" in typing.get_type_hints(cls) or callable(getattr(cls, "evidence", None))


def test_no_number_without_a_badge() -> None:
    """A class with measured or modelled figures says where they are from, or is only ever a part of one that does."""
    units = ("_seconds", "_bytes", "_per_second", "_hz", "speedup", "ratio")
    whole: dict[type, set[type]] = {cls: set() for cls in RESULTS}
    for cls in RESULTS:
        for hint in typing.get_type_hints(cls).values():
            for part in _parts(hint):
                whole[part].add(cls)

    def covered(cls: type, seen: frozenset[type] = frozenset()) -> bool:
        owners = whole[cls] - seen
        # Facts is what the machine card and the doctor are made from and is never shown; Environment is the stamp itself.
        if cls.__name__ in {"Facts", "Environment"}:
            return True
        return _tells_where_from(cls) or (bool(owners) and all(covered(owner, seen | {cls}) for owner in owners))

    with_numbers = [cls for cls in RESULTS if any(name.endswith(units) for name in typing.get_type_hints(cls))]
    assert len(with_numbers) > 20
    assert [cls.__name__ for cls in with_numbers if not covered(cls)] == []


@pytest.mark.parametrize(
    "cls", [cls for cls in RESULTS if typing.get_type_hints(cls).get("evidence") is Evidence], ids=lambda cls: cls.__qualname__
)
def test_the_table_shows_the_badge(cls: type[Result]) -> None:
    """The notebook's table of a result with evidence shows the badge's word."""
    one = _instance(cls)
    assert "MEASURED" in one._repr_html_()


@pytest.mark.parametrize(
    "cls", [cls for cls in RESULTS if typing.get_type_hints(cls).get("notes") == tuple[Note, ...]], ids=lambda cls: cls.__qualname__
)
def test_the_table_shows_the_notes(cls: type[Result]) -> None:
    """What is wrong with a figure stands under it in the notebook, with its reason, and not in an attribute that nobody asks for."""
    note = Note("stopped", "It was stopped at last.")
    shown = dataclasses.replace(_instance(cls), notes=(note,))._repr_html_()
    assert "stopped" in shown
    assert note.sentence in shown


def test_environment_is_a_result() -> None:
    """The walk over the modules has found the classes (it would find none where an import failed silently)."""
    assert Environment in RESULTS
    assert len(RESULTS) > 40


def test_a_schemas_version_rises_only_with_its_fields() -> None:
    """By hand, since the first files were written: what rises without a new field makes kept files look old, or new ones unreadable."""
    risen = {kind.__name__: kind.schema_version for kind in RESULTS if kind.schema_version != 1}
    assert risen == {"Options": 2, "Timing": 2, "Entry": 2, "Roofline": 2, "Progress": 2, "Cache": 2}
