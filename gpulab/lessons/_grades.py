"""Grades of a class: check each kept answer again, and write points by a rubric to a CSV file.

The outcome that a report claims is not used for a grade, except with ``Rubric.open_share``. It is
shown beside the outcome of the new check, and differences are listed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpulab import _validate
from gpulab._files import read_regular, write_atomically
from gpulab.errors import InputError, kind_of, message_of, shown
from gpulab.lessons import content
from gpulab.lessons._grader import CODE, LOST, NO_BOX, OPEN, Outcome, grading, is_code
from gpulab.lessons._material import Listing
from gpulab.lessons._report import ReportedCheck, line
from gpulab.lessons.checking import NOT_ATTEMPTED, PASSED, WRONG
from gpulab.lessons.classes import Classroom, Student
from gpulab.results import Result, Table
from gpulab.units import plural

MEMORY_BYTES = 2 * 2**30
STUDENT_SECONDS = 1_200.0
# Reasons why an answer stays open through no fault of the student.
_NOT_RUN = "the answer is code, and code is not run here"
_NOT_THE_STUDENTS = (_NOT_RUN, NO_BOX, LOST)
_TOO_LONG = "it was not run: the student's answers before it took all the time that a student has"
# A spreadsheet runs a cell that begins with one of these characters as a formula. Some spreadsheets
# convert the full-width characters into the others.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# In languages with a decimal comma, spreadsheets separate cells at semicolons, even inside of a
# quoted cell.
_NEW_CELL = re.compile(rf""";(?=[\s"]*[{re.escape("".join(_FORMULAS))}])""")


class Grade(NamedTuple):
    """One exercise of one student.

    Attributes
    ----------
    id, claimed, found, message : str
        ``claimed`` is the outcome in the report; ``found`` is the outcome of the check now:
        "passed", "wrong", "not attempted", or "open" if it cannot be checked again. ``message``
        says why.
    points, most : float
        Both are 0 if the exercise is left out.
    by : str
        "check" if the check alone decided; "code" if the answer's code ran in the process of its
        check, so that it could have forged the outcome; "" if nothing was checked.
    """

    id: str
    claimed: str
    found: str
    message: str
    points: float
    most: float
    by: str = ""

    @property
    def differs(self) -> bool:
        """Whether the report claims an outcome that differs from the one found. "open" differs only
        from "passed", and only if it gives no points, as where the report holds no answer.
        """
        return (
            self.claimed == PASSED and self.points == 0 < self.most
            if self.found == OPEN
            else self.found != self.claimed
        )


class StudentGrades(NamedTuple):
    """One student's grades.

    Attributes
    ----------
    name : str
    files : tuple of str
    grades : tuple of Grade
        One for each exercise that counts.
    predictions, questions : int
        The number of predictions given, and of questions asked.
    prediction_points : float
        Points for one prediction.
    """

    name: str
    files: tuple[str, ...]
    grades: tuple[Grade, ...]
    predictions: int
    questions: int
    prediction_points: float

    @property
    def points(self) -> float:
        """All points."""
        return (
            sum(grade.points for grade in self.grades) + self.prediction_points * self.predictions
        )

    @property
    def most(self) -> float:
        """The maximum for this student; exercises that cannot be checked again here may be
        excluded.
        """
        return sum(grade.most for grade in self.grades) + self.prediction_points * self.questions

    @property
    def percent(self) -> float:
        """The points as a share of the most, 0 to 100."""
        return 100 * self.points / self.most if self.most else 0.0

    def ids(self, found: str) -> list[str]:
        """Return the exercises with that outcome.

        Parameters
        ----------
        found : str
        """
        return [grade.id for grade in self.grades if grade.found == found]

    @property
    def differing(self) -> list[str]:
        """The exercises for which the report claims a different outcome."""
        return [grade.id for grade in self.grades if grade.differs]


@dataclass(frozen=True)
class Grades(Result):
    """The grades of a class.

    Attributes
    ----------
    students : tuple of StudentGrades
    rubric : Rubric
    ran_code : bool
    answers, checked : int
        Answers of all students, and the number of different ones: equal answers are checked once.
    notebooks : tuple of str
        Those that counted.
    """

    columns = {
        "student": lambda s: s.name,
        "points": lambda s: f"{s.points:g}",
        "of": lambda s: f"{s.most:g}",
        "": lambda s: f"{s.percent:.1f} %" if s.most else "not graded",
        "passed": lambda s: len(s.ids(PASSED)),
        "wrong": lambda s: ", ".join(s.ids(WRONG)),
        "cannot be checked here": lambda s: ", ".join(s.ids(OPEN)),
        "reported otherwise": lambda s: ", ".join(s.differing),
        "predictions": lambda s: f"{s.predictions} of {s.questions}",
    }
    rows_from = "students"

    students: tuple[StudentGrades, ...]
    rubric: Rubric
    ran_code: bool
    answers: int
    checked: int
    notebooks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<grades of {plural(len(self.students), 'student')}: "
            f"{plural(self.answers, 'answer')}, {self.checked} of them different>"
        )

    def table(self) -> Table:
        """Return one row per student."""
        headers, rows = super().table()
        return headers, rows or [("(no students)", *[""] * 8)]

    def caption(self) -> str:
        """Return how the grades were determined."""
        code = "" if self.ran_code else " Answers that are code were not run."
        why = "the rubric names them" if self.rubric.notebooks else "a student worked on them"
        counted = (
            f"Notebooks that counted: {', '.join(self.notebooks)} (because {why})."
            if self.notebooks
            else "No notebook counted."
        )
        claimed = sorted(
            {g.id for s in self.students for g in s.grades if g.by == CODE and g.found == PASSED}
        )
        if claimed:
            code += f" These passed, but the answer could forge that: {', '.join(claimed)}."
        return (
            f"{counted} {plural(self.answers, 'answer')} checked again, equal ones once "
            f"({self.checked}).{code}"
        )

    def differences(self) -> Listing:
        """Return where a report claims an outcome that differs from the one found."""
        rows = tuple(
            (s.name, g.id, g.claimed, g.found, g.message)
            for s in self.students
            for g in s.grades
            if g.differs
        )
        return Listing(
            f"{plural(len(rows), 'difference')} between reports and checks",
            ("student", "exercise", "reported", "found", "why"),
            rows,
            ("(none)", "", "", "", ""),
        )

    def failing(self) -> Listing:
        """Return the exercises that fail most, with the most frequent reason, as found by the
        checks now.
        """
        # exercises with equal counts stay in their order
        every = sorted((g for s in self.students for g in s.grades), key=lambda g: g.id)
        judged = Counter(g.id for g in every if g.found in (PASSED, WRONG))
        wrong = Counter(g.id for g in every if g.found == WRONG)
        reasons = {
            id: Counter(g.message for g in every if g.found == WRONG and g.id == id) for id in wrong
        }
        rows = tuple(
            (id, f"{count} of {judged[id]}", reason, str(times))
            for id, count in wrong.most_common()
            for reason, times in reasons[id].most_common(1)
        )
        return Listing(
            f"{plural(len(rows), 'exercise')} with wrong answers",
            ("", "wrong", "the most frequent reason", "how often"),
            rows,
            ("(none)", "", "", ""),
        )

    def csv(self) -> str:
        """Return the grades as CSV: one row per student, one column per exercise; no text in it is
        read as a formula.
        """
        out = io.StringIO()
        ids = dict.fromkeys(g.id for s in self.students for g in s.grades)
        writer = csv.writer(out, lineterminator="\n")
        head = [
            "student",
            "file",
            "points",
            "of",
            "percent",
            "predictions",
            "passed",
            "wrong",
            "cannot be checked here",
            "reported otherwise",
        ]
        writer.writerow([*head, *(f"exercise {id}" for id in ids)])
        for s in self.students:
            found = {g.id: f"{g.points:g}" for g in s.grades if g.most}
            cells = [
                s.name,
                ", ".join(s.files),
                f"{s.points:g}",
                f"{s.most:g}",
                f"{s.percent:.1f}" if s.most else "not graded",
                s.predictions,
                len(s.ids(PASSED)),
                *(" ".join(each) for each in (s.ids(WRONG), s.ids(OPEN), s.differing)),
                *(found.get(id, "") for id in ids),
            ]
            writer.writerow([_plain(str(cell)) for cell in cells])
        return out.getvalue()

    def write_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the grades as CSV atomically; return the file.

        Parameters
        ----------
        path : path

        Raises
        ------
        InputError
            If nothing can be written there.
        """
        file = _validate.expanded("write_csv", path)
        with _validate.writing(
            "write_csv", shown(str(path)), "a file in a folder of yours. Pass another."
        ):
            # so that spreadsheets read names with accents
            write_atomically(file, self.csv().encode("utf-8-sig"))
        return file


@dataclass(frozen=True)
class Rubric(Result):
    """The weights of a grade.

    Attributes
    ----------
    exercise_points : float
        For an exercise that passes when it is checked again.
    points : mapping of str to float
        Points that differ from ``exercise_points``, by exercise id; 0 excludes an exercise.
    prediction_points : float
        For a prediction that was given before the answer was shown, right or wrong: points for
        being right would reward looking at the answer first.
    open_share : float or None
        The value of an exercise that is reported as passed but cannot be checked again, because no
        answer to it can be handed in (a trained model) or because the instructor does not run code.
        None, the default, excludes the exercise from the points and from the maximum; a share from
        0 to 1 gives that share of its points. An answer that is missing or damaged gives no points,
        so that omitting a wrong answer does not help.
    notebooks : tuple of str
        Those that count, such as ("02", "03"); empty for all notebooks that a student of the class
        has worked on.
    """

    exercise_points: float = 1.0
    points: Mapping[str, float] = field(default_factory=dict)
    prediction_points: float = 0.25
    open_share: float | None = None
    notebooks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid points and unknown exercises."""
        _validate.instance(
            "Rubric",
            "points",
            self.points,
            Mapping,
            'points by exercise. Pass for example {"09.3": 2}.',
        )
        amounts = {"exercise_points": self.exercise_points, **self.points}
        for name, value in {**amounts, "prediction_points": self.prediction_points}.items():
            _validate.within("Rubric", name, value)
        if self.open_share is not None:
            _validate.within("Rubric", "open_share", self.open_share, 0, 1)
        if self.notebooks or self.points:  # otherwise the lessons need not be loaded
            numbers = [lesson.notebook[:2] for lesson in content.lessons()]
            for notebook in _validate.items("Rubric", "notebooks", self.notebooks):
                _validate.word("Rubric", "notebooks", notebook, numbers)
            for id in self.points:
                _validate.word("Rubric", "points", id, content.exercises())

    def of(self, id: str) -> float:
        """Return the points of an exercise."""
        return float(self.points.get(id, self.exercise_points))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Rubric:
        """Return the rubric in a JSON file such as ``{"exercise_points": 2, "points": {"02.5": 4},
        "notebooks": ["02"]}``.

        Parameters
        ----------
        path : path

        Raises
        ------
        InputError
            If it cannot be read, or is not a valid rubric.
        """
        file = _validate.expanded("Rubric.read", path)
        try:
            # from bytes, json.loads detects the encoding, such as that of Windows' own tools
            content = json.loads(read_regular(file))
            if not isinstance(content, dict):
                raise InputError(f"it holds {kind_of(content)}")
            return cls.from_dict({**cls().to_dict(), **content}, "rubric")
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"Rubric.read: {shown(str(path))}: {message_of(error)}; expected JSON such as "
                '{"exercise_points": 1, "prediction_points": 0.25}. Fix the file.'
            ) from error


