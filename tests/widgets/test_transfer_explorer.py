"""TransferExplorer with fake core calls: the three views, the fit, the modelled link, recorded machines and the code shown."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from control_tables import offers_what_it_takes

from gpulab import devices, recordings, transfer
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.transfer import BreakEven, BreakEvenRow, Overlap, Span, Sweep, SweepPoint
from gpulab.widgets import TransferExplorer, transfer_explorer

MIB = 2**20


def sweep_of(device: str, evidence: Evidence, series: tuple[tuple[str, str], ...], notes: tuple[Note, ...] = ()) -> Sweep:
    """A sweep over a link of 10 us and 10 GB/s exactly, at 4 KiB to 256 MiB."""
    points = []
    for direction, memory in series:
        for k in range(12, 29, 2):
            seconds = 10e-6 + 2**k / 10e9
            points.append(SweepPoint(direction, memory, 2**k, seconds, (0.99 * seconds, 1.01 * seconds), 30))
    return Sweep(device, "torch", tuple(points), 2e10, notes, evidence, None)


HOST = sweep_of("Slow CPU", Evidence.measured("Slow CPU", 30), (("host", "pageable"),))
FAR = sweep_of(
    "Far GPU", Evidence.recorded(devices.environment("cpu"), samples=9), (("to_device", "pinned"), ("to_host", "pageable"))
)  # fmt: skip
SPANS = (Span("copy", 0, 0.0, 0.1), Span("compute", 0, 0.1, 0.15))
OVERLAP = Overlap(
    "Slow CPU", 64 * MIB, 2, 0.2, 0.1, 0.25, SPANS, (), Evidence.measured("Slow CPU", 7)
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, dict[str, Any]]]:
    """The arguments of each core call; the modelled overlap is the real one."""
    seen: list[tuple[str, Any, dict[str, Any]]] = []
    real_overlap = transfer.overlap

    def sweep(device: str, *, progress: Callable[..., None], stop: Callable[[], bool], **arguments: Any) -> Sweep:
        progress(0.5, "half")
        seen.append(("sweep", device, arguments))
        return HOST

    def overlap(nbytes: int, **arguments: Any) -> Overlap:
        if "link" in arguments:
            return real_overlap(nbytes, **arguments)
        seen.append(("overlap", nbytes, {"chunks": arguments["chunks"]}))
        return OVERLAP

    monkeypatch.setattr(transfer, "sweep", sweep)
    monkeypatch.setattr(transfer, "overlap", overlap)
    return seen


def picture(t: TransferExplorer) -> str:
    """The picture as text."""
    return str(t._picture.outputs)


def test_before_a_sweep_the_modelled_link_stands_alone() -> None:
    """Without a measurement the link is drawn with its badge, and the sentence says which button measures."""
    t = TransferExplorer()
    assert t._results.message.startswith("Press Sweep")
    assert [e["badge"] for e in t._results.evidence] == ["MODELLED"]
    assert "pcie4-x16 (modelled)" in picture(t)
    # Of a link alone each fourth size from 1 KiB to 1 GiB; by hand 10 us + size / 26 GB/s.
    sizes = [f"{size} {unit}" for unit in ("KiB", "MiB") for size in ("1.00", "4.00", "16.0", "64.0", "256")]
    assert [row[0] for row in t._results.rows] == ["evidence", *sizes, "1.00 GiB"]
    assert [t._results.rows[k][1] for k in (1, 6, 11)] == ["10.0 us", "50.3 us", "41.3 ms"]
    t.set(quantity="rate")
    assert [t._results.rows[k][1] for k in (1, 11)] == ["102 MB/s", "26.0 GB/s"]
    t.set(quantity="seconds")
    t.set(link_shown=False)
    assert t._picture.outputs == ()


def test_a_sweep_is_drawn_with_its_fit_and_the_predicted_time(calls: list[Any]) -> None:
    """A noiseless link of 10 us and 10 GB/s is found again, and a copy of 10 MB is told to take 10 us + 1 ms, by hand."""
    t = TransferExplorer(device="cpu", deadline=2.0, predict_mebibytes=10e6 / MIB)
    t.run("sweep", wait=True)
    assert t.error == ""
    assert calls == [("sweep", "cpu", {"deadline": 2.0})]
    assert t.fit is not None
    assert t.fit.latency_seconds == pytest.approx(10e-6, rel=0.02)
    assert t.fit.bandwidth_bytes_per_second == pytest.approx(10e9, rel=0.02)
    message = t._results.message
    for words in ("latency 10.0 us (95 %", "bandwidth 10.0 GB/s (95 %", "no knee", "9.54 MiB is expected to take 1.01 ms, 95 % between"):
        assert words in message
    for words in ("95 % prediction interval", "latency 10.0 us", "half the bandwidth at", "predicted, 9.54 MiB", "'dash': 'dash'"):
        assert words in picture(t)
    assert t._results.headers == ["size", "host copy, pageable", "pcie4-x16"]
    assert t._results.rows[0] == ["evidence", {"badge": "MEASURED"}, {"badge": "MODELLED"}]
    assert t._results.rows[1][1] == "10.4 us [10.3 us, 10.5 us]"  # 10 us + 4096 B / 10 GB/s
    t.set(quantity="rate")
    assert "memory bandwidth 20.0 GB/s" in picture(t)
    assert "bandwidth of the fit 10.0 GB/s" in picture(t)
    assert "fit.predict(9.5367431640625 * 2**20)" in t.code, "the same bytes, also where six digits are too few"


def test_each_sweep_has_a_fit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten sweeps, each over a link with another latency: an old one's place in memory may go to a new one, its fit may not."""
    t = TransferExplorer()
    for k in range(1, 11):

        def sweep(device: str, k: int = k, **_: Any) -> Sweep:
            points = tuple(dataclasses.replace(p, median_seconds=k * 10e-6 + p.nbytes / 10e9, interval_seconds=None) for p in HOST.points)
            return dataclasses.replace(HOST, points=points)

        monkeypatch.setattr(transfer, "sweep", sweep)
        t.run("sweep", wait=True)
        assert t.error == ""
        assert t.fit is not None
        assert t.fit.latency_seconds == pytest.approx(k * 10e-6, rel=0.01)


