"""Kernels without a fault, each with launches and the answer that NumPy gives: part one, across a block.

The seeded bugs are edits of these texts, so each statement that one of them touches is on a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.kernels import cuda, float32, float64, int32


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid, block and arguments; ``expected`` maps the number of an argument to its values afterwards."""

    kernel: Callable
    grid: Any
    block: Any
    make: Callable[[], tuple]
    expected: Callable[..., dict[int, np.ndarray]]
    dynamic_shared_bytes: int = 0


LAUNCHES: dict[str, list[Launch]] = {}


def launches(kernel: Callable, *launches: Launch) -> None:
    """Register a kernel with its launches."""
    LAUNCHES[kernel.__name__] = list(launches)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return small whole numbers as float32, so that sums are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def integers(*shape: int, below: int = 100, seed: int = 0) -> np.ndarray:
    """Return int32 numbers from 0."""
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)


# -- matrices -----------------------------------------------------------------------------------------------------------------------


def matmul(a, b, c):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    col, row = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], 16):
        a_tile[ty, tx] = 0
        if row < a.shape[0] and k + tx < a.shape[1]:
            a_tile[ty, tx] = a[row, k + tx]
        b_tile[ty, tx] = 0
        if k + ty < b.shape[0] and col < b.shape[1]:
            b_tile[ty, tx] = b[k + ty, col]
        cuda.syncthreads()  # tiles are full
        for i in range(16):
            total += a_tile[ty, i] * b_tile[i, tx]
        cuda.syncthreads()  # tiles are used
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


def _matmul(n: int, k: int, m: int, grid: tuple[int, int]) -> Launch:
    return Launch(
        matmul, grid, (16, 16), lambda: (floats(n, k), floats(k, m, seed=1), np.zeros((n, m), np.float32)), lambda a, b, c: {2: a @ b}
    )


launches(matmul, _matmul(32, 32, 32, (2, 2)), _matmul(20, 50, 40, (3, 2)), _matmul(16, 7, 5, (1, 1)), _matmul(33, 16, 17, (2, 3)))


