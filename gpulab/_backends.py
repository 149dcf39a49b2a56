"""One adapter for each array library, so that no other module asks "is this torch or cupy?".

A library is found through ``sys.modules``: an array of it cannot exist unless the caller has imported it,
so looking at an array never imports anything heavy. Only ``backend(name)`` imports, when asked by name.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

from gpulab.errors import CopyRequiredError, DeviceError, InputError


class Backend:
    """What gpulab needs from an array library. ``device`` is text such as ``"cpu"`` or ``"cuda:0"``."""

    name = ""

    def __init__(self) -> None:
        self.module: Any = importlib.import_module(self.name)

    def owns(self, x: object) -> bool:
        """Return whether ``x`` is an array of this library."""
        raise NotImplementedError

    def device_of(self, x: Any) -> str:
        """Return the device that holds ``x``."""
        raise NotImplementedError

    def pointer(self, x: Any) -> int:
        """Return the address of the first element."""
        raise NotImplementedError

    def nbytes(self, x: Any) -> int:
        """Return the bytes of the elements (not of the storage behind a view)."""
        return int(x.nbytes)

    def to_host(self, x: Any) -> np.ndarray:
        """Return a numpy array; the device has finished when it returns."""
        raise NotImplementedError

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        """Return an array of this library on ``device`` with the content of ``a``."""
        raise NotImplementedError

    def from_dlpack(self, x: Any) -> Any:
        """Return a view of ``x`` that shares its memory."""
        return self.module.from_dlpack(x)


class NumpyBackend(Backend):
    """Host memory."""

    name = "numpy"

    def owns(self, x: object) -> bool:
        return isinstance(x, np.ndarray)

    def device_of(self, x: Any) -> str:
        return "cpu"

    def pointer(self, x: Any) -> int:
        return int(x.ctypes.data)

    def to_host(self, x: Any) -> np.ndarray:
        return x  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        if device != "cpu":
            raise DeviceError(f"to_device: numpy has no arrays on {device!r}; expected device 'cpu'. Pass library='torch' or 'cupy'.")
        return a


class TorchBackend(Backend):
    """CPU, CUDA, ROCm, XPU and MPS tensors."""

    name = "torch"

    def owns(self, x: object) -> bool:
        return isinstance(x, self.module.Tensor)

    def device_of(self, x: Any) -> str:
        return "cpu" if x.device.type == "cpu" else f"{x.device.type}:{x.device.index or 0}"

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def to_host(self, x: Any) -> np.ndarray:
        host = x.detach().cpu()
        if host.dtype is self.module.bfloat16:
            raise InputError("to_host: numpy has no bfloat16; expected a dtype that numpy has. Call x.float() first.")
        return host.resolve_conj().resolve_neg().numpy()  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        if any(stride < 0 for stride in a.strides) or not a.flags.writeable:
            a = a.copy()
        tensor = self.module.from_numpy(a)
        if pinned:
            tensor = tensor.pin_memory()
        return tensor if device == "cpu" else tensor.to(device)


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
        if device == "cpu":
            raise DeviceError("to_device: cupy has no arrays on 'cpu'; expected a CUDA device. Pass library='torch' or 'numpy'.")
        with self.module.cuda.Device(int(device.partition(":")[2] or 0)):
            return self.module.asarray(a)


_CLASSES: dict[str, type[Backend]] = {"numpy": NumpyBackend, "torch": TorchBackend, "cupy": CupyBackend}
_made: dict[str, Backend] = {}


def names() -> tuple[str, ...]:
    """Return the libraries that gpulab knows."""
    return tuple(_CLASSES)


def backend(name: str) -> Backend:
    """Return the adapter of a library, importing the library if need be.

    Raises
    ------
    InputError
        If gpulab does not know the library, or it is not installed.
    """
    if name not in _CLASSES:
        raise InputError(f"library {name!r} is not one that gpulab knows; expected one of {', '.join(_CLASSES)}.")
    if name not in _made:
        try:
            _made[name] = _CLASSES[name]()
        except ImportError as error:
            raise InputError(f"library {name!r} cannot be imported ({error}); expected it to be installed. Run `gpulab doctor`.") from error
    return _made[name]


def backend_of(x: object) -> Backend | None:
    """Return the adapter of the library that owns ``x``, or None where no known library does."""
    for name in _CLASSES:
        if name in sys.modules and backend(name).owns(x):
            return _made[name]
    return None


def share(x: Any, library: str) -> Any:
    """Return a view of ``x`` in another library (see ``gpulab.arrays.share``)."""
    target = backend(library)
    try:
        return target.from_dlpack(x)
    except Exception as error:
        raise CopyRequiredError(
            f"share: {type(x).__name__} cannot be seen by {library} without a copy ({error}); call gl.to_device or gl.to_host to copy it."
        ) from error
