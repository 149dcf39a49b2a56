"""The pictures of copies, of their fit, of break-even and of overlap: marks, lines and words, checked against made-up results."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from look import look, words
from looks import LOOKS

from gpulab import figures, transfer
from gpulab.evidence import Evidence
from gpulab.figures import _style
from gpulab.figures._style import LabFigure
from gpulab.transfer import BreakEven, BreakEvenRow, Overlap, Sweep
from gpulab.transfer.results import Span, SweepPoint

LIVE, MODEL = Evidence.measured("A GPU", 9), Evidence.modelled("a link", "a book")


def sweep_of(evidence: Evidence, ceiling: float | None = None) -> Sweep:
    """A straight link of 10 us and 10 GB/s."""
    points = [
        SweepPoint(direction, "pinned", n, 1e-5 + n / 1e10, (0.99e-5 + n / 1e10, 1.01e-5 + n / 1e10), 9)
        for direction in ("to_device", "to_host")
        for n in (2**k for k in range(10, 31, 2))
    ]
    return Sweep("A GPU", "torch", tuple(points), ceiling, (), evidence, None)


def test_a_sweep_shows_its_series_its_fit_and_half_the_bandwidth() -> None:
    """Both directions are apart, the fit is dashed and in words, and the size of half the bandwidth (100 kB here) is marked."""
    s = sweep_of(LIVE)
    figure = figures.sweep(s, s.fit("to_device"))
    text = words(figure)
    for part in (
        "host to device, pinned (measured)",
        "device to host, pinned (measured)",
        "fit: 10.0 us + size / 10.0 GB/s",
        "size (log scale)",
    ):
        assert part in text
    assert any(t.line.dash == "dash" for t in figure.data)
    assert any(shape.x0 == pytest.approx(1e5, rel=0.02) for shape in figure.layout.shapes)
    assert "half the bandwidth at" in text
    assert figure.description == (
        "Transfer time over size on A GPU. host to device from pinned memory, smallest 1.00 KiB: 10.1 us, 101 MB/s, largest 1.00 GiB: "
        "107 ms, 10.0 GB/s; device to host from pinned memory, smallest 1.00 KiB: 10.1 us, 101 MB/s, largest 1.00 GiB: 107 ms, "
        "10.0 GB/s; the fit: latency 10.0 us, bandwidth 10.0 GB/s."
    )
    other = dataclasses.replace(s, device="B GPU")
    two = figures.sweep(s, beside=[other])
    assert "host to device, pinned, B GPU (measured)" in words(two)
    assert "host to device from pinned memory on B GPU, smallest" in two.description
    slow = dataclasses.replace(s, points=tuple(dataclasses.replace(p, median_seconds=2 * p.median_seconds) for p in s.points))
    several = words(figures.sweep(s, [s.fit("to_device"), slow.fit("to_host")], quantity="rate"))
    assert "bandwidth of the fit" not in several  # whose?
    assert "half the bandwidth" not in several
    rate = figures.sweep(s, quantity="rate")
    assert max(rate.data[0].y) == pytest.approx(1e10, rel=0.01)


def test_a_fits_latency_bandwidth_and_knees_are_named() -> None:
    """A link of 10 us and 10 GB/s that drops to 5 GB/s from 16 MiB on: latency in the picture of times, the last bandwidth in rates."""
    nbytes = [2**k for k in range(10, 31)]
    seconds = [10e-6 + n / 10e9 + max(n - 2**24, 0) / 10e9 for n in nbytes]
    fit = transfer.fit(nbytes, seconds)
    points = tuple(SweepPoint("to_device", "pinned", n, t, None, 9) for n, t in zip(nbytes, seconds, strict=True))
    s = Sweep("A GPU", "torch", points, None, (), LIVE, None)
    assert "latency 10.0 us" in words(figures.sweep(s, fit))
    for quantity in ("seconds", "rate"):
        labels = [a for a in figures.sweep(s, fit, quantity).layout.annotations if "half" in a.text or "knee" in a.text]
        assert len({label.yshift or 0 for label in labels}) == len(labels) >= 2
        # Of times they go down from the top, of rates up from the bottom; late ones of times stand before their line.
        assert all((label.yshift or 0) * (1 if quantity == "rate" else -1) >= 0 for label in labels)
        late = {re.sub("<.*?>", "", label.text).partition(" ")[0]: label.xanchor for label in labels}
        assert late == {"half": "left", "knee": "left" if quantity == "rate" else "right"}
    assert re.search(r"knee at 1[5-7]\.\d MiB", words(figures.sweep(s, fit)))
    assert "bandwidth of the fit 5.00 GB/s" in words(figures.sweep(s, fit, quantity="rate"))


def test_a_modelled_link_is_dashed_and_a_predicted_time_has_its_interval() -> None:
    """A link of 1 us and 1 GB/s passes through 2 us at 1 kB, alone or beside a sweep; the prediction at 1 MB is 10 us + 100 us."""
    road = transfer.link("pcie4", latency_seconds=1e-6, bandwidth_bytes_per_second=1e9)
    alone = figures.sweep(None, links=[road])
    (line,) = alone.data
    assert (line.line.dash, line.mode) == ("dash", "lines")
    assert np.interp(2048, line.x, line.y) == pytest.approx(3.048e-6, rel=0.01)
    assert "MODELLED" in words(alone)
    s = sweep_of(LIVE)
    both = figures.sweep(s, s.fit("to_device"), links=[road], at_bytes=1e6)
    assert "predicted, 977 KiB: 110 us, 95 %" in words(both)
    (mark,) = [t for t in both.data if len(t.y) == 1]
    assert mark.y[0] == pytest.approx(110e-6, rel=0.01)
    assert mark.error_y.array[0] > 0
    assert figures.sweep(s, s.fit("to_device"), at_bytes=1e12).layout.xaxis.range[1] > 12  # a size beyond all others has its place


def test_a_ceiling_is_drawn_and_named() -> None:
    """The memory bandwidth of a host sweep is a labelled line in the picture of rates."""
    figure = figures.sweep(sweep_of(LIVE, ceiling=2e10), quantity="rate")
    assert "memory bandwidth 20.0 GB/s" in words(figure)
    assert 2e10 in [shape.y0 for shape in figure.layout.shapes]
    s = sweep_of(LIVE, ceiling=2e10)
    names = [(re.sub("<.*?>", "", a.text).partition(" ")[0], a.x, a.yanchor) for a in figures.sweep(s, s.fit(), "rate").layout.annotations]
    assert [(what, side) for what, _, side in names[-2:]] == [("memory", "bottom"), ("bandwidth", "top")]  # the higher one over its line
    assert all(place < 0.5 for _, place, _ in names[-2:])  # left of where all curves meet
    far = figures.sweep(sweep_of(LIVE, ceiling=1e15), quantity="rate")
    assert far.layout.yaxis.range[1] > 15, "a line beyond all points has its place in the picture"


def test_a_break_even_is_marked_and_a_missing_one_is_told() -> None:
    """The size is a labelled line; without one the reason stands in the plot; a modelled accelerator is dashed beside a measured CPU."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    found = BreakEven("matmul", 80, "found", "It wins from 80 on.", rows, (), MODEL)
    figure = figures.break_even(found)
    assert "break-even: n = 80" in words(figure)
    assert {t.line.dash for t in figure.data} == {"solid", "dash"}
    none = figures.break_even(dataclasses.replace(found, size=None, reason="never in this range"))
    assert "never in this range" in words(none)
    nothing = figures.break_even(dataclasses.replace(found, size=None, reason="no accelerator", rows=()))
    assert "no accelerator" in words(nothing)


