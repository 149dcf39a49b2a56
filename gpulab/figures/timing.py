"""Figures of times: measurements and comparisons, copies over size with their fit, break-even and
overlap, and latency and bandwidth of the memory hierarchy.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    AXIS,
    MID_GREY,
    LabFigure,
    Part,
    bar_marker,
    describe,
    extent,
    guide,
    interval_bars,
    linear_seconds_axis,
    log_axis,
    note,
    picture,
    row_axis,
    ticks,
    trace,
    upright,
)
from gpulab.hierarchy import Bandwidth, Latency, ParallelChains
from gpulab.timing import Comparison, ComparisonRow, Measurement
from gpulab.transfer import AlphaBeta, BreakEven, Link, Overlap, Sweep, SweepPoint
from gpulab.transfer.copies import SERIES_WORDS
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_seconds,
    format_speedup,
    plural,
)

# With a sample this many times the median the axis is logarithmic: on a linear one, all other
# samples would lie on one line.
_LOG_FROM = 4.0
# The three times: words, attribute of a measurement, symbol (the same in every picture), and
# vertical offset, which keeps marks apart where the times are nearly equal, as on a CPU.
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
        The same work, recorded on named machines; drawn hollow, below the live rows.
    """
    rows = [*c.rows, *recorded]
    # each symbol is in the legend once, in gray, since color stands for the device
    legend = [
        trace(
            "markers",
            [None],
            [None],
            what + (" (median, 95 % interval)" if symbol == "circle" else ""),
            marker=palette.marker(Badge.MEASURED, palette.GREY, symbol),
        )
        for what, _, symbol, _ in _TIMES
    ]
    measured = [row.measurement for row in rows]
    times: list[float | None] = [
        seconds
        for m in measured
        for seconds in (
            *(getattr(m, field) for _, field, *_ in _TIMES),
            *(m.interval_seconds or ()),
        )
    ]
    beside: Part = {"xref": "paper", "xanchor": "left", "xshift": 8, "align": "left"}
    head = note("speed-up", 1, 1, yref="paper", yanchor="bottom", **beside)
    ratios = [
        (place, format_speedup(row.speedup, row.speedup_interval))
        for place, row in enumerate(rows)
        if row.speedup is not None
    ]
    notes = [note(text, 1, at, yref="y", yanchor="middle", **beside) for at, text in ratios]
    medians = "; ".join(
        f"{row.name}, {row.measurement.evidence.badge}: "
        f"{format_seconds(row.measurement.median_seconds)}"
        for row in rows
    )
    return picture(
        c.label,
        [m.evidence for m in measured],
        f"{describe(c)} {medians}.",
        [*legend, *(each for place, m in enumerate(measured) for each in _row(place, m))],
        height=190 + 54 * len(rows),
        xaxis=log_axis("seconds", times, "time per call (log scale)"),
        yaxis={
            **ticks(range(len(rows)), map(_row_name, rows)),
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
        },
        annotations=[*notes, head] if notes else [],
        margin={"r": 150 if notes else 24},
    )


def _row(place: int, m: Measurement) -> list[Part]:
    """Return the times of one device, with a line through them."""
    color = palette.device_color(m.device)
    there = [
        (what, seconds, symbol, offset)
        for what, field, symbol, offset in _TIMES
        if (seconds := getattr(m, field)) is not None and seconds > 0
    ]
    places, thin = [place] * len(there), {"color": AXIS, "width": 1}
    return [
        trace("lines", [seconds for _, seconds, *_ in there], places, line=thin),
        *(
            trace(
                "markers",
                [seconds],
                [place + offset],
                mouse=f"{what}: {format_seconds(seconds)}",
                marker=palette.marker(m.evidence.badge, color, symbol, 14 if offset < 0 else 11),
                error_x=interval_bars([seconds], [m.interval_seconds], color, 2, 7)
                if symbol == "circle"
                else None,
            )
            for what, seconds, symbol, offset in there
        ),
    ]


