"""The rules that turn samples and machine readings into notes: pure functions, no clock, no machine.

Each rule asks two things: is the disturbance large enough to matter (about half of the 5 % that must never be missed), and is
it larger than what a quiet machine does by itself. A note gives the symptom, its size, and what to do. How often the rules miss and
how often they cry wolf is measured by ``benchmarks/detection.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.evidence import Note
from gpulab.timing.conditions import Readings
from gpulab.timing.gpu_readings import GpuReadings
from gpulab.timing.levels import level_shift, two_heaps, wander
from gpulab.units import format_seconds

# Half of the 5 % that must be caught: a disturbance of 5 % read with an error of a fifth still lies far above it,
# and a quiet machine (below 1 % on those tried) far under it.
_SHARE = 0.025
# A single delay below this is what any system does now and then (timer, kernel thread, page fault).
_LEAST_DELAY_SECONDS = 0.001
# /proc/stat counts in ticks: fewer than these are rounding.
_LEAST_TICKS = 3
# A stop must last at least this long to be told from the work's own scatter.
_LEAST_STOP_SECONDS = 0.002
_STOP_SPREADS = 10.0
_FEW = 20
# A neighbour that uses less of the GPU than this is noise of the driver's own sampling.
_GPU_SHARE = 0.04
_CLOCK_DROP = 0.04
_FIRST_CALL_RATIO = 3.0
_FIRST_CALL_EXTRA_SECONDS = 2e-4


@dataclass(frozen=True)
class Window:
    """What passed between two readings: each field a share of the wall time, or None where it cannot be told."""

    seconds: float
    delay: float | None
    process_delay: float | None
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

        def share(name: str) -> float | None:
            start, end = getattr(before, name), getattr(after, name)
            return None if start is None or end is None else max(0.0, (end - start) / seconds)

        own = (after.own_cpu_seconds - before.own_cpu_seconds) / seconds
        busy, delay = share("busy_seconds"), share("run_delay_seconds")
        return cls(
            seconds=seconds,
            delay=delay,
            process_delay=share("process_run_delay_seconds"),
            others=None if busy is None else max(0.0, busy - own),
            stolen=share("stolen_seconds"),
            throttled=share("throttled_seconds"),
            blocked=None if delay is None else max(0.0, 1.0 - own - delay),
            cores=after.cores,
            others_step=_LEAST_TICKS * after.tick_seconds / seconds,
        )


def from_readings(before: Readings, after: Readings) -> list[Note]:
    """Return the notes that the machine's counters give: contended, throttled."""
    window = Window.between(before, after)
    notes = [_contended(window), _throttled_by_quota(window), _throttled_by_heat(before, after)]
    if before.gpu is not None and after.gpu is not None:
        notes += [_gpu_throttled(before.gpu, after.gpu, window.seconds), _gpu_contended(after.gpu)]
    return [note for note in notes if note is not None]


def _percent(share: float) -> str:
    share = min(share, 1.0)  # waits are booked when they end, so one that began before the window can make more than the whole of it
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _contended(window: Window) -> Note | None:
    advice = "Close what else runs, or measure again later; the smallest samples are the least disturbed."
    if window.stolen is not None and window.stolen >= max(_SHARE, window.others_step):
        return Note(
            "contended",
            f"the hypervisor gave {_percent(window.stolen)} of the time on these cores to other machines (steal time). Measure "
            f"again later, or on a machine of your own.",
        )
    lost = _lost_to_others(window)
    if lost is not None:
        return Note("contended", f"other processes kept this one off its core for {_percent(lost)} of the time. {advice}")
    if window.delay is None and _crowded(window):
        return Note(
            "contended",
            f"all {window.cores} cores were busy, {_percent((window.others or 0.0) / window.cores)} of them with other processes. {advice}",
        )
    return None


