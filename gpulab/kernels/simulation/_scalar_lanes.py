"""Run the lanes of a loop one after the other when only few are active, and derive the counts of
lockstep: NumPy's overhead for each statement then costs more than the lanes.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels.simulation._geometry import WARP, Mask, union
from gpulab.kernels.simulation._memory import START, View
from gpulab.kernels.simulation._scalar_text import (
    ELEMENT_BITS,
    INT,
    LaneWriter,
    Refused,
    Site,
    Turns,
)
from gpulab.kernels.simulation.source import Intrinsic

if TYPE_CHECKING:
    from gpulab.kernels.simulation._expressions import Expression, Translator
    from gpulab.kernels.simulation._machine import Machine
    from gpulab.kernels.simulation._translate import Frame

# -------------------------------------------------------------------------------------------------
# The counts of lockstep for a loop that each lane ran alone, from the log of its iterations.
#
# Lanes of a warp execute a statement together if they are in the same iteration of every enclosing
# loop. Iterations are mapped to rows: those of the outermost loop are numbered consecutively, and
# each has as many rows for its inner loops as the lane with the most iterations.


class Logs:
    """What the lanes log: for each loop the codes of the turns, where each run of the loop began,
    and in which turn of the loop around.
    """

    def __init__(self, loops: int, sites: int) -> None:
        self.codes: list[list[int]] = [[] for _ in range(loops)]
        self.around: list[list[int]] = [[] for _ in range(loops)]
        self.starts: list[list[int]] = [[] for _ in range(loops)]
        self.loads: list[list[int]] = [[] for _ in range(sites)]

    def parts(self) -> list[Any]:
        """Return what the lanes' text asks for."""
        found: list[Any] = []
        for codes, around, starts in zip(self.codes, self.around, self.starts, strict=True):
            found += [codes, codes.append, around.append, starts.append]
        return [*found, *(loads.append for loads in self.loads)]

    def begin(self) -> None:
        """Let the next lane begin."""
        self.starts[0].append(len(self.codes[0]))


@dataclass
class _Rows:
    """The turns of one loop: of each, its code, its row, and its lane (the place in the list of
    lanes).
    """

    codes: np.ndarray
    rows: np.ndarray
    lanes: np.ndarray


def _rows_of(logs: Logs, loops: list[Turns]) -> list[_Rows]:
    found: list[_Rows] = []
    for turns in loops:
        codes = np.array(logs.codes[turns.number], dtype=np.int64)
        starts = np.array(logs.starts[turns.number], dtype=np.int64)
        lengths = np.diff(starts, append=len(codes))
        if turns.parent is None:
            begins, lanes = np.zeros(len(starts), dtype=np.int64), np.arange(len(starts))
        else:
            outer, around = (
                found[turns.parent.number],
                np.array(logs.around[turns.number], dtype=np.int64),
            )
            rows, lanes = outer.rows[around], outer.lanes[around]
            longest = np.zeros(int(rows.max()) + 2 if len(rows) else 1, dtype=np.int64)
            np.maximum.at(longest, rows + 1, lengths)
            begins = np.cumsum(longest)[rows]
        found.append(
            _Rows(
                codes,
                np.repeat(begins - starts, lengths) + np.arange(len(codes)),
                np.repeat(lanes, lengths),
            )
        )
    return found


class _Groups:
    """Of one loop, for each code: in which rows which warps have a lane that took this way, and how
    many lanes did.
    """

    def __init__(self, turns: _Rows, warps: np.ndarray, count: int) -> None:
        self._shape = (int(turns.rows.max()) + 1 if len(turns.rows) else 0, count)
        self.lanes: dict[int, int] = {}
        self._here: dict[tuple[int, ...], np.ndarray] = {}
        for code in sorted(set(turns.codes.tolist())):
            took = turns.codes == code
            here = np.zeros(self._shape, dtype=bool)
            if count == 1:
                here[turns.rows[took]] = True
            else:
                here[turns.rows[took], warps[turns.lanes[took]]] = True
            self._here[code,] = here
            self.lanes[code] = int(np.count_nonzero(took))

    def here(self, codes: tuple[int, ...]) -> np.ndarray:
        """Return in which rows which warps took one of these ways."""
        found = self._here.get(codes)
        if found is None:
            found = self._here[codes] = np.zeros(self._shape, dtype=bool)
            for code in codes:
                np.logical_or(found, self._here[code,], out=found)
        return found


@dataclass
class _Counted:
    line: int
    warps: int
    lanes: int
    tested: bool
    divergent: int


