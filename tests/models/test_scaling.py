"""Amdahl, Gustafson, a step with its all-reduce, and the serial share fitted back: values derived by hand, and properties."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab import models
from gpulab.errors import InputError
from gpulab.evidence import Badge
from gpulab.models._serial_share import t_975

shares = st.floats(0, 1)
times = st.floats(1e-6, 1e3)
STEP = {"latency_seconds": 0.001, "bandwidth_bytes_per_second": 1000.0}


def test_amdahl_by_hand() -> None:
    """One tenth serial: 1 / (0.1 + 0.9 / 9) = 5 on nine ranks, 10 at most, and half of the ranks' work is lost at eleven."""
    curve = models.amdahl(0.1, [9, 1, 11])
    assert [p.ranks for p in curve.points] == [1, 9, 11]
    assert curve.at(9).speedup == pytest.approx(5.0)
    assert curve.at(11).efficiency == pytest.approx(0.5)  # 11 / (1.1 + 0.9) / 11
    assert (curve.limit_speedup, curve.best_ranks) == (10.0, None)
    assert curve.evidence.badge is Badge.MODELLED
    assert "1967" in str(curve.evidence.source)


def test_gustafson_by_hand() -> None:
    """One tenth serial: 0.1 + 0.9 x 11 = 10 on eleven ranks, in the same time, without a bound."""
    curve = models.gustafson(0.1, 11, seconds=3.0)
    assert curve.speedup == pytest.approx(10.0)
    assert [p.seconds for p in curve.points] == [3.0]
    assert curve.limit_speedup == math.inf
    assert "1988" in str(curve.evidence.source)


@pytest.mark.parametrize(("share", "ranks", "amdahl", "gustafson"), [(0.0, 64, 64.0, 64.0), (1.0, 64, 1.0, 1.0)])
def test_ends_of_the_share(share: float, ranks: int, amdahl: float, gustafson: float) -> None:
    """Nothing serial scales fully under both laws; everything serial not at all, and then one rank is the best."""
    assert models.amdahl(share, ranks).speedup == amdahl
    assert models.gustafson(share, ranks).speedup == gustafson
    assert models.amdahl(share, ranks).best_ranks == (1 if share else None)


@given(shares, st.integers(1, 10**6))
def test_the_laws_bound_each_other(share: float, ranks: int) -> None:
    """Amdahl's speed-up is the harmonic mean of 1 and the ranks, Gustafson's the arithmetic one: 1 <= Amdahl <= Gustafson <= ranks."""
    a, g = models.amdahl(share, ranks).speedup, models.gustafson(share, ranks).speedup
    assert 1 - 1e-9 <= a <= g * (1 + 1e-9) <= ranks * (1 + 2e-9)


def test_strong_step_by_hand() -> None:
    """1 s of compute on 4 ranks, 100 bytes over links of 1 ms and 1,000 bytes/s: 0.25 s + 6 x (1 ms + 25 / 1000 s) = 0.406 s."""
    point = models.scaling(1.0, 100, ranks=4, **STEP).points[0]
    assert point.compute_seconds == pytest.approx(0.25)
    assert point.communication_seconds == pytest.approx(0.156) == point.exposed_seconds
    assert point.seconds == pytest.approx(0.406)
    assert point.speedup == pytest.approx(1 / 0.406)


def test_weak_step_by_hand() -> None:
    """The same on batches of its own: 1 s + 0.156 s a step, four times the samples."""
    point = models.scaling(1.0, 100, ranks=4, mode="weak", **STEP).points[0]
    assert point.seconds == pytest.approx(1.156)
    assert point.speedup == pytest.approx(4 / 1.156)
    assert point.efficiency == pytest.approx(1 / 1.156)


def test_overlap_by_hand() -> None:
    """Of 0.156 s half may hide: 0.078 s are waited for. All of 0.186 s may, but the backward pass has room for 2/3 of 0.25 s."""
    assert models.scaling(1.0, 100, ranks=4, overlap=0.5, **STEP).points[0].exposed_seconds == pytest.approx(0.078)
    full = models.scaling(1.0, 120, ranks=4, overlap=1.0, **STEP).points[0]  # 6 x (1 ms + 30 ms) = 0.186 s
    assert full.exposed_seconds == pytest.approx(0.186 - 0.5 / 3)
    hidden = models.scaling(1.0, 100, ranks=4, overlap=1.0, **STEP).points[0]
    assert hidden.exposed_seconds == 0
    assert hidden.speedup == pytest.approx(4.0)


