"""Material of notebook 00: four claims about the memory, and a contest of two devices over sizes.

Values are from the learner's own machine; what cannot be measured here is recorded or modelled,
with its badge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpulab import devices, recordings, timing, transfer, workloads
from gpulab.errors import InputError
from gpulab.evidence import Evidence, known_errors
from gpulab.results import Result
from gpulab.timing import Measurement
from gpulab.timing.recorded import measurement
from gpulab.units import format_bytes_per_second, format_seconds, plural

_POINT_SECONDS = 0.25
_GIB = 2**30
# The modelled opponent of machines without an accelerator: the GPU and the link that recordings are
# made on.
_PROCESSOR, _LINK = "nvidia-h200", "pcie5-x16"
# Which sizes of a workload a contest walks through: half a minute of CPU would be too long, so
# matmul ends at 1024.
_CONTEST_SIZES = {
    "matmul": (64, 128, 256, 512, 1024),
    "add": (1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 24),
}
# Notes that say that something else used or slowed the CPU: it only ever makes a time longer.
_DISTURBANCES = ("contended", "stalled", "throttled")
_claims: Claims | None = None
_contests: dict[tuple[str, str], Contest] = {}


def disturbed(codes: Iterable[str]) -> bool:
    """Return whether, by the notes of a measurement, something else used or slowed the CPU, so that
    its time may be too long.
    """
    return any(code in _DISTURBANCES for code in codes)


@dataclass(frozen=True)
class Claim(Result):
    """One claimed timing.

    Attributes
    ----------
    letter, work : str
        "A" to "D"; the work that was done.
    nbytes : float
        Bytes read and written; the table does not show them.
    seconds : float
        The claimed time.
    """

    letter: str
    work: str
    nbytes: float
    seconds: float


@dataclass(frozen=True)
class Claims(Result):
    """Four claims about this machine's main memory, one of them impossible.

    Attributes
    ----------
    claims : tuple of Claim
    ceiling_bytes_per_second : float
        The bandwidth of this machine's memory.
    evidence : Evidence
    """

    claims: tuple[Claim, ...]
    ceiling_bytes_per_second: float
    evidence: Evidence

    def __repr__(self) -> str:
        lines = [
            f"  {claim.letter}: {claim.work} in {format_seconds(claim.seconds)}"
            for claim in self.claims
        ]
        return "\n".join(
            [
                f"Memory moves at most {format_bytes_per_second(self.ceiling_bytes_per_second)}. "
                "Four claims:",
                *lines,
            ]
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per claim."""
        return ("claim", "the work (float32)", "time claimed"), [
            (c.letter, c.work, format_seconds(c.seconds)) for c in self.claims
        ]

    def caption(self) -> str:
        """Return the badge and the ceiling."""
        return (
            f"{self.evidence.sentence} · your main memory moves at most "
            f"{format_bytes_per_second(self.ceiling_bytes_per_second)} (MEASURED)"
        )


def four_claims() -> Claims:
    """Return four claimed timings on this machine, of which exactly one is impossible.

    They are made up for the exercise from the measured ceiling of your main memory
    (``devices.ceilings``): three are below it, one is three times above. All move gigabytes, so no
    cache can explain a rate. They stay the same until the kernel ends, so that the check uses the
    numbers that the learner saw.
    """
    global _claims
    if _claims is None:
        _claims = _make_claims(devices.ceilings("cpu").bandwidth())
    return _claims


def _make_claims(ceiling: float) -> Claims:
    # (work, bytes moved, share of the ceiling): the impossible one is neither the shortest nor the
    # longest time.
    plan = (
        ("add up an array of 2 GiB", 2 * _GIB, 0.9),
        ("copy an array of 4 GiB", 8 * _GIB, 0.5),
        ("add two arrays of 8 GiB each into a third", 24 * _GIB, 3.0),
        ("take the square root of an array of 8 GiB in place", 16 * _GIB, 0.7),
    )
    claims = tuple(
        Claim(letter, work, float(moved), moved / (share * ceiling))
        for letter, (work, moved, share) in zip("ABCD", plan, strict=True)
    )
    made = Evidence.modelled(
        "exercise data: times set to chosen shares of the measured ceiling",
        "gl.lessons.four_claims",
        "not a measurement",
    )
    return Claims(claims, ceiling, made)


