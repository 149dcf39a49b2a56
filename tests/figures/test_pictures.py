"""The pictures show what their results hold: marks, labels and words, checked against made-up results."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from gpulab import devices, figures, memory, transfer
from gpulab.devices._cpu import Cache
from gpulab.devices._facts import Accelerator, Memory
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
    beside = [(re.sub("<.*?>", "", a.text), a.y, a.yref) for a in figure.layout.annotations]
    assert beside == [("10.0x [9.00x, 11.0x]", 1, "y"), ("speed-up", 1, "paper")]
    assert figure.layout.yaxis.showgrid is False
    assert all(note.showarrow is False for note in figure.layout.annotations)  # beside the plot there is nothing to point at
    for part in ("MEASURED on A GPU", "RECORDED on Far GPU", "time per call (log scale)", "device finished"):
        assert part in words(figure)
    assert figure.description == (
        "work, time per call on each device. CPU (measured): finished after 10.0 ms, returned after 5.00 ms, with copies 30.0 ms; "
        "GPU (measured): finished after 1.00 ms, returned after 500 us, with copies 3.00 ms, speed-up 10.0x [9.00x, 11.0x]; "
        "Far GPU (recorded): finished after 2.00 ms, returned after 1.00 ms, with copies 6.00 ms."
    )
    short = dataclasses.replace(rows[0].measurement, launch_seconds=0.0, with_transfer_seconds=None)
    alone = figures.comparison(dataclasses.replace(c, rows=(dataclasses.replace(rows[0], measurement=short),)))
    assert [t.x for t in alone.data if t.mode == "markers" and t.x[0] is not None] == [(1e-2,)]  # no time of 0 on a log axis
    assert alone.layout.annotations == ()
    assert alone.description.endswith("each device. CPU (measured): finished after 10.0 ms, returned after 0 s.")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ["NVIDIA RTX PRO 6000", "Blackwell Server Edition"]),
        (f"{'a' * 20} {'b' * 6} {'c' * 7}", [f"{'a' * 20} {'b' * 6}", "c" * 7]),
        (f"{'a' * 26} {'b' * 20} {'c' * 6} {'d' * 9}", ["a" * 26, f"{'b' * 20} {'c' * 4}…"]),
    ],
)
def test_a_rows_name_has_two_short_lines(name: str, lines: list[str]) -> None:
    """A line ends before the word that would make it longer than 26 letters; of three the second is cut; the evidence stands below."""
    row = ComparisonRow(name, measured("cpu", 1e-2, LIVE), None, None, None)
    figure = figures.comparison(Comparison("work", (row,), None, None, None, None, (), LIVE))
    assert re.sub("<[^b].*?>|</.*?>", "", figure.layout.yaxis.ticktext[0]).split("<br>") == [*lines, "measured"]


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
    single = figures.measurement(dataclasses.replace(m, samples_seconds=np.array([1e-3]), interval_seconds=None))
    assert ": 1 sample in the order taken" in single.description


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
    assert figure.description == (
        "Transfer time over size on A GPU. host to device from pinned memory, smallest 1.00 KiB: 10.1 us, 101 MB/s, largest 1.00 GiB: "
        "107 ms, 10.0 GB/s; device to host from pinned memory, smallest 1.00 KiB: 10.1 us, 101 MB/s, largest 1.00 GiB: 107 ms, "
        "10.0 GB/s; the fit: latency 10.0 us, bandwidth 10.0 GB/s."
    )
    other = dataclasses.replace(s, device="B GPU")
    two = figures.sweep(s, beside=[other])
    assert "host to device, pinned, B GPU (measured)" in words(two)
    assert "host to device from pinned memory on B GPU, smallest" in two.description
    slow = dataclasses.replace(s, points=tuple(dataclasses.replace(p, median_seconds=2 * p.median_seconds) for p in s.points))
    several = words(figures.sweep(s, [s.fit("to_device"), slow.fit("to_host")], quantity="rate"))
    assert "bandwidth of the fit" not in several  # whose?
    assert "half the bandwidth" not in several
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
        # Of times they go down from the top, of rates up from the bottom; late ones of times stand before their line.
        assert all((label.yshift or 0) * (1 if quantity == "rate" else -1) >= 0 for label in labels)
        late = {re.sub("<.*?>", "", label.text).partition(" ")[0]: label.xanchor for label in labels}
        assert late == {"half": "left", "knee": "left" if quantity == "rate" else "right"}
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
    assert figures.sweep(s, s.fit("to_device"), at_bytes=1e12).layout.xaxis.range[1] > 12  # a size beyond all others has its place


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
    s = sweep_of(LIVE, ceiling=2e10)
    names = [(re.sub("<.*?>", "", a.text).partition(" ")[0], a.x, a.yanchor) for a in figures.sweep(s, s.fit(), "rate").layout.annotations]
    assert [(what, side) for what, _, side in names[-2:]] == [("memory", "bottom"), ("bandwidth", "top")]  # the higher one over its line
    assert all(place < 0.5 for _, place, _ in names[-2:])  # left of where all curves meet
    far = figures.sweep(sweep_of(LIVE, ceiling=1e15), quantity="rate")
    assert far.layout.yaxis.range[1] > 15, "a line beyond all points has its place in the picture"


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
    assert list(figure.layout.yaxis.tickvals) == list(figure.layout.yaxis.categoryarray) == ["compute", "copy"]
    ideal, serial = figure.layout.annotations
    assert serial.y > ideal.y >= 1  # neither on the plot nor on the other
    assert figure.layout.margin.t >= figures.measurement(measured("cpu", 1e-3, LIVE)).layout.margin.t + 30  # and both have room
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


def test_a_machines_memories_are_its_own() -> None:
    """By hand: a cache in four copies, 8 of 16 GiB granted, a GPU with its L2 and free memory, and one that is not used."""
    caches = (Cache("L1d", 32 * 2**10, 4), Cache("L3", 2**23, 1))
    gpus = (
        Accelerator("cuda:0", "A GPU", "cuda", memory_bytes=2**36, free_bytes=2**35, l2_bytes=2**25),
        Accelerator(None, "Another", "cuda", memory_bytes=2**34),
    )
    here = devices.machine()
    made = dataclasses.replace(here, processor=dataclasses.replace(here.processor, caches=caches), accelerators=gpus)
    granted = dataclasses.replace(made, memory=Memory(2**34, 2**31, 2**33))
    figure = figures.machine(granted)
    marks = [(t.y[0], t.x[0], re.sub("<.*?>", "", t.text[0])) for t in figure.data if t.mode == "markers+text"]
    assert marks == [
        ("CPU L1d", 2**15, "32.0 KiB x 4"), ("CPU L3", 2**23, "8.00 MiB"), ("main memory", 2**33, "8.00 GiB, 2.00 GiB free"),
        ("cuda:0 L2", 2**25, "32.0 MiB"), ("cuda:0 memory", 2**36, "64.0 GiB, 32.0 GiB free"), ("cuda (unused) memory", 2**34, "16.0 GiB"),
    ]  # fmt: skip
    assert [t.x[1] for t in figure.data if t.mode == "lines"] == [size for _, size, _ in marks]
    low, high = figure.layout.xaxis.range
    assert all(low < math.log10(size) < high for _, size, _ in marks)
    assert high - math.log10(2**36) > 0.15 * (high - low)  # the label beside the largest has its place
    assert list(figure.layout.yaxis.tickvals) == [name for name, *_ in marks]
    whole = figures.machine(dataclasses.replace(made, memory=Memory(2**34, 2**31)))
    assert [t.x[0] for t in whole.data if t.mode == "markers+text" and t.y[0] == "main memory"] == [2**34]


def test_each_gpu_that_is_not_used_has_its_row() -> None:
    """Four GPUs beside a PyTorch without CUDA have no names of PyTorch's: they are numbered, each with its own free memory beside it."""
    gpus = tuple(Accelerator(None, "A GPU", "cuda", memory_bytes=2**34, free_bytes=k * 2**30) for k in range(4))
    figure = figures.machine(dataclasses.replace(devices.machine(), accelerators=gpus))
    marks = {t.y[0]: re.sub("<.*?>", "", t.text[0]) for t in figure.data if t.mode == "markers+text"}
    rows = [f"cuda (unused) memory ({k})" for k in range(1, 5)]
    assert list(figure.layout.yaxis.tickvals)[-4:] == rows
    assert [marks[row] for row in rows] == [f"16.0 GiB, {free} free" for free in ("0 B", "1.00 GiB", "2.00 GiB", "3.00 GiB")]


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


