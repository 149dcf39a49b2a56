"""A folder of reports: good ones are read, each bad one costs a sentence, and nothing in them is taken for mark-up or a formula."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import errno
import io
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from made_class import DAMAGED, HOSTILE, NAMES, check_of, make_class, report_of, write

from gpulab import cli, lessons
from gpulab.errors import InputError, RecordingError
from gpulab.lessons import _class_command, _class_reading, _classroom, _grades, content
from gpulab.lessons._grades import Grade, Grades, StudentGrades
from gpulab.lessons._report_schema import ReportedPrediction

BAD = {**DAMAGED, **HOSTILE}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """An empty folder for reports."""
    made = tmp_path / "reports"
    made.mkdir()
    return made


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_sentence(name: str, folder: pathlib.Path) -> None:
    """Each of two dozen damaged and hostile files is refused, in words that fit, and the good one beside it is read."""
    content, says = BAD[name]
    (folder / "bad.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    write(folder, "good.json", report_of(4))
    room = lessons.classroom(folder)
    assert [each.name for each in room.students] == ["Student 004"]
    assert [each.file for each in room.refused] == ["bad.json"]
    assert says in room.refused[0].sentence
    assert 20 < len(room.refused[0].sentence) <= 400
    assert room.refused[0].sentence.isprintable(), "a terminal would obey what a file says"


def test_a_file_at_the_very_depth_that_can_be_read_is_refused_like_a_deeper_one(folder: pathlib.Path) -> None:
    """Some depth is just parsed, and too deep for what is done to the answer next: every depth is read or refused, none ends the class."""
    plain = json.dumps({**report_of(1).to_dict(), "checks": [{**report_of(1).to_dict()["checks"][0], "kept": "HERE"}]})
    write(folder, "good.json", report_of(4))
    for depth in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit(), 3):
        (folder / "bad.json").write_text(plain.replace('"HERE"', "[" * depth + "]" * depth))
        assert "Student 004" in [each.name for each in lessons.classroom(folder).students]


def test_an_answer_may_be_nested_a_hundred_levels_deep() -> None:
    """Lists and objects in turn; one level more is more than any report has."""

    def nested(depth: int) -> Any:
        made: Any = []
        for level in range(1, depth):
            made = [made] if level % 2 else {"a": made}
        return made

    assert [_class_reading._is_deep(nested(depth)) for depth in (1, 100, 101)] == [False, False, True]
    assert not _class_reading._is_deep([[0] * 200, {str(k): k for k in range(200)}]), "wide is not deep"


def test_five_thousand_files_are_read_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that some were left is said."""
    for there, remarks in ((5000, []), (5001, ["Only the first 5,000 files were read; divide the folder."])):
        names = [f"{number}.json" for number in range(there)]
        monkeypatch.setattr(_class_reading.os, "walk", lambda root, onerror, names=names: [("room", [], names)])
        files, said = _class_reading._files(pathlib.Path("room"))
        assert (len(files), said) == (5000, remarks)


def test_folders_after_the_most_files_are_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a folder that lies in the last one of those that are read passed over."""
    walked: list[str] = []

    def walk(root: object, onerror: object) -> Any:
        for name, count in (("a", 5000), ("b", 1), ("c", 1)):
            walked.append(name)
            yield name, [], [f"{number}.json" for number in range(count)]

    monkeypatch.setattr(_class_reading.os, "walk", walk)
    assert len(_class_reading._files(pathlib.Path())[0]) == 5000
    assert walked == ["a", "b"]


def test_a_sentence_on_a_file_has_four_hundred_characters(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most: what a file holds may be told in it."""

    def refuse(path: object) -> Any:
        raise RecordingError("x" * 500)

    monkeypatch.setattr(_class_reading, "read_report", refuse)
    write(folder, "a.json", report_of(1))
    assert len(lessons.classroom(folder).refused[0].sentence) == 400


def test_a_clock_may_be_a_day_ahead_to_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of noon UTC, noon of the next day; two hours later in a zone that is two hours ahead."""

    class Clock(datetime.datetime):
        """A clock that stands."""

        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 3, 1, 12, tzinfo=tz)

    fake = SimpleNamespace(datetime=Clock, timezone=datetime.timezone)
    monkeypatch.setattr(_class_reading, "datetime", fake)
    for right in ("2026-03-02T12:00:00+00:00", "2026-03-02T14:00:00+02:00"):
        assert _class_reading._date_fault(right) == ""
    assert "is in the future" in _class_reading._date_fault("2026-03-02T12:00:01+00:00")


def test_a_folder_that_was_not_looked_into_is_said(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of students who keep theirs to themselves, and of links to folders: a class that lacks them must not look whole."""
    for name in ("anna", "berta"):
        (folder / name).mkdir()
        write(folder / name, "r.json", report_of(4, name.capitalize()))
    (folder.parent / "carl").mkdir()
    (folder / "carl").symlink_to(folder.parent / "carl", target_is_directory=True)
    scan = os.scandir

    def kept_back(path: str) -> Any:
        if pathlib.Path(path).name == "berta":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", kept_back)
    room = lessons.classroom(folder)
    assert [each.name for each in room.students] == ["Anna"]
    assert room.remarks == (
        "The folder berta cannot be opened (Permission denied), so what lies in it was not read.",
        "The folder carl is a link, which is not followed.",
    )