def test_serial_part_of_a_step() -> None:
    """A fifth that each rank repeats: 0.2 + 0.8 / 4 without communication, and Amdahl's law to the digit."""
    free = models.scaling(1.0, 0, 0, math.inf, [1, 2, 4, 1000], serial_share=0.2)
    law = models.amdahl(0.2, [1, 2, 4, 1000])
    assert [p.speedup for p in free.points] == pytest.approx([p.speedup for p in law.points])
    assert free.limit_speedup == pytest.approx(law.limit_speedup) == 5.0


def test_shared_processors() -> None:
    """On two processors four ranks take two turns: strong gives what two ranks do, weak takes twice as long."""
    free: dict[str, Any] = {"parameter_bytes": 0, "latency_seconds": 0, "bandwidth_bytes_per_second": 1.0, "processors": 2}
    strong = models.scaling(1.0, ranks=[1, 2, 4], **free)
    assert [p.speedup for p in strong.points] == [1.0, 2.0, 2.0]
    assert strong.best_ranks == 2
    weak = models.scaling(1.0, ranks=[1, 2, 4], mode="weak", **free)
    assert [p.seconds for p in weak.points] == [1.0, 1.0, 2.0]
    assert [p.speedup for p in weak.points] == [1.0, 2.0, 2.0]
    assert weak.limit_speedup == 2.0


def test_where_one_more_rank_no_longer_helps() -> None:
    """From T(p) - T(p + 1) = (W - 2 B) / (p (p + 1)) - 2 alpha: with 92 ms over 20 us that is p (p + 1) = 4600, so p = 68."""
    curve = models.scaling(0.1, 400e6, 10e-6, 100e9, [67, 68, 69])
    assert curve.best_ranks == 68
    assert curve.at(68).seconds < curve.at(67).seconds
    assert curve.at(68).seconds <= curve.at(69).seconds


@settings(max_examples=60, deadline=None)
@given(times, st.floats(0, 1e6), st.floats(1e-6, 1e-1), st.floats(1e3, 1e9), shares, shares, st.sampled_from([None, 1, 2, 7]))
def test_best_is_the_best_of_all(
    step: float, nbytes: float, latency: float, rate: float, overlap: float, serial: float, processors: int | None
) -> None:
    """The best number of ranks is not beaten by any of the first 300, nor by far larger ones, and its speed-up is the limit."""
    many = [*range(1, 300), 1000, 10**4, 10**5]
    options: dict[str, Any] = {"overlap": overlap, "serial_share": serial, "processors": processors}
    curve = models.scaling(step, nbytes, latency, rate, many, **options)
    fastest = min(p.seconds for p in curve.points)
    if curve.best_ranks is None:  # each rank helps: so the largest is the fastest
        assert curve.points[-1].seconds <= fastest * (1 + 1e-9)
    else:
        best = models.scaling(step, nbytes, latency, rate, curve.best_ranks, **options).points[0]
        assert best.seconds <= fastest * (1 + 1e-9)
        assert curve.limit_speedup == pytest.approx(best.speedup)
    assert all(p.speedup <= curve.limit_speedup * (1 + 1e-9) for p in curve.points)


