"""The same work on several devices, or several ways to do it: results first, then turns, then the
speed-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from gpulab import _given
from gpulab.devices.conditions import Readings
from gpulab.errors import StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.timing import _agreement, _notes
from gpulab.timing._agreement import Reference
from gpulab.timing._contenders import Contender, Field, Functions, affordable_seconds, gather
from gpulab.timing._job import Limits, calm_collector, measurement, reader, translated, turns
from gpulab.timing._measure import TRANSFER_SHARE, Copies, check_numbers, tell_stopped
from gpulab.timing.results import Comparison, ComparisonRow, Measurement
from gpulab.timing.sampling import FEWEST_SAMPLES, Progress, Run, Sampled, Stop, sample_in_turns
from gpulab.timing.statistics import ratio_interval
from gpulab.units import plural
from gpulab.workloads import Workload


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
    progress: Progress | None = None,
    stop: Stop | None = None,
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
        Seconds of sampling for each row; the copies come on top (at most half of it).
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
    check_numbers(
        "compare",
        relative_width=relative_width,
        deadline=deadline,
        **({} if tolerance is None else {"tolerance": tolerance}),
    )
    transfer = _given.flag("compare", "transfer", transfer)
    limits = Limits.given("compare", relative_width, deadline, progress, stop)
    return compare_within(
        limits,
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
    fewest: int = FEWEST_SAMPLES,
    patience: float = 0.0,
) -> Comparison:
    """Compare within limits that were checked; past their deadline ``fewest`` samples of each may
    take ``patience`` seconds each.
    """
    if limits.stopped():
        raise StoppedError(
            "compare: stopped before anything ran; there is nothing to report. Run it again."
        )
    limits.say(0.0, "making inputs")
    field = gather(
        work,
        args,
        devices,
        _given.clock("compare", clock) or time.perf_counter,
        {"dtype": dtype, **(params or {})},
    )
    read = _given.callback("compare", "conditions", conditions)
    race = _Race(field, limits, live=clock is None, read=read, fewest=fewest, patience=patience)
    notes: list[Note] = []
    with ExitStack() as stack:
        race.collections = stack.enter_context(calm_collector(race.clock))
        named = {contender.job.device for contender in field.contenders}
        if clock is None:
            stack.enter_context(turns(named, limits, notes))
        differences = race.first_calls(tolerance)
        if clock is None:  # first results may have shown other devices: their turns are needed too
            stack.enter_context(
                turns(
                    {contender.job.device for contender in field.contenders} - named, limits, notes
                )
            )
        measurements = race.measure(transfer)
    limits.say(
        1.0, f"{field.label}: {plural(len(measurements[0].samples_seconds), 'sample')} of each"
    )
    notes += race.reference.notes if race.reference is not None else ()
    if len(field.contenders) == 1 and devices is None and not field.methods:
        notes.append(_notes.NO_ACCELERATOR)
    return _judged(field, measurements, differences, race.tolerance, notes)


class _Race:
    """A comparison under way."""

    def __init__(
        self,
        field: Field,
        limits: Limits,
        live: bool,
        read: Callable[[], Readings] | None,
        fewest: int,
        patience: float,
    ) -> None:
        self.contenders = field.contenders
        self.limits = limits
        self.clock = field.contenders[0].job.clock
        self.reference: Reference | None = None
        self.tolerance: float | None = None
        self.fewest, self.patience = fewest, patience
        self._live, self._read = live, read
        self.collections: list[float] = []

    def first_calls(self, tolerance: float | None) -> list[float | None]:
        """Make every first call and hold its result against the reference; return the
        differences.
        """
        workload, first = self.contenders[0].workload, self.contenders[0].job
        if workload is not None:
            self.tolerance = workload.tolerance if tolerance is None else tolerance
            return [self._first_call_of(contender, workload) for contender in self.contenders]
        precise = _agreement.precise_copy(first.args)
        results = []
        for contender in self.contenders:
            with translated(contender.job):
                results.append(contender.job.first_call())
        self.reference = _agreement.of_function(
            first.fn, first.args, precise, results[0], affordable_seconds(self.contenders)
        )
        self.tolerance = self.reference.tolerance if tolerance is None else tolerance
        difference = self.reference.difference
        return [None if difference is None else difference(result) for result in results]

    def _first_call_of(self, contender: Contender, workload: Workload) -> float:
        self.limits.say(0.02, f"first call on {contender.name}")
        with translated(contender.job):
            return workload.difference(contender.job.first_call(), contender.job.args)

    def measure(self, transfer: bool) -> list[Measurement]:
        """Warm up, take turns, time the copies."""
        jobs = [contender.job for contender in self.contenders]
        for job in jobs:
            job.read = self._read or (reader(job.device) if self._live else None)
        befores = [job.read() if job.read is not None else None for job in jobs]
        for job in jobs:
            with translated(job):
                job.warm_up(self.limits.deadline, self.limits.stop)
        loops = [job.loops() for job in jobs]
        warm, end = [job.warm_seconds for job in jobs], 0.7 if transfer else 0.99
        works = [
            self._named(contender, loop.work)
            for contender, loop in zip(self.contenders, loops, strict=True)
        ]
        self.collections.clear()
        sampled = self._in_turns(works, [loop.empty for loop in loops], warm, 0.05, end, 1.0)
        if any(len(one.samples_seconds) == 0 for one in sampled):
            raise StoppedError(
                "compare: stopped before every row had a sample; there is nothing to compare. Run "
                "it again."
            )
        afters = [job.read() if job.read is not None else None for job in jobs]
        for job, samples, before, after in zip(jobs, sampled, befores, afters, strict=True):
            job.notes += _notes.of_sampling(
                job, samples, self.limits, before, after, self.collections, alone=len(jobs) == 1
            )
            job.notes += _notes.of_physics(job, float(np.median(samples.samples_seconds)))
        moved = self._copies() if transfer else [None] * len(jobs)
        return [
            measurement(job, samples, seconds)
            for job, samples, seconds in zip(jobs, sampled, moved, strict=True)
        ]

    def _in_turns(
        self,
        runs: Sequence[Run],
        empties: Sequence[Run | None],
        warm: Sequence[float],
        start: float,
        end: float,
        share: float,
    ) -> list[Sampled]:
        """Sample the runs in turns; each row has ``share`` of the deadline."""
        limits = self.limits.part(start, end, share * self.limits.deadline * len(runs))
        return sample_in_turns(
            runs,
            self.clock,
            empties=empties,
            call_seconds=warm,
            relative_width=limits.relative_width,
            deadline=limits.deadline,
            fewest=self.fewest,
            patience=self.patience * len(runs),
            progress=limits.progress,
            stop=limits.stop,
        )

    def _named(self, contender: Contender, run: Run, keep: bool = True) -> Run:
        """Return the run with the contender's own error messages."""
        counted = contender.job.counting(run, keep)

        def translating(calls: int) -> tuple[float, float]:
            with translated(contender.job):
                return counted(calls)

        return translating

    def _copies(self) -> list[float | None]:
        """Return each row's median with both copies, taken in turns too."""
        if self.limits.stopped():
            for contender in self.contenders:
                tell_stopped(contender.job, 0)
            return [None] * len(self.contenders)
        runs = []
        for contender in self.contenders:
            with translated(contender.job):  # the inputs go to the device once more
                runs.append(self._named(contender, Copies(contender.job).run, keep=False))
        warm = [run(1)[1] for run in runs]
        sampled = self._in_turns(runs, [None] * len(runs), warm, 0.7, 0.99, TRANSFER_SHARE)
        for contender, one in zip(self.contenders, sampled, strict=True):
            if one.stopped_by == "stopped":
                tell_stopped(contender.job, len(one.samples_seconds))
        return [
            float(np.median(one.samples_seconds)) if len(one.samples_seconds) else None
            for one in sampled
        ]


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
    paired, _ = ratio_interval(baseline.samples_seconds, m.samples_seconds, paired=True)
    if paired is not None and paired[0] <= speedup <= paired[1]:
        return speedup, paired
    apart, _ = ratio_interval(baseline.samples_seconds, m.samples_seconds)
    # It is made of logarithms, so an end that equals the ratio can lie a rounding error beside it.
    return speedup, None if apart is None else (min(apart[0], speedup), max(apart[1], speedup))


