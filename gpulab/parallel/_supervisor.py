"""The supervisor: starts a cluster's processes, and ends them all when the kernel is gone.

``Supervisor`` is the kernel's handle; it starts this file as a program. Orders and events go
through a pipe between the two. When the pipe ends (the kernel was killed or restarted), when the
parent process has changed, or on an order, the program kills all processes that it started and
their descendants, removes the cluster's folder, and exits.

Where the system can fork safely (Linux), engines are forked from the supervisor after it has loaded
torch and ipyparallel once: an engine then starts in a tenth of a second instead of seconds, and the
ranks share the libraries' memory. The supervisor itself computes nothing, has one thread, and never
touches a GPU, so it can be forked safely. On other systems each engine is started as a new process.

Tested on Linux only. On Windows there are no sessions, and a process keeps its parent, so only the
end of the pipe shows there that the kernel is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import gpulab
from gpulab.errors import RankError

_LINUX = sys.platform.startswith("linux")
# A supervisor that has not ended everything within this time is killed itself. Its children then
# die with it (Linux) or are looked up in ``started``.
_END_SECONDS = 10.0
_TICK_SECONDS = 0.05  # between checks for ended processes, which take 0.2 % of one core
# prctl's option numbers, from linux/prctl.h: set the signal that this process gets when its parent
# dies; make this process the new parent of all orphans among its descendants.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# When memory runs out, the system kills an engine before it kills the notebook's kernel (-1000 to
# 1000; /proc/PID/oom_score_adj).
_OOM_SCORE = 500
# The libraries that every engine needs, loaded once. Without this, torch._dynamo would be loaded by
# the first operator that a dispatch mode or an optimizer sees.
LIBRARIES = "libraries"
_PRELOADED = (
    "torch.distributed.tensor",
    "torch._dynamo",
    "ipykernel.ipkernel",
    "ipyparallel.engine.app",
    "cloudpickle",
    "gpulab.parallel._rank",
)


class Supervisor:
    """The kernel's handle of a supervisor: the processes that it has started, and how they ended.

    The supervisor ends everything when this object is dropped, when the interpreter ends, and on
    ``close``.

    Attributes
    ----------
    folder : Path
        Of the cluster; logs are in it.
    started, ended : dict of str to int
        By name: the processes' ids, and the exit codes of those that ended (negative: a signal).
        The name "libraries" is in ``started`` once the engines' libraries are loaded.
    failed : dict of str to str
        The orders that the supervisor could not follow, and why.
    """

    def __init__(
        self,
        threads: int,
        on_end: Callable[[], Callable[[str], None] | None],
    ) -> None:
        temporary = tempfile.TemporaryDirectory(
            prefix="gpulab-cluster-", ignore_cleanup_errors=True
        )
        self.folder, self._on_end = Path(temporary.name), on_end
        self.started: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        root = str(Path(gpulab.__file__).resolve().parent.parent)
        path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
        self._pipe, theirs = Pipe()
        handle: dict[str, Any] = {"pass_fds": [theirs.fileno()]}
        if sys.platform == "win32":
            os.set_handle_inheritable(theirs.fileno(), True)
            handle = {"close_fds": False}
        with (self.folder / "supervisor.log").open("ab") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(self.folder), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # makes gpulab importable, and keeps libraries from starting threads on import
                env=os.environ
                | {
                    "PYTHONPATH": path,
                    "OMP_NUM_THREADS": str(threads),
                    "OPENBLAS_NUM_THREADS": "1",
                    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
                },
                **handle,
            )
        threading.Thread(
            target=_listen,
            args=(weakref.ref(self), self._pipe),
            daemon=True,
            name="gpulab-supervisor",
        ).start()
        self.close = weakref.finalize(self, _end, self._process, self._pipe, temporary)

    @property
    def alive(self) -> bool:
        """Whether the supervisor itself is running."""
        return self._process.poll() is None

    def order(self, what: str, **values: Any) -> None:
        """Give one order: the name of a method of `_SupervisorProcess` and its arguments.

        Raises
        ------
        RankError
            If the supervisor is gone.
        """
        try:
            self._pipe.send((what, values))
        except (OSError, ValueError) as error:
            raise RankError(
                "cluster: the process that watches over the engines is gone, and the engines with "
                "it; expected it to live as long as the cluster. Call recover()."
            ) from error

    def take(self, event: str, name: str, value: Any) -> None:
        """Record one event: something has "started", "ended" or "failed"."""
        getattr(self, event)[name] = value
        on_end = self._on_end()
        if event == "ended" and on_end is not None:
            on_end(name)


def _listen(supervisor: weakref.ref[Supervisor], pipe: Connection) -> None:
    """Record events until the supervisor ends. Between events there is no reference to the
    ``Supervisor``, so that a dropped cluster is garbage-collected and thereby ended.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            event = pipe.recv()
            here = supervisor()
            if here is not None:
                here.take(*event)
            del here
    here = supervisor()
    # the supervisor was killed, and could not end the processes that it had started
    if here is not None and here._process.wait() != 0:
        for name in here.started.keys() - here.ended.keys() - {LIBRARIES}:
            _kill(here.started[name])


