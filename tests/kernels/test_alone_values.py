"""The text of an expression for one lane: what Python computes by it, its type, and how large an integer may become, by hand."""

from __future__ import annotations

import ast
import itertools

import numpy as np
import pytest

from gpulab.kernels._simulate._alone_values import BOOL, FLOAT, INT, SINGLE, Refused, Value, ValueWriter

TYPES = {"a": INT, "b": INT, "n": np.dtype(np.int32), "t": BOOL, "s": SINGLE, "x": FLOAT, "y": FLOAT}
# Integers of 64 bits between statements are at most 1,000 here, and an eighth more for what only counts up.
MOST, NAME = 1000, 1125


def written(text: str, most: int = MOST) -> Value:
    """Return an expression as it is written for a lane."""
    return ValueWriter(dict(TYPES), {}, {}, {}, most).value(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("text", "dtype", "bound"),
    [
        ("a", INT, NAME), ("n", np.dtype(np.int32), 2**31), ("t", BOOL, 1), ("x", FLOAT, 1), ("s", SINGLE, 1), ("7", INT, 7),
        ("True", BOOL, 1), ("2.5", FLOAT, 1),
        ("a + b", INT, 2 * NAME), ("a - 7", INT, NAME + 7), ("a * b", INT, NAME**2), ("a // b", INT, NAME), ("a // 1", INT, NAME),
        ("a // 4", INT, 282), ("a // 2", INT, 563), ("a % 7", INT, 7), ("7 % a", INT, NAME),
        # Bits below the highest one of either may all be set, and a negative number has one more than its size.
        ("a & b", INT, 2 * NAME + 1), ("a | 2000", INT, 4001), ("2000 ^ a", INT, 4001),
        ("a >> 2", INT, NAME), ("a >> 62", INT, NAME), ("a << 3", INT, 8 * NAME), ("a / b", FLOAT, 0),
        ("-a", INT, NAME), ("-x", FLOAT, 1), ("~a", INT, NAME + 1), ("not a", BOOL, 1), ("not x", BOOL, 1), ("not t", BOOL, 1),
        ("abs(a)", INT, NAME), ("abs(x)", FLOAT, 1), ("min(a, 7)", INT, NAME), ("max(a, 2000, b)", INT, 2000), ("min(x, y)", FLOAT, 0),
        ("max(x, y)", FLOAT, 0), ("min(x, y, x)", FLOAT, 1), ("a if t else 2000", INT, 2000), ("2000 if a < b else b", INT, 2000),
        ("x if t else y", FLOAT, 1), ("a < b", BOOL, 1), ("a <= b", BOOL, 1), ("x > y", BOOL, 1), ("x >= y", BOOL, 1), ("a == b", BOOL, 1),
        ("a != b", BOOL, 1), ("7 < a <= b", BOOL, 1), ("t and a < b", BOOL, 1), ("t or a < b or x < y", BOOL, 1),
        ("x + y", FLOAT, 0), ("x - a", FLOAT, 0), ("a * x", FLOAT, 0), ("x / 4", FLOAT, 0), ("x + s", FLOAT, 0),
    ],
)  # fmt: skip
def test_an_expression_is_pythons_with_a_bound(text: str, dtype: np.dtype, bound: int) -> None:
    """What is written gives what the expression itself gives, within the bound that a pencil finds."""
    found = written(text)
    assert (found.dtype, found.bound) == (dtype, bound)
    for a, b, x, y, t in itertools.product((-9, 3, NAME), (2, 5), (-2.5, 3.0), (3.0, 4.5), (True, False)):
        values = {"a": a, "b": b, "n": 4, "t": t, "s": 0.5, "x": x, "y": y}
        lane, plain = eval(found.text, {f"v_{name}": value for name, value in values.items()}), eval(text, dict(values))
        assert (lane, type(lane)) == (plain, type(plain))
        assert dtype != INT or abs(lane) <= bound


@pytest.mark.parametrize(
    "text",
    [
        "nothing", "1j", "a + t", "t * t", "-t", "-n", "~n", "~x", "~t", "s + s", "x // y", "x % y", "x ** y", "a ** b", "a << b",
        "a >> b", "a << 63", "a >> 63", "a << -1", "x << 1", "a & x", "a < x", "t < a", "a is b", "a in (a, b)", "t and a", "t or x",
        "a if t else x", "min(a, x)", "min(s, s)", "min(n, n)", "min(a)", "abs(a, b)", "abs(n)", "min()", "min(a, key=b)", "round(a)",
        "max.min(a, b)", "a[0]", "a.real", "[a]", "18446744073709551615", "9223372036854775808",
    ],
)  # fmt: skip
def test_what_python_does_otherwise_is_left_to_lockstep(text: str) -> None:
    """Other types than a lane's own, mixed ones, shifts that are not known, calls that are none of the three."""
    with pytest.raises(Refused):
        written(text)


@pytest.mark.parametrize(
    ("inside", "beyond", "most"),
    [
        ("n << 31", "n << 32", MOST),  # 2**31 and an int64's 63 bits
        ("a * 7", "a * 8", 2**60),  # 9 / 8 of 2**60
        ("a - 7493989779944505344", "a - 7493989779944505345 - 576460752303423488", 2**60),
        ("9007199254740992 / b", "9007199254740993 / b", MOST),  # what a float64 holds exactly
        ("b / 9007199254740992", "b / 9007199254740993", MOST), ("x + 9007199254740992", "x + 9007199254740993", MOST),
        ("9007199254740992 * x", "9007199254740993 * x", MOST), ("x < 1.5", "x < float('inf')", MOST),
    ],
)  # fmt: skip
def test_how_large_an_integer_may_become(inside: str, beyond: str, most: int) -> None:
    """The largest that is written, and the next one, which is not."""
    written(inside, most)
    with pytest.raises(Refused):
        written(beyond, most)
