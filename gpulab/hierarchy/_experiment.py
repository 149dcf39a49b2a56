"""Single points of a curve, as the recorder measures them, and the curves of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab._given import deadline as check_deadline
from gpulab._given import is_finite
from gpulab.devices import Device
from gpulab.errors import InputError, kind_of
from gpulab.hierarchy import _given, _latency, _streams
from gpulab.hierarchy.results import Bandwidth, BandwidthPoint, Latency, LatencyPoint, Reported
from gpulab.recordings import Entry, Recording
from gpulab.recordings._schema import accelerator_told
from gpulab.timing import Measurement


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
    where = _given.where("measure_chase", device)
    method = chase_method(where)
    size = _given.sizes_of("measure_chase", [nbytes], where, method)[0]
    return _latency.timed(where, method, size, deadline=check_deadline("measure_chase", deadline))


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
    where = _given.where("measure_stream", device)
    if operation not in (_streams.OPERATIONS if where.is_cpu else ("read",)):
        raise InputError(
            f"measure_stream: {where.name} has no stream {operation!r}; expected 'read'. Leave "
            "operation out."
        )
    size = _given.sizes_of("measure_stream", [nbytes], where, "numpy" if where.is_cpu else "cupy")[
        0
    ]
    return _streams.timed(
        where, operation, size, deadline=check_deadline("measure_stream", deadline)
    )


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
    entries = _entries("recorded_latency", recording, "latency")
    if not entries:
        return None
    points = []
    for nbytes, entry in entries:
        timing, hops = entry.timing, int(entry.params["hops"])
        if timing is None:
            continue
        pair = timing.interval_seconds
        points.append(
            LatencyPoint(
                nbytes,
                timing.median_seconds / hops,
                None if pair is None else (pair[0] / hops, pair[1] / hops),
                float(min(timing.samples_seconds)) / hops,
                timing.sample_count,
                1,
            )
        )
    method = str(entries[0][1].params["method"])
    return Latency(
        recording.environment.device,
        method,
        tuple(points),
        None,
        _reported(recording),
        (),
        recording.evidence(),
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
        (n, e)
        for n, e in _entries("recorded_bandwidth", recording, "bandwidth")
        if e.params.get("operation") == operation
    ]
    if not entries:
        return None
    points = []
    for nbytes, entry in entries:
        timing = entry.timing
        if timing is None or not timing.nbytes:
            continue
        moved = timing.nbytes
        pair = timing.interval_seconds
        points.append(
            BandwidthPoint(
                nbytes,
                moved / timing.median_seconds,
                None if pair is None else (moved / pair[1], moved / pair[0]),
                moved / float(min(timing.samples_seconds)),
                timing.sample_count,
            )
        )
    method = "numpy" if recording.environment.device_kind == "cpu" else "cupy"
    return Bandwidth(
        recording.environment.device,
        method,
        operation,
        tuple(points),
        _reported(recording),
        (),
        recording.evidence(),
        recording.environment,
    )


def _entries(function: str, recording: Recording, experiment: str) -> list[tuple[int, Entry]]:
    if not isinstance(recording, Recording):
        raise InputError(
            f"{function}: got {kind_of(recording)}; expected a Recording. Pass "
            "gl.recordings.load(name)."
        )
    return sorted(
        ((int(entry.params["nbytes"]), entry) for entry in recording.select(experiment)),
        key=lambda pair: pair[0],
    )


def _reported(recording: Recording) -> tuple[Reported, ...]:
    """The caches that the recorded machine reported: the processor's, or the L2 of the recorded
    GPU.
    """
    if recording.environment.device_kind == "cpu":
        processor = recording.machine.get("processor")
        caches = processor.get("caches") if isinstance(processor, Mapping) else None
        told = (
            [one for one in caches if isinstance(one, Mapping)]
            if isinstance(caches, (list, tuple))
            else []
        )
        sizes: list[tuple[str, Any]] = [
            (str(one.get("level")), one.get("size_bytes")) for one in told
        ]
    else:
        sizes = [("L2", accelerator_told(recording).get("l2_bytes"))]
    return tuple(
        Reported(name, float(size)) for name, size in sizes if is_finite(size) and size > 0
    )
