"""04.7: a barrier for all."""

# %% exercise
id = "04.7"
title = "a barrier for all"
answer_name = "rotate"

# %% stub
def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i < x.size:
        tile[t] = x[i]
        cuda.syncthreads()
        out[i] = tile[(t + 1) % size]

# %% hint
# In the last block some threads have no element. Do they reach the barrier?

# %% hint
# A barrier waits for all threads of the block, so it stands outside every if whose condition
# differs between them.

# %% hint
# Two ifs, and cuda.syncthreads() between them.

# %% solution
from gpulab.kernels import cuda, float32


def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = tile[(t + 1) % size]

# %% check
import ast
from typing import Any
import numpy as np
from gpulab.kernels.simulation.source import read_source
from gpulab.lessons.kernel_checks import Trial, halves, held, run_trials, totals


# If a kernel has no block-wide barrier and no race is found, no warp reads from shared memory what another warp wrote.
_NO_BARRIER = "Right, and without a barrier: no warp reads from shared memory what another warp wrote."
_ROTATE = '''\
def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
'''
_ROTATE_STUB = (
    _ROTATE
    + """\
    if i < x.size:
        tile[t] = x[i]
        cuda.syncthreads()
        out[i] = tile[(t + 1) % size]"""
)


def _rotate_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate((128, 100, 65, 30)):
        x = halves(np.random.default_rng(seed), n)
        turned = np.concatenate([np.roll(x[k : k + 64], -1) for k in range(0, n, 64)])
        trials.append(Trial(-(-n // 64), 64, (x, held(x)), {1: turned}, f"for {n} elements"))
    return trials


def check(answer: Any) -> str:
    found = run_trials(answer, _ROTATE_STUB, _rotate_trials)
    if not totals(found, "barriers"):
        return _NO_BARRIER
    early = any(isinstance(node, ast.Return) for node in ast.walk(read_source(answer).text.tree))
    ended = " (or have ended before it)" if early else ""
    return f"All threads of a block reach the barrier{ended}, also those without an element, so every write comes before its read."

# %% wrong: There is a race
from gpulab.kernels import cuda, float32


def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i < x.size:
        tile[t] = x[i]
        out[i] = tile[(t + 1) % size]

# %% wrong: barrier is not reached by all threads
from gpulab.kernels import cuda, float32


def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i < x.size:
        tile[t] = x[i]
        cuda.syncthreads()
        out[i] = tile[(t + 1) % 64]

# %% wrong: nothing was written to
from gpulab.kernels import cuda, float32


def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = tile[(t + 1) % 64]

# %% wrong: The result is wrong
from gpulab.kernels import cuda, float32


def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = tile[(t + size - 1) % size]

# %% wrong: The result is wrong for 128 elements: 128 of 128 elements.
from gpulab.kernels import cuda, float32


def rotate(x, out):
    """Move the elements of each block of 64 one place to the left, the first to the end."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] += tile[(t + 1) % size]
