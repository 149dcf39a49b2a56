"""``launch`` runs the microscope's Python kernels, unchanged, on a GPU through numba-cuda.

Host arrays are copied to the GPU and back, so that the same call works with ``simulate`` and with
``launch``; a time that includes these copies is not the kernel's. ``launcher`` copies once and can
be measured. ``launch_cuda`` and ``cuda_launcher`` do the same for CUDA C++ through CuPy.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _backends, _interrupts, arrays, devices
from gpulab._validate import whole
from gpulab.devices import nvml
from gpulab.errors import (
    DeviceError,
    InputError,
    KernelError,
    MissingLibraryError,
    kind_of,
    message_of,
    pip_command,
    shown,
)
from gpulab.kernels._arguments import (
    MOST_SHARED_BYTES,
    UNASKED_SHARED_BYTES,
    Extent,
    array_of_tensor,
    check_array,
    check_count,
    checked_extents,
    described_array,
    same_memory,
)
from gpulab.kernels._compile import _python
from gpulab.kernels._compile._cuda import (
    checked_source,
    checked_texts,
    compile_cuda,
    include_folders,
)
from gpulab.kernels.simulation._simulate import program_of
from gpulab.units import plural

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


@dataclass(frozen=True)
class Backend:
    """One kernel on one CUDA device, through a library: numba-cuda for Python, CuPy for CUDA C++.

    Attributes
    ----------
    who : str
        Name of the public function, for messages.
    name : str
        The kernel's name.
    index : int
        Number of the CUDA device.
    current : callable
        Returns a context in which that device is the library's current one.
    ready : callable
        Takes grid, block, bytes of shared memory and arguments. Compiles the kernel and returns a
        function that launches it without waiting.
    synchronize : callable
        Waits until the current device has finished.
    refusal : callable
        Takes an error and returns the one to raise in its place; None if the error is not of the
        library.
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
        """Make the device current, and raise errors of the driver and of the library as gpulab's,
        with what to do.
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

    A call launches the kernel without waiting and returns the arrays on the GPU, so that
    ``gl.measure(launcher)`` knows what to wait for.

    Attributes
    ----------
    arrays : tuple
        The arrays on the GPU, in the order of the arguments: tensors in place of host arrays, and
        the arrays that were on the GPU already.
    """

    def __init__(
        self,
        backend: Backend,
        extents: tuple[Extent, Extent],
        shared_bytes: int,
        arguments: list[Any],
    ) -> None:
        self.__name__ = backend.name
        self._backend = backend
        self._pairs: list[tuple[np.ndarray, Any]] = []  # host arrays and their copies on the GPU
        placed = [self._placed(a) if isinstance(a, np.ndarray) else a for a in arguments]
        with backend.working():
            self._run = backend.ready(*extents, shared_bytes, placed)
        self.arrays = tuple(a for a in placed if not isinstance(a, _NUMBERS))

    def _placed(self, array: np.ndarray) -> Any:
        """Return a copy of an array on the GPU, in the same shape; an array that is passed twice is
        copied once.
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
            If the kernel failed on the GPU.
        """
        with self._backend.working():
            self._backend.synchronize()

    def fetch(self) -> None:
        """Wait, and copy the results into the host arrays that were passed.

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
                    "read-only on the host; expected an array that may change. Pass a copy of it."
                )
        for array, result in results:  # only after all have arrived: if a copy fails, none changes
            if array.flags.writeable:
                array[...] = result

    def __repr__(self) -> str:
        return f"<Launcher of {self.__name__} with {plural(len(self.arrays), 'array')} on the GPU>"


def launcher(
    kernel: Any, grid: Any, block: Any, *args: Any, dynamic_shared_bytes: int = 0
) -> Launcher:
    """Return a ``Launcher`` of the kernel, with the arrays copied to the GPU once, for
    ``gl.measure`` to time.

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
    Each launch works on the same arrays: a kernel that changes its input (``x[i] *= 2``) changes it
    again at each launch.
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
        Bytes of dynamic shared memory for each block; together with the kernel's other shared
        arrays at most 48 KiB, since numba-cuda, unlike ``launch_cuda``, does not raise this limit.

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
    whole(who, "dynamic_shared_bytes", dynamic_shared_bytes, 0, MOST_SHARED_BYTES)
    try:
        program = program_of(kernel)
        static, written = program.static_shared_bytes, program.written
    except KernelError:  # the microscope cannot read it; it may still be launched
        static, written = 0, set()
    # numba-cuda 0.30 cannot raise the limit: its issue 94
    if dynamic_shared_bytes and static + dynamic_shared_bytes > UNASKED_SHARED_BYTES:
        beside = f" beside the {static:,} bytes of its other shared arrays" if static else ""
        raise InputError(
            f"{who}: {function.__name__} is given "
            f"dynamic_shared_bytes={dynamic_shared_bytes:,}{beside}; expected at most "
            f"{UNASKED_SHARED_BYTES:,} in all, since numba-cuda cannot raise the kernel's limit. "
            "Use less, or write the kernel in CUDA C++ for launch_cuda, which raises it."
        )
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    check_count(who, function.__name__, parameters, args)
    arguments = checked_arguments(who, function.__name__, parameters, args, written)
    backend = numba_backend(who, kernel, the_device(who, arguments))
    return Launcher(backend, extents, dynamic_shared_bytes, arguments)


