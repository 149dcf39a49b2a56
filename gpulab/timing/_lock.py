"""Turns: measurements of one device run one at a time, across all processes of the machine.

An advisory lock on a small file per device, taken with ``flock`` (``msvcrt`` on Windows), so the
system itself frees it when a process dies. It never deadlocks: waiting has a time limit, after
which the measurement goes on with a note. The lock works between gpulab processes only; other
programs are found by machine readings.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpulab._files import open_regular, try_lock
from gpulab._given import expanded
from gpulab.devices import Device, guard
from gpulab.errors import StoppedError

# Long enough for the measurements of a few neighbours (two seconds each), short enough for a
# learner who waits.
TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.01
_FOLDER_VARIABLE = "GPULAB_LOCK_DIR"


@dataclass(frozen=True)
class Turn:
    """How a measurement got its turn.

    Attributes
    ----------
    waited_seconds : float
        0 when no other process was measuring.
    taken : bool
        False when the wait timed out, or when locking is not possible.
    problem : str or None
        Why no lock was possible at all.
    """

    waited_seconds: float
    taken: bool
    problem: str | None = None


@dataclass
class _Slot:
    """One device in this process: who holds it, how deep, and the locked file."""

    threads: Any = field(default_factory=threading.RLock)
    depth: int = 0
    file: int | None = None


_slots: dict[str, _Slot] = {}
_slots_guard = threading.Lock()


def _forget() -> None:
    """After a fork the child holds nothing: close its copies (the parent's lock stays) and start
    anew.
    """
    global _slots_guard
    for slot in _slots.values():
        if slot.file is not None:
            os.close(slot.file)
    _slots.clear()
    _slots_guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def folder() -> pathlib.Path:
    """Return the folder of the lock files, the same for every user; ``GPULAB_LOCK_DIR`` overrides
    it (containers that share a GPU).

    Raises
    ------
    InputError
        If GPULAB_LOCK_DIR names the home of a user who is not here.
    """
    given = os.environ.get(_FOLDER_VARIABLE)
    if given:
        return expanded(_FOLDER_VARIABLE, given)
    if sys.platform == "win32":
        return pathlib.Path(os.environ.get("PROGRAMDATA", r"C:\ProgramData")) / "gpulab" / "turns"
    # not tempfile.gettempdir(): that differs between users where TMPDIR does
    return pathlib.Path("/tmp/gpulab-turns")


def key(device: Device) -> str:
    """Return the name of a device that every process on the machine gives it, whatever
    CUDA_VISIBLE_DEVICES says.
    """
    if device.is_cpu:
        return "cpu"
    identity = ""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if device.torch_type == "cuda":
        with guard(f"asking {device} for its identity"):
            if torch is not None:
                properties: Any = torch.cuda.get_device_properties(device.index)
                identity = str(getattr(properties, "uuid", ""))
            elif cupy is not None:
                properties = cupy.cuda.runtime.getDeviceProperties(device.index)
                identity = bytes(properties.get("uuid", b""))[:16].hex()
    letters = "".join(c for c in identity.lower() if c.isalnum())
    return f"{device.torch_type}-{letters or device.index}"


def _open(name: str) -> int:
    """Open the lock file: never through a link, readable by all, so that any user can lock it;
    never waiting, whatever lies there.
    """
    where = folder()
    if not where.is_dir():
        where.mkdir(parents=True, exist_ok=True)
        # another user made it a moment ago: its mode is set by them
        with contextlib.suppress(OSError):
            where.chmod(0o1777)
    path = where / f"{name}.lock"
    # flock needs no right to write; msvcrt does
    flags = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY | os.O_NOFOLLOW
    try:
        return open_regular(path, flags)
    except FileNotFoundError:
        # Created apart from opened: Linux refuses O_CREAT on another user's file in a sticky folder
        # (fs.protected_regular).
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            if sys.platform != "win32":
                with contextlib.suppress(OSError):  # a file system without such modes
                    # whatever the umask: where it is 077, as on many servers, nobody else could
                    # open it
                    os.fchmod(made, 0o644)
            os.close(made)
        return open_regular(path, flags)


@dataclass
class _Wait:
    """One wait with an end: calls ``waiting`` and looks at ``stop`` while it lasts."""

    name: str
    timeout: float
    stop: Callable[[], bool] | None
    waiting: Callable[[float], None] | None
    began: float | None = None

    def seconds(self) -> float:
        return 0.0 if self.began is None else time.monotonic() - self.began

    def goes_on(self) -> bool:
        """Pause a moment; False when the time is up."""
        if self.began is None:
            self.began = time.monotonic()
        if self.stop is not None and self.stop():
            raise StoppedError(
                f"measure: stopped while waiting {self.seconds():.1f} s for a turn on {self.name}; "
                "expected to wait until the other measurement ended. Run it again."
            )
        if self.waiting is not None:
            self.waiting(self.seconds())
        if self.seconds() >= self.timeout:
            return False
        time.sleep(_PAUSE_SECONDS)
        return True


def _lock_file(slot: _Slot, wait: _Wait) -> Turn:
    try:
        slot.file = _open(wait.name)
        while not try_lock(slot.file):
            if not wait.goes_on():
                return Turn(wait.seconds(), taken=False)
    except OSError as error:
        return Turn(wait.seconds(), taken=False, problem=str(error))
    return Turn(wait.seconds(), taken=True)


@contextlib.contextmanager
def turn(
    name: str,
    timeout: float = TIMEOUT_SECONDS,
    *,
    stop: Callable[[], bool] | None = None,
    waiting: Callable[[float], None] | None = None,
) -> Iterator[Turn]:
    """Hold the turn on a device while the block runs; a block inside a block of the same thread
    enters at once.

    Parameters
    ----------
    name : str
        From ``key``.
    timeout : float
        Seconds to wait at most; the block then runs without the turn.
    stop : callable, optional
        Looked at while waiting.
    waiting : callable, optional
        Called with the seconds waited so far.

    Raises
    ------
    StoppedError
        If ``stop`` said so while waiting.
    """
    with _slots_guard:
        slot = _slots.setdefault(name, _Slot())
    wait = _Wait(name, timeout, stop, waiting)
    entered = False
    try:
        while not (entered := slot.threads.acquire(blocking=False)):
            if not wait.goes_on():
                break
        if not entered:
            yield Turn(wait.seconds(), taken=False)
            return
        slot.depth += 1
        yield _lock_file(slot, wait) if slot.depth == 1 else Turn(wait.seconds(), taken=True)
    finally:
        if entered:
            slot.depth -= 1
            if slot.depth == 0 and slot.file is not None:
                file, slot.file = slot.file, None
                os.close(file)  # closing frees the lock
            slot.threads.release()
