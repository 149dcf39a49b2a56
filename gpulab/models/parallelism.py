"""The costs of parallel work: collectives, and the speed-up from more ranks.

Pure arithmetic, which ``gpulab.parallel`` compares with what real ranks do.

Collectives: a message of m bytes takes alpha + m / bandwidth, a rank sends and receives one at a
time, and links are not shared. The payload is the whole tensor, as NVIDIA's nccl-tests count it: an
all-gather's result, a reduce-scatter's input.

Scaling: Amdahl's law, Gustafson's, and a data-parallel step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from gpulab._validate import is_whole, items, whole, within, word
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

# Collectives.

# More ranks than any training run has had; the search for the best number of ranks ends here.
MOST_RANKS = 2**20
_LEAST = 1e-30  # of what must be above 0
# Measured with links limited by token buckets of the kernel (tc-tbf), on the two cores of an AMD
# EPYC, 2026-11-22.
_KNOWN_ERROR = (
    "links set to 5 to 100 MB/s among 2 and 4 ranks: the ring's fit gives 0.97 to 1.05 of them; "
    "gloo's root sends to its children at the same time over one link, so its broadcast took three "
    "steps where the tree has two"
)
_SOURCE = (
    "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, "
    "International Journal of High Performance Computing Applications 19 (2005), 49"
)
# Which of the algorithms of ``collective_cost`` gloo uses. Source: gloo/allreduce.cc, allgather.cc,
# broadcast.cc, reduce.cc, gather.cc, scatter.cc, alltoall.cc, barrier.cc; PyTorch does a
# reduce_scatter by one all-reduce (ProcessGroupGloo.cpp), of a list by one a part.
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
    """One way to do a collective; shares are of the payload, ``v`` is the rank counted from the
    root.
    """

    steps: Callable[[int], int]
    critical: Callable[[int], float]
    sent: Callable[[int, int], float]
    words: str
    powers_of_two: bool = False


def _log_up(p: int) -> int:
    return (p - 1).bit_length()


def _log_down(p: int) -> int:
    return p.bit_length() - 1


def _is_power(p: int) -> bool:
    return p & (p - 1) == 0


def _others(p: int, v: int = 0) -> int:
    """Return the number of the other ranks."""
    return p - 1


def _part(p: int, v: int = 0) -> float:
    """Return the share of the payload that the other ranks have, each its part."""
    return (p - 1) / p


def _two_parts(p: int, v: int = 0) -> float:
    """Return what a reduce-scatter and an all-gather move together."""
    return 2 * (p - 1) / p


def _folds(p: int) -> int:
    """Two more messages in turn where ranks beyond a power of two first hand their data to a
    neighbor, and get the result back.
    """
    return 0 if _is_power(p) else 2


def _children(p: int, v: int) -> int:
    """How many ranks get the message from rank v of a binomial tree, in which the ranks that have
    it double with each step.
    """
    return sum(1 for bit in range(v.bit_length(), _log_up(p)) if v + (1 << bit) < p)


def _scattered(p: int, v: int) -> float:
    """The share that rank v of a binomial scatter passes on: to each half of its block, that half's
    part.
    """
    lowest = _log_up(p) if v == 0 else (v & -v).bit_length() - 1
    blocks = ((v + (1 << bit), 1 << bit) for bit in range(lowest))
    return sum(max(min(first + size, p) - first, 0) for first, size in blocks) / p


def _halving(p: int) -> float:
    """What a rank exchanges by halving and doubling among the largest power of two of ranks."""
    return 2 * (1 - 2.0 ** -_log_down(p))


def _folded(inner: float, p: int, v: int) -> float:
    """What rank v sends where the 2 (p - 2**k) first ranks pair up: the even one hands over its
    data, the odd one works and hands back.
    """
    if v >= 2 * (p - (1 << _log_down(p))):
        return inner
    return 1.0 if v % 2 == 0 else inner + 1


_TREE_WORDS = "binomial tree: the ranks that have the data double with each message in turn"
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
        "recursive doubling": _Algorithm(
            lambda p: _log_down(p) + _folds(p),
            lambda p: _log_down(p) + _folds(p),
            lambda p, v: _folded(_log_down(p), p, v),
            "recursive doubling: the whole exchanged with the rank 1, 2, 4, ... away",
        ),
        "halving and doubling": _Algorithm(
            lambda p: 2 * _log_down(p) + _folds(p),
            lambda p: _halving(p) + _folds(p),
            lambda p, v: _folded(_halving(p), p, v),
            "Rabenseifner: a reduce-scatter by recursive halving, then an all-gather by recursive "
            "doubling",
        ),
        "direct": _Algorithm(
            _others, _others, _others, "direct: each rank sends the whole to each other rank"
        ),
    },
    "all_gather": {
        "ring": _Algorithm(
            _others, _part, _part, "ring: each rank's part passed from neighbor to neighbor"
        ),
        "doubling": _Algorithm(
            _log_up,
            _part,
            _part,
            "recursive doubling, or Bruck's algorithm where the number of ranks is not a power of "
            "two",
        ),
    },
    "reduce_scatter": {
        "ring": _Algorithm(
            _others, _part, _part, "ring: parts passed on, each rank adding its own"
        ),
        "halving": _Algorithm(
            _log_down,
            _part,
            _part,
            "recursive halving: half exchanged, then a quarter, then an eighth",
            powers_of_two=True,
        ),
        "ring all-reduce": _Algorithm(
            lambda p: 2 * (p - 1),
            _two_parts,
            _two_parts,
            "a ring all-reduce, each keeps its part",
        ),
    },
    "broadcast": {
        "tree": _Algorithm(_log_up, _log_up, _children, _TREE_WORDS),
        "scatter and all-gather": _Algorithm(
            lambda p: _log_up(p) + p - 1,
            _two_parts,
            lambda p, v: _scattered(p, v) + _part(p),
            "van de Geijn: the parts scattered down a binomial tree, then gathered by all over a "
            "ring",
        ),
        "direct": _Algorithm(
            _others,
            _others,
            lambda p, v: 0 if v else p - 1,
            "direct: the root sends each rank all",
        ),
    },
    "reduce": {
        "tree": _Algorithm(
            _log_up, _log_up, lambda p, v: v > 0, _TREE_WORDS.replace("have", "lack")
        ),
        "ring": _Algorithm(
            lambda p: 2 * (p - 1),
            _two_parts,
            lambda p, v: p > 1 if v else _part(p),
            "a ring reduce-scatter, then each rank sends its part to the root",
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
# Bus bandwidth is payload a second times this share: what a link carries if the collective is bound
# by its slowest one. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
_BUS_SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": _two_parts,
    "all_gather": _part,
    "reduce_scatter": _part,
    "all_to_all": _part,
    "gather": _part,
    "scatter": _part,
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

    @property
    def seconds(self) -> float:
        """Steps times latency, and the bytes in turn at the bandwidth."""
        return (
            self.steps * self.latency_seconds
            + self.critical_bytes / self.bandwidth_bytes_per_second
        )

    @property
    def bus_bytes_per_second(self) -> float:
        """Payload per second times the operation's factor, which makes operations and numbers of
        ranks comparable with a link's rate.

        nan for a barrier, which moves nothing. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
        """
        return bus_bandwidth(self.operation, self.nbytes, self.ranks, self.seconds)

    def sent_bytes(self, rank: int, root: int = 0) -> float:
        """Return the bytes that one rank sends, without headers; ``root`` matters to operations
        that have one.

        Raises
        ------
        InputError
            If one of them is not a rank.
        """
        from_root = whole("sent_bytes", "rank", rank, 0, self.ranks - 1) - whole(
            "sent_bytes", "root", root, 0, self.ranks - 1
        )
        how = _ALGORITHMS[self.operation][self.algorithm]
        return self.nbytes * how.sent(self.ranks, from_root % self.ranks)

    def __repr__(self) -> str:
        return (
            f"<{self.operation} of {format_bytes(self.nbytes)} among {self.ranks} by "
            f"{self.algorithm}: {self.steps} steps, {format_bytes(self.critical_bytes)} in turn, "
            f"{format_seconds(self.seconds)}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the cost, line by line."""
        rows = [
            ("messages in turn", f"{self.steps}"),
            ("bytes in turn", format_bytes(self.critical_bytes)),
            ("sent by rank 0", format_bytes(self.sent_bytes(0))),
            ("time", format_seconds(self.seconds)),
        ]
        if self.operation in _BUS_SHARES or self.operation in ("broadcast", "reduce"):
            rows.append(("bus bandwidth", format_bytes_per_second(self.bus_bytes_per_second)))
        return (
            f"{self.operation} of {format_bytes(self.nbytes)}, {self.ranks} ranks, "
            f"{self.algorithm}",
            "",
        ), rows


