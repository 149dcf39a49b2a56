"""An honest interval of the median of samples that may be correlated; arithmetic only, no clock is read here."""

from __future__ import annotations

import math

import numpy as np


def median_interval(samples: np.ndarray) -> tuple[tuple[float, float] | None, str | None]:
    """Return a 95 % interval of the median and None, or None and the reason why none is honest."""
    n = len(samples)
    if n < 6:
        return None, f"{n} samples are too few for a 95 % interval of the median; 6 are the least"
    half = 0.98 * math.sqrt(n)
    low = max(0, math.floor(n / 2 - half))
    high = min(n - 1, math.ceil(n / 2 + half) - 1)
    ordered = np.sort(samples)
    return (float(ordered[low]), float(ordered[high])), None


def ratio_interval(baseline: np.ndarray, other: np.ndarray) -> tuple[tuple[float, float] | None, str | None]:
    """Return a 95 % interval of median(baseline) / median(other) and None, or None and the reason why none is honest."""
    a, why_a = median_interval(baseline)
    b, why_b = median_interval(other)
    if a is None or b is None or b[0] <= 0:
        return None, why_a or why_b or "a time is zero"
    return (a[0] / b[1], a[1] / b[0]), None
