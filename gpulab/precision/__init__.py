"""Number formats: what they hold, how they round, what sums and products lose in them, and which of them autocast chooses."""

from gpulab.precision._autocast import AutocastPolicy, AutocastRow, AutocastTrace, TracedOperator, autocast_policy, autocast_trace
from gpulab.precision._codes import decode, encode, neighbours, spacing, values
from gpulab.precision._formats import Format, format, formats
from gpulab.precision._gradients import Gradients, Magnitudes, gradients
from gpulab.precision._number import Number, nearby, number, number_from_bits
from gpulab.precision._rounding import round_to, stochastic_round
from gpulab.precision._sums import ProductError, ProductRow, SumError, SumRow, matmul_error, sum_error
from gpulab.precision._tf32 import Tf32Switches, tf32, tf32_switches
from gpulab.precision._window import GradientWindow, Updates, gradient_window, swallowed_updates

__all__ = [
    "AutocastPolicy",
    "AutocastRow",
    "AutocastTrace",
    "Format",
    "GradientWindow",
    "Gradients",
    "Magnitudes",
    "Number",
    "ProductError",
    "ProductRow",
    "SumError",
    "SumRow",
    "Tf32Switches",
    "TracedOperator",
    "Updates",
    "autocast_policy",
    "autocast_trace",
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
    "stochastic_round",
    "sum_error",
    "swallowed_updates",
    "tf32",
    "tf32_switches",
    "values",
]
