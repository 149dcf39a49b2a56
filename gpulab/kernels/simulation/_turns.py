"""Blocks, or threads, that wait for each other: each runs by itself, and they take turns.

In lockstep, a lane that waits in a loop for a lane that has left the loop waits forever. Hardware
promises more: all blocks that are resident at the same time go on, and since Volta each thread
does. If ``simulate`` finds a loop that waits, it therefore starts again with one strand for each
block. If the threads of one block wait for each other, it starts again with one strand for each
thread.

Source: CUDA C++ Programming Guide, "SIMT Architecture", on independent thread scheduling: it lets
one thread wait for data that another one of its warp produces, where locks within a warp could
deadlock before Volta; and "Grid Synchronization", on blocks that are resident together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels.simulation import _types
from gpulab.kernels.simulation._geometry import WARP, Mask, union

if TYPE_CHECKING:
    from gpulab.kernels.simulation._machine import Launch, Machine

# If threads take turns, another block begins only while at most this many strands wait, each in a
# Python thread.
_MOST_STRANDS = 1 << 10
# Why all remaining threads wait forever.
_NOBODY = (
    "here or in other loops, for a value that none of them changes any more. Look for a lock that "
    "is never released, or a value that is never set"
)
MORE_THAN_FIT = (
    "and other blocks have not begun: of this launch {resident:,} blocks are resident at once on "
    "an H100 or H200, and a block must not wait for one that begins only after another has ended. "
    "Use at most {resident:,} blocks"
)
_MORE_THAN_RUN = (
    f"and other blocks have not begun: more than {_MOST_STRANDS:,} threads wait at once, and the "
    "microscope lets no more of them run by themselves. Use fewer blocks"
)


class WaitError(_types.RelaunchError):
    """Lanes wait in a loop for others that cannot run meanwhile.

    ``why`` says why blocks would wait forever even if they took turns, so that only threads that
    take turns may go on; it is empty if no such reason is known.
    """

    def __init__(self, line: int, why: str = "") -> None:
        super().__init__(line)
        self.line, self.why = line, why


class _StopError(BaseException):
    """Ends a strand from outside."""


class Strand:
    """Lanes that run by themselves. While they pause, a Python thread keeps their place."""

    def __init__(self, machine: Machine, mask: Mask) -> None:
        self.machine, self.mask = machine, mask
        self.begun = self.stopping = False
        self.go = threading.Lock()  # held while the strand pauses
        self.go.acquire()


class _Waiting(NamedTuple):
    """A strand that waits in a loop: the loop's line, the lanes in it, and the state of memory in
    which they cannot go on.
    """

    strand: Strand
    line: int
    mask: Mask
    state: int


@dataclass
class _Meeting:
    """Lanes of a block, or of a warp, that have arrived at an operation that they do together."""

    machine: Machine
    act: Callable[..., Any]
    warp: int | None  # None: all threads of the block take part
    named: int  # the lanes of the warp that take part, as bits
    mask: Any = None  # the lanes that have arrived
    values: list[Any] = field(default_factory=list)
    waiting: list[Strand] = field(default_factory=list)
    result: Any = None

    def arrive(self, strand: Strand, values: tuple[Any, ...]) -> None:
        """Add a strand's lanes and their values."""
        here = strand.mask.array
        if self.waiting and here is not None:
            both = zip(values, self.values, strict=True)
            values = tuple(np.where(here, *_types.alike(new, old)) for new, old in both)
        self.values, self.mask = list(values), union(self.mask, strand.mask)
        self.waiting.append(strand)

    @property
    def is_complete(self) -> bool:
        """Return whether all lanes that take part have arrived, except those that have returned."""
        missing = self.machine.alive.without(self.mask)
        if self.warp is None or missing is None:
            return missing is None
        return not int(missing.bits[0, self.warp]) & self.named


