"""Write a loop as Python for one lane, where that is exactly what the lane does in lockstep."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.kernels.simulation import _types
from gpulab.kernels.simulation._memory import START, View

# -------------------------------------------------------------------------------------------------
# Write the expressions of a loop as Python for one lane: their text, their type, and how large an
# integer may be.
#
# Only what Python's numbers compute as numba's types do: signed integers, float64, truth values,
# float32 that is moved or compared. No integer on the way leaves 64 bits as long as those in
# variables are at most ``most``; whatever is loaded is asked, and calls ``bail``.


INT, FLOAT, SINGLE, BOOL = _types.INT, _types.FLOAT, _types.SINGLE, _types.BOOL
ELEMENT_BITS = 40  # the bits in which a logged access keeps its element
_EXACT = 1 << 53  # integers up to there are float64 as well
_COMPARISONS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


class Refused(Exception):  # noqa: N818 - no error: the loop runs in lockstep then
    """The loop is nothing that a lane can run alone."""


@dataclass
class Turns:
    """A loop: its line, its statements, and the bits of the tests in one turn."""

    node: ast.While | ast.For
    number: int
    parent: Turns | None
    bits: dict[int, int] = field(default_factory=dict)
    all_alike: bool = False  # whether no test sends lanes different ways

    @property
    def line(self) -> int:
        """Return the line of its test."""
        return self.node.test.lineno if isinstance(self.node, ast.While) else self.node.lineno

    def way(self, code: int) -> tuple[list[ast.stmt], list[tuple[ast.If, bool]]]:
        """Return the statements and the tests of a turn."""
        found: tuple[list[ast.stmt], list[tuple[ast.If, bool]]] = ([], [])
        self._walk(self.node.body, code, *found)
        return found

    def _walk(
        self,
        nodes: list[ast.stmt],
        code: int,
        done: list[ast.stmt],
        tests: list[tuple[ast.If, bool]],
    ) -> bool:
        for node in nodes:
            if isinstance(node, (ast.While, ast.For, ast.Pass)):
                continue
            done.append(node)
            if isinstance(node, (ast.Break, ast.Continue)):
                return False
            if isinstance(node, ast.If):
                taken = bool(code >> self.bits[id(node)] & 1)
                tests.append((node, taken))
                if not self._walk(node.body if taken else node.orelse, code, done, tests):
                    return False
        return True


@dataclass(frozen=True)
class Site:
    """A load from global memory in the text."""

    name: str
    line: int
    turns: Turns


@dataclass(frozen=True)
class Value:
    """An expression: its text, its type, and the largest absolute value of an integer."""

    text: str
    dtype: np.dtype
    bound: int = 0

    @property
    def is_integer(self) -> bool:
        """Return whether it is a signed integer."""
        return self.dtype.kind == "i"


class ValueWriter:
    """Writes expressions; ``types`` and ``views`` are what the names hold when the loop begins.

    ``fixed`` has what expressions are throughout the loop (a number, or the name of a parameter),
    ``largest`` what arrays hold at most.
    """

    def __init__(
        self,
        types: dict[str, np.dtype],
        views: dict[str, View],
        fixed: dict[int, Any],
        largest: dict[str, int],
        most: int,
    ) -> None:
        self.types, self.views, self.fixed, self.largest, self.most = (
            dict(types),
            views,
            fixed,
            largest,
            most,
        )
        self.known = set(types)  # names that surely have a value here
        self.lines: list[str] = []
        self.loops: list[Turns] = []
        self.sites: list[Site] = []
        self.arrays: list[str] = []
        self.stored: set[str] = set()
        self.assigned: list[str] = []
        self._turns: Turns | None = None
        self._temporaries = 0
        self._counts: dict[str, int] = {}

    # -- arrays

    def _view(self, name: str) -> View:
        view = self.views.get(name)
        if (
            view is None
            or view.offset is not START
            or not view.store.is_even
            or not all(isinstance(extent, np.integer) for extent in view.shape)
        ):
            raise Refused
        if view.dtype.kind not in "ifb" or view.dtype.itemsize > 8 or view.dtype == np.float16:
            raise Refused
        if name not in self.arrays:
            self.arrays.append(name)
        return view

    def _place(self, view: View, node: ast.Subscript) -> str:
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
            if not index.is_integer or isinstance(part, ast.UnaryOp):
                raise Refused
            name = self._temporary()
            text, first = (
                (index.text, index.text)
                if index.text.isidentifier()
                else (name, f"({name} := {index.text})")
            )
            # Beyond the end of all that is stored, Python says so itself.
            below = (
                "" if view.ndim == 1 and int(extent) == view.store.elements else f" < {int(extent)}"
            )
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
            assert self._turns is not None
            index, site, turns = self._temporary(), len(self.sites), self._turns
            self.sites.append(Site(name, node.lineno, turns))
            turn = (
                f"b{turns.number} + n{turns.number}"
                if isinstance(turns.node, ast.While)
                else f"len(L{turns.number})"
            )
            place = f"X{site}({turn} << {ELEMENT_BITS} | ({index} := {place})) or {index}"
        elif store.space not in ("local", "constant"):
            raise Refused
        text = f"A_{name}[{place}]"
        if view.dtype != INT:
            return Value(
                text,
                view.dtype,
                2 ** (8 * view.dtype.itemsize - 1) if view.dtype.kind == "i" else 1,
            )
        if self.largest.get(name, 1 << 63) <= self.most:
            return Value(text, INT, self.most)
        value = self._temporary()
        return Value(
            f"({value} if {-self.most} <= ({value} := {text}) <= {self.most} else bail())",
            INT,
            self.most,
        )

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    # -- expressions

    def _truth(self, node: ast.expr) -> str:
        return self.value(node).text  # a number is true where it is not 0, nan too, in both

    def value(self, node: ast.expr) -> Value:
        """Return an expression."""
        found = self._value(node)
        if found.is_integer and found.bound >= 2**63:
            raise Refused
        return found

    def _value(self, node: ast.expr) -> Value:
        if id(node) in self.fixed:
            return self._fixed(self.fixed[id(node)])
        write: Callable[[Any], Value] = getattr(
            self, f"_{type(node).__name__.lower()}", self._refuse
        )
        return write(node)

    def _refuse(self, node: ast.expr) -> Value:
        raise Refused

    def _constant(self, node: ast.Constant) -> Value:
        return (
            self._number(_types.constant(node.value))
            if isinstance(node.value, (bool, int, float))
            else self._refuse(node)
        )

    def _name(self, node: ast.Name) -> Value:
        if node.id not in self.known or node.id in self.views:
            raise Refused
        dtype = self.types[node.id]
        bound = (
            self.most + (self.most >> 3)
            if dtype == INT
            else 2 ** (8 * dtype.itemsize - 1)
            if dtype.kind == "i"
            else 1
        )
        return Value(f"v_{node.id}", dtype, bound)

    def _binop(self, node: ast.BinOp) -> Value:
        return self._operation(node.op, self.value(node.left), self.value(node.right))

    def _boolop(self, node: ast.BoolOp) -> Value:
        parts = [self.value(part) for part in node.values]
        if any(part.dtype != BOOL for part in parts):
            raise Refused
        return Value(
            "("
            + (" and " if isinstance(node.op, ast.And) else " or ").join(
                part.text for part in parts
            )
            + ")",
            BOOL,
            1,
        )

    def _ifexp(self, node: ast.IfExp) -> Value:
        yes, no = self.value(node.body), self.value(node.orelse)
        if yes.dtype != no.dtype:
            raise Refused
        return Value(
            f"({yes.text} if {self._truth(node.test)} else {no.text})",
            yes.dtype,
            max(yes.bound, no.bound),
        )

    def _fixed(self, found: Any) -> Value:
        return (
            Value(f"v_{found}", self.types[found], self.most)
            if isinstance(found, str)
            else self._number(found)
        )

    def _number(self, value: Any) -> Value:
        plain = value.item()
        if value.dtype not in (INT, FLOAT, SINGLE, BOOL) or (
            isinstance(plain, float) and not math.isfinite(plain)
        ):
            raise Refused
        return Value(f"({plain!r})", value.dtype, abs(int(plain)) if value.dtype == INT else 1)

    def _operation(self, op: ast.operator, left: Value, right: Value) -> Value:
        a, b = left, right
        if a.is_integer and b.is_integer:
            return self._of_integers(op, a, b)
        symbol = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}.get(type(op))
        kinds = {a.dtype.kind, b.dtype.kind}
        if symbol is None or not kinds <= {"i", "f"}:
            raise Refused
        if _types.arithmetic_type(a.dtype, b.dtype) != FLOAT or any(
            v.is_integer and v.bound > _EXACT for v in (a, b)
        ):
            raise Refused
        return Value(f"({a.text} {symbol} {b.text})", FLOAT)

    def _of_integers(self, op: ast.operator, a: Value, b: Value) -> Value:
        m, n = a.bound, b.bound
        written = b.text.strip("()")
        divisor = int(written) if written.isdigit() else 1
        quotient = m // divisor + 1 if divisor > 1 else m
        symbol, bound = {
            ast.Add: ("+", m + n),
            ast.Sub: ("-", m + n),
            ast.Mult: ("*", m * n),
            ast.FloorDiv: ("//", quotient),
            ast.Mod: ("%", n),
            ast.BitAnd: ("&", 2 * max(m, n) + 1),
            ast.BitOr: ("|", 2 * max(m, n) + 1),
            ast.BitXor: ("^", 2 * max(m, n) + 1),
            ast.RShift: (">>", m),
            ast.LShift: ("<<", m << min(n, 64)),
            ast.Div: ("/", 0),
        }.get(type(op), ("", 0))
        if not symbol or (
            isinstance(op, (ast.LShift, ast.RShift)) and not (written.isdigit() and n < 63)
        ):
            raise Refused
        if isinstance(op, ast.Div):
            if max(m, n) > _EXACT:
                raise Refused
            return Value(f"({a.text} / {b.text})", FLOAT)
        return Value(f"({a.text} {symbol} {b.text})", INT, bound)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        op, value = node.op, self.value(node.operand)
        if isinstance(op, ast.Not) and value.dtype.kind in "bif":
            return Value(f"(not {value.text})", BOOL, 1)
        if isinstance(op, ast.USub) and value.dtype in (INT, FLOAT):
            return Value(f"(-{value.text})", value.dtype, value.bound)
        if isinstance(op, ast.Invert) and value.dtype == INT:
            return Value(f"(~{value.text})", INT, value.bound + 1)
        raise Refused

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        if (
            any(type(op) not in _COMPARISONS for op in node.ops)
            or len({v.dtype.kind for v in values}) != 1
        ):
            raise Refused
        text = values[0].text
        for op, value in zip(node.ops, values[1:], strict=True):
            text += f" {_COMPARISONS[type(op)]} {value.text}"
        return Value(f"({text})", BOOL, 1)

    def _call(self, node: ast.Call) -> Value:
        if (
            not isinstance(node.func, ast.Name)
            or node.func.id not in ("min", "max", "abs")
            or node.keywords
            or not node.args
        ):
            raise Refused
        values = [self.value(argument) for argument in node.args]
        if len({value.dtype for value in values}) != 1 or values[0].dtype not in (INT, FLOAT):
            raise Refused
        if (len(values) == 1) != (node.func.id == "abs"):
            raise Refused
        if len(values) == 2 and values[0].dtype == FLOAT:
            return self._of_floats(node.func.id, *values)
        return Value(
            f"{node.func.id}({', '.join(v.text for v in values)})",
            values[0].dtype,
            max(v.bound for v in values),
        )

    def _of_floats(self, name: str, left: Value, right: Value) -> Value:
        """Return CUDA's fmin or fmax: the other one where one is nan, and -0.0 is below 0.0."""
        a, b = self._temporary(), self._temporary()
        beyond, zero = (">", f"-(-{a} - {b})") if name == "min" else ("<", f"{a} + {b}")
        alike = f"{b} if {a} != {a} else {a} if {a} or {b} != {b} else {zero}"
        text = (
            f"{b} if ({a} := {left.text}) {beyond} ({b} := {right.text}) else {a} if {b} {beyond} "
            f"{a} else {alike}"
        )
        return Value(f"({text})", FLOAT)


