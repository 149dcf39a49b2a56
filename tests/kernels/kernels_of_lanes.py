"""Kernels of our own in which threads work together: warp functions, barriers, shared arrays, atomics of every kind."""

from __future__ import annotations

import numpy as np
from kernel_case import Case, ints, together, zeros

from gpulab.kernels import cuda, float32, float64, int16, int32, uint32

ALL = 0xFFFFFFFF


def warp_prefix(x, out):
    i = cuda.grid(1)
    lane = i % 32
    value = x[i]
    for step in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(ALL, value, step)
        if lane >= step:
            value += other
    out[i] = value


def vote_and_count(x, out):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x & 31
    ballot = cuda.ballot_sync(ALL, x[i] > 0)
    below = ballot & ((1 << lane) - 1)
    out[i] = cuda.popc(below) * 100 + cuda.popc(ballot)


def same_value(x, out):
    i = cuda.grid(1)
    mates = cuda.match_any_sync(ALL, x[i])
    out[i, 0] = mates
    out[i, 1] = 1 if cuda.ffs(mates) - 1 == i % 32 else 0


def half_warp_shuffle(x, out):
    i = cuda.grid(1)
    if i % 32 < 16:
        out[i] = cuda.shfl_sync(0xFFFF, x[i], (i + 5) % 16)
    else:
        out[i] = -cuda.shfl_xor_sync(0xFFFF0000, x[i], 9)


def count_in_block(x, out):
    i = cuda.grid(1)
    n = cuda.syncthreads_count(i < x.size and x[i] > 0)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = n


def atomics_of_integers(x, a):
    i = cuda.grid(1)
    cuda.atomic.add(a, 0, x[i])
    cuda.atomic.sub(a, 1, x[i])
    cuda.atomic.min(a, 2, x[i])
    cuda.atomic.max(a, 3, x[i])
    cuda.atomic.and_(a, 4, x[i] | 0xF0)
    cuda.atomic.or_(a, 5, 1 << (x[i] & 31))
    cuda.atomic.xor(a, 6, x[i])
    cuda.atomic.inc(a, 7, 40)
    cuda.atomic.dec(a, 8, 25)


def old_values(x, a, out):
    i = cuda.grid(1)
    slot = i % 3
    out[i, 0] = cuda.atomic.add(a, slot, x[i])
    out[i, 1] = cuda.atomic.max(a, 3 + slot, x[i])
    out[i, 2] = cuda.atomic.exch(a, 6 + slot, i)
    out[i, 3] = cuda.atomic.xor(a, 9 + slot, x[i])
    out[i, 4] = cuda.atomic.inc(a, 12, 10)
    out[i, 5] = cuda.atomic.cas(a, 13, i, i + 1)


def atomics_of_floats(x, a):
    i = cuda.grid(1)
    cuda.atomic.add(a, 0, x[i])
    cuda.atomic.min(a, 1, x[i])
    cuda.atomic.max(a, 2, x[i])
    cuda.atomic.sub(a, 3, x[i])


