"""Compile CUDA C++ without a GPU and without a driver: the resources of each kernel, the code as
PTX, machine code and SASS, and errors shown at their line.

NVIDIA's ``cuda.pathfinder`` finds the compiler NVRTC, the headers and the tools in pip's wheels,
conda's folders or an installed toolkit.
"""

from __future__ import annotations

import base64
import functools
import math
import pickle
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpulab._validate import instance, is_whole, word
from gpulab.errors import (
    CompileError,
    InputError,
    MissingLibraryError,
    message_of,
    pip_command,
    shown,
)
from gpulab.evidence import Evidence
from gpulab.kernels._compile._nvrtc import FILE
from gpulab.results import Result, Table
from gpulab.units import format_bytes

try:
    from cuda import pathfinder
except ImportError:  # there is none for macOS
    pathfinder = None

# -------------------------------------------------------------------------------------------------
# The result of a compilation: the resources of the kernels, and the code in each of its forms.


class KernelFacts(NamedTuple):
    """The resources that one thread, or one block, of a kernel needs.

    Attributes
    ----------
    name, symbol : str
        The kernel's name in the source, and its name in the machine code.
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
        Bytes that the compiler's own stores and loads move because the registers did not suffice.
        Each such instruction in the code counts once, even if a loop repeats it. Functions that the
        kernel calls are included.
    constant_bytes : int
        ``__constant__`` variables of the whole source, which all its kernels share.
    parameter_bytes : int
        The kernel's own arguments, which are also in constant memory.
    barriers : int
        How many of the 16 barriers of a block the kernel uses.
    max_threads : int or None
        The largest number of threads of a block that the source declares (``__launch_bounds__``);
        None if it declares none.
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
    """One compiled source: the resources of its kernels, and the code as PTX, machine code and
    SASS.

    Attributes
    ----------
    arch : str
        The architecture that it was compiled for, such as "sm_90".
    language : str
        "CUDA C++" or "Python".
    source : str
        The text that was compiled.
    options, names : tuple of str
        Options of the compiler; template instances that were requested.
    kernels : mapping
        Name -> KernelFacts.
    ptx : str
        The portable assembly code from which the machine code was made.
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
        """The machine code as text, through NVIDIA's ``nvdisasm``; a comment that states the reason
        if it is not installed.
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
            and merges work, so a line may have few or none. Instructions of a header are listed
            under the source line that nvdisasm names last before them.

        Raises
        ------
        InputError
            If there is no such kernel, or there are several and no name is given.
        MissingLibraryError
            If nvdisasm is not installed.
        """
        if name is None and len(self.kernels) == 1:
            (name,) = self.kernels
        name = word("sass_lines", "name", name, self.kernels)
        cubin = self.cubin
        # line information is requested only here: it would fill the PTX with marks
        if self.language == "CUDA C++":
            options = (*self.options, "-lineinfo")
            cubin = compile_cuda(self.source, self.arch, options, names=self.names).cubin
        code = disassembled(cubin, "-g").partition(f".text.{self.kernels[name].symbol}:")[2]
        found: dict[int, list[str]] = {}
        line: int | None = None
        file: str | None = None
        for row in code.partition("//---------------------")[0].splitlines():
            if (mark := _PLACE.search(row)) is not None:
                file = file or mark[1]  # a kernel's first instructions are in its own file
                line = int(mark[2]) if mark[1] == file and "inlined" not in row else line
            elif line is not None and (step := _INSTRUCTION.search(row)) is not None:
                found.setdefault(line, []).append(step[1])
        return {number: tuple(rows) for number, rows in sorted(found.items())}

    def __repr__(self) -> str:
        parts = [
            f"{name}: {k.registers} registers, {format_bytes(k.shared_bytes)} shared"
            for name, k in self.kernels.items()
        ]
        return f"<CompiledModule for {self.arch}; {'; '.join(parts or self.warnings)}>"

    def table(self) -> Table:
        """Return a row for each kernel, with the resources that limit how many blocks fit on an SM,
        and a row for each warning.
        """
        headers = (
            "kernel",
            "registers per thread",
            "spill stores + loads",
            "shared memory per block",
            "code",
        )
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


