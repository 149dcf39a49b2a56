"""What a rank does for ``train``: the same batches as one process, step by step, with what it notes
of memory, bytes and time.

The steps fall into three parts. The first ones only train. One is followed storage by storage,
which slows it. The last ones are observed: their collectives, the bytes on the wire, and what the
rank's thread did when.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab import devices
from gpulab.evidence import Environment
from gpulab.parallel._backend import own_device
from gpulab.parallel._calls import CollectiveCall
from gpulab.parallel._stop import Agreed, Wish
from gpulab.parallel._strategies import Setting, Trainer, strategy_named
from gpulab.parallel._timeline import RankNotes, clocks_ahead
from gpulab.training._tasks import task as find_task

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
class Job:
    """What every rank is told to do; see ``train`` for each, and ``_stop`` for the wish."""

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
    wish: Wish | None = None


@dataclass(frozen=True)
class Outcome:
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
    earlier : list of dict
        Of one process alone: ``state`` after each of the steps before the last that are observed on
        ranks, for a run that ends there.
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
    earlier: list[dict[str, Any]] = field(default_factory=list)


class OptimizerMaker:
    """From parameters to an optimizer, the same on every rank."""

    def __init__(self, name: str, learning_rate: float) -> None:
        import torch

        kind, options = OPTIMIZERS[name]
        self.kind: Any = getattr(torch.optim, kind)
        # One parameter after another: the foreach form refuses plain tensors and DTensors side by
        # side.
        self.options: dict[str, Any] = {"lr": learning_rate, **options, "foreach": False}

    def __call__(self, parameters: Any) -> Any:
        """Return the optimizer."""
        return self.kind(parameters, **self.options)


def alone(job: Job, *carried: Any) -> Outcome | None:
    """Train as one process does, on rank 0; the others have nothing to do, and a wish to stop ends
    it with nothing.

    ``carried`` is in the job already: named apart, its own module travels with it.
    """
    import torch.distributed as dist

    from gpulab.parallel._strategies_data import Alone

    # loaded on every rank where nobody waits: scikit-learn's first import can take longer than a
    # timeout
    _ = find_task(job.task).train
    if dist.get_rank() != 0:
        return None
    with _quiet(job, _device()):
        setting = _setting(job, 0, 1)
        trainer = Alone(setting)
        shares, states = [], []
        for number, batch in enumerate(_batches(job, setting.device)):
            if job.wish is not None and job.wish.made:
                return None
            shares.append(trainer.step(batch))
            if number >= job.steps - OBSERVED:
                states.append(_on_host(trainer.state()))
        return Outcome(
            [float(share) for share in shares], states.pop(), _environment(), earlier=states
        )


def work(job: Job, *carried: Any) -> Outcome | None:
    """Train by the job's strategy; every rank calls it at the same time. ``carried``: as in
    ``alone``.

    None where a wish to stop came before a step was observed.
    """
    import torch.distributed as dist

    _ = find_task(job.task).train  # as in ``alone``, which a kept reference leaves out
    with _quiet(job, _device()):
        setting = _setting(job, dist.get_rank(), dist.get_world_size())
        return _Work(job, setting, strategy_named(job.strategy).build(setting)).done()


class _Work:
    """One rank's run."""

    def __init__(self, job: Job, setting: Setting, trainer: Trainer) -> None:
        self.job, self.setting, self.trainer = job, setting, trainer
        self.shares: list[Any] = []
        self.seconds: list[float] = []
        self.begins: list[float] = []
        self.agreed = Agreed(job.wish)

    def done(self) -> Outcome | None:
        """Take all steps, or those until a wish to stop; return what was noted, None where no step
        was observed.
        """
        import torch.distributed as dist

        from gpulab.parallel._observe import observe
        from gpulab.parallel._wire import sent_between, sent_by_socket

        observed = min(OBSERVED, self.job.steps - FEWEST_STEPS + 1)
        batches = _batches(self.job, self.setting.device)
        for _ in range(self.job.steps - observed - 1):
            if not self._goes_on():
                return None
            self._step(next(batches))
        if not self._goes_on():
            return None
        memory = self._followed(next(batches))
        if not self._goes_on():
            return None
        ahead = clocks_ahead(self.setting.device)
        ready = list(batches)
        del self.setting.phases[:], self.setting.ends_in_wait[:], self.begins[:]
        dist.barrier()  # so that the observed steps do not begin with what the followed one took
        before = sent_by_socket()
        with observe() as seen:
            for number, batch in enumerate(ready):
                if number > 0 and not self._goes_on():
                    break
                self._step(batch)
            end = time.perf_counter()
        sent = sent_between(before, sent_by_socket())
        notes = RankNotes(
            tuple(self.setting.phases),
            _ended(seen),
            seen.waits,
            tuple(self.setting.ends_in_wait),
            tuple(self.begins),
            end,
            ahead,
        )
        state = _on_host(self.trainer.state())
        shares = [float(share) for share in self.shares]
        return Outcome(shares, state, _environment(), self.seconds, *memory, notes, *sent)

    def _goes_on(self) -> bool:
        return self.agreed.go(len(self.seconds))

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
        from gpulab.memory._step import optimizer_seen
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
        by_category: dict[str, int] = {}
        for tensor in tracker.alive_at(event):
            by_category[tensor.category] = by_category.get(tensor.category, 0) + tensor.nbytes
        return peak, by_category, most_by_category(tracker)


def most_by_category(tracker: Any) -> dict[str, int]:
    """Return the most bytes that each category held at any moment of what a tracker followed."""
    count = len(tracker.operators)
    changes: dict[str, np.ndarray] = {}
    for record in tracker.records:
        if record.born < count:
            change = changes.setdefault(
                record.category or "temporary", np.zeros(count + 1, dtype=np.int64)
            )
            change[record.born] += record.nbytes
            change[min(record.died, count)] -= record.nbytes
    return {category: int(np.cumsum(change)[:count].max()) for category, change in changes.items()}


def _ended(seen: Any) -> tuple[CollectiveCall, ...]:
    """Return the calls once each has its end: a completion is told by another thread, a moment
    after the step went on.
    """
    deadline = time.perf_counter() + 1.0
    while seen.in_flight and time.perf_counter() < deadline:
        time.sleep(0.001)
    calls: tuple[CollectiveCall, ...] = seen.calls
    return calls


def _setting(job: Job, rank: int, size: int) -> Setting:
    import torch

    device, task = _device(), find_task(job.task)
    model = task.make_model(job.seed) if job.model is None else job.model
    return Setting(
        rank=rank,
        size=size,
        device=device,
        model=model.to(device, getattr(torch, job.dtype)),
        loss=task.loss,
        make_optimizer=OptimizerMaker(job.optimizer, job.learning_rate),
        microbatches=job.microbatches,
        bucket_bytes=job.bucket_bytes,
    )


def _device() -> Any:
    """Return where this rank computes: its own GPU where the ranks talk through NCCL, else the
    processor.
    """
    import torch

    return torch.device(own_device())


def _environment() -> Environment:
    return devices.environment(own_device())


def _batches(job: Job, device: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the whole batch of each step, in the order that ``training.fit`` takes for this
    seed.
    """
    import torch

    from gpulab.training._feed import Order

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
def _quiet(job: Job, device: Any) -> Iterator[None]:
    """Within the block float32 means float32, random numbers come from the seed, and the rank's
    generator is put back afterwards.
    """
    import torch

    from gpulab.training._settings import switches

    with (
        torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else []),
        switches("float32", devices.find(str(device))),
    ):
        torch.manual_seed(job.seed)
        yield
