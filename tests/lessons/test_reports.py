"""Reports: what a student hands in, what reading it refuses, and what a class shows."""

import json
import os
import platform
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from course import HERE
from gpulab import cli, lessons
from gpulab.errors import InputError, RecordingError
from gpulab.lessons import StudentReport
from gpulab.timing import measure
from students import changed, report_of, write

from texts import table_text

SOLVED = """def weights(source, wide, kernel, side):
    return source * wide * kernel**2, source * wide * side**4
"""


def clocked() -> Any:
    """A measurement of 2 ms a call, by a clock of its own."""
    now = [0.0]

    def call() -> None:
        now[0] += 2e-3

    return measure(
        call, device="cpu", clock=lambda: now[0], deadline=0.5, nbytes=8_000_000, label="mine"
    )


def test_a_report_holds_what_was_done(tmp_path: Path, approved: Any, capsys: Any) -> None:
    """First answers, measurements, states, attempts, answers; the file reads back the same."""
    for id, answer in (("9.1", 1), ("00.1", 5), ("00.1", 6), ("00.1", 7)):
        lessons.predict(id, "How long?", unit="us").submit(answer)
    lessons.reveal("00.1", 8e-6, evidence=HERE)
    for id, answer in (("02.8", 1), ("02.8", 16), ("02.8", 1), ("02.5", clocked)):
        lessons.check(id, answer)
    lessons.check("00.5", clocked())
    names: dict[str, Any] = {}
    exec(compile(SOLVED, "<lost>", "exec"), names)
    lessons.check("07.10", names["weights"])  # its source is not available
    assert [lessons.hint("02.5"), lessons.solution("02.5"), lessons.hint("02.2")] == [None] * 3
    capsys.readouterr()
    made = lessons.report(" Anna\t \nBerg\x07\u202e ", measure=False)
    file = lessons.write_report(made, tmp_path / "sub" / "a.json")
    assert lessons.read_report(file).to_dict() == made.to_dict()
    said = re.sub(
        r"this machine \(.*?, versions", "this machine (..., versions", capsys.readouterr().out
    )
    said = said.replace(str(tmp_path), "HERE")
    table = [row for row in made.table()[1] if row[0].startswith(("name", "pred", "exer"))]
    kept = {
        check.id: (check.state, check.attempts, check.hints, check.solution_shown)
        for check in made.checks
    }
    one = next(check.kept["value"]["v"] for check in made.checks if check.id == "00.5")
    parts = [
        re.sub(r"\(\d+ kB\)", "(... kB)", said),
        *map(str, table),
        str(kept),
        str(made.predictions),
        one["label"],
        f"{one['median_seconds']:.4g}",
    ]
    assert "\n".join([*parts, ""]) == approved


def test_a_notebook_alone_and_no_progress_at_all(progress_file: Path) -> None:
    """A report can be of one notebook; wrong names, notebooks and progress files are refused."""
    for id, answer in (("02.8", 16), ("03.10", 5)):
        lessons.check(id, answer)
    lessons.predict("9.1", "Mine?").submit(5)
    made = lessons.report(notebook="02_data_transfer", measure=False)
    assert (made.notebook, [c.id for c in made.checks], made.predictions) == ("02", ["02.8"], ())
    bare = lessons.report(measure=False, progress=False)
    assert (bare.checks, bare.predictions, bare.roofs, bare.machine.doctor["python"]) == (
        (),
        (),
        (),
        "ok",
    )
    for wrong in (
        {"notebook": "77"},
        {"notebook": "0"},
        {"notebook": None},
        {"name": "x" * 101},
        {"name": 5},
    ):
        with pytest.raises(InputError):
            lessons.report(measure=False, **wrong)  # type: ignore[arg-type]
    progress_file.write_bytes(progress_file.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"progress\.json"):
        lessons.report(measure=False)