def test_links_pipes_and_giants_are_not_opened(folder: pathlib.Path) -> None:
    """A link to another file, a pipe that nobody writes to and a file of 9 MB are refused by what they are."""
    secret = folder.parent / "secret.txt"
    write(folder, "good.json", report_of(4)).rename(secret)
    (folder / "link.json").symlink_to(secret)
    os.mkfifo(folder / "pipe.json")
    (folder / "giant.json").write_bytes(b" " * (9 * 2**20))
    (folder / "large.json").write_bytes(b" " * (8 * 2**20))
    room = lessons.classroom(folder)
    assert room.students == ()
    assert {each.file: each.sentence.split(";")[0] for each in room.refused} == {
        "giant.json": "It has 9.00 MiB",
        "large.json": "It is not JSON (Expecting value: line 1 column 8388609 (char 8388608))",
        "link.json": "This is a link, a folder or a device",
        "pipe.json": "This is a link, a folder or a device",
    }


def test_five_hundred_mutations_never_stop_the_reading(folder: pathlib.Path, soak: bool) -> None:
    """Any value of a report replaced by any other: it is read, or refused by one kind of error; the class is shown all the same."""
    import random

    from test_mutated_files import removed, renamed, replaced

    chance = random.Random(7)
    plain = report_of(2).to_dict()
    file = folder / "one.json"
    read = refused = 0
    for _ in range(500 if soak else 100):
        change = chance.choice((replaced, removed, renamed))
        file.write_text(change(json.loads(json.dumps(plain)), chance))
        room = lessons.classroom(folder)
        read, refused = read + len(room.students), refused + len(room.refused)
        for result in (room, room.problems, room.questions(), room.misconceptions(), room.exercises()):
            assert result._repr_html_().count("<table") == 1
        room.rooflines()
    assert refused > read > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text_wherever_it_is_shown(name: str, folder: pathlib.Path) -> None:
    """In HTML no name becomes mark-up; in CSV none begins a formula; characters that cannot be seen are gone."""
    write(folder, "one.json", report_of(1, name))
    room = lessons.classroom(folder)
    html = room._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert "\u202e" not in html
    graded = Grades((StudentGrades(room.students[0].name, ("one.json",), (), 0, 0, 0.0),), lessons.Rubric(), False, 0, 0)
    cell = next(iter(csv.DictReader(io.StringIO(graded.csv()))))["student"]
    assert cell.lstrip()[0] not in "=+-@"


@pytest.mark.parametrize("name", ["Anna;=1+1", "Anna; +1", 'Anna;"@SUM(A1)"', "Anna;－1"])
def test_no_cell_begins_a_formula_where_cells_are_parted_at_semicolons(name: str) -> None:
    """Excel does so in half of Europe, and reads our file without a question; quotation marks end nothing there in the middle of a cell."""
    one = StudentGrades(name, (f"{name}.json",), (), 0, 0, 0.0)
    row = Grades((one,), lessons.Rubric(), False, 0, 0).csv().splitlines()[1]
    pieces = [piece.lstrip(' "') for piece in row.split(";")]
    assert len(pieces) == 3
    assert not any(piece.startswith(("=", "+", "-", "@", "－")) for piece in pieces)
    plain = Grades((dataclasses.replace(one, name="Anna; Ben", files=("a;b.json",)),), lessons.Rubric(), False, 0, 0)
    assert plain.csv().splitlines()[1].startswith("Anna; Ben,a;b.json,"), "what begins no formula stays as it is"


def test_the_later_file_of_a_student_counts_and_that_is_said(folder: pathlib.Path) -> None:
    """Anna hands in twice, once written in another case; of other notebooks her files are put together."""
    early = report_of(1, "Anna Berg", date="2026-03-01T10:00:00+00:00")
    late = dataclasses.replace(early, date="2026-03-02T10:00:00+01:00", name=" anna  BERG", checks=early.checks[:1])
    write(folder, "a.json", early)
    write(folder, "b.json", late)
    other = report_of(1, "Ben", checks=(check_of("02.8", "chunks = 16", "passed"),), notebook="02")
    more = report_of(1, "Ben", checks=(check_of("03.10", 'explained = ("lines", 64 * 2**20)', "passed"),), notebook="03")
    write(folder, "c.json", other)
    write(folder, "d.json", more)
    room = lessons.classroom(folder)
    assert [each.files for each in room.students] == [("b.json",), ("c.json", "d.json")]
    assert [len(each.report.checks) for each in room.students] == [1, 2]
    assert any("handed in twice: b.json is later and counts, a.json does not" in remark for remark in room.remarks)
    assert any("put together" in remark for remark in room.remarks)


