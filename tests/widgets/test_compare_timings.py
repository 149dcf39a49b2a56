"""CompareTimings with a fake core call: the controls, the table, the recorded machines and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from control_tables import offers_what_it_takes

from gpulab import devices, recordings, timing, transfer, workloads
from gpulab.errors import InputError, RecordingError
from gpulab.evidence import Evidence, Note
from gpulab.timing import Comparison, ComparisonRow, Measurement
from gpulab.transfer import BreakEven, BreakEvenRow
from gpulab.widgets import CompareTimings, compare_timings


def measured(device: str, median: float, evidence: Evidence, notes: tuple[Note, ...] = ()) -> Measurement:
    """A measurement with these figures."""
    where = dataclasses.replace(devices.environment("cpu"), device=evidence.device)
    interval = (0.9 * median, 1.2 * median)
    return Measurement(
        "matmul", device, np.full(5, median), median, interval, 9 * median, median / 2, 2 * median, 1, None, None, notes, evidence, where
    )


CPU = measured("cpu", 0.010, Evidence.measured("Slow CPU", 5), (Note("unstable", "The samples disagree."),))
GPU = measured("cuda:0", 0.001, Evidence.measured("Fast GPU", 7))
BOTH = Comparison(
    "matmul n=64 float32",
    (ComparisonRow("Slow CPU", CPU, None, None, 1e-7), ComparisonRow("Fast GPU", GPU, 10.0, (9.0, 11.0), 2e-6)),
    10.0, (9.0, 11.0), 2e-6, 1e-5, (Note("turn-taking", "A neighbour measured."),), CPU.evidence,
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each comparison; each returns the two made-up rows."""
    seen: list[dict[str, Any]] = []

    def compare(work: str, *, progress: Callable[..., None], stop: Callable[[], bool], **arguments: Any) -> Comparison:
        progress(0.5, "half")
        seen.append({"work": work, **arguments})
        return BOTH

    monkeypatch.setattr(timing, "compare", compare)
    monkeypatch.setattr(compare_timings, "recorded", lambda workload, n, dtype: {})
    return seen


def test_a_comparison_leaves_the_reader_in_the_view_that_he_chose(monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]) -> None:
    """Turned to the break-even while it measured, the instrument stays there; turned by nobody, it shows the times."""
    t = CompareTimings(workload="matmul", n=64)
    fake = timing.compare

    def compare(*arguments: Any, **named: Any) -> Comparison:
        t.set(view="break_even")
        return fake(*arguments, **named)

    monkeypatch.setattr(timing, "compare", compare)
    t.run("run", wait=True)
    assert (t.values["view"], t.result) == ("break_even", BOTH)
    monkeypatch.setattr(timing, "compare", fake)
    t.run("run", wait=True)
    assert t.values["view"] == "run"


def test_the_code_shown_is_the_call_made(calls: list[dict[str, Any]]) -> None:
    """What "Show the code" prints calls ``compare`` with exactly the arguments that Run used."""
    t = CompareTimings(workload="matmul", n=64, dtype="float64", deadline=0.5, transfer=True)
    t.run(wait=True)
    assert t.error == ""
    (used,) = calls
    assert used == {"work": "matmul", "n": 64, "dtype": "float64", "deadline": 0.5, "transfer": True}
    names: dict[str, Any] = {}
    calls.clear()

    def stand_in(work: str, **arguments: Any) -> Comparison:
        return timing.compare(work, progress=lambda fraction, text: None, stop=lambda: False, **arguments)

    exec(t.code.replace("import gpulab as gl", "").replace("gl.compare", "stand_in"), {"stand_in": stand_in}, names)
    assert calls == [used]
    assert names["c"] is BOTH


