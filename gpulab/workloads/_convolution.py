"""Convolutions over images of fixed size: full, grouped and depthwise. Groups reduce the FLOPs, but
hardly the traffic.
"""

from __future__ import annotations

from typing import Any

from gpulab.errors import InputError
from gpulab.workloads import _checks, draw
from gpulab.workloads._registry import Workload, WorkloadSpec, register

_KERNEL = 3  # rows and columns of the filters; the padding keeps the image's size


def _convolve(x: Any, weight: Any) -> Any:
    from torch.nn import functional

    return functional.conv2d(x, weight, padding=_KERNEL // 2, groups=x.shape[1] // weight.shape[1])


def _groups(w: Workload) -> int:
    """Return in how many groups the channels are cut; depthwise has a group for each channel."""
    channels = w.params["channels"]
    groups = channels if w.name == "depthwise_conv2d" else w.params.get("groups", 1)
    if channels % groups:
        raise InputError(
            f"{w.name}: {groups} groups do not divide {channels} channels; expected a divisor. "
            "Pass for example groups=1."
        )
    return groups


def _pixels(w: Workload) -> int:
    return w.params["channels"] * w.params["side"] ** 2


def _weights(w: Workload) -> int:
    return w.params["channels"] ** 2 // _groups(w) * _KERNEL**2


def _inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    channels, side = w.params["channels"], w.params["side"]
    shape = (channels, channels // _groups(w), _KERNEL, _KERNEL)
    return draw.normal(g, w.n, channels, side, side), draw.normal(
        g, *shape, scale=(shape[1] * _KERNEL**2) ** -0.5
    )


def _entry(name: str, summary: str, params: dict[str, int]) -> None:
    register(
        WorkloadSpec(
            name=name,
            summary=summary,
            size_meaning="images in the batch",
            sizes=(1, 2, 4, 16, 64, 256),
            function=_convolve,
            flops=lambda w: 2 * w.n * w.params["side"] ** 2 * _weights(w),
            nbytes=lambda w: (2 * w.n * _pixels(w) + _weights(w)) * w.itemsize,
            make_inputs=_inputs,
            params=params,
            counts="2 n s^2 c^2/g 9 FLOPs for images of side s, c channels in and out, g groups; "
            "images and filters read, images written",
            # PyTorch's float64 convolutions on a CPU are slow, depthwise ones above all: three
            # images are enough.
            difference=_checks.by_rows((0,), at_most=3),
            sum_length=lambda w: _weights(w) / w.params["channels"],
            matrix="convolution",
            emulated_in_float16=True,
            # Lowering to a matrix product may need every 3x3 patch once.
            memory=lambda w: (
                (2 * w.n * _pixels(w) + _weights(w)) * w.itemsize
                + 2 * min(w.n, 16) * _pixels(w) * _KERNEL**2 * w.itemsize
            ),
        )
    )


_entry(
    "conv2d",
    "a 3x3 convolution, every output channel from every input channel",
    {"channels": 128, "side": 32},
)
_entry(
    "grouped_conv2d",
    "a 3x3 convolution within groups of channels",
    {"channels": 128, "side": 32, "groups": 8},
)
_entry(
    "depthwise_conv2d",
    "a 3x3 convolution of each channel separately",
    {"channels": 128, "side": 32},
)
