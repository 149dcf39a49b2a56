"""An honest interval of the median, for samples that are correlated, drift, or switch clocks.

The interval inverts a sign test: a value is inside unless too many samples lie on one side of it.
"Too many" is judged by the long-run variance of the signs, never by the count of samples alone.
Heavy tails do not matter to signs. Where the interval is very wide, its far values are tested
again, each by the signs about that value. Where the samples have two levels whose shares are not
known, the interval includes both. Where samples drift, it covers the median of the measured window.

How much less correlated samples are worth
------------------------------------------
The median's error depends on the signs of (sample - median) alone. The variance of the sum of n
independent signs is n; that of correlated ones is ``inflation * n``. The inflation is estimated
twice:

- From a model: the ranks follow an autoregression of order 0 to 3 under a Gaussian copula. The
  correlation of normal scores follows from that of the ranks, rho = 2 sin(pi r / 6) (Pearson 1907),
  and that of the signs from it, (2 / pi) asin(rho) (Sheppard 1899). Ranks use far more of the data
  than signs do, so this estimate is the more precise one where the model holds.
- From batches of signs of doubling length, each series of batch means prewhitened by an
  autoregression of order 1. Rough, but it assumes nothing about the process, and it shows slow
  changes: clock states, drift, interference.

The batches test the model. Where they contradict it, their inflation replaces the model's: that of
the longest batches that show a significantly larger one than shorter batches do (Lepski's rule).

Arithmetic only: no clock is read here, and the same samples always give the same interval (ties are
broken at random with a fixed seed).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpulab.units import plural

Interval = tuple[float, float]

# With fewer samples, correlation can't be distinguished from noise. At 20 samples, AR(1) with rho =
# 0.6 is still covered in 91 %.
FEWEST_SAMPLES = 20
# Student's t at 97.5 % by degrees of freedom. Source: NIST/SEMATECH e-Handbook of Statistical
# Methods, 1.3.6.7.2.
_T_DEGREES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 60, 120, np.inf])
# fmt: off
_T_VALUES = np.array([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.179,
                      2.131, 2.086, 2.042, 2.0, 1.98, 1.96])
# fmt: on
# However little is known, the interval keeps to the middle 95 % of the samples: their median can't
# honestly be said to lie outside.
_WIDEST_HALF = 0.475
# Stopping at the first interval that is narrow enough costs about half a percent of coverage; this
# factor of width restores it.
_FOR_LOOKING = 1.03
# If the interval reaches further than ``_FAR_HALF`` (a share of the samples) from the median, the
# quantiles inside it are tested again, from ``_NEAREST`` outward in steps of ``_STEP``.
_FAR_HALF = 0.25
_NEAREST, _STEP = 0.15, 0.025
# The test at a far quantile counts only if the inflation of its signs is smaller, by this factor,
# than that of the signs about the median.
_FORGETS = 3.0
# Numbers of samples. With fewer than the first, far quantiles are not tested. With fewer than the
# second, their signs must look independent, since there are too few batches to estimate strong
# correlation. Without this, AR(1) with rho = 0.9 is covered in 73 % at 100 samples, with rho = 0.98
# in 70 % at 300.
_FEWEST_FAR, _FEWEST_TO_ESTIMATE = 100, 600
_INTERVAL_SHARE = 0.08  # a level seen in less than this share of the window can't be the median's
# Before stopping, the density at the median is measured over this many times the interval's share
# of the samples.
_WIDER = 2.5
_STOP_SHARE = 0.03  # a level seen in this share is reason enough to go on sampling
# Chosen by simulation over the processes of benchmarks/processes.py: `python
# benchmarks/interval_coverage.py`.
_MAX_ORDER = 3
_SHORTEST_BATCH = 4
_FEWEST_BATCHES = 15
_MODEL_DOUBT = 2.5  # standard errors by which the variance of batch means may exceed the model's
_SCALE_DOUBT = 0.4  # standard errors by which the inflation of longer batches must be larger
# An inflation with a larger error is not used: it comes from too few batches, or from batches too
# short for the correlation of the process.
_LARGEST_RELATIVE_ERROR = 0.9
_MOST_DEVIATIONS = 3.0  # median absolute deviations; two standard deviations if normal
# With spreads from quartiles, the two halves of a normal distribution lie 2.2 of their own spreads
# apart, those of a uniform one 2.7. Two levels lie further apart.
_APART_SPREADS = 3.8
# Fewer switches than this between separate levels leave their shares unknown; at twelve calls a
# switch the batches take over.
_FEW_SWITCHES = 10


def median_interval(samples: np.ndarray) -> tuple[Interval | None, str | None]:
    """Return a 95 % interval of the median, or the reason why none is honest.

    Parameters
    ----------
    samples : ndarray, shape (n,), float64
        Finite, in the order taken, equally spaced in calls; any unit.

    Returns
    -------
    interval : (float, float) or None
        In the unit of ``samples``; None with fewer than 20 samples.
    reason : str or None
        One sentence where there is no interval.

    Notes
    -----
    Measured coverage, cost and width: ``benchmarks/interval_coverage.py`` and
    ``docs/measurements.md``.

    Examples
    --------
    >>> interval, reason = median_interval(np.array([3.0, 1.0, 2.0]))
    >>> interval, reason[:21]
    (None, '3 samples are too few')
    """
    samples = np.asarray(samples, dtype=np.float64)
    if len(samples) < FEWEST_SAMPLES:
        are = "is" if len(samples) == 1 else "are"
        return None, (
            f"{plural(len(samples), 'sample')} {are} too few to estimate their correlation; a 95 % "
            f"interval of the median needs {FEWEST_SAMPLES}. Allow a longer deadline."
        )
    ordered, low, high = _shares(samples)
    return (_quantile(ordered, low), _quantile(ordered, high)), None


def is_precise(samples: np.ndarray, relative_width: float) -> bool:
    """Return whether the interval is narrow enough to stop sampling.

    The requirement is stricter than for the interval itself, because a sampler that checks often
    and stops at the first narrow interval picks those that are too narrow by chance. The density at
    the median is measured over a wider part of the samples as well, which varies less; and
    sampling goes on while there are two levels with too few switches between them, even if one of
    them has only 3 % of the samples.

    Parameters
    ----------
    samples : ndarray, shape (n,)
    relative_width : float
        The requested (high - low) / median.
    """
    if len(samples) < FEWEST_SAMPLES:
        return False
    ordered, low, high = _shares(samples)
    allowed = relative_width * float(np.median(ordered))
    if _quantile(ordered, high) - _quantile(ordered, low) > allowed:
        return False
    wide_low, wide_high = (
        max(0.5 - _WIDER * (0.5 - low), 0.25),
        min(0.5 + _WIDER * (high - 0.5), 0.75),
    )
    steepness = (_quantile(ordered, wide_high) - _quantile(ordered, wide_low)) / max(
        wide_high - wide_low, 1e-12
    )
    return (
        steepness * (high - low) <= allowed
        and not _split_levels(samples, ordered, _STOP_SHARE).unresolved
    )


def paired_ratio(baseline: np.ndarray, other: np.ndarray) -> tuple[float, Interval | None]:
    """Return the median of baseline / other, for series that took turns sample by sample, and its
    95 % interval.

    A disturbance that affects two neighboring samples cancels in their ratio. The median of the
    ratios is the ratio of the medians where the noise of both series has the same shape.

    Parameters
    ----------
    baseline, other : ndarray, shape (n,)
        Samples in the order taken, in one unit, not negative.

    Returns
    -------
    ratio : float
        nan where a time is zero or there are no samples.
    interval : (float, float) or None
        None where the ratio is nan, or with fewer than 20 samples.
    """
    if not len(other) or float(other.min()) <= 0:
        return math.nan, None
    ratios = baseline / other
    return float(np.median(ratios)), median_interval(ratios)[0]


def ratio_interval(baseline: np.ndarray, other: np.ndarray) -> Interval | None:
    """Return a 95 % interval of median(baseline) / median(other), or None where none is honest.

    Parameters
    ----------
    baseline, other : ndarray, shape (n,) and (m,)
        Samples in the order taken, in one unit, not negative.
    """
    (first, _), (second, _) = median_interval(baseline), median_interval(other)
    return joined_interval(float(np.median(baseline)), first, float(np.median(other)), second)


def joined_interval(
    baseline: float, first: Interval | None, other: float, second: Interval | None
) -> Interval | None:
    """Return a 95 % interval of the ratio of two medians, from the interval of each, or None where
    none is honest.

    Notes
    -----
    The intervals of both log medians are joined by the method of variance estimates recovery (Zou
    and Donner 2008, Statistics in Medicine 27, 1693), which keeps their asymmetry.
    """
    # an interval that includes zero gives the ratio no upper limit
    if first is None or second is None or first[0] <= 0 or second[0] <= 0:
        return None
    a, b = math.log(baseline), math.log(other)
    down = math.hypot(a - math.log(first[0]), math.log(second[1]) - b)
    up = math.hypot(math.log(first[1]) - a, b - math.log(second[0]))
    return math.exp(a - b - down), math.exp(a - b + up)


def product_interval(factors: np.ndarray) -> Interval | None:
    """Return a 95 % interval of the product of the medians of series that took turns, or None where
    none is honest.

    Parameters
    ----------
    factors : ndarray, shape (series, turns)
        Positive, in the order taken; the ratios of times, for example.

    Notes
    -----
    The intervals of the log medians are joined as in ``joined_interval``. The medians may be
    correlated, for example where all series were divided by the same times: their correlation is
    taken to be that of the signs of the deviations from them. Each side of an interval is limited
    to three median absolute deviations, since single slow turns may be taken for a second level.

    An interval from the product of the factors of each turn would cover less: with six factors,
    hardly any turn is left in which none of them was disturbed.
    """
    if factors.shape[1] < FEWEST_SAMPLES or not np.all((factors > 0) & np.isfinite(factors)):
        return None
    medians, intervals = np.median(factors, axis=1), [median_interval(row)[0] for row in factors]
    signs = np.where(factors > medians[:, None], 1.0, -1.0)
    correlations = signs @ signs.T / factors.shape[1]
    middle, (low, high) = np.log(medians), np.log(np.array(intervals, dtype=float).T)
    deviations = np.median(np.abs(np.log(factors) - middle[:, None]), axis=1)
    # no limit on a clock so coarse that most turns are equal: their median deviation is 0
    most = np.where(deviations > 0, _MOST_DEVIATIONS * deviations, math.inf)
    down, up = (
        math.sqrt(max(float(side @ correlations @ side), 0.0))
        for side in (np.minimum(middle - low, most), np.minimum(high - middle, most))
    )
    center = float(middle.sum())
    return math.exp(center - down), math.exp(center + up)


def t_quantile(degrees_of_freedom: float) -> float:
    """Return Student's t at 97.5 %, by interpolating the table in 1 / degrees of freedom (at least
    1).
    """
    return float(np.interp(1 / max(degrees_of_freedom, 1.0), 1 / _T_DEGREES[::-1], _T_VALUES[::-1]))


def _shares(samples: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the ordered samples, and the ends of the interval as shares of them, 0 to 1."""
    n = len(samples)
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    if ordered[0] == ordered[-1]:
        return ordered, 0.5, 0.5
    # ties ranked in the order taken would look like a trend: break them at random (fixed seed)
    if np.any(ordered[1:] == ordered[:-1]):
        order = np.lexsort((np.random.default_rng(0).permutation(n), samples))
    ranks = np.empty(n)
    ranks[order] = np.arange(n)
    memory = _inflation((ranks - (n - 1) / 2) / n)  # from -1/2 to 1/2
    half = min(_WIDEST_HALF, _half(memory, n))
    below = above = half
    if half > _FAR_HALF:
        below, above = (_furthest(samples, ordered, side, half, memory) for side in (-1, 1))
    return (ordered, *_with_levels(samples, ordered, 0.5 - below, 0.5 + above, memory.model_holds))