def account(
    machine: Machine,
    loops: list[Turns],
    sites: list[Site],
    logs: Logs,
    mask: Mask,
    variables: dict[str, Any],
) -> bool:
    """Count what the lanes did; return False, with nothing counted, where that would be too many
    statements.
    """
    turns = _rows_of(logs, loops)
    warps, slots = np.unique(mask.flat // WARP, return_inverse=True)
    found: list[_Counted] = []
    steps = 0
    for loop, log in zip(loops, turns, strict=True):
        if not len(log.codes):
            continue
        groups = _Groups(log, slots, len(warps))
        for line, codes, tests in _statements(loop, list(groups.lanes)):
            here = groups.here(codes)
            steps += (
                int(np.count_nonzero(here.any(axis=1)))
                if len(warps) > 1
                else int(np.count_nonzero(here))
            )
            both = 0
            if tests is not None and tests[0] and tests[1]:
                both = int(np.count_nonzero(groups.here(tests[0]) & groups.here(tests[1])))
            lanes = sum(groups.lanes[code] for code in codes)
            found.append(
                _Counted(line, int(np.count_nonzero(here)), lanes, tests is not None, both)
            )
    launch = machine.launch
    if launch.steps + steps > launch.max_steps:
        return False
    for part in found:
        counts = machine.counters.lines[part.line]
        counts["executed_warps"] += part.warps
        counts["active_lanes"] += part.lanes
        if part.tested:
            counts["branches"] += part.warps
            counts["divergent_branches"] += part.divergent
    for site, loads in zip(sites, logs.loads, strict=True):
        if loads:
            _loaded(
                machine,
                site,
                np.array(loads, dtype=np.int64),
                turns[site.turns.number],
                slots,
                mask,
                variables,
            )
    machine.steps(loops[0].line, steps)
    return True


_Tests = tuple[tuple[int, ...], tuple[int, ...]]


def _statements(loop: Turns, codes: list[int]) -> list[tuple[int, tuple[int, ...], _Tests | None]]:
    """Return of each statement its line, the codes with which it was executed, and for a test those
    of yes and of no.
    """
    taken = tuple(code for code in codes if code)
    found: list[tuple[int, tuple[int, ...], _Tests | None]] = [
        (loop.line, tuple(codes), (taken, tuple(c for c in codes if not c)))
    ]
    executed: dict[int, tuple[int, list[int]]] = {}
    tests: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for code in taken:
        done, asked = loop.way(code)
        for node in done:
            executed.setdefault(id(node), (getattr(node, "test", node).lineno, []))[1].append(code)
        for node, yes in asked:
            tests[id(node)][0 if yes else 1].append(code)
    for number, (line, several) in executed.items():
        asked_of = tests.get(number)
        found.append(
            (
                line,
                tuple(several),
                None if asked_of is None else (tuple(asked_of[0]), tuple(asked_of[1])),
            )
        )
    return found


def _loaded(
    machine: Machine,
    site: Site,
    loads: np.ndarray,
    turns: _Rows,
    slots: np.ndarray,
    mask: Mask,
    variables: dict[str, Any],
) -> None:
    """Count the requests of a load: one for each row and warp."""
    elements, where = loads & ((1 << ELEMENT_BITS) - 1), loads >> ELEMENT_BITS
    lanes = turns.lanes[where]
    request = turns.rows[where] * (int(slots.max()) + 1) + slots[lanes]
    made = np.zeros(int(request.max()) + 1, dtype=bool)
    made[request] = True
    number = np.cumsum(made) - 1
    which, count = number[request], int(number[-1]) + 1
    at, active = np.zeros((count, WARP), dtype=np.int64), np.zeros((count, WARP), dtype=bool)
    place = mask.flat[lanes] % WARP
    at[which, place] = elements
    active[which, place] = True
    machine.counters.requests(site.line, variables[site.name].store, "load", at, active)


# -------------------------------------------------------------------------------------------------
# Run the lanes of a loop one after the other when only few are active: NumPy's overhead for each
# statement then costs more than the lanes.
#
# If lanes only compute, read memory that is not written, and use arrays of their own, each gets
# the same values as in lockstep. The counts of lockstep follow from the iterations that each lane
# took: lanes are together when they are in the same iteration of all enclosing loops. Arithmetic
# in which Python differs from numba, and everything that would be a finding, an error or a trace,
# is left to lockstep.


# Lanes up to which Python, one lane after the other, is faster than NumPy (measured: about 100),
# and the turns in lockstep before that, since a short loop is not worth the change.
MOST_LANES, _TURNS_BEFORE, _TURNS_BEFORE_NESTED = 96, 3, 0
# Turns in one go: what is logged of them has to fit into memory, and work without end must be
# noticed.
_FUEL = 1 << 11
# The largest absolute values of integers between statements that are tried, so that nothing on the
# way leaves 64 bits.
_MOST = (1 << 60, 1 << 31, 1 << 20)
_PROGRAMS_KEPT, _TRIES = 32, 4
# Turns of a lane that are worth the change, and the most turns in lockstep before it is tried again
# (measured: it costs some 10).
_WORTH_TURNS, _LONGEST_WAIT = 10, 40
_MOST_LOOKED_AT = 1 << 18  # elements of an array whose largest one is looked for
_SIMPLE = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.If,
    ast.While,
    ast.For,
    ast.Break,
    ast.Continue,
    ast.Pass,
)


