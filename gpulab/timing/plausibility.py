"""Plausibility: a rate above the device's limit means that the clock missed some work.

``check`` and ``fastest_rate`` are pure rules over a device's peak and the levels of its memory,
which are put together from what ``gpulab.devices`` states (``spec``) and has measured
(``ceilings``). Stated peaks are upper bounds by construction. A measured rate is what one stream
reached at a moment when another process may have been running, so a margin is added to it, and it
is measured again before a figure is called impossible because of it.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING

from gpulab import devices
from gpulab.devices import Device, Figure, MemoryLevel
from gpulab.evidence import Note
from gpulab.timing import work_arrays
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_ratio,
)
from gpulab.workloads import Workload

if TYPE_CHECKING:
    from gpulab.timing.measuring import Job

# Data sheets and measured ceilings are themselves a few per cent off (boost clocks, rounding):
# DESIGN section 4 allows a tenth.
ALLOWANCE = 1.1
# A first call is called cold where it took longer by this share of the others, and by what loading
# the data from main memory takes.
_COLD_SHARE = 0.2
# Room above a measured rate: of main memory a fourth (streams of 58 GB/s were seen beside a
# measured ceiling of 41 on a busy machine); of a cache as much again, for short streams are slowed
# down by the start of their threads.
_DRAM_ROOM = 1.25
_CACHE_ROOM = 2.0


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
        is_helped = holding[0] is memory and alone is not None and top > alone
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
    sentence = (
        f"the {format_bytes(size)} fit into {holding[0].name} "
        f"({format_bytes(holding[0].capacity_bytes)}), and {sign}: the data was still in the cache "
        "from the previous call. Real data may not be; cold=True empties the caches before each "
        "call."
    )
    return [Note("warm-cache", sentence)]


def _implausible(rate: str, ratio: float, limit: str, source: str) -> list[Note]:
    sentence = (
        f"{rate} is {format_ratio(ratio)} of what this device can reach ({limit}, {source}). Did "
        "you forget to synchronize? Wait for the device, or for the thread, before the clock is "
        "read; or check flops and nbytes."
    )
    return [Note("implausible", sentence)]


def fastest_rate(working_set_bytes: float, levels: tuple[MemoryLevel, ...]) -> float | None:
    """Return the highest rate that memory allows for a working set, in bytes per second; None where
    not known.

    That of the fastest level that holds it. Of a working set larger than the caches, a part as
    large as all caches together may still come from them, so the rate lies between that of the
    caches and that of main memory.
    """
    caches = [level for level in levels[:-1] if level.capacity_bytes >= working_set_bytes]
    rates = [level.bytes_per_second for level in (*caches, *levels[-1:])]
    if not rates or any(rate is None for rate in rates):
        return None  # one that holds it may be faster than any figure there is
    top = max(rate for rate in rates if rate is not None)
    last = None if caches or not levels[:-1] else levels[-2].bytes_per_second
    if last is None:
        return top
    cached = min(1.0, sum(cache.capacity_bytes for cache in levels[:-1]) / working_set_bytes)
    return max(top, 1.0 / ((1.0 - cached) / top + cached / last))


def of_job(job: Job, seconds: float, cold: bool) -> list[Note]:
    """Return ``check`` of the time of a job's call; of arithmetic in several formats, such as
    "float32", the fastest counts.

    The device's ceilings are asked for only where a count is known, and a suspicion that rests on a
    measured one is checked with a new one.
    """
    if (not job.flops and not job.nbytes) or seconds <= 0:
        return []
    stated = devices.spec(job.device)
    dtypes = work_arrays.dtypes_in(job.args)
    from_catalogue = inspect.ismethod(job.fn) and isinstance(job.fn.__self__, Workload)
    # A function of the caller's own may enter autocast where nobody sees it. It casts no float64
    # (PyTorch, torch.amp, "Op Eligibility").
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
        is_measured = job.nbytes and job.device.is_cpu
        if not is_measured or all(note.code != "implausible" for note in notes):
            break
    return notes


def _levels(device: Device, refresh: bool) -> tuple[MemoryLevel, ...]:
    """Return the levels of memory as stated; a CPU's must be measured, once for the life of the
    process, or again with ``refresh``.
    """
    stated = devices.spec(device).levels
    if not device.is_cpu and all(level.bytes_per_second is not None for level in stated):
        return stated
    measured: dict[str, float] = {}  # the highest of both
    for again in (False, True) if refresh else (False,):
        for level in devices.ceilings(device, refresh=again).levels:
            found = level.bytes_per_second or math.inf
            measured[level.name] = max(found, measured.get(level.name, 0.0))
    levels = []
    for level in stated:
        room = _DRAM_ROOM if level is stated[-1] else _CACHE_ROOM
        bound, source, rate = level.bytes_per_second, level.source, measured.get(level.name)
        if rate is not None:
            bound = room * rate if bound is None else min(bound, room * rate)
            words = format_bytes_per_second(rate) if rate < math.inf else "too high to measure"
            source = (
                f"measured on this machine as {words}, plus a margin of {100 * (room - 1):.0f} %"
            )
        levels.append(level._replace(bytes_per_second=bound, source=source))
    return tuple(levels)
