"""Do samples belong to one level? Two tests for those that do not: a shift in time, and a jump to and fro between two levels.

Both compare an effect with the samples' own scatter, correlation included, because correlated noise wanders by itself.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

# Samples are condensed to at most this many medians in the order taken: enough to place a shift, and robust to single outliers.
_POINTS = 64
_LEAST_SAMPLES = 8
_LEAST_POINTS = 3
# Scores that 99.8 % of undisturbed series stay under (independent, heavy-tailed, AR(1) up to 0.9; simulated, see benchmarks/detection.py).
_SHIFT_SCORE = 5.5
_FEW = 5.0
_LEVEL_GAP_SPREADS = 5.0
_LEVEL_SHARE = 0.1
_LEAST_FOR_LEVELS = 60


def condensed(samples: np.ndarray) -> np.ndarray:
    """Return at most 64 medians of consecutive, equally long stretches."""
    points = min(_POINTS, len(samples))
    edges = np.linspace(0, len(samples), points + 1).astype(int)
    return np.array([np.median(samples[start:end]) for start, end in pairwise(edges)])


def level_shift(samples: np.ndarray, least: float) -> float | None:
    """Return the relative size of the clearest shift or drift, or None where the scatter explains it or it is below ``least``.

    Every stretch of at least an eighth of the series is compared with all that is outside it, and a straight line is laid through the
    whole; the effect is divided by what the scatter and the correlation of the remainder make likely.
    """
    if len(samples) < _LEAST_SAMPLES:
        return None
    points = condensed(samples)
    steps = [effect for effect, score in (_best_stretch(points), _line(points)) if effect >= least and score >= _SHIFT_SCORE]
    return max(steps, default=None)


def _best_stretch(points: np.ndarray) -> tuple[float, float]:
    """Return the relative effect and the score of the stretch that stands out most."""
    m = len(points)
    shortest = max(_LEAST_POINTS, m // 8)
    sums = np.concatenate([[0.0], np.cumsum(points)])
    start, end = (index.ravel() for index in np.meshgrid(np.arange(m + 1), np.arange(m + 1), indexing="ij"))
    fits = (end - start >= shortest) & (m - end + start >= shortest)
    start, end = start[fits], end[fits]
    if len(start) == 0:
        return 0.0, 0.0
    length = end - start
    inside = (sums[end] - sums[start]) / length
    outside = (sums[m] - sums[end] + sums[start]) / (m - length)
    reach = np.sqrt(1.0 / length + 1.0 / (m - length))
    best = int(np.argmax(np.abs(inside - outside) / reach))
    fitted = np.full(m, outside[best])
    fitted[start[best] : end[best]] = inside[best]
    return _effect(float(inside[best]), float(outside[best]), points - fitted, float(reach[best]))


def _line(points: np.ndarray) -> tuple[float, float]:
    """Return the relative change along the straight line through the points, and its score."""
    m = len(points)
    place = (np.arange(m) - (m - 1) / 2) / m
    slope = float(place @ points) / float(place @ place)
    middle = float(points.mean())
    rest = points - middle - slope * place
    return _effect(middle + slope / 2, middle - slope / 2, rest, float(1.0 / np.sqrt(place @ place)))


def _effect(one: float, other: float, rest: np.ndarray, reach: float) -> tuple[float, float]:
    """Return |one - other| against the lower of them, and against the chance of it."""
    lower = min(one, other)
    chance = _long_run_spread(rest) * reach
    if lower <= 0:
        return 0.0, 0.0
    return abs(one - other) / lower, abs(one - other) / chance if chance > 0 else np.inf


def _long_run_spread(rest: np.ndarray) -> float:
    """Return the standard deviation that matters for a mean of correlated values (that of an AR(1) fitted to them).

    It is widened where few independent values stand behind it, as Student's quantile is wider than the normal one.
    """
    m = len(rest)
    square = float(rest @ rest)
    if square == 0.0:
        return 0.0
    rho = float(rest[1:] @ rest[:-1]) / square
    rho = min(0.95, max(0.0, rho + (1 + 4 * rho) / m))  # the estimate is biased low by about (1 + 4 rho) / m (Marriott and Pope 1954)
    stretch = (1 + rho) / (1 - rho)
    return float(np.sqrt(square / max(1, m - 2) * stretch)) * (1.0 + _FEW * stretch / m)


def two_heaps(samples: np.ndarray, least: float) -> tuple[float, float] | None:
    """Return the two levels between which the samples jump, or None where they form one heap.

    The sorted samples are cut where the two parts differ most from each other (Otsu 1979); the parts must be far apart against
    their own spread, and each hold a tenth of the samples. Stricter than ``statistics.two_levels``: there a doubt costs some more
    samples, here it costs a false alarm.
    """
    n = len(samples)
    if n < _LEAST_FOR_LEVELS:
        return None
    ordered = np.sort(samples)
    counts = np.arange(1, n)
    sums = np.cumsum(ordered)
    low_mean, high_mean = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (n - counts)
    between = counts * (n - counts) * (high_mean - low_mean) ** 2
    allowed = (counts >= _LEVEL_SHARE * n) & (n - counts >= _LEVEL_SHARE * n)
    cut = int(np.argmax(np.where(allowed, between, -1.0))) + 1
    low, high = ordered[:cut], ordered[cut:]
    bottom, top = float(np.median(low)), float(np.median(high))
    spread = max(_middle_spread(low), _middle_spread(high))
    if bottom <= 0 or top - bottom < least * bottom or top - bottom < _LEVEL_GAP_SPREADS * spread:
        return None
    return bottom, top


def _middle_spread(values: np.ndarray) -> float:
    low, high = np.quantile(values, [0.16, 0.84])
    return float(high - low) / 2
