"""Amdahl, Gustafson, a step with its all-reduce, and the serial share fitted back."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from gpulab.errors import InputError
from gpulab.models import amdahl, gustafson, scaling, serial_share
from hypothesis import given, settings
from hypothesis import strategies as st

from texts import table_text

SHARES, TIMES, RATES = st.floats(0, 1), st.floats(1e-6, 1e3), st.floats(1e3, 1e9)
STEP = {"latency_seconds": 0.001, "bandwidth_bytes_per_second": 1000.0}


@pytest.mark.parametrize(
    ("curve", "speedup", "limit", "best"),
    [
        # A tenth serial: 1 / (0.1 + 0.9 / 9) on nine ranks, 0.1 + 0.9 x 11 on eleven of their own.
        (amdahl(0.1, [9, 1]), 5.0, 10.0, None),
        (gustafson(0.1, np.int64(11)), 10.0, math.inf, None),
        (amdahl(0.0, 64), 64.0, math.inf, None),
        (gustafson(0.0, 64), 64.0, math.inf, None),
        (amdahl(1.0, 64), 1.0, 1.0, 1),
        (gustafson(1.0, 64), 1.0, 1.0, 1),
    ],
)
def test_the_laws_by_hand(curve, speedup, limit, best):
    """The speed-up on the most ranks asked for, what none exceeds, and the best number."""
    assert (curve.speedup, curve.limit_speedup) == pytest.approx((speedup, limit))
    assert curve.best_ranks == best
    assert curve.efficiency == pytest.approx(speedup / curve.points[-1].ranks)


@pytest.mark.parametrize(
    ("nbytes", "options", "compute", "communication", "exposed", "speedup"),
    [
        # 1 s on 4 ranks, links of 1 ms and 1,000 bytes/s: 0.25 s + 6 x (1 ms + 25 / 1000 s).
        (100, {}, 0.25, 0.156, 0.156, 1 / 0.406),
        (100, {"mode": "weak"}, 1.0, 0.156, 0.156, 4 / 1.156),
        (100, {"overlap": 0.5}, 0.25, 0.156, 0.078, 1 / 0.328),
        # All may hide, but two thirds of 0.25 s are the backward pass: 0.186 - 1 / 6 is waited for.
        (120, {"overlap": 1.0}, 0.25, 0.186, 0.186 - 1 / 6, 1 / (0.436 - 1 / 6)),
        (100, {"overlap": 1.0}, 0.25, 0.156, 0.0, 4.0),
        # A fifth that each rank repeats: 0.2 + 0.8 / 4.
        (0, {"serial_share": 0.2, "latency_seconds": 0.0}, 0.4, 0.0, 0.0, 2.5),
        # Two processors: strong as on two ranks, weak in two turns.
        (0, {"processors": 2, "latency_seconds": 0.0}, 0.5, 0.0, 0.0, 2.0),
        (0, {"processors": 2, "latency_seconds": 0.0, "mode": "weak"}, 2.0, 0.0, 0.0, 2.0),
    ],
)
def test_steps_by_hand(nbytes, options, compute, communication, exposed, speedup):
    """Compute, communication, what of it is waited for, and samples a second over one rank's."""
    (point,) = scaling(1.0, nbytes, ranks=4, **{**STEP, **options}).points
    found = (point.compute_seconds, point.communication_seconds, point.exposed_seconds)
    assert found == pytest.approx((compute, communication, exposed), abs=1e-12)
    assert (point.seconds, point.speedup) == pytest.approx((compute + exposed, speedup))


