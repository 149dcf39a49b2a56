"""Measure functions: the first call, the three times, the notes.

``measure`` times one function; ``compare`` times several that take turns. Both call ``in_turns``,
which does a whole measurement: it takes the turns on the devices, samples, and collects the notes.
``sampling`` takes the samples, ``statistics`` computes the interval, ``notes`` reports what is
wrong with a figure. ``Series`` is for several measurements with one deadline, such as a sweep over
sizes.

Measurements of one device take turns, across all processes of the machine: an advisory lock on a
small file per device, taken with ``flock`` (``msvcrt`` on Windows), so the system itself frees it
when a process dies. It never deadlocks: waiting has a time limit, after which the measurement goes
on with a note. The lock works between gpulab's measurements only, in threads and processes alike;
the load of other programs shows in the machine's counters (``devices.conditions``).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gpulab import _backends, _validate
from gpulab import devices as _devices
from gpulab._files import open_regular, try_lock
from gpulab.devices import Device, conditions
from gpulab.devices.conditions import Readings
from gpulab.devices.nvml import ENERGY_STEP_SECONDS
from gpulab.errors import (
    GpulabError,
    MeasurementError,
    StoppedError,
    message_of,
)
from gpulab.evidence import Environment, Evidence, Note
from gpulab.timing import notes, work_arrays
from gpulab.timing.measurement import Measurement
from gpulab.timing.sampling import (
    Limits,
    Progress,
    Run,
    Sampled,
    Stop,
    make_loops,
    make_single_call_loops,
    sample_in_turns,
)
from gpulab.units import format_seconds, plural

T = TypeVar("T")
# Warm-up after the first call: enough for caches, allocators and branch predictors; a GPU also
# needs time to raise its clock.
_WARM_SECONDS = {True: 0.02, False: 0.1}  # by ``is_cpu``; a short deadline gets less
_WARM_SHARE = 0.05
_WARM_MOST_CALLS = 50
# The calls with copies are sampled apart, for this share of the deadline. So is the energy of each
# row of a comparison, since calls that take turns are too short for the counter.
_TRANSFER_SHARE = 0.5
_ENERGY_SHARE = 0.5
# After this time the counter's step is a tenth of the time counted. More time would run a slow
# function for its energy alone.
_ENERGY_MOST_SECONDS = 1.0
# The operations of float32 for which PyTorch has a switch for TF32.
_SWITCHES = {"matmul": "matrix products", "convolution": "convolutions"}
_OTHER_SWITCHES = {"cupy", "jax", "tensorflow"}  # libraries that do not look at PyTorch's

# Long enough for the measurements of a few neighbors (two seconds each), short enough for a
# learner who waits.
_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.01
_FOLDER_VARIABLE = "GPULAB_LOCK_DIR"

_AMOUNT = functools.partial(_validate.within, advice="Leave it out if it is not known.")
# The rules for the arguments that ``measure`` and ``compare`` share. No interval becomes as narrow
# as the smallest ``relative_width``: with it, sampling lasts until the deadline.
SAMPLING_RULES: dict[str, Callable[[str, str, Any], Any]] = {
    "relative_width": functools.partial(
        _validate.within,
        low=1e-30,
        high=1.0,
        advice="Pass a share of the median, such as 0.02 for an interval of 2 %.",
    ),
    "deadline": _validate.deadline,
    "progress": _validate.hook,
    "stop": _validate.hook,
    "transfer": _validate.flag,
    "clock": _validate.clock,
    "conditions": _validate.callback,
}


@_validate.arguments(
    fn=functools.partial(
        _validate.instance,
        kind=Callable,
        expected="a function and its arguments. Write gl.measure(f, x), not gl.measure(f(x)); for "
        'a catalog workload gl.compare("matmul").',
    ),
    **SAMPLING_RULES,
    cold=_validate.flag,
    flops=_AMOUNT,
    nbytes=_AMOUNT,
)
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
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
    conditions: Callable[[], Readings] | None = None,
) -> Measurement:
    """Return the time of ``fn(*args)`` with a 95 % interval, three times side by side, and notes on
    anything that casts doubt on it.

    Parameters
    ----------
    fn : callable
        Called many times with ``args``; its result is dropped. For keyword arguments pass a lambda
        or a ``functools.partial``. Arrays may be of any library that gpulab knows. Arrays of other
        libraries on a CUDA device, such as Numba's own, are waited for too. Let a function of JAX
        return its result: its calls return before the work is done, and only the result can be
        waited for.
    device : None, str or Device, optional
        Where ``fn`` works. None takes the device of the arrays among the arguments, of those that
        ``fn`` holds, or of its first result. The inputs stay where they are (except with
        ``transfer``): if they are on another accelerator than the one named, both are waited for,
        with a note. On a CPU nothing is waited for: a function that only starts a thread gets the
        note ``implausible`` where ``nbytes`` or ``flops`` are given.
    relative_width : float
        Stop when (high - low) / median of the interval is this small, 0 to 1.
    deadline : float
        Stop sampling after this many seconds; the first call, the warm-up and the calls with copies
        come on top (the last at most half as long).
    transfer : bool
        Also time the call with host inputs copied to the device and the result copied back, into
        the same pageable host memory each time. Inputs on the host are placed on the device before
        the other times are taken (numpy arrays become torch tensors there).
    cold : bool
        Empty the device's caches before each call.
    flops, nbytes : float, optional
        Of one call: operations, and bytes that must be read and written; then the rates are checked
        against physics.
    clock : callable, optional
        Returns seconds. If given, no other clock and no machine counters are read, and no turn is
        taken.
    label : str, optional
        The measurement's name in tables.
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
        If ``fn`` raised.
    StoppedError
        If ``stop`` returned True before there was a sample.

    Examples
    --------
    >>> import numpy as np
    >>> m = measure(np.sort, np.arange(1000.0), deadline=0.1)
    >>> m.device, m.median_seconds < m.first_call_seconds * 100
    ('cpu', True)
    """
    limits = Limits(relative_width, deadline, progress, stop)
    where = _devices.find(device) if device is not None else work_arrays.device_of(fn, args)
    job = Job(
        fn=fn,
        args=args,
        device=where or Device("cpu"),
        is_named=device is not None,
        label=str(label or work_arrays.label_of(fn)),
        clock=clock or time.perf_counter,
        flops=flops,
        nbytes=nbytes,
    )
    (m,) = in_turns(
        "measure",
        [job],
        limits,
        functools.partial(job.attempt, job.first_call),
        job.notes,
        transfer=transfer,
        cold=cold,
        is_live=clock is None,
        scripted=conditions,
    )
    limits.say(1.0, f"{job.label}: {plural(len(m.samples_seconds), 'sample')}")
    return m


def in_turns(
    function: str,
    jobs: list[Job],
    limits: Limits,
    first_calls: Callable[[], Any],
    turn_notes: list[Note],
    *,
    transfer: bool,
    cold: bool = False,
    is_live: bool,
    scripted: Callable[[], Readings] | None,
    prepare: Callable[[], Any] | None = None,
) -> list[Measurement]:
    """Measure jobs whose calls take turns: take the turns on their devices, sample, collect the
    notes.

    Parameters
    ----------
    function : str
        The public function that messages begin with.
    jobs : list of Job
    limits : Limits
        ``deadline`` and ``patience`` are for each job.
    first_calls : callable
        Makes the first call of every job, once their devices' turns are held.
    turn_notes : list of Note
        Receives the notes on waiting for the turns.
    transfer, cold : bool
        As in ``measure``.
    is_live : bool
        Whether turns are taken with other processes, and the machine's counters are read.
    scripted : callable or None
        Gives the counters, for tests.
    prepare : callable, optional
        Called before each call that is sampled, outside of the timed part.
    """
    clock, count = jobs[0].clock, len(jobs)
    nothing_yet = (
        f"{function}: stopped before {' and '.join(job.label for job in jobs)} had one sample; "
        "there is nothing to report. Run it again."
    )
    if limits.stop():
        raise StoppedError(nothing_yet)
    read: Callable[..., Any] = conditions.read if is_live else lambda *_: None
    if scripted is not None:
        read = lambda *_: scripted()  # noqa: E731
    together = limits._replace(deadline=count * limits.deadline, patience=count * limits.patience)
    with contextlib.ExitStack() as stack:
        stack.enter_context(calm_collector())
        if is_live:
            take_turns(jobs, stack, turn_notes, limits)
        copies = [job.attempt(job.with_copies) for job in jobs if transfer]
        limits.say(0.0, f"first call of {jobs[0].label}")
        first_calls()
        if is_live:  # first results may have shown other devices
            take_turns(jobs, stack, turn_notes, limits)
        before, made = [read(job.device, None) for job in jobs], jobs[0].calls
        loops = [job.attempt(job.loops, limits, cold, prepare) for job in jobs]
        runs = [functools.partial(job.run, run) for job, (run, _) in zip(jobs, loops, strict=True)]
        samples = sample_in_turns(
            runs,
            clock,
            [empty for _, empty in loops],
            [job.warm_seconds for job in jobs],
            together._replace(span=(0.05, 0.7 if transfer else 0.99)),
        )
        if any(len(one.samples_seconds) == 0 for one in samples):
            raise StoppedError(nothing_yet)
        # read all counters before any note is made: some notes query the machine, which takes time
        after = [read(job.device, last) for job, last in zip(jobs, before, strict=True)]
        for job, one, first, last in zip(jobs, samples, before, after, strict=True):
            job.notes += notes.of_sampling(
                job, one, limits, first, last, alone=count == 1, cold=cold
            )
        # after all notes, because this makes more calls
        for job, run, one, first, last in zip(jobs, runs, samples, before, after, strict=True):
            if (
                (first is not None and last is not None and last.gpu is not None)
                # the GPU would also count what is done before each call
                and not (cold or prepare)
            ):
                again = functools.partial(run, one.calls_per_sample) if count > 1 else None
                _keep_energy(job, read, first, last, job.calls - made, again, limits)
        copied = _copied_seconds(jobs, copies, together) if transfer else [None] * len(jobs)
    return [
        _measurement(job, one, seconds, cold)
        for job, one, seconds in zip(jobs, samples, copied, strict=True)
    ]


def _keep_energy(
    job: Job,
    read: Callable[..., Any],
    first: Readings,
    last: Readings,
    calls: int,
    again: Callable[[], Any] | None,
    limits: Limits,
) -> None:
    """Store a job's energy per call from two readings of the GPU's counter, or add a note where no
    more than one step of the counter lies between them.

    Each reading may be as old as the counter's step; this gives the error. In a comparison, calls
    that take turns are too short for the counter: then ``again`` is called for a while, and the
    energy of these calls is stored instead.
    """
    if again is not None and last.gpu is not None and last.gpu.energy_joules is not None:
        end = job.clock() + min(_ENERGY_MOST_SECONDS, _ENERGY_SHARE * limits.deadline)
        first, calls = read(job.device, last), -job.calls
        while job.clock() < end and not limits.stop():
            again()
        last, calls = read(job.device, first), calls + job.calls
    start, stop = (one.gpu.energy_joules if one.gpu else None for one in (first, last))
    if start is None or stop is None:
        return
    seconds, joules = last.seconds - first.seconds, (stop - start) / max(calls, 1)
    if seconds > ENERGY_STEP_SECONDS and joules > 0:
        job.energy = joules, joules * ENERGY_STEP_SECONDS / seconds
        return
    job.notes.append(
        Note(
            "skipped",
            "the GPU's energy counter is updated about every "
            f"{format_seconds(ENERGY_STEP_SECONDS)}, and the calls took {format_seconds(seconds)}, "
            "so the energy per call is not known. Pass a longer deadline.",
        )
    )


def _copied_seconds(jobs: list[Job], copies: list[Run], limits: Limits) -> list[float | None]:
    """Return the median seconds of each call with both copies; None if stopped before a sample."""
    samples, stopped = [np.zeros(0)] * len(jobs), limits.stop()
    if not stopped:
        runs: list[Run] = [
            functools.partial(job.run, copy) for job, copy in zip(jobs, copies, strict=True)
        ]
        warm = [run(1)[1] for run in runs]
        limits = limits._replace(deadline=_TRANSFER_SHARE * limits.deadline, span=(0.7, 0.99))
        found = sample_in_turns(runs, jobs[0].clock, [None] * len(jobs), warm, limits)
        samples = [one.samples_seconds for one in found]
        stopped = found[0].stopped_by == "stopped"
    for job, taken in zip(jobs, samples, strict=True):
        # no second note if the sampling before the copies was stopped already
        if stopped and all(note.code != "stopped" for note in job.notes):
            job.notes.append(
                Note(
                    "stopped",
                    f"the call with both copies was stopped after {plural(len(taken), 'sample')}; "
                    f"its time is {'based on these' if len(taken) else 'missing'}. Run it again "
                    "for more.",
                )
            )
    return [float(np.median(taken)) if len(taken) else None for taken in samples]


@dataclass
class Job:
    """One running measurement: the work, how to wait for it, and the notes so far."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    device: Device
    is_named: bool  # whether the caller named the device
    label: str
    clock: Callable[[], float]
    flops: float | None = None
    nbytes: float | None = None
    working_set_bytes: float | None = None  # set by the first call if ``nbytes`` is known
    calls: int = 0
    first_seconds: float = math.nan
    warm_seconds: float = math.inf  # the fastest call of the warm-up
    # waits for a result, where waiting for the device is not enough
    finish: Callable[[Any], Any] | None = None
    elsewhere: Device | None = None  # accelerator with the arrays, where another was named
    notes: list[Note] = field(default_factory=list)
    energy: tuple[float, float] | None = None  # joules per call, and their error

    def wait(self) -> Callable[[], Any]:
        """Return a function that waits for the job's device, and also for ``elsewhere`` where the
        arrays are on another accelerator than the one named.
        """
        places = (self.device, self.elsewhere)
        waits = [place.synchronize for place in places if place is not None and not place.is_cpu]
        # ``waits`` is empty on a CPU: there the work is done when the call returns
        return waits[0] if len(waits) == 1 else lambda: [wait() for wait in waits]

    def first_call(self) -> Any:
        """Make and time the first call; return its result, which also shows which device works."""
        before = work_arrays.allocations()
        self.calls = 1
        start = self.clock()
        result = self.fn(*self.args)
        self.finish = _backends.waits_for(result)
        if self.finish is not None:
            self.finish(result)
        elif (
            "jax" in sys.modules
            and "jax" in work_arrays.libraries_in(*self.args, *work_arrays.held_by(self.fn))
            and not work_arrays.libraries_in(result)
        ):
            self.notes.append(
                Note(
                    "skipped",
                    "the function works on JAX arrays and returns none, so gpulab cannot wait for "
                    "its work and the time may be that of the call alone. Return the result from "
                    "the function.",
                )
            )
        self.wait()()
        self.first_seconds = self.clock() - start
        working = self.device
        if self.is_named:
            self._check_device(result, before)
        elif working.is_cpu:
            self.device = (
                work_arrays.device_of_values((result,)) or work_arrays.newly_used(before) or working
            )
        if self.elsewhere is not None or self.device != working:
            self.wait()()
            self.first_seconds = self.clock() - start
        work_arrays.refuse_promise(self.label, result, self.args)
        if self.nbytes and self.working_set_bytes is None:
            # Some bytes move twice, so the arrays may be smaller than the traffic. An array that is
            # both input and result (changed in place, or written into) counts once.
            held = (self.args, tuple(work_arrays.held_by(self.fn)))
            arrays = work_arrays.array_bytes(*held) + work_arrays.array_bytes(result, beside=held)
            self.working_set_bytes = float(min(arrays or self.nbytes, self.nbytes))
        return result

    def _check_device(self, result: Any, before: dict[int, int]) -> None:
        """Add a note if the device that was seen at work is not the named one.

        If the result is on another accelerator (or the arguments are, where the result has no
        arrays), that accelerator is waited for too.
        """
        named, given = self.device, work_arrays.device_of(self.fn, self.args)
        made = work_arrays.device_of_values((result,), named)
        seen = made or work_arrays.device_of_values((self.args,), named)
        if seen is not None and not seen.is_cpu and seen != named:
            self.elsewhere = seen
            sentence = (
                f"the arrays are on {seen}, and {named} was named: both were waited for, but the "
                f"result is labeled {named}. Name {seen}, or move the arrays first: "
                f"gl.to_device(x, '{named}')."
            )
        # no note if memory was allocated on the named device: the function copies by itself
        elif (
            not named.is_cpu
            and all(place is not None and place.is_cpu for place in (given, made))
            and work_arrays.newly_used(before) != named
        ):
            sentence = (
                f"inputs and result are on the host: nothing shows that {named} did any work. Pass "
                "gl.to_device(x), or device='cpu'."
            )
        else:
            return
        self.notes.append(Note("skipped", sentence))

    def loops(
        self, limits: Limits, cold: bool, prepare: Callable[[], Any] | None
    ) -> tuple[Run, Run | None]:
        """Warm up caches and clocks, then return the loops that the sampler runs: around the work,
        and around nothing. Where something is to be done before each call (with ``cold``, emptying
        the caches), there is no second one.
        """
        single = functools.partial(
            make_single_call_loops, self.fn, self.args, self.wait(), self.clock, self.finish
        )
        loops = (
            make_loops(self.fn, self.args, self.wait(), self.clock)
            if self.finish is None
            else single()
        )
        most = min(_WARM_SECONDS[self.device.is_cpu], _WARM_SHARE * limits.deadline)
        begin = self.clock()
        for done in range(_WARM_MOST_CALLS):
            if (done and self.clock() - begin >= most) or limits.stop():
                break
            self.warm_seconds = min(self.warm_seconds, self.run(loops[0], 1)[1])
        before = work_arrays.cache_flusher(self.device) if cold else prepare
        return (single(before)[0], None) if before else loops

    def with_copies(self) -> Run:
        """Return the call with both copies, and put the job's arguments on the device; a result
        that is not an array is not copied.
        """
        inward, back = work_arrays.copier_to(self.device, self.args), work_arrays.host_copier()
        if self.device.is_cpu:
            self.notes.append(
                Note(
                    "skipped",
                    "both copies are from main memory to main memory: no link to an accelerator "
                    "was used. See gl.transfer for a modelled link.",
                )
            )
        else:
            self.args = inward()

        def finished(result: Any) -> None:
            back(result)
            if self.finish is not None:
                self.finish(result)

        def run(calls: int) -> tuple[float, float]:
            # made here, because how to wait is known only after the first call
            loop, _ = make_single_call_loops(
                lambda: self.fn(*inward()), (), self.wait(), self.clock, finished
            )
            return loop(calls)

        return run

    def run(self, loop: Run, calls: int) -> tuple[float, float]:
        """Run a loop and count its calls, so that an error can report which call failed."""
        self.calls += calls
        return self.attempt(loop, calls)

    def attempt(self, work: Callable[..., T], *args: Any) -> T:
        """Return the result of ``work(*args)``.

        An error of the measured function becomes an error of gpulab that reports which call failed;
        its cause is kept. Errors of gpulab itself and interrupts pass unchanged.
        """
        try:
            return work(*args)
        except GpulabError:
            raise
        except Exception as error:
            which = f"in call {self.calls}" if self.calls else "before the first call"
            doing = f"measure: {self.label} on {self.device} failed {which}"
            raise _devices.translate(error, doing) or MeasurementError(
                f"measure: {self.label} raised {type(error).__name__} ({message_of(error)}) "
                f"{which}; expected every call to return. Fix the function and measure again."
            ) from error


