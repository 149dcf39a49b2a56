"""The results of parallel chases: the time of a hop by the number of chains, and the loads in
flight (Little's law).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result
from gpulab.units import format_bytes, format_ratio, format_seconds, plural


@dataclass(frozen=True)
class ParallelPoint(Result):
    """One number of parallel chases by one core.

    Attributes
    ----------
    chains : int
    seconds_per_hop : float
        Time over the hops of all chains.
    interval_seconds : (float, float) or None
    least_seconds : float
        Of the fastest sample.
    samples : int
    """

    chains: int
    seconds_per_hop: float
    interval_seconds: tuple[float, float] | None
    least_seconds: float
    samples: int


@dataclass(frozen=True, repr=False)
class ParallelChains(Result):
    """Independent chases in parallel in one working set: Little's law, measured.

    Attributes
    ----------
    device : str
    method : str
    nbytes : int
        The working set that all chains share.
    points : tuple of ParallelPoint
        Ascending in chains; the first is one chain.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment or None
    """

    device: str
    method: str
    nbytes: int
    points: tuple[ParallelPoint, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment | None

    def under_way(self, point: ParallelPoint) -> float:
        """Return the average number of loads in flight: latency times rate (Little's law), both of
        the fastest samples.

        The latency is that of one chain.
        """
        return self.points[0].least_seconds / point.least_seconds

    @property
    def gain(self) -> float:
        """The speed-up of the best number of chains over one chain, in hops per second."""
        return max(self.under_way(point) for point in self.points)

    def __repr__(self) -> str:
        return (
            f"<{plural(self.points[-1].chains, 'chain')} in {format_bytes(self.nbytes)}: best "
            f"speed-up {format_ratio(self.gain)} over "
            f"one chain, {self.evidence.badge}>"
        )

    def caption(self) -> str:
        """Return the badge, which names how the chases were made, and the set."""
        return f"{self.evidence.sentence} · in {format_bytes(self.nbytes)}"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per number of chains."""
        rows = [
            (
                str(p.chains),
                format_seconds(p.seconds_per_hop),
                ""
                if p.interval_seconds is None
                else " to ".join(format_seconds(v) for v in p.interval_seconds),
                format_seconds(p.least_seconds),
                f"{self.under_way(p):.1f}",
            )
            for p in self.points
        ]
        rows += [(f"note: {note.code}", note.sentence, "", "", "") for note in self.notes]
        return ("parallel chains", "one hop (median)", "95 %", "fastest", "loads in flight"), rows
