"""A class, read from a folder of its students' reports: the students, their predictions and their
exercises. Also the command ``gpulab class``. ``_grades`` computes the grades.

A file is untrusted data: its size is limited, it is parsed as strict JSON, checked field by field,
and never executed. A damaged or hostile file results in one sentence and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import stat
import statistics
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpulab import _validate
from gpulab._files import read_regular, refuse_unwritable
from gpulab.errors import InputError, RecordingError, message_of, shown
from gpulab.lessons import content
from gpulab.lessons._answers import MOST_CHARACTERS
from gpulab.lessons._material import Listing
from gpulab.lessons._predictions import ratio_of, verdict_of
from gpulab.lessons._report import (
    LONGEST_NAME,
    ReportedMachine,
    ReportedPrediction,
    StudentReport,
    line,
)
from gpulab.results import Result, Table, text_table
from gpulab.units import format_bytes, plural

SAME_NAME = ("ask", "later", "apart")
# a report of the whole course has some 100 kB, one with every answer at its limit 3 MB
MOST_BYTES = 8 * 2**20
_MOST_ENTRIES = 1_000
_LONGEST = 1_000  # characters of any text that is shown
_RATES = (1.0, 1e21)  # FLOP/s and bytes/s that any machine can have
_TOMORROW = datetime.timedelta(days=1)
# what is shown of a prediction
_SHOWN = ("id", "question", "predicted_text", "measured_text", "predicted", "measured")
_LONGEST_QUESTION = 400  # characters: the limit of a report


class Student(NamedTuple):
    """One student of the class.

    Attributes
    ----------
    name : str
        As typed, without invisible characters; the name of the file if none was typed.
    files : tuple of str
        Where it was read from, the latest first.
    report : StudentReport
        If the student handed in several files for different notebooks, all of them combined.
    undecided : str
        Why no grade is given before the instructor decides: other reports have the same name. "" if
        there is nothing to decide.
    """

    name: str
    files: tuple[str, ...]
    report: StudentReport
    undecided: str = ""


@dataclass(frozen=True)
class QuestionRow:
    """The answers of the class to one question.

    Attributes
    ----------
    id, question : str
    given, judged, right, shown : int
        Numbers of students: those who predicted; of these, those whose machine measured the answer,
        so that the prediction can be judged, and those who were close or right; and those who were
        shown the answer.
    ratios : tuple of float
        predicted / measured, of each student with two numbers above zero.
    close : (float, float)
        The ratios between which a prediction counts as close, whichever student's it is.
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
    close: tuple[float, float]
    choices: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """A summary of the answers, and how many of the predictions have no measurement yet."""
        words = [f"{count} x {choice}" for choice, count in self.choices[:4]]
        if self.ratios and not words:
            # of logarithms: between the two middle ratios of an even number lies their geometric
            # mean, since half and twice the measured value are equally far from it
            middle, low, high = (
                math.exp(statistics.median(map(math.log, self.ratios))),
                min(self.ratios),
                max(self.ratios),
            )
            words = [
                f"median {middle:.3g} x the measured "
                f"value{f', from {low:.3g} to {high:.3g}' if len(self.ratios) > 1 else ''}"
            ]
        waiting = self.given - self.judged
        return "; ".join([*words, *([f"{waiting} not measured yet"] if waiting else [])])


