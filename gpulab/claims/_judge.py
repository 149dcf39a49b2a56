"""The list of claims, the ratios of recorded times that they are about, and the verdicts.

Verdicts are mechanical, from the intervals alone. A rule, one ``[[claims.compare]]`` of
``claims.toml`` where its words are explained, finds the entries of a recording and compares them.
"""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpulab import recordings
from gpulab._validate import items as given_items
from gpulab.claims.verdicts import Claim, Comparison, Finding, Ledger, Source, Verdict
from gpulab.recordings import Entry, Recording, Timing
from gpulab.recordings.schema import Parameter, require_recordings
from gpulab.units import format_bytes, plural

Rule = Mapping[str, Any]
_BYTES = ("nbytes", "parameter_bytes")
# "Faster" with nothing more said: a gain that is surely below this is none.
NO_GAIN = 1.02


@functools.cache
def _listed() -> list[tuple[Claim, Rule]]:
    """Return each claim of ``claims.toml``, in the order of the ledger, with its table there."""
    file = pathlib.Path(__file__).with_name("claims.toml")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    sources = {
        key: Source(key, one["title"], one["authors"], one.get("year"), one["url"])
        for key, one in content["sources"].items()
    }
    listed = []
    for one in content["claims"]:
        low, high = one.get("range", (1, math.inf))
        claim = Claim(
            one["key"],
            one["theme"],
            one["sentence"],
            one["reading"],
            sources[one["source"]],
            one["where"],
            one["about"],
            low,
            high,
            not one.get("best_case", False),
        )
        listed.append((claim, one))
    return listed


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
    many = (
        list(recordings.readable().values())
        if given is None
        else given_items("claims.ledger", "given", given)
    )
    require_recordings("claims.ledger", *many)
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
    """Return whether the whole interval lies inside what was promised (True), outside (False), or
    across the line (None).
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

    A promise of each case holds where none contradicts and at least half agree, and fails where
    none agrees and at least half contradict. A promise of the best case holds where one reaches it,
    partly where one gains at all, and fails where every case contradicts: one of which the interval
    tells nothing may be the best.
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
    """Yield what one rule finds in a recording; ``cpu`` is the recorded CPU beside a GPU."""
    if "ratio" in rule:
        return _figures(rule, recording)
    return _beside_cpu(rule, recording, cpu) if "cpu" in rule else _pairs(rule, recording)


def average(cases: Sequence[Comparison]) -> list[Comparison]:
    """Return the geometric mean of all cases in place of the cases; nothing where there is none.

    The interval is the mean of the lower and of the upper ends, so wider than that of a mean whose
    cases err apart; None where a case has none.
    """
    if not cases:
        return []
    ends = [one.interval for one in cases if one.interval is not None]
    interval = None
    if len(ends) == len(cases):
        # an interval may reach down to 0, of which no geometric mean is computed
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
    """Yield each entry over the one that has the parameters ``second`` instead."""
    values = [_values(value) for value in rule["second"].values()]
    for chosen in itertools.product(*values):
        second = dict(zip(rule["second"], chosen, strict=True))
        for entry in _entries(rule, recording):
            other = recording.find(rule["experiment"], **{**entry.params, **second})
            if other is None or other.key == entry.key:
                continue
            works = [_work(one, rule.get("per")) for one in (entry, other)]
            if all(works):  # an entry whose work was not recorded is not compared
                yield _over(_label(entry.params, second), entry, other, works[1] / works[0])


def _beside_cpu(rule: Rule, recording: Recording, cpu: Recording | None) -> Iterator[Comparison]:
    """Yield the recorded CPU's time over that of each entry of a GPU."""
    # both of one machine may have its name
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
    """Yield one figure of an entry's timing over another; the interval is the median's alone."""
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
    """Return an entry's work per call, by which its time is divided; 0 where it is unknown."""
    if per is None:
        return 1.0
    return float((_timing(entry).flops if per == "flops" else entry.params[per]) or 0)


def _timing(entry: Entry) -> Timing:
    assert entry.timing is not None, "only recorded entries are compared"
    return entry.timing


def _over(case: str, first: Entry, second: Entry, scale: float = 1.0) -> Comparison:
    ratio, ends = _timing(first).over(_timing(second))
    interval = None if ends is None else (scale * ends[0], scale * ends[1])
    return Comparison(case, scale * ratio, interval, first.key, second.key)


def _label(params: Mapping[str, Parameter], instead: Mapping[str, Parameter] | None = None) -> str:
    """Return a case's parameters in words; of those that the comparison changes only the counts, as
    "n 64 vs. 128".
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
