"""A claim with its source, the recorded ratios that support or contradict it, and the verdict; and
``gpulab claims``: the ledger of all verdicts on the command line, or as a page of Markdown.
"""

from __future__ import annotations

import argparse
import enum
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from gpulab import recordings
from gpulab._files import write_atomically
from gpulab._validate import expanded, writing
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


# -- the command ---------------------------------------------------------------------

_HEAD = """# The claim ledger

What has been published about GPU acceleration, and what recorded machines show about it. `gpulab
claims --out docs/claims.md` wrote this page; no verdict is written by hand, and every verdict
needs a recording.

A claim is read as a ratio of two recorded times (the column "read as"; "A / B" is the time of A
divided by the time of B). The interval of a ratio joins the 95 % intervals of both times at their
least favorable ends. A case agrees where its whole interval lies inside the promised range, and
contradicts where all of it lies outside; "more than 1x" is contradicted by a gain that is
certainly below 2 %. A promise for each case **holds** where none contradicts and at least half
agree, **fails** where none agrees and at least half contradict, and **holds partly** where some
agree and some contradict. A promise of an average is treated as one case, the geometric mean of
all. A promise of the best case ("up to") holds where one case reaches it, holds partly where at
least one case gains, and fails where every case contradicts. Where the intervals do not decide,
the verdict is **not decided**. Claims are about the hardware of their time: one that fails here
may be true on the hardware for which it was made.
"""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "claims",
        help="compare published claims with recorded machines",
        description="Compare published claims about GPU acceleration with recorded machines, and "
        "write the ledger as a page.",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the page to write (Markdown); without it, one line per claim is printed",
    )
    parser.add_argument(
        "--recording",
        nargs="+",
        metavar="FILE",
        help="recordings to use (default: those that `gpulab recordings` lists)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab claims``; return the exit code."""
    from gpulab.claims import ledger

    chosen = (
        [recordings.read(name) for name in arguments.recording] if arguments.recording else None
    )
    judged = ledger(chosen)
    if not arguments.out:
        for finding in judged.findings:
            print(
                f"{finding.verdict!s:16} {finding.claim.key:22} {finding.recording or '-':22} "
                f"{finding.summary}"
            )
        print(repr(judged))
        return 0
    target = expanded("claims", arguments.out)
    with writing("claims", target):
        write_atomically(target, _page(judged).encode())
    print(f"{judged!r} in {target}")
    return 0


def _page(ledger: Ledger) -> str:
    """Return the ledger as a page of Markdown."""
    claims = {finding.claim.key: finding.claim for finding in ledger.findings}
    counts = ", ".join(f"{count} {verdict}" for verdict, count in ledger.counts().items() if count)
    verdicts = f"{len(ledger.findings)} verdicts (one for each machine that a claim applies to)"
    machines = dict.fromkeys(
        f"- `{one.recording}`: {one.evidence.sentence}"
        for one in ledger.findings
        if one.evidence is not None
    )
    parts = [_HEAD, f"{len(claims)} claims, {verdicts}: {counts}.\n"]
    parts.append("\n".join(machines or ["No machine is recorded yet."]) + "\n")
    for theme in dict.fromkeys(claim.theme for claim in claims.values()):
        parts.append(f"## {theme}\n")
        parts.append("| claim | read as | promised | what the recordings show |\n|---|---|---|---|")
        parts.append(
            "\n".join(
                _row(claim, ledger.of(claim.key))
                for claim in claims.values()
                if claim.theme == theme
            )
            + "\n"
        )
    parts.append("## Sources\n")
    sources = {claim.source.key: claim.source for claim in claims.values()}
    parts += [
        f"- {source.authors}: [{source.title}]({source.url})"
        f"{'' if source.year is None else f', {source.year}'}"
        for source in sources.values()
    ]
    return "\n".join(parts) + "\n"


def _row(claim: Claim, findings: Sequence[Finding]) -> str:
    verdicts = "<br>".join(_verdict(finding) for finding in findings)
    source = f"[{claim.source.title}]({claim.source.url}), {claim.where}"
    return f"| {claim.sentence} <br> {source} | {claim.reading} | {claim.promised} | {verdicts} |"


def _verdict(finding: Finding) -> str:
    if not finding.comparisons:
        machine = f"`{finding.recording}`" if finding.recording else "no machine of this kind"
        return f"{finding.verdict} ({machine})"
    return f"**{finding.verdict}** (`{finding.recording}`): {finding.summary}"
