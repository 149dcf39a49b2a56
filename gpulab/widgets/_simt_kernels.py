"""The kernels of the SIMT microscope: a kernel with its launch, run on copies of which arrays, and
those that the microscope offers.

Each of these is the text of one notebook cell, run as a learner would run it. So the line numbers
in the microscope are those of the cell that "Show the code" prints.
"""

# The kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpulab._validate import is_whole
from gpulab.errors import InputError, shown
from gpulab.kernels import cuda, float32


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with its launch.

    Attributes
    ----------
    kernel : callable
        As ``gpulab.kernels.simulate`` takes it.
    grid, block : int or tuple of int
    arguments : tuple
        Arrays and numbers.
    dynamic_shared_bytes : int
    words : tuple of str
        How the arguments are written in code; determined from the caller's variables if not given.

    Raises
    ------
    InputError
        If grid or block is None.
    """

    kernel: Any
    grid: Any
    block: Any
    arguments: tuple[Any, ...]
    dynamic_shared_bytes: int = 0
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, extent in (("grid", self.grid), ("block", self.block)):
            if extent is None:
                raise InputError(
                    f"SimtMicroscope: {self.name} was passed without a {name}; expected a launch. "
                    "Pass kernel, grid, block and the kernel's arguments."
                )

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(getattr(_function(self.kernel), "__name__", None) or shown(self.kernel))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters; empty if the kernel is not a function."""
        code = getattr(_function(self.kernel), "__code__", None)
        return () if code is None else tuple(code.co_varnames[: code.co_argcount])

    @property
    def blocks(self) -> int:
        """Blocks of the grid; 1 if the grid is not valid (``simulate`` then reports what is wrong
        with it).
        """
        return math.prod(_extent(self.grid))

    @property
    def threads(self) -> int:
        """Threads of a block; 1 if the block is not valid."""
        return math.prod(_extent(self.block))

    def newest(self) -> Launch:
        """Return the launch with the current function of the kernel's name, since its cell may have
        been run again.
        """
        function = _function(self.kernel)
        name = getattr(function, "__qualname__", "")
        now = getattr(function, "__globals__", {}).get(name, self.kernel)
        if now is self.kernel or not hasattr(_function(now), "__code__"):
            return self
        return dataclasses.replace(self, kernel=now)

    def code(self) -> str:
        """Return the source of the call's arguments: the variables that hold the arrays, else the
        parameters; numbers as literals.
        """
        words = self.words or self._words()
        return ", ".join([self.name, str(self.grid), str(self.block), *words])

    def _words(self) -> list[str]:
        # in one go: a cell may define names while the work's thread looks
        there = list(getattr(_function(self.kernel), "__globals__", {}).items())
        variables = {id(value): name for name, value in there if not name.startswith("_")}
        parameters = dict(enumerate(self.parameters))
        return [
            variables.get(id(argument), parameters.get(k, f"argument{k}"))
            if np.ndim(argument)
            else repr(argument)
            for k, argument in enumerate(self.arguments)
        ]

    def copies(self) -> list[Any]:
        """Return the arguments with copies of the arrays; an array that is passed twice stays one
        array. What ``simulate`` would refuse (arrays that overlap or are not contiguous) is
        returned as it is, to be refused unchanged.
        """
        arrays = [_host_array(argument) for argument in self.arguments]
        pairs = itertools.combinations([array for array in arrays if array is not None], 2)
        if any(np.may_share_memory(a, b) and not _same(a, b) for a, b in pairs):
            return list(self.arguments)
        made: dict[int, np.ndarray] = {}  # by the address of the original
        for array in arrays:
            if array is not None and array.ctypes.data not in made:
                made[array.ctypes.data] = array.copy()
                made[array.ctypes.data].flags.writeable = array.flags.writeable
        return [
            argument if array is None else made[array.ctypes.data].reshape(array.shape)
            for argument, array in zip(self.arguments, arrays, strict=True)
        ]


def _function(kernel: Any) -> Any:
    """Return the Python function behind a kernel, which may be wrapped by a compiler's
    decorator.
    """
    return getattr(kernel, "py_func", kernel)


def _host_array(argument: Any) -> np.ndarray | None:
    """Return an array in main memory that can run as it is, or None."""
    is_torch = type(argument).__module__.startswith("torch") and hasattr(argument, "detach")
    if is_torch and argument.device.type == "cpu":
        try:
            argument = argument.detach().numpy()
        except (TypeError, RuntimeError):  # of a type or a layout that NumPy has not
            return None
    if not isinstance(argument, np.ndarray) or not argument.ndim or argument.dtype.hasobject:
        return None
    return argument if argument.flags.c_contiguous else None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data and a.dtype == b.dtype and a.size == b.size


