"""Atomics: of lanes that update one place at once, each sees what the lanes before it left.

The order is that of the lanes, block by block; on a GPU it may be any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._geometry import Mask
from gpulab.kernels._simulate._memory import Store

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "nanmin": np.fmin,
    "nanmax": np.fmax,
    "and_": np.bitwise_and,
    "or_": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1).astype(old.dtype),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1).astype(
        old.dtype
    ),
}
_WHOLE, _UNSIGNED = ("int32", "uint32", "int64", "uint64"), ("uint32", "uint64")
# The element types for which numba-cuda has each; those that are not here take floats as well.
# Source: numba-cuda 0.30, cudadecl.py.
_INTEGERS_ONLY = dict.fromkeys(
    ("and_", "or_", "xor", "exch", "cas", "compare_and_swap"), _WHOLE
) | dict.fromkeys(("inc", "dec"), _UNSIGNED)
_FEW = 8  # lanes at one place that take their turns one by one
_SCANS = ("add", "min", "max", "nanmin", "nanmax", "and_", "or_", "xor")


def types_of(operation: str) -> tuple[str, ...]:
    """Return the element types on which a GPU has an atomic."""
    return _INTEGERS_ONLY.get(operation, (*_WHOLE, "float32", "float64"))


def apply(
    operation: str, store: Store, where: Any, values: list[Any], mask: Mask, wanted: bool
) -> Any:
    """Update the places and return the old value of each lane (0 in lanes that take no part), or
    None where nobody wants it.
    """
    batch = mask.batch
    places = store.flat(where, mask)
    given = [mask.selected(_types.cast(value, store.dtype)) for value in values]
    data = store.data.reshape(-1)
    if operation == "sub":
        operation, given = "add", [np.negative(given[0])]
    if operation in ("min", "max") and store.dtype.kind == "f":
        # A nan is not taken, and one that is there stays. Source: numba-cuda 0.30,
        # ir_numba_atomic_minmax_template in cudadrv/nvvm.py.
        given = [
            np.where(
                np.isnan(given[0]),
                store.dtype.type(np.inf if operation == "min" else -np.inf),
                given[0],
            )
        ]
    if not wanted and operation in _SCANS:
        OPERATIONS[operation].at(data, places, given[0])  # type: ignore[attr-defined]
        return None
    old = _in_order(operation, data, places, given)
    out = np.zeros(batch.blocks * batch.width, dtype=store.dtype)
    out[mask.flat] = old
    return out.reshape(batch.blocks, batch.width)


def _in_order(
    operation: str, data: np.ndarray, places: np.ndarray, given: list[np.ndarray]
) -> np.ndarray:
    """Update ``data`` at the places, one lane after the other, and return what each found there."""
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = sorted_places[1:] != sorted_places[:-1]
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(order)))
    old = np.empty(len(order), dtype=data.dtype)
    # what is lost depends on what was summed before
    if operation == "add" and data.dtype.kind == "f":
        many = lengths > _FEW
        for start, length in zip(starts[many].tolist(), lengths[many].tolist(), strict=True):
            lanes = order[start : start + length]
            place = places[lanes[0]]
            sums = np.add.accumulate(np.append(data[place], given[0][lanes]))
            old[lanes], data[place] = sums[:-1], sums[-1]
        starts, lengths = starts[~many], lengths[~many]
        if not len(starts):
            return old
    if operation in _SCANS and lengths.max() > _FEW:
        old[order] = _scanned(operation, data, sorted_places, given[0][order], starts, lengths)
        return old
    # One round for the first lane of each place, one for the second, and so on.
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    for turn in range(int(lengths[0])):
        lanes = order[starts[: np.searchsorted(-lengths, -turn, side="left")] + turn]
        here = places[lanes]
        found = data[here]
        old[lanes] = found
        if operation == "cas":
            data[here] = np.where(found == given[0][lanes], given[1][lanes], found)
        else:
            data[here] = OPERATIONS[operation](found, given[0][lanes])
    return old


def _scanned(
    operation: str,
    data: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
) -> np.ndarray:
    """Return the old value of each lane, sorted by place, by a segmented scan of doubling steps;
    update ``data``.
    """
    combine = OPERATIONS[operation]
    position = np.arange(len(places)) - np.repeat(starts, lengths)
    running = values.copy()
    running[starts] = combine(data[places[starts]], values[starts])
    step = 1
    while step < int(lengths.max()):
        reach = np.flatnonzero(position >= step)
        running[reach] = combine(running[reach - step], running[reach])
        step *= 2
    old = np.empty_like(running)
    old[1:] = running[:-1]
    old[starts] = data[places[starts]]
    data[places[starts]] = running[starts + lengths - 1]
    return old
