"""Number formats: what they hold, how they round, what sums and products lose in them, and which of
them autocast chooses.
"""

from gpulab.precision._autocast import AutocastPolicy, AutocastRow, autocast_policy
from gpulab.precision._codes import decode, encode, neighbours, spacing
from gpulab.precision._formats import Format, format, formats
from gpulab.precision._gradients import Gradients, Magnitudes, gradients
from gpulab.precision._number import Number, nearby, number, number_from_bits
from gpulab.precision._rounding import round_to
from gpulab.precision._sums import (
    ProductError,
    ProductRow,
    SumError,
    SumRow,
    matmul_error,
    sum_error,
)
from gpulab.precision.gradient_windows import GradientWindow, gradient_window

__all__ = [
    "AutocastPolicy",
    "AutocastRow",
    "Format",
    "GradientWindow",
    "Gradients",
    "Magnitudes",
    "Number",
    "ProductError",
    "ProductRow",
    "SumError",
    "SumRow",
    "autocast_policy",
    "decode",
    "encode",
    "format",
    "formats",
    "gradient_window",
    "gradients",
    "matmul_error",
    "nearby",
    "neighbours",
    "number",
    "number_from_bits",
    "round_to",
    "spacing",
    "sum_error",
]
