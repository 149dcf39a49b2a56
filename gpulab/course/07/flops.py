"""07.11: FLOPs of a convolution in groups."""

# %% exercise
id = "07.11"
title = "FLOPs of a convolution in groups"
answer_name = "flops"

# %% stub
def flops(source, wide, kernel, groups, side):
    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""
    ...

# %% hint
# How many numbers does the output have? How many inputs does each of them read?

# %% hint
# Each of the wide * side**2 outputs takes (source / groups) * kernel**2 multiply-adds. A
# multiply-add is two FLOP.

# %% solution
def flops(source, wide, kernel, groups, side):
    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""
    outputs = wide * side**2
    return 2 * outputs * (source // groups) * kernel**2

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import plural

# (input channels, output channels, kernel, groups, side)
_GROUPED = ((128, 128, 3, 1, 16), (128, 128, 3, 128, 16), (64, 96, 3, 4, 14), (32, 64, 1, 1, 8), (48, 48, 5, 48, 9))


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for source, wide, kernel, groups, side in _GROUPED:
        where = f"For {source} to {wide} channels in {plural(groups, 'group')}, {kernel}x{kernel}, {side}x{side}"
        returned = checking.number(ask(where, source, wide, kernel, groups, side), "one number of FLOPs")
        right = 2 * source * wide * kernel**2 * side**2 / groups
        if math.isclose(returned, right, rel_tol=1e-9):
            continue
        raise Refused(f"{where} your answer is {returned:,.10g} FLOP. {_why_grouped(returned / right, groups, side)}")
    return "Depthwise with 128 channels has 1/128 of the FLOPs. The images that it reads and writes have as many bytes as before."


def _why_grouped(ratio: float, groups: int, side: int) -> str:
    if math.isclose(ratio, 0.5):
        return "Those are multiply-adds. Each of them is two FLOP."
    if math.isclose(ratio, groups):
        return "In a grouped convolution an output channel reads only the input channels of its own group."
    if math.isclose(ratio, 1 / groups):
        return "You divided by the groups twice. Each output reads fewer inputs, but there are as many outputs as before."
    if math.isclose(ratio * side**2, 1):
        return "Those are the FLOPs for one pixel of the output. All side x side pixels are computed."
    return "It is 2 x outputs x (source / groups) x kernel x kernel, where outputs = wide x side x side."

# %% wrong: of its own group
def flops(source, wide, kernel, groups, side):
    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""
    return 2 * wide * side**2 * source * kernel**2

# %% wrong: multiply-adds
def flops(source, wide, kernel, groups, side):
    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""
    return wide * side**2 * source * kernel**2 / groups

# %% wrong: one pixel
def flops(source, wide, kernel, groups, side):
    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""
    return 2 * wide * source * kernel**2 / groups

# %% wrong: twice
def flops(source, wide, kernel, groups, side):
    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""
    return 2 * wide * side**2 * source * kernel**2 / groups**2

# %% wrong: plain number
def flops(source, wide, kernel, groups, side):
    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""
    return [1]
