"""Several processes on one model: real ranks, their collectives, and parallel strategies."""

from gpulab.parallel._cluster import Ranks, cluster
from gpulab.parallel._observe import CollectiveCall, Observer, observe, unobserved
from gpulab.parallel._rank_memory import (
    STATE_STRATEGIES,
    GptShape,
    RankStates,
    cannot_split,
    gpt_shape,
    gpt_shapes,
    largest_batch,
    predict_ranks,
    rank_states,
)
from gpulab.parallel._run_schedule import run_schedule
from gpulab.parallel._scaling import global_batch, recorded_scaling, scaling, sweep
from gpulab.parallel._strategies import Strategy, average_gradients, strategies
from gpulab.parallel._train import train
from gpulab.parallel.results import (
    KINDS,
    RANK_CATEGORIES,
    CollectivePoint,
    CollectiveSweep,
    GlobalBatchResult,
    GlobalBatchRow,
    RankMemory,
    RankReport,
    RankSpan,
    RankTimeline,
    ScalingMeasurement,
    ScalingResult,
    ScheduleRun,
    StrategyResult,
)

__all__ = [
    "KINDS",
    "RANK_CATEGORIES",
    "STATE_STRATEGIES",
    "CollectiveCall",
    "CollectivePoint",
    "CollectiveSweep",
    "GlobalBatchResult",
    "GlobalBatchRow",
    "GptShape",
    "Observer",
    "RankMemory",
    "RankReport",
    "RankSpan",
    "RankStates",
    "RankTimeline",
    "Ranks",
    "ScalingMeasurement",
    "ScalingResult",
    "ScheduleRun",
    "Strategy",
    "StrategyResult",
    "average_gradients",
    "cannot_split",
    "cluster",
    "global_batch",
    "gpt_shape",
    "gpt_shapes",
    "largest_batch",
    "observe",
    "predict_ranks",
    "rank_states",
    "recorded_scaling",
    "run_schedule",
    "scaling",
    "strategies",
    "sweep",
    "train",
    "unobserved",
]