def test_a_late_break_even_is_named_before_its_line() -> None:
    """Near the right end of the axis, words behind the line would be cut off; elsewhere they stand behind it."""
    rows = (BreakEvenRow(1024, 1e-4, 2e-4, 1e4), BreakEvenRow(2**24, 8e-4, 3e-4, 4e4))
    late = BreakEven("add", 12_000_000, "found", "It wins from there on.", rows, (), MODEL)
    sides = {n: figures.break_even(dataclasses.replace(late, size=n)).layout.annotations[-1] for n in (12_000_000, 4096)}
    assert (sides[12_000_000].xanchor, sides[4096].xanchor) == ("right", "left")
    assert sides[12_000_000].xshift == -sides[4096].xshift < 0


def test_an_overlap_shows_its_bars_and_both_bounds() -> None:
    """Each copy and each compute is a bar from its start, and the two bounds are named lines."""
    spans = (Span("copy", 0, 0.0, 1e-3), Span("copy", 1, 1e-3, 2e-3), Span("compute", 0, 1e-3, 2.5e-3))
    times = {"copy_seconds": 2e-3, "compute_seconds": 1.5e-3, "seconds": 2.5e-3}
    o = Overlap(device="A GPU", nbytes=2**20, chunks=2, **times, timeline=spans, notes=(), evidence=LIVE)
    figure = figures.overlap(o)
    copies, computes = figure.data
    assert list(copies.base) == [0.0, 1e-3]
    assert list(computes.x) == pytest.approx([1.5e-3])
    assert list(figure.layout.yaxis.tickvals) == list(figure.layout.yaxis.categoryarray) == ["compute", "copy"]
    ideal, serial = figure.layout.annotations
    assert serial.y > ideal.y >= 1  # neither on the plot nor on the other
    assert figure.layout.margin.t >= _style.frame("", LIVE, "").layout.margin.t + 30  # and both have room
    assert "ideal 2.00 ms" in words(figure)
    assert "one after the other 3.50 ms" in words(figure)


