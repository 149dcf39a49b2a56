"""``simulate``: translate the kernel, check its arguments, run the blocks in batches, report."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from gpulab._validate import whole
from gpulab.errors import InputError, KernelError, kind_of, shown
from gpulab.evidence import Evidence
from gpulab.kernels._arguments import (
    MOST_SHARED_BYTES,
    Extent,
    array_of_tensor,
    check_array,
    check_count,
    checked_extents,
    same_memory,
)
from gpulab.kernels._host import DEVICE, DeviceArray
from gpulab.kernels.simulation import (
    _expressions,
    _geometry,
    _hazards,
    _memory,
    _translate,
    _turns,
    _types,
    report,
)
from gpulab.kernels.simulation._machine import Frame, Launch, Machine
from gpulab.kernels.simulation.source import (
    Callee,
    Signature,
    Source,
    inert,
    plain_function,
    read_source,
    signatures_of,
)
from gpulab.models import occupancy
from gpulab.units import plural

# -------------------------------------------------------------------------------------------------
# The translation of a kernel and of the device functions that it calls. It is kept for the next
# simulation as long as it agrees with the text.
#
# The translation of a plain function is never stale: each time, its text and every object that its
# functions name from outside are checked again.


OF_OTHER_FILES = "lines from "  # begins the note on their line numbers


class Function:
    """A translated kernel or device function."""

    def __init__(
        self,
        source: Source,
        signatures: tuple[Signature, ...] = (),
        defaults: Iterable[Any] = (),
    ) -> None:
        self.source, self.signatures, self.defaults = source, signatures, list(defaults)
        self._joins = replace(source.text.joins, computed={})
        # by the types of the arguments
        self._types = defaultdict[Any, _types.JoinTypes](lambda: _types.JoinTypes(self._joins))

    def translate(self, program: Program, around: Collection[str] = ()) -> Function:
        """Translate the function; ``around`` are the variables of the function that encloses it."""
        translator = _translate.StatementTranslator(self.source, program, self._joins, around)
        self.body = translator.block(self.source.text.tree.body, outermost=True)
        return self

    def bind(self, arguments: list[Any], by_name: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters with their values.

        Raises
        ------
        TypeError
            If arguments are missing, too many, or given twice.
        """
        names, rest = self.source.text.parameters, self.source.text.tree.args.vararg
        defaults = dict(zip(names[len(names) - len(self.defaults) :], self.defaults, strict=True))
        bound = {**defaults, **by_name, **dict(zip(names, arguments, strict=False))}
        if rest is not None:
            bound[rest.arg] = tuple(arguments[len(names) :])
        known = set(names) if rest is None else {*names, rest.arg}
        twice = by_name.keys() & set(names[: len(arguments)])
        if (len(arguments) > len(names) and rest is None) or bound.keys() != known or twice:
            count = len(arguments) + len(by_name)
            raise TypeError(
                f"{self.source.name} takes {plural(len(names), 'argument')} and gets {count}"
            )
        return bound

    def call(
        self,
        machine: Machine,
        variables: dict[str, Any],
        mask: _geometry.Mask,
        is_kernel: bool = False,
    ) -> Any:
        """Run the function in the lanes of a mask and return its value. ``variables`` are its
        parameters and the variables of the function that encloses it.
        """
        signatures = machine.launch.signatures if is_kernel else self.signatures
        declared = self._declared(signatures, variables) if signatures else None
        if declared is not None:
            wanted = zip(self.source.text.parameters, declared.parameters, strict=True)
            variables |= {name: _as_declared(variables[name], kind) for name, kind in wanted}
        frame = Frame(machine, variables, mask, is_kernel, self._types_of(variables))
        machine.launch.notes |= frame.types.notes
        left = self.body(frame, mask)
        if not frame.types.is_complete:
            self._look_at_the_rest(frame)
        if frame.result is not None and (left is not None or frame.gave_nothing):
            name = self.source.name
            raise self.source.error(
                f"some threads return a value from {name} and others return none; expected a value "
                "from each. Write a `return` with a value at each of its ends",
                self.source.text.tree.lineno,
            )
        if declared is not None and isinstance(declared.returns, np.dtype):
            return _types.cast(frame.result, declared.returns)
        return frame.result

    def _look_at_the_rest(self, frame: Frame) -> None:
        """Note the types of assignments that no thread executed, if they merely compute."""
        types, frame.types = frame.types, _types.JoinTypes(self._joins)
        types.is_complete = True
        for node, compute in self._joins.computed.items():
            if node not in types.seen:
                try:
                    value = compute(frame, frame.machine.batch.everyone)
                except (KernelError, TypeError, AttributeError, _types.RelaunchError):
                    continue  # its errors concern only lanes that execute it
                types.note(node, value)

    def _types_of(self, variables: dict[str, Any]) -> _types.JoinTypes:
        """Return the types of the joins for these arguments."""
        given = self.source.text.tree.args
        nodes = [*given.posonlyargs, *given.args] if self._joins.of else []
        found = self._types[tuple([_expressions.type_of(variables[one.arg]) for one in nodes])]
        for node in nodes:
            if node in self._joins.of:
                found.note(node, variables[node.arg])
        return found

    def _declared(self, signatures: tuple[Signature, ...], variables: dict[str, Any]) -> Signature:
        """Return the declared signature to whose types the arguments are converted with the
        smallest loss.
        """
        types = [_expressions.type_of(variables[name]) for name in self.source.text.parameters]
        fitting = [one for one in signatures if one.takes(types)]
        if not fitting:
            words = ", ".join(map(str, types))
            raise self.source.error(
                f"{self.source.name} is not declared for the types ({words}); expected those of a "
                "declared signature. Convert the arguments, or declare it for these types as well",
                self.source.text.tree.lineno,
            )
        return min(fitting, key=lambda one: one.losses(types))


