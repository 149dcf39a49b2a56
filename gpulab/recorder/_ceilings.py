"""The highest rates of the device: memory copy, triad, matrix product by dtype, and the spacing of
small launches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.recorder._foretell import refuse_long
from gpulab.recorder._registry import FIRST, Case, Experiment, register
from gpulab.timing import Measurement, measure

# One launch must run far longer than a launch costs, and the arrays must be far larger than any
# cache: 1 GiB an array on an accelerator (the largest L2 of today is 126 MB), 256 MiB on a CPU (its
# L3 may be as large).
ACCELERATOR_ARRAY_BYTES, CPU_ARRAY_BYTES = 2**30, 2**28
ACCELERATOR_GEMM_SIZE, CPU_GEMM_SIZE = 8192, 2048
# A float16 product on a CPU runs in scalar code and takes minutes at this size, so it is not a
# ceiling of anything.
CPU_GEMM_DTYPES = ("float32", "float64", "bfloat16")
ACCELERATOR_GEMM_DTYPES = ("bfloat16", "float16", "tf32", "float32", "float64")
# a product of so much smaller sides foretells it: bfloat16 takes a minute where the processor has
# no instructions for it
_SMALLER = 8
LAUNCHES = 1000


def _array_elements(device: Device) -> int:
    return (CPU_ARRAY_BYTES if device.is_cpu else ACCELERATOR_ARRAY_BYTES) // 4


def _stream_case(device: Device, operation: str, arrays: int, run: Callable[..., Any]) -> Case:
    elements = _array_elements(device)

    def time(deadline_seconds: float) -> Measurement:
        import torch

        data = [
            torch.ones(elements, dtype=torch.float32, device=str(device)) for _ in range(arrays)
        ]
        return measure(
            run,
            *data,
            device=device,
            nbytes=4.0 * elements * arrays,
            deadline=deadline_seconds,
            label=operation,
        )

    return Case(
        {"operation": operation, "nbytes": 4 * elements * arrays, "dtype": "float32"}, time, FIRST
    )


def _copy(target: Any, source: Any) -> None:
    target.copy_(source)


def _triad(target: Any, b: Any, c: Any) -> None:
    import torch

    torch.add(b, c, alpha=3.0, out=target)


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in float32 products, and put the setting back."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _gemm_case(device: Device, dtype: str, n: int) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        import torch

        # never record one thing under the name of another
        if dtype == "tf32" and device.kind == "cuda" and not device.has_tf32:
            raise InputError(
                f"matrix product tf32: {device.name} has no TF32; expected compute capability 8.0 "
                "or newer. Left out."
            )
        kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        # random data: products of zeros draw less power and run faster
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(n, n, generator=generator).to(kind).to(str(device)) for _ in range(2))
        if device.is_cpu:
            corner = slice(n // _SMALLER)
            refuse_long(
                f"matrix product {dtype}",
                lambda: torch.mm(a[corner, corner], b[corner, corner]),
                float(_SMALLER**3),
            )
        with tf32(dtype == "tf32"):
            return measure(
                torch.mm,
                a,
                b,
                device=device,
                flops=2.0 * n**3,
                deadline=deadline_seconds,
                label=f"matrix product {dtype}",
            )

    return Case({"operation": "gemm", "n": n, "dtype": dtype}, time, FIRST)


def _ceiling_cases(device: Device) -> Iterable[Case]:
    yield _stream_case(device, "copy", 2, _copy)
    yield _stream_case(device, "triad", 3, _triad)
    n = CPU_GEMM_SIZE if device.is_cpu else ACCELERATOR_GEMM_SIZE
    for dtype in CPU_GEMM_DTYPES if device.is_cpu else ACCELERATOR_GEMM_DTYPES:
        if (dtype != "tf32" or device.kind == "cuda") and not (
            dtype == "float64" and device.kind == "mps"
        ):
            yield _gemm_case(device, dtype, n)


def _launch_case(device: Device, how: str) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        import torch

        x = torch.zeros(1, device=str(device))

        def launches() -> None:
            for _ in range(LAUNCHES):
                x.add_(1.0)

        work: Callable[[], Any] = launches
        if how == "graph":
            graph = torch.cuda.CUDAGraph()
            side = torch.cuda.Stream(device.index)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(side):
                x.add_(1.0)  # capture asks for a warm operator
            side.synchronize()
            # by default it captures on the device that was current at the first capture
            with torch.cuda.graph(graph, stream=side):
                launches()
            work = graph.replay
        return measure(
            work,
            device=device,
            deadline=deadline_seconds,
            label=f"{LAUNCHES} small operations, {how}",
        )

    return Case({"operation": how, "launches": LAUNCHES}, time, FIRST)


def _launch_cases(device: Device) -> Iterable[Case]:
    yield _launch_case(device, "stream")
    if device.torch_type == "cuda":
        yield _launch_case(device, "graph")


register(
    Experiment("ceilings", "memory copy, triad, and the matrix product by dtype", _ceiling_cases)
)
register(
    Experiment(
        "launch",
        "the time from one small operation to the next, in a stream and in a CUDA graph",
        _launch_cases,
    )
)
