"""What gloo, PyTorch's library for collectives on CPUs, sends over the network: its algorithms, byte by byte, headers included.

Read from gloo's source and counted in the kernel's own books (``gpulab.parallel.wire_bytes``): the two agree to the byte. gloo
has one algorithm an operation, whatever the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpulab._given import is_whole, word
from gpulab.errors import InputError, shown

# Which of the algorithms of ``collective_cost`` gloo uses. Source: gloo/allreduce.cc, allgather.cc, broadcast.cc, reduce.cc, gather.cc,
# scatter.cc, alltoall.cc, barrier.cc; PyTorch does a reduce_scatter by one all-reduce (ProcessGroupGloo.cpp), of a list by one a part.
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
# Each message is announced by its sender, asked for by its receiver, and carries a header. Source: struct Op in gloo/transport/tcp/pair.h
# (six numbers of 8 bytes); counted: a message costs its sender 96 bytes more than it carries, and its receiver 48.
HEADER_BYTES = 48
_SEGMENT_BYTES = 2**20  # gloo/allreduce.h, maxSegmentSize


def gloo_wire_bytes(operation: str, elements: int, ranks: int, *, element_bytes: int = 4, root: int = 0) -> tuple[int, ...]:
    """Return what each rank's sockets send in one collective of gloo's, headers of its messages included (those of TCP and IP are not).

    Parameters
    ----------
    operation : str
        As in ``collective_cost``.
    elements : int
        Of the whole tensor: an all-gather's result, a reduce-scatter's input. Where each rank has a part, the ranks must divide it.
    ranks : int
    element_bytes : int
        4 for float32.
    root : int
        For operations that have one.

    Returns
    -------
    tuple of int
        Bytes, by rank.

    Raises
    ------
    InputError
        If a number is not valid, or the ranks do not divide what they share.

    Examples
    --------
    >>> gloo_wire_bytes("all_reduce", 3072, 3)
    (17536, 17536, 17536)

    Notes
    -----
    17,536 = 2 * 2 / 3 * 12,288 + 8 messages * 144. gloo cuts each part of a ring in two or more messages of at most 1 MiB, so that one
    is on its way while another is added. Its reduce sends more than it needs from 2 MiB a rank on.
    """
    word("gloo_wire_bytes", "operation", operation, tuple(GLOO_ALGORITHMS))
    for name, value, least in (("elements", elements, 0), ("ranks", ranks, 2), ("element_bytes", element_bytes, 1)):
        if not is_whole(value) or value < least:
            raise InputError(f"gloo_wire_bytes: {name} is {shown(value)}; expected a whole number from {least} on. Pass such a number.")
    if not is_whole(root) or not 0 <= root < ranks:
        raise InputError(f"gloo_wire_bytes: root is {shown(root)}; expected a rank from 0 to {ranks - 1}. Pass one of these.")
    elements, ranks, element_bytes, root = int(elements), int(ranks), int(element_bytes), int(root)
    if operation in _SHARED and elements % ranks:
        raise InputError(
            f"gloo_wire_bytes: {elements} elements over {ranks} ranks; expected an equal part for each. Pass a multiple of {ranks}."
        )
    sent = [0] * ranks
    for source, target, nbytes in _MESSAGES[operation](elements * element_bytes, element_bytes, ranks, root):
        sent[source] += nbytes + 2 * HEADER_BYTES
        sent[target] += HEADER_BYTES
    return tuple(sent)


_Message = tuple[int, int, int]  # from rank, to rank, bytes carried
_SHARED = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")


def _ring(total: int, ranks: int, first: int, segment: int, segments: int, count: int) -> Iterator[_Message]:
    """Yield ``count`` segments that each rank sends to the one below it, from its own part (first=0) or the one above (first=1) on."""
    each = segments // ranks
    for rank in range(ranks):
        for i in range(count):
            offset = ((rank + first) * each + i) % segments * segment
            if offset < total:
                yield rank, (rank - 1) % ranks, min(segment, total - offset)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _all_reduce(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    """At least two segments a rank, as many for each, as even as elements allow."""
    most = size * max(_SEGMENT_BYTES // size, 1)
    segments = _up(max(-(-total // most), 2 * ranks), ranks)
    segment = _up(-(-total // segments), size)
    for first in (1, 0):  # the reduce-scatter, then the all-gather
        yield from _ring(total, ranks, first, segment, segments, segments - segments // ranks)


def _reduce(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    """As the all-reduce once was: full segments and a short last one, and all but two sent, though all but one rank's would do."""
    segment = _up(min(-(-total // (2 * ranks)), size * max(_SEGMENT_BYTES // size, 1)), size)
    segments = _up(max(-(-total // max(segment, 1)), 2 * ranks), ranks)
    yield from _ring(total, ranks, 1, segment, segments, segments - 2)
    part = segments // ranks * segment
    for rank in range(ranks):
        length = min(part, total - rank * part)
        if rank != root and length > 0:
            yield rank, root, length


def _all_gather(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    part = total // ranks
    for rank in range(ranks):
        for i in range(2 * (ranks - 1)):
            yield rank, (rank + 1) % ranks, part // 2 if i % 2 == 0 else part - part // 2


def _broadcast(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    for bit in range((ranks - 1).bit_length()):
        for v in range(min(2**bit, ranks - 2**bit)):
            yield (v + root) % ranks, (v + 2**bit + root) % ranks, total


def _gather(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    yield from ((rank, root, total // ranks) for rank in range(ranks) if rank != root)


def _scatter(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    yield from ((root, rank, total // ranks) for rank in range(ranks) if rank != root)


def _all_to_all(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    yield from ((a, b, total // ranks) for a in range(ranks) for b in range(ranks) if a != b)


def _barrier(total: int, size: int, ranks: int, root: int) -> Iterator[_Message]:
    for bit in range((ranks - 1).bit_length()):
        yield from ((rank, (rank + 2**bit) % ranks, 0) for rank in range(ranks))


_MESSAGES: dict[str, Callable[[int, int, int, int], Iterator[_Message]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
}
