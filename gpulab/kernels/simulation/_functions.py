"""The calls and operators that a kernel can use, each translated to a closure: thread positions,
arrays, barriers, shuffles, votes, atomics.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels._arguments import UNASKED_SHARED_BYTES
from gpulab.kernels.simulation import _hazards, _memory, _types
from gpulab.kernels.simulation._geometry import WARP, Batch, Mask, lane_bits
from gpulab.kernels.simulation._machine import Expression, Frame, Machine
from gpulab.kernels.simulation.source import UNKNOWN, dtype_of
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.kernels.simulation._expressions import Translator

# -------------------------------------------------------------------------------------------------
# A call in a kernel's text in the form in which functions translate it, and the table of these
# functions by name.


@dataclass(eq=False)
class Call:
    """A call in the kernel's text."""

    node: ast.Call
    translator: Translator
    name: str
    given: list[ast.expr]  # the arguments by position; the first one of a method is its owner

    @property
    def line(self) -> int:
        """Return its line."""
        return self.node.lineno

    @property
    def variable(self) -> str:
        """Return the variable to which its value is assigned; "" if there is none."""
        assigned = self.translator.source.text.assigned
        return next((name for name, value in assigned if value is self.node), "")

    @property
    def place(self) -> str:
        """Return its line in words."""
        return self.translator.source.place(self.line)

    def fail(self, message: str) -> KernelError:
        """Return the error that names its line."""
        return self.translator.fail(message, self.node)

    def expect(self, holds: bool, what: str) -> None:
        """Raise an error unless the arguments are what the function takes, which ``holds`` says."""
        if not holds:
            raise self.fail(f"{self.name} takes {what}")

    def arguments(
        self,
        least: int,
        most: int | None = None,
        names: tuple[str, ...] = (),
    ) -> list[ast.expr]:
        """Return the argument nodes, those given by name in their place."""
        most = least if most is None else most
        found = list(self.given)
        by_name = {k.arg: k.value for k in self.node.keywords}
        for name in names[len(found) :]:
            if name in by_name:
                found.append(by_name.pop(name))
        wanted = plural(least, "argument") if least == most else f"{least} to {most} arguments"
        self.expect(not by_name and least <= len(found) <= most, wanted)
        return found

    def values(
        self,
        least: int,
        most: int | None = None,
        names: tuple[str, ...] = (),
        numeric: bool = False,
    ) -> Callable[[Frame, Mask], list[Any]]:
        """Return the closure of the arguments' values; with ``numeric``, all must be numbers."""
        values = self.translator.values(self.arguments(least, most, names))
        if not numeric:
            return values

        def run(frame: Frame, mask: Mask) -> list[Any]:
            found = values(frame, mask)
            self.expect(not any(map(not_numeric, found)), "numbers")
            return found

        return run


_PLACES: dict[str, Callable[..., Any]] = {
    "threadIdx": lambda batch, axis: batch.thread_index[axis],
    "blockIdx": lambda batch, axis: batch.block_index[axis],
    "blockDim": lambda batch, axis: np.int64(batch.block[axis]),
    "gridDim": lambda batch, axis: np.int64(batch.grid[axis]),
}
Maker = Callable[[Call], Expression]
FUNCTIONS: dict[str, Maker] = {}
# Thread positions, and the sizes of blocks, grid and warps.
INTRINSICS: dict[str, Callable[[Batch], Any]] = {
    f"cuda.{name}.{letter}": functools.partial(read, axis=axis)
    for name, read in _PLACES.items()
    for axis, letter in enumerate("xyz")
} | {
    "cuda.laneid": lambda batch: batch.linear_thread % WARP,
    "cuda.warpsize": lambda batch: np.int64(WARP),
}


def makes(*names: str) -> Callable[[Maker], Maker]:
    """Return a decorator that registers the function that translates the calls of these names."""

    def register(maker: Maker) -> Maker:
        FUNCTIONS.update(dict.fromkeys(names, maker))
        return maker

    return register


