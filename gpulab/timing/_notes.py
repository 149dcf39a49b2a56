"""The notes of one measurement: which rules apply, and in which order the notes are shown.

The rules that turn samples into notes are pure: no clock, no machine. (Those for the machine's
readings are in ``devices``, those for rates in ``plausibility``.) Each asks two things: is the
disturbance large enough to matter (about half of the 5 % that must never be missed), and is it
larger than what a quiet machine does by itself. A note gives the symptom, its size, and what to do.
How often the rules miss and how often they raise a false alarm is measured by
``benchmarks/detection.py``.

Do samples belong to one level? A shift in time, jumps between two levels, and wandering compare an
effect with the samples' own scatter, correlation included, because correlated noise wanders on its
own.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpulab.devices import conditions
from gpulab.devices.conditions import SHARE, Readings, Window, percent
from gpulab.evidence import Note
from gpulab.timing.sampling import Limits, Sampled
from gpulab.timing.statistics import fast_count
from gpulab.units import format_seconds, plural

if TYPE_CHECKING:
    from gpulab.timing.measuring import Job

# What makes a figure wrong comes before what makes it less precise, and that before what is merely
# good to know.
_ORDER = (
    "implausible",
    "disagree",
    "throttled",
    "contended",
    "stalled",
    "unstable",
    "no-interval",
    "deadline",
    "stopped",
    "warm-cache",
    "slow-first-call",
    "too-short",
    "turn-taking",
    "no-overlap",
    "skipped",
)


# A stop must last at least this long to be told from the work's own scatter.
_LEAST_STOP_SECONDS = 0.002
_STOP_SPREADS = 10.0
_FEW = 20
_FIRST_CALL_RATIO = 3.0
_FIRST_CALL_EXTRA_SECONDS = 2e-4
# Samples are condensed to at most this many medians in the order taken: enough to place a shift,
# and robust to single outliers.
_POINTS = 64
_LEAST_SAMPLES = 8
_LEAST_POINTS = 3
# Scores that 99.8 % of undisturbed series stay under (independent, heavy-tailed, AR(1) up to 0.9;
# simulated, see benchmarks/detection.py).
_SHIFT_SCORE = 6.0
_FEW_WORTH = 5.0
_LEVEL_GAP_SPREADS = 5.0
_LEVEL_SHARE = 0.1
_SHORTEST_PART = 16
_LEAST_STRETCH = 12
_WANDER_SPREADS = 2.0
_RAMP_EDGES = 17
_LEAST_FOR_LEVELS = 60


def ordered(notes: list[Note]) -> tuple[Note, ...]:
    """Return the notes, gravest first, no sentence twice."""
    return tuple(dict.fromkeys(sorted(notes, key=lambda note: _ORDER.index(note.code))))


def of_sampling(
    job: Job,
    sampled: Sampled,
    limits: Limits,
    before: Readings | None,
    after: Readings | None,
    collections: list[float],
    alone: bool = True,
) -> list[Note]:
    """Return the notes that the samples, the garbage collections meanwhile and the machine's
    counters give.

    Not ``alone``, others were called between the samples.
    """
    samples, calls = sampled.samples_seconds, sampled.calls_per_sample
    median, starts = float(np.median(samples)), sampled.sample_starts_seconds
    notes, window = [], None
    if before is not None and after is not None:
        notes = conditions.from_readings(before, after)
        window = Window.between(before, after)
    _, _, walls = job.of_last_size()
    # The time between samples that the samples themselves do not fill; where they were thinned out,
    # what is unusual in it. Where turns are taken, what lies between two samples is another row's
    # call: one that waits is no stop of this row's.
    gaps = np.zeros(0)
    if alone and len(samples) > 1:
        thinned = 3.0 * np.median(np.diff(starts))
        filled = (samples[:-1] + sampled.overhead_seconds) * calls
        gaps = np.maximum(np.diff(starts) - (filled if sampled.kept_every == 1 else thinned), 0.0)
    elapsed, collected = float(np.ptp(starts) + walls[-1] * calls), sum(collections)
    if collected and collected >= max(SHARE * elapsed, _LEAST_STOP_SECONDS):
        sentence = (
            "another thread's garbage collection stopped this one "
            f"{plural(len(collections), 'time')}, the longest {format_seconds(max(collections))}, "
            f"{percent(collected / elapsed)} of the time in total. That thread makes objects, "
            "perhaps in cycles; end it, and measure again."
        )
        notes.append(Note("stalled", sentence))
    else:
        notes += _stalled(walls * calls, gaps, window)
    notes += _unstable(samples, limits.relative_width)
    extra = job.first_seconds - median
    if job.first_seconds >= _FIRST_CALL_RATIO * median and extra >= _FIRST_CALL_EXTRA_SECONDS:
        ratio = ""
        if median > 0:
            ratio = f", {job.first_seconds / median:.0f} times as much as the later ones"
        sentence = (
            f"the first call took {format_seconds(job.first_seconds)}{ratio} (compiling, loading, "
            "allocating). It is not in the median; count it if you call the function only once."
        )
        notes.append(Note("slow-first-call", sentence))
    notes += _interval(sampled, limits)
    if calls > 1:
        sentence = (
            f"one call is too short for the clock, so each sample is the mean of {calls} "
            "calls; the interval is that of the mean. Do more work per call to time single "
            "calls."
        )
        notes.append(Note("too-short", sentence))
    return notes


def no_interval(reason: str) -> Note:
    """Return the note that no honest interval can be given, and why."""
    return Note(
        "no-interval",
        f"{reason.rstrip('.')}. The median is given without an interval; measure again, for longer "
        "or on a quieter machine.",
    )


def _interval(sampled: Sampled, limits: Limits) -> list[Note]:
    if sampled.stopped_by == "stopped":
        sentence = (
            f"sampling was stopped after {plural(len(sampled.samples_seconds), 'sample')}; the "
            "figures are based on these. Run it again for more."
        )
        return [Note("stopped", sentence)]
    if sampled.interval_seconds is None:
        reason = sampled.no_interval_reason or "the samples do not determine an interval"
        return [no_interval(reason)]
    low, high = sampled.interval_seconds
    width = (high - low) / float(np.median(sampled.samples_seconds))
    # too few samples to end before the deadline, or another row of a comparison was not there yet
    if sampled.stopped_by != "deadline" or width <= limits.relative_width:
        return []
    sentence = (
        f"after {format_seconds(limits.deadline)} the interval is {100 * width:.1f} % wide, "
        f"{100 * limits.relative_width:.1f} % was requested. Pass a longer deadline, or a larger "
        "relative_width."
    )
    return [Note("deadline", sentence)]


def _stalled(
    sample_seconds: np.ndarray, gaps_seconds: np.ndarray, window: Window | None
) -> list[Note]:
    """Return the note that the process was stopped: a few samples, or the time between two, took
    far too long.

    Parameters
    ----------
    sample_seconds : ndarray, shape (n,)
        The wall time of each sample (not per call).
    gaps_seconds : ndarray, shape (n - 1,)
        The time between the end of a sample and the start of the next.
    window : Window or None
        The machine's account of the same time: delays that another process or a quota explains are
        left to those notes, and a gap between samples counts only if the process did nothing in it.
    """
    middle = float(np.median(sample_seconds))
    excess = sample_seconds - middle
    few = len(sample_seconds) < _FEW
    spread = 1.4826 * float(np.median(np.abs(excess))) if few else _spread(sample_seconds)
    stops = excess[excess >= max(_LEAST_STOP_SECONDS, _STOP_SPREADS * spread, 0.05 * middle)]
    idle = gaps_seconds[gaps_seconds >= _LEAST_STOP_SECONDS]
    # The process must have been blocked for as long as the stops say, and for no other reason (such
    # as waiting in every call).
    stopped, waited, blocked = float(stops.sum() + idle.sum()), 0.0, 0.0
    if window is not None:
        blocked = (window.blocked or 0.0) * window.seconds
        waited = max(window.delay or 0.0, window.process_delay or 0.0)
        waited = (waited + (window.throttled or 0.0) + (window.stolen or 0.0)) * window.seconds
    if not 0.8 * stopped <= blocked <= 1.25 * stopped:
        idle = stops[:0]
    stops = np.concatenate([stops, idle])
    stopped, total = float(stops.sum()), float(sample_seconds.sum() + idle.sum())
    if len(stops) == 0 or stopped - waited < SHARE * total:
        return []
    sentence = (
        f"the process stood still {plural(len(stops), 'time')}, the longest "
        f"{format_seconds(float(stops.max()))}, {percent(stopped / total)} of the time in total "
        "(it was stopped, or lost its core). Those samples do not show the work; measure again."
    )
    return [Note("stalled", sentence)]


def _spread(values: np.ndarray) -> float:
    """Return a standard deviation that outliers do not move: half of the middle 68 %."""
    low, high = np.quantile(values, [0.16, 0.84])
    return float(high - low) / 2


def _unstable(samples_seconds: np.ndarray, relative_width: float) -> list[Note]:
    """Return the note that the samples do not belong to one level: they shifted, or jump between
    two.
    """
    least = max(0.03, relative_width)
    if (shift := _level_shift(samples_seconds, least)) is not None:
        what = f"changed by {percent(shift)} while measuring"
    elif (levels := _two_levels(samples_seconds, least)) is not None:
        low, high = levels
        what = (
            f"jumps between two levels, {format_seconds(low)} and {format_seconds(high)} "
            f"({percent(high / low - 1)} apart)"
        )
    elif (swing := _wander(samples_seconds, least)) is not None:
        what = f"wandered by {percent(swing)} while measuring"
    else:
        return []
    sentence = (
        f"the time per call {what}. No single figure describes it; look at the raw samples, close "
        "other programs, and measure again."
    )
    return [Note("unstable", sentence)]


def _level_shift(samples: np.ndarray, least: float) -> float | None:
    """Return the relative size of the clearest shift or drift, or None where the scatter explains
    it or it is below ``least``.

    Two shapes are laid through the series: one stretch at another level than the rest, and a ramp
    between two levels (a step and a straight drift are its extremes). The effect is divided by what
    the scatter and the correlation of the remainder make likely.
    """
    if len(samples) < _LEAST_SAMPLES:
        return None
    edges = np.linspace(0, len(samples), min(_POINTS, len(samples)) + 1).astype(int)
    points = np.array([np.median(samples[start:end]) for start, end in pairwise(edges)])
    parts = _SHORTEST_PART if len(samples) >= 4 * _POINTS else _SHORTEST_PART // 2
    shapes = _shapes(len(points), max(_LEAST_POINTS, len(points) // parts))
    found = [
        effect
        for effect, score in (_best_fit(points, kind) for kind in shapes)
        if effect >= least and score >= _SHIFT_SCORE
    ]
    return max(found, default=None)


@functools.lru_cache(maxsize=8)
def _shapes(m: int, shortest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all stretches and all ramps of ``m`` points with at least ``shortest`` points on each
    level, as rows of values from 0 to 1.
    """
    index = np.arange(m)
    start, end = (place[:, None] for place in np.triu_indices(m + 1, 1))
    stretches = ((start <= index) & (index < end)).astype(float)
    held = stretches.sum(axis=1)
    edges = np.unique(np.linspace(0, m - 1, _RAMP_EDGES).astype(int))
    start, end = (edges[place][:, None] for place in np.triu_indices(len(edges), 1))
    ramps = np.clip((index - start) / (end - start), 0.0, 1.0)
    middle = (start + end).ravel()
    return (
        stretches[(held >= shortest) & (m - held >= shortest)],
        ramps[(middle >= 2 * shortest) & (2 * m - middle >= 2 * shortest)],
    )


