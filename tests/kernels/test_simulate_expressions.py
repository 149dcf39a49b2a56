"""Expressions of a kernel against Python's own: each text is evaluated for every thread by ``eval``, and only what Python reads is read."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.errors import KernelError
from gpulab.kernels import simulate
from gpulab.kernels._simulate import _expressions, _operators
from gpulab.kernels._simulate._names import Intrinsic

LANES, N = 40, 29
A = (np.arange(N) * 7) % 11  # 0, 7, 3, 10, 6, ...
M = np.arange(12.0).reshape(3, 4)
PAIR = (5, 2.5)

# i is the thread, of which those from 29 on have no element of a; m is a matrix of 3 x 4, PAIR a tuple from outside.
TEXTS = (
    # What stands behind "and", "or", a comparison or a condition is asked only where Python asks for it.
    "i < n and a[i] > 5", "i >= n or a[i] > 5", "not (i < n and a[i] > 5)", "i < n and a[i] > 5 and a[i] % 2 == 0",
    "i >= n or a[i] == 0 or 12 // a[i] > 2", "0 <= i < n and a[i]", "1 < i < n < 30", "3 < i <= a[i % n] < 20", "n > i < 5 != 7",
    "i < a[i % n] < 100 > a[(i + 1) % n]", "a[i] if i < n else -1", "-1 if i >= n else a[i] + 1", "(1 if i < 3 else 2) if i < 20 else 3",
    "i and n", "i or n", "0 or i", "i < 5 or i", "(i > 3) + (i > 4)", "(i % 2 == 0) == (i % 4 == 0)", "i % 2 and i % 3 and i % 5",
    # Numbers.
    "+i - -n", "~i", "i ** 2", "(i + 1) ** 0", "x ** 3", "2 ** 3 ** 2", "7 // 2 * i", "-7 // 2 + i", "i * 2 + n // 3 - i % 4",
    "(i << 3) >> 1", "i & 12 | 3 ^ i", "1e-3 * i", "float('inf') > x", "int(x * i)", "float(i) / 4", "abs(i - n)", "min(i, n, 7)",
    "max(i, 3)",
    # Arrays and tuples.
    "m[i % 3, i % 4]", "m[i % 3][i % 4]", "m[-1, -2]", "m.shape[0] * m.shape[1]", "m.size + m.ndim", "m[1].size", "a.shape[0] - i",
    "a[n - 1]", "a[-1]", "len(m) + len(m[0])", "PAIR[0] + i", "PAIR[1] * i", "(i, n, 3)[1]", "m[0, 1:3][1]", "a[2:][i % 5]",
)  # fmt: skip


def _kernel(text: str, before: str = "") -> Any:
    body = f"    {before}\n" if before else ""
    found = function_of(
        f"from gpulab.kernels import cuda\ndef kernel(out, a, m, n, x):\n    i = cuda.grid(1)\n{body}    out[i] = {text}\n",
        filename=f"<expression {text}>",
    )
    found.__globals__.update(PAIR=PAIR, textwrap=textwrap)
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_an_expression_is_what_python_makes_of_it(text: str) -> None:
    """For 40 threads in two blocks, of which the last are beyond the array; and no thread reads what it does not ask for."""
    out = np.full(LANES, math.nan)
    assert simulate(_kernel(text), 2, LANES // 2, out, A, M, N, 1.5).findings == ()
    expected = [float(eval(text, {"i": i, "n": N, "x": 1.5, "a": A, "m": M, "PAIR": PAIR})) for i in range(LANES)]
    assert out.tolist() == expected


@pytest.mark.parametrize("text", ["a[i] > 5 and i < n", "a[i] > 5 or i >= n", "n > a[i] < i", "a[i] if i < 35 else -1"])
def test_a_guard_that_comes_too_late_is_found(text: str) -> None:
    """The elements behind the end are read before anything is asked, from thread 29 on."""
    (finding,) = simulate(_kernel(text), 2, LANES // 2, np.zeros(LANES), A, M, N, 1.5).findings
    assert (finding.kind, finding.array, finding.index) == ("bounds", "a", (29,))
    assert finding.count == (6 if "35" in text else 11)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a + 1", "the operation does not take an array and int64"), ("i < m", "the operation does not take int64 and an array"),
        ("-m", "the operation does not take an array"), ("n and (1, 2)", "`and` does not take a tuple"),
        ("i or m", "`or` does not take an array"), ("i is n", "the comparison Is is not supported"), ("i @ n", "operator MatMult is not"),
        ("[i]", "a list is not supported"), ("nothing + 1", "the name nothing is not defined"), ("i[0]", "`i` is no array"),
        ("a.T", "`.T` is not supported"), ("cuda.threadIdx", "has three parts"), ("cuda.syncthreads", "is no value; expected a call of it"),
        ("a[::2][0]", "a slice with a step"), ("float('many')", "is no number; expected one such as float('inf')"),
        ("(1 if m else 2)", "expected a number or a truth value to test"), ("abs(*PAIR)", "takes 1 argument"),
        ("textwrap.dedent", "the module textwrap is not supported in a kernel"), ("textwrap", "the module textwrap is not supported"),
        ("m.shape.size", "`.size` is not supported"), ("PAIR.size", "`.size` of a constant is not supported in a kernel"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_at_its_line(text: str, words: str) -> None:
    """With what stands there, in words."""
    with pytest.raises(KernelError) as refused:
        simulate(_kernel(text), 1, 1, np.zeros(1), A, M, N, 1.5)
    assert words in str(refused.value)
    assert refused.value.line == 4


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10 ** -6", 1e-6), ("~5", -6), ("2 ** 64 - 1", 2**64 - 1), ("-3", -3), ("3 * (2 + 0.5)", 7.5), ("7", 7), ("1 // 0", None),
        ("2 ** 1000", None), ("n + 1", None), ("True", None), ("1 < 2", None), ("'a' + 'b'", None), ("abs(3)", None),
    ],
)  # fmt: skip
def test_which_numbers_python_writes_out_itself(text: str, number: Any) -> None:
    """Of numbers and operators alone, as far as Python's compiler makes one number of them."""
    node = _expressions.ast.parse(text, mode="eval").body
    found = _operators.written_number(node)
    assert (found, type(found)) == (number, type(number))