def test_a_file_without_work_never_displaces_one_with_work(folder: pathlib.Path) -> None:
    """Anna asks the doctor again after she handed in: her work stays, the later machine is taken, and that is said; Ben did so before."""
    for name, work, doctor in (("Anna", 1, 9), ("Ben", 9, 1)):
        write(folder, f"{name}-work.json", report_of(3, name, date=f"2026-03-0{work}T10:00:00+00:00"))
        bare = report_of(4, name, date=f"2026-03-0{doctor}T10:00:00+00:00", predictions=(), checks=(), roofs=())
        write(folder, f"{name}-doctor.json", bare)
    write(folder, "Cem.json", bare := dataclasses.replace(bare, name="Cem"))
    room = lessons.classroom(folder)
    anna = room.students[0]
    assert [len(each.report.checks) for each in room.students] == [5, 5, 0]
    assert len(anna.report.predictions) == 3
    assert [each.report.machine.device for each in room.students] == ["NVIDIA H200", "NVIDIA GeForce RTX 4070", "NVIDIA H200"]
    assert [each.files for each in room.students] == [("Anna-doctor.json", "Anna-work.json"), ("Ben-work.json",), ("Cem.json",)]
    assert room.remarks == ("Anna: of Anna-doctor.json, which has no predictions and no exercises, only the machine counts.",)


def test_a_later_run_all_never_displaces_work(folder: pathlib.Path) -> None:
    """Anna's file from home has every question revealed, none predicted, and a hint: what she did in class stays."""
    write(folder, "class.json", report_of(3, "Anna", date="2026-03-01T10:00:00+00:00"))
    revealed = dataclasses.replace(report_of(3).predictions[0], predicted=None, predicted_text="", verdict="no prediction")
    hinted = dataclasses.replace(report_of(3).checks[0], state="not attempted", attempts=0, hints=1, kept=None)
    write(folder, "home.json", report_of(3, "Anna", (hinted,), predictions=(revealed,), date="2026-03-02T10:00:00+00:00"))
    room = lessons.classroom(folder)
    (anna,) = room.students
    assert (anna.files, len(anna.report.checks)) == (("home.json", "class.json"), 5)
    assert sum(p.predicted is not None for p in anna.report.predictions) == 3
    assert room.remarks == ("Anna: of home.json, which has no predictions and no exercises, only the machine counts.",)


def test_roofs_stay_with_the_machine_that_showed_them(folder: pathlib.Path) -> None:
    """Anna's later file tells of another machine, without roofs: the earlier machine's would be drawn as a CPU's, on the later one's name.

    Ben's later file, of the same machine, lacks them, and his earlier one has them.
    """
    write(folder, "1.json", report_of(3, "Anna", notebook="02", date="2026-03-01T10:00:00+00:00"))
    write(folder, "2.json", report_of(2, "Anna", notebook="03", date="2026-03-02T10:00:00+00:00", roofs=()))
    write(folder, "3.json", report_of(3, "Ben", date="2026-03-01T10:00:00+00:00"))
    write(folder, "4.json", report_of(3, "Ben", date="2026-03-02T10:00:00+00:00", predictions=(), checks=(), roofs=()))
    write(folder, "5.json", report_of(3, "Cem", date="2026-03-01T10:00:00+00:00"))
    write(folder, "6.json", report_of(4, "Cem", date="2026-03-02T10:00:00+00:00", predictions=(), checks=(), roofs=()))
    room = lessons.classroom(folder)
    machines = [(each.report.machine.device, [roof.device for roof in each.report.rooflines()]) for each in room.students]
    gpu = "NVIDIA GeForce RTX 4070"
    assert machines == [("Apple GPU (Apple M2)", []), (gpu, [gpu]), ("NVIDIA H200", [])]
    assert [roof.device_kind for roof in room.rooflines()] == ["cuda"]


def test_one_name_on_two_machines_may_be_two_students(folder: pathlib.Path) -> None:
    """The later file counts, and the doubt is said; from one machine there is none."""
    for number, name in ((1, "Anna"), (2, "Anna"), (8, "Ben")):
        write(folder, f"{number}.json", report_of(number, name, date=f"2026-03-0{number}T10:00:00+00:00"))
    write(folder, "9.json", report_of(8, "Ben", date="2026-03-09T10:00:00+00:00"))
    assert lessons.classroom(folder).remarks == (
        "Anna handed in twice: 2.json is later and counts, 1.json does not. They come from different machines: perhaps two students.",
        "Ben handed in twice: 9.json is later and counts, 8.json does not.",
    )


