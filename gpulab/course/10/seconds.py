"""10.2: make JAX's figure honest."""

# %% exercise
id = "10.2"
title = "make JAX's figure honest"
answer_name = "seconds"

# %% stub
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    start = clock()
    y = f(x)
    return ...  # clock() - start is the tempting answer

# %% hint
# f is like a function of jax.jit: the first call compiles, and every call returns before its
# result is there.

# %% hint
# Call it once before the clock starts, and wait for that result too.

# %% hint
# y.block_until_ready() returns when y is there. Read the clock after it.

# %% solution
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x).block_until_ready()  # compiles, and has finished
    start = clock()
    f(x).block_until_ready()
    return clock() - start

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons._promises import PromisingFunction
from gpulab.lessons.content import Refused
from gpulab.units import format_seconds

_WITHIN = 0.02  # the time of the dispatch may be in it once for each call, or once for a queue of calls


class _Readings:
    """Notes whether a call was made after the clock was first read."""

    def __init__(self, f: PromisingFunction) -> None:
        self.f, self.called_on_the_clock = f, False

    def call(self, x: Any) -> Any:
        self.called_on_the_clock = self.called_on_the_clock or self.f.readings > 0
        return self.f(x)

    def clock(self) -> float:
        return self.f.clock()


def check(answer: Any) -> str:
    f = PromisingFunction()
    watched = _Readings(f)
    found = checking.number(checking.call(answer, watched.call, "x", watched.clock), "seconds")
    if not f.readings:
        raise Refused("Your function never read clock(). In this check time passes on that clock only: read it before and after the call.")
    said = f"You found {format_seconds(found)}; "
    if found <= 0:
        raise Refused(said + "a call takes more than 0 s. Read the clock before the call and after it.")
    if not watched.called_on_the_clock:
        raise Refused(said + "your clock starts after the call, so the time until it returns is missing. Read the clock before the call.")
    if abs(found / f.true_seconds - 1) <= _WITHIN:
        soon = format_seconds(f.dispatch_seconds)
        return f"{format_seconds(found)}: without the compilation, and until the work was done. The call itself returned after {soon}."
    if f.compiled_on_the_clock and found > f.true_seconds and not f.between_readings(found):
        raise Refused(said + f"the first call is in it, which compiles for {format_seconds(f.compile_seconds)}. Call f once before the clock starts.")
    if found < f.true_seconds / 2:
        raise Refused(said + "that is when the call returned: the work had hardly begun. Wait for the result, then read the clock.")
    if f.fetched and abs(found - f.fetch_seconds - f.true_seconds) <= _WITHIN * f.true_seconds:
        raise Refused(said + "the copy to NumPy is in it as well. block_until_ready() waits and copies nothing.")
    calls = round(found / f.true_seconds)
    if calls >= 2 and abs(found / (calls * f.true_seconds) - 1) <= _WITHIN:
        under_way = "Was the call before still running when the clock started? Then wait for it too. " if calls == 2 else ""
        raise Refused(said + f"that is the work of {calls} calls. {under_way}If you timed several, divide by their number.")
    raise Refused(
        said + f"it takes {format_seconds(f.true_seconds)}. Time one call, from its start until its result is there, and nothing else."
    )

# %% wrong: the first call is in it
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    start = clock()
    y = f(x)
    return clock() - start

# %% wrong: when the call returned
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x).block_until_ready()
    start = clock()
    y = f(x)
    return clock() - start

# %% wrong: the first call is in it
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    start = clock()
    f(x).block_until_ready()
    return clock() - start

# %% wrong: your clock starts after the call
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x).block_until_ready()
    y = f(x)
    start = clock()
    y.block_until_ready()
    return clock() - start

# %% wrong: the work of 2 calls
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x)
    start = clock()
    f(x).block_until_ready()
    return clock() - start

# %% wrong: the work of 10 calls
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x).block_until_ready()
    start = clock()
    for _ in range(10):
        f(x).block_until_ready()
    return clock() - start

# %% wrong: the work of 10 calls
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    start = clock()
    f(x).block_until_ready()
    compiling = clock() - start
    start = clock()
    for _ in range(10):
        f(x).block_until_ready()
    return clock() - start

# %% wrong: the first call is in it
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    times = []
    for _ in range(10):
        start = clock()
        f(x).block_until_ready()
        times.append(clock() - start)
    return sum(times) / 10

# %% wrong: the first call is in it
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    start = clock()
    for _ in range(100):
        f(x).block_until_ready()
    return (clock() - start) / 100

# %% wrong: the copy to NumPy
import numpy as np


def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x).block_until_ready()
    start = clock()
    np.asarray(f(x))
    return clock() - start

# %% wrong: never read clock()
import time


def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x).block_until_ready()
    start = time.perf_counter()
    f(x).block_until_ready()
    return time.perf_counter() - start

# %% wrong: expects a function
seconds = 0.004
