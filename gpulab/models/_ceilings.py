"""``roofline(device)``: the roofs of a device, from rates just measured, from its data sheet, or
from a recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from gpulab import devices, recordings
from gpulab._given import callback, flag, word
from gpulab.devices import _datasheets, _spec
from gpulab.errors import DeviceError, InputError, shown
from gpulab.evidence import Evidence, Note
from gpulab.models._roofline import ArithmeticRoof, MemoryRoof, Roofline

CEILINGS = ("measured", "datasheet", "recorded")


def roofline(
    device: Any = None,
    ceilings: str | None = None,
    refresh: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Roofline:
    """Return the roofs of a device; ``place`` and ``place_workload`` put work beneath them.

    Parameters
    ----------
    device : Device, str or Recording, optional
        A device of this machine ("cpu", "cuda:0"; None takes the best one available), a product
        such as "H200" or "GeForce RTX 4090", a ``Recording``, or the name of one such as
        "nvidia-h200".
    ceilings : str, optional
        "measured": the best streams and matrix products of this machine, run now (about a second,
        once for the life of the process). "datasheet": what the vendor states, or the widths and
        clocks of a CPU, whose main memory has no stated rate. "recorded": the same streams and
        products on the recorded machine. None takes "measured" for a device of this machine, and
        the available kind for the others.
    refresh : bool
        Measure again instead of taking what this process measured before.
    stop : callable, optional
        Called while measuring; once it returns True, the measurement ends after the current call.

    Returns
    -------
    Roofline
        Each roof with its badge: MEASURED, MODELLED (data sheet) or RECORDED.

    Raises
    ------
    DeviceError
        If there is neither such a device nor such a product or recording.
    InputError
        If ``ceilings`` is not one of these names, or the recording has no ceilings.
    RecordingError
        If the recording is missing or damaged.
    StoppedError
        If it was stopped.

    Examples
    --------
    >>> h200 = roofline("H200")
    >>> round(h200.ridge_flops_per_byte("float32"), 1), h200.evidence.badge.value
    (14.0, 'MODELLED')
    >>> h200.place("axpy", flops=2e9, nbytes=12e9).bound_by
    'memory'
    """
    if ceilings is not None:
        word("roofline", "ceilings", ceilings, CEILINGS)
    if isinstance(device, recordings.Recording) and ceilings in (None, "recorded"):
        return _recorded(device)
    if ceilings == "recorded" or (
        ceilings is None and isinstance(device, str) and device in recordings.names()
    ):
        return _recorded(recordings.load(device))
    if ceilings != "measured" and isinstance(device, str) and _datasheets.part(device) is not None:
        known = _spec.gpu_spec(devices.Accelerator(device=None, name=device, kind="cuda"), device)
        return _from_levels(
            known.name, known.kind, known.flops_per_second.items(), known.levels, known.evidence
        )
    try:
        where = devices.find(device)
    except DeviceError as error:
        products = ", ".join(part.name for part in _datasheets.PARTS[:3])
        there = ", ".join(recordings.names()) or "none yet"
        raise DeviceError(
            f"roofline: {shown(device)} is not a device of this machine, a known product, or a "
            "recording; expected one of "
            f"{', '.join(map(str, devices.available()))}; a product such as {products}; or a "
            f"recording ({there}). Pass one of these."
        ) from error
    if ceilings == "datasheet":
        stated = devices.spec(where)
        return _from_levels(
            stated.name,
            stated.kind,
            stated.flops_per_second.items(),
            stated.levels,
            stated.evidence,
        )
    shown_now = devices.ceilings(
        where, refresh=flag("roofline", "refresh", refresh), stop=callback("roofline", "stop", stop)
    )
    rates = {
        name: devices.Figure(rate, "the fastest matrix product, just measured")
        for name, rate in shown_now.flops_per_second.items()
    }
    return _from_levels(
        where.name, where.kind, rates.items(), shown_now.levels, shown_now.evidence, shown_now.notes
    )


def _from_levels(
    name: str,
    kind: str,
    rates: Iterable[tuple[str, devices.Figure]],
    levels: Iterable[devices.MemoryLevel],
    evidence: Evidence,
    notes: tuple[Note, ...] = (),
) -> Roofline:
    return Roofline(
        device=name,
        arithmetic=tuple(
            ArithmeticRoof(arithmetic, figure.value, figure.source, evidence)
            for arithmetic, figure in rates
        ),
        memory=tuple(
            MemoryRoof(
                level.name, level.bytes_per_second, level.capacity_bytes, level.source, evidence
            )
            for level in levels
            if level.bytes_per_second is not None
        ),
        points=(),
        notes=notes,
        evidence=evidence,
        device_kind=kind,
    )


def _recorded(recording: recordings.Recording) -> Roofline:
    """Main memory as the best of copy and triad, and the matrix product of each number format."""
    products, streams = [], []
    for entry in recording.select("ceilings"):
        timing, evidence = entry.timing, recording.evidence(entry)
        if timing is None:
            continue
        source = f"{entry.params.get('operation')} recorded on {recording.name}"
        if timing.flops:
            products.append(
                ArithmeticRoof(
                    str(entry.params["dtype"]),
                    timing.flops / timing.median_seconds,
                    source,
                    evidence,
                )
            )
        elif timing.nbytes:
            streams.append(
                MemoryRoof(
                    "DRAM", timing.nbytes / timing.median_seconds, math.inf, source, evidence
                )
            )
    if not products or not streams:
        raise InputError(
            f"roofline: the recording {recording.name!r} has no ceilings; expected streams and "
            "matrix products. "
            "Record them with `gpulab record`, or pass a product's name for its data sheet."
        )
    best = max(streams, key=lambda roof: roof.bytes_per_second)
    where = recording.environment
    return Roofline(
        where.device, tuple(products), (best,), (), (), recording.evidence(), where.device_kind
    )
