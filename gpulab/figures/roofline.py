"""Figures of upper limits: the roofs of a machine and the work below them, all machines of a class,
the predictions of a class compared with its results, and text generation over the batch.

Results that students' machines report are RECORDED: on a named machine, on a date. The names come
from untrusted files, so they are escaped everywhere.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge, Evidence
from gpulab.figures import palette
from gpulab.figures._style import (
    LabFigure,
    Part,
    cut,
    describe,
    extent,
    guide,
    ink,
    interval_bars,
    log_axis,
    note,
    picture,
    ticks,
    trace,
    upright,
)
from gpulab.models import InferencePlan, Roofline, RooflinePoint
from gpulab.units import (
    format_bytes_per_second,
    format_flops_per_second,
    format_number,
    format_seconds,
    plural,
)

if TYPE_CHECKING:
    from gpulab.lessons.classes import Classroom, Student

_HEIGHT = 500
_WIDE, _TALL = 570, 320  # pixels of the axes at 900 pixels
_LETTER, _LINE = 6.4, 14  # pixels of a letter and of a line of text
_SMALL = {"size": 11}
_ROOM = 2.0  # how far the lines go beyond the outermost point or ridge
_NAMES = 0.32  # of the lines' width, on either side: room for the names of the roofs
_WHAT = {
    Badge.MEASURED: "measured",
    Badge.RECORDED: "recorded",
    Badge.MODELLED: "predicted, modelled",
}
_INTENSITY = "arithmetic intensity, FLOP per byte (log scale)"
_Area = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


class _Places:
    """The areas that points and texts take on log axes, in pixels, so that texts do not overlap."""

    def __init__(self, xaxis: Part, yaxis: Part) -> None:
        self.xaxis, self.yaxis = xaxis, yaxis
        self.taken: list[_Area] = []

    def of(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point, in pixels."""
        (left, right), (low, high) = self.xaxis["range"], self.yaxis["range"]
        across = (math.log10(x) - left) / (right - left)
        return across * _WIDE, (math.log10(y) - low) / (high - low) * _TALL

    def first_free(self, areas: Iterable[tuple[Any, _Area]]) -> Any:
        """Take the first of some areas that overlaps no point and no other text, and return its
        name; None where all are taken.
        """
        for name, area in areas:
            left, low, right, high = area
            if not any(
                left < b[2] and b[0] < right and low < b[3] and b[1] < high for b in self.taken
            ):
                self.taken.append(area)
                return name
        return None

    def push_up(self, left: float, low: float, width: float, step: float) -> float:
        """Take the first free place for a line of text at or above a height, and return how much
        higher it is.
        """
        right, top = left + width, low + _LINE
        ups = itertools.count(0.0, step)
        return float(self.first_free((up, (left, low + up, right, top + up)) for up in ups))


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
    machines = [(one, _arithmetics(one, arithmetic)) for one in (r, *beside)]
    # the intensities at which each level of memory meets each roof that is drawn; a ridge is where
    # main memory, whose rate no CPU's data sheet has, meets the first roof
    crossings = [
        one.ridge_flops_per_byte(top, level.name)
        for one, tops in machines
        for top in tops
        for level in one.memory
    ]
    ridges = [
        (one, one.ridge_flops_per_byte(tops[0]), tops[0])
        for one, tops in machines
        if tops and any(level.name == "DRAM" for level in one.memory)
    ]
    points = [p for one, _ in machines for p in one.points if p.flops and p.nbytes]
    xs = [*(p.intensity_flops_per_byte for p in points), *crossings] or [1.0]
    low, high = min(xs) / _ROOM, max(xs) * _ROOM
    aside = (high / low) ** _NAMES
    roofs = [_roofs(one, tops, low, high) for one, tops in machines]
    traces = [line for lines, _ in roofs for line in lines]
    heights = [y for line in traces for y in line["y"]]
    heights += [y for p in points for y in (_reached(p), *_ends(p))]
    places = _Places(
        log_axis("count", [low / aside, high * aside], _INTENSITY),
        log_axis("FLOP/s", heights, "FLOP per second (log scale)"),
    )
    notes = _roof_notes([name for _, names in roofs for name in names], places)
    shapes = _ridge_marks(ridges, places, notes)
    for one, _ in machines:
        traces += _points(one, places)
    return picture(
        f"Roofline of {' and '.join(dict.fromkeys(one.device for one, _ in machines))}",
        [
            evidence
            for one, _ in machines
            for evidence in (
                one.evidence,
                *(p.evidence for p in one.points if p.seconds is not None),
            )
        ],
        " ".join(
            [describe(r, *beside), *(p.explanation for one, _ in machines for p in one.points)]
        ),
        traces,
        height=_HEIGHT,
        xaxis=places.xaxis,
        yaxis=places.yaxis,
        annotations=notes,
        shapes=shapes,
        margin={"r": 48},
        showlegend=True,
    )


