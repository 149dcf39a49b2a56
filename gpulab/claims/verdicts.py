"""A claim with its source, the recorded ratios that support or contradict it, and the verdict; and
``gpulab claims``: the ledger of all verdicts on the command line, or as a page of Markdown.

Verdicts are computed, from the intervals alone. A rule is one table ``[[claims.compare]]`` of
``claims.toml``, which explains its keys. It selects entries of a recording and compares them.
"""

from __future__ import annotations

import argparse
import enum
import functools
import itertools
import math
import pathlib
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from gpulab import recordings
from gpulab._files import write_atomically
from gpulab._validate import expanded, items, word, writing
from gpulab.evidence import Badge, Evidence
from gpulab.recordings import Entry, Recording, Timing
from gpulab.recordings.schema import RECORDING, Parameter
from gpulab.results import Result
from gpulab.units import format_bytes, format_ratio, format_speedup, plural

Rule = Mapping[str, Any]
_BYTES = ("nbytes", "parameter_bytes")
# For a claim that says only "faster": a ratio whose whole interval is below this is not a gain.
NO_GAIN = 1.02
# A time is mostly the host's if more than this share of it passes until the call has returned.
MOST_LAUNCHING = 0.5


class Verdict(enum.StrEnum):
    """What a recording shows about a claim."""

    HOLDS = "holds"
    PARTLY = "holds partly"
    FAILS = "fails"
    UNDECIDED = "not decided"
    MISSING = "not recorded yet"


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
        The ratio that stands for the claim, "A / B": by default the time without the technique
        divided by the time with it.
    source : Source
    where : str
        The section of the source.
    about : str
        "gpu", "cpu" or "any": the devices that it applies to.
    low, high : float
        The range of ratios that the claim promises; (1, inf) means only "faster".
    of_each : bool
        True if the range is promised for each case, False if one case that reaches it is enough
        ("up to").
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
        The compared case in words, such as its parameters.
    ratio : float
        The first median divided by the second.
    interval : (float, float) or None
        The interval of the ratio. Each end comes from the least favorable ends of both 95 %
        intervals, so it is wider than a 95 % interval. None if one of them is missing, or if the
        claim is about the device alone and one of the times is mostly that of launching.
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
        How many comparisons have their whole interval inside the promised range, and how many
        outside it. The others overlap a limit of the range or have no interval.
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
        """Return the findings on one claim, one per machine.

        Raises
        ------
        InputError
            If there is no claim with this key.
        """
        word("Ledger.of", "key", key, dict.fromkeys(one.claim.key for one in self.findings))
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


# -- the verdicts --------------------------------------------------------------------


@functools.cache
def _listed() -> list[tuple[Claim, Rule]]:
    """Return each claim of ``claims.toml``, in the order of the ledger, with its table there."""
    file = pathlib.Path(__file__).with_name("claims.toml")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    sources = {key: Source(key, **{"year": None, **one}) for key, one in content["sources"].items()}
    return [
        (
            Claim(
                one["key"],
                one["theme"],
                one["sentence"],
                one["reading"],
                sources[one["source"]],
                one["where"],
                one["about"],
                one["range"][0],
                one["range"][1],
                not one.get("best_case", False),
            ),
            one,
        )
        for one in ({"range": (1, math.inf), **table} for table in content["claims"])
    ]


def ledger(given: Iterable[Recording] | None = None) -> Ledger:
    """Return every claim compared with every recording of a device that it applies to.

    Parameters
    ----------
    given : recordings, optional
        By default all that can be read (``gl.recordings.readable()``). GPUs are compared with the
        first recording of a CPU.

    Raises
    ------
    InputError
        If one of them is not a recording.
    """
    many = [
        RECORDING("ledger", "given", one)
        for one in (
            recordings.readable().values() if given is None else items("ledger", "given", given)
        )
    ]
    cpu = next((one for one in many if one.environment.device_kind == "cpu"), None)
    findings = []
    for claim, table in _listed():
        fitting = [
            recording
            for recording in many
            if claim.about == "any"
            or (claim.about == "cpu") == (recording.environment.device_kind == "cpu")
        ]
        findings += [_finding(claim, table, recording, cpu) for recording in fitting] or [
            Finding(claim, "", Verdict.MISSING, (), 0, 0, None)
        ]
    return Ledger(tuple(findings))


