"""A stop request that reaches ranks in the middle of a call, so that they end together after a
whole step.

An interrupt ends a call immediately, and the ranks' results are lost: one may be a step ahead of
another. Here a file on the machine is the stop request. Rank 0 checks for it between two steps and
informs the other ranks one step ahead, through the store of the process group: so no rank waits for
the answer, and no collective is added to those that are observed.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpulab._files import TemporaryFolder

if TYPE_CHECKING:
    from gpulab.parallel._cluster import Ranks

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Wish:
    """Where the ranks learn of a wish to stop.

    Attributes
    ----------
    path : str
        The file that appears with the wish.
    key : str
        Under which rank 0 tells the others.
    timeout_seconds : float
        How long they wait for its word: as long as a collective does.
    """

    path: str
    key: str
    timeout_seconds: float

    @property
    def made(self) -> bool:
        """Whether somebody wishes to stop; on another machine than rank 0's the file is not
        seen.
        """
        return Path(self.path).exists()


@contextlib.contextmanager
def wish(stop: Callable[[], bool] | None, ranks: Ranks) -> Iterator[Wish | None]:
    """Call ``stop`` a few times a second while the block runs, and pass its answer on as a `Wish`;
    None without a ``stop``.

    Ranks of other machines cannot see the file: they are interrupted.
    """
    if stop is None:
        yield None
        return
    folder, done = TemporaryFolder("stop"), threading.Event()
    made = Wish(f"{folder.name}/stop", f"gpulab-stop-{uuid.uuid4().hex}", ranks.timeout_seconds)
    here = set(ranks.hosts) == {socket.gethostname()}
    failures: list[BaseException] = []

    def asked() -> bool:
        try:
            return stop()
        except BaseException as error:  # its owner hears of it where the block ends
            failures.append(error)
            return True

    def watch() -> None:
        while not asked():
            if done.wait(_POLL_SECONDS):
                return
        Path(made.path).touch()
        if not here:
            ranks.interrupt()

    watcher = threading.Thread(target=watch, name="gpulab-stop", daemon=True)
    watcher.start()
    try:
        yield made
    finally:
        done.set()
        watcher.join()
        folder.cleanup()
        if failures:
            raise failures[0]


class Agreed:
    """Whether the ranks take their next step: rank 0's word of one step before, the same for all.
    Every rank of the group makes one.
    """

    def __init__(self, asked: Wish | None) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        self.asked, self.rank, self.size = asked, dist.get_rank(), dist.get_world_size()
        self.store = distributed_c10d._get_default_store()
        self.word = True  # rank 0's for the next step

    def go(self, step: int) -> bool:
        """Return whether to take a step; asked before each, from 0 on."""
        if self.asked is None:
            return True
        if self.rank != 0:
            return step == 0 or self._told(step)
        word, self.word = self.word, not self.asked.made
        if self.size > 1:
            self.store.set(self._key(step + 1), "go" if self.word else "stop")
        return word

    def _told(self, step: int) -> bool:
        assert self.asked is not None
        self.store.wait([self._key(step)], datetime.timedelta(seconds=self.asked.timeout_seconds))
        return bool(self.store.get(self._key(step)) == b"go")

    def _key(self, step: int) -> str:
        assert self.asked is not None
        return f"{self.asked.key}-{step}"
