"""Several independent chases by one core: while one waits, the loads of the others are in flight
too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import numpy as np

from gpulab import _given as _args
from gpulab import devices
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence
from gpulab.hierarchy import _given
from gpulab.hierarchy._chains import HOPS_PER_CALL, METHOD_WORDS
from gpulab.hierarchy._latency import build, walked
from gpulab.hierarchy.chains import ParallelChains, ParallelPoint
from gpulab.timing import Measurement
from gpulab.units import format_bytes, plural

_COUNTS = (1, 2, 4, 8, 16)
_POSSIBLE = (1, 2, 4, 8, 16, 32)


def parallel(
    chains: Iterable[int] = _COUNTS,
    nbytes: int | None = None,
    *,
    method: str | None = None,
    deadline: float = 6.0,
    progress: _given.Progress | None = None,
    stop: _given.Stop | None = None,
    clock: _given.Clock | None = None,
) -> ParallelChains:
    """Measure how many hops per second one core makes along one chain, and along several
    independent chains.

    Parameters
    ----------
    chains : iterable of int
        Powers of two from 1 to 32; 1 is always measured.
    nbytes : int, optional
        The working set, shared by all chains; by default half of the largest that ``latency`` would
        take: mostly main memory.
    method : str, optional
        "numba" or "python"; by default the first that is installed.
    deadline : float
        Seconds in all, not counting the time to make the cycles.
    progress, stop, clock : callable, optional
        As for ``latency``.

    Returns
    -------
    ParallelChains

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If the set does not fit.
    MissingLibraryError
        If the method's library is not installed.
    StoppedError
        If it was stopped before one chain was measured.

    Examples
    --------
    >>> both = parallel([2], 2**20, method="python", deadline=0.2)
    >>> [point.chains for point in both.points]
    [1, 2]
    """
    where = devices.find("cpu")
    how = _given.method_of("parallel", method, where)
    counts = _args.items("parallel", "chains", chains)
    for count in counts:
        if not _args.is_whole(count) or count not in _POSSIBLE:
            raise InputError(
                f"parallel: chains holds {shown(count)}; expected powers of two from 1 to 32. Pass "
                "for example chains=[1, 4, 16]."
            )
    size = _given.sizes_of("parallel", None if nbytes is None else [nbytes], where, how)[-1]
    size = size // 2 if nbytes is None else size
    wanted = sorted({1, *counts})
    run = _given.Run(
        "parallel",
        len(wanted),
        deadline,
        progress=progress,
        stop=stop,
        clock=_args.clock("parallel", clock),
    )
    points = []
    try:
        with (
            devices.guard(f"parallel: a chain of {format_bytes(size)}"),
            closing(build(where, how, size)) as chain,
        ):
            for count in wanted:
                if run.asked_to_stop():
                    break
                run.say(plural(count, "chain"))
                chain.start(count)
                m = walked(
                    chain, where, size, deadline=run.share, stop=run.stop, clock=run.given_clock
                )
                points.append(_point(count, run.measured(m)))
    except StoppedError:
        run.stopped = True
    notes = run.finished()
    environment = devices.environment(where)
    evidence = Evidence.measured(
        f"{where.name}, chases by {METHOD_WORDS[how]}",
        sum(p.samples for p in points),
        environment.date,
    )
    return ParallelChains(where.name, how, size, tuple(points), notes, evidence, environment)


def _point(count: int, m: Measurement) -> ParallelPoint:
    interval = m.interval_seconds
    return ParallelPoint(
        count,
        m.median_seconds / HOPS_PER_CALL,
        None if interval is None else (interval[0] / HOPS_PER_CALL, interval[1] / HOPS_PER_CALL),
        float(np.min(m.samples_seconds)) / HOPS_PER_CALL,
        len(m.samples_seconds),
    )
