"""What a usual wrong prediction points to, as the page for teachers has it: conditions, sentences, factors and usual answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import make_misconceptions
import pytest

from gpulab.lessons import (
    _nb00,
    _nb01,
    _nb01_exercises,
    _nb02,
    _nb02_exercises,
    _nb03,
    _nb03_exercises,
    _nb04,
    _nb04_puzzles,
    _nb04_repairs,
    _nb05,
    _nb05_exercises,
    _nb05_rescue,
    _nb06,
    _nb06_exercises,
    _nb06_memory,
    _nb07,
    _nb07_exercises,
    _nb08,
    _nb08_exercises,
    _nb08_export,
    _nb08_ring,
    _nb08_strategy,
    _nb09,
    _nb09_exercises,
    _nb09_script,
    _nb10,
    _nb10_exercises,
    content,
)
from gpulab.lessons.content import Exercise

# Where exercises are written down.
WRITTEN = (
    _nb00, _nb01_exercises, _nb02_exercises, _nb03_exercises, _nb04_puzzles, _nb04_repairs, _nb05_exercises, _nb05_rescue,
    _nb06_exercises, _nb06_memory, _nb07_exercises, _nb08_exercises, _nb08_export, _nb08_ring, _nb08_strategy, _nb09_exercises,
    _nb09_script, _nb10_exercises,
)  # fmt: skip
LESSONS = [each.LESSON for each in (_nb00, _nb01, _nb02, _nb03, _nb04, _nb05, _nb06, _nb07, _nb08, _nb09, _nb10)]
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_page_of_misconceptions_is_what_the_lessons_say() -> None:
    """The page is made from the lessons' own content; when that changes, the page must be written again."""
    assert (DOCS / "misconceptions.md").read_text(encoding="utf-8") == make_misconceptions.page(), (
        "run: .venv/bin/python tools/make_misconceptions.py"
    )


def test_page_has_a_chapter_for_each_notebook() -> None:
    """In the order of the course, with its questions and its exercises in the order of the notebook, each once."""
    _, *chapters = (DOCS / "misconceptions.md").read_text(encoding="utf-8").split("\n## ")
    assert [chapter.partition("\n")[0] for chapter in chapters] == [lesson.notebook for lesson in LESSONS]
    for chapter, lesson in zip(chapters, LESSONS, strict=True):
        assert re.findall(r"^\| \*\*([\d.]+)\*\*", chapter, re.MULTILINE) == [*lesson.questions, *lesson.exercises]


def test_every_exercise_that_is_written_down_is_on_the_page() -> None:
    """By its number and its title, with a row for each of its usual wrong answers."""
    written = {each.id: each for module in WRITTEN for each in vars(module).values() if isinstance(each, Exercise)}
    assert sorted(written) == sorted(id for lesson in LESSONS for id in lesson.exercises)
    page = (DOCS / "misconceptions.md").read_text(encoding="utf-8")
    for id, exercise in written.items():
        rows = page.partition(f"\n| **{id}** {exercise.title} | <code>")[2].partition("| **")[0].partition("\n\n")[0]
        assert rows.count("\n|  | <code>") + 1 == len(exercise.usual)


def test_every_usual_answer_is_put_into_words() -> None:
    """No condition is left as Python, and none is empty."""
    for lesson in content.lessons():
        asked = {each.id: each for each in make_misconceptions.asked(ROOT / "notebooks" / f"{lesson.notebook}.ipynb")}
        assert set(asked) == set(lesson.questions), "the notebook asks what the lesson knows"
        for id, question in lesson.questions.items():
            for reading in question.readings:
                words = make_misconceptions.usual_answer(reading.when, asked[id])
                assert words, id
                assert "`" not in words, (id, words)


@pytest.mark.parametrize(
    ("when", "choices", "words"),
    [
        (lambda said, got: said < got, (), "less than what comes out"),
        (lambda said, got: said > 20 * got, (), "more than 20 times what comes out"),
        (lambda said, got: said < got / 2, (), "less than half of what comes out"),
        (lambda said, got: said <= 1.5 < got, (), "up to 1.5x, where more than 1.5x comes out"),
        (lambda said, got: said > 50 > got, (), "more than 50x, where less than 50x comes out"),
        (lambda said, got: 0.2 < said / got < 0.35, (), "between 0.2 and 0.35 of what comes out"),
        (lambda said, _: said == "a", ("a", "b", "c"), "*a*"),
        (lambda said, got: said == "a" and got == "c", ("a", "b", "c"), "*a*, where *c* comes out"),
        (lambda said, got: got == "b", ("a", "b", "c"), "*a* or *c*, where *b* comes out"),
    ],
)
def test_conditions_in_words(when: object, choices: tuple[str, ...], words: str) -> None:
    """Comparisons are read from the lambda; choices are tried one by one."""
    asked = make_misconceptions.Asked("99.1", "?", "" if choices else "x", choices)
    assert make_misconceptions.usual_answer(when, asked) == words  # type: ignore[arg-type]


def test_choices_that_the_package_lists(tmp_path: Path) -> None:
    """A question may take its choices from gpulab; the page has them as the learner sees them."""
    cell = {
        "cell_type": "code",
        "source": '%load_ext gpulab\ngl.lessons.predict("99.1", "Which?", choices=list(gl.precision.formats())[:2])',
    }
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": [cell]}))
    (asked,) = make_misconceptions.asked(tmp_path / "n.ipynb")
    assert asked == make_misconceptions.Asked("99.1", "Which?", "", ("float64", "float32"))
