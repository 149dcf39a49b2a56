"""Activation checkpointing that changes only memory and time: losses and running averages in batch
norm stay the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Within the block, each direct child of the model (of a ModuleList, each member) recomputes
    its activations in the backward pass.
    """
    from gpulab.memory._step import checkpointed

    with checkpointed(model), _averaged_once(model):
        yield


@contextlib.contextmanager
def _averaged_once(model: Any) -> Iterator[None]:
    """Keep norms from counting a batch a second time while it is recomputed (the first time it was
    counted already).
    """
    import torch
    from torch.nn.modules.batchnorm import _NormBase

    def before(norm: Any, args: Any) -> None:
        if torch._C._current_graph_task_id() != -1 and norm.track_running_stats:
            norm._gpulab_kept = norm.track_running_stats, norm.momentum, norm.num_batches_tracked
            norm.momentum, norm._buffers["num_batches_tracked"] = 0.0, None

    def after(norm: Any, args: Any, output: Any) -> None:
        kept = norm.__dict__.pop("_gpulab_kept", None)
        if kept is not None:
            _, norm.momentum, norm._buffers["num_batches_tracked"] = kept

    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    handles = [
        h
        for norm in norms
        for h in (
            norm.register_forward_pre_hook(before),
            norm.register_forward_hook(after, always_call=True),
        )
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for norm in norms:  # PyTorch calls no hook after an interrupt
            after(norm, None, None)
