"""One adapter for each array library, so that no other module asks "is this torch or cupy?".

A library is found through ``sys.modules``: an array of it cannot exist unless the caller has imported it,
so looking at an array never imports anything heavy. Only ``backend(name)`` imports, when asked by name.

DLPack is not trusted blindly. With the versions seen (torch 2.13, numpy 2.4), a negative stride makes torch abort
the process, a read-only array becomes writable, a lazily negated tensor loses its sign, and a masked array its
mask; so every adapter names these obstacles before any library sees the array.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

from gpulab.errors import CopyRequiredError, DeviceError, InputError, shown


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
        """Return an array of this library on ``device`` with the content of ``a``; no copy where ``a`` can be used as it is."""
        raise NotImplementedError

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        """Return this library's own array ``x`` on another device of this library."""
        return self.from_host(self.to_host(x), device, pinned)

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        """Return why ``x`` cannot be seen by ``library`` without a copy and which call makes one; None if it can."""
        raise NotImplementedError

    def hazard(self, x: Any, library: str) -> tuple[str, str] | None:
        """Return the obstacle that the libraries themselves would not report: the few checks that every ``share`` pays for."""
        return self.obstacle(x, library)

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
        return int(x.__array_interface__["data"][0])

    def to_host(self, x: Any) -> np.ndarray:
        return x  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        if device != "cpu":
            raise DeviceError(f"to_device: numpy has no arrays on {device!r}; expected device 'cpu'. Pass library='torch' or 'cupy'.")
        return backend("torch").from_host(a, "cpu", True).numpy() if pinned else a

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        return self.hazard(x, library) or numpy_dtype_problem(x)

    def hazard(self, x: Any, library: str) -> tuple[str, str] | None:
        flags = x.flags
        if x.strides and min(x.strides) < 0:
            return "it has a negative stride", "numpy.ascontiguousarray(x)"
        if not flags.writeable:
            return "it is read-only, and the other library would write to it", "x.copy()"
        if not flags.aligned:
            return "its elements are not aligned in memory", "x.copy()"
        if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
            return numpy_dtype_problem(x)
        if library == "cupy":
            return "it is in main memory, and CuPy sees only CUDA memory", "gl.to_device(x, library='cupy')"
        return None

    def from_dlpack(self, x: Any) -> Any:
        view = np.from_dlpack(x)
        # An exporter without DLPack 1.0 cannot say "writable", and numpy then marks the view read-only.
        return view if view.flags.writeable or not hasattr(x, "numpy") else x.numpy()


def numpy_dtype_problem(x: np.ndarray) -> tuple[str, str] | None:
    """Return why no other library has an array like this, and what to call; None for plain numbers in native order."""
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        return "its mask would be lost", "x.filled(value)"
    dtype = x.dtype
    if dtype.kind not in "biufc" or dtype.char in "gG":
        return f"other libraries have no dtype {dtype}", "x.astype('float32')"
    if not dtype.isnative:
        return "its bytes are not in this machine's order", "x.astype(x.dtype.newbyteorder('='))"
    return None


