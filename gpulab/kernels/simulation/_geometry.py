"""The lanes of the blocks that run together, and masks over them.

A lane value has shape (B or 1, T or 1): B blocks of a batch, and T threads of a block, filled up to
whole warps. The length of an axis is 1 if the value does not depend on the block, or on the thread;
NumPy's broadcasting does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpulab.kernels._arguments import Extent

WARP = 32


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
        """Return the lanes of a block: its threads, padded to whole warps."""
        return self.warps * WARP

    @cached_property
    def linear_thread(self) -> np.ndarray:
        """Return each lane's number in its block, shape (1, T)."""
        return np.arange(self.width, dtype=np.int64)[None, :]

    @cached_property
    def thread_numbers(self) -> np.ndarray:
        """Return the numbers of all lanes of these blocks, counted through the grid: int32."""
        return np.arange(
            self.first * self.width, (self.first + self.blocks) * self.width, dtype=np.int32
        )

    @cached_property
    def thread_index(self) -> tuple[np.ndarray | np.int64, ...]:
        """Return ``threadIdx`` along each axis; one number where it is the same for all lanes."""
        return _index(self.linear_thread, self.block)

    @cached_property
    def block_index(self) -> tuple[np.ndarray | np.int64, ...]:
        """Return ``blockIdx`` along each axis; one number where it is the same in the batch."""
        return _index(np.arange(self.first, self.first + self.blocks)[:, None], self.grid)

    @cached_property
    def grid_index(self) -> tuple[np.ndarray | np.int64, ...]:
        """Return ``blockIdx * blockDim + threadIdx`` along each axis."""
        return tuple(
            self.block_index[axis] * np.int64(self.block[axis]) + self.thread_index[axis]
            for axis in range(3)
        )

    @property
    def grid_size(self) -> tuple[np.int64, ...]:
        """Return the threads of the grid along each axis."""
        return tuple(np.int64(n * count) for n, count in zip(self.block, self.grid, strict=True))

    @cached_property
    def everyone(self) -> Mask:
        """Return the mask of all threads."""
        if self.width == self.threads:
            return Mask(self, None)
        return Mask(self, self.linear_thread < self.threads)


def place(number: int, extent: Extent) -> Extent:
    """Return the index (x, y, z) of a number, counted along x first."""
    return number % extent[0], number // extent[0] % extent[1], number // (extent[0] * extent[1])


def _index(numbers: np.ndarray, extent: Extent) -> tuple[np.ndarray | np.int64, ...]:
    """Return the indices of many numbers along each axis; one number for an axis where all are
    alike.
    """
    found = [
        numbers // math.prod(extent[:axis]) % size if size > 1 else np.int64(0)
        for axis, size in enumerate(extent)
    ]
    return tuple(
        index.flat[0] if index.ndim and (index == index.flat[0]).all() else index for index in found
    )


