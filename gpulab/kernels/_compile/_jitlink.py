"""Assemble PTX into machine code through NVIDIA's nvJitLink and ctypes: NVRTC takes CUDA C++ alone. No GPU, no driver.

Source: nvJitLink's reference, CUDA 13.0 (https://docs.nvidia.com/cuda/nvjitlink).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from gpulab.errors import CompileError
from gpulab.kernels._compile import _libraries

_PTX = 2  # NVJITLINK_INPUT_PTX


@functools.cache
def library() -> Any:
    """Load nvJitLink once.

    Raises
    ------
    MissingLibraryError
        If it is not installed.
    """
    return _libraries.load("nvJitLink")


def _text(handle: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    if getattr(library(), f"nvJitLinkGet{what}Size")(handle, ctypes.byref(size)) or not size.value:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library(), f"nvJitLinkGet{what}")(handle, buffer)
    return buffer.raw


def assemble(ptx: str, arch: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """Return (machine code, the assembler's log) of a piece of PTX.

    Raises
    ------
    CompileError
        If the assembler refuses it.
    MissingLibraryError
        If nvJitLink is not installed.
    """
    linker, handle, data = library(), ctypes.c_void_p(), ptx.encode() + b"\0"
    flags = [f"-arch={arch}", "-verbose", "-Xptxas=-v", *options]
    code = linker.nvJitLinkCreate(ctypes.byref(handle), len(flags), (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags]))
    try:
        if code == 0:
            code = linker.nvJitLinkAddData(handle, _PTX, data, len(data), b"kernel.ptx")
        if code == 0:
            code = linker.nvJitLinkComplete(handle)
        log = "\n".join(_text(handle, what).rstrip(b"\0").decode(errors="replace").strip() for what in ("ErrorLog", "InfoLog")).strip()
        if code != 0:
            raise CompileError(
                f"compile_python: the assembler refused the code for {arch} ({' '.join(log.split())[:300] or f'error {code}'}); expected "
                "fewer bytes or another arch. Mend the kernel and run it again.",
                log=log,
            )
        return _text(handle, "LinkedCubin"), log
    finally:
        if handle:
            linker.nvJitLinkDestroy(ctypes.byref(handle))
