"""A matrix turned over its diagonal: straight, through a tile of shared memory, and through a tile
with a spare column.
"""

# Kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.kernels._language import cuda, float32
from gpulab.kernels.ladder._rung import Rung

TILE, ROWS = 32, 8


def transpose_naive(a, b):
    """Rows are read, columns are written: 32 lanes write to 32 rows."""
    x = 32 * cuda.blockIdx.x + cuda.threadIdx.x
    y = 32 * cuda.blockIdx.y + cuda.threadIdx.y
    for k in range(0, 32, 8):
        if y + k < a.shape[0] and x < a.shape[1]:
            b[x, y + k] = a[y + k, x]


def transpose_tiled(a, b):
    """The turn happens in shared memory: rows are read and rows are written."""
    tile = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = 32 * cuda.blockIdx.x + tx, 32 * cuda.blockIdx.y + ty
    for k in range(0, 32, 8):
        if y + k < a.shape[0] and x < a.shape[1]:
            tile[ty + k, tx] = a[y + k, x]
    cuda.syncthreads()
    x, y = 32 * cuda.blockIdx.y + tx, 32 * cuda.blockIdx.x + ty
    for k in range(0, 32, 8):
        if y + k < b.shape[0] and x < b.shape[1]:
            b[y + k, x] = tile[tx, ty + k]


def transpose_padded(a, b):
    """An unused 33rd column puts the words of a column into 32 different banks."""
    tile = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = 32 * cuda.blockIdx.x + tx, 32 * cuda.blockIdx.y + ty
    for k in range(0, 32, 8):
        if y + k < a.shape[0] and x < a.shape[1]:
            tile[ty + k, tx] = a[y + k, x]
    cuda.syncthreads()
    x, y = 32 * cuda.blockIdx.y + tx, 32 * cuda.blockIdx.x + ty
    for k in range(0, 32, 8):
        if y + k < b.shape[0] and x < b.shape[1]:
            b[y + k, x] = tile[tx, ty + k]


def _make(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.random((n, n), dtype=np.float32), np.zeros((n, n), np.float32)


def _extents(n: int) -> tuple[Any, Any]:
    tiles = -(-n // TILE)
    return (tiles, tiles), (TILE, ROWS)


def _rung(form: str, summary: str, kernel: Any) -> Rung:
    return Rung(
        f"transpose-{form}",
        "transpose",
        summary,
        kernel,
        _extents,
        _make,
        1,
        lambda a, b: a.T.astype(np.float64),
        (128, 2048, 8192),
        1,
        lambda n: 0.0,
        lambda n: 8.0 * n * n,
        tolerance=0.0,
    )


RUNGS = (
    _rung("naive", "rows are read, columns are written", transpose_naive),
    _rung("tiled", "turned in shared memory", transpose_tiled),
    _rung("padded", "the tile has a spare column", transpose_padded),
)
