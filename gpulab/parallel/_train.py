"""Run a strategy on real ranks: train one model, and compare with the same training in one process;
or run a pipeline's schedule with passes that take a set time, so that its bubble can be measured on
any machine.

``train`` plans, and compares the results. ``train_on_rank`` runs inside each rank: it takes the
same batches as one process, and records each step. The steps fall into three parts. The first two
are followed storage by storage, which slows them. Of the last ones, the collectives and the
activities of the rank's thread are returned. The steps in between only train. ``Ranks.run``
observes the collectives of all of them.

In a schedule each rank is a stage. A pass does real arithmetic on a small network and then waits
until its set time is over. Without this wait, four stages on two cores would take turns on the
cores, and the measured time would depend on the cores. The order, the messages and the waits for
other ranks are PyTorch's own (``torch.distributed.pipelining``); only the uncut batch is sent by
hand, as people write it first.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gpulab import _validate, devices, models, training
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Environment, Evidence, Note
from gpulab.memory.step_memory import StorageTracker
from gpulab.models import PIPELINE_SCHEDULES, PassKind, StagePass, StageSchedule, pipeline_schedule
from gpulab.parallel._cluster import Ranks, require_cluster
from gpulab.parallel._rank import AGENT, machine
from gpulab.parallel._rank_memory import RankTracker, follow_steps
from gpulab.parallel._strategies import (
    STRATEGIES,
    OneAfterAnother,
    Pipeline,
    Setting,
    SingleProcess,
    Stages,
    refuse_unsplit,
)
from gpulab.parallel.rank_results import (
    RANK_CATEGORIES,
    CollectiveCall,
    RankReport,
    RankSpan,
    RankTimeline,
    ScheduleRun,
    StrategyResult,
)
from gpulab.parallel.scaling_steps import own_device
from gpulab.training.backend_switches import switches
from gpulab.training.data_tasks import SEED, Task, order
from gpulab.units import plural

# The largest relative difference of losses and parameters that is accepted after some tens of
# steps. On another number of ranks, gradients are summed in another order, so the last bits differ,
# and an optimizer that divides by a gradient's own size (Adam) passes the difference on. Measured:
# docs/measurements.md, "Strategies".
TOLERANCES = {"float64": 1e-9, "float32": 1e-3}
_MOST_STEPS = 10_000
# From each name to the class and its options beside the learning rate.
OPTIMIZERS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "sgd": (torch.optim.SGD, {}),
    "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9}),
}
OBSERVED = 3  # steps at the end, if there are that many
_FOLLOWED = 2  # steps at the beginning; the second one's memory counts


@_validate.arguments(
    ranks=require_cluster,
    strategy=partial(_validate.word, known=STRATEGIES),
    steps=partial(_validate.whole, low=_FOLLOWED + 1, high=_MOST_STEPS),
    dtype=partial(_validate.word, known=TOLERANCES),
    optimizer=partial(_validate.word, known=OPTIMIZERS),
    learning_rate=partial(_validate.positive, advice="Pass learning_rate=1e-3."),
    bucket_bytes=partial(_validate.whole, low=1, high=2**40),
    seed=SEED,
    model=partial(
        _validate.instance,
        kind=torch.nn.Module,
        expected="a torch.nn.Module or None. Pass gl.networks.transformer().",
    ),
)
def train(
    ranks: Ranks,
    strategy: str = "ddp",
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
    """Train a model over ranks, and for comparison in one process, from the same weights and on the
    same batches.

    Parameters
    ----------
    ranks : Ranks
        A started cluster.
    strategy : str
        One of ``strategies()``.
    task : str or training.Task
        The source of the data, the loss and (without ``model``) the model.
    model : torch.nn.Module, optional
        Trained in place of the task's; copied, so yours stays as it is.
    steps : int
        At least 3. Memory is measured in the second one, time and bytes in the last ones.
    batch_size : int, optional
        Batch of a whole step, over all ranks; the task's by default.
    dtype : "float32" or "float64"
        Type of parameters and arithmetic. In float64 the comparison with one process is the most
        precise.
    optimizer : "adam", "adamw", "sgd" or "sgd-momentum"
    learning_rate : float, optional
        The task's by default, which fits Adam.
    microbatches : int
        For the pipelines, the number of parts of the batch that a rank takes one after another.
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
    The single process is rank 0 alone.
    """
    source = training.task(task)
    items = len(source.train)
    batch_size = source.batch_size if batch_size is None else batch_size
    job = TrainingJob(
        strategy,
        task,
        steps,
        _validate.whole("train", "batch_size", batch_size, 1, items),
        dtype,
        optimizer,
        source.learning_rate if learning_rate is None else learning_rate,
        _validate.whole("train", "microbatches", microbatches, 1, items),
        bucket_bytes,
        seed,
    )
    whole = source.make_model(job.seed) if model is None else model
    _refuse_incomparable(whole)
    refuse_unsplit("train", strategy, whole, ranks.n, job.batch_size, job.microbatches)
    single = ranks.run(train_single_process, job, model)[0]
    return _result(ranks, job, whole, single, ranks.run(train_on_rank, job, model))


def _refuse_incomparable(model: Any) -> None:
    """Refuse a model whose training on ranks cannot be compared with that in one process.

    Raises
    ------
    InputError
        If the model draws random numbers.
    """
    for name, module in model.named_modules():
        attribute = "p" if "Dropout" in type(module).__name__ else "dropout"
        share = getattr(module, attribute, None)
        if isinstance(share, float) and share > 0:
            raise InputError(
                f"train: {name or type(module).__name__} drops values at random (p={share:g}), "
                "different ones on each rank; expected a model without dropout, so that ranks and "
                "one process can be compared. Build it with dropout=0."
            )


def _result(
    ranks: Ranks,
    job: TrainingJob,
    model: Any,
    single: tuple[list[float], dict[str, Any]],
    outcomes: Sequence[TrainingOutcome],
) -> StrategyResult:
    environment, (single_losses, state) = outcomes[0].environment, single
    evidence, notes = Evidence.measured(environment.device), [each.notes for each in outcomes]
    result = StrategyResult(
        strategy=job.strategy,
        ranks=ranks.n,
        model=f"{type(model).__name__} on {training.task(job.task).name}",
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        dtype=job.dtype,
        losses=np.sum([outcome.shares for outcome in outcomes], axis=0),
        single_losses=np.array(single_losses),
        state_difference=_state_difference(state, [outcome.state for outcome in outcomes]),
        tolerance=TOLERANCES[job.dtype],
        step_seconds=np.max([outcome.step_seconds for outcome in outcomes], axis=0),
        reports=tuple(outcome.report for outcome in outcomes),
        timeline=timeline(f"{job.strategy} on {plural(ranks.n, 'rank')}", notes, evidence),
        notes=(),
        evidence=evidence,
        environment=environment,
    )
    if not result.agrees:
        result = replace(result, notes=(_disagreement(result, state),))
    return result


def _state_difference(single: dict[str, Any], states: Sequence[dict[str, Any]]) -> float:
    """Return the largest difference between a parameter on any rank and in the single process,
    divided by the largest parameter.

    It is nan if a parameter is missing on all ranks, or is nan.
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


