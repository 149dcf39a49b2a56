"""What the machine did around a measurement: readings of its counters before and after it, and
notes on what disturbed it (other processes on the cores or the GPU, or a lower clock).

A counter that this machine does not have is None. No time is computed from the counters, so one
that cannot be read is never an error. The rules for what a difference means are pure functions.
Each asks two things: is the disturbance large enough to matter (about half of the 5 % that must
never be missed), and is it larger than what a quiet machine does by itself. Both
``devices.ceilings`` and ``timing`` use them.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpulab.devices import host_facts, nvml
from gpulab.devices._device import Device
from gpulab.devices.nvml import GpuReadings
from gpulab.evidence import Note
from gpulab.units import plural

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
    thread_delays : mapping of str to float
        The same of each thread of this process, by its number; empty where not known.
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
    frequency_hertz : float or None
        The highest clock of the cores now, since idle cores run at a low one.
    gpu : GpuReadings or None
        Of the GPU that is measured.
    """

    seconds: float
    cores: int = 1
    own_cpu_seconds: float = 0.0
    run_delay_seconds: float | None = None
    thread_delays: Mapping[str, float] = field(default_factory=dict)
    busy_seconds: float | None = None
    tick_seconds: float = 0.01
    stolen_seconds: float | None = None
    throttled_seconds: float | None = None
    thermal_events: int | None = None
    frequency_hertz: float | None = None
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
    # nanoseconds that each thread waited on a run queue are the second field of its schedstat
    # (kernel docs, sched-stats)
    queues = {
        path.parent.name: host_facts.read_text(path).split()
        for path in (root / "proc/self/task").glob("*/schedstat")
    }
    delays = {thread: int(each[1]) * 1e-9 for thread, each in queues.items() if len(each) >= 2}
    hot = host_facts.core_values(root, cores, "thermal_throttle/core_throttle_count")
    # version 1 of control groups counts nanoseconds, version 2 microseconds
    held = [
        int(count) * (1e-6 if unit == "usec" else 1e-9)
        for path in _cpu_stats(root)
        for unit, count in re.findall(r"throttled_(usec|time) (\d+)", host_facts.read_text(path))
    ]
    last = since.gpu if since is not None else None
    gpu = nvml.read_counters(device.index, last) if device.kind == "cuda" else None
    return Readings(
        seconds=time.perf_counter(),
        cores=len(cores),
        own_cpu_seconds=time.process_time(),
        run_delay_seconds=delays.get(str(threading.get_native_id())),
        thread_delays=delays,
        busy_seconds=busy,
        tick_seconds=_TICK_SECONDS,
        stolen_seconds=stolen,
        throttled_seconds=sum(held) if held else None,
        thermal_events=sum(hot) if hot else None,
        frequency_hertz=1e3 * max(clocks) if clocks else None,
        gpu=gpu,
    )


