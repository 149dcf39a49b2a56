"""The results of sweeps, break-even searches, overlaps and pinning trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from gpulab.errors import InputError
from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result, note_rows
from gpulab.transfer._fit import AlphaBeta, fit
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

SERIES_WORDS = {"to_device": "host to device", "to_host": "device to host", "host": "host copy"}


class SweepPoint(NamedTuple):
    """One size of one series of a sweep.

    Attributes
    ----------
    direction : str
        "to_device", "to_host", or "host" for a copy within host memory; of a collective its name.
    memory : str
        "pageable" or "pinned": the kind of the host's buffer; of a collective its ranks.
    nbytes : int
    median_seconds : float
    interval_seconds : (float, float) or None
        95 %, of the median; None for a modelled point, or where no honest interval can be given.
    samples : int
        0 for a modelled point.
    """

    direction: str
    memory: str
    nbytes: int
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    samples: int

    @property
    def bytes_per_second(self) -> float:
        """Bytes moved a second at the median."""
        return self.nbytes / self.median_seconds


@dataclass(frozen=True)
class Sweep(Result):
    """Transfer times over sizes.

    Attributes
    ----------
    device : str
        The name of the device at the link's other end; of the CPU for a host copy.
    library : str
        Whose copy was measured: "torch", or "numpy" within host memory; "torch.distributed" for a
        collective; "" for a modelled sweep.
    points : tuple of SweepPoint
    memory_bandwidth_bytes_per_second : float or None
        For a host copy: the rate of the memory when all cores copy at once, reads and writes
        counted once each.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment or None
    """

    device: str
    library: str
    points: tuple[SweepPoint, ...]
    memory_bandwidth_bytes_per_second: float | None
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment | None

    rows_from = "points"
    columns: ClassVar = {
        "direction": lambda p: SERIES_WORDS.get(p.direction, p.direction),
        "{0.kind}": lambda p: p.memory,
        "size": lambda p: format_bytes(p.nbytes),
        "time (median)": lambda p: format_seconds(p.median_seconds),
        "95 %": lambda p: " to ".join(format_seconds(v) for v in p.interval_seconds or ()),
        "rate": lambda p: format_bytes_per_second(p.bytes_per_second),
        "samples": lambda p: p.samples or "modelled",
    }

    @property
    def kind(self) -> str:
        """What the series differ by besides their direction, as the table's heading."""
        return "ranks" if self.library == "torch.distributed" else "host memory"

    @property
    def series(self) -> tuple[tuple[str, str], ...]:
        """The (direction, memory) pairs in the order measured."""
        return tuple(dict.fromkeys((p.direction, p.memory) for p in self.points))

    def select(
        self, direction: str | None = None, memory: str | None = None
    ) -> tuple[SweepPoint, ...]:
        """Return the points of one series, ascending in size; with several to choose from, None
        means the first.

        Raises
        ------
        InputError
            If the sweep has no such series.
        """
        for there in self.series:
            if direction in (None, there[0]) and memory in (None, there[1]):
                chosen = (p for p in self.points if (p.direction, p.memory) == there)
                return tuple(sorted(chosen, key=lambda p: p.nbytes))
        there_are = ", ".join(f"{d}/{m}" for d, m in self.series) or "none"
        raise InputError(
            f"sweep: there is no series {direction}/{memory}; expected one of: {there_are}. Pass "
            "direction and memory of one of these."
        )

    def fit(self, direction: str | None = None, memory: str | None = None) -> AlphaBeta:
        """Return the alpha-beta fit of one series (see ``select``).

        Raises
        ------
        InputError
            If there is no such series, or it has fewer than three sizes.
        """
        points = self.select(direction, memory)
        return fit([p.nbytes for p in points], [p.median_seconds for p in points], self.evidence)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{SERIES_WORDS.get(d, d)} {m}" for d, m in self.series) or "no point"
        return (
            f"<sweep of {self.device}: {kinds}; {plural(len(self.points), 'point')}, "
            f"{self.evidence.badge}>"
        )


class BreakEvenRow(NamedTuple):
    """One size of a break-even search.

    Attributes
    ----------
    n : int
    host_seconds : float
        On the CPU.
    device_seconds : float
        On the accelerator with both copies.
    copied_bytes : float
        Inputs there and result back.
    """

    n: int
    host_seconds: float
    device_seconds: float
    copied_bytes: float

    @property
    def speedup(self) -> float:
        """Host / device, copies counted."""
        return self.host_seconds / self.device_seconds