@settings(max_examples=60, deadline=None)
@given(times, st.floats(0, 1e9), st.floats(0, 1e-1), st.floats(1e3, 1e12), st.integers(1, 5000), st.sampled_from(["strong", "weak"]))
def test_parts_of_a_step(step: float, nbytes: float, latency: float, rate: float, ranks: int, mode: str) -> None:
    """One rank sends nothing; more overlap never takes longer; what is waited for is part of what is sent; the whole is the parts."""
    alone = models.scaling(step, nbytes, latency, rate, 1, mode=mode).points[0]
    assert (alone.communication_seconds, alone.speedup) == (0.0, 1.0)
    runs = [models.scaling(step, nbytes, latency, rate, ranks, mode=mode, overlap=o).points[0] for o in (0.0, 0.3, 1.0)]
    for one in runs:
        assert 0 <= one.exposed_seconds <= one.communication_seconds
        assert one.seconds == pytest.approx(one.compute_seconds + one.exposed_seconds)
        assert one.efficiency <= 1 + 1e-9
    assert runs[0].seconds >= runs[1].seconds >= runs[2].seconds


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 1.0), times, st.floats(1e-6, 1e-2), st.floats(1e3, 1e12), st.floats(0, 1e9))
def test_limit_of_weak_scaling(overlap: float, step: float, latency: float, rate: float, nbytes: float) -> None:
    """However many ranks, weak scaling stays under T / (2 alpha): a ring's messages follow each other."""
    curve = models.scaling(step, nbytes, latency, rate, [2, 100, 2**20], mode="weak", overlap=overlap)
    bound = step / (2 * latency)
    # 1 + overhead: a ring of p ranks passes 2 (p - 1) messages, and that hides behind one backward pass at most.
    assert all(p.speedup <= bound * (p.ranks / (p.ranks - 1)) * (1 + 1e-9) for p in curve.points)
    assert all(p.speedup <= curve.limit_speedup * (1 + 1e-12) for p in curve.points)
    # A message of more than a sixth of the step gives its bound away to one rank, or to two or three that hide most of it.
    assert curve.limit_speedup >= max(bound, 1.0) * (1 - 1e-12)
    if bound >= 3:
        assert curve.limit_speedup == pytest.approx(bound)


def test_limits_of_weak_steps_by_hand() -> None:
    """What no number of ranks exceeds: with turns, with overlap, and where the messages cost more than they give."""
    small: dict[str, Any] = {"step_seconds": 0.1, "parameter_bytes": 0, "latency_seconds": 1e-3, "bandwidth_bytes_per_second": math.inf}
    shared = models.scaling(ranks=[1, 2, 4, 8, 1000], mode="weak", processors=4, **small)
    assert shared.at(4).speedup == pytest.approx(0.4 / 0.106)  # four ranks pass 6 messages of 1 ms; more ranks pass 2 each: 0.1 / 0.027
    assert (shared.best_ranks, shared.limit_speedup) == (4, shared.at(4).speedup)
    hidden = models.scaling(ranks=[4, 1000], mode="weak", processors=4, overlap=1.0, **small)
    assert (hidden.best_ranks, hidden.limit_speedup) == (4, pytest.approx(4.0))
    assert hidden.at(1000).speedup == pytest.approx(4.0)  # 2 ms a rank hide behind two thirds of its 25 ms
    # Three quarters of the step a message: alone it is 1, on two ranks 2 / 2.5, and without end 1 / 1.5.
    dear = models.scaling(1.0, 0, 0.75, math.inf, [1, 2, 100], mode="weak")
    assert (dear.best_ranks, dear.limit_speedup) == (1, 1.0)
    assert dear.at(2).speedup == pytest.approx(0.8)
    # Two ranks hide all of 2 (0.3 + 0.1 / 3) s behind two thirds of their second, which is 2; without end it is 1 / 0.6.
    two = models.scaling(1.0, 1.0, 0.3, 15.0, [1, 2, 3, 1000], mode="weak", overlap=1.0)
    assert (two.best_ranks, two.limit_speedup) == (2, pytest.approx(2.0))
    far = models.scaling(1.0, 0, 1e-3, math.inf, [1, 1000], mode="weak")
    assert (far.best_ranks, far.limit_speedup) == (None, pytest.approx(500.0))
    free = models.scaling(0.3, 0, 0, math.inf, [1, 7, 100], mode="weak", processors=7)
    assert (free.best_ranks, free.limit_speedup) == (7, pytest.approx(7.0))


def _weak_speedup(ranks: int, step: Fraction, nbytes: Fraction, latency: Fraction, rate: Fraction, shares: Any, own: int | None) -> float:
    """The model's formulas in exact arithmetic, for any number of ranks."""
    overlap, serial = shares
    turns = 1 if own is None else max(Fraction(ranks, own), 1)
    moved = 2 * (ranks - 1) * (latency + nbytes / ranks / rate)
    waited = moved - min(overlap * moved, Fraction(2, 3) * step * (1 - serial) * turns)
    return float(ranks * step / (step * turns + waited))