@dataclass(frozen=True)
class ContestRow(Result):
    """One size of a contest; seconds per call.

    Attributes
    ----------
    n : int
    cpu_seconds : float
    returned_seconds, accelerator_seconds, with_copies_seconds : float
        On the accelerator: until the call returned; until it was done, with the data already there;
        with the inputs sent and the result fetched.
    notes : str
        The codes of the CPU measurement's notes, such as "contended".
    accelerator_notes : str
        Those of the accelerator's times, measured or recorded, such as "throttled".
    """

    schema_version: ClassVar[int] = 2
    n: int
    cpu_seconds: float
    returned_seconds: float
    accelerator_seconds: float
    with_copies_seconds: float
    notes: str = ""
    accelerator_notes: str = ""

    @property
    def disturbed(self) -> bool:
        """Whether the CPU's time may be too long because something else used the CPU."""
        return disturbed(self.notes.split(", "))


@dataclass(frozen=True)
class Contest(Result):
    """One workload over sizes: this machine's CPU compared with an accelerator.

    Attributes
    ----------
    label, size_meaning, accelerator : str
    rows : tuple of ContestRow
    evidence : Evidence
        Of the accelerator's columns.
    cpu_evidence : Evidence
        Of the CPU's column, which is measured here.
    """

    label: str
    size_meaning: str
    accelerator: str
    rows: tuple[ContestRow, ...]
    evidence: Evidence
    cpu_evidence: Evidence

    @property
    def sides(self) -> dict[str, Evidence]:
        """The evidence of each side by its name."""
        return {"the CPU": self.cpu_evidence, "the accelerator": self.evidence}

    @property
    def wins_from(self) -> int | None:
        """The smallest size from which the accelerator, copies included, stays ahead up to the
        largest; None if there is none.
        """
        found = None
        for row in reversed(self.rows):
            if row.with_copies_seconds >= row.cpu_seconds:
                break
            found = row.n
        return found

    def __repr__(self) -> str:
        return f"<{self.label}: CPU against {self.accelerator} at {plural(len(self.rows), 'size')}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per size."""
        badge = str(self.evidence.badge)
        headers = (
            self.size_meaning,
            "CPU (MEASURED)",
            f"{badge}: returned",
            f"{badge}: done",
            f"{badge}: with copies",
            "notes on the CPU",
            "on the accelerator",
        )
        return headers, [
            (
                str(row.n),
                *map(
                    format_seconds,
                    (
                        row.cpu_seconds,
                        row.returned_seconds,
                        row.accelerator_seconds,
                        row.with_copies_seconds,
                    ),
                ),
                row.notes or "none",
                row.accelerator_notes or "none",
            )
            for row in self.rows
        ]

    def caption(self) -> str:
        """Return the device of the accelerator's columns, and their badge."""
        badge, _, rest = self.evidence.sentence.partition(" ")
        return (
            f"{badge} · the accelerator's columns: {self.accelerator} · {rest.removeprefix('· ')}"
        )


def contest(workload: str = "matmul", dtype: str = "float32", again: bool = False) -> Contest:
    """Measure a workload on this CPU over sizes, and compare with an accelerator.

    The accelerator is the one of this machine, or a recorded one, or a modelled one, in this order.
    The table is kept until the kernel ends, so that an exercise uses the numbers that the learner
    saw.

    Parameters
    ----------
    workload : str
        "matmul" or "add".
    dtype : str
    again : bool
        Measure again.

    Raises
    ------
    InputError
        If the contest has no such workload.
    """
    if workload not in _CONTEST_SIZES:
        raise InputError(
            f"contest: {workload!r} has no sizes here; expected one of "
            f"{', '.join(_CONTEST_SIZES)}. Pass one of these."
        )
    key = (workload, dtype)
    if key in _contests and not again:
        return _contests[key]
    works = [workloads.get(workload)(n=n, dtype=dtype) for n in _CONTEST_SIZES[workload]]
    name, evidence, times = _opponent(works)
    rows = tuple(_row(work, times(work)) for work in works)
    here = Evidence.measured(devices.find("cpu").name)
    _contests[key] = Contest(
        f"{workload} {dtype}", works[0].spec.size_meaning, name, rows, evidence, here
    )
    return _contests[key]


# Returned, done, with both copies, and the codes of the notes.
Times = Callable[[workloads.Workload], tuple[float, float, float, str]]


# A disturbed time is taken again this often at most: half a second a size, and a short disturbance
# is over by then.
_TRIES = 3
# What others do to an accelerator's times. A clock held down is no disturbance there: a GPU at its
# power limit gives what it gives.
_NEIGHBOURS = ("contended", "stalled")
# Notes that are no disturbance: set-up, batching and the deadline are as they should be here.
_EXPECTED_NOTES = ("slow-first-call", "too-short", "deadline", "warm-cache", "turn-taking")


