"""Figures of kernels: the access of one warp, and the occupancy of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.figures import palette
from gpulab.figures._style import (
    AXIS,
    GRID,
    INSIDE,
    MID_GREY,
    LabFigure,
    Part,
    describe,
    ink,
    linear_axis,
    note,
    picture,
    ticks,
    trace,
)
from gpulab.models import AccessPattern, Occupancy, OccupancyTable, occupancy_sweep
from gpulab.units import format_bytes, plural

# places for 32 sectors: an aligned element lies in one sector, so a warp's 32 lanes need no more
_COLUMNS, _ROWS = 4, 8
_SECTOR, _PITCH = 32, 36  # bytes: of a sector, and from one place to the next
_HIGH = 0.5  # of a place's height that the sector itself fills; its address is above it
_BANKS, _GAP = 32, 3  # banks, and the space between two passes
_NUMBERED = 4  # fewest bytes of an element that has room for its lane's number
_READABLE = 14  # most words on top of each other that can still be numbered
# By the passes of a request: the banks that have a number on the axis, and the title of the axis.
_PASSES = {
    1: ((0, 8, 16, 24, 31), "bank"),
    2: ((0, 8, 16, 24), "bank, once for each half-warp"),
    4: ((0, 16), "bank, once for each quarter-warp"),
}
# What a bank's words cost: color of the filling and of the edge, and hatching.
_WORDS = {
    "first word of a bank": ("rgba(86,180,233,0.5)", palette.BLUE, ""),
    "one more wavefront": ("rgba(230,159,0,0.5)", palette.ORANGE, "/"),
}


def access(pattern: AccessPattern) -> LabFigure:
    """Return the 32-byte sectors that a request touches, with the bytes that are used, and the 32
    shared banks with their words.

    Parameters
    ----------
    pattern : AccessPattern
        From ``gl.models.access_pattern`` or ``access_at``.

    Returns
    -------
    LabFigure
        The same addresses twice: as a load from device memory and, below, as a load from shared
        memory. Numbers are lanes; a "+" marks an element or a word that several lanes request.
    """
    sectors, waves = plural(pattern.sectors, "sector"), plural(pattern.wavefronts, "wavefront")
    title = (
        f"One warp: {sectors} (ideal {pattern.ideal_sectors}), {waves} (ideal "
        f"{pattern.ideal_wavefronts})"
    )
    device = (
        "Device memory: each moved 32-byte sector has its address above it;<br>bytes that lanes "
        "use are filled"
    )
    shared = (
        "Shared memory: the 4-byte words of each bank;<br>each word after the first costs one more "
        "wavefront"
    )
    highest = max(4, pattern.conflict_ways)
    starts = [part * (_BANKS + _GAP) for part in range(pattern.passes)]
    numbered, banks_title = _PASSES[pattern.passes]
    marks = [(start + mark, str(mark)) for start in starts for mark in numbered]
    heights = range(0, highest + 1, max(1, -(-highest // 8)))
    bare = {"visible": False, "tickprefix": "", "ticksuffix": ""}
    return picture(
        title,
        pattern.evidence,
        describe(pattern),
        [*_sectors(pattern), *_banks(pattern)],
        height=696,
        above=32,
        xaxis={
            **bare,
            "range": [-0.5, _COLUMNS * _PITCH - _PITCH + _SECTOR + 0.5],
            "domain": [0, 1],
            "anchor": "y",
        },
        yaxis={**bare, "range": [-_ROWS - 0.1, 0.1], "domain": [0.46, 0.985], "anchor": "x"},
        xaxis2={
            **ticks(*zip(*marks, strict=True)),
            "range": [-0.7, starts[-1] + _BANKS - 0.3],
            "domain": [0, 1],
            "anchor": "y2",
            "showgrid": False,
            "title": {"text": ink(banks_title), "standoff": 4},
        },
        yaxis2={
            **ticks(heights, map(str, heights)),
            "range": [0, 1.08 * highest],
            "domain": [0, 0.345],
            "anchor": "x2",
            "title": {"text": ink("words"), "standoff": 4},
        },
        annotations=[
            note(device, 0, 0.995, "paper paper left bottom", align="left"),
            note(shared, 0, 0.355, "paper paper left bottom", align="left"),
        ],
        showlegend=True,
        barmode="overlay",
        bargap=0,
        margin={"l": 44},
    )


def _boxes(
    boxes: Sequence[tuple[float, float, float]], height: float, name: str, **look: Any
) -> Part:
    """Return boxes from (left, bottom, width) as one line, which None interrupts."""
    x = [x for left, _, w in boxes for x in (left, left + w, left + w, left, left, None)]
    y = [y for _, low, _ in boxes for y in (low, low, low + height, low + height, low, None)]
    return trace("lines", x, y, name, **look)


def _sectors(pattern: AccessPattern) -> list[Part]:
    """Return 32 places for sectors, row by row; the sectors moved; and the bytes that lanes use."""
    places = [
        (_PITCH * (number % _COLUMNS), -(number // _COLUMNS) - 1.0)
        for number in range(_COLUMNS * _ROWS)
    ]
    sectors, size = pattern.sector_lanes(), pattern.element_bytes
    # left, bottom, label and hover text of each element that is requested
    used: list[tuple[float, float, str, str]] = []
    for (left, bottom), lanes in zip(places, sectors.values(), strict=False):
        for start in dict.fromkeys(pattern.addresses[lane] for lane in lanes):
            who = [lane for lane in lanes if pattern.addresses[lane] == start]
            label = f"{who[0]}{'+' if len(who) > 1 else ''}" if size >= _NUMBERED else ""
            whose = f"{_lanes(who)}: {plural(size, 'byte')} from byte {start:,}"
            used.append((left + start % _SECTOR, bottom, label, whose))
    empty = [(left, bottom, _SECTOR) for left, bottom in places]
    small = {"size": 10}
    return [
        _boxes(empty[len(sectors) :], _HIGH, "", line={"color": GRID, "width": 1}),
        _boxes(
            empty[: len(sectors)],
            _HIGH,
            "moved",
            line={"color": AXIS, "width": 1.5, "dash": "dot"},
        ),
        _boxes(
            [(left, bottom, size) for left, bottom, *_ in used],
            _HIGH,
            "used",
            line={"color": palette.BLUE, "width": 1},
            fill="toself",
            fillcolor=_WORDS["first word of a bank"][0],
        ),
        trace(
            "text",
            [left + size / 2 for left, *_ in used],
            [bottom + _HIGH / 2 for _, bottom, *_ in used],
            mouse=(whose for *_, whose in used),
            text=[ink(label) for _, _, label, _ in used],
            textfont=small,
        ),
        trace(
            "text",
            [left for left, _ in places[: len(sectors)]],
            [bottom + _HIGH + 0.24 for _, bottom in places[: len(sectors)]],
            text=[ink(f"byte {sector * _SECTOR:,}") for sector in sectors],
            textposition="middle right",
            textfont=small,
        ),
    ]


def _lanes(who: Sequence[int]) -> str:
    return f"lane{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}"


def _banks(pattern: AccessPattern) -> list[Part]:
    """Return a bar for each bank and pass, a piece for each word; the first word of a bank costs
    nothing, each further one a wavefront.
    """
    passes = pattern.passes
    numbered = passes == 1 and pattern.conflict_ways <= _READABLE
    # place, level, label and hover text of each word
    first, further = _WORDS
    pieces: dict[str, list[tuple[float, int, str, str]]] = {first: [], further: []}
    for part in range(passes):
        for bank, words in pattern.bank_lanes(part).items():
            for level, (word, lanes) in enumerate(words.items()):
                label = f"{lanes[0]}{'+' if len(set(lanes)) > 1 else ''}" if numbered else ""
                whose = f"bank {bank}, word at byte {4 * word:,}: {_lanes(lanes)}"
                piece = (part * (_BANKS + _GAP) + bank, level, label, whose)
                pieces[further if level else first].append(piece)
    traces = [
        trace(
            "bars",
            # a kind without words keeps its place in the legend
            [p[0] for p in pieces[name]] or [None],
            [1] * len(pieces[name]) or [None],
            name,
            (p[3] for p in pieces[name]),
            base=[p[1] for p in pieces[name]],
            orientation="v",
            width=0.86,
            marker={
                "color": fill,
                "line": {"color": edge, "width": 1},
                "pattern": {"shape": hatch, "fgcolor": edge, "size": 6, "solidity": 0.15},
            },
            text=[ink(p[2]) for p in pieces[name]],
            textfont={"size": 9},
            **INSIDE,
            constraintext="none",
        )
        for name, (fill, edge, hatch) in _WORDS.items()
    ]
    one_word = trace(
        "lines",
        [-0.7, (passes - 1) * (_BANKS + _GAP) + _BANKS],
        [1, 1],
        "one word a bank: no conflict",
        line={"color": MID_GREY, "width": 1.5, "dash": "dash"},
    )
    return [{**each, "xaxis": "x2", "yaxis": "y2"} for each in (*traces, one_word)]


# Occupancy.

_KIB = 1024
# For each axis: its title; its share of the picture's width; the shape of its line (a block size
# counts as the next whole warp, so the line steps up before the value; registers and shared memory
# hold until the next step begins); the distance and the unit of its ticks; and a noun for its
# values.
_PANELS = {
    "threads_per_block": ("threads<br>per block", (0.0, 0.295), "vh", (256, 1), "threads"),
    "registers_per_thread": (
        "registers<br>per thread",
        (0.3525, 0.6475),
        "hv",
        (64, 1),
        "registers",
    ),
    "shared_bytes_per_block": (
        "KiB of shared<br>memory per block",
        (0.705, 1.0),
        "hv",
        (64 * _KIB, _KIB),
        "of shared memory",
    ),
}
# The resources that limit: words, symbol and color. The symbols alone distinguish them.
_LIMITERS = {
    "warps": ("warp slots", "circle-open", palette.BLUISH_GREEN),
    "registers": ("registers", "square-open", palette.ORANGE),
    "shared": ("shared memory", "diamond-open", palette.BLUE),
    "blocks": ("block slots", "triangle-up-open", palette.REDDISH_PURPLE),
    "barriers": ("barriers", "x-open", palette.GREY),
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
    held = (
        f"{plural(launch.blocks_per_sm, 'block')} x {plural(launch.warps_per_block, 'warp')} in "
        f"{launch.sm.warps} slots"
    )
    title = (
        f"Occupancy {launch.ratio:.1%} on compute capability {launch.compute_capability}: {held}"
    )
    sweeps = {axis: occupancy_sweep(launch, axis) for axis in _PANELS}
    shares = [0.0, 0.25, 0.5, 0.75, 1.0]
    axes: Part = {}
    traces: list[Part] = []
    legend: set[str] = set()
    for number, (axis, (values, table)) in enumerate(sweeps.items()):
        words, domain, shape, (step, unit), _ = _PANELS[axis]
        end = "" if number == 0 else str(number + 1)
        # the axis always includes the launch
        last = max(int(values[-1]), getattr(launch, axis))
        at = range(0, last + 2, step)
        axes[f"xaxis{end}"] = {
            **linear_axis(float(last), words, str),
            **ticks(at, [f"{tick // unit:,}" for tick in at]),
            "domain": domain,
            "anchor": f"y{end}",
        }
        axes[f"yaxis{end}"] = {
            **ticks(shares, [f"{share:.0%}" for share in shares]),
            **({"title": "occupancy"} if number == 0 else {"ticktext": [""] * 5}),
            "range": [-0.04, 1.14],
            "anchor": f"x{end}",
            "domain": [0, 1],
        }
        here = {**_here(launch, axis, values), "showlegend": number == 0}
        traces += [
            {**each, "xaxis": f"x{end}", "yaxis": f"y{end}"}
            for each in (*_curve(axis, values, table, shape, legend), here)
        ]
    return picture(title, launch.evidence, describe(launch), traces, height=400, **axes)


def _curve(
    axis: str, values: np.ndarray, table: OccupancyTable, shape: str, legend: set[str]
) -> list[Part]:
    """Return the dashed line, and a mark at each of its steps (at every whole warp for block sizes)
    that shows which resource limits there; ``legend`` collects the resources in the legend.
    """
    steps = np.arange(len(values))
    if axis != "threads_per_block":
        steps = np.flatnonzero(np.diff(table.blocks_per_sm, prepend=-1))
    ends = np.unique([*steps, len(values) - 1])
    line = {"color": MID_GREY, "width": 1.5, "dash": "dash", "shape": shape}
    traces = [trace("lines", values[ends].tolist(), table.ratio[ends].tolist(), line=line)]
    for limiter, (name, symbol, color) in _LIMITERS.items():
        marked = steps[table.limiter[steps] == limiter]
        if not marked.size:
            continue
        traces.append(
            trace(
                "markers",
                values[marked].tolist(),
                table.ratio[marked].tolist(),
                f"limited by {name}",
                f"%{{customdata}}, limited by {name}",
                customdata=[
                    f"{_value(axis, values[k])}: {plural(int(table.blocks_per_sm[k]), 'block')}, "
                    f"{table.ratio[k]:.1%}"
                    for k in marked
                ],
                marker=palette.edged(symbol, 8, color),
                cliponaxis=False,
                legendgroup=limiter,
                showlegend=limiter not in legend,
            )
        )
        legend.add(limiter)
    return traces


def _here(launch: Occupancy, axis: str, values: np.ndarray) -> Part:
    """Return the ring around the launch, with its share beside it."""
    value = getattr(launch, axis)
    beside = "right" if value < 0.1 * values[-1] else "center"
    return trace(
        "markers+text",
        [value],
        [launch.ratio],
        "this launch",
        f"this launch: {_value(axis, value)}, {launch.ratio:.1%}",
        marker=palette.edged("circle-open", 17, palette.VERMILLION, 3),
        text=[ink(f"{launch.ratio:.1%}")],
        textposition=f"top {beside}",
        cliponaxis=False,
        legendgroup="launch",
        legendrank=1,
    )


def _value(axis: str, value: int) -> str:
    number = format_bytes(value) if axis == "shared_bytes_per_block" else f"{value:,}"
    return f"{number} {_PANELS[axis][4]}"
