"""Latency by working set: several chases a size, each through a cycle of its own."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

import numpy as np

from gpulab import _given as _args
from gpulab import devices, timing
from gpulab.devices import Device
from gpulab.errors import StoppedError
from gpulab.evidence import Evidence
from gpulab.hierarchy import _chains, _given
from gpulab.hierarchy._chains import HOPS_PER_CALL, LINE_BYTES, METHOD_WORDS, Chain
from gpulab.hierarchy.results import Latency, LatencyPoint
from gpulab.timing import Measurement
from gpulab.units import format_bytes

# Half of the noise between chases of one size on a quiet machine.
_RELATIVE_WIDTH = 0.03
# A set is walked through once before it is measured, but a very large one is in no cache after that
# either.
_MOST_WARM_HOPS = 2**20


def latency(
    sizes: Iterable[int] | None = None,
    device: Any = "cpu",
    *,
    method: str | None = None,
    chases: int = 3,
    deadline: float = 10.0,
    progress: _given.Progress | None = None,
    stop: _given.Stop | None = None,
    clock: _given.Clock | None = None,
) -> Latency:
    """Measure how long a load takes whose address the load before it gives, for working sets from
    the first cache to main memory.

    Parameters
    ----------
    sizes : iterable of int, optional
        Working sets in bytes; by default two for each doubling from 4 KiB to twice the largest
        cache (four times on a GPU), at most 64 MiB with Python objects, 128 MiB with numba and 512
        MiB on a GPU.
    device : Device or str
        The CPU, or a CUDA device (None takes the best one available).
    method : str, optional
        "numba" or "python" on a CPU; by default the first that is installed (see ``methods``). On a
        GPU it is "cupy".
    chases : int
        How many cycles of each size; each is newly made, and they are measured at different times.
    deadline : float
        Seconds for the whole; making large cycles of Python objects may take a little longer.
    progress : callable, optional
        Gets a fraction 0-1 and a short text.
    stop : callable, optional
        Called between points; True ends the work with the note "stopped".
    clock : callable, optional
        Returns seconds, for tests.

    Returns
    -------
    Latency
        ``levels()`` finds the steps.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If a requested size does not fit.
    MissingLibraryError
        If the method's library is not installed, or CuPy cannot compile for the device.
    StoppedError
        If it was stopped before the first point.

    Notes
    -----
    The interpreter adds a few nanoseconds to a hop in the first caches. The processor executes it
    while a load waits, so its share disappears in longer waits and must not be subtracted;
    ``floor_seconds`` is a hop that waits only for the first cache.

    Examples
    --------
    >>> curve = latency(sizes=[2**13], method="python", chases=1, deadline=0.1)
    >>> curve.points[0].nbytes, curve.floor_seconds > 0
    (8192, True)
    """
    where = _given.where("latency", device)
    how = _given.method_of("latency", method, where)
    wanted = _given.sizes_of("latency", sizes, where, how)
    rounds = _args.whole("latency", "chases", chases, 1, 100)
    run = _given.Run(
        "latency",
        rounds * len(wanted) + 1,
        deadline,
        progress=progress,
        stop=stop,
        clock=_args.clock("latency", clock),
    )
    taken: dict[int, list[Measurement]] = {}
    floor: float | None = None
    try:
        if not run.asked_to_stop():
            floor = _hop_seconds(run.measured(chase(where, how, LINE_BYTES, 0, run)))
        # all sizes, then all again: a disturbance that lasts spoils one chase of many sizes, not
        # one size
        for seed in range(rounds):
            for nbytes in wanted:
                # the first chase of each size is always made
                if run.asked_to_stop() or (seed and run.over):
                    break
                run.say(f"chase {seed + 1} of {rounds}, {format_bytes(nbytes)}")
                one = run.measured(chase(where, how, nbytes, seed, run))
                taken.setdefault(nbytes, []).append(one)
    except StoppedError:
        run.stopped = True
    if not taken:
        run.done = 0
    notes = run.finished()
    points = tuple(_point(nbytes, each) for nbytes, each in sorted(taken.items()))
    environment = devices.environment(where)
    evidence = Evidence.measured(
        f"{where.name}, chase by {METHOD_WORDS[how]}",
        sum(p.samples for p in points),
        environment.date,
    )
    return Latency(
        where.name, how, points, floor, _given.reported(where), notes, evidence, environment
    )


def chase(device: Device, method: str, nbytes: int, seed: int, run: _given.Run) -> Measurement:
    """Make a cycle, walk it once, and measure calls of ``HOPS_PER_CALL`` hops."""
    return timed(
        device, method, nbytes, seed, deadline=run.share, stop=run.stop, clock=run.given_clock
    )


def timed(
    device: Device,
    method: str,
    nbytes: int,
    seed: int = 0,
    *,
    deadline: float,
    stop: Any = None,
    clock: Any = None,
) -> Measurement:
    """Measure the walk along a new chain; ``seconds / HOPS_PER_CALL`` is one hop's."""
    with (
        devices.guard(f"latency: a chain of {format_bytes(nbytes)} on {device.name}"),
        closing(build(device, method, nbytes, seed)) as chain,
    ):
        return walked(chain, device, nbytes, deadline=deadline, stop=stop, clock=clock)


def walked(
    chain: Chain,
    device: Device,
    nbytes: int,
    *,
    deadline: float,
    stop: Any = None,
    clock: Any = None,
) -> Measurement:
    """Walk a chain once, then measure the walk."""
    for _ in range(1 + min(nbytes // LINE_BYTES, _MOST_WARM_HOPS) // HOPS_PER_CALL):
        chain.walk()
    return timing.measure(
        chain.walk,
        device=device,
        relative_width=_RELATIVE_WIDTH,
        deadline=deadline,
        stop=stop,
        clock=clock,
        label=f"{HOPS_PER_CALL} hops in {format_bytes(nbytes)}",
    )


def build(device: Device, method: str, nbytes: int, seed: int = 0) -> Chain:
    """Return a chain on the device, with one walker."""
    if device.is_cpu:
        return _chains.build(method, nbytes, seed)
    from gpulab.hierarchy import _cuda

    return _cuda.CudaChain(device, nbytes, seed)


def _hop_seconds(m: Measurement) -> float:
    return m.median_seconds / HOPS_PER_CALL


def _point(nbytes: int, each: list[Measurement]) -> LatencyPoint:
    intervals = [m.interval_seconds for m in each if m.interval_seconds is not None]
    hull = (
        (min(low for low, _ in intervals), max(high for _, high in intervals))
        if len(intervals) == len(each)
        else None
    )
    return LatencyPoint(
        nbytes=nbytes,
        median_seconds=float(np.median([m.median_seconds for m in each])) / HOPS_PER_CALL,
        interval_seconds=None
        if hull is None
        else (hull[0] / HOPS_PER_CALL, hull[1] / HOPS_PER_CALL),
        least_seconds=min(float(np.min(m.samples_seconds)) for m in each) / HOPS_PER_CALL,
        samples=sum(len(m.samples_seconds) for m in each),
        chases=len(each),
    )
