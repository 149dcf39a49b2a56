"""What each source line executed and moved.

The rules, which make counts comparable: one request for each warp and executed access; a repeated load is not merged; a branch is a
test of ``if``, ``while`` or ``for`` by one warp, and conditional expressions and ``and``/``or`` are none; local arrays and constants are
not counted; an 8-byte access to shared memory goes by half-warps; an atomic is one request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpulab.kernels._simulate._geometry import WARP, Batch, Mask
from gpulab.models._requests import SECTOR_BYTES, sectors_per_request, shared_wavefronts


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


@dataclass
class Counters:
    """All counts of a simulation so far: by line, and by (line, array, space, kind of access)."""

    lines: dict[int, Line] = field(default_factory=dict)
    accesses: dict[tuple[int, str, str, str], Access] = field(default_factory=dict)

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
            both = (yes.bits != 0) & (no.bits != 0)
            line.divergent_branches += int(np.count_nonzero(both)) * (mask.batch.blocks if len(both) == 1 else 1)

    def access(self, place: tuple[int, str, str, str], addresses: np.ndarray, mask: Mask, element_bytes: int) -> None:
        """Count an access of the lanes at byte addresses of shape (B or 1, T or 1), in global or shared memory."""
        found = self.accesses.get(place)
        if found is None:
            found = self.accesses[place] = Access()
        batch = mask.batch
        shared = place[2] == "shared"
        warps, lanes = mask.warps, mask.lanes
        found.requests += warps
        found.lanes += lanes
        found.bytes_requested += lanes * element_bytes
        passes = max(1, element_bytes // 4)
        if addresses.shape[1] == 1 and (not shared or passes == 1):
            touched = warps * (-(-element_bytes // SECTOR_BYTES) if not shared else 1)
            if shared:
                found.wavefronts += touched
                found.ideal_wavefronts += warps
            else:
                found.sectors += touched
                found.ideal_sectors += touched
            return
        rows, active, repeated = _rows(addresses, mask, batch)
        if shared:
            found.wavefronts += repeated * int(shared_wavefronts(rows, active, element_bytes).sum())
            found.ideal_wavefronts += repeated * _ideal_wavefronts(active, len(rows), passes)
            return
        sectors = sectors_per_request(rows, active, element_bytes)
        found.sectors += repeated * int(sectors.sum())
        each = WARP if active is None else active.sum(axis=1)
        found.ideal_sectors += repeated * int(np.minimum(sectors, -(-each * element_bytes // SECTOR_BYTES)).sum())


def _rows(addresses: np.ndarray, mask: Mask, batch: Batch) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Return the addresses by warp, the active lanes by warp, and how many times these warps stand for others that are alike."""
    blocks = addresses.shape[0]
    if mask.array is not None:
        blocks = max(blocks, mask.array.shape[0])
        if addresses.shape[0] == 1 and mask.array.shape[1] == 1:  # the same pattern in each block that takes part
            rows = np.broadcast_to(addresses, (1, batch.width)).reshape(-1, WARP)
            return rows, None, int(np.count_nonzero(mask.array)) * (batch.blocks if len(mask.array) == 1 else 1)
    shape = (blocks, batch.width)
    rows = np.broadcast_to(addresses, shape).reshape(-1, WARP)
    active = None if mask.array is None else np.broadcast_to(mask.array, shape).reshape(-1, WARP)
    return rows, active, batch.blocks if blocks == 1 else 1


def _ideal_wavefronts(active: np.ndarray | None, warps: int, passes: int) -> int:
    """Return how many wavefronts remain without any conflict: one for each part of a warp that takes part."""
    if active is None:
        return warps * passes
    return int(active.reshape(warps * passes, -1).any(axis=1).sum())
