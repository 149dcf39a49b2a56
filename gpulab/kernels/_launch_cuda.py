"""``launch_cuda``: CUDA C++ on a GPU through CuPy's RawModule, with checked arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpulab import _backends
from gpulab.errors import (
    InputError,
    KernelError,
    MissingLibraryError,
    message_of,
    pip_command,
    shown,
)
from gpulab.kernels._arguments import MOST_SHARED_BYTES, Extent, check_whole, checked_extents
from gpulab.kernels._compile import _nvidia
from gpulab.kernels._compile._cuda import checked_source, checked_texts, compile_cuda
from gpulab.kernels._launch import (
    DEVICE,
    NUMBER,
    UNASKED_SHARED_BYTES,
    Argument,
    Backend,
    Launcher,
    sorted_arguments,
    the_device,
)

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
        The kernel's, as the source has it; an instance of a template such as "tile<16>".
    grid, block : int or tuple of up to 3 int
        Blocks of the grid and threads of a block, x first.
    *args : array or NumPy number
        NumPy arrays and CPU tensors are copied to the GPU and back; CuPy arrays and CUDA tensors,
        contiguous in C order, are used in place. Numbers must be of the parameter's size, so
        ``np.int32(n)`` for an ``int`` and ``np.float32(x)`` for a ``float``.
    dynamic_shared_bytes : int
        Bytes of dynamic shared memory for each block; above 48 KiB with its other ones the kernel's
        limit is raised.
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
    """Return a kernel of CUDA C++ ready on the GPU, its arrays copied there once: what
    ``gl.measure`` should time.

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
    text, given = checked_source(source), checked_texts("options", options)
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            f"{who}: name={shown(name)}; expected the kernel's name in the source, such as 'add' "
            "or 'tile<16>'. Pass it."
        )
    checked = checked_extents(who, *extents)
    check_whole(who, "dynamic_shared_bytes", shared_bytes, 0, MOST_SHARED_BYTES)
    arguments = sorted_arguments(
        who, name, [f"argument {k}" for k in range(1, len(args) + 1)], args
    )
    for argument in arguments:
        _check_for_pointers(who, argument)
    symbol = _symbol(who, text, name, arguments, given)
    # a kernel under extern "C" is found by its name, any other by an expression
    by_name = symbol == name or (symbol is None and _EXTERN_C.search(text) is not None)
    backend = _cupy_backend(who, text, name, given, by_name, the_device(who, arguments))
    return Launcher(backend, checked, shared_bytes, arguments)


def _check_for_pointers(who: str, argument: Argument) -> None:
    """Refuse what C++ would read wrongly: numbers without a size, arrays with gaps."""
    value = argument.value
    if argument.kind == NUMBER and not isinstance(value, (np.generic, bool)):
        kind = "np.int32 or np.int64" if isinstance(value, int) else "np.float32 or np.float64"
        raise InputError(
            f"{who}: {argument.name} is {shown(value)}, a Python number without a size; expected "
            f"one of the parameter's type. Pass {kind} of it."
        )
    if argument.kind == DEVICE:
        interface = value.__cuda_array_interface__
        strides, step = interface.get("strides"), np.dtype(interface["typestr"]).itemsize
        for size, stride in zip(
            reversed(interface["shape"]), reversed(strides or ()), strict=False
        ):
            if size > 1 and stride != step:
                raise InputError(
                    f"{who}: {argument.name} has strides {tuple(strides)} bytes; expected an array "
                    "in C order without gaps, since C++ sees only its first element's address. "
                    "Pass a contiguous copy."
                )
            step *= size


def packed_bytes(arguments: Sequence[Argument]) -> int:
    """Return the bytes of the arguments as CUDA C++ lays them out: each at a multiple of its size,
    float2 and double2 as well.
    """
    end = 0
    for argument in arguments:
        number = argument.kind == NUMBER  # else an array, which may be on the device
        size = np.dtype(type(argument.value)).itemsize if number else _POINTER_BYTES
        end = -(-end // size) * size + size
    return end


def _symbol(
    who: str, source: str, name: str, arguments: Sequence[Argument], options: tuple[str, ...]
) -> str | None:
    """Return the kernel's name in the machine code; None where there is no compiler here to ask.

    Raises
    ------
    InputError
        If the arguments are not of the size that the compiled kernel reads: CUDA itself would read
        past them.
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
            f"{who}: {name} takes {takes} bytes of arguments and {given} are given; expected the "
            "same. An array is 8 bytes, an int or float 4, a double or long long 8: pass one "
            "argument for each parameter, of its type."
        )
    return facts[name].symbol


def _cupy_backend(
    who: str, source: str, name: str, options: tuple[str, ...], by_name: bool, index: int
) -> Backend:
    """Return one kernel of a source on one CUDA device.

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
        # Numba's own arrays, and others with the CUDA array interface
        if _backends.backend_of(value) is None:
            return cupy.asarray(value)
        return _backends.share(value, "cupy")

    def ready(
        grid: Extent, block: Extent, shared_bytes: int, arguments: list[Any]
    ) -> Callable[[], None]:
        values = tuple(map(seen, arguments))
        folders = _nvidia.include_folders() if "#include" in source else []
        module = cupy.RawModule(
            code=source,
            options=("--std=c++17", *options, *(f"-I{folder}" for folder in folders)),
            name_expressions=None if by_name else [name],
        )
        kernel = module.get_function(name)
        # a kernel may take no more unless it is told
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
