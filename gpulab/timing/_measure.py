"""Measure one function on one device: the first call, the three times, the notes.

This module only runs the steps. ``sampling`` takes the samples, ``statistics`` computes the
interval, and ``detect`` and ``plausibility`` make the notes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from gpulab import _given
from gpulab import devices as _devices
from gpulab.devices import Device
from gpulab.devices.conditions import Readings
from gpulab.errors import InputError, StoppedError, kind_of, shown
from gpulab.timing import _copies, _notes, _work
from gpulab.timing._cold import cold_run, flusher
from gpulab.timing._job import Job, Limits, calm_collector, measurement, reader, translated, turns
from gpulab.timing.results import Measurement
from gpulab.timing.sampling import Progress, Sampled, Stop, sample
from gpulab.units import plural

# The copies get their own sampling, a part of the deadline.
TRANSFER_SHARE = 0.5


def measure(
    fn: Callable[..., Any],
    *args: Any,
    device: Any = None,
    relative_width: float = 0.02,
    deadline: float = 2.0,
    transfer: bool = False,
    cold: bool = False,
    flops: float | None = None,
    nbytes: float | None = None,
    clock: Callable[[], float] | None = None,
    label: str | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    conditions: Callable[[], Readings] | None = None,
) -> Measurement:
    """Return the time of ``fn(*args)`` with a 95 % interval, three times side by side, and notes on
    anything that casts doubt on it.

    Parameters
    ----------
    fn : callable
        Called many times with ``args``; its result is dropped. Arrays may be of any library that
        gpulab knows; those of others on a CUDA device, such as Numba's own, are waited for too. Let
        a function of JAX return its result: its calls return before the work is done, and only the
        result can be waited for.
    device : None, str or Device, optional
        Where ``fn`` works. None looks at the arrays among the arguments, those that ``fn`` holds,
        and its first result. Nothing is moved to it (except with ``transfer``): if the arrays are
        on another accelerator, that one is waited for too, with a note. On a CPU nothing is waited
        for: a function that only starts a thread gets the note ``implausible`` where ``nbytes`` or
        ``flops`` are given.
    relative_width : float
        Stop when (high - low) / median of the interval is this small, 0 to 1.
    deadline : float
        Stop sampling after this many seconds; the first call and the copies come on top (the latter
        at most half of it).
    transfer : bool
        Also time the call with host inputs copied to the device and the result copied back. Inputs
        on the host are placed on the device before the other times are taken (numpy arrays become
        torch tensors there).
    cold : bool
        Empty the device's caches before each call.
    flops, nbytes : float, optional
        Of one call: operations, and bytes that must be read and written; then the rates are checked
        against physics.
    clock : callable, optional
        Returns seconds. If given, no other clock and no machine counters are read, and no turn is
        taken.
    label : str, optional
        What tables call it.
    progress : callable, optional
        Gets a fraction 0-1 and a short text.
    stop : callable, optional
        Called between calls of ``fn``; True ends the sampling with the note ``stopped``.
    conditions : callable, optional
        Gives the machine's counters, for tests.

    Returns
    -------
    Measurement

    Raises
    ------
    InputError
        If an argument is not usable (not callable, not finite, not positive).
    DeviceError
        If the machine has no such device, or the device vanished.
    OutOfMemoryError
        If ``fn`` ran out of memory.
    MeasurementError
        If ``fn`` raised; ``.partial`` holds what was measured until then.
    StoppedError
        If ``stop`` said so before there was a sample.

    Examples
    --------
    >>> import numpy as np
    >>> m = measure(np.sort, np.arange(1000.0), deadline=0.1)
    >>> m.device, m.median_seconds < m.first_call_seconds * 100
    ('cpu', True)
    """
    _check_callable(fn)
    check_numbers("measure", relative_width=relative_width, deadline=deadline)
    check_counts(flops=flops, nbytes=nbytes)
    transfer, cold = (
        _given.flag("measure", "transfer", transfer),
        _given.flag("measure", "cold", cold),
    )
    limits = Limits.given("measure", relative_width, deadline, progress, stop)
    where = (
        _devices.find(device) if device is not None else _work.device_of(fn, args) or Device("cpu")
    )
    job = Job(
        fn=fn,
        args=args,
        device=where,
        given=device is not None,
        label=_label("measure", label) or _work.label_of(fn),
        clock=_given.clock("measure", clock) or time.perf_counter,
        read=_given.callback("measure", "conditions", conditions),
        flops=flops,
        nbytes=nbytes,
    )
    return run_job(job, limits, transfer=transfer, cold=cold, live=clock is None)


def _check_callable(fn: Any) -> None:
    if isinstance(fn, str):
        raise InputError(
            f"measure: got the text {fn[:40]!r}; expected a function. Use gl.compare({fn[:40]!r}) "
            "for a catalogue workload, or "
            f"gl.workloads.get(name)."
        )
    if not callable(fn):
        raise InputError(
            f"measure: got {kind_of(fn)}; expected a function and its arguments. Write "
            "gl.measure(f, x), not gl.measure(f(x))."
        )


def _label(function: str, label: Any) -> str | None:
    if label is not None and not isinstance(label, str):
        raise InputError(
            f"{function}: label={shown(label)}; expected text. Leave it out to use the function's "
            "name."
        )
    return label


def check_numbers(function: str, **values: Any) -> None:
    """Raise InputError where one of the numbers is not finite and above 0."""
    for name, value in values.items():
        if not _given.is_finite(value) or value <= 0:
            raise InputError(
                f"{function}: {name}={shown(value)}; expected a finite number above 0. Leave it "
                "out to use the default."
            )


def check_counts(**values: Any) -> None:
    """Raise InputError where one of the counts is given and not finite or below 0."""
    for name, value in values.items():
        if value is not None and (not _given.is_finite(value) or value < 0):
            raise InputError(
                f"measure: {name}={shown(value)}; expected a finite count of at least 0. Leave it "
                "out if it is not known."
            )


def run_job(job: Job, limits: Limits, *, transfer: bool, cold: bool, live: bool) -> Measurement:
    """Run a measurement from the turn to the notes; ``live`` takes turns and reads the machine's
    counters.
    """
    if limits.stopped():
        raise StoppedError(
            f"measure: stopped before {job.label} was called; there is nothing to report. Run it "
            "again."
        )
    named = job.device
    with ExitStack() as stack:
        collections = stack.enter_context(calm_collector(job.clock))
        if live:
            stack.enter_context(turns((named,), limits, job.notes))
        stack.enter_context(translated(job))
        copies = Copies(job) if transfer else None
        limits.say(0.0, f"first call of {job.label}")
        job.first_call()
        # the first result showed another device: its turn is needed too
        if live and job.device != named:
            stack.enter_context(turns((job.device,), limits, job.notes))
        if live and job.read is None:
            job.read = reader(job.device)
        before = job.read() if job.read is not None else None
        job.warm_up(limits.deadline, limits.stop)
        collections.clear()
        sampled = _sample(job, limits.part(0.05, 0.7 if transfer else 0.99, limits.deadline), cold)
        after = job.read() if job.read is not None else None
        job.notes += _notes.of_sampling(job, sampled, limits, before, after, collections)
        moved = (
            copies.median(limits.part(0.7, 0.99, TRANSFER_SHARE * limits.deadline))
            if copies is not None
            else None
        )
        job.notes += _notes.of_physics(job, float(np.median(sampled.samples_seconds)), cold)
    limits.say(1.0, f"{job.label}: {plural(len(sampled.samples_seconds), 'sample')}")
    return measurement(job, sampled, moved, cold)


def _sample(job: Job, limits: Limits, cold: bool) -> Sampled:
    options: dict[str, Any] = {
        "relative_width": limits.relative_width,
        "deadline": limits.deadline,
        "progress": limits.progress,
        "stop": limits.stop,
        "call_seconds": job.warm_seconds,
    }
    if cold:
        run = cold_run(job.fn, job.args, job.wait(), job.clock, flusher(job.device), job.finish)
        sampled = sample(job.counting(run), job.clock, **options)
    else:
        loops = job.loops()
        sampled = sample(job.counting(loops.work), job.clock, empty=loops.empty, **options)
    if len(sampled.samples_seconds) == 0:
        raise StoppedError(
            f"measure: stopped before {job.label} had one sample; there is nothing to report. Run "
            "it again."
        )
    return sampled


class Copies:
    """The call with both copies: keeps the host inputs, places the job's arguments on the device,
    times all three steps.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.host = _copies.on_host(job.args)
        self.inward = _copies.to_device_like(job.args, job.device)
        if job.device.is_cpu:
            job.notes.append(_notes.HOST_COPIES)
        else:
            job.args = self.inward(self.host)

    def run(self, calls: int) -> tuple[float, float]:
        """Copy in, call, copy out, ``calls`` times, each until the device has finished; a result
        that is not an array is not copied.
        """
        clock, fn, host, inward = self.job.clock, self.job.fn, self.host, self.inward
        wait, finish = self.job.wait(), self.job.finish
        start = clock()
        for _ in range(calls):
            result = fn(*inward(host))
            _copies.back_to_host(result)
            if finish is not None:
                finish(result)
            del result  # before the next call makes its own
            wait()
        seconds = clock() - start
        return seconds, seconds

    def median(self, limits: Limits) -> float | None:
        """Return the median seconds of copy in, call, copy out; None if stopped before a sample."""
        if limits.stopped():
            tell_stopped(self.job, 0)
            return None
        run = self.job.counting(self.run, keep=False)
        _, warm_seconds = run(1)
        sampled = sample(
            run,
            self.job.clock,
            call_seconds=warm_seconds,
            relative_width=limits.relative_width,
            deadline=limits.deadline,
            progress=limits.progress,
            stop=limits.stop,
        )
        if sampled.stopped_by == "stopped":
            tell_stopped(self.job, len(sampled.samples_seconds))
        return float(np.median(sampled.samples_seconds)) if len(sampled.samples_seconds) else None


def tell_stopped(job: Job, count: int) -> None:
    """Note that the copies were stopped, unless the sampling before them was."""
    if not any(note.code == "stopped" for note in job.notes):
        job.notes.append(_notes.copies_stopped(count))
