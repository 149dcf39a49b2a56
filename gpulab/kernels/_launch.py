"""``launch``: the Python kernel of the microscope, unchanged, on a GPU through numba-cuda.

Host arrays are copied there and back, so that the same call works with ``simulate`` and with
``launch``; a time that includes those copies is not the kernel's. ``launcher`` copies once and can
be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import arrays, devices
from gpulab.errors import DeviceError, InputError, KernelError, kind_of, shown
from gpulab.kernels._arguments import (
    MOST_SHARED_BYTES,
    Extent,
    array_of_tensor,
    check_array,
    check_count,
    check_whole,
    checked_extents,
    same_memory,
)
from gpulab.kernels._compile import _python
from gpulab.kernels.simulation._simulate import program_of
from gpulab.units import plural

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
HOST, DEVICE, NUMBER = "host", "device", "number"
# Shared memory that a block may have without the kernel's limit being raised
# (cudaFuncAttributeMaxDynamicSharedMemorySize). Source: CUDA C++ Programming Guide 13.0, on compute
# capability 8.x and later. numba-cuda 0.30 cannot raise it: its issue 94.
UNASKED_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a kernel: ``kind`` is "host" (an array that travels), "device" (one used in
    place) or "number".
    """

    name: str
    kind: str
    value: Any


