"""The Python kernels of the ladders, written as a learner writes them: without annotations."""

# mypy: allow-untyped-defs, allow-untyped-calls
from __future__ import annotations

import math

from gpulab.kernels._language import cuda, float32, int32

# -------------------------------------------------------------------------------------------------
# Elementwise: one function on every element: one thread for each, a grid that strides, and the
# chunk for each thread that looks natural and is slow.


def gate_each(x, y):
    """Compute y = x (1 + tanh(0.8 x)) / 2, one thread for each element."""
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        y[i] = float32(0.5) * v * (float32(1) + math.tanh(float32(0.8) * v))


def gate_grid_stride(x, y):
    """Compute the same with a grid of any size: each thread goes on by the width of the grid."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        v = x[i]
        y[i] = float32(0.5) * v * (float32(1) + math.tanh(float32(0.8) * v))


def gate_chunks(x, y):
    """Compute the same with 32 neighbors for each thread, as work is usually split among CPU
    cores.
    """
    first = 32 * cuda.grid(1)
    for i in range(first, min(first + 32, x.size)):
        v = x[i]
        y[i] = float32(0.5) * v * (float32(1) + math.tanh(float32(0.8) * v))


# -------------------------------------------------------------------------------------------------
# Sums of blocks in five forms: each block of 256 threads leaves one sum.


def sum_interleaved(x, sums):
    """Neighbors add first: every second thread works, then every fourth, and each warp diverges."""
    tile = cuda.shared.array(256, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        if t % (2 * step) == 0:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def sum_strided(x, sums):
    """The same pairs, by the first threads: whole warps work or rest, but their words lie in the
    same banks.
    """
    tile = cuda.shared.array(256, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        k = 2 * step * t
        if k < cuda.blockDim.x:
            tile[k] += tile[k + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def add_halves(tile):
    """Leave the sum of a block's numbers in the first: the second half is added to the first, and
    so on, so that neighbors read neighbors.
    """
    t = cuda.threadIdx.x
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2


def sum_sequential(x, sums):
    """Halves are added: the first threads work, and neighbors read neighbors."""
    tile = cuda.shared.array(256, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    add_halves(tile)
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def sum_of_warp(value):
    """Return the sum of a warp's values in its first lane, by way of registers alone."""
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    return value


