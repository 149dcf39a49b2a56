"""What a compiler made of a source: its kernels' figures, and the code itself in each of its
forms.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab.errors import CompileError, InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes


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
        from gpulab.kernels._compile._sass import disassembled

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
        from gpulab.kernels._compile._sass import by_line

        return by_line(self, self._kernel(name))

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
        return f"<CompiledModule for {self.arch}; {'; '.join(parts)}>"

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


def module(cubin: bytes, facts: Mapping[str, KernelFacts], **others: object) -> CompiledModule:
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
