"""Strategies that split the model itself: within its layers, or into stages.

Tensor parallel: every rank works on the whole batch with a part of each layer. Of two linear layers
in a row the first is split by columns (each rank makes some of the features) and the second by rows
(each rank takes those features in, and the results are summed): one sum a pair in the forward pass,
one in the backward pass. In attention the features are heads. Sequence parallel splits what lies
between the pairs (norms, dropout, residuals) by positions; the sum then becomes a reduce-scatter,
and an all-gather stands before the next pair. Source: Shoeybi et al., "Megatron-LM", 2019, section
3; Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
section 4.2. The splitting is PyTorch's DTensor.

Stages, one a rank: by hand, as people write it first, the batch goes through rank after rank, and
its gradient comes back the same way, so that one rank works while the others wait. A pipeline cuts
the batch into microbatches, so that stages work at the same time; the schedules are PyTorch's own
(``torch.distributed.pipelining``). When they wait is worked out in
``gpulab.models.pipeline_schedule``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gpulab.errors import InputError, kind_of
from gpulab.parallel._strategies import Asked, Setting, SingleProcess, Strategy, divides
from gpulab.units import plural


class SplitLayers(SingleProcess):
    """A model whose pairs of linear layers are split over the ranks."""

    def __init__(self, setting: Setting, *, sequence: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = init_device_mesh(setting.device.type, (setting.size,))
        for block in _blocks(setting.model):
            order_heads(block, setting.size)
            block.heads //= setting.size
        parallelize_module(setting.model, mesh, plan(setting.model, sequence=sequence))
        super().__init__(setting)

    def exchange(self) -> None:
        """Sum gradients that each rank has of its own positions only (norms, and biases behind a
        reduce-scatter), once and for all.

        DTensor would do it by itself, but wherever the optimizer uses them: twice a parameter with
        Adam.
        """
        from torch.distributed.tensor import DTensor

        with self.setting.span("average"):
            for parameter in self.model.parameters():
                if (
                    isinstance(parameter.grad, DTensor)
                    and parameter.grad.placements != parameter.placements
                ):
                    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)

    def state(self) -> dict[str, Any]:
        """Gather the parameters, with the heads in their order again; rank 0 returns them."""
        from torch.distributed.tensor import DTensor

        whole = {}
        for name, parameter in self.model.named_parameters():
            value = parameter.detach()
            value = value.full_tensor() if isinstance(value, DTensor) else value
            if name.rpartition(".")[0].endswith(".qkv"):
                value = _in_groups(value, self.setting.size, 3)
            whole[name] = value
        return whole if self.setting.rank == 0 else {}


def plan(model: Any, *, sequence: bool = False) -> dict[str, Any]:
    """Return how each layer is split, by the layer's name, for
    ``torch.distributed.tensor.parallel.parallelize_module``.

    Parameters
    ----------
    model : torch.nn.Module
        The course's transformer, or (without ``sequence``) its multi-layer perceptron.
    sequence : bool
        Split what lies between the pairs by positions too.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    if not _blocks(model):
        first, second = _pairs(model)
        return {
            **{f"layers.{i}": ColwiseParallel() for i in first},
            **{f"layers.{i}": RowwiseParallel() for i in second},
        }
    by_columns = ColwiseParallel(input_layouts=Shard(1)) if sequence else ColwiseParallel()
    by_rows = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
    layers: dict[str, Any] = {}
    for i in range(len(model.blocks)):
        layers |= {f"blocks.{i}.{name}": by_columns for name in ("qkv", "feed.0")}
        layers |= {f"blocks.{i}.{name}": by_rows for name in ("projection", "feed.2")}
        if sequence:
            layers |= {
                f"blocks.{i}.{name}": SequenceParallel() for name in ("attention_norm", "feed_norm")
            }
            layers[f"blocks.{i}.feed.3"] = SequenceParallel(use_local_output=True)
    if sequence:
        layers["blocks.0"] = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
        )
        layers["norm"] = SequenceParallel()
        layers["head"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        )
    return layers


def order_heads(block: Any, ranks: int) -> None:
    """Put the rows of ``qkv`` into the order in which a contiguous share holds whole heads:
    queries, keys and values of some of them.

    The layer holds all queries, then all keys, then all values; cut in two as it is, rank 0 would
    get the queries and half of the keys. Changed in place.
    """
    import torch

    with torch.no_grad():
        for parameter in block.qkv.parameters():
            parameter.copy_(_in_groups(parameter, 3, ranks))