@settings(max_examples=100, deadline=None)
@given(times, st.floats(0, 1e6), st.floats(1e-6, 1e-1), st.floats(1e3, 1e9), shares, shares, st.sampled_from([None, 1, 2, 7, 150, 10**4]))
def test_no_number_of_ranks_exceeds_the_limit_of_weak_scaling_and_some_meet_it(
    step: float, nbytes: float, latency: float, rate: float, overlap: float, serial: float, own: int | None
) -> None:
    """Of the first 200 ranks, of far larger ones and of 1e40, which stands for all that follow, the largest speed-up is the limit."""
    many = [*range(1, 200), 1000, 9999, 10**4, 10**5, 2**20]
    curve = models.scaling(step, nbytes, latency, rate, many, mode="weak", overlap=overlap, serial_share=serial, processors=own)
    assert all(p.speedup <= curve.limit_speedup * (1 + 1e-12) for p in curve.points)
    exact = (Fraction(step), Fraction(nbytes), Fraction(latency), Fraction(rate), (Fraction(overlap), Fraction(serial)), own)
    best = curve.best_ranks if curve.best_ranks is not None else 10**40
    assert _weak_speedup(best, *exact) == pytest.approx(curve.limit_speedup, rel=1e-9)
    for ranks in {max(1, best - 1), best + 1, 10**40, *([] if own is None else [max(1, own - 1), own, own + 1])}:
        assert _weak_speedup(ranks, *exact) <= curve.limit_speedup * (1 + 1e-9)


def test_ring_against_exact_arithmetic() -> None:
    """The ring's time equals a sum over its 2 (p - 1) messages of alpha + chunk / rate, added in fractions."""
    for p in (2, 3, 7, 64):
        exact = sum(Fraction(1, 1000) + Fraction(12345, p) / 1000 for _ in range(2 * (p - 1)))
        assert models.scaling(1.0, 12345, ranks=p, **STEP).points[0].communication_seconds == pytest.approx(float(exact), rel=1e-12)
        assert models.collective_cost("all_reduce", 12345, p, "ring", **STEP).seconds == pytest.approx(float(exact), rel=1e-12)


@given(st.floats(0, 1), times, st.lists(st.integers(1, 500), min_size=3, max_size=8, unique=True))
def test_serial_share_is_the_inverse_of_amdahl(share: float, one: float, ranks: list[int]) -> None:
    """Points that follow Amdahl's law give back its share, its time on one rank, and the same share at each point."""
    curve = models.amdahl(share, ranks, seconds=one)
    fitted = models.serial_share([p.ranks for p in curve.points], [p.seconds for p in curve.points])
    assert fitted.one_rank_seconds == pytest.approx(one, rel=1e-6)
    assert fitted.share == pytest.approx(share, abs=1e-6)
    assert list(fitted.karp_flatt) == pytest.approx([share] * sum(p > 1 for p in ranks), abs=1e-5)


def test_serial_share_of_two_points() -> None:
    """Two times alone, 10 s and 6 s on two ranks, give 20 % without an interval; their intervals give one that holds it."""
    bare = models.serial_share([1, 2], [10.0, 6.0])
    assert bare.share == pytest.approx(0.2)
    assert bare.interval is None
    known = models.serial_share([1, 2], [10.0, 6.0], [(9.9, 10.1), (5.9, 6.1)])
    # By hand, to first order: s = 2 t2 / t1 - 1, so its half-width is sqrt((2 x 0.1 / 10)^2 + (2 x 6 x 0.1 / 100)^2) = 0.0233.
    low, high = known.interval or (0.0, 0.0)
    assert known.share == pytest.approx(0.2)
    assert (high - low) / 2 == pytest.approx(0.0233, rel=0.02)


@pytest.mark.parametrize("given_intervals", [False, True])
def test_serial_share_covers(given_intervals: bool) -> None:
    """Of 400 noisy sets of five points the 95 % interval holds the true share in 92 to 98 of 100."""
    chance, ranks, inside = random.Random(5), [1, 2, 3, 4, 8], 0
    for _ in range(400):
        truth = [0.2 + 0.8 / p for p in ranks]
        seconds = [t * (1 + chance.gauss(0, 0.02)) for t in truth]
        spans = [(t - 1.96 * 0.02 * u, t + 1.96 * 0.02 * u) for t, u in zip(seconds, truth, strict=True)]
        low, high = models.serial_share(ranks, seconds, spans if given_intervals else None).interval or (1.0, 0.0)
        inside += low <= 0.2 <= high
    assert 368 <= inside <= 392


