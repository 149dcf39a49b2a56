"""Run the lanes of a loop one after the other when only few are active: NumPy's overhead for each
statement then costs more than the lanes.

If lanes only compute, read memory that is not written, and use arrays of their own, each gets the
same values as in lockstep. The loop is written as a Python function for one lane (``LaneWriter``);
the counts of lockstep follow from the iterations that each lane took (``_count``). Arithmetic in
which Python differs from numba, and everything that would be a finding, an error or a trace, is
left to lockstep.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels.simulation import _memory, _types, source
from gpulab.kernels.simulation._geometry import WARP, Mask, union
from gpulab.kernels.simulation._machine import Expression, Frame, Machine

if TYPE_CHECKING:
    from gpulab.kernels.simulation._expressions import Translator

INT, FLOAT, SINGLE, BOOL = _types.INT, _types.FLOAT, _types.SINGLE, _types.BOOL
# Lanes up to which Python, one lane after the other, is faster than NumPy (measured: about 100),
# and the turns in lockstep before that, since a short loop is not worth the change.
MOST_LANES, _TURNS_BEFORE, _TURNS_BEFORE_NESTED = 96, 3, 0
# Turns in one go: what is logged of them has to fit into memory, and work without end must be
# noticed. Turns of a loop within others in one go, and turns of all lanes.
_FUEL, _MOST_TURNS, _MOST_LOGGED = 1 << 11, 1 << 12, 1 << 17
_ELEMENT_BITS = 40  # the bits in which a logged access keeps its element
_PROGRAMS_KEPT, _TRIES = 32, 4
# Turns of a lane that are worth the change, and the most turns in lockstep before it is tried again
# (measured: it costs some 10).
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
_CALLS = [source.Intrinsic(name) for name in ("min", "max", "abs", "range")]
_SYMBOLS: dict[type, str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"},
    **{ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>"},
}


class Refused(Exception):  # noqa: N818 - no error: the loop runs in lockstep then
    """The loop, or what a lane came to in it, is nothing that a lane can run alone."""


def _bail() -> Any:
    raise Refused


# -------------------------------------------------------------------------------------------------
# Write a loop as Python for one lane, where that is exactly what the lane does in lockstep.
#
# Only what Python's numbers compute as numba's types do: signed integers, float64, truth values,
# float32 that is moved or compared. Python's integers do not end at 64 bits. Their low bits are
# right throughout, so that they are cut only where more would be seen: where they are assigned,
# compared, divided, or turned into a float.
#
# The text keeps a log: for each turn of a loop a code, in which each bit is a block of statements
# that the lane executed (0: the test failed); for each access of global memory the element and the
# turn.


@dataclass
class LoopText:
    """A loop in the text: the lines of each block of statements that are executed together, of each
    ``if`` its line, its block and the first block of its body, and how many times a ``break`` or a
    ``continue`` of it was written.
    """

    line: int
    number: int
    parent: LoopText | None
    leaves: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    tests: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Value:
    """An expression: its text, its type, and whether an integer surely is within 64 bits."""

    text: str
    dtype: np.dtype
    is_exact: bool = True


class LaneWriter:
    """Writes the function of one lane; ``types`` and ``views`` are what the names hold when the
    loop begins.

    ``fixed`` has what expressions are throughout the loop: a number, or the name of a parameter.
    """

    def __init__(
        self, types: dict[str, np.dtype], views: dict[str, _memory.View], fixed: dict[int, Any]
    ) -> None:
        self.parameters, self.types = list(types), dict(types)
        self._views, self._fixed_values = views, fixed
        self._known = set(types)  # names that surely have a value here
        self._lines: list[str] = []
        self.loops: list[LoopText] = []
        self.sites: list[tuple[str, int, int]] = []  # loads from global memory: array, line, loop
        self.arrays: list[str] = []
        self.stored: set[str] = set()
        self.assigned: list[str] = []
        self._loop: Any = None  # the one that is written, a ``LoopText``
        self._temporaries = 0

    def make(self, node: ast.While | ast.For) -> Callable[..., Any]:
        """Return what returns the lane's function for ``bail`` and the logs. The function returns
        whether there are more turns, and what the variables that it assigned hold.
        """
        self._loop_text(node, 2)
        logs = [
            f" L{n}, P{n}, S{n}, N{n} = logs[{n}].codes, logs[{n}].codes.append, "
            f"logs[{n}].around.append, logs[{n}].starts.append"
            for n in range(len(self.loops))
        ]
        logs += [f" X{n} = loads[{n}].append" for n in range(len(self.sites))]
        given = [f"v_{name}" for name in self.parameters] + [f"A_{name}" for name in self.arrays]
        fresh = [f"v_{name} = " for name in self.types if name not in self.parameters]
        lines = [
            "def make(bail, logs, loads):",
            *logs,
            f" def lane({', '.join([*given, 'items'])}):",
            f"  {''.join(fresh)}None",
            "  more = False",
            *self._lines,
            f"  return {', '.join(['more', *(f'v_{name}' for name in self.assigned)])},",
            " return lane",
        ]
        names: dict[str, Any] = {}
        exec(compile("\n".join(lines), f"<{node.lineno}>", "exec"), names)
        made: Callable[..., Any] = names["make"]
        return made

    def _line(self, indent: int, text: str) -> None:
        self._lines.append(" " * indent + text)

    # -- statements

    def _loop_text(self, node: ast.While | ast.For, indent: int) -> None:
        if node.orelse:
            raise Refused
        outer, before = self._loop, set(self._known)
        loop = LoopText(getattr(node, "test", node).lineno, len(self.loops), outer)
        n, items, turns = loop.number, "items", _MOST_TURNS
        if outer is None:
            turns = _FUEL
        else:
            self._line(indent, f"if len(L{n}) > {_MOST_LOGGED}: bail()")
            self._line(indent, f"S{n}(len(L{outer.number})); N{n}(len(L{n}))")
            if isinstance(node, ast.For):  # its limits are of the turn around
                items = f"items{n}"
                self._line(indent, f"{items} = range({self._range(node)})")
                self._line(indent, f"if len({items}) > {turns}: bail()")
        self.loops.append(loop)
        self._loop = loop
        if isinstance(node, ast.While):
            self._line(indent, f"for _ in range({turns}):")
            self._line(indent + 1, f"if not ({self._truth(node.test)}): P{n}(0); break")
        elif isinstance(node.target, ast.Name):
            self._line(indent, f"for v_{node.target.id} in {items}[:{turns}]:")
            self._gives(node.target.id, INT)
        else:
            raise Refused
        if self._block(node.body, indent + 1):
            self._line(indent + 1, f"P{n}(p{n})")
        more = "bail()" if outer else "more = True"
        if isinstance(node, ast.For):
            more = f"if len({items}) <= {turns}: P{n}(0)\n{' ' * indent} else: {more}"
        self._line(indent, "else:")
        self._line(indent + 1, more)
        self._loop, self._known = outer, before

    def _range(self, node: ast.For) -> str:
        match node.iter:
            case ast.Call(func=ast.Name(id="range"), args=limits, keywords=[]):
                values = [self.value(limit) for limit in limits]
                if all(value.dtype == INT for value in values):
                    return ", ".join(value.text for value in values)
        raise Refused

    def _begin(self, indent: int) -> list[int]:
        """Begin a block; return the list of its lines."""
        blocks: list[list[int]] = self._loop.blocks
        self._line(indent, f"p{self._loop.number} {'|' if blocks else ''}= {1 << len(blocks)}")
        blocks.append([])
        return blocks[-1]

    def _block(self, nodes: list[ast.stmt], indent: int) -> bool:
        """Write statements; return whether a lane comes to their end."""
        loop, lines = self._loop, self._begin(indent)
        for node in (node for node in nodes if not isinstance(node, ast.Pass)):
            if isinstance(node, (ast.While, ast.For)):
                self._loop_text(node, indent)
                continue
            lines.append(getattr(node, "test", node).lineno)
            if isinstance(node, (ast.Break, ast.Continue)):
                leave = type(node).__name__.lower()
                self._line(indent, f"P{loop.number}(p{loop.number}); {leave}")
                loop.leaves += 1
                return False
            if isinstance(node, ast.If):
                leaves = loop.leaves
                block = next(n for n, one in enumerate(loop.blocks) if one is lines)
                if not any(self._if(node, indent, block)):
                    return False
                if loop.leaves > leaves:  # what follows is not for all that came to the test
                    lines = self._begin(indent)
            else:
                self._simple(node, indent)
        return True

    def _if(self, node: ast.If, indent: int, block: int) -> tuple[bool, bool]:
        """Write both branches; return which of them a lane comes to the end of."""
        self._line(indent, f"if {self._truth(node.test)}:")
        self._loop.tests.append((node.test.lineno, block, len(self._loop.blocks)))
        before = set(self._known)
        yes_goes_on = self._block(node.body, indent + 1)
        yes, self._known = self._known, before
        no_goes_on = True
        if node.orelse:
            self._line(indent, "else:")
            no_goes_on = self._block(node.orelse, indent + 1)
        if yes_goes_on:
            self._known = yes & self._known if no_goes_on else yes
        return yes_goes_on, no_goes_on

    def _simple(self, node: ast.stmt, indent: int) -> None:
        match node:
            case ast.AugAssign(target=target, op=op, value=amount):
                inner = [part for part in ast.walk(target) if isinstance(part, ast.Subscript)]
                if len(inner) > 1:
                    raise Refused  # the index would load twice
                new = self._operation(op, self.value(target), self.value(amount))
                self._store(target, new, indent)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=parts)):
                if len(parts) != len(targets):
                    raise Refused
                values = [self._kept(self.value(part), indent) for part in parts]
                for one, value in zip(targets, values, strict=True):
                    self._store(one, value, indent)
            case (
                ast.Assign(targets=[target], value=given)
                | ast.AnnAssign(target=target, value=ast.expr() as given)
            ):
                self._store(target, self.value(given), indent)
            case _:
                raise Refused

    def _store(self, target: ast.expr, value: Value, indent: int) -> None:
        match target:
            case ast.Name(id=name):
                self._gives(name, value.dtype)
                self._line(indent, f"v_{name} = {self._within(value, value.dtype)}")
            case ast.Subscript(value=ast.Name(id=array)):
                view = self._view(array)
                if view.store.space != "local":
                    raise Refused
                kept = self._kept(Value(self._within(value, view.dtype), view.dtype), indent)
                self._line(indent, f"A_{array}[{self._place(view, target)}] = {kept.text}")
                self.stored.add(array)
            case _:
                raise Refused

    def _gives(self, name: str, dtype: np.dtype) -> None:
        if name in self._views or self.types.setdefault(name, dtype) != dtype:
            raise Refused  # lockstep would change the type of all lanes
        self._known.add(name)
        if name not in self.assigned:
            self.assigned.append(name)

    def _kept(self, value: Value, indent: int) -> Value:
        """Write a line that gives a value a name; return that."""
        name, first = self._named(value.text)
        self._line(indent, first)
        return Value(name, value.dtype, value.is_exact)

    def _within(self, value: Value, dtype: np.dtype) -> str:
        """Return the text of a value in a type: of an integer beyond its range the low bits."""
        if value.dtype == dtype and value.is_exact:
            return value.text
        if not value.dtype.kind == dtype.kind == "i":
            raise Refused
        limits, (name, first) = np.iinfo(dtype), self._named(value.text)
        low = f"({name} + {-limits.min} & {limits.max - limits.min}) - {-limits.min}"
        return f"({name} if {limits.min} <= {first} <= {limits.max} else {low})"

    def _exact(self, node: ast.expr) -> Value:
        """Return an expression whose integer is within 64 bits."""
        value = self.value(node)
        return value if value.is_exact else Value(self._within(value, INT), INT)

    # -- arrays

    def _view(self, name: str) -> _memory.View:
        view = self._views.get(name)
        if (
            view is None
            or view.offset is not _memory.START
            or not view.store.is_even
            or not all(isinstance(extent, np.integer) for extent in view.shape)
            or view.dtype.kind not in "ifb"
            or view.dtype.itemsize > 8
            or view.dtype == np.float16
        ):
            raise Refused
        if name not in self.arrays:
            self.arrays.append(name)
        return view

    def _place(self, view: _memory.View, node: ast.Subscript) -> str:
        """Return the text of the element that an index means; out of bounds is a finding, which
        lockstep makes.
        """
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) != view.ndim:
            raise Refused
        found = []
        for part, extent, stride in zip(parts, view.shape, view.strides, strict=True):
            index = self.value(part)
            # a[-1] is counted from the end
            if index.dtype.kind != "i" or isinstance(part, ast.UnaryOp):
                raise Refused
            text = first = index.text
            if not text.isidentifier():
                text, first = self._named(first)
            # Beyond the end of all that is stored, Python says so itself.
            is_all = view.ndim == 1 and int(extent) == view.store.elements
            below = "" if is_all else f" < {int(extent)}"
            text = f"({text} if 0 <= {first}{below} else bail())"
            found.append(text if stride == 1 else f"{text} * {stride}")
        return " + ".join(found)

    def _subscript(self, node: ast.Subscript) -> Value:
        if not isinstance(node.value, ast.Name):
            raise Refused
        name = node.value.id
        view = self._view(name)
        store, place = view.store, self._place(view, node)
        if store.space == "global" and store.tracker is None:
            number, (index, first) = self._loop.number, self._named(place)
            place = f"X{len(self.sites)}(len(L{number}) << {_ELEMENT_BITS} | {first}) or {index}"
            self.sites.append((name, node.lineno, number))
        elif store.space not in ("local", "constant"):
            raise Refused
        return Value(f"A_{name}[{place}]", view.dtype)

    def _named(self, text: str) -> tuple[str, str]:
        """Return a name for what a text gives, and the text that gives it that name."""
        self._temporaries += 1
        name = f"t{self._temporaries}"
        return name, f"({name} := {text})"

    # -- expressions

    def _truth(self, node: ast.expr) -> str:
        return self._exact(node).text  # a number is true where it is not 0, nan too, in both

    def value(self, node: ast.expr) -> Value:
        """Return an expression."""
        if id(node) in self._fixed_values:
            held = self._fixed_values[id(node)]
            return Value(f"v_{held}", self.types[held]) if isinstance(held, str) else _number(held)
        write = getattr(self, f"_{type(node).__name__.lower()}", None)
        if write is None:
            raise Refused
        found: Value = write(node)
        return found

    def _constant(self, node: ast.Constant) -> Value:
        return _number(_types.constant(node.value))

    def _name(self, node: ast.Name) -> Value:
        if node.id not in self._known or node.id in self._views:
            raise Refused
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
        symbol, integers = _SYMBOLS.get(type(op), ""), a.dtype.kind == "i" and b.dtype.kind == "i"
        written = b.text.strip("()")
        if symbol in (">>", "<<") and not (written.isdigit() and int(written) < 63):
            raise Refused
        if not integers or symbol in ("/", "//", "%", ">>"):
            a, b = (Value(self._within(v, v.dtype), v.dtype) for v in (a, b))
        text = f"({a.text} {symbol} {b.text})"
        if integers and symbol and symbol != "/":
            grows = symbol in ("+", "-", "*", "<<") or (symbol == "//" and not written.isdigit())
            return Value(text, INT, a.is_exact and b.is_exact and not grows)
        # a float64, into which both turn an integer alike
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
        values = [self._exact(part) for part in (node.left, *node.comparators)]
        symbols = [_SYMBOLS.get(type(op), "") for op in node.ops]
        if not all(symbols) or len({value.dtype.kind for value in values}) != 1:
            raise Refused
        rest = zip(symbols, values[1:], strict=True)
        text = "".join(f" {symbol} {one.text}" for symbol, one in rest)
        return Value(f"({values[0].text}{text})", BOOL)

    def _call(self, node: ast.Call) -> Value:
        name = getattr(node.func, "id", "")
        if name not in ("min", "max", "abs") or node.keywords or not node.args:
            raise Refused
        values = [self._exact(argument) for argument in node.args]
        dtype = values[0].dtype
        if {value.dtype for value in values} != {dtype} or dtype not in (INT, FLOAT):
            raise Refused
        if (len(values) == 1) != (name == "abs"):
            raise Refused
        if len(values) == 2 and dtype == FLOAT:
            return self._of_floats(name, *values)
        text = f"{name}({', '.join(value.text for value in values)})"
        return Value(text, dtype, name != "abs")

    def _of_floats(self, name: str, left: Value, right: Value) -> Value:
        """Return CUDA's fmin or fmax: the other one where one is nan, and -0.0 is below 0.0."""
        (a, first), (b, second) = self._named(left.text), self._named(right.text)
        beyond, zero = (">", f"-(-{a} - {b})") if name == "min" else ("<", f"{a} + {b}")
        alike = f"{b} if {a} != {a} else {a} if {a} or {b} != {b} else {zero}"
        return Value(
            f"({b} if {first} {beyond} {second} else {a} if {b} {beyond} {a} else {alike})", FLOAT
        )


