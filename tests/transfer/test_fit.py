"""The alpha-beta fit against links whose truth is known."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gpulab import recordings, transfer
from gpulab.errors import InputError
from gpulab.transfer import AlphaBeta
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_machine import lines

sys.path.insert(0, str(Path(__file__).parent))
from links import KINDS, SIZES, TrueLink

CALLS = 9  # points of a sweep are medians of several calls


class Fitted(NamedTuple):
    """A link, its fit, and the fit's interval of new measurements at sizes that it has not seen."""

    kind: str
    link: TrueLink
    fit: AlphaBeta
    covered: float
    error: float


def _fitted(seed: int) -> Fitted:
    kind = KINDS[seed % 4]
    link = TrueLink(seed, kind)
    fit = transfer.fit(SIZES, link.measured(SIZES, calls=CALLS))
    sizes = 2 ** link.rng.uniform(10, 30, 10)
    (low, middle, high), new = fit.predict(sizes), link.measured(sizes, calls=CALLS)
    covered, error = np.mean((new >= low) & (new <= high)), np.mean(np.abs(middle / new - 1))
    return Fitted(kind, link, fit, float(covered), float(error))


@pytest.fixture(scope="module")
def fits() -> list[Fitted]:
    """160 seeded links, a quarter of each kind, each with its fit."""
    return [_fitted(seed) for seed in range(160)]


@pytest.mark.slow
def test_latency_and_bandwidth_are_the_links(fits: list[Fitted]) -> None:
    """Within 10 and 3 percent but for a few, and their 95 % intervals hold the truth."""
    latency = [(f.fit.latency_seconds / f.link.latency, f) for f in fits]
    bandwidth = [(f.fit.bandwidth_bytes_per_second / f.link.bandwidth, f) for f in fits]
    assert np.mean([abs(ratio - 1) < 0.1 for ratio, _ in latency]) >= 0.98
    assert np.mean([abs(ratio - 1) < 0.03 for ratio, _ in bandwidth]) >= 0.95
    assert abs(np.median([ratio for ratio, _ in bandwidth]) - 1) < 0.01
    inside = [
        low <= f.link.latency <= high
        for f in fits
        for low, high in [f.fit.latency_interval_seconds]
    ]
    assert 0.88 <= np.mean(inside) <= 0.995
    inside = [
        low <= f.link.bandwidth <= high
        for f in fits
        for low, high in [f.fit.bandwidth_interval_bytes_per_second]
    ]
    assert 0.88 <= np.mean(inside) <= 0.995


@pytest.mark.slow
def test_predictions_cover_and_know_their_error(fits: list[Fitted]) -> None:
    """95 % intervals hold new measurements at unseen sizes; the held-out error is the true one."""
    assert 0.92 <= np.mean([f.covered for f in fits]) <= 0.98
    for kind in KINDS:
        assert 0.89 <= np.mean([f.covered for f in fits if f.kind == kind]) <= 0.99
    stated = np.mean([f.fit.held_out_error for f in fits])
    assert stated == pytest.approx(np.mean([f.error for f in fits]), rel=0.15)
    # The median of 9 calls with 5 % of noise scatters by 5 * 1.253 / 3 = 2.1 %.
    assert np.median([f.fit.noise_ratio for f in fits]) == pytest.approx(0.021, rel=0.2)


@pytest.mark.slow
def test_knees_come_in_where_the_data_ask_for_them(fits: list[Fitted]) -> None:
    """Few straight links get one; those that jump do, within a doubling of the true place."""
    straight = [len(f.fit.knees_bytes) > 0 for f in fits if f.kind == "line"]
    jumping = [(f.link.knee, f.fit.knees_bytes) for f in fits if f.kind == "jump"]
    assert np.mean(straight) <= 0.15
    near = [
        min((abs(math.log2(k / true)) for k in knees), default=9) <= 1 for true, knees in jumping
    ]
    assert np.mean(near) >= 0.85


@settings(max_examples=40)
@given(st.floats(1e-7, 1e-4), st.floats(1e8, 1e12))
def test_exact_points_give_exact_parameters(latency: float, bandwidth: float) -> None:
    """Latency, bandwidth and Hockney's n 1/2 = latency x bandwidth, where the sizes show them."""
    if not 2**11 < latency * bandwidth < 2**28:
        return
    f = transfer.fit(SIZES, latency + SIZES / bandwidth)
    found = (f.latency_seconds, f.bandwidth_bytes_per_second, f.predict_seconds(12345))
    assert found == pytest.approx((latency, bandwidth, latency + 12345 / bandwidth), rel=1e-3)
    assert f.half_bandwidth_bytes == pytest.approx(latency * bandwidth, rel=1e-2)
    assert f.knees_bytes == ()


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.permutations(range(21)))
def test_units_and_order_do_not_matter(seed: int, scale: float, order: list[int]) -> None:
    """Points in another order give the same fit, and times in another unit the fit in that unit."""
    y = TrueLink(seed, "slower").measured(SIZES)
    one, other = transfer.fit(SIZES, y), transfer.fit(SIZES[order], scale * y[order])
    assert other.latency_seconds == pytest.approx(scale * one.latency_seconds, rel=1e-6)
    rates = [f.bandwidth_bytes_per_second for f in (one, other)]
    assert rates[1] == pytest.approx(rates[0] / scale, rel=1e-6)


