"""Train a task in one call, under one seed or several."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpulab import _given, _interrupts, devices
from gpulab.errors import InputError, StoppedError, message_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.training import _checkpoint, backend_switches
from gpulab.training._evaluate import Answers, accuracy_of, answers_of
from gpulab.training._run import Run
from gpulab.training.data_tasks import Task, check_seed
from gpulab.training.data_tasks import task as find_task
from gpulab.training.results import FitResult, SeedsResult

_MOST_SEEDS = 1000
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
    report = _given.callback("fit", "progress", progress)
    asked = _given.callback("fit", "stop", stop)
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
    try:
        # the test too: an interrupt in its midst would lose the run
        with _interrupts.deferred() as interrupt:
            return _driven(run, report, asked, target, interrupt)
    finally:
        run.close()


def _driven(
    run: Run,
    report: Callable[[float, str], None] | None,
    stop: Callable[[], bool] | None,
    target: Path | None,
    interrupt: _interrupts.Interrupted,
) -> FitResult:
    """Drive a run to its end, or to where the learner ends it; return what was reached."""
    options, notes = run.options, list[Note]()
    stretch = 1 if run.device.is_cpu else _STRETCH
    an_epoch = len(run.task.train) // options.batch_size
    ended = None
    while not run.is_over:
        if interrupt.asked or (stop is not None and stop()):
            ended = "interrupted" if interrupt.asked else "stopped"
            _save(run, target, notes)
            break
        reached = len(run.losses)
        try:
            run.advance(min(stretch, an_epoch - reached % an_epoch))
        except KeyboardInterrupt:
            # a second one, in the middle of a step: the weights may be half updated
            ended = "interrupted"
            break
        now = len(run.losses)
        if report is not None:
            report(now / options.steps, f"step {now} of {options.steps}: loss {run.losses[-1]:.4g}")
        if now % an_epoch == 0 or run.is_over:
            _save(run, target, notes)
    if ended is not None:
        if not run.losses:
            if ended == "interrupted":
                raise KeyboardInterrupt
            raise StoppedError(
                "fit: stopped before the first step; expected it to run. Call it again."
            )
        sentence = (
            f"the run was {ended} after {len(run.losses)} of {options.steps} steps; the result "
            "covers these steps. Run it again for all of them."
        )
        notes.append(Note(ended, sentence))
    result = run.result(ended)
    return dataclasses.replace(result, notes=(*result.notes, *notes))


def _save(run: Run, target: Path | None, notes: list[Note]) -> None:
    """Write the checkpoint; a disk that takes none costs the checkpoint, never the run. A run that
    has no step or has diverged keeps the last good one.
    """
    if target is None or not run.losses or run.first_bad_step is not None:
        return
    try:
        run.save(target)
    except OSError as error:
        sentence = (
            f"no checkpoint was written to {str(target)!r} ({message_of(error, 100)}). Free some "
            "space, or save elsewhere."
        )
        if all(note.sentence != sentence for note in notes):
            notes.append(Note("skipped", sentence))


def over_seeds(
    task: str | Task,
    seeds: int | Iterable[int] = 5,
    *,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    **options: Any,
) -> SeedsResult:
    """Train a task once for each seed, one after the other.

    Parameters
    ----------
    task : str or Task
    seeds : int or iterable of int
        How many (0, 1, 2 ...), or which.
    progress, stop : callable, optional
        As in ``fit``; a stop or an interrupt keeps the complete runs.
    **options
        As in ``fit``, except ``model``, ``seed``, ``save`` and ``resume``: each seed has its own.

    Returns
    -------
    SeedsResult
        Evidence MEASURED.

    Raises
    ------
    InputError
        If the seeds or an option cannot be used.
    StoppedError
        If ``stop`` returned True before the first run had a step.
    KeyboardInterrupt
        If the learner interrupts before that.

    Examples
    --------
    >>> from gpulab import training
    >>> short = {"steps": 2, "batch_size": 4, "device": "cpu"}
    >>> result = training.over_seeds("prose-transformer", seeds=2, **short)
    >>> result.seeds, len(result.accuracy.accuracies)
    ((0, 1), 2)
    """
    job, chosen = find_task(task), _seeds(seeds)
    report = _given.callback("over_seeds", "progress", progress)
    asked = _given.callback("over_seeds", "stop", stop)
    own = sorted({"model", "seed", "save", "resume"} & set(options))
    unknown = sorted(set(options) - set(inspect.signature(fit).parameters))
    if unknown:
        raise InputError(
            f"over_seeds: got {', '.join(unknown)}; expected options of fit. See gl.training.fit? "
            "for their names."
        )
    if own:
        raise InputError(
            f"over_seeds: {', '.join(own)} was given; expected options that all seeds share. Leave "
            "it out, or call fit."
        )
    runs: list[FitResult] = []
    answers: list[Answers] = []
    # between two runs too: an interrupt there would lose those that are complete
    with _interrupts.deferred() as interrupt:

        def is_over() -> bool:
            return interrupt.asked or (asked is not None and asked())

        def step(fraction: float, text: str) -> None:
            if report is not None:
                done = (len(runs) + fraction) / len(chosen)
                report(done, f"seed {len(runs) + 1} of {len(chosen)}, {text}")

        for seed in chosen:
            model = job.make_model(seed)
            try:
                run = fit(job, model=model, seed=seed, progress=step, stop=is_over, **options)
            except (StoppedError, KeyboardInterrupt):  # before this seed's first step
                if runs:
                    break
                if interrupt.asked:
                    raise KeyboardInterrupt from None
                raise
            runs.append(run)
            # as the run's own test: its accuracy stands beside
            with backend_switches.switches(run.options.precision, devices.find(run.device)):
                answers.append(answers_of(model, job))
            if run.ended in ("stopped", "interrupted"):
                break
    done = chosen[: len(runs)]
    notes = []
    if len(done) < len(chosen) or runs[-1].ended in ("stopped", "interrupted"):
        ended = (
            f"the runs ended at seed {done[-1]}, {len(done)} of {len(chosen)}; the result has only "
            "these. Run it again for all of them."
        )
        notes.append(Note("stopped", ended))
    broken = [str(seed) for seed, run in zip(done, runs, strict=True) if run.ended == "diverged"]
    if broken:
        sentence = (
            f"the loss became infinite or nan with seed {', '.join(broken)}; the accuracy on "
            f"{runs[0].task} includes these models."
        )
        notes.append(Note("diverged", sentence))
    evidence = Evidence.measured(runs[0].evidence.device, samples=len(runs))
    return SeedsResult(
        job.name, tuple(done), tuple(runs), accuracy_of(answers), tuple(notes), evidence
    )


def _seeds(seeds: Any) -> list[int]:
    """Return the seeds that a number or a list of them stands for."""
    if _given.is_whole(seeds):
        if not 1 <= seeds <= _MOST_SEEDS:
            raise InputError(
                f"over_seeds: seeds is {seeds}; expected from 1 to {_MOST_SEEDS}, or a list of "
                "seeds. Pass seeds=5."
            )
        return list(range(int(seeds)))
    chosen = _given.items("over_seeds", "seeds", seeds)
    if not chosen or len(chosen) > _MOST_SEEDS:
        raise InputError(
            f"over_seeds: {len(chosen)} seeds; expected from 1 to {_MOST_SEEDS}. Pass seeds=5."
        )
    chosen = [check_seed("over_seeds", seed) for seed in chosen]
    if len(set(chosen)) < len(chosen):
        raise InputError(
            f"over_seeds: seeds {shown(chosen)} contain one twice; expected different ones, since "
            "the same run twice adds no information."
        )
    return chosen
