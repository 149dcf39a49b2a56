"""The speed-up from more ranks: Amdahl's law, Gustafson's, and a data-parallel step.

Pure arithmetic. ``gpulab.parallel.scaling`` compares it with measured steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gpulab._given import is_finite, is_whole, items, word
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

Mode = Literal["strong", "weak"]
MODES = ("strong", "weak")
# More ranks than any training run has had; the search for the best number of ranks ends here.
MOST_RANKS = 2**20
# The backward pass has two matrix products for each one of the forward pass, and gradients are
# ready only there. Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section
# 2.1: 2 N operations a token forward, 4 N backward.
BACKWARD_SHARE = 2 / 3
_MOST_NAMED = 20  # points that a message lists
# bytes, seconds and rates beyond are slips, and their products would leave the range of a float
_LARGEST = 1e30

# The least and the most of a kind of number, and what is expected of it.
_Kind = tuple[float, float, str]
_COUNT: _Kind = (1, MOST_RANKS, f"whole numbers from 1 to {MOST_RANKS:,}. Pass {{name}}=8.")
_SHARE: _Kind = (0, 1, "a share from 0 to 1. Pass {name}=0.1 for a tenth.")
_AMOUNT: _Kind = (
    0,
    _LARGEST,
    "a finite number from 0. Pass seconds, bytes or bytes per second.",
)
_POSITIVE: _Kind = (
    1 / _LARGEST,
    math.inf,
    "a number above 0. Pass what one rank takes, or the link's rate.",
)


@dataclass(frozen=True)
class ScalingPoint(Result):
    """A step at one number of ranks.

    Attributes
    ----------
    ranks : int
    seconds : float
        Of the whole step: compute and the communication that is waited for.
    compute_seconds : float
        On each rank.
    communication_seconds : float
        All of it, hidden or not.
    exposed_seconds : float
        The part of the communication that is waited for.
    speedup : float
        Work a second over that of one rank.
    """

    ranks: int
    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    speedup: float

    @property
    def efficiency(self) -> float:
        """Speed-up divided by the number of ranks: 1 where no rank waits for anything."""
        return self.speedup / self.ranks


@dataclass(frozen=True, repr=False)
class ScalingCurve(Result):
    """A model of scaling, at the requested numbers of ranks.

    Attributes
    ----------
    law : str
        "Amdahl", "Gustafson" or "ring all-reduce".
    mode : str
        "strong": the work stays, and each rank does a part of it. "weak": each rank does as much as
        one did alone.
    points : tuple of ScalingPoint
        Ascending in ranks.
    best_ranks : int or None
        The fastest number of ranks, beyond which more ranks do not help. None where every further
        rank brings the step closer to the limit.
    limit_speedup : float
        The speed-up that no number of ranks exceeds; infinite where there is no bound.
    evidence : Evidence
        MODELLED.
    """

    law: str
    mode: Mode
    points: tuple[ScalingPoint, ...]
    best_ranks: int | None
    limit_speedup: float
    evidence: Evidence

    rows_from = "points"
    columns: ClassVar = {
        "ranks": lambda p: p.ranks,
        "step": lambda p: format_seconds(p.seconds),
        "communication": lambda p: format_seconds(p.communication_seconds),
        "waited for": lambda p: format_seconds(p.exposed_seconds),
        "speed-up": lambda p: format_ratio(p.speedup),
        "efficiency": lambda p: f"{100 * p.efficiency:.3g} %",
    }

    @property
    def label(self) -> str:
        """The law and the mode, for a legend."""
        return f"{self.law}, {self.mode}" if self.law == "ring all-reduce" else f"{self.law}'s law"

    @property
    def speedup(self) -> float:
        """The speed-up at the largest requested number of ranks."""
        return self.points[-1].speedup

    @property
    def efficiency(self) -> float:
        """The efficiency at the largest requested number of ranks."""
        return self.points[-1].efficiency

    def at(self, ranks: int) -> ScalingPoint:
        """Return the point at a number of ranks.

        Raises
        ------
        InputError
            If this number was not requested.
        """
        found = [point for point in self.points if point.ranks == ranks]
        if found:
            return found[0]
        there = ", ".join(str(point.ranks) for point in self.points[:_MOST_NAMED])
        there += ", ..." if len(self.points) > _MOST_NAMED else ""
        raise InputError(
            f"at: {shown(ranks)} ranks are not among the points ({there}); expected one of them. "
            "Include it in ranks=."
        )

    def __repr__(self) -> str:
        last = self.points[-1]
        return (
            f"<{self.label}: {format_ratio(last.speedup)} on {plural(last.ranks, 'rank')}, at most "
            f"{format_ratio(self.limit_speedup)}>"
        )


def amdahl(
    serial_share: float, ranks: int | Iterable[int], *, seconds: float = 1.0
) -> ScalingCurve:
    """Return Amdahl's law: the work stays the same, and its serial share does not get faster with
    more ranks.

    Parameters
    ----------
    serial_share : float
        The share of the time on one rank that cannot be divided, 0 to 1.
    ranks : int or iterable of int
        One number, or several, each from 1 to 1,048,576.
    seconds : float
        The time of the work on one rank; with 1, times are shares of it.

    Returns
    -------
    ScalingCurve
        Speed-up 1 / (s + (1 - s) / ranks), never above 1 / s.

    Raises
    ------
    InputError
        If the share is not between 0 and 1, or a number of ranks or the time is not valid.

    Examples
    --------
    >>> amdahl(0.1, 9).speedup, amdahl(0.1, 9).limit_speedup
    (5.0, 10.0)

    Notes
    -----
    Source: Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", AFIPS Spring Joint Computer Conference (1967).
    """
    s, one = (
        _number("amdahl", "serial_share", serial_share, _SHARE),
        _number("amdahl", "seconds", seconds, _AMOUNT, _POSITIVE),
    )
    points = []
    for p in _ranks("amdahl", ranks):
        part = s + (1 - s) / p
        points.append(ScalingPoint(p, one * part, one * part, 0.0, 0.0, 1 / part))
    evidence = Evidence.modelled(
        f"{100 * s:.3g} % of the time on one rank cannot be divided, the rest divides evenly, and "
        "communication costs nothing",
        "Amdahl, AFIPS Spring Joint Computer Conference (1967)",
    )
    return ScalingCurve(
        "Amdahl", "strong", tuple(points), 1 if s == 1 else None, 1 / s if s else math.inf, evidence
    )


def gustafson(
    serial_share: float, ranks: int | Iterable[int], *, seconds: float = 1.0
) -> ScalingCurve:
    """Return Gustafson's law: the time stays the same, and the part that divides grows with the
    ranks.

    Parameters
    ----------
    serial_share : float
        The share of the time on the ranks that is serial, 0 to 1.
    ranks : int or iterable of int
        One number, or several, each from 1 to 1,048,576.
    seconds : float
        The time of the work, on one rank and on many.

    Returns
    -------
    ScalingCurve
        Speed-up s + (1 - s) ranks: relative to one rank that does all of the larger work, and its
        serial part once.

    Raises
    ------
    InputError
        If the share is not between 0 and 1, or a number of ranks or the time is not valid.

    Examples
    --------
    >>> gustafson(0.1, 11).speedup
    10.0

    Notes
    -----
    Source: Gustafson, "Reevaluating Amdahl's law", Communications of the ACM 31 (1988), 532.
    """
    s, one = (
        _number("gustafson", "serial_share", serial_share, _SHARE),
        _number("gustafson", "seconds", seconds, _AMOUNT, _POSITIVE),
    )
    points = [
        ScalingPoint(p, one, one, 0.0, 0.0, s + (1 - s) * p) for p in _ranks("gustafson", ranks)
    ]
    evidence = Evidence.modelled(
        f"{100 * s:.3g} % of the time is serial and does not grow, the rest grows with the ranks, "
        "and communication costs nothing",
        "Gustafson, Communications of the ACM 31 (1988)",
    )
    return ScalingCurve(
        "Gustafson",
        "weak",
        tuple(points),
        1 if s == 1 else None,
        1.0 if s == 1 else math.inf,
        evidence,
    )


def scaling(
    step_seconds: float,
    parameter_bytes: float,
    latency_seconds: float,
    bandwidth_bytes_per_second: float,
    ranks: int | Iterable[int],
    *,
    mode: str = "strong",
    overlap: float = 0.0,
    serial_share: float = 0.0,
    processors: int | None = None,
) -> ScalingCurve:
    """Return how a data-parallel step scales that averages its gradients by a ring all-reduce.

    Parameters
    ----------
    step_seconds : float
        A step on one rank, which averages nothing.
    parameter_bytes : float
        Of the model, hence of its gradients: the payload of the all-reduce.
    latency_seconds, bandwidth_bytes_per_second : float
        Of one message between two neighboring ranks (alpha and 1 / beta); an infinite bandwidth
        costs nothing.
    ranks : int or iterable of int
        One number, or several, each from 1 to 1,048,576.
    mode : str
        "strong": the global batch stays, and each rank takes a part of it. "weak": each rank has a
        batch as large as the one rank had.
    overlap : float
        The share of the communication that may run beside the backward pass, 0 to 1; the rest is
        waited for.
    serial_share : float
        The share of ``step_seconds`` that each rank repeats whatever its batch, such as the
        optimizer's update; 0 to 1.
    processors : int, optional
        The number of processors that the ranks share: ranks beyond this number take turns. None
        gives each rank its own processor.

    Returns
    -------
    ScalingCurve
        The speed-up compares samples per second with those of one rank.

    Raises
    ------
    InputError
        If a number is negative, not finite or out of its range, or the mode is neither of the two.

    Examples
    --------
    >>> c = scaling(0.1, 400e6, 10e-6, 100e9, [1, 8], mode="weak")
    >>> round(c.at(8).communication_seconds * 1e3, 3), round(c.efficiency, 3)
    (7.14, 0.933)

    Notes
    -----
    A ring of p ranks passes 2 (p - 1) messages of 1 / p of the payload, in turn: 2 (p - 1) (alpha +
    bytes / p / bandwidth). Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", Journal of Parallel and Distributed Computing 69 (2009). Of the
    compute, two thirds are the backward pass (Kaplan et al. 2020): communication beyond it is not
    hidden.
    """
    made = _Step(
        _number("scaling", "step_seconds", step_seconds, _AMOUNT, _POSITIVE),
        _number("scaling", "parameter_bytes", parameter_bytes, _AMOUNT),
        _number("scaling", "latency_seconds", latency_seconds, _AMOUNT),
        math.inf
        if isinstance(bandwidth_bytes_per_second, float) and bandwidth_bytes_per_second == math.inf
        else _number(
            "scaling", "bandwidth_bytes_per_second", bandwidth_bytes_per_second, _AMOUNT, _POSITIVE
        ),
        word("scaling", "mode", mode, MODES) == "weak",
        _number("scaling", "overlap", overlap, _SHARE),
        _number("scaling", "serial_share", serial_share, _SHARE),
        MOST_RANKS
        if processors is None
        else int(_number("scaling", "processors", processors, _COUNT)),
    )
    evidence = Evidence.modelled(
        made.assumptions,
        "ring all-reduce: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009)",
    )
    points = tuple(made.point(p) for p in _ranks("scaling", ranks))
    return ScalingCurve(
        "ring all-reduce",
        "weak" if made.weak else "strong",
        points,
        made.best(),
        made.limit(),
        evidence,
    )


@dataclass(frozen=True)
class _Step:
    """A data-parallel step as the model has it."""

    one: float
    nbytes: float
    latency: float
    bandwidth: float
    weak: bool
    overlap: float
    serial: float
    processors: int

    def point(self, p: int) -> ScalingPoint:
        compute, spread = self.compute(p)
        moved = self.communication(p)
        exposed = moved - min(self.overlap * moved, BACKWARD_SHARE * spread)
        seconds = compute + exposed
        return ScalingPoint(
            p, seconds, compute, moved, exposed, (p if self.weak else 1) * self.one / seconds
        )

    def compute(self, p: int) -> tuple[float, float]:
        """Return the compute of each rank, and that part of it which grows with its batch; ranks
        that share a processor take turns.
        """
        turns = max(p / self.processors, 1.0)
        spread = (
            self.one * (1 - self.serial) * (turns if self.weak else 1 / min(p, self.processors))
        )
        return self.one * self.serial * turns + spread, spread

    def communication(self, p: int) -> float:
        """Return what ``collective_cost`` says of a ring all-reduce, without its result: a slider's
        move asks for thousands of these.
        """
        return 2 * (p - 1) * self.latency + 2 * (p - 1) / p * self.nbytes / self.bandwidth

    def best(self) -> int | None:
        """Return from where one more rank no longer helps.

        Without turns the time of a strong step is the larger of two functions a + b / p + c p, so
        it falls and then rises for good, and the first rank that does not help is found by halving.
        Where ranks take turns, none helps.
        """
        if self.weak:
            return self.most_of_weak()[0]
        if self.latency == 0 and self.processors >= MOST_RANKS:
            # Then T(p) falls towards a bound or not at all; differences would drown in rounding.
            # With overlap a third of the compute (the forward pass) stays beside the communication
            # that nothing hides any more, without it all of the compute.
            divides = self.one * (1 - self.serial) * (1 - BACKWARD_SHARE if self.overlap else 1)
            if divides > 2 * self.nbytes / self.bandwidth:
                return None
        return _first(lambda p: self.point(p + 1).seconds >= self.point(p).seconds)

    def limit(self) -> float:
        """Return the speed-up that no number of ranks exceeds."""
        if self.weak:
            return self.most_of_weak()[1]
        best = self.best()
        if best is not None:
            return self.point(best).speedup
        # no latency, or each rank would not help
        left = self.one * self.serial + 2 * self.nbytes / self.bandwidth
        return self.one / left if left else math.inf

    def most_of_weak(self) -> tuple[int | None, float]:
        """Return the fastest number of ranks of a weak step and its speed-up; None and the bound
        where ever more ranks come nearer to it.

        Over u = 1 / p a rank's share of the step is the larger of two concave functions: all that
        may hide is hidden, or the backward pass is too short for it. The second is the larger from
        some p on. So the least is at an end of one of the two pieces: one rank, both sides of where
        they meet, as many ranks as processors, or without end.
        """
        own = self.processors >= MOST_RANKS  # then no rank takes turns
        full = _first(lambda p: self._fills(min(p, self.processors)))
        ends = sorted(
            {1, *(() if full is None else (full - 1, full)), *(() if own else (self.processors,))}
        )
        best = max(ends, key=lambda p: self.point(p).speedup)
        turn, wait = 0.0 if own else self.one / self.processors, 2 * self.latency
        a_rank = turn + wait - min(self.overlap * wait, BACKWARD_SHARE * (1 - self.serial) * turn)
        bound, reached = self.one / a_rank if a_rank else math.inf, self.point(best).speedup
        # Where the two are one number, as for a link that costs nothing, rounding must not decide.
        return (None if bound > reached * (1 + 1e-12) else best), max(bound, reached)

    def _fills(self, p: int) -> bool:
        """Whether the backward pass is too short for the communication that may hide behind it."""
        return self.overlap * self.communication(p) > BACKWARD_SHARE * self.compute(p)[1]

    @property
    def assumptions(self) -> str:
        batch = "each rank has the batch of one" if self.weak else "the batch is divided evenly"
        link = (
            f"{format_seconds(self.latency)} a message and "
            f"{format_bytes_per_second(self.bandwidth)}"
        )
        turns = (
            "" if self.processors >= MOST_RANKS else f"; ranks beyond {self.processors} take turns"
        )
        return (
            f"{batch}; compute takes {format_seconds(self.one)} on one rank; a ring averages "
            f"{format_bytes(self.nbytes)} of gradients over links of {link}, "
            f"{100 * self.overlap:.3g} % of it at most during the backward pass{turns}"
        )


def _first(ends: Callable[[int], bool]) -> int | None:
    """Return the first number of ranks for which a condition holds that, once it holds, goes on
    holding; None if it never does.
    """
    if not ends(MOST_RANKS):
        return None
    low, high = 0, MOST_RANKS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ends(middle) else (middle, high)
    return high


def _ranks(function: str, ranks: Any) -> list[int]:
    is_one = is_whole(ranks) or isinstance(ranks, bool)
    several = [ranks] if is_one else items(function, "ranks", ranks)
    if not several:
        raise InputError(
            f"{function}: no number of ranks was given; expected at least one. Pass ranks=8, or a "
            "list such as [1, 2, 4, 8]."
        )
    return sorted({int(_number(function, "ranks", each, _COUNT)) for each in several})


def _number(function: str, name: str, value: Any, *kinds: _Kind) -> float:
    """Return a number that is of all these kinds."""
    for kind in kinds:
        least, most, expected = kind
        is_right = is_finite(value) and least <= value <= most
        if not is_right or (kind is _COUNT and value != int(value)):
            raise InputError(
                f"{function}: {name} is {shown(value)}; expected {expected.format(name=name)}"
            )
    return float(value)