def checked_arguments(
    who: str,
    name: str,
    parameters: Sequence[str],
    args: Sequence[Any],
    written: Collection[str] = (),
) -> list[Any]:
    """Return the arguments of the kernel ``name`` as NumPy arrays (to be copied to the GPU), arrays
    on a device, and numbers.

    Raises
    ------
    InputError
        If an argument is neither an array nor a number, or is an array that a kernel cannot take,
        or if two different arrays overlap.
    """
    found: dict[str, Any] = {}
    for parameter, given in zip(parameters, args, strict=True):
        value = _argument(who, parameter, given)
        if isinstance(value, np.ndarray):
            check_array(who, name, parameter, value, parameter in written)
            for other, array in found.items():
                if isinstance(array, np.ndarray):  # refused if it overlaps and is not the same
                    same_memory(who, parameter, value, other, array)
        found[parameter] = value
    return [*found.values()]


def _argument(who: str, name: str, value: Any) -> Any:
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        tensor = value.detach()
        if tensor.device.type not in ("cpu", "cuda"):
            raise InputError(
                f"{who}: {name} is a tensor on {tensor.device}; expected one on a CUDA device or "
                "in main memory. Move it."
            )
        if tensor.device.type == "cuda" and tensor.ndim:
            return tensor
        value = array_of_tensor(who, name, tensor.cpu())
    if isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "biufc":
        return value[()]
    is_array = isinstance(value, np.ndarray) and value.ndim
    if is_array or isinstance(value, _NUMBERS) or hasattr(value, "__cuda_array_interface__"):
        return value
    raise InputError(
        f"{who}: {name}={shown(value)} is {kind_of(value)}; expected an array or a number. Convert "
        "it before the call, for example by numpy.asarray."
    )


def the_device(who: str, arguments: list[Any]) -> int:
    """Return the number of the CUDA device that a launch uses: the device of those arguments that
    are on one, otherwise 0.

    Raises
    ------
    DeviceError
        If there is no CUDA device, or the arrays are on several.
    """
    cuda = [device for device in devices.available() if device.torch_type == "cuda"]
    if not cuda:
        raise DeviceError(
            f"{who}: no CUDA device is visible; expected one, since {who} runs the kernel on a "
            "GPU. Run it under the microscope with gpulab.kernels.simulate(kernel, grid, block, "
            "...), which takes the same arguments on any machine."
        )
    found = sorted({_index(a) for a in arguments if not isinstance(a, (np.ndarray, *_NUMBERS))})
    if len(found) > 1:
        raise DeviceError(
            f"{who}: the arrays are on the devices {', '.join(f'cuda:{k}' for k in found)}; "
            "expected one. Move them to one."
        )
    return found[0] if found else 0


def _index(array: Any) -> int:
    # a tensor's device has an index, a CuPy array's an id; Numba's own arrays have no device
    device = getattr(array, "device", None)
    number = getattr(device, "index", getattr(device, "id", None))
    return number if isinstance(number, int) else 0


# -------------------------------------------------------------------------------------------------
# Python kernels: numba-cuda compiles each once, and launches it on any library's arrays.


# The attribute of a function that holds its compiled forms, so that they are freed with it. The
# keys are the values of the names that the function uses, which a notebook may change.
_FORMS = "_gpulab_compiled"
# CUDA version of the compiler libraries that the extra ``kernels`` installs; tools/setup_env.py
# leaves the extra out for older drivers.
_CUDA = 13


