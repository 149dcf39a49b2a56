"""Translate a kernel's statements to closures that run them for the lanes of a mask. This includes
loops, the items of a ``for``, and the check whether the lanes of a loop wait.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels.simulation import _expressions, _memory, _scalar_lanes, _types
from gpulab.kernels.simulation._functions import Call, computes, not_numeric
from gpulab.kernels.simulation._geometry import Mask, union
from gpulab.kernels.simulation._machine import Expression, Frame, Leavers, Machine
from gpulab.kernels.simulation.source import UNKNOWN, Source
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.kernels.simulation._simulate import Program

Statement = Callable[[Frame, Mask], Mask | None]


# -------------------------------------------------------------------------------------------------
# Turn a kernel's statements into closures that run them for the lanes of a mask.
#
# A statement takes the lanes that arrive and returns those that go on to the next one: none (None)
# after ``return``, ``break`` and ``continue``. After an ``if`` or a loop the lanes are together
# again.


class StatementTranslator(_expressions.Translator):
    """Translates the statements of one function as well as its expressions: each statement to a
    closure, or to None if it does nothing.
    """

    def __init__(
        self, source: Source, program: Program, joins: _types.Joins, around: Collection[str] = ()
    ) -> None:
        super().__init__(source, program, joins, around)
        nodes = source.text.nodes
        inner = [node for node in nodes[1:] if isinstance(node, ast.FunctionDef)]
        others = {part for node in inner for part in _types.walk(node)}
        self._returned = [
            node.value
            for node in nodes
            if isinstance(node, ast.Return) and node.value is not None and node not in others
        ]
        self._result = self.join(self._returned)

    def block(self, nodes: list[ast.stmt], outermost: bool = False) -> Statement:
        """Return the closure of statements that follow each other."""
        # line 0 for loops, which count their own statements, and for what does not count as a
        # statement
        parts = [
            (
                0
                if isinstance(node, (ast.While, ast.For, ast.FunctionDef, ast.Assert))
                else getattr(node, "test", node).lineno,
                part,
            )
            for node in nodes
            if (part := self.translated(node)) is not None
        ]

        def run(frame: Frame, mask: Mask) -> Mask | None:
            # an exception may have ended lanes in a function that a test or a statement calls
            going = mask.without(frame.machine.raised)
            for line, part in parts:
                if going is None:
                    return None
                if outermost:
                    frame.live = going
                if line:
                    frame.machine.step(line, going)
                try:
                    after = part(frame, going)
                except KernelError:
                    if going.without(frame.machine.raised) is not None:
                        raise
                    return None  # no lane is left that the error concerns
                going = after and after.without(frame.machine.raised)
            return going

        return run

    def _pass(self, node: ast.Pass) -> None:
        return None

    def _raise(self, node: ast.Raise) -> Callable[[Frame, Mask], None]:
        line, error = node.lineno, "an exception" if node.exc is None else ast.unparse(node.exc)

        def run(frame: Frame, mask: Mask) -> None:
            frame.throw(error, mask, line, lambda: self._exception(node.exc))

        return run

    def _exception(self, node: ast.expr | None) -> tuple[type[BaseException], list[Any]]:
        """Return the class of an exception, a name from outside, and its arguments: the values of
        those that are known before the kernel runs, all others as they are written.
        """
        call = (
            node
            if isinstance(node, ast.Call)
            else ast.Call(node or ast.Name("RuntimeError"), [], [])
        )
        found: list[Any] = []
        for argument in call.args:
            number = self.number(argument)
            value = self.static(argument) if number is UNKNOWN else number
            is_known = isinstance(value, (str, int, float, tuple, np.generic))
            found.append(value if is_known else ast.unparse(argument))
        return self.source.global_object(ast.unparse(call.func)), found

    def _assert(self, node: ast.Assert) -> Statement:
        test = self.condition(node.test)
        name = ast.Name("AssertionError")
        error = name if node.msg is None else ast.Call(name, [node.msg], [])
        fail = self._raise(ast.copy_location(ast.Raise(error), node))

        def run(frame: Frame, mask: Mask) -> Mask | None:
            yes, no = mask.split(test(frame, mask))
            if no is not None:
                fail(frame, no)
            return yes

        return run

    def _delete(self, node: ast.Delete) -> None:
        if not all(isinstance(target, ast.Name) for target in node.targets):
            raise self.fail("del takes names of variables in a kernel", node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if (alias.asname or alias.name) not in self.source.text.imports:
                where = getattr(node, "module", alias.name)
                raise self.fail(f"the module {where} is not supported in a kernel", node)

    _importfrom = _import

    def _expr(self, node: ast.Expr) -> Statement | None:
        if isinstance(node.value, ast.Constant):
            return None
        value = self.expression(node.value)
        # a compiler leaves out a value that is not used
        acts = any(isinstance(part, (ast.Call, ast.NamedExpr)) for part in _types.walk(node))

        def run(frame: Frame, mask: Mask) -> Mask:
            value(frame, mask)
            return mask

        return run if acts else None

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> Statement | None:
        given = node.value
        if given is None:  # `x: int` assigns nothing
            return None
        nodes = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = self.expression(given)
        targets = [self.target(target) for target in nodes]
        for target in nodes:
            self.keep_computed(target, given, value)

        def run(frame: Frame, mask: Mask) -> Mask | None:
            new = value(frame, mask)
            going = mask.without(frame.machine.raised)
            if going is not None:
                for target in targets:
                    target(frame, going, new)
            return going

        return run

    _annassign = _assign

    def _augassign(self, node: ast.AugAssign) -> Statement | None:
        line = node.lineno
        if isinstance(node.target, ast.Name):  # the variable is read here as well
            both = ast.BinOp(node.target, node.op, node.value)
            whole = ast.Assign([node.target], ast.copy_location(both, node))
            return self._assign(ast.copy_location(whole, node))
        operation = self.operator(node.op, node.value, node)
        amount, reference = self.expression(node.value), self.reference(node.target)

        def run(frame: Frame, mask: Mask) -> Mask:
            view, places = reference(frame, mask)
            old = _memory.load(frame.machine, view, mask, places, line)
            new = operation(old, amount(frame, mask))
            self._check_store(new, view, node)
            _memory.store(frame.machine, view, mask, places, new, line)
            return mask

        return run

    def target(self, node: ast.expr) -> Callable[[Frame, Mask, Any], None]:
        """Return the closure that stores a value: into a variable, several variables, or an element
        of an array.
        """
        line = node.lineno
        if isinstance(node, ast.Name):
            name = node.id
            is_joined, is_followed = node in self.joins.of, name in self.followed
            if not is_joined and not is_followed:
                return lambda frame, mask, value: frame.assign(name, value, mask, line)

            def store_noted(frame: Frame, mask: Mask, value: Any) -> None:
                kind = getattr(value, "dtype", None)
                if is_joined and (kind is None or frame.types.seen.get(node) is not kind):
                    try:
                        frame.types.note(node, value)
                    except TypeError as error:
                        raise self.fail(
                            f"{name} is assigned {error}; expected one type", node
                        ) from error
                if is_followed:
                    frame.given[name] = union(frame.given.get(name), mask)
                frame.assign(name, value, mask, line)

            return store_noted
        if isinstance(node, (ast.Tuple, ast.List)):
            parts = [self.target(part) for part in node.elts]

            def unpack(frame: Frame, mask: Mask, value: Any) -> None:
                is_array = isinstance(value, _memory.ARRAYS) and value.ndim > 0
                if is_array and np.all(value.shape[0] == len(parts)):
                    items = items_of(frame.machine, value, line)
                    value = tuple(items.at(frame, mask, place) for place in range(len(parts)))
                if not isinstance(value, tuple) or len(value) != len(parts):
                    raise self.fail(f"expected {plural(len(parts), 'value')} to the right", node)
                for part, item in zip(parts, value, strict=True):
                    part(frame, mask, item)

            return unpack
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            reference = self.reference(node)

            def store_element(frame: Frame, mask: Mask, value: Any) -> None:
                view, places = reference(frame, mask)
                self._check_store(value, view, node)
                if isinstance(value, (str, bytes)) and view.dtype.kind in "US":
                    value = np.array(value, view.dtype)[()]
                try:
                    _memory.write(frame.machine, view, mask, places, value, line)
                except (TypeError, AttributeError, IndexError) as error:
                    raise self.fail(
                        "the value does not fit the part of the array to the left; expected a "
                        "number, or as many elements",
                        node,
                    ) from error

            return store_element
        raise self.fail("expected a variable or an element of an array to the left", node)

    def _check_store(self, value: Any, view: _memory.View, node: ast.AST) -> None:
        given, kind = getattr(value, "dtype", view.dtype).kind, view.dtype.kind
        if (given == "c" and kind != "c") or (given in "US") != (kind in "US"):
            what = {"c": "a complex number", "U": "a text", "S": "a text"}.get(given, "a number")
            raise self.fail(f"{what} cannot be stored in an array of {view.dtype}", node)

    def _namedexpr(self, node: ast.NamedExpr) -> Expression:
        value, assign = self.expression(node.value), self.target(node.target)

        def run(frame: Frame, mask: Mask) -> Any:
            found = value(frame, mask)
            assign(frame, mask, found)
            return found

        return run

    def _functiondef(self, node: ast.FunctionDef) -> Statement:
        made = self.inner_function(node)

        def run(frame: Frame, mask: Mask) -> Mask:
            frame.variables[node.name] = made(frame, mask)
            return mask

        return run

    def _if(self, node: ast.If) -> Statement:
        line, test = node.test.lineno, self.condition(node.test)
        body, orelse = self.block(node.body), self.block(node.orelse) if node.orelse else None

        def run(frame: Frame, mask: Mask) -> Mask | None:
            yes, no = frame.machine.test(line, mask, test(frame, mask))
            after_yes = None if yes is None else body(frame, yes)
            after_no = no if no is None or orelse is None else orelse(frame, no)
            if after_yes is yes and after_no is no:
                return mask
            return union(after_yes, after_no)

        return run

    def _while(self, node: ast.While) -> Statement:
        loop = self._loop(node, node.test.lineno, self.condition(node.test))
        # some threads may come to a barrier in the test early, by ``continue``
        calls = [part.func for part in _types.walk(node.test) if isinstance(part, ast.Call)]
        barriers = [call for call in map(ast.unparse, calls) if "syncthreads" in call]
        early = [part for part in _types.walk(node) if isinstance(part, ast.Continue)]
        if barriers and early:
            self.program.notes.append(
                f"{self.source.place(node.lineno)}: threads that `continue` in "
                f"{self.source.place(early[0].lineno)} wait at {barriers[0]} here until the others "
                "have come to the end of the loop's body. That holds as long as no other barrier "
                "stands between the two."
            )
        return loop.run

    def _for(self, node: ast.For) -> Statement:
        values = self.looked_through(node.iter)
        loop = self._loop(node, node.lineno, self.target(node.target))
        return lambda frame, mask: loop.run(
            frame, mask, items_of(frame.machine, values(frame, mask), node.lineno)
        )

    def _loop(self, node: ast.While | ast.For, line: int, begin: Callable[..., Any]) -> Loop:
        body, orelse = self.block(node.body), self.block(node.orelse) if node.orelse else None
        return Loop(
            line,
            begin,
            body,
            orelse,
            None if orelse else _scalar_lanes.scalar_loop_of(node, self),
            _never_ends(node),
        )

    def _leave(self, node: ast.Break | ast.Continue) -> Statement:
        how = "broken" if isinstance(node, ast.Break) else "continued"

        def run(frame: Frame, mask: Mask) -> None:
            loop = frame.loops[-1]
            setattr(loop, how, union(getattr(loop, how), mask))

        return run

    _break = _continue = _leave

    def _return(self, node: ast.Return) -> Statement:
        given, line = node.value, node.lineno
        if given is None or (isinstance(given, ast.Constant) and given.value is None):
            return lambda frame, mask: frame.give(None, mask, line)
        value, number = self.expression(given), self._returned.index(given)

        def run(frame: Frame, mask: Mask) -> None:
            frame.give(self._result(frame, number, value(frame, mask)), mask, line)

        return run


def _never_ends(node: ast.While | ast.For) -> bool:
    """Return whether a loop that is entered has no end: nothing in it leaves it, and its test reads
    only constants, sizes and names that it never assigns.
    """
    assigned = {one.id for one in _types.names_of(_types.walk(node), ast.Store)}
    return (
        isinstance(node, ast.While)
        and not any(
            isinstance(part, (ast.Break, ast.Return, ast.Raise, ast.Assert))
            for part in _types.walk(node)
        )
        and not any(
            isinstance(part, (ast.Call, ast.Subscript))
            or getattr(part, "id", "") in assigned
            or getattr(part, "attr", "size") != "size"
            for part in _types.walk(node.test)
        )
    )


# -------------------------------------------------------------------------------------------------
# Loops: how their turns run, and whether their lanes wait.


# First, the turns before a loop is checked for waiting. Second, the turns after which an atomic
# that changes nothing suffices to say that the loop waits, although a variable changes (it may
# count the attempts). The second pair is for blocks or threads that take turns.
_PATIENCE, _PATIENCE_IN_TURNS = (64, 1 << 10), (2, 64)


class Watch:
    """Checks whether a loop waits: whether a turn leaves its lanes, its variables and all memory as
    they were. All turns that follow will do the same, unless other threads change something.
    """

    def __init__(self, frame: Frame) -> None:
        in_turns = frame.machine.launch.turns is not None
        self.next, self._long = _PATIENCE_IN_TURNS if in_turns else _PATIENCE
        self._before: tuple[Mask, int, int, dict[str, Any]] | None = None

    def look(self, frame: Frame, mask: Mask, turn: int, line: int) -> None:
        """Compare the state with that of the turn before, if it was recorded; otherwise record
        it.
        """
        launch, before = frame.machine.launch, self._before
        self.end(frame)
        if before is None:
            launch.watchers += 1
            self._before = mask, launch.changes, launch.vain_atomics, dict(frame.variables)
            self.next = turn + 1
            return
        lanes, changes, vain, variables = before
        self.next = 2 * turn
        if changes == launch.changes and np.array_equal(lanes.flat, mask.flat):
            now = frame.variables
            settled = variables.keys() == now.keys() and all(
                now[name] is value
                or (isinstance(value, _types.NUMBERS) and np.array_equal(value, now[name]))
                for name, value in variables.items()
            )
            if settled or (turn > self._long and launch.vain_atomics > vain):
                frame.machine.wait(line, mask, settled)
                self.next = turn + 1

    def end(self, frame: Frame) -> None:
        """Drop the recorded state."""
        frame.machine.launch.watchers -= self._before is not None
        self._before = None


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop: its test or items, its body, and what it does at its end if no lane left it before
    (``else``).

    ``begin`` is the test of a ``while``; of a ``for`` it assigns the next item to the variable.
    ``never_ends`` is true if the loop has no end once a first turn has begun.
    """

    line: int
    begin: Callable[..., Any]
    body: Statement
    orelse: Statement | None
    scalar_loop: _scalar_lanes.ScalarLoop | None
    never_ends: bool

    def run(self, frame: Frame, mask: Mask, items: _types.Items | None = None) -> Mask | None:
        """Run the turns, one for each item of a ``for``; return the lanes that go on after the
        loop.
        """
        machine, leavers, returns = frame.machine, Leavers(), frame.returns
        frame.loops.append(leavers)
        scalar = None if self.never_ends else self.scalar_loop
        watch = Watch(frame) if items is None else None
        going: Mask | None = mask
        ended: list[Mask] = []
        turn = 0
        while going is not None:
            if scalar is not None and scalar.suits(frame, going, items, turn):
                going, done = scalar.run(frame, going, items, turn)
                turn, scalar = turn + done, scalar if done else None
            else:
                machine.step(self.line, going)
                more = self.begin(frame, going) if items is None else turn < items.count
                yes, no = machine.test(self.line, going, more)
                if no is not None:
                    ended.append(no)
                if yes is None:
                    break
                if self.never_ends:
                    raise machine.launch.error(
                        "the loop never ends: nothing in it leaves it or changes what its test "
                        "reads; expected one of the two. Add a break, or the missing assignment",
                        self.line,
                    )
                if items is not None:
                    self.begin(frame, yes, items.at(frame, yes, turn))
                turn += 1
                going = union(self.body(frame, yes), leavers.continued)
                leavers.continued = None
            if watch is not None and going is not None and turn >= watch.next:
                watch.look(frame, going, turn, self.line)
        if watch is not None:
            watch.end(frame)
        frame.loops.pop()
        if self.orelse is not None:
            left = functools.reduce(union, ended, None)
            return union(left and self.orelse(frame, left), leavers.broken)
        if frame.returns == returns:
            return mask
        return functools.reduce(union, ended, leavers.broken)


