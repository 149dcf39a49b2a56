"""Estimate Amdahl's serial share from measured times, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpulab._given import is_finite, items
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.models._scaling import MOST_RANKS
from gpulab.results import Result
from gpulab.units import format_number, format_seconds

_Z = 1.959963984540054  # the normal distribution's 97.5 % quantile


@dataclass(frozen=True, repr=False)
class SerialShare(Result):
    """The serial share estimated from measured times.

    Attributes
    ----------
    share : float
        Of the time on one rank. Below 0 where more ranks gained more than their number; above 1 where they lost time.
    interval : (float, float) or None
        95 %; None for two points without intervals, from which the noise cannot be estimated.
    one_rank_seconds : float
        The time on one rank, by the fit.
    ranks : tuple of int
    seconds : tuple of float
        The points that were fitted.
    karp_flatt : tuple of float
        The share that each point with more than one rank implies by itself, relative to the measured time on one rank (the fit's
        where none was given). Where it grows with the ranks, the cost is not a serial part but something that grows, such as communication.
    evidence : Evidence
    """

    share: float
    interval: tuple[float, float] | None
    one_rank_seconds: float
    ranks: tuple[int, ...]
    seconds: tuple[float, ...]
    karp_flatt: tuple[float, ...]
    evidence: Evidence

    @property
    def limit_speedup(self) -> float:
        """The speed-up that no number of ranks would exceed, by Amdahl's law: 1 from a share of 1 on, infinite without a serial share."""
        return 1 / min(self.share, 1.0) if self.share > 0 else math.inf

    @property
    def sentence(self) -> str:
        """What the share means, in words."""
        low, high = self.interval or (self.share, self.share)
        span = "(no interval)" if self.interval is None else f"(95 %: {100 * low:.3g} to {100 * high:.3g} %)"
        known = f"{100 * self.share:.3g} % of the time on one rank did not divide {span}"
        if self.share > 1:
            return (
                f"{known}: more ranks took longer than one. "
                "Either they shared processors, or communication cost more than the ranks gained."
            )
        if high < 0:
            return f"{known}: the speed-up was larger than the number of ranks, as happens when each rank's part fits into a faster memory."
        if low <= 0:
            return f"{known}: it cannot be distinguished from zero, so Amdahl's law sets no limit."
        return f"{known}; by Amdahl's law the speed-up stays below {format_number(self.limit_speedup)}x for any number of ranks."

    def __repr__(self) -> str:
        return f"<serial share: {self.sentence}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the fit, then the share that each point implies by itself."""
        span = "none" if self.interval is None else " to ".join(f"{100 * end:.3g} %" for end in self.interval)
        many = [p for p in zip(self.ranks, self.seconds, strict=True) if p[0] > 1]
        rows = [("serial share", f"{100 * self.share:.3g} %"), ("95 %", span), ("one rank", format_seconds(self.one_rank_seconds))]
        rows += [
            (f"by {p} ranks alone", f"{100 * e:.3g} % from {format_seconds(t)}") for (p, t), e in zip(many, self.karp_flatt, strict=True)
        ]
        return ("fit of Amdahl's law", ""), rows


def serial_share(ranks: Any, seconds: Any, intervals_seconds: Any = None) -> SerialShare:
    """Fit the serial share of Amdahl's law to measured times of the same work on several numbers of ranks.

    Parameters
    ----------
    ranks : sequence of int
        At least two different numbers.
    seconds : sequence of float
        The time on each number of ranks, in the same order; positive.
    intervals_seconds : sequence of (float, float), optional
        Their 95 % intervals. Without them the noise is taken to be the same share of each time, and estimated from the scatter about the
        fit.

    Returns
    -------
    SerialShare

    Raises
    ------
    InputError
        If lengths differ, a time is not positive, an interval has its ends reversed, or there is only one number of ranks.

    Examples
    --------
    >>> fitted = serial_share([1, 2, 4, 8], [1.0, 0.6, 0.4, 0.3])  # 0.2 + 0.8 / ranks
    >>> round(fitted.share, 9), [round(e, 9) for e in fitted.karp_flatt]
    (0.2, [0.2, 0.2, 0.2])

    Notes
    -----
    Weighted least squares of a + b / ranks; the share is a / (a + b), its interval by Fieller's theorem (1954). Where the points
    scatter more than their intervals allow, the interval widens with them. Each point's own share: Karp and Flatt, "Measuring parallel
    processor performance", Communications of the ACM 33 (1990), 539.
    """
    p, t = _points(ranks, seconds)
    sigmas = _sigmas(t, intervals_seconds)
    fit = _fitted(p, t, sigmas if sigmas is not None else t)  # without intervals: the same relative noise, of a size not yet known
    one = fit.serial + fit.parallel
    if one <= 0:
        raise InputError(
            f"serial_share: the fit gives {one:.3g} s on one rank; expected a positive time. These points do not follow a + b / ranks: "
            "check them first."
        )
    interval = _fieller(fit, sigmas is not None)
    by_one = [each for n, each in zip(p, t, strict=True) if n == 1]
    base = math.fsum(by_one) / len(by_one) if by_one else one
    alone = tuple((each / base - 1 / n) / (1 - 1 / n) for n, each in zip(p, t, strict=True) if n > 1)
    scatter = "" if fit.freedom < 1 else f"{100 * math.sqrt(fit.relative_rss / fit.freedom):.2g} % scatter of the points about the fit"
    evidence = Evidence.modelled(
        "the time is a serial part and a part that divides evenly by the ranks", "Amdahl (1967); Karp and Flatt (1990)", scatter or None
    )
    return SerialShare(fit.serial / one, interval, one, tuple(p), tuple(t), alone, evidence)


