"""Train a task in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulab import _given, _interrupts
from gpulab.errors import StoppedError, message_of
from gpulab.evidence import Note
from gpulab.training import _checkpoint
from gpulab.training._run import Run
from gpulab.training._tasks import Task
from gpulab.training._words import unfinished_note
from gpulab.training.results import FitResult

_STRETCH = 10  # steps that an accelerator takes between two waits


def fit(
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
    save: Any = None,
    resume: Any = None,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> FitResult:
    """Train a task and return what it learned, how fast, in which memory, and how it ended.

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
        None takes the best there is.
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
        Parts that each batch is split into; their gradients add up to the batch's before the one
        update. Batch norm sees the parts.
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
    workers : int
        Processes that prepare batches; 0 prepares them here.
    prefetch : int
        Batches prepared ahead: by each worker, or by a thread of this process, which also copies
        them.
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
    save, resume : path, optional
        Where to write a checkpoint (atomically), and from which one to continue, with losses equal
        to those of one long run.
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
        says which of them did.

    Raises
    ------
    InputError
        If an argument cannot be used, or a step of the model raises.
    OutOfMemoryError, DeviceError
        If a step does not fit into memory, or there is no such device.
    CheckpointError
        If the file to resume from is missing, damaged, or of another run.
    StoppedError
        If ``stop`` returned True before the first step.
    KeyboardInterrupt
        If the learner interrupts before the first step.
    MissingLibraryError
        If the task's data comes with a library that is not installed.

    Examples
    --------
    >>> from gpulab import training
    >>> result = training.fit("prose-transformer", steps=2, batch_size=4, device="cpu")
    >>> result.ended, result.steps
    ('finished', 2)
    """
    report, asked = (
        _given.callback("fit", "progress", progress),
        _given.callback("fit", "stop", stop),
    )
    target = None if save is None else _checkpoint.path_of("fit", "save", save)
    run = Run(
        task,
        model=model,
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
        resume=resume,
        clock=clock,
    )
    driver = _Driver(run, report, asked, target)
    try:
        # the test too: an interrupt in its midst would lose the run
        with _interrupts.deferred() as interrupt:
            return driver.result(driver.drive(interrupt))
    finally:
        run.close()


class _Driver:
    """Drives a run to its end, or to where the learner ends it."""

    def __init__(
        self,
        run: Run,
        report: Callable[[float, str], None] | None,
        stop: Callable[[], bool] | None,
        target: Path | None,
    ) -> None:
        self.run, self.report, self.stop, self.target = run, report, stop, target
        self.notes: list[Note] = []

    def drive(self, interrupt: _interrupts.Interrupted) -> str | None:
        """Take the steps; returns "stopped" or "interrupted" where the run was ended from
        outside.
        """
        run, options = self.run, self.run.options
        stretch = 1 if run.device.is_cpu else _STRETCH
        an_epoch = len(run.task.train) // options.batch_size
        while not run.is_over:
            ended = (
                "interrupted"
                if interrupt.asked
                else "stopped"
                if self.stop is not None and self.stop()
                else None
            )
            if ended is not None:
                self._refuse_nothing(ended)
                self._save()
                return ended
            reached = len(run.losses)
            try:
                run.advance(min(stretch, an_epoch - reached % an_epoch))
            except KeyboardInterrupt:
                # a second one, in the middle of a step: the weights may be half updated
                self._refuse_nothing("interrupted")
                return "interrupted"
            if self.report is not None:
                now = len(run.losses)
                self.report(
                    now / options.steps, f"step {now} of {options.steps}: loss {run.losses[-1]:.4g}"
                )
            if len(run.losses) % an_epoch == 0 or run.is_over:
                self._save()
        return None

    def _refuse_nothing(self, ended: str) -> None:
        if self.run.losses:
            return
        if ended == "interrupted":
            raise KeyboardInterrupt
        raise StoppedError("fit: stopped before the first step; expected it to run. Call it again.")

    def _save(self) -> None:
        """Write the checkpoint; a disk that takes none costs the checkpoint, never the run. A run
        that diverged keeps the last good one.
        """
        if self.target is None or self.run.first_bad_step is not None:
            return
        try:
            self.run.save(self.target)
        except OSError as error:
            sentence = (
                f"no checkpoint was written to {str(self.target)!r} "
                f"({message_of(error, 100)}). Free some space, or save elsewhere."
            )
            if all(note.sentence != sentence for note in self.notes):
                self.notes.append(Note("skipped", sentence))

    def result(self, ended: str | None) -> FitResult:
        """Return what was reached, with a note on how it ended."""
        if ended is not None:
            self.notes.append(unfinished_note(ended, len(self.run.losses), self.run.options))
        result = self.run.result(ended)
        return dataclasses.replace(result, notes=(*result.notes, *self.notes))
