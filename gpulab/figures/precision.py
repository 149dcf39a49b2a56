"""Figures of number formats: bits, the number line, and gradients in a format's range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulab.errors import InputError, shown
from gpulab.figures import palette
from gpulab.figures._style import (
    MID_GREY,
    LabFigure,
    Part,
    describe,
    ink,
    note,
    picture,
    ticks,
    trace,
    upright,
)

if TYPE_CHECKING:
    from gpulab.precision import GradientWindow, Number

# These pictures show no devices, so that the hues are free: one for each field of a number. The
# digit in a box carries the bit.
_FIELDS = (
    ("sign", palette.VERMILLION),
    ("exponent", palette.BLUE),
    ("mantissa", palette.BLUISH_GREEN),
)
_STEPS = 8  # numbers of the coarser format on either side
_MOST = 120  # numbers of one format that are drawn one by one
_END = 1.7976931348623157e308  # the largest float64, beyond which no axis reaches
_ROWS = {1: (0.5,), 2: (0.72, 0.28)}
_TICKS = 7  # of the number line, at most
_DIGITS = 6  # of a tick's label at least; 17 distinguish any two numbers of float64


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

    many = list(numbers) if isinstance(numbers, Sequence) else [numbers]
    if not 1 <= len(many) <= 2 or not all(isinstance(n, precision.Number) for n in many):
        raise InputError(
            f"number_line: got {shown(numbers)}; expected one Number or two. Pass "
            "gl.precision.number(0.1, 'float16')."
        )
    low, high = _span(many)
    title = " and ".join(f"{n.format.name}: {n.held:.10g}" for n in many)
    places = _ROWS[len(many)]
    named: set[str] = set()  # the fields that are in the legend
    bits = [
        each for place, one in zip(places, many, strict=True) for each in _bits(one, place, named)
    ]
    lines = [
        {**each, "xaxis": "x2", "yaxis": "y2"}
        for place, one, symbol in zip(places, many, ("circle", "diamond"), strict=False)
        for each in _neighbors(one, place, symbol, low, high, one is many[0], many[0])
    ]
    widest = max(16, *(n.format.bits for n in many))
    bare = {"showgrid": False, "showline": False, "showticklabels": False, "ticks": ""}
    asked = many[0].given
    words = note(f"requested {asked:.10g}", asked, 1, "x2 y2", yanchor="bottom")
    guides = [({**upright(asked), "xref": "x2", "yref": "y2"}, words)]
    return picture(
        title,
        many[0].evidence,
        describe(*many),
        [*bits, *lines],
        height=300 + 84 * len(many),
        xaxis={
            **bare,
            "range": [-0.17 * widest - 0.8, widest - 0.2],
            "anchor": "y",
            "domain": [0, 1],
        },
        yaxis={**bare, "range": [0, 1], "domain": [0.56, 1], "anchor": "x"},
        xaxis2={
            "tickformat": f".{_digits(low, high)}~g",
            "nticks": _TICKS,
            "range": [low, high],
            "title": "the number line around it",
            "anchor": "y2",
        },
        yaxis2={**bare, "range": [0, 1], "domain": [0, 0.44], "anchor": "x2"},
        guides=guides if low <= asked <= high and asked != many[0].held else (),
    )


def _span(many: Sequence[Number]) -> tuple[float, float]:
    """Return the ends of the number line: some steps of the coarser format on either side."""
    first = many[0]
    middle = next(
        (n.held for n in many if math.isfinite(n.held)),
        math.copysign(first.format.largest, first.held),
    )
    if math.isfinite(first.spacing) and abs(first.given - middle) <= first.spacing:
        middle = middle / 2 + first.given / 2
    steps = [n.spacing for n in many if math.isfinite(n.spacing)]
    wide = max(steps, default=first.format.largest / 2**first.format.mantissa_bits)
    ends = middle - (_STEPS + 0.5) * wide, middle + (_STEPS + 0.5) * wide
    return max(ends[0], -_END), min(ends[1], _END)


def _digits(low: float, high: float) -> int:
    """Return how many digits distinguish the ticks between these ends: near 1, neighboring float32
    numbers differ in the eighth digit.
    """
    largest, step = max(abs(low), abs(high)), high / _TICKS - low / _TICKS
    return min(max(_DIGITS, math.floor(math.log10(largest)) - math.floor(math.log10(step)) + 1), 17)


def _bits(one: Number, place: float, named: set[str]) -> list[Part]:
    """Return one box for each bit, colored by its field; the format's name to the left. ``named``
    collects the fields that are in the legend.
    """
    bits = one.format.bits
    size, letters = (20, 13) if bits <= 19 else (15, 11) if bits <= 32 else (10, 8)
    x, name = 0, [ink(one.format.name)]
    traces = [
        trace("text", [-0.8], [place], text=name, textposition="middle left", cliponaxis=False)
    ]
    for (field, color), digits in zip(_FIELDS, one.fields, strict=True):
        if digits:
            traces.append(
                trace(
                    "markers+text",
                    list(range(x, x + len(digits))),
                    [place] * len(digits),
                    field,
                    f"{field} {digits}",
                    marker=palette.edged("square-open", size, color),
                    text=[ink(d) for d in digits],
                    textposition="middle center",
                    legendgroup=field,
                    showlegend=field not in named,
                    cliponaxis=False,
                    textfont={"size": letters},
                )
            )
            x += len(digits)
            named.add(field)
    return traces


def _neighbors(
    one: Number, place: float, symbol: str, low: float, high: float, is_first: bool, first: Number
) -> list[Part]:
    """Return the numbers of a format between the ends; the held number is filled and labelled."""
    from gpulab import precision

    name = one.format.name
    there, count = precision.nearby(low, high, one.format, most=_MOST)
    crowd = f"{count:,} numbers of {name}, too close to draw"
    band = trace("lines", [low, high], [place] * 2, line={"color": MID_GREY, "width": 8})
    label = trace(
        "text",
        [low + 0.01 * (high - low)],
        [place + 0.15],
        text=[ink(crowd)],
        textposition="middle right",
    )
    each = trace(
        "markers",
        there.tolist(),
        [place] * len(there),
        f"numbers of {name}",
        f"{name}: %{{x:.17g}}",
        showlegend=is_first or one.format != first.format,
        marker=palette.edged(f"{symbol}-open", 8, MID_GREY),
    )
    held = trace(
        "markers+text",
        [one.held],
        [place],
        "the number held",
        f"held: {one.held:.17g}",
        marker=palette.edged(symbol, 14, palette.VERMILLION),
        text=[ink(f"{name} {one.held:.10g}")],
        textposition="bottom right",
        legendgroup="held",
        showlegend=is_first,
        cliponaxis=False,
    )
    end = math.copysign(one.format.largest, one.given)
    beyond = trace(
        "markers+text",
        [end],
        [place],
        textposition="bottom center",
        text=[ink(f"{name} ends at {end:.8g}")],
        marker={"size": 14, "opacity": 0},  # keeps the text clear of the numbers
    )
    numbers = [band, label] if count > len(there) else [each] if count else []
    # the requested number may lie beyond the end of the format
    marks = [held] if math.isfinite(one.held) else [beyond] if low <= end <= high else []
    return [*numbers, *marks]


# Gradients.

# What happens to the values of a bar: words, color and pattern. The pattern alone shows it too.
_FATES = {
    "zero": ("becomes zero", palette.VERMILLION, "x"),
    "subnormal": ("subnormal: fewer digits", palette.ORANGE, "/"),
    "normal": ("normal: all digits", palette.BLUISH_GREEN, ""),
    "beyond": ("above the largest: overflow", palette.REDDISH_PURPLE, "."),
}
_MARGIN = 32  # powers of two beyond the gradients that are still shown
_TAIL = 0.002  # share of the gradients that may lie left of the picture


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
    from gpulab.precision.gradient_windows import plain

    one = window.format
    title = f"{window.which} gradients of {window.label} times {plain(window.scale)}, in {one.name}"
    shift = math.log2(window.scale)
    tiny, normal, top = one.emin - one.mantissa_bits, one.emin, one.emax + 1
    total = max(sum(window.counts), 1)
    limits = {"zero": tiny - 1, "subnormal": normal, "normal": top, "beyond": math.inf}
    bars: dict[str, list[tuple[float, float]]] = {name: [] for name in _FATES}
    for exponent, count in zip(window.exponents, window.counts, strict=True):
        fate = next(name for name, end in limits.items() if exponent + shift < end)
        bars[fate] += [(exponent + shift + 0.5, count / total)] if count else []
    traces = [
        trace(
            "bars",
            [at for at, _ in bars[name]],
            [share for _, share in bars[name]],
            words,
            "%{y:.2%} of the nonzero gradients, from %{customdata} before scaling: " + words,
            customdata=[f"2^{at - 0.5 - shift:.0f}" for at, _ in bars[name]],
            orientation="v",
            width=0.92,
            marker={
                "color": "rgba(0,0,0,0)" if pattern else color,
                "line": {"color": color, "width": 1.5},
                "pattern": {"shape": pattern, "fgcolor": color, "size": 6, "fillmode": "replace"},
            },
        )
        for name, (words, color, pattern) in _FATES.items()
    ]
    highest = max((share for values in bars.values() for _, share in values), default=0.1)
    left, right = _ends(window, shift, tiny, top)
    every = next(step for step in (4, 8, 32, 256) if right - left <= 12 * step or step == 256)
    marks = range(math.ceil(left / every) * every, math.floor(right) + 1, every)
    edges = [
        (tiny - 1, "zero below"),
        (normal, "full precision above"),
        (math.log2(one.overflow_threshold), "overflow above"),
    ]
    inside = [(x, text, 1 - 0.075 * k) for k, (x, text) in enumerate(edges) if left < x < right]
    beside = (("left", 4), ("right", -4))
    late = left + 0.7 * (right - left)
    sides = [(beside[x > late], x, text, y) for x, text, y in inside]
    return picture(
        title,
        window.evidence,
        f"{title}. {window.explanation}",
        traces,
        height=400,
        xaxis={
            **ticks(marks, [f"2^{t}" for t in marks]),
            "range": [left, right],
            "title": "magnitude of a gradient times the scale",
        },
        yaxis={
            "range": [0, 1.28 * highest],
            "tickformat": ".0%" if highest > 0.04 else ".1%",
            "title": "share of nonzero gradients",
            "nticks": 6,
        },
        bargap=0.08,
        shapes=[upright(x) for x, *_ in inside],
        annotations=[
            note(text, x, y, f"x paper {side} top", xshift=shift)
            for (side, shift), x, text, y in sides
        ],
        barmode="overlay",
        showlegend=True,
    )


def _ends(window: GradientWindow, shift: float, tiny: int, top: int) -> tuple[float, float]:
    """Return the ends of the axis. It includes all gradients but a thin tail of small ones, and the
    limits of the format's range where they are not far away.
    """
    exponents, total = window.exponents or (0,), sum(window.counts)
    gone = zip(window.exponents, itertools.accumulate(window.counts), strict=True)
    low = next((exponent for exponent, n in gone if n > _TAIL * total), exponents[0])
    high = exponents[-1] + shift + 1
    left = min(low + shift - 2, max(tiny - 4, low + shift - _MARGIN))
    return left, max(high + 1, min(top + 3, high + _MARGIN))
