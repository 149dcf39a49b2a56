"""03.3: place five operations before you measure them."""

# %% exercise
id = "03.3"
title = "place five operations before you measure them"
answer_name = "least_seconds"
machine = "the roofs of your device"

# %% stub
least_seconds = {"add": ..., "sum": ..., "softmax": ..., "one row": ..., "matmul": ...}

# %% hint
# For each operation: how many FLOPs does it compute, and how many bytes does it read and write? A
# float32 number has 4 bytes.

# %% hint
# at_least(flops, nbytes) gives the seconds: the longer of FLOPs / peak and bytes / bandwidth.

# %% hint
# The arrays of add, sum and softmax have 2^24 numbers. add reads two arrays and writes a third.
# "one row" reads each of the 4096 x 4096 weights once.

# %% solution
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second


def least(flops, nbytes):
    return max(flops / peak, nbytes / bandwidth)


n = 2**24
least_seconds = {
    "add": least(n, 3 * 4 * n),  # two arrays read, one written
    "sum": least(n, 4 * n),  # one array read
    "softmax": least(5 * n, 2 * 4 * n),  # one read, one written
    "one row": least(2 * 4096**2, 4 * 4096**2),  # every weight is read for one multiply-add
    "matmul": least(2 * 1024**3, 3 * 4 * 1024**2),  # three matrices
}

# %% check
from collections.abc import Mapping
from typing import Any
from gpulab import models
from gpulab.lessons import checking, five_works, roof
from gpulab.lessons.content import NotAttempted, Refused, Seen
from gpulab.units import format_seconds

_WITHIN = 1.3
_ROOF = Seen("roof", models.Roofline)
_SUM = 0.005  # an answer this near to the sum of both times, and further from the longer time, is taken for the sum
_ROUNDING = 1 + 1e-9  # exactly 1.3 is within 1.3


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a dict from each name to seconds.")
    works = five_works()
    missing = [name for name in works if name not in answer]
    if missing:
        raise Refused(f"Your answer lacks {', '.join(missing)}. The check expects all of {', '.join(works)}.")
    peak, bandwidth = roof().arithmetic_roof("float32").flops_per_second, roof().memory_roof("DRAM").bytes_per_second
    added = []  # for each answer: whether it is the sum of both times, and whether it differs from the longer time
    for name, work in works.items():
        if checking.is_stub(answer[name]):
            raise NotAttempted
        given = checking.number(answer[name], f"seconds for {name!r}")
        computing, moving = work.flops / peak, work.nbytes / bandwidth
        if given <= 0:
            raise Refused(f"{name}: {given:g} s. The check expects a time greater than 0.")
        added.append((abs(given / (computing + moving) - 1) < _SUM, abs(given / max(computing, moving) - 1) > _SUM))
        if 1 / _WITHIN / _ROUNDING <= given / max(computing, moving) <= _WITHIN * _ROUNDING:
            continue
        raise Refused(f"{name}: your answer is {format_seconds(given)}. {_why_misplaced(given, computing, moving)}")
    if all(like_sum for like_sum, _ in added) and any(clearly for _, clearly in added):
        raise Refused(_ADDED)
    return "All five are within a factor of 1.3 of what your two roofs allow. Now see how close the measured times come."


_ADDED = "You add the time of the arithmetic and the time of the bytes. A processor does both at the same time, so the longer of the two counts."


