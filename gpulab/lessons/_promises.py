"""A function that returns before its work is done, like those of ``jax.jit``, with a simulated clock.

Time passes only inside the function, so the correct measured time is known exactly, and nothing waits in real time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_DIGITS = 7  # of a second, behind the point: all times here are whole multiples of 10 us


class Promised:
    """The result of a call: a handle of an array that is ready later."""

    def __init__(self, owner: PromisingFunction, ready_seconds: float) -> None:
        self._owner, self._ready = owner, ready_seconds

    def block_until_ready(self) -> Promised:
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
    """A compiled function with a queue: the first call compiles, each call returns soon, and its work begins after that of the last call.

    Attributes
    ----------
    compile_seconds, dispatch_seconds, work_seconds, fetch_seconds : float
        Extra time of the first call; time until a call returns; time of the work on the device; time of a copy to NumPy.
    now : float
        The time; ``clock`` reads it.
    readings : int
        How often it was read.
    fetched : bool
        Whether a result was copied.
    compiled_on_the_clock : bool
        Whether the first call, which compiles, was made after the clock was first read.
    """

    def __init__(self) -> None:
        self.compile_seconds, self.dispatch_seconds, self.work_seconds, self.fetch_seconds = 1.5, 20e-6, 4e-3, 1e-3
        self.now = 1000.0
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
        """Return whether two readings of the clock after the first call, without its compilation, are that many seconds apart."""
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
