"""A cluster of real ranks: ipyparallel engines that share a process group.

Engines are what clusters run (`ipyparallel <https://ipyparallel.readthedocs.io>`_ starts them
through Slurm, PBS, SSH or MPI as well as on this machine), so the cells of a notebook are the same
on a laptop and on a cluster. This module holds the ranks together: which engine is which rank,
where they meet, and whether their libraries agree. It computes nothing itself.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from gpulab import _given
from gpulab.errors import (
    GpulabError,
    InputError,
    OutOfMemoryError,
    RankDiedError,
    RankError,
    message_of,
    shown,
)
from gpulab.parallel import _rank
from gpulab.parallel._call import Call, named
from gpulab.parallel._observe import CollectiveCall
from gpulab.parallel.engines import Engines, LocalEngines, ProfileEngines, Progress
from gpulab.parallel.script import pack
from gpulab.units import format_bytes

_OPEN_SECONDS = 60.0
_CLOSE_SECONDS = 3.0
_LIBRARIES = ("torch", "ipyparallel", "gpulab", "cloudpickle")
# An expression, since a function could not be found by an engine without gpulab; nothing heavy is
# imported. A library that runs from its source, as on a machine where nothing was installed, has no
# metadata; then the module itself is asked.
_FACTS = (
    "(lambda sys, socket, find, seek: {'python': '%d.%d' % sys.version_info[:2], 'host': "
    "socket.gethostname(), "
    "**{name: next((d.version for d in find(name=name)), 'none' if seek(name) is None else "
    "__import__(name).__version__) "
    f"for name in {_LIBRARIES!r}}}}})"
    "(__import__('sys'), __import__('socket'), "
    "__import__('importlib.metadata').metadata.distributions, "
    "__import__('importlib.util').util.find_spec)"
)


# A rank with torch, gloo and a small model: 270 to 355 MB resident were seen (`ps`), of which ranks
# forked on one Linux machine share most.
RANK_BYTES = 350 * 2**20
_LONGEST_TIMEOUT_SECONDS = 86_400.0
_MOST_THREADS = 4096
_SUPERVISOR_SECONDS, _TICK_SECONDS = 2.0, 0.05
_BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")


def cluster(
    n: int = 2,
    *,
    profile: str | None = None,
    timeout_seconds: float = 20.0,
    threads: int = 1,
    backend: str | None = None,
    port: int = 0,
    progress: Progress | None = None,
) -> Ranks:
    """Return ranks that start when entered, and end when left.

    Parameters
    ----------
    n : int
        How many ranks.
    profile : str, optional
        The name of an ipyparallel profile: its running controller is used, or its launchers (Slurm,
        PBS, SSH, MPI) start engines. Left out, engines start on this machine. docs/clusters.md has
        working profiles.
    timeout_seconds : float
        How long a collective waits for a rank that does not arrive.
    threads : int
        Threads of torch in each rank.
    backend : str, optional
        "gloo", "nccl" or "cpu:gloo,cuda:nccl"; by default the last where every rank has a GPU of
        its own, else "gloo".
    port : int
        The port at which the ranks meet on rank 0's machine, for firewalls that leave only some
        open; 0 takes a free one.
    progress : callable, optional
        Called with a fraction in 0-1 and a text while the cluster starts; by default the text is
        printed in interactive sessions.

    Returns
    -------
    Ranks
        Not started yet: use ``with``, or ``.start()`` and ``.stop()``.

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    ::

        with gl.parallel.cluster(n=4) as ranks:
            ranks.run(function, 3)              # function(3) on each rank; one result a rank, in
                                                rank order
    """
    if not _given.is_whole(n) or n < 1:
        raise InputError(
            f"cluster: n={shown(n)}; expected a whole number of ranks, 1 or more. Pass one."
        )
    if profile is not None and (not isinstance(profile, str) or not profile):
        raise InputError(
            f"cluster: profile={shown(profile)}; expected the name of an ipyparallel profile. Pass "
            "one, or leave it out."
        )
    if not _given.is_finite(timeout_seconds) or not 0 < timeout_seconds <= _LONGEST_TIMEOUT_SECONDS:
        raise InputError(
            f"cluster: timeout_seconds={shown(timeout_seconds)}; expected seconds above 0, a day "
            "at most. Pass for example 20."
        )
    threads = _given.whole("cluster", "threads", threads, 1, _MOST_THREADS)
    if backend is not None:
        _given.word("cluster", "backend", backend, _BACKENDS)
    port = _given.whole("cluster", "port", port, 0, 65_535)
    progress = _given.callback("cluster", "progress", progress) or _print
    return Ranks(int(n), profile, float(timeout_seconds), threads, backend, port, progress)


class Ranks:
    """Engines with ranks and a process group; made by `cluster`.

    Attributes
    ----------
    n : int
        How many ranks.
    hosts : tuple of str
        Each rank's machine.
    log : tuple of tuple of CollectiveCall
        For each rank, the collectives that it entered in the last call, in order; empty for a rank
        that did not answer.
    px : bool
        Whether ``%%px`` reaches these ranks once they start; off for an instrument's own ranks, so
        that ``%%px`` stays with the learner's.
    """

    px = True

    def __init__(
        self,
        n: int,
        profile: str | None,
        timeout_seconds: float,
        threads: int,
        backend: str | None,
        port: int,
        progress: Progress,
    ) -> None:
        self.n, self.timeout_seconds = n, timeout_seconds
        self.hosts: tuple[str, ...] = ()
        self.log: tuple[tuple[CollectiveCall, ...], ...] = ()
        self._profile, self._progress = profile, progress
        self._threads, self._backend, self._port = threads, backend, port
        self._engines: Engines | None = None
        self._broken: str | None = None
        self._busy = threading.Lock()
        self._stop_asked = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether the ranks run and are in step, as far as is known, so that ``run`` can be
        called.
        """
        return self._engines is not None and self._broken is None and not self._engines.deaths()

    def __repr__(self) -> str:
        ended = "stopped" if self.hosts else "not started"
        state = ended if self._engines is None else "ready" if self.ready else "broken"
        return (
            f"<Ranks: {self.n} on {len(set(self.hosts)) or 'no'} "
            f"machine{'' if len(set(self.hosts)) == 1 else 's'}, {state}>"
        )

    def __enter__(self) -> Ranks:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> Ranks:
        """Start the engines and open the process group; does nothing if they are started already.

        Raises
        ------
        OutOfMemoryError
            If so many ranks do not fit into the free memory.
        RankError
            If the engines do not start; nothing is left running.
        """
        if self._engines is not None:
            return self
        if self._profile is None:
            self._check_memory()
            engines: Engines = LocalEngines(self.n, self._threads)
        else:  # other machines' memory is theirs to know
            engines = ProfileEngines(self.n, self._profile)
        self._engines = engines
        try:
            engines.start(self._progress)
            self._open_group()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process that was started; a second call does nothing."""
        engines, self._engines, self._broken = self._engines, None, None
        if engines is not None:
            engines.stop()

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_seconds: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call a function on every rank.

        Parameters
        ----------
        function : callable
            Travels by value (cloudpickle), with what it uses from the notebook. In it
            ``torch.distributed`` is initialized: ``dist.get_rank()`` and ``dist.get_world_size()``
            give the rank's place.
        *args, **kwargs
            The function's arguments, the same on every rank: numbers, numpy arrays, tensors on the
            CPU, anything that can be pickled.
        timeout_seconds : float, optional
            The limit for the whole call; no limit by default. How long a *collective* waits is set
            in `cluster`.

        Returns
        -------
        list
            One result a rank, in rank order.

        Raises
        ------
        RankError
            If a rank raised: the message names it, and its own error is the cause.
        RankDiedError
            If a rank's process ended: within 5 s, with how it ended and where the others wait.
        CollectiveTimeoutError
            If ranks waited in a collective until the timeout: within 5 s after it, with the ranks
            that did not arrive.
        StoppedError
            If ``interrupt`` was called meanwhile.
        KeyboardInterrupt
            On an interrupt, after the ranks were interrupted too.
        """
        if timeout_seconds is not None and (
            not _given.is_finite(timeout_seconds) or timeout_seconds <= 0
        ):
            raise InputError(
                f"run: timeout_seconds={shown(timeout_seconds)}; expected seconds above 0. Pass a "
                "number, or leave it out."
            )
        payload = pack(function, args, kwargs)
        if not self._busy.acquire(blocking=False):
            raise RankError(
                "run: another call is in progress on these ranks; expected one at a time. Wait for "
                "it, or call interrupt()."
            )
        try:
            engines = self._ready()
            self._stop_asked.clear()
            return self._call(engines, payload, timeout_seconds)
        finally:
            self._busy.release()

    def _call(self, engines: Engines, payload: bytes, limit_seconds: float | None) -> list[Any]:
        import cloudpickle

        self._broken = "a call was cut off"
        call = Call(engines, payload, self.timeout_seconds, limit_seconds)
        try:
            error = call.wait(self._stop_asked)
        finally:
            self.log = tuple(
                call.outcomes[rank].calls if rank in call.outcomes else () for rank in range(self.n)
            )
            for rank in sorted(call.outcomes):
                for line in call.outcomes[rank].printed.splitlines():
                    print(f"[rank {rank}] {line}")
            if call.in_step:
                self._broken = None
        if self._broken is not None:
            self._broken = (
                "in the last call they entered different numbers of collectives"
                if error is None
                else _short(error)
            )
        if error is not None:
            raise error
        return [cloudpickle.loads(call.outcomes[rank].value) for rank in range(self.n)]

    def interrupt(self) -> None:
        """End the call in progress, from another thread: the ranks are interrupted, and ``run``
        raises StoppedError.
        """
        self._stop_asked.set()

    def recover(self) -> Ranks:
        """Make the ranks usable again after a failure: a new process group on a new port, and new
        engines where one is gone or hangs.

        If all engines are alive and idle, they are kept, with what ``%%px`` defined in them;
        otherwise all are replaced.

        Returns
        -------
        Ranks
            These, ready; within 30 s on this machine.

        Raises
        ------
        RankError
            If that fails; nothing is left running, and ``start()`` starts new engines.
        """
        if self._engines is None:
            return self.start()
        if not self._busy.acquire(blocking=False):
            raise RankError(
                "recover: a call is in progress on these ranks; expected none. Call interrupt() "
                "first, or wait for it."
            )
        try:
            self._broken = "recover() was cut off"
            if not self._reopen():
                self._engines.renew(self._progress)
                self._open_group()
        except BaseException:
            self.stop()
            raise
        finally:
            self._busy.release()
        return self

    def _reopen(self) -> bool:
        """Try to go on with the engines that are there; return whether that went well."""
        engines = self._engines
        assert engines is not None
        if engines.deaths():
            return False
        self._progress(0.1, "closing the old process group")
        try:
            if not _close_group(engines):
                return False
            self._open_group()
        except GpulabError:
            return False
        return True

    def _open_group(self) -> None:
        engines = self._engines
        assert engines is not None
        self._progress(0.9, "opening the process group")
        self.hosts = _open_group(
            engines, self.timeout_seconds, self._threads, self._backend, self._port
        )
        if self.px and _in_notebook():  # ``%%px`` reaches exactly these engines
            view = engines.client[list(engines.ids)]
            view.block = True
            view.activate()
        self._broken = None
        self._progress(1.0, f"{named(range(self.n))} ready")

    def _ready(self) -> Engines:
        """Return the engines, if they can serve."""
        engines = self._engines
        if engines is None:
            raise RankError(
                "run: the ranks are not running; expected a started cluster. Use `with "
                "cluster(...) as ranks:`, or call start()."
            )
        deaths, gone = (
            engines.deaths(),
            [rank for rank, engine in enumerate(engines.ids) if engine not in engines.client.ids],
        )
        end = time.monotonic() + _SUPERVISOR_SECONDS
        # ipyparallel has heard of it before the supervisor, which knows how
        while gone and not deaths and time.monotonic() < end:
            time.sleep(_TICK_SECONDS)
            deaths = engines.deaths()
        deaths = deaths or dict.fromkeys(gone, "ended without an error message")
        if deaths:
            how = "; ".join(f"rank {rank} {words}" for rank, words in deaths.items())
            raise RankDiedError(
                f"run: {how}; expected every rank to be alive. Call recover() to go on.",
                tuple(deaths),
            )
        if self._broken is not None:
            raise RankError(
                f"run: the ranks are out of step ({self._broken}); expected them in step. Call "
                "recover()."
            )
        return engines

    def _check_memory(self) -> None:
        from gpulab.devices import host_facts

        free = host_facts.available_memory_bytes()
        if self.n * RANK_BYTES > free:
            raise OutOfMemoryError(
                f"cluster: {self.n} ranks need about {format_bytes(self.n * RANK_BYTES)} "
                f"({format_bytes(RANK_BYTES)} each) and {format_bytes(free)} are free; expected "
                f"them to fit. Ask for {max(1, free // RANK_BYTES)} at most, or free some memory."
            )

    def export_script(
        self, path: str | Path, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Path:
        """Write the same work as a script for ``torchrun``; see `_script`."""
        from gpulab.parallel.script import export_script

        return export_script(
            path,
            function,
            args,
            kwargs,
            n=self.n,
            timeout_seconds=self.timeout_seconds,
            threads=self._threads,
        )


def _open_group(
    engines: Engines, timeout_seconds: float, threads: int, backend: str | None, port: int
) -> tuple[str, ...]:
    """Give the engines ranks in their order, and open a process group among them; return each
    rank's machine.

    Raises
    ------
    RankError
        If the engines' libraries differ, or if the group cannot be formed.
    InputError
        If the port is in use.
    """
    n = len(engines.ids)
    facts = _gather(engines, [(eval, _FACTS)] * n, "report their versions")
    _check_versions(facts)
    hosts = tuple(each["host"] for each in facts)
    gpus = _gather(engines, [(_rank.prepare, threads)] * n, "load torch")
    places = [
        _rank.Place(rank, n, hosts[:rank].count(host), hosts.count(host))
        for rank, host in enumerate(hosts)
    ]
    backend = _choose_backend(
        backend, [count - place.local_world_size for count, place in zip(gpus, places, strict=True)]
    )
    towards = "127.0.0.1" if len(set(hosts)) == 1 else str(engines.address)
    (meeting,) = _gather(engines, [(_rank.address_towards, towards)], "find their address")
    try:
        (port,) = _gather(engines, [(_rank.open_store, meeting, port)], "open the port")
    except RankError as error:
        if "in use" in str(error.__cause__).lower() or "EADDRINUSE" in str(error.__cause__):
            raise InputError(
                f"cluster: port {port} is in use on rank 0's machine; expected a free one. Pass "
                "another, or leave port out."
            ) from error
        raise
    opening = (meeting, port, timeout_seconds, backend)
    calls = [(_rank.open_group, place, *opening) for place in places]
    _gather(engines, calls, "open the process group")
    return hosts


def _close_group(engines: Engines) -> bool:
    """Let every rank leave the process group; return whether all did, which those who hang do
    not.
    """
    jobs = [engines.client[engine].apply_async(_rank.close_group) for engine in engines.ids]
    return _answered(engines, jobs, _CLOSE_SECONDS) and all(job.successful() for job in jobs)


def _answered(engines: Engines, jobs: list[Any], seconds: float) -> bool:
    """Wait for jobs; return whether all are done before an engine dies or the time is over."""
    end = time.monotonic() + seconds
    while not all(job.done() for job in jobs):
        if time.monotonic() > end or engines.deaths():
            return False
        time.sleep(_TICK_SECONDS)
    return True


def _check_versions(facts: list[dict[str, Any]]) -> None:
    """Refuse engines that cannot work together.

    Raises
    ------
    RankError
        Naming the first library that differs or is missing, and which ranks have what.
    """
    for library in ("python", *_LIBRARIES):
        ranks = defaultdict(list)
        for rank, found in enumerate(facts):
            ranks[re.sub(r"\+.*", "", found[library])].append(rank)
        if len(ranks) > 1 or (library in {"torch", "gpulab"} and "none" in ranks):
            who = ", ".join(f"{version} on {named(those)}" for version, those in ranks.items())
            raise RankError(
                f"cluster: the engines have different versions of {library} ({who}); expected the "
                "same everywhere. Start them all from one environment."
                if len(ranks) > 1
                else f"cluster: the engines have no {library}; expected it to be installed. "
                "Install gpulab where they run."
            )


def _choose_backend(asked: str | None, spare_gpus: list[int]) -> str:
    """Return the backend: what was asked for, else NCCL beside gloo where each rank can have a GPU
    of its own, else gloo.

    Parameters
    ----------
    asked : str or None
    spare_gpus : list of int
        For each rank, the GPUs of its machine less the ranks there: below 0 where there is not one
        for each.

    Raises
    ------
    InputError
        If NCCL was asked for and a rank would have no GPU of its own, which NCCL refuses.
    """
    poor = [rank for rank, spare in enumerate(spare_gpus) if spare < 0]
    if asked is None:
        return "gloo" if poor else "cpu:gloo,cuda:nccl"
    if "nccl" in asked and poor:
        raise InputError(
            f"cluster: backend {asked!r} needs a GPU for each rank, and there are none left for "
            f"{named(poor)}; expected one for each. Pass backend='gloo', or leave it out."
        )
    return asked


def _gather(engines: Engines, calls: list[tuple[Any, ...]], doing: str) -> list[Any]:
    """Call one thing on each of the first engines, at once; return the results.

    Raises
    ------
    RankError
        If an engine raises, dies, or does not answer.
    """
    jobs = [
        engines.client[engine].apply_async(*call)
        for engine, call in zip(engines.ids, calls, strict=False)
    ]
    if not _answered(engines, jobs, _OPEN_SECONDS):
        deaths = engines.deaths()
        late = [rank for rank, job in enumerate(jobs) if not job.done()]
        what = (
            "; ".join(f"rank {rank} {how}" for rank, how in deaths.items())
            or f"{named(late)} did not answer in {_OPEN_SECONDS:.0f} s"
        )
        raise RankError(
            f"cluster: {what} when the ranks had to {doing}; expected every rank to answer. Start "
            "the cluster again.",
            tuple(deaths or late),
        )
    results = []
    for rank, job in enumerate(jobs):
        try:
            results.append(job.get(1.0))
        except Exception as error:
            raise RankError(
                f"cluster: rank {rank} could not {doing} ({message_of(error)}); expected it to. "
                "Check that its machine reaches the others, and that gpulab is installed there.",
                (rank,),
            ) from error
    return results


def _short(error: BaseException) -> str:
    """Return what happened, without what to do."""
    return message_of(error, 120).removeprefix("run: ").split(";")[0]


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _print(fraction: float, text: str) -> None:
    """Tell a learner how far the start is: in a notebook or a terminal, not in a log."""
    if _in_notebook():
        print(f"cluster: {text}", flush=True)