def _judged(
    field: Field,
    measurements: list[Measurement],
    differences: list[float | None],
    tolerance: float | None,
    notes: list[Note],
) -> Comparison:
    """Return the comparison: speed-ups only where results agree and no time is impossible."""
    agrees = [
        difference is None or tolerance is None or difference <= tolerance
        for difference in differences
    ]
    names = [contender.name for contender in field.contenders]
    baseline = measurements[0]
    rows = []
    for name, m, difference, agreed in zip(names, measurements, differences, agrees, strict=True):
        honest = (
            m is not baseline
            and agreed
            and agrees[0]
            and not m.has_note("implausible")
            and not baseline.has_note("implausible")
        )
        speedup, interval = _speedup(baseline, m) if honest else (None, None)
        rows.append(ComparisonRow(name, m, speedup, interval, difference))
    bad = [name for name, agreed in zip(names, agrees, strict=True) if not agreed]
    if bad:
        notes.append(
            _notes.disagree(bad, max(d for d in differences if d is not None), tolerance or 0.0)
        )
    impossible = [
        name for name, m in zip(names, measurements, strict=True) if m.has_note("implausible")
    ]
    if impossible and len(rows) > 1:
        notes.append(_notes.no_speedup_of_impossible(impossible))
    others = [row for row in rows[1:] if row.speedup is not None]
    best = (
        min(others, key=lambda row: row.measurement.median_seconds, default=None)
        if not bad
        else None
    )
    if best is not None and best.speedup_interval is None:
        notes.append(_notes.no_interval("the samples do not determine an interval for the ratio"))
    known = [difference for difference in differences if difference is not None]
    return Comparison(
        label=field.label,
        rows=tuple(rows),
        speedup=best.speedup if best is not None else None,
        speedup_interval=best.speedup_interval if best is not None else None,
        max_relative_difference=max(known, default=None),
        tolerance=tolerance,
        notes=_notes.ordered(notes),
        evidence=Evidence.measured(
            " and ".join(dict.fromkeys(m.environment.device for m in measurements)),
            sum(len(m.samples_seconds) for m in measurements),
            baseline.environment.date,
            next((m.evidence.assumptions for m in measurements if m.evidence.assumptions), None),
        ),
    )
