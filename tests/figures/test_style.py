"""The frame of the figures: axes that can be read, evidence that is drawn, a description for those who do not see."""

from __future__ import annotations

import importlib.resources
import itertools
import json
import math
import re
import sys
from typing import Any

import bs4
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.evidence import Badge, Evidence
from gpulab.figures import _style

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


# As plotly.js 3 draws a plot: a tick of ours, and the label at the mouse, white on #333333 as the frame has it.
PLOT = """
<div class="js-plotly-plot">
  <svg class="main-svg"><g class="xtick"><text><tspan style="fill:var(--gpulab-ink,#7C7C7C)">1 ms</tspan></text></g></svg>
  <svg class="main-svg"><g class="hoverlayer"><g class="hovertext"><text class="nums" style="fill: #fff">CPU: 1 ms</text></g></g></svg>
</div>
"""


@pytest.mark.parametrize("sheet", ["widgets/panel.css", "_html/page.css"])
def test_a_label_at_the_mouse_keeps_its_white(sheet: str) -> None:
    """The theme's ink, which is dark in the light one, is for what stands on the page."""
    style = re.sub(r"/\*.*?\*/", "", (importlib.resources.files("gpulab") / sheet).read_text(encoding="utf-8"), flags=re.DOTALL)
    forced = [who.strip() for who, what in re.findall(r"([^{}]+)\{([^{}]*)\}", style) if re.search(r"fill: var\(.*!important", what)]
    inked = {node.get_text() for who in forced if "plotly" in who for node in bs4.BeautifulSoup(PLOT, "html.parser").select(who)}
    assert inked == {"1 ms"}


def test_no_number_at_the_mouse_brings_the_axis_ink() -> None:
    """Where no format is given, plotly takes a hovered number from the axis, in our ink: dark on dark there, in the light theme."""
    folder = importlib.resources.files("gpulab.figures")
    sources = "".join(each.read_text(encoding="utf-8") for each in folder.iterdir() if each.name.endswith(".py"))
    assert "%{x:d}" in sources
    assert re.findall(r"%\{{1,2}[xy]\}", sources) == []


def test_what_is_sent_is_finite_json() -> None:
    """Infinities and not-a-numbers become null, arrays become lists."""
    figure = _style.frame("Title", Evidence.measured("x"), "")
    figure.add_scatter(x=[1.0, math.inf], y=[math.nan, 2.0])
    text = json.dumps(_style.mimebundle(figure), allow_nan=False)
    assert "MEASURED on x" in text


def plain(texts: object) -> list[str]:
    """Texts without mark-up."""
    return [re.sub("<.*?>", "", text) for text in texts]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1, 1e4, [1, 10, 100, 1e3, 1e4]),  # decades
        (1, 30, [1, 3, 10, 30]),  # two a decade, as decades alone are too few
        (1, 10, [1, 3, 10]),
        (2, 11, [2, 5, 10]),
        (2, 9, [2, 3, 4, 5, 6, 7, 8, 9]),
        (1, 1e20, [1, 1e3, 1e6, 1e9, 1e12, 1e15, 1e18]),  # 21 decades, every third of them: at most eight
        (10, 11, [10, 10.5, 11]),  # within a digit: in equal steps
        (1, 1.9, [1, 1.2, 1.4, 1.6, 1.8]),
        (100, 102, [100, 101, 102]),
        (8, 12, [8, 9, 10]),
    ],
)
def test_the_ticks_of_a_log_axis_are_round(low: float, high: float, ticks: list[float]) -> None:
    """By hand: the coarsest of 1, of 1 and 3, of 1, 2 and 5, of all digits, and of equal steps that gives three."""
    assert _style._log_ticks(low, high) == pytest.approx(ticks)


