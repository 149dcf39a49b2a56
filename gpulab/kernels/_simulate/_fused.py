"""A product and a sum that are rounded once, as a GPU's fma: NumPy has none.

Source: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms
using rounding to odd", IEEE Transactions on Computers 57(4), 2008. Where a part would leave the
range of float64, product and sum are rounded each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Value = Any  # an array of float64, or a NumPy scalar

_SPLITTER = 2.0**27 + 1
# of the product, so that none of its parts loses bits; where one overflows, the sum is no finite
# number
_SMALLEST = 2.0**-960


def fused(x: Value, y: Value, z: Value, single: bool) -> Value:
    """Return ``x * y + z``; where ``single``, of numbers that are float32, so that the result
    becomes float32 by one rounding.
    """
    plain = x * y + z
    if single:  # the product is exact
        found = _odd_sum(x * y, z)
        return np.where(np.isfinite(found), found, plain)[()]
    high, low = _product(x, y)
    first, second = _sum(z, low)
    most, rest = _sum(high, first)
    found = most + _odd_sum(second, rest)
    inside = (abs(high) > _SMALLEST) & np.isfinite(found) & (found != 0)
    return np.where(inside, found, plain)[()]


def _product(x: Value, y: Value) -> tuple[Value, Value]:
    """Return a product and what its rounding lost (Dekker)."""
    high = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    return high, ((a * c - high) + a * d + b * c) + b * d


def _halves(x: Value) -> tuple[Value, Value]:
    far = _SPLITTER * x
    high = far - (far - x)
    return high, x - high


def _sum(x: Value, y: Value) -> tuple[Value, Value]:
    """Return a sum and what its rounding lost (Knuth)."""
    found = x + y
    part = found - x
    return found, (x - (found - part)) + (y - part)


def _odd_sum(x: Value, y: Value) -> Value:
    """Return a sum that, where it is not exact, is rounded to the neighbor whose last bit is 1."""
    found, lost = _sum(x, y)
    is_even: Any = (np.asarray(found).view(np.int64) & 1) == 0
    moved: Any = np.where(
        is_even & (lost != 0) & np.isfinite(lost),
        np.nextafter(found, np.copysign(np.inf, lost)),
        found,
    )
    return moved[()]
