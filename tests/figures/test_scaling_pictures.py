"""Pictures of scaling and of the global batch: what is drawn, in which style, and what is said to those who do not see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from look import look
from looks import LOOKS

from gpulab import devices, figures, models
from gpulab.evidence import Environment, Evidence
from gpulab.figures._style import LabFigure
from gpulab.figures.scaling import _ranks_axis, _value_axis
from gpulab.parallel import GlobalBatchResult, GlobalBatchRow, ScalingMeasurement, ScalingResult
from gpulab.training import Accuracy, SeedsAccuracy

LIVE = Evidence.measured("a CPU", 40)
FAR = Evidence.recorded(dataclasses.replace(devices.environment("cpu"), device="NVIDIA Far"), samples=9)


def _result(evidence: Evidence = LIVE, predicted: bool = True, speedup: bool = True) -> ScalingResult:
    plain = models.scaling(0.1, 4e6, 1e-4, 1e9, [1, 2, 4])
    hidden = models.scaling(0.1, 4e6, 1e-4, 1e9, [1, 2, 4], overlap=1.0)
    points = tuple(
        ScalingMeasurement(
            p.ranks, 60, np.array([p.seconds]), p.seconds, (0.9 * p.seconds, 1.2 * p.seconds), p.speedup if speedup else None,
            (0.8 * p.speedup, 1.1 * p.speedup) if speedup else None, p.seconds, q.seconds,
        )
        for p, q in zip(plain.points, hidden.points, strict=True)
    )  # fmt: skip
    return ScalingResult(
        "a perceptron", "strong", "computed", 4_000_000, 4, 1, points, 1e-4, 1e9, plain if predicted else None,
        hidden if predicted else None, (), evidence, devices.environment("cpu"),
    )  # fmt: skip


def _trace(figure: figures.LabFigure, words: str) -> dict[str, object]:
    return next(t for t in figure.to_plotly_json()["data"] if words in t["name"])


def test_points_bars_and_prediction() -> None:
    """Measured points are solid with their own bars; the prediction is a dashed band; full gain is the diagonal."""
    figure = figures.scaling(_result())
    points = _trace(figure, "strong scaling (measured)")
    speedup = 0.1 / (0.025 + 6 * (1e-4 + 1e6 / 1e9))
    assert points["x"] == [1, 2, 4]
    assert points["y"][2] == pytest.approx(speedup)
    assert points["error_y"]["array"][2] == pytest.approx(0.1 * speedup)
    assert points["error_y"]["arrayminus"][2] == pytest.approx(0.2 * speedup)
    assert points["marker"]["symbol"] == "circle"
    assert _trace(figure, "nothing overlaps")["line"]["dash"] == "dash"
    assert _trace(figure, "all overlaps that can (modelled)")["fill"] == "tonexty"
    assert _trace(figure, "gains in full")["y"] == [1.0, 4.0]
    assert "4 ranks, measured: step 31.6 ms, 3.16x [2.53x, 3.48x]" in figure.description
    assert "MEASURED on a CPU" in str(figure.layout.title.subtitle.text)


def test_recorded_points_are_hollow() -> None:
    """A recorded machine is never drawn as a measured one."""
    where = Environment("2026-01-02T00:00:00+00:00", "Linux", "a CPU", 8, 2**30, "some GPU", "cuda", None, "3.11", {})
    recorded = dataclasses.replace(_result(Evidence.recorded(where, 9), predicted=False), environment=where)
    figure = figures.scaling([_result(predicted=False), recorded])
    points = _trace(figure, "(recorded)")
    assert points["marker"]["symbol"] == "square-open"
    assert points["line"]["dash"] == "dot"
    assert points["line"]["color"] != _trace(figure, "(measured)")["line"]["color"]
    assert "RECORDED on some GPU, 2026-01-02" in str(figure.layout.title.subtitle.text)


def test_curves_and_where_more_no_longer_helps() -> None:
    """Each law is dashed in a colour of its own; the best number of ranks is a mark of its own; a point without a speed-up is left out."""
    ranks = [1, 8, 68, 512]
    curves = [models.amdahl(0.1, ranks), models.gustafson(0.1, ranks), models.scaling(0.1, 400e6, 10e-6, 100e9, ranks)]
    figure = figures.scaling((), curves)
    lines = [_trace(figure, name) for name in ("Amdahl", "Gustafson", "ring all-reduce")]
    assert {line["line"]["dash"] for line in lines} == {"dash"}
    assert len({line["line"]["color"] for line in lines}) == 3
    assert _trace(figure, "68 ranks")["x"] == [68]
    assert lines[0]["y"][1] == pytest.approx(1 / (0.1 + 0.9 / 8))
    assert _trace(figures.scaling(_result(speedup=False)), "(measured)")["x"] == []
    assert figure.layout.xaxis.tickvals == (1, 4, 16, 64, 256, 1024)  # every second power of two, as eight at most have room
    assert figures.scaling(_result()).layout.xaxis.tickvals == (1, 2, 4, 8)
    told = [line["customdata"][2].partition(", 68 ranks: ")[2] for line in lines[::2]]
    # Amdahl: 1 / (0.1 + 0.9 / 68). The ring: 134 messages of 10 us and 1 / 68 of 4 ms are 9.22 ms beside 1 / 68 of 100 ms.
    assert told == ["8.83x, 13 %, step 113 ms", "9.35x, 13.8 %, step 10.7 ms, 9.22 ms of it waited for others"]
    assert ", 1 rank: 1.00x, 100 %, step 100 ms" in lines[2]["customdata"][0]
    words = figure.description
    assert "best on 68 ranks" in words
    assert words.count("best on") == 1


def test_one_rank_is_one() -> None:
    """A step of 1 ms with 400 MB of gradients over 1 GB/s: no second rank helps, and the curve's first point is one rank."""
    figure = figures.scaling((), [models.scaling(1e-3, 400e6, 10e-6, 1e9, [1, 2])])
    assert _trace(figure, "no longer helps: 1 rank<")["x"] == [1]
    assert str(_trace(figure, "ring all-reduce")["customdata"][0]).partition(": ")[0].endswith(", 1 rank")  # type: ignore[index]
    assert figure.description.endswith("on 2 ranks, best on 1 rank.")


