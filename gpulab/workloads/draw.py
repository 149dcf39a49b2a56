"""Seeded random tensors for workloads, made on the CPU so that all devices get the same.

Floating-point values are drawn in float32; the registry converts them to the workload's dtype.
"""

from __future__ import annotations

import math
from typing import Any


def normal(generator: Any, *shape: int, scale: float = 1.0) -> Any:
    """Return standard normal values times ``scale``, float32 of ``shape``, from a
    ``torch.Generator`` of the CPU.

    Examples
    --------
    >>> import torch
    >>> tuple(normal(torch.Generator().manual_seed(0), 2, 3).shape)
    (2, 3)
    """
    import torch

    return torch.randn(*shape, generator=generator).mul_(scale)


def well_conditioned(generator: Any, n: int) -> Any:
    """Return a random matrix whose condition number stays near 2 at every size, float32 of shape
    (n, n).

    Normal entries plus ``4 sqrt(n)`` on the diagonal: the normal part has singular values up to
    about ``2 sqrt(n)``, so those of the sum lie between ``2 sqrt(n)`` and ``6 sqrt(n)``; in actual
    draws they lie between about 2.7 and 5.5 times ``sqrt(n)``.

    Examples
    --------
    >>> import torch
    >>> float(torch.linalg.cond(well_conditioned(torch.Generator().manual_seed(0), 200))) < 5
    True
    """
    matrix = normal(generator, n, n)
    matrix.diagonal().add_(4 * math.sqrt(n))
    return matrix
