"""Run programs that use ``numba.cuda`` under the microscope, unchanged and without a GPU.

``simulated()`` replaces Numba's host functions by those of ``_host`` and sends each launch to
``simulate``; ``gpulab simulate script.py`` does so for a whole program. The report at the end
comes from these simulations; there is no second way to run a kernel.

Where numba-cuda is not installed, ``from numba import cuda`` imports modules that replace it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import numbers
import runpy
import sys
import traceback
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np

from gpulab.errors import GpulabError, InputError, KernelError, shown
from gpulab.evidence import Evidence, Note
from gpulab.kernels import _host, _random
from gpulab.kernels._language import NumberType, StandIn
from gpulab.kernels.simulation._simulate import (
    OF_OTHER_FILES,
    program_of,
    resident_blocks,
    simulate,
)
from gpulab.kernels.simulation.report import Counts, Finding, Simulation
from gpulab.kernels.simulation.source import NUMBA_TYPES, plain_function, signatures_of
from gpulab.results import Result, text_table
from gpulab.units import plural

_THREADS_OF_FORALL = 128
_MOST_KEPT = 1000  # simulations that a session keeps: a program may have millions of launches
_NO_CONFIGURATION = """
Kernel launch configuration was not specified. Use the syntax:

kernel_function[blockspergrid, threadsperblock](arg0, arg1, ..., argn)
"""


# -------------------------------------------------------------------------------------------------
# The report


class SimulatedKernel(NamedTuple):
    """All launches of one kernel in a program.

    Attributes
    ----------
    kernel, file : str
        Its name, and the file or cell in which it is defined.
    line : int
        Where its definition begins.
    launches : int
    totals : Counts
        Summed over the launches.
    findings : tuple of Finding
        Each once, with its cases summed over the launches.
    remarks : tuple of str
        What the simulator accepts but a GPU's compiler would reject.
    """

    kernel: str
    file: str
    line: int
    launches: int
    totals: Counts
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<SimulatedKernel {self.place}: {plural(self.launches, 'launch', 'launches')}, "
            f"{plural(len(self.findings), 'finding')}; MODELLED>"
        )

    def and_launch(self, simulation: Simulation) -> SimulatedKernel:
        """Return this record with one more launch added."""
        findings = {(f.kind, f.line, f.other_line, f.array): f for f in self.findings}
        for finding in simulation.findings:
            key = finding.kind, finding.line, finding.other_line, finding.array
            known = findings.get(key)
            findings[key] = known.again(finding.count) if known else finding
        # this note concerns counts by line, which are not shown here
        notes = [note for note in simulation.notes if not note.startswith(OF_OTHER_FILES)]
        return self._replace(
            launches=self.launches + 1,
            totals=self.totals + simulation.totals,
            findings=tuple(findings.values()),
            remarks=tuple(dict.fromkeys([*self.remarks, *notes])),
        )

    @property
    def place(self) -> str:
        """Return the name with the file and line."""
        return f"{self.kernel} ({self.file}:{self.line})"


def _sectors(counts: Counts) -> str:
    """Return the sectors per request, and in brackets the fewest that its bytes need."""
    if not counts.global_requests:
        return ""
    return f"{counts.sectors_per_request:.1f} ({counts.ideal_sectors_per_request:.1f})"


@dataclass(frozen=True)
class ScriptReport(Result):
    """What the kernels of a program did under ``simulated()``.

    Attributes
    ----------
    kernels : tuple of SimulatedKernel
        In the order of their first launches.
    refused : tuple of str
        Why launches could not be simulated.
    evidence : Evidence or None
        None if no kernel was launched.
    """

    kernels: tuple[SimulatedKernel, ...]
    refused: tuple[str, ...]
    evidence: Evidence | None

    rows_from: ClassVar[str] = "kernels"
    columns: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "kernel": lambda kernel: kernel.place,
        "launches": lambda kernel: f"{kernel.launches:,}",
        "active lanes": lambda kernel: f"{kernel.totals.active_ratio or 0:.0%}",
        "sectors/request (fewest)": lambda kernel: _sectors(kernel.totals),
        "bank conflicts": lambda kernel: kernel.totals.conflict_words,
        "divergent branches": lambda kernel: f"{kernel.totals.divergent_branches:,}",
        "findings": lambda kernel: str(len(kernel.findings)),
    }

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of all kernels."""
        return tuple(finding for kernel in self.kernels for finding in kernel.findings)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return the findings, the refusals and the remarks, one sentence each."""
        return (
            *(
                Note(kernel.file, str(found))
                for kernel in self.kernels
                for found in kernel.findings
            ),
            *(Note("refused", reason) for reason in self.refused),
            *(Note(each.kernel, remark) for each in self.kernels for remark in each.remarks),
        )

    def __repr__(self) -> str:
        return f"<ScriptReport {self.summary}; MODELLED>"

    @property
    def summary(self) -> str:
        """Return how many kernels, launches, findings and refusals there are."""
        launches = sum(kernel.launches for kernel in self.kernels)
        return (
            f"{plural(len(self.kernels), 'kernel')}, {plural(launches, 'launch', 'launches')} on "
            f"the simulator; {plural(len(self.findings), 'finding')}, "
            f"{plural(len(self.refused), 'refusal')}"
        )

    @property
    def text(self) -> str:
        """Return the report as text."""
        rows = [[str(show(kernel)) for show in self.columns.values()] for kernel in self.kernels]
        table = [text_table(list(self.columns), rows)] if rows else []
        return "\n".join([f"gpulab: {self.summary}", *table, *map(str, self.notes)])


class Session:
    """The launches inside one ``simulated()``.

    Attributes
    ----------
    simulations : deque of Simulation
        The results of the last 1,000 launches, in order.
    refusals : list of str
        Why launches could not be simulated, in order.
    """

    def __init__(self) -> None:
        self.simulations: deque[Simulation] = deque(maxlen=_MOST_KEPT)
        self.refusals: list[str] = []
        self._kernels: dict[types.CodeType, SimulatedKernel] = {}

    def add(self, function: types.FunctionType, simulation: Simulation) -> None:
        """Add the result of a launch to the report."""
        code = function.__code__
        if code not in self._kernels:
            path = Path(code.co_filename)
            name = path.name if path.suffix == ".py" and path.exists() else "cell"
            self._kernels[code] = SimulatedKernel(
                simulation.kernel, name, code.co_firstlineno, 0, Counts(), ()
            )
        self._kernels[code] = self._kernels[code].and_launch(simulation)
        self.simulations.append(simulation)

    def report(self) -> ScriptReport:
        """Return the report on all launches until now."""
        return ScriptReport(
            tuple(self._kernels.values()),
            tuple(dict.fromkeys(self.refusals)),
            self.simulations[-1].evidence if self.simulations else None,
        )


# -------------------------------------------------------------------------------------------------
# Kernels


_sessions: list[Session] = []


class Kernel:
    """The object that ``@cuda.jit`` returns: a kernel, or a device function.

    Attributes
    ----------
    py_func : function
    signatures : list or None
        The declared types, as they were passed to ``jit``.
    targetoptions : dict
        The other arguments of ``jit``.
    """

    def __init__(self, function: Any, signatures: list[Any] | None, options: dict[str, Any]):
        self.py_func = plain_function(function)
        functools.update_wrapper(self, self.py_func)
        self.signatures, self.targetoptions = signatures, options
        self.extensions: list[Any] = list(options.get("extensions", ()))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse a call from the host without a grid and a block."""
        raise ValueError(_NO_CONFIGURATION)

    def __getitem__(self, configuration: Any) -> Configured:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise ValueError("must specify at least the griddim and blockdim")
        return self.configure(*configuration)

    def configure(
        self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
    ) -> Configured:
        """Return the kernel with its grid and block, ready to be called."""
        return Configured(
            self, _extent("griddim", griddim), _extent("blockdim", blockdim), stream, sharedmem
        )

    def forall(
        self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0
    ) -> Callable[..., None]:
        """Return the kernel with a grid that has at least one thread for each task."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        if ntasks == 0:
            return lambda *args: None
        threads = tpb or _THREADS_OF_FORALL
        return self.configure(-(-ntasks // threads), threads, stream, sharedmem)

    @property
    def overloads(self) -> Mapping[Any, Compiled]:
        """Return a mapping that has a ``Compiled`` for any types."""
        return defaultdict(functools.partial(Compiled, self))

    def specialize(self, *args: Any) -> Kernel:
        """Return the kernel itself: nothing is compiled for particular types."""
        return self

    def bind(self) -> None:
        """Do nothing: there is no machine code to load."""


@dataclass
class Compiled:
    """Replaces Numba's object for a kernel that is compiled for particular types."""

    kernel: Kernel

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Return how many blocks are resident at once, and so can synchronize across the grid."""
        return resident_blocks(
            program_of(self.kernel).static_shared_bytes + dynsmemsize,
            math.prod(_extent("blockdim", blockdim)),
        )


@dataclass
class Configured:
    """A kernel with its launch configuration: a call launches it and waits."""

    dispatcher: Kernel
    griddim: tuple[int, ...]
    blockdim: tuple[int, ...]
    stream: Any
    sharedmem: int

    def __call__(self, *args: Any) -> None:
        """Launch the kernel."""
        kernel = self.dispatcher
        if kernel.targetoptions.get("device"):
            raise RuntimeError("Cannot compile a device function as a kernel")
        cleanup: list[Callable[[], Any]] = []
        for extension in kernel.extensions:
            args = tuple(
                extension.prepare_args(None, arg, stream=self.stream, retr=cleanup)[1]
                for arg in args
            )
        try:
            simulation = simulate(
                kernel,
                self.griddim,
                self.blockdim,
                *map(_host.kernel_argument, args),
                dynamic_shared_bytes=self.sharedmem,
                debug=bool(kernel.targetoptions.get("debug")),
            )
        except GpulabError as error:
            for session in _sessions:
                session.refusals.append(str(error))
            # only the program's own frames help its reader, so those of gpulab are cut off
            raise _as_numba_raises(error).with_traceback(None) from error.__cause__
        except Exception as error:  # raised by the kernel itself, with debug=True
            done = getattr(error, "simulation", None)
            for session in _sessions:
                if isinstance(done, Simulation):
                    session.add(kernel.py_func, done)
            raise
        for session in _sessions:
            session.add(kernel.py_func, simulation)
        for finish in cleanup:
            finish()


def _as_numba_raises(error: GpulabError) -> GpulabError:
    """Return a ``KernelError`` as an error that is also Numba's ``TypingError``, which a script may
    catch; any other error unchanged.
    """
    errors = sys.modules.get("numba.cuda.core.errors")
    if errors is None or type(error) is not KernelError:
        return error
    refused: KernelError = type(
        "KernelError", (KernelError, errors.TypingError), {"__module__": KernelError.__module__}
    )(str(error), error.line)
    return refused


def _extent(name: str, value: Any) -> tuple[int, ...]:
    """Return a grid or block as three numbers; raise the errors that Numba raises."""
    parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(parts) > 3:
        raise ValueError(f"{name} must be a sequence of 1, 2 or 3 integers, got {list(parts)!r}")
    if not all(isinstance(part, numbers.Integral) for part in parts):
        raise TypeError(f"{name} must be a sequence of integers, got {list(parts)!r}")
    return (*map(int, parts), 1, 1)[:3]


def jit(func_or_sig: Any = None, **options: Any) -> Any:
    """Replace ``numba.cuda.jit``: with or without types, for kernels and device functions."""
    if options.get("boundscheck"):
        raise NotImplementedError("bounds checking is not supported for CUDA")
    if options.get("link"):
        raise NotImplementedError("Cannot link PTX in the simulator")
    if isinstance(plain_function(func_or_sig), types.FunctionType):
        return Kernel(func_or_sig, None, options)
    signatures = func_or_sig if isinstance(func_or_sig, list | None) else [func_or_sig]
    return lambda function: Kernel(function, signatures, options)


def vectorize_with(other: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for ``numba.vectorize``: with ``target="cuda"`` the function runs on the
    host, element by element and without counts; for other targets, ``other`` is called.
    """

    @functools.wraps(other)
    def vectorize(declared: Any = (), **options: Any) -> Any:
        if options.get("target") != "cuda":
            return other(declared, **options)
        if callable(declared):
            return functools.wraps(declared)(_of_types(declared, ()))
        declared = [*declared] if isinstance(declared, list | tuple) else [declared]
        loops = signatures_of(types.SimpleNamespace(signatures=declared))
        return lambda function: functools.wraps(function)(_of_types(function, loops))

    return vectorize


