"""numba-cuda behind ``launch``: compile a kernel once, and launch it on any library's arrays."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.devices import nvml
from gpulab.errors import DeviceError, KernelError, MissingLibraryError, install_extra, message_of
from gpulab.kernels._arguments import Extent
from gpulab.kernels._compile import _python
from gpulab.kernels._language import load_beside_new_numpy
from gpulab.kernels._launch import Backend

# Where a kernel keeps its compiled forms, by the values of the names that it uses, which a notebook
# may change: they go when it goes.
_FORMS = "_gpulab_compiled"
_FOREIGN = ("numba", "numba_cuda", "numpy")
# Of the compiler libraries that the extra ``kernels`` brings; tools/setup_env.py leaves it out for
# older drivers.
_CUDA = 13


def numba_backend(who: str, kernel: Any, index: int) -> Backend:
    """Return one kernel on one CUDA device.

    Parameters
    ----------
    who : str
        The public function, for messages.
    kernel : function
        Plain, or wrapped by ``cuda.jit``.
    index : int
        Of the CUDA device.

    Raises
    ------
    MissingLibraryError
        If numba-cuda is not installed.
    DeviceError
        If it sees no GPU, or is Numba's simulator.
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
        # A form for just these types is compiled now and not at the first launch, and a launch need
        # not look at the types again.
        form = dispatcher if dispatcher.specialized else dispatcher.specialize(*seen)
        configured = form[grid, block, 0, shared_bytes]
        return lambda: configured(*seen)

    def refusal(error: Exception) -> KernelError | None:
        """Return what is reported of numba's errors: the compiler's at its line, the driver's with
        what to do.
        """
        home, name = type(error).__module__, function.__name__
        if not home.startswith("numba"):
            return None
        if "cudadrv" in home or "Cuda" in type(error).__name__:
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
        from numba import config, cuda
    except ImportError as error:
        if old := _too_old():
            raise MissingLibraryError(f"{who}: {old}") from error
        raise MissingLibraryError(
            f"{who}: a Python kernel is compiled by numba-cuda, which cannot be imported "
            f"({message_of(error)}); expected it to be installed. {install_extra('kernels')}"
        ) from error
    if config.ENABLE_CUDASIM:
        raise DeviceError(
            f"{who}: NUMBA_ENABLE_CUDASIM is set, so numba has its own simulator in place of the "
            "GPU; expected the GPU. Unset it and restart Python."
        )
    load_beside_new_numpy()
    if not cuda.is_available():
        if old := _too_old():
            raise DeviceError(f"{who}: {old}")
        raise DeviceError(
            f"{who}: numba-cuda sees no GPU though torch does; expected one. Run `gpulab doctor`, "
            "which checks the driver."
        )
    return cuda


def _too_old() -> str:
    """Return what is said of a driver for which the pinned numba-cuda does nothing, however it is
    installed; "" of any other.
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


def jitted(cuda: Any, function: types.FunctionType, who: str = "launch") -> Any:
    """Return the compiled form of a kernel, made once for the present values of all names that it
    and its device functions use.

    Raises
    ------
    KernelError
        If a device function calls itself, directly or through others.
    """
    kept: list[Any] = []
    _refuse_recursion(who, function, ())
    key = _present(function, kept)
    forms = function.__dict__.setdefault(_FORMS, {})
    if key not in forms:
        # What is known by its number is kept beside the form, so that no other object can get that
        # number.
        forms[key] = cuda.jit(with_device_functions(cuda, function, {})), kept
    return forms[key][0]


def _refuse_recursion(
    who: str, function: types.FunctionType, callers: tuple[types.FunctionType, ...]
) -> None:
    for name, value in _named(function).items():
        if not _is_device_function(value):
            continue
        if value in (*callers, function):
            said, line = _python.recursion(name, value, function)
            raise KernelError(f"{who}: {said}", line)
        _refuse_recursion(who, value, (*callers, function))


def _present(value: Any, kept: list[Any]) -> Any:
    """Return what a value is to the compiler at this moment, to be compared: of a function, its
    code, defaults and all that it names.
    """
    if isinstance(value, (bool, int, float, complex, str, np.generic)):
        return type(value), repr(value)  # 2, 2.0 and True are equal, and so are both zeros
    if isinstance(value, tuple):
        return type(value), tuple(_present(part, kept) for part in value)
    if isinstance(value, np.ndarray):  # a constant of the compiled form
        return value.dtype.str, value.shape, value.tobytes()
    if _is_device_function(value):
        defaults = _present(value.__defaults__ or (), kept)
        return (
            value.__code__,
            defaults,
            tuple((name, _present(found, kept)) for name, found in _named(value).items()),
        )
    kept.append(value)
    return id(value)


def _is_device_function(value: Any) -> bool:
    return (
        isinstance(value, types.FunctionType)
        and str(value.__module__).partition(".")[0] not in _FOREIGN
    )


def _named(function: types.FunctionType) -> dict[str, Any]:
    """Return the objects from outside that a function names: globals that there are, and variables
    of the functions around it.
    """
    found = {
        name: function.__globals__[name]
        for name in _python._global_names(function.__code__)
        if name in function.__globals__
    }
    for name, cell in _cells(function).items():
        with contextlib.suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the variables of the functions around a function that it names."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def with_device_functions(
    cuda: Any, function: types.FunctionType, made: dict[types.FunctionType, Any]
) -> types.FunctionType:
    """Return the function with the plain functions that it calls turned into device functions, as
    ``simulate`` takes them.

    numba sees the globals of that moment; a function that calls none comes back as it is.
    """

    def device(value: Any) -> Any:
        if not _is_device_function(value):
            return value
        if value not in made:
            made[value] = cuda.jit(device=True)(with_device_functions(cuda, value, made))
        return made[value]

    changed = {
        name: new for name, value in _named(function).items() if (new := device(value)) is not value
    }
    if not changed:
        return function
    cells = [
        types.CellType(changed[name]) if name in changed else cell
        for name, cell in _cells(function).items()
    ]
    names = {**function.__globals__, **changed}
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, tuple(cells) or None
    )
    copy.__module__ = function.__module__
    return copy
