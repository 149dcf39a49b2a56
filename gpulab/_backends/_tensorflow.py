"""TensorFlow's tensors. They never change (only a Variable does): a view of one is read-only, and
shared memory must not be modified.

Observed with TensorFlow 2.21: through DLPack it takes memory at any address, and **aborts the
process** at the first operation on memory that does not begin on a 64-byte boundary, and where a
tensor of text is exported. gpulab refuses both before it calls TensorFlow.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np

from gpulab._backends._base import Backend
from gpulab._backends._jax import HOW_TO_GET, not_aligned
from gpulab._backends._numpy import numpy_dtype_problem
from gpulab.errors import DeviceError, InputError, pip_command

_NUMBERS = {
    f"{kind}{bits}"
    for kind, sizes in (
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
        ("float", (16, 32, 64)),
    )
    for bits in sizes
} | {"bool", "complex64", "complex128"}
_NOT_IN_NUMPY = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "half"}
_KNOWN = _NUMBERS | _NOT_IN_NUMPY
# of byte_offset in DLTensor: data 8, device 8, ndim 4, dtype 4, shape 8, strides 8 (dlpack.h)
_BYTE_OFFSET = 40


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Leave out what TensorFlow's C++ tells for information while it is imported; all else stands
    on the error output afterwards.

    Of TensorFlow 2.21 a part does not heed TF_CPP_MIN_LOG_LEVEL: on processors with AVX512-VNNI it
    tells that oneDNN is on, at any level.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") == "0":  # somebody wants to read it
        yield
        return
    try:
        kept = os.dup(2)
    except OSError:  # no error output, so nothing to leave out
        yield
        return
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            rest = b"".join(line for line in said if not _CHATTER.match(line))
            with contextlib.suppress(OSError):  # nobody reads it any more
                os.write(2, rest)


_CHATTER = re.compile(rb"I\d{4} |WARNING: All log messages before absl::InitializeLog\(\)")


class TensorFlowBackend(Backend):
    """CPU and GPU tensors, and Variables, whose value is used."""

    name = "tensorflow"
    how_to_get = HOW_TO_GET
    immutable = True
    may_copy = True
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
        with _without_chatter():
            super().__init__()
        tf = self.module
        self._eager: Any = tf.__internal__.EagerTensor

    def owns(self, x: object) -> bool:
        return isinstance(x, (self.module.Tensor, self.module.Variable))

    def has_data(self, x: Any) -> bool:
        return self._no_data(x) is None

    def _no_data(self, x: Any) -> tuple[str, str] | None:
        """Return why ``x`` is no tensor with numbers in it, and what to pass; None where it is
        one.
        """
        if isinstance(x, self.module.Variable):
            if not self.module.executing_eagerly():
                return "it is a Variable of a graph", "session.run(x)"
        elif not isinstance(x, self._eager):
            return (
                "it is a symbolic tensor of a graph, without values",
                "what session.run or the function returns",
            )
        if x.dtype.name not in _KNOWN:
            return f"its dtype {x.dtype.name} is not numeric", "a tensor of numbers"
        return None

    def _require_data(self, function: str, x: Any) -> None:
        problem = self._no_data(x)
        if problem is not None:
            raise InputError(
                f"{function}: {problem[0]}; expected a tensor with numbers in it. Pass "
                f"{problem[1]}."
            )

    def device_of(self, x: Any) -> str:
        self._require_data("device_of", x)
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
        self._require_data("to_host", x)
        if not self.in_numpy(x):
            raise InputError(
                f"to_host: numpy has no {x.dtype.name}; expected a dtype that numpy has. Pass "
                "tf.cast(x, 'float32')."
            )
        if isinstance(x, self.module.Variable) or self.device_of(x) != "cpu":
            return x.numpy()  # type: ignore[no-any-return]
        return np.from_dlpack(x)  # read-only, as the tensor is; x.numpy() would copy

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        wrong = numpy_dtype_problem(a)
        if wrong is not None:
            raise InputError(
                f"to_device: {wrong[0]}; expected an array of plain numbers. Pass {wrong[1]}."
            )
        return self._placed(lambda: self.module.constant(a), device, pinned)

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        self._require_data("to_device", x)
        return self._placed(lambda: self.module.identity(x), device, pinned)

    def copy(self, x: Any) -> Any:
        return self.module.raw_ops.DeepCopy(x=x)

    def _placed(self, make: Callable[[], Any], device: str, pinned: bool) -> Any:
        if pinned:
            raise DeviceError(
                "to_device: TensorFlow does not accept page-locked memory from outside; expected "
                "pinned=False. Leave it out."
            )
        there = self._device(device)
        # outside of any graph that is being built
        with self.module.init_scope(), self.module.device(there):
            made = make()
        if not isinstance(made, self._eager):
            raise InputError(
                "to_device: TensorFlow is building a graph, or eager execution is off; expected "
                "eager execution. Call to_device "
                "outside of the graph."
            )
        return made

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
                f"{', '.join(map(self._name, there))}); expected one of these. "
                f"Pass device='cpu', or install TensorFlow's build for GPUs: {command}."
            )
        return wanted

    def best_device(self) -> str:
        gpus = self.module.config.list_logical_devices("GPU")
        return self._name(gpus[0].name) if gpus else "cpu"

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        problem = self._no_data(x)
        if problem is not None:
            return problem
        if isinstance(x, self.module.Variable):
            return (
                "a Variable moves to other memory when it is assigned to",
                f"gl.share(x.value(), {library!r})",
            )
        where = self.device_of(x)
        if library == "numpy":
            if where != "cpu":
                return f"it is on {where}, and numpy can access only main memory", "gl.to_host(x)"
            if not self.in_numpy(x):
                return f"numpy has no {x.dtype.name}", "tf.cast(x, 'float32')"
        if library == "cupy" and not where.startswith("cuda"):
            return (
                f"it is on {where}, and CuPy can access only CUDA memory",
                "gl.to_device(x, library='cupy')",
            )
        return None

    def refuses(self, x: Any, owner: Backend) -> tuple[str, str] | None:
        if not owner.is_contiguous(x):
            return (
                "its elements are not contiguous in row-major order",
                "gl.to_device(x, library='tensorflow')",
            )
        where = owner.device_of(x)
        if where == "cpu":
            return not_aligned(owner.pointer(x), "tensorflow")
        if not where.startswith("cuda") or not self.module.config.list_logical_devices("GPU"):
            return (
                f"it is on {where}, which this TensorFlow cannot use",
                'gl.to_device(x, "cpu", library="tensorflow")',
            )
        return None

    def from_dlpack(self, x: Any) -> Any:
        return self.module.experimental.dlpack.from_dlpack(x.__dlpack__())

    def waits_for(self, result: Any) -> Callable[[Any], Any] | None:
        if not any(
            self.owns(leaf) for leaf in self.module.nest.flatten(result)
        ) or not self.module.config.list_logical_devices("GPU"):
            return None  # on a CPU its calls return when the work is done
        sync = self.module.test.experimental.sync_devices
        return lambda _: sync()