def _disagreement(result: StrategyResult, single_state: dict[str, Any]) -> Note:
    """Return the note that says from which step on the ranks and the single process differ, and
    why. If the single process diverged first, the note says only that.
    """
    wrong = np.flatnonzero(~(result.loss_differences <= result.tolerance))
    # the first step at which the single process's loss is not finite; the number of steps if none
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
    what = f"losses differ from step {wrong[0]} on" if len(wrong) else "final parameters differ"
    return Note(
        "disagree",
        f"The {what} (largest difference of losses {result.loss_difference:.1e}, of parameters "
        f"{result.state_difference:.1e}, tolerance {result.tolerance:.0e}): this is not what one "
        "process computes. Batch norm, which takes its mean over a rank's part of the batch, needs "
        "SyncBatchNorm (on GPUs) or another norm; else check what is averaged, and over how many "
        "ranks or items.",
    )


# -- the lanes of ranks

# A collective begins for each rank when that rank enters it, but no data can move until the ranks
# that it needs have entered too. A rank's time in a collective therefore has two parts. Until the
# last rank that it needs has entered, the time counts as idle if the rank's own thread waits, and
# as nothing if the thread goes on computing. From then on it counts as communication.
Interval = tuple[float, float]
# Pieces shorter than a microsecond come from reading the clock twice.
_SHORTEST_SECONDS = 1e-6


