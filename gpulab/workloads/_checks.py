"""Agreement with a float64 reference, sampled so that checking never costs more than the work, and
the tolerance by dtype.

All differences are max|result - reference| / max|reference| over the sample; where the reference is
all zero, the largest absolute difference. Results that are not finite, or have another shape, count
as infinitely far.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulab.workloads._registry import Workload

# Unit roundoff: half the distance from 1 to the next number, 2**-p for p significant bits (IEEE
# 754; bfloat16 has 8, NVIDIA's TF32 11 bits).
ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}

# Roundings of the result itself that are allowed: one to store it and a few in elementary functions
# and partial results.
_STORED_ROUNDINGS = 4
# Errors of a sum of k terms grow like sqrt(k) roundoffs when they are random (Higham, Accuracy and
# Stability of Numerical Algorithms, 2002, section 2.6); 8 of those leave room for the largest of
# many elements.
_SUM_ROUNDINGS = 8

# Sampled rows are as many as this much float64 work allows, between 1 and _ROWS.
_REFERENCE_FLOPS = 1e9
_ROWS = 64


def tolerance(w: Workload) -> float:
    """Return the relative difference that a workload's dtype allows."""
    from gpulab.workloads._fits import tf32_permitted

    # Half formats are summed in float32 (PyTorch's CPU kernels, Tensor Cores).
    summed_in = "float64" if w.dtype == "float64" else "float32"
    stored_in = "tf32" if tf32_permitted(w) else w.dtype
    return (
        _STORED_ROUNDINGS * ROUNDOFF[stored_in]
        + _SUM_ROUNDINGS * math.sqrt(w.spec.sum_length(w)) * ROUNDOFF[summed_in]
    )


def relative_difference(result: Any, reference: Any) -> float:
    """Return max|result - reference| / max|reference| of two CPU tensors in double precision."""
    if tuple(result.shape) != tuple(reference.shape) or not bool(result.isfinite().all()):
        return math.inf
    if result.numel() == 0:
        return 0.0
    distance = float((result - reference).abs().max())
    size = float(reference.abs().max())
    return distance / size if size > 0 else distance


def reference_copy(x: Any) -> Any:
    """Return a tensor's values on the CPU, real ones in float64 and complex ones in complex128;
    others as they are.
    """
    import torch

    x = x.detach().cpu()
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def pick(w: Workload, count: int, below: int) -> Any:
    """Return at most ``count`` ascending indices below ``below``, seeded by the size; from two on
    with the first and the last.
    """
    import torch

    if below <= count or count < 3:
        return torch.arange(below) if below <= count else torch.tensor([0, below - 1][:count])
    middle = torch.randint(1, below - 1, (count - 2,), generator=torch.Generator().manual_seed(w.n))
    return torch.cat([torch.tensor([0]), torch.unique(middle), torch.tensor([below - 1])])


def rows(x: Any, index: Any) -> Any:
    """Return the rows at ``index`` of a tensor on any device, as a reference copy."""
    return reference_copy(x.detach()[index.to(x.device)])


def by_rows(
    row_inputs: Sequence[int] | None = None, at_most: int | None = None
) -> Callable[[Workload, Any, tuple[Any, ...]], float]:
    """Return a difference that computes some rows again in float64.

    Parameters
    ----------
    row_inputs : sequence of int, optional
        Which inputs are cut to the sampled rows; by default all whose first dimension is the
        result's.
    at_most : int, optional
        How many rows; by default 64 (4,096 where a row is one number), fewer where their reference
        is long work.
    """

    def difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
        """Return max|result - reference| / max|reference| over the sampled rows."""
        if not is_tensor(result) or result.dim() == 0:
            return math.inf
        total = int(result.shape[0])
        cut = (
            row_inputs
            if row_inputs is not None
            else [i for i, x in enumerate(inputs) if x.dim() and x.shape[0] == total]
        )
        if any(inputs[i].shape[0] != total for i in cut):
            return math.inf
        affordable = int(_REFERENCE_FLOPS / max(w.flops / max(total, 1), 1.0))
        wanted = at_most or (_ROWS if result.dim() > 1 else 64 * _ROWS)
        index = pick(w, max(1, min(wanted, affordable)), total)
        reference = w.spec.function(
            *(rows(x, index) if i in cut else reference_copy(x) for i, x in enumerate(inputs))
        )
        return relative_difference(rows(result, index), reference)

    return difference


difference_by_rows = by_rows()


def difference_of_all(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute everything again in float64; for work that reads its inputs once."""
    if not is_tensor(result):
        return math.inf
    return relative_difference(
        reference_copy(result), w.spec.function(*(reference_copy(x) for x in inputs))
    )
