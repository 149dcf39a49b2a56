"""Engines of an ipyparallel profile: those of a controller that runs already, or new ones through
the profile's launchers.

A profile is a folder that says how a site starts engines (Slurm, PBS, SSH, MPI); docs/clusters.md
has working ones. Where a controller of the profile runs, its engines are used and left running.
Else ``ipcluster`` starts engines as the profile says, below the same guard that watches over local
ones, and is asked to stop them in the end, so that jobs are canceled in their queue.
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpulab.errors import InputError, RankError
from gpulab.parallel import _hub, _rank
from gpulab.parallel._engines import Progress, last_line
from gpulab.parallel._guarded import Guarded

_ATTACH_SECONDS = 5.0  # a controller that runs answers at once
_ENGINES_SECONDS = 60.0  # engines of a controller that runs may still be on their way
_QUEUE_SECONDS = 600.0  # a batch system may make its jobs wait
_STOP_SECONDS = 20.0
_IDLE_SECONDS = 3.0
_POLL_SECONDS = 0.1
_CONFIGURATION = "ipcluster_config.py"
_HOST = "__import__('socket').gethostname()"


class ProfileEngines:
    """Engines of a profile.

    Attributes
    ----------
    client : ipyparallel.Client
        Connected to the profile's controller.
    ids : tuple of int
        The controller's number of each engine, those of one machine together.
    address : str
        The controller's address, as engines reach it.
    """

    def __init__(self, n: int, profile: str) -> None:
        self.n, self.profile = n, profile
        self.client: Any = None
        self.ids: tuple[int, ...] = ()
        self.address = "127.0.0.1"
        self._guarded: Guarded | None = None

    def start(self, progress: Progress) -> None:
        """Use the profile's controller, or start one and engines as the profile says.

        Raises
        ------
        InputError
            If there is no such profile.
        RankError
            If no controller answers and the profile cannot start one, or if too few engines start.
        """
        folder = find_profile(self.profile)
        file = folder / "security" / "ipcontroller-client.json"
        if file.exists():
            progress(0.1, f"looking for the controller of profile {self.profile}")
            try:
                self.client = _hub.connect(file, _ATTACH_SECONDS)
            except RankError:  # the file of a controller that is gone
                if not (folder / _CONFIGURATION).exists():
                    raise
        if self.client is None:
            file = self._launch(folder, progress)
        self.address = controller_address(file)
        self._take(progress, _ENGINES_SECONDS if self._guarded is None else _QUEUE_SECONDS)

    def _launch(self, folder: Path, progress: Progress) -> Path:
        """Start ``ipcluster`` below a guard; return the file that its controller writes."""
        if not (folder / _CONFIGURATION).exists():
            raise RankError(
                f"cluster: profile {self.profile} has neither a running controller nor a "
                f"{_CONFIGURATION} to start engines with; "
                f"expected one of them. Run `ipcluster start --profile={self.profile} "
                f"--n={self.n}`, or write the file: docs/clusters.md."
            )
        progress(0.1, f"starting engines as profile {self.profile} says")
        self._guarded = guarded = Guarded(threads=1, end_seconds=_STOP_SECONDS + 10)
        name = f"gpulab-{secrets.token_hex(4)}"
        command = [
            sys.executable,
            "-m",
            "ipyparallel.cluster",
            "start",
            f"--profile-dir={folder}",
            f"--cluster-id={name}",
            f"--n={self.n}",
        ]
        stop = {"signal": int(signal.SIGINT), "seconds": _STOP_SECONDS}
        guarded.order(
            "process",
            name="ipcluster",
            command=command,
            log=str(guarded.folder / "ipcluster.log"),
            stop=stop,
        )
        file = folder / "security" / f"ipcontroller-{name}-client.json"
        self._wait(file.exists, _QUEUE_SECONDS, "no controller has started")
        self.client = _hub.connect(file)
        return file

    def _take(self, progress: Progress, seconds: float) -> None:
        """Wait for engines, and put those of one machine side by side."""
        told = -1

        def enough() -> bool:
            nonlocal told
            here = len(self.client.ids)
            if here > told:
                told = here
                progress(
                    0.3 + 0.5 * min(1.0, here / self.n), f"{here} of {self.n} engines are running"
                )
            return here >= self.n

        self._wait(enough, seconds, "too few engines have started")
        self.ids = self._idle(self.client.ids)
        if len(self.ids) < self.n:
            raise RankError(
                f"cluster: {len(self.ids)} of the engines of profile {self.profile} answer; "
                f"expected {self.n}, idle. "
                f"Start more with `ipcluster engines --profile={self.profile} "
                f"--n={self.n - len(self.ids)}`, or wait until they are."
            )
        self.ids = self.ids[: self.n]

    def _idle(self, engines: Sequence[int]) -> tuple[int, ...]:
        """Return those that answer at once, machine by machine."""
        jobs = {engine: self.client[engine].apply_async(eval, _HOST) for engine in engines}
        end = time.monotonic() + _IDLE_SECONDS
        while not all(job.done() for job in jobs.values()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        hosts = {
            engine: job.get(0) for engine, job in jobs.items() if job.done() and job.successful()
        }
        return tuple(sorted(hosts, key=lambda engine: (hosts[engine], engine)))

    def deaths(self) -> dict[int, str]:
        """Return which engines have left their controller, by index."""
        if self._guarded is not None and (
            "ipcluster" in self._guarded.ends or not self._guarded.alive
        ):
            return dict.fromkeys(range(len(self.ids)), "ended with ipcluster, which had started it")
        here = set(self.client.ids)
        return {
            i: "has left its controller: its process or its machine has ended"
            for i, engine in enumerate(self.ids)
            if engine not in here
        }

    def interrupt(self, indices: Sequence[int]) -> None:
        """Send SIGINT to some engines, through their controller."""
        targets = [self.ids[i] for i in indices if self.ids[i] in self.client.ids]
        if targets:
            self.client.send_signal(signal.SIGINT, targets=targets, block=False)

    def renew(self, progress: Progress) -> None:
        """Start all anew where this has started them; else go on with other engines of the
        controller, where it has enough.
        """
        if self._guarded is not None:
            self.stop()
            self._guarded = None
            self.start(progress)
            return
        progress(0.2, "looking for engines that answer")
        engines = self._idle(self.client.ids)
        if len(engines) < self.n:
            raise RankError(
                f"recover: {len(engines)} of the engines of profile {self.profile} answer; "
                f"expected {self.n}. Start others with `ipcluster "
                f"engines --profile={self.profile} --n={self.n - len(engines)}`; engines that hang "
                "must be ended on their machines."
            )
        self.ids = engines[: self.n]

    def stop(self) -> None:
        """Let go of engines that were there, and end those that were started; a second call does
        nothing.
        """
        client, self.client = self.client, None
        try:
            if client is not None:
                if self._guarded is None:
                    self._leave(client)
                client.close()
        finally:  # also where a second interrupt meets the client's end
            if self._guarded is not None:
                self._guarded.close()

    def _leave(self, client: Any) -> None:
        """Close the process group on engines that live on."""
        here = [engine for engine in self.ids if engine in client.ids]
        jobs = [client[engine].apply_async(_rank.leave_engine) for engine in here]
        end = time.monotonic() + _IDLE_SECONDS
        while not all(job.done() for job in jobs) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)

    def _wait(self, condition: Callable[[], bool], seconds: float, failed: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            guarded = self._guarded
            gone = guarded is not None and ("ipcluster" in guarded.ends or not guarded.alive)
            if not gone and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
                continue
            why = "ipcluster has ended" if gone else f"waited {seconds:.0f} s"
            last = "" if guarded is None else last_line(guarded.folder / "ipcluster.log")
            raise RankError(
                f"cluster: {failed} for profile {self.profile} "
                f"({why}{f'; its last output: {last}' if last else ''}); expected "
                f"{self.n} engines. Check the output of `ipcluster start --profile={self.profile} "
                f"--n={self.n}` says."
            )


def find_profile(name: str) -> Path:
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
        f"{', '.join(known) or 'none yet'}. "
        f"Make it with `ipython profile create --parallel --profile={name}`; docs/clusters.md has "
        "its contents."
    )


def controller_address(file: Path) -> str:
    """Return where engines reach a controller, from its connection file."""
    found = json.loads(file.read_text(encoding="utf-8"))
    address = str(found["interface"]).removeprefix("tcp://")
    return str(found.get("location") or "127.0.0.1") if address in {"*", "0.0.0.0"} else address
