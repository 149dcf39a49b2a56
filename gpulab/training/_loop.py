"""Train a task: ``Run`` advances step by step (the ladder uses it too), and ``fit`` makes a whole
run in one call.

A run measures the times of its steps and the memory of one step; notes say how it ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gpulab import _interrupts, _validate, devices
from gpulab.errors import GpulabError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.memory.step_memory import StorageTracker, tensors_in
from gpulab.memory.training_step import optimizer_seen
from gpulab.timing.statistics import median_interval
from gpulab.training import backend_switches
from gpulab.training._step import (
    EAGER_STEPS,
    MOST_STEPS,
    SCALED,
    GraphedStep,
    Step,
    explain,
    settle,
)
from gpulab.training.data_tasks import Answers, Batch, Task, answers_of, feed, find_task, order
from gpulab.training.run_results import PHASES, Accuracy, FitResult, Options

# The memory of the second step is followed, since the optimizer's state exists from its start.
_FOLLOWED_STEP = 1
# On an accelerator, one in this many stretches of steps is timed part by part, beginning with the
# first.
_PARTED_EVERY = 4
# The loss has shot up if it exceeds the first loss, or the loss of guessing if that is larger, this
# many times: the noise between batches is never that large.
_SHOT_UP = 4.0
# Optimizers (beginnings of names) whose steps do not grow with the gradients, so clipping the
# gradients helps little.
_ADAPTIVE = ("ada", "nadam", "radam", "rmsprop", "rprop")


class Meter:
    """The times of one run, and the memory of one of its steps. The clock is read only when the
    device has finished.

    On an accelerator, waiting after each part makes a step slower, so a step that is timed part by
    part is not used as a sample of the speed. On a CPU nothing has to wait, and each step gives
    both.

    Attributes
    ----------
    step_seconds : list of float
    first_step_seconds : float or None
    total_seconds : float
    peak_bytes : int or None
        None until the memory of a step was followed, or if it cannot be.
    by_category : dict of str to int
    """

    def __init__(self, clock: Callable[[], float], device: devices.Device) -> None:
        self.clock, self.device = clock, device
        self.step_seconds: list[float] = []
        self.first_step_seconds: float | None = None
        self.total_seconds = 0.0
        self.peak_bytes: int | None = None
        self.by_category: dict[str, int] = {}
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._parted_steps, self._parting = 0, False
        self._marks: list[tuple[str, float]] = []  # what ended when, in this stretch of steps

    def begin(self, parting: bool) -> None:
        """Begin a stretch of steps; with ``parting``, or on a CPU, their parts are timed."""
        self._parting = parting or self.device.is_cpu
        self.device.synchronize()
        self._marks = [("", self.clock())]

    def mark(self, phase: str) -> None:
        """Mark that a part of a step has just been queued. If parts are timed, wait for the device
        and note when the part ended.
        """
        if self._parting:
            self.device.synchronize()
            self._marks.append((phase, self.clock()))

    def end(self, steps: int, *, first: bool, counts: bool) -> None:
        """End a stretch of ``steps`` steps; ``counts`` is whether its times are used as samples of
        the speed.
        """
        self.device.synchronize()
        self._marks.append(("other", self.clock()))
        seconds = self._marks[-1][1] - self._marks[0][1]
        self.total_seconds += seconds
        if first:
            self.first_step_seconds = seconds / steps
        if not counts:
            return
        if self._parting:
            self._parted_steps += steps
            for (_, begin), (phase, end) in itertools.pairwise(self._marks):
                self._phases[phase] += end - begin
        if not self._parting or self.device.is_cpu:
            self.step_seconds.append(seconds / steps)

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Mean seconds per step of each part that ran; empty if no step was timed part by part."""
        return {phase: value / self._parted_steps for phase, value in self._phases.items() if value}

    def rate(
        self, samples_a_step: int
    ) -> tuple[float | None, tuple[float, float] | None, str | None]:
        """Return the samples per second at the median step, their 95 % interval, and the reason if
        there is no interval.
        """
        seconds = np.array(self.step_seconds)
        median = float(np.median(seconds)) if len(seconds) else 0.0
        if median <= 0:
            return None, None, "every step was also used for another measurement. Take more steps."
        interval, reason = median_interval(seconds)
        return (
            samples_a_step / median,
            (samples_a_step / interval[1], samples_a_step / interval[0])
            if interval is not None and interval[0] > 0
            else None,
            reason and reason.replace("Allow a longer deadline", "Take more steps"),
        )

    @contextlib.contextmanager
    def following(self, model: Any, optimizer: Any, batch: Any) -> Iterator[None]:
        """Follow the memory of the step in the block, by category (parameters, gradients, ...)."""
        tracker = StorageTracker(self.device.torch_type)
        tracker.watch_modules([model])
        for value in tensors_in(list(optimizer.state.values())):
            tracker.watch(value, "optimizer")
        tracker.watch_inputs(batch)
        with contextlib.closing(tracker), optimizer_seen(tracker), tracker:
            yield
        peak = tracker.at_peak()
        self.peak_bytes, self.by_category = peak["peak_bytes"], peak["peak_by_category"]


