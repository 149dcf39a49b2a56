"""Figures of scaling: measured and recorded points with model curves, and accuracy over the global
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import LabFigure, composed, count_axis, frame, ink, seconds_axis
from gpulab.units import format_ratio, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.models import ScalingCurve, ScalingPoint
    from gpulab.parallel import ScalingMeasurement, ScalingResult

Quantity = Literal["speedup", "efficiency", "seconds"]
_HEIGHT = 440
_ENTRY = 18  # pixels of one more entry of the legend
_TITLES = {
    "speedup": "Speed-up over ranks",
    "efficiency": "Efficiency over ranks",
    "seconds": "Time of a step over ranks",
}
_AXES = {
    "speedup": "speed-up (log scale)",
    "efficiency": "speed-up / ranks (%)",
    "seconds": "time of a step (log scale)",
}
_LAWS = {
    "Amdahl": palette.ORANGE,
    "Gustafson": palette.BLUISH_GREEN,
    "ring all-reduce": palette.REDDISH_PURPLE,
}
_LABEL = 45  # characters of a name in the legend


def scaling(
    measured: ScalingResult | Sequence[ScalingResult] = (),
    curves: Sequence[ScalingCurve] = (),
    quantity: Quantity = "speedup",
) -> LabFigure:
    """Return measured (or recorded) points with 95 % bars, what was predicted for them, and model
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
    counts = [p.ranks for r in results for p in r.points] + [
        p.ranks for c in curves for p in c.points
    ] or [1, 8]
    traces: list[dict[str, Any]] = []
    if quantity != "seconds":
        traces.append(_ideal(max(counts), quantity))
    for curve in curves:
        traces += _curve(curve, quantity)
    for number, result in enumerate(results):
        traces += [
            *_predicted(result, quantity, len(results) > 1),
            _points(result, quantity, number, len(results) > 1),
        ]
    # Of several models the last says most (communication counts everything that the laws leave
    # out); the table's badges have them all.
    modelled = [r.prediction.evidence for r in results if r.prediction] + [
        c.evidence for c in curves
    ]
    height = _HEIGHT + _ENTRY * max(0, len(traces) - 4)
    base = frame(
        _TITLES[quantity],
        [*(r.evidence for r in results), *modelled[-1:]],
        _describe(results, curves),
        height,
    )
    plain = base.layout.to_plotly_json()
    ends = [end for trace in traces for end in trace["y"] if end is not None]
    return composed(
        base,
        traces,
        xaxis={**plain["xaxis"], **_ranks_axis(counts)},
        yaxis={**plain["yaxis"], **_value_axis(ends, quantity)},
        legend={**plain["legend"], "traceorder": "normal"},
    )