@dataclass(frozen=True)
class RankNotes:
    """The records of one rank from its observed steps; times are on its own clock.

    Attributes
    ----------
    phases : tuple of (name, begin, end)
        The activities of its thread, waits included.
    calls : tuple of CollectiveCall
    waits : tuple of (number of the call, begin, end)
        When the thread waited for calls.
    ends_in_wait : tuple of float
        As in ``Setting``.
    steps : tuple of float
        When each step began.
    end : float
        When the last step was over.
    ahead_seconds : float
        How far its clock is ahead of rank 0's.
    """

    phases: tuple[tuple[str, float, float], ...]
    calls: tuple[CollectiveCall, ...]
    waits: tuple[tuple[int, float, float], ...]
    ends_in_wait: tuple[float, ...]
    steps: tuple[float, ...]
    end: float
    ahead_seconds: float = 0.0


def timeline(label: str, notes: Sequence[RankNotes], evidence: Evidence) -> RankTimeline:
    """Return the lanes of ranks from their notes, which are in rank order."""
    zero = min(note.steps[0] - note.ahead_seconds for note in notes)
    arrivals = _arrivals(notes)
    spans: list[RankSpan] = []
    for rank, note in enumerate(notes):
        spans += _lanes(rank, note, arrivals[rank], zero + note.ahead_seconds)
    spans.sort(key=lambda span: (span.rank, span.begin_seconds, span.end_seconds))
    steps = tuple(
        min(note.steps[number] - note.ahead_seconds for note in notes) - zero
        for number in range(min(len(note.steps) for note in notes))
    )
    end = max(note.end - note.ahead_seconds for note in notes) - zero
    return RankTimeline(label, len(notes), tuple(spans), steps, end, (), evidence)


def _lanes(rank: int, note: RankNotes, arrivals: Sequence[float], zero: float) -> list[RankSpan]:
    """Return one rank's spans; ``arrivals`` has for each call the time, on the rank's clock, when
    the last rank that the call needs had entered it.
    """
    spans: list[RankSpan] = []
    taken: list[Interval] = []  # by communication, or by a wait
    for call, arrival in zip(note.calls, arrivals, strict=True):
        # A work reports its end on another thread, sometimes only after the wait for it has
        # returned.
        waits = [end for number, _, end in note.waits if number == call.number]
        if call.end_seconds is None:
            continue
        end = min(call.end_seconds, *waits) if waits else call.end_seconds
        # A short message is sent before its receiver asks for it: the system buffers it.
        sent_ahead = call.name == "send" and arrival > end
        begin = call.begin_seconds if sent_ahead else min(max(call.begin_seconds, arrival), end)
        taken.append((begin, end))
        spans.append(
            RankSpan(rank, "communication", call.name, begin - zero, end - zero, call.payload_bytes)
        )
    names = {call.number: call.name for call in note.calls}
    stood = [(begin, end, names[number]) for number, begin, end in note.waits if number in names]
    # the waits that Python did not see: from the last collective of a pass until the pass was over
    last_before = {
        moment: call
        for moment in note.ends_in_wait
        for call in note.calls
        if call.begin_seconds <= moment
    }
    stood += [(call.begin_seconds, moment, call.name) for moment, call in last_before.items()]
    for begin, end, name in sorted(stood):
        # time that two waits share counts only for the first
        for piece in _without((begin, end), taken):
            spans.append(RankSpan(rank, "idle", name, piece[0] - zero, piece[1] - zero))
            taken.append(piece)
    for name, begin, end in note.phases:
        for piece in _without((begin, end), [(begin, end) for begin, end, _ in stood]):
            spans.append(RankSpan(rank, "compute", name, piece[0] - zero, piece[1] - zero))
    return [
        span for span in spans if span.kind == "communication" or span.seconds >= _SHORTEST_SECONDS
    ]


def _arrivals(notes: Sequence[RankNotes]) -> list[list[float]]:
    """Return for each rank and each of its calls when the last rank that the call needs had entered
    it, on the clock of the rank whose call it is.

    Ranks enter the collectives of one group in the same order, so the k-th call on a group is the
    same collective on all its ranks. Messages between two ranks are counted in each direction.
    """
    entered: dict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    keys: list[list[tuple[object, ...]]] = []
    for rank, note in enumerate(notes):
        counts: dict[tuple[object, ...], int] = defaultdict(int)
        mine = []
        for call in note.calls:
            kind = _channel(rank, call)
            key = (*kind, counts[kind])
            counts[kind] += 1
            entered[key][rank] = call.begin_seconds - note.ahead_seconds
            mine.append(key)
        keys.append(mine)
    return [
        [
            # a broadcast needs only its root; no strategy gathers or reduces to one rank
            max(
                moment
                for each, moment in entered[key].items()
                if call.name != "broadcast" or each in (rank, call.root)
            )
            + note.ahead_seconds
            for call, key in zip(note.calls, keys[rank], strict=True)
        ]
        for rank, note in enumerate(notes)
    ]


