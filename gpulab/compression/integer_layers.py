"""PyTorch's 8-bit CPU kernels: whether this machine has them, and weights packed for them.

Linear layers run in FBGEMM or QNNPACK (``torch.ops.quantized``), convolutions in oneDNN
(``torch.ops.onednn``, which PyTorch's own compiler uses). Without VNNI instructions an x86 CPU
multiplies pairs of 8-bit numbers into 16-bit sums, and two products of 8-bit inputs with large
weights overflow it: the answer is wrong, without any error. So inputs get 7 bits there, and 127 *
127 * 2 still fits (PyTorch calls it ``reduce_range``, oneDNN's guide "nuances of int8
computations").
"""

from __future__ import annotations

import platform
import warnings
from typing import Any

from gpulab import devices
from gpulab.compression import _ranges
from gpulab.errors import DeviceError

_X86 = ("x86_64", "amd64", "i386", "i686")


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
            Integer(layer, _ranges.Scheme("per-channel", 8, "dynamic", activation_bits()))(x)
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
        step, zero = _ranges.input_grid(*torch.aminmax(x), self.bits)
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
