"""Write a loop as Python for one lane, where that is exactly what the lane does in lockstep.

What could leave 64 bits is asked at each assignment. Whatever else comes up calls ``bail`` or is
``Refused`` here. The text keeps a log: for each turn of a loop a code of the ways that the lane
took (0: the test failed; else bit 0, and a bit for each ``if`` that was true), for each access of
global memory the element and the turn.
"""

from __future__ import annotations

import ast

import numpy as np

from gpulab.kernels._simulate._alone_values import INT, Refused, Turns, Value, ValueWriter

# Turns of a loop within others in one go, and turns of all lanes; the ways through one turn, as
# bits.
_MOST_TURNS, _MOST_LOGGED, _MOST_BITS = 1 << 12, 1 << 17, 40


class LaneWriter(ValueWriter):
    """Writes the function of one lane."""

    # -- statements
    # ---------------------------------------------------------------------------------------------------------------

    def root(self, node: ast.While | ast.For, parameters: list[str]) -> str:
        """Return the text of ``make(bail, ...)``, which returns the lane's function."""
        self._counts = _counts(node)
        self._loop(node, 2)
        names = ", ".join(f"v_{name}" for name in self.types)
        logs = ", ".join(
            [
                f"L{loop.number}, P{loop.number}, S{loop.number}, N{loop.number}"
                for loop in self.loops
            ]
            + [f"X{n}" for n in range(len(self.sites))]
            + [f"A_{name}" for name in self.arrays]
        )
        fresh = (
            "; ".join(f"v_{name} = None" for name in self.types if name not in parameters) or "pass"
        )
        given = ", ".join(
            [
                *(f"v_{name}" for name in parameters),
                *(f"A_{n}" for n in self.arrays),
                "fuel",
                "items",
                "last",
            ]
        )
        shared = ", ".join(part for part in logs.split(", ") if not part.startswith("A_"))
        return "\n".join(
            [
                f"def make(bail, {shared}):",
                f" def lane({given}):",
                f"  {fresh}",
                "  more = False",
                *self.lines,
                f"  return more, ({names}{',' if names else ''})",
                " return lane",
            ]
        )

    def _line(self, indent: int, text: str) -> None:
        self.lines.append(" " * indent + text)

    def _loop(self, node: ast.While | ast.For, indent: int) -> None:
        if node.orelse:
            raise Refused
        outer, before = self._turns, set(self.known)
        turns = Turns(node, len(self.loops), outer)
        n = turns.number
        self._line(indent, f"b{n} = len(L{n})")
        if outer is not None:
            self._line(indent, f"if b{n} > {_MOST_LOGGED}: bail()")
            self._line(indent, f"S{n}(len(L{outer.number})); N{n}(b{n})")
            if isinstance(node, ast.For):  # its limits are of the turn around
                self._line(indent, f"items{n} = range({self._range(node)})")
                self._line(indent, f"if len(items{n}) > {_MOST_TURNS}: bail()")
        self.loops.append(turns)
        self._turns = turns
        if isinstance(node, ast.While):
            self._line(indent, f"for n{n} in range({'fuel' if outer is None else _MOST_TURNS}):")
            self._line(indent + 1, f"if not ({self._truth(node.test)}): P{n}(0); break")
        else:
            if not isinstance(node.target, ast.Name):
                raise Refused
            self._line(indent, f"for v_{node.target.id} in items{'' if outer is None else n}:")
            self._gives(node.target.id, INT)
        turns.all_alike = not any(isinstance(part, ast.If) for part in ast.walk(node))
        if not turns.all_alike:
            self._line(indent + 1, f"p{n} = 1")
        if self._block(node.body, indent + 1):
            self._line(indent + 1, self._log(turns))
        self._line(indent, "else:")
        if outer is not None:
            self._line(indent + 1, f"P{n}(0)" if isinstance(node, ast.For) else "bail()")
        elif isinstance(node, ast.While):
            self._line(indent + 1, "more = True")
        else:
            self._line(indent + 1, "if last: P0(0)")
            self._line(indent + 1, "else: more = True")
        self._turns, self.known = outer, before

    @staticmethod
    def _log(turns: Turns) -> str:
        return f"P{turns.number}({'1' if turns.all_alike else f'p{turns.number}'})"

    def _range(self, node: ast.For) -> str:
        if (
            not isinstance(node.iter, ast.Call)
            or not isinstance(node.iter.func, ast.Name)
            or node.iter.func.id != "range"
        ):
            raise Refused
        values = [self.value(argument) for argument in node.iter.args]
        if node.iter.keywords or not all(value.dtype == INT for value in values):
            raise Refused
        return ", ".join(value.text for value in values)

    def _block(self, nodes: list[ast.stmt], indent: int) -> bool:
        """Write statements; return whether a lane comes to their end."""
        for node in nodes:
            if isinstance(node, (ast.Break, ast.Continue)):
                assert self._turns is not None
                self._line(
                    indent,
                    f"{self._log(self._turns)}; "
                    f"{'break' if isinstance(node, ast.Break) else 'continue'}",
                )
                return False
            if isinstance(node, ast.If):
                if not self._if(node, indent):
                    return False
            elif isinstance(node, (ast.While, ast.For)):
                self._loop(node, indent)
            elif isinstance(node, ast.Pass):
                pass
            else:
                self._simple(node, indent)
        return True

    def _if(self, node: ast.If, indent: int) -> bool:
        assert self._turns is not None
        bit = self._turns.bits[id(node)] = len(self._turns.bits) + 1
        if bit > _MOST_BITS:
            raise Refused
        self._line(indent, f"if {self._truth(node.test)}:")
        self._line(indent + 1, f"p{self._turns.number} |= {1 << bit}")
        before = set(self.known)
        goes_on = self._block(node.body, indent + 1)
        yes, self.known = self.known, set(before)
        if node.orelse:
            self._line(indent, "else:")
            self._line(indent + 1, "pass")
            goes_on_too = self._block(node.orelse, indent + 1)
        else:
            goes_on_too = True
        no = self.known
        self.known = yes & no if goes_on and goes_on_too else yes if goes_on else no
        return goes_on or goes_on_too

    def _simple(self, node: ast.stmt, indent: int) -> None:
        if isinstance(node, ast.AugAssign):
            value = self._operation(
                node.op, self.value(self._as_load(node.target)), self.value(node.value)
            )
            self._store(node.target, value, indent)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._store(node.target, self.value(node.value), indent)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if not isinstance(target, ast.Tuple):
                self._store(target, self.value(node.value), indent)
                return
            if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != len(target.elts):
                raise Refused
            values = []
            for part in node.value.elts:
                value, name = self.value(part), self._temporary()
                self._line(indent, f"{name} = {value.text}")
                values.append(Value(name, value.dtype, value.bound))
            for part, value in zip(target.elts, values, strict=True):
                self._store(part, value, indent)
        else:
            raise Refused

    @staticmethod
    def _as_load(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            return ast.copy_location(ast.Name(node.id, ast.Load()), node)
        if isinstance(node, ast.Subscript):
            if any(isinstance(part, ast.Subscript) for part in ast.walk(node.slice)):
                raise Refused  # an index that loads is written twice here, and loads once
            return ast.copy_location(ast.Subscript(node.value, node.slice, ast.Load()), node)
        raise Refused

    def _store(self, target: ast.expr, value: Value, indent: int) -> None:
        if isinstance(target, ast.Name):
            self._gives(target.id, value.dtype)
            self._line(indent, f"v_{target.id} = {value.text}")
            if value.dtype == INT and value.bound > self.most and not self._only_counts(target.id):
                self._line(indent, f"if not {-self.most} <= v_{target.id} <= {self.most}: bail()")
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            view = self._view(target.value.id)
            if view.store.space != "local":
                raise Refused
            name = self._temporary()
            self._line(indent, f"{name} = {value.text}")
            dtype = view.dtype
            if value.dtype != dtype:
                if not (value.is_integer and dtype.kind == "i"):
                    raise Refused
                limits = np.iinfo(dtype)
                self._line(indent, f"if not {limits.min} <= {name} <= {limits.max}: bail()")
            self._line(indent, f"A_{target.value.id}[{self._place(view, target)}] = {name}")
            self.stored.add(target.value.id)
        else:
            raise Refused

    def _gives(self, name: str, dtype: np.dtype) -> None:
        if name in self.views or self.types.setdefault(name, dtype) != dtype:
            raise Refused  # lockstep would change the type of all lanes
        self.known.add(name)
        if name not in self.assigned:
            self.assigned.append(name)

    def _only_counts(self, name: str) -> bool:
        """Return whether a variable changes by so little in each turn that it need not be asked how
        large it is.
        """
        return (
            name in self._counts
            and self._counts[name] * (_MOST_LOGGED + _MOST_TURNS) <= self.most >> 3
        )


def _counts(node: ast.AST) -> dict[str, int]:
    """Return the variables that a loop only adds constants to, with the sum of these."""
    found: dict[str, int] = {}
    counted: set[int] = set()
    for part in ast.walk(node):
        match part:
            case ast.AugAssign(
                target=ast.Name(id=name),
                op=ast.Add() | ast.Sub(),
                value=ast.Constant(value=int(amount)),
            ):
                counted.add(id(part.target))
                found[name] = found.get(name, 0) + abs(amount)
    stored = {
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
    others = {part.id for part in stored if id(part) not in counted}
    return {name: amount for name, amount in found.items() if name not in others}
