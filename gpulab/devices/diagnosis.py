"""``machine()``: this computer in one object, with what is wrong and how to fix it; and the check
before class, ``checkup()``: whether it can run the course.

``gather`` asks the system, the driver and the libraries; ``Facts`` is plain data. A fact that
cannot be found out is None; a library that fails when it is queried leaves its message in a field
and never raises. The diagnosis is a pure function of these facts, so it can be tested for machines
that are not available: each check is one small function that returns problems; to add one, add it
to ``_CHECKS``. The check before class also looks for each package that the notebooks need, and
multiplies two small matrices on the accelerator and with CuPy: a driver that answers queries may
still fail to compute.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from gpulab.devices import _device, host_facts, nvml
from gpulab.devices.host_facts import Processor
from gpulab.devices.nvml import Accelerator, Driver
from gpulab.errors import DeviceError, pip_command, set_up_command
from gpulab.evidence import Environment, Evidence
from gpulab.results import Result, Table
from gpulab.units import format_bytes, plural

Severity = Literal["error", "warning", "info"]
_PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_GIB = 2**30
# The course writes a few hundred MB (recordings, compiled kernels, test artefacts); installing it
# takes about 4 GiB.
_DISK_FULL_BYTES, _DISK_LOW_BYTES = 1 * _GIB, 5 * _GIB
# A notebook kernel with torch and the figures takes about 1 GiB; under that the system starts to
# kill kernels.
_MEMORY_FULL_BYTES, _MEMORY_LOW_BYTES = 1 * _GIB, 2 * _GIB
# With less than a fifth free, the larger sizes of the catalog fail on a GPU that should hold them.
_GPU_FREE_RATIO = 0.2
# PyTorch's wheel index for each CUDA that it is built for, newest first (pytorch.org, "Get
# started", versions 2.9 to 2.13). A build for one CUDA 12 runs on the driver of any other
# (NVIDIA, CUDA Compatibility, minor version compatibility: 525 or newer).
_TORCH_INDEXES = (((13, 0), "cu130"), ((12, 8), "cu128"), ((12, 0), "cu126"))
# GPUs older than Turing have kernels in the builds for CUDA 12.6. Newer builds leave some of these
# GPUs out, those for CUDA 13 all of them (RELEASE.md).
_OLDEST_OF_NEW_BUILDS = (7, 5)
_NEWER_DRIVER = "Update the NVIDIA driver"
State = Literal["ok", "fix", "warn", "note"]

# The state of a check by a problem's severity, the gravest first.
_STATES: Mapping[str, State] = {"error": "fix", "warning": "warn", "info": "note"}
# Packages that the notebooks import or run; each with the oldest release that the course was
# written for (pyproject.toml).
_NEEDED: Mapping[str, str] = {
    "numpy": "2.0",
    "torch": "2.9",
    "jupyterlab": "4.4",
    "ipykernel": "6.17.1",
    "ipywidgets": "7.7.1",
    "anywidget": "0.9.18",
    "plotly": "5.24",
    "psutil": "5.9.5",
    "nvidia-ml-py": "12.560",
    "pillow": "11",
    "torchao": "0.10",
    "ipyparallel": "8.8",
    "cloudpickle": "3",
}
_PRODUCT_SIZE = 64  # small enough for any device; its product of ones is exact in every dtype


class Memory(NamedTuple):
    """Main memory.

    Attributes
    ----------
    installed_bytes : int
        Of the whole machine.
    available_bytes : int
        What this process can take now without swapping, within a container's limit.
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
    system, architecture : str
        "Linux", "Darwin" or "Windows"; the machine's architecture.
    translated : bool
        Whether this Python runs under Rosetta, on an architecture other than its own.
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
    translated: bool
    processor: Processor
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
        translated=host_facts.sysctl("sysctl.proc_translated") == "1",
        processor=host_facts.probe(root),
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
    """Return a library's error in one line, for a report."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _pci_gpus(bus: pathlib.Path) -> dict[str, int] | None:
    """Count display controllers (PCI class 0x03) by vendor; None where there is no such folder to
    read.
    """
    if not bus.is_dir():
        return None
    displays = [
        one for one in bus.iterdir() if host_facts.read_text(one / "class").startswith("0x03")
    ]
    vendors = (_PCI_VENDORS.get(host_facts.read_text(one / "vendor")) for one in displays)
    return dict(Counter(vendor for vendor in vendors if vendor))


def _probe_torch() -> Torch:
    """Return what PyTorch reports about itself; an import or a driver that fails leaves its message
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
            # where both report a fact, PyTorch's counts: it sees the MIG slice
            missing = [one for one, value in vars(seen).items() if value in (None, ())]
            more = {one: getattr(driver.gpus[name], one) for one in missing}
            seen = dataclasses.replace(seen, **more)
        usable.append(seen)
    return (*usable, *others.values())


