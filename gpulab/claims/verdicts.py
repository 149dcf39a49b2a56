"""A claim with its source, the recorded ratios that support or contradict it, and the verdict."""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from gpulab.evidence import Badge, Evidence
from gpulab.results import Result
from gpulab.units import format_ratio, format_speedup, plural


class Verdict(str, enum.Enum):
    """What a recording shows about a claim."""

    HOLDS = "holds"
    PARTLY = "holds partly"
    FAILS = "fails"
    UNDECIDED = "not decided"
    MISSING = "not recorded yet"

    def __str__(self) -> str:
        return self.value


class Source(NamedTuple):
    """Where claims were published.

    Attributes
    ----------
    key, title, authors, url : str
    year : int or None
        None for a page that is kept up to date.
    """

    key: str
    title: str
    authors: str
    year: int | None
    url: str


class Claim(NamedTuple):
    """One published sentence, read as a ratio of two times.

    Attributes
    ----------
    key : str
    theme : str
        The heading under which the ledger lists it.
    sentence : str
        The claim, paraphrased.
    reading : str
        The ratio as which it is read, "A / B": by default the time without the technique divided by
        the time with it.
    source : Source
    where : str
        The section of the source.
    about : str
        "gpu", "cpu" or "any": the devices that it applies to.
    low, high : float
        The range of ratios that the claim promises; (1, inf) means only "faster".
    of_each : bool
        True if it is promised for each case, False if one case that reaches it is enough ("up to").
    """

    key: str
    theme: str
    sentence: str
    reading: str
    source: Source
    where: str
    about: str
    low: float
    high: float
    of_each: bool

    @property
    def promised(self) -> str:
        """The promise in a few words."""
        if self.low == 1 and math.isinf(self.high):
            return "more than 1x"
        if math.isinf(self.high):
            return f"{'at least' if self.of_each else 'up to'} {format_ratio(self.low)}"
        if self.low <= 0:
            return f"at most {format_ratio(self.high)}"
        return f"{format_ratio(self.low)} to {format_ratio(self.high)}"


class Comparison(NamedTuple):
    """The ratio of two recorded times.

    Attributes
    ----------
    case : str
        What both have in common.
    ratio : float
        The first median divided by the second.
    interval : (float, float) or None
        From both 95 % intervals, each end from the least favorable pair, so wider than 95 %. None
        where one of them is missing.
    first, second : str
        The keys of the entries.
    """

    case: str
    ratio: float
    interval: tuple[float, float] | None
    first: str
    second: str

    def __str__(self) -> str:
        return format_speedup(self.ratio, self.interval)


@dataclass(frozen=True)
class Finding(Result):
    """What one recording shows about one claim.

    Attributes
    ----------
    claim : Claim
    recording : str
        The machine's short name; "" where no recording is of a device that the claim applies to.
    verdict : Verdict
    comparisons : tuple of Comparison
        Ordered from the smallest ratio to the largest.
    agreeing, disagreeing : int
        How many have their whole interval inside the promised range, and outside it; the rest
        overlap its limit or have no interval.
    evidence : Evidence or None
        Of the recording.
    """

    claim: Claim
    recording: str
    verdict: Verdict
    comparisons: tuple[Comparison, ...]
    agreeing: int
    disagreeing: int
    evidence: Evidence | None

    rows_from = "comparisons"
    columns: ClassVar = {
        "{0.claim.key}: {0.claim.promised}": lambda one: one.case,
        "ratio": str,
    }

    @property
    def summary(self) -> str:
        """The recorded ratios in a few words."""
        if not self.comparisons:
            return "not recorded yet"
        least, most = self.comparisons[0], self.comparisons[-1]
        if len(self.comparisons) == 1:
            return f"{least} ({least.case})" if least.case else str(least)
        return (
            f"{len(self.comparisons)} cases, {least} ({least.case}) to {most} ({most.case}); "
            f"{self.agreeing} as promised"
        )

    def __repr__(self) -> str:
        return f"<{self.claim.key} on {self.recording or 'no machine'}: {self.verdict}>"


@dataclass(frozen=True)
class Ledger(Result):
    """All claims compared with all recordings.

    Attributes
    ----------
    findings : tuple of Finding
    """

    findings: tuple[Finding, ...]

    rows_from = "findings"
    columns: ClassVar = {
        "claim": lambda one: one.claim.sentence,
        "source": lambda one: f"{one.claim.source.title}, {one.claim.where}",
        "promised": lambda one: one.claim.promised,
        "machine": lambda one: one.recording or "none",
        "evidence": lambda one: Badge.RECORDED.value,
        "verdict": lambda one: one.verdict,
        "recorded ratios": lambda one: one.summary,
    }

    def of(self, key: str) -> tuple[Finding, ...]:
        """Return the findings on one claim, one per machine."""
        return tuple(finding for finding in self.findings if finding.claim.key == key)

    def counts(self) -> dict[Verdict, int]:
        """Return how often each verdict was given."""
        counted = Counter(finding.verdict for finding in self.findings)
        return {verdict: counted[verdict] for verdict in Verdict}

    def __repr__(self) -> str:
        words = ", ".join(f"{count} {verdict}" for verdict, count in self.counts().items() if count)
        return (
            f"<ledger of {plural(len({f.claim.key for f in self.findings}), 'claim')}, "
            f"{plural(len(self.findings), 'verdict')}: {words}>"
        )
