"""The instruments: interactive controls around core calls, in files by subject.

The docstring of ``_instrument.py`` explains how to add one; it is made of the base class, actions,
controls and a drawing, which are public too. Each name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

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
_PUBLIC = {name: file for file, names in _FILES.items() for name in names}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}; expected one of {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
