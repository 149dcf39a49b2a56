"""Figures of a class: all machines on one roofline, and predictions compared with results.

What students' machines report is RECORDED: a named machine, on a date. The names come from
untrusted files, so they are escaped everywhere.
"""

from __future__ import annotations

import dataclasses
import html
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge, Evidence
from gpulab.figures import palette
from gpulab.figures._style import MID_GREY, LabFigure, composed, count_axis, frame, ink, rate_axis
from gpulab.figures.roofline import _color
from gpulab.units import format_bytes_per_second, format_flops_per_second

if TYPE_CHECKING:
    from gpulab.lessons import Classroom
    from gpulab.lessons._classroom import QuestionRow, Student
    from gpulab.models import Roofline

_HEIGHT, _ROW = 460, 26  # pixels; of one more question
_ROOM = 4.0  # how far the roofs go beyond the outermost ridge
_NAMED = 12  # machines that the description names
_BAND = 0.45  # of a row's height, to each side
_QUESTION = 52  # characters of a question beside its axis
_HIGHEST, _LOWEST = 1e4, 1e-4  # ratios beyond stand at the edge, and say so
_ARITHMETIC = "float32"
# codes of notes by which a roof may be too low
_DISTURBANCES = ("contended", "stalled", "throttled")
_KINDS = {palette.BLUE: "CPU", palette.VERMILLION: "GPU"}


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
        (student, roof)
        for student in room.students
        for roof in student.report.rooflines()[:1]
        if _usable(roof)
    ]
    if not drawn:
        return _nothing(
            "The machines of the class",
            "No report contains the roofs of a machine (--doctor-only and --no-measure omit them).",
        )
    ridges = [roof.ridge_flops_per_byte(_ARITHMETIC, roof.memory[-1].name) for _, roof in drawn]
    low, high = min(ridges) / _ROOM, max(ridges) * _ROOM
    traces = []
    for color, kind in _KINDS.items():
        some = [
            (student, roof, x)
            for (student, roof), x in zip(drawn, ridges, strict=True)
            if _color(roof) == color
        ]
        if some:
            traces += _machines(some, low, high, color, kind)
    rates = [y for trace in traces for y in trace["y"] if y is not None]
    base = frame(
        f"The machines of the class ({len(drawn)})",
        _evidence(drawn),
        _describe(drawn, ridges),
        height=_HEIGHT,
    )
    plain = base.layout.to_plotly_json()
    return composed(
        base,
        traces,
        showlegend=True,
        xaxis={
            **plain["xaxis"],
            **count_axis([low, high], "arithmetic intensity, FLOP per byte (log scale)"),
        },
        yaxis={
            **plain["yaxis"],
            **rate_axis(rates, "FLOP per second, float32 (log scale)", "FLOP/s"),
        },
    )


def _usable(roof: Roofline) -> bool:
    return any(each.name == _ARITHMETIC for each in roof.arithmetic)


def _machines(
    some: Sequence[tuple[Student, Roofline, float]], low: float, high: float, color: str, kind: str
) -> list[dict[str, Any]]:
    """One trace for all roofs of a kind, broken between machines, and one for their ridges."""
    x: list[float | None] = []
    y: list[float | None] = []
    for _, roof, ridge in some:
        slope, top = (
            roof.memory[-1].bytes_per_second,
            roof.arithmetic_roof(_ARITHMETIC).flops_per_second,
        )
        x += [low, ridge, high, None]
        y += [low * slope, top, top, None]
    tops = [roof.arithmetic_roof(_ARITHMETIC).flops_per_second for _, roof, _ in some]
    lines = {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": palette.line(Badge.RECORDED, color, 1.2),
        "hoverinfo": "skip",
        "name": ink(f"roofs of {len(some)} {kind}{'s' if len(some) != 1 else ''} (recorded)"),
    }
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [ridge for *_, ridge in some],
        "y": tops,
        "name": ink(f"their ridges ({kind})"),
        "marker": palette.marker(Badge.RECORDED, color, size=9),
        "customdata": [_words(*each) for each in some],
        "hovertemplate": "%{customdata}<extra></extra>",
        "cliponaxis": False,
    }
    return [lines, marks]


def _words(student: Student, roof: Roofline, ridge: float) -> str:
    return html.escape(
        f"{student.name}: {_short(roof.device)}, "
        f"{format_flops_per_second(roof.arithmetic_roof(_ARITHMETIC).flops_per_second)}, "
        f"{format_bytes_per_second(roof.memory[-1].bytes_per_second)}, ridge {ridge:.3g} FLOP per "
        f"byte{_doubts(roof)}",
        quote=False,  # plotly knows no &quot; and would show it as it is
    )


