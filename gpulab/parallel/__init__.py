"""Several processes on one model: clusters of real ranks, their collectives, and the strategies
that split the work.
"""

from gpulab.parallel._calls import CollectiveCall
from gpulab.parallel._cluster import Ranks, cluster
from gpulab.parallel._global_batch import global_batch
from gpulab.parallel._gpt_shapes import GptShape, gpt_shape, gpt_shapes
from gpulab.parallel._observe import Observer, observe, unobserved
from gpulab.parallel._rank_memory import predict_ranks
from gpulab.parallel._rank_states import STATE_STRATEGIES, RankStates, cannot_split, rank_states
from gpulab.parallel._recorded_scaling import recorded_scaling
from gpulab.parallel._run_schedule import run_schedule
from gpulab.parallel._scaling import scaling
from gpulab.parallel._schedule_results import ScheduleRun
from gpulab.parallel._strategies import Strategy, strategies
from gpulab.parallel._strategies_data import average_gradients
from gpulab.parallel._sweep import sweep
from gpulab.parallel._train import train
from gpulab.parallel.rank_results import RANK_CATEGORIES, RankMemory
from gpulab.parallel.results import KINDS, RankReport, RankSpan, RankTimeline, StrategyResult
from gpulab.parallel.scaling_results import (
    GlobalBatchResult,
    GlobalBatchRow,
    ScalingMeasurement,
    ScalingResult,
)
from gpulab.parallel.sweep_results import CollectivePoint, CollectiveSweep

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
