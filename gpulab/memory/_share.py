"""A student's share of a shared GPU's memory, set once for a kernel by the administrator of the
class server.

``GPULAB_GPU_MEMORY`` in a kernel's environment, such as "10 GiB" or "25 %", caps what PyTorch takes
on each GPU from then on; an allocation beyond it raises ``torch.OutOfMemoryError`` in that kernel
only. PyTorch's own allocator enforces the cap: CuPy, numba, JAX, TensorFlow and the CUDA context
(some hundred MB) are outside it, and a student's own code can lift it. JAX and TensorFlow, which
would take most of the GPU at their first operation, are configured to take only what they need. The
cap prevents accidents; only MIG slices isolate users.
"""

from __future__ import annotations

import os
from typing import Any

from gpulab import _backends
from gpulab.errors import InputError, shown
from gpulab.units import format_bytes, parse_bytes

VARIABLE = "GPULAB_GPU_MEMORY"


def apply_share(environment: Any = None) -> str:
    """Cap this process's memory on each GPU as ``GPULAB_GPU_MEMORY`` says; called by ``%load_ext
    gpulab``.

    Parameters
    ----------
    environment : mapping, optional
        In place of the process's own.

    Returns
    -------
    str
        What was done, in a sentence; "" where the variable is not set. A share that cannot be read
        or enforced is reported in the sentence and raises no error, so that the kernel starts.

    Notes
    -----
    Source: PyTorch, ``torch.cuda.memory.set_per_process_memory_fraction``.
    """
    wanted = (os.environ if environment is None else environment).get(VARIABLE, "").strip()
    if not wanted:
        return ""
    import torch

    if not torch.cuda.is_available():
        return ""
    _backends.leave_memory()
    try:
        totals = [
            int(torch.cuda.get_device_properties(index).total_memory)
            for index in range(torch.cuda.device_count())
        ]
        # All before the first is set: a size that the smallest GPU lacks caps nothing, as the
        # sentence says.
        for index, share in enumerate([_share(wanted, total) for total in totals]):
            torch.cuda.set_per_process_memory_fraction(share, index)
    except (InputError, RuntimeError, ValueError, OverflowError) as error:
        return (
            f"{VARIABLE}={shown(wanted)} sets no limit ({error}); expected a size such as '10 GiB' "
            "or a share such as '25 %'. Tell the administrator of this class server."
        )
    return f"You can use up to {wanted} of each GPU's memory here ({VARIABLE})."


def _share(wanted: str, total: int) -> float:
    if wanted.endswith("%"):
        share = float(wanted[:-1]) / 100
    else:
        share = parse_bytes(wanted) / total
        if share > 1:
            raise InputError(f"the GPU has {format_bytes(total)}")
    if not 0 < share <= 1:
        raise InputError("it is not a share between 0 and 100 %")
    return share
