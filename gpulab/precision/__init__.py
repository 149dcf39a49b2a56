"""Number formats: what they hold, how they round, what is lost in sums and products, and which of them autocast chooses."""

from gpulab.precision._codes import decode, encode, neighbours, spacing, values
from gpulab.precision._formats import Format, format, formats
from gpulab.precision._rounding import round_to, stochastic_round

__all__ = [
    "Format",
    "decode",
    "encode",
    "format",
    "formats",
    "neighbours",
    "round_to",
    "spacing",
    "stochastic_round",
    "values",
]
