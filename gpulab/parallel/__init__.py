"""Several processes on one model: real ranks, their collectives, and parallel strategies.

Each public name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "_cluster": ("Ranks", "cluster"),
    "_rank": ("Observer", "observe", "unobserved"),
    "_rank_memory": ("largest_batch", "predict_ranks"),
    "_strategies": ("strategies",),
    "_train": ("run_schedule", "train"),
    "model_states": (
        "STATE_STRATEGIES",
        "GptShape",
        "RankStates",
        "cannot_split",
        "gpt_shape",
        "gpt_shapes",
        "rank_states",
    ),
    "scaling_steps": ("recorded_scaling", "scaling", "sweep"),
    "rank_results": (
        "KINDS",
        "RANK_CATEGORIES",
        "CollectiveCall",
        "RankMemory",
        "RankReport",
        "RankSpan",
        "RankTimeline",
        "ScalingMeasurement",
        "ScalingResult",
        "ScheduleRun",
        "StrategyResult",
    ),
}
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}; its public names are "
        f"{', '.join(sorted(__all__))}"
    )


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