def test_slower_with_more_ranks_is_said() -> None:
    """A share above 1 (more ranks took longer) and below 0 (more than their number) are reported, not clipped."""
    slower = models.serial_share([1, 2, 4], [1.0, 1.3, 1.5])
    assert slower.share > 1
    assert "more ranks took longer" in slower.sentence
    faster = models.serial_share([1, 2, 4], [1.0, 0.45, 0.18], [(0.99, 1.01), (0.44, 0.46), (0.17, 0.19)])
    assert faster.share < 0
    assert faster.limit_speedup == math.inf
    assert "more than their number" in faster.sentence


def test_karp_flatt_shows_growing_communication() -> None:
    """1 / p + 2 (p - 1) x 5 ms on p ranks: each point alone needs a share of 2 p x 5 ms, which grows with the ranks."""
    curve = models.scaling(1.0, 0, 0.005, 1e9, [1, 2, 4, 8, 16])
    alone = models.serial_share([p.ranks for p in curve.points], [p.seconds for p in curve.points]).karp_flatt
    assert list(alone) == pytest.approx([0.02, 0.04, 0.08, 0.16])


def test_students_t_against_the_tables() -> None:
    """The quantiles agree with NIST/SEMATECH's e-Handbook of Statistical Methods, 1.3.6.7.2, to 0.2 %."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 8: 2.306, 10: 2.228, 20: 2.086, 30: 2.042, 60: 2.000}
    assert [t_975(n) for n in table] == pytest.approx(list(table.values()), rel=2e-3)


def test_students_quantile_is_the_handbooks_expansion_to_the_last_digit() -> None:
    """Abramowitz and Stegun 26.7.5, each term's powers of the normal quantile from the highest down by two; 1 and 2 degrees by scipy."""
    z = NormalDist().inv_cdf(0.975)
    terms = {4: (1, 1), 96: (5, 16, 3), 384: (3, 19, 17, -15), 92160: (79, 776, 1482, -1920, -945)}
    for n in (3, 4, 7, 30):
        expected = z
        for k, (divisor, factors) in enumerate(terms.items(), start=1):
            expected += sum(f * z ** (2 * (len(factors) - i) - 1) for i, f in enumerate(factors)) / divisor / n**k
        assert t_975(n) == pytest.approx(expected, rel=1e-12)
    assert [t_975(1), t_975(2)] == pytest.approx([scipy.stats.t.ppf(0.975, n) for n in (1, 2)], rel=1e-9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: models.amdahl(1.2, 4), "serial_share is 1.2; expected a share from 0 to 1"),
        (lambda: models.amdahl(0.1, 0), "ranks is 0; expected whole numbers from 1"),
        (lambda: models.amdahl(0.1, []), "no number of ranks was given"),
        (lambda: models.amdahl(0.1, True), "ranks is True"),
        (lambda: models.amdahl(0.1, "8"), "ranks is '8'"),
        (lambda: models.gustafson(float("nan"), 4), "serial_share is nan"),
        (lambda: models.gustafson(0.1, 2**20 + 1), "1,048,576"),
        (lambda: models.scaling(0.0, 1, 0, 1.0, 2), "step_seconds is 0.0; expected a number above 0"),
        (lambda: models.scaling(1.0, -1, 0, 1.0, 2), "parameter_bytes is -1"),
        (lambda: models.scaling(1.0, 1, 0, 0.0, 2), "bandwidth_bytes_per_second is 0.0"),
        (lambda: models.scaling(1.0, 1, 0, 1.0, 2, mode="medium"), "strong, weak"),
        (lambda: models.scaling(1.0, 1, 0, 1.0, 2, overlap=2), "overlap is 2"),
        (lambda: models.scaling(1.0, 1, 0, 1.0, 2, processors=0), "processors is 0"),
        (lambda: models.amdahl(0.1, [1, 2]).at(3), "3 ranks are not among the points (1, 2)"),
        (lambda: models.serial_share([1, 2], [1.0]), "2 numbers of ranks and 1 times"),
        (lambda: models.serial_share([2, 2], [1.0, 1.1]), "at least two different"),
        (lambda: models.serial_share([1, 2], [1.0, -1.0]), "a time of -1.0"),
        (lambda: models.serial_share([1, 2.5], [1.0, 1.0]), "2.5 ranks"),
        (lambda: models.serial_share([1, 2], [1.0, 0.6], [(1.1, 0.9), (0.5, 0.7)]), "low below high"),
        (lambda: models.serial_share([1, 2], [1.0, 0.6], [(0.9, 1.1)]), "1 intervals for 2 times"),
        (lambda: models.serial_share(3, [1.0]), "ranks is 3; expected several values"),
        (lambda: models.serial_share([1, 2], 3), "seconds is 3; expected several values"),
        (lambda: models.serial_share([1, 2], [1.0, 0.6], 3), "intervals_seconds is 3; expected several values"),
        (lambda: models.serial_share([1, 2], [1.0, 0.6], [3, 4]), "intervals_seconds is 3; expected several values"),
        (lambda: models.serial_share([1, 2], [1.0, 0.6], [(0.9, 1.1, 2.0), (0.5, 0.7)]), "is no interval"),
        (lambda: models.serial_share([1, 2], [1.0, 3.0]), None),
        (lambda: models.serial_share([0, 2], [1.0, 1.0]), "0 ranks; expected whole numbers from 1 to 1,048,576"),
        (lambda: models.amdahl(0.1, range(1, 31)).at(31), "(" + ", ".join(map(str, range(1, 21))) + ", ...)"),
        (lambda: models.amdahl(0.1, range(1, 21)).at(31), ", 19, 20)"),
        (lambda: models.scaling(1.0, 2e30, 0, 1.0, 2), "parameter_bytes is 2e+30; expected a finite number from 0"),
        (lambda: models.scaling(1.0, 1, 0, 1.0, 2, serial_share=-0.1), "serial_share is -0.1"),
        (lambda: models.scaling(1.0, 1, 0, 1.0, 5.5), "ranks is 5.5"),
        (lambda: models.serial_share([1, 100], [0.001, 1.0]), None),
    ],
)
def test_refusals(call: Any, words: str | None) -> None:
    """What cannot be is refused in one sentence; times that only grow are fitted or refused, never returned as nonsense."""
    if words is None:
        fitted = call()
        assert fitted.share > 1
        return
    with pytest.raises(InputError) as failure:
        call()
    assert words in str(failure.value)
    assert re.match("(amdahl|gustafson|scaling|serial_share|at): ", str(failure.value))