def _plain(text: str) -> str:
    """Return a cell's text so that no spreadsheet takes it for a formula."""
    text = _NEW_CELL.sub(";'", text)
    return f"'{text}" if text.lstrip(" \u00a0").startswith(_FORMULAS) else text


@_validate.arguments(
    room=partial(
        _validate.instance, kind=Classroom, expected="what classroom() returned. Pass that."
    ),
    rubric=partial(_validate.instance, kind=Rubric, expected="a Rubric. Pass one."),
    run_code=_validate.flag,
    trust_code=_validate.flag,
    seconds=_validate.positive,
    student_seconds=_validate.positive,
    memory_bytes=partial(_validate.whole, low=2**20, high=2**50),
    progress=_validate.hook,
)
def grade(
    room: Classroom,
    rubric: Rubric | None = None,
    *,
    run_code: bool = True,
    trust_code: bool = False,
    seconds: float | None = None,
    student_seconds: float = STUDENT_SECONDS,
    memory_bytes: int = MEMORY_BYTES,
    progress: Callable[[int, int], None] = _validate.LEFT_OUT,
) -> Grades:
    """Check every kept answer of a class again, and give points.

    An answer that is code is run in a box: without network, without your files, with limited time,
    memory and processes. The check runs outside of the box, unless it needs the live object. The
    code could forge the outcome of such a check (``Grade.by``). Where the system allows no box,
    code is not run, unless you pass ``trust_code=True``.

    Parameters
    ----------
    room : Classroom
        What ``classroom`` read.
    rubric : Rubric, optional
        None takes the defaults.
    run_code : bool
        False leaves every answer that is code "open": nothing of it is run, started, opened or
        unpickled.
    trust_code : bool
        Where there is no box, run code all the same. It can then do whatever you may do on this
        machine, and change any grade.
    seconds : float, optional
        The limit for one answer; None uses the limit of each exercise.
    student_seconds : float
        The limit for all answers of one student; the answers that remain give no points.
    memory_bytes : int
        The limit for one answer and all its processes, in addition to the libraries (Linux).
    progress : callable, optional
        Called with (answers checked, different answers in all).

    Returns
    -------
    Grades

    Raises
    ------
    InputError
        If an argument is not one of these.
    """
    rules = Rubric() if rubric is None else rubric
    lessons = [lesson for lesson in content.lessons() if _counts(lesson, room, rules)]
    exercises = {
        id: e for lesson in lessons for id, e in lesson.exercises.items() if rules.of(id) > 0
    }
    jobs: dict[str, dict[str, Any]] = {}
    keys: list[dict[str, str]] = [{} for _ in room.students]
    for number, student in enumerate(room.students):
        for check in () if student.undecided else student.report.checks:
            job = _job(check, exercises.get(check.id), float(seconds or math.inf))
            if job is not None:
                job |= {"memory_bytes": int(memory_bytes), "trust": trust_code}
                key = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
                jobs.setdefault(key, {**job, "students": []})["students"].append(number)
                keys[number][check.id] = key
    left = dict.fromkeys(range(len(room.students)), float(student_seconds))
    outcomes = _outcomes(jobs, run_code, left, progress)
    students = tuple(
        _student(student, exercises, lessons, rules, {id: outcomes[key] for id, key in own.items()})
        for student, own in zip(room.students, keys, strict=True)
    )
    ran = run_code and all(outcome["message"] != NO_BOX for outcome in outcomes.values())
    numbers = tuple(lesson.notebook[:2] for lesson in lessons)
    return Grades(students, rules, ran, sum(map(len, keys)), len(jobs), numbers)