def _row_name(row: ComparisonRow) -> str:
    """Return the name in at most two short lines, and the evidence under it."""
    lines = textwrap.wrap(
        row.name,
        27,
        max_lines=2,
        placeholder="…",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "<br>".join([*lines, row.measurement.evidence.badge.lower()])


def measurement(m: Measurement) -> LabFigure:
    """Return the samples in the order they were taken, with the median and its 95 % interval."""
    samples = np.asarray(m.samples_seconds, dtype=float)
    badge, color = m.evidence.badge, palette.device_color(m.device)
    across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
    middle = {"y0": m.median_seconds, "y1": m.median_seconds, "line": palette.line(badge, color)}
    shapes: list[Part] = [{"type": "line", **across, **middle}]
    interval = "no valid interval"
    if m.interval_seconds is not None:
        low, high = m.interval_seconds
        interval = f"95 % interval {format_seconds(low)} to {format_seconds(high)}"
        band = {"fillcolor": color, "opacity": 0.18, "line": {"width": 0}}
        shapes.insert(0, {"type": "rect", **across, "y0": low, "y1": high, **band})
    words = f"median {format_seconds(m.median_seconds)}, {interval}"
    marks = trace(
        "markers",
        np.arange(1, samples.size + 1),
        samples,
        # without a format, plotly would add the axis' tickprefix, which is markup
        mouse="sample %{x:d}: %{y:.3s}s",
        marker=palette.marker(badge, color, size=6),
    )
    spread = samples[np.isfinite(samples) & (samples > 0)]
    wide = bool(spread.size) and spread.max() > _LOG_FROM * np.median(spread)
    return picture(
        f"{m.label}: each sample",
        m.evidence,
        describe(m),
        [marks],
        xaxis={"title": "sample"},
        yaxis=log_axis("seconds", spread.tolist(), "time per call (log scale)")
        if wide
        else _linear_seconds(samples[np.isfinite(samples)]),
        shapes=shapes,
        annotations=[note(words, 1, 1, "paper paper right bottom")],
    )


def _linear_seconds(samples: np.ndarray) -> Part:
    """Return an axis from the smallest to the largest sample."""
    low, high = (float(samples.min()), float(samples.max())) if samples.size else (0.0, 1.0)
    margin = 0.08 * (high - low) or 0.05 * high or 1e-9
    return linear_seconds_axis(high + margin, "time per call", low - margin)


# Copies.

# The second symbol is for modelled points, which would otherwise look recorded.
_SYMBOLS = {"pageable": ("circle", "cross"), "pinned": ("diamond", "x")}
_CURVE_POINTS = 160
_LATE = 0.7  # share of the axis beyond which a label right of its line would be cut off
_ROW = 16  # pixels of a line of labels


def sweep(
    s: Sweep | None,
    fit: AlphaBeta | None = None,
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
    fit : AlphaBeta, optional
        Drawn dashed, with the band in which a new measurement should fall 95 times in 100; latency,
        bandwidth and knees are named.
    quantity : str
        "seconds", or "rate" for bytes a second.
    beside : sequence of Sweep
        Recorded or modelled sweeps to draw with it.
    links : sequence of Link
        Drawn as dashed lines over the sizes of the sweeps.
    at_bytes : float, optional
        A size whose predicted time is marked on the fit, with its interval.
    """
    sweeps = ([] if s is None else [s]) + list(beside)
    rate = quantity == "rate"
    sizes = [float(p.nbytes) for one in sweeps for p in one.points] or [2.0**10, 2.0**30]
    curve = np.geomspace(min(sizes), max(sizes), _CURVE_POINTS)
    drawn = [_link_line(link, rate, curve) for link in links]
    for one in sweeps:
        device = one.device if len(sweeps) > 1 else ""
        drawn += [
            _series_points(one.select(*series), one.evidence.badge, rate, device)
            for series in one.series
        ]
    lines, guides = [], []
    if fit is not None:
        lines = _fit_lines(fit, rate, curve)
        guides = _fit_guides(fit, rate, min(sizes), max(sizes))
        drawn += [] if at_bytes is None else [_prediction(fit, rate, at_bytes)]
    levels = _levels(s, fit) if rate else []
    # The labels are left of the middle: there, curves of links lie below the levels and those of
    # caches above them, while at the right end all curves are near the levels. The higher level has
    # its label over its line, the lower one under it.
    guides += [
        guide(value, text, axis="y", x=0.3, xanchor="left", yanchor="top" if k else "bottom")
        for k, (value, text) in enumerate(levels)
    ]
    values = [*extent(drawn), *(value for value, _ in levels)]
    modelled = (f"{link.name}, modelled: {link.evidence.assumptions}." for link in links)
    return picture(
        f"Transfer {'rate' if rate else 'time'} over size",
        [one.evidence for one in sweeps] + [link.evidence for link in links],
        " ".join([describe(*sweeps, *([fit] if fit else [])), *modelled]),
        [*lines, *drawn],
        height=440,
        guides=guides,
        xaxis=log_axis("bytes", [*sizes, at_bytes if fit else None], "size (log scale)"),
        yaxis=log_axis("B/s", values, "rate (log scale)")
        if rate
        else log_axis("seconds", values, "time (log scale)"),
        showlegend=True,
    )


def _link_line(link: Link, rate: bool, x: np.ndarray) -> Part:
    seconds, badge = [link.seconds(n) for n in x], link.evidence.badge
    return trace(
        "lines",
        x,
        list(x / seconds) if rate else seconds,
        f"{link.name} ({badge.lower()})",
        f"{link.name}, %{{customdata}}",
        customdata=[
            f"{format_bytes(n)}: {format_seconds(t)}" for n, t in zip(x, seconds, strict=True)
        ],
        line=palette.line(badge, palette.COPIES["to_device"]),
    )


def _prediction(fit: AlphaBeta, rate: bool, nbytes: float) -> Part:
    low, middle, high = fit.predict(nbytes)
    words = (
        f"predicted, {format_bytes(nbytes)}: {format_seconds(middle)}, 95 % {format_seconds(low)} "
        f"to {format_seconds(high)}"
    )
    low, middle, high = _as_drawn(rate, nbytes, low, middle, high)
    return trace(
        "markers",
        [nbytes],
        [middle],
        words,
        words,
        marker=palette.marker(Badge.MODELLED, palette.VERMILLION, "square", 11),
        error_y=interval_bars([middle], [(low, high)], palette.VERMILLION, 2, 6),
    )


def _as_drawn(rate: bool, nbytes: Any, *seconds: Any) -> Any:
    """Return ascending times as they are, or as ascending rates."""
    return tuple(nbytes / each for each in reversed(seconds)) if rate else seconds


def _series_points(points: Sequence[SweepPoint], badge: Badge, rate: bool, device: str) -> Part:
    first = points[0]
    color = palette.COPIES.get(first.direction, palette.GREY)
    where = ", ".join(filter(None, (first.memory, device)))
    values = [p.bytes_per_second if rate else p.median_seconds for p in points]
    ends = [_as_drawn(rate, p.nbytes, *(p.interval_seconds or ())) for p in points]
    symbol = _SYMBOLS.get(first.memory, ("square", "star"))[badge is Badge.MODELLED]
    return trace(
        "markers",
        [p.nbytes for p in points],
        values,
        f"{SERIES_WORDS.get(first.direction, first.direction)}, {where} ({badge.lower()})",
        map(_point_words, points),
        error_y=interval_bars(values, ends, color),
        marker=palette.marker(badge, color, symbol, 8),
    )


def _point_words(p: SweepPoint) -> str:
    return (
        f"{format_bytes(p.nbytes)}: {format_seconds(p.median_seconds)}, "
        f"{format_bytes_per_second(p.bytes_per_second)}"
    )


def _fit_lines(fit: AlphaBeta, rate: bool, x: np.ndarray) -> list[Part]:
    low, middle, high = _as_drawn(rate, x, *fit.predict(x))
    bandwidth = format_bytes_per_second(fit.bandwidth_bytes_per_second)
    band = trace(
        "lines",
        [*x, *x[::-1]],
        [*high, *low[::-1]],
        "95 % prediction interval",
        fill="toself",
        fillcolor="rgba(127,127,127,0.2)",
        line={"width": 0},
        showlegend=True,
    )
    name = f"fit: {format_seconds(fit.latency_seconds)} + size / {bandwidth}"
    return [band, trace("lines", x, middle, name, line=palette.line(Badge.MODELLED, MID_GREY))]


def _fit_guides(fit: AlphaBeta, rate: bool, low: float, high: float) -> list[Any]:
    """Return labeled lines at the latency, at the size with half the bandwidth, and at knees.

    Time rises from the lower left to the upper right, so its labels are at the upper left; those of
    a rate are at the lower right. Each label has a row of its own, in case they are close together.
    """
    half = fit.half_bandwidth_bytes
    marks = [(half, f"half the bandwidth at {format_bytes(half)}")]
    marks += [(knee, f"knee at {format_bytes(knee)}") for knee in fit.knees_bytes]
    inside = [(nbytes, text) for nbytes, text in marks if low < nbytes < high]
    middle, row = low * (high / low) ** 0.4, _ROW if rate else -_ROW
    guides = [
        guide(n, text, bottom=rate, before=not rate and n > middle, yshift=row * k)
        for k, (n, text) in enumerate(inside)
    ]
    latency = fit.latency_seconds
    if not rate and latency > 0:  # a logarithmic axis has no place for a latency of 0
        guides.append(guide(latency, f"latency {format_seconds(latency)}", axis="y"))
    return guides


def _levels(s: Sweep | None, fit: AlphaBeta | None) -> list[tuple[float, str]]:
    """Return the host's memory bandwidth and the fit's, each with its label, the highest first."""
    ceiling = None if s is None else s.memory_bandwidth_bytes_per_second
    bandwidth = None if fit is None else fit.bandwidth_bytes_per_second
    levels = [
        (rate, f"{name} {format_bytes_per_second(rate)}{what}")
        for rate, name, what in (
            (ceiling, "memory bandwidth", " (reads + writes)"),
            (bandwidth, "bandwidth of the fit", ""),
        )
        if rate is not None
    ]
    return sorted(levels, reverse=True)


def break_even(b: BreakEven) -> LabFigure:
    """Return the times of host and accelerator over the size, with the size above which the
    accelerator is faster.
    """
    sizes = [row.n for row in b.rows]
    host, device = [row.host_seconds for row in b.rows], [row.device_seconds for row in b.rows]
    xaxis = log_axis("count", [*sizes, b.size], "size n (log scale)")
    (left, right), guides, notes = xaxis["range"], [], []
    if b.size is not None:
        late = (math.log10(b.size) - left) / (right - left) > _LATE
        guides = [guide(b.size, f"break-even: n = {b.size}", before=late)]
    else:
        text = f"no break-even up to n = {sizes[-1]}" if sizes else b.reason
        notes = [note(text, 0.01, 0.99, "paper paper left top")]
    return picture(
        f"Break-even of {b.label}, copies counted",
        [e for e in (b.host_evidence, b.evidence) if e is not None],
        describe(b),
        [
            trace(
                "lines+markers",
                sizes,
                seconds,
                f"{name} ({badge.lower()})",
                f"{name}, n = %{{x:d}}: %{{customdata}}",
                customdata=[format_seconds(v) for v in seconds],
                line=palette.line(badge, color),
                marker=palette.marker(badge, color, size=8),
            )
            for name, seconds, color, badge in (
                ("CPU", host, palette.device_color("cpu"), Badge.MEASURED),
                (
                    "accelerator with both copies",
                    device,
                    palette.device_color("cuda"),
                    b.evidence.badge,
                ),
            )
        ],
        height=380,
        xaxis=xaxis,
        yaxis=log_axis("seconds", [*host, *device], "time per call (log scale)"),
        guides=guides,
        annotations=notes,
    )


def overlap(o: Overlap) -> LabFigure:
    """Return the timeline of the overlapped run, with the times of the serial run and of the ideal
    pipeline.
    """
    pieces = plural(o.chunks, "chunk")
    ideal, serial = format_seconds(o.ideal_seconds), format_seconds(o.serial_seconds)
    end = max([span.end_seconds for span in o.timeline] + [o.serial_seconds, o.ideal_seconds])
    by_lane = {
        lane: [one for one in o.timeline if one.lane == lane] for lane in ("copy", "compute")
    }
    traces = [
        trace(
            "bars",
            [span.seconds for span in spans],
            [lane] * len(spans),
            mouse=(f"{lane} {span.chunk + 1}: {format_seconds(span.seconds)}" for span in spans),
            base=[span.start_seconds for span in spans],
            width=0.55,
            marker=bar_marker(
                o.evidence.badge, palette.LANES[lane], [span.seconds for span in spans], end
            ),
        )
        for lane, spans in by_lane.items()
    ]
    marks = (
        (o.ideal_seconds, f"ideal {ideal}", 1.0),
        (o.serial_seconds, f"one after the other {serial}", 1.09),
    )
    return picture(
        f"Copy and compute, {pieces} of {format_bytes(o.nbytes / max(o.chunks, 1))}",
        o.evidence,
        describe(o),
        traces,
        height=300,
        above=32,
        xaxis=linear_seconds_axis(end, "time since the start"),
        yaxis=row_axis(list(by_lane)),
        shapes=[{**upright(seconds), "y1": height} for seconds, _, height in marks],
        annotations=[
            note(text, seconds, height, "x paper right bottom") for seconds, text, height in marks
        ],
        barmode="overlay",
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
    # Each level's name and speed are where the curve is flat: over it for the first level, under it
    # for the others, where a rising curve leaves room.
    sizes, names = [p.nbytes for one in (curve, *beside) for p in one.points], []
    left = math.log10(min(sizes))
    for k, level in enumerate(curve.levels().levels):
        ends = level.between_bytes or (max(sizes),)
        right = max(math.log10(ends[0]), left)
        side, shift = ("top", -8) if k else ("bottom", 8)
        text = f"{level.name}<br>{level.speed_text}"
        height = math.log10(level.latency_seconds or 0.0)
        names.append(note(text, (left + right) / 2, height, yanchor=side, yshift=shift))
        left = math.log10(level.between_bytes[1]) if level.between_bytes else right
    return _working_sets(
        [curve, *beside],
        "Latency over the working set",
        describe(curve, curve.levels(), *beside),
        lambda p: (p.median_seconds, p.interval_seconds, p.least_seconds),
        format_seconds,
        ("seconds", "time per hop (log scale)"),
        names,
    )


def bandwidth(curve: Bandwidth, beside: Sequence[Bandwidth] = ()) -> LabFigure:
    """Return the rate of a stream over the working set, with the caches that the system reports.

    Parameters
    ----------
    curve : Bandwidth
    beside : sequence of Bandwidth
        Recorded curves to draw with it.
    """
    return _working_sets(
        [curve, *beside],
        f"Bandwidth over the working set ({curve.operation})",
        describe(curve, *beside),
        lambda p: (p.bytes_per_second, p.interval_bytes_per_second, p.most_bytes_per_second),
        format_bytes_per_second,
        ("B/s", "rate (log scale)"),
    )


def _working_sets(
    curves: Sequence[Any],
    title: str,
    description: str,
    numbers: Callable[[Any], tuple[Any, Any, Any]],
    text: Callable[[float], str],
    axis: tuple[str, str],
    names: Sequence[Part] = (),
) -> LabFigure:
    """Return curves over the working set, with the caches that the system reports.

    ``numbers`` returns a point's median, its interval, and its best sample; ``axis`` is the
    quantity and the title of the vertical axis.
    """
    traces: list[Part] = []
    for one in curves:
        kind = one.environment.device_kind if one.environment is not None else "cpu"
        points = [
            (p.nbytes, *numbers(p), f"{format_bytes(p.nbytes)}: {text(numbers(p)[0])}")
            for p in one.points
        ]
        traces += _medians(points, one.evidence.badge, palette.device_color(kind), one.device)
    sizes = [float(p.nbytes) for one in curves for p in one.points]
    # the reported sizes that lie inside the axis, labelled above the plot, every second one a row
    # higher, so that neighbors do not overlap
    inside = [cache for cache in curves[0].reported if min(sizes) < cache.size_bytes < max(sizes)]
    look: Part = {"yanchor": "bottom", "xanchor": "center", "xshift": 0}
    guides = [
        guide(cache.size_bytes, str(cache), **look, yshift=_ROW * (k % 2))
        for k, cache in enumerate(sorted(inside, key=lambda cache: cache.size_bytes))
    ]
    return picture(
        title,
        [one.evidence for one in curves],
        description,
        traces,
        height=440,
        above=2 * _ROW,
        guides=guides,
        xaxis=log_axis(
            "bytes",
            sizes,
            "working set (log scale)"
            + ("<br>dashed: cache sizes that the system reports" if guides else ""),
        ),
        yaxis=log_axis(axis[0], extent(traces), axis[1]),
        annotations=names,
        showlegend=True,
    )


def parallel_chains(both: ParallelChains) -> LabFigure:
    """Return the time of a hop over the number of parallel chains, with the ideal of perfect
    overlap.

    Parameters
    ----------
    both : ParallelChains
    """
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
    counts = [p.chains for p in both.points]
    hidden = [both.points[0].least_seconds / n for n in counts]
    line = palette.line(Badge.MODELLED, MID_GREY)
    ideal = trace("lines", counts, hidden, "latency / chains", line=line)
    traces = [*_medians(points, both.evidence.badge, palette.BLUE, both.device), ideal]
    return picture(
        f"Independent loads in parallel, {format_bytes(both.nbytes)}",
        both.evidence,
        describe(both),
        traces,
        height=380,
        xaxis=log_axis("count", counts, "parallel chains (log scale)", counts),
        yaxis=log_axis("seconds", extent(traces), "time per hop (log scale)"),
        showlegend=True,
    )


def _medians(
    points: Sequence[tuple[Any, ...]], badge: Badge, color: str, device: str
) -> list[Part]:
    """Return the fastest samples as a thin line, and medians with their intervals.

    A point is its x, median, interval, best sample and hover text.
    """
    x, middle, spans, best, words = (list(part) for part in zip(*points, strict=True))
    ends = [
        (min(span[0], value), max(span[1], value)) if span else (value, value)
        for span, value in zip(spans, middle, strict=True)
    ]
    line = palette.line(badge, color, 1.5)
    medians = trace(
        "markers",
        x,
        middle,
        f"median and 95 % interval, {device} ({badge.lower()})",
        words,
        error_y=interval_bars(middle, ends, color),
        marker=palette.marker(badge, color, "circle", 8),
    )
    return [trace("lines", x, best, f"fastest sample, {device}", line=line), medians]