def _of_types(function: Callable[..., Any], loops: Sequence[Any]) -> Callable[..., Any]:
    """Return an elementwise function of arrays. As in Numba, it uses the one of ``loops``
    (signatures) that has the types of the arguments; if there is none, numbers (not arrays) are
    converted. Its result is on the device if an argument is.
    """

    def of_arrays(*given: Any, out: Any = None, stream: Any = 0) -> Any:
        found = [np.asarray(each).dtype for each in given]
        fits = [
            loop
            for converts in (False, True)
            for loop in loops
            if all(
                dtype == parameter or (converts and np.isscalar(each))
                for each, dtype, parameter in zip(given, found, loop.parameters, strict=False)
            )
        ]
        if loops and not fits:
            raise TypeError(
                "No matching version.  GPU ufunc requires array arguments to have the exact types."
                "  This behaves like regular ufunc with casting='no'."
            )
        of_each = np.vectorize(function, otypes=[fits[0].returns] if fits else None)
        # a device function that it calls runs on the host as well
        with mock.patch.object(Kernel, "__call__", lambda kernel, *args: kernel.py_func(*args)):
            result = of_each(*map(np.asarray, given, fits[0].parameters if fits else found))
        if out is None:
            return _host.to_device(result) if any(map(_host.is_cuda_array, given)) else result
        _host.host_array(out)[...] = result
        return out

    return of_arrays


