"""Thirty and more kernels of our own: odd control flow, all widths of integers, views, atomics, warp functions, 3-D shapes."""

from __future__ import annotations

import math

import numpy as np
from kernel_case import DOUBLE, SINGLE, Case, ints, together, zeros

from gpulab.kernels import cuda, float16, float32, int8, int16, int32, int64, uint8, uint16, uint32, uint64

ROWS = 3
WEIGHTS = (2, -3, 5)
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


def collatz(x, out):
    i = cuda.grid(1)
    n, steps = x[i], 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
        if steps == 60:
            break
    out[i] = steps


def greatest_divisor(a, b, out):
    i = cuda.grid(1)
    p, q = a[i], b[i]
    while q:
        p, q = q, p % q
    out[i] = p


def swap_three(x, out):
    i = cuda.grid(1)
    a, b, c = x[i, 0], x[i, 1], x[i, 2]
    if a > b:
        a, b = b, a
    if b > c:
        b, c = c, b
        if a > b:
            (a, b) = (b, a)
    row = out[i]
    row[0], row[1], row[2] = a, b, c


def place_3d(out):
    x, y, z = cuda.grid(3)
    if x < out.shape[2] and y < out.shape[1] and z < out.shape[0]:
        gx, gy, gz = cuda.gridsize(3)
        out[z, y, x] = x + gx * (y + gy * z) + 1000 * cuda.blockIdx.z + 100 * cuda.threadIdx.y + gz


def narrow_integers(x, a, b, c, d):
    i = cuda.grid(1)
    v = x[i]
    a[i] = int8(v * 3)
    b[i] = uint8(v - 200)
    c[i] = int16(v * v)
    d[i] = uint16(v * 77 + 5)


def widths_of_eight(x8, u8, x32, u32, out):
    i = cuda.grid(1)
    out[i, 0] = x8[i] * u8[i] + x8[i]
    out[i, 1] = x32[i] * x32[i]
    out[i, 2] = u8[i] - x8[i]
    out[i, 3] = x32[i] + u8[i] * 1000
    out[i, 4] = int64(u32[i]) - x32[i]
    out[i, 5] = u32[i] >> 5
    out[i, 6] = x32[i] >> 3
    out[i, 7] = x8[i] // 7 + x8[i] % 7


def wrap_around(u, out32, out64):
    i = cuda.grid(1)
    out32[i] = u[i] * uint32(2654435761) + uint32(0xFFFFFFF0)
    state = uint64(uint64(u[i]) * uint64(6364136223846793005) + uint64(1442695040888963407))
    state ^= state >> uint64(33)
    state *= uint64(0xFF51AFD7ED558CCD)
    out64[i] = state


def flags_of(x, even, both):
    i = cuda.grid(1)
    even[i] = x[i] % 2 == 0
    both[i] = even[i] and x[i] > 3 or not x[i]  # noqa: RUF021 - the order of precedence is what is tested


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


def slices_of(x, out):
    i = cuda.grid(1)
    head = x[:10]
    tail = x[10:]
    middle = x[3:-3]
    out[i] = head[i % 10] + 2 * tail[i % tail.size] + 3 * middle[i % middle.shape[0]]


def write_through_view(m):
    i = cuda.grid(1)
    row = m[i + 1, 1:]
    row[0] = i
    row[2] += 5