def _in_groups(rows: Any, outer: int, inner: int) -> Any:
    """Return rows that lie as (outer, inner, ...) as (inner, outer, ...)."""
    return rows.unflatten(0, (outer, inner, -1)).transpose(dim0=0, dim1=1).flatten(0, 2)


def _blocks(model: Any) -> list[Any]:
    """Return the course's transformer layers of a model."""
    from gpulab._network_modules import Block

    return [block for block in getattr(model, "blocks", ()) if isinstance(block, Block)]


def _pairs(model: Any) -> tuple[list[int], list[int]]:
    """Return the places of the linear layers that are split by columns and, each behind one of
    these, by rows.
    """
    import torch

    linear = [
        i
        for i, layer in enumerate(getattr(model, "layers", ()))
        if isinstance(layer, torch.nn.Linear)
    ]
    pairs = list(zip(linear[::2], linear[1::2], strict=False))
    return [first for first, _ in pairs], [second for _, second in pairs]


def _check_layers(name: str, asked: Asked) -> None:
    """Refuse what these layers cannot be split into.

    Raises
    ------
    InputError
        For another model, and for heads, features or positions that do not divide.
    """
    from gpulab._network_modules import SmallMLP

    model, ranks = asked.model, asked.ranks
    blocks = _blocks(model)
    if not blocks and (name == "sequence" or not isinstance(model, SmallMLP)):
        known = (
            "networks.transformer" if name == "sequence" else "networks.transformer or networks.mlp"
        )
        raise InputError(
            f"train: {name} does not know how to split {kind_of(model)}; expected a model of "
            f"{known}, whose pairs of linear layers it knows. Pass strategy='zero3', which can "
            "shard any model."
        )
    if blocks and blocks[0].heads % ranks:
        fitting = next(k for k in range(ranks, 0, -1) if blocks[0].heads % k == 0)
        raise InputError(
            f"train: {name} cannot split {blocks[0].heads} heads over {ranks} ranks; expected a "
            f"multiple of {ranks}, since each head is on one rank. Take {plural(fitting, 'rank')}, "
            f"or a model with heads={ranks}."
        )
    if name == "sequence" and asked.positions % ranks:
        fitting = asked.positions // ranks * ranks or ranks
        raise InputError(
            f"train: sequence cannot split {asked.positions} positions over {ranks} ranks; "
            f"expected a multiple of {ranks}, since each rank has the same number. Pass "
            f"strategy='tensor', which keeps them together, or inputs of {fitting} positions."
        )
    if not blocks:
        wide = [model.layers[i].out_features for i in _pairs(model)[0]]
        odd = next((features for features in wide if features % ranks), None)
        if odd is not None:
            raise InputError(
                f"train: {name} cannot split {odd} features over {ranks} ranks; expected a "
                f"multiple of {ranks}. Pass networks.mlp(..., hidden={-(-odd // ranks) * ranks})."
            )


class Stages:
    """A model of which each rank holds one stage, or one part of each of ``chunks`` rounds."""

    def __init__(self, setting: Setting, chunks: int = 1) -> None:
        import torch

        self.setting, rank = setting, setting.rank
        self.names = {id(parameter): name for name, parameter in setting.model.named_parameters()}
        stages = stages_of(setting.model, setting.size * chunks)
        self.before = stages[:rank]
        for number, stage in enumerate(stages):
            if number % setting.size != rank:
                # the others' parameters are not this rank's: they keep their shapes and take no
                # memory
                stage.to("meta")
        self.modules = stages[rank :: setting.size]
        self.stage: Any = self.modules[0]
        self.optimizer = setting.make_optimizer(
            parameter for module in self.modules for parameter in module.parameters()
        )
        self.first, self.last = rank == 0, rank == setting.size - 1
        self.nothing = torch.zeros((), device=setting.device)

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step; the last rank, which alone sees the loss, returns it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.passes(batch)
        with self.setting.span("optimizer"):
            self.optimizer.step()
        return loss

    def passes(self, batch: tuple[Any, Any]) -> Any:
        """Do this stage's forward and backward passes on the whole batch; return the loss, or zero
        where it is not seen.
        """
        raise NotImplementedError

    def loss(self, output: Any, targets: Any) -> Any:
        """Return the mean loss of what the last stage gave."""
        return self.setting.loss(_Output(output), (None, targets))

    def state(self) -> dict[str, Any]:
        """Return this stage's parameters by their names in the whole model; each rank has
        others.
        """
        return {
            self.names[id(parameter)]: parameter.detach() for parameter in self.stage.parameters()
        }