def _measurement(job: Job, sampled: Sampled, moved: float | None, cold: bool) -> Measurement:
    """Return the finished result of a job."""
    environment = _devices.environment(job.device)
    samples = sampled.samples_seconds
    joules, error_joules = job.energy or (None, None)
    precision = None  # what float32 means, on a GPU that has TF32
    if job.device.kind == "cuda" and job.device.has_tf32:
        allowed = [
            words
            for operation, words in _SWITCHES.items()
            if "tf32" in _devices.arithmetic("float32", "cuda", operation)
        ]
        used = (job.args, tuple(work_arrays.held_by(job.fn)))
        if "float32" in work_arrays.dtypes_in(
            used
        ) and not _OTHER_SWITCHES & work_arrays.libraries_in(used):
            precision = (
                f"float32 with TF32 allowed for {' and '.join(allowed)}"
                if allowed
                else "float32, TF32 not allowed"
            )
    return Measurement(
        label=f"{job.label} (cold cache)" if cold else job.label,
        device=str(job.device),
        samples_seconds=samples,
        median_seconds=float(np.median(samples)),
        interval_seconds=sampled.interval_seconds,
        first_call_seconds=float(job.first_seconds),
        launch_seconds=float(np.median(sampled.launch_seconds)),
        with_transfer_seconds=moved,
        calls_per_sample=sampled.calls_per_sample,
        flops=None if job.flops is None else float(job.flops),
        nbytes=None if job.nbytes is None else float(job.nbytes),
        notes=notes.ordered(job.notes),
        evidence=Evidence.measured(environment.device, len(samples), environment.date, precision),
        environment=environment,
        energy_joules=joules,
        energy_error_joules=error_joules,
    )


