"""``machine()``: this computer in one object, with what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab.devices import _device
from gpulab.devices._cpu import Processor
from gpulab.devices._diagnose import Problem, diagnose
from gpulab.devices._facts import Accelerator, Facts, Memory, gather
from gpulab.errors import DeviceError
from gpulab.evidence import Environment, Evidence
from gpulab.results import Result
from gpulab.units import format_bytes


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
        state = f"{wrong} problem{'s' if wrong != 1 else ''} to fix" if wrong else "nothing to fix"
        cores = self.processor.usable_cores
        host = (
            f"{self.processor.name}, {cores} core{'s' if cores != 1 else ''}, "
            f"{format_bytes(self.memory.available_bytes)} free"
        )
        return f"<Machine: {host}; {gpus}; {state}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per part: processor, caches, memory, disk, each accelerator, libraries,
        and the problems.
        """
        rows = [
            ("processor", _processor_text(self.processor)),
            ("caches", ", ".join(str(cache) for cache in self.processor.caches) or "not reported"),
            ("memory", _memory_text(self.memory)),
            ("disk", f"{format_bytes(self.disk_free_bytes)} free"),
        ]
        rows.extend(
            (gpu.device or "GPU, not usable here", accelerator_text(gpu))
            for gpu in self.accelerators
        )
        if not self.accelerators:
            rows.append(("accelerator", "none"))
        if self.driver:
            rows.append(
                (
                    "NVIDIA driver",
                    f"{self.driver}{f', runs CUDA up to {self.driver_cuda}' if self.driver_cuda else ''}",
                )
            )
        rows.append(
            (
                "libraries",
                ", ".join(f"{name} {version}" for name, version in self.libraries.items()),
            )
        )
        rows.extend(
            (f"{problem.severity}: {problem.code}", f"{problem.symptom} {problem.remedy}")
            for problem in self.problems
        )
        return ("this machine", ""), rows


def _processor_text(processor: Processor) -> str:
    physical = (
        f" of {processor.physical_cores} physical"
        if processor.physical_cores not in (None, processor.usable_cores)
        else ""
    )
    parts = [
        f"{processor.name}, {processor.usable_cores} usable "
        f"core{'s' if processor.usable_cores != 1 else ''}{physical}"
    ]
    if processor.quota_cores is not None:
        parts.append(f"{processor.quota_words} granted")
    if processor.clock_hz:
        parts.append(f"{processor.clock_hz / 1e9:.2f} GHz now")
    if processor.max_clock_hz:
        parts.append(f"up to {processor.max_clock_hz / 1e9:.2f} GHz")
    if processor.simd:
        parts.append(" ".join(processor.simd))
    return ", ".join(parts)


def _memory_text(memory: Memory) -> str:
    limit = (
        f", limited to {format_bytes(memory.limit_bytes)}" if memory.limit_bytes is not None else ""
    )
    return (
        f"{format_bytes(memory.available_bytes)} free of "
        f"{format_bytes(memory.installed_bytes)}{limit}"
    )


def accelerator_text(gpu: Accelerator) -> str:
    """Return one accelerator in a line; what is not known is left out."""
    parts = [gpu.name]
    if gpu.memory_bytes is not None:
        free = f"{format_bytes(gpu.free_bytes)} free of " if gpu.free_bytes is not None else ""
        parts.append(f"{free}{format_bytes(gpu.memory_bytes)}")
    if gpu.compute_capability:
        parts.append(
            f"compute capability {gpu.compute_capability}"
            if gpu.kind == "cuda"
            else gpu.compute_capability
        )
    if gpu.multiprocessors:
        parts.append(f"{gpu.multiprocessors} {'SMs' if gpu.kind == 'cuda' else 'compute units'}")
    if gpu.clock_hz or gpu.max_clock_hz:
        now = f"{gpu.clock_hz / 1e6:.0f} MHz now" if gpu.clock_hz else ""
        top = f"up to {gpu.max_clock_hz / 1e6:.0f} MHz" if gpu.max_clock_hz else ""
        parts.append(", ".join(part for part in (now, top) if part))
    if gpu.l2_bytes:
        parts.append(f"L2 {format_bytes(gpu.l2_bytes)}")
    if gpu.mig is not None:
        parts.append(
            "MIG "
            f"{'on: ' + (', '.join(gpu.mig_slices) or 'no slice visible') if gpu.mig else 'off'}"
        )
    if gpu.power_watts is not None:
        limit = f" of {gpu.power_limit_watts:.0f}" if gpu.power_limit_watts else ""
        parts.append(f"{gpu.power_watts:.0f}{limit} W")
    if gpu.temperature_celsius is not None:
        parts.append(f"{gpu.temperature_celsius:.0f} °C")
    if gpu.slowdowns:
        parts.append(f"clock reduced by {', '.join(gpu.slowdowns)}")
    return ", ".join(parts)


def machine(facts: Facts | None = None) -> Machine:
    """Return this machine: processors, memory, accelerators, library versions, what is wrong and
    how to fix it.

    Parameters
    ----------
    facts : Facts, optional
        Made-up facts, for tests and for showing another machine; None asks this one.

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
    usable = (
        next((gpu.device for gpu in known.accelerators if gpu.device), "cpu")
        if facts is None
        else "cpu"
    )
    try:
        environment = _device.environment(usable)
    except DeviceError:  # the GPU vanished since it was asked; the stamp is then the host's
        environment = _device.environment("cpu")
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