def _quantile(ordered: np.ndarray, share: float) -> float:
    """Return the quantile at which the binomial's continuity correction is exact: sample i lies at
    (i + 1/2) / n.
    """
    n = len(ordered)
    place = min(max(share * n - 0.5, 0.0), n - 1.0)
    # called dozens of times per look of the sampler: np.interp would make an array of all places
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, n - 1)])
    return (high - low) * (place - below) + low


class _Inflation(NamedTuple):
    """The ratio of the signs' long-run variance to that of independent signs, and how many degrees
    of freedom its estimate has.

    ``model_holds`` is False where the batches contradicted the model and took its place.
    """

    ratio: float
    degrees_of_freedom: float
    model_holds: bool = True


def _half(memory: _Inflation, n: int) -> float:
    """Return how far from one half the share of samples below the true median may lie, by
    chance.
    """
    return _FOR_LOOKING * t_quantile(memory.degrees_of_freedom) * math.sqrt(memory.ratio / n) / 2


def _furthest(
    samples: np.ndarray, ordered: np.ndarray, side: int, half: float, memory: _Inflation
) -> float:
    """Return how far from the median (as a share of the samples) the nearest quantile lies that a
    sign test excludes, with the inflation of the signs about that quantile; ``half`` if none is.

    If the level wanders slowly, the signs about the median are strongly correlated, so the test
    there says little. Occasional slow calls lie far above the level, and the signs about them are
    not correlated: that the median is among them can be excluded, however little is known of the
    level.
    """
    n = len(samples)
    if n < _FEWEST_FAR:
        return half
    away = _NEAREST
    while away < half:
        share = 0.5 + side * away
        scales = _sign_scales(samples, _quantile(ordered, share), share)
        own = _Inflation(1.0, float(n))
        if n >= _FEWEST_TO_ESTIMATE:
            own = _longest_credible(own, scales)
        # With few samples there are no batches to estimate strong correlation by: the signs would
        # pass for independent ones.
        understated = any(
            scale.variance > own.ratio * (1 + _MODEL_DOUBT * math.sqrt(2 / scale.batches))
            for scale in scales
        )
        if own.ratio * _FORGETS < memory.ratio and away > _half(own, n) and not understated:
            return away
        away += _STEP
    return half