def computes(
    *names: str,
    least: int = 1,
    most: int | None = None,
    keywords: tuple[str, ...] = (),
    numeric: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers ``function(call, frame, mask, *values)``, which takes the
    values of all arguments; with ``numeric``, all must be numbers.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def make(call: Call) -> Expression:
            values = call.values(least, most, keywords, numeric)
            return lambda frame, mask: function(call, frame, mask, *values(frame, mask))

        makes(*names)(make)
        return function

    return register


# -------------------------------------------------------------------------------------------------
# Python's operators on lane values, and the words for operands that they do not take.


ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: _types.arithmetic(np.add),
    ast.Sub: _types.arithmetic(np.subtract),
    ast.Mult: _types.arithmetic(np.multiply),
    ast.Div: _types.arithmetic(np.true_divide, _types.quotient_type),
    ast.FloorDiv: _types.arithmetic(np.floor_divide),
    ast.Mod: _types.arithmetic(np.remainder),
    ast.Pow: _types.power,
    ast.BitAnd: _types.arithmetic(np.bitwise_and, _types.bits_type),
    ast.BitOr: _types.arithmetic(np.bitwise_or, _types.bits_type),
    ast.BitXor: _types.arithmetic(np.bitwise_xor, _types.bits_type),
    ast.LShift: _types.arithmetic(np.left_shift, _types.shift_type),
    ast.RShift: _types.arithmetic(np.right_shift, _types.shift_type),
}


def _comparison(
    ufunc: Callable[[Any, Any], Any], rule: Callable[..., np.dtype | None] = _types.order_type
) -> Callable[[Any, Any], Any]:
    """Return a comparison of two numbers, tuples or members of an enumeration."""
    of_numbers = _types.arithmetic(ufunc, rule)

    def apply(left: Any, right: Any) -> Any:
        if isinstance(left, tuple) and isinstance(right, tuple):
            found = ufunc(len(left), len(right))
            for a, b in [*zip(left, right, strict=False)][::-1]:
                found = np.where(_same(a, b), found, apply(a, b))[()]
            return found
        if isinstance(left, _memory.View) or isinstance(right, _memory.View):
            raise TypeError  # NumPy would call them unequal
        if isinstance(left, enum.Enum) and isinstance(right, enum.Enum):
            return ufunc(left is right, True)
        return of_numbers(left, right)

    return apply


_same = _comparison(np.equal, _types.equal_type)


def _identical(left: Any, right: Any) -> Any:
    """Return whether two values are the same object (``is``). Numbers are if they are equal, as in
    numba, and members of an ``IntEnum`` if they also have the same class.
    """
    if not_numeric(left) or not_numeric(right):
        return np.bool_(left is right)
    kinds = [getattr(value, "kind", None) for value in (left, right)]
    return _same(left, right) if kinds[0] is kinds[1] else np.bool_(False)


def _contained(value: Any, items: Any) -> Any:
    if not isinstance(items, tuple):
        raise TypeError
    return functools.reduce(np.logical_or, [_same(value, item) for item in items], np.bool_(False))


COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: _comparison(np.less),
    ast.LtE: _comparison(np.less_equal),
    ast.Gt: _comparison(np.greater),
    ast.GtE: _comparison(np.greater_equal),
    ast.Eq: _same,
    ast.NotEq: _comparison(np.not_equal, _types.equal_type),
    ast.Is: _identical,
    ast.IsNot: lambda left, right: ~_identical(left, right),
    ast.In: _contained,
    ast.NotIn: lambda value, items: ~_contained(value, items),
}


def not_numeric(value: Any) -> bool:
    """Return whether a value is no number."""
    return not isinstance(value, _types.NUMBERS)


def _widened(value: Any) -> Any:
    return (
        value
        if value.dtype.kind in "fc"
        else _types.cast(value, _types.arithmetic_type(value.dtype, value.dtype))
    )


UNARY: dict[type, Callable[[Any], Any]] = {
    # Narrow integers are negated in their own width, then widened.
    ast.USub: lambda value: (
        _widened(np.negative(value)) if value.dtype.kind != "b" else np.negative(_widened(value))
    ),
    ast.UAdd: _widened,
    ast.Not: lambda value: _same(value, np.bool_(False)),
    ast.Invert: lambda value: (
        np.invert(value) if value.dtype.kind == "b" else _widened(np.invert(value))
    ),
}


