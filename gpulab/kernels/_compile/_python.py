"""Compile a numba.cuda-style Python kernel without a GPU, for the same facts as CUDA C++.

numba-cuda compiles the kernel to LTO-IR, and nvJitLink optimizes this and produces machine code, as
at a launch.

This module also finds the globals and closure variables that a kernel uses, for launches too.
"""

from __future__ import annotations

import base64
import contextlib
import dis
import inspect
import linecache
import re
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from gpulab import _interrupts
from gpulab.errors import (
    CompileError,
    DeviceError,
    InputError,
    KernelError,
    MissingLibraryError,
    install_extra,
    kind_of,
    message_of,
    shown,
)
from gpulab.kernels._arguments import array_of_tensor, check_array, check_count, described_array
from gpulab.kernels._compile import _cuda
from gpulab.kernels._compile._cuda import CompiledModule, checked_arch, facts_of
from gpulab.kernels.simulation.source import cells_of, plain_function

# -------------------------------------------------------------------------------------------------
# A kernel, Numba, and the names from outside that the kernel uses.


_FOREIGN = ("numba", "numba_cuda", "numpy")


def function_of(kernel: object, who: str) -> types.FunctionType:
    """Return the plain function of a kernel, whether wrapped by ``cuda.jit`` or not.

    Raises
    ------
    InputError
        If the kernel is not a Python function.
    """
    plain = plain_function(kernel)
    if not isinstance(plain, types.FunctionType):
        raise InputError(
            f"{who}: kernel={shown(kernel)}; expected a Python function, plain or wrapped by "
            "cuda.jit. Pass the function itself."
        )
    return plain


def numba_cuda(who: str) -> Any:
    """Return ``numba.cuda``.

    Raises
    ------
    MissingLibraryError
        If numba-cuda is not installed.
    DeviceError
        If Numba's own simulator is on (``NUMBA_ENABLE_CUDASIM``).
    """
    try:
        import numba_cuda  # noqa: F401 - Numba without it has an older compiler of its own
        from numba import config, cuda

        from gpulab.kernels._language import load_beside_new_numpy
    except ImportError as error:
        raise MissingLibraryError(
            f"{who}: a Python kernel is compiled by numba-cuda, which cannot be imported "
            f"({message_of(error)}); expected it to be installed. {install_extra('kernels')}"
        ) from error
    if config.ENABLE_CUDASIM:
        raise DeviceError(
            f"{who}: NUMBA_ENABLE_CUDASIM is set, so numba has its own simulator in place of the "
            "compiler for GPUs; expected the compiler. Unset it and restart Python."
        )
    load_beside_new_numpy()
    return cuda


