"""What a student hands in: the machine, the predictions, the checks with their answers, and nothing that tells who or where."""

from __future__ import annotations

import dataclasses
import getpass
import json
import pathlib
import platform
import socket
import threading
from typing import Any

import made_class
import pytest

from gpulab import cli, devices, lessons
from gpulab.devices import Accelerator
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.lessons import _class_reading, _report
from gpulab.lessons._report_command import _default
from gpulab.lessons._report_schema import StudentReport

USER, HOST, HOME = "annabel77", "anna-laptop-9", "/home/annabel77"
SERIAL = "GPU-5c6f9a1e-0000-4bcd-9e11-abcdefabcdef"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A machine whose user, host, home, folder and GPU have names that must not go along."""
    folder = tmp_path / f"home-of-{USER}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USER", USER)
    monkeypatch.setenv("LOGNAME", USER)
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(platform, "node", lambda: HOST)
    monkeypatch.setattr(platform, "release", lambda: f"6.1-{HOST}")
    gpu = Accelerator(None, "NVIDIA A100", "cuda", mig=True, mig_slices=(SERIAL,))
    found = devices.gather()
    facts = dataclasses.replace(
        found, disk_path=f"{HOME}/course", accelerators=(gpu,), visible_devices=SERIAL,
        torch=dataclasses.replace(found.torch, error=f"cannot open {HOME}/lib/libcuda.so on {HOST}"),
    )  # fmt: skip
    monkeypatch.setattr(devices, "gather", lambda: facts)
    return folder


def work() -> None:
    """A student's predictions and checks: one of each kind of answer."""
    lessons.predict("00.1", "How long?", unit="us")
    lessons.answer("00.1", 5)
    lessons.reveal("00.1", 8e-6, evidence=Evidence.measured("A CPU"))
    lessons.check("02.8", 16)
    lessons.check("07.10", _weights)
    now = [0.0]
    lessons.check("00.5", _measured(now))


def _weights(source: int, wide: int, kernel: int, side: int) -> tuple[int, int]:
    return source * wide * kernel**2, source * side**2 * wide * side**2


def _measured(now: list[float]) -> Any:
    from gpulab.timing import measure

    def call() -> None:
        now[0] += 2e-3

    return measure(call, device="cpu", clock=lambda: now[0], deadline=0.5, nbytes=8_000_000, label="mine")


