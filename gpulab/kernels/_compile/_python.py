"""Compile a numba.cuda-style Python kernel without a GPU, for the same facts as CUDA C++.

The kernel is made into plain data; numba-cuda turns that into LTO-IR in a process of its own
(``_numba_worker.py``); nvJitLink optimizes it and makes machine code of it, as at a launch.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib.util
import inspect
import marshal
import pickle
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpulab._files import TemporaryFolder
from gpulab.errors import (
    CompileError,
    InputError,
    MissingLibraryError,
    install_extra,
    kind_of,
    message_of,
    shown,
)
from gpulab.kernels._arguments import described_array
from gpulab.kernels._compile import _cuda, _nvidia
from gpulab.kernels._compile._cuda import (
    CompiledModule,
    checked_arch,
    compiled_module,
    facts_of,
)
from gpulab.kernels._compile._nvidia import Worker
from gpulab.units import plural

# -------------------------------------------------------------------------------------------------
# Make a Python kernel into plain data that another process can compile: its code, and what its
# names stand for.
#
# A kernel leans on names of its module or cell: ``cuda``, ``float32``, ``TILE``, a device
# function. Each is sent as a number or array, as the name of a module, or as a function of its
# own; so the kernel may come from a notebook, may be wrapped by ``cuda.jit`` or not, and its
# ``cuda`` may be Numba's, Numba's simulator's or gpulab's own.


_PLAIN = (bool, int, float, complex, str, type(None), np.generic, np.ndarray, np.dtype)
# What the worker understands: one of these words, then what it needs.
Value = tuple[str, Any]


def function_of(kernel: object, who: str) -> types.FunctionType:
    """Return the plain function of a kernel, wrapped by ``cuda.jit`` or not.

    Raises
    ------
    InputError
        If it is not a Python function.
    """
    plain = getattr(kernel, "py_func", None) or getattr(kernel, "fn", None) or kernel
    if not isinstance(plain, types.FunctionType):
        raise InputError(
            f"{who}: kernel={shown(kernel)}; expected a Python function, plain or wrapped by "
            "cuda.jit. Pass the function itself."
        )
    return plain


def source_of(function: types.FunctionType) -> str:
    """Return a function's text; empty where it was not typed into a file or cell."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def options_of(kernel: object) -> dict[str, Any]:
    """Return what a ``cuda.jit`` around the function asked of the compiler."""
    asked = getattr(kernel, "targetoptions", None) or {}
    known = ("fastmath", "max_registers", "launch_bounds", "inline")
    return {name: asked[name] for name in known if asked.get(name) not in (None, False)}


def portable(
    function: types.FunctionType,
    who: str,
    seen: dict[int, int] | None = None,
    callers: tuple[types.FunctionType, ...] = (),
) -> dict[str, Any]:
    """Return a function as plain data; one that was already met is only named by its number.

    Raises
    ------
    CompileError
        If it depends on something that is not a number, array, module or function, or calls itself,
        directly or through others.
    """
    seen = {} if seen is None else seen
    if id(function) in seen:
        return {"again": seen[id(function)]}
    seen[id(function)] = number = len(seen)
    code, path = function.__code__, (*callers, function)
    held = {name: _value(name, value, path, who, seen) for name, value in named(function).items()}
    last = code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount]
    return {
        "number": number,
        "code": marshal.dumps(code),
        "name": function.__name__,
        "globals": {name: held[name] for name in held if name not in code.co_freevars},
        "closure": [held.get(name) for name in code.co_freevars],
        "source": source_of(function),
        "line": code.co_firstlineno,
        "defaults": [
            _value(name, value, path, who, seen)
            for name, value in zip(last, function.__defaults__ or (), strict=True)
        ],
    }


def named(function: types.FunctionType) -> dict[str, Any]:
    """Return the objects from outside that a function names: globals that there are, and variables
    of the functions around it.
    """
    found = {
        name: function.__globals__[name]
        for name in _global_names(function.__code__)
        if name in function.__globals__
    }
    for name, cell in cells(function).items():
        with contextlib.suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found


