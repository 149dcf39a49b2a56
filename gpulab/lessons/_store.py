"""The learner's progress in one JSON file that survives crashes, two kernels, and bad content.

Every change is made under a lock and written to a temporary file that then replaces the old one. A
file that is truncated or not from gpulab is set aside under a dated name, never overwritten. If
nothing can be written (a read-only folder, a full disk), the progress is kept in memory and a
sentence says so; the lesson continues.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpulab._files import free_name, open_regular, read_regular, try_lock, write_atomically
from gpulab._given import expanded
from gpulab.errors import InputError

SCHEMA = "gpulab-progress"
SCHEMA_VERSION = 1
# How long to wait for another kernel's lock. A change takes about a millisecond, so two seconds
# mean that the lock is stuck.
_LOCK_SECONDS = 2.0
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
    """Return the name of the progress file as a message shows it; what names none is shown as it
    was written.
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
        waiting.append(edit)
        try:
            # kernels that reach the file through different links share its lock
            where = pathlib.Path(os.path.realpath(path()))
            where.parent.mkdir(parents=True, exist_ok=True)
            with _locked(where):
                content, fault = _load(where)
                if fault:
                    say(_set_aside(where, fault))
                for each in waiting:
                    each(content)
                write_atomically(
                    where,
                    json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8", "replace"),
                )
        except (OSError, InputError) as error:
            if len(waiting) == 1:  # say it once, not at every answer
                say(
                    f"progress: {named()} cannot be written ({_reason(error)}); expected a file in "
                    "a folder that you may write to. Your answers are kept until the kernel "
                    "stops; set GPULAB_PROGRESS to another file to keep them longer."
                )
            return
        except BaseException:
            # a change that fails by itself (or is interrupted) would fail again with every later
            # one
            waiting.remove(edit)
            raise
        waiting.clear()


def _load(where: pathlib.Path) -> tuple[dict[str, Any], str | None]:
    """Return the content, and what is wrong with the file (None: nothing)."""
    try:
        # with the mark that Windows' own editors put before a text that they saved
        text = read_regular(where).decode("utf-8-sig")
    except FileNotFoundError:
        return empty(), None
    except UnicodeDecodeError:
        return empty(), "is not text"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return empty(), "is truncated or is not JSON"
    return (
        (content, None)
        if _is_ours(content)
        else (empty(), "is not a progress file of this gpulab version")
    )


def _is_ours(content: Any) -> bool:
    if (
        not isinstance(content, dict)
        or content.get("schema") != SCHEMA
        or content.get("schema_version") != SCHEMA_VERSION
    ):
        return False
    parts = [content.get("predictions"), content.get("exercises")]
    entries = [entry for part in parts if isinstance(part, dict) for entry in part.values()]
    return (
        all(isinstance(part, dict) for part in parts)
        and isinstance(content.get("history"), list)
        and all(map(_is_entry, entries))
    )


def _is_entry(entry: Any) -> bool:
    """Whether an item has the types that readers rely on; unknown keys are kept."""
    kinds: dict[str, Any] = {
        "state": str,
        "attempts": int,
        "first": dict,
        "later": list,
        "revealed": dict,
        "unmeasured": str,
        "question": str,
        "unit": str,
        "choices": list,
    }
    return isinstance(entry, dict) and all(
        isinstance(entry[key], kind) for key, kind in kinds.items() if entry.get(key) is not None
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


@contextlib.contextmanager
def _locked(where: pathlib.Path) -> Iterator[None]:
    """Hold the lock file beside ``where``; another kernel's change waits for this one, but where
    the file system knows no locks.
    """
    with open(f"{where}.lock", "a+b", opener=open_regular) as file:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not try_lock(file.fileno(), otherwise=True):
            if time.monotonic() > deadline:
                raise OSError(None, "another kernel holds its lock")
            time.sleep(0.01)
        yield


POLICIES = ("show", "after-attempt", "withhold")


@dataclass(frozen=True)
class Policy:
    """When solutions are shown, and the message shown when they are not."""

    solutions: str
    message: str


def policy() -> Policy:
    """Return the class's policy; with a setting that cannot be read, solutions are withheld and the
    message says why.
    """
    chosen = os.environ.get("GPULAB_SOLUTIONS")
    if chosen:
        return _valid(chosen, "", "GPULAB_SOLUTIONS")
    named = os.environ.get("GPULAB_CLASS")
    try:
        where = expanded("GPULAB_CLASS", named) if named else here() / ".gpulab" / "class.json"
    except InputError as error:
        return Policy("withhold", f"{error} Ask your instructor.")
    if not named and not where.exists():
        return Policy("show", "")
    try:
        # which knows by its first bytes how Windows' own tools wrote it
        content = json.loads(read_regular(where))
        return _valid(
            content.get("solutions", "show"), str(content.get("message") or ""), str(where)
        )
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        return Policy(
            "withhold",
            f'{where} cannot be read ({error}); expected JSON such as {{"solutions": "show"}}. Ask '
            "your instructor.",
        )


def _valid(chosen: object, message: str, where: str) -> Policy:
    if chosen in POLICIES:
        return Policy(str(chosen), message)
    return Policy(
        "withhold",
        f"{where} has the value {str(chosen)[:40]!r}; expected one of {', '.join(POLICIES)}. Ask "
        "your instructor.",
    )
