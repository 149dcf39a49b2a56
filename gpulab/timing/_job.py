"""One running measurement: the work, the samples so far, its turn on the device, and its errors in
one sentence.

``measure`` and ``compare`` both lead jobs through their steps; what they share is here.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np

from gpulab import _backends, _given
from gpulab import devices as _devices
from gpulab.devices import Device, conditions
from gpulab.devices.conditions import Readings
from gpulab.errors import DeviceError, GpulabError, InputError, MeasurementError, message_of, shown
from gpulab.evidence import Environment, Evidence, Note
from gpulab.timing import _lock, _notes, _work
from gpulab.timing._loop import Loops, make_loops, make_waiting_loops
from gpulab.timing.results import Measurement
from gpulab.timing.sampling import Progress, Run, Sampled, Stop
from gpulab.units import format_seconds, plural

# Warm-up after the first call: enough for caches, allocators and branch predictors; a GPU also
# needs time to raise its clock.
_WARM_SECONDS = {True: 0.02, False: 0.1}  # CPU?, of a deadline long enough
_WARM_SHARE = 0.05
_WARM_MOST_CALLS = 50


@dataclass
class Kept:
    """Every sample taken, in the order taken, in few bytes: the sampler thins them out, and an
    error would lose them.
    """

    calls: array[int] = field(default_factory=lambda: array("q"))
    launched: array[float] = field(default_factory=lambda: array("d"))
    finished: array[float] = field(default_factory=lambda: array("d"))

    def add(self, calls: int, launched: float, finished: float) -> None:
        """Keep one sample: seconds of all its calls together."""
        self.calls.append(calls)
        self.launched.append(launched)
        self.finished.append(finished)

    def of_last_size(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Return how many calls the newest sample has, and launched and finished seconds per call
        of all samples of that size.
        """
        last = self.calls[-1]
        same = np.array(self.calls) == last
        return last, np.array(self.launched)[same] / last, np.array(self.finished)[same] / last


