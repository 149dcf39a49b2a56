"""An honest interval of the median of samples that may be correlated, drift, or come from two clock
states.

The interval inverts a sign test: a value is inside unless too many samples lie on one side of it.
"Too many" is judged by the long-run variance of the signs (``_dependence``), never by the count of
samples alone. Heavy tails do not matter to signs. Where the interval is very wide, values far out
are tested again by the signs about themselves. Two levels of unknown shares are both inside
(``_states``). Where samples drift, what is covered is the median of the window measured.

Arithmetic only: no clock is read here, and nothing is random.
"""

from __future__ import annotations

import math

import numpy as np

from gpulab.errors import InputError
from gpulab.timing._dependence import (
    Inflation,
    centred_ranks,
    inflation,
    inflation_of_signs,
    understates,
)
from gpulab.timing._states import Levels, split_levels
from gpulab.units import plural

Interval = tuple[float, float]

# Below this the memory of a process can't be told from its noise: at 20 samples, AR(1) with rho =
# 0.6 is still covered in 91 %.
FEWEST_SAMPLES = 20
# Student's t at 97.5 % over 1 / degrees of freedom. Source: NIST/SEMATECH e-Handbook of Statistical
# Methods, 1.3.6.7.2.
_T_DEGREES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 60, 120, np.inf])
_T_VALUES = np.array(
    [
        12.706,
        4.303,
        3.182,
        2.776,
        2.571,
        2.447,
        2.365,
        2.306,
        2.262,
        2.228,
        2.179,
        2.131,
        2.086,
        2.042,
        2.0,
        1.98,
        1.96,
    ]
)
# However little is known, the interval keeps to the middle 95 % of the samples: their median can't
# honestly be said to lie outside.
_WIDEST_HALF = 0.475
# Stopping at the first interval that is narrow enough costs about half a percent of coverage; this
# much more width gives it back.
_FOR_LOOKING = 1.03
# An interval that reaches further than this from the median is tried again at each quantile it
# holds, from here outward in steps.
_FAR_HALF = 0.25
_NEAREST, _STEP = 0.15, 0.025
# signs about a far quantile must remember so many times less than those about the median for their
# own test to count
_FORGETS = 3.0
# By samples: below the first number they say too little, below the second their signs must look
# independent, since strong memory leaves no batches to estimate it by. Without this, AR(1) with rho
# = 0.9 is covered in 73 % at 100 samples, with rho = 0.98 in 70 % at 300.
_FEWEST_FAR, _FEWEST_TO_ESTIMATE = 100, 600
_INTERVAL_SHARE = 0.08  # a level seen in less than this share of the window can't be the median's
# times the interval: the part of the samples over which the density at the median is measured
# before stopping
_WIDER = 2.5
_STOP_SHARE = 0.03  # but a smaller share is reason enough to look on before stopping


def median_interval(samples: np.ndarray) -> tuple[Interval | None, str | None]:
    """Return a 95 % interval of the median, or the reason why none is honest.

    Parameters
    ----------
    samples : ndarray, shape (n,)
        In the order taken, equally spaced in calls; any unit.

    Returns
    -------
    interval : (float, float) or None
        In the unit of ``samples``; None with fewer than 20 samples.
    reason : str or None
        One sentence where there is no interval.

    Raises
    ------
    InputError
        If the samples are not one-dimensional or not finite.

    Notes
    -----
    Measured coverage, cost and width: ``benchmarks/interval_coverage.py`` and
    ``docs/measurements.md``.

    Examples
    --------
    >>> median_interval(np.array([3.0, 1.0, 2.0]))  # doctest: +NORMALIZE_WHITESPACE
    (None, '3 samples are too few to estimate their correlation; a 95 % interval of the median needs
    20. Allow a longer deadline.')
    """
    samples = _checked(samples)
    n = len(samples)
    if n < FEWEST_SAMPLES:
        return None, (
            f"{n} sample{'s are' if n != 1 else ' is'} too few to estimate their correlation; "
            f"a 95 % interval of the median needs {FEWEST_SAMPLES}. Allow a longer deadline."
        )
    ordered, low, high = _shares(samples)
    return (_quantile(ordered, low), _quantile(ordered, high)), None


