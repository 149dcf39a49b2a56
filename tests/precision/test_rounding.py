"""One exact rounding: every number, every midpoint and what lies next to it, against whole numbers and fractions (integer_formats.py).

Casting through float32 rounds twice, so neither PyTorch nor ml_dtypes is an oracle here; NumPy's own cast of float64 to float32 and to
float16 rounds once and is one.
"""

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

OVERFLOWN = {"ieee": math.inf, "nan": math.nan, "none": 6.0}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_number_midpoint_and_its_neighbours(name: str) -> None:
    """A number stays; a midpoint goes to the even code; the float64 on either side of it goes to its own side. Both signs."""
    published = PUBLISHED[name]
    exact = published.magnitudes()
    after = 2 * exact[-1] - exact[-2]  # what would come next, if the exponents went on
    ladder = np.array([float(v) for v in exact])
    middles = [(low + high) / 2 for low, high in zip(exact, [*exact[1:], after], strict=True)]
    middle = np.array([float(v) for v in middles])
    assert all(Fraction(m) == v for m, v in zip(middle.tolist(), middles, strict=True)), "float64 holds every midpoint"
    higher = np.append(ladder[1:], OVERFLOWN[published.specials])
    even = np.where(np.arange(len(ladder)) % 2 == 0, ladder, higher)  # a magnitude's place in the list is its code
    for sign in (1.0, -1.0):
        for x, expected in (
            (ladder, ladder),
            (middle, even),
            (np.nextafter(middle, 0), ladder),
            (np.nextafter(middle, np.inf), higher),
        ):
            got = precision.round_to(sign * x, name)
            np.testing.assert_array_equal(got, sign * expected)
            np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), sign < 0)


def test_every_midpoint_of_int8() -> None:
    """Halves go to the even number, and beyond the ends the ends stay; there is no negative zero."""
    halves = np.arange(-131, 131) + 0.5
    expected = [float(min(max(round(Fraction(h)), -128), 127)) for h in halves.tolist()]
    np.testing.assert_array_equal(precision.round_to(halves, "int8"), expected)
    for side, where in ((0, -np.inf), (1, np.inf)):
        beside = np.nextafter(halves, where)
        whole = np.clip(np.floor(halves) + side, -128, 127)
        np.testing.assert_array_equal(precision.round_to(beside, "int8"), whole)
    assert not np.signbit(precision.round_to([-0.0, -0.3, -0.5], "int8")).any()


def _any_floats(count: int, seed: int) -> np.ndarray:
    """Random bits: every exponent and sign, infinities and nans among them."""
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64).view(np.float64)


def _near(name: str, count: int, seed: int) -> np.ndarray:
    """Floats in the format's own range, and just beyond it."""
    f, rng = precision.format(name), np.random.default_rng(seed)
    low, high = math.log2(f.smallest_subnormal) - 3, min(math.log2(f.largest) + 1, 1023.5)
    return rng.choice([-1.0, 1.0], count) * 2.0 ** rng.uniform(low, high, count)


@pytest.mark.parametrize("name", PUBLISHED)
def test_random_numbers_against_fractions(name: str) -> None:
    """A thousand floats of the format's range land where exact arithmetic says."""
    published = PUBLISHED[name]
    for x in _near(name, 1000, 7).tolist():
        nearest = published.nearest(Fraction(x))
        expected = math.copysign(OVERFLOWN[published.specials] if nearest is None else float(abs(nearest)), x)
        np.testing.assert_equal(float(precision.round_to(x, name)), expected)


