"""The picture of an occupancy against numbers derived by hand from the limits of an SM."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
import pytest
from look import look
from looks import LOOKS

from gpulab import figures, models
from gpulab.figures._style import LabFigure


def plain(text: str) -> str:
    """A text without mark-up."""
    return re.sub("<.*?>", "", text)


def traces(figure: go.Figure, panel: str) -> dict[str, Any]:
    """The named traces of one panel ("x", "x2" or "x3"), by name."""
    return {plain(t.name): t for t in figure.data if t.xaxis == panel and t.name}


def test_the_launch_stands_on_each_curve() -> None:
    """256 threads of 64 registers on 9.0: 4 blocks of 8 warps, half of 64 slots (65,536 / 64 / 32 = 32 warps), in each panel's own unit."""
    figure = figures.occupancy(models.occupancy(256, 64, 4096, "9.0"))
    here = [traces(figure, panel)["this launch"] for panel in ("x", "x2", "x3")]
    assert [(t.x[0], t.y[0]) for t in here] == [(256, 0.5), (64, 0.5), (4096, 0.5)]
    assert all("50.0%" in t.text[0] and t.marker.symbol == "circle-open" for t in here)
    assert [t.showlegend for t in here] == [True, False, False]
    assert "Occupancy 50.0% on compute capability 9.0: 4 blocks x 8 warps in 64 slots" in plain(figure.layout.title.text)
    assert "MODELLED" in plain(figure.layout.title.subtitle.text)
    assert "The register file holds 32 warps" in figure.description
    assert traces(figure, "x3")["this launch"].hovertemplate == "this launch: 4.00 KiB of shared memory, 50.0%<extra></extra>"


def test_one_block_is_one() -> None:
    """1,024 threads of 64 registers fill the register file alone; a block of 32 threads is one warp, and 32 blocks are the most."""
    alone = figures.occupancy(models.occupancy(1024, 64, 0, "9.0"))
    assert plain(alone.layout.title.text).endswith(": 1 block x 32 warps in 64 slots")
    assert plain(figures.occupancy(models.occupancy(32, 16, 0, "9.0")).layout.title.text).endswith(": 32 blocks x 1 warp in 64 slots")
    (told,) = [w for t in alone.data for w in t.customdata or () if w.startswith("1,024 threads")]
    assert told == "1,024 threads: 1 block, 50.0%"


def test_the_cliffs_of_the_register_curve() -> None:
    """Blocks of 8 warps on 9.0: 8 blocks up to 32 registers, then 65,536 / (registers rounded up to 8) / 256 of them, each a mark."""
    figure = figures.occupancy(models.occupancy(256, 32, 0, "9.0"))
    marks = traces(figure, "x2")["limited by registers"]
    by_hand = {33: 6, 41: 5, 49: 4, 65: 3, 81: 2, 129: 1}  # 40 -> 6.4, 48 -> 5.3, 64 -> 4, 80 -> 3.2, 128 -> 2, 255 -> 1
    assert dict(zip(marks.x, marks.y, strict=True)) == {x: blocks / 8 for x, blocks in by_hand.items()}
    assert marks.marker.symbol == "square-open"
    assert marks.customdata[0] == "33 registers: 6 blocks, 75.0%"


def test_what_limits_has_its_own_symbol_and_one_entry_in_the_legend() -> None:
    """With one warp a block, 32 block slots limit to half; no two limiters share a symbol, none has two legend entries."""
    figure = figures.occupancy(models.occupancy(32, 32, 0, "9.0"))
    few = traces(figure, "x")["limited by block slots"]
    assert (few.x, few.y) == ((32,), (0.5,))
    named = [t for t in figure.data if t.name and plain(t.name) != "this launch"]
    symbols = {plain(t.name): t.marker.symbol for t in named}
    assert len(set(symbols.values())) == len(symbols)
    shown = [plain(t.name) for t in named if t.showlegend]
    assert sorted(shown) == sorted(symbols)


@pytest.mark.parametrize("shared", [0, 240 * 1024])
def test_a_launch_beyond_the_curve_is_still_inside_the_axis(shared: int) -> None:
    """More shared memory than an SM has is 0 %, and the ring lies within the axis."""
    figure = figures.occupancy(models.occupancy(256, 32, shared, "8.6"))
    low, high = figure.layout.xaxis3.range
    assert low <= shared <= high
    assert traces(figure, "x3")["this launch"].y[0] == (0.0 if shared else 1.0)


def test_each_axis_says_its_unit() -> None:
    """Threads, registers, KiB, and the share of warp slots in per cent."""
    layout = figures.occupancy(models.occupancy(256, 32)).layout
    titles = [plain(axis.title.text) for axis in (layout.xaxis, layout.xaxis2, layout.xaxis3, layout.yaxis)]
    assert titles == ["threads of a block", "registers of a thread", "KiB of shared memory of a block", "share of warp slots"]
    assert [plain(t) for t in layout.xaxis3.ticktext][:3] == ["0", "64", "128"]
    assert [plain(t) for t in layout.yaxis.ticktext] == ["0%", "25%", "50%", "75%", "100%"]


def test_the_description_has_the_ends_of_each_curve() -> None:
    """On 9.0 with 32 registers: one warp a block fills half; 255 registers leave one block of 8 warps, as 227 KiB do; 8 share 228."""
    described = figures.occupancy(models.occupancy(256, 32, 0, "9.0")).description
    assert described.startswith("256 threads, 32 registers and 0 B of shared memory: occupancy 100.0%. ")
    assert described.endswith(
        " Over the sizes of a block it lies between 50.0% and 100.0%, which the value 1,024 still reaches."
        " Over the registers it lies between 12.5% and 100.0%, which the value 32 still reaches."
        " Over the shared memory it lies between 12.5% and 100.0%, which the value 27.5 KiB still reaches."
    )


def test_ticks_stand_at_multiples_of_warps_and_of_memory() -> None:
    """Each eight warps, each 64 registers and each 64 KiB, to the end of each curve: 1,024 threads, 255 registers, 227 KiB on 9.0."""
    layout = figures.occupancy(models.occupancy(256, 32, 0, "9.0")).layout
    ticks = [list(axis.tickvals) for axis in (layout.xaxis, layout.xaxis2, layout.xaxis3)]
    assert ticks == [[0, 256, 512, 768, 1024], [0, 64, 128, 192, 256], [0, 2**16, 2**17, 3 * 2**16]]


def test_a_launch_near_the_left_end_has_its_share_on_the_right() -> None:
    """Up to a tenth of the axis: 102.4 of 1,024 threads."""
    sides = [traces(figures.occupancy(models.occupancy(threads, 32)), "x")["this launch"].textposition for threads in (102, 103)]
    assert sides == ["top right", "top center"]


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "occupancy": lambda: figures.occupancy(models.occupancy(256, 64, 4096, "9.0")),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
