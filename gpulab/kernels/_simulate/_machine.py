"""The state of the blocks that run together, and every access that their lanes make: within bounds? counted, ordered, traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._counters import Counters
from gpulab.kernels._simulate._geometry import Batch, Mask
from gpulab.kernels._simulate._hazards import Conflict, Fences, Moment, Tracker, WarpBarriers
from gpulab.kernels._simulate._memory import Store, View, shared_view
from gpulab.kernels._simulate._source import Source
from gpulab.kernels._simulate.report import Finding, Step, StepAccess, Thread


@dataclass
class Launch:
    """What lasts through all batches of a launch."""

    source: Source
    sources: list[Source]
    counters: Counters
    max_steps: int
    dynamic_bytes: int
    shared_limit: int
    uses_warp_barriers: bool
    fences: Fences | None
    steps: int = 0
    epoch: int = 0
    event: int = 0
    findings: dict[tuple, Finding] = field(default_factory=dict)
    traced_block: int | None = None
    trace: list[Step] = field(default_factory=list)
    max_trace_steps: int = 100_000
    trace_cut: bool = False
    stop: Callable[[], None] | None = None

    def text_of(self, line: int) -> str:
        """Return a line of the kernel or of a device function."""
        return next((text for source in self.sources if (text := source.text_of(line))), "")


class Machine:
    """A batch of blocks at work."""

    def __init__(self, launch: Launch, batch: Batch) -> None:
        self.launch, self.batch = launch, batch
        self.counters = launch.counters
        launch.epoch += 1
        self.epoch: int | np.ndarray = launch.epoch
        self.exited: Mask | None = None
        self.shared: dict[int, View] = {}
        self.shared_bytes = 0
        self.dynamic: list[View] = []
        self._dynamic_bytes = np.empty((batch.blocks, 0), dtype=np.uint8)
        self.barriers = WarpBarriers(batch.blocks, batch.warps, batch.first) if launch.uses_warp_barriers else None
        self._recording = False
        self._threads = batch.linear_thread[0]

    # -- statements ---------------------------------------------------------------------------------------------------------------

    def step(self, line: int, mask: Mask) -> None:
        """Count a statement, and stop work without end."""
        launch = self.launch
        launch.steps += 1
        if launch.steps > launch.max_steps:
            raise launch.source.error(
                f"the kernel was still at work after {launch.max_steps:,} statements of whole batches; "
                "expected an end. Look for a loop whose condition stays true, or pass a larger max_steps",
                line,
            )
        if launch.stop is not None and launch.steps % 64 == 0:
            launch.stop()
        counts = self.counters.line(line)
        counts.executed_warps += mask.warps
        counts.active_lanes += mask.lanes
        if launch.traced_block is not None:
            self._trace(line, mask)

    def _trace(self, line: int, mask: Mask) -> None:
        row = self._traced_row()
        if row is not None:
            bits = mask.bits[row if len(mask.bits) > 1 else 0]
            if bits.any():
                self._recording = len(self.launch.trace) < self.launch.max_trace_steps
                if self._recording:
                    self.launch.trace.append(Step(line, tuple(bits.tolist()), []))
                self.launch.trace_cut |= not self._recording

    def _traced_row(self) -> int | None:
        block = self.launch.traced_block
        if block is None or not self.batch.first <= block < self.batch.first + self.batch.blocks:
            return None
        return block - self.batch.first

    @property
    def alive(self) -> Mask:
        """Return the threads that have not returned from the kernel."""
        everyone = self.batch.everyone
        rest = everyone if self.exited is None else everyone.without(self.exited)
        assert rest is not None
        return rest

    def barrier(self, mask: Mask, line: int) -> None:
        """Let the lanes arrive at ``syncthreads``: all threads of a block that have not exited must."""
        waiting = self.alive
        arrived = mask.blocks
        if mask is not waiting and (missing := waiting.without(mask)) is not None:
            absent = missing.blocks & arrived
            if absent.any():
                self._divergent_barrier(mask, missing, absent, line)
        self.launch.epoch += 1
        if arrived.all():
            self.epoch = self.launch.epoch
        else:
            self.split_shared()
            self.epoch = np.where(arrived, np.int64(self.launch.epoch), self.epoch)
        self.counters.line(line).barriers += int(np.count_nonzero(arrived)) * (self.batch.blocks if len(arrived) == 1 else 1)

    def _divergent_barrier(self, mask: Mask, missing: Mask, absent: np.ndarray, line: int) -> None:
        row = int(np.argmax(np.broadcast_to(absent, (self.batch.blocks, 1))[:, 0]))
        here, away = self._first_lane(mask, row), self._first_lane(missing, row)
        blocks = int(np.count_nonzero(absent)) * (self.batch.blocks if len(absent) == 1 else 1)
        self.found(
            "barrier", line, "", (), (self.thread(row, here), self.thread(row, away)), blocks,
            "not all threads of the block reach this barrier: the first of these two does, the second does not. "
            "On a GPU the block would wait for ever, or go on with wrong data",
        )  # fmt: skip

    def _first_lane(self, mask: Mask, row: int) -> int:
        if mask.array is None:
            return 0
        lanes = mask.array[row if len(mask.array) > 1 else 0]
        return int(np.argmax(lanes))

    # -- findings -----------------------------------------------------------------------------------------------------------------

    def thread(self, row: int, lane: int) -> Thread:
        """Return a lane of a block of this batch as a learner would name it."""
        return Thread(self.batch.place_of_block(self.batch.first + row), self.batch.place_of_thread(lane))

    def found(self, kind: str, line: int, array: str, index: tuple[int, ...], threads: tuple[Thread, ...], count: int, text: str,
              other_line: int | None = None) -> None:  # fmt: skip
        """Keep a finding; the same one in another batch or step is counted, not repeated."""
        key = (kind, line, other_line, array)
        known = self.launch.findings.get(key)
        if known is not None:
            self.launch.findings[key] = known.again(count)
            return
        self.launch.findings[key] = Finding(
            kind=kind, line=line, code=self.launch.text_of(line), array=array, index=index, threads=threads, count=count,
            message=text, other_line=other_line,
        )  # fmt: skip

    # -- memory -------------------------------------------------------------------------------------------------------------------

    def new_shared(self, node: int, name: str, shape: tuple[int, ...], dtype: np.dtype, line: int) -> View:
        """Return the block's shared array of this place in the source; ``shape`` (0,) is the dynamic one."""
        if shape == (0,):
            return self._dynamic(name, dtype, line)
        view = self.shared.get(node)
        if view is None:
            view = self.shared[node] = shared_view(name, shape, dtype, self.batch)
            self._more_shared(view.store.elements * dtype.itemsize, line)
            view.store.tracker = self._new_tracker(view.store.elements)
        return view

    def _new_tracker(self, words: int) -> Tracker:
        tracker = Tracker(words, self.batch.width, False, self.launch.uses_warp_barriers).serve(self.barriers)
        if isinstance(self.epoch, np.ndarray):
            tracker.split(self.batch.blocks)
        return tracker

    def _more_shared(self, nbytes: int, line: int) -> None:
        self.shared_bytes += nbytes
        if self.shared_bytes > self.launch.shared_limit:
            raise self.launch.source.error(
                f"the block asks for {self.shared_bytes:,} bytes of shared memory; expected at most {self.launch.shared_limit:,}. "
                "Make the shared arrays smaller",
                line,
            )

    def _dynamic(self, name: str, dtype: np.dtype, line: int) -> View:
        """Return dynamic shared memory as an array: all such arrays begin at the same byte."""
        nbytes = self.launch.dynamic_bytes
        for view in self.dynamic:
            if view.dtype == dtype:
                return view
        if not self.dynamic:
            self._more_shared(nbytes, line)
            self._dynamic_bytes = shared_view(name, (-(-nbytes // 16) * 16,), np.dtype("uint8"), self.batch).store.data
        elements = nbytes // dtype.itemsize
        store = Store(name, "shared", self._dynamic_bytes.view(dtype), elements)
        # Arrays of one element size share their words. Between sizes no hazard is looked for.
        known = [view.store.tracker for view in self.dynamic if view.dtype.itemsize == dtype.itemsize]
        store.tracker = known[0] if known else self._new_tracker(max(elements, 1))
        view = View(store, np.int64(0), (np.int64(elements),), (1,))
        self.dynamic.append(view)
        return view

    def split_shared(self) -> None:
        """From here on blocks differ in what they did: keep the hazards of shared memory apart for each."""
        for view in [*self.shared.values(), *self.dynamic]:
            view.store.tracker.split(self.batch.blocks)

    def load(self, view: View, indices: tuple[Any, ...], mask: Mask, line: int, from_end: tuple[bool, ...]) -> Any:
        """Return the elements at an index; 0 where that is out of bounds."""
        where, inside = self.locate(view, indices, mask, line, "read", from_end)
        store = view.store
        if inside is None:
            return store.dtype.type(0)
        self._touch(store, where, inside, line, "load", None)
        value = store.read(where, self.batch)
        if inside is not mask and inside.array is not None:
            value = _types.select(inside.array, value, store.dtype.type(0))
        return value

    def store(self, view: View, indices: tuple[Any, ...], value: Any, mask: Mask, line: int, from_end: tuple[bool, ...]) -> None:
        """Write elements; what is out of bounds is dropped."""
        where, inside = self.locate(view, indices, mask, line, "write", from_end)
        if inside is None:
            return
        value = _types.cast(value, view.dtype)
        flat = self._touch(view.store, where, inside, line, "store", value)
        view.store.write(where, value, inside)
        if flat is not None:
            self._clash(view.store, np.atleast_2d(where), flat, line, value)

    def touch_atomic(
        self, view: View, indices: tuple[Any, ...], mask: Mask, line: int, from_end: tuple[bool, ...]
    ) -> tuple[Any, Mask | None]:
        """Return the places that an atomic works on and the lanes within bounds, counted and checked."""
        where, inside = self.locate(view, indices, mask, line, "update", from_end)
        if inside is not None:
            self._touch(view.store, where, inside, line, "atomic", None)
            if self.launch.fences is not None and view.store.space == "global":
                self.launch.event += 1
                self.launch.fences.atomic(self._blocks_of(inside), self.launch.event)
        return where, inside

    def fence(self, mask: Mask) -> None:
        """Let the lanes call ``threadfence``."""
        if self.launch.fences is not None:
            self.launch.event += 1
            self.launch.fences.fence(self._blocks_of(mask), self.launch.event)

    def _blocks_of(self, mask: Mask) -> np.ndarray:
        """Return the numbers of the blocks that have a lane here."""
        here = np.broadcast_to(mask.blocks, (self.batch.blocks, 1))[:, 0]
        return self.batch.first + np.flatnonzero(here)

    def locate(
        self, view: View, indices: tuple[Any, ...], mask: Mask, line: int, verb: str, from_end: tuple[bool, ...]
    ) -> tuple[Any, Mask | None]:
        """Return the places in the store that an index means, 0 where it is out of bounds, and the lanes that are within."""
        where = view.offset
        inside: Mask | None = mask
        for axis, (index, extent, stride) in enumerate(zip(indices, view.shape, view.strides, strict=True)):
            if from_end[axis]:
                index = index + extent  # noqa: PLW2901 - a[-1] is written for the last element
            low, high = (index, index) if np.ndim(index) == 0 else (index.min(), index.max())
            if low < 0 or high >= (extent if np.ndim(extent) == 0 else extent.min()):
                index, inside = self._outside(view, indices, axis, index, inside, line, verb)  # noqa: PLW2901
                if inside is None:
                    return where, None
            where = where + (index * np.int64(stride) if stride != 1 else index)
        return where, inside

    def _outside(
        self, view: View, indices: tuple[Any, ...], axis: int, index: Any, inside: Mask | None, line: int, verb: str
    ) -> tuple[Any, Mask | None]:
        """Report the lanes whose index is out of bounds; return an index that is not, and the lanes that remain."""
        assert inside is not None
        extent = view.shape[axis]
        bad = np.atleast_2d((index < 0) | (index >= extent))
        outside, rest = inside.split(bad)
        if outside is not None:
            lane, row = self._example(outside)
            shown = tuple(int(self._of_lane(i, row, lane)) for i in indices)
            negative = int(self._of_lane(index, row, lane)) < 0
            wrapped = "; numba would count it from the end, CUDA C++ would reach before the array" if negative else ""
            shape = tuple(int(self._of_lane(n, row, lane)) for n in view.shape)
            size = shape[0] if len(shape) == 1 else shape
            self.found(
                "bounds", line, view.store.name, shown, (self.thread(row, lane),), outside.lanes,
                f"the index {shown[0] if len(shown) == 1 else shown} to {verb} is outside of {view.store.name}, "
                f"whose shape is {size}{wrapped}",
            )  # fmt: skip
            wraps = bad & (np.atleast_2d(index) >= -extent) & (np.atleast_2d(index) < 0)
            if wraps.any():  # numba's rule, so that the values are those of numba
                index = np.where(wraps, np.atleast_2d(index) + extent, np.atleast_2d(index))
                bad = np.atleast_2d((index < 0) | (index >= extent))
                outside, rest = inside.split(bad)
        return np.where(bad, np.int64(0), index), rest

    def _example(self, mask: Mask) -> tuple[int, int]:
        """Return (lane, row) of the first thread here."""
        if mask.array is None:
            return 0, 0
        full = np.broadcast_to(mask.array, (self.batch.blocks, self.batch.width))
        first = int(np.argmax(full))
        return first % self.batch.width, first // self.batch.width

    @staticmethod
    def _of_lane(value: Any, row: int, lane: int) -> Any:
        if np.ndim(value) == 0:
            return value
        return value[row if value.shape[0] > 1 else 0, lane if value.shape[1] > 1 else 0]

    # -- hazards ------------------------------------------------------------------------------------------------------------------

    def _touch(self, store: Store, where: Any, mask: Mask, line: int, kind: str, value: Any) -> _Flat | None:
        """Count an access within bounds, and look whether another thread's access is unordered with it."""
        if store.space not in ("global", "shared"):
            return None
        places = np.atleast_2d(where)
        size = store.dtype.itemsize
        self.counters.access((line, store.name, store.space, kind), places * np.int64(size), mask, size)
        if self.launch.traced_block is not None:
            self._trace_access(store, places, mask, kind)
        if store.tracker is None:
            return None
        tracker: Tracker = store.tracker
        flat = self._flat(store, places, mask)
        moment = Moment(self._epochs(mask, tracker), self.launch.event, line)
        if tracker.written is not None and kind != "store":
            self._unwritten(store, flat, line)
        if kind == "load":
            conflict = tracker.read(flat.words, flat.threads, moment)
        elif kind == "store":
            unchanged = lambda lanes: self._same_as_memory(store, places, flat, lanes, value)  # noqa: E731
            conflict = tracker.write(flat.words, flat.threads, moment, unchanged)
        else:
            conflict = tracker.update(flat.words, flat.threads, moment)
        if conflict is not None:
            self._race(store, flat, conflict, line)
        return flat

    def _trace_access(self, store: Store, places: np.ndarray, mask: Mask, kind: str) -> None:
        row = self._traced_row()
        if row is None or not self._recording:
            return
        elements = np.broadcast_to(places[row if len(places) > 1 else 0], (self.batch.width,))
        if mask.array is not None:
            active = np.broadcast_to(mask.array[row if len(mask.array) > 1 else 0], (self.batch.width,))
            if not active.any():
                return
            elements = np.where(active, elements, -1)
        self.launch.trace[-1].accesses.append(StepAccess(store.name, store.space, kind, store.dtype.itemsize, elements.copy()))

    def _unwritten(self, store: Store, flat: _Flat, line: int) -> None:
        lanes = store.tracker.unwritten(flat.words)
        if len(lanes):
            first = int(lanes[0])
            index = int(flat.words[first]) % store.tracker.words
            self.found(
                "uninitialised", line, store.name, (index,), (self._thread_of(store, flat, int(flat.threads[first]), first),),
                len(lanes) * (self.batch.blocks if flat.rows is None else 1),
                f"element {index} of {store.name} is read before any thread wrote it: shared memory begins with whatever was there",
            )  # fmt: skip

    def _race(self, store: Store, flat: _Flat, conflict: Conflict, line: int) -> None:
        index = int(flat.words[conflict.lane]) % store.tracker.words
        threads = tuple(self._thread_of(store, flat, t, conflict.lane) for t in (conflict.thread, conflict.other_thread))
        where = f"line {conflict.other_line}" if conflict.other_line != line else "the same line"
        apart = threads[0].block != threads[1].block
        cure = (
            "no barrier orders threads of different blocks: use an atomic, or another kernel"
            if apart
            else "nothing orders the two: a syncthreads (within a warp a syncwarp) between them is missing, or an atomic"
        )
        self.found(
            "race", line, store.name, (index,), threads, conflict.count * (self.batch.blocks if flat.rows is None else 1),
            f"two threads touch element {index} of {store.name}, here and in {where}, and at least one writes it; {cure}",
            conflict.other_line,
        )  # fmt: skip

    def _thread_of(self, store: Store, flat: _Flat, number: int, lane: int) -> Thread:
        """Return the thread of a number that a tracker gave, at the place of one of the lanes."""
        if store.space == "shared":
            return self.thread(0 if flat.rows is None else int(flat.rows[lane]), number)
        width = self.batch.width
        return Thread(self.batch.place_of_block(number // width), self.batch.place_of_thread(number % width))

    def _flat(self, store: Store, places: np.ndarray, mask: Mask) -> _Flat:
        """Return the words and threads of the lanes: of one block where all blocks do alike in their shared memory."""
        batch = self.batch
        if store.space == "shared":
            alike = places.shape[0] == 1 and (mask.array is None or mask.array.shape[0] == 1)
            if store.tracker.rows == 1 and alike:
                words = np.broadcast_to(places, (1, batch.width))[0]
                if mask.array is None:
                    return _Flat(words, self._threads, None, self._threads)
                lanes = np.flatnonzero(np.broadcast_to(mask.array, (1, batch.width))[0])
                return _Flat(words[lanes], lanes, None, lanes)
            store.tracker.split(batch.blocks)
        shape = (batch.blocks, batch.width)
        if mask.array is None:
            flat = np.arange(batch.blocks * batch.width)
            words = np.broadcast_to(places, shape).reshape(-1)
        else:
            flat = np.flatnonzero(np.broadcast_to(mask.array, shape))
            words = mask.selected(places)
        rows, lanes = np.divmod(flat, batch.width)
        if store.space == "shared":
            return _Flat(words + rows * store.tracker.words, lanes, rows, lanes)
        return _Flat(words, flat + batch.first * batch.width, rows, lanes)

    def _epochs(self, mask: Mask, tracker: Tracker) -> Any:
        if not isinstance(self.epoch, np.ndarray):
            return self.epoch
        if tracker.rows == 1 and not tracker.across_blocks:
            return int(self.epoch[0, 0])
        return mask.selected(self.epoch)

    def _clash(self, store: Store, places: np.ndarray, flat: _Flat, line: int, value: Any) -> None:
        """Look for lanes that wrote different values to one place in this instruction; memory holds the winner's."""
        differs = lambda lanes: ~self._same_as_memory(store, places, flat, lanes, value)  # noqa: E731
        conflict = store.tracker.clash(flat.words, flat.threads, differs, line)
        if conflict is not None:
            self._race(store, flat, conflict, line)

    def _same_as_memory(self, store: Store, places: np.ndarray, flat: _Flat, lanes: np.ndarray, value: Any) -> np.ndarray:
        """Return for some lanes whether memory holds their value already: in all blocks, where blocks are alike."""
        new, now = (flat.of(v, lanes, self.batch) for v in (value, store.read(places, self.batch)))
        same: np.ndarray = (new == now) | ((new != new) & (now != now))  # noqa: PLR0124 - nan
        return np.asarray(same.all(axis=0)) if same.ndim == 2 else same


@dataclass(frozen=True, eq=False)
class _Flat:
    """Lanes that access, one after the other. ``rows`` is None where they stand for all blocks alike."""

    words: np.ndarray
    threads: np.ndarray
    rows: np.ndarray | None
    lanes: np.ndarray

    def of(self, value: Any, which: np.ndarray, batch: Batch) -> np.ndarray:
        """Return the value of some of the lanes; of all blocks, shape (B, lanes), where blocks are alike."""
        full = np.broadcast_to(value, (batch.blocks, batch.width))
        return full[:, self.lanes[which]] if self.rows is None else full[self.rows[which], self.lanes[which]]