class Run:
    """One training run, advanced by as many steps at a time as the caller likes.

    Two runs may take turns: each has its own random generators, and sets PyTorch's switches only
    while it takes a step.

    Parameters
    ----------
    task : str or Task
    model : torch.nn.Module, optional
        Trained in place; None makes the task's own.
    **options
        As in ``training.fit``.

    Attributes
    ----------
    task : Task
    model : torch.nn.Module
        On the run's device.
    device : Device
    options : Options
        The options in effect on this device.
    losses : list of float
        One per step.
    notes : list of Note
    parts_every : int
        On an accelerator, one in this many calls of ``advance`` is timed part by part, which makes
        it slower; 0 for none.

    Raises
    ------
    InputError, DeviceError, OutOfMemoryError
        As ``training.fit``.

    Examples
    --------
    >>> from gpulab import training
    >>> run = training.Run("prose-transformer", steps=3, batch_size=4, device="cpu")
    >>> len(run.advance(2)), run.is_over
    (2, False)
    >>> run.close()

    Two epochs of 1,297 digits have 12 whole batches of 100 each:

    >>> training.Run("digits-mlp", epochs=2, batch_size=100, device="cpu").options.steps
    24
    """

    def __init__(
        self,
        task: str | Task,
        *,
        model: Any = None,
        device: Any = None,
        clock: Callable[[], float] | None = None,
        **options: Any,
    ) -> None:
        self.task = find_task(task)
        read_clock = time.perf_counter if clock is None else _validate.clock("fit", "clock", clock)
        _validate.instance(
            "fit",
            "model",
            model,
            torch.nn.Module | None,
            "a torch.nn.Module or None. Pass task.make_model(seed).",
        )
        self.options, self.device, make, self.notes = settle(self.task, device, options)
        self._own_optimizer = callable(options.get("optimizer"))
        self.model = self.task.make_model(self.options.seed) if model is None else model
        self._step = Step(self.task, self.model, self.options, self.device, make, self.notes)
        self._graph = GraphedStep(self._step) if self.options.cuda_graph else None
        self.losses: list[float] = []
        self._generators = backend_switches.Generators(self.options.seed, self.device)
        self.meter = Meter(read_clock, self.device)
        self._feed: Generator[Batch, None, None] | None = None
        self.first_bad_step: int | None = None
        self.parts_every = _PARTED_EVERY
        self._stretches = 0

    @property
    def is_over(self) -> bool:
        """Whether all steps were taken, or the loss is no longer a number."""
        return len(self.losses) >= self.options.steps or self.first_bad_step is not None

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """The samples of the speed so far: seconds per step of each group of steps that were timed
        together, in the order taken.
        """
        return tuple(self.meter.step_seconds)

    def advance(self, steps: int = 1) -> list[float]:
        """Take this many steps (fewer if the run ends before), wait for the device, and return
        their losses.

        The steps are timed together, except the first of a run, the one whose memory is followed,
        and those that prepare a CUDA graph.

        Raises
        ------
        InputError
            If ``steps`` is not a whole number of at least 1, or a step raises.
        OutOfMemoryError, DeviceError
            If a step fails; the steps before it are kept.
        """
        begun, steps = len(self.losses), _validate.whole("advance", "steps", steps, 1, MOST_STEPS)
        while not self.is_over and len(self.losses) < begun + steps:
            self._stretch(begun + steps - len(self.losses))
        return self.losses[begun:]

    def _stretch(self, steps: int) -> None:
        """Take up to ``steps`` steps between two waits for the device."""
        o, reached = self.options, len(self.losses)
        first, left = reached == 0, o.steps - reached
        followed = reached == _FOLLOWED_STEP or (first and left == 1)
        # the steps before a CUDA graph, and its recording, show neither its speed nor its phases
        counts = not (first or followed or (o.cuda_graph and reached <= EAGER_STEPS))
        steps = min(steps, left) if counts else 1
        losses: list[Any] = []
        try:
            with (
                backend_switches.current(self.device),
                backend_switches.switches(
                    self.options.precision, self.device, self.options.autotune
                ),
                self._generators.in_use(),
                self._step.ready(),
            ):
                self.meter.begin(
                    counts and self.parts_every > 0 and self._stretches % self.parts_every == 0
                )
                for number in range(reached, reached + steps):
                    losses.append(self._one(number, followed))
                    if self.options.read_loss:
                        losses[-1] = losses[-1].item()
                        self.meter.mark("other")
                self.meter.end(steps, first=first, counts=counts)
        except BaseException:
            # A batch may be lost, or the loading interrupted: the next step starts the loading
            # again, at its own batch.
            self.close()
            raise
        finally:
            last = reached + len(losses) - 1
            doing = f"fit: reading the losses of steps {reached} to {last} on {self.device}"
            with devices.guard(doing):
                self.losses += [float(loss) for loss in losses]
            bad = [n for n in range(reached, len(self.losses)) if not math.isfinite(self.losses[n])]
            if bad:
                self.first_bad_step = bad[0]
                del self.losses[bad[0] + 1 :]
        self._stretches += counts
        if first and self.options.compile and self._step.compiled is None:
            self.options = dataclasses.replace(self.options, compile=False)
        if self._graph is not None and self._graph.has_failed:
            self.options = dataclasses.replace(self.options, cuda_graph=False)

    def _one(self, number: int, followed: bool) -> Any:
        """Take step ``number`` and return its loss, which may still be on the device."""
        o, step = self.options, self._step
        try:
            if self._feed is None:
                self._feed = feed(
                    self.task.train,
                    order(len(self.task.train), o.batch_size, o.seed, number, o.steps),
                    loading=o.loading,
                    prefetch=o.prefetch,
                    pinned=o.pinned,
                    to_device=step.to_device,
                    device=self.device,
                )
            batch = next(self._feed)
            self.meter.mark("data")
            if not o.prefetch:  # else the thread that loads ahead has copied it
                batch = step.to_device(batch)
                self.meter.mark("copy")
            following: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if followed and not o.compile:  # a compiled step has no operators to follow
                following = self.meter.following(self.model, step.optimizer, batch)
            with following:
                return (self._graph or step).run(batch, self.meter.mark)
        except GpulabError:
            raise
        except Exception as error:
            doing = (
                f"fit: step {number} of {self.task.name} with batch_size={o.batch_size}, "
                f"{o.precision} on {self.device}"
            )
            raise explain(doing, error, o) from error

    def close(self) -> None:
        """End the thread that prepares batches. The run keeps its results, and its next step starts
        a new thread.
        """
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def test(self) -> Answers:
        """Return the model's current answers on the test, computed in the dtype of its weights
        (without autocast).
        """
        with backend_switches.switches(self.options.precision, self.device):
            return answers_of(self.model, self.task)

    def _tested(self, notes: list[Note]) -> Accuracy | None:
        """Return the accuracy; if the test fails, None with a note: the run's result is kept."""
        try:
            return self.test().accuracy()
        except GpulabError as error:
            notes.append(Note("skipped", f"there is no accuracy: {error}"))
            return None

    def result(self, ended: str | None = None) -> FitResult:
        """Return the result so far.

        Parameters
        ----------
        ended : str, optional
            "stopped" or "interrupted"; None stands for "finished" after the last step, else
            "stopped". A run that diverged is "diverged" in any case.
        """
        o, bad, notes, cut = self.options, self.first_bad_step, list(self.notes), ended
        accuracy = self._tested(notes) if self.losses else None
        if bad is not None or (accuracy is not None and not math.isfinite(accuracy.loss)):
            ended = "diverged"
            notes.append(diverged_note(o, self.losses, bad, self._own_optimizer))
        else:
            ended = ended or ("finished" if len(self.losses) >= o.steps else "stopped")
            if self.losses:
                guessing = math.log(max(2, int(self.task.train.targets.max()) + 1))
                rising = rising_note(o, self.losses, guessing, self._own_optimizer)
                notes += [] if rising is None else [rising]
        rate, span, reason = self.meter.rate(o.batch_size)
        if span is None and reason is not None:
            notes.append(Note("no-interval", reason))
        if o.compile:
            notes.append(
                Note(
                    "skipped",
                    "a compiled step has no operators to follow, so its peak is not known, and its "
                    "memory is not split into categories.",
                )
            )
        if cut is not None:
            notes.append(
                Note(
                    cut,
                    f"the run was {cut} after {len(self.losses)} of {o.steps} steps; the result "
                    "covers these steps. Run it again for all of them.",
                )
            )
        scaler, times = self._step.scaler, np.array(self.meter.step_seconds)
        fixed = o.loss_scale if isinstance(o.loss_scale, float) else None
        return FitResult(
            task=self.task.name,
            device=str(self.device),
            options=o,
            ended=ended,
            losses=np.array(self.losses),
            first_bad_step=bad,
            accuracy=accuracy,
            step_seconds=times,
            samples_per_second=rate,
            samples_per_second_interval=span,
            first_step_seconds=self.meter.first_step_seconds,
            phase_seconds=self.meter.phase_seconds,
            peak_bytes=self.meter.peak_bytes,
            peak_by_category=self.meter.by_category,
            skipped_steps=0 if scaler is None else scaler.skipped_steps,
            final_scale=fixed if scaler is None else float(scaler.get_scale()),
            total_seconds=self.meter.total_seconds,
            notes=tuple(notes),
            evidence=Evidence.measured(self.device.name, samples=len(times) or None),
            environment=devices.environment(self.device),
        )


