"""Figures of several ranks: a real run, the stages of a pipeline, and the speed-up."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    AXIS,
    INSIDE,
    LabFigure,
    Part,
    cut,
    describe,
    extent,
    faded,
    interval_bars,
    linear_axis,
    linear_seconds_axis,
    log_axis,
    note,
    on_bar,
    picture,
    ticks,
    trace,
    upright,
)
from gpulab.units import format_bytes, format_ratio, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.models import ScalingCurve, ScalingPoint, StagePass, StageSchedule
    from gpulab.parallel.rank_results import (
        RankSpan,
        RankTimeline,
        ScalingMeasurement,
        ScalingResult,
        ScheduleRun,
    )

# Pixels of title, axis and legend, which has a row for each kind of bar where the page is narrow
_MARGIN = 210
_RANK_ROW, _STAGE_ROW = 58, 30
_BESIDE = 0.83  # distance of a rank's messages below its thread; ranks are two apart
_LEAST_ROW = 14  # pixels of a row where there are many stages
_TALLEST = 620
_NAMED = 0.0125  # of the picture's width that a bar needs for each letter of a word
_NUMBERED = 0.014
_THIN = 0.006  # bars narrower than this share would be all edge
# The kinds of bars: color, pattern, and words in the legend. The patterns alone distinguish them.
_KINDS = {
    "forward": (palette.BLUE, "", "forward"),
    "backward": (palette.BLUISH_GREEN, "/", "backward"),
    "other compute": (palette.ORANGE, ".", "optimizer and the rest"),
    "communication": (palette.REDDISH_PURPLE, "\\", "communication"),
    "idle": (palette.GREY, "x", "waits"),
}
# several of these are in flight at once, so names on their bars would overlap
_CROWDED = ("send", "recv")
_WAIT = "rgba(127,127,127,0.25)"
_CLEAR = "rgba(0,0,0,0)"
_SCHEDULES = {
    "split": "split by hand",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
}
_LAYOUT: Part = {
    "barmode": "overlay",
    "showlegend": True,
    "legend": {"traceorder": "normal"},
    "margin": {"b": 88},
}


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
    # with messages a rank has two lanes
    messages = any(span.kind == "communication" for span in t.spans)
    pitch, height, low = (2.0, _RANK_ROW, 1.3) if messages else (1.1, _STAGE_ROW, 0.6)
    heights = [pitch * rank for rank in range(t.ranks)]  # from the top: y grows downwards
    names = [f"rank {rank}" for rank in range(t.ranks)]
    at = [*heights, *(y + _BESIDE for y in heights)] if messages else heights
    drawn = min(max(1, len(t.steps)), steps)
    later = [moment - begin for moment in t.steps[1:] if begin < moment < end]
    return picture(
        f"{t.label}: work and waiting, {f'{drawn} steps' if drawn > 1 else 'one step'}",
        t.evidence,
        _shares_in_words(t),
        [
            _rank_bars(kind, bars, pitch, begin, end, t.evidence.badge)
            for kind in _KINDS
            if (bars := [span for span in spans if _kind_of(span) == kind])
        ],
        height=_MARGIN + height * t.ranks,
        xaxis=linear_seconds_axis(end - begin, "time"),
        yaxis=_rows_axis(at, [*names, *["messages"] * t.ranks][: len(at)], heights[-1] + low),
        shapes=[upright(x, color=AXIS) for x in later],
        annotations=[
            note(f"step {k}", x, 1, "x paper left bottom", xshift=3)
            for k, x in enumerate(later, start=2)
        ],
        **_LAYOUT,
    )


def _kind_of(span: RankSpan) -> str:
    word = span.name.split(" ")[0] if span.kind == "compute" else span.kind
    return word if word in _KINDS else "other compute"


def _rank_bars(
    kind: str, bars: Sequence[RankSpan], pitch: float, begin: float, end: float, badge: Badge
) -> Part:
    """Return one kind of bars of all ranks; messages have a narrower lane, below the thread's."""
    beside = _BESIDE if kind == "communication" else 0.0
    ends = [
        (max(bar.begin_seconds, begin) - begin, min(bar.end_seconds, end) - begin) for bar in bars
    ]
    texts = [
        ""
        if kind == "idle" or bar.name in _CROWDED
        else _text(kind, badge, bar.name, (b - a) / (end - begin))
        for bar, (a, b) in zip(bars, ends, strict=True)
    ]
    return _bars(
        kind,
        badge,
        [pitch * bar.rank + beside for bar in bars],
        ends,
        (
            f"rank {bar.rank}: {'waits for ' if kind == 'idle' else ''}{bar.name}"
            f"{f' of {format_bytes(bar.nbytes)}' if bar.nbytes else ''}, "
            f"{format_seconds(bar.seconds)}"
            for bar in bars
        ),
        texts,
        height=0.66 if beside else 0.9,
    )


