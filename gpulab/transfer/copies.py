"""Copies: the alpha-beta model, and the results of sweeps, break-even searches and overlaps.

The model of a link is time = latency + bytes / bandwidth, with at most one knee.
At a knee, where a protocol or a cache changes, the slope changes, or the time jumps. Every shape (a
straight line; a line that bends, or jumps, at each of many places) is fitted by weighted least
squares, and the Bayesian information criterion chooses among them (Schwarz, Annals of Statistics 6,
1978). Noise is multiplicative, so errors are relative. For the held-out error, the shape is chosen
again without each point. Where the time jumps, this error is too high by a third, because the place
of the jump is not known without its neighbors.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result, Table, note_rows
from gpulab.timing.statistics import t_quantile
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

# A line has two unknowns, and its noise is a third.
MIN_SIZES = 3
# Bytes and seconds outside of this range are mistakes, and their squares would leave the range of a
# float.
_SMALLEST, _LARGEST = 1e-30, 1e30
_BENDS_PER_OCTAVE = 4
# The place of a jump between two sizes is unknown. Three places are tried, which only new sizes can
# distinguish; of equally likely places the first is taken.
_JUMP_PLACES = (0.1, 0.5, 0.9)
# Criteria that differ by less count as equal: rounding is not the same on all processors.
_EQUALLY_LIKELY = 1e-6
_MIN_SEGMENT = 3  # points on each side of a knee: fewer fit anything
_REWEIGHTINGS = 3  # passes that refine the weights; more change nothing that matters
# The place of a knee is searched for, so it counts as this many unknowns besides its slope and
# step. By simulation (benchmarks/transfer_fit.py): counted as one unknown, a knee is found in a
# fourth of straight lines.
_KNEE_COUNTS = 3
_OUTLIER = 4.0  # in standard deviations, estimated from the median; points farther off count less
# Points with a relative error below this count as exact: it is a clock's or a formula's rounding.
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
        The rate that the largest sizes approach (1 / beta).
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

    columns: ClassVar = {
        "latency": lambda f: _with_interval(
            format_seconds, f.latency_seconds, f.latency_interval_seconds
        ),
        "bandwidth": lambda f: _with_interval(
            format_bytes_per_second,
            f.bandwidth_bytes_per_second,
            f.bandwidth_interval_bytes_per_second,
        ),
        "size at half the bandwidth": lambda f: format_bytes(f.half_bandwidth_bytes),
        "knees": lambda f: ", ".join(map(format_bytes, f.knees_bytes)) or "none",
        "held-out error": lambda f: f"{f.held_out_error:.1%}",
        "scatter of the points": lambda f: f"{f.noise_ratio:.1%}",
        "points fitted": lambda f: len(f.nbytes),
        "outliers (given less weight)": lambda f: (
            ", ".join(map(format_bytes, f.outliers_bytes)) or "none"
        ),
    }

    def predict(self, nbytes: Any) -> Any:
        """Return (low, expected, high) in seconds for a size, or three arrays for an array of
        sizes; 95 % of new measurements like those fitted lie between low and high.

        The interval does not account for a knee beyond the largest size that was fitted.

        Raises
        ------
        InputError
            If a size is not a number, negative or not finite.
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
        reach = t_quantile(self._curve.freedom) * np.sqrt(
            (self._curve.scale * expected) ** 2
            + ((design @ self._curve.covariance) * design).sum(axis=1)
        )
        found = np.maximum(expected - reach, 0.0), expected, expected + reach
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


def _with_interval(
    form: Callable[[float], str], value: float, interval: tuple[float, float]
) -> str:
    return f"{form(value)} (95 %: {' to '.join(map(form, interval))})"


