"""The kernels of the SIMT microscope: a kernel with its launch, run on copies of which arrays, and
those that the microscope offers, whose cells are the files of ``course/04/microscope``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import inspect
import linecache
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from gpulab._validate import is_whole
from gpulab.errors import shown
from gpulab.lessons import content


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
    """

    kernel: Any
    grid: Any
    block: Any
    arguments: tuple[Any, ...]
    dynamic_shared_bytes: int = 0

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
        # in one go: a cell may define names while the work's thread looks
        there = list(getattr(_function(self.kernel), "__globals__", {}).items())
        variables = {id(value): name for name, value in there if not name.startswith("_")}
        parameters = dict(enumerate(self.parameters))
        words = (
            variables.get(id(argument), parameters.get(k, f"argument{k}"))
            if np.ndim(argument)
            else repr(argument)
            for k, argument in enumerate(self.arguments)
        )
        return ", ".join([self.name, str(self.grid), str(self.block), *words])

    def copies(self) -> list[Any]:
        """Return the arguments with copies of the arrays: strides stay, and memory that several of
        them share stays shared.
        """
        arrays = [_host_array(argument) for argument in self.arguments]
        spans: list[tuple[int, int]] = []
        for low, high in sorted(byte_bounds(array) for array in arrays if array is not None):
            if spans and low < spans[-1][1]:
                spans[-1] = spans[-1][0], max(high, spans[-1][1])
            else:
                spans.append((low, high))
        made = {low: np.array(bytearray(ctypes.string_at(low, high - low))) for low, high in spans}
        copies = list(self.arguments)
        for k, array in enumerate(arrays):
            if array is not None:
                start = max(low for low in made if low <= byte_bounds(array)[0])
                place = array.ctypes.data - start
                copy = np.ndarray(array.shape, array.dtype, made[start], place, array.strides)
                copy.flags.writeable = array.flags.writeable
                copies[k] = copy
        return copies


def _function(kernel: Any) -> Any:
    """Return the Python function behind a kernel, which may be wrapped by a compiler's
    decorator.
    """
    return getattr(kernel, "py_func", kernel)


def _host_array(argument: Any) -> np.ndarray | None:
    """Return an argument's array in main memory, or None."""
    if hasattr(argument, "detach"):  # a tensor of PyTorch, or a parameter
        try:
            argument = argument.detach().cpu().numpy()
        except (TypeError, RuntimeError):  # NumPy cannot hold it: simulate refuses it
            return None
    return argument if isinstance(argument, np.ndarray) and not argument.dtype.hasobject else None


def _extent(value: Any) -> Sequence[int]:
    """Return a grid or a block as whole numbers, none for what is none: their product is 1."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    is_extent = all(is_whole(part) and 0 < part < 2**31 for part in parts)
    return tuple(map(int, parts)) if is_extent else ()


# The microscope's own kernels.

# By the kernel's name, which is also that of its file: its label in the list of choices, its grid
# and its block.
EXAMPLES: Mapping[str, tuple[str, Any, Any]] = {
    "vector_add": ("vector add, with its guard", 4, 32),
    "vector_add_unguarded": ("vector add, without the guard", 4, 32),
    "odd_and_even": ("odd and even lanes diverge", 2, 64),
    "strided_copy": ("copy with a stride of 8", 2, 64),
    "transpose_naive": ("transpose, naive", (2, 2), (32, 32)),
    "transpose_tiled": ("transpose, tiled", (2, 2), (32, 32)),
    "transpose_padded": ("transpose, tiled and padded", (2, 2), (32, 32)),
    "block_sum": ("block sum", 2, 128),
    "block_sum_no_barrier": ("block sum, a barrier missing", 2, 128),
}


def example_cell(name: str) -> str:
    """Return the text of the notebook cell that defines an example and its arguments."""
    return (content.COURSE / "04" / "microscope" / f"{name}.py").read_text(encoding="utf-8")


@functools.cache
def example_launch(name: str) -> Launch:
    """Return an example with its launch; its arrays are shared, as each run works on copies.

    Its cell is run as a learner would run it, so the line numbers in the microscope are those of
    the cell that "Show the code" prints.
    """
    cell, file, names = example_cell(name), f"<{name}>", dict[str, Any]()
    exec(compile(cell, file, "exec"), names)
    # As IPython does for its cells: without a time of change, the text is found again by inspect
    # and never thrown away.
    linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
    arguments = tuple(names[word] for word in inspect.signature(names[name]).parameters)
    return Launch(names[name], *EXAMPLES[name][1:], arguments)