def named(function: types.FunctionType) -> dict[str, Any]:
    """Return the values of the globals and closure variables that a function uses, by name. Names
    without a value are left out.
    """
    found = {
        name: function.__globals__[name]
        for name in _global_names(function.__code__)
        if name in function.__globals__
    }
    for name, cell in cells_of(function).items():
        with contextlib.suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _line_of_name(code: types.CodeType, name: str) -> int | None:
    """Return the line on which a function reads a name from outside; None if it does not."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") and step.argval == name:
            return step.positions.lineno if step.positions else None
    return None


def is_device_function(value: object) -> bool:
    """Return whether a value that a kernel uses is a plain function, not of Numba or NumPy."""
    return (
        isinstance(value, types.FunctionType)
        and str(value.__module__).partition(".")[0] not in _FOREIGN
    )


def with_device_functions(
    who: str,
    function: types.FunctionType,
    jit: Callable[..., Any],
    made: dict[types.FunctionType, Any],
    callers: tuple[types.FunctionType, ...] = (),
    *,
    anew: bool = False,
) -> types.FunctionType:
    """Return a copy of the function in which the plain functions that it calls are device
    functions, since ``simulate`` accepts plain functions too. With ``anew``, existing device
    functions are made again.

    numba sees the present values of globals. ``made`` collects the device functions. A function
    that calls no such function is returned as it is.

    Raises
    ------
    KernelError
        If a function calls itself, directly or through others, or one of the functions uses a list,
        dict or set.
    """
    callers = (*callers, function)

    def device(name: str, value: Any) -> Any:
        if isinstance(value, (list, dict, set)):
            line = _line_of_name(function.__code__, name)
            raise KernelError(
                f"{who}: line {line}: {function.__name__} uses {name!r}, which is {kind_of(value)};"
                " expected numbers, arrays, modules and functions. Make a NumPy array of it.",
                line,
            )
        plain = plain_function(value) if anew else value
        if not is_device_function(plain):
            return value
        if plain in callers:
            line = _line_of_name(function.__code__, name)
            raise KernelError(
                f"{who}: line {line}: {plain.__name__} calls itself; recursion is not supported. "
                "Write it as a loop.",
                line,
            )
        if plain not in made:
            asked = {k: v for k, v in _options_of(value).items() if k in ("inline", "fastmath")}
            inner = with_device_functions(who, plain, jit, made, callers, anew=anew)
            made[plain] = jit(device=True, **asked)(inner)
        return made[plain]

    changed = {
        name: new
        for name, value in named(function).items()
        if (new := device(name, value)) is not value
    }
    if not changed:
        return function
    cells = [
        types.CellType(changed[name]) if name in changed else cell
        for name, cell in cells_of(function).items()
    ]
    names = {**function.__globals__, **changed}
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, tuple(cells) or None
    )
    copy.__module__ = function.__module__
    return copy


def _options_of(kernel: object) -> dict[str, Any]:
    """Return the compiler options that were passed to ``cuda.jit``; none of a plain function."""
    asked = getattr(kernel, "targetoptions", None) or {}
    known = ("fastmath", "max_registers", "launch_bounds", "inline")
    return {name: asked[name] for name in known if asked.get(name) not in (None, False)}


# -------------------------------------------------------------------------------------------------
# The compiler.


_WHO = "compile_python"
_one_at_a_time = threading.Lock()


def compile_python(kernel: Any, *args: Any, arch: str = "sm_90") -> CompiledModule:
    """Compile a Python kernel for any GPU, even one that this machine does not have, and return the
    resources that it needs.

    Parameters
    ----------
    kernel : function
        In the style of numba.cuda, plain or wrapped by ``cuda.jit``, whose options ``fastmath``,
        ``max_registers`` and ``launch_bounds`` are used.
    *args
        Example arguments of a launch: arrays of any library, numbers, tuples. Only types,
        dimensions and layouts matter, and the values are never read. A Python int is 64 bits, a
        float is float64, as in Numba.
    arch : str
        As for ``compile_cuda``.

    Returns
    -------
    CompiledModule
        As from ``compile_cuda``; the lines in it are those of the kernel's file or cell.

    Raises
    ------
    CompileError
        If the compiler refuses the kernel; the message shows the line.
    InputError
        If an argument is invalid.
    MissingLibraryError
        If numba-cuda or one of the compiler libraries is not installed.
    DeviceError
        If Numba's own simulator is on (``NUMBA_ENABLE_CUDASIM``).

    Notes
    -----
    The first call loads numba-cuda's compiler, which takes seconds. Source: numba-cuda's
    ``cuda.compile`` for LTO-IR, and nvJitLink with ``-lto`` and ``ptxas -v``, as a launch links it:
    on an H200 the registers of 44 kernels were those that Nsight Compute reported (it reports 16
    where a kernel needs fewer).
    """
    function = function_of(kernel, _WHO)
    name, code = function.__name__, function.__code__
    check_count(_WHO, name, code.co_varnames[: code.co_argcount], args)
    cuda, chosen, options = numba_cuda(_WHO), checked_arch(arch, _WHO), _options_of(kernel)
    import numba
    import numba_cuda as package
    from numba.cuda import decorators, dispatcher

    signature = numba.void(*map(_type_of, args))
    capability = divmod(int(re.sub(r"\D", "", chosen)), 10)
    # Numba asks for the current GPU only to know the compute capability to compile for
    target = mock.Mock(return_value=types.SimpleNamespace(compute_capability=capability))
    flags = [f"-arch={chosen}", "-lto", "-lineinfo"]
    if "max_registers" in options:
        flags.append(f"-maxrregcount={options['max_registers']}")
    made: dict[types.FunctionType, Any] = {}
    try:
        with (
            _one_at_a_time,
            _interrupts.deferred() as interrupt,  # an interrupt breaks tables that Numba makes once
            warnings.catch_warnings(action="ignore"),
            mock.patch.object(dispatcher, "get_current_device", target),
        ):
            ltoir, _ = cuda.compile(
                with_device_functions(_WHO, function, decorators.jit, made, anew=True),
                signature,
                device=False,
                abi="numba",
                cc=capability,
                output="ltoir",
                lineinfo=True,
                **{k: v for k, v in options.items() if k in ("fastmath", "launch_bounds")},
            )
        if interrupt.asked:
            raise KeyboardInterrupt
        ptx, _ = _linked(ltoir, [*flags, "-ptx"], "ptx")
        cubin, log = _linked(ltoir, [*flags, "-verbose", "-Xptxas=-v"], "cubin")
    except Exception as error:  # any error that Numba raises is reported
        raise _fault((function, *made), error) from error
    (facts,) = facts_of(cubin, log, "").values()  # Numba compiles one kernel at a time
    compiler = f"numba-cuda {package.__version__}, Numba {numba.__version__}"
    return CompiledModule(
        arch=chosen,
        language="Python",
        source=_source_of(function),
        options=tuple(f"{name}={value}" for name, value in options.items()),
        names=(),
        kernels={name: facts._replace(name=name, line=code.co_firstlineno)},
        ptx=ptx.rstrip(b"\0").decode(errors="replace"),
        cubin_base64=base64.b64encode(cubin).decode(),
        log=log,
        warnings=_cuda.warnings(log),
        compiler=compiler,
        evidence=_cuda.evidence_of(
            chosen,
            compiler,
            "none in the registers of 44 kernels on an H200, which gives a thread at least 16",
        ),
    )


def _source_of(function: types.FunctionType) -> str:
    """Return a function's source; empty if it was not written in a file or cell."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def _type_of(argument: Any) -> Any:
    """Return Numba's type of an argument: the compiler needs the kind of number, the dimensions and
    the layout, not the values.

    Raises
    ------
    InputError
        If a kernel cannot take such an argument.
    """
    import numba

    if isinstance(argument, tuple):
        return numba.types.BaseTuple.from_types(
            tuple(map(_type_of, argument)),
            type(argument) if hasattr(argument, "_fields") else tuple,  # torch.Size is a tuple too
        )
    is_tensor = hasattr(argument, "detach")
    # PyTorch does not describe the memory of a tensor that requires gradients
    plain = argument.detach() if is_tensor else argument
    interface = getattr(plain, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        array = described_array(interface)
    elif is_tensor:
        array = array_of_tensor(_WHO, "an argument", plain)
    elif isinstance(plain, (np.ndarray, np.generic, bool, int, float, complex)):
        array = np.asarray(plain)
    else:
        raise InputError(
            f"{_WHO}: an argument is {kind_of(argument)}; expected examples of what the kernel is "
            "launched with: arrays, numbers, tuples of them. Pass one."
        )
    check_array(_WHO, "the kernel", "an argument", array, written=False, any_layout=True)
    element = numba.from_dtype(array.dtype)
    if not array.ndim and (is_tensor or interface is None):  # a number, as in simulate
        return element
    flags = array.flags
    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return numba.types.Array(element, array.ndim, layout)


def _linked(ltoir: bytes, flags: list[str], what: str) -> tuple[bytes, str]:
    """Link LTO-IR with the optimizations of numba-cuda's own launches; return the PTX or the
    machine code, and the linker's log.

    Source: nvJitLink's reference, CUDA 13.0 (https://docs.nvidia.com/cuda/nvjitlink).

    Raises
    ------
    CompileError
        If the linker or the assembler refuses the code.
    """
    from cuda.bindings import nvjitlink

    def output(which: str) -> bytes:
        buffer = bytearray(getattr(nvjitlink, f"get_{which}_size")(handle))
        getattr(nvjitlink, f"get_{which}")(handle, buffer)
        return bytes(buffer)

    handle = nvjitlink.create(len(flags), flags)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), "kernel")
        nvjitlink.complete(handle)
        return output(f"linked_{what}"), output("info_log").rstrip(b"\0").decode().strip()
    except nvjitlink.nvJitLinkError as error:
        log = output("error_log").rstrip(b"\0").decode()
        raise CompileError(
            f"compile_python: the assembler refused the code ({message_of(log or error, 300)}); "
            "expected code within the limits of arch. Reduce what the kernel uses, or pass another "
            "arch.",
            log=log,
        ) from error
    finally:
        nvjitlink.destroy(handle)


