"""Figures of measurements and comparisons: three times side by side, each with its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import AXIS, LabFigure, frame, ink, linear_axis, round_step, seconds_axis
from gpulab.units import format_ratio, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.timing import Comparison, ComparisonRow, Measurement

# A sample this many times the median would press all others into one line on a linear axis.
_LOG_FROM = 4.0

# The three times of DESIGN: one shape each, in every picture.
# The offset keeps marks apart where the times are nearly equal, as on a CPU.
_RETURNED = ("call returned", "line-ns", -0.2)
_FINISHED = ("device finished", "circle", 0.0)
_COPIES = ("with both copies", "diamond", 0.2)


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
    evidence = [row.measurement.evidence for row in rows]
    figure = frame(
        c.label, evidence, _describe_comparison(c, recorded), height=190 + 54 * len(rows)
    )
    _legend(figure)
    for place, row in enumerate(rows):
        _add_times(figure, place, row.measurement)
        if row.speedup is not None:
            _beside(figure, place, "y", _speedup(row))
    if any(row.speedup is not None for row in rows):
        _beside(figure, 1, "paper", "speed-up", yanchor="bottom")
    times = [t for row in rows for t in _times(row.measurement)]
    figure.update_xaxes(**seconds_axis(times, "time per call (log scale)"))
    figure.update_yaxes(
        range=[len(rows) - 0.5, -0.5],
        tickmode="array",
        tickvals=list(range(len(rows))),
        ticktext=[ink(_row_name(row)) for row in rows],
        tickprefix="",
        ticksuffix="",
        showgrid=False,
    )
    figure.update_layout(margin_r=150 if any(row.speedup is not None for row in rows) else 24)
    return figure


def _beside(figure: LabFigure, y: float, yref: str, text: str, yanchor: str = "middle") -> None:
    """Write into the column at the right of the plot."""
    figure.add_annotation(
        x=1,
        xref="paper",
        xanchor="left",
        xshift=8,
        y=y,
        yref=yref,
        yanchor=yanchor,
        text=ink(text),
        align="left",
        showarrow=False,
    )


def measurement(m: Measurement) -> LabFigure:
    """Return the samples in the order they were taken, with the median and its 95 % interval."""
    samples = np.asarray(m.samples_seconds, dtype=float)
    interval = (
        "no valid interval"
        if m.interval_seconds is None
        else f"95 % interval {format_seconds(m.interval_seconds[0])} to "
        f"{format_seconds(m.interval_seconds[1])}"
    )
    count = plural(samples.size, "sample")
    words = (
        f"{m.label} on {m.device}: {count} in the order taken, median "
        f"{format_seconds(m.median_seconds)}, {interval}."
    )
    figure = frame(f"{m.label}: each sample", m.evidence, words)
    color = palette.device_color(m.device)
    index = np.arange(1, samples.size + 1)
    if m.interval_seconds is not None:
        low, high = m.interval_seconds
        figure.add_shape(
            type="rect",
            xref="paper",
            x0=0,
            x1=1,
            yref="y",
            y0=low,
            y1=high,
            fillcolor=color,
            opacity=0.18,
            line={"width": 0},
        )
    figure.add_shape(
        type="line",
        xref="paper",
        x0=0,
        x1=1,
        yref="y",
        y0=m.median_seconds,
        y1=m.median_seconds,
        line=palette.line(m.evidence.badge, color),
    )
    figure.add_scatter(
        x=index,
        y=samples,
        mode="markers",
        marker=palette.marker(m.evidence.badge, color, size=6),
        showlegend=False,
        # without a format the axis' ink would come with it
        hovertemplate="sample %{x:d}: %{y:.3s}s<extra></extra>",
    )
    figure.add_annotation(
        x=1,
        xref="paper",
        y=1,
        yref="paper",
        xanchor="right",
        yanchor="bottom",
        showarrow=False,
        text=ink(f"median {format_seconds(m.median_seconds)}, {interval}"),
    )
    scale, unit = next(
        (
            (s, u)
            for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
            if m.median_seconds >= s
        ),
        (1e-9, "ns"),
    )
    figure.update_xaxes(title={"text": ink("sample")})
    spread = samples[np.isfinite(samples) & (samples > 0)]
    if spread.size and spread.max() > _LOG_FROM * np.median(spread):
        figure.update_yaxes(**seconds_axis(spread.tolist(), "time per call (log scale)"))
    else:
        figure.update_yaxes(**_linear_seconds(samples, scale, unit))
    return figure


def _linear_seconds(samples: np.ndarray, scale: float, unit: str) -> dict[str, object]:
    finite = samples[np.isfinite(samples)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    margin = 0.08 * (high - low) or 0.05 * high or 1e-9
    low, high = low - margin, high + margin
    decimals = max(0, min(6, math.ceil(-math.log10(round_step((high - low) / 5) / scale) - 1e-9)))
    axis = linear_axis(high, f"time per call ({unit})", lambda t: f"{t / scale:.{decimals}f}", low)
    return {**axis, "range": [low, high]}


def _times(m: Measurement) -> list[float | None]:
    interval = m.interval_seconds or (None, None)
    return [m.launch_seconds, m.median_seconds, m.with_transfer_seconds, *interval]


def _add_times(figure: LabFigure, place: int, m: Measurement) -> None:
    color, badge = palette.device_color(m.device), m.evidence.badge
    shown = [
        (_RETURNED, m.launch_seconds),
        (_FINISHED, m.median_seconds),
        (_COPIES, m.with_transfer_seconds),
    ]
    there = [(what, seconds) for what, seconds in shown if seconds is not None and seconds > 0]
    figure.add_scatter(
        x=[s for _, s in there],
        y=[place] * len(there),
        mode="lines",
        line={"color": AXIS, "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )
    for (what, symbol, offset), seconds in there:
        bars = None
        if what == _FINISHED[0] and m.interval_seconds is not None:
            low, high = m.interval_seconds
            bars = {
                "type": "data",
                "symmetric": False,
                "array": [high - seconds],
                "arrayminus": [seconds - low],
                "color": color,
                "thickness": 2,
                "width": 7,
            }
        mark = palette.marker(badge, color, symbol, 14 if symbol == "line-ns" else 11)
        figure.add_scatter(
            x=[seconds],
            y=[place + offset],
            mode="markers",
            marker=mark,
            error_x=bars,
            showlegend=False,
            hovertemplate=f"{what}: {format_seconds(seconds)}<extra></extra>",
        )


def _legend(figure: LabFigure) -> None:
    """Add the shapes to the legend once, in grey: colour is the device's."""
    for what, symbol, _ in (_RETURNED, _FINISHED, _COPIES):
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=ink(what + (" (median, 95 % interval)" if what == _FINISHED[0] else "")),
            marker=palette.marker(Badge.MEASURED, palette.GREY, symbol),
        )


