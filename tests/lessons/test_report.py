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
from gpulab._html import _pages
from gpulab.devices import Accelerator
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.lessons import _class_reading, _report
from gpulab.lessons._report_command import _default, _find_progress
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


@pytest.mark.parametrize(
    "source",
    [
        f"{USER} = 5\n",
        f'def f():\n    """Mine.\n\n{USER}, group 3\n"""\n',
        f"x = 5\t\t\n\t# see\n\t\t{USER}",
        rf"C:\\Users\\{USER}\\x",
        rf"C:\Users\{USER}\x",
    ],
)
def test_a_name_is_found_wherever_it_stands_in_a_text(planted: pathlib.Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """At the beginning of a line too, behind a tab, and a home folder with the backslashes of Windows."""
    monkeypatch.setattr(_report, "_home", lambda: rf"C:\Users\{USER}")
    one = dataclasses.replace(made_class.report_of(3).checks[0], id="00.1", kept={"kind": "file", "text": source}, seen=None)
    made = made_class.report_of(3, "Anna", (one,), predictions=())
    wanted = ["your user name", *(["your home folder"] if "Users" in source else [])]
    assert _report.traces(made) == [(what, "answer 00.1") for what in wanted]


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


def test_what_a_report_holds_in_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers that go along, one of them as source, one that is missing, and the user's name of four letters in a question."""
    monkeypatch.setattr(_report, "_user", lambda: "anna")
    monkeypatch.setattr(socket, "gethostname", lambda: "pc1.example")
    monkeypatch.setattr(_report, "_home", lambda: "")
    one = made_class.report_of(3).checks[0]
    checks = tuple(
        dataclasses.replace(one, id=id, kept=kept)
        for id, kept in (
            ("00.1", {"kind": "value", "value": 5}), ("00.2", {"kind": "code", "source": "pc1"}), ("00.3", {"kind": "nothing"}),
            ("00.4", None),
        )
    )  # fmt: skip
    asked = dataclasses.replace(made_class.report_of(3).predictions[0], id="00.9", question="How long, anna?", predicted_text="Annabel")
    made = made_class.report_of(3, "Anna", checks, predictions=(asked, dataclasses.replace(asked, question="", predicted=None)))
    assert _report.contents(made) == [
        "In it: the name 'Anna'; this machine (NVIDIA GeForce RTX 4070, versions of its libraries, what gpulab doctor looked at, its "
        "roofs); 1 prediction; 4 checked exercises, 2 with your answer.",
        "Not in it: your user name, this machine's name, paths, serial numbers.",
        "The source of your answers goes along, with what you wrote into it: 00.2.",
        "Without your answer, so not graded from it: 00.3.",
    ]
    assert _report.traces(dataclasses.replace(made, predictions=(asked,))) == [("your user name", "prediction 00.9")]
    assert "no name" in _report.contents(dataclasses.replace(made, name=""))[0]


def test_a_report_shows_what_is_in_it() -> None:
    """One row a part; and what stands for it in text."""
    one = made_class.report_of(3)
    asked = dataclasses.replace(one.predictions[0], id="00.1", predicted_text="5.00 us", measured_text="")
    checks = tuple(dataclasses.replace(one.checks[0], id=id, state="passed", attempts=n) for id, n in (("02.2", 1), ("02.5", 2)))
    made = dataclasses.replace(one, name="", predictions=(asked,), checks=checks)
    assert made.table()[1] == [
        ("name", "(none)"), ("date", "2026-03-04T10:00:00+00:00"), ("machine", "AMD Ryzen 9 5900X"), ("device", "NVIDIA GeForce RTX 4070"),
        ("memory", "32.0 GiB"), ("prediction 00.1", "5.00 us; answer: not shown"), ("exercise 02.2", "passed, 1 attempt"),
        ("exercise 02.5", "passed, 2 attempts"),
    ]  # fmt: skip
    assert repr(made) == "<report of nobody named, 2026-03-04: NVIDIA GeForce RTX 4070, 1 prediction, 2 checks>"
    assert dataclasses.replace(one, roofs=(dataclasses.replace(one.roofs[0], bytes_per_second={}),)).rooflines() == ()


def test_what_a_progress_file_says_is_taken_as_far_as_it_can_be() -> None:
    """A whole entry; texts up to 400 characters, names up to 100; a truth value is no number and no count; own ids up to 40 characters."""
    entry = {
        "question": "x" * 401, "first": {"value": 5, "text": "5 us"}, "later": [1, 2],
        "revealed": {"value": "y" * 401, "text": 7, "verdict": "off", "badge": "MEASURED"},
    }  # fmt: skip
    assert _report._prediction("00.1", entry) == made_class.ReportedPrediction(
        "00.1", "x" * 400, 5.0, "5 us", "y" * 400, "", "off", "MEASURED", 2
    )
    assert _report._value(True) is None
    assert _report._check("00.2", {"state": "wrong", "attempts": True, "hints": 3, "kept": {"kind": "value"}, "solution_shown": 1}) == (
        made_class.ReportedCheck("00.2", "wrong", 0, 3, False, {"kind": "value"}, None)
    )
    assert _report._check("00.2", {"state": 5, "kept": {}}).kept is None
    entries = {"x" * 40: {}, "x" * 41: {}, "02.1": {}, "00.1": {}, "00.2": 5}
    assert _report._of(entries, ["00.1", "00.2", "02.1"], "") == ["00.1", "02.1", "x" * 40]
    assert _report._of(entries, ["00.1"], "00") == ["00.1"]
    assert _report._name("x" * 100) == "x" * 100
    assert _report._name(" Anna\t \nBerg\x07\u202e\x1b ") == "Anna Berg"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], (True, True, "gpulab-report.json")),
        (["--no-measure"], (False, True, "gpulab-report.json")),
        (["--doctor-only"], (False, False, "gpulab-doctor.json")),
        (["--name", "Anna", "--notebook", "02", "--out", "x.json"], (True, True, "x.json")),
    ],
)
def test_what_the_options_ask_for(words: list[str], asked: tuple[bool, bool, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Roofs are measured unless one option says not to; progress goes along unless only the doctor is asked."""
    got: list[Any] = []

    def report(name: str, notebook: str, measure: bool, progress: bool) -> StudentReport:
        got.append((name, notebook, measure, progress))
        return made_class.report_of(1, name)

    monkeypatch.setattr(_report, "report", report)
    monkeypatch.setattr(_report, "write_report", lambda made, path: got.append(str(path)))
    assert cli.main(["report", *words]) == 0
    named = ("Anna", "02") if "--name" in words else ("", "")
    assert got == [(*named, *asked[:2]), asked[2]]


def test_the_file_of_a_long_name_is_cut_and_told_apart() -> None:
    """40 characters, and four of the SHA-256 of the whole name (by sha256sum); at most 160 bytes of it where each character takes four."""
    assert _default("a" * 40) == f"gpulab-report-{'a' * 40}.json"
    assert _default("a" * 41) == f"gpulab-report-{'a' * 40}-c0f8.json"
    assert len(_default("\U00020000" * 60).encode()) == len("gpulab-report-") + 160 + len("-0000.json")


@pytest.mark.parametrize(("own", "named", "copied"), [(True, False, True), (False, True, True), (False, False, False)])
def test_the_progress_of_another_folder_is_never_taken_unasked(
    own: bool, named: bool, copied: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where this folder has its own, where a file is named, or where the working copy has none, that is what is read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPULAB_PROGRESS")
    here = tmp_path / ".gpulab" / "progress.json"
    for there, wanted in ((here, own), (tmp_path / "my-notebooks" / ".gpulab" / "progress.json", copied)):
        if wanted:
            there.parent.mkdir(parents=True)
            there.write_text("{}")
    if named:
        here = tmp_path / "named.json"
        monkeypatch.setenv("GPULAB_PROGRESS", str(here))
    _find_progress()
    words = "Your progress is read from" if own else "There is no progress at"
    assert capsys.readouterr().out.startswith(f"{words} {here}")


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


def test_a_report_can_be_read_by_who_sends_it(tmp_path: pathlib.Path) -> None:
    """A line an item with a space before what lies in it, letters as they are; its size in thousands of bytes is told."""
    said: list[str] = []
    file = lessons.write_report(made_class.report_of(1, "Zoë"), tmp_path / "r.json", say=said.append)
    text = file.read_text(encoding="utf-8")
    assert text.splitlines()[:2] == ["{", ' "schema": "StudentReport",']
    assert ' "name": "Zoë",' in text.splitlines()
    assert said[0] == f"Wrote {file} ({round(len(text) / 1000)} kB)."


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in the file's place: exit code 2, the reason, and what to do."""
    assert cli.main(["report", "--no-measure", "--out", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_home_is_written_out_where_a_shell_does_not(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves the ~ of --out=~/file as it is, and a cell has no shell: nothing is written into a folder called ~."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir(), here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(here)
    assert cli.main(["report", "--no-measure", "--out=~/reports/r.json"]) == 0
    (home / "rubric.json").write_text('{"notebooks": ["02"]}')
    assert cli.main(["class", "~/reports", "--grades=~/g.csv", "--rubric=~/rubric.json"]) == 0
    lessons.grade(lessons.classroom("~/reports")).write_csv("~/more.csv")
    assert cli.main(["nbgrader", "--out=~/course", "--notebook", "02"]) == 0
    asked: list[Any] = []

    def written(source: pathlib.Path, out: pathlib.Path, **named: Any) -> _pages.Written:
        asked.append((source, out, named["executed"]))
        return _pages.Written(out, 0, 0, 0.0)

    monkeypatch.setattr(_pages, "write_course", written)
    assert cli.main(["html", "--out=~/pages", "--notebooks=~/n", "--executed=~/e"]) == 0
    assert asked == [(home / "n", home / "pages", home / "e")]
    assert sorted(each.name for each in home.iterdir()) == ["course", "g.csv", "more.csv", "reports", "rubric.json"]
    assert [each.name for each in here.iterdir()] == []
    with pytest.raises(InputError, match="begins with the home of a user that is not here"):
        lessons.Rubric.read("~nobody-of-this-name/r.json")


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
