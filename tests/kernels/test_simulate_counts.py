"""Counts of warps (sectors, wavefronts, branches, barriers) by hand, by sets, and by a GPU.

An array begins at a multiple of 32 bytes, as every allocation on a GPU does. For every kernel of
the collections, test_simulate_results compares how many lanes execute each line and access.
"""

import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpulab.kernels import Simulation, cuda, float32, float64, int32, simulate
from kernel_case import line_of, sectors, threads_of, warps_of, wavefronts, zeros

DTYPES = {1: np.uint8, 2: np.int16, 4: np.float32, 8: np.float64, 16: np.complex128}


def at(s: Simulation, kernel: Callable, mark: str, *fields: str) -> list[Any]:
    """Return the named counts of the line that has the mark."""
    return [getattr(s.lines[line_of(kernel, mark)], field) for field in fields]


def flow(s: Simulation, kernel: Callable, mark: str) -> list[int]:
    """Return executed warps, active lanes, branches and divergent branches of a line."""
    fields = "executed_warps", "active_lanes", "branches", "divergent_branches"
    return at(s, kernel, mark, *fields)


# -- global memory ---------------------------------------------------------------------------------


def gather(x, places, out):
    i = cuda.grid(1)
    p = places[i]
    if p >= 0:
        v = x[p]  # load
        out[p] = v  # store


FIELDS = (
    "global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors",
)  # fmt: skip
# 32 places of float32, eight to a sector; the number of sectors counted by hand.
PLACES = {
    "all the same": ([7] * 32, 1),
    "either side of a border": ([7, 8] * 16, 2),
    "one lane far away": ([*range(31), 1000], 5),
    "halves apart, the second askew": ([*range(16), *range(1001, 1017)], 5),
    "one each sector, shuffled": ([8 * (i * 13 % 32) for i in range(32)], 32),
    "neighbours in any order": ([i * 11 % 32 for i in range(32)], 4),
    "reversed": ([*range(31, -1, -1)], 4),
    "every third": (list(range(0, 96, 3)), 12),
    "squares": ([i * i for i in range(32)], 30),  # 0, 1 and 4 share a sector
    "odd lanes": ([i if i % 2 else -1 for i in range(32)], 4),
    "lanes 7 to 24": ([i if 7 <= i < 25 else -1 for i in range(32)], 4),
    "a lane alone": ([-1] * 31 + [5], 1),
}
RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("name", PLACES)
def test_sectors_of_places_listed_by_hand(name: str) -> None:
    """A gather and a scatter through a list: the sectors are the different values of place // 8."""
    places, expected = PLACES[name]
    s = simulate(gather, 1, 32, zeros(1024), np.array(places), zeros(1024))
    assert at(s, gather, "load", *FIELDS) == [1, expected, 0, 0]
    assert at(s, gather, "store", *FIELDS) == [0, 0, 1, expected]
    active = sum(place >= 0 for place in places)
    moved = "global_bytes_requested", "global_bytes_moved", "sectors_per_request", "global_requests"
    assert at(s, gather, "load", *moved) == [4 * active, 32 * expected, expected, 1]
    different = len({*places} - {-1})  # eight of them fit into a sector
    assert at(s, gather, "load", "ideal_global_sectors") == [math.ceil(different / 8)]
    assert s.totals.global_sectors == 2 * expected + 8  # 32 places of 8 bytes are 8 sectors


