"""One rung: a kernel with all that is needed to run it anywhere, and the arithmetic of what it must
do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab._given import is_whole
from gpulab.errors import InputError, shown
from gpulab.kernels._simulate._run import simulate
from gpulab.kernels._simulate.report import Simulation

Extents = tuple[Any, Any]


@dataclass(frozen=True)
class Rung:
    """A kernel of a ladder.

    Attributes
    ----------
    name, family, summary : str
        "reduction-shuffle" of "reduction"; what it does differently from the rung before.
    kernel : function
        Plain Python in the style of numba.cuda.
    extents : callable
        ``extents(n)`` returns grid and block for the size.
    make : callable
        ``make(n, rng)`` returns the kernel's arguments.
    result : int
        Which argument the kernel fills.
    reference : callable
        Takes the arguments as they were; returns the result as NumPy computes it in float64.
    sizes : tuple of int
        The first is for the microscope, the later ones fill a GPU.
    multiple : int
        Every size must be a multiple of it: the kernel has no guard for partial blocks.
    flops, nbytes : callable
        ``flops(n)``: operations; ``nbytes(n)``: bytes that must be read and written at least once.
    tolerance : float
        Of the result against the reference, relative to its largest value; float32 sums of n terms.
    """

    name: str
    family: str
    summary: str
    kernel: Callable[..., None] = field(repr=False)
    extents: Callable[[int], Extents] = field(repr=False)
    make: Callable[[int, np.random.Generator], tuple[Any, ...]] = field(repr=False)
    result: int = field(repr=False)
    reference: Callable[..., np.ndarray] = field(repr=False)
    sizes: tuple[int, ...]
    multiple: int = field(repr=False)
    flops: Callable[[int], float] = field(repr=False)
    nbytes: Callable[[int], float] = field(repr=False)
    tolerance: float = field(repr=False, default=1e-5)

    def launch(self, n: int) -> Extents:
        """Return grid and block for size n.

        Raises
        ------
        InputError
            If the kernel does not take this size.
        """
        if not is_whole(n) or n < 1 or int(n) % self.multiple:
            expected = (
                "a whole number from 1" if self.multiple == 1 else f"a multiple of {self.multiple}"
            )
            raise InputError(
                f"{self.name}: n={shown(n)}; expected {expected}. Pass for example "
                f"n={self.sizes[0]}."
            )
        return self.extents(int(n))

    def arguments(self, n: int, seed: int = 0) -> tuple[Any, ...]:
        """Return fresh arguments for size n, the same for the same seed."""
        self.launch(n)
        return self.make(int(n), np.random.default_rng(seed))

    def expected(self, *arguments: Any) -> np.ndarray:
        """Return what the kernel should leave in the argument ``result``."""
        return self.reference(*arguments)

    def simulate(self, n: int | None = None, seed: int = 0) -> Simulation:
        """Run the kernel under the microscope, at its smallest size where none is given."""
        size = self.sizes[0] if n is None else n
        return simulate(self.kernel, *self.launch(size), *self.arguments(size, seed))
