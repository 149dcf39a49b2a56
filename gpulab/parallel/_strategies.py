"""The registry of strategies: ways to train one model over several ranks, each of which must
compute what one process computes.

Before any rank works, a strategy says whether it can split the model and the batch (``check``).
Inside each rank it makes a ``Trainer`` that takes one step at a time (``build``). ``train`` gives
every strategy the same seed and the same whole batch, and does the rest: losses, memory, bytes,
times and the comparison with one process.

In the data parallel strategies every rank takes its part of the batch. Gradients are averaged by
hand, one after another; by PyTorch's ``DistributedDataParallel``, in buckets during the backward
pass; in the same buckets after the backward pass; or by ZeRO. ZeRO's stage 1 also divides the
optimizer's state among the ranks. In stages 2 and 3 (FSDP2) every rank keeps only its share of the
model, and a layer's parameters are gathered just before they are used. Stage 3 frees them after the
forward pass and gathers them once more for the backward pass; stage 2, as FSDP2 has it, keeps them
in between. Gradients are summed and scattered, so that each rank has the gradients of its share,
and its optimizer updates only this share. The other strategies split the model itself: within its
layers, or into stages.

Tensor parallel: every rank works on the whole batch with a part of each layer. Of two consecutive
linear layers, the first is split by columns (each rank computes some of the features) and the
second by rows (each rank uses its features, and the results are summed). Each such pair needs one
sum in the forward pass and one in the backward pass. In attention the features are heads. Source:
Shoeybi et al., "Megatron-LM", 2019, section 3. The splitting is PyTorch's DTensor.

Stages, one per rank: by hand, as people write it first, the batch goes through rank after rank, and
its gradient comes back the same way, so that one rank works while the others wait. A pipeline cuts
the batch into microbatches, so that stages work at the same time; the schedules are PyTorch's own
(``torch.distributed.pipelining``). ``gpulab.models.pipeline_schedule`` computes when stages wait.

How to add one: write a ``Trainer``, and a ``Strategy`` in ``STRATEGIES``.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from gpulab.errors import InputError, kind_of
from gpulab.networks import Block, BlockNet, SmallCNN, SmallMLP, SmallTransformer
from gpulab.units import plural


@dataclass
class Setting:
    """Everything that a strategy gets inside a rank.

    Attributes
    ----------
    rank, size : int
    device : torch.device
    model : torch.nn.Module
        The whole model, on the device, with the same weights on each rank.
    loss : callable
        ``loss(model, (inputs, targets))`` is the mean over the batch, a scalar tensor.
    make_optimizer : functools.partial
        Makes an optimizer from parameters: its class with its arguments.
    microbatches : int
    bucket_bytes : int
        About this many bytes of gradients are sent together.
    phases : list of (name, begin, end)
        What the rank's thread did when, by ``time.perf_counter``.
    ends_in_wait : list of float
        The ends of passes that finish with a wait inside PyTorch, which Python does not see. The
        thread waited from its entry into the last collective of the pass until this end.
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
        """Record when the block began and ended, under its name on the timeline; blocks do not
        nest. ``chunk`` is the number of the chunk, for a stage that has several.
        """
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.phases.append((name, begin, time.perf_counter()))


class Strategy(NamedTuple):
    """A way to train one model over several ranks.

    Attributes
    ----------
    build : callable
        Makes a `Trainer` from a ``Setting``, inside each rank. The trainer's ``modules`` hold this
        rank's parameters, which its ``optimizer`` updates. ``step(batch)`` takes one step on a
        batch (inputs, targets), this rank's part or the whole (see ``splits_batch``). It returns
        this rank's share of the mean loss of the whole batch, a detached scalar; the shares of all
        ranks add up to that loss. ``state()``, which every rank calls at the same time, returns
        parameters as plain tensors, by their names in the whole model. A rank may return only some
        of them; all ranks together return all.
    check : callable
        ``check(name, model, ranks, batch_size, microbatches)``, called before any rank works, with
        the whole model on the host and the batch size of a whole step. It returns why this strategy
        cannot split them, as a sentence that continues after the name; "" if it can.
    splits_batch : bool
        Whether each rank's step takes its own part of the batch, of the same size on every rank;
        else all ranks take the whole batch.
    """

    build: Callable[[Setting], Trainer]
    check: Callable[[str, Any, int, int, int], str]
    splits_batch: bool = False


