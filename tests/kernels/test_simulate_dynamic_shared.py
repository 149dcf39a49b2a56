"""Dynamic shared memory as arrays of several element sizes: all begin at the same byte, as in CUDA and in numba-cuda.

numba-cuda says of it that every array of shape 0 is a view of the same memory (its documentation on dynamic shared memory; issue 5073 of
numba); in CUDA C++ all ``extern __shared__`` arrays begin at the same address. So the bytes alias, and accesses through two of them race.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from _by_hand import line_of

from gpulab.kernels import cuda, float32, int8, int16, int32, int64, simulate

THREADS, STEPS, WORDS = 40, 3, 4


def halves(x, out):
    whole = cuda.shared.array(0, int64)
    half = cuda.shared.array(0, int32)
    byte = cuda.shared.array(0, int8)
    t = cuda.threadIdx.x
    whole[t] = x[t]
    cuda.syncthreads()
    out[t, 0] = half[2 * t]
    out[t, 1] = half[2 * t + 1]
    out[t, 2] = byte[8 * t + 3]


def test_the_bytes_are_the_same() -> None:
    """What one array wrote is read through the others in parts, lowest bytes first; all of it counts as written."""
    x = np.random.default_rng(1).integers(-(2**62), 2**62, 32)
    out = np.zeros((32, 3), np.int64)
    s = simulate(halves, 1, 32, x, out, dynamic_shared_bytes=256)
    assert s.findings == ()
    assert s.shared_bytes == 256
    np.testing.assert_array_equal(out[:, 0], [np.int64(v & 0xFFFFFFFF).astype(np.int32) for v in x])
    np.testing.assert_array_equal(out[:, 1], x >> 32)
    np.testing.assert_array_equal(out[:, 2], x.view(np.int8)[3::8])


def neighbours_half(x, out):
    whole = cuda.shared.array(0, int64)
    half = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    whole[t] = x[t]  # write
    out[t] = half[2 * t - 1] if t > 0 else 0  # read


def test_a_race_between_two_sizes_is_found() -> None:
    """Thread t reads the upper half of what thread t - 1 wrote: the line, the array, the index in it, and both threads are told."""
    s = simulate(neighbours_half, 3, 32, np.arange(32), np.zeros(32, np.int64), dynamic_shared_bytes=256)
    (race,) = (f for f in s.findings if f.array == "half")
    assert (race.kind, race.line, race.other_line) == ("race", line_of(neighbours_half, "read"), line_of(neighbours_half, "write"))
    assert race.index == (1,)
    assert [t.thread[0] for t in race.threads] == [1, 0]
    assert race.count == 3 * 31


def half_written(out):
    half = cuda.shared.array(0, int16)
    whole = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    half[2 * t] = t
    cuda.syncthreads()
    out[t] = whole[t]


def test_an_element_of_which_half_is_written_is_uninitialised() -> None:
    """The lower half has a value, the upper one has not."""
    s = simulate(half_written, 1, 32, np.zeros(32, np.int32), dynamic_shared_bytes=128)
    (found,) = s.findings
    assert (found.kind, found.array, found.index, found.count) == ("uninitialised", "whole", (0,), 32)


def random_program(what, place, size, out):
    wide = cuda.shared.array(0, int64)
    narrow = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    if t < 4:
        wide[t] = 0
    cuda.syncthreads()
    for s in range(what.shape[0]):
        if what[s, t] == 1 and size[s, t] == 2:
            out[t] = wide[place[s, t] // 2]
        if what[s, t] == 1 and size[s, t] == 1:
            out[t] = narrow[place[s, t]]
        if what[s, t] == 2 and size[s, t] == 2:
            wide[place[s, t] // 2] = 1 + 1000 * s + t
        if what[s, t] == 2 and size[s, t] == 1:
            narrow[place[s, t]] = 1 + 1000 * s + t
        if what[s, t] == 3:
            cuda.syncthreads()


def _races(what: np.ndarray, place: np.ndarray, size: np.ndarray) -> bool:
    """Return by definition whether two threads touch the same half without a barrier between, one of them writing."""
    accesses: list[tuple[int, int, int, set[int]]] = []
    epoch = 0
    for step in range(STEPS):
        epoch += int((what[step] == 3).all())
        for t in np.flatnonzero(what[step] % 3).tolist():
            at, n = int(place[step, t]), int(size[step, t])
            accesses.append((epoch, t, int(what[step, t]), set(range(at // n * n, at // n * n + n))))
    return any(
        e == f and t != u and 2 in (a, b) and places & others
        for (e, t, a, places), (f, u, b, others) in itertools.combinations(accesses, 2)
    )


@pytest.mark.parametrize("busy", [3, 5])
def test_races_between_sizes_are_those_of_happens_before(busy: int, soak: bool) -> None:
    """60 programs of reads and writes of two sizes (2,000 in the soak): one is told as racing if and only if it races."""
    racing, programs = 0, 2_000 if soak else 60
    for seed in range(programs):
        rng: Any = np.random.default_rng(seed)
        what = np.zeros((STEPS, THREADS), np.int32)
        lanes = rng.choice(THREADS, busy, replace=False)
        what[:, lanes] = rng.choice([0, 1, 1, 2], (STEPS, busy), p=[0.5, 0.2, 0.15, 0.15])
        what[rng.random(STEPS) < 0.3] = 3
        place = rng.integers(0, 2 * WORDS, what.shape).astype(np.int32)
        size = rng.integers(1, 3, what.shape).astype(np.int32)
        expected = _races(what, place, size)
        racing += expected
        s = simulate(random_program, 1, THREADS, what, place, size, np.zeros(THREADS, np.int64), dynamic_shared_bytes=8 * WORDS)
        assert {f.kind for f in s.findings} == ({"race"} if expected else set()), (seed, [str(f) for f in s.findings])
    assert 0.1 < racing / programs < 0.9


def large(x):
    first = cuda.shared.array((96, 128), float32)
    second = cuda.shared.array(1, float32)  # too many
    t = cuda.threadIdx.x
    first[0, t] = x[t]
    if t == 0:
        second[0] = 0
    x[t] = first[0, t]


def test_shared_arrays_beyond_what_a_compiler_takes_are_noted() -> None:
    """96 x 128 floats are the 48 KiB that ptxas allows (0xc000 in its refusal); four bytes more are told, and the kernel runs."""
    s = simulate(large, 1, 32, np.ones(32, np.float32))
    (note,) = s.notes
    assert note.startswith(f"line {line_of(large, 'too many')}: the shared arrays up to here take 49,156 bytes")
    assert "more than 49,152 of a fixed shape" in note
    assert s.shared_bytes == 49_156
