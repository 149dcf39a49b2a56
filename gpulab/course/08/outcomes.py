"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from typing import Any
import numpy as np
from gpulab.errors import RankError
from gpulab.evidence import Evidence
from gpulab.lessons.content import Unmeasured
from gpulab.parallel.results import RankTimeline, StrategyResult
from gpulab.parallel.scaling_results import GlobalBatchResult


SAME, WORSE, BETTER = ("the same, but for rounding", "worse: each gradient saw a quarter", "better: four models learn more")


def _compared(pair: Any) -> Any:
    """Return which choice two lists of losses support: (several ranks, one process)."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return pair
    mine, alone = (np.asarray(each, dtype=float) for each in pair)
    if np.max(np.abs(mine - alone)) <= 1e-3 * np.max(np.abs(alone)):
        return SAME
    return WORSE if mine[-1] > alone[-1] else BETTER

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


def _working(result: Any) -> Any:
    """Return the share of the time in which a rank computes, mean over the ranks, in per cent."""
    timeline = getattr(result, "timeline", result)
    if not isinstance(timeline, RankTimeline):
        return timeline
    return 100 * float(np.mean([timeline.seconds(rank)["compute"] for rank in range(timeline.ranks)])) / timeline.end_seconds


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


outcome = {
    "08.4": _compared,
    "08.5": _first_sent,
    "08.6": lambda found: 100 * found.select("unchanged")[-1].accuracy.mean if isinstance(found, GlobalBatchResult) else found,
    "08.7": _working,
    "08.9": _traffic,
    "08.13": _what_happened,
}


sides = {
    "08.9": _as_rings,
}
