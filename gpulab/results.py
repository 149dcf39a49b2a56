"""One codec and one table for every result, so that no result class writes its own JSON or HTML.

A result is a frozen dataclass that inherits from ``Result``; rows that occur only inside a result
are named tuples. ``to_dict`` gives plain JSON values (finite numbers; infinities and nan as text),
``from_dict`` rebuilds the object from the type hints of its fields. Nothing in a file is ever
executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import html
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, Union

import numpy as np

from gpulab.errors import InputError, RecordingError, printable

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_AS_THEY_ARE = (str, int, bool, float)  # values of these types need no conversion from JSON
_origin: Callable[[Any], Any] = functools.cache(typing.get_origin)
_SCHEMA = {"schema", "schema_version"}
Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # the headers and the rows


def encode(value: Any) -> Any:
    """Turn a field's value into JSON values: numbers, text, real arrays, tuples, mappings with
    text, numbers or enums as keys, and results.
    """
    if isinstance(value, Result):
        return value.to_dict()
    if hasattr(value, "_asdict"):  # a named tuple: a row of a result
        return encode(value._asdict())
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (np.ndarray, np.generic)):
        return encode(value.tolist())
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _mismatch(value: Any, hint: Any, where: str) -> RecordingError:
    name = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    return RecordingError(
        f"{where}: found {reprlib.repr(value)}; expected {name}. The file is damaged or was "
        "written by another version."
    )


def _decode_float(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    with contextlib.suppress(OverflowError):  # a whole number beyond what a float holds
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    raise _mismatch(value, float, where)


def _decode_union(value: Any, hint: Any, where: str) -> Any:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if value is None and len(options) < len(typing.get_args(hint)):
        return None
    failures = []
    # A text is tried as text first, so that "nan" in a field that allows text or numbers stays a
    # text.
    for option in sorted(options, key=lambda kind: not (kind is str and isinstance(value, str))):
        try:
            return decode(value, option, where)
        except RecordingError as error:
            failures.append(error)
    raise failures[0] if len(failures) == 1 else _mismatch(value, hint, where)


def _decode_array(value: Any, where: str) -> np.ndarray:
    """Rebuild an array of any number of dimensions as float64; a ragged list is refused."""
    if not isinstance(value, list):
        raise _mismatch(value, np.ndarray, where)
    items = np.array(value, dtype=object)  # a ragged or too deep list leaves lists as items
    numbers = [_decode_float(item, f"{where}[{i}]") for i, item in enumerate(items.reshape(-1))]
    return np.array(numbers, dtype=np.float64).reshape(items.shape)


def _decode_collection(value: Any, kind: type, hint: Any, where: str) -> Any:
    """Rebuild a tuple or a mapping."""
    parts = typing.get_args(hint)
    if issubclass(kind, Mapping) and isinstance(value, dict):
        decoded = {}
        for key, item in value.items():
            # text from a file is shown without control characters, and cut short
            place = f"{where}.{reprlib.repr(str(key))[1:-1]}"
            is_number = parts[0] is int and re.fullmatch(r"-?\d{1,19}", str(key))
            name = int(key) if is_number else decode(key, parts[0], place)
            decoded[name] = decode(item, parts[1], place)
        return decoded
    if kind is tuple and isinstance(value, (list, tuple)):
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return tuple(decode(item, part, f"{where}[{i}]") for i, (item, part) in pairs)
    raise _mismatch(value, hint, where)


def _decode_row(value: Any, kind: Any, where: str) -> Any:
    """Rebuild a named tuple from its fields by name; earlier files may also hold its schema."""
    given = {str(name): item for name, item in value.items()} if isinstance(value, dict) else {}
    present = given.keys() - _SCHEMA
    if not set(kind._fields) - kind._field_defaults.keys() <= present <= set(kind._fields):
        raise _mismatch(value, kind, where)
    hints = _hints(kind)
    return kind(**{name: decode(given[name], hints[name], f"{where}.{name}") for name in present})


def _decode_single(value: Any, kind: Any, hint: Any, where: str) -> Any:
    """Rebuild a value of a Literal, an enum's member, text, a whole number or a bool."""
    is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
    words = [member.value for member in kind] if is_enum else typing.get_args(hint)
    if words:
        fits = any(type(value) is type(word) and value == word for word in words)
    else:
        fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not fits:
        raise _mismatch(value, hint, where)
    return kind(value) if is_enum else value


