"""The picture of a collective: measured points solid with their bars, models dashed, and what it is asked to show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from look import look
from looks import LOOKS

from gpulab import figures, models
from gpulab.evidence import Evidence
from gpulab.figures._style import LabFigure
from gpulab.parallel import CollectivePoint, CollectiveSweep


def swept(operation="all_reduce", n=4, link=None, sizes=(2**12, 2**16, 2**20, 2**23), counted=True):
    """A sweep whose times are the formula's, with bars of 10 %, and gloo's own bytes."""
    algorithm = models.GLOO_ALGORITHMS[operation]
    points = []
    for nbytes in sizes:
        cost = models.collective_cost(operation, nbytes, n, algorithm, latency_seconds=1e-4, bandwidth_bytes_per_second=1e9)
        interval = (0.9 * cost.seconds, 1.1 * cost.seconds)
        sent = models.gloo_wire_bytes(operation, nbytes // 4, n) if counted else None
        points.append(CollectivePoint(nbytes, cost.seconds, interval, 40, sent, tuple(cost.sent_bytes(r) for r in range(n))))
    evidence = Evidence.measured("a processor", 160)
    return CollectiveSweep(operation, algorithm, n, 1, "gloo", "float32", tuple(points), link, None, (), evidence, None)


def test_measured_points_are_solid_with_bars_and_models_dashed():
    """The points are the sweep's, the bars its intervals; each algorithm has one dashed line, its own first."""
    s = swept()
    figure = figures.collectives(s)
    *models_drawn, points = figure.data
    assert list(points.x) == [p.nbytes for p in s.points]
    assert list(points.y) == [p.median_seconds for p in s.points]
    assert points.error_y.array[0] == pytest.approx(0.1 * s.points[0].median_seconds)
    assert points.error_y.arrayminus[0] == pytest.approx(0.1 * s.points[0].median_seconds)
    assert points.marker.symbol == "circle"
    assert points.line.dash == "solid"
    assert [t.line.dash for t in models_drawn] == ["dash"] * len(models.collective_algorithms("all_reduce"))
    assert not any(" for " in line.name for line in models_drawn)  # there is one sweep, so nobody asks whose
    assert ["as gloo does it" in line.name for line in models_drawn] == [True] + [False] * (len(models_drawn) - 1)
    elsewhere = figures.collectives(dataclasses.replace(s, backend="nccl"))
    assert not any("as " in line.name for line in elsewhere.data[:-1])
    # Made by the ring's formula, the points lie on the ring's line.
    assert models_drawn[0].y[-1] == pytest.approx(points.y[-1], rel=0.03)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_bytes_sent_are_drawn_with_the_algorithms_own_and_need_no_fit():
    """One size is enough; the busiest rank's bytes; an uncounted sweep has no points there."""
    s = swept("broadcast", sizes=(2**16,))
    figure = figures.collectives(s, "sent")
    assert list(figure.data[-1].y) == [2 + 192 / 2**16]  # the root of four sends it twice, and two headers a message
    ring, *_ = figures.collectives(swept(), "sent").data
    assert list(ring.y) == pytest.approx(
        [1.5] * len(ring.y)
    )  # 2 (n - 1) / n of the payload, and so does halving and doubling: one line for both
    assert "halving and doubling" in ring.name
    assert figures.collectives(swept(counted=False), "sent").data[-1].y == ()
    assert len(figures.collectives(s).data) == 1  # times of one size tell no latency, so no models
    assert len(figures.collectives(swept(sizes=(2**12, 2**16))).data) == 1
    assert len(figures.collectives(swept(sizes=(2**12, 2**16, 2**20))).data) > 1
    bare = dataclasses.replace(s, points=tuple(dataclasses.replace(p, interval_seconds=None) for p in s.points))
    assert set(figures.collectives(bare).data[-1].error_y.array) == {0}


def test_bus_bandwidth_shows_the_links_own_rate():
    """The limit that was set is drawn and labelled; the rate at the largest payload is near the formula's 1 GB/s."""
    figure = figures.collectives(swept(link=5e7), "bus")
    assert figure.data[-1].y[-1] == pytest.approx(1e9, rel=0.1)
    (note,) = figure.layout.annotations
    assert "link 50.0 MB/s" in note.text
    assert note.x < 0.5  # at the left, where the curves are below it
    assert note.xanchor == "left"


def test_several_sweeps_are_told_apart_and_models_only_on_request():
    """Colour and shape both differ; a name of an algorithm brings its line for each."""
    several = [swept(n=2), swept(n=4)]
    figure = figures.collectives(several)
    assert len(figure.data) == 2
    assert len({(t.marker.color, t.marker.symbol) for t in figure.data}) == 2
    trees = figures.collectives(several, algorithms=["tree"])
    assert len(trees.data) == 4
    assert [f"among {n} ranks (modelled)" in trace.name for n, trace in zip((2, 4), trees.data, strict=False)] == [True, True]
    words = figure.layout.meta if isinstance(figure.layout.meta, str) else str(figure.layout.meta)
    assert "among 4 ranks" in words


def test_rates_have_the_intervals_of_their_times_turned_round():
    """A time 10 % longer is a rate divided by 1.1; bytes, which are counted, have no bars; the words have time, rate and bytes."""
    s = swept()
    points = figures.collectives(s, "bus").data[-1]
    assert list(points.error_y.array) == pytest.approx([y / 0.9 - y for y in points.y])
    assert list(points.error_y.arrayminus) == pytest.approx([y - y / 1.1 for y in points.y])
    first = s.points[0]
    # Of an all-reduce over four ranks each link carries 2 x 3/4 of the payload.
    assert points.y[0] == pytest.approx(1.5 * first.nbytes / first.median_seconds)
    assert points.customdata[0].startswith("4.00 KiB: ")
    assert "bus bandwidth" in points.customdata[0]
    assert "sent by the busiest rank" in points.customdata[0]
    sent = figures.collectives(s, "sent").data[-1]
    assert set(sent.error_y.array) == set(sent.error_y.arrayminus) == {0}


def test_a_models_line_runs_from_the_smallest_payload_to_the_largest():
    """In each quantity the ring's own line passes through the points that were made by its formula, over their whole range."""
    s = swept()
    for quantity in ("seconds", "bus"):
        line, *_, points = figures.collectives(s, quantity).data
        assert (line.x[0], line.x[-1]) == pytest.approx((points.x[0], points.x[-1]))
        assert (line.y[0], line.y[-1]) == pytest.approx((points.y[0], points.y[-1]), rel=0.03)
    figure = figures.collectives(swept(link=5e7), "bus")
    assert [(shape.y0, shape.y1) for shape in figure.layout.shapes] == [(5e7, 5e7)]
    assert figures.collectives(swept(link=5e7)).layout.shapes == ()


def test_models_need_three_sizes_and_are_drawn_at_48() -> None:
    """Of two sizes a line through both would be no fit; bytes sent need none."""
    assert [len(figures.collectives(swept(sizes=sizes)).data) > 1 for sizes in ((2**12, 2**16), (2**12, 2**16, 2**20))] == [False, True]
    assert len(figures.collectives(swept(sizes=(2**12, 2**16)), "sent").data) > 1
    assert {len(line.x) for line in figures.collectives(swept()).data[:-1]} == {48}


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "collectives": lambda: figures.collectives(swept(link=5e7), "bus"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