def test_rates_of_a_sweep_have_the_intervals_of_their_times_turned_round() -> None:
    """A time 1 % of the latency longer is a rate that much lower; points without an interval have no bar; the words have both figures."""
    s = sweep_of(LIVE)
    first, last = s.points[0], s.points[10]
    rate = figures.sweep(s, quantity="rate").data[0]
    assert rate.y[0] == pytest.approx(first.nbytes / first.median_seconds)
    low, high = first.interval_seconds  # type: ignore[misc]
    assert rate.error_y.array[0] == pytest.approx(first.nbytes / low - rate.y[0])
    assert rate.error_y.arrayminus[0] == pytest.approx(rate.y[0] - first.nbytes / high)
    time = figures.sweep(s).data[0]
    assert (time.y[0], time.error_y.array[0], time.error_y.arrayminus[0]) == pytest.approx((first.median_seconds, 1e-7, 1e-7))
    assert list(time.x) == [2**k for k in range(10, 31, 2)]
    assert time.customdata[0] == "1.00 KiB: 10.1 us, 101 MB/s"  # 10 us + 1024 B / 10 GB/s
    assert last.nbytes == 2**30
    bare = dataclasses.replace(s, points=tuple(dataclasses.replace(p, interval_seconds=None) for p in s.points))
    for quantity in ("seconds", "rate"):
        assert set(figures.sweep(bare, quantity=quantity).data[0].error_y.array) == {0}


