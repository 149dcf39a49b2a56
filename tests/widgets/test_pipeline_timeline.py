"""PipelineTimeline with a core of ours: what each control does, what a run leaves, and the code that is shown."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from control_tables import offers_what_it_takes

from gpulab import devices, training
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.widgets import PipelineTimeline

HERE = Evidence.measured("A CPU", 24)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was run; every image takes 2 ms to load."""
    seen: list[dict[str, Any]] = []

    def run(*, batch_size: int, workers: int, step_seconds: float, progress: Any, stop: Any, **others: Any) -> training.PipelineResult:
        seen.append({"batch_size": batch_size, "workers": workers, "step_seconds": step_seconds, **others})
        if stop():
            raise StoppedError("pipeline: stopped before two steps were made; expected at least two. Run it again.")
        progress(0.5, "step 12 of 24")
        made = training.model_pipeline(0.002 * batch_size, step_seconds, workers=workers, batch_size=batch_size)
        return dataclasses.replace(made, evidence=HERE)

    monkeypatch.setattr(training, "pipeline", run)
    return seen


def test_the_modelled_timeline_follows_each_control() -> None:
    """32 images of 1.5 ms behind a step of 20 ms: 48 of 68 ms and the copy are waiting; three workers on eight cores end it."""
    t = PipelineTimeline(cores=8)
    before = t.modelled.stall_ratio
    copy = t.modelled.copy_seconds
    assert before == pytest.approx((0.048 + copy) / (0.068 + copy))
    assert t._results.message.startswith("A modelled accelerator waits 7")
    t.set(workers=3)
    assert t.modelled.stall_ratio < 0.1
    t.set(loading_ms=6.0)
    assert t.modelled.bottleneck == "data"
    t.set(cores=1)
    assert t.modelled.loading_seconds == pytest.approx(3 * 32 * 0.006)
    t.set(batch_size=8, pinned=True, read_loss=False, prefetch=4, step_seconds=0.08)
    p = t.modelled
    assert (p.batch_size, p.pinned, p.read_loss, p.prefetch) == (8, True, False, 4)
    assert p.compute_seconds == pytest.approx(0.08)


def test_a_run_is_shown_and_teaches_the_model(calls: list[dict[str, Any]]) -> None:
    """The measured timeline appears with both badges; without workers its loading becomes the model's; with them it does not."""
    t = PipelineTimeline(step_seconds=0.01, batch_size=16)
    t.run(wait=True)
    assert calls[0]["steps"] == 24
    assert (t.values["way"], t.values["loading_ms"]) == ("here", 2.0)
    assert {line["badge"] for line in t._results.evidence} == {"MEASURED", "MODELLED"}
    t.set(workers=4)
    assert t._results.message.startswith("The controls have moved")
    t.set(way="model")
    assert not t._results.message.startswith("The controls have moved")
    t.set(loading_ms=9.0)
    t.run(wait=True)
    assert t.values["loading_ms"] == 9.0
    assert calls[1]["workers"] == 4


def test_a_loading_time_beyond_the_field_is_its_end() -> None:
    """A picture that took 5 s, and one that took a microsecond: the field goes from 0.01 ms to a second."""
    t = PipelineTimeline(batch_size=16)
    for seconds, shown in ((80.0, 1000.0), (16e-6, 0.01), (0.0200016, 1.25)):
        t._made["run"] = dict(t.values)
        t.results["run"] = SimpleNamespace(workers=0, loading_seconds=seconds, batch_size=16)
        t.ended("run")
        assert t.values["loading_ms"] == shown


def test_a_gpu_can_train_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is offered by its name; then a step takes what it takes, and the call says nothing of it."""
    gpus = [SimpleNamespace(torch_type="cuda", name=f"GPU {k}") for k in range(2)]
    monkeypatch.setattr(devices, "available", lambda: [SimpleNamespace(torch_type="cpu", name="CPU"), *gpus])
    t = PipelineTimeline(way="here")
    (spec,) = (control for control in t._panel.spec if control["name"] == "accelerator")
    assert (spec["options"], spec["hidden"]) == (["modelled, with the step time below", "GPU 0, training for real"], False)
    assert t.code.endswith("step_seconds=0.02, steps=24)\ngl.figures.pipeline(p)")
    t.set(accelerator="live")
    assert t.code.endswith("read_loss=True, steps=24)\ngl.figures.pipeline(p)")
    t.set(way="model")
    assert t.modelled.batch_bytes == 32 * 3 * 128 * 128  # samples of 128 pixels, a byte a colour


def test_a_loading_time_typed_meanwhile_stays(monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]) -> None:
    """The run teaches the model only what the reader has not set himself while it ran."""
    t = PipelineTimeline(step_seconds=0.01)
    fake = training.pipeline

    def run(**asked: Any) -> training.PipelineResult:
        t.set(loading_ms=7.0)
        return fake(**asked)

    monkeypatch.setattr(training, "pipeline", run)
    t.run(wait=True)
    assert (t.values["way"], t.values["loading_ms"]) == ("here", 7.0)


def test_controls_that_mean_nothing_are_not_on_the_screen(calls: list[dict[str, Any]]) -> None:
    """Prefetch needs workers, the model's numbers the model; without a GPU there is no choice of accelerator."""
    t = PipelineTimeline()
    hidden = {c["name"] for c in t._panel.spec if c["hidden"]}
    assert {"prefetch", "accelerator"} <= hidden
    t.set(workers=1)
    t.run(wait=True)
    hidden = {c["name"] for c in t._panel.spec if c["hidden"]}
    assert {"loading_ms", "cores"} <= hidden
    assert "prefetch" not in hidden


def test_the_code_gives_the_same_result() -> None:
    """What the instrument shows as code runs and makes the modelled timeline again."""
    t = PipelineTimeline(workers=2, step_seconds=0.04, loading_ms=2.5)
    space: dict[str, Any] = {}
    exec(t.code, space)
    assert space["p"].stall_ratio == pytest.approx(t.modelled.stall_ratio, rel=1e-3)
    t.set(way="here")
    assert "gl.training.pipeline(batch_size=32, workers=2" in t.code
    assert t._results.message.startswith("Press Run the steps")


def test_errors_and_stops_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead worker is a sentence in the instrument, which goes on."""

    def dies(**arguments: Any) -> None:
        raise InputError("pipeline: told to fail; expected more. Try later.")

    monkeypatch.setattr(training, "pipeline", dies)
    t = PipelineTimeline()
    t.run(wait=True)
    assert t.error == "pipeline: told to fail; expected more. Try later."
    with pytest.raises(InputError, match="Workers"):
        t.set(workers=99)


def test_notes_stand_apart_from_the_table(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's notes are notes, with their code; the table has the other rows of the result's own, in order."""
    run = training.pipeline
    note = Note("contended", "Another process was active.")
    monkeypatch.setattr(training, "pipeline", lambda **given: dataclasses.replace(run(**given), notes=(note,)))
    t = PipelineTimeline()
    t.run(wait=True)
    assert t._results.notes == [{"code": "contended", "sentence": "Another process was active."}]
    headers, rows = t.result.table()
    assert t._results.headers == list(headers)
    assert [row[0].startswith("note: ") for row in rows].count(True) == 1
    assert t._results.rows == [[str(cell) for cell in row] for row in rows if not row[0].startswith("note: ")]
    assert len(t._results.rows) == len(rows) - 1


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(PipelineTimeline())
