"""Races: who touched each word last, and whether two threads' accesses are ordered."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpulab.kernels.simulation._geometry import WARP, Mask

# -------------------------------------------------------------------------------------------------
# The lanes of one access as a flat list, and its moment: the form in which the hazard search uses
# them.


class Moment(NamedTuple):
    """The time of an access: ``epoch`` counts the barriers of the lanes' block; ``event`` counts
    all ``syncwarp``, fences and atomics so far.
    """

    epoch: np.ndarray | int
    event: int
    line: int


class Lanes:
    """Lanes that access words of global memory, or of the shared memory of their block.

    ``threads`` are numbered through the grid for global memory, and within the block for shared
    memory. ``alike`` is true if the same lanes access the same shared words in all blocks:
    ``words`` then has an entry for each lane of one block, which stands for all. Otherwise shared
    words are numbered through the blocks.
    """

    def __init__(self, words: np.ndarray, threads: np.ndarray, mask: Mask, alike: bool) -> None:
        self.words, self.threads, self.mask, self.alike = words, threads, mask, alike

    @property
    def times(self) -> int:
        """Return how many blocks each lane stands for."""
        return self.mask.batch.blocks if self.alike else 1

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the block of each lane, counted from the first one of the batch."""
        return self.mask.flat // self.mask.batch.width

    def of(self, value: Any, which: np.ndarray) -> np.ndarray:
        """Return the value of some of the lanes, flat; where blocks are alike, those of all blocks,
        shape (B, lanes).
        """
        batch = self.mask.batch
        full = np.broadcast_to(value, (batch.blocks, batch.width))
        lanes = self.threads[which] % batch.width
        return full[:, lanes] if self.alike else full[self.rows[which], lanes]


# -------------------------------------------------------------------------------------------------
# Apart from ``syncthreads``, ``syncwarp`` orders the lanes of a warp, and ``threadfence`` with
# atomics orders the blocks of a grid.


Flat = np.ndarray  # one entry for each lane that takes part
_EVENT_BITS = 32
_EVENTS = (1 << _EVENT_BITS) - 1


class WarpBarriers:
    """The ``syncwarp`` calls so far: which lanes of each warp took part in which."""

    def __init__(self, rows: int, warps: int) -> None:
        self.masks: list[tuple[int, np.ndarray]] = []
        self.last_full = np.full((rows, warps), -1, dtype=np.int64)

    def add(self, event: int, bits: np.ndarray) -> None:
        """Add a call; ``bits`` are the lanes that arrived, shape (rows or 1, warps)."""
        self.masks.append((event, bits))
        self.last_full[np.broadcast_to(bits == 0xFFFFFFFF, self.last_full.shape)] = event

    def ordered(self, rows: Flat, warps: Flat, first_lanes: Flat, since: Flat, lanes: Flat) -> Flat:
        """Return where a chain of calls after event ``since`` orders the first lane before the
        other lane of its warp.
        """
        reached = np.int64(1) << first_lanes.astype(np.int64)
        found = np.zeros(len(lanes), dtype=bool)
        begin = int(since.min(initial=np.iinfo(since.dtype).max))
        for event, masks in self.masks[
            bisect.bisect_right(self.masks, begin, key=lambda call: call[0]) :
        ]:
            bits = masks[rows if len(masks) > 1 else 0, warps].astype(np.int64)
            reached |= np.where((event > since) & (bits & reached != 0), bits, 0)
            found = (reached >> lanes & 1).astype(bool)
            if found.all():
                break
        return found


