"""The pictures of a class: ridges and ratios derived by hand, names as text, and a picture even of nobody."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from look import look
from looks import LOOKS
from made_class import NAMES, report_of, write

from gpulab import figures, lessons
from gpulab.evidence import Badge, Evidence
from gpulab.figures import classroom
from gpulab.figures._style import LabFigure
from gpulab.lessons._report_schema import ReportedPrediction


def plain(text: str) -> str:
    """A text without mark-up."""
    return re.sub("<.*?>", "", text)


def a_class(folder: pathlib.Path, *reports: Any) -> lessons.Classroom:
    """The class of these reports."""
    for number, report in enumerate(reports):
        write(folder, f"{number}.json", report)
    return lessons.classroom(folder)


def with_roofs(number: int, flops: float, rate: float) -> Any:
    """A report whose best device has these roofs."""
    report = report_of(number)
    roofs = dataclasses.replace(report.roofs[0], flops_per_second={"float32": flops}, bytes_per_second={"L2": 9 * rate, "DRAM": rate})
    return dataclasses.replace(report, roofs=(roofs,))


def test_each_machine_has_its_roofs_and_its_ridge(tmp_path: pathlib.Path) -> None:
    """A CPU of 1e11 FLOP/s over 2e10 B/s has its ridge at 5, a GPU of 4e13 over 4e12 at 10; recorded is dotted and hollow."""
    room = a_class(tmp_path, with_roofs(0, 1e11, 2e10), with_roofs(4, 4e13, 4e12))
    figure = figures.class_roofline(room)
    lines, marks = ([t for t in figure.data if t.mode == mode] for mode in ("lines", "markers"))
    assert [(t.x[0], t.y[0]) for t in marks] == [(5.0, 1e11), (10.0, 4e13)]
    assert [t.line.dash for t in lines] == ["dot", "dot"]
    assert all(t.marker.symbol.endswith("-open") for t in marks)
    cpu = lines[0]
    assert cpu.y[0] == pytest.approx(cpu.x[0] * 2e10)
    assert (cpu.x[1], cpu.y[1], cpu.y[2]) == (5.0, 1e11, 1e11)
    assert "RECORDED on 2 machines, as the students' machines report it" in plain(figure.layout.title.subtitle.text)
    assert "from 5 to 10 FLOP a byte" in figure.description


def test_a_machine_that_was_disturbed_says_so(tmp_path: pathlib.Path) -> None:
    """Of thirty who report at once from one server each disturbs the others: the mark and the description have it, as no other code."""
    report = with_roofs(0, 1e11, 2e10)
    notes = ("contended", "skipped", "throttled", "contended", "<b>no code</b>")
    report = dataclasses.replace(report, roofs=(dataclasses.replace(report.roofs[0], notes=notes),))
    room = a_class(tmp_path, report, with_roofs(4, 4e13, 4e12))
    assert [note.code for note in room.rooflines()[0].notes] == ["contended", "skipped", "throttled"]
    figure = figures.class_roofline(room)
    cpu, gpu = (next(iter(t.customdata)) for t in figure.data if t.mode == "markers")
    assert cpu.endswith("ridge 5 FLOP a byte (measured while contended and throttled)")
    assert gpu.endswith("ridge 10 FLOP a byte")
    assert "ridge 5 (measured while contended and throttled); " in figure.description


def test_processors_and_accelerators_are_counted_apart(tmp_path: pathlib.Path) -> None:
    """Three CPUs, one of them with graphics in its name, an Apple GPU and two of NVIDIA's, by the kind that each report tells."""
    reports = [report_of(k) for k in range(6)]
    name = "AMD Ryzen 7 5700U with Radeon Graphics (16 cores)"
    machine, roofs = dataclasses.replace(reports[1].machine, device=name), dataclasses.replace(reports[1].roofs[0], device=name)
    reports[1] = dataclasses.replace(reports[1], machine=machine, roofs=(roofs,))
    names = {plain(t.name) for t in figures.class_roofline(a_class(tmp_path, *reports)).data if t.mode == "lines"}
    assert names == {"roofs of 3 CPUs (recorded)", "roofs of 3 GPUs (recorded)"}


