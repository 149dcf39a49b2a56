"""Compressed models as points: accuracy over file size and over time; a line joins the models on
the Pareto front.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import MID_GREY, LabFigure, bytes_axis, composed, count_axis, frame, ink
from gpulab.units import format_bytes, format_ratio

if TYPE_CHECKING:
    from gpulab.compression import WeighedModel, Weighing

_HEIGHT = 420
# Two points nearer than a digit is wide would have their numbers on each other.
_NEAR_X, _NEAR_Y = 1.06, 0.008
_LEFT, _RIGHT = (0.0, 0.46), (0.56, 1.0)  # shares of the width


def diet(w: Weighing) -> LabFigure:
    """Return the models as numbered points, in the order of the table: accuracy over bytes on the
    left, over time on the right.

    Parameters
    ----------
    w : Weighing
        With accuracies; a model without one is left out. Times are relative to the first model;
        each model was measured in turn with it.

    Notes
    -----
    Bars are 95 % intervals: of the accuracy over test items (and seeds), of the time over calls.
    """
    points = [
        (number, each) for number, each in enumerate(w.models, start=1) if each.accuracy is not None
    ]
    color = palette.device_color(w.environment.device_kind)
    small_front = [each for _, each in points if each.label in w.front_of(time=False)]
    fast_front = [each for _, each in points if each.label in w.front_of(size=False)]
    traces = [
        _line(sorted(small_front, key=lambda m: m.file_bytes), lambda m: m.file_bytes, "x"),
        _points(points, color, lambda m: m.file_bytes, None, "x", showlegend=True),
        _line(sorted(fast_front, key=_time), _time, "x2"),
        _points(points, color, _time, _time_ends, "x2", showlegend=False),
    ]
    base = frame(
        f"{w.task}: accuracy, size and time of compressed models",
        w.evidence,
        _describe(w, points),
        _HEIGHT,
    )
    axis = base.layout.to_plotly_json()["yaxis"]
    ends = [end for _, m in points for end in m.accuracy_interval or (0.0, 1.0)]
    low, high = min([*ends, 0.9]), 1.0
    right = {
        **axis,
        "range": [100 * (low - 0.05 * (high - low)), 100 * (high + 0.05 * (high - low))],
        "title": {"text": ink("accuracy on the test set (%)")},
    }
    times = [end for _, m in points for end in (_time_ends(m) or (_time(m),))]
    plain = base.layout.to_plotly_json()["xaxis"]
    small = {
        **plain,
        **bytes_axis([float(m.file_bytes) for _, m in points], "file size (log scale)"),
        "domain": _LEFT,
    }
    fast = {
        **plain,
        **count_axis(times, "time / time of the first model (log scale)"),
        "domain": _RIGHT,
        "anchor": "y2",
    }
    beside = {
        **right,
        "matches": "y",
        "anchor": "x2",
        "showticklabels": True,
        "title": {"text": ""},
    }
    one = {"type": "line", "x0": 1, "x1": 1, "xref": "x2", "y0": 0, "y1": 1, "yref": "y2 domain"}
    return composed(
        base,
        traces,
        xaxis=small,
        xaxis2=fast,
        yaxis=right,
        yaxis2=beside,
        shapes=[{**one, "line": {"color": MID_GREY, "width": 1.5, "dash": "dash"}}],
    )


def _time(m: WeighedModel) -> float:
    return 1.0 if m.speedup is None else 1.0 / m.speedup


def _time_ends(m: WeighedModel) -> tuple[float, float] | None:
    return (
        None
        if m.speedup_interval is None
        else (1.0 / m.speedup_interval[1], 1.0 / m.speedup_interval[0])
    )


def _line(
    models: Sequence[WeighedModel], place: Callable[[Any], float], axis: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [place(m) for m in models],
        "y": [100 * (m.accuracy or 0.0) for m in models],
        "line": {"color": palette.GREY, "width": 1.5, "dash": "dot"},
        "name": ink("Pareto front"),
        "hoverinfo": "skip",
        "xaxis": axis,
        "yaxis": axis.replace("x", "y"),
        "showlegend": axis == "x",
    }


def _points(
    points: Sequence[tuple[int, WeighedModel]],
    color: str,
    place: Callable[[Any], float],
    ends: Callable[[Any], tuple[float, float] | None] | None,
    axis: str,
    showlegend: bool,
) -> dict[str, Any]:
    shares = [(m.accuracy or 0.0, m.accuracy_interval or (0.0, 1.0)) for _, m in points]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [100 * (high - y) for y, (_, high) in shares],
        "color": color,
        "arrayminus": [100 * (y - low) for y, (low, _) in shares],
        "thickness": 1,
        "width": 3,
    }
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [place(m) for _, m in points],
        "y": [100 * y for y, _ in shares],
        "error_y": bars,
        "marker": palette.marker(Badge.MEASURED, color, size=9),
        "text": _numbers(points, place),
        "textposition": "top right",
        "textfont": {"size": 12},
        "cliponaxis": False,
        "name": ink("a model, numbered as in the table"),
        "xaxis": axis,
        "yaxis": axis.replace("x", "y"),
        "showlegend": showlegend,
        "customdata": [_words(m) for _, m in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    if ends is not None:
        pairs = [(place(m), ends(m) or (place(m), place(m))) for _, m in points]
        trace["error_x"] = {
            **bars,
            "array": [high - x for x, (_, high) in pairs],
            "arrayminus": [x - low for x, (low, _) in pairs],
        }
    return trace


def _numbers(
    points: Sequence[tuple[int, WeighedModel]], place: Callable[[Any], float]
) -> list[str]:
    """Return each point's number; of points that lie on each other the first has the numbers of
    all.
    """
    said: list[list[int]] = []
    for index, (number, m) in enumerate(points):
        near = (
            k
            for k, (_, other) in enumerate(points[:index])
            if said[k] and _on_each_other(m, other, place)
        )
        first = next(near, None)
        said.append([] if first is not None else [number])
        if first is not None:
            said[first].append(number)
    return [ink(", ".join(map(str, each))) for each in said]


def _on_each_other(one: WeighedModel, other: WeighedModel, place: Callable[[Any], float]) -> bool:
    near = 1 / _NEAR_X < place(one) / place(other) < _NEAR_X
    return near and abs((one.accuracy or 0.0) - (other.accuracy or 0.0)) < _NEAR_Y


def _words(m: WeighedModel) -> str:
    low, high = m.accuracy_interval or (0.0, 1.0)
    fast = "reference" if m.speedup is None else f"a speed-up of {format_ratio(m.speedup)}"
    right = (
        f"{100 * (m.accuracy or 0.0):.1f} % accuracy (95 %: {100 * low:.1f} to {100 * high:.1f})"
    )
    return f"{m.label}: {format_bytes(m.file_bytes)}, {fast}, {right}"


def _describe(w: Weighing, points: Sequence[tuple[int, WeighedModel]]) -> str:
    said = " ".join(f"{number}: {_words(m)}." for number, m in points)
    front = ", ".join(w.front)
    return (
        f"Accuracy of {len(points)} models on {w.task} over file size and time on {w.device}. "
        f"{said} Pareto front: {front}."
    )
