"""The accelerator of a lesson: this machine's own where there is one, else a modelled one with the same three methods.

``to_device``, ``run`` and ``to_host`` keep a bill of copies and compute. On a real device every step is waited for, so that
the bill says where the time went; a program that does not wait is faster than the sum, which the lesson on overlap shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpulab import arrays, devices, transfer
from gpulab.evidence import Evidence
from gpulab.units import format_bytes

# Without an accelerator: the data-centre GPU that this project could record, behind the link of most of today's machines.
_MODELLED_LINK = "pcie4-x16"
_MODELLED_PROCESSOR = "nvidia-h200"


class LiveDevice:
    """A real accelerator that keeps the bill of what it is asked to do.

    Parameters
    ----------
    device : Device
        Not the CPU.
    clock : callable
        Returns seconds.
    """

    def __init__(self, device: devices.Device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Start a new bill; arrays on the device stay."""
        self._copies = self._calls = 0
        self._copied_bytes = self._copy_seconds = self._compute_seconds = 0.0

    def to_device(self, a: Any) -> Any:
        """Return a tensor on the device with the content of a NumPy array or a CPU tensor."""
        source = _tensor(a)
        with devices.guard(f"to_device: moving {format_bytes(a.nbytes)} to {self._device}"):
            there, seconds = self._timed(lambda: source.to(str(self._device)))
        self._copies, self._copied_bytes, self._copy_seconds = self._copies + 1, self._copied_bytes + a.nbytes, self._copy_seconds + seconds
        return there

    def to_host(self, a: Any) -> Any:
        """Return a NumPy array with the content of a tensor on the device."""
        source = _tensor(a)
        with devices.guard(f"to_host: copying {format_bytes(a.nbytes)} from {self._device}"):
            here, seconds = self._timed(lambda: source.detach().cpu())
        self._copies, self._copied_bytes, self._copy_seconds = self._copies + 1, self._copied_bytes + a.nbytes, self._copy_seconds + seconds
        return arrays.to_host(here)

    def run(self, fn: Callable[..., Any], *args: Any, flops: float = 0.0) -> Any:
        """Return ``fn(*args)``, done; ``flops`` is only for modelled devices."""
        result, seconds = self._timed(lambda: fn(*args))
        self._calls, self._compute_seconds = self._calls + 1, self._compute_seconds + seconds
        return result

    def report(self) -> transfer.LinkReport:
        """Return the bill so far."""
        evidence = Evidence.measured(self._device.name, self._copies + self._calls)
        return transfer.LinkReport(self._copies, self._calls, self._copied_bytes, self._copy_seconds, self._compute_seconds, evidence)

    def _timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        self._device.synchronize()
        start = self._clock()
        result = work()
        self._device.synchronize()
        return result, self._clock() - start


def _tensor(a: Any) -> Any:
    """Return the array as a tensor where it is: PyTorch's own copy is timed, not what gpulab asks the system before one (up to 1 ms)."""
    return arrays.to_device(a, arrays.device_of(a))


def accelerator() -> LiveDevice | transfer.ModelledDevice:
    """Return this machine's accelerator with a bill, or a modelled one where there is none.

    Examples
    --------
    >>> import numpy as np
    >>> gpu = accelerator()
    >>> there = gpu.run(lambda v: v + 1, gpu.to_device(np.zeros(3, dtype=np.float32)))
    >>> gpu.to_host(there).tolist(), gpu.report().copies
    ([1.0, 1.0, 1.0], 2)
    """
    device = devices.default()
    if device.is_cpu:
        # A lesson's arrays lie in ordinary memory, which is pageable.
        return transfer.ModelledDevice(transfer.link(_MODELLED_LINK, memory="pageable"), processor=_MODELLED_PROCESSOR)
    return LiveDevice(device)
