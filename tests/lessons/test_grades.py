"""Grades come from the answers: what answers do wrong stays theirs, what a file claims is shown beside what was found."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from made_class import check_of, report_of, write

from gpulab import lessons
from gpulab.errors import InputError
from gpulab.lessons import _answers, _content
from gpulab.lessons._grades import Grade, Grades, StudentGrades
from gpulab.lessons._regrade import Regrader
from gpulab.lessons._report_schema import ReportedCheck

LIMIT = 30.0  # seconds for an answer in these tests: a busy machine decides nothing
SHORT = 1.5  # where the end of the time is the point
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="children are forked and limited on Linux only")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """An empty folder for reports."""
    made = tmp_path / "reports"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def ask() -> Iterator[Any]:
    """The process that checks answers again."""
    with Regrader() as process:
        yield process


def job(source: str, id: str = "03.11", name: str = "gain", **changed: Any) -> dict[str, Any]:
    """A kept function, as a hostile file may hold any source."""
    kept = {"kind": "code", "name": name, "source": source, "values": {}}
    return {"id": id, "kept": kept, "seen": None, "seconds": LIMIT, "memory_bytes": 2**29, "run_code": True, **changed}


_GAIN = "def gain(flops, nbytes, copied, cpu, gpu, link):\n    "
RIGHT = "return max(flops / cpu[0], nbytes / cpu[1]) / (max(flops / gpu[0], nbytes / gpu[1]) + copied / link)\n"
# What the answer does before it returns the right number, and what must be said of it ("" where it does no harm and passes).
MISBEHAVING = {
    "endless loop": ("while True: pass\n    ", "did not finish"),
    "endless loop that catches all": (
        "while True:\n        try:\n            while True: pass\n        except BaseException: pass\n    ",
        "did not finish",
    ),
    "sleep": ("import time; time.sleep(60)\n    ", "did not finish"),
    "print": ("import sys; print('x' * 100_000); print('y' * 100_000, file=sys.stderr)\n    ", ""),
    "read input": ("import sys; sys.stdin.read()\n    ", ""),
    "exit": ("import sys; sys.exit(0)\n    ", "called exit"),
    "hard exit": ("import os; os._exit(0)\n    ", "ended the process that checked it, with the code 0"),
    "kill itself": ("import os; os.kill(os.getpid(), 9)\n    ", "by signal 9"),
    "crash": ("import ctypes; ctypes.string_at(0)\n    ", "by signal 11"),
    "memory": ("x = bytearray(2**30)\n    ", "MemoryError"),
    "large file": ("open('big', 'wb').write(bytes(2**27))\n    ", "OSError"),
    "recursion": ("return gain(flops, nbytes, copied, cpu, gpu, link)\n    ", "RecursionError"),
    "raise": ("raise KeyboardInterrupt\n    ", "KeyboardInterrupt"),
    "empty the folder": ("import shutil; shutil.rmtree('.', ignore_errors=True)\n    ", ""),
}  # fmt: skip


@on_linux
@pytest.mark.parametrize("what", MISBEHAVING)
def test_an_answer_that_misbehaves_costs_only_itself(ask: Any, what: str) -> None:
    """Each is ended or passes, is named, and the same process goes on to check the next answer."""
    before, says = MISBEHAVING[what]
    outcome = ask(job(_GAIN + before + RIGHT, seconds=SHORT if says == "did not finish" else LIMIT))
    assert outcome["state"] == ("wrong" if says else "passed"), outcome
    assert says in outcome["message"]
    assert ask(job(_GAIN + RIGHT))["state"] == "passed"


@on_linux
def test_the_answers_process_has_an_empty_folder_a_clean_environment_and_no_files_of_ours(
    ask: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer can look at: its own folder, which is empty and goes away; no variable of ours; no descriptor but its own."""
    found = tmp_path / "found.json"
    look = (
        "import os, json\n"
        f"kept = {str(found)!r}\n"
        "fds = [os.readlink(f'/proc/self/fd/{k}') for k in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{k}')]\n"
        "said = {'folder': os.getcwd(), 'files': os.listdir('.'), 'env': dict(os.environ), 'fds': fds}\n"
        "open(kept, 'w').write(json.dumps(said))\n"
    )
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    with Regrader() as fresh:
        assert fresh(job(look + _GAIN + RIGHT))["state"] == "passed"
    seen = json.loads(found.read_text())
    assert seen["files"] == []
    assert not pathlib.Path(seen["folder"]).exists()
    assert "s3cret" not in json.dumps(seen["env"])
    assert set(seen["env"]) & set(os.environ) <= {
        "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "PYTHONPATH", "GPULAB_LOCK_DIR", "GPULAB_PROGRESS", "IPYTHONDIR",
        "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MALLOC_ARENA_MAX", "PYTHONDONTWRITEBYTECODE", "USERPROFILE", "TEMP", "TMP",
    } | {name for name in seen["env"] if name.startswith(("KMP_", "TORCH", "LC_"))}  # what libraries set for themselves  # fmt: skip
    assert [name for name in seen["fds"] if not name.startswith(("/dev/null", "pipe:"))] == []
    assert sum(name.startswith("pipe:") for name in seen["fds"]) <= 1


