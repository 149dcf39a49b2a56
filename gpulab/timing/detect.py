"""The rules that turn samples into notes: pure functions, no clock, no machine. Those for the
machine's readings are in ``devices``.

Each rule asks two things: is the disturbance large enough to matter (about half of the 5 % that
must never be missed), and is it larger than what a quiet machine does by itself. A note gives the
symptom, its size, and what to do. How often the rules miss and how often they raise a false alarm
is measured by ``benchmarks/detection.py``.
"""

from __future__ import annotations

import numpy as np

from gpulab.devices.disturbance import SHARE, Window, percent
from gpulab.evidence import Note
from gpulab.timing.levels import level_shift, two_heaps, wander
from gpulab.units import format_seconds, plural

# A stop must last at least this long to be told from the work's own scatter.
_LEAST_STOP_SECONDS = 0.002
_STOP_SPREADS = 10.0
_FEW = 20
_FIRST_CALL_RATIO = 3.0
_FIRST_CALL_EXTRA_SECONDS = 2e-4


def collected(collections: list[float], elapsed_seconds: float) -> Note | None:
    """Return the note that garbage of other threads was collected meanwhile: the seconds of each
    collection, and of all sampling.
    """
    total = sum(collections)
    if total < max(SHARE * elapsed_seconds, _LEAST_STOP_SECONDS):
        return None
    return Note(
        "stalled",
        f"another thread's garbage collection stopped this one {plural(len(collections), 'time')}, "
        "the longest "
        f"{format_seconds(max(collections))}, {percent(total / elapsed_seconds)} of the time in "
        "total. That thread makes objects, perhaps "
        "in cycles; end it, and measure again.",
    )


def stalled(
    sample_seconds: np.ndarray, gaps_seconds: np.ndarray, window: Window | None = None
) -> Note | None:
    """Return the note that the process was stopped: a few samples, or the time between two, took
    far too long.

    Parameters
    ----------
    sample_seconds : ndarray, shape (n,)
        The wall time of each sample (not per call).
    gaps_seconds : ndarray, shape (n - 1,)
        The time between the end of a sample and the start of the next.
    window : Window, optional
        The machine's account of the same time: delays that another process or a quota explains are
        left to those notes, and a gap between samples counts only if the process did nothing in it.
    """
    if len(sample_seconds) == 0:
        return None
    middle = float(np.median(sample_seconds))
    excess = sample_seconds - middle
    stops = excess[
        excess >= max(_LEAST_STOP_SECONDS, _STOP_SPREADS * _spread(sample_seconds), 0.05 * middle)
    ]
    idle = (
        gaps_seconds[gaps_seconds >= _LEAST_STOP_SECONDS]
        if window is not None and window.blocked is not None
        else stops[:0]
    )
    if len(idle) and not _stood_still(float(stops.sum() + idle.sum()), window):
        idle = idle[:0]
    stops = np.concatenate([stops, idle])
    stopped, count, longest = float(stops.sum()), len(stops), float(stops.max(initial=0.0))
    total = float(sample_seconds.sum() + idle.sum())
    if count == 0 or stopped < SHARE * total:
        return None
    waited = 0.0 if window is None else max(window.delay or 0.0, window.process_delay or 0.0)
    if (
        window is not None
        and stopped - (waited + (window.throttled or 0.0) + (window.stolen or 0.0)) * window.seconds
        < SHARE * total
    ):
        return None
    return Note(
        "stalled",
        f"the process stood still {count} time{'s' if count != 1 else ''}, the longest "
        f"{format_seconds(longest)}, "
        f"{percent(stopped / total)} of the time in "
        "total (it was stopped, or lost its core). Those samples do not show the work; measure "
        "again.",
    )


def _stood_still(stopped_seconds: float, window: Window | None) -> bool:
    """Return whether the process was blocked for as long as the stops say, and for no other reason
    (such as waiting in every call).
    """
    if window is None or window.blocked is None:
        return False
    return 0.8 <= window.blocked * window.seconds / stopped_seconds <= 1.25


def _spread(values: np.ndarray) -> float:
    """Return a standard deviation that outliers do not move: half of the middle 68 %, or of few
    values the median distance.
    """
    if len(values) < _FEW:
        return 1.4826 * float(np.median(np.abs(values - np.median(values))))
    low, high = np.quantile(values, [0.16, 0.84])
    return float(high - low) / 2


def unstable(samples_seconds: np.ndarray, relative_width: float) -> Note | None:
    """Return the note that the samples do not belong to one level: they shifted, or jump between
    two.
    """
    least = max(0.03, relative_width)
    advice = (
        "No single figure describes it; look at the raw samples, close other programs, and "
        "measure again."
    )
    shift = level_shift(samples_seconds, least)
    if shift is not None:
        return Note(
            "unstable", f"the time per call changed by {percent(shift)} while measuring. {advice}"
        )
    levels = two_heaps(samples_seconds, least)
    if levels is not None:
        low, high = levels
        return Note(
            "unstable",
            f"the time per call jumps between two levels, {format_seconds(low)} and "
            f"{format_seconds(high)} "
            f"({percent(high / low - 1)} apart). {advice}",
        )
    swing = wander(samples_seconds, least)
    if swing is not None:
        return Note(
            "unstable", f"the time per call wandered by {percent(swing)} while measuring. {advice}"
        )
    return None


def slow_first_call(first_seconds: float, median_seconds: float) -> Note | None:
    """Return the note that the first call cost far more than the later ones."""
    extra = first_seconds - median_seconds
    if first_seconds < _FIRST_CALL_RATIO * median_seconds or extra < _FIRST_CALL_EXTRA_SECONDS:
        return None
    times = (
        f", {first_seconds / median_seconds:.0f} times as much as the later ones"
        if median_seconds > 0
        else ""
    )
    return Note(
        "slow-first-call",
        f"the first call took {format_seconds(first_seconds)}{times} (compiling, loading, "
        "allocating). It is not in the median; "
        f"count it if you call the function only once.",
    )
