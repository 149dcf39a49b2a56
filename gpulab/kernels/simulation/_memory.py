"""Memory as a kernel sees it: arrays, what an index means, every access of lanes, and atomics."""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpulab.kernels.simulation import _hazards, _types, report
from gpulab.kernels.simulation._geometry import Batch, Mask
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.kernels.simulation._machine import Machine
    from gpulab.kernels.simulation._simulate import Program

# -------------------------------------------------------------------------------------------------
# Arrays as a kernel sees them: where they are stored, how an index becomes a place, and how arrays
# of different lanes are merged.
#
# A ``Store`` is memory; a ``View`` is an array that a name in the kernel stands for: a store with
# an offset, a shape and strides, so that a row of a matrix or a slice is again an array. Every
# access goes through ``_touch``, which counts it and looks for hazards.


START = np.int64(0)  # the offset of an array that begins where its store does
Index = Any  # a NumPy integer, or an array of them of shape (B or 1, T or 1)
# The value of integers that no thread has written: an unlikely one. Unwritten floats are nan.
_UNWRITTEN_INTEGER = 0x5EED


class Store:
    """Memory of one element type.

    ``space`` is "global" (shared by all blocks), "shared" (``data`` has one row a block), "local"
    (one column a lane: ``data`` has shape (elements, B, T)) or "constant" (like global, but neither
    written nor counted). Places in it are ``pitch`` bytes apart. That is the size of an element, or
    less in records, whose fields are stores of the same memory with other types (``typed``).
    """

    def __init__(
        self,
        name: str,
        space: str,
        data: np.ndarray,
        elements: int,
        writable: bool = True,
        first_byte: int = 0,
    ) -> None:
        self.name, self.space, self.data, self.elements = name, space, data, elements
        self.dtype = data.dtype
        self.writable = writable
        self.first_byte = first_byte  # where in its allocation, which begins at a sector's start
        self.tracker: Any = None  # of hazards; it counts in words of ``word_bytes``
        self.pitch = self.word_bytes = data.dtype.itemsize
        # the extents of the array that has this memory, and the bytes between its elements
        self.layout: tuple[tuple[int, ...], tuple[int, ...]] = (elements,), (self.pitch,)
        self.is_even = True  # whether each place is an element of its own
        self._first: Store | None = None  # the store that this one was made from
        self._others: dict[tuple[np.dtype, int], Store] = {}

    @property
    def root(self) -> Store:
        """Return the first store that was made of this memory."""
        return self._first or self

    @property
    def words(self) -> int:
        """Return how many of the tracker's words an element has."""
        return max(1, self.dtype.itemsize // self.word_bytes)

    def track(self, program: Program, width: int) -> _hazards.Tracker:
        """Begin to look for hazards, in blocks of ``width`` lanes; return the tracker."""
        self.word_bytes = math.gcd(self.word_bytes, program.words[self.name])
        words = max(1, int(self.word_of(np.int64(self.elements - 1))) + self.words)
        is_global = self.space == "global"
        tracker = self.tracker = _hazards.Tracker(words, width, is_global, program.names_lanes)
        return tracker

    def word_of(self, where: Index) -> Index:
        """Return the first of the tracker's words at a place."""
        return where * np.int64(self.pitch) // np.int64(self.word_bytes)

    def index_of_word(self, word: int) -> int:
        """Return the number, in C order, of the element or record in which one of the tracker's
        words is.
        """
        byte, (shape, steps) = word % self.tracker.words * self.word_bytes, self.layout
        axes = zip(steps, shape, contiguous_strides(shape), strict=True)
        number = 0
        for step, extent, elements in sorted(axes, key=lambda axis: -abs(axis[0])):
            if extent > 1 and step:
                place, byte = divmod(byte, abs(step))
                number += elements * (place if step > 0 else extent - 1 - place)
        return number

    def typed(self, dtype: np.dtype, pitch: int) -> Store:
        """Return the same memory as elements of another type, one at each ``pitch`` bytes."""
        found = self.root._others.get((dtype, pitch))
        if found is None:
            data = self.root.data
            is_even = pitch == dtype.itemsize
            if is_even and (self.space != "local" or pitch == data.dtype.itemsize):
                data = data.view(dtype)
            else:
                data, is_even = _window(data, self.space, dtype, pitch), False
            places = data.shape[-1] if self.space == "shared" else data.shape[0]
            found = copy.copy(self)
            found.data, found.dtype, found.elements = data, data.dtype, places
            found._first, found.pitch, found.is_even = self.root, pitch, is_even
            self.root._others[dtype, pitch] = found
        return found

    def read(self, where: Index, batch: Batch) -> Any:
        """Return the elements at places within bounds; the shape follows that of the places."""
        # mode="wrap" only because NumPy is faster with it: nothing is out of bounds here.
        if self.is_even and self.space in ("global", "constant"):
            return self.data.take(where, mode="wrap")
        if self.is_even and self.space == "shared" and where.size > 1 and len(where) == 1:
            return self.data.take(where[0], axis=1, mode="wrap")
        rows = np.arange(batch.blocks)[:, None]
        return self.data[self._at(where, rows, batch.linear_thread)]

    def write(self, where: Index, value: Any, mask: Mask) -> None:
        """Write values at places within bounds. If several lanes write one place at once, the value
        of the last one stays.
        """
        if self.space == "global" and where.size == 1:
            self.data[where] = mask.selected(value)[-1] if value.ndim else value
        elif self.is_even and self.data.flags.c_contiguous:
            places, data = self.flat(where, mask), self.data.reshape(-1)
            data[places] = value if value.size == 1 else mask.selected(value)
        else:
            rows, lanes = np.divmod(mask.flat, mask.batch.width)
            self.data[self._at(mask.selected(where), rows, lanes)] = mask.selected(value)

    def _at(self, where: Index, rows: np.ndarray, lanes: np.ndarray) -> tuple[Any, ...]:
        """Return the index in ``data`` of places, of blocks and lanes."""
        if self.space == "local":
            return where, rows, lanes
        return (rows, where) if self.space == "shared" else (where,)

    def flat(self, where: Index, mask: Mask) -> np.ndarray:
        """Return the place in ``data``, flattened, of each lane that is here."""
        batch = mask.batch
        places: np.ndarray = mask.selected(where)
        if self.space == "local":
            places = places * np.int64(batch.blocks * batch.width) + mask.flat
        elif self.space == "shared" and batch.blocks > 1:
            places = places + mask.flat // batch.width * np.int64(self.data.shape[1])
        return places


def _window(data: np.ndarray, space: str, dtype: np.dtype, pitch: int) -> np.ndarray:
    """Return memory as elements of a type that begin at every ``pitch`` bytes, and may overlap."""
    lanes = {"shared": data.shape[:1], "local": data.shape[1:]}.get(space, ())
    base = data.transpose(1, 2, 0) if space == "local" else data
    if not base.flags.c_contiguous:
        raise TypeError("the elements of a local array cannot be taken apart")
    row = data.nbytes // max(1, math.prod(lanes))
    shape = (max(0, (row - dtype.itemsize) // pitch + 1), *lanes)
    apart = (pitch, *(row * math.prod(lanes[axis + 1 :]) for axis in range(len(lanes))))
    found = np.ndarray(shape, dtype, base.reshape(-1).view(np.uint8), strides=apart)
    return found.T if space == "shared" else found


@dataclass(frozen=True, eq=False)
class View:
    """An array in the kernel: a store, and how its indices map to places there.

    A record is a view without dimensions; ``within`` are the lanes in which it exists (None: all).
    """

    store: Store
    offset: Index
    shape: tuple[Index, ...]
    strides: tuple[int, ...]
    within: np.ndarray | None = None

    @property
    def dtype(self) -> np.dtype:
        """Return the element type."""
        return self.store.dtype

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True, eq=False)
class Choice:
    """An array that differs between lanes: several views of one type, each with the lanes that have
    it.
    """

    parts: tuple[tuple[np.ndarray, View], ...]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that all arrays have in common, such as their type; the shape is that
        of each lane's array.
        """
        values = [(here, getattr(view, name)) for here, view in self.parts]
        if name != "shape":
            return values[0][1]
        return functools.reduce(
            lambda found, part: merge(part[0], part[1], found), values[1:], values[0][1]
        )


ARRAYS = View, Choice  # the classes of arrays in a kernel, for ``isinstance``


def of_each_array(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of (machine, array, mask, ...) take arrays that differ between lanes: it is
    called for each, with the lanes that have it.
    """

    @functools.wraps(function)
    def run(machine: Machine, view: View | Choice, mask: Mask, *rest: Any) -> Any:
        if type(view) is not Choice:
            return function(machine, view, mask, *rest)
        found = None
        for here, part in view.parts:
            some, _ = mask.split(here)
            if some is not None:
                value = function(machine, part, some, *rest)
                found = value if found is None else merge(here, value, found)
        return found

    return run


def tuple_like(pattern: tuple[Any, ...], items: Iterable[Any]) -> tuple[Any, ...]:
    """Return a tuple of the same class as another one, which may be a named tuple."""
    return tuple.__new__(type(pattern), items)


def merge(chosen: np.ndarray | None, value: Any, other: Any) -> Any:
    """Return one value in the chosen lanes, and another one elsewhere.

    Raises
    ------
    TypeError
        If they are of different kinds.
    """
    if value is other or chosen is None:
        return value
    if isinstance(value, _types.NUMBERS) and isinstance(other, _types.NUMBERS):
        return np.where(chosen, *_types.alike(value, other))
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return tuple_like(value, [merge(chosen, *both) for both in zip(value, other, strict=True)])
    if isinstance(value, ARRAYS) and isinstance(other, ARRAYS):
        return _either_array(chosen, value, other)
    if type(value) is type(other) and value == other:  # a function, a type, a text
        return value
    raise TypeError("different kinds of values in different threads; expected one kind")


def _either_array(chosen: np.ndarray, value: View | Choice, other: View | Choice) -> View | Choice:
    if (value.dtype, value.ndim) != (other.dtype, other.ndim):
        raise TypeError("arrays of different types in different threads; expected one type")
    alike = isinstance(value, View) and isinstance(other, View)
    if alike and value.store is other.store and value.strides == other.strides:
        # an extent that is the same in all lanes stays one number; slices may have a length in each
        # lane
        shape = tuple(
            new if np.array_equal(new, now) else np.where(chosen, new, now)
            for new, now in zip(value.shape, other.shape, strict=True)
        )
        return View(value.store, np.where(chosen, value.offset, other.offset), shape, value.strides)
    parts: list[tuple[Any, Any]] = [
        (here & at, view)
        for here, array in ((chosen, value), (~chosen, other))
        for at, view in getattr(array, "parts", ((np.bool_(True), array),))
    ]
    return Choice(tuple(parts))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-ordered array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def global_view(
    name: str, array: np.ndarray, writable: bool, space: str = "global", first_byte: int = 0
) -> View:
    """Return the view of an argument in any layout; the kernel reads and writes the caller's own
    memory.
    """
    item, steps = array.dtype.itemsize, array.strides
    extents = tuple(map(np.int64, array.shape))
    if array.flags.c_contiguous and array.dtype.names is None:
        store = Store(name, space, array.reshape(-1), array.size, writable, first_byte)
        return View(store, START, extents, contiguous_strides(array.shape))
    pitch = math.gcd(pitch_of(array.dtype), *steps)
    lengths = [(n - 1) * step for n, step in zip(array.shape, steps, strict=True)]
    order: Any = (..., *(slice(None, None, -1 if step < 0 else 1) for step in steps))
    count = item + sum(map(abs, lengths)) if array.size else 0
    one = as_strided(array[order], (min(1, array.size),), (item,)).view(np.uint8)
    memory = as_strided(one, (count,), (1,))
    if pitch == item and array.dtype.names is None:
        memory = memory.view(array.dtype)
    store = Store(name, space, memory, memory.size, writable, first_byte)
    store.layout, store.word_bytes = (array.shape, steps), pitch
    if store.dtype != array.dtype:
        store = store.typed(array.dtype, pitch)
    start = -sum(length for length in lengths if length < 0) // pitch
    return View(
        store,
        np.int64(start) if start else START,
        extents,
        tuple(step // pitch for step in steps),
    )


def pitch_of(dtype: np.dtype) -> int:
    """Return the largest number of bytes of which all offsets of a record's parts, and its size,
    are multiples.
    """
    if dtype.subdtype is not None:
        return pitch_of(dtype.subdtype[0])
    parts = (math.gcd(pitch_of(part), at) for part, at, *_ in (dtype.fields or {}).values())
    return math.gcd(dtype.itemsize, *parts)


def constant_view(name: str, array: np.ndarray) -> View:
    """Return the view of an array that the kernel captured: constant memory with its present
    values.
    """
    return global_view(name, np.array(array, order="C"), False, "constant")


def _of_array(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the reader of an attribute that only arrays have."""
    return lambda owner: read(owner) if isinstance(owner, ARRAYS) else None


# The attributes of values: each gives None where a value has none.
ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "shape": _of_array(lambda view: view.shape),
    # of a slice it may differ between lanes
    "size": _of_array(lambda view: functools.reduce(operator.mul, view.shape, np.int64(1))),
    "ndim": _of_array(lambda view: np.int64(view.ndim)),
    "dtype": _of_array(lambda view: view.dtype),
    "itemsize": _of_array(lambda view: np.int64(view.dtype.itemsize)),
    "nbytes": _of_array(lambda view: ATTRIBUTES["size"](view) * np.int64(view.dtype.itemsize)),
    "strides": _of_array(lambda view: tuple(np.int64(n * view.store.pitch) for n in view.strides)),
    "T": _of_array(lambda view: replace(view, shape=view.shape[::-1], strides=view.strides[::-1])),
    "real": lambda owner: _part(owner, 0),
    "imag": lambda owner: _part(owner, 1),
}


def _part(owner: Any, part: int) -> Any:
    """Return the real or the imaginary part of numbers or of an array; None of anything else."""
    if isinstance(owner, _types.NUMBERS):
        return owner.imag if part else owner.real
    if not isinstance(owner, View):
        return None
    if owner.dtype.kind != "c":
        return None if part else owner
    half = np.dtype(f"f{owner.dtype.itemsize // 2}")
    view = retyped(owner, half, math.gcd(owner.store.pitch, half.itemsize))
    return replace(view, offset=view.offset + np.int64(part * half.itemsize // view.store.pitch))


def retyped(view: View, dtype: np.dtype, pitch: int) -> View:
    """Return the places of an array as elements of another type, one at each ``pitch`` bytes."""
    scale = view.store.pitch // pitch
    return replace(
        view,
        store=view.store.typed(dtype, pitch),
        offset=view.offset * np.int64(scale),
        strides=tuple(step * scale for step in view.strides),
    )


def viewed(view: View, dtype: np.dtype) -> View:
    """Return ``view.view(dtype)``; the last axis becomes longer or shorter where sizes differ.

    Raises
    ------
    TypeError
        If its bytes cannot be viewed as that type.
    """
    old, new = view.dtype.itemsize, dtype.itemsize
    pitch = min(view.store.pitch, new)
    if old != new and (not view.ndim or view.strides[-1] * view.store.pitch != old):
        raise TypeError("the elements do not follow each other")
    found = retyped(view, dtype, pitch)
    if old == new:
        return found
    last = view.shape[-1] * np.int64(old) // np.int64(new)
    return replace(
        found, shape=(*view.shape[:-1], last), strides=(*found.strides[:-1], new // pitch)
    )


def reshaped(view: View, shape: tuple[Any, ...]) -> View:
    """Return a contiguous array in another shape, of which one extent may be -1.

    Raises
    ------
    TypeError
        If it has another number of elements, or is not contiguous.
    """
    step = view.dtype.itemsize // view.store.pitch
    now, wanted = tuple(map(int, view.shape)), tuple(map(int, shape))
    size, known = math.prod(now), math.prod(extent for extent in wanted if extent != -1)
    if wanted.count(-1) == 1 and known:
        wanted = tuple(size // known if extent == -1 else extent for extent in wanted)
    if math.prod(wanted) != size or view.strides != tuple(
        step * n for n in contiguous_strides(now)
    ):
        raise TypeError("the array has another size, or is not contiguous")
    return replace(
        view,
        shape=tuple(map(np.int64, wanted)),
        strides=tuple(step * n for n in contiguous_strides(wanted)),
    )


def new_view(name: str, space: str, shape: tuple[int, ...], dtype: np.dtype, batch: Batch) -> View:
    """Return a new array in the memory of each block ("shared"), or of each thread ("local")."""
    size, item, is_record = math.prod(shape), dtype.itemsize, dtype.names is not None
    if is_record:
        size, dtype, record = size * item, np.dtype(np.uint8), dtype
    lanes = (batch.blocks,) if space == "shared" else (batch.blocks, batch.width)
    full = (size, *lanes) if space == "local" and not is_record else (*lanes, size)
    data = np.full(full, _unwritten(dtype), dtype=dtype)
    if space == "local" and is_record:
        data = data.transpose(2, 0, 1)
    store = Store(name, space, data, size)
    if is_record:
        store.layout, store.word_bytes = ((size // item,), (item,)), pitch_of(record)
        store = store.typed(record, store.word_bytes)
    strides = (step * (item // store.pitch) for step in contiguous_strides(shape))
    return View(store, START, tuple(map(np.int64, shape)), tuple(strides))


def forget(store: Store, mask: Mask) -> None:
    """Reset a local array in some lanes, as if it had not been written."""
    store = store.root
    np.copyto(store.data, _unwritten(store.dtype), where=True if mask.array is None else mask.array)


def _unwritten(dtype: np.dtype) -> Any:
    if dtype.kind in "fc":
        return math.nan
    return False if dtype.kind == "b" else np.array(_UNWRITTEN_INTEGER).astype(dtype)[()]


# -------------------------------------------------------------------------------------------------
# From an index to a place in memory: whether each lane's index is within bounds, and which element
# it means.


class FromEnd(np.int64):
    """An index that is written as a negative number, which counts from the end."""


_UNSIGNED = np.dtype(np.uint64)  # there, a negative int64 is above any extent


def locate(
    machine: Machine, view: View, index: tuple[Any, ...], mask: Mask, line: int, verb: str
) -> tuple[Any, Mask | None]:
    """Return the places in the store that an index means, 0 where it is out of bounds, and the
    lanes that are within.
    """
    if len(index) != view.ndim:
        raise machine.launch.error(
            f"{view.store.name} has {plural(view.ndim, 'dimension')} and the index has "
            f"{len(index)}; expected one index for each",
            line,
        )
    indices = tuple([integer(machine, place, line) for place in index])
    where = view.offset
    inside = mask.without(machine.raised)  # an exception in the index or the value ends a lane
    if view.within is not None:
        inside = inside and inside.split(view.within)[0]
    for place, extent, stride in zip(indices, view.shape, view.strides, strict=True):
        if inside is None:
            return where, None
        counted = place + extent if type(place) is FromEnd else place
        safe, inside = _within(machine, view, indices, counted, extent, inside, line, verb)
        step = safe if stride == 1 else safe * np.int64(stride)
        where = step if where is START else where + step
    return where, inside


def _within(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    index: Any,
    extent: Any,
    mask: Mask,
    line: int,
    verb: str,
) -> tuple[Any, Mask | None]:
    """Return an index that is 0 where it is out of bounds, and the lanes that are within; report
    the others.
    """
    is_one = isinstance(extent, np.generic)
    if is_one and not index.ndim and 0 <= index < extent:
        return index, mask  # one number, which NumPy would check more slowly
    bad = index.view(_UNSIGNED) >= np.uint64(extent) if is_one else (index < 0) | (index >= extent)
    if not np.count_nonzero(bad):
        return index, mask
    outside, rest = mask.split(np.atleast_2d(bad))
    if outside is not None:
        _report(machine, view, indices, index, outside, line, verb)
        # numba counts a negative index from the end; so do we, to give the same values
        index = np.where(index < 0, index + extent, index)
        bad = np.atleast_2d((index < 0) | (index >= extent))
        rest = mask.split(bad)[1]
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
    batch = machine.batch
    row, lane = (int(part) for part in divmod(outside.flat[0], batch.width))

    def of_lane(value: Any) -> int:
        return int(np.broadcast_to(value, (batch.blocks, batch.width))[row, lane])

    shown, shape = tuple(map(of_lane, indices)), tuple(map(of_lane, view.shape))
    wrapped = "; numba would count it from the end, CUDA C++ would access memory before the array"
    machine.found(
        "bounds",
        line,
        (machine.first_thread(outside),),
        outside.lanes,
        f"the index {shown[0] if len(shown) == 1 else shown} to {verb} is out of bounds for "
        f"{view.store.name}, whose shape is {shape[0] if len(shape) == 1 else shape}"
        f"{wrapped if of_lane(index) < 0 else ''}",
        view.store.name,
        shown,
    )


# -------------------------------------------------------------------------------------------------
# Indices and slices: one element of an array, or a part of it that is again an array.


def _of_axis(part: slice, extent: Any, integer: Callable[[Any], Any]) -> tuple[Any, Any, int]:
    """Return the first index of a slice on an axis, the number of its indices, and the step between
    them.
    """
    step = 1 if part.step is None else int(integer(part.step).item())
    least, most = (0, extent) if step > 0 else (-1, extent - 1)

    def limit(given: Any, default: Any) -> Any:
        if given is None:
            return default
        place = integer(given)
        return np.clip(np.where(place < 0, place + extent, place), least, most)[()]

    start, stop = (
        limit(part.start, np.int64(least if step > 0 else most)),
        limit(part.stop, most if step > 0 else np.int64(least)),
    )
    return start, np.maximum(-((start - stop) // np.int64(step)), np.int64(0)), step


def integer(machine: Machine, place: Any, line: int) -> Any:
    """Return an index as int64, or name the line where it is not an integer."""
    if type(place) is np.int64 or (type(place) is np.ndarray and place.dtype is _types.INT):
        return place
    if not isinstance(place, _types.NUMBERS) or place.dtype.kind not in "iu":
        if isinstance(place, slice):
            raise machine.launch.error(
                "a slice is used where one element is written; expected an index. Write a loop "
                "over the elements",
                line,
            )
        kind = getattr(place, "dtype", type(place).__name__)
        raise machine.launch.error(
            f"an index is of type {kind}; expected an integer. Wrap it in int(...)", line
        )
    return _types.cast(place, _types.INT)


@of_each_array
def part_of(
    machine: Machine,
    view: View,
    mask: Mask,
    places: tuple[Any, ...],
    line: int,
) -> View:
    """Return a row, a block or a slice of an array: a view of the same memory, without elements in
    lanes that are out of bounds.
    """
    if len(places) > view.ndim:
        raise machine.launch.error(
            f"{view.store.name} has {plural(view.ndim, 'dimension')} and the index has "
            f"{len(places)}; expected at most one index for each",
            line,
        )
    offset, shape, strides = view.offset, [], []
    within: Mask | None = mask
    for axis, place in enumerate(places):
        extent, stride = view.shape[axis], view.strides[axis]
        if isinstance(place, slice):
            if np.size(place.step) != 1:
                raise machine.launch.error(
                    "the step of a slice differs between threads; expected one step", line
                )
            start, count, step = _of_axis(
                place, extent, lambda limit: integer(machine, limit, line)
            )
            offset = offset + start * np.int64(stride)
            shape.append(count)
            strides.append(stride * step)
        elif within is not None:
            one = View(view.store, START, (extent,), (1,))
            where, within = locate(machine, one, (place,), within, line, "take a part at")
            offset = offset + (where if within is not None else np.int64(0)) * np.int64(stride)
    shape.extend(view.shape[len(places) :])
    strides.extend(view.strides[len(places) :])
    # without this, lanes that are out of bounds would have the first row
    here: Any = np.bool_(False) if within is None else within.array if within is not mask else None
    if here is not None and shape:
        shape[0] = np.where(here, shape[0], np.int64(0))[()]
    kept = view.within if shape or not places else here
    return View(view.store, offset, tuple(shape), tuple(strides), kept)


@of_each_array
def field_of(machine: Machine, view: View, mask: Mask, name: str, line: int) -> View:
    """Return a field of a record, or of each record of an array."""
    if name not in (view.dtype.names or ()):
        raise machine.launch.error(f"{view.store.name} has no field {name!r}", line)
    dtype, at = view.dtype.fields[name][:2]  # type: ignore[index]
    dtype, shape = dtype.subdtype or (dtype, ())
    pitch = view.store.pitch
    return View(
        view.store.typed(dtype, pitch),
        view.offset + np.int64(at // pitch) if at else view.offset,
        view.shape + tuple(np.int64(extent) for extent in shape),
        view.strides + tuple(n * dtype.itemsize // pitch for n in contiguous_strides(shape)),
        view.within,
    )


def place_of(
    machine: Machine, view: View | Choice, mask: Mask, places: tuple[Any, ...], line: int
) -> tuple[View | Choice, tuple[Any, ...]]:
    """Return an array and an index of it. If the index of a record is the name or the number of a
    field, return that field and the empty index.
    """
    names = view.dtype.names
    if names and not view.ndim and len(places) == 1 and isinstance(places[0], np.integer):
        places = (dict(enumerate(names)).get(int(places[0]), str(places[0])),)
    if places and isinstance(places[0], str):
        return field_of(machine, view, mask, places[0], line), ()
    return view, places


def _is_part(view: View | Choice, places: tuple[Any, ...]) -> bool:
    """Return whether an index means more than one number."""
    return view.dtype.names is not None or len(places) < view.ndim or slice in map(type, places)


def elements(view: View | Choice, mask: Mask) -> Iterator[tuple[tuple[np.int64, ...], Mask]]:
    """Yield the index of each element of an array, and the lanes whose array is large enough to
    have it.
    """
    extents = [int(np.max(mask.selected(extent))) for extent in view.shape]
    for index in np.ndindex(*extents):
        inside = [extent > place for extent, place in zip(view.shape, index, strict=True)]
        here, _ = mask.split(functools.reduce(operator.and_, inside, np.bool_(True)))
        if here is not None:
            yield tuple(map(np.int64, index)), here


# -------------------------------------------------------------------------------------------------
# Every access that lanes make to memory: counted, traced, and looked at for hazards.


def read(
    machine: Machine,
    view: View | Choice,
    mask: Mask,
    places: tuple[Any, ...],
    line: int,
    compared: bool = False,
) -> Any:
    """Return what an index refers to: an element, or a part that is again an array or a record."""
    if _is_part(view, places):
        return part_of(machine, view, mask, places, line)
    return load(machine, view, mask, places, line, compared)


def write(
    machine: Machine,
    view: View | Choice,
    mask: Mask,
    places: tuple[Any, ...],
    value: Any,
    line: int,
) -> None:
    """Write to an element, or to all elements of a part, as the index says."""
    if _is_part(view, places):
        fill(machine, part_of(machine, view, mask, places, line), mask, value, line)
    elif not isinstance(value, _types.NUMBERS):
        raise machine.launch.error("only numbers can be stored in an array", line)
    else:
        store(machine, view, mask, places, value, line)


@of_each_array
def load(
    machine: Machine,
    view: View,
    mask: Mask,
    indices: tuple[Any, ...],
    line: int,
    compared: bool = False,
) -> Any:
    """Return the elements at an index; 0 where it is out of bounds. ``compared`` is true if the
    value only serves a compare-and-swap, so that atomics of other threads do not matter.
    """
    where, inside = locate(machine, view, indices, mask, line, "read")
    store = view.store
    if inside is None:
        return store.dtype.type(0)
    _touch(machine, store, where, inside, line, "load", None, compared)
    value = store.read(where, machine.batch)
    if inside is not mask and inside.array is not None:
        value = np.where(inside.array, value, store.dtype.type(0))
    return value


def fill(machine: Machine, view: View, mask: Mask, value: Any, line: int) -> None:
    """Write to all elements of an array, or to all fields of a record: one number, or the
    corresponding elements of another array, record or tuple. A value with fewer dimensions
    corresponds to the last ones.
    """
    if view.dtype.names is not None:
        for number, name in enumerate(view.dtype.names):
            part = (
                value[number]
                if isinstance(value, tuple)
                else field_of(machine, value, mask, name, line)
            )
            fill(machine, field_of(machine, view, mask, name, line), mask, part, line)
        return
    for index, some in elements(view, mask):
        part = value[int(index[-1])] if isinstance(value, tuple) else value
        store(machine, view, some, index, element(machine, part, some, index, line), line)


def element(
    machine: Machine, value: Any, mask: Mask, index: tuple[np.int64, ...], line: int
) -> Any:
    """Return the element of an array at an index; an array with fewer dimensions takes the last
    parts of the index. Return a number as it is.
    """
    if not isinstance(value, ARRAYS):
        return value
    return load(machine, value, mask, index[len(index) - value.ndim :], line)


@of_each_array
def store(
    machine: Machine,
    view: View,
    mask: Mask,
    indices: tuple[Any, ...],
    value: Any,
    line: int,
) -> None:
    """Write elements; values whose index is out of bounds are dropped."""
    where, inside = locate(machine, view, indices, mask, line, "write")
    if inside is None:
        return
    value = _types.cast(value, view.dtype)
    lanes = _touch(machine, view.store, where, inside, line, "store", value)
    changing(machine, view.store, where, lambda: view.store.write(where, value, inside))
    if any(len(some.words) > 1 for some in lanes):
        # find lanes that wrote different values to one place in this instruction; memory holds one
        # of them
        same = functools.partial(_same_as_memory, machine, view.store, where, value)
        clash = view.store.tracker.clash
        clashes = [clash(some, functools.partial(same, some), line) for some in lanes]
        _report_race(machine, view.store, lanes, clashes, line)


def changing(machine: Machine, store: Store, where: Any, write: Callable[[], Any]) -> Any:
    """Call ``write``, which writes to places; if a loop is being checked for waiting, note whether
    memory has changed.
    """
    watched, launch = machine.launch.watchers > 0, machine.launch
    before: Any = store.read(where, machine.batch) if watched else None
    found = write()
    # bytes are compared, since a nan does not equal itself
    launch.changes += watched and before.tobytes() != store.read(where, machine.batch).tobytes()
    return found


def _touch(
    machine: Machine,
    store: Store,
    where: Any,
    mask: Mask,
    line: int,
    kind: str,
    value: Any,
    compared: bool = False,
) -> list[_hazards.Lanes]:
    """Count an access within bounds, and check whether another thread's access is unordered with
    it. Return the lanes that were checked.
    """
    if kind != "load" and store.space == "constant":
        # numba refuses it as well: it would change the learner's own array
        raise machine.launch.error(
            f"{store.name} is constant memory, like all arrays from outside the kernel; expected "
            "an argument of the kernel to write to",
            line,
        )
    if store.space not in ("global", "shared"):
        return []
    if kind != "load" and not store.writable:
        machine.launch.program.written.add(store.name)
        raise _types.RelaunchError
    machine.counters.access(line, store, kind, where, mask)
    machine.trace_access(store, where, mask, kind)
    tracker: _hazards.Tracker | None = store.tracker
    if tracker is None:
        return []
    epoch = machine.epoch if isinstance(machine.epoch, int) else mask.selected(machine.epoch)
    moment = _hazards.Moment(epoch, machine.launch.event, line)
    if store.dtype.itemsize < store.word_bytes:  # a view of parts of elements: each can race alone
        machine.launch.program.words[store.root.name] = store.dtype.itemsize
        raise _types.RelaunchError
    places = (
        [where]
        if store.pitch == store.word_bytes == store.dtype.itemsize
        else [store.word_of(where) + np.int64(part) for part in range(store.words)]
    )
    found = [machine.lanes_of(store, place, mask) for place in places]
    for lanes in found if kind != "store" else ():
        if len(unwritten := tracker.unwritten(lanes.words)):
            first = int(unwritten[0])
            index = store.index_of_word(int(lanes.words[first]))
            machine.found(
                "uninitialised",
                line,
                (_thread_of(machine, store, lanes, int(lanes.threads[first]), first),),
                len(unwritten) * lanes.times,
                f"element {index} of {store.name} is read before any thread wrote it: shared "
                "memory is not initialized",
                store.name,
                (index,),
            )
            break
    same = functools.partial(_same_as_memory, machine, store, where, value)
    conflicts = [
        tracker.access(
            "compared" if compared else kind,
            lanes,
            moment,
            functools.partial(same, lanes) if kind == "store" else None,
        )
        for lanes in found
    ]
    _report_race(machine, store, found, conflicts, line)
    return found


def _report_race(
    machine: Machine,
    store: Store,
    found: list[_hazards.Lanes],
    conflicts: list[_hazards.Conflict | None],
    line: int,
) -> None:
    """Report the first conflict, if there is one."""
    if not any(conflicts):
        return
    lanes, conflict = next(
        (some, one) for some, one in zip(found, conflicts, strict=True) if one is not None
    )
    index = store.index_of_word(int(lanes.words[conflict.lane]))
    threads = tuple(
        _thread_of(machine, store, lanes, t, conflict.lane)
        for t in (conflict.thread, conflict.other_thread)
    )
    other = conflict.other_line
    where = "both in this line" if other == line else f"here and in {machine.launch.place(other)}"
    apart = threads[0].block != threads[1].block
    cure = (
        "no barrier orders threads of different blocks: use an atomic, or a second kernel"
        if apart
        else "nothing orders the two accesses: put a syncthreads (within a warp, a syncwarp) "
        "between them, or use an atomic"
    )
    machine.found(
        "race",
        line,
        threads,
        conflict.count * lanes.times,
        f"two threads access element {index} of {store.name}, {where}, and at least one writes it; "
        f"{cure}",
        store.name,
        (index,),
        other,
    )


def _thread_of(
    machine: Machine, store: Store, lanes: _hazards.Lanes, number: int, lane: int
) -> report.Thread:
    """Return the thread with a number that a tracker gave; ``lane`` is the place among the lanes
    that has its block.
    """
    if store.space == "shared":
        return machine.thread(0 if lanes.alike else int(lanes.rows[lane]), number)
    block, lane = divmod(number, machine.batch.width)
    return machine.thread(block - machine.batch.first, lane)


def _same_as_memory(
    machine: Machine, store: Store, where: Any, value: Any, lanes: _hazards.Lanes, some: np.ndarray
) -> np.ndarray:
    """Return for some lanes whether memory already holds their value; where blocks are alike,
    whether it does in all of them.
    """
    new, now = (lanes.of(v, some) for v in (value, store.read(where, machine.batch)))
    same: np.ndarray = (new == now) | ((new != new) & (now != now))  # noqa: PLR0124 - nan
    return np.asarray(same.all(axis=0)) if same.ndim == 2 else same


# -------------------------------------------------------------------------------------------------
# Atomics: if several lanes update one place at once, each of them sees the value that the lane
# before it left.
#
# The order is that of the lanes, block by block; on a GPU it may be any.


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
_WHOLE, _UNSIGNED_OF_BYTES = ("int32", "uint32", "int64", "uint64"), ("uint32", "uint64")
# The element types that numba-cuda's atomics take; atomics that are not listed here take floats as
# well. Source: numba-cuda 0.30, cudadecl.py.
INTEGERS_ONLY = dict.fromkeys(
    ("and_", "or_", "xor", "exch", "cas", "compare_and_swap"), _WHOLE
) | dict.fromkeys(("inc", "dec"), _UNSIGNED_OF_BYTES)
_FEW = 8  # up to so many lanes at one place update it one by one
_SCANS = ("add", "sub", "min", "max", "nanmin", "nanmax", "and_", "or_", "xor")


ALL_TYPES = (*_WHOLE, "float32", "float64")


@of_each_array
def atomic(
    machine: Machine,
    view: View,
    mask: Mask,
    indices: tuple[Any, ...],
    operation: str,
    values: list[Any],
    line: int,
    wanted: bool,
) -> Any:
    """Update elements and return the old value of each lane (0 in lanes that take no part). If the
    kernel does not use it (``wanted``), the result may be None.
    """
    where, inside = locate(machine, view, indices, mask, line, "update")
    if inside is None:
        return view.dtype.type(0)
    _touch(machine, view.store, where, inside, line, "atomic", None)
    machine.release(_hazards.Releases.atomic, inside, view.store.space == "global")
    launch = machine.launch
    before = launch.changes
    old = changing(
        machine,
        view.store,
        where,
        lambda: _updated(view.store, where, operation, values, inside, wanted),
    )
    launch.vain_atomics += launch.changes == before
    return old


def _updated(
    store: Store, where: Any, operation: str, values: list[Any], mask: Mask, wanted: bool
) -> Any:
    batch, places = mask.batch, store.flat(where, mask)
    given = [mask.selected(_types.cast(value, store.dtype)) for value in values]
    data = store.data.reshape(-1)
    if operation in ("min", "max") and store.dtype.kind == "f":
        # A nan is not stored, and a nan in memory stays. Source: numba-cuda 0.30,
        # ir_numba_atomic_minmax_template in cudadrv/nvvm.py.
        given = [
            np.where(
                np.isnan(given[0]),
                store.dtype.type(np.inf if operation == "min" else -np.inf),
                given[0],
            )
        ]
    old: Any = None
    if wanted or operation not in _SCANS:
        old = np.zeros(batch.blocks * batch.width, dtype=store.dtype)
        old[mask.flat] = _in_order(operation, data, places, given)
        old = old.reshape(batch.blocks, batch.width)
    else:
        OPERATIONS[operation].at(data, places, given[0])  # type: ignore[attr-defined]
    if not np.may_share_memory(data, store.data):  # ``reshape`` copies elements that lie apart
        store.data[np.unravel_index(places, store.data.shape)] = data[places]
    return old


def _in_order(
    operation: str, data: np.ndarray, places: np.ndarray, given: list[np.ndarray]
) -> np.ndarray:
    """Update ``data`` at the places, one lane after the other, and return the old value that each
    found.
    """
    order = np.argsort(places, kind="stable")
    _, starts, lengths = np.unique(places[order], return_index=True, return_counts=True)
    old = np.empty(len(order), dtype=data.dtype)
    if operation in _SCANS:
        many = lengths > _FEW
        for start, length in zip(starts[many].tolist(), lengths[many].tolist(), strict=True):
            lanes = order[start : start + length]
            place, combine = places[lanes[0]], OPERATIONS[operation]
            found = np.append(data[place], given[0][lanes])
            found = combine.accumulate(found, dtype=data.dtype)  # type: ignore[attr-defined]
            old[lanes], data[place] = found[:-1], found[-1]
        starts, lengths = starts[~many], lengths[~many]
    # One round for the first lane of each place, one for the second, and so on.
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    for turn in range(int(lengths.max(initial=0))):
        lanes = order[starts[: np.searchsorted(-lengths, -turn, side="left")] + turn]
        here = places[lanes]
        found = data[here]
        old[lanes] = found
        if operation == "cas":
            data[here] = np.where(found == given[0][lanes], given[1][lanes], found)
        else:
            data[here] = OPERATIONS[operation](found, given[0][lanes])
    return old
