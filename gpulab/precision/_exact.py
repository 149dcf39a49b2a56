"""Additions rounded once to a narrow format, though float64 does the arithmetic.

The float64 sum of two numbers may itself be rounded, and rounding it again could go wrong. The rest
that float64 lost is known exactly (Knuth's two-sum); where there is one, a sum whose last bit is
even is moved to its odd neighbor on the side of the rest. Such a sum lies on no midpoint of a
narrower format, so the second rounding decides as one rounding would (Boldo and Melquiond, 2008).
"""

from __future__ import annotations

import math

import numpy as np

from gpulab.precision._formats import Format
from gpulab.precision._rounding import rounded


def add(a: np.ndarray, b: np.ndarray, one: Format) -> np.ndarray:
    """Return a + b rounded once to a format of at most 50 bits of mantissa; beyond its largest
    number, infinity or what its rule says.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        total = a + b
        other = total - a
        rest = (a - (total - other)) + (b - other)
        even = (
            np.ascontiguousarray(total).view(np.uint64).reshape(np.shape(total)) & np.uint64(1)
        ) == 0
        lost = np.isfinite(total) & (rest != 0) & even
        odd = np.where(lost, np.nextafter(total, np.copysign(np.inf, rest)), total)
    return rounded(odd, one, one.overflow)


def running_sum(values: list[float], one: Format) -> float:
    """Return the sum of numbers, one after the other, with each partial sum rounded once; the same
    as ``add`` in a loop, and faster.
    """
    lowest, kept, largest = one.emin, one.mantissa_bits, one.largest
    total = 0.0
    for value in values:
        exact = total + value
        if exact == 0 or not math.isfinite(exact):
            total = exact
            continue
        other = exact - total
        rest = (total - (exact - other)) + (value - other)
        unit = math.ldexp(1.0, max(math.frexp(exact)[1] - 1, lowest) - kept)
        steps = exact / unit
        down = math.floor(steps)
        nearest = round(steps) if rest == 0 or steps - down != 0.5 else down + (rest > 0)
        total = nearest * unit
        if abs(total) > largest:
            total = in_range(total, one)
    return total


def in_range(value: float, one: Format) -> float:
    """Return a number of a float format's grid, as it would be without an end, as the format's own
    rule has it: what ``finished`` does.
    """
    if math.isnan(value):
        return one.nan_becomes
    if abs(value) <= one.largest:
        return value
    return math.copysign(
        {"infinity": math.inf, "nan": math.nan, "saturate": one.largest}[one.overflow], value
    )
