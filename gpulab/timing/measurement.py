"""The results of a measurement and of a comparison, with their raw samples and notes.

No clock is read here; ``measure`` and ``compare`` make these objects, tables and figures read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result, Table, note_rows
from gpulab.units import (
    format_bytes_per_second,
    format_flops_per_second,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
    format_speedup,
    plural,
)


@dataclass(frozen=True, eq=False)
class Measurement(Result):
    """The time of one function on one device.

    Attributes
    ----------
    label : str
        What was measured, for tables.
    device : str
        PyTorch's name of the device, such as "cuda:0".
    samples_seconds : ndarray, shape (n,), float64
        Seconds per call, in the order taken, warm; the device had finished each time.
    median_seconds : float
        The median of the samples.
    interval_seconds : (float, float) or None
        A 95 % interval of the median; None when no honest interval can be given (a note says why).
    first_call_seconds : float
        The first call, with compilation and allocation, kept apart.
    launch_seconds : float
        Until the call returned; the device may still have been at work.
    with_transfer_seconds : float or None
        With the inputs copied to the device and the result copied back; None if not measured.
    calls_per_sample : int
        More than 1 where calls are too short for the clock; the interval is then of the batch mean.
    flops, nbytes : float or None
        Per call: floating-point operations; bytes that must be read and written.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    energy_joules, energy_error_joules : float or None
        Per call, and how far that may be off. None is "not available": on a CPU, where the driver
        has no counter, with cold caches, and where the calls took less than a step of the counter
        (a note says so). The counter is that of the whole GPU: idle power between calls is
        included, and so is the energy of other processes (the note ``contended``).
    """

    schema_version: ClassVar[int] = 2

    label: str
    device: str
    samples_seconds: np.ndarray
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    first_call_seconds: float
    launch_seconds: float
    with_transfer_seconds: float | None
    calls_per_sample: int
    flops: float | None
    nbytes: float | None
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment
    energy_joules: float | None = None
    energy_error_joules: float | None = None

    @property
    def energy(self) -> str:
        """The energy of a call and its error as text, such as "1.20 J ± 0.10 J"."""
        if self.energy_joules is None or self.energy_error_joules is None:
            return "not available"
        return f"{format_joules(self.energy_joules)} ± {format_joules(self.energy_error_joules)}"

    @property
    def flops_per_second(self) -> float | None:
        """Floating-point operations per second at the median, or None if ``flops`` is not known."""
        return (
            self.flops / self.median_seconds
            if self.flops is not None and self.median_seconds > 0
            else None
        )

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes per second at the median, or None if ``nbytes`` is not known."""
        return (
            self.nbytes / self.median_seconds
            if self.nbytes is not None and self.median_seconds > 0
            else None
        )

    def __repr__(self) -> str:
        codes = f", notes: {', '.join(_codes(self.notes))}" if self.notes else ""
        figure = (
            f"{format_seconds(self.median_seconds)} {format_interval(self.interval_seconds)}, n = "
            f"{len(self.samples_seconds)}"
        )
        return f"<{self.label} on {self.device}: {figure}{codes}>"

    def table(self) -> Table:
        """Return one row per quantity: the three times, the first call, the rates and the notes."""
        flops, nbytes = self.flops_per_second, self.bytes_per_second
        count = f"call{'s' if self.calls_per_sample != 1 else ''} each"
        rows = (
            (
                "device finished (median)",
                f"{format_seconds(self.median_seconds)} {format_interval(self.interval_seconds)}",
            ),
            ("call returned", format_seconds(self.launch_seconds)),
            (
                "with both copies",
                "not measured"
                if self.with_transfer_seconds is None
                else format_seconds(self.with_transfer_seconds),
            ),
            ("first call", format_seconds(self.first_call_seconds)),
            ("arithmetic rate", "" if flops is None else format_flops_per_second(flops)),
            ("effective bandwidth", "" if nbytes is None else format_bytes_per_second(nbytes)),
            ("energy", "" if self.energy_joules is None else self.energy),
            ("samples", f"{len(self.samples_seconds)} ({self.calls_per_sample} {count})"),
        )
        return (self.label, ""), [row for row in rows if row[1]] + note_rows(self.notes, 2)


class ComparisonRow(NamedTuple):
    """One device (or method) of a comparison.

    Attributes
    ----------
    name : str
        As the table shows it: the device's name or the method's.
    measurement : Measurement
    speedup : float or None
        Baseline's median / this median; None for the baseline itself, and where results disagree or
        a time is implausible.
    speedup_interval : (float, float) or None
        A 95 % interval of that ratio.
    max_relative_difference : float or None
        max|a - reference| / max|reference| of this row's result.
    """

    name: str
    measurement: Measurement
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    max_relative_difference: float | None


@dataclass(frozen=True)
class Comparison(Result):
    """The same work on several devices; the first row is the baseline.

    Attributes
    ----------
    label : str
        What was compared, such as "matmul n=1024 float32".
    rows : tuple of ComparisonRow
    speedup : float or None
        Baseline / fastest other row; None with one row, or where results disagree.
    speedup_interval : (float, float) or None
    max_relative_difference : float or None
        The largest among the rows, against the higher-precision reference.
    tolerance : float or None
        What the workload allows.
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    rows: tuple[ComparisonRow, ...]
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    max_relative_difference: float | None
    tolerance: float | None
    notes: tuple[Note, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        if self.speedup is None:
            return f"<{self.label}: {plural(len(self.rows), 'row')}, no speed-up to report>"
        return f"<{self.label}: speed-up {format_ratio(self.speedup)} over {self.rows[0].name}>"

    def table(self) -> Table:
        """Return one row per device: its three times, its energy where a device has a counter, its
        speed-up and its agreement; then the notes on all of them.
        """
        has_energy = any(row.measurement.energy_joules is not None for row in self.rows)
        headers = (
            "case",
            "device finished (median, 95 %)",
            "call returned",
            "with both copies",
            *(["energy per call"] if has_energy else []),
            "speed-up",
            "relative difference",
            "notes",
        )
        rows = []
        for place, row in enumerate(self.rows):
            m = row.measurement
            # a note gives the reason why a speed-up is not reported
            speedup = "not reported" if place else "baseline"
            if row.speedup is not None:
                speedup = format_speedup(row.speedup, row.speedup_interval)
            rows.append(
                (
                    row.name,
                    f"{format_seconds(m.median_seconds)} {format_interval(m.interval_seconds)}",
                    format_seconds(m.launch_seconds),
                    "not measured"
                    if m.with_transfer_seconds is None
                    else format_seconds(m.with_transfer_seconds),
                    *([m.energy] if has_energy else []),
                    speedup,
                    "not checked"
                    if row.max_relative_difference is None
                    else f"{row.max_relative_difference:.1e}",
                    ", ".join(_codes(m.notes)) or "none",
                )
            )
        return headers, rows + note_rows(self.notes, len(headers))


def _codes(notes: tuple[Note, ...]) -> Iterable[str]:
    """Return each code once: a GPU and its host may both be contended."""
    return dict.fromkeys(note.code for note in notes)