def _finding(claim: Claim, table: Rule, recording: Recording, cpu: Recording | None) -> Finding:
    """Return what one recording shows about one claim."""
    cases = [case for rule in table["compare"] for case in compared(rule, recording, cpu)]
    if table.get("average"):
        cases = average(cases)
    cases.sort(key=lambda case: case.ratio)
    states = [_inside(claim, case) for case in cases]
    return Finding(
        claim,
        recording.name,
        _verdict(claim, cases, states),
        tuple(cases),
        states.count(True),
        states.count(False),
        recording.evidence(),
    )


def _inside(claim: Claim, one: Comparison) -> bool | None:
    """Return True if the whole interval lies inside the promised range, False if it lies outside,
    and None if it overlaps a limit or is missing.
    """
    if one.interval is None:
        return None
    low, high = one.interval
    if claim.low == 1 and math.isinf(claim.high):
        return False if high < NO_GAIN else True if low > 1 else None
    if claim.low <= low and high <= claim.high:
        return True
    return False if high < claim.low or low > claim.high else None


def _verdict(claim: Claim, cases: Sequence[Comparison], states: Sequence[bool | None]) -> Verdict:
    """Return the verdict.

    A promise for each case holds if no case contradicts it and at least half agree. It holds partly
    if some agree and some contradict, and fails if none agrees and at least half contradict.

    A promise of the best case holds if one case reaches it, and holds partly if one case gains at
    all. It fails only if every case contradicts it, since a case whose interval does not decide may
    be the best one.
    """
    agree, against, half = states.count(True), states.count(False), len(states) / 2
    if not cases:
        return Verdict.MISSING
    rules = [
        (Verdict.PARTLY, agree > 0 and against > 0),
        (Verdict.HOLDS, agree > 0 and agree >= half),
        (Verdict.FAILS, agree == 0 and against >= half),
    ]
    if not claim.of_each:
        rules = [
            (Verdict.HOLDS, agree > 0),
            (Verdict.PARTLY, any(one.interval and one.interval[0] > NO_GAIN for one in cases)),
            (Verdict.FAILS, against == len(states)),
        ]
    return next((verdict for verdict, applies in rules if applies), Verdict.UNDECIDED)


def compared(rule: Rule, recording: Recording, cpu: Recording | None) -> Iterator[Comparison]:
    """Yield the comparisons that a rule makes in a recording. ``cpu`` is the recording of the CPU
    with which a GPU is compared.
    """
    if "ratio" in rule:
        return _figures(rule, recording)
    return _beside_cpu(rule, recording, cpu) if "cpu" in rule else _pairs(rule, recording)


def average(cases: Sequence[Comparison]) -> list[Comparison]:
    """Return the geometric mean of all cases as a single case; an empty list if there are no cases.

    The ends of the interval are the geometric means of the lower ends and of the upper ends. It is
    wider than the interval of a mean of cases with independent errors. It is None if a case has no
    interval.
    """
    if not cases:
        return []
    ends = [one.interval for one in cases if one.interval is not None]
    interval = None
    if len(ends) == len(cases):
        # an interval may reach down to 0, where ``geometric_mean`` may raise an error
        low, high = (
            statistics.geometric_mean(end) if all(end) else 0.0 for end in zip(*ends, strict=True)
        )
        interval = (low, high)
    return [
        Comparison(
            f"geometric mean of {plural(len(cases), 'case')}",
            statistics.geometric_mean(one.ratio for one in cases),
            interval,
            " and ".join(one.first for one in cases),
            " and ".join(one.second for one in cases),
        )
    ]


