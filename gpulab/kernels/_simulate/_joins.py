"""Control flow of a variable: which of its assignments may reach the same read, and which reads may
come before any assignment.

Where one of several assignments may have given a variable its value, numba has one type for all of
them.

The microscope's variables have the type of what ran. That differs in what a learner sees where a
uint64 meets a signed integer: both become a float64 in numba, which holds 53 bits and has no bits
to shift. Such variables are noted. Assignments that follow each other without a branch or a loop do
not meet; numba keeps them apart as well.

Whether a read is really reached without a value is known only when the kernel runs and its lanes
take a path.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.kernels._simulate._types import INT, UINT

Given = ast.Name | ast.arg  # an assignment of a variable, or a parameter
# which may have given each variable its value; None: nobody yet
State = dict[str, frozenset[Given | None]]
Meeting = tuple[str, str, frozenset[Given]]  # of a function, a variable


@dataclass(frozen=True, eq=False)
class Ways:
    """What the ways through a function say of its variables.

    ``meetings`` are the variables that are read where one of several assignments may have given
    their value, with those; ``unsure`` the reads that some way leads to without a value (for ``x +=
    1`` its target).
    """

    meetings: set[Meeting]
    unsure: set[ast.Name]


def ways_of(tree: ast.FunctionDef) -> Ways:
    """Return what the ways through a function say of its variables."""
    reader = _Reader(tree.name)
    given = {
        part.id
        for part in ast.walk(tree)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
    state: State = {name: frozenset([None]) for name in given}
    reader.block(
        tree.body, state | {argument.arg: frozenset([argument]) for argument in tree.args.args}
    )
    return Ways(reader.found, reader.unsure)


@dataclass(frozen=True)
class Integers:
    """The assignments that gave a signed integer, and those that gave a uint64: narrower unsigned
    ones fit into an int64.
    """

    signed: set[Given] = field(default_factory=set)
    unsigned: set[Given] = field(default_factory=set)

    def note(self, node: Given, value: Any) -> None:
        """Keep what an assignment gives."""
        if isinstance(value, (np.ndarray, np.generic)):
            dtype = value.dtype
            if dtype is INT or dtype.kind == "i":  # the first is faster to ask for
                self.signed.add(node)
            elif dtype.kind == "u" and dtype == UINT:
                self.unsigned.add(node)


def notes_of(meetings: Iterable[Meeting], integers: Integers) -> set[tuple[int, str]]:
    """Return what to say, by line, of variables that were given a uint64 and a signed integer."""
    pairs: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for function, name, given in meetings:
        signed, unsigned = given & integers.signed, given & integers.unsigned
        pairs.setdefault((function, name), set()).update(
            (a.lineno, b.lineno) for a in signed for b in unsigned if a is not b
        )
    return {_note(name, found) for (_, name), found in pairs.items() if found}


def _note(name: str, pairs: set[tuple[int, int]]) -> tuple[int, str]:
    lines, other = sorted({line for line, _ in pairs}), min(other for _, other in pairs)
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
    return lines[0], (
        f"{where}: {name} is a signed integer here and a uint64 in line {other}. numba-cuda makes "
        "one variable of both, a float64, which "
        "has 53 bits. For a GPU, assign uint64(...) each time."
    )


def _joined(states: Iterable[State | None]) -> State | None:
    """Return what may hold where several ways meet; None where no way leads there."""
    ways = [state for state in states if state is not None]
    if not ways:
        return None
    return {
        name: frozenset[Given | None]().union(*(way.get(name, ()) for way in ways))
        for name in {name for way in ways for name in way}
    }


class _Reader:
    """Follows the ways through a function: reaching definitions."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.found: set[Meeting] = set()
        self.unsure: set[ast.Name] = set()
        self._broken: list[list[State]] = []
        self._continued: list[list[State]] = []

    def block(self, nodes: list[ast.stmt], state: State | None) -> State | None:
        """Return what holds after statements."""
        for node in nodes:
            if state is None:
                return None
            state = self._statement(node, state)
        return state

    def _statement(self, node: ast.stmt, state: State) -> State | None:
        if isinstance(node, ast.If):
            self._read(node.test, state)
            return _joined([self.block(node.body, state), self.block(node.orelse, state)])
        if isinstance(node, (ast.While, ast.For)):
            return self._loop(node, state)
        if isinstance(node, (ast.Break, ast.Continue)):
            (self._broken if isinstance(node, ast.Break) else self._continued)[-1].append(state)
            return None
        self._read(node, state)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._meet(node.target, state)
        if isinstance(node, ast.AnnAssign) and node.value is None:  # `x: int` gives nothing
            return state
        return None if isinstance(node, ast.Return) else self._given(node, state)

    def _loop(self, node: ast.While | ast.For, state: State) -> State | None:
        if isinstance(node, ast.For):
            self._read(node.iter, state)
        before, now = state, state
        while True:
            self._broken.append([])
            self._continued.append([])
            if isinstance(node, ast.While):
                self._read(node.test, now)
            after = self.block(
                node.body, self._given(node.target, now) if isinstance(node, ast.For) else now
            )
            left, again = self._broken.pop(), _joined([before, after, *self._continued.pop()])
            assert again is not None
            if again == now:
                return _joined([now, *left])
            now = again

    def _read(self, node: ast.AST, state: State) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                self._meet(part, state)

    def _meet(self, node: ast.Name, state: State) -> None:
        ways = state.get(node.id, frozenset())
        given = frozenset(one for one in ways if one is not None)
        if len(given) > 1:
            self.found.add((self.function, node.id, given))
        if None in ways:
            self.unsure.add(node)

    @staticmethod
    def _given(node: ast.AST, state: State) -> State:
        stored: State = {
            part.id: frozenset([part])
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        return {**state, **stored}
