"""Compare one piece of work on several devices, or several ways to do it.

Errors in the request are raised before anything is allocated or run.

A speed-up is reported only if the results agree. The measure is max|a - reference| /
max|reference|. A workload of the catalog knows its own higher-precision reference. For any other
function the reference is the function itself on float64 copies of its inputs; for a large matrix
product, only sampled rows are computed.
"""

from __future__ import annotations

import math
import operator
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gpulab import _backends, _validate, workloads
from gpulab import devices as _devices
from gpulab.devices import Device
from gpulab.devices.conditions import Readings
from gpulab.errors import InputError, kind_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.timing import work_arrays
from gpulab.timing.measurement import Comparison, ComparisonRow, Measurement
from gpulab.timing.measuring import SAMPLING_RULES, Job, in_turns
from gpulab.timing.notes import no_interval, ordered
from gpulab.timing.sampling import Limits, Progress, Stop
from gpulab.timing.statistics import paired_ratio, ratio_interval
from gpulab.units import plural
from gpulab.workloads import Workload

Functions = Mapping[str, Callable[..., Any]]
# What is compared: its label, the job of each row by the row's name, and the workload, if it is one
# of the catalog.
_Compared = tuple[str, dict[str, Job], Workload | None]

# max|a - reference| / max|reference| that a chain of operations in this format may show; single
# roundings are 2^-53, 2^-24, 2^-11, 2^-11, 2^-8. Nothing computes in float8: a result is rounded to
# it once, by 2^-4 or 2^-3 at most, so two results differ by twice as much.
_TOLERANCES = {
    # longer formats than float64, by their names on different systems, are compared in float64
    **dict.fromkeys(("float96", "float128", "complex192", "complex256"), 1e-10),
    "float64": 1e-10,
    "complex128": 1e-10,
    "float32": 1e-4,
    "complex64": 1e-4,
    "tf32": 5e-3,
    "float16": 1e-2,
    "complex32": 1e-2,
    "bfloat16": 5e-2,
    "float8_e4m3fn": 2**-3,
    "float8_e4m3fnuz": 2**-3,
    "float8_e5m2": 2**-2,
    "float8_e5m2fnuz": 2**-2,
}
# Above this many operations a float64 product takes seconds on two cores: rows are sampled.
_WHOLE_PRODUCT = 2e9
_SAMPLED_ROWS = 64
# A float64 run costs two to four times a float32 run; a learner waits no longer than this for a
# check.
_LONGEST_CHECK_SECONDS = 5.0
_FLOAT64_COST = 3.0

# The libraries' functions for the product of two matrices. TensorFlow's is left out: its tensors
# cannot be indexed by an array of rows.
_PRODUCTS = {
    "numpy": ("matmul", "dot"),
    "torch": ("matmul", "mm"),
    "cupy": ("matmul", "dot"),
    "jax.numpy": ("matmul", "dot"),
}

Difference = Callable[[Any], float]


# How results are checked: a function that returns a result's difference from the reference (None
# where nothing can be checked), the tolerance, and notes on how the reference was made, where that
# is not the full float64 run.
Reference = tuple[Difference | None, float, tuple[Note, ...]]


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
        A name from the catalog (inputs are seeded and the same on every device), a function of
        ``args``, or a mapping of labels to functions, which are compared with each other on the
        same ``args``.
    devices : sequence of str or Device, optional
        One for each row; the first is the baseline. None takes the CPU and every accelerator. With
        a mapping, at most one.
    dtype : str
        Of the catalog's inputs.
    transfer : bool
        Also time each row with both copies.
    relative_width : float
        Stop when the interval of every row is this narrow, as in ``measure``.
    deadline : float
        Seconds of sampling for each row. The calls with copies come on top, and on a GPU with an
        energy counter the calls for which it is read (each at most half as long).
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
        transfer=transfer,
        tolerance=tolerance,
        clock=clock,
        conditions=conditions,
        params={"dtype": dtype, **params},
    )


