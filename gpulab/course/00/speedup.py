"""00.9: a speed-up with its interval."""

# %% exercise
id = "00.9"
title = "a speed-up with its interval"
answer_name = "speedup"

# %% stub
def speedup(slow, fast):
    """Return (ratio, low, high) of two measurements."""
    ...  # slow.median_seconds, slow.interval_seconds, ...

# %% hint
# The speed-up is the slow median divided by the fast median.

# %% hint
# The lowest speed-up that both intervals allow: the slow call is at the low end of its interval,
# and the fast call is at the high end of its interval.

# %% solution
def speedup(slow, fast):
    """Return (ratio, low, high) of two measurements."""
    slow_low, slow_high = slow.interval_seconds
    fast_low, fast_high = fast.interval_seconds
    ratio = slow.median_seconds / fast.median_seconds
    return ratio, slow_low / fast_high, slow_high / fast_low

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.timing import Measurement
from gpulab.units import format_ratio

# Several rules give a right interval. Their results differ by about the square of the relative widths, which are about 5 %.
_SECOND_ORDER = 0.01


def _made(median: float, low: float, high: float) -> Measurement:
    """Return an example measurement with the given median and interval, in seconds."""
    import numpy as np

    from gpulab import devices
    from gpulab.evidence import Evidence

    # The samples spread far beyond the interval of the median, so an answer that uses the shortest and longest sample is refused.
    samples = np.array([low * 0.8, low, median, high, high * 1.3])
    evidence = Evidence.measured("an example", samples.size)
    where = devices.environment("cpu")
    return Measurement("example", "cpu", samples, median, (low, high), median, median, None, 1, None, None, (), evidence, where)


# (slow, fast) as (median, low, high) in milliseconds: clearly faster, really slower, no difference, one of them noisy.
_PAIRS = (
    ((10.0, 9.5, 10.6), (2.0, 1.95, 2.06)),
    ((3.0, 2.95, 3.06), (4.0, 3.9, 4.1)),
    ((5.0, 4.9, 5.1), (5.02, 4.9, 5.12)),
    ((8.0, 7.96, 8.04), (1.0, 0.94, 1.05)),
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for slow, fast in _PAIRS:
        pair = (_made(*(value * 1e-3 for value in each)) for each in (slow, fast))
        result = ask(f"For a slow call of {slow[0]:g} ms and a fast one of {fast[0]:g} ms", *pair)
        _judge(checking.listed(result), slow, fast)
    return (
        "The ratio of the medians, with the lowest and the highest value that both intervals allow. "
        "If that interval contains 1, there is no speed-up to report."
    )


def _judge(result: Any, slow: tuple[float, float, float], fast: tuple[float, float, float]) -> None:
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        found = checking.describe(result)
        raise Refused(f"Your function returned {found}; the check expects ratio, low, high. A speed-up is not one number.")
    ratio, low, high = (checking.number(value, "three numbers: ratio, low, high") for value in result)
    (s, s_low, s_high), (f, f_low, f_high) = slow, fast
    times = f"a slow call of {s:g} ms [{s_low:g}, {s_high:g}] and a fast one of {f:g} ms [{f_low:g}, {f_high:g}]"
    case = f"For {times} you return {format_ratio(ratio)}"
    if abs(ratio * s / f - 1) < 1e-6 and abs(s / f - 1) > 1e-6:
        raise Refused(f"{case}: that is upside down. A speed-up is the slow time divided by the fast time, here {format_ratio(s / f)}.")
    if abs(ratio / (s / f) - 1) > 1e-6:
        if format_ratio(ratio) == format_ratio(s / f):  # the answer was rounded, and three digits would show no difference
            raise Refused(f"For {times} you return {ratio:.8g}; the ratio of the medians is {s / f:.8g}. Do not round it.")
        raise Refused(f"{case}; the ratio of the medians is {format_ratio(s / f)}. Use median_seconds of both, and return this ratio first.")
    said = f"{case} [{low:.3f}, {high:.3f}]"
    if low > high:
        raise Refused(f"{said}: low is above high.")
    if low == high:
        raise Refused(
            f"{said}: an interval without a width claims that the speed-up is known exactly. Both times are uncertain, so their ratio is too."
        )
    if abs(low / (s_low / f_low) - 1) < 1e-6 or abs(high / (s_high / f_high) - 1) < 1e-6:
        raise Refused(
            f"{said}: low divided by low and high divided by high make the interval too narrow. "
            "The lowest speed-up is the low end of slow divided by the high end of fast."
        )
    if not low <= ratio <= high:
        raise Refused(f"{said}: the ratio is not between low and high. Divide the ends as you divide the medians, slow by fast.")
    least, most = s_low / f_high, s_high / f_low
    if low < least * (1 - _SECOND_ORDER) or high > most * (1 + _SECOND_ORDER):
        raise Refused(f"{said}: that is wider than both intervals allow, [{least:.3f}, {most:.3f}].")
    if low > min(s_low / f, s / f_high) or high < max(s_high / f, s / f_low):
        raise Refused(f"{said}: that is narrower than one of the two intervals alone makes it. Both times are uncertain, so use both intervals.")

# %% wrong: A speed-up is not one number
def speedup(slow, fast):
    return slow.median_seconds / fast.median_seconds

# %% wrong: upside down
def speedup(slow, fast):
    r = fast.median_seconds / slow.median_seconds
    return r, 0.9 * r, 1.1 * r

# %% wrong: make the interval too narrow
def speedup(slow, fast):
    (a, b), (c, d) = slow.interval_seconds, fast.interval_seconds
    return slow.median_seconds / fast.median_seconds, a / c, b / d

# %% wrong: without a width
def speedup(slow, fast):
    r = slow.median_seconds / fast.median_seconds
    return r, r, r

# %% wrong: wider than
def speedup(slow, fast):
    r = slow.median_seconds / fast.median_seconds
    return r, 0.5 * r, 2 * r

# %% wrong: narrower than
def speedup(slow, fast):
    r = slow.median_seconds / fast.median_seconds
    return r, 0.999 * r, 1.001 * r

# %% wrong: the ratio is not between
def speedup(slow, fast):
    (slow_low, slow_high), (fast_low, fast_high) = slow.interval_seconds, fast.interval_seconds
    return slow.median_seconds / fast.median_seconds, fast_low / slow_high, fast_high / slow_low

# %% wrong: low is above high
def speedup(slow, fast):
    (a, b), (c, d) = slow.interval_seconds, fast.interval_seconds
    return slow.median_seconds / fast.median_seconds, b / c, a / d

# %% wrong: wider than both intervals allow
def speedup(slow, fast):
    a, b = slow.samples_seconds, fast.samples_seconds
    return slow.median_seconds / fast.median_seconds, a.min() / b.max(), a.max() / b.min()

# %% wrong: TypeError
def speedup(slow, fast):
    return min(slow) / min(fast)