def is_precise(samples: np.ndarray, relative_width: float) -> bool:
    """Return whether the interval is narrow enough to stop sampling.

    The requirement is stricter than for the interval itself, because a sampler that checks often
    and stops at the first narrow interval picks those that are too narrow by chance. The density at
    the median is measured over a wider part of the samples as well, which varies less; and two
    levels with too few switches between them, even one seen in only 3 % of the samples, ask for
    more.

    Parameters
    ----------
    samples : ndarray, shape (n,)
    relative_width : float
        The requested (high - low) / median.
    """
    samples = _checked(samples)
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
        and not split_levels(samples, ordered, _STOP_SHARE).unresolved
    )


def two_levels(samples: np.ndarray) -> Levels | None:
    """Return the two levels of the samples, or None where they are one cluster (or fewer than 20).

    The levels are separate clusters, each of at least 3 % of the samples. Rare slow calls count as
    a level; ``switches`` distinguishes them from states that last, which switch rarely.
    """
    samples = _checked(samples)
    if len(samples) < FEWEST_SAMPLES:
        return None
    levels = split_levels(samples, np.sort(samples), _STOP_SHARE)
    return levels if levels.separate else None


def ratio_interval(
    baseline: np.ndarray, other: np.ndarray, *, paired: bool = False
) -> tuple[Interval | None, str | None]:
    """Return a 95 % interval of median(baseline) / median(other), or the reason why none is honest.

    Parameters
    ----------
    baseline, other : ndarray, shape (n,) and (m,)
        Samples in the order taken, in one unit, not negative.
    paired : bool
        True where the two took turns, sample by sample. The interval is then that of the median of
        the ratios of neighboring samples, in which disturbances that strike both cancel; it is the
        ratio of the medians where the noise of both has the same shape.

    Returns
    -------
    interval : (float, float) or None
    reason : str or None

    Raises
    ------
    InputError
        If samples are not finite, or paired ones differ in number.

    Notes
    -----
    Unpaired: the intervals of both log medians are joined by the method of variance estimates
    recovery (Zou and Donner 2008, Statistics in Medicine 27, 1693), which keeps their asymmetry.
    """
    baseline, other = _checked(baseline), _checked(other)
    if paired:
        if len(baseline) != len(other):
            raise InputError(
                f"ratio_interval: {len(baseline)} and {plural(len(other), 'sample')} can't be "
                "paired; expected equal numbers. "
                "Pass paired=False."
            )
        if len(other) and float(other.min()) <= 0:
            return None, "a time is zero, so the ratio is undefined. Use more calls per sample."
        return median_interval(baseline / other)
    first, reason = median_interval(baseline)
    second, second_reason = median_interval(other)
    if first is None or second is None:
        return None, reason or second_reason
    if first[0] <= 0 or second[0] <= 0:
        return (
            None,
            "an interval includes zero, so the ratio has no upper limit. Use more calls per sample.",
        )
    a, b = math.log(float(np.median(baseline))), math.log(float(np.median(other)))
    down = math.hypot(a - math.log(first[0]), math.log(second[1]) - b)
    up = math.hypot(math.log(first[1]) - a, b - math.log(second[0]))
    return (math.exp(a - b - down), math.exp(a - b + up)), None


def median_ratio(baseline: np.ndarray, other: np.ndarray, *, paired: bool = False) -> float:
    """Return the ratio that ``ratio_interval`` is the interval of: of the medians, or where paired,
    the median of the ratios.

    nan where a time is zero or there are no samples.
    """
    baseline, other = _checked(baseline), _checked(other)
    if paired and len(baseline) != len(other):
        raise InputError(
            f"median_ratio: {len(baseline)} and {plural(len(other), 'sample')} can't be paired; "
            "expected equal numbers."
        )
    if not len(baseline) or not len(other) or float(other.min()) <= 0:
        return math.nan
    return (
        float(np.median(baseline / other))
        if paired
        else float(np.median(baseline)) / float(np.median(other))
    )


