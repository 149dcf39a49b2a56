"""Dense linear algebra: first slice."""

from __future__ import annotations

from typing import Any

from gpulab.workloads._registry import Workload, WorkloadSpec, register


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


def _inputs(w: Workload, device: Any, seed: int) -> tuple[Any, ...]:
    import torch

    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(w.n, w.n, generator=g).to(getattr(torch, w.dtype)).to(str(device)) for _ in range(2))


def _difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    reference = inputs[0][:4].double() @ inputs[1].double()
    return float((result[:4].double() - reference).abs().max() / reference.abs().max())


register(
    WorkloadSpec(
        name="matmul",
        summary="the product of two square matrices",
        size_meaning="rows and columns of both matrices",
        sizes=(64, 128, 256, 512, 1024, 2048, 4096),
        dtypes=("float32", "float64", "bfloat16", "float16"),
        function=_matmul,
        flops=lambda n: 2.0 * n**3,
        nbytes=lambda n, itemsize: 3.0 * n * n * itemsize,
        make_inputs=_inputs,
        difference=_difference,
    )
)
