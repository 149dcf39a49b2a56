"""The questions of notebook 07, on models that are smaller, and when they are faster."""

from __future__ import annotations

from typing import Any

from gpulab.compression import Weighing
from gpulab.lessons import _live
from gpulab.lessons._lighter import Grouping, SparseRace
from gpulab.lessons._nb07_exercises import EXERCISES
from gpulab.lessons.content import Lesson, Never, Question, Reading, Unmeasured
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

MASKED = Question(
    "07.1",
    (
        Reading(
            lambda predicted, measured: predicted > 1.3 * measured,
            "A zero in a dense tensor is a number like any other: it is read, and it is multiplied. Nothing is skipped.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured, "The products are the same ones as before, so the time is about the same."
        ),
    ),
    outcome=_speedup_of_last,
    close_ratio=_MASKED_CLOSE,
)

CSR = Question(
    "07.3",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "For each weight CSR also reads where it belongs, and cannot use the long rows of products that dense kernels are built from. "
            "It must leave out far more than half to win that back.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured, "Your machine's sparse kernel is better than that, or its dense one is slow."
        ),
    ),
    outcome=lambda race: _break_even(race) if isinstance(race, SparseRace) else race,
    close_ratio=1.1,
)


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


CHANNELS = Question(
    "07.4",
    (
        Reading(
            lambda predicted, measured: predicted > 1.2 * measured,
            "A layer between two others loses half of its outputs and half of its inputs: a quarter of its products is left.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "The first layer keeps its inputs and the last one its outputs: those two only halve.",
        ),
    ),
    outcome=lambda weighing: _flops_left(weighing) if isinstance(weighing, Weighing) else weighing,
    close_ratio=1.15,
)


def _flops_left(weighing: Weighing) -> float:
    return 100 * weighing.models[-1].flops_per_item / weighing.models[0].flops_per_item


CHANGED = Question(
    "07.7",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "Each weight moves by half a step at most, one in 254 of the largest of its row, and the errors of many weights cancel. "
            "An answer changes only where two digits were nearly as likely.",
        ),
        Reading(lambda predicted, measured: predicted < measured, "A few answers were close calls, and a small push decides them."),
    ),
    close_ratio=3.0,
    close_absolute=2.0,
)

CALIBRATION = Question(
    "07.8",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "The scheme is the same and the weights are the same. But what is brighter than anything in the calibration is cut off at its "
            "largest value, in every layer.",
        ),
        Reading(lambda predicted, measured: predicted < measured, "Much of the range is cut off, and still many digits can be told apart."),
    ),
    outcome=lambda accuracy: 100 * accuracy.ratio if hasattr(accuracy, "ratio") else accuracy,
    close_ratio=1.15,
)

FASTEST = ("float32", "8-bit weights, float32 arithmetic", "8-bit kernels")
INTEGERS = Question(
    "07.9",
    (
        Reading(
            lambda predicted, measured: predicted == FASTEST[1] != measured,
            "The weights are smaller, but each call turns them into float32 first: more work than before, not less.",
        ),
        Reading(
            lambda predicted, measured: predicted == FASTEST[2] != measured,
            "Integer kernels win where the processor has instructions for them and the layer is large. Here rounding the inputs, or a good "
            "float32 kernel, weighs more.",
        ),
        Reading(
            lambda predicted, measured: predicted == FASTEST[0] != measured,
            "Four 8-bit numbers fit where one float32 did, in memory and in registers. The kernels that use that are faster here.",
        ),
    ),
    outcome=lambda weighing: _fastest(weighing) if isinstance(weighing, Weighing) else weighing,
)


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


DEPTHWISE = Question(
    "07.12",
    (
        Reading(
            lambda predicted, measured: predicted > 2 * measured,
            "The images are read and written as before, and a filter that sees one channel does 9 products for each number that it loads. "
            "Most of the time was saved only where arithmetic was what took it.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured, "The full convolution is held back by arithmetic here, and that is what went."
        ),
    ),
    outcome=lambda found: _depthwise(found) if isinstance(found, Grouping) else found,
    close_ratio=_DEPTHWISE_CLOSE,
)


def _depthwise(found: Grouping) -> float:
    """Return how many times as fast the depthwise convolution is, where the interval allows to judge a prediction."""
    row = found.depthwise
    return _live.judged(float(row.speedup or 1.0), row.speedup_interval, _DEPTHWISE_CLOSE, "times the groups")


LESSON = Lesson(
    "07_lighter_models",
    {question.id: question for question in (MASKED, CSR, CHANNELS, CHANGED, CALIBRATION, INTEGERS, DEPTHWISE)},
    EXERCISES,
)
