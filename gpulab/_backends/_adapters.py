"""The interface of every adapter, and the adapters for numpy, PyTorch, CuPy, JAX and TensorFlow.

Arrays of numpy, PyTorch and CuPy change in place. Those of JAX and TensorFlow never change (only a
tf.Variable does), so a view of one must not be written to, and memory that JAX or TensorFlow has a
view of must not be modified.

Observed with JAX 0.10, on a CPU: through DLPack it shares memory only where the memory begins on a
64-byte boundary, and otherwise copies silently; it converts float64 to float32 silently unless
``jax_enable_x64`` is set; ``device_put`` uses the memory of an aligned NumPy array without a copy,
so that a later change of the NumPy array shows in the JAX array, which should never change. Calls
return before the work is done, on a CPU too: code that reads the memory or the clock has to wait
for the array itself.

Observed with TensorFlow 2.21: through DLPack it takes memory at any address, and **aborts the
process** at the first operation on memory that does not begin on a 64-byte boundary. The export of
a tensor of text aborts it too. gpulab refuses both before it calls TensorFlow.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gpulab.errors import DeviceError, InputError, install_extra, kind_of, pip_command

# Why an array cannot be used, and what to call or to pass in its place.
Problem = tuple[str, str]
_TORCH_NOT_IN_NUMPY = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn_x2", "complex32"),
)

# Bytes to which memory must be aligned for XLA to use it without a copy; JAX's own message names
# them: "not aligned to 64 bytes".
_ALIGNMENT = 64
# dtypes that JAX converts to 32 bits unless jax_enable_x64 is set (complex128 becomes complex64).
_NARROWED = {"float64", "int64", "uint64", "complex128"}
# JAX's platform -> PyTorch's name of the same devices.
_PLATFORMS = {"gpu": "cuda", "cuda": "cuda", "rocm": "cuda"}
# TensorFlow's dtypes of numbers: first those that numpy has too, then all.
_NUMBERS = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}
_KNOWN = _NUMBERS | {"bfloat16", "float8_e4m3fn", "float8_e5m2", "half"}
# Where the field byte_offset begins in DLTensor, after data (8 bytes), device 8, ndim 4, dtype 4,
# shape 8 and strides 8 (dlpack.h).
_BYTE_OFFSET = 40


class Backend(abc.ABC):
    """What gpulab needs from an array library. ``device`` is text such as ``"cpu"`` or
    ``"cuda:0"``.
    """

    name = ""
    # The names of its classes of arrays.
    classes: tuple[str, ...] = ()
    # What to do where the library is not installed.
    how_to_get = "Run `gpulab doctor`."
    # What ``to_host`` and ``device_of`` expect, and the call that gives numbers that numpy has.
    expected, as_float32 = "", ""
    # Whether arrays of this library never change. Such an array must not share memory that other
    # code may write to. ``from_dlpack`` of such a library may return a copy without notice, so
    # ``share`` compares the address of every view with that of the array.
    immutable = False
    # Environment variables that are set before the library is imported, unless they are set
    # already.
    settings: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def prepare(cls) -> None:
        """Put ``settings`` into the environment; the library reads them at its import, or when it
        first uses a GPU.
        """
        for name, value in cls.settings.items():
            os.environ.setdefault(name, value)

    def __init__(self) -> None:
        self.prepare()
        self.module: Any = importlib.import_module(self.name)
        self.types = tuple(getattr(self.module, name) for name in self.classes)

    def has_data(self, x: Any) -> bool:
        """Return whether ``x`` holds numbers now. A symbolic value of a graph, a traced value of a
        function and a tensor on "meta" do not.
        """
        return self.no_data(x) is None if self.immutable else str(x.device) != "meta"

    def no_data(self, x: Any) -> Problem | None:
        """Return why ``x`` is not a plain block of numbers; None if it is."""
        return None

    def require_data(self, function: str, x: Any, in_numpy: bool = False) -> None:
        """Refuse an array without numbers or, with ``in_numpy``, of a dtype that numpy lacks.

        Raises
        ------
        InputError
            If ``x`` is such an array.
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
        """Return ``x`` as a numpy array, after the device has finished."""

    @abc.abstractmethod
    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        """Return an array of this library on ``device`` with the content of ``a``, without a copy
        if the library can use the memory of ``a``.
        """

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        """Return ``x``, an array of this library, on another device."""
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
        """Return an obstacle to a view of ``x`` that is particular to this library, such as
        autograd in PyTorch; None if there is none. ``x`` has data.
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

    name, classes = "numpy", ("ndarray",)

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
        # An exporter without DLPack 1.0 cannot mark memory as writable, and numpy then makes the
        # view read-only. Views of JAX's and TensorFlow's arrays stay read-only.
        return (
            x.numpy()
            if not view.flags.writeable and torch is not None and isinstance(x, torch.Tensor)
            else view
        )


def _dtype_problem(x: np.ndarray) -> Problem | None:
    """Return why other libraries cannot have an array like this, and what to call; None for plain
    numbers in native byte order.
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
    """Refuse an array of a kind that other libraries do not have.

    Raises
    ------
    InputError
        If ``a`` is such an array.
    """
    problem = _dtype_problem(a)
    if problem is not None:
        raise InputError(
            f"to_device: {problem[0]}; expected an array of plain numbers. Pass {problem[1]}."
        )


