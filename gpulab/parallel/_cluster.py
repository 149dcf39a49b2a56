"""A cluster of real ranks: ipyparallel engines that share a process group.

Engines are what clusters run (`ipyparallel <https://ipyparallel.readthedocs.io>`_ starts them
through Slurm, PBS, SSH or MPI as well as on this machine), so the cells of a notebook are the same
on a laptop and on a cluster. This module holds the ranks together: which engine is which rank,
where they meet, and whether their libraries agree; it sends a call to all of them, waits for it,
and diagnoses what went wrong. It computes nothing itself.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from gpulab import _validate
from gpulab.devices import host_facts
from gpulab.errors import (
    CollectiveTimeoutError,
    GpulabError,
    InputError,
    OutOfMemoryError,
    RankDiedError,
    RankError,
    StoppedError,
    advice,
    message_of,
    shown,
)
from gpulab.parallel import _rank
from gpulab.parallel.engines import Engines, LocalEngines, ProfileEngines, Progress
from gpulab.parallel.rank_results import CollectiveCall, Outcome, Sight
from gpulab.parallel.script import export_script, pack
from gpulab.units import format_bytes, plural

_OPEN_SECONDS = 60.0
# Engines that have had a group open the next one in 0.1 to 4 s, even beside six busy programs. A
# rank that is stopped meanwhile must be given up early enough for `Ranks.recover` to keep its 30 s.
_OPEN_AGAIN_SECONDS = 10.0
_CLOSE_SECONDS = 3.0
# A rank with torch, gloo and a small model had 270 to 355 MB resident (`ps`). Ranks forked on one
# Linux machine share most of it.
RANK_BYTES = 350 * 2**20
_SECONDS = partial(_validate.within, low=1e-3, high=86_400.0)
_MOST_THREADS, _MOST_RANKS = 4096, 10**6
_TICK_SECONDS = 0.05
_BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")


@_validate.arguments(
    n=partial(_validate.whole, low=1, high=_MOST_RANKS),
    timeout_seconds=_SECONDS,
    threads=partial(_validate.whole, low=1, high=_MOST_THREADS),
    backend=partial(_validate.word, known=_BACKENDS),
    port=partial(_validate.whole, low=0, high=65_535),
    progress=_validate.callback,
)
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
    """Return ranks that start when their ``with`` block is entered, and end when it is left.

    Parameters
    ----------
    n : int
        How many ranks.
    profile : str, optional
        The name of an ipyparallel profile whose controller and engines are running already:
        ``ipcluster start`` starts them through Slurm, PBS, SSH or MPI. Without a profile, engines
        start on this machine. docs/clusters.md has working profiles.
    timeout_seconds : float
        How long a collective waits for a rank that does not arrive.
    threads : int
        Threads of torch in each rank.
    backend : str, optional
        "gloo", "nccl" or "cpu:gloo,cuda:nccl". The default is "cpu:gloo,cuda:nccl" if every rank
        has a GPU of its own, else "gloo".
    port : int
        The port on rank 0's machine at which the ranks meet, for firewalls that leave only some
        ports open; 0 takes a free port.
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
    return Ranks(n, profile, timeout_seconds, threads, backend, port, progress or _print)


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
        Whether ``%%px`` reaches these ranks once they start. It is False for ranks that an
        instrument starts for itself, so that ``%%px`` still reaches the learner's ranks.
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
        self._px: Any = None  # the view through which ``%%px`` reaches the engines
        self._busy = threading.Lock()
        self._stop_asked = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether ``run`` can be called: the ranks are running, are in step as far as is known, and
        have no cell of ``%%px`` in progress.
        """
        return (
            self._engines is not None
            and self._broken is None
            and not self._engines.deaths()
            and (self._px is None or not self._px.outstanding & self._px.client.outstanding)
        )

    def __repr__(self) -> str:
        ended = "stopped" if self.hosts else "not started"
        state = ended if self._engines is None else "ready" if self.ready else "broken"
        return (
            f"<Ranks: {self.n} on {len(set(self.hosts)) or 'no'} "
            f"machine{'' if len(set(self.hosts)) == 1 else 's'}, {state}>"
        )

    def __enter__(self) -> Ranks:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Ranks:
        """Start the engines and open the process group; does nothing if they are started already.

        Raises
        ------
        OutOfMemoryError
            If this number of ranks does not fit into the free memory.
        RankError
            If the engines do not start; nothing is left running.
        """
        if self._engines is not None:
            return self
        if self._profile is None:
            free = host_facts.available_memory_bytes()
            if self.n * RANK_BYTES > free:
                raise OutOfMemoryError(
                    f"cluster: {self.n} ranks need about {format_bytes(self.n * RANK_BYTES)} "
                    f"({format_bytes(RANK_BYTES)} each) and {format_bytes(free)} are free; "
                    "expected all of them to fit. "
                    f"{f'Pass n={free // RANK_BYTES}, or free' if free >= RANK_BYTES else 'Free'} "
                    "some memory."
                )
            engines: Engines = LocalEngines(self.n, self._threads)
        else:  # the free memory of other machines is not known here
            engines = ProfileEngines(self.n, self._profile)
        try:
            engines.start(self._progress)
            self._open_group(engines)
        except BaseException:
            engines.stop()
            raise
        self._engines = engines  # only now, since other threads may ask whether they are ready
        return self

    def stop(self) -> None:
        """End every process that was started; a second call does nothing."""
        engines, self._engines, self._broken = self._engines, None, None
        if engines is not None:
            engines.stop()

    @_validate.arguments(timeout_seconds=_validate.positive)
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
            It is sent by value (cloudpickle), with everything that it uses from the notebook.
            Inside it, ``torch.distributed`` is initialized: ``dist.get_rank()`` and
            ``dist.get_world_size()`` give the rank's place.
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
        InputError
            If ``function`` is not callable, or the call cannot be pickled.
        RankError
            If a rank raised: the message names the rank, and the rank's own error is the cause.
            Also if the ranks are not running, are busy with another call, or are out of step, or if
            ``timeout_seconds`` is over.
        RankDiedError
            If a rank's process ended. It is raised within 5 s; the message says how the process
            ended and where the other ranks wait.
        CollectiveTimeoutError
            If ranks waited in a collective until the timeout. It is raised within 5 s after the
            timeout; the message names the ranks that did not arrive.
        StoppedError
            If ``interrupt`` was called meanwhile.
        KeyboardInterrupt
            If this call is interrupted; the ranks are interrupted first.
        """
        payload = pack(function, args, kwargs)
        if not self._busy.acquire(blocking=False):
            raise RankError(
                "run: another call is in progress on these ranks; expected one at a time. Wait for "
                "it, or call interrupt()."
            )
        try:
            engines = self._engines
            if engines is None:
                raise RankError(
                    "run: the ranks are not running; expected a started cluster. Use `with "
                    "cluster(...) as ranks:`, or call start()."
                )
            _refuse_dead("run", engines)
            if self._px is not None:  # an interrupted cell takes a moment to end
                self._px.client.wait(list(self._px.outstanding), _IDLE_SECONDS)
            if not self.ready:
                _refuse_dead("run", engines)  # an engine's death may be known only now
                raise RankError(
                    f"run: the ranks are out of step ({self._broken}); expected them in step. Call "
                    "recover()."
                    if self._broken is not None
                    else "run: a cell of %%px has not ended on every rank; expected idle ranks. "
                    "Wait until it has, or call recover(), which ends ranks that hang."
                )
            self._stop_asked.clear()
            return self._call(engines, payload, timeout_seconds)
        finally:
            self._busy.release()

    def _call(self, engines: Engines, payload: bytes, limit_seconds: float | None) -> list[Any]:
        self._broken = "a call was cut off"
        call = Call(engines, [payload] * self.n, self.timeout_seconds, limit_seconds)
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
                "in the last call a collective failed, or they entered different numbers of them"
                if error is None
                else _happened(error)
            )
        if error is not None:
            raise error
        return call.results

    def interrupt(self) -> None:
        """End the call in progress, from another thread: the ranks are interrupted, and ``run``
        raises StoppedError.
        """
        self._stop_asked.set()

    def recover(self) -> Ranks:
        """Make the ranks usable again after a failure: open a new process group, and replace the
        engines if one is gone or hangs.

        If all engines are alive and idle, they are kept, with everything that ``%%px`` defined in
        them. Otherwise all engines on this machine are replaced; those of a profile are chosen
        anew, among the engines that answer.

        Returns
        -------
        Ranks
            This object, ready again; within 30 s on this machine.

        Raises
        ------
        RankError
            If that fails; nothing is left running, and ``start()`` starts new engines.
        """
        engines = self._engines
        if engines is None:
            return self.start()
        if not self._busy.acquire(blocking=False):
            raise RankError(
                "recover: a call is in progress on these ranks; expected none. Call interrupt() "
                "first, or wait for it."
            )
        try:
            self._broken = "recover() was cut off"
            try:
                self._progress(0.1, "closing the old process group")
                _gather(engines, [_rank.close_group] * self.n, "close the group", _CLOSE_SECONDS)
                self._open_group(engines, _OPEN_AGAIN_SECONDS)
            except GpulabError:  # an engine is gone or hangs
                engines.renew(self._progress)
                self._open_group(engines)
        except BaseException:
            self.stop()
            raise
        finally:
            self._busy.release()
        return self

    def _open_group(self, engines: Engines, seconds: float = _OPEN_SECONDS) -> None:
        """Give the engines ranks in their order, and open a process group among them; each of its
        steps may take this many seconds.

        Raises
        ------
        RankError
            If the engines' libraries differ, or if the group cannot be formed.
        InputError
            If NCCL was asked for and a rank would have no GPU of its own, which NCCL refuses.
        """
        self._progress(0.9, "opening the process group")
        n, backend = self.n, self._backend
        facts = _gather(engines, [partial(_rank.prepare, self._threads)] * n, "load torch", seconds)
        _check_versions([each["versions"] for each in facts])
        hosts = [each["host"] for each in facts]
        places = [
            {
                "RANK": rank,
                "WORLD_SIZE": n,
                "LOCAL_RANK": hosts[:rank].count(host),
                "LOCAL_WORLD_SIZE": hosts.count(host),
            }
            for rank, host in enumerate(hosts)
        ]
        # the ranks without a GPU of their own
        poor = [rank for rank in range(n) if facts[rank]["gpus"] < hosts.count(hosts[rank])]
        if backend is None:
            backend = "gloo" if poor else "cpu:gloo,cuda:nccl"
        elif "nccl" in backend and poor:
            raise InputError(
                f"cluster: backend {backend!r} needs a GPU for each rank, and {named(poor)} would "
                "share one or have none that NCCL can use; expected a GPU for each rank. Pass "
                "backend='gloo', or leave it out."
            )
        towards = "127.0.0.1" if len(set(hosts)) == 1 else str(engines.address)
        ((meeting, port),) = _gather(
            engines,
            [partial(_rank.meeting_place, towards, self._port)],
            f"open port {self._port}" if self._port else "find a free port",
            seconds,
        )
        group = (meeting, port, self.timeout_seconds, backend)
        calls = [partial(_rank.open_group, place, *group) for place in places]
        _gather(engines, calls, "open the process group", seconds)
        self.hosts = tuple(hosts)
        if self.px and _in_notebook():  # ``%%px`` reaches exactly these engines
            self._px = engines.client.direct_view(list(engines.ids), block=True)
            self._px.activate()
        self._broken = None
        self._progress(1.0, f"{named(range(n))} ready")

    def export_script(
        self, path: str | Path, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Path:
        """Write the call of a function on all ranks as a script for ``torchrun``.

        See ``gpulab.parallel.script.export_script``.
        """
        return export_script(
            path,
            function,
            args,
            kwargs,
            n=self.n,
            timeout_seconds=self.timeout_seconds,
            threads=self._threads,
        )


def _check_versions(versions: list[dict[str, str]]) -> None:
    """Refuse engines that cannot work together.

    Raises
    ------
    RankError
        If the ranks have different versions of a library. The message names the first such library
        and the ranks that have each version.
    """
    for library in versions[0]:
        have = [re.sub(r"\+.*", "", found[library]) for found in versions]
        if len(set(have)) > 1:
            who = ", ".join(
                f"{version} on {named([rank for rank, its in enumerate(have) if its == version])}"
                for version in dict.fromkeys(have)
            )
            raise RankError(
                f"cluster: the engines have different versions of {library} ({who}); expected the "
                "same everywhere. Start them all from one environment."
            )


def _refuse_dead(function: str, engines: Engines) -> None:
    """Refuse to make a call if an engine is gone.

    Raises
    ------
    RankDiedError
        If an engine is gone; the message says how it ended.
    """
    ids, end = engines.ids, time.monotonic() + _IDLE_SECONDS
    while gone := [rank for rank, engine in enumerate(ids) if engine not in engines.client.ids]:
        if engines.deaths() or time.monotonic() > end:
            break
        time.sleep(_TICK_SECONDS)  # how an engine ended becomes known a moment later
    deaths = dict.fromkeys(gone, "ended without an error message") | engines.deaths()
    if deaths:
        how = "; ".join(f"rank {rank} {words}" for rank, words in deaths.items())
        raise RankDiedError(
            f"{function}: {how}; expected every rank to be alive. {_GO_ON}", tuple(deaths)
        )


def _happened(error: RankError) -> str:
    """Return the first part of an error's message: what happened, without the advice."""
    return message_of(error).removeprefix("run: ").split(";")[0]


def _gather(
    engines: Engines,
    calls: Sequence[Callable[[], Any]],
    doing: str,
    seconds: float,
) -> list[Any]:
    """Make the first call on the first engine, the second on the second, and so on, all at the same
    time; return the results.

    Raises
    ------
    RankError
        If an engine raises, dies, or does not answer.
    """
    _refuse_dead("cluster", engines)
    payloads = [pack(each, (), {}) for each in calls]
    call = Call(engines, payloads, seconds, seconds, together=True)
    error = call.wait(threading.Event())
    if error is not None:
        raise RankError(
            f"cluster: the ranks could not {doing} ({_happened(error)}); expected all to succeed. "
            + advice(
                message_of(error), "Check that their machines reach each other and have gpulab."
            )
            + " Then start the cluster again.",
            error.ranks,
        ) from error
    return call.results


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _print(fraction: float, text: str) -> None:
    """Print how far the start is, but only in IPython (a notebook or a terminal), not in a log."""
    if _in_notebook():
        print(f"cluster: {text}", flush=True)


# -- one call on every rank: send it, wait for it, and diagnose what went wrong

_GO_ON = "Call recover() to go on."


def explain(sights: Sequence[Sight], timeout_seconds: float) -> RankError:
    """Return the error for a call that did not end well on every rank.

    Parameters
    ----------
    sights : sequence of Sight
        Where each rank stood, in rank order.
    timeout_seconds : float
        How long a collective waits.

    Returns
    -------
    RankError
        `RankDiedError` if a process ended; else a plain `RankError` if a rank raised an error of
        its own; else `CollectiveTimeoutError`, since a collective did not complete in time.
    """
    died = [sight for sight in sights if sight.state == "died"]
    waiting = [sight for sight in sights if sight.waits]
    absent = [sight for sight in sights if not sight.waits]
    raised = [sight for sight in absent if sight.state == "raised"]
    places = _grouped(waiting, _standing)
    stands = [f"{_ranks(group)} waited in {_standing(group[0], group)}" for group in places]
    kind: type[RankError] = RankError
    if died:
        kind, blamed, expected = RankDiedError, died, f"all to live until the call ends. {_GO_ON}"
        stands[:0] = [
            f"{_ranks([s])} {s.error}"
            + (f" after it entered {_standing(s)}" if s.collective else "")
            for s in died
        ]
    elif raised:
        blamed = raised
        groups = _grouped(raised, lambda sight: sight.error)
        stands[:0] = [f"{_ranks(group)} raised {group[0].error}" for group in groups]
        go_on = _GO_ON if waiting else "Fix the function: the error's cause has its traceback."
        expected = f"a result from every rank. {go_on}"
    else:
        kind, blamed = CollectiveTimeoutError, absent or [s for g in places[1:] for s in g]
        expected = f"every rank to enter the same collectives in the same order. {_GO_ON}"
        stands[0] += f" for {timeout_seconds:g} s"
        if absent:
            stands[1:] = [
                f"{_ranks(group)} did not arrive: {_doing(group[0])}"
                for group in _grouped(absent, _doing)
            ]
        elif not blamed:
            stands[0] += ", although all ranks had arrived"
            expected = (
                "it to complete in that time. Give cluster() a longer timeout_seconds for slow "
                "links or a slow rank, and call recover() to go on."
            )
    return kind(
        f"run: {'; '.join(stands)}; expected {expected}",
        tuple(sight.rank for sight in blamed),
        tuple(sight.rank for sight in waiting),
        _standing(waiting[0]) if waiting else None,
    )


def _standing(sight: Sight, together: Sequence[Sight] = ()) -> str:
    """Return the collective that a rank stands in, in words, such as "all_reduce of 4.00 KiB in
    float32 among ranks 0, 1 (its 3rd collective in the call)"; for several ranks "their 3rd".
    """
    call = sight.collective
    assert call is not None
    whose = "their" if len(together) > 1 else "its"
    return f"{call.sentence} ({whose} {ordinal(call.number + 1)} collective in the call)"


def _doing(sight: Sight) -> str:
    """Return in words what a rank was doing that did not enter the others' collective."""
    count = plural(sight.entered, "collective")
    if sight.state == "returned":
        return f"returned after {count}"
    return f"still running{f' at {sight.where}' if sight.where else ''} after {count}"


def _grouped(sights: Sequence[Sight], key: Callable[[Sight], str]) -> list[list[Sight]]:
    """Return the sights in groups that share a key, in order of first appearance."""
    return [[s for s in sights if key(s) == each] for each in dict.fromkeys(map(key, sights))]


def _ranks(sights: Sequence[Sight]) -> str:
    return named([sight.rank for sight in sights])


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    Examples
    --------
    >>> named([1]), named([0, 1, 3])
    ('rank 1', 'ranks 0, 1 and 3')
    """
    words = [str(rank) for rank in ranks]
    return (
        f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"
    )


def ordinal(number: int) -> str:
    """Return "1st", "2nd", "3rd", "4th", "11th", "21st".

    Examples
    --------
    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '112th']
    """
    ending = (
        "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"


# After a sign that some rank will never return, the other ranks have this long to report where they
# stand. This time and the interrupt together must stay under 5 s.
_SETTLE_SECONDS = 1.0
_IDLE_SECONDS = 2.4
# An interrupt that reaches a rank before its function runs is lost without a report, so it is sent
# again at this interval. A rank that must first be freed from a collective has answered by then
# (`_rank.Agent`).
_AGAIN_SECONDS = 1.0


def require_cluster(function: str, name: str, ranks: Any, least: int = 1) -> Ranks:
    """Return the cluster if it has at least ``least`` ranks; a rule for ``_validate.arguments``.

    Raises
    ------
    InputError
        If ``ranks`` is not a cluster, or has fewer ranks.
    """
    if not isinstance(ranks, Ranks) or ranks.n < least:
        raise InputError(
            f"{function}: {name} is {shown(ranks)}; expected a started cluster of "
            f"{plural(least, 'rank')} or more. Use `with gl.parallel.cluster(n=2) as ranks:`."
        )
    return ranks


class Call:
    """One call on all ranks; the payload of a rank holds its function and arguments."""

    def __init__(
        self,
        engines: Engines,
        payloads: Sequence[bytes],
        timeout_seconds: float,
        limit_seconds: float | None,
        *,
        together: bool = False,
    ) -> None:
        self.engines = engines
        self.timeout_seconds, self.limit_seconds = timeout_seconds, limit_seconds
        self.together = together  # whether the others' results are useless once one rank has failed
        path = list(map(os.path.abspath, sys.path))
        try:
            self.jobs = [
                # calls made together set the ranks up, also after a failed call, whose late
                # interrupt must not end them: so they are not interruptible
                engines.client[engine].apply_async(_rank.execute, payload, not together, path)
                for engine, payload in zip(engines.ids, payloads, strict=False)
            ]
        except Exception:  # the client no longer knows an engine that has ended since
            _refuse_dead("run", engines)
            raise
        self.outcomes: dict[int, Outcome] = {}
        self.died: dict[int, str] = {}
        self.begin = time.monotonic()
        self.end = self.begin + (math.inf if limit_seconds is None else limit_seconds)

    @property
    def open(self) -> list[int]:
        """The ranks that have not answered, and whose process has not ended."""
        return [
            rank
            for rank in range(len(self.jobs))
            if not (rank in self.outcomes or rank in self.died)
        ]

    @property
    def results(self) -> list[Any]:
        """The function's results, one for each rank, after all ranks have returned."""
        return [cloudpickle.loads(self.outcomes[rank].value) for rank in range(len(self.jobs))]

    @property
    def in_step(self) -> bool:
        """Whether the ranks can go on: all are alive and idle, none failed in a collective (even if
        the function caught the error), and all members of each group entered the same number of its
        collectives.
        """
        failed = any(outcome.sight.collective for outcome in self.outcomes.values())
        if failed or len(self.outcomes) < len(self.jobs):
            return False
        counts = [
            Counter(
                call.group
                for call in self.outcomes[rank].calls
                # a message between two ranks is not a collective of their group
                if call.name not in {"send", "recv", "send and recv"}
            )
            for rank in range(len(self.jobs))
        ]
        groups: set[tuple[int, ...]] = set().union(*counts)
        return all(len({counts[rank][group] for rank in group}) <= 1 for group in groups)

    def wait(self, stop: threading.Event) -> RankError | None:
        """Wait until every rank has returned, the time is over, or it is certain that a rank will
        never return. Return the error, or None if every rank has returned.

        Raises
        ------
        StoppedError
            If ``stop`` is set; the ranks are interrupted.
        KeyboardInterrupt
            If this process is interrupted; the ranks are interrupted too.
        """
        try:
            self._until_known(stop)
        except BaseException:
            # no death to report in time: ranks that answer late on a busy machine stay in step
            self._interrupt(2 * _IDLE_SECONDS)
            raise
        before = [self._sight(rank) for rank in range(len(self.jobs))]
        if all(sight.state == "returned" for sight in before):
            return None
        if self.open:
            self._interrupt()
        return self._error(list(map(self._stood, before)))

    def _until_known(self, stop: threading.Event) -> None:
        """Wait until no rank is open, the time is over, or it is certain that a rank will never
        return.

        It is certain once a rank has died or has failed in a collective, or once a rank has failed
        and all open ranks stand in a collective. With ``together`` any failure is enough.
        """
        since = math.inf
        while True:
            self._collect()
            if not self.open or time.monotonic() > self.end:
                return
            if stop.is_set():
                raise StoppedError(
                    "run: stopped before every rank had returned. Call it again; if that reports "
                    "ranks out of step, call recover()."
                )
            sights = [outcome.sight for outcome in self.outcomes.values()]
            waits = any(sight.waits for sight in sights)
            failed = any(sight.state != "returned" for sight in sights)
            stand = all(self._sight(rank).collective is not None for rank in self.open)
            sure = self.died or waits or (failed and (stand or self.together))
            # ranks that stood in a collective may have left it since: then nothing is certain
            since = min(since, time.monotonic()) if sure else math.inf
            if time.monotonic() - since > _SETTLE_SECONDS:
                return
            concurrent.futures.wait([self.jobs[rank] for rank in self.open], timeout=_TICK_SECONDS)

    def _collect(self) -> None:
        """Record the outcomes that have arrived and the deaths that have become known."""
        deaths = self.engines.deaths()
        for rank in self.open:
            if not self.jobs[rank].done():
                if rank in deaths:
                    self.died[rank] = deaths[rank]
                continue
            try:
                self.outcomes[rank] = cloudpickle.loads(self.jobs[rank].get(1.0))
            except Exception as error:  # ipyparallel's own error about the rank
                kind, text = getattr(error, "ename", ""), message_of(error)
                if kind == "EngineError":  # the engine is gone
                    self.died[rank] = deaths.get(rank, "ended without an error message")
                    continue
                # the rank was interrupted just before its function began, or just after it ended
                raised = Sight("raised", error=text)
                self.outcomes[rank] = Outcome(raised, b"", b"", "", "", ())

    def _interrupt(self, seconds: float = _IDLE_SECONDS) -> None:
        """Interrupt the ranks that have not answered, and wait for ``seconds`` at most until each
        has answered or its process is known to have ended.
        """
        again = time.monotonic()
        end = again + seconds
        while self.open and time.monotonic() < end:
            # a rank heeds one interrupt per call, so a repeated one does not disturb its cleanup
            if time.monotonic() >= again:
                self.engines.interrupt(self.open)
                again += _AGAIN_SECONDS
            concurrent.futures.wait([self.jobs[rank] for rank in self.open], timeout=_TICK_SECONDS)
            self._collect()
        # let an interrupt that crossed with an answer arrive now: it must not hit the next call
        time.sleep(_TICK_SECONDS)

    def _sight(self, rank: int) -> Sight:
        """Return where a rank stands: its outcome, or what it last reported."""
        if rank in self.outcomes:
            return replace(self.outcomes[rank].sight, rank=rank)
        seen: Sight = (self.jobs[rank].data or {}).get("sight", Sight("running"))
        died = self.died.get(rank)
        if died is not None:
            seen = replace(seen, state="died", where="", error=died)
        return replace(seen, rank=rank)

    def _stood(self, before: Sight) -> Sight:
        """Return where a rank stood before it was interrupted, with the facts known since.

        The answer of a running rank to the interrupt shows best where it was. The death of a rank
        may become known only after other ranks have reported their lost connection to it.
        """
        after = self._sight(before.rank)
        if before.state != "running" or after.state == "died":
            return after if before.state == "running" else before
        collective = after.collective or before.collective
        return replace(after, state="running", collective=collective, error="")

    def _error(self, sights: Sequence[Sight]) -> RankError:
        """Return the error, from where the ranks stood before they were interrupted."""
        seconds = time.monotonic() - self.begin
        if not any(sight.waits or sight.state in {"died", "raised"} for sight in sights):
            late = [sight.rank for sight in sights if sight.state == "running"]
            where = next((sight.where for sight in sights if sight.where), "")
            return RankError(
                f"run: {named(late)} had not returned after {self.limit_seconds:g} "
                f"s{f' (at {where})' if where else ''}; expected all to return. Give run() a "
                "longer timeout_seconds, or have the function do less.",
                tuple(late),
            )
        error = explain(sights, min(self.timeout_seconds, round(seconds, 1)))
        error.__cause__ = self._cause(sights)
        return error

    def _cause(self, sights: Sequence[Sight]) -> BaseException | None:
        """Return the error of the first rank that raised, with that rank's traceback as a note.

        A rank that failed outside a collective comes before those that failed in one.
        """
        raised = [sight.rank for sight in sights if sight.state == "raised"]
        raised.sort(key=lambda rank: sights[rank].waits)
        if not raised:
            return None
        outcome = self.outcomes[raised[0]]
        error: BaseException = RuntimeError(outcome.sight.error)
        # an error that could not be sent, or cannot be rebuilt here, is replaced by its text
        with contextlib.suppress(Exception):
            error = cloudpickle.loads(outcome.error)
        error.add_note(f"On rank {raised[0]}:\n{outcome.trace}")
        return error
