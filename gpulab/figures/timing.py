"""Figures of measurements and comparisons: three times side by side, each with its evidence."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    AXIS,
    LabFigure,
    ink,
    interval_bars,
    linear_axis,
    log_axis,
    note,
    picture,
    round_step,
    ticks,
)
from gpulab.units import format_ratio, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.timing import Comparison, ComparisonRow, Measurement

# A sample this many times the median would press all others into one line on a linear axis.
_LOG_FROM = 4.0
# The three times: what each is, where a measurement has it, and one shape for each in every
# picture. The offset keeps marks apart where the times are nearly equal, as on a CPU.
_TIMES = (
    ("call returned", "launch_seconds", "line-ns", -0.2),
    ("device finished", "median_seconds", "circle", 0.0),
    ("with both copies", "with_transfer_seconds", "diamond", 0.2),
)


def comparison(c: Comparison, recorded: Sequence[ComparisonRow] = ()) -> LabFigure:
    """Return the times of each device on one logarithmic axis, with intervals and speed-ups.

    Parameters
    ----------
    c : Comparison
        What was compared; the first row is the baseline.
    recorded : sequence of ComparisonRow
        The same work as named machines recorded it; drawn hollow, below the live rows.
    """
    rows = [*c.rows, *recorded]
    # the shapes once in the legend, in gray: color is the device's
    traces: list[dict[str, Any]] = [
        {
            "x": [None],
            "y": [None],
            "mode": "markers",
            "name": ink(what + (" (median, 95 % interval)" if symbol == "circle" else "")),
            "marker": palette.marker(Badge.MEASURED, palette.GREY, symbol),
        }
        for what, _, symbol, _ in _TIMES
    ]
    times: list[float | None] = []
    notes, beside = [], {"xref": "paper", "xanchor": "left", "xshift": 8, "align": "left"}
    for place, row in enumerate(rows):
        m = row.measurement
        traces += _row(place, m)
        times += [getattr(m, field) for _, field, *_ in _TIMES] + [*(m.interval_seconds or ())]
        if row.speedup is not None:
            notes.append(note(_speedup(row), 1, place, yref="y", yanchor="middle", **beside))
    if notes:
        notes.append(note("speed-up", 1, 1, yref="paper", yanchor="bottom", **beside))
    return picture(
        c.label,
        [row.measurement.evidence for row in rows],
        f"{c.label}, time per call on each device. {'; '.join(map(_row_words, rows))}.",
        traces,
        {"type": "scatter"},
        height=190 + 54 * len(rows),
        xaxis=log_axis("seconds", times, "time per call (log scale)"),
        yaxis={
            **ticks(range(len(rows)), map(_row_name, rows)),
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
        },
        annotations=notes,
        margin={"r": 150 if notes else 24},
    )


def _row(place: int, m: Measurement) -> list[dict[str, Any]]:
    """Return the times of one device, with a line through them."""
    color = palette.device_color(m.device)
    there = [
        (what, seconds, symbol, offset)
        for what, field, symbol, offset in _TIMES
        if (seconds := getattr(m, field)) is not None and seconds > 0
    ]
    line: dict[str, Any] = {
        "x": [seconds for _, seconds, *_ in there],
        "y": [place] * len(there),
        "mode": "lines",
        "line": {"color": AXIS, "width": 1},
        "hoverinfo": "skip",
    }
    marks = [
        {
            "x": [seconds],
            "y": [place + offset],
            "mode": "markers",
            "marker": palette.marker(m.evidence.badge, color, symbol, 14 if offset < 0 else 11),
            "error_x": interval_bars([seconds], [m.interval_seconds], color, 2, 7)
            if symbol == "circle" and m.interval_seconds is not None
            else None,
            "hovertemplate": f"{what}: {format_seconds(seconds)}<extra></extra>",
        }
        for what, seconds, symbol, offset in there
    ]
    return [{**trace, "showlegend": False} for trace in (line, *marks)]


def _row_name(row: ComparisonRow) -> str:
    """Return the name in at most two short lines, and the evidence under it."""
    lines = textwrap.wrap(row.name, 27, break_long_words=False, break_on_hyphens=False) or [""]
    kept = lines if len(lines) <= 2 else [lines[0], lines[1][:25] + "…"]
    return "<br>".join([*kept, row.measurement.evidence.badge.value.lower()])


def _speedup(row: ComparisonRow) -> str:
    ratio = format_ratio(row.speedup or 0.0)
    if row.speedup_interval is None:
        return ratio
    return f"{ratio} [{', '.join(map(format_ratio, row.speedup_interval))}]"


def _row_words(row: ComparisonRow) -> str:
    m = row.measurement
    text = (
        f"{row.name} ({m.evidence.badge.value.lower()}): finished after "
        f"{format_seconds(m.median_seconds)}, returned after {format_seconds(m.launch_seconds)}"
    )
    if m.with_transfer_seconds is not None:
        text += f", with copies {format_seconds(m.with_transfer_seconds)}"
    return text if row.speedup is None else f"{text}, speed-up {_speedup(row)}"


def measurement(m: Measurement) -> LabFigure:
    """Return the samples in the order they were taken, with the median and its 95 % interval."""
    samples = np.asarray(m.samples_seconds, dtype=float)
    badge, color = m.evidence.badge, palette.device_color(m.device)
    across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
    middle = {"y0": m.median_seconds, "y1": m.median_seconds, "line": palette.line(badge, color)}
    shapes: list[dict[str, Any]] = [{"type": "line", **across, **middle}]
    interval = "no valid interval"
    if m.interval_seconds is not None:
        low, high = m.interval_seconds
        interval = f"95 % interval {format_seconds(low)} to {format_seconds(high)}"
        band = {"fillcolor": color, "opacity": 0.18, "line": {"width": 0}}
        shapes.insert(0, {"type": "rect", **across, "y0": low, "y1": high, **band})
    words = f"median {format_seconds(m.median_seconds)}, {interval}"
    count = plural(samples.size, "sample")
    marks = {
        "type": "scatter",
        "x": np.arange(1, samples.size + 1),
        "y": samples,
        "mode": "markers",
        "marker": palette.marker(badge, color, size=6),
        "showlegend": False,
        # without a format the axis' ink would come with it
        "hovertemplate": "sample %{x:d}: %{y:.3s}s<extra></extra>",
    }
    spread = samples[np.isfinite(samples) & (samples > 0)]
    wide = bool(spread.size) and spread.max() > _LOG_FROM * np.median(spread)
    place = {"xref": "paper", "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
    return picture(
        f"{m.label}: each sample",
        m.evidence,
        f"{m.label} on {m.device}: {count} in the order taken, {words}.",
        [marks],
        xaxis={"title": {"text": ink("sample")}},
        yaxis=log_axis("seconds", spread.tolist(), "time per call (log scale)")
        if wide
        else _linear_seconds(samples, m.median_seconds),
        shapes=shapes,
        annotations=[note(words, 1, 1, **place)],
    )


def _linear_seconds(samples: np.ndarray, median: float) -> dict[str, Any]:
    """Return an axis from the smallest to the largest sample, in a unit that suits the median."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    scale, unit = next(((s, u) for s, u in units if median >= s), (1e-9, "ns"))
    finite = samples[np.isfinite(samples)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    margin = 0.08 * (high - low) or 0.05 * high or 1e-9
    low, high = low - margin, high + margin
    decimals = max(0, min(6, math.ceil(-math.log10(round_step((high - low) / 5) / scale) - 1e-9)))
    axis = linear_axis(high, f"time per call ({unit})", lambda t: f"{t / scale:.{decimals}f}", low)
    return {**axis, "range": [low, high]}
