"""Findings of seeded bugs, and all findings of kernels with known faults."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gpulab.errors import KernelError
from gpulab.kernels import Simulation, cuda, float32, int32, int64, simulate
from kernel_case import function_of, line_of, zeros
from seeded_bugs import BUGS, Bug

ALL, HEADER = 0xFFFFFFFF, "from gpulab.kernels import cuda\n"


@pytest.mark.parametrize(
    "bug", [pytest.param(b, id=f"{n:03d}-{b.kernel}-{b.kind}") for n, b in enumerate(BUGS)]
)
def test_a_seeded_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    """An edit of a correct kernel is found with its kind, line, array and threads."""
    case, lines = bug.build(tmp_path / f"{bug.kernel}.py")
    given, shared = case.make(), case.dynamic_shared_bytes
    s = simulate(case.kernel, case.grid, case.block, *given, dynamic_shared_bytes=shared)
    found = [f for f in s.findings if f.kind == bug.kind and {f.line, f.other_line} & lines]
    assert found, "\n".join(["not found; found instead:", *map(str, s.findings)])
    text = (tmp_path / f"{bug.kernel}.py").read_text().splitlines()
    for finding in s.findings:
        assert finding.code == s.source[finding.line].strip() == text[finding.line - 1].strip()
        assert len(finding.threads) == (1 if finding.kind in ("bounds", "uninitialised") else 2)
        assert len(set(finding.threads)) == len(finding.threads)
        for thread in finding.threads:
            assert all(a < b for a, b in zip(thread.block, s.grid, strict=True))
            assert all(a < b for a, b in zip(thread.thread, s.block, strict=True))
        assert (finding.other_line is not None) == (finding.kind == "race")
        if finding.kind == "race":
            assert finding.array in text[finding.line - 1] or "neighbour" in text[0]
    assert s.totals.races == sum(finding.kind == "race" for finding in s.findings)


def fetched(v, k):
    return v[2 * k]  # device


def beyond(x, y, z, m, counts):
    part = cuda.shared.array(16, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for _ in range(2):
        y[i] = x[i + 3]  # read
    z[i - 65] = i  # write
    part[t] = t  # shared
    y[i] += fetched(x, i)
    y[i] += m[i % 5, i % 3]  # swapped
    cuda.atomic.add(counts, i % 10, 1)  # atomic


# By hand, of 2 blocks of 32 threads: mark, array, index, threads as (thread, block), count. Threads
# i = 61 to 63 read beyond the 64 elements of x; all threads write before the first element of z; 16
# threads of each block lie beyond the tile; 2 i leaves x in the second block. Of the 64 threads,
# 13 + 12 have i % 5 = 3 or 4, in a matrix of 3 rows; 6 + 6 have i % 10 = 8 or 9, of 8 counters.
BEYOND = [
    ("read", "x", (64,), [(29, 1)], 2 * 3), ("write", "z", (-65,), [(0, 0)], 64),
    ("shared", "part", (16,), [(16, 0)], 32), ("device", "x", (64,), [(0, 1)], 32),
    ("swapped", "m", (3, 0), [(3, 0)], 25), ("atomic", "counts", (8,), [(8, 0)], 12),
]  # fmt: skip


def racing(out, x, total):
    part = cuda.shared.array(64, int32)
    lanes = cuda.shared.array(64, int32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    part[t] = t  # write
    if t == 40:
        out[b, 0] = part[7]  # warps
    if t == 5:
        out[b, 1] = part[4]  # neighbours
    cuda.syncthreads()
    if t == 3:
        out[b, 2] = part[20]  # early
    if t == 20:
        part[20] = 1  # late
    if b == 1 and t == 6:
        x[9] = 1  # block
    cuda.syncthreads()
    if b == 2 and t == 11:
        out[b, 3] = x[9]  # other block
    if t == 2 or t == 34:
        x[b] = t  # both
    if t == 1:
        cuda.atomic.add(total, b, 5)  # atomic
    if t == 33:
        out[b, 4] = total[b]  # plain
    lanes[t] = t  # own
    if t >= 8:
        return
    cuda.syncwarp(0xFF)
    out[b, 5 + t] = lanes[(t + 1) % 9]  # next


# By hand, of 3 blocks of 64 threads: the two marks, array, index, the two threads, count. Each pair
# races once in each block, except x[9]: once in all, since blocks 1 and 2 share no barrier. The
# syncwarp orders lanes 0 to 7; lane 7 reads what lane 8 wrote, which the mask does not name.
RACING = [
    (("warps", "write"), "part", (7,), [(7, 0), (40, 0)], 3),
    (("neighbours", "write"), "part", (4,), [(4, 0), (5, 0)], 3),
    (("late", "early"), "part", (20,), [(3, 0), (20, 0)], 3),
    (("other block", "block"), "x", (9,), [(6, 1), (11, 2)], 1),
    (("both", "both"), "x", (0,), [(2, 0), (34, 0)], 3),
    (("plain", "atomic"), "total", (0,), [(1, 0), (33, 0)], 3),
    (("next", "own"), "lanes", (8,), [(7, 0), (8, 0)], 3),
]


def waiting(out):
    t = cuda.threadIdx.x
    if t >= 10:
        cuda.syncthreads()  # some
    for k in range(2 + t // 32):
        cuda.syncthreads()  # loop
        out[cuda.grid(1)] = k


# Thread 10 is the first to arrive, thread 0 the first that does not; warp 1 iterates once more.
WAITING = [("some", "", (), [(0, 0), (10, 0)], 3), ("loop", "", (), [(0, 0), (32, 0)], 3)]


def kept(i):
    if i % 64 < 40:
        u = i
    return u  # function


def unset(out):
    part = cuda.shared.array((4, 16), int32)
    bins = cuda.shared.array(4, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t == 5:
        cuda.atomic.add(bins, 3, 1)  # added
    if t < 60:
        part[t // 16, t % 16] = t
        v = i
    cuda.syncthreads()
    out[i, 0] = part[t // 16, t % 16]  # shared
    out[i, 1] = v  # branch
    for k in range(t - 23):
        w = k
    w += 1  # loop
    out[i, 2] = w
    out[i, 3] = kept(i)


# In each block of 64: threads 60 to 63, threads 0 to 23 (no iteration), and threads from 40 on.
UNSET = [
    ("added", "bins", (3,), [(5, 0)], 2),
    ("shared", "part", (60,), [(60, 0)], 8), ("branch", "v", (), [(60, 0)], 8),
    ("loop", "w", (), [(0, 0)], 48), ("function", "u", (), [(40, 0)], 48),
]  # fmt: skip


def shuffled(out):
    t = cuda.threadIdx.x
    if t % 32 < 20:
        out[t, 0] = cuda.shfl_down_sync(ALL, t, 4)  # asked
    if t % 32 < 16:
        out[t, 1] = cuda.ballot_sync(ALL, t > 3)  # named
        out[t, 2] = cuda.shfl_xor_sync(ALL, t, 8)  # exchanged
    out[t, 3] = cuda.any_sync(0x0000FFFF, t > 3)  # outside


# In each of 2 warps: lanes 16 to 19 read from lanes 20 to 23, which are inactive; lane 16 is named
# in the mask but does not arrive; lane 16 calls with a mask that names only other lanes.
SHUFFLED = [
    ("asked", "", (), [(16, 0), (20, 0)], 8), ("named", "", (), [(0, 0), (16, 0)], 2),
    ("exchanged", "", (), [(0, 0), (16, 0)], 2), ("outside", "", (), [(0, 0), (16, 0)], 2),
]  # fmt: skip


def halves(x, out):
    whole = cuda.shared.array(0, int64)
    half = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    whole[t] = x[t]  # write
    out[t] = half[2 * t - 1] if t > 0 else 0  # read


# Dynamic arrays begin at the same byte: thread t reads the upper half of what thread t - 1 wrote.
HALVES = [(("read", "write"), "half", (1,), [(0, 0), (1, 0)], 31)]


def doubled(v):
    if v > 60:
        raise ValueError("too large")  # raised
    return 2 * v


def ended(out, first):
    t = first + cuda.threadIdx.x
    cuda.atomic.add(out, doubled(t), 1)
    assert t != 5  # false


# Threads 61 to 63 of each block, which update nothing, and thread 5; with first=61 all threads.
ENDED = [("raised", "", (), [(61, 0)], 6), ("false", "", (), [(5, 0)], 2)]


FAULTY: dict[str, tuple] = {
    "bounds": (
        beyond, 2, 32,
        lambda: (zeros(64), zeros(64), zeros(64), zeros(3, 5), zeros(8, dtype=np.int32)), BEYOND,
    ),
    "race": (
        racing, 3, 64, lambda: (zeros(3, 13), zeros(16), zeros(3, dtype=np.int32)), RACING,
    ),
    "barrier": (waiting, 3, 48, lambda: (zeros(144),), WAITING),
    "uninitialised": (unset, 2, 64, lambda: (zeros(128, 4, dtype=np.int64),), UNSET),
    "shuffle": (shuffled, 1, 64, lambda: (zeros(64, 4, dtype=np.int64),), SHUFFLED),
    "exception": (ended, 2, 64, lambda: (zeros(121), 0), ENDED),
    "exception everywhere": (
        ended, 2, 64, lambda: (zeros(121), 61), [("raised", "", (), [(0, 0)], 128)],
    ),
    "race of two sizes": (
        halves, 1, 32, lambda: (np.arange(32), zeros(32, dtype=np.int64)), HALVES,
    ),
    # One thread of 24 blocks of 60: its x is 3 * 3 + 1, its y is 2 * 4 + 2, its z is 1 * 5 + 3.
    "bounds in space": (
        function_of(
            f"{HEADER}def kernel(a):\n    i, j, k = cuda.grid(3)\n"
            "    if i == 10 and j == 10 and k == 8:\n        a[k, j, i] = 1  # one\n"
        ), (4, 3, 2), (3, 4, 5), lambda: (zeros(8, 12, 12),),
        [("one", "a", (8, 10, 10), [((1, 2, 3), (3, 2, 1))], 1)],
    ),
    # Threads 30 and 31 leave the one array, and 29 to 31 the other.
    "bounds of two arrays": (
        function_of(
            f"{HEADER}def kernel(x, y, out):\n    i = cuda.grid(1)\n"
            "    out[i] = x[i + 30] + y[i + 31]  # sum\n"
        ), 1, 32, lambda: (zeros(60), zeros(60), zeros(32)),
        [("sum", "x", (60,), [(30, 0)], 2), ("sum", "y", (60,), [(29, 0)], 3)],
    ),
    # Row 1 of 4 rows of 6: in C order elements 8 and 9, in any layout. Of 16 threads one wins.
    "race of a layout": (
        function_of(
            f"{HEADER}def kernel(several):\n    t = cuda.threadIdx.x\n"
            "    several.arrays[0][several.row, 2 + t // 16] = t  # store\n"
        ), 1, 32, lambda: (
            NamedTuple("Several", [("row", int), ("arrays", tuple)])(
                1, (np.asfortranarray(zeros(4, 6))[::-1],)
            ),
        ),
        [(("store", "store"), "several[1][0]", (8,), [(0, 0), (15, 0)], 30)],
    ),
    # What is compared is read from another element than the one that is swapped.
    "race beside a swap": (
        function_of(
            f"{HEADER}def kernel(x):\n    old = x[1]  # read\n    cuda.atomic.cas(x, 0, old, 3)\n"
            "    cuda.atomic.add(x, 1, 1)  # add\n"
        ), 1, 32, lambda: (zeros(2, dtype=np.int32),),
        [(("add", "read"), "x", (1,), [(0, 0), (31, 0)], 31)],
    ),
    "barrier of the grid": (
        function_of(
            f"{HEADER}def kernel(x):\n    if cuda.blockIdx.x > 0:\n"
            "        cuda.cg.this_grid().sync()  # two\n"
        ), 3, 2, lambda: (zeros(1),), [("two", "", (), [(0, 1), (0, 0)], 1)],
    ),
    # Lanes 8 to 31 call with a mask without them; then lanes 4 to 7 are named and do not come.
    "barrier of lanes": (
        function_of(
            f"{HEADER}def kernel(x):\n    cuda.syncwarp(0xFF)  # all\n"
            "    if cuda.threadIdx.x < 4:\n        cuda.syncwarp(0xFF)  # four\n"
        ), 1, 32, lambda: (zeros(1),),
        [("all", "", (), [(8, 0), (0, 0)], 1), ("four", "", (), [(0, 0), (4, 0)], 1)],
    ),
    # Each thread runs by itself. When none can go on, those that came first pass without the
    # others, and end; the others are then all that are left.
    "barrier in turns": (
        function_of(
            f"{HEADER}def kernel(lock):\n    while cuda.atomic.cas(lock, 0, 0, 1) != 0:\n"
            "        pass\n    cuda.atomic.exch(lock, 0, 0)\n    if cuda.threadIdx.x < 3:\n"
            "        cuda.syncthreads()  # few\n    else:\n        cuda.syncthreads()\n"
        ), 1, 8, lambda: (zeros(1, dtype=np.int32),), [("few", "", (), [(0, 0), (3, 0)], 1)],
    ),
    "exception with words": (
        function_of(
            f"{HEADER}def kernel(x):\n    assert cuda.threadIdx.x < 9, 'too far'  # words\n"
            "    if cuda.threadIdx.x > 3:\n        raise ValueError  # class\n"
        ), 1, 32, lambda: (zeros(1),),
        [("words", "", (), [(9, 0)], 23), ("class", "", (), [(4, 0)], 5)],
    ),
}  # fmt: skip


def _mark(kernel: Callable, mark: str) -> int:
    home = {"device": fetched, "function": kept, "raised": doubled}.get(mark, kernel)
    return line_of(home, mark)


def _faulty(name: str) -> Simulation:
    kernel, grid, block, make, _ = FAULTY[name]
    return simulate(kernel, grid, block, *make(), dynamic_shared_bytes=256 * (kernel is halves))


@pytest.mark.parametrize("name", FAULTY)
def test_a_finding_names_line_array_index_threads_and_count(name: str) -> None:
    """Derived by hand beside each kernel; each fault is one finding, however often it is met."""
    kernel, *_, expected = FAULTY[name]
    wanted = set()
    for marks, array, index, threads, count in expected:
        line, *other = (_mark(kernel, m) for m in ((marks,) if isinstance(marks, str) else marks))
        who = frozenset(
            tuple((*np.atleast_1d(place).tolist(), 0, 0)[:3] for place in (b, t))
            for t, b in threads
        )
        wanted.add(
            (name.split(" ", maxsplit=1)[0], line, *(other or [None]), array, index, who, count)
        )
    findings = _faulty(name).findings
    assert wanted == {
        (f.kind, f.line, f.other_line, f.array, f.index,
         frozenset((t.block, t.thread) for t in f.threads), f.count)
        for f in findings
    }  # fmt: skip
    assert len(findings) == len(wanted)


def test_what_a_finding_says(approved: Any) -> None:
    """Each kind in a sentence with its line, its threads, how often, and what would help."""
    texts = (str(finding) for name in FAULTY for finding in _faulty(name).findings)
    assert re.sub(r"\bline \d+", "line N", "\n".join(texts)) + "\n" == approved


def test_out_of_bounds_nothing_is_read_or_written() -> None:
    """Arrays equal those by hand; a negative index of a store counts from the end, as in Numba."""
    kernel, grid, block, make, _ = FAULTY["bounds"]
    arrays = make()
    simulate(kernel, grid, block, *arrays)
    assert arrays[2].tolist() == [*range(1, 64), 0]
    assert arrays[4].tolist() == [7, 7, 7, 7, 6, 6, 6, 6]  # 0 to 63 by their last digit


def ordered(x, out):
    i, t, b = cuda.grid(1), cuda.threadIdx.x, cuda.blockIdx.x
    named = 0x0000FFFF if t % 32 < 16 else 0xFFFF0000
    out[i] = cuda.shfl_xor_sync(named, t, 8)
    if t % 3 == 0:
        out[i] += cuda.popc(cuda.ballot_sync(cuda.activemask(), t > 3))
    if i < x.size:
        v = x[i]
    if b % 2 == 0:
        cuda.syncthreads()
    if i < x.size and v > 0:
        out[i] += v
    w = v if i < x.size else 0
    if i >= x.size or v + w > 5:
        out[i] += 1
    if t % 32 >= 20:
        return
    out[i] += cuda.popc(cuda.ballot_sync(0xFFFFFFFF, t > 3))
    cuda.nanosleep(10)


def handed_over(out, flag, seen):
    if cuda.blockIdx.x == 0:
        out[0] = 5
        cuda.threadfence()
        cuda.atomic.add(flag, 0, 1)
    elif cuda.atomic.add(flag, 0, 0) == 1:
        seen[0] = out[0]


@pytest.mark.parametrize("threads", [32, 64, 48])
def test_what_only_looks_wrong_is_no_finding(threads: int) -> None:
    """Masks of the arriving lanes, variables set by their readers, and full barriers are fine."""
    x, out = np.arange(50), np.zeros(3 * threads, np.int64)
    assert simulate(ordered, 3, threads, x, out).findings == ()
    seen = zeros(1)
    assert simulate(handed_over, 2, 1, zeros(1), zeros(1, dtype=np.int32), seen).findings == ()
    assert seen[0] == 5


def locked(lock, sums, every, fenced):
    while cuda.threadIdx.x % every == 0 and cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    if cuda.threadIdx.x % every == 0:
        if fenced:
            cuda.threadfence()
        sums[0] += 1  # critical
        if fenced:
            cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)
    cuda.syncthreads()
    cuda.atomic.add(sums, 1, cuda.shfl_xor_sync(ALL, cuda.threadIdx.x, 1))


def met(count, seen):
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(count, 0, 1)
        while cuda.atomic.add(count, 0, 0) < cuda.gridDim.x:
            pass
    cuda.syncthreads()
    cuda.atomic.add(seen, 0, 1)


def met_twice(x, out):
    x[cuda.grid(1)] = cuda.grid(1)
    cuda.cg.this_grid().sync()
    out[cuda.grid(1)] = x[x.size - 1 - cuda.grid(1)]


def multiplied(x, by):
    old = x[0]
    while True:
        assumed = old
        old = cuda.atomic.cas(x, 0, assumed, assumed * by[cuda.grid(1)])
        if old == assumed:
            break


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("every", [64, 32, 1])
def test_a_lock_works_and_orders_by_its_fences(every: int, fenced: bool) -> None:
    """A lock works between blocks, between warps and in a warp; without fences its data race.

    In a warp it works because each thread makes progress independently since Volta. A note says
    whether threads of one block wait for each other: with one thread of each block they do not.
    """
    sums = np.zeros(2, np.int64)
    s = simulate(locked, 3, 64, zeros(1, dtype=np.int32), sums, every, fenced)
    assert (sums.tolist(), ["own block" in note for note in s.notes]) == (
        [3 * 64 // every, 3 * 2016],
        [every < 64],
    )
    assert {f.line for f in s.findings} == (set() if fenced else {line_of(locked, "critical")})


def test_blocks_wait_for_each_other_if_all_are_resident() -> None:
    """132 multiprocessors with 16 blocks of 128 threads each hold 2,112; one more is refused. Of
    100 KiB of shared memory, 228 KiB hold two.
    """
    seen, x, out = zeros(1), zeros(640), zeros(640)
    assert simulate(met, 2112, 128, zeros(1, dtype=np.int32), seen).findings == ()
    assert simulate(met_twice, 10, 64, x, out).findings == ()
    assert (seen[0], out.tolist()) == (2112 * 128, [*range(640)][::-1])
    with pytest.raises(KernelError, match="2,112"):
        simulate(met, 2113, 128, zeros(1, dtype=np.int32), seen)
    with pytest.raises(KernelError, match=" 264 "):
        simulate(met_twice, 265, 64, x, out, dynamic_shared_bytes=100 * 1024)


def test_a_plain_read_that_serves_a_compare_and_swap_is_benign() -> None:
    """A stale value only makes the compare-and-swap fail: no finding, but a note."""
    x = np.ones(1, np.int64)
    s = simulate(multiplied, 2, 32, x, 1 + np.arange(64) % 2)
    assert (x[0], s.findings, len(s.notes)) == (2**32, (), 1)
