"""The frame of the figures: axes that can be read, evidence that is drawn, a description for those who do not see."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.evidence import Badge, Evidence
from gpulab.figures import _style, palette

positive = st.floats(1e-12, 1e15, allow_nan=False)
AXES = {
    "seconds": _style.seconds_axis,
    "bytes": _style.bytes_axis,
    "rate": lambda values: _style.rate_axis(values, "rate"),
    "count": lambda values: _style.count_axis(values, "n"),
}


@pytest.mark.parametrize("kind", list(AXES))
@given(values=st.lists(positive, min_size=1, max_size=5))
def test_a_log_axis_holds_its_values_and_has_a_few_labelled_ticks(kind: str, values: list[float]) -> None:
    """Whatever the span, all values are inside and the ticks inside are some, not many, and labelled apart."""
    axis = AXES[kind](values)
    low, high = axis["range"]
    assert low < math.log10(min(values)) <= math.log10(max(values)) < high
    inside = [t for t in axis["tickvals"] if low <= math.log10(t) <= high]
    assert len(inside) <= 12
    assert len(axis["ticktext"]) == len(axis["tickvals"])
    if kind != "bytes":
        assert len(inside) >= 2


@given(st.floats(1e-9, 1e15))
def test_a_linear_axis_starts_at_zero_and_has_round_ticks(high: float) -> None:
    """Ticks rise from zero in equal steps, and there are between three and eleven of them."""
    for axis in (_style.linear_axis(high, "", lambda v: f"{v:g}"), _style.linear_bytes_axis(max(high, 1.0), "")):
        ticks = axis["tickvals"]
        assert ticks[0] == 0
        assert axis["range"][1] >= high
        assert len(ticks) <= 11
        steps = {round((b - a) / ticks[1], 6) for a, b in itertools.pairwise(ticks)}
        assert steps <= {1.0}


def test_values_that_cannot_be_drawn_do_not_break_an_axis() -> None:
    """Zero, negative, missing, infinite and no values at all leave an axis that can be drawn."""
    for axis in AXES.values():
        for values in ([], [None], [0.0, -1.0], [math.inf, math.nan, 1e-3]):
            low, high = axis(values)["range"]
            assert low < high


def test_ticks_are_written_in_their_unit() -> None:
    """Hand-written: a decade apart, microseconds to milliseconds; powers of two in binary units."""
    plain = [re.sub("<.*?>", "", t) for t in _style.seconds_axis([1e-5, 1e-2])["ticktext"]]
    assert plain == ["10 us", "100 us", "1 ms", "10 ms"]
    sizes = [re.sub("<.*?>", "", t) for t in _style.bytes_axis([1024, 2**20])["ticktext"]]
    assert sizes[:2] == ["1 KiB", "4 KiB"]


def test_the_badge_and_the_description_are_in_the_figure() -> None:
    """The subtitle names each badge with its device once; the description is the figure's text form."""
    evidence = [Evidence.measured("A CPU"), Evidence.measured("A CPU"), Evidence.modelled("a link", "a book")]
    figure = _style.frame("Title", evidence, "What is seen.")
    subtitle = figure.layout.title.subtitle.text
    assert subtitle.count("MEASURED on A CPU") == 1
    assert "MODELLED: a link" in subtitle
    assert figure.description == "What is seen."
    assert _style.mimebundle(figure)["text/plain"] == "What is seen."


def test_what_a_model_assumes_has_two_lines_before_it_is_cut() -> None:
    """150 characters are all there; of 400 the first two lines are, and say that there is more."""
    words = [f"word{number:03}" for number in range(50)]
    whole = _style.frame("Title", Evidence.modelled(" ".join(words[:18]), "x"), "").layout.title.subtitle.text
    assert (words[17] in whole, whole.count("<br>"), "…" in whole) == (True, 1, False)
    cut = _style.frame("Title", Evidence.modelled(" ".join(words), "x"), "").layout.title.subtitle.text
    assert (words[20] in cut, cut.count("<br>"), cut.count("…")) == (True, 1, 1)


def test_long_evidence_takes_more_lines_and_more_room() -> None:
    """Many devices wrap, and the plot keeps its height."""
    one = _style.frame("Title", Evidence.measured("x"), "")
    many = _style.frame("Title", [Evidence.measured(f"A rather long device name, number {k}") for k in range(8)], "")
    lines = many.layout.title.subtitle.text.count("<br>")
    assert lines >= 2
    assert many.layout.height - one.layout.height == many.layout.margin.t - one.layout.margin.t > 0


@given(st.text(max_size=60))
def test_no_text_becomes_mark_up(text: str) -> None:
    """Names with angle brackets are shown, not interpreted."""
    inked = _style.ink(text)
    assert inked.count("<span") == inked.count("</span>") == len(text.split("<br>"))
    rest = re.sub(r'<span style="[^"]*">|</span>|<br>', "", inked)
    assert "<" not in rest


def test_what_is_sent_is_finite_json() -> None:
    """Infinities and not-a-numbers become null, arrays become lists."""
    figure = _style.frame("Title", Evidence.measured("x"), "")
    figure.add_scatter(x=[1.0, math.inf], y=[math.nan, 2.0])
    text = json.dumps(_style.mimebundle(figure), allow_nan=False)
    assert "MEASURED on x" in text


def test_evidence_is_told_by_more_than_colour() -> None:
    """Measured marks are solid, others hollow; the three kinds of line differ in their dashes."""
    assert palette.marker(Badge.MEASURED, "#000000")["symbol"] == "circle"
    assert palette.marker(Badge.RECORDED, "#000000")["symbol"] == palette.marker(Badge.MODELLED, "#000000")["symbol"] == "circle-open"
    assert len({palette.line(badge, "#000000")["dash"] for badge in Badge}) == 3


def test_a_device_has_one_colour_by_any_of_its_names() -> None:
    """The host is one colour, each accelerator the other, an unknown device grey."""
    assert palette.device_color("cpu") != palette.device_color("cuda:0")
    assert palette.device_color("cuda:0") == palette.device_color("cuda") == palette.device_color("mps")
    assert palette.device_color("abacus") == palette.GREY
