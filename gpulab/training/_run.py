"""A run of training that goes on step by step: what ``fit`` and ``race`` drive."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpulab import _given, devices
from gpulab.errors import GpulabError, InputError
from gpulab.evidence import Evidence, Note
from gpulab.memory.results import CATEGORIES
from gpulab.training import _feed, _settings
from gpulab.training._evaluate import evaluate
from gpulab.training._meter import Meter
from gpulab.training._options import settle
from gpulab.training._step import Step, explain
from gpulab.training._tasks import Task, task
from gpulab.training.results import Accuracy, FitResult

_TRACED_STEP = 1  # the second: the optimizer's state is there from its start
_PARTED_EVERY = 4  # on an accelerator, one stretch of so many is timed part by part


class Run:
    """One training run, taken as many steps at a time as the caller likes.

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
    options : Options
        What this device follows of what was asked.
    losses : list of float
        One a step.

    Raises
    ------
    InputError, DeviceError, OutOfMemoryError
        As ``training.fit``.
    """

    def __init__(
        self, task: str | Task, *, model: Any = None, device: Any = None, precision: str = "float32", batch_size: int | None = None,
        epochs: int | None = None, steps: int | None = None, learning_rate: float | None = None, optimizer: Any = "adam",
        accumulate: int = 1, checkpoint: bool = False, compile: bool = False, channels_last: bool = False, fused: bool | None = None,
        workers: int = 0, prefetch: int = 0, pinned: bool = False, cuda_graph: bool = False, loss_scale: Any = None,
        clip: float | None = None, seed: int = 0, clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        import torch

        self.task = _task(task)
        clock = _given.clock("fit", clock) or time.perf_counter
        if model is not None and not isinstance(model, torch.nn.Module):
            raise InputError(f"fit: model is a {type(model).__name__}; expected a torch.nn.Module or None. Pass task.make_model(seed).")
        settled = settle(
            self.task, device=device, precision=precision, batch_size=batch_size, epochs=epochs, steps=steps,
            learning_rate=learning_rate, optimizer=optimizer, accumulate=accumulate, checkpoint=checkpoint, compile=compile,
            channels_last=channels_last, fused=fused, workers=workers, prefetch=prefetch, pinned=pinned, cuda_graph=cuda_graph,
            loss_scale=loss_scale, clip=clip, seed=seed,
        )  # fmt: skip
        self._step = Step(self.task, settled, self.task.make_model(seed) if model is None else model)
        self.options, self.device, self.notes = settled.options, settled.device, settled.notes
        self.losses: list[float] = []
        self._generators = _settings.Generators(seed, self.device)
        self._meter = Meter(clock, self.device.synchronize, waiting_costs=not self.device.is_cpu)
        self._batches: Iterator[Any] | None = None
        self._stretches = 0
        self._began_at = 0
        self._memory: dict[str, int] | None = None
        self._followed = 0

    @property
    def model(self) -> Any:
        """The model, on the run's device."""
        return self._step.model

    @property
    def first_bad_step(self) -> int | None:
        """The first step whose loss is not finite."""
        return next((number for number, loss in enumerate(self.losses) if not math.isfinite(loss)), None)

    @property
    def is_over(self) -> bool:
        """Whether all steps were taken, or the loss is no longer a number."""
        return len(self.losses) >= self.options.steps or self.first_bad_step is not None

    def advance(self, steps: int = 1) -> list[float]:
        """Take so many steps (fewer where the run ends before), wait for the device, and return their losses.

        Raises
        ------
        OutOfMemoryError, DeviceError, InputError
            If a step fails; the losses until then are kept.
        """
        if self.is_over:
            return []
        reached = len(self.losses)
        steps = min(steps, self.options.steps - reached)
        first, traced = reached == self._began_at, reached <= _TRACED_STEP < reached + steps or self.options.steps == 1
        if first or traced:
            steps = 1
            traced = reached == min(_TRACED_STEP, self.options.steps - 1)
        parting = self._stretches % _PARTED_EVERY == 0
        losses: list[Any] = []
        was_training = self.model.training
        self.model.train()
        try:
            with _settings.switches(self.options.precision, self.device), self._generators.in_use():
                self._meter.begin(parting)
                for _ in range(steps):
                    losses.append(self._one(reached + len(losses), traced))
                self._meter.end(steps, first=first, counts=not (first or traced))
        finally:
            self.model.train(was_training)
            self.losses += [float(loss) for loss in losses]
        if not (first or traced):
            self._stretches += 1
        bad = self.first_bad_step
        if bad is not None:
            del self.losses[bad + 1 :]
        return self.losses[reached:]

    def _one(self, number: int, traced: bool) -> Any:
        o = self.options
        try:
            batch = next(self._feed(number))
            self._meter.mark("data")
            batch = self._step.to_device(batch)
            self._meter.mark("copy")
            with self._following(batch) if traced else contextlib.nullcontext():
                return self._step.run(batch, self._meter.mark)
        except GpulabError:
            raise
        except Exception as error:
            raise explain(f"fit: step {number} of {self.task.name} with batch_size={o.batch_size} on {self.device}", error) from error

    def _feed(self, number: int) -> Iterator[Any]:
        if self._batches is None:
            o = self.options
            indices = _feed.order(len(self.task.train), o.batch_size, o.seed, number, o.steps)
            self._batches = _feed.batches(self.task.train, indices)
        return self._batches

    @contextlib.contextmanager
    def _following(self, batch: Any) -> Iterator[None]:
        """Follow the storages of one step."""
        from gpulab.memory._step import optimizer_seen
        from gpulab.memory._tracker import StorageTracker

        tracker = StorageTracker(self.device.torch_type)
        tracker.watch_modules([self.model])
        for state in self._step.optimizer.state.values():
            for value in state.values():
                if hasattr(value, "untyped_storage"):
                    tracker.watch(value, "optimizer")
        tracker.watch_inputs(batch)
        tracker.begin_step()
        try:
            with optimizer_seen(tracker), tracker:
                yield
        finally:
            tracker.close()
        tracker.classify()
        event, _ = tracker.peak()
        alive = tracker.alive_at(event)
        self._memory = {category: sum(t.nbytes for t in alive if t.category == category) for category in CATEGORIES}

    def evaluate(self) -> Accuracy:
        """Return the accuracy on the test now."""
        return evaluate(self.model, self.task)

    def result(self, ended: str | None = None) -> FitResult:
        """Return what was reached.

        Parameters
        ----------
        ended : str, optional
            "stopped" or "interrupted"; None finds out whether the run finished, diverged, or stands in the middle ("stopped").
        """
        o, scaler = self.options, self._step.scaler
        bad = self.first_bad_step
        if ended is None:
            ended = "diverged" if bad is not None else "finished" if len(self.losses) >= o.steps else "stopped"
        rate, span, reason = self._meter.rate(o.batch_size)
        notes = list(self.notes)
        if span is None and reason is not None:
            notes.append(Note("no-interval", reason))
        memory = self._memory or {}
        count = len(self._meter.step_seconds)
        return FitResult(
            task=self.task.name, device=str(self.device), options=o, ended=ended, losses=np.array(self.losses), first_bad_step=bad,
            accuracy=self.evaluate() if self.losses else None, step_seconds=np.array(self._meter.step_seconds), samples_per_second=rate,
            samples_per_second_interval=span, first_step_seconds=self._meter.first_step_seconds, phase_seconds=self._meter.phase_seconds,
            peak_bytes=sum(memory.values()) if self._memory is not None else None, peak_by_category=memory, skipped_steps=0,
            final_scale=float(scaler.get_scale()) if scaler is not None else o.loss_scale if isinstance(o.loss_scale, float) else None,
            total_seconds=self._meter.total_seconds, notes=tuple(notes), evidence=Evidence.measured(self.device.name, samples=count),
            environment=devices.environment(self.device),
        )  # fmt: skip


def _task(given: Any) -> Task:
    return task(given)
