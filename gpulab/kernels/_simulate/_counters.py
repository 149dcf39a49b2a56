"""What each source line executed and moved.

The rules, which make counts comparable: one request for each warp and executed access; a repeated load is not merged; a branch is a
test of ``if``, ``while`` or ``for`` by one warp, and conditional expressions and ``and``/``or`` are none; local arrays and constants are
not counted; an 8-byte access to shared memory goes by half-warps; an atomic is one request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpulab.kernels._simulate._geometry import WARP, Mask
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


# Accesses of one kind wait until so many lanes have made some, and are counted together: NumPy's cost for each call is then shared.
# Their places (8 bytes a lane) still fit into a core's cache.
_LANES_TOGETHER = 1 << 16
Place = tuple[int, str, str, str]  # line, array, space, kind of access
_Shape = tuple[int, ...] | None


@dataclass
class Counters:
    """All counts of a simulation so far: by line, and by (line, array, space, kind of access)."""

    lines: dict[int, Line] = field(default_factory=dict)
    accesses: dict[Place, Access] = field(default_factory=dict)
    _waiting: dict[tuple[Place, int, _Shape, _Shape], list[tuple[np.ndarray, Mask]]] = field(default_factory=dict)
    _waiting_lanes: int = 0

    def line(self, number: int) -> Line:
        """Return a line's counts, to be added to."""
        found = self.lines.get(number)
        if found is None:
            found = self.lines[number] = Line()
        return found

    def branch(self, number: int, mask: Mask, yes: Mask | None, no: Mask | None) -> None:
        """Count a test that sent lanes two ways (None: no lane went there)."""
        line = self.line(number)
        line.branches += mask.warps
        if yes is not None and no is not None:
            line.divergent_branches += yes.warps + no.warps - mask.warps  # those that went both ways

    def access(self, place: Place, elements: np.ndarray | np.generic, mask: Mask, element_bytes: int) -> None:
        """Count an access of the lanes to elements, shape () or (B or 1, T or 1), of an array in global or shared memory."""
        found = self.accesses.get(place)
        if found is None:
            found = self.accesses[place] = Access()
        shared = place[2] == "shared"
        warps, lanes = mask.warps, mask.lanes
        found.requests += warps
        found.lanes += lanes
        found.bytes_requested += lanes * element_bytes
        if (elements.ndim == 0 or elements.shape[1] == 1) and (not shared or element_bytes <= WORD_BYTES):
            if shared:
                found.wavefronts += warps
                found.ideal_wavefronts += warps
            else:
                found.sectors += warps
                found.ideal_sectors += warps
            return
        rows = np.atleast_2d(elements)
        key = place, element_bytes, rows.shape, None if mask.array is None else mask.array.shape
        self._waiting.setdefault(key, []).append((rows, mask))
        self._waiting_lanes += max(rows.size, 0 if mask.array is None else mask.array.size)
        if self._waiting_lanes >= _LANES_TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Count the accesses that wait; to be asked at the end of each batch of blocks."""
        for (place, element_bytes, _, _), accesses in self._waiting.items():
            _count(self.accesses[place], place[2] == "shared", accesses, element_bytes)
        self._waiting.clear()
        self._waiting_lanes = 0


def _count(found: Access, shared: bool, accesses: list[tuple[np.ndarray, Mask]], element_bytes: int) -> None:
    """Add the sectors or wavefronts of accesses whose elements and masks have the same shapes."""
    addresses, active, times = _by_warp(accesses, element_bytes)

    def total(counts: np.ndarray) -> int:
        return int(counts.reshape(len(accesses), -1).sum(axis=1) @ times)

    if shared:
        found.wavefronts += total(shared_wavefronts(addresses, active, element_bytes))
        passes = max(1, element_bytes // WORD_BYTES)
        # Without any conflict there is one for each part of a warp that takes part.
        parts = np.ones((len(addresses), passes), dtype=bool) if active is None else active.reshape(len(addresses) * passes, -1).any(axis=1)
        found.ideal_wavefronts += total(np.asarray(parts))
        return
    sectors = sectors_per_request(addresses, active, element_bytes)
    found.sectors += total(sectors)
    each = WARP if active is None else np.count_nonzero(active, axis=1)
    found.ideal_sectors += total(np.minimum(sectors, -(-each * element_bytes // SECTOR_BYTES)))


def _by_warp(accesses: list[tuple[np.ndarray, Mask]], element_bytes: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the addresses by warp, the active lanes by warp, and how many times the warps of each access stand for others alike."""
    elements, mask = accesses[0]
    batch = mask.batch
    addresses = _stacked([elements for elements, _ in accesses]) * np.int64(element_bytes)
    if mask.array is not None and len(elements) == 1 and mask.array.shape[1] == 1:  # the same pattern in each block that takes part
        times = np.array([mask.lanes // batch.width for _, mask in accesses])
        return np.broadcast_to(addresses, (len(accesses), 1, batch.width)).reshape(-1, WARP), None, times
    blocks = len(elements) if mask.array is None else max(len(elements), len(mask.array))
    shape = (len(accesses), blocks, batch.width)
    active = None if mask.array is None else _stacked([mask.array for _, mask in accesses])  # type: ignore[misc]
    return (
        np.broadcast_to(addresses, shape).reshape(-1, WARP),
        None if active is None else np.broadcast_to(active, shape).reshape(-1, WARP),
        np.full(len(accesses), batch.blocks if blocks == 1 else 1),
    )


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