def fit(nbytes: Any, seconds: Any, evidence: Evidence | None = None) -> AlphaBeta:
    """Fit the alpha-beta model to sizes and times.

    Errors are relative, since a link's noise is multiplicative. Outliers count less, and a knee is
    added where the data requires it (see ``AlphaBeta``). With few sizes, noise alone can look like
    a knee: in 3 % of straight lines with 21 sizes, and in 18 % with 8 (simulated by
    benchmarks/transfer_fit.py). A stricter rule would miss knees of real links.

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
    # the size with half of the last bandwidth: latency + slope * n = 2 * last * n, or beyond the
    # knee
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
            f"fit: got sizes of shape {x.shape} and times of shape {y.shape}"
            f"{'' if is_positive else ', with values out of range'}; expected two sequences of the "
            f"same length, of positive numbers below {_LARGEST:g}. Pass one time in seconds for "
            "each size in bytes, and leave out points that have none."
        )
    sizes = np.unique(x)
    if len(sizes) < MIN_SIZES:
        raise InputError(
            f"fit: got {plural(len(sizes), 'different size')}; expected at least {MIN_SIZES}. "
            "Sweep over more sizes."
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
    """Return the design matrix of a curve with this knee, shape (sizes, 4), or a stack of them for
    several knees. The columns belong to the latency, the slope, its change beyond the knee, and the
    step at the knee.
    """
    beyond = x - np.asarray(knees)[..., None]
    columns = (np.ones_like(beyond), x + 0 * beyond, np.maximum(beyond, 0.0), beyond > 0)
    return np.stack(columns, axis=-1).astype(float)


@functools.lru_cache(maxsize=16)
def _shapes(sizes: tuple[float, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the design matrices and the knees of each shape for which there are enough points: a
    line, a line that bends, a line that jumps. They are cached because sweeps share their sizes.
    """
    points, inner = len(sizes), sizes[_MIN_SEGMENT - 1 : len(sizes) - _MIN_SEGMENT + 1]
    knees = [np.array([sizes[0]])]  # a placeholder: a straight line has no knee
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
    """Return the curve fitted to points with ascending sizes."""
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
    # ``best``: the best curve of each shape, with its criterion. ``without``, ``predictions``: for
    # every curve and point, the criterion without that point, and the point's prediction then.
    best: list[tuple[float, _Curve]] = []
    without, predictions = [], []
    for columns, knees in _shapes(tuple(x.tolist())):
        width = columns.shape[2]
        unknowns = width + (_KNEE_COUNTS if width > 2 else 0)
        freedom = max(points - unknowns, 1)
        a = columns * weight[:, None]
        size = np.linalg.norm(a, axis=1, keepdims=True)
        a = a / size
        # The columns have length 1, so a diagonal term this small is within rounding. It keeps the
        # system solvable for knees that no point distinguishes.
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
    """Return the line without a latency, for sizes so large that no latency can be seen. Its errors
    are those of a line with a latency, which need not be 0 because it was not seen.
    """
    a, b = x * weight, y * weight
    slope, freedom = float(a @ b / (a @ a)), max(len(x) - 2, 1)
    square = (float(np.sum((b - slope * a) ** 2)) + len(x) * _EXACT**2) / freedom
    size = np.linalg.norm([weight, a], axis=1, keepdims=True)
    units = np.stack([weight, a]) / size
    inverse = np.linalg.inv(units @ units.T + 1e-12 * np.eye(2)) / (size @ size.T)
    without = (a @ b - a * b) / np.maximum(a @ a - a**2, 1e-30)  # the slope without each point
    return _Curve(
        knee=0.0,
        coefficients=np.array([0.0, slope, 0.0, 0.0]),
        covariance=np.pad(inverse * square, (0, 2)),
        scale=math.sqrt(square),
        freedom=freedom,
        held_out_error=float(np.mean(np.abs(without * x / y - 1))),
    )


SERIES_WORDS = {"to_device": "host to device", "to_host": "device to host", "host": "host copy"}


class SweepPoint(NamedTuple):
    """One size of one series of a sweep.

    Attributes
    ----------
    direction : str
        "to_device", "to_host", or "host" for a copy within host memory; for a collective its name.
    memory : str
        "pageable" or "pinned": the kind of the host's buffer; for a collective its ranks.
    nbytes : int
    median_seconds : float
    interval_seconds : (float, float) or None
        95 %, of the median; None for a modelled point, or where no honest interval can be given.
    samples : int
        0 for a modelled point.
    """

    direction: str
    memory: str
    nbytes: int
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    samples: int

    @property
    def bytes_per_second(self) -> float:
        """Bytes moved per second, at the median time."""
        return self.nbytes / self.median_seconds