def cells(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the variables of the functions around a function that it names."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def line_of_name(code: types.CodeType, name: str) -> int | None:
    """Return the line on which a function reads a name from outside; None if it does not."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") and step.argval == name:
            return step.positions.lineno if step.positions else None
    return None


def _home(value: object) -> str:
    """The module that a value belongs to, as far as that is known."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else type(value).__module__


def _within(home: str, *packages: str) -> bool:
    """Return whether a module is one of these or of their parts; a learner's ``math_helpers`` is no
    part of ``math``.
    """
    return any(home == package or home.startswith(f"{package}.") for package in packages)


def recursion(
    name: str, called: types.FunctionType, function: types.FunctionType
) -> tuple[str, int | None]:
    """Return the refusal of a function that reaches itself by a name that ``function`` reads, and
    the line of that.
    """
    line = line_of_name(function.__code__, name)
    return (
        f"line {line}: {called.__name__} calls itself; recursion is not supported. Write it as a "
        "loop.",
        line,
    )


def _value(
    name: str, value: Any, path: tuple[types.FunctionType, ...], who: str, seen: dict[int, int]
) -> Value:
    home, function = _home(value), path[-1]
    # what cuda.jit, or Numba's simulator, made of a function is one of the learner's
    plain = getattr(value, "py_func", None) or getattr(value, "fn", None)
    if plain is None and not _within(home, "gpulab", "numba", "numba_cuda", "numpy", "math"):
        plain = value
    if isinstance(plain, types.FunctionType):
        if plain in path:
            sentence, line = recursion(name, plain, function)
            raise CompileError(f"{who}: {sentence}", line)
        return "function", (portable(plain, who, seen, path), options_of(value))
    if isinstance(value, types.ModuleType):
        stands_in = _within(home, "numba.cuda", "numba_cuda", "gpulab.kernels")
        return "module", "numba.cuda" if stands_in else home
    if isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(isinstance(item, (*_PLAIN, tuple)) for item in value)
    ):
        return "value", pickle.dumps(value)
    # gpulab's own cuda, where Numba is not imported here
    if getattr(value, "is_gpulab_cuda", False) is True:
        return ("numba", value.path[1:]) if value.path else ("module", "numba.cuda")
    if _within(home, "numba", "numba_cuda"):
        word = getattr(value, "__name__", None) or getattr(value, "name", None) or name
        return "numba", str(word)
    if isinstance(value, (type, types.BuiltinFunctionType, np.ufunc)):
        return "value", pickle.dumps(value)
    line = function.__code__.co_firstlineno
    raise CompileError(
        f"{who}: line {line}: {function.__name__} uses {name!r}, which is {kind_of(value)}; "
        "expected numbers, arrays, modules and functions. Pass it as an argument of the kernel.",
        line,
    )