def numba_backend(who: str, kernel: Any, index: int) -> Backend:
    """Return the backend of one Python kernel on one CUDA device.

    Parameters
    ----------
    who : str
        Name of the public function, for messages.
    kernel : function
        Plain, or wrapped by ``cuda.jit``.
    index : int
        Number of the CUDA device.

    Raises
    ------
    MissingLibraryError
        If numba-cuda is not installed.
    DeviceError
        If numba-cuda sees no GPU, or Numba's own simulator is on.
    KernelError
        As for ``jitted``.
    """
    function, cuda = _python.function_of(kernel, who), _numba_cuda(who)
    dispatcher = kernel if hasattr(kernel, "configure") else jitted(cuda, function, who)

    def ready(
        grid: Extent, block: Extent, shared_bytes: int, arguments: list[Any]
    ) -> Callable[[], None]:
        seen = [
            cuda.as_cuda_array(a) if hasattr(a, "__cuda_array_interface__") else a
            for a in arguments
        ]
        # A form for just these types is compiled now, not at the first launch, and a launch need
        # not check the types again.
        with _interrupts.deferred() as interrupt:  # an interrupt would break Numba's tables
            form = dispatcher if dispatcher.specialized else dispatcher.specialize(*seen)
        if interrupt.asked:
            raise KeyboardInterrupt
        configured = form[grid, block, 0, shared_bytes]
        return lambda: configured(*seen)

    def refusal(error: Exception) -> KernelError | None:
        """Return the error to raise for one of Numba's, or of the packages through which it links
        and launches: with the line for one of the compiler, with what to do for one of the driver.
        """
        home, name = type(error).__module__, function.__name__
        if not home.startswith(("numba", "cuda.")):
            return None
        if "cudadrv" in home or "cuda.core" in home or "Cuda" in type(error).__name__:
            return KernelError(
                f"{who}: the GPU stopped {name} ({message_of(error)}); expected it to run to its "
                "end. Run gpulab.kernels.simulate with the same arguments, which names the line, "
                "and restart this Python kernel first if other GPU calls fail now."
            )
        line = getattr(getattr(error, "loc", None), "line", None)
        where = f", line {line}" if line else ""
        return KernelError(
            f"{who}: numba-cuda refuses {name}{where}: {message_of(error)}. Run "
            "gpulab.kernels.compile_python(kernel, ...), which shows the line.",
            line,
        )

    return Backend(
        who,
        function.__name__,
        index,
        lambda: cuda.gpus[index],
        ready,
        cuda.synchronize,
        refusal,
    )


def _numba_cuda(who: str) -> Any:
    try:
        cuda = _python.numba_cuda(who)
    except MissingLibraryError as error:
        if old := _too_old():
            raise MissingLibraryError(f"{who}: {old}") from error
        raise
    if not cuda.is_available():
        reason = _too_old() or (
            "numba-cuda finds no GPU, but torch does; expected one. Run `gpulab doctor`, which "
            "checks the driver."
        )
        raise DeviceError(f"{who}: {reason}")
    return cuda


def _too_old() -> str:
    """Return why the driver is too old for the pinned numba-cuda, however that is installed; "" if
    the driver is new enough or unknown.
    """
    driver = nvml.probe()
    if driver.cuda is None or int(driver.cuda.partition(".")[0]) >= _CUDA:
        return ""
    return (
        f"the driver {driver.version} runs CUDA {driver.cuda}, and numba-cuda compiles a Python "
        f"kernel for CUDA {_CUDA}; expected a driver for that, 580 or newer. Run the kernel under "
        "the microscope with gpulab.kernels.simulate, write it in CUDA C++ for launch_cuda, or "
        "update the driver."
    )


def jitted(cuda: Any, function: types.FunctionType, who: str) -> Any:
    """Return a kernel wrapped by ``cuda.jit``, made once for the present values of all names that
    it and its device functions use.

    Raises
    ------
    KernelError
        If a function calls itself, directly or through others, or uses a list, dict or set.
    """
    kept: list[Any] = []
    whole = _python.with_device_functions(who, function, cuda.jit, {})
    key = _present(function, kept)
    forms = function.__dict__.setdefault(_FORMS, {})
    if key not in forms:
        # Objects that the key knows only by their ``id`` are kept beside the form, so that no other
        # object can get the same ``id``.
        forms[key] = cuda.jit(whole), kept
    return forms[key][0]


def _present(value: Any, kept: list[Any]) -> Any:
    """Return a key that is equal for values that compile to the same code. For a function, it
    covers the code, the defaults and the values of all names that it uses. Objects that the key
    knows only by their ``id`` are appended to ``kept``.
    """
    if isinstance(value, (bool, int, float, complex, str, np.generic)):
        return type(value), repr(value)  # 2, 2.0 and True are equal, and so are both zeros
    if isinstance(value, tuple):
        return type(value), tuple(_present(part, kept) for part in value)
    if isinstance(value, np.ndarray):  # a constant of the compiled form
        return value.dtype, value.shape, value.tobytes()
    if _python.is_device_function(value):
        defaults = _present(value.__defaults__ or (), kept)
        return (
            value.__code__,
            defaults,
            tuple((name, _present(found, kept)) for name, found in _python.named(value).items()),
        )
    kept.append(value)
    return id(value)


