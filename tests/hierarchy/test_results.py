"""Curves and levels in words and tables, from points made by hand."""

from __future__ import annotations

import inspect

import pytest

from gpulab import devices, hierarchy
from gpulab.errors import InputError
from gpulab.evidence import Evidence, Note
from gpulab.hierarchy import Bandwidth, BandwidthPoint, Latency, LatencyPoint, ParallelChains, ParallelPoint, Reported

KIB, MIB = 2**10, 2**20
LIVE = Evidence.measured("A CPU", 7)
NOTES = (Note("stopped", "Here."),)


def latency(times: dict[int, float], reported: tuple[Reported, ...] = (), floor: float | None = None) -> Latency:
    """A curve with these nanoseconds, whose fastest samples are half as long as the medians."""
    points = tuple(LatencyPoint(n, 2e-9 * t, (1.9e-9 * t, 2.1e-9 * t), 1e-9 * t, 9, 3) for n, t in times.items())
    return Latency("A CPU", "python", points, floor, reported, NOTES, LIVE, None)


def test_a_level_has_the_median_of_its_points() -> None:
    """Three points of 2.0, 2.1 and 2.2 ns, then three of 8, 8.4 and 8.8: 2.1 and 8.4; the rate of a stream is one over its own."""
    sizes = [2**k for k in range(12, 18)]
    times = [2.0, 2.1, 2.2, 8.0, 8.4, 8.8]
    found = latency(dict(zip(sizes, times, strict=True))).levels()
    assert [level.latency_seconds for level in found.levels] == pytest.approx([2.1e-9, 8.4e-9])
    assert found.levels[0].between_bytes == (2**14, 2**15)
    points = tuple(BandwidthPoint(n, 1e9 / t, None, 1e9 / t, 5) for n, t in zip(sizes, times, strict=True))
    rates = Bandwidth("A CPU", "numpy", "read", points, (), (), LIVE, None).levels()
    assert [level.bytes_per_second for level in rates.levels] == pytest.approx([1e9 / 2.1, 1e9 / 8.4])


def test_the_tables_of_a_chase_by_hand() -> None:
    """Points, then notes; levels, then the caches that show no step, then what is not told."""
    caches = (Reported("L1d", 32.0 * KIB), Reported("L2", 64.0 * MIB))
    curve = latency({16 * KIB: 2.0, 32 * KIB: 2.0, 64 * KIB: 8.0, 128 * KIB: 8.0}, caches, 1.5e-9)
    assert curve.table()[1] == [
        ("16.0 KiB", "4.00 ns", "3.80 ns to 4.20 ns", "2.00 ns", "9 in 3"),
        ("32.0 KiB", "4.00 ns", "3.80 ns to 4.20 ns", "2.00 ns", "9 in 3"),
        ("64.0 KiB", "16.0 ns", "15.2 ns to 16.8 ns", "8.00 ns", "9 in 3"),
        ("128 KiB", "16.0 ns", "15.2 ns to 16.8 ns", "8.00 ns", "9 in 3"),
        ("note: stopped", "Here.", "", "", ""),
    ]
    assert repr(curve).startswith("<latency of A CPU by a cycle of Python objects: 16.0 KiB 4.00 ns to 128 KiB 16.0 ns, ")
    assert curve.caption().endswith(" · floor 1.50 ns a hop")
    levels = curve.levels()
    headers, rows = levels.table()
    assert headers[1] == "a hop takes"
    assert rows[:3] == [
        ("L1d", "2.00 ns", "about 45.3 KiB", "32.0 KiB to 64.0 KiB", "32.0 KiB"),  # half of the rise on log scales: 32 KiB times root 2
        ("level 2", "8.00 ns", "", "", ""),
        ("L2", "no step seen", "", "", "64.0 MiB"),
    ]
    assert [row[0] for row in rows[3:]] == ["not told"] * 3
    assert [row[1] for row in rows[3:]] == list(levels.cannot_tell)
    assert [" ".join(sentence.split()[:6]) for sentence in levels.cannot_tell] == [
        "No step was found that belongs", "The largest set, 128 KiB, is", "Two caches of nearly one size",
    ]  # fmt: skip
    assert repr(levels) == "<levels: L1d 2.00 ns up to about 45.3 KiB; level 2 8.00 ns>"


