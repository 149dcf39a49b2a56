"""Compile a numba.cuda-style Python kernel without a GPU, for the same facts as CUDA C++.

numba-cuda turns the kernel into LTO-IR in a process of its own (``_numba_worker.py``); nvJitLink
optimizes that and makes machine code of it, as at a launch.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pickle
import re
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from gpulab._files import TemporaryFolder
from gpulab.errors import (
    CompileError,
    InputError,
    MissingLibraryError,
    install_extra,
    message_of,
    shown,
)
from gpulab.kernels._compile import _libraries, _log, _nvrtc, _portable
from gpulab.kernels._compile._cuda import checked_arch, facts_of
from gpulab.kernels._compile._worker import Worker
from gpulab.kernels._compile.results import CompiledModule, module
from gpulab.units import plural

_WHO = "compile_python"
_INSTALL = f"No GPU is needed. {install_extra('kernels')}"
_CACHED = 64
_cache: OrderedDict[bytes, CompiledModule] = OrderedDict()
_cache_lock = threading.Lock()


_worker = Worker(_WHO, [str(Path(__file__).with_name("_numba_worker.py"))])


def compile_python(
    kernel: Any, *args: Any, arch: str = "sm_90", signature: str | None = None
) -> CompiledModule:
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
    signature : str, optional
        Numba's words in place of examples, such as ``"void(float32[:, ::1], int32)"``.

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
    function = _portable.function_of(kernel, _WHO)
    if signature is not None and (not isinstance(signature, str) or args):
        raise InputError(
            f"{_WHO}: signature={shown(signature)} with {len(args)} example arguments; expected "
            "either a text, such as "
            '"void(float32[::1], int32)", or examples. Leave one of them out.'
        )
    count = function.__code__.co_argcount
    if signature is None and len(args) != count:
        raise InputError(
            f"{_WHO}: {function.__name__} takes {plural(count, 'argument')} and {len(args)} were "
            "given; expected one example for each "
            f"of {', '.join(function.__code__.co_varnames[:count]) or 'none'}. Pass arrays and "
            "numbers such as you launch it with."
        )
    _check_installed()
    chosen, options = checked_arch(arch), _portable.options_of(kernel)
    request = {
        "kernel": _portable.portable(function, _WHO),
        "arguments": [_portable.described(argument, _WHO) for argument in args],
        "signature": signature,
        "options": options,
        "capability": _capability(chosen),
        "path": sys.path,
    }
    key = pickle.dumps((request, chosen))
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    result = _made(function, request, chosen, options)
    with _cache_lock:
        _cache[key] = result
        while len(_cache) > _CACHED:
            _cache.popitem(last=False)
    return result


def _capability(arch: str) -> tuple[int, int]:
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


def _check_installed() -> None:
    missing = [name for name in ("numba", "numba_cuda") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingLibraryError(
            f"{_WHO}: a Python kernel is compiled by numba-cuda, and {' and '.join(missing)} is "
            f"not installed. {_INSTALL}"
        )
    if _libraries.find_library("nvJitLink") is None:
        raise _libraries.missing("nvJitLink")


def _made(
    function: Any, request: dict[str, Any], arch: str, options: dict[str, Any]
) -> CompiledModule:
    # For the kernel's text, which Numba's messages quote; made here, since the other process is
    # killed in the end and would leave it.
    with TemporaryFolder("numba") as folder:
        answer = _worker.ask({**request, "folder": folder})
    if (
        "missing" in answer
        or "CUDA Toolkit" in answer.get("message", "")
        or "nvvm" in answer.get("message", "").lower()
    ):
        raise MissingLibraryError(
            f"{_WHO}: numba-cuda cannot run here ({message_of(answer['message'])}). {_INSTALL}"
        )
    if "error" in answer:
        raise _fault(function, request["kernel"]["source"], answer)
    flags = [
        "-lineinfo",
        *([f"-maxrregcount={options['max_registers']}"] if "max_registers" in options else []),
    ]
    cubin, ptx, log = _nvrtc.link(answer["ltoir"], arch, flags)
    name, line = function.__name__, function.__code__.co_firstlineno
    (kernel,) = facts_of(cubin, arch, log, "").values()  # Numba compiles one kernel at a time
    facts = {name: dataclasses.replace(kernel, name=name, line=line)}
    return module(
        cubin,
        facts,
        arch=arch,
        language="Python",
        source=request["kernel"]["source"],
        names=(),
        options=tuple(f"{name}={value}" for name, value in options.items()),
        ptx=ptx,
        log=log,
        warnings=_log.warnings(log),
        compiler=answer["compiler"],
    )


def _fault(function: Any, source: str, answer: dict[str, Any]) -> CompileError:
    """Numba's error with the line of the kernel, without the layers that it wraps around."""
    message, line, row = answer["message"], answer["line"], answer["row"]
    unknown = re.search(r"name '(\w+)' is not defined", message)
    if line is None and unknown is not None:
        line = _portable.line_of_name(function.__code__, unknown.group(1))
        rows = source.split("\n")
        at = -1 if line is None else line - function.__code__.co_firstlineno
        row = rows[at] if 0 <= at < len(rows) else ""
    where = f"line {line}: " if line is not None else ""
    quoted = f"\n{line:>5} | {row}\n" if row.strip() else " "
    text = (
        f"{_WHO}: {where}{function.__name__}: {_core(message)}.{quoted}Fix the kernel and run "
        "it again."
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
    said = [row for row in rows if row and not row.startswith(_WRAPPING)]
    call = next((row.removeprefix(">>> ") for row in said if row.startswith(">>> ")), None)
    if call is not None and said[0].startswith(
        ("No implementation", "No conversion", "Invalid use")
    ):
        return message_of(f"Numba has no {call}", 300)
    return message_of((said[0] if said else message.partition("\n")[0]).rstrip(".:"), 300)
