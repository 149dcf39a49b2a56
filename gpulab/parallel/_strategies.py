"""The registry of strategies: ways to train one model over several ranks, each of which must
compute what one process computes; and those in which every rank computes with the whole model.

A strategy says, before any rank works, whether it can split what was asked (``check``), and makes
inside each rank a ``Trainer`` that takes one step at a time (``build``). ``train`` gives every
strategy the same seed and the same whole batch, and does the rest: losses, memory, bytes, times and
the comparison with one process.

Here are data parallel strategies, in which every rank takes its part of the batch: by hand (each
gradient for itself), with PyTorch's ``DistributedDataParallel`` (buckets, while the backward pass
goes on), the same buckets after the backward pass, accumulation that leaves exchanges out, and
ZeRO: stage 1 also shares the optimizer's state out; in stages 2 and 3 (FSDP2) every rank keeps only
its share of the model. A layer's parameters are gathered just before they are used. Stage 3 lets go
of them after the forward pass and gathers them once more for the backward pass; stage 2 as FSDP2
has it keeps them in between. Gradients are summed and scattered, so each rank is left with those of
its share, and its optimizer knows nothing else. Strategies that split the model itself are in
``_strategies_split``.

How to add one: write a ``Trainer``, and a ``Strategy`` in ``STRATEGIES``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpulab import _given
from gpulab.errors import InputError, shown


@dataclass(frozen=True)
class Asked:
    """What a caller wants trained; known before any rank works.

    Attributes
    ----------
    model : torch.nn.Module
        The whole model, on the host.
    ranks, batch_size, microbatches : int
        The batch is that of a whole step, over all ranks; microbatches are the parts that a rank
        takes one after another, where a strategy has them.
    positions : int
        Of one item, where items are sequences: the inputs' second dimension, or 1 where they have
        none.
    """

    model: Any
    ranks: int
    batch_size: int
    microbatches: int
    positions: int


class Trainer(Protocol):
    """A model in training on one rank.

    Attributes
    ----------
    modules : list of torch.nn.Module
        What holds this rank's parameters.
    optimizer : torch.optim.Optimizer
    """

    modules: list[Any]
    optimizer: Any

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take one step on the whole batch (inputs, targets); return this rank's share of its mean
        loss, a detached scalar.

        The shares of all ranks add up to the mean loss of the whole batch.
        """

    def state(self) -> dict[str, Any]:
        """Return the whole model's parameters by their names in the whole model, plain tensors; {}
        on a rank that has none to return.

        Every rank calls it at the same time, so it may gather.
        """


