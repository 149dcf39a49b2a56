"""The gate of notebook 04 in Triton, which reads the text of a function of this file; Triton itself is imported on the first use."""

# The kernel is written as Triton's manual writes them, without annotations.
# mypy: ignore-errors
from __future__ import annotations

from typing import Any

tl: Any = None  # triton.language, once it is imported: the kernel names it


def compiled_gate() -> Any:
    """Return the kernel, ready for ``compiled_gate()[(programs,)](x, y, n, BLOCK=1024)``.

    Raises
    ------
    ImportError
        If Triton is not installed.
    """
    global tl
    import triton

    tl = triton.language
    return triton.jit(gate)


def gate(x, y, n, BLOCK: tl.constexpr):
    """Compute y = x (1 + tanh(0.8 x)) / 2; one program takes BLOCK elements, the mask guards the end."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    v = tl.load(x + i, mask=inside)
    # tanh(z) = 2 sigmoid(2 z) - 1, so (1 + tanh(z)) / 2 = sigmoid(2 z)
    tl.store(y + i, v * tl.sigmoid(1.6 * v), mask=inside)
