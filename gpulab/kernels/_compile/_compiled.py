"""A compiled source: its kernels' figures, and the code in each of its forms."""

from __future__ import annotations

import base64
import functools
import math
import re
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpulab._files import TemporaryFolder
from gpulab.errors import (
    CompileError,
    InputError,
    MissingLibraryError,
    message_of,
    pip_command,
    shown,
)
from gpulab.evidence import Evidence
from gpulab.kernels._compile import _nvidia
from gpulab.results import Result
from gpulab.units import format_bytes

# -------------------------------------------------------------------------------------------------
# What a compiler made of a source: its kernels' figures, and the code itself in each of its forms.


@dataclass(frozen=True)
class KernelFacts(Result):
    """The resources that one thread, or one block, of a kernel needs.

    Attributes
    ----------
    name, symbol : str
        As the source has it; as the machine code has it.
    line : int or None
        Its line in the source, from 1; None where a macro made it, and for overloads of one name.
    registers : int
        32-bit registers of each thread, at most 255.
    shared_bytes : int
        Static shared memory of each block. A launch's dynamic shared memory, and the 1,024 bytes
        that the system reserves from compute capability 8.0 on, are not included.
    stack_bytes : int
        Local memory of each thread for arrays, calls and spills together; it is in the GPU's main
        memory, behind the caches.
    spill_store_bytes, spill_load_bytes : int
        Bytes that the compiler's own stores and loads move because the registers did not suffice,
        counted once for each such instruction in the code (a loop runs it again); with those of the
        functions that it calls.
    constant_bytes : int
        ``__constant__`` variables of the whole source, which all its kernels share.
    parameter_bytes : int
        The kernel's own arguments, which are also in constant memory.
    barriers : int
        How many of the 16 barriers of a block it uses.
    max_threads : int or None
        The most threads of a block that the source declares (``__launch_bounds__``); None if it
        declares none.
    code_bytes : int
        Machine code; one instruction is 16 bytes from compute capability 7.0.
    """

    name: str
    symbol: str
    line: int | None
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    constant_bytes: int
    parameter_bytes: int
    barriers: int
    max_threads: int | None
    code_bytes: int

    @property
    def spill_bytes(self) -> int:
        """Stores and loads together; 0 means that everything fits into registers."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True, repr=False)
class CompiledModule(Result):
    """One compiled source: the figures of its kernels, and the code as PTX, as machine code and as
    SASS.

    Attributes
    ----------
    arch : str
        What it was compiled for, such as "sm_90".
    language : str
        "CUDA C++" or "Python".
    source : str
        The text that was compiled.
    options, names : tuple of str
        Given to the compiler; the template instances that were asked for.
    kernels : mapping
        Name -> KernelFacts.
    ptx : str
        The portable assembly that the machine code was made from.
    cubin_base64 : str
        The machine code, as text; ``cubin`` gives its bytes.
    log : str
        What the compilers printed.
    warnings : tuple of str
        Their warnings.
    compiler : str
        Its name and version.
    evidence : Evidence
    """

    arch: str
    language: str
    source: str
    options: tuple[str, ...]
    names: tuple[str, ...]
    kernels: Mapping[str, KernelFacts]
    ptx: str
    cubin_base64: str
    log: str
    warnings: tuple[str, ...]
    compiler: str
    evidence: Evidence

    @property
    def cubin(self) -> bytes:
        """The machine code: an ELF file that the driver, ``nvdisasm`` and ``cupy.RawModule``
        load.
        """
        return base64.b64decode(self.cubin_base64)

    @property
    def sass(self) -> str:
        """The machine code as text, through NVIDIA's ``nvdisasm``; where that is not installed, one
        comment that says so.
        """
        try:
            return disassembled(self.cubin)
        except ImportError as error:
            return f"// {error}"

    def sass_lines(self, name: str | None = None) -> dict[int, tuple[str, ...]]:
        """Return each source line's machine instructions.

        Parameters
        ----------
        name : str, optional
            The kernel; may be left out where there is only one.

        Returns
        -------
        dict
            Line, from 1 -> its instructions in the order of the code. An optimizing compiler moves
            and merges work, so a line may own few or none; instructions that belong to no source
            line (those of a header) are left out.

        Raises
        ------
        InputError
            If there is no such kernel, or there are several and no name is given.
        MissingLibraryError
            If nvdisasm is not installed.
        """
        return sass_by_line(self, self._kernel(name))

    def _kernel(self, name: str | None) -> KernelFacts:
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name is None or name not in self.kernels:
            raise InputError(
                f"sass_lines: {'no name' if name is None else shown(name)} was given; expected one "
                f"of {', '.join(self.kernels)}. Pass it."
            )
        return self.kernels[name]

    def __repr__(self) -> str:
        parts = [
            f"{name}: {k.registers} registers, {format_bytes(k.shared_bytes)} shared"
            for name, k in self.kernels.items()
        ]
        return f"<CompiledModule for {self.arch}; {'; '.join(parts or self.warnings)}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return a row for each kernel, with what decides how many blocks fit on an SM, and one for
        each warning.
        """
        headers = ("kernel", "registers (a thread)", "spilled", "shared (a block)", "code")
        rows = [
            (
                name,
                str(k.registers),
                *map(format_bytes, (k.spill_bytes, k.shared_bytes, k.code_bytes)),
            )
            for name, k in self.kernels.items()
        ]
        blank = [""] * (len(headers) - 2)
        return headers, [*rows, *(("warning", text, *blank) for text in self.warnings)]