def evidence_of(arch: str, compiler: str, known_error: str) -> Evidence:
    """Return the evidence for the figures of compiled kernels."""
    return Evidence.modelled(
        assumptions=f"the program ships machine code for {arch} made by this compiler; another "
        "version may allocate differently",
        source=f"{compiler}, run here for {arch}: its log and the machine code's own header",
        known_error=known_error,
    )


# -------------------------------------------------------------------------------------------------
# Machine code as text, through NVIDIA's disassembler ``nvdisasm``, which is a program of its own.


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
        If nvdisasm cannot read the code.
    """
    tool = pathfinder.find_nvidia_binary_utility("nvdisasm") if pathfinder else None
    if tool is None:
        raise MissingLibraryError(
            "sass: NVIDIA's nvdisasm is not installed here, so the machine code cannot be shown "
            f"as text; it needs no GPU. Run {pip_command('install nvidia-cuda-nvdisasm')}, restart "
            "the kernel and run the cell again."
        )
    with tempfile.TemporaryDirectory(prefix="gpulab-sass-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [tool, "-c", *options, str(file)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    if done.returncode:
        raise CompileError(
            f"sass: nvdisasm cannot read this code ({message_of(done.stderr)}); expected code of "
            "its own release or older. Run "
            f"{pip_command('install --upgrade nvidia-cuda-nvdisasm')}.",
            log=done.stderr,
        )
    return done.stdout


# -------------------------------------------------------------------------------------------------
# Read the facts about kernels in a CUBIN, an ELF file: its ``.nv.info`` sections hold what the
# driver needs for a launch.
#
# Only the few attributes that the course shows are read. ``cuobjdump -elf`` prints their numbers
# with these names: EIATTR_MAX_THREADS 0x05, EIATTR_REQNTID 0x10, EIATTR_CBANK_PARAM_SIZE 0x19.


_MAX_THREADS, _REQUIRED_THREADS, _PARAMETER_BYTES = 0x05, 0x10, 0x19
# The form of an attribute that consists of a size and that many bytes. Attributes of other forms
# hold nothing, one byte or two bytes.
_SIZED = 4


def _sections(cubin: bytes) -> dict[str, bytes]:
    """Return the sections of a 64-bit little-endian ELF file by name."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    data = [cubin[head[4] : head[4] + head[5]] for head in heads]
    names = [data[names_at][head[0] :].partition(b"\0")[0].decode() for head in heads]
    return dict(zip(names, data, strict=True))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute = data[at], data[at + 1]
        size = struct.unpack_from("<H", data, at + 2)[0] if form == _SIZED else 0
        yield attribute, data[at + 4 : at + 4 + size] if form == _SIZED else data[at + 2 : at + 4]
        at += 4 + size


# -------------------------------------------------------------------------------------------------
# The names of kernels: from a mangled name in the machine code to the name in the source, and its
# line.
#
# C++ decorates a name with its types (``_Z4tileILi16EEvPf``). The platform's C++ library removes
# them, where there is one. Elsewhere only the plain name is read, which is enough to distinguish
# kernels unless they are instances of one template. Source: Itanium C++ ABI, section 5.1 "External
# Names".


_COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)


def demangled(symbol: str) -> str:
    """Return a symbol as a C++ name with its types; the plain name where PyTorch was built without
    a C++ library that demangles; the symbol itself if it is not a mangled C++ name.

    Examples
    --------
    >>> demangled("saxpy")
    'saxpy'
    """
    if not symbol.startswith("_Z"):
        return symbol
    import torch

    name: str = torch._C._demangle(symbol)
    return plain_name(symbol) if name == symbol else name


