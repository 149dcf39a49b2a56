"""The processor: cores, caches, SIMD instructions and clock, read from the system."""

from __future__ import annotations

import pathlib
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpulab.devices import host_facts
from gpulab.results import Result
from gpulab.units import format_bytes, plural

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

    def __str__(self) -> str:
        cores = f"{self.name}, {plural(self.usable_cores, 'usable core')}"
        if self.physical_cores not in (None, self.usable_cores):
            cores += f" of {self.physical_cores} physical"
        parts = [cores]
        if self.quota_cores is not None:
            parts.append(f"{self.quota_words} granted")
        if self.clock_hz:
            parts.append(f"{self.clock_hz / 1e9:.2f} GHz now")
        if self.max_clock_hz:
            parts.append(f"up to {self.max_clock_hz / 1e9:.2f} GHz")
        return ", ".join([*parts, " ".join(self.simd)] if self.simd else parts)

    def cache(self, level: str) -> Cache | None:
        """Return one level ("L1d", "L2", "L3"), or None where the system does not report it."""
        return next((cache for cache in self.caches if cache.level == level), None)


def probe(root: pathlib.Path = host_facts.ROOT) -> Processor:
    """Return what the system says about its processor.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` are; tests pass a made-up tree.
    """
    if platform.system() == "Darwin":
        return _probe_apple()
    usable = host_facts.usable_core_numbers()
    info = host_facts.read_text(root / "proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", info, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else set()
    folders = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology")
    # each core is listed once by the threads that it runs
    siblings = {host_facts.read_text(folder / "thread_siblings_list") for folder in folders}
    now = core_values(root, usable, "cpufreq/scaling_cur_freq")
    mhz = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", info, re.MULTILINE)
    # of two kinds of cores the faster one's, and of cores now one that is not idle
    tops = core_values(root, usable, "cpufreq/cpuinfo_max_freq")
    vendor = host_facts.read_text(root / "sys/hypervisor/type")
    product = host_facts.read_text(root / "sys/class/dmi/id/product_name")
    return Processor(
        name=host_facts.processor_name(),
        architecture=platform.machine(),
        usable_cores=len(usable),
        physical_cores=len(siblings - {""}) or None,
        quota_cores=host_facts.cpu_quota_cores(root),
        caches=_caches(root, usable),
        simd=tuple(word for word in _SIMD if word in known),
        clock_hz=max(
            [*(1e3 * khz for khz in now), *(1e6 * float(text) for text in mhz)], default=None
        ),
        max_clock_hz=1e3 * max(tops) if tops else None,
        hypervisor=(vendor or product or "yes") if "hypervisor" in known or vendor else None,
    )


def core_values(root: pathlib.Path, cores: Sequence[int], name: str) -> list[int]:
    """Return the number that a file of the kernel's has for each core, where it is one."""
    folder = root / "sys/devices/system/cpu"
    texts = [host_facts.read_text(folder / f"cpu{core}" / name) for core in cores]
    return [int(text) for text in texts if text.isdigit()]


def _caches(root: pathlib.Path, usable: Sequence[int]) -> tuple[Cache, ...]:
    """Return data and unified caches of the usable cores, one entry a level with the size of the
    first core's, smallest level first.
    """
    found: dict[str, dict[int, set[str]]] = {}
    for core in usable:
        folder = root / f"sys/devices/system/cpu/cpu{core}/cache"
        for index in sorted(folder.glob("index*")):
            kind, level, text = (
                host_facts.read_text(index / name) for name in ("type", "level", "size")
            )
            size = re.fullmatch(r"(\d+)([KMG]?)", text)
            if kind != "Instruction" and size is not None:
                nbytes = int(size.group(1)) * _POWERS[size.group(2)]
                name = "L1d" if level == "1" else f"L{level}"
                shared = found.setdefault(name, {}).setdefault(nbytes, set())
                shared.add(host_facts.read_text(index / "shared_cpu_list") or str(core))
    caches = []
    for name, sizes in sorted(found.items()):
        (nbytes, count), *others = ((size, len(shared)) for size, shared in sizes.items())
        caches.append(Cache(name, nbytes, count, tuple(others)))
    return tuple(caches)


def _probe_apple() -> Processor:
    """Return what macOS says (written from Apple's documentation; not tried on a Mac)."""

    def count(name: str) -> int | None:
        text = host_facts.sysctl(name)
        return (int(text) if text.isdigit() else 0) or None

    # Apple reports the performance cores' caches under perflevel0; Intel Macs only the plain names.
    sizes = {
        "L1d": count("hw.perflevel0.l1dcachesize") or count("hw.l1dcachesize"),
        "L2": count("hw.perflevel0.l2cachesize") or count("hw.l2cachesize"),
        "L3": count("hw.l3cachesize"),
    }
    features = " ".join(
        map(host_facts.sysctl, ("machdep.cpu.features", "machdep.cpu.leaf7_features"))
    )
    words = features.lower().replace(".", "_").replace("avx1_0", "avx").split()
    is_arm = platform.machine() == "arm64"
    clock = count("hw.cpufrequency_max")
    return Processor(
        name=host_facts.processor_name(),
        architecture=platform.machine(),
        usable_cores=host_facts.usable_cores(),
        physical_cores=count("hw.physicalcpu"),
        quota_cores=None,
        caches=tuple(Cache(level, size, 1) for level, size in sizes.items() if size),
        simd=("asimd",) if is_arm else tuple(word for word in _SIMD if word in words),
        clock_hz=None,
        max_clock_hz=float(clock) if clock else None,
        hypervisor="yes" if host_facts.sysctl("kern.hv_vmm_present") == "1" else None,
    )
