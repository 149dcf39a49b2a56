"""How a training step scales over the ranks of a cluster, measured here or recorded on a named
machine, with the prediction from one rank and the link; and a collective at several sizes.

The first half runs on the ranks: it takes a training step for each number of ranks, in turns, or
calls one collective again and again. It runs wherever torch.distributed has a process group, so the
recorder calls it too. The second half runs outside the ranks: it asks them to measure, and decides
how long.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gpulab import _validate, models, networks
from gpulab.devices import Device, conditions, environment, host_facts
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.models.parallelism import MODES
from gpulab.parallel._cluster import Ranks, cluster, require_cluster
from gpulab.parallel._rank import machine, unobserved
from gpulab.parallel.rank_results import (
    COMPUTED,
    WAITED,
    ScalingMeasurement,
    ScalingResult,
)
from gpulab.recordings import Recording, Timing
from gpulab.recordings.schema import RECORDING
from gpulab.timing.sampling import Progress, Stop
from gpulab.timing.statistics import (
    FEWEST_SAMPLES,
    is_precise,
    joined_interval,
    median_interval,
    paired_ratio,
)
from gpulab.transfer import AlphaBeta, Sweep, SweepPoint, fit
from gpulab.units import format_bytes, plural

# -- what runs in an engine

_EXPERIMENT = "data-parallel scaling"
_FEWEST_SIZES = 3  # of the recorded all-reduce, for a fit


@dataclass(frozen=True)
class StepModel:
    """A model whose step is measured: how it is made, and what one sample is.

    Attributes
    ----------
    words : str
    make : callable
        ``make()`` returns the network; its weights depend on the caller's seed.
    shape : tuple of int
        Of one sample.
    vocabulary : int
        The vocabulary size of a language model, whose samples and targets are tokens; 0 for a model
        whose samples are floating-point numbers.
    batch : int
        Samples on one rank, unless the caller says otherwise; 1 to 6 and 8 divide it.
    """

    words: str
    make: Callable[[], Any]
    shape: tuple[int, ...]
    vocabulary: int = 0
    batch: int = 24


MODELS: Mapping[str, StepModel] = {
    "mlp": StepModel(
        "a perceptron, 2 x 512 hidden", partial(networks.mlp, 256, 512, 10), (256,), batch=240
    ),
    "cnn": StepModel(
        "a convolutional network on 32 x 32 color images",
        partial(networks.cnn, 3, 10, width=16, stages=3),
        (3, 32, 32),
    ),
    "transformer": StepModel(
        "a transformer of width 128",
        partial(networks.transformer, 256, 128, 4, 2, context=32),
        (32,),
        256,
    ),
    "large-transformer": StepModel(
        "a transformer of width 1024 and 12 layers",
        partial(networks.transformer, 32768, 1024, 16, 12, context=512, tied=True),
        (512,),
        32768,
    ),
}


@dataclass(frozen=True)
class StepSpec:
    """The steps that each rank is asked to take.

    Attributes
    ----------
    model : StepModel
    batch : int
        Samples of all ranks together in strong scaling, of each rank in weak scaling.
    weak : bool
    counts : tuple of int
        Numbers of ranks, in the order of their turns.
    wait_seconds : float or None
        If not None, a rank waits this long (in strong scaling divided by the number of ranks)
        instead of computing, then averages the gradients.
    steps_a_sample : int
        Steps that are timed together; on an accelerator several, with one wait for the device.
    """

    model: StepModel
    batch: int
    weak: bool
    counts: tuple[int, ...]
    wait_seconds: float | None = None
    steps_a_sample: int = 1

    def batch_of(self, count: int) -> int:
        """Return the number of samples that each rank has if ``count`` ranks take part."""
        return self.batch if self.weak else self.batch // count


# steps before the samples: DDP rearranges its buckets after the first
WARM_UP = 3
DROPPED = 1  # first steps of each turn, which find the caches full of another model


_CLASSES = 10
_ELEMENT_BYTES = 4  # of float32


@dataclass
class Turns:
    """The times that one rank measured in its turns.

    Attributes
    ----------
    seconds : dict of int to list of float
        For each number of ranks, the seconds of each step.
    alone_seconds, delay_seconds : float
        How long this rank worked alone, and how much of that time it was ready to run but had no
        core, because other processes used it.
    """

    seconds: dict[int, list[float]]
    alone_seconds: float = 0.0
    delay_seconds: float = 0.0


@dataclass
class _Job:
    """The steps of this rank, one for each number of ranks that it belongs to, and the groups."""

    spec: StepSpec
    device: str
    steps: dict[int, Callable[[], None]]
    groups: dict[int, Any]


_jobs: list[_Job] = []  # of this rank, at most one


def parameter_bytes(model: StepModel) -> int:
    """Return the bytes of a model's parameters in float32, which are those of its gradients;
    this process may have another default dtype than the ranks.
    """
    with torch.device("meta"):  # a copy without storage
        return sum(_ELEMENT_BYTES * p.numel() for p in model.make().parameters() if p.requires_grad)


def begin(spec: StepSpec) -> float:
    """Make this rank's steps; every rank of the world calls this, with the same spec.

    Return the seconds of the first steps, one at each number of ranks, together. Models that an
    interrupted measurement has left are freed.
    """
    device, rank, world = own_device(), dist.get_rank(), dist.get_world_size()
    groups = {
        count: dist.group.WORLD if count == world else dist.new_group(list(range(count)))  # type: ignore[attr-defined,unused-ignore]
        for count in spec.counts
    }
    steps = {
        count: _step(spec, count, group, device) for count, group in groups.items() if rank < count
    }
    _jobs[:] = [_Job(spec, device, steps, groups)]
    start = time.perf_counter()
    turns(1, 0)
    first_seconds = time.perf_counter() - start
    turns(WARM_UP - 1, 0)
    return first_seconds


def _step(spec: StepSpec, count: int, group: Any, device: str) -> Callable[[], None]:
    if spec.wait_seconds is not None:
        seconds = spec.wait_seconds / (1 if spec.weak else count)
        gradients = torch.zeros(parameter_bytes(spec.model) // _ELEMENT_BYTES, device=device)

        def wait() -> None:
            time.sleep(seconds)
            if count > 1:
                dist.all_reduce(gradients, group=group)
                _waiter(device)()  # on a GPU the sum would go on during the next wait

        return wait
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = spec.model.make().to(device)
        x, y = (part.to(device) for part in _samples(spec.model, spec.batch_of(count)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if count > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def turns(rounds: int, samples: int) -> Turns:
    """Take ``rounds`` rounds; in each, every number of ranks has a turn of ``samples`` samples."""
    job = _jobs[0]
    taken = Turns({count: [] for count in job.steps})
    for count in job.spec.counts * rounds:
        dist.barrier()  # ranks that take no part in a turn wait at the next barrier meanwhile
        if count in job.steps:
            before = conditions.read(Device("cpu"))
            # an observer of collectives looks at each operator, and that time would count
            with unobserved():
                seconds = _sampled(job, job.steps[count], DROPPED + samples)
            taken.seconds[count] += seconds[DROPPED:]
            if count == 1:
                window = conditions.Window.between(before, conditions.read(Device("cpu")))
                taken.alone_seconds += window.seconds
                taken.delay_seconds += window.seconds * (window.delay or 0.0)
    return taken


def _sampled(job: _Job, step: Callable[[], None], count: int) -> list[float]:
    each, finish = job.spec.steps_a_sample, _waiter(job.device)
    finish()
    ends = [time.perf_counter()]
    for _ in range(count):
        for _ in range(each):
            step()
        finish()
        ends.append(time.perf_counter())
    return [(end - begin) / each for begin, end in itertools.pairwise(ends)]


def end() -> None:
    """Free this rank's models and leave the groups; all ranks call this together."""
    job = _jobs.pop()
    job.steps.clear()
    dist.barrier()
    for group in job.groups.values():
        if group not in (dist.group.WORLD, dist.GroupMember.NON_GROUP_MEMBER):  # type: ignore[attr-defined,unused-ignore]
            dist.destroy_process_group(group)


