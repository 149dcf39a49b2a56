"""A cluster of real ranks: ipyparallel engines with a process group of torch.distributed among them.

with gl.parallel.cluster(n=4) as ranks:
    ranks.run(function, 3)              # function(3) on each rank; one result a rank, in rank order
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gpulab.parallel import _rank


def cluster(
    n: int = 2,
    *,
    profile: str | None = None,
    timeout_seconds: float = 20.0,
    threads: int = 1,
    backend: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Ranks:
    """Return ranks that start when entered (``with``) or by ``.start()``."""
    return Ranks(n, profile, timeout_seconds, threads, backend, progress)


class Ranks:
    """Engines with ranks and a process group; made by `cluster`."""

    def __init__(
        self,
        n: int,
        profile: str | None,
        timeout_seconds: float,
        threads: int,
        backend: str | None,
        progress: Callable[[float, str], None] | None,
    ) -> None:
        self.n = n
        self._profile, self._timeout, self._threads, self._backend = profile, timeout_seconds, threads, backend
        self._progress = progress or (lambda fraction, text: None)
        self._cluster: Any = None
        self._client: Any = None
        self._view: Any = None
        self.hosts: tuple[str, ...] = ()

    def start(self) -> Ranks:
        """Start the engines and open the process group."""
        import logging

        import ipyparallel as ipp

        self._cluster = ipp.Cluster(n=self.n, log_level=logging.ERROR, delay=0.0)
        try:
            self._progress(0.0, "starting the controller and the engines")
            self._client = self._cluster.start_and_connect_sync()
            targets = sorted(self._client.ids)
            self._view = self._client[targets]
            self._progress(0.6, "engines load torch")
            self.hosts = tuple(facts["host"] for facts in self._view.apply_sync(_rank.describe))
            port = self._client[targets[0]].apply_sync(_rank.open_store, "127.0.0.1")
            waiting = [
                self._client[target].apply_async(
                    _rank.open_group, rank, self.n, "127.0.0.1", port, self._timeout, self._threads, self._backend
                )
                for rank, target in enumerate(targets)
            ]
            for result in waiting:
                result.get()
            self._view.block = True
            self._view.activate()
            self._progress(1.0, "ready")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the engines and the controller."""
        if self._client is not None:
            import os
            import signal

            for pid in self._client[:].apply_async(os.getpid).get(2.0) if not self._client.outstanding else ():
                os.kill(pid, signal.SIGKILL)
            self._client.close()
        if self._cluster is not None:
            self._cluster.stop_cluster_sync()
        self._client = self._cluster = self._view = None

    def __enter__(self) -> Ranks:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def run(self, function: Callable[..., Any], *args: Any, timeout_seconds: float | None = None, **kwargs: Any) -> list[Any]:
        """Call a function on every rank; return one result a rank, in rank order."""
        import cloudpickle

        _by_value(function)
        payload = cloudpickle.dumps((function, args, kwargs))
        return [cloudpickle.loads(result) for result in self._view.apply_async(_rank.execute, payload).get()]


def _by_value(function: Callable[..., Any]) -> None:
    """Make cloudpickle carry the source of a module that the engines could not import."""
    import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(module, "__name__", "")
    place = getattr(module, "__file__", None) or ""
    if module is None or name == "__main__" or name.split(".")[0] in {"gpulab", "torch"} or "site-packages" in place or not place:
        return
    cloudpickle.register_pickle_by_value(module)
