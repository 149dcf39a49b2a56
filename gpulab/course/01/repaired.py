"""01.4: repair a kernel that diverges."""

# %% exercise
id = "01.4"
title = "repair a kernel that diverges"
answer_name = "repaired"

# %% stub
def repaired(x, out):
    """As mixed, but no warp diverges; 256 elements, 4 blocks of 64 threads."""
    ...

# %% hint
# A thread need not work on the element that has the thread's own number.

# %% hint
# There are 128 even elements. Let threads 0 to 127, which are whole warps, take one even element
# each. Let the other threads take the odd ones.

# %% hint
# Thread i of the first half takes element 2 * i. Thread i of the second half takes
# 2 * (i - 128) + 1.

# %% solution
from gpulab.kernels import cuda, float32


def repaired(x, out):
    """As mixed, but no warp diverges; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    half = x.size // 2
    if i < half:  # the first two blocks take the even elements
        k = 2 * i
        v = x[k]
        for _ in range(20):
            v = v / (float32(1) + v)
        out[k] = v
    else:  # the other two blocks take the odd ones
        k = 2 * (i - half) + 1
        v = x[k]
        for _ in range(20):
            v = (v + x[k] / v) / float32(2)
        out[k] = v

# %% check
from typing import Any
import numpy as np
from gpulab.errors import GpulabError
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_ratio

_N, _BLOCK = 256, 64


# The results in closed form: 20 rounds of v / (1 + v) give x / (1 + 20 x), and 20 Newton steps give the square root.
def _expected(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.where(np.arange(x.size) % 2 == 0, wide / (1 + 20 * wide), np.sqrt(wide))


def check(answer: Any) -> str:
    from gpulab.kernels import simulate

    if not callable(answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a kernel, a function of x and out.")
    most = 0.0
    for seed in (1, 2):
        x = np.random.default_rng(seed).integers(1, 1000, _N).astype(np.float32)
        kept, out = x.copy(), np.zeros_like(x)
        try:
            s = simulate(answer, _N // _BLOCK, _BLOCK, x, out)
        except GpulabError as error:
            raise Refused(str(error)) from error
        if not s.totals.executed_warps:
            raise NotAttempted
        if s.findings:
            raise Refused(f"The microscope found: {s.findings[0]}")
        if not np.array_equal(x, kept):
            raise Refused("Your kernel changes x. Only out may change.")
        _compare(out, _expected(x))
        if s.totals.divergent_branches:
            raise Refused(
                f"The results are right, but {s.totals.divergent_branches} of {s.totals.branches} tests still send lanes of "
                "one warp two ways. Give neighboring threads the same kind of work, or write it without a branch."
            )
        if s.totals.global_bytes_requested < _WARP_BYTES * s.totals.global_requests:  # no branch is counted for a conditional expression
            raise Refused(
                "The results are right, but some loads or stores still run with only a part of a warp's lanes. A conditional expression "
                "whose arms load diverges too. Load once before it, or give neighboring threads the same kind of work."
            )
        most = s.totals.global_sectors / s.totals.ideal_global_sectors
    cost = (
        f" The price: neighboring threads now touch elements that are apart, so the kernel moves {format_ratio(most)} the fewest possible "
        "sectors (units of 32 bytes). Notebook 04 is about this price."
        if most > 1.01
        else " And neighboring threads still touch neighboring elements."
    )
    return f"No warp diverges, and the results are the same.{cost}"


def _compare(out: np.ndarray, expected: np.ndarray) -> None:
    wrong = np.flatnonzero(~np.isclose(out, expected, rtol=1e-4, atol=0))
    if wrong.size:
        first = int(wrong[0])
        kind = "Even elements take 20 rounds of v / (1 + v)" if first % 2 == 0 else "Odd elements take 20 rounds of (v + x / v) / 2"
        raise Refused(
            f"{wrong.size} of {out.size} results differ; the first is out[{first}]: {out[first]:.4g} instead of {expected[first]:.4g}. {kind}."
        )


_WARP_BYTES = 32 * 4  # bytes of a request in which all 32 lanes access a float32

# %% wrong: tests still send lanes
from gpulab.kernels import cuda, float32


def repaired(x, out):
    i = cuda.grid(1)
    v = x[i]
    if i % 2 == 0:
        for _ in range(20):
            v = v / (float32(1) + v)
    else:
        for _ in range(20):
            v = (v + x[i] / v) / float32(2)
    out[i] = v

# %% wrong: results differ
from gpulab.kernels import cuda, float32


def repaired(x, out):
    i = cuda.grid(1)
    v = x[i]
    if (i // 32) % 2 == 0:
        for _ in range(20):
            v = v / (float32(1) + v)
    else:
        for _ in range(20):
            v = (v + x[i] / v) / float32(2)
    out[i] = v

# %% wrong: out[1]: 0
from gpulab.kernels import cuda, float32


def repaired(x, out):
    i = cuda.grid(1)
    if i < 128:
        v = x[2 * i]
        for _ in range(20):
            v = v / (float32(1) + v)
        out[2 * i] = v

# %% wrong: whose arms load
from gpulab.kernels import cuda


def repaired(x, out):
    i = cuda.grid(1)
    out[i] = x[i] / (1 + 20 * x[i]) if i % 2 == 0 else x[i] ** 0.5

# %% wrong: changes x
from gpulab.kernels import cuda


def repaired(x, out):
    i = cuda.grid(1)
    x[i] = x[i] / (1 + 20 * x[i])

# %% wrong: out[0]: 0
from gpulab.kernels import cuda


def repaired(x, out):
    i = cuda.grid(1)
    y = x[i] / (1 + 20 * x[i])

# %% wrong: 20 rounds of (v + x / v) / 2
from gpulab.kernels import cuda, float32


def repaired(x, out):
    i = cuda.grid(1)
    v = x[i]
    for _ in range(20):
        v = v / (float32(1) + v)
    out[i] = v

# %% wrong: bounds
from gpulab.kernels import cuda


def repaired(x, out):
    i = cuda.grid(1)
    out[2 * i] = x[2 * i] / (1 + 20 * x[2 * i])

# %% wrong: expects a kernel
repaired = [2, -1]
