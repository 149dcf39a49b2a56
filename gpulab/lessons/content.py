"""The content of a lesson: questions to predict and exercises to solve, read from the files of
``gpulab/course`` and found by their id.

An id is the notebook's number and a running number ("02.3"). A notebook's folder contains
``predictions.toml``, the questions and the misconceptions behind common wrong predictions, in the
order of the notebook, and one file for each exercise. The notebook has its exercises in the order
of their numbers. The file of an exercise has cells that begin with a line such as ``# %% stub``:

- ``exercise``: the fields of ``Exercise`` that are plain values;
- ``stub`` and ``solution``: sources as a learner would write them;
- ``hint``: a comment, one cell for each hint;
- ``check``: the function ``check``, and ``seen`` where the exercise has one;
- ``wrong: WORDS``: a common wrong answer and the words that its refusal must contain.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpulab.errors import InputError, message_of, shown
from gpulab.results import Result

COURSE = Path(__file__).resolve().parent.parent / "course"


@dataclass(frozen=True)
class Reading:
    """The misconception behind a common wrong prediction.

    Attributes
    ----------
    when : callable
        Called with (predicted, measured) in base units, or two choices; True if the prediction
        shows this misconception.
    sentence : str
        What the learner may have thought, and what is true.
    """

    when: Callable[[Any, Any], bool]
    sentence: str


@dataclass(frozen=True)
class Question:
    """What is known about a prediction besides the text in the notebook.

    Attributes
    ----------
    id : str
    readings : tuple of Reading
        The first that applies is shown with the measurement.
    close_ratio : float
        A prediction within this factor of the measurement counts as close.
    close_absolute : float
        A prediction that differs from the measurement by at most this much, in base units, also
        counts as close. It is for small counts: no factor relates 0 and 1.
    """

    id: str
    readings: tuple[Reading, ...] = ()
    close_ratio: float = 2.0
    close_absolute: float = 0.0


@dataclass(frozen=True)
class Usual:
    """A common wrong answer, kept so that tests can check that it is refused with its own message.

    Attributes
    ----------
    source : str
        Python that replaces the stub in the notebook.
    says : str
        Words that the refusal must contain.
    """

    source: str
    says: str


# Results that the notebooks measured and the checks compare with, by name. They stay the same until
# the kernel ends, so that a check uses the numbers that the learner saw.
KEPT: dict[str, Any] = {}


@dataclass(frozen=True)
class Seen:
    """A result of the learner's own machine that a check compares the answer with; kept with the
    answer.

    Attributes
    ----------
    name : str
        Its name in ``KEPT``.
    kind : type
        The result's class.
    """

    name: str
    kind: type[Result]


@dataclass(frozen=True)
class Exercise:
    """One checked exercise.

    Attributes
    ----------
    id, title : str
    answer_name : str
        The name that the stub defines and that is checked.
    stub, solution : str
        Python sources that define ``answer_name``; the stub is the notebook's cell.
    hints : tuple of str
        From a nudge to nearly the answer.
    check : callable
        Called with the answer, which is not a stub; returns a sentence on why it is right, or
        raises ``Refused`` with what is wrong.
    usual : tuple of Usual
        Common wrong answers.
    limit_seconds : float
        The time limit of the check, since a learner's loop may be endless.
    loads : tuple of str
        The large libraries that the check uses, imported before its time limit starts.
    machine : str
        The property of the learner's machine that decides whether an answer is right; "" if a right
        answer is right everywhere.
    seen : Seen or None
        That property, if it can be kept with the answer, so that another machine can check the
        answer again.
    unkept : str
        Why an answer cannot be stored in a file; "" if it can.
    answer_is_file : bool
        The answer is the path of a file, whose text is the answer.
    prepare : callable
        What else must run before the time limit starts.
    live : bool
        The check needs more than the plain values that an answer returns, such as the objects that
        the answer changes, memory that it shares, or what it does while it runs. An instructor's
        machine then runs the check in the process of the answer, whose code could forge the
        outcome.
    """

    id: str
    title: str
    answer_name: str
    stub: str
    solution: str
    hints: tuple[str, ...]
    check: Callable[[Any], str]
    usual: tuple[Usual, ...]
    limit_seconds: float = 20.0
    loads: tuple[str, ...] = ()
    machine: str = ""
    seen: Seen | None = None
    unkept: str = ""
    answer_is_file: bool = False
    live: bool = False
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Lesson:
    """One notebook's questions and exercises, in the notebook's order."""

    notebook: str
    questions: Mapping[str, Question] = field(default_factory=dict)
    exercises: Mapping[str, Exercise] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """Every id, in the order of their numbers."""
        return sorted([*self.questions, *self.exercises], key=lambda id: int(id.partition(".")[2]))


class Refused(Exception):  # noqa: N818  (not an error of the program: an answer that is wrong)
    """The answer is wrong; the message says why."""


class NotAttempted(Exception):  # noqa: N818
    """The stub is unchanged, or has no answer yet; the message, if any, says what is missing."""


class Nothing(NotAttempted):
    """A function ran and returned nothing: it is wrong, unless it is the stub; the message says
    what is missing.
    """


@functools.cache
def lessons() -> tuple[Lesson, ...]:
    """Return every notebook's content, in the order of the course."""
    return tuple(
        read_lesson(folder)
        for folder in sorted(COURSE.iterdir())
        if (folder / "predictions.toml").exists()
    )


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn any error in a file's content into an ``InputError`` with the file's name."""
    try:
        yield
    except Exception as error:  # a course's author may have written anything
        raise InputError(
            f"course: {path} cannot be read ({type(error).__name__}: {message_of(error)}); "
            "expected what gpulab.lessons.content describes. Correct the file and restart the "
            "kernel."
        ) from error


def read_lesson(folder: Path) -> Lesson:
    """Return the content of a notebook's folder.

    Raises
    ------
    InputError
        If a file cannot be read, or two exercises have the same id.
    """
    with _named(folder / "predictions.toml"):
        tables = tomllib.loads((folder / "predictions.toml").read_text(encoding="utf-8"))
        notebook = tables.pop("notebook")
        questions = {
            id: Question(
                id,
                tuple(
                    Reading(_condition(each["when"]), each["text"])
                    for each in table.pop("readings", ())
                ),
                **table,
            )
            for id, table in tables.items()
        }
    exercises: dict[int, Exercise] = {}
    for path in sorted(folder.glob("*.py")):
        with _named(path):
            found = _exercise_of(path)
            if exercises.setdefault(int(found.id.partition(".")[2]), found) is not found:
                raise ValueError(f"another file has the id {found.id}")
    return Lesson(
        notebook,
        questions,
        {exercises[number].id: exercises[number] for number in sorted(exercises)},
    )


def _exercise_of(path: Path) -> Exercise:
    """Return the exercise of a file."""
    cells: dict[str, list[tuple[str, str]]] = {}
    kind, first, lines = "", 0, path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, "# %%"]):
        if line.startswith("# %%"):
            name, _, words = kind.partition(": ")
            # A cell begins with as many empty lines as the file has lines before it, so that a
            # traceback shows the line numbers of the file.
            cells.setdefault(name, []).append(
                (words, "\n" * first + "\n".join(lines[first:number]).rstrip())
            )
            kind, first = line.removeprefix("# %%").strip(), number + 1
    source = {name: each[0][1].lstrip("\n") for name, each in cells.items()}
    check = cells["check"][0][1]

    # Run on demand: the check loads large libraries, which reading reports does not need.
    @functools.cache
    def checks() -> dict[str, Any]:
        with _named(path):
            return definitions(path, check)

    hints = (
        " ".join(line.removeprefix("#").strip() for line in text.split("\n")).strip()
        for _, text in cells["hint"]
    )
    usual = tuple(Usual(text.lstrip("\n"), words) for words, text in cells.get("wrong", ()))
    return Exercise(
        **definitions(path, source["exercise"]),
        stub=source["stub"],
        solution=source["solution"],
        hints=tuple(hints),
        check=lambda answer: str(checks()["check"](answer)),
        usual=usual,
        seen=checks().get("seen") if "\nseen = " in check else None,
        prepare=checks,
    )


def definitions(path: Path, source: str | None = None) -> dict[str, Any]:
    """Run a content file, or a part of it; return what it defines."""
    # Dataclasses need the name of a module that exists. cloudpickle sends an object by value if it
    # does not find the object in that module.
    names: dict[str, Any] = {"__name__": __name__}
    before = set(names) | {"__builtins__", "__annotations__"}
    text = path.read_text(encoding="utf-8") if source is None else source
    exec(compile(text, str(path), "exec", annotations.compiler_flag, dont_inherit=True), names)
    return {name: value for name, value in names.items() if name not in before}


def _condition(expression: str) -> Callable[[Any, Any], bool]:
    """Return the condition of a reading as a function of ``predicted`` and ``measured``."""
    code = compile(expression, expression, "eval")
    return lambda predicted, measured: bool(
        eval(code, {"predicted": predicted, "measured": measured})
    )


def chosen(notebook: str, who: str) -> tuple[Lesson, ...]:
    """Return the content of the notebook with that number or name, or of all notebooks for "".

    Raises
    ------
    InputError
        If there is none. One digit is not the number of a notebook: "0" would match ten of them.
    """
    whole = isinstance(notebook, str) and (notebook == "" or len(notebook) >= len("02"))
    found = tuple(each for each in lessons() if whole and each.notebook.startswith(notebook))
    if not found:
        numbers = ", ".join(lesson.notebook[:2] for lesson in lessons())
        raise InputError(
            f"{who}: there is no notebook {shown(notebook, 40)}; expected one of {numbers}. Leave "
            "it out for all of them."
        )
    return found


def exercises() -> dict[str, Exercise]:
    """Return every exercise of the course by its id."""
    return {id: each for lesson in lessons() for id, each in lesson.exercises.items()}


def exercise(id: str) -> Exercise:
    """Return the exercise of that id.

    Raises
    ------
    InputError
        If there is none.
    """
    known = exercises()
    if not isinstance(id, str) or id not in known:
        raise InputError(
            f"exercise {shown(id, 40)} is not in this course; expected one of {', '.join(known)}. "
            "Copy the id from the notebook."
        )
    return known[id]


def question(id: str) -> Question:
    """Return what is known about a prediction; an id that the course does not have gets an empty
    record (your own notebook).
    """
    return next(
        (lesson.questions[id] for lesson in lessons() if id in lesson.questions), Question(id)
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab misconceptions`` and its arguments to its parser."""
    parser.description = (
        "List the misconceptions behind common wrong predictions, and the common wrong answers to "
        "each exercise with words of their refusal."
    )
    parser.add_argument(
        "notebook",
        nargs="?",
        default="",
        metavar="NN",
        help="only this notebook, such as 02 (default: all)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab misconceptions``; return the exit code."""
    fill = functools.partial(textwrap.fill, width=100, initial_indent="- ", subsequent_indent="  ")
    for lesson in chosen(arguments.notebook, "misconceptions"):
        print(f"{lesson.notebook}\n{'=' * len(lesson.notebook)}")
        for id in lesson.ids:
            if id in lesson.questions:
                readings = lesson.questions[id].readings
                print(
                    f"\n{id}, a prediction", *(fill(r.sentence.strip()) for r in readings), sep="\n"
                )
            else:
                print(f"\n{id}, an exercise: {lesson.exercises[id].title}")
                for usual in lesson.exercises[id].usual:
                    source = textwrap.indent(usual.source.rstrip(), "    ")
                    print(f'- refused with "{usual.says}":\n{source}')
        print()
    return 0