def _ranks_axis(counts: Sequence[int], title: str = "ranks (log scale)") -> dict[str, Any]:
    """Return a logarithmic axis whose ticks are powers of two, eight at most."""
    top = max(2, *counts).bit_length()
    ticks = [2**k for k in range(0, top + 1, 1 + top // 9)]
    return {
        **count_axis([float(c) for c in counts], title),
        "tickvals": ticks,
        "ticktext": [ink(f"{t:,}") for t in ticks],
    }


def _value_axis(values: Sequence[float], quantity: Quantity) -> dict[str, Any]:
    if quantity == "seconds":
        return seconds_axis(values, _AXES[quantity])
    if quantity == "efficiency":
        return {"range": [0, max([105.0, *values]) * 1.02], "title": {"text": ink(_AXES[quantity])}}
    return count_axis(values, _AXES[quantity])


def _value(point: ScalingPoint | ScalingMeasurement, quantity: Quantity) -> float | None:
    if quantity == "seconds":
        return float(getattr(point, "median_seconds", 0.0) or getattr(point, "seconds", 0.0))
    speedup = point.speedup
    return speedup if speedup is None or quantity == "speedup" else 100 * speedup / point.ranks


def _ideal(top: int, quantity: Quantity) -> dict[str, Any]:
    x = [1, max(top, 2)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": [float(p) for p in x] if quantity == "speedup" else [100.0, 100.0],
        "line": {"color": palette.GREY, "width": 1.5, "dash": "dot"},
        "name": ink("ideal speed-up"),
        "hoverinfo": "skip",
    }


def _curve(curve: ScalingCurve, quantity: Quantity) -> list[dict[str, Any]]:
    color = _LAWS.get(curve.law, palette.GREY)
    line = palette.line(Badge.MODELLED, color)
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [p.ranks for p in curve.points],
            "y": [_value(p, quantity) for p in curve.points],
            "line": line,
            "name": ink(f"{curve.label} (modelled)"),
            "customdata": [_curve_words(curve, p) for p in curve.points],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
    ]
    best = next((p for p in curve.points if p.ranks == curve.best_ranks), None)
    if best is not None:
        words = f"more do not help: {plural(best.ranks, 'rank')}"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [best.ranks],
                "y": [_value(best, quantity)],
                "marker": palette.marker(Badge.MODELLED, color, "star", 13),
                "name": ink(words),
                "customdata": [_curve_words(curve, best)],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return traces


def _curve_words(curve: ScalingCurve, p: ScalingPoint) -> str:
    waited = (
        f", {format_seconds(p.exposed_seconds)} of it waiting for others"
        if p.exposed_seconds
        else ""
    )
    step = f"step {format_seconds(p.seconds)}{waited}"
    return (
        f"{curve.label}, {plural(p.ranks, 'rank')}: {format_ratio(p.speedup)}, "
        f"{100 * p.efficiency:.3g} %, {step}"
    )


def _points(
    result: ScalingResult, quantity: Quantity, number: int, several: bool
) -> dict[str, Any]:
    badge = result.evidence.badge
    color = palette.device_color(result.environment.device_kind)
    points = [p for p in result.points if _value(p, quantity) is not None]
    ends = [_ends(p, quantity) for p in points]
    values = [_value(p, quantity) or 0.0 for p in points]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [high - v for v, (_, high) in zip(values, ends, strict=True)],
        "arrayminus": [v - low for v, (low, _) in zip(values, ends, strict=True)],
        "color": color,
        "thickness": 1.5,
        "width": 4,
    }
    waited = f", compute {result.stage}" if result.stage != "computed" else ""
    whose = f"{_cut(result.label)}, {result.mode}" if several else f"{result.mode} scaling"
    name = f"{whose}{waited} ({badge.value.lower()})"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [p.ranks for p in points],
        "y": values,
        "error_y": bars,
        "cliponaxis": False,
        "marker": palette.marker(
            badge, color, ("circle", "square", "diamond", "triangle-up")[number % 4], 10
        ),
        "line": palette.line(badge, color, 1.5),
        "name": ink(name),
        "customdata": [_point_words(p, badge) for p in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 3]}..."


def _ends(p: ScalingMeasurement, quantity: Quantity) -> tuple[float, float]:
    value = _value(p, quantity) or 0.0
    if quantity == "seconds":
        return p.interval_seconds or (value, value)
    span = p.speedup_interval if quantity == "speedup" else p.efficiency_interval
    if span is None:
        return value, value
    return span if quantity == "speedup" else (100 * span[0], 100 * span[1])


def _point_words(p: ScalingMeasurement, badge: Badge) -> str:
    ratio = "" if p.speedup is None else f", {format_ratio(p.speedup)}"
    bars = (
        ""
        if p.speedup_interval is None
        else f" [{', '.join(map(format_ratio, p.speedup_interval))}]"
    )
    return (
        f"{plural(p.ranks, 'rank')}, {badge.value.lower()}: step "
        f"{format_seconds(p.median_seconds)}{ratio}{bars}"
    )


def _predicted(result: ScalingResult, quantity: Quantity, several: bool) -> list[dict[str, Any]]:
    """Return the band between the two predictions of a measured result; one line where they are the
    same.
    """
    if result.prediction is None or result.overlapped is None:
        return []
    color = palette.device_color(result.environment.device_kind)
    both = [
        [_value(p, quantity) for p in curve.points]
        for curve in (result.prediction, result.overlapped)
    ]
    x = [p.ranks for p in result.prediction.points]
    whose = f" for {_cut(result.label)}" if several else ""
    names = (
        f"predicted{whose}, no overlap (modelled)",
        f"predicted{whose}, maximal overlap (modelled)",
    )
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": y,
            "name": ink(name),
            "hoverinfo": "skip",
            "line": {**palette.line(Badge.MODELLED, color, 1.5), "dash": dash},
        }
        for name, y, dash in zip(
            names, both if both[0] != both[1] else both[:1], ("dash", "longdashdot"), strict=False
        )
    ]
    if len(traces) > 1:
        traces[1] |= {"fill": "tonexty", "fillcolor": "rgba(127,127,127,0.18)"}
    return traces


def _describe(results: Sequence[ScalingResult], curves: Sequence[ScalingCurve]) -> str:
    said = [
        f"{r.mode} scaling of {r.label}: "
        + "; ".join(_point_words(p, r.evidence.badge) for p in r.points)
        for r in results
    ]
    for c in curves:
        best = "" if c.best_ranks is None else f", best on {plural(c.best_ranks, 'rank')}"
        said.append(
            f"{c.label}, modelled: {format_ratio(c.speedup)} on "
            f"{plural(c.points[-1].ranks, 'rank')}{best}"
        )
    return "Scaling over ranks. " + ". ".join(said) + "."
