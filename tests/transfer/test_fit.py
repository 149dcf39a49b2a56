"""The alpha-beta fit against links whose truth is known."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpulab import recordings, transfer
from gpulab.errors import InputError
from hypothesis import given, settings
from hypothesis import strategies as st
from links import KINDS, SIZES, TrueLink

from fake_machine import lines


@pytest.fixture(scope="module")
def fits() -> list[Any]:
    """160 seeded links, a quarter of each kind, each with its fit.

    ``covered`` and ``error`` come from new measurements at sizes that the fit has not seen.
    """
    found = []
    for seed in range(160):
        link = TrueLink(seed, KINDS[seed % 4])
        fit = transfer.fit(SIZES, link.measured(SIZES, calls=9))  # medians of several calls
        sizes = link.unseen_sizes(10)
        (low, middle, high), new = fit.predict(sizes), link.measured(sizes, calls=9)
        covered, error = np.mean((new >= low) & (new <= high)), np.mean(np.abs(middle / new - 1))
        found.append(SimpleNamespace(link=link, fit=fit, covered=covered, error=error))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unit", "within", "share"),
    [("latency", "seconds", 0.1, 0.98), ("bandwidth", "bytes_per_second", 0.03, 0.95)],
)
def test_latency_and_bandwidth_are_the_links(
    fits: list[Any], name: str, unit: str, within: float, share: float
) -> None:
    """Nearly all are within 10 % and 3 % of the truth, and their 95 % intervals contain it."""
    true = np.array([getattr(f.link, name) for f in fits])
    found = np.array([getattr(f.fit, f"{name}_{unit}") for f in fits])
    low, high = np.array([getattr(f.fit, f"{name}_interval_{unit}") for f in fits]).T
    assert np.mean(np.abs(found / true - 1) < within) >= share
    assert np.median(found / true) == pytest.approx(1, rel=0.03)
    assert 0.88 <= np.mean((low <= true) & (true <= high)) <= 0.995


@pytest.mark.slow
def test_predictions_cover_and_know_their_error(fits: list[Any]) -> None:
    """95 % intervals hold new measurements at unseen sizes; the held-out error is the true one."""
    assert 0.92 <= np.mean([f.covered for f in fits]) <= 0.98
    by_kind = [np.mean([f.covered for f in fits if f.link.kind == kind]) for kind in KINDS]
    assert 0.89 <= min(by_kind) <= max(by_kind) <= 0.99
    stated = np.mean([f.fit.held_out_error for f in fits])
    assert stated == pytest.approx(np.mean([f.error for f in fits]), rel=0.2)
    # The median of 9 calls with 5 % of noise scatters by 5 * 1.253 / 3 = 2.1 %.
    assert np.median([f.fit.noise_ratio for f in fits]) == pytest.approx(0.021, rel=0.2)


@pytest.mark.slow
def test_knees_come_in_where_the_data_ask_for_them(fits: list[Any]) -> None:
    """Few straight links get a knee; most with a jump do, within a factor of 2 of its place."""
    knees = {kind: [f for f in fits if f.link.kind == kind] for kind in ("line", "jump")}
    assert np.mean([len(f.fit.knees_bytes) > 0 for f in knees["line"]]) <= 0.15
    near = [any(0.5 <= k / f.link.knee <= 2 for k in f.fit.knees_bytes) for f in knees["jump"]]
    assert np.mean(near) >= 0.85


@settings(max_examples=20)
@given(st.floats(1e-7, 1e-4), st.floats(14, 24))
def test_exact_points_give_exact_parameters(latency: float, half: float) -> None:
    """Latency, bandwidth and Hockney's n 1/2 = latency x bandwidth, where the sizes show them."""
    bandwidth = 2**half / latency
    f = transfer.fit(SIZES, latency + SIZES / bandwidth)
    found = (f.latency_seconds, f.bandwidth_bytes_per_second, f.predict(12345)[1])
    assert found == pytest.approx((latency, bandwidth, latency + 12345 / bandwidth), rel=1e-3)
    assert f.half_bandwidth_bytes == pytest.approx(2**half, rel=1e-2)
    assert f.knees_bytes == ()


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.permutations(range(21)))
def test_units_and_order_do_not_matter(seed: int, scale: float, order: list[int]) -> None:
    """Points in another order give the same fit, and times in another unit the fit in that unit."""
    y = TrueLink(seed, "slower").measured(SIZES)
    one, other = transfer.fit(SIZES, y), transfer.fit(SIZES[order], scale * y[order])
    latency, rate = one.latency_seconds, one.bandwidth_bytes_per_second
    found = (other.latency_seconds, other.bandwidth_bytes_per_second)
    assert found == pytest.approx((scale * latency, rate / scale), rel=1e-6)