def _seen_by_torch(device: _device.Device) -> tuple[Accelerator, str]:
    """Return what PyTorch reports about an accelerator, and its UUID ("" where it has none)."""
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
    """Return what PyTorch and the driver report about one accelerator.

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


# -- this machine, and what is wrong with it ---------------------------------------------


class Problem(NamedTuple):
    """One thing that is wrong, or good to know.

    Attributes
    ----------
    severity : str
        "error" (a part of the course cannot run), "warning" (it runs, but figures may be
        unreliable), "info" (nothing to fix).
    code : str
        A short name that never changes, such as "torch-cpu-build".
    symptom, remedy : str
        What was found, with its values; what to do.
    """

    severity: Severity
    code: str
    symptom: str
    remedy: str


@dataclass(frozen=True)
class Machine(Result):
    """The computer that this process runs on.

    Attributes
    ----------
    environment : Environment
        The stamp with date, system and library versions that every result carries.
    processor : Processor
    memory : Memory
    disk_free_bytes : int
        In the working folder.
    accelerators : tuple of Accelerator
        Those that PyTorch can use first, then those that only the driver sees.
    driver, driver_cuda : str or None
        The NVIDIA driver's version, and the newest CUDA that it runs.
    libraries : mapping of str to str
    problems : tuple of Problem
        Errors first; "info" needs no fix.
    evidence : Evidence
        MEASURED: read from this machine just now.
    """

    environment: Environment
    processor: Processor
    memory: Memory
    disk_free_bytes: int
    accelerators: tuple[Accelerator, ...]
    driver: str | None
    driver_cuda: str | None
    libraries: Mapping[str, str]
    problems: tuple[Problem, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        gpus = ", ".join(gpu.name for gpu in self.accelerators) or "no accelerator"
        wrong = sum(problem.severity != "info" for problem in self.problems)
        state = f"{plural(wrong, 'problem')} to fix" if wrong else "nothing to fix"
        return (
            f"<Machine: {self.processor.name}, {plural(self.processor.usable_cores, 'core')}, "
            f"{format_bytes(self.memory.available_bytes)} free; {gpus}; {state}>"
        )

    def table(self) -> Table:
        """Return one row per part: processor, caches, memory, disk, each accelerator, libraries,
        and the problems.
        """
        gpus = [(gpu.device or "GPU, not usable here", str(gpu)) for gpu in self.accelerators]
        runs = f", runs CUDA up to {self.driver_cuda}" if self.driver_cuda else ""
        versions = [f"{name} {version}" for name, version in self.libraries.items()]
        rows = [
            ("processor", str(self.processor)),
            ("caches", ", ".join(map(str, self.processor.caches)) or "not reported"),
            ("memory", str(self.memory)),
            ("disk", f"{format_bytes(self.disk_free_bytes)} free"),
            *(gpus or [("accelerator", "none")]),
            *([("NVIDIA driver", f"{self.driver}{runs}")] if self.driver else []),
            ("libraries", ", ".join(versions)),
            *((f"{p.severity}: {p.code}", f"{p.symptom} {p.remedy}") for p in self.problems),
        ]
        return ("this machine", ""), rows


def machine(facts: Facts | None = None) -> Machine:
    """Return this machine: processors, memory, accelerators, library versions, what is wrong and
    how to fix it.

    Parameters
    ----------
    facts : Facts, optional
        Made-up facts, for tests and for showing another machine; None gathers this machine's.

    Returns
    -------
    Machine
        A table in the notebook; ``.problems`` is empty or lists what to fix, errors first.

    Notes
    -----
    It never fails for a broken driver or library: those become problems. The first call imports
    torch. Support for Apple and Intel GPUs and for ROCm follows their documentation and has not
    been tested on hardware.

    Examples
    --------
    >>> machine().processor.usable_cores >= 1
    True
    """
    known = gather() if facts is None else facts
    usable = [gpu.device for gpu in known.accelerators if gpu.device and facts is None]
    environment = _device.environment(next(iter(usable), "cpu"))
    return Machine(
        environment=environment,
        processor=known.processor,
        memory=known.memory,
        disk_free_bytes=known.disk_free_bytes,
        accelerators=known.accelerators,
        driver=known.driver.version,
        driver_cuda=known.driver.cuda,
        libraries=known.libraries,
        problems=diagnose(known),
        evidence=Evidence.measured(known.processor.name, date=environment.date),
    )


# -- what is wrong ----------------------------------------------------------------------


def diagnose(facts: Facts) -> tuple[Problem, ...]:
    """Return what is wrong, errors first.

    Parameters
    ----------
    facts : Facts
        From ``gather``, or made up.

    Returns
    -------
    tuple of Problem
        At most one for each code; empty on a machine without problems.
    """
    found = {problem.code: problem for check in reversed(_CHECKS) for problem in check(facts)}
    gravest = list(_STATES)
    return tuple(sorted(found.values(), key=lambda p: (gravest.index(p.severity), p.code)))


def _all_of(*rules: tuple[Any, Severity, str, str, str]) -> Sequence[Problem]:
    """Return the problem of each rule whose condition (its first item) holds."""
    return [Problem(*rule[1:]) for rule in rules if rule[0]]


def _first_of(*rules: tuple[Any, Severity, str, str, str]) -> Sequence[Problem]:
    """Return only the first problem whose condition holds: it explains the later ones."""
    return _all_of(*rules)[:1]


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of "2.13.0+cpu", (3, 0) of "3.0rc1", ()
    if there is no version.
    """
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(map(int, found.group().split("."))) if found else ()