def test_rates_of_a_sweep_have_the_intervals_of_their_times_turned_round() -> None:
    """A time 1 % of the latency longer is a rate that much lower; points without an interval have no bar; the words have both figures."""
    s = sweep_of(LIVE)
    first, last = s.points[0], s.points[10]
    rate = figures.sweep(s, quantity="rate").data[0]
    assert rate.y[0] == pytest.approx(first.nbytes / first.median_seconds)
    low, high = first.interval_seconds  # type: ignore[misc]
    assert rate.error_y.array[0] == pytest.approx(first.nbytes / low - rate.y[0])
    assert rate.error_y.arrayminus[0] == pytest.approx(rate.y[0] - first.nbytes / high)
    time = figures.sweep(s).data[0]
    assert (time.y[0], time.error_y.array[0], time.error_y.arrayminus[0]) == pytest.approx((first.median_seconds, 1e-7, 1e-7))
    assert list(time.x) == [2**k for k in range(10, 31, 2)]
    assert time.customdata[0] == "1.00 KiB: 10.1 us, 101 MB/s"  # 10 us + 1024 B / 10 GB/s
    assert last.nbytes == 2**30
    bare = dataclasses.replace(s, points=tuple(dataclasses.replace(p, interval_seconds=None) for p in s.points))
    for quantity in ("seconds", "rate"):
        assert set(figures.sweep(bare, quantity=quantity).data[0].error_y.array) == {0}


def test_a_fits_band_goes_out_above_and_back_below() -> None:
    """Of times and of rates: the line within the band everywhere, over all sizes; a predicted rate is the size over its time."""
    s = sweep_of(LIVE)
    fit = s.fit("to_device")
    for quantity in ("seconds", "rate"):
        figure = figures.sweep(s, fit, quantity, at_bytes=1e6)
        band, line = figure.data[:2]
        n = len(line.x)
        assert (line.x[0], line.x[-1]) == pytest.approx((2**10, 2**30))
        assert band.x == (*line.x, *line.x[::-1])
        assert all(low <= y <= high for high, y, low in zip(band.y[:n], line.y, band.y[: -n - 1 : -1], strict=True))
        (mark,) = [t for t in figure.data if len(t.y) == 1]
        assert mark.y[0] == pytest.approx(110e-6 if quantity == "seconds" else 1e6 / 110e-6, rel=0.01)
        assert mark.error_y.array[0] > 0
        assert mark.error_y.arrayminus[0] > 0
    road = transfer.link("pcie4", latency_seconds=1e-6, bandwidth_bytes_per_second=1e9)
    (line,) = figures.sweep(None, quantity="rate", links=[road]).data
    assert line.y[-1] == pytest.approx(1e9, rel=0.01)
    assert line.y[0] == pytest.approx(1024 / (1e-6 + 1024 / 1e9))


