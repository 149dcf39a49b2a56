"""The kernels on which the microscope is timed against Numba's simulator: the same source, sizes
and arrays for both.

In regular kernels all threads do the same, apart from a bounds check. In irregular kernels threads
loop a different number of times, or their data decide what they do. The kernels of one warp loop
many times in 32 threads, so the cost of a NumPy call is spread over few threads.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32

TILE = 16


def vector_add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


def gelu(x, out):
    start = cuda.grid(1)
    for i in range(start, x.size, cuda.gridsize(1)):
        v = x[i]
        out[i] = 0.5 * v * (1.0 + math.tanh(0.7978845608 * (v + 0.044715 * v * v * v)))


def matmul_naive(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


def matmul_tiled(a, b, out):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    col, row = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0.0)
    for step in range(a.shape[1] // TILE):
        tile_a[ty, tx] = a[row, step * TILE + tx]
        tile_b[ty, tx] = b[step * TILE + ty, col]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    out[row, col] = total


def transpose_padded(a, out):
    tile = cuda.shared.array((TILE, TILE + 1), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    tile[ty, tx] = a[cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx]
    cuda.syncthreads()
    out[cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx] = tile[tx, ty]


def block_sum(x, out):
    shared = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


def stencil(a, out):
    x, y = cuda.grid(2)
    if x > 0 and y > 0 and x < a.shape[1] - 1 and y < a.shape[0] - 1:
        out[y, x] = 0.25 * (a[y - 1, x] + a[y + 1, x] + a[y, x - 1] + a[y, x + 1])


def row_softmax(x, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        largest = x[row, 0]
        for k in range(1, x.shape[1]):
            largest = max(largest, x[row, k])
        total = float32(0.0)
        for k in range(x.shape[1]):
            total += math.exp(x[row, k] - largest)
        for k in range(x.shape[1]):
            out[row, k] = math.exp(x[row, k] - largest) / total


def mandelbrot(out):
    i, j = cuda.grid(2)
    cr = -2.0 + 3.0 * i / out.shape[1]
    ci = -1.0 + 2.0 * j / out.shape[0]
    zr = 0.0
    zi = 0.0
    steps = 0
    while steps < 40 and zr * zr + zi * zi < 4.0:
        new = zr * zr - zi * zi + cr
        zi = 2.0 * zr * zi + ci
        zr = new
        steps += 1
    out[j, i] = steps


def collatz(first, out):
    i = cuda.grid(1)
    n = first + i
    steps = 0
    while n != 1 and steps < 200:
        if n % 2 == 0:  # noqa: SIM108 - a branch is what is timed
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    out[i] = steps


def histogram(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, x[i], 1)


def sparse_rows(starts, columns, values, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = float32(0.0)
        for k in range(starts[row], starts[row + 1]):
            total += values[k] * x[columns[k]]
        out[row] = total


def binary_search(ordered, wanted, out):
    i = cuda.grid(1)
    low = 0
    high = ordered.size
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < wanted[i]:
            low = middle + 1
        else:
            high = middle
    out[i] = low


def insertion_sort(rows):
    i = cuda.grid(1)
    local = cuda.local.array(12, int32)
    for k in range(12):
        local[k] = rows[i, k]
    for k in range(1, 12):
        value = local[k]
        j = k - 1
        while j >= 0 and local[j] > value:
            local[j + 1] = local[j]
            j -= 1
        local[j + 1] = value
    for k in range(12):
        rows[i, k] = local[k]


def compact(x, count, out):
    i = cuda.grid(1)
    if x[i] > 0.5:
        place = cuda.atomic.add(count, 0, 1)
        out[place] = x[i]


def walk(following, out):
    i = cuda.grid(1)
    at = i
    steps = 0
    while at != 0 and steps < 64:
        at = following[at]
        steps += 1
    out[i] = steps


def first_divisor(numbers, out):
    i = cuda.grid(1)
    n = numbers[i]
    divisor = 3
    while divisor * divisor <= n:
        if n % divisor == 0:
            break
        divisor += 2
    out[i] = divisor


def bisect_root(x, out):
    i = cuda.grid(1)
    low = 0.0
    high = x[i] + 1.0
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        if middle * middle * middle > x[i]:
            high = middle
        else:
            low = middle
    out[i] = low


def cases(scale=1.0):
    """Yield (name, kind, kernel, grid, block, make): ``make()`` gives fresh arguments. ``scale``
    does not change the kernels of one warp.
    """

    def floats(*shape):
        return np.random.default_rng(7).random(shape, dtype=np.float32)

    def integers(below, count):
        return np.random.default_rng(8).integers(0, below, count)

    n = max(2048, int(16384 * scale) // 2048 * 2048)
    side = max(32, int(96 * scale**0.5) // 32 * 32)
    tiles = (side // TILE, side // TILE)
    lengths = integers(40, n // 4)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    block = (TILE, TILE)
    yield (
        "vector add",
        "regular",
        vector_add,
        n // 128 + 1,
        128,
        lambda: (floats(n), floats(n), np.zeros(n, np.float32)),
    )
    yield (
        "GELU, grid stride",
        "regular",
        gelu,
        n // 512,
        128,
        lambda: (floats(n), np.zeros(n, np.float32)),
    )
    yield (
        "matmul naive",
        "regular",
        matmul_naive,
        tiles,
        block,
        lambda: (floats(side, side), floats(side, side), np.zeros((side, side), np.float32)),
    )
    yield (
        "matmul tiled",
        "regular",
        matmul_tiled,
        tiles,
        block,
        lambda: (floats(side, side), floats(side, side), np.zeros((side, side), np.float32)),
    )
    yield (
        "transpose padded",
        "regular",
        transpose_padded,
        tiles,
        block,
        lambda: (floats(side, side), np.zeros((side, side), np.float32)),
    )
    yield (
        "block sum",
        "regular",
        block_sum,
        n // 128,
        128,
        lambda: (floats(n), np.zeros(n // 128, np.float32)),
    )
    yield (
        "stencil",
        "regular",
        stencil,
        tiles,
        block,
        lambda: (floats(side, side), np.zeros((side, side), np.float32)),
    )
    yield (
        "row softmax",
        "regular",
        row_softmax,
        n // 1024,
        128,
        lambda: (floats(n // 8, 32), np.zeros((n // 8, 32), np.float32)),
    )
    yield (
        "mandelbrot",
        "irregular",
        mandelbrot,
        tiles,
        block,
        lambda: (np.zeros((side, side), np.int32),),
    )
    yield "collatz", "irregular", collatz, n // 512, 128, lambda: (1, np.zeros(n // 4, np.int64))
    yield (
        "histogram",
        "irregular",
        histogram,
        n // 128,
        128,
        lambda: (integers(64, n), np.zeros(64, np.int64)),
    )
    yield (
        "sparse rows",
        "irregular",
        sparse_rows,
        n // 512,
        128,
        lambda: (
            starts,
            integers(n // 4, starts[-1]).astype(np.int32),
            floats(starts[-1]),
            floats(n // 4),
            np.zeros(n // 4, np.float32),
        ),
    )
    yield (
        "binary search",
        "irregular",
        binary_search,
        n // 512,
        128,
        lambda: (np.sort(floats(4096)), floats(n // 4), np.zeros(n // 4, np.int64)),
    )
    yield (
        "insertion sort",
        "irregular",
        insertion_sort,
        n // 2048,
        128,
        lambda: (integers(99, (n // 16, 12)).astype(np.int32),),
    )
    yield (
        "compact",
        "irregular",
        compact,
        n // 128,
        128,
        lambda: (floats(n), np.zeros(1, np.int32), np.zeros(n, np.float32)),
    )
    yield (
        "linked walk",
        "irregular",
        walk,
        n // 512,
        128,
        lambda: (integers(n // 4, n // 4), np.zeros(n // 4, np.int64)),
    )

    def ring(length):
        following, order = (
            np.zeros(length, np.int64),
            np.random.default_rng(9).permutation(np.arange(1, length)),
        )
        following[order] = np.roll(order, -1)
        return following

    yield (
        "insertion sort",
        "one warp",
        insertion_sort,
        1,
        32,
        lambda: (integers(99, (32, 12)).astype(np.int32),),
    )
    yield "collatz", "one warp", collatz, 1, 32, lambda: (1_000, np.zeros(32, np.int64))
    yield "pointer walk", "one warp", walk, 1, 32, lambda: (ring(64), np.zeros(32, np.int64))
    yield (
        "while with break",
        "one warp",
        first_divisor,
        1,
        32,
        lambda: (2 * integers(50_000, 32) + 1, np.zeros(32, np.int64)),
    )
    yield (
        "bisection",
        "one warp",
        bisect_root,
        1,
        32,
        lambda: (floats(32).astype(np.float64), np.zeros(32)),
    )
    yield "mandelbrot", "one warp", mandelbrot, 1, (8, 4), lambda: (np.zeros((4, 8), np.int32),)