# -------------------------------------------------------------------------------------------------
# The context


@contextlib.contextmanager
def simulated() -> Iterator[Session]:
    """Run programs that use ``numba.cuda`` unchanged; neither a GPU nor numba-cuda is needed.

    Inside, ``@cuda.jit`` makes kernels whose launches go to ``simulate``, and arrays, streams,
    events and devices are simulated in main memory. Kernels that ``cuda.jit`` made earlier are
    simulated as well.

    Yields
    ------
    Session
        ``.report()`` returns the kernels, launches, counts, findings and refusals so far;
        ``.simulations`` has the results of the last 1,000 launches.

    Notes
    -----
    A launch that cannot be simulated raises an error such as ``KernelError`` in the program, and
    the report states why. Times of events are those of the simulation. ``cuda.reduce`` runs on the
    host, without counts.

    Examples
    --------
    >>> out = np.zeros(40)
    >>> with simulated() as session:
    ...     from numba import cuda
    ...     @cuda.jit
    ...     def count(out):
    ...         i = cuda.grid(1)
    ...         if i < out.size:
    ...             out[i] += 1
    ...     for _ in range(3):
    ...         count[2, 32](out)
    ...     with contextlib.suppress(InputError):  # no block has so many threads
    ...         count[1, 2000](out)
    >>> print(session.report().text.partition(": block")[0])  # doctest: +NORMALIZE_WHITESPACE
    gpulab: 1 kernel, 3 launches on the simulator; 0 findings, 1 refusal
    kernel          launches  active lanes  sectors/request (fewest)  bank conflicts
                    divergent branches  findings
    count (cell:3)  3         88%           5.0 (5.0)
                    3                   0
    refused: simulate
    """
    _host.keep_texts()
    session = Session()
    _sessions.append(session)
    try:
        # an outer ``simulated()`` has replaced everything already
        with _replaced() if _sessions[0] is session else contextlib.nullcontext():
            yield session
    finally:
        _sessions.remove(session)


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    """Put the simulated device into Numba's modules; where Numba is missing, add modules that
    replace it.
    """
    with contextlib.ExitStack() as stack:
        try:
            import numba
            from numba import cuda
        except ImportError:
            _put_modules(stack)
            yield
            return
        for name, value in {**_host.HOST_API, "jit": jit}.items():
            _put(stack, cuda, name, value)
        if hasattr(numba, "vectorize"):  # missing where only numba-cuda is installed
            from numba.cuda import random

            _put(stack, numba, "vectorize", vectorize_with(numba.vectorize))
            for name in ("create_xoroshiro128p_states", "init_xoroshiro128p_states"):
                _put(stack, random, name, getattr(_random, name))  # the same numbers, faster
        from numba.cuda.cudadrv import devicearray, devices

        _put(stack, devicearray, "DeviceNDArray", _host.DeviceArray)
        for name in ("gpus", "require_context"):
            _put(stack, devices, name, _host.HOST_API[name])
        _put(stack, devices, "get_context", _host.HOST_API["current_context"])
        from numba.cuda.dispatcher import CUDADispatcher
        from numba.cuda.simulator.kernel import FakeCUDAKernel

        for kind in (CUDADispatcher, FakeCUDAKernel):  # the classes of Numba's own kernels
            for method in (Kernel.__getitem__, Kernel.configure, Kernel.forall):
                _put(stack, kind, method.__name__, _as_simulated(method))
        yield