def _as_declared(value: Any, wanted: Any) -> Any:
    """Return a number converted to its declared type, or an array viewed as its declared type."""
    if isinstance(wanted, np.dtype):
        return _types.cast(value, wanted)
    known = wanted is not None and isinstance(value, _memory.View) and wanted[0] is not None
    return _memory.viewed(value, wanted[0]) if known and value.dtype != wanted[0] else value


class Program:
    """A kernel with all device functions that it calls, translated once."""

    def __init__(self, function: Any) -> None:
        self.source = read_source(function)
        self.called: set[str] = set()  # names of functions of cuda, math and Python
        # arguments that are written; if the text does not show it, the run adds them
        self.written = set(self.source.text.stored_names)
        self.names_lanes = False  # whether a syncwarp names the lanes that wait
        self.static_shared_bytes = self.static_shared_elements = 0  # of a block
        self.local_bytes = 0  # of a thread
        # the bytes of the smallest parts of elements that the kernel accesses, by the array's name
        self.words: Counter[str] = Counter()
        self.dynamic_word = 0  # bytes of the smallest element of the dynamic shared arrays
        self.literals: dict[int, Any] = {}  # the numbers that the compiler knows, by ``id``
        self.notes: list[str] = []
        self.sources: list[Source] = [self.source]
        # arrays on the device that the kernel names but does not take as arguments
        self.captured: list[tuple[str, DeviceArray]] = []
        # names that were looked up: the object, its form that is used (``inert``), and its marks
        self._outside: dict[tuple[Source, str], tuple[Any, Any, Any]] = {}
        # Keyed by weak references: the translation of a kernel must not keep the kernel alive.
        self._functions: dict[weakref.ref[types.FunctionType], Function] = {}
        self.kernel = self._function(
            Callee(plain_function(function), signatures_of(function)), self.source
        )

    def _function(self, callee: Callee, source: Source) -> Function:
        defaults = [_value(source.name, one) for one in callee.function.__defaults__ or ()]
        made = Function(source, callee.signatures, defaults)
        self._functions[weakref.ref(callee.function)] = made
        return made.translate(self)

    def outside(self, source: Source, name: str) -> Any:
        """Return what a name that is not local to a function stands for, and remember that.

        Raises
        ------
        KeyError
            If it stands for nothing.
        """
        key = source, name
        if key not in self._outside:
            found = source.global_object(name)
            used = inert(found)
            self._outside[key] = found, used, _marks(used)
        return self._outside[key][1]

    def is_current(self) -> bool:
        """Return whether a translation made now would be the same."""
        if not all(source.is_current() for source in self.sources):
            return False
        for (source, name), (found, _, marks) in self._outside.items():
            try:
                now = source.global_object(name)
            except KeyError:
                return False
            if now is not found or (marks is not None and _marks(inert(now)) != marks):
                return False
        return True

    def device_function(self, callee: Callee, source: Source, line: int) -> Function:
        """Return a device function's translation. While it is being made, a function that calls
        itself gets the unfinished one.
        """
        known = self._functions.get(weakref.ref(callee.function))
        if known is not None:
            return known
        try:
            inner = read_source(callee.function, self._offset_of(callee.function))
        except KernelError as error:
            raise source.error(str(error).rstrip(".").removeprefix("simulate: "), line) from error
        self.sources.append(inner)
        return self._function(callee, inner)

    def inner_function(self, source: Source, around: Collection[str]) -> Function:
        """Return the translation of a function inside of another one."""
        return Function(source).translate(self, around)

    def _offset_of(self, function: types.FunctionType) -> int:
        """Return the offset of the line numbers of a function's file. Each file has its own, so
        that no line of another file is taken for one of the kernel's.
        """
        filename = function.__code__.co_filename
        offsets = {source.code.co_filename: source.offset for source in self.sources}
        if filename not in offsets:
            offsets[filename] = report.OTHER_FILE * len(offsets)
            self.notes.append(
                f"{OF_OTHER_FILES}{offsets[filename] + 1:,} on are those of {filename}, counted "
                "from its first line"
            )
        return offsets[filename]


