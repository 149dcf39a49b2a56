"""Sums and products in narrow formats against exact fractions, NumPy's float16 and float32 and PyTorch's bfloat16."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_formats import PUBLISHED, round_fraction

from gpulab import precision
from gpulab.errors import InputError
from gpulab.evidence import Badge
from gpulab.precision import _exact, _sums

SHAPES = {"float32": (8, 23), "tf32": (8, 10), "float16": (5, 10), "bfloat16": (8, 7), "float8_e5m2": (5, 2)}


def test_one_by_one_is_numpys_running_sum() -> None:
    """np.add.accumulate adds float16 and float32 one after the other, each sum rounded once."""
    x = np.random.default_rng(0).normal(size=3000)
    s = precision.sum_error(x, ["float16", "float32"])
    for name in ("float16", "float32"):
        with np.errstate(over="ignore"):
            held = x.astype(name)
        assert s.row(name).total == float(np.add.accumulate(held, dtype=name)[-1])
    assert s.row("float16", "float32").total == float(np.add.accumulate(x.astype("float16").astype("float32"), dtype="float32")[-1])
    assert s.exact == pytest.approx(sum(map(Fraction, x.tolist())), rel=1e-15)


def test_one_by_one_is_pytorchs_bfloat16() -> None:
    """PyTorch adds two bfloat16 numbers in float32 and rounds: with so few bits the same as one rounding."""
    x = np.random.default_rng(1).uniform(0, 1, 400)
    total = torch.tensor(0.0, dtype=torch.bfloat16)
    for value in precision.round_to(x, "bfloat16").tolist():
        total = total + torch.tensor(value, dtype=torch.bfloat16)
    assert precision.sum_error(x, ["bfloat16"]).row("bfloat16").total == float(total)


@given(a=st.floats(-1e6, 1e6), b=st.floats(-1e6, 1e6), name=st.sampled_from(list(SHAPES)), near=st.integers(-3, 3))
@settings(max_examples=500, deadline=None)
def test_an_addition_is_rounded_once(a: float, b: float, name: str, near: int) -> None:
    """Also where the float64 sum was itself rounded, onto or off a midpoint: both ways of adding agree with exact fractions."""
    b = b * 2.0 ** (-40 + near) if near > 0 else b
    exact = Fraction(a) + Fraction(b)
    expected = round_fraction(exact, *SHAPES[name])
    one = precision.format(name)
    wanted = math.copysign(math.inf, exact) if abs(expected) > one.largest else float(expected)
    assert float(_exact.add(np.array(a), np.array(b), one)) == wanted
    held = float(precision.round_to(a, name, overflow="saturate"))
    expected = round_fraction(Fraction(held) + Fraction(b), *SHAPES[name])
    wanted = math.copysign(math.inf, expected) if abs(expected) > one.largest else float(expected)
    assert _exact.running_sum([held, b], one) == wanted


def test_a_rest_decides_a_midpoint() -> None:
    """1 + 2**-11 lies midway; a rest of 2**-60, which float64 loses, must still push the sum up, and the other way down."""
    one = precision.format("float16")
    middle = 1 + 2.0**-11
    for rest, expected in ((2.0**-60, 1 + 2.0**-10), (-(2.0**-60), 1.0), (0.0, 1.0)):
        assert float(_exact.add(np.array(middle), np.array(rest), one)) == expected
    total = _exact.running_sum([1.0, 2.0**-11 + 2.0**-63], precision.format("float16"))
    assert total == 1 + 2.0**-10


def test_swallowed_ones() -> None:
    """By hand: in float16 2,048 + 1 is 2,048; pairs, float32 and chance get on."""
    s = precision.sum_error(np.ones(4096), ["float16", "bfloat16"])
    assert s.row("float16").total == 2048
    assert s.row("bfloat16").total == 256
    assert s.row("float16", order="in pairs").total == s.row("float16", "float32").total == 4096
    assert abs(s.row("float16", order="one by one, by chance").total - 4096) < 400
    assert s.row("float16").relative_error == 0.5


def test_chance_is_unbiased_in_a_sum() -> None:
    """Over forty seeds the sums by chance lie around the exact sum, where rounding to nearest is always short of it."""
    x = np.full(3000, 0.1)
    totals = [precision.sum_error(x, ["bfloat16"], seed=s).row("bfloat16", order="one by one, by chance").total for s in range(40)]
    held = 3000 * float(precision.round_to(0.1, "bfloat16"))
    error = np.std(totals) / math.sqrt(len(totals))
    assert abs(np.mean(totals) - held) < 4 * error
    assert precision.sum_error(x, ["bfloat16"]).row("bfloat16").total < 0.9 * held


def test_chance_decides_beyond_the_largest_number_too() -> None:
    """65,510 lies 6 of 32 above float16's largest: it goes up, to infinity, in 6 of 32 cases; what is infinite stays so."""
    half, tiny = precision.format("float16"), precision.format("float4_e2m1fn")
    assert [_sums._by_chance(65510.0, half, draw) for draw in (0.18, 0.19)] == [math.inf, 65504.0]
    assert [_sums._by_chance(-65510.0, half, draw) for draw in (0.18, 0.19)] == [-math.inf, -65504.0]
    assert _sums._by_chance(-math.inf, half, 0.9) == -math.inf
    assert math.isnan(_sums._by_chance(math.nan, half, 0.5))
    assert math.isnan(_sums._by_chance(500.0, precision.format("float8_e4m3fn"), 0.5))
    assert [_sums._by_chance(value, tiny, 0.9) for value in (7.0, -9.0, math.nan)] == [6.0, -6.0, 6.0]