def test_who_has_another_version_is_named(folder: pathlib.Path) -> None:
    """Where all have one version nothing is said."""
    for number in range(3):
        write(folder, f"{number}.json", report_of(number))
    assert lessons.classroom(folder).remarks == ()
    write(folder, "3.json", report_of(3, gpulab_version="0.0.9"))
    assert lessons.classroom(folder).remarks == ("The versions of gpulab differ: 0.1.0 (3 of 4 students), 0.0.9 (Student 003).",)
    write(folder, "3.json", report_of(3, gpulab_version="9" * 41))
    assert f"students), {'9' * 39}… (Student 003)." in lessons.classroom(folder).remarks[0]
    write(folder, "3.json", report_of(3, gpulab_version="9" * 40))
    assert f"students), {'9' * 40} (Student 003)." in lessons.classroom(folder).remarks[0]


def test_students_without_a_name_stay_apart(folder: pathlib.Path) -> None:
    """Two files without a name are two students, named by their files."""
    for number in (1, 2):
        write(folder, f"{number}.json", report_of(number, ""))
    assert [each.name for each in lessons.classroom(folder).students] == ["(no name) 1.json", "(no name) 2.json"]


def test_students_without_a_name_stay_apart_below_a_long_path(folder: pathlib.Path) -> None:
    """A learning platform's archive puts all below one long name: the end of the path is shown, and where it is alike all are kept."""
    course = folder / f"Course {'x' * 120}"
    for number in (1, 2):
        (course / f"Student {number}" / f"sheet {'y' * 110}").mkdir(parents=True)
        write(course / f"Student {number}", "report.json", report_of(number, ""))
        write(course / f"Student {number}" / f"sheet {'y' * 110}", "report.json", report_of(number + 2, ""))
    (course / "bad.json").write_text("{")
    room = lessons.classroom(folder)
    assert len(room.students) == 4
    assert [each.name[-22:] for each in room.students if "Student" in each.name] == ["/Student 1/report.json", "/Student 2/report.json"]
    assert room.refused[0].file.endswith("x/bad.json")
    assert all(len(file) == 100 for each in room.students for file in each.files)
    assert room.remarks == ()


def test_an_empty_folder_says_what_to_do_and_a_missing_one_is_an_error(folder: pathlib.Path) -> None:
    """With nothing to read every table still shows; a path that is no folder is refused."""
    room = lessons.classroom(folder)
    for result in (room, room.problems, room.questions(), room.misconceptions(), room.exercises(), lessons.grade(room)):
        assert result._repr_html_().count("<table") == 1
    assert "gpulab report" in room._repr_html_()
    assert room.table()[1][0][0] == "(there is no file here)"
    assert room.questions().table()[1] == [("(no predictions)", "", "", "")]
    assert room.misconceptions().table()[1] == [("(none)", "", "")]
    assert room.exercises().table()[1] == [("(none tried)", "", "", "", "")]
    assert room.problems.table()[1] == [("(none)", "every file could be read")]
    for result in (room, room.problems, room.questions(), room.misconceptions(), room.exercises(), lessons.grade(room)):
        headers, rows = result.table()
        assert {len(row) for row in rows} == {len(headers)}
    (folder / "bad.json").write_text("{")
    assert lessons.classroom(folder).table()[1][0][0] == "(none of the files here is a report)"
    for wrong in (folder / "nowhere", "", 5, "\0", None):
        with pytest.raises(InputError, match="no folder"):
            lessons.classroom(wrong) if wrong != "" else lessons.classroom(folder / "file.json")  # type: ignore[arg-type]


def _prediction(id: str, predicted: Any, measured: Any) -> ReportedPrediction:
    return ReportedPrediction(id, "?", predicted, "p", measured, "m", "right", "MEASURED", 0)


def test_verdicts_and_misconceptions_are_worked_out_again(folder: pathlib.Path) -> None:
    """A file that calls its own predictions right is not believed; the reading that fits a wrong one is counted once a student."""
    values = ((1.0, 30.0), (1.0, 30.0), (29.0, 30.0), (None, 30.0))
    for number, (predicted, measured) in enumerate(values):
        write(folder, f"{number}.json", report_of(number, predictions=(_prediction("00.3", predicted, measured),)))
    room = lessons.classroom(folder)
    (row,) = room.questions().rows
    assert (row.given, row.right, row.shown) == (3, 1, 4)
    assert row.ratios == pytest.approx((1 / 30, 1 / 30, 29 / 30))
    (found,) = [each for each in room.misconceptions().rows if each.id == "00.3"]
    reading = next(r.sentence for r in content.question("00.3").readings if r.when(1.0, 30.0))
    assert (found.students, found.given, found.sentence) == (2, 3, reading)


def test_a_verdict_is_the_one_that_the_student_saw() -> None:
    """00.3 is close within a factor of 3: 20.700000000000003 is more than 3 times 6.9, and 6.9 is no less than a third of it."""
    assert (20.700000000000003 / 6.9 <= 3.0, 6.9 / 20.700000000000003 >= 1 / 3.0) == (False, True)
    assert _classroom._verdict(_prediction("00.3", 6.9, 20.700000000000003)) == "off"
    assert _classroom._verdict(_prediction("00.3", 6.9, 20.69)) == "close"