def power_of_constant(base: Any, exponent: int) -> Any:
    """Return a power with an exponent that is written as a number: numba multiplies, so that the
    type stays that of the base.
    """
    dtype = base.dtype if base.dtype.kind in "fc" else _types.INT
    square, found, left = _types.cast(base, dtype), dtype.type(1), abs(exponent)
    while left:
        if left & 1:
            found = found * square
        square, left = square * square, left >> 1
    if exponent >= 0:
        return found
    return _types.inverse(found) if dtype.kind == "i" else dtype.type(1) / found


def written_number(node: ast.expr) -> Any:
    """Return the value of an expression of numbers and operators alone, such as ``10 ** -6``, or
    None.

    Python computes it when it compiles the function, with integers of any size. numba sees only the
    result, with the type of that number.
    """
    parts = [part for part in _types.walk(node) if isinstance(part, ast.expr)]
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    are_numbers = all(type(number) in (bool, int, float, complex) for number in numbers)
    if not are_numbers or not all(
        isinstance(part, (ast.Constant, ast.BinOp, ast.UnaryOp)) for part in parts
    ):
        return None
    found = [
        step
        for step in dis.get_instructions(compile(ast.Expression(node), "<number>", "eval"))
        if step.opname not in ("RESUME", "RETURN_VALUE")  # which stand around any value
    ]
    # there are more instructions if Python does not compute it: 1 // 0, 2 ** 1000
    return found[0].argval if len(found) == 1 else None


def not_numbers(*values: Any) -> str:
    """Return the message about operands that an operator does not take."""
    kinds = [kind_of_value(value) for value in values]
    return (
        f"the operation does not take {' and '.join(kinds)}; expected numbers that it is defined "
        "for"
    )


def kind_of_value(value: Any) -> str:
    """Return the kind of a value in the words of a message."""
    if isinstance(value, _memory.ARRAYS):
        return "an array"
    if isinstance(value, tuple):
        return "a tuple"
    return "nothing" if value is None else str(getattr(value, "dtype", type(value).__name__))


PLAIN_PARTS = (
    ast.Name,
    ast.Constant,
    ast.Attribute,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
)


# -------------------------------------------------------------------------------------------------
# The calls of cuda: thread positions, arrays, barriers, shuffles, votes, atomics. Each is
# translated by a function of a ``Call``.


# The most local memory of a thread. Source: CUDA C++ Programming Guide 13.0, technical
# specifications per compute capability.
_MOST_LOCAL_BYTES = 512 * 1024
# The types that numba-cuda shuffles. Source: numba-cuda 0.30, shfl_sync_intrinsic in intrinsics.py.
_SHUFFLED = ("int32", "int64", "float32", "float64")


# -- how many threads there are, and which one this is


@makes("cuda.grid", "cuda.gridsize")
def _grid(call: Call) -> Expression:
    dimensions = call.translator.number(call.arguments(1, names=("ndim",))[0])
    call.expect(dimensions in (1, 2, 3), "1, 2 or 3, written as a number")
    read = operator.attrgetter("grid_index" if call.name == "cuda.grid" else "grid_size")
    part = 0 if dimensions == 1 else slice(dimensions)
    return lambda frame, mask: read(frame.machine.batch)[part]


# -- arrays


