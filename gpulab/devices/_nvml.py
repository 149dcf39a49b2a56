"""NVIDIA's management library: what the driver knows about each GPU, also those that CUDA does not
show.

``nvidia-ml-py`` is optional: without it ``nvidia-smi`` is called. CUDA's numbers and the driver's
differ as soon as CUDA_VISIBLE_DEVICES is set, so GPUs are matched by UUID, never by number.
"""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpulab.results import Result

# nvidia-smi takes seconds when it has to wake the driver; a hung one must not hang machine()
_SMI_SECONDS = 20

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, "nvmlClocksEventReasons"). Idle and the
# clocks that a user set are no trouble, so they are left out.
_SLOWDOWNS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


@dataclass(frozen=True)
class NvmlGpu(Result):
    """One GPU as the driver describes it; None stands for what it does not report.

    Attributes
    ----------
    uuid : str
        "GPU-..." in the driver's spelling.
    clock_hz, max_clock_hz, memory_clock_hz : float or None
        Multiprocessor clock now and at most; memory clock at most.
    mig : bool or None
        Whether MIG is switched on.
    mig_slices : tuple of str
        Names of the slices that are set up.
    slowdowns : tuple of str
        What reduces the clock at the moment.
    """

    uuid: str
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    clock_hz: float | None = None
    max_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None
    compute_capability: str | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    mig: bool | None = None
    mig_slices: tuple[str, ...] = ()
    slowdowns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Driver(Result):
    """The NVIDIA driver.

    Attributes
    ----------
    version : str or None
        Such as "580.95.05"; None where there is no driver that answers.
    cuda : str or None
        The newest CUDA that the driver runs, such as "13.0".
    error : str or None
        What the driver said instead of answering; None also where there simply is none.
    gpus : tuple of NvmlGpu
    """

    version: str | None = None
    cuda: str | None = None
    error: str | None = None
    gpus: tuple[NvmlGpu, ...] = ()


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """Give the initialized ``pynvml`` module for the length of the block, or None where it is not
    available.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no driver: each means that there is nothing to ask
        yield None
        return
    try:
        yield pynvml
    finally:
        # a GPU that fell off the bus fails here too, after the answer is known
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def probe() -> Driver:
    """Return the driver and its GPUs, from NVML or else from ``nvidia-smi``; never raises."""
    try:
        import pynvml
    except ImportError:
        return _probe_smi()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return Driver() if error.value in missing else Driver(error=str(error))
    try:
        return _probe_nvml(pynvml)
    except pynvml.NVMLError as error:  # a GPU that vanished between two questions
        return Driver(error=str(error))
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _probe_nvml(nvml: Any) -> Driver:
    version = int(nvml.nvmlSystemGetCudaDriverVersion())
    gpus = tuple(
        _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())
    )
    return Driver(
        _text(nvml.nvmlSystemGetDriverVersion()),
        f"{version // 1000}.{version % 1000 // 10}",
        None,
        gpus,
    )


def _gpu(nvml: Any, handle: Any) -> NvmlGpu:
    """Ask one GPU; a question that this GPU or driver does not know gives None, not an error."""

    def ask(question: Callable[..., Any], *args: Any) -> Any:
        try:
            return question(handle, *args)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_InvalidArgument,
        ):
            return None

    def scaled(question: Callable[..., Any], factor: float, *args: Any) -> float | None:
        value = ask(question, *args)
        return None if value is None else value * factor

    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability)
    mig = ask(nvml.nvmlDeviceGetMigMode)
    bits = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return NvmlGpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        clock_hz=scaled(nvml.nvmlDeviceGetClockInfo, 1e6, nvml.NVML_CLOCK_SM),
        max_clock_hz=scaled(nvml.nvmlDeviceGetMaxClockInfo, 1e6, nvml.NVML_CLOCK_SM),
        memory_clock_hz=scaled(nvml.nvmlDeviceGetMaxClockInfo, 1e6, nvml.NVML_CLOCK_MEM),
        memory_bus_bits=ask(nvml.nvmlDeviceGetMemoryBusWidth),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        power_watts=scaled(nvml.nvmlDeviceGetPowerUsage, 1e-3),
        power_limit_watts=scaled(nvml.nvmlDeviceGetEnforcedPowerLimit, 1e-3),
        temperature_celsius=scaled(nvml.nvmlDeviceGetTemperature, 1.0, nvml.NVML_TEMPERATURE_GPU),
        mig=None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        mig_slices=_slices(nvml, handle)
        if mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE
        else (),
        slowdowns=slowdown_names(bits),
    )


def slowdown_names(bits: int) -> tuple[str, ...]:
    """Return in words what a mask of NVML's clock event reasons says holds the clock down."""
    return tuple(name for bit, name in _SLOWDOWNS.items() if bits & bit)


def _slices(nvml: Any, handle: Any) -> tuple[str, ...]:
    names = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            names.append(
                _text(
                    nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
                )
            )
        except (
            nvml.NVMLError_NotFound,
            nvml.NVMLError_InvalidArgument,
            nvml.NVMLError_NoPermission,
        ):
            continue  # a slot that is not in use, or not ours to see
    return tuple(names)


_SMI_FIELDS = (
    "uuid",
    "name",
    "memory.total",
    "memory.free",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.max.memory",
    "compute_cap",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "mig.mode.current",
    "clocks_throttle_reasons.active",
    "driver_version",
)


def _probe_smi() -> Driver:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Driver()
    command = [program, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Driver(error=str(error))
    if done.returncode != 0:
        return Driver(
            error=(done.stdout + done.stderr).strip().partition("\n")[0]
            or f"nvidia-smi ended with code {done.returncode}"
        )
    return parse_smi(done.stdout)


def parse_smi(text: str) -> Driver:
    """Read the lines of ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits`` for this
    module's fields.

    The newest CUDA that the driver runs cannot be queried; torch's own check is used instead.
    """
    gpus, version = [], None
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(_SMI_FIELDS):
            continue
        fields = {
            name: None if value.startswith("[") or value == "N/A" else value
            for name, value in zip(_SMI_FIELDS, row, strict=True)
        }
        version = fields["driver_version"]
        mig = fields["mig.mode.current"]
        reasons = fields["clocks_throttle_reasons.active"]
        gpus.append(
            NvmlGpu(
                uuid=fields["uuid"] or "",
                name=fields["name"] or "unknown NVIDIA GPU",
                memory_bytes=_whole(_times(fields["memory.total"], 2**20)),
                free_bytes=_whole(_times(fields["memory.free"], 2**20)),
                clock_hz=_times(fields["clocks.sm"], 1e6),
                max_clock_hz=_times(fields["clocks.max.sm"], 1e6),
                memory_clock_hz=_times(fields["clocks.max.memory"], 1e6),
                compute_capability=fields["compute_cap"],
                power_watts=_times(fields["power.draw"], 1.0),
                power_limit_watts=_times(fields["power.limit"], 1.0),
                temperature_celsius=_times(fields["temperature.gpu"], 1.0),
                mig=None if mig is None else mig == "Enabled",
                slowdowns=slowdown_names(int(reasons, 16))
                if reasons and reasons.startswith("0x")
                else (),
            )
        )
    return Driver(version, None, None, tuple(gpus))


def _times(text: str | None, factor: float) -> float | None:
    try:
        return None if text is None else float(text) * factor
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
