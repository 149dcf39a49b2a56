"""Figures of the speed-up ladder: the waterfall from the script to all techniques together, and the
gain of each technique by place.
"""

from __future__ import annotations

import math
from typing import Any

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import MID_GREY, LabFigure, composed, frame, guide, ink, ratio_axis
from gpulab.training.ladder_results import Gain, LadderResult
from gpulab.units import format_ratio

_ROW, _AROUND = 34, 170  # pixels: of a row; of title, axis and legend
_BAR = 14  # pixels
# times the largest ratio: an interval that reaches further is cut there, with an arrow, and told in
# words
_FAR = 3.0
_ROOM = 2.2  # times the furthest bar: what is written to the right of it
# What an interval allows to say; the words beside each bar say the same.
_COLORS = {
    "faster": palette.BLUISH_GREEN,
    "slower": palette.REDDISH_PURPLE,
    "no difference shown": palette.GREY,
    "no interval": palette.GREY,
}
# A technique's three gains, each with a shape of its own.
_PLACES = (
    ("alone", "alone, relative to the script", "circle", palette.BLUE),
    ("gain", "at its place, relative to the rung before", "square", palette.ORANGE),
    ("removed", "last: all techniques relative to all others", "diamond", palette.VERMILLION),
)


def waterfall(result: LadderResult) -> LabFigure:
    """Return the ladder as a waterfall: each rung from the speed before it to the speed after it,
    then the combination and the product.

    The axis is logarithmic, so equal factors have equal lengths, and the lengths of the single bars
    add up to the product of the gains.

    Parameters
    ----------
    result : LadderResult
        As ``training.ladder`` returns it.
    """
    names = [rung.title for rung in result.rungs] + ["all together", "single gains multiplied"]
    base = frame(
        f"From the script to all techniques ({result.task})",
        [result.evidence, result.product_evidence],
        _in_words(result),
        height=_AROUND + _ROW * len(names),
    )
    traces: list[dict[str, Any]] = []
    before, most = (
        1.0,
        _FAR
        * max(
            result.together.ratio,
            result.product.ratio,
            *(rung.form.over_start.ratio for rung in result.rungs),
        ),
    )
    for row, rung in enumerate(result.rungs):
        after = rung.form.over_start.ratio
        words, hover = (
            f"{format_ratio(rung.gain.ratio)}, {rung.gain.verdict}",
            f"{rung.title}: {rung.gain} relative to the rung before",
        )
        right = max(before, *_ends(rung.form.over_start, most))
        traces += [
            _bar(row, before, after, _COLORS[rung.gain.verdict], hover),
            _text(row, right, words),
        ]
        traces += _whisker(
            row,
            rung.form.over_start,
            palette.marker(Badge.MEASURED, _COLORS[rung.gain.verdict], size=8),
            most,
        )
        before = after
    color = palette.device_color(result.device)
    row = len(result.rungs)
    traces.append(_bar(row, 1.0, result.together.ratio, color, f"all together: {result.together}"))
    traces.append(
        _text(row, max(1.0, *_ends(result.together, most)), f"{result.together}, MEASURED")
    )
    traces += _whisker(row, result.together, palette.marker(Badge.MEASURED, color, size=8), most)
    product = result.product
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": [1.0, product.ratio],
            "y": [row + 1] * 2,
            "showlegend": False,
            "hoverinfo": "skip",
            "line": palette.line(Badge.MODELLED, color, 3),
        }
    )
    traces.append(_text(row + 1, max(1.0, *_ends(product, most)), f"{product}, MODELLED"))
    traces += _whisker(row + 1, product, palette.marker(Badge.MODELLED, color, size=9), most)
    ends = [1.0, *_ends(result.together, most), *_ends(product, most)]
    ends += [end for rung in result.rungs for end in _ends(rung.form.over_start, most)]
    figure = composed(base, traces, **_axes(base, names, ends, "speed-up over the script"))
    guide(figure, 1.0, "the script", bottom=True)
    return figure


