"""The statistics behind the alpha-beta fit: straight lines with up to three knees, averaged by how
well each explains the data.

A link's time is ``latency + bytes / bandwidth``, with other slopes (or a jump) beyond a knee where
a protocol or a cache changes. Where the knee lies is never certain from twenty noisy points, and an
interval that takes the best knee for granted is too narrow. So every candidate (none, one
continuous, one with a jump, two, three; each over a grid of places) is fitted by weighted least
squares, and predictions are mixtures over all of them with weights from the Bayesian information
criterion: Bayesian model averaging (Hoeting et al., Statistical Science 14, 1999). Noise is
multiplicative, so errors are relative.

Pure functions of arrays; nothing here knows about devices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Prior share of each family; within one, every place of its knees is equally likely. Most links are
# straight lines, and more than one knee is a thing of caches, where the evidence is overwhelming: a
# larger share would only widen the estimates of the others.
_PRIOR = {"line": 0.5, "knee": 0.25, "jump": 0.2, "two knees": 0.04, "three knees": 0.01}
_KNEES_PER_OCTAVE = {"knee": 4, "two knees": 1, "three knees": 0.6}
_MIN_SEGMENT = 3  # points on each side of a knee: fewer fit anything
_REWEIGHTINGS = 3  # passes that refine the weights; more change nothing that matters
_STRAIGHT_CHANCE = 0.05  # as long as a straight line is this likely, no knee is named
_OUTLIER = 4.0  # in standard deviations by the median: beyond it a point counts less
# Candidates kept for predictions: the likeliest that together have this share, and no more than so
# many.
_KEPT_SHARE, _KEPT_MOST = 0.999, 60
_NODES = 61  # quantiles that stand for each candidate's Student t
# A relative error below which points are taken for exact: a clock's or a formula's rounding.
_EXACT = 1e-6


@dataclass(frozen=True)
class Candidate:
    """One fitted shape: its knees and whether it jumps there."""

    family: str
    knees: tuple[float, ...]

    @property
    def width(self) -> int:
        """Coefficients: two for a line, one more for a bend, two more for a jump."""
        return 4 if self.family == "jump" else 2 + len(self.knees)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """Return the design matrix at sizes ``x``, shape (len(x), width)."""
        made = np.empty((len(x), self.width))
        if self.family == "jump":
            above = x > self.knees[0]
            made[:, 0], made[:, 1], made[:, 2], made[:, 3] = ~above, x * ~above, above, x * above
            return made
        made[:, 0], made[:, 1] = 1.0, x
        for k, knee in enumerate(self.knees, 2):
            made[:, k] = np.maximum(x - knee, 0.0)
        return made

    def slopes(self, coefficients: np.ndarray) -> np.ndarray:
        """Return seconds a byte in each segment, from the smallest sizes up."""
        if self.family == "jump":
            return coefficients[[1, 3]]
        return np.cumsum(coefficients[1:])

    @property
    def last_slope(self) -> np.ndarray:
        """The weights that turn coefficients into the slope of the last segment."""
        if self.family == "jump":
            return np.array([0.0, 0.0, 0.0, 1.0])
        return np.array([0.0] + [1.0] * (self.width - 1))


@dataclass(frozen=True)
class Fitted:
    """A candidate with its estimate; ``scale`` is the relative noise and ``covariance`` that of the
    coefficients over scale^2.
    """

    candidate: Candidate
    weight: float
    coefficients: np.ndarray
    covariance: np.ndarray
    scale: float
    freedom: int


@dataclass(frozen=True)
class Posterior:
    """The mixture: what the data say about the link, with every kept candidate.

    Attributes
    ----------
    fitted : tuple of Fitted
        By falling weight; the weights sum to 1.
    held_out_errors : ndarray
        For each point: |its relative error predicted from the others|.
    outliers : ndarray of bool
    """

    fitted: tuple[Fitted, ...]
    held_out_errors: np.ndarray
    outliers: np.ndarray

    @property
    def noise_ratio(self) -> float:
        """The relative scatter of the points around the curve."""
        return math.sqrt(sum(f.weight * f.scale**2 for f in self.fitted))

    def family(self) -> str:
        """Return the family to name and to draw: the favored one, but the straight line while it
        keeps a chance of 1 in 20.

        Predictions average over all families either way; a knee that is named must be more than
        noise.
        """
        weight: dict[str, float] = {}
        for f in self.fitted:
            weight[f.candidate.family] = weight.get(f.candidate.family, 0.0) + f.weight
        return (
            "line"
            if weight.get("line", 0.0) >= _STRAIGHT_CHANCE
            else max(weight, key=lambda name: weight[name])
        )

    def best(self) -> Fitted:
        """Return the likeliest candidate of the favored family."""
        family = self.family()
        return next(f for f in self.fitted if f.candidate.family == family)

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted seconds at sizes ``x``."""
        return np.asarray(
            sum(f.weight * (f.candidate.columns(x) @ f.coefficients) for f in self.fitted)
        )

    def interval(self, x: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the interval that a new point at each size falls into with probability
        ``level``.
        """
        designs = [f.candidate.columns(x) for f in self.fitted]
        centres = np.stack([a @ f.coefficients for a, f in zip(designs, self.fitted, strict=True)])
        expected = np.array([f.weight for f in self.fitted]) @ centres
        unsure = [
            ((a @ f.covariance) * a).sum(axis=1) for a, f in zip(designs, self.fitted, strict=True)
        ]
        spreads = np.array([f.scale for f in self.fitted])[:, None] * np.sqrt(
            expected**2 + np.stack(unsure)
        )
        return self._mixture(centres, spreads, level)

    def coefficient(self, which: str, level: float) -> tuple[float, float, float]:
        """Return low, mean and high of "latency" (seconds) or "slope" (seconds a byte, of the last
        segment).
        """
        centres, spreads = [], []
        for f in self.fitted:
            a = np.eye(f.candidate.width)[0] if which == "latency" else f.candidate.last_slope
            centres.append(a @ f.coefficients)
            spreads.append(f.scale * math.sqrt(max(float(a @ f.covariance @ a), 0.0)))
        low, high = self._mixture(np.array(centres)[:, None], np.array(spreads)[:, None], level)
        return (
            float(low[0]),
            float(sum(f.weight * c for f, c in zip(self.fitted, centres, strict=True))),
            float(high[0]),
        )

    def _mixture(
        self, centres: np.ndarray, spreads: np.ndarray, level: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return quantiles of mixtures of Student's t; shapes (candidates, sizes)."""
        nodes = np.stack([student_nodes(f.freedom) for f in self.fitted])
        values = (centres[:, None, :] + spreads[:, None, :] * nodes[:, :, None]).reshape(
            nodes.size, centres.shape[1]
        )
        weights = np.repeat([f.weight / _NODES for f in self.fitted], _NODES)
        order = np.argsort(values, axis=0)
        below = np.cumsum(weights[order], axis=0) - 0.5 * weights[order]
        ranked = np.take_along_axis(values, order, axis=0)
        ends = ((1 - level) / 2, (1 + level) / 2)
        low, high = (
            np.array([np.interp(p, below[:, j], ranked[:, j]) for j in range(values.shape[1])])
            for p in ends
        )
        return low, high


def student_cdf(t: np.ndarray, freedom: int) -> np.ndarray:
    """Return P(T <= t) of Student's t with a whole number of degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4 (finite
    series).
    """
    angle = np.arctan(t / math.sqrt(freedom))
    cosine = np.cos(angle)
    if freedom == 1:
        return np.asarray(0.5 + angle / math.pi)
    total = np.ones_like(angle) if freedom % 2 == 0 else cosine.copy()
    term = total.copy()
    for k in range(2, freedom - 1, 2) if freedom % 2 == 0 else range(3, freedom - 1, 2):
        term = term * cosine**2 * (k - 1) / k
        total = total + term
    if freedom % 2 == 0:
        return np.asarray(0.5 + 0.5 * np.sin(angle) * total)
    return np.asarray(0.5 + (angle + np.sin(angle) * total) / math.pi)


_NODE_CACHE: dict[int, np.ndarray] = {}


def student_nodes(freedom: int) -> np.ndarray:
    """Return the quantiles of Student's t at (i + 1/2) / 61, by bisection of ``student_cdf``."""
    if freedom not in _NODE_CACHE:
        p = (np.arange(_NODES) + 0.5) / _NODES
        low, high = np.full(_NODES, -1e4), np.full(_NODES, 1e4)
        for _ in range(80):
            middle = 0.5 * (low + high)
            below = student_cdf(middle, freedom) < p
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        _NODE_CACHE[freedom] = 0.5 * (low + high)
    return _NODE_CACHE[freedom]


def _grid(x: np.ndarray, per_octave: float) -> list[float]:
    """Return places for a bend: with at least three points on each side."""
    first, last = x[_MIN_SEGMENT - 1], x[-_MIN_SEGMENT]
    if last <= first:
        return []
    count = max(2, round(per_octave * math.log2(last / first)) + 1)
    return [float(k) for k in np.geomspace(first, last, count)]


def candidates(x: np.ndarray) -> Iterator[list[Candidate]]:
    """Yield each family's candidates for ascending sizes ``x``; a family that needs more points
    than there are is left out.
    """
    yield [Candidate("line", ())]
    points = len(x)
    if points >= 2 * _MIN_SEGMENT + 1 and (places := _grid(x, _KNEES_PER_OCTAVE["knee"])):
        yield [Candidate("knee", (k,)) for k in places]
    if points >= 2 * _MIN_SEGMENT + 2:
        gaps = [
            (x[i], x[i + 1])
            for i in range(_MIN_SEGMENT - 1, points - _MIN_SEGMENT)
            if x[i] < x[i + 1]
        ]
        # Where in its gap a jump lies is unknown: three places each, which only new sizes can tell
        # apart.
        places = [float(a * (b / a) ** share) for a, b in gaps for share in (0.1, 0.5, 0.9)]
        if places:
            yield [Candidate("jump", (k,)) for k in places]
    for bends, family in ((2, "two knees"), (3, "three knees")):
        if points >= (bends + 1) * _MIN_SEGMENT + 2:
            grid = _grid(x, _KNEES_PER_OCTAVE[family])
            below = np.searchsorted(x, grid, side="right")
            chosen = [
                k
                for k in itertools.combinations(range(len(grid)), bends)
                if all(below[b] - below[a] >= 2 for a, b in itertools.pairwise(k))
            ]
            if chosen:
                yield [Candidate(family, tuple(grid[i] for i in k)) for k in chosen]


def posterior(x: np.ndarray, y: np.ndarray) -> Posterior:
    """Return what points say about a link.

    Parameters
    ----------
    x : ndarray, shape (n,)
        Sizes in bytes, ascending; at least three different ones.
    y : ndarray, shape (n,)
        Seconds, positive.
    """
    families = _families(tuple(float(v) for v in x))
    expected, trust = y.astype(float), np.ones(len(x))
    for _ in range(_REWEIGHTINGS):
        fitted, expected, held_out = _average(families, x, y, expected, trust)
        residual = y / expected - 1
        spread = max(1.4826 * float(np.median(np.abs(residual))), _EXACT)
        trust = np.minimum(
            1.0, (_OUTLIER * spread / np.maximum(np.abs(residual), _EXACT * _EXACT)) ** 2
        )
    return Posterior(tuple(fitted), np.abs(held_out / y - 1), trust < 1)


@dataclass(frozen=True)
class Family:
    """The candidates of one family, all of one width: ``columns`` has the shape (candidates,
    points, width).
    """

    chosen: list[Candidate]
    columns: np.ndarray
    knees: np.ndarray

    def possible(self, coefficients: np.ndarray) -> np.ndarray:
        """Return which fits a link can have: a positive latency, every further byte costs time, and
        a jump goes up.
        """
        if self.chosen[0].family == "jump":
            step = (
                coefficients[:, 2]
                - coefficients[:, 0]
                + (coefficients[:, 3] - coefficients[:, 1]) * self.knees[:, 0]
            )
            slopes_rise = (coefficients[:, 1] > 0) & (coefficients[:, 3] > 0)
            return np.asarray((coefficients[:, 0] > 0) & slopes_rise & (step > 0))
        return np.asarray(
            (coefficients[:, 0] > 0) & (np.cumsum(coefficients[:, 1:], axis=1) > 0).all(axis=1)
        )


@functools.lru_cache(maxsize=16)
def _families(x: tuple[float, ...]) -> tuple[Family, ...]:
    """Return all candidates for a set of sizes; sweeps share theirs."""
    sizes = np.array(x)
    made = (list(chosen) for chosen in candidates(sizes))
    return tuple(
        Family(
            chosen,
            np.stack([c.columns(sizes) for c in chosen]),
            np.stack([c.knees for c in chosen]),
        )
        for chosen in made
    )


def _average(
    families: Sequence[Family],
    x: np.ndarray,
    y: np.ndarray,
    expected: np.ndarray,
    trust: np.ndarray,
) -> tuple[list[Fitted], np.ndarray, np.ndarray]:
    """Fit every candidate with relative errors; return the kept ones, the mixture's values and its
    held-out predictions.
    """
    weight = np.sqrt(trust) / expected
    parts = [_fit_family(family, y, weight) for family in families]
    log = np.concatenate([part.log for part in parts])
    if not np.isfinite(log).any():
        return _through_origin(x, y, expected, trust)
    shares = np.exp(log - log.max())
    shares /= shares.sum()
    # Each point is predicted with the shares that the others give: what it spoke itself is divided
    # out.
    without = log[:, None] - np.concatenate([part.log_density for part in parts])
    without = np.exp(without - without.max(axis=0))
    held_out = np.sum(
        without * np.concatenate([part.held_out for part in parts]), axis=0
    ) / without.sum(axis=0)
    first = np.cumsum([0] + [len(part.log) for part in parts])
    ranked = np.argsort(-shares)
    kept = [
        int(i)
        for i in ranked[
            : min(int(np.searchsorted(np.cumsum(shares[ranked]), _KEPT_SHARE)) + 1, _KEPT_MOST)
        ]
    ]
    fitted = []
    for i in kept:
        where = int(np.searchsorted(first, i, side="right")) - 1
        part, at = parts[where], i - first[where]
        share = float(shares[i] / shares[kept].sum())
        fitted.append(
            Fitted(
                families[where].chosen[at],
                share,
                part.coefficients[at],
                part.covariance[at],
                float(part.scale[at]),
                part.freedom,
            )
        )
    return fitted, np.asarray(shares @ np.concatenate([part.values for part in parts])), held_out


@dataclass(frozen=True)
class _Part:
    """A family's fits; first axis: candidates."""

    log: np.ndarray  # log of prior times likelihood, -inf where a link can't be so
    coefficients: np.ndarray
    covariance: np.ndarray
    scale: np.ndarray
    freedom: int
    values: np.ndarray  # the curve at the points
    held_out: np.ndarray  # the same without the point itself
    log_density: np.ndarray  # of each point, given the others


def _fit_family(family: Family, y: np.ndarray, weight: np.ndarray) -> _Part:
    """Solve the weighted least squares of all candidates of a family at once."""
    points, width = family.columns.shape[1:]
    a = family.columns * weight[None, :, None]
    size = np.linalg.norm(a, axis=1, keepdims=True)
    a = a / size
    # The columns have length 1, so this much on the diagonal is rounding; it keeps knees that no
    # point tells apart solvable.
    inverse = np.linalg.inv(a.transpose(0, 2, 1) @ a + 1e-12 * np.eye(width))
    projected = a @ inverse
    solution = np.einsum("mip,i->mp", projected, y * weight)
    residual = y * weight - np.einsum("mip,mp->mi", a, solution)
    leverage = np.sum(projected * a, axis=2)
    squares = np.sum(residual**2, axis=1) + points * _EXACT**2
    coefficients = solution / size[:, 0, :]
    log = (
        -0.5 * points * np.log(squares)
        - 0.5 * width * math.log(points)
        + math.log(_PRIOR[family.chosen[0].family] / len(family.chosen))
    )
    freedom = max(points - width, 1)
    away = residual / np.maximum(1 - leverage, 1e-3)
    without = np.maximum(squares[:, None] - residual * away, points * _EXACT**2)
    return _Part(
        log=np.where(family.possible(coefficients), log, -np.inf),
        coefficients=coefficients,
        covariance=inverse / (size[:, 0, :, None] * size[:, 0, None, :]),
        scale=np.sqrt(squares / freedom),
        freedom=freedom,
        values=np.einsum("mip,mp->mi", family.columns, coefficients),
        held_out=y - away / weight,
        log_density=-0.5 * np.log(without)
        - 0.5 * freedom * np.log1p(np.maximum(residual * away / without, 0.0)),
    )


def _through_origin(
    x: np.ndarray, y: np.ndarray, expected: np.ndarray, trust: np.ndarray
) -> tuple[list[Fitted], np.ndarray, np.ndarray]:
    """Return the line without a latency, for sizes so large that none can be seen."""
    weight = np.sqrt(trust) / expected
    a, b = x * weight, y * weight
    slope = float(a @ b / (a @ a))
    freedom = max(len(x) - 1, 1)
    scale = math.sqrt((float(np.sum((b - slope * a) ** 2)) + len(x) * _EXACT**2) / freedom)
    covariance = np.diag([0.0, 1 / float(a @ a)])
    rest = (a @ b - a * b) / np.maximum(a @ a - a**2, 1e-30)
    return (
        [Fitted(Candidate("line", ()), 1.0, np.array([0.0, slope]), covariance, scale, freedom)],
        slope * x,
        rest * x,
    )
