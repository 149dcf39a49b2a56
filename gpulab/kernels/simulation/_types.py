"""numba's types of arithmetic, and of variables where control flow joins, for NumPy arrays."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any

import numpy as np

from gpulab.errors import kind_of

# -------------------------------------------------------------------------------------------------
# The result types of numba's arithmetic, for NumPy arrays.
#
# Arithmetic widens all integers to 64 bits. An integer of 32 or 64 bits with a float gives float64;
# a narrower one (except uint16) with a float32 gives float32; ``/`` gives a float. Tested against
# numba's own inference in tests/kernels.


# a NumPy array of shape (B or 1, T or 1), a NumPy scalar, a tuple of values, or a view of an array
Value = Any
NUMBERS = np.ndarray, np.generic  # the classes of numbers, one or many, for ``isinstance``
_NARROW = tuple(np.dtype(name) for name in ("int8", "int16", "uint8", "bool"))
INT, UINT, FLOAT, SINGLE, BOOL = (
    np.dtype(name) for name in ("int64", "uint64", "float64", "float32", "bool")
)


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a ``for`` loop: ``count`` is their number (in each lane), and ``at`` returns the
    item with a given number. A range of int64 has ``limits``: its start, stop and step.
    """

    count: Any
    at: Callable[[Any, Any, Any], Any]  # takes a frame, a mask and the number of an item
    limits: tuple[Any, Any, Any] | None = None