def _pairs(rule: Rule, recording: Recording) -> Iterator[Comparison]:
    """Yield the ratio of each entry's time to that of the entry that has the parameters ``second``
    instead of its own.
    """
    values = [_values(value) for value in rule["second"].values()]
    for chosen in itertools.product(*values):
        second = dict(zip(rule["second"], chosen, strict=True))
        for entry in _entries(rule, recording):
            other = recording.find(rule["experiment"], **{**entry.params, **second})
            if other is None or other.key == entry.key:
                continue
            works = [_work(one, rule.get("per")) for one in (entry, other)]
            if all(works):  # an entry whose work was not recorded is not compared
                one = _over(_label(entry.params, second), entry, other, works[1] / works[0])
                # a CPU's call returns when the work is done
                launching = (
                    rule.get("on_device")
                    and recording.environment.device_kind != "cpu"
                    and any(
                        timing.launch_seconds > MOST_LAUNCHING * timing.median_seconds
                        for timing in map(_timing, (entry, other))
                    )
                )
                yield (
                    one._replace(
                        case=", ".join(filter(None, (one.case, "mostly launching"))), interval=None
                    )
                    if launching
                    else one
                )


def _beside_cpu(rule: Rule, recording: Recording, cpu: Recording | None) -> Iterator[Comparison]:
    """Yield, for each entry of a GPU, the ratio of the recorded CPU's time to the GPU's."""
    # compare the kinds, not the names: the recordings of a machine's CPU and GPU may both have its
    # name
    if cpu is None or recording.environment.device_kind == "cpu":
        return
    both = [
        (on_cpu, entry)
        for entry in _entries(rule, recording)
        if (on_cpu := cpu.find(rule["experiment"], **entry.params)) is not None
    ]
    largest: dict[Parameter, float] = {}
    for _, entry in both:
        workload = entry.params["workload"]
        largest[workload] = max(largest.get(workload, 0.0), _work(entry, "n"))
    for on_cpu, entry in both:
        if rule["cpu"] == "every size" or _work(entry, "n") == largest[entry.params["workload"]]:
            yield _over(f"{_label(entry.params)}, vs. {cpu.name}", on_cpu, entry)


def _figures(rule: Rule, recording: Recording) -> Iterator[Comparison]:
    """Yield the ratio of two figures of an entry's timing, the median and another one. The interval
    is the median's alone, since only the median has one.
    """
    figure = next(name for name in rule["ratio"] if name != "median_seconds")
    for entry in _entries(rule, recording):
        timing = _timing(entry)
        value, ends = getattr(timing, figure), timing.interval_seconds
        if value:
            medians = [timing.median_seconds, *(ends if ends is not None and ends[0] > 0 else ())]
            is_below = rule["ratio"][1] == figure
            ratios = [median / value if is_below else value / median for median in medians]
            interval = (min(ratios), max(ratios)) if len(ratios) > 1 else None
            yield Comparison(_label(entry.params), ratios[0], interval, entry.key, entry.key)


def _entries(rule: Rule, recording: Recording) -> Iterator[Entry]:
    """Yield the recorded entries that a rule begins with."""
    first, least = rule["first"], rule.get("at_least", {})
    for entry in recording.select(rule["experiment"]):
        if all(entry.params.get(name) in _values(value) for name, value in first.items()) and all(
            float(entry.params[name]) >= value for name, value in least.items()
        ):
            yield entry


