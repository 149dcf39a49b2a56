"""PyTorch's tensors and CuPy's arrays: the two that change in place and live on a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gpulab._backends._base import Backend, Problem, require_plain_numbers
from gpulab.errors import InputError, kind_of

_NOT_IN_NUMPY = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn_x2", "complex32"),
)


class TorchBackend(Backend):
    """CPU, CUDA, ROCm, XPU and MPS tensors."""

    name = "torch"
    expected, as_float32 = "a dense tensor", "x.float()"

    def __init__(self) -> None:
        super().__init__()
        torch = self.module
        self._plain_types = {torch.Tensor, torch.nn.Parameter}
        self._no_dispatch = torch.Tensor.__torch_dispatch__
        self._not_in_numpy = {
            getattr(torch, name) for name in _NOT_IN_NUMPY if hasattr(torch, name)
        }

    def owns(self, x: object) -> bool:
        return isinstance(x, self.module.Tensor)

    def device_of(self, x: Any) -> str:
        device = x.device
        return "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def nbytes(self, x: Any) -> int:
        # as if dense: ``x.nbytes`` raises for a sparse tensor
        return int(x.numel() * x.element_size())

    def dtype_name(self, x: Any) -> str:
        return str(x.dtype).removeprefix("torch.")

    def in_numpy(self, x: Any) -> bool:
        return x.dtype not in self._not_in_numpy

    def no_data(self, x: Any) -> Problem | None:
        """Return why ``x`` is no plain block of numbers, and what to call; None where it is one."""
        if type(x) not in self._plain_types and type(x).__torch_dispatch__ is not self._no_dispatch:
            return f"{kind_of(x)} is not plain memory", "a plain tensor made from it"
        if x.device.type == "meta":
            return "a tensor on 'meta' has no data", "torch.empty_like(x, device='cpu')"
        if x.is_nested or x.layout is not self.module.strided:
            layout = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            return (
                f"its layout is {layout}",
                "x.to_dense()",
            )
        if x.is_quantized:
            return f"its dtype {x.dtype} is quantized", "x.dequantize()"
        return None

    def to_host(self, x: Any) -> np.ndarray:
        self.require_data("to_host", x, in_numpy=True)
        return x.detach().cpu().resolve_conj().resolve_neg().numpy()  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        require_plain_numbers(a)
        usable = (
            a.flags.writeable
            and a.flags.aligned
            and not any(stride < 0 or stride % a.itemsize for stride in a.strides)
        )
        return self.move(self.module.from_numpy(a if usable else a.copy()), device, pinned)

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        if pinned and x.device.type == "cpu":
            x = x.pin_memory()
        try:
            return x.to(device)
        except TypeError as error:
            # of Metal, which has no float64; NumPy's arrays are of it unless told otherwise
            less = "complex64" if x.is_complex() else "float32"
            raise InputError(
                f"to_device: {device} does not support {self.dtype_name(x)}; expected a dtype that "
                "it supports. Convert the array first: "
                f'a.astype("{less}") of NumPy, a.to(torch.{less}) of PyTorch.'
            ) from error

    def copy(self, x: Any) -> Any:
        return x.detach().clone().requires_grad_(x.requires_grad)

    def compact(self, x: Any) -> Any:
        if self.no_data(x) is not None:
            return None
        return (
            x.detach()
            .resolve_conj()
            .resolve_neg()
            .clone(memory_format=self.module.contiguous_format)
        )

    def unshared(self, x: Any, library: str) -> Problem | None:
        if x.requires_grad:
            return (
                "it takes part in autograd",
                "gl.share(x.detach(), ...), or gl.to_host(x) for a copy",
            )
        if x.is_conj():
            return "its conjugation is pending", "x.resolve_conj()"
        if x.is_neg():
            return "its negation is pending", "x.resolve_neg()"
        return None


class CupyBackend(Backend):
    """CUDA and ROCm arrays."""

    name = "cupy"

    def owns(self, x: object) -> bool:
        return isinstance(x, self.module.ndarray)

    def device_of(self, x: Any) -> str:
        return f"cuda:{x.device.id}"

    def pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def to_host(self, x: Any) -> np.ndarray:
        return x.get()  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        require_plain_numbers(a)
        with self.module.cuda.Device(int(device.partition(":")[2] or 0)):
            if pinned:
                staging = importlib.import_module("cupyx").empty_like_pinned(
                    np.ascontiguousarray(a)
                )
                staging[...] = a
                a = staging
            array = self.module.asarray(a)
            # the source may be changed as soon as this returns
            self.module.cuda.get_current_stream().synchronize()
            return array

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        if not device.startswith("cuda"):
            return super().move(x, device, pinned)
        with self.module.cuda.Device(int(device.partition(":")[2] or 0)):
            return self.module.asarray(x)

    def copy(self, x: Any) -> Any:
        return x.copy()

    def unshared(self, x: Any, library: str) -> Problem | None:
        if x.strides and min(x.strides) < 0:
            return "it has a negative stride", "cupy.ascontiguousarray(x)"
        return None
