"""The result of observing an input pipeline: which part worked when, where the accelerator waited,
and what that costs.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.evidence import Badge, Evidence, Note
from gpulab.results import Result
from gpulab.timing.statistics import t_quantile
from gpulab.units import format_bytes, format_seconds, plural

# Batch means: blocks of following steps, whose means are nearly independent though the steps are
# not (Law and Kelton, Simulation Modeling and Analysis, "batch means"); six blocks leave five
# degrees of freedom.
_BLOCKS = 6
_LEAST_STEPS = 2 * _BLOCKS
# An accelerator that waits less than this share of the time is the bottleneck itself.
BUSY_STALL_RATIO = 0.10


@dataclass(frozen=True)
class StepSpan(Result):
    """One piece of work.

    Attributes
    ----------
    lane : str
        "data" (read, decode, crop), "copy" (to the accelerator), "compute" (the training step).
    step : int
        The batch that it belongs to, from 0.
    worker : int
        In the data lane: the worker, from 0; -1 is the training's own process. 0 in the other
        lanes.
    start_seconds, end_seconds : float
        Since the run began.
    """

    lane: str
    step: int
    worker: int
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, repr=False)
class PipelineResult(Result):
    """Some training steps, with the times of loading, copying and computing side by side.

    Attributes
    ----------
    accelerator : str
        The device's name, or "a modelled accelerator".
    batch_size, batch_bytes : int
        Images and bytes of a batch.
    workers : int
        Processes that load; with 0 the training's own process loads.
    prefetch : int
        Batches that each worker may load ahead.
    pinned : bool
        Whether batches are copied from page-locked memory, so that the host need not wait for the
        copy.
    read_loss : bool
        Whether the host reads the loss after each step (``loss.item()``), and so waits for the
        accelerator.
    startup_seconds : float
        Until the first batch was there: starting the workers, and loading it.
    spans : tuple of StepSpan
    notes : tuple of Note
    evidence : Evidence
        Of the data lane.
    accelerator_evidence : Evidence
        Of the copy and compute lanes.
    """

    accelerator: str
    batch_size: int
    batch_bytes: int
    workers: int
    prefetch: int
    pinned: bool
    read_loss: bool
    startup_seconds: float
    spans: tuple[StepSpan, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    accelerator_evidence: Evidence

    def lane(self, name: str) -> list[StepSpan]:
        """Return the spans of a lane in the order of the steps."""
        return sorted(
            (span for span in self.spans if span.lane == name), key=lambda span: span.step
        )

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.lane("compute"))

    @property
    def seconds(self) -> float:
        """The time from the end of the first step to the end of the last: the run without its
        start.
        """
        compute = self.lane("compute")
        return compute[-1].end_seconds - compute[0].end_seconds if compute else math.nan

    @property
    def step_seconds(self) -> float:
        """The mean time of a step, with everything that it waited for."""
        return self.seconds / max(self.steps - 1, 1)

    @property
    def loading_seconds(self) -> float:
        """The median time that one worker needs for one batch."""
        return _median_seconds(self.lane("data"))

    @property
    def copy_seconds(self) -> float:
        """The median time to copy a batch."""
        return _median_seconds(self.lane("copy"))

    @property
    def compute_seconds(self) -> float:
        """The median time that the accelerator computes in a step."""
        return _median_seconds(self.lane("compute"))

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """The (start, end) of each time after the first step in which the accelerator did not
        compute.
        """
        return tuple(
            (a.end_seconds, b.start_seconds)
            for a, b in itertools.pairwise(self.lane("compute"))
            if b.start_seconds > a.end_seconds
        )

    @property
    def stall_seconds(self) -> float:
        """How long the accelerator did not compute, after the first step."""
        return sum(end - start for start, end in self.gaps)

    @property
    def stall_ratio(self) -> float:
        """The share of the time in which the accelerator did not compute, 0 to 1, after the first
        step.
        """
        return self.stall_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def images_per_second(self) -> float:
        """The throughput after the first step."""
        return self.batch_size * (self.steps - 1) / self.seconds if self.seconds > 0 else math.nan

    @property
    def images_per_second_interval(self) -> tuple[float, float] | None:
        """A 95 % interval of the throughput by batch means; None with fewer than 13 steps.

        Where the mean time of a step could be zero by that interval, the upper end is infinite.
        """
        ends = [span.end_seconds for span in self.lane("compute")]
        if len(ends) <= _LEAST_STEPS:
            return None
        means = np.array([block.mean() for block in np.array_split(np.diff(ends), _BLOCKS)])
        half = t_quantile(_BLOCKS - 1) * float(means.std(ddof=1)) / math.sqrt(_BLOCKS)
        middle = self.step_seconds
        return self.batch_size / (middle + half), self.batch_size / (
            middle - half
        ) if middle > half else math.inf

    @property
    def bottleneck(self) -> str:
        """The bottleneck: "compute" if the accelerator hardly waits, else "data" or "copy",
        whichever takes more of the gaps.

        Each gap is split: the part in which the next batch was still being copied counts for the
        copy, the rest for the data.
        """
        if self.stall_ratio < BUSY_STALL_RATIO:
            return "compute"
        copies = self.lane("copy")
        copying = sum(
            max(0.0, min(end, span.end_seconds) - max(start, span.start_seconds))
            for start, end in self.gaps
            for span in copies
        )
        return "copy" if copying > self.stall_seconds / 2 else "data"

    @property
    def weakest_evidence(self) -> Evidence:
        """The evidence of figures that need both sides: that of the accelerator where it is not
        measured.
        """
        return (
            self.evidence
            if self.accelerator_evidence.badge is Badge.MEASURED
            else self.accelerator_evidence
        )

    @property
    def sentence(self) -> str:
        """Where the time goes, in words."""
        only = "only " if self.bottleneck == "compute" else ""
        waits = f"{self.accelerator} waits {only}{self.stall_ratio:.0%} of the time"
        who = "a worker" if self.workers else "the training's own process"
        what = {
            "data": f" for data: {who} needs {format_seconds(self.loading_seconds)} for a batch, "
            "the step itself "
            f"{format_seconds(self.compute_seconds)}",
            "copy": f" for the copy of {format_bytes(self.batch_bytes)}, "
            f"{format_seconds(self.copy_seconds)} a step",
            "compute": "; the bottleneck is its own computation, "
            f"{format_seconds(self.compute_seconds)} a step",
        }[self.bottleneck]
        return f"{waits[0].upper()}{waits[1:]}{what}."

    @property
    def _between(self) -> str:
        interval = self.images_per_second_interval
        # what is modelled is always the same: an interval would say nothing
        if interval is None or self.evidence.badge is Badge.MODELLED:
            return ""
        return f"95 % {interval[0]:.0f} to {interval[1]:.0f}"

    def __repr__(self) -> str:
        who = (
            "no workers"
            if not self.workers
            else f"{self.workers} worker{'s' if self.workers != 1 else ''}"
        )
        rate = (
            f"{self.images_per_second:.0f}{f' ({self._between})' if self._between else ''} images/s"
        )
        return (
            f"<{plural(self.steps, 'step')} of {plural(self.batch_size, 'image')}, {who}: "
            f"{rate}, {self.stall_ratio:.0%} stalled>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what a step is made of, the throughput and the stall."""
        loading, modelled = str(self.evidence.badge), str(self.accelerator_evidence.badge)
        both = str(self.weakest_evidence.badge)
        rows = [
            ("loading a batch, one worker", format_seconds(self.loading_seconds), loading),
            ("copying it", format_seconds(self.copy_seconds), modelled),
            ("computing on it", format_seconds(self.compute_seconds), modelled),
            ("a whole step", format_seconds(self.step_seconds), both),
            ("the accelerator waits", f"{self.stall_ratio:.0%}", both),
            (
                "images per second",
                f"{self.images_per_second:.0f}" + (f" ({self._between})" if self._between else ""),
                both,
            ),
            ("time to the first batch", format_seconds(self.startup_seconds), loading),
        ]
        rows += [(f"note: {note.code}", note.sentence, "") for note in self.notes]
        return (
            f"{plural(self.steps, 'step')} of {plural(self.batch_size, 'image')}, workers "
            f"{self.workers}",
            "",
            "evidence",
        ), rows

    def caption(self) -> str:
        """Return both sides' evidence where they differ."""
        if self.accelerator_evidence == self.evidence:
            return self.evidence.sentence
        return f"{self.accelerator_evidence.sentence} · the loading: {self.evidence.sentence}"


def _median_seconds(spans: Sequence[StepSpan]) -> float:
    """Return the median of what spans took; nan where there are none, as in a lane that a recording
    left out.
    """
    return statistics.median(span.seconds for span in spans) if spans else math.nan
