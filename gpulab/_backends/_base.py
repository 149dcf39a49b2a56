"""What every adapter offers, and those whose arrays change in place: numpy in host memory, PyTorch,
and CuPy.
"""

from __future__ import annotations

import abc
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gpulab.errors import DeviceError, InputError, kind_of

# Why an array cannot be used, and what to call or to pass in its place.
Problem = tuple[str, str]
_NOT_IN_NUMPY = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn_x2", "complex32"),
)


class Backend(abc.ABC):
    """What gpulab needs from an array library. ``device`` is text such as ``"cpu"`` or
    ``"cuda:0"``.
    """

    name = ""
    # What to do where the library is not installed.
    how_to_get = "Run `gpulab doctor`."
    # What ``to_host`` and ``device_of`` expect, and the call that gives numbers that numpy has.
    expected, as_float32 = "", ""
    # Whether arrays of this library never change: then none may lie over memory that somebody else
    # writes to unasked. Its ``from_dlpack`` may give a copy and not say so, so the address of every
    # view is looked at.
    immutable = False
    # What the process's environment says when the library is imported, unless somebody has said
    # otherwise.
    settings: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def prepare(cls) -> None:
        """Put the settings into the environment; a library reads them at its import, or when it
        first asks for a GPU.
        """
        for name, value in cls.settings.items():
            os.environ.setdefault(name, value)

    def __init__(self) -> None:
        self.prepare()
        self.module: Any = importlib.import_module(self.name)

    @abc.abstractmethod
    def owns(self, x: object) -> bool:
        """Return whether ``x`` is an array of this library."""

    def has_data(self, x: Any) -> bool:
        """Return whether ``x`` holds numbers now, and is not a symbolic value of a graph or a
        traced function.
        """
        return not self.immutable or self.no_data(x) is None

    def no_data(self, x: Any) -> Problem | None:
        """Return why ``x`` is no plain block of numbers; None where it is one."""
        return None

    def require_data(self, function: str, x: Any, in_numpy: bool = False) -> None:
        """Refuse an array without numbers, or with numbers that numpy does not have.

        Raises
        ------
        InputError
            If ``x`` is one.
        """
        problem = self.no_data(x)
        if problem is None and in_numpy and not self.in_numpy(x):
            problem = f"numpy has no {self.dtype_name(x)}", self.as_float32
        if problem is not None:
            raise InputError(
                f"{function}: {problem[0]}; expected {self.expected}"
                f"{' of a dtype that numpy has' if in_numpy else ''}. Pass {problem[1]}."
            )

    @abc.abstractmethod
    def device_of(self, x: Any) -> str:
        """Return the device that holds ``x``."""

    @abc.abstractmethod
    def pointer(self, x: Any) -> int:
        """Return the address of the first element."""

    def nbytes(self, x: Any) -> int:
        """Return the bytes of the elements (not of the storage behind a view)."""
        return int(x.nbytes)

    def dtype_name(self, x: Any) -> str:
        """Return the name of the elements' type, such as "float32"."""
        return str(x.dtype)

    def in_numpy(self, x: Any) -> bool:
        """Return whether numpy has the elements' type."""
        return True

    @abc.abstractmethod
    def to_host(self, x: Any) -> np.ndarray:
        """Return a numpy array; the device has finished when it returns."""

    @abc.abstractmethod
    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        """Return an array of this library on ``device`` with the content of ``a``; no copy where
        ``a`` can be used as it is.
        """

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        """Return this library's own array ``x`` on another device of this library."""
        return self.from_host(self.to_host(x), device, pinned)

    @abc.abstractmethod
    def copy(self, x: Any) -> Any:
        """Return a copy of ``x`` on the same device."""

    def compact(self, x: Any) -> Any:
        """Return a copy of ``x`` in new memory, in row-major order, for a library that requires it;
        None where a copy is not possible.
        """
        return None

    def out_of_reach(self, x: Any, library: str) -> Problem | None:
        """Return why numpy or CuPy cannot use the memory or the dtype of ``x``; None where they
        can.
        """
        where = self.device_of(x)
        if library == "numpy":
            if where != "cpu":
                return f"it is on {where}, and numpy can access only main memory", "gl.to_host(x)"
            if not self.in_numpy(x):
                return f"numpy has no {self.dtype_name(x)}", self.as_float32
        if library == "cupy" and not where.startswith("cuda"):
            return (
                f"it is {'in main memory' if self.name == 'numpy' else f'on {where}'}, and CuPy "
                "can access only CUDA memory",
                "gl.to_device(x, library='cupy')",
            )
        return None

    def unshared(self, x: Any, library: str) -> Problem | None:
        """Return what this library alone has against a view of ``x``, which has data; None where
        nothing is.
        """
        return None

    def obstacle(self, x: Any, library: str) -> Problem | None:
        """Return why ``x`` cannot be seen by ``library`` without a copy and which call makes one;
        None if it can.
        """
        return self.no_data(x) or self.unshared(x, library) or self.out_of_reach(x, library)

    def refuses(self, x: Any, owner: Backend) -> Problem | None:
        """Return why this library cannot see ``x``, an array of ``owner``, without a copy, and
        which call makes one; None if it can.
        """
        return None

    def from_dlpack(self, x: Any) -> Any:
        """Return a view of ``x`` that shares its memory."""
        return self.module.from_dlpack(x)

    def best_device(self) -> str | None:
        """Return the best device that this library can use now, by name; None where gpulab's own
        order of devices applies.
        """
        return None

    def waits_for(self, result: Any) -> Callable[[Any], Any] | None:
        """Return a function that waits for results like this one; None where waiting for the device
        is enough.
        """
        return None


class NumpyBackend(Backend):
    """Host memory."""

    name = "numpy"

    def owns(self, x: object) -> bool:
        return isinstance(x, np.ndarray)

    def device_of(self, x: Any) -> str:
        return "cpu"

    def pointer(self, x: Any) -> int:
        return int(x.__array_interface__["data"][0])

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

    def unshared(self, x: Any, library: str) -> Problem | None:
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
        return _dtype_problem(x)

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


def _dtype_problem(x: np.ndarray) -> Problem | None:
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


def require_plain_numbers(a: np.ndarray) -> None:
    """Refuse an array whose numbers no other library has.

    Raises
    ------
    InputError
        If it is one.
    """
    problem = _dtype_problem(a)
    if problem is not None:
        raise InputError(
            f"to_device: {problem[0]}; expected an array of plain numbers. Pass {problem[1]}."
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
