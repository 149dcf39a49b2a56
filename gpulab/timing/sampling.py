"""Take samples of a call until the interval of its median is narrow enough, or the deadline has come.

Everything goes through ``run`` and the injected ``clock``; nothing else is asked the time. The statistics are in
``gpulab.timing.statistics``; what a device is and when it has finished is the business of who makes ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.timing.statistics import median_interval

Run = Callable[[int], tuple[float, float]]
Progress = Callable[[float, str], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Sampled:
    """What the sampler saw, in the order taken.

    Attributes
    ----------
    samples_seconds : ndarray, shape (n,), float64
        Seconds per call until the device had finished, the loop's and the clock's own overhead removed; never negative.
    launch_seconds : ndarray, shape (n,), float64
        Seconds per call until the last call had returned, the overhead removed.
    sample_starts_seconds : ndarray, shape (n,), float64
        Clock reading at the start of each sample.
    interval_seconds : (float, float) or None
        A 95 % interval of the median; None where none is honest.
    calls_per_sample : int
        More than 1 where a call is too short for the clock.
    stopped_by : str
        "precision", "deadline" or "stopped".
    no_interval_reason : str or None
        One sentence, where ``interval_seconds`` is None.
    overhead_seconds : float
        What was subtracted from each sample, per call.
    """

    samples_seconds: np.ndarray
    launch_seconds: np.ndarray
    sample_starts_seconds: np.ndarray
    interval_seconds: tuple[float, float] | None
    calls_per_sample: int
    stopped_by: str
    no_interval_reason: str | None
    overhead_seconds: float


@dataclass(frozen=True)
class Loops:
    """The tight loop around the work, and its twin that does nothing: each a ``Run``."""

    work: Run
    empty: Run


def make_loops(fn: Callable[..., Any], args: tuple[Any, ...], synchronize: Callable[[], None], clock: Callable[[], float]) -> Loops:
    """Return the loops that ``sample`` runs: ``calls`` times ``fn(*args)`` back to back, then one ``synchronize()``."""

    def around(call: Callable[..., Any]) -> Run:
        def run(calls: int) -> tuple[float, float]:
            start = clock()
            for _ in range(calls):
                call(*args)
            returned = clock()
            synchronize()
            return returned - start, clock() - start

        return run

    return Loops(around(fn), around(_nothing))


def _nothing(*_args: Any) -> None:
    return None


def sample(
    run: Run,
    clock: Callable[[], float],
    *,
    empty: Run | None = None,
    relative_width: float = 0.02,
    deadline: float = 2.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Sampled:
    """Sample ``run`` until the 95 % interval of the median is ``relative_width`` wide or ``deadline`` seconds have passed."""
    samples, launches, starts = [], [], []
    begin = clock()
    stopped_by = "deadline"
    while True:
        now = clock()
        if samples and now - begin >= deadline:
            break
        if stop is not None and stop():
            stopped_by = "stopped"
            break
        launched, finished = run(1)
        starts.append(now)
        samples.append(finished)
        launches.append(launched)
        n = len(samples)
        if n % 100 == 0:
            interval, _ = median_interval(np.array(samples))
            if interval is not None and interval[1] - interval[0] <= relative_width * float(np.median(samples)):
                stopped_by = "precision"
                break
        if progress is not None:
            progress(min(1.0, (now - begin) / deadline), f"{n} samples")
    interval, reason = median_interval(np.array(samples)) if samples else (None, "no sample was taken")
    return Sampled(np.array(samples), np.array(launches), np.array(starts), interval, 1, stopped_by, reason, 0.0)