def test_a_fits_band_goes_out_above_and_back_below() -> None:
    """Of times and of rates: the line within the band everywhere, over all sizes; a predicted rate is the size over its time."""
    s = sweep_of(LIVE)
    fit = s.fit("to_device")
    for quantity in ("seconds", "rate"):
        figure = figures.sweep(s, fit, quantity, at_bytes=1e6)
        band, line = figure.data[:2]
        n = len(line.x)
        assert (line.x[0], line.x[-1]) == pytest.approx((2**10, 2**30))
        assert band.x == (*line.x, *line.x[::-1])
        assert all(low <= y <= high for high, y, low in zip(band.y[:n], line.y, band.y[: -n - 1 : -1], strict=True))
        (mark,) = [t for t in figure.data if len(t.y) == 1]
        assert mark.y[0] == pytest.approx(110e-6 if quantity == "seconds" else 1e6 / 110e-6, rel=0.01)
        assert mark.error_y.array[0] > 0
        assert mark.error_y.arrayminus[0] > 0
    road = transfer.link("pcie4", latency_seconds=1e-6, bandwidth_bytes_per_second=1e9)
    (line,) = figures.sweep(None, quantity="rate", links=[road]).data
    assert line.y[-1] == pytest.approx(1e9, rel=0.01)
    assert line.y[0] == pytest.approx(1024 / (1e-6 + 1024 / 1e9))


def test_a_break_evens_lines_are_the_two_times() -> None:
    """CPU and accelerator over the sizes, with the line at the size from which it wins."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    figure = figures.break_even(BreakEven("matmul", 80, "found", "It wins from 80 on.", rows, (), MODEL))
    assert [(t.x, t.y) for t in figure.data] == [((64, 128), (1e-4, 8e-4)), ((64, 128), (2e-4, 3e-4))]
    assert [shape.x0 for shape in figure.layout.shapes] == [80]
    assert figure.data[1].customdata == ("200 us", "300 us")
    assert "n = 64: CPU 100 us, accelerator 200 us" in figure.description


def test_bounds_of_an_overlap_stand_at_their_times() -> None:
    """Both lines from the axis upwards, and each bar with its chunk, its place and its time."""
    spans = (Span("copy", 0, 0.0, 1e-3), Span("copy", 1, 1e-3, 2e-3), Span("compute", 0, 1e-3, 2.5e-3))
    times = {"copy_seconds": 2e-3, "compute_seconds": 1.5e-3, "seconds": 2.5e-3}
    figure = figures.overlap(Overlap(device="A GPU", nbytes=2**20, chunks=2, **times, timeline=spans, notes=(), evidence=LIVE))
    assert [(shape.x0, shape.x1, shape.y0) for shape in figure.layout.shapes] == [(2e-3, 2e-3, 0), (pytest.approx(3.5e-3),) * 2 + (0,)]
    copies, computes = figure.data
    assert list(copies.x) == pytest.approx([1e-3, 1e-3])
    assert (computes.base, set(copies.y), set(computes.y)) == ((1e-3,), {"copy"}, {"compute"})
    assert copies.customdata == ("copy 1: 1.00 ms", "copy 2: 1.00 ms")
    assert figure.layout.xaxis.range[1] >= 3.5e-3
    assert figure.layout.barmode == "overlay"
    assert "2 chunks of 512 KiB" in re.sub("<.*?>", "", figure.layout.title.text)
    whole = figures.overlap(Overlap(device="A GPU", nbytes=2**20, chunks=1, **times, timeline=spans, notes=(), evidence=LIVE))
    assert "Copy and compute, 1 chunk of 1.00 MiB" in re.sub("<.*?>", "", whole.layout.title.text)
    assert whole.description.startswith("1.00 MiB in 1 chunk on A GPU: overlapped 2.50 ms, one after the other 3.50 ms, ideal 2.00 ms")


def test_a_measurements_samples_stand_in_the_order_taken() -> None:
    """From 1 on; the median is a line over the whole width and the interval a band around it; without one there is no band."""
    m = dataclasses.replace(measured("cpu", 1e-3, LIVE), interval_seconds=(0.9e-3, 1.2e-3))
    figure = figures.measurement(m)
    band, middle = figure.layout.shapes
    assert list(figure.data[0].x) == [*range(1, len(m.samples_seconds) + 1)]
    assert (band.y0, band.y1, middle.y0, middle.y1) == (0.9e-3, 1.2e-3, 1e-3, 1e-3)
    assert (band.x0, band.x1, middle.x0, middle.x1) == (0, 1, 0, 1)
    assert len(figures.measurement(dataclasses.replace(m, interval_seconds=None)).layout.shapes) == 1
    same = figures.measurement(dataclasses.replace(m, samples_seconds=np.array([1e-3, 1e-3])))
    low, high = same.layout.yaxis.range
    assert low < 1e-3 < high
