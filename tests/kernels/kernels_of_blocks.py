"""Correct kernels whose threads work together: across a block, within a warp, and between blocks.

The seeded bugs are edits of these texts, so each statement that they touch has a line of its own.
"""

import numpy as np
from gpulab.kernels import cuda, float32, float64, int32
from kernel_case import Case, floats, integers, zeros


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


def append(x, queue, length):
    i = cuda.grid(1)
    if i < x.size and x[i] % 3 == 0:
        slot = cuda.atomic.add(length, 0, 1)
        queue[slot] = x[i]


def any_negative(x, flag):
    i = cuda.grid(1)
    if i < x.size and x[i] < 0:
        flag[0] = 1


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


def neighbour(x, i):
    if i < 0 or i >= x.size:
        return float32(0)
    return x[i]


def stencil_direct(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = neighbour(x, i - 1) + x[i] + neighbour(x, i + 1)


def double_in_place(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 2 * x[i]


def saxpy(a, x, y):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = a * x[i] + y[i]


def image_scale(a, out, factor):
    c, r = cuda.grid(2)
    if c < a.shape[1] and r < a.shape[0]:
        out[r, c] = a[r, c] * factor


def early_return_then_barrier(x, out):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t >= 40:
        return
    part[t] = x[i]
    cuda.syncthreads()
    out[i] = part[39 - t]


def broadcast(x, out):
    first = cuda.shared.array(1, float64)
    if cuda.threadIdx.x == 0:
        first[0] = x[cuda.blockIdx.x]
    cuda.syncthreads()
    out[cuda.grid(1)] = first[0]


def reverse_dynamic(x):
    part = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    x[cuda.grid(1)] = part[n - 1 - t]


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


def groups_of_eight(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    members = 0xFF << (t % 32 // 8 * 8)
    part[t] = x[cuda.grid(1)]
    cuda.syncwarp(members)  # written
    y[cuda.grid(1)] = part[t - t % 8 + (7 - t % 8)]


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


def butterfly_of_half(x, y):
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t % 32 < 16:
        for k in range(4):
            value += cuda.shfl_xor_sync(0x0000FFFF, value, 1 << k)
    y[cuda.grid(1)] = value


def flags_of_both_blocks(x, out):
    b = cuda.blockIdx.x
    i = cuda.grid(1)
    if x[i] > 0:
        out[b] = 1
        out[cuda.gridDim.x] = 1


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


def _blocks_of(x, grid, block):
    """Return x as one row per block, padded with zeros."""
    return np.pad(x[: grid * block], (0, max(0, grid * block - x.size))).reshape(grid, block)


def _matmul(n, k, m):
    return floats(n, k), floats(k, m, seed=1), zeros(n, m)


def _summed(kernel, *several):
    return [
        Case(
            kernel, g, b, lambda n=n, g=g: (floats(n), zeros(g)),
            lambda x, out, g=g, b=b: {1: _blocks_of(x, g, b).sum(1)},
        )
        for g, b, n in several
    ]  # fmt: skip


def _scanned(kernel, *several):
    return [
        Case(
            kernel, g, b, lambda n=g * b: (floats(n), zeros(n)),
            lambda x, out, g=g: {1: x.reshape(g, -1).cumsum(1).ravel()},
        )
        for g, b in several
    ]  # fmt: skip


def _reordered(kernel, order, *several):
    """Return cases of a kernel that gives thread t of a block the element of thread order(t)."""
    return [
        Case(
            kernel, g, b, lambda n=g * b: (floats(n), zeros(n)),
            lambda x, y, g=g, b=b: {1: x.reshape(g, b)[:, order(np.arange(b))].ravel()},
        )
        for g, b in several
    ]  # fmt: skip


def _sorted(kernel, *several):
    return [
        Case(
            kernel, g, b, lambda n=g * b: (floats(n),),
            lambda x, g=g: {0: np.sort(x.reshape(g, -1), 1).ravel()},
        )
        for g, b in several
    ]  # fmt: skip


def _neighbours(x, y):
    return {1: np.convolve(x, [1, 1, 1], "same")}


def _mates(x, order):
    return x.reshape(2, -1, 32)[:, :, order].reshape(2, -1)


def _of_halves(x, y):
    rows = x.reshape(-1, 2, 16).copy()
    rows[:, 0] = rows[:, 0].sum(1, keepdims=True)
    return {1: rows.ravel()}


def _flags(x, out):
    each = (x.reshape(out.size - 1, -1) > 0).any(1)
    return {1: [*each, each.any()]}


def _copy_of(*shape):
    return floats(*shape), zeros(*shape)


WARP_ORDER = [lane // 4 + 8 * (lane % 4) for lane in range(32)]
CASES = [
    *(
        Case(matmul, g, (16, 16), lambda n=n: _matmul(*n), lambda a, b, c: {2: a @ b})
        for g, n in (
            ((2, 2), (32, 32, 32)), ((3, 2), (20, 19, 40)), ((1, 1), (16, 7, 5)),
        )
    ),
    *(
        Case(
            transpose, (-(-m // 16), -(-n // 16)), (16, 16),
            lambda n=n, m=m: (floats(n, m), zeros(m, n)), lambda a, b: {1: a.T},
        )
        for n, m in ((32, 32), (50, 20), (5, 3))
    ),
    *_summed(reduce_sequential, (2, 128, 256), (3, 128, 300), (4, 2, 7)),
    *_summed(reduce_last_warp, (1, 128, 128), (3, 128, 384)),
    *_summed(reduce_shuffle, (2, 128, 256), (3, 64, 150)),
    *_scanned(scan_of_warps, (2, 128), (1, 32)),
    *(
        Case(
            histogram, g, b,
            lambda n=n: (integers(0, 64, n, dtype=np.int32), zeros(64, dtype=np.int32)),
            lambda x, bins: {1: np.bincount(x, minlength=64)},
        )
        for g, b, n in ((2, 64, 300), (5, 48, 100))
    ),
    *(
        Case(
            append, g, b,
            lambda n=n: (integers(0, 100, n), np.full(n, -1), zeros(1, dtype=np.int32)),
            lambda x, queue, length: {2: [(x % 3 == 0).sum()]}, numba=False,
        )
        for g, b, n in ((2, 64, 128), (7, 32, 200))
    ),
    *(
        Case(
            any_negative, g, b, lambda n=n: (floats(n), zeros(1, dtype=np.int32)),
            lambda x, flag: {1: [(x < 0).any()]},
        )
        for g, b, n in ((4, 64, 256), (1, 32, 10))
    ),
    *(
        Case(stencil, g, 64, lambda n=n: _copy_of(n), _neighbours)
        for g, n in ((2, 128), (4, 200), (1, 64), (2, 65))
    ),
    *(
        Case(stencil_direct, g, b, lambda n=n: _copy_of(n), _neighbours)
        for g, b, n in ((2, 64, 128), (3, 50, 100))
    ),
    *(
        Case(double_in_place, g, b, lambda n=n: (floats(n),), lambda x: {0: 2 * x})
        for g, b, n in ((2, 64, 128), (4, 33, 100), (1, 1, 1), (50, 32, 1500))
    ),
    *(
        Case(
            saxpy, g, b, lambda n=n: (2.0, floats(n), floats(n, seed=1)),
            lambda a, x, y: {2: 2 * x + y},
        )
        for g, b, n in ((2, 64, 1000), (1, 32, 31))
    ),
    *(
        Case(
            image_scale, (-(-m // b[0]), -(-n // b[1])), b, lambda n=n, m=m: (*_copy_of(n, m), 3),
            lambda a, out, factor: {1: 3 * a},
        )
        for n, m, b in ((20, 30, (16, 16)), (16, 16, (8, 4)), (7, 50, (32, 2)))
    ),
    *(
        Case(
            early_return_then_barrier, g, 64, lambda n=64 * g: _copy_of(n),
            lambda x, out, g=g: {1: np.pad(x.reshape(g, 64)[:, 39::-1], ((0, 0), (0, 24))).ravel()},
            numba=False,
        )
        for g in (1, 3)
    ),
    *(
        Case(
            broadcast, g, b, lambda g=g, b=b: (np.arange(g) + 0.5, np.zeros(g * b)),
            lambda x, out, b=b: {1: np.repeat(x, b)},
        )
        for g, b in ((1, 32), (4, 100))
    ),
    *(
        Case(
            reverse_dynamic, g, b, lambda n=g * b: (floats(n),),
            lambda x, g=g: {0: x.reshape(g, -1)[:, ::-1].ravel()}, dynamic_shared_bytes=4 * b,
        )
        for g, b in ((1, 64), (5, 33))
    ),
    *(
        Case(producer_consumer, 1, 64, lambda n=n: _copy_of(n), lambda x, y: {1: 2 * x})
        for n in (32, 160)
    ),
    *_sorted(bitonic_sort, (2, 64), (1, 128)),
    *(
        Case(
            warp_transpose, g, b, lambda n=g * b: _copy_of(2, n),
            lambda x, y: {1: _mates(x, WARP_ORDER)}, numba=False,
        )
        for g, b in ((1, 32), (2, 128))
    ),
    *_reordered(half_warps, lambda t: np.where(t % 32 < 16, t ^ 1, t ^ 3), (1, 32), (3, 64)),
    *_reordered(groups_of_eight, lambda t: t - t % 8 + (7 - t % 8), (1, 32), (3, 64)),
    *(
        Case(
            compact, g, b, lambda n=n: (*_copy_of(n), zeros(1, dtype=np.int32)),
            lambda x, out, length: {2: [(x > 0).sum()]}, numba=False,
        )
        for g, b, n in ((2, 64, 128), (4, 32, 100))
    ),
    *(
        Case(butterfly_of_half, g, b, lambda n=g * b: _copy_of(n), _of_halves, numba=False)
        for g, b in ((1, 32), (2, 64))
    ),
    *(
        Case(
            flags_of_both_blocks, g, b,
            lambda g=g, b=b: (floats(g * b), zeros(g + 1, dtype=np.int32)), _flags,
        )
        for g, b in ((2, 32), (9, 40))
    ),
    *(
        Case(
            last_block_done, g, 64,
            lambda g=g: (floats(64 * g), zeros(g), zeros(1, dtype=np.int32), zeros(1)),
            lambda x, part, count, out: {3: [x.sum()]}, numba=False,
        )
        for g in (1, 5, 20)
    ),
]  # fmt: skip
