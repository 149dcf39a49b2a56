"""03.3: place five operations before you measure them."""

# %% exercise
id = "03.3"
title = "place five operations before you measure them"
answer_name = "least_seconds"
machine = "the roofs of your device"

# %% stub
least_seconds = {"add": ..., "sum": ..., "softmax": ..., "one row": ..., "matmul": ...}

# %% hint
# For each: how many FLOPs, and how many bytes are read and written? A float32 number has 4 bytes.

# %% hint
# Divide the FLOPs by the roof of arithmetic and the bytes by the roof of memory. Both must
# happen: the longer time counts.

# %% hint
# The arrays of add, sum and softmax have 2^24 numbers. A matrix with 4096 x 4096 weights times
# one row reads each weight once.

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
from gpulab.lessons import _density, checking, five_works
from gpulab.lessons.content import NotAttempted, Refused, Seen
from gpulab.units import format_seconds

_WITHIN = 1.5
_ROOF = Seen("the roofs of your device", models.Roofline, lambda: _density._kept, lambda roof: setattr(_density, "_kept", roof))
_ROUNDING = 1 + 1e-9  # exactly 1.5 is within 1.5


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a dict from each name to seconds.")
    works = five_works()
    missing = [name for name in works if name not in answer]
    if missing:
        raise Refused(f"{', '.join(missing)}: not there. The check expects all of {', '.join(works)}.")
    roof = _density.roof()
    peak, bandwidth = roof.arithmetic_roof("float32").flops_per_second, roof.memory_roof("DRAM").bytes_per_second
    for name, work in works.items():
        if checking.is_stub(answer[name]):
            raise NotAttempted
        said = checking.number(answer[name], f"seconds for {name!r}")
        computing, moving = work.flops / peak, work.nbytes / bandwidth
        if said <= 0:
            raise Refused(f"{name}: {said:g} s; a time is more than nothing.")
        if 1 / _WITHIN / _ROUNDING <= said / max(computing, moving) <= _WITHIN * _ROUNDING:
            continue
        raise Refused(f"{name}: you say {format_seconds(said)}. {_why_misplaced(said, computing, moving)}")
    return "All five are within a factor of 1.5 of what your roofs allow. Now see how near the real ones come."


def _why_misplaced(said: float, computing: float, moving: float) -> str:
    def like(seconds: float) -> bool:
        return 1 / 1.1 <= said / seconds <= 1.1

    if moving > computing:
        if like(computing):
            return "That is what the arithmetic alone would take. The bytes take longer, and the longer of the two counts."
        if like(moving / 4):
            return "That is a fourth of what it takes to move it all: a float32 number has 4 bytes."
        if like(moving / 2):
            return "That is half of what it takes to move it all: what is read and what is written both count."
    else:
        if like(moving):
            return "That is what the bytes alone would take. The arithmetic takes longer, and the longer of the two counts."
        if like(computing / 2):
            return "That is half of the arithmetic: a multiplication and an addition count two."
    short = "little" if said < max(computing, moving) else "much"
    return f"That is too {short}: count the FLOPs and the bytes, divide each by its roof, and take the longer time."


seen = _ROOF

# %% wrong: arithmetic alone
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second
n = 2**24
least_seconds = {"add": n / peak, "sum": n / peak, "softmax": 5 * n / peak,
                 "one row": 2 * 4096**2 / peak, "matmul": 2 * 1024**3 / peak}

# %% wrong: bytes alone
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

# %% wrong: count two
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second


def least(flops, nbytes):
    return max(flops / peak, nbytes / bandwidth)


n = 2**24
least_seconds = {"add": least(n, 12 * n), "sum": least(n, 4 * n), "softmax": least(5 * n, 8 * n),
                 "one row": least(2 * 4096**2, 4 * 4096**2), "matmul": least(1024**3, 12 * 1024**2)}

# %% wrong: not there
least_seconds = {"add": 1.0}

# %% wrong: a dict
least_seconds = 0.5
