"""Figures of memory: the timeline of a step, the memory in use, whether a step will fit on a device
or each rank of several, and the memories that a machine has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    AXIS,
    MID_GREY,
    LabFigure,
    Part,
    apart,
    describe,
    faded,
    ink,
    linear_bytes_axis,
    log_axis,
    note,
    picture,
    row_axis,
    trace,
    upright,
)
from gpulab.units import format_bytes

if TYPE_CHECKING:
    from gpulab.devices import Machine
    from gpulab.memory import MemoryTrace, Prediction, Snapshot, Timeline
    from gpulab.parallel import RankMemory, RankStates

# More points than pixels only cost time: each bucket keeps its highest point, so no peak is lost.
_MOST_POINTS = 500
# Shares of a timeline's length: the width of a phase's name at 900 pixels, and the length below
# which a phase is too short to be seen.
_NAME, _SLIVER = 0.07, 0.015
_HIGHER = 15  # pixels from one line of names to the next
# Free memory of more than this many times the longest bar would make the bars too short to read: a
# label gives it, and it is not drawn to scale.
_FAR, _NEAR = 4.0, 1.15
_STACKED: Part = {"barmode": "stack", "legend": {"traceorder": "normal"}}
# What each part of a rank's bar is called, its color, and the pattern that distinguishes it without
# color.
_PARTS = {
    "parameters": (palette.memory_color("parameters"), "/"),
    "optimizer": (palette.memory_color("optimizer"), "\\"),
    "gradients": (palette.memory_color("gradients"), "x"),
    "communication": (palette.VERMILLION, "-"),
    "activations": (palette.memory_color("activations"), "|"),
    "inputs": (palette.memory_color("inputs"), "."),
    "temporary": (palette.memory_color("temporary"), "+"),
    "inside operators": (palette.GREY, ""),
    "margin": ("#C8C8C8", ""),
}


def memory_timeline(t: MemoryTrace | Prediction) -> LabFigure:
    """Return the live bytes by category after each operator of the traced or predicted training
    steps, with the peak marked.

    Parameters
    ----------
    t : MemoryTrace or Prediction
        A prediction's areas are hatched, a trace's are solid.
    """
    line, total, count = t.timeline, t.timeline.total_bytes, len(t.timeline.steps)
    modelled = t.evidence.badge is not Badge.MEASURED
    steps = {0: "", 1: "one training step of "}.get(count, f"{count} training steps of ")
    keep = _thinned(total)
    names = [line.operators[k].removeprefix("aten.").removesuffix(".default") for k in keep]
    drawn = {
        category: np.asarray(values)[keep]
        for category, values in line.bytes_by_category.items()
        if np.any(values)
    }
    colors = {category: palette.memory_color(category) for category in drawn}
    opacity, shape = (0.35, "/") if modelled else (0.75, "")
    traces = [
        trace(
            "lines",
            keep,
            kept,
            category,
            (
                f"{category} {format_bytes(n)} after {name}"
                for n, name in zip(kept, names, strict=True)
            ),
            stackgroup="bytes",
            line={"width": 1, "color": colors[category], "shape": "hv"},
            fillcolor=faded(colors[category], opacity),
            fillpattern={"shape": shape, "fgcolor": colors[category], "size": 7},
        )
        for category, kept in drawn.items()
    ]
    high, marks = float(total.max()) if total.size else 1.0, []
    runs, phases = _phase_runs(line), []
    if total.size:
        peak = int(total.argmax())
        arrow = {"showarrow": True, "arrowhead": 0, "arrowcolor": MID_GREY, "ax": 0, "ay": -22}
        side = "left" if peak < total.size / 2 else "right"
        marks = [{**note(f"peak {format_bytes(high)}", peak, high, f"x y {side}"), **arrow}]
        phases = _phase_names(runs, len(line))
    return picture(
        f"Memory of {steps}{t.label}",
        t.evidence,
        describe(t),
        traces,
        height=400,
        above=_HIGHER if any(name["yshift"] for name in phases) else 0,
        xaxis={
            "title": "operator (in order of execution)",
            "range": [0, max(total.size - 1, 1)],
            "showgrid": False,
        },
        yaxis=linear_bytes_axis(1.12 * high, "live bytes"),
        shapes=[upright(begin, width=1, dash="dot") for begin, *_ in runs if begin],
        annotations=[*marks, *phases],
        showlegend=True,  # also where all tensors are of one category
    )


def _thinned(total: np.ndarray) -> np.ndarray:
    """Return the indices to draw: all, or the first and the highest of each of some hundred
    buckets.
    """
    if total.size <= _MOST_POINTS:
        return np.arange(total.size)
    edges = np.linspace(0, total.size, _MOST_POINTS // 2 + 1).astype(int)
    kept = {0, total.size - 1}
    for a, b in itertools.pairwise(edges):
        kept |= {int(a), int(a + np.argmax(total[a:b]))}
    return np.array(sorted(kept))


def _phase_runs(line: Timeline) -> list[tuple[int, int, str]]:
    """Return (begin, end, name) of each phase of each step; a phase too short to be seen is part of
    the next one.
    """
    length = len(line)
    begins = [
        k
        for k in range(length)
        if k == 0 or line.phases[k] != line.phases[k - 1] or k in line.steps
    ]
    runs: list[tuple[int, int, str]] = []
    for k, after in itertools.pairwise([*begins, length]):
        begin, name = runs[-1][1] if runs else 0, line.phases[k]
        if after - k < _SLIVER * length:
            continue
        if runs and runs[-1][2] == name and not any(begin <= step <= k for step in line.steps):
            begin = runs.pop()[0]
        runs.append((begin, after, name))
    return [*runs[:-1], (runs[-1][0], length, runs[-1][2])] if runs else []


def _phase_names(runs: Sequence[tuple[int, int, str]], length: int) -> list[Part]:
    """Return labels with the names of the phases. A name wider than its phase is one line higher;
    of many short phases, only as many have a name as fit beside each other.
    """
    names, last = [], -math.inf
    for begin, after, name in runs:
        # the axis ends at the last operator
        middle, narrow = (begin + min(after, length - 1)) / 2, after - begin <= _NAME * length
        if not narrow or middle - last > _NAME * length:
            names.append(
                note(
                    name,
                    middle,
                    1,
                    "x paper",
                    yanchor="bottom",
                    yshift=_HIGHER if narrow else 0,
                )
            )
            last = middle if narrow else last
    return names


# Bars whose parts add up.


def _bars(
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    looks: Mapping[str, tuple[str, str]],
    opacity: float = 0.35,
    width: float = 0.6,
) -> list[Part]:
    """Return a trace for each part of the bars that is not zero in all of them; ``looks`` gives its
    color and pattern.
    """
    return [
        trace(
            "bars",
            [float(value) for value in values],
            list(names),
            part,
            f"{part}: %{{customdata}}",
            customdata=[format_bytes(value) for value in values],
            width=width,
            marker={
                "color": faded(looks[part][0], opacity),
                "line": {"color": looks[part][0], "width": 1.5},
                "pattern": {"shape": looks[part][1], "fgcolor": looks[part][0], "size": 7},
            },
        )
        for part, values in parts.items()
        if any(values)
    ]


def _limit(nbytes: float, text: str, anchor: str, width: float = 2) -> Part:
    """Return the layout of a capacity's line and its label; with a width of 0, only the label."""
    return {
        "shapes": [upright(nbytes, width=width)] if width else [],
        "annotations": [note(text, nbytes, 1, f"x paper {anchor} bottom")],
    }


