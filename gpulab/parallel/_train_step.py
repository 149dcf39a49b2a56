"""What a rank does for ``train``: the same batches as one process, step by step, with what it notes
of memory, bytes and time; and the stop request that reaches it between two steps.

The steps fall into three parts. The first ones only train. One is followed storage by storage,
which slows it. The last ones are observed: their collectives, and what the rank's thread did when.

An interrupt ends a call immediately, and the ranks' results are lost: one may be a step ahead of
another. Here a file on the machine is the stop request. Rank 0 checks for it between two steps and
informs the other ranks one step ahead, through the store of the process group: so no rank waits for
the answer, and no collective is added to those that are observed.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulab import devices
from gpulab._files import TemporaryFolder
from gpulab.evidence import Environment
from gpulab.parallel._rank import own_device
from gpulab.parallel._strategies import Setting, SingleProcess, Trainer, strategy_named
from gpulab.parallel._timeline import RankNotes, clocks_ahead
from gpulab.training._tasks import task as find_task

if TYPE_CHECKING:
    from gpulab.parallel._cluster import Ranks

_POLL_SECONDS = 0.02
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
class StopRequest:
    """Where the ranks learn that they shall stop.

    Attributes
    ----------
    path : str
        The file that appears with the request; on another machine than rank 0's it is not seen.
    key : str
        Under which rank 0 tells the others, in the store of the process group.
    timeout_seconds : float
        How long they wait for its word: as long as a collective does.
    """

    path: str
    key: str
    timeout_seconds: float

    @property
    def made(self) -> bool:
        """Whether the request was made."""
        return Path(self.path).exists()


@contextlib.contextmanager
def stop_request(stop: Callable[[], bool] | None, ranks: Ranks) -> Iterator[StopRequest | None]:
    """Call ``stop`` a few times a second while the block runs, and pass its answer on as a
    `StopRequest`; None without a ``stop``.

    Ranks of other machines cannot see the file: they are interrupted.
    """
    if stop is None:
        yield None
        return
    folder, done = TemporaryFolder("stop"), threading.Event()
    request = StopRequest(
        f"{folder.name}/stop", f"gpulab-stop-{uuid.uuid4().hex}", ranks.timeout_seconds
    )
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            while not stop():
                if done.wait(_POLL_SECONDS):
                    return
        except BaseException as error:  # its owner hears of it where the block ends
            failures.append(error)
        Path(request.path).touch()
        if set(ranks.hosts) != {socket.gethostname()}:
            ranks.interrupt()

    watcher = threading.Thread(target=watch, name="gpulab-stop", daemon=True)
    watcher.start()
    try:
        yield request
    finally:
        done.set()
        watcher.join()
        folder.cleanup()
        if failures:
            raise failures[0]


class Agreement:
    """Whether the ranks take their next step: rank 0's word of one step before, the same for all.
    Every rank of the group makes one.
    """

    def __init__(self, request: StopRequest | None) -> None:
        from torch.distributed import distributed_c10d

        self.request, self.store = request, distributed_c10d._get_default_store()
        self.word = True  # rank 0's for the next step

    def go(self, step: int) -> bool:
        """Return whether to take a step; asked before each, from 0 on."""
        import torch.distributed as dist

        if self.request is None:
            return True
        key = f"{self.request.key}-"
        if dist.get_rank() == 0:
            word, self.word = self.word, not self.request.made
            self.store.set(f"{key}{step + 1}", "go" if self.word else "stop")
            return word
        if step:
            wait = datetime.timedelta(seconds=self.request.timeout_seconds)
            self.store.wait([f"{key}{step}"], wait)
        return step == 0 or bool(self.store.get(f"{key}{step}") == b"go")


@dataclass(frozen=True)
class TrainingJob:
    """What every rank is told to do; see ``train`` for each."""

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
    stop_request: StopRequest | None = None


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


def train_single_process(job: TrainingJob, *carried: Any) -> TrainingOutcome | None:
    """Train as one process does, on rank 0; the others have nothing to do, and a stop request ends
    it with nothing.

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
        shares, states = [], []
        for number, batch in enumerate(_batches(job, device)):
            if job.stop_request is not None and job.stop_request.made:
                return None
            shares.append(trainer.step(batch))
            if number >= job.steps - OBSERVED:
                states.append(_on_host(trainer.state()))
        here = devices.environment(own_device())
        return TrainingOutcome(
            [float(share) for share in shares], states.pop(), here, earlier=states
        )


def train_on_rank(job: TrainingJob, *carried: Any) -> TrainingOutcome | None:
    """Train by the job's strategy; every rank calls it at the same time. ``carried``: as in
    ``train_single_process``.

    None where a stop request came before a step was observed.
    """
    import torch.distributed as dist

    # as in ``train_single_process``, which a kept reference leaves out
    _ = find_task(job.task).train
    with _reproducible(job) as device:
        setting = _setting(job, device, dist.get_rank(), dist.get_world_size())
        return _RankTraining(job, setting, strategy_named(job.strategy).build(setting)).outcome()


class _RankTraining:
    """One rank's run."""

    def __init__(self, job: TrainingJob, setting: Setting, trainer: Trainer) -> None:
        self.job, self.setting, self.trainer = job, setting, trainer
        self.shares: list[Any] = []
        self.seconds: list[float] = []
        self.begins: list[float] = []
        self.agreement = Agreement(job.stop_request)

    def outcome(self) -> TrainingOutcome | None:
        """Take all steps, or those until a stop request; return what was noted, None where no step
        was observed.
        """
        import torch.distributed as dist

        from gpulab.parallel._observe import observe
        from gpulab.parallel._rank import sent_between, sent_by_sockets

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
        before = sent_by_sockets()
        with observe() as seen:
            for number, batch in enumerate(ready):
                if number > 0 and not self._goes_on():
                    break
                self._step(batch)
            end = time.perf_counter()
        sent = sent_between(before, sent_by_sockets())
        # a completion is told by another thread, a moment after the step went on
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

    def _goes_on(self) -> bool:
        return self.agreement.go(len(self.seconds))

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
def _reproducible(job: TrainingJob) -> Iterator[Any]:
    """Give where this rank computes: its own GPU where the ranks talk through NCCL, else the
    processor.

    Within the block float32 means float32, random numbers come from the seed, and the rank's
    generator is put back afterwards.
    """
    import torch

    from gpulab.training._settings import switches

    device = torch.device(own_device())
    with (
        torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else []),
        switches("float32", devices.find(str(device))),
    ):
        torch.manual_seed(job.seed)
        yield device
