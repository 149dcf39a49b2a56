"""Every raw fact about this machine, gathered in one place, so that the diagnosis can be tested
without hardware.

``gather`` asks the system, the driver and the libraries; ``Facts`` is plain data. What cannot be
found out is None; a library that fails when it is queried leaves its message in a field and never
raises.
"""

from __future__ import annotations

import contextlib
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

from gpulab.devices import _cgroup, _cpu, _device, _host, _nvml
from gpulab.errors import DeviceError
from gpulab.results import Result

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


@dataclass(frozen=True)
class Accelerator(Result):
    """One GPU; None stands for what neither PyTorch nor the driver reports.

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


@dataclass(frozen=True)
class Torch(Result):
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
class Facts(Result):
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
    processor: _cpu.Processor
    memory: Memory
    disk_path: str
    disk_free_bytes: int
    accelerators: tuple[Accelerator, ...] = ()
    pci_gpus: Mapping[str, int] | None = None
    driver: _nvml.Driver = field(default_factory=_nvml.Driver)
    torch: Torch = field(default_factory=Torch)
    cupy_packages: tuple[str, ...] = ()
    visible_devices: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)


def gather(root: pathlib.Path = pathlib.Path("/")) -> Facts:
    """Ask the system, the driver and the libraries (imports torch if it is installed; takes up to
    some seconds the first time).

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` are: "/", or a copy of another machine's files.
    """
    folder = pathlib.Path.cwd()
    driver = _nvml.probe()
    torch = probe_torch()
    try:
        accelerators = _accelerators(torch, driver)
    except (DeviceError, RuntimeError) as error:  # a GPU that vanished while it was asked
        torch = dataclasses.replace(
            torch, kind=None, error=f"{type(error).__name__}: {error}".splitlines()[0][:300]
        )
        accelerators = _accelerators(torch, driver)
    return Facts(
        system=platform.system(),
        architecture=platform.machine(),
        python=platform.python_version(),
        translated=_translated(),
        processor=_cpu.probe(root),
        memory=Memory(
            _host.installed_memory_bytes(),
            _host.available_memory_bytes(root),
            _cgroup.memory_limit_bytes(root),
        ),
        disk_path=str(folder),
        disk_free_bytes=shutil.disk_usage(folder).free,
        accelerators=accelerators,
        pci_gpus=pci_gpus(root / "sys/bus/pci/devices"),
        driver=driver,
        torch=torch,
        cupy_packages=_cupy_packages(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        libraries=_host.library_versions(),
    )


def pci_gpus(bus: pathlib.Path) -> dict[str, int] | None:
    """Count display controllers (PCI class 0x03) by vendor; None where there is no such folder to
    read.
    """
    if not bus.is_dir():
        return None
    counts: dict[str, int] = {}
    for device in bus.iterdir():
        try:
            kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
        except OSError:
            continue  # a device that was unplugged between listing and reading
        if kind.startswith("0x03") and vendor in _PCI_VENDORS:
            counts[_PCI_VENDORS[vendor]] = counts.get(_PCI_VENDORS[vendor], 0) + 1
    return counts


def _translated() -> bool:
    if platform.system() == "Darwin":
        return _cpu.sysctl("sysctl.proc_translated") == "1"
    # qemu-user shows the guest's architecture to Python but the host's processor in /proc/cpuinfo.
    vendor = "vendor_id" in _cpu.read_text(pathlib.Path("/proc/cpuinfo"))
    return (
        platform.system() == "Linux"
        and platform.machine() in ("aarch64", "riscv64", "ppc64le")
        and vendor
    )


def _cupy_packages() -> tuple[str, ...]:
    """Return what is installed as CuPy, by the folders of its metadata: to read the names in those
    of all packages takes 0.2 s.
    """
    names = set()
    for place in sys.path:
        with contextlib.suppress(OSError):  # no folder, or not ours to read
            for entry in pathlib.Path(place).iterdir():
                name, _, rest = entry.name.lower().partition("-")
                if rest.endswith((".dist-info", ".egg-info")):
                    names.add(name.replace("_", "-"))
    return tuple(
        sorted(
            name for name in names if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm"))
        )
    )


def probe_torch() -> Torch:
    """Return what PyTorch says about itself; an import or a driver that fails leaves its sentence
    in ``error``.
    """
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        return Torch()
    try:
        import torch

        kind = _device.accelerator_kind()
        architectures = tuple(torch.cuda.get_arch_list()) if kind in ("cuda", "rocm") else ()
        return Torch(
            str(torch.__version__), None, torch.version.cuda, torch.version.hip, kind, architectures
        )
    except Exception as error:
        # a broken install raises OSError, ImportError, RuntimeError ...: the learner reads which
        return Torch(
            importlib.metadata.version("torch"),
            f"{type(error).__name__}: {error}".splitlines()[0][:200],
        )


def _accelerators(torch: Torch, driver: _nvml.Driver) -> tuple[Accelerator, ...]:
    """Return the GPUs that PyTorch can use, with what the driver adds, and then those that only the
    driver sees.
    """
    usable = []
    matched = set()
    for index in range(_device.accelerator_count(torch.kind)) if torch.kind else ():
        seen, uuid = _seen_by_torch(torch.kind or "", index)
        gpu = next((g for g in driver.gpus if uuid and uuid in g.uuid), None)
        if gpu is None and len(driver.gpus) == 1 and torch.kind == "cuda":
            # a MIG slice has a UUID of its own; with one GPU it can only be a part of that
            gpu = driver.gpus[0]
        if gpu is not None:
            matched.add(gpu.uuid)
        usable.append(_merged(seen, gpu))
    others = [
        _merged(Accelerator(None, g.name, "cuda"), g) for g in driver.gpus if g.uuid not in matched
    ]
    return (*usable, *others)


def _seen_by_torch(kind: str, index: int) -> tuple[Accelerator, str]:
    device = _device.Device(kind, index)
    if kind == "mps":
        return Accelerator(
            str(device),
            device.name,
            kind,
            memory_bytes=device.memory_bytes,
            free_bytes=device.free_bytes,
        ), ""
    import torch

    properties = (torch.xpu if kind == "xpu" else torch.cuda).get_device_properties(index)

    def get(*names: str) -> Any:
        return next((value for name in names if (value := getattr(properties, name, None))), None)

    major = getattr(properties, "major", None)
    clock, memory_clock = get("clock_rate"), get("memory_clock_rate")
    return Accelerator(
        device=str(device),
        name=device.name,
        kind=kind,
        memory_bytes=get("total_memory"),
        free_bytes=device.free_bytes,
        compute_capability=get("gcnArchName")
        if kind == "rocm"
        else f"{major}.{properties.minor}"
        if kind == "cuda"
        else None,
        multiprocessors=get("multi_processor_count", "gpu_subslice_count"),
        max_clock_hz=clock * 1e3 if clock else None,  # CUDA gives kilohertz
        memory_clock_hz=memory_clock * 1e3 if memory_clock else None,
        memory_bus_bits=get("memory_bus_width"),
        l2_bytes=get("L2_cache_size"),
    ), str(get("uuid") or "").removeprefix("GPU-")


def _merged(seen: Accelerator, gpu: _nvml.NvmlGpu | None) -> Accelerator:
    """Fill what PyTorch does not say with what the driver says; where both speak, PyTorch's view
    counts (it sees the MIG slice).
    """
    if gpu is None:
        return seen
    both: dict[str, Any] = {name: getattr(seen, name) for name in Accelerator.__dataclass_fields__}
    more = {name: getattr(gpu, name, None) for name, value in both.items() if value in (None, ())}
    return Accelerator(**both | {name: value for name, value in more.items() if value is not None})


def accelerator(device: _device.Device) -> Accelerator:
    """Return what PyTorch and the driver say about one accelerator.

    Raises
    ------
    DeviceError
        If the accelerator vanished.
    """
    found = next(
        (gpu for gpu in _accelerators(probe_torch(), _nvml.probe()) if gpu.device == str(device)),
        None,
    )
    if found is None:
        raise DeviceError(
            f"device '{device}' no longer answers; expected it to stay usable. Save your work and "
            "restart the kernel."
        )
    return found
