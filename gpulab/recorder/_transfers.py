"""The link between host and device: copies of every size both ways, and copy overlapping with
compute.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulab import transfer
from gpulab.devices import Device
from gpulab.recorder._registry import FIRST, SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement

# 1 KiB to 1 GiB in powers of two; every fourth one first, so that a short budget still shows the
# curve's shape.
POWERS = range(10, 31)
OVERLAP_BYTES = (2**24, 2**28)
OVERLAP_CHUNKS = (2, 4, 8, 16, 32)
ARRANGEMENTS = ("serial", "chunked")


def _copy_case(device: Device, direction: str, memory: str, power: int) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        return transfer.measure_copy(2**power, direction, memory, device, deadline=deadline_seconds)

    return Case(
        {"direction": direction, "memory": memory, "nbytes": 2**power},
        time,
        FIRST if power % 4 == 2 else SECOND,
    )


def _copy_cases(device: Device) -> Iterable[Case]:
    series = (
        [("host", "pageable")]
        if device.is_cpu
        else [(d, m) for m in ("pinned", "pageable") for d in ("to_device", "to_host")]
    )
    for direction, memory in series:
        for power in POWERS:
            yield _copy_case(device, direction, memory, power)


def _overlap_case(device: Device, nbytes: int, chunks: int, arrangement: str) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        both = transfer.measure_overlap(nbytes, chunks, device, deadline=2 * deadline_seconds)
        return both[ARRANGEMENTS.index(arrangement)]

    return Case(
        {"arrangement": arrangement, "nbytes": nbytes, "chunks": chunks},
        time,
        SECOND if chunks == 8 else THIRD,
    )


def _overlap_cases(device: Device) -> Iterable[Case]:
    for nbytes in OVERLAP_BYTES:
        for chunks in OVERLAP_CHUNKS:
            for arrangement in ARRANGEMENTS:
                yield _overlap_case(device, nbytes, chunks, arrangement)


register(
    Experiment(
        "transfer",
        "copies of 1 KiB to 1 GiB in both directions, pageable and pinned (on a CPU: the host copy)",
        _copy_cases,
    )
)
register(
    Experiment(
        "overlap",
        "copy and compute one after the other, and in chunks at the same time",
        _overlap_cases,
    )
)
