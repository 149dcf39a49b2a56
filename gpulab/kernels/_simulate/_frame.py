"""A call of a kernel or device function at work: its variables, its loops, and the lanes that left
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._alone import Alone
from gpulab.kernels._simulate._geometry import Mask, union
from gpulab.kernels._simulate._machine import Machine
from gpulab.kernels._simulate._memory import View

Statement = Callable[["Frame", Mask], "Mask | None"]


@dataclass(eq=False)
class Loop:
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
    loops: list[Loop] = field(default_factory=list)
    # local ones, by the place in the source that makes them
    arrays: dict[int, View] = field(default_factory=dict)
    returns: int = 0
    result: Any = None
    gave_nothing: bool = False  # whether lanes came to a plain `return`
    # the lanes that gave a variable a value, where that is not sure
    given: dict[str, Mask | None] = field(default_factory=dict)

    def assign(self, name: str, value: Any, mask: Mask, fail: Callable[[str], KernelError]) -> None:
        """Give a variable a value in some lanes; the others keep theirs."""
        old = self.variables.get(name)
        if old is None or mask is self.live or mask.array is None:
            self.variables[name] = value
        else:
            self.variables[name] = merged(mask, value, old, name, fail)

    def look_for(self, name: str, mask: Mask, line: int) -> None:
        """Report a variable that lanes read to which they have given no value: they have what was
        computed for others, or anything.
        """
        without = mask.without(self.given.get(name))
        if without is None or self.machine.found_again("uninitialised", line, name, without.lanes):
            return
        row, lane = divmod(int(without.flat[0]), without.batch.width)
        self.machine.found(
            "uninitialised",
            line,
            name,
            (),
            (self.machine.thread(row, lane),),
            without.lanes,
            f"{name} is read by threads that have not assigned it: on a GPU its value is undefined",
        )

    def give(self, value: Any, mask: Mask, fail: Callable[[str], KernelError]) -> None:
        """Return from the call in some lanes."""
        self.returns += 1
        if self.is_kernel:
            self.machine.exited = union(self.machine.exited, mask)
            if value is not None:
                raise fail("a kernel cannot return a value; expected a plain `return`")
        elif value is None:
            self.gave_nothing = True
        elif self.result is None:
            self.result = value
        else:
            self.result = merged(mask, value, self.result, "the result", fail)


def merged(mask: Mask, value: Any, old: Any, name: str, fail: Callable[[str], KernelError]) -> Any:
    """Return the new value in the lanes of the mask and the old one elsewhere."""
    chosen = mask.array
    if value is old or chosen is None:
        return value
    if isinstance(value, tuple) and isinstance(old, tuple) and len(value) == len(old):
        return tuple(merged(mask, v, o, name, fail) for v, o in zip(value, old, strict=True))
    if isinstance(value, View) and isinstance(old, View):
        if value.store is old.store and value.strides == old.strides:
            shape = tuple(
                _extent(chosen, new, now) for new, now in zip(value.shape, old.shape, strict=True)
            )
            return View(
                value.store, np.where(chosen, value.offset, old.offset), shape, value.strides
            )
        raise fail(
            f"{name} refers to different arrays in different threads; expected one array. Use an "
            "index that differs instead"
        )
    if isinstance(value, (np.ndarray, np.generic)) and isinstance(old, (np.ndarray, np.generic)):
        return _types.select(chosen, *_types.alike(value, old))
    raise fail(f"{name} has different kinds of values in different threads; expected one kind")


def _extent(chosen: np.ndarray, new: Any, old: Any) -> Any:
    """Return an axis's extent: one number where all lanes have the same, since a slice may be as
    long as each lane asks for.
    """
    if new is old or (np.ndim(new) == np.ndim(old) == 0 and new == old):
        return new
    return np.where(chosen, new, old)


@dataclass(frozen=True, eq=False)
class ForLoop:
    """The body of a ``for``, and the two ways to run it."""

    line: int
    target: Callable[[Frame, Mask, Any], None]
    body: Statement
    alone: Alone | None = None

    def over(
        self,
        frame: Frame,
        mask: Mask,
        items: Sequence[Any],
        number: Callable[[int], Any] = np.int64,
    ) -> Mask | None:
        """Run the loop where all lanes take the same values: of a range, whose ``number`` is its
        type, or of a tuple.
        """
        machine, loop, returns = frame.machine, Loop(), frame.returns
        frame.loops.append(loop)
        going: Mask | None = mask
        turn, count = 0, len(items)
        alone, numbers = (
            self.alone and self.alone.begins(),
            items if isinstance(items, range) else None,
        )
        if number is not np.int64:
            alone = None
        while going is not None:
            if (
                alone is not None
                and numbers is not None
                and alone.turns_before <= turn < count
                and alone.suits(frame, going)
            ):
                going, done = alone.run(frame, going, numbers[turn:])
                alone = None
                turn += done
                if going is None:
                    break
            machine.step(self.line, going)
            if turn == count:
                machine.counters.tested.append((self.line, going, None, going))
                break
            machine.counters.tested.append((self.line, going, going, None))
            self.target(frame, going, items[turn] if numbers is None else number(numbers[turn]))
            going = union(self.body(frame, going), loop.continued)
            loop.continued = None
            turn += 1
        frame.loops.pop()
        return mask if frame.returns == returns else union(going, loop.broken)

    def lane_by_lane(
        self, frame: Frame, mask: Mask, start: Any, stop: Any, step: Any
    ) -> Mask | None:
        """Run the loop where the limits differ between lanes: each leaves when its own values
        end.
        """
        machine, loop, returns = frame.machine, Loop(), frame.returns
        frame.loops.append(loop)
        going: Mask | None = mask
        out: list[Mask | None] = [None]
        now = start
        up = bool(np.all(step > 0))
        alone, turn = self.alone and self.alone.begins(), 0
        while going is not None:
            if (
                alone is not None
                and turn >= alone.turns_before
                and alone.suits(frame, going)
                and now.dtype == stop.dtype == _types.INT
            ):
                each = zip(
                    *(going.selected(limit).tolist() for limit in (now, stop, step)), strict=True
                )
                going, done = alone.run(frame, going, [range(*limits) for limits in each])
                now, alone = now + step * np.int64(done), None
                if going is None:
                    break
            turn += 1
            machine.step(self.line, going)
            more = now < stop if up else np.where(step > 0, now < stop, now > stop)
            yes, no = machine.test(self.line, going, more)
            out.append(no)
            if yes is None:
                break
            self.target(frame, yes, now)
            going = union(self.body(frame, yes), loop.continued)
            loop.continued = None
            now = now + step
        frame.loops.pop()
        return mask if frame.returns == returns else functools.reduce(union, out, loop.broken)