def test_a_named_link_sets_the_sliders_and_a_slider_makes_it_ones_own(calls: list[Any]) -> None:
    """PCIe 3 x16 is 12.35 GB/s (nvbandwidth's README); a moved latency is in the code, and every named link has a place on both sliders."""
    t = TransferExplorer()
    t.set(link="pcie3-x16")
    assert t.values["bandwidth_bytes_per_second"] == 12.35e9
    assert 'gl.transfer.link("pcie3-x16")' in t.code
    t.set(latency_seconds=50e-6)
    assert t.link.seconds(1_235_000_000) == pytest.approx(0.1 + 50e-6)
    assert 'gl.transfer.link("pcie3-x16", latency_seconds=5e-05)' in t.code
    for name in transfer.link_names():
        t.set(link=name)
        assert t.link == transfer.link(name)
        assert t._panel.values["bandwidth_bytes_per_second"] >= 0


def test_a_recorded_machine_stands_beside_and_its_series_can_be_fitted(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded sweep carries its badge and offers its own series; a machine without transfers says "not recorded yet"."""
    environment = devices.environment("cpu")
    there = {name: type("R", (), {"environment": environment, "name": name})() for name in ("far-gpu", "bare")}
    monkeypatch.setattr(recordings, "readable", lambda: there)
    monkeypatch.setattr(recordings, "load", there.get)
    monkeypatch.setattr(transfer, "recorded_sweep", lambda recording: FAR if recording.name == "far-gpu" else None)
    t = TransferExplorer()
    t.set(recorded="bare")
    assert "Transfers of bare: not recorded yet." in t._results.message
    t.set(recorded="far-gpu")
    assert t.values["series"] == "recorded to_device pinned"
    assert t.fit is not None
    assert {"badge": "RECORDED"} in t._results.rows[0]
    t.run("sweep", wait=True)
    texts = t._panel.spec[[c["name"] for c in t._panel.spec].index("series")]["options"]
    assert texts == ["here: host copy, pageable", "far-gpu: host to device, pinned", "far-gpu: device to host, pageable"]
    t.set(series="recorded to_host pageable")
    assert 'far = gl.transfer.recorded_sweep(gl.recordings.load("far-gpu"))\nfit = far.fit("to_host", "pageable")' in t.code
    assert len(t._results.rows[0]) == 1 + 3 + 1
    t.set(recorded="none")
    assert t.values["series"] == "live host pageable"


def test_no_recording_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing recorded the choice says so."""
    monkeypatch.setattr(recordings, "readable", dict)
    t = TransferExplorer()
    spec = {c["name"]: c for c in t._panel.spec}
    assert spec["recorded"]["options"] == ["none recorded yet"]
    assert spec["against"]["options"][-1] == "H200 behind the modelled link"


def test_the_modelled_timeline_follows_the_controls_and_the_measured_one_its_button(calls: list[Any]) -> None:
    """One GB/s and no latency to speak of: 64 MiB in 4 equal chunks with as long a compute take 5/4 of one copy, by hand."""
    t = TransferExplorer(view="overlap", way="model", bandwidth_bytes_per_second=1e9, latency_seconds=0.5e-6, chunks=4)
    assert calls == []
    assert "In 4 chunks it takes 83.9 ms" in t._results.message  # 5/4 x 67.1 ms
    assert [e["badge"] for e in t._results.evidence] == ["MODELLED"]
    t.set(chunks=1)
    assert t._results.message == "In 1 chunk it takes 134 ms, one after the other 134 ms: nothing was gained."
    assert t._results.headers[0] == "64.0 MiB in 1 chunk"
    assert t._results.notes[0]["code"] == "no-overlap"
    t.set(compute_ratio=2.0)
    assert "compute_seconds=2 * link.seconds(67108864)" in t.code
    t.run("overlap", wait=True)
    assert calls == [("overlap", 64 * MIB, {"chunks": 1})]
    assert t.values["way"] == "here"
    assert "50% of the gain that is possible" in t._results.message  # (0.3 - 0.25) / 0.1
    assert t.code.endswith("o = gl.transfer.overlap(67108864, chunks=1)\no")
    t.set(chunks=8)
    assert t._results.message.startswith("The controls have moved since this was made: press Measure overlap")
    t.set(way="model")
    assert "have moved" not in t._results.message


def test_chunks_without_an_overlap_are_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of the core decides the words; 0.4 per cent of the possible rounds to nothing gained."""
    note = Note("no-overlap", "One engine did both.")
    flat = Overlap("Slow CPU", 64 * MIB, 2, 0.2, 0.1, 0.2996, SPANS, (note,), Evidence.measured("Slow CPU", 7))
    for one, words in ((flat, "no overlap happened"), (dataclasses.replace(flat, notes=()), "nothing was gained")):
        monkeypatch.setattr(transfer, "overlap", lambda *given, one=one, **rest: one)
        t = TransferExplorer(view="overlap", way="here")
        t.run("overlap", wait=True)
        assert t._results.message == f"In 2 chunks it takes 300 ms, one after the other 300 ms: {words}."


def test_a_gain_that_cannot_be_is_not_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand 1000 % of the possible: the sentence has no such share, and the note says what to do."""
    note = Note("implausible", "Less than the copy alone. Measure again.")
    broken = Overlap("Slow CPU", 64 * MIB, 2, 20.0, 1.0, 11.0, SPANS, (note,), Evidence.measured("Slow CPU", 7))
    monkeypatch.setattr(transfer, "overlap", lambda *given, **rest: broken)
    t = TransferExplorer(view="overlap", way="here")
    t.run("overlap", wait=True)
    assert "more than can be gained" in t._results.message
    assert "%" not in t._results.message
    assert [one["sentence"] for one in t._results.notes] == [note.sentence]


@pytest.mark.parametrize(
    ("begin", "moved"), [({"view": "overlap", "way": "here"}, {"view": "sweep"}), ({"view": "overlap", "way": "here"}, {"way": "model"})]
)
def test_a_result_leaves_the_reader_where_he_went(
    begin: dict[str, Any], moved: dict[str, Any], monkeypatch: pytest.MonkeyPatch, calls: list[Any]
) -> None:
    """What was chosen while an overlap was measured stays chosen."""
    t = TransferExplorer(**begin)
    fake = transfer.overlap

    def overlap(nbytes: int, **arguments: Any) -> Overlap:
        if "link" not in arguments:
            t.set(**moved)
        return fake(nbytes, **arguments)

    monkeypatch.setattr(transfer, "overlap", overlap)
    t.run("overlap", wait=True)
    assert t.results["overlap"] is OVERLAP
    assert {name: t.values[name] for name in begin} == {**begin, **moved}


def test_a_recorded_machines_overlap_stands_beside(calls: list[Any]) -> None:
    """From the file by hand: 256 MiB in 16 chunks, one after the other and overlapping; other settings say what was recorded."""
    file = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))
    seen = {
        e["params"]["arrangement"]: e["timing"]["median_seconds"]
        for e in file["entries"] if e["experiment"] == "overlap" and e["params"]["nbytes"] == 2**28 and e["params"]["chunks"] == 16
    }  # fmt: skip
    t = TransferExplorer(view="overlap", way="model", recorded="nvidia-h200", nbytes=256 * MIB, chunks=16)
    far = {row[0]: row[1] for row in t._results.rows if str(row[0]).startswith("RECORDED on nvidia-h200")}
    assert list(far.values()) == [f"{1e3 * seen[way]:.2f} ms" for way in ("serial", "chunked")]
    assert {"MODELLED", "RECORDED"} == {e["badge"] for e in t._results.evidence}
    assert t.code.endswith("gl.lessons.recorded_overlap()")
    t.set(nbytes=64 * MIB)
    assert "Overlap on nvidia-h200 was recorded for 16.0 MiB and 256 MiB" in t._results.message
    assert "RECORDED" not in {e["badge"] for e in t._results.evidence}
    t.set(recorded="amd-epyc-2-cores")
    assert "amd-epyc-2-cores is a CPU: overlap is set beside that of recorded GPUs." in t._results.message


