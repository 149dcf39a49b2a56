"""The formats' facts and codes against their published parameters, in whole numbers and fractions (integer_formats.py)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_formats import PUBLISHED

from gpulab import precision
from gpulab.errors import InputError
from gpulab.precision import _codes

WIDE = ("float16", "bfloat16", "float32", "float64")
# Largest, smallest normal, smallest subnormal, epsilon: IEEE 754-2019 table 3.5, OFP8 table 1, MX table 5, and arithmetic by hand.
FACTS = {
    "float64": (Fraction(2**53 - 1) * 2**971, Fraction(1, 2**1022), Fraction(1, 2**1074), Fraction(1, 2**52)),
    "float32": (Fraction(2**24 - 1) * 2**104, Fraction(1, 2**126), Fraction(1, 2**149), Fraction(1, 2**23)),
    "tf32": (Fraction(2**11 - 1) * 2**117, Fraction(1, 2**126), Fraction(1, 2**136), Fraction(1, 2**10)),
    "float16": (Fraction(65504), Fraction(1, 2**14), Fraction(1, 2**24), Fraction(1, 2**10)),
    "bfloat16": (Fraction(2**8 - 1) * 2**120, Fraction(1, 2**126), Fraction(1, 2**133), Fraction(1, 2**7)),
    "float8_e4m3fn": (Fraction(448), Fraction(1, 2**6), Fraction(1, 2**9), Fraction(1, 2**3)),
    "float8_e5m2": (Fraction(57344), Fraction(1, 2**14), Fraction(1, 2**16), Fraction(1, 2**2)),
    "int8": (Fraction(127), Fraction(1), Fraction(1), Fraction(1)),
    "float4_e2m1fn": (Fraction(6), Fraction(1), Fraction(1, 2), Fraction(1, 2)),
}


def test_the_names_are_those_of_the_design() -> None:
    """From the widest to the narrowest."""
    assert precision.formats() == tuple(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_facts(name: str) -> None:
    """Range, smallest numbers and spacing at one are the published ones, exactly."""
    f = precision.format(name)
    assert tuple(Fraction(v) for v in (f.largest, f.smallest_normal, f.smallest_subnormal, f.epsilon)) == FACTS[name]
    assert f.lowest == (-128 if name == "int8" else -f.largest)


@pytest.mark.parametrize("name", [*WIDE, "float8_e4m3fn", "float8_e5m2"])
def test_facts_are_pytorchs(name: str) -> None:
    """torch.finfo says the same of the formats that PyTorch has."""
    f, info = precision.format(name), torch.finfo(getattr(torch, name))
    assert (f.largest, f.smallest_normal, f.epsilon, f.bits) == (info.max, info.tiny, info.eps, info.bits)


@pytest.mark.parametrize(
    ("name", "rule", "infinity", "nan"),
    [
        ("float16", "infinity", True, True), ("float8_e5m2", "infinity", True, True), ("float8_e4m3fn", "nan", False, True),
        ("float4_e2m1fn", "saturate", False, False), ("int8", "saturate", False, False),
    ],
)  # fmt: skip
def test_special_values(name: str, rule: str, infinity: bool, nan: bool) -> None:
    """Which formats have infinities and nans, and what their usual overflow rule is."""
    f = precision.format(name)
    assert (f.overflow, f.has_infinity, f.has_nan, math.isnan(f.nan_becomes)) == (rule, infinity, nan, nan)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_code(name: str) -> None:
    """Each code decodes to the number that its fields stand for, and that number encodes to the code, -0 too; all nans are nan."""
    published = PUBLISHED[name]
    half = 2 ** (published.bits - 1)
    counted = [published.units(code) for code in range(half)]
    got = precision.decode(np.arange(2 * half), name)
    for code, (positive, negative) in enumerate(zip(got[:half].tolist(), got[half:].tolist(), strict=True)):
        count = counted[code]
        if count == "nan":
            assert math.isnan(positive)
            assert math.isnan(negative)
        elif count == "inf":
            assert (positive, negative) == (math.inf, -math.inf)
        else:
            assert Fraction(positive) == count * published.unit == -Fraction(negative)
            assert math.copysign(1, negative) == -1
    real = ~np.isnan(got)
    np.testing.assert_array_equal(precision.encode(got[real], name), np.arange(2 * half)[real])
    listed = precision.values(name)
    assert len(listed) == 2 * sum(isinstance(c, int) for c in counted) - 1
    assert (np.diff(listed) > 0).all()


def test_every_code_of_int8() -> None:
    """Two's complement, and zero has one code."""
    codes = np.arange(256)
    np.testing.assert_array_equal(precision.decode(codes, "int8"), [c - 256 if c > 127 else c for c in range(256)])
    np.testing.assert_array_equal(precision.encode(precision.decode(codes, "int8"), "int8"), codes)
    assert precision.encode(-0.0, "int8") == 0


