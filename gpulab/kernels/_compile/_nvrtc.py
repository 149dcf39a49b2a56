"""Ask the helper process that holds NVIDIA's compiler libraries; the learner's own process never
loads them.
"""

from __future__ import annotations

import functools
import os
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpulab
from gpulab.errors import GpulabError
from gpulab.kernels._compile import _jitlink, _libraries, _nvrtc_library
from gpulab.kernels._compile._nvrtc_library import FILE, INVALID_OPTION, SUCCESS, Output
from gpulab.kernels._compile._worker import Worker

__all__ = [
    "FILE",
    "INVALID_OPTION",
    "SUCCESS",
    "Output",
    "architectures",
    "compile_program",
    "link",
    "serve",
    "version",
]

# What is no text, such as a Path that a learner put there, Python passes over.
_PATH = ascii(
    [
        str(Path(gpulab.__file__).parent.parent),
        *(place for place in sys.path if isinstance(place, str)),
    ]
)
_worker = Worker(
    "compile_cuda",
    [
        "-c",
        f"import sys; sys.path[:] = {_PATH}; from gpulab.kernels._compile._nvrtc import serve; "
        "serve()",
    ],
)


def _asked(function: str, *arguments: Any) -> Any:
    if _libraries.find_library("nvrtc") is None and function != "link":
        raise _libraries.missing("nvrtc")  # known without starting a process
    answer = _worker.ask((function, arguments))
    if isinstance(answer, GpulabError):
        raise answer
    return answer


@functools.cache
def version() -> str:
    """Return NVRTC's version, such as "13.0".

    Raises
    ------
    MissingLibraryError
        If it is not installed.
    """
    return str(_asked("version"))


@functools.cache
def architectures() -> tuple[int, ...]:
    """Return the compute capabilities that NVRTC compiles for, times ten: 75, 80, ... 120.

    Raises
    ------
    MissingLibraryError
        If it is not installed.
    """
    return tuple(_asked("architectures"))


def compile_program(source: str, options: Sequence[str], names: Sequence[str] = ()) -> Output:
    """Compile a source whose text and options hold no NUL; what the compiler refuses is in the
    output's code.

    Raises
    ------
    MissingLibraryError
        If NVRTC is not installed.
    CompileError
        If the source ended the compiler.
    """
    output: Output = _asked("compile_program", source, tuple(options), tuple(names))
    return output


def link(ltoir: bytes, arch: str, options: Sequence[str] = ()) -> tuple[bytes, str, str]:
    """Return (machine code, the PTX between, the assembler's log) of a piece of LTO-IR.

    Raises
    ------
    CompileError
        If the linker or the assembler refuses it.
    MissingLibraryError
        If nvJitLink is not installed.
    """
    code, ptx, log = _asked("link", ltoir, arch, tuple(options))
    return code, ptx, log


def serve() -> None:
    """Answer requests until the input ends; the helper process runs this."""
    # what NVRTC takes from its cache on disk comes without the assembler's log
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    functions: dict[str, Callable[..., Any]] = {
        "version": _nvrtc_library.version,
        "architectures": _nvrtc_library.architectures,
        "compile_program": _nvrtc_library.compile_program,
        "link": _jitlink.link,
    }
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    while len(head := asked.read(8)) == 8:
        function, arguments = pickle.loads(asked.read(struct.unpack("<Q", head)[0]))
        try:
            answer = functions[function](*arguments)
        except GpulabError as error:
            answer = error
        data = pickle.dumps(answer)
        answers.write(struct.pack("<Q", len(data)) + data)
        answers.flush()