def _best_fit(points: np.ndarray, shapes: np.ndarray) -> tuple[float, float]:
    """Return the relative effect and the score of the shape that fits best, by least squares.

    The effect is the difference of the two levels against the lower of them; the score is that
    difference against the chance of it: the standard deviation that matters for a mean of
    correlated values (that of an AR(1) fitted to the remainder). It is widened where few
    independent values stand behind it, as Student's quantile is wider than the normal one.
    """
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    size = np.einsum("ij,ij->i", centred, centred)
    rises = centred @ points / size
    best = int(np.argmax(rises**2 * size))
    rise = float(rises[best])
    base = float(points.mean() - rise * shapes[best].mean())
    lower, m = min(base, base + rise), len(points)
    if lower <= 0:
        return 0.0, 0.0
    rest = points - base - rise * shapes[best]
    square = float(rest @ rest)
    if square == 0.0:
        return abs(rise) / lower, np.inf
    rho = float(rest[1:] @ rest[:-1]) / square
    # the estimate is biased low by about (1 + 4 rho) / m (Marriott and Pope 1954)
    rho = min(0.95, max(0.0, rho + (1 + 4 * rho) / m))
    stretch = (1 + rho) / (1 - rho)
    spread = float(np.sqrt(square / max(1, m - 2) * stretch)) * (1.0 + _FEW_WORTH * stretch / m)
    return abs(rise) / lower, abs(rise) / spread * float(np.sqrt(size[best]))


