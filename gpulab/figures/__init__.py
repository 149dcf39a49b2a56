"""Result in, plotly figure out: one function a kind of result, no widgets, no arithmetic beyond what a picture needs."""

from gpulab.figures import palette
from gpulab.figures._style import LabFigure, mimebundle
from gpulab.figures.machine import machine
from gpulab.figures.timing import comparison, measurement

__all__ = ["LabFigure", "comparison", "machine", "measurement", "mimebundle", "palette"]
