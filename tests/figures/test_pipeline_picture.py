"""The pictures of a pipeline and of a profile: lanes, gaps, badges and words, from results made by hand."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from look import look
from looks import LOOKS

from gpulab import figures, training
from gpulab.evidence import Badge, Evidence
from gpulab.figures._style import LabFigure
from gpulab.figures.pipeline import _lane, _rows
from gpulab.training import Profile, ProfileSpan


def plain(text: str | None) -> str:
    """Without mark-up."""
    return re.sub("<.*?>", "", text or "")


def trace(figure: Any, name: str) -> Any:
    """The trace whose name begins so."""
    return next(t for t in figure.data if plain(t.name).startswith(name))


def test_lanes_and_gaps_of_a_pipeline() -> None:
    """60 ms to load, 10 to copy, 30 to compute: bars at their places, the first wait and the gaps drawn behind the compute lane."""
    p = training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=3)
    figure = figures.pipeline(p)
    compute, waits, data = trace(figure, "compute"), trace(figure, "the accelerator waits"), trace(figure, "load and decode")
    assert list(compute.base) == pytest.approx([0.07, 0.17, 0.27])
    assert list(compute.x) == pytest.approx([0.03] * 3)
    assert list(zip(waits.base, waits.x, strict=True)) == [
        (pytest.approx(0), pytest.approx(0.07)), (pytest.approx(0.1), pytest.approx(0.07)), (pytest.approx(0.2), pytest.approx(0.07))
    ]  # fmt: skip
    assert list(data.y) == ["training loads"] * 3
    assert list(compute.y) == ["compute"] * 3
    assert list(figure.layout.yaxis.tickvals) == ["training loads", "copy", "compute"]
    assert [plain(text) for text in compute.text] == ["1", "2", "3"]
    assert compute.customdata[2] == "batch 3: compute 30.0 ms"
    assert compute.marker.color == "rgba(0,0,0,0)"  # modelled is hollow
    assert "MODELLED" in plain(figure.layout.title.subtitle.text)
    assert "waits 70% of the time" in figure.description
    assert "images, 0 workers: " in figure.description
    assert "images, 1 worker: " in figures.pipeline(training.model_pipeline(0.06, 0.03, workers=1, steps=3)).description


def test_each_worker_has_a_row_and_measured_loading_is_solid() -> None:
    """Two workers, two rows; a measured data lane is filled beside a modelled accelerator, and both badges stand in the title."""
    p = training.model_pipeline(0.06, 0.03, workers=2, steps=20)
    p = dataclasses.replace(p, evidence=Evidence.measured("A CPU", 20))
    figure = figures.pipeline(p, steps=4)
    data = trace(figure, "load and decode (measured)")
    assert set(data.y) == {"worker 0", "worker 1"}
    assert list(figure.layout.yaxis.tickvals) == ["worker 0", "worker 1", "copy", "compute"]
    assert list(figure.layout.yaxis.categoryarray) == ["compute", "copy", "worker 1", "worker 0"]  # plotly counts from below
    last = trace(figure, "compute").base[-1] + trace(figure, "compute").x[-1]
    assert all(base < last for base in trace(figure, "the accelerator waits").base)  # no wait for a fifth step
    assert data.marker.color.startswith("#")
    assert len(trace(figure, "compute").x) == 4
    subtitle = plain(figure.layout.title.subtitle.text)
    assert "MEASURED on A CPU" in subtitle
    assert "MODELLED" in subtitle


def test_twelve_workers_have_twelve_rows() -> None:
    """Each loads one of the first twelve batches, all at once: of two in one row the later would hide the other, under its name."""
    figure = figures.pipeline(training.model_pipeline(0.06, 0.01, workers=12, cores=16, steps=24))
    data = trace(figure, "load and decode")
    assert [(row, told.split(":")[0]) for row, told in zip(data.y, data.customdata, strict=True)] == [
        (f"worker {k}", f"batch {k + 1}") for k in range(12)
    ]
    assert list(figure.layout.yaxis.tickvals) == [*(f"worker {k}" for k in range(12)), "copy", "compute"]
    few = figures.pipeline(training.model_pipeline(0.06, 0.01, workers=40, cores=64, steps=80), steps=3)
    assert list(few.layout.yaxis.tickvals) == [*(f"worker {k}" for k in range(10)), "copy", "compute"]


def test_a_profiled_step_has_its_marks_its_operators_and_the_device() -> None:
    """The second of two steps: rows from the marks down to the kernels, times from the step's own begin; empty rows are left out."""
    spans = (
        ProfileSpan("aten::early", "host", 0, 0.1, 0.2), ProfileSpan("forward", "mark", 0, 1.0, 1.6),
        ProfileSpan("loss", "mark", 1, 1.3, 1.6),
        ProfileSpan("aten::mm", "host", 0, 1.1, 1.5), ProfileSpan("aten::inside", "host", 1, 1.2, 1.3),
        ProfileSpan("aten::deeper", "host", 2, 1.25, 1.26), ProfileSpan("gemm_kernel", "device", 0, 1.4, 1.9),
    )  # fmt: skip
    p = Profile("step", "cuda:0", ((0.0, 1.0), (1.0, 2.0)), 0.8, spans, (), (), Evidence.measured("A GPU"))
    figure = figures.profile(p, step=1)
    rows = {t.y[0]: t for t in figure.data}
    assert list(rows) == ["your marks", "marks inside", "operators", "that they call", "device"]
    assert [(list(rows[name].base), list(rows[name].x)) for name in ("your marks", "marks inside")] == [
        ([0.0], [pytest.approx(0.6)]), ([pytest.approx(0.3)], [pytest.approx(0.3)]),
    ]  # fmt: skip
    assert list(figure.layout.yaxis.tickvals) == list(rows)
    assert rows["operators"].customdata == ("mm: 400 ms",)
    assert list(rows["operators"].base) == pytest.approx([0.1])
    assert [plain(text) for text in rows["operators"].text] == ["mm"]
    assert list(rows["device"].x) == pytest.approx([0.5])
    assert "calls, 2 deep" in {t.y[0] for t in figures.profile(p, step=1, depth=2).data}
    assert "no kernel for" in figure.description
    long = dataclasses.replace(p, steps=((0.0, 1.0), (1.0, 4.0)))  # the second is drawn; the means of both kinds are compared
    assert "On average a step took 2.00 s under the profiler and 800 ms without it" in figures.profile(long, step=1).description


