"""The pictures show what their results hold: marks, labels and words, checked against made-up results."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from gpulab import devices, figures, memory, transfer
from gpulab.evidence import Evidence
from gpulab.memory import MemoryTrace, Timeline
from gpulab.timing import Comparison, ComparisonRow, Measurement
from gpulab.transfer import BreakEven, BreakEvenRow, Overlap, Sweep
from gpulab.transfer.results import Span, SweepPoint

LIVE, MODEL = Evidence.measured("A GPU", 9), Evidence.modelled("a link", "a book")


def words(figure: go.Figure) -> str:
    """All that is written in a figure, without mark-up."""
    layout = figure.layout
    texts = [layout.title.text, layout.title.subtitle.text, layout.xaxis.title.text, layout.yaxis.title.text]
    texts += [a.text for a in layout.annotations] + [t.name for t in figure.data]
    return re.sub("<.*?>", "", " | ".join(text for text in texts if text))


def measured(device: str, median: float, evidence: Evidence) -> Measurement:
    """A measurement with these figures."""
    samples = median * np.linspace(0.9, 1.1, 21)
    environment = devices.environment("cpu")
    interval = (0.95 * median, 1.05 * median)
    return Measurement(
        "work", device, samples, median, interval, 9 * median, median / 2, 3 * median, 1, None, None, (), evidence, environment
    )


def timeline(totals: list[int]) -> Timeline:
    """A timeline of activations."""
    n = len(totals)
    phases = ("forward",) * (n // 2) + ("backward",) * (n - n // 2)
    return Timeline(("aten.add.Tensor",) * n, phases, (0,), {"parameters": np.full(n, 10), "activations": np.array(totals)})


def test_a_comparison_shows_three_times_and_the_speed_up() -> None:
    """Each device has its three times at their places, the interval as bars, the speed-up in words; recorded marks are hollow."""
    recorded = Evidence.recorded(dataclasses.replace(devices.environment("cpu"), device="Far GPU"))
    rows = (
        ComparisonRow("CPU", measured("cpu", 1e-2, Evidence.measured("CPU")), None, None, None),
        ComparisonRow("GPU", measured("cuda:0", 1e-3, LIVE), 10.0, (9.0, 11.0), None),
    )
    c = Comparison("work", rows, 10.0, (9.0, 11.0), None, None, (), LIVE)
    figure = figures.comparison(c, recorded=[ComparisonRow("Far GPU", measured("cuda:0", 2e-3, recorded), None, None, None)])
    marks = [t for t in figure.data if t.mode == "markers" and t.x[0] is not None]
    assert sorted(t.x[0] for t in marks) == pytest.approx(sorted([5e-3, 1e-2, 3e-2, 5e-4, 1e-3, 3e-3, 1e-3, 2e-3, 6e-3]))
    bars = {t.x[0]: (t.error_x.arrayminus[0], t.error_x.array[0]) for t in marks if t.error_x.array is not None}
    assert bars[1e-3] == pytest.approx((5e-5, 5e-5))
    assert {t.marker.symbol for t in marks if round(t.y[0]) == 2} == {"line-ns-open", "circle-open", "diamond-open"}
    assert "10.0x" in words(figure)
    assert "[9.00x, 11.0x]" in words(figure)
    assert all(note.showarrow is False for note in figure.layout.annotations)  # beside the plot there is nothing to point at
    for part in ("MEASURED on A GPU", "RECORDED on Far GPU", "time per call (log scale)", "device finished"):
        assert part in words(figure)
    assert "GPU (measured): finished after 1.00 ms" in figure.description


def test_a_measurements_ticks_are_round() -> None:
    """Between 28 and 144 ms the axis counts in fifties, by hand; ticks a hundredth of a millisecond apart show their digits."""
    m = dataclasses.replace(measured("cpu", 1e-2, LIVE), samples_seconds=np.array([28e-3, 40e-3, 144e-3]), median_seconds=40e-3)
    ticks = [re.sub("<.*?>", "", text) for text in figures.measurement(m).layout.yaxis.ticktext]
    assert ticks == ["50", "100", "150"]
    near = dataclasses.replace(m, samples_seconds=np.array([10.00e-3, 10.02e-3, 10.05e-3]), median_seconds=10.02e-3)
    ticks = [re.sub("<.*?>", "", text) for text in figures.measurement(near).layout.yaxis.ticktext]
    assert ticks == ["10.00", "10.02", "10.04"]


def test_a_measurement_shows_every_sample() -> None:
    """One mark a sample in the order taken, with the median and its interval in words; outliers turn the axis logarithmic."""
    m = measured("cpu", 1e-3, LIVE)
    figure = figures.measurement(m)
    assert list(figure.data[0].y) == pytest.approx(list(m.samples_seconds))
    assert "95 % interval 950 us to 1.05 ms" in words(figure)
    assert figure.layout.yaxis.type == "linear"
    wild = dataclasses.replace(m, samples_seconds=np.append(m.samples_seconds, 1.0), interval_seconds=None)
    figure = figures.measurement(wild)
    assert figure.layout.yaxis.type == "log"
    assert "no honest interval" in words(figure)


def sweep_of(evidence: Evidence, ceiling: float | None = None) -> Sweep:
    """A straight link of 10 us and 10 GB/s."""
    points = [
        SweepPoint(direction, "pinned", n, 1e-5 + n / 1e10, (0.99e-5 + n / 1e10, 1.01e-5 + n / 1e10), 9)
        for direction in ("to_device", "to_host")
        for n in (2**k for k in range(10, 31, 2))
    ]
    return Sweep("A GPU", "torch", tuple(points), ceiling, (), evidence, None)


def test_a_sweep_shows_its_series_its_fit_and_half_the_bandwidth() -> None:
    """Both directions are apart, the fit is dashed and in words, and the size of half the bandwidth (100 kB here) is marked."""
    s = sweep_of(LIVE)
    figure = figures.sweep(s, s.fit("to_device"))
    text = words(figure)
    for part in (
        "host to device, pinned (measured)",
        "device to host, pinned (measured)",
        "fit: 10.0 us + size / 10.0 GB/s",
        "size (log scale)",
    ):
        assert part in text
    assert any(t.line.dash == "dash" for t in figure.data)
    assert any(shape.x0 == pytest.approx(1e5, rel=0.02) for shape in figure.layout.shapes)
    assert "half the bandwidth at" in text
    rate = figures.sweep(s, quantity="rate")
    assert max(rate.data[0].y) == pytest.approx(1e10, rel=0.01)


def test_a_fits_latency_bandwidth_and_knees_are_named() -> None:
    """A link of 10 us and 10 GB/s that drops to 5 GB/s from 16 MiB on: latency in the picture of times, the last bandwidth in rates."""
    nbytes = [2**k for k in range(10, 31)]
    seconds = [10e-6 + n / 10e9 + max(n - 2**24, 0) / 10e9 for n in nbytes]
    fit = transfer.fit(nbytes, seconds)
    points = tuple(SweepPoint("to_device", "pinned", n, t, None, 9) for n, t in zip(nbytes, seconds, strict=True))
    s = Sweep("A GPU", "torch", points, None, (), LIVE, None)
    assert "latency 10.0 us" in words(figures.sweep(s, fit))
    for quantity in ("seconds", "rate"):
        labels = [a for a in figures.sweep(s, fit, quantity).layout.annotations if "half" in a.text or "knee" in a.text]
        assert len({label.yshift or 0 for label in labels}) == len(labels) >= 2
    assert re.search(r"knee at 1[5-7]\.\d MiB", words(figures.sweep(s, fit)))
    assert "bandwidth of the fit 5.00 GB/s" in words(figures.sweep(s, fit, quantity="rate"))


def test_a_modelled_link_is_dashed_and_a_predicted_time_has_its_interval() -> None:
    """A link of 1 us and 1 GB/s passes through 2 us at 1 kB, alone or beside a sweep; the prediction at 1 MB is 10 us + 100 us."""
    road = transfer.link("pcie4", latency_seconds=1e-6, bandwidth_bytes_per_second=1e9)
    alone = figures.sweep(None, links=[road])
    (line,) = alone.data
    assert (line.line.dash, line.mode) == ("dash", "lines")
    assert np.interp(2048, line.x, line.y) == pytest.approx(3.048e-6, rel=0.01)
    assert "MODELLED" in words(alone)
    s = sweep_of(LIVE)
    both = figures.sweep(s, s.fit("to_device"), links=[road], at_bytes=1e6)
    assert "predicted, 977 KiB: 110 us, 95 %" in words(both)
    (mark,) = [t for t in both.data if len(t.y) == 1]
    assert mark.y[0] == pytest.approx(110e-6, rel=0.01)
    assert mark.error_y.array[0] > 0


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


def test_a_ceiling_is_drawn_and_named() -> None:
    """The memory bandwidth of a host sweep is a labelled line in the picture of rates."""
    figure = figures.sweep(sweep_of(LIVE, ceiling=2e10), quantity="rate")
    assert "memory bandwidth 20.0 GB/s" in words(figure)
    assert 2e10 in [shape.y0 for shape in figure.layout.shapes]


def test_a_break_even_is_marked_and_a_missing_one_is_told() -> None:
    """The size is a labelled line; without one the reason stands in the plot; a modelled accelerator is dashed beside a measured CPU."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    found = BreakEven("matmul", 80, "found", "It wins from 80 on.", rows, (), MODEL)
    figure = figures.break_even(found)
    assert "break-even: n = 80" in words(figure)
    assert {t.line.dash for t in figure.data} == {"solid", "dash"}
    none = figures.break_even(dataclasses.replace(found, size=None, reason="never in this range"))
    assert "never in this range" in words(none)
    nothing = figures.break_even(dataclasses.replace(found, size=None, reason="no accelerator", rows=()))
    assert "no accelerator" in words(nothing)