def ladder_gains(result: LadderResult) -> LabFigure:
    """Return the gain of each technique alone, at its place in the ladder, and as the last one,
    with intervals.

    Parameters
    ----------
    result : LadderResult
        As ``training.ladder`` returns it.
    """
    names = [rung.title for rung in result.rungs]
    words = " ".join(
        f"{r.title}: alone {r.alone}, at its place {r.gain}, at the end {r.removed}."
        for r in result.rungs
    )
    base = frame(
        "The gain of a technique depends on the techniques before it",
        result.evidence,
        words,
        height=_AROUND + _ROW * len(names),
    )
    traces, ends = [], [1.0]
    most = _FAR * max(getattr(rung, field).ratio for field, *_ in _PLACES for rung in result.rungs)
    for number, (field, title, symbol, color) in enumerate(_PLACES):
        gains = [getattr(rung, field) for rung in result.rungs]
        ends += [end for gain in gains for end in _ends(gain, most)]
        rows = [row + 0.22 * (number - 1) for row in range(len(gains))]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [gain.ratio for gain in gains],
                "name": ink(title),
                "y": rows,
                "marker": palette.marker(Badge.MEASURED, color, symbol, 9),
                "error_x": _error(gains, color, most),
                "customdata": [
                    f"{name}, {title}: {gain}" for name, gain in zip(names, gains, strict=True)
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
        traces += _cut(gains, rows, color, most)
    figure = composed(base, traces, **_axes(base, names, ends, "speed-up", room=1.0))
    guide(figure, 1.0, "no gain", bottom=True)
    return figure


def _axes(
    base: LabFigure, names: list[str], ends: list[float], title: str, room: float = _ROOM
) -> dict[str, Any]:
    axis = base.layout.xaxis.to_plotly_json()
    return {
        "xaxis": {**axis, **ratio_axis([*ends, room * max(ends)], title)},
        "yaxis": {
            **axis,
            "tickmode": "array",
            "tickvals": list(range(len(names))),
            "ticktext": [ink(name) for name in names],
            "tickprefix": "",
            "ticksuffix": "",
            "range": [len(names), -0.6],
            "showgrid": False,
        },
        "legend": {**base.layout.legend.to_plotly_json(), "traceorder": "normal"},
    }


def _bar(row: int, begin: float, end: float, color: str, hover: str) -> dict[str, Any]:
    """Return a bar on the logarithmic axis."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [begin, end],
        "y": [row, row],
        "line": {"color": color, "width": _BAR},
        "opacity": 0.55,
        "showlegend": False,
        "hovertext": [hover] * 2,
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _text(row: int, place: float, words: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "text",
        "x": [1.06 * place],
        "y": [row],
        "text": [ink(words)],
        "textposition": "middle right",
        "textfont": {"size": 12, "color": MID_GREY},
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _whisker(
    row: float, gain: Gain, marker: dict[str, object], most: float
) -> list[dict[str, Any]]:
    point = {
        "type": "scatter",
        "mode": "markers",
        "x": [gain.ratio],
        "y": [row],
        "marker": marker,
        "showlegend": False,
        "error_x": _error([gain], str(marker["color"]), most),
        "hovertemplate": f"relative to the script: {gain}<extra></extra>",
    }
    return [point, *_cut([gain], [row], str(marker["color"]), most)]


def _cut(gains: list[Gain], rows: list[float], color: str, most: float) -> list[dict[str, Any]]:
    """Return an arrow for each interval that goes on beyond ``most``."""
    cut = [
        row
        for gain, row in zip(gains, rows, strict=True)
        if gain.interval and gain.interval[1] > most
    ]
    arrows = {
        "type": "scatter",
        "mode": "markers",
        "x": [most] * len(cut),
        "y": cut,
        "showlegend": False,
        "hoverinfo": "skip",
        "marker": {"symbol": "triangle-right", "size": 9, "color": color},
    }
    return [arrows] if cut else []


def _error(gains: list[Gain], color: str, most: float) -> dict[str, Any]:
    spans = [gain.interval or (gain.ratio, gain.ratio) for gain in gains]
    return {
        "type": "data",
        "symmetric": False,
        "array": [
            min(high, most) - gain.ratio for gain, (_, high) in zip(gains, spans, strict=True)
        ],
        "arrayminus": [gain.ratio - low for gain, (low, _) in zip(gains, spans, strict=True)],
        "color": color,
        "thickness": 1.5,
        "width": 5,
    }


def _ends(gain: Gain, most: float = math.inf) -> list[float]:
    return [gain.ratio, *(min(end, most) for end in gain.interval or ())]


def _in_words(result: LadderResult) -> str:
    steps = " ".join(f"{rung.title}: {rung.gain}, {rung.gain.verdict}." for rung in result.rungs)
    return (
        f"A waterfall of the speed-up over the script on {result.device}. {steps} {result.sentence}"
    )
