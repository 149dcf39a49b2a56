"""Small tips from tuning guides, each measured without and with it, for the ledger of claims."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpulab.devices import Device
from gpulab.recorder._registry import SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure

NAME = "tips"
FORMS = ("without", "with")
_ROWS, _WIDTH, _LAYERS = 256, 256, 24
_ELEMENTS = 2**22
_CPU_BATCH, _BATCH, _CHANNELS, _SIDE = 8, 64, 64, 32

# What one tip makes on a device: the work, and what must hold while it is timed.
_Made = tuple[Callable[[], Any], contextlib.AbstractContextManager[Any]]


def _deep(device: Device) -> tuple[Any, Any]:
    """Return a network of many small layers, in which costs for each operator and each tensor show,
    and its input.
    """
    import torch

    torch.manual_seed(0)
    layers = [
        part for _ in range(_LAYERS) for part in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*layers).to(str(device)), torch.randn(_ROWS, _WIDTH).to(str(device))


def _forward(device: Device, mode: Any) -> _Made:
    model, x = _deep(device)
    return (lambda: model(x)), mode


def _no_grad(device: Device, on: bool) -> _Made:
    import torch

    return _forward(device, torch.no_grad() if on else torch.enable_grad())


def _inference_mode(device: Device, on: bool) -> _Made:
    import torch

    return _forward(device, torch.inference_mode() if on else torch.no_grad())


def _step(
    device: Device, none: bool = True, make: Callable[[Any], Any] | None = None
) -> Callable[[], Any]:
    import torch

    model, x = _deep(device)
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=1e-4) if make is None else make(model.parameters())
    )

    def run() -> Any:
        optimizer.zero_grad(set_to_none=none)
        model(x).square().mean().backward()
        optimizer.step()

    return run


def _set_to_none(device: Device, on: bool) -> _Made:
    return _step(device, none=on), contextlib.nullcontext()


def _no_anomaly_detection(device: Device, on: bool) -> _Made:
    import torch

    return _step(device), contextlib.nullcontext() if on else torch.autograd.set_detect_anomaly(
        True
    )


def _foreach(device: Device, on: bool) -> _Made:
    import torch

    return _step(
        device, make=lambda parameters: torch.optim.Adam(parameters, lr=1e-4, foreach=on)
    ), contextlib.nullcontext()


def _convolutions(device: Device, bias: bool) -> Callable[[], Any]:
    import torch

    torch.manual_seed(0)
    batch = _CPU_BATCH if device.is_cpu else _BATCH
    parts = [
        torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, bias=bias),
        torch.nn.BatchNorm2d(_CHANNELS),
    ]
    model = torch.nn.Sequential(*parts).to(str(device))
    x = torch.randn(batch, _CHANNELS, _SIDE, _SIDE).to(str(device))
    return lambda: model(x).square().mean().backward()


def _no_bias_before_norm(device: Device, on: bool) -> _Made:
    return _convolutions(device, bias=not on), contextlib.nullcontext()


@contextlib.contextmanager
def _autotuned(on: bool) -> Iterator[None]:
    """Let cuDNN time its algorithms, or not, and put the setting back."""
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _cudnn_autotune(device: Device, on: bool) -> _Made:
    return _convolutions(device, bias=False), _autotuned(on)


def _as_tensor(device: Device, on: bool) -> _Made:
    import numpy as np
    import torch

    data = np.ones(_ELEMENTS, dtype=np.float32)
    return (lambda: (torch.as_tensor if on else torch.tensor)(data)), contextlib.nullcontext()


def _create_on_device(device: Device, on: bool) -> _Made:
    import torch

    where = str(device)
    if on:
        return (lambda: torch.zeros(_ELEMENTS, device=where)), contextlib.nullcontext()
    return (lambda: torch.zeros(_ELEMENTS).to(where)), contextlib.nullcontext()


def _one_call(device: Device, on: bool) -> _Made:
    """A thousand small products in a loop, or as one batch."""
    import torch

    a, b = (torch.ones(1000, 16, 16, device=str(device)) for _ in range(2))
    work = (lambda: torch.bmm(a, b)) if on else (lambda: [x @ y for x, y in zip(a, b, strict=True)])
    return work, contextlib.nullcontext()


_TIPS: dict[str, Callable[[Device, bool], _Made]] = {
    "no_grad": _no_grad,
    "inference_mode": _inference_mode,
    "set_to_none": _set_to_none,
    "no_anomaly_detection": _no_anomaly_detection,
    "foreach": _foreach,
    "no_bias_before_norm": _no_bias_before_norm,
    "as_tensor": _as_tensor,
    "one_call": _one_call,
    "cudnn_autotune": _cudnn_autotune,
    "create_on_device": _create_on_device,
}
_ACCELERATOR_ONLY = ("create_on_device",)
_CUDNN_ONLY = ("cudnn_autotune",)


def _case(device: Device, tip: str, form: str) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        work, setting = _TIPS[tip](device, form == "with")
        with setting:
            return measure(work, device=device, deadline=deadline_seconds, label=f"{tip}: {form}")

    return Case(
        {"tip": tip, "form": form}, time, SECOND if tip in ("no_grad", "one_call") else THIRD
    )


def _cases(device: Device) -> Iterable[Case]:
    for tip in _TIPS:
        if (tip in _ACCELERATOR_ONLY and device.is_cpu) or (
            tip in _CUDNN_ONLY and device.kind != "cuda"
        ):
            continue
        for form in FORMS:
            yield _case(device, tip, form)


register(Experiment(NAME, "small tips from tuning guides, each without and with it", _cases))
