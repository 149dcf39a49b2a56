"""The questions and exercises of notebook 06, on where the seconds and the bytes of a training go."""

from __future__ import annotations

import math
from typing import Any

from gpulab.evidence import Evidence
from gpulab.lessons import _live
from gpulab.lessons._nb06_exercises import BOTTLENECKS, BREAK_EVEN, FRUGAL, STALL
from gpulab.lessons._nb06_memory import BUDGET, RECOVER
from gpulab.lessons.content import Lesson, Never, Question, Reading, Unmeasured
from gpulab.memory import MemoryTrace
from gpulab.training import CompileCost, PipelineResult, RaceResult


def _sides(p: Any) -> dict[str, Evidence]:
    """Return whose figures a pipeline's are."""
    one = p[-1] if isinstance(p, (tuple, list)) else p
    return {"the loading": one.evidence, "the accelerator": one.accelerator_evidence} if isinstance(one, PipelineResult) else {}


def _are_pipelines(pair: Any) -> bool:
    return isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(p, PipelineResult) for p in pair)


def _gain(pair: Any) -> Any:
    """Return the second pipeline's throughput over the first one's."""
    return pair[1].images_per_second / pair[0].images_per_second if _are_pipelines(pair) else pair


def _gain_of_runs(pair: Any) -> Any:
    """Return the same of two runs one after the other, each with an interval of its own."""
    if not _are_pipelines(pair):
        return pair
    first, second = (p.images_per_second_interval for p in pair)
    between = None if first is None or second is None else (second[0] / first[1], second[1] / first[0])
    return _live.judged(_gain(pair), between, _WORKERS_CLOSE, "runs both pipelines")


_WORKERS_CLOSE, _COMPILE_CLOSE, _CHECKPOINT_CLOSE = 1.4, 3.0, 1.2


STALL_SHARE = Question(
    "06.1",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "A JPEG file must be decoded, cropped and scaled, and a batch has many. In this loop nothing is computed meanwhile.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "Your processor decodes faster, or your accelerator computes longer, than you thought. The order of the work is as you see it.",
        ),
    ),
    outcome=lambda p: 100 * p.stall_ratio if isinstance(p, PipelineResult) else p,
    sides=_sides,
    close_ratio=1.3,
)

FASTER = Question(
    "06.2",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "Only the computing got faster. The time in which the accelerator waits stayed as it was, and no accelerator shortens it.",
        ),
    ),
    outcome=_gain,
    sides=_sides,
    close_ratio=1.2,
)

WORKERS = Question(
    "06.3",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "A worker needs a core of its own to be worth something, and what it has loaded must be handed over to the training. And where "
            "the accelerator waits no more, no worker makes it faster: then a step takes what the computing takes.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Workers do not only share the loading: they load while the accelerator computes, so both times overlap.",
        ),
    ),
    outcome=_gain_of_runs,
    sides=_sides,
    close_ratio=_WORKERS_CLOSE,
)

WAITS = Question(
    "06.6",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "Whatever turns a tensor into a Python number or a truth value reads it. .item() is only one way; "
            "int(...) and `if` are others.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "Computing with tensors never waits: argmax, the comparison and the sum are queued like any other work.",
        ),
    ),
    close_ratio=1.01,
)


def _calls(cost: Any) -> Any:
    """Return after how many calls compiling has paid."""
    if not isinstance(cost, CompileCost):
        return cost
    if cost.compile_seconds is None:
        raise Unmeasured(cost.sentence)
    for note in cost.notes:
        if note.code == "disagree":  # what computes something else saves nothing
            raise Unmeasured(note.sentence)
    low, high = cost.saved_interval or (-math.inf, math.inf)
    if low <= 0 < high:
        raise Unmeasured("the saving is within the noise. " + _live.AGAIN.format("compiles"))
    calls = cost.break_even_calls
    if calls is None:
        raise Never(f"never. {cost.sentence}")
    fewest, most = cost.break_even_interval or (calls, None)
    if most is None or fewest < calls / _COMPILE_CLOSE or most > calls * _COMPILE_CLOSE:
        latest = "never" if most is None else f"{most:,}"
        raise Unmeasured(f"the saving jumped about so much that it may be {fewest:,} calls or {latest}. {_live.AGAIN.format('compiles')}")
    return calls


COMPILE = Question(
    "06.8",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "Seconds of compiling are weighed against what one call saves, and a call is short: it takes many.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "The compiled form saves more a call than you thought, or your compiler is quick.",
        ),
    ),
    outcome=_calls,
    close_ratio=_COMPILE_CLOSE,
)

_PARTS = ("parameters", "gradients", "optimizer", "activations")

LARGEST = Question(
    "06.10",
    (
        Reading(
            lambda predicted, measured: measured == "activations",
            "The backward pass needs what the forward pass computed, layer by layer and image by image: that grows with the batch, "
            "the other three do not.",
        ),
    ),
    outcome=lambda t: max(_PARTS, key=lambda part: t.peak_by_category.get(part, 0)) if isinstance(t, MemoryTrace) else t,
)


def _slower(race: Any) -> Any:
    """Return how many times as long the second of a race takes for a step."""
    if not isinstance(race, RaceResult):
        return race
    if not race.speedup:
        raise Unmeasured("too few steps were made to time one. Run the cell above again.")
    between = None if race.speedup_interval is None else (1 / race.speedup_interval[1], 1 / race.speedup_interval[0])
    return _live.judged(1 / race.speedup, between, _CHECKPOINT_CLOSE, "races")


CHECKPOINT = Question(
    "06.11",
    (
        Reading(
            lambda predicted, measured: predicted >= 1.7 > measured,
            "Only the forward pass is made twice. The backward pass takes about as long as two forward passes, so three parts become four.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Every layer's forward pass is made a second time, just before its backward pass needs the result.",
        ),
    ),
    outcome=_slower,
    close_ratio=_CHECKPOINT_CLOSE,
)

AGAIN = Question(
    "06.13",
    (
        Reading(
            lambda predicted, measured: "again" in measured,
            "Inside `except` the error is alive, and with it the traceback, the frames of the functions that failed, and every tensor that "
            "their variables name.",
        ),
        Reading(
            lambda predicted, measured: "fits" in measured,
            "On your machine the failed step left enough room this time. Look at what it still held all the same.",
        ),
    ),
)

LESSON = Lesson(
    "06_training_pipeline",
    {q.id: q for q in (STALL_SHARE, FASTER, WORKERS, WAITS, COMPILE, LARGEST, CHECKPOINT, AGAIN)},
    {e.id: e for e in (BOTTLENECKS, STALL, FRUGAL, BREAK_EVEN, BUDGET, RECOVER)},
)
