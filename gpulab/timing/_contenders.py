"""What is compared: the same work on several devices, or several functions on one device.

Everything that can be wrong with the request is said here, before anything is allocated or run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulab import _given, workloads
from gpulab import devices as _devices
from gpulab.devices import Device
from gpulab.errors import InputError, kind_of, shown
from gpulab.timing import _copies, _work
from gpulab.timing._job import Job
from gpulab.workloads import Workload

Functions = Mapping[str, Callable[..., Any]]


@dataclass
class Contender:
    """One row of a comparison before it is measured."""

    name: str
    job: Job
    workload: Workload | None = None


@dataclass(frozen=True)
class Field:
    """All contenders, and what the whole is called."""

    label: str
    contenders: list[Contender]
    methods: bool = False


def gather(
    work: str | Workload | Callable[..., Any] | Functions,
    args: tuple[Any, ...],
    devices: Any,
    clock: Callable[[], float],
    params: dict[str, Any],
) -> Field:
    """Return who is compared.

    Raises
    ------
    InputError
        If there is no such workload, a parameter does not fit it, or ``work`` cannot be compared.
    DeviceError, OutOfMemoryError
        If a device is not there, or the work does not fit.
    """
    if isinstance(work, (str, Workload)):
        return _of_workload(work, args, _places(devices), clock, params)
    unknown = sorted(set(params) - ({"dtype"} if params.get("dtype") == "float32" else set()))
    if unknown:
        raise InputError(
            f"compare: {', '.join(unknown)} are parameters of catalogue workloads, not of a "
            "function; expected only the "
            "function's arguments. Pass the function's inputs as arrays of the size and dtype that "
            "you want."
        )
    if isinstance(work, Mapping):
        return _of_methods(work, args, devices, clock)
    if not callable(work):
        raise InputError(
            f"compare: got {kind_of(work)}; expected the name of a workload "
            f"({', '.join(workloads.names()[:3])}, ...), a function, "
            'or a mapping of labels to functions. Write gl.compare("matmul") or gl.compare(f, x).'
        )
    return _of_function(work, args, _places(devices), clock)


def _places(devices: Any) -> tuple[Device, ...]:
    if devices is None:
        return _devices.available()
    several = (
        [devices]
        if isinstance(devices, (str, Device)) or not isinstance(devices, Iterable)
        else _given.items("compare", "devices", devices)
    )
    if not several:
        raise InputError(
            "compare: devices is empty; expected at least one device. Leave it out to use all "
            "devices of this machine."
        )
    places = tuple(_devices.find(device) for device in several)
    if len(set(places)) < len(places):
        raise InputError(
            f"compare: devices {', '.join(map(str, places))} contain a device twice; expected "
            "different devices. Remove the repetition."
        )
    return places


def _names(places: tuple[Device, ...]) -> list[str]:
    names = [place.name for place in places]
    return [
        f"{name} ({place})" if names.count(name) > 1 else name
        for name, place in zip(names, places, strict=True)
    ]


def _of_workload(
    work: str | Workload,
    args: tuple[Any, ...],
    places: tuple[Device, ...],
    clock: Callable[[], float],
    params: dict[str, Any],
) -> Field:
    if args:
        raise InputError(
            f"compare: {work if isinstance(work, str) else work.label} makes its own inputs; "
            "expected only its size and "
            f"dtype. Pass n=..., dtype=..."
        )
    w = work if isinstance(work, Workload) else workloads.get(work)(**params)
    for place in places:
        w.check(place)
    contenders = []
    for name, place in zip(_names(places), places, strict=True):
        job = Job(
            fn=w.run,
            args=w.inputs(place),
            device=place,
            given=True,
            label=w.label,
            clock=clock,
            read=None,
            flops=w.flops,
            nbytes=w.nbytes,
            working_set_bytes=w.working_set_bytes,
        )
        contenders.append(Contender(name, job, w))
    return Field(w.label, contenders)


def _of_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    places: tuple[Device, ...],
    clock: Callable[[], float],
) -> Field:
    host, label = _copies.on_host(args), _work.label_of(fn)
    contenders = []
    for name, place in zip(_names(places), places, strict=True):
        with _devices.guard(f"compare: copying the inputs of {label} to {place}"):
            placed = host if place.is_cpu else _copies.to_device_like(args, place)(host)
        contenders.append(
            Contender(
                name,
                Job(
                    fn=fn,
                    args=placed,
                    device=place,
                    given=True,
                    label=label,
                    clock=clock,
                    read=None,
                ),
            )
        )
    return Field(label, contenders)


def _of_methods(
    functions: Functions, args: tuple[Any, ...], devices: Any, clock: Callable[[], float]
) -> Field:
    wrong = [
        label if isinstance(label, str) else shown(label)
        for label, fn in functions.items()
        if not callable(fn) or not isinstance(label, str)
    ]
    if not functions or wrong:
        what = f"{', '.join(wrong)} are not" if wrong else "none are given; expected"
        raise InputError(
            f"compare: {what} functions under a label; expected a mapping such as {{'numpy': f, "
            f"'torch': g}}."
        )
    places = _places(devices) if devices is not None else ()
    if len(places) > 1:
        raise InputError(
            f"compare: {len(places)} devices for a mapping of functions; expected at most one. "
            "Compare the functions on one device "
            f"at a time."
        )
    contenders = []
    for label, fn in functions.items():
        place = places[0] if places else _work.device_of(fn, args) or Device("cpu")
        contenders.append(
            Contender(
                label,
                Job(
                    fn=fn,
                    args=args,
                    device=place,
                    given=bool(places),
                    label=label,
                    clock=clock,
                    read=None,
                ),
            )
        )
    return Field(" against ".join(functions), contenders, methods=True)


def affordable_seconds(contenders: list[Contender]) -> float:
    """Return the first call's seconds of a contender on the CPU: what the function costs there;
    infinite with none.
    """
    return min((c.job.first_seconds for c in contenders if c.job.device.is_cpu), default=math.inf)
