"""Exact, single rounding and the codes of formats, against fractions (integer_formats.py).

Casting through float32 rounds twice, so neither PyTorch nor ml_dtypes is an oracle for all inputs;
NumPy's own cast of float64 to float32 and to float16 rounds once, and so do NVIDIA's headers.
"""

import ctypes
import importlib.util
import math
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpulab import precision
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_formats import PUBLISHED, SHAPES, round_fraction
from made_training import told

OVERFLOWN = {"ieee": math.inf, "nan": math.nan, "none": 6.0}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_number_midpoint_and_its_neighbours(name: str) -> None:
    """Numbers stay, midpoints go to the even code, and values next to a midpoint to their side."""
    published = PUBLISHED[name]
    exact = published.magnitudes()
    after = 2 * exact[-1] - exact[-2]  # the next number, if the exponents went on
    middles = [(low + high) / 2 for low, high in zip(exact, [*exact[1:], after], strict=True)]
    ladder, middle = (np.array(list(map(float, each))) for each in (exact, middles))
    assert list(map(Fraction, middle.tolist())) == middles
    higher = np.append(ladder[1:], OVERFLOWN[published.specials])
    even = np.where(np.arange(len(ladder)) % 2 == 0, ladder, higher)
    beside = ((np.nextafter(middle, 0), ladder), (np.nextafter(middle, np.inf), higher))
    for sign in (1.0, -1.0):
        for x, expected in ((ladder, ladder), (middle, even), *beside):
            got = precision.round_to(sign * x, name)
            np.testing.assert_array_equal(got, sign * expected)
            np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), sign < 0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_code_neighbour_and_spacing(name: str) -> None:
    """Codes decode and encode exactly, -0 too; each number knows its neighbors and spacing."""
    published, special = PUBLISHED[name], {"inf": math.inf, "nan": math.nan}
    counted = [published.units(code) for code in range(2 ** (published.bits - 1))]
    positive = [
        special.get(c, c if isinstance(c, str) else float(c * published.unit)) for c in counted
    ]
    codes, end = np.arange(2 * len(counted)), math.inf if "inf" in counted else math.nan
    got = precision.decode(codes, name)
    listed = np.unique(got[np.isfinite(got)])
    np.testing.assert_array_equal(got, [*positive, *(-value for value in positive)])
    np.testing.assert_array_equal(
        precision.encode(got, name)[~np.isnan(got)], codes[~np.isnan(got)]
    )
    chosen = np.unique(np.linspace(0, len(listed) - 1, 999).round().astype(int))
    padded = np.array([-end, *listed, end])[np.add.outer([0, 1, 2], chosen)]
    numbers = [precision.number(x, name) for x in padded[1].tolist()]
    np.testing.assert_array_equal(
        [[n.below for n in numbers], [n.above for n in numbers]], padded[::2]
    )
    wanted = np.where(padded[1] < 0, padded[1] - padded[0], padded[2] - padded[1])
    inner = [n.format.lowest < n.held < n.format.largest for n in numbers]
    np.testing.assert_array_equal(np.array([n.spacing for n in numbers])[inner], wanted[inner])


def test_int8_is_twos_complement() -> None:
    """Halves round to even, values clip at the ends, zero has one code and no sign."""
    signed = [*range(128), *range(-128, 0)]
    np.testing.assert_array_equal(precision.decode(range(256), "int8"), signed)
    np.testing.assert_array_equal(precision.encode(signed, "int8"), range(256))
    halves = np.arange(-131, 131) + 0.5
    expected = [min(max(round(Fraction(h)), -128), 127) for h in halves.tolist()]
    np.testing.assert_array_equal(precision.round_to(halves, "int8"), expected)
    assert not np.signbit(precision.round_to([-0.0, -0.5, math.nan], "int8")).any()
    ends = [precision.number(x, "int8") for x in (-128, 127)]
    got = [[one.below, one.above] for one in ends]
    np.testing.assert_array_equal(got, [[math.nan, -127], [126, math.nan]])


def near(name: str, count: int, seed: int) -> np.ndarray:
    """Return random floats in the format's range and just beyond it."""
    f, rng = precision.format(name), np.random.default_rng(seed)
    low, high = math.log2(f.smallest_subnormal) - 3, min(math.log2(f.largest) + 1, 1023.5)
    return rng.choice([-1.0, 1.0], count) * 2.0 ** rng.uniform(low, high, count)


