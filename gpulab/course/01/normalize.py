"""01.12: take it home: a kernel for any launch."""

# %% exercise
id = "01.12"
title = "take it home: a kernel for any launch"
answer_name = "normalize"

# %% stub
def normalize(x, out):  # in a file of your own, with @cuda.jit above it
    """out[i] = (x[i] - 0.485) / 0.229 for every i, in float32, for any grid and block."""
    ...

# %% hint
# Where there are fewer threads than elements, a thread needs a loop. It starts at its own number.

# %% hint
# cuda.gridsize(1) is the number of threads of the whole launch. As a step of the loop, it gives
# neighboring threads neighboring elements in every round.

# %% hint
# for i in range(cuda.grid(1), x.size, cuda.gridsize(1)): and float32(0.485) in place of 0.485.

# %% solution
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    """out[i] = (x[i] - 0.485) / 0.229 for every i, in float32, for any grid and block."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = (x[i] - float32(0.485)) / float32(0.229)

# %% check
from typing import Any
import numpy as np
from gpulab.errors import GpulabError
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_ratio

# (elements, blocks, threads per block): fewer threads than elements, more threads than elements, and a warp that is nearly empty.
_LAUNCHES = ((1000, 1, 33), (1000, 4, 64), (1000, 40, 32), (7, 3, 32))


def check(answer: Any) -> str:
    from gpulab.kernels import simulate

    if not callable(answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a kernel, a function of x and out.")
    most = 0.0
    for n, blocks, threads in _LAUNCHES:
        x = np.random.default_rng(n + blocks).random(n, dtype=np.float32)
        kept, out = x.copy(), np.full_like(x, np.nan)
        launch = f"normalize[{blocks}, {threads}] with {n:,} elements"
        try:
            s = simulate(answer, blocks, threads, x, out)
        except GpulabError as error:
            raise Refused(str(error)) from error
        if not s.totals.executed_warps:
            raise NotAttempted
        if not np.array_equal(x, kept):
            raise Refused("Your kernel changes x. Only out may change.")
        _refuse_untouched(out, blocks * threads, launch)
        if any(finding.kind == "bounds" for finding in s.findings):
            raise Refused(f"{launch}: some threads have no element, and they read or write past the end. Guard every index with x.size.")
        if s.findings:
            raise Refused(f"{launch}: the microscope found: {s.findings[0]}")
        _refuse_values(x, out, launch)
        times = s.totals.global_bytes_requested / (8 * n)
        if times > _ONCE:
            raise Refused(
                f"{launch}: the results are right, but the kernel moves {format_ratio(times)} the bytes that one load and one store for each "
                "element need, so several threads do the same element. The step of the loop is the number of threads of the whole grid."
            )
        if s.totals.global_bytes_requested < _FULL * 128 * s.totals.global_requests and threads % 32 == 0 and n > blocks * threads:
            lanes = s.totals.global_bytes_requested / (4 * s.totals.global_requests)
            raise Refused(
                f"{launch}: the results are right, but a warp has only {lanes:.2g} of its 32 lanes at work on average. There are more elements "
                "than threads, so give every thread some."
            )
        most = max(most, s.totals.global_sectors / s.totals.ideal_global_sectors)
    price = (
        f" But neighboring threads touch elements that are apart: the kernel moves {format_ratio(most)} the fewest possible sectors (units "
        "of 32 bytes). With a step of cuda.gridsize(1), neighboring threads touch neighboring elements."
        if most > _APART
        else " Neighboring threads touch neighboring elements in every round."
    )
    return f"Right for every launch, and float32 throughout.{price} The usual form of such a kernel is called a grid-stride loop."


_ONCE = 2.6  # ratio to the bytes needed: loading x twice and reading out once gives 2.0, and a third more means repeated work
_FULL = 0.5  # least share of a warp's lanes at work: only the last round and the last warp may have idle lanes
_APART = 1.5  # ratio to the fewest possible sectors: rounds that start inside a sector and a nearly empty warp cost a few more


def _refuse_untouched(out: np.ndarray, threads: int, launch: str) -> None:
    """Refuse if the kernel left elements of ``out`` unwritten."""
    left = np.flatnonzero(np.isnan(out))
    if not left.size:
        return
    if np.array_equal(left, np.arange(threads, out.size)):
        raise Refused(
            f"{launch}: {left.size} of {out.size} results are missing, the first is out[{left[0]}]. There are {threads} threads, so each must do "
            "several elements."
        )
    raise Refused(f"{launch}: {left.size} of {out.size} results are missing, the first is out[{left[0]}]. Which thread should do that one?")


def _refuse_values(x: np.ndarray, out: np.ndarray, launch: str) -> None:
    """Refuse wrong results, and results that only float64 arithmetic gives."""
    wide = (x.astype(np.float64) - 0.485) / 0.229
    wrong = np.flatnonzero(~np.isclose(out, wide, rtol=1e-4, atol=1e-5))
    if wrong.size:
        k = int(wrong[0])
        raise Refused(
            f"{launch}: {wrong.size} of {out.size} results differ; the first is out[{k}]: {out[k]:.4g} instead of {wide[k]:.4g} "
            f"for x[{k}] = {x[k]:.4g}."
        )
    if out.size > _TELLING and any(np.array_equal(out, each) for each in _in_float64(x)):
        raise Refused(
            f"{launch}: the results are right to the last digit, which only float64 arithmetic gives. In numba 0.485 is a float64, "
            "and so is every result that it is used in. Write float32(0.485) and float32(0.229)."
        )


def _in_float64(x: np.ndarray) -> list[np.ndarray]:
    """Return the results of float64 arithmetic: with both constants in float64, with only 0.485, and with only 0.229."""
    mean, std = (float(np.float32(value)) for value in (0.485, 0.229))
    wide = x.astype(np.float64)
    return [((wide - a) / b).astype(np.float32) for a, b in ((0.485, 0.229), (0.485, std), (mean, 0.229))]


_TELLING = 100  # elements: seven of ten float32 results differ from float64's in the last digit, so 100 equal ones are not by chance

# %% wrong: each must do several elements
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = (x[i] - float32(0.485)) / float32(0.229)

# %% wrong: past the end
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    i = cuda.grid(1)
    for _ in range((x.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)):
        out[i] = (x[i] - float32(0.485)) / float32(0.229)
        i += cuda.gridsize(1)

# %% wrong: only float64 arithmetic gives
from numba import cuda


@cuda.jit
def normalize(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = (x[i] - 0.485) / 0.229

# %% wrong: several threads do the same element
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    for i in range(cuda.grid(1), x.size, cuda.blockDim.x):
        out[i] = (x[i] - float32(0.485)) / float32(0.229)

# %% wrong: lanes at work
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    if cuda.grid(1) == 0:
        for i in range(x.size):
            out[i] = (x[i] - float32(0.485)) / float32(0.229)

# %% wrong: only float64 arithmetic gives
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = (x[i] - 0.485) / float32(0.229)

# %% wrong: Which thread should do that one
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    for i in range(cuda.threadIdx.x + 1, x.size, cuda.blockDim.x):
        out[i] = (x[i] - float32(0.485)) / float32(0.229)

# %% wrong: results differ
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = x[i] - float32(0.485) / float32(0.229)

# %% wrong: changes x
from numba import cuda, float32


@cuda.jit
def normalize(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] = (x[i] - float32(0.485)) / float32(0.229)
        out[i] = x[i]

# %% wrong: expects a kernel
normalize = 256