def strategies() -> tuple[str, ...]:
    """Return the names of the strategies that ``train`` knows.

    Examples
    --------
    >>> strategies()[:3]
    ('single', 'data', 'ddp')
    """
    return tuple(STRATEGIES)


def refuse_unsplit(
    function: str, name: str, model: Any, ranks: int, batch_size: int, microbatches: int
) -> None:
    """Refuse a model or a batch that a strategy cannot split; ``function`` is the public function
    that the message names.

    Raises
    ------
    InputError
        If the strategy cannot split them; the message has the strategy's own sentence.
    """
    reason = STRATEGIES[name].check(name, model, ranks, batch_size, microbatches)
    if reason:
        raise InputError(f"{function}: {name} {reason}")


def _undivided(batch_size: int, parts: int, what: str) -> str:
    """Return why a batch cannot be divided into equal parts; "" if it can.

    Parts must be equal because the mean of the means of unequal parts is not the batch's mean.
    """
    if batch_size % parts == 0:
        return ""
    return (
        f"cannot divide a batch of {batch_size} evenly among {parts} {what}; expected a multiple "
        f"of {parts}, since the mean of the means of unequal parts is not the batch's mean. Take a "
        f"batch of {batch_size // parts * parts or parts}."
    )


def _over_ranks(name: str, model: Any, ranks: int, batch_size: int, microbatches: int) -> str:
    return _undivided(batch_size, ranks, "ranks")


