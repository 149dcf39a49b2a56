"""What the machine did around a measurement: readings of its counters, taken before and after.

Only reads and reports; what a difference means is decided by the pure rules in
``gpulab.devices.disturbance``. A counter that this machine does not have is None. Nothing here is
needed for a time, so a counter that cannot be read is never an error.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpulab.devices import gpu_readings
from gpulab.devices._device import Device
from gpulab.devices.gpu_readings import GpuReadings

_ROOT = pathlib.Path("/")


@dataclass(frozen=True)
class Readings:
    """The machine's counters at one moment. All but ``cores`` and the frequencies only grow.

    Attributes
    ----------
    seconds : float
        A steady clock.
    cores : int
        Logical CPUs that this process may use.
    own_cpu_seconds : float
        CPU time of this process, all threads.
    run_delay_seconds : float or None
        How long the calling thread was ready to run and had no core.
    process_run_delay_seconds : float or None
        The same over all threads of this process, also those that have ended since it was first
        read.
    busy_seconds : float or None
        CPU time of all processes on the cores that this one may use.
    tick_seconds : float
        The step of ``busy_seconds`` and ``stolen_seconds``.
    stolen_seconds : float or None
        How long the hypervisor ran something else on these cores.
    throttled_seconds : float or None
        How long the container's CPU quota held the process back (summed over its cores).
    thermal_events : int or None
        How often the cores slowed down because of heat.
    frequency_hertz, base_frequency_hertz : float or None
        The highest clock of the cores now, since idle cores run at a low one; the lowest that the
        manufacturer guarantees.
    gpu : GpuReadings or None
        Of the GPU that is measured.
    """

    seconds: float
    cores: int = 1
    own_cpu_seconds: float = 0.0
    run_delay_seconds: float | None = None
    process_run_delay_seconds: float | None = None
    busy_seconds: float | None = None
    tick_seconds: float = 0.01
    stolen_seconds: float | None = None
    throttled_seconds: float | None = None
    thermal_events: int | None = None
    frequency_hertz: float | None = None
    base_frequency_hertz: float | None = None
    gpu: GpuReadings | None = None


def read(device: Device, since: Readings | None = None, root: pathlib.Path = _ROOT) -> Readings:
    """Read every counter that this machine has; about half a millisecond on a CPU, more with an
    NVIDIA GPU.

    Parameters
    ----------
    device : Device
        The device that is measured: an accelerator's own counters are read too.
    since : Readings, optional
        The previous reading, for counters that need a starting point.
    root : path
        Where ``proc`` and ``sys`` are: "/", or a copy of another machine's files.
    """
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    busy, stolen = _busy_and_stolen(root / "proc", cores)
    cpu = root / "sys/devices/system/cpu"
    return Readings(
        seconds=time.perf_counter(),
        cores=len(cores),
        own_cpu_seconds=time.process_time(),
        run_delay_seconds=_run_delay(root / "proc/thread-self/schedstat"),
        process_run_delay_seconds=_run_delays(root).seconds(),
        busy_seconds=busy,
        tick_seconds=_tick_seconds(),
        stolen_seconds=stolen,
        throttled_seconds=_throttled_seconds(root),
        thermal_events=_sum_of(cpu, cores, "thermal_throttle/core_throttle_count"),
        frequency_hertz=_hertz(max, cpu, cores, "cpufreq/scaling_cur_freq"),
        base_frequency_hertz=_hertz(min, cpu, cores, "cpufreq/base_frequency"),
        gpu=gpu_readings.read(device, since.gpu if since is not None else None)
        if device.kind == "cuda"
        else None,
    )


def _text(path: pathlib.Path) -> str | None:
    """Return a small file's text, or None where there is no such file or no right to read it."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


def _tick_seconds() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def _run_delay(path: pathlib.Path) -> float | None:
    """Return the second field of a schedstat file: nanoseconds spent waiting on a run queue (kernel
    docs, sched-stats).
    """
    text = _text(path)
    fields = text.split() if text else []
    return int(fields[1]) * 1e-9 if len(fields) >= 2 else None


