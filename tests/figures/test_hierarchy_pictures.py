"""Pictures of the memory hierarchy show what their results hold, checked against made-up curves."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import plotly.graph_objects as go
import pytest
from look import look
from looks import LOOKS

from gpulab import devices, figures
from gpulab.evidence import Evidence
from gpulab.figures import _style
from gpulab.figures._style import LabFigure
from gpulab.figures.hierarchy import _name_caches
from gpulab.hierarchy import Bandwidth, BandwidthPoint, Latency, LatencyPoint, ParallelChains, ParallelPoint, Reported

LIVE = Evidence.measured("A CPU", 9)
KIB = 2**10
CACHES = (Reported("L1d", 32.0 * KIB), Reported("L2", 64.0 * KIB), Reported("L3", 2.0**40))
SIZES = [2**k for k in range(12, 22)]
TIMES = [2e-9 if n <= 32 * KIB else 20e-9 for n in SIZES]


def curve(evidence: Evidence = LIVE, kind: str = "cpu") -> Latency:
    """Two levels, with an interval of ten percent and fastest samples five percent below the medians."""
    points = tuple(
        LatencyPoint(n, t, (0.9 * t, 1.1 * t) if n > 4 * KIB else None, 0.95 * t, 9, 3) for n, t in zip(SIZES, TIMES, strict=True)
    )
    environment = dataclasses.replace(devices.environment("cpu"), device_kind=kind)
    return Latency("A CPU", "python", points, 1e-9, CACHES, (), evidence, environment)


def chains() -> ParallelChains:
    """One, two and four at once."""
    points = tuple(ParallelPoint(n, t, None, t, 5) for n, t in ((1, 80e-9), (2, 50e-9), (4, 40e-9)))
    return ParallelChains("A CPU", "python", 2**20, points, (), LIVE, None)


def words(figure: go.Figure) -> str:
    """All that is written in a figure, without mark-up."""
    layout = figure.layout
    texts = [layout.title.text, layout.title.subtitle.text, layout.xaxis.title.text, layout.yaxis.title.text]
    texts += [a.text for a in layout.annotations] + [t.name for t in figure.data]
    return re.sub("<.*?>", "", " | ".join(text for text in texts if text))


def test_a_curve_of_latency_shows_points_levels_and_caches() -> None:
    """Medians with their intervals, fastest samples, the levels with their times, and each reported cache that lies on the axis."""
    figure = figures.latency(curve())
    marks = next(t for t in figure.data if t.mode == "markers")
    assert list(marks.x) == SIZES
    assert list(marks.y) == pytest.approx(TIMES)
    assert marks.error_y.array[1] == pytest.approx(0.1 * TIMES[1])
    assert marks.error_y.arrayminus[0] == 0  # no honest interval, no bar
    line = next(t for t in figure.data if t.mode == "lines")
    assert list(line.y) == pytest.approx([0.95 * t for t in TIMES])
    for part in ("L1d 32.0 KiB (the system says)", "L2 64.0 KiB (the system says)", "L1d1.90 ns", "19.0 ns", "working set (log scale)"):
        assert part in words(figure)
    assert "L3" not in words(figure)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert "L1d 1.90 ns" in figure.layout.meta["description"]


def test_close_caches_have_a_row_each() -> None:
    """32 and 64 KiB stand beside each other on the axis, so the second label is a row higher."""
    labels = [a for a in figures.latency(curve()).layout.annotations if "the system says" in a.text]
    assert [label.yshift for label in labels] == [0, 16]
    three = dataclasses.replace(curve(), reported=(*CACHES[:2], Reported("L3", 128.0 * KIB)))
    figure = figures.latency(three)
    assert [a.yshift for a in figure.layout.annotations if "the system says" in a.text] == [0, 16, 0]
    assert figure.layout.margin.t - figures.parallel_chains(chains()).layout.margin.t >= 2 * 16  # room for both rows


def test_a_recorded_curve_beside_is_hollow_and_of_another_colour() -> None:
    """The measured marks are filled and their line is solid; the recorded ones of a GPU are open, dotted and in the colour of GPUs."""
    environment = dataclasses.replace(devices.environment("cpu"), device="A GPU", device_kind="cuda")
    recorded = dataclasses.replace(curve(Evidence.recorded(environment), "cuda"), device="A GPU")
    figure = figures.latency(curve(), beside=[recorded])
    live, far = (t for t in figure.data if t.mode == "markers")
    assert live.marker.symbol == "circle"
    assert far.marker.symbol == "circle-open"
    assert live.marker.color != far.marker.color
    assert [t.line.dash for t in figure.data if t.mode == "lines"] == ["solid", "dot"]
    assert "RECORDED on A GPU" in words(figure)
    assert figure.description.endswith(" Beside it A GPU, recorded: from 4.00 KiB 2.00 ns to 2.00 MiB 20.0 ns.")


def test_a_curve_of_bandwidth() -> None:
    """Rates, their intervals, and the caches."""
    points = tuple(BandwidthPoint(n, r, (0.9 * r, 1.1 * r), 1.2 * r, 5) for n, r in ((8 * KIB, 4e10), (2**20, 1e10)))
    figure = figures.bandwidth(Bandwidth("A CPU", "numpy", "read", points, CACHES, (), LIVE, None))
    marks = next(t for t in figure.data if t.mode == "markers")
    assert list(marks.y) == [4e10, 1e10]
    assert list(marks.error_y.array) == pytest.approx([4e9, 1e9])
    assert "Bandwidth over the working set (read)" in words(figure)
    assert "40.0 GB/s" in figure.layout.meta["description"]


def test_parallel_chains_beside_the_ideal() -> None:
    """Times per hop, and the dashed line of latency over chains: 80, 40 and 20 ns for one, two and four of 80 ns."""
    figure = figures.parallel_chains(chains())
    ideal = next(t for t in figure.data if t.line.dash == "dash")
    assert list(ideal.y) == pytest.approx([80e-9, 40e-9, 20e-9])
    assert "2.00x" in figure.layout.meta["description"]
    marks = next(t for t in figure.data if t.mode == "markers")
    assert marks.customdata == ("1 chain: 80.0 ns", "2 chains: 50.0 ns", "4 chains: 40.0 ns")


def test_levels_are_named_in_the_middle_of_their_flat_part() -> None:
    """In logarithms: from 4 KiB to where the first level ends, and from where the second begins to 2 MiB, at their times."""
    made = curve()
    figure = figures.latency(made)
    first, second = (a for a in figure.layout.annotations if " ns" in a.text)
    begin, end = made.levels().levels[0].between_bytes  # type: ignore[misc]
    assert 32 * KIB <= begin < end <= 64 * KIB
    assert first.x == pytest.approx((12 * math.log10(2) + math.log10(begin)) / 2)
    assert second.x == pytest.approx((math.log10(end) + 21 * math.log10(2)) / 2)
    assert (first.y, second.y) == pytest.approx((math.log10(1.9e-9), math.log10(19e-9)))
    assert (first.yanchor, second.yanchor) == ("bottom", "top")
    assert (first.yshift, second.yshift) == (8, -8)


def test_each_reported_cache_is_a_line_at_its_size_and_far_ones_share_a_row() -> None:
    """8 KiB and 1 MiB are seven doublings apart on an axis of nine: both names in the first row; a size at the axis' end has no line."""
    caches = (Reported("L1d", 8.0 * KIB), Reported("L2", 2.0**20), Reported("no", 4.0 * KIB), Reported("far", 2.0**21))
    figure = figures.latency(dataclasses.replace(curve(), reported=caches))
    lines = [shape for shape in figure.layout.shapes if shape.x0 == shape.x1]
    assert [line.x0 for line in lines] == [8 * KIB, 2**20]
    labels = [a for a in figure.layout.annotations if "the system says" in a.text]
    assert [(label.x, label.yshift) for label in labels] == [(math.log10(8 * KIB), 0), (math.log10(2**20), 0)]


