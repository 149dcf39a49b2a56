"""04.8: a running sum."""

# %% exercise
id = "04.8"
title = "a running sum"
answer_name = "scan"

# %% stub
def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    ...  # cuda.shared.array(128, float32), cuda.syncthreads()

# %% hint
# After the step of 1, a place holds the sum of up to 2 elements: its own and the one before. After
# the step of 2 it holds the sum of up to 4, after the step of 4 of up to 8, and so on.

# %% hint
# In each step a thread reads the number that lies `step` places before its own, and adds it to its
# own. Which thread may still have to read what you overwrite?

# %% hint
# Read into a variable, wait, add it to your place, wait. Seven steps: 1, 2, 4, ... 64.

# %% solution
from gpulab.kernels import cuda, float32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    tile = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < 128:
        before = tile[t - step] if t >= step else float32(0)
        cuda.syncthreads()  # all have read before anyone writes
        tile[t] += before
        cuda.syncthreads()
        step *= 2
    if i < x.size:
        out[i] = tile[t]

# %% check
from collections.abc import Sequence
from typing import Any
import numpy as np
from gpulab.kernels import Simulation
from gpulab.lessons.kernel_checks import LEAST_LANES, Trial, halves, held, run_trials, totals
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes


def _loaded(simulations: Sequence[Simulation]) -> int:
    """Return the bytes that were loaded from global memory."""
    return _requested(simulations, "load")


def _requested(simulations: Sequence[Simulation], kind: str, array: str = "") -> int:
    """Return the bytes that accesses of a kind request in global memory; ``array`` is the kernel's name for one array, "" means all."""
    return sum(
        a.bytes_requested for s in simulations for a in s.accesses if a.space == "global" and a.kind == kind and array in ("", a.array)
    )


_SCAN = '''\
def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
'''
_SCAN_SIZES = (128, 384, 200)
# The most requests of a block to shared memory. Seven steps of three accesses by four warps, with the first store and the last load,
# make fewer than 100. One thread that adds everything makes about 400. If each thread adds all elements before its own, about 320 are made.
_MOST_SHARED = 200


def _scan_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate(_SCAN_SIZES):
        x = halves(np.random.default_rng(seed), n)
        sums = np.concatenate([np.cumsum(x[k : k + 128]) for k in range(0, n, 128)])
        trials.append(Trial(-(-n // 128), 128, (x, held(x)), {1: sums}, f"for {n} elements"))
    return trials


def check(answer: Any) -> str:
    found = run_trials(answer, _SCAN + "    ...", _scan_trials)
    needed = 4 * sum(_SCAN_SIZES)
    if _loaded(found) > needed:
        raise Refused(
            f"The results are right, but {format_bytes(_loaded(found))} are loaded from global memory where {format_bytes(needed)} would "
            "be enough. Load each element once, and exchange the numbers in shared memory."
        )
    lanes = _loaded(found) / 4 / max(totals(found, "global_load_requests"), 1)
    if lanes < LEAST_LANES:
        raise Refused(
            f"The results are right, but on average only {lanes:.1f} of a warp's 32 lanes load, so one thread makes up to 127 additions in a "
            "row while the others wait. Let each thread load one element; then all 128 threads add in seven steps."
        )
    shared, blocks = totals(found, "shared_requests"), sum(-(-n // 128) for n in _SCAN_SIZES)
    if shared > _MOST_SHARED * blocks:
        raise Refused(
            f"The results are right, but a block makes {shared / blocks:.0f} requests to shared memory; seven steps need about 90. If one "
            "thread adds everything, or if each thread walks over all that lies before it, the last thread makes 127 additions in a row. "
            "In each step every thread adds *one* place: the one that lies 1, 2, 4, ... places before its own."
        )
    return f"Each element is loaded once, and a block makes {shared / blocks:.0f} requests to shared memory. For 128 elements, seven steps are enough."

# %% wrong: There is a race
from gpulab.kernels import cuda, float32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    tile = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < 128:
        if t >= step:
            tile[t] += tile[t - step]
        cuda.syncthreads()
        step *= 2
    if i < x.size:
        out[i] = tile[t]

# %% wrong: Load each element once
from gpulab.kernels import cuda, float32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    i = cuda.grid(1)
    if i < x.size:
        total = float32(0)
        for k in range(128 * cuda.blockIdx.x, i + 1):
            total += x[k]
        out[i] = total

# %% wrong: 127 additions in a row
from gpulab.kernels import cuda, float32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    tile = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    if t == 0:
        for k in range(1, 128):
            tile[k] += tile[k - 1]
    cuda.syncthreads()
    if i < x.size:
        out[i] = tile[t]

# %% wrong: if each thread walks over all that lies before it
from gpulab.kernels import cuda, float32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    tile = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    total = float32(0)
    for k in range(t + 1):
        total += tile[k]
    if i < x.size:
        out[i] = total

# %% wrong: The result is wrong
from gpulab.kernels import cuda, float32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    tile = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < 64:
        before = tile[t - step] if t >= step else float32(0)
        cuda.syncthreads()
        tile[t] += before
        cuda.syncthreads()
        step *= 2
    if i < x.size:
        out[i] = tile[t]

# %% wrong: only 1.0 of a warp's 32 lanes load
from gpulab.kernels import cuda, float32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t == 0:
        total = float32(0)
        for k in range(i, min(i + 128, x.size)):
            total += x[k]
            out[k] = total

# %% wrong: The result is wrong for 128 elements: 1
from gpulab.kernels import cuda, float32, int32


def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
    tile = cuda.shared.array(128, int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < 128:
        before = tile[t - step] if t >= step else float32(0)
        cuda.syncthreads()
        tile[t] += before
        cuda.syncthreads()
        step *= 2
    if i < x.size:
        out[i] = tile[t]
