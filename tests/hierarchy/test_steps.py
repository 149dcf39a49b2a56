"""Levels in curves whose answer is known by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.evidence import Evidence
from gpulab.hierarchy import Bandwidth, BandwidthPoint, Latency, LatencyPoint, Reported, _steps

KIB, MIB = 2**10, 2**20
SIZES = [n for k in range(12, 27) for n in (2**k, 3 * 2 ** (k - 1))]
CACHES = (Reported("L1d", 32.0 * KIB), Reported("L2", 512.0 * KIB), Reported("L3", 8.0 * MIB))
LIVE = Evidence.measured("A CPU", 1)


def staircase(size: float) -> float:
    """Nanoseconds of a machine with 32 KiB, 512 KiB and 8 MiB: 2, 5, 15 and 90 ns, full at once when a level is left."""
    return 2.0 if size <= 32 * KIB else 5.0 if size <= 512 * KIB else 15.0 if size <= 8 * MIB else 90.0


def curve(times: list[float], sizes: list[int] = SIZES, reported: tuple[Reported, ...] = CACHES, floor: float | None = None) -> Latency:
    """A curve with these nanoseconds."""
    points = tuple(LatencyPoint(n, t * 1e-9, (t * 0.99e-9, t * 1.01e-9), t * 1e-9, 9, 3) for n, t in zip(sizes, times, strict=True))
    return Latency("A CPU", "python", points, floor, reported, (), LIVE, None)


def test_a_staircase_shows_its_levels() -> None:
    """Each level's latency is exact; its end lies between the last set in it and the first set out of it, and bears the cache's name."""
    found = curve([staircase(n) for n in SIZES]).levels()
    assert [level.name for level in found.levels] == ["L1d", "L2", "L3", "main memory"]
    assert [level.latency_seconds for level in found.levels] == pytest.approx([2e-9, 5e-9, 15e-9, 90e-9])
    assert [level.between_bytes for level in found.levels[:3]] == [
        (32 * KIB, 48 * KIB), (512 * KIB, 768 * KIB), (8 * MIB, 12 * MIB),
    ]  # fmt: skip
    # A jump between two points is crossed at their geometric mean.
    assert found.ends_bytes == pytest.approx([32 * KIB * 1.5**0.5, 512 * KIB * 1.5**0.5, 8 * MIB * 1.5**0.5])
    assert found.unseen == ()


def test_a_slow_rise_is_one_step() -> None:
    """A rise over several points counts once, and its middle on log scales is the end: 4 to 16 over two doublings pass 8 after one."""
    sizes = [2**k for k in range(12, 20)]
    found = curve([4, 4, 4, 8, 16, 16, 16, 16], sizes, ()).levels()
    assert len(found.levels) == 2
    assert found.levels[0].between_bytes == (2**14, 2**16)
    assert found.levels[0].ends_bytes == pytest.approx(2**15)


def test_a_disturbed_point_makes_no_level() -> None:
    """A point above later ones is a disturbance, wherever it lies: the levels stay."""
    times = [staircase(n) for n in SIZES]
    expected = curve(times).levels().levels
    for k in range(len(times) - 1):
        disturbed = [*times[:k], times[k] * 1.7, *times[k + 1 :]]
        found = curve(disturbed).levels()
        if times[k] == times[k + 1]:  # the last point of a level, slowed, is a point of the rise
            assert found.levels == expected, SIZES[k]
        else:
            assert len(found.levels) == len(expected)


def test_slow_growth_is_no_step() -> None:
    """Nine percent for each doubling, from 4 KiB to 96 MiB, is no level's end."""
    found = curve([2 * 1.09 ** (k / 2) for k in range(len(SIZES))]).levels()
    assert len(found.levels) == 1
    assert found.ends_bytes == ()
    assert [cache.name for cache in found.unseen] == ["L1d", "L2", "L3"]
    assert any("L1d 32.0 KiB, L2 512 KiB, L3 8.00 MiB" in sentence for sentence in found.cannot_tell)


