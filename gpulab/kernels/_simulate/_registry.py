"""What a call in a kernel's text is to those who translate it, and the table in which they are
found by name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels._simulate._geometry import Mask
from gpulab.kernels._simulate._machine import Machine
from gpulab.units import plural

if TYPE_CHECKING:
    from gpulab.kernels._simulate._expressions import Expression, Translator
    from gpulab.kernels._simulate._frame import Frame


@dataclass(eq=False)
class Call:
    """A call in the kernel's text."""

    node: ast.Call
    translator: Translator
    name: str
    unused: bool
    assigned_to: str | None

    @property
    def line(self) -> int:
        """Return its line."""
        return self.node.lineno

    def fail(self, message: str) -> KernelError:
        """Return the error that names its line."""
        return self.translator.fail(message, self.node)

    def arguments(
        self, least: int, most: int | None = None, names: tuple[str, ...] = ()
    ) -> list[ast.expr]:
        """Return the argument nodes, those given by name in their place."""
        most = least if most is None else most
        found = list(self.node.args)
        by_name = {k.arg: k.value for k in self.node.keywords}
        for name in names[len(found) :]:
            if name in by_name:
                found.append(by_name.pop(name))
        if (
            by_name
            or not least <= len(found) <= most
            or any(isinstance(a, ast.Starred) for a in found)
        ):
            wanted = plural(least, "argument") if least == most else f"{least} to {most} arguments"
            raise self.fail(f"{self.name} takes {wanted}")
        return found

    def numbers(
        self, least: int, most: int | None = None, names: tuple[str, ...] = ()
    ) -> list[Expression]:
        """Return the arguments as closures that give numbers."""
        return [self.numeric(node) for node in self.arguments(least, most, names)]

    def numeric(self, node: ast.expr) -> Expression:
        """Return an argument as a closure that gives a number."""
        value = self.translator.expression(node)

        def run(frame: Frame, mask: Mask) -> Any:
            found = value(frame, mask)
            if not isinstance(found, (np.ndarray, np.generic)):
                raise self.fail(f"{self.name} takes numbers")
            return found

        return run


Maker = Callable[[Call], "Expression"]
FUNCTIONS: dict[str, Maker] = {}
INTRINSICS: dict[str, Callable[[Machine], Any]] = {}


def makes(*names: str) -> Callable[[Maker], Maker]:
    """Return a decorator that registers what translates the calls of these names."""

    def register(maker: Maker) -> Maker:
        for name in names:
            FUNCTIONS[name] = maker
        return maker

    return register
