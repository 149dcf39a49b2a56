"""The agent: a thread in each engine that reports what its rank is doing, and frees it from a
collective that will never complete.

A rank that hangs in a collective runs no Python, so it can neither report nor be interrupted. This
thread can: it publishes what the rank stands in (through ipyparallel's own channel, so from any
host), and on an interrupt that finds the rank in a collective it shuts the sockets of the process
group down. The collective then fails at once, as it would have if the others' machines had
vanished.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from gpulab.parallel._calls import CollectiveCall

_TICK_SECONDS = 0.25
_STEADY_SECONDS = 1.0  # a rank that is in no collective tells so this often
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
# an interrupt that has not got a rank out of its collective by then never will
_FREE_AFTER_SECONDS = 0.5

Address = tuple[Any, Any]


class Agent:
    """The thread of one engine, and what it knows of the call in progress."""

    # the ends of the pipe that a signal writes to, and the process that started this one: there
    # once it has started
    _wake_out: int
    _wake_in: int
    _parent: int

    def __init__(self) -> None:
        self.rank = 0
        self.call: Any = None  # the Observer of the call in progress
        self.publisher: Any = None
        self.keep: frozenset[Address] = frozenset()
        self.freed = False
        self.heeded = False  # whether an interrupt has come in the call in progress
        self._free_at: float | None = None
        self._told: tuple[Any, ...] = ()  # what was published last, and when
        self._started = False

    def start(self) -> None:
        """Start the thread, and let signals wake it; from the main thread, once.

        Ranks are forked from a process that has imported this: what must be a rank's own is made
        here and not before.
        """
        if self._started:
            return
        self._started, self._parent = True, os.getppid()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        if os.name != "nt":  # there a wake-up must be a socket, and no signal comes anyway
            signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True, name="gpulab-agent").start()

    def begin(self, call: Any) -> None:
        """Take up a call: what an interrupt before it asked for is over, and one within it counts
        anew.
        """
        self.call, self.heeded, self._free_at = call, False, None

    def keep_sockets(self) -> None:
        """Note the connections that are not the process group's: those that exist before it is
        made.
        """
        self.keep = frozenset((c.laddr, c.raddr) for c in _connections())

    def free(self) -> None:
        """End every collective in progress: communicators are aborted where they can be, sockets
        shut down.
        """
        self.freed, self._free_at = True, None
        _abort_device_groups()
        for connection in _connections():
            if connection.fd == -1 or (connection.laddr, connection.raddr) in self.keep:
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as twin:
                twin.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        while True:
            woken = self._woken()
            now = time.monotonic()
            self._heed(woken, now)
            # a report that fails must not end the thread that frees
            with contextlib.suppress(Exception):
                self._tell(now)
            if os.getppid() != self._parent and not sys.platform.startswith("linux"):
                os._exit(1)  # the guard is gone; on Linux the system itself ends its children

    def _heed(self, interrupted: bool, now: float) -> None:
        """Free the rank where an interrupt has not done so for a while; in a call one is heeded,
        and those after it are that one again.
        """
        if interrupted and not (self.call is not None and self.heeded):
            self.heeded, self._free_at = self.call is not None, now + _FREE_AFTER_SECONDS
        if self._free_at is not None and now >= self._free_at:
            self._free_at = None
            if self._hangs():
                self.free()

    def _woken(self) -> bool:
        if os.name == "nt":
            time.sleep(_TICK_SECONDS)
            return False
        if not select.select([self._wake_out], [], [], _TICK_SECONDS)[0]:
            return False
        return signal.SIGINT in os.read(self._wake_out, 4096)

    def _hangs(self) -> bool:
        """Whether the rank stands in a collective, or anywhere else inside torch.distributed."""
        if self.call is not None and self.call.in_flight:
            return True
        frame = main_frame()
        while frame is not None:
            if f"{os.sep}torch{os.sep}distributed{os.sep}" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False

    def _tell(self, now: float) -> None:
        """Publish where the rank stands: at once when that has changed and lasts, else now and
        then.
        """
        call = self.call
        if call is None or self.publisher is None:
            return
        standing: CollectiveCall | None = next(iter(call.in_flight), None)
        entered = call.entered
        if standing is not None and time.perf_counter() - standing.begin_seconds < _TICK_SECONDS:
            return
        state = (entered, None if standing is None else standing.number)
        if self._told and self._told[0] == state and now - self._told[1] < _STEADY_SECONDS:
            return
        self._told = (state, now)
        where = "" if standing is not None else where_in(main_frame())
        self.publisher.publish_data(
            {
                "entered": entered,
                "collective": None if standing is None else standing.to_dict(),
                "where": where,
            }
        )


def main_frame() -> FrameType | None:
    """Return where the main thread is."""
    main = threading.main_thread().ident
    return sys._current_frames().get(main) if main is not None else None


def where_in(frame: FrameType | None) -> str:
    """Return the innermost line of the learner's own code: outside installed libraries and this
    package.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        installed = any(
            f"{os.sep}{place}{os.sep}" in file for place in ("site-packages", "dist-packages")
        )
        if not installed and not file.startswith(("<frozen", sys.base_prefix, _PACKAGE)):
            return f"line {frame.f_lineno} of {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _connections() -> list[Any]:
    import psutil

    # its name before psutil 6
    listed = getattr(psutil.Process(), "net_connections", None) or psutil.Process().connections
    return [c for c in listed("tcp") if c.status == psutil.CONN_ESTABLISHED]


def _abort_device_groups() -> None:
    """Abort NCCL's communicators, which sockets do not end. Written for GPUs; on CPU-only machines
    there are none.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_map):
        with contextlib.suppress(Exception):  # a communicator that is already gone
            group._get_backend(torch.device("cuda")).abort()


AGENT = Agent()
