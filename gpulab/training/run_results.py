"""The results of training: accuracies, options, runs, ladders of techniques, pairs of scripts.
Tables and figures read them; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gpulab.evidence import Environment, Evidence, Note
from gpulab.memory.step_memory import CATEGORIES
from gpulab.results import Result, Table, note_rows
from gpulab.timing.statistics import Interval
from gpulab.units import (
    format_bytes,
    format_interval,
    format_ratio,
    format_seconds,
    format_speedup,
    plural,
)

# The parts of a step, in order. "graph" is the replay of a CUDA graph: forward, backward and
# optimizer in one. "other" is the rest, such as the loop itself.
PHASES = ("data", "copy", "forward", "backward", "optimizer", "graph", "other")

# The smallest relative difference of speed that gets a verdict. A ladder has some twenty gains:
# when an interval above 1 was enough, 2 of 44 pairs of identical options were "faster".
LEAST_EFFECT = 0.02
TOLERANCE = 0.02  # a loss of accuracy (as a ratio) up to this counts as none


@dataclass(frozen=True, repr=False)
class Accuracy(Result):
    """How much of the test a model gets right.

    Attributes
    ----------
    correct, count : int
        The number of right answers, and of all answers.
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
    interval: Interval
    loss: float
    answers: str
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        return f"{format_accuracy(self)}: {self.correct:,} of {self.count:,} {self.answers}"

    def table(self) -> Table:
        """Return the share of right answers, their count and the loss."""
        rows = [
            ("right", format_accuracy(self)),
            (self.answers, f"{self.correct:,} of {self.count:,}"),
            ("loss", f"{self.loss:.4g}"),
        ]
        return ("accuracy on the test", ""), rows


@dataclass(frozen=True)
class Options(Result):
    """The options of a run; see ``training.fit`` for each. ``workers`` is the number of processes
    that prepared batches in earlier versions; now it is 0.
    """

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
        The loss of every step.
    first_bad_step : int or None
        The first step (from 0) whose loss was not finite.
    accuracy : Accuracy or None
        On the test, at the end; None if no step was taken.
    step_seconds : ndarray, shape (n,)
        The samples of the speed, in the order taken: seconds per step of each group of steps that
        were timed together (on a CPU, of each step), until the device had finished. Without the
        first step, the step whose memory was followed, the steps up to the recording of a CUDA
        graph and, on an accelerator, steps that were timed part by part.
    samples_per_second : float or None
        At the median of ``step_seconds``; None without any.
    samples_per_second_interval : (float, float) or None
        A 95 % interval; None when none can be given (a note says why).
    first_step_seconds : float or None
        The first step, with compilation and allocation.
    phase_seconds : mapping of str to float
        Mean seconds per step of each of ``PHASES``, over the steps that were timed part by part;
        the device had finished each part.
    peak_bytes : int or None
        The most live tensor storage in one step, after any operator; None if it was not followed (a
        note says why).
    peak_by_category : mapping of str to int
        Its bytes by category; they sum to ``peak_bytes``.
    skipped_steps : int
        Steps that dynamic loss scaling skipped, since gradients had overflowed.
    final_scale : float or None
        The loss scale at the end.
    total_seconds : float
        Of all steps, without the test.
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
    samples_per_second_interval: Interval | None
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

    def __repr__(self) -> str:
        accuracy = f", accuracy {format_accuracy(self.accuracy)}" if self.accuracy else ""
        return (
            f"<{self.task} on {self.device}, {self.options.precision}: {self.ended} after "
            f"{plural(self.steps, 'step')}{accuracy}>"
        )

    def table(self) -> Table:
        """Return how the run ended, its loss and accuracy, its speed, the parts of a step, its
        memory, and the notes.
        """
        whole, loss, peak = sum(self.phase_seconds.values()), self.final_loss, self.peak_bytes
        rate, span = self.samples_per_second, self.samples_per_second_interval
        right = self.accuracy
        scaled = self.options.loss_scale == "dynamic" and self.final_scale is not None
        skipped = (
            f"{self.final_scale or 0:,.6g}, {self.skipped_steps} of {self.steps} steps skipped"
        )
        rows = [
            ("ended", f"{self.ended} after {self.steps} of {self.options.steps} steps"),
            ("loss (last tenth)", None if loss is None else f"{loss:.4g}"),
            ("accuracy on the test", None if right is None else format_accuracy(right)),
            ("samples a second", None if rate is None else format_rate(rate, span)),
            ("a step, part by part", format_seconds(whole) if self.phase_seconds else None),
            *(
                (f"- {phase}", f"{format_seconds(seconds)} ({seconds / whole:.0%})")
                for phase, seconds in self.phase_seconds.items()
                if whole > 0
            ),
            ("loss scale at the end", skipped if scaled else None),
            ("peak memory of tensors", None if peak is None else format_bytes(peak)),
            *(
                (f"- {category}", format_bytes(self.peak_by_category[category]))
                for category in CATEGORIES
                if peak is not None and self.peak_by_category.get(category)
            ),
        ]
        there: list[tuple[str, ...]] = [(name, text) for name, text in rows if text is not None]
        heading = f"{self.task}, {self.options.precision}, {self.options.optimizer}"
        return (heading, ""), there + note_rows(self.notes, 2)


