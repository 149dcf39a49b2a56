"""What a sweep of a collective is: times and bytes on the wire over sizes, with the models beside
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulab import models
from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.transfer import AlphaBeta


@dataclass(frozen=True)
class CollectivePoint(Result):
    """One size of a sweep.

    Attributes
    ----------
    nbytes : int
        The payload: the whole tensor (an all-gather's result, a reduce-scatter's input).
    median_seconds : float
        Of one call, from when the last rank had entered it until the last one had its result.
    interval_seconds : (float, float) or None
        95 %, of the median; None where none can be given.
    samples : int
    sent_bytes : tuple of int or None
        MEASURED: what each rank's sockets sent for one call, headers of the messages included; None
        where it cannot be counted.
    algorithm_bytes : tuple of float
        MODELLED: what each rank sends by the algorithm, headers aside.
    """

    nbytes: int
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    samples: int
    sent_bytes: tuple[int, ...] | None
    algorithm_bytes: tuple[float, ...]


@dataclass(frozen=True)
class CollectiveSweep(Result):
    """A collective's time and bytes over sizes, among ranks of a cluster.

    Attributes
    ----------
    operation : str
    algorithm : str
        The algorithm by which bytes are counted, one of
        ``models.collective_algorithms(operation)``: gloo's own; with NCCL, which chooses by size
        and links, a ring where there is one.
    ranks : int
    hosts : int
        How many machines they are on.
    backend : str
        As ``torch.distributed.get_backend()`` names it: "gloo", "nccl", or "cpu:gloo,cuda:nccl", of
        which NCCL was measured.
    dtype : str
    points : tuple of CollectivePoint
        Ascending in size.
    wire_reason : str or None
        Why bytes on the wire were not counted.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment or None
    """

    operation: str
    algorithm: str
    ranks: int
    hosts: int
    backend: str
    dtype: str
    points: tuple[CollectivePoint, ...]
    wire_reason: str | None
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment | None

    @property
    def label(self) -> str:
        """The operation and the ranks."""
        return f"{self.operation} among {self.ranks} ranks"

    def fit(self) -> AlphaBeta:
        """Return the alpha-beta fit: time over payload.

        Raises
        ------
        InputError
            If there are fewer than three sizes.
        """
        from gpulab.transfer import fit

        return fit(
            [p.nbytes for p in self.points], [p.median_seconds for p in self.points], self.evidence
        )

    def message(self, fitted: AlphaBeta | None = None) -> tuple[float, float]:
        """Return (latency in seconds, bytes a second) of one message between two ranks, as
        ``models.collective_message`` computes it.

        Parameters
        ----------
        fitted : AlphaBeta, optional
            What ``fit`` gave, so that it is not fitted again.
        """
        line = self.fit() if fitted is None else fitted
        return models.collective_message(
            self.operation,
            self.ranks,
            self.algorithm,
            latency_seconds=line.latency_seconds,
            bandwidth_bytes_per_second=line.bandwidth_bytes_per_second,
        )

    def bus_bytes_per_second(self, point: CollectivePoint) -> float:
        """Return the rate at which a ring's links would run, to compare operations and numbers of
        ranks (``models.bus_bandwidth``).
        """
        return models.bus_bandwidth(self.operation, point.nbytes, self.ranks, point.median_seconds)

    def __repr__(self) -> str:
        if not self.points:
            return f"<{self.label}: no point>"
        last = self.points[-1]
        return (
            f"<{self.label}: {format_bytes(last.nbytes)} in "
            f"{format_seconds(last.median_seconds)}, {plural(len(self.points), 'size')}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a size."""
        rows = []
        for p in self.points:
            most = max(range(self.ranks), key=lambda r: p.algorithm_bytes[r])
            bus = self.bus_bytes_per_second(p)
            rows.append(
                (
                    format_bytes(p.nbytes),
                    format_seconds(p.median_seconds),
                    ""
                    if p.interval_seconds is None
                    else " to ".join(format_seconds(v) for v in p.interval_seconds),
                    "" if math.isnan(bus) else format_bytes_per_second(bus),
                    "not counted" if p.sent_bytes is None else format_bytes(p.sent_bytes[most]),
                    format_bytes(p.algorithm_bytes[most]),
                    str(p.samples),
                )
            )
        rows += [(f"note: {note.code}", note.sentence, "", "", "", "", "") for note in self.notes]
        return (
            "payload",
            "time (median)",
            "95 %",
            "bus bandwidth",
            "sent by the busiest rank",
            f"by the formula ({self.algorithm})",
            "samples",
        ), rows

    def caption(self) -> str:
        """Return the badge, and why bytes were not counted where they were not."""
        return super().caption() + (
            f" · bytes on the wire: {self.wire_reason}" if self.wire_reason else ""
        )
