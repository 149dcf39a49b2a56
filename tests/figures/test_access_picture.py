"""The picture of an access against sectors and banks derived by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
import pytest
from look import look
from looks import LOOKS

from gpulab import figures, models
from gpulab.figures._style import LabFigure


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
    assert figure.description.endswith(" The sectors begin at byte 0, 32, 64, 96.")  # and no bank is busier than another
    assert (figure.layout.xaxis.visible, figure.layout.yaxis.visible, figure.layout.xaxis2.showgrid) == (False, False, False)


def test_a_stride_of_two_keeps_half_of_the_banks_busy() -> None:
    """256 bytes are eight sectors, which are all named; two words of 32 meet in each even bank."""
    words = figures.access(models.access_pattern(2)).description
    assert words.endswith(" The sectors begin at byte 0, 32, 64, 96, 128, 160, 192, 224. The busiest banks are 16 of 32.")


def test_a_column_of_a_tile_waits_in_one_bank() -> None:
    """Stride 32: 32 frames 128 bytes apart, one element each; bank 0 delivers 32 words, 31 of them with another wavefront."""
    figure = figures.access(models.access_pattern(32))
    assert (boxes(named(figure)["moved"]), boxes(named(figure)["used"]), boxes(figure.data[0])) == (32, 32, 0)
    assert "byte 3,968" in texts(figure)  # 31 x 128
    first, more = named(figure)["first word of a bank"], named(figure)["one more wavefront"]
    assert (first.x, first.base) == ((0,), (0,))
    assert (set(more.x), more.base) == ({0}, tuple(range(1, 32)))
    assert figure.layout.yaxis2.range[1] > 32
    assert "The sectors begin at byte 0, 128, 256, 384, 512, 640, 768, ..., 3,968. The busiest bank is 0." in figure.description
    assert {plain(t) for t in more.text} == {""}  # too many to be read


def test_a_lane_may_ask_for_one_byte() -> None:
    """int8, one after the other: lane 3 takes the fourth byte."""
    texts = next(t for t in figures.access(models.access_pattern(1, 0, 1)).data if t.customdata)
    assert texts.customdata[3] == "lane 3: 1 byte from byte 3"


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


def test_each_lane_stands_in_its_sector_and_in_its_bank() -> None:
    """Three lanes, 16 elements apart from the second on: bytes 4, 68, 132 in sectors 0, 2, 4; words 1, 17, 33 in banks 1, 17, 1."""
    figure = figures.access(models.access_pattern(16, 1, active_lanes=3))
    frames, used = named(figure)["moved"], named(figure)["used"]
    corners = [[(frames.x[k + i], frames.y[k + i]) for i in range(6)] for k in range(0, 18, 6)]
    for k, corner in enumerate(corners):
        (left, bottom), (right, _), (_, top), *_ = corner
        assert right - left == 32
        assert used.x[6 * k : 6 * k + 2] == (left + 4, left + 8), "the element lies 4 bytes inside its sector"
        assert (used.y[6 * k], used.y[6 * k + 2]) == (bottom, top)
    lefts = [corner[0][0] for corner in corners]
    assert lefts[0] + 32 < lefts[1] < lefts[1] + 32 < lefts[2]
    numbers, addresses = (t for t in figure.data if t.type == "scatter" and t.mode == "text")
    assert numbers.x == tuple(left + 6 for left in lefts)
    assert addresses.x == tuple(lefts)
    assert all(y > top for y in addresses.y)
    assert texts(figure) == ["0", "1", "2", "byte 0", "byte 64", "byte 128"]
    assert numbers.customdata[2] == "lane 2: 4 bytes from byte 132"
    first, more = named(figure)["first word of a bank"], named(figure)["one more wavefront"]
    assert (first.x, first.base, first.y, [plain(t) for t in first.text]) == ((1, 17), (0, 0), (1, 1), ["0", "1"])
    assert (more.x, more.base, more.y, [plain(t) for t in more.text]) == ((1,), (1,), (1,), ["2"])
    assert (first.customdata[1], more.customdata[0]) == ("bank 17, word at byte 68: lane 1", "bank 1, word at byte 132: lane 2")
    assert "The sectors begin at byte 0, 64, 128. The busiest bank is 1." in figure.description
    assert (
        [plain(t) for t in figure.layout.xaxis2.ticktext] == [str(t) for t in figure.layout.xaxis2.tickvals] == ["0", "8", "16", "24", "31"]
    )


def test_the_second_pass_of_wide_elements_stands_beside_the_first() -> None:
    """8-byte elements: lanes 0 to 15 in the banks from 0 on, lanes 16 to 31 in 32 further places, with the banks' numbers once more."""
    figure = figures.access(models.access_pattern(1, 0, 8))
    bars = named(figure)["first word of a bank"]
    start = bars.x[32]
    assert list(bars.x) == [*range(32), *range(start, start + 32)]
    assert start > 32
    assert bars.customdata[32] == "bank 0, word at byte 128: lane 16"
    values, marks = figure.layout.xaxis2.tickvals, [plain(t) for t in figure.layout.xaxis2.ticktext]
    assert [value - start for value in values[4:]] == list(values[:4]) == [0, 8, 16, 24]
    assert marks == ["0", "8", "16", "24"] * 2
    assert plain(figure.layout.xaxis2.title.text) == "bank, once for each half-warp"


def test_fourteen_words_of_a_bank_are_numbered_and_fifteen_are_not() -> None:
    """Lanes 32 words apart: all in bank 0, lane k at height k; two bytes are too narrow for a number in their sector."""
    for lanes, numbers in ((14, [str(lane) for lane in range(1, 14)]), (15, [""] * 14)):
        more = named(figures.access(models.access_pattern(32, active_lanes=lanes)))["one more wavefront"]
        assert [plain(text) for text in more.text] == numbers
    for size, number in ((2, ""), (4, "0")):
        assert texts(figures.access(models.access_pattern(1, 0, size, active_lanes=1)))[0] == number


def test_the_axes_of_the_banks_have_few_ticks() -> None:
    """Of 32 words each fourth, of one the least axis of four; by quarters of a warp the first and the middle bank, 35 places apart."""
    heights = [figures.access(models.access_pattern(stride)).layout.yaxis2.tickvals for stride in (32, 1)]
    assert [list(each) for each in heights] == [list(range(0, 33, 4)), [0, 1, 2, 3, 4]]
    quarters = figures.access(models.access_pattern(1, 0, 16)).layout.xaxis2
    assert list(quarters.tickvals) == [0, 16, 35, 51, 70, 86, 105, 121]
    assert [plain(text) for text in quarters.ticktext] == ["0", "16"] * 4


def test_the_busiest_banks_of_any_half_warp_are_told() -> None:
    """17 lanes with 8 bytes each 128 bytes apart: 16 meet in banks 0 and 1, and the one of the second half-warp hides nothing."""
    words = figures.access(models.access_pattern(16, 0, 8, active_lanes=17)).description
    assert words.endswith(" The busiest banks are 2 of 32.")


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "access": lambda: figures.access(models.access_pattern(32, active_lanes=2)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