def _samples(model: StepModel, count: int) -> tuple[Any, Any]:
    shape = (count, *model.shape)
    if model.vocabulary:
        tokens = torch.randint(model.vocabulary, shape)
        return tokens, tokens
    return torch.randn(shape), torch.randint(_CLASSES, (count,))


def talks_nccl() -> bool:
    """Return whether tensors on a GPU are sent through NCCL; the group may also have gloo, for
    tensors on the CPU ("cpu:gloo,cuda:nccl").
    """
    return "nccl" in str(dist.get_backend())


def own_device() -> str:
    """Return the device on which this rank computes: with NCCL the GPU with the rank's local
    number, which becomes torch's current device; else the CPU.
    """
    if not talks_nccl():
        return "cpu"

    number = int(os.environ.get("LOCAL_RANK", dist.get_rank())) % torch.cuda.device_count()
    torch.cuda.set_device(number)
    return f"cuda:{number}"


def facts() -> dict[str, Any]:
    """Return facts about this rank that show how many ranks can work at once (host, usable cores,
    threads, accelerators), whether ranks share a clock, through which backend they communicate, and
    on which device and software this rank computes.
    """
    import psutil

    return {
        "host": socket.gethostname(),
        "clock": machine(),
        # Two hyperthreads share the arithmetic units of one core, and a container may grant the
        # time of fewer cores than the ranks may run on.
        "cores": int(
            min(
                len(host_facts.usable_core_numbers()),
                psutil.cpu_count(logical=False) or np.inf,
                host_facts.cpu_quota_cores() or np.inf,
            )
        ),
        "threads": torch.get_num_threads(),
        "accelerators": torch.cuda.device_count() if talks_nccl() else 0,
        "backend": str(dist.get_backend()),
        "environment": environment(own_device()),
    }


