"""How much less correlated samples are worth than independent ones, for the median.

The median's error depends on the signs of (sample - median) alone. For independent signs their sum
varies as n; for correlated ones as ``inflation * n``. The inflation is estimated twice:

- From a model: the ranks follow an autoregression of order 0 to 3 under a Gaussian copula. The
  correlation of normal scores follows from that of the ranks, rho = 2 sin(pi r / 6) (Pearson 1907),
  and that of the signs from it, (2 / pi) asin(rho) (Sheppard 1899). Ranks use far more of the data
  than signs do, so this is the precise one where the model holds.
- From batches of signs of doubling length, each series of batch means prewhitened by an
  autoregression of order 1. Rough, but it supposes nothing about the process, and sees what is
  slow: clock states, drift, interference.

The batches test the model; where they contradict it, they replace it, from short batches to long
ones, as long as the next longer ones say significantly more (Lepski's rule).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Chosen by simulation over the processes of benchmarks/processes.py: `python
# benchmarks/interval_coverage.py`.
MAX_ORDER = 3
SHORTEST_BATCH = 4
FEWEST_BATCHES = 15
MODEL_DOUBT = 2.5  # standard errors by which the variance of batch means may exceed the model's
SCALE_DOUBT = 0.4  # standard errors by which longer batches must say more to be believed
# of an inflation from batches: too few of them, or too short against the memory of the process
LARGEST_RELATIVE_ERROR = 0.9


@dataclass(frozen=True)
class Inflation:
    """Long-run variance of the signs over that of independent ones, and how many degrees of freedom
    its estimate has.

    ``model_holds`` is False where the batches contradicted the model and took its place.
    """

    ratio: float
    degrees_of_freedom: float
    model_holds: bool = True


def centred_ranks(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks, centered and scaled to (-1/2, 1/2), and the ordered samples; ties are
    broken at random, always alike.
    """
    n = len(samples)
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    # in the order taken, ties would look like a trend
    if n > 1 and np.any(ordered[1:] == ordered[:-1]):
        order = np.lexsort((np.random.default_rng(0).permutation(n), samples))
    ranks = np.empty(n)
    ranks[order] = np.arange(n)
    return (ranks - (n - 1) / 2) / n, ordered


def inflation(ranks: np.ndarray) -> Inflation:
    """Return the inflation of the variance of the median's sign sum, from centered ranks."""
    n = len(ranks)
    ratio, sign_correlations = _model(ranks)
    # so many independent samples; the estimate's own bias and spread, by simulation, are as that of
    # so many
    worth = n / ratio
    model = Inflation(max(ratio * (1 + 2 / worth), 0.3), max(worth / 1.5, 3.0))
    scales = _batch_scales(np.where(ranks > 0, 1.0, -1.0))
    if _contradicted(scales, sign_correlations, n):
        return _longest_credible(model, scales)
    # Ranks see a weak slow level under strong noise sooner than signs do, signs see two levels
    # sooner.
    rank_correlations = 6 / math.pi * np.arcsin(np.sin(math.pi / 2 * sign_correlations) / 2)
    if _contradicted(
        _batch_scales(ranks / math.sqrt(float(ranks @ ranks) / n)), rank_correlations, n
    ):
        return _longest_credible(model, scales)
    return model


def _contradicted(scales: list[_Scale], correlations: np.ndarray, n: int) -> bool:
    """Return whether batch means vary more than the model's correlations allow, at any length."""
    # the variance that goes with subtracting the mean of all
    lost = (1 + 2 * float(correlations.sum())) / n
    for scale in scales:
        expected = (
            (_batch_variance(correlations, scale.length) - scale.length * lost)
            * scale.count
            / (scale.count - 1)
        )
        if scale.variance > expected * (1 + MODEL_DOUBT * math.sqrt(2 / scale.count)):
            return True
    return False


def inflation_of_signs(signs: np.ndarray) -> Inflation:
    """Return the inflation from batches alone, for signs about another threshold than the median,
    scaled to variance 1.
    """
    return _longest_credible(Inflation(1.0, float(len(signs))), _batch_scales(signs))


def understates(found: Inflation, signs: np.ndarray) -> bool:
    """Return whether batch means vary more than ``found`` allows, which was estimated without the
    batches whose error is too large.

    Strong memory in few samples leaves no batches to estimate by, and the signs would pass for
    independent ones.
    """
    return any(
        scale.variance > found.ratio * (1 + MODEL_DOUBT * math.sqrt(2 / scale.count))
        for scale in _batch_scales(signs)
    )


