"""02.2: move one line."""

# %% exercise
id = "02.2"
title = "move one line"
answer_name = "frugal"

# %% stub
def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    ...  # device.to_device(a), device.run(step, there), device.to_host(there)

# %% hint
# What does the hundredth step need that is not on the device already?

# %% hint
# Send once before the loop and fetch once after it. Inside the loop, `there = device.run(step,
# there)`.

# %% solution
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    there = device.to_device(a)  # once, before the loop
    for _ in range(100):
        there = device.run(step, there)
    return device.to_host(there)  # once, after it

# %% check
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_ratio, format_seconds

# The link that exercises are checked over: one that is the same for every learner, so that a right answer is right everywhere.
EXERCISE_LINK = "pcie4-x16"
_STEPS = 100
_LEAST_GAIN = 3.0


def logistic(v: Any) -> Any:
    """Return one step of the logistic map, whose result tells how many steps were made."""
    return 3.9 * v * (1 - v)


def wasteful(device: Any, a: np.ndarray) -> Any:
    """Send, compute and fetch in every one of a hundred steps."""
    for _ in range(_STEPS):
        there = device.to_device(a)
        there = device.run(logistic, there)
        a = device.to_host(there)
    return a


def _modelled() -> Any:
    from gpulab import arrays, transfer

    class Watched(transfer.ModelledDevice):
        """Knows what it has sent back."""

        fetched: list[Any]

        def to_host(self, a: Any) -> Any:
            host = super().to_host(a)
            self.fetched.append(arrays.to_host(host).copy())  # also of a tensor; what the learner computes in it afterwards is not fetched
            return host

    device = Watched(EXERCISE_LINK, processor="nvidia-h200")
    device.fetched = []
    return device


def check(answer: Any) -> str:
    a = np.linspace(0.1, 0.9, 65_536, dtype=np.float32)
    before, after = _modelled(), _modelled()
    expected = wasteful(before, a.copy())
    result = checking.call(answer, after, a.copy())
    slow, fast = before.report(), after.report()
    if fast.compute_seconds <= 0:
        raise Refused("Nothing ran on the device. Compute with device.run(step, there), as the loop did.")
    if not isinstance(result, np.ndarray):
        raise Refused(f"Your function returned {checking.describe(result)}; the check expects a NumPy array.")
    if fast.copies < 2:
        raise Refused("What you returned is still on the device. Fetch the result with device.to_host.")
    if result.shape != expected.shape or not np.array_equal(result, expected):
        raise Refused("The result is not that of a hundred steps. Only the copies may move; the loop still makes every step.")
    if not any(np.array_equal(result, one) for one in after.fetched):
        raise Refused("What you returned was computed on the CPU. Make all hundred steps on the device, and return what you fetch from it.")
    if fast.calls < _STEPS:
        raise Refused(
            f"The device was given {fast.calls} call(s) for a hundred steps, and its bill counts one pass over the data a call. "
            "Make one call of device.run a step, as the loop did; only the copies may move."
        )
    gain = slow.total_seconds / fast.total_seconds
    if gain < _LEAST_GAIN:
        raise Refused(
            f"{fast.copies} copies are left and the gain is {format_ratio(gain)}; at least {_LEAST_GAIN:g}x is possible. "
            "What is on the device may stay there: no step needs a copy."
        )
    return (
        f"{slow.copies} copies became {fast.copies}, and {format_seconds(slow.total_seconds)} became "
        f"{format_seconds(fast.total_seconds)}: {format_ratio(gain)} (MODELLED over {EXERCISE_LINK})."
    )

# %% wrong: 200 copies are left
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    for _ in range(100):
        there = device.to_device(a)
        there = device.run(step, there)
        a = device.to_host(there)
    return a

# %% wrong: 101 copies are left
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    there = device.to_device(a)
    for _ in range(100):
        there = device.run(step, there)
        a = device.to_host(there)
    return a

# %% wrong: Fetch the result
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    there = device.to_device(a)
    for _ in range(100):
        there = device.run(step, there)
    return there

# %% wrong: a hundred steps
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    there = device.to_device(a)
    there = device.run(step, there)
    return device.to_host(there)

# %% wrong: Nothing ran on the device
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    for _ in range(100):
        a = step(a)
    return a

# %% wrong: computed on the CPU
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    there = device.run(step, device.to_device(a))
    device.to_host(there)
    for _ in range(100):
        a = step(a)
    return a

# %% wrong: computed on the CPU
def step(v):
    return 3.9 * v * (1 - v)


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    a = device.to_host(device.run(step, device.to_device(a)))
    for _ in range(99):
        a[:] = step(a)
    return a

# %% wrong: one pass over the data a call
def step(v):
    return 3.9 * v * (1 - v)


def hundred(v):
    for _ in range(100):
        v = step(v)
    return v


def frugal(device, a):
    """A hundred steps; `a` begins and ends in main memory."""
    return device.to_host(device.run(hundred, device.to_device(a)))

# %% wrong: TypeError
def frugal(a):
    return a
