"""What orders threads beside ``syncthreads``: ``syncwarp`` the lanes of a warp, ``threadfence``
with atomics the blocks of a grid.
"""

from __future__ import annotations

import bisect

import numpy as np

Flat = np.ndarray  # one entry for each lane that takes part


class WarpBarriers:
    """The ``syncwarp`` calls so far: which lanes of each warp took part in which."""

    def __init__(self, rows: int, warps: int, first: int) -> None:
        self.rows, self.warps, self.first = rows, warps, first
        self.masks: list[tuple[int, np.ndarray]] = []
        self.last_full = np.full((rows, warps), -1, dtype=np.int64)

    def add(self, event: int, bits: np.ndarray) -> None:
        """Add a call; ``bits`` are the lanes that arrived, shape (rows or 1, warps)."""
        self.masks.append((event, bits))
        self.last_full[np.broadcast_to(bits == 0xFFFFFFFF, self.last_full.shape)] = event

    def ordered(self, rows: Flat, warps: Flat, first_lanes: Flat, since: Flat, lanes: Flat) -> Flat:
        """Return where a chain of calls after event ``since`` leads from one lane of a warp to the
        other.
        """
        reached = np.int64(1) << first_lanes.astype(np.int64)
        found = np.zeros(len(lanes), dtype=bool)
        begin = int(since.min(initial=np.iinfo(since.dtype).max))
        for event, masks in self.masks[
            bisect.bisect_right(self.masks, begin, key=lambda call: call[0]) :
        ]:
            bits = masks[rows if len(masks) > 1 else 0, warps].astype(np.int64)
            reached |= np.where((event > since) & (bits & reached != 0), bits, 0)
            found = (reached >> lanes & 1).astype(bool)
            if found.all():
                break
        return found


class Fences:
    """What each block has published to the others, by ``threadfence`` and an atomic after it, and
    when it last looked, by an atomic.
    """

    def __init__(self, blocks: int) -> None:
        self._fenced = np.full(blocks, -1, dtype=np.int64)
        self._covered, self._published, self._looked = (
            self._fenced.copy(),
            self._fenced.copy(),
            self._fenced.copy(),
        )

    def fence(self, blocks: Flat, event: int) -> None:
        """Note that blocks call ``threadfence``."""
        self._fenced[blocks] = event

    def atomic(self, blocks: Flat, event: int) -> None:
        """Note that blocks call an atomic on global memory."""
        self._covered[blocks] = self._fenced[blocks]
        self._published[blocks] = self._looked[blocks] = event

    def ordered(self, earlier: Flat, since: Flat, later: Flat) -> Flat:
        """Return where an access of one block at an event comes before what another block does
        now.
        """
        published, looked = self._published[earlier], self._looked[later]
        found: Flat = (since < self._covered[earlier]) & (
            (published < looked) | ((published == looked) & (earlier < later))
        )
        return found
