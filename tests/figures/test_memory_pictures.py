"""The pictures of memory: a step's timeline, a prediction's bars, a snapshot's parts, checked against made-up results."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from look import look, words
from looks import LOOKS

from gpulab import figures, memory
from gpulab.evidence import Evidence
from gpulab.figures._style import LabFigure
from gpulab.memory import MemoryTrace, Timeline

LIVE, MODEL = Evidence.measured("A GPU", 9), Evidence.modelled("a link", "a book")


def timeline(totals: list[int]) -> Timeline:
    """A timeline of activations."""
    n = len(totals)
    phases = ("forward",) * (n // 2) + ("backward",) * (n - n // 2)
    return Timeline(("aten.add.Tensor",) * n, phases, (0,), {"parameters": np.full(n, 10), "activations": np.array(totals)})


def trace(totals: list[int], evidence: Evidence = LIVE) -> MemoryTrace:
    """A trace whose peak is the largest total."""
    peak = max(totals) + 10
    by = {"parameters": 10, "activations": max(totals)}
    return MemoryTrace("a model", "cpu", peak, by, "aten.add.Tensor", "forward", (), timeline(totals), (), evidence)


def test_free_memory_far_beyond_the_bars_is_told_and_not_drawn_to_scale() -> None:
    """Bars stay readable beside a hundred times their length of free memory; a near limit is a line."""
    p = memory.predict(torch.nn.Linear(100, 100), torch.zeros(1, 100), loss=torch.sum)
    need = p.needed_bytes("cpu")
    far = figures.memory_prediction(p, free_bytes=100 * need)
    assert "far to the right" in words(far)
    assert list(far.layout.shapes) == []
    assert far.layout.xaxis.range[1] < 1.5 * need
    near = figures.memory_prediction(p, free_bytes=2 * need)
    assert [shape.x0 for shape in near.layout.shapes] == [2 * need]


def test_a_timeline_stacks_its_categories_and_names_the_peak() -> None:
    """Categories lie on each other in their own colours, phases are named, a modelled one is hatched."""
    figure = figures.memory_timeline(trace([5, 9 * 2**20, 4, 1]))
    assert [re.sub("<.*?>", "", t.name) for t in figure.data] == ["parameters", "activations"]
    assert all(t.stackgroup == "bytes" for t in figure.data)
    assert "peak 9.00 MiB" in words(figure)
    assert "forward" in words(figure)
    assert "backward" in words(figure)
    assert not figure.data[0].fillpattern.shape
    assert figures.memory_timeline(trace([5, 6], MODEL)).data[0].fillpattern.shape == "/"
    empty = dataclasses.replace(timeline([5, 6]), bytes_by_category={"parameters": np.full(2, 10), "inputs": np.zeros(2)})
    without = figures.memory_timeline(dataclasses.replace(trace([5, 6]), timeline=empty, peak_by_category={"parameters": 10, "inputs": 0}))
    assert [re.sub("<.*?>", "", t.name) for t in without.data] == ["parameters"]
    assert without.description.endswith("the peak is 16 B in the forward (parameters 10 B).")
    assert without.layout.xaxis.showgrid is False
    nothing = figures.memory_timeline(dataclasses.replace(trace([1]), timeline=timeline([])))
    assert (len(nothing.data), nothing.layout.annotations) == (0, ())


def phased(runs: list[tuple[str, int]], steps: tuple[int, ...] = (0,)) -> MemoryTrace:
    """A trace whose phases have these lengths."""
    phases = tuple(name for name, count in runs for _ in range(count))
    line = Timeline(("aten.add.Tensor",) * len(phases), phases, steps, {"parameters": np.full(len(phases), 10)})
    return dataclasses.replace(trace([1, 2]), timeline=line)


def phase_names(figure: go.Figure) -> list[tuple[str, float, int]]:
    """The names over the plot with their places and heights."""
    over = [a for a in figure.layout.annotations if a.yref == "paper"]
    return [(re.sub("<.*?>", "", a.text), a.x, a.yshift or 0) for a in over]


@pytest.mark.parametrize(
    ("steps", "title"),
    [((), "Memory of a model"), ((0,), "Memory of one training step of a model"), ((0, 50), "Memory of 2 training steps of a model")],
)
def test_a_timeline_says_how_many_steps_it_shows(steps: tuple[int, ...], title: str) -> None:
    """The title and the description count the steps that were followed."""
    figure = figures.memory_timeline(phased([("forward", 50), ("backward", 50)], steps))
    assert title in words(figure)
    assert f"Live bytes during {title.removeprefix('Memory of ')}:" in figure.description


def test_a_narrow_phase_keeps_its_name() -> None:
    """A forward pass of 5 % of the operators is named, one line above its wide neighbours so that the names do not meet."""
    figure = figures.memory_timeline(phased([("forward", 5), ("backward", 25), ("optimizer", 70)]))
    names = phase_names(figure)
    assert [(name, x) for name, x, _ in names] == [("forward", 2.5), ("backward", 17.5), ("optimizer", 65.0)]
    assert names[0][2] > names[1][2] == names[2][2] == 0
    wide = figures.memory_timeline(phased([("forward", 40), ("backward", 60)]))
    assert figure.layout.margin.t > wide.layout.margin.t  # room for the second line of names


def test_a_single_operator_between_two_phases_is_no_phase() -> None:
    """One operator of clearing up draws no second line beside the next phase's, and parts no phase from its name."""
    runs = [("forward", 1), ("forward", 40), ("backward", 60), ("forward", 1), ("optimizer", 98)] * 2
    figure = figures.memory_timeline(phased([*runs, ("forward", 1)], (1, 201)))
    assert [shape.x0 for shape in figure.layout.shapes] == [41, 101, 200, 241, 301]
    assert [name for name, *_ in phase_names(figure)] == ["forward", "backward", "optimizer"] * 2


