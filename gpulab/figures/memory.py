"""Figures of memory: the timeline of a step, the memory in use on a device, and whether a step will
fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    MID_GREY,
    LabFigure,
    apart,
    frame,
    ink,
    linear_bytes_axis,
    more_top,
)
from gpulab.units import format_bytes

if TYPE_CHECKING:
    from gpulab.memory import MemoryTrace, Prediction, Snapshot, Timeline

# More points than pixels only cost time: each bucket keeps its highest point, so no peak is lost.
_MOST_POINTS = 500
# Of a timeline's length: what the name of a phase takes at 900 pixels, and what is too short to be
# seen.
_NAME, _SLIVER = 0.07, 0.015
_HIGHER = 15  # pixels from one line of names to the next
# Free memory of more than this many times the longest bar would make the bars too short to read: it
# is told, not drawn to scale.
_FAR, _NEAR = 4.0, 1.15


def memory_timeline(t: MemoryTrace | Prediction) -> LabFigure:
    """Return the live bytes by category after each operator of the training steps that were
    followed, with the peak marked.

    Parameters
    ----------
    t : MemoryTrace or Prediction
        A prediction's areas are hatched, a trace's are solid.
    """
    line = t.timeline
    modelled = t.evidence.badge is not Badge.MEASURED
    by_category = ", ".join(
        f"{name} {format_bytes(n)}" for name, n in t.peak_by_category.items() if n
    )
    count = len(line.steps)
    what = (
        t.label
        if count < 1
        else f"one training step of {t.label}"
        if count == 1
        else f"{count} training steps of {t.label}"
    )
    words = (
        f"Live bytes during {what}: the peak is {format_bytes(t.peak_bytes)} in the "
        f"{t.peak_phase} ({by_category})."
    )
    figure = frame(f"Memory of {what}", t.evidence, words, height=400)
    keep = _thinned(line.total_bytes)
    for category, values in line.bytes_by_category.items():
        if not np.any(values):
            continue
        color = palette.memory_color(category)
        figure.add_scatter(
            x=keep,
            y=np.asarray(values)[keep],
            stackgroup="bytes",
            mode="lines",
            line={"width": 1, "color": color, "shape": "hv"},
            name=ink(category),
            fillcolor=_faded(color, 0.35 if modelled else 0.75),
            fillpattern={"shape": "/" if modelled else "", "fgcolor": color, "size": 7},
            customdata=[
                f"{category} {format_bytes(values[k])} after {_short(line.operators[k])}"
                for k in keep
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    total = line.total_bytes
    high = float(total.max()) if total.size else 1.0
    if total.size:
        _mark_peak(figure, int(total.argmax()), high, total.size)
        _mark_phases(figure, line)
    figure.update_xaxes(
        title={"text": ink("operator (in order of execution)")},
        range=[0, max(total.size - 1, 1)],
        showgrid=False,
    )
    figure.update_yaxes(**linear_bytes_axis(1.12 * high, "live bytes"))
    figure.update_layout(showlegend=True)  # also where all tensors are of one category
    return figure


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


def _mark_peak(figure: LabFigure, index: int, nbytes: float, length: int) -> None:
    anchor = "left" if index < 0.5 * length else "right"
    figure.add_annotation(
        x=index,
        y=nbytes,
        xref="x",
        yref="y",
        text=ink(f"peak {format_bytes(nbytes)}"),
        showarrow=True,
        arrowhead=0,
        arrowcolor=MID_GREY,
        ax=0,
        ay=-22,
        xanchor=anchor,
    )


def _phase_runs(line: Timeline) -> list[tuple[int, int, str]]:
    """Return (begin, end, name) of each phase of each step; a run too short to be seen belongs to
    the next one.
    """
    length = len(line)
    begins = [
        k
        for k in range(length)
        if k == 0 or line.phases[k] != line.phases[k - 1] or k in line.steps
    ]
    runs: list[tuple[int, int, str]] = []
    for k, after in zip(begins, [*begins[1:], length], strict=True):
        begin, name = runs[-1][1] if runs else 0, line.phases[k]
        if after - k < _SLIVER * length:
            continue
        if runs and runs[-1][2] == name and not any(begin <= step <= k for step in line.steps):
            begin = runs.pop()[0]
        runs.append((begin, after, name))
    return [*runs[:-1], (runs[-1][0], length, runs[-1][2])] if runs else []


def _mark_phases(figure: LabFigure, line: Timeline) -> None:
    """Draw a thin line where a phase begins and name it; a name wider than its phase goes one line
    higher.
    """
    length, last = len(line), -math.inf
    for begin, after, name in _phase_runs(line):
        if begin:
            stroke = {"color": MID_GREY, "width": 1, "dash": "dot"}
            figure.add_shape(
                type="line", x0=begin, x1=begin, xref="x", y0=0, y1=1, yref="paper", line=stroke
            )
        middle = (begin + after) / 2
        narrow = after - begin <= _NAME * length
        if narrow and middle - last <= _NAME * length:
            continue  # of many short steps only as many names as fit beside each other
        if narrow and last == -math.inf:
            more_top(figure, _HIGHER)
        last = middle if narrow else last
        figure.add_annotation(
            x=middle,
            xref="x",
            y=1,
            yref="paper",
            yanchor="bottom",
            yshift=_HIGHER if narrow else 0,
            showarrow=False,
            text=ink(name),
        )


def _short(operator: str) -> str:
    return operator.removeprefix("aten.").removesuffix(".default")


def _faded(color: str, opacity: float) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


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
    needed = [p.needed_bytes(device_kind) for p in several]
    words = "; ".join(
        f"{name}: peak {format_bytes(p.peak_bytes)}, needs {format_bytes(n)}"
        for name, p, n in zip(names, several, needed, strict=True)
    )
    end = "" if free_bytes is None else f" {format_bytes(free_bytes)} are free."
    figure = frame(
        "Predicted memory of a training step",
        [p.evidence for p in several],
        f"{words}.{end}",
        height=190 + 44 * len(several),
    )
    parts: dict[str, list[float]] = {
        category: [float(p.peak_by_category.get(category, 0)) for p in several]
        for category in _categories(several)
    }
    parts["inside operators"] = [float(p.scratch_bytes) for p in several]
    parts["margin"] = [
        float(n - p.peak_bytes - p.scratch_bytes) for n, p in zip(needed, several, strict=True)
    ]
    for part, values in parts.items():
        if any(values):
            _add_bar(figure, part, names, values, modelled=True)
    largest = float(max(needed))
    far = free_bytes is not None and free_bytes > _FAR * largest
    if free_bytes is not None:
        _free_line(
            figure,
            _NEAR * largest if far else free_bytes,
            f"free: {format_bytes(free_bytes)}{', far to the right' if far else ''}",
            far,
        )
    figure.update_xaxes(
        **linear_bytes_axis(_NEAR * largest if far else max(largest, free_bytes or 0.0), "bytes")
    )
    _name_rows(figure, names)
    return figure


def _categories(predictions: Sequence[Prediction]) -> list[str]:
    return list(dict.fromkeys(category for p in predictions for category in p.peak_by_category))


def _add_bar(
    figure: LabFigure, part: str, names: Sequence[str], values: Sequence[float], modelled: bool
) -> None:
    color = palette.memory_color(part)
    marker = {
        "color": _faded(color, 0.35 if modelled else 0.9),
        "line": {"color": color, "width": 1.5},
    }
    if modelled:
        marker["pattern"] = {"shape": "/", "fgcolor": color, "size": 7}
    figure.add_bar(
        orientation="h",
        y=list(names),
        x=list(values),
        name=ink(part),
        marker=marker,
        width=0.6,
        customdata=[format_bytes(v) for v in values],
        hovertemplate=f"{part}: %{{customdata}}<extra></extra>",
    )


def _free_line(figure: LabFigure, nbytes: float, text: str, far: bool) -> None:
    if not far:
        stroke = {"color": MID_GREY, "width": 2, "dash": "dash"}
        figure.add_shape(
            type="line", x0=nbytes, x1=nbytes, xref="x", y0=0, y1=1, yref="paper", line=stroke
        )
    figure.add_annotation(
        x=nbytes,
        xref="x",
        y=1,
        yref="paper",
        yanchor="bottom",
        xanchor="right",
        showarrow=False,
        text=ink(text),
    )


def _name_rows(figure: LabFigure, names: Sequence[str]) -> None:
    figure.update_yaxes(
        type="category",
        autorange="reversed",
        tickvals=list(names),
        ticktext=[ink(n) for n in names],
        tickprefix="",
        ticksuffix="",
        showgrid=False,
    )
    figure.update_layout(
        barmode="stack", legend_traceorder="normal", margin_b=100, height=figure.layout.height + 44
    )


def memory_snapshot(s: Snapshot) -> LabFigure:
    """Return one bar that accounts for all of a device's bytes, part by part."""
    words = ", ".join(f"{part} {format_bytes(n)}" for part, n in s.parts.items())
    figure = frame(
        f"Memory in use on {s.device}",
        s.evidence,
        f"{format_bytes(s.total_bytes)} of {s.device_name}: {words}.",
        height=230,
    )
    for part, nbytes in s.parts.items():
        if nbytes:
            _add_bar(figure, part, [s.device], [float(nbytes)], modelled=False)
    figure.update_xaxes(**linear_bytes_axis(float(s.total_bytes), "bytes"))
    _name_rows(figure, [s.device])
    return figure