def verdict_of(interval: Interval, tolerance: float) -> str:
    """Return what an interval of a difference of accuracies shows: "kept", "lost", or
    "not decided".
    """
    low, high = interval
    return "lost" if high < 0 else "kept" if low > -tolerance else "not decided"


def format_accuracy(accuracy: Accuracy) -> str:
    """Return an accuracy with its interval: "99.2 % [98.0 %, 99.7 %]"."""
    return f"{_percent(accuracy.ratio)} {format_interval(accuracy.interval, _percent)}"


def format_rate(rate: float, interval: Interval | None) -> str:
    """Return samples a second with their interval: "5,120 [5,000, 5,230]"."""
    return f"{rate:,.0f} {format_interval(interval, '{:,.0f}'.format)}"


@dataclass(frozen=True, repr=False)
class SeedsAccuracy(Result):
    """The accuracy of models that differ by their seed alone, on one test.

    Attributes
    ----------
    accuracies : tuple of Accuracy
        One a model.
    mean : float
        Of their ratios.
    seeds_interval : (float, float) or None
        A 95 % interval of the mean over seeds, on this very test (Student's t); None with one
        model.
    interval : (float, float)
        A 95 % interval over seeds and test items: other seeds on another test of this size. With
        one model it is over items alone.
    answers : str
    evidence : Evidence
    """

    accuracies: tuple[Accuracy, ...]
    mean: float
    seeds_interval: Interval | None
    interval: Interval
    answers: str
    evidence: Evidence

    def __repr__(self) -> str:
        # the interval of a single model is over items alone
        seeds = f"{len(self.accuracies)} seeds and " if len(self.accuracies) > 1 else ""
        mean = f"{_percent(self.mean)} {format_interval(self.interval, _percent)}"
        return f"<{mean} over {seeds}test items>"

    def table(self) -> Table:
        """Return the mean with both intervals, then each model's accuracy."""
        rows = [
            ("mean", _percent(self.mean)),
            (
                f"over {'seeds and ' if len(self.accuracies) > 1 else ''}test items",
                format_interval(self.interval, _percent),
            ),
            ("over seeds, on this test", format_interval(self.seeds_interval, _percent)),
            *(
                (f"model {number}", format_accuracy(one))
                for number, one in enumerate(self.accuracies)
            ),
        ]
        return (f"right {self.answers}", ""), rows


def format_points(difference: float) -> str:
    """Return a difference of ratios in percentage points with its sign, "+1.8"; a difference that
    rounds to zero gives "0.0".

    Examples
    --------
    >>> format_points(-0.0001), format_points(0.018)
    ('0.0', '+1.8')
    """
    points = round(100 * difference, 1)
    return f"{points:+.1f}" if points else "0.0"