def test_a_rise_of_a_tenth_for_each_doubling_is_a_step() -> None:
    """Twelve percent for each of three doublings are 40 percent in all, and a step; eight percent for each of five are not."""
    sizes = [2**k for k in range(12, 24)]
    steady = [2.0] * 4
    found = curve([*steady, 2 * 1.12, 2 * 1.12**2, *[2 * 1.12**3] * 6], sizes, ()).levels()
    assert [level.between_bytes for level in found.levels] == [(2**15, 2**18), None]
    assert len(curve([*steady, *(2 * 1.08**k for k in range(1, 6)), *[2 * 1.08**5] * 3], sizes, ()).levels().levels) == 1


def test_a_cache_four_doublings_off_is_the_furthest() -> None:
    """Of 32 KiB: 512 KiB is a cache whose end it may be, 600 KiB is not."""
    assert _steps.matched([32 * KIB], [512 * KIB]) == [0]
    assert _steps.matched([32 * KIB], [600 * KIB]) == [None]


def test_a_small_rise_is_no_step() -> None:
    """Fifteen percent at once are within the noise; a third is a step."""
    small, enough, large = ([2.0] * 15 + [after] * 15 for after in (2.3, 2.5, 2.7))
    assert len(curve(small).levels().levels) == 1
    assert len(curve(enough).levels().levels) == 2  # a quarter is more than a fifth
    assert len(curve(large).levels().levels) == 2


def test_what_cannot_be_told_is_said() -> None:
    """A floor near the first level, a largest set inside the last cache, and caches that look alike each have their sentence."""
    few = [n for n in SIZES if n <= 6 * MIB]
    told = " ".join(curve([staircase(n) for n in few], few, CACHES, floor=1.9e-9).levels().cannot_tell)
    assert "floor of 1.90 ns" in told
    assert "6.00 MiB, is not far above the largest cache" in told
    assert "one step" in told
    assert "floor" not in " ".join(curve([staircase(n) for n in SIZES], floor=0.5e-9).levels().cannot_tell)


def test_the_last_level_is_main_memory_only_beyond_the_caches() -> None:
    """With the largest set at twice the largest cache or more it is main memory; below it has a number."""
    few = [n for n in SIZES if n <= 12 * MIB]
    assert curve([staircase(n) for n in few], few).levels().levels[-1].name == "level 4"
    assert curve([staircase(n) for n in SIZES]).levels().levels[-1].name == "main memory"
    twice = [n for n in SIZES if n <= 16 * MIB]
    assert curve([staircase(n) for n in twice], twice).levels().levels[-1].name == "main memory"
    assert [level.name for level in curve([2.0] * len(SIZES)).levels().levels] == ["level 1"]  # no end was seen of any cache


def test_few_points() -> None:
    """One set shows one level, two show a step."""
    assert [level.latency_seconds for level in curve([2.0], [4096], ()).levels().levels] == [2e-9]
    assert [level.between_bytes for level in curve([2.0, 9.0], [4096, 8192], ()).levels().levels] == [(4096, 8192), None]


def test_every_sentence_on_what_is_not_told() -> None:
    """In full, of a chase and of a stream, of NumPy's and of a GPU's; a floor of four fifths of the first level is named."""
    alike = "Two caches of nearly one size show one step, and a cache that other programs use looks smaller than it is."
    assert curve([2.0, 9.0], [4096, 8192], (), floor=1.59e-9).levels().cannot_tell == (alike,)
    assert curve([2.0, 9.0], [4096, 8192], (), floor=1.61e-9).levels().cannot_tell == (
        "The floor of 1.61 ns is the first cache's latency and the method's own work together (a cycle of Python objects); their shares "
        "are not told apart.",
        alike,
    )
    points = tuple(BandwidthPoint(n, 1e9, None, 1e9, 5) for n in (4096, 8192))
    told = {way: Bandwidth("A device", way, "read", points, (), (), LIVE, None).levels().cannot_tell for way in ("numpy", "cupy")}
    prefetchers = "Prefetchers hide much of a stream's waiting, so levels can look alike here that differ in latency."
    passes = "The smallest sets also pay NumPy's own work for each pass, so the first cache may be faster than its figure."
    assert told == {"numpy": (prefetchers, passes, alike), "cupy": (prefetchers, alike)}
    caches = (Reported("L1d", 4096.0), Reported("L2", 6.0 * MIB))
    assert curve([2.0, 9.0], [4096, 8192], caches).levels().cannot_tell == (
        "No step was found that belongs to L2 6.00 MiB: it may lie beyond the largest set, be too small to show, or be shared so that "
        "little of it is yours.",
        "The largest set, 8.00 KiB, is not far above the largest cache; the last level may be that cache's.",
        alike,
    )


