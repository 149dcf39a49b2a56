"""The picture of gradients against a format's window: bars, edges and words, derived by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from look import look
from looks import LOOKS

from gpulab import figures, precision
from gpulab.figures._style import LabFigure


def test_bars_are_the_histogram_shifted() -> None:
    """Four gradients at scale 8: bars at their power of two plus three, each with its fate; the edges of float16 are drawn."""
    window = precision.gradient_window([2.0**-40, 2.0**-20, 1.0, 3.0e4], "float16", 8)
    figure = figures.gradient_window(window)
    bars = {trace.name.split(">")[1].split("<")[0]: list(trace.x) for trace in figure.data}
    assert bars["becomes zero"] == [-36.5]
    assert -16.5 in bars["subnormal: fewer digits"]
    assert 3.5 in bars["normal: all digits"]
    assert 17.5 in bars["beyond the largest"]
    assert [shape.x0 for shape in figure.layout.shapes] == [-25, -14, 16]
    assert "Safe scales" in figure.description or "No scale is safe" in figure.description
    assert figures.gradient_window(precision.gradient_window([0.0], "float16")).layout.height


def test_the_edges_of_a_window_belong_to_the_side_that_rounding_says() -> None:
    """By hand for float16: from 2^-25 on a number rounds up to the least subnormal 2^-24; 2^-14 is normal; 2^15 is held, 2^16 overflows."""
    counts = {-26: 1, -25: 2, -15: 3, -14: 4, 15: 5, 16: 5}
    values = [1.5 * 2.0**exponent for exponent, count in counts.items() for _ in range(count)]
    figure = figures.gradient_window(precision.gradient_window(values, "float16", 1))
    bars = {trace.name.split(">")[1].split("<")[0]: (trace.x, trace.y) for trace in figure.data}
    assert bars == {
        "becomes zero": ((-25.5,), (0.05,)), "subnormal: fewer digits": ((-24.5, -14.5), (0.1, 0.15)),
        "normal: all digits": ((-13.5, 15.5), (0.2, 0.25)), "beyond the largest": ((16.5,), (0.25,)),
    }  # fmt: skip
    assert figure.data[0].customdata == ("2^-26",)
    assert figure.layout.yaxis.range[1] > 0.25
    low, high = figure.layout.xaxis.range
    assert low < -26 < 17 < high
    ticks = figure.layout.xaxis.tickvals
    assert [f"2^{tick}" in text for tick, text in zip(ticks, figure.layout.xaxis.ticktext, strict=True)] == [True] * len(ticks)
    assert {-24, 16} <= set(ticks)
    names = [text.text.split(">")[1].split("<")[0] for text in figure.layout.annotations]
    assert (names, [text.x for text in figure.layout.annotations]) == (
        ["zero below", "full digits from here", "overflow from here"], [-25, -14, 16],
    )  # fmt: skip
    assert [text.xanchor for text in figure.layout.annotations] == ["left", "left", "right"], "the last one would leave the picture"
    assert [text.xshift > 0 for text in figure.layout.annotations] == [True, True, False]  # beside the line, not on it
    heights = [text.y for text in figure.layout.annotations]
    assert 1 >= heights[0] > heights[1] > heights[2] > 0  # a line each
    scaled = figures.gradient_window(precision.gradient_window(values, "float16", 1024))
    assert scaled.data[-1].customdata == ("2^15", "2^16")  # as they were before scaling


def test_the_only_fate_of_gradients_is_named() -> None:
    """Where all gradients have one fate the legend still says which: of a single trace plotly draws none unless it is told to."""
    for value, fate in ((1.0, "normal: all digits"), (2.0**-40, "becomes zero")):
        figure = figures.gradient_window(precision.gradient_window([value, 1.5 * value], "float16", 1))
        assert [fate in trace.name for trace in figure.data if len(trace.x)] == [True]
        assert figure.layout.showlegend is True


def test_a_thin_tail_of_small_gradients_is_left_out() -> None:
    """One of ten thousand far below does not press the others together; a hundred of them are shown."""
    for few, shown in ((1, False), (20, False), (21, True), (100, True)):  # a fifth of a percent may lie outside
        window = precision.gradient_window([*[1.5] * (10_000 - few), *[1.5 * 2.0**-100] * few], "float16", 1)
        low, _ = figures.gradient_window(window).layout.xaxis.range
        assert (low < -100) is shown


def test_the_axis_of_gradients_shows_edges_that_are_near() -> None:
    """By hand, gradients of 2^0 alone: edges within 32 powers of two are shown with a margin, and of farther ones 32 powers."""
    from types import SimpleNamespace

    from gpulab.figures.gradients import _ends

    one = SimpleNamespace(exponents=(0,), counts=(5,))
    assert _ends(one, 0, -149, 127) == (-32, 33)
    assert _ends(one, 0, -24, 15) == (-28, 18)
    assert _ends(one, 10, -24, 15) == (-22, 18)


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "gradient window": lambda: figures.gradient_window(precision.gradient_window([2.0**-40, 2.0**-20, 1.0, 3.0e4], "float16", 8)),
    "gradient window: narrow": lambda: figures.gradient_window(precision.gradient_window([1.0, 1.5, 2.0], "float8_e5m2")),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]


@pytest.mark.parametrize(
    ("exponents", "name", "ends", "ticks"),
    [
        ((7,), "float16", (-25, 19), range(-24, 17, 4)),
        ((6,), "float16", (-26, 19), range(-24, 17, 8)),
        ((0, 31), "float32", (-32, 64), range(-32, 65, 8)),
        ((0, 32), "float32", (-32, 65), range(-32, 65, 32)),
    ],
)
def test_the_ticks_of_gradients_stand_closer_on_a_shorter_axis(
    exponents: tuple[int, ...], name: str, ends: tuple[int, int], ticks: range
) -> None:
    """By hand: each fourth power of two on up to 44 of them, each eighth on up to 96, each 32nd on more."""
    axis = figures.gradient_window(precision.gradient_window([1.5 * 2.0**k for k in exponents], name)).layout.xaxis
    assert (axis.range, list(axis.tickvals)) == (ends, list(ticks))


def test_small_shares_of_gradients_have_a_digit_behind_the_point() -> None:
    """Where the highest bar has no more than 4 per cent: 25 bars of one gradient each."""
    for count, form in ((24, ".0%"), (25, ".1%")):
        window = precision.gradient_window([1.5 * 2.0**-k for k in range(count)], "float32")
        assert figures.gradient_window(window).layout.yaxis.tickformat == form
