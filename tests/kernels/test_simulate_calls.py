"""The calls of cuda one by one, each by hand: where a thread is, what a barrier orders and counts, what lanes give each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpulab.kernels import cuda, float32, float64, int32, int64, simulate, uint8
from gpulab.kernels._simulate import _calls, _warp
from gpulab.kernels._simulate._registry import FUNCTIONS, INTRINSICS

GRID, BLOCK = (2, 3, 2), (4, 2, 3)
ALL = 0xFFFFFFFF


def places(out):
    b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    out[b, t, 0], out[b, t, 1], out[b, t, 2] = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    out[b, t, 3], out[b, t, 4], out[b, t, 5] = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    out[b, t, 6], out[b, t, 7], out[b, t, 8] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    out[b, t, 9], out[b, t, 10], out[b, t, 11] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
    out[b, t, 12], out[b, t, 13], out[b, t, 14] = cuda.grid(ndim=3)
    out[b, t, 15], out[b, t, 16], out[b, t, 17] = cuda.gridsize(3)
    i, j = cuda.grid(2)
    rows, columns = cuda.gridsize(ndim=2)
    out[b, t, 18], out[b, t, 19], out[b, t, 20], out[b, t, 21] = i, j, rows, columns
    out[b, t, 22], out[b, t, 23], out[b, t, 24], out[b, t, 25] = cuda.grid(1), cuda.gridsize(1), cuda.laneid, cuda.warpsize


def test_where_a_thread_is() -> None:
    """Each number of each thread in a grid and a block of three dimensions, x running first: grid(1) and grid(2) are its first axes."""
    out = np.full((12, 24, 26), -1, np.int64)
    assert simulate(places, GRID, BLOCK, out).findings == ()
    blocks = itertools.product(range(GRID[2]), range(GRID[1]), range(GRID[0]))
    for b, (bz, by, bx) in enumerate(blocks):
        for t, (tz, ty, tx) in enumerate(itertools.product(range(BLOCK[2]), range(BLOCK[1]), range(BLOCK[0]))):
            x, y, z = 4 * bx + tx, 2 * by + ty, 3 * bz + tz
            expected = [tx, ty, tz, bx, by, bz, *BLOCK, *GRID, x, y, z, 8, 6, 6, x, y, 8, 6, x, 8, t, 32]
            assert out[b, t].tolist() == expected


def lanes_before(out):
    t = cuda.threadIdx.x
    out[t, 0], out[t, 1] = cuda.laneid, cuda.lanemask_lt()
    if t % 2:
        out[t, 2] = cuda.activemask()


def test_lanes_and_those_before_them() -> None:
    """Of two warps: the lane's number, a bit for each lane before it, and a bit for each that is in the branch: the odd ones."""
    out = np.zeros((64, 3), np.int64)
    simulate(lanes_before, 1, 64, out)
    assert out[:, 0].tolist() == [*range(32)] * 2
    assert out[:, 1].tolist() == [2**lane - 1 for lane in range(32)] * 2
    assert out[:, 2].tolist() == [0, 0b10101010_10101010_10101010_10101010] * 32


def turned_by_nothing(x, out):
    tile = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    out[t] = tile[63 - t]


def turned(x, out):
    tile = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[63 - t]


def turned_by_a_count(x, out):
    tile = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    n = cuda.syncthreads_count(x[t] % 3)
    out[t] = 1000 * tile[63 - t] + n


def turned_by_all(x, out):
    tile = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    n = cuda.syncthreads_and(x[t] + 1)
    out[t] = 1000 * tile[63 - t] + n