def test_four_hundred_characters_of_a_choice_and_of_a_question_are_shown(folder: pathlib.Path) -> None:
    """As a report has them; a file may hold more."""
    for length, told in ((400, "x" * 400), (401, f"{'x' * 399}…")):
        one = dataclasses.replace(_prediction("02.1", "x" * length, "the CPU"), question="x" * length)
        write(folder, "a.json", report_of(1, predictions=(one,)))
        (row,) = lessons.classroom(folder).questions().rows
        assert (row.question, row.choices) == (told, ((told, 1),))


def test_one_file_words_no_question_for_the_class(folder: pathlib.Path) -> None:
    """The words that most files have stand in the table, and what cannot be seen, or turns the line, is in no question and no choice."""
    first = dataclasses.replace(_prediction("02.1", "the\u202e GPU\n", "the CPU"), question="Who fails this class?")
    write(folder, "0.json", report_of(0, predictions=(first,)))
    for number in (1, 2):
        write(folder, f"{number}.json", report_of(number, predictions=(_prediction("02.1", "the CPU", "the CPU"),)))
    (row,) = lessons.classroom(folder).questions().rows
    assert (row.question, row.choices) == ("?", (("the CPU", 2), ("the GPU", 1)))
    assert (row.given, row.right) == (3, 2)


@pytest.mark.parametrize(("predicted", "measured"), [(1e-300, 1e300), (1e300, 1e-300), (5e-324, 1.0), (1.0, 5e-324)])
def test_numbers_too_far_apart_for_a_ratio_end_no_table(predicted: float, measured: float, folder: pathlib.Path) -> None:
    """What is typed may be 5e-324: such a prediction is off, and has no ratio that a median could take."""
    write(folder, "far.json", report_of(0, predictions=(_prediction("00.3", predicted, measured),)))
    write(folder, "near.json", report_of(1, predictions=(_prediction("00.3", 29.0, 30.0),)))
    room = lessons.classroom(folder)
    (row,) = room.questions().rows
    assert (row.given, row.judged, row.right, row.ratios) == (2, 2, 1, pytest.approx((29 / 30,)))
    assert room.misconceptions().table()
    assert room.table()


def test_a_number_in_the_place_of_words_has_no_reading() -> None:
    """02.1 asks for a name and its first reading looks at the outcome alone: a number, which the page never gives, is explained by none."""
    readings = content.question("02.1").readings
    assert _classroom._reading(readings, _prediction("02.1", "the GPU", "the CPU")).startswith("The copies eat")
    assert _classroom._reading(readings, _prediction("02.1", 3.0, "the CPU")) == ""


def test_the_tables_of_a_class_by_hand(folder: pathlib.Path) -> None:
    """Two students: one close and one 30 times too low, one passed at the second try, the other wrong at the fourth with the solution."""
    wrong = dataclasses.replace(check_of("02.8", "chunks = 1", "wrong", 4), solution_shown=True)
    no_words = ReportedPrediction("02.1", "Who?", "the CPU", "the CPU", None, "", "", "", 0)
    write(folder, "a.json", report_of(
        3, "Anna", predictions=(_prediction("00.3", 29.0, 30.0), no_words), checks=(check_of("02.8", "chunks = 16", "passed", 2),),
    ))  # fmt: skip
    write(folder, "b.json", report_of(1, "Ben", predictions=(_prediction("00.3", 1.0, 30.0),), checks=(wrong,)))
    (folder / "c.json").write_text("{")
    (folder / "notes.txt").write_text("x")
    room = lessons.classroom(folder)
    assert repr(room) == "<2 students, 1 file that cannot be read>"
    assert room.table()[1] == [
        ("Anna", "NVIDIA GeForce RTX 4070", "24", "32.0 GiB", "2, 1 of 1 close or right", "1 of 1 tried", "cupy"),
        ("Ben", "AMD Ryzen 7 7840U (16 cores)", "16", "32.0 GiB", "1, 0 of 1 close or right", "0 of 1 tried", "nothing"),
    ]
    assert [(row[0], *row[2:]) for row in room.questions().table()[1]] == [
        ("00.3", "1 of 2", "median 0.5 x what was measured, from 0.0333 to 0.967"), ("02.1", "0 of 0", "1 x the CPU; 1 not measured yet"),
    ]  # fmt: skip
    assert repr(room.questions()) == "<2 questions, 3 predictions>"
    reading = content.question("00.3").readings[0].sentence
    assert room.misconceptions().table()[1] == [("00.3", "1 of 2", reading)]
    title = content.exercise("02.8").title
    assert room.exercises().table()[1] == [("02.8", title, "1 of 2", "3", "1")]
    (refused, remark) = room.problems.table()[1]
    assert refused[0] == "c.json"
    assert remark == ("remark", "1 file that is not .json passed over.")
    assert [repr(each) for each in (room.misconceptions(), room.exercises(), room.problems)] == [
        "<1 misconception>", "<1 exercise>", "<1 file that cannot be read, 1 remark>",
    ]  # fmt: skip