class _BailError(Exception):
    """A lane came to something that lockstep has to do."""


def _bail() -> Any:
    raise _BailError


@dataclass(frozen=True)
class _Text:
    """A loop as Python for one lane, with the types that its names had."""

    make: Callable[..., Any]
    most: int
    loops: list[Turns]
    sites: list[Site]
    parameters: list[str]
    types: dict[str, np.dtype]
    arrays: list[str]
    stored: set[str]
    assigned: list[str]


class ScalarLoop:
    """A loop that lanes may run alone."""

    def __init__(
        self,
        node: ast.While | ast.For,
        names: set[str],
        fixed: dict[int, tuple[str, Expression]],
        joined: Sequence[ast.Name] = (),
        followed: frozenset[str] = frozenset(),
    ) -> None:
        self.node, self._names, self._fixed = node, names, fixed
        self._joined = joined  # assignments in it that meet others
        # what it gives a value, and some read after it may find without one
        self._followed = followed
        nested = any(
            isinstance(part, (ast.While, ast.For)) for part in ast.walk(node) if part is not node
        )
        self.turns_before = _TURNS_BEFORE_NESTED if nested else _TURNS_BEFORE
        self._waited = self._wait = 0
        self._texts: dict[Any, _Text | None] = {}

    def begins(self) -> ScalarLoop:
        """Note that the loop begins."""
        self._waited = 0
        return self

    def suits(self, frame: Frame, mask: Mask) -> bool:
        """Return whether lanes are few, and their variables would be different in each block in
        lockstep as well.

        Where few turns were left the last time, some more are left to lockstep first: the change
        costs as much as a few turns.
        """
        one_block = mask.batch.blocks == 1 or (
            mask.array is not None and len(mask.array) > 1 and mask is not frame.live
        )
        if not one_block or mask.lanes > MOST_LANES:
            return False
        self._waited += 1
        return self._waited > self._wait

    def run(self, frame: Frame, mask: Mask, items: Any = None) -> tuple[Mask | None, int]:
        """Run the loop in the lanes of a mask; return the lanes that must go on in lockstep, and
        after how many items of a ``for``.

        ``items`` is a range, or a list with one for each lane.
        """
        machine, done = frame.machine, 0
        before: dict[str, Any] = {}
        failures = machine.launch.left_to_lockstep
        if failures.get(id(self), 0) >= _TRIES or machine.launch.traced_block is not None:
            return mask, 0
        going: Mask | None = mask
        while going is not None:
            try:
                some = items
                if items is not None:
                    some = [
                        one[done : done + _FUEL]
                        for one in (items if isinstance(items, list) else [items] * going.lanes)
                    ]
                more = self._turns(frame, going, some, items, done)
            except (
                Refused,
                _BailError,
                TypeError,
                IndexError,
                ZeroDivisionError,
                ValueError,
                OverflowError,
            ):
                failures[id(self)] = failures.get(id(self), 0) + 1
                return going, done
            if more is None:
                return going, done
            failures.pop(id(self), None)
            done += _FUEL
            now = {name: frame.variables.get(name) for name in self._names}
            if all(more) and is_unchanged(before, now):
                return going, done  # it waits, which is seen in lockstep
            before = now
            if isinstance(items, list):
                items = [one for one, stays in zip(items, more, strict=True) if stays]
            going = _those(going, more)
        return None, done

    def _turns(
        self, frame: Frame, mask: Mask, some: Any, items: Any, done: int
    ) -> list[bool] | None:
        """Run so many turns; return which lanes go on, or None where the statements would be too
        many.
        """
        lanes = mask.flat
        new = self._followed - frame.variables.keys()
        if any(mask.without(frame.given.get(name)) is not None for name in self._followed - new):
            # some of the lanes have a value of others: what they give themselves would not be told
            # from it
            raise Refused
        text, columns = self._bound(frame, mask, len(lanes))
        logs = Logs(len(text.loops), len(text.sites))
        lane = text.make(_bail, *logs.parts())
        arrays = [_lists(frame.variables[name], lanes) for name in text.arrays]
        last = [True] * len(lanes)
        if some is None:
            some = [None] * len(lanes)
        else:
            every = items if isinstance(items, list) else [items] * len(lanes)
            last = [done + _FUEL >= len(one) for one in every]
        more, rows = [], []
        for number, given in enumerate(
            zip(*columns, strict=True) if columns else [()] * len(lanes)
        ):
            logs.begin()
            goes_on, values = lane(
                *given, *[array[number] for array in arrays], _FUEL, some[number], last[number]
            )
            more.append(goes_on)
            rows.append(values)
        if not account(frame.machine, text.loops, text.sites, logs, mask, frame.variables):
            return None
        self._keep(frame, mask, text, rows, arrays)
        for number, name in enumerate(text.types):
            if name in new:
                frame.given[name] = union(
                    frame.given.get(name), _those(mask, [row[number] is not None for row in rows])
                )
        # whether a lane came to it or not: numba's types do not hang on that
        for joined in self._joined:
            if joined.id in text.types:
                frame.types.note(joined, np.zeros((), text.types[joined.id]))
        short = sum(map(len, logs.codes)) < _WORTH_TURNS * len(lanes)
        self._wait = min(2 * self._wait + _WORTH_TURNS // 2, _LONGEST_WAIT) if short else 0
        return more

    # -- before

    def _bound(self, frame: Frame, mask: Mask, lanes: int) -> tuple[_Text, list[list[Any]]]:
        """Return the text for what the names hold now, and the values of its parameters in each
        lane.
        """
        values, views = self._held(frame)
        for (name, _), dtype in frame.types.mixed.items():
            if name in values and values[name].dtype != dtype:
                raise Refused
        fixed: dict[int, Any] = {}
        for number, (name, expression) in self._fixed.items():
            held = expression(frame, mask)
            if not isinstance(held, (np.ndarray, np.generic)):
                raise Refused
            fixed[number] = held if held.ndim == 0 else name
            if held.ndim:
                values[name] = held
        largest = {
            name: _largest(frame.machine.launch.largest, view) for name, view in views.items()
        }
        key = (
            tuple((name, held.dtype) for name, held in values.items()),
            tuple(
                (
                    name,
                    view.store.space,
                    view.store.tracker is None,
                    view.dtype,
                    view.shape,
                    view.strides,
                    view.offset is START,
                )
                for name, view in views.items()
            ),
            tuple(largest.values()),
            tuple(
                (number, held if isinstance(held, str) else (held.dtype, held.item()))
                for number, held in fixed.items()
            ),
        )
        if key not in self._texts:
            if len(self._texts) >= _PROGRAMS_KEPT:
                self._texts.clear()
            self._texts[key] = self._write(values, views, fixed, largest)
        text = self._texts[key]
        if text is None:
            raise Refused
        columns = []
        for name in text.parameters:
            held = values[name]
            if (
                held.dtype == INT
                and not -text.most <= int(held.min()) <= int(held.max()) <= text.most
            ):
                raise Refused
            columns.append(mask.selected(held).tolist() if held.ndim else [held.item()] * lanes)
        return text, columns

    def _held(self, frame: Frame) -> tuple[dict[str, Any], dict[str, View]]:
        """Return the numbers and the arrays that the loop's names hold."""
        values: dict[str, Any] = {}
        views: dict[str, View] = {}
        for name in self._names:
            held = frame.variables.get(name)
            if isinstance(held, View):
                views[name] = held
            elif isinstance(held, (np.ndarray, np.generic)):
                values[name] = held
            elif held is not None:
                raise Refused
        local = [view.store for view in views.values() if view.store.space == "local"]
        if len(set(map(id, local))) != len(local):
            raise Refused  # two names of one array
        return values, views

    def _write(
        self,
        values: dict[str, Any],
        views: dict[str, View],
        fixed: dict[int, Any],
        largest: dict[str, int],
    ) -> _Text | None:
        parameters = list(values)
        for most in _MOST:
            writer = LaneWriter(
                {name: held.dtype for name, held in values.items()}, views, fixed, largest, most
            )
            try:
                text = writer.root(self.node, parameters)
            except Refused:
                continue
            names: dict[str, Any] = {}
            exec(compile(text, f"<{self.node.lineno}>", "exec"), names)
            return _Text(
                names["make"],
                most,
                writer.loops,
                writer.sites,
                parameters,
                writer.types,
                writer.arrays,
                writer.stored,
                writer.assigned,
            )
        return None

    # -- after

    @staticmethod
    def _keep(
        frame: Frame, mask: Mask, text: _Text, rows: list[tuple[Any, ...]], arrays: list[Any]
    ) -> None:
        """Give the variables and the local arrays what the lanes left there."""
        batch, lanes = mask.batch, mask.flat
        columns = dict(zip(text.types, zip(*rows, strict=True), strict=True))
        for name in text.assigned:
            left = columns[name]
            if all(value is None for value in left):
                continue
            dtype, old = text.types[name], frame.variables.get(name)
            held = np.zeros((), dtype) if old is None else old
            # else reshape(-1) may be a copy
            full = np.array(np.broadcast_to(held, (batch.blocks, batch.width)), order="C")
            full.reshape(-1)[lanes] = (
                [0 if value is None else value for value in left] if None in left else left
            )
            frame.variables[name] = full
        for name, lists in zip(text.arrays, arrays, strict=True):
            if name in text.stored:
                data = frame.variables[name].store.data
                data.reshape(len(data), -1)[:, lanes] = np.array(lists, dtype=data.dtype).T


def scalar_loop_of(
    node: ast.While | ast.For, translator: Translator, joined: Collection[Any] = ()
) -> ScalarLoop | None:
    """Return the loop for lanes alone, or None where its statements or calls are none that a lane
    can run alone.
    """
    names: set[str] = set()
    fixed: dict[int, tuple[str, Expression]] = {}

    def look(part: ast.AST) -> bool:
        if isinstance(part, ast.expr) and _is_fixed(part, translator):
            fixed[id(part)] = f"0{len(fixed)}", translator.expression(part)
            return True
        if isinstance(part, ast.stmt) and not isinstance(part, _SIMPLE):
            return False
        if isinstance(part, ast.Call):
            found = translator.static(part.func)
            if not isinstance(found, Intrinsic) or found.name not in ("min", "max", "abs", "range"):
                return False
            return not part.keywords and all(look(argument) for argument in part.args)
        if isinstance(part, ast.Name):
            names.add(part.id)
        return all(look(inner) for inner in ast.iter_child_nodes(part))

    if not look(node):
        return None
    if any(part in translator.unsure for part in ast.walk(node)):
        return None  # which lanes have given it a value is seen in lockstep
    stored = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    ]
    followed = frozenset(part.id for part in stored) & translator.followed
    return ScalarLoop(node, names, fixed, [part for part in stored if part in joined], followed)