@pytest.mark.parametrize(("name", "exponent_bits", "mantissa_bits"), [("tf32", 8, 10), ("float32", 8, 23), ("bfloat16", 8, 7)])
def test_wide_formats_against_fractions(name: str, exponent_bits: int, mantissa_bits: int) -> None:
    """The same for formats with too many numbers to list, subnormal ones too, and midpoints of random neighbours."""
    low = precision.round_to(_near(name, 600, 8), name)
    low = low[np.isfinite(low)]
    middles = (low + precision.neighbours(low, name)[1]) / 2
    tries = np.concatenate([_near(name, 600, 9), middles, np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf)])
    largest = precision.format(name).largest
    for x in tries[np.isfinite(tries)].tolist():
        exact = round_fraction(Fraction(x), exponent_bits, mantissa_bits)
        expected = math.copysign(math.inf, x) if abs(exact) > largest else float(exact)
        assert float(precision.round_to(x, name)) == expected


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_against_numpys_cast(name: str) -> None:
    """NumPy casts float64 to these two with one rounding: half a million floats agree, bit for bit."""
    x = np.concatenate([_any_floats(250_000, 1), _near(name, 250_000, 2)])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        cast = x.astype(name).astype(np.float64)
    got = precision.round_to(x, name)
    real = ~np.isnan(x)
    np.testing.assert_array_equal(got[real].view(np.uint64), cast[real].view(np.uint64))
    assert np.isnan(got[~real]).all()


def test_float64_is_left_alone() -> None:
    """Its own numbers need no rounding; infinity saturates where asked."""
    x = _any_floats(1000, 3)
    np.testing.assert_array_equal(precision.round_to(x, "float64"), x)
    assert precision.round_to(-math.inf, "float64", overflow="saturate") == -1.7976931348623157e308


def test_a_cast_through_float32_rounds_twice() -> None:
    """Just off a midpoint, the float32 in between falls onto it, and the tie then goes the wrong way; one rounding does not."""
    x = 1 + 2.0**-11 + 2.0**-40  # above the midpoint of 1 and 1 + 2**-10: the answer is the upper one
    assert precision.round_to(x, "float16") == 1 + 2.0**-10
    assert float(torch.tensor(x, dtype=torch.float64).float().half()) == 1.0


@pytest.mark.parametrize(
    ("name", "usual", "saturated"),
    [("float16", math.inf, 65504), ("bfloat16", math.inf, 3.3895313892515355e38), ("float8_e5m2", math.inf, 57344),
     ("float8_e4m3fn", math.nan, 448), ("float4_e2m1fn", 6, 6), ("float32", math.inf, 3.4028234663852886e38)],
)  # fmt: skip
def test_overflow_rules(name: str, usual: float, saturated: float) -> None:
    """An infinity, and a number beyond the largest, follow the rule; a nan stays one where the format has it."""
    for x in (math.inf, 1e308):
        np.testing.assert_equal(float(precision.round_to(x, name)), float(usual))
        np.testing.assert_equal(float(precision.round_to(-x, name)), -float(usual))
        assert precision.round_to(x, name, overflow="saturate") == saturated
        assert precision.round_to(-x, name, overflow="saturate") == -saturated
    for rule in (None, "saturate"):
        got = float(precision.round_to(math.nan, name, overflow=rule))
        assert got == 6.0 if name == "float4_e2m1fn" else math.isnan(got)


def test_overflow_of_an_infinite_format_may_be_nan() -> None:
    """A format that has nan can follow the rule of one that has no infinity."""
    assert math.isnan(precision.round_to(1e6, "float16", overflow="nan"))
    assert precision.round_to(math.nan, "int8") == 0
    np.testing.assert_array_equal(precision.round_to([1e9, -1e9, math.inf], "int8"), [127, -128, 127])


@pytest.mark.parametrize(
    ("name", "stays", "goes"), [("float16", 65519.99, 65520.0), ("float8_e4m3fn", 464.0, 464.01), ("float4_e2m1fn", 6.9, 7.0)]
)
def test_the_threshold_of_overflow(name: str, stays: float, goes: float) -> None:
    """By hand: 65520 lies midway between 65504 and 65536, which is even; 464 between 448, which is even, and 480."""
    f = precision.format(name)
    assert precision.round_to(stays, name) == f.largest
    assert precision.round_to(goes, name) != f.largest or name == "float4_e2m1fn"
    assert f.overflow_threshold == {"float16": 65520, "float8_e4m3fn": 464, "float4_e2m1fn": 7}[name]
    assert f.overflows_at_threshold == (name != "float8_e4m3fn")


