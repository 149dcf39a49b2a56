"""The questions of notebook 03, on arithmetic per byte and what it decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab.lessons import _live
from gpulab.lessons._density import DensitySweep, FusionGain
from gpulab.lessons._nb03_exercises import BATCH, EXPLAIN, GAIN, HALVE, PLACE
from gpulab.lessons.content import Lesson, Question, Reading, Unmeasured
from gpulab.memory import Traffic
from gpulab.models import RooflinePoint
from gpulab.timing import Measurement

SAME_FLOPS = Question(
    "03.1",
    (
        Reading(
            lambda predicted, measured: predicted <= 1.5 < measured,
            "The arithmetic is the same, the bytes are not. FLOPs alone do not predict time.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "The sum moves 512 times the bytes of the product, and moving them is what takes its time.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "The product is not free either: look at the rates of arithmetic that both reached. On a large GPU it is over so soon "
            "that starting it takes most of its time.",
        ),
    ),
    outcome=lambda pair: _ratio_of(pair) if isinstance(pair, Mapping) else pair,
    sides=lambda pair: {name: each.evidence for name, each in pair.items()} if isinstance(pair, Mapping) else {},
    close_ratio=3.0,
)


def _ratio_of(pair: Mapping[str, Any]) -> float:
    """Return how many times as long the sum took as the product."""
    both = pair.get("the sum"), pair.get("the product")
    if len(pair) != 2 or not all(isinstance(each, Measurement) for each in both):
        raise Unmeasured('expected {"the sum": ..., "the product": ...} with two measurements. Run the cells above again.')
    slow, fast = (float(each.median_seconds) for each in both if each is not None)
    return slow / fast


BUSY = Question(
    "03.2",
    (
        Reading(
            lambda predicted, measured: predicted > 50 > measured,
            "Busy means that the processor was at work or waiting for its memory; both look the same from outside. "
            "The share of the peak tells them apart.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "For each addition three numbers must travel, so the adders wait most of the time.",
        ),
    ),
    outcome=lambda given: _share_of_peak(given) if isinstance(given, tuple) else given,
    close_ratio=3.0,
)


def _share_of_peak(given: tuple[Any, ...]) -> float:
    """Return the percentage of the float32 roof that a measurement reached, from (measurement, roofline)."""
    m, roof = given
    if m.flops_per_second is None:
        raise Unmeasured("the measurement does not know its FLOPs. Pass flops= to gl.measure and run the cell again.")
    return float(100 * m.flops_per_second / roof.arithmetic_roof("float32").flops_per_second)


OPERATORS = Question(
    "03.4",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "The matrix products do nearly all of the arithmetic, but by count most operators are additions, norms, activations and "
            "lookups. Each of them is a pass over memory.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "The linear layers and the attention have enough arithmetic a byte; the operators between them have not.",
        ),
    ),
    outcome=lambda given: _share_of_operators(given) if isinstance(given, tuple) else given,
    sides=lambda given: {"the operators": given[0].evidence, "the roofs": given[1].evidence} if isinstance(given, tuple) else {},
    close_ratio=1.3,
)


def _share_of_operators(given: tuple[Any, ...]) -> float:
    """Return the percentage of operators that memory holds back, from (traffic, roofline)."""
    traffic, roof = given
    if not isinstance(traffic, Traffic) or not traffic.operators:
        raise Unmeasured("nothing was counted. Run the cell above again.")
    return 100 * len(traffic.memory_bound(roof)) / len(traffic.operators)


FREE = Question(
    "03.5",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "While the numbers travel, the arithmetic units have time to spare. What is computed in it costs nothing.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "From some point on the arithmetic is what takes the time, and each further multiply-add counts.",
        ),
    ),
    outcome=lambda sweep: _free(sweep) if isinstance(sweep, DensitySweep) else sweep,
)


def _free(sweep: DensitySweep) -> int:
    """Return how much arithmetic is free, where the sweep went on until it was not."""
    tried = [row.multiply_adds for row in sweep.rows]
    if sweep.free_multiply_adds == tried[-1]:
        raise Unmeasured(
            f"with up to {tried[-1]} multiply-adds, the most that were tried, time has not doubled: it is {tried[-1]} or more. Run "
            f"sweep = gl.lessons.arithmetic_sweep(steps={(*tried, 2 * tried[-1], 4 * tried[-1])}, device=device) and this cell again."
        )
    return sweep.free_multiply_adds


_FUSED_CLOSE = 1.5

FUSED = Question(
    "03.7",
    (
        Reading(
            lambda predicted, measured: predicted < 1.3 < measured,
            "The arithmetic stays the same, but two thirds of the traffic were results that were written only to be read again.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "One by one, three operators move six arrays; fused, they move two. On top of that each result needs fresh memory.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "Six arrays became two, so the bytes allow three times; what else a call costs stays.",
        ),
    ),
    outcome=lambda gain: _gain_of(gain) if isinstance(gain, FusionGain) else gain,
    close_ratio=_FUSED_CLOSE,
)


def _gain_of(gain: FusionGain) -> float:
    """Return how many times as fast the fused pass is: by the race, or, where there could be none, by the bytes."""
    if gain.separate_seconds is None:
        return gain.bytes_ratio
    if gain.speedup is None:  # the results disagree, or a time is impossible: the race's first note says which
        raise Unmeasured(gain.notes[0].sentence if gain.notes else "the race reported no speed-up. Run the cell that races again.")
    return _live.judged(gain.speedup, gain.speedup_interval, _FUSED_CLOSE, "races")


FAR = Question(
    "03.9",
    (
        Reading(
            lambda predicted, measured: predicted > 2 * measured,
            "The numbers asked for are few, but they lie far apart, and memory has no way to send four bytes alone.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "It is far under the roof, but not that far.",
        ),
    ),
    outcome=lambda point: 100 * (point.share_of_roof or 0.0) if isinstance(point, RooflinePoint) else point,
    close_ratio=2.0,
)

LESSON = Lesson(
    "03_compute_density",
    {question.id: question for question in (SAME_FLOPS, BUSY, OPERATORS, FREE, FUSED, FAR)},
    {exercise.id: exercise for exercise in (PLACE, BATCH, HALVE, EXPLAIN, GAIN)},
)
