"""Several visits to one case: the interval by scipy's own t and by simulation, and what becomes of samples, notes and means."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from test_recordings import a_timing

from gpulab.errors import RecordingError
from gpulab.evidence import Note
from gpulab.recordings import Timing
from gpulab.recordings._schema import KEPT_SAMPLES, MOST_VISITS
from gpulab.recordings._visits import between, together, visits_of


def a_visit(seconds: float, n: int = 3, **changes: object) -> Timing:
    """One visit with that median, its samples all equal."""
    fields = {"samples_seconds": np.full(n, seconds), "sample_count": n, "median_seconds": seconds}
    return a_timing(**{**fields, "interval_seconds": (seconds, seconds), "notes": (), **changes})


@pytest.mark.parametrize("count", range(2, MOST_VISITS + 1))
def test_the_interval_is_students_t_of_the_logarithms(count: int) -> None:
    """By scipy, for each number of visits that is allowed."""
    visits = np.random.default_rng(count).lognormal(-7.0, 0.1, count)
    logs = np.log(visits)
    wanted = np.exp(scipy.stats.t.interval(0.95, count - 1, loc=logs.mean(), scale=scipy.stats.sem(logs)))
    median = np.median(visits)
    assert between(visits) == pytest.approx((min(wanted[0], median), max(wanted[1], median)), rel=1e-3)


def test_three_visits_of_a_machine_that_moves_hold_its_pace_in_95_of_100() -> None:
    """Of 20,000 machines whose pace moves by 20 % between visits, as many intervals hold the pace as they say, within chance (0.5 %)."""
    visits = np.random.default_rng(1).lognormal(0.0, 0.2, (20_000, 3))
    held = np.mean([low <= 1.0 <= high for low, high in map(between, visits)])
    assert held == pytest.approx(0.95, abs=0.005)


def test_the_interval_reaches_to_a_median_far_from_the_mean() -> None:
    """Six visits of 1 ms and four of 1 s: t alone would begin at 1.2 ms, above the median."""
    low, high = between([1e-3] * 6 + [1.0] * 4)
    assert low == 1e-3
    assert high > 1e-2


def test_an_interval_that_says_nothing_is_none() -> None:
    """Two visits r apart reach over r to the power of 12.706: 2.06 is under ten thousand times, 2.07 over. Further visits may mend it."""
    assert 2.06**12.706 < 1e4 < 2.07**12.706 < 1.05e4
    assert between([1e-3, 2.06e-3]) is not None
    assert between([1e-3, 2.07e-3]) is None
    apart = together(a_visit(4e-3), a_visit(16e-6))
    assert apart.interval_seconds is None
    assert apart.notes == (
        Note("no-interval", "2 visits took from 16.0 us to 4.00 ms, so that an interval says nothing. Give it more --visits."),
    )
    assert Timing.from_dict(apart.to_dict()).to_dict() == apart.to_dict()
    for _ in range(8):
        apart = together(apart, a_visit(16e-6))
    assert apart.interval_seconds is not None
    assert apart.notes == ()


def test_visits_are_joined() -> None:
    """By hand: the median of the medians, all samples counted, means over the visits, the first call of the first."""
    first = a_visit(1e-3, 100, first_call_seconds=0.5, launch_seconds=1e-4, with_transfer_seconds=2e-3)
    second = a_visit(3e-3, 50, first_call_seconds=0.1, launch_seconds=3e-4, with_transfer_seconds=4e-3)
    third = a_visit(2e-3, 50, launch_seconds=5e-4, with_transfer_seconds=9e-3)
    joined = together(together(first, second), third)
    assert (joined.median_seconds, joined.sample_count, joined.first_call_seconds) == (2e-3, 200, 0.5)
    assert joined.launch_seconds == pytest.approx(3e-4)
    assert joined.with_transfer_seconds == pytest.approx(5e-3)
    assert visits_of(first) == (1e-3,)
    assert visits_of(joined) == (1e-3, 3e-3, 2e-3)
    kept = [int(np.sum(joined.samples_seconds == seconds)) for seconds in visits_of(joined)]
    assert sum(kept) <= KEPT_SAMPLES
    assert min(kept) >= 10
    assert Timing.from_dict(joined.to_dict()).to_dict() == joined.to_dict()


def test_visits_give_an_interval_where_one_alone_has_none() -> None:
    """The note that says there is none goes; another stays, once."""
    none, slow = Note("no-interval", "3 samples are too few"), Note("slow-first-call", "the first call took 200 times as long")
    visits = [a_visit(seconds, interval_seconds=None, notes=(none, slow)) for seconds in (1e-3, 2e-3)]
    joined = together(*visits)
    assert joined.interval_seconds is not None
    assert joined.notes == (slow,)


def test_one_visit_without_the_transfer_leaves_it_out() -> None:
    """A mean of one number and of nothing is nothing."""
    assert together(a_visit(1e-3, with_transfer_seconds=1e-3), a_visit(1e-3)).with_transfer_seconds is None


@pytest.mark.parametrize("visits", [(1e-3, 0.0), (1e-3, -1e-3), (float("inf"),), (float("nan"), 1e-3), (1e-3,) * 4, (1e-3,) * 11])
def test_visits_that_no_clock_gave_are_refused(visits: tuple[float, ...]) -> None:
    """Zero, negative, not finite, more than the samples, more than there may be."""
    with pytest.raises(RecordingError):
        a_timing(visits_seconds=visits)


def test_a_file_of_version_1_has_one_visit() -> None:
    """What was recorded before there were visits reads as it is."""
    data = a_timing().to_dict()
    del data["visits_seconds"]
    data["schema_version"] = 1
    assert Timing.from_dict(data).visits_seconds == ()