class TorchBackend(Backend):
    """CPU, CUDA, ROCm, XPU and MPS tensors."""

    name = "torch"

    def __init__(self) -> None:
        super().__init__()
        torch = self.module
        self._plain_types = {torch.Tensor, torch.nn.Parameter}
        self._no_dispatch = torch.Tensor.__torch_dispatch__
        names = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")
        self._not_in_numpy = {getattr(torch, name) for name in (*names, "complex32") if hasattr(torch, name)}

    def owns(self, x: object) -> bool:
        return isinstance(x, self.module.Tensor)

    def device_of(self, x: Any) -> str:
        device = x.device
        return "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def nbytes(self, x: Any) -> int:
        return int(x.numel() * x.element_size())  # as if dense: ``x.nbytes`` raises for a sparse tensor

    def _no_data(self, x: Any) -> tuple[str, str] | None:
        """Return why ``x`` is no plain block of numbers, and what to call; None where it is one."""
        if type(x) not in self._plain_types and type(x).__torch_dispatch__ is not self._no_dispatch:
            return f"a {type(x).__name__} is not plain memory", "a plain tensor made from it"
        if x.device.type == "meta":
            return "a tensor on 'meta' has no data", "torch.empty_like(x, device='cpu')"
        if x.is_nested or x.layout is not self.module.strided:
            return f"its layout is {'nested' if x.is_nested else str(x.layout).removeprefix('torch.')}", "x.to_dense()"
        if x.is_quantized:
            return f"its dtype {x.dtype} is quantized", "x.dequantize()"
        return None

    def _host_problem(self, x: Any, function: str) -> InputError | None:
        problem = self._no_data(x)
        if problem is None and x.dtype in self._not_in_numpy:
            problem = f"numpy has no {str(x.dtype).removeprefix('torch.')}", "x.float()"
        if problem is None:
            return None
        return InputError(f"{function}: {problem[0]}; expected a dense tensor of a dtype that numpy has. Pass {problem[1]}.")

    def to_host(self, x: Any) -> np.ndarray:
        problem = self._host_problem(x, "to_host")
        if problem is not None:
            raise problem
        return x.detach().cpu().resolve_conj().resolve_neg().numpy()  # type: ignore[no-any-return]

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        wrong = numpy_dtype_problem(a)
        if wrong is not None:
            raise InputError(f"to_device: {wrong[0]}; expected an array of plain numbers. Pass {wrong[1]}.")
        usable = a.flags.writeable and a.flags.aligned and not any(stride < 0 or stride % a.itemsize for stride in a.strides)
        return self.move(self.module.from_numpy(a if usable else a.copy()), device, pinned)

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        if pinned and x.device.type == "cpu":
            x = x.pin_memory()
        return x.to(device)

    def hazard(self, x: Any, library: str) -> tuple[str, str] | None:
        # numpy would show a negated view without its sign, and CuPy would quietly copy from main memory; the rest raises.
        if type(x) in self._plain_types and not x.is_neg() and (library == "numpy" or x.device.type == "cuda"):
            return None
        return self.obstacle(x, library)

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        problem = self._no_data(x)
        if problem is not None:
            return problem
        if x.requires_grad:
            return "it takes part in autograd", "gl.share(x.detach(), ...), or gl.to_host(x) for a copy"
        if x.is_conj():
            return "its conjugation is pending", "x.resolve_conj()"
        if x.is_neg():
            return "its negation is pending", "x.resolve_neg()"
        kind = x.device.type
        if library == "numpy":
            if kind != "cpu":
                return f"it is on {self.device_of(x)}, and numpy sees only main memory", "gl.to_host(x)"
            if x.dtype in self._not_in_numpy:
                return f"numpy has no {str(x.dtype).removeprefix('torch.')}", "x.float()"
        elif kind != "cuda":
            return f"it is on {self.device_of(x)}, and CuPy sees only CUDA memory", "gl.to_device(x, library='cupy')"
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
        if not device.startswith("cuda"):
            raise DeviceError(f"to_device: cupy has no arrays on {device!r}; expected a CUDA device. Pass library='torch' or 'numpy'.")
        wrong = numpy_dtype_problem(a)
        if wrong is not None:
            raise InputError(f"to_device: {wrong[0]}; expected an array of plain numbers. Pass {wrong[1]}.")
        with self.module.cuda.Device(int(device.partition(":")[2] or 0)):
            if pinned:
                staging = importlib.import_module("cupyx").empty_like_pinned(np.ascontiguousarray(a))
                staging[...] = a
                a = staging
            array = self.module.asarray(a)
            self.module.cuda.get_current_stream().synchronize()  # the source may be changed as soon as this returns
            return array

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        if not device.startswith("cuda"):
            return super().move(x, device, pinned)
        with self.module.cuda.Device(int(device.partition(":")[2] or 0)):
            return self.module.asarray(x)

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        if library == "numpy":
            return f"it is on {self.device_of(x)}, and numpy sees only main memory", "gl.to_host(x)"
        if x.strides and min(x.strides) < 0:
            return "it has a negative stride", "cupy.ascontiguousarray(x)"
        return None


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
    made = _made.get(name) if isinstance(name, str) else None
    if made is not None:
        return made
    if not isinstance(name, str) or name not in _CLASSES:
        raise InputError(f"library {shown(name)} is not one that gpulab knows; expected one of {', '.join(_CLASSES)}. Pass one of these.")
    try:
        return _made.setdefault(name, _CLASSES[name]())
    except ImportError as error:
        raise InputError(f"library {name!r} cannot be imported ({error}); expected it to be installed. Run `gpulab doctor`.") from error


def backend_of(x: object) -> Backend | None:
    """Return the adapter of the library that owns ``x``, or None where no known library does."""
    modules = sys.modules
    for name in _CLASSES:
        # A half-imported or broken library (its name in sys.modules, None as value) owns no array.
        if modules.get(name) is not None and (_made.get(name) or backend(name)).owns(x):
            return _made[name]
    return None


def share(x: Any, library: str) -> Any:
    """Return a view of ``x`` in another library (see ``gpulab.arrays.share``)."""
    target = backend(library)
    owner = backend_of(x)
    if owner is target:
        return x
    if owner is None:
        return _share_foreign(x, target)
    hazard = owner.hazard(x, library)
    if hazard is not None:
        raise _copy_required(x, library, *hazard)
    try:
        return target.from_dlpack(x)
    except Exception as error:
        obstacle = owner.obstacle(x, library) or (f"{library} refuses it ({error})", "gl.to_device or gl.to_host")
        raise _copy_required(x, library, *obstacle) from error


def _share_foreign(x: Any, target: Backend) -> Any:
    """Share an array of a library that gpulab has no adapter for, if it speaks DLPack; host memory goes through numpy's checks."""
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__") or isinstance(x, np.generic):
        raise InputError(
            f"share: got a {type(x).__name__}; expected an array of {', '.join(_CLASSES)} or another one that speaks DLPack. "
            "Wrap it with numpy.asarray first."
        )
    host = 1  # kDLCPU in dlpack.h
    try:
        if int(x.__dlpack_device__()[0]) != host:
            return target.from_dlpack(x)
        view = np.from_dlpack(x)
    except Exception as error:
        raise _copy_required(x, target.name, f"its library refuses ({error})", "numpy.asarray(x)") from error
    return share(view, target.name)


def _copy_required(x: Any, library: str, reason: str, remedy: str) -> CopyRequiredError:
    nested = getattr(x, "is_nested", False)  # a nested tensor has no shape, and raises when asked for it
    shape = "" if nested else f" of shape {tuple(getattr(x, 'shape', ()))}"
    return CopyRequiredError(
        f"share: {library} cannot see this {type(x).__name__}{shape} without a copy, because {reason}; "
        f"expected memory that both libraries can use. Call {remedy}."
    )
