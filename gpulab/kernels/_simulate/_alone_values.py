"""Write the expressions of a loop as Python for one lane: their text, their type, and how large an
integer may be.

Only what Python's numbers compute as numba's types do: signed integers, float64, truth values,
float32 that is moved or compared. No integer on the way leaves 64 bits as long as those in
variables are at most ``most``; whatever is loaded is asked, and calls ``bail``.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._memory import START, View

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
    # -------------------------------------------------------------------------------------------------------------------

    def _view(self, name: str) -> View:
        view = self.views.get(name)
        if (
            view is None
            or view.offset is not START
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
    # --------------------------------------------------------------------------------------------------------------

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
            f"{b} if ({a} := {left.text}) {beyond} ({b} := {right.text}) else {a} if {b} "
            f"{beyond} {a} else {alike}"
        )
        return Value(f"({text})", FLOAT)