@pytest.mark.parametrize("name", SHAPES)
def test_wide_formats_against_fractions(name: str) -> None:
    """Random numbers, midpoints of neighbors and the floats beside them round exactly."""
    low, largest = precision.round_to(near(name, 300, 8), name), precision.format(name).largest
    middles = (low + [precision.number(x, name).above for x in low.tolist()]) / 2
    beside = [np.nextafter(middles, side) for side in (-np.inf, np.inf)]
    tries = np.concatenate([near(name, 300, 9), middles, *beside])
    for x in tries[np.isfinite(tries)].tolist():
        exact = round_fraction(Fraction(x), *SHAPES[name])
        expected = math.copysign(math.inf, x) if abs(exact) > largest else float(exact)
        assert float(precision.round_to(x, name)) == expected


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_against_numpys_cast_and_bits(name: str) -> None:
    """Half a million floats round as NumPy casts them, and bit patterns decode as NumPy's do."""
    any_bits = np.random.default_rng(1).integers(0, 2**64, 250_000, dtype=np.uint64)
    x = np.concatenate([any_bits.view(np.float64), near(name, 250_000, 2)])
    kind = np.dtype(f"uint{8 * np.dtype(name).itemsize}")
    with np.errstate(all="ignore"):
        cast = x.astype(name).astype(np.float64)
        viewed = any_bits.astype(kind).view(name).astype(np.float64)
    got = precision.round_to(x, name)
    np.testing.assert_array_equal(got, cast)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(cast[got == 0]))
    np.testing.assert_array_equal(precision.decode(any_bits.astype(kind), name), viewed)
    whole = ~np.isnan(viewed)
    np.testing.assert_array_equal(
        precision.encode(viewed[whole], name), any_bits.astype(kind)[whole]
    )


BEYOND = [
    ("float16", math.inf, 65504.0, 65520.0, True),
    ("bfloat16", math.inf, 3.3895313892515355e38, 511 * 2.0**119, True),
    ("float8_e5m2", math.inf, 57344.0, 61440.0, True),
    ("float8_e4m3fn", math.nan, 448.0, 464.0, False),
    ("float4_e2m1fn", 6.0, 6.0, 7.0, True),
]


@pytest.mark.parametrize(("name", "usual", "largest", "threshold", "goes"), BEYOND)
def test_overflow_rules(
    name: str, usual: float, largest: float, threshold: float, goes: Any
) -> None:
    """Overflow begins at the midpoint to the next number that would follow; nan stays nan,
    or is the largest number where the format has no nan (NVIDIA, cuda_fp4.h).
    """
    f = precision.format(name)
    assert (f.largest, f.overflow_threshold, f.overflows_at_threshold) == (largest, threshold, goes)
    x = np.array([1e308, math.inf, threshold, np.nextafter(threshold, 0)])
    expected = [usual, usual, usual if goes else largest, largest]
    for sign in (1, -1):
        np.testing.assert_array_equal(precision.round_to(sign * x, name), sign * np.array(expected))
        held = precision.round_to(sign * x, name, overflow="saturate")
        np.testing.assert_array_equal(held, [sign * largest] * 4)
        np.testing.assert_array_equal(precision.decode(precision.encode(held, name), name), held)
    got = [float(precision.round_to(math.nan, name, rule)) for rule in (None, "saturate")]
    np.testing.assert_array_equal(got, [6.0 if name == "float4_e2m1fn" else math.nan] * 2)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.sampled_from(precision.formats()))
@settings(max_examples=300, deadline=None)
def test_rounding_keeps_the_order(x: float, y: float, name: str) -> None:
    """Rounding is idempotent and monotonic; the neighbors lie on either side."""
    pair = np.sort([x, y])
    held = precision.round_to(pair, name, overflow="saturate")
    np.testing.assert_array_equal(precision.round_to(held, name), held)
    assert held[0] <= held[1]
    for one in (precision.number(value, name) for value in held.tolist()):
        assert (
            math.isnan(one.below) or one.below < one.held,
            math.isnan(one.above) or one.held < one.above,
        ) == (True, True)


