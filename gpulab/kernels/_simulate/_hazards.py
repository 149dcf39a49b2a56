"""Who touched each word last, and whether two threads' accesses are ordered.

Two accesses of one word race when two threads make them, at least one writes, not both are atomic, and nothing orders them. Threads of
one block are ordered by ``syncthreads``, lanes of one warp also by ``syncwarp``. Threads of different blocks are ordered only by the way of
the last block: one writes, calls ``threadfence``, and then an atomic; the other calls an atomic later. (Fences and atomics count for the
whole block here.) Two plain writes of the same value are let pass: whoever comes last, the memory is the same.

For each word two witnesses of each kind (plain writes, atomics, plain reads) are kept: the last thread that did so, and one more that
differs from it as much as possible: of another block, else of another warp, else another lane. Whoever touches the word next is unordered
with one of the two, if it is unordered with any thread since the last barrier.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpulab.kernels._simulate._geometry import WARP

Flat = np.ndarray  # one entry for each lane that takes part


@dataclass(frozen=True)
class Moment:
    """When lanes access: ``epoch`` counts the barriers of their block, ``event`` all ``syncwarp``, fences and atomics so far."""

    epoch: Flat | int
    event: int
    line: int


@dataclass(frozen=True)
class Conflict:
    """Two unordered accesses of one word: the first pair found, and how many lanes found one."""

    lane: int
    thread: int
    other_thread: int
    other_line: int
    count: int


class WarpBarriers:
    """The ``syncwarp`` calls so far: which lanes of each warp took part in which."""

    def __init__(self, rows: int, warps: int, first: int) -> None:
        self.rows, self.warps, self.first = rows, warps, first
        self.masks: list[tuple[int, np.ndarray]] = []
        self.last_full = np.full((rows, warps), -1, dtype=np.int64)

    def add(self, event: int, bits: np.ndarray) -> None:
        """Add a call; ``bits`` are the lanes that arrived, shape (rows or 1, warps)."""
        self.masks.append((event, bits))
        self.last_full[np.broadcast_to(bits == 0xFFFFFFFF, self.last_full.shape)] = event

    def ordered(self, row: int, warp: int, first_lane: int, since: int, lane: int) -> bool:
        """Return whether a chain of calls after event ``since`` leads from one lane to the other."""
        reached = 1 << first_lane
        for event, masks in self.masks[bisect.bisect_right(self.masks, since, key=lambda call: call[0]) :]:
            assert event > since
            bits = int(masks[row if len(masks) > 1 else 0, warp])
            if bits & reached:
                reached |= bits
        return bool(reached >> lane & 1)


# One witness of one word: thread, epoch, line, event. Sixteen bytes, moved as one complex number.
_FIELDS, _PACKED = np.dtype(np.int32), np.dtype(np.complex128)


class _Witnesses:
    """For each word, the last thread that accessed it in one way and another one, each with its moment."""

    __slots__ = ("kept", "packed", "words")

    def __init__(self, words: int) -> None:
        self.words = words
        self.packed = np.empty((2, 0), dtype=_PACKED)  # made when first needed: most arrays know one kind of access
        self.kept = 0  # how many witnesses any word has

    def make(self) -> None:
        """Make room for the first witness."""
        fields = np.zeros((2, self.words, 4), dtype=_FIELDS)
        fields[..., 0] = -1
        self.packed = fields.view(_PACKED)[..., 0]
        self.kept = 1

    def copy_rows(self, times: int) -> _Witnesses:
        """Return the same for so many rows of words."""
        new = _Witnesses(self.words * times)
        new.packed, new.kept = np.tile(self.packed, (1, times)), self.kept
        return new

    def of(self, which: int, words: Flat) -> Flat:
        """Return the fields of the last (0) or the other (1) witness of each word, shape (n, 4)."""
        found: Flat = self.packed[which].take(words).view(_FIELDS).reshape(-1, 4)
        return found


def _moment_fields(threads: Flat, moment: Moment) -> Flat:
    fields = np.empty((len(threads), 4), dtype=_FIELDS)
    fields[:, 0] = threads
    fields[:, 1] = moment.epoch
    fields[:, 2] = moment.line
    fields[:, 3] = moment.event
    return fields


class Fences:
    """What each block has published to the others, by ``threadfence`` and an atomic after it, and when it last looked, by an atomic."""

    def __init__(self, blocks: int) -> None:
        self._fenced = np.full(blocks, -1, dtype=np.int64)
        self._covered, self._published, self._looked = self._fenced.copy(), self._fenced.copy(), self._fenced.copy()

    def fence(self, blocks: Flat, event: int) -> None:
        """Note that blocks call ``threadfence``."""
        self._fenced[blocks] = event

    def atomic(self, blocks: Flat, event: int) -> None:
        """Note that blocks call an atomic on global memory."""
        self._covered[blocks] = self._fenced[blocks]
        self._published[blocks] = self._looked[blocks] = event

    def ordered(self, earlier: Flat, since: Flat, later: Flat) -> Flat:
        """Return where an access of one block at an event comes before what another block does now."""
        published, looked = self._published[earlier], self._looked[later]
        found: Flat = (since < self._covered[earlier]) & ((published < looked) | ((published == looked) & (earlier < later)))
        return found


class Tracker:
    """The words of one array. ``across_blocks`` for global memory: threads are numbered through the grid, the words serve all blocks."""

    def __init__(self, words: int, width: int, across_blocks: bool, events: bool) -> None:
        self.words, self.width, self.across_blocks = words, width, across_blocks
        self.rows = 1
        self.barriers: WarpBarriers | None = None
        self.fences: Fences | None = None
        self.events = events
        self.writes, self.atomics, self.reads = _Witnesses(words), _Witnesses(words), _Witnesses(words)
        self.written: np.ndarray | None = None if across_blocks else np.zeros(words, dtype=bool)

    def serve(self, barriers: WarpBarriers | None) -> Tracker:
        """Look up the warp barriers of these blocks from here on."""
        self.barriers = barriers
        return self

    def split(self, rows: int) -> None:
        """Keep the words of so many blocks apart from here on (shared memory whose blocks have been alike so far)."""
        if self.rows == rows:
            return
        self.rows = rows
        self.writes, self.atomics, self.reads = (kind.copy_rows(rows) for kind in (self.writes, self.atomics, self.reads))
        if self.written is not None:
            self.written = np.tile(self.written, rows)

    def read(self, words: Flat, threads: Flat, moment: Moment) -> Conflict | None:
        """Note a read; return a conflict with a write or an atomic before it."""
        found = self._conflict(self.writes, words, threads, moment, None) or self._conflict(self.atomics, words, threads, moment, None)
        self._record(self.reads, words, threads, moment)
        return found

    def write(self, words: Flat, threads: Flat, moment: Moment, unchanged: Callable[[Flat], Flat]) -> Conflict | None:
        """Note a write; return a conflict with an access before it. ``unchanged(lanes)`` tells where the value is already there."""
        found = (
            self._conflict(self.writes, words, threads, moment, unchanged)
            or self._conflict(self.atomics, words, threads, moment, None)
            or self._conflict(self.reads, words, threads, moment, None)
        )
        self._record(self.writes, words, threads, moment)
        self._now_written(words)
        return found

    def update(self, words: Flat, threads: Flat, moment: Moment) -> Conflict | None:
        """Note an atomic; return a conflict with a plain access before it."""
        found = self._conflict(self.writes, words, threads, moment, None) or self._conflict(self.reads, words, threads, moment, None)
        self._record(self.atomics, words, threads, moment)
        self._now_written(words)
        return found

    def _now_written(self, words: Flat) -> None:
        if self.written is not None:
            self.written[words] = True

    def clash(self, words: Flat, threads: Flat, differs: Callable[[Flat], Flat], line: int) -> Conflict | None:
        """Return two lanes that wrote one word in the same instruction, with different values; to be asked after ``write``."""
        winner = self.writes.of(0, words)[:, 0]
        lost = np.flatnonzero(winner != threads)
        lost = lost[differs(lost)] if len(lost) else lost
        if not len(lost):
            return None
        return Conflict(int(lost[0]), int(threads[lost[0]]), int(winner[lost[0]]), line, len(lost))

    def unwritten(self, words: Flat) -> Flat:
        """Return the lanes whose word of shared memory nobody has written."""
        if self.written is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(~self.written[words])

    def _conflict(
        self, witnesses: _Witnesses, words: Flat, threads: Flat, moment: Moment, unchanged: Callable[[Flat], Flat] | None
    ) -> Conflict | None:
        for which in range(witnesses.kept):
            fields = witnesses.of(which, words)
            others = fields[:, 0]
            unordered = (fields[:, 1] == moment.epoch) if not self.across_blocks else self._not_ordered(fields, threads, moment)
            unordered &= others != threads
            if not unordered.any():
                continue
            lanes = np.flatnonzero(unordered & (others >= 0))
            if len(lanes) and self.events:
                lanes = lanes[~self._by_warp_barrier(fields[lanes], words[lanes], threads[lanes])]
            if len(lanes) and self.fences is not None:
                blocks = others[lanes] // self.width, threads[lanes] // self.width
                lanes = lanes[~self.fences.ordered(blocks[0], fields[lanes, 3], blocks[1])]
            if len(lanes) and unchanged is not None:
                lanes = lanes[~unchanged(lanes)]
            if len(lanes):
                first = int(lanes[0])
                return Conflict(first, int(threads[first]), int(others[first]), int(fields[first, 2]), len(lanes))
        return None

    def _not_ordered(self, fields: Flat, threads: Flat, moment: Moment) -> Flat:
        """Return where the witness is of another block, or of this one since its last barrier."""
        found: Flat = (fields[:, 1] == moment.epoch) | (fields[:, 0] // self.width != threads // self.width)
        return found

    def _by_warp_barrier(self, fields: Flat, words: Flat, threads: Flat) -> Flat:
        """Return where a ``syncwarp`` since the other lane's access orders it before this one."""
        barriers = self.barriers
        if barriers is None:
            return np.zeros(len(threads), dtype=bool)
        others, since = fields[:, 0], fields[:, 3]
        same = others // WARP == threads // WARP
        lane, warp = threads % WARP, threads // WARP
        if self.across_blocks:
            row, warp = warp // barriers.warps - barriers.first, warp % barriers.warps
        else:
            row = words // self.words if self.rows > 1 else np.zeros_like(words)
        ordered = same & (since < barriers.last_full[row, warp])
        for i in np.flatnonzero(same & ~ordered)[:4096].tolist():
            ordered[i] = barriers.ordered(int(row[i]), int(warp[i]), int(others[i] % WARP), int(since[i]), int(lane[i]))
        found: Flat = ordered
        return found

    def _rank(self, fields: Flat, threads: Flat, moment: Moment) -> Flat:
        """Return how far a witness is from the thread: 3 another block, 2 another warp, 1 another lane, 0 none, itself, or long ordered."""
        others = fields[:, 0]
        rank = 1 + (others // WARP != threads // WARP)
        fresh = fields[:, 1] == moment.epoch
        if self.across_blocks:
            rank = np.where(others // self.width != threads // self.width, 3, rank * fresh)
        else:
            rank *= fresh
        ranked: Flat = rank * ((others != threads) & (others >= 0))
        return ranked

    def _record(self, witnesses: _Witnesses, words: Flat, threads: Flat, moment: Moment) -> None:
        if not witnesses.kept:
            witnesses.make()
        else:
            last = witnesses.of(0, words)
            rank = self._rank(last, threads, moment)
            if rank.any():
                move = rank > 0
                if witnesses.kept > 1:
                    move &= rank >= self._rank(witnesses.of(1, words), threads, moment)
                moved = np.flatnonzero(move)
                witnesses.packed[1][words[moved]] = last[moved].reshape(-1).view(_PACKED)
                witnesses.kept = 2
        packed = _moment_fields(threads, moment).reshape(-1).view(_PACKED)
        witnesses.packed[0][words] = packed
        winner = witnesses.of(0, words)[:, 0]
        # The last lane is kept as the last witness; here from the end, so that the first lane stays as the other.
        lost = np.flatnonzero(winner != threads)[::-1]
        if len(lost):
            self._record_lost(witnesses, packed, words, threads, winner, lost)

    def _record_lost(self, witnesses: _Witnesses, packed: Flat, words: Flat, threads: Flat, winner: Flat, lost: Flat) -> None:
        """Keep, of several lanes that accessed one word at once, one more beside the last: the farther, the later written."""
        witnesses.kept = 2
        other = witnesses.packed[1]
        other[words[lost]] = packed[lost]
        far = lost[winner[lost] // WARP != threads[lost] // WARP]
        other[words[far]] = packed[far]
        if self.across_blocks:
            far = lost[winner[lost] // self.width != threads[lost] // self.width]
            other[words[far]] = packed[far]
