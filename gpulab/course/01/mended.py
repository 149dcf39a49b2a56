"""01.4: mend a kernel that diverges."""

# %% exercise
id = "01.4"
title = "mend a kernel that diverges"
answer_name = "mended"

# %% stub
def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    ...

# %% hint
# A thread need not work on the element of its own number.

# %% hint
# There are 128 even elements. Let threads 0 to 127, which are whole warps, take one each, and the
# other threads the odd ones.

# %% hint
# Thread i of the first half takes element 2 * i; thread i of the second half takes 2 * (i - 128)
# + 1.

# %% solution
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    half = x.size // 2
    if i < half:  # the first two blocks take the even elements
        k = 2 * i
        out[k] = 2 * x[k]
    else:  # the other two the odd ones
        k = 2 * (i - half) + 1
        out[k] = -x[k]

# %% check
from typing import Any
import numpy as np
from gpulab.errors import GpulabError
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_ratio

_N, _BLOCK = 256, 64


def _expected(x: np.ndarray) -> np.ndarray:
    even = np.arange(x.size) % 2 == 0
    return np.where(even, 2 * x, -x)


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
            raise Refused("Your kernel changes x; only out may change.")
        _compare(out, _expected(x))
        if s.totals.divergent_branches:
            raise Refused(
                f"The results are right, but {s.totals.divergent_branches} of {s.totals.branches} tests still send lanes of "
                "one warp two ways. Give neighbouring threads the same kind of work, or write it without a branch."
            )
        if s.totals.global_bytes_requested < _WARP_BYTES * s.totals.global_requests:  # a conditional expression is counted as no branch
            raise Refused(
                "The results are right, but some loads or stores still run with a part of a warp's lanes: a conditional expression whose "
                "arms load goes both ways too. Load once before it, or give neighbouring threads the same kind of work."
            )
        most = s.totals.global_sectors / s.totals.ideal_global_sectors
    cost = (
        f" The price: neighbouring threads now touch elements that are apart, and {format_ratio(most)} the fewest possible sectors move. "
        "Notebook 04 is about such prices."
        if most > 1.01
        else " And neighbouring threads still touch neighbouring elements."
    )
    return f"No warp diverges, and the results are the same.{cost}"


def _compare(out: np.ndarray, expected: np.ndarray) -> None:
    wrong = np.flatnonzero(out != expected)
    if wrong.size:
        first = int(wrong[0])
        raise Refused(
            f"{wrong.size} of {out.size} results differ; the first is out[{first}]: {out[first]:g} instead of {expected[first]:g}. "
            "Elements of even number are doubled, the others change their sign."
        )


_WARP_BYTES = 32 * 4  # what a request asks for where every lane wants its float32

# %% wrong: tests still send lanes
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = 2 * x[i]
    else:
        out[i] = -x[i]

# %% wrong: results differ
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    if (i // 32) % 2 == 0:
        out[i] = 2 * x[i]
    else:
        out[i] = -x[i]

# %% wrong: out[1]: 0
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    if i < 128:
        out[2 * i] = 2 * x[2 * i]

# %% wrong: whose arms load
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    out[i] = 2 * x[i] if i % 2 == 0 else -x[i]

# %% wrong: changes x
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    x[i] = 2 * x[i]

# %% wrong: out[0]: 0
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    y = 2 * x[i]

# %% wrong: bounds
from gpulab.kernels import cuda


def mended(x, out):
    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""
    i = cuda.grid(1)
    out[2 * i] = 2 * x[2 * i]

# %% wrong: expects a kernel
mended = [2, -1]
