"""The ceiling of a device, put together from what ``gpulab.devices`` states (``spec``) and has
measured (``ceilings``).

Stated peaks are upper bounds by construction. A measured rate is what one stream reached at a
moment when another process may have been running, so a margin is added to it, and it is measured
again before a figure is called impossible because of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpulab import devices
from gpulab.devices import Device
from gpulab.evidence import Note
from gpulab.timing import plausibility
from gpulab.timing.plausibility import Ceiling, Level
from gpulab.units import format_bytes_per_second

# Room above a measured rate: of main memory a fourth (streams of 58 GB/s were seen beside a
# measured ceiling of 41 on a busy machine); of a cache as much again, for short streams are slowed
# down by the start of their threads.
_DRAM_ROOM = 1.25
_CACHE_ROOM = 2.0


def of(device: Device, dtypes: Iterable[str], memory: bool, refresh: bool = False) -> Ceiling:
    """Return the ceiling of a device.

    Parameters
    ----------
    device : Device
    dtypes : iterable of str
        The formats of the arithmetic, such as "float32"; the fastest counts, and with none the
        fastest of the device.
    memory : bool
        Whether the levels of memory are wanted: a CPU's must be measured, once for the life of the
        process.
    refresh : bool
        Measure again.
    """
    stated = devices.spec(device)
    peaks = [figure for figure in map(stated.peak, dtypes) if figure is not None] or list(
        stated.flops_per_second.values()
    )
    peak = max(peaks, key=lambda figure: figure.value, default=None)
    levels = _levels(device, refresh) if memory else ()
    return Ceiling(
        peak.value if peak is not None else None,
        levels,
        peak.source if peak is not None else "not stated",
    )


def _levels(device: Device, refresh: bool) -> tuple[Level, ...]:
    stated = devices.spec(device).levels
    if not device.is_cpu and all(level.bytes_per_second is not None for level in stated):
        return tuple(
            Level(level.name, level.capacity_bytes, level.bytes_per_second, level.source)
            for level in stated
        )
    before = _measured(device, False)
    now = _measured(device, True) if refresh else before
    levels = []
    for level in stated:
        room = _DRAM_ROOM if level is stated[-1] else _CACHE_ROOM
        rates = [room * found[level.name] for found in (before, now) if level.name in found]
        bounds = [
            rate for rate in (level.bytes_per_second, max(rates, default=None)) if rate is not None
        ]
        source = (
            f"measured on this machine as {_rate(max(rates) / room)}, plus a margin of "
            f"{100 * (room - 1):.0f} %"
            if rates
            else level.source
        )
        levels.append(Level(level.name, level.capacity_bytes, min(bounds, default=None), source))
    return tuple(levels)


def _rate(bytes_per_second: float) -> str:
    return (
        format_bytes_per_second(bytes_per_second)
        if math.isfinite(bytes_per_second)
        else "too high to measure"
    )


def _measured(device: Device, refresh: bool) -> dict[str, float]:
    return {
        level.name: level.bytes_per_second or math.inf
        for level in devices.ceilings(device, refresh=refresh).levels
    }


def check(
    device: Device,
    dtypes: tuple[str, ...],
    seconds: float,
    flops: float | None,
    nbytes: float | None,
    working_set_bytes: float | None,
    first_seconds: float | None,
) -> list[Note]:
    """Return ``plausibility.check`` of a time on a device; a suspicion that rests on a measured
    ceiling is checked with a new one.
    """
    memory = bool(nbytes)
    notes = plausibility.check(
        seconds, flops, nbytes, working_set_bytes, of(device, dtypes, memory), first_seconds
    )
    if memory and device.is_cpu and any(note.code == "implausible" for note in notes):
        notes = plausibility.check(
            seconds,
            flops,
            nbytes,
            working_set_bytes,
            of(device, dtypes, memory, refresh=True),
            first_seconds,
        )
    return notes
