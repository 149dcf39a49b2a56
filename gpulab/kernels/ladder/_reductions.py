"""Sums of blocks in five forms: each block of 256 threads leaves one sum."""

# Kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.kernels._language import cuda, float32
from gpulab.kernels.ladder._rung import Rung

BLOCK = 256
# Blocks of the form whose threads add up before they meet: eight elements for each thread.
EACH = 8


def sum_interleaved(x, sums):
    """Neighbors add first: every second thread works, then every fourth, and each warp diverges."""
    tile = cuda.shared.array(256, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        if t % (2 * step) == 0:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def sum_strided(x, sums):
    """The same pairs, by the first threads: whole warps work or rest, but their words lie in the
    same banks.
    """
    tile = cuda.shared.array(256, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        k = 2 * step * t
        if k < cuda.blockDim.x:
            tile[k] += tile[k + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def sum_sequential(x, sums):
    """Halves are added: the first threads work, and neighbors read neighbors."""
    tile = cuda.shared.array(256, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def sum_shuffle(x, sums):
    """A warp adds up in registers; shared memory carries one number for each warp."""
    warps = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i] if i < x.size else float32(0)
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if t % 32 == 0:
        warps[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = warps[t] if t < cuda.blockDim.x // 32 else float32(0)
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
            offset //= 2
        if t == 0:
            sums[cuda.blockIdx.x] = value


def sum_grid_stride(x, sums):
    """Each thread first adds eight elements of its own: an eighth of the blocks, and of the
    block-wide synchronizations.
    """
    warps = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    value = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value += x[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if t % 32 == 0:
        warps[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = warps[t] if t < cuda.blockDim.x // 32 else float32(0)
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
            offset //= 2
        if t == 0:
            sums[cuda.blockIdx.x] = value


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _few_blocks(n: int) -> int:
    return -(-n // (EACH * BLOCK))


def _make(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.random(n, dtype=np.float32), np.zeros(_blocks(n), np.float32)


def _make_few(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.random(n, dtype=np.float32), np.zeros(_few_blocks(n), np.float32)


def _sums(x: np.ndarray, sums: np.ndarray) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), (0, sums.size * BLOCK - x.size))
    return np.asarray(padded.reshape(sums.size, BLOCK).sum(1))


def _sums_of_few(x: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Block b has the elements whose number, divided by 256, leaves b among the blocks of the
    grid.
    """
    padded = np.pad(x.astype(np.float64), (0, -x.size % (sums.size * BLOCK)))
    return np.asarray(padded.reshape(-1, sums.size, BLOCK).sum((0, 2)))


_SIZES = (1 << 14, 1 << 22, 1 << 26)


def _rung(form: str, summary: str, kernel: Any) -> Rung:
    return Rung(
        f"reduction-{form}",
        "reduction",
        summary,
        kernel,
        lambda n: (_blocks(n), BLOCK),
        _make,
        1,
        _sums,
        _SIZES,
        1,
        float,
        lambda n: 4.0 * n,
    )


RUNGS = (
    _rung("interleaved", "neighbors add first", sum_interleaved),
    _rung("strided", "the same pairs, by the first threads", sum_strided),
    _rung("sequential", "halves are added", sum_sequential),
    _rung("shuffle", "a warp adds in registers", sum_shuffle),
    Rung(
        "reduction-grid-stride",
        "reduction",
        "each thread adds eight of its own first",
        sum_grid_stride,
        lambda n: (_few_blocks(n), BLOCK),
        _make_few,
        1,
        _sums_of_few,
        _SIZES,
        1,
        float,
        lambda n: 4.0 * n,
    ),
)
