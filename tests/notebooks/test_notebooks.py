"""The notebooks' form, the course's exercises in them, and the guides for teachers."""

import ast
import inspect
import itertools
import json
import operator
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import canonical
import gpulab
import nbformat
import pytest
from course import LESSONS, ROOT
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from students import changed, report_of, write

FOLDER, DOCS = ROOT / "notebooks", ROOT / "docs"
PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
INSTRUCTOR = ROOT / "instructor" / "class_results.ipynb"
CELLS = {
    name: json.loads(path.read_text(encoding="utf-8"))["cells"] for name, path in PATHS.items()
}
GUIDE = (DOCS / "teaching.md").read_text(encoding="utf-8")
# Code that learners should never see: each pattern means that gpulab lacks a function.
PLUMBING = (
    r"^\s*[%!]\s*pip\b", r"^\s*!", r"update_layout|update_traces|plt\.|rcParams",
    r"\bsubprocess\b|\bre\.(match|search|findall)\(|capture_output", r"gc\.collect",
)  # fmt: skip
each_notebook = pytest.mark.parametrize("name", PATHS)


def sources(name: str, kind: str) -> list[str]:
    """The texts of a notebook's cells of one kind."""
    return [
        "".join(cell["source"])
        for cell in CELLS[name]
        if cell["cell_type"] == kind and cell["id"] != "colab"  # that cell installs gpulab
    ]


def trees(name: str) -> list[ast.Module]:
    """Return the Python code cells, parsed without their magics."""
    code = [text for text in sources(name, "code") if not text.startswith("%%")]
    return [ast.parse(re.sub(r"^%.*$", "", text, flags=re.MULTILINE)) for text in code]