def test_the_break_even_uses_the_modelled_link_of_the_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is given exactly the link of the sliders; when it moves, the result on the screen says that it is older."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    found = BreakEven("sum float32", 80, "found", "The accelerator wins from 80 on.", rows, (), Evidence.modelled("a link", "a book"))
    seen: dict[str, Any] = {}

    def break_even(workload: str, **arguments: Any) -> BreakEven:
        seen.update(arguments, workload=workload)
        return found

    monkeypatch.setattr(transfer, "break_even", break_even)
    t = TransferExplorer(workload="sum", against="model", link="nvlink4", latency_seconds=2e-6, search_deadline=5.0)
    t.run("break_even", wait=True)
    assert t.error == ""
    assert (seen["workload"], seen["processor"], seen["deadline"]) == ("sum", "nvidia-h200", 5.0)
    assert (seen["link"].latency_seconds, seen["link"].bandwidth_bytes_per_second) == (2e-6, 450e9)
    assert t.values["view"] == "break_even"
    assert t._results.message == "The accelerator wins from 80 on."
    assert "break-even: n = 80" in picture(t)
    t.set(latency_seconds=10e-6)
    assert t._results.message.startswith("The controls have moved since this was made: press Find break-even")
    assert 'b = gl.transfer.break_even("sum", link=link, processor="nvidia-h200", deadline=5.0)' in t.code


