"""The schema of a recording: one machine, many entries, one kind of payload.

Every experiment is reduced to timings, since a ceiling, a copy and a training step are all a number
of seconds for an amount of work. The live classes of other modules may change; this schema changes
only with its version.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpulab._validate import instance
from gpulab.errors import RecordingError, shown
from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result, Table
from gpulab.units import format_bytes_per_second, format_flops_per_second, format_seconds

Parameter = str | int | float
# Enough to draw a spread and to check the interval; the interval itself is of all samples.
KEPT_SAMPLES = 32
MOST_VISITS = 10
# No clock resolves the shorter time, even over a million calls, and no measurement takes the longer
# one. The ratio of any two times between them is finite.
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1e-15, 1e9
# No measurement takes so many samples, and no call does so much work. A larger number may not
# convert to a float, or may give an infinite rate.
_MOST_COUNT, _MOST_WORK = 10**15, 1e30

# What the readers of a recording require of an entry: the parameters of each experiment. The
# recorder's cases have them, and a test checks that both agree. An experiment that is not listed
# here may have any parameters.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "attention": ("kernel", "passes", "length", "dtype"),
    "bandwidth": ("nbytes", "operation"),
    "catalogue": ("workload", "n", "dtype"),
    "ceilings": ("operation", "dtype"),
    "collectives": ("collective", "nbytes", "ranks"),
    "compression": ("layer", "form", "dtype", "n"),
    "data-parallel scaling": ("model", "mode", "ranks", "batch", "parameter_bytes"),
    "ladders": ("family", "rung", "n"),
    "latency": ("nbytes", "method", "hops"),
    "generation": ("model", "phase", "batch", "length", "new", "kv_heads", "weights", "means"),
    "launch": ("operation", "launches"),
    "lessons": ("cell", "form", "n"),
    "overlap": ("arrangement", "nbytes", "chunks"),
    "pipeline": ("part",),
    "precision": ("format", "n"),
    "speed-up ladder": ("form", "technique", "batch_size", "steps"),
    "tips": ("tip", "form"),
    "training": ("model", "precision", "means"),
    "transfer": ("direction", "memory", "nbytes"),
}
# Parameters that are counts. They and the numbers of bytes are whole numbers; all other parameters
# above are words.
_COUNTS = (
    *("batch", "batch_size", "chunks", "hops", "kv_heads", "launches", "length", "n", "new"),
    *("ranks", "steps"),
)
_WHOLE = frozenset((*_COUNTS, "nbytes", "parameter_bytes"))
# no memory is larger, and every whole number up to here converts to a float
_MOST = 2**62


@dataclass(frozen=True, eq=False)
class Timing(Result):
    """Seconds per call of one piece of work, thinned for keeping.

    Attributes
    ----------
    samples_seconds : ndarray, shape (k,), float64
        At most ``KEPT_SAMPLES`` of the samples, evenly spaced in time.
    sample_count : int
        How many samples the median and the interval are based on.
    median_seconds, first_call_seconds, launch_seconds : float
    interval_seconds : (float, float) or None
        The 95 % interval of the median: from all samples if there was one visit, from the
        differences between the visits if there were several.
    with_transfer_seconds : float or None
    calls_per_sample : int
    flops, nbytes : float or None
        Work per call.
    notes : tuple of Note
    visits_seconds : tuple of float
        The median of each visit, in their order, if the case was timed at several moments; empty
        after a single visit, and in files of version 1.
    energy_joules, energy_error_joules : float or None
        The energy of a call, and its error; None if there is no counter, and in files of versions 1
        and 2.
    """

    schema_version: ClassVar[int] = 3

    samples_seconds: np.ndarray
    sample_count: int
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    first_call_seconds: float
    launch_seconds: float
    with_transfer_seconds: float | None
    calls_per_sample: int
    flops: float | None
    nbytes: float | None
    notes: tuple[Note, ...]
    visits_seconds: tuple[float, ...] = ()
    energy_joules: float | None = None
    energy_error_joules: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that no measurement can have given."""
        times = [
            self.median_seconds,
            self.first_call_seconds,
            self.launch_seconds,
            self.with_transfer_seconds or 0.0,
            *(self.interval_seconds or ()),
            *self.samples_seconds,
        ]
        low, high = self.interval_seconds or (self.median_seconds,) * 2
        kept = max(1, len(self.samples_seconds), len(self.visits_seconds))
        for holds, problem in (
            (
                all(math.isfinite(t) and t >= 0 for t in times),
                "a time is negative or not finite; expected seconds",
            ),
            (
                all(
                    _SHORTEST_SECONDS <= t <= _LONGEST_SECONDS
                    for t in (self.median_seconds, *self.visits_seconds)
                ),
                f"a median is not a plausible time; expected {_SHORTEST_SECONDS:g} to "
                f"{_LONGEST_SECONDS:g} seconds",
            ),
            (
                low <= self.median_seconds <= high,
                "the median lies outside its own interval; expected low <= median <= high",
            ),
            (
                self.calls_per_sample >= 1
                and len(self.samples_seconds) > 0
                and kept <= self.sample_count
                and len(self.visits_seconds) <= MOST_VISITS,
                "the numbers of samples and visits contradict each other; expected one sample or "
                f"more, no more kept than taken, and at most {MOST_VISITS} visits",
            ),
            (
                max(self.sample_count, self.calls_per_sample) <= _MOST_COUNT,
                f"the number of samples or calls is too large; expected at most {_MOST_COUNT:g}",
            ),
            (
                all(
                    0 <= (amount or 0) <= _MOST_WORK
                    for amount in (
                        self.flops,
                        self.nbytes,
                        self.energy_joules,
                        self.energy_error_joules,
                    )
                ),
                "the work per call is negative, or too large for one call; expected FLOPs, bytes "
                f"and joules of 0 to {_MOST_WORK:g}",
            ),
        ):
            if not holds:
                raise RecordingError(f"Timing: {problem}. The file is damaged.")

    def over(self, other: Timing, scale: float = 1.0) -> tuple[float, tuple[float, float] | None]:
        """Return ``scale`` times the ratio of this median to another, and an interval from the
        least favorable ends of both 95 % intervals.

        The interval is wider than a 95 % interval; it is None if one of the two is missing.
        """
        ends = None
        if (
            self.interval_seconds is not None
            and other.interval_seconds is not None
            and other.interval_seconds[0] > 0
        ):
            ends = (
                scale * (self.interval_seconds[0] / other.interval_seconds[1]),
                scale * (self.interval_seconds[1] / other.interval_seconds[0]),
            )
        return scale * (self.median_seconds / other.median_seconds), ends


