"""Plotly figures: one function for each kind of result, without widgets or arithmetic."""

from gpulab.figures import palette
from gpulab.figures._style import LabFigure, mimebundle
from gpulab.figures.kernels import access, occupancy
from gpulab.figures.memory import (
    machine,
    memory_prediction,
    memory_snapshot,
    memory_timeline,
    rank_memory,
)
from gpulab.figures.precision import gradient_window, number_line
from gpulab.figures.ranks import pipeline_schedule, rank_timeline, scaling
from gpulab.figures.roofline import class_predictions, class_roofline, inference, roofline
from gpulab.figures.timing import (
    bandwidth,
    break_even,
    comparison,
    latency,
    measurement,
    overlap,
    parallel_chains,
    sweep,
)
from gpulab.figures.training import diet, ladder_gains, pipeline, profile, waterfall

__all__ = [
    "LabFigure",
    "access",
    "bandwidth",
    "break_even",
    "class_predictions",
    "class_roofline",
    "comparison",
    "diet",
    "gradient_window",
    "inference",
    "ladder_gains",
    "latency",
    "machine",
    "measurement",
    "memory_prediction",
    "memory_snapshot",
    "memory_timeline",
    "mimebundle",
    "number_line",
    "occupancy",
    "overlap",
    "palette",
    "parallel_chains",
    "pipeline",
    "pipeline_schedule",
    "profile",
    "rank_memory",
    "rank_timeline",
    "roofline",
    "scaling",
    "sweep",
    "waterfall",
]
