"""Facts about the host that need no array library: processor, cores, memory, driver, installed
versions.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import pathlib
import platform
import sys

from gpulab.devices import _cgroup

# The libraries whose versions change a measurement or a result.
_WATCHED = (
    "numpy",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cupy",
    "numba-cuda",
    "triton",
    "jax",
    "tensorflow",
)
_WINDOWS_PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


@functools.cache
def processor_name() -> str:
    """Return the CPU's model name, such as "Apple M2"; Python itself knows only its family on a Mac
    and on Windows.
    """
    found = " ".join(_stated_name().split())
    return found or platform.processor() or platform.machine() or "unknown processor"


def _stated_name() -> str:
    """The name by the system's own words; "" where it has none."""
    if platform.system() == "Darwin":
        from gpulab.devices import _cpu  # which itself needs this module

        return _cpu.sysctl("machdep.cpu.brand_string")
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _WINDOWS_PROCESSOR) as key:
                return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
        except OSError:
            return ""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    return next(
        (
            line.partition(":")[2]
            for line in lines
            if line.startswith(("model name", "Model", "Hardware"))
        ),
        "",
    )


def usable_core_numbers() -> tuple[int, ...]:
    """Return the numbers of the logical CPUs that this process may run on."""
    return (
        tuple(sorted(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else tuple(range(os.cpu_count() or 1))
    )


def usable_cores() -> int:
    """Return how many logical CPUs this process may run on."""
    return len(usable_core_numbers())


def memory_bytes() -> int:
    """Return the main memory that this process may use, in bytes: the machine's, or less inside a
    container.
    """
    limit = _cgroup.memory_limit_bytes()
    return installed_memory_bytes() if limit is None else min(limit, installed_memory_bytes())


def installed_memory_bytes() -> int:
    """Return the main memory of the machine, in bytes, whatever part of it a container grants."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        import psutil

        return int(psutil.virtual_memory().total)


def available_memory_bytes(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Return the main memory that this process can take without swapping, in bytes; a container's
    limit counts.
    """
    free = _cgroup.memory_free_bytes(root)
    return (
        _available_memory_bytes(root) if free is None else min(free, _available_memory_bytes(root))
    )


def _available_memory_bytes(root: pathlib.Path) -> int:
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    import psutil

    return int(psutil.virtual_memory().available)


def resident_bytes() -> int:
    """Return the physical memory of this process, in bytes."""
    statm = pathlib.Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.Process().memory_info().rss)


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that matter for a measurement."""
    found: dict[str, str] = {}
    for name in _WATCHED:
        try:
            version: str | None = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version:  # None of one that is installed in part
            found[name] = version
    return found


def nvidia_driver_version() -> str | None:
    """Return the NVIDIA driver's version, or None where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library or no driver: all mean "no NVIDIA driver to ask"
        return None
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)
