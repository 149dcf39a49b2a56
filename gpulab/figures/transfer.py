"""Figures of bytes on the move: copies over size with their fit, break-even, copies overlapped with
compute, and latency and bandwidth of the memory hierarchy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    MID_GREY,
    LabFigure,
    apart_edges,
    bytes_axis,
    composed,
    count_axis,
    frame,
    guide,
    ink,
    interval_bars,
    linear_seconds_axis,
    more_top,
    near,
    note,
    on_mouse,
    rate_axis,
    row_axis,
    seconds_axis,
    upright,
)
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.hierarchy import Bandwidth, Latency, ParallelChains, Reported
    from gpulab.transfer import AlphaBeta, BreakEven, Link, Overlap, Sweep, SweepPoint

_WORDS = {"to_device": "host to device", "to_host": "device to host", "host": "host copy"}
# the second one of a model, or it would look recorded
_SYMBOLS = {"pageable": ("circle", "cross"), "pinned": ("diamond", "x")}
_CURVE_POINTS = 160
_LATE = 0.7  # share of the axis from which on a label behind its line would be cut off
_ROW = 16  # pixels of a label
# Reported sizes closer than this (in decades of the axis' span) get a row each, so that their
# labels do not overlap.
_NEAR = 0.24


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
    rate = quantity == "rate"
    title = f"Transfer {'rate' if rate else 'time'} over size"
    evidence = [one.evidence for one in sweeps] + [link.evidence for link in links]
    words = _sweep_words(title, sweeps, fits, links)
    figure = frame(title, evidence, words, height=440)
    sizes = [float(p.nbytes) for one in sweeps for p in one.points] or [2.0**10, 2.0**30]
    curve = np.geomspace(min(sizes), max(sizes), _CURVE_POINTS)
    values: list[float] = []
    for line in fits:
        _add_fit(figure, line, rate, curve, first=line is fits[0])
    if len(fits) == 1:
        _name_fit(figure, fits[0], rate, min(sizes), max(sizes))
    for link in links:
        values += _add_link(figure, link, rate, curve)
    for one in sweeps:
        for series in one.series:
            device = one.device if len(sweeps) > 1 else ""
            values += _add_series(figure, one.select(*series), one.evidence.badge, rate, device)
    if fits and at_bytes is not None:
        values += _add_prediction(figure, fits[0], rate, at_bytes)
        sizes.append(at_bytes)
    if rate:
        ceiling = None if s is None else s.memory_bandwidth_bytes_per_second
        values += _name_rates(figure, ceiling, fits)
        axis = rate_axis(values, "rate (log scale)")
    else:
        axis = seconds_axis(values, "time (log scale)")
    figure.update_layout(xaxis=bytes_axis(sizes, "size (log scale)"), yaxis=axis, showlegend=True)
    return figure


def _add_link(figure: LabFigure, link: Link, rate: bool, x: np.ndarray) -> list[float]:
    seconds = np.array([link.seconds(n) for n in x])
    y = x / seconds if rate else seconds
    badge = link.evidence.badge
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line=palette.line(badge, palette.COPIES["to_device"]),
        name=ink(f"{link.name} ({badge.value.lower()})"),
        customdata=[
            f"{format_bytes(n)}: {format_seconds(t)}" for n, t in zip(x, seconds, strict=True)
        ],
        hovertemplate=f"{link.name}, %{{customdata}}<extra></extra>",
    )
    return [float(y[0]), float(y[-1])]


def _add_prediction(figure: LabFigure, fit: AlphaBeta, rate: bool, nbytes: float) -> list[float]:
    low, middle, high = fit.predict(nbytes)
    words = (
        f"predicted, {format_bytes(nbytes)}: {format_seconds(middle)}, 95 % {format_seconds(low)} "
        f"to {format_seconds(high)}"
    )
    if rate:
        low, middle, high = nbytes / high, nbytes / middle, nbytes / low
    figure.add_scatter(
        x=[nbytes],
        y=[middle],
        mode="markers",
        marker=palette.marker(Badge.MODELLED, palette.VERMILLION, "square", 11),
        error_y=interval_bars([middle], [(low, high)], palette.VERMILLION, 2, 6),
        name=ink(words),
        hovertemplate=f"{words}<extra></extra>",
    )
    return [low, high]


def _add_series(
    figure: LabFigure, points: Sequence[SweepPoint], badge: Badge, rate: bool, device: str
) -> list[float]:
    first = points[0]
    color = palette.COPIES.get(first.direction, palette.GREY)
    where = f"{first.memory}{', ' + device if device else ''}"
    name = f"{_WORDS.get(first.direction, first.direction)}, {where} ({badge.value.lower()})"
    values = [p.median_seconds for p in points]
    ends = [p.interval_seconds or (p.median_seconds, p.median_seconds) for p in points]
    if rate:
        values = [p.bytes_per_second for p in points]
        ends = [
            (p.nbytes / high, p.nbytes / low) for p, (low, high) in zip(points, ends, strict=True)
        ]
    symbol = _SYMBOLS.get(first.memory, ("square", "star"))[badge is Badge.MODELLED]
    figure.add_scatter(
        x=[p.nbytes for p in points],
        y=values,
        mode="markers",
        error_y=interval_bars(values, ends, color),
        name=ink(name),
        marker=palette.marker(badge, color, symbol, 8),
        **on_mouse(map(_point_words, points)),
    )
    return [*values, *(e for pair in ends for e in pair)]


def _point_words(p: SweepPoint) -> str:
    return (
        f"{format_bytes(p.nbytes)}: {format_seconds(p.median_seconds)}, "
        f"{format_bytes_per_second(p.bytes_per_second)}"
    )


def _add_fit(figure: LabFigure, fit: AlphaBeta, rate: bool, x: np.ndarray, first: bool) -> None:
    low, middle, high = (np.asarray(v, dtype=float) for v in fit.predict(x))
    if rate:
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
    bandwidth = format_bytes_per_second(fit.bandwidth_bytes_per_second)
    figure.add_scatter(
        x=x,
        y=middle,
        mode="lines",
        line=palette.line(Badge.MODELLED, MID_GREY),
        name=ink(f"fit: {format_seconds(fit.latency_seconds)} + size / {bandwidth}"),
        hoverinfo="skip",
    )


def _name_fit(figure: LabFigure, fit: AlphaBeta, rate: bool, low: float, high: float) -> None:
    """Name what the curve shows: the flat latency, the half of the bandwidth and knees.

    Time rises from the lower left to the upper right, so labels stand at the upper left; of a rate
    at the lower right.
    """
    half = fit.half_bandwidth_bytes
    marks = [(half, f"half the bandwidth at {format_bytes(half)}")]
    marks += [(knee, f"knee at {format_bytes(knee)}") for knee in fit.knees_bytes]
    for k, (nbytes, text) in enumerate((n, words) for n, words in marks if low < n < high):
        guide(figure, nbytes, text, bottom=rate)
        label = figure.layout.annotations[-1]
        label.yshift = (_ROW if rate else -_ROW) * k  # a row each, should they stand close together
        if not rate and np.log(nbytes / low) > 0.4 * np.log(high / low):
            label.update(xanchor="right", xshift=-5)
    if not rate:
        latency = fit.latency_seconds
        guide(figure, latency, f"latency {format_seconds(latency)}", axis="y")


def _name_rates(figure: LabFigure, ceiling: float | None, fits: Sequence[AlphaBeta]) -> list[float]:
    """Name the fit's bandwidth and the host's memory bandwidth, the higher one over its line and
    the lower one under it.
    """
    levels = []
    if ceiling is not None:
        rate = format_bytes_per_second(ceiling)
        levels.append((ceiling, f"memory bandwidth {rate} (reads + writes)"))
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


def _sweep_words(
    title: str, sweeps: Sequence[Sweep], fits: Sequence[AlphaBeta], links: Sequence[Link]
) -> str:
    parts = []
    for one in sweeps:
        where = f" on {one.device}" if len(sweeps) > 1 else ""
        for direction, memory in one.series:
            points = one.select(direction, memory)
            ends = f"smallest {_point_words(points[0])}, largest {_point_words(points[-1])}"
            parts.append(f"{_WORDS.get(direction, direction)} from {memory} memory{where}, {ends}")
    parts += [
        f"the fit: latency {format_seconds(fit.latency_seconds)}, bandwidth "
        f"{format_bytes_per_second(fit.bandwidth_bytes_per_second)}"
        for fit in fits
    ]
    parts += [
        f"{link.name}, modelled: {link.evidence.assumptions or 'the fit of a sweep'}"
        for link in links
    ]
    where = f" on {sweeps[0].device}" if sweeps else ""
    return f"{title}{where}. {'; '.join(parts)}."


def break_even(b: BreakEven) -> LabFigure:
    """Return the times of host and accelerator over the size, with the size above which the
    accelerator is faster.
    """
    rows = "; ".join(
        f"n = {r.n}: CPU {format_seconds(r.host_seconds)}, accelerator "
        f"{format_seconds(r.device_seconds)}"
        for r in b.rows
    )
    figure = frame(
        f"Break-even of {b.label}, copies counted",
        [e for e in (b.host_evidence, b.evidence) if e is not None],
        f"{b.sentence} {rows}".strip(),
        height=380,
    )
    sizes = [row.n for row in b.rows]
    host, device = [row.host_seconds for row in b.rows], [row.device_seconds for row in b.rows]
    for name, seconds, kind, badge in (
        ("CPU", host, "cpu", Badge.MEASURED),
        ("accelerator with both copies", device, "cuda", b.evidence.badge),
    ):
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
        late = (math.log10(b.size) - left) / (right - left) > _LATE
        guide(figure, b.size, f"break-even: n = {b.size}", before=late)
    else:
        text = f"no break-even up to n = {sizes[-1]}" if sizes else b.reason
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top"}
        figure.add_annotation(note(text, 0.01, 0.99, **place))
    return figure


def overlap(o: Overlap) -> LabFigure:
    """Return the timeline of the overlapped run, with the times of the serial run and of the ideal
    pipeline.
    """
    pieces = plural(o.chunks, "chunk")
    ideal, serial = format_seconds(o.ideal_seconds), format_seconds(o.serial_seconds)
    words = (
        f"{format_bytes(o.nbytes)} in {pieces} on {o.device}: overlapped "
        f"{format_seconds(o.seconds)}, one after the other {serial}, ideal {ideal}; {o.ratio_text} "
        "of the possible gain."
    )
    title = f"Copy and compute, {pieces} of {format_bytes(o.nbytes / max(o.chunks, 1))}"
    base = frame(title, o.evidence, words, height=300)
    hollow = o.evidence.badge is not Badge.MEASURED
    end = max([span.end_seconds for span in o.timeline] + [o.serial_seconds, o.ideal_seconds])
    traces, lanes = [], ("compute", "copy")  # from the bottom
    for lane in reversed(lanes):
        spans, color = [span for span in o.timeline if span.lane == lane], palette.LANES[lane]
        outline = {"color": color, "width": 1.5}
        edge = outline if hollow else apart_edges([span.seconds for span in spans], end)
        traces.append(
            {
                "y": [lane] * len(spans),
                "x": [span.seconds for span in spans],
                "base": [span.start_seconds for span in spans],
                "marker": {"color": "rgba(0,0,0,0)" if hollow else color, "line": edge},
                **on_mouse(
                    f"{lane} {span.chunk + 1}: {format_seconds(span.seconds)}" for span in spans
                ),
            }
        )
    marks = (
        (o.ideal_seconds, f"ideal {ideal}", 1.0),
        (o.serial_seconds, f"one after the other {serial}", 1.09),
    )
    place = {"xref": "x", "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
    return composed(
        base,
        traces,
        {"type": "bar", "orientation": "h", "width": 0.55, "showlegend": False},
        xaxis=near(linear_seconds_axis(end, "time since the start")),
        yaxis=row_axis(lanes, autorange=True, categoryorder="array", categoryarray=lanes),
        shapes=[{**upright(seconds), "y1": height} for seconds, _, height in marks],
        annotations=[note(text, seconds, height, **place) for seconds, text, height in marks],
        barmode="overlay",
        margin={"t": base.layout.margin.t + 32},
    )


# The memory hierarchy.


def latency(curve: Latency, beside: Sequence[Latency] = ()) -> LabFigure:
    """Return the time of a hop over the working set, with the caches that the system reports and
    the levels found in the curve.

    Parameters
    ----------
    curve : Latency
    beside : sequence of Latency
        Recorded curves to draw with it.
    """
    levels = curve.levels().levels
    parts = ", ".join(f"{level.name} {level.speed_text}" for level in levels)
    figure, values = _working_sets(
        [curve, *beside],
        "Latency over the working set",
        f"Time of a dependent load over the working set on {curve.device}: {parts}.",
        lambda p: (p.median_seconds, p.interval_seconds, p.least_seconds),
        format_seconds,
    )
    # Each level's name and speed stand where the curve is flat: under it, where a rising curve
    # leaves room; the first one over it.
    sizes = [p.nbytes for one in (curve, *beside) for p in one.points]
    left = math.log10(min(sizes))
    for k, level in enumerate(levels):
        ends = level.between_bytes or (max(sizes),)
        right = max(math.log10(ends[0]), left)
        side = {"yanchor": "top", "yshift": -8} if k else {"yanchor": "bottom", "yshift": 8}
        text = f"{level.name}<br>{level.speed_text}"
        height = math.log10(level.latency_seconds or 0.0)
        figure.add_annotation(note(text, (left + right) / 2, height, **side))
        left = math.log10(level.between_bytes[1]) if level.between_bytes else right
    _name_caches(figure, curve.reported, min(sizes), max(sizes))
    figure.update_yaxes(**seconds_axis(values, "time per hop (log scale)"))
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
    figure, values = _working_sets(
        [curve, *beside],
        f"Bandwidth over the working set ({curve.operation})",
        f"Rate of a {curve.operation} over the working set on {curve.device}: from {ends[0]} to "
        f"{ends[1]}.",
        lambda p: (p.bytes_per_second, p.interval_bytes_per_second, p.most_bytes_per_second),
        format_bytes_per_second,
    )
    sizes = [p.nbytes for one in (curve, *beside) for p in one.points]
    _name_caches(figure, curve.reported, min(sizes), max(sizes))
    figure.update_yaxes(**rate_axis(values, "rate (log scale)"))
    return figure


def _working_sets(
    curves: Sequence[Any],
    title: str,
    words: str,
    numbers: Callable[[Any], tuple[Any, Any, Any]],
    text: Callable[[float], str],
) -> tuple[LabFigure, list[float]]:
    """Return curves over the working set, and the values that the vertical axis must hold.

    ``numbers`` gives a point's median, its interval, and its best sample.
    """
    for far in curves[1:]:
        ends = [f"{format_bytes(p.nbytes)} {text(numbers(p)[0])}" for p in far.points]
        badge = far.evidence.badge.value.lower()
        words += f" Beside it {far.device}, {badge}: from {ends[0]} to {ends[-1]}."
    figure = frame(title, [one.evidence for one in curves], words, height=440)
    values: list[float] = []
    for one in curves:
        kind = one.environment.device_kind if one.environment is not None else "cpu"
        points = [
            (p.nbytes, *numbers(p), f"{format_bytes(p.nbytes)}: {text(numbers(p)[0])}")
            for p in one.points
        ]
        color = palette.device_color(kind)
        values += _add_points(figure, points, one.evidence.badge, color, one.device)
    sizes = [float(p.nbytes) for one in curves for p in one.points]
    figure.update_layout(xaxis=bytes_axis(sizes, "working set (log scale)"), showlegend=True)
    return figure, values


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
    title = f"Independent loads in parallel, {format_bytes(both.nbytes)}"
    figure = frame(title, both.evidence, words, height=380)
    points = [
        (
            p.chains,
            p.seconds_per_hop,
            p.interval_seconds,
            p.least_seconds,
            f"{plural(p.chains, 'chain')}: {format_seconds(p.seconds_per_hop)}",
        )
        for p in both.points
    ]
    values = _add_points(figure, points, both.evidence.badge, palette.BLUE, both.device)
    counts = [p.chains for p in both.points]
    ideal = [both.points[0].least_seconds / n for n in counts]
    figure.add_scatter(
        x=counts,
        y=ideal,
        mode="lines",
        line=palette.line(Badge.MODELLED, MID_GREY),
        hoverinfo="skip",
        name=ink("latency / chains"),
    )
    figure.update_layout(
        xaxis=count_axis(counts, "parallel chains (log scale)", counts),
        yaxis=seconds_axis([*values, *ideal], "time per hop (log scale)"),
        showlegend=True,
    )
    return figure


def _add_points(
    figure: LabFigure, points: Sequence[tuple[Any, ...]], badge: Badge, color: str, device: str
) -> list[float]:
    """Draw medians with their intervals, and the fastest samples as a thin line; return what the
    axis must hold.

    A point is its place, median, interval, best sample, and what the mouse shows.
    """
    x, middle, spans, best, words = (list(part) for part in zip(*points, strict=True))
    figure.add_scatter(
        x=x,
        y=best,
        mode="lines",
        line=palette.line(badge, color, 1.5),
        name=ink(f"fastest sample, {device}"),
        hoverinfo="skip",
    )
    ends = [
        (min(span[0], value), max(span[1], value)) if span else (value, value)
        for span, value in zip(spans, middle, strict=True)
    ]
    figure.add_scatter(
        x=x,
        y=middle,
        mode="markers",
        error_y=interval_bars(middle, ends, color),
        name=ink(f"median and 95 % interval, {device} ({badge.value.lower()})"),
        marker=palette.marker(badge, color, "circle", 8),
        **on_mouse(words),
    )
    return [*middle, *best, *(end for pair in ends for end in pair)]


def _name_caches(
    figure: LabFigure, reported: Sequence[Reported], least: float, most: float
) -> None:
    """Draw the reported sizes that lie inside the axis, labelled above the plot, a row higher where
    two stand close together.
    """
    higher, before = False, -math.inf
    inside = [cache for cache in reported if least < cache.size_bytes < most]
    for cache in sorted(inside, key=lambda cache: cache.size_bytes):
        place = math.log10(cache.size_bytes)
        higher = place - before < _NEAR * math.log10(most / least) and not higher
        guide(figure, cache.size_bytes, f"{cache} (reported by the system)")
        figure.layout.annotations[-1].update(
            yanchor="bottom", y=1.0, xanchor="center", xshift=0, yshift=_ROW if higher else 0
        )
        before = place
    more_top(figure, 2 * _ROW)
