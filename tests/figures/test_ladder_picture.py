"""The ladder's pictures: a waterfall whose bars are the rungs, with intervals and badges, and what each technique gives where."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from look import look
from looks import LOOKS

from gpulab import devices, figures
from gpulab.evidence import Evidence
from gpulab.figures import palette
from gpulab.figures._style import LabFigure
from gpulab.figures.ladder import _cut
from gpulab.training import Gain, LadderForm, LadderResult, Rung


def form(ratio: float) -> LadderForm:
    """A form so many times as fast as the script."""
    return LadderForm((), 16, 100 * ratio, None, Gain(ratio, (0.9 * ratio, 1.1 * ratio)), 0.1, {}, None)


RUNGS = (
    Rung("a", "first", "loading", form(2.0), Gain(2.0, (1.8, 2.2)), Gain(2.0, (1.8, 2.2)), Gain(1.2, (1.1, 1.3)), None),
    Rung("b", "second", "waiting", form(1.8), Gain(0.9, (0.85, 0.95)), Gain(1.5, (1.2, 1.8)), Gain(0.9, (0.8, 0.95)), None),
    Rung("c", "third", "arithmetic", form(1.9), Gain(1.06, (0.9, 1.2)), Gain(1.1, None), Gain(1.05, (0.9, 1.2)), None),
)
RESULT = LadderResult(
    "digits", "cpu", 100, (), 0.02, form(1.0), None, RUNGS, Gain(1.9, (1.7, 2.1)), Gain(3.3, (2.5, 4.0)), Gain(1.74, (1.3, 2.1)), (), (),
    24, (), Evidence.measured("Slow CPU", 24), devices.environment("cpu"),
)  # fmt: skip


def test_each_bar_goes_from_where_the_one_before_ended() -> None:
    """2x, then down to 1.8x, then up to 1.9x; the last ones begin at 1x: the combination solid, the product dashed."""
    figure = figures.waterfall(RESULT)
    bars = [trace for trace in figure.data if trace.mode == "lines"]
    assert [tuple(bar.x) for bar in bars] == [(1.0, 2.0), (2.0, 1.8), (1.8, 1.9), (1.0, 1.9), (1.0, 3.3)]
    assert [bar.line.dash for bar in bars] == [None] * 4 + ["dash"]
    assert len({bar.line.color for bar in bars[:3]}) == 3  # faster, slower, not shown
    assert bars[3].line.color == palette.device_color("cpu")
    assert [tuple(bar.y) for bar in bars] == [(row, row) for row in range(5)]
    texts = [trace for trace in figure.data if trace.mode == "text"]
    assert [text.y[0] for text in texts] == [0, 1, 2, 3, 4]
    assert [text.x[0] > end for text, end in zip(texts, (2.2, 2.0, 2.09, 2.1, 4.0), strict=True)] == [True] * 5  # right of all in its row
    words = [text.text[0] for text in texts]
    assert [
        word in text for word, text in zip(("faster", "slower", "no difference shown", "MEASURED", "MODELLED"), words, strict=True)
    ] == [True] * 5
    assert figure.layout.xaxis.type == "log"
    subtitle = figure.layout.title.subtitle.text
    assert "MEASURED on Slow CPU" in subtitle
    assert "MODELLED" in subtitle
    assert "third: 1.06x" in figure.description
    assert "promises more" in figure.description
    assert figure.layout.yaxis.showgrid is False
    (script,) = figure.layout.annotations
    assert (script.x, script.y) == (0, 0)  # 1x, at the line's foot: over the plot it would lie on the first row's words


def test_whiskers_are_the_intervals_over_the_script() -> None:
    """Of every rung, of the combination and of the product; the axis holds them all."""
    figure = figures.waterfall(RESULT)
    marks = [trace for trace in figure.data if trace.mode == "markers"]
    ends = [(m.x[0] - m.error_x.arrayminus[0], m.x[0] + m.error_x.array[0]) for m in marks]
    assert ends == [pytest.approx(pair) for pair in ((1.8, 2.2), (1.62, 1.98), (1.71, 2.09), (1.7, 2.1), (2.5, 4.0))]
    assert marks[-1].marker.symbol.endswith("-open")  # modelled
    assert not marks[-2].marker.symbol.endswith("-open")
    low, high = (10**end for end in figure.layout.xaxis.range)
    assert low < 1 < 4 < high


def test_the_three_gains_of_each_technique_stand_beside_each_other() -> None:
    """Alone, at its place, at the end, each with its own shape; a gain without an interval has no whisker."""
    figure = figures.ladder_gains(RESULT)
    alone, place, end = figure.data
    assert list(alone.x) == [2.0, 1.5, 1.1]
    assert list(place.x) == [2.0, 0.9, 1.06]
    assert list(end.x) == [1.2, 0.9, 1.05]
    assert len({trace.marker.symbol for trace in figure.data}) == 3
    assert alone.error_x.array[2] == 0.0
    assert (figure.layout.annotations[0].x, figure.layout.annotations[0].y) == (0, 0)
    assert "second: alone 1.50x" in figure.description


def test_a_ladder_without_intervals_is_drawn_too() -> None:
    """Few turns: the bars are there, and say that there is no interval."""
    rungs = tuple(dataclasses.replace(r, gain=Gain(r.gain.ratio, None)) for r in RUNGS)
    figure = figures.waterfall(dataclasses.replace(RESULT, rungs=rungs, together=Gain(1.9, None), product=Gain(3.3, None)))
    assert sum("no interval" in trace.text[0] for trace in figure.data if trace.mode == "text") == 5


def test_an_interval_that_reaches_far_does_not_press_the_rest_together() -> None:
    """On a busy machine a product's interval may reach to hundreds: it is cut at three times the largest ratio (3.3); words tell all.

    An arrow says that it goes on, and neither reaches the words, which begin to the right of it.
    """
    figure = figures.waterfall(dataclasses.replace(RESULT, product=Gain(3.3, (0.5, 700.0))))
    assert 10 ** figure.layout.xaxis.range[1] < 40
    words, whisker, arrow = figure.data[-3:]
    assert "700x" in words.text[0]
    assert whisker.x[0] + whisker.error_x.array[0] == pytest.approx(9.9)
    assert (arrow.marker.symbol, list(arrow.x), arrow.y) == ("triangle-right", [pytest.approx(9.9)], whisker.y)
    assert words.x[0] > 9.9
    rungs = (dataclasses.replace(RUNGS[0], removed=Gain(1.2, (0.1, 90.0))), *RUNGS[1:])  # the largest of the gains is 2
    *_, end, arrow = figures.ladder_gains(dataclasses.replace(RESULT, rungs=rungs)).data
    assert end.error_x.array[0] == pytest.approx(4.8)
    assert (list(arrow.x), list(arrow.y)) == ([6.0], [end.y[0]])


def test_an_interval_that_ends_where_the_picture_cuts_has_no_arrow() -> None:
    """Only what goes on beyond it has one."""
    gains = [Gain(1.5, (1.0, 3.0)), Gain(1.5, (1.0, 3.1)), Gain(1.5, None)]
    (arrows,) = _cut(gains, [0.0, 1.0, 2.0], "#000000", 3.0)
    assert (arrows["x"], arrows["y"]) == ([3.0], [1.0])
    assert _cut(gains[:1], [0.0], "#000000", 3.0) == []


def far_ladder() -> LabFigure:
    """A ladder of which one interval is cut."""
    rung = RESULT.rungs[0]
    wild = dataclasses.replace(rung, form=dataclasses.replace(rung.form, over_start=Gain(2.0, (1.8, 50.0))))
    return figures.waterfall(dataclasses.replace(RESULT, rungs=(wild, *RESULT.rungs[1:])))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "ladder": lambda: figures.ladder_gains(RESULT),
    "ladder: cut": far_ladder,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
