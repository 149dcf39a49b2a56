"""Random programs of reads, writes, atomics and barriers: a race is told exactly where plain happens-before finds one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from _by_hand import line_of

from gpulab.kernels import Finding, cuda, int32, simulate
from gpulab.kernels._simulate import _run

READ, WRITE, ATOMIC, BARRIER = 1, 2, 3, 4
BLOCKS, THREADS, STEPS, PLACES = 3, 64, 6, 2


def program_in_global_memory(what, place, memory, seen):
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    for s in range(what.shape[0]):
        if what[s, b, t] == 4:
            cuda.syncthreads()
        if what[s, b, t] == 1:
            seen[i] = memory[place[s, b, t]]  # read
        if what[s, b, t] == 2:
            memory[place[s, b, t]] = 1 + s * 1000 + i  # write
        if what[s, b, t] == 3:
            cuda.atomic.add(memory, place[s, b, t], 100_000)  # atomic


def program_in_shared_memory(what, place, memory, seen):
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
        if what[s, b, t] == 1:
            seen[i] = shared[place[s, b, t]]  # read
        if what[s, b, t] == 2:
            shared[place[s, b, t]] = 1 + s * 1000 + i  # write
        if what[s, b, t] == 3:
            cuda.atomic.add(shared, place[s, b, t], 100_000)  # atomic


def random_program(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what each thread does in each step, shape (steps, blocks, threads), and where; few threads do anything."""
    rng = np.random.default_rng(seed)
    what = np.zeros((STEPS, BLOCKS, THREADS), np.int32)
    busy = rng.choice([0, 1, 2, 31, 32, 40, 63], size=rng.integers(1, 5), replace=False)
    kinds = rng.choice([0, READ, WRITE, ATOMIC], size=(STEPS, BLOCKS, len(busy)), p=rng.dirichlet([4, 2, 1, 1.5]))
    what[:, :, busy] = kinds
    what[:, rng.random(BLOCKS) < 0.4] = 0  # some blocks do nothing
    what[rng.random((STEPS, BLOCKS)) < 0.4] = BARRIER
    return what, rng.integers(0, PLACES, what.shape).astype(np.int32)


def races(what: np.ndarray, place: np.ndarray, across_blocks: bool) -> set[tuple]:
    """Return by definition the pairs of accesses that race: ((kind, block, thread), (kind, block, thread), place)."""
    accesses = []
    epoch = [0] * BLOCKS
    for step, block in itertools.product(range(STEPS), range(BLOCKS)):
        if (what[step, block] == BARRIER).all():
            epoch[block] += 1
            continue
        for thread in np.flatnonzero(what[step, block]).tolist():
            accesses.append((int(what[step, block, thread]), block, thread, int(place[step, block, thread]), epoch[block]))
    found = set()
    for first, second in itertools.combinations(accesses, 2):
        (kind, block, thread, at, when), (kind2, block2, thread2, at2, when2) = first, second
        unordered = (across_blocks and block != block2) or (block == block2 and when == when2 and thread != thread2)
        harmless = kind == kind2 and kind in (READ, ATOMIC)
        if at == at2 and unordered and not harmless:
            found.add((frozenset([(kind, block, thread), (kind2, block2, thread2)]), at))
    return found


@pytest.mark.parametrize("together", [1 << 17, 1])
@pytest.mark.parametrize("kernel", [program_in_global_memory, program_in_shared_memory])
def test_races_are_those_of_happens_before(kernel, together: int, monkeypatch: pytest.MonkeyPatch, soak: bool) -> None:
    """250 programs (2,500 in the soak): one is told as racing if and only if it races, and the pair that is named races indeed."""
    monkeypatch.setattr(_run, "_LANES_AT_ONCE", together)
    kinds = {line_of(kernel, "read"): READ, line_of(kernel, "write"): WRITE, line_of(kernel, "atomic"): ATOMIC}
    racing, programs = 0, 2_500 if soak else 250
    for seed in range(programs):
        what, place = random_program(seed)
        expected = races(what, place, kernel is program_in_global_memory)
        racing += bool(expected)
        s = simulate(kernel, BLOCKS, THREADS, what, place, np.zeros(PLACES, np.int32), np.zeros(BLOCKS * THREADS, np.int32))
        found: list[Finding] = [f for f in s.findings if f.kind == "race"]
        assert bool(found) == bool(expected), (seed, expected, found)
        for f in found:
            (t, u) = f.threads
            pair = {(kinds[f.line], t.block[0], t.thread[0]), (kinds[f.other_line], u.block[0], u.thread[0])}
            assert (frozenset(pair), f.index[0]) in expected, (seed, str(f))
        assert {f.kind for f in s.findings} <= {"race"}
    assert 50 < racing * 250 / programs < 200
