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
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.devices import host_facts, nvml
from gpulab.devices._device import Device
from gpulab.devices.nvml import GpuReadings

__all__ = ["GpuReadings", "Readings", "read"]

_TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


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


def read(
    device: Device, since: Readings | None = None, root: pathlib.Path = host_facts.ROOT
) -> Readings:
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
    cores = host_facts.usable_core_numbers()
    busy, stolen = _busy_and_stolen(root, cores)
    clocks = host_facts.core_values(root, cores, "cpufreq/scaling_cur_freq")
    base_clocks = host_facts.core_values(root, cores, "cpufreq/base_frequency")
    hot = host_facts.core_values(root, cores, "thermal_throttle/core_throttle_count")
    gpu = None
    if device.kind == "cuda":
        gpu = nvml.read_counters(device.index, since.gpu if since is not None else None)
    return Readings(
        seconds=time.perf_counter(),
        cores=len(cores),
        own_cpu_seconds=time.process_time(),
        run_delay_seconds=_run_delay(root / "proc/thread-self/schedstat"),
        process_run_delay_seconds=_run_delays(root).seconds(),
        busy_seconds=busy,
        tick_seconds=_TICK_SECONDS,
        stolen_seconds=stolen,
        throttled_seconds=_throttled_seconds(root),
        thermal_events=sum(hot) if hot else None,
        frequency_hertz=1e3 * max(clocks) if clocks else None,
        base_frequency_hertz=1e3 * min(base_clocks) if base_clocks else None,
        gpu=gpu,
    )


def _busy_and_stolen(root: pathlib.Path, cores: Sequence[int]) -> tuple[float | None, float | None]:
    """Return the CPU time of all processes on some cores, and that of other machines of the
    hypervisor's.
    """
    if sys.platform != "linux":
        import psutil

        times = psutil.cpu_times()
        return float(times.user + times.system + getattr(times, "nice", 0.0)), None
    rows = {
        name: [int(field) for field in fields]
        for name, *fields in map(str.split, host_facts.read_text(root / "proc/stat").splitlines())
        if name.startswith("cpu")
    }
    ours = [rows.get(f"cpu{core}", []) for core in cores]
    # A container's own /proc/stat (lxcfs) counts its cores from 0, whatever numbers they have: a
    # part of them is no answer.
    if any(len(row) < 8 for row in ours):
        return None, None
    busy = sum(
        user + nice + system + irq + softirq
        for user, nice, system, _idle, _iowait, irq, softirq, *_ in ours
    )
    return busy * _TICK_SECONDS, sum(row[7] for row in ours) * _TICK_SECONDS


def _run_delay(path: pathlib.Path) -> float | None:
    """Return the second field of a schedstat file: nanoseconds spent waiting on a run queue (kernel
    docs, sched-stats).
    """
    fields = host_facts.read_text(path).split()
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


def _throttled_seconds(root: pathlib.Path) -> float | None:
    total: float | None = None
    for _, directory in host_facts.cgroup_directories(root, "cpu"):
        for line in host_facts.read_text(directory / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            # version 1 counts nanoseconds, version 2 microseconds
            if name in ("throttled_time", "throttled_usec"):
                total = (total or 0.0) + int(value) * (1e-9 if name == "throttled_time" else 1e-6)
    return total