def memory_prediction(
    predictions: Prediction | Sequence[Prediction],
    labels: Sequence[str] = (),
    free_bytes: float | None = None,
    device_kind: str = "cpu",
) -> LabFigure:
    """Return one bar per prediction: the parts of the peak, the scratch memory of operators, the
    margin, and the free memory.

    Parameters
    ----------
    predictions : Prediction or several
    labels : sequence of str
        One per prediction, such as "batch 32"; by default the model's name. Equal labels are
        numbered.
    free_bytes : float, optional
        Drawn as a labeled line: bars beyond it do not fit.
    device_kind : str
        Determines the margin.
    """
    several = list(predictions) if isinstance(predictions, Sequence) else [predictions]
    names = apart(list(labels) or [f"{p.label}, {p.precision}" for p in several])
    bars = [_parts_of(p, device_kind) for p in several]
    categories = (category for p in several for category in p.peak_by_category)
    order = dict.fromkeys([*categories, "inside operators", "margin"])
    parts = {part: [bar.get(part, 0) for bar in bars] for part in order}
    largest, limit = float(max(p.needed_bytes(device_kind) for p in several)), {}
    width = max(largest, free_bytes or 0.0)
    if free_bytes is not None:
        far = free_bytes > _FAR * largest
        width = _NEAR * largest if far else width
        text = f"free: {format_bytes(free_bytes)}{', far to the right' if far else ''}"
        limit = _limit(width if far else free_bytes, text, "right", 0 if far else 2)
    return picture(
        "Predicted memory of a training step",
        [p.evidence for p in several],
        describe(*several),
        _bars(names, parts, {part: (palette.memory_color(part), "/") for part in parts}),
        height=234 + 44 * len(several),
        margin={"b": 100},
        xaxis=linear_bytes_axis(width, "bytes"),
        yaxis=row_axis(names),
        **_STACKED,
        **limit,
    )