def test_what_is_passed_over_in_a_folder_is_said(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden files and folders silently, others by their number, and all beyond the most; each file that is read is told."""
    monkeypatch.setattr(_class_reading, "MOST_FILES", 3)
    for place in ("a.json", "in/b.JSON", "in/c.json", ".d.json", ".git/e.json", "f.txt", "g.csv"):
        (folder / place).parent.mkdir(exist_ok=True)
        write(folder, place, report_of(1, place))
    told: list[tuple[int, int]] = []
    room = lessons.classroom(folder, progress=lambda *both: told.append(both))
    assert [each.name for each in room.students] == ["a.json", "in/b.JSON", "in/c.json"]
    assert room.remarks == ("2 files that are not .json passed over.",)
    assert told == [(1, 3), (2, 3), (3, 3)]
    write(folder, "in/z.json", report_of(1, "one too many"))
    room = lessons.classroom(folder)
    assert (len(room.students), room.remarks[-1]) == (3, "Only the first 3 files were read; divide the folder.")


def test_choices_are_counted_and_the_most_frequent_come_first(folder: pathlib.Path) -> None:
    """Of five choices four are shown; each student's best device has its roof."""
    for number, choice in enumerate(("a", "b", "b", "c", "d", "e")):
        write(folder, f"{number}.json", report_of(number, predictions=(_prediction("02.1", choice, "b"),)))
    room = lessons.classroom(folder)
    (row,) = room.questions().rows
    assert row.choices == (("b", 2), ("a", 1), ("c", 1), ("d", 1), ("e", 1))
    assert row.text == "2 x b; 1 x a; 1 x c; 1 x d"
    assert [roof.device for roof in room.rooflines()] == [each.report.machine.device for each in room.students]
    assert [_classroom.line("x" * n) for n in (100, 101)] == ["x" * 100, "x" * 99 + "…"]


def test_what_fails_most_comes_first(folder: pathlib.Path) -> None:
    """02.8 fails for two of three, and 02.2 for the only one who tried; the one that all pass is last."""
    right = {"02.2": content.exercise("02.2").solution, "02.8": "chunks = 16", "03.10": 'explained = ("lines", 64 * 2**20)'}
    for number, states in enumerate(("wrong wrong passed", "- wrong passed", "- passed passed")):
        given = zip(right, states.split(), strict=True)
        checks = tuple(check_of(id, right[id], state) for id, state in given if state != "-")
        write(folder, f"{number}.json", report_of(number, checks=checks))
    assert [(row.id, row.tried, row.passed) for row in lessons.classroom(folder).exercises().rows] == [
        ("02.8", 3, 1), ("02.2", 1, 0), ("03.10", 3, 3),
    ]  # fmt: skip


def _hours_from_now(hours: float) -> str:
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)).isoformat()


AT_MOST = {
    "a million tries": (lambda d: d["checks"][0].update(attempts=10**6), lambda d: d["checks"][0].update(attempts=10**6 + 1)),
    "a million hints": (lambda d: d["checks"][0].update(hints=10**6), lambda d: d["checks"][0].update(hints=10**6 + 1)),
    "an unknown state": (lambda d: d["checks"][0].update(state="wrong"), lambda d: d["checks"][0].update(state="great")),
    "1,000 characters": (
        lambda d: d["predictions"][0].update(question="x" * 1000), lambda d: d["predictions"][0].update(question="x" * 1001)
    ),
    "cores": (lambda d: d["machine"].update(cores=100_000), lambda d: d["machine"].update(cores=100_001)),
    "no core": (lambda d: d["machine"].update(cores=1), lambda d: d["machine"].update(cores=0)),
    "memory": (lambda d: d["machine"].update(memory_bytes=2**60), lambda d: d["machine"].update(memory_bytes=2**60 + 1)),
    "a rate": (lambda d: d["roofs"][0]["flops_per_second"].update(x=1.0), lambda d: d["roofs"][0]["flops_per_second"].update(x=0.9)),
    "a great rate": (
        lambda d: d["roofs"][0]["flops_per_second"].update(x=1e21), lambda d: d["roofs"][0]["flops_per_second"].update(x=1.1e21),
    ),
    "eight roofs": (lambda d: d.update(roofs=d["roofs"] * 8), lambda d: d.update(roofs=d["roofs"] * 9)),
    "nothing predicted": (lambda d: d["predictions"][0].update(predicted=0.0), lambda d: d["predictions"][0].update(predicted=-0.1)),
    "a time zone": (lambda d: d.update(date="2026-03-01T10:00:00+00:00"), lambda d: d.update(date="2026-03-01T10:00:00")),
    "200 rates": (
        lambda d: d.update(roofs=[{**d["roofs"][0], "flops_per_second": {str(k): 1e9 for k in range(200)}, "bytes_per_second": {}}]),
        lambda d: d.update(roofs=[{**d["roofs"][0], "flops_per_second": {str(k): 1e9 for k in range(200)}, "bytes_per_second": {"x": 1}}]),
    ),
    "an answer": (  # of twice 64 KiB, with its quotation marks
        lambda d: d["checks"][0].update(seen="x" * (2**17 - 2)), lambda d: d["checks"][0].update(seen="x" * (2**17 - 1)),
    ),
    "a clock that is a day ahead": (
        lambda d: d.update(date=_hours_from_now(23)), lambda d: d.update(date=_hours_from_now(25)),
    ),
    "entries": (
        lambda d: d.update(measurements=[], checks=[{**d["checks"][0], "id": str(k)} for k in range(1000)]),
        lambda d: d.update(measurements=[], checks=[{**d["checks"][0], "id": str(k)} for k in range(1001)]),
    ),
}  # fmt: skip


