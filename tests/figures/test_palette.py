"""The colours and the styles of evidence."""

from __future__ import annotations

from gpulab.evidence import Badge
from gpulab.figures import palette


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


def test_a_mark_and_a_line_are_as_thick_as_they_are_asked_for() -> None:
    """Marks of 11 pixels with edges of two, and lines of two, unless told."""
    edge = {"width": 2, "color": "#123456"}
    assert palette.marker(Badge.MEASURED, "#123456") == {"symbol": "circle", "size": 11, "color": "#123456", "line": edge}
    assert palette.marker(Badge.RECORDED, "#123456", "star", 7) == {"symbol": "star-open", "size": 7, "color": "#123456", "line": edge}
    assert palette.line(Badge.MEASURED, "#123456") == {"color": "#123456", "width": 2, "dash": "solid"}
    assert palette.line(Badge.MODELLED, "#123456", 3) == {"color": "#123456", "width": 3, "dash": "dash"}
    assert palette.line(Badge.RECORDED, "#123456")["dash"] == "dot"


def test_a_category_of_memory_has_its_colour_however_it_is_written() -> None:
    """What has none of its own is grey."""
    assert palette.memory_color("Parameters") == palette.memory_color("parameters") == palette.BLUE
    assert palette.memory_color("dust") == palette.GREY
