"""The layout of all figures: theme, axes with units, the badge and the description.

JupyterLab's light and dark themes need different text colors, and a kernel cannot know which theme
is active. So each text is wrapped in a span whose color is JupyterLab's own CSS variable; elsewhere
it falls back to a medium gray.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
import plotly.io

from gpulab.evidence import Badge, Evidence
from gpulab.figures import palette
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_seconds,
)

# A part of a figure, as plotly takes it: a trace, an axis, a shape, an annotation, a layout.
Part = dict[str, Any]
MID_GREY = "#7C7C7C"  # the same contrast, 4.2, against white and against JupyterLab's dark #111111
GRID = "rgba(127,127,127,0.22)"
AXIS = "rgba(127,127,127,0.65)"
_INK_OPEN = f'<span style="fill:var(--gpulab-ink,var(--jp-ui-font-color1,{MID_GREY}))">'
_INK_CLOSE = "</span>"
HEIGHT = 340
# The most characters of a line of the title and of the subtitle: such lines fit a page 640 pixels
# wide, as on a projector at 200 %. Plotly cuts off longer ones.
_TITLE_LENGTH, _SUBTITLE_LENGTH = 60, 68
_TITLE_LINE, _SUBTITLE_LINE = 20, 15  # pixels of one more line
_NARROW = 0.005  # of a picture's width: about four pixels
# The legend is at the bottom of the whole picture: there plotly makes room for all its rows, below
# the axis title, at every width.
_LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "yref": "container",
    "y": 0,
    "yanchor": "bottom",
    "bgcolor": "rgba(0,0,0,0)",
}
_TITLE = {
    "x": 0,
    "xref": "container",
    "xanchor": "left",
    "y": 1,
    "yref": "container",
    "yanchor": "top",
    "font": {"size": 15},
}
_AXIS: Part = {
    "gridcolor": GRID,
    "linecolor": AXIS,
    "zeroline": False,
    "showline": True,
    "ticks": "outside",
    "tickcolor": AXIS,
    "automargin": True,
    "fixedrange": True,
    "tickprefix": _INK_OPEN,
    "ticksuffix": _INK_CLOSE,
    "title": {"standoff": 10},
}
# Where a bar has its text: in its middle, level.
INSIDE: Part = {
    "textposition": "inside",
    "insidetextanchor": "middle",
    "textangle": 0,
}
PLOTLY_MIME = "application/vnd.plotly.v1+json"


class LabFigure(go.Figure):  # type: ignore[misc]
    """A plotly figure that is displayed as plain data: without a script or a mode bar, with its
    description as text.
    """

    @property
    def description(self) -> str:
        """The description of the figure, for readers who do not see it."""
        return str((self.layout.meta or {}).get("description", ""))

    def _ipython_display_(self) -> None:
        from IPython.display import publish_display_data

        publish_display_data(mimebundle(self))  # type: ignore[no-untyped-call,unused-ignore]


def mimebundle(figure: go.Figure) -> dict[str, Any]:
    """Return the figure as the data that JupyterLab's plotly extension draws, with its description
    as plain text.
    """
    # Colab draws only plotly's own HTML, below a cell and inside an instrument
    if "google.colab" in sys.modules:
        return dict(plotly.io.renderers["colab"].to_mimebundle(figure.to_dict()))
    # The figure's own dictionaries, which ``_plain`` copies: to_plotly_json adds a copy.
    body = {"data": figure._data, "layout": figure._layout}
    meta = figure.layout.meta or {}
    return {
        # Not "responsive": JupyterLab resizes the figure itself, and plotly's own resizing would
        # collapse its height to nothing.
        PLOTLY_MIME: {**_plain(body), "config": {"displayModeBar": False}},
        "text/plain": meta.get("description", "a figure"),
    }


def _plain(value: Any) -> Any:
    """Return the value with arrays as lists, as JSON wants them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def ink(text: str) -> str:
    """Return the text in the text color of the reader's theme; ``<br>`` breaks a line, any other
    markup is escaped.
    """
    lines = (line.replace("&", "&amp;").replace("<", "&lt;") for line in text.split("<br>"))
    return "<br>".join(_INK_OPEN + line + _INK_CLOSE for line in lines)