def _number(value: Any) -> Value:
    """Return a number that is known."""
    plain = value.item()
    is_finite = not isinstance(plain, float) or math.isfinite(plain)
    if value.dtype not in (INT, FLOAT, SINGLE, BOOL) or not is_finite:
        raise Refused
    return Value(f"({plain!r})", value.dtype)


# -------------------------------------------------------------------------------------------------
# The counts of lockstep for a loop that each lane ran alone, from the log of its turns.
#
# Lanes of a warp execute a statement together if they are in the same turn of every enclosing loop.
# Turns are mapped to rows: those of the outermost loop are numbered consecutively, and each has as
# many rows for its inner loops as the lane with the most turns.


@dataclass
class Log:
    """The turns of one loop: of each its code; for each run of the loop where it began, and in
    which turn of the loop around. ``rows`` and ``lanes`` (places in the list of lanes) follow.
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
    mask: Mask,
    variables: dict[str, Any],
) -> None:
    """Count what the lanes did, unless that would be too many statements."""
    warps, slots = np.unique(mask.flat // WARP, return_inverse=True)
    found: list[tuple[int, str, int]] = []
    steps = 0
    for loop, log in zip(text.loops, logs, strict=True):
        log.settle(None if loop.parent is None else logs[loop.parent.number])
        if len(log.codes):
            steps += _count_loop(loop, log, len(warps), slots[log.lanes], found)
    launch = machine.launch
    if launch.steps + steps > launch.max_steps:
        raise Refused
    for line, name, count in found:
        if count:  # a line that no lane came to has none
            machine.counters.lines[line][name] += count
    for (name, line, number), loaded in zip(text.sites, loads, strict=True):
        if loaded:
            elements, active = _requests(np.array(loaded, np.int64), logs[number], slots, mask)
            store = variables[name].store
            machine.counters.requests(line, store, "load", elements, active)
    machine.steps(text.loops[0].line, steps)


def _count_loop(
    loop: LoopText, log: Log, warps: int, slots: np.ndarray, found: list[tuple[int, str, int]]
) -> int:
    """Add the counts of a loop's lines to those that were found; return how many statements warps
    executed one after the other. ``slots`` has the warp of each turn.
    """
    rows = int(log.rows.max()) + 1
    place = log.rows * warps + slots

    def together(which: np.ndarray) -> np.ndarray:
        """Return in which rows which warps have one of some turns."""
        here = np.zeros(rows * warps, dtype=bool)
        here[place[which]] = True
        return here

    # of the loop's own test, and of each block, the turns that have it
    turns = [np.ones(len(log.codes), dtype=bool)]
    turns += [log.codes >> bit & 1 != 0 for bit in range(len(loop.blocks))]
    groups = [together(which) for which in turns]
    steps = 0
    for lines, which, here in zip([[loop.line], *loop.blocks], turns, groups, strict=True):
        executed, lanes = int(np.count_nonzero(here)), int(np.count_nonzero(which))
        steps += len(lines) * int(np.count_nonzero(here.reshape(rows, -1).any(axis=1)))
        for line in lines:
            found += [(line, "executed_warps", executed), (line, "active_lanes", lanes)]
    for line, block, body in [(loop.line, -1, 0), *loop.tests]:
        asked, yes = groups[block + 1], groups[body + 1]
        no = together(turns[block + 1] & ~turns[body + 1])
        found += [
            (line, "branches", int(np.count_nonzero(asked))),
            (line, "divergent_branches", int(np.count_nonzero(yes & no))),
        ]
    return steps


def _requests(
    loads: np.ndarray, log: Log, slots: np.ndarray, mask: Mask
) -> tuple[np.ndarray, np.ndarray]:
    """Return the requests of a load, one for each row and warp: of each lane its element, and
    whether it takes part.
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


