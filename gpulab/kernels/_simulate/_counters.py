"""What each source line executed and moved.

The rules, which make counts comparable: one request for each warp and executed access; a repeated
load is not merged; a branch is a test of ``if``, ``while`` or ``for`` by one warp, and conditional
expressions and ``and``/``or`` are none; local arrays and constants are not counted; an 8-byte
access to shared memory goes by half-warps; an atomic is one request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpulab.kernels._simulate._geometry import WARP, Mask, count_warps
from gpulab.kernels._simulate._memory import Store
from gpulab.models._requests import SECTOR_BYTES, WORD_BYTES, sectors_per_request, shared_wavefronts


@dataclass
class Line:
    """The counts of one source line that are no memory accesses."""

    executed_warps: int = 0
    active_lanes: int = 0
    branches: int = 0
    divergent_branches: int = 0
    barriers: int = 0


@dataclass
class Access:
    """The counts of one kind of access to one array in one line."""

    requests: int = 0
    lanes: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    bytes_requested: int = 0


# What is to be counted waits and is counted together, so that NumPy's cost for each call is shared.
# Accesses: until they hold so much memory, in words of 8 bytes; more would save nothing.
# Statements: until so many lanes, or statements, were executed.
_WORDS_TOGETHER = 1 << 14
_LANES_TOGETHER = 1 << 20
_STATEMENTS_TOGETHER = 64
_WORDS_OF_AN_ENTRY = 16
_Shape = tuple[int, ...] | None
_Elements = np.ndarray | np.generic


@dataclass
class Counters:
    """All counts of a simulation so far: by line, and by (line, array, space, kind of access)."""

    lines: dict[int, Line] = field(default_factory=dict)
    accesses: dict[tuple[int, str, str, str], Access] = field(default_factory=dict)
    executed: list[tuple[int, Mask]] = field(default_factory=list)
    tested: list[tuple[int, Mask, Mask | None, Mask | None]] = field(default_factory=list)
    _accessed: dict[tuple[int, Store, str, _Shape, _Shape], list[tuple[_Elements, Mask]]] = field(
        default_factory=dict
    )
    _accessed_words: int = 0

    def line(self, number: int) -> Line:
        """Return a line's counts, to be added to."""
        found = self.lines.get(number)
        if found is None:
            found = self.lines[number] = Line()
        return found

    def access(self, line: int, store: Store, kind: str, elements: _Elements, mask: Mask) -> None:
        """Count an access of the lanes to elements, shape () or (B or 1, T or 1), of global or
        shared memory.
        """
        shape = elements.shape
        if not shape or shape[1] == 1:
            shape = ()
        key = line, store, kind, shape, None if mask.array is None else mask.array.shape
        waiting = self._accessed.get(key)
        if waiting is None:
            waiting = self._accessed[key] = []
        waiting.append((elements, mask))
        self._accessed_words += elements.size + mask.size // 8 + _WORDS_OF_AN_ENTRY
        if self._accessed_words >= _WORDS_TOGETHER:
            self.settle_accesses()

    def requests(
        self, line: int, store: Store, kind: str, elements: np.ndarray, active: np.ndarray
    ) -> None:
        """Count accesses of global memory at once: of each warp the element of each lane and which
        lanes take part, shape (n, 32).
        """
        found = self.accesses.setdefault((line, store.name, store.space, kind), Access())
        self.line(line)
        size, lanes = store.dtype.itemsize, np.count_nonzero(active, axis=1)
        sectors = sectors_per_request(elements * np.int64(size), active, size)
        found.requests += len(elements)
        found.lanes += int(lanes.sum())
        found.bytes_requested += int(lanes.sum()) * size
        found.sectors += int(sectors.sum())
        found.ideal_sectors += int(np.minimum(sectors, -(-lanes * size // SECTOR_BYTES)).sum())

    def patience(self, lanes: int) -> int:
        """Return how many statements of a batch of so many lanes may wait to be counted."""
        return min(_STATEMENTS_TOGETHER, 1 + _LANES_TOGETHER // lanes)

    def settle_statements(self) -> None:
        """Count the statements and tests that wait; to be asked at the end of each batch of blocks
        as well.
        """
        masks = {id(mask): mask for _, mask in self.executed}
        masks.update(
            (id(mask), mask) for _, *several in self.tested for mask in several if mask is not None
        )
        count_warps(masks.values())
        counts = {number: (mask.warps, mask.lanes) for number, mask in masks.items()}
        for number, mask in self.executed:
            line, (warps, lanes) = self.line(number), counts[id(mask)]
            line.executed_warps += warps
            line.active_lanes += lanes
        for number, mask, yes, no in self.tested:
            line, warps = self.line(number), counts[id(mask)][0]
            line.branches += warps
            if yes is not None and no is not None:
                # those that went both ways
                line.divergent_branches += counts[id(yes)][0] + counts[id(no)][0] - warps
        self.executed.clear()
        self.tested.clear()

    def settle_accesses(self) -> None:
        """Count the accesses that wait; to be asked at the end of each batch of blocks as well."""
        for (number, store, kind, shape, _), accesses in self._accessed.items():
            found = self.accesses.setdefault((number, store.name, store.space, kind), Access())
            self.line(number)
            _count(found, store.space == "shared", accesses, store.dtype.itemsize, not shape)
        self._accessed.clear()
        self._accessed_words = 0


def _count(
    found: Access,
    shared: bool,
    accesses: list[tuple[_Elements, Mask]],
    element_bytes: int,
    alike: bool,
) -> None:
    """Count accesses whose elements and masks have the same shapes; ``alike`` where all lanes of a
    block access one element.
    """
    count_warps(mask for _, mask in accesses)
    warps, lanes = sum(mask.warps for _, mask in accesses), sum(mask.lanes for _, mask in accesses)
    found.requests += warps
    found.lanes += lanes
    found.bytes_requested += lanes * element_bytes
    passes = max(1, element_bytes // WORD_BYTES)
    if alike and not shared:
        found.sectors += warps
        found.ideal_sectors += warps
        return
    if alike and passes == 1:
        found.wavefronts += warps
        found.ideal_wavefronts += warps
        return
    addresses, active, times = _by_warp(accesses, element_bytes)

    def total(counts: np.ndarray) -> int:
        return int(counts.reshape(len(accesses), -1).sum(axis=1) @ times)

    if shared:
        found.wavefronts += total(shared_wavefronts(addresses, active, element_bytes))
        # Without any conflict there is one for each part of a warp that takes part.
        parts = (
            np.ones((len(addresses), passes), dtype=bool)
            if active is None
            else active.reshape(len(addresses) * passes, -1).any(axis=1)
        )
        found.ideal_wavefronts += total(np.asarray(parts))
        return
    sectors = sectors_per_request(addresses, active, element_bytes)
    found.sectors += total(sectors)
    each = WARP if active is None else np.count_nonzero(active, axis=1)
    found.ideal_sectors += total(np.minimum(sectors, -(-each * element_bytes // SECTOR_BYTES)))


def _by_warp(
    accesses: list[tuple[_Elements, Mask]], element_bytes: int
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the addresses by warp, the active lanes by warp, and how many times the warps of each
    access stand for others alike.
    """
    batch, first = accesses[0][1].batch, accesses[0][1].array
    elements = _together([np.atleast_2d(elements) for elements, _ in accesses])
    addresses = elements * np.int64(element_bytes)
    # the same pattern in each block that takes part
    if first is not None and elements.shape[1] == 1 and first.shape[1] == 1:
        times = np.array([mask.lanes // batch.width for _, mask in accesses])
        return (
            np.broadcast_to(addresses, (len(accesses), 1, batch.width)).reshape(-1, WARP),
            None,
            times,
        )
    active = (
        None
        if first is None
        else _together([mask.array for _, mask in accesses if mask.array is not None])
    )
    blocks = max(elements.shape[1], 1 if active is None else active.shape[1])
    shape = (len(accesses), blocks, batch.width)
    return (
        np.broadcast_to(addresses, shape).reshape(-1, WARP),
        None if active is None else np.broadcast_to(active, shape).reshape(-1, WARP),
        np.full(len(accesses), batch.blocks if blocks == 1 else 1),
    )


def _together(arrays: list[np.ndarray]) -> np.ndarray:
    """Return arrays of one shape as one array with an axis more."""
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return joined.reshape(len(arrays), *arrays[0].shape)
