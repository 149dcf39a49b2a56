"""The alpha-beta fit against links whose truth is known."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab import transfer
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.transfer import AlphaBeta, Segment, _posterior
from gpulab.transfer._posterior import _through_origin, student_cdf, student_nodes

sys.path.insert(0, str(Path(__file__).parent))
from links import KINDS, SIZES, TrueLink

# Points of a sweep are medians of several calls: the least that a sweep takes where it is not starved.
CALLS = 9


class Fitted(NamedTuple):
    """A link, its fit, and what the fit says of new sizes, each beside a new measurement there."""

    link: TrueLink
    fit: AlphaBeta
    low: np.ndarray
    high: np.ndarray
    new: np.ndarray
    predicted: np.ndarray
    newer: np.ndarray


def fitted(seed):
    """Fit a link and ask it about 10 and 20 unseen sizes at once: later the fit would have to work out all its shapes again."""
    link = TrueLink(seed, KINDS[seed % 4])
    f = transfer.fit(SIZES, link.measured(SIZES, calls=CALLS))
    x = link.unseen_sizes(10)
    low, high = f.prediction_interval_seconds(x)
    new = link.measured(x, calls=CALLS)
    x = link.unseen_sizes(20)
    return Fitted(link, f, low, high, new, f.predict_seconds(x), link.measured(x, calls=CALLS))


@pytest.fixture(scope="module")
def fits():
    """A thousand seeded links with 5 % noise a call, a quarter without a knee; each with its fit."""
    return [fitted(seed) for seed in range(1000)]


def test_latency_within_ten_percent(fits):
    """All thousand latencies are within 10 %, but for at most five."""
    errors = np.array([abs(f.latency_seconds / link.latency - 1) for link, f, *_ in fits])
    assert np.mean(errors < 0.10) >= 0.995


def test_bandwidth_within_three_percent(fits):
    """At least 97 % of the bandwidths are within 3 %; the median is within 1 %."""
    errors = np.array([abs(f.bandwidth_bytes_per_second / link.bandwidth - 1) for link, f, *_ in fits])
    assert np.mean(errors < 0.03) >= 0.97
    assert np.median(errors) < 0.01


def test_prediction_intervals_cover(fits):
    """95 % intervals hold 93 to 97 % of new measurements at unseen sizes, over all and for each kind of link."""
    covered = {kind: [] for kind in KINDS}
    for each in fits:
        covered[each.link.kind].append(np.mean((each.new >= each.low) & (each.new <= each.high)))
    assert 0.93 <= np.mean([np.mean(c) for c in covered.values()]) <= 0.97
    for c in covered.values():
        assert 0.92 <= np.mean(c) <= 0.98


def test_parameter_intervals_cover(fits):
    """The intervals of latency and bandwidth hold the truth in 90 to 99 % of links."""
    latency = [f.latency_interval_seconds[0] <= link.latency <= f.latency_interval_seconds[1] for link, f, *_ in fits]
    bandwidth = [
        f.bandwidth_interval_bytes_per_second[0] <= link.bandwidth <= f.bandwidth_interval_bytes_per_second[1] for link, f, *_ in fits
    ]
    assert 0.90 <= np.mean(latency) <= 0.99
    assert 0.90 <= np.mean(bandwidth) <= 0.99


def test_held_out_error_is_the_error_on_unseen_sizes(fits):
    """What a fit says about its own error is, on average, its error on sizes that it has not seen."""
    said = [each.fit.held_out_error for each in fits[:300]]
    true = [np.mean(np.abs(each.predicted / each.newer - 1)) for each in fits[:300]]
    assert np.mean(said) == pytest.approx(np.mean(true), rel=0.15)
    assert np.mean(said) < 0.03


def test_the_noise_of_a_straight_link_is_no_knee():
    """Of 40 sweeps of a straight link with 3 % of noise at most two get a knee: one in twenty is what the rule allows."""
    sizes = 2.0 ** np.arange(10, 31)
    named = 0
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(1.0, 0.03, len(sizes))
        named += bool(transfer.fit(sizes, (1e-5 + sizes / 26e9) * noise).knees_bytes)
    assert named <= 2


def test_knees_come_in_where_the_data_ask_for_them(fits):
    """Straight links get a knee in at most 15 % of cases, links that jump in at least 95 %, and near the true place."""
    straight = [len(f.knees_bytes) > 0 for link, f, *_ in fits if link.kind == "line"]
    jumping = [(link.knee, f.knees_bytes) for link, f, *_ in fits if link.kind == "jump"]
    assert np.mean(straight) <= 0.15
    assert np.mean([len(knees) > 0 for _, knees in jumping]) >= 0.95
    near = [min(abs(math.log2(k / true)) for k in knees) <= 1.0 for true, knees in jumping if knees]
    assert np.mean(near) >= 0.9


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-7, 1e-4), st.floats(1e8, 1e12))
def test_exact_points_give_exact_parameters(latency, bandwidth):
    """Without noise the fit finds latency, bandwidth and Hockney's n 1/2 = latency x bandwidth, where the sizes can show them."""
    y = latency + SIZES / bandwidth
    if latency * bandwidth < 2**11 or latency * bandwidth > 2**28:
        return
    f = transfer.fit(SIZES, y)
    assert f.latency_seconds == pytest.approx(latency, rel=1e-3)
    assert f.bandwidth_bytes_per_second == pytest.approx(bandwidth, rel=1e-3)
    assert f.half_bandwidth_bytes == pytest.approx(latency * bandwidth, rel=1e-2)
    assert f.predict_seconds(12345) == pytest.approx(latency + 12345 / bandwidth, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.permutations(range(21)))
