"""Elementwise work: one pass over memory, a few operations for each element."""

from __future__ import annotations

from typing import Any

from gpulab.workloads import draw
from gpulab.workloads._registry import WorkloadSpec, register

_SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 24, 1 << 26)


def _add(a: Any, b: Any) -> Any:
    return a + b


def _exp(x: Any) -> Any:
    return x.exp()


def _gelu(x: Any) -> Any:
    from torch.nn import functional

    return functional.gelu(x)


register(
    WorkloadSpec(
        name="add",
        summary="the sum of two arrays, element by element",
        size_meaning="elements",
        sizes=_SIZES,
        function=_add,
        flops=lambda w: w.n,
        nbytes=lambda w: 3 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n), draw.normal(g, w.n)),
        counts="n FLOPs; two arrays read, one written",
    )
)

register(
    WorkloadSpec(
        name="exp",
        summary="the exponential of each element",
        size_meaning="elements",
        sizes=_SIZES,
        function=_exp,
        flops=lambda w: w.n,
        nbytes=lambda w: 2 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n),),
        counts="n FLOPs (an exponential counts as one); one array read, one written",
    )
)

register(
    WorkloadSpec(
        name="gelu",
        summary="the GELU activation of each element, x/2 (1 + erf(x/sqrt 2))",
        size_meaning="elements",
        sizes=_SIZES,
        function=_gelu,
        flops=lambda w: 5 * w.n,
        nbytes=lambda w: 2 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n),),
        counts="5 n FLOPs (two scalings, erf, an addition, a product); one array read, one written",
    )
)
