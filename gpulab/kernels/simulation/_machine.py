"""The state of the blocks that run together: the counts of each line, barriers, shared memory and
findings.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels._arguments import MOST_SHARED_BYTES
from gpulab.kernels.simulation import _hazards, _memory, _turns, _types, report, source
from gpulab.kernels.simulation._geometry import WARP, Batch, Mask, count_warps, place, union
from gpulab.models.requests import (
    ELEMENT_BYTES,
    SECTOR_BYTES,
    WORD_BYTES,
    sectors_per_request,
    shared_wavefronts,
)

if TYPE_CHECKING:
    from gpulab.kernels.simulation._simulate import Program

# -------------------------------------------------------------------------------------------------
# What each source line executed and moved.
#
# The rules, which make counts comparable: one request for each warp and executed access; a repeated
# load is not merged; a branch is a test of ``if``, ``while`` or ``for`` by one warp; conditional
# expressions and ``and``/``or`` are not branches; local arrays and constants are not counted; an
# 8-byte access to shared memory goes by half-warps; an atomic is one request.


# Accesses and statements wait and are counted together, which spreads NumPy's overhead for each
# call. Accesses wait until they take this much memory, in words of 8 bytes (more would save
# nothing); statements wait until this many lanes, or statements, were executed.
_WORDS_TOGETHER = 1 << 14
_LANES_TOGETHER = 1 << 20
_STATEMENTS_TOGETHER = 64
_WORDS_OF_AN_ENTRY = 16
_Shape = tuple[int, ...]
_Elements = np.ndarray | np.generic


@dataclass
class Counters:
    """All counts of a simulation so far: by line as ``Counts`` names them, and by (line, array,
    space, kind of access) as ``ArrayAccess`` does.
    """

    lines: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    accesses: dict[tuple[int, str, str, str], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    executed: list[tuple[int, Mask]] = field(default_factory=list)
    tested: list[tuple[int, Mask, Mask | None, Mask | None]] = field(default_factory=list)
    _accessed: dict[
        tuple[int, _memory.Store, str, _Shape, _Shape], list[tuple[_Elements, Mask]]
    ] = field(default_factory=lambda: defaultdict(list))
    _accessed_words: int = 0

    def access(
        self, line: int, store: _memory.Store, kind: str, elements: _Elements, mask: Mask
    ) -> None:
        """Count an access of the lanes to elements, shape () or (B or 1, T or 1), of global or
        shared memory.
        """
        of_mask = () if mask.array is None else mask.array.shape
        key = line, store, kind, elements.shape, of_mask
        self._accessed[key].append((elements, mask))
        self._accessed_words += elements.size + math.prod(of_mask) // 8 + _WORDS_OF_AN_ENTRY
        if self._accessed_words >= _WORDS_TOGETHER:
            self.settle_accesses()

    def requests(
        self, line: int, store: _memory.Store, kind: str, elements: np.ndarray, active: np.ndarray
    ) -> None:
        """Count n requests to global memory at once: the element of each lane, and whether the lane
        takes part, both of shape (n, 32).
        """
        found = self.accesses[line, store.name, store.space, kind]
        lanes = np.count_nonzero(active, axis=1)
        found["requests"] += len(elements)
        found["lanes"] += int(lanes.sum())
        found["bytes_requested"] += int(lanes.sum()) * store.dtype.itemsize
        addresses, once = elements * np.int64(store.pitch), np.ones(len(elements), int)
        _count_sectors(found, addresses, active, store, once)

    def settle_statements(self) -> None:
        """Count the statements and tests that wait; also called at the end of each batch of
        blocks.
        """
        tested = [mask for _, *several in self.tested for mask in several if mask is not None]
        count_warps([*(mask for _, mask in self.executed), *tested])
        for number, mask in self.executed:
            line = self.lines[number]
            line["executed_warps"] += mask.warps
            line["active_lanes"] += mask.lanes
        for number, mask, yes, no in self.tested:
            line = self.lines[number]
            line["branches"] += mask.warps
            if yes is not None and no is not None:
                # the warps whose lanes went both ways
                line["divergent_branches"] += yes.warps + no.warps - mask.warps
        self.executed.clear()
        self.tested.clear()

    def settle_accesses(self) -> None:
        """Count the accesses that wait; also called at the end of each batch of blocks."""
        for (number, store, kind, shape, _), accesses in self._accessed.items():
            found = self.accesses[number, store.name, store.space, kind]
            _count(found, accesses, store, not shape or shape[1] == 1)
        self._accessed.clear()
        self._accessed_words = 0


def _count(
    found: Counter[str],
    accesses: list[tuple[_Elements, Mask]],
    store: _memory.Store,
    alike: bool,
) -> None:
    """Count accesses whose elements and masks have the same shapes; ``alike`` where all lanes of a
    block access one element.
    """
    count_warps(mask for _, mask in accesses)
    shared, element_bytes = store.space == "shared", store.dtype.itemsize
    warps, lanes = sum(mask.warps for _, mask in accesses), sum(mask.lanes for _, mask in accesses)
    found["requests"] += warps
    found["lanes"] += lanes
    found["bytes_requested"] += lanes * element_bytes
    # a string counts as the widest element that fits into it
    if shared and store.dtype.kind in "US":
        element_bytes = max(n for n in ELEMENT_BYTES if n <= element_bytes)
    passes = max(1, element_bytes // WORD_BYTES)
    if alike and (passes == 1 or not shared):  # one sector, or one wavefront, for each warp
        unit = "wavefronts" if shared else "sectors"
        found[unit] += warps
        found[f"ideal_{unit}"] += warps
        return
    addresses, active, times = _by_warp(accesses, store.pitch)

    if shared:
        # Without conflicts there is one wavefront for each part of a warp that has an active lane.
        parts: Any = (
            np.full(len(addresses) * passes, True)
            if active is None
            else active.reshape(len(addresses) * passes, -1).any(axis=1)
        )
        found["wavefronts"] += _total(shared_wavefronts(addresses, active, element_bytes), times)
        found["ideal_wavefronts"] += _total(parts, times)
    else:
        _count_sectors(found, addresses, active, store, times)


def _count_sectors(
    found: Counter[str], addresses: np.ndarray, active: Any, store: _memory.Store, times: np.ndarray
) -> None:
    """Count the sectors of requests. ``times`` is how often each access, which makes several of the
    requests, counts.
    """
    sectors = sectors_per_request(
        addresses + np.int64(store.first_byte), active, store.dtype.itemsize
    )
    found["sectors"] += _total(sectors, times)
    steps = np.diff(addresses, axis=1)
    each = (  # different addresses; unless they ascend, counted as sectors of their own
        1 + np.count_nonzero(steps, axis=1)
        if active is None and steps.min() >= 0
        else sectors_per_request(addresses * np.int64(SECTOR_BYTES), active, 1)
    )
    found["ideal_sectors"] += _total(
        np.minimum(sectors, -(-each * store.dtype.itemsize // SECTOR_BYTES)), times
    )


def _total(counts: np.ndarray, times: np.ndarray) -> int:
    return int(counts.reshape(len(times), -1).sum(axis=1) @ times)


def _by_warp(
    accesses: list[tuple[_Elements, Mask]], pitch: int
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the addresses by warp, the active lanes by warp, and for each access how often its
    warps count: more than once if they stand for equal warps of other blocks.
    """
    batch, first = accesses[0][1].batch, accesses[0][1].array
    elements = _together([np.atleast_2d(elements) for elements, _ in accesses])
    addresses = elements * np.int64(pitch)
    # the same pattern in each block that takes part
    if first is not None and elements.shape[1] == 1 and first.shape[1] == 1:
        times = np.array([mask.lanes // batch.width for _, mask in accesses])
        return (
            np.broadcast_to(addresses, (len(accesses), 1, batch.width)).reshape(-1, WARP),
            None,
            times,
        )
    active = (
        None
        if first is None
        else _together([mask.array for _, mask in accesses if mask.array is not None])
    )
    blocks = max(elements.shape[1], 1 if active is None else active.shape[1])
    shape = (len(accesses), blocks, batch.width)
    return (
        np.broadcast_to(addresses, shape).reshape(-1, WARP),
        None if active is None else np.broadcast_to(active, shape).reshape(-1, WARP),
        np.full(len(accesses), batch.blocks if blocks == 1 else 1),
    )


def _together(arrays: list[np.ndarray]) -> np.ndarray:
    """Return arrays of one shape as one array with an axis more."""
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return joined.reshape(len(arrays), *arrays[0].shape)


# -------------------------------------------------------------------------------------------------
# The state of the blocks that run together: what they executed, where their barriers stand, their
# shared memory, what was found.


# A repeated finding counts as this many statements, since it takes as long (measured: 0.2 to 0.4 ms
# against 0.01 to 0.02). An endless loop that races is therefore refused about as soon as one that
# does not race.
_WORK_OF_A_FINDING = 16


_MOST_TRACED = 100_000  # statements


@dataclass
class Launch:
    """The state that all batches of a launch share."""

    program: Program
    max_steps: int
    dynamic_bytes: int
    resident: int  # blocks that a GPU runs at once
    releases: _hazards.Releases | None
    captured: list[Any]  # the arrays on the device that the kernel names from outside
    signatures: tuple[source.Signature, ...]  # what the kernel was declared with
    counters: Counters = field(default_factory=Counters)
    steps: float = 0
    repeated: int = 0
    next_look: float = 0
    epoch: int = 0
    event: int = 0
    findings: dict[tuple, report.Finding] = field(default_factory=dict)
    traced_block: int | None = None
    trace: list[report.Step] = field(default_factory=list)
    trace_cut: bool = False
    stop: Callable[[], None] | None = None
    notes: set[tuple[int, str]] = field(default_factory=set)  # by line: what only a run shows
    # by loop: how often in a row its lanes could not run alone
    left_to_lockstep: Counter[int] = field(default_factory=Counter)
    turns: _turns.Turns | None = None  # of blocks or threads that wait for each other
    # for loops that check whether they wait: how many are checking, how often memory has changed,
    # and how many atomics left memory as it was
    watchers: int = 0
    changes: int = 0
    vain_atomics: int = 0
    alone: float = 1.0  # how much a statement of a lane that runs alone counts
    # for each raised exception, its first thread and a function that returns its class and
    # arguments
    thrown: list[tuple[report.Thread, Callable[[], Any]]] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    trackers: list[_hazards.Tracker] = field(default_factory=list)  # of global memory

    def source_of(self, line: int) -> source.Source:
        """Return the kernel, or the device function, that has a line."""
        sources = (one for one in self.program.sources if line in one.lines)
        return next(sources, self.program.source)

    def place(self, line: int) -> str:
        """Return a line in words."""
        return self.source_of(line).place(line)

    def error(self, message: str, line: int) -> KernelError:
        """Return the error that names a line."""
        return self.source_of(line).error(message, line)


class Machine:
    """A batch of blocks while it runs."""

    def __init__(self, launch: Launch, batch: Batch) -> None:
        self.launch, self.batch = launch, batch
        self.counters = launch.counters
        launch.epoch += 1
        self.epoch: int | np.ndarray = launch.epoch
        self.exited: Mask | None = None
        self.raised: Mask | None = None  # the exited lanes that ended by an exception
        self.shared: dict[tuple[Any, ...], _memory.View] = {}
        self.shared_bytes = 0
        self._dynamic_bytes: _memory.Store | None = None
        self.barriers = (
            _hazards.WarpBarriers(batch.blocks, batch.warps)
            if "cuda.syncwarp" in launch.program.called
            else None
        )
        self.orders = _hazards.Orders(
            self.barriers,
            None
            if launch.releases is None
            else (launch.releases, _hazards.Releases(batch.blocks * batch.width)),
            batch.first * batch.width,
        )
        traced = -1 if launch.traced_block is None else launch.traced_block - batch.first
        self.traced_row = traced if 0 <= traced < batch.blocks else None
        self._recording = False

    # -- statements

    def step(self, line: int, mask: Mask) -> None:
        """Count a statement; raise an error if the kernel seems endless."""
        launch = self.launch
        launch.steps += 1
        if launch.steps > launch.next_look:
            self._look(line)
        self.counters.executed.append((line, mask))
        if self.traced_row is not None:
            self._trace(line, mask, self.traced_row)

    def steps(self, line: int, statements: int) -> None:
        """Add the statements that lanes executed alone to the steps; their counts by line are kept
        elsewhere.
        """
        self.launch.steps += statements * self.launch.alone
        if self.launch.steps > self.launch.next_look:
            self._look(line)

    def test(self, line: int, mask: Mask, condition: Any) -> tuple[Mask | None, Mask | None]:
        """Count a test; return the lanes where it holds and those where it does not."""
        yes, no = mask.split(condition)
        self.counters.tested.append((line, mask, yes, no))
        return yes, no

    def _look(self, line: int) -> None:
        """Count the statements that wait; raise an error if the kernel seems endless; let ``stop``
        end the simulation, if it is given; set the step at which to look again.
        """
        launch = self.launch
        if launch.steps > launch.max_steps:
            again = (
                f" (each repetition of a race or another finding counts as {_WORK_OF_A_FINDING})"
                if launch.repeated
                else ""
            )
            raise launch.error(
                f"the kernel was still running after {launch.max_steps:,} statements of whole "
                f"batches{again}; expected it to end. Look for a loop whose condition stays true, "
                "or pass a larger max_steps",
                line,
            )
        if launch.turns is not None:
            launch.turns.look(launch.stop is not None)
        elif launch.stop is not None:
            launch.stop()
        self.counters.settle_statements()
        lanes = self.batch.blocks * self.batch.width
        patience = min(_STATEMENTS_TOGETHER, 1 + _LANES_TOGETHER // lanes)
        launch.next_look = min(launch.max_steps, launch.steps + patience)

    def _trace(self, line: int, mask: Mask, row: int) -> None:
        bits = np.broadcast_to(mask.bits, (self.batch.blocks, self.batch.warps))[row]
        if bits.any():
            self._recording = len(self.launch.trace) < _MOST_TRACED
            if self._recording:
                self.launch.trace.append(report.Step(line, tuple(bits.tolist()), []))
            self.launch.trace_cut |= not self._recording

    def trace_access(self, store: _memory.Store, places: np.ndarray, mask: Mask, kind: str) -> None:
        """Record what the traced block accesses."""
        row = self.traced_row
        if row is None or not self._recording:
            return
        shape = self.batch.blocks, self.batch.width
        active = np.broadcast_to(True if mask.array is None else mask.array, shape)[row]
        if active.any():
            # counted in elements of their own size, also where they are fields of larger records
            numbers = places * np.int64(store.pitch) // store.dtype.itemsize
            elements = np.where(active, np.broadcast_to(numbers, shape)[row], -1)
            access = report.StepAccess(
                store.name, store.space, kind, store.dtype.itemsize, elements
            )
            self.launch.trace[-1].accesses.append(access)

    @property
    def alive(self) -> Mask:
        """Return the threads that have not returned from the kernel."""
        return self.batch.everyone.without(self.exited)  # type: ignore[return-value]

    def barrier(self, mask: Mask, line: int, of_grid: bool = False) -> None:
        """Let the lanes arrive at ``syncthreads``, which all threads of their block that have not
        exited must reach; with ``of_grid``, all threads of the grid must.
        """
        waiting = self.alive
        arrived = mask.blocks
        if mask is not waiting and (missing := waiting.without(mask)) is not None:
            absent = missing.blocks if of_grid else missing.blocks & arrived
            if absent.any():
                self._divergent_barrier(mask, missing, absent, line, of_grid)
        if of_grid and self.launch.releases is not None:
            self.launch.event += 1
            self.launch.releases.met = self.launch.event
            for tracker in self.launch.trackers:
                tracker.begin_anew()
        self.launch.epoch += 1
        if arrived.all():
            self.epoch = self.launch.epoch
        else:
            self.split_shared()
            self.epoch = np.where(arrived, np.int64(self.launch.epoch), self.epoch)
        self.counters.lines[line]["barriers"] += self.times(arrived)

    def _divergent_barrier(
        self, mask: Mask, missing: Mask, absent: np.ndarray, line: int, of_grid: bool
    ) -> None:
        whom, threads = "grid" if of_grid else "block", []
        for lanes, blocks in ((mask, mask.blocks if of_grid else absent), (missing, absent)):
            row = int(np.argmax(np.broadcast_to(blocks, (self.batch.blocks, 1))[:, 0]))
            rows, places = np.divmod(lanes.flat, self.batch.width)
            threads.append(self.thread(row, int(places[rows == row][0])))
        self.found(
            "barrier",
            line,
            tuple(threads),
            self.times(absent),
            f"not all threads of the {whom} reach this barrier: of the two named here, only the "
            f"first does. On a GPU the {whom} would hang, or continue with wrong data",
        )

    def times(self, which: np.ndarray) -> int:
        """Return how many lanes, warps or blocks are marked; a single row counts for all blocks."""
        return int(np.count_nonzero(which)) * (self.batch.blocks if len(which) == 1 else 1)

    # -- findings

    def thread(self, row: int, lane: int) -> report.Thread:
        """Return a lane of a block of this batch as a learner would name it."""
        return report.Thread(
            place(self.batch.first + row, self.batch.grid), place(lane, self.batch.block)
        )

    def first_thread(self, mask: Mask) -> report.Thread:
        """Return the first lane of a mask."""
        return self.thread(*map(int, divmod(mask.flat[0], self.batch.width)))

    def found(
        self,
        kind: str,
        line: int,
        threads: tuple[report.Thread, ...],
        count: int,
        text: str,
        array: str = "",
        index: tuple[int, ...] = (),
        other_line: int | None = None,
    ) -> None:
        """Keep a finding; the same one in another batch or step is counted, not repeated."""
        launch, key = self.launch, (kind, line, other_line, array)
        if key in launch.findings:
            launch.findings[key] = launch.findings[key].again(count)
            launch.steps += _WORK_OF_A_FINDING
            launch.repeated += 1
            return
        source = launch.source_of(line)
        launch.findings[key] = report.Finding(
            kind=kind,
            line=line,
            code=source.text_of(line),
            array=array,
            index=index,
            threads=threads,
            count=count,
            message=text,
            other_line=other_line,
            file=Path(source.code.co_filename).name if source.offset else "",
        )

    # -- memory

    def new_shared(
        self, key: tuple[int, tuple[int, ...], np.dtype], name: str, line: int
    ) -> _memory.View:
        """Return the block's shared array for a key: a place in the source, a shape and a type. The
        shape (0,) means dynamic shared memory.
        """
        _, shape, dtype = key
        if shape == (0,):
            key = 0, shape, dtype  # one array of a type, wherever it is made
        view = self.shared.get(key)
        if view is None and shape == (0,):
            view = self.shared[key] = self._dynamic(name, dtype, line)
        elif view is None:
            self._more_shared(math.prod(shape) * dtype.itemsize, line)
            view = self.shared[key] = _memory.new_view(name, "shared", shape, dtype, self.batch)
            self._track(view.store)
        return view

    def _track(self, store: _memory.Store) -> None:
        """Track the hazards of a new array in shared memory."""
        store.track(self.launch.program, self.batch.width).serve(self.orders)
        if isinstance(self.epoch, np.ndarray):
            store.tracker.split(self.batch.blocks)

    def _more_shared(self, nbytes: int, line: int) -> None:
        self.shared_bytes += nbytes
        if self.shared_bytes > MOST_SHARED_BYTES:
            raise self.launch.error(
                f"the block asks for {self.shared_bytes:,} bytes of shared memory; expected at "
                f"most {MOST_SHARED_BYTES:,}. Make the shared arrays smaller",
                line,
            )

    def _dynamic(self, name: str, dtype: np.dtype, line: int) -> _memory.View:
        """Return dynamic shared memory as an array. All such arrays begin at the same byte, and
        share one tracker and its words.

        Source: numba-cuda, "Dynamic shared memory"; CUDA Programming Guide, on ``extern
        __shared__`` arrays.
        """
        nbytes = self.launch.dynamic_bytes
        if self._dynamic_bytes is None:
            self._more_shared(nbytes, line)
            whole = (-(-nbytes // 16) * 16,)
            view = _memory.new_view(name, "shared", whole, np.dtype("uint8"), self.batch)
            view.store.word_bytes = self.launch.program.dynamic_word
            self._track(view.store)
            self._dynamic_bytes = view.store
        store = copy.copy(self._dynamic_bytes.typed(dtype, _memory.pitch_of(dtype)))
        extent, item = nbytes // dtype.itemsize, dtype.itemsize
        store.name, store.layout = name, ((extent,), (item,))
        return _memory.View(store, _memory.START, (np.int64(extent),), (item // store.pitch,))

    def split_shared(self) -> None:
        """Track the hazards of shared memory separately for each block from here on, since blocks
        now differ in what they did.
        """
        for view in self.shared.values():
            view.store.tracker.split(self.batch.blocks)

    def lanes_of(self, store: _memory.Store, where: Any, mask: Mask) -> _hazards.Lanes:
        """Return the lanes that access places of a tracked store: those of one block, while all
        blocks do the same in their shared memory.
        """
        array, batch, tracker = mask.array, self.batch, store.tracker
        if store.space == "global":
            numbers = batch.thread_numbers
            threads = numbers if array is None else numbers.take(mask.flat)
            return _hazards.Lanes(mask.selected(where), threads, mask, False)
        if not (where.size == 1 or len(where) == 1) or (array is not None and len(array) > 1):
            tracker.split(batch.blocks)
        if tracker.rows > 1:
            rows, threads = np.divmod(mask.flat, batch.width)
            words = mask.selected(where) + rows * tracker.words
            return _hazards.Lanes(words, threads.astype(np.int32), mask, False)
        threads = (
            batch.linear_thread[0]
            if array is None
            else np.broadcast_to(array, (1, batch.width))[0].nonzero()[0]
        )
        words = np.full(len(threads), where) if where.size == 1 else where[0].take(threads)
        return _hazards.Lanes(words, threads.astype(np.int32), mask, True)

    def release(
        self,
        what: Callable[[_hazards.Releases, np.ndarray, int], None],
        mask: Mask,
        everywhere: bool,
    ) -> None:
        """Note a fence, or an atomic, of the lanes. An atomic releases what came before their last
        fence. ``everywhere`` is true if other blocks can see it.
        """
        if self.orders.releases is not None:
            of_blocks, of_threads = self.orders.releases
            self.launch.event += 1
            what(of_threads, mask.flat, self.launch.event)
            if everywhere:
                blocks = self.batch.first + np.unique(mask.flat // self.batch.width)
                what(of_blocks, blocks, self.launch.event)

    def serve(self) -> None:
        """Let the trackers of global memory use what orders these blocks."""
        for tracker in self.launch.trackers:
            tracker.serve(self.orders, self.launch.turns is None)

    # -- blocks or threads that wait for each other

    def wait(self, line: int, mask: Mask, settled: bool) -> None:
        """Let others go on while lanes wait in a loop; ``settled`` is true if only a change of
        memory lets them leave it.
        """
        turns = self.launch.turns
        if turns is None:
            resident, grid = self.launch.resident, math.prod(self.batch.grid)
            if self.batch.blocks == resident < grid and mask.blocks.all():
                raise _turns.WaitError(line, _turns.MORE_THAN_FIT.format(resident=resident))
            raise _turns.WaitError(line)
        turns.spin(line, mask, self.launch.changes if settled else None)

    def together(
        self, site: object, mask: Mask, act: Callable[..., Any], *values: Any, block: bool = False
    ) -> Any:
        """Do what lanes of a warp, or all threads of the block, do together at a place of the
        source: return ``act(mask, *values)`` for all of them. For a warp, the bits of the first
        value name the lanes that take part.
        """
        turns = self.launch.turns
        if turns is None or not turns.by_thread:
            return act(mask, *values)
        return turns.meet(id(site), act, values, block)


# -------------------------------------------------------------------------------------------------
# A running call of a kernel or device function: its variables, its loops, and the lanes that left
# them.


@dataclass(eq=False)
class Leavers:
    """The lanes that left a loop's body early."""

    broken: Mask | None = None
    continued: Mask | None = None


@dataclass(eq=False)
class Frame:
    """A call of a kernel or device function: variables, and the lanes that are still in it
    (``live``).
    """

    machine: Machine
    variables: dict[str, Any]
    live: Mask
    is_kernel: bool
    types: _types.JoinTypes
    loops: list[Leavers] = field(default_factory=list)
    # local arrays, by the place in the source that makes them
    arrays: dict[Any, _memory.View] = field(default_factory=dict)
    returns: int = 0
    result: Any = None
    gave_nothing: bool = False  # whether lanes executed a plain `return`
    # for each variable that may have no value, the lanes that have assigned it
    given: dict[str, Mask | None] = field(default_factory=dict)

    def assign(self, name: str, value: Any, mask: Mask, line: int) -> None:
        """Give a variable a value in some lanes; the others keep theirs."""
        old = self.variables.get(name)
        if old is None or mask is self.live or mask.array is None:
            self.variables[name] = value
        else:
            self.variables[name] = self._merged(mask, value, old, name, line)

    def look_for(self, name: str, mask: Mask, line: int) -> None:
        """Report a variable that some lanes read but have not assigned. Their value is undefined:
        one that was computed for other lanes, or anything.
        """
        without = mask.without(self.given.get(name))
        if without is not None:
            thread = self.machine.first_thread(without)
            text = "is read by threads that have not assigned it: on a GPU its value is undefined"
            self.machine.found(
                "uninitialised", line, (thread,), without.lanes, f"{name} {text}", name
            )

    def throw(self, error: str, mask: Mask, line: int, made: Callable[[], Any]) -> None:
        """Raise an exception in some lanes, which ends them; ``made`` returns its class and its
        arguments.
        """
        machine = self.machine
        self.returns += 1
        machine.exited, machine.raised = union(machine.exited, mask), union(machine.raised, mask)
        text, thread = f"{error} is raised here, and the thread ends", machine.first_thread(mask)
        machine.found("exception", line, (thread,), mask.lanes, text)
        machine.launch.thrown.append((thread, made))

    def give(self, value: Any, mask: Mask, line: int) -> None:
        """Return from the call in some lanes."""
        self.returns += 1
        if self.is_kernel:
            self.machine.exited = union(self.machine.exited, mask)
            if value is not None:
                text = "a kernel cannot return a value; expected a plain `return`"
                raise self.machine.launch.error(text, line)
        elif value is None:
            self.gave_nothing = True
        elif self.result is None:
            self.result = value
        else:
            self.result = self._merged(mask, value, self.result, "the result", line)

    def _merged(self, mask: Mask, value: Any, old: Any, name: str, line: int) -> Any:
        """Return the new value in the lanes of the mask and the old one elsewhere."""
        try:
            return _memory.merge(mask.array, value, old)
        except TypeError as error:
            raise self.machine.launch.error(f"{name} has {error}", line) from error


Expression = Callable[[Frame, Mask], Any]  # computes a value for the lanes of a mask
