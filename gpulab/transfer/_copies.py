"""One copy between two buffers that are there already, and its measurement: what a sweep repeats
over sizes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _backends, _given, devices, timing
from gpulab.devices import Device
from gpulab.errors import InputError, OutOfMemoryError
from gpulab.timing import Measurement
from gpulab.transfer._links import check_bytes
from gpulab.transfer.results import SERIES_WORDS
from gpulab.units import format_bytes
from gpulab.workloads._fits import MARGIN, free_bytes

DIRECTIONS = ("to_device", "to_host")
MEMORY = ("pageable", "pinned")

# The precision asked of each point: a quarter of what a fit's curve is uncertain by.
_RELATIVE_WIDTH = 0.02


@dataclass(frozen=True)
class Buffers:
    """Two buffers of one size, and the copy between the first bytes of both.

    ``copy(nbytes)`` returns a function of no arguments that has copied when it returns.
    """

    direction: str
    memory: str
    largest: int
    copy: Callable[[int], Callable[[], Any]]


def check_series(function: str, direction: str, memory: str, device: Device, library: str) -> None:
    """Return normally if this copy is possible.

    Raises
    ------
    InputError
        If a name is not known, or the device has no such copy.
    """
    _given.word(function, "direction", direction, (*DIRECTIONS, "host"))
    _given.word(function, "memory", memory, MEMORY)
    _given.word(function, "library", library, ("torch", "cupy"))
    if direction == "host":
        return
    if device.is_cpu:
        raise InputError(
            f"{function}: {device.name} has no link to copy over; expected an accelerator. Pass "
            "direction='host' or a link."
        )
    if library == "cupy" and device.torch_type != "cuda":
        raise InputError(
            f"{function}: cupy has no arrays on {device.name}; expected a CUDA device. Pass "
            "library='torch'."
        )
    if memory == "pinned" and not can_pin(device):
        raise InputError(
            f"{function}: {device.name} has no pinned memory to copy from; expected CUDA. Pass "
            "memory='pageable'."
        )


def can_pin(device: Device) -> bool:
    """Return whether copies to a device can go from page-locked memory (Apple's GPUs share the
    host's memory).
    """
    return device.torch_type in ("cuda", "xpu")


def check_room(function: str, device: Device, direction: str, nbytes: int) -> None:
    """Return normally if two buffers of ``nbytes`` fit: one on the host and one on the device, or
    both on the host.

    Raises
    ------
    OutOfMemoryError
        If they do not; nothing has been allocated.
    """
    host = Device("cpu")
    needs = (
        [(host, 2.0)]
        if direction == "host" or device.kind == "mps"
        else [(host, 1.0), (device, 1.0)]
    )
    for place, times in needs:
        free = free_bytes(place)
        if free is not None and nbytes * times * MARGIN > free:
            raise OutOfMemoryError(
                f"{function}: buffers of {format_bytes(nbytes)} do not fit into the "
                f"{format_bytes(free)} that are free on {place.name}; "
                f"expected at most {format_bytes(free / times / MARGIN)}. Pass a smaller size."
            )


def make_buffers(direction: str, memory: str, device: Device, library: str, nbytes: int) -> Buffers:
    """Allocate both buffers, touched once so that the system has really given the memory."""
    make = _host_copy if direction == "host" else _cupy_copy if library == "cupy" else _torch_copy
    return Buffers(direction, memory, nbytes, make(direction, memory, device, nbytes))


def _host_copy(
    direction: str, memory: str, device: Device, nbytes: int
) -> Callable[[int], Callable[[], Any]]:
    source, target = np.ones(nbytes, dtype=np.uint8), np.zeros(nbytes, dtype=np.uint8)

    def copy(size: int) -> Callable[[], Any]:
        a, b = source[:size], target[:size]
        return lambda: np.copyto(b, a)

    return copy


def _torch_copy(
    direction: str, memory: str, device: Device, nbytes: int
) -> Callable[[int], Callable[[], Any]]:
    import torch

    pinned = memory == "pinned"
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned).fill_(1)
    there = torch.zeros(nbytes, dtype=torch.uint8, device=str(device))
    source, target = (host, there) if direction == "to_device" else (there, host)

    def copy(size: int) -> Callable[[], Any]:
        a, b = source[:size], target[:size]

        def once() -> None:
            # The wait belongs to each copy: without it short copies would queue up and hide their
            # latency.
            b.copy_(a, non_blocking=pinned)
            device.synchronize()

        return once

    return copy


def _cupy_copy(
    direction: str, memory: str, device: Device, nbytes: int
) -> Callable[[int], Callable[[], Any]]:
    cupy = _backends.backend("cupy").module
    if memory == "pinned":
        cupyx = importlib.import_module("cupyx")

        host = cupyx.empty_pinned((nbytes,), np.uint8)
        host[:] = 1
    else:
        host = np.ones(nbytes, dtype=np.uint8)
    with cupy.cuda.Device(device.index):
        there = cupy.zeros(nbytes, dtype=cupy.uint8)

    def copy(size: int) -> Callable[[], Any]:
        a, b = host[:size], there[:size]

        def once() -> None:
            with cupy.cuda.Device(device.index):
                if direction == "to_device":
                    b.set(a)
                else:
                    b.get(out=a)
                cupy.cuda.get_current_stream().synchronize()

        return once

    return copy


def measure_buffers(
    buffers: Buffers,
    nbytes: int,
    device: Device,
    deadline: float,
    *,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> Measurement:
    """Measure one size of buffers that are there."""
    words = SERIES_WORDS[buffers.direction]
    return timing.measure(
        buffers.copy(nbytes),
        device=Device("cpu") if buffers.direction == "host" else device,
        relative_width=_RELATIVE_WIDTH,
        deadline=deadline,
        nbytes=nbytes,
        clock=clock,
        label=f"{words} {buffers.memory} {format_bytes(nbytes)}",
        stop=stop,
    )


def measure_copy(
    nbytes: int,
    direction: str = "to_device",
    memory: str = "pageable",
    device: Any = None,
    *,
    library: str = "torch",
    deadline: float = 1.0,
    stop: Callable[[], bool] | None = None,
) -> Measurement:
    """Measure one copy of ``nbytes`` bytes between buffers that are there already.

    Parameters
    ----------
    nbytes : int
    direction : str
        "to_device", "to_host", or "host" for a copy within host memory by one thread.
    memory : str
        "pageable" or "pinned" host buffer; within host memory "pageable".
    device : Device or str, optional
    library : str
        "torch" or "cupy".
    deadline : float
        Seconds.
    stop : callable, optional

    Returns
    -------
    Measurement

    Raises
    ------
    InputError
        If a size is not a positive whole number, or the device has no such copy.
    OutOfMemoryError
        If the buffers do not fit; nothing has been allocated.
    DeviceError
        If pinned memory cannot be allocated.

    Examples
    --------
    >>> measure_copy(4096, direction="host", deadline=0.05).device
    'cpu'
    """
    size = check_bytes("measure_copy", nbytes)
    where = devices.find("cpu" if isinstance(direction, str) and direction == "host" else device)
    check_series("measure_copy", direction, memory, where, library)
    if direction == "host" and memory == "pinned":
        raise InputError(
            "measure_copy: memory='pinned' for a copy within host memory, which uses no link; "
            "expected memory='pageable', the only kind "
            "that is measured there. Leave it out."
        )
    check_room("measure_copy", where, direction, size)
    return measure_buffers(
        allocate("measure_copy", direction, memory, where, library=library, nbytes=size),
        size,
        where,
        deadline,
        stop=stop,
    )


def allocate(
    function: str, direction: str, memory: str, device: Device, *, library: str, nbytes: int
) -> Buffers:
    """Return buffers, or raise an error that states why the system refused them.

    Raises
    ------
    OutOfMemoryError
        If memory ran out although there seemed to be enough.
    DeviceError
        If the device vanished.
    """
    with devices.guard(
        f"{function}: taking {memory} buffers of {format_bytes(nbytes)} for {device.name}"
    ):
        return make_buffers(direction, memory, device, library, nbytes)
