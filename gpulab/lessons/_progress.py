"""The learner's progress: one JSON file that survives crashes, bad content, and changes by two
kernels at once; its table; and a way to restart a notebook without losing anything.

Every change is made under a lock and written to a temporary file that then replaces the old one. A
file that is truncated or not from gpulab is set aside under a dated name, never overwritten. If
nothing can be written (a read-only folder, a full disk), the progress is kept in memory and a
sentence says so; the lesson continues.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from gpulab._files import exclusive, free_name, read_regular, write_atomically
from gpulab._validate import expanded
from gpulab.errors import InputError, shown
from gpulab.lessons import content
from gpulab.results import Result, Table, html_table
from gpulab.units import plural

SCHEMA = "gpulab-progress"
SCHEMA_VERSION = 1
# How long to wait for another kernel's lock. A change takes about a millisecond, so two seconds
# mean that the lock is stuck.
_LOCK_SECONDS = 2.0
_MOST_ROWS = 8  # that a table shows unfolded
_inside = threading.RLock()  # threads of this kernel; the file lock holds between kernels
Edit = Callable[[dict[str, Any]], None]
_pending: dict[str, list[Edit]] = {}  # path -> the changes that could not be written yet


def here() -> pathlib.Path:
    """Return the working directory; "." if it was removed while the kernel was running."""
    try:
        return pathlib.Path.cwd()
    except OSError:
        return pathlib.Path()


def path() -> pathlib.Path:
    """Return the progress file: ``GPULAB_PROGRESS``, or ``.gpulab/progress.json`` in the working
    directory.

    Raises
    ------
    InputError
        If GPULAB_PROGRESS names the home directory of an unknown user.
    """
    chosen = os.environ.get("GPULAB_PROGRESS")
    return expanded("GPULAB_PROGRESS", chosen) if chosen else here() / ".gpulab" / "progress.json"


def named() -> str:
    """Return the name of the progress file for a message. GPULAB_PROGRESS is shown as it was
    written, even if it is not a valid path.
    """
    return os.environ.get("GPULAB_PROGRESS") or str(path())


def _reason(error: OSError | InputError) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error).split("; ")[0]


def now() -> str:
    """Return the time in the format of the file: UTC, ISO 8601, whole seconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def empty() -> dict[str, Any]:
    """Return the content of a new file."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "predictions": {},
        "exercises": {},
        "history": [],
    }


def read() -> dict[str, Any]:
    """Return the progress; a damaged or unreadable file counts as empty here (the next change sets
    it aside).
    """
    with _inside:
        try:
            content, _ = _load(path())
        except (OSError, InputError):
            content = empty()
        for edit in _pending.get(named(), []):
            edit(content)
    return content


def fault() -> str | None:
    """Return what is wrong with the progress file, or None if it can be read or does not exist;
    ``read`` treats a damaged one as empty.
    """
    try:
        return _load(path())[1]
    except (OSError, InputError) as error:
        return f"cannot be read ({_reason(error)})"


def change(edit: Edit, say: Callable[[str], None] = print) -> None:
    """Apply ``edit`` to the progress and save it.

    Parameters
    ----------
    edit : callable
        Changes the dictionary in place; it may be called again with newer content of the file.
    say : callable
        Called with the sentence to show when a file was set aside or nothing could be written.
    """
    with _inside:
        waiting = _pending.setdefault(named(), [])
        try:
            # kernels that reach the file through different links share its lock
            where = pathlib.Path(os.path.realpath(path()))
            where.parent.mkdir(parents=True, exist_ok=True)
            # kernels wait for each other's changes
            with exclusive(pathlib.Path(f"{where}.lock"), _LOCK_SECONDS) as free:
                if not free:
                    raise OSError(None, "another kernel holds its lock")
                content, fault = _load(where)
                if fault:
                    say(_set_aside(where, fault))
                for each in (*waiting, edit):
                    each(content)
                write_atomically(
                    where,
                    json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8", "replace"),
                )
        except (OSError, InputError) as error:
            if not waiting:  # say it once, not at every answer
                say(
                    f"progress: {named()} cannot be written ({_reason(error)}); expected a file in "
                    "a folder that you may write to. Your answers are kept until the kernel "
                    "stops; set GPULAB_PROGRESS to another file to keep them longer."
                )
            waiting.append(edit)
            return
        waiting.clear()


def _load(where: pathlib.Path) -> tuple[dict[str, Any], str | None]:
    """Return the content, and what is wrong with the file (None: nothing)."""
    try:
        # utf-8-sig: without the byte order mark with which Windows' own editors begin a file
        content = json.loads(read_regular(where).decode("utf-8-sig"))
    except FileNotFoundError:
        return empty(), None
    except (ValueError, RecursionError):
        return empty(), "is truncated or is not JSON"
    if _is_ours(content):
        return content, None
    return empty(), "is not a progress file of this gpulab version"


# The types that readers rely on in an item; unknown keys are kept.
_KINDS: Mapping[str, type] = {
    "state": str,
    "attempts": int,
    "hints": int,
    "first": dict,
    "later": list,
    "revealed": dict,
    "unmeasured": str,
    "question": str,
    "unit": str,
    "choices": list,
}


def _is_ours(content: Any) -> bool:
    stamp = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}
    if not isinstance(content, dict) or not stamp.items() <= content.items():
        return False
    parts: list[Any] = [content.get("predictions"), content.get("exercises")]
    if not all(isinstance(part, dict) for part in parts):
        return False
    entries = [entry for part in parts for entry in part.values()]
    return isinstance(content.get("history"), list) and all(
        isinstance(entry, dict)
        and all(
            isinstance(entry[key], kind)
            for key, kind in _KINDS.items()
            if entry.get(key) is not None
        )
        for entry in entries
    )


def _set_aside(where: pathlib.Path, fault: str) -> str:
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
    aside = free_name(where.with_name(f"{where.stem}-set-aside-{stamp}{where.suffix}"))
    shutil.copy2(where, aside)  # not renamed: the new file keeps the mode of the old one
    return (
        f"progress: {where.name} {fault}; expected the file that gpulab wrote. It is kept as "
        f"{aside.name}, and a new one begins; to restore it, repair that file and give it its old "
        "name."
    )


POLICIES = ("show", "after-attempt", "withhold")


def policy() -> tuple[str, str]:
    """Return the class's policy on when solutions are shown, one of ``POLICIES``, and the message
    to show while they are not. If the setting cannot be read, solutions are withheld and the
    message says why.
    """
    chosen = os.environ.get("GPULAB_SOLUTIONS")
    message, where = "", "GPULAB_SOLUTIONS"
    try:
        if not chosen:
            file = here() / ".gpulab" / "class.json"
            if not file.exists():
                return "show", ""
            where = str(file)
            # from bytes, json.loads detects the encoding, such as that of Windows' own tools
            content = json.loads(read_regular(file))
            chosen = content["solutions"]
            message = str(content.get("message") or "")
        if chosen in POLICIES:
            return str(chosen), message
        fault = f"has the value {str(chosen)[:40]!r}; expected one of {', '.join(POLICIES)}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fault = f'cannot be read ({error}); expected JSON such as {{"solutions": "show"}}'
    return "withhold", f"{where} {fault}. Ask your instructor."


class ProgressRow(NamedTuple):
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

    def table(self) -> Table:
        """Return one row for each item or, if there are many items, one row for each notebook, with
        the exercises that are open.
        """
        if len(self.rows) <= _MOST_ROWS:
            return self._items()
        rows = []
        for number in sorted({row.id.partition(".")[0] for row in self.rows}):
            here = [row for row in self.rows if row.id.startswith(f"{number}.")]
            counts = ("{} of {}".format(*_done(here, kind)) for kind in ("exercise", "prediction"))
            left = [row.id for row in here if row.kind == "exercise" and row.state != "passed"]
            rows.append((number, *counts, ", ".join(left) or "none"))
        return ("notebook", "exercises passed", "predictions given", "open exercises"), rows

    def _items(self) -> Table:
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
        return (
            f"{pathlib.Path(self.file).name} {self.fault}, so its content is not shown; the file "
            "is kept. "
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
    lessons, kept = content.chosen(notebook, "progress"), read()
    rows = [
        _prediction_row(id, kept["predictions"].get(id) or {})
        if id in lesson.questions
        else _exercise_row(id, lesson.exercises[id].title, kept["exercises"].get(id) or {})
        for lesson in lessons
        for id in lesson.ids
    ]
    return Progress(
        tuple(rows),
        *_done(rows, "exercise"),
        *_done(rows, "prediction"),
        named(),
        fault() or "",
    )


def _exercise_row(id: str, title: str, entry: Mapping[str, Any]) -> ProgressRow:
    attempts, state = int(entry.get("attempts") or 0), str(entry.get("state") or "not attempted")
    return ProgressRow(
        id, "exercise", title, state, plural(attempts, "attempt") if attempts else ""
    )


def _prediction_row(id: str, entry: Mapping[str, Any]) -> ProgressRow:
    first, revealed = entry.get("first") or {}, entry.get("revealed") or {}
    title = str(entry.get("question") or "") or (
        "its question was not asked" if entry else "not answered yet"
    )
    mine = str(first.get("text", ""))
    before = f"you: {mine}; " if first else ""
    if revealed:
        badge = f" ({revealed['badge']})" if revealed.get("badge") else ""
        state = str(revealed.get("verdict", "open"))
        detail = f"{before}answer: {revealed.get('text', '')}{badge}"
    else:
        state, why = "predicted" if first else "open", str(entry.get("unmeasured") or "")
        detail = f"{before}{why}" if why else mine
    return ProgressRow(id, "prediction", title, state, detail)


def start_again(notebook: str, say: Callable[[str], None] = print) -> None:
    """Restart a notebook's predictions and exercises; the old answers move into the file's history.

    Parameters
    ----------
    notebook : str
        The notebook's number, such as "02", or the part before the point in the ids of your own
        questions and exercises.

    Raises
    ------
    InputError
        If it is not text, or is empty.
    """
    if not isinstance(notebook, str) or not notebook:
        raise InputError(
            f"start_again: {shown(notebook)}; expected the notebook's number, such as '02'. Pass "
            "it as text."
        )
    prefix = notebook.partition("_")[0] + "."
    before = read()
    mine = {
        part: [key for key in before[part] if key.startswith(prefix)]
        for part in ("predictions", "exercises")
    }
    if not any(mine.values()):
        say(f"There are no answers whose ids begin with '{prefix}'; nothing was changed.")
        return

    def edit(content: dict[str, Any]) -> None:
        old = {part: {key: content[part].pop(key, {}) for key in mine[part]} for part in mine}
        content["history"].append({"date": now(), "notebook": notebook, **old})

    change(edit, say)
    count = plural(sum(map(len, mine.values())), "answer")
    say(
        f"{count} of notebook {prefix[:-1]} moved into the history of "
        f"{pathlib.Path(named()).name}; you can start again."
    )
