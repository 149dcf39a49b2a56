"""Dense linear algebra: matrix products, a linear layer, attention, a linear system."""

from __future__ import annotations

import math
from typing import Any

from gpulab.workloads import _checks, draw
from gpulab.workloads._registry import Workload, WorkloadSpec, register


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


def _matmul_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute 64 rows by 64 columns again: 128 n^2 FLOPs at most, whatever n is."""
    a, b = inputs
    if not _checks.is_tensor(result) or result.shape != (w.n, w.n):
        return math.inf
    index = _checks.pick(w, 64, w.n)
    columns = _checks.rows(b.T, index).T
    return _checks.relative_difference(
        _checks.rows(result, index)[:, index], _checks.rows(a, index) @ columns
    )


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    return functional.linear(x, weight, bias)


def _linear_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    features = w.params["features"]
    return (
        draw.normal(g, w.n, features),
        draw.normal(g, features, features, scale=features**-0.5),
        draw.normal(g, features),
    )


def _attention(q: Any, k: Any, v: Any) -> Any:
    from torch.nn import functional

    return functional.scaled_dot_product_attention(q, k, v)


def _attention_shape(w: Workload) -> tuple[int, int, int, int]:
    return w.params["batch"], w.params["heads"], w.n, w.params["head_width"]


def _attention_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute 16 queries of the first batch entry again, against all keys."""
    if not _checks.is_tensor(result) or tuple(result.shape) != _attention_shape(w):
        return math.inf
    index = _checks.pick(w, 16, w.n)
    at = index.to(result.device)
    q, k, v = inputs
    reference = _attention(*(_checks.reference_copy(x) for x in (q[:1, :, at], k[:1], v[:1])))
    return _checks.relative_difference(_checks.reference_copy(result[:1, :, at]), reference)


def _solve(a: Any, b: Any) -> Any:
    import torch

    return torch.linalg.solve(a, b)


def _solve_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Refine the result in float64 until it has converged: the distance that it moved is its error.

    ``draw.well_conditioned`` is 4 sqrt(n) I + G with singular values of G up to about 2 sqrt(n), so
    each Richardson step halves the error: 14 steps leave less than 0.01 % of it, at 2 n^2 FLOPs
    each instead of n^3 in all.
    """
    a, b = (_checks.reference_copy(x) for x in inputs)
    if not _checks.is_tensor(result) or result.shape != b.shape:
        return math.inf
    x = _checks.reference_copy(result)
    refined, step = x.clone(), 1 / (4 * math.sqrt(w.n))
    for _ in range(14):
        refined += step * (b - a @ refined)
    return _checks.relative_difference(x, refined)


register(
    WorkloadSpec(
        name="matmul",
        summary="the product of two square matrices",
        size_meaning="rows and columns of both matrices",
        sizes=(64, 128, 256, 512, 1024, 2048, 4096),
        function=_matmul,
        flops=lambda w: 2 * w.n**3,
        nbytes=lambda w: 3 * w.n**2 * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n, w.n), draw.normal(g, w.n, w.n)),
        counts="2 n^3 FLOPs; two matrices read, one written",
        difference=_matmul_difference,
        sum_length=lambda w: w.n,
        matrix="matmul",
        emulated_in_float16=True,
    )
)

register(
    WorkloadSpec(
        name="linear",
        summary="a linear layer; for a small batch, a product with a narrow matrix",
        size_meaning="batch size",
        sizes=(1, 4, 16, 64, 256, 1024, 4096),
        function=_linear,
        flops=lambda w: 2 * w.n * w.params["features"] ** 2 + w.n * w.params["features"],
        nbytes=lambda w: (
            (2 * w.n * w.params["features"] + w.params["features"] ** 2 + w.params["features"])
            * w.itemsize
        ),
        make_inputs=_linear_inputs,
        params={"features": 2048},
        counts="2 n f^2 FLOPs and n f for the bias, with f features in and out; batch and "
        "weights read, batch written",
        difference=_checks.by_rows((0,)),
        sum_length=lambda w: w.params["features"],
        matrix="matmul",
    )
)

register(
    WorkloadSpec(
        name="attention",
        summary="scaled dot-product attention, not causal",
        size_meaning="positions in the sequence",
        sizes=(32, 128, 512, 1024, 2048, 4096),
        function=_attention,
        flops=lambda w: 4 * math.prod(_attention_shape(w)) * w.n,
        nbytes=lambda w: 4 * math.prod(_attention_shape(w)) * w.itemsize,
        make_inputs=lambda w, g: tuple(draw.normal(g, *_attention_shape(w)) for _ in range(3)),
        params={"batch": 2, "heads": 8, "head_width": 64},
        counts="4 b h n^2 d FLOPs: both matrix products, without the softmax between them; q, k, "
        "v read, the result written",
        difference=_attention_difference,
        sum_length=lambda w: w.n,
        matrix="matmul",
        # PyTorch's plain path keeps the n x n scores; the fused ones do not.
        memory=lambda w: (
            (4 * w.params["head_width"] + 2 * w.n)
            * w.params["batch"]
            * w.params["heads"]
            * w.n
            * w.itemsize
        ),
    )
)

register(
    WorkloadSpec(
        name="solve",
        summary="the solution of one linear system",
        size_meaning="equations",
        sizes=(16, 64, 256, 1024, 2048, 4096, 6144),
        function=_solve,
        flops=lambda w: 2 / 3 * w.n**3 + 2 * w.n**2,
        nbytes=lambda w: (w.n**2 + 2 * w.n) * w.itemsize,
        make_inputs=lambda w, g: (draw.well_conditioned(g, w.n), draw.normal(g, w.n)),
        dtypes=("float32", "float64"),
        counts="2/3 n^3 FLOPs for the LU factors and 2 n^2 for the substitutions; matrix and "
        "right side read, solution written",
        difference=_solve_difference,
        sum_length=lambda w: w.n,
        memory=lambda w: 3 * w.n**2 * w.itemsize,
    )
)
