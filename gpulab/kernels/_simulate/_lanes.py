"""The lanes of one access as a flat list, and its moment: the form in which the hazard search uses
them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpulab.kernels._simulate._geometry import Mask


class Moment(NamedTuple):
    """When lanes access: ``epoch`` counts the barriers of their block, ``event`` all ``syncwarp``,
    fences and atomics so far.
    """

    epoch: np.ndarray | int
    event: int
    line: int


class Lanes:
    """Lanes that access words: global ones of the whole grid, shared ones of their block.

    ``alike`` where one block stands for all, since in all of them the same lanes access the same
    words of shared memory: then ``words`` has an entry for each lane of that block. Shared words
    are numbered through the blocks otherwise.
    """

    def __init__(self, words: np.ndarray, threads: np.ndarray, mask: Mask, alike: bool) -> None:
        self.words, self.threads, self.mask, self.alike = words, threads, mask, alike

    @property
    def times(self) -> int:
        """Return for how many blocks each lane stands."""
        return self.mask.batch.blocks if self.alike else 1

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the block of each lane, counted from the first one of the batch."""
        return self.mask.flat // self.mask.batch.width

    def of(self, value: Any, which: np.ndarray) -> np.ndarray:
        """Return the value of some of the lanes; of all blocks, shape (B, lanes), where blocks are
        alike.
        """
        batch = self.mask.batch
        full = np.broadcast_to(value, (batch.blocks, batch.width))
        lanes = self.threads[which] % batch.width
        return full[:, lanes] if self.alike else full[self.rows[which], lanes]


def of_one_block(where: Any, mask: Mask) -> Lanes:
    """Return the lanes of one block that stands for all."""
    batch = mask.batch
    here = (
        None
        if mask.array is None
        else np.broadcast_to(mask.array, (1, batch.width))[0].nonzero()[0]
    )
    threads = batch.lane_numbers if here is None else here.astype(np.int32)
    if where.size == 1:
        return Lanes(np.full(len(threads), where), threads, mask, True)
    return Lanes(where[0] if here is None else where[0].take(here), threads, mask, True)


def of_all_blocks(where: Any, mask: Mask, words: int) -> Lanes:
    """Return the lanes of all blocks; ``words`` is the size of a shared array, 0 for global
    memory.
    """
    batch, places = mask.batch, mask.selected(where)
    if words:
        rows, threads = np.divmod(mask.flat, batch.width)
        return Lanes(places + rows * words, threads.astype(np.int32), mask, False)
    return Lanes(
        places,
        batch.thread_numbers if mask.array is None else batch.thread_numbers.take(mask.flat),
        mask,
        False,
    )
