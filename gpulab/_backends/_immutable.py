"""JAX's and TensorFlow's arrays. They never change (only a tf.Variable does): a view of one is
read-only, and memory that JAX or TensorFlow has a view of must not be modified.

Observed with JAX 0.10, on a CPU: through DLPack it shares memory only where the memory begins on a
64-byte boundary, and otherwise copies silently; it converts float64 to float32 silently unless
``jax_enable_x64`` is set; ``device_put`` takes over an aligned NumPy array's own memory, so that a
later change of the array shows in a JAX array, which should never change. Calls return before the
work is done, on a CPU too: code that reads the memory or the clock has to wait for the array
itself.

Observed with TensorFlow 2.21: through DLPack it takes memory at any address, and **aborts the
process** at the first operation on memory that does not begin on a 64-byte boundary, and where a
tensor of text is exported. gpulab refuses both before it calls TensorFlow.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np

from gpulab._backends._base import Backend, Problem, require_plain_numbers
from gpulab.errors import DeviceError, InputError, install_extra, pip_command

# What XLA asks of memory that it takes as it is; JAX's own message names it: "not aligned to 64
# bytes".
_ALIGNMENT = 64
# What JAX makes 32-bit numbers of, unless jax_enable_x64 is set (complex128 becomes complex64).
_NARROWED = {"float64", "int64", "uint64", "complex128"}
# JAX's platform -> PyTorch's name of the same devices.
_PLATFORMS = {"gpu": "cuda", "cuda": "cuda", "rocm": "cuda"}
# TensorFlow's dtypes.
_NUMBERS = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}
_NOT_IN_NUMPY = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "half"}
_KNOWN = _NUMBERS | _NOT_IN_NUMPY
# of byte_offset in DLTensor: data 8, device 8, ndim 4, dtype 4, shape 8, strides 8 (dlpack.h)
_BYTE_OFFSET = 40


class _UnchangingBackend(Backend):
    """What both libraries have in common: arrays that never change, in memory that begins on a
    64-byte boundary, on a CPU or on the GPUs that the library was built for.
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
            If it was asked for.
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

    name, title = "jax", "JAX"
    expected, as_float32 = "an array with data", 'x.astype("float32")'
    # JAX would take three quarters of a GPU's memory at its first operation, and PyTorch is in the
    # same kernel. Source: JAX, "GPU memory allocation".
    settings = MappingProxyType({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})

    def owns(self, x: object) -> bool:
        return isinstance(x, self.module.Array)

    def device_of(self, x: Any) -> str:
        self.require_data("device_of", x)
        # of an array that is spread over several, the first
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
        # bfloat16, float8 and int4 are numpy's only through an extension
        return getattr(x.dtype, "kind", "V") in "biufc"

    def no_data(self, x: Any) -> Problem | None:
        """Return why ``x`` is no array with data, and what to pass; None where it is one."""
        if isinstance(x, self.module.core.Tracer):
            return (
                "it is a traced value inside jit, grad or vmap, without data",
                "an array from outside of the function",
            )
        if x.is_deleted():
            return (
                "its memory was released (deleted, or donated to a function)",
                "the array that resulted from it",
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
                f"to_device: {lost[0]}; expected a dtype that JAX has. Call {lost[1]}."
            )
        self.refuse_pinned(pinned)
        there = self._device(device)
        with self.module.default_device(there):
            # A copy in any case: device_put would lie over an aligned array's own memory, and see
            # what is written to it later.
            made = self.module.numpy.array(a, copy=True)
        return self.module.device_put(made, there).block_until_ready()

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        self.refuse_pinned(pinned)
        return self.module.device_put(x, self._device(device)).block_until_ready()

    def copy(self, x: Any) -> Any:
        return self.module.numpy.array(x, copy=True)

    def _device(self, device: str) -> Any:
        """Return JAX's own device of that name."""
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
            # JAX's word for a platform that it was not built for, or finds no device of
            return []

    def best_device(self) -> str:
        return self._name(self.module.local_devices()[0])

    def _would_lose(self, dtype: str) -> Problem | None:
        """Return why JAX would change a dtype; None where it keeps it."""
        if dtype not in _NARROWED:
            return None
        kept = str(self.module.dtypes.canonicalize_dtype(dtype))  # by the setting of this moment
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
        # of nothing, a copy is none
        return self.module.numpy.from_dlpack(x, copy=None if 0 in x.shape else False)

    def waits_for(self, result: Any) -> Callable[[Any], Any] | None:
        arrays = (leaf for leaf in self.module.tree_util.tree_leaves(result) if self.owns(leaf))
        return self.module.block_until_ready if next(arrays, None) is not None else None


@contextlib.contextmanager
def _without_error_output() -> Iterator[None]:
    """Leave out what C++ writes to the error output meanwhile: at its import, TensorFlow 2.21 tells
    at any level of TF_CPP_MIN_LOG_LEVEL that oneDNN is on, on processors with AVX512-VNNI.
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

    name, title = "tensorflow", "TensorFlow"
    expected, as_float32 = "a tensor with numbers in it", "tf.cast(x, 'float32')"
    settings = MappingProxyType(
        {
            # Only errors are printed: else TensorFlow tells at its import which instructions its
            # build uses and that it found no GPU.
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # TensorFlow would take nearly all of a GPU's memory at its first operation, and PyTorch
            # is in the same kernel. Source: TensorFlow, "Use a GPU", limiting GPU memory growth.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        }
    )

    def __init__(self) -> None:
        with _without_error_output():
            super().__init__()
        self._eager: Any = self.module.__internal__.EagerTensor

    def owns(self, x: object) -> bool:
        return isinstance(x, (self.module.Tensor, self.module.Variable))

    def no_data(self, x: Any) -> Problem | None:
        """Return why ``x`` is no tensor with numbers in it, and what to pass; None where it is
        one.
        """
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
        return np.from_dlpack(x)  # read-only, as the tensor is; x.numpy() would copy

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
        # outside of any graph that is being built
        with self.module.init_scope(), self.module.device(there):
            return make()

    def _device(self, device: str) -> str:
        """Return TensorFlow's own name of a device that is there: it would place elsewhere without
        a word (soft placement).
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
            self.owns(leaf) for leaf in self.module.nest.flatten(result)
        ):
            return None  # on a CPU its calls return when the work is done
        sync = self.module.test.experimental.sync_devices
        return lambda _: sync()
