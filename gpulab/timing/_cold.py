"""Empty the caches before a call, by writing over more memory than they hold.

On a CPU twice the last-level cache is written by the calling thread; caches private to other cores
keep what they have, so a function on many threads is only as cold as the shared cache makes it. On
a GPU twice the L2 cache is cleared (as nvbench does), and the device has finished before the clock
starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.devices import Device
from gpulab.devices._cpu import probe
from gpulab.timing.sampling import Run

# Where the size of a cache cannot be read: more than any cache of the machines of 2026 that most
# people have.
_UNKNOWN_CPU_BYTES = 256 * 2**20
_UNKNOWN_GPU_BYTES = 128 * 2**20


@functools.cache
def _cpu_cache_bytes() -> int:
    sizes = [cache.total_bytes for cache in probe().caches if cache.level != "L1i"]
    return max(sizes, default=_UNKNOWN_CPU_BYTES)


def _gpu_cache_bytes(device: Device) -> int:
    import torch

    properties: Any = (
        torch.cuda.get_device_properties(device.index) if device.torch_type == "cuda" else None
    )
    return int(getattr(properties, "L2_cache_size", 0) or _UNKNOWN_GPU_BYTES)


def flusher(device: Device) -> Callable[[], None]:
    """Return what leaves nothing useful in the device's caches, and has finished when it
    returns.
    """
    if device.is_cpu:
        buffer = np.zeros(2 * _cpu_cache_bytes() // 8, dtype=np.int64)

        def flush_host() -> None:
            np.add(buffer, 1, out=buffer)

        return flush_host
    import torch

    tensor = torch.empty(2 * _gpu_cache_bytes(device) // 4, dtype=torch.int32, device=str(device))

    def flush_device() -> None:
        tensor.zero_()
        device.synchronize()

    return flush_device


def cold_run(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    wait: Callable[[], None],
    clock: Callable[[], float],
    flush: Callable[[], None],
    finish: Callable[[Any], Any] | None = None,
) -> Run:
    """Return a ``Run`` whose every call finds the caches cold; the flushing is outside of the timed
    part.
    """

    def run(calls: int) -> tuple[float, float]:
        launched = finished = 0.0
        for _ in range(calls):
            flush()
            start = clock()
            result = fn(*args)
            returned = clock()
            if finish is not None:
                finish(result)
            del result
            wait()
            finished += clock() - start
            launched += returned - start
        return launched, finished

    return run