def test_the_table_of_a_stream_by_hand() -> None:
    """Rates and their intervals, which a point may lack."""
    points = (BandwidthPoint(4 * KIB, 8e9, (7e9, 9e9), 1e10, 5), BandwidthPoint(MIB, 2e9, None, 3e9, 6))
    curve = Bandwidth("A CPU", "numpy", "copy", points, (), NOTES, LIVE, None)
    assert curve.table()[1] == [
        ("4.00 KiB", "8.00 GB/s", "7.00 GB/s to 9.00 GB/s", "5"),
        ("1.00 MiB", "2.00 GB/s", "", "6"),
        ("note: stopped", "Here.", "", ""),
    ]
    assert curve.levels().table()[0][1] == "rate"
    assert repr(curve).startswith("<bandwidth of A CPU, copy: 4.00 KiB 8.00 GB/s to 1.00 MiB 2.00 GB/s, ")


def test_the_table_of_chains_by_hand() -> None:
    """80 ns alone and 10 side by side, both of the fastest samples: eight under way."""
    points = (ParallelPoint(1, 100e-9, (9e-8, 1.1e-7), 80e-9, 5), ParallelPoint(8, 20e-9, None, 10e-9, 6))
    both = ParallelChains("A CPU", "numba", 4 * MIB, points, NOTES, LIVE, None)
    assert both.table()[1] == [
        ("1", "100 ns", "90.0 ns to 110 ns", "80.0 ns", "1.0"),
        ("8", "20.0 ns", "", "10.0 ns", "8.0"),
        ("note: stopped", "Here.", "", "", ""),
    ]
    assert repr(both).startswith("<8 chains in 4.00 MiB: up to 8.00x the hops of one, ")
    assert both.caption().endswith(" · in 4.00 MiB")


def test_whole_numbers_at_the_edges() -> None:
    """1 KiB, a hundred chases and 32 chains are taken, one less or more is not, and True is no number of chains."""
    where = devices.find("cpu")
    assert hierarchy._given.sizes_of("latency", [KIB, KIB + 63], where, "python") == (KIB,)  # whole lines, each size once
    for wrong in (KIB - 1, 2**34 + 1):
        with pytest.raises(InputError, match="1 KiB to 16 GiB"):
            hierarchy._given.sizes_of("latency", [wrong], where, "python")
    with pytest.raises(InputError, match="chases is 101"):
        hierarchy.latency([4096], chases=101)
    for wrong in (64, True):
        with pytest.raises(InputError, match="powers of two from 1 to 32"):
            hierarchy.parallel([wrong])


# What a call without options means; what it leaves to the device or the machine is None.
USUAL = {
    "bandwidth": {"device": "cpu", "operation": "read", "deadline": 6.0},
    "latency": {"device": "cpu", "chases": 3, "deadline": 10.0},
    "measure_chase": {"device": "cpu", "deadline": 0.5},
    "measure_stream": {"device": "cpu", "operation": "read", "deadline": 0.5},
    "parallel": {"chains": (1, 2, 4, 8, 16), "deadline": 6.0},
    "recorded_bandwidth": {"operation": "read"},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(USUAL))
def test_what_a_call_without_options_means(name: str) -> None:
    """Figures in the course's text and in recordings were made with these."""
    found = inspect.signature(getattr(hierarchy, name)).parameters.items()
    left = {key: parameter.default for key, parameter in found if parameter.default not in (None, inspect.Parameter.empty)}
    assert left == USUAL[name]
