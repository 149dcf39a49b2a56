"""Loops: what a ``for`` goes through, how the turns of a loop run, and whether its lanes wait."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpulab.kernels.simulation import _types
from gpulab.kernels.simulation._expressions import type_of
from gpulab.kernels.simulation._functions import Call, makes
from gpulab.kernels.simulation._geometry import Mask, union
from gpulab.kernels.simulation._memory import View, index_of, load, part_of
from gpulab.kernels.simulation._scalar_lanes import ScalarLoop, is_unchanged
from gpulab.kernels.simulation._types import Items
from gpulab.kernels.simulation.source import Source

if TYPE_CHECKING:
    from gpulab.kernels.simulation._expressions import Expression
    from gpulab.kernels.simulation._translate import Frame

Statement = Callable[["Frame", Mask], "Mask | None"]


@dataclass(eq=False)
class Loop:
    """The lanes that left a loop's body early."""

    broken: Mask | None = None
    continued: Mask | None = None


class Turns(Protocol):
    """What tells a loop's lanes whether they take another turn."""

    watches: bool  # whether it may wait for other threads

    def more(self, frame: Frame, mask: Mask) -> Any:
        """Return in which lanes there is another turn."""

    def begin(self, frame: Frame, mask: Mask) -> None:
        """Begin a turn in some lanes."""

    def alone(self, scalar: ScalarLoop, frame: Frame, mask: Mask) -> Mask | None:
        """Let lanes run alone; return those that go on in lockstep."""


class WhileTurns:
    """The turns of a ``while``: as long as its test holds."""

    watches = True

    def __init__(self, test: Expression) -> None:
        self.more = test

    def begin(self, frame: Frame, mask: Mask) -> None:
        """Begin a turn: there is nothing to give."""

    def alone(self, scalar: ScalarLoop, frame: Frame, mask: Mask) -> Mask | None:
        """Let lanes run alone; return those that go on in lockstep."""
        return scalar.run(frame, mask)[0]


class ForTurns:
    """The turns of a ``for``: one for each item."""

    watches = False

    def __init__(self, items: Items, target: Callable[[Frame, Mask, Any], None]) -> None:
        self.items, self.target, self.turn = items, target, 0

    def more(self, frame: Frame, mask: Mask) -> Any:
        """Return in which lanes there is another item."""
        return self.turn < self.items.count

    def begin(self, frame: Frame, mask: Mask) -> None:
        """Give lanes the next item."""
        self.target(frame, mask, self.items.at(frame, mask, self.turn))
        self.turn += 1

    def alone(self, scalar: ScalarLoop, frame: Frame, mask: Mask) -> Mask | None:
        """Let lanes run alone where they count; return those that go on in lockstep."""
        limits, done = self.items.limits, 0
        left: Mask | None = mask
        if limits is not None:
            if all(np.ndim(limit) == 0 for limit in limits):
                numbers: Any = range(*map(int, limits))[self.turn :]
            else:
                each = zip(*(mask.selected(limit).tolist() for limit in limits), strict=True)
                numbers = [range(*one)[self.turn :] for one in each]
            left, done = scalar.run(frame, mask, numbers) if numbers else (mask, 0)
        self.turn += done
        return left


# Turns in lockstep, and where blocks or threads take turns, before a loop is looked at; and turns
# after which an atomic that changes nothing is enough, though a variable changes (it may count how
# often it was tried).
_BEFORE_A_LOOK, _LONG = 64, 1 << 10
_BEFORE_A_LOOK_IN_TURNS, _LONG_IN_TURNS = 2, 64


class Watch:
    """Looks whether a loop waits: whether a turn leaves its lanes, its variables and all memory as
    they were, so that all that follow will, unless other threads change something.
    """

    def __init__(self, frame: Frame) -> None:
        self.next, self._long = _BEFORE_A_LOOK, _LONG
        if frame.machine.launch.turns is not None:
            self.next, self._long = _BEFORE_A_LOOK_IN_TURNS, _LONG_IN_TURNS
        self._before: tuple[Mask, int, int, dict[str, Any]] | None = None

    def look(self, frame: Frame, mask: Mask, turn: int, line: int) -> None:
        """Compare with the turn before, if that was looked at."""
        launch, before = frame.machine.launch, self._before
        self.end(frame)
        if before is None:
            launch.watchers += 1
            self._before = mask, launch.changes, launch.vain_atomics, dict(frame.variables)
            self.next = turn + 1
            return
        lanes, changes, vain, variables = before
        self.next = 2 * turn
        if changes == launch.changes and _same_lanes(lanes, mask):
            settled = is_unchanged(variables, frame.variables)
            if settled or (turn > self._long and launch.vain_atomics > vain):
                frame.machine.wait(line, mask, settled)
                self.next = turn + 1

    def end(self, frame: Frame) -> None:
        """Look no longer."""
        frame.machine.launch.watchers -= self._before is not None
        self._before = None


def _same_lanes(before: Mask, now: Mask) -> bool:
    return before is now or (
        before.array is not None
        and now.array is not None
        and np.array_equal(np.atleast_2d(before.array), np.atleast_2d(now.array))
    )