def early_leave(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    if x[i] < 0:
        out[i] = -1
        if x[i] < -5:
            return
        out[i] -= 1
    elif x[i] > 5:
        out[i] = 7
        return
    out[i] += 100


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


def guarded_loads(x, out):
    i = cuda.grid(1)
    n = x.size
    before = x[i - 1] if i > 0 else 0
    after = x[i + 1] if i + 1 < n else 0
    same = i > 0 and x[i - 1] == x[i]
    edge = i == 0 or i == n - 1 or x[i - 1] > x[i + 1]
    out[i] = before * 100 + after * 10 + (1 if same else 0) + (2 if edge else 0)


def chain_of_tests(x, out):
    i = cuda.grid(1)
    v = x[i]
    out[i] = (1 if -3 < v <= 4 else 0) + (2 if 0 <= v < v * v != 9 else 0) + (4 if not v < 2 else 0)


def grid_stride_2d(m):
    x0, y0 = cuda.grid(2)
    dx, dy = cuda.gridsize(2)
    for y in range(y0, m.shape[0], dy):
        for x in range(x0, m.shape[1], dx):
            m[y, x] = m[y, x] * 2 + y - x


def downward(x, out):
    i = cuda.grid(1)
    total = 0
    for k in range(i, -1, -2):
        total = total * 3 % 101 + x[k]
    out[i] = total


def range_of_each(start, stop, step, out):
    i = cuda.grid(1)
    k = -77
    n = 0
    for k in range(start[i], stop[i], step[i]):  # noqa: B007 - its last value is stored
        n += 1
    out[i, 0], out[i, 1] = n, k


def tuple_loop(x, out):
    i = cuda.grid(1)
    total = 0
    for w in WEIGHTS:
        if w < 0 and x[i] > 3:
            continue
        total += w * x[i]
    out[i] = total + WEIGHTS[1]


def captured_table(x, out):
    i = cuda.grid(1)
    out[i] = TABLE[x[i] % 2, i % 3] + TABLE.shape[1] + TABLE[-1, 0]


def from_the_end(x, out):
    i = cuda.grid(1)
    out[i] = x[-1] * 10 + x[-3]


def bit_functions(x, y, out):
    i = cuda.grid(1)
    out[i, 0] = cuda.popc(x[i])
    out[i, 1] = cuda.clz(x[i])
    out[i, 2] = cuda.ffs(x[i])
    out[i, 3] = cuda.brev(x[i])
    out[i, 4] = cuda.popc(y[i])
    out[i, 5] = cuda.clz(y[i])
    out[i, 6] = cuda.ffs(y[i])


def logic_of_bits(x, y, out):
    i = cuda.grid(1)
    a, b = x[i], y[i]
    out[i] = ((a & b) | (a ^ 0x55)) + (~b << 2) - (a >> (b & 3))


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


def local_table(x, out):
    seen = cuda.local.array((2, 3), int16)
    for a in range(2):
        for b in range(3):
            seen[a, b] = a * 10 + b
    i = cuda.grid(1)
    seen[i % 2, x[i] % 3] += x[i]
    out[i] = seen[0, 0] + 2 * seen[0, 1] + 4 * seen[0, 2] + 8 * seen[1, 0] + 16 * seen[1, 1] + 32 * seen[1, 2]


def binary_search(sorted_values, wanted, out):
    i = cuda.grid(1)
    low, high = 0, sorted_values.size
    while low < high:
        middle = (low + high) // 2
        if sorted_values[middle] < wanted[i]:
            low = middle + 1
        else:
            high = middle
    out[i] = low if low < sorted_values.size and sorted_values[low] == wanted[i] else -1


def newton_root(x, out):
    i = cuda.grid(1)
    guess = max(x[i], 1.0)
    for _ in range(60):
        better = 0.5 * (guess + x[i] / guess)
        if abs(better - guess) <= 1e-15 * guess:
            guess = better
            break
        guess = better
    out[i] = guess


def rounding_of_each(x, out):
    i = cuda.grid(1)
    out[i, 0] = math.floor(x[i])
    out[i, 1] = math.ceil(x[i])
    out[i, 2] = int(x[i])
    out[i, 3] = x[i] // 1.5
    out[i, 4] = x[i] % 1.5
    out[i, 5] = min(x[i], 0.5, -x[i]) + max(x[i], 2)
    out[i, 6] = round(x[i])
    out[i, 7] = math.copysign(1.0, x[i]) * math.fmod(x[i], 0.75)


def complex_product(z, w, out):
    i = cuda.grid(1)
    p = z[i] * w[i] + 2j
    out[i, 0], out[i, 1] = p.real, p.imag


def fused_and_selected(x, out):
    i = cuda.grid(1)
    out[i] = cuda.fma(x[i], 3, 7) + cuda.selp(x[i] % 2 == 0, 100, -100)


def powers(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] ** 2
    out[i, 1] = x[i] ** 3 - (-2) ** (i % 5)
    out[i, 2] = 2 ** (i % 20)
    out[i, 3] = pow(x[i], 2)


def endless_left_by_break(x, out):
    i = cuda.grid(1)
    n = 0
    while True:
        n += 1
        if n % 4 == 1:
            continue
        if n > x[i]:
            break
        if n == 11:
            return
    out[i] = n


def _with_gaps(rng):
    return rng.integers(-9, 9, 66), rng.integers(-9, 9, 66), rng.choice([-4, -2, -1, 1, 2, 3], 66), np.zeros((66, 2), np.int64)


def _collatz(x, out):
    found = []
    for first in x.tolist():
        n, steps = first, 0
        while n != 1 and steps < 60:
            n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
        found.append(steps)
    return {1: found}


def _wrapped(u, out32, out64):
    with np.errstate(over="ignore"):
        state = u.astype(np.uint64) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        state ^= state >> np.uint64(33)
        return {1: u * np.uint32(2654435761) + np.uint32(0xFFFFFFF0), 2: state * np.uint64(0xFF51AFD7ED558CCD)}


_u32 = np.uint32
CASES = [
    Case(nested_leaps, 3, 33, together(ints(0, 50, 90), zeros(90))),
    Case(collatz, 2, 40, together(ints(1, 200, 80), zeros(80)), _collatz),
    Case(greatest_divisor, 2, 35, together(ints(0, 500, 70), ints(0, 500, 70), zeros(70)), lambda a, b, out: {2: np.gcd(a, b)}),
    Case(swap_three, 2, 33, together(ints(0, 99, 66, 3), zeros(66, 3)), lambda x, out: {1: np.sort(x, 1)}),
    Case(place_3d, (2, 3, 2), (4, 2, 3), together(zeros(6, 5, 7))),
    Case(narrow_integers, 2, 33, together(ints(-900, 900, 66), zeros(66, dtype=np.int8), zeros(66, dtype=np.uint8),
         zeros(66, dtype=np.int16), zeros(66, dtype=np.uint16)),
         lambda x, *_: {1: (x * 3).astype("i1"), 2: (x - 200).astype("u1"), 3: (x * x).astype("i2"), 4: (x * 77 + 5).astype("u2")},
         numba=False),
    Case(widths_of_eight, 2, 33, together(ints(-128, 128, 66, dtype=np.int8), ints(0, 256, 66, dtype=np.uint8),
         ints(-(2**31), 2**31, 66, dtype=np.int32), ints(0, 2**32, 66, dtype=_u32), zeros(66, 8)), numba=False),
    Case(wrap_around, 2, 33, together(ints(0, 2**32, 66, dtype=_u32), zeros(66, dtype=_u32), zeros(66, dtype=np.uint64)), _wrapped,
         numba=False),
    Case(flags_of, 2, 33, together(ints(0, 9, 66), zeros(66, dtype=bool), zeros(66, dtype=bool)),
         lambda x, e, b: {1: x % 2 == 0, 2: (x % 2 == 0) & (x > 3) | (x == 0)}),
    Case(halves, 2, 33, together(lambda rng: rng.uniform(-9, 9, 66).astype(np.float16), zeros(66, dtype=np.float16)),
         lambda h, out: {1: (h.astype(np.float32) * np.float32(1.5) + np.float32(0.25)).astype(np.float16)}),
    Case(row_views, 2, 16, together(ints(0, 99, 30, 7), zeros(30)), lambda m, out: {1: m.sum(1) + 10 * m[:, 2:5].sum(1)}),
    Case(slices_of, 1, 40, together(ints(0, 99, 33), zeros(40)),
         lambda x, out: {1: [x[i % 10] + 2 * x[10 + i % 23] + 3 * x[3 + i % 27] for i in range(40)]}),
    Case(write_through_view, 1, 33, together(ints(0, 9, 34, 4))),
    Case(early_leave, 3, 32, together(ints(-9, 9, 85), ints(0, 9, 85))),
    Case(middle_returns, 3, 33, together(ints(-20, 90, 99), zeros(99))),
    Case(device_writes, 2, 16, together(ints(50, 99, 27, 5)), lambda m: {0: np.where(np.arange(5) < np.arange(27)[:, None],
         np.arange(27)[:, None], m)}),
    Case(guarded_loads, 2, 33, together(ints(0, 4, 66), zeros(66))),
    Case(chain_of_tests, 2, 33, together(ints(-6, 7, 66), zeros(66))),
    Case(grid_stride_2d, (2, 2), (5, 3), together(ints(0, 99, 17, 23)),
         lambda m: {0: 2 * m + np.arange(17)[:, None] - np.arange(23)}),
    Case(downward, 2, 33, together(ints(0, 99, 66), zeros(66))),
    Case(range_of_each, 2, 33, _with_gaps, lambda start, stop, step, out: {3: [
        (len(range(*limits)), [-77, *range(*limits)][-1]) for limits in zip(start.tolist(), stop.tolist(), step.tolist(), strict=True)]}),
    Case(tuple_loop, 2, 33, together(ints(0, 9, 66), zeros(66)), lambda x, out: {1: 7 * x - np.where(x > 3, 0, 3 * x) - 3}),
    Case(captured_table, 2, 33, together(ints(0, 9, 66), zeros(66)),
         lambda x, out: {1: TABLE[x % 2, np.arange(66) % 3] + 3 + 2}),
    Case(from_the_end, 1, 33, together(ints(0, 9, 12), zeros(33)), lambda x, out: {1: np.full(33, x[-1] * 10 + x[-3])}, numba=False),
    Case(bit_functions, 2, 33, together(ints(0, 2**32, 66, dtype=_u32), ints(0, 2**60, 66), zeros(66, 7)), numba=False),
    Case(logic_of_bits, 2, 33, together(ints(-999, 999, 66), ints(-999, 999, 66), zeros(66)),
         lambda a, b, out: {2: ((a & b) | (a ^ 0x55)) + (~b << 2) - (a >> (b & 3))}),
    Case(insertion_sort, 2, 33, together(ints(-9, 9, 66, 6), zeros(66, 6)), lambda m, out: {1: np.sort(m, 1)}),
    Case(local_table, 2, 33, together(ints(0, 99, 66), zeros(66)), numba=False),
    Case(binary_search, 2, 33, together(lambda rng: np.unique(rng.integers(0, 60, 40)), ints(0, 60, 66), zeros(66)),
         lambda s, w, out: {2: [int(np.flatnonzero(s == v)[0]) if v in s else -1 for v in w]}),
    Case(newton_root, 2, 33, together(lambda rng: rng.uniform(0.01, 500, 66), zeros(66, dtype=np.float64)),
         lambda x, out: {1: np.sqrt(x)}, DOUBLE),
    Case(rounding_of_each, 2, 33, together(lambda rng: rng.uniform(-9, 9, 66), zeros(66, 8, dtype=np.float64)), tolerance=DOUBLE),
    Case(complex_product, 2, 16, together(lambda rng: rng.uniform(-1, 1, 32) + 1j * rng.uniform(-1, 1, 32),
         lambda rng: rng.uniform(-1, 1, 32) + 0.5j, zeros(32, 2, dtype=np.float64)),
         lambda z, w, out: {2: np.stack([(z * w).real, (z * w).imag + 2], 1)}, DOUBLE),
    Case(fused_and_selected, 2, 33, together(ints(-99, 99, 66), zeros(66)),
         lambda x, out: {1: 3 * x + 7 + np.where(x % 2 == 0, 100, -100)}),
    Case(powers, 2, 33, together(ints(-99, 99, 66), zeros(66, 4)), lambda x, out: {1: np.stack([
        x**2, x**3 - (-2) ** (np.arange(66) % 5), 2 ** (np.arange(66) % 20), x**2], 1)}),
    Case(endless_left_by_break, 2, 33, together(ints(0, 15, 66), ints(90, 99, 66))),
    Case(newton_root, 2, 33, together(lambda rng: rng.uniform(1, 500, 66).astype(np.float32), zeros(66, dtype=np.float32)),
         lambda x, out: {1: np.sqrt(x)}, SINGLE, label="single"),
]  # fmt: skip
