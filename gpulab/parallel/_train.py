"""Train one model over several ranks, beside the same training in one process."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab import _given, models, training
from gpulab.errors import InputError, kind_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.parallel import _train_step
from gpulab.parallel._cluster import Ranks
from gpulab.parallel._observe import CollectiveCall, usual_algorithm
from gpulab.parallel._strategies import Asked, Strategy, positions_of, strategy_named
from gpulab.parallel._timeline import timeline
from gpulab.parallel._train_step import TrainingJob, TrainingOutcome
from gpulab.parallel.results import RankReport, StrategyResult
from gpulab.parallel.script import fingerprint
from gpulab.training.data_tasks import Task, check_seed

# What losses and parameters may differ by, relative, after some tens of steps. Sums of gradients
# run in another order with other ranks, so the last bits differ, and an optimizer that divides by a
# gradient's own size (Adam) carries them on. Measured: docs/measurements.md, "Strategies".
TOLERANCES = {"float64": 1e-9, "float32": 1e-3}
_MOST_STEPS = 10_000
_MOST_REFERENCES = 8
_references: dict[str, TrainingOutcome] = {}


def train(
    ranks: Ranks,
    strategy: Any = "ddp",
    *,
    task: str | Task = "prose-transformer",
    model: Any = None,
    steps: int = 20,
    batch_size: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adam",
    learning_rate: float | None = None,
    microbatches: int = 4,
    bucket_bytes: int = 64 * 2**10,
    seed: int = 0,
) -> StrategyResult:
    """Train over ranks, and in one process for comparison, from the same weights on the same
    batches.

    Parameters
    ----------
    ranks : Ranks
        A started cluster.
    strategy : str, Strategy or callable
        One of ``strategies()``; or a function that takes a model after its backward pass on this
        rank's part of the batch and makes its gradients those of the whole batch: data parallel by
        your own hand.
    task : str or training.Task
        The source of the data, the loss and (without ``model``) the model.
    model : torch.nn.Module, optional
        Trained in place of the task's; copied, so yours stays as it is.
    steps : int
        At least 3. Time and bytes are measured in the last ones, memory in one before them.
    batch_size : int, optional
        Batch of a whole step, over all ranks; the task's by default.
    dtype : "float32" or "float64"
        Type of parameters and arithmetic. In float64 the comparison with one process is the most
        precise.
    optimizer : "adam", "adamw", "sgd" or "sgd-momentum"
    learning_rate : float, optional
        The task's by default, which fits Adam.
    microbatches : int
        Parts that a rank takes one after another, for "ddp-no-sync" and the pipelines.
    bucket_bytes : int
        About how many bytes of gradients travel together in "ddp" and its relatives. PyTorch's own
        25 MiB would put a model of this size into one bucket, which leaves nothing to overlap.
    seed : int
        Of weights and batches.

    Returns
    -------
    StrategyResult
        MEASURED. If the losses differ from those of one process, ``agrees`` is False and a note
        says from which step on, or that the single process diverged too.

    Raises
    ------
    InputError
        If the strategy cannot split the batch or the model, or the model draws random numbers,
        which would differ between ranks.
    RankError
        If a rank failed, died, or waited in a collective until the timeout.

    Notes
    -----
    The single process is rank 0 alone. Its run is kept for the next call with the same model, data
    and options.
    """
    chosen = strategy_named(strategy)
    job = training_job(
        strategy,
        task,
        model,
        steps=steps,
        batch_size=batch_size,
        dtype=dtype,
        optimizer=optimizer,
        learning_rate=learning_rate,
        microbatches=microbatches,
        bucket_bytes=bucket_bytes,
        seed=seed,
    )
    if not isinstance(ranks, Ranks):
        raise InputError(
            f"train: ranks is {shown(ranks)}; expected a started cluster. Use `with "
            "gl.parallel.cluster(n=2) as ranks:`."
        )
    source = training.task(task)
    whole = source.make_model(job.seed) if model is None else model
    _refuse_incomparable(whole)
    positions = positions_of(source.train.inputs)
    chosen.check(Asked(whole, ranks.n, job.batch_size, job.microbatches, positions))
    single = _single_process(ranks, job, whole)
    outcomes = ranks.run(_train_step.train_on_rank, job, chosen.build, strategy, model)
    return _result(chosen, job, whole, single, outcomes, len(set(ranks.hosts)))


def training_job(strategy: Any, task: Any, model: Any, **options: Any) -> TrainingJob:
    """Return what every rank has to do, checked.

    Raises
    ------
    InputError
        If one of the values cannot be used.
    """
    import torch

    source = training.task(task)
    if model is not None and not isinstance(model, torch.nn.Module):
        raise InputError(
            f"train: model is {kind_of(model)}; expected a torch.nn.Module or None. Pass "
            "gl.networks.transformer()."
        )
    _given.word("train", "dtype", options["dtype"], TOLERANCES)
    _given.word("train", "optimizer", options["optimizer"], _train_step.OPTIMIZERS)
    options["seed"] = check_seed("train", options["seed"])
    if options["batch_size"] is None:
        options["batch_size"] = source.batch_size
    for name, least, most in (
        ("steps", _train_step.FEWEST_STEPS, _MOST_STEPS),
        ("microbatches", 1, len(source.train)),
        ("bucket_bytes", 1, 2**40),
        ("batch_size", 1, len(source.train)),
    ):
        options[name] = _given.whole("train", name, options[name], least, most)
    rate = options["learning_rate"]
    if rate is not None and (not _given.is_finite(rate) or rate <= 0):
        raise InputError(
            f"train: learning_rate is {shown(rate)}; expected a finite number above 0. Pass "
            "learning_rate=1e-3."
        )
    options["learning_rate"] = source.learning_rate if rate is None else float(rate)
    # else the ranks would load another of its name
    ours = source.name in training.tasks() and training.task(source.name) == source
    return TrainingJob(
        # by its name where the ranks know it
        strategy=strategy if isinstance(strategy, str) else strategy_named(strategy),
        task=source.name if ours else source,
        model=model,
        **options,
    )


def _refuse_incomparable(model: Any) -> None:
    """Refuse what no strategy could compare.

    Raises
    ------
    InputError
        If the model draws random numbers, or has nothing to train.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            "train: the model has no parameter that requires a gradient; expected at least one. "
            "Unfreeze a layer."
        )
    for name, module in model.named_modules():
        attribute = "p" if "Dropout" in type(module).__name__ else "dropout"
        share = getattr(module, attribute, None)
        if isinstance(share, float) and share > 0:
            raise InputError(
                f"train: {name or type(module).__name__} drops values at random (p={share:g}), "
                "different ones on each rank; expected a model without dropout, so that ranks and "
                "one process can be compared. Build it with dropout=0."
            )