def _color(one: Roofline) -> str:
    """Return the host's color, or that of accelerators of whatever make, even if the kind is known
    from a student's report only.
    """
    return palette.device_color("cpu" if one.device_kind == "cpu" else "cuda")


def _arithmetics(one: Roofline, wanted: str | None) -> list[str]:
    """Return the roofs to draw: the wanted one, which comes first since its ridge is marked, and
    those that points use. If there are none, float32's or else the first that is known.
    """
    known = sorted((roof.name for roof in one.arithmetic), key=lambda name: name != wanted)
    used = [name for name in known if name in (wanted, *(p.arithmetic for p in one.points))]
    return used or [name for name in known if name == "float32"] or known[:1]


def _roofs(
    one: Roofline, tops: Sequence[str], low: float, high: float
) -> tuple[list[Part], list[tuple[float, float, str, str]]]:
    """Return the slopes up to the highest roof and the flat roofs from the steepest slope on, and
    a label for each: x, y, words, anchor.
    """
    # the x and the y of each line's ends, its evidence, its label, and the end that has the label
    roofs: list[tuple[tuple[float, float], tuple[float, float], Evidence, str, int]] = []
    peaks = [one.arithmetic_roof(name) for name in tops]
    highest = max((peak.flops_per_second for peak in peaks), default=0.0)
    for level in one.memory:
        rate = level.bytes_per_second
        end = min(highest / rate, high)
        words = f"{level.name} {format_bytes_per_second(rate)}"
        if end > low:
            roofs.append(((low, end), (low * rate, end * rate), level.evidence, words, 0))
    fastest = max((level.bytes_per_second for level in one.memory), default=math.inf)
    for name, peak in zip(tops, peaks, strict=True):
        rate = peak.flops_per_second
        words = f"{name} {format_flops_per_second(rate)}"
        roofs.append(((max(low, rate / fastest), high), (rate, rate), peak.evidence, words, 1))
    lines = [
        trace(
            "lines",
            list(x),
            list(y),
            f"roofs of {one.device} ({evidence.badge.lower()})",
            words,
            line=palette.line(evidence.badge, _color(one)),
            showlegend=number == 0,
            legendgroup=f"roofs of {one.device} {one.evidence.badge}",
        )
        for number, (x, y, evidence, words, _) in enumerate(roofs)
    ]
    return lines, [(x[end], y[end], words, ("right", "left")[end]) for x, y, _, words, end in roofs]


def _roof_notes(labels: Sequence[tuple[float, float, str, str]], places: _Places) -> list[Part]:
    """Return the names of the roofs, each beyond the end of its line, pushed up where it would
    overlap another one.
    """
    notes = []
    for x, y, words, anchor in sorted(labels, key=lambda label: label[1]):
        (end, middle), wide = places.of(x, y), _LETTER * len(words)
        shift, left = (5, end + 5) if anchor == "left" else (-5, end - 5 - wide)
        up = places.push_up(left, middle - _LINE / 2, wide, 1.0)
        notes.append(
            note(
                words,
                math.log10(x),
                math.log10(y),
                xanchor=anchor,
                yanchor="middle",
                xshift=shift,
                yshift=up,
                font=_SMALL,
            )
        )
    return notes


