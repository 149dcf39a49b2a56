"""An array counts as written however the kernel comes to write it: then races are found, and after an error it is as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpulab.errors import InputError, KernelError
from gpulab.kernels import cuda, simulate
from gpulab.kernels._launch_arguments import written_parameters

atomic = cuda.atomic


def put(out, i, value):
    out[i] = value


def pick(first, second):
    return first


store_it = put


def through_another_name(x, y):
    store_it(x, 0, cuda.grid(1))


def _of(op: Callable[..., None]) -> Callable[..., None]:
    def through_a_variable_around(x, y):
        op(x, 0, cuda.grid(1))

    return through_a_variable_around


def through_a_loop(x, y):
    for a in (y, x):
        a[0] = cuda.grid(1)


def through_a_loop_over_pairs(x, y):
    for a, _ in ((x, 1), (y, 2)):
        a[0] = cuda.grid(1)


def through_what_a_function_returns(x, y):
    pick(x, y)[0] = cuda.grid(1)


def through_a_tuple(x, y):
    (x, y)[0][0] = cuda.grid(1)


def given_what_a_function_returns(x, y):
    put(pick(x, y), 0, cuda.grid(1))


def by_an_atomic_of_another_name(x, y):
    atomic.add(x, 0, cuda.grid(1))
    y[1] = x[0]


KERNELS = [
    through_another_name, _of(put), through_a_loop, through_a_loop_over_pairs, through_what_a_function_returns, through_a_tuple,
    given_what_a_function_returns, by_an_atomic_of_another_name,
]  # fmt: skip
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)


@every_kernel
def test_a_race_is_found_however_the_array_is_written(kernel: Any) -> None:
    """Every thread writes one element, its own number, or reads it beside the atomics of others."""
    s = simulate(kernel, 1, 32, np.zeros(4), np.zeros(4))
    assert {("race", "x")} <= {(f.kind, f.array) for f in s.findings}


@every_kernel
def test_an_array_that_may_only_be_read_is_refused(kernel: Any) -> None:
    """By the sentence that names it, before anything runs."""
    x = np.zeros(4)
    x.flags.writeable = False
    with pytest.raises(InputError, match="x is read-only"):
        simulate(kernel, 1, 32, x, np.zeros(4))


@every_kernel
def test_a_launch_fetches_the_array(kernel: Any) -> None:
    """What a kernel writes is copied back from the GPU."""
    written = written_parameters(kernel)
    assert written is not None
    assert "x" in written


def _goes_on(op: Callable[..., None]) -> Callable[..., None]:
    def kernel(x):
        op(x, 0, 7)
        while True:
            pass

    return kernel


def test_after_an_error_the_array_is_as_before() -> None:
    """A kernel without end, which wrote through a variable of the function around it."""
    x = np.zeros(4)
    with pytest.raises(KernelError, match="still at work"):
        simulate(_goes_on(put), 1, 32, x, max_steps=100)
    np.testing.assert_array_equal(x, 0)


def _reads(x, y):
    for a in (x, y):
        put(y, cuda.grid(1), a[0])


def test_what_is_read_alone_may_be_read_only() -> None:
    """An array in a loop's tuple whose elements are read, and one that is given to a function for its elements."""
    x = np.full(4, 3.0)
    x.flags.writeable = False
    y = np.zeros(4)
    simulate(_reads, 1, 1, x, y)
    np.testing.assert_array_equal(y, [3, 0, 0, 0])
