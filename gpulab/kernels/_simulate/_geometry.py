"""The lanes of the blocks that run together, and masks over them.

A lane value has shape (B or 1, T or 1): B blocks of a batch, T threads of a block, filled up to whole warps. What does not depend on
the block, or not on the thread, keeps a 1 there; NumPy's broadcasting does the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

WARP = 32
Extent = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some consecutive blocks of a launch."""

    first: int
    blocks: int
    grid: Extent
    block: Extent

    @cached_property
    def threads(self) -> int:
        """Return the threads of a block."""
        return math.prod(self.block)

    @cached_property
    def warps(self) -> int:
        """Return the warps of a block."""
        return -(-self.threads // WARP)

    @cached_property
    def width(self) -> int:
        """Return the lanes of a block: its threads, filled up to whole warps."""
        return self.warps * WARP

    @cached_property
    def linear_thread(self) -> np.ndarray:
        """Return each lane's number in its block, shape (1, T)."""
        return np.arange(self.width, dtype=np.int64)[None, :]

    @cached_property
    def linear_block(self) -> np.ndarray:
        """Return each block's number in the grid, shape (B, 1)."""
        return np.arange(self.first, self.first + self.blocks, dtype=np.int64)[:, None]

    def thread_index(self, axis: int) -> np.ndarray | np.int64:
        """Return ``threadIdx`` along an axis; one number where the block has one thread there."""
        if self.block[axis] == 1:
            return np.int64(0)
        return self.linear_thread // math.prod(self.block[:axis]) % self.block[axis]

    def block_index(self, axis: int) -> np.ndarray | np.int64:
        """Return ``blockIdx`` along an axis; one number where it is the same in the batch."""
        if self.grid[axis] == 1:
            return np.int64(0)
        index: np.ndarray = self.linear_block // math.prod(self.grid[:axis]) % self.grid[axis]
        return np.int64(index[0, 0]) if index[0, 0] == index[-1, 0] and (index == index[0, 0]).all() else index

    def place_of_thread(self, lane: int) -> Extent:
        """Return a lane's ``threadIdx`` (x, y, z)."""
        return _place(lane, self.block)

    def place_of_block(self, number: int) -> Extent:
        """Return the ``blockIdx`` (x, y, z) of a block of the grid."""
        return _place(number, self.grid)

    @cached_property
    def everyone(self) -> Mask:
        """Return the mask of all threads."""
        if self.width == self.threads:
            return Mask(self, None)
        return Mask(self, self.linear_thread < self.threads)


def _place(number: int, extent: Extent) -> Extent:
    return number % extent[0], number // extent[0] % extent[1], number // (extent[0] * extent[1])


class Mask:
    """The lanes that execute: ``array`` has shape (B or 1, T or 1), or is None where all lanes do.

    Never without any lane: no lanes at all are None in place of a mask.
    """

    __slots__ = ("_bits", "_lanes", "array", "batch")

    def __init__(self, batch: Batch, array: np.ndarray | None) -> None:
        self.batch = batch
        self.array = array
        self._bits: np.ndarray | None = None
        self._lanes: int | None = None

    @property
    def bits(self) -> np.ndarray:
        """Return the lanes of each warp as bits, shape (B or 1, warps), uint32; lane 0 is bit 0."""
        if self._bits is None:
            if self.array is None:
                self._bits = np.full((1, self.batch.warps), 0xFFFFFFFF, dtype=np.uint32)
            else:
                self._bits = lane_bits(self.array, self.batch)
        return self._bits

    @property
    def warps(self) -> int:
        """Return how many warps have a lane here."""
        if self.array is None:
            return self.batch.blocks * self.batch.warps
        return int(np.count_nonzero(self.bits)) * (self.batch.blocks if len(self.bits) == 1 else 1)

    @property
    def lanes(self) -> int:
        """Return how many lanes are here."""
        if self._lanes is None:
            if self.array is None:
                self._lanes = self.batch.blocks * self.batch.width
            else:
                rows, columns = self.array.shape
                repeated = (self.batch.blocks if rows == 1 else 1) * (self.batch.width if columns == 1 else 1)
                self._lanes = int(np.count_nonzero(self.array)) * repeated
        return self._lanes

    @property
    def blocks(self) -> np.ndarray:
        """Return which blocks have a lane here, shape (B or 1, 1)."""
        if self.array is None:
            return np.ones((1, 1), dtype=bool)
        return np.asarray(self.array.any(axis=1, keepdims=True))

    def split(self, condition: np.ndarray | np.bool_ | bool) -> tuple[Mask | None, Mask | None]:
        """Return the lanes where the condition holds and those where it does not; None for no lanes, self for all of them."""
        if np.ndim(condition) == 0 or np.size(condition) == 1:
            return (self, None) if bool(np.all(condition)) else (None, self)
        condition = np.asarray(condition)
        if self.array is None:
            yes, no = condition, ~condition
        else:
            yes, no = self.array & condition, self.array & ~condition
        if not yes.any():
            return None, self
        if not no.any():
            return self, None
        return Mask(self.batch, yes), Mask(self.batch, no)

    def __or__(self, other: Mask | None) -> Mask:
        """Return the lanes of both."""
        if other is None or other is self or self.array is None:
            return self
        if other.array is None:
            return other
        joined = self.array | other.array
        return self.batch.everyone if joined.all() else Mask(self.batch, joined)

    def without(self, other: Mask | None) -> Mask | None:
        """Return the lanes that are here and not there."""
        if other is None:
            return self
        if other is self or other.array is None:
            return None
        return self.split(~other.array)[0]

    def selected(self, value: np.ndarray | np.generic) -> np.ndarray:
        """Return the value of each lane that is here, flat, block by block."""
        full = np.broadcast_to(value, (self.batch.blocks, self.batch.width))
        if self.array is None:
            return full.reshape(-1)
        found: np.ndarray = full[np.broadcast_to(self.array, full.shape)]
        return found


def union(first: Mask | None, second: Mask | None) -> Mask | None:
    """Return the lanes of both; None is no lane."""
    return second if first is None else first | second


def lane_bits(array: np.ndarray, batch: Batch) -> np.ndarray:
    """Return the lanes of each warp as bits, shape (B or 1, warps), uint32."""
    if array.shape[1] == 1:
        return np.where(array, np.uint32(0xFFFFFFFF), np.uint32(0)).repeat(batch.warps, axis=1)
    return np.packbits(array, axis=1, bitorder="little").view(np.uint32)