def _lost_to_others(window: Window) -> float | None:
    """Return the share of the time that others took from us, or None: waits among our own threads do not count."""
    if window.delay is None:
        return None
    others_seen = window.others is not None and window.others_step <= _SHARE  # the ticks are fine enough to tell
    quota = window.throttled or 0.0  # a process held back by its quota also waits on the run queue
    delay = window.delay - quota
    if delay >= max(_SHARE, _LEAST_DELAY_SECONDS / window.seconds) and not (others_seen and (window.others or 0.0) < 0.3 * delay):
        return delay
    spread = ((window.process_delay or 0.0) - quota) / window.cores
    if spread >= _SHARE and window.others is not None and window.others >= max(2 * _SHARE, window.others_step):
        return spread
    return None


def _crowded(window: Window) -> bool:
    """Without run-queue delays (macOS, Windows): every core busy, and others had a part in it."""
    return (
        window.others is not None
        and window.others >= max(2 * _SHARE * window.cores, window.others_step)
        and window.others >= window.cores - 1.05
    )


def _throttled_by_quota(window: Window) -> Note | None:
    if window.throttled is None or window.throttled < max(_SHARE, _LEAST_DELAY_SECONDS / window.seconds):
        return None
    return Note(
        "throttled",
        f"the container's CPU quota held this process back for {_percent(window.throttled)} of the time (cpu.stat). Ask for more "
        f"cores, or measure with fewer threads.",
    )


def _throttled_by_heat(before: Readings, after: Readings) -> Note | None:
    cure = "Let it cool down, plug it in, or pick a fixed clock, and measure again."
    if before.thermal_events is not None and after.thermal_events is not None and after.thermal_events > before.thermal_events:
        times = after.thermal_events - before.thermal_events
        return Note("throttled", f"the cores slowed down because of heat {times} time{'s' if times != 1 else ''}. {cure}")
    drop = _drop(before.frequency_hertz, after.frequency_hertz)
    if drop is not None:
        return Note(
            "throttled",
            f"the cores' clock fell by {_percent(drop)} to {(after.frequency_hertz or 0.0) / 1e9:.2f} GHz while measuring. {cure}",
        )
    below = _drop(after.base_frequency_hertz, after.frequency_hertz)
    if below is not None:
        return Note("throttled", f"the cores' clock is {_percent(below)} under the maker's base clock. {cure}")
    return None


def _drop(reference: float | None, value: float | None) -> float | None:
    if reference is None or value is None or reference <= 0 or 1.0 - value / reference < _CLOCK_DROP:
        return None
    return 1.0 - value / reference


def _gpu_throttled(before: GpuReadings, after: GpuReadings, seconds: float) -> Note | None:
    reasons = ", ".join(after.reasons or before.reasons) or "power or heat"
    cure = "The figure is what this GPU gives under this load; cool it, or lock its clock (nvidia-smi -lgc), to compare."
    if before.slowed_seconds is not None and after.slowed_seconds is not None:
        share = (after.slowed_seconds - before.slowed_seconds) / seconds
        if share >= _SHARE:
            return Note("throttled", f"the GPU held its clock down for {_percent(min(share, 1.0))} of the time ({reasons}). {cure}")
        return None
    if after.reasons and before.reasons:
        return Note("throttled", f"the GPU held its clock down before and after the measurement ({reasons}). {cure}")
    drop = _drop(before.clock_hertz, after.clock_hertz)
    if drop is not None and after.reasons:
        return Note(
            "throttled", f"the GPU's clock fell by {_percent(drop)} to {(after.clock_hertz or 0.0) / 1e6:.0f} MHz ({reasons}). {cure}"
        )
    return None


def _gpu_contended(after: GpuReadings) -> Note | None:
    if not after.neighbours or after.neighbour_busy_ratio is None or after.neighbour_busy_ratio < _GPU_SHARE:
        return None
    many = f"{after.neighbours} other process{'es' if after.neighbours != 1 else ''}"
    return Note(
        "contended",
        f"{many} held the GPU, one of them busy up to {_percent(after.neighbour_busy_ratio)} of the time. Measure when it is alone "
        f"(nvidia-smi shows who).",
    )


