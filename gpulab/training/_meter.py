"""Seconds of steps and of their parts, by one clock, read only when the device has finished."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulab.timing.statistics import median_interval
from gpulab.training.results import PHASES


class Meter:
    """The times of one run.

    On an accelerator a step that waits after each part is slower than one that does not, so the
    steps whose parts are timed give no sample of the speed; on a CPU nothing has to wait, and each
    step gives both.
    """

    def __init__(
        self, clock: Callable[[], float], synchronize: Callable[[], None], waiting_costs: bool
    ) -> None:
        self.clock, self.synchronize, self.waiting_costs = clock, synchronize, waiting_costs
        self.step_seconds: list[float] = []
        self.first_step_seconds: float | None = None
        self.total_seconds = 0.0
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._parted_steps = 0
        self._parting = False
        self._pending = dict.fromkeys(PHASES, 0.0)
        self._last = 0.0

    def begin(self, parting: bool) -> None:
        """Begin a stretch of steps; with ``parting`` the parts are timed."""
        self._parting = parting or not self.waiting_costs
        self._pending = dict.fromkeys(PHASES, 0.0)
        self.synchronize()
        self._last = self._begun = self.clock()

    def mark(self, phase: str) -> None:
        """Say that a part has just been given to the device."""
        if self._parting:
            self.synchronize()
            now = self.clock()
            self._pending[phase] += now - self._last
            self._last = now

    def end(self, steps: int, *, first: bool, counts: bool) -> None:
        """End a stretch of ``steps`` steps; ``counts`` tells whether it says how fast the run
        trains.
        """
        self.synchronize()
        now = self.clock()
        seconds = now - self._begun
        self.total_seconds += seconds
        if first:
            self.first_step_seconds = seconds / steps
        if not counts:
            return
        if self._parting:
            self._pending["other"] += now - self._last
            self._parted_steps += steps
            for phase, value in self._pending.items():
                self._phases[phase] += value
        if not (self._parting and self.waiting_costs):
            self.step_seconds.append(seconds / steps)

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Seconds a step by part, without the parts that never ran; empty where no step was timed
        part by part.
        """
        return (
            {phase: value / self._parted_steps for phase, value in self._phases.items() if value}
            if self._parted_steps
            else {}
        )

    def rate(
        self, samples_a_step: int
    ) -> tuple[float | None, tuple[float, float] | None, str | None]:
        """Return samples a second at the median step, their 95 % interval, and the reason where
        there is none.
        """
        seconds = np.array(self.step_seconds)
        if not len(seconds) or float(np.median(seconds)) <= 0:
            return None, None, "every step was also used for another measurement. Take more steps."
        interval, reason = median_interval(seconds)
        span = (
            None
            if interval is None or interval[0] <= 0
            else (samples_a_step / interval[1], samples_a_step / interval[0])
        )
        return (
            samples_a_step / float(np.median(seconds)),
            span,
            reason and reason.replace("Allow a longer deadline", "Take more steps"),
        )