def test_reported_sizes_are_matched_in_order() -> None:
    """Steps at 40 KiB and 10 MiB belong to the first and the third of three caches; a step 5 doublings off belongs to none."""
    assert _steps.matched([40 * KIB, 10 * MIB], [32 * KIB, 512 * KIB, 8 * MIB]) == [0, 2]
    assert _steps.matched([40 * KIB, 500 * KIB, 9 * MIB], [32 * KIB, 8 * MIB]) == [0, None, 1]
    assert _steps.matched([32 * KIB], [MIB]) == [None]
    assert _steps.matched([2**15 * 2**0.5], [32 * KIB, 64 * KIB]) == [0]  # as far from both: the one that the last set fitted into
    assert _steps.matched([], [MIB]) == []


def test_bandwidth_has_levels_too() -> None:
    """40, 20 and 5 GB/s: the rates fall where the levels end, and the first point's slow passes are no level."""
    rates = [10e9, *(40e9 if n <= 32 * KIB else 20e9 if n <= 512 * KIB else 5e9 for n in SIZES[1:])]
    points = tuple(BandwidthPoint(n, r, None, r, 5) for n, r in zip(SIZES, rates, strict=True))
    found = Bandwidth("A CPU", "numpy", "read", points, CACHES[:2], (), LIVE, None).levels()
    assert [level.bytes_per_second for level in found.levels] == pytest.approx([40e9, 20e9, 5e9])
    assert [level.reported_bytes for level in found.levels] == [32 * KIB, 512 * KIB, None]
    assert found.levels[0].latency_seconds is None
    assert "40.0 GB/s" in repr(found)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=4),
    st.lists(st.floats(1.5, 8.0), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_any_staircase_with_noise_shows_its_steps(widths: list[int], factors: list[float], noise: object) -> None:
    """Levels of two to six points, factors of 1.5 to 8 between them, three percent of noise: as many levels, and ends where they were."""
    times, starts, value = [], [], 2.0
    for width, factor in zip(widths, factors, strict=False):
        starts.append(len(times))
        times += [value * (1 + 0.03 * noise.random()) for _ in range(width)]  # type: ignore[attr-defined]
        value *= factor
    sizes = [2**k for k in range(12, 12 + len(times))]
    found = curve(times, sizes, ()).levels()
    assert len(found.levels) == len(starts)
    for level, start in zip(found.levels, starts[1:], strict=False):
        assert level.between_bytes == (sizes[start - 1], sizes[start])


@given(st.lists(st.floats(1e-9, 1e-6), min_size=1, max_size=30))
def test_a_lowered_curve_never_falls_and_is_never_above(times: list[float]) -> None:
    """Against its definition: each value is the least of those from there on."""
    got = _steps.lowered(times)
    assert list(got) == [min(times[k:]) for k in range(len(times))]


def test_the_span_of_a_stream_leaves_out_the_small_sets() -> None:
    """By hand: 80 GB/s at best, 20 at worst of the larger sets: 4; the smallest, at 5 GB/s, pays for the start of its passes."""
    rates = {4 * KIB: 5e9, 256 * KIB: 80e9, MIB: 40e9, 64 * MIB: 20e9}
    points = tuple(BandwidthPoint(n, rate, None, rate, 5) for n, rate in rates.items())
    assert Bandwidth("A CPU", "numpy", "read", points, CACHES[:2], (), LIVE, None).span_ratio == pytest.approx(4.0)