def plain_name(symbol: str) -> str:
    """Return the plain name in a mangled symbol, with template arguments as ``<...>``.

    Examples
    --------
    >>> plain_name("_ZN2ns3twoEPd"), plain_name("_Z4tileILi16EEvPf")
    ('ns::two', 'tile<...>')
    """
    at = 3 if symbol.startswith("_ZN") else 2
    parts = []
    while (number := re.compile(r"L?(\d+)").match(symbol, at)) is not None:
        length, at = int(number.group(1)), number.end()
        parts.append(symbol[at : at + length])
        at += length
    return ("::".join(parts) + ("<...>" if symbol[at : at + 1] == "I" else "")) or symbol


def without_types(name: str) -> str:
    """Return a demangled function name without its return type and parameters.

    Examples
    --------
    >>> without_types("void tile<16>(float*)"), without_types("ns::two(double*)")
    ('tile<16>', 'ns::two')
    """
    if name.endswith(")"):
        depth = 0
        for at in reversed(range(len(name))):
            depth += {")": 1, "(": -1}.get(name[at], 0)
            if depth == 0:
                name = name[:at]
                break
    return name.removeprefix("void ")


def shown_names(symbols: Iterable[str], asked: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return a mapping from each symbol to the kernel's name in the result.

    This is the name in ``asked``, otherwise the name without types if it is unique, otherwise the
    name with types. Where that is not unique either, it is the symbol itself.
    """
    given = {symbol: name for name, symbol in asked}
    full = {symbol: given.get(symbol) or demangled(symbol) for symbol in symbols}
    short = {symbol: given.get(symbol) or without_types(name) for symbol, name in full.items()}
    chosen = {s: short[s] if list(short.values()).count(short[s]) == 1 else full[s] for s in full}
    return {s: name if list(chosen.values()).count(name) == 1 else s for s, name in chosen.items()}


def kernel_line(source: str, name: str) -> int | None:
    """Return the line of a kernel's name in its definition, or else where it first occurs (as the
    argument of a macro); None if the source lacks the name.
    """
    # comments and literals become blanks, so that all else keeps its position
    code = _COMMENT_OR_TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source)
    plain = re.escape(
        re.split(r"[<(]", name.replace("(anonymous namespace)::", ""))[0].split("::")[-1]
    )
    definition = rf"__global__[^;{{}}]*?\b({plain})\s*\([^;{{}}]*\{{"
    found = re.search(definition, code) or re.search(rf"\b({plain})\b", code)
    return code.count("\n", 0, found.start(1)) + 1 if found else None


# -------------------------------------------------------------------------------------------------
# Read what the compilers print: the assembler's figures for each kernel, and errors with their
# place in the source.
#
# The figures come from ``ptxas -v``, the only source of spills. Errors come from the C++ front end,
# with file, line and a caret; or from the assembler, about a line of PTX (inline assembly), a whole
# kernel or the file.


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"ptxas info\s*: Used (\d+) registers(.*)")
# One error, warning or note of the front end. The source line under it is indented by two, and so
# is the caret, with tabs kept.
_DIAGNOSTIC = re.compile(
    r"^(?:(?P<file>.+?)\((?P<line>\d+)\)|At end of source): "
    r"(?:catastrophic )?(?P<kind>error|warning|note)(?: #[\w-]+)?: (?P<text>.*)$"
    r"(?:\n..(?P<shown>.*)\n..(?P<caret>\s*)\^\s*$)?",
    re.MULTILINE,
)
_ASSEMBLER_ERROR = re.compile(r"ptxas (?:.*; )?(?:error|fatal)\s*: (.*)")
_ASSEMBLER_WARNING = re.compile(r"ptxas warning\s*: (.*)")


def usage_by_kernel(log: str) -> dict[str, dict[str, int]]:
    """Return the figures of each kernel in a log of ``ptxas -v``, by its name in the machine code
    and by the fields of ``KernelFacts``.

    In the log, a kernel's own figures are followed by those of the functions that it calls without
    inlining.
    """
    parts = _ENTRY.split(log)
    usage = {}
    for symbol, text in zip(parts[1::2], parts[2::2], strict=True):
        used = _USED.search(text)
        if used is None:
            continue
        frames = [tuple(map(int, frame)) for frame in _FRAME.findall(text)]
        barriers = re.search(r"used (\d+) barriers", used[2])
        shared = re.search(r"(\d+) bytes smem", used[2])
        stack = re.search(r"(\d+) bytes cumulative stack size", used[2])
        usage[symbol] = {
            "registers": int(used[1]),
            "barriers": int(barriers[1]) if barriers else 0,
            "shared_bytes": int(shared[1]) if shared else 0,
            "stack_bytes": int(stack[1]) if stack else frames[0][0],
            "spill_store_bytes": sum(frame[1] for frame in frames),
            "spill_load_bytes": sum(frame[2] for frame in frames),
        }
    return usage


def warnings(log: str) -> tuple[str, ...]:
    """Return the compilers' warnings, one line each, with the file if it is a header."""
    front = [
        f"in {each['file']}, line {each['line']}: {each['text']}".removeprefix(f"in {FILE}, ")
        if each["line"]
        else each["text"]
        for each in _DIAGNOSTIC.finditer(log)
        if each["kind"] == "warning"
    ]
    return (*front, *(text.strip() for text in _ASSEMBLER_WARNING.findall(log)))


