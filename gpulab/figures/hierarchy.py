"""Figures of the memory hierarchy: latency and bandwidth over the working set, and parallel pointer
chases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    MID_GREY,
    LabFigure,
    bytes_axis,
    count_axis,
    frame,
    guide,
    ink,
    more_top,
    rate_axis,
    seconds_axis,
)
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.hierarchy import Bandwidth, Latency, Level, ParallelChains, Reported

_ROW = 16  # pixels of a label
# Reported sizes closer than this (in decades of the axis' span) get a row each, so that their
# labels do not overlap.
_NEAR = 0.24


def latency(curve: Latency, beside: Sequence[Latency] = ()) -> LabFigure:
    """Return the time of a hop over the working set, with the caches that the system reports and
    the levels found in the curve.

    Parameters
    ----------
    curve : Latency
    beside : sequence of Latency
        Recorded curves to draw with it.
    """
    levels = curve.levels()
    parts = [f"{level.name} {level.speed_text}" for level in levels.levels]
    words = f"Time of a dependent load over the working set on {curve.device}: {', '.join(parts)}."
    curves = [curve, *beside]
    for far in beside:
        ends = [
            f"{format_bytes(p.nbytes)} {format_seconds(p.median_seconds)}"
            for p in (far.points[0], far.points[-1])
        ]
        words += (
            f" Beside it {far.device}, {far.evidence.badge.value.lower()}: from {ends[0]} to "
            f"{ends[1]}."
        )
    figure = frame("Latency over the working set", [c.evidence for c in curves], words, height=440)
    values: list[float | None] = []
    for one in curves:
        points = [
            (
                p.nbytes,
                p.median_seconds,
                p.interval_seconds,
                p.least_seconds,
                f"{format_bytes(p.nbytes)}: {format_seconds(p.median_seconds)}",
            )
            for p in one.points
        ]
        values += _add_points(figure, points, one.evidence.badge, _color(one), one.device)
    sizes = [float(p.nbytes) for one in curves for p in one.points]
    _add_levels(
        figure, levels.levels, sizes, [level.latency_seconds or 0.0 for level in levels.levels]
    )
    _name_caches(figure, curve.reported, sizes)
    axis = seconds_axis(values, "time per hop (log scale)")
    figure.update_layout(
        xaxis=bytes_axis(sizes, "working set (log scale)"), yaxis=axis, showlegend=True
    )
    return figure


def bandwidth(curve: Bandwidth, beside: Sequence[Bandwidth] = ()) -> LabFigure:
    """Return the rate of a stream over the working set, with the caches that the system reports.

    Parameters
    ----------
    curve : Bandwidth
    beside : sequence of Bandwidth
        Recorded curves to draw with it.
    """
    ends = [
        f"{format_bytes(p.nbytes)} {format_bytes_per_second(p.bytes_per_second)}"
        for p in (curve.points[0], curve.points[-1])
    ]
    words = (
        f"Rate of a {curve.operation} over the working set on {curve.device}: from {ends[0]} "
        f"to {ends[1]}."
    )
    curves = [curve, *beside]
    for far in beside:
        ends = [
            f"{format_bytes(p.nbytes)} {format_bytes_per_second(p.bytes_per_second)}"
            for p in (far.points[0], far.points[-1])
        ]
        words += (
            f" Beside it {far.device}, {far.evidence.badge.value.lower()}: from {ends[0]} to "
            f"{ends[1]}."
        )
    figure = frame(
        f"Bandwidth over the working set ({curve.operation})",
        [c.evidence for c in curves],
        words,
        height=440,
    )
    values: list[float | None] = []
    for one in curves:
        points = [
            (
                p.nbytes,
                p.bytes_per_second,
                p.interval_bytes_per_second,
                p.most_bytes_per_second,
                f"{format_bytes(p.nbytes)}: {format_bytes_per_second(p.bytes_per_second)}",
            )
            for p in one.points
        ]
        values += _add_points(figure, points, one.evidence.badge, _color(one), one.device)
    sizes = [float(p.nbytes) for one in curves for p in one.points]
    _name_caches(figure, curve.reported, sizes)
    axis = rate_axis(values, "rate (log scale)")
    figure.update_layout(
        xaxis=bytes_axis(sizes, "working set (log scale)"), yaxis=axis, showlegend=True
    )
    return figure


def parallel_chains(both: ParallelChains) -> LabFigure:
    """Return the time of a hop over the number of parallel chains, with the ideal of perfect
    overlap.

    Parameters
    ----------
    both : ParallelChains
    """
    words = (
        f"Parallel chains in {format_bytes(both.nbytes)} on {both.device}: "
        + "; ".join(f"{p.chains}: {format_seconds(p.seconds_per_hop)}" for p in both.points)
        + f". The best rate is {format_ratio(both.gain)} the hop rate of one chain."
    )
    figure = frame(
        f"Independent loads in parallel, {format_bytes(both.nbytes)}",
        both.evidence,
        words,
        height=380,
    )
    counts, first = [p.chains for p in both.points], both.points[0].least_seconds
    told = [
        f"{plural(p.chains, 'chain')}: {format_seconds(p.seconds_per_hop)}" for p in both.points
    ]
    points = [
        (p.chains, p.seconds_per_hop, p.interval_seconds, p.least_seconds, text)
        for p, text in zip(both.points, told, strict=True)
    ]
    values = _add_points(figure, points, both.evidence.badge, palette.BLUE, both.device)
    ideal = [first / n for n in counts]
    figure.add_scatter(
        x=counts,
        y=ideal,
        mode="lines",
        line=palette.line(Badge.MODELLED, MID_GREY),
        hoverinfo="skip",
        name=ink("latency / chains"),
    )
    axis = seconds_axis([*values, *ideal], "time per hop (log scale)")
    across = {
        **count_axis(counts, "parallel chains (log scale)"),
        "tickvals": counts,
        "ticktext": [ink(f"{n:,}") for n in counts],
    }
    figure.update_layout(xaxis=across, yaxis=axis, showlegend=True)
    return figure


def _color(curve: Latency | Bandwidth) -> str:
    return palette.device_color(
        curve.environment.device_kind if curve.environment is not None else "cpu"
    )


def _add_points(
    figure: LabFigure, points: Sequence[tuple[Any, ...]], badge: Badge, color: str, device: str
) -> list[float | None]:
    """Draw medians with their intervals, and the fastest samples as a thin line; return what the
    axis must hold.
    """
    x, middle = [p[0] for p in points], [p[1] for p in points]
    ends = [p[2] or (p[1], p[1]) for p in points]
    best = [p[3] for p in points]
    figure.add_scatter(
        x=x,
        y=best,
        mode="lines",
        line=palette.line(badge, color, 1.5),
        name=ink(f"fastest sample, {device}"),
        hoverinfo="skip",
    )
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [max(high - v, 0) for v, (_, high) in zip(middle, ends, strict=True)],
        "arrayminus": [max(v - low, 0) for v, (low, _) in zip(middle, ends, strict=True)],
        "color": color,
        "thickness": 1.5,
        "width": 3,
    }
    figure.add_scatter(
        x=x,
        y=middle,
        mode="markers",
        error_y=bars,
        name=ink(f"median and 95 % interval, {device} ({badge.value.lower()})"),
        marker=palette.marker(badge, color, "circle", 8),
        customdata=[p[4] for p in points],
        hovertemplate="%{customdata}<extra></extra>",
    )
    return [*middle, *best, *(e for pair in ends for e in pair)]


def _add_levels(
    figure: LabFigure, levels: Sequence[Level], sizes: Sequence[float], values: Sequence[float]
) -> None:
    """Write each level's name and speed where the curve is flat: under it, where a rising curve
    leaves room; the first one over it.
    """
    left = math.log10(min(sizes))
    for k, (level, value) in enumerate(zip(levels, values, strict=True)):
        end = level.between_bytes[0] if level.between_bytes else max(sizes)
        right = max(math.log10(end), left)
        figure.add_annotation(
            x=(left + right) / 2,
            y=math.log10(value),
            text=ink(f"{level.name}<br>{level.speed_text}"),
            showarrow=False,
            yanchor="top" if k else "bottom",
            yshift=-8 if k else 8,
        )
        left = math.log10(level.between_bytes[1]) if level.between_bytes else right


def _name_caches(figure: LabFigure, reported: Sequence[Reported], sizes: Sequence[float]) -> None:
    """Draw the reported sizes that lie inside the axis, labelled above the plot, a row higher where
    two stand close together.
    """
    span = math.log10(max(sizes) / min(sizes))
    higher, before = False, -math.inf
    for cache in sorted(
        (c for c in reported if min(sizes) < c.size_bytes < max(sizes)), key=lambda c: c.size_bytes
    ):
        place = math.log10(cache.size_bytes)
        higher = place - before < _NEAR * span and not higher
        guide(figure, cache.size_bytes, f"{cache} (reported by the system)")
        label = figure.layout.annotations[-1]
        label.update(
            yanchor="bottom", y=1.0, xanchor="center", xshift=0, yshift=_ROW if higher else 0
        )
        before = place
    more_top(figure, 2 * _ROW)
