"""Memory as a kernel sees it: arrays, what an index means, every access of lanes, and atomics."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels.simulation import _types
from gpulab.kernels.simulation._geometry import Batch, Mask
from gpulab.kernels.simulation._hazards import Conflict, Lanes, Moment, Tracker
from gpulab.kernels.simulation.report import Thread
from gpulab.kernels.simulation.source import Source
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.kernels.simulation._machine import Machine
    from gpulab.kernels.simulation._translate import Frame

# -------------------------------------------------------------------------------------------------
# Arrays as a kernel sees them: where they live, how an index becomes a place, and what goes
# through the lanes.
#
# A ``Store`` is memory; a ``View`` is what a name in the kernel stands for: a store with an
# offset, a shape and strides, so that a row of a matrix or a slice is again an array. Every access
# goes through ``Machine`` in ``_machine``, which counts it and looks for hazards.


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


def _of_array(read: Callable[[View], Any]) -> Callable[[Any], Any]:
    """Return an attribute that arrays alone have."""
    return lambda owner: read(owner) if isinstance(owner, View) else None


# The attributes of values: each gives None where a value has none.
ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "shape": _of_array(lambda view: view.shape),
    # of a slice it may differ between lanes
    "size": _of_array(lambda view: functools.reduce(operator.mul, view.shape, np.int64(1))),
    "ndim": _of_array(lambda view: np.int64(view.ndim)),
    "dtype": _of_array(lambda view: view.dtype),
    "real": lambda owner: getattr(owner, "real", None) if hasattr(owner, "dtype") else None,
    "imag": lambda owner: getattr(owner, "imag", None) if hasattr(owner, "dtype") else None,
}


def cannot_be_written(view: View) -> str:
    """Return what is wrong with writing to constant memory, as numba refuses it: what changed would
    be the learner's own array.
    """
    name = view.store.name
    return (
        f"{name} is constant memory, like all arrays from outside the kernel; expected an argument "
        "of the kernel to write to"
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


# -------------------------------------------------------------------------------------------------
# From an index to a place in memory: whether each lane's index is within bounds, and which element
# it means.


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
        f"{view.store.name}, whose shape is {shape[0] if len(shape) == 1 else shape}{wrapped}",
    )


def _of_lane(value: Any, row: int, lane: int) -> Any:
    if np.ndim(value) == 0:
        return value
    return value[row if value.shape[0] > 1 else 0, lane if value.shape[1] > 1 else 0]


# -------------------------------------------------------------------------------------------------
# Indices and slices: one element of an array, or a part of it that is again an array.


class Slice:
    """A slice in an index: its limits and its step, None where left out."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step

    def of_tuple(self) -> slice:
        """Return it as Python's, of limits that are the same in all lanes."""
        limits = (self.start, self.stop, self.step)
        return slice(*(None if limit is None else int(limit) for limit in limits))

    def of_axis(self, extent: Any, integer: Callable[[Any], Any]) -> tuple[Any, Any, int]:
        """Return the first index on an axis, how many there are, and the step between them."""
        step = 1 if self.step is None else int(integer(self.step).item())
        least, most = (0, extent) if step > 0 else (-1, extent - 1)

        def limit(given: Any, default: Any) -> Any:
            if given is None:
                return default
            place = integer(given)
            return np.clip(np.where(place < 0, place + extent, place), least, most)[()]

        start, stop = (
            limit(self.start, np.int64(least if step > 0 else most)),
            limit(self.stop, most if step > 0 else np.int64(least)),
        )
        return start, np.maximum(-((start - stop) // np.int64(step)), np.int64(0)), step


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
            start, count, step = place.of_axis(extent, lambda limit: integer(limit, source, line))
            offset = offset + start * np.int64(stride)
            shape.append(count)
            strides.append(stride * step)
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


# -------------------------------------------------------------------------------------------------
# Every access that lanes make to memory: counted, traced, and looked at for hazards.


def load(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    mask: Mask,
    line: int,
    from_end: tuple[bool, ...],
) -> Any:
    """Return the elements at an index; 0 where that is out of bounds."""
    where, inside = locate(machine, view, indices, mask, line, "read", from_end)
    store = view.store
    if inside is None:
        return store.dtype.type(0)
    _touch(machine, store, where, inside, line, "load", None)
    value = store.read(where, machine.batch)
    if inside is not mask and inside.array is not None:
        value = _types.select(inside.array, value, store.dtype.type(0))
    return value


def store(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    value: Any,
    mask: Mask,
    line: int,
    from_end: tuple[bool, ...],
) -> None:
    """Write elements; what is out of bounds is dropped."""
    where, inside = locate(machine, view, indices, mask, line, "write", from_end)
    if inside is None:
        return
    value = _types.cast(value, view.dtype)
    lanes = _touch(machine, view.store, where, inside, line, "store", value)
    view.store.write(where, value, inside)
    if lanes:
        _clash(machine, view.store, where, lanes, line, value)


def update(
    machine: Machine,
    view: View,
    indices: tuple[Any, ...],
    mask: Mask,
    line: int,
    from_end: tuple[bool, ...],
) -> tuple[Any, Mask | None]:
    """Return the places that an atomic works on and the lanes within bounds, counted and
    checked.
    """
    where, inside = locate(machine, view, indices, mask, line, "update", from_end)
    if inside is not None:
        _touch(machine, view.store, where, inside, line, "atomic", None)
        if view.store.space == "global":
            machine.publish(inside)
    return where, inside


def _touch(
    machine: Machine, store: Store, where: Any, mask: Mask, line: int, kind: str, value: Any
) -> list[Lanes]:
    """Count an access within bounds, and look whether another thread's access is unordered with it;
    return who was looked at.
    """
    if store.space not in ("global", "shared"):
        return []
    machine.counters.access(line, store, kind, where, mask)
    if machine.launch.traced_block is not None:
        machine.trace_access(store, np.atleast_2d(where), mask, kind)
    tracker: Tracker | None = store.tracker
    if tracker is None:
        return []
    words = store.words
    moment = Moment(_epochs(machine, mask), machine.launch.event, line)
    if words == 1:
        lanes = machine.lanes_of(store, where, mask)
        if (
            kind != "store"
            and tracker.may_be_unwritten
            and len(unwritten := tracker.unwritten(lanes.words))
        ):
            _report_unwritten(machine, store, lanes, unwritten, line)
        conflict = _conflict(machine, store, where, lanes, moment, kind, value)
        if conflict is not None:
            _race(machine, store, lanes, conflict, line)
        return [lanes]
    found = [
        machine.lanes_of(store, where * np.int64(words) + np.int64(part), mask)
        for part in range(words)
    ]
    if kind != "store":
        for lanes in found:
            if len(unwritten := tracker.unwritten(lanes.words)):
                _report_unwritten(machine, store, lanes, unwritten, line)
                break
    for lanes, conflict in [
        (lanes, _conflict(machine, store, where, lanes, moment, kind, value)) for lanes in found
    ]:
        if conflict is not None:
            _race(machine, store, lanes, conflict, line)
            break
    return found


def _conflict(
    machine: Machine, store: Store, where: Any, lanes: Lanes, moment: Moment, kind: str, value: Any
) -> Conflict | None:
    tracker: Tracker = store.tracker
    if kind == "load":
        return tracker.read(lanes, moment)
    if kind == "store":
        return tracker.write(
            lanes, moment, lambda some: _same_as_memory(machine, store, where, lanes, some, value)
        )
    return tracker.update(lanes, moment)


def _epochs(machine: Machine, mask: Mask) -> Any:
    return mask.selected(machine.epoch) if isinstance(machine.epoch, np.ndarray) else machine.epoch


def _report_unwritten(
    machine: Machine, store: Store, lanes: Lanes, which: np.ndarray, line: int
) -> None:
    if machine.found_again("uninitialised", line, store.name, len(which) * lanes.times):
        return
    first = int(which[0])
    index = int(lanes.words[first]) % store.tracker.words // store.words
    machine.found(
        "uninitialised",
        line,
        store.name,
        (index,),
        (_thread_of(machine, store, lanes, int(lanes.threads[first]), first),),
        len(which) * lanes.times,
        f"element {index} of {store.name} is read before any thread wrote it: shared memory is not "
        "initialized",
    )


def _race(machine: Machine, store: Store, lanes: Lanes, conflict: Conflict, line: int) -> None:
    count = conflict.count * lanes.times
    if machine.found_again("race", line, store.name, count, conflict.other_line):
        return
    index = int(lanes.words[conflict.lane]) % store.tracker.words // store.words
    threads = tuple(
        _thread_of(machine, store, lanes, t, conflict.lane)
        for t in (conflict.thread, conflict.other_thread)
    )
    where = f"line {conflict.other_line}" if conflict.other_line != line else "the same line"
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
        store.name,
        (index,),
        threads,
        count,
        f"two threads touch element {index} of {store.name}, here and in {where}, and at least one "
        f"writes it; {cure}",
        conflict.other_line,
    )


def _thread_of(machine: Machine, store: Store, lanes: Lanes, number: int, lane: int) -> Thread:
    """Return the thread of a number that a tracker gave, at the place of one of the lanes."""
    if store.space == "shared":
        return machine.thread(0 if lanes.alike else int(lanes.rows[lane]), number)
    width = machine.batch.width
    return Thread(
        machine.batch.place_of_block(number // width), machine.batch.place_of_thread(number % width)
    )


def _clash(
    machine: Machine, store: Store, where: Any, found: list[Lanes], line: int, value: Any
) -> None:
    """Look for lanes that wrote different values to one place in this instruction; memory holds the
    winner's.
    """
    for lanes in found:
        conflict = store.tracker.clash(
            lanes,
            lambda some, lanes=lanes: ~_same_as_memory(machine, store, where, lanes, some, value),
            line,
        )
        if conflict is not None:
            _race(machine, store, lanes, conflict, line)
            return


def _same_as_memory(
    machine: Machine, store: Store, where: Any, lanes: Lanes, some: np.ndarray, value: Any
) -> np.ndarray:
    """Return for some lanes whether memory holds their value already: in all blocks, where blocks
    are alike.
    """
    new, now = (lanes.of(v, some) for v in (value, store.read(where, machine.batch)))
    same: np.ndarray = (new == now) | ((new != new) & (now != now))  # noqa: PLR0124 - nan
    return np.asarray(same.all(axis=0)) if same.ndim == 2 else same


# -------------------------------------------------------------------------------------------------
# Atomics: of lanes that update one place at once, each sees what the lanes before it left.
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
# The element types for which numba-cuda has each; those that are not here take floats as well.
# Source: numba-cuda 0.30, cudadecl.py.
_INTEGERS_ONLY = dict.fromkeys(
    ("and_", "or_", "xor", "exch", "cas", "compare_and_swap"), _WHOLE
) | dict.fromkeys(("inc", "dec"), _UNSIGNED_OF_BYTES)
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
