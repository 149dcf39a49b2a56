"""The memory hierarchy: latency by dependent loads and bandwidth by streams, over working sets."""

from __future__ import annotations

from collections.abc import Iterable

from gpulab import hierarchy
from gpulab.devices import Device
from gpulab.recorder._registry import FIRST, SECOND, Case, Experiment, register
from gpulab.timing import Measurement

# Two sizes a doubling: 4 KiB to 64 MiB on a CPU, to 512 MiB on a GPU; every fourth doubling first,
# so that a short budget shows the levels.
_FIRST_POWER, _LAST_POWER = 12, {"cpu": 26, "gpu": 29}
# A GPU's stream needs a set that all of its multiprocessors share.
_FIRST_STREAM_POWER = {"cpu": 12, "gpu": 20}


def _sizes(device: Device, first: int) -> Iterable[tuple[int, int]]:
    last = _LAST_POWER["cpu" if device.is_cpu else "gpu"]
    for power in range(first, last + 1):
        yield 2**power, FIRST if power % 4 == 2 else SECOND
        if power < last:
            yield 3 * 2 ** (power - 1), SECOND


def _can(device: Device) -> bool:
    return device.is_cpu or device.torch_type == "cuda"


def _chase_case(device: Device, nbytes: int, rank: int) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        return hierarchy.measure_chase(nbytes, device, deadline=deadline_seconds)

    return Case(
        {
            "nbytes": nbytes,
            "method": hierarchy.chase_method(device),
            "hops": hierarchy.HOPS_PER_CALL,
        },
        time,
        rank,
    )


def _chase_cases(device: Device) -> Iterable[Case]:
    if _can(device):
        for nbytes, rank in _sizes(device, _FIRST_POWER):
            yield _chase_case(device, nbytes, rank)


def _stream_case(device: Device, nbytes: int, operation: str, rank: int) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        return hierarchy.measure_stream(nbytes, device, operation, deadline=deadline_seconds)

    return Case({"nbytes": nbytes, "operation": operation}, time, rank)


def _stream_cases(device: Device) -> Iterable[Case]:
    if _can(device):
        for nbytes, rank in _sizes(device, _FIRST_STREAM_POWER["cpu" if device.is_cpu else "gpu"]):
            yield _stream_case(device, nbytes, "read", rank)


register(
    Experiment(
        "latency",
        "the time of dependent loads (each load gives the address of the next), over working sets",
        _chase_cases,
    )
)
register(
    Experiment(
        "bandwidth",
        "bytes read per second over working sets: one core of a CPU, or a whole GPU",
        _stream_cases,
    )
)