def _has_nvidia(facts: Facts) -> bool:
    return bool(facts.driver.gpus or (facts.pci_gpus or {}).get("nvidia"))


def _set_up(facts: Facts) -> str:
    return set_up_command(windows=facts.system == "Windows")


def _torch_command(facts: Facts) -> str:
    """The command that installs the PyTorch build for this driver and these GPUs."""
    capabilities = [_numbers(gpu.compute_capability) for gpu in facts.driver.gpus.values()]
    is_old = any(one and one < _OLDEST_OF_NEW_BUILDS for one in capabilities)
    for needs, index in _TORCH_INDEXES[-1:] if is_old else _TORCH_INDEXES:
        if (_numbers(facts.driver.cuda) or (12, 0)) >= needs:
            page = f"https://download.pytorch.org/whl/{index}"
            command = pip_command(f"install --force-reinstall torch --index-url {page}")
            return f"Run {_set_up(facts)} again, or {command}."
    return (
        f"{_NEWER_DRIVER} (PyTorch needs one for CUDA 12 or newer), then run {_set_up(facts)} "
        "again."
    )


def _torch_problems(facts: Facts) -> Sequence[Problem]:
    torch, driver, command = facts.torch, facts.driver, _torch_command(facts)
    built, runs = _numbers(torch.cuda)[:2], _numbers(driver.cuda)[:2]
    is_newer = bool(built and runs) and built > runs
    update = (
        command
        if command.startswith(_NEWER_DRIVER)
        else f"{_NEWER_DRIVER}, or install a build of PyTorch for this driver. {command}"
    )
    newer = (
        f"PyTorch was built for CUDA {torch.cuda}; the driver {driver.version} runs CUDA "
        f"{driver.cuda}."
    )
    return _first_of(
        (
            torch.version is None,
            "error",
            "torch-missing",
            "PyTorch is not installed.",
            f"Run {_set_up(facts)}, or {pip_command('install torch')}.",
        ),
        (
            torch.error is not None and torch.kind is None,
            "error",
            "torch-broken",
            f"PyTorch {torch.version} fails: {torch.error}.",
            "Restart the kernel; if PyTorch still fails, reinstall it.",
        ),
        (
            torch.cuda is None and torch.hip is None and torch.kind is None and _has_nvidia(facts),
            "error",
            "torch-cpu-build",
            f"PyTorch {torch.version} is a CPU build, but this machine has an NVIDIA GPU.",
            command,
        ),
        (
            is_newer and built[0] > runs[0] and torch.kind != "cuda",
            "error",
            "driver-too-old",
            newer,
            update,
        ),
        # CUDA's minor-version compatibility: compiled kernels run, PTX made by the newer compiler
        # is refused.
        (
            is_newer,
            "info",
            "driver-older",
            newer,
            "Most things work; kernels compiled at run time may fail to load. Update the "
            "NVIDIA driver when you can.",
        ),
    )