def test_each_view_has_its_own_controls(calls: list[Any]) -> None:
    """A control of another view is hidden; the link is on the screen where it is used; a refused value leaves with its view."""
    t = TransferExplorer()

    def on_screen() -> set[str]:
        return {c["name"] for c in t._panel.spec if not c["hidden"]}

    link = {"view", "link", "latency_seconds", "bandwidth_bytes_per_second"}
    assert on_screen() == link | {"device", "deadline", "recorded", "quantity", "series", "predict_mebibytes", "link_shown"}
    t._on_message(None, {"do": "set", "name": "predict_mebibytes", "raw": "-1", "seq": 1}, None)
    assert "expected a number from" in t.error
    t.set(view="overlap")
    assert t.error == ""
    assert on_screen() == link | {"way", "nbytes", "chunks", "compute_ratio", "recorded"}
    t.set(way="here")  # a measured timeline follows no modelled link
    assert on_screen() == {"view", "way", "nbytes", "chunks", "recorded"}
    t.set(view="sweep", link_shown=False)
    assert not on_screen() & link - {"view"}
    t.set(view="break_even")
    assert t.values["against"] == "recording nvidia-h200"  # without a GPU what was recorded on one comes before a model
    assert on_screen() == {"view", "workload", "against", "search_deadline"}
    t.set(against="model")
    assert on_screen() == link | {"workload", "against", "search_deadline"}


