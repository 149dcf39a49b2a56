"""The process that compiles one source with NVIDIA's NVRTC. ``_cuda.py`` starts it as a script, and
it does not import gpulab.

It reads one pickled request from its standard input and answers on its standard output. Source:
NVRTC's reference, CUDA 13.0 (https://docs.nvidia.com/cuda/nvrtc): nvrtcCompileProgram,
nvrtcGetCUBIN, nvrtcGetLoweredName.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

FILE = "kernel.cu"


def about(nvrtc: Any) -> tuple[str, tuple[int, ...]]:
    """Return the compiler's version, and the compute capabilities that it compiles for."""
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(found)
    return f"{major.value}.{minor.value}", tuple(found)


def compiled(
    nvrtc: Any, source: str, options: Sequence[str], names: Sequence[str]
) -> tuple[int, str, str, bytes, tuple[tuple[str, str], ...]]:
    """Compile a source; return NVRTC's result code, the log, the PTX, the machine code, and each of
    ``names`` with its name in the machine code.
    """
    program = ctypes.c_void_p()
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    # not checked: if this fails, the compilation fails too, and reports why
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), FILE.encode(), 0, None, None)
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    texts = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    code = nvrtc.nvrtcCompileProgram(program, len(options), texts)
    log = _text(nvrtc, "ProgramLog", program).strip()
    if code:
        return code, log or nvrtc.nvrtcGetErrorString(code).decode(), "", b"", ()
    symbols = []
    for name in names:
        lowered = ctypes.c_char_p()
        nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
        symbols.append((name, (lowered.value or b"").decode()))
    ptx, cubin = _text(nvrtc, "PTX", program), _output(nvrtc, "CUBIN", program)
    return code, log, ptx, cubin, tuple(symbols)


def _output(nvrtc: Any, what: str, program: ctypes.c_void_p) -> bytes:
    """Return the output of one of the ``nvrtcGet`` functions; empty if there is none."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def _text(nvrtc: Any, what: str, program: ctypes.c_void_p) -> str:
    return _output(nvrtc, what, program).rstrip(b"\0").decode(errors="replace")


def main() -> None:
    """Answer one request: a source with options and names, or nothing, which asks ``about``."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the compiler prints must not mix with the answer
    sys.path[:], request = pickle.load(sys.stdin.buffer)
    # results that NVRTC takes from its cache on disk lack the assembler's log
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        nvrtc = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: it is not found
        pickle.dump(str(error), answers)
    else:
        pickle.dump(compiled(nvrtc, *request) if request else about(nvrtc), answers)


if __name__ == "__main__":
    main()
