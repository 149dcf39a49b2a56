"""What is wrong with this machine's set-up and how to fix it: a pure function of the gathered
facts.

Each check is one small function that returns problems; adding one is adding it to ``_CHECKS``. No
check looks at anything but the facts, so each can be tested for machines that are not available.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gpulab.devices._facts import Accelerator, Facts
from gpulab.errors import pip_command, set_up_command
from gpulab.results import Result
from gpulab.units import format_bytes, plural

Severity = Literal["error", "warning", "info"]
_ORDER = {"error": 0, "warning": 1, "info": 2}

_GIB = 2**30
# The course writes a few hundred MB (recordings, compiled kernels, test artefacts); installing it
# takes about 4 GiB.
_DISK_FULL_BYTES, _DISK_LOW_BYTES = 1 * _GIB, 5 * _GIB
# A notebook kernel with torch and the figures takes about 1 GiB; under that the system starts to
# kill kernels.
_MEMORY_FULL_BYTES, _MEMORY_LOW_BYTES = 1 * _GIB, 2 * _GIB
# Below a fifth free, the larger sizes of the catalogue fail on a GPU that should hold them.
_GPU_FREE_RATIO = 0.2
# PyTorch's wheel index for each CUDA that it is built for, newest first (pytorch.org, "Get
# started", versions 2.9 to 2.13). What is built for one CUDA 12 runs on the driver of any other
# (NVIDIA, CUDA Compatibility, minor version compatibility: 525 or newer).
_TORCH_INDEXES = (((13, 0), "cu130"), ((12, 8), "cu128"), ((12, 0), "cu126"))
# What is older than Turing has kernels in the builds for CUDA 12.6; newer builds leave it out,
# those for CUDA 13 all of it (RELEASE.md).
_OLDEST_OF_NEW_BUILDS = (7, 5)
_NEWER_DRIVER = "Update the NVIDIA driver"


@dataclass(frozen=True)
class Problem(Result):
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

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.symptom} {self.remedy}"


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
    return tuple(
        sorted(found.values(), key=lambda problem: (_ORDER[problem.severity], problem.code))
    )


def _version(text: str | None) -> tuple[int, ...] | None:
    words = (text or "").split(".")
    return (
        tuple(int(word) for word in words[:2])
        if words[0].isdigit() and all(w.isdigit() for w in words[:2])
        else None
    )


def _has_nvidia(facts: Facts) -> bool:
    return bool(facts.driver.gpus or (facts.pci_gpus or {}).get("nvidia"))


def _set_up(facts: Facts) -> str:
    return set_up_command(windows=facts.system == "Windows")


def _torch_command(facts: Facts) -> str:
    """The command that installs the PyTorch build for this driver and these GPUs."""
    driver, set_up = _version(facts.driver.cuda) or (12, 0), _set_up(facts)
    capabilities = [_version(gpu.compute_capability) for gpu in facts.driver.gpus]
    is_old = any(one is not None and one < _OLDEST_OF_NEW_BUILDS for one in capabilities)
    index = next(
        (
            name
            for needs, name in (_TORCH_INDEXES[-1:] if is_old else _TORCH_INDEXES)
            if driver >= needs
        ),
        None,
    )
    if index is None:
        return f"{_NEWER_DRIVER} (PyTorch needs one for CUDA 12 or newer), then run {set_up} again."
    command = pip_command(
        f"install --force-reinstall torch --index-url https://download.pytorch.org/whl/{index}"
    )
    return f"Run {set_up} again, or {command}."


def _torch_problems(facts: Facts) -> Iterable[Problem]:
    torch = facts.torch
    if torch.version is None:
        yield Problem(
            "error",
            "torch-missing",
            "PyTorch is not installed.",
            f"Run {_set_up(facts)}, or {pip_command('install torch')}.",
        )
    elif torch.error is not None and torch.kind is None:
        yield Problem(
            "error",
            "torch-broken",
            f"PyTorch {torch.version} fails: {torch.error}.",
            "Restart the kernel; then reinstall PyTorch.",
        )
    elif torch.cuda is None and torch.hip is None and torch.kind is None and _has_nvidia(facts):
        yield Problem(
            "error",
            "torch-cpu-build",
            f"PyTorch {torch.version} is a CPU build, but this machine has an NVIDIA GPU.",
            _torch_command(facts),
        )
    elif torch.cuda is not None and facts.driver.cuda is not None:
        yield from _torch_against_driver(facts, torch.cuda, facts.driver.cuda)


def _torch_against_driver(facts: Facts, torch: str, driver: str) -> Iterable[Problem]:
    built, runs = _version(torch), _version(driver)
    if built is None or runs is None or built <= runs:
        return
    symptom = (
        f"PyTorch was built for CUDA {torch}; the driver {facts.driver.version} runs CUDA {driver}."
    )
    if built[0] > runs[0] and facts.torch.kind != "cuda":
        command = _torch_command(facts)
        yield Problem(
            "error",
            "driver-too-old",
            symptom,
            command if command.startswith(_NEWER_DRIVER) else f"{_NEWER_DRIVER}, or: {command}",
        )
    else:
        # CUDA's minor-version compatibility: compiled kernels run, PTX made by the newer compiler
        # is refused.
        remedy = (
            "Most things work; kernels compiled at run time may fail to load. Update the "
            "NVIDIA driver when you can."
        )
        yield Problem("info", "driver-older", symptom, remedy)


def _gpu_problems(facts: Facts) -> Iterable[Problem]:
    driver, torch = facts.driver, facts.torch
    if driver.error is not None:
        yield Problem(
            "error",
            "driver-broken",
            f"The NVIDIA driver does not answer: {driver.error}.",
            "Restart the machine (needed after a driver update); in a container, restart it with "
            "the host's driver.",
        )
    elif driver.version is None and _has_nvidia(facts) and torch.kind is None:
        yield Problem(
            "error",
            "no-driver",
            f"{(facts.pci_gpus or {}).get('nvidia')} NVIDIA GPU(s) on the PCI bus, but no NVIDIA "
            "driver.",
            "Install the driver from your system's packages; in a container, start it with `--gpus "
            "all`.",
        )
    elif driver.gpus and torch.cuda is not None and torch.kind is None and torch.error is None:
        yield from _unseen_gpus(facts)


def _unseen_gpus(facts: Facts) -> Iterable[Problem]:
    count = len(facts.driver.gpus)
    if facts.visible_devices is not None:
        yield Problem(
            "warning",
            "gpu-hidden",
            f"The driver has {count} GPU(s); CUDA_VISIBLE_DEVICES={facts.visible_devices!r} hides "
            "them from PyTorch.",
            "Unset CUDA_VISIBLE_DEVICES before the kernel starts, or set it to the GPU that you "
            "may use.",
        )
    elif not any(problem.code == "driver-too-old" for problem in _torch_problems(facts)):
        yield Problem(
            "error",
            "gpu-unusable",
            f"The driver has {count} GPU(s), but PyTorch {facts.torch.version} cannot use any.",
            "Restart the kernel; if that does not help, run `nvidia-smi` and restart the machine.",
        )


def _architecture_problems(facts: Facts) -> Iterable[Problem]:
    for gpu in facts.accelerators:
        capability = _version(gpu.compute_capability)
        if (
            gpu.kind != "cuda"
            or gpu.device is None
            or capability is None
            or not facts.torch.architectures
        ):
            continue
        if not any(_runs_on(word, capability) for word in facts.torch.architectures):
            yield Problem(
                "error",
                "gpu-architecture",
                f"PyTorch {facts.torch.version} has no kernels for the {gpu.name} (compute "
                "capability "
                f"{gpu.compute_capability}); it has {', '.join(facts.torch.architectures)}.",
                "Install a PyTorch build that has them: an older one for an old GPU, the newest "
                "for a new one.",
            )


def _runs_on(architecture: str, capability: tuple[int, ...]) -> bool:
    """Whether code for "sm_86" (this major only) or "compute_80" (any newer GPU) runs on a GPU of
    this capability.
    """
    kind, _, digits = architecture.partition("_")
    digits = digits.rstrip("af")
    if not digits.isdigit() or len(digits) < 2:
        return False
    made_for = (int(digits[:-1]), int(digits[-1]))
    return (
        made_for <= capability
        if kind == "compute"
        else made_for[0] == capability[0] and made_for <= capability
    )


def _cupy_problems(facts: Facts) -> Iterable[Problem]:
    packages = facts.cupy_packages
    if len(packages) > 1:
        yield Problem(
            "error",
            "cupy-twice",
            f"{' and '.join(packages)} are installed together, and each overwrites the other's "
            "files.",
            f"Run {pip_command('uninstall -y ' + ' '.join(packages))}, then {_set_up(facts)}.",
        )
        return
    driver = _version(facts.driver.cuda)
    if not packages:
        if facts.torch.kind == "cuda":
            name = "cupy-cuda13x" if driver and driver[0] >= 13 else "cupy-cuda12x"
            command = f"Run {pip_command(f'install {name}')}."
            yield Problem(
                "warning",
                "cupy-missing",
                "CuPy is not installed; cells that use it are skipped.",
                command,
            )
        return
    digits = packages[0].removeprefix("cupy-cuda").removesuffix("x")
    if driver is None or not digits.isdigit() or int(digits) == driver[0]:
        return
    symptom = (
        f"{packages[0]} is built for CUDA {digits}; the driver {facts.driver.version} runs "
        f"CUDA {facts.driver.cuda}."
    )
    instead = pip_command(f"install cupy-cuda{min(driver[0], 13)}x")
    command = f"Run {pip_command(f'uninstall -y {packages[0]}')}, then {instead}."
    if int(digits) > driver[0]:
        yield Problem("error", "cupy-cuda-mismatch", symptom, command)
    elif (_version(facts.torch.cuda) or (0,))[0] > int(digits):
        # A newer driver runs older CUDA; but the libraries beside this torch are then of another
        # major than CuPy looks for.
        yield Problem("warning", "cupy-cuda-mismatch", symptom, command)


def _accelerator_problems(facts: Facts) -> Iterable[Problem]:
    for gpu in facts.accelerators:
        yield from _accelerator_state(gpu)
    if not any(gpu.device for gpu in facts.accelerators) and not _has_nvidia(facts):
        yield Problem(
            "info",
            "no-accelerator",
            "This machine has no accelerator that PyTorch can use.",
            "Nothing to do: the course runs without one; the CPU is measured live, GPU figures are "
            "recorded or modelled and are "
            "labeled so.",
        )
    if (facts.pci_gpus or {}).get("amd") and facts.torch.hip is None and not _has_nvidia(facts):
        yield Problem(
            "info",
            "amd-gpu-unused",
            "There is an AMD GPU, but PyTorch is not a ROCm build.",
            "If ROCm supports it, install PyTorch's ROCm build (pytorch.org, Get started); it has "
            "not been tested with this course.",
        )


def _accelerator_state(gpu: Accelerator) -> Iterable[Problem]:
    where = gpu.device or gpu.name
    if (
        gpu.free_bytes is not None
        and gpu.memory_bytes
        and gpu.free_bytes < _GPU_FREE_RATIO * gpu.memory_bytes
    ):
        lists = "; `nvidia-smi` lists them" if gpu.kind == "cuda" else ""
        yield Problem(
            "warning",
            "gpu-memory-taken",
            f"Only {format_bytes(gpu.free_bytes)} of {format_bytes(gpu.memory_bytes)} are free on "
            f"{where}.",
            "Shut down other kernels (Running tab), or find out which other processes use this "
            f"GPU{lists}.",
        )
    if set(gpu.slowdowns) - {"sync boost"}:
        yield Problem(
            "warning",
            "gpu-throttled",
            f"The clock of {where} is reduced now ({', '.join(gpu.slowdowns)}).",
            "Times are longer than this GPU's best; let it cool, or ask the machine's "
            "administrator about its power limit.",
        )
    if gpu.mig:
        slices = ", ".join(gpu.mig_slices) or "none visible"
        yield Problem(
            "info",
            "mig",
            f"{gpu.name} is divided into MIG slices ({slices}).",
            "The peaks of the whole GPU do not apply to a slice: gpulab scales arithmetic by the "
            "slice's multiprocessors; "
            "bandwidth stays that of the whole GPU.",
        )


def _host_problems(facts: Facts) -> Iterable[Problem]:
    disk = format_bytes(facts.disk_free_bytes)
    if facts.disk_free_bytes < _DISK_LOW_BYTES:
        level: Severity = "error" if facts.disk_free_bytes < _DISK_FULL_BYTES else "warning"
        yield Problem(
            level,
            "low-disk",
            f"{disk} are free at {facts.disk_path}.",
            f"Free at least {format_bytes(_DISK_LOW_BYTES)}.",
        )
    free = facts.memory.available_bytes
    if free < _MEMORY_LOW_BYTES:
        level = "error" if free < _MEMORY_FULL_BYTES else "warning"
        yield Problem(
            level,
            "low-memory",
            f"{format_bytes(free)} of main memory are free.",
            "Shut down other kernels and programs.",
        )
    limit = facts.memory.limit_bytes
    if limit is not None and limit < facts.memory.installed_bytes:
        yield Problem(
            "info",
            "memory-limit",
            f"A container grants {format_bytes(limit)} of the machine's "
            f"{format_bytes(facts.memory.installed_bytes)}.",
            "Nothing to do: gpulab uses the smaller value.",
        )
    quota = facts.processor.quota_cores
    if quota is not None and quota < facts.processor.usable_cores:
        threads = max(1, math.floor(quota))
        yield Problem(
            "warning",
            "cpu-limit",
            f"A container grants {facts.processor.quota_words}, and libraries start "
            f"{plural(facts.processor.usable_cores, 'thread')}: "
            "the threads are throttled.",
            f"Set OMP_NUM_THREADS={threads} before the kernel starts, or call "
            f"torch.set_num_threads({threads}).",
        )


def _virtual_problems(facts: Facts) -> Iterable[Problem]:
    if facts.translated:
        yield Problem(
            "warning",
            "translated",
            "This Python runs under emulation, on an architecture other than its own "
            f"({facts.architecture}).",
            "Install Python for this machine's own architecture; emulated times do not represent "
            "the processor.",
        )
    if facts.processor.hypervisor is not None:
        yield Problem(
            "info",
            "virtual-machine",
            "This is a virtual machine; clocks and caches are those that its host reports.",
            "Nothing to do: other machines on the host can disturb times; gpulab's notes report it "
            "when they do.",
        )


_CHECKS: tuple[Callable[[Facts], Iterable[Problem]], ...] = (
    _torch_problems,
    _gpu_problems,
    _architecture_problems,
    _cupy_problems,
    _accelerator_problems,
    _host_problems,
    _virtual_problems,
)