def _driver_problems(facts: Facts) -> Sequence[Problem]:
    driver, torch, hidden = facts.driver, facts.torch, facts.visible_devices
    count = f"The driver reports {plural(len(driver.gpus), 'GPU')}"
    # CUDA reads the list up to the first entry that is neither a number nor a UUID of a GPU
    first = (hidden or "").split(",")[0].strip()
    numbers = map(str, range(len(driver.gpus)))
    is_named = first in numbers or any(first and name.startswith(first) for name in driver.gpus)
    is_unseen = (
        driver.gpus and torch.cuda is not None and torch.kind is None and torch.error is None
    )
    is_too_old = any(problem.code == "driver-too-old" for problem in _torch_problems(facts))
    return _first_of(
        (
            driver.error is not None,
            "error",
            "driver-broken",
            f"The NVIDIA driver does not answer: {driver.error}.",
            "Restart the machine (needed after a driver update); in a container, restart it "
            "with the host's driver.",
        ),
        (
            driver.version is None and _has_nvidia(facts) and torch.kind is None,
            "error",
            "no-driver",
            f"This machine has {plural((facts.pci_gpus or {}).get('nvidia', 0), 'NVIDIA GPU')}, "
            "but no NVIDIA driver.",
            "Install the driver from your system's packages; in a container, start it with "
            "`--gpus all`.",
        ),
        (
            is_unseen and hidden is not None and not is_named,
            "warning",
            "gpu-hidden",
            f"{count}; CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU from PyTorch.",
            "Unset CUDA_VISIBLE_DEVICES before the kernel starts, or set it to the GPU that "
            "you may use.",
        ),
        (
            is_unseen and not is_too_old,
            "error",
            "gpu-unusable",
            f"{count}, but PyTorch {torch.version} cannot use any.",
            "Restart the kernel; if that does not help, run `nvidia-smi` and restart the machine.",
        ),
    )


def _runs_on(architecture: str, capability: tuple[int, ...]) -> bool:
    """Whether code for "sm_86" (this major only) or "compute_80" (any newer GPU) runs on a GPU of
    this capability.
    """
    made = re.fullmatch(r"(\w+?)_(\d+)(\d)[af]?", architecture)
    if made is None:
        return False
    major, minor = int(made.group(2)), int(made.group(3))
    return (major, minor) <= capability and (made.group(1) == "compute" or major == capability[0])


