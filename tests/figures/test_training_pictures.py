"""Pictures of training: the losses that were measured, their end, and the bars beside them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from look import look
from looks import LOOKS

from gpulab import figures, training
from gpulab.evidence import Evidence
from gpulab.figures._style import LabFigure


@pytest.fixture(scope="module", name="run")
def _run() -> training.FitResult:
    return training.fit("prose-transformer", steps=25, batch_size=2, device="cpu")


def test_a_run_shows_every_loss_and_the_parts_of_a_step(run: training.FitResult) -> None:
    """The thin line has each loss; the stacked bar adds up to the step; the description has the figures."""
    figure = figures.training(run)
    assert np.array_equal(np.array(figure.data[0].y), run.losses)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert sum(bar.x[0] for bar in bars) == pytest.approx(sum(run.phase_seconds.values()))
    assert "finished after 25 steps" in figure.description
    assert "forward" in figure.description
    assert "MEASURED" in figure.layout.title.subtitle.text


def test_the_bold_line_is_the_running_mean() -> None:
    """Of 100 steps, the mean of five: each point is that of the five losses up to it."""
    losses = np.arange(100.0)
    moment = training.Moment(("a", "b"), (tuple(losses), ()), (None, None), (None, None), 100, Evidence.measured("Slow CPU"))
    _thin, bold = figures.race(moment).data[:2]
    assert bold.x[0] == 4
    assert bold.y[0] == pytest.approx(2.0)
    assert bold.y[-1] == pytest.approx(97.0)


def test_a_lost_loss_ends_its_curve_with_a_word() -> None:
    """The curve stops before it, and the other one goes on."""
    losses = ((2.0, 1.0, float("nan")), (2.0, 1.5, 1.25))
    moment = training.Moment(("a", "b"), losses, (100.0, 50.0), (2**20, 2**21), 9, Evidence.measured("Slow CPU"))
    figure = figures.race(moment)
    assert list(figure.data[0].y) == [2.0, 1.0]
    assert any(trace.text and "diverged" in str(trace.text) for trace in figure.data if trace.type == "scatter")
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [list(bar.y) for bar in bars] == [[100.0, 50.0], [2**20, 2**21]]
    assert "0.50x" in figure.description


def test_a_race_draws_its_intervals() -> None:
    """The ends of the whiskers are those of the result."""
    result = training.race("digits-mlp", {}, {"clip": 1.0}, steps=30, device="cpu")
    figure = figures.race(result)
    bar = next(trace for trace in figure.data if trace.type == "bar")
    low, high = result.first.samples_per_second_interval  # type: ignore[misc]
    assert bar.y[0] + bar.error_y.array[0] == pytest.approx(high)
    assert bar.y[0] - bar.error_y.arrayminus[0] == pytest.approx(low)


def _lost(first: tuple[float, ...], second: tuple[float, ...]) -> training.Moment:
    return training.Moment(("a", "b"), (first, second), (100.0, 50.0), (2**20, 2**21), 40, Evidence.measured("Slow CPU"))


def test_the_word_at_the_right_end_stands_on_the_left() -> None:
    """Where both diverge the axis ends with them: a word to the right would be cut off."""
    nan = float("nan")
    both = figures.race(_lost((2.0, 2.1, nan), (2.0, 2.1, nan)))
    assert [t.textposition for t in both.data if t.type == "scatter" and t.text] == ["bottom left"] * 2
    one = figures.race(_lost(tuple([2.0] * 40), (2.0, 2.1, nan)))
    assert [t.textposition for t in one.data if t.type == "scatter" and t.text] == ["middle right"]


def test_a_loss_that_shot_up_by_decades_gets_a_log_axis() -> None:
    """Else the other side would lie flat on the axis; one rare spike is cut off instead, and the axis stays linear from 0."""
    calm = tuple(np.linspace(2.3, 0.3, 40))
    wild = (2.3, 11_000.0, 9_000.0, 3_000.0, 800.0, *[2.4] * 35)
    axis = figures.race(_lost(calm, wild)).layout.yaxis
    assert axis.type == "log"
    assert 10 ** axis.range[0] <= 0.3
    assert 10 ** axis.range[1] >= 11_000
    spike = figures.race(_lost(calm, (2.3, 50.0, *calm[2:]))).layout.yaxis
    assert (spike.type, spike.range[0]) == ("linear", 0)
    assert spike.range[1] < 10


def test_the_words_under_two_bars_stand_below_each_other() -> None:
    """A number and its unit on two lines: on one, those of neighbours would touch."""
    words = [re.sub("<span[^>]*>|</span>", "", text) for text in figures.race(_lost((2.0,), (2.0,))).layout.xaxis3.ticktext]
    assert words == ["first<br>1.00<br>MiB", "second<br>2.00<br>MiB"]


def test_a_run_that_timed_no_parts_says_so(run: training.FitResult) -> None:
    """The axis for the parts stays one that can be drawn, and the description does not invent any."""
    figure = figures.training(dataclasses.replace(run, phase_seconds={}))
    assert "no step was timed part by part" in figure.description
    assert figure.layout.xaxis2.range[1] > 0
    assert not [trace for trace in figure.data if trace.type == "bar"]
    whole = sum(run.phase_seconds.values())
    timed = figures.training(run).layout
    assert whole < timed.xaxis2.range[1] < 1.2 * whole
    assert timed.barmode == "stack"


def test_bars_say_whose_they_are_and_how_high() -> None:
    """Rates of 100 and 50 and a memory that is not known: under each bar its side and its figure; the axes hold them."""
    nan = float("nan")
    moment = training.Moment(("a", "b"), ((2.0,), (2.0, 1.0, nan)), (100.0, 50.0), (2**20, None), 9, Evidence.measured("Slow CPU"))
    figure = figures.race(moment)
    texts = [[re.sub("<[^b].*?>|</.*?>", "", text) for text in axis.ticktext] for axis in (figure.layout.xaxis2, figure.layout.xaxis3)]
    assert texts == [["first<br>100", "second<br>50"], ["first<br>1.00<br>MiB", "second<br>not<br>known"]]
    assert figure.layout.xaxis2.tickvals == figure.layout.xaxis3.tickvals == (0, 1)
    rates, peaks = (trace for trace in figure.data if trace.type == "bar")
    assert (rates.x, rates.y, peaks.y) == ((0, 1), (100.0, 50.0), (2**20, 0.0))
    assert (rates.xaxis, rates.yaxis, peaks.xaxis, peaks.yaxis) == ("x2", "y2", "x3", "y3")
    assert 100 < figure.layout.yaxis2.range[1] < 150
    assert 2**20 < figure.layout.yaxis3.range[1] < 1.5 * 2**20
    (single,) = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "markers"]
    assert list(single.y) == [2.0]  # one loss is a point, as there is no line yet
    assert "b against a: step 3 of 9" in re.sub("<.*?>", "", figure.layout.title.text)


def test_one_step_is_one(run: training.FitResult) -> None:
    """A run of one step, in title and description, and a race at its first one."""
    figure = figures.training(dataclasses.replace(run, losses=run.losses[:1]))
    assert "finished after 1 step" in figure.description
    assert "1 steps" not in f"{figure.description} {figure.layout.title.text}"
    begun = figures.race(training.Moment(("a", "b"), ((2.0,), ()), (None, None), (None, None), 9, Evidence.measured("x")))
    assert "a: loss 2 after 1 step; b: no step yet" in begun.description


def test_a_long_curve_is_thinned_evenly() -> None:
    """Of 6000 losses every tenth is drawn, at its own step, and the mean of twenty ends at its last step."""
    losses = tuple(np.arange(6000.0))
    thin, bold = figures.race(training.Moment(("a", "b"), (losses, ()), (None, None), (None, None), 6000, Evidence.measured("x"))).data[:2]
    assert list(thin.x) == list(thin.y) == list(range(0, 6000, 10))
    assert (bold.x[0], bold.y[0]) == (19, pytest.approx(9.5))  # the mean of 0 to 19


def test_a_curve_of_600_steps_is_drawn_whole() -> None:
    """Of 601 every second step is left out; the bold line is the mean of a twentieth of the steps, of 20 at most."""
    for steps, drawn, window in ((600, 600, 20), (601, 301, 20), (399, 399, 19)):
        losses = tuple(np.arange(float(steps)))
        thin, bold = figures.race(_lost(losses, ())).data[:2]
        assert (len(thin.x), bold.x[0], bold.y[0]) == (drawn, window - 1, pytest.approx((window - 1) / 2))


def test_a_curve_that_ends_in_the_middle_has_its_word_on_the_right() -> None:
    """Two of four steps: there is as much room behind it as before it."""
    nan = float("nan")
    for steps, side in ((4, "middle right"), (3, "bottom left")):
        both = figures.race(_lost((2.0, 2.1, nan), (2.0,) * steps))
        assert [t.textposition for t in both.data if t.type == "scatter" and t.text] == [side]


def test_the_axis_of_losses_by_hand() -> None:
    """Twice what 97 of a hundred stay below; logarithmic from beyond ten times the first; 6 per cent more at its end, and never nothing."""
    cases = [((1.0, 50.0, *[1.0] * 99), 2.0), ((1.0, *[10.0] * 40), 10.0), ((0.0, 0.0), 1e-9), ((), 1.0)]
    for losses, high in cases:
        axis = figures.race(_lost(losses, ())).layout.yaxis
        assert (axis.type, list(axis.range)) == ("linear", [0, pytest.approx(1.06 * high, rel=1e-6, abs=0)])
    assert figures.race(_lost((1.0, *[10.1] * 40), ())).layout.yaxis.type == "log"
    assert figures.race(_lost((1.0, *[10.1] * 40), (2.0, 2.0))).layout.yaxis.type == "linear", "the higher of both beginnings counts"


def trained() -> LabFigure:
    """Forty losses, and where a step's time went."""
    run = SimpleNamespace(
        accuracy=None, ended="finished", steps=40, task="digits", options=SimpleNamespace(precision="float32"), device="cpu",
        evidence=Evidence.measured("A GPU", 9),
        losses=np.linspace(2.0, 0.1, 40), phase_seconds={"data": 1e-3, "copy": 2e-3, "forward": 3e-3, "backward": 5e-3, "optimizer": 1e-3},
    )  # fmt: skip
    return figures.training(run)  # type: ignore[arg-type]


def raced() -> LabFigure:
    """One side diverges late, the other early."""
    nan = float("nan")
    losses = ((*np.linspace(2.0, 1.0, 30), nan), (2.0, 1.5, nan))
    return figures.race(training.Moment(("a", "b"), losses, (100.0, 50.0), (2**20, 2**21), 40, Evidence.measured("A GPU", 9)))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "race": raced,
    "training": trained,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
