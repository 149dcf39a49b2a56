"""The rank's side of ``links``: step into a network namespace, and back.

Only sockets made afterwards lie in the namespace. Those that ipyparallel has already stay where they are, so the notebook reaches the rank
as before, while its process group talks through the namespace's link.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from gpulab.parallel import _wire

_CLONE_NEWNET = 0x40000000  # Linux, include/uapi/linux/sched.h
_home: list[int] = []  # file descriptor of the namespace that this process began in


def enter(name: str) -> None:
    """Let the main thread, and every thread and socket that it makes, live in a namespace that ``ip netns add`` made.

    Raises
    ------
    OSError
        If the kernel refuses, which it does without CAP_SYS_ADMIN.
    """
    if not _home:
        _home.append(os.open("/proc/self/ns/net", os.O_RDONLY))
    _wire.keep_open_sockets()
    target = os.open(Path("/run/netns") / name, os.O_RDONLY)
    try:
        _setns(target)
    finally:
        os.close(target)


def leave() -> None:
    """Come back; nothing happens to who never left."""
    if _home:
        home = _home.pop()
        try:
            _setns(home)
        finally:
            os.close(home)
    _wire.keep_no_sockets()


def _setns(target: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(target, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