def test_curves_as_tables_and_in_words() -> None:
    """By hand: 0.1 + 0.9 / 9 of 2 s; 0.1 + 9.9 times; 0.5 s on two processors and half of 0.156 s. Ideal to the letter and the unit."""
    headers = ("ranks", "step", "communication", "waited for", "speed-up", "efficiency")
    law = models.amdahl(0.1, [1, 9], seconds=2.0)
    assert repr(law) == "<Amdahl's law: 5.00x on 9 ranks, at most 10.0x>"
    assert law.table() == (
        headers, [("1", "2.00 s", "0 s", "0 s", "1.00x", "100 %"), ("9", "400 ms", "0 s", "0 s", "5.00x", "55.6 %")],
    )  # fmt: skip
    assert repr(models.amdahl(0.1, 1)) == "<Amdahl's law: 1.00x on 1 rank, at most 10.0x>"
    assert repr(models.gustafson(0.1, 11)) == "<Gustafson's law: 10.0x on 11 ranks, at most infinite>"
    ring = models.scaling(1.0, 100, ranks=[1, 4], overlap=0.5, processors=2, **STEP)
    assert ring.label == "ring all-reduce, strong"
    assert ring.table()[1][1] == ("4", "578 ms", "156 ms", "78.0 ms", "1.73x", "43.3 %")
    assert ring.evidence.assumptions == (
        "the batch is divided evenly; compute takes 1.00 s on one rank; a ring averages 100 B of gradients over links of 1.00 ms a message "
        "and 1.00 kB/s, 50 % of it beside the backward pass at most; more than 2 ranks compute in turns"
    )
    weak = models.scaling(1.0, 100, ranks=4, mode="weak", **STEP)
    assert weak.label == "ring all-reduce, weak"
    assert str(weak.evidence.assumptions).startswith("each rank has the batch of one; ")
    assert str(weak.evidence.assumptions).endswith("0 % of it beside the backward pass at most")
    assert str(law.evidence.assumptions).startswith("10 % of the time on one rank cannot be divided")
    assert str(models.gustafson(0.25, 2).evidence.assumptions).startswith("25 % of the time is serial and does not grow")