def _ridge_marks(
    ridges: Sequence[tuple[Roofline, float, str]], places: _Places, notes: list[Part]
) -> list[Part]:
    """Return a line from each ridge down to the axis; add the intensity at its foot to the
    notes.
    """
    floor = places.yaxis["range"][0]
    shapes = []
    for one, x, top in ridges:
        stroke = {"color": _color(one), "width": 1, "dash": "dot"}
        ends = {"y0": 10**floor, "y1": one.arithmetic_roof(top).flops_per_second}
        shapes.append({"type": "line", "x0": x, "x1": x, **ends, "line": stroke})
        words = f"ridge {format_number(x)} FLOP per byte"
        left, wide = places.of(x, 10**floor)[0], _LETTER * len(words)
        right = left + 4 + wide > _WIDE
        side = {"xanchor": "right", "xshift": -4} if right else {"xanchor": "left", "xshift": 4}
        up = places.push_up(left - 4 - wide if right else left + 4, 2.0, wide, 2.0)
        foot = note(words, math.log10(x), floor, yanchor="bottom", yshift=up, font=_SMALL)
        notes.append({**foot, **side})
    return shapes


def _reached(p: RooflinePoint) -> float:
    """Return the FLOP/s of a point; a predicted one lies on its roof."""
    return p.flops / (p.seconds if p.seconds is not None else p.attainable_seconds)


def _ends(p: RooflinePoint) -> tuple[float, float]:
    """Return the FLOP/s at the ends of the interval; the point itself where there is none."""
    if p.seconds is None or p.interval_seconds is None:
        return _reached(p), _reached(p)
    return p.flops / p.interval_seconds[1], p.flops / p.interval_seconds[0]


def _points(one: Roofline, places: _Places) -> list[Part]:
    """Return one trace for each kind of evidence, each point with its name if there is room."""
    drawn = [p for p in one.points if p.flops and p.nbytes]
    for p in drawn:
        x, y = places.of(p.intensity_flops_per_byte, _reached(p))
        places.taken.append((x - 5, y - 5, x + 5, y + 5))
    several = {badge: [p for p in drawn if p.evidence.badge is badge] for badge in Badge}
    traces, color = [], _color(one)
    for badge, points in several.items():
        rates, labels = [_reached(p) for p in points], [_label(p, places) for p in points]
        width = 4 if badge is Badge.MEASURED else 0
        symbol = "diamond" if badge is Badge.MODELLED else "circle"
        traces.append(
            trace(
                "markers+text",
                [p.intensity_flops_per_byte for p in points],
                rates,
                f"{one.device} ({_WHAT[badge]})",
                (p.explanation for p in points),
                error_y=interval_bars(rates, [_ends(p) for p in points], color, width=width),
                marker=palette.marker(badge, color, symbol, 9),
                text=[ink(words) for words, _ in labels],
                textposition=[side for _, side in labels],
                textfont=_SMALL,
                cliponaxis=False,
            )
        )
    return [each for each in traces if each["x"]]


def _label(p: RooflinePoint, places: _Places) -> tuple[str, str]:
    """Return the first word of a point's label, and a side of the point that is free. If no side is
    free, the word is empty: the table has the label.
    """
    words = p.label.partition(" ")[0]
    x, y = places.of(p.intensity_flops_per_byte, _reached(p))
    wide = _LETTER * len(words)
    # roofs rise to the right or are level, so no roof of its device is below a point on its right
    below, above = (y - 6 - _LINE, y - 6), (y + 6, y + 6 + _LINE)
    areas = {
        "bottom right": (x + 5, below[0], x + 5 + wide, below[1]),
        "top left": (x - 5 - wide, above[0], x - 5, above[1]),
        "bottom center": (x - wide / 2, below[0], x + wide / 2, below[1]),
        "top center": (x - wide / 2, above[0], x + wide / 2, above[1]),
    }
    inside = {s: a for s, a in areas.items() if a[0] >= 0 and a[2] <= _WIDE and a[1] >= 0}
    side = places.first_free(inside.items())
    return (words, side) if side else ("", "bottom right")


