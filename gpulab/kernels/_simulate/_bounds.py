"""From an index to a place in memory: whether each lane's index is within bounds, and which element
it means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels._simulate._geometry import Mask
from gpulab.kernels._simulate._memory import START, View

if TYPE_CHECKING:
    from gpulab.kernels._simulate._machine import Machine

_UNSIGNED = np.dtype(np.uint64)  # an int64 below 0 is larger than any extent there
# How many indices are remembered: as many as a statement or two use, so that variables find theirs
# again.
_REMEMBERED = 16
# Larger ones are not: to look again costs less than memory that is kept from being used again.
_MOST_REMEMBERED = 1 << 14


class Known:
    """The places that indices in use were found to mean, so that a variable that indexes many
    accesses is looked at once.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[int, Any, int], tuple[Any, Mask | None, Any]] = {}

    def place(self, index: np.ndarray, extent: Any, stride: int, mask: Mask) -> Any:
        """Return what was found for an index (in all lanes, or in these), or None."""
        known = self._found.get((id(index), extent, stride))
        if (
            known is None
            or known[0] is not index
            or (known[1] is not None and known[1] is not mask)
        ):
            return None
        return known[2]

    def remember(
        self, index: np.ndarray, extent: Any, stride: int, mask: Mask | None, place: Any
    ) -> None:
        """Keep what was found; ``mask`` is None where it holds for any lanes."""
        if index.size > _MOST_REMEMBERED:
            return
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[id(index), extent, stride] = index, mask, place


def locate(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    mask: Mask,
    line: int,
    verb: str,
    from_end: tuple[bool, ...],
) -> tuple[Any, Mask | None]:
    """Return the places in the store that an index means, 0 where it is out of bounds, and the
    lanes that are within.
    """
    where = view.offset
    inside = mask
    for axis, index in enumerate(indices):
        extent, stride = view.shape[axis], view.strides[axis]
        if from_end[axis]:
            index = index + extent  # noqa: PLW2901 - a[-1] is written for the last element
        if isinstance(index, np.ndarray) and not isinstance(extent, np.ndarray):
            place = machine.known.place(index, extent, stride, inside)
            if place is None:
                place, rest = _place(machine, view, indices, axis, index, inside, line, verb)
                if rest is None:
                    return where, None
                inside = rest
        elif not isinstance(extent, np.ndarray) and 0 <= index < extent:
            place = index if stride == 1 else index * np.int64(stride)
        else:
            index, rest = _outside(machine, view, indices, axis, index, inside, line, verb)  # noqa: PLW2901
            if rest is None:
                return where, None
            inside, place = rest, index * np.int64(stride)
        where = place if where is START else where + place
    return where, inside


def _place(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    axis: int,
    index: np.ndarray,
    mask: Mask,
    line: int,
    verb: str,
) -> tuple[Any, Mask | None]:
    """Return index times stride, and the lanes that are within; remember it, unless there is
    something to report.
    """
    extent, stride = view.shape[axis], view.strides[axis]
    rest: Mask | None = mask
    safe = index
    outside = index.view(_UNSIGNED) >= np.uint64(extent)
    if np.count_nonzero(outside):
        if np.count_nonzero(outside if mask.array is None else outside & mask.array):
            safe, rest = _outside(machine, view, indices, axis, index, mask, line, verb)
            return (safe if stride == 1 else safe * np.int64(stride)), rest
        safe = np.where(outside, np.int64(0), index)  # in lanes that take no part
    place = safe if stride == 1 else safe * np.int64(stride)
    machine.known.remember(index, extent, stride, None if safe is index else mask, place)
    return place, rest


def _outside(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    axis: int,
    index: Any,
    mask: Mask,
    line: int,
    verb: str,
) -> tuple[Any, Mask | None]:
    """Report the lanes whose index is out of bounds; return an index that is not, and the lanes
    that remain.
    """
    extent = view.shape[axis]
    bad = np.atleast_2d((index < 0) | (index >= extent))
    outside, rest = mask.split(bad)
    if outside is not None:
        _report(machine, view, indices, index, outside, line, verb)
        wraps = bad & (np.atleast_2d(index) >= -extent) & (np.atleast_2d(index) < 0)
        if wraps.any():  # numba's rule, so that the values are those of numba
            index = np.where(wraps, np.atleast_2d(index) + extent, np.atleast_2d(index))
            bad = np.atleast_2d((index < 0) | (index >= extent))
            outside, rest = mask.split(bad)
    return np.where(bad, np.int64(0), index), rest


def _report(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    index: Any,
    outside: Mask,
    line: int,
    verb: str,
) -> None:
    row, lane = (int(part) for part in divmod(outside.flat[0], machine.batch.width))
    shown = tuple(int(_of_lane(i, row, lane)) for i in indices)
    wrapped = (
        "; numba would count it from the end, CUDA C++ would access memory before the array"
        if _of_lane(index, row, lane) < 0
        else ""
    )
    shape = tuple(int(_of_lane(n, row, lane)) for n in view.shape)
    machine.found(
        "bounds",
        line,
        view.store.name,
        shown,
        (machine.thread(row, lane),),
        outside.lanes,
        f"the index {shown[0] if len(shown) == 1 else shown} to {verb} is out of bounds for "
        f"{view.store.name}, "
        f"whose shape is {shape[0] if len(shape) == 1 else shape}{wrapped}",
    )


def _of_lane(value: Any, row: int, lane: int) -> Any:
    if np.ndim(value) == 0:
        return value
    return value[row if value.shape[0] > 1 else 0, lane if value.shape[1] > 1 else 0]