@pytest.mark.parametrize(("quantity", "last"), [("efficiency", 100 * 0.1 / 0.0316 / 4), ("seconds", 0.0316)])
def test_other_quantities(quantity: str, last: float) -> None:
    """Efficiency in percent of the ranks, or the seconds of a step with their own interval."""
    points = _trace(figures.scaling(_result(), quantity=quantity), "(measured)")  # type: ignore[arg-type]
    assert points["y"][-1] == pytest.approx(last, rel=0.001)
    up, down = (0.1, 0.2) if quantity == "efficiency" else (0.2, 0.1)  # of the speed-up, or of the seconds, as the points were made
    assert points["error_y"]["array"][-1] == pytest.approx(up * last, rel=0.002)
    assert points["error_y"]["arrayminus"][-1] == pytest.approx(down * last, rel=0.002)
    assert points["customdata"][0].startswith("1 rank, measured: step 100 ms")


def test_what_no_interval_or_no_overlap_leaves() -> None:
    """Bars of no length, one line where both predictions are the same, and the full gain in the quantity's own unit."""
    plain = _result()
    bare = tuple(dataclasses.replace(p, interval_seconds=None, speedup_interval=None) for p in plain.points)
    for quantity in ("speedup", "efficiency", "seconds"):
        points = _trace(figures.scaling(dataclasses.replace(plain, points=bare), quantity=quantity), "(measured)")  # type: ignore[arg-type]
        assert set(points["error_y"]["array"]) == set(points["error_y"]["arrayminus"]) == {0}
    same = figures.scaling(dataclasses.replace(plain, overlapped=plain.prediction))
    assert [trace.name.count("predicted") for trace in same.data].count(1) == 1
    efficiency = figures.scaling(plain, quantity="efficiency")
    assert _trace(efficiency, "gains in full")["y"] == [100.0, 100.0]
    low, high = efficiency.layout.yaxis.range
    assert low == 0
    assert 105 <= high < 120
    seconds = figures.scaling(plain, [models.gustafson(0.1, [1, 4], seconds=3.0)], "seconds")
    assert not any("gains in full" in trace.name for trace in seconds.data)
    assert _trace(seconds, "Gustafson")["y"] == [3.0, 3.0]