# -------------------------------------------------------------------------------------------------
# Turn the compilers' messages into an error that shows the line of the source, a caret, and the
# message.


_WIDEST = 120  # characters of a source line that a message shows
_ADVICE = "Fix it and run it again."
_HEADERS = (
    "CUDA's own headers come with "
    f"{pip_command('install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl')} (for CUDA 12 "
    "nvidia-cuda-nvcc-cu12 and nvidia-cuda-cccl-cu12); restart the kernel after that. For the C++ "
    "standard library's, such as <cstdint>, include <cuda/std/cstdint> instead"
)
_NAME_MAP = "__nv_name_map"


def fault(source: str, arch: str, names: Sequence[str], output: Output) -> Exception:
    """Return the error to raise for a failed run of the compiler."""
    log = output.log
    if output.code == _INVALID_OPTION:
        refusal = " ".join(log.replace("nvrtc: error:", "").split())
        return InputError(
            f"compile_cuda: {refusal}; expected options of NVRTC {compiler()[0]}, such as "
            "'-use_fast_math'. Fix or remove it."
        )
    errors = [each for each in _DIAGNOSTIC.finditer(log) if each["kind"] == "error"]
    if errors and errors[0]["file"] == _NAME_MAP:
        return InputError(
            f"compile_cuda: names={list(names)} asks for a kernel that is not in the source "
            f"({errors[0]['text']}); expected a template's name "
            'with its arguments, such as "tile<16>". Correct the name.'
        )
    if errors:
        return _of_front_end(source, errors, log)
    assembler = _ASSEMBLER_ERROR.search(log)
    if assembler is None:
        return CompileError(
            f"compile_cuda: the compiler failed for {arch} ({message_of(log, 300)}); expected code "
            "or an error. Try another arch, or "
            f"{pip_command('install --force-reinstall nvidia-cuda-nvrtc')}.",
            log=log,
        )
    # C++ names and decimal numbers in place of the assembler's own
    refused = re.sub(r"'(_Z\w+)'", lambda match: f"'{demangled(match[1])}'", assembler[1].strip())
    refused = re.sub(r"\b0x[0-9a-f]+\b", lambda match: f"{int(match[0], 16):,}", refused)
    return CompileError(
        f"compile_cuda: the assembler refused the code: {refused.rstrip('.')}. {_ADVICE}", log=log
    )


def _of_front_end(source: str, errors: Sequence[re.Match[str]], log: str) -> CompileError:
    """Return the error to raise: the first one in the source itself, otherwise the first."""
    first = next((error for error in errors if error["file"] == FILE), errors[0])
    text, file, row = first["text"], first["file"], first["shown"] or ""
    line = column = None
    at = None if first["caret"] is None else len(first["caret"])
    if file == FILE:
        line = int(first["line"])
        row = "".join(source.split("\n")[line - 1 : line])  # "" if #line changed the number
        if at is not None:  # convert the compiler's count of bytes to characters
            at = len(row.encode()[:at].decode(errors="ignore"))
            column = at + 1 if row else None
    elif file is None:
        text += " before the end of the source"
    else:
        text = f"in {file}, line {first['line']}: {text}"
    if "open source file" in text:
        text += f". {_HEADERS}"
    place = "" if line is None else f"line {line}{'' if column is None else f', column {column}'}: "
    more = f" ({len(errors)} errors; this is the first)" if len(errors) > 1 else ""
    message = f"compile_cuda: {place}{text.rstrip('.')}.{more}"
    shown = f"\n{_with_caret(row, line, at)}\n" if row.strip() else " "
    return CompileError(f"{message}{shown}{_ADVICE}", line, column, log)


