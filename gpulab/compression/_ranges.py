"""The arithmetic of quantization: scales, codes and grids, with nothing about models.

Weights are symmetric: code = round(weight / scale) from -(2^(b-1) - 1) to 2^(b-1) - 1, so that 0 is
exactly 0 and what was pruned stays pruned. Inputs are affine: code = round(x / step) + zero from 0
to 2^b - 1, because what follows a ReLU has no negative half to spend codes on. Rounding is to the
nearest, ties to even, as PyTorch's.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, sections 2.1 and 3; symmetric weights as in
Krishnamoorthi, arXiv:1806.08342, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Below this a range holds nothing but zeros; a scale of zero would divide by zero. It is the
# smallest normal float32.
TINY = 1.1754943508222875e-38


@dataclass(frozen=True)
class Scheme:
    """How a model is quantized.

    Attributes
    ----------
    weights : str
        "per-channel" (a scale for each output channel) or "per-tensor" (one for the layer).
    bits : int
        Of a weight's code, 2 to 8.
    activations : str or None
        None (inputs stay float32), "dynamic" (range of each batch as it comes) or "static" (range
        from calibration).
    activation_bits : int
        Of an input's code, 2 to 8.
    """

    weights: str
    bits: int
    activations: str | None
    activation_bits: int


def weight_scale(weight: Any, scheme: Scheme) -> Any:
    """Return the scale: a tensor that multiplies the codes, of shape () or (channels, 1, ...)."""
    most = (
        weight.abs().amax(dim=tuple(range(1, weight.dim())), keepdim=True)
        if scheme.weights == "per-channel"
        else weight.abs().amax()
    )
    return most.clamp_min(TINY) / (2 ** (scheme.bits - 1) - 1)


def codes(weight: Any, scale: Any, bits: int) -> Any:
    """Return the codes of a weight, as floats that are whole numbers."""
    most = 2 ** (bits - 1) - 1
    return (weight / scale).round().clamp(-most, most)


def input_grid(low: Any, high: Any, bits: int) -> tuple[Any, Any]:
    """Return step and zero point of inputs from ``low`` to ``high``; the range is widened to hold
    0, which padding needs exactly.
    """
    low, high = low.clamp(max=0), high.clamp(min=0)
    most = 2**bits - 1
    step = ((high - low) / most).clamp_min(TINY)
    return step, (-low / step).round().clamp(0, most)


def round_inputs(x: Any, step: Any, zero: Any, bits: int) -> Any:
    """Return the inputs rounded to the grid; what lies outside becomes its end."""
    return ((x / step).round().add(zero).clamp(0, 2**bits - 1) - zero) * step


def straight_through(x: Any, rounded: Callable[[Any], Any]) -> Any:
    """Return the rounded values whose gradient is that of ``x`` (the straight-through estimator of
    Bengio et al. 2013).
    """
    return x + (rounded(x.detach()) - x.detach())
