"""The course as an nbgrader course: its form by nbgrader's schema, and a submission graded by nbgrader itself where it is installed."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import nbformat
import pytest

from gpulab import _nbgrader, cli
from gpulab.errors import InputError
from gpulab.lessons import content

ROOT = pathlib.Path(__file__).resolve().parents[1]
LESSONS = content.lessons()
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The whole course, exported once."""
    folder = tmp_path_factory.mktemp("course")
    assert len(_nbgrader.export(folder)) == len(LESSONS)
    return folder


def cells(course: pathlib.Path, notebook: str) -> list[Any]:
    """A notebook's cells; the file is valid nbformat."""
    made = nbformat.read(course / "source" / notebook / f"{notebook}.ipynb", as_version=4)
    nbformat.validate(made)
    return list(made.cells)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.notebook)
def test_each_exercise_has_its_cells(course: pathlib.Path, lesson: Any) -> None:
    """An answer cell with stub and solution; a locked test with points and a hidden assert, or points by hand where machines decide."""
    made = cells(course, lesson.notebook)
    graded = {cell.metadata.nbgrader.grade_id: cell for cell in made if "nbgrader" in cell.metadata}
    assert len(graded) == sum("nbgrader" in cell.metadata for cell in made), "grade ids are unique"
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", id) for id in graded)
    for exercise in lesson.exercises.values():
        number = exercise.id.replace(".", "-")
        answer = graded.pop(f"exercise-{number}")
        told = answer.metadata.nbgrader
        stub, _, rest = answer.source.partition(BEGIN)
        assert stub.strip() == exercise.stub.strip()
        assert rest.partition(END)[0].strip() == exercise.solution.strip()
        assert (told.schema_version, told.solution, told.locked, told.task) == (3, True, False, False)
        assert (told.grade, "points" in told) == ((True, True) if exercise.depends_on_machine else (False, False))
        if exercise.depends_on_machine:
            assert f"test-{number}" not in graded
            continue
        test = graded.pop(f"test-{number}")
        told = test.metadata.nbgrader
        assert (told.grade, told.locked, told.solution, told.points) == (True, True, False, 1.0)
        seen, _, hidden = test.source.partition("### BEGIN HIDDEN TESTS")
        assert "assert" not in seen
        assert re.search(r"assert \w+\.state ==", hidden)
    assert graded == {}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.notebook)
def test_everything_else_stays_as_it_is(course: pathlib.Path, lesson: Any) -> None:
    """Taken together again, the cells are those of the course's notebook."""
    plain = json.loads((ROOT / "notebooks" / f"{lesson.notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    wanted = ["".join(cell["source"]) for cell in plain]
    text = "\n".join(re.sub(f"{BEGIN}.*?{END}", "", cell.source, flags=re.DOTALL) for cell in cells(course, lesson.notebook))
    for cell in wanted:
        calls = [line for line in cell.splitlines() if "gl.lessons.check(" in line]
        for part in [cell] if not calls else [*calls, cell.replace(calls[0], "").strip()]:
            assert part in text


def test_the_configuration_is_python_that_nbgrader_can_run(course: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file sets the course's name, a stub that raises nothing, and time enough."""
    text = (course / "nbgrader_config.py").read_text()
    ast.parse(text)

    class Config(dict):  # what traitlets' Config does: sections come into being when they are asked for
        def __getattr__(self, name: str) -> Any:
            return self.setdefault(name, Config())

        __setattr__ = dict.__setitem__

    monkeypatch.setenv("GPULAB_PROGRESS", "before")
    config = Config()
    exec(text, {"get_config": lambda: config})
    assert config["CourseDirectory"]["course_id"] == "gpulab"
    assert "raise" not in config["ClearSolutions"]["code_stub"]["python"]
    assert config["ExecutePreprocessor"]["timeout"] >= 300


def test_the_command_says_what_comes_next(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One notebook alone, and the line that goes on; what cannot be done is one sentence."""
    assert cli.main(["nbgrader", "--out", str(tmp_path / "c"), "--notebook", "02", "--points", "2"]) == 0
    assert capsys.readouterr().out == (
        f"Wrote nbgrader_config.py and 1 assignment to {tmp_path / 'c'}:\n  nbgrader generate_assignment 02_data_transfer\n"
        "Run these in that folder. The solutions are in source/; the students' version is what lies in release/ afterwards.\n"
    )
    assert _nbgrader.export(tmp_path / "free", "02", points=0) == [
        tmp_path / "free" / "source" / "02_data_transfer" / "02_data_transfer.ipynb"
    ]
    assert {cell.metadata.nbgrader.get("points") for cell in cells(tmp_path / "c", "02_data_transfer") if "nbgrader" in cell.metadata} == {
        2.0,
        None,
    }
    for wrong in ({"notebook": "77"}, {"notebook": "0"}, {"notebook": "1"}, {"points": -1.0}, {"points": "x"}):
        with pytest.raises(InputError, match="nbgrader"):
            _nbgrader.export(tmp_path, **wrong)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        _nbgrader.export(tmp_path / "file")


def _nbgrader_run(folder: pathlib.Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stderr


def test_an_exercise_is_worth_one_point_unless_told() -> None:
    """As the help says."""
    parser = argparse.ArgumentParser()
    _nbgrader.add_parser(parser.add_subparsers())
    assert parser.parse_args(["nbgrader", "--out", "x"]).points == 1
    assert parser.parse_args(["nbgrader", "--out", "x", "--points", "2.5"]).points == 2.5


def test_the_files_are_as_jupyter_writes_them(course: pathlib.Path) -> None:
    """Nbformat's own form: to open and save a notebook changes nothing that git would show; letters stay letters."""
    for file in course.glob("source/*/*.ipynb"):
        text = file.read_text(encoding="utf-8")
        assert text == nbformat.writes(nbformat.reads(text, as_version=4)) + "\n", file.name


def test_a_course_needs_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """It is not written to where one happens to be."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["nbgrader"])
    assert ended.value.code == 2
    assert "the following arguments are required: --out" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed: pip install nbgrader")
def test_nbgrader_grades_a_submission(tmp_path: pathlib.Path) -> None:
    """generate_assignment hides solutions and asserts; autograde gives 1, 0, 0, 1 to a right, a wrong, no and a right answer."""
    name = "02_data_transfer"
    _nbgrader.export(tmp_path, "02")
    _nbgrader_run(tmp_path, "generate_assignment", name)
    released = nbformat.read(tmp_path / "release" / name / f"{name}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in released.cells)
    assert "assert checked" not in text
    for exercise in content.lessons()[2].exercises.values():
        assert exercise.stub in text
        assert exercise.solution not in text
    answers = {
        "02-2": content.exercise("02.2").solution,
        "02-5": content.exercise("02.5").usual[0].source,
        "02-9": content.exercise("02.9").solution,
    }
    for cell in released.cells:
        number = cell.metadata.get("nbgrader", {}).get("grade_id", "").removeprefix("exercise-")
        if number in answers:
            cell.source += "\n\n" + answers[number]
    submitted = tmp_path / "submitted" / "alice" / name
    submitted.mkdir(parents=True)
    nbformat.write(released, submitted / f"{name}.ipynb")
    _nbgrader_run(tmp_path, "autograde", name, "--student", "alice", "--create")
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        notebook = book.find_submission(name, "alice").notebooks[0]
        scores = {grade.name: (grade.score, grade.max_score) for grade in notebook.grades}
    assert scores == {"test-02-2": (1.0, 1.0), "test-02-5": (0.0, 1.0), "test-02-8": (0.0, 1.0), "test-02-9": (1.0, 1.0)}
