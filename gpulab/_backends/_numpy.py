"""Host memory: numpy's arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gpulab._backends._base import Backend
from gpulab.errors import DeviceError


class NumpyBackend(Backend):
    """Host memory."""

    name = "numpy"

    def owns(self, x: object) -> bool:
        return isinstance(x, np.ndarray)

    def device_of(self, x: Any) -> str:
        return "cpu"

    def pointer(self, x: Any) -> int:
        return int(x.__array_interface__["data"][0])

    def is_contiguous(self, x: Any) -> bool:
        return bool(x.flags.c_contiguous)

    def to_host(self, x: Any) -> np.ndarray:
        return x  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        if device != "cpu":
            raise DeviceError(
                f"to_device: numpy has no arrays on {device!r}; expected device 'cpu'. Pass "
                "library='torch' or 'cupy'."
            )
        if not pinned:
            return a
        from gpulab import _backends

        return _backends.backend("torch").from_host(a, "cpu", True).numpy()

    def copy(self, x: Any) -> Any:
        return np.array(x, copy=True)

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        return self.hazard(x, library) or numpy_dtype_problem(x)

    def hazard(self, x: Any, library: str) -> tuple[str, str] | None:
        flags = x.flags
        if x.strides and min(x.strides) < 0:
            return "it has a negative stride", "numpy.ascontiguousarray(x)"
        if not flags.writeable:
            if library in ("jax", "tensorflow"):
                return (
                    "it is read-only, which numpy marks only in a version of DLPack that "
                    f"{library} does not accept",
                    "x.copy()",
                )
            return "it is read-only, and the other library could write to it", "x.copy()"
        if not flags.aligned:
            return "its elements are not aligned in memory", "x.copy()"
        if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
            return numpy_dtype_problem(x)
        if library == "cupy":
            return (
                "it is in main memory, and CuPy can access only CUDA memory",
                "gl.to_device(x, library='cupy')",
            )
        return None

    def from_dlpack(self, x: Any) -> Any:
        view = np.from_dlpack(x)
        torch = sys.modules.get("torch")
        # An exporter without DLPack 1.0 cannot say "writable", and numpy then marks the view
        # read-only. JAX's and TensorFlow's stay so.
        return (
            x.numpy()
            if not view.flags.writeable and torch is not None and isinstance(x, torch.Tensor)
            else view
        )


def numpy_dtype_problem(x: np.ndarray) -> tuple[str, str] | None:
    """Return why no other library has an array like this, and what to call; None for plain numbers
    in native order.
    """
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        return "its mask would be lost", "x.filled(value)"
    dtype = x.dtype
    if dtype.kind not in "biufc" or dtype.char in "gG":
        return f"other libraries have no dtype {dtype}", "x.astype('float32')"
    if not dtype.isnative:
        return "its byte order is not that of this machine", "x.astype(x.dtype.newbyteorder('='))"
    return None
