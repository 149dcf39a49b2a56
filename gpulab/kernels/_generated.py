"""Show the kernels that ``torch.compile`` generates: the source that Inductor writes.

PyTorch writes C++ for a CPU, which needs a C++ compiler on the machine, Triton for most GPUs and
Metal for Apple's. Where the source cannot be compiled, it is still shown, with the reason. The hook
that reads the source is in PyTorch's internals (``torch._inductor``): a version whose
``GraphLowering`` lacks it is also reported as a reason, not as an error.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.results import Result, Table
from gpulab.units import format_seconds, plural

# Inductor writes a Python module, which passes the source of each kernel to ``async_compile``.
_KERNELS = re.compile(r"^(\w+) = async_compile\.(\w+)\((.*?)'''(.*?)'''", re.MULTILINE | re.DOTALL)
_LANGUAGES = {
    "cpp": "C++",
    "cpp_pybinding": "C++",
    "triton": "Triton",
    "cuda": "CUDA C++",
    "metal": "Metal",
}
# Inductor's own bookkeeping hides the loop: a flag for divisions by zero, headers, imports, and the
# launch hints of a Triton kernel, a decorator of many long lines.
_BOOKKEEPING = re.compile(
    r"integer_div_error|^#include|^\s*$|C10_LIKELY|^import |^from |set_driver_to_gpu"
)
_LAUNCH_HINTS = re.compile(r"^@triton_heuristics\.\w+\(.*?^\)\n", re.MULTILINE | re.DOTALL)
# One kernel needs no pool of compiler processes. Precompiling PyTorch's headers costs more than it
# saves. With ``vec_isa_ok`` Inductor does not try to compile vector instructions first, so that it
# writes the source even where there is no compiler.
_QUICK = {"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True}
_NO_COMPILER = (
    "there is no C++ compiler on this machine, which torch.compile needs for a CPU; install "
    "g++ or clang to run what it wrote"
)


@dataclass(frozen=True, repr=False)
class GeneratedCode(Result):
    """The kernels that ``torch.compile`` generated for one function.

    Attributes
    ----------
    label : str
    operators : tuple of str
        The operators that ``torch.compile`` found in the function.
    kernels : tuple of str
        The names of the generated kernels; a name lists the operators that the kernel combines.
        Library calls are not included.
    language : str
        "C++", "Triton", ... or "" if no kernel was written.
    source : str
        The kernels, without Inductor's bookkeeping.
    seconds : float
        Duration of the first call, which compiles and runs.
    reason : str
        Why the function cannot run compiled; "" if it can.
    evidence : Evidence
    """

    label: str
    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    language: str
    source: str
    seconds: float
    reason: str
    evidence: Evidence

    @property
    def compiled(self) -> bool:
        """Whether the function can run compiled on this machine."""
        return not self.reason

    def __repr__(self) -> str:
        made = (
            f"{plural(len(self.kernels), 'kernel')} in {self.language}"
            if self.kernels
            else "no kernel"
        )
        named = f" ({', '.join(self.operators)})" if self.operators else ""
        found = f"{self.label}: {plural(len(self.operators), 'operator')}{named} became {made}"
        end = (
            f" in {format_seconds(self.seconds)}"
            if self.compiled
            else f"\nIt cannot run here: {self.reason}."
        )
        return f"{found}{end}\n\n{self.source}".rstrip()

    def table(self) -> Table:
        """Return rows for the operators, the duration and the kernels."""
        rows = [
            ("operators found", ", ".join(self.operators)),
            ("first call", format_seconds(self.seconds)),
        ]
        if not self.compiled:
            rows.append(("not compiled", self.reason))
        rows += [
            (f"kernel {number} ({self.language})", name)
            for number, name in enumerate(self.kernels, 1)
        ]
        return (self.label, ""), rows


def generated(fn: Callable[..., Any], *args: Any) -> GeneratedCode:
    """Return the kernels that ``torch.compile`` generates for a function.

    Parameters
    ----------
    fn : callable
        A function of tensors, or one that ``torch.compile`` returned, which is then compiled for
        these arguments.
    *args
        The function's arguments, on which it is run. Their shapes, dtypes and device decide which
        code is generated.

    Returns
    -------
    GeneratedCode
        ``compiled`` is False, with the reason, where this machine lacks a compiler or the function
        cannot be compiled.

    Raises
    ------
    InputError
        If ``fn`` cannot be called, or fails on these arguments even without compilation.

    Notes
    -----
    Earlier compilations of this process are discarded first, as by ``torch.compiler.reset``: other
    compiled functions compile again when they are next called. The first compilation takes ten
    seconds on a CPU; PyTorch keeps the result on disk.
    """
    if not callable(fn):
        raise InputError(
            f"generated: {shown(fn)} cannot be called; expected a function. Pass generated(f, x), "
            "not generated(f(x))."
        )
    import torch
    import torch._inductor.config as settings
    from torch._inductor.cpu_vec_isa import VecISA
    from torch._inductor.graph import GraphLowering

    plain = getattr(fn, "_torchdynamo_orig_callable", fn)
    label = getattr(plain, "__name__", type(plain).__name__)
    try:
        plain(*args)
    except Exception as error:
        raise InputError(
            f"generated: {label} raised {message_of(error)}; expected it to run on these "
            "arguments. Call it with them first."
        ) from error
    sources: list[str] = []
    operators: list[str] = []
    keep = mock.patch.object(GraphLowering, "save_output_code", staticmethod(sources.append))
    tried = mock.patch.object(VecISA, "check_build", _without_compiler(VecISA.check_build))
    known = settings.get_config_copy()
    quick = settings.patch({name: value for name, value in _QUICK.items() if name in known})
    start, reason = time.perf_counter(), ""
    try:
        for graph in torch._dynamo.explain(plain)(*args).graphs:  # discards earlier compilations
            operators += [
                getattr(node.target, "__name__", str(node.target))  # a method's target is its name
                for node in graph.graph.nodes
                if node.op in ("call_function", "call_method", "call_module")
            ]
        start = time.perf_counter()
        with keep, quick, tried:
            (fn if plain is not fn else torch.compile(fn))(*args)
    except Exception as error:  # any error of the compiler is shown as the reason
        text = message_of(error)
        reason = (
            _NO_COMPILER
            if "InvalidCxxCompiler" in text or "No working C++ compiler" in text
            else f"torch.compile reported: {text}"
        )
    kernels = [match for source in sources for match in _KERNELS.finditer(source)]
    return GeneratedCode(
        label=label,
        operators=tuple(operators),
        kernels=tuple(match.group(1) for match in kernels),
        language=next((_LANGUAGES.get(match.group(2), match.group(2)) for match in kernels), ""),
        source="\n\n".join(_readable(match.group(4)) for match in kernels),
        seconds=time.perf_counter() - start,
        reason=reason,
        evidence=Evidence.measured("torch.compile on this machine"),
    )


def _without_compiler(check: Callable[..., bool]) -> Callable[..., bool]:
    """Return Inductor's check of vector instructions, changed to report them as missing where there
    is no C++ compiler. It compiles some of them whatever the setting is, and would raise.
    """
    from torch._inductor.exc import InvalidCxxCompiler

    def checked(*args: Any) -> bool:
        with contextlib.suppress(InvalidCxxCompiler):
            return check(*args)
        return False

    return checked


def _readable(source: str) -> str:
    """Return a kernel without bookkeeping lines. Where this leaves one pair of braces directly
    inside another, each brace alone on its line, the inner pair is removed.
    """
    rest = _LAUNCH_HINTS.sub("", source)
    lines = [line.rstrip() for line in rest.splitlines() if not _BOOKKEEPING.search(line)]
    open_at: list[int] = []
    pairs = {}
    for number, line in enumerate(lines):
        if line.strip() == "{":
            open_at.append(number)
        elif line.strip() == "}" and open_at:
            pairs[open_at.pop()] = number
    dropped = {
        at
        for first, last in pairs.items()
        if lines[first - 1].strip() == "{"
        for at in (first, last)
    }
    return "\n".join(line for number, line in enumerate(lines) if number not in dropped)