def atomics_in_shared(x, out):
    bins = cuda.shared.array((2, 4), int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t // 4, t % 4] = 0
    cuda.syncthreads()
    v = x[cuda.grid(1)]
    cuda.atomic.add(bins, (v & 1, (v >> 1) & 3), v)
    cuda.syncthreads()
    if t < 8:
        out[cuda.blockIdx.x, t] = bins[t // 4, t % 4]


def shared_cube(x, out):
    cube = cuda.shared.array((2, 3, 4), float64)
    i, j, k = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    cube[k, j, i] = x[k, j, i] * 2
    cuda.syncthreads()
    out[k, j, i] = cube[1 - k, 2 - j, 3 - i] + cube[k, (j + 1) % 3, i]


def dynamic_twice(x, out):
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    head = cuda.shared.array(0, float32)[:n]
    tail = cuda.shared.array(0, uint32)[n:]
    head[t] = x[t]
    tail[t] = t * t
    cuda.syncthreads()
    out[t] = head[n - 1 - t] + tail[(t + 3) % tail.size]


def dynamic_of_two_sizes(x, out):
    wide = cuda.shared.array(0, float64)
    narrow = cuda.shared.array(0, int16)
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    wide[t] = x[t] * 0.5
    narrow[4 * n + t] = x[n - 1 - t]
    cuda.syncthreads()
    out[t] = wide[(t + 1) % n] * 4 + narrow[4 * n + (t + 2) % n]


def two_loops_one_barrier(x, out):
    kept = cuda.shared.array(48, int32)
    t = cuda.threadIdx.x
    kept[t] = x[cuda.grid(1)]
    for turn in range(3):
        cuda.syncthreads()
        value = kept[(t + turn + 1) % 48]
        cuda.syncthreads()
        if t % (turn + 2) == 0:
            kept[t] = value - kept[t]
    out[cuda.grid(1)] = kept[t]


def leave_before_barrier(x, out):
    kept = cuda.shared.array(64, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i >= x.size:
        return
    kept[t] = x[i]
    cuda.syncthreads()
    other = t ^ 1
    last = min(x.size - cuda.blockIdx.x * 64, 64)
    out[i] = kept[other] if other < last else -1


def _positives_below(x, out):
    positive = x.reshape(-1, 32) > 0
    return {1: ((np.cumsum(positive, 1) - positive) * 100 + positive.sum(1, keepdims=True)).reshape(-1)}


def _reduced(x, a):
    ufuncs = {0: (np.add, x), 1: (np.subtract, x), 2: (np.minimum, x), 3: (np.maximum, x), 4: (np.bitwise_and, x | 0xF0),
              5: (np.bitwise_or, np.uint32(1) << (x & 31)), 6: (np.bitwise_xor, x)}  # fmt: skip
    made = a.copy()
    for at, (ufunc, values) in ufuncs.items():
        for v in values:
            made[at] = ufunc(made[at], v)
    made[7], made[8] = (int(a[7]) + x.size) % 41, (int(a[8]) - x.size) % 26
    return {1: made}


def _float_atomics(x, a):
    return {1: [a[0] + x.sum(), min(a[1], x.min()), max(a[2], x.max()), a[3] - x.sum()]}


CASES = [
    Case(warp_prefix, 2, 64, together(ints(-9, 9, 128), zeros(128)),
         lambda x, out: {1: np.cumsum(x.reshape(4, 32), 1).ravel()}, numba=False),
    Case(vote_and_count, 2, 64, together(ints(-9, 9, 128), zeros(128)), _positives_below, numba=False),
    Case(same_value, 2, 64, together(ints(0, 6, 128, dtype=np.int32), zeros(128, 2)), numba=False),
    Case(half_warp_shuffle, 2, 64, together(ints(0, 99, 128), zeros(128)), lambda x, out: {1: [
        x[i // 32 * 32 + (i % 32 + 5) % 16] if i % 32 < 16 else -x[i // 32 * 32 + (i % 32 ^ 9)] for i in range(128)]}, numba=False),
    Case(count_in_block, 3, 40, together(ints(-9, 9, 100), zeros(3)),
         lambda x, out: {1: [(x[:40] > 0).sum(), (x[40:80] > 0).sum(), (x[80:] > 0).sum()]}),
    Case(atomics_of_integers, 3, 33, together(ints(0, 2**20, 99, dtype=np.uint32),
         lambda rng: np.array([5, 2**31, 2**31, 7, 2**32 - 1, 2, 9, 3, 20], dtype=np.uint32)), _reduced),
    Case(old_values, 2, 33, together(ints(0, 99, 66, dtype=np.uint32), ints(0, 5, 14, dtype=np.uint32), zeros(66, 6)), numba=False),
    Case(atomics_of_floats, 2, 33, together(lambda rng: rng.integers(-99, 99, 66) / 8, zeros(4, dtype=np.float64)), _float_atomics),
    Case(atomics_in_shared, 2, 48, together(ints(0, 99, 96, dtype=np.int32), zeros(2, 8)), lambda x, out: {1: [[
        b[(b & 1 == k // 4) & (b >> 1 & 3 == k % 4)].sum() for k in range(8)] for b in x.reshape(2, 48)]}),
    Case(shared_cube, 1, (4, 3, 2), together(lambda rng: rng.uniform(-1, 1, (2, 3, 4)), zeros(2, 3, 4, dtype=np.float64)),
         lambda x, out: {1: 2 * x[::-1, ::-1, ::-1] + 2 * np.roll(x, -1, 1)}),
    Case(dynamic_twice, 1, 40, together(ints(-9, 9, 40), zeros(40, dtype=np.float64)), dynamic_shared_bytes=80 * 4,
         expected=lambda x, out: {1: x[::-1] + ((np.arange(40) + 3) % 40) ** 2}),
    Case(dynamic_of_two_sizes, 1, 40, together(ints(-9, 9, 40), zeros(40, dtype=np.float64)), dynamic_shared_bytes=40 * 8 + 40 * 2,
         expected=lambda x, out: {1: 2 * np.roll(x, -1) + np.roll(x[::-1], -2)}),
    Case(two_loops_one_barrier, 2, 48, together(ints(-99, 99, 96, dtype=np.int32), zeros(96))),
    Case(leave_before_barrier, 2, 64, together(ints(0, 99, 101, dtype=np.int32), zeros(101)), numba=False),
]  # fmt: skip