def _single_process(ranks: Ranks, job: TrainingJob, model: Any) -> TrainingOutcome:
    """Return what one process computes: kept from an earlier call with everything that its numbers
    depend on, or trained now on rank 0.
    """
    key = fingerprint(
        model,
        job.task,
        job.steps,
        job.batch_size,
        job.dtype,
        job.optimizer,
        job.learning_rate,
        job.seed,
    )
    kept = _references.pop(key, None)
    if kept is None:
        # Without the strategy: its code may lie in a module that only the call on the ranks
        # carries.
        plain = dataclasses.replace(job, strategy="single")
        kept = ranks.run(_train_step.train_single_process, plain, model)[0]
        if len(_references) >= _MOST_REFERENCES:
            del _references[next(iter(_references))]
    _references[key] = kept
    return kept


def _result(
    chosen: Strategy,
    job: TrainingJob,
    model: Any,
    single: TrainingOutcome,
    outcomes: Sequence[TrainingOutcome],
    machines: int,
) -> StrategyResult:
    environment, count = outcomes[0].environment, len(outcomes)
    losses = np.sum([outcome.shares for outcome in outcomes], axis=0)
    evidence = Evidence.measured(environment.device)
    noted = [outcome.notes for outcome in outcomes if outcome.notes is not None]
    lanes = timeline(f"{chosen.name} on {count} rank{'s' if count != 1 else ''}", noted, evidence)
    result = StrategyResult(
        strategy=chosen.name,
        ranks=count,
        model=f"{type(model).__name__} on "
        f"{job.task if isinstance(job.task, str) else job.task.name}",
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        dtype=job.dtype,
        optimizer=job.optimizer,
        batch_size=job.batch_size,
        losses=losses,
        single_losses=np.array(single.shares),
        state_difference=_state_difference(single.state, [outcome.state for outcome in outcomes]),
        tolerance=TOLERANCES[job.dtype],
        step_seconds=np.max([outcome.step_seconds for outcome in outcomes], axis=0),
        reports=tuple(
            _report(rank, outcome, len(lanes.steps)) for rank, outcome in enumerate(outcomes)
        ),
        timeline=lanes,
        notes=(),
        evidence=evidence,
        environment=environment,
    )
    notes = []
    if not result.agrees:
        notes.append(_disagreement(result, model, single.state))
    if count == 1:
        words = "There is only one rank, so nothing was split or sent."
        notes.append(Note("skipped", f"{words} Start a cluster of two or more."))
    if machines > 1:
        words = "The ranks are on several machines; their clocks were aligned by exchanging the"
        notes.append(Note("contended", f"{words} time over the network."))
    reason = next((outcome.wire_reason for outcome in outcomes if outcome.wire_reason), None)
    if reason is not None:
        notes.append(Note("skipped", f"Bytes on the wire were not counted: {reason}."))
    return dataclasses.replace(result, notes=tuple(notes))