@pytest.mark.parametrize("size", DTYPES)
@pytest.mark.parametrize(
    ("grid", "block", "places"),
    [
        *((2, 64, np.arange(128) * stride) for stride in range(1, 34)),
        *((3, 32, np.arange(96) + offset) for offset in (1, 2, 4, 7, 8, 16, 31)),
        *((3, n, np.arange(3 * n)) for n in (1, 31, 33, 48, 95, 1024)),
        *((2, 64, np.arange(128) // lanes * gap) for lanes in (2, 8, 64) for gap in (1, 8)),
        (8, 125, RANDOM.integers(0, 3000, 1000)),
        (2, 96, np.where(RANDOM.random(192) < 0.3, np.arange(192) * 5, -1)),
    ],
    ids=lambda value: "" if isinstance(value, np.ndarray) else None,
)
def test_sectors_are_those_of_each_warps_bytes(
    grid: int, block: int, places: Any, size: int
) -> None:
    """Sectors equal sets of bytes, for strides, offsets, odd blocks, holes and random places."""
    n = int(places.max()) + 1
    s = simulate(
        gather, grid, block, zeros(n, dtype=DTYPES[size]), places, zeros(n, dtype=DTYPES[size])
    )
    warps = [w for b in places.reshape(grid, block).tolist() for w in warps_of(b)]
    each = [[place if place >= 0 else None for place in warp] for warp in warps if max(warp) >= 0]
    expected = sum(sectors(warp, size) for warp in each)
    assert at(s, gather, "load", *FIELDS) == [len(each), expected, 0, 0]
    ideal = sum(math.ceil(len({*warp} - {None}) * size / 32) for warp in each)
    assert at(s, gather, "load", "ideal_global_sectors") == [ideal]
    assert at(s, gather, "store", *FIELDS) == [0, 0, len(each), expected]


def in_space(x, y):
    i, j, k = cuda.grid(3)
    y[k, j, i] = x[k, j, i]  # copy
    y[i, j, k] += x[i, j, k]  # turned


@pytest.mark.parametrize("block", [(4, 4, 4), (2, 3, 5), (8, 2, 2), (1, 1, 33), (33, 3, 1)])
def test_blocks_of_three_dimensions(block: tuple[int, int, int]) -> None:
    """In a 2 x 1 x 2 grid over a cube, sectors equal sets; threads fill warps in order x, y, z."""
    x = zeros(66, 66, 66)
    s = simulate(in_space, (2, 1, 2), block, x, x.copy())
    straight = turned = requests = 0
    for bx, bz in ((0, 0), (1, 0), (0, 1), (1, 1)):
        each = [(bx * block[0] + i, j, bz * block[2] + k) for i, j, k in threads_of(block)]
        for warp in warps_of(each):
            straight += sectors([(k * 66 + j) * 66 + i for i, j, k in warp], 4)
            turned += sectors([(i * 66 + j) * 66 + k for i, j, k in warp], 4)
            requests += 1
    assert at(s, in_space, "copy", *FIELDS) == [requests, straight, requests, straight]
    assert at(s, in_space, "turned", *FIELDS) == [2 * requests, 2 * turned, requests, turned]


TABLE = np.array([1.0, 2.0, 3.0], np.float32)


def inside(x, i):
    return x[i] + x[0]  # function


def several(x, y, counts, out):
    i = cuda.grid(1)
    mine = cuda.local.array(4, float32)
    mine[i % 4] = TABLE[i % 3]  # uncounted
    row = y[i]
    out[i] = x[i] * x[i] + row[1:3][1]  # thrice
    out[i] += x[i] if i % 2 == 0 else x[i + 8]  # chosen
    if i < 40 and x[i] >= 0:  # both
        cuda.atomic.add(counts, i % 16, 1)  # atomic
    out[i] += inside(x, 2 * i)  # outside


def test_one_line_of_each_kind_by_hand() -> None:
    """Two warps: repeated loads count, choices ask only for their lanes, constants are free.

    Rows of 16 floats are 64 bytes apart. 16 counters of 4 bytes fill two sectors; the second warp
    has 8 lanes left. The function loads at stride 2 (8 sectors) and one element for all.
    """
    given = zeros(128), zeros(64, 16), zeros(16, dtype=np.int32), zeros(64)
    s = simulate(several, 1, 64, *given)
    assert at(s, several, "uncounted", "global_requests", "shared_requests") == [0, 0]
    assert at(s, several, "thrice", *FIELDS) == [6, 2 * (4 + 4 + 32), 2, 8]
    assert at(s, several, "chosen", *FIELDS) == [2 * 3, 2 * (4 + 4 + 4), 2, 8]
    assert at(s, several, "both", *FIELDS) == [2, 4 + 1, 0, 0]
    assert flow(s, several, "both") == [2, 64, 2, 1]
    atomic = "atomic_requests", "global_requests", "global_sectors", "global_load_requests"
    assert at(s, several, "atomic", *atomic) == [2, 2, 2 + 1, 0]
    assert at(s, inside, "function", *FIELDS) == [4, 2 * 9, 0, 0]
    assert at(s, several, "outside", *FIELDS) == [2, 8, 2, 8]
    found = {
        (a.line, a.array, a.space, a.kind): (
            a.requests, a.lanes, a.bytes_requested, a.sectors, a.ideal_sectors,
        )
        for a in s.accesses if a.array in ("y", "counts")
    }  # fmt: skip
    assert found == {
        (line_of(several, "thrice"), "y", "global", "load"): (2, 64, 256, 64, 8),
        (line_of(several, "atomic"), "counts", "global", "atomic"): (2, 40, 160, 3, 3),
    }
    assert given[2].tolist() == [3] * 8 + [2] * 8


# -- shared memory ---------------------------------------------------------------------------------


def tile_of(element_type: Any) -> Callable:
    """Return a kernel that stores and loads at places of a shared array of a type."""

    def shared_gather(places, out):
        tile = cuda.shared.array(4096, element_type)
        p = places[cuda.threadIdx.x]
        if p >= 0:
            tile[p] = 1  # store
            out[cuda.threadIdx.x] = tile[p]  # load

    return shared_gather


TILES = {size: tile_of(dtype) for size, dtype in DTYPES.items()}
LANE = np.arange(32)
# Places of 32 lanes in shared words, and the most different words that one bank holds, by hand.
WORDS = {
    "one word": (LANE * 0 + 77, 1),
    "two words of one bank": (LANE % 2 * 32, 2),
    "two words of two banks": (LANE % 2 * 33, 1),
    "three words of one bank": (np.resize([5, 37, 69, 5], 32), 3),
    "a bank twice": (LANE + (LANE == 31), 2),
    "a diagonal of 32 x 32": (33 * LANE, 1),
    "a column of 32 x 32": (32 * LANE, 32),
    "a column swizzled": (32 * LANE + (LANE ^ 9), 1),
    "half of a column": (32 * (LANE // 2), 16),
    "squares": (LANE * LANE, 8),  # 2, 6, ..., 30 have squares that leave 4 modulo 32
    "every second lane": (np.where(LANE % 2, -1, LANE * 16), 16),
    # Lanes i and j meet where stride * (i - j) is a multiple of 32.
    **{f"stride {n}": (n * LANE, math.gcd(n, 32)) for n in range(1, 34)},
}
SHARED = "shared_requests", "shared_wavefronts", "ideal_shared_wavefronts", "shared_bytes_requested"


@pytest.mark.parametrize("name", WORDS)
def test_conflicts_of_places_listed_by_hand(name: str) -> None:
    """Stores and loads have the conflict ways counted by hand, in each of two blocks."""
    places, ways = WORDS[name]
    s = simulate(TILES[4], 2, 32, places, zeros(32))
    bytes_requested = 2 * 4 * int((places >= 0).sum())
    for mark in ("store", "load"):
        assert at(s, TILES[4], mark, *SHARED) == [2, 2 * ways, 2, bytes_requested]
        assert at(s, TILES[4], mark, "conflict_ways") == [ways]
    assert s.shared_bytes == 4 * 4096


@pytest.mark.parametrize("size", DTYPES)
@pytest.mark.parametrize(
    "places",
    [
        *(np.arange(n) * stride + 3 for n in (32, 100) for stride in (0, 1, 2, 3, 4, 8, 9, 16, 33)),
        *(np.where(np.arange(64) % 32 < part, np.arange(64), -1) for part in (4, 16, 20)),
        RANDOM.integers(0, 4096, 96),
        np.where(RANDOM.random(96) < 0.3, RANDOM.integers(0, 4096, 96), -1),
    ],
    ids=str,
)
def test_wavefronts_are_those_of_each_parts_words(places: Any, size: int) -> None:
    """Wavefronts equal sets of words, per half-warp for 8 bytes and per quarter for 16.

    A part of a warp in which no lane is active costs nothing.
    """
    s = simulate(TILES[size], 1, len(places), places, zeros(len(places), dtype=DTYPES[size]))
    each = [
        [p if p >= 0 else None for p in warp]
        for warp in warps_of(places.tolist())
        if max(warp) >= 0
    ]
    expected = sum(wavefronts(warp, size) for warp in each)
    parts = [
        w[i : i + min(32, 128 // size)] for w in each for i in range(0, 32, min(32, 128 // size))
    ]
    ideal = sum(any(p is not None for p in part) for part in parts)
    for mark in ("store", "load"):
        assert at(s, TILES[size], mark, *SHARED[:3]) == [len(each), expected, ideal]


def histogram(x, out):
    counts = cuda.shared.array(48, int32)
    pool = cuda.shared.array(0, float64)
    t = cuda.threadIdx.x
    pool[t] = t  # doubles
    if t < 48:
        counts[t] = 0  # clear
    cuda.syncthreads()  # first
    cuda.atomic.add(counts, x[cuda.grid(1)] % 48, 1)  # add
    cuda.syncthreads()  # second
    if t < 48:
        cuda.atomic.add(out, t, counts[t])  # flush


def test_shared_atomics_dynamic_memory_and_barriers_by_hand() -> None:
    """Four blocks of two warps: shared atomics are shared requests; doubles take two passes."""
    x, out = np.arange(256, dtype=np.int32), zeros(48, dtype=np.int32)
    s = simulate(histogram, 4, 64, x, out, dynamic_shared_bytes=512)
    assert out.tolist() == np.bincount(x % 48).tolist()
    assert at(s, histogram, "doubles", *SHARED[:3]) == [8, 16, 16]
    assert at(s, histogram, "clear", *SHARED[:2]) == [8, 8]
    kinds = "atomic_requests", "shared_requests", "global_load_requests", "global_requests"
    assert at(s, histogram, "add", *kinds) == [8, 8, 8, 8]
    assert at(s, histogram, "flush", *kinds, "global_sectors") == [8, 8, 0, 8, 4 * (4 + 2)]
    assert at(s, histogram, "first", "barriers", "executed_warps") == [4, 8]
    assert (s.totals.barriers, s.totals.atomic_requests, s.shared_bytes) == (8, 16, 192 + 512)


# -- control flow ----------------------------------------------------------------------------------


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
    if cuda.blockIdx.x == 1:  # blocks
        cuda.syncthreads()  # barrier
    out[t] += 3 if t % 3 == 0 else 4  # expression


def breaks(out):
    t, total = cuda.threadIdx.x, 0
    for k in range(10):  # loop
        if k == t:  # found
            break  # out
        if k > 4:  # noqa: SIM102 - a test of its own  # late
            if k % 2 == 1:  # odd
                continue  # skip
        total += 1  # count
    if t >= 20:  # guard
        return  # leave
    out[t] = total  # stored


# Executed warps, active lanes, branches, divergent branches. In ``by_lane``, all warps of the two
# blocks diverge by parity, none diverges at t < 32, and the second warp of each block splits 8 to
# 24 at t < 40. In ``breaks``, lane t of the only warp leaves at k = t, so that 32 - k lanes test k.
FLOW = [
    (by_lane, 2, 96, {
        "index": (6, 192, 0, 0), "test": (6, 192, 6, 6), "even": (6, 96, 0, 0),
        "odd": (6, 96, 0, 0),
        "warps": (6, 192, 6, 0), "first": (2, 64, 0, 0), "inner": (4, 128, 4, 2),
        "few": (2, 16, 0, 0),
        "blocks": (6, 192, 6, 0), "barrier": (3, 96, 0, 0), "expression": (6, 192, 0, 0),
    }),
    (breaks, 1, 32, {
        "loop": (11, sum(32 - k for k in range(11)), 11, 0),
        "found": (10, sum(32 - k for k in range(10)), 10, 10), "out": (10, 10, 0, 0),
        "late": (10, sum(31 - k for k in range(10)), 10, 0),
        "odd": (5, 26 + 25 + 24 + 23 + 22, 5, 0), "skip": (3, 26 + 24 + 22, 0, 0),
        "count": (7, 31 + 30 + 29 + 28 + 27 + 25 + 23, 0, 0), "guard": (1, 32, 1, 1),
        "leave": (1, 12, 0, 0), "stored": (1, 20, 0, 0),
    }),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "grid", "block", "expected"), FLOW)
def test_branches_by_hand(kernel: Callable, grid: int, block: int, expected: dict) -> None:
    """A statement counts once for each warp that has a lane there; an expression has no branch."""
    s = simulate(kernel, grid, block, zeros(96))
    assert {mark: tuple(flow(s, kernel, mark)) for mark in expected} == expected
    assert s.totals.barriers == sum(mark == "barrier" for mark in expected)
    assert s.totals.divergent_branches == sum(row[3] for row in expected.values())
    assert s.totals.active_ratio == s.totals.active_lanes / (32 * s.totals.executed_warps)


def lane_loop(out, limits):
    total = 0
    for k in range(limits[cuda.grid(1)]):  # loop
        total += k  # body
    out[cuda.grid(1)] = total


def while_loop(out, limits):
    total, k = 0, 0
    while k < limits[cuda.grid(1)]:  # loop
        total += k  # body
        k += 1
    out[cuda.grid(1)] = total


def block_loop(out, limits):
    for k in range(limits[cuda.grid(1)]):  # loop
        if k > cuda.blockIdx.x:
            break
        for _ in range(3):
            out[cuda.grid(1)] += k  # body


@pytest.mark.parametrize("kernel", [lane_loop, while_loop])
@pytest.mark.parametrize(
    "trips",
    [[5] * 64, [0] * 64, list(range(64)), [3] * 32 + [7] * 32, [1] * 63 + [20], [2, 5] * 32,
     [4] * 40, [9], [*range(100, 40, -1)] * 4],
    ids=str,
)  # fmt: skip
def test_loops_with_limits_of_each_lane(kernel: Callable, trips: list[int]) -> None:
    """A warp tests once more than its longest lane iterates; it diverges where only some end."""
    out = zeros(len(trips), dtype=np.int64)
    s = simulate(kernel, 1, len(trips), out, np.array(trips))
    assert out.tolist() == [n * (n - 1) // 2 for n in trips]
    warps = list(warps_of(trips))
    tests = sum(max(warp) + 1 for warp in warps)
    divergent = sum(len(set(warp)) - 1 for warp in warps)
    assert flow(s, kernel, "loop") == [tests, sum(trips) + len(trips), tests, divergent]
    if sum(trips):
        assert flow(s, kernel, "body") == [tests - len(warps), sum(trips), 0, 0]


def test_a_grid_of_many_blocks() -> None:
    """By hand: 3,000 blocks are 9,000 warps; block b with limit n iterates min(n, b + 1) times."""
    limits = np.arange(3000 * 96) // 96 % 4
    s = simulate(block_loop, 3000, 96, np.zeros(3000 * 96), limits)
    trips = sum(min(n, b + 1) for b, n in enumerate(limits[::96].tolist()))
    tests = 3 * sum(min(n, b + 1) + 1 for b, n in enumerate(limits[::96].tolist()))
    assert flow(s, block_loop, "loop") == [tests, 32 * tests, tests, 0]
    assert flow(s, block_loop, "body") == [9 * trips, 9 * 32 * trips, 0, 0]
    assert at(s, block_loop, "body", *FIELDS) == [9 * trips, 72 * trips, 9 * trips, 72 * trips]


# -- a GPU's own counters --------------------------------------------------------------------------

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDS = sorted((BENCHMARKS / "recorded").glob("counters-*.json"))
L1, SHARED_OP = (
    "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum",
)


def _passes(s: Simulation, kind: str) -> int:
    return sum(a.wavefronts for a in s.accesses if (a.space, a.kind) == ("shared", kind))


COUNTERS: dict[str, tuple[str, Callable[[Any, Simulation], int]]] = {
    "global load requests": (L1.format("requests", "ld"), lambda t, s: t.global_load_requests),
    "sectors per global load": (L1.format("sectors", "ld"), lambda t, s: t.global_load_sectors),
    "global store requests": (L1.format("requests", "st"), lambda t, s: t.global_store_requests),
    "sectors per global store": (L1.format("sectors", "st"), lambda t, s: t.global_store_sectors),
    "wavefronts of shared loads": (SHARED_OP.format("ld"), lambda t, s: _passes(s, "load")),
    "wavefronts of shared stores": (SHARED_OP.format("st"), lambda t, s: _passes(s, "store")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_counts_are_those_of_a_gpu(path: Path) -> None:
    """Requests, sectors and wavefronts equal a GPU's, except those recorded as different."""
    cases = {c.name: c for c in runpy.run_path(str(BENCHMARKS / "_counter_kernels.py"))["CASES"]}
    kernels = json.loads(path.read_text())["kernels"]
    compared = [c for k in kernels for c in k["comparisons"] if c["hardware"] or c["simulated"]]
    for kernel in kernels:
        case = cases[kernel["name"]]
        s = simulate(case.kernel, case.grid, case.block, *case.make())
        equal = {c["counter"] for c in kernel["comparisons"] if c["equal"]}
        assert len(equal & COUNTERS.keys()) >= 4
        for name in equal & COUNTERS.keys():
            metric, count = COUNTERS[name]
            assert count(s.totals, s) == pytest.approx(kernel["metrics"][metric], rel=1e-3), (
                case.name,
                name,
            )
    equal = sum(c["equal"] for c in compared)
    assert f"{equal} of {len(compared)} nonzero counters of {len(kernels)}" in str(s.evidence)
