"""Variables that some lanes read without having given them a value; every expected lane is counted by hand from the kernel's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _by_hand import line_of

from gpulab.kernels import cuda, simulate


def in_one_branch(out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i % 64 < 40:
        v = i
    out[i] = v  # here


def as_an_amount(out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i % 64 < 40:
        v = i
    v += 1  # here
    out[i] = v


def in_a_loop_of_no_turns(out: np.ndarray) -> None:
    i = cuda.grid(1)
    for k in range(i % 64 - 23):  # none for threads 0 to 23 of a block
        v = k
    out[i] = v  # here


def the_counter_of_such_a_loop(out: np.ndarray) -> None:
    i = cuda.grid(1)
    for k in range(i % 64 - 23):
        out[i] = k
    out[i] = k  # here


def after_a_break(out: np.ndarray) -> None:
    i = cuda.grid(1)
    for k in range(3):
        if i % 64 >= 40:
            break
        v = k
    out[i] = v  # here


def before_the_first_turn_has_set_it(out: np.ndarray) -> None:
    i = cuda.grid(1)
    for k in range(2):
        if k == 1 or i % 64 < 40:
            v = i
        out[i] = v  # here


def in_one_of_two(out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i % 64 < 40:
        v, w = i, 1
    else:
        w = 2
    out[i] = w
    out[i] += v  # here


def only_declared(out: np.ndarray) -> None:
    i = cuda.grid(1)
    v: int
    if i % 64 < 40:
        v = i
    out[i] = v  # here


def _kept(i: int) -> int:
    if i % 64 < 40:
        v = i
    return v  # here


def in_a_device_function(out: np.ndarray) -> None:
    i = cuda.grid(1)
    out[i] = _kept(i)


@pytest.mark.parametrize(
    ("kernel", "name", "first"),
    [
        (in_one_branch, "v", 40), (as_an_amount, "v", 40), (in_a_loop_of_no_turns, "v", 0), (the_counter_of_such_a_loop, "k", 0),
        (after_a_break, "v", 40), (before_the_first_turn_has_set_it, "v", 40), (in_one_of_two, "v", 40), (only_declared, "v", 40),
    ],
)  # fmt: skip
def test_lanes_that_read_a_variable_without_a_value_are_found(kernel: Callable[..., Any], name: str, first: int) -> None:
    """Of each block's 64 threads 24 have given it none: the first of them is named, and those of both blocks are counted."""
    (found,) = simulate(kernel, 2, 64, np.zeros(128, np.int64)).findings
    assert (found.kind, found.array, found.index, found.count) == ("uninitialised", name, (), 48)
    assert found.line == line_of(kernel, "here")
    assert [(thread.block, thread.thread) for thread in found.threads] == [((0, 0, 0), (first, 0, 0))]
    assert found.message == f"{name} is read by threads that have given it no value: on a GPU it holds whatever was there"


def test_in_a_device_function_too() -> None:
    """The line is the function's own."""
    (found,) = simulate(in_a_device_function, 2, 64, np.zeros(128, np.int64)).findings
    assert (found.kind, found.array, found.count, found.line) == ("uninitialised", "v", 48, line_of(_kept, "here"))


def test_a_block_that_gave_none_is_named() -> None:
    """Blocks 0 and 1 have a value: the third is the first without."""

    def kernel(out: np.ndarray) -> None:
        if cuda.blockIdx.x < 2:
            v = 5
        out[cuda.grid(1)] = v

    (found,) = simulate(kernel, 4, 32, np.zeros(128, np.int64)).findings
    assert [(thread.block, thread.thread) for thread in found.threads] == [((2, 0, 0), (0, 0, 0))]
    assert found.count == 64


def guarded_twice(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = v + 1


def guarded_by_and(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
    if i < x.size and v > -1:
        out[i] = v + 1


def guarded_by_or(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
    if not (i >= x.size or v < 0):
        out[i] = v + 1


def guarded_by_a_conditional_expression(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
    w = v + 1 if i < x.size else 0
    if w > 0:
        out[i] = w


def guarded_by_a_chain(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
    if -1 < x.size - 1 - i < x.size <= v + x.size:
        out[i] = v + 1


def guarded_by_return(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
    else:
        return
    out[i] = v + 1


def set_in_each_branch(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i >= x.size:
        v = 0
    elif i % 2 == 0:
        v = x[i]
    else:
        v = x[i]
    if i < x.size:
        out[i] = v + 1


def set_in_the_first_turn(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    for k in range(3):
        if k == 0:
            v = 1
        if i < x.size and k == 2:
            out[i] = x[i] + v


def searched_for(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        low, high = 0, x.size
        while low < high:
            middle = (low + high) // 2
            if x[middle] < i:
                low = middle + 1
            else:
                high = middle
        if x.size:
            out[i] = low + 1 if middle >= 0 else 0


def sized_in_a_loop(x: np.ndarray, out: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.size:
        mine = cuda.local.array(8, np.int64)
    if i < x.size + 5:
        total = i - 31
        for k in range(40):  # few lanes run it one after the other, five of them without an array
            if i < x.size and k < 4:
                total += mine.size
        if i < x.size:
            out[i] = total


@pytest.mark.parametrize(
    "kernel",
    [
        guarded_twice, guarded_by_and, guarded_by_or, guarded_by_a_conditional_expression, guarded_by_a_chain, guarded_by_return,
        set_in_each_branch, set_in_the_first_turn, searched_for, sized_in_a_loop,
    ],
)  # fmt: skip
def test_a_variable_that_each_reading_lane_has_set_is_no_finding(kernel: Callable[..., Any]) -> None:
    """Some way through the text leads to the read without a value, and no lane goes that way; the result is x + 1."""
    x, out = np.arange(50), np.zeros(50, np.int64)
    assert simulate(kernel, 2, 32, x, out).findings == ()
    assert (out == np.arange(1, 51)).all()


def test_no_lane_with_a_value_is_refused() -> None:
    """Then nobody knows its type."""

    def kernel(out: np.ndarray) -> None:
        for _ in range(0):
            v = 1
        out[0] = v

    with pytest.raises(Exception, match="the variable v is used before it has a value"):
        simulate(kernel, 1, 32, np.zeros(1))


def test_a_variable_that_is_sure_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual kernel pays nothing: no read of it is looked at."""
    from gpulab.kernels._simulate import _frame

    def kernel(x: np.ndarray, out: np.ndarray) -> None:
        i = cuda.grid(1)
        total = 0
        for k in range(4):
            total += x[(i + k) % x.size]
        if i < x.size:
            v = total
            out[i] = v

    monkeypatch.setattr(_frame.Frame, "look_for", None)
    out = np.zeros(50, np.int64)
    simulate(kernel, 2, 32, np.ones(50, np.int64), out)
    assert (out == 4).all()
