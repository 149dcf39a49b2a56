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
# The types that numba gives to arithmetic, for NumPy arrays.
#
# Integers narrower than 64 bits are widened by any arithmetic; an integer of 32 or 64 bits with a
# float gives float64, a narrower one keeps float32; ``/`` gives a float. Tested against numba's
# own inference in tests/kernels.


# a NumPy array of shape (B or 1, T or 1), a NumPy scalar, a tuple of values, or a view of an array
Value = Any
_NARROW = tuple(np.dtype(name) for name in ("int8", "int16", "uint8", "bool"))
INT, UINT, FLOAT, SINGLE, BOOL = (
    np.dtype(name) for name in ("int64", "uint64", "float64", "float32", "bool")
)


@dataclass(frozen=True, eq=False)
class Items:
    """What a ``for`` goes through: how many items there are (in each lane), and each by its number.
    A range of int64 has ``limits``: its start, stop and step.
    """

    count: Any
    at: Callable[[Any, Any, Any], Any]  # of a frame, a mask and a number
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
    """Return the type that holds values of both, as where two branches assign one variable."""
    if left == right:
        return left
    kinds = {left.kind, right.kind}
    if kinds & {"U", "S"}:
        raise TypeError("a text and a number")
    if "f" in kinds and left.itemsize == right.itemsize == 2:
        return np.dtype(np.float16)  # beside an integer of 16 bits, where NumPy takes float32
    return np.result_type(left, right)


@cache
def float_type(dtype: np.dtype) -> np.dtype:
    """Return the type of a function of one real number, such as ``math.sqrt``."""
    return (
        dtype
        if dtype.kind in "fc" and dtype.itemsize > 2
        else SINGLE
        if dtype.kind == "f"
        else FLOAT
    )


def range_type(limits: list[np.dtype]) -> np.dtype:
    """Return the type of what ``range`` gives: unsigned of unsigned limits; beside a signed step of
    two uint64 alone.
    """
    unsigned = all(dtype.kind == "u" for dtype in limits) or (
        len(limits) == 3 and limits[0] == limits[1] == UINT
    )
    return UINT if unsigned else INT


def cast(value: Value, dtype: np.dtype) -> Value:
    """Return the value in a type; no copy where it has that type."""
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
    """Return floats as integers, as a GPU has them: beyond the range its nearest end. What NumPy
    does there differs between processors.

    Integers narrower than 32 bits are the low bits of one that is as wide. Source: PTX ISA, cvt:
    "clamped to the destination range"; a nan gives 0 from float32 to 32 bits and below, else the
    highest bit alone.
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
    """Return both in the type that holds values of both."""
    if value.dtype is other.dtype:
        return value, other
    dtype = unified(value.dtype, other.dtype)
    return cast(value, dtype), cast(other, dtype)


def arithmetic(
    ufunc: Callable[[Value, Value], Value],
    rule: Callable[[np.dtype, np.dtype], np.dtype | None] = arithmetic_type,
) -> Callable[[Value, Value], Value]:
    """Return a ufunc of two values in the type that a rule gives for theirs, if any."""
    # whether 64-bit integers and floats stay what they are
    keeps = rule in (arithmetic_type, equal_type, order_type)

    def apply(left: Value, right: Value) -> Value:
        a, b = left.dtype, right.dtype
        if keeps and a is b and (a is INT or a is FLOAT or a is SINGLE):
            return ufunc(left, right)
        is_date = a.kind in "mM" or b.kind in "mM"  # or a time between two
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
    """Return the type of << >> of integers, which the left one's sign decides."""
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
def float_pair_type(left: np.dtype, right: np.dtype, is_power: bool) -> np.dtype:
    """Return the type of ``math.fmod``, ``copysign`` or ``pow``: float32 of two integers that it
    holds exactly.
    """
    narrow = [dtype in _NARROW for dtype in (left, right)]
    if all(narrow) or (is_power and narrow[0] and right == np.int32):
        return SINGLE
    if is_power and left.kind == "f" and right in (np.int32, np.uint16):
        return float_type(left)
    return float_type(arithmetic_type(left, right))


