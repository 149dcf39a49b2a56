"""Whether a workload can run on a device (dtype, memory, settings), and its inputs there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpulab import _given, devices
from gpulab.devices import Device
from gpulab.errors import InputError, OutOfMemoryError, shown
from gpulab.units import format_bytes, format_flops, format_seconds

if TYPE_CHECKING:
    from gpulab.workloads._registry import Workload

# Some float16 operators are emulated on CPUs: matmul at about 2 GFLOP/s, convolutions at 0.4
# GFLOP/s on two cores (float32: 170 and 110). Above this many FLOPs one call takes from 50 to 250
# ms, and a measurement many seconds.
EMULATED_FLOPS = 1e8
_EMULATED_FLOPS_PER_SECOND = 1e9

# What is estimated to fit must leave this share for fragmentation and the libraries' own
# workspaces.
MARGIN = 1.1


def free_bytes(device: Device) -> int | None:
    """Return the bytes that a new tensor can take on a device now, or None where the device does
    not report it.
    """
    free = device.free_bytes
    if free is None or device.torch_type not in ("cuda", "xpu"):
        return free
    import torch

    # What PyTorch's allocator holds without using it goes to new tensors first.
    module = getattr(torch, device.torch_type)
    return free + int(module.memory_reserved(device.index) - module.memory_allocated(device.index))


def check_dtype(w: Workload, device: Any) -> None:
    """Raise InputError where the device lacks the workload's dtype or emulates it very slowly."""
    where = devices.find(device)
    others = ", ".join(d for d in w.spec.dtypes if d != w.dtype)
    if w.dtype == "float64" and not _has_float64(where):
        raise InputError(
            f"{w.label}: {where.name} has no float64 arithmetic; expected one of: {others}. Pass "
            "dtype='float32'."
        )
    if (
        where.is_cpu
        and w.dtype == "float16"
        and w.spec.emulated_in_float16
        and w.flops > EMULATED_FLOPS
    ):
        raise InputError(
            f"{w.label}: CPUs emulate this operation in float16, so {format_flops(w.flops)} would "
            f"take about {format_seconds(w.flops / _EMULATED_FLOPS_PER_SECOND)} a call; expected "
            f"at most {format_flops(EMULATED_FLOPS)}. Pass a smaller n, or dtype='bfloat16' or "
            "'float32'."
        )


def _has_float64(device: Device) -> bool:
    if device.kind == "xpu":
        import torch

        return bool(getattr(torch.xpu.get_device_properties(device.index), "has_fp64", True))
    return device.kind != "mps"


def check_fits(w: Workload, device: Any) -> None:
    """Raise OutOfMemoryError where the workload needs more than what is free on the device or, for
    its inputs, on the host.
    """
    where = devices.find(device)
    needs = [(where, w.memory_bytes * MARGIN)]
    if not where.is_cpu:
        # The inputs are drawn on the host in float32 and converted there.
        needs.append((Device("cpu"), w.nbytes * (1 + 4 / w.itemsize)))
    for place, needed in needs:
        free = free_bytes(place)
        if free is not None and needed > free:
            raise OutOfMemoryError(
                f"{w.label}: needs about {format_bytes(needed)} on {place.name}, where "
                f"{format_bytes(free)} is free; expected a size that fits. Pass a smaller n, or "
                "free memory first (gl.memory.release())."
            )


def make_inputs(w: Workload, device: Any, seed: int) -> tuple[Any, ...]:
    """Return the inputs, drawn on the CPU from a seed, converted to the workload's dtype and moved
    to the device.
    """
    import torch

    if not _given.is_whole(seed) or not 0 <= seed < 2**63:
        raise InputError(
            f"{w.label}: seed is {shown(seed)}; expected a whole number from 0 to 2**63 - 1. Pass "
            "for example seed=0."
        )
    where = str(devices.find(device))
    real = getattr(torch, w.dtype)
    made = []
    with devices.guard(f"{w.label}: making the inputs on {where}"):
        for value in w.spec.make_inputs(w, torch.Generator().manual_seed(int(seed))):
            # a step object converts its model
            floating = not isinstance(value, torch.Tensor) or value.is_floating_point()
            made.append(value.to(where, real) if floating else value.to(where))
    return tuple(made)


def tf32_permitted(w: Workload, device: Any = None) -> bool:
    """Return whether PyTorch may do this float32 work in TF32; with no device, whether it might on
    any of this machine.
    """
    if w.dtype != "float32" or w.spec.matrix is None or "torch" not in sys.modules:
        return False
    if not sys.modules["torch"].cuda.is_available() or (
        device is not None and devices.find(device).kind != "cuda"
    ):
        return False
    return "tf32" in devices.arithmetic(w.dtype, "cuda", w.spec.matrix)
