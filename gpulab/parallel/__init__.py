"""Several processes on one model: clusters of real ranks, their collectives, and the strategies that split the work."""

from gpulab.parallel._calls import CollectiveCall
from gpulab.parallel._cluster import Ranks, cluster
from gpulab.parallel._observe import Observer, observe
from gpulab.parallel._run_schedule import run_schedule
from gpulab.parallel._schedule_results import ScheduleRun
from gpulab.parallel.results import KINDS, RankReport, RankSpan, RankTimeline, StrategyResult

__all__ = [
    "KINDS",
    "CollectiveCall",
    "Observer",
    "RankReport",
    "RankSpan",
    "RankTimeline",
    "Ranks",
    "ScheduleRun",
    "StrategyResult",
    "cluster",
    "observe",
    "run_schedule",
]