def _doubts(roof: Roofline) -> str:
    """Return what made a machine's roofs doubtful when its report was made, such as thirty students
    on one server who report at once.
    """
    codes = [note.code for note in roof.notes if note.code in _DISTURBANCES]
    return f" (measured while {' and '.join(codes)})" if codes else ""


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _evidence(drawn: Sequence[tuple[Student, Roofline]]) -> Evidence:
    """One badge for all: recorded, by the students' own machines, on the date of the last
    report.
    """
    latest = max((roof.evidence for _, roof in drawn), key=lambda evidence: evidence.date or "")
    machines = (
        f"{len(drawn)} machine{'s' if len(drawn) != 1 else ''}, as the students' machines report"
    )
    return dataclasses.replace(latest, device=machines)


def _describe(drawn: Sequence[tuple[Student, Roofline]], ridges: Sequence[float]) -> str:
    some = [(student, roof, x) for (student, roof), x in zip(drawn, ridges, strict=True)][:_NAMED]
    named = [
        f"{student.name}: {_short(roof.device)}, ridge {x:.3g}{_doubts(roof)}"
        for student, roof, x in some
    ]
    more = f"; and {len(drawn) - _NAMED} more" if len(drawn) > _NAMED else ""
    return (
        f"Ridges from {min(ridges):.3g} to {max(ridges):.3g} FLOP/byte, median "
        f"{statistics.median(ridges):.3g}. {'; '.join(named)}{more}."
    )


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
    rows = [row for row in room.questions().rows if row.given]
    if not rows:
        return _nothing("Predictions against results", "No report contains a prediction.")
    labels = [f"{row.id}  {_short(row.question, _QUESTION)}" for row in rows]
    places = list(range(len(rows), 0, -1))  # the first question on top
    shown = [(x, place) for row, place in zip(rows, places, strict=True) for x in row.ratios]
    xs = [min(max(x, _LOWEST), _HIGHEST) for x, _ in shown]
    several = len(room.students) != 1
    where = (
        f"{len(room.students)} students' machines, as they report"
        if several
        else "1 student's machine, as it reports"
    )
    latest = max(student.report.date for student in room.students)
    badge = Evidence(Badge.RECORDED, where, date=latest, command="gpulab report")
    base = frame(
        "Predictions against results", badge, _answers(rows), height=150 + _ROW * len(rows)
    )
    plain = base.layout.to_plotly_json()
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": xs,
        "y": [place + _spread(k) for k, (_, place) in enumerate(shown)],
        "marker": palette.marker(Badge.RECORDED, palette.ORANGE, size=7),
        "opacity": 0.8,
        "showlegend": False,
        "cliponaxis": False,
        "customdata": [f"{x:.3g} times the measured value" for x, _ in shown],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    bands = [
        {
            "type": "rect",
            "x0": 1 / row.close_ratio,
            "x1": row.close_ratio,
            "y0": place - _BAND,
            "y1": place + _BAND,
            "line": {"width": 0},
            "fillcolor": "rgba(127,127,127,0.15)",
            "layer": "below",
        }
        for row, place in zip(rows, places, strict=True)
        if not row.choices
    ]
    one = {
        "type": "line",
        "x0": 1,
        "x1": 1,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": MID_GREY, "width": 1},
    }
    notes = [
        {
            "x": 1,
            "xref": "paper",
            "y": place,
            "text": ink(f"{row.right} of {row.judged}"),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 8,
            "font": {"size": 11},
        }
        for row, place in zip(rows, places, strict=True)
    ]
    head = {
        "x": 1,
        "xref": "paper",
        "y": 1,
        "yref": "paper",
        "text": ink("close or right"),
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": 8,
        "font": {"size": 11},
    }
    axis = count_axis(
        [*xs, 0.1, 10.0],
        "predicted / measured (log scale; values in the band of a row count as close)",
    )
    upright = {
        "type": "linear",
        "range": [0.4, len(rows) + 0.6],
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [ink(t) for t in labels],
        "tickprefix": "",
        "ticksuffix": "",
    }
    return composed(
        base,
        [marks],
        xaxis={**plain["xaxis"], **axis},
        yaxis={**plain["yaxis"], **upright},
        shapes=[*bands, one],
        annotations=[*notes, head],
        margin={**plain["margin"], "r": 110},
    )


def _nothing(title: str, sentence: str) -> LabFigure:
    """A frame that says why it is empty."""
    base = frame(title, [], sentence, height=140)
    plain, hidden = base.layout.to_plotly_json(), {"visible": False}
    place = {"x": 0, "xref": "paper", "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top"}
    words = {**place, "text": ink(sentence), "showarrow": False}
    return composed(
        base,
        [],
        xaxis={**plain["xaxis"], **hidden},
        yaxis={**plain["yaxis"], **hidden},
        annotations=[words],
    )


def _spread(number: int) -> float:
    """A little up or down, the same at every draw, so that equal answers do not hide each other."""
    return ((number * 7) % 11 - 5) * 0.05


def _answers(rows: Sequence[QuestionRow]) -> str:
    return " ".join(
        f"{row.id}: {row.right} of {row.judged} close or "
        f"right{f'; {row.text}' if row.text else ''}."
        for row in rows
    )