# -------------------------------------------------------------------------------------------------
# CUDA C++ through CuPy's RawModule, with checked arguments.


_POINTER_BYTES = 8
_EXTERN_C = re.compile(r'\bextern\s+"C"')


def launch_cuda(
    source: str,
    name: str,
    grid: Any,
    block: Any,
    *args: Any,
    dynamic_shared_bytes: int = 0,
    options: Sequence[str] = (),
) -> None:
    """Run a kernel of CUDA C++ on the GPU; the arrays change in place.

    Parameters
    ----------
    source : str
        CUDA C++.
    name : str
        The kernel's name in the source, or an instance of a template, such as "tile<16>".
    grid, block : int or tuple of up to 3 int
        Blocks of the grid and threads of a block, x first.
    *args : array or NumPy number
        NumPy arrays and CPU tensors are copied to the GPU and back; CuPy arrays and CUDA tensors,
        contiguous in C order, are used in place. Numbers must be of the parameter's size, so
        ``np.int32(n)`` for an ``int`` and ``np.float32(x)`` for a ``float``.
    dynamic_shared_bytes : int
        Bytes of dynamic shared memory for each block; where this and the kernel's static shared
        memory exceed 48 KiB together, the kernel's limit is raised.
    options : sequence of str
        For the compiler, as for ``compile_cuda``.

    Raises
    ------
    DeviceError
        If there is no CUDA device, or the arrays are on two of them.
    MissingLibraryError
        If CuPy is not installed.
    InputError
        If an argument cannot be used, or the arguments together do not have the size that the
        kernel takes. No array has changed.
    CompileError
        If the compiler refuses the source; the message shows the line.
    KernelError
        If there is no such kernel, or the GPU stopped it. Host arrays have not changed.
    """
    ready = _cuda_launcher(
        "launch_cuda", source, name, (grid, block), args, dynamic_shared_bytes, options
    )
    ready()
    ready.fetch()


def cuda_launcher(
    source: str,
    name: str,
    grid: Any,
    block: Any,
    *args: Any,
    dynamic_shared_bytes: int = 0,
    options: Sequence[str] = (),
) -> Launcher:
    """Return a ``Launcher`` of a kernel of CUDA C++, with the arrays copied to the GPU once, for
    ``gl.measure`` to time.

    Parameters
    ----------
    source, name, grid, block, *args, dynamic_shared_bytes, options
        As for ``launch_cuda``.

    Returns
    -------
    Launcher

    Raises
    ------
    DeviceError, MissingLibraryError, InputError, CompileError, KernelError
        As for ``launch_cuda``.
    """
    return _cuda_launcher(
        "cuda_launcher", source, name, (grid, block), args, dynamic_shared_bytes, options
    )


def _cuda_launcher(
    who: str,
    source: str,
    name: str,
    extents: tuple[Any, Any],
    args: Sequence[Any],
    shared_bytes: int,
    options: Sequence[str],
) -> Launcher:
    text, given = checked_source(source, who), checked_texts("options", options, who)
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            f"{who}: name={shown(name)}; expected the kernel's name in the source, such as 'add' "
            "or 'tile<16>'. Pass it."
        )
    checked = checked_extents(who, *extents)
    whole(who, "dynamic_shared_bytes", shared_bytes, 0, MOST_SHARED_BYTES)
    parameters = [f"argument {k}" for k in range(1, len(args) + 1)]
    arguments = checked_arguments(who, name, parameters, args)
    for parameter, argument in zip(parameters, arguments, strict=True):
        _check_for_pointers(who, parameter, argument)
    symbol = _symbol(who, text, name, arguments, given)
    # CuPy finds a kernel under extern "C" by its name, any other by a name expression
    by_name = symbol == name or (symbol is None and _EXTERN_C.search(text) is not None)
    backend = _cupy_backend(who, text, name, given, by_name, the_device(who, arguments))
    return Launcher(backend, checked, shared_bytes, arguments)


