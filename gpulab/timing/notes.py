"""The notes of one measurement: which rules apply, and in which order the notes are shown.

The rules that turn samples into notes are pure: no clock, no machine. (Those for the machine's
readings are in ``devices``.) Each asks two things: is the disturbance large enough to matter (about
half of the 5 % that must never be missed), and is it larger than what a quiet machine does by
itself. A note gives the symptom, its size, and what to do. How often the rules miss and how often
they raise a false alarm is measured by ``benchmarks/detection.py``.

Three rules ask whether the samples belong to one level: a shift in time, jumps between two levels,
and wandering. They compare the effect with the samples' own scatter, correlation included, because
correlated noise wanders on its own.

Plausibility: a rate above the device's limit means that the clock missed some work. ``check`` and
``fastest_rate`` are pure rules over a device's peak and the levels of its memory, which are made
from the stated figures (``gpulab.devices.spec``) and the measured ones (``ceilings``). Stated peaks
are upper bounds by construction. A measured rate is what one stream reached at a moment when
another process may have been running, so a margin is added to it, and it is measured again before a
figure is called impossible because of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpulab import devices
from gpulab.devices import Device, Figure, MemoryLevel, conditions
from gpulab.devices.conditions import SHARE, Readings, Window, percent
from gpulab.evidence import Note
from gpulab.timing import work_arrays
from gpulab.timing.sampling import Limits, Sampled
from gpulab.timing.statistics import fast_count
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_ratio,
    format_seconds,
    plural,
)
from gpulab.workloads import Workload

if TYPE_CHECKING:
    from gpulab.timing.measuring import Job

# Notes on wrong figures come first, then those on less precise figures, then those that are merely
# good to know.
_ORDER = (
    "implausible",
    "disagree",
    "throttled",
    "contended",
    "stalled",
    "unstable",
    "no-interval",
    "deadline",
    "stopped",
    "warm-cache",
    "slow-first-call",
    "too-short",
    "turn-taking",
    "no-overlap",
    "skipped",
)


# A stop must last at least this long to be distinguished from the work's own scatter.
_LEAST_STOP_SECONDS = 0.002
_STOP_SPREADS = 10.0
_FEW = 20
_FIRST_CALL_RATIO = 3.0
_FIRST_CALL_EXTRA_SECONDS = 2e-4
# Samples are condensed to at most this many medians in the order taken: enough to place a shift,
# and robust to single outliers.
_POINTS = 64
_LEAST_SAMPLES = 8
_LEAST_POINTS = 3
# Scores that 99.8 % of undisturbed series stay under (independent, heavy-tailed, AR(1) up to 0.9;
# simulated, see benchmarks/detection.py).
_SHIFT_SCORE = 6.0
_FEW_WORTH = 5.0
_LEVEL_GAP_SPREADS = 5.0
_LEVEL_SHARE = 0.1
_SHORTEST_PART = 16
_LEAST_STRETCH = 12
_WANDER_SPREADS = 2.0
_RAMP_EDGES = 17
_LEAST_FOR_LEVELS = 60
# Data sheets and measured ceilings are themselves a few per cent off (boost clocks, rounding):
# DESIGN section 4 allows a tenth.
ALLOWANCE = 1.1
# A first call found cold caches if it took longer than the others by more than this share of their
# time, and by more than loading the data from main memory takes.
_COLD_SHARE = 0.2
# Factors by which a rate may exceed the measured one. Main memory: a fourth more (streams of 58
# GB/s were seen beside a measured ceiling of 41 on a busy machine). Caches: twice as much, since
# the start of the threads slows down the short streams that measure them.
_DRAM_ROOM = 1.25
_CACHE_ROOM = 2.0


def ordered(notes: list[Note]) -> tuple[Note, ...]:
    """Return the notes, gravest first, no sentence twice."""
    return tuple(dict.fromkeys(note for code in _ORDER for note in notes if note.code == code))


def of_sampling(
    job: Job,
    sampled: Sampled,
    limits: Limits,
    before: Readings | None,
    after: Readings | None,
    *,
    alone: bool,
    cold: bool,
) -> Iterator[Note]:
    """Yield the notes that follow from the samples, the machine's counters and the rates.

    ``alone`` is False where other functions were called between the samples. With ``cold``, each
    call found the caches empty.
    """
    samples, calls = sampled.samples_seconds, sampled.calls_per_sample
    median, window = float(np.median(samples)), None
    if before is not None and after is not None:
        yield from conditions.from_readings(before, after)
        window = Window.between(before, after)
    # In a comparison, other rows' calls run between two samples. If such a call waits, this row was
    # not stopped.
    gaps = sampled.gaps_seconds if alone else np.zeros(0)
    yield from _stalled(sampled.walls_seconds, gaps, window)
    yield from _unstable(samples, limits.relative_width)
    extra = job.first_seconds - median
    is_slow = 0 < _FIRST_CALL_RATIO * median <= job.first_seconds
    if is_slow and extra >= _FIRST_CALL_EXTRA_SECONDS:
        yield Note(
            "slow-first-call",
            f"the first call took {format_seconds(job.first_seconds)}, "
            f"{job.first_seconds / median:.0f} times as long as the later ones (compiling, "
            "loading, allocating). It is not in the median; add it if you call the function only "
            "once.",
        )
    if sampled.stopped_by == "stopped":
        yield Note(
            "stopped",
            f"sampling was stopped after {plural(len(samples), 'sample')}; the figures are "
            "based on these. Run it again for more.",
        )
    elif sampled.interval_seconds is None:
        yield no_interval(sampled.no_interval_reason or "")
    # The interval may be narrow enough: there were too few samples to end earlier, or another row
    # of a comparison was still too wide.
    elif sampled.stopped_by == "deadline":
        low, high = sampled.interval_seconds
        width = (high - low) / median
        if width > limits.relative_width:
            yield Note(
                "deadline",
                f"after {format_seconds(limits.deadline)} the interval is {100 * width:.3g} % "
                f"wide; {100 * limits.relative_width:.3g} % was requested. Pass a longer "
                "deadline, or a larger relative_width.",
            )
    if calls > 1:
        yield Note(
            "too-short",
            f"one call is too short for the clock, so each sample is the mean of {calls} "
            "calls; the interval is that of the mean. Do more work per call to time single "
            "calls.",
        )
    if (job.flops or job.nbytes) and median > 0:
        yield from _of_rates(job, median, cold)


def no_interval(reason: str, figure: str = "median") -> Note:
    """Return the note that no honest interval can be given, and why."""
    return Note(
        "no-interval",
        f"{reason.rstrip('.')}. The {figure} is reported without an interval; measure again, for "
        "longer or on a quieter machine.",
    )


def _stalled(
    sample_seconds: np.ndarray, gaps_seconds: np.ndarray, window: Window | None
) -> Iterator[Note]:
    """Yield the note that the process was stopped: a few samples, or the time between two, took
    far too long.

    Parameters
    ----------
    sample_seconds : ndarray, shape (n,)
        The wall time of each sample (not per call).
    gaps_seconds : ndarray, shape (n - 1,)
        The time between the end of a sample and the start of the next.
    window : Window or None
        The machine's counters over the same time. Delays that another process or a quota explains
        are left to those notes, and gaps count only if the process was blocked in them.
    """
    middle = float(np.median(sample_seconds))
    excess = sample_seconds - middle
    few = len(sample_seconds) < _FEW
    spread = 1.4826 * float(np.median(np.abs(excess))) if few else _spread(sample_seconds)
    stops = excess[excess >= max(_LEAST_STOP_SECONDS, _STOP_SPREADS * spread, 0.05 * middle)]
    idle = gaps_seconds[gaps_seconds >= _LEAST_STOP_SECONDS]
    # Gaps count only if the process was blocked for about as long as all stops together, and not
    # for another reason (such as waiting in every call).
    stopped, waited, blocked = float(stops.sum() + idle.sum()), 0.0, 0.0
    if window is not None:
        blocked = (window.blocked or 0.0) * window.seconds
        waited = max(window.delay or 0.0, window.process_delay)
        waited = (waited + (window.throttled or 0.0) + (window.stolen or 0.0)) * window.seconds
    if not 0.8 * stopped <= blocked <= 1.25 * stopped:
        idle = stops[:0]
    stops = np.concatenate([stops, idle])
    stopped, total = float(stops.sum()), float(sample_seconds.sum() + idle.sum())
    if len(stops) and stopped - waited >= SHARE * total:
        yield Note(
            "stalled",
            f"the process stood still {plural(len(stops), 'time')}, the longest "
            f"{format_seconds(float(stops.max()))}, {percent(stopped / total)} of the time in "
            "total (it was stopped, or lost its core). Those samples do not show the work; measure "
            "again.",
        )


def _spread(values: np.ndarray) -> float:
    """Return a standard deviation that outliers do not move: half of the middle 68 %."""
    low, high = np.quantile(values, [0.16, 0.84])
    return float(high - low) / 2


def _unstable(samples_seconds: np.ndarray, relative_width: float) -> Iterator[Note]:
    """Yield the note that the samples do not belong to one level: they shifted, or jump between
    two.
    """
    least = max(0.03, relative_width)
    if (shift := _level_shift(samples_seconds, least)) is not None:
        what = f"changed by {percent(shift)} while measuring"
    elif (levels := _two_levels(samples_seconds, least)) is not None:
        low, high = levels
        what = (
            f"jumps between two levels, {format_seconds(low)} and {format_seconds(high)} "
            f"({percent(high / low - 1)} apart)"
        )
    elif (swing := _wander(samples_seconds, least)) is not None:
        what = f"wandered by {percent(swing)} while measuring"
    else:
        return
    yield Note(
        "unstable",
        f"the time per call {what}. No single figure describes it; look at the raw samples, "
        "close other programs, and measure again.",
    )


def _level_shift(samples: np.ndarray, least: float) -> float | None:
    """Return the relative size of the clearest shift or drift, or None where the scatter explains
    it or it is below ``least``.

    Two shapes are fitted to the series: one stretch at another level than the rest, and a ramp
    between two levels (a step and a straight drift are its extremes). The effect is compared with
    what the scatter and the correlation of the remainder produce by chance.
    """
    if len(samples) < _LEAST_SAMPLES:
        return None
    edges = np.linspace(0, len(samples), min(_POINTS, len(samples)) + 1).astype(int)
    points = np.array([np.median(samples[start:end]) for start, end in pairwise(edges)])
    parts = _SHORTEST_PART if len(samples) >= 4 * _POINTS else _SHORTEST_PART // 2
    shapes = _shapes(len(points), max(_LEAST_POINTS, len(points) // parts))
    found = [
        effect
        for effect, score in (_best_fit(points, kind) for kind in shapes)
        if effect >= least and score >= _SHIFT_SCORE
    ]
    return max(found, default=None)


@functools.lru_cache(maxsize=8)
def _shapes(m: int, shortest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all stretches and all ramps of ``m`` points with at least ``shortest`` points on each
    level, as rows of values from 0 to 1.
    """
    index = np.arange(m)
    start, end = (place[:, None] for place in np.triu_indices(m + 1, 1))
    stretches = ((start <= index) & (index < end)).astype(float)
    held = stretches.sum(axis=1)
    edges = np.unique(np.linspace(0, m - 1, _RAMP_EDGES).astype(int))
    start, end = (edges[place][:, None] for place in np.triu_indices(len(edges), 1))
    ramps = np.clip((index - start) / (end - start), 0.0, 1.0)
    middle = (start + end).ravel()
    return (
        stretches[(held >= shortest) & (m - held >= shortest)],
        ramps[(middle >= 2 * shortest) & (2 * m - middle >= 2 * shortest)],
    )


