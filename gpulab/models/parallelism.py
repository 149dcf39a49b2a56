"""The costs of parallel work: collectives, the speed-up from more ranks, and pipelines.

The module only computes; ``gpulab.parallel`` compares its results with those of real ranks.

Collectives: a message of m bytes takes alpha + m / bandwidth, a rank sends one message and receives
one at a time, and links are not shared. The payload is the whole tensor, as NVIDIA's nccl-tests
count it: an all-gather's result, a reduce-scatter's input.

Scaling: Amdahl's law, Gustafson's, and a data-parallel step.

Pipelines: stages are parts of one model, each on a processor of its own; a batch is cut into
microbatches that pass through them. (``gpulab.training.pipeline`` is about a different pipeline,
which loads training data.) A schedule is only an order of forward and backward passes for each
stage. The times follow from what each pass waits for, so the bubble is counted and can be compared
with the formula.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from gpulab._validate import arguments, is_finite, is_whole, items, whole, within, word
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result, Table
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

# Collectives.

# More ranks than any training run has had; the search for the best number of ranks ends here.
MOST_RANKS = 2**20
# Checks of arguments: numbers above 0, shares, numbers of ranks; bytes per second below.
_ABOVE_0 = partial(within, low=1e-30)
_SHARE = partial(within, high=1)
_COUNT_OF_RANKS = partial(whole, low=1, high=MOST_RANKS)


def _rate(function: str, name: str, value: Any) -> float:
    """Return bytes per second, above 0 or infinite."""
    return math.inf if value == math.inf else _ABOVE_0(function, name, value)


# Measured with links limited by token buckets of the kernel (tc-tbf), on the two cores of an AMD
# EPYC, 2026-11-22.
_KNOWN_ERROR = (
    "links set to 5 to 100 MB/s among 2 and 4 ranks: the ring's fit gives 0.97 to 1.05 times that; "
    "gloo's root sends to its children at the same time over one link, so its broadcast took three "
    "steps where the tree has two"
)
_SOURCE = (
    "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, "
    "International Journal of High Performance Computing Applications 19 (2005), 49"
)
# Which of the algorithms of ``collective_cost`` gloo uses. Source: gloo/allreduce.cc, allgather.cc,
# broadcast.cc, reduce.cc, gather.cc, scatter.cc, alltoall.cc, barrier.cc; PyTorch does a
# reduce_scatter by one all-reduce, and that of a list by one all-reduce for each part
# (ProcessGroupGloo.cpp).
GLOO_ALGORITHMS = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring all-reduce",
    "broadcast": "tree",
    "reduce": "ring",
    "gather": "direct",
    "scatter": "direct",
    "all_to_all": "direct",
    "barrier": "dissemination",
}


class _Algorithm(NamedTuple):
    """One algorithm of a collective: messages in turn among p ranks; shares of the payload in turn,
    and sent by rank v, counted from the root.
    """

    steps: Callable[[int], int]
    critical: Callable[[int], float]
    sent: Callable[[int, int], float]
    words: str


def _log_up(p: int) -> int:
    return (p - 1).bit_length()  # the logarithm to base 2, rounded up


def _others(p: int, v: int = 0) -> int:
    """Return the number of the other ranks."""
    return p - 1


def _part(p: int, v: int = 0) -> float:
    """Return the share of the payload that belongs to the other ranks, where all parts are
    equal.
    """
    return (p - 1) / p


def _two_parts(p: int, v: int = 0) -> float:
    """Return the share of the payload that a reduce-scatter and an all-gather move together."""
    return 2 * (p - 1) / p


def _children(p: int, v: int) -> int:
    """Return how many ranks get the message from rank v of a binomial tree, where the number of
    ranks that have the message doubles with each step.
    """
    return sum(1 for bit in range(v.bit_length(), _log_up(p)) if v + (1 << bit) < p)


_TREE_WORDS = (
    "binomial tree: the number of ranks that have the data doubles with each message in turn"
)
# operation -> algorithm -> messages in turn, share of the payload in turn, share that a rank sends
_ALGORITHMS: dict[str, dict[str, _Algorithm]] = {
    "all_reduce": {
        "ring": _Algorithm(
            lambda p: 2 * (p - 1),
            _two_parts,
            _two_parts,
            "ring: a reduce-scatter, then an all-gather, each passing parts of 1 / ranks from "
            "neighbor to neighbor",
        ),
        "tree": _Algorithm(
            lambda p: 2 * _log_up(p),
            lambda p: 2 * _log_up(p),
            lambda p, v: (v > 0) + _children(p, v),
            "tree: the whole reduced up a binomial tree, then sent down it",
        ),
    },
    "all_gather": {
        "ring": _Algorithm(
            _others, _part, _part, "ring: each rank's part passed from neighbor to neighbor"
        ),
    },
    "reduce_scatter": {
        "ring": _Algorithm(
            _others, _part, _part, "ring: parts passed on, each rank adding its own"
        ),
        "ring all-reduce": _Algorithm(
            lambda p: 2 * (p - 1),
            _two_parts,
            _two_parts,
            "a ring all-reduce, of which each rank keeps its part",
        ),
    },
    "broadcast": {
        "tree": _Algorithm(_log_up, _log_up, _children, _TREE_WORDS),
    },
    "reduce": {
        "ring": _Algorithm(
            lambda p: 2 * (p - 1),
            _two_parts,
            lambda p, v: p > 1 if v else _part(p),
            "a ring reduce-scatter, then each rank sends its part to the root",
        ),
        "tree": _Algorithm(
            _log_up,
            _log_up,
            lambda p, v: v > 0,
            "binomial tree: the number of ranks that still hold a sum halves with each message in "
            "turn",
        ),
    },
    "gather": {
        "direct": _Algorithm(
            _others,
            _part,
            lambda p, v: 1 / p if v else 0,
            "direct: each rank sends its part to the root",
        ),
    },
    "scatter": {
        "direct": _Algorithm(
            _others,
            _part,
            lambda p, v: 0 if v else _part(p),
            "direct: the root sends each rank its part",
        ),
    },
    "all_to_all": {
        "direct": _Algorithm(
            _others, _part, _part, "direct: each rank sends each other rank its part"
        ),
    },
    "barrier": {
        "dissemination": _Algorithm(
            _log_up,
            lambda p: 0,
            lambda p, v: 0,
            "dissemination: a word to the rank 1, 2, 4, ... ahead",
        ),
    },
}
OPERATIONS = tuple(_ALGORITHMS)


@dataclass(frozen=True, repr=False)
class CollectiveCost(Result):
    """One collective by one algorithm.

    Attributes
    ----------
    operation, algorithm : str
    nbytes : float
        The payload: the whole tensor.
    ranks : int
    steps : int
        Messages in turn on the longest path: each costs the latency.
    critical_bytes : float
        Bytes in turn on that path: they pass at the bandwidth.
    latency_seconds, bandwidth_bytes_per_second : float
    evidence : Evidence
        MODELLED.
    """

    operation: str
    algorithm: str
    nbytes: float
    ranks: int
    steps: int
    critical_bytes: float
    latency_seconds: float
    bandwidth_bytes_per_second: float
    evidence: Evidence

    columns: ClassVar = {
        "collective": lambda c: f"{c.operation} of {format_bytes(c.nbytes)}, {c.ranks} ranks",
        "algorithm": lambda c: c.algorithm,
        "messages in turn": lambda c: c.steps,
        "bytes in turn": lambda c: format_bytes(c.critical_bytes),
        "sent by rank 0": lambda c: format_bytes(c.sent_bytes(0)),
        "time": lambda c: format_seconds(c.seconds),
    }

    @property
    def seconds(self) -> float:
        """Steps times latency, and the bytes in turn at the bandwidth."""
        return (
            self.steps * self.latency_seconds
            + self.critical_bytes / self.bandwidth_bytes_per_second
        )

    def sent_bytes(self, rank: int, root: int = 0) -> float:
        """Return the bytes that one rank sends, without headers; ``root`` matters to operations
        that have one.

        Raises
        ------
        InputError
            If ``rank`` or ``root`` is not one of the ranks.
        """
        from_root = whole("sent_bytes", "rank", rank, 0, self.ranks - 1) - whole(
            "sent_bytes", "root", root, 0, self.ranks - 1
        )
        how = _ALGORITHMS[self.operation][self.algorithm]
        return self.nbytes * how.sent(self.ranks, from_root % self.ranks)

    def __repr__(self) -> str:
        return (
            f"<{self.operation} of {format_bytes(self.nbytes)} among {plural(self.ranks, 'rank')} "
            f"by {self.algorithm}: {plural(self.steps, 'message')} and "
            f"{format_bytes(self.critical_bytes)} in turn, {format_seconds(self.seconds)}>"
        )


@arguments(
    operation=partial(word, known=OPERATIONS),
    nbytes=within,
    ranks=_COUNT_OF_RANKS,
    latency_seconds=within,
    bandwidth_bytes_per_second=_rate,
)
def collective_cost(
    operation: str,
    nbytes: float,
    ranks: int,
    algorithm: str | None = None,
    *,
    latency_seconds: float = 0.0,
    bandwidth_bytes_per_second: float = math.inf,
) -> CollectiveCost:
    """Return what a collective costs by one algorithm.

    Parameters
    ----------
    operation : str
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
        "all_to_all" or "barrier".
    nbytes : float
        The payload: the whole tensor (an all-gather's result, a reduce-scatter's input), 0 or more.
    ranks : int
        1 to 1,048,576.
    algorithm : str, optional
        "ring" or "tree" for an all-reduce or a reduce; "ring" or "ring all-reduce" (gloo's) for a
        reduce-scatter. The other operations have one algorithm each. None takes the ring where
        there is one. (A reduce's ring is gloo's: a reduce-scatter, then a message to the root from
        each rank. NCCL passes a reduce and a broadcast along a ring piece by piece, in about one
        payload's time for long messages, which is not modelled here.)
    latency_seconds, bandwidth_bytes_per_second : float
        Of one message between two ranks (alpha and 1 / beta); by default only bytes and steps are
        counted.

    Returns
    -------
    CollectiveCost

    Raises
    ------
    InputError
        If a name is not known or a number is not valid.

    Examples
    --------
    >>> link = {"latency_seconds": 10e-6, "bandwidth_bytes_per_second": 100e9}
    >>> ring = collective_cost("all_reduce", 400e6, 8, "ring", **link)
    >>> ring.steps, ring.sent_bytes(3), round(ring.seconds * 1e3, 2)
    (14, 700000000.0, 7.14)
    >>> collective_cost("all_reduce", 400e6, 8, "tree").critical_bytes
    2400000000.0

    Notes
    -----
    The reduction's own arithmetic is left out: it is bound by memory, and mostly hides behind the
    messages. Source: Thakur, Rabenseifner and Gropp 2005, International Journal of High Performance
    Computing Applications 19, 49, sections 3 and 4.
    """
    by_name = _ALGORITHMS[operation]
    algorithm = (
        next(iter(by_name))
        if algorithm is None
        else word("collective_cost", f"algorithm of {operation}", algorithm, tuple(by_name))
    )
    how = by_name[algorithm]
    evidence = Evidence.modelled(
        f"{how.words}; a message costs a latency and its bytes over the bandwidth, a rank sends "
        "and receives one at a time, links are not shared, reducing costs nothing",
        _SOURCE,
        _KNOWN_ERROR,
    )
    return CollectiveCost(
        operation,
        algorithm,
        nbytes,
        ranks,
        how.steps(ranks),
        nbytes * how.critical(ranks),
        latency_seconds,
        bandwidth_bytes_per_second,
        evidence,
    )


def collective_message(
    operation: str,
    ranks: int,
    algorithm: str,
    *,
    latency_seconds: float,
    bandwidth_bytes_per_second: float,
) -> tuple[float, float]:
    """Return (latency in seconds, bytes per second) of one message between two ranks, from a line
    fitted to the times of whole collectives.

    The line is A + n / B seconds for a payload of n bytes. If the collective has s messages in turn
    that carry c times the payload, a message has the latency A / s and the link the bandwidth c B.
    This is the inverse of `collective_cost`.

    Parameters
    ----------
    operation, ranks, algorithm
        As in `collective_cost`; at least two ranks.
    latency_seconds, bandwidth_bytes_per_second : float
        A and B of the line; a latency below 0, which a fit may return, counts as 0.

    Raises
    ------
    InputError
        As `collective_cost`, or if the collective sends nothing.

    Examples
    --------
    >>> line = {"latency_seconds": 60e-6, "bandwidth_bytes_per_second": 1e9}
    >>> collective_message("all_reduce", 4, "ring", **line)
    (1e-05, 1500000000.0)
    """
    cost = collective_cost(operation, 1.0, ranks, algorithm)
    if cost.steps == 0 or cost.critical_bytes == 0:
        raise InputError(
            f"collective_message: {operation} among {ranks} ranks sends nothing; expected "
            "messages. Pass two ranks or more."
        )
    return max(latency_seconds, 0.0) / cost.steps, bandwidth_bytes_per_second * cost.critical_bytes


# Scaling.

Mode = Literal["strong", "weak"]
MODES = ("strong", "weak")
# The backward pass has two matrix products for each one of the forward pass, and gradients are
# ready only there. Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section
# 2.1: 2 N operations a token forward, 4 N backward.
BACKWARD_SHARE = 2 / 3
_WITHOUT_END = 2.0**100  # so many ranks that the speed-up has reached its limit
_NO_BOUND = 2.0**50  # a limit from here on counts as infinite
_ROUNDING = 1e-13  # relative


class ScalingPoint(NamedTuple):
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
        Work per second, divided by that of one rank.
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


class PointsByRanks:
    """The base of a scaling model and of a scaling measurement: points, each at one number of
    ranks.
    """

    points: tuple[Any, ...]

    def at(self, ranks: int) -> Any:
        """Return the point at a number of ranks.

        Raises
        ------
        InputError
            If there is none.
        """
        there = {point.ranks: point for point in self.points}
        if ranks not in there:
            raise InputError(
                f"at: {shown(ranks)} ranks are not among the points "
                f"({', '.join(map(str, there))}); expected one of them. Pass one."
            )
        return there[ranks]


@dataclass(frozen=True, repr=False)
class ScalingCurve(PointsByRanks, Result):
    """A model of scaling, at the requested numbers of ranks.

    Attributes
    ----------
    law : str
        "Amdahl", "Gustafson" or "ring all-reduce".
    mode : str
        "strong": the work stays the same, and each rank does a part of it. "weak": each rank does
        as much work as one rank alone.
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

    def __repr__(self) -> str:
        last = self.points[-1]
        return (
            f"<{self.label}: {format_ratio(last.speedup)} on {plural(last.ranks, 'rank')}, at most "
            f"{format_ratio(self.limit_speedup)}>"
        )


@arguments(serial_share=_SHARE, seconds=_ABOVE_0)
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
    parts = {p: serial_share + (1 - serial_share) / p for p in _ranks("amdahl", ranks)}
    points = [ScalingPoint(p, seconds * x, seconds * x, 0.0, 0.0, 1 / x) for p, x in parts.items()]
    evidence = Evidence.modelled(
        f"{100 * serial_share:.3g} % of the time on one rank cannot be divided, the rest divides "
        "evenly, and communication costs nothing",
        "Amdahl, AFIPS Spring Joint Computer Conference (1967)",
    )
    return ScalingCurve(
        "Amdahl",
        "strong",
        tuple(points),
        1 if serial_share == 1 else None,
        1 / serial_share if serial_share else math.inf,
        evidence,
    )


@arguments(serial_share=_SHARE, seconds=_ABOVE_0)
def gustafson(
    serial_share: float, ranks: int | Iterable[int], *, seconds: float = 1.0
) -> ScalingCurve:
    """Return Gustafson's law: the time stays the same, and the part that divides grows with the
    ranks.

    Parameters
    ----------
    serial_share : float
        The serial share of the time that the ranks take, 0 to 1.
    ranks : int or iterable of int
        One number, or several, each from 1 to 1,048,576.
    seconds : float
        The time of the work, on one rank and on many.

    Returns
    -------
    ScalingCurve
        Speed-up s + (1 - s) ranks: relative to one rank that does the whole larger work, with its
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
    points = [
        ScalingPoint(p, seconds, seconds, 0.0, 0.0, serial_share + (1 - serial_share) * p)
        for p in _ranks("gustafson", ranks)
    ]
    evidence = Evidence.modelled(
        f"{100 * serial_share:.3g} % of the time is serial and does not grow, the rest grows with "
        "the ranks, and communication costs nothing",
        "Gustafson, Communications of the ACM 31 (1988)",
    )
    return ScalingCurve(
        "Gustafson",
        "weak",
        tuple(points),
        1 if serial_share == 1 else None,
        1.0 if serial_share == 1 else math.inf,
        evidence,
    )


@arguments(
    step_seconds=_ABOVE_0,
    parameter_bytes=within,
    latency_seconds=within,
    bandwidth_bytes_per_second=_rate,
    mode=partial(word, known=MODES),
    overlap=_SHARE,
    serial_share=_SHARE,
    processors=_COUNT_OF_RANKS,
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
    """Return the scaling of a data-parallel step that averages its gradients by a ring all-reduce.

    Parameters
    ----------
    step_seconds : float
        A step on one rank, which averages nothing.
    parameter_bytes : float
        Of the model's parameters, and so of its gradients: the payload of the all-reduce.
    latency_seconds, bandwidth_bytes_per_second : float
        Of one message between two neighboring ranks (alpha and 1 / beta); with an infinite
        bandwidth only the latency counts.
    ranks : int or iterable of int
        One number, or several, each from 1 to 1,048,576.
    mode : str
        "strong": the global batch stays the same, and each rank takes a part of it. "weak": each
        rank has as large a batch as one rank alone.
    overlap : float
        The share of the communication that may overlap with the backward pass, 0 to 1; the ranks
        wait for the rest.
    serial_share : float
        The share of ``step_seconds`` that each rank repeats regardless of the size of its batch,
        such as the optimizer's update; 0 to 1.
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
    >>> round(c.at(8).communication_seconds * 1e3, 3), round(c.at(8).efficiency, 3)
    (7.14, 0.933)

    Notes
    -----
    A ring of p ranks passes 2 (p - 1) messages of 1 / p of the payload, in turn: 2 (p - 1) (alpha +
    bytes / p / bandwidth). Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", Journal of Parallel and Distributed Computing 69 (2009). The backward
    pass is two thirds of the compute (Kaplan et al. 2020); communication that takes longer is not
    hidden.
    """
    weak, places = mode == "weak", math.inf if processors is None else processors

    def step(p: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return the fields of a `ScalingPoint` after ``ranks``, for a number of ranks or an
        array.
        """
        turns = np.maximum(p / places, 1.0)  # of ranks that share a processor
        # the part of the compute that grows with a rank's batch
        divided = step_seconds * (1 - serial_share)
        spread = divided * (turns if weak else 1 / np.minimum(p, places))
        compute = step_seconds * serial_share * turns + spread
        # as ``collective_cost`` computes a ring all-reduce
        wire = 2 * (p - 1) / p * parameter_bytes / bandwidth_bytes_per_second
        moved = 2 * (p - 1) * latency_seconds + wire
        exposed = moved - np.minimum(overlap * moved, BACKWARD_SHARE * spread)
        seconds = compute + exposed
        return seconds, compute, moved, exposed, (p if weak else 1) * step_seconds / seconds

    def fastest(tried: Any) -> float:
        """Return the number of ranks with the highest speed-up; the first of them where the
        speed-ups differ only by rounding.
        """
        speedups = step(tried)[-1]
        return float(tried[np.argmax(speedups >= speedups.max() * (1 - _ROUNDING))])

    most = min(places, MOST_RANKS)
    near = fastest(np.unique(np.geomspace(1, most, 4096).round()))  # 0.4 % apart at most
    best: int | None = int(fastest(np.arange(max(near // 1.01, 1), min(1.01 * near, most) + 1)))
    reached = float(step(best)[-1])
    bound = float(step(_WITHOUT_END)[-1])
    if bound > reached * (1 + _ROUNDING):
        best, reached = None, bound if bound < _NO_BOUND else math.inf
    batch = "each rank has the batch of one" if weak else "the batch is divided evenly"
    rate = format_bytes_per_second(bandwidth_bytes_per_second)
    shared = "" if places == math.inf else f"; ranks beyond {places} take turns"
    evidence = Evidence.modelled(
        f"{batch}; compute takes {format_seconds(step_seconds)} on one rank; a ring averages "
        f"{format_bytes(parameter_bytes)} of gradients over links of "
        f"{format_seconds(latency_seconds)} a message and {rate}, "
        f"at most {100 * overlap:.3g} % of this communication during the backward pass{shared}",
        "ring all-reduce: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009)",
    )
    points = tuple(ScalingPoint(p, *map(float, step(p))) for p in _ranks("scaling", ranks))
    return ScalingCurve(
        "ring all-reduce", "weak" if weak else "strong", points, best, reached, evidence
    )


def _ranks(function: str, ranks: Any) -> list[int]:
    is_one = is_whole(ranks) or isinstance(ranks, bool)
    several = [ranks] if is_one else items(function, "ranks", ranks, "ranks=[1, 2, 4, 8]")
    return sorted({whole(function, "ranks", each, 1, MOST_RANKS) for each in several})


# Pipelines.

PassKind = Literal["forward", "backward"]
PIPELINE_SCHEDULES = ("split", "gpipe", "1f1b", "interleaved")
# More passes than this cannot be read in a picture, and would delay a slider.
MOST_PASSES = 100_000
_MOST_COST = 1e9
_SOURCES = {
    "split": "dependencies alone: a layer needs the output of the one before it",
    "gpipe": "Huang et al., GPipe, NeurIPS 2019, section 2.3 (arXiv 1811.06965)",
    "1f1b": "Narayanan et al., PipeDream, SOSP 2019; with flushes as in Megatron-LM, SC 2021, "
    "section 2.2.1 (arXiv 2104.04473)",
    "interleaved": "Narayanan et al., Megatron-LM, SC 2021, section 2.2.2 (arXiv 2104.04473)",
}
_ASSUMPTIONS = "passes take the given times, a stage does one at a time, messages only add a delay"
_SCHEDULE_KNOWN_ERROR = (
    "gl.parallel.run_schedule runs PyTorch's own schedules and compares the measured times with "
    "this model"
)


@dataclass(frozen=True)
class StagePass(Result):
    """One forward or backward pass of one stage.

    Attributes
    ----------
    stage : int
        The processor that works, from 0.
    kind : "forward" or "backward"
    microbatch : int
        From 0; the first of them where the pass takes several at once.
    count : int
        Microbatches in this pass: all of them where the batch is not cut.
    chunk : int
        Which of the stage's parts of the model; 0 except in the interleaved schedule.
    begin, end : float
        In the unit of the costs.
    """

    stage: int
    kind: PassKind
    microbatch: int
    count: int
    chunk: int
    begin: float
    end: float

    @property
    def duration(self) -> float:
        """``end - begin``, in the unit of the costs."""
        return self.end - self.begin

    @property
    def name(self) -> str:
        """A short name: "F3" is the forward of microbatch 3, "F3'1" its forward in the second
        chunk, "B" the backward of an uncut batch.
        """
        number = str(self.microbatch) if self.count == 1 else ""
        return f"{self.kind[0].upper()}{number}" + (f"'{self.chunk}" if self.chunk else "")


class StagePasses:
    """The base of a pipeline's timetable and of a measured run of a pipeline."""

    stages: int
    chunks: int
    passes: tuple[StagePass, ...]

    @property
    def duration(self) -> float:
        """From the first forward's begin to the last backward's end, in the unit of the passes."""
        return max(one.end for one in self.passes)

    def of_stage(self, stage: int) -> tuple[StagePass, ...]:
        """Return the passes of one stage, in the order in which it does them."""
        return tuple(one for one in self.passes if one.stage == stage)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each stage works, in the unit of the passes."""
        return tuple(
            sum(one.duration for one in self.of_stage(stage)) for stage in range(self.stages)
        )

    @property
    def held(self) -> tuple[float, ...]:
        """The most microbatches whose activations each stage holds at once: from a forward's begin
        until its backward's end.

        With several chunks, the activations of one chunk count as 1 / ``chunks`` of a microbatch,
        so the number may be a fraction.
        """
        most = [
            max(
                itertools.accumulate(
                    one.count if one.kind == "forward" else -one.count
                    for one in self.of_stage(stage)
                )
            )
            for stage in range(self.stages)
        ]
        return tuple(most) if self.chunks == 1 else tuple(each / self.chunks for each in most)


@dataclass(frozen=True, repr=False)
class StageSchedule(StagePasses, Result):
    """The times of all passes of a pipeline's stages, for one batch from the first forward to the
    last backward.

    Attributes
    ----------
    schedule : str
        One of ``PIPELINE_SCHEDULES``.
    stages, microbatches, chunks : int
        ``chunks``: parts of the model that a stage holds; 1 except in the interleaved schedule.
    forward, backward : tuple of float
        Cost of one microbatch's pass through all of a stage, one number per stage, in any unit of
        time.
    transfer : float
        From the end of a pass until the next stage has its output, in the same unit.
    passes : tuple of StagePass
        In the order of their begin.
    evidence : Evidence
        MODELLED.
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    transfer: float
    passes: tuple[StagePass, ...]
    evidence: Evidence

    @property
    def bubble_ratio(self) -> float:
        """The share of all stages' time in which they wait, counted in the timetable; 0 to 1."""
        # rounding can give a little less than 0
        return max(0.0, 1 - sum(self.busy) / (self.stages * self.duration))

    @property
    def bubble_formula_ratio(self) -> float | None:
        """The bubble ratio by the formula, which ignores the time of transfers; None for uneven
        stages, to which the formula does not apply.
        """
        if len(set(self.forward)) > 1 or len(set(self.backward)) > 1:
            return None
        if self.schedule == "split":
            return 1 - 1 / self.stages
        return (self.stages - 1) / (self.chunks * self.microbatches + self.stages - 1)

    @property
    def bubble_formula(self) -> str:
        """The formula as text, for p stages, m microbatches and v chunks."""
        return {"split": "(p - 1) / p", "interleaved": "(p - 1) / (v m + p - 1)"}.get(
            self.schedule, "(p - 1) / (m + p - 1)"
        )

    @property
    def speedup(self) -> float:
        """The speed-up over one processor that does all passes one after the other."""
        return sum(self.busy) / self.duration

    def __repr__(self) -> str:
        return (
            f"<{self.schedule} of {self.stages} stages and {self.microbatches} microbatches: "
            f"bubble {self.bubble_ratio:.1%}, at most {max(self.held):g} microbatches held>"
        )

    def table(self) -> Table:
        """Return one row per stage, then the bubble counted and by formula."""
        whole = self.duration
        rows = [
            (f"stage {stage}", f"{busy:g} of {whole:g}", f"{1 - busy / whole:.1%}", f"{held:g}")
            for stage, (busy, held) in enumerate(zip(self.busy, self.held, strict=True))
        ]
        formula = self.bubble_formula_ratio
        rows += [
            (
                "all stages",
                f"{sum(self.busy):g} of {self.stages * whole:g}",
                f"{self.bubble_ratio:.1%}",
                f"{max(self.held):g}",
            ),
            (
                "by formula",
                self.bubble_formula,
                "none: uneven stages" if formula is None else f"{formula:.1%}",
                "",
            ),
        ]
        return (self.schedule, "works", "waits (bubble)", "microbatches held at most"), rows


@arguments(
    stages=partial(whole, low=1, high=MOST_PASSES, advice="Pass for example stages=4."),
    microbatches=partial(whole, low=1, high=MOST_PASSES, advice="Pass for example microbatches=8."),
    schedule=partial(word, known=PIPELINE_SCHEDULES),
    transfer=partial(within, high=_MOST_COST),
    chunks=partial(whole, low=1, high=MOST_PASSES),
)
def pipeline_schedule(
    stages: int,
    microbatches: int,
    schedule: str = "gpipe",
    *,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 2.0,
    transfer: float = 0.0,
    chunks: int | None = None,
) -> StageSchedule:
    """Return the times of all passes of a pipeline's stages, and with them the bubble and the
    activations held.

    Parameters
    ----------
    stages : int
        Parts of the model (p), each on a processor of its own.
    microbatches : int
        Parts of the batch (m).
    schedule : "split", "gpipe", "1f1b" or "interleaved"
        ``split``: the batch goes through uncut, one stage works at a time. ``gpipe``: all forwards,
        then all backwards. ``1f1b``: after a few forwards to warm up, each stage does one forward
        and one backward in turn. ``interleaved``: 1F1B with several parts of the model per stage.
    forward, backward : float or one number per stage
        Cost of one microbatch's pass through a stage, in any unit of time.
    transfer : float
        From the end of a pass until the next stage has its output.
    chunks : int, optional
        Parts of the model that a stage holds in the interleaved schedule; 2 if not given.

    Returns
    -------
    StageSchedule
        ``bubble_ratio`` is counted, ``bubble_formula_ratio`` is computed by the formula, and
        ``held`` has a number for each stage.

    Raises
    ------
    InputError
        If a count is not a whole number of at least 1, a cost is not a positive number, the
        schedule is not known, or the interleaved schedule is not possible (its microbatches must be
        a multiple of the stages).

    Notes
    -----
    Sources: Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream, SOSP 2019, and
    "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021. As
    in PyTorch, GPipe's backwards take the microbatches in the order of the forwards; the paper
    draws them the other way round, with the same bubble.

    Examples
    --------
    >>> s = pipeline_schedule(4, 8, "1f1b")
    >>> round(s.bubble_ratio, 4) == round(3 / 11, 4), s.held
    (True, (4, 3, 2, 1))
    >>> pipeline_schedule(4, 8, "gpipe").held
    (8, 8, 8, 8)
    >>> two = pipeline_schedule(2, 2, "1f1b", forward=1, backward=1)
    >>> [f"{one.name} at {one.begin:g}" for one in two.of_stage(1)]
    ['F0 at 1', 'B0 at 2', 'F1 at 3', 'B1 at 4']
    """
    if schedule != "interleaved":
        if chunks not in (None, 1):
            raise InputError(
                f"pipeline_schedule: chunks is {shown(chunks)} in the {schedule} schedule; "
                "expected it only in the interleaved one. "
                'Leave it out, or pass schedule="interleaved".'
            )
    elif microbatches % stages:
        raise InputError(
            f"pipeline_schedule: {plural(microbatches, 'microbatch', 'microbatches')} over "
            f"{stages} stages; the interleaved schedule expects a multiple of the stages. Pass "
            f"microbatches={stages * math.ceil(microbatches / stages)}."
        )
    parts = chunks or (2 if schedule == "interleaved" else 1)
    passes = 2 * stages * microbatches * parts
    if passes > MOST_PASSES:
        raise InputError(
            f"pipeline_schedule: {stages:,} stages and {microbatches:,} microbatches make "
            f"{passes:,} passes; expected at most {MOST_PASSES:,}. Pass fewer microbatches."
        )
    costs = {
        "forward": _costs("forward", forward, stages),
        "backward": _costs("backward", backward, stages),
    }
    orders = [_order(schedule, stage, stages, microbatches, parts) for stage in range(stages)]
    timed = _timetable(orders, costs, transfer, parts)
    return StageSchedule(
        schedule,
        stages,
        microbatches,
        parts,
        costs["forward"],
        costs["backward"],
        transfer,
        timed,
        Evidence.modelled(_ASSUMPTIONS, _SOURCES[schedule], _SCHEDULE_KNOWN_ERROR),
    )


def _costs(name: str, given: Any, stages: int) -> tuple[float, ...]:
    several = list(given) if isinstance(given, (tuple, list)) else [given] * stages
    if len(several) != stages or not all(
        is_finite(one) and 0 < one <= _MOST_COST for one in several
    ):
        raise InputError(
            f"pipeline_schedule: {name} is {shown(given)}; expected a positive number, or one for "
            f"each of the {stages} stages. Pass for example "
            f"{name}={'1.0' if name == 'forward' else '2.0'}."
        )
    return tuple(float(one) for one in several)


# A pass that has no time yet: kind, first microbatch, how many, chunk.
_Order = list[tuple[PassKind, int, int, int]]


def _order(name: str, stage: int, stages: int, microbatches: int, chunks: int) -> _Order:
    """Return the passes of one stage in order: forwards to warm up, then a backward after each
    forward, then the remaining backwards.
    """
    together = microbatches if name == "split" else 1
    # A group of as many microbatches as there are stages goes through one chunk after the other;
    # then the next group follows.
    places = [
        (k, chunk)
        for first in range(0, microbatches // together, stages)
        for chunk in range(chunks)
        for k in range(first, min(first + stages, microbatches // together))
    ]
    forwards: _Order = [("forward", k, together, chunk) for k, chunk in places]
    backwards: _Order = [("backward", k, together, chunks - 1 - chunk) for k, chunk in places]
    distance = stages - 1 - stage
    # The interleaved warm-up is Megatron-LM's: twice the distance to the last stage, so that sends
    # overlap, and a group of microbatches for each chunk but the last.
    warm_up = {"1f1b": distance, "interleaved": 2 * distance + (chunks - 1) * stages}
    first = min(warm_up.get(name, len(places)), len(places))
    pairs = zip(forwards[first:], backwards, strict=False)
    return [
        *forwards[:first],
        *(one for pair in pairs for one in pair),
        *backwards[len(forwards) - first :],
    ]


def _timetable(
    orders: Sequence[_Order], costs: dict[str, tuple[float, ...]], transfer: float, chunks: int
) -> tuple[StagePass, ...]:
    """Return the passes with their times: each stage begins its next pass as soon as it is free and
    the pass's input has arrived.
    """
    stages = len(orders)
    last = stages * chunks - 1
    delay = transfer if stages > 1 else 0.0
    # When the pass of (kind, part of the model, microbatch) ended; parts count from the model's
    # input. The entries for part -1 cancel the delay, since the first part waits for no message.
    ended = {("forward", -1, k): -delay for order in orders for _, k, _, _ in order}
    free, passes = [0.0] * stages, list[StagePass]()
    left = [collections.deque(order) for order in orders]
    while any(left):
        for stage, waiting in enumerate(left):
            while waiting:
                kind, k, count, chunk = waiting[0]
                part = chunk * stages + stage
                before = (kind, part + (1 if kind == "backward" else -1), k)
                if before[1] > last:  # the last part's backward follows its own forward
                    before = ("forward", part, k)
                if before not in ended:
                    break
                begin = max(free[stage], ended[before] + (0.0 if before[1] == part else delay))
                free[stage] = ended[kind, part, k] = begin + costs[kind][stage] * count / chunks
                passes.append(StagePass(stage, kind, k, count, chunk, begin, free[stage]))
                waiting.popleft()
    return tuple(sorted(passes, key=lambda one: (one.begin, one.stage, one.end)))
