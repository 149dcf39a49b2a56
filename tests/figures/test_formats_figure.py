"""The pictures of numbers and of gradients: what is drawn is what the results say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from look import look
from looks import LOOKS

from gpulab import figures, precision
from gpulab.errors import InputError
from gpulab.figures._style import LabFigure


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


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "number line: two": lambda: figures.number_line([precision.number(1.0, "float32"), precision.number(1.0, "bfloat16")]),
    "number line: beyond": lambda: figures.number_line(precision.number(70000.0, "float16")),
    "number line: 64 bits": lambda: figures.number_line(precision.number(0.5, "float64")),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
