"""What the tests of results run: a kernel with its launch, its arguments, and what is known about its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arguments = tuple[Any, ...]
# One rounding of float32 is 6e-8 of the value; the reference computes in float64, and sums here have at most a few hundred terms.
SINGLE = 2e-5
# NumPy's and Python's mathematical functions may differ in the last bits of a float64.
DOUBLE = 1e-13


@dataclass(frozen=True)
class Case:
    """A kernel and a launch of it.

    ``tolerance`` is relative (and absolute next to 0); None means that the results must be equal. ``expected`` gives what is known from
    elsewhere: by position of an argument, its value afterwards. ``numba`` says whether Numba's own simulator can run it: it has no warp
    functions, and computes with NumPy's types, not with numba's.
    """

    kernel: Callable[..., None]
    grid: Any
    block: Any
    make: Callable[[np.random.Generator], Arguments]
    expected: Callable[..., dict[int, Any]] | None = None
    tolerance: float | None = None
    dynamic_shared_bytes: int = 0
    numba: bool = True
    label: str = ""

    @property
    def name(self) -> str:
        """Return the kernel's name, and the label where the kernel has several cases."""
        return self.kernel.__name__ + (f"-{self.label}" if self.label else "")

    def arguments(self) -> Arguments:
        """Return fresh arguments, the same ones each time."""
        return self.make(np.random.default_rng(20_241))


def copies(arguments: Arguments) -> Arguments:
    """Return the arguments with arrays of their own; what was given twice stays one array."""
    made = {id(a): a.copy() for a in arguments if isinstance(a, np.ndarray)}
    return tuple(made.get(id(a), a) for a in arguments)


def ints(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Callable[[np.random.Generator], np.ndarray]:
    """Return what makes an array of random whole numbers from low to below high."""
    return lambda rng: rng.integers(low, high, shape).astype(dtype)


def zeros(*shape: int, dtype: Any = np.int64) -> Callable[[np.random.Generator], np.ndarray]:
    """Return what makes an array of zeros."""
    return lambda rng: np.zeros(shape, dtype)


def together(*makers: Callable[[np.random.Generator], Any]) -> Callable[[np.random.Generator], Arguments]:
    """Return what makes all of these."""
    return lambda rng: tuple(maker(rng) for maker in makers)