@dataclass(frozen=True)
class Entry(Result):
    """One case of one experiment: its parameters, and its timing.

    Attributes
    ----------
    experiment : str
        The experiment's name in the recorder's registry, such as "catalogue" or "transfer".
    params : mapping
        What distinguishes this case from the others, such as ``{"workload": "matmul", "n": 1024,
        "dtype": "float32"}``.
    timing : Timing or None
        None where it was not recorded.
    reason : str or None
        Why it was not recorded: "time did not reach it", or the error's sentence.
    date : str or None
        UTC, ISO 8601: when it was timed, which may be before the recording's own date where a run
        was continued. None in files of version 1.
    """

    schema_version: ClassVar[int] = 2

    experiment: str
    params: Mapping[str, Parameter]
    timing: Timing | None
    reason: str | None = None
    date: str | None = None

    def __post_init__(self) -> None:
        """Refuse an entry that has both a timing and a reason, or neither; an empty date; and names
        that cannot be displayed.
        """
        _refuse_unseen(
            "Entry",
            self.experiment,
            *self.params,
            *(value for value in self.params.values() if isinstance(value, str)),
        )
        if (self.timing is None) == (self.reason is None):
            raise RecordingError(
                f"Entry {self.key}: expected either a timing or the reason for its absence. The "
                "file is damaged."
            )
        if self.date == "":
            raise RecordingError(
                f"Entry {self.key}: the date is empty; expected one, or null for that of the file. "
                "The file is damaged."
            )

    @classmethod
    def unread(cls, content: Mapping[str, Any]) -> Entry:
        """Return the entry of a file that ships with gpulab, from its JSON; its timing stays JSON
        until it is asked for, which saves most of the time of loading.
        """
        entry = object.__new__(cls)
        for name in ("experiment", "params", "reason", "date"):
            entry.__dict__[name] = content.get(name)
        entry.__dict__["_unread_timing"] = content["timing"]
        return entry

    if not TYPE_CHECKING:  # else mypy would accept misspelled attributes

        def __getattr__(self, name):
            """Decode the timing of an ``unread`` entry when it is first asked for."""
            if name != "timing" or "_unread_timing" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            content = self.__dict__["_unread_timing"]
            timing = content and Timing.from_dict(content, f"Entry {self.key}.timing")
            self.__dict__["timing"] = timing
            return timing

    @property
    def key(self) -> str:
        """The experiment and its parameters in one line; unique within a recording."""
        return self.experiment + "".join(
            f" {name}={value}" for name, value in sorted(self.params.items())
        )

    @property
    def recorded(self) -> bool:
        """Whether there is a timing."""
        return self.reason is None


