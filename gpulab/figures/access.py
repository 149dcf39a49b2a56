"""The figure of one warp's access: the sectors of device memory that it moves, and the words that
each shared bank delivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulab.figures import palette
from gpulab.figures._style import AXIS, GRID, MID_GREY, LabFigure, composed, frame, ink
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.models import AccessPattern

# places for 32 sectors: one aligned element never touches two, so a warp fills no more
_COLUMNS, _ROWS = 4, 8
_SECTOR, _PITCH = 32, 36  # bytes: of a sector, and from one place to the next
_HIGH = 0.5  # of a place's height that the sector itself fills; its address stands above
_BANKS, _GAP = 32, 3  # banks, and the space between two passes
_NUMBERED = 4  # bytes from which an element is wide enough for its lane's number
_READABLE = 14  # words on top of each other that can still be numbered
# sky blue and orange, thin enough for text in both themes
_USED, _CLASH = "rgba(86,180,233,0.5)", "rgba(230,159,0,0.5)"

_Box = tuple[float, float, float, float]  # left, right, bottom, top


def access(pattern: AccessPattern) -> LabFigure:
    """Return the 32-byte sectors that a request touches, with the bytes that are used, and the 32
    shared banks with their words.

    Parameters
    ----------
    pattern : AccessPattern
        From ``gl.models.access_pattern``, ``named_access`` or ``access_at``.

    Returns
    -------
    LabFigure
        The same addresses twice: as a load from device memory and, below, as a load from shared
        memory. Numbers are lanes; a "+" marks what several lanes request.
    """
    sectors, passes = plural(pattern.sectors, "sector"), plural(pattern.wavefronts, "wavefront")
    title = (
        f"One warp: {sectors} (ideal {pattern.ideal_sectors}), {passes} (ideal "
        f"{pattern.ideal_wavefronts})"
    )
    base = frame(title, pattern.evidence, _describe(pattern), height=680)
    traces = [*_sectors(pattern), *_banks(pattern)]
    heads = [
        (
            0.995,
            "Device memory: a 32-byte sector that is moved has its address above it; the bytes "
            "that the lanes use are filled",
        ),
        (
            0.355,
            "Shared memory: the 4-byte words that each bank must deliver; each word after the "
            "first costs one more wavefront",
        ),
    ]
    notes = [
        {
            "x": 0,
            "y": y,
            "xref": "paper",
            "yref": "paper",
            "xanchor": "left",
            "yanchor": "bottom",
            "showarrow": False,
            "text": ink(text),
            "align": "left",
        }
        for y, text in heads
    ]
    return composed(
        base,
        traces,
        **_axes(base, pattern),
        annotations=notes,
        showlegend=True,
        barmode="overlay",
        bargap=0,
        margin={**base.layout.margin.to_plotly_json(), "t": base.layout.margin.t + 16, "l": 44},
    )


def _axes(base: LabFigure, pattern: AccessPattern) -> dict[str, Any]:
    plain = base.layout.xaxis.to_plotly_json()
    bare = {**plain, "visible": False, "tickprefix": "", "ticksuffix": ""}
    passes, highest = _passes(pattern), max(4, pattern.conflict_ways)
    starts = [part * (_BANKS + _GAP) for part in range(passes)]
    marks = [0, 8, 16, 24, 31] if passes == 1 else [0, 16] if passes == 4 else [0, 8, 16, 24]
    step = max(1, -(-highest // 8))
    heights = list(range(0, highest + 1, step))
    return {
        "xaxis": {
            **bare,
            "range": [-0.5, _COLUMNS * _PITCH - _PITCH + _SECTOR + 0.5],
            "domain": [0, 1],
            "anchor": "y",
        },
        "yaxis": {**bare, "range": [-_ROWS - 0.1, 0.1], "domain": [0.46, 0.985], "anchor": "x"},
        "xaxis2": {
            **plain,
            "range": [-0.7, starts[-1] + _BANKS - 0.3],
            "domain": [0, 1],
            "anchor": "y2",
            "showgrid": False,
            "tickmode": "array",
            "tickvals": [start + mark for start in starts for mark in marks],
            "tickprefix": "",
            "ticksuffix": "",
            "ticktext": [ink(str(mark)) for _ in starts for mark in marks],
            "title": {"text": ink(_banks_title(passes)), "standoff": 4},
        },
        "yaxis2": {
            **plain,
            "range": [0, 1.08 * highest],
            "domain": [0, 0.345],
            "anchor": "x2",
            "tickmode": "array",
            "tickvals": heights,
            "ticktext": [ink(str(tick)) for tick in heights],
            "tickprefix": "",
            "ticksuffix": "",
            "title": {"text": ink("words"), "standoff": 4},
        },
    }


def _passes(pattern: AccessPattern) -> int:
    return max(1, pattern.element_bytes // 4)


def _banks_title(passes: int) -> str:
    parts = {1: "", 2: ", once for each half-warp", 4: ", once for each quarter-warp"}
    return f"bank{parts[passes]}"


def _box(
    left: float, right: float, bottom: float, top: float
) -> tuple[list[float | None], list[float | None]]:
    """The corners of a box as a piece of a line; None ends it."""
    return [left, right, right, left, left, None], [bottom, bottom, top, top, bottom, None]


def _boxes(
    boxes: list[_Box], name: str, line: dict[str, Any], fill: str | None = None
) -> dict[str, Any]:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for box in boxes:
        x, y = _box(*box)
        xs, ys = xs + x, ys + y
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "line": line,
        "hoverinfo": "skip",
    }
    return {
        **trace,
        **({"name": ink(name)} if name else {"showlegend": False}),
        **({"fill": "toself", "fillcolor": fill} if fill else {}),
    }


def _place(number: int) -> tuple[float, float]:
    """Left and bottom of a sector's place, which are filled row by row."""
    return _PITCH * (number % _COLUMNS), -(number // _COLUMNS) - 1.0


def _sectors(pattern: AccessPattern) -> list[dict[str, Any]]:
    free: list[_Box] = []
    moved: list[_Box] = []
    used: list[_Box] = []
    texts: list[tuple[float, float, str, str]] = []
    sectors = pattern.sector_lanes()
    for number in range(_COLUMNS * _ROWS):
        left, bottom = _place(number)
        (moved if number < len(sectors) else free).append(
            (left, left + _SECTOR, bottom, bottom + _HIGH)
        )
    addresses: list[tuple[float, float, str]] = []
    for number, (sector, lanes) in enumerate(sectors.items()):
        left, bottom = _place(number)
        addresses.append((left, bottom + _HIGH + 0.24, f"byte {sector * _SECTOR:,}"))
        for start, who in _elements(pattern, lanes).items():
            inside = left + start % _SECTOR
            used.append((inside, inside + pattern.element_bytes, bottom, bottom + _HIGH))
            label = (
                f"{who[0]}{'+' if len(who) > 1 else ''}"
                if pattern.element_bytes >= _NUMBERED
                else ""
            )
            asked = f"{plural(pattern.element_bytes, 'byte')} from byte {start:,}"
            whose = f"lane{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {asked}"
            texts.append(
                (inside + pattern.element_bytes / 2, bottom + _HIGH / 2, ink(label), whose)
            )
    return [
        _boxes(free, "", {"color": GRID, "width": 1}),
        _boxes(moved, "moved", {"color": AXIS, "width": 1.5, "dash": "dot"}),
        _boxes(used, "used", {"color": palette.BLUE, "width": 1}, _USED),
        {
            "type": "scatter",
            "mode": "text",
            "x": [t[0] for t in texts],
            "y": [t[1] for t in texts],
            "text": [t[2] for t in texts],
            "textfont": {"size": 10},
            "customdata": [t[3] for t in texts],
            "hovertemplate": "%{customdata}<extra></extra>",
            "showlegend": False,
        },
        {
            "type": "scatter",
            "mode": "text",
            "x": [a[0] for a in addresses],
            "y": [a[1] for a in addresses],
            "text": [ink(a[2]) for a in addresses],
            "textposition": "middle right",
            "textfont": {"size": 10},
            "hoverinfo": "skip",
            "showlegend": False,
        },
    ]


def _elements(pattern: AccessPattern, lanes: tuple[int, ...]) -> dict[int, list[int]]:
    """Address -> the lanes that ask for it, among some lanes."""
    found: dict[int, list[int]] = {}
    for lane in lanes:
        found.setdefault(pattern.addresses[lane], []).append(lane)
    return found


def _banks(pattern: AccessPattern) -> list[dict[str, Any]]:
    """A bar for each bank and pass, a piece for each word; the first word of a bank costs nothing,
    each further one a wavefront.
    """
    passes = _passes(pattern)
    numbered = passes == 1 and pattern.conflict_ways <= _READABLE
    pieces: dict[bool, list[tuple[float, int, str, str]]] = {False: [], True: []}
    for part in range(passes):
        for bank, words in pattern.bank_lanes(part).items():
            for level, (word, lanes) in enumerate(words.items()):
                label = f"{lanes[0]}{'+' if len(set(lanes)) > 1 else ''}" if numbered else ""
                whose = (
                    f"bank {bank}, word at byte {4 * word:,}: "
                    f"lane{'s' if len(lanes) > 1 else ''} {', '.join(map(str, lanes))}"
                )
                pieces[level > 0].append((part * (_BANKS + _GAP) + bank, level, label, whose))
    rows = (
        (False, "first word of a bank", _USED, palette.BLUE, ""),
        (True, "one more wavefront", _CLASH, palette.ORANGE, "/"),
    )
    traces = [
        _bars(pieces[clash], name, fill, edge, hatch) for clash, name, fill, edge, hatch in rows
    ]
    end = (passes - 1) * (_BANKS + _GAP) + _BANKS
    line = {"color": MID_GREY, "width": 1.5, "dash": "dash"}
    return [
        *traces,
        {
            "type": "scatter",
            "mode": "lines",
            "x": [-0.7, end],
            "y": [1, 1],
            "line": line,
            "xaxis": "x2",
            "yaxis": "y2",
            "name": ink("one word a bank: no conflict"),
            "hoverinfo": "skip",
        },
    ]


def _bars(
    pieces: list[tuple[float, int, str, str]], name: str, fill: str, edge: str, hatch: str
) -> dict[str, Any]:
    return {
        # an empty one keeps its legend
        "type": "bar",
        "x": [p[0] for p in pieces] or [None],
        "y": [1] * len(pieces) or [None],
        "base": [p[1] for p in pieces],
        "width": 0.86,
        "marker": {
            "color": fill,
            "line": {"color": edge, "width": 1},
            "pattern": {"shape": hatch, "fgcolor": edge, "size": 6, "solidity": 0.15},
        },
        "text": [ink(p[2]) for p in pieces],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": 9},
        "constraintext": "none",
        "customdata": [p[3] for p in pieces],
        "hovertemplate": "%{customdata}<extra></extra>",
        "name": ink(name),
        "xaxis": "x2",
        "yaxis": "y2",
    }


def _describe(pattern: AccessPattern) -> str:
    """The explanation, then where the sectors lie and which banks are busiest."""
    sectors = [f"{sector * _SECTOR:,}" for sector in pattern.sector_lanes()]
    shown = ", ".join(sectors if len(sectors) <= 8 else [*sectors[:7], "...", sectors[-1]])
    where = f" The sectors begin at byte {shown}." if sectors else ""
    # of any pass: a bank that is busy in the first half-warp may be idle in the second
    most: dict[int, int] = {}
    for part in range(_passes(pattern)):
        for bank, words in pattern.bank_lanes(part).items():
            most[bank] = max(most.get(bank, 0), len(words))
    busiest = [bank for bank, count in most.items() if count == pattern.conflict_ways and count > 1]
    banks = (
        f" The busiest bank is {busiest[0]}."
        if len(busiest) == 1
        else f" The busiest banks are {len(busiest)} of 32."
        if busiest
        else ""
    )
    return f"{pattern.explanation}{where}{banks}"
