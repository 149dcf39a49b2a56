"""Measure chases, parallel chases and streams, or load the curves of a recording."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from gpulab import _validate, devices, timing
from gpulab.devices import Device, diagnosis, host_facts, stream_rates
from gpulab.errors import InputError, OutOfMemoryError, kind_of, shown
from gpulab.hierarchy import _chains
from gpulab.hierarchy._chains import HOPS_PER_CALL, LINE_BYTES, METHOD_WORDS, Chain, methods
from gpulab.hierarchy.curves import (
    Bandwidth,
    BandwidthPoint,
    Latency,
    LatencyPoint,
    ParallelChains,
    ParallelPoint,
    Reported,
)
from gpulab.recordings import Recording
from gpulab.recordings.schema import Timing, accelerator_told
from gpulab.timing import Measurement
from gpulab.timing.sampling import Clock, Progress, Stop
from gpulab.timing.series import Series
from gpulab.units import format_bytes, plural
from gpulab.workloads import MARGIN, free_bytes

# -------------------------------------------------------------------------------------------------
# Validation of sizes, methods and deadlines, and what the system reports about the caches.


_SMALLEST, _LARGEST = 2**10, 2**34
# Default sets reach from a part of any first cache to twice the last one, as far as making the
# nodes takes no more than seconds. A GPU's L2 is slow to give way (seen on an H200: its halves,
# then both, then flat from 1.5 times its 60 MiB on), and its nodes are made at once.
_TIMES_THE_LAST = {"cpu": 2, "gpu": 4}
_FIRST, _LAST = 2**12, {"python": 2**26, "numba": 2**27, "numpy": 2**27, "cupy": 2**29}
_LEAST_LAST = 2**24
# Above this the sets are dear to make, and one for each doubling does.
_FINE_TO = 2**23
_SHARE_OF_FREE = 0.25
# Bytes taken for each byte of the set: nodes, their list, and the order while it is made.
_OVERHEAD = {"python": 2.0, "numba": 2.0, "numpy": 1.1, "cupy": 2.0}


def _device(function: str, device: Any) -> Device:
    """Return the device: the CPU or a CUDA one.

    Raises
    ------
    InputError
        If it is another accelerator: there is no chase for it yet.
    """
    found = devices.find(device)
    if not found.is_cpu and found.torch_type != "cuda":
        raise InputError(
            f"{function}: {found.name} has no chase implementation; expected the CPU or a CUDA "
            "device. Pass device='cpu'."
        )
    return found


def _method(function: str, method: str | None, device: Device) -> str:
    """Return how to chase: what was requested, else the most precise method available."""
    known = methods() if device.is_cpu else ("cupy",)
    if method is None:
        return known[0]
    return _validate.word(
        function, "method", method, ("numba", "python") if device.is_cpu else known
    )


def _sizes(
    function: str, sizes: Iterable[int] | None, device: Device, method: str
) -> tuple[int, ...]:
    """Return working sets in whole lines, ascending.

    By default two for each doubling (one above 8 MiB), as far as a quarter of the free memory
    reaches.

    Raises
    ------
    InputError
        If a size is not a whole number of bytes from 1 KiB to 16 GiB.
    OutOfMemoryError
        If a requested size does not fit; nothing has been allocated.
    """
    room = min(
        (f for f in (free_bytes(Device("cpu")), free_bytes(device)) if f is not None),
        default=float(_LARGEST),
    )
    if sizes is None:
        times = _TIMES_THE_LAST["cpu" if device.is_cpu else "gpu"]
        last = max([_LEAST_LAST, *(times * cache.size_bytes for cache in _reported_caches(device))])
        end = min(last, _LAST[method], room * _SHARE_OF_FREE / _OVERHEAD[method])
        doublings = range(_FIRST.bit_length() - 1, _LARGEST.bit_length())
        halves = (n for k in doublings for n in (2**k, 2**k + 2 ** (k - 1)) if n <= end)
        return tuple(n for n in halves if n <= _FINE_TO or n.bit_count() == 1) or (_FIRST,)
    chosen = _validate.items(function, "sizes", sizes)
    for n in chosen:
        if not _validate.is_whole(n) or not _SMALLEST <= n <= _LARGEST:
            raise InputError(
                f"{function}: a size is {shown(n)}; expected whole numbers of bytes from 1 KiB to "
                "16 GiB. Pass for example sizes=[2**k for k in range(12, 27)]."
            )
    if not chosen:
        raise InputError(
            f"{function}: sizes is empty; expected at least one size in bytes. Leave it out for "
            "the default."
        )
    needed = max(chosen) * _OVERHEAD[method] * MARGIN
    if needed > room:
        raise OutOfMemoryError(
            f"{function}: a working set of {format_bytes(max(chosen))} needs about "
            f"{format_bytes(needed)} to set up; expected at most {format_bytes(room)}, which is "
            "free. Pass smaller sizes."
        )
    return tuple(sorted({int(n) // LINE_BYTES * LINE_BYTES for n in chosen}))


def _reported_caches(device: Device) -> tuple[Reported, ...]:
    """Return the caches that the system reports (of a GPU: its L2), smallest first; empty where it
    reports none.
    """
    if device.is_cpu:
        return tuple(
            Reported(cache.level, float(cache.size_bytes)) for cache in host_facts.probe().caches
        )
    l2 = diagnosis.accelerator(device).l2_bytes
    return (Reported("L2", float(l2)),) if l2 else ()


# -------------------------------------------------------------------------------------------------
# Latency by working set: several chases a size, each through a cycle of its own.


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
    progress: Progress | None = None,
    stop: Stop | None = None,
    clock: Clock | None = None,
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
    where = _device("latency", device)
    how = _method("latency", method, where)
    wanted = _sizes("latency", sizes, where, how)
    rounds = _validate.whole("latency", "chases", chases, 1, 100)
    run = Series("latency", rounds * len(wanted) + 1, deadline, progress, stop, clock)
    taken: dict[int, list[Measurement]] = {}
    floor: float | None = None

    def chase(nbytes: int, seed: int) -> Measurement:
        return run.measured(
            _timed_chase(where, how, nbytes, seed, run.share, stop=run.stop, clock=run.clock)
        )

    with run:
        if not run.must_stop():
            floor = chase(LINE_BYTES, 0).median_seconds / HOPS_PER_CALL
        # all sizes, then all again: a disturbance that lasts spoils one chase of many sizes, not
        # one size
        for seed in range(rounds):
            for nbytes in wanted:
                # the first chase of each size is always made
                if run.must_stop() or (seed and run.left <= 0):
                    break
                run.report(f"chase {seed + 1} of {rounds}, {format_bytes(nbytes)}")
                one = chase(nbytes, seed)
                taken.setdefault(nbytes, []).append(one)
    points = tuple(_latency_point(nbytes, each) for nbytes, each in sorted(taken.items()))
    notes, evidence, environment = run.finished(where, f"chase by {METHOD_WORDS[how]}", points)
    return Latency(
        where.name, how, points, floor, _reported_caches(where), notes, evidence, environment
    )


def _timed_chase(
    device: Device, method: str, nbytes: int, seed: int, seconds: float, **options: Any
) -> Measurement:
    """Measure the walk along a new chain; ``seconds / HOPS_PER_CALL`` is one hop's."""
    with (
        devices.guard(f"latency: a chain of {format_bytes(nbytes)} on {device.name}"),
        closing(_chains.chain(method, device, nbytes, seed)) as chain,
    ):
        return _walked(chain, device, nbytes, seconds, **options)


