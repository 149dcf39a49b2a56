"""CuPy's arrays."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gpulab._backends._base import Backend
from gpulab._backends._numpy import numpy_dtype_problem
from gpulab.errors import DeviceError, InputError


class CupyBackend(Backend):
    """CUDA and ROCm arrays."""

    name = "cupy"

    def owns(self, x: object) -> bool:
        return isinstance(x, self.module.ndarray)

    def device_of(self, x: Any) -> str:
        return f"cuda:{x.device.id}"

    def pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def is_contiguous(self, x: Any) -> bool:
        return bool(x.flags.c_contiguous)

    def to_host(self, x: Any) -> np.ndarray:
        return x.get()  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        if not device.startswith("cuda"):
            raise DeviceError(
                f"to_device: cupy has no arrays on {device!r}; expected a CUDA device. Pass "
                "library='torch' or 'numpy'."
            )
        wrong = numpy_dtype_problem(a)
        if wrong is not None:
            raise InputError(
                f"to_device: {wrong[0]}; expected an array of plain numbers. Pass {wrong[1]}."
            )
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

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        if library == "numpy":
            return (
                f"it is on {self.device_of(x)}, and numpy can access only main memory",
                "gl.to_host(x)",
            )
        if x.strides and min(x.strides) < 0:
            return "it has a negative stride", "cupy.ascontiguousarray(x)"
        return None
