"""04.12: softmax of a row."""

# %% exercise
id = "04.12"
title = "softmax of a row"
answer_name = "softmax"

# %% stub
def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    ...  # math.exp, max, and two reductions as in 04.6

# %% hint
# Three parts: the largest element, the sum of the exponentials, the quotients. The first two are
# reductions of the block.

# %% hint
# Each thread first takes elements t, t + 128, t + 256, ... alone. Then the 128 results are combined
# in shared memory, as in 04.6.

# %% hint
# If you use one tile for both reductions, all threads must have read the largest before any thread
# overwrites it.

# %% solution
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, 0]
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], 128):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest) / tile[0]

# %% check
from collections.abc import Sequence
from typing import Any
import numpy as np
from gpulab.errors import GpulabError
from gpulab.kernels import Simulation, compile_python
from gpulab.lessons.kernel_checks import LEAST_LANES, Trial, held, run_trials, totals
from gpulab.lessons.content import Refused
from gpulab.units import plural


def _loaded(simulations: Sequence[Simulation]) -> int:
    """Return the bytes that were loaded from global memory."""
    return _requested(simulations, "load")


def _requested(simulations: Sequence[Simulation], kind: str, array: str = "") -> int:
    """Return the bytes that accesses of a kind request in global memory; ``array`` is the kernel's name for one array, "" means all."""
    return sum(
        a.bytes_requested for s in simulations for a in s.accesses if a.space == "global" and a.kind == kind and array in ("", a.array)
    )


_SOFTMAX = '''\
def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
'''
# (rows, columns, the value that the elements are near, the words that a refusal adds about such rows)
_SOFTMAX_ROWS = (
    (3, 1000, 0, ""),
    (2, 100, 0, ""),
    (2, 320, 1000, "whose exponentials overflow unless the largest is subtracted first"),
    (2, 200, -1000, "whose exponentials all become 0 unless the largest is subtracted first: it is one of the row's elements, and not 0"),
)


def _softmax_trials() -> list[Trial]:
    trials = []
    for seed, (rows, columns, near, why) in enumerate(_SOFTMAX_ROWS):
        x = np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32) + np.float32(near)
        words = f"for rows of elements near {near:,}, {why}" if why else f"for rows of {columns} elements"
        wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        # exp(x - (largest + log(sum))) is right as well. Near 1,000 and -1,000, float32 numbers are 6e-5 apart, hence the wider tolerance.
        close = 1e-4 if near else 1e-5
        trials.append(Trial(rows, 128, (x, held(x)), {1: wide / wide.sum(1, keepdims=True)}, words, close))
    return trials


def check(answer: Any) -> str:
    found = run_trials(answer, _SOFTMAX + "    ...", _softmax_trials)
    # The most load requests: three walks over each row, with one request for every 32 elements. Each walk may make up to four more, since
    # the block's four warps may be partly active at the row's end.
    most = 3 * sum(rows * (columns // 32 + 4) for rows, columns, *_ in _SOFTMAX_ROWS)
    loads = totals(found, "global_load_requests")
    walks = _loaded(found) / (4 * sum(rows * columns for rows, columns, *_ in _SOFTMAX_ROWS))
    if loads > most:
        words = f"The results are right, but warps load {loads:,} times; three walks over the rows need at most {most:,}."
        if _loaded(found) / 4 / loads >= LEAST_LANES and walks < _MANY_WALKS:
            raise Refused(
                f"{words} Your warps share the row, but they walk over it {walks:.1f} times, since each reading of x or y counts. In a walk, read an "
                "element once, into a variable, and keep the exponential in one until you have stored it and added it."
            )
        raise Refused(f"{words} Share the row among the block: thread t takes elements t, t + 128, t + 256, ...")
    right = "Right, also where exponentials would overflow; each row is loaded"
    if round(walks) <= 1:
        return f"{right} once, and kept.{_wide(answer)}"
    return f"{right} {walks:.0f} times. Kept in shared memory it would be once.{_wide(answer)}"


_MANY_WALKS = 20  # a block that shares the row reads it a few times; if each thread reads the whole row, 128 times for each walk


def _wide(answer: Any) -> str:
    """Return a remark on float64 arithmetic in the compiled kernel; "" if there is none or if the kernel cannot be compiled here."""
    x = np.zeros((1, 128), np.float32)
    try:
        ptx = compile_python(answer, x, x.copy()).ptx
    except GpulabError:
        return ""
    # PTX instructions that convert to float64 or compute in it have the type in their name.
    found = sum(".f64" in line and not line.strip().startswith((".reg", ".param")) for line in ptx.splitlines())
    if not found:
        return ""
    return (
        f" But {plural(found, 'line')} of its PTX {'is' if found == 1 else 'are'} float64. A bare constant such as 0.0 or 1 causes "
        "that: write float32(0) or float32(1)."
    )

# %% wrong: overflow unless the largest is subtracted
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, 0]
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = float32(0)
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], 128):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest) / tile[0]

# %% wrong: and not 0
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = float32(0)
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], 128):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest) / tile[0]

# %% wrong: There is a race
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, 0]
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    total = float32(0)
    for k in range(t, x.shape[1], 128):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest) / tile[0]

# %% wrong: The result is wrong
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, 0]
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], 128):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest) / total

# %% wrong: Share the row among the block
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    row = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        largest = x[row, 0]
        for k in range(x.shape[1]):
            largest = max(largest, x[row, k])
        total = float32(0)
        for k in range(x.shape[1]):
            total += math.exp(x[row, k] - largest)
        for k in range(x.shape[1]):
            y[row, k] = math.exp(x[row, k] - largest) / total

# %% wrong: each reading of x or y counts
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, 0]
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest)
        total += y[row, k]
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = y[row, k] / tile[0]

# %% wrong: Your kernel changes x
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, 0]
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = tile[0]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t, x.shape[1], 128):
        part = math.exp(x[row, k] - largest)
        total += part
        x[row, k] = part
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = x[row, k] / tile[0]

# %% wrong: Share the row among the block
import math

from gpulab.kernels import cuda, float32


def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
    row = cuda.blockIdx.x
    largest, total = x[row, 0], float32(0)
    for k in range(x.shape[1]):
        largest = max(largest, x[row, k])
    for k in range(x.shape[1]):
        total += math.exp(x[row, k] - largest)
    for k in range(cuda.threadIdx.x, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest) / total