def test_an_outlier_counts_less() -> None:
    """One size that was three times slower is named, and moves the fit by less than 3 %."""
    y = TrueLink(3, "line").measured(SIZES, calls=CALLS)
    clean = transfer.fit(SIZES, y)
    y[12] *= 3
    f = transfer.fit(SIZES, y)
    assert f.outliers_bytes == (SIZES[12],)
    assert f.latency_seconds == pytest.approx(clean.latency_seconds, rel=0.03)
    assert f.bandwidth_bytes_per_second == pytest.approx(clean.bandwidth_bytes_per_second, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_describe_the_curve(kind: str) -> None:
    """The straight pieces cover all sizes in order, and follow the link but beside its knee."""
    link = TrueLink(6, kind)
    f = transfer.fit(SIZES, link.seconds(SIZES))
    assert len(f.segments) == len(f.knees_bytes) + 1 == (1 if kind == "line" else 2)
    ends = [0.0, *f.knees_bytes, math.inf]
    assert [(s.from_bytes, s.to_bytes) for s in f.segments] == [*itertools.pairwise(ends)]
    for n in SIZES:
        piece = next(s for s in f.segments if s.from_bytes <= n <= s.to_bytes)
        found = piece.latency_seconds + n / piece.bandwidth_bytes_per_second
        assert found == pytest.approx(link.seconds(n), rel=0.05)


def test_sizes_too_large_for_a_latency() -> None:
    """Where no latency shows it is zero or more, never negative; three sizes are enough."""
    x = 2.0 ** np.arange(26, 31)
    f = transfer.fit(x, 0.999 * x / 1e10 - 1e-5)
    assert f.latency_seconds >= 0
    assert f.bandwidth_bytes_per_second == pytest.approx(1e10, rel=0.01)
    merged = transfer.fit([4, 1, 2, 4, 4], [9.0, 1.0, 1.0, 2.0, 3.0])  # of one size the median
    assert (merged.nbytes, merged.seconds) == ((1.0, 2.0, 4.0), (1.0, 1.0, 3.0))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1, 2, 3], [1, 2]),
        ([1, 2, 3], [1, 0, 1]),
        ([1, 2, -3], [1, 1, 1]),
        (["a", 2, 3], [1] * 3),
        ([1, 2, 3], [1, math.nan, 1]),
        ([1, 2, math.inf], [1, 1, 1]),
        ([], []),
        ([1, 2, 2], [1, 2, 3]),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ([1, 2, 3], [1, 1, 1e30]),
        ([1, 2, 3], [1, 1, 1e-30]),
    ],
)
def test_points_that_cannot_be_fitted_are_refused(x: Any, y: Any) -> None:
    """Shapes that differ, values that are not positive, and fewer than three sizes."""
    with pytest.raises(InputError):
        transfer.fit(x, y)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(1, 1e12), st.floats(1e-9, 1e3)), min_size=3, max_size=30))
def test_any_positive_points_give_a_usable_fit(points: list[tuple[float, float]]) -> None:
    """The fit is finite, its interval holds its prediction, and JSON keeps it all."""
    x, y = zip(*points, strict=True)
    if len(set(x)) < 3:
        return
    f = transfer.fit(x, y)
    low, middle, high = f.predict(x[0])
    assert low <= high
    assert math.isfinite(middle)
    assert f.latency_seconds >= 0
    assert f.bandwidth_bytes_per_second > 0
    assert AlphaBeta.from_dict(json.loads(json.dumps(f.to_dict()))) == f


def test_predictions_of_arrays_and_levels() -> None:
    """An array of sizes gives arrays; a wider level gives a wider interval."""
    f = transfer.fit(SIZES, TrueLink(1, "line").measured(SIZES))
    low, middle, high = f.predict(SIZES)
    assert ((low < middle) & (middle < high)).all()
    wide, narrow = (f.prediction_interval_seconds(1e6, level) for level in (0.99, 0.5))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert [len(each) for each in f.predict([])] == [0, 0, 0]


def test_fits_as_they_are_shown(approved: Any) -> None:
    """Of an exact line, one with an outlier, and the recorded copies of an H200 over PCIe 5.

    By hand: 10 us and 25 GB/s reach half of it from 250 kB; PCIe 5 x16 gives some 55 GB/s.
    """
    y = 1e-5 + SIZES / 25e9
    outlier = np.where(np.arange(21) == 15, 2 * y, y * (1 + 0.01 * (-1.0) ** np.arange(21)))
    copies = transfer.recorded_sweep(recordings.load("nvidia-h200"))
    shown = [copies.fit(direction, memory) for direction, memory in copies.series]
    assert lines(transfer.fit(SIZES, y), transfer.fit(SIZES, outlier), *shown) == approved