@cache
def ufunc_type(*given: np.dtype, gives_float: bool = False) -> np.dtype:
    """Return the type of a function of NumPy: float32 beside integers of any size, and where it
    gives a float, of those of 16 bits.
    """
    if SINGLE in given and all(dtype == SINGLE or dtype.kind in "iub" for dtype in given):
        return SINGLE
    if not gives_float:
        return reduce(unified, given)
    narrow = all(dtype.kind in "iub" and dtype.itemsize <= 2 for dtype in given)
    return SINGLE if narrow else float_type(reduce(unified, given))


@cache
def fma_type(given: tuple[np.dtype, ...]) -> np.dtype:
    """Return the type of ``cuda.fma``: float32 of numbers that it holds exactly."""
    return SINGLE if all(dtype == SINGLE or dtype in _NARROW for dtype in given) else FLOAT


def power(left: Value, right: Value) -> Value:
    """Return ``left ** right``."""
    dtype = power_type(left.dtype, right.dtype)
    base, exponent = cast(left, dtype), cast(right, dtype)
    negative = exponent < 0 if dtype.kind == "i" else False
    if not np.any(negative):
        return np.power(base, exponent)
    # of 0, 1 and -1 it suffices whether the exponent is odd
    found = np.power(base, np.where(negative, 2 - (exponent & 1), exponent))
    inverted = np.where((base > 1) | (base < -1), 0, inverse(found))
    return np.where(negative, inverted, found)[()]


def inverse(value: Value) -> Value:
    """Return 1 divided by signed integers: numba's own for 0, where no error is raised."""
    least = np.iinfo(value.dtype).min
    return np.where(value == 0, least, np.where(abs(value) == 1, value, 0))[()]


@cache
def equal_type(left: np.dtype, right: np.dtype) -> np.dtype | None:
    """Return the type in which two numbers are compared; None where they are as they are."""
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
        If it is no number.
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
# Where one of several assignments may have given a variable its value, numba has one type for all
# of them, from there on: a join. What the assignments give is seen when the kernel runs; where the
# types differ, the launch begins again with the type that holds all of them. Of assignments that no
# thread comes to the type is known where it is written there, or where they only compute.
# Assignments that follow each other without a branch or a loop do not meet; numba keeps them apart
# as well.
#
# Whether a read is really reached without a value is known only when the kernel runs and its lanes
# take a path.


# what gives a variable a value, or an expression one of several: a target, a parameter, a part
Definition = ast.expr | ast.arg
# the definitions that may reach a place, by variable; None: it may have no value yet
State = dict[str, frozenset[Definition | None]]
Join = tuple[str, frozenset[Definition]]  # a variable, or "", and what gives its value


@dataclass(frozen=True, eq=False)
class Joins:
    """What reaching definitions say of a function's variables.

    ``reads`` are those where one of several assignments may have given the value, with these;
    ``unsure`` those that some way leads to without a value (for ``x += 1`` its target). ``of`` has
    the joins that each definition is in, and ``computed`` what computes some of them, so that their
    types are known though no thread comes to them.
    """

    reads: dict[ast.Name, Join] = field(default_factory=dict)
    unsure: set[ast.Name] = field(default_factory=set)
    of: dict[Definition, set[Join]] = field(default_factory=lambda: defaultdict(set))
    computed: dict[Definition, Callable[..., Value]] = field(default_factory=dict)


def walk(node: ast.AST) -> list[ast.AST]:
    """Return a part of the tree and all that is in it; faster than ``ast.walk``.

    Fields alone: IPython's tracebacks hang a ``parent`` on every node, and all trees of Python
    share those such as ``ast.Load``, so that attributes lead to the trees of other code.
    """
    found = [node]
    for part in found:  # which grows
        for value in [getattr(part, name, None) for name in part._fields]:
            if type(value) is list:
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


