"""Measurements of notebook 07 besides whole models: sparse and dense products, grouped convolutions, and the network to compress."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import compression, timing, training
from gpulab.results import Result

_SECONDS = 0.25  # of sampling for each row
# A batch takes some milliseconds. Windows counts a thread's time by the ticks of its timer, 1/64 s (PEP 564 measures it for process_time).
_COARSE_SECONDS = 1e-4
_STEPS = 5  # of the clock that are looked at: one may be long because the processor itself was taken away
_ANY = 1e30  # layers of different weights are not meant to agree
TASK = "digits-cnn"


# -- sparse against dense --------------------------------------------------------------------------------------------------


def _race(models: dict[str, Any], x: Any, clock: Callable[[], float] | None = None, seconds: float = _SECONDS) -> timing.Comparison:
    import torch

    def runner(model: Any) -> Any:
        def run(given: Any) -> None:
            with torch.no_grad():
                model(given)

        return run

    runs = {label: runner(model) for label, model in models.items()}
    return timing.compare(runs, x, devices=[str(x.device)], deadline=seconds, tolerance=_ANY, clock=clock)


# -- convolutions in groups ----------------------------------------------------------------------------------------------------


# -- the network to make lighter -------------------------------------------------------------------------------------------------

_kept: dict[str, Any] = {}


def trained(task: str = TASK) -> Any:
    """Return a copy of a task's trained network; it is trained once per session, with seed 0.

    Parameters
    ----------
    task : str
    """
    return copy.deepcopy(_reference(task))


def _reference(task: str) -> Any:
    if task not in _kept:
        _kept[task] = compression.cook(compression.Recipe(), task, seed=0, device="cpu").eval()
    return _kept[task]


@dataclass(frozen=True)
class Budget(Result):
    """The limits for a compressed model.

    Attributes
    ----------
    least_accuracy : float
        The accuracy on the test set, 0 to 1.
    largest_file : int
        Bytes of the file of ``compression.save``.
    longest_time : float
        The time of a batch on one core of this machine, relative to that of the network as trained.
    batch : int
    """

    least_accuracy: float
    largest_file: int
    longest_time: float
    batch: int

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the three limits."""
        rows = [
            ("accuracy on the test set, at least", f"{self.least_accuracy:.0%}"),
            ("file, at most", f"{self.largest_file:,} bytes"),
            (
                f"time for {self.batch} images, at most",
                f"{self.longest_time:g} of the time of gl.lessons.trained(), on one core of this machine",
            ),
        ]
        return ("budget", ""), rows


def budget() -> Budget:
    """Return the budget of the last exercise of notebook 07."""
    return Budget(0.95, 14_000, 0.65, 256)


def time_against_trained(model: Any, batch: int, seconds: float = _SECONDS) -> timing.ComparisonRow:
    """Return a model's time for a batch relative to that of the trained network, measured in turn on one core of the CPU.

    The CPU time of this thread is used, so that other load on the machine does not decide whether an answer is right. If the system
    counts it in steps longer than a call, as Windows does, wall time is used.
    """
    import torch

    inputs = training.task(TASK).test[slice(0, batch)][0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that all of the work is done by the thread whose time is counted
    try:
        models = {"as trained": compression.finish(_reference(TASK)), "yours": compression.finish(model)}
        return _race(models, inputs, clock=_clock(), seconds=seconds).rows[1]
    finally:
        torch.set_num_threads(threads)


def _clock() -> Callable[[], float]:
    """Return the clock of this thread's own time on a core, or the wall's where that one is too coarse."""
    steps: list[float] = []
    last = time.thread_time()
    while len(steps) < _STEPS:
        now = time.thread_time()
        if now > last:
            steps.append(now - last)
            last = now
    return time.thread_time if min(steps) <= _COARSE_SECONDS else time.perf_counter


# -- what a GPU says, this machine's or a recorded one -----------------------------------------------------------------------------