# -------------------------------------------------------------------------------------------------
# The items of a ``for``: those of ranges, tuples and arrays, and ``enumerate`` and ``zip`` of
# these.


def items_of(machine: Machine, value: Any, line: int, unrolled: bool = False) -> _types.Items:
    """Return the items of a ``for``; with ``unrolled``, the arrays in a tuple may have several
    types.

    Raises
    ------
    KernelError
        If the value has no items, or items of several types, over which a compiler cannot loop.
    """
    if isinstance(value, _types.Items):
        return value
    if isinstance(value, tuple):
        alike = [item for item in value if not (unrolled and isinstance(item, _memory.View))]
        if len(set(map(_expressions.type_of, alike))) > 1:
            raise machine.launch.error(
                "the elements of the tuple are of several types; expected one type to loop over",
                line,
            )
        return _types.Items(len(value), lambda frame, mask, turn: value[turn])
    if not isinstance(value, _memory.ARRAYS) or not value.ndim:
        raise machine.launch.error("expected a range, an array or a tuple to loop over", line)
    return _types.Items(
        value.shape[0],
        lambda frame, mask, turn: _memory.read(frame.machine, value, mask, (np.int64(turn),), line),
    )


@computes("range", most=3, numeric=True)
def _range(call: Call, frame: Frame, mask: Mask, *limits: Any) -> _types.Items:
    if any(value.dtype.kind not in "iub" for value in limits):
        raise call.fail("range needs integers")
    dtype = _types.range_type([value.dtype for value in limits])
    found = [
        _types.cast(value.reshape(-1)[0] if value.size == 1 else value, dtype) for value in limits
    ]
    zero, one = dtype.type(0), dtype.type(1)
    start, stop, step = [zero, *found, one] if len(found) == 1 else [*found, one][:3]
    # in lanes outside the mask the step may be anything
    if mask.split(step == 0)[0] is not None:
        raise call.fail("range with a step of 0 has no end; expected another step")
    lane_limits = (start, stop, step) if dtype == _types.INT else None
    numbers: range | None = None
    if start.ndim == stop.ndim == step.ndim == 0:
        # a range that cannot be run to its end may have more items than ``len`` can return
        numbers = range(int(start), int(stop), int(step))[: 2**63 - 1]

    def number(frame: Frame, mask: Mask, turn: Any) -> Any:
        if numbers is not None and type(turn) is int:  # called from a loop: much faster
            return dtype.type(numbers[turn])
        return start + np.asarray(turn).astype(dtype)[()] * step

    if numbers is not None:
        return _types.Items(len(numbers), number, lane_limits)
    up = step > 0
    some = np.where(up, start < stop, start > stop)
    span = np.where(up, stop - start, start - stop)
    count = np.where(some, (span - 1) // np.where(up, step, -step) + 1, 0).astype(np.int64)
    return _types.Items(count, number, lane_limits)


@computes("literal_unroll")
def _unrolled(call: Call, frame: Frame, mask: Mask, value: Any) -> _types.Items:
    return items_of(frame.machine, value, call.line, unrolled=True)


@computes("enumerate", most=2, keywords=("iterable", "start"))
def _enumerate(
    call: Call, frame: Frame, mask: Mask, value: Any, start: Any = _memory.START
) -> _types.Items:
    call.expect(not not_numeric(start) and start.dtype.kind in "iu", "an integer to count from")
    items, first = items_of(frame.machine, value, call.line), _types.cast(start, _types.INT)
    return _types.Items(
        items.count,
        lambda frame, mask, turn: (first + np.int64(turn), items.at(frame, mask, turn)),
    )


@computes("zip", most=64)
def _zip(call: Call, frame: Frame, mask: Mask, *values: Any) -> _types.Items:
    several = [items_of(frame.machine, value, call.line) for value in values]
    return _types.Items(
        functools.reduce(np.minimum, [items.count for items in several]),
        lambda frame, mask, turn: tuple(items.at(frame, mask, turn) for items in several),
    )


@computes("len")
def _len(call: Call, frame: Frame, mask: Mask, found: Any) -> Any:
    has_items = isinstance(found, (_memory.View, _memory.Choice, _types.Items))
    call.expect(has_items or isinstance(found, tuple), "an array, a tuple or a range")
    count = items_of(frame.machine, found, call.line).count if has_items else len(found)
    return np.int64(count) if np.ndim(count) == 0 else count
