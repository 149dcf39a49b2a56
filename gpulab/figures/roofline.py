"""The figure of a roofline: roofs of arithmetic and memory, the ridge where they meet, and the work
below them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge, Evidence
from gpulab.figures import palette
from gpulab.figures._style import LabFigure, composed, count_axis, frame, ink, rate_axis
from gpulab.units import format_bytes_per_second, format_flops_per_second, format_number

if TYPE_CHECKING:
    from gpulab.models import MemoryRoof, Roofline, RooflinePoint

_HEIGHT, _WIDE = 500, 570  # of the figure; pixels that its axes are wide at 900 pixels
_TALL = 320  # pixels that its axes are high
_LETTER, _LINE = 6.4, 14  # pixels of a letter and of a line of text
_ROOM = 2.0  # how far the lines go beyond the outermost point or ridge
_NAMES = 0.27  # of the lines' width, on either side: room for the names of the roofs
_STEP = 5.0  # pixels between the places where a line is looked at
_WHAT = {
    Badge.MEASURED: "measured",
    Badge.RECORDED: "recorded",
    Badge.MODELLED: "predicted, modelled",
}
_Area = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def roofline(
    r: Roofline, beside: Sequence[Roofline] = (), arithmetic: str | None = None
) -> LabFigure:
    """Return the roofs of one device or several, log-log, with their ridges and the points below
    them.

    Parameters
    ----------
    r : Roofline
        With its points (``with_points``), or without.
    beside : sequence of Roofline
        Further devices in the same axes.
    arithmetic : str, optional
        The number format whose roof is drawn; None uses the formats of the points, or float32.

    Returns
    -------
    LabFigure
        Measured points are solid with their interval, recorded and predicted ones hollow; measured
        roofs are solid, recorded ones dotted, modelled ones dashed. Work without arithmetic cannot
        be drawn on these axes and is named in the description.
    """
    machines = [r, *beside]
    tops = {id(one): _arithmetics(one, arithmetic) for one in machines}
    ridges = [
        (one, *found) for one in machines if (found := _ridge(one, tops[id(one)])) is not None
    ]
    placed = [(one, p) for one in machines for p in one.points if p.flops and p.nbytes]
    xs = [p.intensity_flops_per_byte for _, p in placed] + [
        x for one in machines for x in _crossings(one, tops[id(one)])
    ] or [1.0]
    low, high = min(xs) / _ROOM, max(xs) * _ROOM
    aside = (high / low) ** _NAMES
    traces: list[dict[str, Any]] = []
    labels: list[tuple[float, float, str, str]] = []
    heights: list[float] = []
    for one in machines:
        lines, names = _roofs(one, tops[id(one)], low, high)
        traces, labels = traces + lines, labels + names
        heights += [y for line in lines for y in line["y"]]
    heights += [y for _, p in placed for y in (_reached(p), *_ends(p))]
    base = frame(_title(machines), _evidence(machines), _describe(machines, ridges), height=_HEIGHT)
    axes = {
        "xaxis": count_axis(
            [low / aside, high * aside], "arithmetic intensity, FLOP per byte (log scale)"
        ),
        "yaxis": rate_axis(heights, "FLOP per second (log scale)", "FLOP/s"),
    }
    taken: list[_Area] = []
    notes = _roof_notes(labels, axes, taken)
    shapes, marks = _ridge_marks(ridges, axes, taken)
    on_lines = _line_areas(traces, shapes, axes)
    for one in machines:
        traces += _points(one, axes, taken, on_lines)
    plain = base.layout.xaxis.to_plotly_json()
    return composed(
        base,
        traces,
        xaxis={**plain, **axes["xaxis"]},
        yaxis={**plain, **axes["yaxis"]},
        annotations=[*notes, *marks],
        shapes=shapes,
        showlegend=True,
    )


def _color(one: Roofline) -> str:
    """Return the host's colour or the accelerators': of whatever make, such as one that only a
    student's report knows.
    """
    return palette.device_color("cpu" if one.device_kind == "cpu" else "cuda")


def _title(machines: Sequence[Roofline]) -> str:
    return f"Roofline of {' and '.join(dict.fromkeys(one.device for one in machines))}"


def _evidence(machines: Sequence[Roofline]) -> list[Evidence]:
    return [
        evidence
        for one in machines
        for evidence in (one.evidence, *(p.evidence for p in one.points if p.seconds is not None))
    ]


def _arithmetics(one: Roofline, wanted: str | None) -> list[str]:
    """The roofs to draw: those asked for or used, else one; the one asked for comes first, since
    its ridge is marked.
    """
    known = sorted((roof.name for roof in one.arithmetic), key=lambda name: name != wanted)
    used = [
        name for name in known if name == wanted or any(p.arithmetic == name for p in one.points)
    ]
    return used or [name for name in ("float32",) if name in known] or known[:1]


def _ridge(one: Roofline, tops: Sequence[str]) -> tuple[float, float, str] | None:
    """Where the slowest level of memory meets the first roof: FLOP a byte, FLOP/s, and the
    words.
    """
    if not one.memory or not tops:
        return None
    level = one.memory[-1]
    x = one.ridge_flops_per_byte(tops[0], level.name)
    return (
        x,
        one.arithmetic_roof(tops[0]).flops_per_second,
        f"ridge {format_number(x)} FLOP per byte",
    )


def _crossings(one: Roofline, tops: Sequence[str]) -> list[float]:
    """Where each level of memory meets each roof that is drawn."""
    return [one.ridge_flops_per_byte(top, level.name) for top in tops for level in one.memory]


def _roofs(
    one: Roofline, tops: Sequence[str], low: float, high: float
) -> tuple[list[dict[str, Any]], list[tuple[float, float, str, str]]]:
    """The slopes up to the highest roof, the flat roofs from the steepest slope on; and a label for
    each: x, y, words, anchor.
    """
    lines: list[dict[str, Any]] = []
    labels: list[tuple[float, float, str, str]] = []
    color, several = _color(one), {"legendgroup": f"roofs of {one.device} {one.evidence.badge}"}
    peaks = {name: one.arithmetic_roof(name) for name in tops}
    fastest = max((level.bytes_per_second for level in one.memory), default=None)

    def add(x: list[float], y: list[float], evidence: Evidence, words: str) -> None:
        name = ink(f"roofs of {one.device} ({evidence.badge.value.lower()})")
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": y,
                "line": palette.line(evidence.badge, color),
                "name": name,
                "showlegend": not lines,
                "hovertemplate": f"{words}<extra></extra>",
                **several,
            }
        )

    def slope(level: MemoryRoof, top: float) -> None:
        words = f"{level.name} {format_bytes_per_second(level.bytes_per_second)}"
        end = min(top / level.bytes_per_second, high)
        if end > low:
            add(
                [low, end],
                [low * level.bytes_per_second, end * level.bytes_per_second],
                level.evidence,
                words,
            )
            labels.append((low, low * level.bytes_per_second, words, "right"))

    top = max((peak.flops_per_second for peak in peaks.values()), default=None)
    for level in one.memory:
        if top is not None:
            slope(level, top)
    for name, peak in peaks.items():
        words = f"{name} {format_flops_per_second(peak.flops_per_second)}"
        begin = max(low, peak.flops_per_second / fastest) if fastest else low
        add([begin, high], [peak.flops_per_second] * 2, peak.evidence, words)
        labels.append((high, peak.flops_per_second, words, "left"))
    return lines, labels


def _pixels(axis: dict[str, Any], value: float, length: float) -> float:
    """Where a value stands on a log axis of so many pixels."""
    low, high = axis["range"]
    return float((math.log10(value) - low) / (high - low) * length)


def _overlaps(area: _Area, taken: Sequence[_Area]) -> bool:
    return any(
        area[0] < b[2] and b[0] < area[2] and area[1] < b[3] and b[1] < area[3] for b in taken
    )


def _roof_notes(
    labels: Sequence[tuple[float, float, str, str]], axes: dict[str, Any], taken: list[_Area]
) -> list[dict[str, Any]]:
    """The names of the roofs, each beyond the end of its line, pushed up where it would lie on
    another one.
    """
    notes = []
    for x, y, words, anchor in sorted(labels, key=lambda label: label[1]):
        left, middle, wide = (
            _pixels(axes["xaxis"], x, _WIDE),
            _pixels(axes["yaxis"], y, _TALL),
            _LETTER * len(words),
        )
        left = left + 5 if anchor == "left" else left - 5 - wide
        up = 0.0
        while _overlaps(
            (left, middle + up - _LINE / 2, left + wide, middle + up + _LINE / 2), taken
        ):
            up += 1.0
        taken.append((left, middle + up - _LINE / 2, left + wide, middle + up + _LINE / 2))
        notes.append(
            {
                "x": math.log10(x),
                "y": math.log10(y),
                "text": ink(words),
                "showarrow": False,
                "xanchor": anchor,
                "yanchor": "middle",
                "xshift": 5 if anchor == "left" else -5,
                "yshift": up,
                "font": {"size": 11},
            }
        )
    return notes


def _ridge_marks(
    ridges: Sequence[tuple[Roofline, float, float, str]], axes: dict[str, Any], taken: list[_Area]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line from each ridge down to the axis, with the intensity written at its foot."""
    floor = 10 ** axes["yaxis"]["range"][0]
    shapes, notes = [], []
    for one, x, y, words in ridges:
        shapes.append(
            {
                "type": "line",
                "x0": x,
                "x1": x,
                "y0": floor,
                "y1": y,
                "line": {"color": _color(one), "width": 1, "dash": "dot"},
            }
        )
        left, up, wide = _pixels(axes["xaxis"], x, _WIDE) + 4, 2.0, _LETTER * len(words)
        right = left + wide > _WIDE
        left = left - 8 - wide if right else left
        while _overlaps((left, up, left + wide, up + _LINE), taken):
            up += 2.0
        taken.append((left, up, left + wide, up + _LINE))
        notes.append(
            {
                "x": math.log10(x),
                "y": math.log10(floor),
                "text": ink(words),
                "showarrow": False,
                "yanchor": "bottom",
                "yshift": up - 2,
                "xanchor": "right" if right else "left",
                "xshift": -4 if right else 4,
                "font": {"size": 11},
            }
        )
    return shapes, notes