def _walked(
    chain: Chain, device: Device, nbytes: int, seconds: float, **options: Any
) -> Measurement:
    """Walk a chain once, then measure the walk."""
    for _ in range(1 + min(nbytes // LINE_BYTES, _MOST_WARM_HOPS) // HOPS_PER_CALL):
        chain.walk()
    return timing.measure(
        chain.walk,
        device=device,
        relative_width=_RELATIVE_WIDTH,
        deadline=seconds,
        label=f"{HOPS_PER_CALL} hops in {format_bytes(nbytes)}",
        **options,
    )


def _per_hop(
    interval: tuple[float, float] | None, hops: int = HOPS_PER_CALL
) -> tuple[float, float] | None:
    return None if interval is None else (interval[0] / hops, interval[1] / hops)


def _latency_point(nbytes: int, each: list[Measurement]) -> LatencyPoint:
    intervals = [m.interval_seconds for m in each if m.interval_seconds is not None]
    hull = None
    if len(intervals) == len(each):
        hull = min(low for low, _ in intervals), max(high for _, high in intervals)
    return LatencyPoint(
        nbytes=nbytes,
        median_seconds=float(np.median([m.median_seconds for m in each])) / HOPS_PER_CALL,
        interval_seconds=_per_hop(hull),
        least_seconds=min(float(np.min(m.samples_seconds)) for m in each) / HOPS_PER_CALL,
        samples=sum(len(m.samples_seconds) for m in each),
        chases=len(each),
    )


# -------------------------------------------------------------------------------------------------
# Several independent chases by one core: while one waits, the loads of the others are in flight
# too.


_COUNTS = (1, 2, 4, 8, 16)
_POSSIBLE = (1, 2, 4, 8, 16, 32)


def parallel(
    chains: Iterable[int] = _COUNTS,
    nbytes: int | None = None,
    *,
    method: str | None = None,
    deadline: float = 6.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
    clock: Clock | None = None,
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
    how = _method("parallel", method, where)
    counts = _validate.items("parallel", "chains", chains)
    for count in counts:
        if not _validate.is_whole(count) or count not in _POSSIBLE:
            raise InputError(
                f"parallel: chains holds {shown(count)}; expected powers of two from 1 to 32. Pass "
                "for example chains=[1, 4, 16]."
            )
    size = _sizes("parallel", None if nbytes is None else [nbytes], where, how)[-1]
    size = size // 2 if nbytes is None else size
    wanted = sorted({1, *counts})
    run = Series("parallel", len(wanted), deadline, progress, stop, clock)
    points = []
    with (
        run,
        devices.guard(f"parallel: a chain of {format_bytes(size)}"),
        closing(_chains.chain(how, where, size)) as chain,
    ):
        for count in wanted:
            if run.must_stop():
                break
            run.report(plural(count, "chain"))
            chain.start(count)
            m = run.measured(_walked(chain, where, size, run.share, stop=run.stop, clock=run.clock))
            points.append(
                ParallelPoint(
                    count,
                    m.median_seconds / HOPS_PER_CALL,
                    _per_hop(m.interval_seconds),
                    float(np.min(m.samples_seconds)) / HOPS_PER_CALL,
                    len(m.samples_seconds),
                )
            )
    notes, evidence, environment = run.finished(where, f"chases by {METHOD_WORDS[how]}", points)
    return ParallelChains(where.name, how, size, tuple(points), notes, evidence, environment)


# -------------------------------------------------------------------------------------------------
# Bandwidth by working set: one core streams through a set again and again; on a GPU all of its
# multiprocessors do.


OPERATIONS = stream_rates.OPERATIONS
_WHO = {"numpy": "NumPy on one core", "cupy": "a CUDA kernel on the whole device"}


def bandwidth(
    sizes: Iterable[int] | None = None,
    device: Any = "cpu",
    *,
    operation: str = "read",
    deadline: float = 6.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
    clock: Clock | None = None,
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
    where = _device("bandwidth", device)
    what = _validate.word("bandwidth", "operation", operation, OPERATIONS)
    how = "numpy" if where.is_cpu else "cupy"
    if not where.is_cpu and what != "read":
        raise InputError(
            f"bandwidth: {where.name} has no {what} stream here; expected 'read'. Leave operation "
            "out."
        )
    wanted = _sizes("bandwidth", sizes, where, how)
    run = Series("bandwidth", len(wanted), deadline, progress, stop, clock)
    points = []
    with run:
        for nbytes in wanted:
            if run.must_stop():
                break
            run.report(f"{what} {format_bytes(nbytes)}")
            m = run.measured(
                _timed_stream(where, what, nbytes, run.share, stop=run.stop, clock=run.clock)
            )
            points.append(
                BandwidthPoint(nbytes, *_rates(m, m.nbytes or 0.0), len(m.samples_seconds))
            )
    notes, evidence, environment = run.finished(where, f"{what} by {_WHO[how]}", points)
    return Bandwidth(
        where.name,
        how,
        what,
        tuple(points),
        _reported_caches(where),
        notes,
        evidence,
        environment,
    )


def _timed_stream(
    device: Device, operation: str, nbytes: int, seconds: float, **options: Any
) -> Measurement:
    """Measure one call of a stream; its ``nbytes`` is what a call moves."""
    with devices.guard(f"bandwidth: {format_bytes(nbytes)} on {device.name}"):
        work, moved = (
            stream_rates.thread_work(operation, nbytes)
            if device.is_cpu
            else _chains.reader(device, nbytes)
        )
        work()
        m = timing.measure(
            work,
            device=device,
            relative_width=_RELATIVE_WIDTH,
            deadline=seconds,
            label=f"{operation} of {format_bytes(nbytes)}",
            **options,
        )
        # Set afterwards: a measurement compares bytes with the level that would hold them, but
        # these are few, moved many times.
        return dataclasses.replace(m, nbytes=float(moved))


def _rates(
    timing: Measurement | Timing, moved: float
) -> tuple[float, tuple[float, float] | None, float]:
    """Return bytes per second: at the median, the interval, and of the fastest sample."""
    interval = timing.interval_seconds
    return (
        moved / timing.median_seconds,
        None if interval is None else (moved / interval[1], moved / interval[0]),
        moved / float(np.min(timing.samples_seconds)),
    )


# -------------------------------------------------------------------------------------------------
# Single points of a curve, as the recorder measures them, and the curves of a recording.


def chase_method(device: Device) -> str:
    """Return how a device is chased on a machine with numpy, torch and CuPy alone: "python" or
    "cupy".
    """
    return "python" if device.is_cpu else "cupy"


def measure_chase(nbytes: int, device: Any = "cpu", *, deadline: float = 0.5) -> Measurement:
    """Measure calls of 8,192 dependent loads through a working set.

    Parameters
    ----------
    nbytes : int
    device : Device or str
        The CPU or a CUDA device.
    deadline : float
        Seconds.

    Returns
    -------
    Measurement
        Of one call: ``HOPS_PER_CALL`` hops.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If the set does not fit.

    Examples
    --------
    >>> measure_chase(8192, deadline=0.05).label
    '8192 hops in 8.00 KiB'
    """
    where = _device("measure_chase", device)
    method = chase_method(where)
    size = _sizes("measure_chase", [nbytes], where, method)[0]
    return _timed_chase(where, method, size, 0, _validate.deadline("measure_chase", deadline))


def measure_stream(
    nbytes: int, device: Any = "cpu", operation: str = "read", *, deadline: float = 0.5
) -> Measurement:
    """Measure calls of a stream through a working set.

    Parameters
    ----------
    nbytes : int
    device : Device or str
        The CPU (one core) or a CUDA device.
    operation : str
        "read"; on a CPU also "copy" or "triad".
    deadline : float
        Seconds.

    Returns
    -------
    Measurement
        Of one call; ``nbytes`` is what it moves, the working set many times.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If the set does not fit.
    """
    where = _device("measure_stream", device)
    if operation not in (OPERATIONS if where.is_cpu else ("read",)):
        raise InputError(
            f"measure_stream: {where.name} has no stream {operation!r}; expected 'read'. Leave "
            "operation out."
        )
    size = _sizes("measure_stream", [nbytes], where, "numpy" if where.is_cpu else "cupy")[0]
    return _timed_stream(where, operation, size, _validate.deadline("measure_stream", deadline))


def recorded_latency(recording: Recording) -> Latency | None:
    """Return a recorded machine's curve of latency, or None: "not recorded yet".

    Parameters
    ----------
    recording : Recording
        See ``gpulab.recordings.load``.

    Raises
    ------
    InputError
        If it is not a recording.
    """
    entries = _recorded_timings("recorded_latency", recording, "latency")
    if not entries:
        return None
    points = tuple(
        LatencyPoint(
            nbytes,
            timing.median_seconds / hops,
            _per_hop(timing.interval_seconds, hops),
            float(min(timing.samples_seconds)) / hops,
            timing.sample_count,
            1,
        )
        for nbytes, timing, params in entries
        for hops in [int(params["hops"])]
    )
    return Latency(
        recording.environment.device,
        str(entries[0][2]["method"]),
        points,
        None,
        _recorded_caches(recording),
        (),
        recording.evidence(experiment="latency"),
        recording.environment,
    )


def recorded_bandwidth(recording: Recording, operation: str = "read") -> Bandwidth | None:
    """Return a recorded machine's curve of bandwidth, or None: "not recorded yet".

    Parameters
    ----------
    recording : Recording
    operation : str

    Raises
    ------
    InputError
        If it is not a recording.
    """
    entries = [
        (nbytes, timing)
        for nbytes, timing, params in _recorded_timings(
            "recorded_bandwidth", recording, "bandwidth"
        )
        if params.get("operation") == operation
    ]
    if not entries:
        return None
    points = tuple(
        BandwidthPoint(nbytes, *_rates(timing, timing.nbytes), timing.sample_count)
        for nbytes, timing in entries
        if timing.nbytes
    )
    method = "numpy" if recording.environment.device_kind == "cpu" else "cupy"
    return Bandwidth(
        recording.environment.device,
        method,
        operation,
        points,
        _recorded_caches(recording),
        (),
        recording.evidence(experiment="bandwidth"),
        recording.environment,
    )


def _recorded_timings(
    function: str, recording: Recording, experiment: str
) -> list[tuple[int, Timing, Mapping[str, Any]]]:
    """Return working set, timing and parameters of an experiment's entries, by working set."""
    if not isinstance(recording, Recording):
        raise InputError(
            f"{function}: got {kind_of(recording)}; expected a Recording. Pass "
            "gl.recordings.load(name)."
        )
    found = [
        (int(entry.params["nbytes"]), entry.timing, entry.params)
        for entry in recording.select(experiment)
        if entry.timing is not None
    ]
    return sorted(found, key=lambda each: each[0])


def _recorded_caches(recording: Recording) -> tuple[Reported, ...]:
    """The caches that the recorded machine reported: the processor's, or the L2 of the recorded
    GPU.
    """
    if recording.environment.device_kind == "cpu":
        processor = recording.machine.get("processor")
        caches = processor.get("caches") if isinstance(processor, Mapping) else None
        listed = (
            [one for one in caches if isinstance(one, Mapping)]
            if isinstance(caches, (list, tuple))
            else []
        )
        sizes: list[tuple[str, Any]] = [
            (str(one.get("level")), one.get("size_bytes")) for one in listed
        ]
    else:
        sizes = [("L2", accelerator_told(recording).get("l2_bytes"))]
    return tuple(
        Reported(name, float(size))
        for name, size in sizes
        if _validate.is_finite(size) and size > 0
    )