def _row(work: workloads.Workload, accelerator: tuple[float, float, float, str]) -> ContestRow:
    m = _undisturbed(work)
    returned, done, copied, notes = accelerator
    return ContestRow(work.n, m.median_seconds, returned, done, copied, _codes(m), notes)


def _codes(m: Measurement) -> str:
    return ", ".join(
        dict.fromkeys(note.code for note in m.notes if note.code not in _EXPECTED_NOTES)
    )


def _undisturbed(work: workloads.Workload) -> Measurement:
    """Return the CPU's measurement; one that was disturbed is made again, and of several the
    shortest stays.
    """
    tried: list[Measurement] = []
    inputs = work.inputs("cpu")
    while len(tried) < _TRIES:
        m = timing.measure(
            work.run, *inputs, device="cpu", deadline=_POINT_SECONDS, label=work.label
        )
        if not disturbed(note.code for note in m.notes):
            return m
        tried.append(m)
    return min(tried, key=lambda m: m.median_seconds)


def _opponent(works: list[workloads.Workload]) -> tuple[str, Evidence, Times]:
    device = devices.default()
    if not device.is_cpu:
        return device.name, Evidence.measured(device.name), lambda work: _live(work, device)
    found = [_recorded(work) for work in works]
    for machine in sorted(set.intersection(*(set(each) for each in found))):
        there = {work.n: each[machine] for work, each in zip(works, found, strict=True)}
        if all(
            m.environment.device_kind != "cpu" and m.with_transfer_seconds is not None
            for m in there.values()
        ):
            evidence = there[works[0].n].evidence
            return evidence.device, evidence, functools.partial(_looked_up, there)
    return _modelled(transfer.processor(_PROCESSOR), transfer.link(_LINK, memory="pageable"))


def _recorded(work: workloads.Workload) -> dict[str, Measurement]:
    """Return what each recorded machine measured for a workload; a recording that cannot be read is
    left out, as in all notebooks.
    """
    found = {}
    for name, recording in recordings.readable().items():
        entry = recording.find("catalogue", workload=work.name, n=work.n, dtype=work.dtype)
        m = None if entry is None else measurement(recording, entry)
        if m is not None:
            found[name] = m
    return found


def _modelled(chip: transfer.ProcessorModel, link: transfer.Link) -> tuple[str, Evidence, Times]:
    """Return an accelerator that computes by a processor's formula and copies each array over a
    link's.
    """

    def times(work: workloads.Workload) -> tuple[float, float, float, str]:
        inside = chip.seconds(work.flops, work.nbytes, work.dtype)
        arrays = 3  # both workloads of a contest send two arrays and fetch one of the same size
        return chip.launch_seconds, inside, inside + arrays * link.seconds(work.nbytes / arrays), ""

    evidence = Evidence.modelled(
        f"{chip.evidence.assumptions}; each array copied separately over {link.name}, "
        f"{link.evidence.assumptions}",
        f"{chip.evidence.source}; {link.evidence.source}",
        known_errors(link=link.evidence, compute=chip.evidence),
    )
    return f"a modelled {chip.name}", evidence, times


def _looked_up(
    there: Mapping[int, Measurement], work: workloads.Workload
) -> tuple[float, float, float, str]:
    return *_three_times(there[work.n]), _codes(there[work.n])


def _three_times(m: Measurement) -> tuple[float, float, float]:
    copies = m.with_transfer_seconds if m.with_transfer_seconds is not None else m.median_seconds
    return m.launch_seconds, m.median_seconds, copies


def _live(work: workloads.Workload, device: Any) -> tuple[float, float, float, str]:
    """Return the three times on this machine's accelerator; where others disturb them, the shortest
    of each in a few tries.
    """
    inputs = work.inputs(device)
    tried: list[tuple[float, float, float]] = []
    while len(tried) < _TRIES:
        m = timing.measure(
            work.run,
            *inputs,
            device=device,
            deadline=_POINT_SECONDS,
            transfer=True,
            label=work.label,
        )
        tried.append(_three_times(m))
        if not any(note.code in _NEIGHBOURS for note in m.notes):
            break
    returned, done, copied = (min(times) for times in zip(*tried, strict=True))
    return returned, done, copied, _codes(m)
