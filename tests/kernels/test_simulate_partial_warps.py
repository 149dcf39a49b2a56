"""``syncwarp`` of some lanes orders those alone: hand-made programs, and random ones against happens-before by vector clocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from _by_hand import line_of

from gpulab.kernels import cuda, int32, simulate
from gpulab.kernels._simulate import _run

READ, WRITE, ATOMIC, BARRIER, MEET = 1, 2, 3, 4, 5
BLOCKS, THREADS, STEPS, PLACES = 2, 64, 7, 2


def three_read_and_two_meet(out):
    part = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        part[0] = 7
    cuda.syncthreads()
    if t == 0:
        out[t] = part[0]  # first
    if t == 4:
        out[t] = part[0]
    if t == 5:
        out[t] = part[0]
    if t >= 4 and t < 7:
        cuda.syncwarp(0x70)
    if t == 6:
        part[0] = 1  # write


def all_read_and_some_meet(out):
    part = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        part[0] = 7
    cuda.syncthreads()
    out[t] = part[0]  # first
    if t != 2:
        cuda.syncwarp(0xFFFFFFFB)
    if t == 9:
        part[0] = 1  # write


def three_read_and_all_meet(out):
    part = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        part[0] = 7
    cuda.syncthreads()
    if t == 0 or t == 4 or t == 5:
        out[t] = part[0]
    if t == 0 or (t >= 4 and t < 7):
        cuda.syncwarp(0x71)
    if t == 6:
        part[0] = 1


@pytest.mark.parametrize(("kernel", "reader", "writer"), [(three_read_and_two_meet, 0, 6), (all_read_and_some_meet, 2, 9)])
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_reader_that_does_not_meet_the_writer_races(kernel, reader: int, writer: int, blocks: int) -> None:
    """Of many readers the one that no ``syncwarp`` brings together with the writer is found, whoever read after it."""
    s = simulate(kernel, blocks, 32, np.zeros(32, np.int32))
    races = [f for f in s.findings if f.array == "part"]
    assert [f.kind for f in races] == ["race"]
    assert (races[0].line, races[0].other_line, races[0].count) == (line_of(kernel, "write"), line_of(kernel, "first"), blocks)
    assert {t.thread[0] for t in races[0].threads} == {reader, writer}


def one_of_another_warp_reads_before(out):
    part = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        part[0] = 7
    cuda.syncthreads()
    if t == 40:
        out[t] = part[0]  # first
    if t < 32:
        out[t] = part[0]
        cuda.syncwarp()
    if t == 9:
        part[0] = 1  # write


@pytest.mark.parametrize("together", [1 << 17, 1])
def test_a_whole_warp_that_reads_at_once_does_not_hide_a_reader_of_another(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lanes of the writer's warp meet it, so that only the one that read before them races."""
    monkeypatch.setattr(_run, "_LANES_AT_ONCE", together)
    s = simulate(one_of_another_warp_reads_before, 2, 64, np.zeros(64, np.int32))
    races = [f for f in s.findings if f.array == "part"]
    kernel = one_of_another_warp_reads_before
    assert [(f.kind, f.line, f.other_line, f.count) for f in races] == [("race", line_of(kernel, "write"), line_of(kernel, "first"), 2)]
    assert {t.thread[0] for t in races[0].threads} == {9, 40}


def test_readers_that_all_meet_the_writer_do_not_race() -> None:
    """The same with a mask that names the first reader too."""
    assert simulate(three_read_and_all_meet, 1, 32, np.zeros(32, np.int32)).findings == ()


