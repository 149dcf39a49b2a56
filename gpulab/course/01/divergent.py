"""01.3: count the divergent warps."""

# %% exercise
id = "01.3"
title = "count the divergent warps"
answer_name = "divergent"
loads = ["numba.cuda"]

# %% stub
divergent = [..., ..., ...]  # warps of a, b and c whose lanes go two ways

# %% hint
# A block of 128 threads has four warps: threads 0 to 31, 32 to 63, and so on. In which warps is
# the test true for some lanes and false for others?

# %% hint
# 100 = 3 x 32 + 4. So thread 100 is in the middle of a warp.

# %% solution
divergent = [16, 0, 1]

# %% check
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused


_GRID, _BLOCK = 4, 128


def _divergent_warps() -> list[int]:
    from gpulab.kernels import cuda, simulate  # loads numba where it is installed

    def a(out: Any) -> None:
        """Test whether the thread's number is even."""
        i = cuda.grid(1)
        if i % 2 == 0:
            out[i] = 1

    def b(out: Any) -> None:
        """Test whether the number of the thread's warp is even."""
        i = cuda.grid(1)
        if (i // 32) % 2 == 0:
            out[i] = 1

    def c(out: Any) -> None:
        """Test whether the thread is one of the first hundred."""
        i = cuda.grid(1)
        if i < 100:
            out[i] = 1

    return [simulate(kernel, _GRID, _BLOCK, np.zeros(_GRID * _BLOCK, np.int32)).totals.divergent_branches for kernel in (a, b, c)]


_THREE = "three whole numbers, one for each kernel"
_WARPS = _GRID * _BLOCK // 32


def check(answer: Any) -> str:
    listed = checking.listed(answer)
    if not isinstance(listed, (tuple, list)) or len(listed) != 3:
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects {_THREE}.")
    given = [checking.number(value, "a number of warps") for value in listed]
    for name, mine, right in zip("abc", given, _divergent_warps(), strict=True):
        if mine == right:
            continue
        if mine > _WARPS:
            raise Refused(f"{name}: {mine:g} is more than the {_WARPS} warps of the launch. Count warps, not threads.")
        if name == "a":
            raise Refused("a: even and odd threads are neighbors. Which warps hold both kinds?")
        if name == "b":
            raise Refused("b: half of the warps go one way and half go the other. Is there a warp whose own lanes differ?")
        raise Refused("c: only one warp can hold threads below 100 and threads from 100 on. Threads 96 to 127 are that warp.")
    return "Right: a warp diverges where its own lanes disagree. What other warps do costs it nothing."

# %% wrong: Count warps, not threads
divergent = [256, 256, 100]

# %% wrong: Which warps hold both kinds
divergent = [8, 0, 1]

# %% wrong: half of the warps go one way
divergent = [16, 8, 1]

# %% wrong: Threads 96 to 127
divergent = [16, 0, 16]

# %% wrong: three whole numbers
divergent = 17
