"""The alpha-beta model of a link: time = latency + bytes / bandwidth, with at most one knee.

Beyond a knee, where a protocol or a cache changes, the slope is another one, or the time jumps.
Where the knee lies is never certain from twenty noisy points, and an interval that takes the best
knee for granted is too narrow: over 400 seeded links, choosing one shape by its held-out error
covers 92 to 94 % in place of 95. So every shape (none, a bend, a jump; each over a grid of places)
is fitted by weighted least squares, and predictions are mixtures over all of them with weights from
the Bayesian information criterion: Bayesian model averaging (Hoeting et al., Statistical Science
14, 1999). Noise is multiplicative, so errors are relative.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpulab import _given
from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds

LEVEL = 0.95
# A line has two unknowns, and its noise is a third.
MIN_SIZES = 3
# Bytes and seconds beyond these are slips, and their squares would leave the range of a float.
_SMALLEST, _LARGEST = 1e-30, 1e30
# Prior share of each shape, by its number of coefficients: a straight line, one that bends, one
# that jumps. Within a shape every place of the knee is equally likely.
_PRIOR = {2: 0.5, 3: 0.25, 4: 0.2}
_BENDS_PER_OCTAVE = 4
# Where between two sizes a jump lies is unknown: three places each, which only new sizes can
# distinguish.
_JUMP_PLACES = (0.1, 0.5, 0.9)
_MIN_SEGMENT = 3  # points on each side of a knee: fewer fit anything
_REWEIGHTINGS = 3  # passes that refine the weights; more change nothing that matters
_STRAIGHT_CHANCE = 0.05  # as long as a straight line is this likely, no knee is named
_OUTLIER = 4.0  # in standard deviations by the median: beyond it a point counts less
# Curves kept for predictions: the likeliest that together have this share, and no more than so
# many.
_KEPT_SHARE, _KEPT_MOST = 0.999, 60
_NODES = 61  # quantiles that stand for each curve's Student t
# A relative error below which points are taken for exact: a clock's or a formula's rounding.
_EXACT = 1e-6


@dataclass(frozen=True)
class Segment(Result):
    """One straight piece of the fit: ``latency_seconds + bytes / bandwidth_bytes_per_second``
    between two sizes.

    Attributes
    ----------
    from_bytes, to_bytes : float
        Where the piece holds; the last one has no end.
    latency_seconds : float
        Where the piece's line meets zero bytes; beyond a bend to slower rates this can be negative.
    bandwidth_bytes_per_second : float
    """

    from_bytes: float
    to_bytes: float
    latency_seconds: float
    bandwidth_bytes_per_second: float


@dataclass(frozen=True)
class AlphaBeta(Result):
    """The fit of one series of transfers.

    Attributes
    ----------
    latency_seconds : float
        The time that even an empty transfer takes (alpha).
    latency_interval_seconds : (float, float)
        95 %.
    bandwidth_bytes_per_second : float
        What the largest sizes approach (1 / beta).
    bandwidth_interval_bytes_per_second : (float, float)
        95 %.
    knees_bytes : tuple of float
        Where the slope changes or the time jumps; empty for a straight line.
    segments : tuple of Segment
        The likeliest shape, for drawing. Predictions average over all shapes that are consistent
        with the data.
    half_bandwidth_bytes : float
        The smallest size that reaches half of the bandwidth (Hockney's n 1/2); without knees
        latency x bandwidth.
    noise_ratio : float
        The relative scatter of the points around the curve.
    held_out_error : float
        The mean relative error of each point predicted from all others.
    nbytes, seconds : tuple
        The points that were fitted.
    outliers_bytes : tuple of float
        Sizes whose points lie more than four standard deviations off; they count less.
    evidence : Evidence
    """

    latency_seconds: float
    latency_interval_seconds: tuple[float, float]
    bandwidth_bytes_per_second: float
    bandwidth_interval_bytes_per_second: tuple[float, float]
    knees_bytes: tuple[float, ...]
    segments: tuple[Segment, ...]
    half_bandwidth_bytes: float
    noise_ratio: float
    held_out_error: float
    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]
    outliers_bytes: tuple[float, ...]
    evidence: Evidence

    def predict_seconds(self, nbytes: Any) -> Any:
        """Return the expected seconds for a size, or an array of them for an array of sizes.

        Raises
        ------
        InputError
            If a size is negative or not finite.
        """
        values = self._posterior.mean(_sizes_of("predict_seconds", nbytes))
        return float(values[0]) if np.ndim(nbytes) == 0 else values

    def prediction_interval_seconds(self, nbytes: Any, level: float = LEVEL) -> Any:
        """Return (low, high): where a new measurement like those fitted falls with probability
        ``level``.

        Arrays of sizes give two arrays. The interval does not account for a knee beyond the largest
        size that was fitted.

        Raises
        ------
        InputError
            If a size is negative or not finite, or the level not between 0 and 1.
        """
        if not _given.is_finite(level) or not 0 < level < 1:
            raise InputError(
                f"prediction_interval_seconds: level is {shown(level)}; expected a share between 0 "
                "and 1. Pass level=0.95."
            )
        low, high = self._posterior.interval(
            _sizes_of("prediction_interval_seconds", nbytes), float(level)
        )
        return (float(low[0]), float(high[0])) if np.ndim(nbytes) == 0 else (low, high)

    def predict(self, nbytes: Any) -> Any:
        """Return (low, expected, high) in seconds: the prediction with its 95 % interval."""
        low, high = self.prediction_interval_seconds(nbytes)
        return low, self.predict_seconds(nbytes), high

    @property
    def _posterior(self) -> _Posterior:
        return _posterior(self.nbytes, self.seconds)

    def __repr__(self) -> str:
        return (
            f"<latency {format_seconds(self.latency_seconds)}, bandwidth "
            f"{format_bytes_per_second(self.bandwidth_bytes_per_second)}, {len(self.knees_bytes)} "
            f"knee{'s' if len(self.knees_bytes) != 1 else ''}, held-out error "
            f"{self.held_out_error:.1%}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per quantity, with its interval."""
        latency = " to ".join(format_seconds(v) for v in self.latency_interval_seconds)
        bandwidth = " to ".join(
            format_bytes_per_second(v) for v in self.bandwidth_interval_bytes_per_second
        )
        rows = [
            ("latency", f"{format_seconds(self.latency_seconds)} (95 %: {latency})"),
            (
                "bandwidth",
                f"{format_bytes_per_second(self.bandwidth_bytes_per_second)} (95 %: {bandwidth})",
            ),
            ("half of it reached at", format_bytes(self.half_bandwidth_bytes)),
            ("knees", ", ".join(format_bytes(k) for k in self.knees_bytes) or "none"),
            ("held-out error", f"{self.held_out_error:.1%}"),
            ("scatter of the points", f"{self.noise_ratio:.1%}"),
            ("points fitted", f"{len(self.nbytes)}"),
        ]
        if self.outliers_bytes:
            rows.append(
                (
                    "outliers (given less weight)",
                    ", ".join(format_bytes(n) for n in self.outliers_bytes),
                )
            )
        return ("fit", ""), rows


def fit(nbytes: Any, seconds: Any, evidence: Evidence | None = None) -> AlphaBeta:
    """Fit the alpha-beta model to sizes and times.

    Errors are taken relative, since a link's noise is multiplicative; points far off count less;
    a knee is added where the data requires it (see ``AlphaBeta``).

    Parameters
    ----------
    nbytes : array_like, shape (n,)
        Sizes, positive, in any order; at least three different ones. Points of one size are merged
        into their median.
    seconds : array_like, shape (n,)
        Times, positive.
    evidence : Evidence, optional
        Where the points come from; by default "points given by the caller".

    Raises
    ------
    InputError
        If shapes differ, a value is not positive and finite, or there are fewer than three sizes.

    Examples
    --------
    >>> sizes = [2.0**k for k in range(10, 31)]
    >>> f = fit(sizes, [1e-5 + n / 25e9 for n in sizes])
    >>> round(f.latency_seconds * 1e6, 3), round(f.bandwidth_bytes_per_second / 1e9, 3)
    (10.0, 25.0)
    >>> f.knees_bytes
    ()

    Notes
    -----
    The model is Hockney's (The communication challenge for MPP, Parallel Computing 20, 1994); the
    averaging over shapes is Bayesian model averaging with BIC weights (Hoeting et al., Statistical
    Science 14, 1999).
    """
    x, y = _points(nbytes, seconds)
    found = _posterior(tuple(x), tuple(y))
    low, latency, high = found.combination([1.0, 0.0, 0.0, 0.0])
    steep, slope, shallow = found.combination([0.0, 1.0, 1.0, 0.0])
    best = found.named()
    knees = (best.knee,) if len(best.coefficients) > 2 else ()
    a, b, bend, step = [*best.coefficients.tolist(), 0.0, 0.0][:4]
    lines = [(a, b), (a - bend * best.knee + step, b + bend)] if knees else [(a, b)]
    source = evidence or Evidence.modelled(
        "the points are those given by the caller", "gpulab.transfer.fit"
    )
    return AlphaBeta(
        latency_seconds=latency,
        latency_interval_seconds=(max(low, 0.0), high),
        bandwidth_bytes_per_second=1 / slope,
        bandwidth_interval_bytes_per_second=(1 / shallow, 1 / steep if steep > 0 else math.inf),
        knees_bytes=knees,
        segments=tuple(
            Segment(start, end, intercept, 1 / rate)
            for (start, end), (intercept, rate) in zip(
                itertools.pairwise([0.0, *knees, math.inf]), lines, strict=True
            )
        ),
        half_bandwidth_bytes=_half_bandwidth_bytes(found, slope, latency, x),
        noise_ratio=math.sqrt(sum(c.weight * c.scale**2 for c in found.curves)),
        held_out_error=float(np.mean(found.held_out_errors)),
        nbytes=tuple(float(v) for v in x),
        seconds=tuple(float(v) for v in y),
        outliers_bytes=tuple(float(v) for v in x[found.outliers]),
        evidence=source,
    )


def _points(nbytes: Any, seconds: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return ascending sizes without repeats and the median time of each."""
    try:
        x, y = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    except Exception as error:  # whatever the caller's own objects raise when asked for a number
        raise InputError(
            f"fit: cannot read the points as numbers ({message_of(error)}); expected two "
            "sequences. Pass sizes in bytes, then seconds."
        ) from error
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(
            f"fit: sizes have the shape {x.shape} and times {y.shape}; expected two sequences of "
            "the same length. Pass one time per size."
        )
    if not all(((v > _SMALLEST) & (v < _LARGEST)).all() for v in (x, y)):
        raise InputError(
            f"fit: a size or a time is zero, negative, not a number or above {_LARGEST:g}; "
            "expected positive ones in bytes and seconds. Leave such points out."
        )
    sizes = np.unique(x)
    if len(sizes) < MIN_SIZES:
        raise InputError(
            f"fit: {len(sizes)} different sizes were given; expected at least {MIN_SIZES}. Sweep "
            "over more sizes."
        )
    return sizes, np.array([float(np.median(y[x == size])) for size in sizes])


def _sizes_of(function: str, nbytes: Any) -> np.ndarray:
    try:
        x = np.atleast_1d(np.asarray(nbytes, dtype=np.float64))
    except Exception as error:  # whatever the caller's own objects raise when asked for a number
        raise InputError(
            f"{function}: cannot read {shown(nbytes)} as sizes ({message_of(error)}); expected "
            "bytes, 0 or more. Pass for example 2**20."
        ) from error
    if x.ndim != 1:
        raise InputError(
            f"{function}: sizes have the shape {x.shape}; expected one size or one row of them. "
            "Pass sizes.ravel()."
        )
    if not (np.isfinite(x).all() and (x >= 0).all()):
        raise InputError(
            f"{function}: a size is negative or not a number; expected bytes, 0 or more. Pass for "
            "example 2**20."
        )
    return x


def _half_bandwidth_bytes(found: _Posterior, slope: float, latency: float, x: np.ndarray) -> float:
    """Return the smallest size from which bytes / seconds is at least half of the final
    bandwidth.
    """
    if latency <= 0:
        return 0.0
    grid = np.geomspace(
        min(float(x[0]), latency / slope) / 16, max(float(x[-1]), latency / slope) * 16, 400
    )
    enough = grid / found.mean(grid) >= 0.5 / slope
    at = int(np.argmax(enough))
    if at == 0:
        return float(grid[0])
    # Between two grid points bytes / seconds is as good as straight on log scales.
    before, after = (
        float(grid[k] / found.mean(grid[k : k + 1])[0] * slope * 2) for k in (at - 1, at)
    )
    share = -math.log(before) / (math.log(after) - math.log(before))
    return float(grid[at - 1] * (grid[at] / grid[at - 1]) ** share)


class _Curve(NamedTuple):
    """One fitted shape: its first 2 to 4 coefficients of ``_columns`` and their covariance, over
    ``scale``^2, the relative noise; ``weight`` is its share of all curves.
    """

    knee: float
    weight: float
    coefficients: np.ndarray
    covariance: np.ndarray
    scale: float
    freedom: int


class _Posterior(NamedTuple):
    """What the points say about the link.

    Attributes
    ----------
    curves : list of _Curve
        By falling weight; the weights sum to 1.
    held_out_errors : ndarray
        For each point: |its relative error predicted from the others|.
    outliers : ndarray of bool
    """

    curves: list[_Curve]
    held_out_errors: np.ndarray
    outliers: np.ndarray

    def named(self) -> _Curve:
        """Return the curve to name and to draw: the likeliest of the favored shape, but the
        straight line while it keeps a chance of 1 in 20.

        Predictions average over all shapes either way; a knee that is named must be more than
        noise.
        """
        shares = dict.fromkeys(_PRIOR, 0.0)
        for curve in self.curves:
            shares[len(curve.coefficients)] += curve.weight
        width = 2 if shares[2] >= _STRAIGHT_CHANCE else max(shares, key=lambda width: shares[width])
        return next(curve for curve in self.curves if len(curve.coefficients) == width)

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted seconds at sizes ``x``."""
        return np.asarray(sum(c.weight * (_at(c, x) @ c.coefficients) for c in self.curves))

    def interval(self, x: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the interval that a new point at each size falls into with probability
        ``level``.
        """
        designs, expected = [_at(curve, x) for curve in self.curves], self.mean(x)
        spreads = [
            c.scale * np.sqrt(expected**2 + ((a @ c.covariance) * a).sum(axis=1))
            for a, c in zip(designs, self.curves, strict=True)
        ]
        centres = [a @ c.coefficients for a, c in zip(designs, self.curves, strict=True)]
        return self._mixture(np.stack(centres), np.stack(spreads), level)

    def combination(self, factors: Sequence[float]) -> tuple[float, float, float]:
        """Return low, mean and high of the coefficients times factors, such as the last slope."""
        rows = [np.array(factors[: len(curve.coefficients)]) for curve in self.curves]
        centres = [a @ c.coefficients for a, c in zip(rows, self.curves, strict=True)]
        spreads = [
            c.scale * math.sqrt(max(float(a @ c.covariance @ a), 0.0))
            for a, c in zip(rows, self.curves, strict=True)
        ]
        low, high = self._mixture(np.array(centres)[:, None], np.array(spreads)[:, None], LEVEL)
        mean = sum(c.weight * at for c, at in zip(self.curves, centres, strict=True))
        return float(low[0]), float(mean), float(high[0])

    def _mixture(
        self, centres: np.ndarray, spreads: np.ndarray, level: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return quantiles of mixtures of Student's t; shapes (curves, sizes)."""
        nodes = np.stack([_student_nodes(curve.freedom) for curve in self.curves])
        values = (centres[:, None, :] + spreads[:, None, :] * nodes[:, :, None]).reshape(
            nodes.size, centres.shape[1]
        )
        weights = np.repeat([curve.weight / _NODES for curve in self.curves], _NODES)
        order = np.argsort(values, axis=0)
        below = np.cumsum(weights[order], axis=0) - 0.5 * weights[order]
        ranked = np.take_along_axis(values, order, axis=0)
        low, high = (
            np.array([np.interp(p, below[:, j], ranked[:, j]) for j in range(values.shape[1])])
            for p in ((1 - level) / 2, (1 + level) / 2)
        )
        return low, high


@functools.cache
def _student_nodes(freedom: int) -> np.ndarray:
    """Return the quantiles of Student's t at (i + 1/2) / 61.

    With t = sqrt(freedom) tan(angle) the density of the angle is cos(angle)^(freedom - 1).
    """
    angles = np.linspace(-math.pi / 2, math.pi / 2, 100_001)
    below = np.cumsum(np.cos(angles) ** (freedom - 1))
    below = (below - 0.5 * np.cos(angles) ** (freedom - 1)) / below[-1]
    share = (np.arange(_NODES) + 0.5) / _NODES
    return np.asarray(math.sqrt(freedom) * np.tan(np.interp(share, below, angles)))


def _columns(x: np.ndarray, knees: np.ndarray, width: int) -> np.ndarray:
    """Return the design matrices of curves with these knees, shape (knees, sizes, width): of the
    latency, the slope, its change beyond the knee, and the step there.
    """
    beyond = x - knees[:, None]
    columns = (np.ones_like(beyond), x + 0 * beyond, np.maximum(beyond, 0.0), beyond > 0)
    return np.stack(columns[:width], axis=2).astype(float)


def _at(curve: _Curve, x: np.ndarray) -> np.ndarray:
    """Return the design matrix of one curve."""
    return np.asarray(_columns(x, np.array([curve.knee]), len(curve.coefficients))[0])


@functools.lru_cache(maxsize=16)
def _shapes(sizes: tuple[float, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the knees and the design matrices of each shape that has enough points; sweeps share
    their sizes.
    """
    x, points = np.array(sizes), len(sizes)
    knees = {2: [1.0]}  # of a straight line without a meaning
    first, last = x[min(_MIN_SEGMENT, points) - 1], x[-min(_MIN_SEGMENT, points)]
    if points >= 2 * _MIN_SEGMENT + 1:
        count = max(2, round(_BENDS_PER_OCTAVE * math.log2(last / first)) + 1)
        knees[3] = np.geomspace(first, last, count).tolist()
    if points >= 2 * _MIN_SEGMENT + 2:
        gaps = itertools.pairwise(sizes[_MIN_SEGMENT - 1 : points - _MIN_SEGMENT + 1])
        knees[4] = [a * (b / a) ** share for a, b in gaps for share in _JUMP_PLACES]
    return [(np.array(k), _columns(x, np.array(k), width)) for width, k in knees.items()]


@functools.lru_cache(maxsize=64)
def _posterior(nbytes: tuple[float, ...], seconds: tuple[float, ...]) -> _Posterior:
    """Return what points say about a link, for ascending sizes."""
    x, y = np.array(nbytes), np.array(seconds)
    expected, trust = y, np.ones(len(x))
    for _ in range(_REWEIGHTINGS):
        curves, expected, held_out = _averaged(x, y, np.sqrt(trust) / expected)
        residual = np.abs(y / expected - 1)
        spread = max(1.4826 * float(np.median(residual)), _EXACT)
        trust = np.minimum(1.0, (_OUTLIER * spread / np.maximum(residual, _EXACT * _EXACT)) ** 2)
    return _Posterior(curves, np.abs(held_out / y - 1), trust < 1)


def _averaged(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[list[_Curve], np.ndarray, np.ndarray]:
    """Fit every shape with relative errors; return the likeliest curves, the mixture's values and
    its predictions of each point from the others.
    """
    curves: list[_Curve] = []
    # of each curve: log of prior times likelihood, its values, its predictions of each point from
    # the others, and log of the density of each point then
    logs, values, predictions, densities = [], [], [], []
    for knees, columns in _shapes(tuple(x.tolist())):
        points, width = columns.shape[1:]
        a = columns * weight[None, :, None]
        size = np.linalg.norm(a, axis=1, keepdims=True)
        a = a / size
        # The columns have length 1, so this much on the diagonal is rounding; it keeps knees that
        # no point distinguishes solvable.
        inverse = np.linalg.inv(a.transpose(0, 2, 1) @ a + 1e-12 * np.eye(width))
        projected = a @ inverse
        solution = np.einsum("mip,i->mp", projected, y * weight)
        residual = y * weight - np.einsum("mip,mp->mi", a, solution)
        leverage = np.sum(projected * a, axis=2)
        squares = np.sum(residual**2, axis=1) + points * _EXACT**2
        coefficients = solution / size[:, 0, :]
        # A link has a positive latency, every further byte costs time, and a jump goes up.
        slopes = np.cumsum(coefficients[:, 1:3], axis=1)
        possible = (coefficients[:, 0] > 0) & (slopes > 0).all(axis=1)
        possible &= (coefficients[:, 3:] > 0).all(axis=1)
        log = -0.5 * points * np.log(squares) - 0.5 * width * math.log(points)
        logs.append(np.where(possible, log + math.log(_PRIOR[width] / len(knees)), -np.inf))
        freedom = max(points - width, 1)
        away = residual / np.maximum(1 - leverage, 1e-3)
        without = np.maximum(squares[:, None] - residual * away, points * _EXACT**2)
        values.append(np.einsum("mip,mp->mi", columns, coefficients))
        predictions.append(y - away / weight)
        densities.append(
            -0.5 * np.log(without)
            - 0.5 * freedom * np.log1p(np.maximum(residual * away / without, 0.0))
        )
        covariance = inverse / (size[:, 0, :, None] * size[:, 0, None, :])
        scale = np.sqrt(squares / freedom)
        curves += [
            _Curve(float(k), 0.0, coefficients[i], covariance[i], float(scale[i]), freedom)
            for i, k in enumerate(knees)
        ]
    log = np.concatenate(logs)
    if not np.isfinite(log).any():
        return _through_origin(x, y, weight)
    shares = np.exp(log - log.max())
    shares /= shares.sum()
    # Each point is predicted with the shares that the others give: what it spoke itself is divided
    # out.
    others = log[:, None] - np.concatenate(densities)
    others = np.exp(others - others.max(axis=0))
    held_out = np.sum(others * np.concatenate(predictions), axis=0) / others.sum(axis=0)
    ranked = np.argsort(-shares)
    enough = int(np.searchsorted(np.cumsum(shares[ranked]), _KEPT_SHARE)) + 1
    kept = ranked[: min(enough, _KEPT_MOST)]
    total = shares[kept].sum()
    likeliest = [curves[i]._replace(weight=float(shares[i] / total)) for i in kept]
    return likeliest, np.asarray(shares @ np.concatenate(values)), held_out


def _through_origin(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[list[_Curve], np.ndarray, np.ndarray]:
    """Return the line without a latency, for sizes so large that none can be seen."""
    a, b = x * weight, y * weight
    slope = float(a @ b / (a @ a))
    freedom = max(len(x) - 1, 1)
    scale = math.sqrt((float(np.sum((b - slope * a) ** 2)) + len(x) * _EXACT**2) / freedom)
    covariance = np.diag([0.0, 1 / float(a @ a)])
    rest = (a @ b - a * b) / np.maximum(a @ a - a**2, 1e-30)
    curve = _Curve(1.0, 1.0, np.array([0.0, slope]), covariance, scale, freedom)
    return [curve], slope * x, rest * x
