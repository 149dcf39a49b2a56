"""The check of exercise 01.9 accepts what the curve shows, whatever the machine, and refuses what it does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulab.evidence import Evidence
from gpulab.hierarchy import Latency, LatencyPoint
from gpulab.lessons import _architecture, _nb01_exercises, content
from gpulab.lessons.content import Refused

EXERCISE = content.exercise("01.9")


def curve(times: list[float]) -> Latency:
    """A curve of these nanoseconds, two sizes a doubling from 4 KiB."""
    sizes = [n for k in range(12, 40) for n in (2**k, 3 * 2 ** (k - 1))]
    points = tuple(LatencyPoint(n, t * 1e-9, None, t * 1e-9, 5, 1) for n, t in zip(sizes, times, strict=False))
    return Latency("A CPU", "python", points, None, (), (), Evidence.measured("A CPU"), None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    levels=st.lists(st.tuples(st.integers(2, 9), st.integers(1, 5), st.floats(1.4, 8.0)), min_size=2, max_size=4),
    growth=st.floats(1.0, 1.08),
    noise=st.randoms(use_true_random=False),
)
def test_the_curves_own_levels_pass(monkeypatch: pytest.MonkeyPatch, levels, growth: float, noise) -> None:
    """Any number of levels, of any width, with rises over one to five points, slow growth and noise: levels() is a right answer."""
    times, value = [], 2.0
    for flat, rising, factor in levels:
        times += [value * growth ** (k / 2) for k in range(flat)]
        value = times[-1]
        times += [value * factor ** (k / (rising + 1)) for k in range(1, rising + 1)]
        value *= factor
    times += [value] * 4
    shown = curve([t * (1 + 0.02 * noise.random()) for t in times])
    monkeypatch.setattr(_architecture, "_curve", shown)
    ends = list(shown.levels().ends_bytes)
    if ends:
        assert EXERCISE.check(ends)


def test_a_size_in_a_rise_stands_for_all_of_it() -> None:
    """A factor of two each way, and no less than the rise that it lies in, ends included."""
    rises = [(100.0, 900.0), (5000.0, 6000.0)]
    assert _nb01_exercises._window(300.0, rises) == (100.0, 900.0)
    assert _nb01_exercises._window(100.0, rises) == (50.0, 900.0)
    assert _nb01_exercises._window(900.0, rises) == (100.0, 1800.0)
    assert _nb01_exercises._window(99.0, rises) == (49.5, 198.0)
    assert _nb01_exercises._window(5500.0, rises) == (2750.0, 11_000.0)


def test_a_time_between_two_sizes_lies_between_theirs_on_both_axes() -> None:
    """Halfway from 1 to 100 by factors is 10, and of 2 and 8 ns it is 4."""
    assert _nb01_exercises._at(10.0, np.array([1.0, 100.0]), np.array([2.0, 8.0])) == pytest.approx(4.0)


def test_a_size_read_by_eye_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels that end at 32 KiB, 512 KiB and 8 MiB: a factor of 1.6 beside each is near enough, as text or as bytes; 8 times is not."""
    times = [2.0 if k <= 6 else 5.0 if k <= 14 else 15.0 if k <= 22 else 90.0 for k in range(30)]
    monkeypatch.setattr(_architecture, "_curve", curve(times))
    assert EXERCISE.check([1.6 * 2**15, 2**19 / 1.6, 2**23])
    assert EXERCISE.check(["32 KiB", "512 KiB", "8 MiB"])
    with pytest.raises(Refused, match="flat"):
        EXERCISE.check([2**15, 2**19, 2**26])