def _values(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _work(entry: Entry, per: str | None) -> float:
    """Return the work per call by which an entry's time is divided; 0 if it is unknown."""
    if per is None:
        return 1.0
    return float((_timing(entry).flops if per == "flops" else entry.params[per]) or 0)


def _timing(entry: Entry) -> Timing:
    assert entry.timing is not None, "only recorded entries are compared"
    return entry.timing


def _over(case: str, first: Entry, second: Entry, scale: float = 1.0) -> Comparison:
    return Comparison(case, *_timing(first).over(_timing(second), scale), first.key, second.key)


def _label(params: Mapping[str, Parameter], instead: Mapping[str, Parameter] | None = None) -> str:
    """Return a case's parameters in words. Of the parameters that the comparison changes, only
    whole numbers are shown, as "n 64 vs. 128".
    """
    words = []
    for name, value in params.items():
        if instead is None or name not in instead:
            words.append(_word(name, value))
        elif isinstance(value, int) and isinstance(instead[name], int) and instead[name] != value:
            words.append(f"{_word(name, value)} vs. {_word(name, instead[name], named=False)}")
    return ", ".join(words)


def _word(name: str, value: Parameter, named: bool = True) -> str:
    if name in _BYTES and isinstance(value, int):
        return format_bytes(value)
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return f"{name} {text}" if named else text


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
the verdict is **not decided**. A case marked "mostly launching" decides nothing: the claim is about
the device alone, and the host needs more than half of one of the two times to start the work.
Claims are about the hardware of their time: one that fails here may be true on the hardware for
which it was made.

Four limits of these verdicts. A claim without a number is read as "more than 1x", even where it
says "much faster". The interval of a case that was timed in a single visit covers only that moment,
and the pace of a machine can change by more until the next case. The date of a machine is that of
its last run; parts of its recording can be older. Of each CPU whose recording is included, two
cores of a virtual machine were recorded, so a ratio to it overstates the gain over a whole CPU.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab claims`` and its arguments to its parser."""
    parser.description = (
        "Compare published claims about GPU acceleration with recorded machines: print the "
        "verdicts, or write the ledger as a page."
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the page to write (Markdown); without it, one line per claim and machine is printed",
    )
    parser.add_argument(
        "--recording",
        nargs="+",
        metavar="FILE",
        help="recordings to use (default: those that `gpulab recordings` lists)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab claims``; return the exit code."""
    given = arguments.recording
    judged = ledger([recordings.read(name) for name in given] if given else None)
    if not arguments.out:
        for finding in judged.findings:
            print(
                f"{finding.verdict:16} {finding.claim.key:22} {finding.recording or '-':22} "
                f"{finding.summary}"
            )
        print(repr(judged))
        return 0
    target = expanded("claims", arguments.out)
    with writing("claims", target):
        write_atomically(target, _page(judged).encode())
    print(f"{judged!r} in {target}")
    return 0


def _page(judged: Ledger) -> str:
    """Return the ledger as a page of Markdown."""
    claims = {finding.claim.key: finding.claim for finding in judged.findings}
    counts = ", ".join(f"{count} {verdict}" for verdict, count in judged.counts().items() if count)
    machines = dict.fromkeys(
        f"- `{one.recording}`: {one.evidence.sentence}"
        for one in judged.findings
        if one.evidence is not None
    )
    parts = [
        _HEAD,
        f"{len(claims)} claims, {len(judged.findings)} verdicts (one for each machine that a claim "
        f"applies to): {counts}.\n",
        "\n".join(machines or ["No machine is recorded yet."]) + "\n",
    ]
    for theme in dict.fromkeys(claim.theme for claim in claims.values()):
        parts += [
            f"## {theme}\n",
            "| claim | read as | promised | what the recordings show |\n|---|---|---|---|",
            *(
                _row(claim, judged.of(claim.key))
                for claim in claims.values()
                if claim.theme == theme
            ),
            "",
        ]
    parts += [
        "## Sources\n",
        *dict.fromkeys(
            f"- {source.authors}: [{source.title}]({source.url})"
            f"{'' if source.year is None else f', {source.year}'}"
            for source in (claim.source for claim in claims.values())
        ),
    ]
    return "\n".join(parts) + "\n"


def _row(claim: Claim, findings: Sequence[Finding]) -> str:
    verdicts = "<br>".join(_bold(finding) for finding in findings)
    source = f"[{claim.source.title}]({claim.source.url}), {claim.where}"
    return f"| {claim.sentence} <br> {source} | {claim.reading} | {claim.promised} | {verdicts} |"


def _bold(finding: Finding) -> str:
    if not finding.comparisons:
        machine = f"`{finding.recording}`" if finding.recording else "no machine of this kind"
        return f"{finding.verdict} ({machine})"
    return f"**{finding.verdict}** (`{finding.recording}`): {finding.summary}"