def _check_for_pointers(who: str, name: str, value: Any) -> None:
    """Refuse arguments that C++ would read wrongly: numbers without a size, arrays with gaps."""
    if isinstance(value, (int, float, complex)) and not isinstance(value, (np.generic, bool)):
        kind = (
            "np.int32 or np.int64"
            if isinstance(value, int)
            else "np.complex64 or np.complex128"
            if isinstance(value, complex)
            else "np.float32 or np.float64"
        )
        raise InputError(
            f"{who}: {name} is {shown(value)}, a Python number without a size; expected one of the "
            f"parameter's type. Pass {kind} of it."
        )
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None and not described_array(interface).flags.c_contiguous:
        raise InputError(
            f"{who}: {name} has strides {tuple(interface['strides'])} bytes; expected an array in "
            "C order without gaps, since C++ sees only its first element's address. Pass a "
            "contiguous copy."
        )


def packed_bytes(arguments: Sequence[Any]) -> int:
    """Return the bytes of the arguments as CUDA C++ lays them out: each starts at a multiple of its
    size, also complex numbers (float2 and double2).
    """
    end = 0
    for argument in arguments:
        is_number = isinstance(argument, _NUMBERS)  # else an array, which may be on the device
        size = np.dtype(type(argument)).itemsize if is_number else _POINTER_BYTES
        end = -(-end // size) * size + size
    return end


def _symbol(
    who: str, source: str, name: str, arguments: Sequence[Any], options: tuple[str, ...]
) -> str | None:
    """Return the kernel's name in the machine code; None if NVRTC is not installed.

    Raises
    ------
    InputError
        If the arguments are not of the size that the compiled kernel reads: CUDA itself would read
        past them.
    CompileError
        If the compiler refuses the source.
    KernelError
        If the source has no such kernel.
    """
    try:
        facts = compile_cuda(source, options=options, names=(name,) if "<" in name else ()).kernels
    except MissingLibraryError:  # CuPy has a compiler of its own; only this check is lost
        return None
    if name not in facts:
        raise KernelError(
            f"{who}: the source has no kernel {name!r}; expected one of "
            f"{', '.join(facts) or 'none'}. Pass one of these."
        )
    takes, given = facts[name].parameter_bytes, packed_bytes(arguments)
    if takes != given:
        raise InputError(
            f"{who}: {name} takes {takes} bytes of arguments, but the call has {given}; expected "
            "the same number. An array is 8 bytes, an int or float 4, a double or long long 8: "
            "pass one argument for each parameter, of its type."
        )
    return facts[name].symbol


def _cupy_backend(
    who: str, source: str, name: str, options: tuple[str, ...], by_name: bool, index: int
) -> Backend:
    """Return the backend of one kernel of a source on one CUDA device.

    Raises
    ------
    MissingLibraryError
        If CuPy is not installed.
    """
    try:
        import cupy
    except ImportError as error:
        raise MissingLibraryError(
            f"{who}: CUDA C++ is launched by CuPy, which cannot be imported "
            f"({message_of(error)}); expected it to be installed. Run "
            f"{pip_command('install cupy-cuda13x')}, or cupy-cuda12x where the driver is older."
        ) from error

    def seen(value: Any) -> Any:
        """Return an argument as CuPy's own array, without a copy; a number as it is."""
        if isinstance(value, (np.generic, bool)):
            return value
        # Numba's own arrays, and other arrays with the CUDA array interface
        if _backends.backend_of(value) is None:
            return cupy.asarray(value)
        return _backends.share(value, "cupy")

    def ready(
        grid: Extent, block: Extent, shared_bytes: int, arguments: list[Any]
    ) -> Callable[[], None]:
        values = tuple(map(seen, arguments))
        folders = include_folders() if "#include" in source else []
        module = cupy.RawModule(
            code=source,
            options=("--std=c++17", *options, *(f"-I{folder}" for folder in folders)),
            name_expressions=None if by_name else [name],
        )
        kernel = module.get_function(name)
        # above this, the kernel's limit has to be raised
        if kernel.shared_size_bytes + shared_bytes > UNASKED_SHARED_BYTES:
            kernel.max_dynamic_shared_size_bytes = shared_bytes

        def run() -> None:
            with cupy.cuda.Stream.null:
                kernel(grid, block, values, shared_mem=shared_bytes)

        return run

    def refusal(error: Exception) -> KernelError | None:
        if not type(error).__module__.startswith("cupy"):
            return None
        return KernelError(
            f"{who}: CuPy or the GPU refused {name} ({message_of(error)}); expected it to run to "
            "its end. Look at the source with gpulab.kernels.compile_cuda, and restart this Python "
            "kernel if other GPU calls fail now."
        )

    device = cupy.cuda.Device(index)
    return Backend(
        who, name, index, lambda: cupy.cuda.Device(index), ready, device.synchronize, refusal
    )