_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _fault(functions: tuple[types.FunctionType, ...], error: Exception) -> Exception:
    """Return the error to raise for one of Numba's: its essential sentence, and the line in the
    kernel or a device function; a ``MissingLibraryError`` where numba-cuda cannot run.
    """
    message, code = _ANSI.sub("", str(error)), functions[0].__code__
    if isinstance(error, CompileError):
        return error
    if isinstance(error, KernelError):
        return CompileError(message, error.line)
    if re.search("CUDA Toolkit|nvvm|nvjitlink", message, re.IGNORECASE):
        return MissingLibraryError(
            f"{_WHO}: numba-cuda cannot run here ({message_of(message)}). No GPU is needed. "
            f"{install_extra('kernels')}"
        )
    line, file = None, code.co_filename
    # Numba shows a file by its path from the current folder
    files = {Path(each.__code__.co_filename).name: each.__code__.co_filename for each in functions}
    # the innermost place that the message names
    for path, number in re.findall(r'File "([^"]*)", line (\d+)', message):
        if Path(path).name in files:
            line, file = int(number), files[Path(path).name]
            break
    unknown = re.search(r"name '(\w+)' is not defined", message)
    if line is None and unknown is not None:
        line = _line_of_name(code, unknown[1])
    row = "" if line is None else linecache.getline(file, line).rstrip()
    where = "" if line is None else f"line {line}: "
    quoted = f"\n{line:>5} | {row}\n" if row else " "
    text = f"{_WHO}: {where}{functions[0].__name__}: {_core(message)}.{quoted}"
    return CompileError(f"{text}Fix the kernel and run it again.", line, None, message)


# Beginnings of lines in Numba's messages that do not state the error itself.
_WRAPPING = (
    "Failed in",
    "During:",
    "File ",
    "def ",
    "<source",
    "Enable logging",
    "- Resolution failure",
    "There are ",
    "- Of which",
    "Overload of",
)


def _core(message: str) -> str:
    """Return the sentence of Numba's message that states the error itself."""
    rows = [row.strip() for row in message.splitlines()]
    kept = [row for row in rows if row and not row.startswith(_WRAPPING)]
    call = next((row.removeprefix(">>> ") for row in kept if row.startswith(">>> ")), None)
    if call is not None and kept[0].startswith(
        ("No implementation", "No conversion", "Invalid use")
    ):
        return message_of(f"Numba has no {call}", 300)
    return message_of((kept[0] if kept else message.partition("\n")[0]).rstrip(".:"), 300)