def test_units_and_order_do_not_matter(seed, scale, order):
    """Points in another order give the same fit, and times in another unit the same fit in that unit."""
    y = TrueLink(seed, "slower").measured(SIZES)
    one, other = transfer.fit(SIZES, y), transfer.fit(SIZES[list(order)], scale * y[list(order)])
    assert other.latency_seconds == pytest.approx(scale * one.latency_seconds, rel=1e-6)
    assert other.bandwidth_bytes_per_second == pytest.approx(one.bandwidth_bytes_per_second / scale, rel=1e-6)


def test_outlier_counts_less():
    """One size that an interruption made three times slower is named and moves the fit by less than 3 %."""
    link = TrueLink(3, "line")
    y = link.measured(SIZES, calls=CALLS)
    clean = transfer.fit(SIZES, y)
    y[12] *= 3
    f = transfer.fit(SIZES, y)
    assert f.outliers_bytes == (SIZES[12],)
    assert f.latency_seconds == pytest.approx(clean.latency_seconds, rel=0.03)
    assert f.bandwidth_bytes_per_second == pytest.approx(clean.bandwidth_bytes_per_second, rel=0.03)


def test_segments_describe_the_curve():
    """The straight pieces join (but at a jump), and follow the prediction within its noise."""
    link = TrueLink(6, "slower")
    f = transfer.fit(SIZES, link.seconds(SIZES))
    assert f.segments[0].from_bytes == 0
    assert f.segments[-1].to_bytes == math.inf
    for piece, after in zip(f.segments, f.segments[1:], strict=False):
        assert piece.to_bytes == after.from_bytes
    for n in SIZES:
        piece = next(p for p in f.segments if p.from_bytes <= n <= p.to_bytes)
        assert piece.latency_seconds + n / piece.bandwidth_bytes_per_second == pytest.approx(link.seconds(n), rel=0.05)


def test_sizes_too_large_for_a_latency():
    """Where no latency can be seen, it is said to be zero or positive, never negative, and the bandwidth holds."""
    x = 2.0 ** np.arange(26, 31)
    f = transfer.fit(x, 0.999 * x / 1e10 - 1e-5)
    assert f.latency_seconds >= 0
    assert f.bandwidth_bytes_per_second == pytest.approx(1e10, rel=0.01)


