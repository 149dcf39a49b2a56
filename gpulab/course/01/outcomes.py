"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from typing import Any
from gpulab.hierarchy import Bandwidth, Latency, ParallelChains
from gpulab.hierarchy.results import beyond_caches
from gpulab.lessons.content import Unmeasured
from gpulab.units import format_bytes, format_ratio


def _far_over_near(curve: Any) -> float:
    found = curve.levels()
    levels = found.levels
    if len(levels) < 2:
        raise Unmeasured(
            "your curve shows no level's end, so other programs disturb the machine too much. When it is quiet, run "
            "curve = gl.lessons.memory_curve(again=True) and this cell again."
        )
    ratio = float(levels[-1].latency_seconds / levels[0].latency_seconds)
    last, largest = curve.points[-1].nbytes, max(curve.reported, key=lambda cache: cache.size_bytes, default=None)
    if largest is not None and largest in found.unseen and not beyond_caches(last, curve.reported):
        raise Unmeasured(
            f"your largest working set, {format_bytes(last)}, is not far above your largest cache ({largest}), so the last flat part of "
            f"the curve may be that cache's. A load there takes {format_ratio(ratio)} as long as the first; main memory is no nearer."
        )
    return ratio


outcome = {
    "01.1": lambda s: float(s.totals.global_store_requests) if hasattr(s, "totals") else s,
    "01.2": lambda pair: pair[0].totals.executed_warps / pair[1].totals.executed_warps if isinstance(pair, tuple) else pair,
    "01.5": lambda both: both.under_way(both.points[-1]) if isinstance(both, ParallelChains) else both,
    "01.8": lambda curve: _far_over_near(curve) if isinstance(curve, Latency) else curve,
    "01.10": lambda curve: curve.span_ratio if isinstance(curve, Bandwidth) else curve,
    "01.11": lambda s: s.totals.shared_wavefronts / s.totals.shared_requests if hasattr(s, "totals") else s,
}


sides = {
    "01.2": lambda pair: {s.kernel: s.evidence for s in pair} if isinstance(pair, tuple) else {},
}