def t_quantile(degrees_of_freedom: float) -> float:
    """Return Student's t at 97.5 %, by interpolating the table in 1 / degrees of freedom (at least
    1).
    """
    return float(np.interp(1 / max(degrees_of_freedom, 1.0), 1 / _T_DEGREES[::-1], _T_VALUES[::-1]))


def _checked(samples: np.ndarray) -> np.ndarray:
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim != 1 or not np.isfinite(samples).all():
        raise InputError(
            f"median_interval: samples of shape {samples.shape} with "
            f"{int((~np.isfinite(samples)).sum())} that are not finite; "
            "expected one dimension of finite numbers. Pass the samples of one call."
        )
    return samples


def _shares(samples: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the ordered samples, and the interval as shares of them."""
    ranks, ordered = centred_ranks(samples)
    if ordered[0] == ordered[-1]:
        return ordered, 0.5, 0.5
    memory = inflation(ranks)
    half = min(_WIDEST_HALF, _half(memory, len(samples)))
    below = above = half
    if half > _FAR_HALF:
        below, above = (_furthest(samples, ordered, side, half, memory) for side in (-1, 1))
    return (ordered, *_with_levels(samples, ordered, 0.5 - below, 0.5 + above, memory.model_holds))


def _half(memory: Inflation, n: int) -> float:
    """Return how far from one half the share of samples below the true median may lie, by
    chance.
    """
    return _FOR_LOOKING * t_quantile(memory.degrees_of_freedom) * math.sqrt(memory.ratio / n) / 2


def _furthest(
    samples: np.ndarray, ordered: np.ndarray, side: int, half: float, memory: Inflation
) -> float:
    """Return how far from the median the nearest quantile lies that the sign test about it
    excludes, by the memory of its own signs.

    A level that wanders slowly makes the signs about the median remember long, so the test there
    says little. Calls that are slow now and then lie far above it, and remember nothing: that the
    median is among them can be excluded, however little is known of the level.
    """
    n = len(samples)
    if n < _FEWEST_FAR:
        return half
    away = _NEAREST
    while away < half:
        share = 0.5 + side * away
        signs = ((samples > _quantile(ordered, share)) - (1 - share)) / math.sqrt(
            share * (1 - share)
        )
        own = inflation_of_signs(signs) if n >= _FEWEST_TO_ESTIMATE else Inflation(1.0, float(n))
        if (
            own.ratio * _FORGETS < memory.ratio
            and away > _half(own, n)
            and not understates(own, signs)
        ):
            return away
        away += _STEP
    return half


def _with_levels(
    samples: np.ndarray, ordered: np.ndarray, low: float, high: float, model_holds: bool
) -> tuple[float, float]:
    """Widen the interval (as shares of the ordered samples) over a split between two levels that
    the sign test can't exclude.
    """
    n = len(samples)
    levels = split_levels(samples, ordered, _INTERVAL_SHARE)
    share = levels.fast_share
    if levels.unresolved:
        return min(low, share / 2), max(high, (1 + share) / 2)
    if low <= share <= high or (model_holds and not levels.separate):
        return low, high
    signs = ((samples > levels.threshold_seconds) - (1 - share)) / math.sqrt(share * (1 - share))
    memory = inflation_of_signs(signs)
    # Under the hypothesis that the median lies between the levels, each sign has variance 1/4,
    # whatever the shares seen.
    if abs(share - 0.5) <= _half(memory, n) / _FOR_LOOKING:
        return min(low, share - 0.02), max(high, share + 0.02)
    return low, high


def _quantile(ordered: np.ndarray, share: float) -> float:
    """Return the quantile at which the binomial's continuity correction is exact: sample i lies at
    (i + 1/2) / n.
    """
    n = len(ordered)
    place = min(max(share * n - 0.5, 0.0), n - 1.0)
    # asked for dozens of times a look: np.interp makes an array of all places each time
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, n - 1)])
    return (high - low) * (place - below) + low
