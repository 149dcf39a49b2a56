"""Sharded data parallel: every rank computes with the whole model, but keeps only its share of it
(FSDP2, ZeRO stages 2 and 3).

A layer's parameters are gathered just before they are used. Stage 3 lets go of them after the
forward pass and gathers them once more for the backward pass; stage 2 as FSDP2 has it keeps them in
between. Gradients are summed and scattered, so each rank is left with those of its share, and its
optimizer knows nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpulab.errors import InputError
from gpulab.parallel._strategies import Asked, Setting, Strategy, divides, register
from gpulab.parallel._strategies_data import Alone


class Sharded(Alone):
    """FSDP2's ``fully_shard`` on each block, then on what is left of the model."""

    def __init__(self, setting: Setting, *, reshard: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(setting.device.type, (setting.size,))
        for block in blocks_of(setting.model):
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(setting.model, mesh=mesh, reshard_after_forward=reshard)
        super().__init__(setting)

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step on this rank's part."""
        return self.take(self.setting.share(batch)) / self.setting.size

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


def _check(name: str, asked: Asked) -> None:
    """Refuse a batch that does not divide, and a weight that two groups would both shard.

    Raises
    ------
    InputError
        In these cases.
    """
    divides(name, asked, asked.ranks, f"the {asked.ranks} ranks")
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
                f"{type(asked.model).__name__} share a weight, which would "
                "become two that drift apart; expected each weight in one block. Build it without "
                "tied weights, or pass strategy='ddp'."
            )


register(
    Strategy(
        "zero2",
        "FSDP2, gathered parameters kept until the backward pass is over: gradients and optimizer "
        "state are sharded",
        lambda setting: Sharded(setting, reshard=False),
        lambda asked: _check("zero2", asked),
    )
)
register(
    Strategy(
        "zero3",
        "FSDP2: parameters, gradients and optimizer state are sharded; each block is gathered "
        "twice a step",
        lambda setting: Sharded(setting, reshard=True),
        lambda asked: _check("zero3", asked),
    )
)
