"""JAX's arrays. They never change: a view of one is read-only, and memory that JAX has a view of
must not be modified.

Observed with JAX 0.10, on a CPU: through DLPack it shares memory only where the memory begins on a
64-byte boundary, and otherwise copies silently; it converts float64 to float32 silently unless
``jax_enable_x64`` is set; ``device_put`` takes over an aligned NumPy array's own memory, so that a
later change of the array shows in a JAX array, which should never change. Calls return before the
work is done, on a CPU too: code that reads the memory or the clock has to wait for the array
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from gpulab._backends._base import Backend
from gpulab._backends._numpy import numpy_dtype_problem
from gpulab.errors import DeviceError, InputError, install_extra, pip_command

# What XLA asks of memory that it takes as it is; JAX's own message names it: "not aligned to 64
# bytes".
ALIGNMENT = 64
HOW_TO_GET = install_extra("rosetta")
# What JAX makes 32-bit numbers of, unless jax_enable_x64 is set (complex128 becomes complex64).
_NARROWED = {"float64", "int64", "uint64", "complex128"}
# JAX's platform -> PyTorch's name of the same devices.
_PLATFORMS = {"gpu": "cuda", "cuda": "cuda", "rocm": "cuda"}


def not_aligned(address: int, library: str) -> tuple[str, str] | None:
    """Return why ``library`` cannot use memory that begins at an address without a copy; None where
    it can.
    """
    off = address % ALIGNMENT
    if not off:
        return None
    return (
        f"it begins {off} bytes after a {ALIGNMENT}-byte boundary, and {library} always copies "
        "such memory",
        f"gl.to_device(x, library={library!r})",
    )


class JaxBackend(Backend):
    """CPU, CUDA, ROCm and TPU arrays."""

    name = "jax"
    how_to_get = HOW_TO_GET
    immutable = True
    may_copy = True
    # JAX would take three quarters of a GPU's memory at its first operation, and PyTorch is in the
    # same kernel. Source: JAX, "GPU memory allocation".
    settings = MappingProxyType({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})

    def owns(self, x: object) -> bool:
        return isinstance(x, self.module.Array)

    def has_data(self, x: Any) -> bool:
        return (
            not isinstance(x, self.module.core.Tracer)
            and not x.is_deleted()
            and isinstance(x.dtype, np.dtype)
        )

    def device_of(self, x: Any) -> str:
        problem = self._no_data(x)
        if problem is not None:
            raise InputError(
                f"device_of: {problem[0]}; expected an array with data. Pass {problem[1]}."
            )
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

    def _no_data(self, x: Any) -> tuple[str, str] | None:
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
        if not isinstance(x.dtype, np.dtype):
            return f"its dtype {x.dtype} exists only in JAX", "jax.random.key_data(x)"
        if not x.is_fully_addressable:
            return (
                "a part of it is on another machine",
                "jax.experimental.multihost_utils.process_allgather(x)",
            )
        return None

    def to_host(self, x: Any) -> np.ndarray:
        problem = self._no_data(x)
        if problem is None and not self.in_numpy(x):
            problem = f"numpy has no {x.dtype}", 'x.astype("float32")'
        if problem is not None:
            raise InputError(
                f"to_host: {problem[0]}; expected an array with data of a dtype that numpy has. "
                f"Pass {problem[1]}."
            )
        return np.asarray(x)  # waits

    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        wrong = numpy_dtype_problem(a)
        if wrong is not None:
            raise InputError(
                f"to_device: {wrong[0]}; expected an array of plain numbers. Pass {wrong[1]}."
            )
        lost = self._would_lose(str(a.dtype))
        if lost is not None:
            raise InputError(
                f"to_device: {lost[0]}; expected a dtype that JAX has. Call {lost[1]}."
            )
        if pinned:
            raise DeviceError(
                "to_device: JAX takes no page-locked memory from outside; expected pinned=False. "
                "Leave it out."
            )
        there = self._device(device)
        with self.module.default_device(there):
            # A copy in any case: device_put would lie over an aligned array's own memory, and see
            # what is written to it later.
            made = self.module.numpy.array(a, copy=True)
        return self.module.device_put(made, there).block_until_ready()

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        if pinned:
            raise DeviceError(
                "to_device: JAX takes no page-locked memory from outside; expected pinned=False. "
                "Leave it out."
            )
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
                f"{', '.join(self._name(one) for one in self.module.local_devices())}); "
                "expected one of these. Pass device='cpu', or install JAX's build for this GPU: "
                f"{command}, or "
                "'jax[cuda12]' if the driver is older than CUDA 13."
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

    def _would_lose(self, dtype: str) -> tuple[str, str] | None:
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

    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        problem = self._no_data(x)
        if problem is not None:
            return problem
        if len(x.devices()) > 1:
            return f"it is spread over {len(x.devices())} devices", "gl.to_host(x)"
        where = self.device_of(x)
        if library == "numpy":
            if where != "cpu":
                return f"it is on {where}, and numpy can access only main memory", "gl.to_host(x)"
            if not self.in_numpy(x):
                return f"numpy has no {x.dtype}", 'x.astype("float32")'
        if library == "cupy" and not where.startswith("cuda"):
            return (
                f"it is on {where}, and CuPy can access only CUDA memory",
                "gl.to_device(x, library='cupy')",
            )
        return None

    def hazard(self, x: Any, library: str) -> tuple[str, str] | None:
        found = self.obstacle(x, library)
        if found is None:
            x.block_until_ready()  # its memory is filled only then
        return found

    def refuses(self, x: Any, owner: Backend) -> tuple[str, str] | None:
        lost = self._would_lose(owner.dtype_name(x))
        if lost is not None:
            return lost
        where = owner.device_of(x)
        if where == "cpu":
            return not_aligned(owner.pointer(x), "jax") if owner.nbytes(x) else None
        if not where.startswith("cuda") or not self._devices("gpu"):
            return (
                f"it is on {where}, which this JAX cannot use",
                'gl.to_device(x, "cpu", library="jax")',
            )
        return None

    def from_dlpack(self, x: Any) -> Any:
        # of nothing, a copy is none
        return self.module.numpy.from_dlpack(x, copy=None if 0 in x.shape else False)

    def waits_for(self, result: Any) -> Callable[[Any], Any] | None:
        arrays = (leaf for leaf in self.module.tree_util.tree_leaves(result) if self.owns(leaf))
        return self.module.block_until_ready if next(arrays, None) is not None else None