def _end(
    process: subprocess.Popen[bytes],
    pipe: Connection,
    temporary: tempfile.TemporaryDirectory[str],
) -> None:
    """Order the supervisor to end everything, and wait until it has."""
    with contextlib.suppress(OSError):
        pipe.send(("end", {}))
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    pipe.close()
    temporary.cleanup()


class _Fork:
    """A forked engine, with ``pid`` and ``poll`` as in ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit code (negative: a signal), or None while it runs."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None


class _SupervisorProcess:
    """The processes by name, and the loop that watches over them; its public methods are the
    orders.
    """

    def __init__(self, folder: Path, pipe: Connection) -> None:
        self._folder, self._pipe, self._parent = folder, pipe, os.getppid()
        self._processes: dict[str, subprocess.Popen[bytes] | _Fork] = {}
        self._forks = False

    def serve(self) -> NoReturn:
        """Follow orders until the kernel is gone."""
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # an interrupt of the kernel is meant for the ranks, which get it through the controller
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        if _LINUX:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            while os.getppid() == self._parent:
                if self._pipe.poll(_TICK_SECONDS):
                    self._follow(*self._pipe.recv())
                self._look()
        finally:  # also if the pipe has ended
            self.end()

    def _follow(self, what: str, values: dict[str, Any]) -> None:
        """Follow one order. An error is reported, never raised, since the whole cluster would end
        with the supervisor.
        """
        try:
            getattr(self, what)(**values)
        except Exception as error:
            self._report("failed", what, f"{type(error).__name__}: {error}")

    def _report(self, event: str, name: str, value: Any) -> None:
        """Send one event. If the pipe is broken the kernel is gone, and ``serve`` will end
        everything.
        """
        with contextlib.suppress(OSError):
            self._pipe.send((event, name, value))

    def load(self) -> None:
        """Load the libraries that every engine needs, if engines are forked."""
        import psutil

        if _LINUX:
            gc.disable()  # garbage collection would take a fifth of the time, and free nothing
            for module in _PRELOADED:
                importlib.import_module(module)
            gc.freeze()  # collections in the forks then skip these objects: their pages stay shared
            gc.enable()
            # a process with several threads cannot be forked safely
            self._forks = psutil.Process().num_threads() == 1
        self._report("started", LIBRARIES, os.getpid())

    def start(self, name: str, module: str, arguments: list[str]) -> None:
        """Start one of ipyparallel's programs as the leader of its own session: as a fork, once
        ``load`` has found that safe, else as a new process.
        """
        log = self._folder / f"{name}.log"
        if self._forks:
            supervisor = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._pipe.close()
                _become(module, supervisor, arguments, log)
            self._processes[name] = _Fork(pid)
        else:
            with log.open("ab") as out:
                self._processes[name] = subprocess.Popen(
                    # -P, as in the fork: a file beside the notebook hides no standard module
                    [sys.executable, "-P", "-m", module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    # the program is asked to end, with its own children, if the supervisor is
                    # killed; preexec_fn is safe, since there are no threads here
                    preexec_fn=(  # noqa: PLW1509
                        (lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)) if _LINUX else None
                    ),
                )
        self._report("started", name, self._processes[name].pid)

    def kill(self, names: Sequence[str]) -> None:
        """End processes and their sessions at once. A process that has ended is not reaped while it
        has a name here, so its id cannot belong to another process.
        """
        for name in self._processes.keys() & set(names):
            _kill(self._processes[name].pid)

    def _look(self) -> None:
        """Report which processes have ended, and end the processes that they left behind: the rest
        of their session, and those in sessions of their own, which became children of this process.
        """
        import psutil

        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self._processes[name]
            _kill(process.pid)
            ours = {each.pid for each in self._processes.values()}
            for child in psutil.Process().children() if _LINUX else ():
                if child.pid not in ours:
                    _kill(child.pid)
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(child.pid, 0)
            self._report("ended", name, code)

    def end(self) -> NoReturn:
        """Kill all descendants of this process, remove the folder, and exit. The killing is
        repeated, since a process may start another one meanwhile.
        """
        import psutil

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        own = psutil.Process()
        for _ in range(100):
            below = own.children(recursive=True)
            for each in below:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            if not psutil.wait_procs(below, timeout=0.1)[1] and not own.children(recursive=True):
                break
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


def _become(module: str, supervisor: int, arguments: list[str], log: Path) -> NoReturn:
    """Turn a fork of the supervisor into a program; never returns."""
    code = 1
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # the supervisor died before the signal was set
            os._exit(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")
        out = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
            os.dup2(source, target)
        import numpy as np

        np.random.seed()  # every fork inherits the same state; ``random`` reseeds itself
        sys.argv = [module, *arguments]
        importlib.import_module(f"{module}.app").main()
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _kill(pid: int) -> None:
    """Kill a process, its descendants (DataLoader workers and the like), and its whole session if
    it leads one.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                each.kill()
    if os.name != "nt":
        with contextlib.suppress(OSError):  # it is gone, or another user's by now
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    # the connection's class on this system
    _SupervisorProcess(Path(sys.argv[1]), type(Pipe()[0])(int(sys.argv[2]))).serve()
