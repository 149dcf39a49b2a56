"""What disturbed a measurement: other processes on the cores or the GPU, or a lower clock.

Pure functions, no clock, no machine. Each rule asks two things: is the disturbance large enough to
matter (about half of the 5 % that must never be missed), and is it larger than what a quiet machine
does by itself. Both ``devices.ceilings`` and ``timing`` use these rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.devices.conditions import GpuReadings, Readings
from gpulab.evidence import Note
from gpulab.units import plural

# Half of the 5 % that must be caught: a disturbance of 5 % read with an error of a fifth still lies
# far above it, and a quiet machine (below 1 % on those tried) far under it.
SHARE = 0.025
# A single delay below this is what any system does now and then (timer, kernel thread, page fault).
_LEAST_DELAY_SECONDS = 0.001
# /proc/stat counts in ticks: fewer than these are rounding.
_LEAST_TICKS = 3
# A neighbour that uses less of the GPU than this is noise of the driver's own sampling.
_GPU_SHARE = 0.04
_CLOCK_DROP = 0.04
_ADVICE = (
    "Close other programs, or measure again later; the smallest samples are the least disturbed."
)


@dataclass(frozen=True)
class Window:
    """What passed between two readings: each field a share of the wall time, or None where it is
    not known.
    """

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


def from_readings(before: Readings, after: Readings, advice: str = "") -> list[Note]:
    """Return the notes that the machine's counters give: contended, throttled.

    Parameters
    ----------
    before, after : Readings
        Around what was measured.
    advice : str
        What to do where other processes used the cores, in place of the advice for callers of
        ``measure``.
    """
    window = Window.between(before, after)
    notes = [
        _contended(window, advice),
        _throttled_by_quota(window),
        _throttled_by_heat(before, after),
    ]
    if before.gpu is not None and after.gpu is not None:
        notes += [_gpu_throttled(before.gpu, after.gpu, window.seconds), _gpu_contended(after.gpu)]
    return [note for note in notes if note is not None]


def percent(share: float) -> str:
    """Return a share as percent, with a decimal where it is small."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _contended(window: Window, advice: str) -> Note | None:
    if window.stolen is not None and window.stolen >= max(SHARE, window.others_step):
        return Note(
            "contended",
            f"the hypervisor gave {percent(min(window.stolen, 1.0))} of the time on these cores to "
            "other machines (steal time). "
            f"{advice or 'Measure again later, or on a machine that you do not share.'}",
        )
    lost = _lost_to_others(window)
    # waits are booked when they end: one that began before the window can make more than the whole
    # of it
    if lost is not None:
        return Note(
            "contended",
            f"other processes kept this one off its core for {percent(min(lost, 1.0))} of the "
            f"time. {advice or _ADVICE}",
        )
    if window.delay is None and _crowded(window):
        return Note(
            "contended",
            f"{'the core was' if window.cores == 1 else f'all {window.cores} cores were'} busy, "
            f"{percent(min((window.others or 0.0) / window.cores, 1.0))} of "
            f"{'it' if window.cores == 1 else 'them'} with other processes. {advice or _ADVICE}",
        )
    return None


def _lost_to_others(window: Window) -> float | None:
    """Return the share of the time that others took from us, or None: waits among our own threads
    do not count.
    """
    if window.delay is None:
        return None
    # the ticks are fine enough to show how much others ran
    others_seen = window.others is not None and window.others_step <= SHARE
    quota = window.throttled or 0.0  # a process held back by its quota also waits on the run queue
    delay = window.delay - quota
    if delay >= max(SHARE, _LEAST_DELAY_SECONDS / window.seconds) and not (
        others_seen and (window.others or 0.0) < 0.3 * delay
    ):
        return delay
    spread = ((window.process_delay or 0.0) - quota) / window.cores
    if (
        spread >= SHARE
        and window.others is not None
        and window.others >= max(2 * SHARE, window.others_step)
    ):
        return spread
    return None


