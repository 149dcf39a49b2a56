"""Kernels with the content of the examples in numba-cuda's documentation, in our own words, and what NumPy says about their results."""

from __future__ import annotations

import math

import numpy as np
from kernel_case import DOUBLE, SINGLE, Case

from gpulab.kernels import cuda, float32, float64, int32, int64, uint32

TILE = 8
SEGMENT = 64
COEFFICIENTS = np.array([0.5, -1.25, 2.0, 0.125])
OFFSETS = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]], dtype=np.int32)


def vector_add(out, a, b):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


def increment_by_hand(values):
    place = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if place < values.size:
        values[place] += 1


def increment_2d(values):
    x, y = cuda.grid(2)
    if x < values.shape[0] and y < values.shape[1]:
        values[x, y] += 1


def matmul_naive(a, b, c):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


def matmul_tiled(a, b, c):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for step in range((a.shape[1] + TILE - 1) // TILE):
        left[ty, tx] = 0
        right[ty, tx] = 0
        if y < a.shape[0] and tx + step * TILE < a.shape[1]:
            left[ty, tx] = a[y, tx + step * TILE]
        if x < b.shape[1] and ty + step * TILE < b.shape[0]:
            right[ty, tx] = b[ty + step * TILE, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


def two_dynamic_views(out):
    numbers = cuda.shared.array(0, dtype=float32)
    integers = cuda.shared.array(0, dtype=int32)
    i = cuda.threadIdx.x
    n = cuda.blockDim.x
    numbers[i] = 0.5 * i
    integers[n + i] = 3 * i
    cuda.syncthreads()
    out[i] = numbers[n - 1 - i] + integers[n + (i + 1) % n]


def reverse_dynamic(values):
    kept = cuda.shared.array(0, dtype=float64)
    i = cuda.threadIdx.x
    kept[i] = values[i]
    cuda.syncthreads()
    values[i] = kept[cuda.blockDim.x - 1 - i]


def block_sum(values):
    i = cuda.threadIdx.x
    n = len(values)
    kept = cuda.shared.array(SEGMENT, int32)
    if i < n:
        kept[i] = values[i]
    cuda.syncthreads()
    stride = 1
    while stride < cuda.blockDim.x:
        if i % (2 * stride) == 0 and i + stride < n:
            kept[i] += kept[i + stride]
        stride *= 2
        cuda.syncthreads()
    if i == 0:
        values[0] = kept[0]


def sum_sequential(values, sums):
    kept = cuda.shared.array(SEGMENT, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    kept[t] = values[i] if i < values.size else 0.0
    cuda.syncthreads()
    stride = cuda.blockDim.x // 2
    while stride > 0:
        if t < stride:
            kept[t] += kept[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = kept[0]


def warp_sum(values, sums):
    i = cuda.grid(1)
    value = values[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if i % 32 == 0:
        sums[i // 32] = value


def block_sum_of_warps(values, sums):
    partial = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    lane, warp = t % 32, t // 32
    value = float32(0)
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        value += values[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
    if lane == 0:
        partial[warp] = value
    cuda.syncthreads()
    if warp == 0:
        value = partial[lane] if lane < cuda.blockDim.x // 32 else float32(0)
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        if lane == 0:
            cuda.atomic.add(sums, 0, value)


def broadcast_of_lane(out):
    lane = cuda.laneid
    out[cuda.grid(1)] = cuda.shfl_sync(0xFFFFFFFF, lane * 10, 5) + cuda.shfl_up_sync(0xFFFFFFFF, lane, 3)


def votes(flags, out):
    i = cuda.grid(1)
    flag = flags[i]
    out[i, 0] = cuda.ballot_sync(0xFFFFFFFF, flag)
    out[i, 1] = 1 if cuda.all_sync(0xFFFFFFFF, flag) else 0
    out[i, 2] = 1 if cuda.any_sync(0xFFFFFFFF, flag) else 0
    out[i, 3] = 1 if cuda.eq_sync(0xFFFFFFFF, flag) else 0


def histogram(values, least, most, counts):
    start, step = cuda.grid(1), cuda.gridsize(1)
    width = (most - least) / counts.shape[0]
    for i in range(start, values.shape[0], step):
        bin_number = int32((values[i] - least) / width)
        if 0 <= bin_number < counts.shape[0]:
            cuda.atomic.add(counts, bin_number, 1)


def histogram_shared(values, counts):
    own = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        own[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(own, values[i] % 16, 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(counts, t, own[t])


def largest(result, values):
    i = cuda.grid(1)
    cuda.atomic.max(result, 0, values[i])


def largest_2d(result, values):
    i, j = cuda.grid(2)
    if i < values.shape[0] and j < values.shape[1]:
        cuda.atomic.max(result, (i % 2, j % 3), values[i, j])


def stencil_1d(values, out):
    edge = cuda.shared.array(SEGMENT + 4, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    n = values.size
    edge[t + 2] = values[i] if i < n else 0
    if t < 2:
        edge[t] = values[i - 2] if i >= 2 else 0
        after = i + SEGMENT
        edge[t + SEGMENT + 2] = values[after] if after < n else 0
    cuda.syncthreads()
    if i < n:
        total = 0.0
        for k in range(-2, 3):
            total += edge[t + 2 + k]
        out[i] = total


def laplace_2d(old, new):
    i, j = cuda.grid(2)
    if 1 <= i < old.shape[0] - 1 and 1 <= j < old.shape[1] - 1:
        total = 0.0
        for k in range(4):
            total += old[i + OFFSETS[k, 0], j + OFFSETS[k, 1]]
        new[i, j] = 0.25 * total


def heat_steps(field, buffer, steps, k):
    """Explicit steps in one block; a barrier in place of the grid's."""
    i = cuda.threadIdx.x
    n = field.size
    for step in range(steps):
        if step % 2 == 0:
            source = field
            target = buffer
            if i < n:
                target[i] = source[i] + k * (source[i - 1 if i > 0 else 0] - 2 * source[i] + source[i + 1 if i < n - 1 else n - 1])
        elif i < n:
            field[i] = buffer[i] + k * (buffer[i - 1 if i > 0 else 0] - 2 * buffer[i] + buffer[i + 1 if i < n - 1 else n - 1])
        cuda.syncthreads()


def visit_length(users, seconds, out):
    """How long each visit lasted: the first click of a visit looks ahead until the user or the visit changes."""
    i = cuda.grid(1)
    if i >= users.size:
        return
    begins = i == 0 or users[i] != users[i - 1] or seconds[i] - seconds[i - 1] > 30
    if not begins:
        out[i] = -1
        return
    j = i + 1
    while j < users.size and users[j] == users[i] and seconds[j] - seconds[j - 1] <= 30:
        j += 1
    out[i] = seconds[j - 1] - seconds[i]


def running_window(values, out):
    kept = cuda.local.array(5, float64)
    i = cuda.grid(1)
    for k in range(5):
        at = i + k - 2
        kept[k] = values[at] if 0 <= at < values.size else 0.0
    for a in range(4):  # the median by sorting one's own five
        for b in range(4 - a):
            if kept[b] > kept[b + 1]:
                kept[b], kept[b + 1] = kept[b + 1], kept[b]
    if i < out.size:
        out[i] = kept[2]


def constant_polynomial(x, out):
    coefficients = cuda.const.array_like(COEFFICIENTS)
    i = cuda.grid(1)
    if i < x.size:
        total = 0.0
        for k in range(len(coefficients)):
            total = total * x[i] + coefficients[len(coefficients) - 1 - k]
        out[i] = total


def polar(x, y):
    return math.sqrt(x * x + y * y), math.atan2(y, x)


def polar_form(x, y, radius, angle):
    i = cuda.grid(1)
    if i < x.size:
        radius[i], angle[i] = polar(x[i], y[i])


def escape_real(x, y, limit):
    a, b = x, y
    for i in range(limit):
        a2, b2 = a * a, b * b
        if a2 + b2 >= 4.0:
            return i
        b = 2.0 * a * b + y
        a = a2 - b2 + x
    return limit


def mandelbrot(left, right, low, high, image, limit):
    column, row = cuda.grid(2)
    if column < image.shape[1] and row < image.shape[0]:
        x = left + column * (right - left) / image.shape[1]
        y = low + row * (high - low) / image.shape[0]
        image[row, column] = escape_real(x, y, limit)


def escape_complex(c, limit):
    z = 0.0j
    for i in range(limit):
        z = z * z + c
        if (z.real * z.real + z.imag * z.imag) >= 4:
            return i
    return limit


def mandelbrot_complex(image, limit):
    column, row = cuda.grid(2)
    if column < image.shape[1] and row < image.shape[0]:
        c = complex(-2.0 + column * 3.0 / image.shape[1], -1.0 + row * 2.0 / image.shape[0])
        image[row, column] = escape_complex(c, limit)


def like_a_ufunc(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = math.sin(a[i]) * math.exp(-b[i]) + math.log1p(math.fabs(a[i])) ** 2 / (1.0 + math.hypot(a[i], b[i]))


def price_option(calls, puts, price, strike, years, rate, volatility):
    """Black and Scholes, with the distribution by the error function."""
    i = cuda.grid(1)
    if i >= price.size:
        return
    root = math.sqrt(years[i])
    d1 = (math.log(price[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]) / (volatility * root)
    d2 = d1 - volatility * root
    n1 = 0.5 * (1.0 + math.erf(d1 / math.sqrt(2.0)))
    n2 = 0.5 * (1.0 + math.erf(d2 / math.sqrt(2.0)))
    discounted = strike[i] * math.exp(-rate * years[i])
    calls[i] = price[i] * n1 - discounted * n2
    puts[i] = discounted * (1.0 - n2) - price[i] * (1.0 - n1)


def next_state(state):
    return (state * 1664525 + 1013904223) & 0xFFFFFFFF


def monte_carlo_pi(tries, inside):
    i = cuda.grid(1)
    state = next_state(i + 12345)
    hits = 0
    for _ in range(tries):
        state = next_state(state)
        x = state / 4294967296.0
        state = next_state(state)
        y = state / 4294967296.0
        if x * x + y * y <= 1.0:
            hits += 1
    inside[i] = hits


def take_tickets(counter, tickets):
    i = cuda.grid(1)
    if i % 3 != 1:
        tickets[i] = cuda.atomic.add(counter, 0, 2)


def claim_once(owner, wins):
    i = cuda.grid(1)
    if cuda.atomic.cas(owner, i % 7, -1, i) == -1:
        wins[i] = 1


def slowest_maximum(best, values):
    """An atomic maximum made of cas: each thread retries until it wins or is beaten; no lane waits for another of its warp."""
    i = cuda.grid(1)
    seen = cuda.atomic.cas(best, 0, -1000, -1000)  # an atomic look
    while values[i] > seen:
        before = cuda.atomic.cas(best, 0, seen, values[i])
        if before == seen:
            break
        seen = before


def copy_transposed(source, target):
    tile = cuda.shared.array((TILE, TILE + 1), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    if y < source.shape[0] and x < source.shape[1]:
        tile[ty, tx] = source[y, x]
    cuda.syncthreads()
    row = cuda.blockIdx.x * TILE + ty
    column = cuda.blockIdx.y * TILE + tx
    if row < target.shape[0] and column < target.shape[1]:
        target[row, column] = tile[tx, ty]


def hash_mix(values, out):
    i = cuda.grid(1)
    if i < values.size:
        h = uint32(values[i])
        h = uint32(h ^ (h >> 16))
        h = uint32(h * 0x45D9F3B)
        h = uint32(h ^ (h >> 13))
        out[i] = h


def saxpy_strided(a, x, y):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = a * x[i] + y[i]


def count_even(values, out):
    i = cuda.grid(1)
    even = values[i] % 2 == 0
    n = cuda.syncthreads_count(even)
    every = cuda.syncthreads_and(even)
    one = cuda.syncthreads_or(even)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x, 0] = n
        out[cuda.blockIdx.x, 1] = int64(every)
        out[cuda.blockIdx.x, 2] = int64(one)


def _floats(*shapes, dtype=np.float32):
    return lambda rng: tuple(rng.uniform(-4, 4, shape).astype(dtype) for shape in shapes)


def _with(*more, dtype=np.float32):
    """Return what makes arguments: shapes become arrays of floats, the rest stays or, where it can be called, is called."""

    def make(rng):
        found = []
        for item in more:
            if callable(item):
                found.append(item(rng))
            elif isinstance(item, tuple):
                found.append(rng.uniform(-4, 4, item).astype(dtype))
            else:
                found.append(item)
        return tuple(found)

    return make


def _zeros(*shape, dtype=np.float32):
    return lambda rng: np.zeros(shape, dtype)


def _ints(low, high, *shape, dtype=np.int64):
    return lambda rng: rng.integers(low, high, shape).astype(dtype)


def _median_of_windows(x, out):
    padded = np.concatenate([[0, 0], x, [0, 0]])
    return {1: np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)}


def _sum_neighbours(x, out):
    padded = np.concatenate([[0, 0], x.astype(np.float64), [0, 0]])
    return {1: np.lib.stride_tricks.sliding_window_view(padded, 5).sum(axis=1)}


def _laplace(old, new):
    made = new.astype(np.float64)
    o = old.astype(np.float64)
    made[1:-1, 1:-1] = 0.25 * (o[:-2, 1:-1] + o[2:, 1:-1] + o[1:-1, :-2] + o[1:-1, 2:])
    return {1: made}


def _heat(field, buffer, steps, k):
    now = field.copy()
    for _ in range(steps):
        edged = np.concatenate([now[:1], now, now[-1:]])
        now = now + k * (edged[:-2] - 2 * now + edged[2:])
    return {0: now}


def _visits(rng):
    users = np.sort(rng.integers(0, 9, 90)).astype(np.int32)
    return users, np.cumsum(rng.choice([3, 10, 40], 90)).astype(np.int32), np.zeros(90, np.int32)


def _votes(flags, out):
    made = np.zeros(out.shape, np.int64)
    for w in range(len(flags) // 32):
        of_warp = flags[32 * w : 32 * w + 32] != 0
        bits = int(np.uint32((of_warp.astype(np.int64) << np.arange(32)).sum()).astype(np.int32))  # numba's ballot is an int32
        alike = of_warp.all() or not of_warp.any()
        made[32 * w : 32 * w + 32] = [bits, of_warp.all(), of_warp.any(), alike]
    return {1: made}


def _vote_flags(rng):
    flags = rng.integers(0, 2, 128)
    flags[:32], flags[32:64] = rng.integers(1, 9, 32), 0  # a vote asks whether they are true, not which number they are
    return flags, np.zeros((128, 4), np.int64)


def _bins(values, least, most, counts):
    return {3: np.histogram(values, counts.size, (least, most))[0]}


def _mandelbrot(columns, rows, limit):
    x, y = np.meshgrid(-2 + np.arange(columns) * 3.0 / columns, -1 + np.arange(rows) * 2.0 / rows)
    return x + 1j * y


def _maximum_of_groups(result, values):
    return {0: np.array([[values[i::2, j::3].max() for j in range(3)] for i in range(2)])}


CASES = [
    Case(vector_add, 5, 32, _with(_zeros(150), (150,), (150,)), lambda out, a, b: {0: a + b}),
    Case(increment_by_hand, 3, 33, _with(_ints(0, 9, 70, dtype=np.int16)), lambda v: {0: v + 1}),
    Case(increment_2d, (3, 2), (8, 8), _with((20, 13)), lambda v: {0: v + np.float64(1)}, SINGLE),
    Case(matmul_naive, (3, 2), (8, 8), _with((17, 9), (9, 13), _zeros(17, 13)), lambda a, b, c: {2: a.astype(float) @ b}, SINGLE),
    Case(matmul_tiled, (2, 3), (8, 8), _with((19, 11), (11, 13), _zeros(19, 13)), lambda a, b, c: {2: a.astype(float) @ b}, SINGLE),
    Case(two_dynamic_views, 1, 40, _with(_zeros(40)),
         lambda out: {0: 0.5 * np.arange(40)[::-1] + 3 * ((np.arange(40) + 1) % 40)}, dynamic_shared_bytes=320),
    Case(reverse_dynamic, 1, 45, _with((45,), dtype=np.float64), lambda v: {0: v[::-1]}, dynamic_shared_bytes=360),
    Case(block_sum, 1, 64, _with(_ints(-50, 50, 51, dtype=np.int32)), lambda v: {0: np.array([v.sum(), *v[1:]])}),
    Case(sum_sequential, 3, 64, _with((150,), _zeros(3)),
         lambda v, s: {1: [v[i : i + 64].astype(float).sum() for i in (0, 64, 128)]}, SINGLE),
    Case(warp_sum, 2, 64, _with(_ints(-9, 9, 128), _zeros(4, dtype=np.int64)), lambda v, s: {1: v.reshape(4, 32).sum(1)}, numba=False),
    Case(block_sum_of_warps, 2, 96, _with((500,), _zeros(1)), lambda v, s: {1: [v.astype(float).sum()]}, SINGLE, numba=False),
    Case(broadcast_of_lane, 2, 64, _with(_zeros(128, dtype=np.int64)),
         lambda out: {0: 50 + np.tile([*range(3), *range(29)], 4)}, numba=False),
    Case(votes, 2, 64, _vote_flags, _votes, numba=False),
    Case(histogram, 2, 32, _with((300,), -4.0, 4.0, _zeros(8, dtype=np.int32), dtype=np.float64), _bins),
    Case(histogram_shared, 3, 64, _with(_ints(0, 900, 170), _zeros(16, dtype=np.int32)),
         lambda v, c: {1: np.bincount(v % 16, minlength=16)}),
    Case(largest, 3, 40, _with(lambda rng: np.array([-99.0]), (120,), dtype=np.float64), lambda r, v: {0: [v.max()]}),
    Case(largest_2d, (2, 2), (8, 8), _with(lambda rng: np.full((2, 3), -9, np.int32), _ints(-9, 99, 12, 15, dtype=np.int32)),
         _maximum_of_groups),
    Case(stencil_1d, 3, 64, _with((155,), _zeros(155)), _sum_neighbours, SINGLE),
    Case(laplace_2d, (2, 3), (8, 8), _with((14, 19), _zeros(14, 19)), _laplace, SINGLE),
    Case(heat_steps, 1, 64, _with((50,), (50,), 6, 0.2, dtype=np.float64), _heat, DOUBLE),
    Case(visit_length, 3, 32, _visits),
    Case(running_window, 2, 48, _with((80,), _zeros(80, dtype=np.float64), dtype=np.float64), _median_of_windows),
    Case(constant_polynomial, 2, 32, _with((50,), _zeros(50, dtype=np.float64), dtype=np.float64),
         lambda x, out: {1: np.polyval(COEFFICIENTS[::-1], x)}, DOUBLE),
    Case(polar_form, 2, 32, _with((60,), (60,), (60,), (60,), dtype=np.float64),
         lambda x, y, r, a: {2: np.hypot(x, y), 3: np.arctan2(y, x)}, DOUBLE),
    Case(mandelbrot, (3, 2), (8, 8), _with(-2.0, 1.0, -1.0, 1.0, _zeros(15, 22, dtype=np.uint8), 20)),
    Case(mandelbrot_complex, (3, 2), (8, 8), _with(_zeros(15, 22, dtype=np.uint8), 20)),
    Case(like_a_ufunc, 2, 32, _with((60,), (60,), (60,), dtype=np.float64),
         lambda a, b, out: {2: np.sin(a) * np.exp(-b) + np.log1p(np.abs(a)) ** 2 / (1 + np.hypot(a, b))}, DOUBLE),
    Case(price_option, 2, 32, lambda rng: (np.zeros(50), np.zeros(50), rng.uniform(5, 30, 50), rng.uniform(1, 100, 50),
                                           rng.uniform(0.25, 10, 50), 0.02, 0.3), tolerance=1e-11),
    Case(monte_carlo_pi, 2, 33, _with(25, _zeros(66, dtype=np.int64))),
    Case(take_tickets, 2, 40, _with(_zeros(1, dtype=np.int64), _zeros(80, dtype=np.int64)), numba=False),
    Case(claim_once, 1, 50, _with(lambda rng: np.full(7, -1), _zeros(50, dtype=np.int64)),
         lambda o, w: {0: np.arange(7), 1: np.arange(50) < 7}, numba=False),
    Case(slowest_maximum, 2, 40, _with(lambda rng: np.array([-9]), _ints(-900, 900, 80)), lambda b, v: {0: [v.max()]}),
    Case(copy_transposed, (3, 2), (8, 8), _with((13, 21), _zeros(21, 13)), lambda s, t: {1: s.T}),
    Case(hash_mix, 2, 33, _with(_ints(0, 2**32, 60, dtype=np.uint32), _zeros(60, dtype=np.uint32))),
    Case(saxpy_strided, 2, 32, _with(2.5, (200,), (200,)), lambda a, x, y: {2: a * x.astype(float) + y}, SINGLE),
    Case(count_even, 3, 40, _with(_ints(0, 9, 120), _zeros(3, 3, dtype=np.int64)),
         lambda v, out: {1: [[(b % 2 == 0).sum(), (b % 2 == 0).all(), (b % 2 == 0).any()] for b in v.reshape(3, 40)]}),
]  # fmt: skip
