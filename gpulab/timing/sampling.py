"""Take samples of a call until the interval of its median is narrow enough, or the deadline has
come.

Everything goes through ``run`` and the injected ``clock``; no other clock is read. The interval is
computed by ``gpulab.timing.statistics``; the device, and the wait until it has finished, belong to
the caller that makes ``run``.

Stopping as soon as an interval looks narrow would pick the moments at which it is too narrow. So a
third of the deadline always passes first (clocks and other processes change within tenths of a
second, however short the call), the interval is checked rarely (each time after 15 % more samples),
and sampling goes on while two clock states have been seen too few times to estimate their shares.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpulab._given import is_finite
from gpulab.errors import InputError
from gpulab.timing._loop import Loops, Run, make_loops
from gpulab.timing.statistics import Interval, is_precise, median_interval
from gpulab.units import plural

__all__ = ["Loops", "Run", "Sampled", "make_loops", "sample", "sample_in_turns"]

Clock = Callable[[], float]
Progress = Callable[[float, str], None]
Stop = Callable[[], bool]

FIRST_LOOK = 1 / 3  # of the deadline; see the module's docstring
LOOK_GROWTH = 1.15
# below this there are too few batches to check the model of dependence
FEWEST_BEFORE_PRECISION = 60
FEWEST_SAMPLES = 3  # even past the deadline, unless one call alone takes longer than it
# beyond, one of each two samples is dropped, and one of each two (then four, ...) new ones kept
MOST_KEPT = 8_192
RESOLUTIONS_PER_SAMPLE = 100  # a sample this long is read to 1 %
MOST_CALLS_PER_SAMPLE = 2**16
# the empty loop runs after each of the first 101 samples, then after every 16th
EMPTY_AT_ONCE, EMPTY_EVERY = 101, 16
PROGRESS_SECONDS = 0.05


@dataclass(frozen=True)
class Sampled:
    """What the sampler saw, in the order taken.

    Attributes
    ----------
    samples_seconds : ndarray, shape (n,), float64
        Seconds per call until the device had finished, the loop's and the clock's own time removed;
        never negative.
    launch_seconds : ndarray, shape (n,), float64
        Seconds per call until the last call had returned, likewise.
    sample_starts_seconds : ndarray, shape (n,), float64
        Clock reading before each sample.
    interval_seconds : (float, float) or None
        A 95 % interval of the median; None where no honest interval can be given.
    calls_per_sample : int
        More than 1 where a call is too short for the clock; the interval is then that of the mean
        of this many calls.
    stopped_by : str
        "precision", "deadline" or "stopped".
    no_interval_reason : str or None
        One sentence, where ``interval_seconds`` is None.
    overhead_seconds : float
        What was removed from each sample, per call.
    kept_every : int
        One of every ``kept_every`` samples was kept, chosen at random: 1, or a power of 2 where
        more than 8,192 samples were taken.
    """

    samples_seconds: np.ndarray
    launch_seconds: np.ndarray
    sample_starts_seconds: np.ndarray
    interval_seconds: Interval | None
    calls_per_sample: int
    stopped_by: str
    no_interval_reason: str | None
    overhead_seconds: float
    kept_every: int = 1


def sample(
    run: Run,
    clock: Clock,
    *,
    empty: Run | None = None,
    call_seconds: float = math.inf,
    relative_width: float = 0.02,
    deadline: float = 2.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Sampled:
    """Sample one function until its interval is narrow enough, or the deadline has come.

    Parameters
    ----------
    run : callable
        ``run(calls)`` performs this many calls back to back and returns the seconds until the last
        call had returned, and until the device had finished. Must be warmed up: the sampler does
        not treat the first call specially.
    clock : callable
        Returns seconds; the deadline is in its time.
    empty : callable, optional
        The same loop without the work (``make_loops``). It is run between samples, and its median
        is subtracted.
    call_seconds : float, optional
        The fastest call before, as in a warm-up: it keeps the sampler from mistaking a first sample
        in which the process was paused for a slow call.
    relative_width : float
        Width of the interval, relative to the median, to stop at.
    deadline : float
        Seconds. The call in flight is finished.
    progress : callable, optional
        ``progress(fraction, text)``, about twenty times a second of the clock.
    stop : callable, optional
        Called before each sample; True ends the sampling and keeps the samples taken so far.

    Returns
    -------
    Sampled
        At least 3 samples, unless a call takes longer than the deadline or ``stop`` said so (then
        possibly none).

    Raises
    ------
    InputError
        If ``relative_width`` or ``deadline`` is not a positive number, or the clock stands still
        while 65,536 calls run.

    Notes
    -----
    Exceptions from ``run`` pass through unchanged, including KeyboardInterrupt.
    """
    return sample_in_turns(
        [run],
        clock,
        empties=[empty],
        call_seconds=[call_seconds],
        relative_width=relative_width,
        deadline=deadline,
        progress=progress,
        stop=stop,
    )[0]


def sample_in_turns(
    runs: Sequence[Run],
    clock: Clock,
    *,
    empties: Sequence[Run | None] | None = None,
    call_seconds: Sequence[float] | None = None,
    relative_width: float = 0.02,
    deadline: float = 2.0,
    fewest: int = FEWEST_SAMPLES,
    patience: float = 0.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> list[Sampled]:
    """Sample several functions, one sample of each in turn, until all intervals are narrow enough
    or the deadline has come.

    Taking turns spreads disturbances of the machine evenly over all functions. All get the same
    number of samples, so that ``statistics.ratio_interval(..., paired=True)`` applies.

    Parameters
    ----------
    runs : sequence of callables
    empties : sequence of callables or None, optional
        The empty loop of each.
    call_seconds : sequence of float, optional
        The fastest call of each before.
    deadline : float
        Seconds, for all of them together.
    fewest : int
        Samples of each that are taken past the deadline too, for up to ``patience`` seconds from
        the beginning, as long as another turn fits into them. Only the number of samples decides,
        never their values.
    patience : float
        Seconds, for all of them together.
    clock, relative_width, progress, stop
        As in ``sample``.

    Returns
    -------
    list of Sampled
        One for each of ``runs``, with the same ``stopped_by``.
    """
    for name, value in (("relative_width", relative_width), ("deadline", deadline)):
        if not is_finite(value) or value <= 0:
            raise InputError(
                f"sample: {name}={value!r}; expected a positive number. Pass {name}=0.02 or the "
                "like."
            )
    relative_width, deadline = float(relative_width), float(deadline)
    begin = clock()
    tick = _tick(clock)
    columns = [
        _Column(run, empty, clock)
        for run, empty in zip(runs, empties or [None] * len(runs), strict=True)
    ]
    schedule = _Schedule(
        begin, deadline, relative_width, call_seconds or [math.inf] * len(runs), fewest, patience
    )
    stopped_by = None
    while stopped_by is None:
        if stop is not None and stop():
            stopped_by = "stopped"
            break
        for column in columns:
            if column.calls == 0:
                column.choose_calls(tick, deadline / len(columns))
            else:
                column.take()
        now = clock()
        stopped_by = schedule.verdict(now, columns)
        if progress is not None and schedule.progress_is_due(now):
            progress(min(1.0, (now - begin) / deadline), plural(columns[0].count, "sample"))
    return [column.result(stopped_by) for column in columns]


class _Schedule:
    """When to look at the intervals, and when to end."""

    def __init__(
        self,
        begin: float,
        deadline: float,
        relative_width: float,
        call_seconds: Sequence[float],
        fewest: int,
        patience: float,
    ) -> None:
        self._begin, self._deadline, self._relative_width, self._call_seconds = (
            begin,
            deadline,
            relative_width,
            call_seconds,
        )
        self._fewest, self._patience = fewest, patience
        self._last, self._fastest_round = begin, math.inf
        self._next_look = FIRST_LOOK * deadline
        self._next_progress = 0.0

    def verdict(self, now: float, columns: list[_Column]) -> str | None:
        """Return why to end after the round that ended now, or None to go on."""
        elapsed = now - self._begin
        self._last, self._fastest_round = now, min(self._fastest_round, now - self._last)
        count = columns[0].count
        if elapsed >= self._deadline:
            # What has passed may be one stop of the machine, and it must not stay the only sample:
            # the fastest round tells the pace.
            known = sum(
                seconds * column.calls
                for seconds, column in zip(self._call_seconds, columns, strict=True)
            )
            pace = min(self._fastest_round, known)
            too_few = (
                count < FEWEST_SAMPLES and (count + 1) * pace < FEWEST_SAMPLES * self._deadline
            )
            asked_for = count < self._fewest and elapsed + pace < self._patience
            return None if too_few or asked_for else "deadline"
        if elapsed < self._next_look or count < FEWEST_BEFORE_PRECISION:
            return None
        self._next_look = LOOK_GROWTH * elapsed
        return (
            "precision"
            if all(column.is_precise(self._relative_width) for column in columns)
            else None
        )

    def progress_is_due(self, now: float) -> bool:
        due = now - self._begin >= self._next_progress
        if due:
            self._next_progress = now - self._begin + PROGRESS_SECONDS
        return due


class _Column:
    """The samples of one function as they come."""

    def __init__(self, run: Run, empty: Run | None, clock: Clock) -> None:
        self._run, self._empty, self._clock = run, empty, clock
        self.calls = 0
        self._taken, self._every, self._next_kept = 0, 1, 1
        # keeping always the first of each pair would see only half of what alternates
        self._draw = random.Random(0)
        self._starts: list[float] = []
        self._launched: list[float] = []
        self._finished: list[float] = []
        self._empty_launched: list[float] = []
        self._empty_finished: list[float] = []

    @property
    def count(self) -> int:
        return len(self._finished)

    def choose_calls(self, tick: float, deadline: float) -> None:
        """Find how many calls make a sample that is long against the clock's tick; one call that is
        long enough is the first sample.
        """
        start = self._clock()
        launched, finished = self._run(1)
        calls, least = 1, RESOLUTIONS_PER_SAMPLE * tick
        if finished <= 0 or finished < least:
            while calls < MOST_CALLS_PER_SAMPLE:
                # the clock ticks more rarely than it is read: the first step seen is its tick
                if finished <= 0 and least == 0:
                    calls *= 2
                    _, finished = self._run(calls)
                    # a clock that was set back has not ticked
                    least = RESOLUTIONS_PER_SAMPLE * max(finished, 0.0)
                    continue
                if finished >= min(least, deadline / FEWEST_BEFORE_PRECISION) > 0:
                    break
                growth = 1.2 * least / finished if finished > 0 else 2.0
                calls = min(math.ceil(calls * min(growth, 16.0)), MOST_CALLS_PER_SAMPLE)
                finished = min(self._run(calls)[1] for _ in range(3))
            if finished <= 0:
                raise InputError(
                    f"sample: the clock did not advance during {calls:,} calls; expected seconds "
                    "that grow while the work runs. "
                    "Pass time.perf_counter, or give the call more to do."
                )
            self.calls = calls
            self.take()
            return
        self.calls = 1
        self._took(start, launched, finished)

    def take(self) -> None:
        start = self._clock()
        self._took(start, *self._run(self.calls))

    def _took(self, start: float, launched: float, finished: float) -> None:
        # the first too: rows that take turns must keep the samples of the same rounds, batched or
        # not
        self._taken += 1
        if self._taken == self._next_kept:
            self._keep(start, launched, finished)
            block = self._taken // self._every + 1
            self._next_kept = block * self._every + (
                self._draw.randrange(self._every) if self._every > 1 else 0
            )
        if self._taken <= EMPTY_AT_ONCE or self._taken % EMPTY_EVERY == 0:
            self._take_empty()

    def _take_empty(self) -> None:
        if self._empty is not None and len(self._empty_finished) < MOST_KEPT:
            launched, finished = self._empty(self.calls)
            self._empty_launched.append(launched)
            self._empty_finished.append(finished)

    def _keep(self, start: float, launched: float, finished: float) -> None:
        self._starts.append(start)
        self._launched.append(launched)
        self._finished.append(finished)
        if len(self._finished) >= MOST_KEPT:
            self._every *= 2
            kept = [2 * pair + self._draw.randrange(2) for pair in range(MOST_KEPT // 2)]
            for values in (self._starts, self._launched, self._finished):
                values[:] = [values[index] for index in kept]

    def is_precise(self, relative_width: float) -> bool:
        return is_precise(self._per_call(self._finished, self._empty_finished), relative_width)

    def _per_call(self, values: list[float], empties: list[float]) -> np.ndarray:
        overhead = float(np.median(empties)) if empties else 0.0
        return np.maximum((np.array(values) - overhead) / max(self.calls, 1), 0.0)

    def result(self, stopped_by: str) -> Sampled:
        samples = self._per_call(self._finished, self._empty_finished)
        interval, reason = median_interval(samples)
        # a rate or a relative width of nothing would be no number
        if len(samples) and float(np.median(samples)) == 0.0:
            interval = None
            reason = (
                f"in most samples {self.calls:,} call{'s' if self.calls != 1 else ''} took no "
                "longer by the clock than the empty loop"
            )
        overhead = (
            float(np.median(self._empty_finished)) / self.calls if self._empty_finished else 0.0
        )
        return Sampled(
            samples_seconds=samples,
            launch_seconds=self._per_call(self._launched, self._empty_launched),
            sample_starts_seconds=np.array(self._starts),
            interval_seconds=interval,
            calls_per_sample=max(self.calls, 1),
            stopped_by=stopped_by,
            no_interval_reason=reason,
            overhead_seconds=overhead,
            kept_every=self._every,
        )


def _tick(clock: Clock) -> float:
    """Return the shortest step seen between two readings of the clock, its own cost included; 0
    where it did not move.
    """
    readings = [clock() for _ in range(32)]
    return min(
        (later - earlier for earlier, later in pairwise(readings) if later > earlier), default=0.0
    )
