"""Statements of a kernel against Python's own: each body is run for every thread by Python itself, one after the other."""

from __future__ import annotations

import textwrap
import types
from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.errors import KernelError
from gpulab.kernels import simulate
from gpulab.kernels._simulate import _translate

LANES, N = 48, 37
A = (np.arange(N) * 5) % 13

BODIES = {
    "if": "if i < 10:\n    t = 1\nelif i < 20:\n    t = 2\nelse:\n    t = 3",
    "if without else": "t = 5\nif i % 3 == 0:\n    t = i\nif i % 5 == 0:\n    t += 100",
    "nested ifs": "t = 0\nif i > 5:\n    if i % 2:\n        t = 1\n    else:\n        t = 2\n    t *= 10\nt += i",
    "for": "t = 0\nfor k in range(i % 7):\n    t += k + 1",
    "for from, to": "t = 0\nfor k in range(i % 5, 8):\n    t = 10 * t + k",
    "for in steps": "t = 0\nfor k in range(20, i, -3):\n    t += k\nfor k in range(0, i, 4):\n    t -= k",
    "the counter afterwards": "k = -1\nfor k in range(1, 3 + i % 4):\n    pass\nt = k",
    "break": "t = 0\nfor k in range(10):\n    if k == i % 12:\n        break\n    t += 1\nt += 1000",
    "continue": "t = 0\nfor k in range(10):\n    if (k + i) % 3 == 0:\n        continue\n    t += k",
    "break and continue": "t = 0\nfor k in range(30):\n    if k % 2:\n        continue\n    if k > i:\n        break\n    t += k",
    "loops": "t = 0\nfor k in range(4):\n    for m in range(i % 5):\n        if m > k:\n            break\n        t += m\n    t += k",
    "while": "t, k = 0, i\nwhile k > 0:\n    t += k % 10\n    k //= 10",
    "while with break": "t = i\nwhile True:\n    t = t * 3 + 1\n    if t > 500:\n        break\n    t += t % 2",
    "while and continue": "t, k = 0, 0\nwhile k < 9:\n    k += 1\n    if k % 3 == i % 3:\n        continue\n    t += k",
    "return": "t = -1\nif i % 4 == 1:\n    out[i] = 77\n    return\nt = 8",
    "return in a loop": "t = 0\nfor k in range(6):\n    t += k\n    if t > i:\n        out[i] = -t\n        return\nt += 500",
    "exchange": "p, q = i, n\nfor k in range(i % 3):\n    p, q = q, p + 1\nt = 100 * p + q",
    "several targets": "p = q = i + 1\np += 1\nt = 100 * p + q",
    "annotated": "t: int = i\ns: float\ns = t + 1\nt = s * 2",
    "augmented": "t = i + 8\nt -= 3\nt *= 5\nt //= 2\nt %= 97\nt <<= 2\nt |= 1\nt ^= 6\nt &= 127\nt >>= 1\nt **= 2",
    "an element augmented": "out[i] = 3\nout[i] += i\nout[i] *= 2\nout[i] -= 1\nt = out[i]",
    "over a tuple": "t = 0\nfor v in (3, i, n):\n    t = 10 * t + v",
    "pass, assert and words": "'''Words.'''\nassert i >= 0\npass\nt = i",
    "a search": "t = -1\nfor k in range(n):\n    if a[k] == i % 13:\n        t = k\n        break",
    "a sum by strides": "t = 0\nfor k in range(i, n, 7):\n    t += a[k]",
}  # fmt: skip


def _text(body: str) -> str:
    return f"def kernel(out, a, n):\n    i = cuda.grid(1)\n{textwrap.indent(body, '    ')}\n    out[i] = t\n"


@pytest.mark.parametrize("name", BODIES)
def test_statements_do_what_python_does(name: str) -> None:
    """For 48 threads in two blocks, whose lanes part and come together again; nothing is found."""
    text = _text(BODIES[name])
    expected = np.full(LANES, -7.0)
    for i in range(LANES):
        names: dict[str, Any] = {"cuda": types.SimpleNamespace(grid=lambda _, i=i: i)}
        exec(text, names)
        names["kernel"](expected, A, N)
    out = np.full(LANES, -7.0)
    assert simulate(function_of(f"from gpulab.kernels import cuda\n{text}", filename=f"<body {name}>"), 2, 24, out, A, N).findings == ()
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("i + 1", "an expression whose value is not used does nothing"), ("with i:\n    pass", "with is not supported in a kernel"),
        ("try:\n    t = 1\nfinally:\n    t = 2", "try is not supported in a kernel"), ("import math", "an import is not supported"),
        ("del t", "del is not supported in a kernel"), ("a.x = 3", "expected a variable or an element of an array to the left"),
        ("a.x += 3", "expected a variable or an element of an array to the left"), ("a[0] = a", "only numbers can be stored in an array"),
        ("for k in a:\n    t = k", "expected `range(...)` or a tuple to loop over"), ("p, q = i", "expected 2 values to the right"),
        ("for k in range(0, 5, 0):\n    t = k", "range with a step of 0 has no end"), ("p, q = 1, 2, 3", "expected 2 values to the right"),
        ("for k in (1, 2.5):\n    t = k", "are of several types"), ("for k in range(2.5):\n    t = k", "range needs integers"),
        ("for k in range(3):\n    t = k\nelse:\n    t = 9", "`else` after a loop is not supported in a kernel"),
        ("while t > 0:\n    t = 0\nelse:\n    t = 9", "`else` after a loop is not supported in a kernel"),
        ("a[0] = 1j", "a complex number cannot be stored in an array of int64"),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_do_is_refused_at_its_line(body: str, words: str) -> None:
    """The third line of the function's body, with what would be right."""
    text = _text(f"t = 0\n{body}")
    with pytest.raises(KernelError) as refused:
        simulate(function_of(f"from gpulab.kernels import cuda\n{text}", filename=f"<refused {body}>"), 1, 1, np.zeros(1), A, N)
    assert words in str(refused.value)
    assert refused.value.line == 5


def test_what_is_not_a_statement_of_a_kernel_has_words() -> None:
    """Each kind that Python has is translated or named; none of the names is translated as well."""
    translated = {name for name in dir(_translate.StatementTranslator) if name.startswith("_") and not name.startswith("__")}
    assert {"_if", "_for", "_while", "_return", "_assign", "_augassign", "_annassign", "_expr", "_pass", "_assert"} <= translated
    assert not {f"_{kind.__name__.lower()}" for kind in _translate._WORDS} & translated
