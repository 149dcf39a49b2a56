"""The guard: a process that starts a cluster's processes, reports how each ends, and ends them all
when the kernel is gone.

Started by `_guarded.Guarded` as a program, it speaks in lines of JSON: orders on its standard
input, events on its standard output. When the input ends (the kernel was killed, restarted, or let
go of the cluster) or the parent has changed, it kills everything that it started and all that these
started, removes the cluster's folder, and leaves.

Where the system can fork safely (Linux), engines are forked from the guard after it has loaded
torch and ipyparallel once: an engine then takes a tenth of a second in place of seconds, and the
ranks share the libraries' memory. The guard itself computes nothing, has one thread, and never
touches a GPU, so that a fork of it is sound. Elsewhere each engine is a process of its own from the
start.

Tried on Linux only. On Windows there are no sessions and no parent that changes: the end of the
input is what counts there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

LINUX = sys.platform.startswith("linux")
_TICK_SECONDS = 0.05  # how often ends are looked for; a fifth of a hundredth of one core
# prctl's numbers, from linux/prctl.h: the signal that a child gets when its parent dies; orphans go
# to the nearest such ancestor.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# When memory runs out, the system takes an engine before it takes the notebook's kernel (-1000 to
# 1000; /proc/PID/oom_score_adj).
_OOM_SCORE = 500
# torch._dynamo is loaded by the first operator that a dispatch mode or an optimizer sees.
_PRELOADED = (
    "torch.distributed.tensor",
    "torch._dynamo",
    "ipykernel.ipkernel",
    "ipyparallel.engine.app",
    "cloudpickle",
    "gpulab.parallel._rank",
)
_ENGINE = "from ipyparallel.engine.app import main; main()"


class Guard:
    """The processes by name, and the loop that watches over them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.parent = os.getppid()
        self.popens: dict[str, subprocess.Popen[bytes]] = {}
        self.forks: dict[str, int] = {}
        self.stops: dict[str, tuple[int, float]] = {}
        self.rest = b""
        self.loaded = False
        self.read = _blocking_reader() if os.name == "nt" else _ready_reader

    def main(self) -> NoReturn:
        """Serve until the kernel is gone."""
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # the kernel's interrupt is for the ranks, and is sent to them by order
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        if LINUX:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            while os.getppid() == self.parent and (orders := self.orders()) is not None:
                for order in orders:
                    self.obey(order)
                self.look()
        finally:
            self.end()

    def orders(self) -> list[dict[str, Any]] | None:
        """Return the orders that came within a tick; None when the input has ended."""
        data = self.read()
        if data is None:
            return []
        if not data:
            return None
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def obey(self, order: dict[str, Any]) -> None:
        """Do one order; what fails is told, never raised: a guard that dies of an order would take
        the cluster with it.
        """
        try:
            what, name = order["do"], order.get("name", "")
            if what == "engine":
                self.engine(name, order["arguments"], order["log"])
            elif what == "process":
                self.process(name, order["command"], order["log"])
                if "stop" in order:
                    self.stops[name] = (order["stop"]["signal"], order["stop"]["seconds"])
            elif what == "load":
                self.load()
            elif what == "signal":
                for each in order["names"]:
                    self.signal(each, order["signal"])
            elif what == "kill":
                for each in order["names"]:
                    self.kill(each)
        except Exception as error:
            tell(event="failed", order=order, error=f"{type(error).__name__}: {error}")

    def load(self) -> None:
        """Load once what every engine needs, where engines are forked."""
        if LINUX:
            for module in _PRELOADED:
                importlib.import_module(module)
            gc.collect()
            gc.freeze()  # the forks then neither look through it again nor copy its pages
            # a fork of several threads is not sound
            self.loaded = len(list(Path("/proc/self/task").iterdir())) == 1
        tell(event="loaded", forks=self.loaded)

    def engine(self, name: str, arguments: list[str], log: str) -> None:
        """Start one engine."""
        if not self.loaded:
            self.process(name, [sys.executable, "-c", _ENGINE, *arguments], log)
            return
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_engine(guard, arguments, log)
        self.forks[name] = pid
        tell(event="started", name=name, pid=pid)

    def process(self, name: str, command: list[str], log: str) -> None:
        """Start any other process, as the leader of a session of its own."""
        with Path(log).open("ab") as out:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_end_with_guard if LINUX else None,  # noqa: PLW1509  # there are no threads here
            )
        self.popens[name] = started
        tell(event="started", name=name, pid=started.pid)

    def look(self) -> None:
        """Tell which processes have ended, and end what they left behind."""
        for name, started in list(self.popens.items()):
            code = started.poll()
            if code is not None:
                self.ended(name, started.pid, code)
        for name, pid in list(self.forks.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.ended(name, pid, os.waitstatus_to_exitcode(status))

    def ended(self, name: str, pid: int, code: int) -> None:
        """Forget a process that has ended, and kill the rest of its session."""
        self.popens.pop(name, None)
        self.forks.pop(name, None)
        self.stops.pop(name, None)
        _kill_session(pid)
        if LINUX:
            self.orphans()
        tell(event="ended", name=name, pid=pid, code=code)

    def orphans(self) -> None:
        """Kill what an ended process left behind in sessions of its own: it has become a child of
        this process, and is none of ours.
        """
        import psutil

        ours = {started.pid for started in self.popens.values()} | set(self.forks.values())
        for child in psutil.Process().children():
            if child.pid not in ours:
                with contextlib.suppress(psutil.Error, ChildProcessError):
                    _kill_tree(child.pid)
                    os.waitpid(child.pid, 0)

    def pid(self, name: str) -> int | None:
        """Return the process's number while it is not reaped, so that the number cannot belong to
        another.
        """
        started = self.popens.get(name)
        return self.forks.get(name) if started is None else started.pid

    def signal(self, name: str, number: int) -> None:
        """Send a signal to one process."""
        pid = self.pid(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, name: str) -> None:
        """End one process and its session at once."""
        pid = self.pid(name)
        if pid is not None:
            _kill_session(pid)

    def end(self) -> NoReturn:
        """Ask those to stop that want to be asked, kill everything below this process, and
        leave.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for name, (number, _) in self.stops.items():
            self.signal(name, number)
        for name, (_, seconds) in self.stops.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popens[name].wait(seconds)
        _kill_descendants()
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)


def _ready_reader() -> bytes | None:
    """Return what the input has, b"" at its end, None where nothing came within a tick."""
    return os.read(0, 1 << 16) if select.select([0], [], [], _TICK_SECONDS)[0] else None


def _blocking_reader() -> Callable[[], bytes | None]:
    """Return the same for Windows, where pipes cannot be waited for: a thread reads."""
    import queue
    import threading

    arrived: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        while data := os.read(0, 1 << 16):
            arrived.put(data)
        arrived.put(b"")

    threading.Thread(target=read, daemon=True).start()

    def next_data() -> bytes | None:
        try:
            return arrived.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            return None

    return next_data


def tell(**event: Any) -> None:
    """Write one event; with nobody to read it the end is near anyway."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _become_engine(guard: int, arguments: list[str], log: str) -> NoReturn:
    """Turn a fork of the guard into an engine; never returns."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before it could be watched
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")
        out, nothing = (
            os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600),
            os.open(os.devnull, os.O_RDONLY),
        )
        os.dup2(nothing, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        import numpy as np

        np.random.seed()  # every fork has inherited the same state; ``random`` sees to that itself
        sys.argv = ["ipengine", *arguments]
        from ipyparallel.engine.app import main

        main()
        os._exit(0)
    except SystemExit as leave:
        os._exit(leave.code if isinstance(leave.code, int) else 1)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def _end_with_guard() -> None:
    """Let a process about to start be asked to end, with its own children, should the guard be
    killed.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _kill_session(leader: int) -> None:
    """Kill a process and all of its session, DataLoader workers and the like."""
    if os.name == "nt":
        _kill_tree(leader)
        return
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):  # it is gone, or another user's by now
            kill(leader, signal.SIGKILL)


def _kill_tree(pid: int) -> None:
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                each.kill()


def _kill_descendants() -> None:
    """Kill all descendants, again and again until there is none: one may be starting another
    meanwhile.
    """
    import psutil

    own = psutil.Process()
    for _ in range(100):
        below = own.children(recursive=True)
        for each in below:
            with contextlib.suppress(psutil.Error):
                each.kill()
        if not psutil.wait_procs(below, timeout=0.1)[1] and not own.children(recursive=True):
            return


if __name__ == "__main__":
    Guard(sys.argv[1]).main()