def test_nothing_tells_who_or_where(planted: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """User, host, home, folders and a GPU's UUID are planted where they could leak, and are not in the file; the typed name is."""
    work()
    capsys.readouterr()
    assert cli.main(["report", "--name", "Anna B.", "--no-measure", "--out", "out/mine.json"]) == 0
    text = (planted / "out" / "mine.json").read_text()
    for secret in (USER, HOST, HOME, SERIAL, str(planted), str(pathlib.Path.cwd()), str(pathlib.Path(__file__).parent)):
        assert secret not in text, secret
    assert '"name": "Anna B."' in text
    said = capsys.readouterr().out
    assert "Not in it: your user name" in said
    assert "The source of your answers goes along" in said
    assert "07.10" in said
    assert "Look before you send it" not in said


def test_what_a_student_wrote_into_an_answer_is_named(planted: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A function that holds a path goes along as it is, and the student is told where to look."""
    lessons.check("02.8", f"{USER}")
    made = lessons.report(measure=False)
    assert _report.traces(made) == [("your user name", "answer 02.8")]
    assert any("your user name stands in answer 02.8" in line for line in _report.contents(made))
    assert capsys.readouterr().out


def test_a_report_holds_what_was_done(tmp_path: pathlib.Path) -> None:
    """First answers, what was measured, states, attempts, answers and measurements, read back from the file."""
    work()
    lessons.check("02.8", 1)
    made = lessons.report("Anna", measure=False)
    file = lessons.write_report(made, tmp_path / "sub" / "a.json", say=lambda sentence: None)
    read = _class_reading.read_report(file)
    assert read.to_dict() == made.to_dict()
    (prediction,) = read.predictions
    assert (prediction.predicted, prediction.measured, prediction.badge) == (pytest.approx(5e-6), 8e-6, "MEASURED")
    checks = {check.id: check for check in read.checks}
    assert [(id, checks[id].state, checks[id].attempts) for id in sorted(checks)] == [
        ("00.5", "passed", 1), ("02.8", "passed", 2), ("07.10", "passed", 1),
    ]  # fmt: skip
    assert checks["02.8"].kept == {"kind": "value", "value": 16}
    assert checks["07.10"].kept["kind"] == "code"
    (measurement,) = read.measurements
    assert (measurement.id, measurement.label, measurement.median_seconds) == ("00.5", "mine", pytest.approx(2e-3))


def test_one_notebook_alone_and_no_progress_at_all() -> None:
    """--notebook takes only its entries, --doctor-only none; an unknown notebook and a giant name are refused."""
    work()
    assert {c.id for c in lessons.report(notebook="02", measure=False).checks} == {"02.8"}
    bare = lessons.report(measure=False, progress=False)
    assert (bare.checks, bare.predictions) == ((), ())
    assert "roofs" not in _report.contents(bare)[0]  # none were measured, and none are said to be inside
    assert _report.contents(bare)[0].endswith("; 0 predictions; 0 checked exercises, 0 with your answer.")
    assert _report.contents(lessons.report(notebook="02", measure=False))[0].endswith("; 1 checked exercise, 1 with your answer.")
    assert bare.machine.doctor["python"] == "ok"
    assert lessons.report(notebook="02_data_transfer", measure=False).notebook == "02"
    for wrong in ({"notebook": "77"}, {"notebook": "0"}, {"notebook": "1"}, {"notebook": None}, {"name": "x" * 101}, {"name": 5}):
        with pytest.raises(InputError, match="report"):
            lessons.report(measure=False, **wrong)  # type: ignore[arg-type]


def test_the_roofs_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report's roofs are what gl.devices.ceilings gives, and become a recorded roofline whose ridge is their quotient."""
    from gpulab.devices import Ceilings, MemoryCeiling

    where = devices.environment("cpu")
    level = MemoryCeiling("DRAM", float("inf"), 10**8, 1e10, 2e10, 1.5e10)
    fake = Ceilings("A CPU", (level,), {"float32": 1e11, "float64": 5e10}, (), Evidence.measured("A CPU", 3), where)
    monkeypatch.setattr(devices, "default", lambda: devices.Device("cpu"))
    monkeypatch.setattr(devices, "ceilings", lambda device: fake)
    made = lessons.report()
    assert "its roofs)" in _report.contents(made)[0]
    (roof,) = made.rooflines()
    assert roof.ridge_flops_per_byte("float32") == 5.0
    assert roof.evidence.badge.value == "RECORDED"
    assert roof.evidence.command == "gpulab report"


def test_the_roofs_of_a_gpu_have_its_name_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU both it and the CPU are reported, each by its own name and kind, whatever the names say."""
    from gpulab.devices import Ceilings, MemoryCeiling

    cpu = dataclasses.replace(devices.environment("cpu"), device="AMD Ryzen 7 5700U with Radeon Graphics (16 cores)")
    gpu = dataclasses.replace(cpu, device="A Fast One", device_kind="cuda")
    level = MemoryCeiling("DRAM", float("inf"), 10**8, 1e10, 2e10, 1.5e10)

    def ceilings(device: devices.Device) -> Ceilings:
        where = cpu if device.is_cpu else gpu
        return Ceilings(str(device), (level,), {"float32": 1e11}, (), Evidence.measured(where.device, 3), where)

    monkeypatch.setattr(devices, "default", lambda: devices.Device("cuda"))
    monkeypatch.setattr(devices, "environment", lambda: gpu)
    monkeypatch.setattr(devices, "ceilings", ceilings)
    made = lessons.report()
    assert [(roof.device, roof.device_kind) for roof in made.rooflines()] == [(gpu.device, "cuda"), (cpu.device, "cpu")]


@pytest.mark.parametrize(("named", "kind"), [("cuda:0", "cuda"), ("cpu", "cpu")])
def test_roofs_of_an_earlier_report_keep_their_kind(named: str, kind: str) -> None:
    """They were called as torch calls a device."""
    made = lessons.report(measure=False)
    machine = dataclasses.replace(made.machine, device="A Fast One", device_kind="cuda")
    roofs = made_class.report_of(0).roofs[0]
    (roof,) = dataclasses.replace(made, machine=machine, roofs=(dataclasses.replace(roofs, device=named),)).rooflines()
    assert (roof.device_kind, roof.evidence.sentence.startswith("RECORDED")) == (kind, True)


def test_two_reports_at_once_leave_one_whole_file(tmp_path: pathlib.Path) -> None:
    """Four writers on one file: what is there afterwards is one of theirs, whole."""
    reports = [lessons.report(f"Student {k}", measure=False) for k in range(4)]
    file = tmp_path / "same.json"
    threads = [threading.Thread(target=_report.write_report, args=(each, file, lambda sentence: None)) for each in reports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _class_reading.read_report(file).name in {each.name for each in reports}
    assert [each.name for each in tmp_path.iterdir() if "same" in each.name] == ["same.json"]


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in the file's place: exit code 2, the reason, and what to do."""
    assert cli.main(["report", "--no-measure", "--out", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_progress_of_the_working_copy_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the folder above my-notebooks, the report takes the progress inside it and says so."""
    copy = tmp_path / "clone" / "my-notebooks"
    copy.mkdir(parents=True)
    monkeypatch.delenv("GPULAB_PROGRESS")
    monkeypatch.chdir(copy)
    lessons.check("02.8", 16)
    monkeypatch.chdir(tmp_path / "clone")
    assert cli.main(["report", "--no-measure", "--name", "Zoë Ångström"]) == 0
    monkeypatch.delenv("GPULAB_PROGRESS", raising=False)
    assert "my-notebooks" in capsys.readouterr().out
    (file,) = (tmp_path / "clone").glob("*.json")
    assert file.name == "gpulab-report-zoë-ångström.json"
    assert [check.id for check in _class_reading.read_report(file).checks] == ["02.8"]


def test_the_files_of_a_class_have_names_of_their_own() -> None:
    """Letters of any alphabet stay, composed or not; where something is lost a hash tells names apart; a doctor's file is another one."""
    names = ("Anna Berg", "Лена Иванова", "王芳", "Zoe\u0308", "O'Neil", "O.Neil", "☃", "☂", "a" * 99, "a" * 98, "")
    files = [_default(name) for name in names]
    assert files[:4] == [f"gpulab-report-{name}.json" for name in ("anna-berg", "лена-иванова", "王芳", "zo\u00eb")]
    assert files[-1] == "gpulab-report.json"
    assert len(set(files)) == len(names)
    assert _default("Anna Berg", "doctor") == "gpulab-doctor-anna-berg.json"
    assert all(len(file.encode()) < 255 for file in files)


def test_a_doctors_file_leaves_the_report_beside_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commands in one folder, under one name, write two files."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "--no-measure", "--name", "Anna"]) == 0
    assert cli.main(["report", "--doctor-only", "--name", "Anna"]) == 0
    assert {file.name for file in tmp_path.glob("gpulab-*.json")} == {"gpulab-report-anna.json", "gpulab-doctor-anna.json"}


def test_an_old_progress_file_without_answers_is_no_error(progress_file: pathlib.Path) -> None:
    """What was checked before answers were kept, or damaged by hand, is reported with the reason."""
    progress_file.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": "gpulab-progress", "schema_version": 1, "predictions": {"00.1": {"first": {"value": "x" * 9999}}}, "history": []}
    progress_file.write_text(json.dumps({**content, "exercises": {"02.8": {"state": "passed", "attempts": -3, "hints": "many"}}}))
    made = lessons.report(measure=False)
    assert made.checks[0].kept["kind"] == "nothing"
    assert (made.checks[0].attempts, made.checks[0].hints) == (0, 0)
    assert StudentReport.from_dict(json.loads(json.dumps(made.to_dict()))).to_dict() == made.to_dict()


@pytest.mark.parametrize("text", ['{"schema": "gpulab-pro', "[]", '{"schema": "another", "schema_version": 1}'])
def test_a_damaged_progress_file_is_no_empty_report(progress_file: pathlib.Path, text: str) -> None:
    """What reads as empty would be handed in as nothing done: the file is named, and stays as it is."""
    progress_file.parent.mkdir(parents=True, exist_ok=True)
    progress_file.write_text(text)
    with pytest.raises(InputError, match=r"report: your progress .*progress\.json is .*Check an answer again"):
        lessons.report(measure=False)
    assert progress_file.read_text() == text
    assert lessons.report(measure=False, progress=False).checks == ()