def _job(
    check: ReportedCheck, exercise: content.Exercise | None, seconds: float
) -> dict[str, Any] | None:
    """Return the job of checking an answer again, for at most ``seconds``; None if no answer was
    kept or can be kept, or there is no such exercise.
    """
    kept = check.kept
    if exercise is None or exercise.unkept or not isinstance(kept, dict):
        return None
    if kept.get("kind") == "nothing":
        return None
    return {
        "id": check.id,
        "kept": kept,
        "seen": check.seen if exercise.seen else None,
        "seconds": min(seconds, exercise.limit_seconds),
        "code": is_code(exercise, kept),
    }


def _outcomes(
    jobs: Mapping[str, Mapping[str, Any]],
    run_code: bool,
    left: dict[int, float],
    progress: Callable[[int, int], None],
) -> dict[str, Outcome]:
    """Return the outcome of each different answer. ``left`` holds the seconds that each student has
    left; the time of a check is subtracted.
    """
    import psutil

    found: dict[str, Outcome] = {}
    with grading() as ask:
        for count, (key, job) in enumerate(jobs.items(), 1):
            # the time of equal answers counts for the student who has the most left
            begin, payer = time.monotonic(), max(job["students"], key=left.__getitem__)
            why_not = _NOT_RUN if job["code"] and not run_code else ""
            if not why_not and left[payer] <= 0:
                why_not = _TOO_LONG
            found[key] = {"state": OPEN, "message": why_not, "by": ""} if why_not else ask(job)
            late = "did not finish within" in found[key]["message"]
            if late and psutil.getloadavg()[0] > (os.cpu_count() or 1):
                found[key] = ask(job)  # once more: a busy machine is not the student's fault
            left[payer] -= time.monotonic() - begin
            progress(count, len(jobs))
    return found