def _sign_scales(samples: np.ndarray, threshold: float, share: float) -> list[_Scale]:
    """Return the batches of signs about a quantile: on which side of it each sample lies, scaled to
    mean 0 and variance 1.
    """
    return _batch_scales(((samples > threshold) - (1 - share)) / math.sqrt(share * (1 - share)))


def _with_levels(
    samples: np.ndarray, ordered: np.ndarray, low: float, high: float, model_holds: bool
) -> tuple[float, float]:
    """Widen the interval (as shares of the ordered samples) over a split between two levels that
    the sign test can't exclude.
    """
    levels = _split_levels(samples, ordered, _INTERVAL_SHARE)
    share = levels.fast_share
    if levels.unresolved:
        return min(low, share / 2), max(high, (1 + share) / 2)
    if low <= share <= high or (model_holds and not levels.separate):
        return low, high
    n = len(samples)
    scales = _sign_scales(samples, levels.threshold, share)
    memory = _longest_credible(_Inflation(1.0, float(n)), scales)
    # Under the hypothesis that the median lies between the levels, each sign has variance 1/4,
    # whatever the shares seen.
    if abs(share - 0.5) <= _half(memory, n) / _FOR_LOOKING:
        return min(low, share - 0.02), max(high, share + 0.02)
    return low, high


