"""``gpulab class`` and ``classroom``: read a folder of students' reports.

A file is untrusted data: its size is limited, it is parsed as strict JSON, checked field by field,
and never executed. A damaged or hostile file results in one sentence and nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpulab._files import read_regular
from gpulab.errors import InputError, RecordingError, message_of, shown
from gpulab.lessons._answers import MOST_CHARACTERS
from gpulab.lessons._report import ReportedMachine, StudentReport
from gpulab.lessons.classes import Classroom, RefusedFile, Student, line
from gpulab.units import format_bytes

SAME_NAME = ("ask", "later", "apart")
# a report of the whole course has some 100 kB, one with every answer at its limit 3 MB
MOST_BYTES = 8 * 2**20
MOST_FILES = 5_000
_MOST_ENTRIES = 1_000
_LONGEST = 1_000  # characters of any text that is shown
_LONGEST_PLACE = 100  # of where a file lies
_RATES = (1.0, 1e21)  # FLOP/s and bytes/s that any machine can have
# A kept answer has at most 20 levels, of three of JSON's each, and lies a few below the top.
_DEEPEST = 100
_NESTED = (
    "It is nested more deeply than any report; expected the output of `gpulab report`. Ask for it "
    "again."
)
_TOMORROW = datetime.timedelta(days=1)


def classroom(
    folder: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
    *,
    same_name: str = SAME_NAME[0],
) -> Classroom:
    """Read a folder of reports, also in folders inside it, as learning platforms hand them out.

    Parameters
    ----------
    folder : path
    progress : callable, optional
        Called with (files read, files in all).
    same_name : str
        Anybody can type any name, so of reports with one name from different folders, or with
        answers to the same exercises, one may be another student's. "ask" lists each of them and
        lets ``grade`` give no points for any; "later" lets the later one count, and "apart" takes
        each for a student. Files of one folder in which there is no other name are one student's.

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
    if same_name not in SAME_NAME:
        raise InputError(
            f"classroom: same_name={shown(same_name)}; expected one of {', '.join(SAME_NAME)}. "
            "Pass one of these."
        )
    try:
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise InputError(
                f"classroom: {shown(str(folder))} is not a folder; expected the one that holds the "
                "students' reports. Pass its path."
            )
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"classroom: {shown(folder)} is not a folder; expected a path. Pass the folder of the "
            "reports."
        ) from error
    files, remarks = _files(root)
    read: list[tuple[str, StudentReport]] = []
    # not by the names that are shown: those of two folders may look alike
    where: dict[int, str] = {}
    refused: list[RefusedFile] = []
    for number, file in enumerate(files, 1):
        name = _place(file.relative_to(root).as_posix())
        try:
            read.append((name, report := read_report(file)))
            where[id(report)] = str(file.parent.relative_to(root))
        except RecordingError as error:
            refused.append(RefusedFile(name, message_of(error, 400)))
        if progress is not None:
            progress(number, len(files))
    students, twice = _students(read, where, same_name)
    return Classroom(str(root), students, tuple(refused), (*remarks, *twice))