def test_a_fit_as_a_table_and_in_words() -> None:
    """2 of 10 s did not divide. Two points alone have neither an interval nor a scatter; of four, NumPy's fit tells the scatter."""
    bare = models.serial_share([1, 2], [10.0, 6.0])
    words = "20 % of the time on one rank did not divide (no interval); by Amdahl's law no number of ranks is more than 5 times as fast."
    assert repr(bare) == f"<serial share: {words}>"
    assert bare.table() == (
        ("fit of Amdahl's law", ""),
        [("serial share", "20 %"), ("95 %", "none"), ("one rank", "10.0 s"), ("by 2 ranks alone", "20 % from 6.00 s")],
    )
    assert bare.evidence.known_error is None
    known = models.serial_share([1, 2], [10.0, 6.0], [(9.9, 10.1), (5.9, 6.1)])
    low, high = known.interval or (0.0, 0.0)
    assert known.table()[1][1] == ("95 %", f"{100 * low:.3g} % to {100 * high:.3g} %")
    assert f"(95 %: {100 * low:.3g} to {100 * high:.3g} %)" in known.sentence
    ranks, seconds = np.array([1, 2, 4, 8]), np.array([1.0, 0.65, 0.38, 0.31])
    b, a = np.polyfit(1 / ranks, seconds, 1, w=1 / seconds)
    fitted = models.serial_share(ranks.tolist(), seconds.tolist())
    assert (fitted.share, fitted.one_rank_seconds) == pytest.approx((a / (a + b), a + b))
    scatter = np.sqrt(np.sum(((a + b / ranks) / seconds - 1) ** 2) / (4 - 2))
    assert fitted.evidence.known_error == f"{100 * scatter:.2g} % scatter of the points about the fit"


def test_a_time_on_one_rank_that_is_not_told_from_zero_bounds_nothing() -> None:
    """Intervals as wide as the times: no share of such a time has an interval."""
    assert models.serial_share([2, 4], [1.0, 1.0], [(0.0, 9.0), (0.0, 9.0)]).interval is None


def test_points_of_one_rank_count_together() -> None:
    """Two times on one rank, 9 and 11 s: their mean is the base of what each other point needs by itself."""
    assert models.serial_share([1, 1, 2], [9.0, 11.0, 6.0]).karp_flatt == pytest.approx((0.2,))


def test_a_whole_number_of_numpy_is_a_number_of_ranks() -> None:
    """One that an array gave is taken as Python's own, alone as in a list."""
    assert models.amdahl(0.1, np.int64(8)) == models.amdahl(0.1, 8)
    assert models.amdahl(0.1, np.arange(1, 4)) == models.amdahl(0.1, [1, 2, 3])
    assert models.collective_cost("all_reduce", 1e6, np.int64(8)).to_dict() == models.collective_cost("all_reduce", 1e6, 8).to_dict()


@pytest.mark.parametrize(
    ("options", "best", "limit"),
    [
        # Strong, one second, no latency: T(p) = 1 / p + 2 c (p - 1) / p = 2 c + (1 - 2 c) / p falls for good while 2 c < 1.
        ({"parameter_bytes": 0.4}, None, 1 / 0.8),
        ({"parameter_bytes": 0.6}, 1, 1.0),
        ({"parameter_bytes": 0.5}, 1, 1.0),  # no number of ranks is faster than one
        # With a serial fifth while 2 c < 0.8.
        ({"parameter_bytes": 0.35, "serial_share": 0.2}, None, 1 / 0.9),
        ({"parameter_bytes": 0.45, "serial_share": 0.2}, 1, 1.0),
        # With all of it beside two thirds of the compute, T(p) = 2 c + (1 / 3 - 2 c) / p in the end: falls for good while 2 c < 1 / 3.
        ({"parameter_bytes": 0.1, "overlap": 1.0}, None, 1 / 0.2),
        # T(2) = 0.5, T(3) = 0.4 - 0.0667 / 3 = 0.3778, T(4) = 0.4 - 0.0667 / 4 = 0.3833.
        ({"parameter_bytes": 0.2, "overlap": 1.0}, 3, 1 / (0.4 - 0.2 / 9)),
    ],
)
def test_a_link_without_latency(options: dict[str, Any], best: int | None, limit: float) -> None:
    """By hand: whether ever more ranks help is told by what does not divide, not by differences that drown in rounding."""
    curve = models.scaling(1.0, latency_seconds=0.0, bandwidth_bytes_per_second=1.0, ranks=[1, 2], **options)
    assert (curve.best_ranks, curve.limit_speedup) == (best, pytest.approx(limit))


