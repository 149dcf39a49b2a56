"""Do samples belong to one level? Two tests for those that do not: a shift in time, and jumps
between two levels.

Both compare an effect with the samples' own scatter, correlation included, because correlated noise
wanders on its own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

# Samples are condensed to at most this many medians in the order taken: enough to place a shift,
# and robust to single outliers.
_POINTS = 64
_LEAST_SAMPLES = 8
_LEAST_POINTS = 3
# Scores that 99.8 % of undisturbed series stay under (independent, heavy-tailed, AR(1) up to 0.9;
# simulated, see benchmarks/detection.py).
_SHIFT_SCORE = 6.0
_FEW = 5.0
_LEVEL_GAP_SPREADS = 5.0
_LEVEL_SHARE = 0.1
_SHORTEST_PART = 16
_LEAST_STRETCH = 12
_WANDER_SPREADS = 2.0
_RAMP_EDGES = 17
_LEAST_FOR_LEVELS = 60


def condensed(samples: np.ndarray) -> np.ndarray:
    """Return at most 64 medians of consecutive, equally long stretches."""
    points = min(_POINTS, len(samples))
    edges = np.linspace(0, len(samples), points + 1).astype(int)
    return np.array([np.median(samples[start:end]) for start, end in pairwise(edges)])


def level_shift(samples: np.ndarray, least: float) -> float | None:
    """Return the relative size of the clearest shift or drift, or None where the scatter explains
    it or it is below ``least``.

    Two shapes are laid through the series: one stretch at another level than the rest, and a ramp
    between two levels (a step and a straight drift are its extremes). The effect is divided by what
    the scatter and the correlation of the remainder make likely.
    """
    if len(samples) < _LEAST_SAMPLES:
        return None
    points = condensed(samples)
    shortest = max(
        _LEAST_POINTS,
        len(points) // (_SHORTEST_PART if len(samples) >= 4 * _POINTS else _SHORTEST_PART // 2),
    )
    found = [
        effect
        for effect, score in (_best_stretch(points, shortest), _best_ramp(points, shortest))
        if effect >= least and score >= _SHIFT_SCORE
    ]
    return max(found, default=None)


def _best_stretch(points: np.ndarray, shortest: int) -> tuple[float, float]:
    """Return the relative effect and the score of the stretch that stands out most."""
    m = len(points)
    sums = np.concatenate([[0.0], np.cumsum(points)])
    start, end = (
        index.ravel() for index in np.meshgrid(np.arange(m + 1), np.arange(m + 1), indexing="ij")
    )
    fits = (end - start >= shortest) & (m - end + start >= shortest)
    start, end = start[fits], end[fits]
    length = end - start
    inside = (sums[end] - sums[start]) / length
    outside = (sums[m] - sums[end] + sums[start]) / (m - length)
    reach = np.sqrt(1.0 / length + 1.0 / (m - length))
    best = int(np.argmax(np.abs(inside - outside) / reach))
    fitted = np.full(m, outside[best])
    fitted[start[best] : end[best]] = inside[best]
    return _effect(float(inside[best]), float(outside[best]), points - fitted, float(reach[best]))


def _best_ramp(points: np.ndarray, shortest: int) -> tuple[float, float]:
    """Return the relative effect and the score of the ramp that fits best."""
    m = len(points)
    edges = np.unique(np.linspace(0, m - 1, _RAMP_EDGES).astype(int))
    start, end = (index.ravel() for index in np.meshgrid(edges, edges, indexing="ij"))
    fits = (start < end) & (start + end >= 2 * shortest) & (2 * m - start - end >= 2 * shortest)
    start, end = start[fits, None], end[fits, None]
    shapes = np.clip((np.arange(m) - start) / (end - start), 0.0, 1.0)
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    size = (centred**2).sum(axis=1)
    rise = centred @ points / size
    best = int(np.argmax(rise**2 * size))
    base = float(points.mean() - rise[best] * shapes[best].mean())
    rest = points - base - rise[best] * shapes[best]
    return _effect(base, base + float(rise[best]), rest, float(1.0 / np.sqrt(size[best])))


def _effect(one: float, other: float, rest: np.ndarray, reach: float) -> tuple[float, float]:
    """Return |one - other| against the lower of them, and against the chance of it."""
    lower = min(one, other)
    chance = _long_run_spread(rest) * reach
    if lower <= 0:
        return 0.0, 0.0
    return abs(one - other) / lower, abs(one - other) / chance if chance > 0 else np.inf


def _long_run_spread(rest: np.ndarray) -> float:
    """Return the standard deviation that matters for a mean of correlated values (that of an AR(1)
    fitted to them).

    It is widened where few independent values stand behind it, as Student's quantile is wider than
    the normal one.
    """
    m = len(rest)
    square = float(rest @ rest)
    if square == 0.0:
        return 0.0
    rho = float(rest[1:] @ rest[:-1]) / square
    # the estimate is biased low by about (1 + 4 rho) / m (Marriott and Pope 1954)
    rho = min(0.95, max(0.0, rho + (1 + 4 * rho) / m))
    stretch = (1 + rho) / (1 - rho)
    return float(np.sqrt(square / max(1, m - 2) * stretch)) * (1.0 + _FEW * stretch / m)


def wander(samples: np.ndarray, least: float) -> float | None:
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
    spread = _middle_spread(rest.ravel())
    rest = np.clip(rest, -4 * spread, 4 * spread)
    square = float((rest**2).sum())
    rho = float((rest[:, 1:] * rest[:, :-1]).sum()) / square if square > 0 else 0.0
    rho = min(0.97, max(0.0, rho + (1 + 4 * rho) / length))
    # The variance of a median is pi / 2 times that of a mean.
    expected = spread * float(np.sqrt(np.pi / 2 * (1 + rho) / (1 - rho) / length))
    return reach / middle if _middle_spread(points) > _WANDER_SPREADS * expected else None


def two_heaps(samples: np.ndarray, least: float) -> tuple[float, float] | None:
    """Return the two levels between which the samples jump, or None where they form one cluster.

    The sorted samples are cut where the two parts differ most from each other (Otsu 1979); the
    parts must be far apart against their own spread, and each hold a tenth of the samples. Stricter
    than ``statistics.two_levels``: there a doubt costs some more samples, here it costs a false
    alarm.
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
