"""Formatting and parsing of seconds, bytes and rates."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import units
from gpulab.errors import InputError

# Half a unit in the third significant digit, the most that formatting may lose.
_LOSS = 0.0051


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00123, "1.23 ms"),
        (4.2e-7, "420 ns"),
        (0, "0 s"),
        (0.9996e-3, "1.00 ms"),
        (0.9994e-3, "999 us"),
        (0.9995, "1.00 s"),
        (1e-12, "0.001 ns"),
        (-2e-3, "-2.00 ms"),
        (math.nan, "not a number"),
        (math.inf, "infinite"),
        (-math.inf, "-infinite"),
    ],
)
def test_seconds_are_written_with_three_digits_and_a_fitting_unit(seconds, text):
    """A duration gets the unit that leaves one to three digits before the point, also next to a unit's edge."""
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (3 * 2**30, "3.00 GiB"), (math.nan, "not a number")],
)
def test_bytes_use_binary_prefixes(nbytes, text):
    """Storage counts in powers of 1024 and says so in the prefix."""
    assert units.format_bytes(nbytes) == text


def test_rates_use_decimal_prefixes():
    """Rates count in powers of 1000, as data sheets do, and infinite ones are said in words."""
    assert units.format_bytes_per_second(4.8e12) == "4.80 TB/s"
    assert units.format_flops_per_second(989.4e12) == "989 TFLOP/s"
    assert units.format_flops(2 * 1024**3) == "2.15 GFLOP"
    assert units.format_ratio(1234) == "1234x"
    assert units.format_ratio(0.002) == "0.002x"
    assert units.format_flops_per_second(math.inf) == "infinite"


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_reading_a_written_duration_gives_it_back(seconds):
    """parse_seconds inverts format_seconds to three digits."""
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(seconds, rel=_LOSS)


@given(st.integers(min_value=0, max_value=2**50))
def test_reading_a_written_size_gives_it_back(nbytes):
    """parse_bytes inverts format_bytes to three digits, and exactly below 1 KiB."""
    back = units.parse_bytes(units.format_bytes(nbytes))
    assert back == (nbytes if nbytes < 1024 else pytest.approx(nbytes, rel=_LOSS))


@given(st.integers(min_value=0, max_value=10**29))
def test_whole_bytes_pass_unchanged(nbytes):
    """An integer number of bytes is never rounded through a float."""
    assert units.parse_bytes(nbytes) == nbytes


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, np.int8, np.uint64, Fraction])
def test_a_number_of_any_kind_is_a_number(kind):
    """NumPy's too, as everywhere else in gpulab; complex ones and those that are not finite are refused."""
    assert units.parse_bytes(kind(96)) == 96
    assert units.parse_seconds(kind(3)) == 3.0
    for bad in (np.float32("nan"), np.float32("inf"), np.complex64(1), np.float16(-1)):
        with pytest.raises(InputError, match="finite and not negative"):
            units.parse_bytes(bad)


def test_parse_knows_both_prefix_families_and_both_micro_signs():
    """KiB is 1024, kB is 1000, K is short for KiB; the micro sign and the Greek letter both mean 1e-6."""
    assert [units.parse_bytes(t) for t in ("1KiB", "1 kB", "2 K", "1.5 GB", "7", "1e3 B")] == [1024, 1000, 2048, 1_500_000_000, 7, 1000]
    assert [units.parse_seconds(t) for t in ("3 µs", "3 μs", "2min", ".5 s")] == [3e-6, 3e-6, 120.0, 0.5]


@pytest.mark.parametrize(
    "bad", ["", "ten", "10", "1 hour", "-1 s", "1e999 s", math.nan, math.inf, -2.0, 10**400, None, True, [1], "1 s s", "١٠ parsecs"]
)
def test_unreadable_durations_are_refused_in_one_sentence(bad):
    """Text without a unit, negative, infinite and foreign values raise InputError with an example."""
    with pytest.raises(InputError, match=r"expected .*'10 us'"):
        units.parse_seconds(bad)


@pytest.mark.parametrize("bad", ["", "-1 KiB", "1 KB/s", "nan", "1e999", math.nan, -1, 10**400, None, False, b"1 KiB"])
def test_unreadable_sizes_are_refused_in_one_sentence(bad):
    """Text that is no size, negative, infinite and foreign values raise InputError with an example."""
    with pytest.raises(InputError, match=r"expected .*'64 KiB'"):
        units.parse_bytes(bad)


@given(st.one_of(st.text(max_size=40), st.floats(), st.integers(), st.none(), st.booleans()))
def test_parsing_anything_gives_a_number_or_input_error(anything):
    """No input makes the parsers raise anything but InputError or return a value no machine can have."""
    for parse in (units.parse_seconds, units.parse_bytes):
        try:
            value = parse(anything)
        except InputError:
            continue
        assert math.isfinite(value)
        assert value >= 0


def test_every_edge_of_the_digits_and_the_prefixes():
    """Three digits, two from 0.1 to 1; the next prefix from where three digits would round up to it."""
    ratios = {
        0.0994: "0.0994x",
        0.0995: "0.10x",
        9.994: "9.99x",
        9.995: "10.0x",
        99.94: "99.9x",
        99.95: "100x",
        -0.05: "-0.05x",
        0: "0.00x",
    }
    assert {ratio: units.format_ratio(ratio) for ratio in ratios} == ratios
    sizes = {2**20: "1.00 MiB", 2**20 - 1: "1024 KiB", 2**40: "1.00 TiB", 2**50: "1024 TiB", -2048: "-2.00 KiB", 0.4: "0 B"}
    assert {size: units.format_bytes(size) for size in sizes} == sizes
    rates = {1.5e15: "1.50 PB/s", 1.5e9: "1.50 GB/s", 1.5e6: "1.50 MB/s", 2.5e3: "2.50 kB/s", 999.6: "1.00 kB/s", 999.4: "999 B/s",
             0.5: "0.50 B/s", -2e6: "-2.00 MB/s"}  # fmt: skip
    assert {rate: units.format_bytes_per_second(rate) for rate in rates} == rates
    times = {90: "90.0 s", 1.5e-6: "1.50 us", 1.5e-9: "1.50 ns", 9e-10: "0.90 ns"}
    assert {time: units.format_seconds(time) for time in times} == times


def test_every_unit_that_is_read():
    """In small and in large letters; fractions of a byte are rounded, and 1e30 is more than any machine has."""
    seconds = {"s": 1, "sec": 1, "second": 1, "SECONDS": 1, "min": 60, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
    assert {unit: units.parse_seconds(f"3 {unit}") for unit in seconds} == {unit: 3 * value for unit, value in seconds.items()}
    sizes = {"": 1, "B": 1, "byte": 1, "bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "K": 1024, "M": 1024**2,
             "G": 1024**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}  # fmt: skip
    assert {unit: units.parse_bytes(f"3 {unit}") for unit in sizes} == {unit: 3 * value for unit, value in sizes.items()}
    assert [units.parse_bytes(size) for size in (2.6, "+2.4", 0, 10**30 - 1)] == [3, 2, 0, 10**30 - 1]
    assert (units.parse_seconds(0), units.parse_seconds(9e29)) == (0, 9e29)
    for parse in (units.parse_bytes, units.parse_seconds):
        with pytest.raises(InputError, match=r"Pass a size or duration that a machine can have\.$"):
            parse(1e30)
    with pytest.raises(
        InputError, match=r"^parse_seconds: cannot read '3'; expected .*\. Units: s, sec, second, seconds, min, ms, us, µs, μs, ns\.$"
    ):
        units.parse_seconds("3")