def _busy_and_stolen(root: pathlib.Path, cores: Sequence[int]) -> tuple[float | None, float | None]:
    """Return the seconds that processes ran on some cores, and the seconds that the hypervisor gave
    these cores to other machines; None where not known.
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
    # A container's own /proc/stat (lxcfs) numbers its cores from 0, whatever their real numbers. A
    # sum over the cores that happen to be listed would be wrong.
    if any(len(row) < 8 for row in ours):
        return None, None
    busy = sum(
        user + nice + system + irq + softirq
        for user, nice, system, _idle, _iowait, irq, softirq, *_ in ours
    )
    return busy * _TICK_SECONDS, sum(row[7] for row in ours) * _TICK_SECONDS


# Cached, since the files do not change while a process runs, and readings are taken around each
# measurement.
@functools.cache
def _cpu_stats(root: pathlib.Path) -> list[pathlib.Path]:
    folders = host_facts.cgroup_directories(root, "cpu")
    return [folder / "cpu.stat" for _, folder in folders if (folder / "cpu.stat").is_file()]


# -- what disturbed a measurement --------------------------------------------------------


# Half of the 5 % that must be caught: a disturbance of 5 % read with an error of a fifth still lies
# far above it, and a quiet machine (below 1 % on those tried) far under it.
SHARE = 0.025
# Shorter single delays occur on any system now and then (timer, kernel thread, page fault).
_LEAST_DELAY_SECONDS = 0.001
# /proc/stat counts in ticks: fewer than these are rounding.
_LEAST_TICKS = 3
# If another process uses less of the GPU than this, it may be noise of the driver's own sampling.
_GPU_SHARE = 0.04
_CLOCK_DROP = 0.04
_ADVICE = (
    "Close other programs, or measure again later; the smallest samples are the least disturbed."
)
_COOL = "Let it cool down, plug it in, or pick a fixed clock, and measure again."


class Window(NamedTuple):
    """What passed between two readings: each field a share of the wall time, or None where it is
    not known.
    """

    seconds: float
    delay: float | None
    process_delay: float
    others: float | None
    stolen: float | None
    throttled: float | None
    blocked: float | None
    cores: int
    others_step: float

    @classmethod
    def between(cls, before: Readings, after: Readings) -> Window:
        """Return the shares of the time between two readings."""
        seconds = max(after.seconds - before.seconds, 1e-9)
        counters = (
            (getattr(before, name), getattr(after, name))
            for name in (
                "run_delay_seconds",
                "busy_seconds",
                "stolen_seconds",
                "throttled_seconds",
            )
        )
        delay, busy, stolen, throttled = (
            None if start is None or end is None else max(0.0, (end - start) / seconds)
            for start, end in counters
        )
        # if a delay fell, the thread is a new one with the number of a thread that has ended
        waits = (
            (before.thread_delays.get(thread, 0.0), end)
            for thread, end in after.thread_delays.items()
        )
        own = (after.own_cpu_seconds - before.own_cpu_seconds) / seconds
        return cls(
            seconds=seconds,
            delay=delay,
            process_delay=sum(end - start if end >= start else end for start, end in waits)
            / seconds,
            others=None if busy is None else max(0.0, busy - own),
            stolen=stolen,
            throttled=throttled,
            blocked=None if delay is None else max(0.0, 1.0 - own - delay),
            cores=after.cores,
            others_step=_LEAST_TICKS * after.tick_seconds / seconds,
        )


def from_readings(before: Readings, after: Readings, advice: str = "") -> Iterator[Note]:
    """Yield the notes that follow from the machine's counters: contended, throttled.

    Parameters
    ----------
    before, after : Readings
        Taken before and after the work that was measured.
    advice : str
        The advice where other processes used the cores, in place of the advice for callers of
        ``measure``.
    """
    window = Window.between(before, after)
    yield from _contended(window, advice)
    yield from _throttled(before, after, window)
    if before.gpu is not None and after.gpu is not None:
        yield from _on_gpu(before.gpu, after.gpu, window.seconds)


def percent(share: float) -> str:
    """Return a share as percent, with a decimal where it is small."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _contended(window: Window, advice: str) -> Iterator[Note]:
    stolen, others = window.stolen or 0.0, window.others or 0.0
    lost, quota = 0.0, window.throttled or 0.0  # delays include waits for the quota
    if window.delay is not None:
        # Waits among this process's own threads do not count. Where ticks are fine enough,
        # ``others`` shows whether other processes ran.
        delay, spread = window.delay - quota, (window.process_delay - quota) / window.cores
        counts = window.others is not None and window.others_step <= SHARE
        is_alone = counts and others < 0.3 * delay
        if delay >= max(SHARE, _LEAST_DELAY_SECONDS / window.seconds) and not is_alone:
            lost = delay
        elif spread >= SHARE and others >= max(2 * SHARE, window.others_step):
            lost = spread
    crowded = max(2 * SHARE * window.cores, window.others_step, window.cores - 1.05)
    if stolen >= max(SHARE, window.others_step):
        sentence = (
            f"the hypervisor gave {percent(stolen)} of one core's time to other machines (steal "
            "time). "
            f"{advice or 'Measure again later, or on a machine that you do not share.'}"
        )
    elif lost:
        # a wait is counted when it ends: one that began before the window can be longer than the
        # window
        sentence = (
            f"other processes kept this one off its core for {percent(min(lost, 1.0))} of "
            f"the time. {advice or _ADVICE}"
        )
    # Without run-queue delays (macOS, Windows): every core was busy, partly with other processes.
    elif window.delay is None and others >= crowded:
        busy, them = (
            ("the core was busy", "it")
            if window.cores == 1
            else (f"all {window.cores} cores were busy", "them")
        )
        sentence = (
            f"{busy}, {percent(min(others / window.cores, 1.0))} of {them} with other processes. "
            f"{advice or _ADVICE}"
        )
    else:
        return
    yield Note("contended", sentence)


