"""The figure of memory per rank: one bar per strategy with its parts, and the capacity of the
GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulab.figures import palette
from gpulab.figures._style import MID_GREY, LabFigure, apart, frame, ink, linear_bytes_axis
from gpulab.units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from gpulab.parallel import RankMemory, RankStates

# What each part of a bar is called, its colour, and the pattern that tells it apart without colour.
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
_STATES_ONLY = " (states only)"


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
    bars = list(zip(apart([label_of(one) for one in results]), map(parts_of, results), strict=True))
    totals = [sum(parts.values()) for _, parts in bars]
    words = "; ".join(
        f"{label}: {format_bytes(total)}" for (label, _), total in zip(bars, totals, strict=True)
    )
    line = (
        ""
        if capacity_bytes is None
        else f" {capacity_name or 'The GPU'} has {format_bytes(capacity_bytes)}."
    )
    title = (
        f"Memory of one rank of {results[0].ranks}: {results[0].label}"
        if results
        else "Memory of one rank"
    )
    figure = frame(
        title, [one.evidence for one in results], f"{words}.{line}", height=250 + 34 * len(bars)
    )
    names = [label for label, _ in bars]
    for part, (color, pattern) in _PARTS.items():
        values = [float(parts.get(part, 0)) for _, parts in bars]
        if any(values):
            figure.add_bar(
                orientation="h",
                y=names,
                x=values,
                name=ink(part),
                width=0.62,
                marker={
                    "color": _faded(color),
                    "line": {"color": color, "width": 1.5},
                    "pattern": {"shape": pattern, "fgcolor": color, "size": 7},
                },
                customdata=[format_bytes(v) for v in values],
                hovertemplate=f"{part}: %{{customdata}}<extra></extra>",
            )
    largest = max([1.0, *totals, capacity_bytes or 0.0])
    if capacity_bytes is not None:
        stroke = {"color": MID_GREY, "width": 2, "dash": "dash"}
        figure.add_shape(
            type="line",
            x0=capacity_bytes,
            x1=capacity_bytes,
            xref="x",
            y0=0,
            y1=1,
            yref="paper",
            line=stroke,
        )
        anchor = "right" if capacity_bytes > 0.5 * largest else "left"
        text = ink(f"{capacity_name}: {format_bytes(capacity_bytes)}")
        figure.add_annotation(
            x=capacity_bytes,
            xref="x",
            y=1,
            yref="paper",
            yanchor="bottom",
            xanchor=anchor,
            showarrow=False,
            text=text,
        )
    figure.update_xaxes(**linear_bytes_axis(1.05 * largest, "bytes per rank"))
    figure.update_yaxes(
        type="category",
        autorange="reversed",
        tickvals=names,
        ticktext=[ink(n) for n in names],
        tickprefix="",
        ticksuffix="",
        showgrid=False,
    )
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    return figure


def label_of(one: RankMemory | RankStates) -> str:
    """Return the strategy, and whether its bar is only a part."""
    return one.strategy + _STATES_ONLY if _is_states(one) else one.strategy


def parts_of(one: RankMemory | RankStates) -> dict[str, int]:
    """Return the parts of a bar in bytes, in the order drawn."""
    if not _is_states(one):
        margin = one.needed_bytes("cuda") - one.peak_bytes - one.scratch_bytes
        return {**one.peak_by_category, "inside operators": one.scratch_bytes, "margin": margin}
    return {
        "parameters": one.parameters_bytes,
        "optimizer": one.optimizer_bytes,
        "gradients": one.gradients_bytes,
    }


def _is_states(one: RankMemory | RankStates) -> TypeIs[RankStates]:
    """Return whether a result has states only; asked by name, so that drawing imports no
    parallelism.
    """
    return not hasattr(one, "peak_by_category")


def _faded(color: str) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.35)"
