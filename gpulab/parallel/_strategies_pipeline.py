"""The model in stages, one a rank: split by hand, where one rank works while the others wait, and
as a pipeline of microbatches.

By hand is what people write first: the batch goes through rank after rank, and its gradient comes
back the same way. A pipeline cuts the batch into microbatches, so that stages work at the same
time; the schedules are PyTorch's own (``torch.distributed.pipelining``). When they wait is worked
out in ``gpulab.models.pipeline_schedule``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gpulab.errors import InputError, kind_of
from gpulab.parallel._strategies import Asked, Setting, Strategy, divides, register
from gpulab.units import plural


class Stages:
    """A model of which each rank holds one stage."""

    def __init__(self, setting: Setting) -> None:
        import torch

        self.setting = setting
        self.names = {id(parameter): name for name, parameter in setting.model.named_parameters()}
        stages = stages_of(setting.model, setting.size)
        self.before = stages[: setting.rank]
        for number, stage in enumerate(stages):
            if number != setting.rank:
                # the others' parameters are not this rank's: they keep their shapes and take no
                # memory
                stage.to("meta")
        self.stage: Any = stages[setting.rank]
        self.modules = [self.stage]
        self.optimizer = setting.make_optimizer(self.stage.parameters())
        self.first, self.last = setting.rank == 0, setting.rank == setting.size - 1
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
        return self.setting.loss(_Given(output), (None, targets))

    def state(self) -> dict[str, Any]:
        """Return this stage's parameters by their names in the whole model; each rank has
        others.
        """
        return {
            self.names[id(parameter)]: parameter.detach() for parameter in self.stage.parameters()
        }


class ByHand(Stages):
    """Take the batch from the rank before, compute, hand it on; then the same with the gradient,
    the other way.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.shape: tuple[Any, Any] | None = None  # of what comes from the rank before

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

        if self.shape is None:
            x = inputs.to("meta")
            with torch.no_grad():
                for stage in self.before:
                    x = stage(x)
            self.shape = (x.shape, x.dtype)
        return self.shape


class Pipeline(Stages):
    """One of PyTorch's schedules over microbatches."""

    def __init__(self, setting: Setting, schedule: str) -> None:
        from torch.distributed import pipelining

        super().__init__(setting)
        stage: Any = pipelining.PipelineStage(
            self.stage, setting.rank, setting.size, setting.device
        )
        stage.forward_one_chunk = self._noted("forward", stage.forward_one_chunk)
        stage.backward_one_chunk = self._noted("backward", stage.backward_one_chunk)
        kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[schedule]
        self.schedule: Any = kind(stage, setting.microbatches, loss_fn=self.loss)
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

    def _noted(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return the pass with its span on the timeline; the first argument is the microbatch."""

        def one(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            with self.setting.span(f"{kind} {microbatch}"):
                return work(microbatch, *args, **kwargs)

        return one


class _Given:
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


def _check(name: str, asked: Asked) -> None:
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
            "gpulab.networks or a "
            "torch.nn.Sequential, whose layers follow one another. Pass one of these."
        )
    if len(layers) < ranks:
        raise InputError(
            f"train: {name} cannot cut {plural(len(layers), 'layer')} into {ranks} stages; "
            "expected at least one layer for each rank. "
            f"Take {plural(len(layers), 'rank')}, or a model with {ranks} layers."
        )
    owners = [
        {id(parameter) for parameter in stage.parameters()} for stage in stages_of(model, ranks)
    ]
    if sum(map(len, owners)) > len(set().union(*owners)):
        raise InputError(
            f"train: {name} cannot cut {kind_of(model)}, because two stages would share a weight; "
            "expected each weight in one stage. "
            "Build the model with tied=False."
        )
    if name == "split":
        return
    divides(name, asked, asked.microbatches, f"the {asked.microbatches} microbatches")
    if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise InputError(
            f"train: {name} has microbatches and {type(model).__name__} has batch norm, which "
            "would take each microbatch's own mean; "
            "expected layers that treat each item alone. Pass strategy='split', or a transformer."
        )
    if name == "pipeline-1f1b" and asked.microbatches < ranks:  # PyTorch's own condition
        raise InputError(
            f"train: {name} with {asked.microbatches} microbatches on {ranks} ranks; Schedule1F1B "
            "expects at least as many as ranks. "
            f"Pass microbatches={ranks}."
        )


def _strategy(name: str, summary: str, build: Callable[[Setting], Stages]) -> None:
    register(Strategy(name, summary, build, lambda asked: _check(name, asked)))


_strategy(
    "split",
    "the model cut into stages by hand: the batch goes from rank to rank, and one works while the "
    "others wait",
    ByHand,
)
_strategy(
    "pipeline-gpipe",
    "stages and microbatches, all forwards before all backwards (GPipe)",
    lambda setting: Pipeline(setting, "gpipe"),
)
_strategy(
    "pipeline-1f1b",
    "stages and microbatches, one backward after each forward: fewer activations are kept (1F1B)",
    lambda setting: Pipeline(setting, "1f1b"),
)