@dataclass
class Job:
    """One running measurement: the work, how to wait for it, and the samples so far."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    device: Device
    given: bool
    label: str
    clock: Callable[[], float]
    read: Callable[[], Readings] | None
    flops: float | None = None
    nbytes: float | None = None
    working_set_bytes: float | None = None
    calls: int = 0
    first_seconds: float = math.nan
    warm_seconds: float = math.inf  # the fastest call of the warm-up
    result_bytes: int = 0
    # waits for a result, where waiting for the device is not enough
    finish: Callable[[Any], Any] | None = None
    elsewhere: Device | None = None  # an accelerator that was not named and has the arrays
    kept: Kept = field(default_factory=Kept)
    notes: list[Note] = field(default_factory=list)

    def wait(self) -> Callable[[], None]:
        """Return what waits for the device, and for the one that does the work where another was
        named.
        """
        named = _work.waiter(self.device)
        if self.elsewhere is None:
            return named
        unnamed = _work.waiter(self.elsewhere)

        def both() -> None:
            named()
            unnamed()

        return both

    def loops(self) -> Loops:
        """Return the loops that the sampler runs, known after the first call."""
        if self.finish is None:
            return make_loops(self.fn, self.args, self.wait(), self.clock)
        return make_waiting_loops(self.fn, self.args, self.wait(), self.finish, self.clock)

    def counting(self, run: Run, keep: bool = True) -> Run:
        """Return the run, its calls counted and its times kept, so that an error can say which call
        and lose nothing.

        Not ``keep``, the times are of something else (the call with both copies) and must not pass
        for the call's.
        """

        def counted(calls: int) -> tuple[float, float]:
            self.calls += calls
            times = run(calls)
            if keep:
                self.kept.add(calls, *times)
            return times

        return counted

    def first_call(self) -> Any:
        """Make the first call, apart from all others, and learn from its result which device works;
        return the result.
        """
        before = _work.allocations()
        self.calls = 1
        start = self.clock()
        result = self.fn(*self.args)
        _work.refuse_promise(self.label, result)
        self.finish = _backends.waits_for(result)
        if self.finish is not None:
            self.finish(result)
        elif _work.promised(self.args, self.fn, result):
            self.notes.append(_notes.NOTHING_TO_WAIT_FOR)
        self.wait()()
        self.first_seconds = self.clock() - start
        if not self.given and self.device.is_cpu:
            hidden = _work.device_of_result(result) or _work.newly_used(before)
            if hidden is not None and not hidden.is_cpu:
                self.device = hidden
                self.wait()()
                self.first_seconds = self.clock() - start
        elif self.given and not self.device.is_cpu and self._host_only(result, before):
            self.notes.append(_notes.not_on_device(self.device))
        if self.given:
            self.elsewhere = self._other_accelerator(result)
        if self.elsewhere is not None:
            self.wait()()
            self.first_seconds = self.clock() - start
            self.notes.append(_notes.elsewhere(self.elsewhere, self.device))
        if self.nbytes:  # an array that was worked on in place, or written into, is there once
            self.result_bytes = _work.array_bytes(
                result, beside=(self.args, _work.held_by(self.fn))
            )
        return result

    def _other_accelerator(self, result: Any) -> Device | None:
        """Return the accelerator that the result is on (or, where it has no arrays, the arguments)
        if it is not the named device.
        """
        try:
            seen = _work.device_of_result(result, self.device) or _work.device_of_result(
                self.args, self.device
            )
        except DeviceError:
            # of a kind that this machine does not list, such as "meta": nothing can wait for it
            return None
        return None if seen is None or seen.is_cpu or seen == self.device else seen

    def _host_only(self, result: Any, before: dict[int, int]) -> bool:
        host = _work.device_of(self.fn, self.args)
        end = _work.device_of_result(result)
        on_host = host is not None and host.is_cpu and end is not None and end.is_cpu
        # a function that copies there and back by itself did work there
        return on_host and _work.newly_used(before) != self.device

    def warm_up(self, deadline: float, stop: Stop | None) -> None:
        """Call until caches and clocks have settled; never for long."""
        most = min(_WARM_SECONDS[self.device.is_cpu], _WARM_SHARE * deadline)
        wait, begin, done = self.wait(), self.clock(), 0
        while done < _WARM_MOST_CALLS and not (done and self.clock() - begin >= most):
            if stop is not None and stop():
                break
            self.calls += 1
            start = self.clock()
            result = self.fn(*self.args)
            returned = self.clock()
            if self.finish is not None:
                self.finish(result)
            del result
            wait()
            finished = self.clock()
            # should the next call raise, these are what was measured
            self.kept.add(1, returned - start, finished - start)
            self.warm_seconds = min(self.warm_seconds, finished - start)
            done += 1
        self.kept = Kept()

    def environment(self) -> Environment:
        """Return the stamp of the machine."""
        return _devices.environment(self.device)


@dataclass(frozen=True)
class Limits:
    """How long and how precisely to sample, and who may end it."""

    relative_width: float
    deadline: float
    progress: Progress | None
    stop: Stop | None

    @classmethod
    def given(
        cls,
        function: str,
        relative_width: float,
        deadline: float,
        progress: Progress | None,
        stop: Stop | None,
    ) -> Limits:
        """Return the limits that a caller requested.

        Raises
        ------
        InputError
            If the width is more than the whole, the deadline more than a day, or a callback is no
            function or raises.
        """
        if relative_width > 1:
            raise InputError(
                f"{function}: relative_width={shown(relative_width)}; expected a share of the "
                "median, up to 1. "
                "Pass 0.02 for an interval of 2 %."
            )
        report, ask = (
            _given.callback(function, "progress", progress),
            _given.callback(function, "stop", stop),
        )
        return cls(float(relative_width), _given.deadline(function, deadline), report, ask)

    def part(self, start: float, end: float, deadline: float) -> Limits:
        """Return the limits of one phase, its progress mapped to a part of the whole."""
        report = self.progress
        inner: Progress | None = None
        if report is not None:

            def inner(fraction: float, text: str) -> None:
                report(start + (end - start) * min(1.0, max(0.0, fraction)), text)

        return replace(self, progress=inner, deadline=deadline)

    def say(self, fraction: float, text: str) -> None:
        """Report progress, if anyone listens."""
        if self.progress is not None:
            self.progress(fraction, text)

    def stopped(self) -> bool:
        """Return whether a stop was requested."""
        return self.stop is not None and self.stop()


def reader(device: Device) -> Callable[[], Readings]:
    """Return what reads the machine's counters, each time with the previous reading available."""
    last: list[Readings] = []

    def read() -> Readings:
        last.append(conditions.read(device, last[-1] if last else None))
        return last[-1]

    return read


# The operations of float32 for which PyTorch has a switch for TF32.
_SWITCHES = {"matmul": "matrix products", "convolution": "convolutions"}


