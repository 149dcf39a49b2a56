"""The memory of one step of a run, by who holds it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gpulab.devices import Device
from gpulab.evidence import Note
from gpulab.memory.results import CATEGORIES


class Followed:
    """What one step held at its peak.

    Attributes
    ----------
    peak_bytes : int or None
        None until a step was followed, and where none can be.
    by_category : dict of str to int
    """

    def __init__(self, device: Device, opaque: bool) -> None:
        self._device, self._opaque = device, opaque
        self.peak_bytes: int | None = None
        self.by_category: dict[str, int] = {}

    @contextlib.contextmanager
    def step(self, model: Any, optimizer: Any, batch: Any) -> Iterator[None]:
        """Follow the step in the block."""
        if self._opaque:
            with self._asked_of_the_allocator():
                yield
            return
        from gpulab.memory._step import optimizer_seen
        from gpulab.memory._tracker import StorageTracker

        tracker = StorageTracker(self._device.torch_type)
        tracker.watch_modules([model])
        for state in optimizer.state.values():
            for value in state.values():
                if hasattr(value, "untyped_storage"):
                    tracker.watch(value, "optimizer")
        tracker.watch_inputs(batch)
        tracker.begin_step()
        try:
            with optimizer_seen(tracker), tracker:
                yield
        finally:
            tracker.close()
        tracker.classify()
        event, self.peak_bytes = tracker.peak()
        alive = tracker.alive_at(event)
        self.by_category = {
            category: sum(t.nbytes for t in alive if t.category == category)
            for category in CATEGORIES
        }

    @contextlib.contextmanager
    def _asked_of_the_allocator(self) -> Iterator[None]:
        """A compiled step has no operators to follow; CUDA's allocator knows its peak, a CPU's does
        not.
        """
        import torch

        if self._device.torch_type != "cuda":
            yield
            return
        torch.cuda.reset_peak_memory_stats(self._device.index)
        yield
        torch.cuda.synchronize(self._device.index)
        self.peak_bytes = torch.cuda.max_memory_allocated(self._device.index)

    def note(self) -> Note | None:
        """Say what is not known, where something is not."""
        if not self._opaque:
            return None
        whole = (
            "the peak is that of the whole process"
            if self.peak_bytes is not None
            else "its peak is not known"
        )
        return Note(
            "skipped",
            f"a compiled step has no operators to follow, so {whole}, and its memory is not split "
            "into categories.",
        )
