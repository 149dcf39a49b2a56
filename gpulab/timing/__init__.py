"""Timing that waits for the device, keeps the samples, and gives a reliable interval."""

from gpulab.timing._work import device_of
from gpulab.timing.comparing import compare
from gpulab.timing.measurement import Comparison, ComparisonRow, Measurement
from gpulab.timing.measuring import measure

__all__ = ["Comparison", "ComparisonRow", "Measurement", "compare", "device_of", "measure"]
