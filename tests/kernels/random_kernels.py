"""Kernels made by hypothesis: random expressions and control flow over a few variables, each thread with slots of its own.

Whole numbers stay within 2**20 in variables and within 2**53 on the way, so that Python's integers and 64-bit ones agree; floats see only
operations that IEEE 754 rounds exactly. So results must be equal, not close.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

_SMALL = 1 << 20
_LARGEST = 1 << 50
_INTS = ("a", "b", "c", "d")
_FLOATS = ("f", "g")
_HEADER = "import math\nfrom gpulab.kernels import cuda, float64, int64\n"

Draw = Callable[[st.SearchStrategy], Any]


class Writer:
    """Writes one function; ``budget`` is how many statements it may still have."""

    def __init__(self, draw: Draw, helpers: tuple[str, ...], is_kernel: bool, budget: int) -> None:
        self.draw, self.helpers, self.is_kernel, self.budget = draw, helpers, is_kernel, budget
        self.lines: list[str] = []
        self.loop_names = 0

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices; hypothesis shrinks to the first."""
        return choices[self.draw(st.integers(0, len(choices) - 1))]

    # -- whole numbers: text and the largest absolute value ----------------------------------------------------------------------------

    def integer(self, depth: int) -> tuple[str, int]:
        """Return an expression of a whole number and its bound."""
        if depth <= 0:
            return self.pick(self._constant, self._variable, self._place, self._load)()
        made, bound = self.pick(
            self._variable, self._sum, self._product, self._quotient, self._bits, self._shift, self._extreme, self._choice, self._unary,
            self._guarded, self._logic, self._helper, self._constant,
        )(depth - 1)  # fmt: skip
        return (f"({made} % 1021)", 1021) if bound > _LARGEST else (made, bound)

    def _constant(self, depth: int = 0) -> tuple[str, int]:
        value = self.draw(st.integers(-9, 9))
        return (str(value) if value >= 0 else f"({value})"), 9

    def _variable(self, depth: int = 0) -> tuple[str, int]:
        return self.pick(*_INTS), _SMALL

    def _place(self, depth: int = 0) -> tuple[str, int]:
        return self.pick("i", "cuda.threadIdx.x", "cuda.blockIdx.x", "x.size") if self.is_kernel else self.pick("a", "b"), _SMALL

    def _load(self, depth: int = 0) -> tuple[str, int]:
        if not self.is_kernel:
            return self._variable()
        return self.pick("x[i]", "x[(i + 7) % x.size]", "out[i, 1]", "own[i & 3]", "own[a & 3]"), _SMALL

    def _sum(self, depth: int) -> tuple[str, int]:
        (left, m), (right, n) = self.integer(depth), self.integer(depth)
        return f"({left} {self.pick('+', '-')} {right})", m + n

    def _product(self, depth: int) -> tuple[str, int]:
        (left, m), (right, n) = self.integer(depth), self.integer(depth)
        if m * n > _LARGEST:
            return f"({left} % 31 * ({right} % 37))", 31 * 37
        return f"({left} * {right})", m * n

    def _quotient(self, depth: int) -> tuple[str, int]:
        (left, m), (right, n) = self.integer(depth), self.integer(depth)
        divisor = self.pick("3", "(-7)", f"(abs({right}) + 1)", f"(-1 - abs({right}))")
        op = self.pick("//", "%")
        return f"({left} {op} {divisor})", max(m, n) + 9

    def _bits(self, depth: int) -> tuple[str, int]:
        (left, m), (right, n) = self.integer(depth), self.integer(depth)
        return f"({left} {self.pick('&', '|', '^')} {right})", 2 * max(m, n)

    def _shift(self, depth: int) -> tuple[str, int]:
        (left, m), (right, _) = self.integer(depth), self.integer(depth)
        return self.pick((f"({left} >> ({right} & 7))", m), (f"({left} << ({right} & 3))", 8 * m))

    def _extreme(self, depth: int) -> tuple[str, int]:
        (left, m), (right, n) = self.integer(depth), self.integer(depth)
        return f"{self.pick('min', 'max')}({left}, {right})", max(m, n)

    def _choice(self, depth: int) -> tuple[str, int]:
        (left, m), (right, n) = self.integer(depth), self.integer(depth)
        return f"({left} if {self.condition(depth)} else {right})", max(m, n)

    def _unary(self, depth: int) -> tuple[str, int]:
        value, bound = self.integer(depth)
        return self.pick((f"(-{value})", bound), (f"(~{value})", bound + 1), (f"abs({value})", bound))

    def _guarded(self, depth: int) -> tuple[str, int]:
        if not self.is_kernel:
            return self._choice(depth)
        (index, _), (other, n) = self.integer(depth), self.integer(0)
        return f"(x[{index}] if 0 <= {index} < x.size else {other})", max(n, _SMALL)

    def _logic(self, depth: int) -> tuple[str, int]:
        (left, m), (right, n) = self.integer(depth), self.integer(depth)
        return f"({left} {self.pick('and', 'or')} {right})", max(m, n)

    def _helper(self, depth: int) -> tuple[str, int]:
        if not self.helpers:
            return self._sum(depth)
        return f"{self.pick(*self.helpers)}({self.small(depth)}, {self.small(depth)})", _SMALL

    def small(self, depth: int) -> str:
        """Return an expression that a variable can hold."""
        text, bound = self.integer(depth)
        return text if bound <= _SMALL else self.pick(f"{text} % 4099", f"{text} % (-997)", f"({text} & 0xFFFF)")

    # -- truth and floats -------------------------------------------------------------------------------------------------------------

    def condition(self, depth: int) -> str:
        """Return a test."""
        kind = self.draw(st.integers(0, 5 if depth > 0 else 2))
        if kind == 3:
            return f"({self.condition(depth - 1)} {self.pick('and', 'or')} {self.condition(depth - 1)})"
        if kind == 4:
            return f"(not {self.condition(depth - 1)})"
        if kind == 5:
            return f"({self.integer(depth - 1)[0]} < {self.integer(0)[0]} <= {self.integer(0)[0]})"
        if kind == 2:
            return f"({self.floating(depth - 1)} {self.pick('<', '>=')} {self.floating(0)})"
        if kind == 1:
            return f"{self.integer(depth - 1)[0]} % {self.pick(2, 3, 5)} == {self.pick(0, 1)}"
        return f"{self.integer(depth - 1)[0]} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.integer(0)[0]}"

    def varying(self) -> str:
        """Return a test that differs from thread to thread as a rule: what leaves loops and functions early."""
        return (
            f"({self.pick('i', 'x[i]', 'a') if self.is_kernel else 'a'} + {self.pick(*_INTS)}) % {self.pick(3, 2, 5)} == {self.pick(0, 1)}"
        )

    def floating(self, depth: int) -> str:
        """Return an expression of a float64."""
        if depth <= 0:
            return self.pick(*_FLOATS, "0.5", "2.0", "1.25", "float(a)")
        a, b = self.floating(depth - 1), self.floating(depth - 1)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / (abs({b}) + 1.0))", f"(-{a})", f"min({a}, {b})", f"max({a}, {b})",
            f"math.sqrt(abs({a}))", f"({a} if {self.condition(0)} else {b})", f"({a} // 1.5)", f"({a} % 2.5)", f"({a} + {self.small(0)})",
        )  # fmt: skip

    # -- statements -------------------------------------------------------------------------------------------------------------------

    def line(self, indent: int, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * indent + text)

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        """Write one to three statements."""
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(indent, depth, in_loop)

    def statement(self, indent: int, depth: int, in_loop: bool) -> None:
        """Write a statement."""
        self.budget -= 1
        simple = [self._assign, self._assign, self._update, self._two, self._float]
        if self.is_kernel:
            simple += [self._store, self._store_float, self._store_own]
        if self.budget <= 0 or depth <= 0:
            self.pick(*simple)(indent)
            return
        compound = [self._if, self._if, self._while, self._for]
        if in_loop:
            compound += [self._leave, self._leave]
        elif depth < 3:
            compound += [self._return_if]
        chosen = self.pick(*simple, *compound)
        if chosen in compound:
            chosen(indent, depth - 1, in_loop)
        else:
            chosen(indent)

    def _assign(self, indent: int) -> None:
        self.line(indent, f"{self.pick(*_INTS)} = {self.small(2)}")

    def _update(self, indent: int) -> None:
        name = self.pick(*_INTS)
        change = self.pick(f"^= {self.integer(1)[0]} & 0xFF", f"//= {self.pick(2, 3, -5)}", ">>= 1", f"+= {self.small(1)}",
                           f"-= {self.small(1)}", f"*= {self.pick(-1, 3)}")  # fmt: skip
        self.line(indent, f"{name} {change}")
        self.line(indent, f"{name} %= {self.pick(4099, 65521, -257)}")

    def _two(self, indent: int) -> None:
        first, second = self.pick(("a", "b"), ("c", "a"), ("d", "c"))
        self.line(indent, f"{first}, {second} = {second}, {self.small(1)}")

    def _float(self, indent: int) -> None:
        self.line(indent, f"{self.pick(*_FLOATS)} = min(max({self.floating(2)}, -1000.0), 1000.0)")

    def _store(self, indent: int) -> None:
        self.line(indent, f"out[i, {self.pick(0, 1, 2)}] {self.pick('=', '=', '^=')} {self.small(1)} & 0xFFFFF")

    def _store_float(self, indent: int) -> None:
        self.line(indent, f"real[i] = {self.floating(2)}")

    def _store_own(self, indent: int) -> None:
        self.line(indent, f"own[{self.integer(1)[0]} & 3] = {self.small(1)}")

    def _if(self, indent: int, depth: int, in_loop: bool) -> None:
        self.line(indent, f"if {self.condition(2)}:")
        self.block(indent + 1, depth, in_loop)
        if self.draw(st.booleans()):
            self.line(indent, f"elif {self.condition(1)}:")
            self.block(indent + 1, depth, in_loop)
        if self.draw(st.booleans()):
            self.line(indent, "else:")
            self.block(indent + 1, depth, in_loop)

    def _while(self, indent: int, depth: int, in_loop: bool) -> None:
        self.loop_names += 1
        fuel = f"w{self.loop_names}"
        self.line(indent, f"{fuel} = {self.integer(1)[0]} % 5")
        self.line(indent, self.pick(f"while {fuel} > 0:", f"while {fuel} > 0 and {self.condition(1)}:", f"while {fuel}:"))
        self.line(indent + 1, f"{fuel} -= 1")
        self._loop_body(indent + 1, depth)

    def _loop_body(self, indent: int, depth: int) -> None:
        """Write statements; half of the time the loop is left in their midst."""
        self.block(indent, depth, True)
        if self.draw(st.booleans()):
            self._leave(indent, depth, True)
            self._assign(indent)

    def _for(self, indent: int, depth: int, in_loop: bool) -> None:
        many, few = f"{self.integer(1)[0]} % 5", f"{self.integer(0)[0]} % 3"
        limits = self.pick("range(3)", f"range({many})", f"range({few}, {many}, 2)", f"range({many}, -2, -2)", f"range({few}, {many})",
                           f"range(3, {many}, {self.pick(1, -1)})", "(2, -1, 7)")  # fmt: skip
        self.line(indent, f"for {self.pick('k', 'd')} in {limits}:")
        self.line(indent + 1, f"{self.pick(*_INTS)} ^= k & 63")
        self._loop_body(indent + 1, depth)

    def _leave(self, indent: int, depth: int, in_loop: bool) -> None:
        self.line(indent, f"if {self.pick(self.varying(), self.condition(1))}:")
        self.line(indent + 1, self.pick("continue", "break", self._return()))

    def _return_if(self, indent: int, depth: int, in_loop: bool) -> None:
        self.line(indent, f"if {self.pick(self.varying(), self.condition(1))}:")
        self.line(indent + 1, self._return())

    def _return(self) -> str:
        return "return" if self.is_kernel else f"return {self.small(1)}"