def test_a_log_axis_has_a_margin_on_both_sides() -> None:
    """6 % of five decades; a single value has its place in the middle."""
    assert _style.count_axis([1.0, 1e5], "")["range"] == pytest.approx([-0.3, 5.3])
    low, high = _style.count_axis([100.0], "")["range"]
    assert (low, high) == pytest.approx((1.88, 2.12))  # at least 0.12 of a decade
    assert _style.bytes_axis([4.0, 2.0**16, 2.0**30])["tickvals"] == [2.0**e for e in (0, 4, 8, 12, 16, 20, 24, 28)]
    assert _style.bytes_axis([2.0**5, 2.0**8])["tickvals"] == [32.0, 64.0, 128.0, 256.0]


@pytest.mark.parametrize(
    ("axis", "texts", "title"),
    [
        (_style.rate_axis([1e3, 1e7], "rate"), ["1 kB/s", "10 kB/s", "100 kB/s", "1 MB/s", "10 MB/s"], "rate"),
        (_style.rate_axis([1e12, 1e16], "", "FLOP/s"), ["1 TFLOP/s", "10 TFLOP/s", "100 TFLOP/s", "1 PFLOP/s", "10 PFLOP/s"], ""),
        (_style.rate_axis([1.0, 100.0], "", "X"), ["1 X", "10 X", "100 X"], ""),
        (_style.count_axis([0.1, 1000.0], "n"), ["0.1", "1", "10", "100", "1,000"], "n"),
        (_style.count_axis([1.2, 2.2], "n"), ["1", "1.5", "2", "2.5"], "n"),
        (_style.count_axis([1500.25, 1501.25], "n"), ["1,200", "1,400", "1,600", "1,800"], "n"),
        (_style.ratio_axis([0.5, 2.0], "r"), ["0.5x", "1x", "2x"], "r"),
        (_style.loss_axis([0.01, 1.0]), ["0.01", "0.1", "1"], "loss"),
        (_style.seconds_axis([1e-3, 0.1]), ["1 ms", "10 ms", "100 ms"], "seconds per call"),
        (_style.linear_seconds_axis(2.5e-3, "time"), ["0", "0.5", "1", "1.5", "2", "2.5"], "time (ms)"),
        (_style.linear_seconds_axis(1.0, "time"), ["0", "0.2", "0.4", "0.6", "0.8", "1"], "time (s)"),
        (_style.linear_seconds_axis(1e-9, "time"), ["0", "0.2", "0.4", "0.6", "0.8", "1"], "time (ns)"),
        (_style.linear_seconds_axis(40e-6, "time", low=20e-6), ["20", "25", "30", "35", "40"], "time (us)"),
        (_style.linear_bytes_axis(5.0 * 2**30, "b"), ["0 B", "1 GiB", "2 GiB", "3 GiB", "4 GiB", "5 GiB"], "b"),
        (_style.linear_rate_axis(5e9, "r"), ["0 B/s", "1 GB/s", "2 GB/s", "3 GB/s", "4 GB/s", "5 GB/s"], "r"),
        (_style.linear_axis(12.0, "l", "{:g}".format, 10.0), ["10", "10.5", "11", "11.5", "12"], "l"),
    ],
)  # fmt: skip
def test_every_axis_writes_its_ticks(axis: dict[str, object], texts: list[str], title: str) -> None:
    """Hand-written: decimal prefixes for rates, binary ones for storage, one unit along a linear axis of time."""
    assert plain(axis["ticktext"]) == texts
    assert plain([axis["title"]["text"]]) == [title]  # type: ignore[index]
    low, high = axis["range"]  # type: ignore[misc]
    ends = [math.log10(tick) for tick in axis["tickvals"]] if axis["type"] == "log" else axis["tickvals"]  # type: ignore[union-attr, attr-defined]
    assert low <= ends[0] * (1 + 1e-9) < ends[-1] < high  # type: ignore[index]


