"""A class: its students, their predictions, measurements and exercises. ``_class_reading`` reads
it, ``_grades`` grades it.
"""

from __future__ import annotations

import functools
import statistics
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpulab.lessons import _reveal, content
from gpulab.lessons._predictions import KeptAnswer
from gpulab.lessons._report import ReportedPrediction, StudentReport
from gpulab.models import Roofline
from gpulab.results import Result
from gpulab.units import format_bytes, plural

_LONGEST_LINE = 100  # characters of a name in a table
_LONGEST_QUESTION = 400  # as a report has it


@dataclass(frozen=True)
class RefusedFile(Result):
    """A file that is not a report, and the reason.

    Attributes
    ----------
    file, sentence : str
    """

    file: str
    sentence: str


@dataclass(frozen=True)
class Student(Result):
    """One student of the class.

    Attributes
    ----------
    name : str
        As typed, without invisible characters; the name of the file if none was typed.
    files : tuple of str
        Where it was read from, the latest first.
    report : StudentReport
        Of several files for several notebooks, all together.
    undecided : str
        Why no grade is given before the instructor decides: other files have the same name. "" if
        there is nothing to decide.
    """

    schema_version: ClassVar[int] = 2

    name: str
    files: tuple[str, ...]
    report: StudentReport
    undecided: str = ""

    def __repr__(self) -> str:
        return f"<{self.name}: {self.report!r}>"


@dataclass(frozen=True)
class QuestionRow(Result):
    """The answers of the class to one question.

    Attributes
    ----------
    id, question : str
    given, judged, right, shown : int
        Numbers of students: who predicted; whose prediction can be judged, since their machine
        measured; who were close or right; who were shown the answer.
    ratios : tuple of float
        predicted / measured, of each student with two numbers above zero.
    choices : tuple of (str, int)
        Each choice and its count, the most frequent first; empty for a question that asks for a
        number.
    """

    id: str
    question: str
    given: int
    judged: int
    right: int
    shown: int
    ratios: tuple[float, ...]
    choices: tuple[tuple[str, int], ...]

    @property
    def close_ratio(self) -> float:
        """The factor of the question: a number within this factor of the measured value counts as
        close.
        """
        return _question(self.id).close_ratio

    @property
    def text(self) -> str:
        """A summary of the answers, with the number that is not measured yet."""
        words = [f"{count} x {choice}" for choice, count in self.choices[:4]]
        if self.ratios and not words:
            middle, low, high = statistics.median(self.ratios), min(self.ratios), max(self.ratios)
            words = [
                f"median {middle:.3g} x the measured "
                f"value{f', from {low:.3g} to {high:.3g}' if len(self.ratios) > 1 else ''}"
            ]
        waiting = self.given - self.judged
        return "; ".join([*words, *([f"{waiting} not measured yet"] if waiting else [])])