@pytest.mark.parametrize(
    ("step", "options", "best", "limit"),
    [
        # T(p) - T(p + 1) = (W - 2 B) / (p (p + 1)) - 2 alpha: 92 ms over 20 us is p (p + 1) = 4600.
        ((0.1, 400e6, 10e-6, 100e9), {}, 68, 0.1 / (0.1 / 68 + 134 * 1e-5 + 134 / 68 * 4e-3)),
        # Without latency T(p) = 2 c + (1 - 2 c) / p falls for good while 2 c < 1.
        ((1.0, 0.4, 0.0, 1.0), {}, None, 1 / 0.8),
        ((1.0, 0.5, 0.0, 1.0), {}, 1, 1.0),
        ((1.0, 0.35, 0.0, 1.0), {"serial_share": 0.2}, None, 1 / 0.9),
        ((1.0, 0.45, 0.0, 1.0), {"serial_share": 0.2}, 1, 1.0),
        # All beside two thirds of the compute: T(p) = 2 c + (1 / 3 - 2 c) / p in the end.
        ((1.0, 0.1, 0.0, 1.0), {"overlap": 1.0}, None, 1 / 0.2),
        # T(2) = 0.5, T(3) = 0.4 - 0.0667 / 3 = 0.3778, T(4) = 0.4 - 0.0667 / 4 = 0.3833.
        ((1.0, 0.2, 0.0, 1.0), {"overlap": 1.0}, 3, 1 / (0.4 - 0.2 / 9)),
        ((1.0, 0, 0.0, 1.0), {"processors": 2}, 2, 2.0),
        # Weak: four ranks pass 6 messages of 1 ms; more ranks take turns and pass 2 each.
        ((0.1, 0, 1e-3, math.inf), {"mode": "weak", "processors": 4}, 4, 0.4 / 0.106),
        ((0.1, 0, 1e-3, math.inf), {"mode": "weak", "processors": 4, "overlap": 1.0}, 4, 4.0),
        # Three quarters of a step a message: alone 1, two ranks 2 / 2.5, without end 1 / 1.5.
        ((1.0, 0, 0.75, math.inf), {"mode": "weak"}, 1, 1.0),
        # Two ranks hide 2 (0.3 + 0.1 / 3) s behind two thirds of a second.
        ((1.0, 1.0, 0.3, 15.0), {"mode": "weak", "overlap": 1.0}, 2, 2.0),
        ((1.0, 0, 1e-3, math.inf), {"mode": "weak"}, None, 500.0),
        ((0.3, 0, 0, math.inf), {"mode": "weak", "processors": 7}, 7, 7.0),
    ],
)
def test_the_best_number_of_ranks_by_hand(step, options, best, limit):
    """From where one more rank no longer helps, and the speed-up that none exceeds."""
    curve = scaling(*step, [1, 2], **options)
    assert (curve.best_ranks, curve.limit_speedup) == (best, pytest.approx(limit))


def exact_speedup(p, mode, step, shares, own):
    """The model's formulas in exact arithmetic, for any number of ranks."""
    one, nbytes, latency, rate = map(Fraction, step)
    overlap, serial = map(Fraction, shares)
    turns = 1 if own is None else max(Fraction(p, own), 1)
    divided = turns if mode == "weak" else Fraction(1, p if own is None else min(p, own))
    spread = one * (1 - serial) * divided
    moved = 2 * (p - 1) * (latency + nbytes / p / rate)
    waited = moved - min(overlap * moved, Fraction(2, 3) * spread)
    return float((p if mode == "weak" else 1) * one / (one * serial * turns + spread + waited))


@settings(max_examples=60)
@given(
    st.sampled_from(["strong", "weak"]),
    st.tuples(TIMES, st.floats(0, 1e6), st.floats(1e-6, 1e-1), RATES),
    st.tuples(SHARES, SHARES),
    st.sampled_from([None, 1, 2, 7, 10**4]),
)
def test_no_number_of_ranks_exceeds_the_limit_and_the_best_meets_it(mode, step, shares, own):
    """Each point is the exact formula's; neither small nor huge numbers of ranks beat the best."""
    ranks = [*range(1, 60), 1000, 9999, 10**4, 2**20]
    options = {"mode": mode, "overlap": shares[0], "serial_share": shares[1], "processors": own}
    curve = scaling(*step, ranks, **options)
    exact = {p: exact_speedup(p, mode, step, shares, own) for p in (1, 2, 57, 10**4)}
    assert {p: curve.at(p).speedup for p in exact} == pytest.approx(exact, rel=1e-9)
    best = 10**40 if curve.best_ranks is None else curve.best_ranks
    met = exact_speedup(best, mode, step, shares, own)
    assert met == pytest.approx(curve.limit_speedup, rel=1e-9)
    around = {max(1, best - 1), best + 1, 10**40, *(() if own is None else (own, own + 1))}
    others = [exact_speedup(p, mode, step, shares, own) for p in around]
    assert max(*others, *(p.speedup for p in curve.points)) <= met * (1 + 1e-9)


@given(SHARES, TIMES, st.lists(st.integers(1, 500), min_size=3, max_size=8, unique=True))
def test_serial_share_is_the_inverse_of_amdahl(share, one, ranks):
    """Points of Amdahl's law give back its share, its time on one rank, and the share of each."""
    points = amdahl(share, ranks, seconds=one).points
    fitted = serial_share([p.ranks for p in points], [p.seconds for p in points])
    assert fitted.one_rank_seconds == pytest.approx(one, rel=1e-6)
    expected = [share] * (1 + sum(p > 1 for p in ranks))
    assert [fitted.share, *fitted.karp_flatt] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("count", [3, 4, 5, 9])