def collective_algorithms(operation: str) -> tuple[str, ...]:
    """Return the algorithms known for an operation.

    Raises
    ------
    InputError
        If the operation is not known.

    Examples
    --------
    >>> collective_algorithms("broadcast")
    ('tree', 'scatter and all-gather', 'direct')
    """
    return tuple(_ALGORITHMS[word("collective_algorithms", "operation", operation, OPERATIONS)])


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
        One of ``collective_algorithms(operation)``; the first by default.
    latency_seconds, bandwidth_bytes_per_second : float
        Of one message between two ranks (alpha and 1 / beta); by default only bytes and steps are
        counted.

    Returns
    -------
    CollectiveCost

    Raises
    ------
    InputError
        If a name is not known, a number is not valid, or the algorithm needs a power of two and the
        number of ranks is not one.

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
    by_name = _ALGORITHMS[word("collective_cost", "operation", operation, OPERATIONS)]
    algorithm = (
        next(iter(by_name))
        if algorithm is None
        else word("collective_cost", f"algorithm of {operation}", algorithm, tuple(by_name))
    )
    ranks = whole("collective_cost", "ranks", ranks, 1, MOST_RANKS)
    nbytes = within("collective_cost", "nbytes", nbytes)
    latency = within("collective_cost", "latency_seconds", latency_seconds)
    rate = bandwidth_bytes_per_second
    if rate != math.inf:
        rate = within("collective_cost", "bandwidth_bytes_per_second", rate, _LEAST)
    how = by_name[algorithm]
    if how.powers_of_two and not _is_power(ranks):
        raise InputError(
            f"collective_cost: {algorithm} among {ranks} ranks; expected a power of two. Pass "
            "another algorithm or number of ranks."
        )
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
        latency,
        rate,
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
    """Return (latency in seconds, bytes per second) of one message between two ranks, from the line
    through times of whole collectives.

    With s messages in turn that carry c times the payload, a line A + n / B over payloads of n
    bytes means A / s for a message and c B for the link: the inverse of `collective_cost`.

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


def bus_bandwidth(operation: str, nbytes: float, ranks: int, seconds: float) -> float:
    """Return the bandwidth, in bytes per second, by which operations and numbers of ranks compare:
    the rate of the links of a ring.

    Parameters
    ----------
    operation : str
        As in ``collective_cost``.
    nbytes : float
        The payload: the whole tensor.
    ranks : int
    seconds : float
        What the collective took.

    Returns
    -------
    float
        Payload / seconds times 2 (ranks - 1) / ranks for an all-reduce, (ranks - 1) / ranks where
        each rank has a part, 1 for a broadcast or reduce; nan for a barrier or a time of zero.

    Raises
    ------
    InputError
        If the operation is not known.

    Notes
    -----
    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.

    Examples
    --------
    >>> bus_bandwidth("all_reduce", 1e9, 4, 0.5)
    3000000000.0
    """
    word("bus_bandwidth", "operation", operation, OPERATIONS)
    if operation == "barrier" or not seconds > 0:
        return math.nan
    share = _BUS_SHARES.get(operation)
    return nbytes / seconds * (1.0 if share is None else share(ranks))


# Scaling.

Mode = Literal["strong", "weak"]
MODES = ("strong", "weak")
# The backward pass has two matrix products for each one of the forward pass, and gradients are
# ready only there. Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section
# 2.1: 2 N operations a token forward, 4 N backward.
BACKWARD_SHARE = 2 / 3
_MOST_NAMED = 20  # points that a message lists


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
    s = within("amdahl", "serial_share", serial_share, 0, 1)
    one = within("amdahl", "seconds", seconds, _LEAST)
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
    s = within("gustafson", "serial_share", serial_share, 0, 1)
    one = within("gustafson", "seconds", seconds, _LEAST)
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
    own = processors is None
    is_free = isinstance(bandwidth_bytes_per_second, float) and math.isinf(
        bandwidth_bytes_per_second
    )
    made = _Step(
        within("scaling", "step_seconds", step_seconds, _LEAST),
        within("scaling", "parameter_bytes", parameter_bytes),
        within("scaling", "latency_seconds", latency_seconds),
        math.inf
        if is_free
        else within("scaling", "bandwidth_bytes_per_second", bandwidth_bytes_per_second, _LEAST),
        word("scaling", "mode", mode, MODES) == "weak",
        within("scaling", "overlap", overlap, 0, 1),
        within("scaling", "serial_share", serial_share, 0, 1),
        MOST_RANKS if own else whole("scaling", "processors", processors, 1, MOST_RANKS),
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
    return sorted({whole(function, "ranks", each, 1, MOST_RANKS) for each in several})
