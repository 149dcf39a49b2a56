"""The instruments: interactive controls around core calls, in files by subject.

The docstring of ``_instrument.py`` explains how to add an instrument. Its parts (the base class,
actions, controls and a drawing) are public too. Each name is imported on first use.
"""

from __future__ import annotations

from gpulab._first_use import on_first_use as _on_first_use

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
_PUBLIC = {name: f"{__name__}.{file}" for file, names in _FILES.items() for name in names}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605
__getattr__, __dir__ = _on_first_use(__name__, _PUBLIC)