@pytest.mark.parametrize(("letters", "shown"), [(45, "x" * 45), (46, "x" * 42 + "...")])
def test_a_long_name_is_cut_in_the_legend(letters: int, shown: str) -> None:
    """45 letters have room."""
    long = dataclasses.replace(_result(predicted=False), label="x" * letters)
    assert f">{shown}, strong (measured)<" in str(_trace(figures.scaling([long, _result()]), f"{shown}, strong")["name"])


def test_global_batch_lines() -> None:
    """One line a rule with its own symbol, bars over seeds and items, and the updates under each batch."""
    right = Accuracy(450, 500, 0.9, (0.85, 0.95), 0.3, "digits", LIVE)
    accuracy = SeedsAccuracy((right, right), 0.9, (0.88, 0.92), (0.8, 0.96), "digits", LIVE)
    rows = tuple(
        GlobalBatchRow(rule, p, 16 * p, 0.03 * p, 400 // p, accuracy, int(p == 8))
        for rule in ("unchanged", "linear", "linear with warm-up")
        for p in (1, 8)
    )
    found = GlobalBatchResult("digits-mlp", 16, 5, "SGD with momentum 0.9", 0.03, 1.0, rows, (), LIVE)
    figure = figures.global_batch(found)
    traces = figure.to_plotly_json()["data"]
    assert len({t["marker"]["symbol"] for t in traces}) == 3
    assert traces[0]["y"] == [90.0, 90.0]
    assert traces[0]["error_y"]["array"] == pytest.approx([6.0, 6.0])
    assert traces[1]["x"] == [16, 128]  # the middle rule stands where its batch is, the others beside it
    assert traces[0]["x"][0] < 16 < traces[2]["x"][0]
    assert ">1 rank<" in str(figure.layout.xaxis.ticktext[0])
    assert "8 ranks" in str(figure.layout.xaxis.ticktext[1])
    assert "50 updates" in str(figure.layout.xaxis.ticktext[1])
    assert "linear, batch 128, rate 0.24, 50 updates: 90.0 % right [80.0, 96.0], 1 diverged." in figure.description


def batches() -> LabFigure:
    """Three rules on one and two ranks."""
    right = Accuracy(450, 500, 0.9, (0.85, 0.95), 0.3, "digits", LIVE)
    accuracy = SeedsAccuracy((right, right), 0.9, (0.88, 0.92), (0.8, 0.96), "digits", LIVE)
    rules = ("unchanged", "linear", "linear with warm-up")
    rows = tuple(GlobalBatchRow(rule, p, 16 * p, 0.03 * p, 400 // p, accuracy, 0) for rule in rules for p in (1, 2))
    return figures.global_batch(SimpleNamespace(rows=rows, rules=rules, task="digits", epochs=2, batch=16, evidence=LIVE,
                                                select=lambda rule: [row for row in rows if row.rule == rule]))  # type: ignore[arg-type]  # fmt: skip


def scaled() -> LabFigure:
    """Two results with their predictions, and a law."""
    laws = [models.amdahl(0.1, [1, 8, 64]), models.scaling(0.1, 400e6, 10e-6, 100e9, [1, 8, 68, 512])]
    return figures.scaling([_result(), _result(FAR, predicted=False)], laws)


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(1, [1, 2, 4]), (8, [1, 2, 4, 8, 16]), (128, [2**k for k in range(9)]), (256, [1, 4, 16, 64, 256]),
     (2**17, [1, 8, 64, 512, 4096, 32768, 2**18])],
)  # fmt: skip
def test_the_ticks_of_ranks_are_powers_of_two(most: int, ticks: list[int]) -> None:
    """By hand: each to the first beyond the last count; from nine of them on every second, from eighteen on every third."""
    axis = _ranks_axis([1, most])
    assert axis["tickvals"] == ticks
    assert [text.split(">")[1].split("<")[0] for text in axis["ticktext"]] == [f"{tick:,}" for tick in ticks]


def test_the_axis_of_efficiency_ends_a_little_over_105_per_cent() -> None:
    """Or over the highest value, where one is higher."""
    for values, high in (([50.0], 107.1), ([200.0], 204.0)):
        assert _value_axis(values, "efficiency")["range"] == [0, pytest.approx(high)]


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "global batch": batches,
    "scaling": scaled,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