@pytest.mark.slow
def test_the_roofs_of_this_machine_are_measured() -> None:
    """The rates of the report become the roofs that the class draws, with the badge RECORDED."""
    made = lessons.report(progress=False)
    roof = made.rooflines()[0]
    rates = made.roofs[0]
    # a processor adds numbers of 4 bytes faster than its main memory sends them
    assert (
        roof.arithmetic_roof("float32").flops_per_second
        == rates.flops_per_second["float32"]
        > min(rates.bytes_per_second.values()) / 4
    )
    assert {m.bytes_per_second for m in roof.memory} == set(rates.bytes_per_second.values())
    assert (str(roof.evidence.badge), roof.evidence.command) == ("RECORDED", "gpulab report")


def test_a_report_names_no_user_host_or_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """No report contains user, host or home, also if they are in a self-built kernel's release; if
    an answer contains them, a warning says so.
    """
    home = tmp_path / "home-of-annabel77"
    home.mkdir()
    for name, value in (("HOME", str(home)), ("USER", "annabel77"), ("LOGNAME", "annabel77")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: "anna-laptop-9.example")
    monkeypatch.setattr(platform, "release", lambda: "6.1.0-annabel77")
    monkeypatch.chdir(home)
    lessons.check("00.5", clocked())
    assert cli.main(["report", "--name", "Anna B.", "--no-measure", "--out", "out/mine.json"]) == 0
    text = (home / "out" / "mine.json").read_text(encoding="utf-8")
    assert not [
        secret for secret in ("annabel77", "anna-laptop-9", str(tmp_path)) if secret in text
    ]
    assert "Check it before you send it" not in capsys.readouterr().out
    lessons.check("02.8", "by annabel77 on anna-laptop-9")
    lessons.check("03.10", ("lines", f"{home}/x"))
    lessons.write_report(lessons.report(measure=False), "mine.json")
    out = capsys.readouterr().out
    assert re.findall(r"send it: ([\w' ]+) appears in (?:answer )?(\d\d\.\d+)", out) == [
        ("your user name", "02.8"), ("your user name", "03.10"), ("this machine's name", "02.8"),
        ("your home folder", "03.10"),
    ]  # fmt: skip


def test_the_command_names_its_files(tmp_path: Path, approved: Any, capsys: Any) -> None:
    """The file has the student's name, in any alphabet."""
    names = (
        "",
        "Anna Berg",
        "anna  berg",
        "Anna-Berg",
        "Zoë",
        "李小龙",
        "a" * 41,
        "../../x",
        "C:\\x",
        "\U00020000" * 60,
    )
    for number, name in enumerate(names):
        (tmp_path / str(number)).mkdir()
        os.chdir(tmp_path / str(number))
        extra = {0: ["--doctor-only"], 1: ["--notebook", "02"]}.get(number, [])
        assert cli.main(["report", "--no-measure", "--name", name, *extra]) == 0
        (file,) = Path.cwd().iterdir()
        assert len(file.name.encode()) < 200
        print("FILE", ascii(name)[:50], ascii(file.name))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FILE")]
    assert "\n".join([*lines, ""]) == approved


