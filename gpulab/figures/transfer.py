"""Figures of transfers: a sweep with its fit, a break-even, and copies overlapped with compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    MID_GREY,
    LabFigure,
    apart_edges,
    bytes_axis,
    count_axis,
    frame,
    guide,
    ink,
    linear_seconds_axis,
    more_top,
    rate_axis,
    seconds_axis,
)
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.transfer import AlphaBeta, BreakEven, Link, Overlap, Sweep, SweepPoint

_WORDS = {"to_device": "host to device", "to_host": "device to host", "host": "host copy"}
# the second one of a model, or it would look recorded
_SYMBOLS = {"pageable": ("circle", "cross"), "pinned": ("diamond", "x")}
_CURVE_POINTS = 160
_LATE = 0.7  # share of the axis from which on a label behind its line would be cut off
_ROW = 16  # pixels of a label


def sweep(
    s: Sweep | None,
    fit: AlphaBeta | Sequence[AlphaBeta] | None = None,
    quantity: Literal["seconds", "rate"] = "seconds",
    beside: Sequence[Sweep] = (),
    *,
    links: Sequence[Link] = (),
    at_bytes: float | None = None,
) -> LabFigure:
    """Return transfer time (or rate) over size for each series, with the fitted line and its
    prediction interval.

    Parameters
    ----------
    s : Sweep or None
        None draws only ``beside`` and ``links``.
    fit : AlphaBeta or several, optional
        Drawn dashed, with the band in which a new measurement should fall 95 times in 100; latency,
        bandwidth and knees are named.
    quantity : str
        "seconds", or "rate" for bytes a second.
    beside : sequence of Sweep
        Recorded or modelled sweeps to draw with it.
    links : sequence of Link
        Drawn as dashed lines over the sizes of the sweeps.
    at_bytes : float, optional
        A size whose predicted time is marked on the first fit, with its interval.
    """
    fits = [] if fit is None else list(fit) if isinstance(fit, Sequence) else [fit]
    sweeps = ([] if s is None else [s]) + list(beside)
    title = f"Transfer {'time' if quantity == 'seconds' else 'rate'} over size"
    evidence = [one.evidence for one in sweeps] + [road.evidence for road in links]
    figure = frame(title, evidence, _describe_sweep(sweeps, fits, links, quantity), height=440)
    values: list[float | None] = []
    sizes = [float(p.nbytes) for one in sweeps for p in one.points] or [2.0**10, 2.0**30]
    for number, line in enumerate(fits):
        _add_fit(figure, line, quantity, sizes, first=number == 0)
    if len(fits) == 1:
        _name_fit(figure, fits[0], quantity, sizes)
    for road in links:
        values += _add_link(figure, road, quantity, sizes)
    for one in sweeps:
        for direction, memory in one.series:
            values += _add_series(
                figure,
                one.select(direction, memory),
                one.evidence.badge,
                quantity,
                one.device if len(sweeps) > 1 else "",
            )
    if fits and at_bytes is not None:
        values += _add_prediction(figure, fits[0], quantity, at_bytes)
        sizes.append(at_bytes)
    ceiling = None if s is None else s.memory_bandwidth_bytes_per_second
    time_axis = quantity == "seconds"
    values += [] if time_axis else _name_rates(figure, ceiling, fits)
    axis = (
        seconds_axis(values, "time (log scale)")
        if time_axis
        else rate_axis(values, "rate (log scale)")
    )
    figure.update_layout(xaxis=bytes_axis(sizes, "size (log scale)"), yaxis=axis, showlegend=True)
    return figure


def _add_link(
    figure: LabFigure, road: Link, quantity: str, sizes: Sequence[float]
) -> list[float | None]:
    x = np.geomspace(min(sizes), max(sizes), _CURVE_POINTS)
    seconds = np.array([road.seconds(n) for n in x])
    y = seconds if quantity == "seconds" else x / seconds
    badge = road.evidence.badge
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line=palette.line(badge, palette.COPIES["to_device"]),
        name=ink(f"{road.name} ({badge.value.lower()})"),
        customdata=[
            f"{format_bytes(n)}: {format_seconds(t)}" for n, t in zip(x, seconds, strict=True)
        ],
        hovertemplate=f"{road.name}, %{{customdata}}<extra></extra>",
    )
    return [float(y[0]), float(y[-1])]


def _add_prediction(
    figure: LabFigure, fit: AlphaBeta, quantity: str, nbytes: float
) -> list[float | None]:
    low, middle, high = fit.predict(nbytes)
    words = (
        f"{format_bytes(nbytes)}: {format_seconds(middle)}, 95 % {format_seconds(low)} to "
        f"{format_seconds(high)}"
    )
    if quantity == "rate":
        low, middle, high = nbytes / high, nbytes / middle, nbytes / low
    figure.add_scatter(
        x=[nbytes],
        y=[middle],
        mode="markers",
        marker=palette.marker(Badge.MODELLED, palette.VERMILLION, "square", 11),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [high - middle],
            "arrayminus": [middle - low],
            "color": palette.VERMILLION,
            "thickness": 2,
            "width": 6,
        },
        name=ink(f"predicted, {words}"),
        hovertemplate=f"predicted, {words}<extra></extra>",
    )
    return [low, high]


def _add_series(
    figure: LabFigure, points: Sequence[SweepPoint], badge: Badge, quantity: str, device: str
) -> list[float | None]:
    color = palette.COPIES.get(points[0].direction, palette.GREY)
    direction = _WORDS.get(points[0].direction, points[0].direction)
    name = (
        f"{direction}, {points[0].memory}{', ' + device if device else ''} ({badge.value.lower()})"
    )
    if quantity == "seconds":
        values = [p.median_seconds for p in points]
        ends = [p.interval_seconds or (p.median_seconds, p.median_seconds) for p in points]
    else:
        values = [p.bytes_per_second for p in points]
        slowest = [(p.interval_seconds or (p.median_seconds, p.median_seconds)) for p in points]
        ends = [
            (p.nbytes / high, p.nbytes / low)
            for p, (low, high) in zip(points, slowest, strict=True)
        ]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [e[1] - v for e, v in zip(ends, values, strict=True)],
        "arrayminus": [v - e[0] for e, v in zip(ends, values, strict=True)],
        "color": color,
        "thickness": 1.5,
        "width": 3,
    }
    figure.add_scatter(
        x=[p.nbytes for p in points],
        y=values,
        mode="markers",
        error_y=bars,
        name=ink(name),
        marker=palette.marker(
            badge,
            color,
            _SYMBOLS.get(points[0].memory, ("square", "star"))[badge is Badge.MODELLED],
            8,
        ),
        customdata=[_point_words(p) for p in points],
        hovertemplate="%{customdata}<extra></extra>",
    )
    return [*values, *(e for pair in ends for e in pair)]


def _point_words(p: SweepPoint) -> str:
    return (
        f"{format_bytes(p.nbytes)}: {format_seconds(p.median_seconds)}, "
        f"{format_bytes_per_second(p.bytes_per_second)}"
    )


def _add_fit(
    figure: LabFigure, fit: AlphaBeta, quantity: str, sizes: Sequence[float], first: bool
) -> None:
    x = np.geomspace(min(sizes), max(sizes), _CURVE_POINTS)
    low, middle, high = (np.asarray(v, dtype=float) for v in fit.predict(x))
    if quantity == "rate":
        low, middle, high = x / high, x / middle, x / low
    figure.add_scatter(
        x=[*x, *x[::-1]],
        y=[*high, *low[::-1]],
        fill="toself",
        fillcolor="rgba(127,127,127,0.2)",
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        name=ink("95 % prediction interval"),
        showlegend=first,
    )
    words = (
        f"fit: {format_seconds(fit.latency_seconds)} + size / "
        f"{format_bytes_per_second(fit.bandwidth_bytes_per_second)}"
    )
    figure.add_scatter(
        x=x,
        y=middle,
        mode="lines",
        line=palette.line(Badge.MODELLED, MID_GREY),
        name=ink(words),
        hoverinfo="skip",
    )


def _name_fit(figure: LabFigure, fit: AlphaBeta, quantity: str, sizes: Sequence[float]) -> None:
    """Name what the curve shows: the flat latency, the half of the bandwidth and knees.

    Time rises from the lower left to the upper right, so labels stand at the upper left; of a rate
    at the lower right.
    """
    rate = quantity == "rate"
    low, high = min(sizes), max(sizes)
    marks = [
        (
            fit.half_bandwidth_bytes,
            f"half the bandwidth at {format_bytes(fit.half_bandwidth_bytes)}",
        )
    ]
    marks += [(knee, f"knee at {format_bytes(knee)}") for knee in fit.knees_bytes]
    for k, (nbytes, text) in enumerate((n, words) for n, words in marks if low < n < high):
        guide(figure, nbytes, text, bottom=rate)
        label = figure.layout.annotations[-1]
        label.yshift = (_ROW if rate else -_ROW) * k  # a row each, should they stand close together
        if not rate and np.log(nbytes / low) > 0.4 * np.log(high / low):
            label.update(xanchor="right", xshift=-5)
    if not rate:
        guide(
            figure, fit.latency_seconds, f"latency {format_seconds(fit.latency_seconds)}", axis="y"
        )


def _name_rates(
    figure: LabFigure, ceiling: float | None, fits: Sequence[AlphaBeta]
) -> list[float | None]:
    """Name the fit's bandwidth and the host's memory bandwidth, the higher one over its line and
    the lower one under it.
    """
    levels = (
        []
        if ceiling is None
        else [(ceiling, f"memory bandwidth {format_bytes_per_second(ceiling)} (reads + writes)")]
    )
    if len(fits) == 1:
        bandwidth = fits[0].bandwidth_bytes_per_second
        levels.append((bandwidth, f"bandwidth of the fit {format_bytes_per_second(bandwidth)}"))
    for k, (value, text) in enumerate(sorted(levels, reverse=True)):
        guide(figure, value, text, axis="y")
        # Left of the middle the curves of links lie lower, and those of caches higher; at the right
        # end all of them are.
        figure.layout.annotations[-1].update(
            x=0.3, xanchor="left", yanchor="top" if k else "bottom"
        )
    return [value for value, _ in levels]


def _describe_sweep(
    sweeps: Sequence[Sweep], fits: Sequence[AlphaBeta], links: Sequence[Link], quantity: str
) -> str:
    parts = []
    for one in sweeps:
        where = f" on {one.device}" if len(sweeps) > 1 else ""
        for direction, memory in one.series:
            points = one.select(direction, memory)
            ends = f"smallest {_point_words(points[0])}, largest {_point_words(points[-1])}"
            parts.append(f"{_WORDS.get(direction, direction)} from {memory} memory{where}, {ends}")
    for fit in fits:
        latency, rate = (
            format_seconds(fit.latency_seconds),
            format_bytes_per_second(fit.bandwidth_bytes_per_second),
        )
        parts.append(f"the fit: latency {latency}, bandwidth {rate}")
    parts += [
        f"{road.name}, modelled: {road.evidence.assumptions or 'the fit of a sweep'}"
        for road in links
    ]
    where = f" on {sweeps[0].device}" if sweeps else ""
    return (
        f"Transfer {'time' if quantity == 'seconds' else 'rate'} over size{where}. "
        + "; ".join(parts)
        + "."
    )


def break_even(b: BreakEven) -> LabFigure:
    """Return the times of host and accelerator over the size, with the size above which the
    accelerator is faster.
    """
    evidence = [e for e in (b.host_evidence, b.evidence) if e is not None]
    figure = frame(
        f"Break-even of {b.label}, copies counted",
        evidence,
        f"{b.sentence} {_describe_rows(b)}".strip(),
        height=380,
    )
    sizes = [row.n for row in b.rows]
    host, device = [row.host_seconds for row in b.rows], [row.device_seconds for row in b.rows]
    lines = (
        ("CPU", host, "cpu", Badge.MEASURED),
        ("accelerator with both copies", device, "cuda", b.evidence.badge),
    )
    for name, seconds, kind, badge in lines:
        color = palette.device_color(kind)
        figure.add_scatter(
            x=sizes,
            y=seconds,
            mode="lines+markers",
            line=palette.line(badge, color),
            marker=palette.marker(badge, color, size=8),
            name=ink(f"{name} ({badge.value.lower()})"),
            customdata=[format_seconds(v) for v in seconds],
            hovertemplate=f"{name}, n = %{{x:d}}: %{{customdata}}<extra></extra>",
        )
    figure.update_xaxes(**count_axis([*sizes, b.size], "size n (log scale)"))
    figure.update_yaxes(**seconds_axis([*host, *device], "time per call (log scale)"))
    if b.size is not None:
        left, right = figure.layout.xaxis.range
        place = (math.log10(b.size) - left) / (right - left)
        guide(figure, b.size, f"break-even: n = {b.size}", before=place > _LATE)
    else:
        text = ink(f"no break-even up to n = {sizes[-1]}" if sizes else b.reason)
        figure.add_annotation(
            x=0.01,
            y=0.99,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="top",
            showarrow=False,
            text=text,
        )
    return figure


def _describe_rows(b: BreakEven) -> str:
    return "; ".join(
        f"n = {r.n}: CPU {format_seconds(r.host_seconds)}, accelerator "
        f"{format_seconds(r.device_seconds)}"
        for r in b.rows
    )


def overlap(o: Overlap) -> LabFigure:
    """Return the timeline of the overlapped run, with the times of the serial run and of the ideal
    pipeline.
    """
    pieces = plural(o.chunks, "chunk")
    words = (
        f"{format_bytes(o.nbytes)} in {pieces} on {o.device}: overlapped "
        f"{format_seconds(o.seconds)}, one after the other "
        f"{format_seconds(o.serial_seconds)}, ideal {format_seconds(o.ideal_seconds)}; "
        f"{o.ratio_text} of the possible gain."
    )
    figure = frame(
        f"Copy and compute, {pieces} of {format_bytes(o.nbytes / max(o.chunks, 1))}",
        o.evidence,
        words,
        height=300,
    )
    hollow = o.evidence.badge is not Badge.MEASURED
    end = max([span.end_seconds for span in o.timeline] + [o.serial_seconds, o.ideal_seconds])
    for lane in ("copy", "compute"):
        spans = [span for span in o.timeline if span.lane == lane]
        color = palette.LANES[lane]
        edge = (
            {"color": color, "width": 1.5}
            if hollow
            else apart_edges([span.seconds for span in spans], end)
        )
        fill = {"color": "rgba(0,0,0,0)" if hollow else color, "line": edge}
        figure.add_bar(
            orientation="h",
            y=[lane] * len(spans),
            x=[span.seconds for span in spans],
            base=[span.start_seconds for span in spans],
            marker=fill,
            width=0.55,
            showlegend=False,
            customdata=[
                f"{lane} {span.chunk + 1}: {format_seconds(span.seconds)}" for span in spans
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.update_xaxes(**linear_seconds_axis(end, "time since the start"))
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=["compute", "copy"],
        tickvals=["compute", "copy"],
        ticktext=[ink("compute"), ink("copy")],
        tickprefix="",
        ticksuffix="",
        showgrid=False,
    )
    _time_guide(figure, o.ideal_seconds, f"ideal {format_seconds(o.ideal_seconds)}", "right", 1.0)
    _time_guide(
        figure,
        o.serial_seconds,
        f"one after the other {format_seconds(o.serial_seconds)}",
        "right",
        1.09,
    )
    figure.update_layout(barmode="overlay")
    more_top(figure, 32)
    return figure


def _time_guide(figure: LabFigure, seconds: float, text: str, anchor: str, height: float) -> None:
    stroke = {"color": MID_GREY, "width": 1.5, "dash": "dash"}
    figure.add_shape(
        type="line", x0=seconds, x1=seconds, xref="x", y0=0, y1=height, yref="paper", line=stroke
    )
    figure.add_annotation(
        x=seconds,
        xref="x",
        y=height,
        yref="paper",
        text=ink(text),
        showarrow=False,
        xanchor=anchor,
        yanchor="bottom",
    )