@dataclass
class Setting:
    """What a strategy finds inside a rank.

    Attributes
    ----------
    rank, size : int
    device : torch.device
    model : torch.nn.Module
        The whole model, on the device, with the same weights on each rank.
    loss : callable
        ``loss(model, (inputs, targets))`` is the mean over the batch, a scalar tensor.
    make_optimizer : functools.partial
        From parameters to an optimizer: its class and arguments.
    microbatches : int
    bucket_bytes : int
        About this many bytes of gradients are sent together.
    phases : list of (name, begin, end)
        What the rank's thread did when, by ``time.perf_counter``.
    ends_in_wait : list of float
        When passes ended whose last part is a wait inside PyTorch that Python does not see: from
        the last collective that the pass entered until then, the thread stood.
    """

    rank: int
    size: int
    device: Any
    model: Any
    loss: Callable[[Any, tuple[Any, Any]], Any]
    make_optimizer: Any
    microbatches: int
    bucket_bytes: int
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    ends_in_wait: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def span(self, name: str, chunk: int = 0) -> Iterator[None]:
        """Note when the block began and ended, under its name on the timeline; blocks do not
        nest. ``chunk`` is that of a stage which has several.
        """
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.phases.append((name, begin, time.perf_counter()))

    def share(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return this rank's part of the whole batch: as many items as every other rank's."""
        count = len(batch[0]) // self.size
        mine = slice(self.rank * count, (self.rank + 1) * count)
        return batch[0][mine], batch[1][mine]


@dataclass(frozen=True)
class Strategy:
    """A way to train one model over several ranks.

    Attributes
    ----------
    name, summary : str
    build : callable
        From a ``Setting`` to a ``Trainer``, inside each rank.
    check : callable
        Takes ``Asked``; raises ``InputError`` where this strategy cannot split what was asked.
    """

    name: str
    summary: str
    build: Callable[[Setting], Trainer]
    check: Callable[[Asked], None] = lambda asked: None


def _known() -> dict[str, Strategy]:
    from gpulab.parallel import _strategies_split

    return {each.name: each for each in (*STRATEGIES, *_strategies_split.STRATEGIES)}


def strategies() -> tuple[str, ...]:
    """Return the names of the strategies that ``train`` knows.

    Examples
    --------
    >>> strategies()[:3]
    ('single', 'data', 'ddp')
    """
    return tuple(_known())


def strategy_named(strategy: Any) -> Strategy:
    """Return a strategy by its name; a ``Strategy`` is returned unchanged, and a function becomes
    data parallel with that function.

    Raises
    ------
    InputError
        If it is neither a name, nor a strategy, nor a function.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if callable(strategy):
        name = str(getattr(strategy, "__name__", "")) or shown(strategy)
        return Strategy(
            name,
            f"data parallel by {name}",
            lambda setting: ByHand(setting, strategy),
            lambda asked: divides_over_ranks(name, asked),
        )
    if not isinstance(strategy, str):
        raise InputError(
            f"train: strategy is {shown(strategy)}; expected a name or a function that averages a "
            f"model's gradients. Pass one of: {', '.join(strategies())}."
        )
    return _known()[_given.word("train", "strategy", strategy, strategies())]


def positions_of(inputs: Any) -> int:
    """Return the positions of an item of these inputs, as ``Asked`` counts them."""
    return int(inputs.shape[1]) if inputs.dim() > 1 else 1


def divides(name: str, asked: Asked, parts: int, what: str) -> None:
    """Refuse a batch that does not divide.

    Raises
    ------
    InputError
        If the batch is not a multiple of ``parts``: the mean of unequal parts' means is not the
        batch's mean.
    """
    if asked.batch_size % parts:
        below, above = asked.batch_size // parts * parts, (asked.batch_size // parts + 1) * parts
        raise InputError(
            f"train: a batch of {asked.batch_size} does not divide over {what} of {name}; expected "
            f"a multiple of {parts}, since the mean of unequal parts is not the batch's mean. Pass "
            f"batch_size={below or above}."
        )


def divides_over_ranks(name: str, asked: Asked) -> None:
    """Refuse a batch that the ranks cannot share out equally."""
    divides(name, asked, asked.ranks, f"the {asked.ranks} ranks")


class SingleProcess:
    """Every rank trains the whole model on the whole batch: what one process does."""

    splits_batch = False

    def __init__(self, setting: Setting) -> None:
        self.setting, self.model, self.whole = setting, setting.model, setting.model
        self.modules = [self.model]
        self.optimizer = setting.make_optimizer(self.model.parameters())

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step on the batch, or on this rank's part of it."""
        setting = self.setting
        part = setting.share(batch) if self.splits_batch else batch
        self.optimizer.zero_grad(set_to_none=True)
        with setting.span("forward"):
            loss = setting.loss(self.model, part)
        with setting.span("backward"):
            loss.backward()
        self.exchange()
        with setting.span("optimizer"):
            self.optimizer.step()
        return loss.detach() / setting.size

    def exchange(self) -> None:
        """Do what is to be done with the gradients before the optimizer uses them."""

    def state(self) -> dict[str, Any]:
        """Return the parameters; every rank has them all, and each says so, since they could have
        drifted apart.
        """
        return {name: parameter.detach() for name, parameter in self.whole.named_parameters()}


class ByHand(SingleProcess):
    """Data parallel as one writes it first: after the backward pass a function makes the gradients
    those of the whole batch.
    """

    splits_batch = True

    def __init__(self, setting: Setting, average: Callable[[Any], None]) -> None:
        super().__init__(setting)
        self.average = average

    def exchange(self) -> None:
        """Call the function."""
        with self.setting.span("average"):
            self.average(self.model)


def average_gradients(model: Any) -> None:
    """Make each gradient the mean over all ranks, one after another: data parallel in four lines.

    Parameters
    ----------
    model : torch.nn.Module
        After its backward pass; changed in place.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> layer = torch.nn.Linear(1, 1)
    >>> layer(torch.ones(1, 1)).sum().backward()
    >>> average_gradients(layer)
    >>> layer.weight.grad.item()
    1.0
    >>> dist.destroy_process_group()
    """
    import torch.distributed as dist

    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


class BucketsAfterwards(ByHand):
    """The gradients in the same buckets as DDP's, but sent only when the backward pass is over."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, self.send)

    def send(self, model: Any) -> None:
        """Average bucket by bucket."""
        import torch
        import torch.distributed as dist

        gradients = [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]
        for bucket in buckets(gradients, self.setting.bucket_bytes):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat)
            flat /= self.setting.size
            for gradient, part in zip(
                bucket, torch.split(flat, [gradient.numel() for gradient in bucket]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))


def buckets(tensors: list[Any], nbytes: int) -> list[list[Any]]:
    """Return the tensors in groups of at least ``nbytes`` (the last may be smaller), from the last
    tensor to the first.

    The last layers' gradients are ready first; DDP groups them in this order too.

    Examples
    --------
    >>> import torch
    >>> [len(bucket) for bucket in buckets([torch.ones(10)] * 5, 80)]
    [2, 2, 1]
    """
    groups: list[list[Any]] = []
    filled = nbytes
    for tensor in reversed(tensors):
        if filled >= nbytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.nbytes
    return groups


class Buckets(SingleProcess):
    """PyTorch's DistributedDataParallel: a bucket is sent as soon as its gradients are there,
    during the rest of the backward pass.
    """

    def __init__(self, setting: Setting, parts: int = 1) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(setting)
        self.parts = parts
        self.model = DistributedDataParallel(
            self.whole, bucket_cap_mb=setting.bucket_bytes / 2**20, gradient_as_bucket_view=True
        )

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step on this rank's part, in so many parts of its own; only the last one's
        backward pass exchanges.
        """
        setting = self.setting
        self.optimizer.zero_grad(set_to_none=True)
        inputs, targets = setting.share(batch)
        total: Any = 0.0
        for number, part in enumerate(
            zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True)
        ):
            last = number == self.parts - 1
            mark = f" {number}" if self.parts > 1 else ""
            with contextlib.nullcontext() if last else self.model.no_sync():
                with setting.span(f"forward{mark}"):
                    loss = setting.loss(self.model, part) / self.parts
                with setting.span(f"backward{mark}"):
                    loss.backward()
                    if last:
                        setting.ends_in_wait.append(time.perf_counter())
            total = total + loss.detach()
        with setting.span("optimizer"):
            self.optimizer.step()
        return total / setting.size