@dataclass(frozen=True)
class Sweep(Result):
    """Transfer times over sizes.

    Attributes
    ----------
    device : str
        The name of the device at the link's other end; of the CPU for a host copy.
    library : str
        The library whose copy was measured: "torch", or "numpy" within host memory;
        "torch.distributed" for a collective; "" for a modelled sweep.
    points : tuple of SweepPoint
    memory_bandwidth_bytes_per_second : float or None
        For a host copy: the rate of the memory when all cores copy at once, reads and writes
        counted once each.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment or None
    """

    device: str
    library: str
    points: tuple[SweepPoint, ...]
    memory_bandwidth_bytes_per_second: float | None
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment | None

    rows_from = "points"
    columns: ClassVar = {
        "direction": lambda p: SERIES_WORDS.get(p.direction, p.direction),
        "{0.kind}": lambda p: p.memory,
        "size": lambda p: format_bytes(p.nbytes),
        "time (median)": lambda p: format_seconds(p.median_seconds),
        "95 %": lambda p: " to ".join(format_seconds(v) for v in p.interval_seconds or ()),
        "rate": lambda p: format_bytes_per_second(p.bytes_per_second),
        "samples": lambda p: p.samples or "modelled",
    }

    @property
    def kind(self) -> str:
        """The property, besides direction, in which the series differ: a heading of the table."""
        return "ranks" if self.library == "torch.distributed" else "host memory"

    @property
    def series(self) -> tuple[tuple[str, str], ...]:
        """The (direction, memory) pairs in the order measured."""
        return tuple(dict.fromkeys((p.direction, p.memory) for p in self.points))

    def select(
        self, direction: str | None = None, memory: str | None = None
    ) -> tuple[SweepPoint, ...]:
        """Return the points of one series, ascending in size. None matches any direction or memory,
        and the first series that matches is taken.

        Raises
        ------
        InputError
            If the sweep has no such series.
        """
        for there in self.series:
            if direction in (None, there[0]) and memory in (None, there[1]):
                chosen = (p for p in self.points if (p.direction, p.memory) == there)
                return tuple(sorted(chosen, key=lambda p: p.nbytes))
        there_are = ", ".join(f"{d}/{m}" for d, m in self.series) or "none"
        raise InputError(
            f"sweep: there is no series {direction}/{memory}; expected one of: {there_are}. Pass "
            "direction and memory of one of these."
        )

    def fit(self, direction: str | None = None, memory: str | None = None) -> AlphaBeta:
        """Return the alpha-beta fit of one series (see ``select``).

        Raises
        ------
        InputError
            If there is no such series, or it has fewer than three sizes.
        """
        points = self.select(direction, memory)
        return fit([p.nbytes for p in points], [p.median_seconds for p in points], self.evidence)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{SERIES_WORDS.get(d, d)} {m}" for d, m in self.series) or "no point"
        return (
            f"<sweep of {self.device}: {kinds}; {plural(len(self.points), 'point')}, "
            f"{self.evidence.badge}>"
        )


class BreakEvenRow(NamedTuple):
    """One size of a break-even search.

    Attributes
    ----------
    n : int
    host_seconds : float
        On the CPU.
    device_seconds : float
        On the accelerator with both copies.
    copied_bytes : float
        Inputs to the accelerator, and the result back.
    """

    n: int
    host_seconds: float
    device_seconds: float
    copied_bytes: float

    @property
    def speedup(self) -> float:
        """Host / device, copies counted."""
        return self.host_seconds / self.device_seconds