def diverged_note(
    options: Options, losses: Sequence[float], bad: int | None, own_optimizer: bool
) -> Note:
    """Return a note on the step at which the loss became infinite or nan, the loss before it, and
    what to try.

    Parameters
    ----------
    bad : int or None
        The first step whose loss is not finite; None where only the last update broke the weights.
    own_optimizer : bool
        Whether a function made the optimizer, and so decided the learning rate.
    """
    before = f", after {losses[bad - 1]:.3g} at the step before" if bad else ""
    when = (
        f"after the last step ({len(losses) - 1}, loss {losses[-1]:.3g}) the test's loss is not a "
        "finite number"
        if bad is None
        else f"the loss was {losses[bad]} at step {bad}{before}"
    )
    if bad == 0:
        cause = (
            "No update came before it, so the cause is the model itself, the data, or a number "
            f"that {options.precision} cannot hold. Look at task.loss(model, task.train[:8])."
        )
    else:
        cause = (
            f"{_advice(options, own_optimizer)} If that changes nothing, look for infinities and "
            "nan in the data, and in the layers for a division by zero, or a root or logarithm of "
            "zero."
        )
    return Note("diverged", f"{when}. {cause}")


def _advice(options: Options, own_optimizer: bool) -> str:
    # the first advice whose condition holds; clipping is suggested only where it can help
    is_clipped = options.clip is not None or options.optimizer.startswith(_ADAPTIVE)
    ways = (
        (
            options.precision == "pure-float16",
            'Pass precision="float16", which keeps float32 weights and scales the loss, or '
            '"bfloat16"; in pure float16 an epsilon of 1e-8, as Adam has it, rounds to zero, which '
            "can make the weights nan.",
        ),
        (
            options.precision in SCALED and options.loss_scale != "dynamic",
            'Leave loss_scale out, so that it is dynamic, or pass precision="bfloat16".',
        ),
        (own_optimizer, "Give your optimizer a smaller learning rate."),
        (
            True,
            f"Pass a smaller learning_rate (it was {options.learning_rate:g})"
            f"{'' if is_clipped else ', or clip=1.0'}.",
        ),
    )
    return next(way for holds, way in ways if holds)


