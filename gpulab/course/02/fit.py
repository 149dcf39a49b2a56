"""02.5: fit the line yourself."""

# %% exercise
id = "02.5"
title = "fit the line yourself"
answer_name = "fit"

# %% stub
def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    ...  # nbytes and seconds are NumPy arrays

# %% hint
# seconds = latency + nbytes / bandwidth is a straight line. np.polyfit(nbytes, seconds, 1)
# returns its slope and its offset.

# %% hint
# The largest copy takes thousands of times as long as the smallest, so its noise alone is larger than
# the latency. Give each point the weight 1 / time.

# %% hint
# np.polyfit takes w=weights; the bandwidth is 1 / slope.

# %% solution
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    weights = 1 / seconds  # so that the relative error of every point counts equally
    slope, latency = np.polyfit(nbytes, seconds, 1, w=weights)
    return latency, 1 / slope

# %% check
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds

# The exercises are checked over this link. It is the same for every learner, so that a right answer is right everywhere.
EXERCISE_LINK = "pcie4-x16"
# (latency in seconds, bandwidth in bytes per second, seed of the noise): from a fast link to a slow one.
_LINKS = ((5e-6, 50e9, 1), (12e-6, 12e9, 2), (30e-6, 6e9, 3))
_NOISE = 0.03
# Sizes that the learner's function has not seen: they lie between its points. Small sizes test the latency, large sizes the slope.
_UNSEEN = (1_500, 24_000, 700_000, 96 * 2**20, 700 * 2**20)
_OFF = 0.10
_SMALL_BYTES = 1_000_000
_MOST_SLOPE = 1e-8  # seconds a byte: the links have at most 2e-10, and no latency is as short
_MOST_LATENCY, _LEAST_BANDWIDTH = 0.1, 1e8  # the links have at most 30 us and at least 6e9 bytes a second
_TWO_NUMBERS = "two numbers: latency in seconds, bytes a second"


def check(answer: Any) -> str:
    from gpulab import transfer

    ask = checking.in_turn(answer)
    for latency, bandwidth, seed in _LINKS:
        link = transfer.link(EXERCISE_LINK, latency_seconds=latency, bandwidth_bytes_per_second=bandwidth)
        points = link.sweep(noise_ratio=_NOISE, seed=seed).select()
        nbytes = np.array([point.nbytes for point in points], dtype=float)
        seconds = np.array([point.median_seconds for point in points])
        truth = f"For a link with {format_seconds(latency)} and {format_bytes_per_second(bandwidth)}"
        result = checking.listed(ask(truth, nbytes.copy(), seconds.copy()))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise Refused(f"Your function returned {checking.describe(result)}; the check expects {_TWO_NUMBERS}.")
        a, b = (checking.number(value, _TWO_NUMBERS) for value in result)
        _judge_numbers(a, b, truth)
        for size in reversed(_UNSEEN):  # a wrong slope makes all sizes wrong, a wrong latency only the small ones
            _judge_size(size, (a, a + size / b, latency + size / bandwidth), transfer.fit(nbytes, seconds), truth)
    return "Your line predicts sizes that it has not seen, on three links, within a tenth or the fit's own prediction interval."


def _judge_numbers(a: float, b: float, truth: str) -> None:
    if 0 < a < _MOST_SLOPE < abs(b) < _LEAST_BANDWIDTH:  # abs, because a fit without weights may give a negative latency
        second = "the latency" if abs(b) < 1 else "1 / latency"
        raise Refused(
            f"{truth} you returned {a:.3g} and {b:.3g}: that is the slope, then {second}. np.polyfit gives the slope first. "
            "Return the latency, then 1 / slope."
        )
    if a > 1e6:
        raise Refused(f"{truth} you returned {a:.3g} and {b:.3g}: the two are in the wrong order. Latency first, then bytes a second.")
    if abs(a) > _MOST_LATENCY:
        raise Refused(
            f"{truth} your latency is {a:.3g} s. No link has such a latency: fit the times over the sizes, and return seconds, not microseconds."
        )
    if 1 <= b < _LEAST_BANDWIDTH:
        raise Refused(f"{truth} your bandwidth is {b:.3g} bytes a second. Return it in bytes a second, not in GB/s, and fit the times as they are.")
    if 0 < b < 1:
        raise Refused(f"{truth} your bandwidth is {b:.3g} bytes a second. The slope is in seconds per byte; the bandwidth is 1 / slope.")
    if b <= 0:
        raise Refused(f"{truth} your bandwidth is {b:.3g} bytes a second, but more bytes always take more time.")


# Refuse a prediction that is off. `line` is (latency, predicted seconds, true seconds).
def _judge_size(size: int, line: tuple[float, float, float], best: Any, truth: str) -> None:
    offset, mine, right = line
    low, _, high = best.predict(size)
    if abs(mine / right - 1) <= _OFF or low <= mine <= high:
        return
    said = f"{truth} your line gives {format_seconds(mine)} for {format_bytes(size)}; it takes {format_seconds(right)}."
    if size > _SMALL_BYTES:
        raise Refused(f"{said} The large copies are off. Compare the two largest: how many more bytes, and how much more time?")
    if offset == 0:
        raise Refused(f"{said} Small copies must be started too: how long does a copy of almost no bytes take?")
    raise Refused(
        f"{said} The noise of the largest copies, in seconds, is larger than the times of the small ones. Give each point the weight 1 / time."
    )

# %% wrong: the weight 1 / time
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    slope, latency = np.polyfit(nbytes, seconds, 1)
    return latency, 1 / slope

# %% wrong: Small copies must be started too
def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    return 0.0, nbytes[-1] / seconds[-1]

# %% wrong: the slope, then the latency
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    return np.polyfit(nbytes, seconds, 1)

# %% wrong: Return the latency, then 1 / slope
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return slope, latency

# %% wrong: the slope, then 1 / latency
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    latency, slope = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return latency, 1 / slope

# %% wrong: fit the times over the sizes
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    bandwidth, latency = np.polyfit(seconds, nbytes, 1, w=1 / nbytes)
    return latency, bandwidth

# %% wrong: the bandwidth is 1 / slope
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return latency, slope

# %% wrong: wrong order
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return 1 / slope, latency

# %% wrong: not microseconds
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return 1e6 * latency, 1 / slope

# %% wrong: not in GB/s
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return latency, 1e-9 / slope

# %% wrong: always take more time
import numpy as np


def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return latency, -1 / slope

# %% wrong: The large copies are off
def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    return seconds[0], nbytes[1] / seconds[1]

# %% wrong: two numbers
def fit(nbytes, seconds):
    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""
    return seconds[0]