@dataclass(frozen=True)
class BreakEven(Result):
    """The smallest size from which the accelerator is faster with the copies counted.

    Attributes
    ----------
    label : str
        The workload and its dtype.
    size : int or None
        Where the two curves cross, interpolated between two sizes tried; None if there is no such
        size, or no accelerator.
    reason : str
        "found", "never in this range", "not found so far" (the search ended early) or "no
        accelerator".
    sentence : str
        The answer in words, with the sizes tried.
    rows : tuple of BreakEvenRow
    notes : tuple of Note
    evidence : Evidence
        Of the accelerator's side.
    host_evidence : Evidence or None
        Of the CPU's side, which is always measured; None where nothing was compared.
    """

    label: str
    size: int | None
    reason: str
    sentence: str
    rows: tuple[BreakEvenRow, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    host_evidence: Evidence | None = None

    rows_from = "rows"
    # The CPU's side is always measured; the badge of the result is the accelerator's.
    columns: ClassVar = {
        "n": lambda row: row.n,
        "CPU (MEASURED)": lambda row: format_seconds(row.host_seconds),
        "accelerator with copies ({0.evidence.badge})": lambda row: format_seconds(
            row.device_seconds
        ),
        "copied": lambda row: format_bytes(row.copied_bytes),
        "speed-up": lambda row: format_ratio(row.speedup),
    }

    def __repr__(self) -> str:
        return f"<break-even of {self.label}: {self.sentence}>"

    def caption(self) -> str:
        """Return the badge and the answer, then the evidence for the accelerator's side and the
        CPU's.
        """
        badge, _, rest = self.evidence.sentence.partition(" ")
        host = (
            ""
            if self.host_evidence is None
            else f" · the CPU's side: {self.host_evidence.sentence}"
        )
        return f"{badge} · {self.sentence} The accelerator's side: {rest.removeprefix('· ')}{host}"


class Span(NamedTuple):
    """One bar of a timeline, in seconds from its start.

    Attributes
    ----------
    lane : str
        "copy" or "compute".
    chunk : int
    start_seconds, end_seconds : float
    """

    lane: str
    chunk: int
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Overlap(Result):
    """Copy and compute in overlapping chunks, compared with one copy and one compute in turn.

    Attributes
    ----------
    device : str
    nbytes, chunks : int
    copy_seconds, compute_seconds : float
        Each alone, all bytes at once.
    seconds : float
        In chunks: each chunk is computed while the next one is copied.
    timeline : tuple of Span
        Of the run in chunks.
    notes : tuple of Note
        "no-overlap" where copy and compute did not run at the same time; "implausible" where the
        gain is above the ideal, "unstable" where the runs disagree by more than the gain.
    evidence : Evidence
    """

    device: str
    nbytes: int
    chunks: int
    copy_seconds: float
    compute_seconds: float
    seconds: float
    timeline: tuple[Span, ...]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def serial_seconds(self) -> float:
        """The copy, then the compute."""
        return self.copy_seconds + self.compute_seconds

    @property
    def ideal_seconds(self) -> float:
        """The longer of the two, with the other fully hidden behind it: no chunking can do
        better.
        """
        return max(self.copy_seconds, self.compute_seconds)

    @property
    def ratio(self) -> float:
        """The share of the ideal gain that was reached: 0 means one after the other, 1 means one
        fully hidden; negative is a loss.
        """
        possible = min(self.copy_seconds, self.compute_seconds)
        return (self.serial_seconds - self.seconds) / possible if possible > 0 else 0.0

    @property
    def ratio_text(self) -> str:
        """``ratio`` in whole percent; values that round to zero are "0%", never "-0%"."""
        return f"{round(100 * self.ratio)}%"

    @property
    def together_seconds(self) -> float:
        """The time for which a copy and a compute ran at the same time in the timeline; the spans
        of one lane do not overlap each other.
        """
        changes = sorted(
            change
            for span in self.timeline
            for change in ((span.start_seconds, 1), (span.end_seconds, -1))
        )
        together, running = 0.0, 0
        for (now, change), (then, _) in itertools.pairwise(changes):
            running += change
            together += then - now if running == 2 else 0.0
        return together

    def __repr__(self) -> str:
        return (
            f"<overlap of {format_bytes(self.nbytes)} in {plural(self.chunks, 'chunk')}: "
            f"{format_seconds(self.seconds)}, one after the other "
            f"{format_seconds(self.serial_seconds)}, {self.ratio_text} of the ideal gain>"
        )

    def table(self) -> Table:
        """Return the times, and the share of the ideal gain that was reached."""
        rows = [
            ("copy alone", format_seconds(self.copy_seconds)),
            ("compute alone", format_seconds(self.compute_seconds)),
            ("one after the other", format_seconds(self.serial_seconds)),
            ("in overlapping chunks", format_seconds(self.seconds)),
            ("ideal (the longer one alone)", format_seconds(self.ideal_seconds)),
            ("share of the ideal gain", self.ratio_text),
            ("copy and compute at the same time", format_seconds(self.together_seconds)),
            *note_rows(self.notes, 2),
        ]
        return (f"{format_bytes(self.nbytes)} in {plural(self.chunks, 'chunk')}", ""), rows
