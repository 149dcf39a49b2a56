"""Several processes on one model: real ranks, their collectives, and parallel strategies.

Each public name is imported on first use.
"""

from __future__ import annotations

from gpulab._first_use import on_first_use as _on_first_use

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
_PUBLIC = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [*_PUBLIC]  # noqa: PLE0604
__getattr__, __dir__ = _on_first_use(__name__, _PUBLIC)