def test_a_sum_that_overflows() -> None:
    """Float16 ends at 65,504: the sum is infinite there and the error says so; in float32 it is not."""
    s = precision.sum_error([60000.0, 60000.0], ["float16"])
    assert s.row("float16").total == math.inf
    assert math.isinf(s.row("float16").relative_error)
    assert s.row("float16", "float32").total == 120000
    assert "inf" in s._repr_html_()


def test_a_product_against_fractions() -> None:
    """Every product exact, every sum rounded once: a small product worked out in fractions."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(3, 20)), rng.normal(size=(20, 2))
    got = precision.matmul_error(a, b, ["float16"], device="simulated")
    exact = a @ b
    for name in ("float16", "float32"):
        worst = 0.0
        for i in range(3):
            for j in range(2):
                total = Fraction(0)
                for k in range(20):
                    left, right = (PUBLISHED["float16"].nearest(Fraction(v)) for v in (a[i, k], b[k, j]))
                    assert left is not None
                    assert right is not None
                    total = round_fraction(total + left * right, *SHAPES[name])
                worst = max(worst, abs(float(total) - exact[i, j]))
        assert got.row("float16", name).max_relative_error == pytest.approx(worst / np.abs(exact).max(), rel=1e-12)


def test_the_accumulator_matters_more_with_length() -> None:
    """With float16 operands the error in float32 stays that of the operands, while in float16 it grows with the length of the sums."""
    rng = np.random.default_rng(3)
    narrow, wide = [], []
    for k in (64, 1024):
        p = precision.matmul_error(rng.random((8, k)), rng.random((k, 8)), ["float16"], device="simulated")
        narrow.append(p.row("float16", "float16").max_relative_error)
        wide.append(p.row("float16", "float32").max_relative_error)
    assert narrow[1] > 2 * narrow[0]
    assert narrow[1] > 20 * wide[1]
    assert wide[1] < 2.0**-11  # the unit roundoff of float16


def test_the_devices_own_product() -> None:
    """What PyTorch gives here is MEASURED, names the device, and is no worse than operands and accumulator allow."""
    rng = np.random.default_rng(4)
    p = precision.matmul_error(rng.random((16, 128)), rng.random((128, 16)), ["float32", "bfloat16", "float8_e4m3fn"], device="cpu")
    measured = {row.operands: row for row in p.rows if row.badge is Badge.MEASURED}
    assert set(measured) == {"float32", "bfloat16"}
    assert p.device_evidence is not None
    assert p.device_evidence.device
    # The result leaves in bfloat16 too: half a unit of 2**-8, and the operands' own rounding.
    assert measured["bfloat16"].max_relative_error < 2 * 2.0**-8
    assert measured["float32"].max_relative_error < 128 * 2.0**-24
    assert "MEASURED" in p._repr_html_()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: precision.sum_error([]), "got 0 values"),
        (lambda: precision.sum_error([1.0, math.nan]), "infinite or nan"),
        (lambda: precision.sum_error([1.0], []), "formats is empty"),
        (lambda: precision.sum_error([1.0], ["int8"]), "expected one of: float32"),
        (lambda: precision.sum_error([1.0], ["float16"]).row("bfloat16"), "expected one of: float16 in float16"),
        (lambda: precision.matmul_error(np.ones((2, 3)), np.ones((2, 3))), "Transpose or reshape"),
        (lambda: precision.matmul_error(np.ones((2000, 2000)), np.ones((2000, 2000))), "at most 2"),
        (lambda: precision.matmul_error(np.ones((1, 1)), np.ones((1, 1)), device="simulated").row("tf32"), "expected one of"),
    ],
)
def test_bad_input_is_named(call, says: str) -> None:
    """One sentence."""
    with pytest.raises(InputError, match=says):
        call()


def test_sums_in_a_table_and_in_one_line() -> None:
    """Three thousand ones, by hand: float16 stays at 2,048, 952 too few, which is 31.733 % of them."""
    s = precision.sum_error(np.ones(3000), ["float16", "float32"])
    wanted = [
        ("float16", "float16", "one by one", "2048", "31.733%"), ("float16", "float16", "in pairs", "3000", "0"), None,
        ("float16", "float32", "one by one", "3000", "0"), ("float32", "float32", "one by one", "3000", "0"),
        ("float32", "float32", "in pairs", "3000", "0"), ("exact", "", "", "3000", ""),
    ]  # fmt: skip
    headers, rows = s.table()
    assert headers == ("values in", "added up in", "order", "sum", "relative error")
    assert rows[2][:3] == ("float16", "float16", "one by one, by chance")
    assert [*rows[:2], None, *rows[3:]] == wanted
    assert repr(s).startswith("<sum of 3,000 values, exactly 3000: float16 2048, float16 3000, float16 ")


def test_the_error_of_a_sum_of_nothing_is_its_own_size() -> None:
    """1 and 2^-13 and both with a minus: in float16 the second is lost and comes back, so -2^-13 is left of 0."""
    s = precision.sum_error([1.0, 2.0**-13, -1.0, -(2.0**-13)], ["float16"])
    assert (s.exact, s.row("float16").total, s.row("float16").relative_error) == (0.0, -(2.0**-13), 2.0**-13)


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0, "0"), (0.5, "50.000%"), (1e-5, "0.001%"), (9.9e-6, "9.9e-06"), (math.inf, "inf"), (math.nan, "nan")]
)
def test_errors_as_text(ratio: float, text: str) -> None:
    """Tiny ones as a power of ten."""
    assert _sums.percent(ratio) == text


def test_the_errors_of_a_product_by_hand() -> None:
    """1 in place of 2 beside 4: a quarter of the largest; the root of 1/2 over the root of (4 + 16) / 2. Beside zeros, the error itself."""
    row = _sums._row("a", "b", np.array([[1.0, 4.0]]), np.array([[2.0, 4.0]]), Badge.MODELLED)
    assert (row.max_relative_error, row.rms_relative_error) == (0.25, pytest.approx(math.sqrt(0.5 / 10)))
    row = _sums._row("a", "b", np.array([[3.0, 0.0]]), np.zeros((1, 2)), Badge.MODELLED)
    assert (row.max_relative_error, row.rms_relative_error) == (3.0, pytest.approx(math.sqrt(4.5)))


def test_a_product_in_a_table_and_in_one_line() -> None:
    """Of whole numbers nothing is lost; the measured row names its device below."""
    ones = [[1.0, 2.0]]
    p = precision.matmul_error(ones, [[1.0], [1.0]], ["float16", "float32"], device="simulated")
    assert (repr(p), p.caption()) == ("<product of 1 x 2 and 2 x 1, 3 ways>", p.evidence.sentence)
    assert p.table() == (
        ("operands in", "added up in", "largest error", "typical error (rms)", ""),
        [(one, other, "0", "0", "MODELLED") for one, other in (("float16", "float16"), ("float16", "float32"), ("float32", "float32"))],
    )
    here = precision.matmul_error(ones, [[1.0], [1.0]], ["float16"], device="cpu")
    assert here.table()[1][-1] == ("float16", "device", "0", "0", "MEASURED")
    assert here.caption() == f"{here.evidence.sentence}; measured rows: {here.device_evidence.sentence}"


def test_what_is_too_large_is_what_the_sentences_say() -> None:
    """A million values and 2**26 products are the most; one value is enough."""
    assert (_sums._MOST_VALUES, _sums._MOST_PRODUCTS) == (1_000_000, 2**26)
    with pytest.raises(InputError, match="got 1,000,001 values; expected 1 to 1,000,000 finite numbers"):
        precision.sum_error(np.ones(1_000_001))
    assert precision.sum_error([3.0], ["float16"]).row("float16").total == 3.0