def store_sum_of_block(value, sums):
    """Each warp adds up in registers; shared memory carries one number for each."""
    warps = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    value = sum_of_warp(value)
    if t % 32 == 0:
        warps[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = sum_of_warp(warps[t] if t < cuda.blockDim.x // 32 else float32(0))
        if t == 0:
            sums[cuda.blockIdx.x] = value


def sum_shuffle(x, sums):
    """A warp adds up in registers; shared memory carries one number for each warp."""
    i = cuda.grid(1)
    store_sum_of_block(x[i] if i < x.size else float32(0), sums)


def sum_grid_stride(x, sums):
    """Each thread first adds eight elements of its own: an eighth of the blocks, and of the
    block-wide synchronizations.
    """
    value = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value += x[i]
    store_sum_of_block(value, sums)


# -------------------------------------------------------------------------------------------------
# A matrix turned over its diagonal: straight, through a tile of shared memory, and through a tile
# with a spare column.


def transpose_naive(a, b):
    """Rows are read, columns are written: 32 lanes write to 32 rows."""
    x = 32 * cuda.blockIdx.x + cuda.threadIdx.x
    y = 32 * cuda.blockIdx.y + cuda.threadIdx.y
    for k in range(0, 32, 8):
        if y + k < a.shape[0] and x < a.shape[1]:
            b[x, y + k] = a[y + k, x]


def turn(a, b, tile):
    """Turn a part of a matrix in a tile of shared memory: rows are read and rows are written."""
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = 32 * cuda.blockIdx.x + tx, 32 * cuda.blockIdx.y + ty
    for k in range(0, 32, 8):
        if y + k < a.shape[0] and x < a.shape[1]:
            tile[ty + k, tx] = a[y + k, x]
    cuda.syncthreads()
    x, y = 32 * cuda.blockIdx.y + tx, 32 * cuda.blockIdx.x + ty
    for k in range(0, 32, 8):
        if y + k < b.shape[0] and x < b.shape[1]:
            b[y + k, x] = tile[tx, ty + k]


def transpose_tiled(a, b):
    """The turn happens in shared memory: rows are read and rows are written."""
    turn(a, b, cuda.shared.array((32, 32), float32))


def transpose_padded(a, b):
    """An unused 33rd column puts the words of a column into 32 different banks."""
    turn(a, b, cuda.shared.array((32, 33), float32))


# -------------------------------------------------------------------------------------------------
# How often each of 256 values occurs: counters that all threads share, and counters for each block
# that are added at the end.


def histogram_global(x, counts):
    """Every element is one atomic on global memory."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, x[i], 1)


def histogram_private(x, counts):
    """Each block counts in its own shared memory, and adds 256 numbers to the result at the end."""
    mine = cuda.shared.array(256, int32)
    t = cuda.threadIdx.x
    mine[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(mine, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(counts, t, mine[t])


# -------------------------------------------------------------------------------------------------
# Softmax of rows, one block for each row: three walks over global memory, or one with the row kept
# in shared memory.


def find_largest(tile):
    """Leave the largest of a block's numbers in the first, as ``add_halves`` leaves their sum."""
    t = cuda.threadIdx.x
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2


def softmax_three_walks(x, y):
    """Largest element, sum, result: the row is read from global memory for each."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    largest = float32(-math.inf)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        largest = max(largest, x[row, k])
    tile[t] = largest
    find_largest(tile)
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    add_halves(tile)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        y[row, k] = math.exp(x[row, k] - largest) / tile[0]


def softmax_kept(x, y):
    """The row is read once and kept, and so is each exponential."""
    kept = cuda.shared.array(1024, float32)
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    largest = float32(-math.inf)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        kept[k] = x[row, k]
        largest = max(largest, kept[k])
    tile[t] = largest
    find_largest(tile)
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        kept[k] = math.exp(kept[k] - largest)
        total += kept[k]
    tile[t] = total
    add_halves(tile)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        y[row, k] = kept[k] / tile[0]


# -------------------------------------------------------------------------------------------------
# C = A B for square float32 matrices: from one thread for each element to tiles in shared memory
# and in registers. The first three take any size; the register tiles have no guards and take
# multiples of their tile.


def matmul_naive(a, b, c):
    """One thread for each element; neighbors in x have neighboring rows, so they walk down A side
    by side.
    """
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


def matmul_coalesced(a, b, c):
    """The same with the two exchanged: neighbors in x have neighboring columns."""
    j, i = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


def matmul_tiled(a, b, c):
    """A block takes a tile of 32 x 32 from A and from B into shared memory and uses each element 32
    times.
    """
    tile_a = cuda.shared.array((32, 32), float32)
    tile_b = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    j, i = cuda.grid(2)
    total = float32(0)
    for first in range(0, a.shape[1], 32):
        tile_a[ty, tx] = (
            a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        )
        tile_b[ty, tx] = (
            b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        )
        cuda.syncthreads()
        for k in range(32):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


def matmul_registers_1d(a, b, c):
    """Tiles of 64 x 8 and 8 x 64; each of 512 threads keeps eight elements of a column of C in
    registers.
    """
    tile_a = cuda.shared.array((64, 8), float32)
    tile_b = cuda.shared.array((8, 64), float32)
    t = cuda.threadIdx.x
    row, column = 64 * cuda.blockIdx.y, 64 * cuda.blockIdx.x
    ty, tx = t // 64, t % 64
    totals = cuda.local.array(8, float32)
    for m in range(8):
        totals[m] = 0
    for first in range(0, a.shape[1], 8):
        tile_a[t // 8, t % 8] = a[row + t // 8, first + t % 8]
        tile_b[ty, tx] = b[first + ty, column + tx]
        cuda.syncthreads()
        for k in range(8):
            right = tile_b[k, tx]
            for m in range(8):
                totals[m] += tile_a[8 * ty + m, k] * right
        cuda.syncthreads()
    for m in range(8):
        c[row + 8 * ty + m, column + tx] = totals[m]


def matmul_registers_2d(a, b, c):
    """Tiles of 128 x 8 and 8 x 128; each of 256 threads keeps 8 x 8 elements of C, so 16 loads
    serve 64 products.
    """
    tile_a = cuda.shared.array((128, 8), float32)
    tile_b = cuda.shared.array((8, 128), float32)
    t = cuda.threadIdx.x
    row, column = 128 * cuda.blockIdx.y, 128 * cuda.blockIdx.x
    ty, tx = t // 16, t % 16
    totals = cuda.local.array((8, 8), float32)
    left = cuda.local.array(8, float32)
    right = cuda.local.array(8, float32)
    for m in range(8):
        for n in range(8):
            totals[m, n] = 0
    for first in range(0, a.shape[1], 8):
        for k in range(0, 128, 32):
            tile_a[k + t // 8, t % 8] = a[row + k + t // 8, first + t % 8]
        for k in range(0, 8, 2):
            tile_b[k + t // 128, t % 128] = b[first + k + t // 128, column + t % 128]
        cuda.syncthreads()
        for k in range(8):
            for m in range(8):
                left[m] = tile_a[ty + 16 * m, k]
                right[m] = tile_b[k, tx + 16 * m]
            for m in range(8):
                for n in range(8):
                    totals[m, n] += left[m] * right[n]
        cuda.syncthreads()
    for m in range(8):
        for n in range(8):
            c[row + ty + 16 * m, column + tx + 16 * n] = totals[m, n]
