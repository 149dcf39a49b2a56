"""Work whose memory accesses are not one sequential pass: FFT, sort, gather."""

from __future__ import annotations

import math
from typing import Any

from gpulab.workloads import _checks, draw
from gpulab.workloads._registry import Workload, WorkloadSpec, register

# Up to this many elements a sort is checked by sorting again, above by a checksum.
_SORT_AGAIN = 1 << 18

# Frequencies of a transform that are computed again at once.
_FREQUENCIES = 1024


def _fft(x: Any) -> Any:
    import torch

    return torch.fft.fft(torch.view_as_complex(x))


def _fft_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute up to 2,048 frequencies again, in sets: those at equal distance from a first one.

    With m dividing n, frequencies s + k n/m are the m-point transform of x modulated by s and
    folded to length m.
    """
    import torch

    if not _checks.is_tensor(result) or result.shape != (w.n,):
        return math.inf
    x = torch.view_as_complex(_checks.reference_copy(inputs[0]))
    m = math.gcd(w.n, _FREQUENCIES)
    worst = 0.0
    for s in _checks.pick(w, max(2, min(8, _FREQUENCIES // m)), w.n // m).tolist():
        # The phase is reduced in whole numbers: j s overflows nothing below n = 2^31 and loses no
        # digits.
        phase = (torch.arange(w.n) * s).remainder_(w.n).double() * (-2 * math.pi / w.n)
        folded = (x * torch.polar(torch.ones_like(phase), phase)).reshape(-1, m).sum(0)
        frequencies = torch.arange(s, w.n, w.n // m)
        worst = max(
            worst,
            _checks.relative_difference(_checks.rows(result, frequencies), torch.fft.fft(folded)),
        )
    return worst


def _sort(x: Any) -> Any:
    return x.sort().values


def _checksum(x: Any) -> int:
    """Return a number that does not depend on the order of the elements but, very likely, on every
    bit of them.
    """
    import torch

    bits = (
        x.contiguous()
        .view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
        .to(torch.int64)
    )
    # wraps round; the multiplier is 2^64 / golden ratio, odd
    mixed = (bits ^ (bits >> 29)) * -0x61C8864680B583EB
    return int((mixed ^ (mixed >> 32)).sum())


def _sort_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """A sort is exact: the result must ascend and hold the same elements (above 2^18 elements told
    by a checksum).
    """
    if not _checks.is_tensor(result) or result.shape != inputs[0].shape:
        return math.inf
    if w.n <= _SORT_AGAIN:
        return _checks.relative_difference(
            _checks.reference_copy(result), _checks.reference_copy(inputs[0]).sort().values
        )
    ascends = bool((result[1:] >= result[:-1]).all())
    return 0.0 if ascends and _checksum(result) == _checksum(inputs[0]) else math.inf


def _gather(indices: Any, table: Any) -> Any:
    from torch.nn import functional

    return functional.embedding(indices, table)


def _gather_bytes(w: Workload) -> float:
    """Indices (int64), the distinct rows that n random draws touch on average, and the result."""
    vocabulary, width = w.params["vocabulary"], w.params["width"]
    distinct = (
        -vocabulary * math.expm1(w.n * math.log1p(-1 / vocabulary)) if vocabulary > 1 else 1.0
    )
    return w.n * 8 + (distinct + w.n) * width * w.itemsize


def _gather_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    table = draw.normal(g, w.params["vocabulary"], w.params["width"])
    return draw.integers(g, w.params["vocabulary"], w.n), table


def _gather_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Look some rows up again."""
    indices, table = inputs
    if not _checks.is_tensor(result) or result.shape != (w.n, w.params["width"]):
        return math.inf
    index = _checks.pick(w, 64, w.n)
    return _checks.relative_difference(
        _checks.rows(result, index), _checks.rows(table, _checks.rows(indices, index))
    )


def _gather_memory(w: Workload) -> float:
    return w.n * 8 + (w.params["vocabulary"] + w.n) * w.params["width"] * w.itemsize


register(
    WorkloadSpec(
        name="fft",
        summary="the Fourier transform of a complex signal",
        size_meaning="complex values; powers of two are fastest",
        sizes=(1 << 8, 1 << 11, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24),
        function=_fft,
        flops=lambda w: 5 * w.n * math.log2(w.n),
        nbytes=lambda w: 4 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n, 2),),
        dtypes=("float32", "float64"),
        counts="5 n log2 n FLOPs, the radix-2 count, which the literature uses for all "
        "algorithms; one complex array read, one written",
        difference=_fft_difference,
        sum_length=lambda w: math.log2(w.n) + 1,
        memory=lambda w: 8 * w.n * w.itemsize,
    )
)

register(
    WorkloadSpec(
        name="sort",
        summary="all elements in ascending order",
        size_meaning="elements",
        sizes=(1 << 8, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24),
        function=_sort,
        flops=lambda _: 0,
        nbytes=lambda w: 2 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n),),
        counts="no FLOPs (it compares and moves); one array read, one written",
        difference=_sort_difference,
        # torch.sort returns the places as int64 too, and works in as much again.
        memory=lambda w: w.n * (4 * w.itemsize + 16),
    )
)

register(
    WorkloadSpec(
        name="embedding_gather",
        summary="rows of a table at random places, as an embedding layer reads them",
        size_meaning="rows gathered",
        sizes=(16, 256, 4096, 16384, 65536, 262144, 1048576),
        function=_gather,
        flops=lambda _: 0,
        nbytes=_gather_bytes,
        make_inputs=_gather_inputs,
        params={"vocabulary": 50_000, "width": 256},
        counts="no FLOPs; n int64 indices and the v (1 - (1 - 1/v)^n) rows that n draws from v "
        "touch on average read, n rows written",
        difference=_gather_difference,
        memory=_gather_memory,
    )
)