def _state_difference(single: dict[str, Any], states: Sequence[dict[str, Any]]) -> float:
    """Return the largest difference of a parameter from the single process's, on any rank, over the
    largest parameter.

    nan where a parameter is missing on all ranks, or is not a number.
    """
    if {name for state in states for name in state} != set(single):
        return float("nan")
    largest = max(float(value.abs().max()) for value in single.values())
    differences = [
        float((value.double() - single[name].double()).abs().max())
        for state in states
        for name, value in state.items()
    ]
    return float(np.max(differences)) / largest


def _report(rank: int, outcome: TrainingOutcome, steps: int) -> RankReport:
    """Return one rank's memory and bytes, per step."""
    calls = outcome.notes.calls if outcome.notes is not None else ()
    counts = collections.Counter(call.name for call in calls)
    payload: collections.Counter[str] = collections.Counter()
    for call in calls:
        payload[call.name] += call.payload_bytes
    return RankReport(
        rank=rank,
        peak_bytes=outcome.peak_bytes,
        peak_by_category=outcome.peak_by_category,
        most_by_category=outcome.most_by_category,
        calls={name: value // steps for name, value in counts.items()},
        payload_bytes={name: value // steps for name, value in payload.items()},
        ring_bytes=round(sum(_ring_bytes(rank, call) for call in calls) / steps),
        wire_bytes=None if outcome.wire_bytes is None else round(outcome.wire_bytes / steps),
    )


def _ring_bytes(rank: int, call: CollectiveCall) -> float:
    """Return what a rank sends in a collective, counted as a ring where there is one."""
    if call.name in ("send", "recv", "send and recv"):
        return float(call.input_bytes)
    # Of a gather and a scatter only the root sees the whole; the others see their part.
    parts = len(call.group) if call.name in ("gather", "scatter") and rank != call.root else 1
    cost = models.collective_cost(
        call.name, parts * call.payload_bytes, len(call.group), usual_algorithm(call.name)
    )
    root = call.group.index(call.root) if call.root in call.group else 0
    return cost.sent_bytes(call.group.index(rank), root)


def _disagreement(result: StrategyResult, model: Any, single_state: dict[str, Any]) -> Note:
    """Return from where on the ranks and one process have other numbers, and why; where both have
    none, nothing is said of the ranks.
    """
    import torch

    wrong = np.flatnonzero(~(result.loss_differences <= result.tolerance))
    # the first step at which one process has no finite loss, or that after the last
    lost = int(np.append(np.flatnonzero(~np.isfinite(result.single_losses)), result.steps)[0])
    diverged = lost < result.steps or not all(
        bool(value.isfinite().all()) for value in single_state.values()
    )
    if diverged and (not len(wrong) or wrong[0] >= lost):
        when = f"at step {lost}" if lost < result.steps else "after the last step"
        return Note(
            "diverged",
            f"The single process also has numbers that are infinite or nan {when}, so nothing can "
            "be compared from there on. Pass a smaller learning_rate.",
        )
    since = f"from step {wrong[0]} on" if len(wrong) else "in no step, but the parameters differ"
    normed = any(
        isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules()
    )
    why = (
        "Batch norm takes its mean over a rank's part of the batch: use SyncBatchNorm (on GPUs) or "
        "another norm."
        if normed
        else "Check what is averaged, and over how many ranks or items."
    )
    return Note(
        "disagree",
        f"The losses differ {since} (largest difference {result.loss_difference:.1e}, parameters "
        f"{result.state_difference:.1e}, tolerance {result.tolerance:.0e}): this is not what one "
        f"process computes. {why}",
    )