def turned_by_any(x, out):
    tile = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    n = cuda.syncthreads_or(x[t] // 64)
    out[t] = 1000 * tile[63 - t] + n


@pytest.mark.parametrize(("kernel", "scale", "voted"), [
    (turned, 1, 0),
    # Of 0 to 63 all but 22 leave something when divided by 3.
    (turned_by_a_count, 1000, 42), (turned_by_all, 1000, 1), (turned_by_any, 1000, 0),
])  # fmt: skip
def test_each_barrier_orders_what_a_block_does_before_and_after(kernel: Callable, scale: int, voted: int) -> None:
    """The numbers that two warps exchange are all there, nothing is found, and each of three blocks passes once; without, they race."""
    x, out = np.arange(64), np.zeros(64, np.int64)
    s = simulate(kernel, 1, 64, x, out)
    assert s.findings == ()
    assert s.totals.barriers == 1
    assert out.tolist() == [scale * (63 - t) + voted for t in range(64)]
    (line,) = [number for number, counts in s.lines.items() if counts.barriers]
    assert "cuda.syncthreads" in s.source[line]
    bare = simulate(turned_by_nothing, 1, 64, x, np.zeros(64, np.int64))
    assert {finding.kind for finding in bare.findings} >= {"race"}
    assert bare.totals.barriers == 0


def exchanged_in_a_warp(x, out, members):
    tile = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncwarp()
    out[t] = tile[31 - t]
    cuda.syncwarp(members)
    tile[t] = out[t]
    cuda.syncwarp(membermask=members)
    out[t] += tile[(t + 1) % 32]


def exchanged_by_luck(x, out):
    tile = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    out[t] = tile[31 - t]


def test_a_warp_meets_with_or_without_naming_its_lanes() -> None:
    """By hand 31 - t and its neighbour's 30 - t, the first after the last; lanes that trust their being in step are told of the race."""
    out = np.zeros(32, np.int64)
    assert simulate(exchanged_in_a_warp, 1, 32, np.arange(32), out, ALL).findings == ()
    assert out.tolist() == [*(61 - 2 * t for t in range(31)), 31]
    assert [f.kind for f in simulate(exchanged_by_luck, 1, 32, np.arange(32), np.zeros(32, np.int64)).findings] == ["race"]


def exchanges(out):
    t = cuda.threadIdx.x
    v = int64(10 * t)
    out[t, 0] = cuda.shfl_sync(0xFFFFFFFF, v, 3)
    out[t, 1] = cuda.shfl_up_sync(0xFFFFFFFF, v, 2)
    out[t, 2] = cuda.shfl_down_sync(0xFFFFFFFF, v, 5)
    out[t, 3] = cuda.shfl_xor_sync(0xFFFFFFFF, v, 9)
    out[t, 4] = cuda.all_sync(0xFFFFFFFF, t >= 32)
    out[t, 5] = cuda.any_sync(0xFFFFFFFF, t == 40)
    out[t, 6] = cuda.eq_sync(0xFFFFFFFF, t < 40)
    out[t, 7] = cuda.ballot_sync(0xFFFFFFFF, t % 4 == 1)
    out[t, 8] = cuda.match_any_sync(0xFFFFFFFF, t // 8)


def test_what_lanes_give_each_other() -> None:
    """Of two warps, each for itself; who asks beyond the warp keeps its own."""
    out = np.zeros((64, 9), np.int64)
    assert simulate(exchanges, 1, 64, out).findings == ()
    for t in range(64):
        first, lane = t // 32 * 32, t % 32
        assert out[t, :4].tolist() == [
            10 * (first + 3), 10 * (t - 2 if lane >= 2 else t), 10 * (t + 5 if lane < 27 else t), 10 * (first + (lane ^ 9))
        ]  # fmt: skip
        assert out[t, 4:8].tolist() == [first == 32, first == 32, first == 0, 0x22222222]
        assert out[t, 8] & ALL == 0xFF << lane // 8 * 8  # an int32, whose last bit is the sign


def test_the_lowest_of_some_lanes() -> None:
    """Whom a message names: the first bit that is set, and none of those above it."""
    assert [_warp._lowest(bits) for bits in (1, 0b1100, 0x80000000, ALL)] == [0, 2, 31, 0]


def some_vote(out):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b < 2:
        out[b, t, 0] = cuda.syncthreads_count(int32(t < 5 + b))
        out[b, t, 1] = cuda.syncthreads_and(int32(t < 64 - b))
        out[b, t, 2] = cuda.syncthreads_or(int32(t == 63 and b == 1))
    if t < 32:
        out[b, t, 3] = cuda.any_sync(0xFFFFFFFF, t == b)
        out[b, t, 4] = cuda.all_sync(0xFFFFFFFF, t >= b)
        out[b, t, 5] = cuda.match_any_sync(0xFFFFFFFF, t // (16 * (b + 1)))


def test_blocks_vote_for_themselves() -> None:
    """Of three blocks of two warps two count 5 and 6, all and all but the last, none and the last; first warps ask for lane 0, 1, 2."""
    out = np.full((3, 64, 6), -1, np.int64)
    assert simulate(some_vote, 3, 64, out).findings == ()
    for b in range(3):
        assert {tuple(row) for row in out[b, :, :3].tolist()} == {[(5, 1, 0), (6, 0, 1), (-1, -1, -1)][b]}
        assert {tuple(row) for row in out[b, :32, 3:5].tolist()} == {(1, int(b == 0))}
        assert (out[b, 32:, 3:] == -1).all()
    assert [out[0, lane, 5] & ALL for lane in (0, 15, 16, 31)] == [0xFFFF, 0xFFFF, 0xFFFF0000, 0xFFFF0000]
    assert {value & ALL for value in out[1:, :32, 5].ravel().tolist()} == {ALL}


TABLE = np.array([[2.5, 3.5], [4.5, 5.5]])


def arrays_of_its_own(out, rounds):
    i = cuda.grid(1)
    table = cuda.const.array_like(TABLE)
    pair = cuda.shared.array(shape=(2, 3), dtype=uint8)
    out[i, 0] = table[i % 2, 1]
    out[i, 1], out[i, 2], out[i, 3] = len(pair), len(table), len((1, 2, 3))
    for k in range(rounds):
        mine = cuda.local.array((2, 2), float64)
        mine[0, 0], mine[1, 1] = i, k
        out[i, 4] += mine[0, 0] + 100 * mine[1, 1]


def test_arrays_in_a_kernel() -> None:
    """A constant table, lengths, and local memory that each of 40 threads has for itself: twice its number, and rounds 0 and 1."""
    out = np.zeros((40, 5))
    s = simulate(arrays_of_its_own, 1, 40, out, 2)
    assert (s.findings, s.notes, s.shared_bytes) == ((), (), 6)
    assert out.tolist() == [[5.5 if t % 2 else 3.5, 2, 2, 3, 2 * t + 100] for t in range(40)]


def reads_what_an_earlier_round_wrote(out):
    for k in range(2):
        mine = cuda.local.array(1, int32)
        if k == 0:
            mine[0] = 7
        out[k] = mine[0]


def test_a_local_array_is_made_anew_in_each_round() -> None:
    """What the round before has written is gone: an integer shows itself as the unlikely 0x5EED."""
    out = np.zeros(2)
    simulate(reads_what_an_earlier_round_wrote, 1, 1, out)
    assert out.tolist() == [7, 0x5EED]


def waits_and_fences(out):
    cuda.nanosleep(100)
    out[cuda.grid(1)] = 1
    cuda.threadfence_block()
    cuda.threadfence()
    cuda.threadfence_system()


def handed_over(out, flag, seen):
    if cuda.blockIdx.x == 0:
        out[0] = 5
        cuda.threadfence()
        cuda.atomic.add(flag, 0, 1)
    elif cuda.atomic.add(flag, 0, 0) == 1:
        seen[0] = out[0]


def test_a_fence_and_a_pause_change_nothing_by_themselves() -> None:
    """No finding and no barrier; a number that is handed over by a flag after a fence arrives."""
    out = np.zeros(32)
    s = simulate(waits_and_fences, 1, 32, out)
    assert (s.findings, s.totals.barriers, out.sum()) == ((), 0, 32)
    seen = np.zeros(1)
    assert simulate(handed_over, 2, 1, np.zeros(1), np.zeros(1, np.int32), seen).findings == ()
    assert seen[0] == 5


def _shared(n: int, dtype: Any = float32) -> Callable:
    def kernel(out):
        tile = cuda.shared.array(n, dtype)
        tile[cuda.threadIdx.x] = 1
        out[cuda.threadIdx.x] = tile[cuda.threadIdx.x]

    return kernel


def test_static_shared_memory_ends_at_48_kib() -> None:
    """12,288 float32 are 48 KiB and nothing to note; one more, as one array or as a second beside it, is what a compiler refuses."""
    assert simulate(_shared(12288), 1, 1, np.zeros(1)).notes == ()
    (note,) = simulate(_shared(12289), 1, 1, np.zeros(1)).notes
    assert "take 49,156 bytes, and a GPU's compiler refuses more than 49,152 of a fixed shape" in note


def two_shared(out):
    first = cuda.shared.array(12288, float32)
    second = cuda.shared.array(1, uint8)
    third = cuda.shared.array(1, uint8)
    first[0], second[0], third[0] = 1, 2, 3
    out[0] = first[0] + second[0] + third[0]


def test_shared_memory_beyond_the_limit_is_noted_once() -> None:
    """At the array that goes beyond it, and not at the next."""
    out = np.zeros(1)
    (note,) = simulate(two_shared, 1, 1, out).notes
    assert "take 49,153 bytes" in note
    assert out[0] == 6


def test_every_name_of_cuda_is_translated() -> None:
    """What the language offers as cuda's own is known, shuffles, votes and atomics of all kinds among it."""
    names = {*FUNCTIONS, *INTRINSICS}
    axes = {f"cuda.{place}.{axis}" for place in ("threadIdx", "blockIdx", "blockDim", "gridDim") for axis in "xyz"}
    lanes = {f"cuda.shfl{kind}_sync" for kind in ("", "_up", "_down", "_xor")} | {f"cuda.{k}_sync" for k in ("all", "any", "eq", "ballot")}
    whole = ("add", "sub", "min", "max", "nanmin", "nanmax", "and_", "or_", "xor", "exch", "inc", "dec", "cas", "compare_and_swap")
    atomics = {f"cuda.atomic.{name}" for name in whole}
    assert names >= axes | lanes | atomics | {"cuda.match_any_sync", "cuda.syncwarp", "cuda.laneid", "cuda.warpsize"}
    assert _calls._SHUFFLED == ("int32", "int64", "float32", "float64")