@cache
def arithmetic_type(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type of + - * // % of two types."""
    kinds = {left.kind, right.kind}
    if kinds <= {"u", "i", "b"}:
        return UINT if kinds == {"u"} else INT
    if {left, right} == {np.dtype(np.uint16), SINGLE}:
        return FLOAT  # as numba resolves it, though a float32 holds every uint16
    return unified(left, right)


@cache
def unified(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type that holds values of both types, for example where two branches assign one
    variable.
    """
    if left == right:
        return left
    kinds = {left.kind, right.kind}
    if kinds & {"U", "S"}:
        raise TypeError("a text and a number")
    if "f" in kinds and left.itemsize == right.itemsize == 2:
        # a float16 and an integer of 16 bits, for which NumPy takes float32
        return np.dtype(np.float16)
    return np.result_type(left, right)


@cache
def float_type(dtype: np.dtype) -> np.dtype:
    """Return the type of a function of one real number, such as ``math.sqrt``."""
    return np.result_type(dtype, SINGLE) if dtype.kind in "fc" else FLOAT


def range_type(limits: list[np.dtype]) -> np.dtype:
    """Return the type of the numbers of a ``range``: unsigned if all limits are. With a signed step
    it is unsigned only if start and stop are both uint64.
    """
    unsigned = all(dtype.kind == "u" for dtype in limits) or (
        len(limits) == 3 and limits[0] == limits[1] == UINT
    )
    return UINT if unsigned else INT


def cast(value: Value, dtype: np.dtype) -> Value:
    """Return the value converted to a type; without a copy if it already has that type."""
    if value.dtype == dtype:
        return value
    if (value.dtype.kind in "US") != (dtype.kind in "US"):
        raise TypeError("a text and a number")
    return (
        _cut(value, dtype)
        if value.dtype.kind == "f" and dtype.kind in "iu"
        else value.astype(dtype)
    )


_limits = cache(np.iinfo)


def _cut(value: Value, dtype: np.dtype) -> Value:
    """Convert floats to integers as a GPU does: a value beyond the range becomes the nearest limit.
    NumPy's result there differs between processors.

    An integer narrower than 32 bits is the low bits of the conversion to 32 bits. A nan gives 0 if
    a float32 is converted to 32 bits or less; otherwise it gives the integer in which only the
    highest bit is set. Source: PTX ISA, cvt: "clamped to the destination range".
    """
    wide = dtype if dtype.itemsize >= 4 else np.dtype(f"{dtype.kind}4")
    value = cast(value, SINGLE) if value.dtype.itemsize == 2 else value
    least, most = _limits(wide).min, _limits(wide).max
    inside = (value >= float(least)) & (value < float(most + 1))
    if inside.all():
        return cast(value.astype(wide), dtype)
    of_nan = (
        0 if value.dtype == SINGLE and wide.itemsize == 4 else least if least else (most >> 1) + 1
    )
    ends = np.where(
        value < 0, wide.type(least), np.where(value > 0, wide.type(most), wide.type(of_nan))
    )
    return cast(np.where(inside, np.where(inside, value, 0).astype(wide), ends)[()], dtype)


def alike(value: Value, other: Value) -> tuple[Value, Value]:
    """Return two values converted to the type that holds both."""
    if value.dtype is other.dtype:
        return value, other
    dtype = unified(value.dtype, other.dtype)
    return cast(value, dtype), cast(other, dtype)


def arithmetic(
    ufunc: Callable[[Value, Value], Value],
    rule: Callable[[np.dtype, np.dtype], np.dtype | None] = arithmetic_type,
) -> Callable[[Value, Value], Value]:
    """Return a function that applies a ufunc to two values, after it has cast them to the type that
    the rule gives for their types. Where the rule gives None, they are not cast.
    """
    # whether the rule leaves two values of one type (int64, float64 or float32) as they are
    keeps = rule in (arithmetic_type, equal_type, order_type)

    def apply(left: Value, right: Value) -> Value:
        a, b = left.dtype, right.dtype
        if keeps and a is b and (a is INT or a is FLOAT or a is SINGLE):
            return ufunc(left, right)
        is_date = a.kind in "mM" or b.kind in "mM"  # or a time difference
        if is_date or (dtype := rule(a, b)) is None:
            return ufunc(left, right)
        return ufunc(cast(left, dtype), cast(right, dtype))

    return apply


@cache
def quotient_type(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type of ``left / right``: a float."""
    dtype = arithmetic_type(left, right)
    return dtype if dtype.kind in "fc" else FLOAT


@cache
def bits_type(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type of & | ^ of two integers, or of two truth values."""
    if left.kind not in "iub" or right.kind not in "iub":
        raise TypeError(f"a bitwise operation of {left} and {right}")
    return BOOL if left == right == BOOL else arithmetic_type(left, right)


@cache
def shift_type(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type of << >> of integers: unsigned if the left operand is."""
    if left.kind not in "iub" or right.kind not in "iub":
        raise TypeError(f"a shift of {left} by {right}")
    return UINT if left.kind == "u" else INT


@cache
def power_type(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type of ``left ** right``: a float keeps its type under an integer exponent."""
    if left == BOOL and right == np.int32:
        return SINGLE  # as numba resolves it
    if left.kind == "f" and right.kind in "iu":
        return left
    return arithmetic_type(left, right)


@cache
def float_pair_type(left: np.dtype, right: np.dtype, is_power: bool = False) -> np.dtype:
    """Return the type of ``math.fmod``, ``copysign`` or ``pow``: float32 for two integers that it
    holds exactly. In ``pow``, an int32 exponent does not widen the type.
    """
    narrow = [dtype in _NARROW for dtype in (left, right)]
    if all(narrow) or (is_power and narrow[0] and right == np.int32):
        return SINGLE
    if is_power and left.kind == "f" and right in (np.int32, np.uint16):
        return float_type(left)
    return float_type(arithmetic_type(left, right))


@cache
def ufunc_type(*given: np.dtype, gives_float: bool = False) -> np.dtype:
    """Return the type in which a NumPy function computes: float32 for float32 with integers of any
    size. A function that gives floats also takes float32 for integers of at most 16 bits.
    """
    if SINGLE in given and all(dtype == SINGLE or dtype.kind in "iub" for dtype in given):
        return SINGLE
    if not gives_float:
        return reduce(unified, given)
    narrow = all(dtype.kind in "iub" and dtype.itemsize <= 2 for dtype in given)
    return SINGLE if narrow else float_type(reduce(unified, given))


@cache
def fma_type(given: tuple[np.dtype, ...]) -> np.dtype:
    """Return the type of ``cuda.fma``: float32 if it holds all arguments exactly, else float64."""
    return SINGLE if all(dtype == SINGLE or dtype in _NARROW for dtype in given) else FLOAT


def power(left: Value, right: Value) -> Value:
    """Return ``left ** right``."""
    dtype = power_type(left.dtype, right.dtype)
    base, exponent = cast(left, dtype), cast(right, dtype)
    negative = exponent < 0 if dtype.kind == "i" else False
    if not np.any(negative):
        return np.power(base, exponent)
    # a negative exponent gives 0 for all bases but 0, 1 and -1; for these only its parity matters
    found = np.power(base, np.where(negative, 2 - (exponent & 1), exponent))
    inverted = np.where((base > 1) | (base < -1), 0, inverse(found))
    return np.where(negative, inverted, found)[()]


def inverse(value: Value) -> Value:
    """Return 1 divided by signed integers. For 0 it gives the smallest integer, as numba does, and
    raises no error.
    """
    least = np.iinfo(value.dtype).min
    return np.where(value == 0, least, np.where(abs(value) == 1, value, 0))[()]


@cache
def equal_type(left: np.dtype, right: np.dtype) -> np.dtype | None:
    """Return the type in which two numbers are compared; None if they are compared as they are."""
    as_they_are = left == right or {left.kind, right.kind} <= {"i", "u"}
    return None if as_they_are else arithmetic_type(left, right)


@cache
def order_type(left: np.dtype, right: np.dtype) -> np.dtype | None:
    """Return the type in which the order of two numbers is found."""
    if "c" in (left.kind, right.kind):
        raise TypeError("complex numbers have no order")
    return equal_type(left, right)


def truth(value: Value) -> Value:
    """Return whether each value is true."""
    return value if value.dtype is BOOL or value.dtype == BOOL else value != 0


def constant(value: Any) -> Value:
    """Return a Python or NumPy number with the type that numba gives its literal.

    Raises
    ------
    TypeError
        If it is not a number, or an integer beyond 64 bits.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufcmM":
        return value
    if type(value) not in _LITERALS:
        raise TypeError(kind_of(value))
    if type(value) is int and not -(2**63) <= value < 2**63:
        if not 0 <= value < 2**64:
            raise TypeError("an integer beyond 64 bits")
        return np.uint64(value)
    return _LITERALS[type(value)](value)


_LITERALS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


# -------------------------------------------------------------------------------------------------
# Control flow of a variable: which of its assignments may reach the same read, and which reads may
# come before any assignment.
#
# A join is a read that several assignments of a variable may reach: numba gives all of these
# assignments one type. The types of their values are seen when the kernel runs; if they differ, the
# launch starts again with the type that holds all of them. The type of an assignment that no thread
# executes is known only if it is a conversion, such as ``int32(x)``, or if it merely computes.
# Assignments that follow each other without a branch or a loop form no join; numba keeps them apart
# as well.
#
# Whether a read is really reached without a value is known only when the kernel runs and its lanes
# take a path.


# a target or parameter, which gives a variable its value, or one of the parts whose value an
# expression may take, as in ``a or b``
Definition = ast.expr | ast.arg
# the definitions that may reach a place, by variable; None: it may have no value yet
State = dict[str, frozenset[Definition | None]]
Join = tuple[str, frozenset[Definition]]  # a variable, or "" for an expression, and its definitions


@dataclass(frozen=True, eq=False)
class Joins:
    """The reaching definitions of a function's variables.

    ``reads`` has the join of each read that several assignments may reach. ``unsure`` has the reads
    that some path reaches without a value (for ``x += 1`` the target). ``of`` has the joins to
    which each definition belongs. ``computed`` has functions that compute the value of some
    definitions, so that their types are known even if no thread executes them.
    """

    reads: dict[ast.Name, Join] = field(default_factory=dict)
    unsure: set[ast.Name] = field(default_factory=set)
    of: dict[Definition, set[Join]] = field(default_factory=lambda: defaultdict(set))
    computed: dict[Definition, Callable[..., Value]] = field(default_factory=dict)


def walk(node: ast.AST) -> list[ast.AST]:
    """Return a node of the tree and all nodes below it; faster than ``ast.walk``.

    Only fields are followed. IPython's tracebacks set an attribute ``parent`` on every node, and
    all trees of Python share nodes such as ``ast.Load``, so that attributes would lead to the trees
    of other code.
    """
    found = [node]
    for part in found:  # found grows meanwhile
        for value in [getattr(part, name, None) for name in part._fields]:
            if type(value) is list:
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


def names_of(parts: list[ast.AST], context: type[ast.expr_context]) -> list[ast.Name]:
    """Return the names among nodes that are read (``ast.Load``) or assigned (``ast.Store``)."""
    return [part for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, context)]


def joins_of(tree: ast.FunctionDef, stores: list[ast.Name]) -> Joins:
    """Return the reaching definitions of a function's variables; ``stores`` are the names it
    assigns.
    """
    reader = _Reader()
    state: State = {part.id: frozenset([None]) for part in stores}
    for argument in walk(tree.args):
        if isinstance(argument, ast.arg):
            state[argument.arg] = frozenset([argument])
    reader.block(tree.body, state)
    for join in reader.joins.reads.values():
        for definition in join[1]:
            reader.joins.of[definition].add(join)
    return reader.joins


class RelaunchError(Exception):
    """The run found a fact that must be known before a launch begins: the launch starts again."""


class JoinTypes:
    """The types that a function's joins have for one list of argument types."""

    def __init__(self, joins: Joins) -> None:
        self._joins = joins
        self.seen: dict[Definition, Any] = {}
        self.mixed: dict[Join, np.dtype] = {}  # of joins of several types the type that holds all
        self.notes: set[tuple[int, str]] = set()
        self.is_complete = False  # whether unexecuted assignments were looked at

    def note(self, node: Definition, value: Value) -> None:
        """Note the type of the value that a definition gives.

        Raises
        ------
        RelaunchError
            If it changes the type of a join.
        TypeError
            If no type holds both this value and those of the other definitions.
        """
        kind: Any = len(value) if isinstance(value, tuple) else None
        if isinstance(value, NUMBERS):
            kind = value.dtype
        # not ``self.seen.get(node) == kind``: for NumPy, the type float64 is equal to None
        if kind is None or (node in self.seen and self.seen[node] == kind):
            return
        self.seen[node] = kind
        before = dict(self.mixed)
        self._unify(node)
        if self.mixed != before:
            raise RelaunchError

    def _unify(self, node: Definition) -> None:
        """Give each join of a definition the type that holds all of its values seen so far."""
        for join in self._joins.of.get(node, ()):
            seen = {each: self.seen[each] for each in join[1] if each in self.seen}
            kinds = sorted(set(seen.values()), key=str)
            if len(kinds) > 1:
                if not all(isinstance(each, np.dtype) for each in kinds):
                    raise TypeError("tuples of different lengths, or a tuple and a number")
                self.mixed[join] = reduce(unified, kinds)
                if join[0] and "f" not in {each.kind for each in kinds}:
                    self._note_integers(join[0], seen)

    def _note_integers(self, name: str, seen: dict[Definition, Any]) -> None:
        """Note a join of a signed integer and a uint64: no integer type holds both."""
        signed = sorted(node.lineno for node, dtype in seen.items() if dtype.kind == "i")
        unsigned = sorted(node.lineno for node, dtype in seen.items() if dtype == UINT)
        if signed and unsigned:
            text = (
                f"line {signed[0]}: {name} is a signed integer here and a uint64 in line "
                f"{unsigned[0]}. numba-cuda makes one variable of both, a float64, exact up to 53 "
                "bits. For a GPU, assign uint64(...) each time."
            )
            self.notes.add((signed[0], text))

    def joined(self, join: Join, value: Value) -> Value:
        """Return a value in the type of the join through which it is read."""
        dtype = self.mixed.get(join)
        if dtype is None or not isinstance(value, NUMBERS):
            return value
        return cast(value, dtype)


def _joined(states: Iterable[State | None]) -> State | None:
    """Return the state where several paths meet; None if no path leads there."""
    ways = [state for state in states if state is not None]
    if not ways:
        return None
    return {
        name: frozenset[Definition | None]().union(*(way.get(name, ()) for way in ways))
        for name in {name for way in ways for name in way}
    }


class _Reader:
    """Follows all paths through a function to find its reaching definitions."""

    def __init__(self) -> None:
        self.joins = Joins()
        self._broken: list[list[State]] = []
        self._continued: list[list[State]] = []
        self._walk = cache(walk)  # cached, since a loop's nodes are walked again and again

    def block(self, nodes: list[ast.stmt], state: State | None) -> State | None:
        """Return the state after statements."""
        for node in nodes:
            if state is None:
                return None
            state = self._statement(node, state)
        return state

    def _statement(self, node: ast.stmt, state: State) -> State | None:
        if isinstance(node, ast.FunctionDef):  # it has variables of its own
            return state
        if isinstance(node, ast.If):
            self._read(node.test, state)
            return _joined([self.block(node.body, state), self.block(node.orelse, state)])
        if isinstance(node, (ast.While, ast.For)):
            return self._loop(node, state)
        if isinstance(node, (ast.Break, ast.Continue)):
            (self._broken if isinstance(node, ast.Break) else self._continued)[-1].append(state)
            return None
        self._read(node, state)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._use(node.target, state)
        if isinstance(node, ast.AnnAssign) and node.value is None:  # `x: int` assigns nothing
            return state
        return None if isinstance(node, ast.Return) else self._after(node, state)

    def _loop(self, node: ast.While | ast.For, state: State) -> State | None:
        if isinstance(node, ast.For):
            self._read(node.iter, state)
        before, now = state, state
        while True:
            self._broken.append([])
            self._continued.append([])
            if isinstance(node, ast.While):
                self._read(node.test, now)
            after = self.block(
                node.body, self._after(node.target, now) if isinstance(node, ast.For) else now
            )
            left, again = self._broken.pop(), _joined([before, after, *self._continued.pop()])
            assert again is not None
            if again == now:
                return _joined([self.block(node.orelse, now), *left])
            now = again

    def _read(self, node: ast.AST, state: State) -> None:
        for part in names_of(self._walk(node), ast.Load):
            self._use(part, state)

    def _use(self, node: ast.Name, state: State) -> None:
        """Note a read of a variable: the definitions that reach it, and whether it may have no
        value.
        """
        ways = state.get(node.id, frozenset())
        given = frozenset(one for one in ways if one is not None)
        if len(given) > 1:
            self.joins.reads[node] = node.id, given
        if None in ways:
            self.joins.unsure.add(node)

    def _after(self, node: ast.AST, state: State) -> State:
        """Return the state after the assignments of a statement."""
        given = names_of(self._walk(node), ast.Store)
        return state | {part.id: frozenset([part]) for part in given} if given else state
