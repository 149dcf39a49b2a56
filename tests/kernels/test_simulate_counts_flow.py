"""Executed warps, active lanes, branches and barriers of each line, and that the size of a batch changes none of it.

A statement is executed once by each warp that has a lane there; a loop is tested once more than it goes round.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from _by_hand import line_of, sectors, warps_of

from gpulab.kernels import Finding, Simulation, cuda, float32, int32, simulate
from gpulab.kernels._simulate import _run


def flow(s: Simulation, kernel: Callable, mark: str) -> tuple[int, int, int, int]:
    """Return executed warps, active lanes, branches and divergent branches of a line."""
    line = s.lines[line_of(kernel, mark)]
    return line.executed_warps, line.active_lanes, line.branches, line.divergent_branches


def by_lane(out):
    t = cuda.threadIdx.x  # index
    if t % 2 == 0:  # test
        out[t] = 1  # even
    else:
        out[t] = 2  # odd
    if t < 32:  # warps
        out[t] += 1  # first
    elif t < 40:  # inner
        out[t] += 2  # few
    out[t] += 3  # after


def test_if_and_else() -> None:
    """By hand, 3 warps: all diverge by parity; whole warps do not; the second of the two that remain splits 8 to 24."""
    s = simulate(by_lane, 2, 96, np.zeros(96, np.float32))
    assert flow(s, by_lane, "index") == (6, 192, 0, 0)
    assert flow(s, by_lane, "test") == (6, 192, 6, 6)
    assert flow(s, by_lane, "even") == flow(s, by_lane, "odd") == (6, 96, 0, 0)
    assert flow(s, by_lane, "warps") == (6, 192, 6, 0)
    assert flow(s, by_lane, "first") == (2, 64, 0, 0)
    assert flow(s, by_lane, "inner") == (4, 128, 4, 2)
    assert flow(s, by_lane, "few") == (2, 16, 0, 0)
    assert flow(s, by_lane, "after") == (6, 192, 0, 0)
    assert s.totals.executed_warps == 6 * 6 + 2 + 4 + 2
    assert s.totals.active_lanes == 5 * 192 + 64 + 128 + 16  # even and odd together are all
    assert (s.totals.branches, s.totals.divergent_branches) == (16, 8)


def lane_loop(out, limits):
    t = cuda.grid(1)
    total = 0
    for k in range(limits[t]):  # loop
        total += k  # body
    out[t] = total


def while_loop(out, limits):
    t = cuda.grid(1)
    total = 0
    k = 0
    while k < limits[t]:  # loop
        total += k  # body
        k += 1
    out[t] = total


LIMITS = {
    "all alike": [5] * 64,
    "none at all": [0] * 64,
    "by lane": list(range(64)),
    "by warp": [3] * 32 + [7] * 32,
    "one long lane": [1] * 63 + [20],
    "odd and even": [2, 5] * 32,
    "partial": [4] * 40,
    "one thread": [9],
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("kernel", [lane_loop, while_loop])
def test_loops_with_limits_of_each_lane(kernel: Callable, limits: str) -> None:
    """A warp tests as often as its longest lane, and once more; a test diverges where some lanes, not all, have come to their end."""
    trips = LIMITS[limits]
    out = np.zeros(len(trips), np.int64)
    s = simulate(kernel, 1, len(trips), out, np.array(trips, np.int64))
    assert out.tolist() == [n * (n - 1) // 2 for n in trips]
    tests = sum(max(warp) + 1 for warp in warps_of(trips))
    lanes = sum(n + 1 for n in trips)
    divergent = sum(len(set(warp)) - 1 for warp in warps_of(trips))
    assert flow(s, kernel, "loop") == (tests, lanes, tests, divergent)
    if sum(trips):
        assert flow(s, kernel, "body") == (sum(max(warp) for warp in warps_of(trips)), sum(trips), 0, 0)
    else:
        assert line_of(kernel, "body") not in s.lines
    if kernel is while_loop:  # the test loads limits[t], 8 bytes, in all lanes that are still there
        expected = 0
        for first in range(0, len(trips), 32):
            warp = range(first, min(first + 32, len(trips)))
            for turn in range(max(trips[t] for t in warp) + 1):
                expected += sectors([t for t in warp if trips[t] >= turn], 8)
        assert s.lines[line_of(kernel, "loop")].global_sectors == expected


def breaks(out):
    t = cuda.threadIdx.x
    total = 0
    for k in range(10):  # loop
        if k == t:  # found
            break  # out
        if k % 2 == 1:  # odd
            continue  # skip
        total += 1  # count
    out[t] = total


def test_break_and_continue() -> None:
    """By hand, one warp: lane t leaves at k = t, so 32 - k lanes test k; lanes from 10 on end the loop by its test."""
    out = np.zeros(32, np.int64)
    s = simulate(breaks, 1, 32, out)
    assert out.tolist() == [min(t + 1, 11) // 2 if t < 10 else 5 for t in range(32)]
    at_top = [32 - k for k in range(11)]  # lanes that test before turn k; lanes 0 to k - 1 have left
    assert flow(s, breaks, "loop") == (11, sum(at_top), 11, 0)
    assert flow(s, breaks, "found") == (10, sum(at_top[:10]), 10, 10)  # each turn one lane leaves
    assert flow(s, breaks, "out") == (10, 10, 0, 0)
    going = [31 - k for k in range(10)]
    assert flow(s, breaks, "odd") == (10, sum(going), 10, 0)
    assert flow(s, breaks, "skip") == (5, sum(going[1::2]), 0, 0)
    assert flow(s, breaks, "count") == (5, sum(going[0::2]), 0, 0)


def returns(out, n):
    i = cuda.grid(1)
    if i >= n:  # guard
        return  # leave
    out[i] = 1  # store
    if i % 4 != 0:  # second
        return  # again
    out[i] = 2  # few


@pytest.mark.parametrize(("n", "warps"), [(100, 4), (96, 3), (1, 1), (128, 4), (33, 2)])
def test_returns(n: int, warps: int) -> None:
    """By hand, 4 warps: ceil(n / 32) go on with n lanes; every fourth of them stays."""
    s = simulate(returns, 2, 64, np.zeros(n, np.float32), n)
    diverges = int(n % 32 != 0)
    leaving = 4 - n // 32
    assert flow(s, returns, "guard") == (4, 128, 4, diverges)
    if n < 128:
        assert flow(s, returns, "leave") == (leaving, 128 - n, 0, 0)
    assert flow(s, returns, "store") == (warps, n, 0, 0)
    # A warp with a single lane, the first, does not diverge.
    assert flow(s, returns, "second") == (warps, n, warps, warps - (n % 32 == 1))
    assert flow(s, returns, "few") == (warps, -(-n // 4), 0, 0)


def nested(out):
    t = cuda.threadIdx.x
    for i in range(t % 4):  # outer
        for k in range(3):  # inner
            if (i + k) % 2 == t % 2:  # test
                out[t] += 1  # add


def test_nested_loops() -> None:
    """Plain Python, lane by lane: who is at the outer test, at the inner ones, and who adds."""
    s = simulate(nested, 1, 32, np.zeros(32, np.float32))
    outer = [[t for t in range(32) if t % 4 >= i] for i in range(4)]
    inside = [[t for t in range(32) if t % 4 > i] for i in range(3)]
    assert flow(s, nested, "outer") == (4, sum(map(len, outer)), 4, 3)
    assert flow(s, nested, "inner") == (3 * 4, 4 * sum(map(len, inside)), 12, 0)
    tests = [(lanes, [t for t in lanes if (i + k) % 2 == t % 2]) for i, lanes in enumerate(inside) for k in range(3)]
    divergent = sum(0 < len(yes) < len(lanes) for lanes, yes in tests)
    assert flow(s, nested, "test") == (9, sum(len(lanes) for lanes, _ in tests), 9, divergent)
    assert flow(s, nested, "add") == (sum(bool(yes) for _, yes in tests), sum(len(yes) for _, yes in tests), 0, 0)


def barriers(out, turns):
    part = cuda.shared.array(96, float32)
    t = cuda.threadIdx.x
    for k in range(turns):
        part[t] = k
        cuda.syncthreads()  # first
        out[cuda.grid(1)] = part[(t + 1) % cuda.blockDim.x]
        cuda.syncthreads()  # second
    cuda.syncthreads()  # last


@pytest.mark.parametrize(("grid", "block", "turns"), [(1, 32, 1), (3, 96, 4), (7, 33, 0), (2, 1, 5)])
def test_barriers_are_counted_for_each_block(grid: int, block: int, turns: int) -> None:
    """By hand: each of the blocks passes each barrier once in each turn; its warps execute the statement."""
    s = simulate(barriers, grid, block, np.zeros(grid * block, np.float32), turns)
    if turns:
        for mark in ("first", "second"):
            assert s.lines[line_of(barriers, mark)].barriers == grid * turns
            assert flow(s, barriers, mark) == (grid * turns * -(-block // 32), grid * turns * block, 0, 0)
    assert s.lines[line_of(barriers, "last")].barriers == grid
    assert s.totals.barriers == grid * (2 * turns + 1)


def some_blocks(out):
    if cuda.blockIdx.x % 3 == 0:  # test
        cuda.syncthreads()  # barrier
        out[cuda.grid(1)] = 1  # store


def test_blocks_that_do_different_things() -> None:
    """By hand: blocks 0, 3, 6 and 9 of 10 pass the barrier, with 2 warps each; no warp diverges."""
    s = simulate(some_blocks, 10, 64, np.zeros(640, np.float32))
    assert flow(s, some_blocks, "test") == (20, 640, 20, 0)
    assert flow(s, some_blocks, "store") == (8, 256, 0, 0)
    assert s.lines[line_of(some_blocks, "barrier")].barriers == 4
    assert s.lines[line_of(some_blocks, "store")].global_sectors == 8 * 4
    assert s.findings == ()


def block_loop(out):
    total = 0
    for k in range(cuda.blockIdx.x):  # loop
        total += out[k]  # body
    out[cuda.grid(1)] = 0 * total


def test_a_loop_whose_length_depends_on_the_block() -> None:
    """By hand: block b of 6 tests b + 1 times and loads b broadcast elements, 2 warps each; no test diverges."""
    s = simulate(block_loop, 6, 64, np.zeros(384, np.float32))
    assert flow(s, block_loop, "loop") == (2 * 21, 64 * 21, 2 * 21, 0)
    assert flow(s, block_loop, "body") == (2 * 15, 64 * 15, 0, 0)
    assert s.lines[line_of(block_loop, "body")].global_sectors == 2 * 15


def inner(x):
    if x < 8:  # inside
        return 1  # small
    return 2  # large


def outer(out):
    t = cuda.threadIdx.x
    if t < 16:  # half
        out[t] = inner(t)  # call


def test_device_functions_run_in_the_lanes_that_call() -> None:
    """By hand: 16 lanes call, 8 return early, 8 at the end."""
    s = simulate(outer, 1, 32, np.zeros(32, np.float32))
    assert flow(s, outer, "call") == (1, 16, 0, 0)
    assert flow(s, inner, "inside") == (1, 16, 1, 1)
    assert flow(s, inner, "small") == flow(s, inner, "large") == (1, 8, 0, 0)


# -- batches ------------------------------------------------------------------------------------------------------------------------


def mixed(x, y, bins):
    part = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    i = cuda.grid(1)
    for k in range(t, 64, cuda.blockDim.x):
        part[k] = 0
    cuda.syncthreads()
    for k in range(b % 3 + t % 2):
        cuda.atomic.add(part, (t + k) % 64, 1)
    cuda.syncthreads()
    if i < x.size:
        y[i] = x[i] * 2 + part[t % 64]  # copy
        if b % 2 == 0:
            cuda.atomic.add(bins, t % 64, part[t % 64])


def faulty(x, y, flags):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    part[t] = x[i + 1]  # beyond
    flags[t % 2] = i  # everyone
    if cuda.blockIdx.x % 2 == 1:
        y[i] = part[(t + 1) % 48]  # unordered
    else:
        cuda.syncthreads()
        y[i] = part[t + 8]  # unwritten


def told(findings: tuple[Finding, ...]) -> list[tuple]:
    """Return what findings say, in the order of lines.

    Which of the threads that all write ``flags`` are met first, and how many meet, is a matter of order.
    """
    return sorted(
        (f.line, f.kind, f.other_line or 0, f.array, f.index, *(() if f.array == "flags" else (str(f.threads), f.count, f.message)))
        for f in findings
    )


@pytest.mark.parametrize("lanes", [1, 32, 64, 100, 640, 1 << 20])
def test_the_size_of_a_batch_changes_nothing(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole report of a kernel with and of one without faults, and the arrays, are those of all blocks at once."""
    results = []
    for together in (1 << 17, lanes):
        monkeypatch.setattr(_run, "_LANES_AT_ONCE", together)
        x, y, bins = np.arange(11 * 48 - 5, dtype=np.float32), np.zeros(11 * 48, np.float32), np.zeros(64, np.int32)
        results.append((simulate(mixed, 11, 48, x, y, bins), y, bins))
    assert results[0][0].findings == ()
    assert results[0][0] == results[1][0]
    for first, second in zip(results[0][1:], results[1][1:], strict=True):
        np.testing.assert_array_equal(first, second)
    reports = []
    for together in (1 << 17, lanes):
        monkeypatch.setattr(_run, "_LANES_AT_ONCE", together)
        x, y, flags = np.arange(11 * 48, dtype=np.float32), np.zeros(11 * 48, np.float32), np.zeros(2, np.int32)
        reports.append(simulate(faulty, 11, 48, x, y, flags))
    assert reports[0].lines == reports[1].lines
    assert told(reports[0].findings) == told(reports[1].findings)
    assert {f.kind for f in reports[0].findings} == {"bounds", "race", "uninitialised"}


