"""NVIDIA's management library: the driver's facts about each GPU, and its counters.

CUDA's numbers and the driver's differ as soon as CUDA_VISIBLE_DEVICES is set, so GPUs are matched
by UUID, never by number. In a container the process ids are the host's, so this process may not
find its own id in the list. One entry is then taken to be its own, since it always holds a context.
Without ``nvidia-ml-py`` (a bare machine) nothing is known of the driver.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab.results import Result
from gpulab.units import format_bytes

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, "nvmlClocksEventReasons"). The bits for an
# idle GPU and for clocks that a user set are left out: they are not a problem.
_SLOWDOWNS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
# nvml.h, nvmlPerfPolicyType_t: each has a counter of nanoseconds.
_POLICIES = (0, 1, 3)  # power, thermal, board limit; 4 is low utilization, which is no slowdown
# The counter of energy follows readings of power that GPUs renew every 20 to 100 ms (Yang, Adamek
# and Armour, "Accurate and convenient energy measurements for GPUs", SC 2024): a reading is at
# most this old.
ENERGY_STEP_SECONDS = 0.1


@dataclass(frozen=True)
class Accelerator(Result):
    """One GPU; a field is None where neither PyTorch nor the driver reports it.

    Attributes
    ----------
    device : str or None
        PyTorch's name, such as "cuda:0"; None for a GPU that PyTorch cannot use here.
    name, kind : str
        The product; "cuda", "rocm", "xpu" or "mps".
    memory_bytes, free_bytes : int or None
        In total, and free now.
    compute_capability : str or None
        NVIDIA's "9.0"; for AMD the architecture, such as "gfx942".
    multiprocessors : int or None
        SMs (NVIDIA), compute units (AMD), Xe cores (Intel).
    clock_hz, max_clock_hz, memory_clock_hz : float or None
        Multiprocessor clock now and at most; memory clock at most.
    memory_bus_bits, l2_bytes : int or None
    mig : bool or None
        Whether the GPU is divided into MIG slices; None where it cannot be.
    mig_slices : tuple of str
    power_watts, power_limit_watts, temperature_celsius : float or None
    slowdowns : tuple of str
        What reduces the clock at the moment.
    """

    device: str | None
    name: str
    kind: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    clock_hz: float | None = None
    max_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None
    l2_bytes: int | None = None
    mig: bool | None = None
    mig_slices: tuple[str, ...] = ()
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    slowdowns: tuple[str, ...] = ()

    def __str__(self) -> str:
        is_nvidia, total, free = self.kind == "cuda", self.memory_bytes, self.free_bytes
        of = f"{format_bytes(free)} free of " if free is not None else ""
        limit = f" of {self.power_limit_watts:.0f}" if self.power_limit_watts else ""
        slices = ", ".join(self.mig_slices) or "no slice visible"
        clock, most = ((hertz or 0) / 1e6 for hertz in (self.clock_hz, self.max_clock_hz))
        watts, celsius = self.power_watts or 0, self.temperature_celsius or 0
        parts = (
            (True, self.name),
            (total is not None, f"{of}{format_bytes(total or 0)}"),
            (
                self.compute_capability,
                f"{'compute capability ' * is_nvidia}{self.compute_capability}",
            ),
            (
                self.multiprocessors,
                f"{self.multiprocessors} {'SMs' if is_nvidia else 'compute units'}",
            ),
            (clock, f"{clock:.0f} MHz now"),
            (most, f"up to {most:.0f} MHz"),
            (self.l2_bytes, f"L2 {format_bytes(self.l2_bytes or 0)}"),
            (self.mig is not None, f"MIG on: {slices}" if self.mig else "MIG off"),
            (self.power_watts is not None, f"{watts:.0f}{limit} W"),
            (self.temperature_celsius is not None, f"{celsius:.0f} °C"),
            (self.slowdowns, f"clock reduced by {', '.join(self.slowdowns)}"),
        )
        return ", ".join(text for is_known, text in parts if is_known)


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver.

    Attributes
    ----------
    version : str or None
        Such as "580.95.05"; None where there is no driver that answers.
    cuda : str or None
        The newest CUDA that the driver runs, such as "13.0".
    error : str or None
        The driver's error message where it does not answer; None also where there is no driver.
    gpus : mapping of str to Accelerator
        By UUID, "GPU-..." in the driver's spelling.
    """

    version: str | None = None
    cuda: str | None = None
    error: str | None = None
    gpus: Mapping[str, Accelerator] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuReadings:
    """A GPU's counters at one moment; a field is None where the driver does not report it.

    Attributes
    ----------
    epoch_microseconds : int
        The time of the reading, counted from 1970 as the driver does.
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
        The largest share of the SMs (0-1) that one of them used since the previous reading.
    energy_joules : float or None
        The energy that the whole GPU has used since the driver was loaded, idle time and other
        processes included. In steps: see ``ENERGY_STEP_SECONDS``.
    """

    epoch_microseconds: int
    slowed_seconds: float | None = None
    reasons: tuple[str, ...] = ()
    clock_hertz: float | None = None
    top_clock_hertz: float | None = None
    neighbours: int | None = None
    neighbour_busy_ratio: float | None = None
    energy_joules: float | None = None


@functools.cache
def _initialized(nvml: Any) -> Any:
    """Initialize the library once for the life of the process; raises NVMLError without a driver
    that answers.
    """
    nvml.nvmlInit()
    return nvml


