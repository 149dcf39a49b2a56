"""Train a task in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab import _given
from gpulab.errors import StoppedError
from gpulab.training._run import Run
from gpulab.training._tasks import Task
from gpulab.training.results import FitResult

_STRETCH = 10  # steps that an accelerator takes between two waits


def fit(
    task: str | Task, *, model: Any = None, device: Any = None, precision: str = "float32", batch_size: int | None = None,
    epochs: int | None = None, steps: int | None = None, learning_rate: float | None = None, optimizer: Any = "adam",
    accumulate: int = 1, checkpoint: bool = False, compile: bool = False, channels_last: bool = False, fused: bool | None = None,
    workers: int = 0, prefetch: int = 0, pinned: bool = False, cuda_graph: bool = False, loss_scale: Any = None,
    clip: float | None = None, seed: int = 0, save: Any = None, resume: Any = None,
    progress: Callable[[float, str], None] | None = None, stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> FitResult:  # fmt: skip
    """Train a task and return what it learned, how fast, in which memory, and how it ended.

    A feature that the device lacks is left out with a note, and the next best runs. The caller's random generators and PyTorch's
    switches are as before afterwards.

    Parameters
    ----------
    task : str or Task
        One of ``training.tasks()``.
    model : torch.nn.Module, optional
        Trained in place, on the run's device and in the precision's dtype; None makes ``task.make_model(seed)``.
    device : optional
        None takes the best there is.
    precision : str
        "float32" (TF32 off), "tf32", "bfloat16" or "float16" (autocast), "pure-bfloat16" or "pure-float16" (parameters converted).
    batch_size : int, optional
        Items that one update learns from, up to all of the training data; None takes the task's.
    epochs, steps : int, optional
        How long: one of the two; None takes the task's epochs. An epoch leaves out the items that fill no batch.
    learning_rate : float, optional
        None takes the task's, which is for Adam.
    optimizer : str or callable
        A name of ``torch.optim`` in any case, "sgd-momentum", or a function from parameters to an optimizer, which then decides
        the learning rate itself.
    accumulate : int
        Parts that each batch is split into; their gradients add up to the batch's before the one update. Batch norm sees the parts.
    checkpoint : bool
        Recompute each direct child of the model (of a ModuleList, each member) in the backward pass.
    compile : bool
        Train ``torch.compile(model)``.
    channels_last : bool
        Keep images and convolutions' weights with the channels last.
    fused : bool or None
        True: the optimizer's fused form; False: one operator for each parameter; None: PyTorch's choice.
    workers : int
        Processes that prepare batches; 0 prepares them here.
    prefetch : int
        Batches prepared ahead: by each worker, or by a thread of this process, which also copies them.
    pinned : bool
        Copy from page-locked memory, without waiting.
    cuda_graph : bool
        Record one step as a CUDA graph and replay it.
    loss_scale : "dynamic", float or None
        None: "dynamic" where the precision needs it (float16), else none. A number stays as it is, and no step is left out; 1 is unscaled.
    clip : float, optional
        The largest norm of all gradients together.
    seed : int
        Of the weights and the order of the batches. The same seed and options give the same losses, bit for bit, on the same machine.
    save, resume : path, optional
        Where to write a checkpoint, whole or not at all; from which one to go on, with losses equal to those of one long run.
    progress : callable, optional
        ``progress(fraction, text)`` as the run goes on.
    stop : callable, optional
        Asked between steps; True ends the run with what was reached.
    clock : callable, optional
        Returns seconds.

    Returns
    -------
    FitResult
        Evidence MEASURED. A loss that is not finite, an interrupt or a stop ends the run; ``ended`` says which.

    Raises
    ------
    InputError
        If an argument cannot be used, or a step of the model raises.
    OutOfMemoryError, DeviceError
        If a step does not fit, or the device is not there.
    StoppedError
        If ``stop`` asked before the first step.
    MissingLibraryError
        If the task's data come with a library that is not installed.

    Examples
    --------
    >>> from gpulab import training
    >>> result = training.fit("prose-transformer", steps=2, batch_size=4, device="cpu")
    >>> result.ended, result.steps
    ('finished', 2)
    """
    report, asked = _given.callback("fit", "progress", progress), _given.callback("fit", "stop", stop)
    run = Run(
        task, model=model, device=device, precision=precision, batch_size=batch_size, epochs=epochs, steps=steps,
        learning_rate=learning_rate, optimizer=optimizer, accumulate=accumulate, checkpoint=checkpoint, compile=compile,
        channels_last=channels_last, fused=fused, workers=workers, prefetch=prefetch, pinned=pinned, cuda_graph=cuda_graph,
        loss_scale=loss_scale, clip=clip, seed=seed, clock=clock,
    )  # fmt: skip
    stretch = 1 if run.device.is_cpu else _STRETCH
    ended = None
    while not run.is_over:
        if asked is not None and asked():
            if not run.losses:
                raise StoppedError("fit: stopped before the first step; expected it to run. Call it again.")
            ended = "stopped"
            break
        run.advance(stretch)
        if report is not None:
            report(len(run.losses) / run.options.steps, f"step {len(run.losses)} of {run.options.steps}: loss {run.losses[-1]:.4g}")
    return run.result(ended)
