"""One number in one format: its bits, kind, neighbours and the numbers around it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpulab import precision
from gpulab.errors import InputError


def test_a_tenth_in_float16() -> None:
    """By hand: 0.1 = 1.6 x 2**-4; 0.6 x 1024 = 614.4, so the mantissa is 614 = 1001100110."""
    n = precision.number(0.1, "float16")
    assert n.fields == ("0", "01011", "1001100110")
    assert n.held == (1 + 614 / 1024) / 16
    assert (n.kind, n.spacing) == ("normal", 2.0**-14)
    assert (n.below, n.above) == (n.held - 2.0**-14, n.held + 2.0**-14)
    assert n.relative_error == pytest.approx(0.4 / 1024 / 1.6)
    assert n.reading == "1.599609375 x 2^-4"
    assert "0.0999755859375" in n._repr_html_()


@pytest.mark.parametrize(
    ("x", "name", "kind"),
    [(0.0, "float16", "zero"), (1e-6, "float16", "subnormal"), (7e4, "float16", "infinite"), (500.0, "float8_e4m3fn", "nan"),
     (-3.0, "int8", "normal"), (0.4, "float4_e2m1fn", "subnormal")],
)  # fmt: skip
def test_kinds(x: float, name: str, kind: str) -> None:
    """Each kind of number is named, and its table can be drawn."""
    n = precision.number(x, name)
    assert n.kind == kind
    assert n.table()[1]
    assert precision.number_from_bits(n.bits, name).code == n.code


def test_steps_walk_along_the_format() -> None:
    """Up and down by neighbours; the walk stops at the ends."""
    assert precision.number(1.0, "float8_e4m3fn", 3).held == 1.375
    assert precision.number(1.0, "float8_e4m3fn", -2).held == 0.875
    assert precision.number(400.0, "float8_e4m3fn", 50).held == 448
    assert precision.number(-127, "int8", -10).held == -128
    assert precision.number(2.0**-149, "float32", -3).held == -(2.0**-148)


def test_numbers_around() -> None:
    """Every number of a format between two ends, across zero too; of too many only their count."""
    every = precision.values("float8_e5m2")
    got, count = precision.nearby(-0.9, 2.1, "float8_e5m2", most=1000)
    np.testing.assert_array_equal(got, every[(every >= -0.9) & (every <= 2.1)])
    assert count == len(got)
    none, many = precision.nearby(1.0, 2.0, "float32")
    assert (len(none), many) == (0, 2**23 + 1)
    assert precision.nearby(500.0, 600.0, "int8") == (pytest.approx(np.zeros(0)), 0)
    np.testing.assert_array_equal(precision.nearby(-2.5, 1.0, "int8")[0], [-2, -1, 0, 1])
    assert precision.nearby(1.01, 1.02, "float8_e4m3fn")[1] == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: precision.number([1.0], "float16"), "expected one number"),
        (lambda: precision.number("1", "float16"), "expected real numbers"),
        (lambda: precision.number(1.0, "float16", 10**6), "steps=1000000"),
        (lambda: precision.number_from_bits("0101", "float16"), "expected 16 zeros and ones"),
        (lambda: precision.number_from_bits("2" * 8, "int8"), "zeros and ones"),
        (lambda: precision.nearby(1.0, math.inf, "float16"), "two finite numbers"),
        (lambda: precision.nearby(2.0, 1.0, "float16"), "lower one first"),
    ],
)
def test_bad_input_is_named(call, says: str) -> None:
    """One sentence."""
    with pytest.raises(InputError, match=says):
        call()