def _text(*path: Any) -> tuple[Callable[[dict[str, Any]], None], Callable[[dict[str, Any]], None]]:
    """Put 1,000 characters, and one more, into a place of a report."""

    def put(data: Any, length: int) -> None:
        for part in path[:-1]:
            data = data[part]
        data[path[-1]] = "x" * length

    return lambda data: put(data, 1000), lambda data: put(data, 1001)


AT_MOST |= {
    f"1,000 characters in {'.'.join(map(str, path))}": _text(*path)
    for path in (
        ("notebook",), ("gpulab_version",), ("machine", "device"), ("machine", "processor"), ("machine", "system"),
        ("machine", "accelerators", 0), ("roofs", 0, "device"), ("checks", 0, "id"), ("predictions", 0, "id"),
        ("predictions", 0, "predicted_text"), ("predictions", 0, "measured_text"), ("predictions", 0, "predicted"),
        ("predictions", 0, "measured"),
    )
} | {
    "1,000 characters of what the doctor looked at": (
        lambda d: d["machine"]["doctor"].update({"x" * 1000: "ok"}), lambda d: d["machine"]["doctor"].update({"x" * 1001: "ok"}),
    ),
    "a byte of memory": (lambda d: d["machine"].update(memory_bytes=1), lambda d: d["machine"].update(memory_bytes=0)),
    "nothing measured": (lambda d: d["predictions"][0].update(measured=0.0), lambda d: d["predictions"][0].update(measured=-0.1)),
    "no try": (lambda d: d["checks"][0].update(attempts=0), lambda d: d["checks"][0].update(attempts=-1)),
    "no hint": (lambda d: d["checks"][0].update(hints=0), lambda d: d["checks"][0].update(hints=-1)),
}  # fmt: skip


@pytest.mark.parametrize("what", AT_MOST)
def test_a_report_may_hold_so_much_and_no_more(what: str, folder: pathlib.Path) -> None:
    """The most that is read, and the least that is refused, in one field of a good report."""
    plain = json.dumps(report_of(2).to_dict())
    for change, read in zip(AT_MOST[what], (True, False), strict=True):
        data = json.loads(plain)
        change(data)
        file = folder / "one.json"
        file.write_text(json.dumps(data))
        if read:
            assert _class_reading.read_report(file).name == "Student 002"
        else:
            with pytest.raises(RecordingError, match="expected what `gpulab report` writes"):
                _class_reading.read_report(file)


