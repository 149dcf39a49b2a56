"""Number formats: what they hold, how they round, what sums lose, what autocast chooses."""

from gpulab.precision._autocast import AutocastPolicy, AutocastRow, autocast_policy
from gpulab.precision._formats import (
    Format,
    Number,
    decode,
    encode,
    format,
    formats,
    nearby,
    number,
    number_from_bits,
    round_to,
)
from gpulab.precision._sums import (
    ProductError,
    ProductRow,
    SumError,
    SumRow,
    matmul_error,
    sum_error,
)
from gpulab.precision.gradient_windows import (
    Gradients,
    GradientWindow,
    Magnitudes,
    gradient_window,
    gradients,
)

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
    "number",
    "number_from_bits",
    "round_to",
    "sum_error",
]