@dataclass(frozen=True)
class Questions(Result):
    """Predictions compared with results, for each question.

    Attributes
    ----------
    rows : tuple of QuestionRow
    """

    rows: tuple[QuestionRow, ...]

    def __repr__(self) -> str:
        return (
            f"<{plural(len(self.rows), 'question')}, "
            f"{plural(sum(row.given for row in self.rows), 'prediction')}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per question."""
        rows = [(r.id, r.question, f"{r.right} of {r.judged}", r.text) for r in self.rows]
        return ("", "question", "close or right", "answers"), rows or [
            ("(no predictions)", "", "", "")
        ]


@dataclass(frozen=True)
class Listing(Result):
    """A table of a class, such as of the exercises that fail most.

    Attributes
    ----------
    title : str
        What it lists, with their number.
    headers : tuple of str
    rows : tuple of tuple of str
    empty : tuple of str
        The row shown where there is none.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{self.title}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the rows."""
        return self.headers, self.rows or [self.empty]


@dataclass(frozen=True)
class Classroom(Result):
    """A class: its students, and the files that could not be read.

    Attributes
    ----------
    folder : str
    students : tuple of Student
        By name.
    refused : tuple of RefusedFile
    remarks : tuple of str
    """

    folder: str
    students: tuple[Student, ...]
    refused: tuple[RefusedFile, ...]
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{self._totals()}>"

    def _totals(self) -> str:
        students = f"{len(self.students)} student{'s' if len(self.students) != 1 else ''}"
        files = (
            f"{len(self.refused)} file{'s' if len(self.refused) != 1 else ''} that cannot be read"
        )
        return f"{students}, {files}"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per student."""
        headers = (
            "student",
            "device",
            "cores",
            "memory",
            "predictions",
            "exercises passed (as reported)",
            "to fix before class",
        )
        if not self.students:
            what = "none of the files here is a report" if self.refused else "there is no file here"
            return headers, [
                (
                    f"({what})",
                    "Each student runs `gpulab report --name NAME` and hands in the file.",
                    "",
                    "",
                    "",
                    "",
                    "",
                )
            ]
        return headers, [_student_row(each) for each in self.students]

    def caption(self) -> str:
        """Return the totals."""
        return f"{self._totals()}. Figures and checks are as reported by the students' machines."

    @property
    def problems(self) -> Listing:
        """The files that could not be read, each with a sentence, and remarks."""
        title = (
            f"{plural(len(self.refused), 'file')} that cannot be read, "
            f"{plural(len(self.remarks), 'remark')}"
        )
        rows = [(each.file, each.sentence) for each in self.refused] + [
            ("remark", remark) for remark in self.remarks
        ]
        return Listing(
            title,
            ("file", "what is wrong with it"),
            tuple(rows),
            ("(none)", "every file could be read"),
        )

    def rooflines(self) -> tuple[Roofline, ...]:
        """Return the roofs of every student's best device, RECORDED as reported by their
        machines.
        """
        return tuple(found[0] for each in self.students if (found := each.report.rooflines()))

    def questions(self) -> Questions:
        """Return predictions compared with results; whether one was close is computed again, not
        read from the report.
        """
        rows = []
        for id, entries in _by_id(self.students):
            given = [p for _, p in entries if p.predicted is not None]
            ratios = [r for p in given if (r := _ratio(p)) is not None]
            chosen = [
                line(p.predicted, _LONGEST_QUESTION) for p in given if isinstance(p.predicted, str)
            ]
            counts = sorted(
                ((word, chosen.count(word)) for word in dict.fromkeys(chosen)),
                key=lambda pair: -pair[1],
            )
            judged = sum(_verdict(p) != "not measured" for p in given)
            right = sum(_verdict(p) in ("close", "right") for p in given)
            asked = Counter(line(p.question, _LONGEST_QUESTION) for _, p in entries if p.question)
            # as most have it: one file may say anything
            question = asked.most_common(1)[0][0] if asked else ""
            answered = sum(p.measured is not None for _, p in entries)
            rows.append(
                QuestionRow(
                    id, question, len(given), judged, right, answered, tuple(ratios), tuple(counts)
                )
            )
        return Questions(tuple(rows))

    def misconceptions(self) -> Listing:
        """Return the common misconceptions shown by wrong predictions, the most common first, and
        how many students showed each.
        """
        found = []
        for id, entries in _by_id(self.students):
            readings = content.question(id).readings
            given = [p for _, p in entries if p.predicted is not None]
            fitting = Counter(
                _reading(readings, p) for p in given if _verdict(p) in ("off", "wrong")
            )
            found += [
                (-count, id, len(given), sentence)
                for sentence, count in fitting.items()
                if sentence
            ]
        rows = tuple(
            (id, f"{-count} of {given}", sentence)
            for count, id, given, sentence in sorted(found, key=lambda row: row[:2])
        )
        headers = ("", "students", "misconception behind a wrong prediction")
        return Listing(plural(len(rows), "misconception"), headers, rows, ("(none)", "", ""))

    def exercises(self) -> Listing:
        """Return the exercises, the one that fails most first, as reported by the students' own
        checks.
        """
        found = []
        for exercise in (
            each for lesson in content.lessons() for each in lesson.exercises.values()
        ):
            checks = [
                c
                for each in self.students
                for c in each.report.checks
                if c.id == exercise.id and c.attempts
            ]
            if checks:
                failed, solutions = (
                    sum(c.state != "passed" for c in checks),
                    sum(c.solution_shown for c in checks),
                )
                attempts = f"{statistics.median(c.attempts for c in checks):g}"
                row = (
                    exercise.id,
                    exercise.title,
                    f"{failed} of {len(checks)}",
                    attempts,
                    str(solutions or ""),
                )
                found.append((-failed, exercise.id, row))
        rows = tuple(row for *_, row in sorted(found))
        headers = (
            "",
            "exercise",
            "not passed, of those who tried",
            "attempts (median)",
            "looked at the solution",
        )
        return Listing(
            plural(len(rows), "exercise"), headers, rows, ("(none tried)", "", "", "", "")
        )


def _student_row(student: Student) -> tuple[str, ...]:
    report = student.report
    given = [p for p in report.predictions if p.predicted is not None]
    judged = sum(_verdict(p) != "not measured" for p in given)
    close = sum(_verdict(p) in ("close", "right") for p in report.predictions)
    passed, tried = (
        sum(c.state == "passed" for c in report.checks),
        sum(c.tried for c in report.checks),
    )
    return (
        student.name,
        line(report.machine.device),
        str(report.machine.cores),
        format_bytes(report.machine.memory_bytes),
        f"{len(given)}, {close} of {judged} close or right",
        f"{passed} of {tried} tried",
        ", ".join(map(line, report.machine.to_fix)) or "nothing",
    )


def _by_id(
    students: Iterable[Student],
) -> Iterator[tuple[str, list[tuple[Student, ReportedPrediction]]]]:
    found: dict[str, list[tuple[Student, ReportedPrediction]]] = {}
    for student in students:
        for prediction in student.report.predictions:
            found.setdefault(prediction.id, []).append((student, prediction))
    known = {
        id: place
        for place, id in enumerate(id for lesson in content.lessons() for id in lesson.questions)
    }
    yield from sorted(
        ((id, entries) for id, entries in found.items() if id in known),
        key=lambda pair: known[pair[0]],
    )


# asked for each prediction of each student; the course does not change meanwhile
_question = functools.cache(content.question)


def _ratio(p: ReportedPrediction) -> float | None:
    """Return predicted / measured, where it is a ratio to work with."""
    return _reveal._ratio(p.measured, p.predicted)


def _verdict(p: ReportedPrediction) -> str:
    kept = None if p.predicted is None else KeptAnswer(p.predicted, p.predicted_text, "")
    # either not measured yet, or the answer was that there is no such number
    if p.measured is None:
        return "off" if kept is not None and p.measured_text else "not measured"
    return _reveal._verdict(
        kept, p.measured, _reveal._ratio(p.predicted, p.measured), _question(p.id)
    )


def _reading(readings: Sequence[content.Reading], p: ReportedPrediction) -> str:
    if type(p.predicted) is not type(p.measured):
        return ""
    for reading in readings:
        try:
            if reading.when(p.predicted, p.measured):
                return reading.sentence
        except Exception:
            # a value that this reading was not made for, from a file that says anything
            continue
    return ""


def line(text: str, most: int = _LONGEST_LINE) -> str:
    """Return text from a file in a form safe to show: one line, shortened, without invisible or
    direction-changing characters.
    """
    plain = "".join(
        " " if c in "\t\n\r" else c
        for c in text
        if c in "\t\n\r" or unicodedata.category(c)[0] != "C"
    )
    plain = " ".join(plain.split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