def picture(
    title: str,
    evidence: Evidence | Iterable[Evidence],
    description: str,
    traces: Sequence[Part],
    *,
    height: int = HEIGHT,
    above: int = 0,
    guides: Sequence[tuple[Part, Part]] = (),
    **layout: Any,
) -> LabFigure:
    """Return a figure with the course's look, made in one call: updating a plotly figure later is
    much slower.

    Parameters
    ----------
    title : str
        What is shown, in a few words.
    evidence : Evidence or several
        Drawn under the title as badge and device.
    description : str
        A description of the figure; kept in ``figure.layout.meta["description"]``.
    traces : sequence of dict
    height, above : int
        Pixels: of the whole, and of the room that is added between the title and the plot.
    guides : sequence of (shape, annotation)
        From ``guide``.
    **layout
        Axes, legend and margin need only the entries that differ from the course's look. An axis'
        title may be plain text.
    """
    several = [evidence] if isinstance(evidence, Evidence) else evidence
    titles = textwrap.wrap(title, _TITLE_LENGTH, break_on_hyphens=False)
    badges = textwrap.wrap(
        "; ".join(dict.fromkeys(badge_text(item) for item in several)),
        _SUBTITLE_LENGTH,
        break_on_hyphens=False,
    )
    more = _TITLE_LINE * max(len(titles) - 1, 0)
    extra = more + _SUBTITLE_LINE * max(len(badges) - 1, 0)
    subtitle = {"text": ink("<br>".join(badges)), "font": {"size": 12, "color": MID_GREY}}
    look: Part = {
        "title": {
            **_TITLE,
            # plotly puts the last of several lines where it puts a single one
            "pad": {"t": 8 + more, "l": 8},
            "text": ink("<br>".join(titles)),
            "subtitle": subtitle if badges else None,
        },
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": MID_GREY, "size": 12, "family": "system-ui, sans-serif"},
        "height": height + extra,
        "margin": {"l": 70, "r": 24, "t": 76 + extra + above, "b": 56},
        "hovermode": "closest",
        "dragmode": False,
        "hoverlabel": {"bgcolor": "#333333", "font": {"color": "#FFFFFF"}},
        "legend": _LEGEND,
        "meta": {"description": description},
        "template": {},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
    for name, value in layout.items():
        kind = name.rstrip("0123456789")
        look[name] = {**look[kind], **value} if kind in ("legend", "margin") else value
        if kind in ("xaxis", "yaxis"):
            words = value.get("title", {})
            own = {"text": ink(words)} if isinstance(words, str) else words
            look[name] = {**_AXIS, **value, "title": {**_AXIS["title"], **own}}
    if guides:
        for number, name in enumerate(("shapes", "annotations")):
            look[name] = [*look.get(name, ()), *(parts[number] for parts in guides)]
    return LabFigure(data=traces, layout=look)


def describe(*results: Any) -> str:
    """Return a figure's description: the ``repr`` of each result, and its explanation."""
    parts = []
    for one in results:
        line = repr(one).strip("<>").rstrip(".")
        why = getattr(one, "explanation", "") or getattr(one, "sentence", "")
        parts.append(f"{line}." if why.rstrip(".") in line else f"{line}. {why}")
    return " ".join(parts)


def ticks(values: Iterable[Any], texts: Iterable[str], **more: Any) -> Part:
    """Return the part of an axis that writes a text at each value."""
    return {
        "tickmode": "array",
        "tickvals": list(values),
        "ticktext": [ink(text) for text in texts],
        "tickprefix": "",
        "ticksuffix": "",
        **more,
    }


def row_axis(names: Sequence[str], **more: Any) -> Part:
    """Return an axis of named rows, the first one on top."""
    order = {"categoryorder": "array", "categoryarray": list(names), "autorange": "reversed"}
    return {"type": "category", **order, "showgrid": False, **ticks(names, names), **more}


def note(text: str, x: float, y: float, place: str = "", **more: Any) -> Part:
    """Return a text in the picture. ``place`` lists its xref, yref, xanchor and yanchor, such as
    "x paper left bottom"; the last ones may be missing.
    """
    places = zip(("xref", "yref", "xanchor", "yanchor"), place.split(), strict=False)
    return {"x": x, "y": y, "text": ink(text), "showarrow": False, **dict(places), **more}


def upright(x: float, **stroke: Any) -> Part:
    """Return a vertical line over the whole height at a value of the x axis."""
    ends = {"x0": x, "x1": x, "xref": "x", "y0": 0, "y1": 1, "yref": "paper"}
    line = {"color": MID_GREY, "width": 1.5, "dash": "dash", **stroke}
    return {"type": "line", **ends, "line": line}


def interval_bars(
    values: Sequence[float],
    intervals: Iterable[tuple[float, float] | None],
    color: str,
    thickness: float = 1.5,
    width: float = 3,
) -> Part:
    """Return the bars from each value to the ends of its interval, where it has one."""
    ends = [each or (value, value) for value, each in zip(values, intervals, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, (_, high) in zip(values, ends, strict=True)],
        "arrayminus": [value - low for value, (low, _) in zip(values, ends, strict=True)],
        "color": color,
        "thickness": thickness,
        "width": width,
    }


def on_mouse(texts: str | Iterable[str]) -> Part:
    """Return the part of a trace that gives its marks a hover text: one for each mark, or one
    template for all.
    """
    if isinstance(texts, str):
        return {"hovertemplate": f"{texts}<extra></extra>"}
    return {**on_mouse("%{customdata}"), "customdata": list(texts)}


def trace(
    mode: str,
    x: Any,
    y: Any,
    name: str = "",
    mouse: str | Iterable[str] | None = None,
    **look: Any,
) -> Part:
    """Return a trace of lines, markers or texts, or of "bars" (horizontal ones, unless ``look``
    has another orientation). With a name it is in the legend; ``mouse`` gives its hover text, as
    for ``on_mouse``.
    """
    bars, marks = {"type": "bar", "orientation": "h"}, {"type": "scatter", "mode": mode}
    legend = {"name": ink(name)} if name else {"showlegend": False}
    hover = {"hoverinfo": "skip"} if mouse is None else on_mouse(mouse)
    return {**(bars if mode == "bars" else marks), "x": x, "y": y, **legend, **hover, **look}


def faded(color: str, opacity: float | str) -> str:
    """Return a color of the palette with an opacity, 0 to 1."""
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def cut(text: str, most: int) -> str:
    """Return a text, cut to at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def apart(names: Sequence[str]) -> list[str]:
    """Return the names of rows, with a number added to repeated names: plotly would stack the bars
    of equal names.

    >>> apart(["zero3", "ddp", "zero3"])
    ['zero3 (1)', 'ddp', 'zero3 (2)']
    """
    return [
        f"{name} ({list(names[: k + 1]).count(name)})" if list(names).count(name) > 1 else name
        for k, name in enumerate(names)
    ]


def bar_marker(badge: Badge, color: str, lengths: Sequence[float], whole: float) -> Part:
    """Return the look of bars that lie beside each other: measured ones are filled, others hollow.

    The light edge of filled bars keeps neighbors apart in both themes. A narrow bar has no edge,
    because the edge would cover it.
    """
    if badge is not Badge.MEASURED:
        return {"color": "rgba(0,0,0,0)", "line": {"color": color, "width": 1.5}}
    widths = [1 if length > _NARROW * whole else 0 for length in lengths]
    return {"color": color, "line": {"color": "rgba(255,255,255,0.9)", "width": widths}}


def on_bar(text: str, badge: Badge, color: str) -> str:
    """Return text for a bar of this color: white on blue, black on the other colors, which are
    lighter; in the theme's text color on a hollow bar.
    """
    if badge is not Badge.MEASURED:
        return ink(text)
    shade = "#FFFFFF" if color == palette.BLUE else "#000000"
    return f'<span style="fill:{shade}">{text}</span>'


def badge_text(evidence: Evidence) -> str:
    """Return the badge, the device and the date or assumptions, which are shortened to about six
    lines of a subtitle.
    """
    if evidence.badge is Badge.MODELLED:
        assumptions = evidence.assumptions or ""
        return f"MODELLED: {textwrap.shorten(assumptions, 380, placeholder=' …')}"
    date = f", {evidence.date[:10]}" if evidence.date and evidence.badge is Badge.RECORDED else ""
    where = f" on {evidence.device}" if evidence.device else ""
    return f"{evidence.badge.value}{where}{date}"


def _log_ticks(low: float, high: float) -> list[float]:
    """Return three to eight round values inside (low, high), whatever the span."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        found = [
            m * 10.0**e for e in range(first, last + 1) for m in steps if low <= m * 10.0**e <= high
        ]
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / 8)]
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    even = (
        [k * w for k in range(math.ceil(low / w), math.floor(high / w) + 1)]
        for w in (5 * step, 2 * step, step, step / 2)
    )
    # the smallest step gives at least four ticks, since the ends are at least 2 * step apart
    return next(ticks for ticks in even if len(ticks) >= 3)


def _short(text: str) -> str:
    """Return "10 us" for "10.0 us": a tick is round."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


# For each quantity of a logarithmic axis: the text of a tick, and the ends where there is no value.
_QUANTITIES: dict[str, tuple[Callable[[float], str], Sequence[float]]] = {
    "seconds": (lambda v: _short(format_seconds(v)), (1e-6, 1.0)),
    "bytes": (lambda v: _short(format_bytes(v)), (1.0, 2.0**30)),
    "B/s": (lambda v: _short(format_bytes_per_second(v)), (1e6, 1e9)),
    "FLOP/s": (lambda v: _short(format_flops_per_second(v)), (1e6, 1e9)),
    # a short axis has ticks between whole numbers too
    "count": (lambda v: f"{v:,.0f}" if float(v).is_integer() else f"{v:,g}", (1.0, 1000.0)),
    "ratio": (lambda v: f"{v:g}x", (0.5, 2.0)),
}


def log_axis(
    quantity: str, values: Iterable[float | None], title: str, at: Sequence[float] | None = None
) -> Part:
    """Return a logarithmic axis of a quantity, wide enough for all values, with round ticks (powers
    of two for bytes) or ticks ``at`` given values.
    """
    text, usual = _QUANTITIES[quantity]
    there = [v for v in values if v is not None and math.isfinite(v) and v > 0] or usual
    low, high = math.log10(min(there)), math.log10(max(there))
    margin = max(0.06 * (high - low), 0.12)  # the least margin keeps a single value off the edge
    if quantity == "bytes":
        first, last = math.floor(math.log2(min(there))), math.ceil(math.log2(max(there)))
        step = max(1, math.ceil((last - first) / 8))
        at = [2.0**e for e in range(first - first % step, last + 1, step)]
    low, high = low - margin, high + margin
    at = _log_ticks(10**low, 10**high) if at is None else at
    labels = ticks(at, [text(t) for t in at])
    return {"type": "log", **labels, "range": [low, high], "title": title}


def guide(
    value: float,
    text: str,
    axis: str = "x",
    bottom: bool = False,
    before: bool = False,
    **more: Any,
) -> tuple[Part, Part]:
    """Return a labeled straight line on a log axis, such as a break-even or a ceiling: the line,
    and its label.

    The label of a vertical line is at its right or, near the right end of the axis (``before``), at
    its left; ``more`` changes the place.
    """
    position = math.log10(value)  # annotations on log axes take the exponent
    if axis == "x":
        side = {"xanchor": "right" if before else "left", "xshift": -5 if before else 5}
        look = {**side, "yanchor": "bottom" if bottom else "top", **more}
        return upright(value), note(text, position, 0 if bottom else 1, "x paper", **look)
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": value, "y1": value, "yref": "y"}
    label = note(text, 1, position, "paper y right bottom")
    return {**upright(value), **ends}, {**label, **more}


def extent(traces: Iterable[Part]) -> list[float]:
    """Return the values that a vertical axis must include: those of traces, and the ends of their
    intervals.
    """
    found: list[float] = []
    for trace in traces:
        bars = trace.get("error_y") or {"array": [], "arrayminus": []}
        ends = zip(trace["y"], bars["arrayminus"], bars["array"], strict=False)
        found += [*trace["y"], *(end for y, less, more in ends for end in (y - less, y + more))]
    return found


def linear_axis(
    high: float, title: str, text: Callable[[float], str], low: float = 0.0, binary: bool = False
) -> Part:
    """Return a linear axis from ``low`` to a little over ``high`` with round ticks (powers of two
    where ``binary``).
    """
    span = max(high - low, 1e-300)
    step = round_step(span / 5, binary)
    first = math.ceil(low / step - 1e-9)  # 20e-6 / 5e-6 is a little over 4
    at = [k * step for k in range(first, math.floor((high + 0.02 * span) / step) + 1)]
    return {
        "type": "linear",
        **ticks(at, [text(t) for t in at]),
        "range": [low, high + 0.06 * span],
        "title": title,
    }


def linear_seconds_axis(high: float, title: str, low: float = 0.0) -> Part:
    """Return a linear axis of time in one unit that suits ``high``."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    scale, unit = next((one for one in units if high >= one[0]), (1e-9, "ns"))
    return linear_axis(high, f"{title} ({unit})", lambda v: f"{v / scale:.6g}", low)


def linear_bytes_axis(high: float, title: str) -> Part:
    """Return a linear axis of storage with ticks such as "512 MiB"."""
    return linear_axis(max(high, 1.0), title, lambda v: _short(format_bytes(v)), binary=True)


def round_step(wanted: float, binary: bool = False) -> float:
    """Return the smallest round step (1, 2, 5 times a power of ten; a power of two where
    ``binary``) of at least ``wanted``.
    """
    if binary:
        return float(2.0 ** max(0, math.ceil(math.log2(wanted))))
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= 0.999 * wanted)