def decode(value: Any, hint: Any, where: str) -> Any:
    """Rebuild a value of type ``hint`` from JSON values; ``where`` names the place in messages.

    Raises
    ------
    RecordingError
        If the value is not one that ``encode`` gives for this type.
    """
    # a fast path for most fields: the files of a class of thirty have a hundred thousand fields
    if (type(value) is hint and hint in _AS_THEY_ARE) or hint is Any:
        return value
    # the class of the hint: tuple for tuple[int, ...]; a plain class stands for itself
    kind = _origin(hint) or hint
    if kind in (Union, types.UnionType):
        return _decode_union(value, hint, where)
    if kind is np.ndarray:
        return _decode_array(value, where)
    if kind is float:
        return _decode_float(value, where)
    if isinstance(kind, type) and issubclass(kind, Result):
        return kind.from_dict(value, where)
    if hasattr(kind, "_fields"):
        return _decode_row(value, kind, where)
    if kind is not hint and kind is not typing.Literal:
        return _decode_collection(value, kind, hint, where)
    return _decode_single(value, kind, hint, where)


_hints: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)


class Result:
    """The parent of every frozen result dataclass: JSON both ways, and a table in the notebook."""

    schema_version: ClassVar[int] = 1
    # Declares the table: heading -> function that returns a cell. With ``rows_from``, a heading
    # names a column, and the function gets one item of that field; without it, a heading names a
    # row, and the function gets the result. Headings are format strings, filled from the result.
    columns: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    rows_from: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values, with its schema's name and version inside."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        body = {field.name: encode(getattr(self, field.name)) for field in fields}
        return {"schema": type(self).__name__, "schema_version": self.schema_version, **body}

    @classmethod
    def from_dict(cls, data: Any, where: str = "") -> Self:
        """Rebuild the result from ``to_dict``'s output.

        Raises
        ------
        RecordingError
            If a field is missing, unknown or of another type, or the schema's version is newer than
            this code's.
        """
        where = where or cls.__name__
        if not isinstance(data, dict) or data.get("schema") != cls.__name__:
            raise _mismatch(data.get("schema") if isinstance(data, dict) else data, cls, where)
        version = data.get("schema_version")
        if type(version) is not int or not 1 <= version <= cls.schema_version:
            raise RecordingError(
                f"{where}: schema version {reprlib.repr(version)}; gpulab reads 1 to "
                f"{cls.schema_version}. Update gpulab to read the file."
            )
        hints = _hints(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        known, present = {field.name for field in fields}, set(map(str, data)) - _SCHEMA
        # A field that a later schema version added has a default, so that files of an earlier
        # version may lack it.
        needed = {
            field.name
            for field in fields
            if version == cls.schema_version or field.default is dataclasses.MISSING
        }
        wrong = (needed - present) | (present - known)
        if wrong:
            raise RecordingError(
                f"{where}: fields that are missing or unknown: {reprlib.repr(sorted(wrong))}. The "
                "file is damaged or was written by another version."
            )
        values = {
            field.name: decode(data[field.name], hints[field.name], f"{where}.{field.name}")
            for field in fields
            if field.name in present
        }
        try:
            return cls(**values)
        except (InputError, ValueError, TypeError) as error:
            raise RecordingError(
                f"{where}: {error} The file is damaged or was written by another version."
            ) from error

    def table(self) -> Table:
        """Return the headers and the rows that the notebook shows, with the notes last.

        Without ``columns`` there is one row for each field; a class whose table is of another form
        overrides this.
        """
        shown = {heading.format(self): show for heading, show in self.columns.items()}
        if self.rows_from:
            headers: Sequence[str] = tuple(shown)
            items = getattr(self, self.rows_from)
            rows = [tuple(str(show(item)) for show in shown.values()) for item in items]
        elif shown:
            headers, rows = ("", ""), [(name, str(show(self))) for name, show in shown.items()]
        else:
            fields = dataclasses.fields(self)  # type: ignore[arg-type]
            return ("", ""), [(field.name, str(getattr(self, field.name))) for field in fields]
        return headers, rows + note_rows(getattr(self, "notes", ()), len(headers))

    # For classes with arrays, which are declared with ``eq=False``.
    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        # Equal results may hold arrays of different types, and mappings in another order.
        values = self.to_dict().values()
        return hash(tuple(value for value in values if not isinstance(value, (list, dict))))

    def has_note(self, code: str) -> bool:
        """Return whether a note with this code is among the notes."""
        return any(note.code == code for note in getattr(self, "notes", ()))

    def caption(self) -> str:
        """Return the line under the table: the badge and where the numbers came from."""
        return getattr(getattr(self, "evidence", None), "sentence", "")

    def _repr_html_(self) -> str:
        headers, rows = self.table()
        return html_table(headers, rows, self.caption())


# Colors come from JupyterLab's theme where there is one (light or dark); other pages use the second
# value.
_INK = "var(--jp-ui-font-color1,#212121)"
_PAPER = "var(--jp-layout-color1,#fff)"
_BADGE_STYLE = {
    "MEASURED": f"background:{_INK};color:{_PAPER};border:2px solid {_INK}",
    "RECORDED": "background:transparent;color:inherit;border:2px solid currentColor",
    "MODELLED": "background:transparent;color:inherit;border:2px dashed currentColor",
}
# characters: a longer caption folds to the shorter length
_CAPTION_LENGTH, _CAPTION_SHORT = 180, 110
_NO_BREAK = 26  # characters: a shorter cell is not broken into lines
# The minimum width of a longer cell: on a narrow page the table scrolls, instead of breaking a cell
# into single words.
_SENTENCE = "10em"
_NOTE = "note: "  # how the first cell of a note's row begins
_NOTES_SHOWN = 2
_BADGE_SHAPE = (
    "display:inline-block;padding:0 "
    "0.45em;border-radius:0.3em;font-size:0.85em;font-weight:600;letter-spacing:0.04em"
)


def note_rows(notes: Iterable[Any], columns: int) -> list[tuple[str, ...]]:
    """Return one row for each note, padded with empty cells to the table's number of columns."""
    return [(f"{_NOTE}{note.code}", note.sentence, *[""] * (columns - 2)) for note in notes]


def folded(text: str) -> tuple[str, str]:
    """Return the beginning of a text and the rest that unfolds; the rest is "" where the text is
    short enough for a caption.
    """
    text = " ".join(text.split())
    cut = text.rfind(" ", 0, _CAPTION_SHORT - 1)  # leaves room for the ellipsis
    return (
        (text, "")
        if len(text) <= _CAPTION_LENGTH or cut < 0
        else (f"{text[:cut]} …", f"… {text[cut + 1 :]}")
    )


def html_caption(sentence: str) -> str:
    """Return a line of text, escaped, with a badge word at its start drawn as the badge.

    A long line (the assumptions and sources of a model) shows only its beginning until it is
    unfolded, so that it does not bury the table.
    """
    word, _, rest = sentence.partition(" ")
    if word not in _BADGE_STYLE:
        return html.escape(sentence)
    beginning, rest = folded(rest.removeprefix("· "))
    # in the same form everywhere: solid for MEASURED, hollow for RECORDED, dashed for MODELLED
    badge = f'<span class="gpulab-badge" style="{_BADGE_SHAPE};{_BADGE_STYLE[word]}">{word}</span>'
    line = f"{badge} {html.escape(beginning)}"
    unfolds = f'<div style="padding:0.3em 0 0 1.2em">{html.escape(rest)}</div></details>'
    return f'<details><summary style="cursor:pointer">{line}</summary>{unfolds}' if rest else line


def html_table(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return a plain, accessible HTML table in the colors of the theme; every text is escaped.

    Parameters
    ----------
    headers : sequence of str
        One per column; all empty where the table needs none.
    rows : sequence of sequence of str
        The first cell of a row names it (a row header for screen readers).
    caption : str
        The line under the table; a badge word at its start is drawn as the badge.

    Returns
    -------
    str
        One ``figure`` that scrolls sideways if the page is too narrow. Rows of notes ("note:
        unstable") after the second are folded.
    """
    cell = (
        "text-align:left;vertical-align:top;padding:0.2em 1em 0.2em "
        "0;font-variant-numeric:tabular-nums"
    )
    # an empty corner is a plain cell: a screen reader would announce an empty header
    head = "".join(
        f'<th scope="col" style="{cell}">{html.escape(str(text))}</th>'
        if text
        else f'<td style="{cell}"></td>'
        for text in (headers if any(headers) else ())
    )
    texts = [[str(text) for text in row] for row in rows]
    more = [row for row in texts if row and row[0].startswith(_NOTE)][_NOTES_SHOWN:]
    # by identity: a folded note may have the same text as one that is shown
    body = "".join(_row(row, cell) for row in texts if not any(row is each for each in more))
    # Not a <caption>, which a browser makes no wider than the table itself.
    below = (
        f'<figcaption style="padding-top:0.4em">{html_caption(caption)}</figcaption>'
        if caption
        else ""
    )
    below = html_more_notes([f"{row[0].removeprefix(_NOTE)}: {row[1]}" for row in more]) + below
    return (
        '<figure class="gpulab-result" style="margin:0;overflow-x:auto"><table '
        'style="margin:0;color:inherit;table-layout:auto">'
        f"{f'<thead><tr>{head}</tr></thead>' if head else ''}"
        f"<tbody>{body}</tbody></table>{below}</figure>"
    )


def text_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as text for a terminal. A row that holds only a name and a sentence does not
    widen the second column.
    """
    lines = [[printable(str(cell)) for cell in row] for row in (headers, *rows)]
    widths = [
        max((len(line[k]) for line in lines if k != 1 or any(line[2:])), default=0)
        for k in range(len(headers))
    ]
    texts = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    return "\n".join(texts)


def html_more_notes(sentences: Sequence[str]) -> str:
    """Return notes, folded, so that they do not bury the table; "" for none."""
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(each)}</li>" for each in sentences)
    count = f"{len(sentences)} more note{'s' if len(sentences) != 1 else ''}"
    return (
        f'<details><summary style="cursor:pointer">{count}</summary><ul style="margin:0.3em '
        f'0">{items}</ul></details>'
    )


def _row(cells: list[str], style: str) -> str:
    """Return a row of the body. Its last filled cell spans the empty cells after it, so that a long
    note does not widen a column.
    """
    first = (
        '<th scope="row" '
        f'style="{_kept_together(cells[0], style)};font-weight:600">{html.escape(cells[0])}</th>'
        if cells
        else ""
    )
    rest = cells[1:]
    while len(rest) > 1 and not rest[-1]:
        rest.pop()
    span = f' colspan="{len(cells) - len(rest)}"' if rest and len(rest) < len(cells) - 1 else ""
    drawn = [
        f"<td{span if i == len(rest) - 1 else ''} "
        f'style="{_kept_together(text, style)}">{html.escape(text)}</td>'
        for i, text in enumerate(rest)
    ]
    return f"<tr>{first}{''.join(drawn)}</tr>"


def _kept_together(text: str, style: str) -> str:
    """Return a cell's style: a short text (a number and its unit, a name) stays on one line; a
    longer one gets a minimum width, which fits a few words beside each other.
    """
    return (
        f"{style};white-space:nowrap"
        if len(text) <= _NO_BREAK
        else f"{style};min-width:{_SENTENCE}"
    )
