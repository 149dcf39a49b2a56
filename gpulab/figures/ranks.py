"""Figures of several ranks: the lanes of each rank from a real run, and the stages of a pipeline,
modelled and measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge, Evidence
from gpulab.figures import palette
from gpulab.figures._style import (
    AXIS,
    LabFigure,
    composed,
    frame,
    ink,
    linear_axis,
    linear_seconds_axis,
)
from gpulab.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from gpulab.models import StagePass, StageSchedule
    from gpulab.parallel import RankSpan, RankTimeline, ScheduleRun

_MARGIN = 150  # pixels of title, axis and legend
_LEGEND = 40  # more of it where all kinds of bars are there
_RANK_ROW, _STAGE_ROW = 58, 30
_BESIDE = 0.83  # where a rank's messages lie under its thread, with rows two apart
_LEAST_ROW = 14  # of many stages
_TALLEST = 620
_NAMED = 0.0125  # of the picture's width that a bar needs for each letter of a word
_NUMBERED = 0.014
_THIN = 0.006  # bars narrower than this share would be all edge
# What a bar is: its colour, its pattern and the ink that is read on it. The patterns alone tell
# them apart.
_KINDS: dict[str, tuple[str, str, str]] = {
    "forward": (palette.BLUE, "", "#FFFFFF"),
    "backward": (palette.BLUISH_GREEN, "/", "#000000"),
    "other compute": (palette.ORANGE, ".", "#000000"),
    "communication": (palette.REDDISH_PURPLE, "\\", "#000000"),
    "idle": (palette.GREY, "x", "#000000"),
}
_WORDS = {"idle": "waits", "other compute": "optimizer and the rest"}
# several are on their way at once, so their words would lie on one another
_CROWDED = ("send", "recv")
_WAIT = "rgba(127,127,127,0.25)"
_CLEAR = "rgba(0,0,0,0)"


def rank_timeline(t: RankTimeline, steps: int = 2) -> LabFigure:
    """Return the lanes of each rank in a real run: what its main thread did, and its communication.

    Parameters
    ----------
    t : RankTimeline
        From ``gl.parallel.train(...).timeline`` or ``gl.parallel.run_schedule(...).timeline``.
    steps : int
        How many of its first steps are drawn; the table covers all of them.
    """
    begin = t.steps[0] if t.steps else 0.0
    end = t.steps[steps] if steps < len(t.steps) else t.end_seconds
    spans = [span for span in t.spans if span.end_seconds > begin and span.begin_seconds < end]
    messages = any(span.kind == "communication" for span in t.spans)
    pitch = 2.0 if messages else 1.1
    rows = {rank: pitch * rank for rank in range(t.ranks)}  # from the top: y grows downwards
    low = pitch * (t.ranks - 1) + (1.3 if messages else 0.6)
    shown = min(max(1, len(t.steps)), steps)
    title = f"{t.label}: work and waiting, {f'{shown} steps' if shown > 1 else 'one step'}"
    base = frame(
        title,
        t.evidence,
        _words_of(t),
        height=_MARGIN
        + round((_LEGEND + _RANK_ROW * t.ranks) if messages else _STAGE_ROW * t.ranks),
    )
    traces = []
    for kind in _KINDS:
        bars = [span for span in spans if _kind_of(span) == kind]
        if bars:
            traces.append(_rank_bars(kind, bars, rows, begin, end, t.evidence.badge))
    ticks = [(y, f"rank {rank}") for rank, y in rows.items()]
    if messages:
        ticks += [(y + _BESIDE, "messages") for y in rows.values()]
    axis = {**base.layout.xaxis.to_plotly_json(), **linear_seconds_axis(end - begin, "time")}
    yaxis = {**base.layout.yaxis.to_plotly_json(), **_rows_axis(ticks, -0.6, low)}
    later = [moment - begin for moment in t.steps[1:] if begin < moment < end]
    lines = [
        {
            "type": "line",
            "x0": x,
            "x1": x,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": AXIS, "width": 1.5, "dash": "dash"},
        }
        for x in later
    ]
    names = [_beside(x, f"step {k}") for k, x in enumerate(later, start=2)]
    return composed(
        base,
        traces,
        xaxis=axis,
        yaxis=yaxis,
        barmode="overlay",
        shapes=lines,
        annotations=names,
        **_legend(base),
    )


def _kind_of(span: RankSpan) -> str:
    if span.kind != "compute":
        return span.kind
    word = span.name.split(" ")[0]
    return word if word in ("forward", "backward") else "other compute"


def _rank_bars(
    kind: str,
    bars: Sequence[RankSpan],
    rows: dict[int, float],
    begin: float,
    end: float,
    badge: Badge,
) -> dict[str, Any]:
    """Return one kind of bars of all ranks; messages have a narrower lane under the thread's."""
    beside = _BESIDE if kind == "communication" else 0.0
    ends = [
        (max(bar.begin_seconds, begin) - begin, min(bar.end_seconds, end) - begin) for bar in bars
    ]
    whole = end - begin
    return {
        **_bar(kind, badge, 0.66 if beside else 0.9),
        "y": [rows[bar.rank] + beside for bar in bars],
        "x": [b - a for a, b in ends],
        "base": [a for a, _ in ends],
        "text": [
            ""
            if bar.kind == "idle" or bar.name in _CROWDED
            else _text(kind, badge, bar.name, (b - a) / whole)
            for bar, (a, b) in zip(bars, ends, strict=True)
        ],
        "customdata": [_told(bar) for bar in bars],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _told(bar: RankSpan) -> str:
    what = f"waits for {bar.name}" if bar.kind == "idle" else bar.name
    size = f" of {format_bytes(bar.nbytes)}" if bar.nbytes else ""
    return f"rank {bar.rank}: {what}{size}, {format_seconds(bar.seconds)}"


def _words_of(t: RankTimeline) -> str:
    """Return each rank's shares in words."""
    parts = []
    for rank in range(t.ranks):
        seconds = t.seconds(rank)
        shares = (
            ", ".join(f"{kind} {seconds[kind] / t.end_seconds:.0%}" for kind in seconds)
            if t.end_seconds > 0
            else "nothing"
        )
        parts.append(f"rank {rank}: {shares}")
    return f"{t.label}, {format_seconds(t.end_seconds)}: {'; '.join(parts)}."


def pipeline_schedule(
    s: StageSchedule | ScheduleRun, measured: ScheduleRun | None = None, unit: str = ""
) -> LabFigure:
    """Return when each stage runs each pass: the timetable of a pipeline, a measured run, or both
    on one scale.

    Parameters
    ----------
    s : StageSchedule or ScheduleRun
        From ``gl.models.pipeline_schedule`` or ``gl.parallel.run_schedule``; for a run alone, its
        timetable is drawn above it.
    measured : ScheduleRun, optional
        Drawn below the timetable; the costs of ``s`` are then in seconds.
    unit : str
        Of the costs of ``s`` where there is no run, such as "ms".
    """
    run = measured if measured is not None else (s if hasattr(s, "bubble_ratios") else None)
    model: Any = getattr(s, "model", s)
    halves: list[tuple[Any, Evidence]] = [(model, model.evidence)] + (
        [(run, run.evidence)] if run is not None else []
    )
    whole = max(max(one.end for one in half.passes) for half, _ in halves)
    count = sum(half.stages for half, _ in halves)
    row = min(_STAGE_ROW, max(_LEAST_ROW, _TALLEST // count))
    formula = model.bubble_formula_ratio
    title = f"{_named(model)}: bubble {model.bubble_ratio:.1%}" + (
        f", measured {run.bubble_ratio:.1%}" if run is not None else ""
    )
    words = " ".join(_stages_in_words(half) for half, _ in halves) + (
        f" The formula gives {formula:.1%}." if formula is not None else ""
    )
    base = frame(
        title,
        [evidence for _, evidence in halves],
        words,
        height=_MARGIN + 8 + row * count + 16 * (len(halves) - 1),
    )
    plain = base.layout.yaxis.to_plotly_json()
    traces: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    gap = 0.04 if len(halves) > 1 else 0.0
    top = 1.0
    for number, (half, evidence) in enumerate(halves, start=1):
        end = "" if number == 1 else str(number)
        height = half.stages / count * (1 - gap * (len(halves) - 1))
        traces += [
            {**trace, "yaxis": f"y{end}"} for trace in _stage_bars(half, evidence.badge, whole)
        ]
        ticks = [
            (float(stage), f"stage {stage}, holds {held:g}") for stage, held in enumerate(half.held)
        ]
        rows = _rows_axis(ticks, -0.6, half.stages - 0.4)
        axes[f"yaxis{end}"] = {
            **plain,
            **rows,
            "domain": [max(0.0, top - height), top],
            "anchor": "x" if number == len(halves) else "free",
            "position": 0,
            "tickfont": {"size": 12 if row > 16 else 10},
        }
        top -= height + gap
    words = f"time ({unit})" if unit else "time, in the unit of the costs"
    scale = (
        linear_axis(whole, words, "{:g}".format)
        if run is None
        else linear_seconds_axis(whole, "time since the step began")
    )
    anchor = f"y{len(halves)}" if len(halves) > 1 else "y"
    axis = {
        **base.layout.xaxis.to_plotly_json(),
        **scale,
        "range": [0, whole * 1.005],
        "anchor": anchor,
    }
    return composed(base, traces, xaxis=axis, **axes, barmode="overlay", **_legend(base))


def _named(model: StageSchedule) -> str:
    name = {
        "split": "split by hand",
        "gpipe": "GPipe",
        "1f1b": "1F1B",
        "interleaved": "interleaved 1F1B",
    }[model.schedule]
    return (
        f"{name}, {model.stages} stages, {model.microbatches} "
        f"microbatch{'es' if model.microbatches > 1 else ''}"
    )


def _stages_in_words(half: StageSchedule | ScheduleRun) -> str:
    told = "Measured" if hasattr(half, "bubble_ratios") else "In the timetable"
    return (
        f"{told}: the stages wait {half.bubble_ratio:.1%} of the time and hold at most "
        f"{max(half.held):g} microbatches' activations."
    )


def _stage_bars(
    half: StageSchedule | ScheduleRun, badge: Badge, whole: float
) -> list[dict[str, Any]]:
    """Return the waiting behind, then the forwards and the backwards."""
    long = max(one.end for one in half.passes)
    gaps = list(_gaps(half.passes, half.stages, long))
    waits = {
        **_bar("idle", badge, 0.84),
        "y": [stage for stage, _, _ in gaps],
        "base": [begin for _, begin, _ in gaps],
        "x": [end - begin for _, begin, end in gaps],
        "hoverinfo": "skip",
    }
    traces = [waits] if gaps else []
    for kind in ("forward", "backward"):
        bars = [one for one in half.passes if one.kind == kind]
        width = {id(one): one.duration / whole for one in bars}
        traces.append(
            {
                **_bar(kind, badge, 0.84, min(width.values())),
                "y": [one.stage for one in bars],
                "base": [one.begin for one in bars],
                "x": [one.duration for one in bars],
                "text": [
                    _text(kind, badge, f"{kind} {one.name[1:]}", width[id(one)]) for one in bars
                ],
                "customdata": [f"stage {one.stage}: {_pass_in_words(one)}" for one in bars],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return traces


def _pass_in_words(one: StagePass) -> str:
    what = (
        f"{one.kind} of {f'microbatch {one.microbatch}' if one.count == 1 else 'the whole batch'}"
    )
    return f"{what}{f', part {one.chunk}' if one.chunk else ''}: {one.begin:.4g} to {one.end:.4g}"


def _gaps(
    passes: Iterable[StagePass], stages: int, end: float
) -> Iterable[tuple[int, float, float]]:
    """Return when each stage has no pass."""
    free = [0.0] * stages
    for one in sorted(passes, key=lambda one: one.begin):
        if one.begin > free[one.stage] + 1e-9 * end:
            yield one.stage, free[one.stage], one.begin
        free[one.stage] = one.end
    for stage in range(stages):
        if free[stage] < end * (1 - 1e-9):
            yield stage, free[stage], end


# -- what both share
# -------------------------------------------------------------------------------------------------


def _bar(kind: str, badge: Badge, height: float, width: float = 1.0) -> dict[str, Any]:
    """Return the look of a kind of bars: measured is filled, modelled and recorded are hollow; each
    has its pattern.

    ``width`` is the share of the picture's width that the narrowest of them has: many narrow ones
    have thin edges.
    """
    color, shape, _ = _KINDS[kind]
    hollow = badge is not Badge.MEASURED
    if kind == "idle":
        ground = _CLEAR if hollow else _WAIT
        cross = {"shape": shape, "size": 6, "fgcolor": color, "fgopacity": 0.45, "bgcolor": ground}
        marker = {"color": ground, "pattern": cross, "line": {"width": 0}}
    else:
        ground = _faint(color) if hollow else color
        lines = {
            "shape": shape,
            "size": 8,
            "solidity": 0.12,
            "fgcolor": color if hollow else "#FFFFFF",
            "fgopacity": 0.6,
            "bgcolor": ground,
        }
        edge = (
            {"color": color, "width": 1.3}
            if hollow
            else {"color": "rgba(255,255,255,0.9)", "width": 0.7}
        )
        marker = {
            "color": ground,
            "pattern": lines,
            "line": edge if width > _THIN else {"width": 0.4, "color": edge["color"]},
        }
    return {
        "type": "bar",
        "orientation": "h",
        "name": ink(f"{_WORDS.get(kind, kind)} ({badge.value.lower()})"),
        "width": height,
        "marker": marker,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": 11},
        "constraintext": "none",
    }


def _faint(color: str) -> str:
    """Return a breath of the colour, for what is not measured."""
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.10)"


def _text(kind: str, badge: Badge, name: str, width: float) -> str:
    """Return what is written on a bar of this share of the width: its word, its number, or
    nothing.
    """
    word, _, number = name.partition(" ")
    short = word[0].upper() if kind in ("forward", "backward") else ""
    text = number or (word if width > _NAMED * len(word) else short)
    if width < _NUMBERED * (1 + 0.4 * max(0, len(text) - 1)) or not text:
        return ""
    color = _KINDS[kind][2]
    return ink(text) if badge is not Badge.MEASURED else f'<span style="fill:{color}">{text}</span>'


def _rows_axis(ticks: Sequence[tuple[float, str]], high: float, low: float) -> dict[str, Any]:
    return {
        "type": "linear",
        "tickmode": "array",
        "tickvals": [y for y, _ in ticks],
        "ticktext": [ink(text) for _, text in ticks],
        "tickprefix": "",
        "ticksuffix": "",
        "showgrid": False,
        "range": [low, high],
        "ticks": "",
    }


def _beside(x: float, text: str) -> dict[str, Any]:
    return {
        "x": x,
        "xref": "x",
        "y": 1,
        "yref": "paper",
        "text": ink(text),
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": 3,
    }


def _legend(base: LabFigure) -> dict[str, Any]:
    legend = {**base.layout.legend.to_plotly_json(), "traceorder": "normal"}
    margin = {**base.layout.margin.to_plotly_json(), "b": 88}
    return {"showlegend": True, "legend": legend, "margin": margin}
