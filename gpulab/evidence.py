"""Where a number came from: the badge, the notes and the environment that each result carries.

Plain data, which can only be checked and shown as text. Three kinds of evidence are never mixed
silently: ``MEASURED`` (this machine, just now), ``RECORDED`` (a named machine, on a date),
``MODELLED`` (a formula).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulab.errors import InputError
from gpulab.results import Result


class Badge(enum.StrEnum):
    """The three kinds of evidence."""

    MEASURED = "MEASURED"
    RECORDED = "RECORDED"
    MODELLED = "MODELLED"


@dataclass(frozen=True)
class Note(Result):
    """A warning about a number.

    Attributes
    ----------
    code : str
        One of the codes in ``NOTE_CODES``.
    sentence : str
        The symptom, its size, and what to do.
    """

    code: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"

    @property
    def symptom(self) -> str:
        """The first sentence, without the advice."""
        return f"{self.sentence.partition('. ')[0].removesuffix('.')}."


NOTE_CODES: Mapping[str, str] = {
    "implausible": "a rate or a gain above what is physically possible",
    "unstable": "the samples or runs do not agree on a single figure",
    "contended": "another process used the device or the cores",
    "stalled": "the process was stopped or lost its core",
    "throttled": "a clock was reduced, or the container's CPU quota held the process back",
    "warm-cache": "the data was already in a cache",
    "slow-first-call": "the first call cost much more than the later ones",
    "too-short": "one call is too short for the clock, so calls were batched",
    "deadline": "sampling ended at the deadline, before the requested precision was reached",
    "no-interval": "no honest interval can be given",
    "stopped": "the work was stopped before its end",
    "turn-taking": "the measurement had to wait for the device, or could not reserve it",
    "disagree": "the results of the compared runs differ by more than their tolerance",
    "no-overlap": "copies and compute did not run at the same time",
    "diverged": "the loss of a training run was no longer a finite number",
    "trained-longer": "some of the compared models were trained for more epochs than the first",
    "rising": "the loss of a training run shot up, far above where it began",
    "interrupted": "the work was interrupted",
    "skipped": "a part was left out, and the sentence says why",
}


@dataclass(frozen=True)
class Environment(Result):
    """The machine and the software that a number was made on; made by ``devices.environment``.

    Attributes
    ----------
    date : str
        UTC, ISO 8601.
    system, processor, device : str
        The operating system; the CPU's name; the name of the device that did the work.
    device_kind : str
        "cpu", "cuda", "rocm", "xpu" or "mps".
    cores : int
        Logical CPUs that this process may use.
    memory_bytes : int
        Main memory that this process may use.
    driver : str or None
        The accelerator driver's version.
    python : str
        Python's version.
    libraries : mapping
        Library name to version, for the installed libraries that matter for a measurement.
    command : str or None
        The command that reproduces the figure, where there is one.
    """

    date: str
    system: str
    processor: str
    cores: int
    memory_bytes: int
    device: str
    device_kind: str
    driver: str | None
    python: str
    libraries: Mapping[str, str]
    command: str | None = None


# What a model's badge shows if its error is not known.
NOT_COMPARED = "no recording to compare with yet"


@dataclass(frozen=True)
class Evidence(Result):
    """The badge of one result, with the details that its kind requires.

    Use the constructors ``measured``, ``recorded`` and ``modelled``: each asks for the details of
    its kind. Evidence that lacks a required one cannot be made.

    Attributes
    ----------
    badge : Badge
    device : str
        Device name; "" for a model that does not belong to a device.
    samples : int or None
        How many samples a measured or recorded figure is based on.
    date, command, driver : str or None
        For a recording: when, how, with which driver.
    libraries : mapping
        For a recording: library versions.
    assumptions, source, known_error : str or None
        For a model: what it assumes, its source, and its error against recordings. For a measured
        or recorded float32 figure on a GPU, ``assumptions`` states whether TF32 was allowed.

    Raises
    ------
    InputError
        If a measured or recorded figure has no device, a recorded one no date, or a modelled one no
        assumptions or no source.
    """

    badge: Badge
    device: str
    samples: int | None = None
    date: str | None = None
    command: str | None = None
    driver: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    assumptions: str | None = None
    source: str | None = None
    known_error: str | None = None

    def __post_init__(self) -> None:
        kinds: dict[Badge, dict[str, str | None]] = {
            Badge.MEASURED: {"device": self.device},
            Badge.RECORDED: {"device": self.device, "date": self.date},
            Badge.MODELLED: {"assumptions": self.assumptions, "source": self.source},
        }
        needs = kinds[self.badge]
        missing = [name for name, value in needs.items() if not value]
        if missing:
            raise InputError(
                f"Evidence: {self.badge} without {' and '.join(missing)}; expected "
                f"{' and '.join(needs)}. State where the number came from."
            )

    @classmethod
    def measured(
        cls,
        device: str,
        samples: int | None = None,
        date: str | None = None,
        precision: str | None = None,
    ) -> Evidence:
        """Return the evidence of a figure that was just measured on this machine."""
        return cls(Badge.MEASURED, device, samples=samples, date=date, assumptions=precision)

    @classmethod
    def recorded(
        cls, environment: Environment, samples: int | None = None, precision: str | None = None
    ) -> Evidence:
        """Return the evidence of a figure that was measured on a named machine on a date."""
        return cls(
            Badge.RECORDED,
            environment.device,
            samples=samples,
            date=environment.date,
            command=environment.command,
            driver=environment.driver,
            libraries=environment.libraries,
            assumptions=precision,
        )

    @classmethod
    def modelled(
        cls, assumptions: str, source: str, known_error: str | None = None, device: str = ""
    ) -> Evidence:
        """Return the evidence of a figure that was computed by a formula or a simulation."""
        return cls(
            Badge.MODELLED, device, assumptions=assumptions, source=source, known_error=known_error
        )

    @property
    def sentence(self) -> str:
        """The badge in one line, as tables and status lines show it."""
        if self.badge is Badge.MODELLED:
            return (
                f"{self.badge} · assumes {self.assumptions} · source: {self.source} · known error: "
                f"{self.known_error or NOT_COMPARED}"
            )
        day = f", {(self.date or '')[:10]}" if self.badge is Badge.RECORDED else ""
        parts = (
            f"{self.badge} on {self.device}{day}",
            f"driver {self.driver}" if self.driver else "",
            ", ".join(f"{name} {version}" for name, version in self.libraries.items()),
            self.assumptions,
            f"n = {self.samples}" if self.samples is not None else "",
            f"by `{self.command}`" if self.command else "",
        )
        return " · ".join(filter(None, parts))

    def __str__(self) -> str:
        return self.sentence


def known_errors(**parts: Evidence) -> str | None:
    """Return the known errors of the models that a figure is based on, each with its name; None
    where none is known.

    Examples
    --------
    >>> link = Evidence.modelled("a straight line", "a data sheet", "3 % at most")
    >>> known_errors(link=link, compute=Evidence.modelled("a roof", "a data sheet"))
    'link: 3 % at most; compute: no recording to compare with yet'
    """
    if all(one.known_error is None for one in parts.values()):
        return None
    return "; ".join(f"{name}: {one.known_error or NOT_COMPARED}" for name, one in parts.items())
