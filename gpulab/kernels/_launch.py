"""``launch``: the Python kernel that ran under the microscope, unchanged, on a real GPU through
numba-cuda.

Host arrays are copied there and back, so that the same call works with ``simulate`` and with
``launch``; a time that includes those copies is not the kernel's. ``launcher`` copies once and can
be measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gpulab import devices
from gpulab.errors import DeviceError, InputError
from gpulab.kernels._compile import _python
from gpulab.kernels._launch_arguments import (
    DEVICE,
    HOST,
    UNASKED_SHARED_BYTES,
    Travellers,
    checked_extents,
    sorted_arguments,
    static_shared_bytes,
    written_parameters,
)
from gpulab.kernels._simulate._geometry import Extent
from gpulab.units import plural


class Backend(Protocol):
    """What carries a kernel to a device: numba-cuda for Python, CuPy for CUDA C++."""

    def place(self, array: np.ndarray) -> Any:
        """Return a copy of a host array on the device."""

    def fetch(self, there: Any) -> np.ndarray:
        """Return an array of the device as a host array."""

    def ready(
        self, grid: Extent, block: Extent, shared_bytes: int, arguments: list[Any]
    ) -> Callable[[], None]:
        """Return what launches the kernel, compiled; a call does not wait."""

    def wait(self) -> None:
        """Wait until the device has finished; raise what went wrong there."""


class Launcher:
    """A kernel with its arguments on the GPU, ready to be launched again and again.

    Calling it launches and does not wait; it returns the arrays on the GPU. So
    ``gl.measure(launcher)`` knows what to wait for.

    Attributes
    ----------
    arrays : tuple
        The arrays on the GPU, in the order of the arguments: tensors for host arrays, otherwise the
        arrays that were passed.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        run: Callable[[], None],
        travellers: Travellers,
        arrays: tuple[Any, ...],
    ) -> None:
        self.__name__ = name
        self._backend, self._run, self._travellers = backend, run, travellers
        self.arrays = arrays

    def __call__(self) -> tuple[Any, ...]:
        self._run()
        return self.arrays

    def wait(self) -> None:
        """Wait until the GPU has finished.

        Raises
        ------
        KernelError
            If the kernel failed there.
        """
        self._backend.wait()

    def fetch(self) -> None:
        """Wait, and copy the results into the host arrays that were given."""
        self._backend.wait()
        self._travellers.back()

    def __repr__(self) -> str:
        return f"<Launcher of {self.__name__} with {plural(len(self.arrays), 'array')} on the GPU>"


def launcher(
    kernel: Any, grid: Any, block: Any, *args: Any, dynamic_shared_bytes: int = 0
) -> Launcher:
    """Return the kernel ready on the GPU, its arrays copied there once: what ``gl.measure`` should
    time.

    Parameters
    ----------
    kernel, grid, block, *args, dynamic_shared_bytes
        As for ``launch``.

    Returns
    -------
    Launcher
        ``launcher()`` launches without waiting, ``.fetch()`` waits and copies the results into the
        host arrays.

    Raises
    ------
    InputError, DeviceError, MissingLibraryError, KernelError
        As for ``launch``.

    Notes
    -----
    The kernel works on the same arrays each time: one that changes its input (``x[i] *= 2``) goes
    on changing it.
    """
    return _python_launcher("launcher", kernel, grid, block, args, dynamic_shared_bytes)


def launch(kernel: Any, grid: Any, block: Any, *args: Any, dynamic_shared_bytes: int = 0) -> None:
    """Run a Python kernel on the GPU; the same call as ``simulate``, the arrays change in place.

    Parameters
    ----------
    kernel : function
        Written for numba.cuda, plain or wrapped by ``cuda.jit``; plain functions that it calls are
        compiled with it.
    grid, block : int or tuple of up to 3 int
        Blocks of the grid and threads of a block, x first. A block has at most 1,024 threads.
    *args : array or number
        NumPy arrays and CPU tensors (contiguous in C order) are copied to the GPU and back. CuPy
        arrays, CUDA tensors and Numba's own device arrays are used in place. A Python int is int64
        and a float float64 in the kernel, as under ``simulate``.
    dynamic_shared_bytes : int
        Bytes of dynamic shared memory for each block: with the kernel's other shared arrays at most
        48 KiB, since numba-cuda does not ask the GPU for more, as ``launch_cuda`` does.

    Raises
    ------
    DeviceError
        If there is no CUDA device, or the arrays are on two of them.
    MissingLibraryError
        If numba-cuda is not installed.
    InputError
        If the grid, the block or an argument cannot be used. No array has changed.
    KernelError
        If numba-cuda refuses the kernel, or the GPU stopped it. Host arrays have not changed.

    Notes
    -----
    The GPU reports no races and hardly any out-of-bounds accesses: run ``simulate`` first. The
    first launch compiles, which takes seconds.
    """
    ready = _python_launcher("launch", kernel, grid, block, args, dynamic_shared_bytes)
    ready()
    ready.fetch()


