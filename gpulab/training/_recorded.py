"""Two ways to train on a recorded machine: the time of a step of each, where both were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.recordings import Entry, Recording
from gpulab.results import Result
from gpulab.units import format_ratio, format_seconds

_EXPERIMENT = "training"
_KNOWN = ("precision", "means")
_USUAL = {"precision": "float32", "means": "plain"}


@dataclass(frozen=True)
class RecordedStep(Result):
    """Two ways to train one recorded model.

    Attributes
    ----------
    model : str
        As the recorder names it: "cnn" or "transformer", larger than the tasks of this course.
    first_seconds, second_seconds : float
        Medians of a step.
    speedup : float
        Seconds of the first divided by those of the second.
    speedup_interval : (float, float) or None
        From the least favorable ends of both 95 % intervals; None where one is missing.
    samples : int
        The smaller number of samples of the two.
    """

    model: str
    first_seconds: float
    second_seconds: float
    speedup: float
    speedup_interval: tuple[float, float] | None
    samples: int


@dataclass(frozen=True, repr=False)
class RecordedSteps(Result):
    """Two ways to train on a recorded machine.

    Attributes
    ----------
    recording : str
        The machine's short name.
    first, second : str
        The ways in words, as "bfloat16, plain".
    rows : tuple of RecordedStep
        One a model; empty where the machine has not recorded both ways.
    evidence : Evidence
        Of the recording.
    """

    recording: str
    first: str
    second: str
    rows: tuple[RecordedStep, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        found = (
            "; ".join(f"{row.model} {format_ratio(row.speedup)}" for row in self.rows)
            or "not recorded yet"
        )
        return f"<{self.second} over {self.first} on {self.recording}: {found}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a model."""
        rows = []
        for row in self.rows:
            ends = row.speedup_interval
            between = "" if ends is None else f" [{format_ratio(ends[0])}, {format_ratio(ends[1])}]"
            rows.append(
                (
                    row.model,
                    format_seconds(row.first_seconds),
                    format_seconds(row.second_seconds),
                    f"{format_ratio(row.speedup)}{between}",
                )
            )
        return (f"a step on {self.recording}", self.first, self.second, "speed-up"), rows or [
            ("not recorded yet", "", "", "")
        ]


def recorded_steps(
    recording: Recording, first: Mapping[str, str], second: Mapping[str, str]
) -> RecordedSteps:
    """Return how long a recorded machine's training steps took in two ways.

    Parameters
    ----------
    recording : Recording
    first, second : mapping
        "precision" (by default "float32") and "means" (by default "plain"; such as "compile",
        "graph", "fused", "channels_last").

    Raises
    ------
    InputError
        If it is not a recording, or a mapping has another key.

    Examples
    --------
    >>> from gpulab import recordings
    >>> recorded_steps(recordings.load("amd-epyc-2-cores"), {}, {"precision": "float8"})
    <float8, plain over float32, plain on amd-epyc-2-cores: not recorded yet>
    """
    if not isinstance(recording, Recording):
        raise InputError(
            f"recorded_steps: {shown(recording)} is not a recording; expected one of "
            "gl.recordings.load(name)."
        )
    ways = []
    for name, way in (("first", first), ("second", second)):
        wrong = [key for key in way if key not in _KNOWN] if isinstance(way, Mapping) else [way]
        if wrong:
            raise InputError(
                f"recorded_steps: {name} has {shown(wrong[0])}; expected a mapping with "
                f"{' and '.join(map(repr, _KNOWN))}."
            )
        ways.append({**_USUAL, **way})
    one, other = ways
    rows = []
    for entry in recording.select(_EXPERIMENT, **one):
        there = recording.find(_EXPERIMENT, **{**entry.params, **other})
        if there is not None and there.key != entry.key:
            rows.append(_row(entry, there))
    return RecordedSteps(
        recording.name, _words(one), _words(other), tuple(rows), recording.evidence()
    )


def _words(way: Mapping[str, str]) -> str:
    return f"{way['precision']}, {way['means']}"


def _row(first: Entry, second: Entry) -> RecordedStep:
    one, other = first.timing, second.timing
    assert one is not None
    assert other is not None
    steps = float(first.params.get("steps", 1))
    speedup, ends = one.over(other)
    return RecordedStep(
        str(first.params["model"]),
        one.median_seconds / steps,
        other.median_seconds / steps,
        speedup,
        ends,
        min(one.sample_count, other.sample_count),
    )
