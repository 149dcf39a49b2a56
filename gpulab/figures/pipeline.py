"""Figures of a training run: the lanes of an input pipeline, and a step as recorded by the
profiler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import LabFigure, apart_edges, composed, frame, ink, linear_seconds_axis
from gpulab.units import format_bytes, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.training import PipelineResult, Profile, ProfileSpan, StepSpan

_ROW = 34  # pixels of a lane
_LETTER = 0.0085  # of the picture's width: a letter of a bar's name
_NUMBERED = 0.0225  # of the picture's width that a bar needs for a number
_MARGIN = 150
_WAIT = "rgba(127,127,127,0.30)"
_MOST_ROWS = 10  # workers that get a row though they load none of the steps that are drawn


def pipeline(p: PipelineResult, steps: int = 12) -> LabFigure:
    """Return the lanes of an input pipeline: the loading, copy and step of each batch, and where
    the accelerator waited.

    Parameters
    ----------
    p : PipelineResult
    steps : int
        How many of the first steps are drawn; the table covers all of them.
    """
    shown = min(steps, p.steps)
    words = (
        f"{p.steps} steps of {plural(p.batch_size, 'image')}, {plural(p.workers, 'worker')}: "
        f"{p.images_per_second:.0f} images a second. "
        f"{p.sentence} "
        f"Loading a batch takes {format_seconds(p.loading_seconds)}, its copy "
        f"{format_seconds(p.copy_seconds)} for "
        f"{format_bytes(p.batch_bytes)}, a step {format_seconds(p.compute_seconds)}."
    )
    rows = _rows(p, shown)
    title = f"Input pipeline: the first {shown} steps, workers {p.workers}"
    evidence = (
        [p.evidence]
        if p.evidence == p.accelerator_evidence
        else [p.evidence, p.accelerator_evidence]
    )
    base = frame(title, evidence, words, height=_MARGIN + _ROW * len(rows))
    spans = [span for span in p.spans if span.step < shown]
    end = max(span.end_seconds for span in spans if span.lane == "compute")
    traces = [_wait_bars(p, shown)]
    for lane in ("data", "copy", "compute"):
        badge = p.evidence.badge if lane == "data" else p.accelerator_evidence.badge
        traces.append(
            _lane(
                lane,
                [span for span in spans if span.lane == lane and span.start_seconds < end],
                badge,
                end,
            )
        )
    axis = {
        **base.layout.xaxis.to_plotly_json(),
        **linear_seconds_axis(end, "time since the start"),
    }
    figure = composed(
        base,
        traces,
        xaxis=axis,
        yaxis={**base.layout.yaxis.to_plotly_json(), **_rows_axis(rows)},
        barmode="overlay",
    )
    figure.update_layout(showlegend=True, legend_traceorder="normal", margin_b=88)
    return figure


def _rows(p: PipelineResult, shown: int) -> list[str]:
    """Return the rows from top to bottom; every worker that loads one of the steps has its own: two
    in one would hide each other.
    """
    busy = 1 + max(span.worker for span in p.spans if span.step < shown and span.lane == "data")
    workers = (
        ["training loads"]
        if p.workers == 0
        else [f"worker {k}" for k in range(max(busy, min(p.workers, _MOST_ROWS)))]
    )
    return [*workers, "copy", "compute"]


def _row_of(span: StepSpan) -> str:
    if span.lane != "data":
        return span.lane
    return "training loads" if span.worker < 0 else f"worker {span.worker}"


def _lane(lane: str, spans: Sequence[StepSpan], badge: Badge, end: float) -> dict[str, Any]:
    color, hollow = palette.LANES[lane], badge is not Badge.MEASURED
    names = {"data": "load and decode", "copy": "copy", "compute": "compute"}
    edge = (
        {"color": color, "width": 1.5}
        if hollow
        else apart_edges([span.seconds for span in spans], end)
    )
    return {
        "type": "bar",
        "orientation": "h",
        "name": ink(f"{names[lane]} ({badge.value.lower()})"),
        "width": 0.62,
        "y": [_row_of(span) for span in spans],
        "x": [min(span.end_seconds, end) - span.start_seconds for span in spans],
        "base": [span.start_seconds for span in spans],
        "marker": {"color": "rgba(0,0,0,0)" if hollow else color, "line": edge},
        "text": [
            _on_bar(str(span.step + 1), "" if hollow else color)
            if span.seconds > _NUMBERED * end
            else ""
            for span in spans
        ],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": 11},
        "customdata": [
            f"batch {span.step + 1}: {names[lane]} {format_seconds(span.seconds)}" for span in spans
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _wait_bars(p: PipelineResult, shown: int) -> dict[str, Any]:
    """Return the accelerator's waiting as one grey trace behind its lane."""
    last = p.lane("compute")[shown - 1].end_seconds
    first = (0.0, p.lane("compute")[0].start_seconds)
    gaps = [gap for gap in (first, *p.gaps) if gap[0] < last]
    return {
        "type": "bar",
        "orientation": "h",
        "name": ink("the accelerator waits"),
        "y": ["compute"] * len(gaps),
        "width": 0.62,
        "x": [b - a for a, b in gaps],
        "base": [a for a, _ in gaps],
        "marker": {"color": _WAIT, "pattern": {"shape": "x", "size": 5, "fgcolor": palette.GREY}},
        "customdata": [f"waits {format_seconds(b - a)}" for a, b in gaps],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _rows_axis(rows: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(reversed(rows)),
        "tickvals": list(rows),
        "ticktext": [ink(row) for row in rows],
        "tickprefix": "",
        "ticksuffix": "",
        "showgrid": False,
        "range": [-0.6, len(rows) - 0.4],
    }


def profile(p: Profile, step: int = 0, depth: int = 1) -> LabFigure:
    """Return one step as recorded by the profiler: your marks, the operators on the host, the
    kernels on the device.

    Parameters
    ----------
    p : Profile
    step : int
        Index of the step, from 0.
    depth : int
        Depth of the calls: 0 shows what the program called, 1 also what these operators called, and
        so on.
    """
    begin, end = p.steps[step]
    lanes = _profile_lanes(p, begin, end, depth)
    idle = p.device_idle_ratio
    plain = (
        ""
        if math.isnan(p.unprofiled_seconds)
        else f" and {format_seconds(p.unprofiled_seconds)} without it"
    )
    words = (
        f"One step of {p.label} on {p.device}. On average a step took "
        f"{format_seconds(p.step_seconds)} under the profiler{plain}: "
        f"{p.operators_per_step:.0f} operators, {p.between_ratio:.0%} of the time between them"
        + (f"; the device ran no kernel for {idle:.0%} of it." if idle is not None else ".")
    )
    base = frame(
        f"Inside {p.label}: one step", p.evidence, words, height=_MARGIN + _ROW * len(lanes)
    )
    traces = [_profile_lane(name, spans, begin, end - begin) for name, spans in lanes.items()]
    axis = {
        **base.layout.xaxis.to_plotly_json(),
        **linear_seconds_axis(end - begin, "time since the step began"),
    }
    figure = composed(
        base,
        traces,
        xaxis=axis,
        yaxis={**base.layout.yaxis.to_plotly_json(), **_rows_axis(list(lanes))},
        barmode="overlay",
    )
    figure.update_layout(showlegend=False)
    return figure


def _profile_lanes(
    p: Profile, begin: float, end: float, depth: int
) -> dict[str, list[ProfileSpan]]:
    """Return the rows from top to bottom, those that have something to show."""
    inside = [span for span in p.spans if begin <= span.start_seconds <= end]
    lanes = {"your marks": [s for s in inside if s.lane == "mark" and s.depth == 0]}
    lanes["marks inside"] = [s for s in inside if s.lane == "mark" and s.depth == 1]
    for level in range(depth + 1):
        name = (
            "operators" if level == 0 else "nested calls" if level == 1 else f"calls, depth {level}"
        )
        lanes[name] = [s for s in inside if s.lane == "host" and s.depth == level]
    lanes["device"] = [s for s in inside if s.lane == "device"]
    return {name: spans for name, spans in lanes.items() if spans}


def _profile_lane(
    name: str, spans: Sequence[ProfileSpan], begin: float, whole: float
) -> dict[str, Any]:
    """Return a row. A name stands on its bar, else at its right where nothing follows, else it is
    shown at the mouse only.
    """
    color = {"mark": palette.GREY, "host": palette.BLUE, "device": palette.VERMILLION}[
        spans[0].lane
    ]
    spans = sorted(spans, key=lambda span: span.start_seconds)
    lengths, short = [span.seconds for span in spans], [_short(span.name) for span in spans]
    needed = [_LETTER * (len(text) + 1) * whole for text in short]
    fits = [length > room for length, room in zip(lengths, needed, strict=True)]
    # at last the margin behind the axis
    follows = [*(span.start_seconds for span in spans[1:]), begin + 1.1 * whole]
    free = [
        after - span.end_seconds > room
        for after, span, room in zip(follows, spans, needed, strict=True)
    ]
    texts = zip(short, fits, free, strict=True)
    return {
        "type": "bar",
        "orientation": "h",
        "y": [name] * len(spans),
        "x": lengths,
        "width": 0.7,
        "base": [span.start_seconds - begin for span in spans],
        "marker": {"color": color, "line": apart_edges(lengths, whole)},
        "text": [
            _on_bar(text, color if inside else "") if inside or beside else ""
            for text, inside, beside in texts
        ],
        "textposition": ["inside" if inside else "outside" for inside in fits],
        "cliponaxis": False,
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": 11},
        "customdata": [
            f"{text}: {format_seconds(span.seconds)}"
            for text, span in zip(short, spans, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _on_bar(text: str, color: str) -> str:
    """Return text for a bar of this color: white on blue, black on the others, which are lighter;
    in the theme's ink on none ("").
    """
    return (
        f'<span style="fill:{"#FFFFFF" if color == palette.BLUE else "#000000"}">{text}</span>'
        if color
        else ink(text)
    )


def _short(name: str) -> str:
    return name.removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ")