@dataclass(frozen=True)
class Classroom(Result):
    """A class: its students, and the files that could not be read.

    Attributes
    ----------
    folder : str
    students : tuple of Student
        By name.
    refused : tuple of (str, str)
        Each file that is not a report, and the reason.
    remarks : tuple of str
    """

    columns = {
        "student": lambda student: student.name,
        "device": lambda student: line(student.report.machine.device),
        "cores": lambda student: student.report.machine.cores,
        "memory": lambda student: format_bytes(student.report.machine.memory_bytes),
        "predictions": lambda student: _judged(student.report.predictions),
        "exercises passed (as reported)": lambda student: (
            f"{sum(check.state == 'passed' for check in student.report.checks)} of "
            f"{sum(check.tried for check in student.report.checks)} tried"
        ),
        "to fix before class": lambda student: (
            ", ".join(
                line(name)
                for name, state in student.report.machine.doctor.items()
                if state == "fix"
            )
            or "nothing"
        ),
    }
    rows_from = "students"

    folder: str
    students: tuple[Student, ...]
    refused: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{self._totals()}>"

    def _totals(self) -> str:
        files = plural(len(self.refused), "file")
        return f"{plural(len(self.students), 'student')}, {files} that cannot be read"

    def table(self) -> Table:
        """Return one row per student."""
        headers, rows = super().table()
        what = "none of the .json files is a report" if self.refused else "there is no .json file"
        advice = "Each student runs `gpulab report --name NAME` and hands in the file."
        return headers, rows or [(f"({what})", advice, "", "", "", "", "")]

    def caption(self) -> str:
        """Return the totals."""
        return f"{self._totals()}. Figures and checks are as reported by the students' machines."

    @property
    def problems(self) -> Listing:
        """The files that could not be read, each with a sentence, and remarks."""
        return Listing(
            f"{plural(len(self.refused), 'file')} that cannot be read, "
            f"{plural(len(self.remarks), 'remark')}",
            ("file", "what is wrong with it"),
            (*self.refused, *(("remark", remark) for remark in self.remarks)),
            ("(none)", "every file could be read"),
        )

    def questions(self) -> Listing:
        """Return predictions compared with results, for each question."""
        asked = self.question_rows()
        return Listing(
            f"{plural(len(asked), 'question')}, "
            f"{plural(sum(row.given for row in asked), 'prediction')}",
            ("", "question", "close or right", "answers"),
            tuple(
                (row.id, row.question, f"{row.right} of {row.judged}", row.text) for row in asked
            ),
            ("(no predictions)", "", "", ""),
        )

    def question_rows(self) -> list[QuestionRow]:
        """Return what the class answered to each question; whether a prediction was close is
        computed again, not read from the report.
        """
        rows = []
        for id, entries in _by_id(self.students):
            given = [p for p in entries if p.predicted is not None]
            verdicts = [_verdict(p) for p in given]
            chosen = Counter(
                line(p.predicted, _LONGEST_QUESTION) for p in given if isinstance(p.predicted, str)
            )
            known = _question(id)
            # a difference that is close for every student is a share of the largest measured value
            share = known.close_absolute / max(
                (p.measured for p in given if isinstance(p.measured, float) and p.measured > 0),
                default=math.inf,
            )
            asked = Counter(line(p.question, _LONGEST_QUESTION) for p in entries if p.question)
            rows.append(
                QuestionRow(
                    id,
                    # the most frequent text: a single file may contain any text
                    asked.most_common(1)[0][0] if asked else "",
                    len(given),
                    sum(verdict != "not measured" for verdict in verdicts),
                    sum(verdict in ("close", "right") for verdict in verdicts),
                    sum(p.measured is not None for p in entries),
                    tuple(
                        ratio
                        for p in given
                        if (ratio := ratio_of(p.measured, p.predicted)) is not None
                    ),
                    (min(1 / known.close_ratio, 1 - share), max(known.close_ratio, 1 + share)),
                    tuple(chosen.most_common()),
                )
            )
        return rows

    def misconceptions(self) -> Listing:
        """Return the common misconceptions shown by wrong predictions, the most common first, and
        how many students showed each, of those whose prediction can be judged.
        """
        found: Counter[tuple[str, str]] = Counter()
        judged: Counter[str] = Counter()
        for id, entries in _by_id(self.students):
            verdicts = [(p, _verdict(p)) for p in entries if p.predicted is not None]
            judged[id] = sum(verdict != "not measured" for _, verdict in verdicts)
            found.update(
                (id, _reading(p)) for p, verdict in verdicts if verdict in ("off", "wrong")
            )
        rows = tuple(
            (id, f"{count} of {judged[id]}", sentence)
            for (id, sentence), count in found.most_common()
            if sentence
        )
        return Listing(
            plural(len(rows), "misconception"),
            ("", "students", "misconception behind a wrong prediction"),
            rows,
            ("(none)", "", ""),
        )

    def exercises(self) -> Listing:
        """Return the exercises, the one that fails most first, as reported by the students' own
        checks.
        """
        checks = [c for each in self.students for c in each.report.checks if c.attempts]
        known = content.exercises()
        tried = {id: [c for c in checks if c.id == id] for id in known}
        failed = Counter(
            {id: sum(c.state != "passed" for c in tried[id]) for id in known if tried[id]}
        )
        rows = tuple(
            (
                id,
                known[id].title,
                f"{count} of {len(tried[id])}",
                f"{statistics.median(c.attempts for c in tried[id]):g}",
                str(sum(c.solution_shown for c in tried[id]) or ""),
            )
            for id, count in failed.most_common()
        )
        return Listing(
            plural(len(rows), "exercise"),
            (
                "",
                "exercise",
                "not passed, of those who tried",
                "attempts (median)",
                "looked at the solution",
            ),
            rows,
            ("(none tried)", "", "", "", ""),
        )


