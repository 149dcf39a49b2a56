"""A kernel with its launch: what is run, on copies of which arrays, and how a learner would write
the call.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.errors import InputError, shown


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
                    "Pass kernel, grid, block and the "
                    "kernel's arguments."
                )

    @property
    def _function(self) -> Any:
        return _function(self.kernel)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(getattr(self._function, "__name__", None) or shown(self.kernel))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters; empty if the kernel is not a function."""
        code = getattr(self._function, "__code__", None)
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
        function = self._function
        now = getattr(function, "__globals__", {}).get(
            getattr(function, "__qualname__", ""), self.kernel
        )
        return (
            self
            if now is self.kernel or not hasattr(_function(now), "__code__")
            else dataclasses.replace(self, kernel=now)
        )

    def code(self) -> str:
        """Return the source of the call's arguments: the variables that hold the arrays, else the
        parameters; numbers as literals.
        """
        return f"{self.name}, {self.grid}, {self.block}" + "".join(
            f", {word}" for word in self.words or self._words()
        )

    def _words(self) -> list[str]:
        # in one go: a cell may define names while the work's thread looks
        there = list(getattr(self._function, "__globals__", {}).items())
        variables = {id(value): name for name, value in there if not name.startswith("_")}
        words = []
        for k, argument in enumerate(self.arguments):
            parameter = self.parameters[k] if k < len(self.parameters) else f"argument{k}"
            words.append(
                variables.get(id(argument), parameter) if np.ndim(argument) else repr(argument)
            )
        return words

    def copies(self) -> list[Any]:
        """Return the arguments with copies of the arrays; an array that is passed twice stays one
        array. What ``simulate`` would refuse (arrays that overlap or are not contiguous) is
        returned as it is, to be refused unchanged.
        """
        made: list[tuple[np.ndarray, np.ndarray]] = []
        found: list[Any] = []
        for argument in self.arguments:
            array = _host_array(argument)
            if array is None:
                found.append(argument)
                continue
            if any(
                np.may_share_memory(array, known) and not _same(array, known) for known, _ in made
            ):
                return list(self.arguments)
            known = next((copy for known, copy in made if _same(array, known)), None)
            copy = (array.copy() if known is None else known).reshape(array.shape)
            copy.flags.writeable = array.flags.writeable
            made.append((array, copy))
            found.append(copy)
        return found


def _function(kernel: Any) -> Any:
    """Return the Python function behind a kernel, which may be wrapped by a compiler's
    decorator.
    """
    return getattr(kernel, "py_func", kernel)


def _host_array(argument: Any) -> np.ndarray | None:
    """Return an array in main memory that can run as it is, or None."""
    if (
        type(argument).__module__.startswith("torch")
        and hasattr(argument, "detach")
        and argument.device.type == "cpu"
    ):
        try:
            argument = argument.detach().numpy()
        except (TypeError, RuntimeError):  # of a type or a layout that NumPy has not
            return None
    if (
        isinstance(argument, np.ndarray)
        and argument.ndim
        and argument.flags.c_contiguous
        and not argument.dtype.hasobject
    ):
        return argument
    return None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data and a.dtype == b.dtype and a.size == b.size


def _extent(value: Any) -> Sequence[int]:
    """Return a grid or a block as whole numbers, none for what is none: their product is 1."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    if parts and all(
        isinstance(p, (int, np.integer)) and not isinstance(p, bool) and 0 < p < 2**31
        for p in parts
    ):
        return tuple(map(int, parts))
    return ()
