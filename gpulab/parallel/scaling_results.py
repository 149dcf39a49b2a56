"""What measured scaling and the effect of the global batch are: plain results; nothing is started
or trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.errors import InputError
from gpulab.evidence import Environment, Evidence, Note
from gpulab.models import ScalingCurve
from gpulab.results import Result
from gpulab.training import SeedsAccuracy
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

COMPUTED, WAITED = "computed", "a timed wait"


@dataclass(frozen=True)
class ScalingMeasurement(Result):
    """A training step on one number of ranks.

    Attributes
    ----------
    ranks : int
    batch : int
        Samples that each rank has in a step.
    samples_seconds : ndarray, shape (n,)
        Of each step, on the slowest rank.
    median_seconds : float
    interval_seconds : (float, float) or None
        95 %, of the median.
    speedup : float or None
        Ratio of its samples per second to those of the smallest number of ranks, paired turn by
        turn; None where there is no pair.
    speedup_interval : (float, float) or None
        95 %.
    predicted_seconds, predicted_overlapped_seconds : float or None
        From one rank's step and the measured all-reduce: with no overlap, and with as much of the
        communication as possible hidden behind the backward pass. None where the all-reduce was not
        measured.
    """

    ranks: int
    batch: int
    samples_seconds: np.ndarray
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    predicted_seconds: float | None
    predicted_overlapped_seconds: float | None

    @property
    def efficiency(self) -> float | None:
        """The speed-up over the number of ranks."""
        return None if self.speedup is None else self.speedup / self.ranks

    @property
    def efficiency_interval(self) -> tuple[float, float] | None:
        """95 %."""
        return (
            None
            if self.speedup_interval is None
            else (self.speedup_interval[0] / self.ranks, self.speedup_interval[1] / self.ranks)
        )

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all ranks together, at the median."""
        return self.ranks * self.batch / self.median_seconds

    def __repr__(self) -> str:
        gain = "" if self.speedup is None else f", {format_ratio(self.speedup)}"
        return f"<{plural(self.ranks, 'rank')}: {format_seconds(self.median_seconds)} a step{gain}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalingMeasurement) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.ranks, self.batch, self.median_seconds))


@dataclass(frozen=True)
class ScalingResult(Result):
    """The same training step on several numbers of ranks, in turns.

    Attributes
    ----------
    label : str
        What was trained.
    mode : str
        "strong" (the global batch stays) or "weak" (each rank's batch stays).
    stage : str
        "computed", or "a timed wait" where ranks wait in place of computing, so that they need no
        processor.
    parameter_bytes : int
        Of the model, hence the payload of each step's all-reduce.
    processors : int
        Cores (or accelerators) available to all ranks together; if there are more ranks, they take
        turns.
    hosts : int
    points : tuple of ScalingMeasurement
        Ascending in ranks.
    latency_seconds, bandwidth_bytes_per_second : float or None
        Of one message between two neighbors of the ring, from the fit of the measured all-reduce;
        None where it was not measured.
    prediction, overlapped : ScalingCurve or None
        MODELLED from one rank's step and that link, at the same numbers of ranks: without overlap,
        and with the largest possible overlap.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    label: str
    mode: str
    stage: str
    parameter_bytes: int
    processors: int
    hosts: int
    points: tuple[ScalingMeasurement, ...]
    latency_seconds: float | None
    bandwidth_bytes_per_second: float | None
    prediction: ScalingCurve | None
    overlapped: ScalingCurve | None
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    def at(self, ranks: int) -> ScalingMeasurement:
        """Return the point at a number of ranks.

        Raises
        ------
        InputError
            If it was not measured.
        """
        for point in self.points:
            if point.ranks == ranks:
                return point
        there = ", ".join(str(point.ranks) for point in self.points)
        raise InputError(
            f"at: {ranks!r} ranks were not measured ({there} were); expected one of these. Pass it "
            "in counts=."
        )

    @property
    def sentence(self) -> str:
        """The result in one sentence, with its limits."""
        last = self.points[-1]
        if last.speedup is None or len(self.points) == 1:
            who = plural(last.ranks, "rank")
            return (
                f"{who}: {format_seconds(last.median_seconds)} a step; there is nothing to "
                "compare it with."
            )
        said = (
            f"{last.ranks} ranks have a speed-up of {format_ratio(last.speedup)} "
            f"{_span(last.speedup_interval)} in samples a second"
        )
        said += f" over {self.points[0].ranks}"
        if last.ranks > self.processors and self.stage == COMPUTED:
            said += (
                f", but on {plural(self.processors, 'processor')} they take turns: this machine "
                "shows the cost of more ranks, "
                "not their gain"
            )
        elif self.stage == WAITED:
            said += (
                "; their compute was a timed wait, so this shows what communication costs, "
                "not how fast this machine is"
            )
        return f"{said}."

    def has_note(self, code: str) -> bool:
        """Return whether a note with this code is among the notes."""
        return any(note.code == code for note in self.notes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalingResult) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.label, self.mode, self.stage, self.parameter_bytes, len(self.points)))

    def __repr__(self) -> str:
        return f"<{self.mode} scaling of {self.label}: {self.sentence.rstrip('.')}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a number of ranks, then the link and the notes."""
        rows: list[Sequence[str]] = [
            (
                f"{p.ranks} rank{'s' if p.ranks > 1 else ''}",
                str(p.batch),
                f"{format_seconds(p.median_seconds)} {_seconds_span(p.interval_seconds)}",
                ""
                if p.speedup is None
                else f"{format_ratio(p.speedup)} {_span(p.speedup_interval)}",
                "" if p.efficiency is None else f"{100 * p.efficiency:.3g} %",
                _predicted(p),
            )
            for p in self.points
        ]
        if self.latency_seconds is not None and self.bandwidth_bytes_per_second is not None:
            rate = format_bytes_per_second(self.bandwidth_bytes_per_second)
            link = (
                f"{format_seconds(self.latency_seconds)} a message and {rate}, from the "
                "measured all-reduce"
            )
            rows.append(("link", link, "", "", "", ""))
        what = (
            f"{format_bytes(self.parameter_bytes)} of gradients; compute "
            f"{'is ' if self.stage == WAITED else ''}{self.stage}"
        )
        rows.append(
            (
                "each step",
                f"{what}; {plural(self.processors, 'processor')} among the ranks",
                "",
                "",
                "",
                "",
            )
        )
        rows += [(f"note: {note.code}", note.sentence, "", "", "", "") for note in self.notes]
        headers = (
            f"{self.mode} scaling, {self.label}",
            "batch a rank",
            "step (median, 95 %)",
            "speed-up (95 %)",
            "efficiency",
            "predicted",
        )
        return headers, rows


