"""An input pipeline: which part worked when, where the accelerator waited, what that costs; and the
same by arithmetic, from five durations.

The rules of the model are those of ``torch.utils.data.DataLoader`` and of one stream of an
accelerator: worker ``k`` of ``W`` loads the batches ``k``, ``k + W``, ...; each may be ``prefetch``
batches ahead of what was taken; batches are taken in order; the accelerator does one thing at a
time; the host waits for a copy from ordinary memory, and for the step where it reads the loss.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given
from gpulab.errors import InputError, kind_of, shown
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

_SOURCE = (
    "the rules of torch.utils.data.DataLoader (round robin, prefetch_factor, in order) and of one "
    "CUDA stream"
)
# benchmarks/input_pipeline.py; docs/measurements.md, "The input pipeline", has the table.
KNOWN_ERROR = (
    "2 % median, 6 % at most in throughput where loading times are known; loading varies with "
    "neighbors (docs/measurements.md)"
)


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
            f"the step itself {format_seconds(self.compute_seconds)}",
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
            f"<{plural(self.steps, 'step')} of {plural(self.batch_size, 'image')}, {who}: {rate}, "
            f"{self.stall_ratio:.0%} stalled>"
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


def check_count(function: str, name: str, value: Any, least: int, most: int) -> int:
    """Return a whole number within bounds.

    Raises
    ------
    InputError
        If it is not one.
    """
    if not _given.is_whole(value) or not least <= value <= most:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected a whole number from {least} to "
            f"{most}. Pass for example {name}={max(least, 2)}."
        )
    return int(value)


def check_seconds(function: str, name: str, value: Any, most: float = 60.0) -> float:
    """Return seconds within bounds.

    Raises
    ------
    InputError
        If they are not.
    """
    if not _given.is_finite(value) or not 0 <= value <= most:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected seconds from 0 to {most:g}. Pass for "
            f"example {name}=0.02."
        )
    return float(value)


def schedule(
    loading: Sequence[float],
    copying: Sequence[float],
    computing: Sequence[float],
    *,
    workers: int,
    prefetch: int,
    pinned: bool,
    read_loss: bool,
) -> list[StepSpan]:
    """Return who works when, by the rules in the module's docstring.

    Parameters
    ----------
    loading, copying, computing : sequence of float
        Seconds of each batch, all of one length.
    workers, prefetch : int
    pinned, read_loss : bool
    """
    spans: list[StepSpan] = []
    taken: list[float] = []  # when the host took each batch
    loaded: list[float] = []  # when each batch was ready
    # when the host asks for the next batch; when the accelerator has done everything
    host = free = 0.0
    for step, (load, copy, compute) in enumerate(zip(loading, copying, computing, strict=True)):
        if workers == 0:
            start, worker = host, -1
        else:
            # The order for batch k goes out when batch k - prefetch * W was taken; the same
            # worker's earlier batch comes first.
            ordered = taken[step - prefetch * workers] if step >= prefetch * workers else 0.0
            start, worker = (
                max(ordered, loaded[step - workers] if step >= workers else 0.0),
                step % workers,
            )
        ready = start + load
        spans.append(StepSpan("data", step, worker, start, ready))
        loaded.append(ready)
        taken.append(max(host, ready))
        copy_start = max(taken[-1], free)
        copied = copy_start + copy
        free = copied + compute
        spans += [
            StepSpan("copy", step, 0, copy_start, copied),
            StepSpan("compute", step, 0, copied, free),
        ]
        host = free if read_loss else taken[-1] if pinned else copied
    return spans


def model_pipeline(
    loading_seconds: float,
    compute_seconds: float,
    *,
    copy_seconds: float = 0.001,
    workers: int = 0,
    prefetch: int = 2,
    pinned: bool = False,
    read_loss: bool = True,
    cores: int = 8,
    batch_size: int = 32,
    batch_bytes: int = 32 * 3 * 128 * 128,
    steps: int = 24,
) -> PipelineResult:
    """Return the timeline of an input pipeline by arithmetic, without loading or waiting.

    Parameters
    ----------
    loading_seconds : float
        The time that one worker needs for one batch on a core of its own.
    compute_seconds, copy_seconds : float
        The time that the accelerator needs for a step, and for receiving the batch.
    workers : int
        0 to 64; with 0 the training's own process loads.
    prefetch : int
        1 to 16 batches that each worker may load ahead.
    pinned : bool
        Whether batches are copied from page-locked memory.
    read_loss : bool
        Whether the host reads the loss after each step and so waits for it.
    cores : int
        Of the host; more workers than cores take turns on them.
    batch_size, batch_bytes : int
        Used only in the result's texts.
    steps : int
        2 to 1000.

    Returns
    -------
    PipelineResult
        Evidence MODELLED.

    Raises
    ------
    InputError
        If a number is out of range.

    Examples
    --------
    >>> alone = model_pipeline(0.06, 0.02, copy_seconds=0)
    >>> round(alone.stall_ratio, 3)  # 60 of 80 milliseconds
    0.75
    >>> three = model_pipeline(0.06, 0.02, copy_seconds=0, workers=3)
    >>> round(three.stall_ratio, 3)  # three batches in 60 milliseconds: just enough
    0.0
    """
    name = "model_pipeline"
    loading = check_seconds(name, "loading_seconds", loading_seconds)
    copying = check_seconds(name, "copy_seconds", copy_seconds)
    computing = check_seconds(name, "compute_seconds", compute_seconds)
    cores, workers = (
        check_count(name, "cores", cores, 1, 4096),
        check_count(name, "workers", workers, 0, 64),
    )
    prefetch, steps = (
        check_count(name, "prefetch", prefetch, 1, 16),
        check_count(name, "steps", steps, 2, 1000),
    )
    pinned, read_loss = (
        _given.flag(name, "pinned", pinned),
        _given.flag(name, "read_loss", read_loss),
    )
    shared = loading * max(1.0, workers / cores)
    spans = schedule(
        [shared] * steps,
        [copying] * steps,
        [computing] * steps,
        workers=workers,
        prefetch=prefetch,
        pinned=pinned,
        read_loss=read_loss,
    )
    evidence = Evidence.modelled(
        f"a worker loads a batch in {format_seconds(loading)} on a core of its own ({cores} "
        f"cores), a copy takes {format_seconds(copying)}, a step {format_seconds(computing)}, "
        "always the same",
        _SOURCE,
        KNOWN_ERROR,
    )
    return PipelineResult(
        accelerator="a modelled accelerator",
        batch_size=batch_size,
        batch_bytes=batch_bytes,
        workers=workers,
        prefetch=prefetch,
        pinned=pinned,
        read_loss=read_loss,
        startup_seconds=spans[0].end_seconds,
        spans=tuple(spans),
        notes=(),
        evidence=evidence,
        accelerator_evidence=evidence,
    )


def replay(
    p: PipelineResult,
    *,
    compute_seconds: float | None = None,
    pinned: bool | None = None,
    read_loss: bool | None = None,
) -> PipelineResult:
    """Return what a pipeline would do with another accelerator or another loop, with the loading
    times of the run.

    Only one thing changes this way: a second run would also be affected by other load on the
    machine.

    Parameters
    ----------
    p : PipelineResult
        A run, or a model.
    compute_seconds : float, optional
        What a step computes; None keeps each step's own time.
    pinned, read_loss : bool, optional
        As in ``pipeline``; None keeps them.

    Returns
    -------
    PipelineResult
        The loading keeps its evidence, the accelerator's side is MODELLED.

    Raises
    ------
    InputError
        If ``p`` is not a pipeline's result, or a value is out of range.

    Examples
    --------
    >>> run = model_pipeline(0.06, 0.02, copy_seconds=0)
    >>> round(replay(run, compute_seconds=0.01).step_seconds, 6)
    0.07
    """
    if not isinstance(p, PipelineResult):
        raise InputError(
            f"replay: {kind_of(p)} was given; expected what training.pipeline returned. Pass that."
        )
    pinned = p.pinned if pinned is None else _given.flag("replay", "pinned", pinned)
    read_loss = p.read_loss if read_loss is None else _given.flag("replay", "read_loss", read_loss)
    loading, copying, computing = (
        [span.seconds for span in p.lane(lane)] for lane in ("data", "copy", "compute")
    )
    words = "its steps as long as they were"
    if compute_seconds is not None:
        seconds = check_seconds("replay", "compute_seconds", compute_seconds)
        computing, words = (
            [seconds] * len(computing),
            f"each step computing for {format_seconds(seconds)}",
        )
    spans = schedule(
        loading,
        copying,
        computing,
        workers=p.workers,
        prefetch=p.prefetch,
        pinned=pinned,
        read_loss=read_loss,
    )
    host = "waiting for each step" if read_loss else "going on without waiting for a step"
    evidence = Evidence.modelled(
        f"each batch loaded and copied as long as in the run, {words}, the host {host}; no other "
        "effects",
        _SOURCE,
        KNOWN_ERROR,
    )
    return dataclasses.replace(
        p,
        pinned=pinned,
        read_loss=read_loss,
        startup_seconds=spans[0].end_seconds,
        spans=tuple(spans),
        accelerator_evidence=evidence,
    )
