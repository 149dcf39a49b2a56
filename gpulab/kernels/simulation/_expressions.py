"""Turn a kernel's expressions into closures that compute a value for the lanes of a mask."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import KernelError, shown
from gpulab.kernels._host import DeviceArray
from gpulab.kernels.simulation import _arithmetic, _functions, _memory, _types  # noqa: F401 - they fill FUNCTIONS
from gpulab.kernels.simulation._functions import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    INTRINSICS,
    PLAIN_PARTS,
    UNARY,
    Call,
    Maker,
    kind_of_value,
    not_numbers,
    power_of_constant,
    written_number,
)
from gpulab.kernels.simulation._geometry import Mask
from gpulab.kernels.simulation._machine import Expression, Frame
from gpulab.kernels.simulation.source import (
    UNKNOWN,
    Callee,
    Intrinsic,
    Source,
    as_function,
    dtype_of,
    meaning_of,
    member_of,
)
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.kernels.simulation._simulate import Function, Program

# -------------------------------------------------------------------------------------------------
# An element of a tuple. Lanes may ask for different elements if all have one type, as in numba.


def item_of(
    frame: Frame,
    items: tuple[Any, ...],
    places: tuple[Any, ...],
    mask: Mask,
    known: bool,
    line: int,
) -> Any:
    """Return the element that each lane asks for; ``known`` is true if the index is a constant, so
    that the elements may have several types.

    Raises
    ------
    KernelError
        If there is no such element, or if the tuple has several types and the index is not a
        constant, so that a compiler would not know the type of the result.
    """
    index = places[0] if len(places) == 1 else None
    if isinstance(index, slice) and all(
        limit is None or isinstance(limit, np.integer)
        for limit in (index.start, index.stop, index.step)
    ):
        return tuple(items[index])
    if index is None or not isinstance(index, _types.NUMBERS) or index.dtype.kind not in "iu":
        raise frame.machine.launch.error("a tuple takes one index, an integer", line)
    # np.unique is avoided for one number, since its first call loads masked arrays
    wanted = np.unique(mask.selected(index)).tolist() if np.ndim(index) else [int(index)]
    if not -len(items) <= wanted[0] <= wanted[-1] < len(items):
        raise frame.machine.launch.error(
            f"the tuple has {plural(len(items), 'element')}; expected an index below that", line
        )
    if not known and len({type_of(item) for item in items}) > 1:
        raise frame.machine.launch.error(
            "the elements of the tuple are of several types, and its index is not a constant; "
            "expected one type, or a constant index",
            line,
        )
    try:
        return functools.reduce(
            lambda found, place: _memory.merge(index == place, items[place], found),
            wanted[1:],
            items[wanted[0]],
        )
    except TypeError as error:
        raise frame.machine.launch.error(f"the elements of the tuple are {error}", line) from error


def type_of(item: Any) -> Any:
    """Return what identifies the type of a value in numba: the dtype of a number, (dtype, axes) of
    an array, a tuple of these for a tuple; for a function or a type its class and itself.
    """
    if isinstance(item, tuple):
        return tuple(type_of(part) for part in item)
    if isinstance(item, _types.NUMBERS):
        return item.dtype
    return (item.dtype, item.ndim) if isinstance(item, _memory.ARRAYS) else (type(item), item)


# -------------------------------------------------------------------------------------------------
# Turn a kernel's expressions into closures that compute a value for the lanes of a mask.


@dataclass(frozen=True)
class Closure:
    """A function that was defined inside of a kernel, with the variables around it."""

    function: Function
    variables: dict[str, Any] = field(compare=False)


class Translator:
    """Translates the expressions of one function."""

    def __init__(
        self,
        source: Source,
        program: Program,
        joins: _types.Joins,
        around: Collection[str] = (),
    ) -> None:
        self.source, self.program, self.joins = source, program, joins
        self.local = source.text.local_names.union(around)
        # names of variables that may have no value
        self.followed = {node.id for node in joins.unsure}

    def fail(self, message: str, node: ast.AST) -> KernelError:
        """Return the error for a node."""
        return self.source.error(message, getattr(node, "lineno", self.source.text.tree.lineno))

    # -- names and constants

    def static(self, node: ast.expr) -> Any:
        """Return the object outside of the kernel that a name, or a dotted name, stands for;
        ``UNKNOWN`` for any other expression.
        """
        if isinstance(node, ast.Name) and node.id not in self.local:
            try:
                return meaning_of(self.program.outside(self.source, node.id))
            except KeyError:
                raise self.fail(f"the name {node.id} is not defined", node) from None
        if isinstance(node, ast.Attribute):
            owner = self.static(node.value)
            is_array = type(owner) in (np.ndarray, DeviceArray)
            if owner is UNKNOWN or (is_array and node.attr in _memory.ATTRIBUTES):
                return UNKNOWN
            if isinstance(owner, types.ModuleType):
                with contextlib.suppress(KeyError):
                    found = meaning_of(self.program.outside(self.source, ast.unparse(node)))
                    if not isinstance(found, types.ModuleType | types.BuiltinFunctionType):
                        return found
            return self._member(owner, node)
        return UNKNOWN

    def number(self, node: ast.expr) -> Any:
        """Return the value, a number or a tuple, that an expression has before the kernel runs, or
        ``UNKNOWN``.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            items = tuple(self.number(part) for part in node.elts)
            return UNKNOWN if UNKNOWN in items else items
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
            written, numbers = written_number(node), [self.number(part) for part in parts]
            apply = _PLAIN.get(type(node.op))
            if written is not None or apply is None or UNKNOWN in numbers:
                return UNKNOWN if written is None else written
            try:
                return apply(*numbers)
            except (TypeError, ValueError, ArithmeticError):
                # a division by 0, a shift of a float or by a negative number: the kernel itself
                # meets it
                return UNKNOWN
        found = self.static(node)
        return found if isinstance(found, (int, float, np.integer, np.floating, tuple)) else UNKNOWN

    def literal(self, node: ast.expr) -> Any:
        """Return the number (or tuple) that numba knows when it compiles; for a variable that is
        assigned only once, that of its value. Return ``UNKNOWN`` otherwise.
        """
        given = self.source.text.given_once
        for _ in given:  # no more steps than names: `n = n` leads nowhere
            node = given.get(getattr(node, "id", ""), node)
        return self.number(node)

    def is_place(self, node: ast.expr) -> bool:
        """Return whether an expression is a thread position, such as ``cuda.threadIdx.x``, or a
        variable that is assigned only that: int32 in numba, int64 here.
        """
        found = self.static(self.source.text.given_once.get(getattr(node, "id", ""), node))
        return isinstance(found, Intrinsic) and found.name in INTRINSICS

    # -- expressions

    def expression(self, node: ast.expr) -> Expression:
        """Return the closure of an expression."""
        is_sum = isinstance(node, (ast.BinOp, ast.UnaryOp))
        if is_sum and (written := written_number(node)) is not None:
            return self._literal(written, node)
        made: Expression = self.translated(node)
        return made

    def translated(self, node: ast.AST) -> Any:
        """Return what the method for this kind of node makes of it."""
        kind = type(node)
        method = getattr(self, f"_{kind.__name__.lower()}", None)
        if method is None:
            raise self.fail(f"{_WORDS.get(kind, kind.__name__)} is not supported in a kernel", node)
        return method(node)

    def condition(self, node: ast.expr) -> Expression:
        """Return the closure of a test: truth values."""
        value = self.expression(node)

        def run(frame: Frame, mask: Mask) -> Any:
            found = value(frame, mask)
            if not isinstance(found, _types.NUMBERS):
                raise self.fail("expected a number or a truth value to test", node)
            return _types.truth(found)

        return run

    def array(self, node: ast.expr) -> Expression:
        """Return the closure of an expression that must be an array."""
        value = self.expression(node)
        return lambda frame, mask: self._expect_array(value(frame, mask), node)

    def _expect_array(self, found: Any, node: ast.expr) -> _memory.View | _memory.Choice:
        if not isinstance(found, _memory.ARRAYS):
            raise self.fail(
                f"`{ast.unparse(node)}` is not an array; expected one before the index", node
            )
        return found

    def _constant(self, node: ast.Constant) -> Expression:
        return self._literal(node.value, node)

    def _literal(self, number: Any, node: ast.expr) -> Expression:
        if number is None or isinstance(number, (str, bytes)):
            return lambda frame, mask: number
        try:
            value = _types.constant(number)
        except TypeError as error:
            raise self.fail(
                f"{error} is not supported in a kernel; expected a number", node
            ) from error
        self.program.literals[id(value)] = value
        return lambda frame, mask: value

    def _name(self, node: ast.Name) -> Expression:
        """Return the closure of a variable's value, or of what a name from outside stands for."""
        if node.id not in self.local:
            return self._outer(self.static(node), node)
        # no closure, since a kernel has many names, and each cell of a closure is an object to be
        # collected
        variable = functools.partial(Translator._variable, self, node.id, node)
        join, is_unsure = self.joins.reads.get(node), node in self.joins.unsure
        if join is None and not is_unsure:
            return variable

        def run(frame: Frame, mask: Mask) -> Any:
            value = variable(frame, mask)
            if is_unsure:
                frame.look_for(node.id, mask, node.lineno)
            return frame.types.joined(join, value) if join and frame.types.mixed else value

        return run

    def _variable(self, name: str, node: ast.Name, frame: Frame, mask: Mask) -> Any:
        """Return the value of a variable."""
        try:
            return frame.variables[name]
        except KeyError:
            raise self.fail(f"the variable {name} is used before it has a value", node) from None

    def join(self, parts: list[ast.expr]) -> Callable[[Frame, int, Any], Any]:
        """Return a function that converts the value of one of several expressions to the type that
        holds all of them. The type of an expression is noted when it is computed. Plain expressions
        are also computed here for their type alone, since it does not matter which lanes compute
        them.
        """
        join = "", frozenset(parts)
        for part in parts:
            self.joins.of[part].add(join)
        plain = {part: self.expression(part) for part in parts if self._is_plain(part)}

        def run(frame: Frame, number: int, value: Any) -> Any:
            for part, compute in plain.items():
                if part not in frame.types.seen and part is not parts[number]:
                    # what is wrong with it belongs to its own lanes
                    with contextlib.suppress(KernelError, TypeError):
                        frame.types.note(part, compute(frame, frame.machine.batch.everyone))
            try:
                frame.types.note(parts[number], value)
            except TypeError as error:
                raise self.fail(f"values of several types meet: {error}", parts[number]) from error
            return frame.types.joined(join, value)

        return run

    def keep_computed(self, definition: ast.expr, node: ast.expr, compute: Expression) -> None:
        """Keep the closure that computes the value of a join's definition, if it does not matter
        which lanes compute it. For a conversion the type suffices.
        """
        if definition not in self.joins.of:
            return
        called = self.called(node) if isinstance(node, ast.Call) else None
        if isinstance(called, np.dtype) and ast.unparse(node).startswith(called.name):
            converted = called.type(0)  # whatever value is converted
            self.joins.computed[definition] = lambda frame, mask: converted
        elif self._is_plain(node, calls=True):
            self.joins.computed[definition] = compute

    def _is_plain(self, node: ast.expr, calls: bool = False) -> bool:
        """Return whether an expression only computes, so that it does not matter which lanes
        compute it. With ``calls``, it may call functions that only compute.
        """
        parts = [part for part in _types.walk(node) if isinstance(part, (ast.expr, ast.Pow))]
        return self.joins.unsure.isdisjoint(parts) and all(
            isinstance(part, PLAIN_PARTS) or (calls and self._only_computes(part)) for part in parts
        )

    def _only_computes(self, node: ast.AST) -> bool:
        """Return whether an expression is a conditional one, or calls a type, or a function of math
        or Python that computes a number.
        """
        called = self.called(node) if isinstance(node, ast.Call) else None
        return (
            isinstance(node, ast.IfExp)
            or isinstance(called, np.dtype)
            or (
                isinstance(called, Intrinsic)
                and (
                    called.name.startswith("math.")
                    or called.name in ("abs", "min", "max", "round", "pow")
                )
            )
        )

    def _outer(self, found: Any, node: ast.expr) -> Expression:
        """Return the closure of an object from outside of the kernel."""
        if isinstance(found, Intrinsic) and found.name in INTRINSICS:
            intrinsic = INTRINSICS[found.name]
            return lambda frame, mask: intrinsic(frame.machine.batch)
        if isinstance(found, np.ndarray):
            view = _memory.constant_view(ast.unparse(node), found)
            return lambda frame, mask: view
        if isinstance(found, DeviceArray):
            number = len(self.program.captured)
            self.program.captured.append((ast.unparse(node), found))
            return lambda frame, mask: frame.machine.launch.captured[number]
        if isinstance(found, tuple):
            parts = [self._outer(part, node) for part in found]
            return lambda frame, mask: _memory.tuple_like(
                found, [part(frame, mask) for part in parts]
            )
        dtype = None if isinstance(found, str) else dtype_of(found)
        value = found if dtype is None else dtype
        # a misspelled name such as cuda.threadidx.x is neither known nor the beginning of one
        if (isinstance(value, Intrinsic) and "." in value.name) and not any(
            f"{name}.".startswith(f"{value.name}.") for name in (*FUNCTIONS, *INTRINSICS)
        ):
            raise self.fail(f"`{ast.unparse(node)}` is not supported in a kernel", node)
        if isinstance(value, (Intrinsic, Callee, np.dtype, enum.Enum, enum.EnumMeta)):
            return lambda frame, mask: value
        try:
            return self._literal(found, node)
        except KernelError:
            raise self.fail(
                f"`{ast.unparse(node)}` is not a number, array or tuple that a kernel can use", node
            ) from None

    def _attribute(self, node: ast.Attribute) -> Expression:
        found = self.static(node)
        if found is not UNKNOWN:
            return self._outer(found, node)
        value, name, line = self.expression(node.value), node.attr, node.lineno
        known: dict[Any, Expression] = {}

        def run(frame: Frame, mask: Mask) -> Any:
            owner = value(frame, mask)
            if isinstance(owner, (Intrinsic, np.dtype, enum.Enum)):
                if owner not in known:
                    known[owner] = self._outer(self._member(owner, node), node)
                return known[owner](frame, mask)
            if name in (getattr(getattr(owner, "dtype", None), "names", None) or ()):
                field = _memory.field_of(frame.machine, owner, mask, name, line)
                return _memory.read(frame.machine, field, mask, (), line)
            try:
                found = _memory.ATTRIBUTES[name](owner) if name in _memory.ATTRIBUTES else None
            except TypeError as error:
                raise self.fail(f"`.{name}`: {error}", node) from error
            if found is None and name in getattr(owner, "_fields", ()):
                return owner[owner._fields.index(name)]
            if found is None:
                raise self.fail(
                    f"`.{name}` of {kind_of_value(owner)} is not supported in a kernel", node
                )
            return found

        return run

    def _member(self, owner: Any, node: ast.Attribute) -> Any:
        try:
            return member_of(owner, node.attr)
        except AttributeError as error:
            raise self.fail(str(error), node) from error

    def _tuple(self, node: ast.Tuple | ast.List) -> Expression:
        values = self.values(node.elts)
        return lambda frame, mask: tuple(values(frame, mask))

    def looked_through(self, node: ast.expr) -> Expression:
        """Translate the expression after ``in``: Python itself makes a tuple of a list there."""
        return self._tuple(node) if isinstance(node, ast.List) else self.expression(node)

    def values(self, nodes: list[ast.expr]) -> Callable[[Frame, Mask], list[Any]]:
        """Return the closure of several values; starred ones are tuples that are spread."""
        starred = [isinstance(node, ast.Starred) for node in nodes]
        parts = [
            self.expression(getattr(node, "value", node) if star else node)
            for node, star in zip(nodes, starred, strict=True)
        ]
        if not any(starred):
            return lambda frame, mask: [part(frame, mask) for part in parts]

        def run(frame: Frame, mask: Mask) -> list[Any]:
            found: list[Any] = []
            for part, star, node in zip(parts, starred, nodes, strict=True):
                value = part(frame, mask)
                if star and not isinstance(value, tuple):
                    raise self.fail("only a tuple can be spread by * in a kernel", node)
                found.extend(value if star else [value])
            return found

        return run

    def operator(
        self, op: ast.operator, right: ast.expr, node: ast.AST
    ) -> Callable[[Any, Any], Any]:
        """Return an arithmetic operation; if its operands do not fit, its error names the line."""
        apply = ARITHMETIC.get(type(op))
        exponent = self.number(right) if isinstance(op, ast.Pow) else None
        if type(exponent) is int and abs(exponent) <= _MOST_MULTIPLIED:
            apply = lambda base, _: power_of_constant(base, exponent)  # noqa: E731
        if apply is None:
            raise self.fail(f"the operator {type(op).__name__} is not supported in a kernel", node)
        of_tuples = _OF_TUPLES.get(type(op), apply)
        return lambda left, right: self._applied(
            of_tuples if isinstance(left, tuple) else apply, node, left, right
        )

    def _applied(self, function: Callable[..., Any], node: ast.AST, *operands: Any) -> Any:
        """Apply an operator; if its operands do not fit, the error names the line."""
        try:
            return function(*operands)
        except (TypeError, AttributeError) as error:
            raise self.fail(not_numbers(*operands), node) from error

    def _binop(self, node: ast.BinOp) -> Expression:
        left, right, apply = (
            self.expression(node.left),
            self.expression(node.right),
            self.operator(node.op, node.right, node),
        )
        return lambda frame, mask: apply(left(frame, mask), right(frame, mask))

    def _unaryop(self, node: ast.UnaryOp) -> Expression:
        given = getattr(node.operand, "value", None)
        if isinstance(node.op, ast.Invert) and isinstance(given, bool):
            # up to Python 3.11 the compiler folds ~True to -2; from 3.12 on, numba does
            return self._literal(~int(given), node)
        value, apply = self.expression(node.operand), UNARY[type(node.op)]
        return lambda frame, mask: self._applied(apply, node, value(frame, mask))

    def _compare(self, node: ast.Compare) -> Expression:
        first = self.expression(node.left)
        rest = []
        for op, right in zip(node.ops, node.comparators, strict=True):
            translate = (
                self.looked_through if isinstance(op, ast.In | ast.NotIn) else self.expression
            )
            rest.append((COMPARISONS[type(op)], translate(right), self._is_plain(right)))

        def run(frame: Frame, mask: Mask) -> Any:
            left, result, going = first(frame, mask), None, mask
            for apply, expression, plain in rest:
                # as after an ``and``: only the lanes for which all held so far go on
                if result is not None and not plain:
                    yes, _ = going.split(result)
                    if yes is None:
                        return result
                    going = yes
                right = expression(frame, going)
                now = self._applied(apply, node, left, right)
                result = now if result is None else result & now
                left = right
            return result

        return run

    def _boolop(self, node: ast.BoolOp) -> Expression:
        parts = [self.expression(part) for part in node.values]
        is_and = isinstance(node.op, ast.And)
        combine = operator.and_ if is_and else operator.or_
        joined = self.join(node.values)

        def number(position: int, frame: Frame, mask: Mask) -> Any:
            found = parts[position](frame, mask)
            if not isinstance(found, _types.NUMBERS):
                raise self.fail(
                    f"`{'and' if is_and else 'or'}` does not take {kind_of_value(found)}; expected "
                    "a number or a truth value",
                    node,
                )
            return found if found.dtype is _types.BOOL else joined(frame, position, found)

        def run(frame: Frame, mask: Mask) -> Any:
            value = number(0, frame, mask)
            for part in range(1, len(parts)):
                truth = _types.truth(value)
                going = mask.split(truth)[0 if is_and else 1]
                if going is None:
                    return value
                other = number(part, frame, going)
                if value is truth and other.dtype is _types.BOOL:
                    value = combine(value, other)
                else:
                    value = other if going is mask else _memory.merge(going.array, other, value)
            return value

        return run

    def _ifexp(self, node: ast.IfExp) -> Expression:
        test, body, orelse = (
            self.condition(node.test),
            self.expression(node.body),
            self.expression(node.orelse),
        )
        joined = self.join([node.body, node.orelse])

        def run(frame: Frame, mask: Mask) -> Any:
            yes, no = mask.split(test(frame, mask))
            try:
                if yes is None:
                    return joined(frame, 1, orelse(frame, mask))
                first = joined(frame, 0, body(frame, yes))
                if no is None:
                    return first
                return _memory.merge(yes.array, first, joined(frame, 1, orelse(frame, no)))
            except TypeError as error:
                raise self.fail(f"a conditional expression gives {error}", node) from error

        return run

    # -- arrays

    def index(self, node: ast.expr) -> Callable[[Frame, Mask], tuple[Any, ...]]:
        """Return the closure of an index: its parts."""
        parts = [
            self._place(part) for part in (node.elts if isinstance(node, ast.Tuple) else [node])
        ]

        def run(frame: Frame, mask: Mask) -> tuple[Any, ...]:
            values = tuple([part(frame, mask) for part in parts])
            if tuple not in map(type, values):
                return values
            # an index that was made before: a tuple in a variable
            apart = [value if isinstance(value, tuple) else (value,) for value in values]
            return tuple(itertools.chain.from_iterable(apart))

        return run

    def _place(self, node: ast.expr) -> Expression:
        """Return the closure of a part of an index."""
        value, number = self.expression(node), self.number(node)
        if isinstance(number, (int, np.integer)) and number < 0:
            place = _memory.FromEnd(number)
            return lambda frame, mask: place
        return value

    def _slice(self, node: ast.Slice) -> Expression:
        nothing: Expression = lambda frame, mask: None  # noqa: E731
        start, stop, step = (
            nothing if limit is None else self.expression(limit)
            for limit in (node.lower, node.upper, node.step)
        )
        return lambda frame, mask: slice(start(frame, mask), stop(frame, mask), step(frame, mask))

    def _subscript(self, node: ast.Subscript) -> Expression:
        kind = self.static(node.value)
        if isinstance(kind, enum.EnumMeta) and isinstance(node.slice, ast.Constant):
            attribute = ast.Attribute(node.value, str(node.slice.value), ast.Load())
            return self._outer(self._member(kind, attribute), node)
        value, index, line = self.expression(node.value), self.index(node.slice), node.lineno
        constant = self.literal(node.slice) is not UNKNOWN
        compared = node in self.source.text.compared_reads
        if compared:
            self.program.notes.append(
                f"{self.source.place(line)}: `{ast.unparse(node)}` is read without an atomic where "
                "other threads may change it with an atomic. That is harmless if the value is used "
                "only in a compare-and-swap, which fails where the value is old."
            )

        def run(frame: Frame, mask: Mask) -> Any:
            owner = value(frame, mask)
            places = index(frame, mask)
            if isinstance(owner, _types.Items):
                if len(places) != 1:
                    raise self.fail("a range takes one index", node)
                place = _memory.integer(frame.machine, places[0], line)
                if mask.split((place < -owner.count) | (place >= owner.count))[0] is not None:
                    raise self.fail(
                        "the range has no such item; expected an index below its length", node
                    )
                return owner.at(frame, mask, np.where(place < 0, place + owner.count, place))
            if isinstance(owner, tuple):
                return item_of(frame, owner, places, mask, constant, line)
            view = self._expect_array(owner, node.value)
            view, places = _memory.place_of(frame.machine, view, mask, places, line)
            return _memory.read(frame.machine, view, mask, places, line, compared)

        return run

    def reference(
        self, node: ast.Subscript | ast.Attribute
    ) -> Callable[[Frame, Mask], tuple[Any, tuple[Any, ...]]]:
        """Return the closure of the target of a store: an array and an index; for a field of a
        record, the field and the empty index.
        """
        array, line = self.array(node.value), node.lineno
        field = ast.Constant(node.attr) if isinstance(node, ast.Attribute) else node.slice
        index = self.index(ast.copy_location(field, node))
        return lambda frame, mask: _memory.place_of(
            frame.machine, array(frame, mask), mask, index(frame, mask), line
        )

    # -- calls

    def called(self, node: ast.Call) -> Any:
        """Return what a call calls: an ``Intrinsic``, a NumPy type, a Python function, or
        ``UNKNOWN``. A method of a value is the intrinsic ".name", whose first argument is the
        value.
        """
        if (
            isinstance(node.func, ast.Attribute)
            and f".{node.func.attr}" in FUNCTIONS
            and not isinstance(self.static(node.func.value), Intrinsic)
        ):
            return Intrinsic(f".{node.func.attr}")
        found = self.static(node.func)
        dtype = dtype_of(found)
        return dtype if dtype is not None else found

    def _call(self, node: ast.Call) -> Expression:
        found = self.called(node)
        if found is not UNKNOWN:
            return self._call_of(found, node)
        callee, made = self.expression(node.func), dict[Any, Callable[..., Any]]()

        def run(frame: Frame, mask: Mask) -> Any:
            found = callee(frame, mask)
            if not isinstance(found, (Closure, Intrinsic, Callee, np.dtype)):
                raise self.fail(f"`{ast.unparse(node.func)}` is not a function; expected one", node)
            if isinstance(found, Closure):
                if found not in made:
                    made[found] = self._call_of_function(found.function, node)
                return made[found](frame, mask, found.variables)
            if found not in made:
                made[found] = self._call_of(found, node)
                # what the function needs must be known before a launch begins
                raise _types.RelaunchError
            return made[found](frame, mask)

        return run

    def _call_of(self, found: Any, node: ast.Call) -> Expression:
        """Return the closure of a call of something that is known."""
        words = ast.unparse(node.func)
        if isinstance(found, Intrinsic):
            make = FUNCTIONS.get(found.name)
            if make is None:
                raise self.fail(f"`{words}` is not supported in a kernel", node)
            if found.name in _arithmetic.WITHOUT_CODE:
                instead = _arithmetic.WITHOUT_CODE[found.name]
                note = (
                    f"{self.source.place(node.lineno)}: numba-cuda has no code for {found.name} in "
                    f"a kernel. For a GPU, write {instead}."
                )
                if note not in self.program.notes:
                    self.program.notes.append(note)
            self.program.called.add(found.name)
            owner = [node.func.value] if found.name.startswith(".") else []  # type: ignore[attr-defined]
            one = Call(node, self, found.name, [*owner, *node.args])
            starred = any(isinstance(part, ast.Starred) for part in node.args)
            return self._spread(one, make) if starred else make(one)
        if isinstance(found, np.dtype):
            return self._conversion(found, node, words)
        if isinstance(found, Callee):
            function = self.program.device_function(found, self.source, node.lineno)
            call = self._call_of_function(function, node)
            return lambda frame, mask: call(frame, mask, {})
        raise self.fail(
            f"`{words}` is not supported in a kernel; expected a function of cuda or math, or "
            "a Python function of yours",
            node,
        )

    def _spread(self, call: Call, make: Maker) -> Expression:
        """Return the closure of a call with starred arguments, translated once for each number of
        arguments.
        """
        items = self.values(call.given)
        made: dict[int, Expression] = {}

        def run(frame: Frame, mask: Mask) -> Any:
            values = items(frame, mask)
            names = [f"*{number}" for number in range(len(values))]
            if len(values) not in made:
                self.local.update(names)
                given: list[ast.expr] = [
                    ast.copy_location(ast.Name(name, ast.Load()), call.node) for name in names
                ]
                made[len(values)] = make(dataclasses.replace(call, given=given))
            frame.variables.update(zip(names, values, strict=True))
            return made[len(values)](frame, mask)

        return run

    def _conversion(self, dtype: np.dtype, node: ast.Call, words: str) -> Expression:
        if len(node.args) != 1 or node.keywords:
            raise self.fail(f"{words} takes one number", node)
        value = self.expression(node.args[0])
        # Python's own int and float leave narrower types as they are
        keeps = {"int": "iu", "float": "f"}.get(words, "")
        return lambda frame, mask: self._cast(value(frame, mask), dtype, node, keeps)

    def _call_of_function(self, function: Function, node: ast.Call) -> Callable[..., Any]:
        """Return the closure of a call of a Python function, which also takes the variables of the
        function that encloses it.
        """
        values = self.values(node.args)
        keywords = {part.arg or "**": self.expression(part.value) for part in node.keywords}

        def bound(arguments: list[Any], by_name: dict[str, Any]) -> dict[str, Any]:
            try:
                return function.bind(arguments, by_name)
            except TypeError as error:
                raise self.fail(str(error), node) from error

        if not any(isinstance(part, ast.Starred) for part in node.args):
            bound(list(node.args), dict(keywords))

        def run(frame: Frame, mask: Mask, captured: dict[str, Any]) -> Any:
            by_name = {name: value(frame, mask) for name, value in keywords.items()}
            arguments = captured | bound(values(frame, mask), by_name)
            return function.call(frame.machine, arguments, mask)

        return run

    def _lambda(self, node: ast.Lambda) -> Expression:
        return self.inner_function(as_function(node))

    def inner_function(self, tree: ast.FunctionDef) -> Expression:
        """Return the closure of a function that is defined inside of another one."""
        defaults = [self.expression(part) for part in tree.args.defaults]
        function = self.program.inner_function(self.source.part(tree), self.local)

        def run(frame: Frame, mask: Mask) -> Closure:
            function.defaults = [value(frame, mask) for value in defaults]
            return Closure(function, frame.variables)

        return run

    def _cast(self, value: Any, dtype: np.dtype, node: ast.AST, keeps: str) -> Any:
        if keeps == "f" and isinstance(value, str):
            try:
                value = _types.constant(float(value))
            except ValueError as error:
                text = f"float({shown(value)}) is not a number; expected one such as float('inf')"
                raise self.fail(text, node) from error
        if isinstance(value, _types.NUMBERS) and value.dtype.kind in keeps:
            return value
        if keeps == "f" and getattr(value, "dtype", None) == _types.BOOL:
            raise self.fail("float() takes no truth value; expected a number", node)
        if not isinstance(value, _types.NUMBERS) or (
            value.dtype.kind in ("US" if dtype.kind == "c" else "cUS")
        ):
            raise self.fail(f"{dtype} takes one {'' if dtype.kind == 'c' else 'real '}number", node)
        return _types.cast(value, dtype)


_MOST_MULTIPLIED = 0x10000  # numba's own limit for a power that it multiplies out
_OF_TUPLES: dict[type, Callable[..., Any]] = {
    ast.Add: operator.concat,
    ast.Mult: lambda parts, times: parts * operator.index(times),
}
_PLAIN: dict[type, Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
}
_WORDS: dict[type, str] = {
    ast.ListComp: "a list comprehension",
    ast.List: "a list",
    ast.Dict: "a dictionary",
    ast.Set: "a set",
    ast.JoinedStr: "a formatted string",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Await: "await",
    ast.GeneratorExp: "a generator",
    ast.Starred: "a starred expression",
    ast.Try: "try",
    ast.With: "with",
    ast.ClassDef: "a class",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.AsyncFunctionDef: "async",
    ast.Match: "match",
}
