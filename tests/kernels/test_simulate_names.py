"""What the names in a kernel mean: modules, their constants and types, Python's functions, and what is none of these."""

from __future__ import annotations

import builtins
import json
import math
from typing import Any

import numpy as np
import pytest

from gpulab.kernels._language import StandIn
from gpulab.kernels._simulate._names import Intrinsic, dtype_of, known_object


@pytest.mark.parametrize(
    ("found", "meaning"),
    [
        (math, Intrinsic("math")), (np, Intrinsic("np")), (math.sqrt, Intrinsic("math.sqrt")), (np.sqrt, Intrinsic("np.sqrt")),
        (abs, Intrinsic("abs")), (range, Intrinsic("range")), (len, Intrinsic("len")), (complex, Intrinsic("complex")),
        (int, np.dtype("int64")), (float, np.dtype("float64")), (bool, np.dtype("bool")), (StandIn(), Intrinsic("cuda")),
        (StandIn(".shared.array"), Intrinsic("cuda.shared.array")), (print, print), (str, str), (7, 7), ((1, 2), (1, 2)),
    ],
)  # fmt: skip
def test_what_an_object_means(found: Any, meaning: Any) -> None:
    """A module or function that is understood by its name, Python's own numbers by their types, and all else as it is."""
    assert known_object(found) == meaning


@pytest.mark.parametrize(
    ("owner", "attribute", "meaning"),
    [
        # Each module's own: NumPy has no tau, and math no newaxis.
        ("math", "tau", math.tau), ("math", "pi", math.pi), ("math", "e", math.e), ("math", "inf", math.inf), ("np", "pi", math.pi),
        ("np", "inf", math.inf), ("np", "newaxis", None), ("cuda", "pi", Intrinsic("cuda.pi")), ("math", "sqrt", Intrinsic("math.sqrt")),
        ("numba", "cuda", Intrinsic("cuda")), ("np", "cuda", Intrinsic("np.cuda")), ("numba", "types", Intrinsic("numba")),
        ("cuda", "types", Intrinsic("cuda.types")), ("numba", "float32", np.dtype("float32")), ("np", "float16", np.dtype("float16")),
        ("cuda", "int8", np.dtype("int8")), ("math", "float32", Intrinsic("math.float32")), ("numba", "intp", np.dtype("int64")),
        ("numba", "boolean", np.dtype("bool")), ("numba", "f8", np.dtype("float64")), ("numba", "u4", np.dtype("uint32")),
        ("numba", "void", Intrinsic("numba.void")), ("cuda.threadIdx", "x", Intrinsic("cuda.threadIdx.x")),
    ],
)  # fmt: skip
def test_what_an_attribute_means(owner: str, attribute: str, meaning: Any) -> None:
    """A constant of the module, an element type under any of its names, else the dotted name."""
    assert known_object(Intrinsic(owner), attribute) == meaning


@pytest.mark.parametrize(
    ("owner", "attribute", "words"),
    [
        (json, None, "the module json is not supported in a kernel"),
        (Intrinsic("np"), "tau", "tau"), (Intrinsic("math"), "newaxis", "newaxis"),
        (7, "real", "`.real` of a constant is not supported"), (np.arange(3), "sum", "`.sum` of a constant is not supported"),
        ((1, 2), "shape", "`.shape` of a constant"), (print, "__self__", "`.__self__` of print is not supported in a kernel"),
        (builtins, None, "the module builtins"), (object(), "size", "`.size` of object is not supported"),
    ],
)  # fmt: skip
def test_what_means_nothing_in_a_kernel(owner: Any, attribute: str | None, words: str) -> None:
    """Other modules, other attributes: no module is reached from a kernel."""
    with pytest.raises(AttributeError, match=words):
        known_object(owner, attribute)


def test_the_sizes_of_an_array_from_outside() -> None:
    """A table's shape, size and number of axes are known before the kernel runs."""
    table = np.zeros((2, 3))
    assert [known_object(table, name) for name in ("shape", "size", "ndim")] == [(2, 3), 6, 2]


def test_what_stands_for_an_element_type() -> None:
    """NumPy's types and their names, numba's and theirs; a number, a function and ``void`` stand for none."""
    found = {np.float32: "float32", np.dtype("int16"): "int16", "float64": "float64", "f4": "float32", "boolean": "bool", "intc": "int32"}
    assert {each: str(dtype_of(each)) for each in found} == found
    assert [dtype_of(each) for each in ("void", "nothing", 7, print, int, object)] == [None] * 6
    numba = pytest.importorskip("numba")
    assert dtype_of(numba.int8) == np.int8
    assert dtype_of(numba.void) is None


def test_numbas_own_objects_are_known_without_their_module() -> None:
    """What ``from numba.cuda import ...`` gives is known by what it is."""
    cuda = pytest.importorskip("numba.cuda")
    for name in ("threadIdx", "grid", "syncthreads", "shared", "atomic", "shfl_down_sync", "popc"):
        assert known_object(getattr(cuda, name)) == Intrinsic(f"cuda.{name}")
    assert known_object(cuda) == Intrinsic("cuda")
