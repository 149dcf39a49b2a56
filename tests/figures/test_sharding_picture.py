"""The picture of memory per rank: bars that add up, and the GPU's line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from look import look
from looks import LOOKS

from gpulab import figures
from gpulab.figures._style import LabFigure
from gpulab.parallel import predict_ranks, rank_states


def test_bars_add_up_to_what_is_needed() -> None:
    """A predicted bar is peak, scratch and margin; one of states is their sum, and says that it is only a part."""
    p = predict_ranks("course", strategy="zero3", ranks=2)
    states = rank_states("course", strategy="ddp", ranks=2)
    figure = figures.rank_memory([p, states], 2**30, "a GPU")
    totals = [sum(bar.x[k] for bar in figure.data) for k in range(2)]
    assert totals == [p.needed_bytes(), states.total_bytes]
    assert list(figure.data[0].y) == ["zero3", "ddp (states only)"]
    assert figure.layout.barmode == "stack"
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1, line.y0, line.y1) == (2**30, 2**30, 0, 1)
    assert list(figure.layout.yaxis.tickvals) == ["zero3", "ddp (states only)"]
    (word,) = figure.layout.annotations
    assert (word.x, word.y, word.yref) == (2**30, 1, "paper")
    assert 2**30 < figure.layout.xaxis.range[1] < 1.3 * 2**30
    assert [figures.rank_memory([states], states.total_bytes * k, "x").layout.annotations[0].xanchor for k in (0.1, 2)] == ["left", "right"]
    assert "a GPU has 1.00 GiB" in figure.description
    assert "MODELLED" in figure.layout.title.subtitle.text


def test_one_strategy_twice_has_two_bars() -> None:
    """Bars of one name would be stacked: each of two numbers of ranks has a row of its own, as long as its own states."""
    two, four = (rank_states("course", strategy="zero3", ranks=ranks) for ranks in (2, 4))
    figure = figures.rank_memory([two, four])
    assert all(bar.y == ("zero3 (states only) (1)", "zero3 (states only) (2)") for bar in figure.data)
    assert [sum(bar.x[k] for bar in figure.data) for k in range(2)] == [two.total_bytes, four.total_bytes]


def test_the_gpus_name_changes_its_side_in_the_middle() -> None:
    """Of the largest bar; beyond it the words end at the line."""
    states = rank_states("course", strategy="ddp", ranks=2)
    sides = [figures.rank_memory([states], states.total_bytes * k, "x").layout.annotations[0].xanchor for k in (0.5, 0.52)]
    assert sides == ["left", "right"]


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "rank memory": lambda: figures.rank_memory([rank_states("course", strategy=s, ranks=2) for s in ("ddp", "zero3")], 2**30, "a GPU"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