def _waiter(device: str) -> Callable[[], object]:
    """Return a function that waits until a device has done its work."""
    return (lambda: None) if device == "cpu" else partial(torch.cuda.synchronize, device)


def collective(operation: str, elements: int) -> tuple[Callable[[], Any], Callable[[], object]]:
    """Return a collective as a function without arguments, which holds its tensors; and a function
    that waits until the device has done it.
    """
    n, rank, device = dist.get_world_size(), dist.get_rank(), own_device()
    whole, part = torch.zeros(elements, device=device), torch.zeros(elements // n, device=device)
    other = torch.zeros(elements if operation == "all_to_all" else 0, device=device)
    parts = list(whole.chunk(n)) if rank == 0 else None
    # torch 2.13 renamed these two.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather(whole, part),
        "reduce_scatter": lambda: reduce_scatter(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "gather": lambda: dist.gather(part, parts, 0),
        "scatter": lambda: dist.scatter(part, parts, 0),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }
    return calls[operation], _waiter(device)


def timed_calls(operation: str, elements: int, count: int) -> list[tuple[float, float]]:
    """Call a collective ``count`` times, each after a barrier; return for each call when this rank
    entered it and when it had its result (``time.perf_counter``).

    One call before these is not timed. ``elements`` is the number of float32 elements of the whole
    tensor, a multiple of the number of ranks.
    """
    call, finish = collective(operation, elements)
    times = []
    with unobserved():
        for _ in range(count + 1):
            dist.barrier()
            finish()
            begin = time.perf_counter()
            call()
            finish()
            times.append((begin, time.perf_counter()))
    return times[1:]


def collective_times(name: str, nbytes: int, repeats: int) -> list[tuple[float, float]]:
    """Return ``timed_calls`` of a collective to which each rank contributes about ``nbytes`` bytes:
    for ``all_gather`` its own part, for ``reduce_scatter`` all parts together.
    """
    world = dist.get_world_size()
    elements = max(world, nbytes // _ELEMENT_BYTES // world * world)
    return timed_calls(name, elements * (world if name == "all_gather" else 1), repeats)


def call_seconds(
    of_ranks: Sequence[Sequence[tuple[float, float]]], one_clock: bool = True
) -> list[float]:
    """Return the seconds of each call, from when the last rank had entered until the last rank had
    its result.

    With ``one_clock=False`` (ranks on several hosts, whose clocks cannot be compared) it is the
    longest time that a rank was inside the call.
    """
    calls = list(zip(*of_ranks, strict=True))
    if not one_clock:
        return [max(end - begin for begin, end in call) for call in calls]
    return [max(end for _, end in call) - max(begin for begin, _ in call) for call in calls]


def slowest(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the samples of the rank that took longest in total. Ranks wait for each other when
    they average gradients, so every rank's samples show the common pace.
    """
    return list(max(of_ranks, key=sum))


def predict(
    line: AlphaBeta | None,
    one_seconds: float | None,
    parameter_bytes: int,
    counts: Sequence[int],
    world: int,
    *,
    overlap: float = 1.0,
    **options: Any,
) -> dict[str, Any]:
    """Return what the time of one rank's step and the all-reduce among ``world`` ranks predict, by
    the names of ``ScalingResult``: the link, and the steps without overlap and with ``overlap``
    (1: the largest possible). All are None if the step or the all-reduce was not measured.
    """
    if line is None or one_seconds is None:
        return dict.fromkeys(_PREDICTED)
    # The cost of one message is derived from the ring of all ranks, so that smaller rings can be
    # predicted.
    link = models.collective_message(
        "all_reduce",
        world,
        "ring",
        latency_seconds=line.latency_seconds,
        bandwidth_bytes_per_second=line.bandwidth_bytes_per_second,
    )
    curves = (
        models.scaling(one_seconds, parameter_bytes, *link, counts, overlap=each, **options)
        for each in (0.0, overlap)
    )
    return dict(zip(_PREDICTED, (*link, *curves), strict=True))


_PREDICTED = ("latency_seconds", "bandwidth_bytes_per_second", "prediction", "overlapped")


@_validate.arguments(recording=RECORDING, mode=partial(_validate.word, known=MODES))
def recorded_scaling(recording: Recording, mode: str = "strong") -> ScalingResult | None:
    """Return a recorded machine's scaling of the first model that was recorded, or None where
    there is none.

    Parameters
    ----------
    recording : Recording
        From ``gpulab.recordings``.
    mode : str
        "strong" or "weak".

    Returns
    -------
    ScalingResult or None
        Evidence RECORDED; where the all-reduce was recorded on the same number of ranks, the link
        and the prediction come from it.

    Raises
    ------
    InputError
        If this is not a recording, or there is no such mode.
    """
    wanted = recording.select(_EXPERIMENT, mode=mode)
    # a later version of gpulab may have recorded a model that this one does not know
    there = [entry for entry in wanted if entry.params.get("model") in MODELS]
    if not there:
        return None
    name = str(there[0].params["model"])
    entries = {
        int(entry.params["ranks"]): entry for entry in there if entry.params["model"] == name
    }
    counts = sorted(entries)
    timings = {count: timing for count in counts if (timing := entries[count].timing) is not None}
    batch, parameter_bytes = int(there[0].params["batch"]), int(there[0].params["parameter_bytes"])
    spec = StepSpec(MODELS[name], batch, mode == "weak", tuple(counts))
    predicted = predict(
        _recorded_line(recording, counts[-1]),
        timings[1].median_seconds if 1 in timings else None,
        parameter_bytes,
        counts,
        counts[-1],
        mode=mode,
    )
    cpu = recording.environment.device_kind == "cpu"
    return ScalingResult(
        label=f"{MODELS[name].words} on {recording.environment.device}",
        mode=mode,
        stage=COMPUTED,
        parameter_bytes=parameter_bytes,
        processors=recording.environment.cores if cpu else counts[-1],
        points=tuple(
            measurement(
                spec,
                count,
                mine.samples_seconds,
                mine.median_seconds,
                mine.interval_seconds,
                # recorded steps did not take turns: the ratio's interval joins those of both times
                None if 1 not in timings else _over(timings[1], mine),
            )
            for count, mine in timings.items()
        ),
        **predicted,
        notes=tuple(note for timing in timings.values() for note in timing.notes),
        evidence=recording.evidence(entries[max(entries)]),
        environment=recording.environment,
    )


def measurement(
    spec: StepSpec,
    count: int,
    samples: np.ndarray,
    median: float,
    interval: tuple[float, float] | None,
    over_one: tuple[float, tuple[float, float] | None] | None,
) -> ScalingMeasurement:
    """Return the measurement at one number of ranks; ``over_one`` is the ratio of one rank's
    seconds to these and its interval, or None if one rank was not measured.
    """
    work = count * spec.batch_of(count) / spec.batch_of(1)
    ratio, ends = over_one or (None, None)
    return ScalingMeasurement(
        count,
        spec.batch_of(count),
        samples,
        median,
        interval,
        None if ratio is None else work * ratio,
        None if ends is None else (work * ends[0], work * ends[1]),
    )


def _over(one: Timing, mine: Timing) -> tuple[float, tuple[float, float] | None]:
    """Return the ratio of two medians, and its interval."""
    if mine is one:
        return 1.0, (1.0, 1.0) if one.interval_seconds else None
    first, second = (each.median_seconds for each in (one, mine))
    return first / second, joined_interval(
        first, one.interval_seconds, second, mine.interval_seconds
    )


def _recorded_line(recording: Recording, ranks: int) -> AlphaBeta | None:
    """Return the fit of the recorded all-reduce on this number of ranks, or None if too few sizes
    were recorded.
    """
    entries = [
        entry
        for entry in recording.select("collectives", collective="all_reduce", ranks=ranks)
        if entry.timing is not None
    ]
    if ranks < 2 or len(entries) < _FEWEST_SIZES:
        return None
    return fit(
        [float(entry.params["nbytes"]) for entry in entries],
        [entry.timing.median_seconds for entry in entries if entry.timing is not None],
        recording.evidence(entries[0]),
    )


# -- measuring from outside the ranks

_DEADLINE = partial(_validate.deadline, most=3600.0)

_MOST_MEASURED = 64  # ranks
_TURN = 4  # samples of each number of ranks before the next one has its turn
_CHUNK_SECONDS, _MOST_AT_ONCE = 0.4, 50  # between two checks of progress and stop
# Sampling ends after this many deadlines or this long, whichever is later, even if steps are too
# slow for an interval.
_MOST_DEADLINES, _PATIENCE_SECONDS = 3, 10.0
_DELAYED = 0.05  # if a lone rank had no core for this share of its time, a note says so
# relative width of the steps' intervals at which the measurement may end before its deadline
_WIDTH = 0.04
# The all-reduce is measured from sizes at which latency dominates up to the gradients' size (or the
# fourth of these, if that is larger).
_SIZES = tuple(2**k for k in range(12, 25, 2))
_ALL_REDUCE_SECONDS = 1.0
_ACCELERATOR_STEPS = 10  # steps between two waits for an accelerator


@_validate.arguments(
    model=partial(_validate.word, known=MODELS),
    mode=partial(_validate.word, known=MODES),
    batch=partial(_validate.whole, low=1, high=2**20),
    wait_seconds=partial(_validate.within, low=1e-6, high=10),
    deadline=_DEADLINE,
    progress=_validate.hook,
    stop=_validate.hook,
)
def scaling(
    ranks: Ranks | int,
    model: str = "mlp",
    *,
    mode: str = "strong",
    batch: int | None = None,
    wait_seconds: float | None = None,
    deadline: float = 4.0,
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
) -> ScalingResult:
    """Measure a training step on the first 1, 2 ... ranks of a cluster, in turns, and predict it
    from one rank and the link.

    Parameters
    ----------
    ranks : Ranks or int
        A started cluster, or the number of ranks to start (and end) for this measurement alone. The
        step is measured on 1 to 4 ranks, on powers of two, and on all; each smaller number is a
        group of the first ranks.
    model : str
        "mlp", "cnn", "transformer" or "large-transformer".
    mode : str
        "strong": ``batch`` is that of all ranks together. "weak": it is that of each rank.
    batch : int, optional
        Samples; in strong scaling each number of ranks must divide it.
    wait_seconds : float, optional
        Replaces computing by a wait of this length on one rank (in strong scaling divided by the
        ranks); gradients are still averaged. Such ranks need no processor of their own, so
        communication shows even where ranks share processors. The result has a note on it.
    deadline : float
        Seconds of sampling, for all numbers of ranks together; sampling ends earlier if all
        intervals are narrow.
    progress, stop : callable, optional
        ``progress(fraction, text)``; ``stop() -> bool``, called a few times a second: what was
        measured until then is kept.

    Returns
    -------
    ScalingResult
        Steps are MEASURED; its ``prediction`` is MODELLED. Ranks beyond the processors compute in
        turns, and a note says so; a core counts as one processor, whatever its number of threads.

    Raises
    ------
    InputError
        If the model or mode is unknown, ``ranks`` is neither a cluster nor a number from 1 to 64,
        or the batch does not divide.
    StoppedError
        If it was stopped before there were samples.
    RankError
        If a rank died, or a collective did not end in time.

    Notes
    -----
    Steps are timed on each rank; the slowest rank's are kept. The numbers of ranks take turns of
    four steps, so that disturbances affect all of them alike; the speed-up is the median of the
    ratios of neighboring turns.

    Examples
    --------
    In strong scaling the ranks share the batch, so each number of ranks must divide it:

    >>> scaling(8, batch=25)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpulab.errors.InputError: scaling: a batch of 25 ... among 1, 2, 3, 4, 8 ranks; ... batch=48.
    """
    started = ranks if isinstance(ranks, Ranks) else None
    n = (
        started.n
        if started is not None
        else _validate.whole(
            "scaling", "ranks", ranks, 1, _MOST_MEASURED, "Pass a started cluster, or ranks=2."
        )
    )
    counts = sorted({*range(1, min(n, 4) + 1), *(2**k for k in range(n.bit_length())), n})
    size = MODELS[model].batch if batch is None else batch
    if mode == "strong" and any(size % count for count in counts):
        step = int(np.lcm.reduce(counts))
        raise InputError(
            f"scaling: a batch of {size} cannot be divided evenly among "
            f"{', '.join(map(str, counts))} ranks; expected a multiple of {step}. Pass "
            f"batch={-(-size // step) * step}."
        )
    spec = StepSpec(MODELS[model], size, mode == "weak", tuple(counts), wait_seconds)
    with ExitStack() as stack:
        group = started or stack.enter_context(
            cluster(n, progress=lambda part, text: progress(part / 2, text))
        )
        return _measured(group, spec, deadline, progress, stop)


def _measured(
    ranks: Ranks, spec: StepSpec, deadline: float, report: Progress, stop: Stop
) -> ScalingResult:
    """Make the groups, measure, and return the result. After a stop, which may have come in the
    middle of a collective, the ranks keep their models until the next measurement.
    """
    report(0.5, "making a model on each rank")
    told = ranks.run(facts)
    # written for NCCL; no machine of ours with several GPUs has run it
    if told[0]["accelerators"]:
        spec = replace(spec, steps_a_sample=_ACCELERATOR_STEPS)
    ranks.run(begin, spec)
    nbytes, line = parameter_bytes(spec.model), None
    if ranks.n > 1:
        report(0.55, "timing the all-reduce")
        largest = max(nbytes, _SIZES[3])
        sizes = {size for size in _SIZES if size <= largest} | {max(nbytes, _SIZES[0])}
        line = sweep(ranks, "all_reduce", sizes, deadline=_ALL_REDUCE_SECONDS).fit()
    # the times of the slowest ranks
    taken, notes = Turns({count: [] for count in spec.counts}), []
    start = time.monotonic()
    try:
        for rounds in _chunks(taken.seconds.values(), deadline, _WIDTH):
            steps = plural(len(taken.seconds[1]), "step")
            share = (time.monotonic() - start) / deadline
            report(min(0.99, 0.65 + 0.34 * share), f"{steps} on each number of ranks")
            if stop():
                raise StoppedError("scaling: stopped before any step was timed. Run it again.")
            of_ranks = ranks.run(turns, rounds, _TURN)
            for count, column in taken.seconds.items():
                column.extend(slowest([each.seconds[count] for each in of_ranks[:count]]))
            taken.alone_seconds += of_ranks[0].alone_seconds
            taken.delay_seconds += of_ranks[0].delay_seconds
        ranks.run(end)
    except StoppedError:  # in the middle of these turns: earlier turns count
        if not taken.seconds[1]:
            raise
        notes.append(
            Note(
                "stopped",
                "the measurement was stopped; each point has only the steps timed until then. Run "
                "it again for narrower intervals.",
            )
        )
    if taken.delay_seconds > _DELAYED * taken.alone_seconds:
        share = taken.delay_seconds / taken.alone_seconds
        notes.append(
            Note(
                "contended",
                "because of other processes, one rank that worked alone had to wait for a core for "
                f"{100 * share:.0f} % of the time: all points are slower than they could be. Close "
                "other programs, or measure again later.",
            )
        )
    report(1.0, "done")
    return _result(spec, told, nbytes, taken.seconds, line, notes)


def _chunks(columns: Collection[Sequence[float]], deadline: float, width: float) -> Iterator[int]:
    """Yield the number of rounds or calls to make before the next check of progress and stop, until
    all columns have enough samples and a narrow interval, or the time is over.
    """
    # on Windows monotonic stands still for 16 ms at a time (up to Python 3.12), longer than a call
    begin, count = time.perf_counter(), 1
    most = max(_MOST_DEADLINES * deadline, _PATIENCE_SECONDS)
    while True:
        before = time.perf_counter()
        yield count
        now = time.perf_counter()
        fewest, seconds = min(map(len, columns)), now - begin
        if seconds >= (deadline if fewest >= FEWEST_SAMPLES else most):
            return
        if fewest >= 3 * FEWEST_SAMPLES and all(
            is_precise(np.array(column), width) for column in columns
        ):
            return
        chunk = min(_CHUNK_SECONDS, deadline - seconds if seconds < deadline else _CHUNK_SECONDS)
        count = max(1, min(int(chunk * count / max(now - before, 1e-6)), _MOST_AT_ONCE))


def _result(
    spec: StepSpec,
    facts: Sequence[dict[str, Any]],
    parameter_bytes: int,
    columns: dict[int, list[float]],
    line: AlphaBeta | None,
    notes: list[Note],
) -> ScalingResult:
    """Return the result made of the samples, the link and the prediction."""
    hosts = {
        each["host"]: each["accelerators"] or max(1, each["cores"] // each["threads"])
        for each in facts
    }
    processors, computed = sum(hosts.values()), spec.wait_seconds is None
    samples = {count: np.array(column) for count, column in sorted(columns.items())}
    where, mode = facts[0]["environment"], "weak" if spec.weak else "strong"
    predicted = predict(
        line,
        float(np.median(samples[1])),
        parameter_bytes,
        list(samples),
        len(facts),
        overlap=1.0 if computed else 0.0,
        mode=mode,
        processors=processors if computed else None,
    )
    return ScalingResult(
        label=spec.model.words,
        mode=mode,
        stage=COMPUTED if computed else WAITED,
        parameter_bytes=parameter_bytes,
        processors=processors,
        points=tuple(
            measurement(
                spec,
                count,
                mine,
                float(np.median(mine)),
                median_interval(mine)[0],
                paired_ratio(samples[1], mine),
            )
            for count, mine in samples.items()
        ),
        **predicted,
        notes=(*notes, *_notes(spec, processors, samples)),
        evidence=Evidence.measured(where.device, sum(map(len, samples.values()))),
        environment=where,
    )


def _notes(spec: StepSpec, processors: int, samples: dict[int, np.ndarray]) -> Iterator[Note]:
    if spec.wait_seconds is not None:
        yield Note(
            "skipped",
            f"compute is a timed wait of {1e3 * spec.wait_seconds:.3g} ms on one rank, not work. "
            "Only the communication is real: rely on its cost, not on the speed-up.",
        )
    elif max(samples) > processors:
        yield Note(
            "contended",
            f"{max(samples)} ranks share {plural(processors, 'processor')}, so beyond {processors} "
            "they compute in turns and gain little or nothing. Rely on the cost of communication "
            "here; take speed-ups from machines with one processor per rank.",
        )
    for count, column in samples.items():
        interval, reason = median_interval(column)
        if interval is None:
            yield Note("no-interval", f"{plural(count, 'rank')}: {reason}")
            break


OPERATIONS = tuple(name for name in models.GLOO_ALGORITHMS if name != "barrier")
# from sizes at which latency dominates to sizes at which bandwidth does
DEFAULT_SIZES = (*(2**k for k in range(10, 24, 2)), 2**23)
_CALLS_WIDTH = 0.05  # relative width of a size's interval at which the next size has its turn
_LEAST_SECONDS = 0.05
_LARGEST_BYTES = 2**34


@_validate.arguments(
    ranks=partial(require_cluster, least=2),
    operation=partial(_validate.word, known=OPERATIONS),
    deadline=_DEADLINE,
)
def sweep(
    ranks: Ranks,
    operation: str = "all_reduce",
    sizes: Iterable[int] | None = None,
    *,
    deadline: float = 10.0,
) -> Sweep:
    """Measure the duration of a collective at several sizes.

    Parameters
    ----------
    ranks : Ranks
        A started cluster of two ranks or more.
    operation : str
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter" or
        "all_to_all".
    sizes : iterable of int, optional
        Bytes of the whole tensor (an all-gather's result, a reduce-scatter's input), from 1 kB to 8
        MB by default. They are rounded up to float32 elements that the ranks divide.
    deadline : float
        Seconds of sampling, for all sizes together; a size ends earlier if its interval is narrow.
        A size whose 20 calls need longer than its share of the time gets more.

    Returns
    -------
    Sweep
        MEASURED; as from ``gpulab.transfer.sweep``, with the operation as its direction. A point's
        rate is the whole tensor over the time, the algbw of nccl-tests and not its busbw: a ring's
        links carry 2 (n - 1) / n of that in an all-reduce of n ranks. (A recording counts only one
        rank's part of an all-gather, 1 / n of the whole.)
        ``models.collective_message`` derives the cost of one message between two ranks from its
        fit.

    Raises
    ------
    InputError
        If there are fewer than two ranks, the operation is unknown, or a size is out of range.
    RankError
        If a rank died, or a collective did not end in time.

    Notes
    -----
    Before each call the ranks meet at a barrier. A call lasts from when the last rank has entered
    it until the last one has its result: ranks on one Linux machine share the clock. On several
    machines it is the longest that a rank was inside. The calls are not observed while they are
    timed, so ``ranks.log`` lacks them.
    """
    end = time.monotonic() + deadline
    wanted = _validate.items(
        "sweep", "sizes", DEFAULT_SIZES if sizes is None else sizes, "[2**16, 2**20]"
    )
    step = _ELEMENT_BYTES * ranks.n  # bytes; sizes are rounded up to multiples of it
    nearest = (_validate.whole("sweep", "sizes", size, 1, _LARGEST_BYTES) for size in wanted)
    several = sorted({-(-size // step) * ranks.n for size in nearest})
    told = ranks.run(facts)
    one_clock, where = len({each["clock"] for each in told}) == 1, told[0]["environment"]
    among = f"among {ranks.n} ranks ({told[0]['backend']})"
    points, slow, notes = [], [], []
    for number, elements in enumerate(several):
        share = max((end - time.monotonic()) / (len(several) - number), _LEAST_SECONDS)
        seconds: list[float] = []
        for calls in _chunks([seconds], share, _CALLS_WIDTH):
            # each run makes its tensors and drops a call, so one run makes all calls that an
            # interval needs
            calls = max(calls, FEWEST_SAMPLES - len(seconds) if seconds else 1)  # noqa: PLW2901
            seconds += call_seconds(ranks.run(timed_calls, operation, elements, calls), one_clock)
        nbytes = elements * _ELEMENT_BYTES
        interval, why = median_interval(np.array(seconds))
        if why is not None:
            slow.append(f"{format_bytes(nbytes)}: {why}")
        points.append(
            SweepPoint(operation, among, nbytes, float(np.median(seconds)), interval, len(seconds))
        )
    if slow:
        notes.append(Note("no-interval", f"{len(slow)} of {len(points)} sizes; for {slow[0]}"))
    if not one_clock:
        notes.append(
            Note(
                "skipped",
                "The ranks' machines do not share a clock, so each time is the longest that a rank "
                "spent inside the call, including waiting for other ranks.",
            )
        )
    evidence = Evidence.measured(where.device, sum(point.samples for point in points))
    return Sweep(
        where.device, "torch.distributed", tuple(points), None, tuple(notes), evidence, where
    )