@makes("cuda.shared.array", "cuda.local.array")
def _new_array(call: Call) -> Expression:
    """Return the closure of a call that makes an array. The memory that it takes is noted once,
    before a launch begins.

    Its shape and type are constants that are known when the kernel is translated, or literals and
    types that are passed to a device function.
    """
    shape_node, type_node, *alignment = call.arguments(2, 3, ("shape", "dtype", "alignment"))
    translator, program = call.translator, call.translator.program
    shape_value, type_value = map(translator.expression, (shape_node, type_node))
    name = call.variable or call.name.split(".")[1] + " array"
    allotted, is_shared = set[Any](), call.name == "cuda.shared.array"
    if any(
        isinstance(part, ast.BinOp) and written_number(part) is None
        for part in _types.walk(shape_node)
    ):
        program.notes.append(
            f"{call.place}: numba-cuda takes no arithmetic in the shape "
            f"`{ast.unparse(shape_node)}`. For a GPU, give its value a name outside the kernel."
        )
    for node in alignment:
        found = translator.literal(node)
        is_power = type(found) is int and found > 0 and found.bit_count() == 1
        is_none = found is None or translator.static(node) is None
        if not is_none and not is_power:
            raise call.fail("the alignment of an array must be a power of two, written as a number")
    known = translator.literal(shape_node)

    def ask(frame: Any, mask: Any) -> tuple[tuple[int, ...], np.dtype, bool]:
        """Return the shape and the type, and whether they are new."""
        shape = shape_value(frame, mask) if known is UNKNOWN else known
        parts = shape if isinstance(shape, tuple) else (shape,)
        if known is UNKNOWN and all(id(part) in program.literals for part in parts):
            parts = tuple(part.item() for part in parts)
        if not parts or not all(type(n) is int and n >= 0 for n in parts):
            raise call.fail(
                "the shape of an array in a kernel must be a constant: numbers, or names of "
                "numbers defined outside the kernel"
            )
        dtype = dtype_of(type_value(frame, mask))
        if dtype is None:
            raise call.fail(
                f"`{ast.unparse(type_node)}` is not an element type; expected one such as float32"
            )
        is_new = (parts, dtype) not in allotted
        if is_new:
            allotted.add((parts, dtype))
            (_allot_shared if is_shared else _allot_local)(call, parts, dtype)
        return parts, dtype, is_new

    kind = None if isinstance(type_node, ast.Constant) else translator.static(type_node)
    if known is not UNKNOWN and kind is not UNKNOWN:
        ask(None, None)

    def run(frame: Frame, mask: Mask) -> _memory.View:
        shape, dtype, is_new = ask(frame, mask)
        if is_new:
            raise _types.RelaunchError
        key = id(call), shape, dtype
        if is_shared:
            return frame.machine.new_shared(key, name, call.line)
        view = frame.arrays.get(key)
        if view is None:
            view = frame.arrays[key] = _memory.new_view(
                name, "local", shape, dtype, frame.machine.batch
            )
        else:
            # in a loop, each turn gets the same memory, as numba-cuda lays it out: ``alloca_once``
            _memory.forget(view.store, mask)
        return view

    return run