def _with_caret(row: str, line: int | None, at: int | None) -> str:
    """Return a line of source, cut to the part near the caret, with its number and the caret."""
    start = 0 if at is None or at < _WIDEST - 20 else at - _WIDEST // 2
    caret = "" if at is None else f"\n      | {' ' * (at - start)}^"
    cut = row[start : start + _WIDEST].replace("\t", " ")
    return f"{line or '':>5} | {cut}{caret}"


# -------------------------------------------------------------------------------------------------
# The compiler. Each source is compiled in a process of its own (``_nvrtc.py``) and not in the
# learner's: a source can crash the compiler (NVRTC crashes on a thread at 10,000 open brackets), an
# interrupt must end the work and not wait for it, and the learner's process may have loaded another
# version of the same library.


# nvrtcResult
_SUCCESS, _INVALID_OPTION = 0, 5
_PROCESS = Path(__file__).with_name("_nvrtc.py")


class Output(NamedTuple):
    """The output of one run of the compiler; ``symbols`` pairs each requested name with the name in
    the machine code.
    """

    code: int
    log: str
    ptx: str
    cubin: bytes
    symbols: tuple[tuple[str, str], ...]


def _ask(*request: Any) -> Any:
    """Return the answer of a new process to a request; an interrupt ends the process.

    Raises
    ------
    MissingLibraryError
        If NVRTC is not installed here, or cannot be loaded.
    CompileError
        If the process failed.
    """
    library = "CUDA C++ is compiled by NVIDIA's nvrtc library, which"
    if sys.platform == "darwin":
        raise MissingLibraryError(
            f"{library} has no macOS build; expected Linux or Windows, with or without a GPU. Run "
            "this cell there."
        )
    # In a session of its own, so that Ctrl-C at a terminal interrupts only the learner's process.
    done = subprocess.run(
        [sys.executable, "-P", str(_PROCESS)],
        input=pickle.dumps(([place for place in sys.path if isinstance(place, str)], request)),
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        code, printed = done.returncode, done.stderr.decode(errors="replace").strip()
        words = printed.rpartition("\n")[2] or "it printed nothing"
        ending = f"signal {-code}" if code < 0 else message_of(words)
        raise CompileError(
            f"compile_cuda: the compiler's process ended ({ending}); expected code or an error. "
            "Nest the source less deeply or make it smaller, and run it again."
        )
    answer = pickle.loads(done.stdout)
    if isinstance(answer, str):
        raise MissingLibraryError(
            f"{library} cannot be loaded here ({message_of(answer)}); it needs no GPU. Run "
            f"{pip_command('install nvidia-cuda-nvrtc')}, then run the cell again."
        )
    return answer


@functools.cache
def compiler() -> tuple[str, tuple[int, ...]]:
    """Return NVRTC's version, such as "13.0", and the compute capabilities that it compiles for,
    times ten: 75, 80, ... 120.

    Raises
    ------
    MissingLibraryError
        If NVRTC is not installed.
    """
    found: tuple[str, tuple[int, ...]] = _ask()
    return found


def include_folders() -> list[str]:
    """Return the installed folders that have CUDA's own headers (``cuda_fp16.h``, ``mma.h``;
    ``cuda/std`` and ``nv`` of CCCL).
    """
    names = ("cudart", "nvcc", "cccl") if pathfinder else ()
    found = [place for name in names if (place := pathfinder.locate_nvidia_header_directory(name))]
    # one toolkit's headers only, since those of two versions do not fit together
    fitting = [str(place.abs_path) for place in found if place.found_via == found[0].found_via]
    return list(dict.fromkeys(fitting))


# -------------------------------------------------------------------------------------------------
# Compile CUDA C++ without a GPU: the figures of each kernel, the code, and errors shown at their
# line.


# Options that compile_cuda sets itself, or that leave no machine code to read.
_OURS = re.compile(r"--?(gpu-architecture|arch|dlto|ptx|cubin|optix-ir|gen-opt-lto)\b")


def compile_cuda(
    source: str, arch: str = "sm_90", options: Sequence[str] = (), *, names: Sequence[str] = ()
) -> CompiledModule:
    """Compile CUDA C++ for any GPU, even one that this machine does not have, and return the
    resources that each kernel needs.

    Parameters
    ----------
    source : str
        CUDA C++ with at least one ``__global__`` function; CUDA's own headers can be included where
        they are installed.
    arch : str
        The GPU's architecture, such as "sm_90", or its compute capability, such as "9.0"; from 7.5
        to the newest that the compiler supports.
    options : sequence of str
        For NVRTC, such as ``"-use_fast_math"``, ``"-maxrregcount=32"``, ``"-DTILE=16"``.
    names : sequence of str
        Template instances to compile, such as ``"tile<16>"``: a template alone produces no code.

    Returns
    -------
    CompiledModule
        ``.kernels[name]`` has registers and bytes; ``.ptx``, ``.cubin``, ``.sass`` the code.
        Results are cached by arguments.

    Raises
    ------
    CompileError
        If the compiler refuses the source; the message shows the line.
    InputError
        If an argument is invalid.
    MissingLibraryError
        If NVRTC is not installed.

    Notes
    -----
    Source: NVRTC and ``ptxas -v``; registers, shared memory and spills come from the assembler's
    log, arguments and bounds from the machine code's ``.nv.info``. docs.nvidia.com/cuda/nvrtc,
    docs.nvidia.com/cuda/cuda-binary-utilities.

    Examples
    --------
    >>> import gpulab as gl
    >>> made = gl.kernels.compile_cuda(
    ...     'extern "C" __global__ void k(float* x) { __shared__ float a[1024]; '
    ...     "a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[5]; }"
    ... )
    >>> made.kernels["k"].shared_bytes, made.kernels["k"].spill_bytes
    (4096, 0)
    """
    text, given, asked = (
        checked_source(source),
        checked_texts("options", options),
        checked_texts("names", names),
    )
    for option in given:
        if _OURS.match(option):
            raise InputError(
                f"compile_cuda: options has {option!r}, which compile_cuda decides itself; "
                "expected options such as '-use_fast_math'. "
                'Pass arch="sm_80" for another GPU.'
            )
    return _compile(text, checked_arch(arch), given, asked)


def checked_arch(arch: object, who: str = "compile_cuda") -> str:
    """Return an architecture in NVRTC's notation, such as "sm_90"; errors begin with ``who``.

    Raises
    ------
    InputError
        If NVRTC does not compile for this architecture.
    """
    version, known = compiler()
    words = str(arch).strip().lower()
    found = (
        re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)([af]?)", words)
        if isinstance(arch, (str, float)) or is_whole(arch)
        else None
    )
    if found is None or int(found[1] + found[2]) not in known:
        raise InputError(
            f"{who}: arch={shown(arch)} is not one that NVRTC {version} compiles "
            f"for; expected one of {', '.join(f'sm_{number}' for number in known)}. Pass the "
            "newest one that is not newer than your GPU."
        )
    return f"sm_{found[1]}{found[2]}{found[3]}"


