"""The figure of gradients and the range of a number format: a histogram by powers of two, shifted
by the scale of the loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpulab.figures import palette
from gpulab.figures._style import MID_GREY, LabFigure, composed, frame, ink

if TYPE_CHECKING:
    from gpulab.precision import GradientWindow

# What becomes of a bar; the pattern tells it without the colour. No devices here, so the hues are
# free.
_FATES = {
    "zero": ("becomes zero", palette.VERMILLION, "x"),
    "subnormal": ("subnormal: fewer digits", palette.ORANGE, "/"),
    "normal": ("normal: all digits", palette.BLUISH_GREEN, ""),
    "beyond": ("above the largest: overflow", palette.REDDISH_PURPLE, "."),
}
_MARGIN = 32  # powers of two beyond the gradients that are still shown
_TAIL = 0.002  # of the gradients may lie left of the picture


def gradient_window(window: GradientWindow) -> LabFigure:
    """Return the histogram of scaled gradients, with the range of a number format.

    Parameters
    ----------
    window : GradientWindow
        From ``gl.precision.gradient_window``.

    Returns
    -------
    LabFigure
        Bars by powers of two, colored by what happens to the values; the limits of the range are
        drawn and named.
    """
    from gpulab.precision._window import plain

    one = window.format
    title = f"{window.which} gradients of {window.label} times {plain(window.scale)}, in {one.name}"
    base = frame(title, window.evidence, f"{title}. {window.explanation}", height=400)
    shift = math.log2(window.scale)
    tiny, normal, top = one.emin - one.mantissa_bits, one.emin, one.emax + 1
    left, right = _ends(window, shift, tiny, top)
    total = max(sum(window.counts), 1)
    bars: dict[str, list[tuple[float, float]]] = {name: [] for name in _FATES}
    for exponent, count in zip(window.exponents, window.counts, strict=True):
        at = exponent + shift
        fate = (
            "zero"
            if at < tiny - 1
            else "subnormal"
            if at < normal
            else "normal"
            if at < top
            else "beyond"
        )
        if count:
            bars[fate].append((at + 0.5, count / total))
    traces = [_bars(name, values, shift) for name, values in bars.items()]
    highest = max((share for values in bars.values() for _, share in values), default=0.1)
    every = 4 if right - left <= 44 else 8 if right - left <= 96 else 32
    ticks = list(range(math.ceil(left / every) * every, math.floor(right) + 1, every))
    xaxis = {
        **base.layout.xaxis.to_plotly_json(),
        "range": [left, right],
        "tickmode": "array",
        "tickvals": ticks,
        "tickprefix": "",
        "ticksuffix": "",
        "ticktext": [ink(f"2^{t}") for t in ticks],
        "title": {"text": ink("magnitude of a gradient times the scale")},
    }
    yaxis = {
        **base.layout.yaxis.to_plotly_json(),
        "range": [0, 1.28 * highest],
        "tickformat": ".0%" if highest > 0.04 else ".1%",
        "title": {"text": ink("share of gradients")},
        "nticks": 6,
    }
    edges = [(tiny - 1, "zero below"), (normal, "full precision above"), (top, "overflow above")]
    lines = [_edge(at) for at, _ in edges if left < at < right]
    words = [
        _words(at, text, left, right, k) for k, (at, text) in enumerate(edges) if left < at < right
    ]
    return composed(
        base,
        traces,
        xaxis=xaxis,
        yaxis=yaxis,
        bargap=0.08,
        shapes=lines,
        annotations=words,
        barmode="overlay",
        # also where all gradients have one fate: of a single trace plotly draws none unless it is
        # told to
        showlegend=True,
    )


def _ends(window: GradientWindow, shift: float, tiny: int, top: int) -> tuple[float, float]:
    """Return the ends of the axis: all gradients but a thin tail of small ones, and the window's
    edges where they are not far away.
    """
    low, gone, total = (window.exponents[0] if window.exponents else 0), 0, sum(window.counts)
    for exponent, count in zip(window.exponents, window.counts, strict=True):
        gone += count
        if gone > _TAIL * total:
            low = exponent
            break
    high = (window.exponents[-1] if window.exponents else 0) + shift + 1
    left = min(low + shift - 2, max(tiny - 4, low + shift - _MARGIN))
    return left, max(high + 1, min(top + 3, high + _MARGIN))


def _bars(name: str, values: list[tuple[float, float]], shift: float) -> dict[str, Any]:
    words, color, pattern = _FATES[name]
    return {
        "type": "bar",
        "x": [at for at, _ in values],
        "y": [share for _, share in values],
        "name": ink(words),
        "width": 0.92,
        "marker": {
            "color": "rgba(0,0,0,0)" if pattern else color,
            "line": {"color": color, "width": 1.5},
            "pattern": {"shape": pattern, "fgcolor": color, "size": 6, "fillmode": "replace"},
        },
        "customdata": [f"2^{at - 0.5 - shift:.0f}" for at, _ in values],
        "hovertemplate": f"%{{y:.2%}} of the gradients, from %{{customdata}} before scaling: "
        f"{words}<extra></extra>",
    }


def _edge(at: float) -> dict[str, Any]:
    stroke = {"color": MID_GREY, "width": 1.5, "dash": "dash"}
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "xref": "x",
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": stroke,
    }


def _words(at: float, text: str, left: float, right: float, level: int) -> dict[str, Any]:
    beside = "right" if at > left + 0.7 * (right - left) else "left"
    return {
        "x": at,
        "xref": "x",
        "y": 1 - 0.075 * level,
        "yref": "paper",
        "yanchor": "top",
        "showarrow": False,
        "text": ink(text),
        "xanchor": beside,
        "xshift": 4 if beside == "left" else -4,
    }