def _put(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute, and restore it at the end."""
    stack.enter_context(mock.patch.object(owner, name, value, create=True))


def _as_simulated(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method for Numba's kernel classes that makes a ``Kernel`` of Numba's kernel, once,
    and calls ``method`` of it.
    """

    def call(dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = _kernels.get(dispatcher)
        if kernel is None:
            # declared types count, those that it has been compiled for so far do not
            is_declared = not getattr(dispatcher, "_can_compile", True)
            kernel = _kernels[dispatcher] = Kernel(
                dispatcher,
                dispatcher.signatures if is_declared else None,
                getattr(dispatcher, "targetoptions", {}),
            )
        return method(kernel, *args, **kwargs)

    return call


_kernels: weakref.WeakKeyDictionary[Any, Kernel] = weakref.WeakKeyDictionary()  # by Numba's kernel


def _put_modules(stack: contextlib.ExitStack) -> None:
    """Add modules that replace Numba's where these are missing, and remove them at the end."""
    parts = (
        *("", ".types", ".core", ".core.types", ".core.errors", ".cuda", ".cuda.types"),
        *(".cuda.libdevice", ".cuda.cudadrv", ".cuda.cudadrv.devicearray"),
    )
    modules = {f"numba{part}": types.ModuleType(f"numba{part}") for part in parts}
    modules["numba.cuda.random"] = _random
    made = functools.cache(NumberType)  # the names of one type stand for the same object
    names = {name: made(kind) for name, kind in NUMBA_TYPES.items() if name != "bool"}
    names["void"] = made("void")
    for name in ("numba", "numba.types", "numba.core.types", "numba.cuda", "numba.cuda.types"):
        vars(modules[name]).update(names)
    vars(modules["numba"]).update(
        **dict.fromkeys(("jit", "njit"), _on_the_host),
        prange=range,
        # NumPy calls the function for each element
        vectorize=vectorize_with(
            lambda given=None, **_: np.vectorize(given) if callable(given) else np.vectorize
        ),
    )
    vars(modules["numba.core.errors"]).update(
        **dict.fromkeys(_WARNINGS, Warning), **dict.fromkeys(_ERRORS, KernelError)
    )
    arrays = modules["numba.cuda.devicearray"] = modules["numba.cuda.cudadrv.devicearray"]
    vars(arrays).update(DeviceNDArray=_host.DeviceArray)
    vars(modules["numba.cuda"]).update(
        _host.HOST_API,
        jit=jit,
        # threadIdx, shared and other names that have a meaning only in kernels; a name gives the
        # same object each time
        __getattr__=functools.cache(StandIn().__getattr__),
    )
    if sys.modules.get("numba") is not None:  # Numba is installed, but not its part for CUDA
        modules = {name: module for name, module in modules.items() if ".cuda" in name}
        _put(stack, sys.modules["numba"], "cuda", modules["numba.cuda"])
    for name, module in modules.items():
        parent, _, part = name.rpartition(".")
        if parent in modules:
            vars(modules[parent]).update({part: module, "__path__": []})
        stack.callback(sys.modules.pop, name)
        sys.modules[name] = module


_WARNINGS = ("NumbaWarning", "NumbaPerformanceWarning", "NumbaDeprecationWarning")
_ERRORS = ("NumbaError", "TypingError", "LoweringError", "UnsupportedError")


def _on_the_host(function: Any = None, **options: Any) -> Any:
    """Replace ``numba.jit``: the function runs as plain Python."""
    return function if callable(function) else lambda plain: plain


# -------------------------------------------------------------------------------------------------
# The command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab simulate`` and its arguments to its parser."""
    parser.description = (
        "Run an unchanged Python program that uses numba.cuda: its launches are simulated, and at "
        "the end the kernels, their counts and the findings (faults of the kernels) are printed. "
        "The exit code is that of the program, unless --fail-on-findings changes it."
    )
    parser.add_argument(
        "--fail-on-findings",
        action="store_true",
        help="exit with 1 if the program succeeds and there is a finding",
    )
    parser.add_argument("script", type=Path, help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab simulate``; return the exit code."""
    script: Path = arguments.script
    if not script.is_file():
        raise InputError(
            f"simulate: {shown(str(script))} is not a file; expected a Python program. Pass the "
            "path of one."
        )
    with simulated() as session:
        code = _run_program(script, arguments.arguments)
    report = session.report()
    print(report.text)
    return code or int(arguments.fail_on_findings and bool(report.findings))


def _run_program(script: Path, arguments: list[str]) -> int:
    """Run a program as Python does, and return its exit code."""
    before, path = (sys.argv, sys.path[:]), str(script.absolute())
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, int | None):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except Exception as error:
        # start at the program's first frame: the frames above it only run the program
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != path:
            frame = frame.tb_next
        # the cause of gpulab's own errors lies in gpulab, and their message already states it
        chain = not isinstance(error, GpulabError)
        traceback.print_exception(type(error), error, frame, chain=chain)
        return 1
    finally:
        sys.argv, sys.path[:] = before
    return 0