def names_in(tree: ast.AST, context: type) -> set[str]:
    """The names that are read, or given a value, in a cell."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """The calls of gl.lessons.<name> in a cell, in their order."""
    found = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == f"gl.lessons.{name}"
    ]
    return sorted(found, key=lambda node: node.lineno)


@pytest.mark.parametrize("path", [*PATHS.values(), INSTRUCTOR], ids=lambda path: path.stem)
def test_a_notebook_is_canonical_and_small(path: Path) -> None:
    """The file is as tools/canonical.py writes it; only cells with compared outputs keep them."""
    text = path.read_text(encoding="utf-8")
    assert text == canonical.canonical_text(path), "run: .venv/bin/python tools/canonical.py"
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor, notebook.metadata.kernelspec.name) == (
        4,
        5,
        "python3",
    )
    assert len(text.encode()) < 200_000
    for cell in notebook.cells:
        assert cell.source.strip(), f"{cell.id} is empty"
        if cell.cell_type == "code":
            assert bool(cell.outputs) == (canonical.CHECKED in cell.metadata.get("tags", [])), (
                cell.id
            )


@each_notebook
def test_code_cells_are_short_and_free_of_plumbing(name: str) -> None:
    """A cell fits on a screen and has no installation, plot styling, parsing or clean-up."""
    for text in sources(name, "code"):
        assert sum(bool(line.strip()) for line in text.splitlines()) <= 16, text
        assert not [pattern for pattern in PLUMBING if re.search(pattern, text, re.MULTILINE)], text


@each_notebook
def test_the_cell_for_colab_installs_there_and_nowhere_else(name: str) -> None:
    """The cell below the title installs on Colab only, and enables third-party widgets there."""
    code = TransformerManager().transform_cell("".join(CELLS[name][1]["source"]))
    for modules, colab, calls in (
        ((), mock.Mock(), []),
        (
            ("google", "google.colab"),
            mock.Mock(),
            ["run_line_magic", "output.enable_custom_widget_manager"],
        ),
    ):
        with mock.patch.dict(sys.modules, dict.fromkeys(modules, colab)):
            exec(code, {"get_ipython": lambda colab=colab: colab})
        assert [call[0] for call in colab.mock_calls] == calls


@each_notebook
def test_no_exercise_takes_a_name_that_an_earlier_cell_reads(name: str) -> None:
    """An earlier cell can rerun after Run All; the exception is 04.6, which repairs a kernel."""
    before: set[str] = set()
    for tree in trees(name):
        answers = {
            arg.id
            for call in calls(tree, "check")
            for arg in call.args[1:]
            if isinstance(arg, ast.Name)
        }
        assert not answers & before - {"block_sum"}
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        before |= names_in(tree, ast.Load) - names_in(tree, ast.Store) - functions


@each_notebook
def test_opening_prose_and_end(name: str) -> None:
    """Questions, aims, minutes and hardware come first; key points and a link to go on last."""
    # Without a folder in gpulab/course its predictions and exercises would not be tested.
    assert name in {lesson.notebook for lesson in LESSONS}
    prose = sources(name, "markdown")
    opening, end = "\n".join(prose[:2]).lower(), "\n".join(prose[-3:]).lower()
    for pattern in (
        r"^# \S",
        r"\?",
        r"\d+\s*(-|–|to)?\s*\d*\s*minutes",
        "you will be able to|you can",
        "hardware",
    ):
        assert re.search(pattern, opening), pattern
    assert "key points" in end
    assert re.search(r"\]\(\d\d_[a-z0-9_]+\.ipynb\)", end)
    kinds = "".join(cell["cell_type"][0] for cell in CELLS[name])
    assert kinds[0] == "m"
    assert max(map(len, re.findall("c+", kinds))) <= 3
    for text in prose:
        plain = re.sub(r"```.*?```|`[^`]*`|!\[", "", text, flags=re.DOTALL)
        assert not re.search("!|[\U0001f300-\U0001faff\u2600-\u27bf]", plain), text
    first, _, _ = "\n".join(sources(name, "code")).partition("gl.lessons.predict(")
    assert "%load_ext gpulab" in first


@each_notebook
def test_a_call_in_the_prose_can_be_made(name: str) -> None:
    """Its parameters exist in the function, so a learner who copies it gets no TypeError."""
    for text in re.findall(r"`(gl\.[\w.]+\([^`()]*\))`", "\n".join(sources(name, "markdown"))):
        call: Any = ast.parse(text, mode="eval").body
        function = operator.attrgetter(ast.unparse(call.func).removeprefix("gl."))(gpulab)
        inspect.signature(function).bind_partial(*call.args, **{w.arg: 0 for w in call.keywords})


@pytest.mark.parametrize("path", [*PATHS.values(), *(DOCS / f"{page}.md" for page in ("teaching",
"glossary"))], ids=lambda path: path.stem)  # fmt: skip
def test_links_lead_somewhere(path: Path) -> None:
    """Each link is a web address or names a file that exists."""
    text = (
        "\n".join(sources(path.stem, "markdown"))
        if path.stem in PATHS
        else path.read_text(encoding="utf-8")
    )
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert (
            re.match(r"https?://|attachment:|mailto:", target) or (path.parent / target).exists()
        ), target


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.notebook)
def test_a_notebook_asks_reveals_and_checks_what_the_course_has(lesson: Any) -> None:
    """Each id appears once, in order, and is predicted before its reveal; no solution is shown.

    A reveal is the last line of its cell, since Jupyter shows only that line's value.
    """
    name, prose = lesson.notebook, "\n".join(sources(lesson.notebook, "markdown"))
    found = {
        word: [ast.literal_eval(call.args[0]) for tree in trees(name) for call in calls(tree, word)]
        for word in ("predict", "reveal", "check")
    }
    assert found == {
        "predict": list(lesson.questions),
        "reveal": list(lesson.questions),
        "check": list(lesson.exercises),
    }, "predictions stand in the order of predictions.toml, exercises in that of their numbers"
    seen: set[str] = set()
    for tree in trees(name):
        reveals = calls(tree, "reveal")
        assert reveals in ([], calls(tree.body[-1], "reveal"))
        assert {ast.literal_eval(call.args[0]) for call in reveals} <= seen
        seen |= {ast.literal_eval(call.args[0]) for call in calls(tree, "predict")}
    for exercise in lesson.exercises.values():
        assert f"### Exercise {exercise.id}: {exercise.title}" in prose
        assert exercise.solution not in "\n".join(sources(name, "code"))
        assert [hint for hint in exercise.hints if hint not in prose] == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.notebook)
def test_the_guide_names_each_prediction_and_exercise(lesson: Any) -> None:
    """The guide's section for a notebook has a row per id, with each exercise's title."""
    heading = f"{lesson.notebook[:2]} ·"
    section = next((part for part in GUIDE.split("\n## ") if part.startswith(heading)), "")
    assert f"`{lesson.notebook}`" in section, f"docs/teaching.md needs a section '## {heading} ...'"
    assert set(re.findall(r"^\| (\d\d\.\d+)", section, re.MULTILINE)) == set(lesson.ids), (
        "docs/teaching.md needs a row for each prediction and exercise, and no other"
    )
    assert [
        id
        for id, exercise in lesson.exercises.items()
        if f"| {id} {exercise.title} |" not in section
    ] == []


def headings(number: str) -> dict[str, set[str]]:
    """Return a notebook's sections, each with the ids of its predictions and exercises."""
    found: dict[str, set[str]] = {"": set()}
    for cell in CELLS[next(name for name in PATHS if name.startswith(number))]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            found |= {heading: set() for heading in re.findall(r"^## (.*)$", text, re.MULTILINE)}
        else:
            found[list(found)[-1]] |= set(
                re.findall(r"lessons\.(?:predict|check)\(\s*[\"'](\d\d\.\d+)", text)
            )
    return found


