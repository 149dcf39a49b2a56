"""C = A B for square float32 matrices: from one thread for each element to tiles in shared memory
and in registers.

The first three take any size; the register tiles have no guards and take multiples of their tile.
"""

# Kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.kernels._language import cuda, float32
from gpulab.kernels.ladder._rung import Rung


def matmul_naive(a, b, c):
    """One thread for each element; neighbors in x have neighboring rows, so they walk down A side
    by side.
    """
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


def matmul_coalesced(a, b, c):
    """The same with the two exchanged: neighbors in x have neighboring columns."""
    j, i = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


def matmul_tiled(a, b, c):
    """A block takes a tile of 32 x 32 from A and from B into shared memory and uses each element 32
    times.
    """
    tile_a = cuda.shared.array((32, 32), float32)
    tile_b = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    j, i = cuda.grid(2)
    total = float32(0)
    for first in range(0, a.shape[1], 32):
        tile_a[ty, tx] = (
            a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        )
        tile_b[ty, tx] = (
            b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        )
        cuda.syncthreads()
        for k in range(32):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


def matmul_registers_1d(a, b, c):
    """Tiles of 64 x 8 and 8 x 64; each of 512 threads keeps eight elements of a column of C in
    registers.
    """
    tile_a = cuda.shared.array((64, 8), float32)
    tile_b = cuda.shared.array((8, 64), float32)
    t = cuda.threadIdx.x
    row, column = 64 * cuda.blockIdx.y, 64 * cuda.blockIdx.x
    ty, tx = t // 64, t % 64
    totals = cuda.local.array(8, float32)
    for m in range(8):
        totals[m] = 0
    for first in range(0, a.shape[1], 8):
        tile_a[t // 8, t % 8] = a[row + t // 8, first + t % 8]
        tile_b[ty, tx] = b[first + ty, column + tx]
        cuda.syncthreads()
        for k in range(8):
            right = tile_b[k, tx]
            for m in range(8):
                totals[m] += tile_a[8 * ty + m, k] * right
        cuda.syncthreads()
    for m in range(8):
        c[row + 8 * ty + m, column + tx] = totals[m]


def matmul_registers_2d(a, b, c):
    """Tiles of 128 x 8 and 8 x 128; each of 256 threads keeps 8 x 8 elements of C, so 16 loads
    serve 64 products.
    """
    tile_a = cuda.shared.array((128, 8), float32)
    tile_b = cuda.shared.array((8, 128), float32)
    t = cuda.threadIdx.x
    row, column = 128 * cuda.blockIdx.y, 128 * cuda.blockIdx.x
    ty, tx = t // 16, t % 16
    totals = cuda.local.array((8, 8), float32)
    left = cuda.local.array(8, float32)
    right = cuda.local.array(8, float32)
    for m in range(8):
        for n in range(8):
            totals[m, n] = 0
    for first in range(0, a.shape[1], 8):
        for k in range(0, 128, 32):
            tile_a[k + t // 8, t % 8] = a[row + k + t // 8, first + t % 8]
        for k in range(0, 8, 2):
            tile_b[k + t // 128, t % 128] = b[first + k + t // 128, column + t % 128]
        cuda.syncthreads()
        for k in range(8):
            for m in range(8):
                left[m] = tile_a[ty + 16 * m, k]
                right[m] = tile_b[k, tx + 16 * m]
            for m in range(8):
                for n in range(8):
                    totals[m, n] += left[m] * right[n]
        cuda.syncthreads()
    for m in range(8):
        for n in range(8):
            c[row + ty + 16 * m, column + tx + 16 * n] = totals[m, n]


def _make(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    return (
        rng.random((n, n), dtype=np.float32),
        rng.random((n, n), dtype=np.float32),
        np.zeros((n, n), np.float32),
    )


def _product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def _blocks_of(tile: int, block: Any) -> Any:
    return lambda n: ((-(-n // tile), -(-n // tile)), block)


def _rung(form: str, summary: str, kernel: Any, extents: Any, multiple: int = 1) -> Rung:
    return Rung(
        f"matmul-{form}",
        "matmul",
        summary,
        kernel,
        extents,
        _make,
        2,
        _product,
        (128, 1024, 4096),
        multiple,
        lambda n: 2.0 * int(n) ** 3,
        lambda n: 12.0 * n * n,
    )


RUNGS = (
    _rung(
        "naive",
        "one thread for each element, rows side by side",
        matmul_naive,
        _blocks_of(32, (32, 32)),
    ),
    _rung("coalesced", "columns side by side", matmul_coalesced, _blocks_of(32, (32, 32))),
    _rung("tiled", "tiles of 32 x 32 in shared memory", matmul_tiled, _blocks_of(32, (32, 32))),
    _rung(
        "registers-1d",
        "eight results for each thread",
        matmul_registers_1d,
        _blocks_of(64, 512),
        64,
    ),
    _rung(
        "registers-2d", "64 results for each thread", matmul_registers_2d, _blocks_of(128, 256), 128
    ),
)
