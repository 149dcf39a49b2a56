"""Grades: every kept answer is checked again, safely, and claims do not count."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from course import EXERCISES, ROOF
from gpulab import lessons
from gpulab.errors import InputError
from students import changed, report_of, write

from texts import table_text

PLAIN = {"prediction_points": 0.0}
FIT = "def fit(nbytes, seconds):\n    return 5e-6, 1e9\n"


def graded(folder: Path, rubric: dict[str, Any] | None = None, **options: Any) -> Any:
    """The grades of the reports in a folder."""
    return lessons.grade(
        lessons.classroom(folder), lessons.Rubric(**{**PLAIN, **(rubric or {})}), **options
    )


def claimed(
    number: int, name: str, sources: dict[str, str], *claims: str, **parts: Any
) -> dict[str, Any]:
    """A report whose checks claim these states."""
    made = report_of(number, name, sources, **parts)
    for place, claim in enumerate(claims):
        made = changed(made, "checks", place, "state", value=claim)
    return made


def shown(grades: Any) -> str:
    """All tables of grades, the CSV and the caption as text."""
    tables = (grades, grades.failing(), grades.differences())
    parts = [f"{table!r}\n{table_text(table._repr_html_())}" for table in tables]
    return "\n".join([*parts, grades.caption(), grades.csv()])


def class_of_five(folder: Path) -> None:
    """Right and wrong answers, false claims, and answers that are missing or damaged."""
    right = {"02.8": "chunks = 16", "02.5": FIT, "03.6": "rows = 11"}
    write(folder, "a.json", report_of(0, "Anna", right))
    write(
        folder,
        "b.json",
        claimed(1, "Ben", {"02.8": "chunks = 1", "03.6": "rows = 40"}, "passed", "passed"),
    )
    write(folder, "c.json", claimed(2, "=Cem", {"02.8": "chunks = 16"}, "wrong"))
    four = report_of(3, "Dana", {"02.8": "chunks = 16", "02.5": FIT, "03.6": "rows = 11"})
    four = changed(
        four, "checks", 1, "kept", value={"kind": "nothing", "reason": "code is not run here"}
    )
    four = changed(four, "checks", 0, "kept", value={"kind": "sorcery"})
    write(folder, "d.json", changed(four, "checks", 2, "seen", value=None))
    tensor = {"id": "02.9", "kept": {"kind": "nothing", "reason": "a Tensor"}, "state": "passed"}
    five = report_of(4, "Eve", {"02.8": "chunks = 1"})
    write(folder, "e.json", {**five, "checks": [*five["checks"], {**five["checks"][0], **tensor}]})


RUBRICS = {
    "usual": {}, "two notebooks": {"notebooks": ("02", "03")},
    "points": {"exercise_points": 2.0, "points": {"02.5": 4.0, "02.2": 0.0},
    "prediction_points": 0.5, "open_share": 0.5, "notebooks": ("02",)},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUBRICS)
def test_the_grades_of_a_class(name: str, tmp_path: Path, approved: Any) -> None:
    """Points, outcomes, reasons, differences; what cannot be checked is left out or shared."""
    class_of_five(tmp_path / "class")
    seen: list[tuple[int, int]] = []
    grades = graded(tmp_path / "class", RUBRICS[name], progress=lambda *both: seen.append(both))
    assert seen == [(k, grades.checked) for k in range(1, grades.checked + 1)]
    file = grades.write_csv(tmp_path / "sub" / "grades.csv")
    assert file.read_text(encoding="utf-8-sig") == grades.csv()
    assert type(grades).from_dict(json.loads(json.dumps(grades.to_dict()))) == grades
    assert shown(grades) == approved
    with pytest.raises(InputError):
        grades.write_csv(tmp_path)


@pytest.mark.slow
def test_code_is_not_run_where_that_is_asked(tmp_path: Path, approved: Any) -> None:
    """Values are graded all the same; a stopped grading leaves the rest open; nobody loses."""
    class_of_five(tmp_path / "class")
    trace = tmp_path / "ran"
    evil = report_of(6, "Gus", {"02.5": FIT})
    source = f"open({str(trace)!r}, 'w')\nfit = 1"
    write(tmp_path / "class", "g.json", changed(evil, "checks", 0, "kept", "source", value=source))
    stopped = graded(tmp_path / "class", {"notebooks": ("02",)}, stop=lambda: True)
    assert (
        shown(graded(tmp_path / "class", {"notebooks": ("02",)}, run_code=False)) + shown(stopped)
        == approved
    )
    assert not trace.exists()


GAIN = "def gain(flops, nbytes, copied, cpu, gpu, link):\n    "
RIGHT = """here = max(flops / cpu[0], nbytes / cpu[1])
    return here / (max(flops / gpu[0], nbytes / gpu[1]) + copied / link)
