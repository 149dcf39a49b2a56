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


@pytest.mark.parametrize(
    ("x", "name", "rows"),
    [
        (
            -1e-6, "float16",  # 17 of the smallest numbers, 2^-24
            ["-9.9999999999999995e-07", "-1.0132789611816406e-06", "subnormal",
             "1 00000 0000010001 = -0.0166015625 x 2^-14 (subnormal: no leading 1)", "0.013", "-1.072883606e-06, -9.536743164e-07",
             "5.960464478e-08"],
        ),
        (0.0, "float16", ["0", "0", "zero", "0 00000 0000000000 = 0 x 2^-14", "0", "-5.960464478e-08, 5.960464478e-08", "5.960464478e-08"]),
        (7e4, "float16", ["70000", "inf", "infinite", "0 11111 0000000000 = the bits of an infinity", "-", "65504, none", "none"]),
        (500.0, "float8_e4m3fn", ["500", "nan", "nan", "0 1111 111 = the bits of nan, not a number", "-", "none, none", "none"]),
        (-3.25, "int8", ["-3.25", "-3", "normal", "1 1111101 = two's complement", "0.077", "-4, -2", "1"]),
        (2.5, "float16", ["2.5", "2.5", "normal", "0 10000 0100000000 = 1.25 x 2^1", "0", "2.498046875, 2.501953125", "0.001953125"]),
    ],
)  # fmt: skip
def test_a_number_in_a_table(x: float, name: str, rows: list[str]) -> None:
    """Each kind by hand."""
    titles = ["asked for", "held", "kind", "bits", "relative error", "next below, next above", "to the next number"]
    assert precision.number(x, name).table() == ((name, ""), list(zip(titles, rows, strict=True)))


def test_the_ends_of_a_walk_and_of_a_list() -> None:
    """Ten thousand steps are the most; as many numbers as asked for are listed, of one more only the count; 200 if nothing is asked."""
    assert precision.number(127, "int8", 10_000).held == 127
    with pytest.raises(InputError, match="steps=10001; expected a whole number from -10,000 to 10,000"):
        precision.number(0.0, "float64", 10_001)
    assert len(precision.nearby(1.0, 1.5, "float8_e4m3fn", most=5)[0]) == 5
    assert len(precision.nearby(1.0, 1.5, "float8_e4m3fn", most=4)[0]) == 0
    assert [len(precision.nearby(1.0, 1.0 + n / 1024, "float16")[0]) for n in (199, 200)] == [200, 0]
    assert precision.nearby(127, 300, "int8")[0].tolist() == [127]
    assert precision.nearby(-300, -128, "int8")[0].tolist() == [-128]
