"""Steps whose scaling over ranks is measured: the models, the rank's side of it, what one rank and
the link predict, and recorded ones.

The rank's side is one training step for each number of ranks, taken in turns; and one collective
again and again, its times, and the bytes that it sends. It runs wherever torch.distributed has a
process group: in engines of a cluster, and in the recorder's own processes on a bare machine. So it
needs torch alone. Nothing here decides how long to measure.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gpulab import _validate, models, networks
from gpulab.devices import Device, conditions, environment
from gpulab.models.parallelism import MODES
from gpulab.parallel._observe import machine, unobserved
from gpulab.parallel.rank_results import COMPUTED, ScalingMeasurement, ScalingResult
from gpulab.recordings import Recording, Timing
from gpulab.recordings.schema import require_recordings
from gpulab.transfer import AlphaBeta, fit

_EXPERIMENT = "data-parallel scaling"
_FEWEST_SIZES = 3  # of the recorded all-reduce, for a fit


@dataclass(frozen=True)
class StepModel:
    """A model whose step is measured: how it is made, and what one sample is.

    Attributes
    ----------
    words : str
    make : callable
        ``make()`` returns the network, which the caller's seed decides.
    shape : tuple of int
        Of one sample.
    vocabulary : int
        Of a language model, whose samples are tokens and whose targets are too; 0 for samples of
        numbers.
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
    """What each rank is asked to do.

    Attributes
    ----------
    model : StepModel
    batch : int
        In strong scaling of all ranks together, in weak scaling of each.
    weak : bool
    counts : tuple of int
        Numbers of ranks, in the order of their turns.
    wait_seconds : float or None
        Not None: a rank waits so long (in strong scaling divided by the ranks) in place of
        computing, then averages the gradients.
    steps_a_sample : int
        On an accelerator several, with one wait for the device.
    """

    model: StepModel
    batch: int
    weak: bool
    counts: tuple[int, ...]
    wait_seconds: float | None = None
    steps_a_sample: int = 1

    def batch_of(self, count: int) -> int:
        """Return how many samples each of so many ranks has."""
        return self.batch if self.weak else self.batch // count


# steps: DDP arranges its buckets anew after the first, and the optimizer makes its state
WARM_UP = 3
DROPPED = 1  # of each turn: the step that finds the caches full of another model


_CLASSES = 10


@dataclass
class Turns:
    """What one rank saw in its turns.

    Attributes
    ----------
    seconds : dict of int to list of float
        Number of ranks to the seconds of each step.
    alone_seconds, delay_seconds : float
        How long this rank worked alone, and how much of that it was ready to work and had no core:
        others were there.
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
    """Return the bytes of a model's parameters, which are those of its gradients."""
    with torch.device("meta"):  # a copy without storage
        return sum(p.nbytes for p in model.make().parameters() if p.requires_grad)


def begin(spec: StepSpec) -> float:
    """Make this rank's steps; every rank of the world does, with the same spec. Return how long the
    first step took, at each number of ranks once. What an interrupted measurement left is let go.
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
    for _ in range(WARM_UP - 1):
        turns(1, 0)
    return first_seconds


def _step(spec: StepSpec, count: int, group: Any, device: str) -> Callable[[], None]:
    if spec.wait_seconds is not None:
        seconds = spec.wait_seconds / (1 if spec.weak else count)
        gradients = torch.zeros(parameter_bytes(spec.model) // 4, device=device)

        def wait() -> None:
            time.sleep(seconds)
            if count > 1:
                dist.all_reduce(gradients, group=group)

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
        scores = model(x)
        torch.nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def turns(rounds: int, samples: int) -> Turns:
    """Take so many rounds of so many samples for each number of ranks in turn."""
    job = _jobs[0]
    taken = Turns({count: [] for count in job.steps})
    for _ in range(rounds):
        for count in job.spec.counts:
            dist.barrier()  # those that take no part stand idle meanwhile
            if count not in job.steps:
                continue
            before = conditions.read(Device("cpu")) if count == 1 else None
            # whoever watches the collectives looks at each operator, which would be timed too
            with unobserved():
                seconds = _sampled(job, job.steps[count], DROPPED + samples)
            taken.seconds[count] += seconds[DROPPED:]
            if before is not None and before.run_delay_seconds is not None:
                after = conditions.read(Device("cpu"))
                taken.alone_seconds += after.seconds - before.seconds
                taken.delay_seconds += (after.run_delay_seconds or 0) - before.run_delay_seconds
    return taken


def _sampled(job: _Job, step: Callable[[], None], count: int) -> list[float]:
    seconds, each, finish = [], job.spec.steps_a_sample, _waiter(job.device)
    finish()
    last = time.perf_counter()
    for _ in range(count):
        for _ in range(each):
            step()
        finish()
        now = time.perf_counter()
        seconds.append((now - last) / each)
        last = now
    return seconds


def end() -> None:
    """Let go of this rank's models and leave the groups; collective."""
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
    """Whether tensors on a GPU go over NCCL; the group may have gloo beside it, for those on the
    CPU ("cpu:gloo,cuda:nccl").
    """
    return "nccl" in str(dist.get_backend())


