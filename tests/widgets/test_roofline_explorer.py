"""RooflineExplorer with fake clocks: measured, recorded and predicted points with their badges, what is left out, and the code shown."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from control_tables import offers_what_it_takes

from gpulab import devices, models, recordings, timing, workloads
from gpulab.devices import _ceilings
from gpulab.errors import InputError, MeasurementError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline
from gpulab.timing import Measurement
from gpulab.widgets import RooflineExplorer

LIVE = Evidence.measured("Slow CPU", 30)
# 100 GFLOP/s over 10 GB/s: the ridge is at 10 FLOP a byte.
ROOFS = Roofline(
    "Slow CPU",
    (ArithmeticRoof("float32", 1e11, "just now", LIVE), ArithmeticRoof("float64", 5e10, "just now", LIVE)),
    (MemoryRoof("DRAM", 1e10, 1e10, "just now", LIVE),),
    (),
    (Note("contended", "A neighbour worked."),),
    LIVE,
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was measured; every call takes a tenth of a second."""
    seen: list[dict[str, Any]] = []
    real = models.roofline

    def measure(function: Callable[..., Any], *inputs: Any, stop: Callable[[], bool], **arguments: Any) -> Measurement:
        seen.append(arguments)
        where = dataclasses.replace(devices.environment("cpu"), device="Slow CPU")
        interval, evidence = (0.08, 0.125), dataclasses.replace(LIVE, samples=len(seen))
        notes = (Note("unstable", "It wandered."),)
        return Measurement("x", "cpu", np.full(5, 0.1), 0.1, interval, 0.2, 0.05, None, 1, None, None, notes, evidence, where)

    def roofline(device: Any, *arguments: Any, stop: Any = None) -> Roofline:
        return ROOFS if device == "cpu" else real(device, *arguments)

    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(models, "roofline", roofline)
    return seen


def rows(r: RooflineExplorer) -> dict[tuple[str, str], list[Any]]:
    """The table's rows by workload and badge."""
    return {(row[0], row[2]["badge"]): row for row in r._results.rows}


def test_before_a_run_the_data_sheet_predicts(calls: list[Any]) -> None:
    """The H200's 4.8 TB/s allow an add of 12 bytes a FLOP 4.8e12 / 12 = 400 GFLOP/s; nothing is called measured."""
    r = RooflineExplorer(workloads=["add", "matmul"])
    assert r._results.message.startswith("Press Run")
    assert rows(r)[("add n=524288", "MODELLED")][3:] == ["0.0833", "memory (DRAM)", "400 GFLOP/s", "not measured", ""]
    assert [e["badge"] for e in r._results.evidence][:1] == ["MODELLED"]
    assert "MEASURED" not in str(r._results.evidence)
    r.set(beside="none")
    assert r._picture.outputs == ()
    assert r._results.rows == []


def test_a_run_places_each_workload_under_the_live_roofs(calls: list[Any]) -> None:
    """By hand: an add of 2**19 floats in 0.1 s is 5.24 MFLOP/s under 10 GB/s / 12 = 833 MFLOP/s: 0.629 %; the notes say whose they are."""
    r = RooflineExplorer(workloads=["add", "matmul"], deadline=0.2, beside="none")
    r.run(wait=True)
    assert r.error == ""
    assert [(c["device"], c["deadline"], c["label"]) for c in calls] == [
        ("cpu", 0.2, "matmul n=512 float32"), ("cpu", 0.2, "add n=524288 float32"),
    ]  # fmt: skip
    assert calls[0]["flops"] == 2 * 512**3
    assert calls[0]["nbytes"] == 3 * 512 * 512 * 4
    add = rows(r)[("add n=524288", "MEASURED")]
    assert add[1:] == ["Slow CPU", {"badge": "MEASURED"}, "0.0833", "memory (DRAM)", "833 MFLOP/s", "5.24 MFLOP/s", "0.629 %"]
    assert rows(r)[("matmul n=512", "MEASURED")][4] == "arithmetic (float32)"
    assert r.result.points[0].interval_seconds == (0.08, 0.125)
    assert {"code": "unstable", "sentence": "add n=524288 float32: It wandered."} in r._results.notes
    assert r._results.notes[0] == {"code": "contended", "sentence": "A neighbour worked."}
    assert len(r._results.evidence) == 1  # the points differ only in their samples
    r.set(dtype="float64")
    assert "controls have moved" in r._results.message
    assert "float32 100 GFLOP/s" in str(r._picture.outputs)  # the roof of what was measured, not of the moved control


