"""Kernels with the content of the GPU puzzles (map to matrix product), in our own words, and what NumPy says about their results."""

from __future__ import annotations

import numpy as np
from kernel_case import SINGLE, Case

from gpulab.kernels import cuda, float32

WIDTH = 8
KERNEL = 4


def add_ten(out, a):
    i = cuda.threadIdx.x
    out[i] = a[i] + 10


def zip_sum(out, a, b):
    out[cuda.threadIdx.x] = a[cuda.threadIdx.x] + b[cuda.threadIdx.x]


def add_ten_guarded(out, a, size):
    i = cuda.threadIdx.x
    if i < size:
        out[i] = a[i] + 10


def add_ten_square(out, a, size):
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    if i < size and j < size:
        out[j, i] = a[j, i] + 10


def broadcast_sum(out, a, b, size):
    i = cuda.threadIdx.x
    j = cuda.threadIdx.y
    if i < size:  # noqa: SIM102 - nested on purpose
        if j < size:
            out[i, j] = a[i, 0] + b[0, j]


def add_ten_blocks(out, a, size):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < size:
        out[i] = a[i] + 10


def add_ten_blocks_square(out, a, size):
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if not (column >= size or row >= size):
        out[row, column] = a[row, column] + 10


def add_ten_shared(out, a, size):
    kept = cuda.shared.array(4, float32)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    if i < size:
        kept[t] = a[i]
        cuda.syncwarp()
    cuda.syncthreads()
    if i < size:
        out[i] = kept[t] + 10


def pooled(out, a, size):
    kept = cuda.shared.array(WIDTH, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < size:
        kept[t] = a[i]
    cuda.syncthreads()
    if i < size:
        total = kept[t]
        if t > 0:
            total += kept[t - 1]
        if t > 1:
            total += kept[t - 2]
        out[i] = total


def dot_product(out, a, b, size):
    kept = cuda.shared.array(WIDTH, float32)
    t = cuda.threadIdx.x
    kept[t] = a[t] * b[t] if t < size else 0.0
    cuda.syncthreads()
    if t == 0:
        total = 0.0
        for k in range(WIDTH):
            total += kept[k]
        out[0] = total


def convolve(out, a, b, a_size, b_size):
    values = cuda.shared.array(WIDTH + KERNEL, float32)
    weights = cuda.shared.array(KERNEL, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < a_size:
        values[t] = a[i]
    else:
        values[t] = 0
    if t < b_size:
        weights[t] = b[t]
        other = i + WIDTH
        values[t + WIDTH] = a[other] if other < a_size else 0
    cuda.syncthreads()
    if i < a_size:
        total = 0.0
        for k in range(b_size):
            if i + k >= a_size:
                break
            total += values[t + k] * weights[k]
        out[i] = total


def prefix_sum(out, a, size):
    kept = cuda.shared.array(WIDTH, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    kept[t] = a[i] if i < size else 0
    cuda.syncthreads()
    for k in range(3):
        reach = 2**k
        if t % (2 * reach) == 0:
            kept[t] += kept[t + reach]
        cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = kept[0]


def inclusive_scan(out, a):
    kept = cuda.shared.array((2, 32), float32)
    t = cuda.threadIdx.x
    kept[0, t] = a[t]
    cuda.syncthreads()
    now, reach = 0, 1
    while reach < 32:
        kept[1 - now, t] = kept[now, t] + (kept[now, t - reach] if t >= reach else 0)
        cuda.syncthreads()
        now, reach = 1 - now, 2 * reach
    out[t] = kept[now, t]


def axis_sum(out, a, size):
    kept = cuda.shared.array(WIDTH, float32)
    t = cuda.threadIdx.x
    batch = cuda.blockIdx.y
    if t < size:
        kept[t] = a[batch, t]
    else:
        kept[t] = 0
    cuda.syncthreads()
    step = WIDTH // 2
    while step:
        if t < step:
            kept[t] += kept[t + step]
        cuda.syncthreads()
        step >>= 1
    if t == 0:
        out[batch, 0] = kept[0]


def matmul_square(out, a, b, size):
    left = cuda.shared.array((4, 4), float32)
    right = cuda.shared.array((4, 4), float32)
    i, j = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = 0.0
    for k in range(0, size, 4):
        left[x, y] = a[i, k + y] if i < size and k + y < size else 0.0
        right[x, y] = b[k + x, j] if k + x < size and j < size else 0.0
        cuda.syncthreads()
        for inner in range(min(4, size - k)):
            total += left[x, inner] * right[inner, y]
        cuda.syncthreads()
    if i < size and j < size:
        out[i, j] = total


def _whole(*shapes):
    """Return small whole numbers as float32: sums of them are exact."""
    return lambda rng: tuple(rng.integers(-20, 20, shape).astype(np.float32) for shape in shapes)


def _sized(size, *shapes):
    return lambda rng: (*_whole(*shapes)(rng), size)


def _convolved(out, a, b, a_size, b_size):
    padded = np.concatenate([a, np.zeros(len(b) - 1)])
    return {0: np.correlate(padded, b, "valid")}


CASES = [
    Case(add_ten, 1, 4, _whole(4, 4), lambda out, a: {0: a + 10}),
    Case(zip_sum, 1, 4, _whole(4, 4, 4), lambda out, a, b: {0: a + b}),
    Case(add_ten_guarded, 1, 8, _sized(4, 4, 4), lambda out, a, n: {0: a + 10}),
    Case(add_ten_square, 1, (3, 3), _sized(2, (2, 2), (2, 2)), lambda out, a, n: {0: a + 10}),
    Case(broadcast_sum, 1, (3, 3), _sized(2, (2, 2), (2, 1), (1, 2)), lambda out, a, b, n: {0: a + b}),
    Case(add_ten_blocks, 3, 4, _sized(9, 9, 9), lambda out, a, n: {0: a + 10}),
    Case(add_ten_blocks_square, (2, 2), (3, 3), _sized(5, (5, 5), (5, 5)), lambda out, a, n: {0: a + 10}),
    Case(add_ten_shared, 2, 4, _sized(8, 8, 8), lambda out, a, n: {0: a + 10}, numba=False),
    Case(pooled, 1, 8, _sized(8, 8, 8), lambda out, a, n: {0: [a[max(0, i - 2) : i + 1].sum() for i in range(8)]}),
    Case(dot_product, 1, 8, _sized(7, 1, 7, 7), lambda out, a, b, n: {0: [a @ b]}),
    Case(convolve, 1, 8, lambda rng: (*_whole(6, 6, 3)(rng), 6, 3), _convolved),
    Case(convolve, 2, 8, lambda rng: (*_whole(15, 15, 4)(rng), 15, 4), _convolved, label="two-blocks"),
    Case(prefix_sum, 2, 8, _sized(15, 2, 15), lambda out, a, n: {0: [a[:8].sum(), a[8:].sum()]}),
    Case(inclusive_scan, 1, 32, _whole(32, 32), lambda out, a: {0: np.cumsum(a)}),
    Case(axis_sum, (1, 4), 8, _sized(6, (4, 1), (4, 6)), lambda out, a, n: {0: a.sum(1, keepdims=True)}),
    Case(matmul_square, (3, 3), (4, 4), _sized(10, (10, 10), (10, 10), (10, 10)), lambda out, a, b, n: {0: a @ b}, SINGLE),
]