def test_an_outlier_counts_less() -> None:
    """One size that was three times slower is named, and moves the fit by less than 3 %."""
    y = TrueLink(3, "line").measured(SIZES, calls=9)
    clean, f = transfer.fit(SIZES, y), transfer.fit(SIZES, np.where(SIZES[12] == SIZES, 3 * y, y))
    assert f.outliers_bytes == (SIZES[12],)
    assert f.latency_seconds == pytest.approx(clean.latency_seconds, rel=0.03)
    assert f.bandwidth_bytes_per_second == pytest.approx(clean.bandwidth_bytes_per_second, rel=0.03)


def test_sizes_too_large_for_a_latency() -> None:
    """A latency too small to show in the times is not negative, and its interval and that of a
    small copy contain the truth, here 10 us; three sizes are enough.
    """
    x = 2.0 ** np.arange(26, 31)
    f = transfer.fit(x, (1e-5 + x / 1e10) * np.array([0.97, 1, 1.03, 1, 1]))
    assert f.latency_seconds == 0 < 1e-5 < min(f.latency_interval_seconds[1], f.predict(1)[2])
    assert f.bandwidth_bytes_per_second == pytest.approx(1e10, rel=0.01)
    merged = transfer.fit([4, 1, 2, 4, 4], [9.0, 1.0, 1.0, 2.0, 3.0])  # the median of equal sizes
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
    """Different shapes, values out of range and fewer than three sizes are refused."""
    with pytest.raises(InputError):
        transfer.fit(x, y)


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.floats(1, 1e12), st.floats(1e-9, 1e3)),
        min_size=3,
        max_size=30,
        unique_by=lambda point: point[0],
    )
)
def test_any_positive_points_give_a_usable_fit(points: list[tuple[float, float]]) -> None:
    """The fit is finite, and a prediction lies in its interval."""
    x, y = zip(*points, strict=True)
    f = transfer.fit(x, y)
    low, middle, high = f.predict(x[0])
    assert low <= middle <= high
    assert math.isfinite(middle)
    assert 0 <= f.latency_seconds < math.inf
    assert f.bandwidth_bytes_per_second > 0


def test_predictions_of_arrays() -> None:
    """An array of sizes gives arrays with each size's prediction, inside its interval."""
    f = transfer.fit(SIZES, TrueLink(1, "line").measured(SIZES))
    low, middle, high = f.predict(SIZES)
    assert ((low < middle) & (middle < high)).all()
    assert (low[3], middle[3], high[3]) == pytest.approx(f.predict(SIZES[3]))


def test_fits_as_they_are_shown(approved: Any) -> None:
    """Fits of an exact line, one with an outlier, and an H200's recorded copies over PCIe 5.

    By hand: 10 us and 25 GB/s reach half of it from 250 kB; PCIe 5 x16 gives some 55 GB/s.
    """
    y = 1e-5 + SIZES / 25e9
    outlier = np.where(np.arange(21) == 15, 2 * y, y * (1 + 0.01 * (-1.0) ** np.arange(21)))
    copies = transfer.recorded_sweep(recordings.load("nvidia-h200"))
    shown = [copies.fit(direction, memory) for direction, memory in copies.series]
    assert lines(transfer.fit(SIZES, y), transfer.fit(SIZES, outlier), *shown) == approved
