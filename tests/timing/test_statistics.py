"""Intervals of the median: exact values by hand, invariants, and coverage on seeded processes."""

import math
from typing import Any

import _faults_scripted as faults
import gpulab as gl
import numpy as np
import processes
import pytest
import scipy.stats
from gpulab.timing.statistics import (
    FEWEST_SAMPLES,
    is_precise,
    median_interval,
    paired_ratio,
    product_interval,
    ratio_interval,
    t_quantile,
)
from hypothesis import given
from hypothesis import strategies as st

from fake_machine import Clock


def shuffled(n: int, seed: int = 0) -> np.ndarray:
    """Return 0 .. n - 1 in random order, so that samples are independent."""
    return np.random.default_rng(seed).permutation(n).astype(float)


def held_states(runs: list[int], noise: float = 0.01) -> np.ndarray:
    """Return samples that begin at level 1 and go between 1 and 1.12 after each of ``runs``."""
    levels = np.concatenate([np.full(n, 1.12 if i % 2 else 1.0) for i, n in enumerate(runs)])
    return levels * (1 + noise * np.random.default_rng(2).standard_normal(len(levels)))


@pytest.mark.parametrize("degrees", [*range(1, 13), 15, 20, 30, 60, 120])
def test_students_t_is_scipys(degrees: int) -> None:
    """The quantile equals SciPy's within 0.2 %; less than one degree of freedom counts as one."""
    assert t_quantile(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=2e-3)
    assert t_quantile(1 / degrees) == t_quantile(1)


def test_an_interval_of_independent_samples_agrees_with_the_binomial() -> None:
    """The chance that the bounds enclose the median, from exact binomial sums, is 95 %."""
    low, high = median_interval(shuffled(401, 3))[0]
    ranks = range(math.ceil(low), math.floor(high) + 1)
    assert 0.945 < sum(math.comb(401, k) for k in ranks) / 2**401 < 0.965


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9])
def test_memory_widens_the_interval_as_theory_says(rho: float) -> None:
    """By the root of 1 + 2 sum (2/pi) asin(rho^k), the variance of the signs of a Gaussian AR(1)
    (Sheppard 1899).
    """
    inflation = 1 + 4 / math.pi * sum(math.asin(rho**k) for k in range(1, 2000))

    def width(memory: float) -> float:
        series = (
            processes.autoregressive(np.random.default_rng(s), 4000, memory) for s in range(20)
        )
        return float(np.mean([high - low for (low, high), _ in map(median_interval, series)]))

    assert width(rho) / width(0.0) == pytest.approx(math.sqrt(inflation), rel=0.1)


@pytest.mark.parametrize("n", [0, 1, FEWEST_SAMPLES - 1])
def test_few_samples_refuse_with_a_reason(n: int) -> None:
    """Below twenty samples there is no interval; equal samples have one without width."""
    interval, reason = median_interval(np.arange(float(n)))
    assert (interval, str(reason).partition(" sample")[0]) == (None, f"{n}")
    assert median_interval(shuffled(FEWEST_SAMPLES))[0] is not None
    assert median_interval(np.full(50, 0.25)) == ((0.25, 0.25), None)


@given(st.integers(20, 300), st.integers(0, 9999), st.floats(1e-9, 1e3), st.floats(0.0, 1e3))
def test_an_interval_follows_units(n: int, seed: int, scale: float, shift: float) -> None:
    """Another unit or a constant added moves the interval along with the samples."""
    samples = np.random.default_rng(seed).standard_normal(n)
    interval, moved = median_interval(samples)[0], median_interval(scale * samples + shift)[0]
    expected = scale * np.array(interval) + shift
    assert moved == pytest.approx(tuple(expected), abs=1e-6 * (scale + shift))


@given(st.lists(st.floats(0, 1e6), min_size=20, max_size=200))
def test_an_interval_holds_the_median_and_stays_among_the_samples(values: list[float]) -> None:
    """Whatever the samples, low <= median <= high, within the least and the largest."""
    samples = np.array(values)
    (low, high), rounding = median_interval(samples)[0], 1e-9 * samples.max()
    assert samples.min() <= low <= np.median(samples) + rounding
    assert np.median(samples) - rounding <= high <= samples.max()