def _predicted(p: ScalingMeasurement) -> str:
    if p.predicted_seconds is None or p.predicted_overlapped_seconds is None:
        return "not predicted"
    low, high = format_seconds(p.predicted_overlapped_seconds), format_seconds(p.predicted_seconds)
    return high if low == high else f"{low} to {high}"


def _span(interval: tuple[float, float] | None) -> str:
    return (
        "(no interval)"
        if interval is None
        else f"[{format_ratio(interval[0])}, {format_ratio(interval[1])}]"
    )


def _seconds_span(interval: tuple[float, float] | None) -> str:
    return (
        "(no interval)"
        if interval is None
        else f"[{format_seconds(interval[0])}, {format_seconds(interval[1])}]"
    )


@dataclass(frozen=True)
class GlobalBatchRow(Result):
    """A training with one global batch under one rule for the learning rate.

    Attributes
    ----------
    rule : str
        "unchanged", "linear" or "linear with warm-up".
    ranks : int
    global_batch : int
        ranks x batch of each.
    learning_rate : float
        After the warm-up.
    steps : int
        Updates; fewer as the batch grows, since the epochs stay.
    accuracy : SeedsAccuracy
        Over seeds and test items.
    diverged : int
        Number of seeds whose loss became infinite or nan.
    """

    rule: str
    ranks: int
    global_batch: int
    learning_rate: float
    steps: int
    accuracy: SeedsAccuracy
    diverged: int


@dataclass(frozen=True)
class GlobalBatchResult(Result):
    """What the global batch does to learning when everything else stays the same; one process
    computes what the ranks would.

    Attributes
    ----------
    task : str
    batch : int
        Of each rank.
    epochs : int
    optimizer : str
    learning_rate : float
        With one rank.
    warm_up_epochs : float
        Over which "linear with warm-up" raises the learning rate from that of one rank.
    rows : tuple of GlobalBatchRow
    notes : tuple of Note
    evidence : Evidence
    """

    task: str
    batch: int
    epochs: int
    optimizer: str
    learning_rate: float
    warm_up_epochs: float
    rows: tuple[GlobalBatchRow, ...]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that were tried, in order."""
        return tuple(dict.fromkeys(row.rule for row in self.rows))

    def select(self, rule: str) -> tuple[GlobalBatchRow, ...]:
        """Return the rows of one rule, ascending in the global batch."""
        return tuple(
            sorted((row for row in self.rows if row.rule == rule), key=lambda row: row.global_batch)
        )

    def __repr__(self) -> str:
        sizes = sorted({row.global_batch for row in self.rows})
        return (
            f"<{self.task}: global batches of {sizes[0]} to {sizes[-1]} over {self.epochs} "
            f"epochs, {len(self.rules)} rules>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a training."""
        rows: list[Sequence[str]] = []
        for row in self.rows:
            low, high = row.accuracy.interval
            right = f"{100 * row.accuracy.mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
            lost = (
                f", {row.diverged} of {len(row.accuracy.accuracies)} diverged"
                if row.diverged
                else ""
            )
            rows.append(
                (
                    row.rule,
                    str(row.ranks),
                    str(row.global_batch),
                    f"{row.learning_rate:.3g}",
                    str(row.steps),
                    right + lost,
                )
            )
        rows += [(f"note: {note.code}", note.sentence, "", "", "", "") for note in self.notes]
        return (
            "learning rate",
            "ranks",
            "global batch",
            "rate",
            "updates",
            "accuracy (95 % over seeds and items)",
        ), rows
