"""The host: processor, cores, memory and versions, with the limits of a container or batch job.

A limit of any ancestor of this process's control group binds, so every level up to the mount's root
is read and the smallest wins. Where a container sees its own group as the root, the path of
``/proc/self/cgroup`` does not exist below the mount; the root is then read in its place.

On Linux all comes from the kernel's own files, so that a bare GPU machine needs no psutil; on macOS
and Windows psutil gives the memory.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path("/")
# The libraries whose versions change a measurement or a result.
_WATCHED = (
    "numpy",
    "torch",
    "cupy-cuda11x",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cupy-rocm-5-0",
    "cupy-rocm-7-0",
    "cupy",
    "numba-cuda",
    "triton",
    "jax",
    "tensorflow",
)
_WINDOWS_PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
_SYSCTL_SECONDS = 5  # sysctl answers in milliseconds; a hung one must not hang machine()
# Version 1 of control groups writes "no limit" as the largest page-aligned 63-bit number; anything
# of that order means none.
_NO_LIMIT = 2**60
# The files of a group's memory limit and use, by version.
_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}


def read_text(path: pathlib.Path) -> str:
    """Return a small system file's text, or "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def sysctl(name: str) -> str:
    """Return one of macOS's system values as text, or "" where it does not exist."""
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SYSCTL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


@functools.cache
def processor_name() -> str:
    """Return the CPU's model name, such as "Apple M2"; Python itself knows only its family on a Mac
    and on Windows.
    """
    stated = ""
    if platform.system() == "Darwin":
        stated = sysctl("machdep.cpu.brand_string")
    elif sys.platform == "win32":
        import winreg

        with (
            contextlib.suppress(OSError),
            winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _WINDOWS_PROCESSOR) as key,
        ):
            stated = str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
    else:
        for line in read_text(ROOT / "proc/cpuinfo").splitlines():
            if line.startswith(("model name", "Model", "Hardware")):
                stated = line.partition(":")[2]
                break
    found = " ".join(stated.split())
    return found or platform.processor() or platform.machine() or "unknown processor"


def usable_core_numbers() -> list[int]:
    """Return the numbers of the logical CPUs that this process may run on."""
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


def usable_cores() -> int:
    """Return how many logical CPUs this process may run on."""
    return len(usable_core_numbers())


def memory_bytes() -> int:
    """Return the main memory that this process may use, in bytes: the machine's, or less inside a
    container.
    """
    return min(memory_limit_bytes() or _NO_LIMIT, installed_memory_bytes())


def _system_memory(root: pathlib.Path, linux_name: str, name: str) -> int:
    found = re.search(rf"^{linux_name}:\s*(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    if found:
        return int(found.group(1)) * 1024
    import psutil

    return int(getattr(psutil.virtual_memory(), name))


def installed_memory_bytes() -> int:
    """Return the main memory of the machine, in bytes, whatever part of it a container grants."""
    return _system_memory(ROOT, "MemTotal", "total")


def available_memory_bytes(root: pathlib.Path = ROOT) -> int:
    """Return the main memory that this process can take without swapping, in bytes; a container's
    limit counts, and file cache that comes back on demand is free.
    """
    within_limits = [free for _, free in _memory_limits(root)]
    return min([_system_memory(root, "MemAvailable", "available"), *within_limits])


def resident_bytes() -> int:
    """Return the physical memory of this process, in bytes."""
    statm = read_text(ROOT / "proc/self/statm")
    if statm:
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.Process().memory_info().rss)


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that matter for a measurement."""
    found: dict[str, str] = {}
    for name in _WATCHED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version: str | None = importlib.metadata.version(name)
            if version:  # None of one that is installed in part
                found[name] = version
    return found


def cgroup_directories(root: pathlib.Path, controller: str) -> list[tuple[int, pathlib.Path]]:
    """Return (version, directory) of each control group that may limit this process, from its own
    up to the mount.
    """
    found, mount = [], root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # the unified hierarchy of version 2 has no name
        version, top = (1, mount / controller) if controllers else (2, mount)
        own = top / path.lstrip("/")
        if ".." in own.parts or not own.is_dir():
            own = top
        found += [(version, level) for level in (own, *own.parents) if level.is_relative_to(top)]
    return found


def _limit(text: str) -> int | None:
    """Return a limit, or None for "max", "-1", nothing, or a number that stands for no limit."""
    value = int(text) if text.isdigit() else 0
    return value if 0 < value < _NO_LIMIT else None


def _memory_limits(root: pathlib.Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes that it leaves) of each level that limits memory."""
    for version, directory in cgroup_directories(root, "memory"):
        limit, used = (_limit(read_text(directory / name)) for name in _MEMORY_FILES[version])
        if limit is not None:
            lines = read_text(directory / "memory.stat").splitlines()
            stat = dict(line.split(maxsplit=1) for line in lines if " " in line)
            cache = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
            yield limit, max(0, limit - max(0, (used or 0) - cache))


def memory_limit_bytes(root: pathlib.Path = ROOT) -> int | None:
    """Return the smallest memory limit that binds this process, in bytes; None without one.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` are; tests pass a made-up tree.
    """
    return min((limit for limit, _ in _memory_limits(root)), default=None)


def cpu_quota_cores(root: pathlib.Path = ROOT) -> float | None:
    """Return how many cores' worth of time this process may use, such as 1.5; None without a
    limit.
    """
    quotas = []
    for version, directory in cgroup_directories(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        words = " ".join(read_text(directory / name) for name in names).split()
        quota, period = map(_limit, words) if len(words) == 2 else (None, None)
        if quota is not None and period is not None:
            quotas.append(quota / period)
    return min(quotas, default=None)
