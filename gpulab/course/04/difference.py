"""04.2: stay inside."""

# %% exercise
id = "04.2"
title = "stay inside"
answer_name = "difference"

# %% stub
def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i + 1] - x[i]

# %% hint
# The guard lets the thread of the last element through. Which element of x does it read?

# %% hint
# The last element of out has to be set as well, by a thread that reads nothing beyond x.

# %% hint
# if i < x.size - 1: ... elif i == x.size - 1: out[i] = 0

# %% solution
from gpulab.kernels import cuda, float32


def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
    if i < x.size - 1:
        out[i] = x[i + 1] - x[i]
    elif i == x.size - 1:
        out[i] = 0

# %% check
from typing import Any
import numpy as np
from gpulab.lessons.kernel_checks import Trial, halves, held, run_trials


_DIFFERENCE = '''\
def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
'''
_DIFFERENCE_STUB = _DIFFERENCE + "    if i < x.size:\n        out[i] = x[i + 1] - x[i]"


def _difference_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate((100, 256, 1000, 1)):
        x = halves(np.random.default_rng(seed), n)
        trials.append(Trial(-(-n // 128), 128, (x, held(x)), {1: np.append(np.diff(x), 0)}, f"for {n:,} elements"))
    return trials


def check(answer: Any) -> str:
    run_trials(answer, _DIFFERENCE_STUB, _difference_trials)
    return (
        "No access is out of bounds at four sizes, and every element is right. The guard fits what a thread reads, not only what it writes."
    )

# %% wrong: out of an array's bounds
from gpulab.kernels import cuda, float32


def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
    out[i] = x[i + 1] - x[i]

# %% wrong: 77, and 0 is right
from gpulab.kernels import cuda, float32


def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
    if i < x.size - 1:
        out[i] = x[i + 1] - x[i]

# %% wrong: out of an array's bounds
from gpulab.kernels import cuda, float32


def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
    if i < 256:
        out[i] = x[(i + 1) % 256] - x[i]

# %% wrong: The result is wrong
from gpulab.kernels import cuda, float32


def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
    if 0 < i < x.size:
        out[i] = x[i] - x[i - 1]

# %% wrong: It takes 1 argument;
def difference(x):
    pass
