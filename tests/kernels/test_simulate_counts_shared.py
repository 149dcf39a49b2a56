"""Requests and wavefronts of shared memory, against numbers derived here by hand or by plain sets of words in 32 banks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from _by_hand import line_of, threads_of, warps_of, wavefronts

from gpulab.kernels import cuda, float32, float64, int32, simulate

DTYPES = {1: np.uint8, 2: np.int16, 4: np.float32, 8: np.float64, 16: np.complex128}


def strided_kernel(element_type):
    """Return a kernel whose thread t writes and reads element t * stride + offset of 4,096 of a type."""

    def strided(out, stride, offset):
        tile = cuda.shared.array(4096, element_type)
        t = cuda.threadIdx.x
        tile[t * stride + offset] = 1  # store
        out[cuda.grid(1)] = tile[t * stride + offset]  # load

    return strided


STRIDED = {size: strided_kernel(dtype) for size, dtype in DTYPES.items()}


def wavefronts_of_stride(stride: int, offset: int, threads: int, size: int, blocks: int = 2, kernel: Callable | None = None) -> set[int]:
    """Return the wavefronts of stores and of loads; checked on the way: requests and bytes."""
    kernel = kernel or STRIDED[size]
    s = simulate(kernel, blocks, threads, np.zeros(blocks * threads, DTYPES[size]), stride, offset)
    store, load = s.lines[line_of(kernel, "store")], s.lines[line_of(kernel, "load")]
    for line in (store, load):
        assert line.shared_requests == blocks * -(-threads // 32)
        assert line.shared_bytes_requested == blocks * threads * size
    assert s.shared_bytes == 4096 * size
    return {store.shared_wavefronts, load.shared_wavefronts}


@pytest.mark.parametrize("stride", range(1, 34))
def test_conflicts_of_a_stride(stride: int) -> None:
    """By hand: lanes i and j meet in a bank where stride * (i - j) is a multiple of 32: gcd(stride, 32) ways."""
    assert wavefronts_of_stride(stride, 0, 96, 4) == {2 * 3 * math.gcd(stride, 32)}


@pytest.mark.parametrize("stride", [0, 1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 31, 32])
def test_conflicts_of_a_stride_of_8_bytes(stride: int) -> None:
    """By hand: a half-warp has 16 lanes for 16 pairs of banks, so gcd(stride, 16) ways, twice; one element for all: once a half."""
    expected = 2 * (math.gcd(stride, 16) if stride else 1)
    assert wavefronts_of_stride(stride, 0, 64, 8) == {2 * 2 * expected}


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 24])
def test_conflicts_of_a_stride_of_16_bytes(stride: int) -> None:
    """By hand: a quarter-warp has 8 lanes for 8 groups of four banks, so gcd(stride, 8) ways, four times."""
    assert wavefronts_of_stride(stride, 0, 64, 16) == {2 * 2 * 4 * math.gcd(stride, 8)}


@pytest.mark.parametrize(("size", "stride"), [(size, stride) for size in (1, 2) for stride in (1, 2, 3, 4, 5, 8, 16, 24, 32, 64, 100, 127)])
def test_conflicts_of_narrow_elements(size: int, stride: int) -> None:
    """Elements of one word are no conflict. By hand: a multiple of a word is that stride in words; the others by sets."""
    if stride * size % 4 == 0:
        expected = math.gcd(stride * size // 4, 32)
    else:
        expected = wavefronts([t * stride for t in range(32)], size)
        assert expected == 1 or stride * size > 4  # several lanes in one word, and the words follow each other
    assert wavefronts_of_stride(stride, 0, 32, size, blocks=3) == {3 * expected}


@pytest.mark.parametrize("threads", [1, 31, 32, 33, 48, 64, 100])
@pytest.mark.parametrize("size", DTYPES)
@pytest.mark.parametrize("stride", [1, 2, 9])
def test_conflicts_in_partly_filled_warps(threads: int, size: int, stride: int) -> None:
    """Only lanes that are there ask: the sets of words of each part of each warp, at an odd offset."""
    expected = sum(wavefronts(warp, size) for warp in warps_of([t * stride + 3 for t in range(threads)]))
    assert wavefronts_of_stride(stride, 3, threads, size, blocks=1) == {expected}


def masked(out, modulus, low, high, stride):
    tile = cuda.shared.array(4096, float32)
    t = cuda.threadIdx.x
    if low <= t % modulus < high:
        tile[t * stride] = t  # store
        out[t] = tile[t * stride]  # load


@pytest.mark.parametrize(
    ("modulus", "low", "high", "stride", "expected"),
    [
        (2, 0, 1, 1, 1),
        (2, 1, 2, 2, 2),  # lanes 1, 3, ..., 31 at words 2, 6, ..., 62: 2 and 34 share a bank
        (2, 0, 1, 16, 16),  # words 0, 32, 64, ...
        (32, 0, 4, 32, 4),
        (32, 5, 6, 32, 1),
        (32, 0, 16, 32, 16),
        (4, 0, 1, 8, 8),
        (32, 8, 24, 2, 1),
    ],
)
def test_conflicts_among_some_lanes(modulus: int, low: int, high: int, stride: int, expected: int) -> None:
    """By hand and by sets: only active lanes conflict."""
    places = [t * stride if low <= t % modulus < high else None for t in range(32)]
    assert wavefronts(places, 4) == expected
    s = simulate(masked, 1, 64, np.zeros(64, np.float32), modulus, low, high, stride)
    for mark in ("store", "load"):
        line = s.lines[line_of(masked, mark)]
        assert (line.shared_requests, line.shared_wavefronts, line.ideal_shared_wavefronts) == (2, 2 * expected, 2)
        assert line.conflict_ways == expected


def gathered(places, out):
    tile = cuda.shared.array(2048, int32)
    t = cuda.threadIdx.x
    for k in range(t, 2048, 32):
        tile[k] = k
    cuda.syncthreads()
    p = places[t]
    out[t] = tile[p]  # load


# 32 words, and the most different ones that one bank holds, counted by hand.
LISTS = {
    "one word": ([77] * 32, 1),
    "two words of one bank": ([0, 32] * 16, 2),
    "two words of two banks": ([0, 33] * 16, 1),
    "three words of one bank, many lanes": ([5, 37, 69, 5] * 8, 3),
    "a bank twice": ([*range(31), 32], 2),
    "reversed": ([31 - i for i in range(32)], 1),
    "permuted": ([i * 7 % 32 for i in range(32)], 1),
    "a butterfly": ([i ^ 5 for i in range(32)], 1),
    "a diagonal of 32 x 32": ([33 * i for i in range(32)], 1),
    "an anti-diagonal of 32 x 32": ([31 * i + 31 for i in range(32)], 1),  # 31 is odd
    "a column of 32 x 32": ([32 * i for i in range(32)], 32),
    "a column swizzled": ([32 * i + (i ^ 9) for i in range(32)], 1),
    "half of a column": ([32 * (i // 2) for i in range(32)], 16),
    "squares": ([i * i for i in range(32)], 8),  # 2, 6, ..., 30 have squares that leave 4 modulo 32
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_conflicts_of_places_listed_by_hand(name: str) -> None:
    """A gather through a list."""
    places, expected = LISTS[name]
    banks: dict[int, set[int]] = {}
    for place in places:
        banks.setdefault(place % 32, set()).add(place)
    assert max(len(words) for words in banks.values()) == expected, "the number written beside the list is wrong"
    out = np.zeros(32, np.int32)
    s = simulate(gathered, 1, 32, np.array(places, np.int64), out)
    assert out.tolist() == places
    line = s.lines[line_of(gathered, "load")]
    assert (line.shared_requests, line.shared_wavefronts) == (1, expected)
    assert s.findings == ()


def tile_kernel(rows, columns):
    """Return a kernel in which the block's thread (x, y) writes element (y, x) and reads element (x, y) of a tile."""

    def through_a_tile(out):
        tile = cuda.shared.array((rows, columns), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = x  # write
        cuda.syncthreads()
        out[y, x] = tile[x, y]  # read

    return through_a_tile


TILES = {
    (32, 32): (1, 32),
    (32, 33): (1, 1),
    (32, 34): (1, 2),
    (32, 36): (1, 4),
    (16, 16): (1, 8),  # words 16 x + y of 16 x and two y: 4 banks
    (16, 17): (2, 2),  # written: row y ends in bank 16 + y where row y + 1 begins; read: lanes (15, y + 1) and (0, y) share a bank
    (8, 8): (1, 2),  # words 8 x + y: x and x + 4 meet
}


@pytest.mark.parametrize(("rows", "columns"), TILES)
def test_columns_of_tiles(rows: int, columns: int) -> None:
    """Square blocks through tiles with and without padding: by sets, and by hand where the table says."""
    kernel = tile_kernel(rows, columns)
    at = threads_of((rows, rows))
    written = [wavefronts(warp, 4) for warp in warps_of([y * columns + x for x, y, _ in at])]
    read = [wavefronts(warp, 4) for warp in warps_of([x * columns + y for x, y, _ in at])]
    assert (set(written), set(read)) == ({TILES[rows, columns][0]}, {TILES[rows, columns][1]})
    s = simulate(kernel, 3, (rows, rows), np.zeros((rows, rows), np.float32))
    assert s.lines[line_of(kernel, "write")].shared_wavefronts == 3 * sum(written)
    assert s.lines[line_of(kernel, "read")].shared_wavefronts == 3 * sum(read)
    assert s.lines[line_of(kernel, "read")].shared_requests == 3 * len(read)


def broadcast(x, out):
    row = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    row[t] = x[t]  # fill
    cuda.syncthreads()
    total = 0.0
    for k in range(64):
        total += row[k]  # all
        total += row[(t // 16 + k) % 64]  # halves
    out[t] = total


def test_doubles_broadcast_by_halves() -> None:
    """By hand: 64 doubles by half-warps: 2 wavefronts a warp, also where a half asks for one element; 64 turns, 2 warps."""
    s = simulate(broadcast, 1, 64, np.ones(64), np.zeros(64))
    assert s.lines[line_of(broadcast, "fill")].shared_wavefronts == 2 * 2
    assert s.lines[line_of(broadcast, "all")].shared_wavefronts == 64 * 2 * 2
    assert s.lines[line_of(broadcast, "halves")].shared_wavefronts == 64 * 2 * 2


def dynamic(out, n):
    pool = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    pool[t] = t  # store
    cuda.syncthreads()
    out[t] = pool[n - 1 - t]  # load


@pytest.mark.parametrize("n", [32, 64, 100, 256])
def test_dynamic_shared_memory_counts_as_static(n: int) -> None:
    """By hand: neighbours forwards and backwards are one wavefront a warp."""
    out = np.zeros(n, np.float32)
    s = simulate(dynamic, 1, n, out, n, dynamic_shared_bytes=4 * n)
    assert out.tolist() == list(range(n))[::-1]
    warps = -(-n // 32)
    for mark in ("store", "load"):
        assert s.lines[line_of(dynamic, mark)].shared_requests == warps
        assert s.lines[line_of(dynamic, mark)].shared_wavefronts == warps
    assert s.shared_bytes == 4 * n


def histogram(x, out, bins):
    counts = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < bins:
        counts[t] = 0  # clear
    cuda.syncthreads()
    cuda.atomic.add(counts, x[cuda.grid(1)] % bins, 1)  # shared atomic
    cuda.syncthreads()
    if t < bins:
        cuda.atomic.add(out, t, counts[t])  # flush


@pytest.mark.parametrize("bins", [32, 64, 48, 7])
def test_shared_atomics_are_requests_of_shared_memory(bins: int) -> None:
    """By hand for 4 blocks of 64: one shared atomic a warp, and ceil(bins / 32) warps that clear and flush."""
    out = np.zeros(bins, np.int32)
    s = simulate(histogram, 4, 64, np.arange(256, dtype=np.int32), out, bins)
    assert out.tolist() == np.bincount(np.arange(256) % bins).tolist()
    flushing = 4 * -(-bins // 32)
    atomic, flush = s.lines[line_of(histogram, "shared atomic")], s.lines[line_of(histogram, "flush")]
    assert (atomic.atomic_requests, atomic.shared_requests, atomic.global_load_requests) == (8, 8, 8)
    assert (flush.atomic_requests, flush.shared_requests, flush.global_requests) == (flushing, flushing, flushing)
    assert flush.global_sectors == 4 * -(-bins // 8)
    assert s.lines[line_of(histogram, "clear")].shared_requests == flushing
    assert s.totals.barriers == 8
    assert s.totals.atomic_requests == 8 + flushing


def matmul(a, b, c):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], 16):  # tiles
        a_tile[ty, tx] = a[row, k + tx]  # fill a
        b_tile[ty, tx] = b[k + ty, col]  # fill b
        cuda.syncthreads()  # filled
        for i in range(16):
            total += a_tile[ty, i] * b_tile[i, tx]  # multiply
        cuda.syncthreads()  # used
    c[row, col] = total  # store


def test_a_tiled_matmul() -> None:
    """By hand, 48 x 64 @ 64 x 32: 3 x 2 blocks of 8 warps; a warp is two half rows: 4 sectors; two words of a, 16 of b: no conflict."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 9, (48, 64)).astype(np.float32), rng.integers(0, 9, (64, 32)).astype(np.float32)
    c = np.zeros((48, 32), np.float32)
    s = simulate(matmul, (2, 3), (16, 16), a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    warps, turns = 6 * 8, 64 // 16
    fill, multiply, store = (s.lines[line_of(matmul, mark)] for mark in ("fill a", "multiply", "store"))
    assert (fill.global_requests, fill.global_sectors, fill.shared_wavefronts) == (warps * turns, 4 * warps * turns, warps * turns)
    assert (multiply.shared_requests, multiply.executed_warps) == (2 * 16 * turns * warps, 16 * turns * warps)
    # a_tile[ty, i] for two ty: words 16 apart, two banks, one pass. b_tile[i, tx]: sixteen words, one pass.
    assert multiply.shared_wavefronts == 2 * 16 * turns * warps
    assert (store.global_requests, store.global_sectors) == (warps, 4 * warps)
    assert s.totals.barriers == 6 * 2 * turns
    assert s.lines[line_of(matmul, "tiles")].branches == warps * (turns + 1)
    assert (s.totals.divergent_branches, s.findings) == (0, ())
    assert s.totals.global_sectors == 4 * warps * (2 * turns + 1)
