"""What a run over several ranks is: plain results that tables and figures read; nothing is trained
or sent here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result
from gpulab.units import format_bytes, format_seconds, plural

# What a span of a timeline is. A rank's own thread computes, stands idle, or neither; its
# communication goes on beside it.
KINDS = ("compute", "communication", "idle")


@dataclass(frozen=True)
class RankSpan(Result):
    """One stretch of one rank's time.

    Attributes
    ----------
    rank : int
    kind : str
        "compute": the rank's thread worked (forward, backward, optimizer, averaging).
        "communication": the data of a collective or a message moved: from the moment when the last
        rank that takes part had entered it until this rank had its result. It may coincide with
        compute of the same rank: that is overlap. "idle": the rank's thread waited for another rank
        to arrive. It never coincides with compute or communication of the same rank.
    name : str
        The activity: "forward", "backward", "optimizer", or a collective as ``torch.distributed``
        names it ("all_reduce"); for an idle span the collective that was waited for. With
        microbatches the number follows: "forward 2".
    begin_seconds, end_seconds : float
        On one clock for all ranks, from the beginning of the timeline.
    nbytes : int
        Of a communication span: the payload, the size of the whole tensor; else 0.
    """

    rank: int
    kind: str
    name: str
    begin_seconds: float
    end_seconds: float
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end_seconds - self.begin_seconds


@dataclass(frozen=True)
class RankTimeline(Result):
    """What each rank did when, from a real run: the lanes of a picture.

    Each rank has two lanes: its own thread (compute and idle, which never overlap), and beside it
    communication.

    Attributes
    ----------
    label : str
        What ran: a strategy and its ranks.
    ranks : int
    spans : tuple of RankSpan
        In order of rank, then of begin.
    steps : tuple of float
        Seconds at which a training step begins (on the first rank to begin it), in order; empty
        where nothing was trained.
    end_seconds : float
        When the last rank was done.
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    ranks: int
    spans: tuple[RankSpan, ...]
    steps: tuple[float, ...]
    end_seconds: float
    notes: tuple[Note, ...]
    evidence: Evidence

    def lane(self, rank: int, kind: str | None = None) -> tuple[RankSpan, ...]:
        """Return the spans of one rank, of one kind where one is named, in order of begin."""
        return tuple(span for span in self.spans if span.rank == rank and kind in (None, span.kind))

    def seconds(self, rank: int) -> dict[str, float]:
        """Return a rank's seconds by kind; time that two spans of one kind share counts once."""
        return {kind: _covered(self.lane(rank, kind)) for kind in KINDS}

    def overlap_seconds(self, rank: int) -> float:
        """Return how long a rank's communication overlapped its own compute: the part that costs no
        time.
        """
        compute, communication = self.lane(rank, "compute"), self.lane(rank, "communication")
        return _covered(compute) + _covered(communication) - _covered((*compute, *communication))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankTimeline) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.label, self.ranks, len(self.spans), self.end_seconds))

    def __repr__(self) -> str:
        spans = plural(len(self.spans), "span")
        return (
            f"<timeline of {self.label}: {spans} on {plural(self.ranks, 'rank')} in "
            f"{format_seconds(self.end_seconds)}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return each rank's seconds by kind, and how much of its communication overlapped
        compute.
        """
        rows = []
        for rank in range(self.ranks):
            seconds = [format_seconds(value) for value in self.seconds(rank).values()]
            rows.append((f"rank {rank}", *seconds, format_seconds(self.overlap_seconds(rank))))
        rows += [(f"note: {note.code}", note.sentence, "", "", "") for note in self.notes]
        return (self.label, *KINDS, "communication during compute"), rows


def _covered(spans: Sequence[RankSpan]) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted((span.begin_seconds, span.end_seconds) for span in spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return float(total)


@dataclass(frozen=True)
class RankReport(Result):
    """What one rank held and sent in one training step.

    Attributes
    ----------
    rank : int
    peak_bytes : int
        The most live tensor storage after any operator of a step that follows earlier ones.
    peak_by_category : mapping of str to int
        Sums to ``peak_bytes``: the categories of ``memory.CATEGORIES``, and "communication" for
        what exists only to be sent or received.
    most_by_category : mapping of str to int
        The most that each category held at any moment of that step. These moments differ, so they
        do not sum to the peak.
    calls : mapping of str to int
        Collectives and messages in a step, by name.
    payload_bytes : mapping of str to int
        Of these in a step, by name: the size of the whole tensor (an all-gather's result, a
        reduce-scatter's input), however much of it is sent.
    ring_bytes : int
        MODELLED: what this rank sends in a step if each collective runs as a ring (a broadcast as a
        tree), headers aside.
    wire_bytes : int or None
        MEASURED: what this rank's sockets really sent in a step, headers of the messages included;
        None where it cannot be counted.
    """

    rank: int
    peak_bytes: int
    peak_by_category: Mapping[str, int]
    most_by_category: Mapping[str, int]
    calls: Mapping[str, int]
    payload_bytes: Mapping[str, int]
    ring_bytes: int
    wire_bytes: int | None

    def __repr__(self) -> str:
        return (
            f"<rank {self.rank}: peak {format_bytes(self.peak_bytes)}, payload "
            f"{format_bytes(sum(self.payload_bytes.values()))} a step>"
        )


@dataclass(frozen=True)
class StrategyResult(Result):
    """One training run over several ranks, compared with the same run in one process.

    Attributes
    ----------
    strategy : str
        One of ``parallel.strategies()``.
    ranks : int
    model : str
        What was trained, in words.
    parameter_count : int
        Of the whole model.
    dtype : str
        "float32" or "float64", of parameters and arithmetic.
    optimizer : str
    batch_size : int
        Of the whole step, over all ranks.
    losses : ndarray, shape (steps,)
        The mean loss of each step's whole batch.
    single_losses : ndarray, shape (steps,)
        The same of one process that trains the whole model on the whole batch.
    state_difference : float
        After the last step: the largest difference between a parameter here and in the one process,
        over the largest parameter.
    tolerance : float
        The largest ``loss_difference`` and ``state_difference`` at which the two runs count as the
        same computation.
    step_seconds : ndarray, shape (steps,)
        Of each step, on the slowest rank. The first includes one-time work, and the step whose
        memory was followed is slower.
    reports : tuple of RankReport
        One a rank, in order.
    timeline : RankTimeline
        Of the last steps.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    strategy: str
    ranks: int
    model: str
    parameter_count: int
    dtype: str
    optimizer: str
    batch_size: int
    losses: np.ndarray
    single_losses: np.ndarray
    state_difference: float
    tolerance: float
    step_seconds: np.ndarray
    reports: tuple[RankReport, ...]
    timeline: RankTimeline
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return len(self.losses)

    @property
    def loss_difference(self) -> float:
        """The largest difference between a step's loss here and in one process, over the larger of
        1 and that loss; nan if one is nan.
        """
        with np.errstate(invalid="ignore"):  # infinity less infinity is no number
            return float(
                np.max(
                    np.abs(self.losses - self.single_losses)
                    / np.maximum(1.0, np.abs(self.single_losses))
                )
            )

    @property
    def agrees(self) -> bool:
        """Whether the run computed the same as one process: losses and state within the
        tolerance.
        """
        return bool(
            self.loss_difference <= self.tolerance and self.state_difference <= self.tolerance
        )

    def seconds(self, rank: int) -> dict[str, float]:
        """Return a rank's seconds a step by kind, mean over the steps of the timeline."""
        count = max(1, len(self.timeline.steps))
        return {kind: value / count for kind, value in self.timeline.seconds(rank).items()}

    def has_note(self, code: str) -> bool:
        """Return whether a note with this code is among the notes."""
        return any(note.code == code for note in self.notes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StrategyResult) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.strategy, self.ranks, self.model, self.dtype, len(self.losses)))

    def __repr__(self) -> str:
        verdict = "as one process" if self.agrees else "not as one process"
        where = f"{self.strategy} on {plural(self.ranks, 'rank')}, {plural(self.steps, 'step')}"
        return f"<{where}: {verdict}, losses differ by {self.loss_difference:.1e}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return whether it agrees with one process, then each rank's memory, bytes and seconds a
        step.
        """
        width = self.ranks
        rest = ("",) * (width - 1)
        same = "yes" if self.agrees else "nothing to compare" if self.has_note("diverged") else "no"
        rows: list[Sequence[str]] = [
            ("computes what one process computes", same, *rest),
            (
                "- losses differ by at most",
                f"{self.loss_difference:.1e} (tolerance {self.tolerance:.0e})",
                *rest,
            ),
            ("- parameters after it differ by at most", f"{self.state_difference:.1e}", *rest),
            (
                "peak memory of tensors",
                *(format_bytes(report.peak_bytes) for report in self.reports),
            ),
        ]
        for category in ("parameters", "gradients", "optimizer", "activations"):
            rows.append(
                (
                    f"- {category} at most",
                    *(
                        format_bytes(report.most_by_category.get(category, 0))
                        for report in self.reports
                    ),
                )
            )
        rows.append(
            (
                "payload of collectives a step",
                *(format_bytes(sum(report.payload_bytes.values())) for report in self.reports),
            )
        )
        rows.append(
            (
                "sent as rings (modelled)",
                *(format_bytes(report.ring_bytes) for report in self.reports),
            )
        )
        rows.append(("sent on the wire", *(_wire(report) for report in self.reports)))
        seconds = [self.seconds(rank) for rank in range(width)]
        rows += [
            (f"{kind} a step", *(format_seconds(of_rank[kind]) for of_rank in seconds))
            for kind in KINDS
        ]
        rows += [(f"note: {note.code}", note.sentence, *rest) for note in self.notes]
        return (
            f"{self.strategy}: {self.model}, {self.dtype}",
            *(f"rank {rank}" for rank in range(width)),
        ), rows


def _wire(report: RankReport) -> str:
    return "not counted here" if report.wire_bytes is None else format_bytes(report.wire_bytes)