@contextlib.contextmanager
def calm_collector() -> Iterator[None]:
    """Keep the garbage collector from scanning all objects that exist already: its long pauses are
    not part of the work.

    Garbage that the work makes is collected as usual. If some objects are frozen already, nothing
    is changed.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# -- series of measurements -----------------------------------------------------------------------


# No measurement gets less than this: below it there are too few samples for an interval.
_LEAST_SECONDS = 0.03
# Notes of single measurements that concern the whole series.
_KEPT_NOTES = ("contended", "throttled", "stalled", "unstable", "turn-taking")


class Series:
    """A running series of measurements with one deadline, such as a sweep over sizes: the time that
    is left, the progress callback, and the notes that concern the whole series. As a context
    manager it catches ``StoppedError``: a stop of the work ends the series without an error.

    Parameters
    ----------
    function : str
        The public function that messages begin with.
    total : int
        How many measurements there will be.
    deadline : float
        Seconds for all of them.
    progress, stop, clock : callable or None
        As the caller passed them.
    """

    def __init__(
        self,
        function: str,
        total: int,
        deadline: float,
        progress: Progress | None,
        stop: Stop | None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.function, self.total, self.done = function, total, 0
        self._progress: Progress = (
            _validate.nothing
            if progress is None
            else _validate.callback(function, "progress", progress)
        )
        self.stop = None if stop is None else _validate.callback(function, "stop", stop)
        self.clock = None if clock is None else _validate.clock(function, "clock", clock)
        self._now: Callable[[], float] = self.clock or time.perf_counter
        self._end = self._now() + _validate.deadline(function, "deadline", deadline)
        self.stopped = False
        self._notes: dict[str, list[str]] = {}  # the sentences by code

    def __enter__(self) -> Series:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.stopped = self.stopped or isinstance(error, StoppedError)
        return isinstance(error, StoppedError)

    def must_stop(self) -> bool:
        """Return whether the work must end."""
        self.stopped = self.stopped or (self.stop is not None and self.stop())
        return self.stopped

    def report(self, text: str) -> None:
        """Report the progress."""
        self._progress(self.done / self.total, text)

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        return self._end - self._now()

    @property
    def share(self) -> float:
        """Seconds for the next point."""
        return max(self.left / max(self.total - self.done, 1), _LEAST_SECONDS)

    def measured(self, m: Measurement) -> Measurement:
        """Count a measurement and keep its notes."""
        self.done += 1
        # the first of each code: a GPU and its host may both be contended
        for note in reversed({note.code: note for note in reversed(m.notes)}.values()):
            if note.code in _KEPT_NOTES:
                self._notes.setdefault(note.code, []).append(note.sentence)
        return m

    def finished(
        self, device: Device, how: str, points: Sequence[Any]
    ) -> tuple[tuple[Note, ...], Evidence, Environment]:
        """End the series; return its notes, its evidence and its environment.

        Raises
        ------
        StoppedError
            If there is no point.
        """
        if not points:
            raise StoppedError(
                f"{self.function}: stopped before the first point; expected at least one. Run it "
                "again."
            )
        self._progress(1.0, "done")
        notes = [
            Note(code, f"{len(each)} of {self.done} measurements; the first: {each[0]}")
            for code, each in self._notes.items()
        ]
        if self.stopped:
            notes.append(
                Note(
                    "stopped",
                    f"Stopped after {self.done} of {self.total} measurements; run it again for the "
                    "rest.",
                )
            )
        environment = _devices.environment(device)
        evidence = Evidence.measured(
            ", ".join(filter(None, (device.name, how))),
            sum(p.samples for p in points),
            environment.date,
        )
        return tuple(notes), evidence, environment


# -- turns ----------------------------------------------------------------------------------------


# The open lock file of each turn that this process holds, by thread and name of the device.
_held: dict[tuple[int, str], int] = {}


def _release(*holders: tuple[int, str]) -> None:
    """Close the lock files of the given turns, or of all turns if none is given; this unlocks."""
    for holder in holders or tuple(_held):
        file = _held.pop(holder, None)
        if file is not None:
            os.close(file)


# A forked child closes its copies of the files, which would otherwise keep the parent's locks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)


def take_turns(
    jobs: Iterable[Job], stack: contextlib.ExitStack, found: list[Note], limits: Limits
) -> None:
    """Take the turn on each job's device, always in the same order, and hold it until ``stack``
    closes. A turn that this thread holds already is not taken again.

    Parameters
    ----------
    jobs : iterable of Job
    stack : ExitStack
    found : list of Note
        Receives a note on each turn that had to be waited for, or could not be taken.
    limits : Limits
        While waiting, ``stop`` is called and ``say`` gets a text.

    Raises
    ------
    StoppedError
        If ``stop`` returned True while waiting.
    """
    for name, device in sorted({_name(job.device): job.device for job in jobs}.items()):
        holder = (threading.get_ident(), name)
        if holder in _held:
            continue
        stack.callback(_release, holder)
        began, waited = time.monotonic(), 0.0
        try:
            _held[holder] = file = _open(name)
            while not try_lock(file) and waited < _TIMEOUT_SECONDS:
                if limits.stop():
                    raise StoppedError(
                        f"measure: stopped while waiting {waited:.1f} s for a turn on {name}; "
                        "expected to wait until the other measurement ended. Run it again."
                    )
                limits.say(0.0, f"waiting {waited:.0f} s for a turn on {device}")
                time.sleep(_PAUSE_SECONDS)
                waited = time.monotonic() - began
        except OSError as error:
            sentence = (
                f"no lock could be taken on {device} ({error}); make sure that no other process "
                "measures at the same time."
            )
        else:
            if waited == 0.0:
                continue
            sentence = (
                f"waited {format_seconds(waited)} for another gpulab measurement on {device}; the "
                "two did not overlap."
            )
            if waited >= _TIMEOUT_SECONDS:
                sentence = (
                    f"another gpulab measurement held {device} for more than {waited:.0f} s, so "
                    "this one ran at the same time. Measure again when it is done."
                )
        found.append(Note("turn-taking", sentence))


def _name(device: Device) -> str:
    """Return a name of a device that is the same in every process on the machine, even if
    CUDA_VISIBLE_DEVICES differs.
    """
    if device.is_cpu:
        return "cpu"
    identity = ""
    if device.torch_type == "cuda":
        import torch

        with _devices.guard(f"asking {device} for its identity"):
            identity = str(getattr(torch.cuda.get_device_properties(device.index), "uuid", ""))
    letters = "".join(c for c in identity.lower() if c.isalnum())
    return f"{device.torch_type}-{letters or device.index}"


def _open(name: str) -> int:
    """Open the lock file of a device, which all users share, and return its descriptor.

    A new file is readable by all, so that any user can lock it. A symbolic link is refused, and
    opening never blocks, even if a FIFO has the file's name.
    """
    given = os.environ.get(_FOLDER_VARIABLE)  # set for containers that share a GPU
    if given:
        where = _validate.expanded(_FOLDER_VARIABLE, given)
    elif sys.platform == "win32":
        where = pathlib.Path(os.environ.get("PROGRAMDATA", r"C:\ProgramData"), "gpulab", "turns")
    else:  # not tempfile.gettempdir(): that differs between users where TMPDIR does
        where = pathlib.Path("/tmp/gpulab-turns")
    if not where.is_dir():
        where.mkdir(parents=True, exist_ok=True)
        # fails if another user made it a moment ago, who then sets its mode
        with contextlib.suppress(OSError):
            where.chmod(0o1777)
    path = where / f"{name}.lock"
    # flock needs no right to write; msvcrt does
    flags = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY | os.O_NOFOLLOW
    try:
        return open_regular(path, flags)
    except FileNotFoundError:
        # Create and open are separate steps: Linux refuses O_CREAT on another user's file in a
        # sticky folder (fs.protected_regular).
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            if sys.platform != "win32":
                with contextlib.suppress(OSError):  # a file system without such modes
                    # despite the umask: under 077, as on many servers, no other user could
                    # open it
                    os.fchmod(made, 0o644)
            os.close(made)
        return open_regular(path, flags)
