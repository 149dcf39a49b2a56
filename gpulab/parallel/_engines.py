"""Engines of one's own on this machine: a guard that starts and ends them, a controller, and a
client.

`_profiles` has the other kind, that of an ipyparallel profile, with the same methods.
"""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from gpulab.errors import RankError, advice
from gpulab.parallel._guarded import Guarded
from gpulab.parallel._hub import Controller, connect, unregister

if TYPE_CHECKING:
    from gpulab.parallel._profiles import ProfileEngines

Progress = Callable[[float, str], None]

# Loading torch takes 2 s on an idle machine and a minute on one that is overcrowded or reads it
# from a network disk.
START_SECONDS = 180.0
_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.02


# What `Ranks` and the calls on them work with.
Engines: TypeAlias = "LocalEngines | ProfileEngines"


class LocalEngines:
    """Engines on this machine, watched over by a guard.

    Attributes
    ----------
    client : ipyparallel.Client
        Connected to the controller.
    ids : tuple of int
        The controller's number of each engine, by index. They go on counting when engines are
        renewed, so they are no ranks.
    """

    def __init__(self, n: int, threads: int) -> None:
        self.n, self.threads = n, threads
        self.client: Any = None
        self.ids: tuple[int, ...] = ()
        self.address = "127.0.0.1"  # of the controller
        self.guarded: Guarded | None = None
        self._controller: Controller | None = None
        self._helpers: list[Any] = []
        self._generation = 0

    def start(self, progress: Progress) -> None:
        """Start the guard, the controller and the engines, and connect.

        Raises
        ------
        RankError
            If one of them does not start; nothing is left running.
        """
        import psutil

        progress(0.0, "starting the controller")
        self.guarded = guarded = Guarded(self.threads, weakref.WeakMethod(self._engine_ended))
        folder = guarded.folder
        for name in ("security", "log", "pid"):
            (folder / name).mkdir()
        guarded.order(
            "process",
            name="controller",
            command=_controller_command(folder),
            log=str(folder / "controller.log"),
        )
        guarded.order("load")
        file = folder / "security" / "ipcontroller-client.json"
        self._wait(file.exists, "the controller has not started", "controller.log")
        progress(0.1, "loading torch and the engines")
        self._wait(
            lambda: guarded.forks is not None,
            "the libraries of the engines were not loaded",
            "guard.log",
        )
        self._controller = Controller.read(folder / "security")
        try:
            self.client = connect(file)
        except RankError:
            self._fail("the controller does not answer", "waited for it", "controller.log")
        # Its heart, a process of its own, without which engines give up after a minute.
        self._helpers = psutil.Process(guarded.pids["controller"]).children()
        self._launch(progress, 0.5)

    def _launch(self, progress: Progress, fraction: float) -> None:
        """Start a generation of engines, and wait until they are registered."""
        guarded, client = self._guard(), self.client
        self._generation += 1
        old = set(client.ids)
        names = self._names()
        for name in names:
            arguments = [
                f"--profile-dir={guarded.folder}",
                "--log-level=30",
                "--IPEngine.enable_nanny=False",
            ]
            guarded.order(
                "engine", name=name, arguments=arguments, log=str(guarded.folder / f"{name}.log")
            )
        told = -1

        def all_here() -> bool:
            nonlocal told
            here = len(set(client.ids) - old)
            if here > told:
                told = here
                progress(
                    fraction + (0.9 - fraction) * here / self.n,
                    f"{here} of {self.n} engines are running",
                )
            return here >= self.n

        self._wait(all_here, "not all engines have started", f"{names[0]}.log", names)
        ids = sorted(set(client.ids) - old)
        order = {guarded.pids[name]: i for i, name in enumerate(names)}
        # In an environment of Windows the program that is started is a launcher, and the engine is
        # its child.
        places = [
            min(order.get(pid, self.n) for pid in pids)
            for pids in client[ids].apply_async(_pids).get(START_SECONDS)
        ]
        self.ids = tuple(engine for _, engine in sorted(zip(places, ids, strict=True)))

    def deaths(self) -> dict[int, str]:
        """Return which engines have ended, by index, and how; all of them where the guard or the
        controller is gone.
        """
        guarded, lost = self._guard(), self._lost()
        if lost:
            return dict.fromkeys(range(self.n), f"ended with {lost}")
        return {
            i: ending(guarded.ends[name])
            for i, name in enumerate(self._names())
            if name in guarded.ends
        }

    def interrupt(self, indices: Sequence[int]) -> None:
        """Interrupt some engines: by a signal, on Windows, where any signal ends a process, by a
        message.
        """
        if sys.platform == "win32":
            targets = [self.ids[i] for i in indices if self.ids[i] in self.client.ids]
            if targets:
                self.client.send_signal(signal.SIGINT, targets=targets, block=False)
        elif self._guard().alive:
            self._guard().order(
                "signal", names=[self._names()[i] for i in indices], signal=int(signal.SIGINT)
            )

    def renew(self, progress: Progress) -> None:
        """End all engines and start new ones, with a new guard and controller where these are gone
        too.
        """
        guarded = self._guard()
        if self._lost():
            self.stop()
            self.start(progress)
            return
        names = self._names()
        guarded.order("kill", names=names)
        self._wait(
            lambda: all(name in guarded.ends for name in names),
            "the old engines could not be ended",
            "guard.log",
            seconds=_KILL_SECONDS,
        )
        self._until_forgotten()
        progress(0.2, "starting new engines")
        self._launch(progress, 0.2)

    def _lost(self) -> str:
        """Return what the engines depend on and is gone; "" where all is there."""
        if not self._guard().alive:
            return "the process that watches over the engines"
        return (
            "the controller"
            if "controller" in self._guard().ends or any(map(_has_ended, self._helpers))
            else ""
        )

    def _engine_ended(self, name: str) -> None:
        """Tell the controller that an engine is gone, so that everybody who waits for it hears of
        it: ``%%px`` too.
        """
        names = self._names()
        if name in names and self._controller is not None and len(self.ids) == self.n:
            unregister(self._controller, self.ids[names.index(name)])

    def _until_forgotten(self) -> None:
        end = time.monotonic() + _KILL_SECONDS
        while set(self.ids) & set(self.client.ids) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End everything; a second call does nothing."""
        client, self.client = self.client, None
        try:
            if client is not None:
                client.close()
        finally:  # also where a second interrupt meets the client's end
            if self.guarded is not None:
                self.guarded.close()

    def _guard(self) -> Guarded:
        assert self.guarded is not None
        return self.guarded

    def _names(self) -> list[str]:
        return [f"engine {self._generation}.{index}" for index in range(self.n)]

    def _wait(
        self,
        condition: Callable[[], bool],
        failed: str,
        log: str,
        names: Sequence[str] = (),
        seconds: float = START_SECONDS,
    ) -> None:
        """Wait for a condition, as long as the controller and the named engines live."""
        guarded = self._guard()
        end = time.monotonic() + seconds
        while not condition():
            gone = next((name for name in ("controller", *names) if name in guarded.ends), None)
            if gone is None and guarded.alive and not guarded.failures and time.monotonic() < end:
                with guarded.changed:
                    guarded.changed.wait(_POLL_SECONDS)
                continue
            if gone is not None:
                words, log = f"{gone} {ending(guarded.ends[gone])}", f"{gone}.log"
            elif not guarded.alive:
                words, log = "the process that starts them has ended", "guard.log"
            elif guarded.failures:
                words = guarded.failures[-1]
            else:
                words = f"no answer within {seconds:.0f} s"
            self._fail(failed, words, log)

    def _fail(self, failed: str, words: str, log: str) -> NoReturn:
        last = last_line(self._guard().folder / log)
        raise RankError(
            f"cluster: {failed} ({words}{f'; its last output: {last}' if last else ''}); expected "
            f"{self.n} engines on this machine. "
            + advice(
                words + last,
                "Free some memory or processor time and start it again; `gpulab doctor` looks at "
                "the installation.",
            )
        )


def _has_ended(process: Any) -> bool:
    import psutil

    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _pids() -> tuple[int, int]:
    """Return the number of this process and of its parent."""
    import os

    return os.getpid(), os.getppid()


def _controller_command(folder: Path) -> list[str]:
    """Return the command of a controller for this machine alone: its own folder, free ports,
    threads in place of eight processes.
    """
    return [
        sys.executable,
        "-m",
        "ipyparallel.controller",
        f"--profile-dir={folder}",
        "--ip=127.0.0.1",
        "--nodb",
        "--usethreads",
        "--log-level=40",
        "--IPController.broadcast_scheduler_depth=0",
        # An engine counts as registered after its first heartbeat: so a short period. The guard
        # tells of deaths, so that a heart that a crowded machine holds up for a while is no reason
        # to give an engine up.
        "--HeartMonitor.period=500",
        "--HeartMonitor.max_heartmonitor_misses=240",
    ]


def ending(code: int) -> str:
    """Return how a process ended, in words, from its exit code (negative: the signal).

    Examples
    --------
    >>> ending(3), ending(-11)
    ('left with exit code 3', 'was ended by signal 11 (SIGSEGV)')
    """
    if code >= 0:
        return f"left with exit code {code}"
    name = next(
        (f"{-code} ({known.name})" for known in signal.Signals if known == -code), str(-code)
    )
    why = ", which the system sends when memory runs out" if -code == 9 else ""
    return f"was ended by signal {name}{why}"


def last_line(path: Path, most: int = 200) -> str:
    """Return the last line of a log that says something; "" where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:most] for line in reversed(lines) if line.strip()), "")
