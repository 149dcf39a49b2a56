"""What a rank does for ``train``: the same batches as one process, and notes on each step.

The steps fall into three parts. The first ones only train. One is followed storage by storage,
which slows it. The last ones are observed: their collectives, the bytes on the wire, and what the
rank's thread did when.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab import devices
from gpulab.evidence import Environment
from gpulab.parallel._rank import own_device
from gpulab.parallel._strategies import Setting, SingleProcess, Trainer, strategy_named
from gpulab.parallel._timeline import RankNotes, clocks_ahead
from gpulab.training.data_tasks import find_task

OBSERVED = 3  # steps at the end, where there are so many
FEWEST_STEPS = 3  # one that only trains, one followed, one observed
# Name to the class in torch.optim and its options beside the learning rate.
OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
}


@dataclass(frozen=True)
class TrainingJob:
    """What every rank has to do; see ``train`` for each."""

    strategy: Any
    task: Any
    model: Any
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
    """What a rank did and noted.

    Attributes
    ----------
    shares : list of float
        Of each step's mean loss.
    state : dict of str to torch.Tensor
        Parameters by name, on the host.
    environment : Environment
        Of the rank: where it computed.
    step_seconds : list of float
    peak_bytes : int
    peak_by_category, most_by_category : dict of str to int
    notes : RankNotes
        Of the observed steps.
    wire_bytes : int or None
        Sent in the observed steps; None with ``wire_reason``.
    wire_reason : str or None
    """

    shares: list[float]
    state: dict[str, Any]
    environment: Environment
    step_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    peak_by_category: dict[str, int] = field(default_factory=dict)
    most_by_category: dict[str, int] = field(default_factory=dict)
    notes: RankNotes | None = None
    wire_bytes: int | None = None
    wire_reason: str | None = None


def train_single_process(job: TrainingJob, *carried: Any) -> TrainingOutcome | None:
    """Train as one process does, on rank 0; the others have nothing to do.

    ``carried`` is in the job already: named apart, its own module travels with it.
    """
    import torch.distributed as dist

    # loaded on every rank where nobody waits: scikit-learn's first import can take longer than a
    # timeout
    _ = find_task(job.task).train
    if dist.get_rank() != 0:
        return None
    with _reproducible(job) as device:
        trainer = SingleProcess(_setting(job, device, 0, 1))
        shares = [trainer.step(batch) for batch in _batches(job, device)]
        state, here = _on_host(trainer.state()), devices.environment(own_device())
        return TrainingOutcome([float(share) for share in shares], state, here)


def train_on_rank(job: TrainingJob, *carried: Any) -> TrainingOutcome:
    """Train by the job's strategy; every rank calls it at the same time. ``carried``: as in
    ``train_single_process``.
    """
    import torch.distributed as dist

    # as in ``train_single_process``, which a kept reference leaves out
    _ = find_task(job.task).train
    with _reproducible(job) as device:
        setting = _setting(job, device, dist.get_rank(), dist.get_world_size())
        return _RankTraining(setting, strategy_named(job.strategy).build(setting)).outcome(
            _batches(job, device), job.steps
        )


class _RankTraining:
    """One rank's run."""

    def __init__(self, setting: Setting, trainer: Trainer) -> None:
        self.setting, self.trainer = setting, trainer
        self.shares: list[Any] = []
        self.seconds: list[float] = []
        self.begins: list[float] = []

    def outcome(self, batches: Iterator[tuple[Any, Any]], steps: int) -> TrainingOutcome:
        """Take all steps; return what was noted."""
        import torch.distributed as dist

        from gpulab.parallel._observe import observe
        from gpulab.parallel._rank import sent_between, sent_by_sockets

        for _ in range(steps - min(OBSERVED, steps - FEWEST_STEPS + 1) - 1):
            self._step(next(batches))
        memory = self._followed(next(batches))
        ahead = clocks_ahead(self.setting.device)
        ready = list(batches)
        del self.setting.phases[:], self.setting.ends_in_wait[:], self.begins[:]
        dist.barrier()  # so that the observed steps do not begin with what the followed one took
        before = sent_by_sockets()
        with observe() as seen:
            for batch in ready:
                self._step(batch)
            end = time.perf_counter()
        sent = sent_between(before, sent_by_sockets())
        # a completion is reported by another thread, a moment after the step went on
        deadline = time.perf_counter() + 1.0
        while seen.in_flight and time.perf_counter() < deadline:
            time.sleep(0.001)
        notes = RankNotes(
            tuple(self.setting.phases),
            seen.calls,
            seen.waits,
            tuple(self.setting.ends_in_wait),
            tuple(self.begins),
            end,
            ahead,
        )
        state = _on_host(self.trainer.state())
        shares = [float(share) for share in self.shares]
        here = devices.environment(own_device())
        return TrainingOutcome(shares, state, here, self.seconds, *memory, notes, *sent)

    def _step(self, batch: Any) -> None:
        import torch

        begin = time.perf_counter()
        self.begins.append(begin)
        self.shares.append(self.trainer.step(batch))
        if self.setting.device.type == "cuda":
            torch.cuda.synchronize(self.setting.device)
        self.seconds.append(time.perf_counter() - begin)

    def _followed(self, batch: Any) -> tuple[int, dict[str, int], dict[str, int]]:
        """Take a step whose storages are followed; return its peak, that by category, and the most
        of each category.
        """
        from gpulab.memory.training_step import optimizer_seen
        from gpulab.parallel._rank_tracker import RankTracker

        tracker = RankTracker(self.setting.device.type)
        for module in self.trainer.modules:
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    tracker.watch(parameter.grad, "gradients", name)
        tracker.watch_modules(self.trainer.modules)
        # ZeroRedundancyOptimizer's own lies inside
        inner = getattr(self.trainer.optimizer, "optim", self.trainer.optimizer)
        for state in inner.state.values():
            for value in state.values():
                if hasattr(value, "untyped_storage"):
                    tracker.watch(value, "optimizer")
        tracker.watch_inputs(batch)
        with optimizer_seen(tracker), tracker:
            self._step(batch)
        tracker.close()
        tracker.classify()
        event, peak = tracker.peak()
        return peak, tracker.bytes_at(event), tracker.most_by_category()


