"""The kernels that the SIMT microscope offers: each is the text of one notebook cell, run as a
learner would run it.

So the line numbers in the microscope are those of the cell that "Show the code" prints.
"""

# The kernels are written as a learner writes them, without annotations.
# mypy: allow-untyped-defs
from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulab.kernels import cuda, float32
from gpulab.widgets._simt_launch import Launch

_HEADER = (
    "import numpy as np\n\nimport gpulab as gl\nfrom gpulab.kernels import cuda, float32\n\n\n"
)


@dataclass(frozen=True)
class Example:
    """A kernel to look at.

    Attributes
    ----------
    label : str
        For the list of choices.
    kernel : callable
    grid, block : int or tuple of int
    arrays : mapping of str to str
        The kernel's arguments: their names, and the expressions that make them.
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
        arguments = tuple(names[array] for array in self.arrays)
        return Launch(
            names[self.kernel.__name__], self.grid, self.block, arguments, words=tuple(self.arrays)
        )


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
