"""Turns: measurements of one device run one at a time, across all processes of the machine.

An advisory lock on a small file per device, taken with ``flock`` (``msvcrt`` on Windows), so the
system itself frees it when a process dies. It never deadlocks: waiting has a time limit, after
which the measurement goes on with a note. The lock works between gpulab's measurements only, in
threads and processes alike; other programs are found by machine readings.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpulab._files import open_regular, try_lock
from gpulab._validate import expanded
from gpulab.devices import Device, guard
from gpulab.errors import StoppedError
from gpulab.evidence import Note
from gpulab.timing.sampling import Limits
from gpulab.units import format_seconds

if TYPE_CHECKING:
    from gpulab.timing.measuring import Job

# Long enough for the measurements of a few neighbors (two seconds each), short enough for a
# learner who waits.
_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.01
_FOLDER_VARIABLE = "GPULAB_LOCK_DIR"

# The lock file of each turn that a thread of this process has, by thread and name of the device.
_held: dict[tuple[int, str], int] = {}


def _release(*holders: tuple[int, str]) -> None:
    """Close the files of some turns, which frees their locks; of all turns where none is given."""
    for holder in holders or tuple(_held):
        file = _held.pop(holder, None)
        if file is not None:
            os.close(file)


# After a fork the child holds nothing: its copies of the files would keep the parent's locks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)


def take(
    jobs: Iterable[Job], stack: contextlib.ExitStack, notes: list[Note], limits: Limits
) -> None:
    """Take the turn on each job's device, always in the same order, and hold it until ``stack``
    closes; one that this thread has already is taken at once.

    Parameters
    ----------
    jobs : iterable of Job
    stack : ExitStack
    notes : list of Note
        Gets one where this waited for another measurement, or could not.
    limits : Limits
        Its ``stop`` is asked while waiting, and ``say`` gets a text.

    Raises
    ------
    StoppedError
        If it was stopped while waiting.
    """
    for name, device in sorted({_name(job.device): str(job.device) for job in jobs}.items()):
        holder = (threading.get_ident(), name)
        if holder in _held:
            continue
        stack.callback(_release, holder)
        began, waited = time.monotonic(), 0.0
        try:
            _held[holder] = file = _open(name)
            while not try_lock(file) and waited < _TIMEOUT_SECONDS:
                if limits.stop():
                    raise StoppedError(
                        f"measure: stopped while waiting {waited:.1f} s for a turn on {name}; "
                        "expected to wait until the other measurement ended. Run it again."
                    )
                limits.say(0.0, f"waiting {waited:.0f} s for a turn on {device}")
                time.sleep(_PAUSE_SECONDS)
                waited = time.monotonic() - began
        except OSError as error:
            sentence = (
                f"no lock could be taken on {device} ({error}); make sure that no other process "
                "measures at the same time."
            )
        else:
            if waited == 0.0:
                continue
            sentence = (
                f"waited {format_seconds(waited)} for another gpulab measurement on {device}; they "
                "did not overlap."
            )
            if waited >= _TIMEOUT_SECONDS:
                sentence = (
                    f"another gpulab measurement held {device} for more than {waited:.0f} s, so "
                    "this one ran at the same time. Measure again when it is done."
                )
        notes.append(Note("turn-taking", sentence))


def _name(device: Device) -> str:
    """Return the name of a device that every process on the machine gives it, whatever
    CUDA_VISIBLE_DEVICES says.
    """
    if device.is_cpu:
        return "cpu"
    identity = ""
    if device.torch_type == "cuda":
        import torch

        with guard(f"asking {device} for its identity"):
            identity = str(getattr(torch.cuda.get_device_properties(device.index), "uuid", ""))
    letters = "".join(c for c in identity.lower() if c.isalnum())
    return f"{device.torch_type}-{letters or device.index}"


def _open(name: str) -> int:
    """Open the lock file, which is the same for every user: never through a link, readable by all,
    so that any user can lock it; never waiting, whatever lies there.
    """
    given = os.environ.get(_FOLDER_VARIABLE)  # set for containers that share a GPU
    if given:
        where = expanded(_FOLDER_VARIABLE, given)
    elif sys.platform == "win32":
        where = pathlib.Path(os.environ.get("PROGRAMDATA", r"C:\ProgramData"), "gpulab", "turns")
    else:  # not tempfile.gettempdir(): that differs between users where TMPDIR does
        where = pathlib.Path("/tmp/gpulab-turns")
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
