"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from typing import Any
from gpulab.compression import Weighing
from gpulab.lessons import _live
from gpulab.lessons._lighter import Grouping, SparseRace
from gpulab.lessons.content import Never, Unmeasured
from gpulab.units import format_ratio


def _speedup_of_last(weighing: Any) -> Any:
    """Return how many times as fast the last model is as the first."""
    if not isinstance(weighing, Weighing):
        return weighing
    last = weighing.models[-1]
    if last.speedup is None:
        raise Unmeasured("there is nothing to compare with. Weigh two models.")
    return _live.judged(last.speedup, last.speedup_interval, _MASKED_CLOSE, "weighs")

_MASKED_CLOSE, _DEPTHWISE_CLOSE = 1.3, 2.0
# A share at which CSR gains less than this for sure is one at which it is not faster yet: two that are even are no noise.
_EVEN = 1.1


def _break_even(race: SparseRace) -> float:
    rows = race.ascending
    shares = [row.share for row in rows]
    first = len(shares) if race.break_even_share is None else shares.index(race.break_even_share)
    for row, wins in zip(rows[max(first - 1, 0) : first + 1], (False, True) if first else (True,), strict=False):
        if row.ratio_interval is None:  # the last to lose, and the first to win, decide
            raise Unmeasured(_live.DISTURBED.format("races"))
        low, high = row.ratio_interval
        if low <= 1 if wins else high >= _EVEN:
            raise Unmeasured(
                f"at {row.share:.0%} zeros CSR is {format_ratio(low)} to {format_ratio(high)} as fast, which does not tell who wins. "
                + _live.AGAIN.format("races")
            )
    if race.break_even_share is None:
        raise Never(f"none: CSR was not faster at any share that was tried, up to {rows[-1].share:.0%}")
    return 100 * race.break_even_share


def _flops_left(weighing: Weighing) -> float:
    return 100 * weighing.models[-1].flops_per_item / weighing.models[0].flops_per_item

FASTEST = ("float32", "8-bit weights, float32 arithmetic", "8-bit kernels")


def _fastest(weighing: Weighing) -> str:
    names = [each.label for each in weighing.models]
    if len(names) < len(FASTEST):
        raise Unmeasured("this device has no 8-bit kernels in PyTorch, so there are only two to compare")
    fastest, second = sorted(range(len(FASTEST)), key=lambda k: weighing.models[k].median_seconds)[:2]
    if not _is_apart(weighing, fastest, second):
        raise Unmeasured(f"this run does not tell {names[fastest]} and {names[second]} apart. {_live.AGAIN.format('weighs')}")
    return FASTEST[fastest]


def _is_apart(weighing: Weighing, fastest: int, second: int) -> bool:
    """Return whether the first of two models is surely the faster: by their turns where one is what others are compared with."""
    one, other = (weighing.models[k] for k in (fastest, second))
    if fastest == 0:
        return other.faster == "slower"
    if second == 0:
        return one.faster == "faster"
    if one.interval_seconds is None or other.interval_seconds is None:
        return False
    return one.interval_seconds[1] < other.interval_seconds[0]


def _depthwise(found: Grouping) -> float:
    """Return how many times as fast the depthwise convolution is, where the interval allows to judge a prediction."""
    row = found.depthwise
    return _live.judged(float(row.speedup or 1.0), row.speedup_interval, _DEPTHWISE_CLOSE, "times the groups")


outcome = {
    "07.1": _speedup_of_last,
    "07.3": lambda race: _break_even(race) if isinstance(race, SparseRace) else race,
    "07.4": lambda weighing: _flops_left(weighing) if isinstance(weighing, Weighing) else weighing,
    "07.8": lambda accuracy: 100 * accuracy.ratio if hasattr(accuracy, "ratio") else accuracy,
    "07.9": lambda weighing: _fastest(weighing) if isinstance(weighing, Weighing) else weighing,
    "07.12": lambda found: _depthwise(found) if isinstance(found, Grouping) else found,
}