def test_two_states_held_long_are_both_inside() -> None:
    """Three switches in a thousand calls leave the shares of the levels unknown."""
    samples = held_states([300, 100, 350, 250])
    low, high = median_interval(samples)[0]
    assert low < 1.002 < 1.118 < high
    samples[500] = 1000.0  # a stall decides nothing
    low, high = median_interval(samples)[0]
    assert low < 1.002 < 1.118 < high < 1.2


@pytest.mark.parametrize(
    ("samples", "enough"),
    [
        (held_states([10, 10]), False),
        (held_states([970, 30]), False),
        (held_states([985, 15]), True),  # below 3 % of them
        (held_states([50] * 10), False),  # nine switches
        (held_states([50] * 11), True),  # ten
        (np.random.default_rng(0).standard_normal(1000), True),
        (np.random.default_rng(0).random(1000), True),
    ],
)
def test_levels_with_few_switches_ask_for_more_samples(samples: np.ndarray, enough: bool) -> None:
    """Fewer than ten switches between levels are too few, however wide the interval may be.

    A level has at least 3 % of the samples; samples of one cluster have no levels.
    """
    assert is_precise(samples + 10.0, 10.0) == enough


def _beside(share: float, level: float) -> np.ndarray:
    """Return 400 samples near 1; those whose rank is beyond the share are at ``level``."""
    ranks = shuffled(400)
    beyond = ranks >= share * 400 if level > 1 else ranks < share * 400
    return np.where(beyond, level, 1 + 1e-6 * ranks)


@pytest.mark.parametrize(
    ("samples", "precise"),
    [
        (np.ones(5), False),
        (held_states([1000]), True),
        (held_states([965, 35]), False),  # the interval is narrow, and a second state has begun
        (1 + 0.1 * np.random.default_rng(0).standard_normal(100), False),
        (1 + 0.1 * np.random.default_rng(0).standard_normal(2000), True),
        # The interval lies within the middle 45 to 55 %: a jump close beside it asks for more.
        (_beside(0.9, 1.5), True),
        (_beside(0.57, 1.5), False),
        (_beside(0.43, 0.5), False),
    ],
)
def test_sampling_stops_where_the_interval_is_known(samples: np.ndarray, precise: bool) -> None:
    """Not with too few samples, a wide interval, an unknown second state, or a jump beside it."""
    assert is_precise(samples, 0.02) == precise


def _pair(seed: int, rho: float, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    one, two = (np.exp(0.05 * processes.autoregressive(rng, 500, rho)) for _ in range(2))
    state = np.where(processes.autoregressive(rng, 500, 0.98) > 0, 1.12, 1.0) if shared else 1.0
    return 2.0 * one * state, two * state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "paired", "shared"),
    [(0.0, False, False), (0.6, False, False), (0.6, True, False), (0.0, True, True)],
)
def test_the_interval_of_a_ratio_covers(rho: float, paired: bool, shared: bool) -> None:
    """A ratio of 2 lies inside in 89 to 99.5 % of 300 runs (the binomial's reach of 95 %)."""
    pairs = [_pair(seed, rho, shared) for seed in range(300)]
    found = np.array([paired_ratio(*p)[1] if paired else ratio_interval(*p) for p in pairs])
    assert 0.89 <= np.mean((found[:, 0] <= 2) & (found[:, 1] >= 2)) <= 0.995
    assert np.mean(found[:, 1] - found[:, 0]) < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.05, 0.15])
def test_the_interval_of_a_product_covers(share: float) -> None:
    """The product of six speed-ups of 1.1 lies inside in at least 89 % of 200 runs.

    All have the same script as baseline, and a share of the times is two to six times as long. The
    median ratio of the ends of the interval stays below 2.
    """
    rng, shape, found = np.random.default_rng(1), (7, 60), []
    for _ in range(200):
        longer = np.where(rng.random(shape) < share, rng.uniform(2, 6, shape), 1)
        script, *forms = longer * np.exp(0.05 * rng.normal(size=shape))
        found.append(product_interval(script / np.array(forms) * 1.1))
    low, high = np.transpose(found)
    assert np.mean((low <= 1.1**6) & (high >= 1.1**6)) >= 0.89
    assert np.median(high / low) < 2


