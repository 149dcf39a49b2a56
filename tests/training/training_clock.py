"""A clock for tests of training: time passes where the test says so."""

from __future__ import annotations


class Clock:
    """Seconds that pass only where the test says so, in powers of two, so that sums are exact."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        self.now += 2.0**-20  # reading it takes a little, so that it never stands still
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