def _channel(rank: int, call: CollectiveCall) -> tuple[object, ...]:
    if call.name == "send":
        return ("message", rank, call.root)
    if call.name == "recv":
        return ("message", call.root, rank)
    return ("group", call.group, call.name == "send and recv")


def _without(interval: Interval, holes: Iterable[Interval]) -> list[Interval]:
    """Return what is left of an interval outside the holes."""
    rest = [interval]
    for low, high in holes:
        rest = [
            (begin, end)
            for left, right in rest
            for begin, end in ((left, min(right, low)), (max(left, high), right))
            if begin < end
        ]
    return rest


def clock_ahead() -> float:
    """Return how far this rank's clock is ahead of rank 0's, in seconds; called by all ranks at
    once.

    Ranks on one machine share a clock, and 0 is exact. Elsewhere the clocks are read when the ranks
    leave a barrier, which they do within the time that a message takes.
    """
    clocks = [("", 0.0)] * dist.get_world_size()
    dist.barrier()
    dist.all_gather_object(clocks, (machine(), time.perf_counter()))
    return dict(reversed(clocks))[machine()] - clocks[0][1]


# -- what runs in an engine


@dataclass(frozen=True)
class TrainingJob:
    """The work of every rank; ``train`` documents each field."""

    strategy: str
    task: Any
    steps: int
    batch_size: int
    dtype: str
    optimizer: str
    learning_rate: float
    microbatches: int
    bucket_bytes: int
    seed: int


@dataclass(frozen=True)
class TrainingOutcome:
    """The results and records of one rank.

    Attributes
    ----------
    shares : list of float
        The rank's share of each step's mean loss.
    state : dict of str to torch.Tensor
        Parameters by name, on the host.
    environment : Environment
        The rank's device, processor and software.
    step_seconds : list of float
    report : RankReport
    notes : RankNotes
        Of the observed steps.
    """

    shares: list[float]
    state: dict[str, Any]
    environment: Environment
    step_seconds: list[float]
    report: RankReport
    notes: RankNotes


def train_single_process(job: TrainingJob, model: Any) -> tuple[list[float], dict[str, Any]] | None:
    """Train on rank 0 as one process does; return the losses and the parameters, or None on the
    other ranks.
    """
    if dist.get_rank() != 0:
        return None
    with _reproducible(job) as device:
        trainer = SingleProcess(_setting(job, model, device, 0, 1))
        shares = [float(trainer.step(batch)) for batch in _batches(job, device)]
        return shares, _on_host(trainer.state())


def train_on_rank(job: TrainingJob, model: Any) -> TrainingOutcome:
    """Train by the job's strategy; every rank calls it at the same time."""
    shares: list[Any] = []
    seconds: list[float] = []
    begins: list[float] = []

    def step(trainer: Any, batch: Any) -> None:
        begins.append(time.perf_counter())
        shares.append(trainer.step(batch))
        if setting.device.type == "cuda":
            torch.cuda.synchronize(setting.device)
        seconds.append(time.perf_counter() - begins[-1])

    # load the data before memory is followed; rank 0 has done so in ``train_single_process``
    _ = training.task(job.task).train
    place, strategy = (dist.get_rank(), dist.get_world_size()), STRATEGIES[job.strategy]
    with _reproducible(job) as device:
        setting, tracker = _setting(job, model, device, *place), RankTracker(device.type)
        batches = _batches(job, device, *(place if strategy.splits_batch else ()))
        first = list(itertools.islice(batches, _FOLLOWED))
        build = partial(strategy.build, setting)
        # of the first batches, each is freed once it is used
        trainer, second = follow_steps(tracker, build, (first.pop(0) for _ in first[:]), step)
        observed = min(OBSERVED, job.steps - _FOLLOWED)
        for batch in itertools.islice(batches, job.steps - _FOLLOWED - observed):
            step(trainer, batch)
        ahead = clock_ahead()
        ready = list(batches)
        del setting.phases[:], setting.ends_in_wait[:], begins[:]
        dist.barrier()  # so that the observed steps do not begin with a wait for slower ranks
        # the observer of ``Ranks.run``; another one would slow each operator once more
        seen, earlier = AGENT.call, AGENT.call.entered
        for batch in ready:
            step(trainer, batch)
        end = time.perf_counter()
        # another thread reports completions, sometimes only after the step has gone on
        deadline = time.perf_counter() + 1.0
        while seen.in_flight and time.perf_counter() < deadline:
            time.sleep(0.001)
        calls, phases = seen.calls[earlier:], tuple(setting.phases)
        return TrainingOutcome(
            [float(share) for share in shares],
            _on_host(trainer.state()),
            devices.environment(str(device)),
            seconds,
            _report(tracker, second, calls, observed),
            RankNotes(
                phases,
                calls,
                tuple(wait for wait in seen.waits if wait[0] >= earlier),
                tuple(setting.ends_in_wait),
                tuple(begins),
                end,
                ahead,
            ),
        )


