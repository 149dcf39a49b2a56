"""Two recordings: what differs between them, and how they are merged into one. Several visits to
one case: how they become one timing.

The interval of one visit covers only the moment of the visit. A machine's clock, its caches and
other processes change from minute to minute, which shows only between visits: the visits, not the
samples within one visit, are independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpulab._validate import arguments
from gpulab.errors import RecordingError, shown
from gpulab.evidence import Environment, Evidence, Note
from gpulab.recordings.schema import KEPT_SAMPLES, RECORDING, Recording, Timing, thin
from gpulab.results import Result, Table
from gpulab.units import format_seconds, format_speedup, plural

# Properties that must be equal, besides the libraries, before the entries of two runs may be in one
# file.
_SAME = ("device", "device_kind", "driver", "system", "python")
# Properties of two environments that ``diff`` compares, besides the versions of the libraries.
_ABOUT = ("device", "driver", "system", "processor", "cores", "memory_bytes", "python", "date")
_THEN = ", continued by "  # joins the commands of several runs in one file
# Student's t, two-sided 95 %, by degrees of freedom: NIST/SEMATECH e-Handbook of Statistical
# Methods, 1.3.6.7.2.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
# Fields of a timing that keep their mean ratio to the time of a visit: beside the median, their own
# mean could say that a call returned after it had finished.
_DURATIONS = ("launch_seconds", "with_transfer_seconds")
# Fields that become the mean over the visits.
_MEANS = ("energy_joules", "energy_error_joules")
# A note that no longer applies once there is an interval between visits.
_NO_INTERVAL = "no-interval"
# An interval whose ends differ by a larger factor says nothing: two visits that differ by a factor
# of ten would give one of more than twelve orders of magnitude.
_MOST_APART = 1e4


class Difference(NamedTuple):
    """One case in both recordings.

    Attributes
    ----------
    key : str
    first_seconds, second_seconds : float
        The medians.
    ratio : float
        Second divided by first: above 1, the second is slower.
    interval : (float, float) or None
        The interval of the ratio, from the least favorable ends of both 95 % intervals; None if one
        of them is missing.
    """

    key: str
    first_seconds: float
    second_seconds: float
    ratio: float
    interval: tuple[float, float] | None

    @property
    def differs(self) -> bool | None:
        """Whether the intervals exclude equality; None where one is missing."""
        return None if self.interval is None else not self.interval[0] <= 1 <= self.interval[1]


@dataclass(frozen=True)
class RecordingDiff(Result):
    """What differs between two recordings.

    Attributes
    ----------
    first, second : str
        Their names.
    environment : mapping of str to (str, str)
        What differs in the environments: the values of the first and of the second.
    differences : tuple of Difference
        The cases that both have, the largest change first.
    only_first, only_second : tuple of str
        The keys of the cases that only one of them has.
    evidence : (Evidence, Evidence)
        Of both recordings.
    """

    first: str
    second: str
    environment: Mapping[str, tuple[str, str]]
    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    evidence: tuple[Evidence, Evidence]

    def caption(self) -> str:
        """Return the badge lines of both."""
        return "; ".join(one.sentence for one in self.evidence)

    def __repr__(self) -> str:
        changed = sum(d.differs is True for d in self.differences)
        return (
            f"<{self.first} and {self.second}: {plural(len(self.differences), 'case')} in both, "
            f"{changed} differ; {len(self.only_first)} only in the first, {len(self.only_second)} "
            "only in the second>"
        )

    def table(self) -> Table:
        """Return what differs in the environment, then one row per case."""
        rows = [(name, before, after, "") for name, (before, after) in self.environment.items()]
        rows += [
            (
                d.key,
                format_seconds(d.first_seconds),
                format_seconds(d.second_seconds),
                format_speedup(d.ratio, d.interval),
            )
            for d in self.differences
        ]
        return ("case", self.first, self.second, "second / first"), rows


@arguments(first=RECORDING, second=RECORDING)
def diff(first: Recording, second: Recording) -> RecordingDiff:
    """Return what differs between two recordings, of one machine or of two.

    Raises
    ------
    InputError
        If one of them is not a recording.
    """
    one, other = (
        {entry.key: entry.timing for entry in of.entries if entry.timing is not None}
        for of in (first, second)
    )
    common = [
        Difference(key, a.median_seconds, b.median_seconds, *b.over(a))
        for key, a in one.items()
        if (b := other.get(key)) is not None
    ]
    common.sort(key=lambda d: -abs(math.log(d.ratio)))
    before, after = (
        {
            name: str(value)
            for name in _ABOUT
            if (value := getattr(of.environment, name)) is not None
        }
        | {**of.environment.libraries}
        for of in (first, second)
    )
    environment = {
        name: (before.get(name, "none"), after.get(name, "none"))
        for name in (*_ABOUT, *sorted((before | after).keys() - set(_ABOUT)))
        if before.get(name) != after.get(name)
    }
    return RecordingDiff(
        first.name,
        second.name,
        environment,
        tuple(common),
        tuple(key for key in one if key not in other),
        tuple(key for key in other if key not in one),
        (first.evidence(), second.evidence()),
    )


@arguments(first=RECORDING, second=RECORDING)
def merge(first: Recording, second: Recording) -> Recording:
    """Merge two recordings: where both have a case, the later one is kept; each entry keeps its own
    date.

    Raises
    ------
    InputError
        If one of them is not a recording.
    RecordingError
        If they are of different machines or of different software.
    """
    name = foreign_part(first.environment, second.environment)
    if name is not None:
        before, after = getattr(first.environment, name), getattr(second.environment, name)
        raise RecordingError(
            f"recordings.merge: {first.name} and {second.name} differ in {name} ({shown(before)} "
            f"and {shown(after)}); expected the same machine and the same software. Keep them as "
            "two recordings."
        )
    older, newer = sorted(
        (dated(first), dated(second)), key=lambda recording: recording.environment.date
    )
    both = (*older.entries, *newer.entries)
    # entries without a timing come first, so that a timing of the same case replaces them
    later = sorted(both, key=lambda entry: (entry.date or "") if entry.recorded else "")
    entries = {entry.key: entry for entry in both} | {entry.key: entry for entry in later}
    notes = tuple(dict.fromkeys((*older.notes, *newer.notes)))
    return replace(
        newer,
        name=first.name,
        environment=joined(older.environment, newer.environment),
        entries=tuple(entries.values()),
        notes=notes,
    )


def joined(earlier: Environment, later: Environment) -> Environment:
    """Return the later run's environment with the commands and the libraries of both runs, so that
    the file names every library that one of them used.
    """
    commands = [
        one for each in (earlier, later) if each.command for one in each.command.split(_THEN)
    ]
    return replace(
        later,
        command=_THEN.join(dict.fromkeys(commands)) or None,  # in their order, each once
        libraries={**earlier.libraries, **later.libraries},
    )


def foreign_part(one: Environment, other: Environment) -> str | None:
    """Return the first property in which the machines or software of two runs differ; None where
    both may be in one file.

    A library that only one of them names does not count as a difference: a library installed later
    was not used before, and a removed one is not used now.
    """
    differing = [name for name in _SAME if getattr(one, name) != getattr(other, name)]
    both = one.libraries.keys() & other.libraries.keys()
    if any(one.libraries[name] != other.libraries[name] for name in both):
        differing.append("libraries")
    return differing[0] if differing else None


def dated(recording: Recording) -> Recording:
    """Return the recording with its own date at each entry that has a timing but no date."""
    date = recording.environment.date
    entries = (
        replace(entry, date=date) if entry.recorded and entry.date is None else entry
        for entry in recording.entries
    )
    return replace(recording, entries=tuple(entries))


def visits_of(timing: Timing) -> tuple[float, ...]:
    """Return the median of each visit in seconds, in their order."""
    return timing.visits_seconds or (timing.median_seconds,)


def between(visits_seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval, in seconds, of the median time from 2 to ``MOST_VISITS`` visits.

    It is Student's t interval of the logarithms, since disturbances slow a machine by factors, and
    it is extended to include the median. It is None if its ends differ by more than a factor of ten
    thousand.
    """
    logs = np.log(np.asarray(visits_seconds, dtype=float))
    half = _T_95[len(logs) - 2] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    if 2 * half > math.log(_MOST_APART):
        return None
    middle, median = float(logs.mean()), float(np.median(visits_seconds))
    return min(math.exp(middle - half), median), max(math.exp(middle + half), median)


