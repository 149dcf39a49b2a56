"""Kernels made by hypothesis: random control flow over each thread's own variables and elements.

Whole numbers stay within 2**20 in variables and within 2**50 in intermediate results, so that
Python's integers and 64-bit integers agree. Floats undergo only operations that IEEE 754 rounds
exactly. Therefore results must be equal.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

# Writer replaces {name} in a template by a choice; hypothesis shrinks to the first choice.
LEAVES = "{variable}", "{digit}", "({digit} - 9)", "x.size", "x[i]", "x[(i + 7) % x.size]", "i"
LEAVES += ("cuda.threadIdx.x", "cuda.blockIdx.x", "out[i, 1]", "own[i & 3]", "own[{variable} & 3]")
PLAIN_LEAVES = LEAVES[:3]  # of a device function
INTEGERS = (
    "{integer} + {integer}", "{integer} - {integer}", "{integer} % 31 * ({integer} % 4099)",
    "{integer} // 3", "{integer} // (-7)", "{integer} % 5", "{integer} // (abs({integer}) + 1)",
    "{integer} % (-1 - abs({integer}))", "{integer} & {integer}", "{integer} | {integer}",
    "{integer} ^ {integer}", "{integer} >> ({integer} & 7)", "{integer} % 65521 << ({integer} & 3)",
    "min({integer}, {integer})", "max({integer}, {integer})", "-{integer}", "~{integer}",
    "abs({integer})", "{integer} if {condition} else {integer}", "{integer} and {integer}",
    "{integer} or {integer}", "{call}",
)  # fmt: skip
GUARDED = "x[a] if 0 <= a < x.size else {leaf}", "x[b] if b < x.size and b >= 0 else {leaf}"
SMALL = "{leaf}", "({integer}) % 4099", "({integer}) % (-997)", "({integer}) & 0xFFFF"
FLOATS = (
    "{float} + {float}", "{float} - {float}", "{float} * {float}", "{float} / (abs({float}) + 1.0)",
    "-{float}", "min({float}, {float})", "max({float}, {float})", "math.sqrt(abs({float}))",
    "{float} if {condition} else {float}", "{float} // 1.5", "{float} % 2.5", "{float} + {small}",
)  # fmt: skip
CONDITIONS = (
    "{integer} < {leaf}", "{integer} >= {leaf}", "{integer} == {leaf}", "{integer} != {leaf}",
    "{integer} % 3 == 1", "{float} < {float}", "({condition} and {condition})",
    "({condition} or {condition})", "(not {condition})", "({integer} < {leaf} <= {leaf})",
)  # fmt: skip
# Conditions for leaving a loop or function early; most of them differ from thread to thread.
VARYING = "({variable} + {variable}) % 3 == 0", "(i + {variable}) % 2 == 1", "{condition}"
SIMPLE = (
    "{variable} = {small}", "{pair} = {variable}, {small}",
    "{variable} += {small}\n{variable} %= 4099", "{variable} ^= {integer} & 0xFF",
    "{variable} >>= 1",
    "{variable} //= -5", "f = min(max({float}, -1000.0), 1000.0)",
    "g = min(max({float}, -9.0), 99.0)",
)  # fmt: skip
STORES = (
    "out[i, {column}] = {small} & 0xFFFFF", "out[i, {column}] ^= {small} & 0xFFFFF",
    "real[i] = {float}", "own[{integer} & 3] = {small}",
)  # fmt: skip
RANGES = (
    "range(3)", "range({integer} % 5)", "range({integer} % 3, {integer} % 5, 2)", "(2, -1, 7)",
    "range({integer} % 5, -2, -2)", "range(3, {integer} % 5, -1)",
    "range({integer} % 3, {leaf} % 5)",
)  # fmt: skip


class Writer:
    """Writes one function; ``budget`` is how many statements it may still have."""

    def __init__(self, draw: Callable, helpers: tuple[str, ...], is_kernel: bool) -> None:
        self.draw, self.helpers, self.is_kernel = draw, helpers, is_kernel
        self.budget, self.depth, self.loops = 14 if is_kernel else 5, 0, 0
        self.lines: list[str] = []

    def pick(self, *choices: str) -> str:
        """Draw one of the choices and fill in its template."""
        return choices[self.draw(st.integers(0, len(choices) - 1))].format_map(self)

    def __getitem__(self, name: str) -> str:
        """Return the text for a name in a template; expressions are at most two levels deep."""
        leaves = LEAVES if self.is_kernel else PLAIN_LEAVES
        deeper = {
            "integer": (*INTEGERS, *GUARDED) if self.is_kernel else INTEGERS, "small": SMALL,
            "float": FLOATS, "condition": CONDITIONS,
        }  # fmt: skip
        # Names differ: `a, a = 1, 2` gives 1 in Python 3.11.2 (Debian 12), 2 in later versions.
        pairs = ("a, b", "b, a", "c, d", "d, b")
        names = {
            "variable": "abcd", "digit": "0123456789", "column": "012", "leaf": leaves,
            "pair": pairs,
        }  # fmt: skip
        if name == "call":
            calls = [f"{helper}({{leaf}}, {{leaf}})" for helper in self.helpers]
            return self.pick(*calls or leaves)
        if name in names:
            return self.pick(*names[name])
        if self.depth >= 2:
            ends = {"float": ("f", "g", "0.5", "2.0", "1.25"), "condition": ("{leaf} < {leaf}",)}
            return self.pick(*ends.get(name, leaves))
        self.depth += 1
        text = self.pick(*deeper[name])
        self.depth -= 1
        return f"({text})"

    def write(self, indent: int, text: str) -> None:
        """Add lines."""
        self.lines += ["    " * indent + line for line in text.split("\n")]

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        """Write one to three statements."""
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(indent, depth, in_loop)

    def statement(self, indent: int, depth: int, in_loop: bool = False) -> None:
        """Write a statement."""
        self.budget -= 1
        kind = (
            "simple"
            if self.budget <= 0 or depth <= 0
            else self.pick("simple", "if", "loop", "leave")
        )
        if kind == "simple":
            self.write(indent, self.pick(*SIMPLE, *(STORES if self.is_kernel else ())))
        elif kind == "if":
            for word in ("if {condition}:", "elif {condition}:", "else:"):
                if word[0] == "i" or self.draw(st.booleans()):
                    self.write(indent, self.pick(word))
                    self.block(indent + 1, depth - 1, in_loop)
        elif kind == "loop":
            self.loop(indent, depth - 1)
        else:
            self.leave(indent, in_loop)

    def loop(self, indent: int, depth: int) -> None:
        """Write a loop; in half of the cases some threads leave it early."""
        self.loops += 1
        fuel = f"w{self.loops}"
        if self.draw(st.booleans()):
            self.write(indent, self.pick(f"{fuel} = {{integer}} % 5"))
            heads = f"while {fuel} > 0:", f"while {fuel} > 0 and {{condition}}:", f"while {fuel}:"
            self.write(indent, self.pick(*heads) + f"\n    {fuel} -= 1")
        else:
            head = f"for {self.pick('k', 'd')} in {self.pick(*RANGES)}:"
            self.write(indent, self.pick(head + "\n    {variable} ^= k & 63"))
        self.block(indent + 1, depth, True)
        if self.draw(st.booleans()):
            self.leave(indent + 1, True)
            self.write(indent + 1, self.pick(*SIMPLE))

    def leave(self, indent: int, in_loop: bool) -> None:
        """Let some threads leave the loop or the function."""
        ways = ("continue", "break") if in_loop else ()
        tests = VARYING if self.is_kernel else VARYING[::2]
        back = "return" if self.is_kernel else "return {small}"
        self.write(indent, f"if {self.pick(*tests)}:\n    {self.pick(*ways, back)}")


def _helper(draw: Callable, name: str, helpers: tuple[str, ...]) -> str:
    writer = Writer(draw, helpers, False)
    writer.write(0, f"def {name}(a, b):\n    c, d, k = 1, a - b, 0\n    f, g = 0.5, 0.25 * b")
    writer.block(1, 2, False)
    writer.leave(1, False)
    writer.block(1, 1, False)
    writer.write(1, writer.pick("return {variable} % 65521"))
    return "\n".join(writer.lines) + "\n"


_START = """def kernel(x, out, real):
    i = cuda.grid(1)
    own = cuda.local.array(4, int64)
    for k in range(4):
        own[k] = k - i
    a, b = x[i], i
    c, d = 3, cuda.threadIdx.x
    f, g = 0.5 * b, -1.25"""


@st.composite
def kernel_texts(draw: Callable) -> Any:
    """Return the text of a module with ``kernel(x, out, real)`` and its device functions."""
    names = ("helper", "other")[: draw(st.integers(0, 2))]
    helpers = (_helper(draw, name, names[:n]) for n, name in enumerate(names))
    writer = Writer(draw, names, True)
    writer.write(0, _START)
    for _ in range(draw(st.integers(2, 5))):
        writer.statement(1, 3)
    calls = "".join(f" + {name}(a, i)" for name in names)
    writer.write(1, f"out[i, 3] = a + 3 * b + 5 * c + 7 * d{calls}\nreal[i] += f + g")
    header = "import math\nfrom gpulab.kernels import cuda, int64\n"
    return header + "".join(helpers) + "\n".join(writer.lines) + "\n"
