"""Where the lanes of a batch stand in the launch, by hand: as arrays where they differ, as one number where they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpulab.kernels._simulate._geometry import Batch, Mask, count_warps


def listed(index: tuple[Any, ...]) -> list[Any]:
    """Return arrays as flat lists, and numbers as they are."""
    return [axis.ravel().tolist() if isinstance(axis, np.ndarray) else int(axis) for axis in index]


@pytest.mark.parametrize(
    ("first", "blocks", "index"),
    [
        (0, 4, [[0, 1, 2, 0], [0, 0, 0, 1], 0]),  # first and last alike, those between not
        (0, 12, [[0, 1, 2] * 4, [0, 0, 0, 1, 1, 1] * 2, [0] * 6 + [1] * 6]),
        (6, 3, [[0, 1, 2], 0, 1]),  # a row of its own
        (5, 1, [2, 1, 0]), (2, 2, [[2, 0], [0, 1], 0]), (3, 6, [[0, 1, 2] * 2, [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]),
    ],
)  # fmt: skip
def test_blocks_of_a_grid_of_three_axes(first: int, blocks: int, index: list[Any]) -> None:
    """Of a grid of 3 x 2 x 2, x first, then y, then z; and each block's place as a message names it."""
    batch = Batch(first, blocks, (3, 2, 2), (32, 1, 1))
    assert listed(batch.block_index) == index
    whole = [axis if isinstance(axis, list) else [axis] * blocks for axis in index]
    assert [batch.place_of_block(first + k) for k in range(blocks)] == list(zip(*whole, strict=True))
    assert batch.linear_block.tolist() == [[first + k] for k in range(blocks)]
    assert batch.rows.tolist() == [[k] for k in range(blocks)]


def test_threads_of_a_block_of_three_axes() -> None:
    """4 x 3 x 2 threads are 24 of a warp of 32 lanes: x first, then y, then z; an axis of one thread is one number."""
    batch = Batch(1, 2, (4, 1, 1), (4, 3, 2))
    assert (batch.threads, batch.warps, batch.width) == (24, 1, 32)
    x, y, z = (axis[0, :24].tolist() for axis in batch.thread_index)
    assert (x, y, z) == ([0, 1, 2, 3] * 6, ([0] * 4 + [1] * 4 + [2] * 4) * 2, [0] * 12 + [1] * 12)
    assert [batch.place_of_thread(t) for t in range(24)] == list(zip(x, y, z, strict=True))
    assert batch.everyone.array is not None
    assert batch.everyone.array.tolist() == [[True] * 24 + [False] * 8]
    assert batch.grid_index[0][:, :4].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert batch.thread_numbers.tolist() == list(range(32, 96))
    flat = Batch(0, 1, (1, 1, 1), (32, 1, 1))
    assert listed(flat.thread_index) == [list(range(32)), 0, 0]
    assert flat.everyone.array is None


def test_lanes_that_are_here_and_there() -> None:
    """Of two blocks of a warp: lanes below 8 in both, then those that are in one of them; as bits, as numbers, as a count."""
    batch = Batch(0, 2, (2, 1, 1), (32, 1, 1))
    lane = np.arange(32)[None, :]
    low, second = Mask(batch, lane < 8), Mask(batch, np.array([[False], [True]]))
    assert (low.lanes, low.warps, second.lanes, second.warps) == (16, 2, 32, 1)
    assert low.bits.tolist() == [[0xFF]]
    assert second.bits.tolist() == [[0], [0xFFFFFFFF]]
    assert low.flat.tolist() == [*range(8), *range(32, 40)]
    assert low.blocks.tolist() == [[True]]
    assert second.blocks.tolist() == [[False], [True]]
    here, rest = low.split(np.array([[True], [False]]))
    assert here is not None
    assert rest is not None
    assert (here.flat.tolist(), rest.flat.tolist()) == (list(range(8)), list(range(32, 40)))
    assert low.split(lane < 8) == (low, None)
    assert low.split(lane >= 8) == (None, low)
    assert low.without(low) is low.without(batch.everyone) is None
    assert (here | rest).flat.tolist() == low.flat.tolist()
    high = batch.everyone.without(low)
    assert high is not None
    assert high.lanes == 2 * 24
    assert (low | high) is batch.everyone
    assert second.selected(lane).tolist() == list(range(32))
    assert here.selected(np.array([[5], [7]])).tolist() == [5] * 8
    assert rest.selected(np.int64(3)).tolist() == [3] * 8


def test_lanes_of_two_warps_as_bits_and_counts() -> None:
    """Of two blocks of two warps: lanes that differ between blocks, those alike in both, and a whole block; three masks counted at once."""
    batch, lane = Batch(0, 2, (2, 1, 1), (64, 1, 1)), np.arange(64)
    some, alike = Mask(batch, np.stack([lane < 3, lane >= 40])), Mask(batch, lane[None, :] < 8)
    second, more = Mask(batch, np.array([[False], [True]])), Mask(batch, np.stack([lane > 30, lane == 0]))
    assert some.bits.tolist() == [[0b111, 0], [0, 0xFFFFFF00]]
    assert alike.bits.tolist() == [[0xFF, 0]]
    assert second.bits.tolist() == [[0, 0], [0xFFFFFFFF, 0xFFFFFFFF]]
    count_warps([some, alike, second, more])
    assert [mask.warps for mask in (some, alike, second, more, batch.everyone)] == [2, 2, 2, 3, 4]
    assert [mask.lanes for mask in (some, alike, second, more, batch.everyone)] == [27, 16, 64, 34, 128]
    assert some.flat.tolist() == [0, 1, 2, *range(64 + 40, 128)]
    assert [mask.blocks.tolist() for mask in (some, alike, second)] == [[[True], [True]], [[True]], [[False], [True]]]
    assert Mask(batch, np.stack([lane < 0, lane >= 40])).blocks.tolist() == [[False], [True]]
    assert some.selected(np.arange(128).reshape(2, 64)).tolist() == some.flat.tolist()
    assert some.selected(lane[None, :]).tolist() == [0, 1, 2, *range(40, 64)]