# A class.

_ROW = 26  # pixels of one more question
_BEYOND = 4.0  # how far the roofs go beyond the outermost ridge
_NAMED = 12  # machines that the description names
_BAND = 0.45  # of a row's height, to each side
_QUESTION, _DEVICE = 52, 60  # characters of a question beside its axis, and of a device's name
_HIGHEST, _LOWEST = 1e4, 1e-4  # ratios beyond are drawn at the edge; the hover text has them
_ARITHMETIC = "float32"
# codes of notes on disturbances, which may make a roof too low
_DISTURBANCES = ("contended", "stalled", "throttled")


def class_roofline(room: Classroom) -> LabFigure:
    """Return the roofs of every student's best device in one figure: main memory and float32, with
    the ridge marked.

    Parameters
    ----------
    room : Classroom
        What ``gl.lessons.classroom`` read.

    Returns
    -------
    LabFigure
        Dotted lines and hollow marks: RECORDED, as the students' machines report. A mark's hover
        text gives student, device and rates.
    """
    drawn = [
        (student, roof, roof.ridge_flops_per_byte(_ARITHMETIC, roof.memory[-1].name))
        for student in room.students
        for roof in student.report.rooflines()[:1]
        if any(each.name == _ARITHMETIC for each in roof.arithmetic)
    ]
    if not drawn:
        return _nothing(
            "The machines of the class",
            "No report contains the roofs of a machine (--doctor-only and --no-measure omit them).",
        )
    ridges = [ridge for *_, ridge in drawn]
    low, high = min(ridges) / _BEYOND, max(ridges) * _BEYOND
    traces = [
        each
        for color, kind in ((palette.BLUE, "CPU"), (palette.VERMILLION, "GPU"))
        for each in _machines(
            [each for each in drawn if _color(each[1]) == color], low, high, color, kind
        )
    ]
    # one badge for all: recorded, by the students' own machines, on the date of the last report
    latest = max((roof.evidence for _, roof, _ in drawn), key=lambda evidence: evidence.date or "")
    whose = f"{plural(len(drawn), 'machine')}, as reported by the students"
    named = [
        f"{student.name}: {cut(roof.device, _DEVICE)}, ridge {ridge:.3g}{_doubts(roof)}"
        for student, roof, ridge in drawn[:_NAMED]
    ]
    more = f"; and {len(drawn) - _NAMED} more" if len(drawn) > _NAMED else ""
    words = (
        f"Ridges from {min(ridges):.3g} to {max(ridges):.3g} FLOP/byte, median "
        f"{statistics.median(ridges):.3g}. {'; '.join(named)}{more}."
    )
    rates = [y for each in traces for y in each["y"] if y is not None]
    return picture(
        f"The machines of the class ({len(drawn)})",
        dataclasses.replace(latest, device=whose),
        words,
        traces,
        height=460,
        showlegend=True,
        xaxis=log_axis("count", [low, high], _INTENSITY),
        yaxis=log_axis("FLOP/s", rates, "FLOP per second, float32 (log scale)"),
    )


