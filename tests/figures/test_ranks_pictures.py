"""The pictures of ranks: bars at their places, patterns, what is filled and what is hollow, and words, from results made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from look import look
from looks import LOOKS

from gpulab import devices, figures, models
from gpulab.evidence import Badge, Evidence
from gpulab.figures._style import LabFigure
from gpulab.figures.ranks import _bar, _gaps, _text
from gpulab.models import StagePass
from gpulab.parallel import RankSpan, RankTimeline, ScheduleRun

HERE = Evidence.measured("2 ranks, some CPU", 2)


def plain(text: str | None) -> str:
    """Without mark-up."""
    return re.sub("<.*?>", "", text or "")


def trace(figure: Any, name: str) -> Any:
    """The trace whose name begins so."""
    return next(t for t in figure.data if plain(t.name).startswith(name))


def ticks(axis: Any) -> list[str]:
    """What stands at an axis."""
    return [plain(text) for text in axis.ticktext]


@pytest.fixture
def timeline() -> RankTimeline:
    """Two ranks and two steps of 100 ms; the second rank's all-reduce lies beside its backward pass."""
    spans = (
        RankSpan(0, "compute", "forward", 0.0, 0.03), RankSpan(0, "compute", "backward", 0.03, 0.06),
        RankSpan(0, "idle", "all_reduce", 0.06, 0.08), RankSpan(0, "compute", "optimizer", 0.08, 0.09),
        RankSpan(0, "compute", "forward", 0.1, 0.13), RankSpan(1, "compute", "forward 2", 0.0, 0.03),
        RankSpan(1, "compute", "backward 2", 0.03, 0.08), RankSpan(1, "communication", "all_reduce", 0.06, 0.08, 2**20),
    )  # fmt: skip
    return RankTimeline("ddp on 2 ranks", 2, spans, (0.0, 0.1), 0.2, (), HERE)


def test_lanes_of_ranks(timeline: RankTimeline) -> None:
    """Forward, backward and the rest are apart, messages lie under their rank, waiting is grey and crossed; the second step is marked."""
    figure = figures.rank_timeline(timeline)
    forward = trace(figure, "forward (measured)")
    assert list(forward.base) == pytest.approx([0.0, 0.1, 0.0])
    assert list(forward.x) == pytest.approx([0.03, 0.03, 0.03])
    assert [plain(text) for text in forward.text] == ["forward", "forward", "2"]
    messages = trace(figure, "communication")
    assert messages.y[0] - forward.y[2] == pytest.approx(0.83)
    assert messages.customdata[0] == "rank 1: all_reduce of 1.00 MiB, 20.0 ms"
    assert trace(figure, "waits").customdata[0] == "rank 0: waits for all_reduce, 20.0 ms"
    assert len({t.marker.pattern.shape for t in figure.data}) == len(figure.data) == 5  # told apart without colour
    assert all(t.marker.color.startswith("#") for t in figure.data if "waits" not in t.name)  # measured is filled
    assert ticks(figure.layout.yaxis) == ["rank 0", "rank 1", "messages", "messages"]
    assert [plain(a.text) for a in figure.layout.annotations] == ["step 2"]
    assert "rank 1: compute 40%, communication 10%, idle 0%" in figure.description
    assert plain(figure.layout.title.text) == "ddp on 2 ranks: who works when, 2 steps"


def test_fewer_steps_cut_the_picture(timeline: RankTimeline) -> None:
    """With one step the axis ends where the second begins, and nothing of it is drawn."""
    figure = figures.rank_timeline(timeline, steps=1)
    assert list(trace(figure, "forward").base) == [0.0, 0.0]
    assert figure.layout.xaxis.range[1] < 0.11
    assert figure.layout.annotations == ()
    assert plain(figure.layout.title.text) == "ddp on 2 ranks: who works when, one step"
    late = RankTimeline("late", 1, (RankSpan(0, "compute", "forward", 0.05, 0.3),), (0.1, 0.2), 0.3, (), HERE)
    bar = trace(figures.rank_timeline(late, steps=1), "forward")
    assert (bar.base[0], bar.x[0]) == (pytest.approx(0), pytest.approx(0.1))  # what reaches out of the step is cut at its ends


