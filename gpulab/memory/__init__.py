"""What holds a device's memory, what a training step needs, and how to free memory."""

from gpulab.memory._traffic import OperatorTraffic, Traffic, traffic
from gpulab.memory.held_memory import (
    CellMemory,
    HeldTensor,
    Limit,
    Released,
    Snapshot,
    limit,
    release,
    snapshot,
    watch,
)
from gpulab.memory.predictions import largest_batch, predict, trace
from gpulab.memory.step_memory import CATEGORIES, LiveTensor, MemoryTrace, Prediction, Timeline

__all__ = [
    "CATEGORIES",
    "CellMemory",
    "HeldTensor",
    "Limit",
    "LiveTensor",
    "MemoryTrace",
    "OperatorTraffic",
    "Prediction",
    "Released",
    "Snapshot",
    "Timeline",
    "Traffic",
    "largest_batch",
    "limit",
    "predict",
    "release",
    "snapshot",
    "trace",
    "traffic",
    "watch",
]