class _Levels(NamedTuple):
    """The best split of samples into a fast and a slow level.

    Attributes
    ----------
    threshold : float
        Samples up to it are fast.
    fast_share : float
        The share of fast samples, 0 to 1.
    separate : bool
        Whether the levels are two clusters rather than the halves of one.
    unresolved : bool
        Whether the levels are separate, but with too few switches between them to know their
        shares. The number of switches (of a processor between two clocks, for example) decides how
        well the shares are known, not the number of samples.
    """

    threshold: float
    fast_share: float
    separate: bool
    unresolved: bool


def _split_levels(samples: np.ndarray, ordered: np.ndarray, smallest_share: float) -> _Levels:
    """Return how the samples split into a fast and a slow part."""
    n, count = len(samples), fast_count(ordered, smallest_share)
    fast, slow = ordered[:count], ordered[count:]
    low, distance = float(np.median(fast)), float(np.median(slow)) - float(np.median(fast))
    # the standard deviation of a normal distribution with a part's quartiles, averaged over both
    spread = (
        sum(
            len(part) * (float(part[3 * len(part) // 4] - part[len(part) // 4]) / 1.349)
            for part in (fast, slow)
        )
        / n
    )
    surely_slow, surely_fast = samples > low + 0.65 * distance, samples < low + 0.35 * distance
    states = surely_slow[surely_slow | surely_fast]
    separate = distance > _APART_SPREADS * spread
    few = int(np.count_nonzero(states[1:] != states[:-1])) < _FEW_SWITCHES
    return _Levels(float(ordered[count - 1]), count / n, separate, separate and few)


def fast_count(ordered: np.ndarray, smallest_share: float) -> int:
    """Split ascending samples in two with the largest variance between the parts (Otsu 1979), each
    with at least ``smallest_share`` of all; return how many are in the fast part.
    """
    n = len(ordered)
    first, last = max(1, int(smallest_share * n)), min(n - 1, int((1 - smallest_share) * n))
    edge = int(smallest_share / 2 * n)  # a rare huge sample must not decide the split
    values = np.clip(ordered, ordered[edge], ordered[n - 1 - edge]) - ordered[n // 2]
    sums = np.cumsum(values)
    counts = np.arange(first, last + 1)
    between = (sums[counts - 1] * n - counts * sums[-1]) ** 2 / (counts * (n - counts))
    return int(counts[np.argmax(between)])


def _inflation(ranks: np.ndarray) -> _Inflation:
    """Return the inflation of the variance of the median's sign sum, from centered ranks."""
    n = len(ranks)
    orders = min(_MAX_ORDER, n // 10)
    variance = float(ranks @ ranks) / n
    observed = np.array(
        [float(ranks[:-lag] @ ranks[lag:]) / (n - lag) / variance for lag in range(1, orders + 1)]
    )
    # the model's inflation and its correlations of the signs at lags 1, 2, ...
    ratio, signs = 1.0, np.zeros(0)
    # subtracting the mean lowers every autocorrelation by about ratio / n, so put that back
    for _ in range(2):
        corrected = np.clip(observed + ratio * (1 - observed) / n, -0.999, 0.999)
        normal = 2 * np.sin(math.pi / 6 * corrected)
        signs = 2 / math.pi * np.arcsin(_modelled(normal, n))
        ratio = min(max(1 + 2 * float(signs.sum()), 0.05), n / 4)
    # The samples are worth this many independent ones. By simulation, the bias and the spread of
    # the estimate follow from this number.
    worth = n / ratio
    model = _Inflation(max(ratio * (1 + 2 / worth), 0.3), max(worth / 1.5, 3.0))
    # Ranks show a weak slow change of level under strong noise sooner than signs do; signs show two
    # levels sooner.
    scales = _batch_scales(np.where(ranks > 0, 1.0, -1.0))
    rank_scales = _batch_scales(ranks / math.sqrt(variance))
    rank_correlations = 6 / math.pi * np.arcsin(np.sin(math.pi / 2 * signs) / 2)
    if _contradicted(scales, signs, n) or _contradicted(rank_scales, rank_correlations, n):
        return _longest_credible(model, scales)
    return model


def _modelled(correlations: np.ndarray, n: int) -> np.ndarray:
    """Return the correlations at lags 1, 2, ... until they vanish, of the autoregression that the
    Bayesian information criterion prefers (Levinson's recursion).
    """
    variance, coefficients = 1.0, np.zeros(0)
    best, chosen = 0.0, coefficients
    for order in range(1, len(correlations) + 1):
        predicted = float(coefficients @ correlations[: order - 1][::-1])
        reflection = float(
            np.clip((correlations[order - 1] - predicted) / variance, -0.9999, 0.9999)
        )
        coefficients = np.append(coefficients - reflection * coefficients[::-1], reflection)
        variance *= 1 - reflection**2
        criterion = n * math.log(variance) + order * math.log(n)
        if criterion < best:
            best, chosen = criterion, coefficients
    # written out for speed: thousands of steps, at each look of the sampler
    first, second, third = np.pad(chosen, (0, _MAX_ORDER - len(chosen))).tolist()
    values = [0.0, 0.0, *correlations[: len(chosen)].tolist()]
    while len(values) < n and max(map(abs, values[-_MAX_ORDER:])) >= 1e-3:
        values.append(first * values[-1] + second * values[-2] + third * values[-3])
    return np.array(values[2:]).clip(-1.0, 1.0)


class _Scale(NamedTuple):
    """Batches of one length.

    Attributes
    ----------
    length, batches : int
    variance : float
        Of the batch means, times the length.
    ratio : float
        The inflation that they imply.
    relative_error : float
        Of ``ratio``: the standard error of the spectral density of an AR(1) at frequency zero,
        relative to it.
    """

    length: int
    batches: int
    variance: float
    ratio: float
    relative_error: float


def _batch_scales(signs: np.ndarray) -> list[_Scale]:
    """Return the variance and the inflation that batches of 4, 8, 16, ... values of variance 1
    show, for all lengths with at least 15 batches.
    """
    n, length, scales = len(signs), _SHORTEST_BATCH, []
    sums = np.concatenate([[0.0], np.cumsum(signs)])
    while (count := n // length) >= _FEWEST_BATCHES:
        edges = sums[n - count * length :: length]
        # thousands of short arrays a second: np.diff and mean would take twice as long
        means = (edges[1:] - edges[:-1]) / length
        means -= means.sum() / count
        variance = float(means @ means) / (count - 1)
        if variance > 0:
            observed = float(means[:-1] @ means[1:]) / (count - 1) / variance
            unbiased = min(max(observed + (1 + 3 * observed) / count, -0.3), 0.95)  # Kendall 1954
            stretch = (1 + unbiased) / (1 - unbiased)
            error = math.sqrt((2 + 4 * stretch) / count)
            scales.append(
                _Scale(length, count, length * variance, length * variance * stretch, error)
            )
        length *= 2
    return scales


def _contradicted(scales: list[_Scale], correlations: np.ndarray, n: int) -> bool:
    """Return whether batch means vary more than the model's correlations allow, at any length."""
    # the variance that is lost by subtracting the mean of all
    lost = (1 + 2 * float(correlations.sum())) / n
    for scale in scales:
        within = correlations[: scale.length]
        lags = np.arange(1, len(within) + 1)
        variance = 1 + 2 * float(((1 - lags / scale.length) * within).sum())
        expected = (variance - scale.length * lost) * scale.batches / (scale.batches - 1)
        if scale.variance > expected * (1 + _MODEL_DOUBT * math.sqrt(2 / scale.batches)):
            return True
    return False


def _longest_credible(start: _Inflation, scales: list[_Scale]) -> _Inflation:
    """Return the inflation of the longest batches that show a significantly larger one than shorter
    batches do; ``start`` if there are none.
    """
    current = start._replace(model_holds=False)
    for scale in scales:
        if (
            scale.relative_error <= _LARGEST_RELATIVE_ERROR
            and math.log(scale.ratio / current.ratio) > _SCALE_DOUBT * scale.relative_error
        ):
            current = _Inflation(scale.ratio, 2 / scale.relative_error**2, model_holds=False)
    return current