class SingleProcess:
    """Every rank trains the whole model on the batch that it is given, as one process does.

    ``average`` is for ranks that take parts of a batch: it averages their gradients, which gives
    those of the whole batch. This is data parallelism as people write it first.
    """

    def __init__(self, setting: Setting, average: Callable[[Any], None] | None = None) -> None:
        self.setting, self.model, self.whole = setting, setting.model, setting.model
        self.average = average
        self.modules = [self.model]
        self.optimizer = setting.make_optimizer(self.model.parameters())

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step on the batch."""
        setting = self.setting
        self.optimizer.zero_grad(set_to_none=True)
        with setting.span("forward"):
            loss = setting.loss(self.model, batch)
        with setting.span("backward"):
            loss.backward()
        self.exchange()
        with setting.span("optimizer"):
            self.optimizer.step()
        return loss.detach() / setting.size

    def exchange(self) -> None:
        """Exchange gradients with the other ranks, if needed, before the optimizer uses them."""
        if self.average is not None:
            with self.setting.span("average"):
                self.average(self.model)

    def state(self) -> dict[str, Any]:
        """Return all parameters, gathered if ranks have only shares of them. Every rank returns
        them, since the copies of different ranks could have drifted apart.
        """
        values = {name: parameter.detach() for name, parameter in self.whole.named_parameters()}
        return {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in values.items()
        }


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
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def average_in_buckets(bucket_bytes: int, model: Any) -> None:
    """Average the gradients in the same buckets as DDP's, but when the backward pass is over."""
    # in reverse order, since the gradients of the last layers are ready first
    gradients = [p.grad for p in reversed(list(model.parameters())) if p.grad is not None]
    buckets, _ = dist._compute_bucket_assignment_by_size(gradients, [bucket_bytes])  # type: ignore[attr-defined]
    for bucket in buckets:
        flat = torch.cat([gradients[place].flatten() for place in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = torch.split(flat, [gradients[place].numel() for place in bucket])
        for place, part in zip(bucket, parts, strict=True):
            gradients[place].copy_(part.view_as(gradients[place]))


class Buckets(SingleProcess):
    """PyTorch's DistributedDataParallel: a bucket is sent as soon as its gradients are ready,
    during the rest of the backward pass.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.model = DistributedDataParallel(
            self.whole, bucket_cap_mb=setting.bucket_bytes / 2**20, gradient_as_bucket_view=True
        )

    def exchange(self) -> None:
        """Record the end of the backward pass, at which DDP has waited for the last bucket."""
        self.setting.ends_in_wait.append(time.perf_counter())


class SharedOptimizer(Buckets):
    """ZeRO stage 1: DDP, but each parameter's optimizer state lies on one rank, which updates it
    and sends the result to the others.
    """

    def __init__(self, setting: Setting) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # takes a second

        super().__init__(setting)
        make = setting.make_optimizer
        self.optimizer = ZeroRedundancyOptimizer(
            self.whole.parameters(), optimizer_class=make.func, **make.keywords
        )


class Sharded(SingleProcess):
    """FSDP2's ``fully_shard`` on each block, then on the rest of the model."""

    def __init__(self, setting: Setting, *, reshard: bool) -> None:
        mesh = init_device_mesh(setting.device.type, (setting.size,))
        for block in blocks_of(setting.model):
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(setting.model, mesh=mesh, reshard_after_forward=reshard)
        super().__init__(setting)


def blocks_of(model: Any) -> Iterator[Any]:
    """Yield the parts that are gathered one at a time: of the model's lists of layers
    (``ModuleList``, ``Sequential``), the members that have parameters.
    """
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            yield from filter(_has_parameters, child)


def _check_sharding(name: str, model: Any, ranks: int, batch_size: int, microbatches: int) -> str:
    """Return why the model or the batch cannot be sharded; "" if they can.

    Reasons are a weight that two groups would both shard, and a batch that does not divide.
    """
    blocks = list(blocks_of(model))
    inside = {id(module) for block in blocks for module in block.modules()}
    rest = {
        id(parameter)
        for module in model.modules()
        if id(module) not in inside
        for parameter in module.parameters(recurse=False)
    }
    groups = [*({id(parameter) for parameter in block.parameters()} for block in blocks), rest]
    if sum(map(len, groups)) > len(set().union(*groups)):
        return (
            f"gathers block by block, and two blocks of this {type(model).__name__} share a "
            "weight, which would become two that drift apart; expected each weight in one block. "
            "Build it without tied weights, or pass strategy='ddp'."
        )
    return _undivided(batch_size, ranks, "ranks")


class SplitLayers(SingleProcess):
    """A model whose pairs of linear layers are split over the ranks."""

    def __init__(self, setting: Setting) -> None:
        mesh = init_device_mesh(setting.device.type, (setting.size,))
        # ``first`` are split by columns; ``second``, each after one of ``first``, by rows. In a
        # model with transformer blocks ``layers`` may be anything, such as their number.
        blocks = _blocks(setting.model)
        places = ([], []) if blocks else _pairs(setting.model)
        first, second = ([f"layers.{i}" for i in of_kind] for of_kind in places)
        for number, block in enumerate(blocks):
            first += [f"blocks.{number}.{name}" for name in ("qkv", "feed.0")]
            second += [f"blocks.{number}.{name}" for name in ("projection", "feed.2")]
            # The layer holds all queries, then all keys, then all values. Cut in two in this order,
            # rank 0 would get the queries and half of the keys. The rows are reordered so that each
            # contiguous share holds the queries, keys and values of whole heads.
            with torch.no_grad():
                for parameter in block.qkv.parameters():
                    parameter.copy_(_in_groups(parameter, 3, setting.size))
            block.heads //= setting.size
        plan: dict[str, Any] = dict.fromkeys(first, ColwiseParallel()) | dict.fromkeys(
            second, RowwiseParallel()
        )
        parallelize_module(setting.model, mesh, plan)
        super().__init__(setting)

    def state(self) -> dict[str, Any]:
        """Return the parameters, with the heads back in their original order."""
        return {
            name: _in_groups(value, self.setting.size, 3)
            if name.rpartition(".")[0].endswith(".qkv")
            else value
            for name, value in super().state().items()
        }


def _in_groups(rows: Any, outer: int, inner: int) -> Any:
    """Return the rows reordered from (outer, inner, ...) to (inner, outer, ...)."""
    return rows.unflatten(0, (outer, inner, -1)).transpose(dim0=0, dim1=1).flatten(0, 2)


def _blocks(model: Any) -> list[Any]:
    """Return the course's transformer layers of a model, which are in its list ``blocks``."""
    return [
        block
        for name, block in model.named_modules()
        if isinstance(block, Block) and name.rpartition(".")[0] == "blocks"
    ]


def _pairs(model: Any) -> tuple[list[int], list[int]]:
    """Return the indices of linear layers in pairs: of the first of each pair, which are split by
    columns, and of the second, which are split by rows.
    """
    linear = [i for i, layer in enumerate(model.layers) if isinstance(layer, nn.Linear)]
    pairs = list(zip(linear[::2], linear[1::2], strict=False))
    return [first for first, _ in pairs], [second for _, second in pairs]


def _check_layers(name: str, model: Any, ranks: int, batch_size: int, microbatches: int) -> str:
    """Return why the layers cannot be split (another kind of model, or heads or features that do
    not divide); "" if they can.
    """
    blocks = _blocks(model)
    if not blocks and not isinstance(model, SmallMLP):
        return (
            f"does not know how to split {kind_of(model)}; expected a model of "
            "networks.transformer or networks.mlp, whose pairs of linear layers it knows. Pass "
            "strategy='zero3', which shards any model without tied weights."
        )
    if blocks and blocks[0].heads % ranks:
        fitting = next(k for k in range(ranks, 0, -1) if blocks[0].heads % k == 0)
        return (
            f"cannot split {plural(blocks[0].heads, 'head')} over {ranks} ranks; expected a "
            f"multiple of {ranks}, since each head is on one rank. Take {plural(fitting, 'rank')}, "
            "or a model with such a number of heads."
        )
    wide = [] if blocks else [model.layers[i].out_features for i in _pairs(model)[0]]
    odd = next((features for features in wide if features % ranks), None)
    return (
        ""
        if odd is None
        else f"cannot split {odd} features over {ranks} ranks; expected a multiple of {ranks}. "
        f"Pass networks.mlp(..., hidden={-(-odd // ranks) * ranks})."
    )


class Stages:
    """A model cut into stages. Each rank holds one, or ``chunks`` of them: every ``size``-th."""

    def __init__(self, setting: Setting, chunks: int = 1) -> None:
        self.setting, rank = setting, setting.rank
        self.names = {id(parameter): name for name, parameter in setting.model.named_parameters()}
        stages = stages_of(setting.model, setting.size * chunks)
        self.before = stages[:rank]
        for number, stage in enumerate(stages):
            if number % setting.size != rank:
                _forget(stage)
        self.modules = stages[rank :: setting.size]
        self.stage: Any = self.modules[0]
        self.optimizer = setting.make_optimizer(
            parameter for module in self.modules for parameter in module.parameters()
        )
        self.first, self.last = rank == 0, rank == setting.size - 1
        self.nothing = torch.zeros((), device=setting.device)

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step; return the loss on the last rank, which alone sees it, and zero on the
        others.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.passes(batch)
        with self.setting.span("optimizer"):
            self.optimizer.step()
        return loss

    def passes(self, batch: tuple[Any, Any]) -> Any:
        """Do this stage's forward and backward passes on the whole batch; return the loss on the
        last rank, and zero on the others.
        """
        raise NotImplementedError

    def arriving(self, inputs: Any) -> Any:
        """Return a tensor with the shape of the previous stage's output, on the meta device."""
        x = inputs.to("meta")
        with torch.no_grad():
            for stage in self.before:
                x = stage(x)
        return x

    def loss(self, output: Any, targets: Any) -> Any:
        """Return the mean loss of the last stage's output, by passing the loss function a model
        that returns just this output.
        """

        def known(inputs: Any, targets: Any = None) -> Any:
            return (
                output
                if targets is None
                else nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())
            )

        return self.setting.loss(known, (None, targets))

    def state(self) -> dict[str, Any]:
        """Return this stage's parameters by their names in the whole model; each rank returns
        different ones.
        """
        return {
            self.names[id(parameter)]: parameter.detach() for parameter in self.stage.parameters()
        }


def _forget(stage: Any) -> None:
    """Free the tensors of a stage that another rank holds: put tensors of the same shapes on the
    meta device, which take no memory, in their place.

    ``Module.to`` would swap parameters, which fake tensors do not allow.
    """
    for module in stage.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = torch.empty_like(tensor, device="meta")


class OneAfterAnother(Stages):
    """Receive the batch from the previous rank, compute, and send the result to the next rank; then
    do the same with the gradient in the other direction.
    """

    def passes(self, batch: tuple[Any, Any]) -> Any:
        """One forward and one backward pass of the whole batch."""
        setting, rank, x = self.setting, self.setting.rank, batch[0]
        if not self.first:
            x = torch.empty_like(self.arriving(x), device=setting.device)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        with setting.span("forward"):
            y = self.stage(x)
            y = self.loss(y, batch[1]) if self.last else y
        gradient = None
        if not self.last:
            dist.send(y.detach().contiguous(), rank + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank + 1)
        with setting.span("backward"):
            # a first stage whose layers are all frozen has nothing to differentiate
            if y.requires_grad:
                torch.autograd.backward(y, gradient)
        if not self.first:
            dist.send(x.grad.contiguous(), rank - 1)
        return y.detach() if self.last else self.nothing


class Pipeline(Stages):
    """One of PyTorch's schedules over microbatches; "interleaved" has several ``chunks``."""

    schedule: Any = None  # made in the first step, when the shapes are known

    def __init__(self, setting: Setting, schedule: str, chunks: int = 1) -> None:
        super().__init__(setting, chunks)
        self.kind, self.chunks = schedule, chunks

    def passes(self, batch: tuple[Any, Any]) -> Any:
        """All microbatches' passes in the schedule's order."""
        if self.schedule is None:
            self.schedule = self._made(batch[0][: len(batch[0]) // self.setting.microbatches])
        losses: list[Any] = []
        inputs = (batch[0],) if self.first else ()
        ends = {"target": batch[1], "losses": losses} if self.last else {}
        # PyTorch 2.9 does not know ``return_outputs``, and would pass it on to the model.
        known = inspect.signature(self.schedule.step).parameters
        options = {"return_outputs": False} if "return_outputs" in known else {}
        self.schedule.step(*inputs, **ends, **options)
        return torch.stack(losses).mean().detach() if self.last else self.nothing

    def _made(self, microbatch: Any) -> Any:
        """Return the schedule, with this rank's stages."""
        from torch.distributed import pipelining  # takes a second

        setting, stages = self.setting, []
        shapes = self._shapes(microbatch) if self.chunks == 1 else ()
        for chunk, module in enumerate(self.modules):
            number, count = chunk * setting.size + setting.rank, setting.size * self.chunks
            stage: Any = pipelining.PipelineStage(module, number, count, setting.device, *shapes)
            stage.forward_one_chunk = self._noted("forward", chunk, stage.forward_one_chunk)
            stage.backward_one_chunk = self._noted("backward", chunk, stage.backward_one_chunk)
            stages.append(stage)
        kinds: dict[str, Any] = {
            "gpipe": pipelining.ScheduleGPipe,
            "1f1b": pipelining.Schedule1F1B,
            "interleaved": pipelining.ScheduleInterleaved1F1B,
        }
        return kinds[self.kind](
            stages if self.kind == "interleaved" else stages[0],
            setting.microbatches,
            loss_fn=self.loss,
        )

    def _shapes(self, microbatch: Any) -> tuple[Any, Any]:
        """Return tensors with the shapes of the stage's input and output, on the meta device; with
        them the stages need not ask each other for the shapes.
        """
        x = microbatch if self.first else self.arriving(microbatch)
        with torch.no_grad():
            y = self.stage(torch.zeros_like(x, device=self.setting.device))
        ends = [
            torch.empty_like(end, device="meta", requires_grad=end.is_floating_point())
            for end in (x, y)
        ]
        return ends[0], ends[1]

    def _noted(self, kind: str, chunk: int, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a pass that also records its span on the timeline; its first argument is the
        microbatch's number.
        """

        def one(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            with self.setting.span(f"{kind} {microbatch}", chunk):
                return work(microbatch, *args, **kwargs)

        return one


def stages_of(model: Any, count: int) -> list[Any]:
    """Return the model cut into consecutive modules, as evenly as whole layers allow; if the layers
    do not divide evenly, earlier stages have one more.

    Parameters
    ----------
    model : torch.nn.Module
        Of ``networks``, or a ``torch.nn.Sequential``. The stages share its parameters.
    count : int
        At most as many as the model has layers with parameters.
    """
    layers = layers_of(model)
    return [
        nn.Sequential(*[module for index in part for module in layers[index]])
        for part in np.array_split(range(len(layers)), count)
    ]


def layers_of(model: Any) -> list[list[Any]]:
    """Return a model's layers in order, each a list of modules to call one after another; [] for a
    model that is not a chain of layers.

    A module without parameters belongs to the layer before it. A transformer's embeddings belong to
    its first layer, and its head to the last.
    """
    if isinstance(model, SmallTransformer):
        layers: list[list[Any]] = [[block] for block in model.blocks]
        layers[0].insert(0, _Embedding(model))
        layers[-1] += [model.norm, model.head]
        return layers
    chains: dict[type, Callable[[Any], Sequence[Any]]] = {
        SmallMLP: lambda m: list(m.layers),
        SmallCNN: lambda m: [*m.features, *m.head],
        BlockNet: lambda m: [m.stem, *m.blocks, *m.head],
        nn.Sequential: list,
    }
    chain = next((chains[kind](model) for kind in chains if isinstance(model, kind)), [])
    layers = []
    for module in chain:
        if not layers or (_has_parameters(module) and any(map(_has_parameters, layers[-1]))):
            layers.append([])
        layers[-1].append(module)
    return layers


def _has_parameters(module: Any) -> bool:
    return any(True for _ in module.parameters())


class _Embedding(nn.Module):
    """The transformer's two embeddings: a token's vector plus that of its position."""

    def __init__(self, model: SmallTransformer) -> None:
        super().__init__()
        self.tokens, self.positions = model.tokens, model.positions

    def forward(self, tokens: Any) -> Any:
        return self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )


def _check_stages(name: str, model: Any, ranks: int, batch_size: int, microbatches: int) -> str:
    """Return why the model or the batch cannot be cut; "" if they can.

    Reasons are a model that is not a chain, has too few layers, shares a weight between stages, or
    has layers that use the whole batch; and a batch that does not divide.
    """
    layers = layers_of(model)
    if not layers:
        return (
            f"does not know the layers of {kind_of(model)}; expected a model of gpulab.networks or "
            "a torch.nn.Sequential, whose layers follow one another. Pass one of these."
        )
    if len(layers) < ranks:
        return (
            f"cannot cut {plural(len(layers), 'layer')} into {ranks} stages; expected at least one "
            f"layer for each rank. Take {plural(len(layers), 'rank')}, or a model with {ranks} "
            "layers."
        )
    owners = [
        {id(parameter) for parameter in stage.parameters()} for stage in stages_of(model, ranks)
    ]
    if sum(map(len, owners)) > len(set().union(*owners)):
        return (
            f"cannot cut {kind_of(model)}, because two stages would share a weight; expected each "
            "weight in one stage. Build the model without tied weights."
        )
    if name == "split":
        return ""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return (
            f"has microbatches and {type(model).__name__} has batch norm, which would take each "
            "microbatch's own mean; expected layers that treat each item alone. Pass "
            "strategy='split', or a transformer."
        )
    return _undivided(batch_size, microbatches, "microbatches")


Trainer: TypeAlias = SingleProcess | Stages

STRATEGIES: Mapping[str, Strategy] = {
    # every rank trains the whole model on the whole batch: nothing is sent, nothing is gained
    "single": Strategy(SingleProcess, lambda *asked: ""),
    # by hand: after the backward pass each gradient is averaged, one after another
    "data": Strategy(lambda setting: SingleProcess(setting, average_gradients), _over_ranks, True),
    # PyTorch's DDP: buckets of gradients are sent during the backward pass
    "ddp": Strategy(Buckets, _over_ranks, True),
    # the same buckets, sent when the backward pass is over
    "ddp-no-overlap": Strategy(
        lambda setting: SingleProcess(setting, partial(average_in_buckets, setting.bucket_bytes)),
        _over_ranks,
        True,
    ),
    # ZeRO stage 1: DDP with each parameter's optimizer state on one rank only
    "zero1": Strategy(SharedOptimizer, _over_ranks, True),
    # FSDP2 that keeps gathered parameters until the backward pass is over: gradients and optimizer
    # state are sharded
    "zero2": Strategy(partial(Sharded, reshard=False), _check_sharding, True),
    # FSDP2: parameters, gradients and optimizer state are sharded; each block is gathered twice
    "zero3": Strategy(partial(Sharded, reshard=True), _check_sharding, True),
    # each pair of linear layers split by columns, then rows; the whole batch on every rank
    "tensor": Strategy(SplitLayers, _check_layers),
    # stages by hand: the batch goes from rank to rank, and one works while the others wait
    "split": Strategy(OneAfterAnother, _check_stages),
    # stages and microbatches: all forwards before all backwards, or one backward after each forward
    "pipeline-gpipe": Strategy(partial(Pipeline, schedule="gpipe"), _check_stages),
    "pipeline-1f1b": Strategy(partial(Pipeline, schedule="1f1b"), _check_stages),
}
