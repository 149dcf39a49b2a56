"""03.11: what can a GPU gain at most?"""

# %% exercise
id = "03.11"
title = "what can a GPU gain at most?"
answer_name = "gain"

# %% stub
def gain(flops, nbytes, copied, cpu, gpu, link):
    """Return the largest possible speed-up. cpu and gpu: (FLOP/s, bytes/s); link: bytes/s."""
    ...

# %% hint
# What is the least time on each processor? The speed-up is the CPU's time divided by the GPU's.

# %% hint
# The least time is max(flops / peak, nbytes / bandwidth). The copies add copied / link seconds to
# the GPU's time.

# %% solution
def gain(flops, nbytes, copied, cpu, gpu, link):
    """Return the largest possible speed-up. cpu and gpu: (FLOP/s, bytes/s); link: bytes/s."""
    here = max(flops / cpu[0], nbytes / cpu[1])
    there = max(flops / gpu[0], nbytes / gpu[1]) + copied / link
    return here / there

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_ratio

# (FLOP/s, bytes/s) of made-up processors, so that a right answer is right everywhere; the link in bytes/s. It is slower than the CPU's
# memory, so the sum that starts and ends in main memory has a speed-up below 1.
_CPU, _GPU, _LINK = (1e11, 2e10), (6e13, 4e12), 1.6e10
# (description, FLOPs, bytes, bytes that must be copied). Without copies: memory-bound on both processors, compute-bound on both, and
# compute-bound on the CPU alone. With copies: the first two again, and last the sum whose result is not copied back.
_WORK = (
    ("a sum of two arrays that stay on the GPU", 1e8, 1.2e9, 0.0),
    ("a large matrix product that stays on the GPU", 1e12, 1.2e9, 0.0),
    ("a thin matrix product that stays on the GPU", 1e10, 1e9, 0.0),
    ("a sum of two arrays that start and end in main memory", 1e8, 1.2e9, 1.2e9),
    ("a large matrix product that starts and ends in main memory", 1e12, 1.2e9, 1.2e9),
    ("a sum of two arrays that start in main memory and whose result stays on the GPU", 1e8, 1.2e9, 0.8e9),
)
_SAME = 0.01


def _gain(flops: float, nbytes: float, copied: float) -> float:
    here = max(flops / _CPU[0], nbytes / _CPU[1])
    return here / (max(flops / _GPU[0], nbytes / _GPU[1]) + copied / _LINK)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for what, flops, nbytes, copied in _WORK:
        given = checking.number(ask(f"For {what}", flops, nbytes, copied, _CPU, _GPU, _LINK), "one number, the speed-up")
        right = _gain(flops, nbytes, copied)
        if math.isclose(given, right, rel_tol=_SAME):
            continue
        raise Refused(f"For {what} your function returns {given:.3g}. {_why_gain(given, right, flops, nbytes, copied)}")
    return (
        f"On these processors the speed-up of a sum is at most {format_ratio(_gain(*_WORK[0][1:]))}, that of a product "
        f"{format_ratio(_gain(*_WORK[1][1:]))}. With the copies it is {format_ratio(_gain(*_WORK[3][1:]))} and {format_ratio(_gain(*_WORK[4][1:]))}."
    )


def _why_gain(given: float, right: float, flops: float, nbytes: float, copied: float) -> str:
    if math.isclose(given, 1 / right, rel_tol=_SAME):
        return "That is upside down: the speed-up is the CPU's time divided by the GPU's."
    if math.isclose(given, 100 * right, rel_tol=_SAME):
        return "That is in percent: return the ratio of the two times itself."
    if copied and math.isclose(given, _gain(flops, nbytes, 0.0), rel_tol=_SAME):
        return "That leaves out the copies, which take copied / link seconds."
    if copied and math.isclose(given, _gain(flops, nbytes, 2 * copied), rel_tol=_SAME):
        return "That counts the copies twice: copied is the sum of the bytes of both directions."
    if math.isclose(given, _GPU[0] / _CPU[0], rel_tol=_SAME):
        return "That is the ratio of the peaks. It is right only where the work is compute-bound on both processors."
    if math.isclose(given, _GPU[1] / _CPU[1], rel_tol=_SAME):
        return "That is the ratio of the bandwidths. It is right only where the work is memory-bound on both processors."
    if math.isclose(given, _gain(flops, nbytes, nbytes), rel_tol=_SAME):
        return "That copies all bytes of the work: only the `copied` bytes travel over the link."
    if given == 1 and right < 1:
        return "A speed-up can be below 1, where the GPU takes longer than the CPU. Return the ratio of the two times itself."
    if copied:
        return "Copies and work follow each other: add copied / link seconds to the GPU's time."
    return "On each processor the longer of flops / peak and nbytes / bandwidth counts. The two processors need not have the same limit."

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

# %% wrong: whose result stays on the GPU your function returns 0.797. That copies all bytes of the work
def gain(flops, nbytes, copied, cpu, gpu, link):
    there = max(flops / gpu[0], nbytes / gpu[1]) + (nbytes / link if copied else 0)
    return max(flops / cpu[0], nbytes / cpu[1]) / there

# %% wrong: that stay on the GPU your function returns 0.797. That copies all bytes of the work
def gain(flops, nbytes, copied, cpu, gpu, link):
    here = max(flops / cpu[0], nbytes / cpu[1])
    return here / (max(flops / gpu[0], nbytes / gpu[1]) + nbytes / link)

# %% wrong: can be below 1
def gain(flops, nbytes, copied, cpu, gpu, link):
    here = max(flops / cpu[0], nbytes / cpu[1])
    there = max(flops / gpu[0], nbytes / gpu[1]) + copied / link
    return max(1.0, here / there)

# %% wrong: counts the copies twice
def gain(flops, nbytes, copied, cpu, gpu, link):
    there = max(flops / gpu[0], nbytes / gpu[1]) + 2 * copied / link
    return max(flops / cpu[0], nbytes / cpu[1]) / there

# %% wrong: one number
def gain(flops, nbytes, copied, cpu, gpu, link):
    return "much"
