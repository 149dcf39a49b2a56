"""Take samples of a call until the interval is narrow enough, or until the deadline.

Everything goes through ``run`` and the injected ``clock``; no other clock is read. The interval is
computed by ``gpulab.timing.statistics``.

Stopping as soon as an interval looks narrow would pick the moments at which it is too narrow. So a
third of the deadline always passes first (clocks and other processes change within tenths of a
second, however short the call), the interval is checked rarely (each time after 15 % more samples),
and sampling goes on while two clock states have been seen too few times to estimate their shares.

A clock that ticks rarely shows times in whole ticks, so a call that never varies may seem to vary,
and one that varies may seem constant. A sample is therefore a batch of calls that is long against
the tick, and both ends of the interval move out by one tick, shared among the calls of a batch.

A time is that of a call as a program pays for it, the interpreter's dispatch included. The overhead
of sampling is subtracted: the loop around the call, the two readings of the clock, and a
synchronization with nothing to wait for. To know it, the same loop without the call is timed
between the samples.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from gpulab.errors import InputError
from gpulab.timing.statistics import Interval, is_precise, median_interval
from gpulab.units import plural

Clock = Callable[[], float]
Run = Callable[[int], tuple[float, float]]
Progress = Callable[[float, str], None]
Stop = Callable[[], bool]

FIRST_LOOK = 1 / 3  # of the deadline; see the module's docstring
LOOK_GROWTH = 1.15
# below this there are too few batches to check the model of dependence
FEWEST_BEFORE_PRECISION = 60
FEWEST_SAMPLES = 3  # even past the deadline, unless one call alone takes longer than it
MOST_KEPT = 8_192  # of more samples, one of every two (three, ...) is drawn
# a sample as long as this many readings of the clock is not disturbed by two of them
READINGS_PER_SAMPLE = 200
TICKS_PER_WIDTH = 20  # the two ticks that widen an interval are a tenth of its requested width
READINGS = 64  # of the clock, to find its shortest step and its tick
SAMPLES_FOR_TICK = 32  # enough to show a clock's tick, if they differ by whole ticks
MOST_CALLS_PER_SAMPLE = 2**16
# the empty loop runs after each of the first 101 samples, then after every 16th
EMPTY_AT_ONCE, EMPTY_EVERY = 101, 16
PROGRESS_SECONDS = 0.05


class Limits(NamedTuple):
    """How long and how precisely to sample, with the callbacks for progress and for a stop.

    Attributes
    ----------
    relative_width : float
        Width of the interval, relative to the median, to stop at.
    deadline : float
        Seconds, for all functions together. The call in flight is finished.
    say : callable
        Gets a fraction 0-1 and a short text, about twenty times a second.
    stop : callable
        Called before each turn; True ends the sampling and keeps the samples taken so far, possibly
        none.
    fewest : int
        Samples of each function to take even past the deadline, until ``patience`` seconds from the
        beginning, as long as another turn fits into that time. Only the number of samples decides,
        never their values.
    patience : float
        Seconds, for all functions together.
    span : (float, float)
        The part of the whole work, from 0 to 1, that the fractions cover.
    """

    relative_width: float = 0.02
    deadline: float = 2.0
    say: Progress = lambda fraction, text: None
    stop: Stop = lambda: False
    fewest: int = FEWEST_SAMPLES
    patience: float = 0.0
    span: tuple[float, float] = (0.0, 1.0)


class Sampled(NamedTuple):
    """What the sampler saw, in the order taken.

    Attributes
    ----------
    samples_seconds : ndarray, shape (n,), float64
        Seconds per call until the device had finished, the loop's and the clock's own time removed;
        never negative.
    launch_seconds : ndarray, shape (n,), float64
        Seconds per call until the last call had returned, with the same overhead removed.
    interval_seconds : (float, float) or None
        A 95 % interval of the median, never narrower than the clock's tick allows; None where no
        honest interval can be given.
    calls_per_sample : int
        More than 1 where a call is too short for the clock; the interval is then that of the mean
        of this many calls.
    stopped_by : str
        "precision", "deadline" or "stopped".
    no_interval_reason : str or None
        One sentence, where ``interval_seconds`` is None.
    walls_seconds, gaps_seconds : ndarray, shape (m,) and (m - 1,), float64
        Of every sample taken (``samples_seconds`` has at most 8,192 of them): the seconds of all
        its calls, with the loop's and the clock's own time; and the seconds from its end to the
        start of the next one.
    """

    samples_seconds: np.ndarray
    launch_seconds: np.ndarray
    interval_seconds: Interval | None
    calls_per_sample: int
    stopped_by: str
    no_interval_reason: str | None
    walls_seconds: np.ndarray
    gaps_seconds: np.ndarray


def sample_in_turns(
    runs: Sequence[Run],
    clock: Clock,
    empties: Sequence[Run | None],
    call_seconds: Sequence[float],
    limits: Limits,
) -> list[Sampled]:
    """Sample several functions, one sample of each in turn, until all intervals are narrow enough
    or the deadline has come.

    Taking turns spreads disturbances of the machine evenly over all functions. All get the same
    number of samples, so that ``statistics.paired_ratio`` applies.

    Parameters
    ----------
    runs : sequence of callable
        ``run(calls)`` performs this many calls back to back and returns the seconds until the last
        call had returned, and until the device had finished. Must be warmed up: the sampler does
        not treat the first call specially.
    clock : callable
        Returns seconds; the deadline is in its time.
    empties : sequence of callable or None
        The same loops without the work (``make_loops``). They are run between samples, and their
        median is subtracted.
    call_seconds : sequence of float
        The fastest earlier call of each function, such as in a warm-up; infinite where none is
        known. With it, the sampler does not mistake a first sample in which the process was paused
        for a slow call.
    limits : Limits

    Returns
    -------
    list of Sampled
        One for each of ``runs``, with the same ``stopped_by``; at least 3 samples, unless a call
        takes longer than the deadline.

    Raises
    ------
    InputError
        If the clock stands still while 65,536 calls run.

    Notes
    -----
    Exceptions from ``runs`` pass through unchanged, including KeyboardInterrupt.
    """
    deadline, (first, full) = limits.deadline, limits.span
    begin = last = clock()
    steps = _steps(clock)
    columns = [
        _Column(
            run,
            empty,
            clock,
            *steps,
            TICKS_PER_WIDTH / limits.relative_width,
            deadline / len(runs) / FEWEST_BEFORE_PRECISION,
        )
        for run, empty in zip(runs, empties, strict=True)
    ]
    began_anew = False
    fastest_round, next_look, next_progress = math.inf, FIRST_LOOK * deadline, 0.0
    while True:
        if limits.stop():
            stopped_by = "stopped"
            break
        for column in columns:
            column.take()
        now, count = clock(), len(columns[0].samples) // 3
        elapsed, fastest_round, last = now - begin, min(fastest_round, now - last), now
        if elapsed >= next_progress:
            next_progress = elapsed + PROGRESS_SECONDS
            done = first + (full - first) * min(1.0, elapsed / deadline)
            limits.say(done, plural(count, "sample"))
        looks = elapsed >= next_look
        if (count == SAMPLES_FOR_TICK or looks) and not began_anew and elapsed < deadline:
            # A clock whose tick is longer than a reading shows its tick in the samples only. If the
            # samples of one function were too short for it, those of all functions are dropped. All
            # columns are checked, since ``is_too_short`` also stores a column's tick.
            began_anew = sum(column.is_too_short() for column in columns) > 0
            if began_anew:
                columns = [replace(column) for column in columns]
                continue
        if elapsed >= deadline:
            # The elapsed time may be one pause of the process, which must not remain the only
            # sample: so the pace is that of the fastest round, or of the fastest earlier calls.
            known = sum(
                seconds * column.calls
                for seconds, column in zip(call_seconds, columns, strict=True)
            )
            pace = min(fastest_round, known)
            too_few = count < FEWEST_SAMPLES and (count + 1) * pace < FEWEST_SAMPLES * deadline
            if not too_few and not (count < limits.fewest and elapsed + pace < limits.patience):
                stopped_by = "deadline"
                break
        elif looks and count >= FEWEST_BEFORE_PRECISION:
            next_look = LOOK_GROWTH * elapsed
            if all(column.is_precise(limits.relative_width) for column in columns):
                stopped_by = "precision"
                break
    return [column.result(stopped_by) for column in columns]


@dataclass
class _Column:
    """The samples of one function while they are taken."""

    run: Run
    empty: Run | None
    clock: Clock
    # A sample is made so long that neither readings nor ticks of the clock matter, as far as the
    # deadline leaves time for enough samples.
    shortest_step: float
    tick: float
    ticks: float  # of the clock, that a sample lasts at least
    longest: float  # seconds that a sample lasts at most
    calls: int = field(default=0, init=False)  # in each sample; 0 until it is known
    # three values a sample: seconds until the last call had returned, seconds until the device had
    # finished, and the reading of the clock at its start
    samples: array[float] = field(default_factory=lambda: array("d"), init=False)
    # the same seconds of the empty loop
    _empties: list[tuple[float, float]] = field(default_factory=list, init=False)

    def _begin(self) -> tuple[float, tuple[float, float]] | None:
        """Find how many calls make a sample that is long enough. If one call does, return it as the
        first sample: the clock's reading at its start, and its seconds.
        """
        long_enough = max(READINGS_PER_SAMPLE * self.shortest_step, self.ticks * self.tick)
        wanted, calls = min(long_enough, self.longest), 1
        start = self.clock()
        first = self.run(calls)
        finished = first[1]
        while calls < MOST_CALLS_PER_SAMPLE and not 0 < wanted <= finished:
            if wanted == 0 and finished > 0:
                if calls == 1:
                    break
                # the clock's tick is longer than a reading: this step is the tick
                self.tick = finished
                wanted = min(max(READINGS_PER_SAMPLE, self.ticks) * finished, self.longest)
                continue
            growth = 1.2 * wanted / finished if finished > 0 and wanted > 0 else 2.0
            calls = min(math.ceil(calls * min(growth, 16.0)), MOST_CALLS_PER_SAMPLE)
            attempts = 3 if wanted > 0 else 1  # the tick is the first step that is seen
            finished = min(self.run(calls)[1] for _ in range(attempts))
        if finished <= 0:
            raise InputError(
                f"sample: the clock did not advance during {calls:,} calls; expected seconds that "
                "grow while the work runs. Pass time.perf_counter, or give the call more to do."
            )
        self.calls = calls
        return (start, first) if calls == 1 else None

    def take(self) -> None:
        """Take a sample, and one of the empty loop if it is due."""
        first = self._begin() if self.calls == 0 else None
        start, times = first or (self.clock(), self.run(self.calls))
        self.samples.extend((*times, start))
        taken = len(self.samples) // 3
        wanted = taken <= EMPTY_AT_ONCE or taken % EMPTY_EVERY == 0
        if self.empty is not None and wanted and len(self._empties) < MOST_KEPT:
            self._empties.append(self.empty(self.calls))

    def look(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the seconds of each sample as they were read; and, per call and without those of
        the empty loop, the seconds until the calls had returned and until the device had finished.
        Store the clock's tick if the samples show a longer one than was known.

        Of more than 8,192 samples, one of every two (three, ...) is drawn at random: taking
        always the first one would miss half of an alternating pattern.
        """
        rows = np.asarray(self.samples).reshape(-1, 3)  # a view; drawing makes a copy
        every = max(1, math.ceil(len(rows) / MOST_KEPT))
        places = np.arange(len(rows) // every) * every
        rows = rows[places + np.random.default_rng(0).integers(every, size=len(places))]
        readings = np.unique(rows[:, 1])
        rounding = 8 * float(np.spacing(rows[-1:, 1:].sum()))
        steps = np.diff(readings)
        step = float(steps[steps > rounding].min(initial=math.inf))
        ticks = readings / step
        whole = np.abs(ticks - np.round(ticks)) <= 0.01 + ticks * rounding / step
        if whole.all() and ticks[:1].sum() > 0.5:
            self.tick = max(self.tick, step)
        empty = np.median(np.array(self._empties or [(0.0, 0.0)]), axis=0)
        launched, finished = np.maximum(rows[:, :2].T - empty[:, None], 0.0) / max(self.calls, 1)
        return rows[:, 1], launched, finished

    def is_too_short(self) -> bool:
        """Return whether the samples are too short for the clock's tick, as far as it is known."""
        walls, _, _ = self.look()
        return float(np.median(walls)) < min(self.ticks * self.tick, self.longest)

    def is_precise(self, relative_width: float) -> bool:
        """Return whether the interval is narrow enough to end, the clock's tick included."""
        _, _, samples = self.look()
        middle = float(np.median(samples))
        allowed = relative_width * middle - 2 * self.tick / self.calls
        return allowed > 0 and is_precise(samples, allowed / middle)

    def result(self, stopped_by: str) -> Sampled:
        """Return the samples, their interval and why sampling stopped."""
        _, launched, samples = self.look()
        _, walls, starts = np.array(self.samples).reshape(-1, 3).T
        interval, reason = median_interval(samples)
        if interval is not None:
            tick = self.tick / self.calls  # how far a sample may be off, at most
            interval = (max(interval[0] - tick, 0.0), interval[1] + tick)
        # with a median of 0, rates and relative widths would be infinite or nan
        if len(samples) and float(np.median(samples)) == 0.0:
            interval = None
            reason = (
                f"in most samples {plural(self.calls, 'call')} took no longer by the clock than "
                "the empty loop (do more work per call, or use a finer clock)"
            )
        return Sampled(
            samples_seconds=samples,
            launch_seconds=launched,
            interval_seconds=interval,
            calls_per_sample=max(self.calls, 1),
            stopped_by=stopped_by,
            no_interval_reason=reason,
            walls_seconds=walls,
            gaps_seconds=np.maximum(np.diff(starts) - walls[:-1], 0.0),
        )


def _steps(clock: Clock) -> tuple[float, float]:
    """Return the shortest step seen between two readings of the clock, the cost of a reading
    included, and the clock's tick; both 0 where the clock did not move.
    """
    readings = [clock() for _ in range(READINGS)]
    steps = np.unique(np.diff(readings))
    steps = steps[steps > 0]
    # All steps are whole ticks, so two that differ do so by one tick or more.
    apart = np.diff(steps, prepend=0.0)
    apart = apart[apart > 8 * np.spacing(abs(readings[-1]))]
    tick = float(apart.min(initial=math.inf)) if len(steps) else 0.0
    return float(min(steps, default=0.0)), tick


# The call is written out eight times in the body, as a program that calls it eight times would have
# it, so that little is left to subtract.
_UNROLLED = 8
# Compiled text, as in the standard library's timeit: a closure that calls fn(*args) would unpack
# the tuple on every call.
_TEMPLATE = """
def make({parameters}):
    def run(calls):
        blocks, rest = repeat(None, calls // {unrolled}), repeat(None, calls % {unrolled})
        start = clock()
        for _ in blocks:
            {block}
        for _ in rest:
            {statement}
        returned = clock()
        synchronize()
        return returned - start, clock() - start
    return run
"""


def make_loops(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    synchronize: Callable[[], Any],
    clock: Clock,
) -> tuple[Run, Run]:
    """Return the loops that the sampler runs: around the work, and its twin that does nothing.

    Parameters
    ----------
    fn : callable
    args : tuple
        Passed by position on every call; the result is dropped before the next call.
    synchronize : callable
        Waits until the device has finished; called once after the last call.
    clock : callable
        Returns seconds.
    """
    named = {f"a{i}": value for i, value in enumerate(args)}
    values = {"fn": fn, "clock": clock, "synchronize": synchronize, "repeat": repeat, **named}
    work, empty = (
        _maker(statement, ", ".join(values))(**values)
        for statement in (f"fn({', '.join(named)})", "pass")
    )
    return work, empty


@functools.cache
def _maker(statement: str, parameters: str) -> Callable[..., Run]:
    """Return a function that makes a loop around a statement from the values of the names in it."""
    source = _TEMPLATE.format(
        parameters=parameters,
        unrolled=_UNROLLED,
        block="; ".join([statement] * _UNROLLED),
        statement=statement,
    )
    scope: dict[str, Any] = {}
    exec(compile(source, "<gpulab timing loop>", "exec"), scope)
    make: Callable[..., Run] = scope["make"]
    return make


def make_single_call_loops(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    synchronize: Callable[[], Any],
    clock: Clock,
    finish: Callable[[Any], Any] | None,
    prepare: Callable[[], Any] | None = None,
) -> tuple[Run, Run]:
    """Return the loops for a function whose calls must be timed one by one.

    Parameters
    ----------
    fn, args, synchronize, clock
        As for ``make_loops``; ``synchronize`` is called after ``finish``.
    finish : callable, optional
        Takes a result and returns when it is computed. It is for JAX, which has no call that waits
        for all results; and a call that is not waited for may overlap the next one.
    prepare : callable, optional
        Called before each call, outside of the timed part; for example to empty the caches.
    """

    def loop(call: Callable[..., Any], wait: Callable[[Any], Any] | None) -> Run:
        def run(calls: int) -> tuple[float, float]:
            launched = finished = 0.0
            for _ in repeat(None, calls):
                if prepare is not None:
                    prepare()
                start = clock()
                result = call(*args)
                returned = clock()
                if wait is not None:
                    wait(result)
                # free its memory inside the timed part, as ``make_loops`` does
                del result
                synchronize()
                finished += clock() - start
                launched += returned - start
            return launched, finished

        return run

    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    return loop(fn, finish), loop(nothing, nothing)