def rising_note(
    options: Options, losses: Sequence[float], guessing: float, own_optimizer: bool
) -> Note | None:
    """Return a note if the loss shot up, else None. In such a run the loss can stay finite: with
    Adam, or when all ReLUs are dead.

    Parameters
    ----------
    losses : sequence of float
        Finite.
    guessing : float
        The loss of a model that guesses. A run that begins below it, such as fine-tuning, is
        compared with it, so its loss may vary there.
    """
    top = max(range(len(losses)), key=losses.__getitem__)
    if losses[top] <= _SHOT_UP * max(losses[0], guessing):
        return None
    now = f", and is {losses[-1]:.3g} at the end" if top < len(losses) - 1 else ""
    where = f"the loss rose from {losses[0]:.3g} at step 0 to {losses[top]:.3g} at step {top}{now}"
    return Note("rising", f"{where}: the updates are too large. {_advice(options, own_optimizer)}")


_STRETCH = 10  # steps that an accelerator takes between two waits


@_validate.arguments(progress=_validate.hook, stop=_validate.hook)
def fit(
    task: str | Task,
    *,
    model: Any = None,
    device: Any = None,
    precision: str = "float32",
    progress: Callable[[float, str], None] | Any = _validate.LEFT_OUT,
    stop: Callable[[], bool] | Any = _validate.LEFT_OUT,
    clock: Callable[[], float] | None = None,
    **options: Any,
) -> FitResult:
    """Train a task and return its losses and accuracy, its speed and memory, and how it ended.

    A feature that the device lacks is left out with a note, and the next best is used. The caller's
    random generators and PyTorch's settings are restored afterwards.

    Parameters
    ----------
    task : str or Task
        One of ``training.tasks()``.
    model : torch.nn.Module, optional
        Trained in place, on the run's device and in the precision's dtype; None makes
        ``task.make_model(seed)``.
    device : optional
        None takes the best one available.
    precision : str
        "float32" (TF32 off), "tf32", "bfloat16" or "float16" (autocast), "pure-bfloat16" or
        "pure-float16" (parameters converted).
    batch_size : int, optional
        Items in one update, up to all of the training data; None takes the task's.
    epochs, steps : int, optional
        The length of the run: one of the two; None takes the task's epochs. An epoch drops the
        items that do not fill a batch.
    learning_rate : float, optional
        None takes the task's, which fits Adam.
    optimizer : str or callable
        A name of ``torch.optim`` (case does not matter), "sgd-momentum", or a function from
        parameters to an optimizer, which then sets the learning rate itself.
    accumulate : int
        Number of parts into which each batch is split. Their gradients add up to the batch's
        gradient before the one update. Batch norm sees each part by itself.
    checkpoint : bool
        Recompute each direct child of the model (of a ModuleList, each member) in the backward
        pass.
    compile : bool
        Train ``torch.compile(model, dynamic=False)``: code for this batch size only.
    channels_last : bool
        Keep images and convolutions' weights with the channels last.
    fused : bool or None
        True: the optimizer's fused form; False: separate operators for each parameter; None:
        PyTorch's choice.
    prefetch : int
        Batches that a thread of this process prepares and copies ahead.
    pinned : bool
        Copy from page-locked memory, without waiting.
    cuda_graph : bool
        Record one step as a CUDA graph and replay it.
    loss_scale : "dynamic", float or None
        None: "dynamic" where the precision needs it (float16), else no scaling. A number is a fixed
        scale, with which no step is skipped; 1 is unscaled.
    clip : float, optional
        The largest norm of all gradients together.
    loading : str
        "batches": one indexing operation takes a batch; "items": each item is read by itself, then
        they are stacked, as with a plain ``Dataset``; "resident": all training data is copied to
        the device once, and batches are indexed there.
    read_loss : bool
        Read each loss on the host (``.item()``) before the next step begins.
    autotune : bool
        Let cuDNN time its algorithms on the first call of each shape and keep the fastest. Another
        run may then keep another algorithm, so losses may differ in the last bits.
    seed : int
        Of the weights and the order of the batches. The same seed and options give the same losses,
        bit for bit, on the same machine.
    progress : callable, optional
        ``progress(fraction, text)`` as the run goes on.
    stop : callable, optional
        Called between steps; True ends the run, and the result so far is returned.
    clock : callable, optional
        Returns seconds.

    Returns
    -------
    FitResult
        Evidence MEASURED. A loss that is not finite, an interrupt or a stop ends the run; ``ended``
        says which of them did. An interrupt ends only this run: a loop over several runs goes on,
        unless it breaks when ``ended`` is "interrupted".

    Raises
    ------
    InputError
        If an argument cannot be used, or a step of the model raises.
    OutOfMemoryError, DeviceError
        If a step does not fit into memory, or there is no such device.
    StoppedError
        If ``stop`` returned True before the first step.
    KeyboardInterrupt
        If the learner interrupts before the first step.

    Examples
    --------
    >>> from gpulab import training
    >>> result = training.fit("prose-transformer", steps=2, batch_size=4, device="cpu")
    >>> result.ended, result.steps
    ('finished', 2)
    """
    run = Run(task, model=model, device=device, clock=clock, precision=precision, **options)
    steps, ended = run.options.steps, None
    # The test runs inside the block too: an interrupt during it would otherwise lose the run.
    with contextlib.closing(run), _interrupts.deferred() as interrupt:
        while not run.is_over:
            if interrupt.asked or stop():
                ended = "interrupted" if interrupt.asked else "stopped"
                break
            try:
                run.advance(1 if run.device.is_cpu else _STRETCH)
            except KeyboardInterrupt:
                # a second interrupt, in the middle of a step: the weights may be partly updated
                ended = "interrupted"
                break
            now = len(run.losses)
            progress(now / steps, f"step {now} of {steps}: loss {run.losses[-1]:.4g}")
        if run.losses or ended is None:
            return run.result(ended)
        if ended == "interrupted":
            raise KeyboardInterrupt
    raise StoppedError("fit: stopped before the first step; expected it to run. Call it again.")