def _precision(job: Job) -> str | None:
    """Return what float32 means on a GPU that has TF32, under PyTorch's settings; None where the
    work has no float32.
    """
    if not job.device.has_tf32 or "float32" not in _work.dtypes_in(job.args, _work.held_by(job.fn)):
        return None
    allowed = [
        words
        for operation, words in _SWITCHES.items()
        if "tf32" in _devices.arithmetic("float32", job.device.kind, operation)
    ]
    return (
        f"float32 with TF32 allowed for {' and '.join(allowed)}"
        if allowed
        else "float32, TF32 not allowed"
    )


def measurement(job: Job, sampled: Sampled, moved: float | None, cold: bool = False) -> Measurement:
    """Return the finished result of a job."""
    environment = job.environment()
    samples = np.asarray(sampled.samples_seconds, dtype=np.float64)
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
        notes=_notes.ordered(job.notes),
        evidence=Evidence.measured(
            environment.device, len(samples), environment.date, _precision(job)
        ),
        environment=environment,
    )


@contextmanager
def turns(where: Iterable[Device], limits: Limits, notes: list[Note]) -> Iterator[None]:
    """Hold the turn on each device, always in the same order, and note another process for which
    this one waited.
    """
    with ExitStack() as stack:
        for key, name in sorted({_lock.key(device): str(device) for device in where}.items()):
            waiting: Any = lambda seconds, name=name: limits.say(  # noqa: E731
                0.0, f"waiting {seconds:.0f} s for a turn on {name}"
            )
            note = _notes.of_turn(
                stack.enter_context(_lock.turn(key, stop=limits.stop, waiting=waiting)), name
            )
            notes += [note] if note is not None else []
        yield


@contextmanager
def calm_collector(clock: Callable[[], float] = time.perf_counter) -> Iterator[list[float]]:
    """Keep the garbage collector from walking all that was imported before: its long pauses are not
    the work's.

    Garbage that the work makes is collected as ever. Where somebody froze objects already, they
    stay frozen. Gives a list that grows by the seconds of each collection in another thread, which
    stops this one too.
    """
    frozen, here, begun = gc.get_freeze_count(), threading.get_ident(), [0.0]
    seconds: list[float] = []

    def watch(phase: str, _: Any) -> None:
        if phase == "start":
            begun[0] = clock()
        elif threading.get_ident() != here:
            seconds.append(clock() - begun[0])

    if not frozen:
        gc.freeze()
    gc.callbacks.append(watch)
    try:
        yield seconds
    finally:
        gc.callbacks.remove(watch)
        if not frozen:
            gc.unfreeze()


class translated(AbstractContextManager[Any]):  # noqa: N801  (used as a function is)
    """Turn an error out of the measured function into ours: which call it was, its cause kept, its
    samples not lost.

    No ``contextmanager``: that would let the StopIteration of an iterator that ran out pass in
    place of ours, for ours is a RuntimeError with it as the cause, as Python's own is (PEP 479).
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise ours in place of the function's own; what is ours already, and an interrupt,
        passes.
        """
        if isinstance(error, Exception) and not isinstance(error, GpulabError):
            raise _ours(self._job, error) from error


def _ours(job: Job, error: Exception) -> GpulabError:
    which = f"in call {job.calls}" if job.calls else "before the first call"
    ours = _devices.translate(error, f"measure: {job.label} on {job.device} failed {which}")
    if ours is not None:
        return ours
    partial = _partial(job)
    taken = 0 if partial is None else len(partial.samples_seconds)
    kept = (
        f"{plural(taken, 'sample')} taken before {'is' if taken == 1 else 'are'} in .partial"
        if taken
        else "no sample was completed before"
    )
    return MeasurementError(
        f"measure: {job.label} raised {type(error).__name__} ({message_of(error)}) {which}; "
        "expected every call to return. "
        f"Fix the function and measure again; {kept}.",
        partial,
    )


def _partial(job: Job) -> Measurement | None:
    """Return the samples that were finished before an error as a measurement without an
    interval.
    """
    if not job.kept.calls:
        return None
    last, launches, samples = job.kept.of_last_size()
    reason = (
        f"the function raised after {plural(len(samples), 'sample')}, "
        f"{format_seconds(float(samples.sum()))} in all"
    )
    sampled = Sampled(samples, launches, np.zeros(len(samples)), None, last, "stopped", reason, 0.0)
    job.notes.append(_notes.no_interval(reason))
    return measurement(job, sampled, None)
