"""07.6: round a weight."""

# %% exercise
id = "07.6"
title = "round a weight"
answer_name = "quantize"
loads = ["torch"]

# %% stub
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    ...

# %% hint
# With b bits the largest code is 2**(b-1) - 1. Which weight of a row gets that code?

# %% hint
# scales = weight.abs().amax(1, keepdim=True) / most. Divide by the scales, then round to the
# nearest whole number.

# %% hint
# A row of zeros has a scale of zero, and 0 / 0 is nan. clamp_min(1e-30) keeps the largest
# magnitude above zero.

# %% solution
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / most
    codes = (weight / scales).round()
    return codes, scales

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused


def _weights() -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(7)
    plain = torch.randn(6, 20, generator=generator)
    spread = plain * torch.tensor([1.0, 0.01, 10.0, 0.1, 1.0, 0.001])[:, None]
    shifted = torch.rand(4, 30, generator=generator) + 0.5
    dead = plain.clone()
    dead[2] = 0.0
    return [dead, plain, spread, shifted, -spread]  # the weight with a row of zeros comes first, because an offset shows there


def check(answer: Any) -> str:
    import torch

    ask = checking.in_turn(answer)
    for weight in _weights():
        for bits in (8, 4, 2):
            given = weight.clone()
            result = ask(f"For a weight of {len(weight)} rows and {bits} bits", given, bits)
            if not isinstance(result, (tuple, list)) or len(result) != 2 or not all(isinstance(each, torch.Tensor) for each in result):
                raise Refused(f"Your function returned {checking.describe(result)}; the check expects two tensors: codes, scales.")
            codes, scales = (each.detach().double() for each in result)
            _judge(codes, scales, weight.double(), bits)
            if not torch.equal(given, weight):
                raise Refused("Your function changes the weight itself. Compute new tensors.")
    return "No weight moved by more than half a step of its own row, and the row with the smallest weights uses as many codes as the others."


def _judge(codes: Any, scales: Any, weight: Any, bits: int) -> None:
    import torch

    most = 2 ** (bits - 1) - 1
    if codes.shape != weight.shape:
        raise Refused(f"codes have the shape {tuple(codes.shape)}; the check expects that of the weight, {tuple(weight.shape)}.")
    if scales.numel() == 1:
        raise Refused(
            "There is one scale for the whole layer. Give each row (output channel) its own: otherwise a row of small weights is rounded to zero."
        )
    if scales.shape != (len(weight), 1):
        raise Refused(
            f"The scales have the shape {tuple(scales.shape)}; the check expects one for each row, as a column: the shape {(len(weight), 1)}."
        )
    if not bool(torch.isfinite(scales).all()) or not bool(torch.isfinite(codes).all()):
        raise Refused("For a row of zeros the result is not finite, because it divides 0 by 0. Keep the scale above zero there, with clamp_min.")
    if not torch.equal(codes, codes.round()):
        raise Refused("The codes are not whole numbers. Round them.")
    if float(codes.abs().max()) > most:
        raise Refused(f"With {bits} bits there is a code of magnitude {codes.abs().max():.0f}; expected -{most} to {most}, so that 0 stays in the middle.")
    if bool((codes[weight == 0] != 0).any()):
        raise Refused("A weight of zero has a code that is not 0. A pruned weight must stay zero, so there is no offset here.")
    error = (codes * scales - weight).abs()
    largest = weight.abs().amax(1, keepdim=True)
    # A row of zeros may have any scale: its codes are zero, and its scale depends on how the function avoids 0 / 0.
    if bool(((scales > 1.001 * largest / most) & (largest > 0)).any()):
        raise Refused(f"With {bits} bits the steps of a row are wider than necessary. Its largest magnitude gets the code {most}.")
    if bool((error > 1.01 * scales).any()):
        raise Refused("A weight lies outside the range of the codes and was cut off. The largest magnitude must fit, also when that weight is negative.")
    if bool((error > 0.501 * scales).any()):
        raise Refused("A weight moved by more than half a step. Round to the nearest code; converting to an integer type cuts the fraction off.")

# %% wrong: one scale for the whole
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    s = weight.abs().max() / most
    return (weight / s).round(), s

# %% wrong: more than half a step
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / most
    return (weight / scales).to(torch.int8), scales

# %% wrong: 0 stays in the middle
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1)
    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / most
    return (weight / scales).round(), scales

# %% wrong: 0 stays in the middle
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    scales = weight.amax(1, keepdim=True).clamp_min(1e-30) / most
    return (weight / scales).round(), scales

# %% wrong: not finite
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    scales = weight.abs().amax(1, keepdim=True) / most
    return (weight / scales).round(), scales

# %% wrong: no offset
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    low = weight.amin(1, keepdim=True)
    span = weight.amax(1, keepdim=True) - low
    scales = span.clamp_min(1e-30) / (2 * most)
    return ((weight - low) / scales).round() - most, scales

# %% wrong: not whole numbers
import torch


def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / most
    return weight / scales, scales

# %% wrong: as a column
def quantize(weight, bits):
    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""
    most = 2 ** (bits - 1) - 1
    scales = weight.abs().amax(1).clamp_min(1e-30) / most
    return (weight / scales[:, None]).round(), scales