class OneAfterAnother(Stages):
    """Take the batch from the rank before, compute, hand it on; then the same with the gradient,
    the other way.
    """

    arriving: tuple[Any, Any] | None = None  # shape and type of what comes from the rank before

    def passes(self, batch: tuple[Any, Any]) -> Any:
        """One forward and one backward pass of the whole batch."""
        import torch
        import torch.distributed as dist

        setting, rank, x = self.setting, self.setting.rank, batch[0]
        if not self.first:
            shape, dtype = self._arriving(batch[0])
            x = torch.empty(shape, dtype=dtype, device=setting.device)
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
            # not of a first stage whose layers are all frozen: its gradient has nowhere to go
            if y.requires_grad:
                torch.autograd.backward(y, gradient)
        if not self.first:
            dist.send(x.grad.contiguous(), rank - 1)
        return y.detach() if self.last else self.nothing

    def _arriving(self, inputs: Any) -> tuple[Any, Any]:
        """Return shape and type of what the stage before gives, from the stages' shapes alone."""
        import torch

        if self.arriving is None:
            x = inputs.to("meta")
            with torch.no_grad():
                for stage in self.before:
                    x = stage(x)
            self.arriving = (x.shape, x.dtype)
        return self.arriving


class Pipeline(Stages):
    """One of PyTorch's schedules over microbatches; "interleaved" has several ``chunks``."""

    def __init__(self, setting: Setting, schedule: str, chunks: int = 1) -> None:
        from torch.distributed import pipelining

        super().__init__(setting, chunks)
        stages: list[Any] = []
        for chunk, module in enumerate(self.modules):
            number = chunk * setting.size + setting.rank
            stage: Any = pipelining.PipelineStage(
                module, number, setting.size * chunks, setting.device
            )
            stage.forward_one_chunk = self._noted("forward", chunk, stage.forward_one_chunk)
            stage.backward_one_chunk = self._noted("backward", chunk, stage.backward_one_chunk)
            stages.append(stage)
        kinds: dict[str, Any] = {
            "gpipe": pipelining.ScheduleGPipe,
            "1f1b": pipelining.Schedule1F1B,
            "interleaved": pipelining.ScheduleInterleaved1F1B,
        }
        self.schedule: Any = kinds[schedule](
            stages if schedule == "interleaved" else stages[0],
            setting.microbatches,
            loss_fn=self.loss,
        )
        # PyTorch 2.9 does not know the word, and would pass it on to the model.
        known = inspect.signature(self.schedule.step).parameters
        self.options = {"return_outputs": False} if "return_outputs" in known else {}

    def passes(self, batch: tuple[Any, Any]) -> Any:
        """All microbatches' passes in the schedule's order."""
        import torch

        losses: list[Any] = []
        inputs = (batch[0],) if self.first else ()
        ends = {"target": batch[1], "losses": losses} if self.last else {}
        self.schedule.step(*inputs, **ends, **self.options)
        return torch.stack(losses).mean().detach() if self.last else self.nothing

    def _noted(self, kind: str, chunk: int, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return the pass with its span on the timeline; the first argument is the microbatch."""

        def one(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            with self.setting.span(f"{kind} {microbatch}", chunk):
                return work(microbatch, *args, **kwargs)

        return one


class _Output:
    """Stands for a model whose output is known already, so that a loss of model and batch can be
    taken of an output.
    """

    def __init__(self, output: Any) -> None:
        self.output = output

    def __call__(self, inputs: Any, targets: Any = None) -> Any:
        from torch.nn import functional

        return (
            self.output
            if targets is None
            else functional.cross_entropy(self.output.flatten(0, -2), targets.flatten())
        )


def stages_of(model: Any, count: int) -> list[Any]:
    """Return the model as modules one after another, as even as whole layers allow; earlier stages
    take the layers that are left over.

    Parameters
    ----------
    model : torch.nn.Module
        Of ``networks``, or a ``torch.nn.Sequential``. The stages share its parameters.
    count : int
        At most as many as the model has layers with parameters.
    """
    import torch

    layers = layers_of(model)
    sizes = [len(layers) // count + (k < len(layers) % count) for k in range(count)]
    begins = [sum(sizes[:k]) for k in range(count)]
    return [
        torch.nn.Sequential(*[module for layer in layers[begin : begin + size] for module in layer])
        for begin, size in zip(begins, sizes, strict=True)
    ]


def layers_of(model: Any) -> list[list[Any]]:
    """Return a model's layers in order, each a list of modules to call one after another; [] for a
    model that is no chain.

    What has no parameters goes with the layer before it; a transformer's embeddings with its first
    layer, its head with its last.
    """
    from torch import nn

    from gpulab._network_modules import BlockNet, SmallCNN, SmallMLP, SmallTransformer

    if isinstance(model, SmallTransformer):
        layers: list[list[Any]] = [[block] for block in model.blocks]
        layers[0].insert(0, _embedding(model))
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
    waiting: list[Any] = []
    for module in chain:
        if any(True for _ in module.parameters()):
            layers.append([*waiting, module])
            waiting = []
        elif layers:
            layers[-1].append(module)
        else:
            waiting.append(module)
    return layers


def _embedding(model: Any) -> Any:
    """Return the transformer's two embeddings as one module."""
    import torch

    class Embedding(torch.nn.Module):
        """A token's vector plus that of its position."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = model.tokens, model.positions

        def forward(self, tokens: Any) -> Any:
            return self.tokens(tokens) + self.positions(
                torch.arange(tokens.shape[1], device=tokens.device)
            )

    return Embedding()


def _check_stages(name: str, asked: Asked) -> None:
    """Refuse what cannot be cut into stages, or would not compute the same in microbatches.

    Raises
    ------
    InputError
        For a model that is no chain or has fewer layers than there are ranks, weights that two
        stages share, batch norm in microbatches, and microbatches that do not fit the batch or the
        schedule.
    """
    import torch

    model, ranks = asked.model, asked.ranks
    layers = layers_of(model)
    if not layers:
        raise InputError(
            f"train: {name} does not know the layers of {kind_of(model)}; expected a model of "
            "gpulab.networks or a torch.nn.Sequential, whose layers follow one another. Pass one "
            "of these."
        )
    if len(layers) < ranks:
        raise InputError(
            f"train: {name} cannot cut {plural(len(layers), 'layer')} into {ranks} stages; "
            f"expected at least one layer for each rank. Take {plural(len(layers), 'rank')}, or a "
            f"model with {ranks} layers."
        )
    owners = [
        {id(parameter) for parameter in stage.parameters()} for stage in stages_of(model, ranks)
    ]
    if sum(map(len, owners)) > len(set().union(*owners)):
        raise InputError(
            f"train: {name} cannot cut {kind_of(model)}, because two stages would share a weight; "
            "expected each weight in one stage. Build the model with tied=False."
        )
    if name == "split":
        return
    divides(name, asked, asked.microbatches, f"the {asked.microbatches} microbatches")
    if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise InputError(
            f"train: {name} has microbatches and {type(model).__name__} has batch norm, which "
            "would take each microbatch's own mean; expected layers that treat each item alone. "
            "Pass strategy='split', or a transformer."
        )
    if name == "pipeline-1f1b" and asked.microbatches < ranks:  # PyTorch's own condition
        raise InputError(
            f"train: {name} with {asked.microbatches} microbatches on {ranks} ranks; Schedule1F1B "
            f"expects at least as many as ranks. Pass microbatches={ranks}."
        )


STRATEGIES = (
    Strategy(
        "tensor",
        "tensor parallel: each pair of linear layers split by columns, then rows; the whole batch "
        "on every rank",
        lambda setting: SplitLayers(setting, sequence=False),
        lambda asked: _check_layers("tensor", asked),
    ),
    Strategy(
        "sequence",
        "tensor parallel, with norms and the other layers between the pairs split by positions",
        lambda setting: SplitLayers(setting, sequence=True),
        lambda asked: _check_layers("sequence", asked),
    ),
    Strategy(
        "split",
        "the model cut into stages by hand: the batch goes from rank to rank, and one works while "
        "the others wait",
        OneAfterAnother,
        lambda asked: _check_stages("split", asked),
    ),
    Strategy(
        "pipeline-gpipe",
        "stages and microbatches, all forwards before all backwards (GPipe)",
        lambda setting: Pipeline(setting, "gpipe"),
        lambda asked: _check_stages("pipeline-gpipe", asked),
    ),
    Strategy(
        "pipeline-1f1b",
        "stages and microbatches, one backward after each forward: fewer activations are kept "
        "(1F1B)",
        lambda setting: Pipeline(setting, "1f1b"),
        lambda asked: _check_stages("pipeline-1f1b", asked),
    ),
)
