"""Run the lanes of a loop one after the other when only few are active: NumPy's overhead for each
statement then costs more than the lanes.

If lanes only compute, read memory that is not written, and use arrays of their own, each gets the
same values as in lockstep. The loop is written as a Python function for one lane (``LaneWriter``),
which logs the path that the lane takes; the counts of lockstep follow from the log (``_count``).
Arithmetic in which Python differs from numba, and everything that would be a finding, an error or a
trace, is left to lockstep.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpulab.kernels.simulation import _memory, _types, source
from gpulab.kernels.simulation._geometry import WARP, Mask
from gpulab.kernels.simulation._machine import Expression, Frame, Machine

if TYPE_CHECKING:
    from gpulab.kernels.simulation._expressions import Translator

INT, FLOAT, SINGLE, BOOL = _types.INT, _types.FLOAT, _types.SINGLE, _types.BOOL
# The number of lanes up to which Python, one lane after the other, is faster than NumPy (measured:
# about 100), and the turns that run in lockstep first, since a short loop is not worth the change.
MOST_LANES, _TURNS_BEFORE, _TURNS_BEFORE_NESTED = 96, 3, 0
# The most turns in one go, so that their log fits into memory and endless work is noticed: of one
# run of a loop, and of all runs of an inner loop in all lanes.
_TURNS, _MOST_LOGGED = 1 << 11, 1 << 17
_ELEMENT_BITS = 40  # the bits in which a logged access keeps its element
_PROGRAMS_KEPT, _TRIES = 32, 4
# The number of turns of a lane from which the change pays off (measured: it costs as much as some
# 10 turns), and the most turns in lockstep before it is tried again.
_WORTH_TURNS, _LONGEST_WAIT = 10, 40
_SIMPLE = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.If,
    ast.While,
    ast.For,
    ast.Break,
    ast.Continue,
    ast.Pass,
)
_CALLS = {name: source.Intrinsic(name) for name in ("min", "max", "abs", "range")}
_SYMBOLS: dict[type, str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"},
    **{ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>"},
}


class Refused(Exception):  # noqa: N818 - no error: the loop runs in lockstep then
    """A lane cannot run the loop alone, or not the part of it that the lane has reached."""


def _bail() -> Any:
    raise Refused


# -------------------------------------------------------------------------------------------------
# Write a loop as Python for one lane, if that does exactly what the lane does in lockstep.
#
# Only operations are written for which Python's numbers give the same results as numba's types:
# those on signed integers, float64 and truth values, and on float32 that is only moved or compared.
# Python's integers are not limited to 64 bits. Their low bits are always right, so they are cut to
# 64 bits only where higher bits would matter: where they are assigned, compared, divided, or turned
# into a float.
#
# The function keeps a log. For each turn of a loop it logs a code, in which each bit is a block of
# statements that the lane executed (0: the test failed). For each run of an inner loop it logs
# where the run begins in the logs of the outer and the inner loop. For each access of global memory
# it logs the element and the turn.


class LoopText(NamedTuple):
    """A loop in the text: ``blocks`` has the lines of each block of statements that are executed
    together; ``tests`` has, for each ``if``, its line, its block and the first block of its body.
    """

    line: int
    number: int
    around: int  # the loop that it is in, -1 for none
    blocks: list[list[int]]
    tests: list[tuple[int, int, int]]


class Value(NamedTuple):
    """An expression: its text, its type, and whether an integer surely is within 64 bits."""

    text: str
    dtype: np.dtype
    is_exact: bool = True


class LaneWriter:
    """Writes the function of one lane. ``types`` and ``views`` are the types of the numbers, and
    the arrays, that the names hold when the loop begins. ``fixed`` has the parameters for
    expressions whose value does not change throughout the loop.
    """

    def __init__(
        self,
        types: dict[str, np.dtype],
        views: dict[str, _memory.View],
        fixed: dict[int, tuple[str, Expression]],
    ) -> None:
        self.parameters, self.types = list(types), dict(types)
        self._views, self._fixed = views, fixed
        self._current = LoopText(0, -1, -1, [], [])  # the loop that is being written
        self._lines: list[str] = []
        self.loops: list[LoopText] = []
        self.sites: list[tuple[str, int, int]] = []  # loads from global memory: array, line, loop
        self.assigned: list[str] = []
        self._temporaries = 0

    def make(self, node: ast.While | ast.For) -> Callable[..., Any]:
        """Return the function that runs one lane. It takes ``bail``, the logs and the lane's own
        values. It returns whether there are more turns, and the values of the variables that the
        loop assigns.
        """
        self._loop(node, 1)
        logs = [f"L{n}, S{n}, N{n}" for n in range(len(self.loops))]
        given = [
            *("bail", *logs, *(f"X{n}" for n in range(len(self.sites)))),
            *("items", *(f"v_{name}" for name in self.parameters)),
            *(f"A_{name}" for name in self._views),
        ]
        fresh = [f"v_{name} = " for name in self.types if name not in self.parameters]
        lines = [
            f"def run({', '.join(given)}):",
            f" {''.join(fresh)}None",
            " more = False",
            *self._lines,
            f" return {', '.join(['more', *(f'v_{name}' for name in self.assigned)])},",
        ]
        names: dict[str, Callable[..., Any]] = {}
        exec(compile("\n".join(lines), f"<{node.lineno}>", "exec"), names)
        return names["run"]

    def _line(self, indent: int, text: str) -> None:
        self._lines.append(" " * indent + text)

    # -- statements

    def _loop(self, node: ast.While | ast.For, indent: int) -> None:
        outer, n = self._current, len(self.loops)
        loop = LoopText(getattr(node, "test", node).lineno, n, outer.number, [], [])
        self.loops.append(loop)
        more, items = ("bail()", f"items{n}") if n else ("more = True", "items")
        if n:
            self._line(indent, f"if len(L{n}) > {_MOST_LOGGED}: bail()")
            self._line(indent, f"S{n}.append(len(L{outer.number})); N{n}.append(len(L{n}))")
            if isinstance(node, ast.For):  # its limits belong to the outer loop's turn
                self._line(indent, f"{items} = range({self._range(node.iter)})")
        self._current = loop
        if isinstance(node, ast.While):
            self._line(indent, f"for _ in range({_TURNS}):")
            self._line(indent + 1, f"if not ({self._truth(node.test)}): L{n}.append(0); break")
        else:
            target = self._target(node.target, Value("", INT))
            self._line(indent, f"for {target} in {items}[:{_TURNS}]:")
            more = f"if len({items}) < {_TURNS}: L{n}.append(0)\n{' ' * indent} else: {more}"
        if self._block(node.body, indent + 1):
            self._line(indent + 1, f"L{n}.append(p{n})")
        self._line(indent, "else:")
        self._line(indent + 1, more)
        self._current = outer

    def _range(self, node: ast.expr) -> str:
        match node:
            case ast.Call(func=ast.Name(id="range"), args=limits, keywords=[]):
                values = [self._exact(self.value(limit)) for limit in limits]
                if all(value.dtype == INT for value in values):
                    return ", ".join(value.text for value in values)
        raise Refused

    def _block(self, nodes: list[ast.stmt], indent: int) -> bool:
        """Write statements; return whether a lane may reach their end."""
        loop = self._current
        block, lines = len(loop.blocks), list[int]()
        self._line(indent, f"p{loop.number} {'|' if block else ''}= {1 << block}")
        loop.blocks.append(lines)
        for number, node in enumerate(nodes):
            if isinstance(node, ast.Pass):
                continue
            if isinstance(node, (ast.While, ast.For)):
                self._loop(node, indent)
                continue
            lines.append(getattr(node, "test", node).lineno)
            if isinstance(node, (ast.Break, ast.Continue)):
                leave = type(node).__name__.lower()
                self._line(indent, f"L{loop.number}.append(p{loop.number}); {leave}")
                return False
            if isinstance(node, ast.If):
                self._line(indent, f"if {self._truth(node.test)}:")
                loop.tests.append((node.test.lineno, block, len(loop.blocks)))
                goes_on = self._block(node.body, indent + 1)
                if node.orelse:
                    self._line(indent, "else:")
                goes_on |= not node.orelse or self._block(node.orelse, indent + 1)
                # the statements after it are a block of their own, which not all lanes may reach
                rest = nodes[number + 1 :]
                return goes_on and (not rest or self._block(rest, indent))
            self._simple(node, indent)
        return True

    def _simple(self, node: ast.stmt, indent: int) -> None:
        match node:
            case ast.AugAssign(target=target, op=op, value=amount):
                if sum(isinstance(part, ast.Subscript) for part in _types.walk(target)) > 1:
                    raise Refused  # the index would load twice
                targets: list[ast.expr] = [target]
                values = [self._operation(op, self.value(target), self.value(amount))]
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=parts)):
                values = [self.value(part) for part in parts]
            case (
                ast.Assign(targets=[target], value=given)
                | ast.AnnAssign(target=target, value=ast.expr() as given)
            ):
                targets, values = [target], [self.value(given)]
            case _:
                raise Refused
        left = [self._target(one, value) for one, value in zip(targets, values, strict=True)]
        right = [
            self._within(value, self._views[one.value.id].dtype)  # type: ignore[attr-defined]
            if isinstance(one, ast.Subscript)
            else self._within(value, value.dtype)
            for one, value in zip(targets, values, strict=True)
        ]
        self._line(indent, f"{', '.join(left)} = {', '.join(right)}")

    def _target(self, node: ast.expr, value: Value) -> str:
        """Return the text of the target of an assignment: a variable, or an element of the lane's
        own array.
        """
        match node:
            case ast.Name(id=name):
                if name in self._views or self.types.setdefault(name, value.dtype) != value.dtype:
                    raise Refused  # lockstep would change the type of all lanes
                if name not in self.assigned:
                    self.assigned.append(name)
                return f"v_{name}"
            case ast.Subscript(value=ast.Name(id=array)):
                if self._views[array].store.space == "local":
                    return f"A_{array}[{self._place(node)}]"
        raise Refused

    def _within(self, value: Value, dtype: np.dtype) -> str:
        """Return the text of a value in a type; of an integer beyond the type's range, the low
        bits.
        """
        if value.dtype == dtype and value.is_exact:
            return value.text
        if not value.dtype.kind == dtype.kind == "i":
            raise Refused
        limits, (name, first) = np.iinfo(dtype), self._named(value.text)
        low = f"({name} + {-limits.min} & {limits.max - limits.min}) - {-limits.min}"
        return f"({name} if {limits.min} <= {first} <= {limits.max} else {low})"

    def _exact(self, value: Value) -> Value:
        """Return an expression whose integer is within its type."""
        return Value(self._within(value, value.dtype), value.dtype)

    # -- arrays

    def _place(self, node: ast.Subscript) -> str:
        """Return the text of the element that an index means. An index that is out of bounds is
        left to lockstep, which reports it.
        """
        view = self._views[node.value.id]  # type: ignore[attr-defined]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        found = []
        for part, extent, stride in zip(parts, view.shape, view.strides, strict=True):
            index = self.value(part)
            # a[-1] is counted from the end
            if index.dtype.kind != "i" or isinstance(part, ast.UnaryOp):
                raise Refused
            name, first = self._named(index.text)
            text = f"({name} if 0 <= {first} < {int(extent)} else bail())"
            found.append(text if stride == 1 else f"{text} * {stride}")
        return " + ".join(found)

    def _subscript(self, node: ast.Subscript) -> Value:
        if not isinstance(node.value, ast.Name):
            raise Refused
        name, place = node.value.id, self._place(node)
        view = self._views[name]
        if view.store.space == "global" and view.store.tracker is None:
            index, first = self._named(place)
            number = self._current.number
            logged = f"len(L{number}) << {_ELEMENT_BITS} | {first}"
            place = f"X{len(self.sites)}.append({logged}) or {index}"
            self.sites.append((name, node.lineno, number))
        elif view.store.space not in ("local", "constant"):
            raise Refused
        return Value(f"A_{name}[{place}]", view.dtype)

    def _named(self, text: str) -> tuple[str, str]:
        """Return a name for the value of an expression, and the text that assigns the value to the
        name.
        """
        if text.isidentifier():
            return text, text
        self._temporaries += 1
        name = f"t{self._temporaries}"
        return name, f"({name} := {text})"

    # -- expressions

    def _truth(self, node: ast.expr) -> str:
        # in both Python and numba a number is true if it is not 0, so a nan is true
        return self._exact(self.value(node)).text

    def value(self, node: ast.expr) -> Value:
        """Return the text of an expression and its type."""
        if id(node) in self._fixed:
            name, _ = self._fixed[id(node)]
            return Value(f"v_{name}", self.types[name])
        write: Callable[[Any], Value] | None = getattr(
            self, f"_{type(node).__name__.lower()}", None
        )
        if write is None:
            raise Refused
        return write(node)

    def _constant(self, node: ast.Constant) -> Value:
        value = _types.constant(node.value)
        known = getattr(value, "dtype", None) in (INT, FLOAT, SINGLE, BOOL)
        if not known or not math.isfinite(value):
            raise Refused
        return Value(f"({value.item()!r})", value.dtype)

    def _name(self, node: ast.Name) -> Value:
        return Value(f"v_{node.id}", self.types[node.id])

    def _boolop(self, node: ast.BoolOp) -> Value:
        parts = [self.value(part) for part in node.values]
        if any(part.dtype != BOOL for part in parts):
            raise Refused
        word = " and " if isinstance(node.op, ast.And) else " or "
        return Value(f"({word.join(part.text for part in parts)})", BOOL)

    def _ifexp(self, node: ast.IfExp) -> Value:
        yes, no = self.value(node.body), self.value(node.orelse)
        if yes.dtype != no.dtype:
            raise Refused
        text = f"({yes.text} if {self._truth(node.test)} else {no.text})"
        return Value(text, yes.dtype, yes.is_exact and no.is_exact)

    def _binop(self, node: ast.BinOp) -> Value:
        return self._operation(node.op, self.value(node.left), self.value(node.right))

    def _operation(self, op: ast.operator, a: Value, b: Value) -> Value:
        symbol, integers = _SYMBOLS[type(op)], a.dtype.kind == b.dtype.kind == "i"
        written = b.text.strip("()")
        if symbol in (">>", "<<") and not (written.isdigit() and int(written) < 63):
            raise Refused
        if not integers or symbol in ("/", "//", "%", ">>"):
            a, b = self._exact(a), self._exact(b)
        text = f"({a.text} {symbol} {b.text})"
        if integers and symbol != "/":
            grows = symbol in ("+", "-", "*", "<<") or (symbol == "//" and not written.isdigit())
            return Value(text, INT, a.is_exact and b.is_exact and not grows)
        # a float64; Python and numba convert integers to it in the same way
        if symbol not in ("+", "-", "*", "/") or not {a.dtype.kind, b.dtype.kind} <= {"i", "f"}:
            raise Refused
        if integers:
            text = f"(float({a.text}) / float({b.text}))"
        elif _types.arithmetic_type(a.dtype, b.dtype) != FLOAT:
            raise Refused
        return Value(text, FLOAT)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(f"(not {self._truth(node.operand)})", BOOL)
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub) and value.dtype in (INT, FLOAT):
            return Value(f"(-{value.text})", value.dtype, value.dtype == FLOAT)
        if isinstance(node.op, ast.Invert) and value.dtype == INT:
            return Value(f"(~{value.text})", INT, value.is_exact)
        raise Refused

    def _compare(self, node: ast.Compare) -> Value:
        first, *rest = [self._exact(self.value(one)) for one in (node.left, *node.comparators)]
        if {value.dtype.kind for value in rest} != {first.dtype.kind}:
            raise Refused
        symbols = [_SYMBOLS[type(op)] for op in node.ops]
        text = "".join(f" {symbol} {one.text}" for symbol, one in zip(symbols, rest, strict=True))
        return Value(f"({first.text}{text})", BOOL)

    def _call(self, node: ast.Call) -> Value:
        name = getattr(node.func, "id", "")
        values = [self._exact(self.value(argument)) for argument in node.args]
        dtypes = {value.dtype for value in values}
        fits = (len(values) == 1) == (name == "abs") and name != "range" and not node.keywords
        if not fits or dtypes not in ({INT}, {FLOAT}):
            raise Refused
        if len(values) == 2 and dtypes == {FLOAT}:
            return self._of_floats(name, *values)
        text = f"{name}({', '.join(value.text for value in values)})"
        return Value(text, values[0].dtype, name != "abs")

    def _of_floats(self, name: str, left: Value, right: Value) -> Value:
        """Return CUDA's fmin or fmax: if one argument is a nan, the other one; -0.0 is below
        0.0.
        """
        (a, first), (b, second) = self._named(left.text), self._named(right.text)
        beyond, zero = (">", f"-(-{a} - {b})") if name == "min" else ("<", f"{a} + {b}")
        alike = f"{b} if {a} != {a} else {a} if {a} or {b} != {b} else {zero}"
        return Value(
            f"({b} if {first} {beyond} {second} else {a} if {b} {beyond} {a} else {alike})", FLOAT
        )


# -------------------------------------------------------------------------------------------------
# A loop that lanes may run alone: the values of its names, its turns, and the values that the lanes
# leave.


class ScalarLoop:
    """A loop that lanes may run alone."""

    def __init__(self, node: ast.While | ast.For, translator: Translator) -> None:
        self._node, self._translator = node, translator
        self._names: set[str] = set()
        self._owners: set[str] = set()  # the names in the fixed expressions
        self._fixed: dict[int, tuple[str, Expression]] = {}
        self._look(node)
        parts = _types.walk(node)
        stored = _types.names_of(parts, ast.Store)
        # only lockstep tracks which lanes have assigned a variable that may have no value
        if not (
            translator.joins.unsure.isdisjoint(parts)
            and translator.followed.isdisjoint(part.id for part in stored)
        ):
            raise Refused
        # assignments in the loop that belong to a join
        self._joined = [part for part in stored if part in translator.joins.of]
        inner = [part for part in parts if isinstance(part, (ast.While, ast.For))][1:]
        self._least_before = _TURNS_BEFORE_NESTED if inner else _TURNS_BEFORE
        self._turns_before = self._least_before
        # by the types and layouts that the names have: the writer, and the lane's function
        self._texts: dict[Any, tuple[LaneWriter, Callable[..., Any]]] = {}

    def _look(self, part: ast.AST) -> None:
        """Note the names and the fixed expressions in a part of the loop; refuse statements and
        calls that a lane cannot run alone.
        """
        if isinstance(part, ast.expr) and _is_fixed(part, self._translator):
            self._fixed[id(part)] = f"0{len(self._fixed)}", self._translator.expression(part)
            self._owners.update(one.id for one in _types.names_of(_types.walk(part), ast.Load))
            return
        inner = ast.iter_child_nodes(part)
        if isinstance(part, ast.stmt) and not isinstance(part, _SIMPLE):
            raise Refused
        if isinstance(part, (ast.While, ast.For)) and part.orelse:
            raise Refused
        if isinstance(part, ast.Call):
            inner = iter(part.args)
            known = _CALLS.get(getattr(part.func, "id", ""))  # not under another name
            if known is None or self._translator.static(part.func) != known:
                raise Refused
        if isinstance(part, ast.Name):
            self._names.add(part.id)
        for one in inner:
            self._look(one)

    def suits(self, frame: Frame, mask: Mask, items: _types.Items | None, turn: int) -> bool:
        """Return whether lanes may run the loop alone after ``turn`` turns: it is a ``while`` or
        goes through a range, few lanes are active, and in lockstep its variables would have values
        for each block as well.
        """
        return (
            turn >= self._turns_before
            and mask.lanes <= MOST_LANES
            and (
                mask.batch.blocks == 1
                or (mask.array is not None and len(mask.array) > 1 and mask is not frame.live)
            )
            and (items is None or items.limits is not None)
            and frame.machine.launch.traced_block is None
            and frame.machine.launch.left_to_lockstep[id(self)] < _TRIES
        )

    def run(
        self, frame: Frame, mask: Mask, items: _types.Items | None, turn: int
    ) -> tuple[Mask | None, int]:
        """Run more turns of the loop in the lanes of a mask, after ``turn`` turns. Return the lanes
        that go on, and by how many turns the loop advanced: by 0 if they must go on in lockstep.
        """
        failures = frame.machine.launch.left_to_lockstep
        try:
            more = self._turns(frame, mask, items, turn)
        except (Refused, TypeError, LookupError, ArithmeticError, ValueError):
            failures[id(self)] += 1
            return mask, 0
        failures[id(self)] = 0
        return mask.split(_in_lanes(mask, more, np.dtype(bool)))[0], _TURNS

    def _turns(
        self, frame: Frame, mask: Mask, items: _types.Items | None, turn: int
    ) -> tuple[bool, ...]:
        """Run at most ``_TURNS`` turns in each lane; return which lanes go on."""
        values, views = self._bound(frame, mask)
        text, lane = self._text(values, views)
        each: list[Any] = [None] * mask.lanes
        if items is not None and items.limits is not None:
            limits = (mask.selected(limit).tolist() for limit in items.limits)
            each = [range(*one)[turn : turn + _TURNS] for one in zip(*limits, strict=True)]
        logs = [Log([], [], []) for _ in text.loops]
        loads: list[list[int]] = [[] for _ in text.sites]
        given = [part for log in logs for part in (log.codes, log.around, log.starts)]
        columns = [mask.selected(values[name]).tolist() for name in text.parameters]
        arrays = [_lists(view, mask.flat) for view in views.values()]
        left = []
        for own in zip(each, *columns, *arrays, strict=True):
            logs[0].starts.append(len(logs[0].codes))
            left.append(lane(_bail, *given, *loads, *own))
        more, *left = zip(*left, strict=True)
        turns = sum(len(log.codes) for log in logs)
        _count(frame.machine, text, logs, loads, views, mask)
        for name, held in zip(text.assigned, left, strict=True):
            if any(value is not None for value in held):
                known = [0 if value is None else value for value in held]
                full = _in_lanes(mask, known, text.types[name])
                frame.assign(name, full, mask, self._node.lineno)
        for view, lists in zip(views.values(), arrays, strict=True):
            if view.store.space == "local":
                data = view.store.data
                data.reshape(len(data), -1)[:, mask.flat] = np.array(lists, dtype=data.dtype).T
        # even if no lane executed it: numba's types do not depend on that
        for joined in self._joined:
            if joined.id in text.types:
                frame.types.note(joined, np.zeros((), text.types[joined.id]))
        # If few turns were left, more of them run in lockstep the next time.
        self._turns_before = self._least_before
        if turns < _WORTH_TURNS * mask.lanes:
            self._turns_before = min(turn + _WORTH_TURNS, _LONGEST_WAIT)
        return more

    def _bound(
        self, frame: Frame, mask: Mask
    ) -> tuple[dict[str, np.ndarray | np.generic], dict[str, _memory.View]]:
        """Return the numbers and the arrays that the names and the fixed expressions hold now."""
        held = {name: frame.variables.get(name) for name in self._names}
        owners = [frame.variables.get(name) for name in self._owners]
        # attributes of records may be fields, which are read from memory each time
        if any(getattr(owner, "dtype", BOOL).names for owner in owners if owner is not None):
            raise Refused
        held |= {name: expression(frame, mask) for name, expression in self._fixed.values()}
        views = {name: one for name, one in held.items() if isinstance(one, _memory.View)}
        values = {name: one for name, one in held.items() if isinstance(one, _types.NUMBERS)}
        local = [id(view.store) for view in views.values() if view.store.space == "local"]
        if (
            len(views) + len(values) < sum(one is not None for one in held.values())
            or len(set(local)) < len(local)  # two names of one array
            or not all(map(_is_plain, views.values()))
            or any(
                name in values and values[name].dtype != dtype
                for (name, _), dtype in frame.types.mixed.items()
            )
        ):
            raise Refused
        return values, views

    def _text(
        self, values: dict[str, np.ndarray | np.generic], views: dict[str, _memory.View]
    ) -> tuple[LaneWriter, Callable[..., Any]]:
        """Return the writer and the lane's function for the types and layouts that the names have
        now.
        """
        types = {name: one.dtype for name, one in values.items()}
        layouts = [
            (name, one.store.space, one.store.tracker is None, one.dtype, one.shape, one.strides)
            for name, one in views.items()
        ]
        key = *types.items(), *layouts
        if key not in self._texts:
            if len(self._texts) >= _PROGRAMS_KEPT:
                self._texts.clear()
            writer = LaneWriter(types, views, self._fixed)
            self._texts[key] = writer, writer.make(self._node)
        return self._texts[key]


# -------------------------------------------------------------------------------------------------
# The counts of lockstep for a loop that each lane ran alone, from the log of its turns.
#
# Lanes of a warp execute a statement together if they are in the same turn of every enclosing loop.
# Turns are mapped to rows: those of the outermost loop are numbered consecutively, and each has as
# many rows for its inner loops as the lane with the most turns.


@dataclass
class Log:
    """The turns of one loop: ``codes`` has the code of each turn; for each run of the loop,
    ``starts`` has its first turn, and ``around`` the turn of the outer loop. ``settle`` finds
    ``rows`` and ``lanes`` (places in the list of lanes).
    """

    codes: Any
    around: Any
    starts: Any
    rows: Any = None
    lanes: Any = None

    def settle(self, outer: Log | None) -> None:
        """Find the row and the lane of each turn."""
        self.codes, self.around, self.starts = (
            np.array(one, dtype=np.int64) for one in (self.codes, self.around, self.starts)
        )
        lengths = np.diff(self.starts, append=len(self.codes))
        if outer is None:
            begins, lanes = np.zeros(len(lengths), dtype=np.int64), np.arange(len(lengths))
        else:
            rows, lanes = outer.rows[self.around], outer.lanes[self.around]
            longest = np.zeros(int(rows.max(initial=-1)) + 2, dtype=np.int64)
            np.maximum.at(longest, rows + 1, lengths)
            begins = np.cumsum(longest)[rows]
        self.rows = np.repeat(begins - self.starts, lengths) + np.arange(len(self.codes))
        self.lanes = np.repeat(lanes, lengths)


def _count(
    machine: Machine,
    text: LaneWriter,
    logs: list[Log],
    loads: list[list[int]],
    views: dict[str, _memory.View],
    mask: Mask,
) -> None:
    """Count what the lanes did, as lockstep does, from the logs of their turns."""
    warps, slots = np.unique(mask.flat // WARP, return_inverse=True)
    lines, steps = machine.counters.lines, 0
    for loop, log in zip(text.loops, logs, strict=True):
        log.settle(None if loop.around < 0 else logs[loop.around])
        rows = int(log.rows.max(initial=-1)) + 1
        place = log.rows * len(warps) + slots[log.lanes]

        def together(which: np.ndarray, place: Any = place, rows: int = rows) -> np.ndarray:
            """Return, for each row and warp, whether it has one of the given turns."""
            here = np.zeros((rows, len(warps)), dtype=bool)
            here.reshape(-1)[place[which]] = True
            return here

        # the turns that execute the loop's own test, and those that execute each block
        turns = [log.codes >= 0, *(log.codes >> n & 1 != 0 for n in range(len(loop.blocks)))]
        groups = [together(which) for which in turns]
        counts = [int(np.count_nonzero(group)) for group in groups]
        for several, which, group, count in zip(
            [[loop.line], *loop.blocks], turns, groups, counts, strict=True
        ):
            steps += len(several) * int(np.count_nonzero(group.any(axis=1)))
            for line in several if count else ():
                lines[line].update(executed_warps=count, active_lanes=int(np.count_nonzero(which)))
        for line, block, body in [(loop.line, -1, 0), *loop.tests]:
            no = together(turns[block + 1] & ~turns[body + 1])
            if counts[block + 1]:
                both = int(np.count_nonzero(groups[body + 1] & no))
                lines[line].update(branches=counts[block + 1], divergent_branches=both)
    for (name, line, number), loaded in zip(text.sites, loads, strict=True):
        if loaded:
            found = _requests(np.array(loaded, np.int64), logs[number], slots, mask)
            machine.counters.requests(line, views[name].store, "load", *found)
    # by default the statements of each lane count, since each takes time; a ``max_steps`` that was
    # given counts the statements of all lanes together
    machine.steps(text.loops[0].line, steps * (mask.lanes if machine.launch.alone < 1 else 1))


def _requests(
    loads: np.ndarray, log: Log, slots: np.ndarray, mask: Mask
) -> tuple[np.ndarray, np.ndarray]:
    """Return the requests of a load, one for each row and warp: the element of each lane, and
    whether the lane takes part.
    """
    elements, turn = loads & ((1 << _ELEMENT_BITS) - 1), loads >> _ELEMENT_BITS
    lanes = log.lanes[turn]
    requests, which = np.unique(
        log.rows[turn] * (int(slots.max()) + 1) + slots[lanes], return_inverse=True
    )
    at = np.zeros((len(requests), WARP), dtype=np.int64)
    active = np.zeros(at.shape, dtype=bool)
    place = mask.flat[lanes] % WARP
    at[which, place] = elements
    active[which, place] = True
    return at, active


def scalar_loop_of(node: ast.While | ast.For, translator: Translator) -> ScalarLoop | None:
    """Return the loop in a form that a lane can run alone, or None if it has statements or calls
    that a lane cannot run alone.
    """
    try:
        return ScalarLoop(node, translator)
    except Refused:
        return None


def _is_fixed(node: ast.expr, translator: Translator) -> bool:
    """Return whether an expression has one value throughout a loop that makes no arrays: sizes,
    thread positions, and names from outside. Attributes of an element are not fixed, since each
    turn may have another element.
    """
    match node:
        case ast.Name(id=name):
            return name not in translator.local
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
            return name in translator.local
        case ast.Attribute(attr="real" | "imag"):  # of a number, which the loop may change
            return False
        case (
            ast.Attribute(value=ast.Name() | ast.Attribute(value=ast.Name()))
            | ast.Subscript(value=ast.Attribute(ast.Name(), "shape"), slice=ast.Constant())
        ):
            return True
    return False


def _is_plain(view: _memory.View) -> bool:
    """Return whether an array holds numbers that a lane can read as from a Python buffer or
    list.
    """
    return (
        view.offset is _memory.START
        and view.store.is_even
        and all(isinstance(extent, np.integer) for extent in view.shape)
        and view.dtype.kind in "ifb"
        and view.dtype.itemsize <= 8
        and view.dtype != np.float16
    )


def _lists(view: _memory.View, lanes: np.ndarray) -> Any:
    """Return the elements of an array for each lane: the lane's own ones, or those of memory that
    no thread writes.
    """
    data = view.store.data
    if view.store.space == "local":
        return data.reshape(len(data), -1)[:, lanes].T.tolist()
    return [data.data] * len(lanes)


def _in_lanes(mask: Mask, values: Any, dtype: np.dtype) -> np.ndarray:
    """Return an array with values in the lanes of a mask, and with zeros elsewhere."""
    full = np.zeros((mask.batch.blocks, mask.batch.width), dtype)
    full.reshape(-1)[mask.flat] = values
    return full
