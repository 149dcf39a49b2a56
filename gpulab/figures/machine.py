"""The figure of a machine: the capacity of each of its memories, from the smallest cache to the
accelerator's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulab.figures import palette
from gpulab.figures._style import AXIS, LabFigure, apart, bytes_axis, frame, ink
from gpulab.units import format_bytes

if TYPE_CHECKING:
    from gpulab.devices import Machine


def machine(m: Machine) -> LabFigure:
    """Return the sizes of the memories on one logarithmic axis, fastest and smallest on top."""
    levels = _levels(m)
    words = ", ".join(f"{name} {format_bytes(size)}{extra}" for name, size, extra, _ in levels)
    figure = frame(
        "Capacity of each memory",
        m.evidence,
        f"Sizes of the memories of this machine: {words}.",
        height=150 + 30 * len(levels),
    )
    axis = bytes_axis([size for _, size, _, _ in levels], "bytes (log scale)")
    low, high = axis["range"]
    axis["range"] = [low, high + 0.25 * (high - low)]  # room for the labels
    for name, size, extra, device in levels:
        color = palette.device_color(device)
        figure.add_scatter(
            x=[10**low, size],
            y=[name, name],
            mode="lines",
            line={"color": AXIS, "width": 1},
            hoverinfo="skip",
            showlegend=False,
        )
        figure.add_scatter(
            x=[size],
            y=[name],
            mode="markers+text",
            marker=palette.marker(m.evidence.badge, color),
            showlegend=False,
            cliponaxis=False,
            text=[ink(f"{format_bytes(size)}{extra}")],
            textposition="middle right",
            hovertemplate=f"{name}<extra></extra>",
        )
    names = [name for name, *_ in levels]
    figure.update_xaxes(**axis)
    figure.update_yaxes(
        type="category",
        autorange="reversed",
        tickmode="array",
        tickvals=names,
        ticktext=[ink(n) for n in names],
        tickprefix="",
        ticksuffix="",
    )
    return figure


def _levels(m: Machine) -> list[tuple[str, float, str, str]]:
    """Return name, bytes, an addition to the label and the device of each memory that the machine
    reports.
    """
    levels: list[tuple[str, float, str, str]] = [
        (f"CPU {cache.level}", cache.size_bytes, cache.count_words, "cpu")
        for cache in m.processor.caches
    ]
    granted = m.memory.limit_bytes or m.memory.installed_bytes
    levels.append(
        ("main memory", granted, f", {format_bytes(m.memory.available_bytes)} free", "cpu")
    )
    for gpu in m.accelerators:
        where = gpu.device or f"{gpu.kind} (unused)"
        if gpu.l2_bytes:
            levels.append((f"{where} L2", gpu.l2_bytes, "", gpu.kind))
        if gpu.memory_bytes:
            free = f", {format_bytes(gpu.free_bytes)} free" if gpu.free_bytes is not None else ""
            levels.append((f"{where} memory", gpu.memory_bytes, free, gpu.kind))
    names = apart([name for name, *_ in levels])  # several GPUs may be unused
    return [
        (name, size, extra, device)
        for name, (_, size, extra, device) in zip(names, levels, strict=True)
    ]