def _reached(p: RooflinePoint) -> float:
    """FLOP/s of a point; a predicted one stands on its roof."""
    return p.flops / (p.seconds if p.seconds is not None else p.attainable_seconds)


def _line_areas(
    traces: Sequence[dict[str, Any]], shapes: Sequence[dict[str, Any]], axes: dict[str, Any]
) -> list[_Area]:
    """Small areas along every line that is drawn: a name stands beside them where it can."""
    ends = [(trace["x"], trace["y"]) for trace in traces] + [
        ((s["x0"], s["x1"]), (s["y0"], s["y1"])) for s in shapes
    ]
    areas = []
    for xs, ys in ends:
        x0, x1 = (_pixels(axes["xaxis"], x, _WIDE) for x in xs)
        y0, y1 = (_pixels(axes["yaxis"], y, _TALL) for y in ys)
        steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / _STEP))
        for k in range(steps + 1):
            x, y = x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps
            areas.append((x - 1, y - 1, x + 1, y + 1))
    return areas


def _points(
    one: Roofline, axes: dict[str, Any], taken: list[_Area], on_lines: Sequence[_Area]
) -> list[dict[str, Any]]:
    """One trace for each kind of evidence, each point with its name where that has room."""
    drawn = [p for p in one.points if p.flops and p.nbytes]
    traces = []
    for p in drawn:
        x, y = (
            _pixels(axes["xaxis"], p.intensity_flops_per_byte, _WIDE),
            _pixels(axes["yaxis"], _reached(p), _TALL),
        )
        taken.append((x - 5, y - 5, x + 5, y + 5))
    for badge in Badge:
        points = [p for p in drawn if p.evidence.badge is badge]
        if not points:
            continue
        rates = [_reached(p) for p in points]
        places = [_label(p, axes, taken, on_lines) for p in points]
        ends = [_ends(p) for p in points]
        color = _color(one)
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [high - y for (_, high), y in zip(ends, rates, strict=True)],
            "color": color,
            "arrayminus": [y - low for (low, _), y in zip(ends, rates, strict=True)],
            "thickness": 1.5,
            "width": 4 if badge is Badge.MEASURED else 0,
        }
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [p.intensity_flops_per_byte for p in points],
                "y": rates,
                "error_y": bars,
                "marker": palette.marker(
                    badge, color, "diamond" if badge is Badge.MODELLED else "circle", 9
                ),
                "text": [ink(words) for words, _ in places],
                "textposition": [side for _, side in places],
                "textfont": {"size": 11},
                "name": ink(f"{one.device} ({_WHAT[badge]})"),
                "customdata": [p.explanation for p in points],
                "hovertemplate": "%{customdata}<extra></extra>",
                "cliponaxis": False,
            }
        )
    return traces