def test_thinning_a_long_timeline_keeps_the_peak() -> None:
    """A hundred thousand operators are drawn with some hundred points, the highest one among them."""
    rng = np.random.default_rng(0)
    totals = rng.integers(0, 1000, 100_000)
    totals[77_777] = 50_000
    figure = figures.memory_timeline(trace(totals.tolist()))
    drawn = figure.data[1]
    assert len(drawn.y) < 1000
    assert max(drawn.y) == 50_000
    assert drawn.x[int(np.argmax(drawn.y))] == 77_777


def test_a_predictions_bar_adds_up_to_what_is_needed() -> None:
    """Part by part, the scratch and the margin: rows with the names given, else with the model's; free memory near by widens the axis."""
    p = memory.predict(torch.nn.Linear(100, 100), torch.zeros(1, 100), loss=torch.sum)
    need = p.needed_bytes("cpu")
    figure = figures.memory_prediction([p, p], labels=("one", "two"), free_bytes=3 * need)
    parts = {re.sub("<.*?>", "", t.name): t.x for t in figure.data}
    assert [sum(x[k] for x in parts.values()) for k in (0, 1)] == [need, need]
    assert parts["parameters"] == (4 * (100 * 100 + 100),) * 2
    assert parts["margin"] == (need - p.peak_bytes - p.scratch_bytes,) * 2
    assert all(t.y == ("one", "two") for t in figure.data)
    assert figure.layout.barmode == "stack"
    assert {t.marker.pattern.shape for t in figure.data} == {"/"}  # modelled
    assert list(figure.layout.yaxis.tickvals) == ["one", "two"]
    assert figure.layout.xaxis.range[1] > 3 * need
    assert "one: peak" in figure.description
    assert {*figures.memory_prediction(p).data[0].y} == {f"{p.label}, {p.precision}"}
    # Two batches of one model: bars of one name would be stacked on each other, and their sum read as what one step needs.
    assert all(t.y == ("Linear, float32 (1)", "Linear, float32 (2)") for t in figures.memory_prediction([p, p]).data)
    assert figures.memory_prediction(p).layout.xaxis.range[1] < 1.2 * need


def test_a_snapshots_parts_are_one_bar() -> None:
    """Each part that is not empty has its bytes, and the axis ends behind the whole."""
    s = memory.Snapshot("cuda:0", "A GPU", 2**30, {"tensors": 2**29, "free": 2**29, "cache": 0}, (), (), LIVE)
    figure = figures.memory_snapshot(s)
    assert [(re.sub("<.*?>", "", t.name), t.x, t.y) for t in figure.data] == [
        ("tensors", (2**29,), ("cuda:0",)), ("free", (2**29,), ("cuda:0",)),
    ]  # fmt: skip
    assert 2**30 <= figure.layout.xaxis.range[1] < 1.2 * 2**30
    assert {t.marker.pattern.shape for t in figure.data} == {None}  # measured
    assert figure.data[0].customdata == ("512 MiB",)
    assert figure.description == "1.00 GiB of A GPU: tensors 512 MiB, free 512 MiB, cache 0 B."


