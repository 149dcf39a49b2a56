"""How often each of 256 values occurs: counters that all threads share, and counters for each block
that are added at the end.
"""

# Kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.kernels._language import cuda, int32
from gpulab.kernels.ladder._rung import Rung

BLOCK = 256


def histogram_global(x, counts):
    """Every element is one atomic on global memory."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, x[i], 1)


def histogram_private(x, counts):
    """Each block counts in its own shared memory, and adds 256 numbers to the result at the end."""
    mine = cuda.shared.array(256, int32)
    t = cuda.threadIdx.x
    mine[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(mine, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(counts, t, mine[t])


def _make(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    # Like the pixels of a picture: some values come far more often than others.
    return rng.normal(100, 20, n).clip(0, 255).astype(np.int32), np.zeros(256, np.int32)


def _extents(n: int) -> tuple[Any, Any]:
    return max(1, min(512, n // (16 * BLOCK))), BLOCK


def _rung(form: str, summary: str, kernel: Any) -> Rung:
    return Rung(
        f"histogram-{form}",
        "histogram",
        summary,
        kernel,
        _extents,
        _make,
        1,
        lambda x, c: np.bincount(x, minlength=256),
        (1 << 16, 1 << 22, 1 << 26),
        1,
        float,
        lambda n: 4.0 * n + 1024,
        tolerance=0.0,
    )


RUNGS = (
    _rung("global", "one atomic on global memory for each element", histogram_global),
    _rung("private", "each block has counters of its own", histogram_private),
)