def _ends(p: RooflinePoint) -> tuple[float, float]:
    """FLOP/s at the ends of the interval; the point itself where there is none."""
    if p.seconds is None or p.interval_seconds is None:
        return _reached(p), _reached(p)
    return p.flops / p.interval_seconds[1], p.flops / p.interval_seconds[0]


def _label(
    p: RooflinePoint, axes: dict[str, Any], taken: list[_Area], on_lines: Sequence[_Area]
) -> tuple[str, str]:
    """The point's first word and the side of it that is free; no word where none is: the table has
    it.
    """
    words = p.label.partition(" ")[0]
    x, y = (
        _pixels(axes["xaxis"], p.intensity_flops_per_byte, _WIDE),
        _pixels(axes["yaxis"], _reached(p), _TALL),
    )
    wide, half = _LETTER * len(words), _LINE / 2
    areas = {
        "middle right": (x + 7, y - half, x + 7 + wide, y + half),
        "middle left": (x - 7 - wide, y - half, x - 7, y + half),
        "top center": (x - wide / 2, y + 6, x + wide / 2, y + 6 + _LINE),
        "bottom center": (x - wide / 2, y - 6 - _LINE, x + wide / 2, y - 6),
    }
    # beside the lines where that is possible, else across one
    for avoided in ([*taken, *on_lines], taken):
        for side, area in areas.items():
            if area[0] >= 0 and area[2] <= _WIDE and area[1] >= 0 and not _overlaps(area, avoided):
                taken.append(area)
                return words, side
    return "", "middle right"


def _describe(
    machines: Sequence[Roofline], ridges: Sequence[tuple[Roofline, float, float, str]]
) -> str:
    parts = [f"{one.device}: {words}." for one, _, _, words in ridges]
    for one in machines:
        parts += [p.explanation for p in one.points]
        beyond = [p.label for p in one.points if not p.flops or not p.nbytes]
        if beyond:
            parts.append(
                f"Not drawn, since they do no arithmetic or move no bytes: {', '.join(beyond)}."
            )
    return " ".join(parts)
