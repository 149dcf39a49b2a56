"""What only some threads do, while the others hold anything: ranges, local arrays, slices, and the rest of a chain of comparisons."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gpulab.kernels import cuda, float32, simulate


def sieve(crossed):
    p = cuda.grid(1)
    if p >= 2:
        for k in range(p * p, crossed.size, p):
            crossed[k] = 1


def test_a_step_of_zero_in_threads_that_do_not_loop_is_no_fault():
    """Thread 0 never comes to its range; what stays is the primes below 48, as any table has them."""
    crossed = np.zeros(48, np.int32)
    s = simulate(sieve, 1, 32, crossed)
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]
    assert np.flatnonzero(crossed[2:] == 0).tolist() == [p - 2 for p in primes]
    assert not s.findings


def own_array_each_turn(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        mine = cuda.local.array(2, float32)
        mine[0] = x[i]
        out[i] = 2 * mine[0]


def own_array_begins_anew(out):
    i = cuda.grid(1)
    for turn in range(3):
        if turn <= i:
            mine = cuda.local.array(1, float32)
            out[i, turn] = mine[0]
            mine[0] = i


def test_a_local_array_in_a_loop_that_threads_leave_is_one_array():
    """Forty elements over 32 threads: eight go round again, with the same array, and the result is NumPy's."""
    x, out = np.arange(40, dtype=np.float32), np.zeros(40, np.float32)
    s = simulate(own_array_each_turn, 1, 32, x, out)
    np.testing.assert_array_equal(out, 2 * x)
    assert not s.findings


def test_a_local_array_holds_nothing_when_it_is_made_again():
    """What a thread reads of it before it writes is nan in each turn, as in the first."""
    out = np.zeros((4, 3), np.float32)
    simulate(own_array_begins_anew, 1, 4, out)
    assert np.isnan(out).sum(axis=1).tolist() == [1, 2, 3, 3]


def rows_of_any_length(starts, values, sums, lengths):
    for row in range(cuda.grid(1), sums.size, cuda.gridsize(1)):
        part = values[starts[row] : starts[row + 1]]
        total = 0.0
        for k in range(len(part)):
            total += part[k]
        sums[row] = total
        lengths[row] = part.size


def test_slices_as_long_as_each_thread_asks_for():
    """Forty sparse rows over 32 threads: the second turn is that of eight threads; sums and sizes are those of NumPy's slices."""
    counts = np.arange(40) % 5
    starts, values = np.concatenate([[0], np.cumsum(counts)]), np.arange(float(counts.sum()))
    sums, lengths = np.zeros(40), np.zeros(40, np.int64)
    s = simulate(rows_of_any_length, 1, 32, starts, values, sums, lengths)
    np.testing.assert_array_equal(sums, [values[a:b].sum() for a, b in pairwise(starts)])
    np.testing.assert_array_equal(lengths, counts)
    assert not s.findings


def window(x, out):
    i = cuda.grid(1)
    part = x[:2]
    if i % 2 == 1:
        part = x[1:5]
    out[i] = part.size + part[part.shape[0] - 1]


def test_a_slice_of_another_length_in_some_threads():
    """Even threads keep the first two elements, odd ones take four from the second on: size and last element by hand."""
    out = np.zeros(4)
    s = simulate(window, 1, 4, np.arange(10.0, 18.0), out)
    assert out.tolist() == [2 + 11, 4 + 14, 2 + 11, 4 + 14]
    assert not s.findings


def rows_without_a_guard(a, sizes):
    i = cuda.grid(1)
    row = a[i]
    row[1] = i
    sizes[i] = row.size


def planes_without_a_guard(a, sizes):
    i, j = cuda.grid(2)
    row = a[i, j]
    row[1] = 10 * i + j


def test_threads_beyond_the_rows_have_none():
    """Of 32 threads two find no row: the others write theirs alone, no race is found, and each fault is told where it is made."""
    a, sizes = np.full((30, 3), -1.0), np.full(32, -1)
    s = simulate(rows_without_a_guard, 1, 32, a, sizes)
    np.testing.assert_array_equal(a, [[-1, i, -1] for i in range(30)])
    assert sizes.tolist() == [3] * 30 + [0] * 2
    first = rows_without_a_guard.__code__.co_firstlineno
    assert [(f.kind, f.line - first, f.count) for f in s.findings] == [("bounds", 2, 2), ("bounds", 3, 2)]
    s = simulate(rows_without_a_guard, 1, 32, np.zeros((0, 3)), sizes)
    assert sizes.tolist() == [0] * 32
    assert [(f.kind, f.line - first, f.count) for f in s.findings] == [("bounds", 2, 32), ("bounds", 3, 32)]


def test_threads_beyond_one_of_two_axes_have_no_row():
    """Of 4 x 8 threads, those of 3 x 5 rows find theirs."""
    a, sizes = np.full((3, 5, 2), -1.0), np.zeros(1)
    s = simulate(planes_without_a_guard, 1, (4, 8), a, sizes)
    np.testing.assert_array_equal(a, [[[-1, 10 * i + j] for j in range(5)] for i in range(3)])
    first = planes_without_a_guard.__code__.co_firstlineno
    assert [(f.kind, f.line - first, f.count) for f in s.findings] == [("bounds", 2, 17), ("bounds", 3, 17)]


def below_the_one_before(x, out):
    i = cuda.grid(1)
    if 0 <= i - 1 < x[i - 1]:
        out[i] = 1


def test_a_chain_of_comparisons_ends_where_it_is_decided():
    """As in Python, thread 0 never reads before the array, and only three lanes load: what the text with ``and`` does."""
    x, out = np.array([9, 1, 9, 9], np.int64), np.zeros(4)
    s = simulate(below_the_one_before, 1, 4, x, out)
    assert out.tolist() == [0, 1, 0, 1]
    assert not s.findings
    (load,) = (access for access in s.accesses if access.array == "x")
    assert (load.requests, load.lanes) == (1, 3)