def checked_source(source: str, who: str = "compile_cuda") -> str:
    """Return the source, with LF at the end of each line and without a byte-order mark, if a
    compiler can read it; errors begin with ``who``.

    Raises
    ------
    InputError
        If the source is not a string.
    CompileError
        If it is empty, or contains a NUL or half a character (a lone surrogate).
    """
    instance(who, "source", source, str, "text. Pass the CUDA C++ as a string.")
    if not source.strip():
        raise CompileError(
            f"{who}: the source is empty; expected CUDA C++ with a __global__ function. Write one."
        )
    if re.search("[\0\ud800-\udfff]", source):
        raise CompileError(
            f"{who}: the source holds a NUL character or half a character (a lone "
            "surrogate); expected text. Delete it."
        )
    # so that line numbers are those of the compiler
    return source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def checked_texts(which: str, values: object, who: str = "compile_cuda") -> tuple[str, ...]:
    """Return the texts of a list: ``options`` of the compiler, or ``names`` of template instances;
    errors begin with ``who``.

    Raises
    ------
    InputError
        If ``values`` is not a list, or an entry is not text that the compiler can read.
    """
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or not all(isinstance(each, str) and each.strip() and each.isprintable() for each in values)
    ):
        example = '["-use_fast_math"]' if which == "options" else '["tile<16>"]'
        raise InputError(
            f"{who}: {which}={shown(values)}; expected a list of texts that the compiler "
            f"can read. Pass {which}={example}."
        )
    return tuple(values)


