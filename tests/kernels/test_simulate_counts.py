"""Requests, sectors and bytes of global memory, against numbers derived here by hand or by plain sets.

An array begins at a multiple of 32 bytes, as every allocation on a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from _by_hand import line_of, sectors, threads_of, warps_of

from gpulab.kernels import Simulation, cuda, float32, float64, simulate
from gpulab.kernels._simulate._counters import Counters
from gpulab.kernels._simulate._geometry import Batch, Mask
from gpulab.kernels._simulate._memory import Store

DTYPES = {1: np.uint8, 2: np.int16, 4: np.float32, 8: np.float64, 16: np.complex128}


def strided(x, y, stride, offset):
    i = cuda.grid(1)
    v = x[i * stride + offset]  # load
    y[i * stride + offset] = v  # store


@pytest.mark.parametrize("size", DTYPES)
@pytest.mark.parametrize("stride", range(1, 34))
def test_sectors_of_a_stride(stride: int, size: int) -> None:
    """By hand: steps of up to a sector leave none out between the first byte and the last; longer steps touch one a lane."""
    x = np.zeros(128 * stride, DTYPES[size])
    s = simulate(strided, 2, 64, x, x.copy(), stride, 0)
    step = stride * size
    expected = (31 * step + size - 1) // 32 + 1 if step <= 32 else 32
    for mark in ("load", "store"):
        line = s.lines[line_of(strided, mark)]
        assert (line.global_requests, line.global_sectors) == (4, 4 * expected)
        assert line.sectors_per_request == expected
        assert line.ideal_sectors_per_request == size  # 32 lanes of so many bytes fill as many sectors of 32
        assert (line.global_bytes_requested, line.global_bytes_moved) == (4 * 32 * size, 4 * 32 * expected)
    assert (s.totals.global_load_requests, s.totals.global_store_requests) == (4, 4)
    assert (s.totals.global_load_sectors, s.totals.global_store_sectors) == (4 * expected, 4 * expected)
    assert s.totals.atomic_requests == s.totals.shared_requests == 0


@pytest.mark.parametrize("size", DTYPES)
@pytest.mark.parametrize("offset", [*range(1, 9), 16, 31, 32, 33])
def test_an_offset_costs_a_sector_unless_it_is_a_whole_one(offset: int, size: int) -> None:
    """By hand: 32 neighbours fill ``size`` sectors where they begin at a sector's border, one more elsewhere."""
    x = np.zeros(32 * 3 + offset, DTYPES[size])
    s = simulate(strided, 3, 32, x, x.copy(), 1, offset)
    expected = size if offset * size % 32 == 0 else size + 1
    assert s.lines[line_of(strided, "load")].global_sectors == 3 * expected
    assert s.lines[line_of(strided, "store")].global_sectors == 3 * expected


def test_a_negative_stride_counts_as_its_mirror() -> None:
    """By hand: 32 reversed neighbours of 4 bytes are four sectors; every second one eight; one element later five."""
    x = np.zeros(200, np.float32)
    for stride, offset, expected in ((-1, 31, 4), (-2, 62, 8), (-1, 32, 5), (-8, 192, 25), (0, 7, 1)):
        threads = 25 if stride == -8 else 32  # at 192, 184, ..., 0
        s = simulate(strided, 1, threads, x, x.copy(), stride, offset)
        assert s.lines[line_of(strided, "load")].global_sectors == expected, (stride, offset)


def gather(x, places, out):
    i = cuda.grid(1)
    p = places[i]
    v = x[p]  # load
    out[i] = v


