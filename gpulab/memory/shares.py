"""Limits on the memory that this process takes of a device.

``limit`` makes a deliberately small device: out-of-memory errors on demand, without the risk that
the system kills the process. On a CPU the limit is kept by a dispatch mode over live tensor
storage, on CUDA by PyTorch's own allocator. Both raise ``torch.OutOfMemoryError``, so that code
that handles them works on a full GPU too.

``apply_share`` gives a student a share of a shared GPU, set once for a kernel by the administrator
of the class server: ``GPULAB_GPU_MEMORY`` in a kernel's environment, such as "10 GiB" or "25 %",
caps what PyTorch takes on each GPU from then on; an allocation beyond it raises
``torch.OutOfMemoryError`` in that kernel only. PyTorch's own allocator enforces the cap: CuPy,
numba, JAX, TensorFlow and the CUDA context (some hundred MB) are outside it, and a student's own
code can lift it. JAX and TensorFlow, which would take most of the GPU at their first operation, are
configured to take only what they need. The cap prevents accidents; only MIG slices isolate users.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from gpulab import _backends, _validate, devices
from gpulab.errors import DeviceError, InputError, shown
from gpulab.memory.tracker import Cap
from gpulab.units import format_bytes, parse_bytes

VARIABLE = "GPULAB_GPU_MEMORY"


class Limit:
    """The context manager of ``limit``; it may be entered repeatedly and keeps track of what is
    still alive.

    Attributes
    ----------
    nbytes : int
        What live tensors may take together.
    device : Device
    """

    def __init__(self, nbytes: int, device: devices.Device, on_top: bool = False) -> None:
        self.nbytes, self.device = nbytes, device
        # stays from the first entry on
        self._cap: Any = (
            Cap("cpu", nbytes, on_top) if device.is_cpu else _AllocatorCap(device, nbytes, on_top)
        )

    @property
    def live_bytes(self) -> int:
        """What live tensors take now, as far as they were used in the block; on CUDA all that
        PyTorch has allocated.
        """
        return int(self._cap.live_bytes)

    @property
    def peak_bytes(self) -> int:
        """The most that live tensors took in the block."""
        return int(self._cap.peak_bytes)

    @property
    def free_bytes(self) -> int:
        """What is left of the limit."""
        return max(0, self.nbytes - self.live_bytes)

    def __enter__(self) -> Limit:
        self._cap.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._cap.__exit__(*error)


class _AllocatorCap:
    """The limit that PyTorch's own allocator keeps on an accelerator, used as ``Cap`` is."""

    def __init__(self, device: devices.Device, nbytes: int, on_top: bool) -> None:
        self.device, self.nbytes, self.on_top = device, nbytes, on_top
        self._memory: Any = getattr(torch, device.torch_type)
        self._before, self._fraction = 0, 1.0  # what was there and does not count; without a limit

    @property
    def live_bytes(self) -> int:
        return int(self._memory.memory_allocated(self.device.index)) - self._before

    @property
    def peak_bytes(self) -> int:
        return int(self._memory.max_memory_allocated(self.device.index)) - self._before

    def __enter__(self) -> None:
        memory, index, total = self._memory, self.device.index, self.device.memory_bytes
        memory.empty_cache()  # what the allocator only keeps must not count
        allowed = self.nbytes + (int(memory.memory_reserved(index)) if self.on_top else 0)
        if total is None or allowed > total:
            raise InputError(
                f"limit: {format_bytes(self.nbytes)} is more than {self.device.name} has "
                f"({format_bytes(total or 0)}); expected less. Pass a smaller size."
            )
        if hasattr(memory, "get_per_process_memory_fraction"):
            self._fraction = float(memory.get_per_process_memory_fraction(index))
        self._before = int(memory.memory_allocated(index)) if self.on_top else 0
        memory.reset_peak_memory_stats(index)
        memory.set_per_process_memory_fraction(allowed / total, index)

    def __exit__(self, *error: Any) -> None:
        self._memory.set_per_process_memory_fraction(self._fraction, self.device.index)


def limit(nbytes: int | str, device: Any = None, *, on_top: bool = False) -> Limit:
    """Return a context manager that limits how much memory the tensors of a device take together.

    An allocation beyond the limit raises ``torch.OutOfMemoryError``, as on a full GPU; the program
    goes on, and the rest of the machine is not affected.

    Parameters
    ----------
    nbytes : int or str
        Bytes, or text such as "96 MiB". Everything that PyTorch holds on the device counts,
        including what was there before.
    device : None, str or Device
        None takes the best one available. On a CPU the storage of living tensors counts, after each
        operator of this thread; what an operator allocates internally and frees again does not. On
        CUDA, ROCm and XPU PyTorch's allocator keeps the limit, its blocks (2 MiB and more) counted
        whole: a gap in a block that it already held, and that a live tensor keeps allocated, does
        not count again.
    on_top : bool
        True counts only what is made inside the block, on top of what was there.

    Returns
    -------
    Limit
        For ``with``; ``live_bytes``, ``peak_bytes`` and ``free_bytes`` show how full it is. Entered
        again, it still counts what the first block left behind.

    Raises
    ------
    InputError
        If the size is not one, or is more than the device has.
    DeviceError
        If there is no such device, or PyTorch cannot limit it.

    Notes
    -----
    Source of the accelerators' form: PyTorch,
    ``torch.cuda.memory.set_per_process_memory_fraction``.

    Examples
    --------
    >>> import torch
    >>> small = limit("1 MiB", "cpu", on_top=True)
    >>> try:
    ...     with small:
    ...         torch.zeros(2**20)
    ... except torch.OutOfMemoryError as error:
    ...     print(str(error)[:45])
    CPU out of memory. Tried to allocate 4.00 MiB
    """
    size, on_top = parse_bytes(nbytes), _validate.flag("limit", "on_top", on_top)
    if size < 1:
        raise InputError(
            f"limit: {size} bytes cannot hold a tensor; expected at least 1. Pass for example '96 "
            "MiB'."
        )
    where = devices.find(device)
    # Apple's has a call of the same name, which does not raise
    can = hasattr(getattr(torch, where.torch_type), "set_per_process_memory_fraction")
    if not where.is_cpu and (where.kind == "mps" or not can):
        raise DeviceError(
            f"limit: PyTorch cannot limit {where.name}; expected a CPU or a CUDA device. Pass "
            "device='cpu'."
        )
    return Limit(size, where, on_top)


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
    if not wanted or not torch.cuda.is_available():
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
