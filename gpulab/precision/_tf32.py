"""PyTorch's switches for TF32: their current setting, and a block with another setting."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices
from gpulab.evidence import Evidence
from gpulab.results import Result

_SOURCE = "PyTorch documentation, CUDA semantics, TensorFloat-32 (TF32) on Ampere (and later) devices"
_WHAT = {"matrix products": "matmul", "convolutions": "convolution"}


@dataclass(frozen=True)
class Tf32Switches(Result):
    """What float32 work may use on this machine.

    Attributes
    ----------
    device : str
    has_tf32 : bool
        Whether the device has TF32 at all: an NVIDIA GPU from compute capability 8.0 on.
    matmul_allowed, convolution_allowed : bool
        The current settings, whether or not the device has TF32.
    evidence : Evidence
    """

    device: str
    has_tf32: bool
    matmul_allowed: bool
    convolution_allowed: bool
    evidence: Evidence

    @property
    def explanation(self) -> str:
        """What follows from the settings, in one sentence."""
        on = [*itertools.compress(_WHAT, (self.matmul_allowed, self.convolution_allowed))]
        if not self.has_tf32:
            return f"{self.device} has no TF32: the switches change nothing here."
        return f"Float32 {' and '.join(on)} run in TF32, with 10 bits of mantissa." if on else "Float32 work runs in float32."

    def __repr__(self) -> str:
        allowed = {True: "allowed", False: "not allowed"}
        matmul, convolution = allowed[self.matmul_allowed], allowed[self.convolution_allowed]
        return f"<TF32 {matmul} for matrix products, {convolution} for convolutions. {self.explanation}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row for each switch."""
        rows = [
            ("matrix products", "allowed" if self.matmul_allowed else "not allowed", "torch.backends.cuda.matmul.fp32_precision"),
            ("convolutions", "allowed" if self.convolution_allowed else "not allowed", "torch.backends.cudnn.conv.fp32_precision"),
            ("", self.explanation, ""),
        ]
        return ("TF32 for float32", "PyTorch's settings", "the switch"), rows


def tf32_switches(device: Any = None) -> Tf32Switches:
    """Return PyTorch's current settings for TF32, and whether the device has it.

    Raises
    ------
    InputError, DeviceError
        If there is no such device.

    Examples
    --------
    >>> tf32_switches("cpu").has_tf32
    False
    """
    import torch  # noqa: F401  (its settings are asked only where it is loaded)

    where = devices.find(device)
    matmul, convolution = ("tf32" in devices.arithmetic("float32", "cuda", each) for each in _WHAT.values())
    return Tf32Switches(where.name, has_tf32(where), matmul, convolution, Evidence.measured(where.name))


def has_tf32(device: devices.Device) -> bool:
    """Return whether a device's Tensor Cores read float32 as TF32."""
    if device.kind != "cuda":
        return False
    import torch

    return bool(torch.cuda.get_device_capability(device.index or 0)[0] >= 8)


@contextlib.contextmanager
def tf32(matmul: bool = True, convolution: bool = True) -> Iterator[None]:
    """Allow or forbid TF32 within a block, and put the switches back after it.

    Parameters
    ----------
    matmul, convolution : bool

    Raises
    ------
    InputError
        If an argument is neither True nor False.

    Notes
    -----
    Outside such a block PyTorch forbids TF32 for products and allows it for convolutions, unless its settings were changed.

    Examples
    --------
    >>> with tf32(matmul=True, convolution=False):
    ...     s = tf32_switches("cpu")
    >>> s.matmul_allowed, s.convolution_allowed
    (True, False)
    """
    matmul, convolution = _given.flag("tf32", "matmul", matmul), _given.flag("tf32", "convolution", convolution)
    import torch

    cudnn: Any = torch.backends.cudnn
    asked = [(torch.backends.cuda.matmul, matmul), (cudnn.conv, convolution)]
    before = [(place, place.fp32_precision) for place, _ in asked]
    try:
        for place, allowed in asked:
            place.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        for place, value in before:
            place.fp32_precision = value
