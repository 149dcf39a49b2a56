"""Python's operators on lane values, and the words for operands that they do not take."""

from __future__ import annotations

import ast
import dis
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._memory import View

ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: _types.arithmetic(np.add),
    ast.Sub: _types.arithmetic(np.subtract),
    ast.Mult: _types.arithmetic(np.multiply),
    ast.Div: _types.divide,
    ast.FloorDiv: _types.arithmetic(np.floor_divide),
    ast.Mod: _types.arithmetic(np.remainder),
    ast.Pow: _types.power,
    ast.BitAnd: _types.bitwise(np.bitwise_and),
    ast.BitOr: _types.bitwise(np.bitwise_or),
    ast.BitXor: _types.bitwise(np.bitwise_xor),
    ast.LShift: _types.shift(np.left_shift),
    ast.RShift: _types.shift(np.right_shift),
}
COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: _types.compare(np.less),
    ast.LtE: _types.compare(np.less_equal),
    ast.Gt: _types.compare(np.greater),
    ast.GtE: _types.compare(np.greater_equal),
    ast.Eq: _types.compare(np.equal),
    ast.NotEq: _types.compare(np.not_equal),
}


def _widened(value: Any) -> Any:
    return (
        value
        if value.dtype.kind in "fc"
        else _types.cast(value, _types.arithmetic_type(value.dtype, value.dtype))
    )


UNARY: dict[type, Callable[[Any], Any]] = {
    # Of narrow integers in their own width, and widened then.
    ast.USub: lambda value: (
        _widened(np.negative(value)) if value.dtype.kind != "b" else np.negative(_widened(value))
    ),
    ast.UAdd: _widened,
    ast.Not: lambda value: ~_types.truth(value),
    ast.Invert: lambda value: (
        np.invert(value) if value.dtype.kind == "b" else _widened(np.invert(value))
    ),
}


def power_of_constant(base: Any, exponent: int) -> Any:
    """Return a power with an exponent that is written as a number."""
    dtype = base.dtype if base.dtype.kind in "fc" else _types.INT
    return np.power(_types.cast(base, dtype), dtype.type(exponent))


def written_number(node: ast.expr) -> Any:
    """Return the number that Python makes of numbers and operators alone, such as ``10 ** -6``, or
    None.

    Python does so when it compiles the function, with numbers of any size, so that numba sees the
    result alone, in its own type.
    """
    parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    if any(type(number) not in (int, float, complex) for number in numbers):
        return None
    if not all(isinstance(part, (ast.Constant, ast.BinOp, ast.UnaryOp)) for part in parts):
        return None
    found = [
        step
        for step in dis.get_instructions(compile(ast.Expression(node), "<number>", "eval"))
        if step.opname not in _FRAME
    ]
    # more steps where it is left to the program: 1 // 0, 2 ** 1000
    return found[0].argval if len(found) == 1 else None


_FRAME = ("RESUME", "RETURN_VALUE")  # what stands around a value


def not_numbers(*values: Any) -> str:
    """Return what is wrong with operands that an operator does not take."""
    kinds = [kind_of_value(value) for value in values]
    return (
        f"the operation does not take {' and '.join(kinds)}; expected numbers that it is "
        "defined for"
    )


def kind_of_value(value: Any) -> str:
    """Return what a value is, as a message says it."""
    if isinstance(value, View):
        return "an array"
    if isinstance(value, tuple):
        return "a tuple"
    return "nothing" if value is None else str(getattr(value, "dtype", type(value).__name__))


_PLAIN_PARTS = (
    ast.Name,
    ast.Constant,
    ast.Attribute,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
)


def is_plain(node: ast.expr) -> bool:
    """Return whether an expression only computes: no access, no call, nothing that depends on which
    lanes are here.
    """
    parts = [part for part in ast.walk(node) if isinstance(part, (ast.expr, ast.Pow))]
    return all(isinstance(part, _PLAIN_PARTS) for part in parts)
