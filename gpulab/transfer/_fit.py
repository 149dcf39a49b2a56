"""The alpha-beta model of a link: time = latency + bytes / bandwidth, with knees where the data
requires them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given
from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.transfer import _posterior
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds

LEVEL = 0.95
# A line has two unknowns, and its noise is a third.
MIN_SIZES = 3
# Bytes and seconds beyond these are slips, and their squares would leave the range of a float.
_SMALLEST, _LARGEST = 1e-30, 1e30


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
    def _posterior(self) -> _posterior.Posterior:
        return _posterior_of(self.nbytes, self.seconds)

    def __repr__(self) -> str:
        return (
            f"<latency {format_seconds(self.latency_seconds)}, bandwidth "
            f"{format_bytes_per_second(self.bandwidth_bytes_per_second)}, "
            f"{len(self.knees_bytes)} knee{'s' if len(self.knees_bytes) != 1 else ''}, held-out "
            f"error {self.held_out_error:.1%}>"
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
    knees are added where the data requires them (see ``AlphaBeta``).

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
    found = _posterior_of(tuple(x), tuple(y))
    low, latency, high = found.coefficient("latency", LEVEL)
    steep, slope, shallow = found.coefficient("slope", LEVEL)
    knees, segments = _shape(found.best(), x)
    source = evidence or Evidence.modelled(
        "the points are those given by the caller", "gpulab.transfer.fit"
    )
    return AlphaBeta(
        latency_seconds=latency,
        latency_interval_seconds=(max(low, 0.0), high),
        bandwidth_bytes_per_second=1 / slope,
        bandwidth_interval_bytes_per_second=(1 / shallow, 1 / steep if steep > 0 else math.inf),
        knees_bytes=knees,
        segments=segments,
        half_bandwidth_bytes=_half_bandwidth_bytes(found, slope, latency, x),
        noise_ratio=found.noise_ratio,
        held_out_error=float(np.mean(found.held_out_errors)),
        nbytes=tuple(float(v) for v in x),
        seconds=tuple(float(v) for v in y),
        outliers_bytes=tuple(float(v) for v in x[found.outliers]),
        evidence=source,
    )


@functools.lru_cache(maxsize=64)
def _posterior_of(nbytes: tuple[float, ...], seconds: tuple[float, ...]) -> _posterior.Posterior:
    return _posterior.posterior(np.array(nbytes), np.array(seconds))


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
            "expected positive ones in bytes and seconds. "
            "Leave such points out."
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


def _shape(best: _posterior.Fitted, x: np.ndarray) -> tuple[tuple[float, ...], tuple[Segment, ...]]:
    """Return the knees and the straight pieces of one candidate."""
    candidate, b = best.candidate, best.coefficients
    slopes = candidate.slopes(b)
    if candidate.family == "jump":
        intercepts = [float(b[0]), float(b[2])]
    else:
        # Beyond a bend at k the line is f(k) + slope (x - k); each bend shifts its meeting point
        # with zero by -k times the change.
        intercepts = [
            float(b[0] - sum(b[2 + j] * k for j, k in enumerate(candidate.knees[:i])))
            for i in range(len(candidate.knees) + 1)
        ]
    ends = [0.0, *candidate.knees, math.inf]
    pieces = zip(itertools.pairwise(ends), intercepts, slopes, strict=True)
    return candidate.knees, tuple(
        Segment(a, z, intercept, float(1 / slope)) for (a, z), intercept, slope in pieces
    )


def _half_bandwidth_bytes(
    found: _posterior.Posterior, slope: float, latency: float, x: np.ndarray
) -> float:
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
