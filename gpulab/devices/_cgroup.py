"""The limits that a container or a batch system sets: memory and CPU time, from cgroups of both
versions.

A limit of any ancestor binds, so every level up to the mount's root is read and the smallest wins.
Where a container sees its own cgroup as the root, the path of ``/proc/self/cgroup`` does not exist
below the mount; the root then speaks for it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

# Version 1 writes "no limit" as the largest page-aligned 63-bit number; anything of that order
# means none.
_NO_LIMIT = 2**60


def _read(path: pathlib.Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _paths(root: pathlib.Path) -> dict[str, str]:
    """Return controller -> this process's path; the unified hierarchy of version 2 has the name
    "".
    """
    found: dict[str, str] = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _levels(mount: pathlib.Path, path: str) -> Iterator[pathlib.Path]:
    """Yield the process's directory and its ancestors up to the mount."""
    here = mount / path.lstrip("/")
    if not here.is_dir() or ".." in here.parts:
        here = mount
    while True:
        yield here
        if here == mount or mount not in here.parents:
            return
        here = here.parent


def _directories(root: pathlib.Path, controller: str) -> Iterator[tuple[int, pathlib.Path]]:
    """Yield (cgroup version, directory) for every level that may hold a limit of the controller."""
    paths = _paths(root)
    if controller in paths:
        for directory in _levels(root / "sys/fs/cgroup" / controller, paths[controller]):
            yield 1, directory
    if "" in paths:
        for directory in _levels(root / "sys/fs/cgroup", paths[""]):
            yield 2, directory


def _number(text: str | None) -> int | None:
    """Return a limit, or None for "max", "-1", nothing, or a number that stands for no limit."""
    if text is None or not text.lstrip("-").isdigit():
        return None
    value = int(text)
    return value if 0 < value < _NO_LIMIT else None


def memory_limit_bytes(root: pathlib.Path = pathlib.Path("/")) -> int | None:
    """Return the smallest memory limit that binds this process, in bytes; None without one.

    Parameters
    ----------
    root : path
        Where ``proc`` and ``sys`` are; tests pass a made-up tree.
    """
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [
        _number(_read(directory / names[version]))
        for version, directory in _directories(root, "memory")
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_free_bytes(root: pathlib.Path = pathlib.Path("/")) -> int | None:
    """Return what the tightest limit leaves, in bytes, counting reclaimable file cache as free;
    None without a limit.
    """
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        2: ("memory.max", "memory.current"),
    }
    free = []
    for version, directory in _directories(root, "memory"):
        limit, used = (_number(_read(directory / name)) for name in names[version])
        if limit is not None:
            free.append(max(0, limit - max(0, (used or 0) - _reclaimable(directory))))
    return min(free, default=None)


def _reclaimable(directory: pathlib.Path) -> int:
    """Return the bytes of file cache that the kernel gives back on demand."""
    fields = dict(
        line.split(maxsplit=1)
        for line in (_read(directory / "memory.stat") or "").splitlines()
        if " " in line
    )
    return int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))


def cpu_quota_cores(root: pathlib.Path = pathlib.Path("/")) -> float | None:
    """Return how many cores' worth of time this process may use, such as 1.5; None without a
    limit.
    """
    quotas = []
    for version, directory in _directories(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        words = " ".join(_read(directory / name) or "" for name in names).split()
        quota, period = (_number(word) for word in words) if len(words) == 2 else (None, None)
        if quota is not None and period is not None:
            quotas.append(quota / period)
    return min(quotas, default=None)
