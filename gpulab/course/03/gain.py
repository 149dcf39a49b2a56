"""03.11: what can a GPU gain at most?."""

# %% exercise
id = "03.11"
title = "what can a GPU gain at most?"
answer_name = "gain"

# %% stub
def gain(flops, nbytes, copied, cpu, gpu, link):
    """Return at most how many times as fast the GPU is; cpu and gpu are (FLOP/s, bytes/s), link is bytes/s."""
    ...

# %% hint
# What is the least time that each processor's roofs allow? The gain is the CPU's over the GPU's.

# %% hint
# max(flops / peak, nbytes / bandwidth) on each side; the copies add copied / link to the GPU's.

# %% solution
def gain(flops, nbytes, copied, cpu, gpu, link):
    """Return at most how many times as fast the GPU is; cpu and gpu are (FLOP/s, bytes/s), link is bytes/s."""
    here = max(flops / cpu[0], nbytes / cpu[1])
    there = max(flops / gpu[0], nbytes / gpu[1]) + copied / link
    return here / there

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_ratio

# (FLOP/s, bytes/s) of made-up processors, so that a right answer is right everywhere; the link in bytes/s.
_CPU, _GPU, _LINK = (1e11, 2e10), (6e13, 4e12), 2.5e10
# (what it is, FLOPs, bytes, bytes that must be copied): bound by memory on both; by arithmetic on both; by arithmetic on the CPU alone.
_WORK = (
    ("a sum of two arrays that stay on the GPU", 1e8, 1.2e9, 0.0),
    ("a large matrix product that stays on the GPU", 1e12, 1.2e9, 0.0),
    ("a thin matrix product that stays on the GPU", 1e10, 1e9, 0.0),
    ("a sum of two arrays that begin and end in main memory", 1e8, 1.2e9, 1.2e9),
    ("a large matrix product that begins and ends in main memory", 1e12, 1.2e9, 1.2e9),
    ("a sum of two arrays that begin in main memory, and whose result stays on the GPU", 1e8, 1.2e9, 0.8e9),
)
_SAME = 0.01


def _gain(flops: float, nbytes: float, copied: float) -> float:
    here = max(flops / _CPU[0], nbytes / _CPU[1])
    return here / (max(flops / _GPU[0], nbytes / _GPU[1]) + copied / _LINK)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for what, flops, nbytes, copied in _WORK:
        said = checking.number(ask(f"For {what}", flops, nbytes, copied, _CPU, _GPU, _LINK), "one number, the gain")
        right = _gain(flops, nbytes, copied)
        if math.isclose(said, right, rel_tol=_SAME):
            continue
        raise Refused(f"For {what} you say {said:.3g} times. {_why_gain(said, right, flops, nbytes, copied)}")
    return (
        f"A sum gains at most {format_ratio(_gain(*_WORK[0][1:]))} and a product {format_ratio(_gain(*_WORK[1][1:]))} on these processors; "
        f"with the copies it is {format_ratio(_gain(*_WORK[3][1:]))} and {format_ratio(_gain(*_WORK[4][1:]))}."
    )


def _why_gain(said: float, right: float, flops: float, nbytes: float, copied: float) -> str:
    if math.isclose(said, 1 / right, rel_tol=_SAME):
        return "That is upside down: the gain is the CPU's time over the GPU's."
    if copied and math.isclose(said, _gain(flops, nbytes, 0.0), rel_tol=_SAME):
        return "That leaves out the copies: they take copied / link seconds before and after."
    if math.isclose(said, _GPU[0] / _CPU[0], rel_tol=_SAME):
        return "That is the ratio of the peaks of arithmetic, which counts only where arithmetic binds on both."
    if math.isclose(said, _GPU[1] / _CPU[1], rel_tol=_SAME):
        return "That is the ratio of the bandwidths, which counts only where memory binds on both."
    if copied:
        return "Add the copies to the GPU's time: copied / link seconds."
    return "On each processor the longer of flops / peak and nbytes / bandwidth counts; they need not be bound by the same."

# %% wrong: ratio of the peaks
def gain(flops, nbytes, copied, cpu, gpu, link):
    return gpu[0] / cpu[0]

# %% wrong: ratio of the bandwidths
def gain(flops, nbytes, copied, cpu, gpu, link):
    return gpu[1] / cpu[1]

# %% wrong: leaves out the copies
def gain(flops, nbytes, copied, cpu, gpu, link):
    return max(flops / cpu[0], nbytes / cpu[1]) / max(flops / gpu[0], nbytes / gpu[1])

# %% wrong: upside down
def gain(flops, nbytes, copied, cpu, gpu, link):
    return max(flops / gpu[0], nbytes / gpu[1], copied / link) / max(flops / cpu[0], nbytes / cpu[1])

# %% wrong: the longer of
def gain(flops, nbytes, copied, cpu, gpu, link):
    return (flops / cpu[0] + nbytes / cpu[1]) / (flops / gpu[0] + nbytes / gpu[1] + copied / link)

# %% wrong: whose result stays on the GPU you say 1.24 times. Add the copies to the GPU's time: copied / link seconds.
def gain(flops, nbytes, copied, cpu, gpu, link):
    there = max(flops / gpu[0], nbytes / gpu[1]) + (nbytes / link if copied else 0)
    return max(flops / cpu[0], nbytes / cpu[1]) / there

# %% wrong: one number
def gain(flops, nbytes, copied, cpu, gpu, link):
    return "much"