@dataclass(frozen=True)
class Backend:
    """One kernel on one CUDA device: numba-cuda carries Python there, CuPy CUDA C++.

    Attributes
    ----------
    who : str
        The public function, for messages.
    name : str
        The kernel's.
    index : int
        Of the CUDA device.
    current : callable
        Gives the context in which that device is the library's current one.
    ready : callable
        Takes grid, block, bytes of shared memory and arguments; returns what launches the kernel,
        compiled. A call of that does not wait.
    synchronize : callable
        Waits until the current device has finished.
    refusal : callable
        Returns what is reported of an error of the library; None if it is not the library's.
    """

    who: str
    name: str
    index: int
    current: Callable[[], AbstractContextManager[Any]]
    ready: Callable[[Extent, Extent, int, list[Any]], Callable[[], None]]
    synchronize: Callable[[], None]
    refusal: Callable[[Exception], KernelError | None]

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work on the device, and report errors in one sentence: the driver's with what to do, and
        the library's.
        """
        try:
            with devices.guard(f"{self.who}: {self.name} on cuda:{self.index}"), self.current():
                yield
        except Exception as error:
            refused = self.refusal(error)
            if refused is None:
                raise
            raise refused from error


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
        backend: Backend,
        extents: tuple[Extent, Extent],
        shared_bytes: int,
        arguments: list[Argument],
    ) -> None:
        self.__name__ = backend.name
        self._backend = backend
        self._pairs: list[tuple[np.ndarray, Any]] = []  # host arrays and their copies on the GPU
        placed = [self._placed(a.value) if a.kind == HOST else a.value for a in arguments]
        with backend.working():
            self._run = backend.ready(*extents, shared_bytes, placed)
        self.arrays = tuple(
            value for value, a in zip(placed, arguments, strict=True) if a.kind != NUMBER
        )

    def _placed(self, array: np.ndarray) -> Any:
        """Return an array's copy on the GPU, in its own shape; one that is given twice travels
        once.
        """
        for known, there in self._pairs:
            if np.shares_memory(known, array):
                return there.reshape(array.shape)
        self._pairs.append((array, arrays.to_device(array, f"cuda:{self._backend.index}")))
        return self._pairs[-1][1]

    def __call__(self) -> tuple[Any, ...]:
        with self._backend.working():
            self._run()
        return self.arrays

    def wait(self) -> None:
        """Wait until the GPU has finished.

        Raises
        ------
        KernelError
            If the kernel failed there.
        """
        with self._backend.working():
            self._backend.synchronize()

    def fetch(self) -> None:
        """Wait, and copy the results into the host arrays that were given.

        Raises
        ------
        KernelError
            If the kernel failed, or changed its copy of an array that is read-only.
        """
        self.wait()
        results = [
            (array, arrays.to_host(there).reshape(array.shape)) for array, there in self._pairs
        ]
        for array, result in results:
            if not array.flags.writeable and array.tobytes() != result.tobytes():
                raise KernelError(
                    f"{self.__name__}: the kernel changed an array of shape {array.shape} that is "
                    "read-only on the host; expected it to write to others. Pass a copy of it."
                )
        for array, result in results:  # all have arrived: none changes where one copy fails
            if array.flags.writeable:
                array[...] = result

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
    extents = checked_extents(who, grid, block)
    check_whole(who, "dynamic_shared_bytes", dynamic_shared_bytes, 0, MOST_SHARED_BYTES)
    try:
        program = program_of(kernel)
        static, written = program.static_shared_bytes, program.written
    except KernelError:  # a kernel may be launched that the microscope cannot read
        static, written = 0, set()
    if dynamic_shared_bytes and static + dynamic_shared_bytes > UNASKED_SHARED_BYTES:
        beside = f" beside the {static:,} bytes of its other shared arrays" if static else ""
        raise InputError(
            f"{who}: {function.__name__} is given "
            f"dynamic_shared_bytes={dynamic_shared_bytes:,}{beside}; expected at most "
            f"{UNASKED_SHARED_BYTES:,} in all, since numba-cuda does not ask the GPU for more. Use "
            "less, or write the kernel in CUDA C++ for launch_cuda, which does."
        )
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    check_count(who, function.__name__, parameters, args)
    arguments = sorted_arguments(who, function.__name__, parameters, args, written)
    from gpulab.kernels._launch_numba import numba_backend

    backend = numba_backend(who, kernel, the_device(who, arguments))
    return Launcher(backend, extents, dynamic_shared_bytes, arguments)


def sorted_arguments(
    who: str,
    name: str,
    parameters: Sequence[str],
    args: Sequence[Any],
    written: Collection[str] = (),
) -> list[Argument]:
    """Return the arguments of the kernel ``name`` with their kinds.

    Raises
    ------
    InputError
        If one is neither an array nor a number, is an array that a kernel cannot take, or two
        different arrays overlap.
    """
    found: list[Argument] = []
    for parameter, value in zip(parameters, args, strict=True):
        argument = _argument(who, parameter, value)
        if argument.kind == HOST:
            check_array(who, name, parameter, argument.value, parameter in written)
            for other in found:
                if other.kind == HOST:  # refused if it overlaps without being the same array
                    same_memory(who, parameter, argument.value, other.name, other.value)
        found.append(argument)
    return found


def _argument(who: str, name: str, value: Any) -> Argument:
    if isinstance(value, np.ndarray) and value.ndim:
        return Argument(name, HOST, value)
    if isinstance(value, _NUMBERS):
        return Argument(name, NUMBER, value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return Argument(name, NUMBER, value[()])
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        tensor = value.detach()
        if tensor.device.type not in ("cpu", "cuda"):
            raise InputError(
                f"{who}: {name} is a tensor on {tensor.device}; expected one on a CUDA device or "
                "in main memory. Move it."
            )
        if tensor.ndim == 0:
            return Argument(name, NUMBER, array_of_tensor(who, name, tensor.cpu())[()])
        if tensor.device.type == "cuda":
            return Argument(name, DEVICE, tensor)
        return Argument(name, HOST, array_of_tensor(who, name, tensor))
    if hasattr(value, "__cuda_array_interface__"):
        return Argument(name, DEVICE, value)
    raise InputError(
        f"{who}: {name}={shown(value)} is {kind_of(value)}; expected an array or a number. Convert "
        "it before the call, for example by numpy.asarray."
    )


def the_device(who: str, arguments: list[Argument]) -> int:
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
            "GPU. Run it under the microscope with gpulab.kernels.simulate(kernel, grid, block, "
            "...), which takes the same arguments on any machine."
        )
    found = sorted({_index(a.value) for a in arguments if a.kind == DEVICE})
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
