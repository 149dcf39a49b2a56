"""The figure of a number: its bits by field, and the number line around it, for one format or
two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab.errors import InputError, shown
from gpulab.figures import palette
from gpulab.figures._style import MID_GREY, LabFigure, composed, frame, ink

if TYPE_CHECKING:
    from gpulab.precision import Number

# These pictures show no devices, so that the hues are free: one for each field of a number. The
# digit in a box carries the bit.
_FIELDS = (
    ("sign", palette.VERMILLION),
    ("exponent", palette.BLUE),
    ("mantissa", palette.BLUISH_GREEN),
)
_STEPS = 8  # numbers of the coarser format on either side
_MOST = 120  # numbers of one format that are drawn one by one
_END = 1.7976931348623157e308  # what float64, and so an axis, ends at
_ROWS = {1: (0.5,), 2: (0.72, 0.28)}
_TICKS = 7  # of the number line, at most
_DIGITS = 6  # of a tick's label at least; 17 tell any two numbers of float64 apart


def number_line(numbers: Number | Sequence[Number]) -> LabFigure:
    """Return the bits of a number in one format or two, and the neighboring numbers on the number
    line.

    Parameters
    ----------
    numbers : Number or two of them
        From ``gl.precision.number``; two show the same number in two formats.

    Returns
    -------
    LabFigure

    Raises
    ------
    InputError
        If ``numbers`` is neither one Number nor two.
    """
    from gpulab import precision

    many = [numbers] if isinstance(numbers, precision.Number) else list(numbers)
    if not 1 <= len(many) <= 2 or not all(isinstance(n, precision.Number) for n in many):
        raise InputError(
            f"number_line: got {shown(numbers)}; expected one Number or two. Pass "
            "gl.precision.number(0.1, 'float16')."
        )
    low, high = _span(many)
    title = " and ".join(f"{n.format.name}: {n.held:.10g}" for n in many)
    base = frame(title, many[0].evidence, _describe(many), height=300 + 84 * len(many))
    plain = base.layout.xaxis.to_plotly_json()
    bare = {**plain, "showgrid": False, "showline": False, "showticklabels": False, "ticks": ""}
    traces: list[dict[str, Any]] = []
    named: set[str] = set()
    for place, one in zip(_ROWS[len(many)], many, strict=True):
        traces += _bits(one, place, named)
    traces += [{**trace, "xaxis": "x2", "yaxis": "y2"} for trace in _line(many, low, high)]
    widest = max(n.format.bits for n in many)
    title_x = {"text": ink("the number line around it")}
    ticks = {"tickformat": f".{_digits(low, high)}~g", "nticks": _TICKS}
    axes = {
        "xaxis": {
            **bare,
            "range": [-0.17 * max(widest, 16) - 0.8, max(widest, 16) - 0.2],
            "anchor": "y",
            "domain": [0, 1],
        },
        "yaxis": {**bare, "range": [0, 1], "domain": [0.56, 1], "anchor": "x"},
        "xaxis2": {**plain, **ticks, "range": [low, high], "title": title_x, "anchor": "y2"},
        "yaxis2": {**bare, "range": [0, 1], "domain": [0, 0.44], "anchor": "x2"},
    }
    guides = _given(many[0], low, high)
    return composed(base, traces, **axes, **guides)


def _span(many: Sequence[Number]) -> tuple[float, float]:
    """Return the ends of the number line: some steps of the coarser format on either side."""
    middle = next(
        (n.held for n in many if math.isfinite(n.held)),
        math.copysign(many[0].format.largest, many[0].held),
    )
    if math.isfinite(many[0].spacing) and abs(many[0].given - middle) <= many[0].spacing:
        middle = middle / 2 + many[0].given / 2
    steps = [n.spacing for n in many if math.isfinite(n.spacing)]
    wide = max(steps, default=many[0].format.largest / 2 ** many[0].format.mantissa_bits)
    ends = middle - (_STEPS + 0.5) * wide, middle + (_STEPS + 0.5) * wide
    return max(ends[0], -_END), min(ends[1], _END)


def _digits(low: float, high: float) -> int:
    """Return the digits with which ticks between these ends read as what they are: near 1,
    float32's differ in the eighth.
    """
    largest, step = max(abs(low), abs(high)), high / _TICKS - low / _TICKS
    return min(max(_DIGITS, math.floor(math.log10(largest)) - math.floor(math.log10(step)) + 1), 17)


def _bits(one: Number, place: float, named: set[str]) -> list[dict[str, Any]]:
    """One box for each bit, coloured by its field; the format's name to the left."""
    size = 20 if one.format.bits <= 19 else 15 if one.format.bits <= 32 else 10
    x, traces = 0, []
    for (field, color), digits in zip(_FIELDS, one.fields, strict=True):
        if digits:
            places = list(range(x, x + len(digits)))
            marker = {
                "symbol": "square-open",
                "size": size,
                "color": color,
                "line": {"width": 2, "color": color},
            }
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "x": places,
                    "y": [place] * len(digits),
                    "marker": marker,
                    "text": [ink(d) for d in digits],
                    "textposition": "middle center",
                    "name": ink(field),
                    "legendgroup": field,
                    "showlegend": field not in named,
                    "hovertemplate": f"{field} {digits}<extra></extra>",
                    "cliponaxis": False,
                    "textfont": {"size": 13 if size == 20 else 11 if size == 15 else 8},
                }
            )
            named.add(field)
            x += len(digits)
    label = {
        "type": "scatter",
        "mode": "text",
        "x": [-0.8],
        "y": [place],
        "text": [ink(one.format.name)],
        "textposition": "middle left",
        "hoverinfo": "skip",
        "showlegend": False,
        "cliponaxis": False,
    }
    return [label, *traces]


