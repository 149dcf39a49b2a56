"""One case timed at several moments of a run (visits), and the statistics over the visits.

The interval of one visit covers only the moment of the visit. A machine's clock, its caches and
other processes change from minute to minute, which shows only between visits: the visits, not the
samples within one visit, are independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpulab.evidence import Note
from gpulab.recordings._schema import KEPT_SAMPLES, Timing, thin
from gpulab.units import format_seconds

# Student's t, two-sided 95 %, by degrees of freedom: NIST/SEMATECH e-Handbook of Statistical
# Methods, 1.3.6.7.2.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
# A note that an interval between visits answers.
_NO_INTERVAL = "no-interval"
# An interval whose ends lie further apart says nothing: two visits that differ by ten reach over
# twelve orders of magnitude.
_MOST_APART = 1e4


def visits_of(timing: Timing) -> tuple[float, ...]:
    """Return the median of each visit in seconds, in their order."""
    return timing.visits_seconds or (timing.median_seconds,)


def between(visits_seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval, in seconds, of the median time from 2 to ``MOST_VISITS`` visits.

    Student's t of the logarithms, since a machine is slower by factors; stretched to the median
    where that lies outside. None where its ends lie more than ten thousand times apart.
    """
    logs = np.log(np.asarray(visits_seconds, dtype=float))
    half = _T_95[len(logs) - 2] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    if 2 * half > math.log(_MOST_APART):
        return None
    middle, median = float(logs.mean()), float(np.median(visits_seconds))
    return min(math.exp(middle - half), median), max(math.exp(middle + half), median)


def together(before: Timing, visit: Timing) -> Timing:
    """Return one timing that combines all previous visits with a further one.

    The median is that of the visits' medians, and the interval is between them. The first call is
    the first visit's; the times of a launch and with the transfer are means over the visits; each
    visit keeps its share of the samples.
    """
    count = len(visits_of(before)) + 1
    visits = (*visits_of(before), visit.median_seconds)
    kept = KEPT_SAMPLES // count
    samples = np.concatenate(
        [thin(before.samples_seconds, KEPT_SAMPLES - kept), thin(visit.samples_seconds, kept)]
    )
    transfers = (before.with_transfer_seconds, visit.with_transfer_seconds)
    interval = between(visits)
    notes = {note.code: note for note in (*before.notes, *visit.notes) if note.code != _NO_INTERVAL}
    if interval is None:
        apart = f"{format_seconds(min(visits))} to {format_seconds(max(visits))}"
        sentence = (
            f"{count} visits took from {apart}, so the interval would be meaningless. Use "
            "more --visits."
        )
        notes[_NO_INTERVAL] = Note(_NO_INTERVAL, sentence)
    return replace(
        before,
        samples_seconds=samples,
        sample_count=before.sample_count + visit.sample_count,
        median_seconds=float(np.median(visits)),
        interval_seconds=interval,
        launch_seconds=_mean(before.launch_seconds, visit.launch_seconds, count),
        with_transfer_seconds=None
        if transfers[0] is None or transfers[1] is None
        else _mean(transfers[0], transfers[1], count),
        notes=tuple(notes.values()),
        visits_seconds=visits,
    )


def _mean(of_all_before: float, last: float, count: int) -> float:
    return of_all_before + (last - of_all_before) / count
