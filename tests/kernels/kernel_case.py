"""Helpers of the simulator's tests: kernels with a launch, kernels made of text, plain counts.

Nothing here calls gpulab.
"""

import inspect
import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Arguments = tuple[Any, ...]
# One rounding of float32 is 6e-8 of the value; sums here have at most a few hundred terms.
SINGLE = 2e-5
# NumPy's and Python's mathematical functions may differ in the last bits of a float64.
DOUBLE = 1e-13


@dataclass(frozen=True)
class Case:
    """A correct kernel and a launch of it.

    ``make`` returns fresh arguments, with the same values at each call. ``expected`` takes the
    arguments before the launch and returns the values of some arrays after it, by position; they
    come from an independent source, such as NumPy. ``tolerance`` is relative (absolute next to 0);
    None requires equality. ``numba`` is False where Numba's own simulator gives another result:
    it has NumPy's types, and no fixed order of atomics.
    """

    kernel: Callable[..., None]
    grid: Any
    block: Any
    make: Callable[[], Arguments]
    expected: Callable[..., dict[int, Any]] | None = None
    tolerance: float | None = None
    dynamic_shared_bytes: int = 0
    numba: bool = True

    @property
    def name(self) -> str:
        """Return the kernel's name, its launch and its first array's shape."""
        shape = next(np.shape(a) for a in self.make() if np.ndim(a))
        return f"{self.kernel.__name__}-{self.grid}-{self.block}-{shape}".replace(" ", "")

    @property
    def runs_in_numba(self) -> bool:
        """Return whether Numba's own simulator can run the case: no warp functions, few threads."""
        names = self.kernel.__code__.co_names
        few = np.prod(self.grid) * np.prod(self.block) <= 300
        return self.numba and few and not any(n.endswith("sync") or n == "syncwarp" for n in names)

    def agree(self, found: Any, wanted: Any, what: str) -> None:
        """Assert that an array holds what it should."""
        if self.tolerance is None:
            np.testing.assert_array_equal(found, wanted, err_msg=what)
        else:
            tolerance = self.tolerance
            np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=what)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64, seed: int = 0) -> np.ndarray:
    """Return random whole numbers from low to below high."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return small whole numbers as float32, so that sums are exact in any order."""
    return integers(-4, 5, *shape, dtype=np.float32, seed=seed)


def uniform(low: float, high: float, *shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Return random numbers."""
    return np.random.default_rng(3).uniform(low, high, shape).astype(dtype)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return an array of zeros, by default of float32."""
    return np.zeros(shape, dtype)


def copies(arguments: Arguments) -> Arguments:
    """Return the arguments, with a copy of each array."""
    return tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)


_numbers = itertools.count()


def function_of(text: str, name: str = "kernel", filename: str = "") -> Any:
    """Return a function whose text ``inspect`` finds, like that of a notebook's cell."""
    filename = filename or f"<text {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"__name__": "kernels_of_text"}
    exec(compile(text, filename, "exec"), names)
    return names[name]


def line_of(kernel: Callable, mark: str) -> int:
    """Return the line number of the only line of a function that ends with ``# mark``."""
    lines, first = inspect.getsourcelines(kernel)
    found = [n for n, line in enumerate(lines, first) if line.rstrip().endswith(f"# {mark}")]
    assert len(found) == 1, f"{kernel.__name__} has {len(found)} lines marked {mark!r}"
    return found[0]


def threads_of(block: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return the threads (x, y, z) of a block in the order in which they fill warps."""
    x, y, z = (*block, 1, 1)[:3]
    return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def warps_of(lanes: list) -> Iterator[list]:
    """Split a list with one item per thread of a block into lists of 32, one per warp."""
    return (lanes[start : start + 32] for start in range(0, len(lanes), 32))


def sectors(places: Iterable[int | None], size: int) -> int:
    """Return how many 32-byte sectors a warp's elements lie in; None is an inactive lane."""
    first = [place * size for place in places if place is not None]
    return len({byte // 32 for start in first for byte in range(start, start + size)})


def wavefronts(places: list[int | None], size: int) -> int:
    """Return the passes of a warp's shared access: the most different words in one of 32 banks.

    Elements of 8 bytes are accessed by one half-warp at a time, those of 16 bytes by one
    quarter-warp at a time; the passes of all parts add up.
    """
    lanes = places + [None] * (32 - len(places))
    total, part = 0, min(32, 128 // size)
    for start in range(0, 32, part):
        first = [place * size for place in lanes[start : start + part] if place is not None]
        words = {byte // 4 for at in first for byte in range(at, at + size)}
        total += max(sum(word % 32 == bank for word in words) for bank in range(32))
    return total