def test_three_points_are_enough_and_two_are_not():
    """Two unknowns and noise need three sizes."""
    f = transfer.fit([1e3, 1e6, 1e9], [1e-5, 5e-5, 0.04])
    assert f.knees_bytes == ()
    with pytest.raises(InputError, match="2 different sizes were given; expected at least 3"):
        transfer.fit([1e3, 1e6, 1e6], [1e-5, 5e-5, 5.1e-5])


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([1, 2, 3], [1, 2], "shape"),
        ([1, 2, 3], [1, 0, 1], "zero, negative"),
        ([1, 2, -3], [1, 1, 1], "zero, negative"),
        ([1, 2, 3], [1, math.nan, 1], "not a number"),
        ([1, 2, math.inf], [1, 1, 1], "not a number"),
        (["a", 2, 3], [1, 1, 1], "cannot read"),
        ([], [], "0 different sizes"),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], "shape"),
    ],
)
def test_bad_points_are_one_sentence(x, y, words):
    """Points that cannot be fitted are refused with what was expected."""
    with pytest.raises(InputError, match=words):
        transfer.fit(x, y)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e12), st.floats(1e-9, 1e3)), min_size=3, max_size=30))
def test_any_positive_points_give_a_usable_fit(points):
    """Whatever positive numbers come in, the fit is finite, its interval holds its prediction and JSON keeps it all."""
    x, y = zip(*points, strict=True)
    if len(set(x)) < 3:
        return
    f = transfer.fit(x, y)
    low, middle, high = f.predict(x[0])
    assert math.isfinite(middle)
    assert low <= high
    assert f.latency_seconds >= 0
    assert f.bandwidth_bytes_per_second > 0
    assert AlphaBeta.from_dict(f.to_dict()) == f


@pytest.mark.parametrize("nbytes", [-1, math.nan, math.inf])
def test_bad_sizes_to_predict(nbytes):
    """A size that is none is refused."""
    f = transfer.fit(SIZES, 1e-5 + SIZES / 1e10)
    with pytest.raises(InputError, match="negative or not a number"):
        f.predict_seconds(nbytes)


@pytest.mark.parametrize(
    ("nbytes", "says"),
    [("abc", "cannot read 'abc' as sizes"), (10**400, "as sizes"), ({}, "as sizes"), ([[1, 2], [3, 4]], r"have the shape \(2, 2\)")],
)
def test_what_is_no_size_to_predict_is_said_in_a_sentence(nbytes, says):
    """Text, a number beyond a float, and a table had ended in NumPy's own errors; of no sizes there are no predictions."""
    f = transfer.fit(SIZES, 1e-5 + SIZES / 1e10)
    for ask in (f.predict, f.predict_seconds, f.prediction_interval_seconds):
        with pytest.raises(InputError, match=says):
            ask(nbytes)
    assert [len(each) for each in f.predict([])] == [0, 0, 0]


def test_arrays_and_levels():
    """An array of sizes gives arrays; a wider level gives a wider interval."""
    f = transfer.fit(SIZES, TrueLink(1, "line").measured(SIZES))
    low, middle, high = f.predict(SIZES)
    assert low.shape == middle.shape == high.shape == SIZES.shape
    assert (low < middle).all()
    assert (middle < high).all()
    wide, narrow = f.prediction_interval_seconds(1e6, 0.99), f.prediction_interval_seconds(1e6, 0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    with pytest.raises(InputError, match="level"):
        f.prediction_interval_seconds(1e6, 1.5)


# Student's t, two-sided 95 %: any printed table.
@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (17, 2.110), (30, 2.042)])
def test_students_t_as_printed(freedom, t):
    """The distribution function gives 97.5 % at the table's quantile, and the nodes are its inverse."""
    assert float(student_cdf(np.array([t]), freedom)[0]) == pytest.approx(0.975, abs=2e-5)
    nodes = student_nodes(freedom)
    assert nodes[30] == pytest.approx(0, abs=1e-9)
    assert float(student_cdf(nodes[10:11], freedom)[0]) == pytest.approx(10.5 / 61, abs=1e-9)


