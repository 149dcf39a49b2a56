"""One codec and one table for every result, so that no result class writes its own JSON or HTML.

A result is a frozen dataclass that inherits from ``Result``. ``to_dict`` gives plain JSON values (finite
numbers; infinities and nan as text), ``from_dict`` rebuilds the object from the type hints of its fields.
Nothing in a file is ever executed.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import html
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar, Union

import numpy as np

from gpulab.errors import RecordingError

R = TypeVar("R", bound="Result")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: Any) -> Any:
    """Turn a field's value into JSON values."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return [encode(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"encode: a result cannot hold a {type(value).__name__}; expected numbers, text, arrays, tuples, mappings or results.")


def _mismatch(value: Any, hint: Any, where: str) -> RecordingError:
    name = getattr(hint, "__name__", str(hint))
    return RecordingError(f"{where}: found {str(value)[:60]!r}; expected {name}. The file is damaged or was written by another version.")


def _decode_float(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise _mismatch(value, float, where)


def _decode_union(value: Any, hint: Any, where: str) -> Any:
    options = typing.get_args(hint)
    if value is None and type(None) in options:
        return None
    failure: RecordingError | None = None
    for option in options:
        if option is type(None):
            continue
        try:
            return decode(value, option, where)
        except RecordingError as error:
            failure = error
    raise failure if failure is not None else _mismatch(value, hint, where)


def _decode_tuple(value: Any, hint: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _mismatch(value, hint, where)
    kinds = typing.get_args(hint)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(decode(item, kinds[0], f"{where}[{i}]") for i, item in enumerate(value))
    if len(kinds) != len(value):
        raise _mismatch(value, hint, where)
    return tuple(decode(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def decode(value: Any, hint: Any, where: str) -> Any:
    """Rebuild a value of type ``hint`` from JSON values; ``where`` names the place in messages."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(value, hint, where)
    if origin is tuple:
        return _decode_tuple(value, hint, where)
    if hint is np.ndarray or origin is np.ndarray:
        if not isinstance(value, list):
            raise _mismatch(value, np.ndarray, where)
        return np.array([_decode_float(item, where) for item in value], dtype=np.float64)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _mismatch(value, dict, where)
        kind = typing.get_args(hint)[1]
        return {key: decode(item, kind, f"{where}.{key}") for key, item in value.items()}
    if hint is float:
        return _decode_float(value, where)
    if isinstance(hint, type) and issubclass(hint, Result):
        return hint.from_dict(value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError as error:
            raise _mismatch(value, hint, where) from error
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise _mismatch(value, hint, where)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


class Result:
    """The parent of every frozen result dataclass: JSON both ways, and a table in the notebook."""

    schema_version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values, with its schema's name and version inside."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        body = {field.name: encode(getattr(self, field.name)) for field in fields}
        return {"schema": type(self).__name__, "schema_version": self.schema_version, **body}

    @classmethod
    def from_dict(cls: type[R], data: Any, where: str = "") -> R:
        """Rebuild the result from ``to_dict``'s output.

        Raises
        ------
        RecordingError
            If a field is missing, unknown or of another type, or the schema's version is newer than this code's.
        """
        where = where or cls.__name__
        if not isinstance(data, dict) or data.get("schema") != cls.__name__:
            raise _mismatch(data.get("schema") if isinstance(data, dict) else data, cls, where)
        version = data.get("schema_version")
        if not isinstance(version, int) or version > cls.schema_version:
            raise RecordingError(
                f"{where}: schema version {version!r}; this gpulab reads up to {cls.schema_version}. Update gpulab to read the file."
            )
        hints = _hints(cls)  # type: ignore[arg-type]
        names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        given = set(data) - {"schema", "schema_version"}
        if given != names:
            wrong = ", ".join(sorted(given ^ names))
            raise RecordingError(
                f"{where}: fields that are missing or unknown: {wrong}. The file is damaged or was written by another version."
            )
        return cls(**{name: decode(data[name], hints[name], f"{where}.{name}") for name in names})

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the headers and the rows that the notebook shows; classes with a better table override this."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return ("", ""), [(field.name, str(getattr(self, field.name))) for field in fields]

    def caption(self) -> str:
        """Return the line under the table: the badge and where the numbers came from."""
        evidence = getattr(self, "evidence", None)
        return evidence.sentence if evidence is not None else ""

    def _repr_html_(self) -> str:
        headers, rows = self.table()
        return html_table(headers, rows, self.caption())


def html_table(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return a plain, accessible HTML table; every text is escaped."""
    esc = html.escape
    head = "".join(f'<th scope="col">{esc(str(h))}</th>' for h in headers) if any(headers) else ""
    body = "".join("<tr>" + "".join(f'<td style="text-align:left">{esc(str(cell))}</td>' for cell in row) + "</tr>" for row in rows)
    below = f'<caption style="caption-side:bottom;text-align:left">{esc(caption)}</caption>' if caption else ""
    return f"<table>{below}{'<thead><tr>' + head + '</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
