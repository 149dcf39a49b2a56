"""Honest timing: the device has finished, the samples stay, the interval is honest, physics is checked."""

from gpulab.timing._compare import compare
from gpulab.timing._measure import measure
from gpulab.timing._work import device_of
from gpulab.timing.results import Comparison, ComparisonRow, Measurement

__all__ = ["Comparison", "ComparisonRow", "Measurement", "compare", "device_of", "measure"]
