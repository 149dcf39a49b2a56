"""How this rank talks to the others, and so where it computes.

Runs wherever torch.distributed has a process group, and needs torch alone. The NCCL path was
written for machines with several GPUs and has not been run on one yet.
"""

from __future__ import annotations

import os


def talks_nccl() -> bool:
    """Whether tensors on a GPU go over NCCL; the group may have gloo beside it, for those on the
    CPU ("cpu:gloo,cuda:nccl").
    """
    import torch.distributed as dist

    return "nccl" in str(dist.get_backend())


def own_device() -> str:
    """Return where this rank computes: with NCCL on the GPU of its local number, which becomes
    torch's current one; else on the CPU.
    """
    if not talks_nccl():
        return "cpu"
    import torch
    import torch.distributed as dist

    device = (
        f"cuda:{int(os.environ.get('LOCAL_RANK', dist.get_rank())) % torch.cuda.device_count()}"
    )
    torch.cuda.set_device(device)
    return device