def test_formats_and_numbers_in_tables(approved: Any) -> None:
    """Tables show the published facts of each format, and numbers of each kind."""
    formats = [precision.format(name) for name in precision.formats()]
    text = "".join(f"{told(f)}{f.storage_bits} {f.bias} {f.lowest}\n" for f in formats)
    cases = [
        (0.1, "float16"), (2.0**-14, "float16"),
        (-1e-6, "float16"), (0.0, "float16"), (7e4, "float16"),
        (500.0, "float8_e4m3fn"),
        (-3.25, "int8"), (0.4, "float4_e2m1fn"), (1.0, "tf32", 3), (400.0, "float8_e4m3fn", 50),
    ]  # fmt: skip
    numbers = [precision.number(*case) for case in cases]
    back = [precision.number_from_bits(one.bits, one.format).code for one in numbers]
    assert back == [one.code for one in numbers]
    rows = precision.number(1.0, "float64").table()[1]  # beside 1 - 2**-53 and 1 + 2**-52
    assert ("next below, next above", "0.99999999999999989, 1.0000000000000002") in rows
    text += "".join(f"{one.reading}\n{told(one)}" for one in numbers)
    assert text == approved


def test_the_numbers_between_two_ends() -> None:
    """All numbers between two ends are listed, up to 200; of more, only the count."""
    every = np.unique(precision.decode(np.arange(256), "float8_e5m2"))
    got, count = precision.nearby(-0.9, 2.1, "float8_e5m2", most=1000)
    np.testing.assert_array_equal(got, every[(every >= -0.9) & (every <= 2.1)])
    assert (count, precision.nearby(1.0, 2.0, "float32")[1]) == (len(got), 2**23 + 1)
    few, many = (precision.nearby(1.0, 1.0 + n / 1024, "float16")[0] for n in (199, 200))
    assert (len(few), len(many)) == (200, 0)


# -- NVIDIA's own conversions ----------------------------------------------------------------------

DRIVER = """
#include <cuda_fp8.h>
#include <cuda_fp4.h>
extern "C" void convert(int kind, int saturate, long n, const double *x, unsigned char *out) {
    for (long i = 0; i < n; i++) {
        auto rule = saturate ? __NV_SATFINITE : __NV_NOSAT;
        if (kind == 2) out[i] = __nv_cvt_double_to_fp4(x[i], __NV_E2M1, cudaRoundNearest);
        else out[i] = __nv_cvt_double_to_fp8(x[i], rule, kind ? __NV_E5M2 : __NV_E4M3);
    }
}
"""
KINDS = {"float8_e4m3fn": 0, "float8_e5m2": 1, "float4_e2m1fn": 2}


@pytest.fixture(scope="module", name="library")
def _library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    places = (spec.submodule_search_locations if spec else None) or ()
    folders = [path.parent for place in places for path in Path(place).glob("*/include/cuda_fp4.h")]
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not folders or compiler is None:
        pytest.skip(
            "no cuda_fp4.h (pip install nvidia-cuda-runtime nvidia-cuda-cccl) or no compiler"
        )
    folder = tmp_path_factory.mktemp("vendor")
    (folder / "driver.cpp").write_text(DRIVER)
    options = f"-O1 -std=c++17 -shared -fPIC -I{folders[0]} -I{folders[0] / 'cccl'}"
    command = [compiler, *options.split(), "driver.cpp", "-o", "driver.so"]
    if subprocess.run(command, check=False, capture_output=True, cwd=folder).returncode:
        pytest.skip("the headers did not compile")
    return ctypes.CDLL(str(folder / "driver.so"))


@pytest.mark.slow
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_codes_are_nvidias(library: ctypes.CDLL, name: str, saturate: bool) -> None:
    """NVIDIA's headers give the same codes for all numbers, midpoints, neighbors and overflows."""
    exact = np.array([float(v) for v in PUBLISHED[name].magnitudes()])
    middles = (exact[:-1] + exact[1:]) / 2
    beside = [np.nextafter(middles, 0), np.nextafter(middles, np.inf)]
    spread = 2.0 ** np.random.default_rng(4).uniform(-30, 20, 50_000)
    beyond = exact[-1] + np.array([0.4, 0.5, 0.6, 1]) * (exact[-1] - exact[-2])
    positive = np.concatenate([exact, middles, *beside, beyond, spread, [np.inf, 5e-324, 1e308]])
    x = np.ascontiguousarray(np.concatenate([positive, -positive]))
    out = np.zeros(len(x), np.uint8)
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (x, out))
    library.convert(KINDS[name], int(saturate), ctypes.c_long(len(x)), *pointers)
    ours = precision.encode(x, name, overflow="saturate" if saturate else None)
    if name == "float8_e4m3fn":  # the sign of its nan has no meaning
        ours, out = (np.where((codes & 0x7F) == 0x7F, 0x7F, codes) for codes in (ours, out))
    np.testing.assert_array_equal(ours, out)
