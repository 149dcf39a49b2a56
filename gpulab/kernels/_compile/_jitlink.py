"""Turn LTO-IR into machine code through NVIDIA's nvJitLink and ctypes, as numba-cuda does for a
launch. No GPU, no driver.

Source: nvJitLink's reference, CUDA 13.0 (https://docs.nvidia.com/cuda/nvjitlink).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from gpulab.errors import CompileError, message_of
from gpulab.kernels._compile import _libraries

_LTOIR = 3  # NVJITLINK_INPUT_LTOIR


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


def link(ltoir: bytes, arch: str, options: Sequence[str] = ()) -> tuple[bytes, str, str]:
    """Return (machine code, the PTX between, the assembler's log) of a piece of LTO-IR, optimized
    as numba-cuda's own launches are.

    Raises
    ------
    CompileError
        If the linker or the assembler refuses it.
    MissingLibraryError
        If nvJitLink is not installed.
    """
    cubin, log = _linked(ltoir, arch, ["-lto", "-verbose", "-Xptxas=-v", *options], "LinkedCubin")
    ptx, _ = _linked(ltoir, arch, ["-lto", "-ptx", *options], "LinkedPtx")
    return cubin, ptx.rstrip(b"\0").decode(errors="replace"), log


def _linked(ltoir: bytes, arch: str, options: Sequence[str], what: str) -> tuple[bytes, str]:
    linker, handle = library(), ctypes.c_void_p()
    flags = [f"-arch={arch}", *options]
    code = linker.nvJitLinkCreate(
        ctypes.byref(handle),
        len(flags),
        (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags]),
    )
    try:
        if code == 0:
            code = linker.nvJitLinkAddData(handle, _LTOIR, ltoir, len(ltoir), b"kernel.ltoir")
        if code == 0:
            code = linker.nvJitLinkComplete(handle)
        log = "\n".join(
            _text(handle, name).rstrip(b"\0").decode(errors="replace").strip()
            for name in ("ErrorLog", "InfoLog")
        ).strip()
        if code != 0:
            raise CompileError(
                f"compile_python: the assembler refused the code for {arch} "
                f"({message_of(log, 300) or f'error {code}'}); expected "
                "fewer bytes or another arch. Fix the kernel and run it again.",
                log=log,
            )
        return _text(handle, what), log
    finally:
        if handle:
            linker.nvJitLinkDestroy(ctypes.byref(handle))
