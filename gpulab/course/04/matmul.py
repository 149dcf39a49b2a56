"""04.14: a matmul that moves less."""

# %% exercise
id = "04.14"
title = "a matmul that moves less"
answer_name = "matmul"

# %% stub
def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total

# %% hint
# How many threads of the block read a[i, k]? How many read b[k, j]?

# %% hint
# Walk along k in steps of 16. Each thread loads one element of a and one of b into two tiles. Then
# all threads use the tiles, 16 products each.

# %% hint
# Two barriers: one before the tiles are read, and one before they are overwritten. Beyond the edge
# a tile holds 0.

# %% solution
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total

# %% check
from collections.abc import Sequence
from typing import Any
import numpy as np
from gpulab.kernels import Simulation
from gpulab.kernels.simulation.source import read_source
from gpulab.lessons.kernel_checks import Trial, halves, run_trials
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes


def _requested(simulations: Sequence[Simulation], kind: str, array: str = "") -> int:
    """Return the bytes that accesses of a kind request in global memory; ``array`` is the kernel's name for one array, "" means all."""
    return sum(
        a.bytes_requested for s in simulations for a in s.accesses if a.space == "global" and a.kind == kind and array in ("", a.array)
    )


_MATMUL = '''\
def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
'''
_MATMUL_STUB = (
    _MATMUL
    + """\
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total"""
)
_MATMUL_SIZES = (64, 40)
# Bytes for 64 x 64 matrices and tiles of 16 x 16: each of the 16 blocks loads 4 pairs of tiles of 1 KiB; the result has 16 KiB.
_STORED = 16 * 1024
_MOST_MOVED = 16 * 4 * 2 * 1024 + _STORED


def _matmul_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate(_MATMUL_SIZES):
        rng = np.random.default_rng(seed)
        a, b = halves(rng, n, n), halves(rng, n, n)
        blocks = -(-n // 16)
        trials.append(Trial((blocks, blocks), (16, 16), (a, b, np.zeros_like(a)), {2: a @ b}, f"for {n} x {n} matrices"))
    return trials


def check(answer: Any) -> str:
    found = run_trials(answer, _MATMUL_STUB, _matmul_trials)
    count = found[0].totals
    moved = count.global_bytes_moved
    if moved > _MOST_MOVED:
        words = (
            f"The results are right, but {format_bytes(moved)} are moved for 64 x 64 matrices; at most {format_bytes(_MOST_MOVED)} are "
            "allowed."
        )
        if count.global_bytes_requested <= _MOST_MOVED:
            raise Refused(
                f"{words} Your threads ask for {format_bytes(count.global_bytes_requested)}, which is little enough, but a request touches on average "
                f"{count.sectors_per_request:.1f} sectors where 4 are possible. Neighboring tx should take neighboring columns of a, b "
                "and c (as in 04.4)."
            )
        again = _requested(found[:1], "load", read_source(answer).text.parameters[2])
        if again and moved - again <= _MOST_MOVED:
            raise Refused(
                f"{words} {format_bytes(again)} of them are loads of c, to add to it. But c may hold anything before the launch. Begin "
                "the sum at 0, and store it with =."
            )
        stored = _requested(found[:1], "store")
        if stored > 2 * _STORED:  # storing twice is allowed: a zero first, then the sum
            raise Refused(
                f"{words} {format_bytes(stored)} are stored where {format_bytes(_STORED)} are enough: c is written again for each part of "
                "the sum. Add up in a variable, and store it once, at the end."
            )
        raise Refused(f"{words} Let the block bring a tile of a and one of b into shared memory, and use each element 16 times.")
    return f"{format_bytes(moved)} instead of 1.02 MiB: each element that is loaded is used by 16 threads."

# %% wrong: use each element 16 times
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total

# %% wrong: use each element 16 times
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * (b[first + k, j] if first + k < b.shape[0] and j < b.shape[1] else float32(0))
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total

# %% wrong: Add up in a variable, and store it once, at the end
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            if i < c.shape[0] and j < c.shape[1]:
                c[i, j] += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] += total

# %% wrong: 80.0 KiB are stored where 16.0 KiB are enough
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
        if i < c.shape[0] and j < c.shape[1]:
            c[i, j] = total
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total

# %% wrong: neighboring columns of a
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    row = 16 * cuda.blockIdx.y
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[tx, ty] = a[row + tx, first + ty] if row + tx < a.shape[0] and first + ty < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total

# %% wrong: 16.0 KiB of them are loads of c, to add to it
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] += total

# %% wrong: There is a race
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total

# %% wrong: out of an array's bounds
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx]
        tile_b[ty, tx] = b[first + ty, j]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total

# %% wrong: The result is wrong
from gpulab.kernels import cuda, float32


def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else float32(0)
        tile_b[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[tx, k]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total
