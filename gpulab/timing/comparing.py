"""Compare one piece of work on several devices, or several ways to do it.

Everything that can be wrong with the request is said before anything is allocated or run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpulab import _validate, workloads
from gpulab import devices as _devices
from gpulab.devices import Device
from gpulab.devices.conditions import Readings
from gpulab.errors import InputError, kind_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.timing import agreement, work_arrays
from gpulab.timing.measurement import Comparison, ComparisonRow, Measurement
from gpulab.timing.measuring import SAMPLING_RULES, Job, in_turns
from gpulab.timing.notes import no_interval, ordered
from gpulab.timing.sampling import Limits, Progress, Stop
from gpulab.timing.statistics import paired_ratio, ratio_interval
from gpulab.units import plural
from gpulab.workloads import Workload

Functions = Mapping[str, Callable[..., Any]]
# What is compared: the name of the whole, and the job of each row by the row's name.
_Compared = tuple[str, dict[str, Job], Workload | None]


@_validate.arguments(**SAMPLING_RULES, tolerance=_validate.positive)
def compare(
    work: str | Workload | Callable[..., Any] | Functions,
    *args: Any,
    devices: Any = None,
    dtype: str = "float32",
    transfer: bool = False,
    relative_width: float = 0.02,
    deadline: float = 2.0,
    tolerance: float | None = None,
    clock: Callable[[], float] | None = None,
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
    conditions: Callable[[], Readings] | None = None,
    **params: Any,
) -> Comparison:
    """Return the times of the same work on several devices, or of several functions, and the
    speed-up if their results agree.

    The rows take turns, call by call; two never run at once. The first is the baseline.

    Parameters
    ----------
    work : str, Workload, callable or mapping of str to callable
        A name from the catalogue (inputs are seeded and the same on every device), a function of
        ``args``, or a mapping of labels to functions, which are compared with each other on the
        same ``args``.
    devices : sequence of str or Device, optional
        The rows, the first being the baseline; None takes the CPU and every accelerator. With a
        mapping, at most one.
    dtype : str
        Of the catalogue's inputs.
    transfer : bool
        Also time each row with both copies.
    relative_width : float
        Stop when the interval of every row is this narrow, as in ``measure``.
    deadline : float
        Seconds of sampling for each row. The copies come on top, and on a GPU with a counter of
        energy the calls that it is read over (at most half of it each).
    tolerance : float, optional
        The largest allowed max|a - reference| / max|reference|; None takes the workload's
        tolerance, or that of the dtype.
    clock : callable, optional
        As in ``measure``.
    progress, stop : callable, optional
        As in ``measure``.
    conditions : callable, optional
        Gives the machine's counters, for tests.
    **params
        Of the workload, such as ``n=1024``.

    Returns
    -------
    Comparison
        ``speedup`` is baseline / fastest other: None with one row, where results disagree, or where
        a time is implausible.

    Raises
    ------
    InputError, DeviceError, OutOfMemoryError, MeasurementError, StoppedError
        As in ``measure``; the size is checked against the free memory before anything is allocated.

    Examples
    --------
    >>> import numpy as np
    >>> c = compare({"method": lambda a: a.sum(), "function": np.sum}, np.ones(1000), deadline=0.1)
    >>> [row.name for row in c.rows]
    ['method', 'function']
    """
    return compare_within(
        Limits(relative_width, deadline, progress, stop),
        work,
        args,
        devices=devices,
        dtype=dtype,
        transfer=transfer,
        tolerance=tolerance,
        clock=clock,
        conditions=conditions,
        params=params,
    )


def compare_within(
    limits: Limits,
    work: str | Workload | Callable[..., Any] | Functions,
    args: tuple[Any, ...],
    *,
    devices: Any = None,
    dtype: str = "float32",
    transfer: bool = False,
    tolerance: float | None = None,
    clock: Callable[[], float] | None = None,
    conditions: Callable[[], Readings] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare within limits that were checked."""
    limits.say(0.0, "making inputs")
    read = _validate.clock("compare", clock) or time.perf_counter
    parameters = {"dtype": dtype, **(params or {})}
    label, jobs_by_name, workload = _gather(work, args, devices, read, parameters)
    jobs, notes, agreement_notes = list(jobs_by_name.values()), list[Note](), list[Note]()
    differences: list[float | None] = []

    def first_calls() -> None:
        """Make every first call and hold its result against the reference."""
        nonlocal tolerance
        if workload is not None:
            tolerance = workload.tolerance if tolerance is None else tolerance
            for name, job in jobs_by_name.items():
                limits.say(0.02, f"first call on {name}")
                result = job.attempt(job.first_call)
                differences.append(job.attempt(workload.difference, result, job.args))
            return
        precise = agreement.precise_copy(jobs[0].args)
        results = [job.attempt(job.first_call) for job in jobs]
        # what the function costs on a CPU
        seconds = min((job.first_seconds for job in jobs if job.device.is_cpu), default=math.inf)
        check, usual, found = agreement.of_function(
            jobs[0].fn, jobs[0].args, precise, results[0], seconds
        )
        tolerance = usual if tolerance is None else tolerance
        differences.extend(None if check is None else check(result) for result in results)
        agreement_notes.extend(found)

    measurements = in_turns(
        "compare",
        jobs,
        limits,
        first_calls,
        notes,
        transfer=transfer,
        is_live=clock is None,
        scripted=conditions,
    )
    count = plural(len(measurements[0].samples_seconds), "sample")
    limits.say(1.0, f"{label}: {count} of each")
    notes += agreement_notes
    if len(jobs) == 1 and devices is None and not isinstance(work, Mapping):
        notes.append(
            Note(
                "skipped",
                "PyTorch sees no accelerator on this machine, so there is one row and no speed-up. "
                "gl.recordings has machines with an accelerator; `gpulab doctor` reports what is "
                "missing here.",
            )
        )
    return _judged(label, list(jobs_by_name), measurements, differences, tolerance, notes)


