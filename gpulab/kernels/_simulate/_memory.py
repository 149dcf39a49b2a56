"""Arrays as a kernel sees them: where they live, how an index becomes a place, and what goes through the lanes.

A ``Store`` is memory; a ``View`` is what a name in the kernel stands for: a store with an offset, a shape and strides, so that a row of
a matrix or a slice is again an array. Every access goes through ``Machine`` in ``_machine``, which counts it and looks for hazards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.kernels._simulate._geometry import Batch, Mask

Index = Any  # a NumPy integer, or an array of them of shape (B or 1, T or 1)
# What a float that nobody wrote shows itself as; integers get an unlikely one.
_UNWRITTEN_INTEGER = 0x5EED


class Store:
    """Memory of one element type.

    ``space`` is "global" (shared by all blocks), "shared" (``data`` has one row a block), "local" (one column a lane: ``data`` has shape
    (elements, B, T)) or "constant" (as global, not written and not counted).
    """

    __slots__ = ("data", "dtype", "elements", "name", "space", "tracker", "writable")

    def __init__(self, name: str, space: str, data: np.ndarray, elements: int, writable: bool = True) -> None:
        self.name, self.space, self.data, self.elements = name, space, data, elements
        self.dtype = data.dtype
        self.writable = writable
        self.tracker: Any = None

    def read(self, where: Any, batch: Batch) -> Any:
        """Return the elements at places within bounds; the shape follows that of the places."""
        # mode="wrap" only because NumPy is faster with it: nothing is out of bounds here.
        if self.space in ("global", "constant"):
            return self.data.take(where, mode="wrap") if np.ndim(where) else self.data[where]
        if self.space == "local":
            if np.ndim(where) == 0 or np.size(where) == 1:
                return self.data[np.asarray(where).item()].copy()
            return np.take_along_axis(self.data, np.broadcast_to(where, self.data.shape[1:])[None], axis=0)[0]
        if np.ndim(where) == 0 or np.size(where) == 1:
            return self.data[:, np.asarray(where).item(), None].copy()
        if where.shape[0] == 1:
            return self.data.take(where[0], axis=1, mode="wrap")
        rows = np.arange(batch.blocks)[:, None] * self.data.shape[1]
        return self.data.reshape(-1).take(where + rows, mode="wrap")

    def write(self, where: Any, value: Any, mask: Mask) -> None:
        """Write values at places within bounds; of lanes that write one place at once, the last one stays."""
        batch = mask.batch
        if self.space == "local":
            self._write_local(where, value, mask)
        elif self.space == "shared":
            if mask.array is None and np.ndim(where) == 2 and where.shape == (1, batch.width):
                self.data[:, where[0]] = value
                return
            rows = mask.selected(np.broadcast_to(np.arange(batch.blocks)[:, None], (batch.blocks, batch.width)))
            self.data[rows, mask.selected(where)] = mask.selected(value)
        else:
            self.data[mask.selected(where)] = mask.selected(value)

    def _write_local(self, where: Any, value: Any, mask: Mask) -> None:
        if np.ndim(where) == 0 or np.size(where) == 1:
            slot = self.data[np.asarray(where).item()]
            if mask.array is None:
                slot[...] = value
            else:
                np.copyto(slot, np.broadcast_to(value, slot.shape), where=mask.array)
            return
        shape = self.data.shape[1:]
        full = np.broadcast_to(where, shape)
        if mask.array is None:
            np.put_along_axis(self.data, full[None], np.broadcast_to(value, shape)[None].astype(self.dtype), axis=0)
            return
        rows, columns = np.nonzero(np.broadcast_to(mask.array, shape))
        self.data[full[rows, columns], rows, columns] = np.broadcast_to(value, shape)[rows, columns]


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
    """Return the view of an argument, contiguous in C order; the caller's own memory is what is read and written."""
    store = Store(name, "global", array.reshape(-1), array.size, writable)
    return View(store, np.int64(0), tuple(np.int64(n) for n in array.shape), contiguous_strides(array.shape))


def constant_view(name: str, array: np.ndarray) -> View:
    """Return the view of an array that the kernel captured: constant memory."""
    array = np.ascontiguousarray(array)
    store = Store(name, "constant", array.reshape(-1), array.size, writable=False)
    return View(store, np.int64(0), tuple(np.int64(n) for n in array.shape), contiguous_strides(array.shape))


def shared_view(name: str, shape: tuple[int, ...], dtype: np.dtype, batch: Batch) -> View:
    """Return a new array in the shared memory of each block."""
    size = math.prod(shape)
    data = np.full((batch.blocks, size), _unwritten(dtype), dtype=dtype)
    return View(Store(name, "shared", data, size), np.int64(0), tuple(np.int64(n) for n in shape), contiguous_strides(shape))


def local_view(name: str, shape: tuple[int, ...], dtype: np.dtype, batch: Batch) -> View:
    """Return a new array of each thread's own."""
    size = math.prod(shape)
    data = np.full((size, batch.blocks, batch.width), _unwritten(dtype), dtype=dtype)
    return View(Store(name, "local", data, size), np.int64(0), tuple(np.int64(n) for n in shape), contiguous_strides(shape))


def _unwritten(dtype: np.dtype) -> Any:
    if dtype.kind in "fc":
        return math.nan
    return False if dtype.kind == "b" else np.array(_UNWRITTEN_INTEGER).astype(dtype)[()]