def test_a_timelines_peak_is_marked_where_it_is() -> None:
    """At the second of four operators, at its height, with the label on the side that has room; all bytes of all operators are drawn."""
    figure = figures.memory_timeline(trace([5, 100, 4, 1]))
    (peak,) = [a for a in figure.layout.annotations if "peak" in a.text]
    assert (peak.x, peak.y, peak.xanchor) == (1, 110, "left")
    assert [(list(t.x), list(t.y)) for t in figure.data] == [([0, 1, 2, 3], [10] * 4), ([0, 1, 2, 3], [5, 100, 4, 1])]
    assert figure.layout.yaxis.range[1] > 110
    (late,) = [a for a in figures.memory_timeline(trace([5, 4, 1, 100])).layout.annotations if "peak" in a.text]
    assert (late.x, late.xanchor) == (3, "right")


def test_phases_are_named_by_their_share_of_the_operators() -> None:
    """By hand: 14 of a thousand are no phase, 16 are one; 69 have their name a line higher, 75 beside the others."""
    for count, named in ((14, False), (16, True)):
        names = phase_names(figures.memory_timeline(phased([("forward", 500), ("loss", count), ("backward", 500 - count)])))
        assert ("loss" in [name for name, *_ in names]) is named
    for count, height in ((69, 15), (75, 0)):
        names = phase_names(figures.memory_timeline(phased([("forward", count), ("backward", 1000 - count)])))
        assert names[0] == ("forward", count / 2, height)


def test_a_timeline_of_500_operators_is_drawn_whole() -> None:
    """Of one more, each of 250 buckets keeps its first and its highest."""
    whole, thinned = (figures.memory_timeline(trace([5] * count)).data[1] for count in (500, 501))
    assert (len(whole.x), len(thinned.x), thinned.x[-1]) == (500, 251, 500)


def test_a_peak_in_the_middle_has_its_label_on_the_left() -> None:
    """The third of four operators: a label to the right of it could be cut off."""
    (peak,) = [a for a in figures.memory_timeline(trace([1, 2, 100, 1])).layout.annotations if "peak" in a.text]
    assert (peak.x, peak.xanchor) == (2, "right")


def test_free_memory_of_four_times_the_need_is_still_drawn() -> None:
    """One byte more is told."""
    p = memory.predict(torch.nn.Linear(100, 100), torch.zeros(1, 100), loss=torch.sum)
    need = p.needed_bytes("cpu")
    lines = [[shape.x0 for shape in figures.memory_prediction(p, free_bytes=free).layout.shapes] for free in (4 * need, 4 * need + 1)]
    assert lines == [[4 * need], []]


def predicted(free: float) -> LabFigure:
    """Two predictions of 100 and 200 MiB."""
    made_up = [
        SimpleNamespace(label="net", precision="float32", peak_by_category={"parameters": k * 2**26, "activations": k * 2**25},
                        peak_bytes=k * 3 * 2**25, scratch_bytes=2**20, evidence=MODEL, needed_bytes=lambda kind, k=k: k * 7 * 2**24)
        for k in (1, 2)
    ]  # fmt: skip
    return figures.memory_prediction(made_up, labels=("one", "two"), free_bytes=free)  # type: ignore[arg-type]


def phases() -> LabFigure:
    """A step of 100 operators: a long forward pass, a short loss, a long backward pass."""
    names = ("forward",) * 60 + ("loss",) * 3 + ("backward",) * 37
    by = {"parameters": np.full(100, 2**20), "activations": np.arange(100) * 2**18}
    line = memory.Timeline(("aten.add.Tensor",) * 100, names, (0,), by)
    return figures.memory_timeline(dataclasses.replace(trace([1, 2]), timeline=line))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "memory prediction": lambda: predicted(2**28),
    "memory prediction: far": lambda: predicted(2**34),
    "memory snapshot": lambda: figures.memory_snapshot(
        memory.Snapshot("cuda:0", "A GPU", 2**30, {"tensors": 2**29, "free": 2**29, "cache": 0}, (), (), LIVE)
    ),
    "memory timeline": phases,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
