"""``gpulab report``: one small file with a student's machine, predictions and checked answers.

It contains no personal data except the name that the student types: no user or host name, no path,
no serial number. If an answer is a function, its source is included, with everything that the
student wrote into it.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import pathlib
import platform
import re
import socket
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import gpulab
from gpulab import devices
from gpulab._files import write_atomically
from gpulab._validate import expanded, writing
from gpulab.errors import GpulabError, InputError, shown
from gpulab.evidence import NOTE_CODES, Environment, Evidence, Note
from gpulab.lessons import _progress, content
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline
from gpulab.results import Result, Table
from gpulab.units import format_bytes, plural


class ReportedMachine(NamedTuple):
    """A student's computer.

    Attributes
    ----------
    system, processor, device, device_kind : str
        "Linux x86_64"; names of the CPU and of the best device; its kind, as ``Device.kind``.
    cores : int
        The number that the process may use.
    memory_bytes : int
        Main memory that the process may use.
    accelerators : tuple of str
        Product names, including those that PyTorch cannot use.
    driver : str or None
        The version of NVIDIA's driver.
    python : str
    libraries : mapping of str to str
    doctor : mapping of str to str
        The checks of ``gpulab doctor`` and their states: ok, fix, warn, note. Only the names,
        because its sentences may contain paths.
    evidence : Evidence
    """

    system: str
    processor: str
    device: str
    device_kind: str
    cores: int
    memory_bytes: int
    accelerators: tuple[str, ...]
    driver: str | None
    python: str
    libraries: Mapping[str, str]
    doctor: Mapping[str, str]
    evidence: Evidence


class ReportedRoofs(NamedTuple):
    """The best rates of a device of the student's machine, measured when the report was made.

    Attributes
    ----------
    device : str
        Its name.
    flops_per_second : mapping of str to float
        By arithmetic.
    bytes_per_second, capacity_bytes : mapping of str to float
        By level of memory, the fastest first.
    notes : tuple of str
        The codes of disturbances.
    evidence : Evidence
    """

    device: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: Mapping[str, float]
    capacity_bytes: Mapping[str, float]
    notes: tuple[str, ...]
    evidence: Evidence


class ReportedPrediction(NamedTuple):
    """One prediction and the measured value.

    Attributes
    ----------
    id, question : str
    predicted, measured : float, str or None
        In base units, or the choice; None if there is none.
    predicted_text, measured_text : str
        As the student saw them.
    verdict : str
        As the student saw it; it is computed again when the report is read.
    badge : str
        The badge of the measured value.
    later : int
        How many answers came after the first.
    """

    id: str
    question: str
    predicted: float | str | None
    predicted_text: str
    measured: float | str | None
    measured_text: str
    verdict: str
    badge: str
    later: int


class ReportedCheck(NamedTuple):
    """One exercise.

    Attributes
    ----------
    id, state : str
        The outcome of the student's own check. Grades use it only with ``Rubric.open_share``.
    attempts, hints : int
    solution_shown : bool
    kept : JSON values
        The answer as ``gpulab.lessons`` keeps it, or the reason why it was not kept.
    seen : JSON values
        The result of the student's machine that the check compared the answer with, if any.
    """

    id: str
    state: str
    attempts: int
    hints: int
    solution_shown: bool
    kept: Any
    seen: Any

    @property
    def tried(self) -> bool:
        """Whether an answer was checked; an exercise has an entry also if only a hint or the
        solution was shown.
        """
        return self.attempts > 0 or self.state != "not attempted"


@dataclass(frozen=True)
class StudentReport(Result):
    """The report of one student.

    Attributes
    ----------
    name : str
        As typed; "" for none.
    date : str
        UTC, ISO 8601.
    gpulab_version : str
    notebook : str
        The notebook's number, or "" for all.
    machine : ReportedMachine
    roofs : tuple of ReportedRoofs
        The best device first; empty if nothing was measured.
    predictions : tuple of ReportedPrediction
    checks : tuple of ReportedCheck
    measurements : tuple
        Always empty. Earlier versions repeated here the measurements that are answers in
        ``checks``.
    """

    schema_version: ClassVar[int] = 1

    name: str
    date: str
    gpulab_version: str
    notebook: str
    machine: ReportedMachine
    roofs: tuple[ReportedRoofs, ...]
    predictions: tuple[ReportedPrediction, ...]
    checks: tuple[ReportedCheck, ...]
    measurements: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<report of {self.name or 'an unnamed student'}, {self.date[:10]}: "
            f"{self.machine.device}, {plural(len(self.predictions), 'prediction')}, "
            f"{plural(len(self.checks), 'check')}>"
        )

    def table(self) -> Table:
        """Return the content, one row per part."""
        return ("report", ""), [
            ("name", self.name or "(none)"),
            ("date", self.date),
            ("machine", self.machine.processor),
            ("device", self.machine.device),
            ("memory", format_bytes(self.machine.memory_bytes)),
            *(
                (
                    f"prediction {p.id}",
                    f"{p.predicted_text or 'none'}; answer: {p.measured_text or 'not shown'}",
                )
                for p in self.predictions
            ),
            *(
                (f"exercise {c.id}", f"{c.state}, {plural(c.attempts, 'attempt')}")
                for c in self.checks
            ),
        ]

    def rooflines(self) -> tuple[Roofline, ...]:
        """Return the roofs of the student's devices, RECORDED: a named machine on a date, as
        reported by the student.
        """
        return tuple(
            _roofline(self, each)
            for each in self.roofs
            if each.flops_per_second and each.bytes_per_second
        )


def _roofline(report: StudentReport, roofs: ReportedRoofs) -> Roofline:
    machine = report.machine
    # Only the best device and the CPU are reported. Earlier reports named devices as torch does:
    # "cuda:0", "mps:0", "cpu".
    best = roofs.device == machine.device or roofs.device.partition(":")[0] in (
        "cuda",
        "xpu",
        "mps",
    )
    kind = machine.device_kind if best else "cpu"
    where = Environment(
        date=report.date,
        system=machine.system,
        processor=machine.processor,
        cores=machine.cores,
        memory_bytes=machine.memory_bytes,
        device=roofs.device,
        device_kind=kind,
        driver=machine.driver,
        python=machine.python,
        libraries={},
        command="gpulab report",
    )
    evidence = Evidence.recorded(where)
    source = "as reported by the student's machine"
    return Roofline(
        device=roofs.device,
        arithmetic=tuple(
            ArithmeticRoof(name, rate, source, evidence)
            for name, rate in roofs.flops_per_second.items()
        ),
        memory=tuple(
            MemoryRoof(name, rate, roofs.capacity_bytes.get(name, float("inf")), source, evidence)
            for name, rate in roofs.bytes_per_second.items()
        ),
        points=(),
        notes=tuple(
            Note(code, NOTE_CODES[code])
            for code in dict.fromkeys(roofs.notes)
            if code in NOTE_CODES
        ),
        evidence=evidence,
        device_kind=kind,
    )


LONGEST_NAME = 100  # characters of a name, typed or shown in a table
_LONGEST_TEXT = 400  # of a question or an answer as it is shown
_TELLING = 4  # shorter user or host names ("me", "pc1") occur in any text by chance


def report(
    name: str = "", notebook: str = "", measure: bool = True, progress: bool = True
) -> StudentReport:
    """Return the report that a student hands in: machine, predictions, checks with their answers.

    Parameters
    ----------
    name : str
        The only personal data in it; "" for none.
    notebook : str
        A notebook's number, such as "02"; "" for all.
    measure : bool
        Measure the roofs of the best device and of the CPU now (about a second each), for the
        picture of all machines of the class.
    progress : bool
        False leaves out predictions and checks: only the machine and the results of ``gpulab
        doctor``.

    Raises
    ------
    InputError
        If the name is no text or too long, there is no such notebook, or the progress file is
        damaged.
    """
    who = _name(name)
    lessons = content.chosen(notebook, "report")
    fault = _progress.fault() if progress else None
    if fault:  # else an empty report would be handed in without a warning
        raise InputError(
            f"report: your progress {_progress.named()} {fault}; expected the file that gpulab "
            "wrote. Repair it; or, if its content is damaged, check an answer again, which sets it "
            "aside and begins a new file."
        )
    kept = _progress.read() if progress else _progress.empty()
    ids = [id for lesson in lessons for id in lesson.ids]
    predictions, exercises = (
        {id: kept[part][id] for id in _of(kept[part], ids, notebook)}
        for part in ("predictions", "exercises")
    )
    return StudentReport(
        name=who,
        date=_progress.now(),
        gpulab_version=gpulab.__version__,
        notebook=lessons[0].notebook[:2] if notebook else "",
        machine=_machine(),
        roofs=_roofs() if measure else (),
        predictions=tuple(
            _prediction(id, entry)
            for id, entry in predictions.items()
            if any(map(entry.get, ("first", "later", "revealed")))
        ),
        checks=tuple(_check(id, entry) for id, entry in exercises.items()),
    )


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise InputError(
            f"report: name={shown(name)}; expected text of at most {LONGEST_NAME} characters. Type "
            "a name, or leave it out."
        )
    return line(name)


def line(text: str, most: int = LONGEST_NAME) -> str:
    """Return text that somebody typed in a form safe to show: one line, shortened, without
    invisible or direction-changing characters.
    """
    visible = (c for c in text if unicodedata.category(c)[0] != "C" or c in "\t\n\r")
    plain = " ".join("".join(visible).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _of(entries: Mapping[str, Any], ids: list[str], notebook: str) -> list[str]:
    """Return the ids of the entries in the course's order. If all notebooks are reported, the ids
    of the student's own cells follow.
    """
    own = [] if notebook else [id for id in entries if len(id) <= 40]
    return [id for id in dict.fromkeys((*ids, *own)) if id in entries]


def _prediction(id: str, entry: Mapping[str, Any]) -> ReportedPrediction:
    first, seen = entry.get("first") or {}, entry.get("revealed") or {}
    return ReportedPrediction(
        id=id,
        question=_text(entry.get("question")),
        predicted=_value(first.get("value")),
        predicted_text=_text(first.get("text")),
        measured=_value(seen.get("value")),
        measured_text=_text(seen.get("text")),
        verdict=_text(seen.get("verdict")),
        badge=_text(seen.get("badge")),
        later=len(entry.get("later") or ()),
    )


def _text(value: Any) -> str:
    return str(value)[:_LONGEST_TEXT] if isinstance(value, str) else ""


def _value(value: Any) -> float | str | None:
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _check(id: str, entry: Mapping[str, Any]) -> ReportedCheck:
    state = entry.get("state") or "not attempted"
    kept = entry.get("kept") or {
        "kind": "nothing",
        "reason": "it was checked before answers were kept; run its cell again",
    }
    return ReportedCheck(
        id=id,
        state=state,
        attempts=entry.get("attempts") or 0,
        hints=entry.get("hints") or 0,
        solution_shown=entry.get("solution_shown") is True,
        kept=_impersonal(kept) if state in ("passed", "wrong") else None,
        seen=_impersonal(entry.get("seen")),
    )


def _impersonal(value: Any) -> Any:
    """Return JSON values without the kernel's release and the command in the environments of
    results: the release of a self-built kernel, or a command, may contain the user's or the host's
    name.
    """
    if isinstance(value, list):
        return [_impersonal(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _impersonal(item) for key, item in value.items()}
    if made.get("schema") == "Environment" and isinstance(made.get("system"), str):
        words = made["system"].split()
        made |= {
            "system": " ".join(dict.fromkeys((words[0], words[-1]))) if words else "",
            "command": None,
        }
    return made


def _machine() -> ReportedMachine:
    known, stamp = devices.gather(), devices.environment()
    return ReportedMachine(
        # not the release: that of a self-built kernel may contain the user's or the host's name
        system=f"{platform.system()} {platform.machine()}",
        processor=stamp.processor,
        device=stamp.device,
        device_kind=stamp.device_kind,
        cores=stamp.cores,
        memory_bytes=stamp.memory_bytes,
        accelerators=tuple(gpu.name for gpu in known.accelerators),
        driver=stamp.driver,
        python=stamp.python,
        libraries=dict(stamp.libraries),
        doctor={check.name: check.state for check in devices.checkup(known).checks},
        evidence=Evidence.measured(stamp.device, date=stamp.date),
    )


def _roofs() -> tuple[ReportedRoofs, ...]:
    """Return the roofs of the best device, and those of the CPU if it is not the best device. A
    device that fails, such as a busy GPU, is left out.
    """
    found = []
    best = devices.default()
    for device in (best,) if best.is_cpu else (best, devices.find("cpu")):
        try:
            c = devices.ceilings(device)
        except (GpulabError, RuntimeError, MemoryError):
            continue
        found.append(
            ReportedRoofs(
                device=c.environment.device,
                flops_per_second=dict(c.flops_per_second),
                bytes_per_second={level.name: level.bytes_per_second for level in c.memory},
                capacity_bytes={level.name: level.capacity_bytes for level in c.memory},
                notes=tuple(note.code for note in c.notes),
                evidence=c.evidence,
            )
        )
    return tuple(found)


def write_report(
    made: StudentReport, path: str | os.PathLike[str], say: Callable[[str], None] = print
) -> pathlib.Path:
    """Write a report atomically, and print what it contains.

    Parameters
    ----------
    made : StudentReport
    path : path
        The file; a folder that is missing is made, and ~ is your home.
    say : callable
        Called with each sentence.

    Raises
    ------
    InputError
        If nothing can be written there.
    """
    file = expanded("report", path)
    # ``to_dict`` writes infinities as text
    text = json.dumps(made.to_dict(), indent=1, ensure_ascii=False) + "\n"
    with writing(
        "report",
        file,
        "a file in a folder of yours. Pass another path (in a terminal, with --out).",
    ):
        write_atomically(file, text.encode("utf-8", "replace"))
    for sentence in (f"Wrote {file} ({len(text) / 1000:.0f} kB).", *_contents(made)):
        say(sentence)
    return file


def _contents(made: StudentReport) -> list[str]:
    """Return sentences on the content of a report, for the student who is about to send it."""
    kinds = {c.id: c.kept.get("kind") for c in made.checks if isinstance(c.kept, dict)}
    sources = [id for id, kind in kinds.items() if kind in ("code", "file")]
    missing = [id for id, kind in kinds.items() if kind == "nothing"]
    given = sum(prediction.predicted is not None for prediction in made.predictions)
    tried = sum(check.tried for check in made.checks)
    of_machine = [
        made.machine.device,
        "versions of its libraries",
        "the results of gpulab doctor",
        *(["its roofs"] if made.roofs else []),
    ]
    lines = [
        f"It contains: {f'the name {made.name!r}' if made.name else 'no name'}; this machine "
        f"({', '.join(of_machine)}); {plural(given, 'prediction')}; "
        f"{plural(tried, 'checked exercise')}, {len(kinds) - len(missing)} with your answer.",
        "It does not contain your user name, this machine's name, paths or serial numbers.",
    ]
    if sources:
        lines.append(
            "It includes the source code of these answers, with everything that you wrote into "
            f"it: {', '.join(sources)}."
        )
    if missing:
        lines.append(
            "It has no answer for these exercises, so they cannot be graded from it: "
            f"{', '.join(missing)}."
        )
    return lines + [
        f"Check it before you send it: {what} appears in {where}." for what, where in _traces(made)
    ]


def _traces(made: StudentReport) -> list[tuple[str, str]]:
    """Return which of user name, host name and home folder appear in the report, and where; only a
    student's own text can contain them.
    """
    secrets = {"this machine's name": socket.gethostname().partition(".")[0]}
    # a user may have no entry in the system's list, or no home
    with contextlib.suppress(OSError, KeyError, ImportError):
        secrets = {"your user name": getpass.getuser(), **secrets}
    with contextlib.suppress(RuntimeError):
        secrets["your home folder"] = str(pathlib.Path.home())
    parts = {
        # Two backslashes in a source mean one.
        f"answer {check.id}": "\n".join(_words([check.kept, check.seen])).replace("\\\\", "\\")
        for check in made.checks
    } | {f"prediction {p.id}": f"{p.question} {p.predicted_text}" for p in made.predictions}
    return [
        (what, where)
        for what, secret in secrets.items()
        if len(secret) >= _TELLING
        for where, text in parts.items()
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", text)
    ]


def _words(value: Any) -> Iterator[str]:
    """Yield the keys and values inside JSON values as plain text. JSON's own text would not do,
    since it escapes the ends of lines and backslashes.
    """
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list):
        for part in value:
            yield from _words(part)
    else:
        yield str(value)


# characters of a name in a file's name: at most 160 bytes of the 255 that file systems take
_LONGEST_WORD = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab report`` and its arguments to its parser."""
    parser.description = (
        "Write one small file with this machine, your predictions and your checked "
        "answers, and print what it contains."
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="where to write (default: gpulab-report-NAME.json here, gpulab-report-02-NAME.json "
        "with --notebook 02, gpulab-doctor-NAME.json with --doctor-only)",
    )
    parser.add_argument(
        "--name", default="", help="your name, the only personal data in it (default: none)"
    )
    parser.add_argument(
        "--notebook", default="", metavar="02", help="only this notebook (default: all)"
    )
    parser.add_argument(
        "--doctor-only",
        action="store_true",
        help="only the machine and the results of `gpulab doctor`, before class",
    )
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help="leave out the machine's roofs, which take some seconds to measure",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab report``; return the exit code."""
    machine_only = arguments.doctor_only
    if not machine_only:
        _find_progress()
    measure = not (arguments.no_measure or machine_only)
    made = report(arguments.name, arguments.notebook, measure, progress=not machine_only)
    write_report(
        made,
        arguments.out
        or _default(made.name, "doctor" if machine_only else f"report-{made.notebook}"),
    )
    return 0


def _find_progress() -> None:
    """Use the progress file in ``my-notebooks`` if this folder has none, and print which file is
    read.
    """
    copy = pathlib.Path("my-notebooks", ".gpulab", "progress.json")
    if not _progress.path().exists() and not os.environ.get("GPULAB_PROGRESS") and copy.is_file():
        os.environ["GPULAB_PROGRESS"] = str(copy.absolute())
    path = _progress.path()
    print(
        f"Your progress is read from {path}."
        if path.is_file()
        else f"There is no progress at {path}: change to the folder of your notebooks, or set "
        "GPULAB_PROGRESS to the file."
    )


def _default(name: str, what: str = "report") -> str:
    """Return a file name that contains the letters of the student's name, in any alphabet."""
    plain = unicodedata.normalize("NFC", name).lower()
    letters = "".join(c if c.isalnum() else " " for c in plain)
    word = "-".join(letters.split())[:_LONGEST_WORD].strip("-")
    return f"{'-'.join(filter(None, (f'gpulab-{what}'.rstrip('-'), word)))}.json"