def test_rows_notes_and_verdict_are_those_of_the_comparison(calls: list[dict[str, Any]]) -> None:
    """The table has a badge and three times a row; the verdict says agreement first, then the speed-up and its interval."""
    t = CompareTimings()
    t.run(wait=True)
    headers, rows = t._results.headers, t._results.rows
    assert headers[:2] == ["device", "evidence"]
    assert [row[0] for row in rows] == ["Slow CPU", "Fast GPU"]
    assert rows[1][1] == {"badge": "MEASURED"}
    text = " ".join(str(cell) for cell in rows[1])
    for figure in ("1.00 ms [900 us, 1.20 ms]", "500 us", "2.00 ms", "10.0x [9.00x, 11.0x]", "2.0e-06"):
        assert figure in text
    message = t._results.message
    assert message.index("The results agree") < message.index("10 times as fast as Slow CPU (95 % interval 9 to 11)")
    assert "not recorded yet" in message
    assert t._results.notes == [
        {"code": "turn-taking", "sentence": "A neighbour measured."},
        {"code": "unstable", "sentence": "Slow CPU: The samples disagree."},
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"max_relative_difference": 1e-5},
            "The results agree: the largest relative difference is 1.0e-05, within the tolerance 1.0e-05. ",
        ),
        (
            {"max_relative_difference": 2e-5},
            "The results disagree: the largest relative difference is 2.0e-05, beyond the tolerance 1.0e-05. ",
        ),
        (
            {"max_relative_difference": 0.0, "tolerance": 0.0},
            "The results agree: the largest relative difference is 0, within the tolerance 0. ",
        ),
        ({"max_relative_difference": None}, ""),
        ({"tolerance": None}, ""),
    ],
)
def test_whether_the_results_agree_is_said_first(changes: dict[str, Any], words: str) -> None:
    """Up to the tolerance they do; then the speed-up, or that there is none, and why."""
    c = dataclasses.replace(BOTH, **changes)
    one = "The fastest other device is 10 times as fast as Slow CPU"
    assert compare_timings._verdict(c) == f"{words}{one} (95 % interval 9 to 11)."
    assert compare_timings._verdict(dataclasses.replace(c, speedup_interval=None)) == f"{words}{one}."
    much = compare_timings._verdict(dataclasses.replace(c, speedup=1234.4, speedup_interval=(998.0, 2345.6)))
    assert much.endswith("is 1,234 times as fast as Slow CPU (95 % interval 998 to 2,346).")
    assert compare_timings._verdict(dataclasses.replace(c, speedup=None)) == f"{words}No speed-up is reported."
    alone = dataclasses.replace(c, speedup=None, rows=c.rows[:1])
    assert compare_timings._verdict(alone) == f"{words}One device, so no speed-up."
    assert [note.sentence for note in compare_timings._notes(alone)] == ["A neighbour measured.", "The samples disagree."]


