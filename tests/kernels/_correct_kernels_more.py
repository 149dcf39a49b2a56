"""Kernels without a fault, part two: within a warp, between parts of a block, and between blocks."""

from __future__ import annotations

import itertools
import math

import numpy as np
from _correct_kernels import LAUNCHES, Launch, floats, integers, launches

from gpulab.kernels import cuda, float32, int32

__all__ = ["LAUNCHES"]


def softmax_rows(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    r = cuda.blockIdx.x
    best = -math.inf
    for c in range(t, x.shape[1], 64):
        best = max(best, x[r, c])
    part[t] = best
    cuda.syncthreads()  # maxima are there
    half = 32
    while half > 0:
        if t < half:
            part[t] = max(part[t], part[t + half])
        cuda.syncthreads()  # maxima halved
        half //= 2
    best = part[0]
    cuda.syncthreads()  # maximum is read
    total = float32(0)
    for c in range(t, x.shape[1], 64):
        e = math.exp(x[r, c] - best)
        y[r, c] = e
        total += e
    part[t] = total
    cuda.syncthreads()  # sums are there
    half = 32
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()  # sums halved
        half //= 2
    for c in range(t, x.shape[1], 64):
        y[r, c] = y[r, c] / part[0]


def _softmax(rows: int, columns: int) -> Launch:
    def expected(x: np.ndarray, y: np.ndarray) -> dict[int, np.ndarray]:
        e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        return {1: e / e.sum(axis=1, keepdims=True)}

    return Launch(softmax_rows, rows, 64, lambda: (floats(rows, columns), np.zeros((rows, columns), np.float32)), expected)


launches(softmax_rows, _softmax(3, 64), _softmax(2, 150), _softmax(1, 20))


def producer_consumer(x, y):
    box = cuda.shared.array((2, 32), float32)
    t = cuda.threadIdx.x
    lane = t % 32
    turns = x.size // 32
    for turn in range(turns + 1):
        if t < 32:
            if turn < turns:
                box[turn % 2, lane] = x[turn * 32 + lane]
        elif turn > 0:
            y[(turn - 1) * 32 + lane] = 2 * box[(turn - 1) % 2, lane]
        cuda.syncthreads()  # box is handed over


launches(
    producer_consumer,
    *(Launch(producer_consumer, 1, 64, lambda n=n: (floats(n), np.zeros(n, np.float32)), lambda x, y: {1: 2 * x}) for n in (32, 160, 256)),
)


def bitonic_sort(x):
    part = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()  # loaded
    k = 2
    while k <= n:
        j = k // 2
        while j > 0:
            other = t ^ j
            if other > t:
                up = (t & k) == 0
                a = part[t]
                b = part[other]
                if (a > b) == up:
                    part[t] = b
                    part[other] = a
            cuda.syncthreads()  # exchanged
            j //= 2
        k *= 2
    x[cuda.grid(1)] = part[t]


def _sorted(kernel, grid: int, block: int) -> Launch:
    return Launch(kernel, grid, block, lambda: (floats(grid * block),), lambda x: {0: np.sort(x.reshape(grid, -1), axis=1).reshape(-1)})


launches(bitonic_sort, _sorted(bitonic_sort, 2, 64), _sorted(bitonic_sort, 1, 128), _sorted(bitonic_sort, 3, 16))


def odd_even_sort(x):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    part[t] = x[cuda.grid(1)]
    for turn in range(n):
        cuda.syncthreads()  # turn
        if t % 2 == turn % 2 and t + 1 < n and part[t] > part[t + 1]:
            kept = part[t]
            part[t] = part[t + 1]
            part[t + 1] = kept
    cuda.syncthreads()  # sorted
    x[cuda.grid(1)] = part[t]


launches(odd_even_sort, _sorted(odd_even_sort, 1, 64), _sorted(odd_even_sort, 2, 33))


def segmented_sum(x, starts, out):
    s = cuda.grid(1)
    if s < starts.size - 1:
        total = float32(0)
        for i in range(starts[s], starts[s + 1]):
            total += x[i]
        out[s] = total


def _segments(grid: int, block: int, segments: int) -> Launch:
    def make() -> tuple:
        starts = np.concatenate([[0], np.cumsum(integers(segments, below=9))]).astype(np.int32)
        return floats(int(starts[-1])), starts, np.zeros(segments, np.float32)

    def expected(x: np.ndarray, starts: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        return {2: np.array([x[a:b].sum() for a, b in itertools.pairwise(starts)], np.float32)}

    return Launch(segmented_sum, grid, block, make, expected)


launches(segmented_sum, _segments(2, 32, 64), _segments(3, 40, 100), _segments(1, 64, 5))


def warp_transpose(x, y):
    tile = cuda.shared.array((4, 32), float32)
    t = cuda.threadIdx.x
    w = t // 32
    lane = t % 32
    for turn in range(2):
        tile[w, lane] = x[turn, cuda.grid(1)]
        cuda.syncwarp()  # written
        y[turn, cuda.grid(1)] = tile[w, lane // 4 + 8 * (lane % 4)]
        cuda.syncwarp()  # read


def _warp_transpose(grid: int, block: int) -> Launch:
    order = [lane // 4 + 8 * (lane % 4) for lane in range(32)]
    return Launch(
        warp_transpose, grid, block, lambda: (floats(2, grid * block), np.zeros((2, grid * block), np.float32)),
        lambda x, y: {1: x.reshape(2, -1, 32)[:, :, order].reshape(2, -1)},
    )  # fmt: skip


launches(warp_transpose, _warp_transpose(1, 32), _warp_transpose(2, 128), _warp_transpose(5, 64))


def half_warps(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.grid(1)]
    if t % 32 < 16:
        cuda.syncwarp(0x0000FFFF)  # lower
        y[cuda.grid(1)] = part[t ^ 1]
    else:
        cuda.syncwarp(0xFFFF0000)  # upper
        y[cuda.grid(1)] = part[t ^ 3]


def _half_warps(grid: int, block: int) -> Launch:
    t = np.arange(block)
    order = np.where(t % 32 < 16, t ^ 1, t ^ 3)
    return Launch(
        half_warps, grid, block, lambda: (floats(grid * block), np.zeros(grid * block, np.float32)),
        lambda x, y: {1: x.reshape(grid, -1)[:, order].reshape(-1)},
    )  # fmt: skip


launches(half_warps, _half_warps(1, 32), _half_warps(3, 64))


def groups_of_eight(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    members = 0xFF << (t % 32 // 8 * 8)
    part[t] = x[cuda.grid(1)]
    cuda.syncwarp(members)  # written
    y[cuda.grid(1)] = part[t - t % 8 + (7 - t % 8)]


launches(
    groups_of_eight,
    *(
        Launch(groups_of_eight, g, b, lambda n=g * b: (floats(n), np.zeros(n, np.float32)),
               lambda x, y: {1: x.reshape(-1, 8)[:, ::-1].reshape(-1)})
        for g, b in ((1, 32), (3, 64))
    ),
)  # fmt: skip


def compact(x, out, length):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    wanted = i < x.size and x[i] > 0
    bits = cuda.ballot_sync(0xFFFFFFFF, wanted)
    base = 0
    if t % 32 == 0:
        base = cuda.atomic.add(length, 0, cuda.popc(bits))
    base = cuda.shfl_sync(0xFFFFFFFF, base, 0)
    if wanted:
        slot = base + cuda.popc(bits & cuda.lanemask_lt())
        out[slot] = x[i]


def _compact(grid: int, block: int, n: int) -> Launch:
    return Launch(
        compact, grid, block, lambda: (floats(n), np.zeros(n, np.float32), np.zeros(1, np.int32)),
        lambda x, out, length: {2: np.array([(x > 0).sum()])},
    )  # fmt: skip


launches(compact, _compact(2, 64, 128), _compact(4, 32, 100), _compact(1, 256, 200))


def neighbours_by_shuffle(x, y):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    left = cuda.shfl_up_sync(0xFFFFFFFF, value, 1)
    right = cuda.shfl_down_sync(0xFFFFFFFF, value, 1)
    if t % 32 == 0 or t % 32 == 31:
        y[cuda.grid(1)] = value
    else:
        y[cuda.grid(1)] = left + value + right


def _neighbours(grid: int, block: int) -> Launch:
    def expected(x: np.ndarray, y: np.ndarray) -> dict[int, np.ndarray]:
        rows = x.reshape(-1, 32).copy()
        rows[:, 1:-1] += x.reshape(-1, 32)[:, :-2] + x.reshape(-1, 32)[:, 2:]
        return {1: rows.reshape(-1)}

    return Launch(neighbours_by_shuffle, grid, block, lambda: (floats(grid * block), np.zeros(grid * block, np.float32)), expected)


launches(neighbours_by_shuffle, _neighbours(1, 32), _neighbours(3, 96))


def butterfly_of_half(x, y):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t % 32 < 16:
        for k in range(4):
            value += cuda.shfl_xor_sync(0x0000FFFF, value, 1 << k)
    y[cuda.grid(1)] = value


def _butterfly(grid: int, block: int) -> Launch:
    def expected(x: np.ndarray, y: np.ndarray) -> dict[int, np.ndarray]:
        rows = x.reshape(-1, 2, 16).copy()
        rows[:, 0] = rows[:, 0].sum(axis=1, keepdims=True)
        return {1: rows.reshape(-1)}

    return Launch(butterfly_of_half, grid, block, lambda: (floats(grid * block), np.zeros(grid * block, np.float32)), expected)


launches(butterfly_of_half, _butterfly(1, 32), _butterfly(2, 64))


def largest_place(x, out):
    values = cuda.shared.array(128, float32)
    places = cuda.shared.array(128, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    values[t] = -math.inf
    places[t] = -1
    if i < x.size:
        values[t] = x[i]
        places[t] = i
    cuda.syncthreads()  # loaded
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half and values[t + half] > values[t]:
            values[t] = values[t + half]
            places[t] = places[t + half]
        cuda.syncthreads()  # halved
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = places[0]


def _largest(grid: int, block: int, n: int) -> Launch:
    def make() -> tuple:
        return np.random.default_rng(3).permutation(n).astype(np.float32), np.zeros(grid, np.int32)

    def expected(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        return {1: np.array([b * block + int(np.argmax(x[b * block : b * block + block])) for b in range(grid)])}

    return Launch(largest_place, grid, block, make, expected)


launches(largest_place, _largest(2, 128, 256), _largest(3, 64, 150), _largest(1, 32, 32))


WEIGHTS = np.array([1.0, -2.0, 3.0, 0.5, 2.0], np.float32)


def convolve(x, y):
    tile = cuda.shared.array(68, float32)
    t = cuda.threadIdx.x
    base = cuda.blockIdx.x * 64 - 2
    for k in range(t, 68, 64):
        tile[k] = 0
        if base + k >= 0 and base + k < x.size:
            tile[k] = x[base + k]
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < y.size:
        total = float32(0)
        for k in range(5):
            total += WEIGHTS[k] * tile[t + k]
        y[i] = total


def _convolve(n: int) -> Launch:
    return Launch(convolve, -(-n // 64), 64, lambda: (floats(n), np.zeros(n, np.float32)),
                  lambda x, y: {1: np.correlate(np.pad(x, 2), WEIGHTS, "valid")})  # fmt: skip


launches(convolve, _convolve(64), _convolve(130), _convolve(10))


def life(now, after):
    c, r = cuda.grid(2)
    rows, columns = now.shape
    if r < rows and c < columns:
        alive = 0
        for dy in range(-1, 2):
            for dx in range(-1, 2):
                if dy != 0 or dx != 0:
                    alive += now[(r + dy) % rows, (c + dx) % columns]
        after[r, c] = 1 if alive == 3 or (alive == 2 and now[r, c] == 1) else 0


def _life(n: int, m: int) -> Launch:
    def expected(now: np.ndarray, after: np.ndarray) -> dict[int, np.ndarray]:
        alive = sum(np.roll(now, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)) - now
        return {1: ((alive == 3) | ((alive == 2) & (now == 1))).astype(np.int32)}

    return Launch(life, (-(-m // 16), -(-n // 8)), (16, 8), lambda: (integers(n, m, below=2), np.zeros((n, m), np.int32)), expected)


launches(life, _life(16, 16), _life(20, 9), _life(5, 40))


def sums_of_columns(a, out):
    part = cuda.shared.array((8, 32), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    c = cuda.blockIdx.x * 32 + tx
    total = float32(0)
    if c < a.shape[1]:
        for r in range(ty, a.shape[0], 8):
            total += a[r, c]
    part[ty, tx] = total
    cuda.syncthreads()
    if ty == 0 and c < a.shape[1]:
        for k in range(1, 8):
            total += part[k, tx]
        out[c] = total


def _columns(n: int, m: int) -> Launch:
    return Launch(sums_of_columns, -(-m // 32), (32, 8), lambda: (floats(n, m), np.zeros(m, np.float32)), lambda a, out: {1: a.sum(axis=0)})


launches(sums_of_columns, _columns(32, 32), _columns(50, 70), _columns(3, 100))


def normalise(x, y):
    total = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        total[0] = 0
    for r in range(x.shape[0]):
        cuda.syncthreads()  # cleared
        cuda.atomic.add(total, 0, x[r, t])
        cuda.syncthreads()  # summed
        y[r, t] = x[r, t] - total[0] / cuda.blockDim.x
        cuda.syncthreads()  # used
        if t == 0:
            total[0] = 0


def _normalise(rows: int, threads: int) -> Launch:
    return Launch(normalise, 1, threads, lambda: (floats(rows, threads), np.zeros((rows, threads), np.float32)),
                  lambda x, y: {1: x - x.sum(axis=1, keepdims=True) / threads})  # fmt: skip


launches(normalise, _normalise(1, 64), _normalise(4, 32), _normalise(3, 100))


def until_settled(x):
    row = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    row[t] = x[t]
    going = 1
    while going > 0:
        cuda.syncthreads()  # settled
        left = row[t - 1] if t > 0 else 0
        changed = row[t] < left
        going = cuda.syncthreads_or(changed)
        if changed:
            row[t] = left
    x[t] = row[t]


launches(
    until_settled,
    *(Launch(until_settled, 1, n, lambda n=n: (integers(n),), lambda x: {0: np.maximum.accumulate(x)}) for n in (32, 64, 20)),
)


def flags_of_both_blocks(x, out):
    b = cuda.blockIdx.x
    i = cuda.grid(1)
    if x[i] > 0:
        out[b] = 1
        out[cuda.gridDim.x] = 1


def _flags(grid: int, block: int) -> Launch:
    def expected(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        each = (x.reshape(grid, -1) > 0).any(axis=1)
        return {1: np.append(each, each.any()).astype(np.int32)}

    return Launch(flags_of_both_blocks, grid, block, lambda: (floats(grid * block), np.zeros(grid + 1, np.int32)), expected)


launches(flags_of_both_blocks, _flags(2, 32), _flags(9, 40))


def tile_of_rows(x, y):
    tile = cuda.shared.array((8, 8, 8), float32)
    i, j, k = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    tile[k, j, i] = x[cuda.blockIdx.x, k, j, i]
    cuda.syncthreads()
    y[cuda.blockIdx.x, k, j, i] = tile[i, j, k]


launches(
    tile_of_rows,
    *(
        Launch(tile_of_rows, g, (8, 8, 8), lambda g=g: (floats(g, 8, 8, 8), np.zeros((g, 8, 8, 8), np.float32)),
               lambda x, y: {1: x.transpose(0, 3, 2, 1)})
        for g in (1, 3)
    ),
)  # fmt: skip


def zeros(n: int) -> np.ndarray:
    """Return float32 zeros."""
    return np.zeros(n, np.float32)


def last_block_done(x, part, count, out):
    last = cuda.shared.array(1, int32)
    sums = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    sums[t] = x[cuda.grid(1)]
    cuda.syncthreads()  # loaded
    if t == 0:
        total = float32(0)
        for k in range(64):
            total += sums[k]
        part[cuda.blockIdx.x] = total
        cuda.threadfence()  # before the ticket
        last[0] = cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()  # ticket is there
    if last[0] == cuda.gridDim.x - 1 and t == 0:
        cuda.threadfence()  # after the ticket
        total = float32(0)
        for k in range(cuda.gridDim.x):
            total += part[k]
        out[0] = total


launches(
    last_block_done,
    *(
        Launch(last_block_done, g, 64, lambda g=g: (floats(64 * g), zeros(g), np.zeros(1, np.int32), zeros(1)),
               lambda x, part, count, out: {3: x.sum(keepdims=True)})
        for g in (1, 5, 20)
    ),
)  # fmt: skip