class SharedOptimizer(Buckets):
    """ZeRO stage 1: DDP, but each parameter's optimizer state lies on one rank, which updates it
    and sends the result to the others.
    """

    def __init__(self, setting: Setting) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        super().__init__(setting)
        make = setting.make_optimizer
        self.optimizer = ZeroRedundancyOptimizer(
            self.whole.parameters(), optimizer_class=make.func, **make.keywords
        )


class Sharded(SingleProcess):
    """FSDP2's ``fully_shard`` on each block, then on what is left of the model."""

    splits_batch = True

    def __init__(self, setting: Setting, *, reshard: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(setting.device.type, (setting.size,))
        for block in blocks_of(setting.model):
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(setting.model, mesh=mesh, reshard_after_forward=reshard)
        super().__init__(setting)

    def state(self) -> dict[str, Any]:
        """Gather the parameters; rank 0 returns them."""
        whole = {
            name: parameter.detach().full_tensor()
            for name, parameter in self.model.named_parameters()
        }
        return whole if self.setting.rank == 0 else {}


def blocks_of(model: Any) -> Iterator[Any]:
    """Return the parts that are gathered one at a time: the members of the model's lists of layers
    that have parameters.
    """
    import torch

    for child in model.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)):
            yield from (part for part in child if any(True for _ in part.parameters()))


