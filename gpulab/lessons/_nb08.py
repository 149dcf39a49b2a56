"""The questions of notebook 08, on several devices: what they send, what they hold, and what they wait for."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.errors import RankError
from gpulab.evidence import Evidence
from gpulab.lessons._nb08_exercises import BUBBLE, HANG, MEMORY
from gpulab.lessons._nb08_export import EXPORT
from gpulab.lessons._nb08_ring import RING
from gpulab.lessons._nb08_strategy import CHOICE
from gpulab.lessons.content import Lesson, Question, Reading, Unmeasured
from gpulab.parallel.results import RankTimeline, StrategyResult
from gpulab.parallel.scaling_results import GlobalBatchResult

HELD = Question(
    "08.1",
    (
        Reading(
            lambda predicted, measured: 0.2 < predicted / measured < 0.35,
            "Those are the parameters alone. Each has a gradient, and Adam keeps two more numbers for it: four in all.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Four numbers of 4 bytes for each parameter: itself, its gradient, and the two that Adam keeps.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "Four numbers of 4 bytes for each parameter, that is all. What the forward pass keeps comes on top, by the batch.",
        ),
    ),
    close_ratio=1.2,
)

SENT = Question(
    "08.2",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "In a ring nobody sends everything to everybody. The data are cut into as many parts as there are ranks; each part goes around "
            "once to be added up, and once with the result. That is 2 (n - 1) / n of the data: never more than twice. What grows with the "
            "ranks is the number of messages, and with it the latency.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Each rank has to hand on nearly all of the data twice: once on the way to the sum, and once with the result.",
        ),
    ),
    close_ratio=1.2,
)

SAME, WORSE, BETTER = ("the same, but for rounding", "worse: each gradient saw a quarter", "better: four models learn more")


def _compared(pair: Any) -> Any:
    """Return which choice two lists of losses support: (several ranks, one process)."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return pair
    mine, alone = (np.asarray(each, dtype=float) for each in pair)
    if np.max(np.abs(mine - alone)) <= 1e-3 * np.max(np.abs(alone)):
        return SAME
    return WORSE if mine[-1] > alone[-1] else BETTER


EXACT = Question(
    "08.4",
    (
        Reading(
            lambda predicted, measured: measured == SAME,
            "The gradient of a mean is the mean of the gradients. Averaged over equal parts, it is the gradient of the whole batch, and "
            "all ranks take the same step.",
        ),
        Reading(
            lambda predicted, measured: predicted == SAME,
            "The parts must be equal in size, and all ranks must begin with the same weights.",
        ),
    ),
    outcome=_compared,
)

EARLY, AFTER, LATE = ("as soon as the last layer has its gradients", "after the backward pass", "after the optimizer's step")


def _first_sent(result: Any) -> Any:
    """Return when a timeline's gradients are sent first, against its backward passes."""
    timeline = getattr(result, "timeline", result)
    if not isinstance(timeline, RankTimeline):
        return timeline
    if not timeline.lane(0, "communication"):
        raise Unmeasured("nothing was sent. Run it on two ranks or more.")
    beside = sum(timeline.overlap_seconds(rank) for rank in range(timeline.ranks))
    return EARLY if beside > 0 else AFTER


OVERLAP = Question(
    "08.5",
    (
        Reading(
            lambda predicted, measured: predicted == AFTER and measured == EARLY,
            "The backward pass goes from the last layer to the first, and a gradient that is done does not change any more. "
            "It can travel while the layers before it are still being computed.",
        ),
        Reading(lambda predicted, measured: predicted == LATE, "The optimizer needs the averaged gradients: they must be there before it."),
    ),
    outcome=_first_sent,
)

BATCH = Question(
    "08.6",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "The learning rate and the epochs stayed the same, but an epoch now has about a sixteenth of the updates. "
            "An averaged gradient is less noisy, not longer: the model has moved less far.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "There are fewer updates, but each of them points in a better direction, and this task is easy.",
        ),
    ),
    outcome=lambda found: 100 * found.select("unchanged")[-1].accuracy.mean if isinstance(found, GlobalBatchResult) else found,
    close_ratio=1.1,
)


