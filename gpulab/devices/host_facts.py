"""The host: processor with cores, caches and SIMD instructions, memory and versions, with the
limits of a container or batch job.

A limit of any ancestor of this process's control group binds, so every level up to the mount's root
is read and the smallest counts. Where a container sees its own group as the root, the path of
``/proc/self/cgroup`` does not exist below the mount; the root is then read in its place.

On Linux everything is read from the kernel's own files, so that a bare GPU machine needs no psutil;
on macOS and Windows psutil gives the memory.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpulab.results import Result
from gpulab.units import format_bytes, plural

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

# The instruction sets that decide how wide arithmetic is, by the names that Linux gives them.
_SIMD = (
    "sse2",
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_fp16",
    "amx_int8",
    "asimd",
    "asimdhp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
    "sme",
)
_POWERS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


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
        named = re.search(
            r"^(?:model name|Model|Hardware).*?:(.*)$",
            read_text(ROOT / "proc/cpuinfo"),
            re.MULTILINE,
        )
        stated = named.group(1) if named else ""
    return (
        " ".join(stated.split())
        or platform.processor()
        or platform.machine()
        or "unknown processor"
    )


def usable_core_numbers() -> list[int]:
    """Return the numbers of the logical CPUs that this process may run on."""
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


@functools.cache
def memory_bytes() -> int:
    """Return the main memory that this process may use, in bytes: the machine's, or less inside a
    container. Read once: neither changes while a process runs.
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
    """Return the main memory that this process can take without swapping, in bytes. A container's
    limit counts; file cache that the kernel frees on demand counts as free.
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
    found: dict[str, str | None] = {}
    for name in _WATCHED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)  # None if partly installed
    return {name: version for name, version in found.items() if version}


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


class Cache(NamedTuple):
    """One level of the processor's caches.

    Attributes
    ----------
    level : str
        "L1d", "L2" or "L3".
    size_bytes : int
        Of one instance; where a processor has two kinds of cores, of the first core's.
    instances : int
        How many of this size serve the cores that this process may use.
    others : tuple of (int, int)
        The other sizes of this level, and how many instances of each: those of a processor's second
        kind of cores.
    """

    level: str
    size_bytes: int
    instances: int
    others: tuple[tuple[int, int], ...] = ()

    @property
    def total_bytes(self) -> int:
        """The capacity of all instances together."""
        return sum(
            size * count for size, count in ((self.size_bytes, self.instances), *self.others)
        )

    @property
    def count_words(self) -> str:
        """The text that follows the size in a label: " x 8 and 32.0 KiB x 4"; "" where there is one
        instance.
        """
        count = f" x {self.instances}" if self.instances != 1 else ""
        return count + "".join(
            f" and {format_bytes(size)}{f' x {n}' if n != 1 else ''}" for size, n in self.others
        )

    def __str__(self) -> str:
        return f"{self.level} {format_bytes(self.size_bytes)}{self.count_words}"


@dataclass(frozen=True)
class Processor(Result):
    """The host's processor.

    Attributes
    ----------
    name, architecture : str
        The model's name; "x86_64", "aarch64", "arm64".
    usable_cores : int
        Logical CPUs that this process may run on.
    physical_cores : int or None
        Cores of the whole machine, each counted once however many threads it runs.
    quota_cores : float or None
        Cores' worth of time that a container grants; None without a limit.
    caches : tuple of Cache
        As the system reports them; empty where it does not.
    simd : tuple of str
        Instruction sets that widen arithmetic, by Linux's names.
    clock_hz, max_clock_hz : float or None
        Now, and the highest that the system reports; None where it reports none (often in virtual
        machines).
    hypervisor : str or None
        "yes" or a product's name inside a virtual machine; None on bare metal.
    """

    name: str
    architecture: str
    usable_cores: int
    physical_cores: int | None
    quota_cores: float | None
    caches: tuple[Cache, ...]
    simd: tuple[str, ...]
    clock_hz: float | None
    max_clock_hz: float | None
    hypervisor: str | None

    @property
    def quota_words(self) -> str:
        """What a container grants, in words; "" without a limit."""
        if self.quota_cores is None:
            return ""
        return "1 core's time" if self.quota_cores == 1 else f"{self.quota_cores:g} cores' time"

    def __str__(self) -> str:
        is_part = self.physical_cores not in (None, self.usable_cores)
        of = f", {plural(self.physical_cores or 0, 'physical core')}" if is_part else ""
        now, most = ((hertz or 0) / 1e9 for hertz in (self.clock_hz, self.max_clock_hz))
        parts = (
            (
                True,
                f"{self.name}, "
                f"{plural(self.usable_cores, 'usable ' + 'logical ' * is_part + 'core')}{of}",
            ),
            (self.quota_words, f"{self.quota_words} granted"),
            (now, f"{now:.2f} GHz now"),
            (most, f"up to {most:.2f} GHz"),
            (self.simd, " ".join(self.simd)),
        )
        return ", ".join(text for is_known, text in parts if is_known)


def probe(root: pathlib.Path = ROOT) -> Processor:
    """Return what the system reports about its processor.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` are; tests pass a made-up tree.
    """
    if platform.system() == "Darwin":
        return _probe_apple()
    usable = usable_core_numbers()
    info = read_text(root / "proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", info, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else set()
    folders = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology")
    # all threads of a core have the same list, so the set has one entry for each core
    siblings = {read_text(folder / "thread_siblings_list") for folder in folders}
    now = core_values(root, usable, "cpufreq/scaling_cur_freq")
    mhz = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", info, re.MULTILINE)
    # The maxima are taken: of two kinds of cores the faster one's limit, and of the clocks now that
    # of a core that is not idle.
    tops = core_values(root, usable, "cpufreq/cpuinfo_max_freq")
    vendor = read_text(root / "sys/hypervisor/type")
    product = read_text(root / "sys/class/dmi/id/product_name")
    return Processor(
        name=processor_name(),
        architecture=platform.machine(),
        usable_cores=len(usable),
        physical_cores=len(siblings - {""}) or None,
        quota_cores=cpu_quota_cores(root),
        caches=_caches(root, usable),
        simd=tuple(word for word in _SIMD if word in known),
        clock_hz=max(
            [*(1e3 * khz for khz in now), *(1e6 * float(text) for text in mhz)], default=None
        ),
        max_clock_hz=1e3 * max(tops) if tops else None,
        hypervisor=(vendor or product or "yes") if "hypervisor" in known or vendor else None,
    )


def core_values(root: pathlib.Path, cores: Sequence[int], name: str) -> list[int]:
    """Return the number in a kernel file of each core; cores whose file has none are left out."""
    texts = [read_text(root / f"sys/devices/system/cpu/cpu{core}" / name) for core in cores]
    return [int(text) for text in texts if text.isdigit()]


def _caches(root: pathlib.Path, usable: Sequence[int]) -> tuple[Cache, ...]:
    """Return the data and unified caches of the usable cores, one entry a level, L1d first. An
    entry's size is that of the first core's cache.
    """
    found: dict[str, dict[int, set[str]]] = {}
    for core in usable:
        folder = root / f"sys/devices/system/cpu/cpu{core}/cache"
        for index in sorted(folder.glob("index*")):
            kind, level, text = (read_text(index / name) for name in ("type", "level", "size"))
            size = re.fullmatch(r"(\d+)([KMG]?)", text)
            if kind != "Instruction" and size is not None:
                nbytes = int(size.group(1)) * _POWERS[size.group(2)]
                name = "L1d" if level == "1" else f"L{level}"
                shared = found.setdefault(name, {}).setdefault(nbytes, set())
                shared.add(read_text(index / "shared_cpu_list") or str(core))
    caches = []
    for name, sizes in sorted(found.items()):
        (nbytes, count), *others = ((size, len(shared)) for size, shared in sizes.items())
        caches.append(Cache(name, nbytes, count, tuple(others)))
    return tuple(caches)


def _probe_apple() -> Processor:
    """Return what macOS reports (written from Apple's documentation; not tried on a Mac)."""

    def count(name: str) -> int | None:
        text = sysctl(name)
        return (int(text) if text.isdigit() else 0) or None

    # one for each kind of cores, the performance cores first
    kinds = [f"hw.perflevel{number}." for number in range(count("hw.nperflevels") or 1)]
    cores = [count(f"{kind}physicalcpu") or 1 for kind in kinds]
    sharing = [count(f"{kind}cpusperl2") or each for kind, each in zip(kinds, cores, strict=True)]
    found = {
        level: [
            (size, -(-each // one))
            for kind, each, one in zip(kinds, cores, by, strict=True)
            if (size := count(f"{kind}{level.lower()}cachesize"))
        ]
        for level, by in (("L1d", [1] * len(kinds)), ("L2", sharing))
    }
    return Processor(
        name=processor_name(),
        architecture=platform.machine(),
        usable_cores=len(usable_core_numbers()),
        physical_cores=count("hw.physicalcpu"),
        quota_cores=None,
        caches=tuple(
            Cache(level, *sizes[0], tuple(sizes[1:])) for level, sizes in found.items() if sizes
        ),
        simd=("asimd",) if platform.machine() == "arm64" else (),
        clock_hz=None,
        max_clock_hz=None,
        hypervisor="yes" if sysctl("kern.hv_vmm_present") == "1" else None,
    )
