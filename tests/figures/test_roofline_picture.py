"""The picture of a roofline against a made-up machine whose ridges and points are derived by hand."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import pytest
from look import look
from looks import LOOKS

from gpulab import devices, figures
from gpulab.evidence import Evidence
from gpulab.figures import palette
from gpulab.figures._style import LabFigure
from gpulab.figures.roofline import _label, _line_areas, _overlaps, _ridge_marks, _roof_notes
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline

LIVE = Evidence.measured("Slow CPU", 9)
SHEET = Evidence.modelled("everything busy", "a sheet")
FAR = Evidence.recorded(dataclasses.replace(devices.environment("cpu"), device="NVIDIA Far"), samples=9)


def made(device: str, evidence: Evidence, kind: str = "cpu") -> Roofline:
    """1 TFLOP/s in float32 and 8 in float16, over a cache of 1 TB/s and a memory of 100 GB/s: ridges at 10 and 80."""
    return Roofline(
        device,
        (ArithmeticRoof("float32", 1e12, "s", evidence), ArithmeticRoof("float16", 8e12, "s", evidence)),
        (MemoryRoof("L2", 1e12, 1e6, "s", evidence), MemoryRoof("DRAM", 1e11, 1e10, "s", evidence)),
        (), (), evidence, kind,
    )  # fmt: skip


def plain(text: str) -> str:
    """A text without mark-up."""
    return re.sub("<.*?>", "", text)


def written(figure: go.Figure) -> list[str]:
    """The annotations."""
    return [plain(a.text) for a in figure.layout.annotations]


def marks(figure: go.Figure) -> dict[str, Any]:
    """The traces of points, by name."""
    return {plain(t.name): t for t in figure.data if t.mode == "markers+text"}


def test_roofs_and_the_ridge_are_where_they_belong_and_named() -> None:
    """DRAM's slope ends at (10, 1 TFLOP/s), L2's at (1, 1 TFLOP/s), where the flat roof begins; all are labelled, with units."""
    figure = figures.roofline(made("Slow CPU", LIVE))
    l2, dram, flat = figure.data
    assert (l2.x[1], l2.y[1]) == pytest.approx((1.0, 1e12))
    assert (dram.x[1], dram.y[1]) == pytest.approx((10.0, 1e12))
    assert (flat.x[0], flat.y) == (1.0, (1e12, 1e12))
    assert sorted(written(figure)) == ["DRAM 100 GB/s", "L2 1.00 TB/s", "float32 1.00 TFLOP/s", "ridge 10 FLOP a byte"]
    assert figure.layout.shapes[0].x0 == 10
    assert plain(figure.layout.xaxis.title.text) == "arithmetic intensity, FLOP a byte (log scale)"
    assert plain(figure.layout.yaxis.title.text) == "FLOP a second (log scale)"
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert plain(figure.layout.yaxis.ticktext[-1]).endswith("FLOP/s")


def test_the_ridge_is_that_of_the_format_asked_for() -> None:
    """Where a point needs a second roof, the ridge that is marked stays float32's, at 10 FLOP a byte, and not float16's at 80."""
    live = made("Slow CPU", LIVE)
    live = dataclasses.replace(live, arithmetic=live.arithmetic[::-1])  # as a recording lists them: the fastest first
    point = live.place("conv n=1", 2e9, 1e7, arithmetic="float16")
    figure = figures.roofline(live.with_points([point]), arithmetic="float32")
    assert figure.layout.shapes[0].x0 == 10
    assert {"float32 1.00 TFLOP/s", "float16 8.00 TFLOP/s", "ridge 10 FLOP a byte"} <= set(written(figure))


@pytest.mark.parametrize(
    ("name", "kind", "color"),
    [
        ("AMD Ryzen 7 5700U with Radeon Graphics (16 cores)", "cpu", palette.BLUE),
        ("Intel(R) Core(TM) i7-8809G CPU @ 3.10GHz with Radeon RX Vega M GH (8 cores)", "cpu", palette.BLUE),
        ("Apple GPU (Apple M2)", "mps", palette.VERMILLION), ("NVIDIA H200", "cuda", palette.VERMILLION),
        ("One of later", "npu", palette.VERMILLION),
    ],
)  # fmt: skip
def test_a_device_has_its_kinds_colour_whatever_its_name(name: str, kind: str, color: str) -> None:
    """Processors with graphics inside are named after both; an accelerator need not say so in its name."""
    figure = figures.roofline(made(name, LIVE, kind))
    assert {t.line.color for t in figure.data} == {color}
    assert figure.layout.shapes[0].line.color == color


def test_the_three_kinds_of_evidence_look_different() -> None:
    """Measured: solid lines and marks with the interval; recorded: dotted and hollow; modelled: dashed, hollow, on the roof."""
    live, far, sheet = made("Slow CPU", LIVE), made("NVIDIA Far", FAR, "cuda"), made("H200", SHEET, "cuda")
    point = dataclasses.replace(live.place("fma n=1", 2e9, 1e9, seconds=0.02, evidence=LIVE), interval_seconds=(0.01, 0.04))
    add, product = far.place("add n=1", 1e9, 12e9, seconds=0.2, evidence=FAR), sheet.place("mm n=1", 1e12, 1e9)
    figure = figures.roofline(live.with_points([point]), [far.with_points([add]), sheet.with_points([product])])
    dashes = {plain(t.name): t.line.dash for t in figure.data if t.mode == "lines" and t.showlegend}
    assert dashes == {
        "roofs of Slow CPU (measured)": "solid", "roofs of NVIDIA Far (recorded)": "dot", "roofs of H200 (modelled)": "dash",
    }  # fmt: skip
    seen = marks(figure)
    measured, recorded, modelled = (
        seen[f"{name}"] for name in ("Slow CPU (measured)", "NVIDIA Far (recorded)", "H200 (predicted, modelled)")
    )
    assert [t.marker.symbol for t in (measured, recorded, modelled)] == ["circle", "circle-open", "diamond-open"]
    assert (measured.x[0], measured.y[0]) == (2.0, 1e11)  # 2 GFLOP in 20 ms
    assert (measured.error_y.array[0], measured.error_y.arrayminus[0]) == pytest.approx((1e11, 5e10))  # 10 ms and 40 ms
    assert modelled.y[0] == pytest.approx(1e12)  # 1000 FLOP a byte: the flat roof
    assert recorded.marker.color != measured.marker.color
    subtitle = plain(figure.layout.title.subtitle.text)
    for words in ("MEASURED on Slow CPU", "RECORDED on NVIDIA Far", "MODELLED"):
        assert words in subtitle
    assert "fma n=1: 2 FLOP a byte, so DRAM binds: at least 10.0 ms. It took 20.0 ms: 50 % of the roof." in figure.description


def test_everything_drawn_is_inside_the_axes() -> None:
    """Points far below and far beside the ridge widen the axes."""
    r = made("Slow CPU", LIVE)
    ends = [r.place(str(k), 10.0**k * 1e6, 1e6, seconds=10.0, evidence=LIVE) for k in (-3, 0, 5)]
    figure = figures.roofline(r.with_points(ends), arithmetic="float16")
    for axis, along in ((figure.layout.xaxis, "x"), (figure.layout.yaxis, "y")):
        low, high = axis.range
        for trace in figure.data:
            assert all(low <= math.log10(v) <= high for v in getattr(trace, along))
    assert "float16 8.00 TFLOP/s" in written(figure)


def test_names_give_way_to_each_other() -> None:
    """Twelve points on one spot: at most four sides take a name, the others are left to the table; no two names share a side."""
    r = made("Slow CPU", LIVE)
    crowd = [r.place(f"work{k} n=1", 2e9, 1e9, seconds=0.1, evidence=LIVE) for k in range(12)]
    trace = marks(figures.roofline(r.with_points(crowd)))["Slow CPU (measured)"]
    named = [side for text, side in zip(trace.text, trace.textposition, strict=True) if plain(text)]
    assert 1 <= len(named) <= 4
    assert len(set(named)) == len(named)
    assert len(trace.x) == 12


def test_work_without_arithmetic_is_told_not_drawn() -> None:
    """A copy has no place on a logarithmic axis of FLOPs."""
    r = made("Slow CPU", LIVE)
    figure = figures.roofline(r.with_points([r.place("copy n=1", 0, 1e9, seconds=1.0, evidence=LIVE)]))
    assert marks(figure) == {}
    assert "Without a place on these axes, for lack of arithmetic or traffic: copy n=1." in figure.description


def test_a_device_of_few_roofs_is_drawn_too() -> None:
    """Without float32 the first roof there is; without memory one flat line and no ridge, within the axes; without arithmetic nothing."""
    r = made("Slow CPU", LIVE)
    half = figures.roofline(dataclasses.replace(r, arithmetic=r.arithmetic[1:]))
    assert sorted(written(half)) == ["DRAM 100 GB/s", "L2 1.00 TB/s", "float16 8.00 TFLOP/s", "ridge 80 FLOP a byte"]
    flat = figures.roofline(dataclasses.replace(r, memory=()))
    (line,) = flat.data
    assert (line.y, written(flat), flat.layout.shapes) == ((1e12, 1e12), ["float32 1.00 TFLOP/s"], ())
    assert line.x[0] < 1 < line.x[1]
    assert figures.roofline(dataclasses.replace(r, arithmetic=())).data == ()
    fastest_first = figures.roofline(dataclasses.replace(r, arithmetic=r.arithmetic[::-1]))
    assert "float32 1.00 TFLOP/s" in written(fastest_first)  # where nothing was asked for or used
    assert "float16 8.00 TFLOP/s" not in written(fastest_first)


# Places in pixels: one power of ten is 570 wide and 320 high; a letter takes 6.4, so five take 32, and a line of text 14.
DECADE: dict[str, Any] = {"xaxis": {"range": [0, 1]}, "yaxis": {"range": [0, 1]}}
MIDDLE = 10**0.5  # at 285 and 160


def test_names_of_roofs_stand_beyond_their_ends_and_above_each_other() -> None:
    """By hand: five pixels from the end; where two would lie on each other the upper one goes up by a line."""
    taken: list[Any] = []
    labels = [(MIDDLE, MIDDLE, "abcde", "left"), (MIDDLE, MIDDLE, "abcde", "right"), (MIDDLE, 1.0001 * MIDDLE, "abcde", "left")]
    notes = _roof_notes(labels, DECADE, taken)
    assert taken[0] == pytest.approx((290, 153, 322, 167))
    assert taken[1] == pytest.approx((248, 153, 280, 167))
    assert taken[2] == pytest.approx((290, 167, 322, 181), abs=0.1)
    assert [(note["xanchor"], note["xshift"], note["yshift"]) for note in notes] == [("left", 5, 0), ("right", -5, 0), ("left", 5, 14)]
    assert [(note["x"], note["y"]) for note in notes[:2]] == [(pytest.approx(0.5), pytest.approx(0.5))] * 2


def test_a_ridges_words_stand_at_its_foot_on_the_side_that_has_room() -> None:
    """By hand: four pixels beside its line and two above the axis; the second one a line higher; 36 pixels from the end on the left."""
    one, taken = made("Slow CPU", LIVE), list[Any]()
    ridges = [(one, 10 ** (left / 570), 10.0, "abcde") for left in (285, 285, 533, 535)]
    shapes, notes = _ridge_marks(ridges, DECADE, taken)
    assert taken == [pytest.approx(area) for area in ((289, 2, 321, 16), (289, 16, 321, 30), (537, 2, 569, 16), (499, 2, 531, 16))]
    assert [(note["xanchor"], note["xshift"], note["yshift"]) for note in notes] == [
        ("left", 4, 0), ("left", 4, 14), ("left", 4, 0), ("right", -4, 0),
    ]  # fmt: skip
    assert {(shape["y0"], shape["y1"], shape["line"]["width"]) for shape in shapes} == {(1, 10.0, 1)}


def side_of(left: float, bottom: float, taken: list[Any], on_lines: tuple[Any, ...] = ()) -> tuple[str, str]:
    """Where the name of a point at this place stands."""
    point: Any = SimpleNamespace(label="abcde n=1", intensity_flops_per_byte=10 ** (left / 570), flops=10 ** (bottom / 320), seconds=1.0)
    return _label(point, DECADE, taken, on_lines)


def test_a_points_name_stands_on_the_first_side_that_is_free() -> None:
    """By hand: 7 pixels beside it or 6 above or below; across a line only where no side is free of them, and never out of the picture."""
    right, beside, above, below = (310, 155, 311, 156), (250, 155, 251, 156), (285, 175, 286, 176), (285, 145, 286, 146)
    places = [
        ([], "middle right", (292, 153, 324, 167)), ([right], "middle left", (246, 153, 278, 167)),
        ([right, beside], "top center", (269, 166, 301, 180)), ([right, beside, above], "bottom center", (269, 140, 301, 154)),
    ]  # fmt: skip
    for known, side, area in places:
        taken = list(known)
        assert side_of(285, 160, taken) == ("abcde", side)
        assert taken == [*known, pytest.approx(area)]
        assert side_of(285, 160, [], tuple(known)) == ("abcde", side)
    assert side_of(285, 160, [right, beside, above, below]) == ("", "middle right")
    assert side_of(285, 160, [], (right, beside, above, below)) == ("abcde", "middle right")
    assert side_of(285, 160, [right], (beside, above, below)) == ("abcde", "middle left")
    assert [side_of(left, 160, [])[1] for left in (530.5, 531.5)] == ["middle right", "middle left"]
    for left, side in ((39.5, "middle left"), (38.5, "top center")):
        assert side_of(left, 160, [(left + 20, 155, left + 21, 156)])[1] == side
    for bottom, said in ((20.5, "abcde"), (19.5, "")):
        around = [(310, bottom - 1, 311, bottom + 1), (250, bottom - 1, 251, bottom + 1), (285, bottom + 10, 286, bottom + 11)]
        assert side_of(285, bottom, around)[0] == said


def test_names_that_touch_do_not_overlap() -> None:
    """Edge to edge is beside each other, on each of the four sides."""
    area = (10.0, 10.0, 20.0, 20.0)
    for other in ((20.0, 10.0, 30.0, 20.0), (0.0, 10.0, 10.0, 20.0), (10.0, 20.0, 20.0, 30.0), (10.0, 0.0, 20.0, 10.0)):
        assert not _overlaps(area, [other])
    for other in ((19.0, 10.0, 30.0, 20.0), (0.0, 10.0, 11.0, 20.0), (10.0, 19.0, 20.0, 30.0), (10.0, 0.0, 20.0, 11.0)):
        assert _overlaps(area, [other])


def test_a_line_is_looked_at_every_five_pixels() -> None:
    """By hand: 57 pixels to the right are eleven steps and twelve areas, two pixels wide and high; a point is a single step."""
    areas = _line_areas([{"x": [1.0, 10**0.1], "y": [MIDDLE] * 2}], [{"x0": 1.0, "x1": 1.0, "y0": 1.0, "y1": 1.0}], DECADE)
    assert areas[:12] == [pytest.approx((57 * k / 11 - 1, 159, 57 * k / 11 + 1, 161)) for k in range(12)]
    assert areas[12:] == [(-1, -1, 1, 1)] * 2


def roofs() -> LabFigure:
    """A measured machine with three kinds of points, beside one of a sheet."""
    r = made("Slow CPU", LIVE)
    points = [
        dataclasses.replace(r.place("add n=1", 1e9, 1e9, seconds=0.05, evidence=LIVE), interval_seconds=(0.04, 0.06)),
        r.place("mul n=2", 2e9, 2e8),
        r.place("copy n=3", 3e9, 1e7, seconds=0.1, evidence=FAR),
    ]  # fmt: skip
    return figures.roofline(r.with_points(points), beside=[made("A GPU", SHEET, "cuda")])


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "roofline": roofs,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
