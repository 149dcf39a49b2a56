"""Two traps of pinned memory and non-blocking copies: what pinning costs, and reading before the copy is done."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gpulab import _given, devices, timing
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.transfer._copies import can_pin, check_room, measure_copy
from gpulab.transfer._links import check_bytes
from gpulab.transfer.results import PinningCost, StaleRead

# Elements looked at: enough for a share, few enough that looking is quick against the copy.
_LOOKED_AT = 4096
_OLD, _NEW = 0, 1


def pinning_cost(nbytes: int = 64 * 2**20, device: Any = None, deadline: float = 3.0) -> PinningCost:
    """Measure what ``tensor.pin_memory()`` costs, and the copies that it makes faster.

    Parameters
    ----------
    nbytes : int
    device : Device or str, optional
    deadline : float
        Seconds for the three measurements together.

    Raises
    ------
    InputError
        If the size is not a positive whole number, the deadline is not a number of seconds, or the device has no pinned memory.
    OutOfMemoryError
        If the buffers do not fit.
    """
    import torch

    size = check_bytes("pinning_cost", nbytes)
    share = _given.deadline("pinning_cost", deadline) / 3
    where = devices.find(device)
    if not can_pin(where):
        raise InputError(f"pinning_cost: {where.name} has no pinned memory; expected CUDA. Use a recorded machine instead.")
    check_room("pinning_cost", where, "to_device", 2 * size)
    source = torch.ones(size, dtype=torch.uint8)
    pin = timing.measure(source.pin_memory, device="cpu", deadline=share, label="pin_memory")
    pinned = measure_copy(size, "to_device", "pinned", where, deadline=share)
    pageable = measure_copy(size, "to_device", "pageable", where, deadline=share)
    samples = sum(len(m.samples_seconds) for m in (pin, pinned, pageable))
    return PinningCost(
        size,
        pin.median_seconds,
        pinned.median_seconds,
        pageable.median_seconds,
        Evidence.measured(where.name, samples, pinned.environment.date),
    )


def stale_read(nbytes: int = 256 * 2**20, device: Any = None) -> StaleRead:
    """Start a copy without waiting, read the target at once, wait, read again.

    On CUDA a non-blocking copy into pinned memory; elsewhere a thread does the copy, as a copy engine would.

    Parameters
    ----------
    nbytes : int
        Large copies take longer, so more of the target is stale.
    device : Device or str, optional

    Returns
    -------
    StaleRead
        ``stale_ratio`` of the first reading (it differs from run to run), ``after_ratio`` of the second: zero.

    Raises
    ------
    InputError
        If the size is not a positive whole number.
    OutOfMemoryError
        If the buffers do not fit.
    """
    size = check_bytes("stale_read", nbytes)
    where = devices.find(device)
    on_gpu = where.torch_type == "cuda"
    check_room("stale_read", where, "to_host" if on_gpu else "host", size)
    at_once, after = _gpu_readings(size, where) if on_gpu else _thread_readings(size)
    who = where if on_gpu else devices.find("cpu")  # where a thread makes the copy, no accelerator has a part in it
    return StaleRead(size, at_once, after, Evidence.measured(who.name, 1))


def _stale_ratio(target: np.ndarray) -> float:
    """Return the share of old values among elements spread over the array."""
    return float(np.mean(target[:: max(1, len(target) // _LOOKED_AT)] == _OLD))


def _gpu_readings(nbytes: int, device: devices.Device) -> tuple[float, float]:
    import torch

    with devices.guard(f"stale_read: copying {nbytes} bytes from {device.name}"):
        source = torch.full((nbytes,), _NEW, dtype=torch.uint8, device=str(device))
        target = torch.full((nbytes,), _OLD, dtype=torch.uint8).pin_memory()
        device.synchronize()
        target.copy_(source, non_blocking=True)
        at_once = _stale_ratio(target.numpy())
        device.synchronize()
        return at_once, _stale_ratio(target.numpy())


def _thread_readings(nbytes: int) -> tuple[float, float]:
    source, target = np.full(nbytes, _NEW, dtype=np.uint8), np.full(nbytes, _OLD, dtype=np.uint8)
    copy = threading.Thread(target=np.copyto, args=(target, source), name="copy engine")
    copy.start()
    at_once = _stale_ratio(target)
    copy.join()
    return at_once, _stale_ratio(target)