# -------------------------------------------------------------------------------------------------
# A loop that lanes may run alone: what its names hold, its turns, and what the lanes leave.


class ScalarLoop:
    """A loop that lanes may run alone."""

    def __init__(self, node: ast.While | ast.For, translator: Translator) -> None:
        self.node, self._translator = node, translator
        self._names: set[str] = set()
        self._owners: set[str] = set()  # of the attributes among what is fixed
        self._fixed: dict[int, tuple[str, Expression]] = {}
        self._look(node)
        # which lanes have given a variable that is unsure a value is seen in lockstep
        if not translator.joins.unsure.isdisjoint(ast.walk(node)):
            raise Refused
        stored = _types.names_of(node, ast.Store)
        # what it gives a value, and some read after it may find without one
        self._followed = translator.followed.intersection(part.id for part in stored)
        # assignments in it that meet others
        self._joined = [part for part in stored if part in translator.joins.of]
        loops = [part for part in ast.walk(node) if isinstance(part, (ast.While, ast.For))]
        self.turns_before = _TURNS_BEFORE_NESTED if len(loops) > 1 else _TURNS_BEFORE
        self._waited = self._wait = 0
        # by what the names hold: what was written for it, and what makes the lane's function
        self._texts: dict[Any, tuple[LaneWriter, Callable[..., Any]] | None] = {}

    def _look(self, part: ast.AST) -> None:
        """Note the names in a part of the loop, and what is fixed; refuse statements and calls that
        a lane cannot run alone.
        """
        if isinstance(part, ast.expr) and _is_fixed(part, self._translator):
            self._fixed[id(part)] = f"0{len(self._fixed)}", self._translator.expression(part)
            self._owners.update(one.id for one in _types.names_of(part, ast.Load))
            return
        parts = [*ast.iter_child_nodes(part)]
        if isinstance(part, ast.stmt) and not isinstance(part, _SIMPLE):
            raise Refused
        if isinstance(part, ast.Call):
            found = self._translator.static(part.func)
            if part.keywords or found not in _CALLS:
                raise Refused
            parts.remove(part.func)
        if isinstance(part, ast.Name):
            self._names.add(part.id)
        for inner in parts:
            self._look(inner)

    def begins(self, items: _types.Items | None) -> ScalarLoop | None:
        """Note that the loop begins; return it if a lane can run it alone: of ``for`` over ranges
        of int64.
        """
        self._waited = 0
        return self if items is None or items.limits is not None else None

    def suits(self, frame: Frame, mask: Mask) -> bool:
        """Return whether lanes are few, and their variables would be different in each block in
        lockstep as well.

        Where few turns were left the last time, some more are left to lockstep first: the change
        costs as much as a few turns.
        """
        one_block = mask.batch.blocks == 1 or (
            mask.array is not None and len(mask.array) > 1 and mask is not frame.live
        )
        if not one_block or mask.lanes > MOST_LANES:
            return False
        self._waited += 1
        return self._waited > self._wait

    def run(
        self, frame: Frame, mask: Mask, items: _types.Items | None, turn: int
    ) -> tuple[Mask | None, int]:
        """Run the loop, of which a number of turns is done, in the lanes of a mask; return the
        lanes that must go on in lockstep, and after how many more turns.
        """
        launch, done = frame.machine.launch, 0
        before: dict[str, Any] = {}
        failures = launch.left_to_lockstep
        if failures.get(id(self), 0) >= _TRIES or launch.traced_block is not None:
            return mask, 0
        each: list[Any] = [None] * mask.lanes
        if items is not None and items.limits is not None:
            limits = (mask.selected(limit).tolist() for limit in items.limits)
            each = [range(*one)[turn:] for one in zip(*limits, strict=True)]
        going: Mask | None = mask
        while going is not None:
            try:
                more = self._turns(frame, going, each)
            except (Refused, TypeError, IndexError, ArithmeticError, ValueError):
                failures[id(self)] = failures.get(id(self), 0) + 1
                return going, done
            failures.pop(id(self), None)
            done += _FUEL
            now = {name: frame.variables.get(name) for name in self._names}
            if all(more) and is_unchanged(before, now):
                return going, done  # it waits, which is seen in lockstep
            before = now
            each = [one and one[_FUEL:] for one, stays in zip(each, more, strict=True) if stays]
            going = _those(going, more)
        return None, done

    def _turns(self, frame: Frame, mask: Mask, each: list[Any]) -> list[bool]:
        """Run so many turns; return which lanes go on."""
        lanes, variables = mask.flat, frame.variables
        known = self._followed & variables.keys()
        if any(mask.without(frame.given.get(name)) is not None for name in known):
            # some of the lanes have a value of others: what they give themselves would not be told
            # from it
            raise Refused
        text, make, columns = self._bound(frame, mask)
        logs = [Log([], [], []) for _ in text.loops]
        loads: list[list[int]] = [[] for _ in text.sites]
        lane = make(_bail, logs, loads)
        arrays = [_lists(variables[name], lanes) for name in text.arrays]
        left = []
        for given in zip(*columns, *arrays, each, strict=True):
            logs[0].starts.append(len(logs[0].codes))
            left.append(lane(*given))
        turns = sum(len(log.codes) for log in logs)
        _count(frame.machine, text, logs, loads, mask, variables)
        more, *values = map(list, zip(*left, strict=True))
        for name, held in zip(text.assigned, values, strict=True):
            _keep(frame, mask, name, text.types[name], held)
            if name in self._followed:
                there = _those(mask, [value is not None for value in held])
                frame.given[name] = union(frame.given.get(name), there)
        for name, lists in zip(text.arrays, arrays, strict=True):
            if name in text.stored:
                data = variables[name].store.data
                data.reshape(len(data), -1)[:, lanes] = np.array(lists, dtype=data.dtype).T
        # whether a lane came to it or not: numba's types do not hang on that
        for joined in self._joined:
            if joined.id in text.types:
                frame.types.note(joined, np.zeros((), text.types[joined.id]))
        short = turns < _WORTH_TURNS * len(lanes)
        self._wait = min(2 * self._wait + _WORTH_TURNS // 2, _LONGEST_WAIT) if short else 0
        return more

    def _bound(
        self, frame: Frame, mask: Mask
    ) -> tuple[LaneWriter, Callable[..., Any], list[list[Any]]]:
        """Return the text for what the names hold now, what makes the lane's function, and the
        values of its parameters in each lane.
        """
        held = {name: frame.variables.get(name) for name in self._names}
        views = {name: one for name, one in held.items() if isinstance(one, _memory.View)}
        values = {
            name: one for name, one in held.items() if isinstance(one, (np.ndarray, np.generic))
        }
        owners = [frame.variables.get(name) for name in self._owners]
        local = [view.store for view in views.values() if view.store.space == "local"]
        if (
            len(views) + len(values) < sum(one is not None for one in held.values())
            or len(set(map(id, local))) != len(local)  # two names of one array
            or any(
                name in values and values[name].dtype != dtype
                for (name, _), dtype in frame.types.mixed.items()
            )
            # attributes that may be fields, which are read from memory each time
            or any(getattr(owner, "dtype", BOOL).names for owner in owners if owner is not None)
        ):
            raise Refused
        fixed: dict[int, Any] = {}
        for number, (name, expression) in self._fixed.items():
            fixed[number] = one = expression(frame, mask)
            if not isinstance(one, (np.ndarray, np.generic)):
                raise Refused
            if one.ndim:
                fixed[number], values[name] = name, one
        types = {name: one.dtype for name, one in values.items()}
        arrays = [
            (name, view.store.space, view.store.tracker is None, view.dtype, view.shape)
            for name, view in views.items()
        ]
        key = (
            *types.items(),
            *arrays,
            *((view.strides, view.offset is _memory.START) for view in views.values()),
            *(one if isinstance(one, str) else (one.dtype, one.item()) for one in fixed.values()),
        )
        if key not in self._texts:
            if len(self._texts) >= _PROGRAMS_KEPT:
                self._texts.clear()
            self._texts[key] = None
            writer = LaneWriter(types, views, fixed)
            self._texts[key] = writer, writer.make(self.node)
        found = self._texts[key]
        if found is None:
            raise Refused
        columns = [mask.selected(values[name]).tolist() for name in found[0].parameters]
        return *found, columns


def _keep(frame: Frame, mask: Mask, name: str, dtype: np.dtype, held: list[Any]) -> None:
    """Give a variable what the lanes left there."""
    if all(value is None for value in held):
        return
    batch = mask.batch
    old = frame.variables.get(name, np.zeros((), dtype))
    # else reshape(-1) may be a copy
    full = np.array(np.broadcast_to(old, (batch.blocks, batch.width)), order="C")
    full.reshape(-1)[mask.flat] = [0 if value is None else value for value in held]
    frame.variables[name] = full


def scalar_loop_of(node: ast.While | ast.For, translator: Translator) -> ScalarLoop | None:
    """Return the loop for lanes alone, or None where its statements or calls are none that a lane
    can run alone.
    """
    try:
        return ScalarLoop(node, translator)
    except Refused:
        return None


def is_unchanged(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether variables hold what they held before."""
    return before.keys() == now.keys() and all(
        now[name] is value
        or (isinstance(value, (np.ndarray, np.generic)) and np.array_equal(value, now[name]))
        for name, value in before.items()
    )


def _is_fixed(node: ast.expr, translator: Translator) -> bool:
    """Return whether an expression has one value throughout a loop that makes no arrays: sizes,
    places, and names from outside; not what belongs to an element, which may be another one in
    each turn.
    """
    match node:
        case ast.Name(id=name):
            return name not in translator.local
        case ast.Attribute(attr=attribute):
            # of a number, which the loop may change
            return attribute not in ("real", "imag") and _is_of_a_name(node)
        case ast.Subscript(value=ast.Attribute(attr="shape") as shape, slice=ast.Constant()):
            return _is_of_a_name(shape)
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
            return name in translator.local
    return False


def _is_of_a_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _lists(view: _memory.View, lanes: np.ndarray) -> Any:
    """Return what an array holds, for each lane: its own elements, or those of memory that nobody
    writes.
    """
    data = view.store.data
    if view.store.space == "local":
        return data.reshape(len(data), -1)[:, lanes].T.tolist()
    return [data.data] * len(lanes)


def _those(mask: Mask, which: list[bool]) -> Mask | None:
    """Return some of the lanes."""
    array = np.zeros((mask.batch.blocks, mask.batch.width), dtype=bool)
    array.reshape(-1)[mask.flat] = which
    return mask.split(array)[0]