def test_a_linear_axis_begins_where_it_is_told() -> None:
    """From 10 to a little over 12, not from 0 and not by a margin of the whole."""
    low, high = _style.linear_axis(12.0, "", "{:g}".format, 10.0)["range"]
    assert (low, high) == (10.0, pytest.approx(12.12))  # 6 % of what lies between
    ends = [_style.linear_axis(high, "", "{:g}".format)["tickvals"][-1] for high in (98.0, 98.1)]
    assert ends == [80, 100]  # a tick may stand two per cent beyond the end
    assert _style.linear_axis(0.0, "", "{:g}".format)["range"] == [0.0, pytest.approx(6e-302, rel=1e-3, abs=0)]
    for axis in (_style.linear_bytes_axis(0.0, ""), _style.linear_rate_axis(0.0, "")):
        assert axis["range"] == [0.0, pytest.approx(1.06)]  # one byte at least


@pytest.mark.parametrize(
    ("wanted", "binary", "step"),
    [(1, False, 1), (1.5, False, 2), (2.1, False, 5), (5.1, False, 10), (0.03, False, 0.05), (3, True, 4), (4, True, 4), (0.3, True, 1)],
)
def test_a_round_step_is_the_next_one(wanted: float, binary: bool, step: float) -> None:
    """Of 1, 2, 5 and 10, or of the powers of two."""
    assert _style.round_step(wanted, binary) == pytest.approx(step)


def test_a_guide_crosses_the_whole_plot_and_has_its_name_at_its_value() -> None:
    """The line takes the value, its name the exponent: that is how plotly places each on a log axis."""
    figure = _style.frame("", [], "")
    _style.guide(figure, 100.0, "upright")
    _style.guide(figure, 1000.0, "level", axis="y")
    _style.guide(figure, 10.0, "low", bottom=True)
    upright, level, _ = figure.layout.shapes
    assert (upright.x0, upright.x1, upright.y0, upright.y1, upright.xref, upright.yref) == (100, 100, 0, 1, "x", "paper")
    assert (level.x0, level.x1, level.y0, level.y1, level.xref, level.yref) == (0, 1, 1000, 1000, "paper", "y")
    assert [(a.x, a.y, a.xref, a.yref) for a in figure.layout.annotations] == [
        (2, 1, "x", "paper"), (1, 3, "paper", "y"), (1, 0, "x", "paper"),
    ]  # fmt: skip
    assert plain(a.text for a in figure.layout.annotations) == ["upright", "level", "low"]
    _style.guide(figure, 10.0, "late", before=True)
    assert [a.xanchor for a in figure.layout.annotations] == ["left", "right", "left", "right"]
    assert [a.yanchor for a in figure.layout.annotations] == ["top", "bottom", "bottom", "top"]
    assert [a.xshift for a in figure.layout.annotations] == [5, None, 5, -5]  # beside the line, not on it
    assert not any(a.showarrow for a in figure.layout.annotations)
    assert {(s.line.width, s.line.dash) for s in figure.layout.shapes} == {(1.5, "dash")}


def test_a_recorded_badge_says_its_day_and_a_measured_one_does_not() -> None:
    """The date is what a recording must say; without a device there is no "on"."""
    assert _style.badge_text(Evidence(Badge.RECORDED, "A GPU", date="2026-03-04T05:06:07", command="x")) == "RECORDED on A GPU, 2026-03-04"
    assert _style.badge_text(Evidence(Badge.MEASURED, "A GPU", date="2026-03-04")) == "MEASURED on A GPU"


