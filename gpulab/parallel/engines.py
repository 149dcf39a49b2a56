"""Engines that ranks run on: new ones on this machine, or those of an ipyparallel profile.

A profile is a folder that says how a site starts engines (Slurm, PBS, SSH, MPI); docs/clusters.md
has working profiles. ``ipcluster start`` starts a controller and engines as a profile says. This
module uses them and leaves them running.
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

# Loading torch takes 2 s on an idle machine, and a minute on a machine that is overloaded or reads
# torch from a network disk.
_START_SECONDS = 180.0
_CONNECT_SECONDS = 60.0  # to a controller that has just started, on such a machine
_ATTACH_SECONDS = 10.0  # a running controller answers at once; one that is gone may leave its file
_ENGINES_SECONDS = 60.0  # engines of a running controller may still be starting
_IDLE_SECONDS = 3.0
_POLL_SECONDS = 0.02
_FIX = (
    "Free some memory or processor time and start it again; `gpulab doctor` checks the "
    "installation."
)
_HOST = "__import__('socket').gethostname()"


class _Engines:
    """The common part of both kinds of engines.

    Each kind also has ``start`` and ``renew``, which find or start engines, ``deaths``, which
    returns by index how engines have ended, and ``stop``.

    Attributes
    ----------
    client : ipyparallel.Client
        Connected to the controller.
    ids : tuple of int
        The controller's number for each engine, in rank order. Engines that replace others get new
        numbers, so these numbers are not ranks.
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
        """Connect to the controller that wrote a connection file, until this object is dropped;
        ``fix`` is the advice in the error if no controller answers.

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
        # otherwise the client's thread would go on looking for the controller forever
        weakref.finalize(self, self.client.close)


class LocalEngines(_Engines):
    """Engines on this machine, watched over by a supervisor."""

    def __init__(self, n: int, threads: int) -> None:
        super().__init__(n)
        self.threads = threads
        self._supervisor: Any = None  # of the processes that this object has started
        self._helpers: list[Any] = []  # child processes that the controller needs

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
                # An engine counts as registered only after its first heartbeat, so the period is
                # short. The supervisor reports deaths, so heartbeats that a busy machine delays are
                # no reason to give up an engine.
                *("--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=240"),
            ],
        )
        supervisor.order("load")

        file = folder / "security" / "ipcontroller-client.json"
        self._wait(
            # whether the file is complete
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
        # The controller's heartbeat is a process of its own; without it engines give up after a
        # minute. In a virtual environment on Windows, the process that was started is a launcher,
        # and the controller itself is its child.
        self._helpers = psutil.Process(supervisor.started["controller"]).children(recursive=True)
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
        """Wait until ``running()`` is true, as long as the processes that it depends on are alive.

        Raises
        ------
        RankError
            If an order has failed, a process has ended, or the time is over; the message has the
            last line of a log.
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
        """Return the process that has ended and that all engines depend on; "" if none has."""
        if not self._supervisor.alive:
            return "the supervisor"
        gone = "controller" in self._supervisor.ended or any(map(_has_ended, self._helpers))
        return "the controller" if gone else ""

    def deaths(self) -> dict[int, str]:
        """Return how engines have ended, by index. If a process that all engines depend on is gone,
        all of them count as ended.
        """
        if lost := self._lost():
            return dict.fromkeys(range(self.n), f"ended with {lost}")
        ended, names = self._supervisor.ended, [f"engine {engine}" for engine in self.ids]
        return {index: ending(ended[name]) for index, name in enumerate(names) if name in ended}

    def stop(self) -> None:
        """End everything that was started; a second call does nothing."""
        client, self.client = self.client, None
        try:
            if client is not None:
                client.close()
        finally:  # also if a second interrupt comes while the client closes
            if self._supervisor is not None:
                self._supervisor.close()

    def renew(self, progress: Progress) -> None:
        """End all engines and start new ones. If the supervisor or the controller is gone, start
        these anew too.
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
        """Report to the controller that an engine is gone, as the engine's nanny would. The
        controller then informs every client that waits for the engine, including ``%%px``.
        """
        _, _, engine = name.partition("engine ")
        client = self.client
        if engine and client is not None:
            content = {"id": int(engine)}
            with contextlib.suppress(OSError):  # the client is closed while everything ends
                client._send(client._query_stream, "unregistration_request", content=content)


class ProfileEngines(_Engines):
    """Engines of a profile's running controller; engines of one machine get neighboring ranks."""

    def __init__(self, n: int, profile: str) -> None:
        super().__init__(n)
        self.profile = profile
        self._lost = threading.Event()  # set when the connection to the controller ends

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
                f"cluster: no controller of profile {self.profile} is running; expected one with "
                f"{plural(self.n, 'engine')}. Run `ipcluster start --profile={self.profile} "
                f"--n={self.n}` in a terminal (docs/clusters.md)."
            )
        progress(0.1, f"looking for the controller of profile {self.profile}")
        start = f"Start it with `ipcluster start --profile={self.profile} --n={self.n}`"
        self._connect(file, _ATTACH_SECONDS, f"{start}, and check that this machine can reach it.")
        self._lost = threading.Event()  # a new event, since an earlier connection may set the old
        self.client._io_loop.add_callback(self._listen)
        to = json.loads(file.read_text(encoding="utf-8"))
        self.address = str(to["interface"]).removeprefix("tcp://")
        if self.address in {"*", "0.0.0.0"}:
            self.address = str(to.get("location") or "127.0.0.1")
        progress(0.3, f"waiting for {plural(self.n, 'engine')}")
        end = time.monotonic() + _ENGINES_SECONDS
        while len(self.client.ids) < self.n and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self._take("cluster", "Start more", "or wait until the others are idle")

    def _listen(self) -> None:
        """Have zmq report, in the client's own thread, when the connection to the controller
        ends.
        """
        import zmq
        from zmq.eventloop.zmqstream import ZMQStream

        lost = self._lost
        monitor = self.client._query_socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        ZMQStream(monitor, self.client._io_loop).on_recv(lambda _: lost.set())

    def _take(self, function: str, more: str, otherwise: str) -> None:
        """Choose engines that answer within ``_IDLE_SECONDS``, and order them so that engines of
        one machine get neighboring ranks.
        """
        jobs = {engine: self.client[engine].apply_async(eval, _HOST) for engine in self.client.ids}
        self.client.wait(list(jobs.values()), _IDLE_SECONDS)
        hosts = {
            engine: job.get(0) for engine, job in jobs.items() if job.done() and job.successful()
        }
        if len(hosts) < self.n:
            raise RankError(
                f"{function}: {plural(len(hosts), 'engine')} of profile {self.profile} answered; "
                f"expected {self.n} that are idle. {more} with `ipcluster engines "
                f"--profile={self.profile} --n={self.n - len(hosts)}`, {otherwise}."
            )
        self.ids = tuple(sorted(hosts, key=lambda engine: (hosts[engine], engine))[: self.n])

    def deaths(self) -> dict[int, str]:
        """Return how engines have ended, by index: those that the controller has lost, or all of
        them if the controller itself is gone.
        """
        if self._lost.is_set():
            return dict.fromkeys(range(self.n), "ended with the controller")
        here = set(self.client.ids) if self.ids else set()
        return {
            index: "has left its controller: its process or its machine has ended"
            for index, engine in enumerate(self.ids)
            if engine not in here
        }

    def renew(self, progress: Progress) -> None:
        """Choose engines of the controller that answer, if it has enough. If the connection to the
        controller has ended, connect to the profile's current controller instead.
        """
        if self._lost.is_set():
            self.stop()
            self.start(progress)
            return
        progress(0.2, "looking for engines that answer")
        self._take("recover", "Start others", "and end those that hang, on their machines")

    def stop(self) -> None:
        """Close the process group on the engines, and disconnect from them; they keep running. A
        second call does nothing.
        """
        client, self.client = self.client, None
        if client is not None:
            here = [engine for engine in self.ids if engine in client.ids]
            jobs = [client[engine].apply_async(_rank.close_group) for engine in here]
            client.wait(jobs, _IDLE_SECONDS)
            # If the connection ended while no thread reads its monitor, zmq's I/O thread (the only
            # one of this process) would block forever.
            client._io_loop.add_callback(client._query_socket.disable_monitor)
            client.close()


Engines = LocalEngines | ProfileEngines


def _find_profile(name: str) -> Path:
    """Return a profile's folder.

    Raises
    ------
    InputError
        If no profile has that name; the message lists the existing profiles.
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
        f"cluster: there is no ipyparallel profile {name!r} in {home}; expected an existing one "
        f"({', '.join(known) or 'there are none yet'}). Make it with `ipython profile create "
        f"--parallel --profile={name}`; docs/clusters.md has its contents."
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
    ('ended with exit code 3', 'was ended by signal 11 (SIGSEGV)')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    names = {int(known): known.name for known in signal.Signals}
    name = f"{-code} ({names[-code]})" if -code in names else str(-code)
    why = ", which the system sends when memory runs out" if -code == 9 else ""
    return f"was ended by signal {name}{why}"


def last_line(path: Path) -> str:
    """Return the last line of a log that is not blank; "" if there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
