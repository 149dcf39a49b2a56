"""Engines that ranks run on: new ones on this machine, or those of an ipyparallel profile.

A profile is a folder that says how a site starts engines (Slurm, PBS, SSH, MPI); docs/clusters.md
has working ones. ``ipcluster start`` starts a controller and engines as it says; they are used here
and left running.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpulab.errors import InputError, RankError, advice, message_of
from gpulab.parallel import _rank
from gpulab.parallel._supervisor import LIBRARIES, Supervisor
from gpulab.units import plural

Progress = Callable[[float, str], None]

# Loading torch takes 2 s on an idle machine and a minute on one that is overcrowded or reads it
# from a network disk.
_START_SECONDS = 180.0
_CONNECT_SECONDS = 60.0  # of a controller that has just started, on such a machine
_ATTACH_SECONDS = 10.0  # one that runs answers at once; the file may be of one that is gone
_ENGINES_SECONDS = 60.0  # engines of a controller that runs may still be on their way
_IDLE_SECONDS = 3.0
_POLL_SECONDS = 0.02
_FIX = (
    "Free some memory or processor time and start it again; `gpulab doctor` looks at the "
    "installation."
)
_HOST = "__import__('socket').gethostname()"


class _Engines:
    """What both kinds have in common.

    Each also has ``start`` and ``renew``, which find or start engines, ``deaths``, which says by
    index how engines have ended, and ``stop``.

    Attributes
    ----------
    client : ipyparallel.Client
        Connected to the controller.
    ids : tuple of int
        The controller's number of each engine, in rank order. They go on counting when engines are
        renewed, so they are no ranks.
    address : str
        The controller's address, as engines reach it.
    """

    def __init__(self, n: int) -> None:
        self.n, self.address = n, "127.0.0.1"
        self.client: Any = None
        self.ids: tuple[int, ...] = ()

    def interrupt(self, indices: Sequence[int]) -> None:
        """Send SIGINT to some engines, through their controller."""
        targets = [self.ids[i] for i in indices if self.ids[i] in self.client.ids]
        if targets:
            self.client.send_signal(signal.SIGINT, targets=targets, block=False)

    def _connect(self, file: Path, seconds: float, fix: str) -> None:
        """Become a client of the controller that wrote a connection file, until this object is
        dropped; ``fix`` is what to do where none answers.

        Raises
        ------
        RankError
            If no controller answers.
        """
        import ipyparallel as ipp

        try:
            self.client = ipp.Client(str(file), timeout=seconds)
        except (ipp.error.TimeoutError, TimeoutError, OSError, json.JSONDecodeError) as error:
            raise RankError(
                f"cluster: no controller answers at the address in {file} ({message_of(error)}); "
                f"expected one within {seconds:.0f} s. {fix}"
            ) from error
        # its thread would go on, and look for the controller for good
        weakref.finalize(self, self.client.close)


class LocalEngines(_Engines):
    """Engines on this machine, watched over by a supervisor."""

    def __init__(self, n: int, threads: int) -> None:
        super().__init__(n)
        self.threads = threads
        self._supervisor: Any = None  # of what this has started
        self._helpers: list[Any] = []  # of the controller, which cannot do without them

    def start(self, progress: Progress) -> None:
        """Start the supervisor, the controller and the engines, and connect.

        Raises
        ------
        RankError
            If one of them does not start.
        """
        import psutil

        progress(0.0, "starting the controller")
        self._supervisor = supervisor = Supervisor(
            self.threads, weakref.WeakMethod(self._engine_ended)
        )
        self._helpers = []
        folder = supervisor.folder
        supervisor.order(
            "start",
            name="controller",
            module="ipyparallel.controller",
            arguments=[
                f"--profile-dir={folder}",
                # For this machine alone: free ports, threads in place of eight processes.
                *("--ip=127.0.0.1", "--nodb", "--usethreads", "--log-level=40"),
                "--IPController.broadcast_scheduler_depth=0",
                # An engine counts as registered after its first heartbeat: so a short period. The
                # supervisor reports deaths, so that a heart that a crowded machine holds up for a
                # while is no reason to give an engine up.
                *("--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=240"),
            ],
        )
        supervisor.order("load")

        file = folder / "security" / "ipcontroller-client.json"
        self._wait(
            # to its end
            lambda: file.exists() and file.read_text(encoding="utf-8").rstrip().endswith("}"),
            "the controller has not started",
            "controller.log",
        )
        progress(0.1, "loading torch and the engines")
        self._wait(
            lambda: LIBRARIES in supervisor.started,
            "the libraries of the engines were not loaded",
            "supervisor.log",
        )
        self._connect(file, _CONNECT_SECONDS, _FIX)
        # Its heart, a process of its own, without which engines give up after a minute.
        self._helpers = psutil.Process(supervisor.started["controller"]).children()
        progress(0.5, f"waiting for {plural(self.n, 'engine')}")
        self._launch()

    def _launch(self) -> None:
        """Start new engines, and wait until they are registered."""
        first = self.ids[-1] + 1 if self.ids else 0
        self.ids = tuple(range(first, first + self.n))
        for engine in self.ids:
            arguments = [
                f"--profile-dir={self._supervisor.folder}",
                "--log-level=30",
                "--IPEngine.enable_nanny=False",
                f"--IPEngine.id={engine}",
            ]
            self._supervisor.order(
                "start", name=f"engine {engine}", module="ipyparallel.engine", arguments=arguments
            )
        self._wait(
            lambda: set(self.ids) <= set(self.client.ids),
            "too few engines have started",
            f"engine {first}.log",
        )

    def _wait(self, running: Callable[[], bool], failed: str, log: str) -> None:
        """Wait until something is running, as long as there is what it depends on.

        Raises
        ------
        RankError
            If something has ended, or the time is over; with the last line of a log.
        """
        end = time.monotonic() + _START_SECONDS
        while not running():
            time.sleep(_POLL_SECONDS)
            why = "; ".join(self._supervisor.failed.values())
            if lost := self._lost():
                why, log = f"{lost} has ended", f"{lost.removeprefix('the ')}.log"
            elif ended := self.deaths():
                index, how = next(iter(ended.items()))
                why, log = f"engine {self.ids[index]} {how}", f"engine {self.ids[index]}.log"
            elif time.monotonic() > end:
                why = f"no answer within {_START_SECONDS:.0f} s"
            if why:
                last = last_line(self._supervisor.folder / log)
                said = f"; its last output: {last}" if last else ""
                raise RankError(
                    f"cluster: {failed} on this machine ({why}{said}); expected {self.n} engines. "
                    f"{advice(why + last, _FIX)}"
                )

    def _lost(self) -> str:
        """Return what has ended that all engines depend on; "" if nothing has."""
        if not self._supervisor.alive:
            return "the supervisor"
        gone = "controller" in self._supervisor.ended or any(map(_has_ended, self._helpers))
        return "the controller" if gone else ""

    def deaths(self) -> dict[int, str]:
        """Return which engines have ended, by index, and how; all of them where what they depend on
        is gone.
        """
        if lost := self._lost():
            return dict.fromkeys(range(self.n), f"ended with {lost}")
        ended, names = self._supervisor.ended, [f"engine {engine}" for engine in self.ids]
        return {index: ending(ended[name]) for index, name in enumerate(names) if name in ended}

    def stop(self) -> None:
        """End all that was started; a second call does nothing."""
        client, self.client = self.client, None
        try:
            if client is not None:
                client.close()
        finally:  # also where a second interrupt meets the client's end
            if self._supervisor is not None:
                self._supervisor.close()

    def renew(self, progress: Progress) -> None:
        """End all engines and start new ones, with new processes around them where these are gone
        too.
        """
        if self._lost():
            self.stop()
            self.ids = ()
            self.start(progress)
            return
        self._supervisor.order("kill", names=[f"engine {engine}" for engine in self.ids])
        progress(0.2, "starting new engines")
        self._launch()

    def _engine_ended(self, name: str) -> None:
        """Tell the controller that an engine is gone, as the engine's nanny does; it then tells
        everybody who waits for it: ``%%px`` too.
        """
        _, _, engine = name.partition("engine ")
        client = self.client
        if engine and client is not None:
            content = {"id": int(engine)}
            with contextlib.suppress(OSError):  # it is closed, as everything ends
                client._send(client._query_stream, "unregistration_request", content=content)


class ProfileEngines(_Engines):
    """Engines of a profile's running controller, those of one machine together."""

    def __init__(self, n: int, profile: str) -> None:
        super().__init__(n)
        self.profile = profile
        self._lost = threading.Event()  # the connection to the controller

    def start(self, progress: Progress) -> None:
        """Connect to the profile's controller, and wait for engines.

        Raises
        ------
        InputError
            If there is no such profile.
        RankError
            If no controller runs, or too few engines answer.
        """
        file = _find_profile(self.profile) / "security" / "ipcontroller-client.json"
        if not file.exists():
            raise RankError(
                f"cluster: no controller of profile {self.profile} runs; expected one with "
                f"{plural(self.n, 'engine')}. Run `ipcluster start --profile={self.profile} "
                f"--n={self.n}` in a terminal: docs/clusters.md."
            )
        progress(0.1, f"looking for the controller of profile {self.profile}")
        start = f"Start it with `ipcluster start --profile={self.profile} --n={self.n}`"
        self._connect(file, _ATTACH_SECONDS, f"{start}, and check that this machine can reach it.")
        self._lost = threading.Event()  # not the one of a connection before
        self.client._io_loop.add_callback(self._listen)
        to = json.loads(file.read_text(encoding="utf-8"))
        self.address = str(to["interface"]).removeprefix("tcp://")
        if self.address in {"*", "0.0.0.0"}:
            self.address = str(to.get("location") or "127.0.0.1")
        progress(0.3, f"waiting for {plural(self.n, 'engine')}")
        end = time.monotonic() + _ENGINES_SECONDS
        while len(self.client.ids) < self.n and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self._take("cluster", "Start more", "or wait until they are")

    def _listen(self) -> None:
        """Let zmq tell when the connection to the controller ends, in the client's own thread."""
        import zmq
        from zmq.eventloop.zmqstream import ZMQStream

        lost = self._lost
        monitor = self.client._query_socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        ZMQStream(monitor, self.client._io_loop).on_recv(lambda _: lost.set())

    def _take(self, function: str, more: str, otherwise: str) -> None:
        """Choose engines that answer at once, those of one machine side by side."""
        jobs = {engine: self.client[engine].apply_async(eval, _HOST) for engine in self.client.ids}
        self.client.wait(list(jobs.values()), _IDLE_SECONDS)
        hosts = {
            engine: job.get(0) for engine, job in jobs.items() if job.done() and job.successful()
        }
        if len(hosts) < self.n:
            raise RankError(
                f"{function}: {len(hosts)} of the engines of profile {self.profile} answer; "
                f"expected {self.n}, idle. {more} with `ipcluster engines --profile={self.profile} "
                f"--n={self.n - len(hosts)}`, {otherwise}."
            )
        self.ids = tuple(sorted(hosts, key=lambda engine: (hosts[engine], engine))[: self.n])

    def deaths(self) -> dict[int, str]:
        """Return which engines the controller has lost; all of them where it is gone itself."""
        if self._lost.is_set():
            return dict.fromkeys(range(self.n), "ended with the controller")
        here = set(self.client.ids) if self.ids else set()
        return {
            index: "has left its controller: its process or its machine has ended"
            for index, engine in enumerate(self.ids)
            if engine not in here
        }

    def renew(self, progress: Progress) -> None:
        """Go on with other engines of the controller, where it has enough; where the connection to
        it has ended, with those of the profile's controller by now.
        """
        if self._lost.is_set():
            self.stop()
            self.start(progress)
            return
        progress(0.2, "looking for engines that answer")
        self._take("recover", "Start others", "and end engines that hang on their machines")

    def stop(self) -> None:
        """Close the process group on the engines, which live on; a second call does nothing."""
        client, self.client = self.client, None
        if client is not None:
            here = [engine for engine in self.ids if engine in client.ids]
            jobs = [client[engine].apply_async(_rank.close_group) for engine in here]
            client.wait(jobs, _IDLE_SECONDS)
            # If the connection ended while nobody reads its monitor, zmq's I/O thread, the only one
            # of this process, would block for good.
            client._io_loop.add_callback(client._query_socket.disable_monitor)
            client.close()


