"""Find two states of the clock in samples: two levels far apart, held for many calls each.

A processor that switches between two clocks gives two clusters of times. How often it switched, and
not how many samples there are, says how much is known about the share of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# By quartiles, halves of one normal cluster lie 2.2 of their own spreads apart, halves of a uniform
# one 2.7: two levels are further.
APART_SPREADS = 3.8
# Fewer switches than this between separate levels leave their shares unknown; at twelve calls a
# switch the batches take over.
FEW_SWITCHES = 10


@dataclass(frozen=True)
class Levels:
    """The best split of samples into a fast and a slow level.

    Attributes
    ----------
    fast_seconds, slow_seconds : float
        The median of each level.
    fast_share : float
        The share of samples in the fast one, 0 to 1.
    threshold_seconds : float
        Samples up to it are fast.
    separate : bool
        Whether the levels are two clusters rather than the halves of one.
    switches : int
        How often the samples went from one level to the other.
    """

    fast_seconds: float
    slow_seconds: float
    fast_share: float
    threshold_seconds: float
    separate: bool
    switches: int

    @property
    def unresolved(self) -> bool:
        """Return whether there are two levels with too few switches to know the share of each."""
        return self.separate and self.switches < FEW_SWITCHES


def split_levels(samples: np.ndarray, ordered: np.ndarray, smallest_share: float) -> Levels:
    """Return the split with the largest variance between its two parts (Otsu 1979), each at least
    ``smallest_share`` of all.
    """
    n = len(samples)
    first, last = max(1, int(smallest_share * n)), min(n - 1, int((1 - smallest_share) * n))
    edge = int(smallest_share / 2 * n)  # a rare huge sample must not decide the split
    values = np.clip(ordered, ordered[edge], ordered[n - 1 - edge]) - ordered[n // 2]
    sums = np.cumsum(values)
    counts = np.arange(first, last + 1)
    between = (sums[counts - 1] * n - counts * sums[-1]) ** 2 / (counts * (n - counts))
    count = int(counts[np.argmax(between)])
    fast, slow = ordered[:count], ordered[count:]
    low, high = float(np.median(fast)), float(np.median(slow))
    spread = (count * _spread(fast) + (n - count) * _spread(slow)) / n
    distance = high - low
    surely_slow, surely_fast = samples > low + 0.65 * distance, samples < low + 0.35 * distance
    states = surely_slow[surely_slow | surely_fast]
    switches = int(np.count_nonzero(states[1:] != states[:-1]))
    return Levels(
        low, high, count / n, float(ordered[count - 1]), distance > APART_SPREADS * spread, switches
    )


def _spread(ordered: np.ndarray) -> float:
    """Return the standard deviation that a normal cluster with these quartiles has."""
    n = len(ordered)
    return float(ordered[min(n - 1, 3 * n // 4)] - ordered[n // 4]) / 1.349
