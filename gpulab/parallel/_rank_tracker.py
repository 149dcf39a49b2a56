"""Follow the tensor storages of one rank, where parameters are shared out and collectives move
them; and be one rank of many that are not there.

``RankTracker`` sees what ``memory``'s tracker does not meet in one process: a ``DTensor`` wraps the
part that this rank really holds; FSDP frees and fills gathered parameters by resizing their
storage, outside any operator; and buckets and gathered parameters exist only to be sent or
received.

``fake_rank`` is PyTorch's fake process group, whose collectives return at once, for fake tensors.
The strategies run their own code in it. A few things read values, which a fake tensor has not, or
would take a minute for a thousand ranks; they are stood in for here, and nothing else. What is
allocated stays the same: docs/measurements.md has the check on real ranks.

Imported only inside functions: torch is needed when the classes are defined.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from gpulab.errors import InputError
from gpulab.memory.tracker import StorageTracker

COMMUNICATION = "communication"
_WRAPPERS = (DTensor, AsyncCollectiveTensor)
_RESIZED = "resize_"
# The process group belongs to the whole process: one prediction after another.
_ONE_AT_A_TIME = threading.RLock()


class RankTracker(StorageTracker):
    """A ``StorageTracker`` that sees through ``DTensor``, follows resized storages, and knows what
    was sent or received.

    What a collective reads or writes and what FSDP's own operators write counts as "communication",
    unless it is a parameter, a gradient (DDP's bucket, where the gradients are views of it) or an
    optimizer's state.
    """

    def __init__(self, device_type: str, **options: Any) -> None:
        super().__init__(device_type, **options)
        self._sent: set[int] = set()
        self._resize: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let wrappers take their operator apart first; then run it, and note what takes part in a
        collective.
        """
        if any(issubclass(kind, _WRAPPERS) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d":
            self._note_sent(tree_leaves((args, kwargs, result)))
        elif func.namespace == "fsdp":
            self._note_sent([*tree_leaves(result), *tree_leaves(kwargs.get("out"))])
        return result

    def __enter__(self) -> Any:
        original = self._resize = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: Any) -> Any:
            changed = original(storage, size)
            self._now(storage)
            return changed

        torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _now(self, storage: Any) -> None:
        """Take over the new size of a storage that is known."""
        known = self._by_key.get(storage._cdata)
        if known is None or self.records[known[0]].nbytes == storage.nbytes():
            return
        self._resized(known[0], storage)
        if known[0] in self._sent:
            self._sent.add(self._by_key[storage._cdata][0])
        self.records[self._by_key[storage._cdata][0]].category = self.records[known[0]].category
        self._event(_RESIZED)

    def _storages(self, tensor: Any) -> Iterable[tuple[Any, Any]]:
        """Yield the storages that this rank holds of a tensor."""
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        return super()._storages(
            tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor
        )

    def _arrived(self, tensor: Any) -> None:
        """Count a tensor that was there before; FSDP's gathered parameters are no parameters of the
        rank's own.
        """
        for part, storage in self._storages(tensor):
            if storage._cdata not in self._by_key:
                self._count(part, storage, "", None, "")

    def watch(self, tensor: Any, category: str, name: str = "") -> None:
        """Count a tensor under a category, also one that was met already without any."""
        for part, storage in self._storages(tensor):
            known = self._by_key.get(storage._cdata)
            if known is None:
                self._count(part, storage, "", category, name)
            elif self.records[known[0]].category is None:
                self.records[known[0]].category, self.records[known[0]].name = category, name

    def _note_sent(self, values: Iterable[Any]) -> None:
        for tensor in values:
            if isinstance(tensor, torch.Tensor):
                for _, storage in self._storages(tensor):
                    known = self._by_key.get(storage._cdata)
                    if known is not None:
                        self._sent.add(known[0])

    def classify(self) -> None:
        """Give each storage its category: first what was sent, then the rest by when it lived."""
        for index in self._sent:
            if self.records[index].category is None:
                self.records[index].category = COMMUNICATION
        super().classify()

    def bytes_at(self, event: int) -> dict[str, int]:
        """Return the bytes that were alive at an event, by category."""
        found: dict[str, int] = {}
        for tensor in self.alive_at(event):
            found[tensor.category] = found.get(tensor.category, 0) + tensor.nbytes
        return found

    def most_by_category(self) -> dict[str, int]:
        """Return the most bytes that each category held at any moment."""
        count = len(self.operators)
        changes: dict[str, np.ndarray] = {}
        for record in self.records:
            if record.born < count:
                category = record.category or "temporary"
                change = changes.setdefault(category, np.zeros(count + 1, dtype=np.int64))
                change[record.born] += record.nbytes
                change[min(record.died, count)] -= record.nbytes
        return {name: int(np.cumsum(change)[:count].max()) for name, change in changes.items()}


@contextlib.contextmanager
def fake_rank(function: str, rank: int, size: int) -> Iterator[None]:
    """Within the block this process is one rank of ``size``; afterwards there is no process group,
    as before.

    Raises
    ------
    InputError
        If this process belongs to a process group already.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with _ONE_AT_A_TIME:
        if dist.is_initialized():
            raise InputError(
                f"{function}: this process is rank {dist.get_rank()} of a process group already; "
                "expected a process without one, since the prediction makes a group of its own. "
                "Call it outside ranks.run, or after torch.distributed.destroy_process_group()."
            )
        hook = sys.excepthook  # making a group wraps it: messages would begin with "[rank0]: "
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            with (
                _one_chunk(),
                _agreeing_ddp(),
                _real_meshes(),
                _parameters_on_meta(),
                _whole_summed(),
                _sends_held(),
                _known_shapes(),
            ):
                yield
        finally:
            dist.destroy_process_group()
            sys.excepthook = hook


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


def _one_chunk() -> contextlib.AbstractContextManager[None]:
    """Cut only the part of a parameter that FSDP asks for: a thousand views of each parameter take
    a minute.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    return _replaced(_fsdp_param, _chunk_with_empty=_Chunks)


@contextlib.contextmanager
def _agreeing_ddp() -> Iterator[None]:
    """Take for granted what DDP compares between ranks, and answer its reducer, which wants a
    bucket's sum to be a tensor.
    """
    from torch.nn.parallel import distributed as module

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
            "bucket": dist.GradBucket,  # type: ignore[attr-defined]
            "return": torch.futures.Future[torch.Tensor],
        }
        self.register_comm_hook(None, average)
        self.reducer = _SameBuckets(self.reducer)

    with (
        _replaced(
            module, _verify_param_shape_across_processes=_nothing, _sync_module_states=_nothing
        ),
        _replaced(module.DistributedDataParallel, __init__=construct),
    ):
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Agree with ranks that are not there, or tell them something."""


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


def _real_meshes() -> contextlib.AbstractContextManager[None]:
    """Make a mesh's table of ranks a real tensor: its values are read."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    original = device_mesh.init_device_mesh

    def make(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return original(*args, **kwargs)

    return _replaced(device_mesh, init_device_mesh=make)


def _parameters_on_meta() -> contextlib.AbstractContextManager[None]:
    """Move a module's parameters to the meta device: PyTorch would swap them, which fake ones do
    not allow.
    """
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

    return _replaced(torch.nn.Module, to=move)


def _whole_summed() -> contextlib.AbstractContextManager[None]:
    """Copy what FSDP reduces and scatters, as gloo does: it sums a copy of the whole on every rank,
    and cuts this rank's part from it.
    """
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

    return _replaced(dist, **{name: reduce_scatter})


class _Held:
    """A message in flight, which holds its tensors as long as somebody holds it."""

    def __init__(self, work: Any, tensors: list[Any]) -> None:
        self._work, self._tensors = work, tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _sends_held() -> contextlib.AbstractContextManager[None]:
    """Keep what a pipeline sends until its schedule lets go of the message, as gloo's and NCCL's
    works do.
    """
    import torch.distributed.pipelining.schedules

    module: Any = torch.distributed.pipelining.schedules
    original = module._batch_p2p

    def batch(operations: Any, *args: Any, **kwargs: Any) -> list[Any]:
        tensors = [operation.tensor for operation in operations]
        return [_Held(work, tensors) for work in original(operations, *args, **kwargs)]

    return _replaced(module, _batch_p2p=batch)


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


def asks_for_shapes() -> bool:
    """Return whether a pipeline's stage asks its neighbors for shapes in the way that is stood in
    for here: since PyTorch 2.13.
    """
    from torch.distributed.pipelining import PipelineStage

    return all(
        hasattr(PipelineStage, name)
        for name in ("_recv_meta", "_send_meta", "_warmup_forward_vote", "_warmup_backward_result")
    )


class _Zero:
    """The stages' vote on whether they know their shapes beforehand, which is read as a number:
    they do not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what the vote is about."""

    def item(self) -> int:
        return 0


def _known_shapes() -> contextlib.AbstractContextManager[None]:
    """Tell a pipeline's stage the shapes that its neighbors would send."""
    import torch.distributed.pipelining.stage

    if not asks_for_shapes():  # whoever predicts a pipeline has asked before
        return contextlib.nullcontext()
    module: Any = torch.distributed.pipelining.stage

    def receive(self: Any, source: int) -> Any:
        comes_before = source == self.stage_index - 1
        metas = module.extract_tensor_metas((_ARRIVING[0 if comes_before else 1],))
        if comes_before:
            return module._StageForwardMeta(forward_metas=metas)
        return module._StageBackwardMeta(backward_metas=metas)

    return _replaced(
        module.PipelineStage,
        _recv_meta=receive,
        _send_meta=_nothing,
        _warmup_forward_vote=_Zero,
        _warmup_backward_result=_Zero,
    )