def test_laws_in_shares_of_a_second() -> None:
    """Without a time it is one second: a tenth and nine tenths by nine. All serial: Gustafson's one rank is the best, and the limit 1."""
    (nine,) = models.amdahl(0.1, 9).points
    assert (nine.seconds, nine.compute_seconds, nine.communication_seconds, nine.exposed_seconds) == pytest.approx((0.2, 0.2, 0, 0))
    assert [p.seconds for p in models.gustafson(0.1, [1, 11]).points] == [1.0, 1.0]
    assert [(c.best_ranks, c.limit_speedup) for c in (models.gustafson(1.0, 4), models.gustafson(0.5, 4))] == [(1, 1.0), (None, math.inf)]


# The 97.5 % quantiles of NIST/SEMATECH's e-Handbook, 1.3.6.7.2: of Student's t with 2 degrees of freedom, and of the normal distribution.
@pytest.mark.parametrize(("half_width", "quantile", "scaled"), [(None, 4.303, True), (0.2, 1.960, False), (0.002, 4.303, True)])
def test_fiellers_interval_by_its_definition(half_width: float | None, quantile: float, scaled: bool) -> None:
    """At its ends a - s (a + b) is as far from 0 as its own spread times the quantile; NumPy's fit gives spread and scatter.

    Without intervals, and where the points scatter more than theirs allow, the scatter tells the noise, and Student's t goes with it.
    """
    ranks, seconds = np.array([1, 2, 4, 8]), np.array([1.0, 0.65, 0.38, 0.31])
    sigmas = seconds if half_width is None else np.full(4, half_width / 1.959964)
    (b, a), covariance = np.polyfit(1 / ranks, seconds, 1, w=1 / sigmas, cov="unscaled")
    scatter = np.sum(((seconds - a - b / ranks) / sigmas) ** 2) / (4 - 2)
    assert half_width is None or (scatter > 1) == scaled
    spans = None if half_width is None else [(t - half_width, t + half_width) for t in seconds.tolist()]
    interval = models.serial_share(ranks.tolist(), seconds.tolist(), spans).interval
    assert interval is not None
    assert interval[0] < a / (a + b) < interval[1]
    for share in interval:
        weights = np.array([-share, 1 - share])  # of b and of a
        spread = np.sqrt(weights @ covariance @ weights * (scatter if scaled else 1))
        assert abs(a - share * (a + b)) == pytest.approx(quantile * spread, rel=1e-3)


def test_three_points_tell_their_noise() -> None:
    """One point more than the line needs is enough for a scatter and an interval."""
    fitted = models.serial_share([1, 2, 4], [1.0, 0.61, 0.4])
    assert fitted.interval is not None
    assert fitted.evidence.known_error is not None


def test_a_share_of_none_of_all_and_of_no_time() -> None:
    """Nothing serial bounds nothing, and all of it is no loss; points that would take less than no time on one rank are refused."""
    fitted = models.serial_share([1, 2], [10.0, 6.0])
    none, all_of_it = (dataclasses.replace(fitted, share=share) for share in (0.0, 1.0))
    assert none.limit_speedup == math.inf
    assert none.sentence == (
        "0 % of the time on one rank did not divide (no interval): it is not told from none, so Amdahl's law sets no limit."
    )
    # Nor is a small share, 2 * 5.2 - 10 = 0.4 s of 10, that half a second of doubt on each time may take away.
    doubtful = models.serial_share([1, 2], [10.0, 5.2], [(9.5, 10.5), (4.7, 5.7)])
    assert doubtful.share > 0 > doubtful.interval[0]  # type: ignore[index]
    assert doubtful.sentence.endswith("it is not told from none, so Amdahl's law sets no limit.")
    assert all_of_it.sentence.endswith("by Amdahl's law no number of ranks is more than 1 times as fast.")
    # Through 1 s on two ranks and 2 s on three goes a line that is at -2 s on one.
    with pytest.raises(InputError, match=r"the fit gives -2 s on one rank"):
        models.serial_share([2, 3], [1.0, 2.0])
