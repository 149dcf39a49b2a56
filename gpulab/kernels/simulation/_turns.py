"""Blocks, or threads, that wait for each other: each runs by itself, and they take turns.

In lockstep a lane that waits in a loop for a lane that has left it waits forever. What hardware
promises is more: blocks that are resident at the same time go on, and since Volta so does each
thread. ``simulate`` therefore starts anew where a loop was found to wait, with one strand for each
block and, where the threads of one block wait for each other, with one for each thread.

Source: CUDA C++ Programming Guide, "SIMT Architecture" (independent thread scheduling: "guarantees
progress of threads"), and "Grid synchronization" (all blocks must be resident).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels.simulation import _types
from gpulab.kernels.simulation._geometry import WARP, Mask, union

if TYPE_CHECKING:
    from gpulab.kernels.simulation._machine import Launch, Machine

# Threads of Python that may wait at the same time beside those of one more block.
_MOST_STRANDS = 1 << 10
# Why all that is left waits for good.
_NOBODY = (
    "here and in other loops, for a value that none of them changes any more. Look for a lock that "
    "is not given back, or a value that is never set"
)
MORE_THAN_FIT = (
    "and other blocks have not begun: of this launch {resident:,} blocks are resident at once on "
    "an H100 or H200, and a block must not wait for one that begins when another has ended. Use no "
    "more blocks"
)
_MORE_THAN_RUN = (
    f"and other blocks have not begun: more than {_MOST_STRANDS:,} threads wait at once, and the "
    "microscope lets no more of them run by themselves. Use fewer blocks"
)


class WaitError(_types.RelaunchError):
    """Lanes wait in a loop for others that cannot go on beside them; ``why`` they wait for good
    unless the threads of a block run by themselves.
    """

    def __init__(self, line: int, why: str = "") -> None:
        super().__init__(line)
        self.line, self.why = line, why


class _StopError(BaseException):
    """Ends a strand from outside."""


class Strand:
    """Lanes that run by themselves, in a thread of Python: one runs at a time."""

    def __init__(self, machine: Machine, mask: Mask, work: Callable[[Machine, Mask], None]) -> None:
        self.machine, self.mask = machine, mask
        self.ended = self.stopping = False
        self.error: BaseException | None = None
        # locks that one side acquires and the other releases
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def _run(self, work: Callable[[Machine, Mask], None]) -> None:
        try:
            self.pause(begin=True)
            work(self.machine, self.mask)
        except _StopError:
            pass
        except BaseException as error:  # raised again where the strands are run
            self.error = error
        self.ended = True
        if not self.stopping:
            self._back.release()

    def resume(self) -> None:
        """Run until the strand pauses or ends."""
        self.machine.serve()
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:
                raise KernelError(
                    f"{self.machine.launch.source.name}: too many blocks or threads wait for each "
                    "other at once for this machine, which starts no more threads. Use fewer."
                ) from error
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def pause(self, begin: bool = False) -> None:
        """Let others run; return when it is this strand's turn again."""
        if not begin:
            self._back.release()
        self._go.acquire()
        if self.stopping:
            raise _StopError

    def stop(self) -> None:
        """End the strand wherever it is."""
        self.stopping = True
        if self._thread.ident is not None:
            self._go.release()
            self._thread.join()