Engines = LocalEngines | ProfileEngines


def _find_profile(name: str) -> Path:
    """Return a profile's folder.

    Raises
    ------
    InputError
        If there is none of that name, with those that there are.
    """
    from ipyparallel.util import get_ipython_dir

    home = Path(get_ipython_dir())
    for place in (Path.cwd(), home):
        if (place / f"profile_{name}").is_dir():
            return place / f"profile_{name}"
    known = sorted(
        path.name.removeprefix("profile_") for path in home.glob("profile_*") if path.is_dir()
    )
    raise InputError(
        f"cluster: there is no ipyparallel profile {name!r} in {home}; expected one of: "
        f"{', '.join(known) or 'none yet'}. Make it with `ipython profile create --parallel "
        f"--profile={name}`; docs/clusters.md has its contents."
    )


def _has_ended(process: Any) -> bool:
    import psutil

    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def ending(code: int) -> str:
    """Return how a process ended, in words, from its exit code (negative: the signal).

    Examples
    --------
    >>> ending(3), ending(-11)
    ('left with exit code 3', 'was ended by signal 11 (SIGSEGV)')
    """
    if code >= 0:
        return f"left with exit code {code}"
    names = {int(known): known.name for known in signal.Signals}
    name = f"{-code} ({names[-code]})" if -code in names else str(-code)
    why = ", which the system sends when memory runs out" if -code == 9 else ""
    return f"was ended by signal {name}{why}"


def last_line(path: Path) -> str:
    """Return the last line of a log that says something; "" where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
