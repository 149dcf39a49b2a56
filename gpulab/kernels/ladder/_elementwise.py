"""One function on every element: one thread for each, a grid that strides, and the chunk for each
thread that looks natural and is slow.
"""

# Kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpulab.kernels._language import cuda, float32
from gpulab.kernels.ladder._rung import Rung

BLOCK = 256


def gate_each(x, y):
    """Compute y = x (1 + tanh(0.8 x)) / 2, one thread for each element."""
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        y[i] = float32(0.5) * v * (float32(1) + math.tanh(float32(0.8) * v))


def gate_grid_stride(x, y):
    """Compute the same with a grid of any size: each thread goes on by the width of the grid."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        v = x[i]
        y[i] = float32(0.5) * v * (float32(1) + math.tanh(float32(0.8) * v))


def gate_chunks(x, y):
    """Compute the same with 32 neighbors for each thread, as work is usually split among CPU
    cores.
    """
    first = 32 * cuda.grid(1)
    for i in range(first, min(first + 32, x.size)):
        v = x[i]
        y[i] = float32(0.5) * v * (float32(1) + math.tanh(float32(0.8) * v))


def _gate(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + np.tanh(0.8 * wide)))


def _make(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.standard_normal(n, dtype=np.float32), np.zeros(n, np.float32)


def _rung(name: str, summary: str, kernel: Any, extents: Any) -> Rung:
    # Five operations of NumPy; a tanh counts as one.
    return Rung(
        name,
        "elementwise",
        summary,
        kernel,
        extents,
        _make,
        1,
        _gate,
        (1 << 16, 1 << 22, 1 << 26),
        1,
        lambda n: 5.0 * n,
        lambda n: 8.0 * n,
        tolerance=1e-6,
    )


RUNGS = (
    _rung(
        "elementwise-chunks",
        "32 neighbors for each thread",
        gate_chunks,
        lambda n: (-(-n // (32 * BLOCK)), BLOCK),
    ),
    _rung(
        "elementwise-each",
        "one thread for each element",
        gate_each,
        lambda n: (-(-n // BLOCK), BLOCK),
    ),
    _rung(
        "elementwise-grid-stride",
        "a grid of 128 blocks strides over all",
        gate_grid_stride,
        lambda n: (min(128, -(-n // BLOCK)), BLOCK),
    ),
)