def test_a_grid_of_more_lanes_than_a_batch_holds() -> None:
    """By hand: 3,000 blocks of 96 threads are 288,000 lanes, in three batches or more; the copy is 9,000 warps of 4 + 4 sectors."""
    n = 3000 * 96 - 7
    x, y, bins = np.arange(n, dtype=np.float32) % 1000, np.zeros(n, np.float32), np.zeros(64, np.int32)
    s = simulate(mixed, 3000, 96, x, y, bins)
    line = s.lines[line_of(mixed, "copy")]
    assert (line.executed_warps, line.active_lanes) == (9000, n)
    assert (line.global_load_sectors, line.global_store_sectors) == (-(-n // 8), -(-n // 8))
    assert s.totals.barriers == 6000
    # Thread t adds 1 at t, t + 1, ...: part is known from plain Python for each of the three kinds of block.
    parts = {}
    for kind in range(3):
        part = [0] * 64
        for t in range(96):
            for k in range(kind + t % 2):
                part[(t + k) % 64] += 1
        parts[kind] = np.array(part)
    blocks = np.arange(3000)
    expected = x * 2 + np.concatenate([parts[b % 3][np.arange(96) % 64] for b in blocks])[:n]
    np.testing.assert_array_equal(y, expected.astype(np.float32))
    assert s.findings == ()