def test_a_late_break_even_is_named_before_its_line() -> None:
    """Near the right end of the axis, words behind the line would be cut off; elsewhere they stand behind it."""
    rows = (BreakEvenRow(1024, 1e-4, 2e-4, 1e4), BreakEvenRow(2**24, 8e-4, 3e-4, 4e4))
    late = BreakEven("add", 12_000_000, "found", "It wins from there on.", rows, (), MODEL)
    sides = {n: figures.break_even(dataclasses.replace(late, size=n)).layout.annotations[-1] for n in (12_000_000, 4096)}
    assert (sides[12_000_000].xanchor, sides[4096].xanchor) == ("right", "left")
    assert sides[12_000_000].xshift == -sides[4096].xshift < 0


def test_an_overlap_shows_its_bars_and_both_bounds() -> None:
    """Each copy and each compute is a bar from its start, and the two bounds are named lines."""
    spans = (Span("copy", 0, 0.0, 1e-3), Span("copy", 1, 1e-3, 2e-3), Span("compute", 0, 1e-3, 2.5e-3))
    times = {"copy_seconds": 2e-3, "compute_seconds": 1.5e-3, "seconds": 2.5e-3}
    o = Overlap(device="A GPU", nbytes=2**20, chunks=2, **times, timeline=spans, notes=(), evidence=LIVE)
    figure = figures.overlap(o)
    copies, computes = figure.data
    assert list(copies.base) == [0.0, 1e-3]
    assert list(computes.x) == pytest.approx([1.5e-3])
    assert "ideal 2.00 ms" in words(figure)
    assert "one after the other 3.50 ms" in words(figure)