@dataclass(frozen=True, eq=False)
class LoopBody:
    """What a loop does in each turn, and at its end where no lane left it before (``else``)."""

    line: int
    body: Statement
    orelse: Statement | None
    scalar_loop: ScalarLoop | None

    def run(self, frame: Frame, mask: Mask, turns: Turns) -> Mask | None:
        """Run the turns; return the lanes that go on after the loop."""
        machine, loop, returns = frame.machine, Loop(), frame.returns
        frame.loops.append(loop)
        scalar = self.scalar_loop and self.scalar_loop.begins()
        watch = Watch(frame) if turns.watches else None
        going: Mask | None = mask
        ended: list[Mask] = []
        turn = 0
        while going is not None:
            if scalar is not None and turn >= scalar.turns_before and scalar.suits(frame, going):
                going, scalar = turns.alone(scalar, frame, going), None
                if going is None:
                    break
            turn += 1
            machine.step(self.line, going)
            yes, no = machine.test(self.line, going, turns.more(frame, going))
            if no is not None:
                ended.append(no)
            if yes is None:
                break
            turns.begin(frame, yes)
            going = union(self.body(frame, yes), loop.continued)
            loop.continued = None
            if watch is not None and going is not None and turn >= watch.next:
                watch.look(frame, going, turn, self.line)
        if watch is not None:
            watch.end(frame)
        frame.loops.pop()
        if self.orelse is not None:
            left = functools.reduce(union, ended, None)
            return union(left and self.orelse(frame, left), loop.broken)
        if frame.returns == returns:
            return mask
        return functools.reduce(union, ended, loop.broken)


# -------------------------------------------------------------------------------------------------
# What a ``for`` goes through: ranges, tuples, arrays, and these numbered or side by side.


def items_of(value: Any, source: Source, line: int, unrolled: bool = False) -> Items:
    """Return what a ``for`` goes through; ``unrolled`` where its arrays may be of several types.

    Raises
    ------
    KernelError
        If that has no items, or items of several types, of which a compiler makes no loop.
    """
    if isinstance(value, Items):
        return value
    if isinstance(value, tuple):
        alike = [item for item in value if not (unrolled and isinstance(item, View))]
        if len(set(map(type_of, alike))) > 1:
            raise source.error(
                "the elements of the tuple are of several types; expected one type to loop over",
                line,
            )
        return Items(len(value), lambda frame, mask, turn: value[turn])
    if not isinstance(value, View) or not value.ndim:
        raise source.error("expected a range, an array or a tuple to loop over", line)
    view = value

    def element(frame: Frame, mask: Mask, turn: Any) -> Any:
        place = (np.int64(turn),)
        if view.ndim > 1:
            return part_of(frame.machine, view, mask, place, (False,), source, line)
        return load(frame.machine, view, mask, index_of(view, place, source, line), line)

    return Items(view.shape[0], element)


@makes("range")
def _range(call: Call) -> Expression:
    limits = call.numbers(1, 3)

    def run(frame: Frame, mask: Mask) -> Items:
        found = [limit(frame, mask) for limit in limits]
        if any(value.dtype.kind not in "iub" for value in found):
            raise call.fail("range needs integers")
        dtype = _types.range_type([value.dtype for value in found])
        found = [
            _types.cast(value.reshape(-1)[0] if np.size(value) == 1 else value, dtype)
            for value in found
        ]
        zero, one = dtype.type(0), dtype.type(1)
        start, stop, step = [zero, *found, one] if len(found) == 1 else [*found, one][:3]
        # in lanes that are not here it may be anything
        if mask.split(step == 0)[0] is not None:
            raise call.fail("range with a step of 0 has no end; expected another step")
        lane_limits = (start, stop, step) if dtype == _types.INT else None
        numbers: range | None = None
        if all(np.ndim(value) == 0 for value in (start, stop, step)):
            numbers = range(int(start), int(stop), int(step))

        def number(frame: Frame, mask: Mask, turn: Any) -> Any:
            if numbers is not None and type(turn) is int:  # of a loop: much faster
                return dtype.type(numbers[turn])
            return start + np.asarray(turn).astype(dtype)[()] * step

        if numbers is not None:
            return Items(len(numbers), number, lane_limits)
        up = step > 0
        some = np.where(up, start < stop, start > stop)
        span = np.where(up, stop - start, start - stop)
        count = np.where(some, (span - 1) // np.where(up, step, -step) + 1, 0).astype(np.int64)
        return Items(count, number, lane_limits)

    return run


@makes("literal_unroll")
def _unrolled(call: Call) -> Expression:
    value, source = call.translator.expression(call.arguments(1)[0]), call.translator.source
    return lambda frame, mask: items_of(value(frame, mask), source, call.line, unrolled=True)


@makes("enumerate")
def _enumerate(call: Call) -> Expression:
    what, *begin = call.arguments(1, 2, ("iterable", "start"))
    value, first = call.translator.expression(what), [call.numeric(node) for node in begin]

    def run(frame: Frame, mask: Mask) -> Items:
        items = items_of(value(frame, mask), call.translator.source, call.line)
        start = first[0](frame, mask) if first else np.int64(0)
        return Items(
            items.count,
            lambda frame, mask, turn: (start + np.int64(turn), items.at(frame, mask, turn)),
        )

    return run


@makes("zip")
def _zip(call: Call) -> Expression:
    values = [call.translator.expression(node) for node in call.arguments(1, 64)]

    def run(frame: Frame, mask: Mask) -> Items:
        several = [
            items_of(value(frame, mask), call.translator.source, call.line) for value in values
        ]
        return Items(
            functools.reduce(np.minimum, [items.count for items in several]),
            lambda frame, mask, turn: tuple(items.at(frame, mask, turn) for items in several),
        )

    return run


@makes("len")
def _len(call: Call) -> Expression:
    value = call.translator.expression(call.arguments(1)[0])

    def run(frame: Frame, mask: Mask) -> Any:
        found = value(frame, mask)
        if isinstance(found, View):
            return found.shape[0]
        if isinstance(found, (tuple, Items)):
            count = len(found) if isinstance(found, tuple) else found.count
            return np.int64(count) if np.ndim(count) == 0 else count
        raise call.fail("len takes an array, a tuple or a range")

    return run
