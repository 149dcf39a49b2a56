"""The report of a student: one small file with the machine, the predictions, the checks with their
answers, and measurements.

It contains no personal data except the name that the student types: no user or host name, no path,
no serial number. If an answer is a function, its source is included, with everything that the
student wrote into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpulab.evidence import NOTE_CODES, Environment, Evidence, Note
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline
from gpulab.results import Result
from gpulab.units import format_bytes, plural


@dataclass(frozen=True)
class ReportedMachine(Result):
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
        NVIDIA's.
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

    @property
    def to_fix(self) -> tuple[str, ...]:
        """What has to be fixed before class."""
        return tuple(name for name, state in self.doctor.items() if state == "fix")


@dataclass(frozen=True)
class ReportedRoofs(Result):
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


@dataclass(frozen=True)
class ReportedPrediction(Result):
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
        Of what was measured.
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


@dataclass(frozen=True)
class ReportedCheck(Result):
    """One exercise.

    Attributes
    ----------
    id, state : str
        The outcome of the student's own check; grades do not use it.
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
class ReportedMeasurement(Result):
    """A measurement that was an answer.

    Attributes
    ----------
    id, label : str
    median_seconds : float
    interval_seconds : (float, float) or None
    notes : tuple of str
        Their codes.
    evidence : Evidence
    """

    id: str
    label: str
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    notes: tuple[str, ...]
    evidence: Evidence


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
    measurements : tuple of ReportedMeasurement
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
    measurements: tuple[ReportedMeasurement, ...]

    def __repr__(self) -> str:
        return (
            f"<report of {self.name or 'an unnamed student'}, {self.date[:10]}: "
            f"{self.machine.device}, {plural(len(self.predictions), 'prediction')}, "
            f"{plural(len(self.checks), 'check')}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the content, one row per part."""
        rows = [
            ("name", self.name or "(none)"),
            ("date", self.date),
            ("machine", self.machine.processor),
        ]
        rows += [
            ("device", self.machine.device),
            ("memory", format_bytes(self.machine.memory_bytes)),
        ]
        rows += [
            (
                f"prediction {p.id}",
                f"{p.predicted_text or 'none'}; answer: {p.measured_text or 'not shown'}",
            )
            for p in self.predictions
        ]
        rows += [
            (f"exercise {c.id}", f"{c.state}, {c.attempts} attempt{'s' if c.attempts != 1 else ''}")
            for c in self.checks
        ]
        return ("report", ""), rows

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
    # Beside the best device only the CPU is reported. Earlier reports called the devices as torch
    # does: "cuda:0", "mps:0", "cpu".
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