def trace(totals: list[int], evidence: Evidence = LIVE) -> MemoryTrace:
    """A trace whose peak is the largest total."""
    peak = max(totals) + 10
    by = {"parameters": 10, "activations": max(totals)}
    return MemoryTrace("a model", "cpu", peak, by, "aten.add.Tensor", "forward", (), timeline(totals), (), evidence)


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
    ("steps", "title"), [((0,), "Memory of one training step of a model"), ((0, 50), "Memory of 2 training steps of a model")]
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


def test_the_machine_is_drawn_with_all_its_memories() -> None:
    """The main memory of this machine and each cache that it reports are marks with their sizes."""
    m = devices.machine()
    figure = figures.machine(m)
    marks = {t.y[0]: t.x[0] for t in figure.data if t.mode == "markers+text"}
    assert marks["main memory"] == (m.memory.limit_bytes or m.memory.installed_bytes)
    assert len(marks) >= 1 + len(m.processor.caches)


@pytest.mark.parametrize(
    "make",
    [
        lambda: figures.sweep(sweep_of(MODEL)),
        lambda: figures.memory_timeline(trace([1, 2, 3])),
        lambda: figures.measurement(measured("cpu", 1e-9, LIVE)),
        lambda: figures.machine(devices.machine()),
    ],
)
def test_every_figure_can_be_sent_and_says_its_evidence(make: Any) -> None:
    """Each picture is finite JSON, has a description, an evidence line and axes with titles."""
    figure = make()
    json.dumps(figures.mimebundle(figure), allow_nan=False)
    assert figure.description
    assert re.search("MEASURED|RECORDED|MODELLED", words(figure))
    assert figure.layout.xaxis.title.text