def _crowded(window: Window) -> bool:
    """Without run-queue delays (macOS, Windows): every core busy, and others had a part in it."""
    return (
        window.others is not None
        and window.others >= max(2 * SHARE * window.cores, window.others_step)
        and window.others >= window.cores - 1.05
    )


def _throttled_by_quota(window: Window) -> Note | None:
    if window.throttled is None or window.throttled < max(
        SHARE, _LEAST_DELAY_SECONDS / window.seconds
    ):
        return None
    return Note(
        "throttled",
        "the container's CPU quota held this process back for "
        f"{percent(min(window.throttled, 1.0))} of the time (cpu.stat). Ask for more cores, or "
        "measure with fewer threads.",
    )


def _throttled_by_heat(before: Readings, after: Readings) -> Note | None:
    cure = "Let it cool down, plug it in, or pick a fixed clock, and measure again."
    if (
        before.thermal_events is not None
        and after.thermal_events is not None
        and after.thermal_events > before.thermal_events
    ):
        times = plural(after.thermal_events - before.thermal_events, "time")
        return Note("throttled", f"the cores slowed down because of heat {times}. {cure}")
    drop = _drop(before.frequency_hertz, after.frequency_hertz)
    if drop is not None:
        return Note(
            "throttled",
            f"the cores' clock fell by {percent(drop)} to "
            f"{(after.frequency_hertz or 0.0) / 1e9:.2f} GHz while measuring. {cure}",
        )
    below = _drop(after.base_frequency_hertz, after.frequency_hertz)
    if below is not None:
        return Note(
            "throttled",
            f"the cores' clock is {percent(below)} below the manufacturer's base clock. {cure}",
        )
    return None


def _drop(reference: float | None, value: float | None) -> float | None:
    drop = 1.0 - value / reference if reference and value is not None else 0.0
    return drop if drop >= _CLOCK_DROP else None


def _gpu_throttled(before: GpuReadings, after: GpuReadings, seconds: float) -> Note | None:
    # Seen on an H200: the violation counters also run for half a second after heavy work, beside a
    # full clock and no reason. So a share counts only where one of these two agrees; else copies
    # over PCIe would be called throttled.
    seen = (
        bool(after.reasons or before.reasons)
        or _drop(after.top_clock_hertz, after.clock_hertz) is not None
    )
    reasons = ", ".join(after.reasons or before.reasons) or "power or heat"
    cure = (
        "The figure is valid for this GPU under this load; to compare it with others, cool "
        "the GPU or lock its clock (nvidia-smi -lgc)."
    )
    if before.slowed_seconds is not None and after.slowed_seconds is not None:
        share = (after.slowed_seconds - before.slowed_seconds) / seconds
        if share >= SHARE and seen:
            return Note(
                "throttled",
                f"the GPU reduced its clock for {percent(min(share, 1.0))} of the time "
                f"({reasons}). {cure}",
            )
        return None
    if after.reasons and before.reasons:
        return Note(
            "throttled",
            f"the GPU's clock was reduced before and after the measurement ({reasons}). {cure}",
        )
    drop = _drop(before.clock_hertz, after.clock_hertz)
    if drop is not None and after.reasons:
        return Note(
            "throttled",
            f"the GPU's clock fell by {percent(drop)} to {(after.clock_hertz or 0.0) / 1e6:.0f} "
            f"MHz ({reasons}). {cure}",
        )
    return None


def _gpu_contended(after: GpuReadings) -> Note | None:
    busy = after.neighbour_busy_ratio or 0.0
    if not after.neighbours or busy < _GPU_SHARE:
        return None
    many = plural(after.neighbours, "other process", "other processes")
    return Note(
        "contended",
        f"{many} used the GPU, one of them busy up to {percent(busy)} of the time. Measure when no "
        "other process uses it (nvidia-smi lists them).",
    )
