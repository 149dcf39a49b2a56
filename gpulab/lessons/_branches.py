"""The three kernels with a branch that notebook 01 shows, in a module of their own because they use numba's ``cuda`` if installed."""

from __future__ import annotations

from typing import Any

from gpulab.kernels import cuda


def a(out: Any) -> None:
    """Test whether the thread's number is odd."""
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = 1


def b(out: Any) -> None:
    """Test whether the number of the thread's warp is odd."""
    i = cuda.grid(1)
    if (i // 32) % 2 == 0:
        out[i] = 1


def c(out: Any) -> None:
    """Test whether the thread is one of the first hundred."""
    i = cuda.grid(1)
    if i < 100:
        out[i] = 1


BRANCHES = (a, b, c)
