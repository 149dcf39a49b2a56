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
from gpulab.units import format_bytes, format_seconds

MID_GREY = "#7C7C7C"  # the same contrast, 4.2, against white and against JupyterLab's dark #111111
GRID = "rgba(127,127,127,0.22)"
AXIS = "rgba(127,127,127,0.65)"
_INK_OPEN = f'<span style="fill:var(--gpulab-ink,var(--jp-ui-font-color1,{MID_GREY}))">'
_INK_CLOSE = "</span>"
HEIGHT = 340
_SUBTITLE = 100  # characters that fit beside each other at 900 pixels
_LINE = 15  # pixels of one more line of it
_KEPT = ("xaxis", "yaxis", "legend", "margin")  # what ``composed`` completes
_NARROW = 0.005  # of a picture's width: about four pixels
# At the bottom of the whole picture: plotly makes room for as many rows as there are, below the
# axis title at every width.
_LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "yref": "container",
    "y": 0,
    "yanchor": "bottom",
    "bgcolor": "rgba(0,0,0,0)",
}
PLOTLY_MIME = "application/vnd.plotly.v1+json"


class LabFigure(go.Figure):  # type: ignore[misc]
    """A plotly figure that is displayed as plain data: without a script or a mode bar, with its
    description as text.
    """

    @property
    def description(self) -> str:
        """The description of the figure, for readers who do not see it."""
        meta = self.layout.meta
        return str(meta["description"]) if meta and "description" in meta else ""

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None, validate: bool = True, **kwargs: Any
    ) -> dict[str, Any]:
        return mimebundle(self)

    def _ipython_display_(self) -> None:
        from IPython.display import publish_display_data

        publish_display_data(self._repr_mimebundle_())  # type: ignore[no-untyped-call,unused-ignore]


def mimebundle(figure: go.Figure) -> dict[str, Any]:
    """Return the figure as the data that JupyterLab's plotly extension draws, with its description
    as plain text.
    """
    # Colab draws only plotly's own HTML, below a cell and inside an instrument
    if "google.colab" in sys.modules:
        return dict(plotly.io.renderers["colab"].to_mimebundle(figure.to_dict()))
    # Its own parts, which are copied below: to_plotly_json would copy all of it once more.
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


def frame(
    title: str, evidence: Evidence | Iterable[Evidence], description: str, height: int = HEIGHT
) -> LabFigure:
    """Return an empty figure with the course's look.

    Parameters
    ----------
    title : str
        What is shown, in a few words.
    evidence : Evidence or several
        Drawn under the title as badge and device.
    description : str
        A description of the figure; kept in ``figure.layout.meta["description"]``.
    height : int
        Pixels.
    """
    several = [evidence] if isinstance(evidence, Evidence) else list(evidence)
    badges = textwrap.wrap(
        "; ".join(dict.fromkeys(badge_text(item) for item in several)),
        _SUBTITLE,
        break_on_hyphens=False,
    )
    extra = _LINE * max(len(badges) - 1, 0)
    subtitle = (
        {"text": ink("<br>".join(badges)), "font": {"size": 12, "color": MID_GREY}}
        if badges
        else None
    )
    axis = {
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
    heading = {
        "text": ink(title),
        "subtitle": subtitle,
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 8, "l": 8},
        "font": {"size": 15},
    }
    layout = {
        "title": heading,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": MID_GREY, "size": 12, "family": "system-ui, sans-serif"},
        "height": height + extra,
        "margin": {"l": 70, "r": 24, "t": 76 + extra, "b": 56},
        "hovermode": "closest",
        "dragmode": False,
        "hoverlabel": {"bgcolor": "#333333", "font": {"color": "#FFFFFF"}},
        "legend": _LEGEND,
        "meta": {"description": description},
        "template": {},
        "xaxis": axis,
        "yaxis": axis,
    }
    # in one go: each later update of a figure costs plotly milliseconds
    return LabFigure(layout=layout)


