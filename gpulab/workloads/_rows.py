"""Reductions and normalizations: each result needs many elements, so threads must cooperate."""

from __future__ import annotations

import math
from typing import Any

from gpulab.workloads import _checks, draw
from gpulab.workloads._registry import Workload, WorkloadSpec, register

_SIZES = (1, 16, 128, 1024, 8192, 32768, 65536)


def _sum(x: Any) -> Any:
    return x.sum()


def _softmax(x: Any) -> Any:
    return x.softmax(dim=-1)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    return functional.layer_norm(x, weight.shape, weight, bias)


def _width(w: Workload) -> int:
    return w.params["width"]


register(
    WorkloadSpec(
        name="sum",
        summary="the sum of all elements",
        size_meaning="elements",
        sizes=(1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 24, 1 << 26),
        function=_sum,
        flops=lambda w: w.n - 1,
        nbytes=lambda w: (w.n + 1) * w.itemsize,
        # Positive values: the sum of values around zero may lie near zero, where a relative
        # difference says nothing.
        make_inputs=lambda w, g: (draw.uniform(g, w.n),),
        # No float16: the sum of 131,072 such values is beyond its largest number.
        dtypes=("float32", "float64", "bfloat16"),
        counts="n - 1 FLOPs; one array read, one number written",
        difference=_checks.difference_of_all,
        # PyTorch sums in cascades and GPUs in trees: no partial sum has more than about sqrt(n)
        # terms.
        sum_length=lambda w: math.sqrt(w.n),
    )
)

register(
    WorkloadSpec(
        name="softmax",
        summary="the softmax of each row",
        size_meaning="rows",
        sizes=_SIZES,
        function=_softmax,
        flops=lambda w: 5 * w.n * _width(w),
        nbytes=lambda w: 2 * w.n * _width(w) * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n, _width(w)),),
        params={"width": 1024},
        counts="5 FLOPs an element (maximum, subtraction, exponential, sum, division); one array "
        "read, one written",
        sum_length=_width,
    )
)

register(
    WorkloadSpec(
        name="layer_norm",
        summary="each row normalized to mean 0 and variance 1, then scaled and shifted",
        size_meaning="rows",
        sizes=_SIZES,
        function=_layer_norm,
        flops=lambda w: 7 * w.n * _width(w),
        nbytes=lambda w: (2 * w.n * _width(w) + 2 * _width(w)) * w.itemsize,
        make_inputs=lambda w, g: (
            draw.normal(g, w.n, _width(w)),
            draw.uniform(g, _width(w)),
            draw.normal(g, _width(w)),
        ),
        params={"width": 1024},
        counts="7 FLOPs an element (mean, subtraction, square, sum, division, scale, shift); "
        "array, scale and shift read, array written",
        difference=_checks.by_rows((0,)),
        sum_length=_width,
    )
)
