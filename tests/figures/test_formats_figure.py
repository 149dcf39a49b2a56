"""The pictures of numbers and of gradients: what is drawn is what the results say."""

from __future__ import annotations

import math
import re

import pytest

from gpulab import figures, precision
from gpulab.errors import InputError


def _texts(figure) -> str:
    return " ".join(str(t) for trace in figure.data for t in (trace.text if isinstance(trace.text, tuple) else [trace.text]) if t)


def test_every_bit_has_its_box() -> None:
    """Sixteen boxes with the digits of 0.1 in float16, in three fields; the second format has its own."""
    n = precision.number(0.1, "float16")
    figure = figures.number_line(n)
    boxes = [trace for trace in figure.data if trace.marker.symbol == "square-open"]
    assert [len(trace.x) for trace in boxes] == [1, 5, 10]
    for axis in (figure.layout.xaxis, figure.layout.yaxis, figure.layout.yaxis2):  # places, not quantities
        assert (axis.showgrid, axis.showline, axis.showticklabels) == (False, False, False)
    digits = "".join(text.split(">")[1][0] for trace in boxes for text in trace.text)
    assert digits == "0010111001100110"
    two = figures.number_line([n, precision.number(0.1, "bfloat16")])
    assert sum(len(t.x) for t in two.data if t.marker.symbol == "square-open") == 32
    assert "0010111001100110" not in two.description  # fields are told apart
    assert "0 01011 1001100110" in two.description


def test_the_line_holds_the_neighbours() -> None:
    """By hand: around 1.0 float8_e4m3fn has steps of 1/16 below and 1/8 above."""
    figure = figures.number_line(precision.number(1.0, "float8_e4m3fn"))
    line = next(trace for trace in figure.data if trace.marker.symbol == "circle-open")
    assert {0.875, 0.9375, 1.0, 1.125, 1.25} <= set(line.x)
    assert list(figure.layout.shapes) == []
    asked = figures.number_line(precision.number(1.05, "float8_e4m3fn"))
    assert asked.layout.shapes[0].x0 == 1.05
    assert "asked for 1.05" in asked.layout.annotations[0].text


@pytest.mark.parametrize(("x", "name", "step"), [
    (1.0, "float32", 5e-7), (0.1, "float32", 2e-8), (2049.0, "float32", 1e-3), (0.1, "float16", 2e-4), (2.5, "float8_e4m3fn", 1.0),
])  # fmt: skip
def test_no_two_ticks_of_the_line_read_alike(x: float, name: str, step: float) -> None:
    """Beside 1.0 float32's numbers lie 1.2e-7 apart: all ticks had read 1. Steps as plotly takes them."""
    axis = figures.number_line(precision.number(x, name)).layout.xaxis2
    digits = re.fullmatch(r"\.(\d+)~g", axis.tickformat)  # d3's way to write what Python calls .8g
    low, high = axis.range
    assert (high - low) / axis.nticks <= step
    ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    written = [float(f"{tick:.{digits[1]}g}") for tick in ticks]  # type: ignore[index]
    assert len(ticks) >= 3
    assert written == pytest.approx(ticks, abs=0.01 * step, rel=0)


@pytest.mark.parametrize("x", [70000.0, -1e300, float("nan"), float("inf"), 0.0, 1e-300, 448.0])
@pytest.mark.parametrize("name", precision.formats())
def test_every_kind_of_number_can_be_drawn(x: float, name: str) -> None:
    """Infinities, nan, zero, and numbers far away: finite axes and a description that names the format."""
    figure = figures.number_line([precision.number(x, name), precision.number(x, "float8_e4m3fn")])
    low, high = figure.layout.xaxis2.range
    assert low < high
    assert all(low <= line.x0 <= high for line in figure.layout.shapes)
    assert name in figure.description


def test_float32_is_named_as_what_it_is_beside_what_was_asked_for() -> None:
    """Its tenth is 0.100000001490116...: in eight digits the mark and the line beside it both read 0.1, and the next of 1000 too high."""
    figure = figures.number_line(precision.number(0.1, "float32"))
    assert "float32 0.1000000015" in _texts(figure)
    assert "asked for 0.1<" in figure.layout.annotations[0].text
    neighbours = figures.number_line(precision.number(1000.0, "float32")).description
    assert "between 999.999939 and 1000.000061" in neighbours  # 2 ** -14 to either side


