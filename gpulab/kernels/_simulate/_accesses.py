"""Every access that lanes make to memory: counted, traced, and looked at for hazards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._bounds import locate
from gpulab.kernels._simulate._geometry import Mask
from gpulab.kernels._simulate._hazards import Conflict, Tracker
from gpulab.kernels._simulate._lanes import Lanes, Moment
from gpulab.kernels._simulate._memory import Store, View
from gpulab.kernels._simulate.report import Thread

if TYPE_CHECKING:
    from gpulab.kernels._simulate._machine import Machine


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
            _unwritten(machine, store, lanes, unwritten, line)
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
                _unwritten(machine, store, lanes, unwritten, line)
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


def _unwritten(machine: Machine, store: Store, lanes: Lanes, which: np.ndarray, line: int) -> None:
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