def neighbours_in_fours(x, out):
    part = cuda.shared.array(1024, int32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.grid(1)]
    cuda.syncwarp(15 << (t % 32 // 4 * 4))
    out[cuda.grid(1)] = part[t // 4 * 4 + (t + 1 + cuda.blockIdx.x) % 4]


def test_many_ordered_lanes_are_all_looked_at() -> None:
    """8,192 lanes in groups of four read what their neighbour wrote: as many pairs are ordered, and none is told as a race."""
    x, out = np.arange(8192, dtype=np.int32), np.zeros(8192, np.int32)
    assert simulate(neighbours_in_fours, 8, 1024, x, out).findings == ()
    assert np.array_equal(out, np.concatenate([np.roll(x[1024 * b :][:1024].reshape(-1, 4), -1 - b, 1).ravel() for b in range(8)]))


def program_in_global_memory(what, place, members, memory, seen):
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    for s in range(what.shape[0]):
        if what[s, b, t] == 4:
            cuda.syncthreads()
        if what[s, b, t] == 5:
            cuda.syncwarp(members[s, b, t])
        if what[s, b, t] == 1:
            seen[i] = memory[2 * b + place[s, b, t]]  # read
        if what[s, b, t] == 2:
            memory[2 * b + place[s, b, t]] = 1 + s * 1000 + i  # write
        if what[s, b, t] == 3:
            cuda.atomic.add(memory, 2 * b + place[s, b, t], 100_000)  # atomic


def program_in_shared_memory(what, place, members, memory, seen):
    shared = cuda.shared.array(2, int32)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    if t < 2:
        shared[t] = 0
    cuda.syncthreads()
    for s in range(what.shape[0]):
        if what[s, b, t] == 4:
            cuda.syncthreads()
        if what[s, b, t] == 5:
            cuda.syncwarp(members[s, b, t])
        if what[s, b, t] == 1:
            seen[i] = shared[place[s, b, t]]  # read
        if what[s, b, t] == 2:
            shared[place[s, b, t]] = 1 + s * 1000 + i  # write
        if what[s, b, t] == 3:
            cuda.atomic.add(shared, place[s, b, t], 100_000)  # atomic


def random_program(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what each thread does in each step, where, and whom it names; lanes meet in groups of their warp.

    In every second program many lanes of one warp read one place before some of them meet the writer.
    """
    rng = np.random.default_rng(seed)
    if seed % 2:
        return _many_read_and_some_meet(rng)
    what = np.zeros((STEPS, BLOCKS, THREADS), np.int32)
    members = np.zeros(what.shape, np.int64)
    busy = np.sort(rng.choice([0, 1, 2, 3, 30, 31, 32], size=rng.integers(4, 7), replace=False))
    what[:, :, busy] = np.where(rng.random((STEPS, BLOCKS, len(busy))) < 0.3, READ, 0)
    for block in range(BLOCKS):  # one lane writes once, and decides whether the reads of the others are ordered
        what[rng.integers(STEPS - 3, STEPS), block, rng.choice(busy)] = rng.choice([WRITE, ATOMIC])
    for step, block, warp in itertools.product(range(STEPS), range(BLOCKS), range(2)):
        lanes = busy[busy // 32 == warp]
        group = lanes[rng.random(len(lanes)) < 0.8]
        if step > 3 and len(group) > 1 and rng.random() < 0.8:
            what[step, block, group] = MEET
            members[step, block, group] = sum(1 << int(lane) % 32 for lane in group)
    what[rng.random((STEPS, BLOCKS)) < 0.1] = BARRIER
    return what, (rng.random(what.shape) < 0.2).astype(np.int32), members


def _many_read_and_some_meet(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a program in which lanes of one warp do the same at one place, and then meet: all, all but one, or in chains of groups."""
    what = np.zeros((STEPS, BLOCKS, THREADS), np.int32)
    members = np.zeros(what.shape, np.int64)
    for block in range(BLOCKS):
        lanes = rng.choice(32, size=rng.integers(4, 9), replace=False) + 32 * rng.integers(2)
        writer, others = lanes[0], lanes[1:]
        kind = rng.choice([READ, READ, ATOMIC])
        for lane in others:
            what[rng.integers(0, 3), block, lane] = kind
        for step in range(3, STEPS - 1):
            if rng.random() < 0.6:
                left_out = rng.choice(others, size=rng.choice([0, 0, 1, 2]), replace=False)
                group = np.setdiff1d(lanes, left_out)
                what[step, block, group] = MEET
                members[step, block, group] = sum(1 << int(lane) % 32 for lane in group)
        what[STEPS - 1, block, writer] = WRITE
    return what, np.zeros(what.shape, np.int32), members


def races(what: np.ndarray, place: np.ndarray, members: np.ndarray) -> set[tuple]:
    """Return by definition the pairs of accesses that race, by a vector clock of each thread; blocks share nothing."""
    found = set()
    for block in range(BLOCKS):
        clocks = np.zeros((THREADS, THREADS), np.int64)
        accesses = []
        for step in range(STEPS):
            now = what[step, block]
            if (now == BARRIER).all():
                clocks[:] = clocks.max(0)
            for mask in np.unique(members[step, block][now == MEET]).tolist():
                for warp in range(2):
                    group = [t for t in range(32 * warp, 32 * warp + 32) if now[t] == MEET and members[step, block, t] == mask]
                    if group:
                        clocks[group] = clocks[group].max(0)
            for t in np.flatnonzero((now >= READ) & (now <= ATOMIC)).tolist():
                clocks[t, t] += 1
                accesses.append((int(now[t]), t, int(place[step, block, t]), clocks[t].copy()))
        for (kind, t, at, clock), (kind2, u, at2, clock2) in itertools.combinations(accesses, 2):
            ordered = clock2[t] >= clock[t]
            if at == at2 and t != u and not ordered and not (kind == kind2 and kind in (READ, ATOMIC)):
                found.add((frozenset([(kind, block, t), (kind2, block, u)]), at))
    return found


@pytest.mark.parametrize("together", [1 << 17, 1])
@pytest.mark.parametrize("kernel", [program_in_global_memory, program_in_shared_memory])
def test_races_are_those_of_happens_before(kernel, together: int, monkeypatch: pytest.MonkeyPatch, soak: bool) -> None:
    """60 programs (3,000 in the soak): one is told as racing if and only if it races, and the pair that is named races indeed."""
    monkeypatch.setattr(_run, "_LANES_AT_ONCE", together)
    kinds = {line_of(kernel, "read"): READ, line_of(kernel, "write"): WRITE, line_of(kernel, "atomic"): ATOMIC}
    racing, programs = 0, 3_000 if soak else 60
    for seed in range(programs):
        what, place, members = random_program(seed)
        expected = races(what, place, members)
        racing += bool(expected)
        s = simulate(kernel, BLOCKS, THREADS, what, place, members, np.zeros(4, np.int32), np.zeros(BLOCKS * THREADS, np.int32))
        assert {f.kind for f in s.findings} <= {"race"}, (seed, [str(f) for f in s.findings])
        assert bool(s.findings) == bool(expected), (seed, expected)
        for f in s.findings:
            (t, u) = f.threads
            pair = {(kinds[f.line], t.block[0], t.thread[0]), (kinds[f.other_line], u.block[0], u.thread[0])}
            assert (frozenset(pair), f.index[0] % 2) in expected, (seed, str(f))
    assert 0.2 < racing / programs < 0.8
