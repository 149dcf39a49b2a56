"""Read what a CUBIN says about its kernels: an ELF file whose ``.nv.info`` sections hold the facts
that the driver launches by.

Only the few attributes that the course shows are read. Their numbers are those that ``cuobjdump
-elf`` prints with these names: EIATTR_MAX_THREADS 0x05, EIATTR_REQNTID 0x10,
EIATTR_CBANK_PARAM_SIZE 0x19, EIATTR_REGCOUNT 0x2f.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gpulab.errors import CompileError

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


@dataclass(frozen=True)
class Section:
    """One section of the file; ``data`` is empty where it takes no room in the file."""

    name: str
    size: int
    data: bytes
    link: int


@dataclass(frozen=True)
class KernelInFile:
    """What the file records about one kernel; None where it has no entry."""

    symbol: str
    registers: int | None
    shared_bytes: int
    parameter_bytes: int
    max_threads: int | None
    code_bytes: int


def sections(cubin: bytes) -> list[Section]:
    """Return the sections of a 64-bit little-endian ELF file.

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
    names = _cut(cubin, heads[names_at])
    return [Section(_string(names, head[0]), head[5], _cut(cubin, head), head[6]) for head in heads]


def _cut(cubin: bytes, head: tuple[int, ...]) -> bytes:
    return b"" if head[1] == _NOBITS else cubin[head[4] : head[4] + head[5]]


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def _symbols(parts: list[Section]) -> list[tuple[str, int]]:
    """(name, st_other) of each symbol, in the order of the file."""
    table = next(part for part in parts if part.name == ".symtab")
    strings = parts[table.link].data
    found = [struct.unpack_from("<IBBH", table.data, at) for at in range(0, len(table.data), 24)]
    return [(_string(strings, name), other) for name, _, other, _ in found]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute = data[at], data[at + 1]
        size = struct.unpack_from("<H", data, at + 2)[0] if form == _SIZED else 0
        yield attribute, data[at + 4 : at + 4 + size] if form == _SIZED else data[at + 2 : at + 4]
        at += 4 + size


def _by_symbol(data: bytes, wanted: int, names: list[tuple[str, int]]) -> dict[str, int]:
    """The values of an attribute that is stored as (symbol, value)."""
    pairs = [
        struct.unpack_from("<II", value)
        for attribute, value in _attributes(data)
        if attribute == wanted
    ]
    return {names[symbol][0]: value for symbol, value in pairs}


def read(cubin: bytes, arch: str) -> tuple[list[KernelInFile], int]:
    """Return the kernels of a CUBIN for an architecture such as "sm_90", and the bytes of the
    module's own ``__constant__`` memory.

    Raises
    ------
    CompileError
        If the bytes are not an ELF file.
    """
    parts = sections(cubin)
    by_name = {part.name: part for part in parts}
    names = _symbols(parts)
    shared = by_name[".nv.info"].data if ".nv.info" in by_name else b""
    registers = _by_symbol(shared, _REGISTERS, names)
    reserved = _RESERVED_BYTES if int(re.sub(r"\D", "", arch)) >= _RESERVED_FROM else 0
    kernels = []
    for symbol in (name for name, other in names if other & _ENTRY and f".text.{name}" in by_name):
        own = (
            dict(_attributes(by_name[f".nv.info.{symbol}"].data))
            if f".nv.info.{symbol}" in by_name
            else {}
        )
        threads = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
        block = by_name.get(f".nv.shared.{symbol}")
        kernels.append(
            KernelInFile(
                symbol=symbol,
                registers=registers.get(symbol),
                shared_bytes=max(0, block.size - reserved) if block is not None else 0,
                parameter_bytes=struct.unpack("<H", own[_PARAMETER_BYTES])[0]
                if _PARAMETER_BYTES in own
                else 0,
                max_threads=_product(threads) if threads else None,
                code_bytes=by_name[f".text.{symbol}"].size,
            )
        )
    constants = by_name.get(".nv.constant3")
    return kernels, constants.size if constants is not None else 0


def _product(threads: bytes) -> int:
    x, y, z = struct.unpack_from("<III", threads)
    return int(x * y * z)