def test_three_hundred_reports_are_each_parsed_once(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of 300 with 20 bad files: every file is opened once, so that the time grows with the class and no faster."""
    make_class(folder, 300, 20)
    opened: list[str] = []
    read = pathlib.Path.read_bytes
    monkeypatch.setattr(pathlib.Path, "read_bytes", lambda self: (opened.append(self.name), read(self))[1])
    room = lessons.classroom(folder)
    room.questions(), room.misconceptions(), room.exercises(), room.rooflines()
    assert len(room.students) == 300
    assert len(room.refused) == 20
    assert len(opened) == len(set(opened)) == 320


def test_a_report_is_read_back_as_it_was(folder: pathlib.Path) -> None:
    """What the command writes is what the reader gives."""
    made = report_of(3)
    assert _class_reading.read_report(write(folder, "a.json", made)).to_dict() == made.to_dict()
    with pytest.raises(RecordingError, match="cannot be read"):
        _class_reading.read_report(folder / "none.json")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_report_that_was_saved_again_on_windows_is_read(encoding: str, folder: pathlib.Path) -> None:
    """Notepad and PowerShell put a mark before the text, and write lines' ends of their own: a student was asked to look before sending."""
    text = json.dumps(report_of(3, "Zoë").to_dict(), indent=1, ensure_ascii=False).replace("\n", "\r\n")
    (folder / "a.json").write_bytes(text.encode(encoding))
    assert _class_reading.read_report(folder / "a.json").name == "Zoë"


def test_points_follow_the_rubric() -> None:
    """By hand: one of two points for an exercise, a share for what is open, predictions for being given."""
    grades = (Grade("02.2", "passed", "passed", "", 2.0, 2.0), Grade("02.5", "passed", "wrong", "why", 0.0, 1.0))
    one = StudentGrades("A", ("a.json",), grades, 3, 4, 0.25)
    assert (one.points, one.most, one.percent) == (2.75, 4.0, 68.75)
    assert [g.differs for g in grades] == [False, True]


def test_the_command_reads_a_class_and_writes_grades(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gpulab class` shows students, what is to fix and bad files, and writes the grades by a rubric; what cannot be is one sentence."""
    write(folder, "a.json", report_of(3, "Anna", checks=(check_of("02.8", "chunks = 1", "passed"),)))
    (folder / "b.json").write_text("{")
    rubric = tmp_path / "rubric.json"
    rubric.write_text('{"notebooks": ["02"], "points": {"02.8": 3}}')
    assert cli.main(["class", str(folder), "--grades", str(tmp_path / "out.csv"), "--rubric", str(rubric), "--no-code"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"Anna .*NVIDIA GeForce RTX 4070.* cupy", said)
    assert "b.json" in said
    assert re.search(r"Anna +02.8 +passed +wrong", said)
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text(encoding="utf-8-sig").splitlines())
    assert (row["student"], row["exercise 02.8"], row["reported otherwise"]) == ("Anna", "0", "02.8")
    assert cli.main(["class", str(tmp_path / "nowhere")]) == 2
    assert cli.main(["class", str(folder), "--grades", str(folder)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_no_column_is_wider_than_sixty_characters_before_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is longer goes on, and its row with it; nothing stands behind a row's last word."""
    _class_command._print((("head", "b"), [("x" * 61, "y "), ("z", 5)]))  # type: ignore[list-item]
    assert capsys.readouterr().out.splitlines() == [f"{'head':60}  b", f"{'x' * 61}  y", f"{'z':60}  5"]


def test_the_command_says_all_that_it_found(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables with their columns under one another, of which none is wider than 60 characters beside the next, totals, and the file."""
    monkeypatch.setattr(_grades, "Regrader", lambda: contextlib.nullcontext(lambda job: {"state": "wrong", "message": "No."}))
    write(folder, "a.json", report_of(3, "Anna", predictions=(), checks=(check_of("02.8", "chunks = 1", "passed"),)))
    (folder / "notes.txt").write_text("x")
    (folder / f"{'n' * 70}.json").write_text("{")
    file = tmp_path / "out.csv"
    assert cli.main(["class", str(folder), "--grades", str(file), "--no-code"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headers = ("student", "device", "cores", "memory", "predictions", "exercises passed (as reported)", "to fix before class")
    anna = ("Anna", "NVIDIA GeForce RTX 4070", "24", "32.0 GiB", "0, 0 of 0 close or right", "1 of 1 tried", "cupy")
    assert [re.split(r" {2,}", line) for line in lines[:2]] == [list(headers), list(anna)]
    assert [lines[0].index(head) for head in headers] == [lines[1].index(f" {cell}") + 1 if k else 0 for k, cell in enumerate(anna)]
    assert lines[2:4] == ["", "1 student, 1 file that cannot be read. What machines and checks say is as the students' machines report it."]
    assert lines[4:6] == ["", f"{'file':60}  what is wrong with it"]
    assert lines[6].startswith(f"{'n' * 70}.json  It is not JSON")
    assert lines[7:9] == [f"{'remark':60}  1 file that is not .json passed over.", ""]
    assert lines[9] == (
        "Notebooks that counted: 02 (because somebody worked on them). 1 answer checked again, equal ones once (1). "
        f"Answers that are code were not run. Written to {file}."
    )
    assert [re.split(r" {2,}", line)[:4] for line in lines[11:]] == [
        ["student", "exercise", "reported", "found"], ["Anna", "02.8", "passed", "wrong"],
    ]  # fmt: skip
    with pytest.raises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        cli.main(["class"])
    assert cli.main(["class", str(folder), "--grades", str(folder)]) == 2
    assert capsys.readouterr().err.endswith(" cannot be written (Is a directory); expected a file in a folder of yours. Change --grades.\n")


def test_what_the_command_cannot_do_is_said_before_an_answer_is_run(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad rubric, a place for the grades where nothing can be written and options without --grades: one sentence each, and no table."""
    monkeypatch.setattr(_class_reading, "_files", lambda root: pytest.fail("the folder was read first"))
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    grades = ["--grades", str(tmp_path / "new" / "g.csv")]
    for words, says in (
        ([*grades, "--rubric", str(deep)], "Rubric.read"),
        ([*grades, "--rubric", str(tmp_path / "none.json")], "No such file"),
        (["--grades", str(deep / "g.csv")], "cannot be written"),
        (["--grades", str(folder)], "cannot be written"),
        (["--grades", ""], "cannot be written"),
        (["--rubric", str(deep)], "expected --grades FILE"),
        (["--no-code"], "expected --grades FILE"),
    ):
        assert cli.main(["class", str(folder), *words]) == 2, words
        said = capsys.readouterr()
        assert (said.out, says in said.err) == ("", True), (words, said.err)
    assert not (tmp_path / "new").exists(), "nothing is left of the question whether it can be written"