@pytest.mark.parametrize("half_width", [None, 0.15, 0.002])
def test_fiellers_interval_by_its_definition(half_width, count):
    """At its ends a - s (a + b) is as far from 0 as its spread times the quantile of SciPy.

    Without intervals, and where points scatter more than theirs allow, Student's t and the scatter.
    """
    ranks, freedom = 2.0 ** np.arange(count), count - 2
    seconds = 0.2 + 0.8 / ranks + 0.02 * np.resize([0, 1, -1], count)
    sigmas = seconds if half_width is None else np.full(count, half_width / 1.959964)
    (b, a), covariance = np.polyfit(1 / ranks, seconds, 1, w=1 / sigmas, cov="unscaled")
    scatter = np.sum(((seconds - a - b / ranks) / sigmas) ** 2) / freedom
    own = half_width is None or scatter > 1
    quantile = (scipy.stats.t(freedom) if own else scipy.stats.norm).ppf(0.975)
    spans = None if half_width is None else [(t - half_width, t + half_width) for t in seconds]
    fitted = serial_share(ranks, seconds, spans)
    assert (fitted.share, fitted.one_rank_seconds) == pytest.approx((a / (a + b), a + b))
    if fitted.interval is None:  # the time on one rank is not distinguished from zero
        assert (a + b) ** 2 <= quantile**2 * covariance.sum() * scatter
    for share in fitted.interval or ():
        weights = np.array([-share, 1 - share])  # of b and of a
        spread = np.sqrt(weights @ covariance @ weights * (scatter if own else 1))
        assert abs(a - share * (a + b)) == pytest.approx(quantile * spread, rel=2e-3)
    assert fitted.interval is None or fitted.interval[0] < fitted.share < fitted.interval[1]


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: amdahl(1.2, 4), "1.2"),
        (lambda: amdahl(0.1, 0), "ranks is 0"),
        (lambda: amdahl(0.1, []), "no number"),
        (lambda: gustafson(math.nan, 4), "nan"),
        (lambda: gustafson(0.1, 2**20 + 1), "1048577"),
        (lambda: scaling(0.0, 1, 0, 1.0, 2), "step_seconds is 0.0"),
        (lambda: scaling(1.0, -1, 0, 1.0, 2), "parameter_bytes is -1"),
        (lambda: scaling(1.0, 1, 0, 0.0, 2), "bandwidth_bytes_per_second is 0.0"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, mode="medium"), "medium"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, overlap=2), "overlap is 2"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, serial_share=-0.1), "serial_share is -0.1"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, processors=0), "processors is 0"),
        (lambda: amdahl(0.1, range(1, 31)).at(31), "19, 20, ..."),
        (lambda: serial_share([1, 2], [1.0]), "2 .* 1 times"),
        (lambda: serial_share([2, 2], [1.0, 1.1]), "two different"),
        (lambda: serial_share([1, 2], [1.0, -1.0]), "-1.0"),
        (lambda: serial_share([1, 2.5], [1.0, 1.0]), "2.5"),
        (lambda: serial_share([1, 2], [1.0, 0.6], [(1.1, 0.9), (0.5, 0.7)]), "low"),
        (lambda: serial_share([1, 2], [1.0, 0.6], [(0.9, 1.1)]), "1 intervals"),
        # A line through 1 s on two ranks and 2 s on three is at -2 s on one.
        (lambda: serial_share([2, 3], [1.0, 2.0]), "-2 s"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(call, value):
    """Shares, ranks, times and intervals out of range, and points that no law could give."""
    with pytest.raises(InputError, match=value):
        call()
    assert scaling(1.0, 0, 0, math.inf, 2**20).speedup == pytest.approx(2**20)


def test_curves_and_fits_as_they_are_shown(approved):
    """Each law's table and sentence; shares that are unknown, above one, below none, doubtful.

    By hand: 2 of 10 s did not divide; to first order the interval of 2 t2 / t1 - 1 is 2.33 % wide
    either way; each point of a growing communication needs 2 p x 5 ms.
    """
    fitted = serial_share([1, 2], [10.0, 6.0])
    growing = scaling(1.0, 0, 0.005, 1e9, [1, 2, 4, 8]).points
    shown = [
        amdahl(0.1, [1, 9], seconds=2.0),
        amdahl(0.1, 1),
        gustafson(0.25, 11, seconds=3.0),
        scaling(1.0, 100, ranks=[1, 4], overlap=0.5, processors=2, **STEP),
        scaling(1.0, 100, ranks=4, mode="weak", **STEP),
        fitted,
        serial_share([1, 2], [10.0, 6.0], [(9.9, 10.1), (5.9, 6.1)]),
        serial_share([1, 2, 4, 8], [1.0, 0.65, 0.38, 0.31]),
        serial_share([p.ranks for p in growing], [p.seconds for p in growing]),
        serial_share([1, 1, 2], [9.0, 11.0, 6.0]),
        serial_share([2, 4], [1.0, 1.0], [(0.0, 9.0), (0.0, 9.0)]),
        serial_share([1, 2, 4], [1.0, 1.3, 1.5]),
        serial_share([1, 2, 4], [1.0, 0.45, 0.18], [(0.99, 1.01), (0.44, 0.46), (0.17, 0.19)]),
        serial_share([1, 2], [10.0, 5.2], [(9.5, 10.5), (4.7, 5.7)]),
        dataclasses.replace(fitted, share=0.0),
        dataclasses.replace(fitted, share=1.0),
    ]
    parts = (
        f"{one!r}\n{table_text(one._repr_html_())}at most {one.limit_speedup:.4g}" for one in shown
    )
    assert "\n".join(parts) == approved