def _counts(lesson: content.Lesson, room: Classroom, rules: Rubric) -> bool:
    if rules.notebooks:
        return any(lesson.notebook.startswith(each) for each in rules.notebooks)
    # A notebook counts if a student predicted or tried something. Run All alone only reveals
    # answers, and a hint alone is not an attempt.
    return any(
        (c.tried and c.id in lesson.exercises)
        for student in room.students
        for c in student.report.checks
    ) or any(
        (p.predicted is not None and p.id in lesson.questions)
        for student in room.students
        for p in student.report.predictions
    )


def _student(
    student: Student,
    exercises: Mapping[str, content.Exercise],
    lessons: Sequence[content.Lesson],
    rules: Rubric,
    outcomes: Mapping[str, Outcome],
) -> StudentGrades:
    checks = {check.id: check for check in student.report.checks}
    grades = []
    for id, exercise in exercises.items():
        check, outcome = checks.get(id), outcomes.get(id)
        claimed = check.state if check is not None else NOT_ATTEMPTED
        found, by, message = OPEN, "", exercise.unkept or "the report holds no answer"
        if student.undecided:
            message = student.undecided
        elif check is None or (check.kept is None and claimed == NOT_ATTEMPTED):
            found, message = NOT_ATTEMPTED, ""
        elif outcome is not None:
            found, message, by = outcome["state"], outcome["message"], outcome["by"]
        elif isinstance(check.kept, dict) and not exercise.unkept:
            message = str(check.kept.get("reason", message))
        points = most = 0.0 if student.undecided else rules.of(id)
        if found != PASSED:
            points = 0.0
        # Only a reason that was found here counts. A report could give one of these reasons itself,
        # to exclude the exercise from the maximum.
        reason = exercise.unkept or (message if outcome is not None else "")
        if found == OPEN and reason:
            if rules.open_share is not None and reason in (exercise.unkept, _NOT_RUN):
                points = rules.open_share * most if claimed == PASSED else 0.0
            elif reason in (exercise.unkept, *_NOT_THE_STUDENTS):
                most = 0.0
        grades.append(Grade(id, claimed, found, line(message, 600), points, most, by))
    ids = {id for lesson in lessons for id in lesson.questions}
    given = {p.id for p in student.report.predictions if p.predicted is not None}
    return StudentGrades(
        student.name,
        student.files,
        tuple(grades),
        0 if student.undecided else len(given & ids),
        0 if student.undecided else len(ids),
        float(rules.prediction_points),
    )
