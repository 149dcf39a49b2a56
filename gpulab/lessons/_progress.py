"""The learner's progress in one table, and a way to restart a notebook without losing anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gpulab.errors import InputError, shown
from gpulab.lessons import _store, content
from gpulab.results import Result, html_table
from gpulab.units import plural

_MOST_ROWS = 8  # that a table shows unfolded


@dataclass(frozen=True)
class ProgressRow(Result):
    """One prediction or exercise.

    Attributes
    ----------
    id, kind, title : str
        ``kind`` is "prediction" or "exercise".
    state : str
        "open", "predicted", "close", "off", "right", "wrong", "no prediction", "passed" or "not
        attempted".
    detail : str
        The two answers, the reason why there is none on this machine, or the number of attempts.
    """

    id: str
    kind: str
    title: str
    state: str
    detail: str


@dataclass(frozen=True)
class Progress(Result):
    """Every prediction and exercise of the course, with the learner's results.

    Attributes
    ----------
    rows : tuple of ProgressRow
    passed, exercises, predicted, predictions : int
        Exercises passed and in total; predictions given and in total.
    file : str
        Where it is kept.
    fault : str
        What is wrong with the file, such as "is truncated or is not JSON"; "" if it could be read
        or does not exist.
    """

    schema_version: ClassVar[int] = 2
    rows: tuple[ProgressRow, ...]
    passed: int
    exercises: int
    predicted: int
    predictions: int
    file: str
    fault: str = ""

    def __repr__(self) -> str:
        head = f"{self._warning()}{self._totals()} ({self.file})"
        return "\n".join(
            [
                head,
                *(
                    f"  {row.id}  {row.kind:<10}  {row.state:<14} {row.title} {row.detail}".rstrip()
                    for row in self.rows
                ),
            ]
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row for each item; where they are many, one for each notebook, with the
        exercises that are open.
        """
        if len(self.rows) <= _MOST_ROWS:
            return self._items()
        rows = []
        for number in sorted({row.id.partition(".")[0] for row in self.rows}):
            here = [row for row in self.rows if row.id.startswith(f"{number}.")]
            counts = ("{} of {}".format(*_done(here, kind)) for kind in ("exercise", "prediction"))
            rows.append(
                (
                    number,
                    *counts,
                    ", ".join(
                        row.id for row in here if row.kind == "exercise" and row.state != "passed"
                    )
                    or "none",
                )
            )
        return ("notebook", "exercises passed", "predictions given", "open exercises"), rows

    def _items(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        return ("", "kind", "what", "state", ""), [
            (row.id, row.kind, row.title, row.state, row.detail) for row in self.rows
        ]

    def _repr_html_(self) -> str:
        if len(self.rows) <= _MOST_ROWS:
            return super()._repr_html_()
        summary = '<summary style="cursor:pointer">each prediction and exercise</summary>'
        return f"{super()._repr_html_()}<details>{summary}{html_table(*self._items())}</details>"

    def caption(self) -> str:
        """Return what is wrong with the file, if anything, then the totals and the path of the
        file.
        """
        return f"{self._warning()}{self._totals()}. Kept in {self.file}"

    def _warning(self) -> str:
        if not self.fault:
            return ""
        # One that cannot be opened cannot be moved either.
        later = (
            "" if self.fault.startswith("cannot be read") else ", and set aside at your next answer"
        )
        return (
            f"{Path(self.file).name} {self.fault}, so its content is not shown; the file is "
            f"kept{later}. "
        )

    def _totals(self) -> str:
        return (
            f"{self.passed} of {self.exercises} exercises passed, {self.predicted} of "
            f"{self.predictions} predictions given"
        )


def _done(rows: Sequence[ProgressRow], kind: str) -> tuple[int, int]:
    """Return how many exercises are passed, or predictions given, and how many there are."""
    states = [row.state for row in rows if row.kind == kind]
    return sum(
        state == "passed" if kind == "exercise" else state not in ("open", "no prediction")
        for state in states
    ), len(states)


def progress(notebook: str = "") -> Progress:
    """Return what was predicted, attempted and passed.

    Parameters
    ----------
    notebook : str
        A notebook's number, such as "02"; all notebooks by default.

    Raises
    ------
    InputError
        If there is no such notebook.
    """
    lessons = content.chosen(notebook, "progress")
    kept = _store.read()
    rows: list[ProgressRow] = []
    for lesson in lessons:
        for id in lesson.ids:
            if id in lesson.questions:
                rows.append(_prediction_row(id, kept["predictions"].get(id) or {}))
            else:
                rows.append(
                    _exercise_row(id, lesson.exercises[id].title, kept["exercises"].get(id) or {})
                )
    totals = (*_done(rows, "exercise"), *_done(rows, "prediction"))
    return Progress(tuple(rows), *totals, _store.named(), _store.fault() or "")


def _prediction_row(id: str, entry: dict[str, Any]) -> ProgressRow:
    first, shown = entry.get("first") or {}, entry.get("revealed") or {}
    title = str(entry.get("question", "")) or (
        "its question was not asked" if entry else "not answered yet"
    )
    said = f"you: {first.get('text', '')}; " if first else ""
    if not shown:
        why = str(entry.get("unmeasured", ""))
        return ProgressRow(
            id,
            "prediction",
            title,
            "predicted" if first else "open",
            f"{said}{why}" if why else str(first.get("text", "")),
        )
    badge = f" ({shown['badge']})" if shown.get("badge") else ""
    return ProgressRow(
        id,
        "prediction",
        title,
        str(shown.get("verdict", "open")),
        f"{said}answer: {shown.get('text', '')}{badge}",
    )


def _exercise_row(id: str, title: str, entry: dict[str, Any]) -> ProgressRow:
    attempts = int(entry.get("attempts") or 0)
    detail = f"{attempts} attempt{'s' if attempts != 1 else ''}" if attempts else ""
    return ProgressRow(id, "exercise", title, str(entry.get("state") or "not attempted"), detail)


def start_again(notebook: str, say: Callable[[str], None] = print) -> None:
    """Restart a notebook's predictions and exercises; the old answers move into the file's history.

    Parameters
    ----------
    notebook : str
        The notebook's number, such as "02", or what the ids of your own begin with.

    Raises
    ------
    InputError
        If it is not text, is empty, or is one digit with which no id begins: "2" is not a
        notebook's number.
    """
    if not isinstance(notebook, str) or not notebook:
        raise InputError(
            f"start_again: {shown(notebook)}; expected the notebook's number, such as '02'. Pass "
            "it as text."
        )
    prefix = notebook.partition("_")[0] + "."
    before = _store.read()
    if not any(
        key.startswith(prefix) for part in ("predictions", "exercises") for key in before[part]
    ):
        if len(notebook) == 1 and notebook.isdecimal():
            content.chosen(notebook, "start_again")
        say(f"There are no answers of notebook {prefix[:-1]}; nothing was changed.")
        return
    moved: list[int] = []

    def edit(content: dict[str, Any]) -> None:
        old = {
            part: {
                key: content[part].pop(key) for key in list(content[part]) if key.startswith(prefix)
            }
            for part in ("predictions", "exercises")
        }
        moved[:] = [sum(map(len, old.values()))]
        if moved[0]:
            content["history"].append({"date": _store.now(), "notebook": notebook, **old})

    _store.change(edit, say)
    say(
        f"{plural(moved[0], 'answer')} of notebook {prefix[:-1]} moved into the history of "
        f"{Path(_store.named()).name}; you can start again."
    )