def test_bars_have_their_names_where_they_have_room() -> None:
    """By hand: nine per cent of the width for an operator's name, a quarter of that for a batch's number."""
    spans = (ProfileSpan("aten::narrow", "host", 0, 0.0, 0.0899), ProfileSpan("aten::wide", "host", 0, 0.2, 0.2901))
    (lane,) = figures.profile(Profile("step", "cpu", ((0.0, 1.0),), 0.8, spans, (), (), Evidence.measured("A CPU"))).data
    assert [plain(text) for text in lane.text] == ["", "wide"]
    steps: Any = [
        SimpleNamespace(lane="compute", worker=-1, step=k, start_seconds=begin, end_seconds=begin + seconds, seconds=seconds)
        for k, (begin, seconds) in enumerate(((0.0, 0.0224), (0.5, 0.0226)))
    ]
    assert [plain(text) for text in _lane("compute", steps, Badge.MEASURED, 1.0)["text"]] == ["", "2"]


def test_ten_idle_workers_have_rows_and_each_busy_one() -> None:
    """Of twelve that load nothing two are left out; where the twelfth loads, all are there."""

    def rows(workers: int, busy: int) -> int:
        spans = [SimpleNamespace(lane="data", worker=busy, step=0), SimpleNamespace(lane="data", worker=19, step=1)]
        return len(_rows(SimpleNamespace(workers=workers, spans=spans), 1)) - 2  # type: ignore[arg-type]

    assert [rows(12, 0), rows(12, 11), rows(3, 0), rows(0, -1)] == [10, 12, 3, 1]


def profiled() -> LabFigure:
    """A step with marks, operators and kernels."""
    spans = (
        ProfileSpan("forward", "mark", 0, 0.0, 0.6), ProfileSpan("loss", "mark", 1, 0.3, 0.6), ProfileSpan("aten::mm", "host", 0, 0.1, 0.5),
        ProfileSpan("aten::inside", "host", 1, 0.2, 0.25), ProfileSpan("gemm_kernel", "device", 0, 0.4, 0.9),
    )  # fmt: skip
    return figures.profile(Profile("step", "cuda:0", ((0.0, 1.0),), 0.8, spans, (), (), Evidence.measured("A GPU", 9)))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "pipeline": lambda: figures.pipeline(training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=3)),
    "profile": profiled,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