def test_predictions_stand_at_their_ratio(tmp_path: pathlib.Path) -> None:
    """Predicted 3 of 30 stands at 0.1, outside the band; 40 of 30 inside; the count beside the row says 1 of 2."""

    def said(number: int, predicted: float) -> Any:
        prediction = ReportedPrediction("00.3", "How much slower?", predicted, "p", 30.0, "m", "right", "MEASURED", 0)
        return dataclasses.replace(report_of(number), predictions=(prediction,))

    figure = figures.class_predictions(a_class(tmp_path, said(0, 3.0), said(1, 40.0)))
    (marks,) = figure.data
    assert sorted(marks.x) == pytest.approx([0.1, 40 / 30])
    band = figure.layout.shapes[0]
    assert (band.x0, band.x1) == (1 / 3, 3.0)  # docs/misconceptions.md: "Close: within a factor of 3"
    assert "1 of 2" in [plain(a.text) for a in figure.layout.annotations]
    assert "00.3: 1 of 2 close or right" in figure.description


def test_each_question_has_the_band_of_what_counts_as_close_there(tmp_path: pathlib.Path) -> None:
    """1.5 times what was measured is close where a factor of 3 is (10.1), and not where 1.3 is (07.1); a choice has no factor."""
    asked: tuple[tuple[str, Any, Any], ...] = (("07.1", 1.5, 1.0), ("09.8", "as accurate", "as accurate"), ("10.1", 1.5, 1.0))
    rows = tuple(ReportedPrediction(id, "How?", x, "p", m, "m", "", "MEASURED", 0) for id, x, m in asked)
    figure = figures.class_predictions(a_class(tmp_path, dataclasses.replace(report_of(0), predictions=rows)))
    *bands, _ = figure.layout.shapes
    found = [end for b in bands for end in (b.x0, b.x1, (b.y0 + b.y1) / 2)]
    assert found == pytest.approx([1 / 1.3, 1.3, 3, 1 / 3, 3, 1])
    assert [plain(a.text) for a in figure.layout.annotations[:3]] == ["0 of 1", "1 of 1", "1 of 1"]


def test_names_are_text_in_pictures(tmp_path: pathlib.Path) -> None:
    """No name becomes mark-up in what the page draws; the description is plain text."""
    room = a_class(tmp_path, *(report_of(k, name) for k, name in enumerate(NAMES)))
    for figure in (figures.class_roofline(room), figures.class_predictions(room)):
        data = figure._repr_mimebundle_()["application/vnd.plotly.v1+json"]
        drawn = json.dumps([data["data"], {key: data["layout"][key] for key in data["layout"] if key != "meta"}])
        assert "<script" not in drawn
        assert "<img" not in drawn


def test_one_student_is_no_class(tmp_path: pathlib.Path) -> None:
    """The badge under the title counts the machines in words."""
    one = figures.class_predictions(a_class(tmp_path, report_of(0)))
    two = figures.class_predictions(a_class(tmp_path, report_of(0), report_of(1)))
    said = [plain(figure.layout.title.subtitle.text).rpartition(", ")[0] for figure in (one, two)]
    assert said == [
        "RECORDED on 1 student's machine, as it reports it", "RECORDED on 2 students' machines, as they report it",
    ]  # fmt: skip


def test_a_name_with_quotes_reads_as_it_was_typed(tmp_path: pathlib.Path) -> None:
    """Of entities plotly's script knows only mu, amp, lt, gt, nbsp, times, plusmn, deg and numbers; another stands there as it is."""
    room = a_class(tmp_path, report_of(0, 'Ann "Nan" O\'Neil & <Co>'))
    (marks,) = (t for t in figures.class_roofline(room).data if t.mode == "markers")
    assert marks.customdata[0].startswith('Ann "Nan" O\'Neil &amp; &lt;Co&gt;: Intel Core i5-8250U')


@pytest.mark.parametrize("draw", [figures.class_roofline, figures.class_predictions])
def test_an_empty_class_has_a_picture(draw: Any, tmp_path: pathlib.Path) -> None:
    """With no report there is a frame without axes, whose words say why."""
    figure = draw(lessons.classroom(tmp_path))
    assert "No report" in figure.description
    assert [plain(note.text) for note in figure.layout.annotations] == [figure.description]
    assert not figure.layout.xaxis.visible
    assert not figure.layout.yaxis.visible