def test_ratios_by_hand() -> None:
    """Pairs cancel common disturbances; unpaired half-widths add in quadrature on a log scale."""
    one, two = _pair(0, 0.0, shared=True)
    paired, apart = paired_ratio(one, two)[1], ratio_interval(one, two)
    assert paired[1] - paired[0] < 0.05 < 0.2 < apart[1] - apart[0]
    a, b = np.exp(0.001 * shuffled(400, 1)), np.exp(0.001 * shuffled(400, 2))
    halves = [np.diff(np.log(median_interval(x)[0]))[0] / 2 for x in (a, b)]
    expected = math.hypot(*halves)
    assert np.log(ratio_interval(a, b)) == pytest.approx([-expected, expected], rel=1e-3)
    assert np.log(product_interval(np.array([a, 1 / b]))) == pytest.approx(
        [-expected, expected], rel=0.1
    )
    x, y = np.array([1.0, 4.0, 16.0]), np.array([2.0, 4.0, 2.0])
    assert paired_ratio(x, y) == (1.0, None)


@given(st.integers(0, 9999))
def test_a_ratio_lies_in_its_interval(seed: int) -> None:
    """The estimate that belongs to an interval is inside it, paired or not."""
    one, two = _pair(seed, 0.3, shared=seed % 2 == 0)
    ratio, (least, most) = paired_ratio(one, two)
    low, high = ratio_interval(one, two)
    assert (least <= ratio <= most, low <= np.median(one) / np.median(two) <= high) == (True, True)


def test_a_ratio_that_has_no_meaning_has_no_interval() -> None:
    """Too few samples, or times of zero or infinity, give no interval."""
    one, none = 1 + shuffled(50), np.zeros(50)
    assert (ratio_interval(one, none[:3]), ratio_interval(one, none)) == (None, None)
    assert np.isnan(paired_ratio(one, none)[0])
    assert [product_interval(np.array([one, x])) for x in (none, one * math.inf)] == [None, None]


PROCESSES = {process.name: process for process in processes.catalogue()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "independent 2%",
        "independent 10% lognormal",
        "AR(1) 0.9 2%",
        "states 100 random 2.0%",
        "drift linear +10% noise 2%",
        "tails t2",
        "tails spikes 10",
    ],
)
def test_measured_intervals_cover_the_truth(name: str) -> None:
    """gl.measure on 40 seeded runs of a process; benchmarks/ has the long form.

    A method that covers 95 % covers less than 34 of them once in a hundred times.
    """
    process, covered = PROCESSES[name], 0
    for seed in range(40):
        drawn = process.draw(np.random.default_rng([9, seed]), 5000)
        clock, seconds = Clock(), drawn.durations_seconds.tolist()
        m = gl.measure(clock.takes(seconds.__getitem__), clock=clock, device="cpu")
        n = len(m.samples_seconds)
        window = None if drawn.levels is None else drawn.levels[clock.calls - n + 1 :][:n]
        least, most = process.truth(processes.Drawn(drawn.durations_seconds, window), n)
        covered += m.interval_seconds[0] <= most and m.interval_seconds[1] >= least
        if process.family in ("independent", "ar1"):
            assert np.ptp(m.interval_seconds) <= 0.03 * m.median_seconds
    assert covered >= 34


def _codes(made: Any) -> set[str]:
    return {note.code for note in (made if isinstance(made, list) else made.notes)}


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults.SCRIPTED)
def test_faults_of_5_percent_get_their_note(fault: str) -> None:
    """On scripted clocks and counters (benchmarks/detection.py has the long form)."""
    make, code = faults.SCRIPTED[fault]
    assert [seed for seed in range(50_000, 50_012) if code not in _codes(make(seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", faults.CLEAN)
def test_undisturbed_runs_get_none(kind: str) -> None:
    """Noise that is independent, correlated or heavy-tailed is no alarm."""
    alarms = {"implausible", "unstable", "contended", "stalled", "throttled", "warm-cache"}
    made = [faults.CLEAN[kind](seed) for seed in range(60_000, 60_021)]
    assert [alarms & _codes(each) for each in made] == [set()] * 21
