"""Kernels that use the whole language: control flow, integer types, views, functions, atomics."""

import numpy as np
from gpulab.kernels import (
    cuda,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from kernel_case import DOUBLE, Case, integers, uniform, zeros

TABLE = np.array([[7, 1, 4], [2, 8, 5]], dtype=np.int16)
ALL = 0xFFFFFFFF


def nested_leaps(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    total = 0
    for a in range(6):
        if (x[i] + a) % 5 == 0:
            continue
        for b in range(a, 9):
            if (x[i] + b) % 7 == 3:
                break
            if b % 2:
                continue
            total += a * b + 1
            if total > 60:
                out[i] = -total
                return
        total += 1
    out[i] = total


def narrow_integers(x, a, b, c, d):
    i = cuda.grid(1)
    v = x[i]
    a[i] = int8(v * 3)
    b[i] = uint8(v - 200)
    c[i] = int16(v * v)
    d[i] = uint16(v * 77 + 5)


def wrap_around(u, out32, out64):
    i = cuda.grid(1)
    out32[i] = u[i] * uint32(2654435761) + uint32(0xFFFFFFF0)
    state = uint64(uint64(u[i]) * uint64(6364136223846793005) + uint64(1442695040888963407))
    state ^= state >> uint64(33)
    state *= uint64(0xFF51AFD7ED558CCD)
    out64[i] = state


def halves(h, out):
    i = cuda.grid(1)
    out[i] = float16(float32(h[i]) * float32(1.5) + float32(0.25))


def row_views(m, out):
    i = cuda.grid(1)
    if i < m.shape[0]:
        row = m[i]
        total = 0
        for k in range(row.size):
            total += row[k]
        part = m[i, 2:5]
        for k in range(len(part)):
            total += 10 * part[k]
        out[i] = total


def classify(v):
    if v < 0:
        return -1
    for k in range(2, 7):
        if v % k == 0:
            return k
    if v > 40:
        return v
    return 0


def twice_classified(v, w):
    first = classify(v)
    if first == 2:
        return first * 100
    return first + 10 * classify(w)


def middle_returns(x, out):
    i = cuda.grid(1)
    out[i] = twice_classified(x[i], i) + classify(i - 3)


def fill_row(row, value):
    for k in range(len(row)):
        if k == value:
            return
        row[k] = value


def device_writes(m):
    i = cuda.grid(1)
    if i < m.shape[0]:
        fill_row(m[i], i)


def range_of_each(start, stop, step, out):
    i = cuda.grid(1)
    k = -77
    n = 0
    for k in range(start[i], stop[i], step[i]):  # noqa: B007 - its last value is stored
        n += 1
    out[i, 0], out[i, 1] = n, k


def captured_table(x, out):
    i = cuda.grid(1)
    out[i] = TABLE[x[i] % 2, i % 3] + TABLE.shape[1] + TABLE[-1, 0]


def insertion_sort(m, out):
    kept = cuda.local.array(6, int32)
    i = cuda.grid(1)
    for k in range(6):
        v = m[i, k]
        at = k
        while at > 0 and kept[at - 1] > v:
            kept[at] = kept[at - 1]
            at -= 1
        kept[at] = v
    for k in range(6):
        out[i, k] = kept[k]


def complex_product(z, w, out):
    i = cuda.grid(1)
    p = z[i] * w[i] + 2j
    out[i, 0], out[i, 1] = p.real, p.imag


def vote_and_count(x, out):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x & 31
    ballot = cuda.ballot_sync(ALL, x[i] > 0)
    below = ballot & ((1 << lane) - 1)
    out[i] = cuda.popc(below) * 100 + cuda.popc(ballot)


def atomics_of_integers(x, a):
    i = cuda.grid(1)
    cuda.atomic.add(a, 0, x[i])
    given = (1, x[i])
    cuda.atomic.sub(a, *given)
    cuda.atomic.min(a, 2, x[i])
    cuda.atomic.max(a, 3, x[i])
    cuda.atomic.and_(a, 4, x[i] | 0xF0)
    cuda.atomic.or_(a, 5, 1 << (x[i] & 31))
    cuda.atomic.xor(a, 6, x[i])
    cuda.atomic.inc(a, 7, 40)
    cuda.atomic.dec(a, 8, 25)


def atomics_of_floats(x, a):
    i = cuda.grid(1)
    cuda.atomic.add(a, 0, x[i])
    cuda.atomic.min(a, 1, x[i])
    cuda.atomic.max(a, 2, x[i])
    cuda.atomic.sub(a, 3, x[i])


def shared_cube(x, out):
    cube = cuda.shared.array((2, 3, 4), float64)
    i, j, k = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    cube[k, j, i] = x[k, j, i] * 2
    cuda.syncthreads()
    out[k, j, i] = cube[1 - k, 2 - j, 3 - i] + cube[k, (j + 1) % 3, i]


def dynamic_of_two_sizes(x, out):
    wide = cuda.shared.array(0, float64)
    narrow = cuda.shared.array(0, int16)
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    wide[t] = x[t] * 0.5
    narrow[4 * n + t] = x[n - 1 - t]
    cuda.syncthreads()
    out[t] = wide[(t + 1) % n] * 4 + narrow[4 * n + (t + 2) % n]


def slowest_maximum(best, values):
    """An atomic maximum made of cas: each thread retries until it wins or is beaten."""
    i = cuda.grid(1)
    seen = cuda.atomic.cas(best, 0, -1000, -1000)  # an atomic look
    while values[i] > seen:
        before = cuda.atomic.cas(best, 0, seen, values[i])
        if before == seen:
            break
        seen = before


def _wrapped(u, out32, out64):
    state = u.astype(np.uint64) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    state ^= state >> np.uint64(33)
    return {
        1: u * np.uint32(2654435761) + np.uint32(0xFFFFFFF0),
        2: state * np.uint64(0xFF51AFD7ED558CCD),
    }


def _ranges(start, stop, step, out):
    limits = zip(start.tolist(), stop.tolist(), step.tolist(), strict=True)
    return {3: [(len(range(*each)), [-77, *range(*each)][-1]) for each in limits]}


def _positives_below(x, out):
    positive = x.reshape(-1, 32) > 0
    below = np.cumsum(positive, 1) - positive
    return {1: (below * 100 + positive.sum(1, keepdims=True)).ravel()}


def _reduced(x, a):
    bits = np.bitwise_or.reduce(np.uint32(1) << (x & 31))
    return {
        1: [
            a[0] + x.sum(dtype=np.uint32), a[1] - x.sum(dtype=np.uint32), min(a[2], x.min()),
            max(a[3], x.max()), a[4] & np.bitwise_and.reduce(x | 0xF0), a[5] | bits,
            a[6] ^ np.bitwise_xor.reduce(x), (a[7] + x.size) % 41, (int(a[8]) - x.size) % 26,
        ]
    }  # fmt: skip


def _whole(low, high, *shape, then=(), dtype=np.int64):
    """Return a function that makes whole numbers, and arrays of zeros of the shapes in ``then``."""
    return lambda: (
        integers(low, high, *shape, dtype=dtype),
        *(zeros(*s, dtype=np.int64) for s in then),
    )


N = np.arange(128)
CASES = [
    Case(nested_leaps, 3, 33, _whole(0, 50, 90, then=[(90,)])),
    Case(
        narrow_integers, 2, 33,
        lambda: (integers(-900, 900, 66), *(zeros(66, dtype=k) for k in ("i1", "u1", "i2", "u2"))),
        lambda x, *_: {
            1: (x * 3).astype("i1"), 2: (x - 200).astype("u1"), 3: (x * x).astype("i2"),
            4: (x * 77 + 5).astype("u2"),
        }, numba=False,
    ),
    Case(
        wrap_around, 2, 33,
        lambda: (integers(0, 2**32, 66, dtype="u4"), zeros(66, dtype="u4"), zeros(66, dtype="u8")),
        _wrapped, numba=False,
    ),
    Case(
        halves, 2, 33, lambda: (uniform(-9, 9, 66, dtype="f2"), zeros(66, dtype="f2")),
        lambda h, out: {1: (h.astype("f4") * np.float32(1.5) + np.float32(0.25)).astype("f2")},
    ),
    Case(
        row_views, 2, 16, _whole(0, 99, 30, 7, then=[(30,)]),
        lambda m, out: {1: m.sum(1) + 10 * m[:, 2:5].sum(1)},
    ),
    Case(middle_returns, 3, 33, _whole(-20, 90, 99, then=[(99,)])),
    Case(
        device_writes, 2, 16, _whole(50, 99, 27, 5),
        lambda m: {0: np.where(np.arange(5) < N[:27, None], N[:27, None], m)},
    ),
    Case(
        range_of_each, 2, 33,
        lambda: (
            integers(-9, 9, 66), integers(-9, 9, 66, seed=1),
            np.random.default_rng(2).choice([-4, -2, -1, 1, 2, 3], 66),
            zeros(66, 2, dtype=np.int64),
        ), _ranges,
    ),
    Case(
        captured_table, 2, 33, _whole(0, 9, 66, then=[(66,)]),
        lambda x, out: {1: TABLE[x % 2, N[:66] % 3] + 3 + 2},
    ),
    Case(
        insertion_sort, 2, 33, _whole(-9, 9, 66, 6, then=[(66, 6)]),
        lambda m, out: {1: np.sort(m, 1)},
    ),
    Case(
        complex_product, 2, 16,
        lambda: (
            uniform(-1, 1, 32) + 1j * uniform(0, 1, 32), uniform(-1, 1, 32) + 0.5j,
            np.zeros((32, 2)),
        ),
        lambda z, w, out: {2: np.stack([(z * w).real, (z * w).imag + 2], 1)}, DOUBLE,
    ),
    Case(vote_and_count, 2, 64, _whole(-9, 9, 128, then=[(128,)]), _positives_below, numba=False),
    Case(
        atomics_of_integers, 3, 33,
        lambda: (
            integers(0, 2**20, 99, dtype="u4"),
            np.array([5, 2**31, 2**31, 7, 2**32 - 1, 2, 9, 3, 20], dtype="u4"),
        ), _reduced,
    ),
    Case(
        atomics_of_floats, 2, 33, lambda: (integers(-99, 99, 66) / 8, np.zeros(4)),
        lambda x, a: {1: [x.sum(), min(0, x.min()), max(0, x.max()), -x.sum()]},
    ),
    Case(
        shared_cube, 1, (4, 3, 2), lambda: (uniform(-1, 1, 2, 3, 4), np.zeros((2, 3, 4))),
        lambda x, out: {1: 2 * x[::-1, ::-1, ::-1] + 2 * np.roll(x, -1, 1)},
    ),
    Case(
        dynamic_of_two_sizes, 1, 40, lambda: (integers(-9, 9, 40), np.zeros(40)),
        lambda x, out: {1: 2 * np.roll(x, -1) + np.roll(x[::-1], -2)},
        dynamic_shared_bytes=40 * 8 + 40 * 2,
    ),
    Case(
        slowest_maximum, 2, 40, lambda: (np.array([-9]), integers(-900, 900, 80)),
        lambda best, values: {0: [values.max()]},
    ),
]  # fmt: skip
