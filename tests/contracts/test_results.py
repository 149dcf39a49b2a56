"""Every result class of the package: JSON both ways, damaged files, repr, table and badge.

``samples.json`` holds one file of each class as it was written when the sample was added. A class
with a later version also has its file of version 1 ("recordings.Entry 1"). A sample is never
rewritten: a file that a learner kept must load in every later version.
"""

import contextlib
import dataclasses
import json
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made
import pytest
from gpulab.errors import RecordingError
from gpulab.evidence import Evidence, Note
from gpulab.results import Result

from texts import table_text

CLASSES = made.result_classes()
PACKAGES = sorted({name.partition(".")[0] for name in CLASSES})
SAMPLES = json.loads((Path(__file__).parent / "samples.json").read_text(encoding="utf-8"))
# These refuse infinities and NaN: a time or a number of points must be finite.
FINITE_ONLY = {"recordings.Timing", "lessons.Rubric"}


def _text(result: Result) -> str:
    return json.dumps(result.to_dict(), allow_nan=False)


def _refusal(cls: type[Result], data: Any) -> str:
    with pytest.raises(RecordingError) as refused:
        cls.from_dict(data)
    return str(refused.value)


@pytest.mark.parametrize("name", CLASSES)
def test_json_gives_the_same_result_back(name: str) -> None:
    """A result that is written to a file and read again is the same, infinities included; in a set
    the two count once, although arrays are of another type.
    """
    cls = CLASSES[name]
    one = made.instance(cls)
    arrays = {f: v.astype("float32") for f, v in vars(one).items() if hasattr(v, "astype")}
    variants = [one, dataclasses.replace(one, **arrays)]  # type: ignore[type-var]
    if name not in FINITE_ONLY:
        variants += [
            dataclasses.replace(one, **{field: value})  # type: ignore[type-var]
            for field, hint in typing.get_type_hints(cls).items()
            if hint is float
            for value in (math.inf, -math.inf, math.nan)
        ]
    for variant in variants:
        again = cls.from_dict(json.loads(_text(variant)))
        assert type(again) is cls
        assert cls.__hash__ is not Result.__hash__ or len({variant, again}) == 1
        assert _text(again) == _text(variant)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            before, after = getattr(variant, field.name), getattr(again, field.name)
            assert type(after) is type(before) or not isinstance(before, (str, int, float, tuple))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_kept_file_still_loads(name: str) -> None:
    """A file of an earlier release loads, whatever fields were added since; its values stay."""
    kept = SAMPLES[name]
    again = CLASSES[name.partition(" ")[0]].from_dict(kept).to_dict()
    assert _values_of(kept, again) == _values_of(kept, kept)


def _values_of(kept: Any, result: Any) -> Any:
    """Return a result's values for the fields of a kept file, at every depth."""
    if isinstance(kept, dict):
        return {k: _values_of(kept[k], result[k]) for k in kept if not k.startswith("schema")}
    if isinstance(kept, list) and len(kept) == len(result):
        return [_values_of(*pair) for pair in zip(kept, result, strict=True)]
    return result


def test_every_class_has_a_kept_file() -> None:
    """A new class needs a sample; the failure shows the line to add."""
    new = [f'"{name}": {_text(made.instance(CLASSES[name]))},' for name in CLASSES.keys() - SAMPLES]
    assert not new, "Add to samples.json:\n" + "\n".join(new)


@pytest.mark.parametrize("name", CLASSES)
def test_a_damaged_file_is_refused(name: str) -> None:
    """Missing, unknown and mistyped fields, other classes and newer versions are refused."""
    cls, kept = CLASSES[name], made.instance(CLASSES[name]).to_dict()
    newer = {**kept, "schema_version": cls.schema_version + 1}
    damaged: list[Any] = [
        None,
        [],
        "text",
        {},
        {**kept, "schema": "Other"},
        {**kept, "extra": 1},
        newer,
    ]
    damaged += [{**kept, "schema_version": version} for version in (0, None, "1", True)]
    for field in kept:
        damaged.append({key: value for key, value in kept.items() if key != field})
        if typing.get_type_hints(cls).get(field) is not Any:
            damaged.append({**kept, field: 7 if isinstance(kept[field], dict) else {"no": "such"}})
    for data in damaged:
        message = _refusal(cls, data)
        assert len(message) < 800
        assert "\n" not in message