def _line(many: Sequence[Number], low: float, high: float) -> list[dict[str, Any]]:
    """The numbers of each format between the ends, each format on a level of its own; the held
    number is filled and labelled.
    """
    from gpulab import precision

    traces: list[dict[str, Any]] = []
    for place, one, symbol in zip(_ROWS[len(many)], many, ("circle", "diamond"), strict=False):
        there, count = precision.nearby(low, high, one.format, most=_MOST)
        name = ink(f"numbers of {one.format.name}")
        stroke = {"width": 2, "color": MID_GREY}
        if count > len(there):
            words = f"{count:,} numbers of {one.format.name}, too close to draw"
            band = {"type": "scatter", "hoverinfo": "skip", "showlegend": False}
            traces += [
                {
                    **band,
                    "mode": "lines",
                    "x": [low, high],
                    "y": [place] * 2,
                    "line": {"color": MID_GREY, "width": 8},
                },
                {
                    **band,
                    "mode": "text",
                    "x": [low + 0.01 * (high - low)],
                    "y": [place + 0.15],
                    "text": [ink(words)],
                    "textposition": "middle right",
                },
            ]
        elif count:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": there.tolist(),
                    "y": [place] * count,
                    "name": name,
                    "showlegend": one is many[0] or one.format != many[0].format,
                    "marker": {
                        "symbol": f"{symbol}-open",
                        "size": 8,
                        "color": MID_GREY,
                        "line": stroke,
                    },
                    "hovertemplate": f"{one.format.name}: %{{x:.17g}}<extra></extra>",
                }
            )
        edge = math.copysign(one.format.largest, one.given)
        # what was asked for lies beyond the end of the format
        if not math.isfinite(one.held) and low <= edge <= high:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "x": [edge],
                    "y": [place],
                    "textposition": "bottom center",
                    "text": [ink(f"{one.format.name} ends at {edge:.8g}")],
                    "hoverinfo": "skip",
                    "showlegend": False,
                    "marker": {"size": 14, "opacity": 0},  # keeps the text clear of the numbers
                }
            )
        if math.isfinite(one.held):
            ring = {
                "symbol": symbol,
                "size": 14,
                "color": palette.VERMILLION,
                "line": {"width": 2, "color": palette.VERMILLION},
            }
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "x": [one.held],
                    "y": [place],
                    "marker": ring,
                    "text": [ink(f"{one.format.name} {one.held:.10g}")],
                    "textposition": "bottom right",
                    "name": ink("the number held"),
                    "legendgroup": "held",
                    "showlegend": one is many[0],
                    "cliponaxis": False,
                    "hovertemplate": f"held: {one.held:.17g}<extra></extra>",
                }
            )
    return traces


def _given(one: Number, low: float, high: float) -> dict[str, Any]:
    """A dashed line where the number that was asked for lies, if it is not one of the format's
    own.
    """
    if not low <= one.given <= high or one.given == one.held:
        return {}
    stroke = {"color": MID_GREY, "width": 1.5, "dash": "dash"}
    line = {
        "type": "line",
        "x0": one.given,
        "x1": one.given,
        "xref": "x2",
        "y0": 0,
        "y1": 1,
        "yref": "y2",
        "line": stroke,
    }
    words = {
        "x": one.given,
        "xref": "x2",
        "y": 1,
        "yref": "y2",
        "yanchor": "bottom",
        "showarrow": False,
        "text": ink(f"requested {one.given:.10g}"),
    }
    return {"shapes": [line], "annotations": [words]}


def _describe(many: Sequence[Number]) -> str:
    parts = []
    for n in many:
        around = " and ".join(
            "nothing" if math.isnan(v) else f"{v:.10g}" for v in (n.below, n.above)
        )
        parts.append(
            f"{n.format.name} holds {n.held:.10g} ({n.kind}), bits "
            f"{' '.join(f for f in n.fields if f)}, between {around}."
        )
    return f"Requested: {many[0].given:.10g}. {' '.join(parts)}"
