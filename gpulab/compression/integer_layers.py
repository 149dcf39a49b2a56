"""The arithmetic of quantization, and PyTorch's 8-bit kernels for CPUs.

Weights are symmetric: code = round(weight / scale) from -(2^(b-1) - 1) to 2^(b-1) - 1, so that 0 is
exactly 0 and what was pruned stays pruned. Inputs are affine: code = round(x / step) + zero from 0
to 2^b - 1, because what follows a ReLU has no negative half to spend codes on. Rounding is to the
nearest, ties to even, as PyTorch's.

Linear layers run in FBGEMM or QNNPACK (``torch.ops.quantized``), convolutions in oneDNN
(``torch.ops.onednn``, which PyTorch's own compiler uses). Without VNNI instructions an x86 CPU
multiplies pairs of 8-bit numbers into 16-bit sums, and two products of 8-bit inputs with large
weights overflow it: the answer is wrong, without any error. So inputs get 7 bits there, and 127 *
127 * 2 still fits (PyTorch calls it ``reduce_range``, oneDNN's guide "nuances of int8
computations").

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, sections 2.1 and 3; symmetric weights as in
Krishnamoorthi, arXiv:1806.08342, section 2.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab import devices
from gpulab.errors import DeviceError

_X86 = ("x86_64", "amd64", "i386", "i686")
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


def activation_bits() -> int:
    """Return how many bits an input may have: 8, or 7 on an x86 CPU where PyTorch reports no
    AVX-512 VNNI.

    That of AVX, which Intel's Core processors have from the 12th generation on, PyTorch does not
    look for, and FBGEMM does not use.
    """
    import torch

    if platform.machine().lower() not in _X86:
        return 8
    has = getattr(torch.cpu, "_is_vnni_supported", None)
    return 8 if has is not None and has() else 7


def refusal(device: Any, convolution: bool = False) -> str:
    """Return why integer kernels cannot run on a device, as a sentence; "" where they can: a tiny
    layer is tried.
    """
    import torch

    from gpulab.compression._modules import Integer

    where = devices.find(str(device))
    if not where.is_cpu:
        return (
            "PyTorch's 8-bit kernels for linear layers and convolutions run on CPUs only, not on "
            f"{where.name}."
        )
    layer: Any = torch.nn.Conv2d(4, 4, 3, padding=1) if convolution else torch.nn.Linear(4, 4)
    x = torch.ones(1, 4, 4, 4) if convolution else torch.ones(1, 4)
    try:
        with torch.no_grad():
            Integer(layer, Scheme("per-channel", 8, "dynamic", activation_bits()))(x)
    except Exception as error:
        kind = "convolutions" if convolution else "linear layers"
        return (
            f"this build of PyTorch has no 8-bit kernels for {kind} on this CPU "
            f"({type(error).__name__})."
        )
    return ""


def check(device: Any) -> None:
    """Raise ``DeviceError`` where the device has no integer kernels."""
    reason = refusal(device)
    if reason:
        raise DeviceError(
            f"quantize: {reason} Expected a CPU with them. Use arithmetic='torchao', or 'float' "
            "for the same numbers."
        )


class Packed:
    """One layer's weight as the library wants it, and the call that multiplies with it."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.bits = layer.scheme.activation_bits
        channels = layer.codes.shape[0]
        # a layer's one scale is repeated for its channels
        self.scales = layer.scale.detach().flatten().expand(channels).contiguous()
        self.weight = self._convolution() if layer.convolution else self._linear()

    def _linear(self) -> Any:
        import torch

        zeros = torch.zeros(len(self.scales), dtype=torch.int64)
        bias = self.layer.bias
        # PyTorch means to move these to torchao; until then they are the fast ones, and refusal()
        # tells
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            codes = torch._make_per_channel_quantized_tensor(
                self.layer.codes, self.scales.double(), zeros, 0
            )
            return torch.ops.quantized.linear_prepack(
                codes, None if bias is None else bias.detach()
            )

    def _convolution(self) -> Any:
        import torch

        self.zeros = torch.zeros(len(self.scales), dtype=torch.int64)
        self.shape = [
            list(self.layer.stride),
            list(self.layer.padding),
            list(self.layer.dilation),
            self.layer.groups,
        ]
        return torch.ops.onednn.qconv_prepack(self.layer.codes, self.scales, 1.0, 1, *self.shape)

    def __call__(self, x: Any) -> Any:
        """Return the layer's output in float32."""
        import torch

        x = x.detach()
        if not self.layer.convolution:
            return torch.ops.quantized.linear_dynamic(x.contiguous(), self.weight, self.bits < 8)
        step, zero = input_grid(*torch.aminmax(x), self.bits)
        codes = (x / step).round_().add_(zero).clamp_(0, 2**self.bits - 1).to(torch.uint8)
        return torch.ops.onednn.qconv_pointwise(
            codes,
            float(step),
            int(zero),
            self.weight,
            self.scales,
            self.zeros,
            self.layer.bias,
            *self.shape,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
