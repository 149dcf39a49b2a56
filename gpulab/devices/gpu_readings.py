"""What NVIDIA's management library reports about the GPU that is measured: throttling, clocks,
other processes.

``pynvml`` is optional; without it, or without a driver, there are no readings. In a container the
process ids are the host's, so other processes are counted where our own id is not in the list: this
process always holds one context itself.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from typing import Any

from gpulab.devices._device import Device
from gpulab.devices._nvml import slowdown_names

# nvml.h, nvmlPerfPolicyType_t: each has a counter of nanoseconds.
_POLICIES = (0, 1, 4)  # power, thermal, board limit


@dataclass(frozen=True)
class GpuReadings:
    """The GPU's counters at one moment; None where the driver does not report it.

    Attributes
    ----------
    epoch_microseconds : int
        When, as the driver counts it.
    slowed_seconds : float or None
        How long the clock was reduced by power, heat or the board's limit, since the driver was
        loaded.
    reasons : tuple of str
        What reduces the clock at this moment.
    clock_hertz, top_clock_hertz : float or None
        The SM clock now, and the highest.
    neighbours : int or None
        Other processes that hold a context on the GPU.
    neighbour_busy_ratio : float or None
        The largest share of the SMs (0-1) that one of them used since the reading before.
    """

    epoch_microseconds: int
    slowed_seconds: float | None = None
    reasons: tuple[str, ...] = ()
    clock_hertz: float | None = None
    top_clock_hertz: float | None = None
    neighbours: int | None = None
    neighbour_busy_ratio: float | None = None


def _library() -> Any:
    """Return pynvml, started, or None where there is no package or no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml if _starts(pynvml) else None


@functools.cache
def _starts(nvml: Any) -> bool:
    try:
        nvml.nvmlInit()
    except Exception:  # NVMLError (a class of the package that may be missing): no driver to ask
        return False
    return True


@functools.cache
def _handle(nvml: Any, index: int) -> Any:
    """Return NVML's handle of a CUDA device: by UUID, because CUDA_VISIBLE_DEVICES renumbers; None
    where it cannot be told which it is.
    """
    try:
        import torch

        uuid = str(torch.cuda.get_device_properties(index).uuid)
        return nvml.nvmlDeviceGetHandleByUUID(
            uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        )
    except (ImportError, AttributeError, RuntimeError, nvml.NVMLError):
        # A MIG slice, say: its UUID is none of a GPU's, and its number says nothing of the GPU that
        # it is cut from.
        if (
            os.environ.get("CUDA_VISIBLE_DEVICES") is not None
            and _ask(nvml.nvmlDeviceGetCount) != 1
        ):
            return None
        return _ask(nvml.nvmlDeviceGetHandleByIndex, index)


def _ask(question: Any, *args: Any) -> Any:
    """Return the driver's answer, or None where this GPU, driver or container does not give one."""
    nvml = _library()
    try:
        return question(*args)
    except (nvml.NVMLError, AttributeError):
        return None


def read(device: Device, since: GpuReadings | None = None) -> GpuReadings | None:
    """Read the counters of a CUDA device; None without NVML."""
    nvml = _library()
    handle = _handle(nvml, device.index) if nvml is not None else None
    if handle is None:
        return None
    now = int(time.time() * 1e6)
    clock = _ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
    top = _ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    neighbours, busy = _neighbours(
        nvml, handle, since.epoch_microseconds if since is not None else now
    )
    return GpuReadings(
        epoch_microseconds=now,
        slowed_seconds=_slowed_seconds(nvml, handle),
        reasons=_reasons(nvml, handle),
        clock_hertz=clock * 1e6 if clock is not None else None,
        top_clock_hertz=top * 1e6 if top is not None else None,
        neighbours=neighbours,
        neighbour_busy_ratio=busy,
    )


def _reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    name = "nvmlDeviceGetCurrentClocksEventReasons"  # before driver 535: ...ThrottleReasons
    question = getattr(nvml, name, None) or getattr(
        nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
    )
    return slowdown_names(int((_ask(question, handle) if question is not None else None) or 0))


def _slowed_seconds(nvml: Any, handle: Any) -> float | None:
    """Return the sum of the violation counters; each counts nanoseconds since the driver was
    loaded.
    """
    answers = [_ask(nvml.nvmlDeviceGetViolationStatus, handle, policy) for policy in _POLICIES]
    known = [answer.violationTime * 1e-9 for answer in answers if answer is not None]
    return sum(known) if known else None


def _neighbours(nvml: Any, handle: Any, since_microseconds: int) -> tuple[int | None, float | None]:
    processes = _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if processes is None:
        return None, None
    pids = {int(process.pid) for process in processes}
    ours = os.getpid()
    others = pids - {ours}
    count = len(others) if ours in pids else max(0, len(pids) - 1)
    if count == 0:
        return 0, 0.0
    samples = _ask(nvml.nvmlDeviceGetProcessUtilization, handle, since_microseconds)
    if samples is None:
        return count, None
    shares: dict[int, float] = {}
    for sample in samples:
        shares[int(sample.pid)] = max(shares.get(int(sample.pid), 0.0), sample.smUtil / 100.0)
    if ours in pids:
        return count, max((share for pid, share in shares.items() if pid != ours), default=0.0)
    # Our own id is hidden by the container: the busiest process during our own measurement is taken
    # for ours.
    ranked = sorted(shares.values(), reverse=True)
    return count, ranked[1] if len(ranked) > 1 else 0.0
