"""The notebooks and the lessons' registry say the same: every id once, every stub, hint and check in its place."""

from __future__ import annotations

import ast
import json
import pathlib
import re

import pytest

from gpulab.lessons import content
from gpulab.lessons.content import Lesson

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"
LESSONS = content.lessons()


def _cells(lesson: Lesson, kind: str) -> list[str]:
    notebook = json.loads((FOLDER / f"{lesson.notebook}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def _calls(lesson: Lesson, name: str) -> list[str]:
    """The first arguments of all calls gl.lessons.<name>(...), in the notebook's order."""
    code = "\n".join(line for cell in _cells(lesson, "code") for line in cell.splitlines() if not line.startswith("%"))
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and ast.unparse(node.func) == f"gl.lessons.{name}"]
    return [ast.literal_eval(node.args[0]) for node in sorted(found, key=lambda node: node.lineno)]


each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.notebook)


@each_lesson
def test_every_prediction_is_asked_once_and_then_revealed(lesson: Lesson):
    """The notebook asks and reveals exactly the registered questions, in their order."""
    assert _calls(lesson, "predict") == list(lesson.questions)
    assert _calls(lesson, "reveal") == list(lesson.questions)


@each_lesson
def test_a_prediction_comes_before_its_measurement(lesson: Lesson):
    """No cell reveals what an earlier or the same cell has not asked."""
    seen: set[str] = set()
    for cell in _cells(lesson, "code"):
        for id in re.findall(r'reveal\(\s*"([\d.]+)"', cell):
            assert id in seen
        seen |= set(re.findall(r'predict\(\s*"([\d.]+)"', cell))


@each_lesson
def test_every_exercise_has_its_cell(lesson: Lesson):
    """One code cell holds the registered stub and its check; the prose before it holds the title and every hint, folded."""
    code, prose = _cells(lesson, "code"), "\n".join(_cells(lesson, "markdown"))
    assert _calls(lesson, "check") == list(lesson.exercises)
    for exercise in lesson.exercises.values():
        matching = [cell for cell in code if f'gl.lessons.check("{exercise.id}", {exercise.answer_name})' in cell]
        assert len(matching) == 1
        assert exercise.stub in matching[0]
        assert f"### Exercise {exercise.id}: {exercise.title}" in prose
        assert all(hint in prose for hint in exercise.hints)
        assert f'gl.lessons.solution("{exercise.id}")' in prose
    assert prose.count("<details>") == prose.count("</details>") == sum(len(exercise.hints) for exercise in lesson.exercises.values())


@each_lesson
def test_solutions_are_not_in_the_notebook(lesson: Lesson):
    """A solution stays out of sight until it is asked for, so that an instructor can withhold it."""
    text = "\n".join(_cells(lesson, "code"))
    for exercise in lesson.exercises.values():
        assert exercise.solution not in text


@each_lesson
def test_no_cell_ends_with_a_tensor(lesson: Lesson):
    """IPython keeps what a cell ends with, and a tensor's device memory with it."""
    for cell in _cells(lesson, "code"):
        tree = ast.parse("\n".join(line for line in cell.splitlines() if not line.startswith("%")))
        if not tree.body or not isinstance(tree.body[-1], ast.Expr):
            continue
        shown = ast.unparse(tree.body[-1].value)
        if shown.isidentifier():  # a result that this very cell made
            assert re.search(rf"^{shown} = (gl\.|\w+\.report\(\))", cell, re.MULTILINE), shown
        else:
            assert re.match(r"gl\.|print\(", shown), shown