def test_the_frame_pixel_by_pixel() -> None:
    """What all pictures share: the places of title, legend and plot, the sizes of their letters, and what neither moves nor hides."""
    layout = _style.frame("A title", Evidence.measured("x"), "words").layout.to_plotly_json()
    title, axis = layout.pop("title"), layout.pop("xaxis")
    assert (plain([title.pop("text")]), plain([title["subtitle"].pop("text")])) == (["A title"], ["MEASURED on x"])
    assert title == {
        "subtitle": {"font": {"size": 12, "color": "#7C7C7C"}}, "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container",
        "yanchor": "top", "pad": {"t": 8, "l": 8}, "font": {"size": 15},
    }  # fmt: skip
    assert layout.pop("yaxis") == axis
    assert axis.pop("tickprefix").startswith("<span")
    assert axis == {
        "gridcolor": "rgba(127,127,127,0.22)", "linecolor": "rgba(127,127,127,0.65)", "zeroline": False, "showline": True,
        "ticks": "outside", "tickcolor": "rgba(127,127,127,0.65)", "automargin": True, "fixedrange": True, "ticksuffix": "</span>",
        "title": {"standoff": 10},
    }  # fmt: skip
    layout.pop("template")
    assert layout == {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "height": 340, "margin": {"l": 70, "r": 24, "t": 76, "b": 56},
        "font": {"color": "#7C7C7C", "size": 12, "family": "system-ui, sans-serif"}, "hovermode": "closest", "dragmode": False,
        "hoverlabel": {"bgcolor": "#333333", "font": {"color": "#FFFFFF"}}, "meta": {"description": "words"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom",
                   "bgcolor": "rgba(0,0,0,0)"},
    }  # fmt: skip


def test_badges_have_lines_of_a_hundred_letters() -> None:
    """By hand: two of MEASURED on and a name are 24 letters, and what stands between them two; each further line takes 15 pixels."""
    for letters, lines in ((74, 1), (75, 2)):
        figure = _style.frame("", [Evidence.measured("a" * 40), Evidence.measured("b" * (letters - 40))], "")
        assert figure.layout.title.subtitle.text.count("<br>") == lines - 1
        assert (figure.layout.height, figure.layout.margin.t) == (340 + 15 * (lines - 1), 76 + 15 * (lines - 1))
    for letters, cut in ((90, False), (91, True)):  # of what a model assumes 180 letters are told
        assert _style.badge_text(Evidence.modelled(f"{'a' * 89} {'b' * letters}", "x")).endswith("…") is cut


def test_an_axis_without_values_has_a_span_of_its_kind() -> None:
    """By hand, with 6 % of it at either end: a microsecond to a second, a byte to a GiB, a mega to a giga, one to a thousand."""
    axes = (_style.seconds_axis([]), _style.bytes_axis([]), _style.rate_axis([], ""), _style.count_axis([], ""), _style.ratio_axis([], ""))
    gib = math.log10(2**30)
    expected = [(-6.36, 0.36), (-0.06 * gib, 1.06 * gib), (5.82, 9.18), (-0.18, 3.18), (-math.log10(2) - 0.12, math.log10(2) + 0.12)]
    assert [axis["range"] for axis in axes] == [pytest.approx(ends) for ends in expected]


def test_a_figure_shows_itself_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterLab's extension draws it without a bar of tools, and a description is its text; Colab gets plotly's own form."""
    published: list[Any] = []
    monkeypatch.setattr("IPython.display.publish_display_data", published.append)
    figure = _style.frame("", [], "What is seen.")
    figure._ipython_display_()
    assert published == [_style.mimebundle(figure)]
    assert published[0][_style.PLOTLY_MIME]["config"] == {"displayModeBar": False}
    bare = _style.LabFigure(layout={"dragmode": False})
    assert (bare.description, _style.mimebundle(bare)["text/plain"]) == ("", "a figure")
    asked: list[Any] = []
    monkeypatch.setattr(go.Figure, "_repr_mimebundle_", lambda self, *given, **named: asked.append((given, named)) or {"text/html": "x"})
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    assert figure._repr_mimebundle_({"text/html"}, {"image/png"}, width=3) == {"text/html": "x"}
    assert asked == [(({"text/html"}, {"image/png"}, True), {"width": 3})]


def test_a_plot_has_lines_at_its_axes_and_room_over_it_on_demand() -> None:
    """What stands over the plot pushes it down by so many pixels."""
    figure = _style.frame("", [], "")
    assert (figure.layout.xaxis.showline, figure.layout.yaxis.showline) == (True, True)
    before = figure.layout.margin.t
    _style.more_top(figure, 20)
    assert figure.layout.margin.t == before + 20
