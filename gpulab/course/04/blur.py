"""04.10: a stencil with its halo."""

# %% exercise
id = "04.10"
title = "a stencil with its halo"
answer_name = "blur"

# %% stub
def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    ...  # cuda.shared.array((18, 18), float32): the block and a border of one

# %% hint
# A tile of 18 x 18 holds the block's elements and their neighbors. It has 324 places, and the
# block has 256 threads.

# %% hint
# Number the places: k from tx + 16 * ty to 324 in steps of 256. Place k lies in row k // 18 and
# column k % 18 of the tile.

# %% hint
# Beyond the edge of a, the tile gets 0: test the four bounds before you load. Then come a barrier
# and the sum of five places of the tile.

# %% solution
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(tx + 16 * ty, 18 * 18, 256):  # 324 places, 256 threads
        y = 16 * cuda.blockIdx.y + k // 18 - 1
        x = 16 * cuda.blockIdx.x + k % 18 - 1
        inside = y >= 0 and y < a.shape[0] and x >= 0 and x < a.shape[1]
        tile[k // 18, k % 18] = a[y, x] if inside else float32(0)
    cuda.syncthreads()
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        across = tile[ty + 1, tx] + tile[ty + 1, tx + 1] + tile[ty + 1, tx + 2]
        out[y, x] = across + tile[ty, tx + 1] + tile[ty + 2, tx + 1]

# %% check
from collections.abc import Sequence
from typing import Any
import numpy as np
from gpulab.kernels import Simulation
from gpulab.kernels.simulation.source import read_source
from gpulab.lessons.kernel_checks import Trial, halves, held, run_trials
from gpulab.lessons.content import Refused


def _loaded(simulations: Sequence[Simulation]) -> int:
    """Return the bytes that were loaded from global memory."""
    return _requested(simulations, "load")


def _requested(simulations: Sequence[Simulation], kind: str, array: str = "") -> int:
    """Return the bytes that accesses of a kind request in global memory; ``array`` is the kernel's name for one array, "" means all."""
    return sum(
        a.bytes_requested for s in simulations for a in s.accesses if a.space == "global" and a.kind == kind and array in ("", a.array)
    )


_BLUR = '''\
def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
'''
_BLUR_SHAPES = ((48, 48), (40, 50), (16, 5))
# Loads for each result: 18 * 18 / (16 * 16) = 1.27 with a tile and its border; up to 5 when neighbors are read from global memory.
_MOST_LOADS = 1.6


def _blur_trials() -> list[Trial]:
    trials = []
    for seed, (rows, columns) in enumerate(_BLUR_SHAPES):
        a = halves(np.random.default_rng(seed), rows, columns)
        wide = np.pad(a, 1)
        sums = a + wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
        grid = (-(-columns // 16), -(-rows // 16))
        trials.append(Trial(grid, (16, 16), (a, held(a)), {1: sums}, f"for {rows} x {columns} elements"))
    return trials


def check(answer: Any) -> str:
    found = run_trials(answer, _BLUR + "    ...", _blur_trials)
    ratio = _loaded(found) / (4 * sum(rows * columns for rows, columns in _BLUR_SHAPES))
    if ratio > _MOST_LOADS:
        again = _requested(found, "load", read_source(answer).text.parameters[1]) / _loaded(found)
        if ratio * (1 - again) <= _MOST_LOADS:
            raise Refused(
                f"The results are right, but {again:.0%} of the loads from global memory are loads of out, to add to it. Add up in a "
                "variable, and store it once, at the end."
            )
        raise Refused(
            f"The results are right, but each element is loaded {ratio:.2f} times from global memory; at most {_MOST_LOADS} are allowed. "
            "Load the block's 16 x 16 elements and a border of one into shared memory first."
        )
    return f"Each element is loaded {ratio:.2f} times on average instead of five: only elements near the edge of a block are loaded by more than one block."

# %% wrong: times from global memory
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        total = a[y, x]
        if y > 0:
            total += a[y - 1, x]
        if y + 1 < a.shape[0]:
            total += a[y + 1, x]
        if x > 0:
            total += a[y, x - 1]
        if x + 1 < a.shape[1]:
            total += a[y, x + 1]
        out[y, x] = total

# %% wrong: are loads of out, to add to it
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(tx + 16 * ty, 18 * 18, 256):  # 324 places, 256 threads
        y = 16 * cuda.blockIdx.y + k // 18 - 1
        x = 16 * cuda.blockIdx.x + k % 18 - 1
        inside = y >= 0 and y < a.shape[0] and x >= 0 and x < a.shape[1]
        tile[k // 18, k % 18] = a[y, x] if inside else float32(0)
    cuda.syncthreads()
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = tile[ty + 1, tx + 1]
        out[y, x] += tile[ty, tx + 1] + tile[ty + 2, tx + 1]
        out[y, x] += tile[ty + 1, tx] + tile[ty + 1, tx + 2]

# %% wrong: There is a race
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(tx + 16 * ty, 18 * 18, 256):  # 324 places, 256 threads
        y = 16 * cuda.blockIdx.y + k // 18 - 1
        x = 16 * cuda.blockIdx.x + k % 18 - 1
        inside = y >= 0 and y < a.shape[0] and x >= 0 and x < a.shape[1]
        tile[k // 18, k % 18] = a[y, x] if inside else float32(0)
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        across = tile[ty + 1, tx] + tile[ty + 1, tx + 1] + tile[ty + 1, tx + 2]
        out[y, x] = across + tile[ty, tx + 1] + tile[ty + 2, tx + 1]

# %% wrong: nothing was written to
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        tile[ty + 1, tx + 1] = a[y, x]
    cuda.syncthreads()
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        across = tile[ty + 1, tx] + tile[ty + 1, tx + 1] + tile[ty + 1, tx + 2]
        out[y, x] = across + tile[ty, tx + 1] + tile[ty + 2, tx + 1]

# %% wrong: out of an array's bounds
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(tx + 16 * ty, 18 * 18, 256):  # 324 places, 256 threads
        y = 16 * cuda.blockIdx.y + k // 18 - 1
        x = 16 * cuda.blockIdx.x + k % 18 - 1
        inside = y >= 0 and y < a.shape[0] and x >= 0 and x < a.shape[1]
        tile[k // 18, k % 18] = a[y, x]
    cuda.syncthreads()
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        across = tile[ty + 1, tx] + tile[ty + 1, tx + 1] + tile[ty + 1, tx + 2]
        out[y, x] = across + tile[ty, tx + 1] + tile[ty + 2, tx + 1]

# %% wrong: The result is wrong
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(tx + 16 * ty, 18 * 18, 256):  # 324 places, 256 threads
        y = 16 * cuda.blockIdx.y + k // 18 - 1
        x = 16 * cuda.blockIdx.x + k % 18 - 1
        inside = y >= 0 and y < a.shape[0] and x >= 0 and x < a.shape[1]
        tile[k // 18, k % 18] = a[y, x] if inside else float32(0)
    cuda.syncthreads()
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        across = tile[ty + 1, tx] + tile[ty + 1, tx + 1] + tile[ty + 1, tx + 2]
        out[y, x] = across + tile[ty + 2, tx + 1]

# %% wrong: The result is wrong for 48 x 48 elements: 2,304 of 2,304 elements.
from gpulab.kernels import cuda, float32


def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbors, 0 beyond the edge; blocks of 16 x 16 threads."""
    tile = cuda.shared.array((18, 18), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(tx + 16 * ty, 18 * 18, 256):  # 324 places, 256 threads
        y = 16 * cuda.blockIdx.y + k // 18 - 1
        x = 16 * cuda.blockIdx.x + k % 18 - 1
        inside = y >= 0 and y < a.shape[0] and x >= 0 and x < a.shape[1]
        tile[k // 18, k % 18] = a[y, x] if inside else float32(0)
    cuda.syncthreads()
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        across = tile[ty + 1, tx] + tile[ty + 1, tx + 1] + tile[ty + 1, tx + 2]
        out[y, x] += across + tile[ty, tx + 1] + tile[ty + 2, tx + 1]
