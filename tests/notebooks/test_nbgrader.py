"""The course exported for nbgrader: its format, and a submission that nbgrader grades."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from course import LESSONS, ROOT
from gpulab import cli
from gpulab.lessons import content

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def export(folder: Path, *words: str) -> int:
    """Run ``gpulab nbgrader``; return its exit code."""
    return cli.main(["nbgrader", "--out", str(folder), *words])


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole course, exported once."""
    folder = tmp_path_factory.mktemp("course")
    assert export(folder) == 0
    return folder


def cells(course: Path, notebook: str) -> list[Any]:
    """Return a notebook's cells, after checking that the file is valid and as Jupyter writes it."""
    text = (course / "source" / notebook / f"{notebook}.ipynb").read_text(encoding="utf-8")
    made = nbformat.reads(text, as_version=4)
    nbformat.validate(made)
    assert text == nbformat.writes(made) + "\n"
    return list(made.cells)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.notebook)
def test_each_exercise_has_its_cells(course: Path, lesson: Any) -> None:
    """Each has a stub and solution, and a locked test, or manual points if the machine matters."""
    made = cells(course, lesson.notebook)
    graded = {cell.metadata.nbgrader.grade_id: cell for cell in made if "nbgrader" in cell.metadata}
    assert len(graded) == sum("nbgrader" in cell.metadata for cell in made)
    for exercise in lesson.exercises.values():
        number = exercise.id.replace(".", "-")
        answer = graded.pop(f"exercise-{number}")
        stub, _, rest = answer.source.partition(BEGIN)
        assert (stub.strip(), rest.partition(END)[0].strip()) == (
            exercise.stub.strip(),
            exercise.solution.strip(),
        )
        by_hand = bool(exercise.machine)
        wanted = {
            "grade": by_hand,
            "locked": False,
            "solution": True,
            "task": False,
            "schema_version": 3,
            "grade_id": f"exercise-{number}",
        }
        assert answer.metadata.nbgrader == wanted | ({"points": 1.0} if by_hand else {})
        if not by_hand:
            test = graded.pop(f"test-{number}")
            wanted = {
                "grade": True,
                "locked": True,
                "solution": False,
                "task": False,
                "schema_version": 3,
                "grade_id": f"test-{number}",
            }
            assert test.metadata.nbgrader == wanted | {"points": 1.0}
            seen, _, hidden = test.source.partition("### BEGIN HIDDEN TESTS")
            assert f'gl.lessons.check("{exercise.id}", {exercise.answer_name})' in seen
            assert "assert" not in seen
            assert re.search(r'assert \w+\.state == "passed"', hidden)
    assert graded == {}
    plain = json.loads(
        (ROOT / "notebooks" / f"{lesson.notebook}.ipynb").read_text(encoding="utf-8")
    )["cells"]
    others = [
        "".join(cell["source"])
        for cell in plain
        if "gl.lessons.check(" not in "".join(cell["source"])
    ]
    assert [text for text in others if text not in {cell.source for cell in made}] == []


def test_the_configuration_can_be_run(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sets the course's name, a stub that raises nothing, enough time and a progress file."""

    class Config(
        dict
    ):  # what traitlets' Config does: it creates a section on the first access to it
        def __getattr__(self, name: str) -> Any:
            return self.setdefault(name, Config())

        __setattr__ = dict.__setitem__

    monkeypatch.setenv("GPULAB_PROGRESS", "before")
    config = Config()
    exec(
        (course / "nbgrader_config.py").read_text(encoding="utf-8"), {"get_config": lambda: config}
    )
    assert config["CourseDirectory"]["course_id"] == "gpulab"
    assert "raise" not in config["ClearSolutions"]["code_stub"]["python"]
    assert config["ExecutePreprocessor"]["timeout"] >= 300
    assert os.environ["GPULAB_PROGRESS"] != "before"


def test_the_command_writes_one_notebook_and_says_what_comes_next(
    tmp_path: Path, approved: Any, capsys: Any
) -> None:
    """The cells carry the requested points; invalid requests fail and write nothing."""
    assert export(tmp_path / "c", "--notebook", "02", "--points", "2.5") == 0
    assert capsys.readouterr().out.replace(str(tmp_path), "HERE") == approved
    found = cells(tmp_path / "c", "02_data_transfer")
    assert {
        cell.metadata.nbgrader.get("points") for cell in found if "nbgrader" in cell.metadata
    } == {2.5, None}
    (tmp_path / "file").write_text("")
    for words in (
        ["--notebook", "77"],
        ["--notebook", "0"],
        ["--points", "-1"],
        ["--points", "nan"],
    ):
        assert export(tmp_path / "d", *words) != 0
    assert export(tmp_path / "file") != 0
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed"
)
def test_nbgrader_grades_a_submission(tmp_path: Path) -> None:
    """Solutions are hidden; right answers get 1 point, wrong and missing ones get 0."""
    name = "02_data_transfer"
    export(tmp_path, "--notebook", "02")

    def run(*words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-m", "nbgrader", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=900,
            check=True,
        )

    run("generate_assignment", name)
    released = nbformat.read(tmp_path / "release" / name / f"{name}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in released.cells)
    assert "assert checked" not in text
    assert not [
        e.id for e in LESSONS[2].exercises.values() if e.stub not in text or e.solution in text
    ]
    answers = {
        "02-2": content.exercise("02.2").solution,
        "02-5": content.exercise("02.5").usual[0].source,
        "02-9": content.exercise("02.9").solution,
    }
    for cell in released.cells:
        number = cell.metadata.get("nbgrader", {}).get("grade_id", "").removeprefix("exercise-")
        cell.source += "\n\n" + answers[number] if number in answers else ""
    submitted = tmp_path / "submitted" / "alice" / name
    submitted.mkdir(parents=True)
    nbformat.write(released, submitted / f"{name}.ipynb")
    run("autograde", name, "--student", "alice", "--create")
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        grades = book.find_submission(name, "alice").notebooks[0].grades
        scores = {grade.name: (grade.score, grade.max_score) for grade in grades}
    assert scores == {
        "test-02-2": (1.0, 1.0),
        "test-02-5": (0.0, 1.0),
        "test-02-8": (0.0, 1.0),
        "test-02-9": (1.0, 1.0),
    }