def _machines(
    some: Sequence[tuple[Student, Roofline, float]], low: float, high: float, color: str, kind: str
) -> list[Part]:
    """Return one trace for all roofs of a kind, broken between machines, and one for their
    ridges.
    """
    tops = [roof.arithmetic_roof(_ARITHMETIC).flops_per_second for _, roof, _ in some]
    slopes = [roof.memory[-1].bytes_per_second for _, roof, _ in some]
    every = list(zip(some, tops, slopes, strict=True))
    lines = trace(
        "lines",
        [x for *_, ridge in some for x in (low, ridge, high, None)],
        [y for _, top, slope in every for y in (low * slope, top, top, None)],
        f"roofs of {plural(len(some), kind)} (recorded)",
        line=palette.line(Badge.RECORDED, color, 1.2),
    )
    words = (
        f"{student.name}: {cut(roof.device, _DEVICE)}, {format_flops_per_second(top)}, "
        f"{format_bytes_per_second(slope)}, ridge {ridge:.3g} FLOP per byte{_doubts(roof)}"
        for (student, roof, ridge), top, slope in every
    )
    marks = trace(
        "markers",
        [ridge for *_, ridge in some],
        tops,
        f"their ridges ({kind})",
        # plotly does not decode &quot; and would show it as it is
        (html.escape(text, quote=False) for text in words),
        marker=palette.marker(Badge.RECORDED, color, size=9),
        cliponaxis=False,
    )
    return [lines, marks] if some else []


def _doubts(roof: Roofline) -> str:
    """Return words on disturbances that make a report's roofs doubtful (such as thirty students who
    report from one server at once); "" where there were none.
    """
    codes = [note.code for note in roof.notes if note.code in _DISTURBANCES]
    return f" (measured while {' and '.join(codes)})" if codes else ""


def class_predictions(room: Classroom) -> LabFigure:
    """Return the class's predictions divided by what each student's machine measured, one row per
    question.

    Parameters
    ----------
    room : Classroom
        What ``gl.lessons.classroom`` read.

    Returns
    -------
    LabFigure
        A mark for each student who gave a number, at predicted / measured; the band of a row is
        what counts as close. At the right, the number of answers that were close or right, also for
        questions with choices.
    """
    rows = [row for row in room.question_rows() if row.given]
    if not rows:
        return _nothing("Predictions against results", "No report contains a prediction.")
    places = range(len(rows), 0, -1)  # the first question on top
    shown = [(x, place) for row, place in zip(rows, places, strict=True) for x in row.ratios]
    xs = [min(max(x, _LOWEST), _HIGHEST) for x, _ in shown]
    marks = trace(
        "markers",
        xs,
        # a little up or down, the same at every draw, so that equal answers do not hide each other
        [place + ((k * 7) % 11 - 5) * 0.05 for k, (_, place) in enumerate(shown)],
        mouse=(f"{x:.3g} times the measured value" for x, _ in shown),
        marker=palette.marker(Badge.RECORDED, palette.ORANGE, size=7),
        opacity=0.8,
        cliponaxis=False,
    )
    bands = [
        {
            "type": "rect",
            "x0": max(row.close[0], _LOWEST),
            "x1": min(row.close[1], _HIGHEST),
            "y0": place - _BAND,
            "y1": place + _BAND,
            "line": {"width": 0},
            "fillcolor": "rgba(127,127,127,0.15)",
            "layer": "below",
        }
        for row, place in zip(rows, places, strict=True)
        if not row.choices
    ]
    beside: Part = {"xref": "paper", "xanchor": "left", "xshift": 8, "font": _SMALL}
    notes = [
        note(f"{row.right} of {row.judged}", 1, place, **beside)
        for row, place in zip(rows, places, strict=True)
    ]
    head = note("close or right", 1, 1, yref="paper", yanchor="bottom", **beside)
    words = " ".join(
        f"{row.id}: {row.right} of {row.judged} close or "
        f"right{f'; {row.text}' if row.text else ''}."
        for row in rows
    )
    evidence = Evidence(
        Badge.RECORDED,
        f"{plural(len(room.students), 'machine')}, as reported by the students",
        date=max(student.report.date for student in room.students),
        command="gpulab report",
    )
    return picture(
        "Predictions against results",
        evidence,
        words,
        [marks],
        height=150 + _ROW * len(rows),
        xaxis=log_axis(
            "count",
            [*xs, 0.1, 10.0],
            "predicted / measured (log scale)<br>values in the band of a row count as close",
        ),
        yaxis={
            "type": "linear",
            "range": [0.4, len(rows) + 0.6],
            **ticks(places, [f"{row.id}  {cut(row.question, _QUESTION)}" for row in rows]),
        },
        shapes=[*bands, upright(1, width=1, dash="solid")],
        annotations=[*notes, head],
        margin={"r": 110},
    )


