"""Two recordings: what differs between them, and how they are merged into one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpulab.errors import InputError, RecordingError, shown
from gpulab.evidence import Environment, Evidence
from gpulab.recordings._schema import Entry, Recording
from gpulab.results import Result
from gpulab.units import format_ratio, format_seconds, plural

# What must be the same before the entries of two runs may stand in one file.
_SAME = ("device", "device_kind", "driver", "system", "python", "libraries")
# How the commands of several runs in one file are joined, and how many are named.
_THEN, _OTHERS, _MOST_COMMANDS = ", continued by ", "others", 6


@dataclass(frozen=True)
class Difference(Result):
    """One case in both recordings.

    Attributes
    ----------
    key : str
    first_seconds, second_seconds : float
        The medians.
    ratio : float
        Second divided by first: above 1, the second is slower.
    interval : (float, float) or None
        From the least favorable ends of both 95 % intervals; None where one is missing.
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

    def agreement(self, tolerance: float = 0.02) -> float:
        """Return the share of the common cases whose ratio is 1 within both intervals or within a
        tolerance; nan without a common case.
        """
        agree = [abs(d.ratio - 1) <= tolerance or d.differs is False for d in self.differences]
        return sum(agree) / len(agree) if agree else math.nan

    def __repr__(self) -> str:
        changed = sum(d.differs is True for d in self.differences)
        return (
            f"<{self.first} and {self.second}: {plural(len(self.differences), 'case')} in both, "
            f"{changed} differ; "
            f"{len(self.only_first)} only in the first, {len(self.only_second)} only in the second>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what differs in the environment, then one row per case."""
        rows = [(name, before, after, "") for name, (before, after) in self.environment.items()]
        for d in self.differences:
            ends = (
                "no interval"
                if d.interval is None
                else f"[{format_ratio(d.interval[0])}, {format_ratio(d.interval[1])}]"
            )
            rows.append(
                (
                    d.key,
                    format_seconds(d.first_seconds),
                    format_seconds(d.second_seconds),
                    f"{format_ratio(d.ratio)} {ends}",
                )
            )
        return ("case", self.first, self.second, "second / first"), rows


def diff(first: Recording, second: Recording) -> RecordingDiff:
    """Return what differs between two recordings, of one machine or of two.

    Raises
    ------
    InputError
        If one of them is not a recording.
    """
    _both("diff", first, second)
    one, other = _recorded(first), _recorded(second)
    common = [_difference(one[key], other[key]) for key in one if key in other]
    common.sort(key=lambda d: -abs(math.log(d.ratio)))
    environment = {
        name: (str(before), str(after))
        for name in (
            "device",
            "driver",
            "system",
            "processor",
            "cores",
            "memory_bytes",
            "python",
            "date",
        )
        if (before := getattr(first.environment, name))
        != (after := getattr(second.environment, name))
    }
    libraries = (first.environment.libraries, second.environment.libraries)
    for name in sorted({*libraries[0], *libraries[1]}):
        before, after = (of.get(name, "none") for of in libraries)
        if before != after:
            environment[name] = (before, after)
    return RecordingDiff(
        first.name,
        second.name,
        environment,
        tuple(common),
        tuple(key for key in one if key not in other),
        tuple(key for key in other if key not in one),
        (first.evidence(), second.evidence()),
    )


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
    _both("merge", first, second)
    name = foreign_part(first.environment, second.environment)
    if name is not None:
        before, after = getattr(first.environment, name), getattr(second.environment, name)
        raise RecordingError(
            f"recordings.merge: {first.name} and {second.name} differ in {name} ({shown(before)} "
            f"and {shown(after)}); expected the "
            "same machine and the same software. Keep them as two recordings."
        )
    older, newer = sorted(
        (dated(first), dated(second)), key=lambda recording: recording.environment.date
    )
    entries = {entry.key: entry for entry in older.entries}
    for entry in newer.entries:
        there = entries.get(entry.key)
        if (
            there is None
            or not there.recorded
            or (entry.recorded and (entry.date or "") >= (there.date or ""))
        ):
            entries[entry.key] = entry
    notes = tuple(dict.fromkeys((*older.notes, *newer.notes)))
    environment = joined(older.environment, newer.environment)
    return replace(
        newer,
        name=first.name,
        environment=environment,
        entries=tuple(entries.values()),
        notes=notes,
    )


def joined(earlier: Environment, later: Environment) -> Environment:
    """Return the later run's environment with the commands of both, and with the libraries of both:
    what one has used, the file names.
    """
    return replace(
        later,
        command=commands_of(earlier, later),
        libraries={**earlier.libraries, **later.libraries},
    )


def commands_of(earlier: Environment, later: Environment) -> str | None:
    """Return the commands of a file's runs in their order, each once; of many the first and the
    latest.
    """
    runs = list(
        dict.fromkeys(
            one for each in (earlier, later) if each.command for one in each.command.split(_THEN)
        )
    )
    if len(runs) > _MOST_COMMANDS:
        runs = [runs[0], _OTHERS, *runs[2 - _MOST_COMMANDS :]]
    return _THEN.join(runs) or None


def foreign_part(one: Environment, other: Environment) -> str | None:
    """Return the first property in which the machines or software of two runs differ; None where
    both may be in one file.

    A library that only one of them names does not count as a difference: a library installed later
    was not used before, and a removed one is not used now.
    """
    return next((name for name in _SAME if _parted(getattr(one, name), getattr(other, name))), None)


def _parted(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return any(one[name] != other[name] for name in one.keys() & other.keys())
    return bool(one != other)


def dated(recording: Recording) -> Recording:
    """Return the recording with a date at each entry that has a timing and none: that of its
    file.
    """
    date = recording.environment.date
    entries = (
        replace(entry, date=date) if entry.recorded and entry.date is None else entry
        for entry in recording.entries
    )
    return replace(recording, entries=tuple(entries))


def _both(function: str, *given: Recording) -> None:
    for one in given:
        if not isinstance(one, Recording):
            raise InputError(
                f"recordings.{function}: {shown(one)} is not a recording; expected the result of "
                "gl.recordings.load or .read."
            )


def _recorded(recording: Recording) -> dict[str, Entry]:
    return {entry.key: entry for entry in recording.entries if entry.recorded}


def _difference(first: Entry, second: Entry) -> Difference:
    one, other = first.timing, second.timing
    assert one is not None
    assert other is not None
    return Difference(first.key, one.median_seconds, other.median_seconds, *other.over(one))
