"""Compile CUDA C++ without a GPU: the figures of each kernel, the code, and errors shown at their
line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from gpulab._given import is_whole
from gpulab.errors import CompileError, InputError, kind_of, shown
from gpulab.kernels._compile import _elf, _faults, _libraries, _log, _names, _nvrtc
from gpulab.kernels._compile.results import CompiledModule, KernelFacts, module

# A source of the course has a few thousand characters. NVRTC takes more, but minutes for it.
LONGEST_SOURCE = 1_000_000
# Options that decide what this function itself decides, or that leave no machine code to read.
_OURS = re.compile(r"--?(gpu-architecture|arch|dlto|ptx|cubin|gen-opt-lto)\b")


def compile_cuda(
    source: str, arch: str = "sm_90", options: Sequence[str] = (), *, names: Sequence[str] = ()
) -> CompiledModule:
    """Compile CUDA C++ for any GPU, also one that is not in this machine, and return the resources
    that each kernel needs.

    Parameters
    ----------
    source : str
        CUDA C++ with at least one ``__global__`` function; CUDA's own headers can be included where
        they are installed.
    arch : str
        The GPU's architecture, such as "sm_90", or its compute capability, such as "9.0"; from 7.5
        to what the compiler knows.
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
    Source: NVRTC and ``ptxas -v``; registers, shared memory and arguments are those in the machine
    code's ``.nv.info``, spills those of the assembler's log. docs.nvidia.com/cuda/nvrtc,
    docs.nvidia.com/cuda/cuda-binary-utilities.

    Examples
    --------
    >>> import gpulab as gl
    >>> made = gl.kernels.compile_cuda(
    ...     'extern "C" __global__ void k(float* x) { __shared__ float a[1024]; '
    ...     'a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[5]; }'
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
    return _compiled(text, checked_arch(arch), given, asked)


def checked_arch(arch: object) -> str:
    """Return an architecture as NVRTC writes it.

    Raises
    ------
    InputError
        If NVRTC does not compile for it.
    """
    known = _nvrtc.architectures()
    words = str(arch).strip().lower()
    found = (
        re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)([af]?)", words)
        if isinstance(arch, (str, float)) or is_whole(arch)
        else None
    )
    if found is None or int(found[1] + found[2]) not in known:
        raise InputError(
            f"compile_cuda: arch={shown(arch)} is not one that NVRTC {_nvrtc.version()} compiles "
            "for; expected one of "
            f"{', '.join(f'sm_{number}' for number in known)}. Take the newest that is not newer "
            "than your GPU."
        )
    return f"sm_{found[1]}{found[2]}{found[3]}"


def checked_source(source: object) -> str:
    """Return the source if a compiler can be given it.

    Raises
    ------
    InputError
        If it is not a string, or is too long.
    CompileError
        If it is empty or holds a NUL or half a character.
    """
    if not isinstance(source, str):
        raise InputError(
            f"compile_cuda: source is {kind_of(source)}; expected text. Pass the CUDA C++ as a "
            "string."
        )
    if len(source) > LONGEST_SOURCE:
        raise InputError(
            f"compile_cuda: the source has {len(source):,} characters; expected at most "
            f"{LONGEST_SOURCE:,}, which already take minutes. "
            "Compile its parts one at a time."
        )
    if not source.strip():
        raise CompileError(
            "compile_cuda: the source is empty; expected CUDA C++ with a __global__ function. "
            "Write one."
        )
    bad = re.search("[\0\ud800-\udfff]", source)
    if bad:
        line, column = _names.place(source, bad.start())
        what = "a NUL character" if bad.group() == "\0" else "half a character (a lone surrogate)"
        raise CompileError(
            f"compile_cuda: line {line}, column {column}: the source holds {what}; expected text. "
            "Delete it.",
            line,
            column,
        )
    # so that lines count as the compiler counts them
    return source.replace("\r\n", "\n").replace("\r", "\n")


def checked_texts(which: str, values: object) -> tuple[str, ...]:
    """Return the texts of a list: the compiler's ``options``, or ``names`` of instances.

    Raises
    ------
    InputError
        If it is not a list, or one of its entries is not text that the compiler can read.
    """
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or not all(isinstance(value, str) for value in values)
    ):
        example = '["-use_fast_math"]' if which == "options" else '["tile<16>"]'
        raise InputError(
            f"compile_cuda: {which}={shown(values)}; expected a list of texts. Pass "
            f"{which}={example}."
        )
    for value in values:
        if not value.strip() or "\0" in value or not value.isprintable():
            raise InputError(
                f"compile_cuda: {which} has {shown(value)}; expected words that the compiler can "
                "read. Fix or remove it."
            )
    return tuple(values)


@functools.lru_cache
def _compiled(
    source: str, arch: str, options: tuple[str, ...], names: tuple[str, ...]
) -> CompiledModule:
    folders = [f"-I{folder}" for folder in _libraries.include_folders()]
    flags = (f"--gpu-architecture={arch}", "--ptxas-options=-v", *options, *folders)
    output = _nvrtc.compile_program(source, flags, names)
    if output.code != _nvrtc.SUCCESS:
        raise _faults.fault(source, arch, flags, names, output)
    return module(
        output.cubin,
        facts_of(output.cubin, arch, output.log, source, output.symbols),
        arch=arch,
        language="CUDA C++",
        source=source,
        options=options,
        names=names,
        ptx=output.ptx,
        log=output.log,
        warnings=_log.warnings(output.log),
        compiler=f"NVRTC {_release(output.ptx)}",
    )


def _release(ptx: str) -> str:
    """The full version, which the compiler writes into the PTX: "13.0.88"."""
    found = re.search(r"release [\d.]+, V([\d.]+)", ptx)
    return found.group(1) if found else _nvrtc.version()


def facts_of(
    cubin: bytes, arch: str, log: str, source: str, asked: Sequence[tuple[str, str]] = ()
) -> Mapping[str, KernelFacts]:
    """Put the file's and the log's facts of each kernel together, in the order of the source.

    Raises
    ------
    CompileError
        If the two do not describe the same kernels.
    """
    kernels, constant_bytes = _elf.read(cubin, arch)
    used = _log.usage(log)
    shown_as = _names.shown_names([kernel.symbol for kernel in kernels], asked)
    found = []
    for kernel in kernels:
        if kernel.symbol not in used:
            raise CompileError(
                f"compile_cuda: the assembler's log has no entry for {shown_as[kernel.symbol]}; "
                "expected its registers and spills. Leave "
                "out options that silence it.",
                log=log,
            )
        usage, name = used[kernel.symbol], shown_as[kernel.symbol]
        # overloads: a text search cannot tell them apart
        where = _names.kernel_place(source, name) if not name.endswith(")") else None
        found.append(
            KernelFacts(
                name=name,
                symbol=kernel.symbol,
                line=where[0] if where else None,
                registers=usage.registers if kernel.registers is None else kernel.registers,
                shared_bytes=kernel.shared_bytes,
                stack_bytes=usage.stack_bytes,
                spill_store_bytes=usage.spill_store_bytes,
                spill_load_bytes=usage.spill_load_bytes,
                constant_bytes=constant_bytes,
                parameter_bytes=kernel.parameter_bytes,
                barriers=usage.barriers,
                max_threads=kernel.max_threads,
                code_bytes=kernel.code_bytes,
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