@dataclass
class _Meeting:
    """Lanes of a block, or of a warp, that have come to something that they do together."""

    machine: Machine
    act: Callable[..., Any]
    warp: int | None  # None: all threads of the block come
    mask: Mask | None = None
    values: list[Any] = field(default_factory=list)
    waiting: list[Strand] = field(default_factory=list)
    result: Any = None

    def arrive(self, strand: Strand, values: tuple[Any, ...]) -> None:
        """Add a strand's lanes and what they bring."""
        here = strand.mask.array
        if self.waiting and here is not None:
            both = zip(values, self.values, strict=True)
            values = tuple(_types.select(here, *_types.alike(new, old)) for new, old in both)
        self.values, self.mask = list(values), union(self.mask, strand.mask)
        self.waiting.append(strand)

    @property
    def is_complete(self) -> bool:
        """Return whether all that have to come are here; those that have returned need not."""
        assert self.mask is not None
        missing = self.machine.alive.without(self.mask)
        if self.warp is None or missing is None:
            return missing is None
        lanes = self.values[0] if self.values else 0xFFFFFFFF
        own = self.mask.flat[self.mask.flat // WARP == self.warp]
        named = np.bitwise_or.reduce(
            np.broadcast_to(lanes, (1, self.machine.batch.width))[0, own].astype(np.int64)
        )
        return not int(missing.bits[0, self.warp]) & int(named)


class Turns:
    """The strands of a launch, one for each block or for each thread: who can go on, who waits in a
    loop, who waits for others to come.

    ``resident`` blocks at most are at work at once, and the next one starts when no other can go
    on.
    """

    def __init__(self, machines: Iterator[Machine], resident: int, waits: list[WaitError]) -> None:
        self._machines, self.by_thread, self._why = machines, len(waits) > 1, waits[-1].why
        self._resident = self._room = resident
        self.current: Strand | None = None
        self._ready: deque[Strand] = deque()
        # in a loop at a line, with the lanes in it, and the state of memory in which they cannot
        # go on (-1: they may)
        self._spinning: deque[tuple[Strand, int, Mask, int]] = deque()
        self._meetings: dict[Any, _Meeting] = {}
        self._left: dict[int, int] = {}  # strands of each block that have not ended
        self._full = ""  # why no other block can begin

    # -- what the running strand asks for

    def look(self) -> None:
        """Let the caller look whether somebody wants the simulation to stop."""
        assert self.current is not None
        self._ready.appendleft(self.current)
        self.current.pause()

    def spin(self, line: int, mask: Mask, state: int) -> None:
        """Wait in a loop until memory is no longer in this state (-1: let others run once)."""
        assert self.current is not None
        self._spinning.append((self.current, line, mask, state))
        self.current.pause()

    def meet(self, site: int, act: Callable[..., Any], values: tuple[Any, ...], block: bool) -> Any:
        """Wait for the other lanes that do this together; return what comes out for all."""
        strand = self.current
        assert strand is not None
        warp = None if block else int(strand.mask.flat[0]) // WARP
        meeting = self._meetings.setdefault(
            (id(strand.machine), site, warp), _Meeting(strand.machine, act, warp)
        )
        meeting.arrive(strand, values)
        strand.pause()
        return meeting.result

    # -- the turns

    def run(
        self,
        launch: Launch,
        work: Callable[[Machine, Mask], None],
        ended: Callable[[Machine], None],
    ) -> None:
        """Run all strands to their end: ``work`` is what each does; call ``ended`` after each
        block.

        Raises
        ------
        WaitError
            If blocks wait in which other threads could go on by themselves.
        KernelError
            If all that is left waits.
        """
        self._work = work
        try:
            while (strand := self._next(launch)) is not None:
                self.current = strand
                strand.resume()
                if strand.ended:
                    self._end(strand, ended)
                if launch.stop is not None:
                    launch.stop()
        finally:
            meetings = [one for meeting in self._meetings.values() for one in meeting.waiting]
            spinning = [strand for strand, *_ in self._spinning]
            for strand in {self.current, *self._ready, *meetings, *spinning} - {None}:
                strand.stop()  # type: ignore[union-attr]

    def _end(self, strand: Strand, ended: Callable[[Machine], None]) -> None:
        machine = strand.machine
        machine.exited = union(machine.exited, strand.mask)
        self._left[id(machine)] -= 1
        if not self._left[id(machine)]:
            self._room += 1
            ended(machine)

    def _next(self, launch: Launch) -> Strand | None:
        """Return who goes on, None where all have ended."""
        if not self._ready:
            complete = [key for key, meeting in self._meetings.items() if meeting.is_complete]
            self._pass(complete)
        if not self._ready:
            self._start()
        for _ in range(0 if self._ready else len(self._spinning)):
            strand, line, mask, state = self._spinning.popleft()
            if state != launch.changes:
                return strand
            self._spinning.append((strand, line, mask, state))
        if not self._ready and self._spinning:
            raise self._stuck(launch)
        if not self._ready:
            # nobody can go on: those that came do without the others, which is a finding
            self._pass(list(self._meetings)[:1])
        return self._ready.popleft() if self._ready else None

    def _start(self) -> None:
        """Let the next block begin, if there is room for it."""
        waiting = len(self._spinning) + sum(len(m.waiting) for m in self._meetings.values())
        if not self._room:
            self._full = MORE_THAN_FIT.format(resident=self._resident)
        elif self.by_thread and waiting > _MOST_STRANDS:
            self._full = _MORE_THAN_RUN
        elif (machine := next(self._machines, None)) is not None:
            self._full = ""
            self._room -= 1
            masks = [machine.batch.everyone]
            if self.by_thread:
                masks = [Mask(machine.batch, lane) for lane in machine.batch.lanes_apart]
            self._left[id(machine)] = len(masks)
            self._ready.extend(Strand(machine, mask, self._work) for mask in masks)

    def _pass(self, keys: list[Any]) -> None:
        for key in keys:
            meeting = self._meetings.pop(key)
            meeting.machine.serve()
            meeting.result = meeting.act(meeting.mask, *meeting.values)
            self._ready.extend(meeting.waiting)

    def _stuck(self, launch: Launch) -> Exception:
        """Return what to raise where all that is left waits in loops."""
        _, line, _, _ = self._spinning[0]
        others = [one.machine.alive.without(mask) for one, _, mask, _ in self._spinning]
        why = self._why
        if not why and self._full and next(self._machines, None):
            why = self._full
        if any(others) and not self.by_thread:
            return WaitError(line, why)
        return launch.error(
            f"the kernel never ends: all threads that are left wait, {why or _NOBODY}", line
        )