@dataclass(frozen=True)
class _Fit:
    """a + b / p by weighted least squares, with the covariance before the noise's size is known."""

    serial: float
    parallel: float
    covariance: tuple[float, float, float]  # of a, of a and b, of b
    chi_squared: float
    relative_rss: float
    freedom: int


def _fitted(p: Sequence[int], t: Sequence[float], sigmas: Sequence[float]) -> _Fit:
    w = [1 / s**2 for s in sigmas]
    x = [1 / n for n in p]
    total = math.fsum(w)
    # Centred, so that nothing cancels where all ranks are many.
    xm = math.fsum(wi * xi for wi, xi in zip(w, x, strict=True)) / total
    tm = math.fsum(wi * ti for wi, ti in zip(w, t, strict=True)) / total
    spread = math.fsum(wi * (xi - xm) ** 2 for wi, xi in zip(w, x, strict=True))
    b = math.fsum(wi * (xi - xm) * (ti - tm) for wi, xi, ti in zip(w, x, t, strict=True)) / spread
    a = tm - b * xm
    off = [ti - a - b * xi for xi, ti in zip(x, t, strict=True)]
    covariance = (1 / total + xm**2 / spread, -xm / spread, 1 / spread)
    chi = math.fsum(wi * o**2 for wi, o in zip(w, off, strict=True))
    return _Fit(a, b, covariance, chi, math.fsum((o / ti) ** 2 for o, ti in zip(off, t, strict=True)), len(p) - 2)


def _fieller(fit: _Fit, known: bool) -> tuple[float, float] | None:
    """Return the interval of a / (a + b), or None where nothing tells the size of the noise."""
    if not known and fit.freedom < 1:
        return None
    scale = fit.chi_squared / fit.freedom if fit.freedom else 1.0
    quantile = t_975(fit.freedom) if not known or scale > 1 else _Z
    size = max(scale, 1.0) if known else scale
    aa, ab, bb = (size * v for v in fit.covariance)
    one, cross, whole = fit.serial + fit.parallel, aa + ab, aa + 2 * ab + bb
    q = quantile**2
    square, half, rest = one**2 - q * whole, fit.serial * one - q * cross, fit.serial**2 - q * aa
    if square <= 0:  # the time on one rank is not told from zero, so no share of it can be bounded
        return None
    root = math.sqrt(max(half**2 - square * rest, 0.0))
    return (half - root) / square, (half + root) / square


def t_975(freedom: int) -> float:
    """Return Student's t at 97.5 %: closed forms for 1 and 2 degrees of freedom, then the expansion of Abramowitz and Stegun 26.7.5.

    >>> [round(t_975(n), 2) for n in (1, 2, 3, 10)]
    [12.71, 4.3, 3.18, 2.23]
    """
    if freedom <= 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, n = _Z, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term * n ** -(k + 1.0) for k, term in enumerate(terms))


def _points(ranks: Any, seconds: Any) -> tuple[list[int], list[float]]:
    p, t = items("serial_share", "ranks", ranks), items("serial_share", "seconds", seconds)
    if len(p) != len(t):
        raise InputError(f"serial_share: {len(p)} numbers of ranks and {len(t)} times; expected equal counts. Pass one time for each.")
    for each in p:
        if not is_finite(each) or each != int(each) or not 1 <= each <= MOST_RANKS:
            raise InputError(f"serial_share: {shown(each)} ranks; expected whole numbers from 1 to {MOST_RANKS:,}. Pass [1, 2, 4].")
    for each in t:
        if not is_finite(each) or not 1e-30 < each < 1e30:
            raise InputError(f"serial_share: a time of {shown(each)}; expected positive seconds. Leave such a point out.")
    if len({int(each) for each in p}) < 2:
        raise InputError(
            f"serial_share: {len(set(p))} number of ranks; expected at least two different ones. Measure one rank and at least "
            "one larger number."
        )
    return [int(each) for each in p], [float(each) for each in t]


def _sigmas(t: Sequence[float], given: Any) -> list[float] | None:
    if given is None:
        return None
    pairs = items("serial_share", "intervals_seconds", given)
    if len(pairs) != len(t):
        raise InputError(
            f"serial_share: {len(pairs)} intervals for {len(t)} times; expected equal counts. Pass one for each time, or none."
        )
    sigmas = []
    for pair in pairs:
        ends = items("serial_share", "intervals_seconds", pair)
        if len(ends) != 2 or not all(is_finite(end) for end in ends) or not 0 <= ends[0] < ends[1] < 1e30:
            raise InputError(
                f"serial_share: {shown(pair)} is not an interval; expected (low, high) in seconds, low below high. Leave "
                "intervals_seconds out."
            )
        sigmas.append((float(ends[1]) - float(ends[0])) / (2 * _Z))
    return sigmas
