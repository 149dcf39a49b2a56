"""One rank of many that are not there: PyTorch's fake process group, whose collectives return at
once, and fake tensors.

The strategies run their own code in it. A few things read values, which a fake tensor has not, or
would take a minute for a thousand ranks; they are stood in for here, and nothing else. What is
allocated stays the same: docs/measurements.md has the check on real ranks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from gpulab.errors import InputError

# The process group belongs to the whole process: one prediction after another.
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def fake_rank(function: str, rank: int, size: int) -> Iterator[None]:
    """Within the block this process is one rank of ``size``; afterwards there is no process group,
    as before.

    Raises
    ------
    InputError
        If this process belongs to a process group already.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with _ONE_AT_A_TIME:
        if dist.is_initialized():
            raise InputError(
                f"{function}: this process is rank {dist.get_rank()} of a process group already; "
                "expected a process without one, since "
                "the prediction makes a group of its own. Call it outside ranks.run, or after "
                "torch.distributed.destroy_process_group()."
            )
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            with contextlib.ExitStack() as stack:
                for stand_in in (
                    _one_chunk(),
                    _agreeing_ddp(),
                    _real_meshes(),
                    _let_go(),
                    _summed_whole(),
                    _shapes_told(),
                    _sends_held(),
                ):
                    stack.enter_context(stand_in)
                yield
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class _Chunks(Sequence[Any]):
    """The parts of a tensor, cut when asked: FSDP wants its own and the first of up to 1,024."""

    def __init__(self, tensor: Any, count: int, dim: int) -> None:
        self.tensor, self.parts, self.dim = tensor, count, dim

    def __len__(self) -> int:
        return self.parts

    def __getitem__(self, index: Any) -> Any:
        length = self.tensor.size(self.dim)
        # as torch.chunk: all parts but the last are as large as the first
        each = -(-length // self.parts)
        begin = index * each
        if begin >= length:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, begin, min(each, length - begin))


@contextlib.contextmanager
def _one_chunk() -> Iterator[None]:
    """Cut only the part of a parameter that FSDP asks for: a thousand views of each parameter take
    a minute.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    with _replaced(_fsdp_param, _chunk_with_empty=_Chunks):
        yield


@contextlib.contextmanager
def _agreeing_ddp() -> Iterator[None]:
    """Take for granted what DDP compares between ranks, and answer its reducer, which wants a
    bucket's sum to be a tensor.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import distributed as module

    group: Any = dist
    original = module.DistributedDataParallel.__init__

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)

        def average(_: Any, bucket: Any) -> Any:
            dist.all_reduce(bucket.buffer())
            done: Any = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        # DDP checks them
        average.__annotations__ = {
            "bucket": group.GradBucket,
            "return": torch.futures.Future[torch.Tensor],
        }
        self.register_comm_hook(None, average)
        self.reducer = _SameBuckets(self.reducer)

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Agree."""

    with (
        _replaced(
            module, _verify_param_shape_across_processes=nothing, _sync_module_states=nothing
        ),
        _replaced(module.DistributedDataParallel, __init__=construct),
    ):
        yield


class _SameBuckets:
    """DDP's reducer, which after the first step asks rank 0 in which order gradients came; the
    buckets stay as they are here.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def _rebuild_buckets(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)


@contextlib.contextmanager
def _real_meshes() -> Iterator[None]:
    """Make a mesh's table of ranks a real tensor: its values are read."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed import device_mesh

    original = device_mesh.init_device_mesh

    def make(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return original(*args, **kwargs)

    with _replaced(device_mesh, init_device_mesh=make):
        yield


@contextlib.contextmanager
def _let_go() -> Iterator[None]:
    """Move a module's parameters to the meta device: PyTorch would swap them, which fake ones do
    not allow.
    """
    import torch

    original = torch.nn.Module.to

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args != ("meta",) or kwargs:
            return original(self, *args, **kwargs)
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(
                        torch.empty_like(parameter, device="meta"), parameter.requires_grad
                    )
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = torch.empty_like(buffer, device="meta")
        return self

    with _replaced(torch.nn.Module, to=move):
        yield


@contextlib.contextmanager
def _summed_whole() -> Iterator[None]:
    """Copy what FSDP reduces and scatters, as gloo does: it sums a copy of the whole on every rank,
    and cuts this rank's part from it.
    """
    import torch.distributed as dist

    # its name before torch 2.13
    name = (
        "reduce_scatter_single"
        if hasattr(dist, "reduce_scatter_single")
        else "reduce_scatter_tensor"
    )
    original = getattr(dist, name)

    def reduce_scatter(*args: Any, **kwargs: Any) -> Any:
        whole = kwargs["input"] if "input" in kwargs else args[1]
        copied = whole.clone()
        done = original(*args, **kwargs)
        del copied
        return done

    with _replaced(dist, **{name: reduce_scatter}):
        yield


class _Held:
    """A message under way, which holds its tensors as long as somebody holds it."""

    def __init__(self, work: Any, tensors: list[Any]) -> None:
        self._work, self._tensors = work, tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextlib.contextmanager
def _sends_held() -> Iterator[None]:
    """Keep what a pipeline sends until its schedule lets go of the message, as gloo's and NCCL's
    works do.
    """
    import torch.distributed.pipelining.schedules

    module: Any = torch.distributed.pipelining.schedules
    original = module._batch_p2p

    def batch(operations: Any, *args: Any, **kwargs: Any) -> list[Any]:
        tensors = [operation.tensor for operation in operations]
        return [_Held(work, tensors) for work in original(operations, *args, **kwargs)]

    with _replaced(module, _batch_p2p=batch):
        yield


# what the stage before and the stage after say of the tensors between them
_ARRIVING: list[Any] = []


@contextlib.contextmanager
def arriving(before: Any, after: Any) -> Iterator[None]:
    """Say what a pipeline's stage gets: one as the stage before sends it, one as the stage after
    does; None if none.
    """
    _ARRIVING[:] = [before, after]
    try:
        yield
    finally:
        _ARRIVING.clear()


class _Zero:
    """The stages' vote on whether they know their shapes beforehand, which is read as a number:
    they do not.
    """

    def item(self) -> int:
        return 0


def asks_for_shapes() -> bool:
    """Return whether a pipeline's stage asks its neighbors for shapes in the way that is stood in
    for here: since PyTorch 2.13.
    """
    from torch.distributed.pipelining import PipelineStage

    return all(
        hasattr(PipelineStage, name)
        for name in ("_recv_meta", "_send_meta", "_warmup_forward_vote", "_warmup_backward_result")
    )


@contextlib.contextmanager
def _shapes_told() -> Iterator[None]:
    """Tell a pipeline's stage the shapes that its neighbors would send."""
    import torch.distributed.pipelining.stage

    if not asks_for_shapes():  # whoever predicts a pipeline has asked before
        yield
        return
    module: Any = torch.distributed.pipelining.stage

    def receive(self: Any, source: int) -> Any:
        comes_before = source == self.stage_index - 1
        told = module.extract_tensor_metas((_ARRIVING[0 if comes_before else 1],))
        if comes_before:
            return module._StageForwardMeta(forward_metas=told)
        return module._StageBackwardMeta(backward_metas=told)

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Nobody listens."""

    def vote(*args: Any, **kwargs: Any) -> Any:
        return _Zero()

    told_by_nobody: dict[str, Any] = {"_warmup_forward_vote": vote, "_warmup_backward_result": vote}
    with _replaced(module.PipelineStage, _recv_meta=receive, _send_meta=nothing, **told_by_nobody):
        yield