def _helper(draw: Draw, name: str, helpers: tuple[str, ...]) -> str:
    writer = Writer(draw, helpers, False, 5)
    writer.line(0, f"def {name}(a, b):")
    writer.line(1, "c, d, k = 1, a - b, 0")
    writer.line(1, "f, g = 0.5, 0.25 * b")
    writer.block(1, 2, False)
    writer._return_if(1, 1, False)
    writer.block(1, 1, False)
    writer.line(1, f"return {writer.pick(*_INTS)}")
    return "\n".join(writer.lines) + "\n"


@st.composite
def kernel_texts(draw: Draw) -> str:
    """Return the text of a module with a function ``kernel(x, out, real)`` and the device functions that it calls."""
    names = ("helper", "other")[: draw(st.integers(0, 2))]
    text = _HEADER + "".join(_helper(draw, name, names[:n]) for n, name in enumerate(names))
    writer = Writer(draw, names, True, 14)
    for indent, line in (
        (0, "def kernel(x, out, real):"), (1, "i = cuda.grid(1)"), (1, "own = cuda.local.array(4, int64)"), (1, "for k in range(4):"),
        (2, "own[k] = k - i"), (1, "a, b = x[i], i"), (1, "c, d = 3, cuda.threadIdx.x"), (1, "f, g = 0.5 * b, -1.25"),
    ):  # fmt: skip
        writer.line(indent, line)
    for _ in range(draw(st.integers(2, 5))):
        writer.statement(1, 3, False)
    calls = "".join(f" + {name}(a, i)" for name in names)
    writer.line(1, f"out[i, 3] = a + 3 * b + 5 * c + 7 * d{calls}")
    writer.line(1, "real[i] += f + g")
    return text + "\n".join(writer.lines) + "\n"


def function_of(text: str, name: str = "kernel", filename: str = "<random kernel>") -> Any:
    """Return a function of a text, so that ``inspect`` finds its source."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"__name__": "random_kernel"}
    exec(compile(text, filename, "exec"), names)
    return names[name]