class Turns:
    """The strands of a launch, one for each block or for each thread: which can go on, which wait
    in a loop, and which wait for others at a meeting.

    At most ``resident`` blocks run at once, and the next one starts when no strand can go on.
    """

    def __init__(self, machines: Iterator[Machine], resident: int, waits: list[WaitError]) -> None:
        self._machines, self.by_thread, self._why = machines, len(waits) > 1, waits[-1].why
        self._resident = self._room = resident
        self.current: Any = None  # the strand that runs
        self._ready: deque[Strand] = deque()
        self._spinning: list[_Waiting] = []
        self._last = 0  # the place in _spinning of the strand that went on last
        self._trying: deque[Strand] = deque()  # strands in loops that may try again in any case
        self._meetings: dict[Any, _Meeting] = {}
        self._left: dict[int, int] = {}  # strands of each block that have not ended
        self._full = ""  # why no other block can begin
        # one strand runs at a time; the caller runs while it holds this lock
        self._back = threading.Lock()
        self._back.acquire()
        self._threads: list[threading.Thread] = []
        self._ended: list[Machine] = []
        self._error: BaseException | None = None

    # -- what the running strand asks for

    def look(self, asks: bool) -> None:
        """End the strand if the simulation was stopped. If ``asks``, pause first, so that the
        caller can ask whether it was.
        """
        if asks or self.current.stopping:
            self._ready.appendleft(self.current)
            self._pause(self.current)

    def spin(self, line: int, mask: Mask, state: int | None) -> None:
        """Wait in a loop until memory is no longer in this state (None: let others run once)."""
        if state is None:
            self._trying.append(self.current)
        else:
            self._spinning.insert(self._last, _Waiting(self.current, line, mask, state))
        self._pause(self.current)

    def meet(self, site: int, act: Callable[..., Any], values: tuple[Any, ...], block: bool) -> Any:
        """Wait for the other lanes that do an operation together; return the result for all of
        them.
        """
        strand = self.current
        warp, named = None, 0
        if not block:
            lane = int(strand.mask.flat[0])
            warp = lane // WARP
            named = int(np.broadcast_to(values[0], (1, strand.machine.batch.width))[0, lane])
        meeting = self._meetings.setdefault(
            (id(strand.machine), site, warp, named),
            _Meeting(strand.machine, act, warp, named & 0xFFFFFFFF),
        )
        meeting.arrive(strand, values)
        self._pause(strand)
        return meeting.result

    def _pause(self, strand: Strand) -> None:
        """Let others run; return when it is this strand's turn again."""
        if not strand.stopping:
            self._back.release()
            strand.go.acquire()
        if strand.stopping:
            raise _StopError

    # -- the turns

    def run(
        self,
        launch: Launch,
        work: Callable[[Machine, Mask], None],
        ended: Callable[[Machine], None],
    ) -> None:
        """Run all strands to their end: call ``work`` for each strand, and ``ended`` after each
        block.

        Raises
        ------
        WaitError
            If blocks wait, and other threads of them could go on by themselves.
        KernelError
            If all remaining threads wait forever, or no more Python threads can be started.
        """
        try:
            while (strand := self._next(launch)) is not None:
                self._resume(strand, work)
                while self._ended:
                    ended(self._ended.pop())
                if self._error is not None:
                    raise self._error
                if launch.stop is not None:
                    launch.stop()
        finally:
            meetings = [one for meeting in self._meetings.values() for one in meeting.waiting]
            spinning = [waiting.strand for waiting in self._spinning]
            current = [] if self.current is None else [self.current]
            for strand in {*current, *self._ready, *self._trying, *meetings, *spinning}:
                strand.stopping = True
                if strand.go.locked():  # otherwise it is running already
                    strand.go.release()
            for thread in self._threads:
                thread.join()

    def _resume(self, strand: Strand, work: Callable[[Machine, Mask], None]) -> None:
        """Run a strand until it, or one that begins after it in the same Python thread, pauses or
        ends.
        """
        self.current = strand
        strand.machine.serve()
        if strand.begun:
            strand.go.release()
        else:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(target=self._thread, args=(strand, work), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                name = strand.machine.launch.program.source.name
                raise KernelError(
                    f"{name}: too many blocks or threads wait for each other at once for "
                    "this machine, which starts no more threads. Use fewer."
                ) from error
            self._threads.append(thread)
        self._back.acquire()

    def _thread(self, strand: Strand, work: Callable[[Machine, Mask], None]) -> None:
        """Run a new strand in this Python thread, and further new ones of its block while none
        pauses.
        """
        following: Strand | None = strand
        try:
            while following is not None:
                self.current, following.begun = following, True
                work(following.machine, following.mask)
                following = self._after(following)
        except _StopError:
            return
        except BaseException as error:  # ``run`` raises it again
            self._error = error
        self._back.release()

    def _after(self, strand: Strand) -> Strand | None:
        """Note the end of a strand; return the next one, if it is of the same block and begins."""
        machine = strand.machine
        machine.exited = union(machine.exited, strand.mask)
        self._left[id(machine)] -= 1
        if not self._left[id(machine)]:
            self._room += 1
            self._ended.append(machine)
        begins = self._ready and not self._ready[0].begun and self._ready[0].machine is machine
        return self._ready.popleft() if begins else None

    def _next(self, launch: Launch) -> Strand | None:
        """Return the strand that goes on next; None if all have ended."""
        if not self._ready:
            complete = [key for key, meeting in self._meetings.items() if meeting.is_complete]
            self._pass(complete)
        if not self._ready:
            self._start()
        if not self._ready:
            self._wake(launch.changes)
        if not self._ready and self._spinning:
            raise self._stuck(launch)
        if not self._ready:
            # no strand can go on: the lanes that arrived go on without the missing ones, which is a
            # finding
            self._pass(list(self._meetings)[:1])
        return self._ready.popleft() if self._ready else None

    def _wake(self, changes: int) -> None:
        """If memory has changed, let one strand go on that waits for a change: the one nearest to
        the last that went on, since they often follow each other. Otherwise let one go on that
        tries again in any case.
        """
        count = len(self._spinning)
        for distance in range(count):
            for place in (self._last + distance, self._last - distance - 1):
                if 0 <= place < count and self._spinning[place].state != changes:
                    self._last = place
                    self._ready.append(self._spinning.pop(place).strand)
                    return
        if self._trying:
            self._last = count
            self._ready.append(self._trying.popleft())

    def _start(self) -> None:
        """Let the next block begin, if there is room for it."""
        waiting = (
            len(self._spinning)
            + len(self._trying)
            + sum(len(m.waiting) for m in self._meetings.values())
        )
        if not self._room:
            self._full = MORE_THAN_FIT.format(resident=self._resident)
        elif self.by_thread and waiting > _MOST_STRANDS:
            self._full = _MORE_THAN_RUN
        elif (machine := next(self._machines, None)) is not None:
            self._full = ""
            self._room -= 1
            self._last = len(self._spinning)
            batch, masks = machine.batch, [machine.batch.everyone]
            if self.by_thread:
                masks = [Mask(batch, batch.linear_thread == n) for n in range(batch.threads)]
            self._left[id(machine)] = len(masks)
            self._ready.extend(Strand(machine, mask) for mask in masks)

    def _pass(self, keys: list[Any]) -> None:
        # do the operations of meetings; the strands that wait at them may go on
        for key in keys:
            meeting = self._meetings.pop(key)
            meeting.machine.serve()
            meeting.result = meeting.act(meeting.mask, *meeting.values)
            self._ready.extend(meeting.waiting)

    def _stuck(self, launch: Launch) -> Exception:
        """Return the exception to raise when all remaining strands wait in loops."""
        line = self._spinning[0].line
        others = [one.strand.machine.alive.without(one.mask) for one in self._spinning]
        why = self._why
        if not why and self._full and next(self._machines, None):
            why = self._full
        if any(others) and not self.by_thread:
            return WaitError(line, why)
        return launch.error(
            f"the kernel never ends: all threads that are left wait, {why or _NOBODY}", line
        )