# -------------------------------------------------------------------------------------------------
# Write a loop as Python for one lane, where that is exactly what the lane does in lockstep.
#
# What could leave 64 bits is asked at each assignment. Whatever else comes up calls ``bail`` or is
# ``Refused`` here. The text keeps a log: for each turn of a loop a code of the ways that the lane
# took (0: the test failed; else bit 0, and a bit for each ``if`` that was true), for each access
# of global memory the element and the turn.


# Turns of a loop within others in one go, and turns of all lanes; the ways through one turn, as
# bits.
_MOST_TURNS, _MOST_LOGGED, _MOST_BITS = 1 << 12, 1 << 17, 40


class LaneWriter(ValueWriter):
    """Writes the function of one lane."""

    # -- statements

    def root(self, node: ast.While | ast.For, parameters: list[str]) -> str:
        """Return the text of ``make(bail, ...)``, which returns the lane's function."""
        self._counts = _counts(node)
        self._loop(node, 2)
        names = ", ".join(f"v_{name}" for name in self.types)
        logs = ", ".join(
            [
                f"L{loop.number}, P{loop.number}, S{loop.number}, N{loop.number}"
                for loop in self.loops
            ]
            + [f"X{n}" for n in range(len(self.sites))]
            + [f"A_{name}" for name in self.arrays]
        )
        fresh = (
            "; ".join(f"v_{name} = None" for name in self.types if name not in parameters) or "pass"
        )
        given = ", ".join(
            [
                *(f"v_{name}" for name in parameters),
                *(f"A_{n}" for n in self.arrays),
                "fuel",
                "items",
                "last",
            ]
        )
        shared = ", ".join(part for part in logs.split(", ") if not part.startswith("A_"))
        return "\n".join(
            [
                f"def make(bail, {shared}):",
                f" def lane({given}):",
                f"  {fresh}",
                "  more = False",
                *self.lines,
                f"  return more, ({names}{',' if names else ''})",
                " return lane",
            ]
        )

    def _line(self, indent: int, text: str) -> None:
        self.lines.append(" " * indent + text)

    def _loop(self, node: ast.While | ast.For, indent: int) -> None:
        if node.orelse:
            raise Refused
        outer, before = self._turns, set(self.known)
        turns = Turns(node, len(self.loops), outer)
        n = turns.number
        self._line(indent, f"b{n} = len(L{n})")
        if outer is not None:
            self._line(indent, f"if b{n} > {_MOST_LOGGED}: bail()")
            self._line(indent, f"S{n}(len(L{outer.number})); N{n}(b{n})")
            if isinstance(node, ast.For):  # its limits are of the turn around
                self._line(indent, f"items{n} = range({self._range(node)})")
                self._line(indent, f"if len(items{n}) > {_MOST_TURNS}: bail()")
        self.loops.append(turns)
        self._turns = turns
        if isinstance(node, ast.While):
            self._line(indent, f"for n{n} in range({'fuel' if outer is None else _MOST_TURNS}):")
            self._line(indent + 1, f"if not ({self._truth(node.test)}): P{n}(0); break")
        else:
            if not isinstance(node.target, ast.Name):
                raise Refused
            self._line(indent, f"for v_{node.target.id} in items{'' if outer is None else n}:")
            self._gives(node.target.id, INT)
        turns.all_alike = not any(isinstance(part, ast.If) for part in ast.walk(node))
        if not turns.all_alike:
            self._line(indent + 1, f"p{n} = 1")
        if self._block(node.body, indent + 1):
            self._line(indent + 1, self._log(turns))
        self._line(indent, "else:")
        if outer is not None:
            self._line(indent + 1, f"P{n}(0)" if isinstance(node, ast.For) else "bail()")
        elif isinstance(node, ast.While):
            self._line(indent + 1, "more = True")
        else:
            self._line(indent + 1, "if last: P0(0)")
            self._line(indent + 1, "else: more = True")
        self._turns, self.known = outer, before

    @staticmethod
    def _log(turns: Turns) -> str:
        return f"P{turns.number}({'1' if turns.all_alike else f'p{turns.number}'})"

    def _range(self, node: ast.For) -> str:
        if (
            not isinstance(node.iter, ast.Call)
            or not isinstance(node.iter.func, ast.Name)
            or node.iter.func.id != "range"
        ):
            raise Refused
        values = [self.value(argument) for argument in node.iter.args]
        if node.iter.keywords or not all(value.dtype == INT for value in values):
            raise Refused
        return ", ".join(value.text for value in values)

    def _block(self, nodes: list[ast.stmt], indent: int) -> bool:
        """Write statements; return whether a lane comes to their end."""
        for node in nodes:
            if isinstance(node, (ast.Break, ast.Continue)):
                assert self._turns is not None
                self._line(
                    indent,
                    f"{self._log(self._turns)}; "
                    f"{'break' if isinstance(node, ast.Break) else 'continue'}",
                )
                return False
            if isinstance(node, ast.If):
                if not self._if(node, indent):
                    return False
            elif isinstance(node, (ast.While, ast.For)):
                self._loop(node, indent)
            elif isinstance(node, ast.Pass):
                pass
            else:
                self._simple(node, indent)
        return True

    def _if(self, node: ast.If, indent: int) -> bool:
        assert self._turns is not None
        bit = self._turns.bits[id(node)] = len(self._turns.bits) + 1
        if bit > _MOST_BITS:
            raise Refused
        self._line(indent, f"if {self._truth(node.test)}:")
        self._line(indent + 1, f"p{self._turns.number} |= {1 << bit}")
        before = set(self.known)
        goes_on = self._block(node.body, indent + 1)
        yes, self.known = self.known, set(before)
        if node.orelse:
            self._line(indent, "else:")
            self._line(indent + 1, "pass")
            goes_on_too = self._block(node.orelse, indent + 1)
        else:
            goes_on_too = True
        no = self.known
        self.known = yes & no if goes_on and goes_on_too else yes if goes_on else no
        return goes_on or goes_on_too

    def _simple(self, node: ast.stmt, indent: int) -> None:
        if isinstance(node, ast.AugAssign):
            value = self._operation(
                node.op, self.value(self._as_load(node.target)), self.value(node.value)
            )
            self._store(node.target, value, indent)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._store(node.target, self.value(node.value), indent)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if not isinstance(target, ast.Tuple):
                self._store(target, self.value(node.value), indent)
                return
            if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != len(target.elts):
                raise Refused
            values = []
            for part in node.value.elts:
                value, name = self.value(part), self._temporary()
                self._line(indent, f"{name} = {value.text}")
                values.append(Value(name, value.dtype, value.bound))
            for part, value in zip(target.elts, values, strict=True):
                self._store(part, value, indent)
        else:
            raise Refused

    @staticmethod
    def _as_load(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            return ast.copy_location(ast.Name(node.id, ast.Load()), node)
        if isinstance(node, ast.Subscript):
            if any(isinstance(part, ast.Subscript) for part in ast.walk(node.slice)):
                raise Refused  # an index that loads is written twice here, and loads once
            return ast.copy_location(ast.Subscript(node.value, node.slice, ast.Load()), node)
        raise Refused

    def _store(self, target: ast.expr, value: Value, indent: int) -> None:
        if isinstance(target, ast.Name):
            self._gives(target.id, value.dtype)
            self._line(indent, f"v_{target.id} = {value.text}")
            if value.dtype == INT and value.bound > self.most and not self._only_counts(target.id):
                self._line(indent, f"if not {-self.most} <= v_{target.id} <= {self.most}: bail()")
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            view = self._view(target.value.id)
            if view.store.space != "local":
                raise Refused
            name = self._temporary()
            self._line(indent, f"{name} = {value.text}")
            dtype = view.dtype
            if value.dtype != dtype:
                if not (value.is_integer and dtype.kind == "i"):
                    raise Refused
                limits = np.iinfo(dtype)
                self._line(indent, f"if not {limits.min} <= {name} <= {limits.max}: bail()")
            self._line(indent, f"A_{target.value.id}[{self._place(view, target)}] = {name}")
            self.stored.add(target.value.id)
        else:
            raise Refused

    def _gives(self, name: str, dtype: np.dtype) -> None:
        if name in self.views or self.types.setdefault(name, dtype) != dtype:
            raise Refused  # lockstep would change the type of all lanes
        self.known.add(name)
        if name not in self.assigned:
            self.assigned.append(name)

    def _only_counts(self, name: str) -> bool:
        """Return whether a variable changes by so little in each turn that it need not be asked how
        large it is.
        """
        return (
            name in self._counts
            and self._counts[name] * (_MOST_LOGGED + _MOST_TURNS) <= self.most >> 3
        )


def _counts(node: ast.AST) -> dict[str, int]:
    """Return the variables that a loop only adds constants to, with the sum of these."""
    found: dict[str, int] = {}
    counted: set[int] = set()
    for part in ast.walk(node):
        match part:
            case ast.AugAssign(
                target=ast.Name(id=name),
                op=ast.Add() | ast.Sub(),
                value=ast.Constant(value=int(amount)),
            ):
                counted.add(id(part.target))
                found[name] = found.get(name, 0) + abs(amount)
    stored = {
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
    others = {part.id for part in stored if id(part) not in counted}
    return {name: amount for name, amount in found.items() if name not in others}