# 32 places of float32, eight to a sector; the number of sectors counted by hand.
LISTS = {
    "all the same": ([7] * 32, 1),
    "the two ends of one sector": ([0] * 16 + [7] * 16, 1),
    "either side of a border": ([7, 8] * 16, 2),
    "one lane far away": ([*range(31), 1000], 5),
    "one lane in the next sector": ([0] * 31 + [8], 2),
    "halves apart": ([*range(16), *range(1000, 1016)], 4),  # 1000 is 125 sectors: both halves begin at a border
    "halves apart, the second askew": ([*range(16), *range(1001, 1017)], 5),
    "one each sector": (list(range(0, 256, 8)), 32),
    "one each sector, shuffled": ([8 * (i * 13 % 32) for i in range(32)], 32),
    "last of each sector": (list(range(7, 256, 8)), 32),
    "two a sector": ([8 * (i // 2) + 7 * (i % 2) for i in range(32)], 16),
    "neighbours in any order": ([i * 11 % 32 for i in range(32)], 4),
    "pairs swapped": ([i ^ 1 for i in range(32)], 4),
    "a butterfly of 16": ([i ^ 16 for i in range(32)], 4),
    "every third": (list(range(0, 96, 3)), 12),
    "squares": ([i * i for i in range(32)], 30),  # 0, 1 and 4 share a sector, the others are 7 apart and more
    "triangular numbers": ([i * (i + 1) // 2 for i in range(32)], 28),  # 0 1 3 6, then 10 15, then one each
    "powers of two and zeros": ([1 << i if i < 10 else 0 for i in range(32)], 8),  # 0 1 2 4 | 8 | 16 | 32 | ... | 512
    "a pyramid": ([min(i, 31 - i) for i in range(32)], 2),
    "a random walk": ([5, 4, 3, 9, 10, 11, 30, 31, 32, 33, 64, 65, 5, 5, 63, 62, 100, 99, 98, 97, 200, 208, 216, 224, *[9] * 8], 11),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_sectors_of_places_listed_by_hand(name: str) -> None:
    """A gather through a list: the sectors are those of the different values of place // 8."""
    places, expected = LISTS[name]
    assert len({place // 8 for place in places}) == expected, "the number written beside the list is wrong"
    x = np.zeros(1024, np.float32)
    s = simulate(gather, 1, 32, x, np.array(places, np.int32), np.zeros(32, np.float32))
    line = s.lines[line_of(gather, "load")]
    assert (line.global_requests, line.global_sectors, line.global_bytes_requested) == (1, expected, 128)


@pytest.mark.parametrize("size", DTYPES)
def test_a_gather_at_random_in_every_size(size: int) -> None:
    """1,000 random places, the last warp partly filled: the sectors of each warp's set of bytes."""
    places = np.random.default_rng(size).integers(0, 3000, 1000)
    x, out = np.zeros(3000, DTYPES[size]), np.zeros(1000, DTYPES[size])
    s = simulate(gather, 8, 125, x, places, out)
    expected = requests = 0
    for block in range(8):
        for warp in warps_of(places[block * 125 : block * 125 + 125].tolist()):
            expected += sectors(warp, size)
            requests += 1
    line = s.lines[line_of(gather, "load")]
    assert (line.global_requests, line.global_sectors, line.global_bytes_requested) == (requests, expected, 1000 * size)


def shared_by_some(x, out, lanes, gap):
    i = cuda.grid(1)
    v = x[i // lanes * gap]  # load
    out[i] = v


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("gap", [1, 8, 32])
def test_lanes_that_share_an_element_share_its_sector(lanes: int, gap: int) -> None:
    """By hand: 32 / lanes different elements (at least one), ``gap`` floats apart: gap * 4 bytes, at most a sector, each."""
    s = simulate(shared_by_some, 2, 64, np.zeros(128 * gap, np.float32), np.zeros(128, np.float32), lanes, gap)
    different = max(1, 32 // lanes)
    expected = max(1, different * min(4 * gap, 32) // 32)
    assert s.lines[line_of(shared_by_some, "load")].global_sectors == 4 * expected


def guarded(x, y, n):
    i = cuda.grid(1)
    if i < n:  # guard
        y[i] = x[i]  # copy


@pytest.mark.parametrize("n", [1, 7, 8, 9, 31, 32, 33, 47, 64, 100, 127, 128])
def test_a_guard_leaves_partial_warps(n: int) -> None:
    """By hand: ceil(n / 32) warps copy ceil(n / 8) sectors (full warps end at a border); the guard diverges in at most one warp."""
    s = simulate(guarded, 4, 32, np.zeros(n, np.float32), np.zeros(n, np.float32), n)
    line = s.lines[line_of(guarded, "copy")]
    assert (line.executed_warps, line.active_lanes) == (-(-n // 32), n)
    assert (line.global_requests, line.global_sectors) == (2 * -(-n // 32), 2 * -(-n // 8))
    assert (line.ideal_global_sectors, line.global_bytes_requested) == (2 * -(-n // 8), 8 * n)
    guard = s.lines[line_of(guarded, "guard")]
    assert (guard.branches, guard.divergent_branches) == (4, int(n % 32 != 0))


@pytest.mark.parametrize("threads", [1, 31, 32, 33, 48, 64, 95, 1024])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_blocks_of_odd_sizes(threads: int, size: int) -> None:
    """Three blocks: block b's warp w begins at element b * threads + 32 * w, aligned or not; the last warp may be partly empty."""
    x = np.zeros(3 * threads, DTYPES[size])
    s = simulate(strided, 3, threads, x, x.copy(), 1, 0)
    expected = requests = 0
    for block in range(3):
        for first in range(0, threads, 32):
            begin, end = (block * threads + first) * size, (block * threads + min(first + 32, threads)) * size
            expected += (end - 1) // 32 - begin // 32 + 1
            requests += 1
    line = s.lines[line_of(strided, "load")]
    assert (line.executed_warps, line.active_lanes) == (requests, 3 * threads)
    assert (line.global_requests, line.global_sectors) == (requests, expected)


def some_lanes(x, y, modulus, low, high):
    i = cuda.grid(1)
    if low <= i % modulus < high:  # guard
        y[i] = x[i]  # copy


@pytest.mark.parametrize(
    ("modulus", "low", "high", "sectors_each", "diverges"),
    [
        (2, 0, 1, 4, True),  # even lanes: every sector is still touched
        (2, 1, 2, 4, True),  # odd ones as well
        (4, 3, 4, 4, True),
        (8, 5, 6, 4, True),
        (16, 0, 1, 2, True),  # lanes 0 and 16: two sectors
        (32, 31, 32, 1, True),
        (32, 0, 8, 1, True),
        (32, 4, 12, 2, True),
        (32, 0, 16, 2, True),
        (32, 7, 25, 4, True),  # lanes 7 to 24: sectors 0 to 3
        (32, 8, 24, 2, True),
        (32, 0, 32, 4, False),
    ],
)
def test_masked_lanes(modulus: int, low: int, high: int, sectors_each: int, diverges: bool) -> None:
    """By hand: the sectors of 8 floats in which an active lane lies; inactive lanes ask for nothing."""
    s = simulate(some_lanes, 2, 96, np.zeros(192, np.float32), np.zeros(192, np.float32), modulus, low, high)
    line = s.lines[line_of(some_lanes, "copy")]
    active = 32 // modulus * (high - low)
    assert (line.executed_warps, line.active_lanes) == (6, 6 * active)
    assert (line.global_requests, line.global_sectors) == (12, 12 * sectors_each)
    assert line.ideal_global_sectors == 12 * min(sectors_each, -(-4 * active // 32))
    guard = s.lines[line_of(some_lanes, "guard")]
    assert (guard.branches, guard.divergent_branches) == (6, 6 * diverges)


def by_rows(x, y, width):
    i, j = cuda.grid(2)
    y[j * width + i] = x[j * width + i]  # copy


def by_columns(x, y, width):
    i, j = cuda.grid(2)
    y[i * width + j] = x[i * width + j]  # copy


@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("block", [(16, 16), (8, 4), (33, 3), (32, 8), (1, 32), (5, 7)])
@pytest.mark.parametrize("kernel", [by_rows, by_columns])
def test_blocks_of_two_dimensions(kernel: Callable, block: tuple[int, int], size: int) -> None:
    """A grid of 2 x 3 blocks, row by row and column by column: the sets of bytes of each warp, threads in the order x, y."""
    width = 132
    x = np.zeros(width * width, DTYPES[size])
    s = simulate(kernel, (2, 3), block, x, x.copy(), width)
    expected = requests = 0
    for bx, by in [(bx, by) for by in range(3) for bx in range(2)]:
        at = [(bx * block[0] + tx, by * block[1] + ty) for tx, ty, _ in threads_of(block)]
        places = [j * width + i if kernel is by_rows else i * width + j for i, j in at]
        for warp in warps_of(places):
            expected += 2 * sectors(warp, size)
            requests += 2
    line = s.lines[line_of(kernel, "copy")]
    assert (line.global_requests, line.global_sectors) == (requests, expected)


def test_blocks_of_two_dimensions_by_hand() -> None:
    """By hand, float32, rows of 64: a warp of 16 x 16 is two half rows (2 x 2 sectors) or 16 rows of two neighbours (16)."""
    x = np.zeros(64 * 64, np.float32)
    for block, rows, columns in (((16, 16), 4, 16), ((8, 4), 4, 8), ((32, 1), 4, 32), ((1, 32), 32, 4)):
        warps = 64 * 64 // 32
        grid = (64 // block[0], 64 // block[1])
        assert simulate(by_rows, grid, block, x, x.copy(), 64).totals.global_sectors == 2 * warps * rows
        assert simulate(by_columns, grid, block, x, x.copy(), 64).totals.global_sectors == 2 * warps * columns


def in_space(x, y):
    i, j, k = cuda.grid(3)
    y[k, j, i] = x[k, j, i]  # copy
    y[i, j, k] += x[i, j, k]  # turned


@pytest.mark.parametrize("block", [(4, 4, 4), (2, 3, 5), (8, 2, 2), (1, 1, 33)])
def test_blocks_of_three_dimensions(block: tuple[int, int, int]) -> None:
    """A 2 x 1 x 2 grid over a cube of 66 cubed float32: sets of each warp. ``+=`` loads what it stores to."""
    x = np.zeros((66, 66, 66), np.float32)
    s = simulate(in_space, (2, 1, 2), block, x, x.copy())
    straight = turned = requests = 0
    for bx, bz in ((0, 0), (1, 0), (0, 1), (1, 1)):
        at = [(bx * block[0] + tx, ty, bz * block[2] + tz) for tx, ty, tz in threads_of(block)]
        for warp in warps_of(at):
            straight += sectors([(k * 66 + j) * 66 + i for i, j, k in warp], 4)
            turned += sectors([(i * 66 + j) * 66 + k for i, j, k in warp], 4)
            requests += 1
    copy, turn = s.lines[line_of(in_space, "copy")], s.lines[line_of(in_space, "turned")]
    assert (copy.global_requests, copy.global_sectors) == (2 * requests, 2 * straight)
    assert (turn.global_requests, turn.global_sectors) == (3 * requests, 3 * turned)
    assert (turn.global_load_requests, turn.global_store_requests) == (2 * requests, requests)


def transpose(a, b):
    c, r = cuda.grid(2)
    v = a[r, c]  # read
    b[c, r] = v  # write


def transpose_tiled(a, b):
    tile = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    c, r = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for k in range(0, 32, cuda.blockDim.y):
        tile[ty + k, tx] = a[r + ty + k, c + tx]  # read
    cuda.syncthreads()
    for k in range(0, 32, cuda.blockDim.y):
        b[c + ty + k, r + tx] = tile[tx, ty + k]  # write


def transpose_padded(a, b):
    tile = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    c, r = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for k in range(0, 32, cuda.blockDim.y):
        tile[ty + k, tx] = a[r + ty + k, c + tx]  # read
    cuda.syncthreads()
    for k in range(0, 32, cuda.blockDim.y):
        b[c + ty + k, r + tx] = tile[tx, ty + k]  # write


def test_transposes() -> None:
    """By hand for 64 x 96 floats: 192 warps read rows of 4 sectors; naive stores take 32 each; a tile's column conflicts 32 ways."""
    a = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    warps = 64 * 96 // 32
    b = np.zeros((96, 64), np.float32)
    s = simulate(transpose, (3, 8), (32, 8), a, b)
    np.testing.assert_array_equal(b, a.T)
    assert s.lines[line_of(transpose, "read")].global_sectors == 4 * warps
    assert s.lines[line_of(transpose, "write")].global_sectors == 32 * warps
    for kernel, ways in ((transpose_tiled, 32), (transpose_padded, 1)):
        for rows in (8, 16, 32):
            b = np.zeros((96, 64), np.float32)
            s = simulate(kernel, (3, 2), (32, rows), a, b)
            np.testing.assert_array_equal(b, a.T)
            read, write = s.lines[line_of(kernel, "read")], s.lines[line_of(kernel, "write")]
            assert (read.global_sectors, write.global_sectors) == (4 * warps, 4 * warps)
            assert (read.shared_wavefronts, write.shared_wavefronts) == (warps, ways * warps)
            assert (read.shared_requests, write.shared_requests, write.conflict_ways) == (warps, warps, ways)
            assert s.totals.barriers == 6
            assert s.shared_bytes == 32 * (32 if ways == 32 else 33) * 4


def grid_stride(x, y):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):  # loop
        y[i] = 2 * x[i]  # body


@pytest.mark.parametrize(("grid", "block", "n"), [(2, 64, 1000), (3, 32, 96), (1, 32, 33), (4, 48, 500), (2, 128, 5), (7, 96, 10_007)])
def test_a_grid_stride_loop(grid: int, block: int, n: int) -> None:
    """By hand: thread i goes round ceil((n - i) / threads) times, and a warp tests once more than its longest lane goes round."""
    s = simulate(grid_stride, grid, block, np.zeros(n, np.float32), np.zeros(n, np.float32))
    tests = divergent = requests = touched = lanes = 0
    for b in range(grid):
        for first in range(0, block, 32):
            starts = range(b * block + first, b * block + min(first + 32, block))
            trips = [max(0, -(-(n - i) // (grid * block))) for i in starts]
            tests += max(trips) + 1
            divergent += len(set(trips)) - 1
            requests += max(trips)
            for turn in range(max(trips)):
                active = [i + turn * grid * block for i, t in zip(starts, trips, strict=True) if t > turn]
                touched += sectors(active, 4)
                lanes += len(active)
    assert lanes == n
    loop, body = s.lines[line_of(grid_stride, "loop")], s.lines[line_of(grid_stride, "body")]
    assert (loop.branches, loop.divergent_branches, loop.executed_warps) == (tests, divergent, tests)
    assert (body.executed_warps, body.active_lanes) == (requests, n)
    assert (body.global_load_requests, body.global_store_requests, body.global_sectors) == (requests, requests, 2 * touched)


def atomics(counts, x, bins):
    i = cuda.grid(1)
    cuda.atomic.add(counts, x[i] % bins, 1)  # atomic


@pytest.mark.parametrize(("bins", "sectors_each"), [(1, 1), (8, 1), (16, 2), (32, 4), (3, 1), (9, 2)])
def test_an_atomic_is_one_request(bins: int, sectors_each: int) -> None:
    """By hand: 4 warps add to ``bins`` int32 counters, eight to a sector; an atomic is neither a load nor a store."""
    counts = np.zeros(32, np.int32)
    s = simulate(atomics, 2, 64, counts, np.arange(128, dtype=np.int32), bins)
    assert counts.sum() == 128
    line = s.lines[line_of(atomics, "atomic")]
    assert (line.atomic_requests, line.global_requests, line.global_load_requests, line.global_store_requests) == (4, 8, 4, 0)
    assert line.global_sectors == 4 * sectors_each + 4 * 4
    assert line.global_bytes_requested == 2 * 128 * 4


def twice(x, y):
    i = cuda.grid(1)
    y[i] = x[i] * x[i] + x[i]  # thrice
    y[i] += 1  # updated


def test_a_repeated_load_is_not_merged() -> None:
    """By hand: three loads and a store in the first line, one load and one store in the second, for each of 2 warps."""
    s = simulate(twice, 1, 64, np.zeros(64, np.float32), np.zeros(64, np.float32))
    first, second = s.lines[line_of(twice, "thrice")], s.lines[line_of(twice, "updated")]
    assert (first.global_load_requests, first.global_store_requests, first.global_sectors) == (6, 2, 32)
    assert (second.global_load_requests, second.global_store_requests, second.global_sectors) == (2, 2, 16)


def lazily(x, y, out, n):
    i = cuda.grid(1)
    v = x[i] if i % 2 == 0 else y[i]  # chosen
    if i < n and x[i] >= 0:  # both
        v += 1
    if i >= n or y[i] >= 0:  # either
        v += 1
    out[i] = v


def test_choices_inside_an_expression_ask_only_for_their_lanes() -> None:
    """By hand, 64 lanes, n = 40: 16 + 16 lanes choose; 40 look at x, in 2 warps; 40 look at y; no branch but the two ifs."""
    x = np.zeros(64, np.float32)
    s = simulate(lazily, 1, 64, x, x.copy(), x.copy(), 40)
    chosen, both, either = (s.lines[line_of(lazily, mark)] for mark in ("chosen", "both", "either"))
    assert (chosen.branches, chosen.global_requests, chosen.global_bytes_requested) == (0, 4, 64 * 4)
    assert chosen.global_sectors == 4 * 4
    assert (both.branches, both.divergent_branches) == (2, 1)  # lanes 32 to 39 go in, 40 to 63 do not
    assert (both.global_requests, both.global_bytes_requested, both.global_sectors) == (2, 40 * 4, 4 + 1)
    assert (either.branches, either.divergent_branches) == (2, 0)
    assert (either.global_requests, either.global_bytes_requested, either.global_sectors) == (2, 40 * 4, 4 + 1)


WEIGHTS = np.array([1.0, 2.0, 3.0], np.float32)


def uncounted(x):
    i = cuda.grid(1)
    mine = cuda.local.array(4, float32)
    for k in range(3):
        mine[k] = WEIGHTS[k]
    mine[3] = mine[i % 3]
    x[i] = mine[3]  # store


def test_local_arrays_and_constants_are_not_counted() -> None:
    """By hand: the one store of 2 warps is all there is."""
    x = np.zeros(64, np.float32)
    s = simulate(uncounted, 1, 64, x)
    np.testing.assert_array_equal(x, WEIGHTS[np.arange(64) % 3])
    assert (s.totals.global_requests, s.totals.shared_requests, s.totals.global_sectors) == (2, 0, 8)
    assert s.lines[line_of(uncounted, "store")].global_requests == 2


def rows_of(x, out):
    i = cuda.grid(1)
    row = x[i]
    part = row[2:6]
    out[i] = part[1] + x[i, 0]  # load


def test_a_row_and_a_slice_ask_for_the_element_itself() -> None:
    """By hand: element (i, 3) and element (i, 0) of rows of 16 floats: 64 bytes apart, so one sector a lane, twice."""
    x = np.zeros((64, 16), np.float32)
    s = simulate(rows_of, 1, 64, x, np.zeros(64, np.float32))
    line = s.lines[line_of(rows_of, "load")]
    assert (s.totals.global_load_requests, line.global_load_sectors, line.global_store_sectors) == (4, 2 * 64, 8)


def loaded(x, i):
    return x[i] + x[0]  # inside


def calls(x, y):
    i = cuda.grid(1)
    y[i] = loaded(x, 2 * i)  # outside


def test_a_device_function_counts_on_its_own_line() -> None:
    """By hand: 2 warps load at stride 2 (8 sectors) and one element for all (1) inside; outside they store 4."""
    s = simulate(calls, 1, 64, np.zeros(128, np.float32), np.zeros(64, np.float32))
    inside, outside = s.lines[line_of(loaded, "inside")], s.lines[line_of(calls, "outside")]
    assert (inside.global_requests, inside.global_sectors, inside.executed_warps) == (4, 2 * 9, 2)
    assert (outside.global_requests, outside.global_sectors, outside.executed_warps) == (2, 8, 2)


def both_ways(x, y):
    i = cuda.grid(1)
    v = x[i] + y[i]  # loads
    x[i] = v  # store


def test_accesses_are_told_apart_by_array_and_kind() -> None:
    """By hand: a load of 4-byte x, one of 8-byte y and a store of x, for 3 warps."""
    s: Simulation = simulate(both_ways, 3, 32, np.zeros(96, np.float32), np.zeros(96, np.float64))
    load, store = line_of(both_ways, "loads"), line_of(both_ways, "store")
    found = {(a.line, a.array, a.space, a.kind): (a.requests, a.lanes, a.bytes_requested, a.sectors, a.ideal_sectors) for a in s.accesses}
    assert found == {
        (load, "x", "global", "load"): (3, 96, 384, 12, 12),
        (load, "y", "global", "load"): (3, 96, 768, 24, 24),
        (store, "x", "global", "store"): (3, 96, 384, 12, 12),
    }


def one_place(x, out):
    i = cuda.grid(1)
    v = x[cuda.blockIdx.x]  # of the block
    w = x[5]  # of all
    out[i] = v + w


@pytest.mark.parametrize("size", DTYPES)
@pytest.mark.parametrize("threads", [32, 40, 96])
def test_an_element_for_all_is_one_sector_for_each_warp(size: int, threads: int) -> None:
    """By hand: whatever its size, one sector for each of ceil(threads / 32) warps of 3 blocks."""
    s = simulate(one_place, 3, threads, np.zeros(8, DTYPES[size]), np.zeros(3 * threads, DTYPES[size]))
    warps = 3 * -(-threads // 32)
    for mark in ("of the block", "of all"):
        line = s.lines[line_of(one_place, mark)]
        assert (line.global_requests, line.global_sectors, line.ideal_global_sectors) == (warps, warps, warps)
        assert line.global_bytes_requested == 3 * threads * size


def test_what_waits_to_be_counted_is_counted_before_it_takes_much_memory() -> None:
    """By hand: 32 elements and 16 words beside, 48 of 8 bytes; 341 of them are below 128 KiB, and with one more all are counted."""
    batch = Batch(0, 1, (1, 1, 1), (32, 1, 1))
    half = Mask(batch, np.arange(32)[None, :] < 16)
    for mask, waiting, touched in ((batch.everyone, 341, 4), (half, 315, 2)):  # 32 truth values are four words more
        counters, store = Counters(), Store("x", "global", np.zeros(32, np.float32), 32)
        for _ in range(waiting):
            counters.access(7, store, "load", np.arange(32)[None, :], mask)
        assert counters.accesses == {}
        counters.access(7, store, "load", np.arange(32)[None, :], mask)
        (found,) = counters.accesses.values()
        assert (found.requests, found.sectors) == (waiting + 1, (waiting + 1) * touched)
        counters.access(7, store, "load", np.arange(32)[None, :], mask)
        assert found.requests == waiting + 1


@pytest.mark.parametrize(("lanes", "statements"), [(32, 64), (2**14, 64), (2**15, 33), (2**20, 2), (2**20 + 1, 1), (2**22, 1)])
def test_how_many_statements_wait_to_be_counted(lanes: int, statements: int) -> None:
    """Of few lanes 64; of many as many as a million lanes have, and one at the least."""
    assert Counters().patience(lanes) == statements


def doubles_of_some_halves(out):
    tile = cuda.shared.array(128, float64)
    t = cuda.threadIdx.x
    if t % 32 < 16 or t >= 64:
        tile[t] = 1.0
    cuda.syncthreads()
    out[t] = tile[t] if t >= 64 else 0.0


def test_a_half_of_a_warp_that_takes_no_part_needs_no_pass() -> None:
    """Of 8 bytes a lane a warp needs two passes, one for each half: one of each of two warps that store a half, two of two whole ones."""
    s = simulate(doubles_of_some_halves, 3, 128, np.zeros(128))
    (store,) = [a for a in s.accesses if (a.space, a.kind) == ("shared", "store")]
    assert (store.wavefronts, store.ideal_wavefronts) == (3 * (1 + 1 + 2 + 2),) * 2
    assert (store.requests, store.lanes) == (3 * 4, 3 * (16 + 16 + 32 + 32))


def test_requests_that_are_counted_at_once_by_hand() -> None:
    """Of float32 a whole warp in a row is 4 sectors, three lanes far apart 3 where 1 would hold their 12 bytes, and one lane is 1."""
    elements = np.stack([np.arange(32), 100 * np.arange(32), np.full(32, 7)])
    active = np.stack([np.ones(32, bool), np.arange(32) % 12 == 1, np.arange(32) == 31])
    counters, store = Counters(), Store("x", "global", np.zeros(4000, np.float32), 4000)
    for times in (1, 2):
        counters.requests(7, store, "load", elements, active)
        ((key, found),) = counters.accesses.items()
        assert key == (7, "x", "global", "load")
        assert (found.requests, found.lanes, found.bytes_requested) == (times * 3, times * 36, times * 4 * 36)
        assert (found.sectors, found.ideal_sectors) == (times * (4 + 3 + 1), times * (4 + 1 + 1))
    assert [*counters.lines] == [7]