def _wander(samples: np.ndarray, least: float) -> float | None:
    """Return how far the level wanders, relative to its median, or None where the scatter explains
    it.

    The medians of short stretches may differ by what the scatter inside them, with its correlation,
    makes likely; levels that are held for a while make them differ far more, whatever the pattern.
    """
    length = len(samples) // _POINTS
    if length < _LEAST_STRETCH:
        return None
    stretches = samples[: length * _POINTS].reshape(_POINTS, length)
    points = np.median(stretches, axis=1)
    middle = float(np.median(points))
    reach = float(np.quantile(points, 0.95) - np.quantile(points, 0.05))
    if middle <= 0 or reach < least * middle:
        return None
    rest = stretches - points[:, None]
    spread = _spread(rest.ravel())
    rest = np.clip(rest, -4 * spread, 4 * spread)
    square = float((rest**2).sum())
    rho = float((rest[:, 1:] * rest[:, :-1]).sum()) / square if square > 0 else 0.0
    rho = min(0.97, max(0.0, rho + (1 + 4 * rho) / length))
    # The variance of a median is pi / 2 times that of a mean.
    expected = spread * float(np.sqrt(np.pi / 2 * (1 + rho) / (1 - rho) / length))
    return reach / middle if _spread(points) > _WANDER_SPREADS * expected else None


def _two_levels(samples: np.ndarray, least: float) -> tuple[float, float] | None:
    """Return the two levels between which the samples jump, or None where they form one cluster.

    The two parts must be far apart against their own spread, and each hold a tenth of the samples.
    Stricter than in ``statistics``: there a doubt costs some more samples, here it costs a false
    alarm.
    """
    if len(samples) < _LEAST_FOR_LEVELS:
        return None
    ordered = np.sort(samples)
    cut = fast_count(ordered, _LEVEL_SHARE)
    low, high = ordered[:cut], ordered[cut:]
    bottom, top = float(np.median(low)), float(np.median(high))
    spread = max(_spread(low), _spread(high))
    if bottom <= 0 or top - bottom < least * bottom or top - bottom < _LEVEL_GAP_SPREADS * spread:
        return None
    return bottom, top
