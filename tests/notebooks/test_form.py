"""The notebooks' form: canonical bytes, short cells, no plumbing, an opening and an end that the course agrees on.

That they run is nbval's business (``make test`` gives it every notebook) and the browser's (``tests/browser/test_course.py``).
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import canonical
import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 200_000
MAX_CODE_LINES = 12  # "about ten lines" in DESIGN
# The kernel of 04.6 is the one with the race, which a cell before it runs (tests/notebooks/test_cells_calls.py compares them).
_BEGINS_AS_THE_EARLIER = {"block_sum"}
# What a learner should never see: each of these means that gpulab lacks a function.
PLUMBING = {
    "pip": r"^\s*[%!]\s*pip\b|^\s*!.*\bpip\s+install",
    "shell": r"^\s*!",
    "events": r"\bEvent\(|\.record\(\)",
    "plot styling": r"update_layout|update_traces|plt\.|rcParams",
    "parsing of output": r"\bsubprocess\b|\bre\.(match|search|findall)\(|capture_output",
    "clean-up": r"gc\.collect|empty_cache",
}


def load(path: Path) -> dict[str, Any]:
    """A notebook's JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict[str, Any]) -> str:
    """A cell's text."""
    return "".join(cell["source"])


def named(path: Path) -> str:
    """The test's id."""
    return path.stem


each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=named)


def test_the_course_begins_where_gpulab_lab_opens_it() -> None:
    """`gpulab lab` opens 00_start_here, and the notebooks are numbered in their order."""
    names = [path.name for path in NOTEBOOKS]
    assert "00_start_here.ipynb" in names
    assert "02_data_transfer.ipynb" in names
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", name) for name in names)


@each_notebook
def test_predictions_show_as_panels(path: Path) -> None:
    """Without the extension a prediction is plain text: it is loaded before the first one."""
    code = [source(cell) for cell in load(path)["cells"] if cell["cell_type"] == "code"]
    first = next(number for number, text in enumerate(code) if "gl.lessons.predict(" in text)
    assert any("%load_ext gpulab" in text for text in code[:first])


@each_notebook
def test_is_canonical(path: Path) -> None:
    """The file is byte for byte what tools/canonical.py writes, is valid nbformat 4.5, and is small."""
    text = path.read_text(encoding="utf-8")
    assert text == canonical.canonical_text(text), "run: .venv/bin/python tools/canonical.py"
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < MAX_BYTES


@each_notebook
def test_only_deterministic_cells_keep_outputs(path: Path) -> None:
    """A stored output that nothing compares goes stale; one that nbval compares has to be there."""
    for number, cell in enumerate(load(path)["cells"]):
        if cell["cell_type"] == "code":
            checked = canonical.CHECKED in source(cell)
            assert bool(cell["outputs"]) == checked, f"cell {number}: outputs {'missing' if checked else 'stored'}"


@each_notebook
def test_code_cells_are_short_and_free_of_plumbing(path: Path) -> None:
    """About ten lines a cell; no installation, events, plot styling or clean-up."""
    for number, cell in enumerate(load(path)["cells"]):
        if cell["cell_type"] != "code":
            continue
        lines = [line for line in source(cell).splitlines() if line.strip()]
        assert len(lines) <= MAX_CODE_LINES, f"cell {number} has {len(lines)} lines"
        for what, pattern in PLUMBING.items():
            assert not re.search(pattern, source(cell), re.MULTILINE), f"cell {number} holds {what}"


@each_notebook
def test_no_cell_is_empty(path: Path) -> None:
    """A cell whose content was lost runs without an error, and the prose before it announces what never comes."""
    assert [cell["id"] for cell in load(path)["cells"] if not source(cell).strip()] == []


