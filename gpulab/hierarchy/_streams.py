"""Bandwidth by working set: one core streams through a set again and again; on a GPU all of its
multiprocessors do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpulab import _given as _args
from gpulab import devices, timing
from gpulab.devices import Device, _streams
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence
from gpulab.hierarchy import _given
from gpulab.hierarchy.results import Bandwidth, BandwidthPoint
from gpulab.timing import Measurement
from gpulab.units import format_bytes

_RELATIVE_WIDTH = 0.03
OPERATIONS = _streams.OPERATIONS
_WHO = {"numpy": "NumPy on one core", "cupy": "a CUDA kernel on the whole device"}


def bandwidth(
    sizes: Iterable[int] | None = None,
    device: Any = "cpu",
    *,
    operation: str = "read",
    deadline: float = 6.0,
    progress: _given.Progress | None = None,
    stop: _given.Stop | None = None,
    clock: _given.Clock | None = None,
) -> Bandwidth:
    """Measure how many bytes per second one core moves in order, for working sets from the first
    cache to main memory.

    Parameters
    ----------
    sizes : iterable of int, optional
        Working sets in bytes, all arrays of the operation together; by default as for ``latency``.
    device : Device or str
        The CPU, or a CUDA device, whose multiprocessors all read together (None takes the best one
        available).
    operation : str
        "read" (the maximum of an array), "copy" (a = -b) or "triad" (a = b + c), in float32. A GPU
        only reads.
    deadline : float
        Seconds for the whole.
    progress, stop, clock : callable, optional
        As for ``latency``.

    Returns
    -------
    Bandwidth
        ``gpulab.devices.ceilings`` has the highest rate of all cores together at a few sets.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If a requested size does not fit.
    MissingLibraryError
        If the device is a CUDA one and CuPy is not installed, or cannot compile there.
    StoppedError
        If it was stopped before the first point.

    Examples
    --------
    >>> curve = bandwidth(sizes=[2**14, 2**20], deadline=0.2)
    >>> [point.nbytes for point in curve.points]
    [16384, 1048576]
    """
    where = _given.where("bandwidth", device)
    what = _args.word("bandwidth", "operation", operation, OPERATIONS)
    how = "numpy" if where.is_cpu else "cupy"
    if not where.is_cpu and what != "read":
        raise InputError(
            f"bandwidth: {where.name} has no {what} stream here; expected 'read'. Leave operation "
            "out."
        )
    wanted = _given.sizes_of("bandwidth", sizes, where, how)
    run = _given.Run(
        "bandwidth",
        len(wanted),
        deadline,
        progress=progress,
        stop=stop,
        clock=_args.clock("bandwidth", clock),
    )
    points = []
    try:
        for nbytes in wanted:
            if run.asked_to_stop():
                break
            run.say(f"{what} {format_bytes(nbytes)}")
            m = timed(where, what, nbytes, deadline=run.share, stop=run.stop, clock=run.given_clock)
            points.append(_point(nbytes, run.measured(m)))
    except StoppedError:
        run.stopped = True
    notes = run.finished()
    environment = devices.environment(where)
    evidence = Evidence.measured(
        f"{where.name}, {what} by {_WHO[how]}", sum(p.samples for p in points), environment.date
    )
    return Bandwidth(
        where.name, how, what, tuple(points), _given.reported(where), notes, evidence, environment
    )


def timed(
    device: Device,
    operation: str,
    nbytes: int,
    *,
    deadline: float,
    stop: Any = None,
    clock: Any = None,
) -> Measurement:
    """Measure one call of a stream; its ``nbytes`` is what a call moves."""
    with devices.guard(f"bandwidth: {format_bytes(nbytes)} on {device.name}"):
        work, moved = _work(device, operation, nbytes)
        work()
        m = timing.measure(
            work,
            device=device,
            relative_width=_RELATIVE_WIDTH,
            deadline=deadline,
            stop=stop,
            clock=clock,
            label=f"{operation} of {format_bytes(nbytes)}",
        )
        # Told afterwards: a measurement compares bytes with the level that would hold them, but
        # these are few, moved many times.
        return dataclasses.replace(m, nbytes=float(moved))


def _work(device: Device, operation: str, nbytes: int) -> tuple[Callable[[], Any], int]:
    if device.is_cpu:
        return _streams.thread_work(operation, nbytes)
    from gpulab.hierarchy import _cuda

    return _cuda.reader(device, nbytes)


def _point(nbytes: int, m: Measurement) -> BandwidthPoint:
    interval, moved = m.interval_seconds, m.nbytes or 0.0
    return BandwidthPoint(
        nbytes,
        moved / m.median_seconds,
        None if interval is None else (moved / interval[1], moved / interval[0]),
        moved / float(np.min(m.samples_seconds)),
        len(m.samples_seconds),
    )