def _judged(predictions: Sequence[ReportedPrediction]) -> str:
    """Return how many predictions were given, and how many of those with a measurement were close
    or right.
    """
    verdicts = [_verdict(p) for p in predictions if p.predicted is not None]
    judged = len(verdicts) - verdicts.count("not measured")
    return (
        f"{len(verdicts)}, {verdicts.count('close') + verdicts.count('right')} of {judged} close "
        "or right"
    )


def _by_id(students: Iterable[Student]) -> Iterator[tuple[str, list[ReportedPrediction]]]:
    """Yield the predictions of each question of the course, in the course's order."""
    found: dict[str, list[ReportedPrediction]] = {}
    for student in students:
        for prediction in student.report.predictions:
            found.setdefault(prediction.id, []).append(prediction)
    for lesson in content.lessons():
        yield from ((id, found[id]) for id in lesson.questions if id in found)


# Cached: it is called for each prediction of each student, and the course does not change.
_question = functools.cache(content.question)


def _verdict(p: ReportedPrediction) -> str:
    # With a text but no value, the answer was that there is no such number. Without both, nothing
    # was measured yet.
    if p.measured is None:
        return "off" if p.predicted is not None and p.measured_text else "not measured"
    return verdict_of(p.predicted, p.measured, _question(p.id))


def _reading(p: ReportedPrediction) -> str:
    # the misconception that a prediction shows; "" if no known one
    for reading in _question(p.id).readings:
        # a file may contain any value, also one that the condition of a reading cannot handle
        with contextlib.suppress(Exception):
            if type(p.predicted) is type(p.measured) and reading.when(p.predicted, p.measured):
                return reading.sentence
    return ""


@_validate.arguments(same_name=functools.partial(_validate.word, known=SAME_NAME))
def classroom(folder: str | os.PathLike[str], *, same_name: str = SAME_NAME[0]) -> Classroom:
    """Read the reports in a folder and its subfolders, as learning platforms hand them out.

    Parameters
    ----------
    folder : path
    same_name : str
        How to treat reports with the same name. Anybody can type any name, so if such reports come
        from different folders, or contain answers to the same exercises, one of them may be another
        student's. "ask" lists them all, and ``grade`` gives them no points; "later" counts the
        later report; "apart" counts each report as one student. Files in a subfolder that contains
        no other name belong to one student.

    Returns
    -------
    Classroom
        Its ``students``; ``problems`` names each file that cannot be read, with the reason, and
        remarks.

    Raises
    ------
    InputError
        If there is no such folder, or ``same_name`` is none of these.
    """
    try:
        root = Path(folder).expanduser()
        found = root.is_dir()
    except (TypeError, ValueError, OSError, RuntimeError):
        found = False
    if not found:
        raise InputError(
            f"classroom: {shown(folder)} is not a folder; expected the one that holds the "
            "students' reports. Pass its path."
        )
    files, remarks = _files(root)
    read: list[_Read] = []
    refused: list[tuple[str, str]] = []
    for file in files:
        name = _place(file.relative_to(root).as_posix())
        try:
            read.append(_Read(name, str(file.parent.relative_to(root)), read_report(file)))
        except RecordingError as error:
            refused.append((name, message_of(error, 400)))
    students, twice = _students(read, same_name)
    return Classroom(str(root), students, tuple(refused), (*remarks, *twice))