def composed(
    base: LabFigure, traces: Sequence[dict[str, Any]], shared: Any = None, **layout: Any
) -> LabFigure:
    """Return a figure made in one call with these traces and layout parts; updating a plotly figure
    later is much slower.

    Axes, legend and margin are given by what differs from the frame's; ``shared`` are attributes of
    all traces that do not have their own.
    """
    plain = base.layout.to_plotly_json()
    parts = {
        name: {**plain[kind], **value} if (kind := name.rstrip("0123456789")) in _KEPT else value
        for name, value in layout.items()
    }
    return LabFigure(
        data=[{**(shared or {}), **trace} for trace in traces], layout={**plain, **parts}
    )


def ticks(values: Iterable[Any], texts: Iterable[str], **more: Any) -> dict[str, Any]:
    """Return the part of an axis that writes a text at each value."""
    return {
        "tickmode": "array",
        "tickvals": list(values),
        "ticktext": [ink(text) for text in texts],
        "tickprefix": "",
        "ticksuffix": "",
        **more,
    }


def row_axis(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return an axis of named rows, the first one on top."""
    names = list(names)
    first = {"type": "category", "autorange": "reversed", "showgrid": False}
    return {**first, **ticks(names, names), **more}


def note(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """Return a text in the picture; ``x`` and ``y`` count along the axes."""
    return {"x": x, "y": y, "text": ink(text), "showarrow": False, **more}


def upright(x: float, **stroke: Any) -> dict[str, Any]:
    """Return a vertical line over the whole height at a value of the x axis."""
    ends = {"x0": x, "x1": x, "xref": "x", "y0": 0, "y1": 1, "yref": "paper"}
    line = {"color": MID_GREY, "width": 1.5, "dash": "dash", **stroke}
    return {"type": "line", **ends, "line": line}


def interval_bars(
    values: Sequence[float],
    ends: Sequence[tuple[float, float]],
    color: str,
    thickness: float = 1.5,
    width: float = 3,
) -> dict[str, Any]:
    """Return the bars from each value to the ends of its interval."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, (_, high) in zip(values, ends, strict=True)],
        "arrayminus": [value - low for value, (low, _) in zip(values, ends, strict=True)],
        "color": color,
        "thickness": thickness,
        "width": width,
    }


def on_mouse(texts: Iterable[str]) -> dict[str, Any]:
    """Return the part of a trace that shows a text for each of its marks at the mouse."""
    return {"customdata": list(texts), "hovertemplate": "%{customdata}<extra></extra>"}


def faded(color: str, opacity: float | str) -> str:
    """Return a color of the palette that lets through what is behind it."""
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def more_top(figure: go.Figure, pixels: int) -> None:
    """Make room between the title and the plot."""
    figure.update_layout(margin_t=figure.layout.margin.t + pixels)


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


def apart_edges(lengths: Iterable[float], whole: float) -> dict[str, Any]:
    """Return the light edge that keeps neighboring solid bars apart in both themes; a narrow bar
    has none, which would cover it.
    """
    return {
        "color": "rgba(255,255,255,0.9)",
        "width": [1 if length > _NARROW * whole else 0 for length in lengths],
    }


def badge_text(evidence: Evidence) -> str:
    """Return the badge, the device and the date or assumptions; a subtitle has room for four lines
    of these.
    """
    if evidence.badge is Badge.MODELLED:
        assumptions = evidence.assumptions or ""
        return f"MODELLED: {textwrap.shorten(assumptions, 4 * _SUBTITLE - 20, placeholder=' …')}"
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
    # of the last there are four, as two steps fit between the ends
    return next(ticks for ticks in even if len(ticks) >= 3)


def _positive(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v) and v > 0]


