"""A run of training that goes on step by step: what ``fit`` and the ladder drive."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpulab import _given, devices
from gpulab.errors import CheckpointError, GpulabError, InputError, kind_of, message_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.training import _checkpoint, _settings
from gpulab.training._evaluate import Answers, answers_of
from gpulab.training._feed import Feed, Order
from gpulab.training._followed import Followed
from gpulab.training._graph import GraphedStep
from gpulab.training._meter import Meter
from gpulab.training._options import settle
from gpulab.training._step import Step, explain
from gpulab.training._tasks import Task
from gpulab.training._tasks import task as find_task
from gpulab.training._words import diverged_note, left_out_note, rising_note
from gpulab.training.results import Accuracy, FitResult

# of this call: the second, so that the optimizer's state is there from its start
_FOLLOWED_STEP = 1
# on an accelerator one stretch of so many is timed part by part, the first among them
_PARTED_EVERY = 4
# What may change between a checkpoint and the run that goes on from it: how long, and who prepares
# the batches.
_MAY_CHANGE = (
    "steps",
    "workers",
    "prefetch",
    "pinned",
    "checkpoint",
    "loading",
    "read_loss",
    "autotune",
)


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
    device : Device
    options : Options
        The options in effect on this device.
    losses : list of float
        One a step.
    notes : list of Note
    answers : Answers or None
        The model's answers when it was last tested.
    parts_every : int
        On an accelerator, one of this many calls of ``advance`` is timed part by part, which slows
        it; 0 for none.

    Raises
    ------
    InputError, DeviceError, OutOfMemoryError, CheckpointError
        As ``training.fit``.

    Examples
    --------
    >>> from gpulab import training
    >>> run = training.Run("prose-transformer", steps=3, batch_size=4, device="cpu")
    >>> len(run.advance(2)), run.is_over
    (2, False)
    >>> run.close()
    """

    def __init__(
        self,
        task: str | Task,
        *,
        model: Any = None,
        device: Any = None,
        precision: str = "float32",
        batch_size: int | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        learning_rate: float | None = None,
        optimizer: Any = "adam",
        accumulate: int = 1,
        checkpoint: bool = False,
        compile: bool = False,
        channels_last: bool = False,
        fused: bool | None = None,
        workers: int = 0,
        prefetch: int = 0,
        pinned: bool = False,
        cuda_graph: bool = False,
        loss_scale: Any = None,
        clip: float | None = None,
        loading: str = "batches",
        read_loss: bool = False,
        autotune: bool = False,
        seed: int = 0,
        resume: Any = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        import torch

        self.task = find_task(task)
        read_clock = _given.clock("fit", clock) or time.perf_counter
        if model is not None and not isinstance(model, torch.nn.Module):
            raise InputError(
                f"fit: model is {kind_of(model)}; expected a torch.nn.Module or None. Pass "
                "task.make_model(seed)."
            )
        settled = settle(
            self.task,
            device=device,
            precision=precision,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            learning_rate=learning_rate,
            optimizer=optimizer,
            accumulate=accumulate,
            checkpoint=checkpoint,
            compile=compile,
            channels_last=channels_last,
            fused=fused,
            workers=workers,
            prefetch=prefetch,
            pinned=pinned,
            cuda_graph=cuda_graph,
            loss_scale=loss_scale,
            clip=clip,
            loading=loading,
            read_loss=read_loss,
            autotune=autotune,
            seed=seed,
        )
        content = (
            None
            if resume is None
            else _checkpoint.read(_checkpoint.path_of("fit", "resume", resume))
        )
        self.options, self.device, self.notes = settled.options, settled.device, settled.notes
        # A checkpoint keeps the precision that was asked for: the same call goes on from it on a
        # device with TF32 and on one without.
        self._asked, self._own_optimizer = (
            dataclasses.replace(settled.options, precision=precision),
            not isinstance(optimizer, str),
        )
        if content is not None:
            self._compare(Path(resume), content)
        self._step = Step(
            self.task, settled, self.task.make_model(self.options.seed) if model is None else model
        )
        self._graph = GraphedStep(self._step, self.notes) if self.options.cuda_graph else None
        self.losses: list[float] = []
        self._generators = _settings.Generators(self.options.seed, self.device)
        self._meter = Meter(
            read_clock, self.device.synchronize, waiting_costs=not self.device.is_cpu
        )
        self._followed = Followed(self.device, opaque=self.options.compile)
        self.answers: Answers | None = None
        self._feed: Feed | None = None
        self._bad: int | None = None
        self._whole = model is None or _all_finite(self._step.parameters)
        self.parts_every = _PARTED_EVERY
        self._stretches = self._began_at = self._skipped_before = 0
        if content is not None:
            self._restore(Path(resume), content)

    # -- where it stands
    # ----------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The model, on the run's device."""
        return self._step.model

    @property
    def first_bad_step(self) -> int | None:
        """The first step (from 0) whose loss is not finite; None while there is none."""
        return self._bad

    @property
    def is_over(self) -> bool:
        """Whether all steps were taken, or the loss is no longer a number."""
        return len(self.losses) >= self.options.steps or self._bad is not None

    @property
    def samples_per_second(self) -> float | None:
        """Samples a second at the median step until now; None before there is a step without other
        measurements.
        """
        return self._meter.rate(self.options.batch_size)[0]

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Seconds of each step without other measurements, until now, in the order taken."""
        return tuple(self._meter.step_seconds)

    @property
    def first_step_seconds(self) -> float | None:
        """Seconds of the first step of this run, including one-time work; None before it."""
        return self._meter.first_step_seconds

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Seconds a step by part, until now; empty where no step was timed part by part."""
        return self._meter.phase_seconds

    @property
    def peak_bytes(self) -> int | None:
        """The most live tensor storage in the step that was followed; None before it."""
        return self._followed.peak_bytes

    @property
    def skipped_steps(self) -> int:
        """Steps that dynamic loss scaling skipped; reading it waits for the device."""
        return self._skipped_before + (
            self._step.scaler.skipped_steps if self._step.scaler is not None else 0
        )

    # -- going on
    # -----------------------------------------------------------------------------------------------

    def advance(self, steps: int = 1) -> list[float]:
        """Take this many steps (fewer if the run ends before), wait for the device, and return
        their losses.

        The steps are timed together, except the first of a run and the one whose memory is
        followed.

        Raises
        ------
        InputError
            If ``steps`` is not a whole number of at least 1, or a step raises.
        OutOfMemoryError, DeviceError
            If a step fails; the steps before it are kept.
        """
        if not _given.is_whole(steps) or steps < 1:
            raise InputError(
                f"advance: steps is {shown(steps)}; expected a whole number of at least 1. Pass "
                "steps=1."
            )
        begun, steps = len(self.losses), int(steps)
        while not self.is_over and len(self.losses) < begun + steps:
            self._stretch(begun + steps - len(self.losses))
        return self.losses[begun:]

    def _stretch(self, steps: int) -> None:
        """Take up to so many steps between two waits for the device."""
        reached = len(self.losses)
        taken, left = reached - self._began_at, self.options.steps - reached
        first = taken == 0
        followed = taken == _FOLLOWED_STEP or (first and left == 1)
        steps = 1 if first or taken == _FOLLOWED_STEP else min(steps, left)
        counts = not (first or followed)
        losses: list[Any] = []
        try:
            with (
                _settings.current(self.device),
                _settings.switches(self.options.precision, self.device, self.options.autotune),
                self._generators.in_use(),
                self._step.ready(),
            ):
                self._meter.begin(
                    counts and self.parts_every > 0 and self._stretches % self.parts_every == 0
                )
                for number in range(reached, reached + steps):
                    losses.append(self._one(number, followed))
                    if self.options.read_loss:
                        losses[-1] = losses[-1].item()
                        self._meter.mark("other")
                self._meter.end(steps, first=first, counts=counts)
        except BaseException:
            # a batch may be lost, or the loading cut off: the next step gets its own again
            self.close()
            raise
        finally:
            with devices.guard(
                f"fit: reading the losses of steps {reached} to {reached + len(losses) - 1} on "
                f"{self.device}"
            ):
                self.losses += [float(loss) for loss in losses]
            self._bad = next(
                (n for n in range(reached, len(self.losses)) if not math.isfinite(self.losses[n])),
                None,
            )
            if self._bad is not None:
                del self.losses[self._bad + 1 :]
        self._stretches += counts
        if first and self.options.compile and not self._step.is_compiled:
            self.options = dataclasses.replace(self.options, compile=False)
            self._followed = Followed(self.device, opaque=False)
        if self._graph is not None and self._graph.has_failed:
            self.options = dataclasses.replace(self.options, cuda_graph=False)

    def _one(self, number: int, followed: bool) -> Any:
        o, step = self.options, self._step
        try:
            if self._feed is None:
                order = Order(len(self.task.train), o.batch_size, o.seed, number, o.steps)
                self._feed = Feed(
                    self.task.train,
                    order,
                    loading=o.loading,
                    workers=o.workers,
                    prefetch=o.prefetch,
                    pinned=o.pinned,
                    to_device=step.to_device,
                    device=self.device,
                )
            batch = next(self._feed)
            self._meter.mark("data")
            if not self._feed.on_device:
                batch = step.to_device(batch)
                self._meter.mark("copy")
            take = step.run if self._graph is None else self._graph.run
            with (
                self._followed.step(self.model, step.optimizer, batch)
                if followed
                else contextlib.nullcontext()
            ):
                return take(batch, self._meter.mark)
        except GpulabError:
            raise
        except Exception as error:
            doing = (
                f"fit: step {number} of {self.task.name} with batch_size={o.batch_size}, "
                f"{o.precision} on {self.device}"
            )
            raise explain(doing, error, o) from error

    def close(self) -> None:
        """End the thread or the processes that prepare batches; the run can still be read, and goes
        on with new ones.
        """
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    # -- checkpoints
    # --------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        values = dataclasses.asdict(self._asked)
        return {
            "task": self.task.name,
            **{name: value for name, value in values.items() if name not in _MAY_CHANGE},
        }

    def save(self, path: Any) -> None:
        """Write a checkpoint atomically.

        Raises
        ------
        InputError
            If there is nothing to save (no step was taken, or the loss is no longer a number), or
            the path is invalid.
        OSError
            If the disk cannot be written to; an older file is then unchanged.
        """
        where = _checkpoint.path_of("save", "path", path)
        if not self.losses or self.first_bad_step is not None:
            what = (
                "no step was taken"
                if not self.losses
                else f"the loss of step {self.first_bad_step} is not finite"
            )
            raise InputError(
                f"save: {what}, so there is nothing to resume from; expected a run with finite "
                "losses. Save before that."
            )
        scaler = self._step.scaler
        _checkpoint.write(
            where,
            {
                "settings": self._settings(),
                "step": len(self.losses),
                "losses": self.losses,
                "skipped_steps": self.skipped_steps,
                "model": dict(self.model.state_dict()),
                "optimizer": self._step.optimizer.state_dict(),
                "scaler": scaler.state_dict() if scaler is not None else {},
                "generators": self._generators.states,
            },
        )

    def _compare(self, path: Path, content: dict[str, Any]) -> None:
        mine, its = self._settings(), content["settings"]
        other = [
            f"{name}={its.get(name)!r} (here {value!r})"
            for name, value in mine.items()
            if its.get(name) != value
        ]
        if other:
            raise CheckpointError(
                f"resume: {str(path)!r} was saved with {message_of(', '.join(other))}; expected "
                "the same run. Pass these values, or begin "
                "anew."
            )
        if content["step"] > self.options.steps:
            raise CheckpointError(
                f"resume: {str(path)!r} is at step {content['step']}, the run ends at "
                f"{self.options.steps}; expected a longer run. "
                f"Pass for example steps={content['step'] + 100}."
            )

    def _restore(self, path: Path, content: dict[str, Any]) -> None:
        try:
            self._generators.restore(content["generators"])
        except (RuntimeError, TypeError, IndexError) as error:
            raise CheckpointError(
                f"resume: {str(path)!r} holds an invalid state of a random generator ({error}). "
                "Take an earlier one."
            ) from error
        _checkpoint.restore(path, content, self.model, self._step.optimizer, self._step.scaler)
        self.losses = list(content["losses"])
        self._began_at, self._skipped_before = content["step"], content["skipped_steps"]

    # -- what went wrong
    # ----------------------------------------------------------------------------------------

    def _spoilt_items(self, number: int) -> int:
        """How many items of a step's batch are not finite numbers in the run's precision."""
        import torch

        o = self.options
        inputs, _ = self.task.train[
            torch.from_numpy(
                next(iter(Order(len(self.task.train), o.batch_size, o.seed, number, number + 1)))
            )
        ]
        if not inputs.is_floating_point():
            return 0
        held = inputs.to(self._step.dtype or self._step.autocast_dtype or inputs.dtype)
        return int((~torch.isfinite(held)).flatten(1).any(1).sum())

    def _what_went_wrong(self, broken: bool) -> list[Note | None]:
        """Return notes on a run that ended and yet learned nothing."""
        scaler, steps = self._step.scaler, len(self.losses)
        notes: list[Note | None] = []
        if scaler is not None and steps and not broken:
            notes.append(
                left_out_note(self.options, self.skipped_steps, steps, float(scaler.get_scale()))
            )
        if not broken and steps:
            targets = getattr(self.task.train, "targets", None)
            guessing = math.log(max(2, int(targets.max()) + 1)) if targets is not None else 0.0
            notes.append(rising_note(self.options, self.losses, guessing, self._own_optimizer))
        return notes

    # -- what it amounts to
    # -------------------------------------------------------------------------------------

    def evaluate(self) -> Accuracy:
        """Return the accuracy on the test now, in the arithmetic that the weights are in."""
        with _settings.switches(self.options.precision, self.device):
            self.answers = answers_of(self.model, self.task)
        return self.answers.accuracy()

    def _tested(self, notes: list[Note]) -> Accuracy | None:
        """Return the accuracy; a test that fails costs the test, never the run."""
        if not self.losses:
            return None
        try:
            return self.evaluate()
        except GpulabError as error:
            notes.append(Note("skipped", f"there is no accuracy: {error}"))
            return None

    def result(self, ended: str | None = None) -> FitResult:
        """Return the result so far.

        Parameters
        ----------
        ended : str, optional
            "stopped" or "interrupted"; None finds out whether the run finished, diverged, or stands
            in the middle ("stopped").
        """
        o, bad, notes = self.options, self.first_bad_step, list(self.notes)
        accuracy = self._tested(notes)
        broken = bad is not None or (accuracy is not None and not math.isfinite(accuracy.loss))
        if broken:
            ended = "diverged"
            spoilt = self._spoilt_items(bad) if bad is not None else 0
            notes.append(
                diverged_note(
                    o,
                    self.losses,
                    bad,
                    own_optimizer=self._own_optimizer,
                    spoilt=spoilt,
                    whole=self._whole,
                )
            )
        elif ended is None:
            ended = "finished" if len(self.losses) >= o.steps else "stopped"
        notes += [note for note in self._what_went_wrong(broken) if note is not None]
        rate, span, reason = self._meter.rate(o.batch_size)
        if span is None and reason is not None:
            notes.append(Note("no-interval", reason))
        unknown = self._followed.note()
        if unknown is not None:
            notes.append(unknown)
        scaler, times = self._step.scaler, np.array(self._meter.step_seconds)
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
            first_step_seconds=self._meter.first_step_seconds,
            phase_seconds=self._meter.phase_seconds,
            peak_bytes=self._followed.peak_bytes,
            peak_by_category=self._followed.by_category,
            skipped_steps=self.skipped_steps,
            final_scale=float(scaler.get_scale()) if scaler is not None else fixed,
            total_seconds=self._meter.total_seconds,
            notes=tuple(notes),
            evidence=Evidence.measured(self.device.name, samples=len(times) or None),
            environment=devices.environment(self.device),
        )


def _all_finite(parameters: list[Any]) -> bool:
    import torch

    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)