def test_known_numbers() -> None:
    """2,048 + 1 = 2,048; 70,000 is infinite; half of the smallest number is zero and a little more is not; one third, by hand."""
    got = precision.round_to([2049.0, 70000.0, 2.0**-25, 2.0**-25 * 1.001, 1 / 3, 1e-8, 2051.0], "float16")
    np.testing.assert_array_equal(got, [2048, math.inf, 0, 2.0**-24, 1365 / 4096, 0, 2052])


@given(x=st.floats(allow_nan=False), y=st.floats(allow_nan=False), name=st.sampled_from(precision.formats()))
@settings(max_examples=400, deadline=None)
def test_rounding_keeps_the_order_and_the_sign(x: float, y: float, name: str) -> None:
    """Idempotent, odd (but for int8's lower end), and never turning the order of two numbers round."""
    low, high = sorted((x, y))
    a, b = (float(precision.round_to(v, name, overflow="saturate")) for v in (low, high))
    assert a <= b
    assert precision.round_to(a, name) == a
    if name != "int8":
        assert precision.round_to(-x, name, overflow="saturate") == -precision.round_to(x, name, overflow="saturate")


# -- Stochastic rounding --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "x"),
    [("float16", 1.0003), ("float16", -2049.3), ("bfloat16", 0.1), ("float8_e4m3fn", 3e-4), ("float8_e5m2", 40000.0), ("int8", -7.2),
     ("float4_e2m1fn", 2.25), ("tf32", 1e-39)],
)  # fmt: skip
def test_stochastic_rounding_is_unbiased(name: str, x: float) -> None:
    """The mean of 400,000 roundings is x within five standard errors, and only the two neighbours come up, both of them."""
    tries = precision.stochastic_round(np.full(400_000, x), name, seed=3)
    below, above = (float(v) for v in precision.neighbours(x, name))
    assert set(np.unique(tries).tolist()) == {below, above}
    share = (x - below) / (above - below)
    assert abs(tries.mean() - x) < 5 * (above - below) * math.sqrt(share * (1 - share) / 400_000)


def test_a_share_that_chance_must_meet() -> None:
    """The number that decides is compared with the distance exactly: a draw below it goes up, the draw itself and above go down."""

    class Draws(np.random.Generator):
        """Gives 0, a quarter, and the float before a quarter, wherever it is asked."""

        def random(self, *args: object, **named: object) -> np.ndarray:  # type: ignore[override]
            return np.array([0.0, 0.25, math.nextafter(0.25, 0), 0.75])

    x = np.full(4, 1 + 2.0**-10 / 4)
    got = precision.stochastic_round(x, "float16", Draws(np.random.PCG64(0)))
    np.testing.assert_array_equal(got, [1 + 2.0**-10, 1, 1 + 2.0**-10, 1])


def test_stochastic_rounding_repeats_under_a_seed() -> None:
    """The same seed, the same roundings; a generator goes on; what the format holds stays."""
    x = np.linspace(0.1, 5.0, 1000)
    a, b, c = (precision.stochastic_round(x, "bfloat16", seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    source = np.random.default_rng(5)
    first, second = (precision.stochastic_round(x, "bfloat16", source) for _ in range(2))
    np.testing.assert_array_equal(first, a)
    assert (second != a).any()
    held = precision.values("float8_e5m2")
    np.testing.assert_array_equal(precision.stochastic_round(held, "float8_e5m2", 1), held)
    special = precision.stochastic_round([math.nan, math.inf, -math.inf, -0.0], "float16")
    np.testing.assert_array_equal(special, [math.nan, math.inf, -math.inf, 0])
    assert np.signbit(special[3])
    np.testing.assert_array_equal(precision.stochastic_round([1e9, -1e9], "float8_e4m3fn", overflow="saturate"), [448, -448])
