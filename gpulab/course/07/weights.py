"""07.10: weights that a convolution shares."""

# %% exercise
id = "07.10"
title = "weights that a convolution shares"
answer_name = "weights"

# %% stub
def weights(source, wide, kernel, side):
    """Return the weights of a convolution and of a linear layer between the same images."""
    ...  # return convolution, linear

# %% hint
# A convolution has a kernel of kernel x kernel weights for each pair of an input and an output
# channel. Does side matter?

# %% hint
# The linear layer has source * side**2 inputs and wide * side**2 outputs, and one weight for each
# pair of an input and an output.

# %% solution
def weights(source, wide, kernel, side):
    """Return the weights of a convolution and of a linear layer between the same images."""
    return source * wide * kernel**2, (source * side**2) * (wide * side**2)

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

# (input channels, output channels, kernel, side)
_SHAPES = ((6, 16, 3, 32), (1, 8, 5, 28), (64, 64, 1, 7), (16, 32, 3, 8))


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for shape in _SHAPES:
        source, wide, kernel, side = shape
        case = f"For {source} to {wide} channels, {kernel}x{kernel}, {side}x{side} pixels"
        result = checking.listed(ask(case, *shape))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise Refused(f"Your function returned {checking.describe(result)}; the check expects two numbers: convolution, linear layer.")
        returned = [checking.number(each, "a number of weights") for each in result]
        right = source * wide * kernel**2, source * side**2 * wide * side**2
        where = f"{case} your answer is"
        if returned[0] != right[0]:
            raise Refused(f"{where} {returned[0]:,.0f} weights for the convolution. {_why_convolution(returned[0], *shape)}")
        if returned[1] != right[1]:
            raise Refused(f"{where} {returned[1]:,.0f} weights for the linear layer. {_why_linear(returned[1], *shape)}")
    source, wide, kernel, side = _SHAPES[0]
    ratio = side**4 / kernel**2
    return (
        f"At {side}x{side} pixels a convolution has 1/{ratio:,.0f} of the linear layer's weights: it uses the same few at every pixel."
    )


def _why_convolution(returned: float, source: int, wide: int, kernel: int, side: int) -> str:
    if returned == source * wide * kernel**2 * side**2:
        return "A convolution uses the same weights at every pixel, so they count once."
    if returned == wide * kernel**2:
        return "Each output channel looks at every input channel."
    if returned == source * wide * kernel:
        return "A kernel has kernel x kernel weights."
    return "One kernel for each pair of an input and an output channel (no bias)."


def _why_linear(returned: float, source: int, wide: int, kernel: int, side: int) -> str:
    if returned == source * wide * side**2:
        return "Each output number (one for each pixel and channel) has a weight for each input number, not only for those of its own pixel."
    return "Flatten both images: every output has one weight for every input (no bias)."

# %% wrong: they count once
def weights(source, wide, kernel, side):
    """Return the weights of a convolution and of a linear layer between the same images."""
    return source * wide * kernel**2 * side**2, source * wide * side**4

# %% wrong: has a weight for each input number
def weights(source, wide, kernel, side):
    """Return the weights of a convolution and of a linear layer between the same images."""
    return source * wide * kernel**2, source * wide * side**2

# %% wrong: every input channel
def weights(source, wide, kernel, side):
    """Return the weights of a convolution and of a linear layer between the same images."""
    return wide * kernel**2, source * wide * side**4

# %% wrong: kernel x kernel
def weights(source, wide, kernel, side):
    """Return the weights of a convolution and of a linear layer between the same images."""
    return source * wide * kernel, source * wide * side**4

# %% wrong: two numbers
def weights(source, wide, kernel, side):
    """Return the weights of a convolution and of a linear layer between the same images."""
    return source * wide * kernel**2
