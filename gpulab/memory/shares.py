"""Limits on the memory that this process takes of a device.

``limit`` makes a deliberately small device of the CPU: out-of-memory errors on demand, without the
risk that the system kills the process. A dispatch mode over live tensor storage keeps the limit and
raises ``torch.OutOfMemoryError``, so that code that handles it works on a full GPU too.

``apply_share`` gives a student a share of a shared GPU, set once for a kernel by the administrator
of the class server: ``GPULAB_GPU_MEMORY`` in a kernel's environment, such as "10 GiB" or "25 %",
caps what PyTorch takes on each GPU from then on; an allocation beyond it raises
``torch.OutOfMemoryError`` in that kernel only. PyTorch's own allocator enforces the cap: CuPy,
numba, JAX, TensorFlow and the CUDA context (some hundred MB) are outside it, and a student's own
code can lift it. JAX and TensorFlow, which would take most of the GPU at their first operation, are
configured to take only what they need. The cap prevents accidents; only MIG slices isolate users.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpulab import _backends, _validate, devices
from gpulab.errors import DeviceError, InputError, shown
from gpulab.memory.tracker import living, storages_of, tensors_in
from gpulab.units import format_bytes, parse_bytes

VARIABLE = "GPULAB_GPU_MEMORY"


class Limit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The context manager of ``limit``: it counts the living storages of the CPU's tensors, and
    raises PyTorch's own error when an operator makes them too many. It may be entered repeatedly
    and keeps track of what is still alive.

    It keeps the bytes of each living storage and nothing of the dead, so that it can stay on for as
    long as a training runs.

    Parameters
    ----------
    nbytes : int
        What the living storages together may take.
    on_top : bool
        Whether only those count that are made while the mode is on.

    Attributes
    ----------
    live_bytes, peak_bytes : int
        What live tensors take now, as far as they were used in the block, and the most that they
        took.
    """

    def __init__(self, nbytes: int, on_top: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes, self.on_top = nbytes, on_top
        self.live_bytes = self.peak_bytes = 0
        self._living: dict[int, tuple[int | None, Any]] = {}  # None: there before, and not counted

    @property
    def free_bytes(self) -> int:
        """What is left of the limit."""
        return max(0, self.nbytes - self.live_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; a result that does not fit is released before the error is raised."""
        kwargs = kwargs or {}
        # what was there before the block, and what autograd kept
        self._count((args, kwargs), ours=not self.on_top)
        before = self.live_bytes
        result = func(*args, **kwargs)
        self._count(result)
        made = self.live_bytes - before
        if made > 0 and self.live_bytes > self.nbytes:
            # the error keeps this frame: with the result in it, what did not fit would stay
            result = None
            raise torch.OutOfMemoryError(
                f"CPU out of memory. Tried to allocate {format_bytes(made)} in {func}. "
                f"gpulab.memory.limit allows {format_bytes(self.nbytes)}, of which "
                f"{format_bytes(max(0, self.nbytes - before))} is free; live tensors hold "
                f"{format_bytes(before)}."
            )
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def __enter__(self) -> Any:
        """Count every tensor that Python can reach now, made before the block or between two of
        them, unless only those count that the block makes.
        """
        if not self.on_top:
            self._count(living((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)))
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def _count(self, values: Any, ours: bool = True) -> None:
        for tensor in tensors_in(values):
            for _, storage in storages_of(tensor, "cpu"):
                if storage.device.type != "cpu":
                    continue  # a fake tensor, which says it were here
                key, nbytes = storage._cdata, storage.nbytes()
                known = self._living.get(key)
                if known is None:
                    self._living[key] = (
                        nbytes if ours else None,
                        weakref.ref(storage, functools.partial(self._died, key)),
                    )
                    self.live_bytes += nbytes if ours else 0
                elif known[0] is not None and known[0] != nbytes:  # resized in place
                    self._living[key] = (nbytes, known[1])
                    self.live_bytes += nbytes - known[0]

    def _died(self, key: int, _: Any) -> None:
        self.live_bytes -= self._living.pop(key)[0] or 0


@_validate.arguments(on_top=_validate.flag)
def limit(nbytes: int | str, device: Any = None, *, on_top: bool = False) -> Limit:
    """Return a context manager that limits how much memory the CPU's tensors take together.

    An allocation beyond the limit raises ``torch.OutOfMemoryError``, as on a full GPU; the program
    goes on, and the rest of the machine is not affected.

    Parameters
    ----------
    nbytes : int or str
        Bytes, or text such as "96 MiB". The storage of living tensors counts, including what was
        there before, after each operator of this thread; what an operator allocates internally and
        frees again does not.
    device : None, str or Device
        The CPU. None takes the best one available; a GPU is refused, because PyTorch limits it
        itself: ``torch.cuda.memory.set_per_process_memory_fraction``.
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
        If the size is not one.
    DeviceError
        If there is no such device, or it is not the CPU.

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
    size = parse_bytes(nbytes)
    if size < 1:
        raise InputError(
            f"limit: {size} bytes cannot hold a tensor; expected at least 1. Pass for example '96 "
            "MiB'."
        )
    where = devices.find(device)  # with a GPU, None is refused: it would limit none of its tensors
    if not where.is_cpu:
        raise DeviceError(
            f"limit: only the tensors of a CPU can be limited, not those of {where.name}; expected "
            "device='cpu'. PyTorch limits a GPU: torch.cuda.set_per_process_memory_fraction(0.1)."
        )
    return Limit(size, on_top)


def apply_share() -> str:
    """Cap this process's memory on each GPU as ``GPULAB_GPU_MEMORY`` says; called by ``%load_ext
    gpulab``.

    Returns
    -------
    str
        What was done, in a sentence; "" where the variable is not set. A share that cannot be read
        or enforced is reported in the sentence and raises no error, so that the kernel starts.

    Notes
    -----
    Source: PyTorch, ``torch.cuda.memory.set_per_process_memory_fraction``.
    """
    wanted = os.environ.get(VARIABLE, "").strip()
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