def test_recorded_machines_stand_beside_and_say_so(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded row carries its badge, is not compared with the live ones, and can be hidden."""
    evidence = Evidence.recorded(dataclasses.replace(devices.environment("cpu"), device="Far GPU"), samples=9)
    far = measured("cuda:0", 0.002, evidence)
    monkeypatch.setattr(compare_timings, "recorded", lambda workload, n, dtype: {"far": far} if n == 64 else {})
    t = CompareTimings(n=64)
    assert t._results.rows[0][:2] == ["Far GPU", {"badge": "RECORDED"}]
    t.run(wait=True)
    assert [row[1]["badge"] for row in t._results.rows] == ["MEASURED", "MEASURED", "RECORDED"]
    assert "not compared" in t._results.rows[2]
    assert "RECORDED on Far GPU" in str(t._picture.outputs[0]["data"])
    t.set(recorded=False)
    assert len(t._results.rows) == 2
    t.set(recorded=True, n=128)
    assert len(t._results.rows) == 3  # the recorded row belongs to the result shown, not to the controls


def test_two_recordings_of_one_processor_are_told_apart(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has its recording's name beside the processor's; one that is alone has the device's name."""
    twice = Evidence.recorded(dataclasses.replace(devices.environment("cpu"), device="A CPU"), samples=9)
    alone = Evidence.recorded(dataclasses.replace(devices.environment("cpu"), device="A GPU"), samples=9)
    far = {"old": measured("cpu", 0.002, twice), "new": measured("cpu", 0.001, twice), "gpu": measured("cuda:0", 0.001, alone)}
    monkeypatch.setattr(compare_timings, "recorded", lambda workload, n, dtype: far)
    assert [row[0] for row in CompareTimings(n=64)._results.rows] == ["A CPU, old", "A CPU, new", "A GPU"]


def test_a_damaged_recording_is_told_and_hides_nothing_else(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The instrument opens and measures though a recording cannot be read, and its sentence stands in the message."""

    def damaged(*arguments: Any) -> None:
        raise RecordingError("far.json: damaged; expected a recording. Delete it.")

    monkeypatch.setattr(compare_timings, "recorded", damaged)
    monkeypatch.setattr(recordings, "names", lambda: ("far",))
    monkeypatch.setattr(recordings, "load", damaged)
    t = CompareTimings()
    assert "far.json: damaged" in t._results.message
    t.run(wait=True)
    assert len(t._results.rows) == 2


def test_size_and_format_follow_the_workload() -> None:
    """Choosing another workload offers its own sizes and formats and takes a size of its own catalogue."""
    t = CompareTimings()
    for name in workloads.names():
        spec = workloads.get(name)
        t.set(workload=name)
        assert t.values["n"] in spec.sizes
        assert t.values["dtype"] in spec.dtypes
        assert t._panel.spec[2]["options"] == list(spec.dtypes)
        workloads.get(name)(n=t.values["n"], dtype=t.values["dtype"])


@pytest.mark.parametrize("bad", [{"workload": "magic"}, {"n": 0}, {"n": -3}, {"n": float("nan")}, {"dtype": "float3"}, {"deadline": 3}])
def test_bad_values_are_refused_in_words(bad: dict[str, Any]) -> None:
    """Unknown names and impossible sizes raise one sentence from Python and change nothing."""
    t = CompareTimings()
    before = dict(t.values)
    with pytest.raises(InputError, match="expected"):
        t.set(**bad)
    assert t.values == before


def test_a_size_that_does_not_fit_is_told_inside() -> None:
    """The core's own refusal of a size shows as the instrument's error; the instrument stays usable."""
    t = CompareTimings(workload="matmul", n=2**30)
    t.run(wait=True)
    assert t.result is None
    assert t.error != ""
    assert "Traceback" not in t.error
    assert not t.running


def test_the_break_even_is_shown_with_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second button seeks the break-even, shows it, and the view turns back to the times by its radio buttons."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    found = BreakEven("matmul float32", 80, "found", "The accelerator wins from 80 on.", rows, (), Evidence.modelled("a link", "a book"))
    seen: dict[str, Any] = {}

    def break_even(workload: str, **arguments: Any) -> BreakEven:
        seen.update(arguments, workload=workload)
        return found

    monkeypatch.setattr(transfer, "break_even", break_even)
    t = CompareTimings(workload="matmul", deadline=2.0, against="model")
    t.run("break_even", wait=True)
    assert (seen["workload"], seen["processor"], seen["deadline"]) == ("matmul", "nvidia-h200", 20.0)
    assert seen["link"].bandwidth_bytes_per_second == 26.5e9  # half of the 53 GB/s that nvbandwidth reaches from pinned memory
    assert t.values["view"] == "break_even"
    assert t._panel.values["view"] == 1
    assert t._results.message == "The accelerator wins from 80 on."
    assert [row[0] for row in t._results.rows] == ["64", "128"]
    assert t.code.startswith(
        'import gpulab as gl\n\nb = gl.transfer.break_even("matmul", dtype="float32", link=gl.transfer.link("pcie5-x16", memory="pageable")'
    )
    names: dict[str, Any] = {}
    exec(t.code, names)
    assert seen["link"] == transfer.link("pcie5-x16", memory="pageable")
    t.set(n=128)  # a break-even does not depend on the one size, but on the format
    assert "controls have moved" not in t._results.message
    t.set(dtype="float64")
    assert t._results.message.startswith("The controls have moved since this was made: press Find break-even")
    t.set(view="run")
    assert t._results.message.startswith("Press Run")


def test_with_an_accelerator_the_devices_can_be_chosen(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device is a check box, at least one stays ticked, and the break-even is sought against the live accelerator."""

    class Accelerator:
        name, is_cpu = "Fast GPU", False

        def __str__(self) -> str:
            return "cuda:0"

    monkeypatch.setattr(devices, "available", lambda: (devices.Device("cpu"), Accelerator()))
    t = CompareTimings(n=64)
    t.run(wait=True)
    assert "devices" not in calls[-1]
    t.set(devices=["cuda:0"])
    t.run(wait=True)
    assert calls[-1]["devices"] == ["cuda:0"]
    assert 'devices=["cuda:0"]' in t.code
    with pytest.raises(InputError, match="at least 1"):
        t.set(devices=[])
    assert t.values["against"] == "cuda:0"
    t.set(view="break_even")
    assert 'device="cuda:0"' in t.code


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(CompareTimings())