def transpose(a, b):
    tile = cuda.shared.array((16, 17), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    col = cuda.blockIdx.x * 16 + tx
    row = cuda.blockIdx.y * 16 + ty
    if row < a.shape[0] and col < a.shape[1]:
        tile[ty, tx] = a[row, col]
    cuda.syncthreads()
    col = cuda.blockIdx.y * 16 + tx
    row = cuda.blockIdx.x * 16 + ty
    if row < b.shape[0] and col < b.shape[1]:
        b[row, col] = tile[tx, ty]


def _transpose(n: int, m: int) -> Launch:
    grid = (-(-m // 16), -(-n // 16))
    return Launch(transpose, grid, (16, 16), lambda: (floats(n, m), np.zeros((m, n), np.float32)), lambda a, b: {1: a.T})


launches(transpose, _transpose(32, 32), _transpose(50, 20), _transpose(5, 3), _transpose(16, 100))


def matvec(a, x, y):
    part = cuda.shared.array(64, float32)
    row = cuda.blockIdx.x
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(t, a.shape[1], 64):
        total += a[row, k] * x[k]
    part[t] = total
    cuda.syncthreads()  # parts are there
    width = 32
    while width > 0:
        if t < width:
            part[t] += part[t + width]
        cuda.syncthreads()  # halved
        width //= 2
    if t == 0:
        y[row] = part[0]


def _matvec(n: int, m: int) -> Launch:
    return Launch(matvec, n, 64, lambda: (floats(n, m), floats(m, seed=1), np.zeros(n, np.float32)), lambda a, x, y: {2: a @ x})


launches(matvec, _matvec(8, 64), _matvec(3, 200), _matvec(1, 10), _matvec(5, 65))


# -- reductions ---------------------------------------------------------------------------------------------------------------------


def reduce_interleaved(x, out):
    part = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    part[t] = 0
    if i < x.size:
        part[t] = x[i]
    cuda.syncthreads()  # loaded
    step = 1
    while step < cuda.blockDim.x:
        if t % (2 * step) == 0:
            part[t] += part[t + step]
        cuda.syncthreads()  # added
        step *= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]


def _blockwise(kernel: Callable, grid: int, block: int, n: int) -> Launch:
    def expected(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        padded = np.zeros(grid * block, np.float32)
        padded[: min(n, grid * block)] = x[: grid * block]
        return {1: padded.reshape(grid, block).sum(axis=1)}

    return Launch(kernel, grid, block, lambda: (floats(n), np.zeros(grid, np.float32)), expected)


launches(
    reduce_interleaved,
    _blockwise(reduce_interleaved, 2, 64, 128),
    _blockwise(reduce_interleaved, 3, 128, 300),
    _blockwise(reduce_interleaved, 1, 16, 9),
)


def reduce_sequential(x, out):
    part = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    part[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()  # loaded
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()  # added
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]


launches(
    reduce_sequential,
    _blockwise(reduce_sequential, 2, 128, 256),
    _blockwise(reduce_sequential, 3, 256, 700),
    _blockwise(reduce_sequential, 1, 32, 32),
    _blockwise(reduce_sequential, 4, 2, 7),
)


def reduce_last_warp(x, out):
    part = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()  # loaded
    if t < 64:
        part[t] += part[t + 64]
    cuda.syncthreads()  # 64 are left
    if t < 32:
        part[t] += part[t + 32]
        cuda.syncwarp()  # 32 are left
        step = 16
        while step > 0:
            value = part[t + step]
            cuda.syncwarp()  # read
            part[t] += value
            cuda.syncwarp()  # written
            step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]


launches(reduce_last_warp, _blockwise(reduce_last_warp, 1, 128, 128), _blockwise(reduce_last_warp, 3, 128, 384))


def reduce_shuffle(x, out):
    sums = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    value = float32(0)
    if i < x.size:
        value = x[i]
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        step //= 2
    if t % 32 == 0:
        sums[t // 32] = value
    cuda.syncthreads()  # sums of warps
    if t < 32:
        value = float32(0)
        if t < cuda.blockDim.x // 32:
            value = sums[t]
        step = 16
        while step > 0:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
            step //= 2
        if t == 0:
            out[cuda.blockIdx.x] = value


launches(
    reduce_shuffle,
    _blockwise(reduce_shuffle, 2, 128, 256),
    _blockwise(reduce_shuffle, 3, 64, 150),
    _blockwise(reduce_shuffle, 1, 1024, 1000),
    _blockwise(reduce_shuffle, 2, 32, 40),
)


def dot(x, y, out):
    part = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i] * y[i]
    part[t] = total
    cuda.syncthreads()  # parts are there
    half = 64
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()  # halved
        half //= 2
    if t == 0:
        cuda.atomic.add(out, 0, part[0])


def _dot(grid: int, n: int) -> Launch:
    return Launch(dot, grid, 128, lambda: (floats(n), floats(n, seed=1), np.zeros(1, np.float32)),
                  lambda x, y, out: {2: np.array([x @ y], np.float32)})  # fmt: skip


launches(dot, _dot(1, 128), _dot(4, 1000), _dot(3, 50), _dot(2, 1024))


def maximum(x, out):
    best = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        best[0] = -1
    cuda.syncthreads()  # begun
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.max(best, 0, x[i])
    cuda.syncthreads()  # found
    if cuda.threadIdx.x == 0:
        cuda.atomic.max(out, 0, best[0])


def _maximum(grid: int, block: int, n: int) -> Launch:
    return Launch(maximum, grid, block, lambda: (integers(n), np.zeros(1, np.int32)), lambda x, out: {1: np.array([x.max()], np.int32)})


launches(maximum, _maximum(2, 64, 128), _maximum(5, 48, 200), _maximum(1, 1, 1))


# -- scans --------------------------------------------------------------------------------------------------------------------------


def scan_double_buffer(x, out):
    buffers = cuda.shared.array((2, 128), float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    now = 0
    buffers[0, t] = x[i]
    cuda.syncthreads()  # loaded
    step = 1
    while step < cuda.blockDim.x:
        if t >= step:
            buffers[1 - now, t] = buffers[now, t] + buffers[now, t - step]
        else:
            buffers[1 - now, t] = buffers[now, t]
        now = 1 - now
        cuda.syncthreads()  # stepped
        step *= 2
    out[i] = buffers[now, t]


def _scan(kernel: Callable, grid: int, block: int, exclusive: bool = False) -> Launch:
    def expected(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        sums = x.reshape(grid, -1).cumsum(axis=1, dtype=np.float32)
        return {1: (sums - x.reshape(grid, -1) if exclusive else sums).reshape(-1)}

    n = grid * block * (2 if exclusive else 1)
    return Launch(kernel, grid, block, lambda: (floats(n), np.zeros(n, np.float32)), expected)


launches(scan_double_buffer, _scan(scan_double_buffer, 1, 128), _scan(scan_double_buffer, 3, 64), _scan(scan_double_buffer, 2, 50))


def scan_in_place(x, out):
    part = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    part[t] = x[i]
    cuda.syncthreads()  # loaded
    step = 1
    while step < cuda.blockDim.x:
        before = float32(0)
        if t >= step:
            before = part[t - step]
        cuda.syncthreads()  # read
        part[t] += before
        cuda.syncthreads()  # written
        step *= 2
    out[i] = part[t]


launches(scan_in_place, _scan(scan_in_place, 2, 128), _scan(scan_in_place, 1, 33), _scan(scan_in_place, 4, 16))


def scan_blelloch(x, out):
    part = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    n = 2 * cuda.blockDim.x
    base = cuda.blockIdx.x * n
    part[2 * t] = x[base + 2 * t]
    part[2 * t + 1] = x[base + 2 * t + 1]
    gap = 1
    d = n // 2
    while d > 0:
        cuda.syncthreads()  # up
        if t < d:
            left = gap * (2 * t + 1) - 1
            right = gap * (2 * t + 2) - 1
            part[right] += part[left]
        gap *= 2
        d //= 2
    cuda.syncthreads()  # summed
    if t == 0:
        part[n - 1] = 0
    d = 1
    while d < n:
        gap //= 2
        cuda.syncthreads()  # down
        if t < d:
            left = gap * (2 * t + 1) - 1
            right = gap * (2 * t + 2) - 1
            kept = part[left]
            part[left] = part[right]
            part[right] += kept
        d *= 2
    cuda.syncthreads()  # swept
    out[base + 2 * t] = part[2 * t]
    out[base + 2 * t + 1] = part[2 * t + 1]


launches(scan_blelloch, _scan(scan_blelloch, 2, 64, True), _scan(scan_blelloch, 1, 128, True), _scan(scan_blelloch, 3, 8, True))


def scan_of_warps(x, out):
    sums = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    lane = t % 32
    value = x[cuda.grid(1)]
    step = 1
    while step < 32:
        other = cuda.shfl_up_sync(0xFFFFFFFF, value, step)
        if lane >= step:
            value += other
        step *= 2
    if lane == 31:
        sums[t // 32] = value
    cuda.syncthreads()  # sums are there
    before = float32(0)
    for w in range(t // 32):
        before += sums[w]
    out[cuda.grid(1)] = value + before


launches(scan_of_warps, _scan(scan_of_warps, 2, 128), _scan(scan_of_warps, 1, 32), _scan(scan_of_warps, 1, 512))


# -- histograms, queues, flags ------------------------------------------------------------------------------------------------------


def histogram(x, bins):
    mine = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    for b in range(t, 64, cuda.blockDim.x):
        mine[b] = 0
    cuda.syncthreads()  # cleared
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(mine, x[i], 1)
    cuda.syncthreads()  # counted
    for b in range(t, bins.size, cuda.blockDim.x):
        cuda.atomic.add(bins, b, mine[b])


def _histogram(kernel: Callable, grid: int, block: int, n: int) -> Launch:
    return Launch(
        kernel, grid, block, lambda: (integers(n, below=64), np.zeros(64, np.int32)), lambda x, bins: {1: np.bincount(x, minlength=64)}
    )


launches(histogram, _histogram(histogram, 2, 64, 300), _histogram(histogram, 5, 48, 100), _histogram(histogram, 1, 32, 1000))


def histogram_global(x, bins):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i], 1)


launches(histogram_global, _histogram(histogram_global, 4, 64, 250), _histogram(histogram_global, 1, 1024, 1024))


def append(x, queue, length):
    i = cuda.grid(1)
    if i < x.size and x[i] % 3 == 0:
        slot = cuda.atomic.add(length, 0, 1)
        queue[slot] = x[i]


def _append(grid: int, block: int, n: int) -> Launch:
    # Atomics are carried out in the order of the lanes, so the queue has that order.
    def expected(x: np.ndarray, queue: np.ndarray, length: np.ndarray) -> dict[int, np.ndarray]:
        return {2: np.array([(x % 3 == 0).sum()], np.int32)}

    return Launch(append, grid, block, lambda: (integers(n), np.full(n, -1, np.int32), np.zeros(1, np.int32)), expected)


launches(append, _append(2, 64, 128), _append(7, 32, 200), _append(1, 33, 20))


def any_negative(x, flag):
    i = cuda.grid(1)
    if i < x.size and x[i] < 0:
        flag[0] = 1


def _any_negative(grid: int, block: int, n: int) -> Launch:
    return Launch(any_negative, grid, block, lambda: (floats(n), np.zeros(1, np.int32)),
                  lambda x, flag: {1: np.array([int((x < 0).any())])})  # fmt: skip


launches(any_negative, _any_negative(4, 64, 256), _any_negative(1, 32, 10), _any_negative(3, 100, 290))


def vote_of_block(x, out):
    found = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        found[0] = 0
    cuda.syncthreads()  # begun
    if x[cuda.grid(1)] == 2:
        found[0] = 1
    cuda.syncthreads()  # voted
    out[cuda.grid(1)] = found[0]


def _vote(grid: int, block: int) -> Launch:
    return Launch(vote_of_block, grid, block, lambda: (floats(grid * block), np.zeros(grid * block, np.int32)),
                  lambda x, out: {1: np.repeat((x.reshape(grid, -1) == 2).any(axis=1).astype(np.int32), block)})  # fmt: skip


launches(vote_of_block, _vote(2, 64), _vote(20, 8), _vote(1, 128))


def accumulate(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, i % 10, x[i])


launches(
    accumulate,
    *(
        Launch(
            accumulate, grid, 32, lambda n=n: (floats(n), np.zeros(10)),
            lambda x, out: {1: np.bincount(np.arange(x.size) % 10, weights=x, minlength=10)},
        )
        for grid, n in ((2, 64), (10, 300))
    ),
)  # fmt: skip


# -- stencils -----------------------------------------------------------------------------------------------------------------------


def stencil(x, y):
    tile = cuda.shared.array(66, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t + 1] = 0
    if i < x.size:
        tile[t + 1] = x[i]
    if t == 0:
        tile[0] = x[i - 1] if i > 0 else float32(0)
    if t == 63:
        tile[65] = x[i + 1] if i + 1 < x.size else float32(0)
    cuda.syncthreads()
    if i < x.size:
        y[i] = tile[t] + tile[t + 1] + tile[t + 2]


def _stencil(kernel: Callable, grid: int, n: int, block: int = 64) -> Launch:
    def expected(x: np.ndarray, y: np.ndarray) -> dict[int, np.ndarray]:
        padded = np.pad(x, 1)
        return {1: padded[:-2] + padded[1:-1] + padded[2:]}

    return Launch(kernel, grid, block, lambda: (floats(n), np.zeros(n, np.float32)), expected)


launches(stencil, _stencil(stencil, 2, 128), _stencil(stencil, 4, 200), _stencil(stencil, 1, 64), _stencil(stencil, 2, 65))


def neighbour(x, i):
    if i < 0 or i >= x.size:
        return float32(0)
    return x[i]


def stencil_direct(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = neighbour(x, i - 1) + x[i] + neighbour(x, i + 1)


launches(stencil_direct, _stencil(stencil_direct, 2, 128), _stencil(stencil_direct, 3, 100, 50), _stencil(stencil_direct, 1, 1, 32))


def smooth(x, sweeps):
    row = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    row[t] = x[cuda.grid(1)]
    cuda.syncthreads()  # loaded
    for _ in range(sweeps):
        left = row[max(t - 1, 0)]
        right = row[min(t + 1, 63)]
        cuda.syncthreads()  # read
        row[t] = left + right
        cuda.syncthreads()  # written
    x[cuda.grid(1)] = row[t]


def _smooth(grid: int, sweeps: int) -> Launch:
    def expected(x: np.ndarray, _: int) -> dict[int, np.ndarray]:
        rows = x.reshape(grid, 64)
        for _sweep in range(sweeps):
            rows = np.concatenate([rows[:, :1], rows[:, :-1]], axis=1) + np.concatenate([rows[:, 1:], rows[:, -1:]], axis=1)
        return {0: rows.reshape(-1)}

    return Launch(smooth, grid, 64, lambda: (floats(grid * 64), sweeps), expected)


launches(smooth, _smooth(1, 1), _smooth(3, 4), _smooth(2, 0))


def ping_pong(x, y, turns):
    t = cuda.threadIdx.x
    n = x.size
    for turn in range(turns):
        if turn % 2 == 0:
            y[t] = x[(t + 1) % n]
        else:
            x[t] = y[(t + 1) % n]
        cuda.syncthreads()


def _ping_pong(n: int, turns: int) -> Launch:
    return Launch(ping_pong, 1, n, lambda: (floats(n), np.zeros(n, np.float32), turns),
                  lambda x, y, turns: {turns % 2: np.roll(x, -turns)})  # fmt: skip


launches(ping_pong, _ping_pong(64, 1), _ping_pong(100, 5), _ping_pong(32, 8))


def blur(image, out):
    tile = cuda.shared.array((10, 10), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    c, r = cuda.grid(2)
    for k in range(ty * 8 + tx, 100, 64):
        yy = cuda.blockIdx.y * 8 + k // 10 - 1
        xx = cuda.blockIdx.x * 8 + k % 10 - 1
        value = float32(0)
        if yy >= 0 and yy < image.shape[0] and xx >= 0 and xx < image.shape[1]:
            value = image[yy, xx]
        tile[k // 10, k % 10] = value
    cuda.syncthreads()
    if r < out.shape[0] and c < out.shape[1]:
        total = float32(0)
        for dy in range(3):
            for dx in range(3):
                total += tile[ty + dy, tx + dx]
        out[r, c] = total


def _blur(n: int, m: int) -> Launch:
    def expected(image: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        padded = np.pad(image, 1)
        return {1: sum(padded[dy : dy + n, dx : dx + m] for dy in range(3) for dx in range(3))}

    return Launch(blur, (-(-m // 8), -(-n // 8)), (8, 8), lambda: (floats(n, m), np.zeros((n, m), np.float32)), expected)


launches(blur, _blur(16, 16), _blur(20, 9), _blur(3, 30), _blur(8, 8))


# -- elementwise --------------------------------------------------------------------------------------------------------------------


def double_in_place(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 2 * x[i]


def _in_place(grid: int, block: int, n: int) -> Launch:
    return Launch(double_in_place, grid, block, lambda: (floats(n),), lambda x: {0: 2 * x})


launches(double_in_place, _in_place(2, 64, 128), _in_place(4, 33, 100), _in_place(1, 1, 1), _in_place(300, 32, 9000))


def saxpy(a, x, y):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = a * x[i] + y[i]


launches(
    saxpy,
    *(
        Launch(saxpy, g, b, lambda n=n: (2.0, floats(n), floats(n, seed=1)), lambda a, x, y: {2: 2 * x + y})
        for g, b, n in ((2, 64, 1000), (1, 32, 31), (8, 128, 1024))
    ),
)


def image_scale(a, out, factor):
    c, r = cuda.grid(2)
    if c < a.shape[1] and r < a.shape[0]:
        out[r, c] = a[r, c] * factor


def _image(n: int, m: int, block: tuple[int, int]) -> Launch:
    return Launch(image_scale, (-(-m // block[0]), -(-n // block[1])), block, lambda: (floats(n, m), np.zeros((n, m), np.float32), 3),
                  lambda a, out, factor: {1: 3 * a})  # fmt: skip


launches(image_scale, _image(20, 30, (16, 16)), _image(16, 16, (8, 4)), _image(7, 50, (32, 2)), _image(33, 3, (33, 3)))


def early_return(x, y):
    i = cuda.grid(1)
    if i >= x.size:
        return
    y[i] = x[i] * x[i]


launches(
    early_return,
    *(
        Launch(early_return, g, b, lambda n=n: (floats(n), np.zeros(n, np.float32)), lambda x, y: {1: x * x})
        for g, b, n in ((2, 64, 100), (1, 48, 48), (3, 32, 65))
    ),
)


def early_return_then_barrier(x, out):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t >= 40:
        return
    part[t] = x[i]
    cuda.syncthreads()
    out[i] = part[39 - t]


def _early(grid: int) -> Launch:
    def expected(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        wanted = np.zeros((grid, 64), np.float32)
        wanted[:, :40] = x.reshape(grid, 64)[:, 39::-1]
        return {1: wanted.reshape(-1)}

    return Launch(early_return_then_barrier, grid, 64, lambda: (floats(64 * grid), np.zeros(64 * grid, np.float32)), expected)


launches(early_return_then_barrier, _early(1), _early(3))


def broadcast(x, out):
    first = cuda.shared.array(1, float64)
    if cuda.threadIdx.x == 0:
        first[0] = x[cuda.blockIdx.x]
    cuda.syncthreads()
    out[cuda.grid(1)] = first[0]


launches(
    broadcast,
    *(
        Launch(broadcast, g, b, lambda g=g, b=b: (floats(g).astype(np.float64), np.zeros(g * b)), lambda x, out, b=b: {1: np.repeat(x, b)})
        for g, b in ((1, 32), (4, 100), (3, 64))
    ),
)


def reverse_dynamic(x):
    part = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    x[cuda.grid(1)] = part[n - 1 - t]


launches(
    reverse_dynamic,
    *(
        Launch(reverse_dynamic, g, b, lambda g=g, b=b: (floats(g * b),), lambda x, g=g: {0: x.reshape(g, -1)[:, ::-1].reshape(-1)}, 4 * b)
        for g, b in ((1, 64), (5, 33), (2, 256))
    ),
)
