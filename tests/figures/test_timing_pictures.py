"""The pictures of measurements and comparisons: marks, labels and words, checked against made-up results."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from look import look, words
from looks import LOOKS

from gpulab import devices, figures
from gpulab.evidence import Evidence
from gpulab.figures._style import LabFigure
from gpulab.timing import Comparison, ComparisonRow, Measurement

LIVE = Evidence.measured("A GPU", 9)
FAR = Evidence.recorded(dataclasses.replace(devices.environment("cpu"), device="NVIDIA Far"), samples=9)


def measured(device: str, median: float, evidence: Evidence) -> Measurement:
    """A measurement with these figures."""
    samples = median * np.linspace(0.9, 1.1, 21)
    environment = devices.environment("cpu")
    interval = (0.95 * median, 1.05 * median)
    return Measurement(
        "work", device, samples, median, interval, 9 * median, median / 2, 3 * median, 1, None, None, (), evidence, environment
    )


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


@pytest.mark.parametrize(
    ("samples", "kind", "ends"),
    [
        ((1e-3, 1e-3, 4e-3), "linear", (0.76e-3, 4.24e-3)),
        ((1e-3, 1e-3, 4.1e-3), "log", None),
        ((1e-3, 1e-3), "linear", (0.95e-3, 1.05e-3)),
        ((0.0, 0.0), "linear", (-1e-9, 1e-9)),
        ((float("inf"),), "linear", (-0.08, 1.08)),
    ],
)
def test_the_axis_of_samples_by_hand(samples: tuple[float, ...], kind: str, ends: tuple[float, float] | None) -> None:
    """8 per cent of what lies between the samples, 5 of a single value; logarithmic from more than four medians on."""
    m = dataclasses.replace(measured("cpu", 1e-3, LIVE), samples_seconds=np.array(samples))
    axis = figures.measurement(m).layout.yaxis
    assert axis.type == kind
    assert ends is None or list(axis.range) == pytest.approx(ends)


def compared() -> LabFigure:
    """A CPU, a GPU, and a recorded one."""
    rows = (
        ComparisonRow("CPU", measured("cpu", 1e-2, LIVE), None, None, None),
        ComparisonRow("GPU", measured("cuda:0", 1e-3, LIVE), 10.0, (9.0, 11.0), None),
    )
    far = ComparisonRow("Far GPU", measured("cuda:0", 2e-3, FAR), None, None, None)
    return figures.comparison(Comparison("work", rows, 10.0, (9.0, 11.0), None, None, (), LIVE), recorded=[far])


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "comparison": compared,
    "measurement": lambda: figures.measurement(measured("cpu", 1e-3, LIVE)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