def names_of(parts: list[ast.AST], context: type[ast.expr_context]) -> list[ast.Name]:
    """Return the names among parts of the tree that are read (``ast.Load``) or given a value."""
    return [part for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, context)]


def joins_of(tree: ast.FunctionDef, stores: list[ast.Name]) -> Joins:
    """Return the reaching definitions of a function's variables, which are stored there."""
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
    """The run showed something that must be known before it: the launch begins again."""


class JoinTypes:
    """The types that a function's joins have for one list of argument types."""

    def __init__(self, joins: Joins) -> None:
        self._joins = joins
        self.seen: dict[Definition, Any] = {}
        self.mixed: dict[Join, np.dtype] = {}  # of joins of several types the one that holds all
        self.notes: set[tuple[int, str]] = set()
        self.is_complete = False  # whether what no thread came to was looked at

    def note(self, node: Definition, value: Value) -> None:
        """Look at what a definition gives.

        Raises
        ------
        RelaunchError
            If it changes the type of a join.
        TypeError
            If it cannot meet what other definitions give.
        """
        kind: Any = len(value) if isinstance(value, tuple) else None
        if isinstance(value, (np.ndarray, np.generic)):
            kind = value.dtype
        # a float64 is equal to None for NumPy
        if kind is None or (node in self.seen and self.seen[node] == kind):
            return
        self.seen[node] = kind
        before = dict(self.mixed)
        self._unify(node)
        if self.mixed != before:
            raise RelaunchError

    def _unify(self, node: Definition) -> None:
        """Give the joins of a definition the types that hold what is known of them."""
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
        """Note where a signed integer and a uint64 meet, which no integer holds both."""
        signed = sorted(node.lineno for node, dtype in seen.items() if dtype.kind == "i")
        unsigned = sorted(node.lineno for node, dtype in seen.items() if dtype == UINT)
        if signed and unsigned:
            text = (
                f"line {signed[0]}: {name} is a signed integer here and a uint64 in line "
                f"{unsigned[0]}. numba-cuda makes one variable of both, a float64, which has 53 "
                "bits. For a GPU, assign uint64(...) each time."
            )
            self.notes.add((signed[0], text))

    def joined(self, join: Join, value: Value) -> Value:
        """Return a value in the type of the join through which it is read."""
        dtype = self.mixed.get(join)
        if dtype is None or not isinstance(value, (np.ndarray, np.generic)):
            return value
        return cast(value, dtype)


def _joined(states: Iterable[State | None]) -> State | None:
    """Return what may hold where several ways meet; None where no way leads there."""
    ways = [state for state in states if state is not None]
    if not ways:
        return None
    return {
        name: frozenset[Definition | None]().union(*(way.get(name, ()) for way in ways))
        for name in {name for way in ways for name in way}
    }


class _Reader:
    """Follows the ways through a function: reaching definitions."""

    def __init__(self) -> None:
        self.joins = Joins()
        self._broken: list[list[State]] = []
        self._continued: list[list[State]] = []
        self._walk = cache(walk)  # in a loop again and again

    def block(self, nodes: list[ast.stmt], state: State | None) -> State | None:
        """Return what holds after statements."""
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
        if isinstance(node, ast.AnnAssign) and node.value is None:  # `x: int` gives nothing
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
        """Note a variable that is read here: which definitions reach it, and whether none may."""
        ways = state.get(node.id, frozenset())
        given = frozenset(one for one in ways if one is not None)
        if len(given) > 1:
            self.joins.reads[node] = node.id, given
        if None in ways:
            self.joins.unsure.add(node)

    def _after(self, node: ast.AST, state: State) -> State:
        """Return what holds after the assignments of a statement."""
        given = names_of(self._walk(node), ast.Store)
        return state | {part.id: frozenset([part]) for part in given} if given else state