class Releases:
    """The releases of agents (blocks, or threads), and when each agent last acquired. An agent
    releases its accesses by a fence and an atomic after it; it acquires the releases of others by
    any atomic.

    The acquiring agent needs no fence: the programming guide's own example has none. Source: CUDA
    C++ Programming Guide, "Memory Fence Functions"; PTX ISA, "Release and Acquire Patterns".
    """

    def __init__(self, agents: int) -> None:
        self._fenced = np.full(agents, -1, dtype=np.int64)
        self._released, self._looked = self._fenced.copy(), self._fenced.copy()
        # each release: agent and fence as one number, and the event of the atomic
        self._fences, self._atomics = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._new: list[tuple[np.ndarray, np.ndarray]] = []
        self.met = -1  # when all agents last met at a barrier of the grid

    def fence(self, agents: Flat, event: int) -> None:
        """Note that agents call ``threadfence``."""
        self._fenced[agents] = event

    def atomic(self, agents: Flat, event: int) -> None:
        """Note that agents call an atomic."""
        fences = self._fenced[agents]
        new = fences > self._released[agents]
        if new.any():
            releasing, fences = agents[new].astype(np.int64), fences[new]
            self._released[releasing] = fences
            self._new.append((releasing << _EVENT_BITS | fences, np.full(len(fences), event)))
        self._looked[agents] = event

    def ordered(self, earlier: Flat, since: Flat, later: Flat) -> Flat:
        """Return where the access of agent ``earlier`` at event ``since`` comes before what agent
        ``later`` does now: where the first release of ``earlier`` after the access comes before the
        last atomic of ``later``, or where a barrier of the grid came after the access.
        """
        if self._new:
            fences, atomics = (np.concatenate(parts) for parts in zip(*self._new, strict=True))
            fences = np.append(self._fences, fences)
            order = np.argsort(fences, kind="stable")
            self._fences, self._atomics = fences[order], np.append(self._atomics, atomics)[order]
            self._new = []
        found: Flat = since < self.met
        if len(self._fences):
            place = np.searchsorted(
                self._fences, earlier.astype(np.int64) << _EVENT_BITS | since, "right"
            )
            place = np.minimum(place, len(self._fences) - 1)
            fences, released, looked = (
                self._fences[place],
                self._atomics[place],
                self._looked[later],
            )
            found |= (
                (fences >> _EVENT_BITS == earlier)
                & (fences & _EVENTS > since)
                & ((released < looked) | ((released == looked) & (earlier < later)))
            )
        return found


@dataclass(frozen=True)
class Orders:
    """What orders the lanes of a batch of blocks, apart from ``syncthreads``. ``releases`` are
    those between all blocks of the grid, and those between the threads of this batch. ``first`` is
    the number of the batch's first lane.
    """

    warps: WarpBarriers | None = None
    releases: tuple[Releases, Releases] | None = None
    first: int = 0


# -------------------------------------------------------------------------------------------------
# Accesses that are no longer witnesses, because later ones replaced them; kept only if a
# ``syncwarp`` of the kernel names lanes.
#
# Two witnesses of a word stand for all lanes of a warp only while every barrier orders all of these
# lanes. A ``syncwarp`` of some lanes may order both witnesses before an access, but not a third
# lane.


_WORD, _THREAD = 0, 1
_COLUMNS = 5  # word, thread, epoch, line, event