def test_without_messages_there_is_no_lane_for_them() -> None:
    """A run of passes and waiting alone has one lane a rank."""
    spans = (RankSpan(0, "compute", "forward 0", 0.0, 0.1), RankSpan(0, "idle", "recv", 0.1, 0.2))
    figure = figures.rank_timeline(RankTimeline("1f1b on 1 ranks", 1, spans, (), 0.2, (), HERE))
    assert ticks(figure.layout.yaxis) == ["rank 0"]


def test_the_timetable_of_a_pipeline() -> None:
    """Two stages, two microbatches: forwards and backwards at their ticks, hollow since modelled, with the bubble and what is held."""
    s = models.pipeline_schedule(2, 2, "1f1b", forward=1, backward=1)
    figure = figures.pipeline_schedule(s)
    forward, backward, waits = (trace(figure, name) for name in ("forward", "backward", "waits"))
    assert list(zip(forward.y, forward.base, strict=True)) == [(0, 0), (0, 1), (1, 1), (1, 3)]
    assert sorted(zip(backward.y, backward.base, strict=True)) == [(0, 3), (0, 5), (1, 2), (1, 4)]
    assert sorted(zip(waits.y, waits.base, waits.x, strict=True)) == [(0, 2, 1), (0, 4, 1), (1, 0, 1), (1, 5, 1)]
    assert forward.marker.color.startswith("rgba")  # hollow
    assert forward.marker.pattern.shape != backward.marker.pattern.shape
    assert [plain(text) for text in forward.text] == ["0", "1", "0", "1"]
    assert ticks(figure.layout.yaxis) == ["stage 0, holds 2", "stage 1, holds 1"]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # stage 0 on top
    assert plain(figure.layout.title.text) == "1F1B, 2 stages, 2 microbatches: bubble 33.3%"
    assert "The formula says 33.3%" in figure.description
    assert "unit of the costs" in plain(figure.layout.xaxis.title.text)
    assert plain(figures.pipeline_schedule(s, unit="ms").layout.xaxis.title.text) == "time (ms)"
    one = models.pipeline_schedule(2, 1, "gpipe", forward=1, backward=1)
    assert plain(figures.pipeline_schedule(one).layout.title.text) == "GPipe, 2 stages, 1 microbatch: bubble 50.0%"


def split_run() -> ScheduleRun:
    """Two stages, one forward and one backward pass on each, in 7 s."""
    passes = (
        StagePass(0, "forward", 0, 2, 0, 0.0, 1.0), StagePass(1, "forward", 0, 2, 0, 1.5, 2.5),
        StagePass(1, "backward", 0, 2, 0, 2.5, 4.5), StagePass(0, "backward", 0, 2, 0, 5.0, 7.0),
    )  # fmt: skip
    return ScheduleRun("split", 2, 2, 1, 0.5, 1.0, (0.57,), passes, (2, 1), (), HERE, devices.environment("cpu"))


def test_a_run_stands_under_its_timetable() -> None:
    """The modelled half is hollow, the measured one filled, both on one scale of time; the title has both bubbles."""
    run = split_run()
    figure = figures.pipeline_schedule(run)
    assert plain(figure.layout.title.text) == "split by hand, 2 stages, 2 microbatches: bubble 50.0%, measured 57.0%"
    below = [t for t in figure.data if t.yaxis == "y2"]
    assert figure.description == (
        "In the timetable: the stages wait 50.0% of the time and hold at most 2 microbatches' activations. "
        "Measured: the stages wait 57.0% of the time and hold at most 2 microbatches' activations. The formula says 50.0%."
    )
    assert {plain(t.name) for t in below} == {"waits (measured)", "forward (measured)", "backward (measured)"}
    assert [plain(text) for text in trace(figure, "forward (measured)").text] == ["forward", "forward"]
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]
    assert figure.layout.xaxis.range[1] >= 7.0
    subtitle = plain(figure.layout.title.subtitle.text)
    assert "MODELLED" in subtitle
    assert "MEASURED" in subtitle
    assert figures.pipeline_schedule(run.model, run).data == figure.data


def test_many_narrow_passes_have_no_text() -> None:
    """Eight stages and 32 microbatches: nothing is written on bars that are too narrow for it, and their edges are thin."""
    figure = figures.pipeline_schedule(models.pipeline_schedule(8, 32, "1f1b", forward=1, backward=40))
    assert set(trace(figure, "forward").text) == {""}
    assert trace(figure, "forward").marker.line.width < trace(figure, "backward").marker.line.width