def test_a_prediction_that_was_not_measured_is_not_called_wrong(tmp_path: pathlib.Path) -> None:
    """Of two predictions one was measured and close: 1 of 1, and one waits; without roofs the picture still says RECORDED."""

    def said(number: int, measured: float | None) -> Any:
        text = "" if measured is None else "m"
        prediction = ReportedPrediction("00.3", "How much slower?", 29.0, "p", measured, text, "", "MEASURED", 0)
        return dataclasses.replace(report_of(number), predictions=(prediction,), roofs=())

    room = a_class(tmp_path, said(0, 30.0), said(1, None))
    (row,) = room.questions().rows
    assert (row.given, row.judged, row.right) == (2, 1, 1)
    assert row.text.endswith("; 1 not measured yet")
    assert [cells[4] for cells in room.table()[1]] == ["1, 1 of 1 close or right", "1, 0 of 0 close or right"]
    figure = figures.class_predictions(room)
    assert "1 of 1" in [plain(note.text) for note in figure.layout.annotations]
    assert "RECORDED on 2 students' machines" in plain(figure.layout.title.subtitle.text)


def test_all_machines_of_a_kind_are_one_broken_line(tmp_path: pathlib.Path) -> None:
    """CPUs with ridges at 5 and 20, a GPU at 10: each roof rises at its rate to its ridge, and stays at its top over the whole axis."""
    room = a_class(tmp_path, with_roofs(0, 1e11, 2e10), with_roofs(1, 4e11, 2e10), with_roofs(4, 4e13, 4e12))
    figure = figures.class_roofline(room)
    cpus, cpu_ridges, gpus, gpu_ridges = figure.data
    low, high = cpus.x[0], cpus.x[2]
    assert low < 5
    assert high > 20
    assert cpus.x == (low, 5, high, None, low, 20, high, None)
    assert cpus.y == pytest.approx((low * 2e10, 1e11, 1e11, None, low * 2e10, 4e11, 4e11, None))
    assert gpus.x == (low, 10, high, None)
    assert gpus.y == pytest.approx((low * 4e12, 4e13, 4e13, None))
    assert (cpu_ridges.x, gpu_ridges.x) == ((5, 20), (10,))
    assert [plain(t.name) for t in figure.data] == [
        "roofs of 2 CPUs (recorded)", "their ridges (CPU)", "roofs of 1 GPU (recorded)", "their ridges (GPU)",
    ]  # fmt: skip
    assert "median 10" in figure.description
    assert gpu_ridges.customdata[0].endswith("40.0 TFLOP/s, 4.00 TB/s, ridge 10 FLOP a byte")


def test_equal_predictions_lie_beside_each_other_in_their_questions_row(tmp_path: pathlib.Path) -> None:
    """Five say 30 of 30: five marks at 1, none on another, each nearest to its own row; a millionfold stands at the edge."""

    def said(number: int, second: float) -> Any:
        questions = (("00.3", "How much slower?", 30.0), ("00.4", "How much faster?", second))
        rows = tuple(ReportedPrediction(id, text, x, "p", 30.0, "m", "right", "MEASURED", 0) for id, text, x in questions)
        return dataclasses.replace(report_of(number), predictions=rows)

    figure = figures.class_predictions(a_class(tmp_path, *(said(k, 3e7 if k == 4 else 3.0) for k in range(5))))
    (marks,) = figure.data
    places = list(figure.layout.yaxis.tickvals)
    assert [plain(text).partition("  ")[0] for text in figure.layout.yaxis.ticktext] == ["00.3", "00.4"]
    assert places == [2, 1]
    assert marks.x[:5] == (1.0,) * 5
    assert len(set(marks.y[:5])) == 5
    assert all(abs(y - 2) < 0.5 for y in marks.y[:5])
    assert all(abs(y - 1) < 0.5 for y in marks.y[5:])
    assert list(marks.x[5:]) == pytest.approx([0.1] * 4 + [1e4])
    assert marks.customdata[9] == "1e+06 times what was measured"
    assert [(plain(a.text), a.y) for a in figure.layout.annotations[:2]] == [("5 of 5", 2), ("0 of 5", 1)]
    assert (figure.layout.shapes[-1].x0, figure.layout.shapes[-1].x1) == (1, 1)
    low, high = figure.layout.yaxis.range
    assert low < 1
    assert high > 2


