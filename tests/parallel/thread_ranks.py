"""Ranks for tests that are threads of one process: messages between two of them, and a clock of each."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

_real = time.perf_counter


class ThreadRanks:
    """So many threads; ``torch.distributed`` speaks between them while a function runs, and each has a clock that is ahead by its own."""

    def __init__(self, patch: pytest.MonkeyPatch, ahead: Sequence[float]) -> None:
        self.ahead, self._here = ahead, threading.local()
        self._mail: dict[tuple[int, int], queue.Queue[torch.Tensor]] = defaultdict(queue.Queue)
        self._meet, self._all = threading.Barrier(len(ahead), timeout=20), [""] * len(ahead)
        self.sent: list[tuple[int, int]] = []
        rank = self.rank
        patch.setattr(time, "perf_counter", self.perf_counter)
        patch.setattr(dist, "get_rank", rank)
        patch.setattr(dist, "get_world_size", lambda: len(ahead))
        patch.setattr(dist, "send", self._send)
        patch.setattr(dist, "recv", lambda tensor, src: tensor.detach().copy_(self._mail[src, rank()].get(timeout=20)))
        patch.setattr(dist, "broadcast", self._broadcast)
        patch.setattr(dist, "all_gather_object", self._gather)

    def rank(self) -> int:
        """Return which thread this is."""
        return int(self._here.rank)

    def perf_counter(self) -> float:
        """Return what this thread's clock says: its rank's, or the machine's own for any other thread."""
        return _real() + (self.ahead[self._here.rank] if hasattr(self._here, "rank") else 0.0)

    def _send(self, tensor: torch.Tensor, dst: int) -> None:
        self.sent.append((self.rank(), dst))
        self._mail[self.rank(), dst].put(tensor.detach().clone())

    def _broadcast(self, tensor: torch.Tensor, src: int) -> None:
        if self.rank() == src:
            for other in range(len(self.ahead)):
                if other != src:
                    self._mail[src, other].put(tensor.clone())
        else:
            tensor.copy_(self._mail[src, self.rank()].get(timeout=20))

    def _gather(self, names: list[str], name: str) -> None:
        self._all[self.rank()] = name
        self._meet.wait()
        names[:] = self._all

    def run(self, function: Callable[[], Any]) -> list[Any]:
        """Call it on every rank; return the results in their order."""
        results: list[Any] = [None] * len(self.ahead)

        def work(rank: int) -> None:
            self._here.rank = rank
            results[rank] = function()

        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(self.ahead))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results