def test_a_break_evens_lines_are_the_two_times() -> None:
    """CPU and accelerator over the sizes, with the line at the size from which it wins."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    figure = figures.break_even(BreakEven("matmul", 80, "found", "It wins from 80 on.", rows, (), MODEL))
    assert [(t.x, t.y) for t in figure.data] == [((64, 128), (1e-4, 8e-4)), ((64, 128), (2e-4, 3e-4))]
    assert [shape.x0 for shape in figure.layout.shapes] == [80]
    assert figure.data[1].customdata == ("200 us", "300 us")
    assert "n = 64: CPU 100 us, accelerator 200 us" in figure.description


def test_bounds_of_an_overlap_stand_at_their_times() -> None:
    """Both lines from the axis upwards, and each bar with its chunk, its place and its time."""
    spans = (Span("copy", 0, 0.0, 1e-3), Span("copy", 1, 1e-3, 2e-3), Span("compute", 0, 1e-3, 2.5e-3))
    times = {"copy_seconds": 2e-3, "compute_seconds": 1.5e-3, "seconds": 2.5e-3}
    figure = figures.overlap(Overlap(device="A GPU", nbytes=2**20, chunks=2, **times, timeline=spans, notes=(), evidence=LIVE))
    assert [(shape.x0, shape.x1, shape.y0) for shape in figure.layout.shapes] == [(2e-3, 2e-3, 0), (pytest.approx(3.5e-3),) * 2 + (0,)]
    copies, computes = figure.data
    assert list(copies.x) == pytest.approx([1e-3, 1e-3])
    assert (computes.base, set(copies.y), set(computes.y)) == ((1e-3,), {"copy"}, {"compute"})
    assert copies.customdata == ("copy 1: 1.00 ms", "copy 2: 1.00 ms")
    assert figure.layout.xaxis.range[1] >= 3.5e-3
    assert figure.layout.barmode == "overlay"
    assert "2 chunks of 512 KiB" in re.sub("<.*?>", "", figure.layout.title.text)
    whole = figures.overlap(Overlap(device="A GPU", nbytes=2**20, chunks=1, **times, timeline=spans, notes=(), evidence=LIVE))
    assert "Copy and compute, 1 chunk of 1.00 MiB" in re.sub("<.*?>", "", whole.layout.title.text)
    assert whole.description.startswith("1.00 MiB in 1 chunk on A GPU: overlapped 2.50 ms, one after the other 3.50 ms, ideal 2.00 ms")


def test_a_label_goes_before_its_line_from_seven_tenths_of_the_axis_on() -> None:
    """By hand: sizes from 1 to 1e5 have an axis of 5.6 decades from -0.3 on, of which 0.7 end at 10 ** 3.62, between 4168 and 4170."""
    rows = (BreakEvenRow(1, 1e-4, 2e-4, 1e4), BreakEvenRow(10**5, 8e-4, 3e-4, 4e4))
    for size, side in ((4168, "left"), (4170, "right")):
        figure = figures.break_even(BreakEven("add", size, "found", "It wins.", rows, (), MODEL))
        assert figure.layout.annotations[-1].xanchor == side


def test_curves_of_fits_and_links_have_160_points() -> None:
    """From the smallest size to the largest, equally far apart on the axis."""
    s = sweep_of(LIVE)
    road = transfer.link("pcie4", latency_seconds=1e-6, bandwidth_bytes_per_second=1e9)
    lines = [t for t in figures.sweep(s, s.fit("to_device"), links=[road]).data if t.mode == "lines" and t.line.dash == "dash"]
    assert [len(line.x) for line in lines] == [160, 160]
    for line in lines:
        assert np.diff(np.log(line.x)) == pytest.approx(np.log(2**20) / 159)


def swept_link(quantity: Any) -> LabFigure:
    """A sweep with a ceiling, its fit and a prediction."""
    s = sweep_of(LIVE, 4e10)
    return figures.sweep(s, s.fit("to_device"), quantity, at_bytes=1e6)


def broken_even(size: int | None) -> LabFigure:
    """Two sizes."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    return figures.break_even(BreakEven("matmul", size, "found", "It wins.", rows, (), MODEL))


def overlapped() -> LabFigure:
    """Two chunks."""
    spans = (Span("copy", 0, 0.0, 1e-3), Span("copy", 1, 1e-3, 2e-3), Span("compute", 0, 1e-3, 2.5e-3))
    times = {"copy_seconds": 2e-3, "compute_seconds": 1.5e-3, "seconds": 2.5e-3}
    return figures.overlap(Overlap(device="A GPU", nbytes=2**20, chunks=2, **times, timeline=spans, notes=(), evidence=LIVE))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "break even: late": lambda: broken_even(127),
    "break even: none": lambda: broken_even(None),
    "overlap": overlapped,
    "sweep: rate": lambda: swept_link("rate"),
    "sweep: seconds": lambda: swept_link("seconds"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
