"""What a lesson holds: questions to predict and exercises to solve, registered per notebook and found by their id.

An id is the notebook's number and a running number ("02.3"), in the order of the notebook. The content modules
(``_nb00``, ``_nb02``, ...) load on the first look-up.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result

_MODULES = (
    "gpulab.lessons._nb00",
    "gpulab.lessons._nb01",
    "gpulab.lessons._nb02",
    "gpulab.lessons._nb03",
    "gpulab.lessons._nb04",
    "gpulab.lessons._nb05",
    "gpulab.lessons._nb06",
    "gpulab.lessons._nb07",
    "gpulab.lessons._nb08",
    "gpulab.lessons._nb09",
    "gpulab.lessons._nb10",
)


@dataclass(frozen=True)
class Reading:
    """What a usual wrong prediction points to.

    Attributes
    ----------
    when : callable
        Takes (predicted, measured) in base units, or two choices; True where the prediction shows this misconception.
    sentence : str
        What the learner may have thought, and what is so.
    """

    when: Callable[[Any, Any], bool]
    sentence: str


@dataclass(frozen=True)
class Question:
    """What is known about a prediction beside the words that the notebook shows.

    Attributes
    ----------
    id : str
    readings : tuple of Reading
        The first that fits is shown with the measurement.
    outcome : callable or None
        Takes what the notebook passes to ``reveal`` and returns the number (base units) or the choice; raises ``Unmeasured``
        where it does not tell, ``Never`` where the answer is that there is no such number. None where what is passed is already a
        number, a choice or a measurement.
    sides : callable or None
        For an answer that compares two things: takes what is passed to ``reveal`` and returns the evidence of each by name.
    close_ratio : float
        A prediction within this factor of the measurement counts as close.
    close_absolute : float
        So does one that is off by this much at most, in base units: of small counts, 0 and 1 are no factor apart.
    """

    id: str
    readings: tuple[Reading, ...] = ()
    outcome: Callable[[Any], Any] | None = None
    sides: Callable[[Any], Mapping[str, Evidence]] | None = None
    close_ratio: float = 2.0
    close_absolute: float = 0.0


@dataclass(frozen=True)
class Usual:
    """A usual wrong answer, kept so that the tests can prove it is refused with its own message.

    Attributes
    ----------
    source : str
        Python that takes the stub's place in the notebook.
    says : str
        Words that the refusal must hold.
    """

    source: str
    says: str


@dataclass(frozen=True)
class Seen:
    """What the learner's own machine gave, which a check compares the answer with; kept beside the answer.

    Attributes
    ----------
    words : str
        What it is: "the latency curve of your memory".
    kind : type
        The result's class.
    get : callable
        Returns the result that the learner saw, or None while there is none; measures nothing.
    put : callable
        Takes such a result, so that the check compares with it: how an answer is checked again on another machine.
    """

    words: str
    kind: type[Result]
    get: Callable[[], Any]
    put: Callable[[Any], None]


@dataclass(frozen=True)
class Exercise:
    """One checked exercise.

    Attributes
    ----------
    id, title : str
    answer_name : str
        The name that the stub defines and the check takes.
    stub, solution : str
        Python sources that define ``answer_name``; the stub is the notebook's cell.
    hints : tuple of str
        From a nudge to nearly the answer.
    check : callable
        Takes the answer, which is no stub; returns the sentence of praise that says why it is right; raises ``Refused`` with what is wrong.
    usual : tuple of Usual
        Usual wrong answers.
    limit_seconds : float
        The check ends after this long: a learner's loop may have no end.
    loads : tuple of str
        The heavy libraries that the check uses, imported before its time begins.
    machine : str
        What of the learner's machine decides whether an answer is right; "" where a right answer is right everywhere.
    seen : Seen or None
        That, where it can be kept with the answer, so that another machine can check the answer again.
    unkept : str
        Why an answer cannot be written down in a file; "" where it can.
    answer_is_file : bool
        The answer is the path of a file, whose text is the answer.
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

    @property
    def depends_on_machine(self) -> bool:
        """Whether a right answer of one machine may be wrong on another."""
        return bool(self.machine)


@dataclass(frozen=True)
class Lesson:
    """One notebook's questions and exercises, in the notebook's order."""

    notebook: str
    questions: Mapping[str, Question] = field(default_factory=dict)
    exercises: Mapping[str, Exercise] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """Every id, in the order of the notebook."""
        return sorted([*self.questions, *self.exercises], key=lambda id: int(id.partition(".")[2]))


class Refused(Exception):  # noqa: N818  (not an error of the program: an answer that is wrong)
    """The answer is wrong; the message says why."""


class Unmeasured(Exception):  # noqa: N818
    """What was measured does not tell the answer; the message says why and what to do."""


class Never(Unmeasured):
    """It was measured, and no number came out: the message is the answer, such as that something never pays."""


class NotAttempted(Exception):  # noqa: N818
    """The stub is as it was, or there is no answer in it yet; the message, if any, says what is missing."""


def lessons() -> tuple[Lesson, ...]:
    """Return every notebook's content, in the order of the course."""
    return tuple(importlib.import_module(name).LESSON for name in _MODULES)


def chosen(notebook: str, who: str) -> tuple[Lesson, ...]:
    """Return the content of the notebook of that number or name; of all with "".

    Raises
    ------
    InputError
        If there is none. One digit is no number of a notebook: "0" would be ten of them.
    """
    known = lessons()
    whole = isinstance(notebook, str) and (notebook == "" or len(notebook) >= len("02"))
    found = tuple(lesson for lesson in known if whole and lesson.notebook.startswith(notebook))
    if not found:
        numbers = ", ".join(lesson.notebook[:2] for lesson in known)
        raise InputError(f"{who}: there is no notebook {shown(notebook, 40)}; expected one of {numbers}. Leave it out for all of them.")
    return found


def exercise(id: str) -> Exercise:
    """Return the exercise of that id.

    Raises
    ------
    InputError
        If there is none.
    """
    known = {key: each for lesson in lessons() for key, each in lesson.exercises.items()}
    if not isinstance(id, str) or id not in known:
        close = difflib.get_close_matches(shown(id).strip("'"), known)
        raise InputError(
            f"exercise {shown(id, 40)} is not in this course; expected one of {', '.join(known)}."
            + (f" Did you mean {close[0]!r}?" if close else " Copy the id from the notebook.")
        )
    return known[id]


def question(id: str) -> Question:
    """Return what is known about a prediction; an id that the course does not have gets an empty record (your own notebook)."""
    for lesson in lessons():
        if id in lesson.questions:
            return lesson.questions[id]
    return Question(id)