def _best_fit(points: np.ndarray, shapes: np.ndarray) -> tuple[float, float]:
    """Return the relative effect and the score of the shape that fits best, by least squares.

    The effect is the difference of the two levels relative to the lower one. The score is that
    difference in standard errors. The standard error allows for correlation (that of an AR(1)
    fitted to the remainder), and is widened where there are few independent values, as Student's
    quantile is wider than the normal one.
    """
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    size = np.einsum("ij,ij->i", centred, centred)
    rises = centred @ points / size
    best = int(np.argmax(rises**2 * size))
    rise = float(rises[best])
    base = float(points.mean() - rise * shapes[best].mean())
    lower, m = min(base, base + rise), len(points)
    if lower <= 0:
        return 0.0, 0.0
    rest = points - base - rise * shapes[best]
    square = float(rest @ rest)
    if square == 0.0:
        return abs(rise) / lower, np.inf
    rho = float(rest[1:] @ rest[:-1]) / square
    # the estimate is biased low by about (1 + 4 rho) / m (Marriott and Pope 1954)
    rho = min(0.95, max(0.0, rho + (1 + 4 * rho) / m))
    stretch = (1 + rho) / (1 - rho)
    spread = float(np.sqrt(square / max(1, m - 2) * stretch)) * (1.0 + _FEW_WORTH * stretch / m)
    return abs(rise) / lower, abs(rise) / spread * float(np.sqrt(size[best]))


