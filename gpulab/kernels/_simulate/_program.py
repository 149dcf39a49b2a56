"""A kernel's translation with the device functions that it calls, kept for the next simulation as
long as it is what the text says.

Unlike a compiler's, it is never stale: the text, and every object that the functions name from
outside, is looked at again each time.
"""

from __future__ import annotations

import types
import weakref
from functools import cached_property
from typing import Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels._simulate._frame import Frame
from gpulab.kernels._simulate._geometry import Mask
from gpulab.kernels._simulate._joins import Meeting, ways_of
from gpulab.kernels._simulate._machine import Machine
from gpulab.kernels._simulate._names import inert
from gpulab.kernels._simulate._source import Source, plain_function, read_source, written_names
from gpulab.kernels._simulate._translate import StatementTranslator

_OTHER_FILE = 1_000_000  # the numbers of the lines of a second file begin there


class Function:
    """A translated kernel or device function."""

    def __init__(self, source: Source, program: Program) -> None:
        self.source = source
        ways = ways_of(source.tree)
        program.meetings |= ways.meetings
        joined = {node for _, _, given in ways.meetings for node in given}
        self.joined_parameters = [node for node in source.tree.args.args if node in joined]
        self.body = StatementTranslator(source, program, joined, ways.unsure).block(
            source.tree.body
        )

    def call(
        self, machine: Machine, arguments: list[Any], mask: Mask, is_kernel: bool = False
    ) -> Any:
        """Run the function in the lanes of a mask and return its value."""
        frame = Frame(
            machine, dict(zip(self.source.parameters, arguments, strict=True)), mask, is_kernel
        )
        for node in self.joined_parameters:
            machine.launch.integers.note(node, frame.variables[node.arg])
        left = self.body(frame, mask)
        if frame.result is not None and (left is not None or frame.gave_nothing):
            name = self.source.name
            raise self.source.error(
                f"some threads return a value from {name} and others return none; expected a value "
                "from each. Write a `return` with a "
                "value at each of its ends",
                self.source.tree.lineno,
            )
        return frame.result


class Program:
    """A kernel with all device functions that it calls, translated once."""

    def __init__(self, function: Any) -> None:
        self.source = read_source(function)
        self.uses_warp_barriers = self.uses_fences = False
        self.names_lanes = False  # whether a syncwarp names the lanes that wait
        self.static_shared_bytes = self.static_shared_elements = 0  # of a block
        self.local_bytes = 0  # of a thread
        self.dynamic_sizes: set[int] = set()  # bytes of an element of the dynamic shared arrays
        self.notes: list[str] = []
        self.meetings: set[Meeting] = set()
        self.sources: list[Source] = [self.source]
        # the device function that a call calls, by the id of its node
        self.calls: dict[int, Source] = {}
        self.atomics: set[int] = set()  # the calls of atomics
        # names that were looked up, and what they stood for
        self._outside: list[tuple[Source, str, Any, Any]] = []
        # None while it is being translated. Known weakly: the translation of a kernel must not keep
        # the kernel itself.
        self._functions: dict[weakref.ref[types.FunctionType], Function | None] = {
            weakref.ref(plain_function(function)): None
        }
        self.kernel = Function(self.source, self)

    @cached_property
    def written(self) -> frozenset[str]:
        """Return the kernel's parameters (and other names) that it may write to."""
        return frozenset(written_names(self.source, self.calls, self.atomics))

    def outside(self, source: Source, name: str) -> Any:
        """Return what a name that is not local to a function stands for, and remember that.

        Raises
        ------
        KeyError
            If it stands for nothing.
        """
        found = source.global_object(name)
        used = inert(found)
        self._outside.append((source, name, found, _marks(used)))
        return used

    def is_current(self) -> bool:
        """Return whether a translation made now would be the same."""
        if not all(source.is_current() for source in self.sources):
            return False
        for source, name, found, marks in self._outside:
            try:
                now = source.global_object(name)
            except KeyError:
                return False
            if now is not found or _marks(inert(now)) != marks:
                return False
        return True

    def device_function(
        self, python_function: types.FunctionType, source: Source, line: int
    ) -> Function:
        """Return a device function's translation.

        Raises
        ------
        KernelError
            If it calls itself, directly or through others.
        """
        key = weakref.ref(python_function)
        if key in self._functions:
            found = self._functions[key]
            if found is None:
                raise source.error(
                    f"{python_function.__name__} calls itself; recursion is not supported. Write "
                    "it as a loop",
                    line,
                )
            return found
        self._functions[key] = None
        try:
            inner = read_source(python_function)
        except KernelError as error:
            raise source.error(str(error).rstrip(".").removeprefix("simulate: "), line) from error
        self._keep_apart(inner)
        self.sources.append(inner)
        made = Function(inner, self)
        self._functions[key] = made
        return made

    def _keep_apart(self, inner: Source) -> None:
        """Number the lines of another file so that none is taken for one of the kernel's."""
        if inner.filename == self.source.filename:
            return
        files = [s.filename for s in self.sources]
        offset = next(
            (s.offset for s in self.sources if s.filename == inner.filename),
            _OTHER_FILE * len(set(files)),
        )
        inner.renumber(offset)
        note = (
            f"lines from {offset + 1:,} on are those of {inner.filename}, counted from its "
            "first line"
        )
        if note not in self.notes:
            self.notes.append(note)


def _marks(found: Any) -> Any:
    """Return what may change in an object that stays the same one, as far as a translation depends
    on it.
    """
    # one that is not contiguous was copied, so that what it holds counts as well
    if isinstance(found, np.ndarray):
        return found.__array_interface__ if found.flags.c_contiguous else object()
    if isinstance(found, tuple):
        return [_marks(part) for part in found]
    function = plain_function(found)
    return function.__code__ if isinstance(function, types.FunctionType) else None


_programs: weakref.WeakKeyDictionary[types.FunctionType, Program] = weakref.WeakKeyDictionary()


def program_of(kernel: Any) -> Program:
    """Return a kernel's translation.

    Raises
    ------
    KernelError
        If it is not a Python function, its text cannot be found, or it uses something that cannot
        be simulated.
    """
    function = plain_function(kernel)
    if not isinstance(function, types.FunctionType):
        return Program(kernel)  # which says what is wrong
    known = _programs.get(function)
    if known is None or known.source.code is not function.__code__ or not known.is_current():
        known = _programs[function] = Program(function)
    return known
