"""The instruments: interactive controls around core calls, one instrument per file.

The docstring of ``_instrument.py`` explains how to add one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "MachineCard": "gpulab.widgets.machine",
    "CompareTimings": "gpulab.widgets.machine",
    "TransferExplorer": "gpulab.widgets.transfer_explorer",
    "MemoryInspector": "gpulab.widgets.memory_inspector",
    "OccupancyExplorer": "gpulab.widgets.kernels",
    "AccessPatterns": "gpulab.widgets.kernels",
    "RooflineExplorer": "gpulab.widgets.roofline_explorer",
    "SimtMicroscope": "gpulab.widgets.simt_microscope",
    "PipelineTimeline": "gpulab.widgets.training",
    "NumberFormats": "gpulab.widgets.precision",
    "LossScaling": "gpulab.widgets.precision",
    "PipelineSchedule": "gpulab.widgets.ranks",
    "ScalingLab": "gpulab.widgets.scaling_lab",
    "ShardingExplorer": "gpulab.widgets.sharding_explorer",
    "InferencePlanner": "gpulab.widgets.inference_planner",
    "ModelDiet": "gpulab.widgets.training",
    "Instrument": "gpulab.widgets._instrument",
}

# What an instrument of one's own is made of; no instruments, so not in ``__all__``.
_PARTS = {
    "Action": "gpulab.widgets._instrument",
    "Choice": "gpulab.widgets._controls",
    "Drawing": "gpulab.widgets._instrument",
    "Number": "gpulab.widgets._controls",
    "Several": "gpulab.widgets._controls",
    "Slider": "gpulab.widgets._controls",
    "Switch": "gpulab.widgets._controls",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE or name in _PARTS:
        return getattr(importlib.import_module(_WHERE.get(name) or _PARTS[name]), name)
    raise AttributeError(
        f"module 'gpulab.widgets' has no attribute {name!r}; expected one of {', '.join(_WHERE)}"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_PARTS})


if TYPE_CHECKING:
    from gpulab.widgets._controls import Choice as Choice
    from gpulab.widgets._controls import Number as Number
    from gpulab.widgets._controls import Several as Several
    from gpulab.widgets._controls import Slider as Slider
    from gpulab.widgets._controls import Switch as Switch
    from gpulab.widgets._instrument import Action as Action
    from gpulab.widgets._instrument import Drawing as Drawing
    from gpulab.widgets._instrument import Instrument as Instrument
    from gpulab.widgets.inference_planner import InferencePlanner as InferencePlanner
    from gpulab.widgets.kernels import AccessPatterns as AccessPatterns
    from gpulab.widgets.kernels import OccupancyExplorer as OccupancyExplorer
    from gpulab.widgets.machine import CompareTimings as CompareTimings
    from gpulab.widgets.machine import MachineCard as MachineCard
    from gpulab.widgets.memory_inspector import MemoryInspector as MemoryInspector
    from gpulab.widgets.precision import LossScaling as LossScaling
    from gpulab.widgets.precision import NumberFormats as NumberFormats
    from gpulab.widgets.ranks import PipelineSchedule as PipelineSchedule
    from gpulab.widgets.roofline_explorer import RooflineExplorer as RooflineExplorer
    from gpulab.widgets.scaling_lab import ScalingLab as ScalingLab
    from gpulab.widgets.simt_microscope import SimtMicroscope as SimtMicroscope
    from gpulab.widgets.training import ModelDiet as ModelDiet
    from gpulab.widgets.training import PipelineTimeline as PipelineTimeline
    from gpulab.widgets.transfer_explorer import TransferExplorer as TransferExplorer