def _short(text: str) -> str:
    """Return "10 us" for "10.0 us": a tick is round."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def near(axis: dict[str, Any]) -> dict[str, Any]:
    """Return the axis with its title close to the ticks."""
    return {**axis, "title": {**axis["title"], "standoff": 10}}


def seconds_axis(values: Iterable[float | None], title: str = "seconds per call") -> dict[str, Any]:
    """Return a logarithmic axis of time whose ticks read "10 us", wide enough for all values."""
    there = _positive(values) or [1e-6, 1.0]
    return near(_log_axis(there, title, lambda t: _short(format_seconds(t))))


def bytes_axis(values: Iterable[float | None], title: str = "size") -> dict[str, Any]:
    """Return a logarithmic axis of storage whose ticks are powers of two, such as "64 KiB"."""
    there = _positive(values) or [1.0, 2.0**30]
    low, high = math.floor(math.log2(min(there))), math.ceil(math.log2(max(there)))
    step = max(1, math.ceil((high - low) / 8))
    at = [2.0**e for e in range(low - low % step, high + 1, step)]
    return near(_log_axis(there, title, lambda n: _short(format_bytes(n)), at))


def rate_axis(values: Iterable[float | None], title: str, unit: str = "B/s") -> dict[str, Any]:
    """Return a logarithmic axis of a rate with decimal prefixes, such as "10 GB/s"."""
    prefixes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))

    def text(value: float) -> str:
        scale, prefix = next(((s, p) for s, p in prefixes if value >= s * 0.999), (1, ""))
        return f"{value / scale:.3g} {prefix}{unit}"

    return _log_axis(_positive(values) or [1e6, 1e9], title, text)


def count_axis(
    values: Iterable[float | None], title: str, at: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return a logarithmic axis of a plain count, with round ticks or those ``at``; a short one has
    ticks between whole numbers too.
    """
    return _log_axis(
        _positive(values) or [1.0, 1000.0],
        title,
        lambda v: f"{v:,.0f}" if float(v).is_integer() else f"{v:,g}",
        at,
    )


def ratio_axis(values: Iterable[float | None], title: str) -> dict[str, Any]:
    """Return a logarithmic axis of ratios, such as "1.5x": equal factors have equal lengths."""
    return _log_axis(_positive(values) or [0.5, 2.0], title, lambda v: f"{v:g}x")


def _log_axis(
    there: Sequence[float],
    title: str,
    text: Callable[[float], str],
    at: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return a log axis that holds all values with a margin, with round ticks or those ``at``."""
    low, high = math.log10(min(there)), math.log10(max(there))
    margin = max(0.06 * (high - low), 0.12)  # the least margin keeps a single value off the edge
    low, high = low - margin, high + margin
    at = _log_ticks(10**low, 10**high) if at is None else at
    labels = ticks(at, [text(t) for t in at])
    return {"type": "log", **labels, "range": [low, high], "title": {"text": ink(title)}}


def guide(
    figure: go.Figure,
    value: float,
    text: str,
    axis: str = "x",
    bottom: bool = False,
    before: bool = False,
) -> None:
    """Draw a labeled straight line on a log axis, such as a break-even or a ceiling.
    The label of a vertical line is at its right or, near the right end of the axis (``before``), at
    its left.
    """
    position = math.log10(value)  # annotations on log axes take the exponent
    if axis == "x":
        figure.add_shape(upright(value))
        words = note(text, position, 0 if bottom else 1, xref="x", yref="paper")
        side = {"xanchor": "right" if before else "left", "xshift": -5 if before else 5}
        figure.add_annotation(**words, **side, yanchor="bottom" if bottom else "top")
        return
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": value, "y1": value, "yref": "y"}
    figure.add_shape({**upright(value), **ends})
    place = {"xref": "paper", "yref": "y", "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(**note(text, 1, position, **place))


def linear_axis(
    high: float, title: str, text: Callable[[float], str], low: float = 0.0, binary: bool = False
) -> dict[str, Any]:
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
        "title": {"text": ink(title)},
    }


def linear_seconds_axis(high: float, title: str, low: float = 0.0) -> dict[str, Any]:
    """Return a linear axis of time in one unit that suits ``high``."""
    scale, unit = next(
        ((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if high >= s), (1e-9, "ns")
    )
    return linear_axis(high, f"{title} ({unit})", lambda v: f"{v / scale:.4g}", low)


def linear_bytes_axis(high: float, title: str) -> dict[str, Any]:
    """Return a linear axis of storage with ticks such as "512 MiB"."""
    high = max(high, 1.0)
    return near(linear_axis(high, title, lambda v: _short(format_bytes(v)), binary=True))


def round_step(wanted: float, binary: bool = False) -> float:
    """Return the smallest round step (1, 2, 5 times a power of ten; a power of two where
    ``binary``) of at least ``wanted``.
    """
    if binary:
        return float(2.0 ** max(0, math.ceil(math.log2(wanted))))
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= 0.999 * wanted)
