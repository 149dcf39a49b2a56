"""Random programs race in the simulator where vector clocks find a race, and only there."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from gpulab.kernels import cuda, int32, simulate
from kernel_case import line_of, zeros

READ, WRITE, ATOMIC, BARRIER, MEET = 1, 2, 3, 4, 5
BLOCKS, THREADS, STEPS = 2, 64, 7
Program = tuple[np.ndarray, np.ndarray, np.ndarray]


def act(what, place, members, memory, seen):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    for s in range(what.shape[0]):
        if what[s, b, t] == 4:
            cuda.syncthreads()
        if what[s, b, t] == 5:
            cuda.syncwarp(members[s, b, t])
        if what[s, b, t] == 1:
            seen[cuda.grid(1)] = memory[place[s, b, t]]  # read
        if what[s, b, t] == 2:
            memory[place[s, b, t]] = 1 + s * 1000 + cuda.grid(1)  # write
        if what[s, b, t] == 3:
            cuda.atomic.add(memory, place[s, b, t], 100_000)  # atomic


def in_global_memory(what, place, members, memory, seen):
    act(what, place, members, memory, seen)


def in_shared_memory(what, place, members, memory, seen):
    shared = cuda.shared.array(4, int32)
    if cuda.threadIdx.x < 4:
        shared[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    act(what, place, members, shared, seen)


def random_program(rng: np.random.Generator) -> Program:
    """Return for each step and thread the action, its place, and the lanes that its mask names."""
    what = np.zeros((STEPS, BLOCKS, THREADS), np.int32)
    busy = rng.choice([0, 1, 2, 31, 32, 40, 63], size=rng.integers(1, 5), replace=False)
    kinds, shares = [0, READ, WRITE, ATOMIC], rng.dirichlet([4, 2, 1, 1.5])
    what[:, :, busy] = rng.choice(kinds, size=(STEPS, BLOCKS, len(busy)), p=shares)
    what[:, rng.random(BLOCKS) < 0.4] = 0  # some blocks do nothing
    what[rng.random((STEPS, BLOCKS)) < 0.4] = BARRIER
    return what, rng.integers(0, 2, what.shape), np.zeros(what.shape, np.int64)


def many_read_and_some_meet(rng: np.random.Generator) -> Program:
    """Return a program in which lanes of one warp access one place, then synchronize in groups.

    A group has all of the lanes, or all but one or two; at the end one lane writes.
    """
    what = np.zeros((STEPS, BLOCKS, THREADS), np.int32)
    members = np.zeros(what.shape, np.int64)
    for block in range(BLOCKS):
        lanes = rng.choice(32, size=rng.integers(4, 9), replace=False) + 32 * rng.integers(2)
        writer, others = lanes[0], lanes[1:]
        what[rng.integers(0, 3, len(others)), block, others] = rng.choice([READ, READ, ATOMIC])
        for step in range(3, STEPS - 1):
            if rng.random() < 0.6:
                left_out = rng.choice(others, size=rng.choice([0, 0, 1, 2]), replace=False)
                group = np.setdiff1d(lanes, left_out)
                what[step, block, group] = MEET
                members[step, block, group] = sum(1 << int(lane) % 32 for lane in group)
        what[STEPS - 1, block, writer] = WRITE
    what[rng.random((STEPS, BLOCKS)) < 0.03] = BARRIER
    return what, np.broadcast_to([[0], [2]], what.shape).copy(), members


def races(what: np.ndarray, place: np.ndarray, members: np.ndarray, across: bool) -> set[tuple]:
    """Return the pairs of accesses that race by definition, using a vector clock of each thread."""
    accesses = []
    for block in range(BLOCKS):
        clocks = np.zeros((THREADS, THREADS), np.int64)
        for step in range(STEPS):
            now = what[step, block]
            if (now == BARRIER).all():
                clocks[:] = clocks.max(0)
            for warp, mask in itertools.product((0, 32), np.unique(members[step, block])):
                group = np.flatnonzero((now == MEET) & (members[step, block] == mask))
                group = group[group // 32 * 32 == warp]
                clocks[group] = clocks[group].max(0, initial=0)
            for t in np.flatnonzero((now >= READ) & (now <= ATOMIC)).tolist():
                clocks[t, t] += 1
                where = int(place[step, block, t])
                accesses.append((int(now[t]), block, t, where, clocks[t].copy()))
    found = set()
    for (kind, b, t, at, clock), (other, c, u, there, later) in itertools.combinations(accesses, 2):
        unordered = across if b != c else t != u and later[t] < clock[t]
        harmless = kind == other and kind in (READ, ATOMIC)
        if at == there and unordered and not harmless:
            found.add((frozenset([(kind, b, t), (other, c, u)]), at))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [in_global_memory, in_shared_memory])
@pytest.mark.parametrize("make", [random_program, many_read_and_some_meet])
def test_races_are_those_of_happens_before(kernel: Callable, make: Callable) -> None:
    """A program is reported if and only if it races, and the reported pair is one that races."""
    kinds = {
        line_of(act, mark): k for mark, k in (("read", READ), ("write", WRITE), ("atomic", ATOMIC))
    }
    racing = 0
    for seed in range(150):
        what, place, members = make(np.random.default_rng(seed))
        expected = races(what, place, members, kernel is in_global_memory)
        racing += bool(expected)
        memory, seen = zeros(4, dtype=np.int32), zeros(BLOCKS * THREADS, dtype=np.int32)
        s = simulate(kernel, BLOCKS, THREADS, what, place, members, memory, seen)
        assert {f.kind for f in s.findings} == ({"race"} if expected else set()), (seed, expected)
        for f in s.findings:
            t, u = ((thread.block[0], thread.thread[0]) for thread in f.threads)
            pair = frozenset([(kinds[f.line], *t), (kinds[f.other_line], *u)])
            assert (pair, f.index[0]) in expected, (seed, str(f))
    assert 30 < racing < 130