def _wander(samples: np.ndarray, least: float) -> float | None:
    """Return how far the level wanders, relative to its median, or None where the scatter explains
    it.

    By chance, the medians of short stretches differ by about what the scatter inside the stretches,
    with its correlation, predicts. Levels that are held for a while make them differ far more,
    whatever the pattern.
    """
    length = len(samples) // _POINTS
    if length < _LEAST_STRETCH:
        return None
    stretches = samples[: length * _POINTS].reshape(_POINTS, length)
    points = np.median(stretches, axis=1)
    middle = float(np.median(points))
    reach = float(np.quantile(points, 0.95) - np.quantile(points, 0.05))
    if middle <= 0 or reach < least * middle:
        return None
    rest = stretches - points[:, None]
    spread = _spread(rest.ravel())
    rest = np.clip(rest, -4 * spread, 4 * spread)
    square = float((rest**2).sum())
    rho = float((rest[:, 1:] * rest[:, :-1]).sum()) / square if square > 0 else 0.0
    rho = min(0.97, max(0.0, rho + (1 + 4 * rho) / length))
    # The variance of a median is pi / 2 times that of a mean.
    expected = spread * float(np.sqrt(np.pi / 2 * (1 + rho) / (1 - rho) / length))
    return reach / middle if _spread(points) > _WANDER_SPREADS * expected else None