def test_a_break_even_against_a_real_device_shows_no_modelled_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data go over the device's own link; a hidden slider can still be set from Python and comes back with its value."""
    monkeypatch.setattr(devices, "available", lambda: [devices.find("cpu"), devices.Device("cuda", 0)])
    monkeypatch.setattr(devices.Device, "name", property(str))
    t = TransferExplorer(view="break_even", against="cuda:0")
    hidden = {c["name"] for c in t._panel.spec if c["hidden"]}
    assert {"link", "latency_seconds", "bandwidth_bytes_per_second"} <= hidden
    t.set(latency_seconds=50e-6)
    t.set(against="model")
    assert not {c["name"] for c in t._panel.spec if c["hidden"]} & {"link", "latency_seconds", "bandwidth_bytes_per_second"}
    assert t.link.latency_seconds == 50e-6


def test_a_sweep_that_is_stopped_early_keeps_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points are shown with the note, and the fit says why it is not there; stopped before any, the instrument says so."""
    begun = threading.Event()
    two = Sweep("Slow CPU", "torch", HOST.points[:2], None, (Note("stopped", "Stopped after 2 points."),), HOST.evidence, None)

    def sweep(device: str, *, stop: Callable[[], bool], **_: Any) -> Sweep:
        begun.set()
        while not stop():
            pass
        if device == "cpu" and begun.is_set() and len(results):
            raise StoppedError("sweep: stopped before the first point.")
        results.append(1)
        return two

    results: list[int] = []
    monkeypatch.setattr(transfer, "sweep", sweep)
    t = TransferExplorer()
    for _ in range(2):
        begun.clear()
        t.run("sweep")
        assert begun.wait(10)
        t.stop()
        assert t._job is not None
        assert t._job.join(10)
    assert t.error == ""
    assert t._panel.progress == "sweep: stopped before the first point."
    assert t._results.notes == [{"code": "stopped", "sentence": "Stopped after 2 points."}]
    assert "No fit:" in t._results.message
    assert len(t._results.rows) == 3


@pytest.mark.parametrize(
    "bad",
    [{"link": "rope"}, {"chunks": 3}, {"predict_mebibytes": float("nan")}, {"predict_mebibytes": 0}, {"view": "x"}, {"device": "cuda:7"}],
)
def test_bad_values_are_refused_in_words(bad: dict[str, Any]) -> None:
    """Unknown names and impossible sizes raise one sentence from Python and change nothing."""
    t = TransferExplorer()
    before = dict(t.values)
    with pytest.raises(InputError, match="expected"):
        t.set(**bad)
    assert t.values == before


def test_a_failing_core_call_is_told_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sweep refuses shows as one sentence; the instrument stays usable."""

    def sweep(*_: Any, **__: Any) -> Sweep:
        raise InputError("sweep: no such thing; expected another. Do that.")

    monkeypatch.setattr(transfer, "sweep", sweep)
    t = TransferExplorer()
    t.run("sweep", wait=True)
    assert t.error == "sweep: no such thing; expected another. Do that."
    assert not t.running
    t.set(view="overlap", way="model")
    assert t._results.rows


def test_the_code_of_every_view_runs(calls: list[Any]) -> None:
    """The lines shown run as they are, with the numbers of the controls."""
    t = TransferExplorer(chunks=4, quantity="rate", latency_seconds=20e-6, compute_ratio=0.5)
    t.run("sweep", wait=True)
    names: dict[str, Any] = {}
    stand_in = t.code.replace("gl.transfer.sweep(", "sweep(")
    exec(stand_in, {"sweep": lambda device, deadline: HOST}, names)
    assert names["fit"] == t.fit
    assert names["link"] == t.link
    t.set(view="overlap", way="model")
    exec(t.code, {}, names)
    assert names["o"] == t._modelled_overlap(t.values)


def test_the_default_link_is_the_cores() -> None:
    """The link at the start is the one that the core takes where nothing is known."""
    default = {c.name: c.initial for c in transfer_explorer._link_controls()}
    assert default["link"] == "pcie4-x16"
    assert transfer.link("pcie4-x16").latency_seconds == default["latency_seconds"]


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(TransferExplorer())
