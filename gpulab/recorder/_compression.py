"""Lighter layers on one device: dense against CSR, 2:4 and 8-bit linear layers, and a convolution
in groups (notebook 07).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from gpulab import compression
from gpulab.compression import _integer, _sparse
from gpulab.devices import Device
from gpulab.recorder._registry import SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure

NAME = "compression"
_FEATURES, _ROWS = 4096, 4096  # large enough for an accelerator to be busy with arithmetic
_CPU_FEATURES, _CPU_ROWS = 1024, 64
_SHARES = (0.5, 0.9, 0.98)
_CHANNELS, _SIDE, _BATCH = 128, 56, 64
_CPU_SIDE, _CPU_BATCH = 16, 8


def _sizes(device: Device) -> tuple[int, int]:
    return (_CPU_FEATURES, _CPU_ROWS) if device.is_cpu else (_FEATURES, _ROWS)


def _linear(
    device: Device,
    form: str,
    dtype: str,
    make: Callable[[Any], Any],
    share: float = 0.0,
    rank: int = SECOND,
    rows: int | None = None,
) -> Case:
    """One linear layer in one form; ``make`` turns the dense layer into it, on the device."""
    features, usual = _sizes(device)
    rows = usual if rows is None else rows

    def time(deadline_seconds: float) -> Measurement:
        import torch

        torch.manual_seed(0)
        layer = (
            torch.nn.Sequential(torch.nn.Linear(features, features))
            .to(str(device), getattr(torch, dtype))
            .eval()
        )
        model = make(layer)
        x = torch.randn(rows, features).to(str(device), getattr(torch, dtype))

        def run(given: Any) -> Any:
            with torch.no_grad():
                return model(given)

        flops = 2.0 * rows * features**2
        return measure(
            run,
            x,
            device=device,
            flops=flops if form == "dense" else None,
            deadline=deadline_seconds,
            label=f"linear, {form}",
        )

    return Case(
        {
            "layer": "linear",
            "form": form,
            "zeros": share,
            "dtype": dtype,
            "n": features,
            "rows": rows,
        },
        time,
        rank,
    )


def _convolution(device: Device, groups: int) -> Case:
    side, batch = (_CPU_SIDE, _CPU_BATCH) if device.is_cpu else (_SIDE, _BATCH)

    def time(deadline_seconds: float) -> Measurement:
        import torch

        torch.manual_seed(0)
        layer = (
            torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, groups=groups, bias=False)
            .to(str(device))
            .eval()
        )
        x = torch.randn(batch, _CHANNELS, side, side).to(str(device))

        def run(given: Any) -> Any:
            with torch.no_grad():
                return layer(given)

        flops = 2.0 * batch * side**2 * _CHANNELS * (_CHANNELS // groups) * 9
        return measure(
            run,
            x,
            device=device,
            flops=flops,
            deadline=deadline_seconds,
            label=f"convolution, {groups} groups",
        )

    params: dict[str, str | int | float] = {
        "layer": "convolution",
        "form": "dense",
        "groups": groups,
        "dtype": "float32",
        "n": _CHANNELS,
        "side": side,
        "batch": batch,
    }
    return Case(params, time, SECOND if groups in (1, _CHANNELS) else THIRD)


def _pruned(share: float) -> Callable[[Any], Any]:
    return lambda layer: compression.to_sparse(compression.prune(layer, share))


def _cases(device: Device) -> Iterable[Case]:
    if device.torch_type == "mps":  # PyTorch has neither CSR nor 8-bit kernels there
        return
    dense = "float32" if device.is_cpu else "float16"
    yield _linear(device, "dense", dense, compression.finish)
    for share in _SHARES:
        yield _linear(
            device, "csr", "float32", _pruned(share), share, THIRD if share < 0.9 else SECOND
        )
    # One input at a time, as a phone answers: a product of a matrix and a vector, which waits for
    # the weights.
    yield _linear(device, "dense", "float32", compression.finish, rank=THIRD, rows=1)
    yield _linear(device, "csr", "float32", _pruned(0.9), 0.9, THIRD, rows=1)
    if not device.is_cpu:
        yield _linear(device, "dense", "float32", compression.finish, rank=THIRD)
        if not _sparse.two_four_refusal(device):
            yield _linear(
                device,
                "2:4",
                "float16",
                lambda layer: compression.to_sparse(compression.prune(layer, pattern="2:4"), "2:4"),
                0.5,
            )
    yield _linear(device, "8-bit weights in float", "float32", compression.quantize, rank=THIRD)
    if device.is_cpu and not _integer.refusal(device):
        yield _linear(
            device,
            "8-bit kernels",
            "float32",
            lambda layer: compression.quantize(
                layer, "per-channel", "dynamic", arithmetic="integer"
            ),
        )
    if importlib.util.find_spec("torchao") is not None:
        floats = "float32" if device.is_cpu else "bfloat16"
        for activations in (None, "dynamic"):
            form = f"torchao, 8-bit weights{' and inputs' if activations else ''}"
            yield _linear(device, form, floats, _by_torchao(activations), rank=THIRD)
    for groups in (1, 4, 32, _CHANNELS):
        yield _convolution(device, groups)


def _by_torchao(activations: str | None) -> Callable[[Any], Any]:
    return lambda layer: compression.quantize(
        layer, "per-channel", activations, arithmetic="torchao"
    )


register(
    Experiment(
        NAME,
        "lighter layers of notebook 07: CSR, 2:4, 8 bits, and a grouped convolution, compared with "
        "dense ones",
        _cases,
    )
)
