"""Levels in samples: what shifts, ramps, jumps or wanders is told; what only scatters is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.timing import levels
from gpulab.timing.levels import condensed, level_shift, two_heaps, wander


def _noise(seed: int, n: int, size: float = 0.01) -> np.ndarray:
    return 1 + size * np.random.default_rng(seed).standard_normal(n)


def _found(samples: np.ndarray) -> bool:
    return any(test(samples, 0.03) is not None for test in (level_shift, two_heaps, wander))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [40, 300, 2000])
def test_steps_and_drifts_are_found(seed, n):
    """A step in the middle and a straight drift are found, and their size is right to a fifth."""
    samples = _noise(seed, n)
    step = np.where(np.arange(n) < n // 2, 1.0, 1.08)
    drift = 1 + 0.1 * np.arange(n) / n
    assert level_shift(samples * step, 0.03) == pytest.approx(0.08, rel=0.2)
    assert level_shift(samples * drift, 0.03) == pytest.approx(0.1, rel=0.2)


def test_a_stretch_in_the_middle_is_found():
    """A disturbance that comes and goes leaves both ends alike and is still told."""
    samples = _noise(1, 1000)
    samples[300:450] *= 1.06
    assert level_shift(samples, 0.03) == pytest.approx(0.06, rel=0.2)


def test_a_straight_ramp_is_fitted_exactly():
    """From 2 to 2.5 without any scatter: a quarter of the lower end, and certain. The same of a step on its own."""
    effect, score = levels._best_ramp(np.linspace(2.0, 2.5, 64), 6)
    assert effect == pytest.approx(0.25)
    assert score > 1e6
    falling, _ = levels._best_ramp(np.linspace(2.5, 2.0, 64), 6)
    assert falling == pytest.approx(0.25)


def test_a_small_shift_is_below_what_was_asked():
    """Two per cent are not told where three are the least, however clear they are."""
    samples = _noise(2, 2000, 0.001) * np.where(np.arange(2000) < 1000, 1.0, 1.02)
    assert level_shift(samples, 0.03) is None
    assert level_shift(samples, 0.01) is not None


def test_two_levels_that_alternate_call_by_call():
    """A bimodal time without order in time is told with both levels."""
    rng = np.random.default_rng(3)
    samples = np.where(rng.random(500) < 0.5, 1.0, 1.12) * _noise(4, 500)
    levels = two_heaps(samples, 0.03)
    assert levels == pytest.approx((1.0, 1.12), rel=0.01)


def test_states_held_for_a_while_wander():
    """States of a twentieth of the window each, six per cent apart under two per cent of noise, are told as wandering."""
    samples = _noise(5, 2000, 0.02) * np.where(np.arange(2000) // 100 % 2, 1.06, 1.0)
    assert wander(samples, 0.03) == pytest.approx(0.06, rel=0.3)


@pytest.mark.parametrize("n", [8, 20, 64, 500, 2000])
@pytest.mark.parametrize("draw", ["normal", "exponential", "lognormal", "student"])
def test_scatter_alone_is_one_level(n, draw):
    """Independent scatter, tails included, has one level: at most one in a hundred is mistaken."""
    rng = np.random.default_rng(6)
    draws = {
        "normal": lambda: 1 + 0.1 * rng.standard_normal(n),
        "exponential": lambda: 1 + 0.1 * rng.exponential(1, n),
        "lognormal": lambda: 1 + 0.05 * rng.lognormal(0, 1, n),
        "student": lambda: np.maximum(0.3, 1 + 0.05 * rng.standard_t(3, n)),
    }
    assert sum(_found(draws[draw]()) for _ in range(60)) <= 1


def test_correlated_noise_is_one_level():
    """AR(1) noise with rho = 0.9 wanders by itself; over two thousand samples that is not mistaken for a fault."""
    mistaken = 0
    for seed in range(40):
        steps = np.random.default_rng(seed).standard_normal(2000) * np.sqrt(1 - 0.81)
        noise = np.empty(2000)
        noise[0] = steps[0]
        for i in range(1, 2000):
            noise[i] = 0.9 * noise[i - 1] + steps[i]
        mistaken += _found(1 + 0.05 * noise)
    assert mistaken <= 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(min_value=0.0, max_value=1e6, allow_subnormal=False), min_size=0, max_size=300))
def test_any_samples_are_safe(values):
    """Zeros, constants and huge ranges give an answer, never an error; what is told is at least what was asked."""
    samples = np.array(values)
    for test in (level_shift, wander):
        told = test(samples, 0.05)
        assert told is None or told >= 0.05
    levels = two_heaps(samples, 0.05)
    assert levels is None or levels[1] >= 1.05 * levels[0] > 0


def test_constant_samples_are_one_level():
    """A scripted clock gives identical samples: one level, no division by zero."""
    for n in (8, 64, 3000):
        assert not _found(np.full(n, 1e-3))


def test_condensed_points_are_medians_in_order():
    """Points are medians of consecutive stretches, so an outlier does not show and the order stays."""
    samples = np.arange(640.0)
    samples[5] = 1e9
    points = condensed(samples)
    assert len(points) == 64
    assert points[1] == np.median(samples[10:20])
    assert np.all(np.diff(points) > 0)


def test_wandering_below_what_was_asked_is_not_told():
    """Levels two per cent apart are not told where three are the least, however little noise there is; where one is, they are."""
    samples = _noise(9, 2000, 0.002) * np.where(np.arange(2000) // 100 % 2, 1.02, 1.0)
    assert wander(samples, 0.03) is None
    assert wander(samples, 0.01) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("rest", "spread"),
    [
        ([0.0] * 9, 0.0),
        # Ten values to and fro remember nothing: sqrt(10 / 8), widened by 5 / 10 for being few.
        ([1.0, -1.0] * 5, (10 / 8) ** 0.5 * 1.5),
        # Ten alike: a memory of 0.95 at most, so 39 times the variance, and 1 + 5 x 39 / 10.
        ([1.0] * 10, (10 / 8 * 39) ** 0.5 * 20.5),
        # Two by two: neighbours agree four times in seven, so rho = 1/8, with its bias 1/8 + 3/2 / 8 = 5/16, and 21/11 times the variance.
        ([1.0, 1.0, -1.0, -1.0] * 2, (8 / 6 * 21 / 11) ** 0.5 * (1 + 5 * 21 / 11 / 8)),
        ([1.0, -1.0], 2**0.5 * 3.5),
    ],
)
def test_the_spread_that_counts_for_a_mean_by_hand(rest: list[float], spread: float) -> None:
    """The standard deviation, times what memory costs, wider where few values stand behind it."""
    assert levels._long_run_spread(np.array(rest)) == pytest.approx(spread)


def test_an_effect_is_told_against_the_lower_level_and_against_chance() -> None:
    """By hand: 2 and 2.5 are a quarter apart; a scatter of 1.118 x 1.5 at a reach of a tenth makes that 2.98 times the chance of it."""
    scatter = np.array([1.0, -1.0] * 5)
    for one, other in ((2.0, 2.5), (2.5, 2.0)):
        assert levels._effect(one, other, scatter, 0.1) == pytest.approx((0.25, 0.5 / (0.1 * (10 / 8) ** 0.5 * 1.5)))
    assert levels._effect(2.0, 2.5, np.zeros(9), 0.1) == (0.25, np.inf)
    assert levels._effect(-1.0, 2.5, scatter, 0.1) == levels._effect(2.5, 0.0, scatter, 0.1) == (0.0, 0.0)


def test_the_shortest_stretch_that_is_looked_for() -> None:
    """An eighth of the points, a sixteenth from 256 samples on; a shorter one is told smaller than it is. Eight samples are enough."""
    for n, stretch, effect in ((64, 8, 0.5), (64, 7, 0.5 * 7 / 8), (256, 16, 0.5)):
        samples = np.ones(n)
        samples[n // 3 // 4 * 4 :][:stretch] = 1.5
        assert level_shift(samples, 0.03) == pytest.approx(effect)
    assert level_shift(np.repeat([1.0, 2.0], 4), 0.03) == pytest.approx(1.0)
    assert level_shift(np.repeat([1.0, 2.0], 4)[:7], 0.03) is None


def test_a_step_is_told_from_six_times_its_chance_on() -> None:
    """By hand: beside 0.1 to and fro in 64 samples a step in the middle has a chance of 0.0274; 0.15 is too little, 0.17 not."""
    scatter = 0.1 * np.tile([1.0, -1.0], 32)
    steps = np.repeat([0.0, 1.0], 32)
    assert level_shift(1 + scatter + 0.15 * steps, 0.03) is None
    assert level_shift(1 + scatter + 0.17 * steps, 0.03) == pytest.approx(0.17, rel=0.05)


@pytest.mark.parametrize(
    ("fast", "slow", "least", "found"),
    [
        ([1.0] * 30, [1.12] * 30, 0.03, True), ([1.0] * 30, [1.12] * 29, 0.03, False),  # sixty samples are enough
        ([1.0] * 54, [1.12] * 6, 0.03, True), ([1.0] * 56, [1.12] * 4, 0.03, False),  # a tenth of them
        ([2.0] * 30, [2.5] * 30, 0.25, True), ([2.0] * 30, [2.5] * 30, 0.26, False), ([-2.0] * 30, [2.5] * 30, 0.25, False),
    ],
)  # fmt: skip
def test_two_heaps_at_the_edges(fast: list[float], slow: list[float], least: float, found: bool) -> None:
    """As many samples, as large a share and as far apart as it takes, and one less."""
    assert two_heaps(np.array([*slow, *fast]), least) == ((fast[0], slow[0]) if found else None)


@pytest.mark.parametrize(("spreads", "found"), [(5.2, True), (4.8, False)])
def test_heaps_are_apart_from_five_of_their_spreads_on(spreads: float, found: bool) -> None:
    """Values from 0.9 to 1.1 have half of the middle 68 % for their spread: 0.068."""
    heap = np.linspace(0.9, 1.1, 31)
    assert levels._middle_spread(heap) == pytest.approx(0.068)
    assert (two_heaps(np.concatenate([heap, heap + 0.068 * spreads]), 0.03) is not None) is found


@pytest.mark.parametrize(
    ("inside", "apart", "least", "told"),
    [
        ([0.0] * 12, 2.0, 1.0, 1.0),  # levels 1 and 3: 2 over their middle
        ([0.0] * 12, 2.0, 1.01, None),
        ([0.0] * 11, 2.0, 1.0, None),  # too short to tell the scatter
        # To and fro by 0.1 in stretches of 12: medians scatter by 0.1 sqrt(pi / 2 / 12) = 0.0362, half of the step must be twice that.
        ([0.1, -0.1] * 6, 0.14, 0.03, None),
        ([0.1, -0.1] * 6, 0.15, 0.03, 0.15 / 1.075),
        # Two by two: rho = 1/12 with its bias is 7/36, so sqrt(43/29) more: 0.0441.
        ([0.1, 0.1, -0.1, -0.1] * 3, 0.17, 0.03, None),
        ([0.1, 0.1, -0.1, -0.1] * 3, 0.18, 0.03, 0.18 / 1.09),
    ],
)
def test_wandering_by_hand(inside: list[float], apart: float, least: float, told: float | None) -> None:
    """Sixty-four stretches, every other one on a higher level."""
    samples = np.concatenate([1.0 + apart * (k % 2) + np.array(inside) for k in range(64)])
    assert wander(samples, least) == (None if told is None else pytest.approx(told))