@pytest.mark.parametrize("own", [True, False])
def test_the_progress_of_the_working_copy_is_taken_where_there_is_no_other(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside my-notebooks, its progress is read, unless the working folder has its own."""
    for there, answer in (("my-notebooks", 16), (".", 1)):
        if own or there != ".":
            monkeypatch.setenv(
                "GPULAB_PROGRESS", str(tmp_path / there / ".gpulab" / "progress.json")
            )
            lessons.check("02.8", answer)
    monkeypatch.delenv("GPULAB_PROGRESS")
    assert cli.main(["report", "--no-measure", "--out", "r.json"]) == 0
    assert [c.state for c in lessons.read_report("r.json").checks] == ["wrong" if own else "passed"]


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    """Afterwards the file is one whole report and nothing else is left; a folder is refused."""
    reports = [StudentReport.from_dict(report_of(1, f"Student {k}", {})) for k in range(4)]
    file = tmp_path / "out" / "same.json"
    threads = [
        threading.Thread(target=lessons.write_report, args=(each, file, lambda text: None))
        for each in reports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lessons.read_report(file).name in {each.name for each in reports}
    assert [each.name for each in file.parent.iterdir()] == ["same.json"]
    with pytest.raises(InputError):
        lessons.write_report(reports[0], tmp_path)


def bad_files() -> dict[str, str | bytes]:
    """Damaged and hostile files."""
    good = report_of(3)
    text = json.dumps(good)
    nested = text.replace('"kept"', '"HERE": ' + "[" * 50_000 + "]" * 50_000 + ', "kept"', 1)
    first = good["predictions"][0]
    return {
        "cut off": text[:-200], "empty": "", "picture": b"\x89PNG\r\n\x1a\n\x00\xff\xfe",
        "list": "[1, 2, 3]",
        "progress": '{"schema": "gpulab-progress", "schema_version": 1}', "deep": "[" * 200_000,
        "deep inside": nested,
        "latin": json.dumps(changed(good, "name", value="Zoë"),
        ensure_ascii=False).encode("latin-1"),
        "nan": text.replace('"cores": 24', '"cores": NaN'), "overflow": text.replace('"cores": 24',
        '"cores": 1e999'),
        "huge": text.replace('"cores": 24', f'"cores": {"9" * 5000}'), "giant": b" " * (9 * 2**20),
        **{
            name: json.dumps(changed(good, *path, value=value))
            for name, path, value in (
                ("wrong type", ("machine", "cores"), "eight"), ("no machine", ("machine",), None),
                ("yesterday", ("date",), "yesterday"),
                ("no zone", ("date",), "2026-03-01T10:00:00"), ("future", ("date",),
                "9999-01-01T00:00:00+00:00"),
                ("two of one", ("predictions",), [first, first]), ("newer", ("schema_version",),
                99), ("long name", ("name",), "A" * 50_000),
                ("no rate", ("roofs", 0, "flops_per_second", "float32"), "nan"), ("slow rate",
                ("roofs", 0, "bytes_per_second", "DRAM"), 0.5),
                ("no device", ("roofs", 0, "device"), ""), ("no cores", ("machine", "cores"), 0),
                ("memory", ("machine", "memory_bytes"), 2**61),
                ("half", ("predictions", 0, "question"), "How \udc00 long?"), ("half key",
                ("machine", "libraries", "\ud800"), "3"),
                ("escape", ("machine", "libraries", "\x1b[2J\x1b[31mOWNED"), 3), ("long key",
                ("machine", "libraries", "k" * 50_000), 3),
                ("negative", ("checks", 0, "attempts"), -5),
                ("hints", ("checks", 0, "hints"), 10**6 + 1), ("state", ("checks", 0, "state"),
                "perfect"),
                ("below zero", ("predictions", 0, "predicted"), -1.0), ("large answer", ("checks",
                0, "kept"), "x" * 200_000),
                ("many", ("checks",), [{**good["checks"][0],
                "id": f"90.{k}"} for k in range(1001)]), ("extra", ("surprise",), 5),
            )
        },
    }  # fmt: skip


def test_each_bad_file_costs_one_sentence(tmp_path: Path, approved: Any) -> None:
    """The sentence is printable and short; a good file is read; links and pipes are skipped."""
    for name, text in bad_files().items():
        write(tmp_path / "class", f"{name}.json", text)
    for name, text in {
        # a measured difference may be negative; Windows' own tools write in UTF-16
        "GOOD.JSON": json.dumps(
            changed(report_of(3), "predictions", 0, "measured", value=-1.0)
        ).encode("utf-16"),
        # what systems put beside a file, and what tools keep
        **dict.fromkeys(("._good.json", ".kept/good.json"), report_of(3, "Twice")),
        **{f"inside/{k}.txt": "no report" for k in range(6)},
    }.items():
        write((tmp_path / "class" / name).parent, Path(name).name, text)
    secret = write(tmp_path, "secret.json", report_of(1))
    (tmp_path / "class" / "link.json").symlink_to(secret)
    (tmp_path / "class" / "linked").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "class" / "pipe.json")
    room = lessons.classroom(tmp_path / "class")
    assert [each.name for each in room.students] == ["Student 03"]
    assert all(sentence.isprintable() and 20 < len(sentence) <= 400 for _, sentence in room.refused)
    text = table_text(room.problems._repr_html_())
    assert re.sub(r"not JSON \(.*?\);", "not JSON (...);", text) == approved
    with pytest.raises(RecordingError):
        lessons.read_report(tmp_path / "none.json")
    for wrong in (tmp_path / "none", 5, "\0", "~nosuchuser/x"):
        with pytest.raises(InputError):
            lessons.classroom(wrong)  # type: ignore[arg-type]


def the_class(folder: Path) -> lessons.Classroom:
    """Students right and wrong, several files of some of them, and a broken one."""
    weights = {"07.10": SOLVED, "02.8": "chunks = 1"}
    for number in range(5):
        write(folder, f"{number}.json", report_of(number, None, None if number % 2 else weights))
    write(folder, "a.json", report_of(1, "Anna Berg", {"02.8": "chunks = 16"}, notebook="02"))
    write(
        folder,
        "b.json",
        changed(
            changed(
                report_of(2, " anna  BERG", {"02.8": "chunks = 1"}, notebook="02"),
                *("checks", 0, "attempts"),
                value=9,
            ),
            *("checks", 0, "solution_shown"),
            value=True,
        )
        | {"date": "2026-03-02T09:00:00-05:00"},  # four hours after a.json
    )
    write(  # without roofs, on another machine than the two before
        folder,
        "c.json",
        report_of(
            3, "Anna Berg", {"03.10": "explained = 5"}, notebook="03", predictions=[], roofs=[]
        ),
    )
    write(folder / "inside", "d.json", report_of(8, "Student 03", {}, predictions=[], roofs=[]))
    write(
        folder,
        "e.json",
        changed(  # 00.1 is predicted, but not measured, and its text is another one
            report_of(4, "", {"02.8": "chunks = 1"}, gpulab_version="0.0.9"),
            *("predictions", 0),
            value={
                **report_of(4)["predictions"][0],
                **{"measured": None, "measured_text": "", "question": "Another?"},
            },
        ),
    )
    write(folder, "f.json", "{}")
    return lessons.classroom(folder, same_name="later")


def test_what_a_class_shows(tmp_path: Path, approved: Any) -> None:
    """Who is there, what is wrong with the files, and what the class predicted and answered."""
    room = the_class(tmp_path / "class")
    tables = (room, room.problems, room.questions(), room.misconceptions(), room.exercises())
    text = "\n".join(f"{table!r}\n{table_text(table._repr_html_())}" for table in tables)
    roofs = [
        f"{roof.device} {roof.device_kind} {roof.ridge_flops_per_byte('float32'):g}"
        for student in room.students
        for roof in student.report.rooflines()[:1]
    ]
    assert "\n".join([text, *roofs, room.caption(), ""]) == approved
    one = next(each for each in room.students if each.name == "Student 03").report
    assert table_text(one._repr_html_()) == approved(name="one report")


NAMES = (
    "<script>alert(1)</script>", '=HYPERLINK("http://x","y")', "+1+1", "-2", "@SUM(A1)",
    "Anna \u202e\x07Berg", '"><img src=x onerror=alert(1)>',
    "Anna;=1+1", 'Anna;"@SUM(A1)"', "Anna;－1", "Anna; Ben",
)  # fmt: skip


def test_a_name_is_text_wherever_it_is_shown(tmp_path: Path, approved: Any) -> None:
    """In HTML no name becomes mark-up; in CSV none begins a formula, also after a semicolon."""
    for number, name in enumerate(NAMES):
        write(
            tmp_path / "class",
            f"={number}.json",
            changed(report_of(1, "x", {}), "name", value=name),
        )
    room = lessons.classroom(tmp_path / "class")
    assert not [bad for bad in ("<script", "<img", "\u202e", "\x07") if bad in room._repr_html_()]
    rows = lessons.grade(room, lessons.Rubric(notebooks=("02",)), run_code=False).csv()
    for row in rows.splitlines()[1:]:
        pieces = [piece.lstrip(' "') for piece in re.split(r"[,;]", row)]
        assert not [piece for piece in pieces if piece.startswith(("=", "+", "-", "@", "－"))]
    assert "".join(f"{row.split(',json')[0][:60]}\n" for row in rows.splitlines()) == approved


@pytest.mark.slow
def test_the_class_command(tmp_path: Path, approved: Any, capsys: Any) -> None:
    """It prints the tables and writes the points; what cannot work is refused first."""
    folder = tmp_path / "class"
    the_class(folder)
    rubric = write(tmp_path, "rubric.json", '{"exercise_points": 2, "notebooks": ["02"]}')
    assert cli.main(["class", str(folder)]) == 0
    assert (
        cli.main(
            [
                "class",
                str(folder),
                "--grades",
                str(tmp_path / "g.csv"),
                "--rubric",
                str(rubric),
                "--no-code",
                *("--same-name", "later"),
            ]
        )
        == 0
    )
    text = "".join(capsys.readouterr()).replace(str(tmp_path), "HERE").replace("\r", "\n")
    assert text + (tmp_path / "g.csv").read_text(encoding="utf-8") == approved
    for words in (["--no-code"], ["--rubric", str(rubric)], ["--grades", str(tmp_path)]):
        assert cli.main(["class", str(folder), *words]) != 0
    assert "passed" not in capsys.readouterr().out
    resource = pytest.importorskip("resource")  # Windows has none
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9, limits[1]))  # as on a disk that is full by then
    try:
        full = cli.main(["class", str(folder), "--grades", str(tmp_path / "f.csv"), "--no-code"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert full != 0
    assert "student,file,points" in capsys.readouterr().out


def test_the_end_of_a_long_path_is_shown(tmp_path: Path) -> None:
    """In a platform's archive, all paths begin with the same long name."""
    for part in "ab":
        write(tmp_path / ("x" * 120) / part, "d.json", report_of(1, "Ann", {}))
    room = lessons.classroom(f"~/{os.path.relpath(tmp_path, Path.home())}")
    assert [student.name[-10:] for student in room.students] == ["/a/d.json)", "/b/d.json)"]


def test_different_reports_with_one_name_are_not_merged(tmp_path: Path) -> None:
    """Different reports with one name get no points until the instructor decides about them."""
    doubtful = {
        "Anna": ("a/1.json", "b/1.json"),
        "Ben": ("1.json", "2.json"),
        "Cem": ("c/1.json", "c/2.json"),
    }
    # Dana's two reports are from one student: their folder holds no other name. Fay's folder has
    # the same name as Dana's, below her own.
    for name, files in {
        **doubtful,
        **{"Eve": ("c/3.json",), "Fay": ("f/files/1.json",)},
        "Dana": ("d/files/1.json", "d/files/2.json"),
    }.items():
        for day, file in enumerate(files):
            made = report_of(day, name, {"02.8": f"chunks = {1 if day else 16}"})
            # a prediction of the student's own may have an exercise's number
            write(
                (tmp_path / "class" / file).parent,
                Path(file).name,
                {**made, "predictions": [{**made["predictions"][0], "id": "02.8"}]},
            )

    def points(**options: str) -> dict[str, float]:
        room = lessons.classroom(tmp_path / "class", **options)
        rules = lessons.Rubric(prediction_points=0.0, notebooks=("02",), open_share=1.0)
        return {each.name: each.points for each in lessons.grade(room, rules).students}

    apart = {
        f"{name} ({file})": 1.0 - k for name in doubtful for k, file in enumerate(doubtful[name])
    }
    assert points() == {**dict.fromkeys(apart, 0.0), "Dana": 0.0, "Eve": 1.0, "Fay": 1.0}
    assert points(same_name="apart") == {**apart, "Dana": 0.0, "Eve": 1.0, "Fay": 1.0}
    assert points(same_name="later") == {
        **dict.fromkeys(doubtful, 0.0),
        "Dana": 0.0,
        "Eve": 1.0,
        "Fay": 1.0,
    }
    with pytest.raises(InputError):
        lessons.classroom(tmp_path / "class", same_name="both")
