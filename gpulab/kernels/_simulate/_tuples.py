"""An element of a tuple: any lane may ask for another one where all are of one type, as numba has
it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._geometry import Mask
from gpulab.kernels._simulate._source import Source
from gpulab.units import plural

Fail = Callable[[str], KernelError]


def item_of(
    items: tuple[Any, ...], places: tuple[Any, ...], mask: Mask, known: bool, fail: Fail
) -> Any:
    """Return the element that each lane asks for; ``known`` where the index is a constant, which
    may have elements of any types.

    Raises
    ------
    KernelError
        If there is no such element, or the tuple has several types, of which a compiler could not
        tell the one that comes out.
    """
    index = places[0]
    if (
        len(places) != 1
        or not isinstance(index, (np.ndarray, np.generic))
        or index.dtype.kind not in "iu"
    ):
        raise fail("a tuple takes one index, an integer")
    wanted = np.unique(mask.selected(index) if np.ndim(index) else index).tolist()
    if not -len(items) <= wanted[0] <= wanted[-1] < len(items):
        raise fail(f"the tuple has {plural(len(items), 'element')}; expected an index below that")
    if not known and len({type_of(item) for item in items}) > 1:
        raise fail(
            "the elements of the tuple are of several types, and its index is not a constant; "
            "expected one type, or a constant index"
        )
    found = items[wanted[0]]
    for place in wanted[1:]:
        found = _either(index == place, items[place], found, fail)
    return found


def _either(here: Any, item: Any, other: Any, fail: Fail) -> Any:
    if isinstance(item, tuple):
        return tuple(_either(here, *parts, fail) for parts in zip(item, other, strict=True))
    if not isinstance(item, (np.ndarray, np.generic)):
        raise fail(
            "threads take different arrays from the tuple; expected the same one in all threads. "
            "Use an index that differs instead"
        )
    return _types.select(here, item, other)


def type_of(item: Any) -> Any:
    """Return what numba would tell the type of an element by."""
    if isinstance(item, tuple):
        return tuple(type_of(part) for part in item)
    return (item.dtype, item.ndim) if not isinstance(item, (np.ndarray, np.generic)) else item.dtype


def is_constant(node: ast.expr, source: Source, number: Callable[[ast.expr], bool]) -> bool:
    """Return whether numba knows an index when it compiles: a number, or a variable that is given
    one number and nothing else.
    """
    if number(node):
        return True
    given = given_once(node, source)
    return given is not None and is_constant(given, source, number)


def given_once(node: ast.expr, source: Source) -> ast.expr | None:
    """Return the only value that a variable is given, or None."""
    if not isinstance(node, ast.Name) or node.id in source.parameters:
        return None
    stores = [
        part
        for part in source.nodes
        if isinstance(part, ast.Name) and part.id == node.id and isinstance(part.ctx, ast.Store)
    ]
    given = [
        part for part in source.nodes if isinstance(part, ast.Assign) and part.targets[0] in stores
    ]
    return given[0].value if len(stores) == len(given) == 1 else None
