"""What a measurement and a comparison say of themselves: made by hand, read by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpulab.evidence import Environment, Evidence, Note
from gpulab.timing.results import Comparison, ComparisonRow, Measurement, format_interval, format_ratio_interval

DATE = "2026-11-20T10:00:00+00:00"
PLACE = Environment(
    date=DATE, system="Linux", processor="P", cores=2, memory_bytes=2**34, device="P", device_kind="cpu", driver=None, python="3.12.3",
    libraries={}, command="",
)  # fmt: skip
EVIDENCE = Evidence.measured("P", samples=4, date=DATE)
NOTE = Note("unstable", "it wandered.")
# 6 GFLOP and 3 GB in 2 ms are 3 TFLOP/s and 1.5 TB/s; the interval is 1 ms wide, half of the median.
ONE = Measurement(
    "work", "cuda:0", np.array([1.0, 2.0, 2.0, 3.0]) * 1e-3, 2e-3, (1.5e-3, 2.5e-3), 0.5, 1e-5, 4e-3, 1, 6e9, 3e9, (NOTE,), EVIDENCE, PLACE
)


def test_the_rates_of_a_measurement_by_hand() -> None:
    """Counts over the median, and the interval's width over it; what is not known or took no time has none."""
    assert (ONE.flops_per_second, ONE.bytes_per_second, ONE.relative_width) == pytest.approx((3e12, 1.5e12, 0.5))
    unknown = dataclasses.replace(ONE, flops=None, nbytes=None, interval_seconds=None)
    assert (unknown.flops_per_second, unknown.bytes_per_second, unknown.relative_width) == (None, None, None)
    nothing = dataclasses.replace(ONE, median_seconds=0.0)
    assert (nothing.flops_per_second, nothing.bytes_per_second) == (None, None)
    assert [ONE.has_note(code) for code in ("unstable", "stalled")] == [True, False]


def test_a_measurement_as_a_table_and_in_one_line() -> None:
    """One row a quantity; what was not asked or counted is said or left out."""
    assert ONE.table() == (
        ("work", ""),
        [
            ("device finished (median)", "2.00 ms [1.50 ms, 2.50 ms]"), ("call returned", "10.0 us"), ("with both copies", "4.00 ms"),
            ("first call", "500 ms"), ("arithmetic", "3.00 TFLOP/s"), ("memory traffic", "1.50 TB/s"), ("samples", "4 of 1 call each"),
            ("note: unstable", "it wandered."),
        ],
    )  # fmt: skip
    less = dataclasses.replace(
        ONE, with_transfer_seconds=None, flops=None, nbytes=None, calls_per_sample=2, notes=(), interval_seconds=None
    )
    assert less.table()[1] == [
        ("device finished (median)", "2.00 ms (no interval)"), ("call returned", "10.0 us"), ("with both copies", "not asked"),
        ("first call", "500 ms"), ("samples", "4 of 2 calls each"),
    ]  # fmt: skip
    assert repr(ONE) == "<work on cuda:0: 2.00 ms [1.50 ms, 2.50 ms], n = 4, notes: unstable>"
    assert repr(less) == "<work on cuda:0: 2.00 ms (no interval), n = 4>"


def test_equal_measurements_are_one_in_a_set() -> None:
    """By what they hold; another time, another label or anything else is another."""
    again = dataclasses.replace(ONE, samples_seconds=ONE.samples_seconds.copy())
    assert len({ONE, again}) == 1
    assert dataclasses.replace(ONE, launch_seconds=2e-5) != ONE
    assert ONE != "work"
    for name, value in (("label", "other"), ("device", "cpu"), ("median_seconds", 3e-3), ("samples_seconds", np.array([2e-3]))):
        assert hash(ONE) != hash(dataclasses.replace(ONE, **{name: value}))


def test_a_comparison_as_a_table_and_in_one_line() -> None:
    """The first row is the baseline; a speed-up that is withheld is told so; the notes on all rows come last."""
    quick = dataclasses.replace(ONE, median_seconds=1e-3, interval_seconds=None, with_transfer_seconds=None, notes=())
    rows = (
        ComparisonRow("P", ONE, None, None, None), ComparisonRow("G", quick, 2.0, (1.5, 2.5), 1.25e-7),
        ComparisonRow("H", quick, None, None, 3e-2), ComparisonRow("I", quick, 2.0, None, 0.0),
    )  # fmt: skip
    found = Comparison("matmul", rows, 2.0, (1.5, 2.5), 3e-2, 1e-5, (NOTE,), EVIDENCE)
    assert found.table() == (
        ("device", "finished (median, 95 %)", "call returned", "with both copies", "speed-up", "difference", "notes"),
        [
            ("P", "2.00 ms [1.50 ms, 2.50 ms]", "10.0 us", "4.00 ms", "baseline", "not checked", "unstable"),
            ("G", "1.00 ms (no interval)", "10.0 us", "not asked", "2.00x [1.50x, 2.50x]", "1.2e-07", "none"),
            ("H", "1.00 ms (no interval)", "10.0 us", "not asked", "not reported", "3.0e-02", "none"),
            ("I", "1.00 ms (no interval)", "10.0 us", "not asked", "2.00x (no interval)", "0.0e+00", "none"),
            ("note: unstable", "it wandered.", "", "", "", "", ""),
        ],
    )
    assert repr(found) == "<matmul: speed-up 2.00x over P>"
    assert repr(dataclasses.replace(found, speedup=None)) == "<matmul: 4 rows, no speed-up to report>"
    assert repr(dataclasses.replace(found, speedup=None, rows=rows[:1])) == "<matmul: 1 row, no speed-up to report>"


def test_intervals_in_words() -> None:
    """Low before high; none is said."""
    assert (format_interval((1e-3, 1.1e-3)), format_interval(None)) == ("[1.00 ms, 1.10 ms]", "(no interval)")
    assert (format_ratio_interval((2.6, 3.2)), format_ratio_interval(None)) == ("[2.60x, 3.20x]", "(no interval)")