def compare_within(
    limits: Limits,
    work: str | Workload | Callable[..., Any] | Functions,
    args: tuple[Any, ...],
    *,
    devices: Any = None,
    transfer: bool = False,
    tolerance: float | None = None,
    clock: Callable[[], float] | None = None,
    conditions: Callable[[], Readings] | None = None,
    params: Mapping[str, Any] = {},
    prepare: Callable[[], Any] | None = None,
) -> Comparison:
    """Compare as ``compare`` does, within limits that were checked already.

    ``prepare`` is called before each call that is sampled, outside of the timed part.
    """
    limits.say(0.0, "making inputs")
    label, jobs_by_name, workload = _gather(work, args, devices, clock or time.perf_counter, params)
    jobs, notes, agreement_notes = list(jobs_by_name.values()), list[Note](), list[Note]()
    differences: list[float | None] = []

    def first_result(job: Job) -> Any:
        """Return a copy of the first result: the next call may write into the same array."""
        return work_arrays.mapped(
            job.first_call(), lambda array, owner: array if owner.immutable else owner.copy(array)
        )

    def first_calls() -> None:
        """Make every first call and compare its result with the reference."""
        nonlocal tolerance
        if workload is not None:
            tolerance = workload.tolerance if tolerance is None else tolerance
            for name, job in jobs_by_name.items():
                limits.say(0.02, f"first call on {name}")
                result = job.attempt(job.first_call)
                differences.append(job.attempt(workload.difference, result, job.args))
            return
        precise = jobs[0].attempt(precise_copy, jobs[0].args)
        results = [job.attempt(first_result, job) for job in jobs]
        # the fastest first call on a CPU
        seconds = min((job.first_seconds for job in jobs if job.device.is_cpu), default=math.inf)
        check, usual, found = of_function(jobs[0].fn, jobs[0].args, precise, results[0], seconds)
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
        prepare=prepare,
    )
    limits.say(1.0, f"{label}: {plural(len(measurements[0].samples_seconds), 'sample')} of each")
    notes += agreement_notes
    if len(jobs) == 1 and devices is None and not isinstance(work, Mapping):
        notes.append(
            Note(
                "skipped",
                "PyTorch sees no accelerator on this machine, so there is one row and no speed-up. "
                "gl.recordings holds recordings of machines with an accelerator; `gpulab doctor` "
                "reports what is missing here.",
            )
        )
    return _judged(label, list(jobs_by_name), measurements, differences, tolerance, notes)