class Evicted:
    """For each word, the last access of every thread that is no longer a witness."""

    def __init__(self) -> None:
        self._table = np.empty((0, _COLUMNS), dtype=np.int64)
        self._new: list[np.ndarray] = []

    def clear(self) -> None:
        """Forget all accesses."""
        self._table = self._table[:0]
        self._new = []

    def add(self, words: Flat, fields: Flat) -> None:
        """Note accesses that come after all that are noted. ``fields``, shape (n, 4), are those of
        a witness; entries with thread -1 stand for no access.
        """
        real = fields[:, 0] >= 0
        if real.any():
            self._new.append(np.column_stack([words[real], fields[real]]).astype(np.int64))

    def copy_rows(self, words: int, times: int) -> Evicted:
        """Return a copy whose words are repeated for each of ``times`` rows."""
        copy, table = Evicted(), self._compact()
        copy._new = [np.add(table, [row * words, 0, 0, 0, 0]) for row in range(times)]
        return copy

    def of(self, words: Flat) -> tuple[Flat, Flat]:
        """Return all accesses of the given words: for each access the position of its word in
        ``words``, and its fields, shape (n, 4).
        """
        table = self._compact()
        first = np.searchsorted(table[:, _WORD], words, "left")
        last = np.searchsorted(table[:, _WORD], words, "right")
        many = last - first
        which = np.repeat(np.arange(len(words)), many)
        place = (
            np.arange(len(which)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(first, many)
        )
        return which, table[place, _THREAD:]

    def _compact(self) -> np.ndarray:
        if self._new:
            table = np.concatenate([self._table, *self._new])
            # stable: of the same word and thread, the latest access is the last entry
            table = table[np.lexsort((table[:, _THREAD], table[:, _WORD]))]
            last = np.ones(len(table), dtype=bool)
            last[:-1] = (table[1:, : _THREAD + 1] != table[:-1, : _THREAD + 1]).any(axis=1)
            self._table, self._new = table[last], []
        return self._table


# -------------------------------------------------------------------------------------------------
# Who touched each word last, and whether two threads' accesses are ordered.
#
# Two accesses of one word race when two threads make them, at least one writes, not both are
# atomic, and nothing orders them. Threads of one block are ordered by ``syncthreads``, lanes of one
# warp also by ``syncwarp``. Any two threads are ordered by a release: the first one accesses, calls
# ``threadfence``, and then an atomic; the second one calls an atomic later. (Between blocks, fences
# and atomics count for the whole block here.) Two plain writes of the same value are not reported:
# the memory is the same in either order. A plain read whose value is used only in a
# compare-and-swap of the same element counts as an atomic: with an old value the swap fails.
#
# For each word two witnesses of each kind of access (plain writes, atomics, plain reads) are kept:
# the last thread that made it, and another one that is as far from it as possible: in another
# block, else in another warp, else another lane. If the next access of the word is unordered with
# any thread since the last barrier, it is unordered with one of the two. Only if a ``syncwarp``
# names some lanes of a warp, earlier witnesses are checked as well (``Evicted``). While there are
# only reads, or only atomics, none of them races; they wait and are recorded later.


@dataclass(frozen=True)
class Conflict:
    """Two unordered accesses of one word: the first pair found, and how many lanes found one."""

    lane: int
    thread: int
    other_thread: int
    other_line: int
    count: int


# The most lanes of accesses that wait to be recorded; each takes 12 bytes.
_MOST_WAITING = 1 << 21
# One witness of one word: thread, epoch, line, event. Sixteen bytes, moved as one complex number.
_FIELDS, _PACKED = np.dtype(np.int32), np.dtype(np.complex128)
# The bytes for one word where blocks differ: two witnesses of each of three kinds, and whether it
# is written.
BYTES_OF_A_WORD = 3 * 2 * _PACKED.itemsize + 1


class _Witnesses:
    """For each word and one kind of access, the last thread that made it and another one, each with
    its moment.
    """

    __slots__ = ("forgotten", "kept", "packed", "words")

    def __init__(self, words: int, forgotten: Evicted | None) -> None:
        self.words = words
        self.forgotten = forgotten  # None where two witnesses suffice
        # allocated when first needed: most arrays see one kind of access
        self.packed = np.empty((2, 0), dtype=_PACKED)
        self.kept = 0  # the most witnesses that a word has: 0, 1 or 2

    def make(self) -> None:
        """Allocate the witnesses of all words, before the first one is recorded."""
        fields = np.zeros((2, self.words, 4), dtype=_FIELDS)
        fields[..., 0] = -1
        self.packed = fields.view(_PACKED)[..., 0]
        self.kept = 1

    def copy_rows(self, times: int) -> _Witnesses:
        """Return a copy whose words are repeated for each of ``times`` rows."""
        new = _Witnesses(
            self.words * times,
            None if self.forgotten is None else self.forgotten.copy_rows(self.words, times),
        )
        new.packed, new.kept = np.tile(self.packed, (1, times)), self.kept
        return new

    def of(self, which: int, words: Flat) -> Flat:
        """Return the fields of the last (0) or the other (1) witness of each word, shape (n, 4)."""
        found: Flat = self.packed[which].take(words).view(_FIELDS).reshape(-1, 4)
        return found

    def each_of(self, words: Flat) -> Iterator[tuple[Flat | None, Flat]]:
        """Yield the fields of all accesses to the words: first, for each kind of witness, None and
        the fields of all words; then, for evicted accesses, the positions of their words and their
        fields.
        """
        for which in range(self.kept):
            yield None, self.of(which, words)
        if self.forgotten is not None:
            yield self.forgotten.of(words)


_OTHER_BLOCK = 3  # the distance of threads of two blocks, as ``_apart`` gives it
# How an access counts, and the kinds of earlier accesses with which it may race. A read that serves
# a compare-and-swap ("compared") counts as atomic.
_KINDS = {
    "load": ("load", ("store", "atomic")),
    "store": ("store", ("store", "atomic", "load")),
    "atomic": ("atomic", ("store", "load")),
    "compared": ("atomic", ("store",)),
}


class Tracker:
    """The accesses to the words of one array, and the races among them.

    ``across_blocks`` is true for global memory: threads are numbered through the grid, and all
    blocks share the words. ``names_lanes`` is true if a ``syncwarp`` of the kernel names lanes.
    """

    def __init__(self, words: int, width: int, across_blocks: bool, names_lanes: bool) -> None:
        self.words, self.width, self.across_blocks = words, width, across_blocks
        self.rows = 1
        self.orders = Orders()
        self._epoch: Flat | int = -1
        # the kinds of access since the last barrier of all threads, and the accesses that wait to
        # be recorded
        self._kinds: set[str] = set()
        self._waiting: list[tuple[str, Lanes, Moment]] = []
        self._witnesses = {
            kind: _Witnesses(words, Evicted() if names_lanes else None)
            for kind in ("store", "atomic", "load")
        }
        # Which words of shared memory have a value; None once all have, and for global memory.
        self._written: np.ndarray | None = None if across_blocks else np.zeros(words, dtype=bool)

    def serve(self, orders: Orders, others_ended: bool = True) -> Tracker:
        """Use ``orders`` for the accesses from here on. If ``others_ended``, no warp of another
        block will access anything more, and evicted accesses are dropped.
        """
        for witnesses in self._witnesses.values() if others_ended else ():
            if witnesses.forgotten is not None:
                witnesses.forgotten.clear()
        self.orders = orders
        return self

    def begin_anew(self) -> None:
        """Note that all accesses so far come before those that follow."""
        self._kinds.clear()
        self._waiting.clear()

    def split(self, rows: int) -> None:
        """Track the words of ``rows`` blocks separately from here on. The array is in shared
        memory, and its blocks have been alike so far.
        """
        if self.rows == rows:
            return
        self._record_waiting()
        self.rows = rows
        self._witnesses = {
            kind: witnesses.copy_rows(rows) for kind, witnesses in self._witnesses.items()
        }
        if self._written is not None:
            self._written = np.tile(self._written, rows)

    def access(
        self,
        how: str,
        lanes: Lanes,
        moment: Moment,
        unchanged: Callable[[Flat], Flat] | None = None,
    ) -> Conflict | None:
        """Note an access; return a conflict with an earlier one, or None. ``unchanged(lanes)``
        returns where memory already holds the value that is stored.
        """
        kind, others = _KINDS[how]
        found = None
        if not self.across_blocks and not isinstance(moment.epoch, np.ndarray):
            self._reach(moment.epoch)
        is_full = len(self._waiting) * len(lanes.words) > _MOST_WAITING
        if kind != "store" and self._kinds <= {kind} and not is_full:
            self._waiting.append((kind, lanes, moment))  # none of them races with another one
        else:
            self._record_waiting()
            for other in others:
                if found is None and other in self._kinds:
                    same = unchanged if other == "store" else None
                    found = self._conflict(self._witnesses[other], lanes, moment, same)
            self._record(self._witnesses[kind], lanes.words, lanes.threads, moment)
        self._kinds.add(kind)
        if self._written is not None and kind != "load" and how != "compared":
            self._written[lanes.words] = True
        return found

    def _reach(self, epoch: int) -> None:
        """Note a barrier of all blocks, if there was one: it orders all accesses before it."""
        if epoch != self._epoch:
            self._epoch = epoch
            self.begin_anew()
            if self._written is not None and self._written.all():
                self._written = None

    def _record_waiting(self) -> None:
        for kind, lanes, moment in self._waiting:
            self._record(self._witnesses[kind], lanes.words, lanes.threads, moment)
        self._waiting.clear()

    def clash(self, lanes: Lanes, same: Callable[[Flat], Flat], line: int) -> Conflict | None:
        """Return a conflict of two lanes that wrote different values to one word in the same
        instruction. Call it after the values are in memory.
        """
        threads = lanes.threads
        winner = self._witnesses["store"].of(0, lanes.words)[:, 0]
        lost = np.flatnonzero(winner != threads)
        lost = lost[~same(lost)] if len(lost) else lost
        if not len(lost):
            return None
        return Conflict(int(lost[0]), int(threads[lost[0]]), int(winner[lost[0]]), line, len(lost))

    def unwritten(self, words: Flat) -> Flat:
        """Return the lanes whose word of shared memory no thread has written."""
        if self._written is None:
            return words[:0]
        return (~self._written.take(words)).nonzero()[0]

    def _conflict(
        self,
        witnesses: _Witnesses,
        access: Lanes,
        moment: Moment,
        unchanged: Callable[[Flat], Flat] | None,
    ) -> Conflict | None:
        words, threads = access.words, access.threads
        for which, fields in witnesses.each_of(words):
            asked, at, epoch = threads, words, moment.epoch
            if which is not None:  # evicted accesses: only those of the same warp count
                asked, at = threads[which], words[which]
                epoch = epoch[which] if isinstance(epoch, np.ndarray) else epoch
            rank = self._rank(fields, asked, epoch)
            found = np.flatnonzero(rank if which is None else rank == 1)
            rules: list[tuple[Any, Callable[..., Flat]]] = [
                (self.orders.warps, self._by_warp_barrier),
                (self.orders.releases, self._by_release),
            ]
            for orders, ordered in rules:
                if orders is not None and len(found):
                    found = found[~ordered(orders, fields[found], at[found], asked[found])]
            lanes = found if which is None else which[found]
            if unchanged is not None and len(lanes):
                is_new = ~unchanged(lanes)
                found, lanes = found[is_new], lanes[is_new]
            if len(lanes):
                first, other = int(lanes[0]), fields[found[0]]
                return Conflict(
                    first, int(threads[first]), int(other[0]), int(other[2]), len(np.unique(lanes))
                )
        return None

    def _by_release(
        self, releases: tuple[Releases, Releases], fields: Flat, words: Flat, threads: Flat
    ) -> Flat:
        """Return where the other thread, or its block, released its access before this thread, or
        its block, last acquired.
        """
        (of_blocks, of_threads), others, since = releases, fields[:, 0], fields[:, 3]
        if not self.across_blocks:
            base = words // self.words * self.width if self.rows > 1 else 0
            return of_threads.ordered(others + base, since, threads + base)
        found = of_blocks.ordered(others // self.width, since, threads // self.width)
        same, first = others // self.width == threads // self.width, self.orders.first
        found[same] = of_threads.ordered(others[same] - first, since[same], threads[same] - first)
        return found

    def _by_warp_barrier(
        self, barriers: WarpBarriers, fields: Flat, words: Flat, threads: Flat
    ) -> Flat:
        """Return where a ``syncwarp`` since the other lane's access orders it before this one."""
        others, since = fields[:, 0], fields[:, 3]
        same = others // WARP == threads // WARP
        lane, warp = threads % WARP, threads // WARP
        if self.across_blocks:
            row, warp = np.divmod(warp - self.orders.first // WARP, self.width // WARP)
        else:
            row = words // self.words if self.rows > 1 else np.zeros_like(words)
        found = np.zeros(len(threads), dtype=bool)
        found[same] = since[same] < barriers.last_full[row[same], warp[same]]
        left = np.flatnonzero(same & ~found)
        found[left] = barriers.ordered(
            row[left], warp[left], others[left] % WARP, since[left], lane[left]
        )
        return found

    def _rank(self, fields: Flat, threads: Flat, epoch: Flat | int) -> Flat:
        """Return how far a witness is from the thread: 3 for another block, 2 for another warp, 1
        for another lane. Return 0 if there is no witness, if it is the thread itself, or if a
        barrier has ordered its access.
        """
        others = fields[:, 0]
        others_are_there: Flat = (others != threads) & (others >= 0)
        if not others_are_there.any():
            return others_are_there
        apart = self._apart(others, threads)
        unordered = (fields[:, 1] == epoch) | (apart == _OTHER_BLOCK)
        return np.where(others_are_there & unordered, apart, 0)

    def _apart(self, others: Flat, threads: Flat) -> Flat:
        """Return 1 for threads of one warp, 2 of one block, 3 of two blocks that share memory."""
        apart: Flat = 1 + (others // WARP != threads // WARP)
        if self.across_blocks:
            apart[others // self.width != threads // self.width] = _OTHER_BLOCK
        return apart

    def _record(self, witnesses: _Witnesses, words: Flat, threads: Flat, moment: Moment) -> None:
        if not witnesses.kept:
            witnesses.make()
        else:
            last = witnesses.of(0, words)
            rank = self._rank(last, threads, moment.epoch)
            if rank.any():
                move = rank > 0
                if witnesses.kept > 1:
                    move &= rank >= self._rank(witnesses.of(1, words), threads, moment.epoch)
                if witnesses.forgotten is not None:
                    witnesses.forgotten.add(
                        words, np.where(move[:, None], witnesses.of(1, words), last)
                    )
                moved = np.flatnonzero(move)
                witnesses.packed[1][words[moved]] = last[moved].reshape(-1).view(_PACKED)
                witnesses.kept = 2
        fields = np.empty((len(threads), 4), dtype=_FIELDS)
        fields[:, 0], fields[:, 1] = threads, moment.epoch
        fields[:, 2], fields[:, 3] = moment.line, moment.event
        packed = fields.reshape(-1).view(_PACKED)
        witnesses.packed[0][words] = packed
        winner = witnesses.of(0, words)[:, 0]
        # The last lane is the last witness. The others are taken from the end, so that the first
        # lane is written last and stays as the other witness.
        lost = np.flatnonzero(winner != threads)[::-1]
        if len(lost):
            self._record_lost(witnesses, packed, words, threads, winner, lost, moment)

    def _record_lost(
        self,
        witnesses: _Witnesses,
        packed: Flat,
        words: Flat,
        threads: Flat,
        winner: Flat,
        lost: Flat,
        moment: Moment,
    ) -> None:
        """Keep one more of several lanes that accessed one word at once, beside the last lane.
        Lanes that are farther from the last lane are written later, so that the farthest one stays.

        An earlier witness that is farther from the last lane than any of them stays.
        """
        witnesses.kept = 2
        other = witnesses.packed[1]
        apart = self._apart(winner[lost], threads[lost])
        epoch = moment.epoch[lost] if isinstance(moment.epoch, np.ndarray) else moment.epoch
        before = self._rank(witnesses.of(1, words[lost]), winner[lost], epoch)
        stays = before > apart
        if witnesses.forgotten is not None:
            witnesses.forgotten.add(words[lost[~stays]], witnesses.of(1, words[lost[~stays]]))
            witnesses.forgotten.add(words[lost], packed[lost].view(_FIELDS).reshape(-1, 4))
        for far in range(1, 4):
            here = lost[~stays & (apart == far)]
            other[words[here]] = packed[here]