def _why_misplaced(given: float, computing: float, moving: float) -> str:
    def like(seconds: float) -> bool:
        return 1 / 1.1 <= given / seconds <= 1.1

    if abs(given / (computing + moving) - 1) < _SUM:
        return _ADDED
    if moving > computing:
        if like(computing):
            return "That is the time of the arithmetic alone. The bytes take longer, and the longer of the two counts."
        if like(moving / 4):
            return "That is a quarter of the time for all bytes: a float32 number has 4 bytes."
        if like(moving / 2):
            return "That is half of the time for all bytes: what is read and what is written both count."
        if like(moving * 2 / 3):
            return "That is two thirds of the time for all bytes. How many arrays are read, and how many are written?"
    else:
        if like(moving):
            return "That is the time of the bytes alone. The arithmetic takes longer, and the longer of the two counts."
        if like(computing / 2):
            return "That is half of the arithmetic: a multiplication and an addition count as two FLOP."
    if any(1 / _WITHIN <= given / (scale * max(computing, moving)) <= _WITHIN for scale in (1e3, 1e6, 1e9)):
        return "The check expects seconds, not milliseconds, microseconds or nanoseconds."
    size = "short" if given < max(computing, moving) else "long"
    return f"That is too {size}: count the FLOPs and the bytes, divide each by its roof, and take the longer time."


seen = _ROOF

# %% wrong: time of the arithmetic alone
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second
n = 2**24
least_seconds = {"add": n / peak, "sum": n / peak, "softmax": 5 * n / peak,
                 "one row": 2 * 4096**2 / peak, "matmul": 2 * 1024**3 / peak}

# %% wrong: time of the bytes alone
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second
n = 2**24
least_seconds = {"add": 12 * n / bandwidth, "sum": 4 * n / bandwidth, "softmax": 8 * n / bandwidth,
                 "one row": 4 * 4096**2 / bandwidth, "matmul": 12 * 1024**2 / bandwidth}

# %% wrong: has 4 bytes
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second


def least(flops, nbytes):
    return max(flops / peak, nbytes / bandwidth)


n = 2**24
least_seconds = {"add": least(n, 3 * n), "sum": least(n, n), "softmax": least(5 * n, 2 * n),
                 "one row": least(2 * 4096**2, 4096**2), "matmul": least(2 * 1024**3, 3 * 1024**2)}

# %% wrong: what is read and what is written
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second


def least(flops, nbytes):
    return max(flops / peak, nbytes / bandwidth)


n = 2**24
least_seconds = {"add": least(n, 12 * n), "sum": least(n, 4 * n), "softmax": least(5 * n, 4 * n),
                 "one row": least(2 * 4096**2, 4 * 4096**2), "matmul": least(2 * 1024**3, 12 * 1024**2)}

# %% wrong: How many arrays are read
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second


def least(flops, nbytes):
    return max(flops / peak, nbytes / bandwidth)


n = 2**24
least_seconds = {"add": least(n, 8 * n), "sum": least(n, 4 * n), "softmax": least(5 * n, 8 * n),
                 "one row": least(2 * 4096**2, 4 * 4096**2), "matmul": least(2 * 1024**3, 12 * 1024**2)}

# %% wrong: count as two FLOP
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second


def least(flops, nbytes):
    return max(flops / peak, nbytes / bandwidth)


n = 2**24
least_seconds = {"add": least(n, 12 * n), "sum": least(n, 4 * n), "softmax": least(5 * n, 8 * n),
                 "one row": least(2 * 4096**2, 4 * 4096**2), "matmul": least(1024**3, 12 * 1024**2)}

# %% wrong: both at the same time
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second


def least(flops, nbytes):
    return flops / peak + nbytes / bandwidth


n = 2**24
least_seconds = {"add": least(n, 12 * n), "sum": least(n, 4 * n), "softmax": least(5 * n, 8 * n),
                 "one row": least(2 * 4096**2, 4 * 4096**2), "matmul": least(2 * 1024**3, 12 * 1024**2)}

# %% wrong: expects seconds
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second
n = 2**24
least_seconds = {"add": 1e6 * 12 * n / bandwidth, "sum": 1e6 * 4 * n / bandwidth, "softmax": 1e6 * 8 * n / bandwidth,
                 "one row": 1e6 * 4 * 4096**2 / bandwidth, "matmul": 1e6 * 2 * 1024**3 / peak}

# %% wrong: lacks sum, softmax
least_seconds = {"add": 1.0}

# %% wrong: a dict
least_seconds = 0.5