@on_linux
def test_what_an_answer_started_ends_with_it(ask: Any, tmp_path: pathlib.Path) -> None:
    """A process that an answer leaves behind is gone when its outcome is there."""
    import psutil

    file = tmp_path / "child"
    start = f"import subprocess, sys\nc = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\nopen({str(file)!r}, 'w').write(str(c.pid))\n"  # noqa: E501
    assert ask(job(start + _GAIN + RIGHT))["state"] == "passed"
    child = int(file.read_text())
    end = time.monotonic() + 20  # it was killed; that the system has taken it away can last a moment
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_classes_can_be_graded_at_once(folder: pathlib.Path) -> None:
    """Two gradings side by side give the same as one after the other."""
    write(folder, "a.json", report_of(1))
    room = lessons.classroom(folder)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(lessons.grade(room).to_dict())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]


def test_claims_are_shown_and_do_not_count(folder: pathlib.Path) -> None:
    """A wrong answer that claims to have passed gets no point and is named; so is a right one that claims to be wrong."""
    wrong = check_of("02.8", "chunks = 1", "passed")
    right = check_of("03.10", 'explained = ("lines", 64 * 2**20)', "wrong")
    write(folder, "a.json", report_of(1, "Eve", checks=(wrong, right)))
    room = lessons.classroom(folder)
    grades = lessons.grade(room, lessons.Rubric(notebooks=("02", "03"), prediction_points=0.0))
    (eve,) = grades.students
    assert eve.points == 1.0
    assert eve.ids("passed") == ["03.10"]
    assert [row[:4] for row in grades.differences().rows] == [("Eve", "02.8", "passed", "wrong"), ("Eve", "03.10", "wrong", "passed")]
    assert "nothing to compute until" in grades.differences().rows[0][4]


def test_what_was_left_out_by_the_student_is_no_gain(folder: pathlib.Path) -> None:
    """An answer that is missing counts nothing of its points; one that no file can hold is left out of them."""
    missing = ReportedCheck("02.8", "passed", 1, 0, False, {"kind": "nothing", "reason": "gone"}, None)
    damaged = ReportedCheck("02.5", "passed", 1, 0, False, {"kind": "sorcery"}, None)
    shared = ReportedCheck("02.9", "passed", 1, 0, False, {"kind": "nothing", "reason": "a Tensor"}, None)
    write(folder, "a.json", report_of(1, checks=(missing, damaged, shared)))
    room = lessons.classroom(folder)
    rubric = lessons.Rubric(notebooks=("02",), prediction_points=0.0)
    (one,) = lessons.grade(room, rubric).students
    exercises = len(_content.lessons()[2].exercises)
    assert (one.points, one.most) == (0.0, exercises - 1)
    assert one.ids("open") == ["02.5", "02.8", "02.9"]
    (half,) = lessons.grade(room, dataclasses.replace(rubric, open_share=0.5)).students
    assert (half.points, half.most) == (1.5, exercises)


