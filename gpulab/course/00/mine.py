"""00.5: a measurement that passes the physics check."""

# %% exercise
id = "00.5"
title = "a measurement that passes the physics check"
answer_name = "mine"

# %% stub
mine = ...  # gl.measure(your function, its arguments, nbytes=...)

# %% hint
# Take any function of yours that computes for a millisecond or so, such as a NumPy function on a
# large array.

# %% hint
# Count the bytes of the arrays that it reads and writes; a.nbytes gives an array's. Pass the sum
# as nbytes=.

# %% hint
# mine = gl.measure(np.cumsum, a, nbytes=2 * a.nbytes, device="cpu")

# %% solution
import numpy as np
import gpulab as gl

a = np.ones(500_000)
mine = gl.measure(np.cumsum, a, nbytes=2 * a.nbytes, device="cpu")  # reads a, writes as much

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.timing import Measurement
from gpulab.timing.results import format_interval
from gpulab.units import format_bytes_per_second, format_flops_per_second, format_seconds


def check(answer: Any) -> str:
    m = answer
    if not isinstance(m, Measurement):
        if isinstance(m, (int, float)):
            raise Refused("A bare number keeps no samples and no notes. Return what gl.measure gives: mine = gl.measure(...).")
        raise Refused(f"Your answer is {checking.describe(m)}; the check expects what gl.measure returns.")
    rates = [rate for rate in (m.flops_per_second, m.bytes_per_second) if rate is not None]
    if not rates:
        raise Refused(
            "Physics cannot be checked: nothing says how much work one call does. Pass nbytes= (bytes read and written) or flops=."
        )
    for note in m.notes:
        if note.code == "implausible":
            raise Refused(f"The physics check refuses it: {note.sentence} Measure a function that is done when it returns.")
    if max(rates) < _LEAST_RATE:
        raise Refused(
            f"{_rate_text(m)} is next to nothing: either the count of bytes or FLOPs is too small, or the function waits. "
            "Count the work of one call."
        )
    if m.interval_seconds is None:  # last of all: more samples mend nothing of the above
        why = next((note.sentence for note in m.notes if note.code == "no-interval"), "")
        raise Refused(f"There is no interval, so nobody can tell how much to believe. {why} Take more samples: raise deadline=.")
    return f"{format_seconds(m.median_seconds)} {format_interval(m.interval_seconds)} at {_rate_text(m)}, which this device can do."


# One megabyte (or a million operations) a second is a thousandth of what any processor of the last thirty years does.
_LEAST_RATE = 1e6


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
import numpy as np
import gpulab as gl

a = np.ones(8_000_000)
mine = gl.measure(gl.lessons.WorkQueue().submit, np.cumsum, a, nbytes=2 * a.nbytes, device="cpu", deadline=0.5)

# %% wrong: next to nothing
import time
import gpulab as gl

mine = gl.measure(time.sleep, 0.002, nbytes=16, device="cpu", deadline=0.5)
