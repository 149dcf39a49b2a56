"""Batches in the seed's order, prepared by this thread, a thread ahead, or worker processes.

The three give the same batches, so ``workers``, ``prefetch`` and ``pinned`` change how long a run
waits and nothing else.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from gpulab import _interrupts
from gpulab.devices import Device
from gpulab.errors import OutOfMemoryError
from gpulab.training.data_tasks import Data
from gpulab.units import format_bytes

Batch = tuple[Any, Any]
_DEFAULT_AHEAD = 2  # batches a worker prepares ahead where nothing else was asked, as PyTorch does
_PATIENCE_SECONDS = 0.1
_LINUX_SHARED = "/dev/shm"


class Order:
    """The indices of the batches ``first`` to ``last`` (not included), each int64 of shape
    (batch_size,).

    Each epoch is another permutation; its last items that fill no batch wait for another epoch.
    Batch k depends on the seed and k alone, so a run that is resumed sees what it would have seen.
    """

    def __init__(self, items: int, batch_size: int, seed: int, first: int, last: int) -> None:
        self.items, self.batch_size, self.seed, self.first, self.last = (
            items,
            batch_size,
            seed,
            first,
            last,
        )

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[np.ndarray]:
        an_epoch, size = self.items // self.batch_size, self.batch_size
        permutation, known = np.zeros(0, dtype=np.int64), -1
        for number in range(self.first, self.last):
            epoch, place = divmod(number, an_epoch)
            if epoch != known:
                permutation, known = (
                    np.random.default_rng((self.seed, epoch)).permutation(self.items),
                    epoch,
                )
            yield permutation[place * size : (place + 1) * size]


class Feed:
    """What gives a run its batches: ``next(feed)``, then ``close()``.

    Parameters
    ----------
    data : Data
    order : Order
    loading, workers, prefetch, pinned
        As in ``training.fit``.
    to_device : callable
        Copies a batch to the device; called by the thread ahead where there is one, else by the
        run.
    device : Device
        Where that is; a thread ahead has a stream of its own there.
    """

    def __init__(
        self,
        data: Data,
        order: Order,
        *,
        workers: int,
        prefetch: int,
        pinned: bool,
        to_device: Callable[[Batch], Batch],
        device: Device,
        loading: str = "batches",
    ) -> None:
        self.on_device = prefetch > 0 and workers == 0
        self._ahead: _Ahead | None = None
        source: Any = _ItemByItem(data) if loading == "items" else data
        if workers:
            check_shared(
                "fit",
                (data.inputs[:1].nbytes + data.targets[:1].nbytes) * order.batch_size,
                workers,
                prefetch or _DEFAULT_AHEAD,
            )
            self._batches = _workers(source, order, workers, prefetch, pinned)
            return
        batches = (
            _resident(data, order, to_device)
            if loading == "resident"
            else _here(source, order, pinned)
        )
        if prefetch:
            self._ahead = _Ahead(batches, prefetch, to_device, device)
            batches = iter(self._ahead)
        self._batches = batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """End the thread or the processes."""
        if self._ahead is not None:
            self._ahead.close()
        # Not left to the last reference: an error that a notebook keeps holds the loader, and its
        # processes heed no interrupt.
        getattr(self._batches, "_shutdown_workers", lambda: None)()
        self._batches = iter(())


class _ItemByItem:
    """The data as a plain ``Dataset`` gives it: one item a call, stacked into a batch
    afterwards.
    """

    def __init__(self, data: Data) -> None:
        self.data = data

    def __getitem__(self, indices: Any) -> Batch:
        inputs, targets = zip(*(self.data[int(index)] for index in indices), strict=True)
        return torch.stack(inputs), torch.stack(targets)

    __getitems__ = __getitem__  # what PyTorch's DataLoader asks for at once


def _resident(data: Data, order: Order, to_device: Callable[[Batch], Batch]) -> Iterator[Batch]:
    """Copy all of the data once; a batch is then an indexing on the device."""
    inputs, targets = to_device((data.inputs, data.targets))
    for indices in order:
        chosen = torch.from_numpy(indices)
        # from pageable memory the host would wait, in each step, for all that the device has still
        # to do
        if inputs.is_cuda:
            chosen = chosen.pin_memory()
        chosen = chosen.to(inputs.device, non_blocking=inputs.is_cuda)
        yield inputs[chosen], targets[chosen]


def _here(data: Data, order: Order, pinned: bool) -> Iterator[Batch]:
    for indices in order:
        inputs, targets = data[torch.from_numpy(indices)]
        yield (inputs.pin_memory(), targets.pin_memory()) if pinned else (inputs, targets)


def _workers(
    data: Data, order: Order, workers: int, prefetch: int, pinned: bool
) -> Iterator[Batch]:
    # A generator of its own: the loader would otherwise draw its workers' seeds from the learner's.
    loader: DataLoader[Any] = DataLoader(
        cast(Any, data),
        batch_sampler=cast(Any, order),
        num_workers=workers,
        prefetch_factor=prefetch or _DEFAULT_AHEAD,
        pin_memory=pinned,
        collate_fn=tuple,
        generator=torch.Generator().manual_seed(order.seed),
        worker_init_fn=_interrupts.leave_to_the_run,
    )
    return iter(loader)


def check_shared(who: str, nbytes: int, workers: int, prefetch: int) -> None:
    """Refuse what the shared memory of the workers cannot hold: there a worker would die by a
    signal, or a batch would never come.

    Raises
    ------
    OutOfMemoryError
        If the batches of ``nbytes`` that are in flight need more than is free.
    """
    needed = nbytes * workers * (prefetch + 1)
    if (
        needed
        and os.path.isdir(_LINUX_SHARED)  # noqa: PTH112
        and needed > (free := shutil.disk_usage(_LINUX_SHARED).free)
    ):
        raise OutOfMemoryError(
            f"{who}: {workers} workers, each {prefetch} batches ahead, need {format_bytes(needed)} "
            f"of shared memory, and {_LINUX_SHARED} has {format_bytes(free)} free; expected room "
            "for them. Lower workers, prefetch or batch_size, free some there, or start the "
            "container with more (docker run --shm-size=1g)."
        )


class _Ahead:
    """A thread that prepares batches and copies them to the device, a few ahead of the run."""

    def __init__(
        self,
        batches: Iterator[Batch],
        ahead: int,
        to_device: Callable[[Batch], Batch],
        device: Device,
    ) -> None:
        self._batches, self._to_device, self._device = batches, to_device, device
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gpulab-prefetch", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            # The current device is that of each thread: of this one it is the first, wherever the
            # run trains.
            stream = (
                cast(Any, torch.cuda.Stream)(self._device.index)
                if self._device.torch_type == "cuda"
                else None
            )
            for batch in self._batches:
                with torch.cuda.stream(stream):  # of None, nothing: on a CPU there are no streams
                    there = self._to_device(batch)
                    event = stream.record_event() if stream is not None else None
                self._give((there, event))
                if self._closed.is_set():
                    return
        except BaseException as error:  # passed to the run, which raises it
            self._give(error)

    def _give(self, item: Any) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_PATIENCE_SECONDS)
            except queue.Full:
                continue
            return

    def __iter__(self) -> Iterator[Batch]:
        while True:
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            batch, event = item
            if event is not None:
                stream = torch.cuda.current_stream(self._device.index)
                stream.wait_event(event)
                for tensor in batch:
                    if tensor.is_cuda:
                        tensor.record_stream(stream)
            yield batch

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=5)