def is_unchanged(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether variables hold what they held before."""
    return before.keys() == now.keys() and all(
        now[name] is value
        or (isinstance(value, (np.ndarray, np.generic)) and np.array_equal(value, now[name]))
        for name, value in before.items()
    )


def _is_fixed(node: ast.expr, translator: Translator) -> bool:
    """Return whether an expression has one value throughout a loop that makes no arrays: sizes,
    places, and names from outside.
    """
    if isinstance(node, ast.Name):
        return node.id not in translator.local
    if isinstance(node, ast.Attribute):
        return node.attr not in ("real", "imag")  # of a number, which the loop may change
    if isinstance(node, ast.Subscript):
        return (
            isinstance(node.value, ast.Attribute)
            and node.value.attr == "shape"
            and isinstance(node.slice, ast.Constant)
        )
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "len"
        and len(node.args) == 1
    ):
        return isinstance(node.args[0], ast.Name) and node.args[0].id in translator.local
    return False


def _largest(known: dict[int, int], view: View) -> int:
    """Return a bound, one of ``_MOST``, of the integers in memory that nobody writes; 2**63 where
    it is not known.
    """
    store = view.store
    if (
        store.space != "global"
        or store.tracker is not None
        or store.dtype != INT
        or not 0 < store.elements <= _MOST_LOOKED_AT
    ):
        return 1 << 63
    if id(store) not in known:
        largest = max(-int(store.data.min()), int(store.data.max()))
        known[id(store)] = min((most for most in _MOST if largest <= most), default=1 << 63)
    return known[id(store)]


def _lists(view: View, lanes: np.ndarray) -> Any:
    """Return what an array holds, for each lane: its own elements, or those of memory that nobody
    writes.
    """
    data = view.store.data
    if view.store.space == "local":
        return data.reshape(len(data), -1)[:, lanes].T.tolist()
    return [data.data] * len(lanes)


def _those(mask: Mask, which: list[bool]) -> Mask | None:
    """Return some of the lanes."""
    if not any(which):
        return None
    if all(which):
        return mask
    array = np.zeros((mask.batch.blocks, mask.batch.width), dtype=bool)
    array.reshape(-1)[mask.flat[np.array(which)]] = True
    return Mask(mask.batch, array)