def stalled(sample_seconds: np.ndarray, gaps_seconds: np.ndarray, window: Window | None = None) -> Note | None:
    """Return the note that the process was stopped: a few samples, or the time between two, took far too long.

    Parameters
    ----------
    sample_seconds : ndarray, shape (n,)
        The wall time of each sample (not per call).
    gaps_seconds : ndarray, shape (n - 1,)
        The time between the end of a sample and the start of the next.
    window : Window, optional
        The machine's account of the same time: delays that a neighbour or a quota explain are left to those notes, and a gap
        between samples counts only if the process did nothing in it.
    """
    if len(sample_seconds) == 0:
        return None
    middle = float(np.median(sample_seconds))
    excess = sample_seconds - middle
    stops = excess[excess >= max(_LEAST_STOP_SECONDS, _STOP_SPREADS * _spread(sample_seconds), 0.05 * middle)]
    idle = gaps_seconds[gaps_seconds >= _LEAST_STOP_SECONDS] if window is not None and window.blocked is not None else stops[:0]
    if len(idle) and not _stood_still(float(stops.sum() + idle.sum()), window):
        idle = idle[:0]
    stops = np.concatenate([stops, idle])
    stopped, count, longest = float(stops.sum()), len(stops), float(stops.max(initial=0.0))
    total = float(sample_seconds.sum() + idle.sum())
    if count == 0 or stopped < _SHARE * total:
        return None
    if window is not None and stopped - _explained(window) * window.seconds < _SHARE * total:
        return None
    return Note(
        "stalled",
        f"the process stood still {count} time{'s' if count != 1 else ''}, the longest {format_seconds(longest)}, "
        f"{_percent(stopped / total)} of the time in all "
        "(stopped, or its core was taken away). Those samples are not the work; measure again.",
    )


def _stood_still(stopped_seconds: float, window: Window | None) -> bool:
    """Return whether the process was blocked for as long as the stops say, and for no other reason (such as waiting in every call)."""
    if window is None or window.blocked is None:
        return False
    return 0.8 <= window.blocked * window.seconds / stopped_seconds <= 1.25


def _spread(values: np.ndarray) -> float:
    """Return a standard deviation that outliers do not move: half of the middle 68 %, or of few values the median distance."""
    if len(values) < _FEW:
        return 1.4826 * float(np.median(np.abs(values - np.median(values))))
    low, high = np.quantile(values, [0.16, 0.84])
    return float(high - low) / 2


def _explained(window: Window) -> float:
    waited = max(window.delay or 0.0, window.process_delay or 0.0)
    return waited + (window.throttled or 0.0) + (window.stolen or 0.0)


def unstable(samples_seconds: np.ndarray, relative_width: float) -> Note | None:
    """Return the note that the samples do not belong to one level: they shifted, or jump between two."""
    least = max(0.03, relative_width)
    advice = "No single figure describes it; look at the raw samples, close what else runs, and measure again."
    shift = level_shift(samples_seconds, least)
    if shift is not None:
        return Note("unstable", f"the time per call changed by {_percent(shift)} while measuring. {advice}")
    levels = two_heaps(samples_seconds, least)
    if levels is not None:
        low, high = levels
        return Note(
            "unstable",
            f"the time per call jumps between two levels, {format_seconds(low)} and {format_seconds(high)} "
            f"({_percent(high / low - 1)} apart). {advice}",
        )
    swing = wander(samples_seconds, least)
    if swing is not None:
        return Note("unstable", f"the time per call wandered by {_percent(swing)} while measuring. {advice}")
    return None


def slow_first_call(first_seconds: float, median_seconds: float) -> Note | None:
    """Return the note that the first call cost far more than the later ones."""
    extra = first_seconds - median_seconds
    if first_seconds < _FIRST_CALL_RATIO * median_seconds or extra < _FIRST_CALL_EXTRA_SECONDS:
        return None
    times = f", {first_seconds / median_seconds:.0f} times as much as the later ones" if median_seconds > 0 else ""
    return Note(
        "slow-first-call",
        f"the first call took {format_seconds(first_seconds)}{times} (compiling, loading, allocating). It is not in the median; "
        f"count it where you call only once.",
    )