def _throttled(before: Readings, after: Readings, window: Window) -> Iterator[Note]:
    held = window.throttled or 0.0
    if held >= max(SHARE, _LEAST_DELAY_SECONDS / window.seconds):
        yield Note(
            "throttled",
            "the container's CPU quota held this process back for "
            f"{percent(held)} of the time, summed over its cores (cpu.stat). Ask for more cores, "
            "or measure with fewer threads.",
        )
    hot = (after.thermal_events or 0) - (before.thermal_events or 0)
    fell = _drop(before.frequency_hertz, after.frequency_hertz)
    if hot > 0:
        yield Note(
            "throttled", f"the cores slowed down because of heat {plural(hot, 'time')}. {_COOL}"
        )
    elif fell:
        clock = f"{(after.frequency_hertz or 0.0) / 1e9:.2f} GHz"
        yield Note(
            "throttled",
            f"the cores' clock fell by {percent(fell)} to {clock} while measuring. {_COOL}",
        )


def _drop(reference: float | None, value: float | None) -> float:
    """Return the share by which a clock is below another; 0 where that is small, or not known."""
    drop = 1.0 - value / reference if reference and value is not None else 0.0
    return drop if drop >= _CLOCK_DROP else 0.0


def _on_gpu(before: GpuReadings, after: GpuReadings, seconds: float) -> Iterator[Note]:
    reasons, clock = ", ".join(after.reasons or before.reasons), after.clock_hertz
    is_counted = before.slowed_seconds is not None and after.slowed_seconds is not None
    share = ((after.slowed_seconds or 0.0) - (before.slowed_seconds or 0.0)) / seconds
    fell, busy = _drop(before.clock_hertz, clock), after.neighbour_busy_ratio or 0.0
    many = plural(after.neighbours or 0, "other process", "other processes")
    slower = (
        # Seen on an H200: the violation counters also run for half a second after heavy work, while
        # the clock is at its highest and no reason is reported. So a share counts only together
        # with a reason or a lower clock; else copies over PCIe would be called throttled.
        (
            is_counted and share >= SHARE and (reasons or _drop(after.top_clock_hertz, clock)),
            f"the GPU reduced its clock for {percent(min(share, 1.0))} of the time",
        ),
        (
            not is_counted and after.reasons and before.reasons,
            "the GPU's clock was reduced before and after the measurement",
        ),
        (
            not is_counted and after.reasons and fell,
            f"the GPU's clock fell by {percent(fell)} to {(clock or 0.0) / 1e6:.0f} MHz",
        ),
    )
    for what in [sentence for holds, sentence in slower if holds][:1]:
        yield Note(
            "throttled",
            f"{what} ({reasons or 'power or heat'}). The figure is valid for this GPU under this "
            "load; to compare it with others, cool the GPU or lock its clock (nvidia-smi -lgc).",
        )
    if after.neighbours and busy >= _GPU_SHARE:
        yield Note(
            "contended",
            f"{many} held a context on the GPU, and the busiest ran kernels for up to "
            f"{percent(busy)} of the time. Measure when no other process uses the GPU (nvidia-smi "
            "lists them).",
        )