class _RunDelays:
    """The run delay of all threads of this process, those included that have ended: the system
    forgets them, and the sum would fall.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self._tasks = root / "proc/self/task"
        self._known: dict[str, float] = {}  # of the living threads, as they were last seen
        self._ended_seconds = 0.0
        self._lock = threading.Lock()

    def seconds(self) -> float | None:
        """Return the sum so far; None where the system does not report it."""
        with self._lock:
            try:
                threads = os.listdir(self._tasks)  # noqa: PTH208  (names are all we need, and this is five times faster)
            except OSError:
                return None
            delays = {thread: _run_delay(self._tasks / thread / "schedstat") for thread in threads}
            living = {thread: delay for thread, delay in delays.items() if delay is not None}
            if not living:
                return None
            # A delay that has fallen is another thread's, which was given the number of one that
            # has ended.
            self._ended_seconds += sum(
                last for thread, last in self._known.items() if living.get(thread, -1.0) < last
            )
            self._known = living
            return self._ended_seconds + sum(living.values())


@functools.cache
def _run_delays(root: pathlib.Path) -> _RunDelays:
    return _RunDelays(root)


def _busy_and_stolen(proc: pathlib.Path, cores: list[int]) -> tuple[float | None, float | None]:
    text = _text(proc / "stat")
    if text is None:
        return _busy_from_psutil(), None
    tick = _tick_seconds()
    busy = stolen = 0.0
    wanted, seen = {f"cpu{core}" for core in cores}, 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name in wanted and len(fields) >= 8:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (
                int(field) for field in fields[:8]
            )
            busy += (user + nice + system + irq + softirq) * tick
            stolen += steal * tick
            seen += 1
    # A container's own /proc/stat (lxcfs) counts its cores from 0, whatever numbers they have: a
    # part of them is no answer.
    return (busy, stolen) if seen == len(cores) else (None, None)


def _busy_from_psutil() -> float | None:
    """Return the CPU time of all processes where there is no /proc (macOS, Windows)."""
    if sys.platform == "linux":
        return None
    try:
        import psutil
    except ImportError:
        return None
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _cgroup_stat_files(root: pathlib.Path) -> list[pathlib.Path]:
    """Return the cpu.stat files of this process's control group and of all groups above it
    (versions 1 and 2).
    """
    mount, files = root / "sys/fs/cgroup", []
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            roots = [mount, mount / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [mount / controllers, mount / "cpu"]
        else:
            continue
        for top in roots:
            here = top / path.lstrip("/")
            files += [
                group / "cpu.stat"
                for group in (here, *here.parents)
                if group == top or top in group.parents
            ]
    return list(dict.fromkeys(files))


def _throttled_seconds(root: pathlib.Path) -> float | None:
    total: float | None = None
    for file in _cgroup_stat_files(root):
        for line in (_text(file) or "").splitlines():
            name, _, value = line.partition(" ")
            # version 1 counts nanoseconds, version 2 microseconds
            if name in ("throttled_time", "throttled_usec"):
                total = (total or 0.0) + int(value) * (1e-9 if name == "throttled_time" else 1e-6)
    return total


def _values(cpu: pathlib.Path, cores: list[int], name: str) -> list[int]:
    texts = [_text(cpu / f"cpu{core}" / name) for core in cores]
    return [int(text) for text in texts if text is not None and text.strip().isdigit()]


def _sum_of(cpu: pathlib.Path, cores: list[int], name: str) -> int | None:
    values = _values(cpu, cores, name)
    return sum(values) if values else None


def _hertz(
    which: Callable[[list[int]], int], cpu: pathlib.Path, cores: list[int], name: str
) -> float | None:
    values = _values(cpu, cores, name)
    return 1000.0 * which(values) if values else None
