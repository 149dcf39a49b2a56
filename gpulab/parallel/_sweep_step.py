"""The rank's side of a sweep: one collective again and again, its times, and the bytes that it
sends.

Runs wherever torch.distributed has a process group. Nothing here decides how long to measure.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulab import devices
from gpulab.parallel._backend import own_device
from gpulab.parallel._observe import unobserved
from gpulab.parallel._wire import sent_between, sent_by_socket


def facts() -> dict[str, Any]:
    """Return what says whether ranks share a clock (one running kernel), how they talk, and where
    their tensors are.
    """
    import torch.distributed as dist

    boot = Path("/proc/sys/kernel/random/boot_id")
    clock = boot.read_text() if boot.exists() else socket.gethostname()
    return {
        "clock": clock,
        "backend": str(dist.get_backend()),
        "environment": devices.environment(own_device()),
    }


def timed_calls(
    operation: str, elements: int, count: int, root: int = 0
) -> list[tuple[float, float]]:
    """Make the calls, each after a barrier; return when this rank entered each and when it had its
    result (``time.perf_counter``).

    The first call is not timed. ``elements`` are float32, of the whole tensor; the ranks divide
    them.
    """
    import torch.distributed as dist

    call, wait = _call(operation, elements, root)
    times = []
    with unobserved():
        for number in range(count + 1):
            dist.barrier()
            begin = time.perf_counter()
            call()
            wait()
            if number:
                times.append((begin, time.perf_counter()))
    return times


def sent_bytes(operation: str, elements: int, root: int = 0) -> tuple[int | None, str | None]:
    """Return what this rank's sockets send for one call, or None and why it cannot be counted.

    A barrier after the call waits for the last answers to other ranks; its own bytes, counted alone
    before, are taken off.
    """
    import torch.distributed as dist

    call, wait = _call(operation, elements, root)
    with unobserved():
        for _ in range(2):  # the first may still be under way on another rank
            dist.barrier()
        start = sent_by_socket()
        dist.barrier()
        alone = sent_by_socket()
        call()
        wait()
        dist.barrier()
    barrier, _ = sent_between(start, alone)
    both, reason = sent_between(alone, sent_by_socket())
    return (None, reason) if both is None or barrier is None else (both - barrier, None)


def _call(operation: str, elements: int, root: int) -> tuple[Callable[[], Any], Callable[[], None]]:
    """Return the call, with its tensors, and what waits for the device."""
    import torch
    import torch.distributed as dist

    n, rank, device = dist.get_world_size(), dist.get_rank(), own_device()
    whole, part = torch.zeros(elements, device=device), torch.zeros(elements // n, device=device)
    other = torch.zeros(elements if operation == "all_to_all" else 0, device=device)
    parts = list(whole.chunk(n)) if rank == root else None
    # torch 2.13 renamed these two.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather(whole, part),
        "reduce_scatter": lambda: reduce_scatter(part, whole),
        "broadcast": lambda: dist.broadcast(whole, root),
        "reduce": lambda: dist.reduce(whole, root),
        "gather": lambda: dist.gather(part, parts, root),
        "scatter": lambda: dist.scatter(part, parts, root),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "barrier": dist.barrier,
    }
    return calls[operation], (torch.cuda.synchronize if device != "cpu" else _nothing)


def _nothing() -> None:
    """Wait for no device."""