def _nothing(title: str, sentence: str) -> LabFigure:
    """Return an empty picture with a sentence that gives the reason."""
    return picture(
        title,
        [],
        sentence,
        [],
        height=140,
        xaxis={"visible": False},
        yaxis={"visible": False},
        annotations=[note(sentence, 0, 1, "paper paper left top")],
    )


# Text generation.


# What the points beside the plans are: the widget measures products, recordings have whole steps.
_POINTS = {Badge.MEASURED: "products of all layers", Badge.RECORDED: "a step of decode"}


def inference(
    plans: Sequence[InferencePlan],
    batch: int | None = None,
    measured: Sequence[tuple[int, float, tuple[float, float] | None, Evidence]] = (),
) -> LabFigure:
    """Return tokens per second over the batch, with the largest batch that fits.

    Parameters
    ----------
    plans : sequence of InferencePlan
        Of one model on one device, for different batches; a single plan is enough.
    batch : int, optional
        The plan of this batch is marked.
    measured : sequence of (int, float, (float, float) or None, Evidence)
        For each point: the batch, the tokens per second that were reached, their interval, and the
        evidence.
    """
    plans = sorted(plans, key=lambda plan: plan.batch)
    first, last = plans[0], plans[-1]
    badge, most = first.evidence.badge, first.largest_batch
    line = {"line": palette.line(badge, palette.BLUE)}
    ring = {"marker": palette.marker(badge, palette.BLUE, "circle", 12)}
    chosen = [plan for plan in plans if plan.batch == batch]
    traces = [
        trace(
            mode,
            [plan.batch for plan in those],
            [plan.tokens_per_second for plan in those],
            name,
            map(_words, those),
            **look,
        )
        for mode, those, name, look in (
            ("lines", plans, "upper limit (modelled)", line),
            ("markers", chosen, f"a batch of {batch}", ring),
        )
        if those
    ]
    for kind in dict.fromkeys(source.badge for *_, source in measured):
        points = [point for point in measured if point[-1].badge is kind]
        batches, rates, ends, _ = zip(*points, strict=True)
        traces.append(
            trace(
                "markers",
                batches,
                rates,
                f"{_POINTS[kind]} ({kind.lower()})",
                (f"batch {n:,}: {format_number(rate)} tokens/s" for n, rate, *_ in points),
                error_y=interval_bars(rates, ends, palette.VERMILLION, 2, 6),
                marker=palette.marker(kind, palette.VERMILLION, "diamond", 12),
            )
        )
    words = (
        f"{first.model.name} on {first.device}, {first.weights} weights, {first.context:,} "
        f"positions: at most {format_number(first.tokens_per_second)} tokens per second at batch "
        f"{first.batch:,}, and at most {format_number(last.tokens_per_second)} at batch "
        f"{last.batch:,}."
    )
    return picture(
        "Tokens per second over the batch",
        [first.evidence, *(source for *_, source in measured)],
        words,
        traces,
        xaxis=log_axis(
            "count", [plan.batch for plan in plans], "sequences in the batch (log scale)"
        ),
        yaxis=log_axis("count", extent(traces), "tokens per second (log scale)"),
        guides=[
            guide(
                most,
                f"at most {plural(most, 'sequence')}",
                bottom=True,
                before=most > last.batch / 4,
            )
        ]
        if most and first.batch <= most <= last.batch
        else (),
    )


def _words(plan: InferencePlan) -> str:
    return (
        f"batch {plan.batch:,}: {format_number(plan.tokens_per_second)} tokens/s, a step takes "
        f"{format_seconds(plan.step_seconds)}, limited by {plan.limit}"
    )
