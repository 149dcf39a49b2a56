"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from typing import Any
from gpulab.lessons import _live
from gpulab.lessons.content import Unmeasured
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

MORE, SAME, LESS = ("more than was measured", "the same, within the intervals", "less than was measured")


def _product(found: Any) -> Any:
    """Return which choice a ladder supports: its product beside its combination."""
    if not isinstance(found, LadderResult):
        return found
    verdict = found.overstated.verdict
    if verdict == "no interval":
        raise Unmeasured(_TOO_FEW)
    return {"faster": MORE, "slower": LESS}.get(verdict, SAME)


def _still(found: Any) -> Any:
    """Return how many techniques are still missed at the end; without intervals nobody can say of one that it is not."""
    if not isinstance(found, LadderResult):
        return found
    if any(rung.removed.interval is None for rung in found.rungs):
        raise Unmeasured(_TOO_FEW)
    return sum(rung.removed.verdict == "faster" for rung in found.rungs)

KEPT, LOST, UNDECIDED = ("as accurate", "less accurate", "the intervals cannot tell")


def _accuracy(found: Any) -> Any:
    """Return which choice a ladder supports of its last rung, the batch that is larger still."""
    if not isinstance(found, LadderResult):
        return found
    rung = found.rungs[-1]
    if rung.learned is None:
        raise Unmeasured("the ladder trained nothing to the end. Pass seeds=3.")
    return {"kept": KEPT, "lost": LOST}.get(rung.learned.verdict, UNDECIDED)


def _graph(found: Any) -> Any:
    """Return the recorded gain of a CUDA graph, where it has an interval."""
    if found is None:
        raise Unmeasured("no recorded GPU has timed both.")
    if isinstance(found, Gain) and found.interval is None:
        raise Unmeasured(f"{found}: too few steps were recorded. By rule 1 that is a hint and no answer.")
    return found.ratio if isinstance(found, Gain) else found


outcome = {
    "09.1": _together,
    "09.2": _most,
    "09.4": _product,
    "09.6": _still,
    "09.8": _accuracy,
    "09.10": _graph,
}