def test_disturbed_roofs_name_the_button_that_measures_them_again(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The instrument has no argument ``refresh``; the result, which a cell may look at, keeps the sentence of the core."""
    words = f"Two programs wanted the cores. {_ceilings._ADVICE}"
    monkeypatch.setattr(models, "roofline", lambda device, stop: dataclasses.replace(ROOFS, notes=(Note("contended", words),)))
    r = RooflineExplorer(workloads=["add"], beside="none")
    r.run(wait=True)
    told = "Two programs wanted the cores. So these figures may be far too low; press Run again when it is quiet."
    assert r._results.notes[0] == {"code": "contended", "sentence": told}
    assert r.result.notes[0].sentence == words


def test_what_cannot_run_is_left_out_and_said(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A solve in bfloat16 does not exist, a matmul that does not fit is refused; the third workload is still measured."""
    real = workloads.Workload.inputs

    def inputs(self: Any, *arguments: Any) -> Any:
        if self.name == "matmul":
            raise InputError("matmul: too large; expected less. Take a smaller one.")
        return real(self, *arguments)

    monkeypatch.setattr(workloads.Workload, "inputs", inputs)
    r = RooflineExplorer(workloads=["solve", "matmul", "add"], dtype="bfloat16", beside="none")
    bf16 = dataclasses.replace(ROOFS, arithmetic=(*ROOFS.arithmetic, ArithmeticRoof("bfloat16", 1e11, "just now", LIVE)))
    monkeypatch.setattr(models, "roofline", lambda device, stop: bf16)
    r.run(wait=True)
    assert r.error == ""
    assert [p.label for p in r.result.points] == ["add n=524288 bfloat16"]
    skipped = [note["sentence"] for note in r._results.notes if note["code"] == "skipped"]
    assert any("solve" in sentence and "expected one of: float32, float64" in sentence for sentence in skipped)
    assert "matmul: too large; expected less. Take a smaller one." in skipped


def test_an_operator_that_the_device_lacks_is_left_out_and_said(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch refuses what Metal has no kernel for: only the call tells, and the workloads before and after it are measured."""
    measured = timing.measure

    def measure(function: Callable[..., Any], *inputs: Any, label: str, **arguments: Any) -> Measurement:
        if label.startswith("solve"):
            raise MeasurementError("solve raised NotImplementedError (not implemented for the MPS device) in call 1; expected it to run.")
        return measured(function, *inputs, label=label, **arguments)

    monkeypatch.setattr(timing, "measure", measure)
    r = RooflineExplorer(workloads=["matmul", "solve", "fft"], size=0.0, beside="none")
    r.run(wait=True)
    assert r.error == ""
    assert [p.label.split(" ")[0] for p in r.result.points] == ["matmul", "fft"]
    skipped = [note["sentence"] for note in r._results.notes if note["code"] == "skipped"]
    assert skipped == ["solve: solve raised NotImplementedError (not implemented for the MPS device) in call 1; expected it to run."]


def test_what_another_machine_cannot_have_recorded_is_said_beside_it() -> None:
    """No machine solves in bfloat16: the note is the refusal's own sentence, under the workload's name once."""
    beside = RooflineExplorer(workloads=["solve"], dtype="bfloat16", beside="nvidia-h200")
    said = "solve: dtype 'bfloat16' is not one that it runs in; expected one of: float32, float64. Did you mean 'float64'?"
    assert beside._find_beside(beside.values)[1] == (Note("skipped", said),)


def test_progress_is_of_all_that_is_measured(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The roofs and two workloads are three parts, in the catalogue's order; half of the second workload is five sixths."""
    fake, told = timing.measure, []

    def measure(*arguments: Any, progress: Callable[[float, str], None], **named: Any) -> Measurement:
        progress(0.5, "sampling")
        return fake(*arguments, **named)

    monkeypatch.setattr(timing, "measure", measure)
    r = RooflineExplorer(workloads=["add", "matmul"], beside="none")
    r.work("run", r.values, lambda *said: told.append(said), lambda: False)
    assert [text for _, text in told] == ["measuring the roofs", "matmul", "matmul", "add", "add"]
    assert [share for share, _ in told] == pytest.approx([0, 1 / 3, 1 / 2, 2 / 3, 5 / 6])


def test_stop_keeps_what_was_measured(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped during the first workload, the second is not begun; the first is kept, and a note says so."""
    fake = timing.measure
    r = RooflineExplorer(workloads=["matmul", "add"], beside="none")

    def measure(*arguments: Any, **named: Any) -> Measurement:
        r.stop()
        return fake(*arguments, **named)

    monkeypatch.setattr(timing, "measure", measure)
    r.run(wait=True)
    assert [p.label for p in r.result.points] == ["matmul n=512 float32"]
    assert r._panel.progress == "Run: stopped"
    assert {"code": "stopped", "sentence": "Stopped before add."} in r._results.notes


def test_what_is_drawn_on_the_way_belongs_to_the_controls_of_its_run(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With another format than the last run's, the first point stands under the new format's roof, and no control has moved since."""
    quiet = dataclasses.replace(ROOFS, notes=())
    monkeypatch.setattr(models, "roofline", lambda device, stop: quiet)
    r = RooflineExplorer(workloads=["matmul", "add"], beside="none")
    r.run(wait=True)
    r.set(dtype="float64")
    fake, seen = timing.measure, []

    def measure(*arguments: Any, **named: Any) -> Measurement:
        seen.append((r._results.message, str(r._picture.outputs)))
        return fake(*arguments, **named)

    monkeypatch.setattr(timing, "measure", measure)
    r.run(wait=True)
    (first, old), (second, new) = seen
    assert "controls have moved" in first
    assert "float32 100 GFLOP/s" in old
    assert "controls have moved" not in second
    assert "float64 50.0 GFLOP/s" in new
    assert "ridge 5 FLOP a byte" in new  # by hand: 50 GFLOP/s over 10 GB/s


def test_a_stop_before_a_workloads_first_call_keeps_those_before(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """``measure`` raises where it has nothing to report; the workload before it stays, with the note."""
    fake = timing.measure

    def measure(*arguments: Any, **named: Any) -> Measurement:
        if named["label"].startswith("add"):
            raise StoppedError("measure: stopped before add was called once; there is nothing to report. Run it again.")
        return fake(*arguments, **named)

    monkeypatch.setattr(timing, "measure", measure)
    r = RooflineExplorer(workloads=["matmul", "add"], beside="none")
    r.run(wait=True)
    assert [p.label for p in r.result.points] == ["matmul n=512 float32"]
    assert {"code": "stopped", "sentence": "Stopped before add."} in r._results.notes


def test_doubtful_roofs_are_measured_again_by_the_next_run(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Roofs that a neighbour spoiled are kept for one run; the next asks for new ones, and quiet ones are kept."""
    asked: list[bool] = []

    def roofline(device: Any, refresh: bool = False, stop: Any = None) -> Roofline:
        asked.append(refresh)
        return dataclasses.replace(ROOFS, notes=()) if any(asked) else ROOFS

    monkeypatch.setattr(models, "roofline", roofline)
    r = RooflineExplorer(workloads=["add"], beside="none")
    for _ in range(3):
        r.run(wait=True)
    assert asked == [False, False, True, False]
    assert "contended" not in str(r._results.notes)


def test_stop_ends_the_measurement_of_the_roofs(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop reaches the core call that measures the roofs; its sentence is shown as what happened, not as an error, and Run works again."""
    entered, stops = threading.Event(), []

    def roofline(device: Any, refresh: bool = False, stop: Any = None) -> Roofline:
        entered.set()
        while len(stops) == 0 and not stop():
            time.sleep(0.001)
        if not stops:
            stops.append(1)
            raise StoppedError("ceilings: stopped before every roof was measured.")
        return ROOFS

    monkeypatch.setattr(models, "roofline", roofline)
    r = RooflineExplorer(workloads=["add"], beside="none")
    r.run(wait=False)
    assert entered.wait(10)
    r.stop()
    assert r._job is not None
    assert r._job.join(10)
    assert (r.error, r.running) == ("", False)
    assert r._panel.progress == "ceilings: stopped before every roof was measured."
    r.run(wait=True)
    assert [p.label for p in r.result.points] == ["add n=524288 float32"]


def test_a_recorded_machine_shows_what_it_recorded_and_says_what_it_did_not(calls: list[Any]) -> None:
    """The medians of the shipped recording, read here from its own entries; a size or format that is missing is said."""
    name = recordings.names()[0]
    recording = recordings.load(name)
    timed = recording.find("catalogue", workload="gelu", n=524288, dtype="float32")
    assert timed is not None
    assert timed.timing is not None
    r = RooflineExplorer(workloads=["gelu"], beside=name)
    (point,) = r.beside.points  # type: ignore[union-attr]
    assert point.seconds == timed.timing.median_seconds
    assert point.interval_seconds == timed.timing.interval_seconds
    assert point.evidence.badge == "RECORDED"
    assert "RECORDED" in str(r._results.rows)
    r.set(workloads=["embedding_gather"], dtype="float16")
    assert "embedding_gather n=16384 float16 on" in str(r._results.notes)
    assert "not recorded yet" in str(r._results.notes)


def test_work_without_arithmetic_stands_in_the_table(calls: list[Any]) -> None:
    """A sort has no FLOP, so no place on the axes; its row has bytes a second."""
    r = RooflineExplorer(workloads=["sort"], beside="none")
    r.run(wait=True)
    assert "Without arithmetic, so only in the table: sort n=262144 float32." in r._results.message
    assert rows(r)[("sort n=262144", "MEASURED")][6].endswith("B/s")


@pytest.mark.parametrize("beside", ["none", "H200 SXM", "recorded"])
def test_the_code_draws_the_same_points(calls: list[Any], beside: str) -> None:
    """What "Show the code" prints measures the same workloads with the same arguments and places the same points beside."""
    name = recordings.names()[0] if beside == "recorded" else beside
    r = RooflineExplorer(workloads=["add", "gelu"], size=0.0, deadline=0.2, beside=name)
    r.run(wait=True)
    used = [(c["device"], c["deadline"]) for c in calls]
    calls.clear()

    def stand_in(work: Any, *inputs: Any, **arguments: Any) -> Measurement:
        return timing.measure(work, *inputs, stop=lambda: False, **arguments)

    names: dict[str, Any] = {"stand_in": stand_in}
    exec(r.code.replace("gl.measure", "stand_in"), names)
    assert [(c["device"], c["deadline"]) for c in calls] == used
    assert [p.label for p in names["points"]] == [p.label for p in r.result.points]
    if beside != "none":
        assert tuple(names["others"]) == r.beside.points  # type: ignore[union-attr]


def test_every_machine_of_the_list_can_stand_beside() -> None:
    """Each recording and each product of the data sheets draws, with points or a sentence why there are none."""
    r = RooflineExplorer(workloads=["add"])
    options = [text for item in r._panel.spec if item["name"] == "beside" for text in item["options"]]
    assert len(options) > 40
    for text in options[1:]:
        r.set(beside=text)
        assert r.beside is not None, text
        assert r.beside.points, text


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(RooflineExplorer())