def _files(root: Path) -> tuple[list[Path], list[str]]:
    """Every .json below the folder, links not followed; the remarks say what was not looked into,
    where whole students would be missing.
    """
    found: list[Path] = []
    closed: list[OSError] = []
    links: list[str] = []
    others = 0
    for folder, folders, names in os.walk(root, onerror=closed.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links += [
            _place(Path(folder, name).relative_to(root).as_posix())
            for name in folders
            if Path(folder, name).is_symlink()
        ]
        visible = sorted(name for name in names if not name.startswith("."))
        found += [Path(folder, name) for name in visible if name.lower().endswith(".json")]
        others += sum(not name.lower().endswith(".json") for name in visible)
        if len(found) > MOST_FILES:
            break
    remarks = (
        [f"{others} file{'s' if others != 1 else ''} not ending in .json skipped."]
        if others
        else []
    )
    remarks += [
        f"The folder {_place(os.path.relpath(error.filename or root, root))} cannot be opened "
        f"({error.strerror or error}), so its content was not read."
        for error in closed
    ]
    remarks += [f"The folder {name} is a link; links are not followed." for name in links]
    if len(found) > MOST_FILES:
        remarks.append(f"Only the first {MOST_FILES:,} files were read; split the folder.")
    return found[:MOST_FILES], remarks


def _place(path: str) -> str:
    """Return a path below the folder as it may be shown; of a long one the end, for a platform's
    archive begins all with one long name.
    """
    plain = line(path, len(path))
    return plain if len(plain) <= _LONGEST_PLACE else f"…{plain[1 - _LONGEST_PLACE :]}"


def read_report(path: str | os.PathLike[str]) -> StudentReport:
    """Return the report in a file, with every field checked.

    Raises
    ------
    RecordingError
        If it is missing, a link or a device, too large, not strict JSON, damaged, from a newer
        version, or has impossible values.
    """
    file = Path(path)
    try:
        about = file.lstat()
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
        # As bytes: by the first ones it is known how Windows' own tools wrote it, where a student
        # has looked into the file and saved it.
        content = json.loads(
            read_regular(file, MOST_BYTES), parse_constant=_bare_word, parse_float=_finite
        )
    except OSError as error:
        raise RecordingError(
            f"It cannot be read ({error.strerror or error}); expected a file that you may read."
        ) from error
    except UnicodeDecodeError as error:
        raise RecordingError(
            "It is not text; expected the file that `gpulab report` wrote. Was another file handed "
            "in?"
        ) from error
    except RecursionError as error:
        raise RecordingError(_NESTED) from error
    except (ValueError, MemoryError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(
            f"It is not JSON ({message_of(error, 80)}); expected the output of `gpulab report`. Is "
            "it cut off?"
        ) from error
    if _is_deep(content):
        raise RecordingError(_NESTED)
    if not isinstance(content, dict) or content.get("schema") != StudentReport.__name__:
        raise RecordingError(
            "It is JSON, but not a report; expected the file that `gpulab report` wrote. Was the "
            "progress file handed in?"
        )
    try:
        # half a character would end the terminal's or the notebook's own output
        json.dumps(content, ensure_ascii=False).encode("utf-8")
        report = StudentReport.from_dict(content, "report")
        _refuse_unsound(report)
    except UnicodeEncodeError as error:
        raise RecordingError(
            "It holds an incomplete character; expected the output of `gpulab report`. The file "
            "was damaged."
        ) from error
    return report


def _is_deep(content: Any) -> bool:
    """Whether JSON is nested deeper than any report: how deep Python itself reads differs by
    version, from a thousand to many thousands.
    """
    level = [content]
    for _ in range(_DEEPEST):
        holders = [
            list(one.values()) if isinstance(one, dict) else one
            for one in level
            if isinstance(one, (dict, list))
        ]
        level = [part for holder in holders for part in holder]
    return bool(level)


def _bare_word(word: str) -> float:
    raise RecordingError(
        f"It holds the bare word {word}, which is not JSON; expected finite numbers. It was not "
        "written by gpulab."
    )


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise RecordingError(
            f"It holds the number {shown(word, 20)}, which is too large for a float; expected "
            "finite numbers."
        )
    return value


def _refuse_unsound(report: StudentReport) -> None:
    """Refuse what has the right types and cannot be true, or is too much to show."""
    what = _date_fault(report.date) or next(
        (sentence for fault, sentence in _faults(report) if fault), ""
    )
    if what:
        raise RecordingError(
            f"{what}; expected the output of `gpulab report`. The file was damaged or changed."
        )


def _date_fault(date: str) -> str:
    try:
        made = datetime.datetime.fromisoformat(date)
    except ValueError:
        return f"Its date is {shown(date, 40)}"
    if made.tzinfo is None:
        return f"Its date is {shown(date, 40)}, without a time zone"
    late = made - datetime.datetime.now(datetime.timezone.utc) > _TOMORROW
    return (
        f"Its date, {shown(date, 40)}, is in the future (or that computer's clock is wrong)"
        if late
        else ""
    )


def _faults(report: StudentReport) -> Iterator[tuple[bool, str]]:
    """Yield whether something is impossible or too much, and the sentence for it."""
    checks, machine = report.checks, report.machine
    for what, entries in (
        ("predictions", report.predictions),
        ("checks", checks),
        ("measurements", report.measurements),
    ):
        counts = Counter(entry.id for entry in entries).most_common(1)
        yield len(entries) > _MOST_ENTRIES, f"It has {len(entries):,} {what}"
        yield (
            bool(counts) and counts[0][1] > 1,
            f"It has two {what} with the same number, {shown(counts[0][0] if counts else '', 20)}",
        )
    counted = [count for check in checks for count in (check.attempts, check.hints)]
    yield (
        not all(0 <= count <= 10**6 for count in counted),
        "The number of attempts or hints of an exercise is negative or above a million",
    )
    yield (
        any(check.state not in ("passed", "wrong", "not attempted") for check in checks),
        "The state of an exercise is unknown",
    )
    numbers = [
        value
        for p in report.predictions
        for value in (p.predicted, p.measured)
        if isinstance(value, float)
    ]
    yield (
        not all(math.isfinite(value) and value >= 0 for value in numbers),
        "A prediction is negative or not finite",
    )
    rates = [
        rate
        for each in report.roofs
        for rate in (*each.flops_per_second.values(), *each.bytes_per_second.values())
    ]
    possible = (
        all(_RATES[0] <= rate <= _RATES[1] for rate in rates)
        and len(report.roofs) <= 8
        and len(rates) <= 200
    )
    yield not possible, "The rates of its roofs are impossible"
    yield not all(each.device for each in report.roofs), "Its roofs have no device"
    sizes = (
        f"{shown(machine.cores, 20)} cores and {shown(machine.memory_bytes, 20)} bytes of memory"
    )
    yield (
        not (1 <= machine.cores <= 100_000 and 1 <= machine.memory_bytes <= 2**60),
        f"Its machine has {sizes}",
    )
    texts: list[Any] = [
        report.name,
        report.notebook,
        report.gpulab_version,
        machine.device,
        machine.processor,
        machine.system,
    ]
    texts += [
        *machine.doctor,
        *machine.accelerators,
        *(each.device for each in report.roofs),
        *(check.id for check in checks),
    ]
    texts += [getattr(p, name) for p in report.predictions for name in _SHOWN]
    long = any(isinstance(text, str) and len(text) > _LONGEST for text in texts)
    yield long, f"A text in it has more than {_LONGEST:,} characters"
    parts = [part for check in checks for part in (check.kept, check.seen)]
    yield (
        any(len(json.dumps(part)) > 2 * MOST_CHARACTERS for part in parts),
        "An answer in it is larger than the limit",
    )


# of a prediction
_SHOWN = ("id", "question", "predicted_text", "measured_text", "predicted", "measured")


def _students(
    read: Sequence[tuple[str, StudentReport]], where: Mapping[int, str], same_name: str
) -> tuple[tuple[Student, ...], list[str]]:
    """Put the files of one student together; the later file of the same notebooks counts.

    One in which nothing was predicted or tried, as before class, tells of the machine and takes no
    other's place.
    """
    groups: dict[str, list[tuple[str, StudentReport]]] = {}
    for number, (file, report) in enumerate(read):
        name = line(report.name)
        # by no words: two files may be shown alike
        key = unicodedata.normalize("NFKC", name).casefold() if name else f"\0{number}"
        groups.setdefault(key, []).append((file, report))
    students, remarks = [], []
    folders = [
        folder for group in groups.values() for folder in {where[id(report)] for _, report in group}
    ]
    for group in groups.values():
        latest = sorted(
            group, key=lambda pair: datetime.datetime.fromisoformat(pair[1].date), reverse=True
        )
        name = line(latest[0][1].name) or f"(no name) {latest[0][0]}"
        if same_name != "later" and _is_disputed(
            [report for _, report in group if _has_work(report)], where, folders
        ):
            files = ", ".join(file for file, _ in latest)
            why = (
                ""
                if same_name == "apart"
                else f"{len(group)} reports have this name, and which of them count is for you to "
                f"decide: {files}"
            )
            students += [
                Student(f"{name} ({file})", (file,), report, why) for file, report in latest
            ]
            decided = (
                "each counts as one student"
                if not why
                else (
                    'none of them is graded. Pass same_name="later" (--same-name later) if they '
                    'are one student\'s, or "apart" if they are not'
                )
            )
            remarks.append(f"{len(group)} reports have the name {name}: {files}; {decided}.")
            continue
        used: list[tuple[str, StudentReport]] = []
        for file, report in [pair for pair in latest if _has_work(pair[1])] or latest:
            same = next((pair for pair in used if pair[1].notebook == report.notebook), None)
            if same is None:
                used.append((file, report))
            else:
                remarks.append(
                    f"{name} handed in twice: {same[0]} is later and counts, {file} does "
                    f"not.{_two(same[1], report)}"
                )
        if len(used) > 1:
            files, machines = (
                ", ".join(file for file, _ in used),
                _two(*(report for _, report in used)),
            )
            remarks.append(
                f"{name} handed in {len(used)} files for different notebooks: {files} are "
                f"combined.{machines}"
            )
        report = _together([report for _, report in used], latest[0][1].machine)
        if latest[0] not in used:
            remarks.append(
                f"{name}: {latest[0][0]} has no predictions and no exercises, so only its machine "
                "is used."
            )
            used.insert(0, latest[0])
        students.append(Student(name, tuple(file for file, _ in used), report))
    return tuple(sorted(students, key=lambda each: each.name.casefold())), [
        *remarks,
        *_versions(students),
    ]


def _is_disputed(
    group: Sequence[StudentReport], where: Mapping[int, str], folders: Sequence[str]
) -> bool:
    """Whether one report of a name could take the place of another student's.

    ``folders`` has each folder once for each name in it: one with a single name is what one student
    uploaded.
    """
    places = {where[id(report)] for report in group}
    ids = [
        key
        for report in group
        for key in (*(c.id for c in report.checks), *(p.id for p in report.predictions))
    ]
    shared = places != {"."} and all(folders.count(place) == 1 for place in places)
    return len(places) > 1 or (len(set(ids)) < len(ids) and not shared)


def _has_work(report: StudentReport) -> bool:
    """Whether something was predicted or tried: Run All alone, on another machine, leaves revealed
    questions without a prediction.
    """
    return any(p.predicted is not None for p in report.predictions) or any(
        check.tried for check in report.checks
    )


def _two(*reports: StudentReport) -> str:
    """Return the doubt where files of one name come from different machines; "" where they do
    not.
    """
    machines = {_identity(report.machine) for report in reports}
    return " They come from different machines: perhaps two students." if len(machines) > 1 else ""


def _versions(students: Sequence[Student]) -> list[str]:
    """Return who has which version of gpulab, where they differ: checks and questions may differ,
    too.
    """
    found: dict[str, list[str]] = {}
    for student in students:
        found.setdefault(line(student.report.gpulab_version, 40), []).append(student.name)
    if len(found) < 2:
        return []
    most, *others = sorted(found.items(), key=lambda pair: -len(pair[1]))
    words = [
        f"{version} ({', '.join(sorted(names, key=str.casefold))})" for version, names in others
    ]
    return [
        f"The versions of gpulab differ: {most[0]} ({len(most[1])} of {len(students)} students), "
        f"{', '.join(words)}."
    ]


def _together(reports: Sequence[StudentReport], machine: ReportedMachine) -> StudentReport:
    """One report of several, the latest first, and of a machine: what a later one does not have is
    taken from an earlier one.

    Roofs are of the machine that made their file: those of another one would stand under this one's
    processor, as a CPU's.
    """
    latest = reports[0]

    def union(name: str) -> tuple[Any, ...]:
        found = {entry.id: entry for report in reversed(reports) for entry in getattr(report, name)}
        return tuple(found.values())

    roofs = next(
        (report.roofs for report in reports if report.roofs and _is_same(report.machine, machine)),
        (),
    )
    if len(reports) == 1:
        return dataclasses.replace(latest, machine=machine, roofs=roofs)
    return dataclasses.replace(
        latest,
        notebook="",
        machine=machine,
        roofs=roofs,
        predictions=union("predictions"),
        checks=union("checks"),
        measurements=union("measurements"),
    )


def _is_same(one: ReportedMachine, other: ReportedMachine) -> bool:
    """Whether two files tell of one machine with one best device; what is free, installed or
    updated there may have changed.
    """
    return _identity(one) == _identity(other) and one.device == other.device


def _identity(machine: ReportedMachine) -> tuple[str, str, int]:
    return machine.system, machine.processor, machine.memory_bytes


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "class",
        help="read a folder of reports and write the grades",
        description="Read a folder of reports and list the students, the machines with something "
        "to fix, and the files that cannot be read. With --grades every answer is checked again, "
        "and the grades are written as CSV.",
    )
    parser.add_argument("folder", help="the folder of the reports, including its subfolders")
    parser.add_argument(
        "--grades", metavar="FILE", help="check every answer again and write the grades there"
    )
    parser.add_argument(
        "--rubric",
        metavar="FILE",
        help='a rubric such as {"exercise_points": 2, "notebooks": ["02"]} (default: see the docs)',
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
        help="of reports of one name: grade none and list them (ask, the default), let the later "
        "one count, or take each for a student",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab class``; return the exit code."""
    from gpulab.errors import InputError
    from gpulab.lessons import Rubric, classroom, grade

    graded = arguments.grades is not None
    if not graded and (arguments.rubric is not None or arguments.no_code or arguments.trust_code):
        raise InputError(
            "class: --rubric, --no-code and --trust-code say how answers are graded; expected "
            "--grades FILE with them. Add it."
        )
    # Both before the answers are run, which takes minutes.
    rubric = None if arguments.rubric is None else Rubric.read(arguments.rubric)
    if graded:
        _refuse_unwritable(arguments.grades)
    room = classroom(arguments.folder, same_name=arguments.same_name)
    _print(room.table())
    print(f"\n{room.caption()}")
    if room.refused or room.remarks:
        print()
        _print(room.problems.table())
    if graded:
        grades = grade(
            room, rubric, run_code=not arguments.no_code, trust_code=arguments.trust_code
        )
        try:
            file = grades.write_csv(arguments.grades)
        except InputError:  # such as a disk that is full by now: what took an hour is not lost
            print(grades.csv())
            raise
        print(f"\n{grades.caption()} Written to {file}.")
        if grades.differences().rows:
            print()
            _print(grades.differences().table())
    return 0


def _refuse_unwritable(path: str) -> None:
    from gpulab._files import refuse_unwritable
    from gpulab._given import expanded
    from gpulab.errors import InputError, shown

    try:
        refuse_unwritable(expanded("class", path))
    except OSError as error:
        raise InputError(
            f"class: {shown(path)} cannot be written ({error.strerror or error}); expected a file "
            "in a folder of yours. Change --grades."
        ) from error


def _print(table: tuple[Sequence[str], Sequence[Sequence[str]]]) -> None:
    headers, rows = table
    lines = [tuple(map(str, cells)) for cells in (headers, *rows)]
    widths = [min(max(map(len, column)), 60) for column in zip(*lines, strict=True)]
    for cells in lines:
        padded = (text.ljust(width) for text, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip())