def _cupy_problems(facts: Facts) -> Sequence[Problem]:
    packages = facts.cupy_packages
    runs, of_torch = ((*_numbers(one.cuda), 0)[0] for one in (facts.driver, facts.torch))
    cuda = re.match(r"cupy-cuda(\d+)x?$", " ".join(packages))
    built = int(cuda.group(1)) if cuda else 0
    # A newer driver runs code for an older CUDA. But if torch is for another major version of CUDA,
    # the libraries that it installs are not those that CuPy looks for.
    is_newer, is_apart = built > runs, built < runs and of_torch > built
    # the CUDA of PyTorch, whose libraries CuPy uses, as far as the driver runs it
    instead = pip_command(f"install cupy-cuda{min(of_torch or runs, runs or of_torch, 13) or 12}x")
    return _first_of(
        (
            len(packages) > 1,
            "error",
            "cupy-twice",
            f"{' and '.join(packages)} are installed together, and each overwrites the "
            "other's files.",
            f"Run {pip_command('uninstall -y ' + ' '.join(packages))}, then {_set_up(facts)}.",
        ),
        (
            not packages and facts.torch.kind == "cuda",
            "warning",
            "cupy-missing",
            "CuPy is not installed; cells that use it are skipped.",
            f"Run {instead}.",
        ),
        (
            cuda and runs and (is_newer or is_apart),
            "error" if is_newer else "warning",
            "cupy-cuda-mismatch",
            f"{' '.join(packages)} is built for CUDA {built}; the driver "
            f"{facts.driver.version} runs CUDA {facts.driver.cuda}"
            f"{f', and PyTorch is built for CUDA {facts.torch.cuda}' if is_apart else ''}.",
            f"Run {pip_command('uninstall -y ' + ' '.join(packages))}, then {instead}.",
        ),
    )


def _accelerator_problems(facts: Facts) -> Sequence[Problem]:
    is_usable = any(gpu.device for gpu in facts.accelerators)
    has_amd = (facts.pci_gpus or {}).get("amd") and facts.torch.hip is None
    return [
        *(problem for gpu in facts.accelerators for problem in _problems_of(gpu, facts.torch)),
        *_all_of(
            (
                not is_usable and not _has_nvidia(facts),
                "info",
                "no-accelerator",
                "This machine has no accelerator that PyTorch can use.",
                "Nothing to do: the course runs without one; the CPU is measured live, GPU "
                "figures are recorded or modelled and are labeled so.",
            ),
            (
                has_amd and not _has_nvidia(facts),
                "info",
                "amd-gpu-unused",
                "There is an AMD GPU, but PyTorch is not a ROCm build.",
                "If ROCm supports it, install PyTorch's ROCm build (pytorch.org, Get started); "
                "it has not been tested with this course.",
            ),
        ),
    ]


def _problems_of(gpu: Accelerator, torch: Torch) -> Sequence[Problem]:
    where, codes = gpu.device or gpu.name, torch.architectures
    capability, free, whole = _numbers(gpu.compute_capability)[:2], gpu.free_bytes, gpu.memory_bytes
    is_known = gpu.kind == "cuda" and gpu.device and capability and codes
    lists = "; `nvidia-smi` lists them" if gpu.kind == "cuda" else ""
    return _all_of(
        (
            is_known and not any(_runs_on(code, capability) for code in codes),
            "error",
            "gpu-architecture",
            f"PyTorch {torch.version} has no kernels for the {gpu.name} (compute capability "
            f"{gpu.compute_capability}); it has {', '.join(codes)}.",
            "Install a PyTorch build that has them: an older one for an old GPU, the newest "
            "for a new one.",
        ),
        (
            free is not None and whole and free < _GPU_FREE_RATIO * whole,
            "warning",
            "gpu-memory-taken",
            f"Only {format_bytes(free or 0)} of {format_bytes(whole or 0)} are free on {where}.",
            "Shut down other kernels (Running tab), or find out which other processes use this "
            f"GPU{lists}.",
        ),
        (
            set(gpu.slowdowns) - {"sync boost"},
            "warning",
            "gpu-throttled",
            f"The clock of {where} is reduced now ({', '.join(gpu.slowdowns)}).",
            "Times are longer than this GPU's best; let it cool, or ask the machine's "
            "administrator about its power limit.",
        ),
        (
            gpu.mig,
            "info",
            "mig",
            f"{gpu.name} is divided into MIG slices "
            f"({', '.join(gpu.mig_slices) or 'none visible'}).",
            "The peaks of the whole GPU do not apply to a slice: gpulab scales arithmetic by "
            "the slice's multiprocessors; bandwidth stays that of the whole GPU.",
        ),
    )