@dataclass(frozen=True)
class Recording(Result):
    """Everything that one machine measured in one run of ``gpulab record``.

    Attributes
    ----------
    name : str
        The machine's short name, such as "nvidia-h200".
    environment : Environment
        Device, driver, library versions, date and the command that made it.
    clocks_seen : mapping
        Clock readings in MHz before and after, where the device reports them.
    machine : mapping
        What ``gl.machine()`` reported, for people to read.
    gpulab_version : str
    entries : tuple of Entry
    notes : tuple of str
    """

    schema_version: ClassVar[int] = 1

    name: str
    environment: Environment
    clocks_seen: Mapping[str, float]
    machine: Mapping[str, Any]
    gpulab_version: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two entries for one case, a name that cannot be displayed, and a missing device or
        date, which the badge shows.
        """
        _refuse_unseen("Recording", self.name)
        if not self.environment.device or not self.environment.date:
            raise RecordingError(
                f"Recording {self.name!r}: the device or the date is missing; expected both. The "
                "file is damaged."
            )
        keys: set[str] = set()
        for key in (entry.key for entry in self.entries):
            if key in keys:
                raise RecordingError(
                    f"Recording {self.name!r}: two entries for {shown(key)}; expected one. The "
                    "file is damaged."
                )
            keys.add(key)

    def select(self, experiment: str, /, **params: Parameter) -> tuple[Entry, ...]:
        """Return the recorded entries of an experiment whose parameters include ``params``."""
        return tuple(
            entry
            for entry in self.entries
            if entry.experiment == experiment
            and entry.recorded
            and all(entry.params.get(name) == value for name, value in params.items())
        )

    def find(self, experiment: str, /, **params: Parameter) -> Entry | None:
        """Return the one recorded entry with exactly these parameters, or None: "not recorded
        yet".
        """
        return next(
            (
                entry
                for entry in self.select(experiment, **params)
                if len(entry.params) == len(params)
            ),
            None,
        )

    def missing(self) -> tuple[Entry, ...]:
        """Return the entries that were planned and not recorded, with their reasons."""
        return tuple(entry for entry in self.entries if not entry.recorded)

    def evidence(
        self, entry: Entry | None = None, *, experiment: str | None = None, **params: Parameter
    ) -> Evidence:
        """Return the evidence of one entry, of an experiment, or of the whole recording. The date
        of an experiment is that of the last of its entries with these parameters.
        """
        timing = entry.timing if entry is not None else None
        date = entry.date if entry is not None else None
        if experiment is not None:
            date = max((e.date for e in self.select(experiment, **params) if e.date), default=None)
        environment = self.environment if date is None else replace(self.environment, date=date)
        return Evidence.recorded(
            environment, timing.sample_count if timing else None, self._tf32(entry, timing)
        )

    def _tf32(self, entry: Entry | None, timing: Timing | None) -> str | None:
        """Return a remark that TF32 was allowed, if an entry of float32 is faster than the device's
        peak in float32; else None.
        """
        from gpulab.devices import datasheets

        part = datasheets.part(self.environment.device)
        if (
            entry is None
            or timing is None
            or not timing.flops
            or part is None
            or "float32" not in entry.params.values()
        ):
            return None
        above = timing.flops > part.peaks()["float32"][0] * timing.median_seconds
        return "float32 with TF32 allowed for convolutions by default" if above else None

    def caption(self) -> str:
        """Return the badge line under the table."""
        return self.evidence().sentence

    def __repr__(self) -> str:
        done = sum(entry.recorded for entry in self.entries)
        return (
            f"<recording {self.name!r}: {self.environment.device}, {self.environment.date[:10]}, "
            f"{done} of {len(self.entries)} entries>"
        )

    def table(self) -> Table:
        """Return one row per entry: the case, its time, its rates."""
        return (
            *("case", "median", "95 % interval", "visits"),
            *("arithmetic rate", "effective bandwidth"),
        ), [_row(entry) for entry in self.entries]


# The rule of ``_validate.arguments`` for a recording.
RECORDING = partial(
    instance,
    kind=Recording,
    expected="the result of gl.recordings.load(name) or gl.recordings.read(path). Pass one.",
)


def refuse_unusable(entries: Iterable[Entry]) -> None:
    """Refuse an entry of a known experiment that lacks a parameter, or has one of another type.

    Raises
    ------
    RecordingError
        If one does.
    """
    for entry in entries:
        needed = PARAMETERS.get(entry.experiment, ())
        for name in (*needed, *(_WHOLE & entry.params.keys() if needed else ())):
            value = entry.params.get(name)
            if not (
                isinstance(value, int) and 1 <= value <= _MOST
                if name in _WHOLE
                else isinstance(value, str)
            ):
                expected = "a whole number from 1" if name in _WHOLE else "a word"
                raise RecordingError(
                    f"recordings.read: the case {shown(entry.key)} has {shown(name)} = "
                    f"{shown(value)}; expected {expected}. The file is damaged or was written by "
                    "another version."
                )


def _refuse_unseen(what: str, *texts: str) -> None:
    """Refuse names with control characters: a terminal would obey them wherever a case is
    listed.
    """
    unseen = next((text for text in texts if not text.isprintable()), None)
    if unseen is not None:
        raise RecordingError(
            f"{what}: the name {shown(unseen)} contains characters that cannot be displayed; "
            "expected words and numbers. The file is damaged."
        )


def _row(entry: Entry) -> tuple[str, ...]:
    timing = entry.timing
    if timing is None:
        return entry.key, f"not recorded: {entry.reason}", "", "", "", ""
    ends = timing.interval_seconds
    rates = (
        "" if amount is None else form(amount / timing.median_seconds)
        for amount, form in (
            (timing.flops, format_flops_per_second),
            (timing.nbytes, format_bytes_per_second),
        )
    )
    return (
        entry.key,
        format_seconds(timing.median_seconds),
        "none" if ends is None else " to ".join(map(format_seconds, ends)),
        str(max(1, len(timing.visits_seconds))),
        *rates,
    )


def reported_accelerator(recording: Recording) -> Mapping[str, Any]:
    """Return what the machine reported about the recorded accelerator: of several accelerators, the
    one with its name, else the first; an empty mapping if there is none.
    """
    reported = recording.machine.get("accelerators")
    each = (
        [one for one in reported if isinstance(one, Mapping)]
        if isinstance(reported, (list, tuple))
        else []
    )
    return next(
        (one for one in each if one.get("name") == recording.environment.device),
        each[0] if each else {},
    )


def thin(values: np.ndarray, keep: int = KEPT_SAMPLES) -> np.ndarray:
    """Return at most ``keep`` values at evenly spaced positions, in their order; samples stay
    evenly spaced in time.
    """
    if len(values) <= keep:
        return values
    kept: np.ndarray = values[np.linspace(0, len(values) - 1, keep).round().astype(int)]
    return kept