def test_bars_and_words_are_those_of_each_point() -> None:
    """Ten percent to either side where there is an interval; the axis holds their ends; the words have size and time, or size and rate."""
    figure = figures.latency(curve())
    marks = next(t for t in figure.data if t.mode == "markers")
    assert list(marks.error_y.array) == pytest.approx([0] + [0.1 * t for t in TIMES[1:]])
    assert list(marks.error_y.arrayminus) == pytest.approx([0] + [0.1 * t for t in TIMES[1:]])
    assert (marks.customdata[0], marks.customdata[-1]) == ("4.00 KiB: 2.00 ns", "2.00 MiB: 20.0 ns")
    low, high = figure.layout.yaxis.range
    assert low < math.log10(0.9 * 2e-9)
    assert high > math.log10(1.1 * 20e-9)
    points = tuple(BandwidthPoint(n, r, (0.9 * r, 1.1 * r), 1.2 * r, 5) for n, r in ((8 * KIB, 4e10), (2**20, 1e10)))
    live = Bandwidth("A CPU", "numpy", "read", points, CACHES, (), LIVE, None)
    rates = figures.bandwidth(live, beside=[dataclasses.replace(live, device="B CPU")])
    best, marks, *_ = rates.data
    assert (best.x, best.y) == ((8 * KIB, 2**20), pytest.approx((4.8e10, 1.2e10)))
    assert marks.x == (8 * KIB, 2**20)
    assert marks.customdata == ("8.00 KiB: 40.0 GB/s", "1.00 MiB: 10.0 GB/s")
    assert "Beside it B CPU, measured: from 8.00 KiB 40.0 GB/s to 1.00 MiB 10.0 GB/s." in rates.description
    assert [shape.x0 for shape in rates.layout.shapes] == [32 * KIB, 64 * KIB] * (len(rates.layout.shapes) // 2)
    both = figures.parallel_chains(chains())
    marks = next(t for t in both.data if t.mode == "markers")
    assert (marks.x, marks.y) == ((1, 2, 4), (80e-9, 50e-9, 40e-9))
    assert list(both.layout.xaxis.tickvals) == [1, 2, 4]
    assert marks.customdata[1] == "2 chains: 50.0 ns"


def test_names_of_caches_less_than_a_quarter_of_the_axis_apart_have_a_row_each() -> None:
    """By hand: of twenty powers of two 24 per cent are 4.8; of three close ones the third is beside the first again."""
    for places, heights in (((12, 16), [0, 16]), ((12, 17), [0, 0]), ((12, 14, 16), [0, 16, 0])):
        figure = _style.frame("", LIVE, "")
        _name_caches(figure, [Reported(f"L{k}", 2.0**k) for k in reversed(places)], [2.0**10, 2.0**30])
        assert [note.yshift for note in figure.layout.annotations] == heights
        assert [shape.x0 for shape in figure.layout.shapes] == [2.0**k for k in places]
        assert figure.layout.margin.t == 76 + 32
    edges = _style.frame("", LIVE, "")
    _name_caches(edges, [Reported("L1", 2.0**10), Reported("L2", 2.0**30)], [2.0**10, 2.0**30])
    assert edges.layout.shapes == (), "on the ends of the axis nothing is drawn"


def streams() -> LabFigure:
    """Two sizes."""
    points = tuple(BandwidthPoint(n, r, (0.9 * r, 1.1 * r), 1.2 * r, 5) for n, r in ((8 * KIB, 4e10), (2**20, 1e10)))
    return figures.bandwidth(Bandwidth("A CPU", "numpy", "read", points, CACHES, (), LIVE, None))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "bandwidth": streams,
    "latency": lambda: figures.latency(curve()),
    "parallel chains": lambda: figures.parallel_chains(chains()),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
