"""A series of measurements with one deadline, such as a sweep over sizes: how long the next one may
take, when to stop, and what was noted on several of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gpulab import _validate, devices
from gpulab.devices import Device
from gpulab.errors import StoppedError
from gpulab.evidence import Environment, Evidence, Note
from gpulab.timing.measurement import Measurement
from gpulab.timing.sampling import Clock, Progress, Stop

# No measurement gets less than this: below it there are too few samples for an interval.
_LEAST_SECONDS = 0.03
# Notes of single measurements that concern the whole series.
_KEPT_NOTES = ("contended", "throttled", "stalled", "unstable", "turn-taking")


class Series:
    """A running series of measurements: the time that is left, the progress callback, and the
    notes. As a context it takes a stop of the work as its end.

    Parameters
    ----------
    function : str
        The public function that messages begin with.
    total : int
        How many measurements there will be.
    deadline : float
        Seconds for all of them.
    progress, stop, clock : callable or None
        As a caller gave them.
    """

    def __init__(
        self,
        function: str,
        total: int,
        deadline: float,
        progress: Progress | None,
        stop: Stop | None,
        clock: Clock | None = None,
    ) -> None:
        self.function, self.total, self.done = function, total, 0
        self._progress = _validate.callback(function, "progress", progress) or (lambda *_: None)
        self.stop: Stop | None = _validate.callback(function, "stop", stop)
        self.clock: Clock | None = _validate.clock(function, clock)
        self._now: Clock = self.clock or time.perf_counter
        self._end = self._now() + _validate.deadline(function, "deadline", deadline)
        self.stopped = False
        self._notes: dict[str, list[str]] = {}  # the sentences by code

    def __enter__(self) -> Series:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.stopped = self.stopped or isinstance(error, StoppedError)
        return isinstance(error, StoppedError)

    def must_stop(self) -> bool:
        """Return whether the work must end."""
        self.stopped = self.stopped or (self.stop is not None and self.stop())
        return self.stopped

    def report(self, text: str) -> None:
        """Report the progress."""
        self._progress(self.done / self.total, text)

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        return self._end - self._now()

    @property
    def share(self) -> float:
        """Seconds for the next point."""
        return max(self.left / max(self.total - self.done, 1), _LEAST_SECONDS)

    def measured(self, m: Measurement) -> Measurement:
        """Count a measurement and keep its notes."""
        self.done += 1
        for note in m.notes:
            if note.code in _KEPT_NOTES:
                self._notes.setdefault(note.code, []).append(note.sentence)
        return m

    def finished(
        self, device: Device, how: str, points: Sequence[Any]
    ) -> tuple[tuple[Note, ...], Evidence, Environment]:
        """Return the notes, the evidence and the environment; the work is over.

        Raises
        ------
        StoppedError
            If there is no point.
        """
        if not points:
            raise StoppedError(
                f"{self.function}: stopped before the first point; expected at least one. Run it "
                "again."
            )
        self._progress(1.0, "done")
        notes = [
            Note(code, f"{len(each)} of {self.done} measurements; the first: {each[0]}")
            for code, each in self._notes.items()
        ]
        if self.stopped:
            notes.append(
                Note(
                    "stopped",
                    f"Stopped after {self.done} of {self.total} measurements; run it again for the "
                    "rest.",
                )
            )
        environment = devices.environment(device)
        evidence = Evidence.measured(
            ", ".join(filter(None, (device.name, how))),
            sum(p.samples for p in points),
            environment.date,
        )
        return tuple(notes), evidence, environment
