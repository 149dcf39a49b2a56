"""The results of chases and streams: curves, their levels, and parallel chains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result, Table, note_rows
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

# -------------------------------------------------------------------------------------------------
# Where a curve over the working set leaves one level of memory for the next: plain arithmetic on
# sizes and times.
#
# The curve is first lowered: a larger set cannot be faster, so a point above a later one was
# disturbed, and takes the later one's value. A rise is a stretch of points in which the time goes
# up by a tenth or more with every doubling of the set, and by a fifth or more in all. The points
# between two rises are a level.


# Less than this for a doubling of the set is the slow growth inside a level (more pages, more
# traffic), not its end.
_RISE_PER_OCTAVE = 1.10
# A smaller rise cannot be distinguished from the noise of a busy machine. The levels of today's
# memories differ by factors of 1.5 and more.
_LEAST_RISE = 1.20
# A reported size further away than this is not what ended the level.
_FURTHEST_OCTAVES = 4.0


class _Rise(NamedTuple):
    """One end of a level: indices of the last point before the rise and of the first one after it,
    and the size in between.
    """

    start: int
    end: int
    size: float


def _lowered(seconds: Sequence[float]) -> np.ndarray:
    """Return the curve with every point at most as high as those after it."""
    return np.minimum.accumulate(np.asarray(seconds, dtype=float)[::-1])[::-1]


def _rises(sizes: Sequence[float], seconds: Sequence[float]) -> list[_Rise]:
    """Return the rises of a curve, in order of size.

    Parameters
    ----------
    sizes : sequence of float
        Ascending.
    seconds : sequence of float
        Of one hop: of each point's fastest sample, for disturbances make a chase slower, never
        faster.
    """
    y, octaves = np.log(_lowered(seconds)), np.log2(np.asarray(sizes, dtype=float))
    if len(y) < 2:
        return []
    steep = np.diff(y) >= math.log(_RISE_PER_OCTAVE) * np.diff(octaves)
    found = []
    for rising, group in itertools.groupby(range(len(steep)), key=lambda k: bool(steep[k])):
        if not rising:
            continue
        steps = list(group)
        start, end = steps[0], steps[-1] + 1
        if y[end] - y[start] >= math.log(_LEAST_RISE):
            # the size at which the curve passes half of the rise, on log scales
            middle = np.interp(
                (y[start] + y[end]) / 2, y[start : end + 1], octaves[start : end + 1]
            )
            found.append(_Rise(start, end, float(2.0**middle)))
    return found


def _matched(found: Sequence[float], reported: Sequence[float]) -> list[int | None]:
    """Return for each step the index of the reported size that it belongs to, in order, or None.

    Among the assignments that keep the order and whose pairs are all within four doublings, those
    with the most pairs, and among these the one with the smallest distances.
    """
    pairings = (
        dict(zip(steps, caches, strict=True))
        for count in range(min(len(found), len(reported)) + 1)
        for steps in itertools.combinations(range(len(found)), count)
        for caches in itertools.combinations(range(len(reported)), count)
    )

    def rank(pairs: dict[int, int]) -> tuple[bool, int, float]:
        away = [abs(math.log2(found[s] / reported[c])) for s, c in pairs.items()]
        # rounded, so that of two equally near caches ``min`` takes the first, the smaller one
        return max(away, default=0) > _FURTHEST_OCTAVES, -len(pairs), round(sum(away), 6)

    best = min(pairings, key=rank)
    return [best.get(step) for step in range(len(found))]


# -------------------------------------------------------------------------------------------------
# The results of chases and streams over working sets: curves, and the levels found in them.


_BEYOND = 2.0  # times the largest reported cache: a set this large is mostly in main memory
# If the floor is at least this share of the fastest point's time, the first cache's latency cannot
# be separated from the method's own work.
_NEAR_FLOOR = 0.8


def _between(text: Callable[[float], str], pair: tuple[float, float] | None) -> str:
    """Return two values as tables show them."""
    return "" if pair is None else " to ".join(map(text, pair))


METHOD_WORDS = {
    "python": "a cycle of Python objects",
    "numba": "numba over an array",
    "cupy": "a CUDA kernel",
}


class Reported(NamedTuple):
    """A cache as the system, or the driver, reports it.

    Attributes
    ----------
    name : str
        "L1d", "L2" or "L3".
    size_bytes : float
        The size of one instance: the most that one core can use.
    """

    name: str
    size_bytes: float

    def __str__(self) -> str:
        return f"{self.name} {format_bytes(self.size_bytes)}"


class LatencyPoint(NamedTuple):
    """One working set of a chase.

    Attributes
    ----------
    nbytes : int
    median_seconds : float
        Of one hop: the median of the chases' medians.
    interval_seconds : (float, float) or None
        From the lowest to the highest end of the chases' 95 % intervals; None if a chase has no
        interval.
    least_seconds : float
        The fastest sample: disturbances only make a chase slower.
    samples, chases : int
    """

    nbytes: int
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    least_seconds: float
    samples: int
    chases: int


class BandwidthPoint(NamedTuple):
    """One working set of a stream.

    Attributes
    ----------
    nbytes : int
    bytes_per_second : float
        Moved by one core (of a GPU: by all) at the median time.
    interval_bytes_per_second : (float, float) or None
    most_bytes_per_second : float
        Of the fastest sample.
    samples : int
    """

    nbytes: int
    bytes_per_second: float
    interval_bytes_per_second: tuple[float, float] | None
    most_bytes_per_second: float
    samples: int


class Level(NamedTuple):
    """One level of memory, as found in a curve.

    Attributes
    ----------
    name : str
        The reported cache whose size is near the level's end, else "main memory" or a number, such
        as "level 2".
    latency_seconds : float or None
        Of one hop: the median over the level's points of their fastest samples.
    bytes_per_second : float or None
        In place of the latency, in results for a curve of bandwidth that earlier versions saved.
    ends_bytes : float or None
        The size at which the curve has risen halfway to the next level; None for the last.
    between_bytes : (float, float) or None
        The last set that is still in the level, and the first that is in the next one.
    reported_bytes : float or None
        The size that the system reports.
    """

    name: str
    latency_seconds: float | None
    bytes_per_second: float | None
    ends_bytes: float | None
    between_bytes: tuple[float, float] | None
    reported_bytes: float | None

    @property
    def speed_text(self) -> str:
        """The latency or the rate."""
        if self.latency_seconds is not None:
            return format_seconds(self.latency_seconds)
        return format_bytes_per_second(self.bytes_per_second or 0.0)


@dataclass(frozen=True, repr=False)
class Levels(Result):
    """The levels of a curve, fastest first, beside what the system reports.

    Attributes
    ----------
    levels : tuple of Level
    unseen : tuple of Reported
        Reported caches for which the curve shows no step.
    cannot_tell : tuple of str
        What these figures do not determine, one sentence each.
    evidence : Evidence
    """

    levels: tuple[Level, ...]
    unseen: tuple[Reported, ...]
    cannot_tell: tuple[str, ...]
    evidence: Evidence

    @property
    def ends_bytes(self) -> tuple[float, ...]:
        """The sizes at which the levels end, in order; the last has no end."""
        return tuple(level.ends_bytes for level in self.levels if level.ends_bytes is not None)

    def __repr__(self) -> str:
        words = [
            f"{level.name} {level.speed_text}"
            + (f" up to about {format_bytes(level.ends_bytes)}" if level.ends_bytes else "")
            for level in self.levels
        ]
        return f"<levels: {'; '.join(words)}>"

    def table(self) -> Table:
        """Return one row per level, then what cannot be determined."""
        rows = [
            (
                level.name,
                level.speed_text,
                "" if level.ends_bytes is None else f"about {format_bytes(level.ends_bytes)}",
                _between(format_bytes, level.between_bytes),
                "" if level.reported_bytes is None else format_bytes(level.reported_bytes),
            )
            for level in self.levels
        ]
        rows += [
            (f"{cache.name}", "no step found", "", "", format_bytes(cache.size_bytes))
            for cache in self.unseen
        ]
        rows += [("not determined", sentence, "", "", "") for sentence in self.cannot_tell]
        speed = "time of a hop" if self.levels[0].latency_seconds is not None else "rate"
        return ("level", speed, "ends at", "last set inside, first beyond", "reported size"), rows


@dataclass(frozen=True, repr=False)
class Latency(Result):
    """The time of a dependent load by working set.

    ``levels`` uses the fastest samples: other programs make a chase slower, never faster.

    Attributes
    ----------
    device : str
    method : str
        "python", "numba" or "cupy": how the chase was made.
    points : tuple of LatencyPoint
        Ascending in size.
    floor_seconds : float or None
        A hop on a single node that points at itself: the first cache's latency plus the method's
        own work, the minimum for every hop.
    reported : tuple of Reported
        The caches as the system reports them, smallest first.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment or None
    """

    device: str
    method: str
    points: tuple[LatencyPoint, ...]
    floor_seconds: float | None
    reported: tuple[Reported, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment | None

    rows_from = "points"
    columns: ClassVar = {
        "working set": lambda p: format_bytes(p.nbytes),
        "one hop (median)": lambda p: format_seconds(p.median_seconds),
        "95 % interval": lambda p: _between(format_seconds, p.interval_seconds),
        "fastest": lambda p: format_seconds(p.least_seconds),
        "samples, chases": lambda p: f"{p.samples} in {p.chases}",
    }

    def levels(self) -> Levels:
        """Return the levels of memory that the fastest samples show, beside the caches that the
        system reports, and what the samples do not determine.
        """
        sizes, reported = [p.nbytes for p in self.points], self.reported
        seconds = [p.least_seconds for p in self.points]
        found, level = _rises(sizes, seconds), _lowered(seconds)
        pairs = _matched([rise.size for rise in found], [cache.size_bytes for cache in reported])
        beyond = bool(reported) and sizes[-1] >= _BEYOND * max(c.size_bytes for c in reported)
        made, begin = [], 0
        # the last level has no end in the curve
        for k, (rise, pair) in enumerate(zip([*found, None], [*pairs, None], strict=True)):
            flat = level[begin : rise.start + 1 if rise else None]
            begin = rise.end if rise else begin
            cache = None if pair is None else reported[pair]
            is_memory = found and beyond and rise is None
            made.append(
                Level(
                    name=cache.name if cache else "main memory" if is_memory else f"level {k + 1}",
                    latency_seconds=float(np.median(flat)),
                    bytes_per_second=None,
                    ends_bytes=rise.size if rise else None,
                    between_bytes=(float(sizes[rise.start]), float(sizes[rise.end]))
                    if rise
                    else None,
                    reported_bytes=cache.size_bytes if cache else None,
                )
            )
        floor = self.floor_seconds or 0.0
        unseen = tuple(cache for k, cache in enumerate(reported) if k not in pairs)
        doubts = (
            (
                floor >= _NEAR_FLOOR * min(seconds),
                f"The floor of {format_seconds(floor)} is the first cache's latency plus the "
                f"method's own work ({METHOD_WORDS.get(self.method, self.method)}); the two cannot "
                "be separated.",
            ),
            (
                unseen,
                f"No step was found for {', '.join(map(str, unseen))}: a step may lie beyond the "
                "largest set or be too small to show, or other processes share the cache, so that "
                "only a part of it is available to this one.",
            ),
            (
                reported and not beyond,
                f"The largest set, {format_bytes(sizes[-1])}, is smaller than twice the largest "
                "cache; the last level may be that cache.",
            ),
            (
                found and found[-1].end == len(sizes) - 1,
                f"The curve rises up to the largest set, {format_bytes(sizes[-1])}: a larger one "
                "may be slower, so the time of the last level is a lower limit.",
            ),
            (
                True,
                "Two caches of nearly the same size show one step, and a cache that other programs "
                "also use looks smaller than it is.",
            ),
        )
        cannot_tell = tuple(sentence for holds, sentence in doubts if holds)
        return Levels(tuple(made), unseen, cannot_tell, self.evidence)

    def __repr__(self) -> str:
        ends = [
            f"{format_bytes(p.nbytes)} {format_seconds(p.median_seconds)}"
            for p in (self.points[0], self.points[-1])
        ]
        return (
            f"<latency of {self.device} by {METHOD_WORDS.get(self.method, self.method)}: "
            f"{' to '.join(ends)}, {self.evidence.badge}>"
        )

    def caption(self) -> str:
        """Return the badge, which names how the chase was made, and the floor."""
        floor = (
            ""
            if self.floor_seconds is None
            else f" · floor {format_seconds(self.floor_seconds)} a hop"
        )
        return f"{self.evidence.sentence}{floor}"


@dataclass(frozen=True, repr=False)
class Bandwidth(Result):
    """The rate of a stream by working set.

    Attributes
    ----------
    device : str
    method : str
        "numpy" or "cupy".
    operation : str
        "read".
    points : tuple of BandwidthPoint
        Ascending in size.
    reported : tuple of Reported
    notes : tuple of Note
    evidence : Evidence
    environment : Environment or None
    """

    device: str
    method: str
    operation: str
    points: tuple[BandwidthPoint, ...]
    reported: tuple[Reported, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment | None

    rows_from = "points"
    columns: ClassVar = {
        "working set": lambda p: format_bytes(p.nbytes),
        "{0.operation} (median)": lambda p: format_bytes_per_second(p.bytes_per_second),
        "95 % interval": lambda p: _between(format_bytes_per_second, p.interval_bytes_per_second),
        "samples": lambda p: p.samples,
    }

    def __repr__(self) -> str:
        ends = [
            f"{format_bytes(p.nbytes)} {format_bytes_per_second(p.bytes_per_second)}"
            for p in (self.points[0], self.points[-1])
        ]
        return (
            f"<bandwidth of {self.device}, {self.operation}: {' to '.join(ends)}, "
            f"{self.evidence.badge}>"
        )


# -------------------------------------------------------------------------------------------------
# The results of parallel chases: the time of a hop by the number of chains, and the loads in
# flight (Little's law).


class ParallelPoint(NamedTuple):
    """One number of parallel chases by one core.

    Attributes
    ----------
    chains : int
    seconds_per_hop : float
        The time divided by the number of hops of all chains.
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

    def loads_in_flight(self, point: ParallelPoint) -> float:
        """Return the average number of loads in flight: latency times rate (Little's law), both of
        the fastest samples.

        The latency is that of one chain.
        """
        return self.points[0].least_seconds / point.least_seconds

    @property
    def gain(self) -> float:
        """The speed-up of the best number of chains over one chain, in hops per second."""
        return max(self.loads_in_flight(point) for point in self.points)

    def __repr__(self) -> str:
        return (
            f"<1 to {plural(self.points[-1].chains, 'chain')} in {format_bytes(self.nbytes)}: best "
            f"speed-up {format_ratio(self.gain)} over one chain, {self.evidence.badge}>"
        )

    def caption(self) -> str:
        """Return the badge, which names how the chases were made, and the set."""
        return f"{self.evidence.sentence} · in {format_bytes(self.nbytes)}"

    def table(self) -> Table:
        """Return one row per number of chains."""
        rows = [
            (
                str(p.chains),
                format_seconds(p.seconds_per_hop),
                _between(format_seconds, p.interval_seconds),
                format_seconds(p.least_seconds),
                f"{self.loads_in_flight(p):.1f}",
            )
            for p in self.points
        ]
        headers = (
            "parallel chains",
            "time per hop (median)",
            "95 % interval",
            "fastest",
            "loads in flight",
        )
        return headers, rows + note_rows(self.notes, len(headers))
