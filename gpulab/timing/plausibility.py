"""Plausibility: a rate above the device's limit means that the clock missed some work.

``check`` and what it calls are pure rules over a ``Ceiling``. The ceiling of a device is put
together from what ``gpulab.devices`` states (``spec``) and has measured (``ceilings``). Stated
peaks are upper bounds by construction. A measured rate is what one stream reached at a moment when
another process may have been running, so a margin is added to it, and it is measured again before a
figure is called impossible because of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpulab import devices
from gpulab.devices import Device
from gpulab.evidence import Note
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_ratio,
)

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


@dataclass(frozen=True)
class Level:
    """One level of the memory hierarchy.

    Attributes
    ----------
    name : str
        Such as "L2" or "DRAM".
    capacity_bytes : float
        What it holds; infinite for the last.
    bytes_per_second : float or None
        The most it can deliver to the whole device; None where not known.
    source : str
        Where the figure comes from, for the sentence.
    """

    name: str
    capacity_bytes: float
    bytes_per_second: float | None
    source: str = "stated"


@dataclass(frozen=True)
class Ceiling:
    """The most that a device can reach.

    Attributes
    ----------
    flops_per_second : float or None
        The fastest arithmetic that the settings permit; None where not known.
    levels : tuple of Level
        From the fastest to main memory.
    source : str
        Where the figures come from, for the sentence.
    """

    flops_per_second: float | None
    levels: tuple[Level, ...]
    source: str


def check(
    seconds: float,
    flops: float | None,
    nbytes: float | None,
    working_set_bytes: float | None,
    ceiling: Ceiling,
    first_seconds: float | None = None,
) -> list[Note]:
    """Return the notes ``implausible`` and ``warm-cache`` that apply to a time.

    Parameters
    ----------
    seconds : float
        Of one call.
    flops, nbytes : float or None
        Of one call; None or 0 where not known.
    working_set_bytes : float or None
        The distinct bytes that a call touches; ``nbytes`` where None.
    ceiling : Ceiling
    first_seconds : float, optional
        Of the first call, which may have found the caches cold; None where every call did.

    Notes
    -----
    The arithmetic ceiling holds for the fastest unit; the memory ceiling is that of the fastest
    level that holds the working set.
    """
    if seconds <= 0:
        return (
            [
                Note(
                    "implausible",
                    "the time is zero: the clock did not register the work. Do more work per call, "
                    "or check the clock.",
                )
            ]
            if flops or nbytes
            else []
        )
    note = _too_much_arithmetic(seconds, flops, ceiling) or _too_much_traffic(
        seconds, nbytes, working_set_bytes, ceiling
    )
    if note is not None:
        return [note]
    warm = _warm_cache(seconds, nbytes, working_set_bytes, ceiling, first_seconds)
    return [warm] if warm is not None else []


def _implausible(rate: str, ratio: float, limit: str, source: str) -> Note:
    return Note(
        "implausible",
        f"{rate} is {format_ratio(ratio)} of what this device can reach ({limit}, {source}). Did "
        "you forget to synchronize? Wait for the device, or for the thread, before the clock is "
        "read; or check flops and nbytes.",
    )


def _too_much_arithmetic(seconds: float, flops: float | None, ceiling: Ceiling) -> Note | None:
    top = ceiling.flops_per_second
    if not flops or not top or flops / seconds <= ALLOWANCE * top:
        return None
    return _implausible(
        format_flops_per_second(flops / seconds),
        flops / seconds / top,
        format_flops_per_second(top),
        ceiling.source,
    )


def _too_much_traffic(
    seconds: float, nbytes: float | None, working_set: float | None, ceiling: Ceiling
) -> Note | None:
    if not nbytes:
        return None
    size = nbytes if working_set is None else working_set
    top = fastest_rate(size, ceiling.levels)
    if top is None or nbytes / seconds <= ALLOWANCE * top:
        return None
    level = holding(size, ceiling.levels)
    alone = level.bytes_per_second
    helped = (
        " and the part that the caches may hold"
        if level is ceiling.levels[-1] and alone is not None and top > alone
        else ""
    )
    limit = f"{format_bytes_per_second(top)} from {level.name}"
    return _implausible(
        format_bytes_per_second(nbytes / seconds),
        nbytes / seconds / top,
        limit,
        f"{level.source}{helped}",
    )


def holding(working_set_bytes: float, levels: tuple[Level, ...]) -> Level:
    """Return the first level, from the fastest, that holds the working set; the last where none
    does.
    """
    return next(
        (level for level in levels if level.capacity_bytes >= working_set_bytes), levels[-1]
    )


def fastest_rate(working_set_bytes: float, levels: tuple[Level, ...]) -> float | None:
    """Return the highest rate that memory allows for a working set, in bytes per second; None where
    not known.

    That of the fastest level that holds it. Of a working set larger than the caches, a part as
    large as all caches together may still come from them, so the rate lies between that of the
    caches and that of main memory.
    """
    if not levels:
        return None
    level = holding(working_set_bytes, levels)
    rates = [one.bytes_per_second for one in levels[levels.index(level) :]]
    if any(rate is None for rate in rates):
        return None  # one that holds it may be faster than any figure there is
    top = max(rate for rate in rates if rate is not None)
    caches = levels[:-1]
    if level is not levels[-1] or not caches or caches[-1].bytes_per_second is None:
        return top
    cached = min(1.0, sum(cache.capacity_bytes for cache in caches) / working_set_bytes)
    return max(top, 1.0 / ((1.0 - cached) / top + cached / caches[-1].bytes_per_second))


def _warm_cache(
    seconds: float,
    nbytes: float | None,
    working_set: float | None,
    ceiling: Ceiling,
    first_seconds: float | None,
) -> Note | None:
    if not nbytes or not ceiling.levels:
        return None
    size = nbytes if working_set is None else working_set
    memory = ceiling.levels[-1]
    caches = [level for level in ceiling.levels[:-1] if level.capacity_bytes >= size]
    if not caches or memory.bytes_per_second is None:
        return None
    if nbytes / seconds > ALLOWANCE * memory.bytes_per_second:
        ratio = format_ratio(nbytes / seconds / memory.bytes_per_second)
        sign = (
            f"{format_bytes_per_second(nbytes / seconds)} is {ratio} of what {memory.name} delivers"
        )
    elif first_seconds is not None and first_seconds - seconds > max(
        _COLD_SHARE * seconds, size / memory.bytes_per_second
    ):
        sign = (
            f"the first call, which did not find them there, took {first_seconds / seconds:.1f} "
            "times as long"
        )
    else:
        return None
    return Note(
        "warm-cache",
        f"the {format_bytes(size)} fit into {caches[0].name} "
        f"({format_bytes(caches[0].capacity_bytes)}), and {sign}: the data was still in the cache "
        "from the previous call. Real data may not be; cold=True empties the caches before each "
        "call.",
    )


def check_on_device(
    device: Device,
    dtypes: tuple[str, ...],
    seconds: float,
    flops: float | None,
    nbytes: float | None,
    working_set_bytes: float | None,
    first_seconds: float | None,
) -> list[Note]:
    """Return ``check`` of a time on a device; of arithmetic in several formats, such as "float32",
    the fastest counts.

    A suspicion that rests on a measured ceiling is checked with a new one.
    """
    stated = devices.spec(device)
    peaks = [figure for figure in map(stated.peak, dtypes) if figure is not None]
    peak = max(
        peaks or stated.flops_per_second.values(), key=lambda figure: figure.value, default=None
    )
    notes: list[Note] = []
    for refresh in (False, True):
        ceiling = Ceiling(
            None if peak is None else peak.value,
            _levels(device, refresh) if nbytes else (),
            "not stated" if peak is None else peak.source,
        )
        notes = check(seconds, flops, nbytes, working_set_bytes, ceiling, first_seconds)
        if not (nbytes and device.is_cpu and any(note.code == "implausible" for note in notes)):
            break
    return notes


def _levels(device: Device, refresh: bool) -> tuple[Level, ...]:
    """Return the levels of memory as stated; a CPU's must be measured, once for the life of the
    process, or again with ``refresh``.
    """
    stated = devices.spec(device).levels
    if not device.is_cpu and all(level.bytes_per_second is not None for level in stated):
        return tuple(
            Level(level.name, level.capacity_bytes, level.bytes_per_second, level.source)
            for level in stated
        )
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
        levels.append(Level(level.name, level.capacity_bytes, bound, source))
    return tuple(levels)