@dataclass(frozen=True)
class BreakEven(Result):
    """The smallest size from which the accelerator is faster with the copies counted.

    Attributes
    ----------
    label : str
        The workload and its dtype.
    size : int or None
        Between two sizes tried where their lines cross; None if there is no such size, or no
        accelerator.
    reason : str
        "found", "never in this range", "not found so far" (the search ended early) or "no
        accelerator".
    sentence : str
        The answer in words, with the sizes tried.
    rows : tuple of BreakEvenRow
    notes : tuple of Note
    evidence : Evidence
        Of the accelerator's side.
    host_evidence : Evidence or None
        Of the CPU's side, which is always measured; None where nothing was compared.
    """

    label: str
    size: int | None
    reason: str
    sentence: str
    rows: tuple[BreakEvenRow, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    host_evidence: Evidence | None = None

    rows_from = "rows"
    # The CPU's side is always measured; the badge of the result is the accelerator's.
    columns: ClassVar = {
        "n": lambda row: row.n,
        "CPU (MEASURED)": lambda row: format_seconds(row.host_seconds),
        "accelerator with copies ({0.evidence.badge})": lambda row: format_seconds(
            row.device_seconds
        ),
        "copied": lambda row: format_bytes(row.copied_bytes),
        "speed-up": lambda row: format_ratio(row.speedup),
    }

    def __repr__(self) -> str:
        return f"<break-even of {self.label}: {self.sentence}>"

    def caption(self) -> str:
        """Return the badge and the answer, then the evidence for the accelerator's side and the
        CPU's.
        """
        badge, _, rest = self.evidence.sentence.partition(" ")
        host = (
            ""
            if self.host_evidence is None
            else f" · the CPU's side: {self.host_evidence.sentence}"
        )
        return f"{badge} · {self.sentence} The accelerator's side: {rest.removeprefix('· ')}{host}"


class Span(NamedTuple):
    """One bar of a timeline, in seconds from its start.

    Attributes
    ----------
    lane : str
        "copy" or "compute".
    chunk : int
    start_seconds, end_seconds : float
    """

    lane: str
    chunk: int
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Overlap(Result):
    """Copy and compute in chunks that overlap, beside one copy and one compute in turn.

    Attributes
    ----------
    device : str
    nbytes, chunks : int
    copy_seconds, compute_seconds : float
        Each alone, all bytes at once.
    seconds : float
        In chunks: the copy of the next beside the compute of this one.
    timeline : tuple of Span
        Of the run in chunks.
    notes : tuple of Note
        "no-overlap" where copy and compute did not run at the same time; "implausible" where the
        gain is above the ideal, "unstable" where the runs disagree by more than the gain.
    evidence : Evidence
    """

    device: str
    nbytes: int
    chunks: int
    copy_seconds: float
    compute_seconds: float
    seconds: float
    timeline: tuple[Span, ...]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def serial_seconds(self) -> float:
        """The copy, then the compute."""
        return self.copy_seconds + self.compute_seconds

    @property
    def ideal_seconds(self) -> float:
        """The longer of the two, with the other fully hidden behind it: no chunking can do
        better.
        """
        return max(self.copy_seconds, self.compute_seconds)

    @property
    def ratio(self) -> float:
        """The share of the ideal gain that was reached: 0 means one after the other, 1 means one
        fully hidden; negative is a loss.
        """
        possible = min(self.copy_seconds, self.compute_seconds)
        return (self.serial_seconds - self.seconds) / possible if possible > 0 else 0.0

    @property
    def ratio_text(self) -> str:
        """``ratio`` in whole percent; values that round to zero are "0%", never "-0%"."""
        return f"{round(100 * self.ratio)}%"

    @property
    def together_seconds(self) -> float:
        """The time for which a copy and a compute ran at the same time in the timeline; the spans
        of one lane do not overlap each other.
        """
        return sum(
            max(0.0, min(a.end_seconds, b.end_seconds) - max(a.start_seconds, b.start_seconds))
            for a in self.timeline
            for b in self.timeline
            if (a.lane, b.lane) == ("copy", "compute")
        )

    def __repr__(self) -> str:
        return (
            f"<overlap of {format_bytes(self.nbytes)} in {plural(self.chunks, 'chunk')}: "
            f"{format_seconds(self.seconds)}, one after the other "
            f"{format_seconds(self.serial_seconds)}, {self.ratio_text} of the ideal gain>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the times and what was reached."""
        rows = [
            ("copy alone", format_seconds(self.copy_seconds)),
            ("compute alone", format_seconds(self.compute_seconds)),
            ("one after the other", format_seconds(self.serial_seconds)),
            ("in overlapping chunks", format_seconds(self.seconds)),
            ("ideal (the longer one alone)", format_seconds(self.ideal_seconds)),
            ("share of the ideal gain", self.ratio_text),
            ("both running", format_seconds(self.together_seconds)),
            *note_rows(self.notes, 2),
        ]
        return (f"{format_bytes(self.nbytes)} in {plural(self.chunks, 'chunk')}", ""), rows
