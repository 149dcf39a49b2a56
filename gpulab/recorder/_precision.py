"""Matrix products in each format, with sides that suit Tensor Cores and sides that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpulab.devices import Device
from gpulab.recorder._ceilings import tf32
from gpulab.recorder._registry import SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure

NAME = "precision"
# Multiples of 16 suit every format; one less suits none.
_GPU_SIDES = (4096, 4095, 8192, 8191, 1024, 1023)
_CPU_SIDES = (512, 511)
_FP8 = "float8_e4m3fn"


def _product(device: Device, name: str, n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a product of two square matrices, ready to be called, and its operands."""
    import torch

    where = str(device)
    if name == _FP8:
        # The second operand must lie column by column; the scales are one for each tensor.
        a, b = (torch.rand(n, n, device=where).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=where)
        scaled: Any = torch._scaled_mm
        return lambda x, y: scaled(x, y.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16), (
            a,
            b,
        )
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    x, y = (torch.rand(n, n, device=where).to(dtype) for _ in range(2))
    return torch.matmul, (x, y)


def _case(device: Device, name: str, n: int) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        fn, operands = _product(device, name, n)
        with tf32(name == "tf32"):
            return measure(
                fn,
                *operands,
                device=device,
                flops=2.0 * n**3,
                deadline=deadline_seconds,
                label=f"{name} product, n={n}",
            )

    return Case({"format": name, "n": n}, time, SECOND if n in (4096, 512) else THIRD)


def _cases(device: Device) -> Iterable[Case]:
    """What this device multiplies: TF32 and FP8 only where it has them; float16 on a CPU is left to
    small sizes.
    """
    if device.torch_type != "cuda":
        for n in _CPU_SIDES if device.is_cpu else _GPU_SIDES[:2]:
            for name in ("float32", "bfloat16", "float16"):
                yield _case(device, name, n)
        return
    import torch

    names = ["float32", "float16", "bfloat16"]
    major, minor = torch.cuda.get_device_capability(device.index or 0)
    if device.kind == "cuda" and major >= 8:
        names.append("tf32")
    if device.kind == "cuda" and (major, minor) >= (8, 9):
        names.append(_FP8)
    for n in _GPU_SIDES:
        for name in names:
            if name != _FP8 or n % 16 == 0:  # an FP8 product refuses other sides
                yield _case(device, name, n)


register(
    Experiment(
        NAME,
        "matrix products in each format, with sides that are multiples of 16 and sides that are not",
        _cases,
    )
)