def _report(
    tracker: RankTracker,
    second: int,
    calls: Sequence[CollectiveCall],
    steps: int,
) -> RankReport:
    """Return this rank's memory in the second step, and its communication per step."""
    rank, peak = dist.get_rank(), tracker.at_peak(second, RANK_CATEGORIES)
    held = tracker.timeline(RANK_CATEGORIES).bytes_by_category
    payload: Counter[str] = Counter()
    for call in calls:
        payload[call.name] += call.payload_bytes
    return RankReport(
        rank=rank,
        peak_bytes=peak["peak_bytes"],
        peak_by_category=peak["peak_by_category"],
        most_by_category={name: int(curve[second:].max()) for name, curve in held.items()},
        calls={name: n // steps for name, n in Counter(call.name for call in calls).items()},
        payload_bytes={name: nbytes // steps for name, nbytes in payload.items()},
        ring_bytes=round(sum(_ring_bytes(rank, call) for call in calls) / steps),
    )


def _ring_bytes(rank: int, call: CollectiveCall) -> float:
    """Return the bytes that a rank sends in a collective, by the cost model's default algorithm (a
    ring if there is one).
    """
    if call.name in ("send", "recv", "send and recv"):
        return float(call.input_bytes)
    cost = models.collective_cost(call.name, call.payload_bytes, len(call.group))
    root = call.group.index(call.root) if call.root in call.group else 0
    return cost.sent_bytes(call.group.index(rank), root)


def _setting(job: TrainingJob, model: Any, device: Any, rank: int, size: int) -> Setting:
    task = training.task(job.task)
    model = task.make_model(job.seed) if model is None else model
    kind, options = OPTIMIZERS[job.optimizer]
    return Setting(
        rank=rank,
        size=size,
        device=device,
        model=model.to(device, getattr(torch, job.dtype)),
        loss=task.loss,
        # One parameter after another: the foreach form refuses plain tensors and DTensors side by
        # side.
        make_optimizer=partial(kind, lr=job.learning_rate, foreach=False, **options),
        microbatches=job.microbatches,
        bucket_bytes=job.bucket_bytes,
    )


def _batches(
    job: TrainingJob, device: Any, rank: int = 0, parts: int = 1
) -> Iterator[tuple[Any, Any]]:
    """Yield a rank's part of the batch of each step, in the order that ``training.fit`` takes for
    this seed; by default the whole batch.
    """
    data, each = training.task(job.task).train, job.batch_size // parts
    for indices in order(len(data), job.batch_size, job.seed, 0, job.steps):
        inputs, targets = data[torch.from_numpy(indices[rank * each : (rank + 1) * each])]
        yield (
            inputs.to(device, getattr(torch, job.dtype) if inputs.is_floating_point() else None),
            targets.to(device),
        )


def _on_host(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


@contextlib.contextmanager
def _reproducible(job: TrainingJob) -> Iterator[Any]:
    """Yield the device on which this rank computes: its own GPU if the ranks communicate through
    NCCL, else the CPU.

    Within the block float32 arithmetic does not use TF32, and random numbers come from the seed.
    The rank's generator is put back after the block.
    """
    device = torch.device(own_device())
    with (
        torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else []),
        switches("float32", devices.find(str(device))),
    ):
        torch.manual_seed(job.seed)
        yield device


# -- a pipeline's schedule

# A pass shorter than 1 ms is lost in the time that sleeping and sending take. A step longer than
# 8 s tries users' patience and may run into timeouts.
_LONGEST_STEP_SECONDS = 8.0
_SECONDS = partial(_validate.within, low=1e-3, high=_LONGEST_STEP_SECONDS)
_MOST_SCHEDULED = 50
_WIDTH, _ROWS = 128, 32  # of the small network; of a microbatch
# A pass that took this many times its set time had no core for its arithmetic.
_SLOW_RATIO = 1.25


@_validate.arguments(
    ranks=partial(require_cluster, least=2),
    schedule=partial(_validate.word, known=PIPELINE_SCHEDULES),
    forward_seconds=_SECONDS,
    backward_seconds=_SECONDS,
    steps=partial(_validate.whole, low=1, high=_MOST_SCHEDULED),
    progress=_validate.hook,
    stop=_validate.hook,
)
def run_schedule(
    ranks: Ranks,
    schedule: str = "1f1b",
    microbatches: int = 8,
    *,
    forward_seconds: float = 0.02,
    backward_seconds: float = 0.04,
    chunks: int | None = None,
    steps: int = 3,
    progress: Callable[[float, str], None] | Any = _validate.LEFT_OUT,
    stop: Callable[[], bool] | Any = _validate.LEFT_OUT,
) -> ScheduleRun:
    """Run a pipeline's schedule on real ranks and return its bubble, its passes and what each stage
    held.

    Parameters
    ----------
    ranks : Ranks
        At least two, started; each is a stage.
    schedule : "split", "gpipe", "1f1b" or "interleaved"
        As in ``gpulab.models.pipeline_schedule``.
    microbatches : int
        For 1F1B at least the number of ranks; for the interleaved schedule a multiple of it.
    forward_seconds, backward_seconds : float
        The time of one microbatch's pass through a stage, at least 0.001.
    chunks : int, optional
        Parts of the model in each stage of the interleaved schedule; 2 by default.
    steps : int
        The number of steps measured. One step before them is not measured, and the memory is
        counted in one more.
    progress, stop : callable, optional
        ``stop`` is polled between steps; what was measured until then is returned.

    Returns
    -------
    ScheduleRun
        ``bubble_ratio`` measured, and ``model`` with the timetable of the same passes.

    Raises
    ------
    InputError
        If an argument cannot be used, or a step would take longer than 8 seconds.
    StoppedError
        If ``stop`` returned True before a step was measured.
    RankError
        If a rank failed.
    """
    plan = pipeline_schedule(
        ranks.n,
        microbatches,
        schedule,
        forward=forward_seconds,
        backward=backward_seconds,
        chunks=chunks,
    )
    # a schedule that cannot be run is refused before any rank works
    if schedule == "1f1b" and microbatches < ranks.n:  # PyTorch's own condition
        raise InputError(
            f"run_schedule: {plural(microbatches, 'microbatch', 'microbatches')} over {ranks.n} "
            f"ranks; Schedule1F1B expects at least as many. Pass microbatches={ranks.n}."
        )
    if plan.duration > _LONGEST_STEP_SECONDS:
        raise InputError(
            f"run_schedule: a step would take {plan.duration:.1f} s; expected at most "
            f"{_LONGEST_STEP_SECONDS:g} s. Pass fewer microbatches or shorter passes."
        )
    progress(0.0, "each rank builds its stage")
    held = ranks.run(_set_up_stage, plan)
    taken: list[tuple[StagePass, ...]] = []
    for number in range(steps):
        if stop():
            break
        progress((number + 1) / (steps + 1), f"step {number + 1} of {steps}")
        try:
            taken.append(_from_the_first(ranks.run(_scheduled_step)))
        except StoppedError:
            # the ranks were interrupted in the middle of a step: the steps before it count
            break
    if not taken:
        raise StoppedError(
            "run_schedule: stopped before a step was measured; expected at least one. Run it again."
        )
    progress(1.0, "done")
    return _schedule_run(ranks, plan, taken, tuple(int(nbytes) for nbytes in held), steps)


def _from_the_first(stages: list[list[StagePass]]) -> tuple[StagePass, ...]:
    """Return the passes of all stages, with times counted from the begin of the first pass."""
    passes = [one for of_stage in stages for one in of_stage]
    start = min(one.begin for one in passes)
    moved = [replace(one, begin=one.begin - start, end=one.end - start) for one in passes]
    return tuple(sorted(moved, key=lambda one: (one.begin, one.stage)))


def _schedule_run(
    ranks: Ranks,
    plan: StageSchedule,
    taken: list[tuple[StagePass, ...]],
    held: tuple[int, ...],
    asked: int,
) -> ScheduleRun:
    ratios = [
        1 - sum(one.duration for one in passes) / (plan.stages * max(one.end for one in passes))
        for passes in taken
    ]
    shown_step = sorted(range(len(ratios)), key=ratios.__getitem__)[len(ratios) // 2]
    notes = []
    if len(taken) < asked:
        notes.append(
            Note(
                "stopped",
                f"measured before the stop: {len(taken)} of {asked} steps. Run it again to measure "
                "all of them.",
            )
        )
    wanted = {"forward": plan.forward[0] / plan.chunks, "backward": plan.backward[0] / plan.chunks}
    slowest = max(one.duration / (wanted[one.kind] * one.count) for one in taken[shown_step])
    if slowest > _SLOW_RATIO:
        notes.append(
            Note(
                "contended",
                f"A pass took {slowest:.1f} times its set time: its arithmetic had to wait for a "
                "core. Set longer passes, or close other programs.",
            )
        )
    here = devices.environment("cpu")
    return ScheduleRun(
        plan.schedule,
        plan.stages,
        plan.microbatches,
        plan.chunks,
        plan.forward[0],
        plan.backward[0],
        tuple(ratios),
        taken[shown_step],
        held,
        tuple(notes),
        Evidence.measured(f"{plan.stages} ranks, {here.processor}", len(ratios)),
        here,
    )


@dataclass
class _TimedSetting(Setting):
    """A setting in which each pass takes its set time, and is noted on rank 0's clock."""

    pass_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    passes: list[StagePass] = field(default_factory=list)
    ahead_seconds: float = field(default_factory=clock_ahead)

    @contextlib.contextmanager
    def span(self, name: str, chunk: int = 0) -> Iterator[None]:
        """Wait at the end of the block until the pass's set time is over, and record the pass. A
        pass whose name has no microbatch's number is one of the whole batch.
        """
        kind, _, microbatch = name.partition(" ")
        count = 1 if microbatch else self.microbatches
        begin = time.perf_counter()
        yield
        left = begin + self.pass_seconds[kind] * count - time.perf_counter()
        if left > 0:
            time.sleep(left)
        begin, end = begin - self.ahead_seconds, time.perf_counter() - self.ahead_seconds
        known: PassKind = "forward" if kind == "forward" else "backward"
        self.passes.append(
            StagePass(self.rank, known, int(microbatch or 0), count, chunk, begin, end)
        )


_prepared: list[tuple[_TimedSetting, Callable[[], None]]] = []  # of this rank, at most one


def _set_up_stage(plan: StageSchedule) -> int:
    """Build this rank's stage, take a step to warm up and one in which the memory is counted;
    return the peak bytes of activations.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layers = [
            module
            for _ in range(2 * plan.stages * plan.chunks)
            for module in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh())
        ]
        batch = torch.randn(plan.microbatches * _ROWS, _WIDTH)
    setting = _TimedSetting(
        rank=dist.get_rank(),
        size=plan.stages,
        device=torch.device("cpu"),
        model=torch.nn.Sequential(*layers),
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        make_optimizer=partial(torch.optim.SGD, lr=0.0),
        microbatches=plan.microbatches,
        bucket_bytes=0,
    )
    trainer: Stages = (
        OneAfterAnother(setting)
        if plan.schedule == "split"
        else Pipeline(setting, plan.schedule, plan.chunks)
    )

    def take_step() -> None:
        trainer.passes((batch, batch))
        trainer.optimizer.zero_grad(set_to_none=True)

    take_step()  # warm-up, in which stages may send each other the shapes
    tracker = StorageTracker("cpu")
    tracker.watch_modules(trainer.modules)
    with tracker:
        take_step()
    tracker.close()
    tracker.classify()
    setting.pass_seconds = {
        "forward": plan.forward[0] / plan.chunks,
        "backward": plan.backward[0] / plan.chunks,
    }
    _prepared[:] = [(setting, take_step)]
    return int(tracker.timeline().bytes_by_category["activations"].max(initial=0))


def _scheduled_step() -> list[StagePass]:
    """Take one step together with the other ranks; return this rank's passes."""
    setting, take_step = _prepared[0]
    setting.passes = []
    dist.barrier()
    take_step()
    return setting.passes
