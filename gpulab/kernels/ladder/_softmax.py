"""Softmax of rows, one block for each row: three walks over global memory, or one with the row kept
in shared memory.
"""

# Kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpulab.kernels._language import cuda, float32
from gpulab.kernels.ladder._rung import Rung

BLOCK, COLUMNS = 128, 1024


def softmax_three_walks(x, y):
    """Largest element, sum, result: the row is read from global memory for each."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    largest = float32(-math.inf)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        largest = max(largest, x[row, k])
    tile[t] = largest
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], cuda.blockDim.x):
        y[row, k] = math.exp(x[row, k] - largest) / tile[0]


def softmax_kept(x, y):
    """The row is read once and kept, and so is each exponential."""
    kept = cuda.shared.array(1024, float32)
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    largest = float32(-math.inf)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        kept[k] = x[row, k]
        largest = max(largest, kept[k])
    tile[t] = largest
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], cuda.blockDim.x):
        kept[k] = math.exp(kept[k] - largest)
        total += kept[k]
    tile[t] = total
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], cuda.blockDim.x):
        y[row, k] = kept[k] / tile[0]


def _make(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.standard_normal((n, COLUMNS), dtype=np.float32) * np.float32(3), np.zeros(
        (n, COLUMNS), np.float32
    )


def _softmax(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _rung(form: str, summary: str, kernel: Any) -> Rung:
    # For each element: compare, subtract, exponential, add, divide.
    return Rung(
        f"softmax-{form}",
        "softmax",
        summary,
        kernel,
        lambda n: (n, BLOCK),
        _make,
        1,
        _softmax,
        (32, 4096, 65536),
        1,
        lambda n: 5.0 * n * COLUMNS,
        lambda n: 8.0 * n * COLUMNS,
    )


RUNGS = (
    _rung("three-walks", "the row is read three times", softmax_three_walks),
    _rung("kept", "the row stays in shared memory", softmax_kept),
)
