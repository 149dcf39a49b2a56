"""What the predictions of this notebook take from the result that ``reveal`` is given."""

import math
from typing import Any
from gpulab.evidence import Evidence
from gpulab.lessons import _live
from gpulab.lessons.content import Never, Unmeasured
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

_PARTS = ("parameters", "gradients", "optimizer", "activations")


def _slower(race: Any) -> Any:
    """Return how many times as long the second of a race takes for a step."""
    if not isinstance(race, RaceResult):
        return race
    if not race.speedup:
        raise Unmeasured("too few steps were made to time one. Run the cell above again.")
    between = None if race.speedup_interval is None else (1 / race.speedup_interval[1], 1 / race.speedup_interval[0])
    return _live.judged(1 / race.speedup, between, _CHECKPOINT_CLOSE, "races")


outcome = {
    "06.1": lambda p: 100 * p.stall_ratio if isinstance(p, PipelineResult) else p,
    "06.2": _gain,
    "06.3": _gain_of_runs,
    "06.8": _calls,
    "06.10": lambda t: max(_PARTS, key=lambda part: t.peak_by_category.get(part, 0)) if isinstance(t, MemoryTrace) else t,
    "06.11": _slower,
}


sides = {
    "06.1": _sides,
    "06.2": _sides,
    "06.3": _sides,
}
