"""Where a curve over the working set leaves one level of memory for the next: plain arithmetic on
sizes and times.

The curve is first lowered: a larger set cannot be faster, so a point above a later one was
disturbed, and takes the later one's value. A rise is a stretch of points in which the time goes up
by a tenth or more with every doubling of the set, and by a fifth in all, clear of the points' own
intervals. What lies between two rises is a level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Less than this for a doubling of the set is the slow growth inside a level (more pages, more
# traffic), not its end.
_RISE_PER_OCTAVE = 1.10
# A rise of less cannot be told from the noise of a busy machine. Between the levels of today's
# memories lie factors of 1.5 and more.
_LEAST_RISE = 1.20
# A reported size further away than this is not what ended the level.
_FURTHEST_OCTAVES = 4.0


@dataclass(frozen=True)
class Rise:
    """One end of a level: indices of the last point before the rise and of the first one after it,
    and the size in between.
    """

    start: int
    end: int
    size: float


def lowered(seconds: Sequence[float]) -> np.ndarray:
    """Return the curve with every point at most as high as those after it."""
    return np.minimum.accumulate(np.asarray(seconds, dtype=float)[::-1])[::-1]


def rises(sizes: Sequence[float], seconds: Sequence[float]) -> list[Rise]:
    """Return the rises of a curve, in order of size.

    Parameters
    ----------
    sizes : sequence of float
        Ascending.
    seconds : sequence of float
        Of one hop, or of one byte: of each point's fastest sample, for disturbances make a chase
        slower, never faster.
    """
    y, octaves = np.log(lowered(seconds)), np.log2(np.asarray(sizes, dtype=float))
    if len(y) < 2:
        return []
    steep = np.diff(y) >= math.log(_RISE_PER_OCTAVE) * np.diff(octaves)
    found = []
    for rising, group in itertools.groupby(range(len(steep)), key=lambda k: bool(steep[k])):
        if not rising:
            continue
        steps = list(group)
        start, end = steps[0], steps[-1] + 1
        if y[end] - y[start] >= math.log(_LEAST_RISE):
            found.append(Rise(start, end, _crossing(octaves, y, start, end)))
    return found


def _crossing(octaves: np.ndarray, y: np.ndarray, start: int, end: int) -> float:
    """Return the size at which the curve passes half of the rise, on log scales."""
    middle = (y[start] + y[end]) / 2
    return float(2.0 ** np.interp(middle, y[start : end + 1], octaves[start : end + 1]))


def matched(found: Sequence[float], reported: Sequence[float]) -> list[int | None]:
    """Return for each step the index of the reported size that it belongs to, in order, or None.

    Of all assignments that keep the order, the one with the most pairs within four doublings, and
    of these the nearest.
    """
    best: tuple[int, float] = (0, 0.0)
    answer: list[int | None] = [None] * len(found)
    for count in range(min(len(found), len(reported)), 0, -1):
        for steps in itertools.combinations(range(len(found)), count):
            for caches in itertools.combinations(range(len(reported)), count):
                away = [
                    abs(math.log2(found[s] / reported[c]))
                    for s, c in zip(steps, caches, strict=True)
                ]
                # of two that are equally near, the smaller cache
                rank = (-count, round(sum(away), 6))
                if max(away) <= _FURTHEST_OCTAVES and rank < best:
                    best = rank
                    answer = [None] * len(found)
                    for s, c in zip(steps, caches, strict=True):
                        answer[s] = c
    return answer
