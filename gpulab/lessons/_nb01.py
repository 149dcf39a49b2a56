"""The questions and exercises of notebook 01, on what a GPU is made of and how memory answers."""

from __future__ import annotations

from typing import Any

from gpulab.hierarchy import Bandwidth, Latency, ParallelChains
from gpulab.hierarchy.results import beyond_caches
from gpulab.lessons._nb01_exercises import BLOCK, DIVERGENT, FIT, LEVELS, REPAIR
from gpulab.lessons.content import Lesson, Question, Reading, Unmeasured
from gpulab.units import format_bytes, format_ratio

WARPS = Question(
    "01.1",
    (
        Reading(
            lambda predicted, measured: predicted == 1,
            "A warp has 32 lanes and no more. The 33rd thread starts a second one, of which 31 lanes do nothing.",
        ),
        Reading(
            lambda predicted, measured: predicted > 30,
            "A GPU does not run threads one by one. It runs warps: 32 threads that take each step together.",
        ),
    ),
    outcome=lambda s: float(s.totals.global_store_requests) if hasattr(s, "totals") else s,
    close_ratio=1.01,
)

DIVERGENCE = Question(
    "01.2",
    (
        Reading(
            lambda predicted, measured: predicted < 1.1,
            "Each lane still executes one branch only. But a warp takes its steps together, so it goes through both branches, "
            "and in each the lanes of the other one idle.",
        ),
        Reading(
            lambda predicted, measured: predicted > 1.9,
            "Both branches are gone through, but the lines outside of the branches only once, so it is less than twice.",
        ),
    ),
    outcome=lambda pair: pair[0].totals.executed_warps / pair[1].totals.executed_warps if isinstance(pair, tuple) else pair,
    sides=lambda pair: {s.kernel: s.evidence for s in pair} if isinstance(pair, tuple) else {},
    close_ratio=1.1,
)

OVERLAP = Question(
    "01.5",
    (
        Reading(
            lambda predicted, measured: predicted < 1.5 <= measured,
            "One core waits for many loads at the same time, as long as none needs the result of another.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "The core has limited room for open loads and looks only so many instructions ahead. Then more chains gain nothing.",
        ),
    ),
    outcome=lambda both: both.under_way(both.points[-1]) if isinstance(both, ParallelChains) else both,  # of all 16, not of the best
    close_ratio=1.6,
)

LATENCY = Question(
    "01.8",
    (
        Reading(
            lambda predicted, measured: predicted < measured / 2,
            "A core adds two numbers in less than a nanosecond, and waits dozens of them for main memory. That is why there are caches.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured * 2,
            "Main memory is slow, but not that slow; a hop through the first cache takes a few nanoseconds itself.",
        ),
    ),
    outcome=lambda curve: _far_over_near(curve) if isinstance(curve, Latency) else curve,
)

BANDWIDTH = Question(
    "01.10",
    (
        Reading(
            lambda predicted, measured: predicted > 2 * measured,
            "Latency and bandwidth are different things. A load that nobody foresees waits; a stream is fetched ahead.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured / 2,
            "Fetching ahead hides the waiting, but main memory also moves fewer bytes a second than the caches do.",
        ),
    ),
    outcome=lambda curve: curve.span_ratio if isinstance(curve, Bandwidth) else curve,
)

BANKS = Question(
    "01.11",
    (
        Reading(
            lambda predicted, measured: predicted == 1,
            "Shared memory is fast when its 32 banks each serve one lane. Here one bank has to serve all of them, one after the other.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "A bank delivers one word of 4 bytes at a time, and a column of this tile lies in a single bank.",
        ),
    ),
    outcome=lambda s: s.totals.shared_wavefronts / s.totals.shared_requests if hasattr(s, "totals") else s,
    close_ratio=1.01,
)


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


LESSON = Lesson(
    "01_gpu_architecture",
    {question.id: question for question in (WARPS, DIVERGENCE, OVERLAP, LATENCY, BANDWIDTH, BANKS)},
    {exercise.id: exercise for exercise in (DIVERGENT, REPAIR, BLOCK, FIT, LEVELS)},
)
