"""Timing that waits for the device, keeps the samples, and gives a reliable interval."""

from gpulab.timing._work import device_of
from gpulab.timing.comparing import compare
from gpulab.timing.measuring import measure
from gpulab.timing.results import Comparison, ComparisonRow, Measurement

__all__ = ["Comparison", "ComparisonRow", "Measurement", "compare", "device_of", "measure"]