@pytest.mark.parametrize(("name", "kind"), [("float64", np.uint64), ("float32", np.uint32), ("float16", np.uint16)])
def test_bits_are_numpys(name: str, kind: type) -> None:
    """Random bits decode and encode as NumPy's own view of them."""
    bits = np.random.default_rng(1).integers(0, np.iinfo(kind).max, 20_000, dtype=kind, endpoint=True)
    with np.errstate(invalid="ignore"):
        viewed = bits.view(np.dtype(name)).astype(np.float64)
    np.testing.assert_array_equal(precision.decode(bits, name), viewed)
    real = ~np.isnan(viewed)
    np.testing.assert_array_equal(precision.encode(viewed[real], name), bits[real])


@pytest.mark.parametrize(
    ("name", "code"), [("float16", 0x7E00), ("bfloat16", 0x7FC0), ("float8_e5m2", 0x7E), ("float8_e4m3fn", 0x7F), ("float32", 0x7FC00000)]
)
def test_code_of_nan(name: str, code: int) -> None:
    """A nan has the code of the positive quiet nan."""
    assert precision.encode(-np.nan, name) == code


@pytest.mark.parametrize("name", PUBLISHED)
def test_neighbours_and_spacing_of_every_number(name: str) -> None:
    """The number before and the one after in the list; the distance to the next one outwards."""
    listed = precision.values(name)
    end = math.inf if PUBLISHED[name].specials == "ieee" else math.nan
    below, above = precision.neighbours(listed, name)
    np.testing.assert_array_equal(below, [-end, *listed[:-1]])
    np.testing.assert_array_equal(above, [*listed[1:], end])
    between = (listed[:-1] + listed[1:]) / 2
    below, above = precision.neighbours(between, name)
    np.testing.assert_array_equal(below, listed[:-1])
    np.testing.assert_array_equal(above, listed[1:])
    positive = listed[listed >= 0]
    np.testing.assert_array_equal(precision.spacing(positive[:-1], name), np.diff(positive))
    np.testing.assert_array_equal(precision.spacing(-positive[:-1], name), np.diff(positive))


@given(x=st.floats(allow_nan=False), name=st.sampled_from(list(FACTS)))
@settings(max_examples=300, deadline=None)
def test_neighbours_surround(x: float, name: str) -> None:
    """Both are numbers of the format (or its infinity), strictly below and above, with at most one number of the format between them."""
    below, above = (float(v) for v in precision.neighbours(x, name))
    for one, fits in ((below, below < x), (above, above > x)):
        assert math.isnan(one) or fits
        assert math.isnan(one) or math.isinf(one) or precision.round_to(one, name) == one
    if math.isfinite(below) and math.isfinite(above):
        again = float(precision.neighbours(below, name)[1])
        assert again == above or (again == x and float(precision.neighbours(x, name)[1]) == above)


def test_neighbours_beyond_the_ends() -> None:
    """Beyond the largest number the next one below is the largest; there is nothing above an infinity, and nan has no neighbours."""
    below, above = precision.neighbours([1e9, math.inf, -math.inf, math.nan], "float16")
    np.testing.assert_array_equal(below, [65504, 65504, math.nan, math.nan])
    np.testing.assert_array_equal(above, [math.inf, math.nan, -65504, math.nan])
    below, above = precision.neighbours([-129, -128, 127, 200], "int8")
    np.testing.assert_array_equal(below, [math.nan, math.nan, 126, 127])
    np.testing.assert_array_equal(above, [-128, -127, math.nan, math.nan])
    assert math.isnan(precision.spacing(7.0, "float4_e2m1fn"))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: precision.format("half"), "expected one of: float64"),
        (lambda: precision.round_to("1.5", "float16"), "expected real numbers"),
        (lambda: precision.round_to([1.0, 1j], "float16"), "expected real numbers"),
        (lambda: precision.round_to(2**53 + 1, "float16"), "x holds an int64 that float64 does not, so it would be rounded twice"),
        (lambda: precision.round_to(np.uint64(2**64 - 1), "float16"), "x holds a uint64 that float64 does not"),
        (lambda: precision.round_to(1.0, "float4_e2m1fn", overflow="infinity"), "expected one of: saturate"),
        (lambda: precision.round_to(1.0, "float8_e4m3fn", overflow="infinity"), "expected one of: nan, saturate"),
        (lambda: precision.decode(256, "int8"), "from 0 to 2"),
        (lambda: precision.decode(-1, "float16"), "from 0 to 2"),
        (lambda: precision.decode(1.5, "float16"), "whole numbers"),
        (lambda: precision.values("float32"), "at most 19 bits"),
        (lambda: precision.stochastic_round(1.0, "float16", seed=-1), "seed=-1"),
    ],
)
def test_bad_input_is_named(call, says: str) -> None:
    """One sentence with the value, what was expected and what to do."""
    with pytest.raises(InputError, match=says):
        call()


