"""What a simulation takes of the machine's memory: as many blocks run together as their shared and local arrays leave room for."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from gpulab.kernels import cuda, float32, float64, simulate
from gpulab.kernels._simulate import _run
from gpulab.kernels._simulate._hazards import BYTES_OF_A_WORD

MIB = 1 << 20


def shared_static(out):
    part = cuda.shared.array((96, 128), float32)  # the 48 KiB that a compiler allots at most
    i, t = cuda.grid(1), cuda.threadIdx.x
    if cuda.blockIdx.x % 2 == 0:  # so that what is kept to find races is kept for each block
        cuda.syncthreads()
    part[95, t] = i
    cuda.syncthreads()
    out[i] = part[95, 31 - t]


def shared_dynamic(out):
    part = cuda.shared.array(0, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if cuda.blockIdx.x % 2 == 0:
        cuda.syncthreads()
    part[t] = i
    cuda.syncthreads()
    out[i] = part[31 - t]


def local_large(out):
    mine = cuda.local.array(1024, float64)  # 8 KiB of each thread
    i = cuda.grid(1)
    mine[1023] = i ^ 31
    out[i] = mine[1023]


LAUNCHES = {"static": (shared_static, 1024, 0), "dynamic": (shared_dynamic, 1024, 48 * 1024), "local": (local_large, 2048, 0)}


@pytest.mark.parametrize("name", LAUNCHES)
def test_large_arrays_of_many_small_blocks_fit_into_memory(name: str) -> None:
    """All at once they take 450 to 515 MiB, which more blocks would multiply: a share of that is held at a time."""
    kernel, blocks, dynamic = LAUNCHES[name]
    out = np.zeros(32 * blocks, np.float32)
    tracemalloc.start()
    try:
        s = simulate(kernel, blocks, 32, out, dynamic_shared_bytes=dynamic)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert s.findings == ()
    np.testing.assert_array_equal(out, np.arange(32 * blocks) ^ 31)
    assert peak < 300 * MIB, peak


@pytest.mark.parametrize("name", LAUNCHES)
def test_nothing_depends_on_how_many_blocks_memory_has_room_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of one block at a time is that of all six at once."""
    kernel, _, dynamic = LAUNCHES[name]
    reports: list[Any] = []
    for nbytes in (1 << 28, 1):
        batches: list[str] = []
        monkeypatch.setattr(_run, "_BYTES_AT_ONCE", nbytes)
        out = np.zeros(192, np.float32)
        report = simulate(kernel, 6, 32, out, dynamic_shared_bytes=dynamic, progress=lambda _, words, to=batches: to.append(words))
        reports.append((report, out.tolist()))
        assert len(batches) == (6 if nbytes == 1 else 1)
    assert reports[0] == reports[1]


def test_what_a_word_takes_where_blocks_differ() -> None:
    """By hand: of stores, atomics and loads two witnesses of four int32 each, two owners as int32, and a byte for whether it is written."""
    assert BYTES_OF_A_WORD == 3 * 2 * (4 * 4) + 2 * 4 + 1


def one_element_each(x, out):
    part = cuda.shared.array(256, float32)
    i = cuda.grid(1)
    part[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    out[i] = part[255 - cuda.threadIdx.x]


def test_ordinary_kernels_run_in_as_few_batches_as_before() -> None:
    """An element of shared memory for each thread leaves the batch at 2**18 lanes, here 1,024 blocks of 256."""
    batches: list[str] = []
    x = np.arange(2048 * 256, dtype=np.float32)
    simulate(one_element_each, 2048, 256, x, np.zeros_like(x), progress=lambda _, words: batches.append(words))
    assert batches == ["1,024 of 2,048 blocks", "2,048 of 2,048 blocks"]