def _two_levels(samples: np.ndarray, least: float) -> tuple[float, float] | None:
    """Return the two levels between which the samples jump, or None where they form one cluster.

    The two parts must be far apart against their own spread, and each hold a tenth of the samples.
    Stricter than in ``statistics``: there a doubt costs some more samples, here it costs a false
    alarm.
    """
    if len(samples) < _LEAST_FOR_LEVELS:
        return None
    ordered = np.sort(samples)
    cut = fast_count(ordered, _LEVEL_SHARE)
    low, high = ordered[:cut], ordered[cut:]
    bottom, top = float(np.median(low)), float(np.median(high))
    spread = max(_spread(low), _spread(high))
    if bottom <= 0 or top - bottom < least * bottom or top - bottom < _LEVEL_GAP_SPREADS * spread:
        return None
    return bottom, top


# -- plausibility --------------------------------------------------------------------------------


def check(
    seconds: float,
    flops: float | None,
    nbytes: float | None,
    working_set_bytes: float | None,
    peak: Figure | None,
    levels: tuple[MemoryLevel, ...],
    first_seconds: float | None = None,
) -> list[Note]:
    """Return the note ``implausible`` or ``warm-cache`` that applies to a time, if one does.

    Parameters
    ----------
    seconds : float
        Of one call, above 0.
    flops, nbytes : float or None
        Of one call; None or 0 where not known.
    working_set_bytes : float or None
        The distinct bytes that a call touches; ``nbytes`` where None.
    peak : Figure or None
        FLOP/s of the fastest arithmetic that the settings permit; None where not known.
    levels : tuple of MemoryLevel
        From the fastest to main memory. The limit is that of the fastest that holds the working
        set.
    first_seconds : float, optional
        Of the first call, which may have found the caches cold; None where every call did.
    """
    if flops and peak is not None and flops / seconds > ALLOWANCE * peak.value:
        return _implausible(
            format_flops_per_second(flops / seconds),
            flops / seconds / peak.value,
            format_flops_per_second(peak.value),
            peak.source,
        )
    if not nbytes or not levels:
        return []
    size = nbytes if working_set_bytes is None else working_set_bytes
    rate, top, memory = nbytes / seconds, fastest_rate(size, levels), levels[-1]
    holding = [level for level in levels if level.capacity_bytes >= size] or [memory]
    if top is not None and rate > ALLOWANCE * top:
        alone = holding[0].bytes_per_second
        is_helped = holding[0] is not levels[0] and alone is not None and top > alone
        return _implausible(
            format_bytes_per_second(rate),
            rate / top,
            f"{format_bytes_per_second(top)} from {holding[0].name}",
            holding[0].source + is_helped * " and the part that the caches may hold",
        )
    if holding[0] is memory or memory.bytes_per_second is None:
        return []
    if rate > ALLOWANCE * memory.bytes_per_second:
        ratio = format_ratio(rate / memory.bytes_per_second)
        sign = f"{format_bytes_per_second(rate)} is {ratio} of what {memory.name} delivers"
    elif first_seconds is not None and first_seconds - seconds > max(
        _COLD_SHARE * seconds, size / memory.bytes_per_second
    ):
        times = f"{first_seconds / seconds:.1f} times as long"
        sign = f"the first call, which did not find them there, took {times}"
    else:
        return []
    return [
        Note(
            "warm-cache",
            f"the {format_bytes(size)} fit into {holding[0].name} "
            f"({format_bytes(holding[0].capacity_bytes)}), and {sign}: the data was still in the "
            "cache from the previous call. Real data may not be; cold=True empties the caches "
            "before each call.",
        )
    ]


