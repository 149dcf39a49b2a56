"""The questions and exercises of notebook 10, the same experiments in MATLAB, TensorFlow, JAX, CuPy and CUDA."""

from __future__ import annotations

from typing import Any

from gpulab.evidence import Badge
from gpulab.lessons import _live
from gpulab.lessons._columns import ColumnLoop
from gpulab.lessons._feeding import Feeding
from gpulab.lessons._five_times import FiveTimes
from gpulab.lessons._nb10_exercises import PADDED, SECONDS, TRAIN, TRANSLATED
from gpulab.lessons._retraces import Retraces
from gpulab.lessons.content import Lesson, Question, Reading

SPREAD = Question(
    "10.1",
    (
        Reading(
            lambda predicted, measured: predicted <= 2,
            "One product, but not one question: a first call loads and compiles, a call may return before it has computed, and copies "
            "are in some of the times and not in others.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "The shortest may be a call that returned before its work was done, the longest a first call. Neither is the product's time.",
        ),
    ),
    outcome=lambda found: found.spread_ratio if isinstance(found, FiveTimes) else found,
    close_ratio=3.0,
)

_COLUMNS_CLOSE, _FEEDING_CLOSE = 1.6, 2.0


def _ratio(found: ColumnLoop | Feeding, close: float, cell: str) -> float:
    """Return a ratio that a prediction can be held against: measured with an interval that is narrow enough, or modelled."""
    if found.evidence.badge is Badge.MODELLED:
        return found.ratio
    return _live.judged(found.ratio, found.ratio_interval, close, cell)


COLUMNS = Question(
    "10.3",
    (
        Reading(
            lambda predicted, measured: predicted <= 1.2 < measured,
            "The same numbers and the same additions, but memory comes in lines of 64 or 128 bytes: along a column of an array that lies "
            "row by row, each line brings one number that is wanted, and most of the line is not.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "Most of what a line brings is not wanted now, but caches keep some lines until the next columns need them.",
        ),
    ),
    outcome=lambda found: _ratio(found, _COLUMNS_CLOSE, "times the loop") if isinstance(found, ColumnLoop) else found,
    close_ratio=_COLUMNS_CLOSE,
)

FEEDING = Question(
    "10.5",
    (
        Reading(
            lambda predicted, measured: predicted <= 1.1 < measured,
            "run sends everything in its feed_dict, each time, whether it changed or not; a Variable is where it was.",
        ),
        Reading(
            lambda predicted, measured: measured <= 1.1 < predicted,
            "Nothing was copied: without a link TensorFlow may use a fed array where it lies. Behind a link it travels in every run.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured and measured > 1.1,
            "The copy outweighs the work by more than you thought: adding up is little work for each byte.",
        ),
    ),
    outcome=lambda found: _ratio(found, _FEEDING_CLOSE, "times both") if isinstance(found, Feeding) else found,
    close_ratio=_FEEDING_CLOSE,
)


def _compiled(found: Any) -> Any:
    if not isinstance(found, Retraces):
        return found
    return found.count


RETRACES = Question(
    "10.7",
    (
        Reading(
            lambda predicted, measured: predicted <= 1 < measured,
            "What was compiled is for one shape and one dtype. Another shape is another program, and the first call of each waits for it.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "A shape that was there before is not compiled again: the program is kept.",
        ),
    ),
    outcome=_compiled,
    close_ratio=1.01,
)


LESSON = Lesson(
    "10_rosetta",
    {question.id: question for question in (SPREAD, COLUMNS, FEEDING, RETRACES)},
    {exercise.id: exercise for exercise in (SECONDS, TRANSLATED, TRAIN, PADDED)},
)