"""
MISBEHAVING = {
    "endless": "while True: pass\n    ",
    "print": "import sys; print('x' * 100_000); print('y' * 100_000, file=sys.stderr)\n    ",
    "stubborn": "while 1:\n        try:\n            while 1: 1\n        except: 2\n    ",
    "input": "import sys; sys.stdin.read()\n    ", "exit": "import sys; sys.exit(0)\n    ",
    "hard exit": "import os; os._exit(0)\n    ",
    "kill": "import os; os.kill(os.getpid(), 9)\n    ",
    "crash": "import ctypes; ctypes.string_at(0)\n    ",
    "memory": "x = bytearray(2**30)\n    ", "file": "open('big', 'wb').write(bytes(2**27))\n    ",
    "recursion": "return gain(flops, nbytes, copied, cpu, gpu, link)\n    ",
    "raise": "raise KeyboardInterrupt\n    ",
    "folder": "import os, shutil; shutil.rmtree(os.environ['HOME'], ignore_errors=True)\n    ",
    "none": "",
}  # fmt: skip
LOOK = """
import json, os
fd = '/proc/self/fd/'
fds = [os.readlink(fd + k) for k in os.listdir(fd) if os.path.exists(fd + k)]
found = {'folder': os.getcwd(), 'files': os.listdir('.'), 'env': dict(os.environ), 'fds': fds}
open(FOUND, 'w').write(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="answers are limited on Linux only")
def test_an_answer_that_misbehaves_costs_only_itself(
    tmp_path: Path, approved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is ended or passes; it sees an empty folder and a clean environment."""
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    plain = report_of(1, "x", {"03.11": GAIN + RIGHT})
    found = tmp_path / "found.json"
    for name, before in MISBEHAVING.items():
        head = LOOK.replace("FOUND", repr(str(found))) if name == "none" else ""
        answer = changed(plain, "checks", 0, "kept", "source", value=head + GAIN + before + RIGHT)
        write(tmp_path / "class", f"{name}.json", {**answer, "name": name})
    grades = graded(tmp_path / "class", {"notebooks": ("03",)}, seconds=1.5, memory_bytes=2**29)
    outcomes = [
        (one.name, grade.found, grade.message)
        for one in grades.students
        for grade in one.grades
        if grade.id == "03.11"
    ]
    assert (
        "".join(f"{name}: {state}. {message[:90]}\n" for name, state, message in outcomes)
        == approved
    )
    seen = json.loads(found.read_text())
    assert (seen["files"], Path(seen["folder"]).exists(), "s3cret" in str(seen["env"])) == (
        [],
        False,
        False,
    )
    assert seen["env"]["HOME"] == seen["folder"]
    assert [name for name in seen["fds"] if not name.startswith(("/dev/null", "pipe:"))] == []


# Started again they take 10 to 40 s: processes, predicted memory of large models, scripts.
LONG = (
    "03.8", "05.9", "06.12", "08.3", "08.12", "08.15", "08.16", "00.2", "00.5", "00.7", "01.9",
    "03.3",
)  # fmt: skip


@pytest.mark.slow
def test_each_answer_is_judged_alike_in_a_process_of_its_own(tmp_path: Path) -> None:
    """From its kept form the solution passes, and a usual wrong answer is refused."""
    kept = [exercise for exercise in EXERCISES if not exercise.unkept and exercise.id not in LONG]
    write(tmp_path / "class", "a.json", report_of(0, "Right", {e.id: e.solution for e in kept}))
    write(
        tmp_path / "class", "b.json", report_of(0, "Wrong", {e.id: e.usual[0].source for e in kept})
    )
    wrong, right = sorted(graded(tmp_path / "class").students, key=lambda one: one.points)
    assert [
        grade
        for grade in right.grades
        if grade.id in {e.id for e in kept} and grade.found != "passed"
    ] == []
    refused = {grade.id: grade for grade in wrong.grades}
    assert [
        e.id
        for e in kept
        if refused[e.id].found != "wrong" or e.usual[0].says not in refused[e.id].message
    ] == []


@pytest.mark.slow
def test_what_the_students_machine_gave_decides(tmp_path: Path) -> None:
    """10 rows are right under the report's ridge of 5, wrong under others, open without."""
    made = report_of(0, "Anna", {"03.6": "rows = 11"})
    arithmetic = ("checks", 0, "seen", "v", "arithmetic", 0, "flops_per_second")
    assert ROOF.arithmetic_roof("float32").flops_per_second == 1e11
    for name, path, value in (
        ("a", ("name",), "a"),
        ("b", arithmetic, 8e11),
        ("c", ("checks", 0, "seen"), None),
        ("d", ("checks", 0, "seen"), {"t": 5}),
    ):
        write(
            tmp_path / "class", f"{name}.json", {**changed(made, *path, value=value), "name": name}
        )
    grades = graded(tmp_path / "class", {"notebooks": ("03",)})
    assert [next(g.found for g in s.grades if g.id == "03.6") for s in grades.students] == [
        "passed",
        "wrong",
        "open",
        "open",
    ]


FILES = (
    "", "[]", '{"points": [1]}', '{"points": {"99.9": 1}}', '{"points": {"9.3": 5}}',
    '{"points": {"09.1": 5}}', '{"notebooks": "09"}',
    '{"notebooks": ["9"]}', '{"notebooks": [9]}', '{"notebooks": {"09": 1}}',
    '{"exercise_points": -1}', '{"exercise_points": "a"}',
    '{"exercise_point": 2}', '{"open_share": 7}', '{"open_share": 1.01}',
    '{"exercise_points": NaN}', "[" * 100_000,
)  # fmt: skip


def test_a_rubric_is_read_or_refused(tmp_path: Path) -> None:
    """A mistake in it is named, so that nothing counts other than meant without a word."""
    file = write(
        tmp_path,
        "rubric.json",
        '{"exercise_points": 2, "points": {"02.5": 4, "09.3": 0}, "notebooks": ["02"]}',
    )
    rubric = lessons.Rubric.read(file)
    assert (
        rubric.of("02.5"),
        rubric.of("02.2"),
        rubric.of("09.3"),
        rubric.prediction_points,
        rubric.notebooks,
    ) == (4.0, 2.0, 0.0, 0.25, ("02",))
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as Windows writes it
    assert lessons.Rubric.read(file) == rubric
    for text in FILES:
        file.write_text(text)
        with pytest.raises(InputError, match="Rubric"):
            lessons.Rubric.read(file)
    with pytest.raises(InputError):
        lessons.Rubric.read(tmp_path / "none.json")
    for wrong in (
        {"notebooks": "09"},
        {"notebooks": ("9",)},
        {"notebooks": 9},
        {"points": {"9.3": 5}},
        {"open_share": -0.1},
    ):
        with pytest.raises(InputError):
            lessons.Rubric(**wrong)


@pytest.mark.slow
def test_run_all_and_a_hint_make_no_notebook_count(tmp_path: Path) -> None:
    """Only what somebody predicted or tried takes points; without reports no notebook counts."""
    with pytest.raises(InputError):
        lessons.grade(5)  # type: ignore[arg-type]
    made = report_of(3, "Anna", {"02.8": "chunks = 16"}, predictions=[])
    hinted = {"id": "10.2", "state": "not attempted", "attempts": 0, "hints": 2, "kept": None}
    revealed = {**report_of(3, "x", {})["predictions"][0], "id": "09.1", "predicted": None}
    checks = [*made["checks"], {**made["checks"][0], **hinted}]
    write(tmp_path / "class", "a.json", {**made, "checks": checks, "predictions": [revealed]})
    room = lessons.classroom(tmp_path / "class")
    assert lessons.grade(room, run_code=False).notebooks == ("02",)
    assert lessons.grade(
        room, lessons.Rubric(notebooks=("03", "09")), run_code=False
    ).notebooks == ("03", "09")
    for junk in (
        {"seconds": 0},
        {"seconds": "x"},
        {"memory_bytes": 5},
        {"run_code": "yes"},
        {"rubric": 5},
    ):
        with pytest.raises(InputError):
            lessons.grade(room, **junk)  # type: ignore[arg-type]
    (tmp_path / "class" / "a.json").unlink()
    assert lessons.grade(lessons.classroom(tmp_path / "class")).notebooks == ()