def test_a_ratio_far_below_stands_at_the_edge_and_a_long_question_is_cut(tmp_path: pathlib.Path) -> None:
    """A millionth of what was measured is drawn at a ten-thousandth, and says what it is; of a question 52 letters stand at the axis."""
    rows = tuple(ReportedPrediction(f"00.{k}", "q" * n, 3e-5, "p", 30.0, "m", "", "MEASURED", 0) for k, n in ((3, 52), (4, 53)))
    figure = figures.class_predictions(a_class(tmp_path, dataclasses.replace(report_of(0), predictions=rows)))
    (marks,) = figure.data
    assert (list(marks.x), set(marks.customdata)) == ([1e-4] * 2, {"1e-06 times what was measured"})
    assert [plain(text).partition("  ")[2] for text in figure.layout.yaxis.ticktext] == ["q" * 52, "q" * 51 + "…"]


def test_many_machines_are_told_in_few_words() -> None:
    """Twelve are named, of more only the number; 60 letters of a name; the date is that of the last report."""
    roofs = [report_of(0).rooflines()[0]] * 13
    dates = ["2026-01-01", "2026-03-01", *["2026-02-01"] * 11]
    drawn: Any = [
        (
            SimpleNamespace(name=f"<{k}>"),
            dataclasses.replace(roof, device="d" * (60 + k), evidence=Evidence(Badge.RECORDED, "x", date=date)),
        )
        for k, (roof, date) in enumerate(zip(roofs, dates, strict=True))
    ]
    words = classroom._describe(drawn, [5.0, 7.0, *[6.0] * 11])
    assert words.startswith(f"Ridges from 5 to 7 FLOP a byte, median 6. <0>: {'d' * 60}, ridge 5; <1>: {'d' * 59}…, ridge 7; ")
    assert words.endswith("ridge 6; and 1 more.")
    assert "more" not in classroom._describe(drawn[:12], [5.0] * 12)
    evidence = classroom._evidence(drawn)
    assert (evidence.date, evidence.device) == ("2026-03-01", "13 machines, as the students' machines report it")
    assert classroom._evidence(drawn[:1]).device == "1 machine, as the students' machines report it"
    assert classroom._words(*drawn[0], 5.0).startswith(f"&lt;0&gt;: {'d' * 60}, ")


def test_a_machine_without_both_roofs_is_not_drawn(tmp_path: pathlib.Path) -> None:
    """Without memory, or without float32, there is no ridge: nothing to draw is said as such."""
    whole = report_of(0)
    for changes in ({"bytes_per_second": {}}, {"flops_per_second": {"float64": 1e11}}):
        report = dataclasses.replace(whole, roofs=(dataclasses.replace(whole.roofs[0], **changes),))
        assert "No report has the roofs" in figures.class_roofline(a_class(tmp_path, report)).description


def class_of(folder: pathlib.Path, kind: Callable[[Any], LabFigure]) -> LabFigure:
    """Two students."""
    for number in (0, 4):
        report = report_of(number)
        roof = dataclasses.replace(
            report.roofs[0], flops_per_second={"float32": 1e11}, bytes_per_second={"L2": 1e11, "DRAM": 1e10 * (1 + number)}
        )
        asked = (("00.3", 3.0, 30.0), ("07.1", 1.5, 1.0))
        rows = tuple(ReportedPrediction(id, "How much?", x, "p", m, "m", "", "MEASURED", 0) for id, x, m in asked)
        write(folder, f"{number}.json", dataclasses.replace(report, roofs=(roof,), predictions=rows))
    return kind(lessons.classroom(folder))


@pytest.mark.parametrize("kind", [figures.class_predictions, figures.class_roofline], ids=lambda kind: kind.__name__)
def test_a_picture_of_a_class_looks_as_its_table_says(kind: Any, tmp_path: pathlib.Path) -> None:
    """Part by part, of two students."""
    assert look(class_of(tmp_path, kind)) == LOOKS[kind.__name__]
