"""Every raw fact about this machine in one place, so that the diagnosis needs no hardware.

``gather`` asks the system, the driver and the libraries; ``Facts`` is plain data. What cannot be
found out is None; a library that fails when it is queried leaves its message in a field and never
raises.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab.devices import _device, cpu_facts, host_facts, nvml
from gpulab.devices.nvml import Accelerator, Driver
from gpulab.errors import DeviceError
from gpulab.results import Result
from gpulab.units import format_bytes

_PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}


@dataclass(frozen=True)
class Memory(Result):
    """Main memory.

    Attributes
    ----------
    installed_bytes : int
        Of the whole machine.
    available_bytes : int
        What this process can take now without swapping, a container's limit counted.
    limit_bytes : int or None
        What a container or batch system grants at most; None without a limit.
    """

    installed_bytes: int
    available_bytes: int
    limit_bytes: int | None = None

    def __str__(self) -> str:
        free, installed = format_bytes(self.available_bytes), format_bytes(self.installed_bytes)
        limit = f", limited to {format_bytes(self.limit_bytes)}" if self.limit_bytes else ""
        return f"{free} free of {installed}{limit}"


@dataclass(frozen=True)
class Torch:
    """What PyTorch reports about itself.

    Attributes
    ----------
    version : str or None
        None where it is not installed.
    error : str or None
        Its error message, if it failed.
    cuda, hip : str or None
        The CUDA or ROCm version it was built for; both None for a CPU build.
    kind : str or None
        The accelerator it can use here: "cuda", "rocm", "xpu", "mps" or None.
    architectures : tuple of str
        What its kernels were compiled for, such as "sm_90" and "compute_120".
    """

    version: str | None = None
    error: str | None = None
    cuda: str | None = None
    hip: str | None = None
    kind: str | None = None
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """Everything that the diagnosis looks at.

    Attributes
    ----------
    system, architecture, python : str
        "Linux", "Darwin" or "Windows"; the machine's architecture; Python's version.
    translated : bool
        Whether this Python runs under another architecture's emulation (Rosetta, qemu-user).
    processor : Processor
    memory : Memory
    disk_path : str
        The folder whose free space is reported; the working folder.
    disk_free_bytes : int
    accelerators : tuple of Accelerator
    pci_gpus : mapping of str to int or None
        Display controllers on the PCI bus by vendor ("nvidia", "amd", "intel"); None where the bus
        cannot be read.
    driver : Driver
        NVIDIA's.
    torch : Torch
    cupy_packages : tuple of str
        The installed distributions that provide ``cupy``.
    visible_devices : str or None
        CUDA_VISIBLE_DEVICES, where it is set.
    libraries : mapping of str to str
        Installed versions.
    """

    system: str
    architecture: str
    python: str
    translated: bool
    processor: cpu_facts.Processor
    memory: Memory
    disk_path: str
    disk_free_bytes: int
    accelerators: tuple[Accelerator, ...] = ()
    pci_gpus: Mapping[str, int] | None = None
    driver: Driver = field(default_factory=Driver)
    torch: Torch = field(default_factory=Torch)
    cupy_packages: tuple[str, ...] = ()
    visible_devices: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)


def gather(root: pathlib.Path = host_facts.ROOT) -> Facts:
    """Ask the system, the driver and the libraries (imports torch if it is installed; takes up to
    some seconds the first time).

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` are: "/", or a copy of another machine's files.
    """
    folder = pathlib.Path.cwd()
    driver, torch = nvml.probe(), _probe_torch()
    try:
        accelerators = _accelerators(torch, driver)
    except (DeviceError, RuntimeError) as error:  # a GPU that vanished while it was asked
        torch = dataclasses.replace(torch, kind=None, error=in_a_line(error))
        accelerators = _accelerators(torch, driver)
    host_facts.library_versions.cache_clear()  # something may have been installed since
    libraries = host_facts.library_versions()
    return Facts(
        system=platform.system(),
        architecture=platform.machine(),
        python=platform.python_version(),
        translated=_is_translated(),
        processor=cpu_facts.probe(root),
        memory=Memory(
            host_facts.installed_memory_bytes(),
            host_facts.available_memory_bytes(root),
            host_facts.memory_limit_bytes(root),
        ),
        disk_path=str(folder),
        disk_free_bytes=shutil.disk_usage(folder).free,
        accelerators=accelerators,
        pci_gpus=_pci_gpus(root / "sys/bus/pci/devices"),
        driver=driver,
        torch=torch,
        cupy_packages=tuple(sorted(name for name in libraries if name.startswith("cupy"))),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        libraries=libraries,
    )


def in_a_line(error: Exception) -> str:
    """Return what an error of a library says, for a report."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _pci_gpus(bus: pathlib.Path) -> dict[str, int] | None:
    """Count display controllers (PCI class 0x03) by vendor; None where there is no such folder to
    read.
    """
    if not bus.is_dir():
        return None
    counts: dict[str, int] = {}
    for device in bus.iterdir():
        vendor = _PCI_VENDORS.get(host_facts.read_text(device / "vendor"))
        if vendor and host_facts.read_text(device / "class").startswith("0x03"):
            counts[vendor] = counts.get(vendor, 0) + 1
    return counts


def _is_translated() -> bool:
    if platform.system() == "Darwin":
        return host_facts.sysctl("sysctl.proc_translated") == "1"
    # qemu-user shows the guest's architecture to Python but the host's processor in /proc/cpuinfo.
    return platform.machine() in (
        "aarch64",
        "riscv64",
        "ppc64le",
    ) and "vendor_id" in host_facts.read_text(host_facts.ROOT / "proc/cpuinfo")


def _probe_torch() -> Torch:
    """Return what PyTorch says about itself; an import or a driver that fails leaves its sentence
    in ``error``.
    """
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        return Torch()
    try:
        import torch

        kind = next((device.kind for device in _device.accelerators()), None)
        architectures = torch.cuda.get_arch_list() if kind in ("cuda", "rocm") else ()
        cuda, hip = torch.version.cuda, torch.version.hip
        return Torch(str(torch.__version__), None, cuda, hip, kind, tuple(architectures))
    except Exception as error:
        # a broken install raises OSError, ImportError, RuntimeError ...: the learner reads which
        return Torch(importlib.metadata.version("torch"), in_a_line(error))


def _accelerators(torch: Torch, driver: Driver) -> tuple[Accelerator, ...]:
    """Return the GPUs that PyTorch can use, with what the driver adds, and then those that only the
    driver sees.
    """
    usable, others = [], dict(driver.gpus)
    for device in _device.accelerators() if torch.kind else ():
        seen, uuid = _seen_by_torch(device)
        names = [one for one in driver.gpus if uuid and uuid in one]
        if not names and len(driver.gpus) == 1 and device.kind == "cuda":
            # a MIG slice has a UUID of its own; with one GPU it can only be a part of that
            names = list(driver.gpus)
        for name in names:
            others.pop(name, None)
            # where both speak, PyTorch's view counts: it sees the MIG slice
            missing = [one for one, value in vars(seen).items() if value in (None, ())]
            more = {one: getattr(driver.gpus[name], one) for one in missing}
            seen = dataclasses.replace(seen, **more)
        usable.append(seen)
    return (*usable, *others.values())


def _seen_by_torch(device: _device.Device) -> tuple[Accelerator, str]:
    """Return what PyTorch says about an accelerator, and its UUID ("" where it has none)."""
    name, kind = device.name, device.kind
    if kind == "mps":
        return Accelerator(
            str(device), name, kind, memory_bytes=device.memory_bytes, free_bytes=device.free_bytes
        ), ""
    import torch

    properties = getattr(torch, device.torch_type).get_device_properties(device.index)

    def get(*names: str) -> Any:
        return next((value for name in names if (value := getattr(properties, name, None))), None)

    capability = f"{get('major')}.{getattr(properties, 'minor', 0)}" if kind == "cuda" else None
    return Accelerator(
        device=str(device),
        name=name,
        kind=kind,
        memory_bytes=get("total_memory"),
        free_bytes=device.free_bytes,
        compute_capability=get("gcnArchName") if kind == "rocm" else capability,
        multiprocessors=get("multi_processor_count", "gpu_subslice_count"),
        max_clock_hz=(get("clock_rate") or 0) * 1e3 or None,  # CUDA gives kilohertz
        memory_clock_hz=(get("memory_clock_rate") or 0) * 1e3 or None,
        memory_bus_bits=get("memory_bus_width"),
        l2_bytes=get("L2_cache_size"),
    ), str(get("uuid") or "").removeprefix("GPU-")


def accelerator(device: _device.Device) -> Accelerator:
    """Return what PyTorch and the driver say about one accelerator.

    Raises
    ------
    DeviceError
        If the accelerator vanished.
    """
    for gpu in _accelerators(_probe_torch(), nvml.probe()):
        if gpu.device == str(device):
            return gpu
    raise DeviceError(
        f"device '{device}' no longer answers; expected it to stay usable. Save your work and "
        "restart the kernel."
    )
