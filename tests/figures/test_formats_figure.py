"""The pictures of numbers and of gradients: what is drawn is what the results say."""

from __future__ import annotations

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


@pytest.mark.parametrize("x", [70000.0, -1e300, float("nan"), float("inf"), 0.0, 1e-300, 448.0])
@pytest.mark.parametrize("name", precision.formats())
def test_every_kind_of_number_can_be_drawn(x: float, name: str) -> None:
    """Infinities, nan, zero, and numbers far away: finite axes and a description that names the format."""
    figure = figures.number_line([precision.number(x, name), precision.number(x, "float8_e4m3fn")])
    low, high = figure.layout.xaxis2.range
    assert low < high
    assert name in figure.description


def test_what_is_too_close_is_counted() -> None:
    """A finer format has too many numbers to draw; the picture says how many."""
    figure = figures.number_line([precision.number(1.0, "float32"), precision.number(1.0, "bfloat16")])
    assert "too close to draw" in _texts(figure)


def test_the_end_of_a_format_is_named() -> None:
    """Where a number overflows, the line shows the last numbers and says where they end."""
    assert "float16 ends at 65504" in _texts(figures.number_line(precision.number(70000.0, "float16")))


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