def described(argument: Any, who: str) -> Value:
    """Return an argument's type: what matters for compiling is the kind of number, the dimensions
    and the layout, not the values.

    Raises
    ------
    InputError
        If a kernel cannot take it.
    """
    if isinstance(argument, tuple):
        return "tuple", [described(item, who) for item in argument]
    if hasattr(argument, "detach") and getattr(argument, "requires_grad", False):
        # PyTorch does not report where the elements of a tensor are that autograd watches
        argument = argument.detach()
    interface = getattr(argument, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        alike = described_array(interface)
        if hasattr(argument, "detach") and not alike.ndim:  # which launch sends as a number
            return "scalar", alike.dtype
        return "array", (alike.dtype, alike.ndim, _layout(alike.flags))
    # a Python number as Numba has it: int64, float64
    is_plain = isinstance(argument, (np.ndarray, np.generic, bool, int, float, complex))
    try:
        array = np.asarray(argument if is_plain else argument.detach())
    except (AttributeError, TypeError, RuntimeError, ValueError):
        raise InputError(
            f"{who}: an argument is {kind_of(argument)}; expected examples of what the kernel is "
            "launched with: arrays, numbers, tuples of them. Pass one."
        ) from None
    if array.dtype.kind not in "biufc" and array.dtype.names is None:
        raise InputError(
            f"{who}: an array has dtype {array.dtype}; expected numbers. Convert it, for example "
            "to float32."
        )
    if not array.ndim:  # a number, as simulate and launch have it
        return "scalar", array.dtype
    return "array", (array.dtype, array.ndim, _layout(array.flags))


def _layout(flags: Any) -> str:
    """C, F, or A for neither, as Numba writes it."""
    return "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"


# -------------------------------------------------------------------------------------------------
# Compile a numba.cuda-style Python kernel without a GPU, for the same facts as CUDA C++.
#
# numba-cuda turns the kernel into LTO-IR in a process of its own (``_numba_worker.py``); nvJitLink
# optimizes that and makes machine code of it, as at a launch.


_WHO = "compile_python"
_INSTALL = f"No GPU is needed. {install_extra('kernels')}"
_numba = Worker(_WHO, [str(Path(__file__).with_name("_numba_worker.py"))])


def compile_python(kernel: Any, *args: Any, arch: str = "sm_90") -> CompiledModule:
    """Compile a Python kernel for any GPU, also one that is not in this machine, and return the
    resources that it needs.

    Parameters
    ----------
    kernel : function
        numba.cuda style, plain or wrapped by ``cuda.jit`` (whose ``fastmath``, ``max_registers``
        and ``launch_bounds`` count).
    *args
        Examples of what it is launched with: arrays of any library, numbers, tuples. Only types,
        dimensions and layouts matter, and the values are never read. A Python int is 64 bits, a
        float is float64, as Numba has it.
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

    Notes
    -----
    The first call starts a process with numba-cuda and takes seconds; a repeated call returns the
    cached result. Source: numba-cuda's ``cuda.compile`` for LTO-IR, and nvJitLink with ``-lto`` and
    ``ptxas -v``, as a launch links it: on an H200 the registers of 44 kernels were those that
    Nsight Compute read (which says 16 for fewer).
    """
    function = function_of(kernel, _WHO)
    count = function.__code__.co_argcount
    if len(args) != count:
        raise InputError(
            f"{_WHO}: {function.__name__} takes {plural(count, 'argument')} and {len(args)} were "
            "given; expected one example for each of "
            f"{', '.join(function.__code__.co_varnames[:count]) or 'none'}. Pass arrays and "
            "numbers such as you launch it with."
        )
    _check_installed()
    chosen, options = checked_arch(arch), options_of(kernel)
    request = {
        "kernel": portable(function, _WHO),
        "arguments": [described(argument, _WHO) for argument in args],
        "options": options,
        "capability": divmod(int(re.sub(r"\D", "", chosen)), 10),
        "path": sys.path,
    }
    return _made(function.__code__, pickle.dumps(request), chosen)


def _check_installed() -> None:
    missing = [name for name in ("numba", "numba_cuda") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingLibraryError(
            f"{_WHO}: a Python kernel is compiled by numba-cuda, and {' and '.join(missing)} is "
            f"not installed. {_INSTALL}"
        )
    if _nvidia.find_library("nvJitLink") is None:
        raise _nvidia.missing_library("nvJitLink")


@functools.lru_cache(64)
def _made(code: types.CodeType, pickled: bytes, arch: str) -> CompiledModule:
    """Return the result for a request, kept for equal ones; the code object has the lines."""
    request = pickle.loads(pickled)
    kernel, options = request["kernel"], request["options"]
    # For the kernel's text, which Numba's messages quote; made here, since the other process is
    # killed in the end and would leave it.
    with TemporaryFolder("numba") as folder:
        answer = _numba.ask({**request, "folder": folder})
    if (
        "missing" in answer
        or "CUDA Toolkit" in answer.get("message", "")
        or "nvvm" in answer.get("message", "").lower()
    ):
        raise MissingLibraryError(
            f"{_WHO}: numba-cuda cannot run here ({message_of(answer['message'])}). {_INSTALL}"
        )
    if "error" in answer:
        raise _fault(code, kernel, answer)
    flags = [
        "-lineinfo",
        *([f"-maxrregcount={options['max_registers']}"] if "max_registers" in options else []),
    ]
    cubin, ptx, log = _nvidia.link(answer["ltoir"], arch, flags)
    (facts,) = facts_of(cubin, log, "").values()  # Numba compiles one kernel at a time
    named = facts._replace(name=kernel["name"], line=code.co_firstlineno)
    return compiled_module(
        cubin,
        {named.name: named},
        arch=arch,
        language="Python",
        source=kernel["source"],
        names=(),
        options=tuple(f"{name}={value}" for name, value in options.items()),
        ptx=ptx,
        log=log,
        warnings=_cuda.warnings(log),
        compiler=answer["compiler"],
    )


def _fault(code: types.CodeType, kernel: dict[str, Any], answer: dict[str, Any]) -> CompileError:
    """Numba's error with the line of the kernel, without the layers that it wraps around."""
    message, line, row = answer["message"], answer["line"], answer["row"]
    unknown = re.search(r"name '(\w+)' is not defined", message)
    if line is None and unknown is not None:
        line = line_of_name(code, unknown.group(1))
        rows = kernel["source"].split("\n")
        at = -1 if line is None else line - code.co_firstlineno
        row = rows[at] if 0 <= at < len(rows) else ""
    where = f"line {line}: " if line is not None else ""
    quoted = f"\n{line:>5} | {row}\n" if row.strip() else " "
    text = (
        f"{_WHO}: {where}{kernel['name']}: {_core(message)}.{quoted}Fix the kernel and run it "
        "again."
    )
    return CompileError(text, line, None, message)


# Rows of Numba's messages that wrap what is wrong.
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
    """The sentence of Numba's message that says what is wrong."""
    rows = [row.strip() for row in message.splitlines()]
    kept = [row for row in rows if row and not row.startswith(_WRAPPING)]
    call = next((row.removeprefix(">>> ") for row in kept if row.startswith(">>> ")), None)
    if call is not None and kept[0].startswith(
        ("No implementation", "No conversion", "Invalid use")
    ):
        return message_of(f"Numba has no {call}", 300)
    return message_of((kept[0] if kept else message.partition("\n")[0]).rstrip(".:"), 300)