def _host_problems(facts: Facts) -> Sequence[Problem]:
    memory, processor = facts.memory, facts.processor
    disk, free, limit = facts.disk_free_bytes, memory.available_bytes, memory.limit_bytes
    quota = processor.quota_cores or math.inf
    threads = max(1, math.floor(min(quota, processor.usable_cores)))
    return _all_of(
        (
            disk < _DISK_LOW_BYTES,
            "error" if disk < _DISK_FULL_BYTES else "warning",
            "low-disk",
            f"{format_bytes(disk)} are free at {facts.disk_path}.",
            f"Delete files until at least {format_bytes(_DISK_LOW_BYTES)} are free.",
        ),
        (
            free < _MEMORY_LOW_BYTES,
            "error" if free < _MEMORY_FULL_BYTES else "warning",
            "low-memory",
            f"{format_bytes(free)} of main memory are free.",
            "Shut down other kernels and programs; in a container, ask for a higher limit.",
        ),
        (
            limit is not None and limit < memory.installed_bytes,
            "info",
            "memory-limit",
            f"A container grants {format_bytes(limit or 0)} of the machine's "
            f"{format_bytes(memory.installed_bytes)}.",
            "Nothing to do: gpulab uses the smaller value.",
        ),
        (
            quota < processor.usable_cores,
            "warning",
            "cpu-limit",
            f"A container grants {processor.quota_words}, and libraries start "
            f"{plural(processor.usable_cores, 'thread')}: the threads are throttled.",
            f"Set OMP_NUM_THREADS={threads} before the kernel starts, or call "
            f"torch.set_num_threads({threads}).",
        ),
        (
            facts.translated,
            "warning",
            "translated",
            "This Python runs under emulation, on an architecture other than its own "
            f"({facts.architecture}).",
            "Install Python for this machine's own architecture; emulated times do not "
            "represent the processor.",
        ),
        (
            processor.hypervisor is not None,
            "info",
            "virtual-machine",
            "This is a virtual machine; clocks and caches are those that its host reports.",
            "Nothing to do: other machines on the host can disturb times; gpulab's notes "
            "report it when they do.",
        ),
    )


_CHECKS: tuple[Callable[[Facts], Sequence[Problem]], ...] = (
    _torch_problems,
    _driver_problems,
    _cupy_problems,
    _accelerator_problems,
    _host_problems,
)


# -- the check before class ------------------------------------------------------------


