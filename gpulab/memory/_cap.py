"""A dispatch mode that refuses what no longer fits: how a CPU gets the out-of-memory error of a
small accelerator.

Slimmer than the tracker behind ``trace``: it keeps the bytes of each living storage and nothing of
the dead, so that it can stay on for as long as a training runs. Imported only inside functions: the
class needs torch when it is defined.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpulab.memory._snapshot import living
from gpulab.memory._tracker import storages_of
from gpulab.units import format_bytes


class Cap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the living storages of one device type, and raise PyTorch's own error when an operator
    makes them too many.

    Parameters
    ----------
    device_type : str
    nbytes : int
        What the living storages together may take.
    on_top : bool
        Whether only those count that are made while the mode is on.
    """

    def __init__(self, device_type: str, nbytes: int, on_top: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type, self.nbytes, self.on_top = device_type, nbytes, on_top
        self.live_bytes = self.peak_bytes = 0
        self._living: dict[int, tuple[int | None, Any]] = {}  # None: there before, and not counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; what it made too much is let go again before the error is raised."""
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question about a tensor, not work
            return func(*args, **kwargs)
        # what was there before the block, and what autograd kept
        self._count((args, kwargs), ours=not self.on_top)
        before = self.live_bytes
        result = func(*args, **kwargs)
        self._count(result)
        made = self.live_bytes - before
        if made > 0 and self.live_bytes > self.nbytes:
            # the error keeps this frame: with the result in it, what did not fit would stay
            result = None
            raise torch.OutOfMemoryError(
                f"{self.device_type.upper()} out of memory. Tried to allocate {format_bytes(made)} "
                f"in {func}. "
                f"gpulab.memory.limit allows {format_bytes(self.nbytes)}, of which "
                f"{format_bytes(max(0, self.nbytes - before))} is free; "
                f"live tensors hold {format_bytes(before)}."
            )
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def watch_living(self) -> None:
        """Count every tensor that Python can reach now: made before the block, or between two of
        them.
        """
        for item in living((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)):
            self._count(item)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _count(self, values: Any, ours: bool = True) -> None:
        for tensor in tree_leaves(values):
            if not isinstance(tensor, torch.Tensor):
                continue
            for _, storage in storages_of(tensor, self.device_type):
                if storage.device.type != self.device_type:
                    continue  # a fake tensor, which says it were here
                key, nbytes = storage._cdata, storage.nbytes()
                known = self._living.get(key)
                if known is None:
                    self._living[key] = (
                        nbytes if ours else None,
                        weakref.ref(storage, functools.partial(self._died, key)),
                    )
                    self.live_bytes += nbytes if ours else 0
                elif known[0] is not None and known[0] != nbytes:  # resized in place
                    self._living[key] = (nbytes, known[1])
                    self.live_bytes += nbytes - known[0]

    def _died(self, key: int, _: Any) -> None:
        self.live_bytes -= self._living.pop(key)[0] or 0