def format_change(difference: float, interval: Interval) -> str:
    """Return a difference of accuracies with its interval: "+1.8 points [+0.5, +3.1]"."""
    return f"{format_points(difference)} points {format_interval(interval, format_points)}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


class Gain(NamedTuple):
    """The speed-up of one form over another.

    Attributes
    ----------
    ratio : float
        Of samples per second, measured in turns.
    interval : (float, float) or None
        A 95 % interval of it, paired turn by turn; None where none can be given.
    """

    ratio: float
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """Whether the interval shows an effect of more than 2 %: "faster", "slower", "no difference
        shown", or "no interval".
        """
        if self.interval is None:
            return "no interval"
        low, high = self.interval
        return (
            "faster"
            if low > 1 + LEAST_EFFECT
            else "slower"
            if high < 1 - LEAST_EFFECT
            else "no difference shown"
        )

    def __str__(self) -> str:
        return format_speedup(self.ratio, self.interval)


class LadderForm(NamedTuple):
    """One form of the training: the beginner's script with some of the techniques.

    Attributes
    ----------
    techniques : tuple of str
        Their names; empty for the beginner's script.
    batch_size : int
    samples_per_second : float
    samples_per_second_interval : (float, float) or None
    over_start : Gain
        Over the beginner's script.
    first_step_seconds : float
        Including one-time work: compiling, allocating, recording a graph.
    phase_seconds : mapping of str to float
        Seconds a step by part, where the steps were timed part by part.
    peak_bytes : int or None
        The most live tensor storage in one step.
    """

    techniques: tuple[str, ...]
    batch_size: int
    samples_per_second: float
    samples_per_second_interval: Interval | None
    over_start: Gain
    first_step_seconds: float
    phase_seconds: Mapping[str, float]
    peak_bytes: int | None


class Learned(NamedTuple):
    """The accuracy of a form after the same number of samples, compared with the beginner's script.

    Attributes
    ----------
    accuracy : SeedsAccuracy
    difference : float
        Its mean accuracy minus the script's.
    interval : (float, float)
        A 95 % interval of the difference, over seeds and test items, both paired.
    steps : int
        The number of updates of the parameters.
    same_losses : bool
        Whether the losses equaled those of the rung before, bit for bit, so that the model is the
        same.
    verdict : str
        "lost" if the interval lies below zero, else "kept" if it lies above minus the tolerance,
        else "not decided".
    """

    accuracy: SeedsAccuracy
    difference: float
    interval: Interval
    steps: int
    same_losses: bool
    verdict: str

    def __str__(self) -> str:
        change = format_change(self.difference, self.interval)
        return f"{_percent(self.accuracy.mean)} ({change}): {self.verdict}"


class Rung(NamedTuple):
    """One technique of the ladder.

    Attributes
    ----------
    name, title, mends : str
        ``mends`` is the part of a step that it improves.
    form : LadderForm
        With this technique and all before it.
    gain : Gain
        Over the rung before: the technique's gain at this place of the ladder.
    alone : Gain
        Over the beginner's script, alone.
    removed : Gain
        All techniques over all but this one: the technique's gain as the last one added.
    learned : Learned or None
        None where nothing was trained to the end.
    """

    name: str
    title: str
    mends: str
    form: LadderForm
    gain: Gain
    alone: Gain
    removed: Gain
    learned: Learned | None


class LeftOut(NamedTuple):
    """A technique that is not in the ladder on this device.

    Attributes
    ----------
    name, title, reason : str
    alone : Gain or None
        Over the beginner's script, if the technique runs here but would slow every combination;
        None if it was not timed in turns.
    recorded : tuple of (str, str, Gain)
        In earlier files: machine, case, and the gain there.
    """

    name: str
    title: str
    reason: str
    alone: Gain | None
    recorded: tuple[tuple[str, str, Gain], ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class LadderResult(Result):
    """A beginner's script, sped up technique by technique on one device; all forms took turns, step
    by step.

    Attributes
    ----------
    task, device : str
    samples : int
        Number of samples on which each form was trained to measure its accuracy.
    seeds : tuple of int
    tolerance : float
        The loss of accuracy that counts as none.
    start : LadderForm
        The beginner's script.
    start_accuracy : SeedsAccuracy or None
    rungs : tuple of Rung
        In the order of the ladder.
    together : Gain
        All techniques over the script, measured.
    product : Gain
        The product of the single gains, which articles often promise. The interval takes into
        account that all gains were measured over the same script.
    overstated : Gain
        The product divided by the measured combination: above 1 the product promises too much.
    left_out : tuple of LeftOut
    recorded_evidence : tuple of Evidence
        In earlier files: that of the machines which recorded gains of techniques left out here.
    turns : int
        Number of turns of each form.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    task: str
    device: str
    samples: int
    seeds: tuple[int, ...]
    tolerance: float
    start: LadderForm
    start_accuracy: SeedsAccuracy | None
    rungs: tuple[Rung, ...]
    together: Gain
    product: Gain
    overstated: Gain
    left_out: tuple[LeftOut, ...]
    recorded_evidence: tuple[Evidence, ...]
    turns: int
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def product_evidence(self) -> Evidence:
        """The evidence of the product: arithmetic on measured gains, and its error here."""
        return Evidence.modelled(
            "that no technique changes the gain of another",
            "the product of the gains that were measured one at a time",
            f"the product is {self.overstated} the measured gain of all together",
            self.evidence.device,
        )

    @property
    def hurting(self) -> tuple[Rung, ...]:
        """The rungs at which accuracy was lost, beyond chance; a rung directly after such a rung is
        not listed again.
        """
        lost = [rung.learned is not None and rung.learned.verdict == "lost" for rung in self.rungs]
        return tuple(
            rung for k, rung in enumerate(self.rungs) if lost[k] and not (k and lost[k - 1])
        )

    @property
    def sentence(self) -> str:
        """The result in words, as far as the intervals allow."""
        how = {
            "faster": "The product promises more than the measured gain of all techniques "
            "together.",
            "slower": "The measured gain of all techniques together is larger than the product of "
            "their single gains.",
        }.get(
            self.overstated.verdict,
            "No difference between the product and the measured gain was shown.",
        )
        hurt = ", ".join(rung.title for rung in self.hurting)
        return (
            f"All together: {self.together}; product of the single gains: {self.product}. {how}"
            + (f" Accuracy was lost with: {hurt}." if hurt else "")
        )

    def __repr__(self) -> str:
        return (
            f"<ladder of {plural(len(self.rungs), 'technique')} on {self.device}: together "
            f"{self.together}, product {self.product}>"
        )

    def table(self) -> Table:
        """Return the script, one row a technique, the combination and the product, then the
        techniques left out, with the reason.
        """
        mean = "" if self.start_accuracy is None else _percent(self.start_accuracy.mean)
        rows = [
            ("the script", _rate(self.start), "", "", "", mean),
            *(
                (
                    rung.title,
                    _rate(rung.form),
                    str(rung.gain),
                    str(rung.alone),
                    str(rung.removed),
                    str(rung.learned or ""),
                )
                for rung in self.rungs
            ),
            ("all together vs script", "", str(self.together), "", "", ""),
            ("product of the single gains (MODELLED)", "", "", str(self.product), "", ""),
            *(
                (f"left out: {one.title}", one.reason, "", str(one.alone or ""), "", "")
                for one in self.left_out
            ),
            *note_rows(self.notes, 6),
        ]
        return (
            "technique",
            "samples a second",
            "vs previous rung",
            "alone vs script",
            "all vs all but this",
            "accuracy",
        ), rows

    def caption(self) -> str:
        """Return the evidence of the measurements and of the product, and the samples and seeds
        behind the accuracies.
        """
        trained = f"{self.samples:,} samples under {plural(len(self.seeds), 'seed')}"
        return (
            f"{self.evidence.sentence} · the product: {self.product_evidence.sentence}"
            f"{f' · the accuracies: each form trained on {trained}' if self.seeds else ''}"
        )


def _rate(form: LadderForm) -> str:
    return (
        f"{format_rate(form.samples_per_second, form.samples_per_second_interval)} (batch "
        f"{form.batch_size})"
    )


def trains_less(names: tuple[str, str], samples: tuple[int, int]) -> str:
    """Return the objection to a second script that passes fewer samples through the model."""
    first, second = (
        f"{name} passed {plural(count, 'sample')} through the model"
        for name, count in zip(names, samples, strict=True)
    )
    return (
        f"{second}, and {first}: the time of {names[1]} does not count, because it trains less. "
        "Keep the number of samples equal."
    )


@dataclass(frozen=True, repr=False)
class ScriptsResult(Result):
    """A script before and after, on the same model and data.

    Attributes
    ----------
    task, device : str
    names : (str, str)
        The functions' names.
    timed_items : int
        The number of training items on which the scripts were timed in turns.
    seconds : (float, float)
        The median seconds of a call on these items, its model already made, until the device had
        finished.
    gain : Gain
        The first's seconds divided by the second's; paired if they took turns.
    samples : (int, int)
        Samples that each passed through the model in training, in one call on ``timed_items``.
    accuracy : (SeedsAccuracy, SeedsAccuracy)
        Of the models trained on all of the training data, on the test.
    accuracy_difference : float
        The second's minus the first's.
    accuracy_interval : (float, float)
        A 95 % interval of this difference, over seeds and test items, both paired.
    tolerance : float
        The loss of accuracy that counts as none.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    task: str
    device: str
    names: tuple[str, str]
    timed_items: int
    seconds: Interval
    gain: Gain
    samples: tuple[int, int]
    accuracy: tuple[SeedsAccuracy, SeedsAccuracy]
    accuracy_difference: float
    accuracy_interval: Interval
    tolerance: float
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def _change(self) -> str:
        return format_change(self.accuracy_difference, self.accuracy_interval)

    @property
    def accuracy_verdict(self) -> str:
        """The conclusion that the interval allows: "kept", "lost" or "not decided"."""
        return verdict_of(self.accuracy_interval, self.tolerance)

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the second is not a valid speed-up over the first; empty if it is."""
        no_interval = self.gain.interval is None
        found = (
            (self.samples[1] < self.samples[0], trains_less(self.names, self.samples)),
            (
                self.accuracy_verdict == "lost",
                f"The model of {self.names[1]} is less accurate: {self._change}. A speed-up must "
                "not cost accuracy.",
            ),
            (
                no_interval,
                f"No speed-up was shown: {format_ratio(self.gain.ratio)} has no interval, since "
                "the turns were too few or their times vary too much. Close other programs and run "
                "it again, or pass fewer items or a longer deadline.",
            ),
            (
                not no_interval and self.gain.verdict != "faster",
                f"No speed-up was shown: {self.gain}, {self.gain.verdict}. The whole interval must "
                f"lie above {1 + LEAST_EFFECT:g}.",
            ),
        )
        return tuple(sentence for holds, sentence in found if holds)

    @property
    def sentence(self) -> str:
        """The outcome in one sentence."""
        if self.objections:
            return self.objections[0]
        return (
            f"{self.names[1]} has a speed-up of {self.gain} over {self.names[0]} on the same "
            f"samples, and the accuracy is {self.accuracy_verdict} ({self._change})."
        )

    def __repr__(self) -> str:
        return f"<{self.names[1]} against {self.names[0]}: {self.sentence}>"

    def table(self) -> Table:
        """Return one row per quantity with a column for each script, then the speed-up, the
        difference of accuracy, the objections and the notes.
        """
        rows = [
            (f"time for {self.timed_items:,} items", *map(format_seconds, self.seconds)),
            ("samples through the model", *(f"{count:,}" for count in self.samples)),
            ("accuracy on the test", *(_percent(one.mean) for one in self.accuracy)),
            ("speed-up of the second", "", f"{self.gain}: {self.gain.verdict}"),
            ("accuracy, second minus first", "", f"{self._change}: {self.accuracy_verdict}"),
            *((f"objection {number}", text, "") for number, text in enumerate(self.objections, 1)),
            *note_rows(self.notes, 3),
        ]
        return (self.task, *self.names), rows
