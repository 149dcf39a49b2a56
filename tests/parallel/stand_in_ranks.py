"""Ranks for tests of instruments: they start at once, count what happens to them, and do no work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpulab.errors import OutOfMemoryError


class StandInRanks:
    """What ``parallel.cluster`` gives; ``made`` keeps them all."""

    made: list[StandInRanks] = []

    def __init__(self, n: int, progress: Callable[[float, str], None] | None = None) -> None:
        self.n, self.ready, self.alive = n, True, False
        self.starts = self.stops = self.recoveries = 0
        self.interrupted = threading.Event()
        self.progress = progress or (lambda fraction, text: None)
        StandInRanks.made.append(self)

    def start(self) -> StandInRanks:
        """Be alive; more than six do not fit."""
        if self.n > 6:
            raise OutOfMemoryError(f"cluster: {self.n} ranks do not fit; expected them to. Ask for 6.")
        self.progress(0.5, "starting")
        self.starts, self.alive = self.starts + 1, True
        return self

    def stop(self) -> None:
        """End."""
        self.stops, self.alive = self.stops + 1, False

    def recover(self) -> StandInRanks:
        """Be ready again."""
        self.recoveries, self.ready = self.recoveries + 1, True
        return self

    def interrupt(self) -> None:
        """End the call in progress."""
        self.interrupted.set()


def living() -> list[Any]:
    """The clusters that are up."""
    return [ranks for ranks in StandInRanks.made if ranks.alive]
