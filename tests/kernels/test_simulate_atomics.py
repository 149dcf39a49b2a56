"""Atomics against a plain loop over the lanes: what each finds and what is left, for few and for many lanes at one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.kernels import simulate
from gpulab.kernels._simulate import _atomics

# Each in Python's own numbers: what is there, what is given, what is there afterwards.
PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new, "sub": lambda old, new: old - new, "min": min, "max": max, "nanmin": min, "nanmax": max,
    "and_": lambda old, new: old & new, "or_": lambda old, new: old | new, "xor": lambda old, new: old ^ new,
    "exch": lambda old, new: new,
    # CUDA C++ Programming Guide, atomicInc and atomicDec.
    "inc": lambda old, limit: 0 if old >= limit else old + 1, "dec": lambda old, limit: limit if old == 0 or old > limit else old - 1,
}  # fmt: skip
LANES = 96


def _kernel(operation: str, takes_old: bool) -> Any:
    call = f"cuda.atomic.{operation}(data, where[i], given[i])"
    body = f"{'old[i] = ' if takes_old else ''}{call}"
    text = f"from gpulab.kernels import cuda\ndef kernel(data, where, given, old):\n    i = cuda.grid(1)\n    {body}\n"
    return function_of(text, filename=f"<atomic {operation} {takes_old}>")


@pytest.mark.parametrize("places", [1, 7, 40], ids=lambda n: f"{n} places")
@pytest.mark.parametrize("operation", sorted(PLAIN))
def test_lanes_take_their_turns_in_order(operation: str, places: int) -> None:
    """Each of 96 lanes finds what those before it left, and the last one's value stays; where nobody asks for the old one, too."""
    rng = np.random.default_rng(places)
    where, given = rng.integers(0, places, LANES), rng.integers(1, 9, LANES).astype(np.uint32)
    begin = rng.integers(100 if operation == "sub" else 0, 1000 if operation == "sub" else 12, places).astype(np.uint32)
    begin += np.uint32(500) if operation == "sub" else np.uint32(0)
    expected, seen = begin.tolist(), []
    for place, value in zip(where.tolist(), given.tolist(), strict=True):
        seen.append(expected[place])
        expected[place] = PLAIN[operation](expected[place], value)
    for takes_old in (True, False):
        data, old = begin.copy(), np.full(LANES, 777, np.uint32)
        s = simulate(_kernel(operation, takes_old), 3, 32, data, where, given, old)
        assert s.findings == ()
        assert data.tolist() == expected
        assert old.tolist() == (seen if takes_old else [777] * LANES)


@pytest.mark.parametrize("lanes", [1, 8, 9, 32])
def test_a_sum_of_floats_is_rounded_lane_after_lane(lanes: int) -> None:
    """One after the other in float32: after 2^24 each 1 is lost, which their sum is not; a 3 is rounded to the even 4."""
    data, old = np.array([2.0**24, 0.5], np.float32), np.zeros(lanes, np.float32)
    given = np.ones(lanes, np.float32)
    given[-1] = 3
    simulate(_kernel("add", True), 1, lanes, data, np.zeros(lanes, np.int64), given, old)
    assert data.tolist() == [2.0**24 + 4, 0.5]
    assert old.tolist() == [2.0**24] * lanes


@pytest.mark.parametrize(("operation", "found"), [("min", [3.0, 2.0, 2.0]), ("max", [3.0, 3.0, 3.0])])
def test_a_nan_is_not_taken_by_min_and_max(operation: str, found: list[float]) -> None:
    """By numba-cuda's own way: lanes with 2, nan and 7 at a place with 3, each of which finds what those before it left."""
    nan = float("nan")
    data, old = np.array([3.0]), np.zeros(3)
    simulate(_kernel(operation, True), 1, 3, data, np.zeros(3, np.int64), np.array([2.0, nan, 7.0]), old)
    assert old.tolist() == found
    assert data.tolist() == ([2.0] if operation == "min" else [7.0])
    stays = np.array([nan])
    simulate(_kernel(operation, False), 1, 1, stays, np.zeros(1, np.int64), np.array([1.0]), old)
    assert np.isnan(stays[0])


SWAPS = """from gpulab.kernels import cuda
def kernel(data, given, old):
    i = cuda.grid(1)
    old[i] = cuda.atomic.cas(data, 1, given[i], i + 10)
    old[i + 4] = cuda.atomic.compare_and_swap(data, given[i], i + 20)
"""


def test_compare_and_swap_by_hand() -> None:
    """At place 1 lanes expect 5, 10, 5 and 11 of 5, and put 10, 11, 12 and 13; the older form works at place 0: 6 is not there, 10 is."""
    data, old = np.array([10, 5], np.int64), np.zeros(8, np.int64)
    simulate(function_of(SWAPS, filename="<swaps>"), 1, 4, data, np.array([5, 10, 5, 11]), old)
    # Place 1: 5 -> 10 -> 11, then 5 is not there, then 11 -> 13. Place 0: 10 is not 5, 10 -> 21, then neither 5 nor 11 is there.
    assert old.tolist() == [5, 10, 11, 11, 10, 10, 21, 21]
    assert data.tolist() == [21, 13]


def test_the_types_of_each_operation() -> None:
    """As numba-cuda declares them: bits and exchanges of whole numbers, counters of unsigned ones, the others of floats as well."""
    whole = {"int32", "uint32", "int64", "uint64"}
    for operation in PLAIN:
        bits = operation in ("and_", "or_", "xor", "exch")
        counters = operation in ("inc", "dec")
        assert set(_atomics.types_of(operation)) == (
            {"uint32", "uint64"} if counters else whole if bits else whole | {"float32", "float64"}
        )
    assert set(_atomics.types_of("cas")) == set(_atomics.types_of("compare_and_swap")) == whole
