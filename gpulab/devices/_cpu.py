"""The processor: cores, caches, SIMD instructions and clock, read from the system without an array
library.
"""

from __future__ import annotations

import pathlib
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpulab.devices import _cgroup, _host
from gpulab.results import Result
from gpulab.units import format_bytes

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
_SYSCTL_SECONDS = 5  # sysctl answers in milliseconds; a hung one must not hang machine()


@dataclass(frozen=True)
class Cache(Result):
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

    schema_version: ClassVar[int] = 2  # 1 had no others
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

    def cache(self, level: str) -> Cache | None:
        """Return one level ("L1d", "L2", "L3"), or None where the system does not report it."""
        return next((cache for cache in self.caches if cache.level == level), None)


def probe(root: pathlib.Path = pathlib.Path("/")) -> Processor:
    """Return what the system says about its processor.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` are; tests pass a made-up tree.
    """
    if platform.system() == "Darwin":
        return _probe_apple()
    info = read_text(root / "proc/cpuinfo")
    flags = set((_field(info, "flags") or _field(info, "Features") or "").split())
    usable = _host.usable_core_numbers()
    mhz = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", info, re.MULTILINE)]
    now = _khz(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    tops = [
        _khz(directory / "cpufreq/cpuinfo_max_freq")
        for directory in _cpu_directories(root)
        if int(directory.name[3:]) in usable
    ]
    return Processor(
        name=_host.processor_name(),
        architecture=platform.machine(),
        usable_cores=len(usable),
        physical_cores=_physical_cores(root),
        quota_cores=_cgroup.cpu_quota_cores(root),
        caches=_caches(root, usable),
        simd=tuple(word for word in _SIMD if word in flags),
        clock_hz=now or (max(mhz) * 1e6 if mhz else None),
        # of two kinds of cores the faster one's
        max_clock_hz=max((top for top in tops if top is not None), default=None),
        hypervisor=_hypervisor(root, flags),
    )


def read_text(path: pathlib.Path) -> str:
    """Return a small system file's text, or "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _field(info: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(.*)$", info, re.MULTILINE)
    return match.group(1) if match else None


def _khz(path: pathlib.Path) -> float | None:
    text = read_text(path)
    return float(text) * 1e3 if text.isdigit() and int(text) > 0 else None


def _cpu_directories(root: pathlib.Path) -> list[pathlib.Path]:
    """In the order of their numbers: the kernel lists them in any, and of two kinds of cores each
    run must tell the same caches.
    """
    found = [
        path
        for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*")
        if path.name[3:].isdigit()
    ]
    return sorted(found, key=lambda path: int(path.name[3:]))


def _physical_cores(root: pathlib.Path) -> int | None:
    cores = set()
    for directory in _cpu_directories(root):
        topology = directory / "topology"
        siblings = read_text(topology / "core_cpus_list") or read_text(
            topology / "thread_siblings_list"
        )
        if siblings:
            cores.add(siblings)
    return len(cores) or None


def _caches(root: pathlib.Path, usable: Sequence[int]) -> tuple[Cache, ...]:
    """Return data and unified caches of the usable cores, one entry a level with the size of the
    first core's, smallest level first.
    """
    found: dict[str, dict[int, set[str]]] = {}
    for directory in _cpu_directories(root):
        if int(directory.name[3:]) not in usable:
            continue
        for index in sorted((directory / "cache").glob("index*")):
            kind, level, size = (read_text(index / name) for name in ("type", "level", "size"))
            if (
                kind == "Instruction"
                or not level.isdigit()
                or (nbytes := _kernel_size(size)) is None
            ):
                continue
            name = f"L{level}d" if level == "1" else f"L{level}"
            shared = found.setdefault(name, {}).setdefault(nbytes, set())
            shared.add(read_text(index / "shared_cpu_list") or directory.name)
    caches = []
    for name, sizes in sorted(found.items()):
        (nbytes, count), *others = ((size, len(shared)) for size, shared in sizes.items())
        caches.append(Cache(name, nbytes, count, tuple(others)))
    return tuple(caches)


def _kernel_size(text: str) -> int | None:
    """Read the kernel's "48K" or "32M", which mean powers of 1024."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return (
        int(match.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match.group(2)]
        if match
        else None
    )


def _hypervisor(root: pathlib.Path, flags: set[str]) -> str | None:
    vendor = read_text(root / "sys/hypervisor/type")
    product = read_text(root / "sys/class/dmi/id/product_name")
    return (vendor or product or "yes") if "hypervisor" in flags or vendor else None


def sysctl(name: str) -> str:
    """Return one of macOS's system values as text, or "" where it does not exist."""
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name],
            capture_output=True,
            text=True,
            timeout=_SYSCTL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _probe_apple() -> Processor:
    """Return what macOS says (written from Apple's documentation; not tried on a Mac)."""

    def count(name: str) -> int | None:
        text = sysctl(name)
        return int(text) if text.isdigit() and int(text) > 0 else None

    cores = _host.usable_cores()
    # Apple reports the performance cores' caches under perflevel0; Intel Macs only the plain names.
    sizes = {
        "L1d": count("hw.perflevel0.l1dcachesize") or count("hw.l1dcachesize"),
        "L2": count("hw.perflevel0.l2cachesize") or count("hw.l2cachesize"),
        "L3": count("hw.l3cachesize"),
    }
    clock = count("hw.cpufrequency_max")
    return Processor(
        name=sysctl("machdep.cpu.brand_string") or _host.processor_name(),
        architecture=platform.machine(),
        usable_cores=cores,
        physical_cores=count("hw.physicalcpu"),
        quota_cores=None,
        caches=tuple(Cache(level, size, 1) for level, size in sizes.items() if size),
        simd=("asimd",)
        if platform.machine() == "arm64"
        else tuple(w for w in _SIMD if f" {w} " in f" {_apple_features()} "),
        clock_hz=None,
        max_clock_hz=float(clock) if clock else None,
        hypervisor="yes" if sysctl("kern.hv_vmm_present") == "1" else None,
    )


def _apple_features() -> str:
    return (
        f"{sysctl('machdep.cpu.features')} {sysctl('machdep.cpu.leaf7_features')}".lower()
        .replace(".", "_")
        .replace("avx1_0", "avx")
    )
