"""Arrays as a kernel sees them: where they live, how an index becomes a place, and what goes
through the lanes.

A ``Store`` is memory; a ``View`` is what a name in the kernel stands for: a store with an offset, a
shape and strides, so that a row of a matrix or a slice is again an array. Every access goes through
``Machine`` in ``_machine``, which counts it and looks for hazards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.kernels._simulate._geometry import Batch, Mask

START = np.int64(0)  # the offset of an array that begins where its store does
Index = Any  # a NumPy integer, or an array of them of shape (B or 1, T or 1)
# What a float that nobody wrote shows itself as; integers get an unlikely one.
_UNWRITTEN_INTEGER = 0x5EED


class Store:
    """Memory of one element type.

    ``space`` is "global" (shared by all blocks), "shared" (``data`` has one row a block), "local"
    (one column a lane: ``data`` has shape (elements, B, T)) or "constant" (as global, not written
    and not counted).
    """

    __slots__ = ("data", "dtype", "elements", "name", "space", "tracker", "words", "writable")

    def __init__(
        self, name: str, space: str, data: np.ndarray, elements: int, writable: bool = True
    ) -> None:
        self.name, self.space, self.data, self.elements = name, space, data, elements
        self.dtype = data.dtype
        self.writable = writable
        self.tracker: Any = None
        self.words = 1  # of the tracker's, in each element

    def read(self, where: Index, batch: Batch) -> Any:
        """Return the elements at places within bounds; the shape follows that of the places."""
        # mode="wrap" only because NumPy is faster with it: nothing is out of bounds here.
        if self.space in ("global", "constant"):
            return (
                self.data.take(where, mode="wrap")
                if isinstance(where, np.ndarray)
                else self.data[where]
            )
        if where.size == 1:
            return (
                self.data[where.item()].copy()
                if self.space == "local"
                else self.data[:, where.item(), None].copy()
            )
        if self.space == "local":
            lanes = batch.every_lane.reshape(batch.blocks, batch.width)
            return self.data.reshape(-1).take(where * np.int64(lanes.size) + lanes, mode="wrap")
        if where.shape[0] == 1:
            return self.data.take(where[0], axis=1, mode="wrap")
        return self.data.reshape(-1).take(where + batch.rows * self.data.shape[1], mode="wrap")

    def write(self, where: Index, value: Any, mask: Mask) -> None:
        """Write values at places within bounds; of lanes that write one place at once, the last one
        stays.
        """
        if where.size == 1 and self.space == "local":
            np.copyto(
                self.data[where.item()], value, where=True if mask.array is None else mask.array
            )
        elif (
            self.space == "shared"
            and mask.array is None
            and where.size == mask.batch.width
            and len(where) == 1
        ):
            self.data[:, where[0]] = value
        else:
            self.data.reshape(-1)[self.flat(where, mask)] = (
                value if value.size == 1 else mask.selected(value)
            )

    def flat(self, where: Index, mask: Mask) -> np.ndarray:
        """Return the place in ``data``, flattened, of each lane that is here."""
        batch = mask.batch
        places: np.ndarray = mask.selected(where)
        if self.space == "local":
            places = places * np.int64(batch.blocks * batch.width) + mask.flat
        elif self.space == "shared" and batch.blocks > 1:
            places = places + mask.flat // batch.width * np.int64(self.data.shape[1])
        return places


@dataclass(frozen=True, eq=False)
class View:
    """An array in the kernel: a store, and how its indices map to places there (in elements)."""

    store: Store
    offset: Index
    shape: tuple[Index, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """Return the element type."""
        return self.store.dtype

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-ordered array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def global_view(name: str, array: np.ndarray, writable: bool) -> View:
    """Return the view of an argument, contiguous in C order; the caller's own memory is what is
    read and written.
    """
    store = Store(name, "global", array.reshape(-1), array.size, writable)
    return View(
        store, START, tuple(np.int64(n) for n in array.shape), contiguous_strides(array.shape)
    )


def constant_view(name: str, array: np.ndarray) -> View:
    """Return the view of an array that the kernel captured: constant memory."""
    array = np.ascontiguousarray(array)
    store = Store(name, "constant", array.reshape(-1), array.size, writable=False)
    return View(
        store, START, tuple(np.int64(n) for n in array.shape), contiguous_strides(array.shape)
    )


def cannot_be_written(view: View) -> str:
    """Return what is wrong with writing to constant memory, as numba refuses it: what changed would
    be the learner's own array.
    """
    name = view.store.name
    return (
        f"{name} is constant memory, like all arrays from outside the kernel; expected an "
        "argument of the kernel to write to"
    )


def shared_view(name: str, shape: tuple[int, ...], dtype: np.dtype, batch: Batch) -> View:
    """Return a new array in the shared memory of each block."""
    size = math.prod(shape)
    data = np.full((batch.blocks, size), _unwritten(dtype), dtype=dtype)
    return View(
        Store(name, "shared", data, size),
        START,
        tuple(np.int64(n) for n in shape),
        contiguous_strides(shape),
    )


def local_view(name: str, shape: tuple[int, ...], dtype: np.dtype, batch: Batch) -> View:
    """Return a new array of each thread's own."""
    size = math.prod(shape)
    data = np.full((size, batch.blocks, batch.width), _unwritten(dtype), dtype=dtype)
    return View(
        Store(name, "local", data, size),
        START,
        tuple(np.int64(n) for n in shape),
        contiguous_strides(shape),
    )


def forget(store: Store, mask: Mask) -> None:
    """Let an array of each thread's own begin anew in some lanes."""
    np.copyto(store.data, _unwritten(store.dtype), where=True if mask.array is None else mask.array)


def _unwritten(dtype: np.dtype) -> Any:
    if dtype.kind in "fc":
        return math.nan
    return False if dtype.kind == "b" else np.array(_UNWRITTEN_INTEGER).astype(dtype)[()]
