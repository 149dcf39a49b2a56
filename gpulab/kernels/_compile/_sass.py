"""Machine code as text, through NVIDIA's disassembler ``nvdisasm``, which is a program of its
own.
"""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from gpulab._files import TemporaryFolder
from gpulab.errors import CompileError, MissingLibraryError, message_of, pip_command
from gpulab.kernels._compile import _libraries

if TYPE_CHECKING:
    from gpulab.kernels._compile.results import CompiledModule, KernelFacts

_SECONDS = 120.0  # a whole library's code takes seconds; only a program that hangs takes this long
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)')
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")


@functools.lru_cache
def disassembled(cubin: bytes, *options: str) -> str:
    """Return the code of a CUBIN as SASS.

    Raises
    ------
    MissingLibraryError
        If nvdisasm is not installed.
    CompileError
        If it cannot read the code.
    """
    tool = _libraries.find_tool("nvdisasm")
    if tool is None:
        raise MissingLibraryError(
            "sass: NVIDIA's nvdisasm is not installed here, so the machine code cannot be shown as "
            "text; it needs no GPU. "
            f"Run {pip_command('install nvidia-cuda-nvdisasm')} and run the cell again."
        )
    with TemporaryFolder("sass") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "-c", *options, str(file)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=True,
                errors="replace",
            )
        except subprocess.CalledProcessError as error:
            raise CompileError(
                f"sass: {tool.name} cannot read this code ({message_of(error.stderr)}); expected "
                "code of its own release or "
                f"older. Run {pip_command('install --upgrade nvidia-cuda-nvdisasm')}.",
                log=error.stderr,
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(
                f"sass: {tool} did not run ({message_of(error)}); expected NVIDIA's disassembler "
                "for this system."
            ) from error
    return done.stdout


def by_line(module: CompiledModule, kernel: KernelFacts) -> dict[int, tuple[str, ...]]:
    """Return the instructions of one kernel by the line of the source that they come from."""
    # the lines are asked for only here: they would fill the PTX with marks
    if module.language == "CUDA C++":
        from gpulab.kernels._compile._cuda import compile_cuda

        module = compile_cuda(
            module.source, module.arch, (*module.options, "-lineinfo"), names=module.names
        )
    text = disassembled(module.cubin, "-g")
    own = text.partition(f".text.{kernel.symbol}:")[2].partition("//---------------------")[0]
    found: dict[int, list[str]] = {}
    line: int | None = None
    file: str | None = None
    for row in own.splitlines():
        if (mark := _PLACE.search(row)) is not None:
            file = file or mark.group(1)  # a kernel's first instructions are its own
            line = int(mark.group(2)) if mark.group(1) == file and "inlined" not in row else line
        elif line is not None and (code := _INSTRUCTION.search(row)) is not None:
            found.setdefault(line, []).append(code.group(1))
    return {number: tuple(rows) for number, rows in sorted(found.items())}
