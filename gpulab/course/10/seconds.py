"""10.2: make JAX's figure honest."""

# %% exercise
id = "10.2"
title = "make JAX's figure honest"
answer_name = "seconds"
live = True

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
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_seconds

_DIGITS = 7  # decimal places of a time in seconds; all times here are whole multiples of 10 us


# A function that returns before its work is done, like those of jax.jit. Time passes only inside it, so the correct time is known exactly.


class Promised:
    """The result of a call: a handle to an array that becomes ready later."""

    def __init__(self, owner: "PromisingFunction", ready_seconds: float) -> None:
        self._owner, self._ready = owner, ready_seconds

    def block_until_ready(self) -> "Promised":
        """Wait until the array is ready."""
        self._owner.now = max(self._owner.now, self._ready)
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Wait and copy, as ``np.asarray`` of a JAX array on a GPU does."""
        self.block_until_ready()
        self._owner.fetched = True
        self._owner.now += self._owner.fetch_seconds
        return np.zeros(3, dtype=dtype)


class PromisingFunction:
    """A compiled function with a queue: the first call compiles, each call returns soon, and its work starts after the previous call's work.

    Attributes
    ----------
    compile_seconds, dispatch_seconds, work_seconds, fetch_seconds : float
        In this order: extra time of the first call; time until a call returns; time of the work on the device; time of a copy to NumPy.
    started, now : float
        The time in seconds at the beginning, and the current time, which ``clock`` returns.
    readings : int
        How often ``clock`` was called.
    fetched : bool
        Whether a result was copied.
    compiled_on_the_clock : bool
        Whether the first call, which compiles, was made after the clock was first read.
    """

    def __init__(self) -> None:
        self.compile_seconds, self.dispatch_seconds, self.work_seconds, self.fetch_seconds = 1.5, 20e-6, 4e-3, 1e-3
        self.started = self.now = 1000.0
        self.readings = 0
        self.fetched = False
        self.compiled_on_the_clock = False
        self._compiled = False
        self._read: set[float] = set()  # the times that the clock has shown since the first call
        self._idle_from = 0.0

    @property
    def true_seconds(self) -> float:
        """Time from a call until its result is ready, if no other call is in flight."""
        return self.dispatch_seconds + self.work_seconds

    def clock(self) -> float:
        """Return the time in seconds."""
        self.readings += 1
        if self._compiled:
            self._read.add(round(self.now, _DIGITS))
        return self.now

    def between_readings(self, seconds: float) -> bool:
        """Return whether two readings of the clock are ``seconds`` apart, counting only readings after the first call has compiled."""
        return any(round(start + seconds, _DIGITS) in self._read for start in self._read)

    def __call__(self, x: Any) -> Promised:
        """Start the work and return."""
        if not self._compiled:
            self.now += self.compile_seconds
            self._compiled = True
            self.compiled_on_the_clock = self.readings > 0
        self.now += self.dispatch_seconds
        self._idle_from = max(self._idle_from, self.now) + self.work_seconds
        return Promised(self, self._idle_from)


_WITHIN = 0.02  # relative tolerance: several calls contain the dispatch time once each, or once in all if they are queued


class _Readings:
    """Wraps ``f`` and its clock, and notes whether a call was made after the clock was first read."""

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
    took = f.now - f.started
    if found > took:
        raise Refused(said + f"your whole function took {format_seconds(took)} on this clock. Return the difference of two readings, in seconds.")
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


# %% wrong: the difference of two readings
def seconds(f, x, clock):
    """Return the seconds from one call f(x) until its result is there, without the compilation."""
    f(x).block_until_ready()  # compiles, and has finished
    start = clock()
    f(x).block_until_ready()
    return clock()