def compiled_module(
    cubin: bytes, facts: Mapping[str, KernelFacts], **others: object
) -> CompiledModule:
    """Return the result for a piece of machine code, with its evidence.

    Raises
    ------
    CompileError
        If there is no kernel in it.
    """
    arch, compiler, log = str(others["arch"]), str(others["compiler"]), str(others["log"])
    if not facts:
        raise CompileError(
            "compile_cuda: the source produced no kernel; expected a __global__ function, and "
            "templates only by name. Write one, or "
            'name the instances of a template: names=["kernel<16>"].',
            log=log,
        )
    evidence = Evidence.modelled(
        assumptions=f"the program ships machine code for {arch} made by this compiler; another "
        "version may allocate differently",
        source=f"{compiler}, run here for {arch}: its log and the machine code's own header",
        known_error="none in the registers of 44 kernels on an H200"
        if others["language"] == "Python"
        else "none: a GPU launches by these figures",
    )
    encoded = base64.b64encode(cubin).decode()
    return CompiledModule(kernels=dict(facts), cubin_base64=encoded, evidence=evidence, **others)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------
# Machine code as text, through NVIDIA's disassembler ``nvdisasm``, which is a program of its own.


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
    tool = _nvidia.find_tool("nvdisasm")
    if tool is None:
        raise MissingLibraryError(
            "sass: NVIDIA's nvdisasm is not installed here, so the machine code cannot be shown "
            f"as text; it needs no GPU. Run {pip_command('install nvidia-cuda-nvdisasm')} and run "
            "the cell again."
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
                "code of its own release or older. Run "
                f"{pip_command('install --upgrade nvidia-cuda-nvdisasm')}.",
                log=error.stderr,
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(
                f"sass: {tool} did not run ({message_of(error)}); expected NVIDIA's disassembler "
                "for this system."
            ) from error
    return done.stdout


def sass_by_line(module: CompiledModule, kernel: KernelFacts) -> dict[int, tuple[str, ...]]:
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


# -------------------------------------------------------------------------------------------------
# Read what a CUBIN says about its kernels: an ELF file whose ``.nv.info`` sections hold the facts
# that the driver launches by.
#
# Only the few attributes that the course shows are read. Their numbers are those that ``cuobjdump
# -elf`` prints with these names: EIATTR_MAX_THREADS 0x05, EIATTR_REQNTID 0x10,
# EIATTR_CBANK_PARAM_SIZE 0x19, EIATTR_REGCOUNT 0x2f.


_MAX_THREADS, _REQUIRED_THREADS, _PARAMETER_BYTES, _REGISTERS = 0x05, 0x10, 0x19, 0x2F
# The form of an attribute that is a size and that many bytes; the others hold nothing, a byte or
# two bytes.
_SIZED = 4
_NOBITS = 8
_ENTRY = 0x10  # STO_CUDA_ENTRY in a symbol's st_other: a kernel, not a device function
# The system reserves 1 KB of shared memory of each block (CUDA C++ Programming Guide, "Shared
# Memory"). The size of a kernel's section contains it from compute capability 9.0: seen in the
# files of NVRTC 13.0 for all twelve architectures beside the assembler's own figure.
_RESERVED_FROM, _RESERVED_BYTES = 90, 1024


class _Section(NamedTuple):
    """One section of the file; ``data`` is empty where it takes no room in the file."""

    size: int
    data: bytes


def _sections(cubin: bytes) -> dict[str, _Section]:
    """Return the sections of a 64-bit little-endian ELF file by name.

    Raises
    ------
    CompileError
        If the bytes are not such a file.
    """
    if len(cubin) < 64 or cubin[:6] != b"\x7fELF\x02\x01":
        raise CompileError(
            f"cubin: {len(cubin)} bytes that are not an NVIDIA ELF file; expected machine code. "
            "Compile the source again."
        )
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    data = [b"" if head[1] == _NOBITS else cubin[head[4] : head[4] + head[5]] for head in heads]
    return {
        _string(data[names_at], head[0]): _Section(head[5], content)
        for head, content in zip(heads, data, strict=True)
    }


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute = data[at], data[at + 1]
        size = struct.unpack_from("<H", data, at + 2)[0] if form == _SIZED else 0
        yield attribute, data[at + 4 : at + 4 + size] if form == _SIZED else data[at + 2 : at + 4]
        at += 4 + size


def kernels_in(cubin: bytes, arch: str) -> tuple[list[dict[str, Any]], int]:
    """Return what a CUBIN for an architecture such as "sm_90" records about its kernels, by the
    fields of ``KernelFacts`` (registers only where it records them), and the bytes of the module's
    own ``__constant__`` memory.

    Raises
    ------
    CompileError
        If the bytes are not an ELF file.
    """
    parts, none = _sections(cubin), _Section(0, b"")
    table, strings = parts[".symtab"].data, parts[".strtab"].data
    symbols = [
        (_string(strings, name), other)
        for name, _, other, _ in (
            struct.unpack_from("<IBBH", table, at) for at in range(0, len(table), 24)
        )
    ]
    registers = {
        symbols[number][0]: value
        for number, value in (
            struct.unpack_from("<II", data)
            for attribute, data in _attributes(parts.get(".nv.info", none).data)
            if attribute == _REGISTERS
        )
    }
    reserved = _RESERVED_BYTES if int(re.sub(r"\D", "", arch)) >= _RESERVED_FROM else 0
    kernels = []
    for symbol, other in symbols:
        if not other & _ENTRY or f".text.{symbol}" not in parts:
            continue
        own = dict(_attributes(parts.get(f".nv.info.{symbol}", none).data))
        threads = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
        facts: dict[str, Any] = {
            "symbol": symbol,
            "shared_bytes": max(0, parts.get(f".nv.shared.{symbol}", none).size - reserved),
            "parameter_bytes": struct.unpack("<H", own.get(_PARAMETER_BYTES, b"\0\0"))[0],
            "max_threads": math.prod(struct.unpack_from("<III", threads)) if threads else None,
            "code_bytes": parts[f".text.{symbol}"].size,
        }
        if symbol in registers:
            facts["registers"] = registers[symbol]
        kernels.append(facts)
    return kernels, parts.get(".nv.constant3", none).size
