"""Timing that waits for the device, keeps the samples, and gives a reliable interval."""

from gpulab.timing import recorded as recorded  # the instruments' code calls it
from gpulab.timing.comparing import compare
from gpulab.timing.measurement import Comparison, ComparisonRow, Measurement
from gpulab.timing.measuring import measure
from gpulab.timing.work_arrays import device_of

__all__ = ["Comparison", "ComparisonRow", "Measurement", "compare", "device_of", "measure"]
