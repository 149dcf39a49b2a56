"""Find the entries of a recording that a claim is about, and compute the ratios of their times.

A rule is one ``[[claims.compare]]`` of ``claims.toml``, where its words are explained.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpulab.claims.results import Comparison
from gpulab.recordings import Entry, Recording, Timing
from gpulab.recordings.schema import Parameter
from gpulab.units import format_bytes, plural

Rule = Mapping[str, Any]
_BYTES = ("nbytes", "parameter_bytes")


def compared(rule: Rule, recording: Recording, cpu: Recording | None) -> list[Comparison]:
    """Return what one rule finds in a recording; ``cpu`` is the recorded CPU beside a GPU."""
    if "ratio" in rule:
        return list(_inside(rule, recording))
    return list(_beside_cpu(rule, recording, cpu) if "cpu" in rule else _pairs(rule, recording))


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
    values = [_listed(value) for value in rule["second"].values()]
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


def _inside(rule: Rule, recording: Recording) -> Iterator[Comparison]:
    """Yield one figure of an entry's timing over another; the interval is the median's alone."""
    figure = next(name for name in rule["ratio"] if name != "median_seconds")

    def ratio(value: float, median: float) -> float:
        return median / value if rule["ratio"][1] == figure else value / median

    for entry in _entries(rule, recording):
        timing = _timing(entry)
        value, ends = getattr(timing, figure), timing.interval_seconds
        if value:
            interval = None
            if ends is not None and ends[0] > 0:
                one, other = (ratio(value, end) for end in ends)
                interval = (min(one, other), max(one, other))
            case, middle = _label(entry.params), ratio(value, timing.median_seconds)
            yield Comparison(case, middle, interval, entry.key, entry.key)


def _entries(rule: Rule, recording: Recording) -> Iterator[Entry]:
    """Yield the recorded entries that a rule begins with."""
    first, least = rule["first"], rule.get("at_least", {})
    for entry in recording.select(rule["experiment"]):
        if all(entry.params.get(name) in _listed(value) for name, value in first.items()) and all(
            float(entry.params[name]) >= value for name, value in least.items()
        ):
            yield entry


def _listed(value: Any) -> Sequence[Any]:
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