def test_plans_fill_their_hours_and_name_what_is_there() -> None:
    """Times have no gap; named sections exist and contain the predictions and exercises listed."""
    for minutes, heading in (
        (120, "## Two hours"),
        (240, "## Four hours"),
        (480, "## Eight hours"),
    ):
        part = GUIDE.partition(heading)[2].partition("\n## ")[0]
        spans = [
            tuple(map(int, span)) for span in re.findall(r"^\| (\d+)-(\d+) \|", part, re.MULTILINE)
        ]
        assert (spans[0][0], spans[-1][1]) == (0, minutes)
        assert all(one[1] == two[0] and one[0] < one[1] for one, two in itertools.pairwise(spans))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in GUIDE.splitlines()
        if re.match(r"\| \d+-\d+ \|", line)
    ]
    parts = [
        (number, part, row[2])
        for row in rows
        for number, part in re.findall(r"(?:^|\()(?:or )?(\d\d): ([^()]*)", row[1])
    ]
    assert len(parts) > 12
    for number, part, student in parts:
        there, named = headings(number), re.findall(r"\*([^*]+)\*", part)
        assert set(named) <= set(there), (number, named)
        whole = "all" in part.partition("*")[0] or part.startswith("to *")
        allowed = set().union(*(there.values() if whole else (there[each] for each in named)))
        assert {
            id for id in re.findall(r"\d\d\.\d+", student) if id.startswith(number)
        } <= allowed, (number, student)


def test_the_glossary_is_sorted_and_each_term_is_in_its_notebook() -> None:
    """Terms are sorted and unique, and the notebook given for a term uses it in some form."""
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| (\d\d) \|$",
        (DOCS / "glossary.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    terms = [term for term, _, _ in rows]
    assert len(terms) > 80
    assert terms == sorted(set(terms), key=str.casefold)
    for term, _, number in rows:
        name = next(name for name in PATHS if name.startswith(number))
        text = (
            "\n".join(sources(name, "markdown") + sources(name, "code")).casefold().replace("*", "")
        )
        words = term.casefold().split(",")[0].split()
        assert [word for word in words if word[: max(5, len(word) - 3)] not in text] == [], term


@pytest.mark.slow
@pytest.mark.parametrize("students", [0, 3])
def test_the_instructors_notebook_runs(
    students: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell runs, for a class with a damaged file and for no reports at all."""
    for number in range(students):
        write(
            tmp_path / "reports",
            f"{number}.json",
            changed(report_of(number), "name", value=f"<script>{number}"),
        )
    if students:
        write(tmp_path / "reports", "bad.json", "{")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(INSTRUCTOR, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    data = {
        cell.id: [output.get("data", {}) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    pages = {
        name: "".join(one.get("text/html", "") for one in shown) for name, shown in data.items()
    }
    assert ("gpulab report --name NAME" in pages["room"]) == (not students)
    assert ("bad.json" in pages["problems"], "02.8" in pages["exercises"]) == (bool(students),) * 2
    assert any("plotly" in mime for one in data["machines"] for mime in one)
    assert [name for name, page in pages.items() if re.search("<script>[0-9]", page)] == []
    rows = (tmp_path / "grades.csv").read_text(encoding="utf-8-sig").splitlines()
    assert len(rows) == 1 + students