class _Read(NamedTuple):
    """A file that was read: its name as shown, its folder, and the report."""

    file: str
    folder: str
    report: StudentReport


def _files(root: Path) -> tuple[list[Path], list[str]]:
    """Return every .json file below the folder, without following links, and remarks on everything
    that was skipped, since the reports of whole students could be missing.
    """
    found: list[Path] = []
    closed: list[OSError] = []
    links: list[str] = []
    others: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=closed.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside = (Path(folder, name) for name in folders)
        links += [_place(each.relative_to(root).as_posix()) for each in inside if each.is_symlink()]
        for name in sorted(name for name in names if not name.startswith(".")):
            (found if name.lower().endswith(".json") else others).append(Path(folder, name))
    first = ", ".join(_place(file.relative_to(root).as_posix()) for file in others[:5])
    more = " and others" if len(others) > 5 else ""
    remarks = (
        [f"Skipped {plural(len(others), 'file')} not ending in .json: {first}{more}."]
        if others
        else []
    )
    remarks += [
        f"The folder {_place(os.path.relpath(error.filename or root, root))} cannot be opened "
        f"({error.strerror or error}), so its content was not read."
        for error in closed
    ]
    remarks += [f"The folder {name} is a link; links are not followed." for name in links]
    return found, remarks


def _place(path: str) -> str:
    """Return a path below the folder in a form safe to show. A long path is cut at its beginning,
    since all paths in a platform's archive begin with the same long name.
    """
    plain = line(path, len(path))
    return plain if len(plain) <= LONGEST_NAME else f"…{plain[1 - LONGEST_NAME :]}"


