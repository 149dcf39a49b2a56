"""Speed-ups by Amdahl, by Gustafson, and of a training step with its all-reduce."""

import math
from fractions import Fraction

import numpy as np
import pytest
from gpulab.errors import InputError
from gpulab.models import amdahl, gustafson, scaling
from hypothesis import given, settings
from hypothesis import strategies as st

from texts import table_text

SHARES, TIMES, RATES = st.floats(0, 1), st.floats(1e-6, 1e3), st.floats(1e3, 1e9)
STEP = {"latency_seconds": 0.001, "bandwidth_bytes_per_second": 1000.0}


@pytest.mark.parametrize(
    ("curve", "speedup", "limit", "best"),
    [
        # A tenth is serial: Amdahl 1 / (0.1 + 0.9 / 9) on 9 ranks, Gustafson 0.1 + 0.9 x 11 on 11.
        (amdahl(0.1, [9, 1]), 5.0, 10.0, None),
        (gustafson(0.1, np.int64(11)), 10.0, math.inf, None),
        (amdahl(0.0, 64), 64.0, math.inf, None),
        (gustafson(0.0, 64), 64.0, math.inf, None),
        (amdahl(1.0, 64), 1.0, 1.0, 1),
        (gustafson(1.0, 64), 1.0, 1.0, 1),
    ],
)
def test_the_laws_by_hand(curve, speedup, limit, best):
    """Speed-up, its upper limit and the best number of ranks are those calculated by hand."""
    assert (curve.speedup, curve.limit_speedup) == pytest.approx((speedup, limit))
    assert curve.best_ranks == best
    assert curve.points[-1].efficiency == pytest.approx(speedup / curve.points[-1].ranks)


@pytest.mark.parametrize(
    ("nbytes", "options", "compute", "communication", "exposed", "speedup"),
    [
        # 1 s on 4 ranks, links of 1 ms and 1,000 bytes/s: 0.25 s + 6 x (1 ms + 25 / 1000 s).
        (100, {}, 0.25, 0.156, 0.156, 1 / 0.406),
        (100, {"mode": "weak"}, 1.0, 0.156, 0.156, 4 / 1.156),
        (100, {"overlap": 0.5}, 0.25, 0.156, 0.078, 1 / 0.328),
        # All may hide behind the backward pass, which is 2/3 of 0.25 s: 0.186 - 1 / 6 is exposed.
        (120, {"overlap": 1.0}, 0.25, 0.186, 0.186 - 1 / 6, 1 / (0.436 - 1 / 6)),
        (100, {"overlap": 1.0}, 0.25, 0.156, 0.0, 4.0),
        # A fifth is repeated by each rank: 0.2 + 0.8 / 4.
        (0, {"serial_share": 0.2, "latency_seconds": 0.0}, 0.4, 0.0, 0.0, 2.5),
        # Two processors: strong scaling runs as on two ranks, weak scaling takes two turns.
        (0, {"processors": 2, "latency_seconds": 0.0}, 0.5, 0.0, 0.0, 2.0),
        (0, {"processors": 2, "latency_seconds": 0.0, "mode": "weak"}, 2.0, 0.0, 0.0, 2.0),
    ],
)
def test_steps_by_hand(nbytes, options, compute, communication, exposed, speedup):
    """The parts of a step on four ranks, and its speed-up, are those calculated by hand."""
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
        # All may hide behind 2/3 of the compute: T(p) = 2 c + (1 / 3 - 2 c) / p for many ranks.
        ((1.0, 0.1, 0.0, 1.0), {"overlap": 1.0}, None, 1 / 0.2),
        # T(2) = 0.5, T(3) = 0.4 - 0.0667 / 3 = 0.3778, T(4) = 0.4 - 0.0667 / 4 = 0.3833.
        ((1.0, 0.2, 0.0, 1.0), {"overlap": 1.0}, 3, 1 / (0.4 - 0.2 / 9)),
        ((1.0, 0, 0.0, 1.0), {"processors": 2}, 2, 2.0),
        # Weak: four ranks pass 6 messages of 1 ms; more ranks take turns and pass 2 each.
        ((0.1, 0, 1e-3, math.inf), {"mode": "weak", "processors": 4}, 4, 0.4 / 0.106),
        ((0.1, 0, 1e-3, math.inf), {"mode": "weak", "processors": 4, "overlap": 1.0}, 4, 4.0),
        # A message takes 3/4 of a step: speed-up 1 on one rank, 2 / 2.5 on two, 1 / 1.5 on many.
        ((1.0, 0, 0.75, math.inf), {"mode": "weak"}, 1, 1.0),
        # Two ranks hide 2 (0.3 + 0.1 / 3) s behind two thirds of a second.
        ((1.0, 1.0, 0.3, 15.0), {"mode": "weak", "overlap": 1.0}, 2, 2.0),
        ((1.0, 0, 1e-3, math.inf), {"mode": "weak"}, None, 500.0),
        ((0.3, 0, 0, math.inf), {"mode": "weak", "processors": 7}, 7, 7.0),
    ],
)
def test_the_best_number_of_ranks_by_hand(step, options, best, limit):
    """More ranks than the best number do not help; the speed-up stays below its upper limit."""
    curve = scaling(*step, [1, 2], **options)
    assert (curve.best_ranks, curve.limit_speedup) == (best, pytest.approx(limit))


def exact_speedup(p, mode, step, shares, own):
    """Return the model's speed-up in exact arithmetic, for any number of ranks."""
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
    """Each point follows the exact formula; no number of ranks, however large, beats the best."""
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


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: amdahl(1.2, 4), "1.2"),
        (lambda: amdahl(0.1, 0), "ranks is 0"),
        (lambda: amdahl(0.1, []), "ranks is empty"),
        (lambda: gustafson(math.nan, 4), "nan"),
        (lambda: gustafson(0.1, 2**20 + 1), "1048577"),
        (lambda: scaling(0.0, 1, 0, 1.0, 2), "step_seconds is 0.0"),
        (lambda: scaling(1.0, -1, 0, 1.0, 2), "parameter_bytes is -1"),
        (lambda: scaling(1.0, 1, 0, 0.0, 2), "bandwidth_bytes_per_second is 0.0"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, mode="medium"), "medium"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, overlap=2), "overlap is 2"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, serial_share=-0.1), "serial_share is -0.1"),
        (lambda: scaling(1.0, 1, 0, 1.0, 2, processors=0), "processors is 0"),
        (lambda: amdahl(0.1, range(1, 31)).at(31), "31 ranks"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(call, value):
    """Shares, ranks, times and rates out of range are refused, and points not on the curve."""
    with pytest.raises(InputError, match=value):
        call()
    assert scaling(1.0, 0, 0, math.inf, 2**20).speedup == pytest.approx(2**20)


def test_curves_as_they_are_shown(approved):
    """The tables: the speed-up on each number of ranks, with its limit in words."""
    shown = [
        amdahl(0.1, [1, 9], seconds=2.0),
        amdahl(0.1, 1),
        gustafson(0.25, 11, seconds=3.0),
        scaling(1.0, 100, ranks=[1, 4], overlap=0.5, processors=2, **STEP),
        scaling(1.0, 100, ranks=4, mode="weak", **STEP),
    ]
    parts = (
        f"{one!r}\n{table_text(one._repr_html_())}at most {one.limit_speedup:.4g}" for one in shown
    )
    assert "\n".join(parts) == approved