@functools.lru_cache
def _compile(
    source: str, arch: str, options: tuple[str, ...], names: tuple[str, ...]
) -> CompiledModule:
    folders = [f"-I{folder}" for folder in include_folders()]
    flags = (f"--gpu-architecture={arch}", "--ptxas-options=-v", *options, *folders)
    output = Output(*_ask(source, flags, names))
    if output.code != _SUCCESS:
        raise fault(source, arch, names, output)
    kernels = facts_of(output.cubin, output.log, source, output.symbols)
    if not kernels:
        raise CompileError(
            "compile_cuda: the source produced no kernel; expected a __global__ function, and "
            "templates only by name. Write one, or "
            'name the instances of a template: names=["kernel<16>"].',
            log=output.log,
        )
    # the compiler writes its full version into the PTX: "13.0.88"
    release = re.search(r"release [\d.]+, V([\d.]+)", output.ptx)
    made_by = f"NVRTC {release[1] if release else compiler()[0]}"
    return CompiledModule(
        arch=arch,
        language="CUDA C++",
        source=source,
        options=options,
        names=names,
        kernels=kernels,
        ptx=output.ptx,
        cubin_base64=base64.b64encode(output.cubin).decode(),
        log=output.log,
        warnings=warnings(output.log),
        compiler=made_by,
        evidence=evidence_of(arch, made_by, "none: a GPU launches by these figures"),
    )


def facts_of(
    cubin: bytes, log: str, source: str, asked: Sequence[tuple[str, str]] = ()
) -> Mapping[str, KernelFacts]:
    """Return the facts of each kernel, from the machine code and the assembler's log together, in
    the order of the source.

    Raises
    ------
    CompileError
        If there are kernels in the machine code and none in the log.
    """
    parts, used = _sections(cubin), usage_by_kernel(log)
    if not used and any(name.startswith(".text.") for name in parts):
        raise CompileError(
            "compile_cuda: the assembler's log has no entry for the kernels; expected their "
            "registers and spills. Leave out options that silence it.",
            log=log,
        )
    found = []
    for symbol, name in shown_names(used, asked).items():
        own = dict(_attributes(parts.get(f".nv.info.{symbol}", b"")))
        threads = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
        # overloads: a text search cannot distinguish them
        line = None if name.endswith(")") else kernel_line(source, name)
        found.append(
            KernelFacts(
                name=name,
                symbol=symbol,
                line=line,
                constant_bytes=len(parts.get(".nv.constant3", b"")),
                parameter_bytes=struct.unpack("<H", own.get(_PARAMETER_BYTES, b"\0\0"))[0],
                max_threads=math.prod(struct.unpack_from("<III", threads)) if threads else None,
                code_bytes=len(parts[f".text.{symbol}"]),
                **used[symbol],
            )
        )
    order = [name for name, _ in asked]
    found.sort(
        key=lambda k: (
            k.line is None,
            k.line or 0,
            order.index(k.name) if k.name in order else len(order),
            k.name,
        )
    )
    return {facts.name: facts for facts in found}