def test_without_code_only_values_are_graded(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With run_code=False no source runs: a function stays open and out of the points, a value is graded."""
    trace = tmp_path / "ran"
    evil = ReportedCheck(
        "02.5", "passed", 1, 0, False, {"kind": "code", "name": "fit", "source": f"open({str(trace)!r}, 'w')\nfit = 1", "values": {}}, None
    )
    write(folder, "a.json", report_of(1, checks=(evil, check_of("02.8", "chunks = 16", "passed"))))
    grades = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",)), run_code=False)
    assert not trace.exists()
    assert grades.students[0].ids("open") == ["02.5"]
    assert grades.students[0].ids("passed") == ["02.8"]
    assert "not run" in grades.caption()


def test_equal_answers_are_checked_once(folder: pathlib.Path) -> None:
    """Twelve students with two different answers: two are checked, all get their grade."""
    for number in range(12):
        check = check_of("02.8", f"chunks = {16 if number % 3 else 1}", "passed")
        write(folder, f"{number}.json", report_of(number, checks=(check,)))
    asked: list[tuple[int, int]] = []
    grades = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",)), progress=lambda *both: asked.append(both))
    assert (grades.answers, grades.checked, asked) == (12, 2, [(1, 2), (2, 2)])
    assert [s.ids("passed") == ["02.8"] for s in grades.students] == [bool(n % 3) for n in range(12)]
    stopped = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",)), stop=lambda: True)
    assert {s.ids("open")[0] for s in stopped.students} == {"02.8"}


def test_what_the_students_machine_gave_decides(folder: pathlib.Path) -> None:
    """A ridge at 5 FLOP a byte asks for 10 rows: the answer is right on the roofs in the report, wrong on others, open without any."""
    from gpulab.evidence import Evidence
    from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline

    def roof(rate: float) -> Roofline:
        said = ("an example", Evidence.measured("A CPU"))
        memory = (MemoryRoof("DRAM", 2e10, float("inf"), *said),)
        return Roofline("A CPU", (ArithmeticRoof("float32", rate, *said),), memory, (), (), said[1])

    kept = _answers.keep(11)
    for name, seen in (("a", _answers.keep_result(roof(1e11))), ("b", _answers.keep_result(roof(8e11))), ("c", None), ("d", {"t": "x"})):
        write(folder, f"{name}.json", report_of(1, name, checks=(ReportedCheck("03.6", "passed", 1, 0, False, kept, seen),)))
    grades = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("03",)))
    assert [next(g.found for g in s.grades if g.id == "03.6") for s in grades.students] == ["passed", "wrong", "open", "open"]


def test_the_tables_of_grades_by_hand() -> None:
    """Two of three points and half of two questions; a student who did nothing; the reason that most give comes first."""
    right, wrong = Grade("02.2", "passed", "passed", "", 2.0, 2.0), Grade("02.5", "passed", "wrong", "too few", 0.0, 1.0)
    lost = Grade("02.8", "passed", "open", "a Tensor", 0.0, 0.0)
    none = tuple(Grade(id, "not attempted", found, said, 0.0, 1.0) for id, found, said in (
        ("02.2", "wrong", "no number"), ("02.5", "wrong", "too many"), ("02.8", "not attempted", ""),
    ))  # fmt: skip
    anna = StudentGrades("Anna", ("a.json", "b.json"), (right, wrong, lost), 1, 2, 0.5)
    three = (anna, StudentGrades("Ben", ("c.json",), none, 0, 2, 0.5), StudentGrades("=Cem", ("d.json",), (wrong,), 0, 0, 0.0))
    grades = Grades(three, lessons.Rubric(), True, 6, 5, ("02",))
    assert grades.table()[1] == [
        ("Anna", "2.5", "4", "62 %", "1", "02.5", "02.8", "02.5", "1 of 2"),
        ("Ben", "0", "4", "0 %", "0", "02.2, 02.5", "", "02.2, 02.5", "0 of 2"),
        ("=Cem", "0", "1", "0 %", "0", "02.5", "", "02.5", "0 of 0"),
    ]
    assert grades.failing().rows == (("02.5", 3, 3, "too few", 2), ("02.2", 1, 2, "no number", 1))
    assert grades.failing().table()[1] == [("02.5", "3 of 3", "too few", "2"), ("02.2", "1 of 2", "no number", "1")]
    assert grades.differences().rows[0] == ("Anna", "02.5", "passed", "wrong", "too few")
    assert grades.csv().splitlines() == [
        "student,file,points,of,percent,predictions,passed,wrong,cannot be checked here,reported otherwise,"
        "exercise 02.2,exercise 02.5,exercise 02.8",
        'Anna,"a.json, b.json",2.5,4,62.5,1,1,02.5,02.8,02.5,2,0,',
        "Ben,c.json,0,4,0.0,0,0,02.2 02.5,,02.2 02.5,0,0,0",
        "'=Cem,d.json,0,1,0.0,0,0,02.5,,02.5,,0,",
    ]
    said = "<grades of 3 students: 6 answers, 5 of them different>", "<2 exercises with wrong answers>"
    assert (repr(grades), repr(grades.failing())) == said
    nobody = Grades((), lessons.Rubric(), True, 0, 0)
    assert [table.table()[1] for table in (nobody.failing(), nobody.differences())] == [
        [("(none)", "", "", "")],
        [("(none)", "", "", "", "")],
    ]
    assert nobody.table()[1][0][0] == "(no students)"


def test_the_grading_process_is_taken_away() -> None:
    """When the grading ends its process has ended too, and is no zombie."""
    with Regrader() as asked:
        process = asked._started()
    assert process.returncode is not None


def test_a_rubric_is_read_or_refused(tmp_path: pathlib.Path) -> None:
    """What a rubric says is checked, and a mistake in it is named."""
    file = tmp_path / "rubric.json"
    file.write_text('{"exercise_points": 2, "points": {"02.5": 4}, "notebooks": ["02"], "open_share": 0.5}')
    rubric = lessons.Rubric.read(file)
    assert (rubric.of("02.5"), rubric.of("02.2"), rubric.prediction_points, rubric.open_share) == (4.0, 2.0, 0.25, 0.5)
    for text in (
        "",
        "[]",
        '{"points": [1]}',
        '{"points": {"99.9": 1}}',
        '{"points": {"9.3": 5}}',
        '{"notebooks": "09"}',
        '{"notebooks": ["9"]}',
        '{"notebooks": [9]}',
        '{"notebooks": {"09": 1}}',
        '{"exercise_points": -1}',
        '{"exercise_points": "a"}',
        '{"x": 1}',
        '{"open_share": 7}',
        '{"exercise_points": NaN}',
    ):
        file.write_text(text)
        with pytest.raises(InputError) as refused:
            lessons.Rubric.read(file)
        assert str(refused.value).count("expected") == 1  # not the file's sentence around the rubric's
    with pytest.raises(InputError):
        lessons.Rubric.read(tmp_path / "none.json")
    file.write_text('{"exercise_point": 2}')
    with pytest.raises(InputError, match=r"'exercise_point' is nothing that a rubric says; expected JSON such as"):
        lessons.Rubric.read(file)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"notebooks": "09"}, "notebooks='09'; expected several of 00, 01"),
        ({"notebooks": ("9",)}, "expected several of 00, 01"),
        ({"notebooks": ("09", "11")}, "expected several of 00, 01"),
        ({"notebooks": 9}, "expected several of 00, 01"),
        ({"points": {"9.3": 5}}, "there is no exercise '9.3'"),
        ({"points": {"09.1": 5}}, "there is no exercise '09.1'"),  # a question
    ],
)
def test_a_rubric_names_notebooks_and_exercises_that_there_are(wrong: dict[str, Any], says: str) -> None:
    """A number that is misspelt would count nothing, or everything, without a word."""
    with pytest.raises(InputError, match=says):
        lessons.Rubric(**wrong)
    assert lessons.Rubric(notebooks=("00", "10"), points={"09.3": 0}).notebooks == ("00", "10")


def test_the_caption_says_which_notebooks_counted_and_why(folder: pathlib.Path) -> None:
    """Named by the rubric, worked on by somebody, or none."""
    write(folder, "a.json", report_of(1, "Anna", predictions=(), checks=(check_of("02.8", "chunks = 16", "passed"),)))
    room = lessons.classroom(folder)
    assert "Notebooks that counted: 02 (because somebody worked on them)." in lessons.grade(room, run_code=False).caption()
    named = lessons.grade(room, lessons.Rubric(notebooks=("03", "09")), run_code=False)
    assert named.notebooks == ("03", "09")
    assert "03, 09 (because the rubric names them)." in named.caption()
    (folder / "a.json").unlink()
    assert "No notebook counted." in lessons.grade(lessons.classroom(folder)).caption()


@pytest.mark.parametrize("changed", [{"seconds": 0}, {"seconds": "x"}, {"memory_bytes": 5}, {"run_code": "yes"}, {"rubric": 5}])
def test_junk_is_refused(folder: pathlib.Path, changed: dict[str, Any]) -> None:
    """An argument that is none ends in one sentence."""
    with pytest.raises(InputError, match="grade"):
        lessons.grade(lessons.classroom(folder), **changed)
