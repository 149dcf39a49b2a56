"""What runs inside an engine: its rank, its process group, and one function at a time.

Everything here is called by name in an engine, so it must be importable there. It does not know the cluster.
"""

from __future__ import annotations

import datetime
import os
import socket
import sys
from typing import Any


class _State:
    """What this engine remembers between two calls."""

    rank = 0
    world_size = 1
    timeout_seconds = 20.0
    store: Any = None


STATE = _State()


def describe() -> dict[str, Any]:
    """Return what the cluster must know about an engine before it gives ranks."""
    import torch

    return {"pid": os.getpid(), "host": socket.gethostname(), "torch": torch.__version__, "python": sys.version.split()[0]}


def open_store(host: str) -> int:
    """Start the store at which the ranks meet, on a free port of this engine's machine; return the port."""
    import torch.distributed as dist

    STATE.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return int(STATE.store.port)


def open_group(rank: int, world_size: int, host: str, port: int, timeout_seconds: float, threads: int, backend: str | None) -> None:
    """Join the process group as a rank; `rank` and `world_size` become names in the engine's namespace."""
    import torch
    import torch.distributed as dist

    STATE.rank, STATE.world_size, STATE.timeout_seconds = rank, world_size, timeout_seconds
    torch.set_num_threads(threads)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
    store = STATE.store if rank == 0 else dist.TCPStore(host, port, is_master=False)
    STATE.store = store
    dist.init_process_group(
        backend or "gloo", store=store, rank=rank, world_size=world_size, timeout=datetime.timedelta(seconds=timeout_seconds)
    )
    names = _namespace()
    names["rank"], names["world_size"] = rank, world_size


def close_group() -> None:
    """Leave the process group."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    STATE.store = None


def execute(payload: bytes) -> bytes:
    """Call the function in the payload; return its result, both through cloudpickle."""
    import cloudpickle

    function, args, kwargs = cloudpickle.loads(payload)
    result: bytes = cloudpickle.dumps(function(*args, **kwargs))
    return result


def _namespace() -> dict[str, Any]:
    """Return the engine's namespace, in which ``%%px`` runs."""
    from ipykernel.ipkernel import IPythonKernel

    names: dict[str, Any] = IPythonKernel.instance().shell.user_ns
    return names