def together(before: Timing, visit: Timing) -> Timing:
    """Return one timing that combines all previous visits with a further one.

    The median is that of the visits' medians, and the interval is that of ``between``. The first
    call is that of the first visit. The time of a launch and the time with the transfer have the
    same ratio to the median as their means over the visits have to the mean of the visits' medians.
    The energy is the mean over the visits. Each visit keeps about an equal share of the samples.
    """
    count = len(visits_of(before)) + 1
    visits = (*visits_of(before), visit.median_seconds)
    was, now = (np.median(each) / np.mean(each) for each in (visits_of(before), visits))
    kept = KEPT_SAMPLES // count
    samples = np.concatenate(
        [thin(before.samples_seconds, KEPT_SAMPLES - kept), thin(visit.samples_seconds, kept)]
    )
    interval = between(visits)
    notes = {note.code: note for note in (*before.notes, *visit.notes) if note.code != _NO_INTERVAL}
    means: dict[str, Any] = {
        name: _mean(getattr(before, name), getattr(visit, name), count, *scales)
        for names, scales in ((_DURATIONS, (was, now)), (_MEANS, (1.0, 1.0)))
        for name in names
    }
    if interval is None:
        sentence = (
            f"{count} visits took from {format_seconds(min(visits))} to "
            f"{format_seconds(max(visits))}, so the interval would be meaningless. Use more "
            "--visits."
        )
        notes[_NO_INTERVAL] = Note(_NO_INTERVAL, sentence)
    return replace(
        before,
        samples_seconds=samples,
        sample_count=before.sample_count + visit.sample_count,
        median_seconds=float(np.median(visits)),
        interval_seconds=interval,
        notes=tuple(notes.values()),
        visits_seconds=visits,
        **means,
    )


def _mean(
    of_all_before: float | None,
    last: float | None,
    count: int,
    was: float,
    now: float,
) -> float | None:
    """Return the mean over all visits, times ``now``, or None where one of them has no figure; that
    of all before was multiplied by ``was``.
    """
    if of_all_before is None or last is None:
        return None
    return float(now * ((count - 1) * of_all_before / was + last) / count)
