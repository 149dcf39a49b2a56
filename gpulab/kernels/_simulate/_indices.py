"""Indices and slices: one element of an array, or a part of it that is again an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._bounds import locate
from gpulab.kernels._simulate._geometry import Mask
from gpulab.kernels._simulate._memory import START, View
from gpulab.kernels._simulate._source import Source
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.kernels._simulate._frame import Frame


class Slice:
    """A slice in an index: its limits, None where left out."""

    __slots__ = ("start", "stop")

    def __init__(self, start: Any, stop: Any) -> None:
        self.start, self.stop = start, stop


def index_of(view: View, places: tuple[Any, ...], source: Source, line: int) -> tuple[Any, ...]:
    """Return the indices of one element as int64."""
    if len(places) != len(view.shape):
        raise source.error(
            f"{view.store.name} has {plural(view.ndim, 'dimension')} and the index has "
            f"{len(places)}; expected one index for each",
            line,
        )
    if len(places) == 1:
        return (integer(places[0], source, line),)
    return tuple([integer(place, source, line) for place in places])


def integer(place: Any, source: Source, line: int) -> Any:
    """Return an index as int64, or name the line where it is not an integer."""
    if type(place) is np.int64 or (type(place) is np.ndarray and place.dtype is _types.INT):
        return place
    if not isinstance(place, (np.ndarray, np.generic)) or place.dtype.kind not in "iu":
        if isinstance(place, Slice):
            raise source.error(
                "a slice is used where one element is written; expected an index. Write a loop "
                "over the elements",
                line,
            )
        kind = getattr(place, "dtype", type(place).__name__)
        raise source.error(
            f"an index is of type {kind}; expected an integer. Wrap it in int(...)", line
        )
    return _types.cast(place, _types.INT)


def part_of(
    frame: Frame,
    mask: Mask,
    view: View,
    places: tuple[Any, ...],
    from_end: tuple[bool, ...],
    source: Source,
    line: int,
) -> View:
    """Return a row, a block or a slice of an array: a view of the same memory, without elements in
    lanes that are out of bounds.
    """
    if len(places) > view.ndim:
        raise source.error(
            f"{view.store.name} has {plural(view.ndim, 'dimension')} and the index has "
            f"{len(places)}; expected fewer",
            line,
        )
    offset, shape, strides = view.offset, [], []
    within: Mask | None = mask
    for axis, place in enumerate(places):
        extent, stride = view.shape[axis], view.strides[axis]
        if isinstance(place, Slice):
            start, stop = (
                default if limit is None else _clipped(integer(limit, source, line), extent)
                for limit, default in ((place.start, np.int64(0)), (place.stop, extent))
            )
            offset = offset + start * np.int64(stride)
            shape.append(np.maximum(stop - start, np.int64(0)))
            strides.append(stride)
        elif within is not None:
            one = View(view.store, START, (extent,), (1,))
            where, within = locate(
                frame.machine,
                one,
                (integer(place, source, line),),
                within,
                line,
                "take a part at",
                (from_end[axis],),
            )
            offset = offset + (where if within is not None else np.int64(0)) * np.int64(stride)
    shape.extend(view.shape[len(places) :])
    strides.extend(view.strides[len(places) :])
    if within is None:  # lanes that are out of bounds would have the first row
        shape[0] = np.int64(0)
    elif within is not mask and within.array is not None:
        shape[0] = np.where(within.array, shape[0], np.int64(0))
    return View(view.store, offset, tuple(shape), tuple(strides))


def _clipped(limit: Any, extent: Any) -> Any:
    return np.clip(np.where(limit < 0, limit + extent, limit), 0, extent)[()]
