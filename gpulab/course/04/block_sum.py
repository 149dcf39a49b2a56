"""04.6: the missing barrier."""

# %% exercise
id = "04.6"
title = "the missing barrier"
answer_name = "block_sum"

# %% stub
def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        if t < step:
            tile[t] += tile[t + step]
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]

# %% hint
# Another thread writes tile[t + step]. What makes sure that it has written before you read?

# %% hint
# Two places: between filling the tile and the first step, and between one step and the next.

# %% hint
# cuda.syncthreads() before the loop, and inside it after the if, where all threads pass.

# %% solution
from gpulab.kernels import cuda, float32


def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]

# %% check
from typing import Any
import numpy as np
from gpulab.lessons.kernel_checks import Trial, halves, run_trials, totals


_SUM = '''\
def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
'''
_SUM_LOOP = "    for step in ({steps}):\n        if t < step:\n            tile[t] += tile[t + step]\n{inside}"
_STEPS = "128, 64, 32, 16, 8, 4, 2, 1"
_SUM_END = "    if t == 0:\n        sums[cuda.blockIdx.x] = tile[0]"
# If a kernel has no block-wide barrier and no race is found, no warp reads from shared memory what another warp wrote.
_NO_BARRIER = "Right, and without a barrier: no warp reads from shared memory what another warp wrote."


def _sum_text(before: str = "", inside: str = "", steps: str = _STEPS) -> str:
    return _SUM + before + _SUM_LOOP.format(steps=steps, inside=inside) + _SUM_END


def _sum_trials() -> list[Trial]:
    trials = []
    for seed, blocks in enumerate((1, 5)):
        x = halves(np.random.default_rng(seed), 256 * blocks)
        trials.append(
            Trial(
                blocks,
                256,
                (x, np.zeros(blocks, np.float32)),
                {1: x.reshape(blocks, 256).sum(1)},
                f"with {blocks} block{'s' if blocks != 1 else ''}",
            )
        )
    return trials


def check(answer: Any) -> str:
    found = run_trials(answer, _sum_text(), _sum_trials)
    if not totals(found, "barriers"):
        return _NO_BARRIER
    return (
        "No race is left: each thread waits before it reads what another thread wrote, and before it overwrites what another still reads."
    )

# %% wrong: There is a race
from gpulab.kernels import cuda, float32


def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        if t < step:
            tile[t] += tile[t + step]
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]

# %% wrong: barrier is not reached by all threads
from gpulab.kernels import cuda, float32


def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        if t < step:
            tile[t] += tile[t + step]
            cuda.syncthreads()
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]

# %% wrong: The result is wrong
from gpulab.kernels import cuda, float32


def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    for step in (128, 64, 32, 16, 8, 4, 2):
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]

# %% wrong: There is a race
from gpulab.kernels import cuda, float32


def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncwarp()
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncwarp()
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]

# %% wrong: is not called, so it does nothing
from gpulab.kernels import cuda, float32


def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]