def test_a_line_through_nothing_by_least_squares():
    """Sizes so large that no latency shows: slope, scatter and held-out values by NumPy's least squares of the relative errors."""
    x = np.array([1e6, 2e6, 4e6])
    y = np.array([1.1e-3, 1.9e-3, 4.2e-3])
    (fitted,), values, held_out = _through_origin(x, y, y, np.ones(3))
    relative = (x / y)[:, None]
    (slope,), (squares,), *_ = np.linalg.lstsq(relative, np.ones(3), rcond=None)
    assert fitted.coefficients == pytest.approx([0.0, slope])
    assert fitted.scale == pytest.approx(math.sqrt(squares / 2), rel=1e-6)  # three points, one unknown
    assert fitted.covariance == pytest.approx(np.diag([0.0, np.linalg.inv(relative.T @ relative)[0, 0]]))
    assert (fitted.freedom, fitted.weight, fitted.candidate.family) == (2, 1.0, "line")
    assert values == pytest.approx(slope * x)
    for k in range(3):
        rest = np.delete(np.arange(3), k)
        (without,), *_ = np.linalg.lstsq(relative[rest], np.ones(2), rcond=None)
        assert held_out[k] == pytest.approx(without * x[k])
    assert _through_origin(x[:1], y[:1], y[:1], np.ones(1))[0][0].freedom == 1


def test_a_fit_in_words_by_hand():
    """A row a quantity, the plural of knees, and the points that count less where there are some."""
    segment = Segment(0.0, math.inf, 1e-5, 25e9)
    f = AlphaBeta(
        1e-5,
        (9e-6, 1.1e-5),
        25e9,
        (24e9, 26e9),
        (),
        (segment,),
        250_000.0,
        0.031,
        0.012,
        (1.0,) * 4,
        (1.0,) * 4,
        (),
        Evidence.measured("x"),
    )
    rows = [
        ("latency", "10.0 us (95 %: 9.00 us to 11.0 us)"), ("bandwidth", "25.0 GB/s (95 %: 24.0 GB/s to 26.0 GB/s)"),
        ("half of it from", "244 KiB"), ("knees", "none"), ("held-out error", "1.2%"), ("scatter of the points", "3.1%"),
        ("points fitted", "4"),
    ]  # fmt: skip
    assert f.table() == (("fit", ""), rows)
    assert repr(f) == "<latency 10.0 us, bandwidth 25.0 GB/s, 0 knees, held-out error 1.2%>"
    bent = dataclasses.replace(f, knees_bytes=(2.0**20,), outliers_bytes=(1024.0, 2048.0))
    assert bent.table()[1][3] == ("knees", "1.00 MiB")
    assert bent.table()[1][7:] == [("points far off, weighted down", "1.00 KiB, 2.00 KiB")]
    assert ", 1 knee, " in repr(bent)


def test_what_is_no_size_or_time_lies_beyond_30_powers_of_ten():
    """Both ends are refused, what lies within is taken; points of one size become their median; who gave them is said."""
    for value in (1e-30, 1e30):
        with pytest.raises(InputError, match=r"not a number or beyond 1e\+30; expected positive ones in bytes and seconds\. Leave"):
            transfer.fit([1, 2, 3], [1, 1, value])
    assert transfer.fit([1, 2, 3], [1.1e-30, 1.1e-30, 1.1e-30]).latency_seconds >= 0
    f = transfer.fit([4, 1, 2, 4, 4], [9.0, 1.0, 1.0, 2.0, 3.0])
    assert (f.nbytes, f.seconds) == ((1.0, 2.0, 4.0), (1.0, 1.0, 3.0))
    assert f.evidence.assumptions == "the points are those that the caller gave"
    assert transfer.fit([1, 2, 3], [1, 2, 3], Evidence.measured("x")).evidence.device == "x"


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.0, "0.9", None, True, math.nan])
def test_a_level_lies_between_nothing_and_all(level):
    """Neither end is a share that an interval can hold."""
    with pytest.raises(InputError, match=r"level is .*; expected a share between 0 and 1\. Pass level=0\.95\.$"):
        transfer.fit([1, 2, 3], [1, 2, 3]).prediction_interval_seconds(1.0, level)