def test_what_float64_holds_is_taken() -> None:
    """Whole numbers, booleans excepted, narrower floats and tensors are float64 numbers too."""
    assert precision.round_to(2**63, "bfloat16") == 2.0**63
    assert precision.round_to(torch.tensor([3.0], dtype=torch.bfloat16), "float16").tolist() == [3.0]
    assert precision.round_to(np.float32(0.1), "float32") == float(np.float32(0.1))
    assert precision.round_to([[1, 2], [3, 4]], "float16").shape == (2, 2)
    with pytest.raises(InputError):
        precision.round_to(True, "float16")


@pytest.mark.parametrize(
    ("name", "rows", "text"),
    [
        (
            "float16",
            ["16: 1 sign, 5 exponent, 10 mantissa", "65504; beyond it a number becomes infinite", "6.10352e-05", "5.96046e-08",
             "0.000976562 (3.3 decimal digits)", "yes, yes", "Tensor Cores; autocast with loss scaling"],
            "<format float16: 1 + 5 + 10 bits, up to 65504>",
        ),
        (
            "float8_e4m3fn",
            ["8: 1 sign, 4 exponent, 3 mantissa", "448; beyond it a number becomes nan", "0.015625", "0.00195312",
             "0.125 (1.2 decimal digits)", "no, yes", "weights and activations on Tensor Cores from compute capability 8.9 on"],
            "<format float8_e4m3fn: 1 + 4 + 3 bits, up to 448>",
        ),
        (
            "int8",
            ["8: two's complement", "127; beyond it a number stays at the largest", "1", "1", "1 (2.1 decimal digits)", "no, no",
             "quantised weights and activations, with a scale beside them"],
            "<format int8: 8 bits, two's complement, up to 127>",
        ),
    ],
)  # fmt: skip
def test_the_facts_in_a_table_and_in_one_line(name: str, rows: list[str], text: str) -> None:
    """By hand: decimal digits are the logarithm of 2^11, 2^4 and 2^7."""
    f = precision.format(name)
    titles = ["bits", "largest", "smallest normal", "smallest subnormal", "epsilon", "infinity, nan", "used for"]
    assert f.table() == ((name, ""), list(zip(titles, rows, strict=True)))
    assert repr(f) == text
    assert (f.evidence.badge, f.evidence.source) == ("MODELLED", f.source)


def test_all_but_tf32_are_stored_in_their_own_bits() -> None:
    """TF32 lies in memory as float32."""
    found = {name: precision.format(name) for name in FACTS}
    assert {name: f.storage_bits - f.bits for name, f in found.items()} == {**dict.fromkeys(FACTS, 0), "tf32": 13}
    assert [precision.format(name).emin for name in ("float16", "int8")] == [-14, 0]


def test_nineteen_bits_are_listed_whole() -> None:
    """TF32 has 255 exponents of 1,024 numbers on each side, and one zero; of the wide ones there is a sentence."""
    assert len(precision.values("tf32")) == 2 * 255 * 1024 - 1


def test_codes_lie_in_the_smallest_unsigned_numbers() -> None:
    """Of 8, 16, 32 or 64 bits: four bits in a byte, TF32's nineteen in 32; an array keeps its shape, a number has none."""
    assert {name: _codes._code_type(precision.format(name)) for name in FACTS} == {
        "float64": np.uint64, "float32": np.uint32, "tf32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16,
        "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8, "int8": np.uint8, "float4_e2m1fn": np.uint8,
    }  # fmt: skip
    for name in FACTS:
        found = precision.encode([[1.0, -1.0]], name)
        assert (found.dtype, found.shape) == (_codes._code_type(precision.format(name)), (1, 2))
        assert precision.decode(found, name).tolist() == [[1.0, -1.0]]
        assert precision.encode(1.0, name).shape == precision.decode(0, name).shape == ()


def test_overflow_is_encoded_by_the_rule_that_was_asked() -> None:
    """A thousand in four bits of exponent and three of mantissa: the nan by its usual rule, 448 where it saturates."""
    assert precision.encode([1e3, -1e3], "float8_e4m3fn").tolist() == [0x7F, 0x7F]
    assert precision.encode([1e3, -1e3], "float8_e4m3fn", "saturate").tolist() == [0x7E, 0xFE]
    assert precision.encode([1e9, -1e9], "float16").tolist() == [0x7C00, 0xFC00]


def test_a_spacing_has_ends() -> None:
    """At the largest and the lowest number there is one, beyond them and at what is not finite none."""
    found = precision.spacing([65504.0, 65505.0, -65504.0, -65505.0, math.inf, math.nan, 0.0], "float16")
    np.testing.assert_array_equal(found, [32.0, math.nan, 32.0, math.nan, math.nan, math.nan, 2.0**-24])
    np.testing.assert_array_equal(precision.spacing([-129.0, -128.0, 127.0, 128.0], "int8"), [math.nan, 1.0, 1.0, math.nan])
