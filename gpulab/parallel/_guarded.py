"""The kernel's end of the guard: orders to it, and what it told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import gpulab
from gpulab._files import TemporaryFolder
from gpulab.errors import RankError
from gpulab.parallel import _guard

# A guard has ended everything within this time, or it is killed itself; its children then die with
# it (Linux) or are found by name.
_END_SECONDS = 10.0


class Guarded:
    """A guard process, what it was told to start, and how that ended.

    Dropping the object, the interpreter's end, and ``close`` do the same: the pipe is closed, and
    the guard ends everything.
    """

    def __init__(
        self,
        threads: int,
        on_end: weakref.WeakMethod[Callable[[str], None]] | None = None,
        end_seconds: float = _END_SECONDS,
    ) -> None:
        temporary = TemporaryFolder("cluster")
        folder = Path(temporary.name)
        self.folder, self._on_end = folder, on_end
        self.pids: dict[str, int] = {}
        self.ends: dict[str, int] = {}  # name to exit code (negative: a signal)
        self.failures: list[str] = []
        # whether engines are forked; None until libraries are loaded
        self.forks: bool | None = None
        self.changed = threading.Condition()
        with (folder / "guard.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(_guard.__file__)), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(threads),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        threading.Thread(
            target=_listen,
            args=(weakref.ref(self), self._process.stdout),
            daemon=True,
            name="gpulab-guard",
        ).start()
        self._finalizer = weakref.finalize(self, _end, self._process, end_seconds, temporary)

    @property
    def alive(self) -> bool:
        """Whether the guard itself is there."""
        return self._process.poll() is None

    def order(self, what: str, **order: Any) -> None:
        """Give one order.

        Raises
        ------
        RankError
            If the guard is gone.
        """
        try:
            self._input.write(json.dumps({"do": what, **order}).encode() + b"\n")
            self._input.flush()
        except (OSError, ValueError) as error:
            raise RankError(
                "cluster: the process that watches over the engines is gone, and the engines with "
                "it; expected it to live as long as the "
                "cluster. Call recover()."
            ) from error

    def close(self) -> None:
        """End everything that the guard started, and the guard. A second call does nothing."""
        self._finalizer()

    def told(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        with self.changed:
            what = event["event"]
            if what == "started":
                self.pids[event["name"]] = event["pid"]
                self.ends.pop(event["name"], None)
            elif what == "ended":
                self.pids.pop(event["name"], None)
                self.ends[event["name"]] = event["code"]
            elif what == "loaded":
                self.forks = event["forks"]
            elif what == "failed":
                self.failures.append(event["error"])
            self.changed.notify_all()
        on_end = None if self._on_end is None else self._on_end()
        if what == "ended" and on_end is not None:
            on_end(event["name"])


def _listen(guarded: weakref.ref[Guarded], events: IO[bytes]) -> None:
    """Take in events until the guard ends; holds no reference, so that a dropped cluster is
    collected, and ended.
    """
    with events:
        for line in events:
            here = guarded()
            if here is None:
                return
            here.told(json.loads(line))
            del here
    here = guarded()
    # it was killed, and could not end what it had started
    if here is not None and here._process.wait() != 0:
        kill_sessions(here.pids.values())
    if here is not None:
        with here.changed:
            here.changed.notify_all()


def kill_sessions(leaders: Iterable[int]) -> None:
    """Kill processes that lead a session each, with those sessions; their numbers are not reused
    while one of a session lives.
    """
    if os.name == "nt":
        return
    for leader in list(leaders):
        with contextlib.suppress(OSError):  # it is gone, or another user's by now
            os.killpg(leader, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], seconds: float, temporary: TemporaryFolder) -> None:
    """Close the pipe and wait until the guard has ended everything."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    temporary.cleanup()


def _environment(threads: int) -> dict[str, str]:
    """Return the guard's environment: gpulab importable, and libraries that start no threads when
    they are loaded.
    """
    root = str(Path(gpulab.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return os.environ | {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
