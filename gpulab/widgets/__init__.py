"""The instruments: interactive controls around core calls, in files by subject.

The docstring of ``_instrument.py`` explains how to add one; it is made of the base class, actions,
controls and a drawing, which are public too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulab.widgets._controls import Choice, Number, Several, Slider, Switch
    from gpulab.widgets._instrument import Action, Drawing, Instrument
    from gpulab.widgets.kernels import AccessPatterns, OccupancyExplorer, RooflineExplorer
    from gpulab.widgets.machine import CompareTimings, MachineCard, TransferExplorer
    from gpulab.widgets.memory import MemoryInspector, ShardingExplorer
    from gpulab.widgets.precision import LossScaling, NumberFormats
    from gpulab.widgets.ranks import PipelineSchedule, ScalingLab
    from gpulab.widgets.simt_microscope import SimtMicroscope
    from gpulab.widgets.training import InferencePlanner, ModelDiet, PipelineTimeline

_FILES = {
    "machine": ("CompareTimings", "MachineCard", "TransferExplorer"),
    "memory": ("MemoryInspector", "ShardingExplorer"),
    "kernels": ("AccessPatterns", "OccupancyExplorer", "RooflineExplorer"),
    "simt_microscope": ("SimtMicroscope",),
    "precision": ("LossScaling", "NumberFormats"),
    "ranks": ("PipelineSchedule", "ScalingLab"),
    "training": ("InferencePlanner", "ModelDiet", "PipelineTimeline"),
    "_instrument": ("Action", "Drawing", "Instrument"),
    "_controls": ("Choice", "Number", "Several", "Slider", "Switch"),
}

__all__ = [
    "AccessPatterns",
    "Action",
    "Choice",
    "CompareTimings",
    "Drawing",
    "InferencePlanner",
    "Instrument",
    "LossScaling",
    "MachineCard",
    "MemoryInspector",
    "ModelDiet",
    "Number",
    "NumberFormats",
    "OccupancyExplorer",
    "PipelineSchedule",
    "PipelineTimeline",
    "RooflineExplorer",
    "ScalingLab",
    "Several",
    "ShardingExplorer",
    "SimtMicroscope",
    "Slider",
    "Switch",
    "TransferExplorer",
]


def __getattr__(name: str) -> Any:
    for file, names in _FILES.items():
        if name in names:
            return getattr(importlib.import_module(f"gpulab.widgets.{file}"), name)
    raise AttributeError(
        f"module 'gpulab.widgets' has no attribute {name!r}; expected one of {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