def test_shapes_by_hand():
    """A bend at 4 adds what lies beyond it; a jump at 4 is a line of its own below and one above. Slopes run from the smallest sizes up."""
    x = np.array([2.0, 4.0, 8.0])
    line, bend, jump = (_posterior.Candidate(*given) for given in (("line", ()), ("knee", (4.0,)), ("jump", (4.0,))))
    assert line.columns(x).tolist() == [[1, 2], [1, 4], [1, 8]]
    assert bend.columns(x).tolist() == [[1, 2, 0], [1, 4, 0], [1, 8, 4]]
    assert jump.columns(x).tolist() == [[1, 2, 0, 0], [1, 4, 0, 0], [0, 0, 1, 8]]
    two = _posterior.Candidate("two knees", (2.0, 4.0))
    assert two.columns(x).tolist() == [[1, 2, 0, 0], [1, 4, 2, 0], [1, 8, 6, 4]]
    assert bend.slopes(np.array([9.0, 2.0, -1.0])).tolist() == [2, 1]
    assert jump.slopes(np.array([9.0, 2.0, 5.0, 3.0])).tolist() == [2, 3]
    assert [one.last_slope.tolist() for one in (line, bend, jump)] == [[0, 1], [0, 1, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("points", "counts"),
    [
        (3, {"line": 1}),
        (6, {"line": 1}),
        (7, {"line": 1, "knee": 9}),  # from the third size to the third last lie two octaves: four places each, and both ends
        (8, {"line": 1, "knee": 13, "jump": 9}),  # three gaps
        (10, {"line": 1, "knee": 21, "jump": 15}),
        (11, {"line": 1, "knee": 25, "jump": 18, "two knees": 15}),  # seven places, one an octave, of which neighbours are too near
        (13, {"line": 1, "knee": 33, "jump": 24, "two knees": 28}),
        (14, {"line": 1, "knee": 37, "jump": 27, "two knees": 36, "three knees": 16}),  # six places in nine octaves: 20 triples less 4
    ],
)
def test_shapes_that_so_many_points_can_tell_apart(points, counts):
    """Three points on each side of a knee and two between knees, by hand for sizes that double."""
    families = list(_posterior.candidates(2.0 ** np.arange(10, 10 + points)))
    assert {family[0].family: len(family) for family in families} == counts
    for family in families:
        assert {(one.family, one.width) for one in family} == {(family[0].family, family[0].width)}
        knees = [k for one in family for k in one.knees]
        assert not knees or 2**12 <= min(knees) < max(knees) <= 2.0 ** (10 + points - 3)
    if points == 8:
        assert [one.knees[0] for one in families[2]][:3] == pytest.approx([2**12.1, 2**12.5, 2**12.9])


@pytest.mark.parametrize(
    ("family", "knees", "coefficients", "possible"),
    [
        ("line", (), (1, 1), True), ("line", (), (-1, 1), False), ("line", (), (1, -1), False),
        ("knee", (4,), (1, 2, -1), True), ("knee", (4,), (1, 2, -3), False), ("knee", (4,), (1, -1, 2), False),
        ("jump", (10,), (1, 1, 2, 1), True), ("jump", (10,), (1, 1, 0.5, 1), False), ("jump", (10,), (1, 2, 5, 1), False),
        ("jump", (10,), (1, 1, -5, 2), True), ("jump", (10,), (1, -1, 40, 1), False), ("jump", (10,), (1, 1, 40, -1), False),
        ("jump", (10,), (-1, 1, 2, 1), False),
    ],
)  # fmt: skip
def test_what_a_link_cannot_be(family, knees, coefficients, possible):
    """By hand: nothing is free, no byte gives time back, and a jump goes up; beside it a fit that is possible stays so."""
    fine = {"line": (1, 1), "knee": (1, 1, 1), "jump": (1, 1, 20, 1)}[family]
    chosen = [_posterior.Candidate(family, tuple(map(float, knees)))] * 3
    found = _posterior.Family(chosen, np.zeros((3, 1, len(fine))), np.array([knees] * 3, dtype=float))
    assert found.possible(np.array([fine, coefficients, fine], dtype=float)).tolist() == [True, possible, True]


def _by_numpy(columns, y, weight):
    """Coefficients and the sum of squares of a weighted fit, by NumPy's least squares of columns of one length."""
    a = columns * weight[:, None]
    size = np.sqrt(np.sum(np.square(a), 0))
    solution, *_ = np.linalg.lstsq(a / size, y * weight, rcond=None)
    return solution / size, float(np.sum((a / size @ solution - y * weight) ** 2))


def test_each_shape_is_fitted_as_by_numpy_and_held_out_by_refitting():
    """Coefficients, scatter, what they are unsure by, and each point from a fit of the others; the weight by the usual criterion."""
    x = 2.0 ** np.arange(10, 24)
    y = TrueLink(5, "slower").measured(x)
    weight = np.sqrt(np.linspace(0.5, 1.0, 14)) / y
    shares = {"line": 0.5, "knee": 0.25, "jump": 0.2, "two knees": 0.04, "three knees": 0.01}
    n, looked_at = 14, 0
    for family in _posterior._families(tuple(x)):
        part = _posterior._fit_family(family, y, weight)
        for m in {0, len(family.chosen) // 2, len(family.chosen) - 1}:
            columns = family.columns[m]
            width, name = columns.shape[1], family.chosen[0].family
            solution, squares = _by_numpy(columns, y, weight)
            squares += n * 1e-12  # a clock's rounding of one in a million a point
            assert part.coefficients[m] == pytest.approx(solution, rel=1e-4)
            assert part.values[m] == pytest.approx(columns @ solution, rel=1e-4)
            assert part.scale[m] == pytest.approx(math.sqrt(squares / (n - width)), rel=1e-4)
            if family.possible(solution[None] if m == 0 else np.repeat(solution[None], len(family.chosen), 0))[m]:
                told = -n / 2 * math.log(squares) - width / 2 * math.log(n) + math.log(shares[name] / len(family.chosen))
                assert part.log[m] == pytest.approx(told, abs=1e-2)
            else:
                assert part.log[m] == -math.inf
            a = columns * weight[:, None]
            most = np.abs(a).max(0)
            inverse = np.linalg.pinv(a / most)
            hat = np.diag(a / most @ inverse)
            unsure = inverse @ inverse.T / np.outer(most, most)
            unit = np.sqrt(np.outer(np.diag(unsure), np.diag(unsure)))
            assert part.covariance[m] / unit == pytest.approx(unsure / unit, rel=1e-3, abs=1e-3)
            for i in np.flatnonzero(hat < 0.9):
                rest = np.arange(n) != i
                others, left = _by_numpy(columns[rest], y[rest], weight[rest])
                left += n * 1e-12
                assert part.held_out[m, i] == pytest.approx(columns[i] @ others, rel=1e-3)
                density = -0.5 * math.log(left) - 0.5 * (n - width) * math.log(squares / left)
                assert part.log_density[m, i] == pytest.approx(density, abs=1e-2)
                looked_at += 1
    assert looked_at > 100


def _fitted(family, weight, knees=(), coefficients=(1e-5, 1e-9), scale=0.05, freedom=8):
    width = len(coefficients)
    return _posterior.Fitted(
        _posterior.Candidate(family, knees), weight, np.array(coefficients), np.diag([1e-12, *[1e-20] * (width - 1)]), scale, freedom
    )


def test_the_family_that_is_named():
    """The weights of its places together, but the straight line as long as one in twenty speaks for it."""

    def named(*parts):
        return _posterior.Posterior(tuple(parts), np.zeros(0), np.zeros(0, bool))

    knees = (_fitted("jump", 0.35, (9e4,)), _fitted("knee", 0.31, (1e4,)), _fitted("knee", 0.3, (2e4,)))
    assert named(*knees, _fitted("line", 0.04)).family() == "knee"
    assert named(*knees, _fitted("line", 0.04)).best() is knees[1]
    assert named(*knees, _fitted("line", 0.025), _fitted("line", 0.025)).family() == "line"
    assert named(_fitted("line", 0.7), _fitted("knee", 0.3, scale=0.1)).noise_ratio == pytest.approx(math.sqrt(0.7 * 0.0025 + 0.3 * 0.01))


@pytest.mark.parametrize("level", [0.5, 0.8])
def test_an_interval_is_that_of_the_mixture(level):
    """Two shapes of unlike places, spreads and degrees of freedom: the ends by bisection of the mixture's distribution function."""
    line, bend = _fitted("line", 0.7, freedom=5), _fitted("knee", 0.3, (1e4,), (1.3e-5, 8e-10, 3e-10), 0.1, 9)
    both = _posterior.Posterior((line, bend), np.zeros(0), np.zeros(0, bool))
    sizes = np.array([1e3, 4e4, 1e6])
    columns = {"line": lambda x: np.array([1.0, x]), "knee": lambda x: np.array([1.0, x, max(x - 1e4, 0.0)])}

    def quantile(parts, share):
        low, high = (f(centre + side * 30 * spread for _, centre, spread, _ in parts) for f, side in ((min, -1), (max, 1)))
        for _ in range(60):
            middle = (low + high) / 2
            below = sum(w * float(student_cdf(np.array([(middle - c) / s]), f)[0]) for w, c, s, f in parts)
            low, high = (middle, high) if below < share else (low, middle)
        return low

    def compare(parts, low, high):
        assert low == pytest.approx(quantile(parts, (1 - level) / 2), abs=0.1 * min(s for _, _, s, _ in parts))
        assert high == pytest.approx(quantile(parts, (1 + level) / 2), abs=0.1 * min(s for _, _, s, _ in parts))

    lows, highs = both.interval(sizes, level)
    for x, low, high in zip(sizes, lows, highs, strict=True):
        rows = [(f, columns[f.candidate.family](x)) for f in (line, bend)]
        expected = sum(f.weight * float(a @ f.coefficients) for f, a in rows)
        assert both.mean(np.array([x]))[0] == pytest.approx(expected)
        parts = [
            (f.weight, float(a @ f.coefficients), f.scale * math.sqrt(expected**2 + float(a @ f.covariance @ a)), f.freedom)
            for f, a in rows
        ]
        compare(parts, low, high)
    low, middle, high = both.coefficient("latency", level)
    assert middle == pytest.approx(0.7 * 1e-5 + 0.3 * 1.3e-5)
    compare([(f.weight, f.coefficients[0], f.scale * 1e-6, f.freedom) for f in (line, bend)], low, high)
    low, middle, high = both.coefficient("slope", level)
    assert middle == pytest.approx(0.7 * 1e-9 + 0.3 * 1.1e-9)
    compare([(0.7, 1e-9, 0.05 * 1e-10, 5), (0.3, 1.1e-9, 0.1 * math.sqrt(2) * 1e-10, 9)], low, high)


def test_shapes_are_averaged_by_how_well_each_explains():
    """Weights fall and sum to one; each held-out value is averaged with the weights that the other points give (SciPy's softmax)."""
    special = pytest.importorskip("scipy.special")
    x = 2.0 ** np.arange(10, 24)
    y = TrueLink(5, "slower").measured(x)
    families, trust = _posterior._families(tuple(x)), np.linspace(0.5, 1.0, 14)
    fitted, values, held_out = _posterior._average(families, x, y, y, trust)
    parts = [_posterior._fit_family(family, y, np.sqrt(trust) / y) for family in families]
    log, density, apart, curves = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("log", "log_density", "held_out", "values")
    )
    shares = special.softmax(log)
    assert values == pytest.approx(shares @ curves)
    assert held_out == pytest.approx(np.einsum("mi,mi->i", special.softmax(log[:, None] - density, axis=0), apart))
    ranked = np.sort(shares)[::-1]
    enough = int(np.flatnonzero(np.cumsum(ranked) >= 0.999)[0]) + 1
    assert len(fitted) == min(enough, 60)
    assert [f.weight for f in fitted] == pytest.approx(list(ranked[: len(fitted)] / ranked[: len(fitted)].sum()))
    named = [(family.chosen[k], part.coefficients[k]) for family, part in zip(families, parts, strict=True) for k in range(len(part.log))]
    candidate, coefficients = named[int(np.argmax(shares))]
    assert fitted[0].candidate == candidate
    assert fitted[0].coefficients.tolist() == coefficients.tolist()
    assert sum(f.weight for f in fitted) == pytest.approx(1.0)
