"""01.9: find where your caches end."""

# %% exercise
id = "01.9"
title = "find where your caches end"
answer_name = "ends"
limit_seconds = 60.0
machine = "the caches of your processor"

# %% stub
ends = [..., ...]  # working sets in bytes at which your curve leaves a level, smallest first

# %% hint
# Each flat part of the curve is a level. Where does a flat part end and the curve rise?

# %% hint
# Take the size in the middle of each rise. Most curves have two, three or four rises.

# %% hint
# curve.levels() finds them too. Read them off first, then compare.

# %% solution
import gpulab as gl

ends = [size for size in gl.lessons.memory_curve().levels().ends_bytes]

# %% check
import itertools
from typing import Any
import numpy as np
from gpulab.errors import GpulabError
from gpulab.hierarchy import Latency
from gpulab.lessons import checking, memory_curve
from gpulab.lessons.content import Refused, Seen
from gpulab.units import format_bytes, format_seconds, parse_bytes

_SIZES = "sizes in bytes, such as [32 * 1024, 2**20]"
# Reading a logarithmic axis by eye is good to a factor of two each way.
_EYE = 2.0
# Ratios of load times: from which the curve counts as rising around an answer, and from which a rise may not be missing from the answer.
_STEP_AT_LEAST, _MISSED_AT_LEAST = 1.2, 2.0


def check(answer: Any) -> str:
    listed = checking.listed(answer)
    if not isinstance(listed, (tuple, list)) or not listed:
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects {_SIZES}.")
    given = []
    for value in listed:
        try:
            given.append(float(parse_bytes(value)) if isinstance(value, str) else checking.number(value, _SIZES))
        except GpulabError as error:
            raise Refused(f"The check cannot read {value[:40]!r} as a size. It expects {_SIZES}.") from error
    if any(b <= a for a, b in itertools.pairwise(given)):
        raise Refused("The sizes must go up, because the first cache is the smallest.")
    curve = memory_curve()
    sizes = np.array([p.nbytes for p in curve.points], dtype=float)
    # A curve that never falls: noise must not look like a rise, so each time is the least one of this size and all larger sizes.
    times = np.minimum.accumulate(np.array([p.least_seconds for p in curve.points])[::-1])[::-1]
    rises = [level.between_bytes for level in curve.levels().levels if level.between_bytes is not None]
    windows = []
    for size in given:
        _refuse_outside(size, sizes)
        low, high = _window(size, rises)
        before, after = _at(low, sizes, times), _at(high, sizes, times)
        if after < _STEP_AT_LEAST * before:
            raise Refused(
                f"Around {format_bytes(size)} your curve is flat: a load takes {format_seconds(before)} at {format_bytes(low)} and "
                f"{format_seconds(after)} at {format_bytes(high)}. A data sheet counts the cache of the whole chip; read the size off the curve."
            )
        windows += [low, high]
    edges = [sizes[0], *windows, sizes[-1]]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        _refuse_missed(start, end, sizes, times)
    found = ", ".join(format_bytes(size) for size in given)
    return f"Your curve rises at {found}. Compare with the dashed lines, which are the sizes that the system reports."


def _window(size: float, rises: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the range that an answer stands for: a factor of two each way, and all of any rise that contains the answer."""
    low, high = size / _EYE, size * _EYE
    for start, end in rises:
        if start <= size <= end:
            low, high = min(low, start), max(high, end)
    return low, high


def _refuse_missed(start: float, end: float, sizes: np.ndarray, times: np.ndarray) -> None:
    """Refuse if, between ``start`` and ``end``, the time of a load doubles while the working set grows fourfold or less."""
    for at in [start, *sizes[(sizes > start) & (sizes < end)]]:
        to = min(at * _EYE**2, end)
        rise = _at(to, sizes, times) / _at(at, sizes, times)
        if rise >= _MISSED_AT_LEAST:
            raise Refused(
                f"From {format_bytes(at)} to {format_bytes(to)} the time of a load grows by a factor of {rise:.2g}, and your list has no "
                "end of a level there. Every rise of the curve is the end of a level."
            )


def _refuse_outside(size: float, sizes: np.ndarray) -> None:
    if size < 512:
        raise Refused(f"{size:g} bytes: did you write KiB? The check expects bytes.")
    if not sizes[0] <= size <= sizes[-1]:
        raise Refused(
            f"{format_bytes(size)} is not on your curve, which goes from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}. "
            "The check expects the sizes at which a level ends."
        )


# Return the time of a load at a size, interpolated on logarithmic axes.
def _at(size: float, sizes: np.ndarray, times: np.ndarray) -> float:
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(times))))


seen = Seen("latency curve", Latency)

# %% wrong: did you write KiB
ends = [32, 512, 8192]

# %% wrong: must go up
ends = [2**22, 2**19, 2**15]

# %% wrong: no end of a level there
ends = [2**15]

# %% wrong: your curve is flat
ends = [2**15, 2**17, 2**19, 2**23]

# %% wrong: not on your curve
ends = [2**15, 2**40]

# %% wrong: expects sizes in bytes
ends = 2**15