def _marks(found: Any) -> Any:
    """Return the state on which a translation depends and which may change while the object stays
    the same one, such as the elements of an array.
    """
    if isinstance(found, np.ndarray):
        return found.dtype, found.shape, found.tobytes()
    if isinstance(found, tuple):
        return [_marks(part) for part in found]
    return found.function.__code__ if isinstance(found, Callee) else None


_programs: weakref.WeakKeyDictionary[Any, dict[Any, Program]] = weakref.WeakKeyDictionary()


def program_of(kernel: Any, args: tuple[Any, ...] = ()) -> Program:
    """Return a kernel's translation.

    A plain function is translated again if its text, or an object that it names, has changed. A
    function that ``jit`` returned is translated once for each list of argument types, with the
    globals of that moment, as numba does. A translation depends on these types only if the kernel
    makes arrays, whose shapes and types may depend on them. Other translations are shared as long
    as the globals are the same.

    Raises
    ------
    KernelError
        If it is not a Python function, its text cannot be found, or it uses something that cannot
        be simulated.
    """
    function = plain_function(kernel)
    if not isinstance(function, types.FunctionType):
        return Program(kernel)  # raises the error that says what is wrong
    programs = frozen = _programs.setdefault(function, {})
    if is_frozen := not isinstance(kernel, types.FunctionType):
        with contextlib.suppress(TypeError):  # of a wrapper without weak references
            frozen = _programs.setdefault(kernel, {})
    types_of_all = ((type(a), getattr(a, "dtype", None), getattr(a, "ndim", None)) for a in args)
    key = tuple(types_of_all) if is_frozen else None
    known = frozen.get(key) if is_frozen else None
    if known is None or known.source.code is not function.__code__:
        known = programs.get(None)
        if (
            known is None
            or known.source.code is not function.__code__
            or not known.is_current()
            or (
                is_frozen and (known.static_shared_bytes or known.dynamic_word or known.local_bytes)
            )
        ):
            known = Program(kernel)
        programs[None] = frozen[key] = known
    return known


# -------------------------------------------------------------------------------------------------
# ``simulate``: check what is given, run the blocks in batches, and report.


# The most lanes of a launch. With them a kernel of three lines takes some seconds, and an array
# with an element for each thread a gigabyte.
_MOST_LANES = 1 << 28
# The most bytes of the shared and local arrays of one batch, with the records of each shared
# element that serve to find hazards. Kernels with an element or two for each thread stay far below,
# and a machine of 4 GiB has room for it.
_BYTES_AT_ONCE = 1 << 28
# Freed memory goes back to the system once more than twice the largest freed block is free; the
# program must then get it again page by page. Freeing a large block that was never touched raises
# this limit, which makes batches of many lanes up to 1.5 times as fast. Source: mallopt(3) of
# glibc, M_MMAP_THRESHOLD; with other libraries it does nothing.
_BYTES_TO_KEEP = 1 << 24