def _model(ranks: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the model's inflation and the correlations of the signs at lags 1, 2, ..."""
    n = len(ranks)
    orders = min(MAX_ORDER, n // 10)
    variance = float(ranks @ ranks) / n
    observed = np.array(
        [float(ranks[:-lag] @ ranks[lag:]) / (n - lag) / variance for lag in range(1, orders + 1)]
    )
    ratio, signs = 1.0, np.zeros(0)
    # subtracting the mean lowers every autocorrelation by about ratio / n, so put that back
    for _ in range(2):
        corrected = np.clip(observed + ratio * (1 - observed) / n, -0.999, 0.999)
        normal = 2 * np.sin(math.pi / 6 * corrected)
        signs = 2 / math.pi * np.arcsin(_extend(normal, _autoregression(normal, n), n))
        ratio = min(max(1 + 2 * float(signs.sum()), 0.05), n / 4)
    return ratio, signs


def _autoregression(correlations: np.ndarray, n: int) -> np.ndarray:
    """Return the coefficients of the autoregression that the Bayesian information criterion prefers
    (Levinson's recursion).
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
    return chosen


def _extend(correlations: np.ndarray, coefficients: np.ndarray, n: int) -> np.ndarray:
    """Return the autoregression's correlations at lags 1, 2, ... until they vanish."""
    order = len(coefficients)
    if order == 0:
        return np.zeros(0)
    if order == 1:
        rho = float(coefficients[0])  # as it was chosen: neither 0 nor 1
        lags = min(n, int(math.log(1e-3) / math.log(abs(rho))) + 1)
        powers: np.ndarray = rho ** np.arange(1.0, lags + 1)
        return powers
    values = correlations[:order].tolist()
    # written out: a thousand steps, at each look of the sampler
    first, second, third = [*coefficients.tolist(), 0.0][:MAX_ORDER]
    last, before, earlier = [*values[::-1], 0.0][:MAX_ORDER]
    for lag in range(order, min(n, 1000)):
        last, before, earlier = first * last + second * before + third * earlier, last, before
        values.append(last)
        if lag % 16 == 0 and max(map(abs, values[-order:])) < 1e-3:
            break
    return np.array(values).clip(-1.0, 1.0)


def _batch_variance(correlations: np.ndarray, length: int) -> float:
    """Return ``length`` times the variance of the mean of so many values of variance 1 with these
    correlations.
    """
    lags = np.arange(1, min(length, len(correlations)) + 1)
    return 1 + 2 * float(((1 - lags / length) * correlations[: len(lags)]).sum())


@dataclass(frozen=True)
class _Scale:
    """Batches of one length: ``variance`` is that of their means times the length, ``ratio`` the
    inflation they imply.
    """

    length: int
    count: int
    correlation: float
    variance: float

    @property
    def ratio(self) -> float:
        return self.variance * (1 + self.correlation) / (1 - self.correlation)

    @property
    def relative_error(self) -> float:
        """Return the standard error of the spectral density of an AR(1) at frequency zero, relative
        to it.
        """
        return math.sqrt((2 + 4 * (1 + self.correlation) / (1 - self.correlation)) / self.count)


def _batch_scales(signs: np.ndarray) -> list[_Scale]:
    n, length, scales = len(signs), SHORTEST_BATCH, []
    sums = np.concatenate([[0.0], np.cumsum(signs)])
    while (count := n // length) >= FEWEST_BATCHES:
        edges = sums[n - count * length :: length]
        # thousands of short arrays a second: np.diff and mean would take twice as long
        means = (edges[1:] - edges[:-1]) / length
        means -= means.sum() / count
        variance = float(means @ means) / (count - 1)
        if variance > 0:
            observed = float(means[:-1] @ means[1:]) / (count - 1) / variance
            unbiased = observed + (1 + 3 * observed) / count  # Kendall 1954
            scales.append(_Scale(length, count, min(max(unbiased, -0.3), 0.95), length * variance))
        length *= 2
    return scales


def _longest_credible(start: Inflation, scales: list[_Scale]) -> Inflation:
    current = Inflation(start.ratio, start.degrees_of_freedom, model_holds=False)
    for scale in scales:
        if scale.relative_error > LARGEST_RELATIVE_ERROR:
            continue
        if math.log(scale.ratio / current.ratio) > SCALE_DOUBT * scale.relative_error:
            current = Inflation(scale.ratio, 2 / scale.relative_error**2, model_holds=False)
    return current
