"""Tensor and sequence parallel: the layers themselves are split, so that every rank works on the
whole batch with a part of each layer.

Of two linear layers in a row the first is split by columns (each rank makes some of the features)
and the second by rows (each rank takes those features in, and the results are summed): one sum a
pair in the forward pass, one in the backward pass. In attention the features are heads. Sequence
parallel splits what lies between the pairs (norms, dropout, residuals) by positions; the sum then
becomes a reduce-scatter, and an all-gather stands before the next pair.

Source: Shoeybi et al., "Megatron-LM", 2019, section 3; Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022, section 4.2. The splitting is PyTorch's DTensor.
"""

from __future__ import annotations

from typing import Any

from gpulab.errors import InputError, kind_of
from gpulab.parallel._strategies import Asked, Setting, Strategy, register
from gpulab.parallel._strategies_data import Alone
from gpulab.units import plural


class SplitLayers(Alone):
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


def _check(name: str, asked: Asked) -> None:
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
            f"{known}, whose pairs of linear layers "
            "it knows. Pass strategy='zero3', which can shard any model."
        )
    if blocks and blocks[0].heads % ranks:
        raise InputError(
            f"train: {name} cannot split {blocks[0].heads} heads over {ranks} ranks; expected a "
            f"multiple of {ranks}, since each head is on "
            f"one rank. Take {plural(_divisor(blocks[0].heads, ranks), 'rank')}, or a model with "
            f"heads={ranks}."
        )
    if name == "sequence" and asked.positions % ranks:
        fitting = asked.positions // ranks * ranks or ranks
        raise InputError(
            f"train: sequence cannot split {asked.positions} positions over {ranks} ranks; "
            f"expected a multiple of {ranks}, since each rank "
            "has the same number. Pass strategy='tensor', which keeps them together, or inputs of "
            f"{fitting} positions."
        )
    if not blocks:
        wide = [model.layers[i].out_features for i in _pairs(model)[0]]
        odd = next((features for features in wide if features % ranks), None)
        if odd is not None:
            raise InputError(
                f"train: {name} cannot split {odd} features over {ranks} ranks; expected a "
                f"multiple of {ranks}. "
                f"Pass networks.mlp(..., hidden={-(-odd // ranks) * ranks})."
            )


def _divisor(number: int, most: int) -> int:
    return next(k for k in range(most, 0, -1) if number % k == 0)


register(
    Strategy(
        "tensor",
        "tensor parallel: each pair of linear layers split by columns, then rows; the whole batch "
        "on every rank",
        lambda setting: SplitLayers(setting, sequence=False),
        lambda asked: _check("tensor", asked),
    )
)
register(
    Strategy(
        "sequence",
        "tensor parallel, with norms and the other layers between the pairs split by positions",
        lambda setting: SplitLayers(setting, sequence=True),
        lambda asked: _check("sequence", asked),
    )
)