def _implausible(rate: str, ratio: float, limit: str, source: str) -> list[Note]:
    return [
        Note(
            "implausible",
            f"{rate} is {format_ratio(ratio)} what this device can reach ({limit}, {source}). "
            "Did you forget to synchronize? Wait for the device, or for the thread, before the "
            "clock is read; or check flops and nbytes.",
        )
    ]


def fastest_rate(working_set_bytes: float, levels: tuple[MemoryLevel, ...]) -> float | None:
    """Return the highest rate that memory allows for a working set, in bytes per second; None where
    not known.

    Each level may still hold as much of the working set as fits into it, the fastest first, so
    that a set little larger than a cache comes from that cache for the most part.
    """
    seconds, left = 0.0, working_set_bytes
    for k, level in enumerate(levels):
        part = left if level is levels[-1] else min(left, level.capacity_bytes)
        # a level without a known rate may be the fastest
        seconds += part / max(each.bytes_per_second or np.inf for each in levels[k:])
        left -= part
    return working_set_bytes / seconds if seconds else None


def _of_rates(job: Job, seconds: float, cold: bool) -> list[Note]:
    """Return the notes of ``check`` for the time of a job's call. The peak is that of the fastest
    format that its arithmetic may use.

    Memory rates are looked up or measured only where the job's ``nbytes`` are known. If a time
    seems impossible because of a measured rate, that rate is measured again.
    """
    stated = devices.spec(job.device)
    dtypes = work_arrays.dtypes_in(job.args)
    from_catalogue = inspect.ismethod(job.fn) and isinstance(job.fn.__self__, Workload)
    # The caller's own function may use autocast, which can't be seen from here. Autocast does not
    # cast float64 (PyTorch, torch.amp, "Op Eligibility").
    if "float32" in dtypes and not from_catalogue:
        dtypes += ("bfloat16", "float16")
    peaks = [figure for figure in map(stated.peak, dtypes) if figure is not None]
    peak = max(
        peaks or stated.flops_per_second.values(), key=lambda figure: figure.value, default=None
    )
    first, notes = None if cold else job.first_seconds, list[Note]()
    for refresh in (False, True):
        levels = _levels(job.device, refresh) if job.nbytes else ()
        notes = check(seconds, job.flops, job.nbytes, job.working_set_bytes, peak, levels, first)
        if not levels or not job.device.is_cpu or all(note.code != "implausible" for note in notes):
            break
    return notes


def _levels(device: Device, refresh: bool) -> tuple[MemoryLevel, ...]:
    """Return the levels of memory with upper limits of their rates. On a CPU, and where no limit is
    stated, a measured rate plus a margin gives or lowers the limit; it is measured once for the
    life of the process, or again with ``refresh``.
    """
    stated = devices.spec(device).levels
    if not device.is_cpu and all(level.bytes_per_second is not None for level in stated):
        return stated
    measured = {
        level.name: level.bytes_per_second
        for level in devices.ceilings(device, refresh=refresh).levels
    }
    levels = []
    for level in stated:
        room = _DRAM_ROOM if level is stated[-1] else _CACHE_ROOM
        bound, source, rate = level.bytes_per_second, level.source, measured.get(level.name)
        if rate is not None:
            bound = room * rate if bound is None else min(bound, room * rate)
            source = (
                f"measured on this machine as {format_bytes_per_second(rate)}, plus a margin of "
                f"{100 * (room - 1):.0f} %"
            )
        levels.append(level._replace(bytes_per_second=bound, source=source))
    return tuple(levels)
