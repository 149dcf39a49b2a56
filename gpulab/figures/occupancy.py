"""The figure of an occupancy as a function of block size, registers and shared memory, with the
launch marked on each curve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulab.figures import palette
from gpulab.figures._style import MID_GREY, LabFigure, composed, frame, ink, linear_axis
from gpulab.units import format_bytes, plural

if TYPE_CHECKING:
    from gpulab.models import Occupancy, OccupancySweep

# Axis -> its title, where the picture has it, and how its line runs: a block size counts as the
# next whole warp, so the line steps up before the value; registers and shared memory hold until the
# next step begins.
_PANELS = {
    "threads_per_block": ("threads per block", (0.0, 0.295), "vh"),
    "registers_per_thread": ("registers per thread", (0.3525, 0.6475), "hv"),
    "shared_bytes_per_block": ("KiB of shared memory per block", (0.705, 1.0), "hv"),
}
_NOUNS = {
    "threads_per_block": "threads",
    "registers_per_thread": "registers",
    "shared_bytes_per_block": "of shared memory",
}
_CURVES = {
    "threads_per_block": "block sizes",
    "registers_per_thread": "registers",
    "shared_bytes_per_block": "shared memory",
}
_KIB = 1024
# What limits, as words, symbol and colour; the symbols alone tell them apart.
_LIMITERS = {
    "warps": ("warp slots", "circle-open", palette.BLUISH_GREEN),
    "registers": ("registers", "square-open", palette.ORANGE),
    "shared": ("shared memory", "diamond-open", palette.BLUE),
    "blocks": ("block slots", "triangle-up-open", palette.REDDISH_PURPLE),
    "barriers": ("barriers", "x-open", palette.GREY),
    "virtual": ("virtual resources", "star-open", palette.SKY_BLUE),
}


def occupancy(launch: Occupancy) -> LabFigure:
    """Return the occupancy over block size, registers and shared memory: three curves through one
    launch, which is marked on each.

    Parameters
    ----------
    launch : Occupancy
        From ``gl.models.occupancy``.

    Returns
    -------
    LabFigure
        Along each curve the other two arguments are constant; the marks show which resource is the
        limit from there on.
    """
    from gpulab.models import occupancy_sweep

    held = (
        f"{plural(launch.blocks_per_sm, 'block')} x {plural(launch.warps_per_block, 'warp')} "
        f"in {launch.sm.warps} slots"
    )
    title = (
        f"Occupancy {launch.ratio:.1%} on compute capability {launch.compute_capability}: {held}"
    )
    sweeps = [occupancy_sweep(launch, axis) for axis in _PANELS]
    base = frame(title, launch.evidence, _describe(launch, sweeps), height=400)
    plain = base.layout.xaxis.to_plotly_json()
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    rises = {
        "tickmode": "array",
        "tickvals": ticks,
        "tickprefix": "",
        "ticksuffix": "",
        "range": [-0.04, 1.14],
    }
    axes: dict[str, Any] = {}
    traces: list[dict[str, Any]] = []
    legend: set[str] = set()
    for number, (one, (words, domain, shape)) in enumerate(
        zip(sweeps, _PANELS.values(), strict=True), start=1
    ):
        end = "" if number == 1 else str(number)
        value = getattr(launch, one.axis)
        axes[f"xaxis{end}"] = {
            **plain,
            **_x_axis(one, value, words),
            "domain": domain,
            "anchor": f"y{end}",
        }
        texts = [ink(f"{tick:.0%}") for tick in ticks] if number == 1 else [""] * len(ticks)
        heading = {"title": {"text": ink("occupancy")}} if number == 1 else {}
        axes[f"yaxis{end}"] = {
            **plain,
            **rises,
            **heading,
            "ticktext": texts,
            "anchor": f"x{end}",
            "domain": [0, 1],
        }
        traces += [
            {**trace, "xaxis": f"x{end}", "yaxis": f"y{end}"}
            for trace in _curve(one, shape, legend)
        ]
        traces.append(
            {
                **_here(launch, one),
                "xaxis": f"x{end}",
                "yaxis": f"y{end}",
                "showlegend": number == 1,
            }
        )
    return composed(base, traces, **axes)


def _x_axis(one: OccupancySweep, value: int, words: str) -> dict[str, Any]:
    """Ticks at multiples of a warp's or a page's size, in KiB for shared memory; the launch is on
    the axis wherever it is.
    """
    step, unit = {"threads_per_block": (256, 1), "registers_per_thread": (64, 1)}.get(
        one.axis, (64 * _KIB, _KIB)
    )
    end = max(one.values[-1], value)
    ticks = list(range(0, end + 2, step))
    axis = linear_axis(float(end), words, str)
    return {**axis, "tickvals": ticks, "ticktext": [ink(f"{tick // unit:,}") for tick in ticks]}


def _curve(one: OccupancySweep, shape: str, legend: set[str]) -> list[dict[str, Any]]:
    """The dashed line, and a mark wherever it steps (on every whole warp for block sizes), by what
    limits there.
    """
    steps = range(len(one.values)) if one.axis == "threads_per_block" else sorted({0, *one.steps()})
    ends = sorted({*steps, len(one.values) - 1})
    line = {"color": MID_GREY, "width": 1.5, "dash": "dash", "shape": shape}
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [one.values[k] for k in ends],
            "y": [one.ratio[k] for k in ends],
            "line": line,
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    for limiter, (name, symbol, color) in _LIMITERS.items():
        marked = [k for k in steps if one.limiter[k] == limiter]
        if not marked:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [one.values[k] for k in marked],
                "y": [one.ratio[k] for k in marked],
                "marker": {
                    "symbol": symbol,
                    "size": 8,
                    "color": color,
                    "line": {"width": 2, "color": color},
                },
                "cliponaxis": False,
                "name": ink(f"limited by {name}"),
                "legendgroup": limiter,
                "showlegend": limiter not in legend,
                "customdata": [_words(one, k) for k in marked],
                "hovertemplate": f"%{{customdata}}, limited by {name}<extra></extra>",
            }
        )
        legend.add(limiter)
    return traces


def _here(launch: Occupancy, one: OccupancySweep) -> dict[str, Any]:
    """The ring around the launch, with its share beside it."""
    value = getattr(launch, one.axis)
    ring = {
        "symbol": "circle-open",
        "size": 17,
        "color": palette.VERMILLION,
        "line": {"width": 3, "color": palette.VERMILLION},
    }
    beside = "right" if value < 0.1 * one.values[-1] else "center"
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [value],
        "y": [launch.ratio],
        "marker": ring,
        "text": [ink(f"{launch.ratio:.1%}")],
        "textposition": f"top {beside}",
        "cliponaxis": False,
        "name": ink("this launch"),
        "legendgroup": "launch",
        "legendrank": 1,
        "hovertemplate": f"this launch: {_value(one.axis, value)} {_NOUNS[one.axis]}, "
        f"{launch.ratio:.1%}<extra></extra>",
    }


def _words(one: OccupancySweep, k: int) -> str:
    return (
        f"{_value(one.axis, one.values[k])} {_NOUNS[one.axis]}: "
        f"{plural(one.blocks_per_sm[k], 'block')}, {one.ratio[k]:.1%}"
    )


def _value(axis: str, value: int) -> str:
    return format_bytes(value) if axis == "shared_bytes_per_block" else f"{value:,}"


def _describe(launch: Occupancy, sweeps: list[OccupancySweep]) -> str:
    """The launch and its explanation, then where each curve is highest and lowest."""
    parts = [
        f"{launch.threads_per_block:,} threads, {launch.registers_per_thread} registers and "
        f"{format_bytes(launch.shared_bytes_per_block)} of shared memory: occupancy "
        f"{launch.ratio:.1%}. {launch.explanation}"
    ]
    for one in sweeps:
        best, worst = max(one.ratio), min(one.ratio)
        last = max(k for k, ratio in enumerate(one.ratio) if ratio == best)
        reached = f"reached up to {_value(one.axis, one.values[last])}"
        parts.append(
            f"Over the {_CURVES[one.axis]} it lies between {worst:.1%} and {best:.1%}, {reached}."
        )
    return " ".join(parts)