def _check_sharding(name: str, asked: Asked) -> None:
    """Refuse a batch that does not divide, and a weight that two groups would both shard.

    Raises
    ------
    InputError
        In these cases.
    """
    divides_over_ranks(name, asked)
    groups = [
        {id(parameter) for parameter in block.parameters()} for block in blocks_of(asked.model)
    ]
    inside = [
        parameter
        for block in blocks_of(asked.model)
        for _, parameter in block.named_parameters(remove_duplicate=False)
    ]
    everywhere = [
        id(parameter) for _, parameter in asked.model.named_parameters(remove_duplicate=False)
    ]
    for parameter in inside:
        holders = sum(id(parameter) in group for group in groups)
        outside = everywhere.count(id(parameter)) > sum(
            id(other) == id(parameter) for other in inside
        )
        if holders + outside > 1:
            raise InputError(
                f"train: {name} gathers block by block, and two blocks of this "
                f"{type(asked.model).__name__} share a weight, which would become two that drift "
                "apart; expected each weight in one block. Build it without tied weights, or pass "
                "strategy='ddp'."
            )


def _check_accumulation(asked: Asked) -> None:
    parts = asked.ranks * asked.microbatches
    what = f"the {asked.ranks} ranks times {asked.microbatches} microbatches"
    divides("ddp-no-sync", asked, parts, what)


# In the order in which ``strategies`` names them.
STRATEGIES = (
    Strategy(
        "single",
        "every rank trains the whole model on the whole batch: nothing is sent, and nothing is "
        "gained",
        SingleProcess,
    ),
    Strategy(
        "data",
        "data parallel by hand: after the backward pass each gradient is averaged, one after "
        "another",
        lambda setting: ByHand(setting, average_gradients),
        lambda asked: divides_over_ranks("data", asked),
    ),
    Strategy(
        "ddp",
        "PyTorch's DDP: buckets of gradients are sent during the backward pass",
        Buckets,
        lambda asked: divides_over_ranks("ddp", asked),
    ),
    Strategy(
        "ddp-no-overlap",
        "the same buckets, sent when the backward pass is over",
        BucketsAfterwards,
        lambda asked: divides_over_ranks("ddp-no-overlap", asked),
    ),
    Strategy(
        "ddp-no-sync",
        "DDP with accumulation: a rank's part in microbatches, and only the last one's backward "
        "pass exchanges",
        lambda setting: Buckets(setting, setting.microbatches),
        _check_accumulation,
    ),
    Strategy(
        "zero1",
        "ZeRO stage 1: DDP with each parameter's optimizer state on one rank only",
        SharedOptimizer,
        lambda asked: divides_over_ranks("zero1", asked),
    ),
    Strategy(
        "zero2",
        "FSDP2, gathered parameters kept until the backward pass is over: gradients and optimizer "
        "state are sharded",
        lambda setting: Sharded(setting, reshard=False),
        lambda asked: _check_sharding("zero2", asked),
    ),
    Strategy(
        "zero3",
        "FSDP2: parameters, gradients and optimizer state are sharded; each block is gathered "
        "twice a step",
        lambda setting: Sharded(setting, reshard=True),
        lambda asked: _check_sharding("zero3", asked),
    ),
)
