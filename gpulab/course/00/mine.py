"""00.5: a measurement that passes the physics check."""

# %% exercise
id = "00.5"
title = "a measurement that passes the physics check"
answer_name = "mine"

# %% stub
mine = ...  # gl.measure(your function, its arguments, nbytes=...)

# %% hint
# Take any function that computes for a millisecond or longer, such as a NumPy or PyTorch function
# on a large array.

# %% hint
# Count the bytes of the arrays that it reads and writes: x.nbytes is the size of an array or a
# tensor. Pass the sum as nbytes=.

# %% hint
# With x = torch.rand(10_000_000), torch.exp reads x and writes a result of the same size:
# mine = gl.measure(torch.exp, x, nbytes=2 * x.nbytes, device="cpu")

# %% solution
import torch
import gpulab as gl

x = torch.ones(500_000)
mine = gl.measure(torch.cumsum, x, 0, nbytes=2 * x.nbytes, device="cpu")  # reads x, writes as much

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.timing import Measurement
from gpulab.units import format_bytes_per_second, format_flops_per_second, format_interval, format_seconds


def check(answer: Any) -> str:
    m = answer
    if not isinstance(m, Measurement):
        if isinstance(m, (int, float)):
            raise Refused("A bare number has no samples and no interval. Keep what gl.measure returns: mine = gl.measure(...).")
        raise Refused(f"Your answer is {checking.describe(m)}; the check expects what gl.measure returns.")
    rates = [rate for rate in (m.flops_per_second, m.bytes_per_second) if rate is not None]
    if not rates:
        raise Refused(
            "Physics cannot be checked, because the work of one call is unknown. Pass nbytes= (bytes read and written) or flops=."
        )
    busy = ""
    if any(note.code == "contended" for note in m.notes):
        busy = " Other programs disturbed this measurement, and perhaps that of the memory. Is your count right? Measure again when they are done."
    for note in m.notes:
        if note.code == "implausible":
            raise Refused(f"The physics check refuses it: {note.sentence} Measure a function whose work is done when it returns.{busy}")
    if max(rates) < _LEAST_RATE:
        raise Refused(
            f"{_rate_text(m)} is far too little: either the count of bytes or FLOPs is too small, or the function waits. "
            "Count all the work of one call."
        )
    if m.interval_seconds is None:  # checked last: more samples would not repair any of the faults above
        why = next((note.sentence for note in m.notes if note.code == "no-interval"), "")
        if m.samples_seconds.size < _ENOUGH:
            raise Refused(f"There is no interval, so it is unknown how far the median can be trusted. {why} Take more samples: raise deadline=.")
        return f"{format_seconds(m.median_seconds)} at {_rate_text(m)}, which this device can do. But there is no interval. {why}"
    return f"{format_seconds(m.median_seconds)} {format_interval(m.interval_seconds)} at {_rate_text(m)}, which this device can do."


# One megabyte (or a million operations) per second is far less than any processor of the last thirty years reaches.
_LEAST_RATE = 1e6
_ENOUGH = 20  # samples; with so many, an interval is missing only if the machine was disturbed, which is not the learner's fault


def _rate_text(m: Measurement) -> str:
    return (
        format_bytes_per_second(m.bytes_per_second)
        if m.bytes_per_second is not None
        else format_flops_per_second(m.flops_per_second or 0.0)
    )

# %% wrong: A bare number
mine = 0.0012

# %% wrong: expects what gl.measure returns
mine = "1.2 ms"

# %% wrong: Pass nbytes=
import numpy as np
import gpulab as gl

mine = gl.measure(np.cumsum, np.ones(4_000_000), device="cpu", deadline=0.5)

# %% wrong: The physics check refuses it
from concurrent.futures import ThreadPoolExecutor
import torch
import gpulab as gl

x = torch.ones(8_000_000)
worker = ThreadPoolExecutor(max_workers=1)
mine = gl.measure(lambda: worker.submit(torch.cumsum, x, 0), nbytes=2 * x.nbytes, device="cpu", deadline=0.1)
worker.shutdown(cancel_futures=True)

# %% wrong: far too little
import time
import gpulab as gl

mine = gl.measure(time.sleep, 0.002, nbytes=16, device="cpu", deadline=0.5)
