"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from collections.abc import Mapping
from typing import Any
from gpulab.lessons import _live
from gpulab.lessons._density import DensitySweep, FusionGain
from gpulab.lessons.content import Unmeasured
from gpulab.memory import Traffic
from gpulab.models import RooflinePoint
from gpulab.timing import Measurement


def _ratio_of(pair: Mapping[str, Any]) -> float:
    """Return how many times as long the sum took as the product."""
    both = pair.get("the sum"), pair.get("the product")
    if len(pair) != 2 or not all(isinstance(each, Measurement) for each in both):
        raise Unmeasured('expected {"the sum": ..., "the product": ...} with two measurements. Run the cells above again.')
    slow, fast = (float(each.median_seconds) for each in both if each is not None)
    return slow / fast


def _share_of_peak(given: tuple[Any, ...]) -> float:
    """Return the percentage of the float32 roof that a measurement reached, from (measurement, roofline)."""
    m, roof = given
    if m.flops_per_second is None:
        raise Unmeasured("the measurement does not know its FLOPs. Pass flops= to gl.measure and run the cell again.")
    return float(100 * m.flops_per_second / roof.arithmetic_roof("float32").flops_per_second)


def _share_of_operators(given: tuple[Any, ...]) -> float:
    """Return the percentage of operators that memory holds back, from (traffic, roofline)."""
    traffic, roof = given
    if not isinstance(traffic, Traffic) or not traffic.operators:
        raise Unmeasured("nothing was counted. Run the cell above again.")
    return 100 * len(traffic.memory_bound(roof)) / len(traffic.operators)


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


def _gain_of(gain: FusionGain) -> float:
    """Return how many times as fast the fused pass is: by the race, or, where there could be none, by the bytes."""
    if gain.separate_seconds is None:
        return gain.bytes_ratio
    if gain.speedup is None:  # the results disagree, or a time is impossible: the race's first note says which
        raise Unmeasured(gain.notes[0].sentence if gain.notes else "the race reported no speed-up. Run the cell that races again.")
    return _live.judged(gain.speedup, gain.speedup_interval, _FUSED_CLOSE, "races")


outcome = {
    "03.1": lambda pair: _ratio_of(pair) if isinstance(pair, Mapping) else pair,
    "03.2": lambda given: _share_of_peak(given) if isinstance(given, tuple) else given,
    "03.4": lambda given: _share_of_operators(given) if isinstance(given, tuple) else given,
    "03.5": lambda sweep: _free(sweep) if isinstance(sweep, DensitySweep) else sweep,
    "03.7": lambda gain: _gain_of(gain) if isinstance(gain, FusionGain) else gain,
    "03.9": lambda point: 100 * (point.share_of_roof or 0.0) if isinstance(point, RooflinePoint) else point,
}


sides = {
    "03.1": lambda pair: {name: each.evidence for name, each in pair.items()} if isinstance(pair, Mapping) else {},
    "03.4": lambda given: {"the operators": given[0].evidence, "the roofs": given[1].evidence} if isinstance(given, tuple) else {},
}