@pytest.mark.parametrize("name", CLASSES)
def test_the_repr_is_short(name: str) -> None:
    """A result at the end of a cell takes a few lines at most, and it cannot be changed."""
    one = made.instance(CLASSES[name])
    assert 0 < len(repr(one)) < 1000
    first = dataclasses.fields(one)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, first, None)


@pytest.mark.parametrize("package", PACKAGES)
def test_tables(package: str, approved: Any) -> None:
    """The table that a notebook shows of a result: headings, units, rows, badge and notes."""
    parts = []
    for name, cls in CLASSES.items():
        if name.partition(".")[0] == package:
            parts += [f"== {cls.__qualname__}", *dict.fromkeys(_shown(cls))]
    assert "\n".join(parts) == approved


def _shown(cls: type[Result]) -> Iterator[str]:
    """Yield the repr and table of an instance: complete, without texts, without optional fields."""
    for silent, bare in ((False, False), (True, False), (True, True)):
        # Some classes refuse an empty text or a missing part, and a part may have no rows then.
        with contextlib.suppress(*((Exception,) if silent else ())):
            one = made.instance(cls, silent, bare)
            yield f"{one!r}\n{table_text(one._repr_html_())}"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, cls in CLASSES.items()
        if {"notes", "evidence"} & {field.name for field in dataclasses.fields(cls)}
    ],
)
def test_the_table_shows_badge_and_notes(name: str) -> None:
    """A result's table shows the badge of its evidence and the sentence of each note: two in the
    table, all others folded below it, also one that is shown already.
    """
    cls = CLASSES[name]
    hints = typing.get_type_hints(cls)
    one = made.instance(cls)
    if hints.get("notes") == tuple[Note, ...]:
        one = dataclasses.replace(one, notes=tuple(Note("stopped", f"At {k}.") for k in "1231"))  # type: ignore[type-var]
        assert [
            (text[0], "2 more notes" in text)
            for text in table_text(one._repr_html_()).split("At ")[1:]
        ] == [
            # a timing is a part of a recording: it has no table of its own
            *(("1", False), ("2", name != "recordings.Timing"), ("3", False), ("1", False))
        ]
    if hints.get("evidence") in (Evidence, Evidence | None):
        evidences = (
            Evidence.measured("a device", 7),
            Evidence.modelled("a formula", "its source"),
        )
        for evidence in evidences:
            shown = dataclasses.replace(one, evidence=evidence)._repr_html_()  # type: ignore[type-var]
            assert evidence.badge in shown


def _parts(hint: Any) -> set[type]:
    if isinstance(hint, type) and issubclass(hint, Result):
        return {hint}
    return {part for inner in typing.get_args(hint) for part in _parts(inner)}


def test_no_number_without_a_badge() -> None:
    """A class with numbers has evidence, or is only ever part of a class that has it."""
    units = ("_seconds", "_bytes", "_per_second", "_hz", "speedup", "ratio")
    owners: dict[type, set[type]] = {cls: set() for cls in CLASSES.values()}
    for cls in CLASSES.values():
        for hint in typing.get_type_hints(cls).values():
            for part in _parts(hint):
                owners[part].add(cls)

    def covered(cls: type, seen: frozenset[type] = frozenset()) -> bool:
        above = owners[cls] - seen
        return (
            # Itself a statement of where numbers come from.
            cls.__name__ == "Environment"
            or "evidence" in typing.get_type_hints(cls)
            or callable(getattr(cls, "evidence", None))
            or (bool(above) and all(covered(owner, seen | {cls}) for owner in above))
        )

    with_numbers = [
        cls
        for cls in CLASSES.values()
        if any(name.endswith(units) for name in typing.get_type_hints(cls))
    ]
    assert len(with_numbers) > 20
    assert [cls.__name__ for cls in with_numbers if not covered(cls)] == [], (
        "these need a field `evidence`"
    )
