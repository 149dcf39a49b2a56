"""The recorder's cases on the learner's own device: where there is a GPU, no recording has to speak for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpulab.lessons.content import Unmeasured
from gpulab.recordings import Timing
from gpulab.timing import Comparison, Measurement
from gpulab.timing._compare import compare_within
from gpulab.timing._job import Limits
from gpulab.timing._measure import check_numbers
from gpulab.timing.results import format_ratio_interval
from gpulab.timing.statistics import FEWEST_SAMPLES
from gpulab.units import format_ratio

# How sampling began and ended; the interval beside the figure says what of that matters.
_QUIET = ("deadline", "no-interval", "slow-first-call", "too-short")
_WIDTH = 0.02  # as compare's own
_LONGER = 4.0  # a deadline is chosen for a quiet machine; a call that takes some tenths of a second there still gets its interval elsewhere
AGAIN = "Run the cell that {}, and this one, again."
DISTURBED = f"other programs disturbed the times too much for an interval. {AGAIN}"


def doubts(m: Measurement | Timing) -> tuple[str, ...]:
    """Return the codes of a measurement's notes, live or recorded, that say its figure may be wrong."""
    return tuple(dict.fromkeys(note.code for note in m.notes if note.code not in _QUIET))


def compared(function: str, runs: Mapping[str, Callable[[], Any]], deadline: float) -> Comparison:
    """Let functions take turns for so many seconds each; longer, up to a bound, where their ratios would have no interval else.

    Raises
    ------
    InputError
        In the name of ``function``, which the learner called, if the deadline is no finite number above 0.
    """
    check_numbers(function, deadline=deadline)
    limits = Limits.given(function, _WIDTH, deadline, None, None)
    return compare_within(limits, dict(runs), (), fewest=FEWEST_SAMPLES, patience=_LONGER * deadline)


def with_interval(ratio: float, interval: tuple[float, float] | None) -> str:
    """Return a ratio as text, with its interval where it has one."""
    return format_ratio(ratio) if interval is None else f"{format_ratio(ratio)} {format_ratio_interval(interval)}"


def judged(ratio: float, interval: tuple[float, float] | None, close: float, cell: str) -> float:
    """Return a measured ratio whose 95 % interval is no wider than what counts as close to it; else a prediction cannot be judged.

    Parameters
    ----------
    ratio : float
    interval : (float, float) or None
    close : float
        The question's ``close_ratio``.
    cell : str
        What the cell does that measures it, as in "races".

    Raises
    ------
    Unmeasured
        If there is no interval, or it is wider.
    """
    if interval is None:
        raise Unmeasured(DISTURBED.format(cell))
    if interval[0] < ratio / close or interval[1] > ratio * close:
        low, high = map(format_ratio, interval)
        raise Unmeasured(f"the times jumped about so much that it may be {low} or {high}. {AGAIN.format(cell)}")
    return ratio