class Mask:
    """The lanes that execute: ``array`` has shape (B or 1, T or 1), or is None where all lanes do.

    A mask has at least one lane: None in place of a mask stands for no lanes. What follows from the
    array is found when first asked for.
    """

    def __init__(self, batch: Batch, array: np.ndarray | None, true: int | None = None) -> None:
        self.batch = batch
        self.array = array
        self._true = true  # how many entries of the array are true
        self._warps: int | None = None

    @cached_property
    def bits(self) -> np.ndarray:
        """Return the lanes of each warp as bits, shape (B or 1, warps), uint32; lane 0 is bit 0."""
        if self.array is None:
            return np.full((1, self.batch.warps), 0xFFFFFFFF, dtype=np.uint32)
        return lane_bits(self.array, self.batch)

    @property
    def warps(self) -> int:
        """Return how many warps have a lane here."""
        if self._warps is None:
            count_warps([self])
        return self._warps or 0

    @property
    def true(self) -> int:
        """Return how many entries of the array are true."""
        if self._true is None:
            assert self.array is not None
            self._true = int(np.count_nonzero(self.array))
        return self._true

    @property
    def lanes(self) -> int:
        """Return how many lanes are here."""
        everywhere = self.batch.blocks * self.batch.width
        return everywhere if self.array is None else self.true * (everywhere // self.array.size)

    @property
    def blocks(self) -> np.ndarray:
        """Return which blocks have a lane here, shape (B or 1, 1)."""
        if self.array is None:
            return np.ones((1, 1), dtype=bool)
        return np.asarray(self.array.any(axis=1, keepdims=True))

    @cached_property
    def flat(self) -> np.ndarray:
        """Return the number of each lane that is here, counted through the blocks of the batch."""
        shape = (self.batch.blocks, self.batch.width)
        if self.array is None:
            return np.arange(math.prod(shape))
        full = self.array if self.array.shape == shape else np.broadcast_to(self.array, shape)
        return full.reshape(-1).nonzero()[0]

    def split(self, condition: np.ndarray | np.bool_ | bool) -> tuple[Mask | None, Mask | None]:
        """Return the lanes where the condition holds and those where it does not; None for no
        lanes, self for all of them.
        """
        if not isinstance(condition, np.ndarray) or condition.size == 1:
            return (self, None) if condition else (None, self)
        here = self.array
        yes = condition if here is None else here & condition
        true = int(np.count_nonzero(yes))
        if not true:
            return None, self
        all_here = yes.size if here is None else self.true * (yes.size // here.size)
        if true == all_here:
            return self, None
        no = ~condition if here is None else here ^ yes
        return Mask(self.batch, yes, true), Mask(self.batch, no, all_here - true)

    def without(self, other: Mask | None) -> Mask | None:
        """Return the lanes of this mask that are not in the other one; None for no lanes."""
        if other is None:
            return self
        if other is self or other.array is None:
            return None
        return self.split(~other.array)[0]

    def selected(self, value: np.ndarray | np.generic) -> np.ndarray:
        """Return the value of each lane that is here, flat, block by block."""
        if not isinstance(value, np.ndarray) or value.size == 1:
            return np.full(len(self.flat), value)
        batch = self.batch
        if value.size == batch.blocks * batch.width:
            return value.reshape(-1) if self.array is None else value.reshape(-1).take(self.flat)
        return (
            value[0].take(self.flat % batch.width)
            if len(value) == 1
            else value[:, 0].take(self.flat // batch.width)
        )


def count_warps(masks: Iterable[Mask]) -> None:
    """Count the warps of each mask of one batch that have a lane in it; masks of one shape are
    counted together.
    """
    groups: dict[tuple[int, ...], dict[int, Mask]] = {}
    for mask in masks:
        if mask._warps is None:
            groups.setdefault(() if mask.array is None else mask.array.shape, {})[id(mask)] = mask
    for shape, group in groups.items():
        batch = next(iter(group.values())).batch
        # the last: some lanes of each block's one warp
        if not shape or shape[1] == 1 or shape == (1, WARP):
            for mask in group.values():
                mask._warps = batch.blocks if shape == (1, WARP) else mask.lanes // WARP
            continue
        bits = np.packbits(
            np.concatenate([mask.array for mask in group.values() if mask.array is not None]),
            axis=1,
        ).view(np.uint32)
        counts = np.count_nonzero(bits.reshape(len(group), -1), axis=1) * (
            batch.blocks if shape[0] == 1 else 1
        )
        for mask, count in zip(group.values(), counts.tolist(), strict=True):
            mask._warps = count


def union(first: Mask | None, second: Mask | None) -> Mask | None:
    """Return the lanes of both; None stands for no lanes."""
    if first is None or second is None:
        return second if first is None else first
    if first is second or first.array is None or second.array is None:
        return second if second.array is None else first
    joined = Mask(first.batch, first.array | second.array)
    return first.batch.everyone if joined.true == joined.array.size else joined  # type: ignore[union-attr]


def lane_bits(array: np.ndarray, batch: Batch) -> np.ndarray:
    """Return the lanes of each warp as bits, shape (B or 1, warps), uint32."""
    if array.shape[1] == 1:
        return np.where(array, np.uint32(0xFFFFFFFF), np.uint32(0)).repeat(batch.warps, axis=1)
    return np.packbits(array, axis=1, bitorder="little").view(np.uint32)