def _setting(job: TrainingJob, device: Any, rank: int, size: int) -> Setting:
    import torch

    task = find_task(job.task)
    model = task.make_model(job.seed) if job.model is None else job.model
    kind, options = OPTIMIZERS[job.optimizer]
    return Setting(
        rank=rank,
        size=size,
        device=device,
        model=model.to(device, getattr(torch, job.dtype)),
        loss=task.loss,
        # One parameter after another: the foreach form refuses plain tensors and DTensors side by
        # side.
        make_optimizer=functools.partial(
            getattr(torch.optim, kind), lr=job.learning_rate, foreach=False, **options
        ),
        microbatches=job.microbatches,
        bucket_bytes=job.bucket_bytes,
    )


def _batches(job: TrainingJob, device: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the whole batch of each step, in the order that ``training.fit`` takes for this
    seed.
    """
    import torch

    from gpulab.training.data_tasks import Order

    data = find_task(job.task).train
    for indices in Order(len(data), job.batch_size, job.seed, 0, job.steps):
        inputs, targets = data[torch.from_numpy(indices)]
        yield (
            inputs.to(device, getattr(torch, job.dtype) if inputs.is_floating_point() else None),
            targets.to(device),
        )


def _on_host(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


@contextlib.contextmanager
def _reproducible(job: TrainingJob) -> Iterator[Any]:
    """Give where this rank computes: its own GPU where the ranks talk through NCCL, else the
    processor.

    Within the block float32 means float32, random numbers come from the seed, and the rank's
    generator is put back afterwards.
    """
    import torch

    from gpulab.training.backend_switches import switches

    device = torch.device(own_device())
    with (
        torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else []),
        switches("float32", devices.find(str(device))),
    ):
        torch.manual_seed(job.seed)
        yield device