def _shares_in_words(t: RankTimeline) -> str:
    """Return the shares of each rank's time, as a sentence."""
    whole = t.end_seconds
    shares = (
        [f"{kind} {s / whole:.0%}" for kind, s in t.seconds(rank).items() if whole > 0]
        for rank in range(t.ranks)
    )
    parts = (f"rank {rank}: {', '.join(each) or 'nothing'}" for rank, each in enumerate(shares))
    return f"{t.label}, {format_seconds(whole)}: {'; '.join(parts)}."


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
    halves: list[Any] = [model] if run is None else [model, run]
    whole = max(one.end for half in halves for one in half.passes)
    count = sum(half.stages for half in halves)
    row = min(_STAGE_ROW, max(_LEAST_ROW, _TALLEST // count))
    title = (
        f"{_SCHEDULES[model.schedule]}, {plural(model.stages, 'stage')}, "
        f"{plural(model.microbatches, 'microbatch', 'microbatches')}: bubble "
        f"{model.bubble_ratio:.1%}"
    )
    if run is None:
        label = f"time ({unit})" if unit else "time, in the unit of the costs"
        scale = linear_axis(whole, label, "{:g}".format)
    else:
        title += f", measured {run.bubble_ratio:.1%}"
        scale = linear_seconds_axis(whole, "time since the step began")
    traces: list[Part] = []
    axes: Part = {}
    gap, top = 0.04 * (len(halves) - 1), 1.0
    for end, half in zip(("", "2"), halves, strict=False):
        low = top - half.stages / count * (1 - gap)
        bars = _stage_bars(half, half.evidence.badge, whole)
        traces += [{**each, "yaxis": f"y{end}"} for each in bars]
        names = [f"stage {stage}, holds {held:g}" for stage, held in enumerate(half.held)]
        axes[f"yaxis{end}"] = {
            **_rows_axis([float(stage) for stage in range(half.stages)], names, half.stages - 0.4),
            "domain": [max(0.0, low), top],
            "anchor": "x" if half is halves[-1] else "free",
            "position": 0,
            "tickfont": {"size": 12 if row > 16 else 10},
        }
        top = low - gap
    return picture(
        title,
        [half.evidence for half in halves],
        describe(*halves),
        traces,
        height=_MARGIN + 8 + row * count + 16 * (len(halves) - 1),
        xaxis={**scale, "range": [0, whole * 1.005], "anchor": "y" if run is None else "y2"},
        **axes,
        **_LAYOUT,
    )


def _stage_bars(half: StageSchedule | ScheduleRun, badge: Badge, whole: float) -> list[Part]:
    """Return the bars of a schedule: waiting first, which is drawn behind, then all passes."""
    gaps = sorted(_gaps(half.passes, half.stages), key=lambda gap: gap[2])
    waits = _bars("idle", badge, [stage for stage, *_ in gaps], [ends for _, *ends in gaps])
    passes = {
        kind: [one for one in half.passes if one.kind == kind] for kind in ("forward", "backward")
    }
    # All numbers have one size: the largest, from 0.64 of the usual one to all of it, at which the
    # longest number fits an average forward with room at its sides. Narrower bars have no number.
    room = _NUMBERED * (
        1 + 0.6 * max(0, *(len(one.name.replace("'", "")) - 2 for one in half.passes))
    )
    forwards = [one.duration / whole for one in passes["forward"]]
    size = min(1.0, max(0.64, 0.99 * sum(forwards) / len(forwards) / room))
    drawn = [
        _bars(
            kind,
            badge,
            [one.stage for one in bars],
            [(one.begin, one.end) for one in bars],
            map(_pass_in_words, bars),
            [
                _text(kind, badge, f"{kind} {one.name[1:]}", one.duration / whole / size)
                if one.duration / whole >= size * room
                else ""
                for one in bars
            ],
            width=min(one.duration for one in bars) / whole,
            letters=11 * size,
        )
        for kind, bars in passes.items()
    ]
    return [waits, *drawn] if gaps else drawn


def _pass_in_words(one: StagePass) -> str:
    what = f"microbatch {one.microbatch}" if one.count == 1 else "the whole batch"
    part = f", part {one.chunk}" if one.chunk else ""
    return f"stage {one.stage}: {one.kind} of {what}{part}: {one.begin:.4g} to {one.end:.4g}"


def _gaps(passes: Sequence[StagePass], stages: int) -> Iterable[tuple[int, float, float]]:
    """Yield (stage, begin, end) of each time in which a stage has no pass."""
    end = max(one.end for one in passes)
    for stage in range(stages):
        own = sorted((one.begin, one.end) for one in passes if one.stage == stage)
        for (_, free), (begin, _) in itertools.pairwise([(0.0, 0.0), *own, (end, end)]):
            if begin > free + 1e-9 * end:
                yield stage, free, begin


def _bars(
    kind: str,
    badge: Badge,
    rows: Sequence[float],
    ends: Sequence[Sequence[float]],
    mouse: Iterable[str] | None = None,
    texts: Sequence[str] | None = None,
    *,
    height: float = 0.84,
    width: float = 1.0,
    letters: float = 11,
) -> Part:
    """Return a kind of bars: measured is filled, modelled and recorded are hollow; each has its
    pattern.

    ``width`` is the narrowest bar's share of the picture's width: very narrow bars have thin edges.
    """
    color, shape, words = _KINDS[kind]
    hollow = badge is not Badge.MEASURED
    edge: Part
    if kind == "idle":
        ground, edge = _CLEAR if hollow else _WAIT, {"width": 0}
        pattern = {"size": 6, "fgcolor": color, "fgopacity": 0.45}
    else:
        ground = faded(color, "0.10") if hollow else color
        edge = {"color": color if hollow else "rgba(255,255,255,0.9)"}
        edge["width"] = 0.4 if width <= _THIN else 1.3 if hollow else 0.7
        lines = color if hollow else "#FFFFFF"
        pattern = {"size": 8, "solidity": 0.12, "fgcolor": lines, "fgopacity": 0.6}
    pattern |= {"shape": shape, "bgcolor": ground}
    return trace(
        "bars",
        [end - begin for begin, end in ends],
        rows,
        f"{words} ({badge.lower()})",
        mouse,
        base=[begin for begin, _ in ends],
        width=height,
        marker={"color": ground, "pattern": pattern, "line": edge},
        text=texts,
        textfont={"size": letters},
        **INSIDE,
        constraintext="none",
    )


def _text(kind: str, badge: Badge, name: str, width: float) -> str:
    """Return the text on a bar with this share of the picture's width: its number, its word, the
    word's first letter, or nothing.
    """
    word, _, number = name.partition(" ")
    short = word[0].upper() if kind in ("forward", "backward") else ""
    text = number or (word if width > _NAMED * len(word) else short)
    if width < _NUMBERED * (1 + 0.4 * max(0, len(text) - 1)) or not text:
        return ""
    return on_bar(text, badge, _KINDS[kind][0])


def _rows_axis(at: Sequence[float], names: Sequence[str], low: float) -> Part:
    """Return an axis of rows, the first on top, that ends at ``low``."""
    return {
        "type": "linear",
        **ticks(at, names),
        "showgrid": False,
        "range": [low, -0.6],
        "ticks": "",
    }


# Scaling over ranks.

Quantity = Literal["speedup", "efficiency", "seconds"]
_HEIGHT = 440
_ENTRY = 18  # pixels of one more entry of the legend
# Quantity -> the title, and the axis.
_QUANTITIES = {
    "speedup": ("Speed-up over ranks", "speed-up (log scale)"),
    "efficiency": ("Efficiency over ranks", "speed-up / ranks (%)"),
    "seconds": ("Time of a step over ranks", "time of a step (log scale)"),
}
# The dashes alone distinguish the laws: to a reader who sees no red or green, two of
# the colors are the same gray.
_LAWS = {
    "Amdahl": (palette.ORANGE, "dash"),
    "Gustafson": (palette.BLUISH_GREEN, "dashdot"),
    "ring all-reduce": (palette.REDDISH_PURPLE, "longdash"),
}
_LABEL = 45  # characters of a name in the legend


def scaling(
    measured: ScalingResult | Sequence[ScalingResult] = (),
    curves: Sequence[ScalingCurve] = (),
    quantity: Quantity = "speedup",
) -> LabFigure:
    """Return measured (or recorded) points with 95 % bars, the predictions for them, and model
    curves.

    Parameters
    ----------
    measured : ScalingResult or several
        Live ones are solid, recorded ones hollow; a prediction is the band between maximal overlap
        of communication and none.
    curves : sequence of ScalingCurve
        Dashed, each law in its own color; the point above which more ranks do not help is marked.
    quantity : str
        "speedup", "efficiency" (speed-up / ranks) or "seconds" (of a step).
    """
    results = list(measured) if isinstance(measured, Sequence) else [measured]
    everything: list[Any] = [*results, *curves]
    counts = [p.ranks for one in everything for p in one.points] or [1, 8]
    ends = [1, max(2, *counts)]
    ideal = trace(
        "lines",
        ends,
        [float(p) for p in ends] if quantity == "speedup" else [100.0, 100.0],
        "ideal speed-up",
        line={"color": palette.GREY, "width": 1.5, "dash": "dot"},
    )
    traces = [] if quantity == "seconds" else [ideal]
    traces += [each for curve in curves for each in _curve(curve, quantity)]
    several = len(results) > 1
    for number, result in enumerate(results):
        traces += _predicted(result, quantity, several)
        traces.append(_points(result, quantity, number, several))
    # Of several models only the last one's badge is shown, since it is the most complete model
    # (communication includes what the laws leave out); the table has the badges of all.
    modelled = [one.evidence for one in (*(r.prediction for r in results), *curves) if one]
    title, axis = _QUANTITIES[quantity]
    values = extent(traces)
    if quantity == "efficiency":
        top = max([105.0, *values]) * 1.02
        upward: Part = {"range": [0, top], "title": axis}
    else:
        upward = log_axis("seconds" if quantity == "seconds" else "count", values, axis)
    # ticks are powers of two, eight at most
    bits = max(2, *counts).bit_length()
    powers = [2**k for k in range(0, bits + 1, 1 + bits // 9)]
    return picture(
        title,
        [*(r.evidence for r in results), *modelled[-1:]],
        f"{title}. {describe(*everything)}",
        traces,
        height=_HEIGHT + _ENTRY * max(0, len(traces) - 4),
        xaxis=log_axis("count", [float(c) for c in counts], "ranks (log scale)", powers),
        yaxis=upward,
        legend={"traceorder": "normal"},
    )


def _value(point: ScalingPoint | ScalingMeasurement, quantity: Quantity) -> float | None:
    if quantity == "seconds":
        return float(getattr(point, "median_seconds", 0.0) or getattr(point, "seconds", 0.0))
    speedup = point.speedup
    return speedup if speedup is None or quantity == "speedup" else 100 * speedup / point.ranks


def _curve(curve: ScalingCurve, quantity: Quantity) -> list[Part]:
    """Return the curve, and the point above which more ranks do not help."""
    color, dash = _LAWS.get(curve.law, (palette.GREY, "dash"))
    best = [p for p in curve.points if p.ranks == curve.best_ranks][:1]
    line = {"line": {**palette.line(Badge.MODELLED, color), "dash": dash}}
    star = {"marker": palette.marker(Badge.MODELLED, color, "star", 13)}
    parts = [("lines", f"{curve.label} (modelled)", line, curve.points)]
    parts += [("markers", f"highest speed-up: {plural(p.ranks, 'rank')}", star, (p,)) for p in best]
    return [
        trace(
            mode,
            [p.ranks for p in points],
            [_value(p, quantity) for p in points],
            name,
            (_curve_words(curve, p) for p in points),
            **look,
        )
        for mode, name, look, points in parts
        if points
    ]


def _curve_words(curve: ScalingCurve, p: ScalingPoint) -> str:
    exposed = f", {format_seconds(p.exposed_seconds)} of it waiting for gradients"
    return (
        f"{curve.label}, {plural(p.ranks, 'rank')}: {format_ratio(p.speedup)}, "
        f"{100 * p.efficiency:.3g} %, step {format_seconds(p.seconds)}"
        f"{exposed if p.exposed_seconds else ''}"
    )


def _points(result: ScalingResult, quantity: Quantity, number: int, several: bool) -> Part:
    badge = result.evidence.badge
    color = palette.device_color(result.environment.device_kind)
    points = [p for p in result.points if _value(p, quantity) is not None]
    values = [_value(p, quantity) or 0.0 for p in points]
    whose = f"{cut(result.label, _LABEL)}, {result.mode}" if several else f"{result.mode} scaling"
    waited = f", compute {result.stage}" if result.stage != "computed" else ""
    symbol = ("circle", "square", "diamond", "triangle-up")[number % 4]
    return trace(
        "lines+markers",
        [p.ranks for p in points],
        values,
        f"{whose}{waited} ({badge.lower()})",
        (_point_words(p, badge) for p in points),
        error_y=interval_bars(values, (_ends(p, quantity) for p in points), color, width=4),
        cliponaxis=False,
        marker=palette.marker(badge, color, symbol, 10),
        line=palette.line(badge, color, 1.5),
    )


def _ends(p: ScalingMeasurement, quantity: Quantity) -> tuple[float, float] | None:
    if quantity == "efficiency" and p.efficiency_interval is not None:
        return 100 * p.efficiency_interval[0], 100 * p.efficiency_interval[1]
    spans = {"seconds": p.interval_seconds, "speedup": p.speedup_interval}
    return spans.get(quantity)


def _point_words(p: ScalingMeasurement, badge: Badge) -> str:
    ratio = "" if p.speedup is None else f", {format_ratio(p.speedup)}"
    span = p.speedup_interval and f" [{', '.join(map(format_ratio, p.speedup_interval))}]"
    step = format_seconds(p.median_seconds)
    return f"{plural(p.ranks, 'rank')}, {badge.lower()}: step {step}{ratio}{span or ''}"


def _predicted(result: ScalingResult, quantity: Quantity, several: bool) -> list[Part]:
    """Return the band between the two predictions of a measured result; one line where they are the
    same.
    """
    if result.prediction is None or result.overlapped is None:
        return []
    color = palette.device_color(result.environment.device_kind)
    whose = f" for {cut(result.label, _LABEL)}" if several else ""
    below, above = (
        [_value(p, quantity) for p in curve.points]
        for curve in (result.prediction, result.overlapped)
    )
    lines: list[tuple[Any, str, str, dict[str, str]]] = [(below, "no overlap", "dash", {})]
    if below != above:
        fill = {"fill": "tonexty", "fillcolor": "rgba(127,127,127,0.18)"}
        lines.append((above, "maximal overlap", "longdashdot", fill))
    return [
        trace(
            "lines",
            [p.ranks for p in result.prediction.points],
            y,
            f"predicted{whose}, {name} (modelled)",
            line={**palette.line(Badge.MODELLED, color, 1.5), "dash": dash},
            **fill,
        )
        for y, name, dash, fill in lines
    ]