def read_report(path: str | os.PathLike[str]) -> StudentReport:
    """Return the report in a file, with every field checked.

    Raises
    ------
    RecordingError
        If it is missing, a link or a device, too large, not strict JSON, damaged, from a newer
        version, or has impossible values.
    """
    try:
        about = Path(path).lstat()
        if not stat.S_ISREG(about.st_mode):
            raise RecordingError(
                "This is a link, a folder or a device; expected a plain file. Ask for the file "
                "itself."
            )
        if about.st_size > MOST_BYTES:
            raise RecordingError(
                f"It has {format_bytes(about.st_size)}; expected at most "
                f"{format_bytes(MOST_BYTES)}. Reports are never that large."
            )
        # As bytes: the first of them show the encoding, which Windows' own tools change when a
        # student opens the file and saves it.
        content = json.loads(
            read_regular(Path(path), MOST_BYTES), parse_constant=_finite, parse_float=_finite
        )
        if not isinstance(content, dict) or content.get("schema") != StudentReport.__name__:
            raise RecordingError(
                "It is JSON, but not a report; expected the file that `gpulab report` wrote. Was "
                "the progress file handed in?"
            )
        # fails for half a character (a lone surrogate), which no terminal or notebook can show
        json.dumps(content, ensure_ascii=False).encode("utf-8")
        report = StudentReport.from_dict(content, "report")
        fault = _date_fault(report.date) or _fault(report)
    except RecordingError:
        raise
    except OSError as error:
        raise RecordingError(
            f"It cannot be read ({error.strerror or error}); expected a file that you may read."
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise RecordingError(
            f"It is not JSON ({message_of(error, 80)}); expected the output of `gpulab report`. Is "
            "it cut off, or another file?"
        ) from error
    if fault:
        raise RecordingError(
            f"{fault}; expected the output of `gpulab report`. Ask for a new one: this file may be "
            "damaged or changed."
        )
    return report


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise RecordingError(
            f"It holds the number {shown(word, 20)}, which is not finite; expected finite numbers. "
            "It was not written by gpulab."
        )
    return value


def _date_fault(date: str) -> str:
    try:
        ahead = datetime.datetime.fromisoformat(date) - datetime.datetime.now(datetime.timezone.utc)
    except (ValueError, TypeError):
        return f"Its date, {shown(date, 40)}, is not a date with a time zone"
    if ahead > _TOMORROW:
        return f"Its date, {shown(date, 40)}, is in the future (or that computer's clock is wrong)"
    return ""


def _fault(report: StudentReport) -> str:
    """Return a sentence on a value that has the right type but is impossible or too large to show;
    "" if there is none.
    """
    checks, machine, predictions = report.checks, report.machine, report.predictions
    entries: dict[str, Sequence[Any]] = {"predictions": predictions, "checks": checks}
    twice = (
        (what, next((id for id, n in Counter(e.id for e in several).items() if n > 1), None))
        for what, several in entries.items()
    )
    rates = [
        rate
        for each in report.roofs
        for rate in (*each.flops_per_second.values(), *each.bytes_per_second.values())
    ]
    texts = (
        *(report.name, report.notebook, report.gpulab_version),
        *(machine.device, machine.processor, machine.system),
        *(*machine.doctor, *machine.accelerators),
        *(each.device for each in report.roofs),
        *(check.id for check in checks),
        *(getattr(p, name) for p in predictions for name in _SHOWN),
    )
    faults = [
        *(
            (len(several) > _MOST_ENTRIES, f"It has {len(several):,} {what}")
            for what, several in entries.items()
        ),
        *(
            (id is not None, f"It has two {what} with the same number, {shown(id, 20)}")
            for what, id in twice
        ),
        (
            not all(0 <= n <= 10**6 for check in checks for n in (check.attempts, check.hints)),
            "The number of attempts or hints of an exercise is negative or above a million",
        ),
        (
            any(check.state not in ("passed", "wrong", "not attempted") for check in checks),
            "The state of an exercise is unknown",
        ),
        (
            any(isinstance(p.predicted, float) and p.predicted < 0 for p in predictions),
            "A prediction is negative",
        ),
        (
            not all(_RATES[0] <= rate <= _RATES[1] for rate in rates)
            or len(report.roofs) > 8
            or len(rates) > 200,
            "The rates of its roofs are impossible",
        ),
        (not all(each.device for each in report.roofs), "Its roofs have no device"),
        (
            not (1 <= machine.cores <= 100_000 and 1 <= machine.memory_bytes <= 2**60),
            f"Its machine has {shown(machine.cores, 20)} cores and "
            f"{shown(machine.memory_bytes, 20)} bytes of memory",
        ),
        (
            any(isinstance(text, str) and len(text) > _LONGEST for text in texts),
            f"A text in it has more than {_LONGEST:,} characters",
        ),
        (
            any(
                len(json.dumps(part)) > 2 * MOST_CHARACTERS
                for check in checks
                for part in (check.kept, check.seen)
            ),
            "An answer in it is larger than the limit",
        ),
    ]
    return next((sentence for is_so, sentence in faults if is_so), "")


def _students(read: Sequence[_Read], same_name: str) -> tuple[tuple[Student, ...], list[str]]:
    """Return the students by name, and remarks: on files put together or left out, and on names
    that are disputed.
    """
    groups: dict[str, list[_Read]] = {}
    for number, one in enumerate(read):
        name = line(one.report.name)
        # without a name, its number: the names of two files may be shown alike
        key = unicodedata.normalize("NFKC", name).casefold() if name else f"\0{number}"
        groups.setdefault(key, []).append(one)
    # how many names each folder contains: a folder with a single name is one student's upload
    names = Counter(folder for group in groups.values() for folder in {r.folder for r in group})
    students, remarks = [], []
    for group in groups.values():
        group.sort(key=lambda one: datetime.datetime.fromisoformat(one.report.date), reverse=True)
        name = line(group[0].report.name) or f"(no name) {group[0].file}"
        # Leave out a report of Run All alone, perhaps on another machine: its answers are revealed,
        # but nothing is predicted or tried.
        worked = [
            one
            for one in group
            if any(p.predicted is not None for p in one.report.predictions)
            or any(check.tried for check in one.report.checks)
        ]
        if same_name != "later" and _is_disputed(worked, names):
            remark, undecided = _dispute(name, group, same_name)
            students += [
                Student(f"{name} ({one.file})", (one.file,), one.report, undecided) for one in group
            ]
            remarks.append(remark)
        else:
            student, more = _one_student(name, worked or group, group[0])
            students.append(student)
            remarks += more
    students.sort(key=lambda each: each.name.casefold())
    return tuple(students), [*remarks, *_versions(students)]


def _one_student(name: str, read: Sequence[_Read], latest: _Read) -> tuple[Student, list[str]]:
    """Combine a student's files, given the latest first. Of two files for the same notebook, the
    later one counts. If nothing was predicted or tried in the latest file, as before class, only
    its machine is used.
    """
    used: list[_Read] = []
    remarks = []
    for one in read:
        same = next((u for u in used if u.report.notebook == one.report.notebook), None)
        if same is None:
            used.append(one)
        else:
            # such as a report of all notebooks that was made where the progress had been lost
            only = line(", ".join(sorted(_ids(one) - _ids(same))))
            remarks.append(
                f"{name} handed in twice: {same.file} is later and counts, {one.file} does not."
                f"{f' Only the earlier file has {only}.' if only else ''}{_two(same, one)}"
            )
    if len(used) > 1:
        files = ", ".join(one.file for one in used)
        remarks.append(
            f"{name} handed in {len(used)} files for different notebooks: {files} are "
            f"combined.{_two(*used)}"
        )
    report = _together([one.report for one in used], latest.report.machine)
    if latest not in used:
        remarks.append(
            f"{name}: {latest.file} has no predictions and no exercises, so only its machine is "
            "used."
        )
        used.insert(0, latest)
    return Student(name, tuple(one.file for one in used), report), remarks


def _dispute(name: str, group: Sequence[_Read], same_name: str) -> tuple[str, str]:
    """Return the remark on several reports of one name, and why none of them is graded ("" if they
    are).
    """
    files = ", ".join(one.file for one in group)
    remark = f"{len(group)} reports have the name {name}: {files};"
    if same_name == "apart":
        return f"{remark} each counts as one student.", ""
    return (
        f'{remark} none of them is graded. Pass same_name="later" (--same-name later) if they are '
        'one student\'s, or "apart" if they are not.',
        f"{len(group)} reports have this name, and which of them count is for you to decide: "
        f"{files}",
    )


def _is_disputed(group: Sequence[_Read], names: Mapping[str, int]) -> bool:
    """Return whether one of several reports with the same name could be another student's.
    ``names`` counts the names in each folder.
    """
    places = {one.folder for one in group}
    ids = [id for one in group for id in _ids(one)]
    uploaded = places != {"."} and all(names[place] == 1 for place in places)
    return len(places) > 1 or (len(set(ids)) < len(ids) and not uploaded)


def _ids(one: _Read) -> set[str]:
    return {p.id for p in one.report.predictions} | {c.id for c in one.report.checks}


def _two(*read: _Read) -> str:
    """Return a sentence of doubt if files of one name come from different machines, else ""."""
    machines = {_identity(one.report.machine) for one in read}
    return " They come from different machines: perhaps two students." if len(machines) > 1 else ""


def _versions(students: Sequence[Student]) -> list[str]:
    """Return a remark on which students have which version of gpulab, if the versions differ: then
    checks and questions may differ, too.
    """
    found: dict[str, list[str]] = {}
    for student in students:
        found.setdefault(line(student.report.gpulab_version, 40), []).append(student.name)
    if len(found) < 2:
        return []
    (most, whose), *others = sorted(found.items(), key=lambda pair: -len(pair[1]))
    words = [f"{version} ({', '.join(sorted(who, key=str.casefold))})" for version, who in others]
    return [
        f"The versions of gpulab differ: {most} ({len(whose)} of {len(students)} students), "
        f"{', '.join(words)}."
    ]


def _together(reports: Sequence[StudentReport], machine: ReportedMachine) -> StudentReport:
    """Combine several reports, given the latest first, into one report with ``machine``.
    Predictions and checks that a later report does not have are taken from an earlier one.

    Roofs are taken only from a report of that machine. Those of another machine would be shown
    under the name of this machine's processor, as its CPU's.
    """

    # the same computer with the same best device; its free memory and its software may have changed
    def is_same(other: ReportedMachine) -> bool:
        return _identity(other) == _identity(machine) and other.device == machine.device

    roofs = next((each.roofs for each in reports if each.roofs and is_same(each.machine)), ())
    entries: dict[str, Any] = {}
    if len(reports) > 1:
        entries["notebook"] = ""
        for name in ("predictions", "checks"):
            found = {e.id: e for report in reversed(reports) for e in getattr(report, name)}
            entries[name] = tuple(found.values())
    return dataclasses.replace(reports[0], machine=machine, roofs=roofs, **entries)


def _identity(machine: ReportedMachine) -> tuple[str, str, int]:
    return machine.system, machine.processor, machine.memory_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab class`` and its arguments to its parser."""
    parser.description = (
        "Read a folder of reports and list the students, the machines with something "
        "to fix, and the files that cannot be read. With --grades every answer is checked again, "
        "and the grades are written as CSV."
    )
    parser.add_argument("folder", help="the folder of the reports, including its subfolders")
    parser.add_argument(
        "--grades", metavar="FILE", help="check every answer again and write the grades there"
    )
    parser.add_argument(
        "--rubric",
        metavar="FILE",
        help='a rubric such as {"exercise_points": 2, "notebooks": ["02"]} (default: see '
        "docs/classroom.md)",
    )
    code = parser.add_mutually_exclusive_group()
    code.add_argument(
        "--no-code",
        action="store_true",
        help="do not run answers that are code: functions, kernels and scripts",
    )
    code.add_argument(
        "--trust-code",
        action="store_true",
        help="run code also where there is no box: every answer can then read, change and send "
        "whatever you can, and set any grade",
    )
    parser.add_argument(
        "--same-name",
        choices=SAME_NAME,
        default=SAME_NAME[0],
        help="if several reports have the same name: list them and grade none (ask, the default), "
        "count the latest (later), or count each as one student (apart)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab class``; return the exit code."""
    from gpulab.lessons import Rubric, grade

    out, graded = arguments.grades, arguments.grades is not None
    if not graded and (arguments.rubric is not None or arguments.no_code or arguments.trust_code):
        raise InputError(
            "class: --rubric, --no-code and --trust-code apply only to grades; expected "
            "--grades FILE with them. Add it."
        )
    # Check the rubric and the output file before the answers are run, which takes minutes.
    rubric = None if arguments.rubric is None else Rubric.read(arguments.rubric)
    if graded:
        with _validate.writing(
            "class", shown(out), "a file in a folder of yours. Change --grades."
        ):
            refuse_unwritable(_validate.expanded("class", out))
    room = classroom(arguments.folder, same_name=arguments.same_name)
    print(text_table(*room.table()))
    print(f"\n{room.caption()}")
    if room.refused or room.remarks:
        print(f"\n{text_table(*room.problems.table())}")
    if graded:
        grades = grade(
            room,
            rubric,
            run_code=not arguments.no_code,
            trust_code=arguments.trust_code,
            progress=lambda done, of: print(
                f"\r{done} of {plural(of, 'answer')} checked",
                end="" if done < of else "\n",
                file=sys.stderr,
                flush=True,
            ),
        )
        try:
            file = grades.write_csv(out)
        except InputError:  # such as a full disk: print the grades, so that an hour is not lost
            print(grades.csv())
            raise
        print(f"\n{grades.caption()} Written to {file}.")
        if room.refused:
            print(f"Not in it: {plural(len(room.refused), 'file')} that cannot be read.")
        if grades.differences().rows:
            print(f"\n{text_table(*grades.differences().table())}")
    return 0