@each_notebook
def test_every_cell_shows_something_or_makes_what_comes_after(path: Path) -> None:
    """A cell that does neither has lost what its prose announces; none ends in a bare pass."""
    code = [source(cell) for cell in load(path)["cells"] if cell["cell_type"] == "code" and not source(cell).startswith("%%")]
    trees = [ast.parse(re.sub(r"^%.*$", "", text, flags=re.MULTILINE)) for text in code]
    later: set[str] = set()
    for text, tree in zip(reversed(code), reversed(trees), strict=True):
        inside = list(ast.walk(tree))
        names = [node for node in inside if isinstance(node, ast.Name)]
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        made |= {alias.name.split(".")[-1] for node in inside if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
        made |= {alias.asname for node in inside if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names if alias.asname}
        shows = [node for node in inside if isinstance(node, (ast.Expr, ast.FunctionDef)) and not _is_words(node)]
        assert shows or made & later or text.startswith("%"), text
        assert not (tree.body and isinstance(tree.body[-1], ast.Pass)), text
        later |= {node.id for node in names}


@each_notebook
def test_no_loop_and_no_branch_does_nothing(path: Path) -> None:
    """One whose body does nothing has lost what it was for, such as the line that prints each size; an error may be let go."""
    for cell in load(path)["cells"]:
        text = source(cell)
        if cell["cell_type"] == "code" and not text.startswith("%%"):
            for node in ast.walk(ast.parse(re.sub(r"^%.*$", "", text, flags=re.MULTILINE))):
                for part in () if isinstance(node, ast.ExceptHandler) else ("body", "orelse", "finalbody"):
                    inside = getattr(node, part, None)
                    assert not (isinstance(inside, list) and inside and all(isinstance(one, ast.Pass) for one in inside)), text


@each_notebook
def test_no_exercise_takes_a_name_that_an_earlier_cell_reads(path: Path) -> None:
    """After Run All a name holds what its last cell gave it: a reveal that is run again, after a late prediction, must find its own."""
    code = [source(cell) for cell in load(path)["cells"] if cell["cell_type"] == "code" and not source(cell).startswith("%%")]
    before: set[str] = set()
    for tree in (ast.parse(re.sub(r"^%.*$", "", text, flags=re.MULTILINE)) for text in code):
        inside = list(ast.walk(tree))
        calls = [node for node in inside if isinstance(node, ast.Call) and ast.unparse(node.func) == "gl.lessons.check"]
        answers = {node.id for call in calls for node in call.args[1:] if isinstance(node, ast.Name)}
        assert not answers & before - _BEGINS_AS_THE_EARLIER
        names = [node for node in inside if isinstance(node, ast.Name)]
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        made |= {node.name for node in inside if isinstance(node, ast.FunctionDef)}
        before |= {node.id for node in names if isinstance(node.ctx, ast.Load)} - made


def _is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@each_notebook
def test_prose_comes_before_code(path: Path) -> None:
    """Code cells follow prose; the longest run without a word is predict, measure, reveal, whose first cell is a question."""
    kinds = [cell["cell_type"] for cell in load(path)["cells"]]
    assert kinds[0] == "markdown"
    runs = re.findall(r"c+", "".join("c" if kind == "code" else "m" for kind in kinds))
    assert max(map(len, runs)) <= 3


@each_notebook
def test_opening_and_end(path: Path) -> None:
    """It opens with questions, aims, minutes and hardware, and ends with key points and links."""
    cells = [source(cell) for cell in load(path)["cells"] if cell["cell_type"] == "markdown"]
    opening = "\n".join(cells[:2]).lower()
    assert re.match(r"# \S", cells[0]), "the first cell is the title"
    assert "question" in opening or "?" in opening
    assert re.search(r"\d+\s*(-|–|to)?\s*\d*\s*minutes", opening), "minutes"
    assert "you will be able to" in opening or "you can" in opening
    assert "hardware" in opening or "gpu" in opening
    end = "\n".join(cells[-3:]).lower()
    assert "key points" in end
    assert re.search(r"\]\(\d\d_[a-z0-9_]+\.ipynb\)", end) or len(NOTEBOOKS) == 1, "a link to another notebook"


@each_notebook
def test_links_lead_somewhere(path: Path) -> None:
    """Each link to a notebook or a picture names a file of the course or is the web's."""
    for cell in load(path)["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#\s]+)", source(cell)):
                if not re.match(r"https?://|attachment:|mailto:", target):
                    assert (FOLDER / target).exists(), f"{target} is not there"


@each_notebook
def test_no_exclamation_marks_and_no_emoji(path: Path) -> None:
    """The house style: plain words."""
    for number, cell in enumerate(load(path)["cells"]):
        if cell["cell_type"] == "markdown":
            prose = re.sub(r"```.*?```|`[^`]*`|!\[", "", source(cell), flags=re.DOTALL)
            assert "!" not in prose, f"cell {number}"
            assert not re.search("[\U0001f300-\U0001faff\u2600-\u27bf]", prose), f"cell {number}"