def test_what_only_computes() -> None:
    """No access, no call and no power, which may be refused, and no choice of lanes."""
    plain = ("a + b * 2", "not a and b < 1", "cuda.threadIdx.x // 32", "-a | b", "7")
    others = ("a[0] + 1", "f(a)", "a if b else c", "a ** 2", "(a, b)", "a + (b and f(c))")
    for texts, expected in ((plain, True), (others, False)):
        assert [_operators.is_plain(_expressions.ast.parse(text, mode="eval").body) for text in texts] == [expected] * len(texts)


def test_a_sign_before_numbers_of_each_width() -> None:
    """Narrow integers in their own width, as numba has it: -3 of a uint8 is 253; a truth value is 0 or 1, its complement another."""
    ast, narrow = _expressions.ast, np.array([3, 0], np.uint8)
    for sign, value, expected in (
        (ast.USub, narrow, [253, 0]), (ast.Invert, narrow, [252, 255]), (ast.UAdd, narrow, [3, 0]), (ast.Not, narrow, [False, True]),
        (ast.USub, np.array([-128, 5], np.int8), [-128, -5]), (ast.USub, np.array([True, False]), [-1, 0]),
        (ast.Invert, np.array([True, False]), [False, True]), (ast.UAdd, np.array([True, False]), [1, 0]),
        (ast.USub, np.array([2.5, -0.5], np.float32), [-2.5, 0.5]),
    ):  # fmt: skip
        found = _operators.UNARY[sign](value)
        assert found.tolist() == expected
        assert found.dtype.itemsize == (4 if value.dtype == np.float32 else 1 if isinstance(expected[0], bool) else 8)


def test_operands_in_words() -> None:
    """By the kind of what stands there."""
    assert [_operators.kind_of_value(value) for value in (None, (1, 2), np.float32(1), "text")] == ["nothing", "a tuple", "float32", "str"]
    assert _operators.not_numbers(np.int64(1), None) == (
        "the operation does not take int64 and nothing; expected numbers that it is defined for"
    )
    assert Intrinsic("range") == Intrinsic("range") != Intrinsic("len")
