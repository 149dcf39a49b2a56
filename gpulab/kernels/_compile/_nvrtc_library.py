"""NVIDIA's run-time compiler NVRTC through ctypes: CUDA C++ in, PTX, machine code and the
compilers' words out. No GPU, no driver.

Only the helper process loads it (``_nvrtc.py`` asks there).

Source: NVRTC's reference, CUDA 13.0 (https://docs.nvidia.com/cuda/nvrtc): nvrtcCompileProgram,
nvrtcGetCUBIN, nvrtcGetLoweredName.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.kernels._compile import _libraries

# nvrtcResult
SUCCESS, INVALID_OPTION = 0, 5
FILE = "kernel.cu"


@dataclass(frozen=True)
class Output:
    """What one run of the compiler gave; ``symbols`` maps each asked name to the name in the
    machine code.
    """

    code: int
    log: str
    ptx: str = ""
    cubin: bytes = b""
    symbols: tuple[tuple[str, str], ...] = ()


@functools.cache
def library() -> Any:
    """Load NVRTC once.

    Raises
    ------
    MissingLibraryError
        If it is not installed.
    """
    nvrtc = _libraries.load("nvrtc")
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


@functools.cache
def version() -> str:
    """Return NVRTC's version, such as "13.0"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@functools.cache
def architectures() -> tuple[int, ...]:
    """Return the compute capabilities that this NVRTC compiles for, times ten: 75, 80, ... 120."""
    count = ctypes.c_int()
    library().nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    library().nvrtcGetSupportedArchs(found)
    return tuple(found)


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    """One of the compiler's outputs, by the name in NVRTC's functions; empty if there is none."""
    size = ctypes.c_size_t()
    if (
        getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)) != SUCCESS
        or not size.value
    ):
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library(), f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def _lowered(program: ctypes.c_void_p, name: str) -> str:
    found = ctypes.c_char_p()
    library().nvrtcGetLoweredName(program, name.encode(), ctypes.byref(found))
    return (found.value or b"").decode()


def compile_program(source: str, options: Sequence[str], names: Sequence[str] = ()) -> Output:
    """Compile a source whose text and options hold no NUL; raise nothing for what the compiler
    refuses.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), FILE.encode(), 0, None, None
    )
    if code != SUCCESS:
        return Output(code, nvrtc.nvrtcGetErrorString(code).decode())
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        code = nvrtc.nvrtcCompileProgram(program, len(options), given)
        log = _text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if code != SUCCESS:
            return Output(code, log or nvrtc.nvrtcGetErrorString(code).decode())
        symbols = tuple((name, _lowered(program, name)) for name in names)
        ptx = _text(program, "PTX").rstrip(b"\0").decode(errors="replace")
        return Output(code, log, ptx, _text(program, "CUBIN"), symbols)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
