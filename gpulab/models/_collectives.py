"""What a collective costs by its algorithm: messages in turn, bytes sent, time.

Pure arithmetic. A message of m bytes takes alpha + m / bandwidth, a rank sends and receives one at
a time, and links are not shared. The payload is the whole tensor, as NVIDIA's nccl-tests count it:
an all-gather's result, a reduce-scatter's input. ``gpulab.parallel.sweep`` compares it with
measured times and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpulab._given import is_finite, whole, word
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds

MOST_RANKS = 2**20
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
    for name, value in (("nbytes", nbytes), ("latency_seconds", latency_seconds)):
        if not is_finite(value) or not 0 <= value < 1e30:
            raise InputError(
                f"collective_cost: {name} is {shown(value)}; expected a number from 0 on. Pass for "
                f"example {name}=1e-5."
            )
    if bandwidth_bytes_per_second != math.inf and not (
        is_finite(bandwidth_bytes_per_second) and 0 < bandwidth_bytes_per_second < 1e30
    ):
        raise InputError(
            f"collective_cost: bandwidth_bytes_per_second is {shown(bandwidth_bytes_per_second)}; "
            "expected more than 0. Pass 1e9."
        )
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
        float(nbytes),
        ranks,
        how.steps(ranks),
        float(nbytes * how.critical(ranks)),
        float(latency_seconds),
        float(bandwidth_bytes_per_second),
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