def ask(question: str, *args: Any) -> Any:
    """Return the answer of ``nvml<question>``, or None where this GPU, driver or container does not
    give one.
    """
    try:
        import pynvml
    except ImportError:  # a bare machine
        return None
    try:
        return getattr(_initialized(pynvml), f"nvml{question}")(*args)
    except (pynvml.NVMLError, AttributeError):  # an older pynvml lacks some of the questions
        return None


def probe() -> Driver:
    """Return the driver and its GPUs; never raises."""
    try:
        import pynvml
    except ImportError:
        return Driver()
    try:
        nvml = _initialized(pynvml)
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return Driver(
            version=str(nvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus={str(nvml.nvmlDeviceGetUUID(handle)): _gpu(nvml, handle) for handle in handles},
        )
    except pynvml.NVMLError as error:  # also a GPU that vanished between two questions
        missing = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return Driver(error=None if error.value in missing else str(error))


def _scaled(factor: float, question: str, *args: Any) -> float | None:
    value = ask(question, *args)
    return None if value is None else value * factor


def _gpu(nvml: Any, handle: Any) -> Accelerator:
    memory = ask("DeviceGetMemoryInfo", handle)
    capability = ask("DeviceGetCudaComputeCapability", handle)
    mig = ask("DeviceGetMigMode", handle)
    is_divided = None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE
    slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_divided else 0
    # None: a slot that is not in use, or not visible to this process
    slices = [ask("DeviceGetMigDeviceHandleByIndex", handle, slot) for slot in range(slots)]
    return Accelerator(
        device=None,
        name=str(nvml.nvmlDeviceGetName(handle)),
        kind="cuda",
        memory_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        clock_hz=_scaled(1e6, "DeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        max_clock_hz=_scaled(1e6, "DeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        memory_clock_hz=_scaled(1e6, "DeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM),
        memory_bus_bits=ask("DeviceGetMemoryBusWidth", handle),
        mig=is_divided,
        mig_slices=tuple(ask("DeviceGetName", part) for part in slices if part is not None),
        power_watts=_scaled(1e-3, "DeviceGetPowerUsage", handle),
        power_limit_watts=_scaled(1e-3, "DeviceGetEnforcedPowerLimit", handle),
        temperature_celsius=_scaled(1.0, "DeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        slowdowns=_slowdowns(handle),
    )


def _slowdowns(handle: Any) -> tuple[str, ...]:
    """Return in words what reduces a GPU's clock."""
    # drivers before 535 know only the older name
    bits = ask("DeviceGetCurrentClocksEventReasons", handle) or ask(
        "DeviceGetCurrentClocksThrottleReasons", handle
    )
    return tuple(name for bit, name in _SLOWDOWNS.items() if (bits or 0) & bit)


def handle_of(index: int) -> Any:
    """Return NVML's handle of a CUDA device, by its UUID because CUDA_VISIBLE_DEVICES renumbers;
    None where it is not known which GPU that is.
    """
    import torch

    try:
        uuid = str(torch.cuda.get_device_properties(index).uuid)
    except RuntimeError:  # the device is lost
        return None
    is_prefixed = uuid.startswith(("GPU-", "MIG-"))
    handle = ask("DeviceGetHandleByUUID", uuid if is_prefixed else f"GPU-{uuid}")
    # No handle, as for a MIG slice, whose UUID is not that of a GPU. With CUDA_VISIBLE_DEVICES set,
    # its number does not identify the GPU either.
    renumbered = os.environ.get("CUDA_VISIBLE_DEVICES") is not None and ask("DeviceGetCount") != 1
    return ask("DeviceGetHandleByIndex", index) if handle is None and not renumbered else handle


def read_counters(index: int, since: GpuReadings | None = None) -> GpuReadings | None:
    """Read the counters of a CUDA device; None where the driver does not answer.

    Parameters
    ----------
    index : int
    since : GpuReadings, optional
        The previous reading: the use by other processes is that since then.
    """
    handle = handle_of(index)
    if handle is None:
        return None
    import pynvml

    now = int(time.time() * 1e6)
    # each counts nanoseconds since the driver was loaded
    slowed = [ask("DeviceGetViolationStatus", handle, policy) for policy in _POLICIES]
    known = [answer.violationTime * 1e-9 for answer in slowed if answer is not None]
    neighbors, busy = _neighbors(handle, since.epoch_microseconds if since is not None else now)
    return GpuReadings(
        epoch_microseconds=now,
        slowed_seconds=sum(known) if known else None,
        reasons=_slowdowns(handle),
        clock_hertz=_scaled(1e6, "DeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM),
        top_clock_hertz=_scaled(1e6, "DeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM),
        neighbours=neighbors,
        neighbour_busy_ratio=busy,
        energy_joules=_scaled(1e-3, "DeviceGetTotalEnergyConsumption", handle),
    )


def _neighbors(handle: Any, since_microseconds: int) -> tuple[int | None, float | None]:
    processes = ask("DeviceGetComputeRunningProcesses", handle)
    if processes is None:
        return None, None
    pids, ours = {int(process.pid) for process in processes}, os.getpid()
    count = len(pids - {ours}) if ours in pids else max(0, len(pids) - 1)
    samples = ask("DeviceGetProcessUtilization", handle, since_microseconds) if count else []
    if samples is None:
        return count, None
    shares = dict(sorted((int(sample.pid), sample.smUtil / 100.0) for sample in samples))
    # Where the container hides this process's id, the busiest process during the measurement is
    # taken to be this one.
    others = sorted(share for pid, share in shares.items() if pid != ours)
    return count, max(others if ours in pids else others[:-1], default=0.0)
