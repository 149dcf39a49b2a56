"""04.4: from 32 sectors to 4."""

# %% exercise
id = "04.4"
title = "from 32 sectors to 4"
answer_name = "center"

# %% stub
def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    row = cuda.grid(1)
    if row < a.shape[0]:
        for column in range(a.shape[1]):
            out[row, column] = a[row, column] - mean[column]

# %% hint
# Coalescing is about the 32 lanes of a warp at one moment. Which index differs between neighboring
# lanes: the row or the column?

# %% hint
# Neighboring lanes should have neighboring columns. A thread may work on many rows.

# %% hint
# Number the elements: k from cuda.grid(1) to a.size in steps of cuda.gridsize(1); row = k //
# a.shape[1], column = k % a.shape[1].

# %% solution
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    for k in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        row, column = k // a.shape[1], k % a.shape[1]
        out[row, column] = a[row, column] - mean[column]

# %% check
from typing import Any
import numpy as np
from gpulab.kernels import Simulation
from gpulab.lessons.kernel_checks import LEAST_LANES, Trial, halves, held, run_trials
from gpulab.lessons.content import Refused


_CENTER = '''\
def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
'''
_CENTER_STUB = (
    _CENTER
    + """\
    row = cuda.grid(1)
    if row < a.shape[0]:
        for column in range(a.shape[1]):
            out[row, column] = a[row, column] - mean[column]"""
)
_MOST_SECTORS = 4.05
_CENTER_SHAPES = ((128, 64), (100, 96), (33, 256))  # the columns are multiples of 32, so each warp can stay in one row; requests are counted
_ONCE = 1.5  # stores of each result: if each of two blocks computes all rows, there are 2
_UNEVEN_SHAPE = (70, 50)  # a warp that takes neighbors continues in the next row, so only the results are checked


def _center_trials() -> list[Trial]:
    trials = []
    for seed, (rows, columns) in enumerate((*_CENTER_SHAPES, _UNEVEN_SHAPE)):
        rng = np.random.default_rng(seed)
        a, mean = halves(rng, rows, columns), halves(rng, columns)
        words = f"for {rows} x {columns} elements in blocks of 64 threads"
        trials.append(Trial(-(-rows // 64), 64, (a, mean, held(a)), {2: a - mean}, words))
    return trials


def check(answer: Any) -> str:
    found = run_trials(answer, _CENTER_STUB, _center_trials)[: len(_CENTER_SHAPES)]
    worst = max(s.totals.sectors_per_request or 0.0 for s in found)
    if worst > _MOST_SECTORS:
        raise Refused(
            f"The results are right, but a request touches on average {worst:.1f} sectors; 4 are possible. Look at one warp: the 32 lanes that run "
            "the same line together should take 32 neighbors. The order in which one thread takes its own elements does not matter."
        )
    lanes = min(s.totals.global_bytes_requested / 4 / max(s.totals.global_requests, 1) for s in found)
    if lanes < LEAST_LANES:
        raise Refused(
            f"The results are right, but only {lanes:.1f} of a warp's 32 lanes take part in a request. The sectors are few because the lanes "
            "are few. Let all threads of the launch share the work."
        )
    stored = max(_stored(s) / (4 * rows * columns) for s, (rows, columns) in zip(found, _CENTER_SHAPES, strict=True))
    if stored > _ONCE:
        raise Refused(
            f"The results are right, and a request touches {worst:.1f} sectors. But each result is stored {stored:.3g} times. Once is enough: "
            "does each block work on elements of its own? See cuda.grid and cuda.gridsize."
        )
    return f"{worst:.1f} sectors for each request, as few as 32 floats can take: the lanes of a warp take neighbors."


def _stored(s: Simulation) -> int:
    """Return the bytes that were stored to global memory."""
    return sum(a.bytes_requested for a in s.accesses if (a.space, a.kind) == ("global", "store"))

# %% wrong: Let all threads of the launch share
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    warp, lane = cuda.grid(1) // 32, cuda.grid(1) % 32
    if lane < 4:
        for row in range(warp, a.shape[0], cuda.gridsize(1) // 32):
            for column in range(lane, a.shape[1], 4):
                out[row, column] = a[row, column] - mean[column]

# %% wrong: sectors; 4 are possible
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    row = cuda.grid(1)
    if row < a.shape[0]:
        for k in range(a.shape[1]):
            column = a.shape[1] - 1 - k
            out[row, column] = a[row, column] - mean[column]

# %% wrong: sectors; 4 are possible
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    each = (a.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    first = each * cuda.grid(1)
    for k in range(first, min(first + each, a.size)):
        row, column = k // a.shape[1], k % a.shape[1]
        out[row, column] = a[row, column] - mean[column]

# %% wrong: The result is wrong
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    k = cuda.grid(1)
    if k < a.size:
        row, column = k // a.shape[1], k % a.shape[1]
        out[row, column] = a[row, column] - mean[column]

# %% wrong: The result is wrong for 70 x 50 elements in blocks of 64 threads: 1,260 of 3,500 elements
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    warp, lane = cuda.grid(1) // 32, cuda.grid(1) % 32
    for row in range(warp, a.shape[0], cuda.gridsize(1) // 32):
        for k in range(a.shape[1] // 32):
            column = 32 * k + lane
            out[row, column] = a[row, column] - mean[column]

# %% wrong: The result is wrong for 128 x 64 elements
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    for k in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        row, column = k // a.shape[1], k % a.shape[1]
        out[row, column] += a[row, column] - mean[column]

# %% wrong: out of an array's bounds
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    column = cuda.grid(1)
    for row in range(a.shape[0]):
        out[row, column] = a[row, column] - mean[column]

# %% wrong: Your kernel changes a
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    for k in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        row, column = k // a.shape[1], k % a.shape[1]
        a[row, column] -= mean[column]
        out[row, column] = a[row, column]

# %% wrong: each result is stored 2 times
from gpulab.kernels import cuda, float32


def center(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
    for row in range(a.shape[0]):
        for column in range(cuda.threadIdx.x, a.shape[1], cuda.blockDim.x):
            out[row, column] = a[row, column] - mean[column]