def _python_launcher(
    who: str, kernel: Any, grid: Any, block: Any, args: tuple[Any, ...], dynamic_shared_bytes: int
) -> Launcher:
    function = _python.function_of(kernel, who)
    extents = checked_extents(who, grid, block, dynamic_shared_bytes)
    static = static_shared_bytes(kernel)
    if dynamic_shared_bytes and static + dynamic_shared_bytes > UNASKED_SHARED_BYTES:
        beside = f" beside the {static:,} bytes of its other shared arrays" if static else ""
        raise InputError(
            f"{who}: {function.__name__} is given "
            f"dynamic_shared_bytes={dynamic_shared_bytes:,}{beside}; expected at most "
            f"{UNASKED_SHARED_BYTES:,} in all, since numba-cuda does not ask the GPU for more. Use "
            "less, or write the kernel in CUDA C++ "
            "for launch_cuda, which does."
        )
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    if len(args) != len(parameters):
        raise InputError(
            f"{who}: {function.__name__} takes {plural(len(parameters), 'argument')} "
            f"({', '.join(parameters)}); {len(args)} are given. "
            "Pass one for each."
        )
    arguments = sorted_arguments(
        who, function.__name__, parameters, args, written_parameters(kernel)
    )
    backend = _backend(
        who, kernel, the_device(who, [a.value for a in arguments if a.kind == DEVICE])
    )
    return made_launcher(function.__name__, backend, extents, dynamic_shared_bytes, arguments)


def made_launcher(
    name: str,
    backend: Backend,
    extents: tuple[Extent, Extent],
    shared_bytes: int,
    arguments: list[Any],
) -> Launcher:
    """Place the host arrays, compile, and return the launcher."""
    travellers = Travellers(backend.place, backend.fetch)
    placed = [(a.kind, travellers.there(a.value) if a.kind == HOST else a.value) for a in arguments]
    run = backend.ready(*extents, shared_bytes, [value for _, value in placed])
    arrays = tuple(value for kind, value in placed if kind in (HOST, DEVICE))
    return Launcher(name, backend, run, travellers, arrays)


def _backend(who: str, kernel: Any, index: int) -> Backend:
    from gpulab.kernels._launch_numba import NumbaBackend

    return NumbaBackend(who, kernel, index)


def the_device(who: str, arrays: list[Any]) -> int:
    """Return the number of the CUDA device that a launch uses: that of the arrays that are on one,
    else the first.

    Raises
    ------
    DeviceError
        If there is none, or the arrays are on several.
    """
    cuda = [device for device in devices.available() if device.torch_type == "cuda"]
    if not cuda:
        raise DeviceError(
            f"{who}: no CUDA device is visible; expected one, since {who} runs the kernel on a "
            "GPU. Run it under the microscope with "
            "gpulab.kernels.simulate(kernel, grid, block, ...), which takes the same arguments on "
            "any machine."
        )
    found = sorted({_index(array) for array in arrays})
    if len(found) > 1:
        raise DeviceError(
            f"{who}: the arrays are on the devices {', '.join(f'cuda:{k}' for k in found)}; "
            "expected one. Move them to one."
        )
    return found[0] if found else 0


def _index(array: Any) -> int:
    # a tensor's has an index, CuPy's an id; Numba's own arrays have none
    device = getattr(array, "device", None)
    for attribute in ("index", "id"):
        number = getattr(device, attribute, None)
        if isinstance(number, int):
            return number
    return 0
