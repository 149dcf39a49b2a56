"""Train a task in one call, under one seed or several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from gpulab import _given, _interrupts, devices
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.training import backend_switches
from gpulab.training._run import Run
from gpulab.training.data_tasks import Answers, Task, accuracy_of, answers_of, check_seed
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
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
    **options: Any,
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
    run = Run(task, model=model, device=device, clock=clock, precision=precision, **options)
    try:
        # the test too: an interrupt in its midst would lose the run
        with _interrupts.deferred() as interrupt:
            return _driven(run, report, asked, interrupt)
    finally:
        run.close()


def _driven(
    run: Run,
    report: Callable[[float, str], None] | None,
    stop: Callable[[], bool] | None,
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
        As in ``fit``, except ``model`` and ``seed``: each seed has its own.

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
    own = sorted({"model", "seed"} & set(options))
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