def own_device() -> str:
    """Return where this rank computes: with NCCL on the GPU of its local number, which becomes
    torch's current one; else on the CPU.
    """
    if not talks_nccl():
        return "cpu"

    number = int(os.environ.get("LOCAL_RANK", dist.get_rank())) % torch.cuda.device_count()
    torch.cuda.set_device(number)
    return f"cuda:{number}"


def facts() -> dict[str, Any]:
    """Return what says how many ranks can work at once (the host, the cores this rank may use, its
    threads), whether ranks share a clock (one running kernel), how they talk, and where this one
    computes.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return {
        "host": socket.gethostname(),
        "clock": machine(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "accelerators": torch.cuda.device_count() if talks_nccl() else 0,
        "backend": str(dist.get_backend()),
        "environment": environment(own_device()),
    }


def _waiter(device: str) -> Callable[[], object]:
    """Return what waits until a device has done its work."""
    return (lambda: None) if device == "cpu" else partial(torch.cuda.synchronize, device)


def collective(operation: str, elements: int) -> tuple[Callable[[], Any], Callable[[], object]]:
    """Return a collective as a function without arguments, with its tensors; and what waits until
    the device has done it.
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
    """Make the calls of a collective, each after a barrier; return when this rank entered each and
    when it had its result (``time.perf_counter``).

    The first call is not timed. ``elements`` are float32, of the whole tensor; the ranks divide
    them.
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
    """Return ``timed_calls`` of a collective to which each rank gives about so many bytes: of
    ``all_gather`` its own part, of ``reduce_scatter`` all parts together.
    """
    world = dist.get_world_size()
    elements = max(world, nbytes // 4 // world * world)
    return timed_calls(name, elements * (world if name == "all_gather" else 1), repeats)


def call_seconds(
    of_ranks: Sequence[Sequence[tuple[float, float]]], one_clock: bool = True
) -> list[float]:
    """Return the seconds of each call, from when the last rank had entered until the last one had
    its result.

    With ``one_clock=False`` (ranks on several hosts, whose clocks have nothing in common) it is the
    longest that a rank was inside.
    """
    calls = list(zip(*of_ranks, strict=True))
    if not one_clock:
        return [max(end - begin for begin, end in call) for call in calls]
    return [max(end for _, end in call) - max(begin for begin, _ in call) for call in calls]


def slowest(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the samples of the rank that took longest in all; averaging gradients keeps ranks
    together, so any has the pace.
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
    the names of ``ScalingResult``: the link, and the steps without overlap and with the largest
    possible one; None where one of them was not measured.
    """
    if line is None or one_seconds is None:
        return dict.fromkeys(_PREDICTED)
    # From the ring of all ranks to one message, so that smaller rings can be predicted.
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


@_validate.arguments(mode=partial(_validate.word, known=MODES))
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
    require_recordings("recorded_scaling", recording)
    wanted = recording.select(_EXPERIMENT, mode=mode)
    # a later version of gpulab may have recorded another
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
                # recorded steps did not take turns: the interval joins those of both times
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
    """Return a point; ``over_one`` is the ratio of one rank's seconds to these, with its interval,
    where there is one.
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
    """Return the ratio of two medians, and its interval by the method of variance estimates
    recovery, on logs.

    Source: Zou and Donner, Statistics in Medicine 27 (2008), 1693; as
    ``gpulab.timing.statistics.ratio_interval`` does from samples.
    """
    first, second = one.interval_seconds, mine.interval_seconds
    ratio = one.median_seconds / mine.median_seconds
    if mine is one:
        return ratio, (1.0, 1.0)
    if first is None or second is None or first[0] <= 0 or second[0] <= 0:
        return ratio, None
    a, b = math.log(one.median_seconds), math.log(mine.median_seconds)
    down, up = (
        math.hypot(a - math.log(first[0]), math.log(second[1]) - b),
        math.hypot(math.log(first[1]) - a, b - math.log(second[0])),
    )
    return ratio, (math.exp(a - b - down), math.exp(a - b + up))


def _recorded_line(recording: Recording, ranks: int) -> AlphaBeta | None:
    """Return the fit of the recorded all-reduce on so many ranks."""
    entries = [
        entry
        for entry in recording.select("collectives", collective="all_reduce", ranks=ranks)
        if entry.timing is not None
    ]
    if ranks < 2 or len(entries) < _FEWEST_SIZES:
        return None
    sizes = [float(entry.params["nbytes"]) for entry in entries]
    return fit(
        sizes,
        [entry.timing.median_seconds for entry in entries if entry.timing is not None],
        recording.evidence(entries[0]),
    )
