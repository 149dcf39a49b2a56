"""The guide for teachers: it names every notebook, prediction and exercise, its plans fit the notebooks, its links lead somewhere."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from gpulab.lessons import content

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GUIDE = (DOCS / "teaching.md").read_text(encoding="utf-8")
NOTEBOOKS = {path.stem[:2]: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
PAGES = ("teaching.md", "glossary.md", "misconceptions.md")


def sections(number: str) -> dict[str, set[str]]:
    """A notebook's second-level headings, each with the ids of the predictions and exercises below it."""
    found: dict[str, set[str]] = {}
    heading = ""
    for cell in json.loads(NOTEBOOKS[number].read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        for line in source.splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("## "):
                heading = line[3:]
                found[heading] = set()
            for id in re.findall(r"lessons\.(?:predict|check)\(\s*[\"'](\d\d\.\d+)", line) if cell["cell_type"] == "code" else ():
                found.setdefault(heading, set()).add(id)
    return found


def plan_rows() -> list[tuple[str, str]]:
    """What the plans' rows do ("what") and what each student does, for the rows about notebooks."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in GUIDE.splitlines() if re.match(r"\| \d+-\d+ \|", line)]
    return [(row[1], row[2]) for row in rows]


@pytest.mark.parametrize("lesson", content.lessons(), ids=lambda lesson: lesson.notebook)
def test_guide_names_each_notebook_with_its_predictions_and_exercises(lesson: content.Lesson) -> None:
    """Each notebook has its section, and in it a row for each prediction and each exercise, with the exercise's own title."""
    section = next(part for part in GUIDE.split("\n## ") if part.startswith(f"{lesson.notebook[:2]} ·"))
    assert f"`{lesson.notebook}`" in section
    rows = set(re.findall(r"^\| (\d\d\.\d+)", section, re.MULTILINE))
    assert rows == set(lesson.ids)
    for id, exercise in lesson.exercises.items():
        assert f"| {id} {exercise.title} |" in section


def test_every_notebook_of_the_course_is_in_the_guide() -> None:
    """A notebook that is added needs its section."""
    for path in NOTEBOOKS.values():
        assert f"`{path.stem}`" in GUIDE, path.stem


@pytest.mark.parametrize(("minutes", "heading"), [(120, "## Two hours"), (240, "## Four hours"), (480, "## Eight hours")])
def test_a_plan_fills_its_hours(minutes: int, heading: str) -> None:
    """The rows follow each other without a gap and end with the last minute."""
    part = GUIDE.partition(heading)[2].partition("\n## ")[0]
    spans = [tuple(map(int, span)) for span in re.findall(r"^\| (\d+)-(\d+) \|", part, re.MULTILINE)]
    assert spans[0][0] == 0
    assert all(before[1] == after[0] and before[0] < before[1] for before, after in itertools.pairwise(spans))
    assert spans[-1][1] == minutes


def test_plans_name_sections_that_exist_and_ask_for_what_lies_in_them() -> None:
    """A section named in a plan is a heading of that notebook, and the predictions and exercises asked for lie in the named sections."""
    seen = 0
    for what, student in plan_rows():
        for number, part in re.findall(r"(?:^|\()(?:or )?(\d\d): ([^()]*)", what):
            if number not in NOTEBOOKS:
                continue
            seen += 1
            there = sections(number)
            named = re.findall(r"\*([^*]+)\*", part)
            assert set(named) <= set(there), (number, set(named) - set(there))
            whole = "all" in part.partition("*")[0] or part.startswith("to *")
            allowed = set().union(*(there.values() if whole else (there[name] for name in named)))
            asked = {id for id in re.findall(r"\d\d\.\d+", student) if id.startswith(number)}
            assert asked <= allowed, (number, asked - allowed)
    assert seen > 12


def test_glossary_is_sorted_and_each_term_is_in_its_notebook() -> None:
    """Each term stands once, in order, and the notebook that is said to explain it first uses it."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\d\d) \|$", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    terms = [term for term, _, _ in rows]
    assert len(terms) > 80
    assert terms == sorted(set(terms), key=str.casefold)
    for term, _, number in rows:
        cells = json.loads(NOTEBOOKS[number].read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells).casefold().replace("*", "")
        for word in term.casefold().split(",")[0].split():
            stem = word[: max(5, len(word) - 3)]  # "synchronise" is "synchronize()" in the text, "coalesced" also "coalescing"
            assert stem in text, f"{term}: not in notebook {number}"


@pytest.mark.parametrize("name", PAGES)
def test_links_of_the_guides_lead_somewhere(name: str) -> None:
    """Each link names a file of the project or is the web's."""
    for target in re.findall(r"\]\(([^)#\s]+)", (DOCS / name).read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (DOCS / target).exists(), f"{name}: {target} is not there"
