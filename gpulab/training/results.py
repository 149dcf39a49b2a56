"""What a run, its accuracy and its options are: plain results that tables and figures read; nothing
is trained here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpulab.evidence import Environment, Evidence, Note
from gpulab.memory.results import CATEGORIES
from gpulab.results import Result
from gpulab.units import format_bytes, format_seconds, plural

# In the order of a step; "graph" is forward, backward and optimizer in one, where a CUDA graph is
# replayed; "other" is what is left: the loop itself.
PHASES = ("data", "copy", "forward", "backward", "optimizer", "graph", "other")


@dataclass(frozen=True, repr=False)
class Accuracy(Result):
    """How much of the test a model gets right.

    Attributes
    ----------
    correct, count : int
        Right answers, and answers asked for.
    ratio : float
        ``correct / count``.
    interval : (float, float)
        A 95 % interval over test items, for other test sets of this size.
    loss : float
        The mean cross entropy; nan if the model's outputs are not finite.
    answers : str
        What was counted: "digits" or "characters".
    evidence : Evidence
    """

    correct: int
    count: int
    ratio: float
    interval: tuple[float, float]
    loss: float
    answers: str
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<{format_accuracy(self)}: {self.correct:,} of {self.count:,} {self.answers}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the share of right answers, their count and the loss."""
        rows = [
            ("right", format_accuracy(self)),
            (self.answers, f"{self.correct:,} of {self.count:,}"),
            ("loss", f"{self.loss:.4g}"),
        ]
        return ("accuracy on the test", ""), rows


@dataclass(frozen=True)
class Options(Result):
    """The options of a run; see ``training.fit`` for each."""

    precision: str
    batch_size: int
    steps: int
    learning_rate: float
    optimizer: str
    accumulate: int
    checkpoint: bool
    compile: bool
    channels_last: bool
    fused: bool | None
    workers: int
    prefetch: int
    pinned: bool
    cuda_graph: bool
    loss_scale: str | float | None
    clip: float | None
    seed: int
    loading: str = "batches"
    read_loss: bool = False
    autotune: bool = False

    schema_version: ClassVar[int] = 2  # 1 had no loading, read_loss and autotune


@dataclass(frozen=True, eq=False, repr=False)
class FitResult(Result):
    """One training run: its losses and accuracy, its speed and memory, and how it ended.

    Attributes
    ----------
    task, device : str
    options : Options
    ended : str
        "finished", "stopped", "interrupted" or "diverged".
    losses : ndarray, shape (steps,)
        The loss of every step, from the first of the run (of a resumed one: of its beginning).
    first_bad_step : int or None
        The first step (from 0) whose loss was not finite.
    accuracy : Accuracy or None
        On the test, at the end; None if no step was taken.
    step_seconds : ndarray, shape (n,)
        Seconds a step until the device had finished, in the order taken, without the first steps
        and those in which memory was measured.
    samples_per_second : float or None
        At the median of ``step_seconds``; None without any.
    samples_per_second_interval : (float, float) or None
        A 95 % interval; None when none can be given (a note says why).
    first_step_seconds : float or None
        The first step of this call, with compilation and allocation.
    phase_seconds : mapping of str to float
        Seconds a step by ``PHASES``, mean over the steps that were timed part by part; the device
        had finished each part.
    peak_bytes : int or None
        The most live tensor storage in one step, after any operator; None where it was not followed
        (a note says why).
    peak_by_category : mapping of str to int
        Sums to ``peak_bytes``.
    skipped_steps : int
        Steps that dynamic loss scaling skipped, since gradients had overflowed.
    final_scale : float or None
        The loss scale at the end.
    total_seconds : float
        Of this call, without the test.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    task: str
    device: str
    options: Options
    ended: str
    losses: np.ndarray
    first_bad_step: int | None
    accuracy: Accuracy | None
    step_seconds: np.ndarray
    samples_per_second: float | None
    samples_per_second_interval: tuple[float, float] | None
    first_step_seconds: float | None
    phase_seconds: Mapping[str, float]
    peak_bytes: int | None
    peak_by_category: Mapping[str, int]
    skipped_steps: int
    final_scale: float | None
    total_seconds: float
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return len(self.losses)

    @property
    def final_loss(self) -> float | None:
        """The mean loss of the last tenth of the steps; None without any."""
        return (
            float(np.mean(self.losses[-max(1, len(self.losses) // 10) :]))
            if len(self.losses)
            else None
        )

    def has_note(self, code: str) -> bool:
        """Return whether a note with this code is among the notes."""
        return any(note.code == code for note in self.notes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FitResult) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.task, self.device, self.options, self.ended, len(self.losses)))

    def __repr__(self) -> str:
        accuracy = f", accuracy {format_accuracy(self.accuracy)}" if self.accuracy else ""
        return (
            f"<{self.task} on {self.device}, {self.options.precision}: {self.ended} after "
            f"{plural(self.steps, 'step')}{accuracy}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what was learned, how fast, in which memory, where the time went, and the
        notes.
        """
        rows = [("ended", f"{self.ended} after {self.steps} of {self.options.steps} steps")]
        if self.final_loss is not None:
            rows.append(("loss (last tenth)", f"{self.final_loss:.4g}"))
        if self.accuracy is not None:
            rows.append(("accuracy on the test", format_accuracy(self.accuracy)))
        if self.samples_per_second is not None:
            rows.append(
                (
                    "samples a second",
                    format_rate(self.samples_per_second, self.samples_per_second_interval),
                )
            )
        if self.phase_seconds:
            whole = sum(self.phase_seconds.values())
            rows.append(("a step, part by part", format_seconds(whole)))
            rows += [
                (f"- {phase}", f"{format_seconds(seconds)} ({seconds / whole:.0%})")
                for phase, seconds in self.phase_seconds.items()
                if whole > 0
            ]
        if self.options.loss_scale == "dynamic" and self.final_scale is not None:
            rows.append(
                (
                    "loss scale at the end",
                    f"{self.final_scale:,.6g}, {self.skipped_steps} of {self.steps} steps skipped",
                )
            )
        if self.peak_bytes is not None:
            rows.append(("peak memory of tensors", format_bytes(self.peak_bytes)))
            rows += [
                (f"- {c}", format_bytes(self.peak_by_category[c]))
                for c in CATEGORIES
                if self.peak_by_category.get(c)
            ]
        rows += [(f"note: {note.code}", note.sentence) for note in self.notes]
        return (f"{self.task}, {self.options.precision}, {self.options.optimizer}", ""), rows


def format_accuracy(accuracy: Accuracy) -> str:
    """Return an accuracy with its interval: "99.2 % [98.0 %, 99.7 %]"."""
    low, high = accuracy.interval
    return f"{100 * accuracy.ratio:.1f} % [{100 * low:.1f} %, {100 * high:.1f} %]"


def format_rate(rate: float, interval: tuple[float, float] | None) -> str:
    """Return samples a second with their interval: "5,120 [5,000, 5,230]"."""
    span = "(no interval)" if interval is None else f"[{interval[0]:,.0f}, {interval[1]:,.0f}]"
    return f"{rate:,.0f} {span}"
