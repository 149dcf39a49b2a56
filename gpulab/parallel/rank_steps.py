"""The rank's side of measured scaling: one training step for each number of ranks, taken in turns;
and one collective again and again, its times, and the bytes that it sends.

Runs wherever torch.distributed has a process group: in engines of a cluster, and in the recorder's
own processes on a bare machine. So it needs torch alone. Nothing here decides how long to measure.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gpulab.devices import Device, conditions, environment
from gpulab.parallel._observe import machine, unobserved
from gpulab.parallel._rank import own_device, sent_between, sent_by_sockets, talks_nccl
from gpulab.parallel.scaling_steps import StepModel, StepSpec

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


class ScalingJob:
    """The steps of this rank, one for each number of ranks that it belongs to.

    Making it is collective: every rank of the world makes one, with the same spec.
    """

    def __init__(self, spec: StepSpec) -> None:
        self.spec, self.rank, world = spec, dist.get_rank(), dist.get_world_size()
        self.device = own_device()
        self.steps: dict[int, Callable[[], None]] = {}
        self.groups: list[Any] = []
        self.parameter_bytes = 0
        for count in spec.counts:
            group = dist.group.WORLD if count == world else dist.new_group(list(range(count)))  # type: ignore[attr-defined,unused-ignore]
            if count != world:
                self.groups.append(group)
            if self.rank < count:
                self.steps[count] = self._step(count, group)
        begin = time.perf_counter()
        self.turns(1, 0)
        self.first_seconds = time.perf_counter() - begin  # of one step at each number of ranks
        for _ in range(WARM_UP - 1):
            self.turns(1, 0)

    def _step(self, count: int, group: Any) -> Callable[[], None]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = self.spec.model.make()
            x, y = _samples(self.spec.model, self.spec.batch_of(count))
        self.parameter_bytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        if self.spec.wait_seconds is not None:
            seconds = self.spec.wait_seconds / (1 if self.spec.weak else count)
            gradients = torch.zeros(self.parameter_bytes // 4, device=self.device)

            def wait() -> None:
                time.sleep(seconds)
                if count > 1:
                    dist.all_reduce(gradients, group=group)

            return wait
        model, x, y = model.to(self.device), x.to(self.device), y.to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if count > 1:
            model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)

        def step() -> None:
            optimizer.zero_grad()
            scores = model(x)
            torch.nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    def turns(self, rounds: int, samples: int) -> Turns:
        """Take so many rounds of so many samples for each number of ranks in turn."""
        taken = Turns({count: [] for count in self.steps})
        for _ in range(rounds):
            for count in self.spec.counts:
                dist.barrier()  # those that take no part stand idle meanwhile
                if count not in self.steps:
                    continue
                before = conditions.read(Device("cpu")) if count == 1 else None
                # whoever watches the collectives looks at each operator, which would be timed too
                with unobserved():
                    seconds = self._samples(self.steps[count], DROPPED + samples)
                taken.seconds[count] += seconds[DROPPED:]
                if before is not None and before.run_delay_seconds is not None:
                    after = conditions.read(Device("cpu"))
                    taken.alone_seconds += after.seconds - before.seconds
                    taken.delay_seconds += (after.run_delay_seconds or 0) - before.run_delay_seconds
        return taken

    def _samples(self, step: Callable[[], None], count: int) -> list[float]:
        seconds, each, finish = [], self.spec.steps_a_sample, _waiter(self.device)
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

    def close(self) -> None:
        """Let go of the models and leave the groups; collective."""
        self.steps.clear()
        dist.barrier()
        for group in self.groups:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        self.groups.clear()


def _samples(model: StepModel, count: int) -> tuple[Any, Any]:
    shape = (count, *model.shape)
    if model.vocabulary:
        tokens = torch.randint(model.vocabulary, shape)
        return tokens, tokens
    return torch.randn(shape), torch.randint(_CLASSES, (count,))


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


def _call(operation: str, elements: int) -> Callable[[], Any]:
    """Return a collective as a function without arguments, with its tensors."""
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
    return calls[operation]


def timed_calls(operation: str, elements: int, count: int) -> list[tuple[float, float]]:
    """Make the calls of a collective, each after a barrier; return when this rank entered each and
    when it had its result (``time.perf_counter``).

    The first call is not timed. ``elements`` are float32, of the whole tensor; the ranks divide
    them.
    """
    call, finish = _call(operation, elements), _waiter(own_device())
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


def sent_bytes(operation: str, elements: int) -> tuple[int | None, str | None]:
    """Return what this rank's sockets send for one call, or None and why it cannot be counted.

    A barrier after the call waits for the last answers to other ranks; its own bytes, counted alone
    before, are taken off.
    """
    call, finish = _call(operation, elements), _waiter(own_device())
    with unobserved():
        for _ in range(2):  # the first may still be in flight on another rank
            dist.barrier()
        start = sent_by_sockets()
        dist.barrier()
        alone = sent_by_sockets()
        call()
        finish()
        dist.barrier()
    barrier, _ = sent_between(start, alone)
    both, reason = sent_between(alone, sent_by_sockets())
    return (None, reason) if both is None or barrier is None else (both - barrier, None)


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


_jobs: list[ScalingJob] = []  # of this rank, at most one


def begin(spec: StepSpec) -> int:
    """Make this rank's job, and return its gradients' bytes; what an interrupted measurement left
    is let go.
    """
    _jobs.clear()
    _jobs.append(ScalingJob(spec))
    return _jobs[0].parameter_bytes


def first_seconds() -> float:
    """Return how long the first step took, at each number of ranks once."""
    return _jobs[0].first_seconds


def turns(rounds: int, samples: int) -> Turns:
    """Take turns in this rank's job."""
    return _jobs[0].turns(rounds, samples)


def end() -> None:
    """Let go of this rank's job."""
    _jobs.pop().close()
