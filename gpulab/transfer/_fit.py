"""The alpha-beta model of a link: time = latency + bytes / bandwidth, with at most one knee.

Beyond a knee, where a protocol or a cache changes, the slope is another one, or the time jumps.
Every shape (a straight line; one that bends, or jumps, at each of many places) is fitted by
weighted least squares, and the Bayesian information criterion chooses among them (Schwarz, Annals
of Statistics 6, 1978). Noise is multiplicative, so errors are relative. The held-out error chooses
the shape anew without each point; where the time jumps it is too high by a third, for the place of
the jump is not known without its neighbors.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.timing.statistics import t_quantile
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds

# A line has two unknowns, and its noise is a third.
MIN_SIZES = 3
# Bytes and seconds beyond these are slips, and their squares would leave the range of a float.
_SMALLEST, _LARGEST = 1e-30, 1e30
_BENDS_PER_OCTAVE = 4
# Where between two sizes a jump lies is unknown: three places each, which only new sizes can
# distinguish. Of equally likely ones the first is taken.
_JUMP_PLACES = (0.1, 0.5, 0.9)
# Criteria that differ by less differ by rounding, which is not the same on all processors.
_EQUALLY_LIKELY = 1e-6
_MIN_SEGMENT = 3  # points on each side of a knee: fewer fit anything
_REWEIGHTINGS = 3  # passes that refine the weights; more change nothing that matters
# A knee, whose place is searched for, counts as this many unknowns besides its slope and step. By
# simulation (benchmarks/transfer_fit.py): counted as one it is found in a fourth of straight lines.
_KNEE_COUNTS = 3
_OUTLIER = 4.0  # in standard deviations by the median: beyond it a point counts less
# A relative error below which points are taken for exact: a clock's or a formula's rounding.
_EXACT = 1e-6


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
    half_bandwidth_bytes: float
    noise_ratio: float
    held_out_error: float
    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]
    outliers_bytes: tuple[float, ...]
    evidence: Evidence

    def predict(self, nbytes: Any) -> Any:
        """Return (low, expected, high) in seconds for a size, or three arrays for an array of
        sizes: between the first and the last lie 95 % of new measurements like those fitted.

        The interval does not account for a knee beyond the largest size that was fitted.

        Raises
        ------
        InputError
            If a size is no number, negative or not finite.
        """
        try:
            x = np.atleast_1d(np.asarray(nbytes, dtype=np.float64))
        except (TypeError, ValueError, OverflowError):  # such as of "1 MiB"
            x = np.array([math.nan])
        if x.ndim != 1 or not (np.isfinite(x) & (x >= 0)).all():
            raise InputError(
                f"predict: got the sizes {shown(nbytes)}; expected bytes, 0 or more, as one number "
                "or one row of them. Pass for example 2**20."
            )
        design = _columns(x, self._curve.knee)
        expected = design @ self._curve.coefficients
        spread = np.sqrt(
            (self._curve.scale * expected) ** 2
            + ((design @ self._curve.covariance) * design).sum(axis=1)
        )
        reach = t_quantile(self._curve.freedom) * spread
        found = expected - reach, expected, expected + reach
        return found if np.ndim(nbytes) else tuple(float(each[0]) for each in found)

    @property
    def _curve(self) -> _Curve:
        return _fitted(self.nbytes, self.seconds)

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
    The model is Hockney's (The communication challenge for MPP, Parallel Computing 20, 1994).
    """
    x, y = _points(nbytes, seconds)
    curve = _fitted(tuple(x.tolist()), tuple(y.tolist()))
    latency, slope, bend, step = curve.coefficients.tolist()
    last = slope + bend
    # half of the last bandwidth: where the line meets twice the last slope, or beyond the knee
    half = latency / (2 * last - slope) if 2 * last > slope else math.inf
    if (bend or step) and half > curve.knee:
        half = max((latency - bend * curve.knee + step) / last, curve.knee)
    about_latency, about_slope = (
        t_quantile(curve.freedom) * math.sqrt(max(0.0, float(row @ curve.covariance @ row)))
        for row in (np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0, 0.0]))
    )
    steepest = last - about_slope
    return AlphaBeta(
        latency_seconds=latency,
        latency_interval_seconds=(max(latency - about_latency, 0.0), latency + about_latency),
        bandwidth_bytes_per_second=1 / last,
        bandwidth_interval_bytes_per_second=(
            1 / (last + about_slope),
            1 / steepest if steepest > 0 else math.inf,
        ),
        knees_bytes=(curve.knee,) if bend or step else (),
        half_bandwidth_bytes=half,
        noise_ratio=curve.scale,
        held_out_error=curve.held_out_error,
        nbytes=tuple(x.tolist()),
        seconds=tuple(y.tolist()),
        outliers_bytes=tuple(x[curve.outliers].tolist()),
        evidence=evidence
        or Evidence.modelled("the points are those given by the caller", "gpulab.transfer.fit"),
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
    is_positive = all(((v > _SMALLEST) & (v < _LARGEST)).all() for v in (x, y))
    if x.ndim != 1 or x.shape != y.shape or not is_positive:
        raise InputError(
            f"fit: sizes have the shape {x.shape} and times {y.shape}; expected two sequences of "
            f"the same length, of positive numbers below {_LARGEST:g}. Pass one time in seconds "
            "for each size in bytes, and leave out points that have none."
        )
    sizes = np.unique(x)
    if len(sizes) < MIN_SIZES:
        raise InputError(
            f"fit: {len(sizes)} different sizes were given; expected at least {MIN_SIZES}. Sweep "
            "over more sizes."
        )
    return sizes, np.array([float(np.median(y[x == size])) for size in sizes])


class _Curve(NamedTuple):
    """The fitted shape: the four coefficients of ``_columns``, their covariance, the relative noise
    and its degrees of freedom; the mean relative error of each point predicted from the others, and
    which points count less.
    """

    knee: float
    coefficients: np.ndarray
    covariance: np.ndarray
    scale: float
    freedom: int
    held_out_error: float = math.nan
    outliers: np.ndarray | None = None


def _columns(x: np.ndarray, knees: Any) -> np.ndarray:
    """Return the design matrix of a curve with this knee, shape (sizes, 4), or of each of several:
    for the latency, the slope, its change beyond the knee, and the step there.
    """
    beyond = x - np.asarray(knees)[..., None]
    columns = (np.ones_like(beyond), x + 0 * beyond, np.maximum(beyond, 0.0), beyond > 0)
    return np.stack(columns, axis=-1).astype(float)


@functools.lru_cache(maxsize=16)
def _shapes(sizes: tuple[float, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the design matrices and the knees of each shape that has enough points: a line, one
    that bends, one that jumps. Sweeps share their sizes.
    """
    points, inner = len(sizes), sizes[_MIN_SEGMENT - 1 : len(sizes) - _MIN_SEGMENT + 1]
    knees = [np.array([sizes[0]])]  # of a straight line without a meaning
    if points > 2 * _MIN_SEGMENT:
        count = max(2, round(_BENDS_PER_OCTAVE * math.log2(inner[-1] / inner[0])) + 1)
        knees.append(np.geomspace(inner[0], inner[-1], count))
    if points > 2 * _MIN_SEGMENT + 1:
        gaps = itertools.pairwise(inner)
        knees.append(np.array([a * (b / a) ** share for a, b in gaps for share in _JUMP_PLACES]))
    x = np.array(sizes)
    return [(_columns(x, k)[..., : 2 + width], k) for width, k in enumerate(knees)]


@functools.lru_cache(maxsize=64)
def _fitted(nbytes: tuple[float, ...], seconds: tuple[float, ...]) -> _Curve:
    """Return what points say about a link, for ascending sizes."""
    x, y = np.array(nbytes), np.array(seconds)
    expected, trust = y, np.ones(len(x))
    for _ in range(_REWEIGHTINGS):
        curve = _likeliest(x, y, np.sqrt(trust) / expected)
        expected = _columns(x, curve.knee) @ curve.coefficients
        residual = np.abs(y / expected - 1)
        spread = max(1.4826 * float(np.median(residual)), _EXACT)
        trust = np.minimum(1.0, (_OUTLIER * spread / np.maximum(residual, _EXACT * _EXACT)) ** 2)
    return curve._replace(outliers=trust < 1)


def _likeliest(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> _Curve:
    """Fit every shape with relative errors, and return the curve that the criterion prefers."""
    points = len(x)
    # the best of each shape with its criterion; of every curve for each point, the criterion
    # without that point, and the point as it is then predicted
    best: list[tuple[float, _Curve]] = []
    without, predictions = [], []
    for columns, knees in _shapes(tuple(x.tolist())):
        width = columns.shape[2]
        unknowns = width + (_KNEE_COUNTS if width > 2 else 0)
        freedom = max(points - unknowns, 1)
        a = columns * weight[:, None]
        size = np.linalg.norm(a, axis=1, keepdims=True)
        a = a / size
        # The columns have length 1, so this much on the diagonal is rounding; it keeps knees that
        # no point distinguishes solvable.
        inverse = np.linalg.inv(a.transpose(0, 2, 1) @ a + 1e-12 * np.eye(width))
        projected = a @ inverse
        solution = np.einsum("mip,i->mp", projected, y * weight)
        residual = y * weight - np.einsum("mip,mp->mi", a, solution)
        away = residual / np.maximum(1 - np.sum(projected * a, axis=2), 1e-3)
        coefficients = solution / size[:, 0, :]
        # A link has a positive latency, every further byte costs time, and a jump goes up.
        slopes = np.cumsum(coefficients[:, 1:3], axis=1)
        possible = (coefficients[:, 0] > 0) & (slopes > 0).all(axis=1)
        possible &= (coefficients[:, 3:] > 0).all(axis=1)
        penalty = np.where(possible, unknowns * math.log(points), np.inf)
        least = points * _EXACT**2
        squares = np.sum(residual**2, axis=1) + least
        left = np.maximum(squares[:, None] - residual * away, least)
        without.append((points - 1) * np.log(left) + penalty[:, None])
        predictions.append(y - away / weight)
        scores = points * np.log(squares) + penalty
        at = int(_first_least(scores))
        covariance = inverse[at] / np.outer(size[at], size[at]) * squares[at] / freedom
        padding = (0, 4 - width)
        curve = _Curve(
            knee=float(knees[at]),
            coefficients=np.pad(coefficients[at], padding),
            covariance=np.pad(covariance, (padding, padding)),
            scale=math.sqrt(squares[at] / freedom),
            freedom=freedom,
        )
        best.append((float(scores[at]), curve))
    score, likeliest = min(best, key=lambda one: one[0])
    if score == math.inf:
        return _through_origin(x, y, weight)
    chosen = _first_least(np.concatenate(without))
    held_out = np.concatenate(predictions)[chosen, np.arange(points)]
    return likeliest._replace(held_out_error=float(np.mean(np.abs(held_out / y - 1))))


def _first_least(criteria: np.ndarray) -> np.ndarray:
    """Return where the least criterion is along the first axis; of equal ones, the first."""
    likeliest: np.ndarray = np.argmax(criteria <= criteria.min(axis=0) + _EQUALLY_LIKELY, axis=0)
    return likeliest


def _through_origin(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> _Curve:
    """Return the line without a latency, for sizes so large that none can be seen."""
    a, b = x * weight, y * weight
    slope, freedom = float(a @ b / (a @ a)), max(len(x) - 1, 1)
    scale = math.sqrt((float(np.sum((b - slope * a) ** 2)) + len(x) * _EXACT**2) / freedom)
    covariance = np.diag([0.0, scale**2 / float(a @ a), 0.0, 0.0])
    rest = (a @ b - a * b) / np.maximum(a @ a - a**2, 1e-30)
    held_out = float(np.mean(np.abs(rest * x / y - 1)))
    return _Curve(0.0, np.array([0.0, slope, 0.0, 0.0]), covariance, scale, freedom, held_out)