class TorchBackend(Backend):
    """CPU, CUDA, ROCm, XPU and MPS tensors."""

    name, classes = "torch", ("Tensor",)
    expected, as_float32 = "a dense tensor", "x.float()"

    def __init__(self) -> None:
        super().__init__()
        torch = self.module
        self._plain_types = {torch.Tensor, torch.nn.Parameter}
        self._no_dispatch = torch.Tensor.__torch_dispatch__
        self._not_in_numpy = {
            getattr(torch, name) for name in _TORCH_NOT_IN_NUMPY if hasattr(torch, name)
        }

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
        """Return why ``x`` is not a plain block of numbers, and what to call; None if it is."""
        if type(x) not in self._plain_types and type(x).__torch_dispatch__ is not self._no_dispatch:
            return f"{kind_of(x)} is not plain memory", "a plain tensor made from it"
        if x.device.type == "meta":
            return "a tensor on 'meta' has no data", "torch.empty_like(x, device='cpu')"
        if x.is_nested or x.layout is not self.module.strided:
            layout = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            return (
                f"its layout is {layout}",
                "torch.nested.to_padded_tensor(x, 0.0)" if x.is_nested else "x.to_dense()",
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
        if x.is_meta:  # sparse tensors and others without plain memory can be moved
            self.require_data("to_device", x)
        if pinned and x.device.type == "cpu":
            x = x.pin_memory()
        try:
            return x.to(device)
        except TypeError as error:
            # raised for Metal, which has no float64, NumPy's default dtype
            less = "complex64" if x.is_complex() else "float32"
            raise InputError(
                f"to_device: {device} does not support {self.dtype_name(x)}; expected a dtype that "
                "it supports. Convert the array first: "
                f'a.astype("{less}") in NumPy, a.to(torch.{less}) in PyTorch.'
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

    name, classes = "cupy", ("ndarray",)

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
                empty = importlib.import_module("cupyx").empty_pinned
                pageable, a = a, empty(a.shape, a.dtype)
                a[...] = pageable
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
        with x.device:  # else the copy is on the current device
            return x.copy()

    def unshared(self, x: Any, library: str) -> Problem | None:
        if x.strides and min(x.strides) < 0:
            return "it has a negative stride", "cupy.ascontiguousarray(x)"
        return None


class _UnchangingBackend(Backend):
    """The part that JAX and TensorFlow have in common: their arrays never change, begin on a
    64-byte boundary, and are on a CPU or on the GPUs that the library was built for.
    """

    how_to_get = install_extra("rosetta")
    immutable = True
    title = ""

    @abc.abstractmethod
    def has_gpu(self) -> bool:
        """Return whether the library can use a GPU now."""

    def refuse_pinned(self, pinned: bool) -> None:
        """Refuse page-locked memory.

        Raises
        ------
        DeviceError
            If ``pinned`` is True.
        """
        if pinned:
            raise DeviceError(
                f"to_device: {self.title} does not accept page-locked memory from outside; "
                "expected pinned=False. Leave it out."
            )

    def refuses(self, x: Any, owner: Backend) -> Problem | None:
        where = owner.device_of(x)
        if where == "cpu":
            off = owner.pointer(x) % _ALIGNMENT
            if not off:
                return None
            return (
                f"it begins {off} bytes after a {_ALIGNMENT}-byte boundary, and {self.name} "
                "always copies such memory",
                f"gl.to_device(x, library={self.name!r})",
            )
        if not where.startswith("cuda") or not self.has_gpu():
            return (
                f"it is on {where}, which this {self.title} cannot use",
                f'gl.to_device(x, "cpu", library="{self.name}")',
            )
        return None


class JaxBackend(_UnchangingBackend):
    """CPU, CUDA, ROCm and TPU arrays."""

    name, title, classes = "jax", "JAX", ("Array",)
    expected, as_float32 = "an array with data", 'x.astype("float32")'
    # JAX would take three quarters of a GPU's memory at its first operation, and PyTorch runs in
    # the same process. Source: JAX, "GPU memory allocation".
    settings = MappingProxyType({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})

    def device_of(self, x: Any) -> str:
        self.require_data("device_of", x)
        # the first device, for an array that is spread over several
        first = min(x.devices(), key=lambda device: device.id)
        return self._name(first)

    def _name(self, device: Any) -> str:
        if device.platform == "cpu":
            return "cpu"
        index = device.local_hardware_id if device.local_hardware_id is not None else device.id
        return f"{_PLATFORMS.get(device.platform, device.platform)}:{index}"

    def pointer(self, x: Any) -> int:
        return int(x.unsafe_buffer_pointer())

    def in_numpy(self, x: Any) -> bool:
        # numpy has bfloat16, float8 and int4 only through an extension
        return getattr(x.dtype, "kind", "V") in "biufc"

    def no_data(self, x: Any) -> Problem | None:
        """Return why ``x`` is not an array with data, and what to pass; None if it is."""
        if isinstance(x, self.module.core.Tracer):
            return (
                "it is a traced value inside jit, grad or vmap, without data",
                "an array from outside the function",
            )
        if x.is_deleted():
            return (
                "its memory was released (deleted, or donated to a function)",
                "an array that still has memory, such as the function's result",
            )
        return None

    def to_host(self, x: Any) -> np.ndarray:
        self.require_data("to_host", x, in_numpy=True)
        return np.asarray(x)  # waits

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        require_plain_numbers(a)
        lost = self._would_lose(str(a.dtype))
        if lost is not None:
            raise InputError(
                f"to_device: {lost[0]}; expected a dtype that JAX keeps. Call {lost[1]}."
            )
        self.refuse_pinned(pinned)
        there = self._device(device)
        with self.module.default_device(there):
            # Always a copy: device_put would use the memory of an aligned array, and later changes
            # of the array would show in JAX's.
            made = self.module.numpy.array(a, copy=True)
        return self.module.device_put(made, there).block_until_ready()

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        self.refuse_pinned(pinned)
        return self.module.device_put(x, self._device(device)).block_until_ready()

    def copy(self, x: Any) -> Any:
        return self.module.numpy.array(x, copy=True)

    def _device(self, device: str) -> Any:
        """Return JAX's object for the device of that name."""
        kind, _, index = device.partition(":")
        found = self._devices("cpu" if kind == "cpu" else "gpu") if kind in ("cpu", "cuda") else []
        if int(index or 0) >= len(found):
            command = pip_command("install 'jax[cuda13]'")
            raise DeviceError(
                f"to_device: this JAX has no {device!r} (it has "
                f"{', '.join(self._name(one) for one in self.module.local_devices())}); expected "
                f"one of these. Pass device='cpu', or install JAX's build for this GPU: {command}, "
                "or 'jax[cuda12]' if the driver is older than CUDA 13."
            )
        return found[int(index or 0)]

    def _devices(self, platform: str) -> list[Any]:
        try:
            return list(self.module.local_devices(backend=platform))
        except RuntimeError:
            # JAX was not built for this platform, or finds no device of it
            return []

    def best_device(self) -> str:
        return self._name(self.module.local_devices()[0])

    def _would_lose(self, dtype: str) -> Problem | None:
        """Return why JAX would change a dtype; None where it keeps it."""
        canonical = self.module.dtypes.canonicalize_dtype  # by the present setting
        kept = str(canonical(dtype)) if dtype in _NARROWED else dtype
        if kept == dtype:
            return None
        return (
            f"JAX converts {dtype} to {kept} unless 64-bit types are enabled",
            f"jax.config.update('jax_enable_x64', True) first, or convert the array to {kept}",
        )

    def has_gpu(self) -> bool:
        return bool(self._devices("gpu"))

    def unshared(self, x: Any, library: str) -> Problem | None:
        if len(x.devices()) > 1:
            return f"it is spread over {len(x.devices())} devices", "gl.to_host(x)"
        x.block_until_ready()  # its memory is filled only then
        return None

    def refuses(self, x: Any, owner: Backend) -> Problem | None:
        is_empty = owner.device_of(x) == "cpu" and not owner.nbytes(x)
        lost = self._would_lose(owner.dtype_name(x))
        return lost if lost or is_empty else super().refuses(x, owner)

    def from_dlpack(self, x: Any) -> Any:
        # an empty array may be copied: there is nothing to share
        return self.module.numpy.from_dlpack(x, copy=None if 0 in x.shape else False)

    def waits_for(self, result: Any) -> Callable[[Any], Any] | None:
        leaves = self.module.tree_util.tree_leaves(result)
        has_arrays = any(isinstance(leaf, self.types) for leaf in leaves)
        return self.module.block_until_ready if has_arrays else None


@contextlib.contextmanager
def _without_error_output() -> Iterator[None]:
    """Discard what is written to the error output inside the context, by C++ too. On processors
    with AVX512-VNNI, TensorFlow 2.21 prints at its import that oneDNN is on, at any level of
    TF_CPP_MIN_LOG_LEVEL.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class TensorFlowBackend(_UnchangingBackend):
    """CPU and GPU tensors, and Variables, whose value is used."""

    name, title, classes = "tensorflow", "TensorFlow", ("Tensor", "Variable")
    expected, as_float32 = "a tensor with numbers in it", "tf.cast(x, 'float32')"
    settings = MappingProxyType(
        {
            # Print only errors. Otherwise TensorFlow prints at its import which instructions its
            # build uses and that it found no GPU.
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # TensorFlow would take nearly all of a GPU's memory at its first operation, and PyTorch
            # runs in the same process. Source: TensorFlow, "Use a GPU", limiting GPU memory growth.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        }
    )

    def __init__(self) -> None:
        with _without_error_output():
            # Triton first: it comes with PyTorch's CUDA builds and contains LLVM, as TensorFlow
            # does. TensorFlow exposes its own LLVM to libraries that are loaded later, and Triton
            # would then crash Python (TensorFlow issue 124205).
            with contextlib.suppress(ImportError):
                if self.name not in sys.modules:
                    importlib.import_module("triton")
            super().__init__()
        self._eager: Any = self.module.__internal__.EagerTensor

    def no_data(self, x: Any) -> Problem | None:
        """Return why ``x`` is not a tensor with numbers in it, and what to pass; None if it is."""
        if not isinstance(x, (self.module.Variable, self._eager)):
            return (
                "it is a symbolic tensor of a graph, without values",
                "what session.run or the function returns",
            )
        if x.dtype.name not in _KNOWN:
            return f"its dtype {x.dtype.name} is not numeric", "a tensor of numbers"
        return None

    def device_of(self, x: Any) -> str:
        self.require_data("device_of", x)
        return self._name(x.device if isinstance(x, self.module.Variable) else x.backing_device)

    def _name(self, device: str) -> str:
        kind, _, index = device.rpartition("device:")[2].partition(":")
        return (
            "cpu" if kind == "CPU" else f"{'cuda' if kind == 'GPU' else kind.lower()}:{index or 0}"
        )

    def pointer(self, x: Any) -> int:
        capsule = x.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = get(capsule, b"dltensor")
        data = ctypes.c_void_p.from_address(tensor).value or 0
        return int(data + ctypes.c_uint64.from_address(tensor + _BYTE_OFFSET).value)

    def nbytes(self, x: Any) -> int:
        return math.prod(int(length) for length in x.shape) * int(x.dtype.size)

    def dtype_name(self, x: Any) -> str:
        return {"half": "float16"}.get(x.dtype.name, str(x.dtype.name))

    def in_numpy(self, x: Any) -> bool:
        return x.dtype.name in _NUMBERS

    def to_host(self, x: Any) -> np.ndarray:
        self.require_data("to_host", x, in_numpy=True)
        if isinstance(x, self.module.Variable) or self.device_of(x) != "cpu":
            return x.numpy()  # type: ignore[no-any-return]
        return np.from_dlpack(x)  # a read-only view; x.numpy() would copy

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        require_plain_numbers(a)
        return self._placed(lambda: self.module.constant(a), device, pinned)

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        self.require_data("to_device", x)
        return self._placed(lambda: self.module.identity(x), device, pinned)

    def copy(self, x: Any) -> Any:
        return self.module.raw_ops.DeepCopy(x=x)

    def _placed(self, make: Callable[[], Any], device: str, pinned: bool) -> Any:
        self.refuse_pinned(pinned)
        there = self._device(device)
        # eagerly, even while a graph is being built
        with self.module.init_scope(), self.module.device(there):
            return make()

    def _device(self, device: str) -> str:
        """Return TensorFlow's own name of a device, and refuse one that does not exist: TensorFlow
        would silently use another device in its place (soft placement).
        """
        kind, _, index = device.partition(":")
        wanted = f"/device:{'CPU' if kind == 'cpu' else 'GPU'}:{index or 0}"
        there = [one.name for one in self.module.config.list_logical_devices()]
        if kind not in ("cpu", "cuda") or wanted not in there:
            command = pip_command("install 'tensorflow[and-cuda]'")
            raise DeviceError(
                f"to_device: this TensorFlow has no {device!r} (it has "
                f"{', '.join(map(self._name, there))}); expected one of these. Pass device='cpu', "
                f"or install TensorFlow's build for GPUs: {command}."
            )
        return wanted

    def has_gpu(self) -> bool:
        return bool(self.module.config.list_logical_devices("GPU"))

    def best_device(self) -> str:
        gpus = self.module.config.list_logical_devices("GPU")
        return self._name(gpus[0].name) if gpus else "cpu"

    def unshared(self, x: Any, library: str) -> Problem | None:
        if isinstance(x, self.module.Variable):
            return (
                "a Variable moves to other memory when it is assigned to",
                f"gl.share(x.value(), {library!r})",
            )
        return None

    def from_dlpack(self, x: Any) -> Any:
        return self.module.experimental.dlpack.from_dlpack(x.__dlpack__())

    def waits_for(self, result: Any) -> Callable[[Any], Any] | None:
        if not self.has_gpu() or not any(
            isinstance(leaf, self.types) for leaf in self.module.nest.flatten(result)
        ):
            return None  # on a CPU, TensorFlow's calls return when the work is done
        sync = self.module.test.experimental.sync_devices
        return lambda _: sync()
