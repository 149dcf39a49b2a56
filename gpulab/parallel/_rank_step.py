"""Training steps of one rank under a strategy, followed storage by storage: the same for a real
rank and for a fake one.

``follow`` runs inside a rank: in an engine of a cluster with real tensors, or in ``_fake_ranks``
with fake ones. It gives back plain numbers, so that they can travel. Times and losses are
``train``'s business.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpulab.memory import _step
from gpulab.parallel._strategies import Setting, strategy_named

# Of the largest storages alive at the peak.
_PEAK_TENSORS = 30


@dataclass(frozen=True)
class Plan:
    """What each rank does.

    Attributes
    ----------
    strategy : str
    precision : str
        "float32" or "bfloat16".
    optimizer : str, callable or None
        As ``memory.predict`` takes it.
    checkpoint : bool
    microbatches : int
    bucket_bytes : int
    loss : callable or None
        From the model's output and the targets to a scalar; None where the model returns the loss.
    """

    strategy: str
    precision: str = "float32"
    optimizer: Any = "adam"
    checkpoint: bool = False
    microbatches: int = 1
    bucket_bytes: int = 25 * 2**20
    loss: Callable[..., Any] | None = None


class _Share(Setting):
    """A setting whose batch is this rank's part already."""

    def share(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the batch."""
        return batch


class OptimizerMaker:
    """From parameters to an optimizer, as ``Setting`` wants it."""

    def __init__(self, function: str, optimizer: Any) -> None:
        self.name, self.kind = _step.optimizer_factory(function, optimizer)
        self.options: dict[str, Any] = {}

    def __call__(self, parameters: Any) -> Any:
        """Return the optimizer."""
        assert self.kind is not None
        return self.kind(parameters)


def follow(
    plan: Plan,
    model: Any,
    batch: tuple[Any, Any],
    *,
    steps: int = 2,
    tracker: Any = None,
    built: Callable[[Any], contextlib.AbstractContextManager[None]] = lambda trainer: (
        contextlib.nullcontext()
    ),
    report: Callable[[float, str], None] = lambda fraction, text: None,
) -> dict[str, Any]:
    """Take steps on this rank's part of a batch; return what its memory was, as plain numbers.

    Parameters
    ----------
    plan : Plan
    model : torch.nn.Module
        The whole model, the rank's own; the strategy changes it.
    batch : (inputs, targets)
        This rank's part where ranks share the batch out, else the whole batch.
    steps : int
        At least two; the peak is that of all but the first.
    tracker : RankTracker, optional
        One for real CPU tensors if not given.
    built : callable, optional
        From the trainer to a context in which it takes its steps.

    Returns
    -------
    dict
        peak_bytes, peak_by_category, peak_operator, peak_phase, peak_tensors, kept_bytes,
        first_step_peak_bytes, scratch_bytes.
    """
    import torch
    import torch.distributed as dist

    from gpulab.parallel._rank_tracker import RankTracker

    follower = tracker if tracker is not None else RankTracker("cpu")
    make = OptimizerMaker("predict_ranks", plan.optimizer)
    setting = _Share(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        device=torch.device("cpu"),
        model=model,
        loss=_loss(plan),
        make_optimizer=make,
        microbatches=plan.microbatches,
        bucket_bytes=plan.bucket_bytes,
    )
    ends = []
    with contextlib.ExitStack() as stack:
        calls = stack.enter_context(_step.checkpointed(model)) if plan.checkpoint else []
        stack.enter_context(_mixed_shards(plan.precision))
        stack.enter_context(_step.optimizer_seen(follower))
        stack.enter_context(follower)
        report(0.1, "building")
        trainer: Any = strategy_named(plan.strategy).build(setting)
        if plan.precision == "bfloat16" and hasattr(trainer, "stage"):
            _autocast_stage(trainer.stage)
        follower.watch_modules(trainer.modules)
        follower.watch_inputs(batch)
        stack.enter_context(built(trainer))
        for number in range(steps):
            report(0.2 + 0.8 * number / steps, f"following step {number + 1} of {steps}")
            follower.begin_step()
            trainer.step(batch)
            follower.mark_gradients()
            # FSDP lays an uneven share down anew in its first step
            follower.watch_modules(trainer.modules)
            ends.append(len(follower.operators))
        kept = follower.live_bytes
    follower.close()
    return {**_found(follower, ends), "kept_bytes": kept, "checkpoints": len(calls)}


def _found(tracker: Any, ends: list[int]) -> dict[str, Any]:
    tracker.classify()
    event, peak = tracker.peak(ends[0])
    begin = tracker.steps[0]
    alive = tracker.alive_at(event)
    by_category: dict[str, int] = {}
    for tensor in alive:
        by_category[tensor.category] = by_category.get(tensor.category, 0) + tensor.nbytes
    return {
        "peak_bytes": peak,
        "peak_by_category": by_category,
        "peak_operator": tracker.operators[event] if tracker.operators else "",
        "peak_phase": tracker.phases[event] if tracker.phases else "",
        "peak_tensors": [tensor.to_dict() for tensor in alive[:_PEAK_TENSORS]],
        "first_step_peak_bytes": tracker.peak(begin, ends[0])[1],
        "scratch_bytes": max(0, tracker.with_scratch - peak),
    }


def _loss(plan: Plan) -> Callable[[Any, tuple[Any, Any]], Any]:
    import torch

    mixed = plan.precision == "bfloat16" and plan.strategy not in _SHARDED

    def loss(model: Any, batch: tuple[Any, Any]) -> Any:
        inputs, targets = batch
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            if plan.loss is None:
                return _step.loss_of(
                    "predict_ranks", model(inputs) if targets is None else model(inputs, targets)
                )
            output = model(inputs)
            return _step.loss_of(
                "predict_ranks",
                plan.loss(output) if targets is None else plan.loss(output, targets),
            )

    return loss


_SHARDED = ("zero2", "zero3")


def _autocast_stage(stage: Any) -> None:
    """Let a pipeline's stage compute in bfloat16: its loss alone is called under autocast by
    itself.
    """
    import torch

    forward = stage.forward

    def mixed(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(*args, **kwargs)

    stage.__dict__["forward"] = mixed


@contextlib.contextmanager
def _mixed_shards(precision: str) -> Iterator[None]:
    """Have FSDP2 gather parameters in bfloat16 and sum gradients in float32, which is its mixed
    precision; autocast is not used with it.
    """
    import torch
    from torch.distributed import fsdp

    if precision != "bfloat16":
        yield
        return
    original = fsdp.fully_shard
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def shard(*args: Any, **kwargs: Any) -> Any:
        return original(*args, mp_policy=policy, **kwargs)

    fsdp.fully_shard = shard
    try:
        yield
    finally:
        fsdp.fully_shard = original