def test_what_is_too_close_is_counted() -> None:
    """A finer format has too many numbers to draw; the picture says how many."""
    figure = figures.number_line([precision.number(1.0, "float32"), precision.number(1.0, "bfloat16")])
    assert "too close to draw" in _texts(figure)


def test_the_end_of_a_format_is_named() -> None:
    """Where a number overflows, the line shows the last numbers and says where they end."""
    assert "float16 ends at 65504" in _texts(figures.number_line(precision.number(70000.0, "float16")))
    assert "ends at" not in _texts(figures.number_line(precision.number(448.0, "float8_e4m3fn")))  # the largest is no overflow
    for x in (1.7976931348623157e308, -1.7976931348623157e308):  # nor has an axis numbers beyond float64's own
        low, high = figures.number_line(precision.number(x, "float64")).layout.xaxis2.range
        assert -math.inf < low < high < math.inf


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


def test_bad_input_is_named() -> None:
    """One sentence."""
    with pytest.raises(InputError, match="one Number or two"):
        figures.number_line([])
    with pytest.raises(InputError, match="one Number or two"):
        figures.number_line([1.0])  # type: ignore[list-item]


def test_bits_stand_side_by_side_and_each_format_on_its_level() -> None:
    """Sixteen places from 0 on; a legend names each field once for both formats; the held number lies on the level of its bits."""
    numbers = [precision.number(1.05, "float8_e4m3fn"), precision.number(1.05, "bfloat16")]
    figure = figures.number_line(numbers)
    boxes = [trace for trace in figure.data if trace.marker.symbol == "square-open"]
    eight, sixteen = boxes[:3], boxes[3:]
    assert [x for trace in eight for x in trace.x] == list(range(8))
    assert [x for trace in sixteen for x in trace.x] == list(range(16))
    assert [trace.showlegend for trace in boxes] == [True] * 3 + [False] * 3
    upper, lower = ({y for trace in some for y in trace.y} for some in (eight, sixteen))
    assert len(upper) == len(lower) == 1
    assert min(upper) > max(lower)
    held = [trace for trace in figure.data if trace.name and "the number held" in trace.name]
    assert [(trace.x[0], {trace.y[0]}) for trace in held] == [
        (1.0, upper),
        (1.046875, lower),
    ]  # 1 + 6/128: 1.05 is nearer than to 1.0546875
    assert [trace.showlegend for trace in held] == [True, False]
    assert "float8_e4m3fn 1" in held[0].text[0]
    assert "bfloat16 1.046875" in held[1].text[0]
    dots = [trace for trace in figure.data if trace.marker.symbol in ("circle-open", "diamond-open")]
    assert [set(trace.y) for trace in dots] == [upper]
    band = next(trace for trace in figure.data if trace.mode == "lines")  # of bfloat16's numbers, which are too close to draw
    assert set(band.y) == lower


def test_the_line_shows_as_many_numbers_on_either_side() -> None:
    """Around 2.5 in float8_e4m3fn steps are 1/4: the coarser format decides the width; what is asked for shifts it half way."""
    one = figures.number_line(precision.number(2.5, "float8_e4m3fn")).layout.xaxis2.range
    assert sum(one) / 2 == 2.5
    both = [precision.number(2.5, name) for name in ("float16", "float8_e4m3fn")]
    assert figures.number_line(both).layout.xaxis2.range == one
    low, high = figures.number_line(precision.number(2.6, "float8_e4m3fn")).layout.xaxis2.range
    assert (low + high) / 2 == pytest.approx(2.55)
    assert high - low == pytest.approx(one[1] - one[0])


def test_below_its_end_a_format_is_named_there_too() -> None:
    """-70000 overflows float16 to minus infinity: the line ends at -65504, and nothing is held."""
    figure = figures.number_line(precision.number(-70000.0, "float16"))
    (word,) = [trace for trace in figure.data if trace.text and "ends at" in str(trace.text)]
    assert word.x[0] == -65504
    assert not any(trace.name and "held" in trace.name for trace in figure.data)
    few = figures.number_line([precision.number(1.0, "float32"), precision.number(1.0, "bfloat16")])
    low, high = few.layout.xaxis2.range
    band = next(trace for trace in few.data if trace.mode == "lines")
    assert band.x == (low, high)


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
