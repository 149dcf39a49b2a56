"""The questions of notebook 09, on what techniques give alone, one upon the other, and together."""

from __future__ import annotations

from typing import Any

from gpulab.lessons import _live
from gpulab.lessons._nb09_exercises import FEWEST, MAY_SAY, SAMPLES, TOGETHER
from gpulab.lessons._nb09_script import SCRIPT
from gpulab.lessons.content import Lesson, Question, Reading, Unmeasured
from gpulab.training import Gain, LadderResult

_CLOSE = 1.3
_TOO_FEW = "too few turns were taken for an interval. Pass turns=24."


def _together(found: Any) -> Any:
    """Return how many times as fast all techniques made the script, where the interval allows to judge a prediction."""
    if not isinstance(found, LadderResult):
        return found
    if found.together.interval is None:
        raise Unmeasured(_TOO_FEW)
    return _live.judged(found.together.ratio, found.together.interval, _CLOSE, "climbs the ladder")


TOGETHER_GAIN = Question(
    "09.1",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "Each article measured its technique where there was much to gain from it, and often on a GPU. Your script has its own "
            "bottlenecks, and what one technique has mended no other one can mend again.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "A beginner's script leaves much undone, and techniques that mend different parts of a step help each other: what is left "
            "gets smaller, so that each further saving is a larger share of it.",
        ),
    ),
    outcome=_together,
    close_ratio=_CLOSE,
)


def _most(found: Any) -> Any:
    """Return the title of the technique that gains most by itself, where its interval lies above all others."""
    if not isinstance(found, LadderResult):
        return found
    best, *others = sorted(found.rungs, key=lambda rung: -rung.alone.ratio)
    near = [one for one in others if not _surely_above(best.alone, one.alone)]
    if near or best.alone.interval is None:
        words = ", ".join(f"{one.title} {one.alone}" for one in (best, *near))
        raise Unmeasured(f"the intervals cannot tell which gains most: {words}. Pass a longer deadline.")
    return best.title


def _surely_above(one: Gain, other: Gain) -> bool:
    """Return whether the whole interval of one gain lies above that of the other."""
    return one.interval is not None and other.interval is not None and one.interval[0] > other.interval[1]


MOST = Question(
    "09.2",
    (
        Reading(
            lambda predicted, measured: "batch" in measured,
            "A step has costs that do not grow with the batch: Python, starting each operator, updating each parameter. With a small model "
            "they are most of it, and a larger batch pays them once for more samples.",
        ),
        Reading(
            lambda predicted, measured: "mixed" in predicted or "TF32" in predicted,
            "Fewer bits make arithmetic faster. That helps as much as arithmetic is of the step, on a device that has instructions for it.",
        ),
    ),
    outcome=_most,
)

MORE, SAME, LESS = ("more than was measured", "the same, within the intervals", "less than was measured")


def _product(found: Any) -> Any:
    """Return which choice a ladder supports: its product beside its combination."""
    if not isinstance(found, LadderResult):
        return found
    verdict = found.overstated.verdict
    if verdict == "no interval":
        raise Unmeasured(_TOO_FEW)
    return {"faster": MORE, "slower": LESS}.get(verdict, SAME)


PRODUCT = Question(
    "09.4",
    (
        Reading(
            lambda predicted, measured: measured == MORE,
            "Where two techniques mend the same part of a step, the second one finds little left. Multiplying counts that part twice.",
        ),
        Reading(
            lambda predicted, measured: measured == LESS,
            "Techniques that mend different parts do more than multiply: once one part is gone, the other is a larger share of the rest.",
        ),
        Reading(
            lambda predicted, measured: measured == SAME,
            "Some techniques share a part and lose, others mend different parts and win. Here the two balance, or the noise hides them.",
        ),
    ),
    outcome=_product,
)


def _still(found: Any) -> Any:
    """Return how many techniques are still missed at the end; without intervals nobody can say of one that it is not."""
    if not isinstance(found, LadderResult):
        return found
    if any(rung.removed.interval is None for rung in found.rungs):
        raise Unmeasured(_TOO_FEW)
    return sum(rung.removed.verdict == "faster" for rung in found.rungs)


STILL = Question(
    "09.6",
    (
        Reading(
            lambda predicted, measured: predicted > measured,
            "By itself a technique shows what it could mend in the script. At the end, others have often mended that already, or what it "
            "mends is small beside the rest.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "What is left at the end is small, so a saving that hardly showed in the slow script is a larger share now.",
        ),
    ),
    outcome=_still,
    close_ratio=1.01,
)

KEPT, LOST, UNDECIDED = ("as accurate", "less accurate", "the intervals cannot tell")


def _accuracy(found: Any) -> Any:
    """Return which choice a ladder supports of its last rung, the batch that is larger still."""
    if not isinstance(found, LadderResult):
        return found
    rung = found.rungs[-1]
    if rung.learned is None:
        raise Unmeasured("the ladder trained nothing to the end. Pass seeds=3.")
    return {"kept": KEPT, "lost": LOST}.get(rung.learned.verdict, UNDECIDED)


SAME_SAMPLES = Question(
    "09.8",
    (
        Reading(
            lambda predicted, measured: measured == LOST,
            "From the same samples a batch eight times as large makes an eighth of the updates. Each is a little better, but there are far "
            "fewer, and here the model has not come as far.",
        ),
        Reading(
            lambda predicted, measured: measured == KEPT,
            "There are fewer updates, each from a less noisy gradient; on this task that was enough. On another it may not be.",
        ),
    ),
    outcome=_accuracy,
)


def _graph(found: Any) -> Any:
    """Return the recorded gain of a CUDA graph, where it has an interval."""
    if found is None:
        raise Unmeasured("no recorded GPU has timed both.")
    if isinstance(found, Gain) and found.interval is None:
        raise Unmeasured(f"{found}: too few steps were recorded. By rule 1 that is a hint and no answer.")
    return found.ratio if isinstance(found, Gain) else found


GRAPH = Question(
    "09.10",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "A transformer's step is hundreds of small kernels: starting them took longer than running them, and a graph starts "
            "them all at once.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "A graph removes the gaps between kernels. Where kernels are long, there are hardly any.",
        ),
    ),
    outcome=_graph,
    close_ratio=1.4,
)

LESSON = Lesson(
    "09_speedup_ladder",
    {q.id: q for q in (TOGETHER_GAIN, MOST, PRODUCT, STILL, SAME_SAMPLES, GRAPH)},
    {e.id: e for e in (MAY_SAY, TOGETHER, FEWEST, SAMPLES, SCRIPT)},
)