class Check(NamedTuple):
    """One line of the report.

    Attributes
    ----------
    name : str
    state : str
        "ok"; "fix" (a part of the course cannot run until it is fixed); "warn" (it runs, but
        figures may be unreliable); "note" (good to know).
    detail : str
        What was found.
    remedy : str
        What to do; "" where nothing is to be done.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Checkup(Result):
    """The whole report.

    Attributes
    ----------
    checks : tuple of Check
    """

    checks: tuple[Check, ...]

    rows_from = "checks"
    columns: ClassVar = {
        "check": lambda check: check.name,
        "state": lambda check: check.state,
        "found": lambda check: check.detail,
        "what to do": lambda check: check.remedy,
    }

    @property
    def ok(self) -> bool:
        """Whether nothing has to be fixed."""
        return all(check.state != "fix" for check in self.checks)

    def __repr__(self) -> str:
        wrong = [check.name for check in self.checks if check.state == "fix"]
        return f"<Checkup: {'fix ' + ', '.join(wrong) if wrong else 'ready for class'}>"

    @property
    def text(self) -> str:
        """The report as it is printed in a terminal."""
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [
            f"{check.state:4}  {check.name:{width}}  {check.detail}"
            + (f"\n{'':4}  {'':{width}}  -> {check.remedy}" if check.remedy else "")
            for check in self.checks
        ]
        wrong = sum(check.state == "fix" for check in self.checks)
        last = f"{plural(wrong, 'thing')} to fix." if wrong else "Ready for class."
        return "\n".join([*lines, "", last])


def checkup(facts: Facts | None = None) -> Checkup:
    """Return whether this machine can run the course, and what to fix first.

    Parameters
    ----------
    facts : Facts, optional
        Made-up facts, for tests; None gathers this machine's.

    Returns
    -------
    Checkup
        ``.ok``, ``.text`` and the single checks.
    """
    known = gather() if facts is None else facts
    checks = [
        Check("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        *(_package(name, oldest) for name, oldest in _NEEDED.items()),
        _write_access(pathlib.Path.cwd()),
        _accelerator(known),
        *_cupy(known),
        Check("disk", "ok", f"{format_bytes(known.disk_free_bytes)} free"),
        Check("memory", "ok", str(known.memory._replace(limit_bytes=None))),
    ]
    # a problem with disk or memory replaces the line that reports it as ok
    problems = [p for p in diagnose(known) if p.code not in ("no-accelerator", "torch-missing")]
    replaced = {p.code.removeprefix("low-") for p in problems if p.code.startswith("low-")}
    return Checkup(
        (
            *(check for check in checks if check.name not in replaced),
            *(Check(p.code, _STATES[p.severity], p.symptom, p.remedy) for p in problems),
        )
    )


def _package(name: str, oldest: str) -> Check:
    try:
        version = importlib.metadata.version(name) or "only partly installed"
    except importlib.metadata.PackageNotFoundError:
        if name == "jupyterlab":
            only = "not installed; only `gpulab lab` needs it, a hosted notebook does not"
            return Check(name, "note", only)
        version = "not installed"
    if _numbers(version) >= _numbers(oldest):
        return Check(name, "ok", version)
    over = "" if _numbers(version) else "--ignore-installed "  # the installed part has no version
    again = pip_command(f'install {over}"{name}>={oldest}"')
    found = f"{version}; the course needs {oldest} or newer."
    return Check(name, "fix", found, f"Run {set_up_command()}, or {again}.")


def _write_access(folder: pathlib.Path) -> Check:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".gpulab-"):
            return Check("write access", "ok", str(folder))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        remedy = "Start in a folder that you can write to, on a disk that is not full."
        return Check("write access", "fix", f"cannot write to {folder}: {reason}.", remedy)


def _accelerator(facts: Facts) -> Check:
    gpu = next((gpu for gpu in facts.accelerators if gpu.device), None)
    if gpu is not None:
        works = Check("accelerator", "ok", str(gpu))
        found = f"{gpu.name} is present but cannot compute"
        remedy = "Restart the kernel; if that does not help, restart the machine."
        return _computing(works, found, remedy, "torch", device=str(gpu.device))
    return Check(
        "accelerator",
        "note",
        "none; the CPU is measured live, GPU figures are recorded or modelled and are labeled so",
    )


def _cupy(facts: Facts) -> list[Check]:
    packages = facts.cupy_packages
    if not packages or facts.torch.kind != "cuda":
        return []
    versions = [f"{name} {facts.libraries.get(name, '')}".strip() for name in packages]
    found = f"{' and '.join(packages)} cannot compute"
    remedy = f"See the lines about CuPy below, or run {set_up_command()}."
    return [_computing(Check("cupy", "ok", ", ".join(versions)), found, remedy, "cupy")]


def _computing(works: Check, found: str, remedy: str, library: str, **place: Any) -> Check:
    """Multiply matrices of ones on a device; return ``works`` if the product is right, else a check
    that reports ``found`` and the failure in one line.
    """
    expected = float(_PRODUCT_SIZE**3)
    try:
        module = importlib.import_module(library)
        ones = module.ones((_PRODUCT_SIZE, _PRODUCT_SIZE), dtype=module.float32, **place)
        total = (ones @ ones).sum()
        answer = float(total.get() if library == "cupy" else total)  # waits for the device
        failure = f"a product of ones sums to {answer:g} and not to {expected:g}."
    except Exception as error:
        # a broken driver or library may raise anything, and the report has to show it
        answer, failure = math.nan, in_a_line(error)
    return works if answer == expected else Check(works.name, "fix", f"{found}: {failure}", remedy)