def _working(result: Any) -> Any:
    """Return the share of the time in which a rank computes, mean over the ranks, in per cent."""
    timeline = getattr(result, "timeline", result)
    if not isinstance(timeline, RankTimeline):
        return timeline
    return 100 * float(np.mean([timeline.seconds(rank)["compute"] for rank in range(timeline.ranks)])) / timeline.end_seconds


SPLIT = Question(
    "08.7",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "A rank has nothing to do before the one in front of it is done, and in the backward pass before the one behind it. "
            "One works, the others wait. Splitting the layers makes room for a model; it makes no step faster.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "One rank at a time has work, so each works about one part in as many as there are ranks. Handing over takes little of it.",
        ),
    ),
    outcome=_working,
    close_ratio=1.35,
)


def _traffic(pair: Any) -> Any:
    """Return how many times as many bytes the second run sends as the first, over all ranks, where each collective is a ring."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(each, StrategyResult) for each in pair):
        return pair
    first, second = (sum(report.ring_bytes for report in result.reports) for result in pair)
    if not first:
        raise Unmeasured("the first run sent nothing. Run it on two ranks or more.")
    return second / first


def _as_rings(pair: Any) -> dict[str, Evidence]:
    """Return whose figures the traffic's are: the calls were seen, what a ring sends for them is arithmetic."""
    if not isinstance(pair, (tuple, list)):
        return {}
    return {
        "the collectives": pair[-1].evidence,
        "what they send": Evidence.modelled("each collective runs as a ring", "gl.models.collective_cost"),
    }


TRAFFIC = Question(
    "08.9",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "An all-reduce is two halves: add up the parts, then hand the results around. FSDP needs three: the parameters are handed "
            "around for the forward pass and once more for the backward pass, and the gradients are added up.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "What a rank does not keep it must fetch: the parameters for the forward and for the backward pass, beside the gradients.",
        ),
    ),
    outcome=_traffic,
    sides=_as_rings,
    close_ratio=1.12,
)

FASTER = Question(
    "08.11",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "Only the part that can be divided gets shorter. The tenth that stays is soon most of what is left: with ever so many ranks "
            "the step is at most 10 times as fast.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Nine tenths of the step are divided by 16; only one tenth stays as it was.",
        ),
    ),
    close_ratio=1.15,
)

WITHOUT, STOPS, WAITS = ("the others average without it", "PyTorch stops at once and names the rank", "all wait, until a timeout")


def _what_happened(error: Any) -> Any:
    """Return which choice the error of a run with a skipped collective supports."""
    if error is None:
        return WITHOUT
    if not isinstance(error, BaseException):
        return error
    if "Timeout" in type(error).__name__:
        return WAITS
    if isinstance(error, RankError) and not isinstance(error.__cause__, RuntimeError):  # not what PyTorch's own collectives raise
        raise Unmeasured("the call ended for another reason. Run ranks.recover(), then the cell above and this one again.")
    return STOPS


SKIPPED = Question(
    "08.13",
    (
        Reading(
            lambda predicted, measured: predicted == WITHOUT and measured == WAITS,
            "A collective has no list of those who may be missing: the sum is not known before all have given their part.",
        ),
        Reading(
            lambda predicted, measured: predicted == STOPS and measured == WAITS,
            "No rank knows what another one is about to do: one that will never come looks just like one that is late.",
        ),
    ),
    outcome=_what_happened,
)

LESSON = Lesson(
    "08_parallelism",
    {q.id: q for q in (HELD, SENT, EXACT, OVERLAP, BATCH, SPLIT, TRAFFIC, FASTER, SKIPPED)},
    {e.id: e for e in (RING, BUBBLE, MEMORY, CHOICE, HANG, EXPORT)},
)
