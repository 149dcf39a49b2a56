"""Data parallel: every rank holds the whole model and takes its part of the batch; the gradients
are averaged.

By hand (each gradient for itself), with PyTorch's ``DistributedDataParallel`` (buckets, while the
backward pass goes on), the same buckets after the backward pass, accumulation that leaves exchanges
out, and ZeRO stage 1, which also shares the optimizer's state out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from gpulab.errors import shown
from gpulab.parallel._strategies import Asked, Setting, Strategy, divides, register


class Alone:
    """Every rank trains the whole model on the whole batch: what one process does."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.model = setting, setting.model
        self.modules = [self.model]
        self.optimizer = setting.make_optimizer(self.model.parameters())

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step on the whole batch."""
        return self.take(batch) / self.setting.size

    def take(self, batch: tuple[Any, Any]) -> Any:
        """Take a step on a batch; return its mean loss."""
        setting = self.setting
        self.optimizer.zero_grad(set_to_none=True)
        with setting.span("forward"):
            loss = setting.loss(self.model, batch)
        with setting.span("backward"):
            loss.backward()
        self.exchange()
        with setting.span("optimizer"):
            self.optimizer.step()
        return loss.detach()

    def exchange(self) -> None:
        """Do what is to be done with the gradients before the optimizer uses them."""

    def state(self) -> dict[str, Any]:
        """Return the parameters; every rank has them all, and each says so, since they could have
        drifted apart.
        """
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}


class ByHand(Alone):
    """Data parallel as one writes it first: after the backward pass a function makes the gradients
    those of the whole batch.
    """

    def __init__(self, setting: Setting, average: Callable[[Any], None]) -> None:
        super().__init__(setting)
        self.average = average

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take a step on this rank's part."""
        return self.take(self.setting.share(batch)) / self.setting.size

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


class Buckets(Alone):
    """PyTorch's DistributedDataParallel: a bucket is sent as soon as its gradients are there,
    during the rest of the backward pass.
    """

    def __init__(self, setting: Setting, parts: int = 1) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(setting)
        self.parts = parts
        self.whole = setting.model
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

    def state(self) -> dict[str, Any]:
        """Return the parameters under the names that they have outside DDP."""
        return {name: parameter.detach() for name, parameter in self.whole.named_parameters()}


class SharedOptimizer(Buckets):
    """ZeRO stage 1: DDP, but each parameter's optimizer state lies on one rank, which updates it
    and sends the result to the others.
    """

    def __init__(self, setting: Setting) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        super().__init__(setting)
        make = setting.make_optimizer
        self.optimizer = ZeroRedundancyOptimizer(
            self.whole.parameters(), optimizer_class=make.kind, **make.options
        )


def by_hand(average: Callable[[Any], None]) -> Strategy:
    """Return data parallel with a function of one's own that makes a model's gradients those of the
    whole batch.
    """
    name = str(getattr(average, "__name__", "")) or shown(average)
    return Strategy(
        name,
        f"data parallel by {name}",
        lambda setting: ByHand(setting, average),
        _batch_over_ranks(name),
    )


def _batch_over_ranks(name: str) -> Callable[[Asked], None]:
    return lambda asked: divides(name, asked, asked.ranks, f"the {asked.ranks} ranks")


def _check_accumulation(asked: Asked) -> None:
    parts = asked.ranks * asked.microbatches
    divides(
        "ddp-no-sync",
        asked,
        parts,
        f"the {asked.ranks} ranks times {asked.microbatches} microbatches",
    )


register(
    Strategy(
        "single",
        "every rank trains the whole model on the whole batch: nothing is sent, and nothing is "
        "gained",
        Alone,
    )
)
register(
    Strategy(
        "data",
        "data parallel by hand: after the backward pass each gradient is averaged, one after "
        "another",
        lambda setting: ByHand(setting, average_gradients),
        _batch_over_ranks("data"),
    )
)
register(
    Strategy(
        "ddp",
        "PyTorch's DDP: buckets of gradients are sent during the backward pass",
        Buckets,
        _batch_over_ranks("ddp"),
    )
)
register(
    Strategy(
        "ddp-no-overlap",
        "the same buckets, sent when the backward pass is over",
        BucketsAfterwards,
        _batch_over_ranks("ddp-no-overlap"),
    )
)
register(
    Strategy(
        "ddp-no-sync",
        "DDP with accumulation: a rank's part in microbatches, and only the last one's backward "
        "pass exchanges",
        lambda setting: Buckets(setting, setting.microbatches),
        _check_accumulation,
    )
)
register(
    Strategy(
        "zero1",
        "ZeRO stage 1: DDP with each parameter's optimizer state on one rank only",
        SharedOptimizer,
        _batch_over_ranks("zero1"),
    )
)