def _speedup(
    baseline: Measurement, m: Measurement
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the ratio of the medians and its interval.

    The pairs' interval is the narrow one, but it is of the median of the ratios. Where that is
    another figure (a disturbance gave the two times different shapes), a table would show a
    speed-up outside its own interval, so the wider one of the medians is taken.
    """
    if m.median_seconds <= 0:
        return None, None
    speedup = baseline.median_seconds / m.median_seconds
    _, paired = paired_ratio(baseline.samples_seconds, m.samples_seconds)
    if paired is not None and paired[0] <= speedup <= paired[1]:
        first, second = baseline.interval_seconds, m.interval_seconds
        if paired[0] == paired[1] and first and second and second[0] > 0:
            # of pairs that are all alike by a clock that ticks rarely, only this much is known
            return speedup, (first[0] / second[1], first[1] / second[0])
        return speedup, paired
    apart = ratio_interval(baseline.samples_seconds, m.samples_seconds)
    # It is made of logarithms, so an end that equals the ratio can lie a rounding error beside it.
    return speedup, None if apart is None else (min(apart[0], speedup), max(apart[1], speedup))


def _judged(
    label: str,
    names: list[str],
    measurements: list[Measurement],
    differences: list[float | None],
    tolerance: float | None,
    notes: list[Note],
) -> Comparison:
    """Return the comparison: speed-ups only where results agree and no time is impossible."""
    bad = [
        name
        for name, difference in zip(names, differences, strict=True)
        if None not in (difference, tolerance) and not difference <= tolerance  # type: ignore[operator]
    ]
    impossible = [
        name for name, m in zip(names, measurements, strict=True) if m.has_note("implausible")
    ]
    doubtful, baseline = {*bad, *impossible}, measurements[0]
    rows: list[ComparisonRow] = []
    for name, m, difference in zip(names, measurements, differences, strict=True):
        is_reported = rows and not doubtful & {rows[0].name, name}
        speedup, interval = _speedup(baseline, m) if is_reported else (None, None)
        rows.append(ComparisonRow(name, m, speedup, interval, difference))
    known = [difference for difference in differences if difference is not None]
    if bad:
        how = "in shape or type, or has an overflow or nan where the reference has a number"
        if math.isfinite(max(known)):
            how = f"by {max(known):.1e} of its largest value ({tolerance:.1e} is allowed)"
        notes.append(
            Note(
                "disagree",
                f"{', '.join(bad)}: the result differs from the reference {how}, so no speed-up is "
                "reported. Find out why before you compare times.",
            )
        )
    if impossible and len(rows) > 1:
        notes.append(
            Note(
                "implausible",
                f"{', '.join(impossible)}: the time is physically impossible, so no speed-up is "
                "reported. See that row's own note.",
            )
        )
    others = [row for row in rows if row.speedup is not None and not bad]
    best = min(others, key=lambda row: row.measurement.median_seconds, default=None)
    if best is not None and best.speedup_interval is None:
        notes.append(no_interval("the samples do not determine an interval for the ratio"))
    return Comparison(
        label=label,
        rows=tuple(rows),
        speedup=best.speedup if best else None,
        speedup_interval=best.speedup_interval if best else None,
        max_relative_difference=max(known, default=None),
        tolerance=tolerance,
        notes=ordered(notes),
        evidence=Evidence.measured(
            " and ".join(dict.fromkeys(m.environment.device for m in measurements)),
            sum(len(m.samples_seconds) for m in measurements),
            baseline.environment.date,
            next((m.evidence.assumptions for m in measurements if m.evidence.assumptions), None),
        ),
    )


def _gather(
    work: str | Workload | Callable[..., Any] | Functions,
    args: tuple[Any, ...],
    devices: Any,
    clock: Callable[[], float],
    params: dict[str, Any],
) -> _Compared:
    """Return what is compared.

    Raises
    ------
    InputError
        If there is no such workload, a parameter does not fit it, or ``work`` cannot be compared.
    DeviceError, OutOfMemoryError
        If a device is not there, or the work does not fit.
    """
    if isinstance(work, (str, Workload)):
        return _of_workload(work, args, _places(devices), clock, params)
    unknown = sorted(set(params) - ({"dtype"} if params.get("dtype") == "float32" else set()))
    if unknown:
        raise InputError(
            f"compare: {', '.join(unknown)} are parameters of catalogue workloads, not of a "
            "function; expected only the function's arguments. Pass the function's inputs as "
            "arrays of the size and dtype that you want."
        )
    if isinstance(work, Mapping):
        return _of_methods(work, args, devices, clock)
    if not callable(work):
        raise InputError(
            f"compare: got {kind_of(work)}; expected the name of a workload "
            f"({', '.join(workloads.names()[:3])}, ...), a function, "
            'or a mapping of labels to functions. Write gl.compare("matmul") or gl.compare(f, x).'
        )
    places = _places(devices)
    host, label, jobs = work_arrays.on_host(args), work_arrays.label_of(work), {}
    for name, place in places.items():
        with _devices.guard(f"compare: copying the inputs of {label} to {place}"):
            placed = host if place.is_cpu else work_arrays.copier_to(place, args)()
        jobs[name] = Job(work, placed, place, True, label, clock)
    return label, jobs, None


def _places(devices: Any) -> dict[str, Device]:
    """Return the devices by the names of their rows."""
    if devices is None:
        places = _devices.available()
    else:
        is_one = isinstance(devices, (str, Device)) or not isinstance(devices, Iterable)
        several = (
            [devices]
            if is_one
            else _validate.items("compare", "devices", devices, "['cpu'], or leave it out")
        )
        places = tuple(_devices.find(device) for device in several)
    if len(set(places)) < len(places):
        raise InputError(
            f"compare: devices {', '.join(map(str, places))} contain a device twice; expected "
            "different devices. Remove the repetition."
        )
    names = [place.name for place in places]
    return {
        f"{name} ({place})" if names.count(name) > 1 else name: place
        for name, place in zip(names, places, strict=True)
    }


def _of_workload(
    work: str | Workload,
    args: tuple[Any, ...],
    places: dict[str, Device],
    clock: Callable[[], float],
    params: dict[str, Any],
) -> _Compared:
    if args:
        raise InputError(
            f"compare: {work if isinstance(work, str) else work.label} makes its own inputs; "
            "expected only its size and dtype. Pass n=..., dtype=..."
        )
    w = work if isinstance(work, Workload) else workloads.get(work)(**params)
    for place in places.values():
        w.check(place)
    jobs = {
        name: Job(
            fn=w.run,
            args=w.inputs(place),
            device=place,
            is_named=True,
            label=w.label,
            clock=clock,
            flops=w.flops,
            nbytes=w.nbytes,
            working_set_bytes=w.working_set_bytes,
        )
        for name, place in places.items()
    }
    return w.label, jobs, w


def _of_methods(
    functions: Functions, args: tuple[Any, ...], devices: Any, clock: Callable[[], float]
) -> _Compared:
    wrong = [
        label if isinstance(label, str) else shown(label)
        for label, fn in functions.items()
        if not callable(fn) or not isinstance(label, str)
    ]
    if not functions or wrong:
        what = f"{', '.join(wrong)} are not" if wrong else "there are no"
        raise InputError(
            f"compare: {what} functions under a label; expected a mapping such as {{'numpy': f, "
            f"'torch': g}}."
        )
    places = [*_places(devices).values()] if devices is not None else []
    if len(places) > 1:
        raise InputError(
            f"compare: {len(places)} devices for a mapping of functions; expected at most one. "
            "Compare the functions on one device at a time."
        )
    jobs = {}
    for label, fn in functions.items():
        place = places[0] if places else work_arrays.device_of(fn, args) or Device("cpu")
        jobs[label] = Job(fn, args, place, bool(places), label, clock)
    return " against ".join(functions), jobs, None