def _allot_shared(call: Call, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if 0 in shape and shape != (0,):
        raise call.fail(
            "a shared array needs elements; only the shape (0,) has another meaning, the dynamic "
            "shared memory of the launch"
        )
    program, nbytes = call.translator.program, math.prod(shape) * dtype.itemsize
    if shape == (0,):
        program.dynamic_word = math.gcd(program.dynamic_word, _memory.pitch_of(dtype))
    program.static_shared_elements += math.prod(shape)
    before, after = program.static_shared_bytes, program.static_shared_bytes + nbytes
    program.static_shared_bytes = after
    if before <= UNASKED_SHARED_BYTES < after:
        program.notes.append(
            f"{call.place}: the shared arrays up to here take {after:,} bytes, and a GPU's "
            f"compiler refuses more than {UNASKED_SHARED_BYTES:,} of a fixed shape. For a GPU, "
            "make them smaller."
        )


def _allot_local(call: Call, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if 0 in shape:
        raise call.fail("a local array needs elements")
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > _MOST_LOCAL_BYTES:
        raise call.fail(
            f"each thread asks for {nbytes:,} bytes of local memory; expected at most "
            f"{_MOST_LOCAL_BYTES:,}. Make the array smaller"
        )
    call.translator.program.local_bytes += nbytes


@makes("cuda.const.array_like")
def _constant_array(call: Call) -> Expression:
    (node,) = call.arguments(1)
    found = call.translator.static(node)
    call.expect(isinstance(found, np.ndarray), "a NumPy array of numbers from outside the kernel")
    view = _memory.constant_view(call.variable or ast.unparse(node), found)
    return lambda frame, mask: view


# -- text

# The most printed lines that are kept. These are the first ones; CUDA's own buffer has a megabyte,
# and keeps the last ones.
_MOST_PRINTED = 10_000


@computes("print", least=0, most=32)
def _print(call: Call, frame: Frame, mask: Mask, *values: Any) -> None:
    columns = [_texts(value, mask) for value in values]
    lines = iter(map(" ".join, zip(*columns, strict=True)) if columns else [""] * mask.lanes)
    launch = frame.machine.launch
    launch.printed.extend(itertools.islice(lines, _MOST_PRINTED - len(launch.printed)))
    if next(lines, None) is not None:  # a line that is not kept
        note = f"{call.place}: only the first {_MOST_PRINTED:,} printed lines are shown."
        launch.notes.add((call.line, note))


def _texts(value: Any, mask: Mask) -> list[str]:
    """Return a value in each lane as CUDA prints it."""
    if isinstance(value, tuple):
        columns = [_texts(part, mask) for part in value] or [[""] * mask.lanes]
        comma = "," if len(value) == 1 else ""
        return [f"({', '.join(parts)}{comma})" for parts in zip(*columns, strict=True)]
    if not isinstance(value, _types.NUMBERS):
        return [value if isinstance(value, str) else kind_of_value(value)] * mask.lanes
    form = "{:f}" if value.dtype.kind == "f" else "{}"
    return [form.format(one) for one in mask.selected(value).tolist()]


# -- the grid as a group


GRID = object()


@computes(".sync")
def _sync(call: Call, frame: Frame, mask: Mask, group: Any) -> Any:
    if group is not GRID:
        raise call.fail("`.sync` is a method only of `cuda.cg.this_grid()`")
    frame.machine.barrier(mask, call.line, of_grid=True)
    return np.int32(0)


# -- what lanes do together


@computes("cuda.syncthreads", least=0)
@computes("cuda.syncthreads_count", "cuda.syncthreads_and", "cuda.syncthreads_or", numeric=True)
def _syncthreads(call: Call, frame: Frame, mask: Mask, *values: Any) -> Any:
    machine = frame.machine

    def meet(mask: Mask, *asked: Any) -> Any:
        machine.barrier(mask, call.line)
        return block_vote(machine, call.name.rpartition("_")[2], asked[0], mask) if asked else None

    asked = [_asked(call, machine, value) for value in values]
    return machine.together(call, mask, meet, *asked, block=True)


def _asked(call: Call, machine: Machine, value: Any) -> Any:
    """Return the truth of the value that a barrier's vote is given: whether its low 32 bits are not
    0.

    Source: numba-cuda 0.30, _syncthreads_predicate in intrinsics.py, which takes integers alone, as
    int32.
    """
    call.expect(value.dtype.kind in "iub", f"an integer; this one is of {value.dtype}")
    if value.dtype == _types.BOOL:
        note = (
            f"{call.place}: numba-cuda takes no truth value in {call.name}. For a GPU, convert "
            "it to an integer: int32(...)."
        )
        machine.launch.notes.add((call.line, note))
    return _types.truth(value if value.dtype.itemsize <= 4 else value.astype(np.int32))


@computes("cuda.threadfence", "cuda.threadfence_block", "cuda.threadfence_system", least=0)
def _fence(call: Call, frame: Frame, mask: Mask) -> None:
    frame.machine.release(_hazards.Releases.fence, mask, call.name != "cuda.threadfence_block")


@computes("cuda.nanosleep", numeric=True)
def _sleep(call: Call, frame: Frame, mask: Mask, nanoseconds: Any) -> None:
    """Do nothing: time is not simulated."""


# Functions that are called without arguments.
_WITHOUT_ARGUMENTS: dict[str, Callable[[Frame, Mask], Any]] = {
    "lanemask_lt": lambda frame, mask: (
        (np.int64(1) << frame.machine.batch.linear_thread % WARP) - 1
    ).astype(np.uint32),
    "activemask": lambda frame, mask: of_warps(mask.bits),
    "cg.this_grid": lambda frame, mask: GRID,
}


@computes(*(f"cuda.{name}" for name in _WITHOUT_ARGUMENTS), least=0)
def _without_arguments(call: Call, frame: Frame, mask: Mask) -> Any:
    return _WITHOUT_ARGUMENTS[call.name.removeprefix("cuda.")](frame, mask)


_INTEGERS = ("bool", *(f"{sign}int{8 << n}" for sign in ("", "u") for n in range(4)))


def _together(call: Call, act: Callable[..., Any], more: int, takes: tuple[str, ...]) -> Expression:
    """Return the closure of an operation that lanes of a warp do together: ``act(machine, line,
    mask, members, *values)``. It takes ``more`` values, the first of one of the types in ``takes``.
    """
    values = call.values(more and 1 + more, 1 + more, ("membermask",), numeric=True)
    if not more:
        call.translator.program.names_lanes |= bool(call.given or call.node.keywords)

    def run(frame: Frame, mask: Mask) -> Any:
        given, machine = values(frame, mask) or [np.int64(_ALL)], frame.machine
        for value in given[1:2]:
            what = f"values of {', '.join(takes)}; this one is of {value.dtype}"
            call.expect(value.dtype.name in takes, what)
        are_integers = all(value.dtype.kind in "iub" for value in (given[0], *given[2:]))
        call.expect(are_integers, "integers for the mask and the lane")
        return machine.together(call, mask, functools.partial(act, machine, call.line), *given)

    return run


def _atomic(call: Call, operation: str) -> Expression:
    compares = operation in ("cas", "compare_and_swap")
    nodes = call.arguments(4 if operation == "cas" else 3)
    array = call.translator.array(nodes[0])
    whole = operation == "compare_and_swap"  # numba's older form works on the first element
    index = None if whole else call.translator.index(nodes[1])
    values = call.translator.values(nodes[1 if whole else 2 :])
    takes = _memory.INTEGERS_ONLY.get(operation, _memory.ALL_TYPES)
    statements = [n for n in call.translator.source.text.nodes if isinstance(n, ast.Expr)]
    is_unused = any(node.value is call.node for node in statements)

    def run(frame: Frame, mask: Mask) -> Any:
        view = array(frame, mask)
        what = f"arrays of {', '.join(takes)}; {view.store.name} has {view.dtype}"
        call.expect(view.dtype.name in takes, what)
        places = (_memory.START,) if index is None else index(frame, mask)
        given = values(frame, mask)
        call.expect(not any(map(not_numeric, given)), "numbers")
        name, wanted = "cas" if compares else operation, not is_unused
        return _memory.atomic(frame.machine, view, mask, places, name, given, call.line, wanted)

    return run


# -------------------------------------------------------------------------------------------------
# What the lanes of a warp do together: shuffles, votes, ``syncwarp``; and the votes of a block.


_ALL = 0xFFFFFFFF


def by_warp(machine: Machine, value: Any) -> np.ndarray:
    """Return a value as an array of shape (B or 1, warps, 32)."""
    array = np.atleast_2d(value)
    full = np.broadcast_to(array, (len(array), machine.batch.width))
    return full.reshape(len(array), -1, WARP)


def of_warps(value: np.ndarray) -> np.ndarray:
    """Return a value of each warp, shape (B or 1, warps), as one of each lane."""
    return np.repeat(value, WARP, axis=1)


def _active(machine: Machine, mask: Mask) -> np.ndarray:
    return by_warp(machine, True if mask.array is None else mask.array)


# The lane from which each shuffle takes its value; a lane beyond the warp stands for the asking
# lane.
_SOURCES: dict[str, Callable[[Any, Any], Any]] = {
    "": lambda lanes, given: given,
    "_up": np.subtract,
    "_down": np.add,
    "_xor": np.bitwise_xor,
}


def shuffle(
    machine: Machine,
    line: int,
    mask: Mask,
    members: Any,
    value: Any,
    lane: Any,
    source_of: Callable[[Any, Any], Any],
) -> Any:
    """Return the value of another lane. If that lane takes no part, this is a finding, and the
    asking lane keeps its own value.
    """
    lanes = np.arange(WARP)
    # only its low five bits count. Source: PTX ISA, shfl.sync, "bval = b[4:0]"
    given = by_warp(machine, lane).astype(np.int64) & (WARP - 1)
    source = source_of(lanes, given)
    source = np.where((source < 0) | (source >= WARP), lanes, source)
    bits = by_warp(machine, np.asarray(members).astype(np.int64))
    source, values, active, bits = np.broadcast_arrays(
        source, by_warp(machine, value), _active(machine, mask), bits
    )
    gives = np.take_along_axis(active, source, axis=2) & (bits >> source & 1).astype(bool)
    bad = active & ~gives & (source != lanes)
    if bad.any():
        row, warp, asker = (int(i) for i in np.argwhere(bad)[0])
        asked = int(source[row, warp, asker])
        threads = tuple(machine.thread(row, warp * WARP + i) for i in (asker, asked))
        text = (
            f"lane {asker} reads the value of lane {asked}, but lane {asked} does not take part "
            "here: the result is undefined"
        )
        machine.found("shuffle", line, threads, machine.times(bad), text)
    else:
        _expect_named(machine, members, mask, line)
    taken = np.take_along_axis(values, source, axis=2)
    return np.where(gives, taken, values).reshape(-1, machine.batch.width)


def _expect_named(machine: Machine, members: Any, mask: Mask, line: int) -> None:
    """Check whether exactly the lanes that the mask names take part, except those that have
    returned.

    Source: CUDA C++ Programming Guide 12.9, "Warp Shuffle Functions" and "Warp Vote Functions":
    "each calling thread must have its own bit set in the mask and all non-exited threads named in
    mask must execute the same intrinsic with the same mask, or the result is undefined".
    """
    for arrived, named in _groups(machine, members, mask):
        _expect(
            machine,
            arrived,
            named,
            "shuffle",
            line,
            absent="not all lanes that the mask names take part here: of the two named here, only "
            "the first does. The result is undefined",
            uninvited="the first of the two threads named here takes part, but its own mask does "
            "not name it. The result is undefined",
        )


def vote(machine: Machine, line: int, mask: Mask, members: Any, value: Any, kind: str) -> Any:
    """Return the warp's vote among the lanes that take part: all, any, eq (all true or none), or
    the ballot's bits as numba's int32.
    """
    _expect_named(machine, members, mask, line)
    taking_part = _participants(machine, members, mask)
    true = by_warp(machine, _types.truth(value))
    if kind != "ballot":
        return of_warps(_voted(kind, true, taking_part))
    both = true & taking_part
    bits = lane_bits(both.reshape(both.shape[0], machine.batch.width), machine.batch)
    return of_warps(bits.view(np.int32))


def _voted(kind: str, true: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Return the vote of active lanes along the last axis: whether all or any are true, whether all
    or none are ("eq"), or how many.
    """
    if kind == "count":
        return np.asarray((true & active).sum(axis=-1))
    for_all, for_any = (true | ~active).all(axis=-1), (true & active).any(axis=-1)
    found = {"all": for_all, "and": for_all, "any": for_any, "or": for_any}
    return np.asarray(found.get(kind, for_all | ~for_any))


def _participants(machine: Machine, members: Any, mask: Mask) -> np.ndarray:
    bits = by_warp(machine, np.asarray(members).astype(np.int64))
    return np.asarray(_active(machine, mask) & (bits >> np.arange(WARP) & 1).astype(bool))


def match_any(machine: Machine, line: int, mask: Mask, members: Any, value: Any) -> Any:
    """Return for each lane the bits of the lanes that hold the same value, as numba's int32."""
    _expect_named(machine, members, mask, line)
    if value.dtype.kind == "f":
        # bits are compared: a nan is like itself, and -0.0 is not 0.0
        value = np.asarray(value).view(f"i{value.dtype.itemsize}")
    taking_part, values = np.broadcast_arrays(
        _participants(machine, members, mask), by_warp(machine, value)
    )
    same = (values[..., :, None] == values[..., None, :]) & taking_part[..., None, :]
    bits = (same.astype(np.int64) << np.arange(WARP)).sum(axis=3)
    return bits.reshape(bits.shape[0], machine.batch.width).astype(np.uint32).view(np.int32)


def match_all(machine: Machine, line: int, mask: Mask, members: Any, value: Any) -> Any:
    """Return the bits of the lanes that take part where all hold the same value, else 0, and
    whether they do.
    """
    same = match_any(machine, line, mask, members, value)
    taking_part = _participants(machine, members, mask)
    bits = of_warps(lane_bits(taking_part.reshape(len(taking_part), -1), machine.batch))
    alike = of_warps((by_warp(machine, same.view(np.uint32) == bits) | ~taking_part).all(axis=2))
    return np.where(alike, bits, np.uint32(0)).view(np.int32), alike


def synchronize(machine: Machine, line: int, mask: Mask, members: Any) -> None:
    """Let the lanes arrive at ``syncwarp``: every lane that is named must, unless it has exited.
    Several groups of a warp may arrive, each of which names its own lanes.
    """
    assert machine.barriers is not None
    for arrived, named in _groups(machine, members, mask):
        _expect(
            machine,
            arrived,
            named,
            "barrier",
            line,
            absent="not all lanes that this syncwarp names reach it: of the two named here, only "
            "the first does",
            uninvited="the first of the two threads named here calls syncwarp with a mask that "
            "does not name it",
        )
        # a named lane that has returned did so before the others go on
        named_here = np.uint32(named) & (arrived | ~machine.alive.bits)
        together = np.where(arrived != 0, named_here, np.uint32(0)).astype(np.uint32)
        if len(together) > 1:
            machine.split_shared()
        machine.launch.event += 1
        machine.barriers.add(machine.launch.event, together)


def _groups(machine: Machine, members: Any, mask: Mask) -> Iterator[tuple[np.ndarray, int]]:
    """Yield each group of lanes that name the same lanes: the group as bits of each warp, and the
    bits of the lanes that it names.
    """
    if np.size(members) == 1:
        yield mask.bits, int(np.asarray(members).item()) & _ALL
        return
    active, each = np.broadcast_arrays(
        _active(machine, mask), by_warp(machine, members).astype(np.int64) & _ALL
    )
    for named in np.unique(each[active]).tolist():
        here = active & (each == named)
        yield lane_bits(here.reshape(-1, machine.batch.width), machine.batch), named


def _expect(
    machine: Machine,
    arrived: np.ndarray,
    named: int,
    kind: str,
    line: int,
    *,
    absent: str,
    uninvited: str,
) -> None:
    """Report warps in which a named lane has neither arrived nor exited (``absent``), or in which a
    lane has arrived that is not named (``uninvited``).
    """
    members = np.uint32(named)
    odd = arrived & ~members  # a lane that arrives must itself be named
    missing = np.where(arrived != 0, members & machine.alive.bits & ~arrived, np.uint32(0))
    wrong = (odd | missing) != 0
    if not wrong.any():
        return
    row, warp = (int(i) for i in np.argwhere(wrong)[0])
    here, away, extra = (
        int(np.broadcast_to(bits, wrong.shape)[row, warp]) for bits in (arrived, missing, odd)
    )
    lanes = (
        (_lowest(here), _lowest(away))
        if away
        else (_lowest(extra), _lowest(here & named or named or here))
    )
    threads = tuple(machine.thread(row, warp * WARP + lane) for lane in lanes)
    machine.found(kind, line, threads, machine.times(wrong), absent if away else uninvited)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def block_vote(machine: Machine, kind: str, value: Any, mask: Mask) -> Any:
    """Return the vote of the block's threads at a barrier, as numba's int32: how many values are
    true, or whether all or any are.
    """
    active, true, _ = np.broadcast_arrays(
        True if mask.array is None else mask.array, value, machine.batch.linear_thread
    )
    return _voted(kind, true, active)[:, None].astype(np.int32)


# The operations that lanes of a warp do together: the function, how many values it takes beside the
# mask, and the types that the first of them may have.
_TOGETHER: dict[str, tuple[Callable[..., Any], int, tuple[str, ...]]] = {
    **{
        f"shfl{kind}_sync": (functools.partial(shuffle, source_of=source_of), 2, _SHUFFLED)
        for kind, source_of in _SOURCES.items()
    },
    **{
        f"{kind}_sync": (functools.partial(vote, kind=kind), 1, _INTEGERS)
        for kind in ("all", "any", "eq", "ballot")
    },
    "match_any_sync": (match_any, 1, _SHUFFLED),
    "match_all_sync": (match_all, 1, _SHUFFLED),
    "syncwarp": (synchronize, 0, ()),
}
for _name, (_act, _more, _takes) in _TOGETHER.items():
    FUNCTIONS[f"cuda.{_name}"] = functools.partial(_together, act=_act, more=_more, takes=_takes)
for _name in (*_memory.OPERATIONS, "cas", "compare_and_swap"):
    FUNCTIONS[f"cuda.atomic.{_name}"] = functools.partial(_atomic, operation=_name)