def memory_snapshot(s: Snapshot) -> LabFigure:
    """Return one bar that accounts for all of a device's bytes, part by part."""
    looks = {part: (palette.memory_color(part), "") for part in s.parts}
    return picture(
        f"Memory in use on {s.device}",
        s.evidence,
        describe(s),
        _bars([s.device], {part: [nbytes] for part, nbytes in s.parts.items()}, looks, 0.9),
        height=274,
        margin={"b": 100},
        xaxis=linear_bytes_axis(float(s.total_bytes), "bytes"),
        yaxis=row_axis([s.device]),
        **_STACKED,
    )


def rank_memory(
    results: Sequence[RankMemory | RankStates],
    capacity_bytes: float | None = None,
    capacity_name: str = "",
) -> LabFigure:
    """Return one bar per strategy: the peak of a rank by category with scratch and margin, or only
    the states if no more is known.

    Parameters
    ----------
    results : sequence of RankMemory or RankStates
    capacity_bytes : float, optional
        Drawn as a labeled line: bars beyond it do not fit.
    capacity_name : str
        Of the GPU.
    """
    names = apart(
        [
            # an attribute decides, so that ``gpulab.parallel`` need not be imported
            one.strategy if hasattr(one, "peak_by_category") else f"{one.strategy} (states only)"
            for one in results
        ]
    )
    bars = [_parts_of(one) for one in results]
    largest, limit = max([1.0, *(sum(bar.values()) for bar in bars), capacity_bytes or 0.0]), {}
    if capacity_bytes is not None:
        text = f"{capacity_name}: {format_bytes(capacity_bytes)}"
        limit = _limit(capacity_bytes, text, "right" if capacity_bytes > largest / 2 else "left")
    whose = f" of {results[0].ranks}: {results[0].label}" if results else ""
    parts = {part: [bar.get(part, 0) for bar in bars] for part in _PARTS}
    return picture(
        f"Memory of one rank{whose}",
        [one.evidence for one in results],
        describe(*results),
        _bars(names, parts, _PARTS, width=0.62),
        height=250 + 34 * len(bars),
        xaxis=linear_bytes_axis(1.05 * largest, "bytes per rank"),
        yaxis=row_axis(names),
        **_STACKED,
        **limit,
    )


def _parts_of(one: Any, device_kind: str = "cuda") -> dict[str, int]:
    """Return the parts of a bar in bytes, in the order drawn; of ``RankStates``, the states
    only.
    """
    if hasattr(one, "peak_by_category"):
        margin = one.needed_bytes(device_kind) - one.peak_bytes - one.scratch_bytes
        return {**one.peak_by_category, "inside operators": one.scratch_bytes, "margin": margin}
    return {
        "parameters": one.parameters_bytes,
        "optimizer": one.optimizer_bytes,
        "gradients": one.gradients_bytes,
    }


def machine(m: Machine) -> LabFigure:
    """Return the sizes of the memories on one logarithmic axis, fastest and smallest on top."""
    # name, bytes, an addition to the label, and the device of each memory that is reported
    granted = m.memory.limit_bytes or m.memory.installed_bytes
    free = f", {format_bytes(m.memory.available_bytes)} free"
    levels: list[tuple[str, float, str, str]] = [
        *((f"CPU {c.level}", c.size_bytes, c.count_words, "cpu") for c in m.processor.caches),
        ("main memory", granted, free, "cpu"),
    ]
    for gpu in m.accelerators:
        where = gpu.device or f"{gpu.kind} (unused)"
        if gpu.l2_bytes:
            levels.append((f"{where} L2", gpu.l2_bytes, "", gpu.kind))
        if gpu.memory_bytes:
            free = f", {format_bytes(gpu.free_bytes)} free" if gpu.free_bytes is not None else ""
            levels.append((f"{where} memory", gpu.memory_bytes, free, gpu.kind))
    names = apart([name for name, *_ in levels])  # several GPUs may be unused
    labels = [f"{format_bytes(size)}{extra}" for _, size, extra, _ in levels]
    sizes = ", ".join(f"{name} {label}" for name, label in zip(names, labels, strict=True))
    axis = log_axis("bytes", [size for _, size, _, _ in levels], "bytes (log scale)")
    low, high = axis["range"]
    traces: list[Part] = []
    for name, label, (_, size, _, device) in zip(names, labels, levels, strict=True):
        line = trace("lines", [10**low, size], [name, name], line={"color": AXIS, "width": 1})
        mark = trace(
            "markers+text",
            [size],
            [name],
            mouse=name,
            marker=palette.marker(m.evidence.badge, palette.device_color(device)),
            cliponaxis=False,
            text=[ink(label)],
            textposition="middle right",
        )
        traces += [line, mark]
    return picture(
        "Capacity of each memory",
        m.evidence,
        f"{describe(m)} {sizes}.",
        traces,
        height=150 + 30 * len(levels),
        xaxis={**axis, "range": [low, high + 0.55 * (high - low)]},
        yaxis=row_axis(names, showgrid=True),
    )
