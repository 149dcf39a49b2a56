"""The picture of an access against sectors and banks derived by hand."""

from __future__ import annotations

import re
from typing import Any

import plotly.graph_objects as go

from gpulab import figures, models


def plain(text: str) -> str:
    """A text without mark-up."""
    return re.sub("<.*?>", "", text)


def named(figure: go.Figure) -> dict[str, Any]:
    """The traces that have a name."""
    return {plain(t.name): t for t in figure.data if t.name}


def boxes(trace: Any) -> int:
    """How many boxes a trace draws: each ends with a gap."""
    return sum(x is None for x in trace.x)


def texts(figure: go.Figure) -> list[str]:
    """What is written into the sectors."""
    return [plain(text) for t in figure.data if t.type == "scatter" and t.mode == "text" for text in t.text]


def test_a_row_of_floats_fills_four_sectors() -> None:
    """32 floats in a row: 4 frames at bytes 0 to 96, 32 filled elements with their lanes, 28 free places."""
    figure = figures.access(models.access_pattern())
    assert boxes(named(figure)["moved"]) == 4
    assert boxes(named(figure)["used"]) == 32
    assert boxes(figure.data[0]) == 28
    assert texts(figure) == [*map(str, range(32)), "byte 0", "byte 32", "byte 64", "byte 96"]
    assert "4 sectors where 4 would do; 1 wavefront where 1 would do" in plain(figure.layout.title.text)
    assert "MODELLED" in plain(figure.layout.title.subtitle.text)


def test_a_column_of_a_tile_waits_in_one_bank() -> None:
    """Stride 32: 32 frames 128 bytes apart, one element each; bank 0 delivers 32 words, 31 of them with another wavefront."""
    figure = figures.access(models.access_pattern(32))
    assert (boxes(named(figure)["moved"]), boxes(named(figure)["used"]), boxes(figure.data[0])) == (32, 32, 0)
    assert "byte 3,968" in texts(figure)  # 31 x 128
    first, more = named(figure)["first word of a bank"], named(figure)["one more wavefront"]
    assert (first.x, first.base) == ((0,), (0,))
    assert (set(more.x), more.base) == ({0}, tuple(range(1, 32)))
    assert figure.layout.yaxis2.range[1] > 32
    assert "The busiest bank is 0." in figure.description


def test_shared_elements_are_marked_and_broadcasts_are_no_conflict() -> None:
    """One element for all: one filled box marked "0+", whose hover names all lanes; one word in one bank."""
    figure = figures.access(models.access_pattern(0))
    assert texts(figure) == ["0+", "byte 0"]
    assert "lanes 0, 1, 2" in next(t for t in figure.data if t.type == "scatter" and t.mode == "text").customdata[0]
    assert named(figure)["one more wavefront"].x == (None,)
    assert [plain(t) for t in named(figure)["first word of a bank"].text] == ["0+"]


def test_wide_elements_show_each_pass() -> None:
    """8-byte elements go by half-warps: 64 words over two rows of 32 banks; 16-byte ones by four quarter-warps, 128 words."""
    for size, passes in ((8, 2), (16, 4)):
        figure = figures.access(models.access_pattern(1, 0, size))
        bars = named(figure)["first word of a bank"]
        assert len(bars.x) == 32 * passes
        assert max(bars.x) <= figure.layout.xaxis2.range[1]
        assert named(figure)["one more wavefront"].x == (None,)
    assert "quarter-warp" in plain(figure.layout.xaxis2.title.text)


def test_no_active_lane_is_drawn_as_nothing() -> None:
    """Without lanes there is no request: nothing moved, nothing used, and the description says so."""
    figure = figures.access(models.access_pattern(active_lanes=0))
    assert boxes(named(figure)["moved"]) == 0
    assert figure.description == "No lane is active: no request is made."