def test_each_bar_lies_on_its_ranks_lane_for_its_time(timeline: RankTimeline) -> None:
    """Every kind, by hand from the spans: the lanes of the two threads, the time since the first step, the mark of the second step."""
    figure = figures.rank_timeline(timeline)
    top, below = figure.layout.yaxis.tickvals[:2]
    assert list(trace(figure, "forward").y) == [top, top, below]
    expected = {"backward": [(top, 0.03, 0.03), (below, 0.03, 0.05)], "optimizer and the rest": [(top, 0.08, 0.01)]}
    expected["waits"] = [(top, 0.06, 0.02)]
    for name, bars in expected.items():
        t = trace(figure, name)
        assert list(zip(t.y, t.base, t.x, strict=True)) == [pytest.approx(bar) for bar in bars]
    assert (trace(figure, "communication").base[0], trace(figure, "communication").x[0]) == pytest.approx((0.06, 0.02))
    assert [(shape.x0, shape.x1, shape.y0, shape.y1) for shape in figure.layout.shapes] == [(0.1, 0.1, 0, 1)]
    assert figure.layout.annotations[0].x == 0.1
    assert figure.layout.xaxis.range[0] == 0
    low, high = figure.layout.yaxis.range  # y grows downwards
    assert high < top < below < max(figure.layout.yaxis.tickvals) < low


def test_a_run_and_its_timetable_share_the_scale_and_the_place() -> None:
    """Both stages of both halves have rows; waiting is what no pass fills, to the end of the longer pass; words say when each pass is."""
    run = split_run()
    figure = figures.pipeline_schedule(run)
    waits = trace(figure, "waits (measured)")
    assert sorted(zip(waits.y, waits.base, waits.x, strict=True)) == [(0, 1.0, 4.0), (1, 0.0, 1.5), (1, 4.5, 2.5)]
    backward = trace(figure, "backward (measured)")
    assert list(zip(backward.y, backward.base, backward.x, strict=True)) == [(1, 2.5, 2.0), (0, 5.0, 2.0)]
    assert backward.customdata[1] == "stage 0: backward of the whole batch: 5 to 7"
    assert figure.layout.xaxis.range[0] == 0
    assert 7.0 <= figure.layout.xaxis.range[1] < 8.0
    upper, lower = figure.layout.yaxis.domain, figure.layout.yaxis2.domain
    assert upper[1] == 1.0
    assert lower[0] == pytest.approx(0.0)
    assert upper[1] - upper[0] == pytest.approx(lower[1] - lower[0])  # two stages each
    assert ticks(figure.layout.yaxis2) == ["stage 0, holds 2", "stage 1, holds 2"]  # each the whole batch of two
    alone = figures.pipeline_schedule(run.model)
    assert alone.layout.yaxis.domain == (0.0, 1.0)


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.5, "forward"), (0.06, "F"), (0.001, "")],
)
def test_a_bar_has_the_word_that_fits(share: float, said: str) -> None:
    """The whole word on a wide bar, its first letter on a narrow one, nothing on a sliver; what moves bytes has no letter."""
    spans = tuple(RankSpan(0, kind, name, a, a + share) for kind, name, a in (("compute", "forward", 0.0), ("communication", "send", 0.5)))
    figure = figures.rank_timeline(RankTimeline("x", 1, spans, (), 1.0, (), HERE))
    assert plain(trace(figure, "forward").text[0]) == said
    assert trace(figure, "communication").text[0] == ""


def test_what_a_step_does_not_touch_is_not_drawn() -> None:
    """A span that ends where the first step begins lies outside; a run without steps is one, and one without time did nothing."""
    spans = (RankSpan(0, "compute", "forward", 0.0, 0.1), RankSpan(0, "compute", "forward", 0.1, 0.2))
    late = figures.rank_timeline(RankTimeline("late", 1, spans, (0.1,), 0.2, (), HERE))
    assert list(trace(late, "forward").x) == pytest.approx([0.1])
    whole = figures.rank_timeline(RankTimeline("whole", 1, spans, (), 0.2, (), HERE))
    assert plain(whole.layout.title.text) == "whole: who works when, one step"
    assert "rank 0: nothing." in figures.rank_timeline(RankTimeline("none", 1, (), (), 0.0, (), HERE)).description


