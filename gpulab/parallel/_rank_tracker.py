"""Follow the tensor storages of one rank, where parameters are shared out and collectives move
them.

What ``memory``'s tracker does not meet in one process: a ``DTensor`` wraps the part that this rank
really holds; FSDP frees and fills gathered parameters by resizing their storage, outside any
operator; and buckets and gathered parameters exist only to be sent or received. Imported only
inside functions: the class needs torch when it is defined.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from gpulab.memory._tracker import StorageTracker

COMMUNICATION = "communication"
_RESIZED = "resize_"


class RankTracker(StorageTracker):
    """A ``StorageTracker`` that sees through ``DTensor``, follows resized storages, and tells what
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
        if any(_is_wrapper(kind) for kind in types):
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
        return super()._storages(_local(tensor))

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


def _is_wrapper(kind: Any) -> bool:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor

    return isinstance(kind, type) and issubclass(kind, (DTensor, AsyncCollectiveTensor))


def _local(tensor: Any) -> Any:
    """Return what this rank holds of a tensor."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor
