"""``gpulab nbgrader``: the notebooks as an nbgrader course, tested by this package's own checks.

Each exercise becomes an answer cell, with the solution between nbgrader's marks, and a test cell
that calls the check. Only a hidden test asserts that the check passed, so a student's copy without
answers runs to its end, as it does in the course. Where the correct answer depends on the machine,
the answer cell is graded by hand. Source of the metadata: nbgrader, schema version 3.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from gpulab import lab, lessons
from gpulab._files import write_atomically
from gpulab._validate import expanded, within, writing
from gpulab.units import plural

_CONFIG = '''"""An nbgrader course of gpulab's notebooks, written by `gpulab nbgrader`.

    nbgrader generate_assignment 02_data_transfer      the students' version, in release/
    nbgrader autograde 02_data_transfer                runs the notebooks in submitted/STUDENT/02_data_transfer/
    nbgrader export                                    the grades, as grades.csv

Autograding runs students' notebooks with your rights: use an account, a container or a machine that holds nothing of value.
"""

import atexit
import os
import shutil
import tempfile

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "gpulab"
# The stub keeps its dots, so that a copy without an answer runs to its end and reports "not attempted yet".
c.ClearSolutions.code_stub = {"python": "# Write your answer in place of the dots above."}
# Seconds for each cell. A notebook takes a minute on two cores; some checks train models or start processes.
c.ExecutePreprocessor.timeout = 900
# The progress that checks store during autograding goes to a temporary folder.
folder = tempfile.mkdtemp(prefix="gpulab-nbgrader-")
atexit.register(shutil.rmtree, folder, ignore_errors=True)
os.environ["GPULAB_PROGRESS"] = os.path.join(folder, "progress.json")
'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab nbgrader`` and its arguments to its parser."""
    parser.description = (
        "Write a course folder for nbgrader: its configuration, and the notebooks with "
        "solutions and test cells in source/."
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        required=True,
        help="the course folder; files with the same names are replaced",
    )
    parser.add_argument(
        "--notebook", default="", metavar="02", help="only this notebook (default: all)"
    )
    parser.add_argument(
        "--points", type=float, default=1.0, help="points for each exercise (default: 1)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab nbgrader``; return the exit code."""
    files = export(arguments.out, arguments.notebook, arguments.points)
    print(
        f"Wrote nbgrader_config.py and {plural(len(files), 'assignment')} to {arguments.out}:",
        *(f"  nbgrader generate_assignment {file.parent.name}" for file in files),
        "Run these in that folder. The solutions are in source/; the students' version is then in "
        "release/.",
        sep="\n",
    )
    return 0


def export(out: str | os.PathLike[str], notebook: str = "", points: float = 1.0) -> list[Path]:
    """Write the course folder.

    Parameters
    ----------
    out : path
    notebook : str
        A notebook's number, such as "02"; "" for all.
    points : float
        For each exercise.

    Returns
    -------
    list of Path
        The notebooks that were written.

    Raises
    ------
    InputError
        If there is no such notebook, the points are not a valid number, or the folder cannot be
        written to.
    """
    points = within("nbgrader", "points", points)
    chosen = lessons.content.chosen(notebook, "nbgrader")
    folder, originals = expanded("nbgrader", out), lab.find_originals()
    # read outside ``writing``, which would blame the output folder for an error
    texts = [(originals / f"{each.notebook}.ipynb").read_text(encoding="utf-8") for each in chosen]
    written = []
    with writing("nbgrader", folder):
        write_atomically(folder / "nbgrader_config.py", _CONFIG.encode())
        for lesson, text in zip(chosen, texts, strict=True):
            content = json.loads(text)
            content["cells"] = [
                made for cell in content["cells"] for made in _cells(cell, lesson, points)
            ]
            file = folder / "source" / lesson.notebook / f"{lesson.notebook}.ipynb"
            write_atomically(
                file,
                (json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode(),
            )
            written.append(file)
    return written


def _cells(cell: dict[str, Any], lesson: Any, points: float) -> list[dict[str, Any]]:
    """Return the two cells that replace an exercise's cell; any other cell is returned alone."""
    text = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
    for exercise in lesson.exercises.values():
        call = f'gl.lessons.check("{exercise.id}", {exercise.answer_name})'
        if call in text:
            # such as "passed = gl.lessons.check(...)"
            line = next(each for each in text.splitlines() if call in each)
            return _exercise(cell, exercise, text.replace(line, "").rstrip(), line.strip(), points)
    return [cell]


def _exercise(
    cell: dict[str, Any], exercise: Any, stub: str, call: str, points: float
) -> list[dict[str, Any]]:
    # Makes an answer cell and a test cell. If the answer is graded by hand, a plain cell with the
    # check takes the place of the test cell.
    number, by_hand = exercise.id.replace(".", "-"), bool(exercise.machine)
    answer = f"{stub}\n\n### BEGIN SOLUTION\n{exercise.solution.strip()}\n### END SOLUTION"
    name = call.partition(" = ")[0]
    if not name.isidentifier():
        name, call = "checked", f"checked = {call}" if not by_hand else call
    test = (
        f'{call}\n### BEGIN HIDDEN TESTS\nassert {name}.state == "passed", '
        f"{name}.message\n### END HIDDEN TESTS"
    )
    plain = {"schema_version": 3, "task": False}
    worth = {"points": points} if by_hand else {}
    answered = {
        "grade": by_hand,
        "locked": False,
        "solution": True,
        "grade_id": f"exercise-{number}",
        **plain,
        **worth,
    }
    tested = {
        "grade": True,
        "locked": True,
        "solution": False,
        "grade_id": f"test-{number}",
        "points": points,
        **plain,
    }
    checked = (
        _code(f"{cell['id']}-check", call, None)
        if by_hand
        else _code(f"{cell['id']}-test", test, tested)
    )
    return [_code(cell["id"], answer, answered), checked]


def _code(id: str, text: str, nbgrader: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": id,
        "metadata": {} if nbgrader is None else {"nbgrader": nbgrader},
        "outputs": [],
        "source": text.splitlines(keepends=True),
    }