def test_ranks_without_messages_stand_close() -> None:
    """By hand: rows 1.1 apart with 0.6 over the first and under the last, 30 pixels each beside 150 for title and legend."""
    spans = tuple(RankSpan(rank, "compute", "forward", 0.0, 0.1) for rank in (0, 1))
    layout = figures.rank_timeline(RankTimeline("x", 2, spans, (), 0.1, (), HERE)).layout
    assert (list(layout.yaxis.tickvals), list(layout.yaxis.range)) == ([0, pytest.approx(1.1)], [pytest.approx(1.7), -0.6])
    assert layout.height == 150 + 2 * 30


@pytest.mark.parametrize(("stages", "row", "letters"), [(20, 30, 12), (36, 17, 12), (38, 16, 10), (40, 15, 10), (60, 14, 10)])
def test_many_stages_share_the_height(stages: int, row: int, letters: int) -> None:
    """By hand: 620 pixels for all, at most 30 and at least 14 for each; low rows have smaller letters."""
    layout = figures.pipeline_schedule(models.pipeline_schedule(stages, 1, "gpipe", forward=1, backward=1)).layout
    assert (layout.height, layout.yaxis.tickfont.size) == (158 + row * stages, letters)


@pytest.mark.parametrize(
    ("name", "width", "said"),
    [
        ("forward", 0.0876, "forward"), ("forward", 0.0874, "F"), ("forward", 0.0141, "F"), ("forward", 0.0139, ""),
        ("forward 12", 0.0197, "12"), ("forward 12", 0.0195, ""), ("forward 3", 0.0141, "3"), ("optimizer", 0.11, ""),
    ],
)  # fmt: skip
def test_a_word_needs_an_eightieth_of_the_width_for_each_letter(name: str, width: float, said: str) -> None:
    """Seven letters 0.0875, by hand; a number 0.014 for its first digit and two fifths of it for each other one."""
    kind = name.partition(" ")[0]
    for badge in (Badge.MEASURED, Badge.MODELLED):
        assert plain(_text(kind if kind == "forward" else "other compute", badge, name, width)) == said


def test_a_gap_of_rounding_is_none() -> None:
    """Less than a billionth of the whole, between two passes as at the end."""
    passes = [StagePass(0, "forward", 0, 1, 0, 0.0, 1.0), StagePass(0, "backward", 0, 1, 0, 1.0 + 1e-9, 2.0 - 1e-9)]
    assert list(_gaps(passes, 1, 2.0)) == []
    assert list(_gaps(passes, 1, 0.9)) == [(0, 1.0, 1.0 + 1e-9)]
    assert list(_gaps(passes, 2, 2.0 + 3e-9)) == [(0, 2.0 - 1e-9, 2.0 + 3e-9), (1, 0.0, 2.0 + 3e-9)]


def test_bars_narrower_than_six_thousandths_have_thin_edges() -> None:
    """Else they would be all edge."""
    assert [_bar("forward", Badge.MODELLED, 0.8, width)["marker"]["line"]["width"] for width in (0.0061, 0.0059)] == [1.3, 0.4]
    assert [_bar("forward", Badge.MEASURED, 0.8, width)["marker"]["line"]["width"] for width in (0.0061, 0.0059)] == [0.7, 0.4]


def ranked() -> LabFigure:
    """Two ranks, two steps."""
    spans = (
        RankSpan(0, "compute", "forward", 0.0, 0.03), RankSpan(0, "compute", "backward", 0.03, 0.06),
        RankSpan(0, "idle", "all_reduce", 0.06, 0.08), RankSpan(0, "compute", "optimizer", 0.08, 0.09),
        RankSpan(0, "compute", "forward", 0.1, 0.13), RankSpan(1, "compute", "backward 2", 0.03, 0.08),
        RankSpan(1, "communication", "all_reduce", 0.06, 0.08, 2**20),
    )  # fmt: skip
    return figures.rank_timeline(RankTimeline("ddp on 2 ranks", 2, spans, (0.0, 0.1), 0.2, (), HERE))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "rank timeline": ranked,
    "stages": lambda: figures.pipeline_schedule(models.pipeline_schedule(2, 2, "1f1b", forward=1, backward=1)),
    "stages: a run": lambda: figures.pipeline_schedule(split_run()),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
