"""09.7: three that are enough."""

# %% exercise
id = "09.7"
title = "three that are enough"
answer_name = "keep"

# %% stub
keep = (..., ..., ...)  # names from the table

# %% hint
# The three with the largest single gains are not the answer. Look at the part that each of them
# works on.

# %% hint
# Loading, starting and arithmetic are the large parts. Which technique leaves the least of each?

# %% solution
keep = ("data on the device", "CUDA graph", "bfloat16")  # one for each large part

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_MOST_KEPT, _WANTED = 3, 4.0
# The notebook's table: milliseconds of each part of a step, and the share of a part's time that is left with each technique.
PARTS = {"loading": 8.0, "starting": 6.0, "arithmetic": 5.0, "waiting": 1.0}
LEAVES = {
    "data on the device": {"loading": 0.10},
    "prefetch": {"loading": 0.125},
    "CUDA graph": {"starting": 0.10},
    "compile": {"starting": 0.25, "arithmetic": 0.80},
    "fused optimizer": {"starting": 0.80},
    "bfloat16": {"arithmetic": 0.40},
    "fewer waits": {"waiting": 0.10},
}


def check(answer: Any) -> str:
    if not isinstance(answer, (tuple, list, set, frozenset)):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects the names of up to {_MOST_KEPT} techniques.")
    spelled = {name.lower(): name for name in LEAVES}
    names = [spelled.get(name.strip().lower(), name) if isinstance(name, str) else name for name in answer]
    if any(checking.is_stub(name) for name in names):
        raise NotAttempted
    for name in names:
        if not isinstance(name, str) or name not in LEAVES:
            raise Refused(f"{checking.describe(name)} is not a technique of the table; the check expects some of {', '.join(LEAVES)}.")
    if len(set(names)) < len(names):
        raise Refused("One technique is there twice. Name each one once.")
    if len(names) > _MOST_KEPT:
        raise Refused(f"These are {len(names)} techniques; choose at most {_MOST_KEPT}.")
    rest = {part: ms * math.prod(LEAVES[name].get(part, 1.0) for name in names) for part, ms in PARTS.items()}
    speed = sum(PARTS.values()) / sum(rest.values())
    if speed < _WANTED:
        largest = max(rest, key=lambda part: rest[part])
        twice = next((part for part in PARTS if sum(part in LEAVES[name] for name in names) > 1), None)
        both = f" Two of yours work on {twice}, and the second finds little left." if twice == "loading" else ""
        raise Refused(f"Together these give {speed:.2f}x.{both} The largest part that is left is {largest}.")
    return f"{speed:.2f}x with {len(names)} techniques (MODELLED). Together they shorten all three large parts."

# %% wrong: Two of yours work on loading
keep = ("data on the device", "prefetch", "compile")

# %% wrong: The largest part that is left is arithmetic
keep = ("data on the device", "CUDA graph", "compile")

# %% wrong: choose at most 3
keep = ("data on the device", "CUDA graph", "bfloat16", "fewer waits")

# %% wrong: The largest part that is left is loading
keep = ("bfloat16", "CUDA graph", "fewer waits")

# %% wrong: not a technique of the table
keep = ("larger batch", "CUDA graph", "bfloat16")