# The default number of statements of a batch after which a kernel counts as endless (some 30
# seconds with few lanes), and how much a statement of a lane that runs alone counts by default: it
# takes that much less time (measured).
_MOST_STEPS, _STEPS_OF_A_STATEMENT_ALONE = 2_000_000, 1 / 200
# The lanes that run together: enough that NumPy's overhead per call does not matter, few enough for
# the caches. They are as many as a GPU has resident, so that most blocks that wait for each other
# can do so in lockstep.
_LANES_AT_ONCE = DEVICE.MULTIPROCESSOR_COUNT * DEVICE.MAX_THREADS_PER_MULTIPROCESSOR

# The call that makes the barrier of a grid, and all calls that order blocks.
_GRID_BARRIER = "cuda.cg.this_grid"
_FENCES = {
    _GRID_BARRIER,
    *("cuda.threadfence", "cuda.threadfence_block", "cuda.threadfence_system"),
}

# A test compares this with the committed comparison.
KNOWN_ERROR = (
    "329 of 355 nonzero counters of 44 kernels equal those of an NVIDIA H200; what its compiler "
    "changes in loads, loops and branches is not simulated (docs/measurements.md)"
)


def simulate(
    kernel: Any,
    grid: Any,
    block: Any,
    *args: Any,
    dynamic_shared_bytes: int = 0,
    max_steps: int | None = None,
    trace: int | None = None,
    stop: Callable[[], None] | None = None,
    progress: Callable[[float, str], None] | None = None,
    debug: bool = False,
) -> report.Simulation:
    """Run a Python kernel as warps in lockstep; count its work and memory traffic, and find its
    errors.

    Parameters
    ----------
    kernel : function
        Written as for numba.cuda; plain, or wrapped by ``cuda.jit``. It is read, not called.
    grid, block : int or tuple of up to 3 int
        Blocks of the grid and threads of a block, x first. A block has at most 1,024 threads.
    *args : ndarray, number, tuple, None, function or type
        The kernel's arguments. Arrays are NumPy's (or CPU tensors) of numbers, records or dates, in
        any layout, and change in place, as on a GPU. Tuples, also named ones, may hold these.
    dynamic_shared_bytes : int
        Bytes of dynamic shared memory for each block (``cuda.shared.array(0, dtype)``).
    max_steps : int, optional
        Statements of a batch of blocks after which a kernel counts as endless. A race, or another
        finding, that occurs again counts as 16 statements. The default is 2,000,000 statements,
        which take 20 seconds to many minutes, depending on the number of threads; by default, a
        statement of a thread that runs alone counts as a two-hundredth. A loop without an exit
        whose test reads nothing that changes is refused at its first turn.
    trace : int, optional
        The number of a block whose statements and accesses are recorded, warp by warp, in
        ``.trace``.
    stop : callable, optional
        Called regularly; an exception that it raises ends the simulation.
    progress : callable, optional
        Called as ``progress(share, words)`` after each batch of blocks, ``share`` from 0 to 1.
    debug : bool
        Whether to raise the exception that a thread raises, as a kernel that was compiled with
        ``debug=True`` does.

    Returns
    -------
    Simulation
        ``.totals`` and ``.lines`` count; ``.findings`` lists races, out-of-bounds accesses,
        divergent barriers, uninitialized shared memory and variables, and shuffles and votes with
        lanes that do not take part. A finding is reported, never raised.

    Raises
    ------
    KernelError
        If the kernel uses something that cannot be simulated, or does not end. The message names
        the line; the arrays are unchanged.
    InputError
        If the grid, the block or an argument cannot be used.

    Notes
    -----
    Lockstep is a model. Since Volta the lanes of a warp may run apart, and only ``syncwarp`` orders
    them: hazards are found by that rule. If lanes wait in a loop for a block that is resident at
    the same time (a lock), blocks take turns. If they wait for threads of their own block, threads
    take turns, as hardware since Volta permits. ``.notes`` says so. Fences and atomics that order
    blocks count for whole blocks. The lanes that the mask of a shuffle or a vote names must all
    reach that call together, except those that have returned, as the CUDA Programming Guide
    states. Two calls in two branches do not count as one call. Here, this also holds for a single
    call in a function that both branches call. Sectors are counted as if each array began at one,
    as the copy of it that ``launch`` makes does, also if it is a slice of another array.

    Where assignments of several types meet, a variable has one type, the one that numba-cuda gives
    it. The type of an assignment that no thread executes is known only if the assigned expression
    merely computes (names, constants, operators, conversions and functions of math). A uint64 and
    a signed integer meet as float64; ``.notes`` says so. A function that ``cuda.jit`` returned is
    read once for each list of argument types, with the globals of that moment; a plain function is
    read again if an object that it names has changed.

    Examples
    --------
    >>> from gpulab.kernels import cuda
    >>> def double(x):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    ...     else:
    ...         print("nothing for thread", i, "of", 4 * 32.0)
    >>> x = np.arange(126, dtype=np.float32)
    >>> s = simulate(double, 4, 32, x)
    nothing for thread 126 of 128.000000
    nothing for thread 127 of 128.000000
    >>> x[-1].item(), s.totals.divergent_branches, s.findings
    (250.0, 1, ())
    """
    program = program_of(kernel, args)
    source = program.source
    extents = checked_extents("simulate", grid, block)
    lanes = math.prod(extents[0]) * -(-math.prod(extents[1]) // _geometry.WARP) * _geometry.WARP
    if lanes > _MOST_LANES:
        raise InputError(
            f"simulate: {math.prod(extents[0]):,} blocks of {extents[1]} have {lanes:,} lanes in "
            f"whole warps; expected at most {_MOST_LANES:,}, since each is simulated. Use fewer "
            "blocks."
        )
    for name, value, least, most in (
        ("dynamic_shared_bytes", dynamic_shared_bytes, 0, MOST_SHARED_BYTES),
        ("max_steps", 1 if max_steps is None else max_steps, 1, 2**62),
        ("trace", 0 if trace is None else trace, 0, math.prod(extents[0]) - 1),
    ):
        whole("simulate", name, value, least, most)
    try:
        bound = program.kernel.bind(list(args), {})
    except TypeError:
        check_count("simulate", source.name, source.text.parameters, args)
        raise
    waits: list[_turns.WaitError] = []
    while True:
        arguments = _Arguments(source, bound, program)
        changing = [view for view in arguments.views if view.store.writable]
        before = [view.store.root.data.copy() for view in changing]
        launch = Launch(
            program,
            _MOST_STEPS if max_steps is None else max_steps,
            dynamic_shared_bytes,
            resident_blocks(
                program.static_shared_bytes + dynamic_shared_bytes, math.prod(extents[1])
            ),
            None
            if program.called.isdisjoint(_FENCES)
            else _hazards.Releases(math.prod(extents[0])),
            arguments.captured,
            signatures_of(kernel),
            traced_block=trace,
            stop=stop,
            alone=_STEPS_OF_A_STATEMENT_ALONE if max_steps is None else 1,
        )
        try:
            shared_bytes = _run(program, launch, extents, arguments, progress, waits)
        except BaseException as error:  # an interrupt as well: restore the arrays
            for view, data in zip(changing, before, strict=True):
                view.store.root.data[...] = data
            if not isinstance(error, _types.RelaunchError):
                raise
            if isinstance(error, _turns.WaitError):
                waits += [error, error] if error.why and not waits else [error]
        else:
            if waits:
                line, text = waits[-1].line, _BLOCKS_WAIT if len(waits) == 1 else _THREADS_WAIT
                launch.notes.add((line, f"{launch.place(line)}: {text}"))
            if launch.printed:
                print("\n".join(launch.printed))
            simulation = _report(program, launch, extents, shared_bytes)
            if launch.thrown and debug:
                thread, made = launch.thrown[0]
                kind, words = made()
                where = f"tid={list(thread.thread)} ctaid={list(thread.block)}"
                raised = kind(": ".join([where, *map(str, words)]))
                raised.simulation = simulation  # for a report of all launches
                raise raised
            return simulation


_BLOCKS_WAIT = (
    "threads wait here for others. Blocks ran in turns; on a GPU, blocks that wait and blocks that "
    "they wait for must be resident at the same time."
)
_THREADS_WAIT = (
    "threads wait here for others of their own block. Each thread ran by itself, as GPUs since "
    "Volta allow (independent thread scheduling; on older GPUs a warp hangs here), and everything "
    "is counted for each thread separately."
)


class _Arguments:
    """The arguments as a kernel sees them: views of arrays, typed numbers, and tuples of them."""

    def __init__(self, source: Source, bound: dict[str, Any], program: Program) -> None:
        self._kernel = source.name
        self._arrays: list[tuple[np.ndarray, _memory.View]] = []
        self._written = program.written
        self.values = {name: self._value(name, argument) for name, argument in bound.items()}
        self.captured = [self._value(name, array, True) for name, array in program.captured]
        self.views = [view for _, view in self._arrays]

    def _value(self, name: str, argument: Any, writable: bool = False) -> Any:
        writable |= name in self._written
        if isinstance(argument, tuple):
            parts = [
                self._value(f"{name}[{number}]", part, writable)
                for number, part in enumerate(argument)
            ]
            return _memory.tuple_like(argument, parts)
        # only a slice on the device begins within an allocation: a launch copies those of the host
        on_device = isinstance(argument, DeviceArray)
        array = argument.array if on_device else _in_numpy(name, argument)
        if isinstance(array, np.void):
            # the record's own memory, which NumPy would copy
            array = np.asarray(types.SimpleNamespace(__array_interface__=array.__array_interface__))
        if not isinstance(array, np.ndarray):
            return _value(name, array)
        check_array("simulate", self._kernel, name, array, writable, any_layout=True)
        view = _memory.global_view(
            name, array, writable, first_byte=argument.first_byte if on_device else 0
        )
        for other, known in self._arrays:
            # arrays that are only read may overlap in any way
            if (writable or known.store.writable) and same_memory(
                "simulate", name, array, known.store.name, other
            ):
                known.store.writable |= writable
                view = _memory.View(known.store, view.offset, view.shape, view.strides)
        self._arrays.append((array, view))
        return view


def _in_numpy(name: str, argument: Any) -> Any:
    """Return a tensor as an array, and anything else as it is."""
    if type(argument).__module__.startswith("torch") and hasattr(argument, "detach"):
        if argument.device.type != "cpu":
            raise InputError(
                f"simulate: {name} is a tensor on {argument.device}; expected one in main memory, "
                f"since the microscope runs there. Pass {name}.cpu()."
            )
        return array_of_tensor("simulate", name, argument)
    if hasattr(argument, "__cuda_array_interface__"):  # CuPy's, Numba's
        raise InputError(
            f"simulate: {name} is {kind_of(argument)} on a GPU; expected one in main memory, since "
            f"the microscope runs there. Pass gl.to_host({name})."
        )
    return argument


def _value(name: str, argument: Any) -> Any:
    """Return an argument that is not an array in the form in which a kernel sees it."""
    found = inert(argument)
    if found is None or isinstance(found, (Callee, np.dtype, enum.Enum)):
        return found
    try:
        return _types.constant(found)
    except TypeError as error:
        kind = kind_of(argument) if isinstance(found, types.SimpleNamespace) else error
        raise InputError(
            f"simulate: {name}={shown(argument)} is {kind}; expected a NumPy array or a number. "
            "Convert it before the call."
        ) from error


def _run(
    program: Program,
    launch: Launch,
    extents: tuple[Extent, Extent],
    arguments: _Arguments,
    progress: Callable[[float, str], None] | None,
    waits: list[_turns.WaitError],
) -> int:
    """Run the blocks; return the bytes of shared memory of one block. ``waits`` are those found so
    far: with none, blocks run in lockstep; with one, blocks take turns; with two, threads take
    turns.
    """
    grid, block = extents
    blocks = math.prod(grid)
    width = -(-math.prod(block) // _geometry.WARP) * _geometry.WARP
    resident = launch.resident
    together = max(
        1,
        min(
            1 if waits else blocks,
            resident,
            _LANES_AT_ONCE // width,
            _BYTES_AT_ONCE // max(_bytes_of_arrays(program, launch, width), 1),
        ),
    )
    if _GRID_BARRIER in program.called:
        if waits or blocks > resident:
            raise KernelError(
                f"{program.source.name}: the grid of {blocks:,} blocks meets at a barrier; "
                f"expected at most the {resident:,} that are resident at once on an H100 or H200, "
                "and no other loop in which blocks wait for each other. Use fewer blocks, or "
                "remove that loop."
            )
        together = blocks
    for view in arguments.views if blocks * math.prod(block) > 1 else ():  # one thread has no races
        if view.store.writable and view.store.tracker is None:
            launch.trackers.append(view.store.track(program, width))
    shared_bytes = done = 0
    np.empty(_BYTES_TO_KEEP, dtype=np.uint8)

    def ended(machine: Machine) -> None:
        nonlocal shared_bytes, done
        launch.counters.settle_statements()
        launch.counters.settle_accesses()
        launch.steps = launch.next_look = 0
        shared_bytes, done = max(shared_bytes, machine.shared_bytes), done + machine.batch.blocks
        if progress is not None:
            progress(done / blocks, f"{done:,} of {blocks:,} blocks")

    def work(machine: Machine, mask: _geometry.Mask) -> None:
        try:
            with np.errstate(all="ignore"):
                program.kernel.call(machine, dict(arguments.values), mask, is_kernel=True)
        except RecursionError as error:
            raise KernelError(
                f"{program.source.name}: calls are nested too deeply; expected a few levels. "
                "Write the kernel with fewer nested calls."
            ) from error

    batches = (
        _geometry.Batch(first, min(together, blocks - first), grid, block)
        for first in range(0, blocks, together)
    )
    machines = (Machine(launch, batch) for batch in batches)
    if waits:
        launch.watchers = 1
        launch.turns = _turns.Turns(machines, resident, waits)
        launch.turns.run(launch, work, ended)
        return shared_bytes
    for machine in machines:
        machine.serve()
        work(machine, machine.batch.everyone)
        ended(machine)
    return shared_bytes


@functools.cache
def resident_blocks(block_bytes: int, threads: int) -> int:
    """Return how many blocks of so many threads are resident at once on an H100 or H200, whatever
    registers they take.
    """
    # a kernel whose arrays are too large is refused when it makes them
    each = occupancy(threads, 0, min(block_bytes, MOST_SHARED_BYTES), "9.0")
    return DEVICE.MULTIPROCESSOR_COUNT * each.blocks_per_sm


def _bytes_of_arrays(program: Program, launch: Launch, width: int) -> int:
    """Return the bytes of the shared and local arrays of one block, with their records of
    hazards.
    """
    dynamic = launch.dynamic_bytes if program.dynamic_word else 0
    elements = program.static_shared_elements + dynamic // max(1, program.dynamic_word)
    return (
        program.static_shared_bytes
        + dynamic
        + elements * _hazards.BYTES_OF_A_WORD
        + width * program.local_bytes
    )


def _report(
    program: Program, launch: Launch, extents: tuple[Extent, Extent], shared_bytes: int
) -> report.Simulation:
    lines, accesses = launch.counters.lines, []
    for (number, array, space, kind), access in sorted(launch.counters.accesses.items()):
        accesses.append(report.ArrayAccess(number, array, space, kind, **access))
        moved = "sectors" if space == "global" else "wavefronts"
        of_space = {
            f"{space}_requests": access["requests"],
            f"{space}_{moved}": access[moved],
            f"ideal_{space}_{moved}": access[f"ideal_{moved}"],
            f"{space}_bytes_requested": access["bytes_requested"],
        }
        of_kind = {"atomic_requests": access["requests"]} if kind == "atomic" else {}
        if space == "global" and kind != "atomic":
            of_kind = {f"{space}_{kind}_{what}": access[what] for what in ("requests", "sectors")}
        lines[number].update(of_space | of_kind)
    # In the order of the text, however the blocks were batched.
    findings = tuple(
        sorted(launch.findings.values(), key=lambda f: (f.line, f.kind, f.other_line or 0, f.array))
    )
    for finding in findings:
        if finding.kind == "race":
            lines[finding.line]["races"] += 1
    notes = [note for _, note in sorted(launch.notes)]
    text = {
        number: line
        for source in reversed(program.sources)
        for number, line in source.lines.items()
    }
    return report.Simulation(
        kernel=program.source.name,
        grid=extents[0],
        block=extents[1],
        lines={n: report.Counts(**c) for n, c in sorted(lines.items())},
        accesses=tuple(accesses),
        findings=findings,
        shared_bytes=shared_bytes,
        source=dict(sorted(text.items())),
        evidence=Evidence.modelled(
            "warps of 32 lanes in lockstep (since Volta lanes may run apart, and only a barrier "
            "orders them); one request for each warp and access; no caches",
            "the counting rules of gpulab.kernels.simulate",
            KNOWN_ERROR,
        ),
        notes=(*program.notes, *notes),
        trace=tuple(launch.trace),
        trace_cut=launch.trace_cut,
    )