def _extent(value: Any) -> Sequence[int]:
    """Return a grid or a block as whole numbers, none for what is none: their product is 1."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    is_extent = all(is_whole(part) and 0 < part < 2**31 for part in parts)
    return tuple(map(int, parts)) if is_extent else ()


# The microscope's own kernels.

_HEADER = (
    "import numpy as np\n\nimport gpulab as gl\nfrom gpulab.kernels import cuda, float32\n\n\n"
)


class Example(NamedTuple):
    """A kernel to look at: its label in the list of choices, its launch, and the names of its
    arguments with the expressions that make them.
    """

    label: str
    kernel: Callable[..., None]
    grid: Any
    block: Any
    arrays: Mapping[str, str]

    @property
    def cell(self) -> str:
        """The text of the cell that defines the kernel and its arrays."""
        made = "\n".join(f"{name} = {expression}" for name, expression in self.arrays.items())
        return f"{_HEADER}{inspect.getsource(self.kernel)}\n\n{made}\n"

    def launch(self) -> Launch:
        """Run the cell; return the kernel with fresh arrays."""
        name = f"<{self.kernel.__name__}>"
        names: dict[str, Any] = {}
        exec(compile(self.cell, name, "exec"), names)
        # As IPython does for its cells: without a time of change, the text is found again by
        # inspect and never thrown away.
        linecache.cache[name] = (len(self.cell), None, self.cell.splitlines(keepends=True), name)
        arguments, words = tuple(names[array] for array in self.arrays), tuple(self.arrays)
        kernel = names[self.kernel.__name__]
        return Launch(kernel, self.grid, self.block, arguments, words=words)


def vector_add(x, y, out):
    """Add two vectors; the last warp has more lanes than elements."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def vector_add_unguarded(x, y, out):
    """Ignore that there are more threads than elements."""
    i = cuda.grid(1)
    out[i] = x[i] + y[i]


def odd_and_even(x, out):
    """Make the lanes of each warp diverge."""
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = 2 * x[i]
    else:
        out[i] = x[i] + 1


def strided_copy(x, out):
    """Read every eighth element, and write one after the other."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[8 * i]


def transpose_naive(a, out):
    """Read along rows, and therefore write along columns."""
    x, y = cuda.grid(2)
    value = a[y, x]
    out[x, y] = value


def transpose_tiled(a, out):
    """Transpose a tile in shared memory: device memory is read and written along rows."""
    tile = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = 32 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    tile[ty, tx] = a[row + ty, column + tx]
    cuda.syncthreads()
    out[column + ty, row + tx] = tile[tx, ty]


def transpose_padded(a, out):
    """Pad each row of the tile by one column: a column then lies in different banks."""
    tile = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = 32 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    tile[ty, tx] = a[row + ty, column + tx]
    cuda.syncthreads()
    out[column + ty, row + tx] = tile[tx, ty]


def block_sum(x, out):
    """Add up the block's elements: halve the number of terms until one is left."""
    terms = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    terms[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            terms[t] += terms[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = terms[0]


def block_sum_no_barrier(x, out):
    """Forget that a warp may be ahead of another one."""
    terms = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    terms[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            terms[t] += terms[t + half]
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = terms[0]


def _ramp(count: str) -> str:
    return f"np.arange({count}, dtype=np.float32)"


_MATRIX = {"a": _ramp("64 * 64") + ".reshape(64, 64)", "out": "np.zeros((64, 64), np.float32)"}
_TERMS = {"x": _ramp("256"), "out": "np.zeros(2, np.float32)"}
_SUMS = {"x": _ramp("100"), "y": "np.ones(100, np.float32)", "out": "np.zeros(100, np.float32)"}

EXAMPLES: Mapping[str, Example] = {
    example.kernel.__name__: example
    for example in (
        Example("vector add, with its guard", vector_add, 4, 32, _SUMS),
        Example("vector add, without the guard", vector_add_unguarded, 4, 32, _SUMS),
        Example(
            "odd and even lanes diverge",
            odd_and_even,
            2,
            64,
            {"x": _ramp("128"), "out": "np.zeros(128, np.float32)"},
        ),
        Example(
            "copy with a stride of 8",
            strided_copy,
            2,
            64,
            {"x": _ramp("1024"), "out": "np.zeros(128, np.float32)"},
        ),
        Example("transpose, naive", transpose_naive, (2, 2), (32, 32), _MATRIX),
        Example("transpose, tiled", transpose_tiled, (2, 2), (32, 32), _MATRIX),
        Example("transpose, tiled and padded", transpose_padded, (2, 2), (32, 32), _MATRIX),
        Example("block sum", block_sum, 2, 128, _TERMS),
        Example("block sum, a barrier missing", block_sum_no_barrier, 2, 128, _TERMS),
    )
}


@functools.cache
def example_launch(name: str) -> Launch:
    """Return an example with its launch; its arrays are shared, as each run works on copies."""
    return EXAMPLES[name].launch()
