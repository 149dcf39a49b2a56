"""Formatting and parsing of seconds, bytes and rates."""

import math

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