def _speedup(
    baseline: Measurement, m: Measurement
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the ratio of the medians and its interval.

    The interval from pairs of samples is the narrower one, but it is for the median of the ratios.
    That median differs from the ratio of the medians where a disturbance changed the two
    distributions differently. A table would then show a speed-up outside its own interval, so the
    wider interval, from the two medians, is taken.
    """
    if m.median_seconds <= 0:
        return None, None
    speedup = baseline.median_seconds / m.median_seconds
    _, paired = paired_ratio(baseline.samples_seconds, m.samples_seconds)
    if paired is not None and paired[0] <= speedup <= paired[1]:
        first, second = baseline.interval_seconds, m.interval_seconds
        if paired[0] == paired[1] and first and second and second[0] > 0:
            # The clock ticks so rarely that all pairs are equal: take the intervals of the medians,
            # which include its tick.
            return speedup, (first[0] / second[1], first[1] / second[0])
        return speedup, paired
    apart = ratio_interval(baseline.samples_seconds, m.samples_seconds)
    # Computed from logarithms, an end that should equal the ratio may be off by a rounding error.
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
        how = (
            f"by {max(known):.1e} of the reference's largest value ({tolerance:.1e} is allowed)"
            if math.isfinite(max(known))
            else "in shape, type or a truth value, or only one of the two has an infinity or nan "
            "at some place"
        )
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
        notes.append(no_interval("the samples determine no interval for the ratio", "speed-up"))
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
    params: Mapping[str, Any],
) -> _Compared:
    """Return what is compared: the label, the jobs, and the workload (None for functions).

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
            f"compare: got {', '.join(unknown)} with a function; expected such parameters only "
            "with a workload of the catalog. Pass the function's inputs as arrays of the size and "
            "dtype that you want."
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
            f"compare: devices={', '.join(map(str, places))} names a device twice; expected "
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
    params: Mapping[str, Any],
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
        what = (
            f"entries that are not a function under a text label ({', '.join(wrong)})"
            if wrong
            else "an empty mapping"
        )
        raise InputError(
            f"compare: got {what}; expected a mapping of labels to functions. Pass for example "
            "{'numpy': f, 'torch': g}."
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


# -- agreement ------------------------------------------------------------------------------------


def tolerance_for(dtypes: tuple[str, ...], tf32: bool) -> float:
    """Return the tolerance of the coarsest of the formats; 0 where all are integers."""
    names = ["tf32" if tf32 and name == "float32" else name for name in dtypes]
    return max((_TOLERANCES.get(name, 0.0) for name in names), default=_TOLERANCES["float32"])


def precise_copy(value: Any) -> Any:
    """Return host copies of all arrays, floating ones in float64 and complex ones in complex128."""

    def change(array: Any, owner: _backends.Backend) -> Any:
        if owner.name == "torch":
            host = array.detach().cpu()
            torch = sys.modules["torch"]
            kind = (
                torch.complex128
                if host.is_complex()
                else torch.float64
                if host.is_floating_point()
                else host.dtype
            )
            return host.to(kind, copy=True)
        # bfloat16 and other formats of JAX that numpy lacks
        host = owner.to_host(array) if owner.in_numpy(array) else np.asarray(array, np.float64)
        kind = {"f": np.float64, "c": np.complex128}.get(host.dtype.kind)
        # a masked array keeps its mask, and a matrix multiplies as one
        return np.array(host, dtype=kind, copy=True, subok=True)

    return work_arrays.mapped(value, change)


def flat(result: Any) -> list[np.ndarray]:
    """Return the arrays and numbers of a result as numpy arrays of the highest precision, in
    order. A list of numbers is one array, and so is a list of such lists of one length.
    """
    # number by number, the comparison of a long list would take minutes
    numbers = result if isinstance(result, list) and result else [result]
    if all(isinstance(number, (int, float, complex, np.generic)) for number in numbers):
        return [np.asarray(result)]
    if isinstance(result, dict):
        # by key: two functions may fill it in different orders
        items = sorted(result.items(), key=lambda pair: str(pair[0]))
        return [array for _, item in items for array in flat(item)]
    if isinstance(result, (tuple, list)):
        found = [array for item in result for array in flat(item)]
        are_rows = (
            isinstance(result, list)
            and all(isinstance(item, list) for item in result)
            and len(found) == len(result)
            and len({array.shape for array in found}) == 1
        )
        return [np.stack(found)] if are_rows else found
    if _backends.backend_of(result) is None:
        return []
    exact = precise_copy(result)
    if isinstance(exact, np.ndarray):
        return [np.asarray(exact)]
    dense = exact.to_dense() if _is_sparse(exact) else exact
    return [dense.resolve_conj().resolve_neg().numpy()]


def _is_sparse(array: Any) -> bool:
    """Return whether this is a PyTorch tensor with a sparse layout."""
    torch = sys.modules.get("torch")
    return (
        torch is not None and isinstance(array, torch.Tensor) and array.layout is not torch.strided
    )


def relative_difference(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest max|a - b| / max|b| of the pairs; infinite where shapes differ or a value
    is not finite on one side only.
    """
    if len(got) != len(expected):
        return math.inf
    return max((_pair_difference(a, b) for a, b in zip(got, expected, strict=True)), default=0.0)


def _pair_difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return math.inf
    kinds = {a.dtype.kind, b.dtype.kind}
    if kinds & set("bSUO"):  # truth values, texts, Python's own objects
        return 0.0 if a.tolist() == b.tolist() else math.inf
    least = 0.0
    if kinds <= set("iu"):  # integers: their difference could wrap around
        # float64 rounds beyond 2^53, but integers that differ do so by at least 1
        least, a, b = float(np.any(a != b)), a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return math.inf
    a, b = a[finite], b[finite]
    distance = max(least, float(np.max(np.abs(a - b), initial=0.0)))
    size = float(np.max(np.abs(b), initial=0.0))
    return distance / size if size > 0 else distance


def _sampled_product(fn: Any, args: tuple[Any, ...], tolerance: float) -> Reference | None:
    """Return a reference for a large product of two dense matrices: some of its rows in float64.
    None for a small product, and for a function that is not a library's own matrix product.
    """
    if fn is not operator.matmul and not any(
        fn is getattr(sys.modules.get(library), word, None)
        for library, words in _PRODUCTS.items()
        for word in words
    ):
        return None
    if len(args) != 2 or any(getattr(array, "ndim", 0) != 2 or _is_sparse(array) for array in args):
        return None  # PyTorch cannot index the rows of a sparse matrix
    a, b = args
    rows, inner = (int(n) for n in a.shape)
    if 2.0 * rows * inner * int(b.shape[1]) <= _WHOLE_PRODUCT or rows <= _SAMPLED_ROWS:
        return None
    chosen = np.unique(np.linspace(0, rows - 1, _SAMPLED_ROWS).astype(int))
    expected = flat(flat(precise_copy(a[chosen]))[0] @ flat(precise_copy(b))[0])

    def difference(result: Any) -> float:
        if getattr(result, "ndim", 0) != 2 or tuple(result.shape) != (rows, int(b.shape[1])):
            return math.inf
        return relative_difference(flat(result[chosen]), expected)

    note = Note(
        "skipped",
        f"the product is large: {len(chosen)} of its {rows} rows, evenly spaced, were checked "
        "against float64; the others were not.",
    )
    return difference, tolerance, (note,)


def of_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    precise_args: tuple[Any, ...],
    first: Any,
    call_seconds: float,
) -> Reference:
    """Return the reference for the caller's own function.

    Parameters
    ----------
    fn, args
        The baseline's function and inputs.
    precise_args : tuple
        ``precise_copy`` of the inputs, made before the first call could change them.
    first : object
        The baseline's first result: the reference where a float64 run is not possible.
    call_seconds : float
        The fastest first call on the CPU, to decide whether a float64 run is affordable; infinite
        where none ran there.
    """
    tolerance = tolerance_for(
        # inputs in float8 are exact in the wider format that the work is done in
        (
            *(name for name in work_arrays.dtypes_in(args) if not name.startswith("float8")),
            *work_arrays.dtypes_in(first),
        ),
        len(_devices.available()) > 1 and "tf32" in _devices.arithmetic("float32", "cuda"),
    )
    sampled = _sampled_product(fn, args, tolerance)
    if sampled is not None:
        return sampled
    why = "no call ran on the CPU, which would show how long a float64 run there takes"
    if math.isfinite(call_seconds):
        why = f"a float64 run would take about {_FLOAT64_COST * call_seconds:.0f} s"
    expected = None
    if _FLOAT64_COST * call_seconds <= _LONGEST_CHECK_SECONDS:
        try:
            expected = flat(fn(*precise_args))
        except Exception as error:
            # the caller's function may refuse float64; then its first result is the reference
            why = f"the function raised {type(error).__name__} on float64 copies of its inputs"
    notes: tuple[Note, ...] = ()
    if expected is None:
        sentence = (
            f"{why}, so the results were compared with the baseline's result, not with a more "
            "precise one. Check the baseline separately."
        )
        expected, notes = flat(first), (Note("skipped", sentence),)
    if not expected:
        sentence = (
            "the function returns neither an array nor a number, so agreement could not be "
            "checked. If it has a result, return it."
        )
        return None, tolerance, (Note("skipped", sentence),)
    # a result of whole numbers may be a fraction, such as a mean, which is rounded
    tolerance = tolerance or tolerance_for(tuple(array.dtype.name for array in expected), False)
    return lambda result: relative_difference(flat(result), expected), tolerance, notes