def _row_name(row: ComparisonRow) -> str:
    """Return the name in at most two short lines, and the evidence under it."""
    words, lines = row.name.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 26 and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    badge = row.measurement.evidence.badge
    kept = lines[:2] if len(lines) <= 2 else [lines[0], lines[1][:25] + "…"]
    return "<br>".join([*kept, badge.value.lower()])


def _speedup(row: ComparisonRow) -> str:
    interval = (
        ""
        if row.speedup_interval is None
        else f" [{format_ratio(row.speedup_interval[0])}, {format_ratio(row.speedup_interval[1])}]"
    )
    return f"{format_ratio(row.speedup or 0.0)}{interval}"


def _describe_comparison(c: Comparison, recorded: Sequence[ComparisonRow]) -> str:
    parts = []
    for row in [*c.rows, *recorded]:
        m = row.measurement
        text = (
            f"{row.name} ({m.evidence.badge.value.lower()}): finished after "
            f"{format_seconds(m.median_seconds)}"
        )
        text += f", returned after {format_seconds(m.launch_seconds)}"
        if m.with_transfer_seconds is not None:
            text += f", with copies {format_seconds(m.with_transfer_seconds)}"
        if row.speedup is not None:
            text += f", speed-up {_speedup(row)}"
        parts.append(text)
    return f"{c.label}, time per call on each device. " + "; ".join(parts) + "."
