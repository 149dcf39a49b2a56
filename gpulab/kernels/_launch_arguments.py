"""What a launch on a GPU is given: the same checks as ``simulate`` makes, and which arrays have to
travel.

Host arrays (NumPy's, CPU tensors) are copied to the GPU and, after the kernel, back. Arrays that
are on the GPU are used in place.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpulab.errors import InputError, KernelError, kind_of, shown
from gpulab.kernels._simulate import _run
from gpulab.kernels._simulate._geometry import Extent
from gpulab.kernels._simulate._run import program_of
from gpulab.kernels._simulate._source import Source

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
HOST, DEVICE, NUMBER = "host", "device", "number"
# Shared memory that a block may have without the kernel's limit being raised
# (cudaFuncAttributeMaxDynamicSharedMemorySize). Source: CUDA C++ Programming Guide 13.0, on compute
# capability 8.x and later. numba-cuda 0.30 cannot raise it: its issue 94.
UNASKED_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a kernel: ``kind`` is "host" (an array that travels), "device" (one used in
    place) or "number".
    """

    name: str
    kind: str
    value: Any


@contextlib.contextmanager
def said_by(who: str) -> Iterator[None]:
    """Let the checks that are shared with ``simulate`` report another function's name."""
    try:
        yield
    except InputError as error:
        error.args = (f"{who}:{str(error).removeprefix('simulate:')}",)
        raise


def checked_extents(
    who: str, grid: Any, block: Any, dynamic_shared_bytes: Any
) -> tuple[Extent, Extent]:
    """Return grid and block as three numbers each.

    Raises
    ------
    InputError
        If one of them, or the shared memory, is not what a GPU can launch.
    """
    with said_by(who):
        extents = (
            _run._extent("grid", grid, _run._MOST_GRID),
            _run._extent("block", block, _run._MOST_BLOCK),
        )
        _run._given_numbers(dynamic_shared_bytes, 1, None, 1)
    if math.prod(extents[1]) > _run.MOST_THREADS:
        raise InputError(
            f"{who}: a block of {extents[1]} has {math.prod(extents[1]):,} threads; expected at "
            f"most {_run.MOST_THREADS:,}. "
            "Use more blocks."
        )
    return extents


def written_parameters(kernel: Any) -> frozenset[str] | None:
    """Return the parameters that a Python kernel writes to; None where its text does not tell."""
    try:
        return program_of(kernel).written
    except KernelError:  # a kernel may be launched that the microscope cannot read
        return None


def static_shared_bytes(kernel: Any) -> int:
    """Return the bytes of a Python kernel's shared arrays of fixed shapes; 0 where its text does
    not tell.
    """
    try:
        return program_of(kernel).static_shared_bytes
    except KernelError:
        return 0


def sorted_arguments(
    who: str,
    name: str,
    parameters: Sequence[str],
    args: Sequence[Any],
    written: frozenset[str] | None,
) -> list[Argument]:
    """Return the arguments of the kernel ``name`` with their kinds.

    Raises
    ------
    InputError
        If one is neither an array nor a number, is an array that a kernel cannot take, or two
        different arrays overlap.
    """
    found: list[Argument] = []
    for parameter, value in zip(parameters, args, strict=True):
        argument = _argument(who, parameter, value)
        if argument.kind == HOST:
            with said_by(who):
                _run._check_array(
                    cast(Source, _Named(name)),
                    parameter,
                    argument.value,
                    parameter in (written or ()),
                )
            for other in found:
                _refuse_overlap(who, argument, other)
        found.append(argument)
    return found


@dataclass(frozen=True)
class _Named:
    """All that the check of an array asks of a kernel's source: its name, for the message."""

    name: str


def _argument(who: str, name: str, value: Any) -> Argument:
    if isinstance(value, np.ndarray) and value.ndim:
        return Argument(name, HOST, value)
    if isinstance(value, _NUMBERS):
        return Argument(name, NUMBER, value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return Argument(name, NUMBER, value[()])
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        tensor = value.detach()
        if tensor.device.type not in ("cpu", "cuda"):
            raise InputError(
                f"{who}: {name} is a tensor on {tensor.device}; expected one on a CUDA device or "
                "in main memory. Move it."
            )
        if tensor.ndim == 0:
            return Argument(name, NUMBER, _run.array_of_tensor(who, name, tensor.cpu())[()])
        if tensor.device.type == "cuda":
            return Argument(name, DEVICE, tensor)
        return Argument(name, HOST, _run.array_of_tensor(who, name, tensor))
    if hasattr(value, "__cuda_array_interface__"):
        return Argument(name, DEVICE, value)
    raise InputError(
        f"{who}: {name}={shown(value)} is {kind_of(value)}; expected an array or a number. Convert "
        "it before the call, for example "
        "by numpy.asarray."
    )


def same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two host arrays are the same elements under the same type."""
    return a.ctypes.data == b.ctypes.data and a.dtype == b.dtype and a.size == b.size


def _refuse_overlap(who: str, argument: Argument, other: Argument) -> None:
    if (
        other.kind == HOST
        and np.shares_memory(argument.value, other.value)
        and not same_memory(argument.value, other.value)
    ):
        raise InputError(
            f"{who}: {argument.name} and {other.name} overlap in memory without being the same "
            "array; expected arrays that do not overlap, "
            "or the same one twice. Pass a copy of one."
        )


class Travellers:
    """The host arrays of a launch and their copies on the GPU; what is given twice travels once.

    Parameters
    ----------
    place : callable
        Takes a host array; returns a copy of it on the GPU, with its shape and type.
    fetch : callable
        Takes an array on the GPU; returns it as a NumPy array.
    """

    def __init__(
        self, place: Callable[[np.ndarray], Any], fetch: Callable[[Any], np.ndarray]
    ) -> None:
        self._place, self._fetch = place, fetch
        self._pairs: list[tuple[np.ndarray, Any]] = []

    def there(self, array: np.ndarray) -> Any:
        """Return the array's copy on the GPU, in the array's own shape."""
        for known, placed in self._pairs:
            if same_memory(known, array):
                return placed.reshape(array.shape)
        placed = self._place(array)
        self._pairs.append((array, placed))
        return placed

    def back(self) -> None:
        """Copy the arrays back to where they came from; those that are read-only stay as they
        are.
        """
        results = [
            (array, self._fetch(placed)) for array, placed in self._pairs if array.flags.writeable
        ]
        for array, result in results:  # all have arrived: none changes where one copy fails
            array[...] = result.reshape(array.shape)
