"""How much memory is free on a device now, or a capacity that the caller gives."""

from __future__ import annotations

from typing import Any

from gpulab import _given, devices
from gpulab.errors import DeviceError, InputError


def free_bytes_of(device: Any, kind: str) -> tuple[int, str]:
    """Return (free bytes, device kind) of a device, or of a bare capacity in bytes, then of the kind given."""
    if _given.is_whole(device):
        if device < 0:
            raise InputError(f"fits: the capacity is {device} bytes; expected 0 or more. Pass for example parse_bytes('24 GiB').")
        return int(device), kind
    where = devices.find(device)
    free = where.free_bytes
    if free is None:
        raise DeviceError(f"fits: {where} does not report how much memory is free; expected a number. Pass a capacity in bytes.")
    return free, where.kind
