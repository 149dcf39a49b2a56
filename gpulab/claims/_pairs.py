"""Find the entries of a recording that differ in one parameter, and compute the ratios of their
times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from gpulab.claims.results import Comparison
from gpulab.recordings import Entry, Recording, Timing
from gpulab.recordings._schema import Parameter
from gpulab.units import format_bytes

# Some work per call, by which times are divided before they are compared: FLOPs, bytes, items; None
# or 0 where it was not recorded.
Amount = Callable[[Entry], float | None]
Keep = Callable[[Mapping[str, Parameter]], bool]
Compare = Callable[[Recording, Recording | None], list[Comparison]]
_BYTES = ("nbytes", "parameter_bytes")


def compared(case: str, first: Entry, second: Entry, scale: float = 1.0) -> Comparison:
    """Return the first time over the second, times ``scale``, with the widest interval that both
    allow.
    """
    ratio, ends = _timing(first).over(_timing(second))
    interval = None if ends is None else (scale * ends[0], scale * ends[1])
    return Comparison(case, scale * ratio, interval, first.key, second.key)


def _timing(entry: Entry) -> Timing:
    assert entry.timing is not None, "only recorded entries are compared"
    return entry.timing


def label(params: Mapping[str, Parameter], instead: Mapping[str, Parameter] | None = None) -> str:
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


def pairs(
    experiment: str,
    first: Mapping[str, Parameter],
    second: Mapping[str, Parameter],
    *,
    keep: Keep | None = None,
    per: Amount | None = None,
) -> Compare:
    """Return what compares each entry that has the parameters ``first`` with the one that has
    ``second`` instead, all others equal.

    Parameters
    ----------
    experiment : str
    first, second : mapping
        Of the same names.
    keep : callable, optional
        ``keep(params of the first)``: whether the case belongs to the claim.
    per : callable, optional
        The work of an entry; the ratio is then of times per work, and an entry without its work is
        not compared.
    """

    def compare(recording: Recording, cpu: Recording | None) -> list[Comparison]:
        found = []
        for entry in recording.select(experiment, **first):
            if keep is not None and not keep(entry.params):
                continue
            other = recording.find(experiment, **{**entry.params, **second})
            if other is None or other.key == entry.key:
                continue
            mine, others = (1.0, 1.0) if per is None else (per(entry), per(other))
            if mine and others:
                found.append(compared(label(entry.params, second), entry, other, others / mine))
        return found

    return compare


def beside_cpu(experiment: str, keep: Keep | None = None, *, largest: bool = False) -> Compare:
    """Return what compares each entry with the same work on the recorded CPU.

    Parameters
    ----------
    experiment : str
    keep : callable, optional
        ``keep(params)``: whether the case belongs to the claim.
    largest : bool
        Of each workload only the largest size that both have.
    """

    def compare(recording: Recording, cpu: Recording | None) -> list[Comparison]:
        # both of one box may have its name
        if cpu is None or recording.environment.device_kind == "cpu":
            return []
        found: list[tuple[Entry, Entry]] = []
        for entry in recording.select(experiment):
            there = (
                cpu.find(experiment, **entry.params) if keep is None or keep(entry.params) else None
            )
            if there is not None:
                found.append((there, entry))
        if largest:
            sizes: dict[Parameter, float] = {}
            for _, entry in found:
                workload = entry.params["workload"]
                sizes[workload] = max(sizes.get(workload, 0.0), items(entry))
            found = [
                (there, entry)
                for there, entry in found
                if items(entry) == sizes[entry.params["workload"]]
            ]
        return [
            compared(f"{label(entry.params)}, vs. {cpu.name}", there, entry)
            for there, entry in found
        ]

    return compare


def over_median(
    experiment: str, part: Callable[[Timing], float | None], keep: Keep | None = None
) -> Compare:
    """Return what sets a figure of an entry, such as its first call, over its own median; the
    interval is the median's alone.
    """
    return _inside(experiment, part, keep, lambda value, median: value / median)


def median_over(
    experiment: str, part: Callable[[Timing], float | None], keep: Keep | None = None
) -> Compare:
    """Return what sets an entry's median over another of its figures; the interval is the median's
    alone.
    """
    return _inside(experiment, part, keep, lambda value, median: median / value)


def _inside(
    experiment: str,
    part: Callable[[Timing], float | None],
    keep: Keep | None,
    ratio: Callable[[float, float], float],
) -> Compare:
    def compare(recording: Recording, cpu: Recording | None) -> list[Comparison]:
        found = []
        for entry in recording.select(experiment):
            timing = _timing(entry)
            value = part(timing) if keep is None or keep(entry.params) else None
            if not value:
                continue
            ends = timing.interval_seconds
            sides = (
                None if ends is None or ends[0] <= 0 else sorted(ratio(value, end) for end in ends)
            )
            interval = None if sides is None else (sides[0], sides[1])
            found.append(
                Comparison(
                    label(entry.params),
                    ratio(value, timing.median_seconds),
                    interval,
                    entry.key,
                    entry.key,
                )
            )
        return found

    return compare


def several(*parts: Compare) -> Compare:
    """Return what several comparisons find together."""
    return lambda recording, cpu: [one for part in parts for one in part(recording, cpu)]


def average(part: Compare) -> Compare:
    """Return what sets the geometric mean of all cases in place of the cases: for a promise of an
    average.

    The interval is the mean of the lower and of the upper ends, so wider than that of a mean whose
    cases err apart; None where a case has none.
    """

    def compare(recording: Recording, cpu: Recording | None) -> list[Comparison]:
        found = part(recording, cpu)
        if not found:
            return []
        ends = [one.interval for one in found if one.interval is not None]
        low, high = (_mean(end) for end in zip(*ends, strict=True)) if ends else (0.0, 0.0)
        mean = statistics.geometric_mean(one.ratio for one in found)
        case = f"geometric mean of {len(found)} case{'s' if len(found) != 1 else ''}"
        keys = (" and ".join(getattr(one, side) for one in found) for side in ("first", "second"))
        return [Comparison(case, mean, (low, high) if len(ends) == len(found) else None, *keys)]

    return compare


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean; 0 where one of them is, which an interval may reach down to."""
    return statistics.geometric_mean(ratios) if all(ratios) else 0.0


def only(params: Mapping[str, tuple[Parameter, ...]]) -> Keep:
    """Return what keeps the cases whose parameters are among these."""
    return lambda given: all(given.get(name) in values for name, values in params.items())


def flops(entry: Entry) -> float | None:
    """Return the arithmetic of a call; None where it was not recorded."""
    return _timing(entry).flops


def nbytes(entry: Entry) -> float:
    """Return the bytes of a call, as the entry's parameters give them."""
    return float(entry.params["nbytes"])


def items(entry: Entry) -> float:
    """Return the size of a call, such as the items of a batch."""
    return float(entry.params["n"])
