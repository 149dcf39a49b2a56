"""Elements of tuples: each thread may take another one, where numba-cuda compiles that. Refusals are in test_simulate_refusals."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.kernels import cuda, float32, simulate

FACTORS = (2.0, -1.0, 0.5)
POSITION = 1


def of_numbers(x, out):
    i = cuda.grid(1)
    factor = (2, -1)
    out[i] = factor[i % 2] * x[i]


def from_outside(x, out):
    i = cuda.grid(1)
    out[i] = FACTORS[i % 3] * x[i]


def from_the_end(x, out):
    i = cuda.grid(1)
    out[i] = FACTORS[-1 - i % 3] * x[i]


def of_variables(x, out):
    i = cuda.grid(1)
    pair = (x[i], x[0])
    out[i] = pair[i % 2]


def of_tuples(x, out):
    i = cuda.grid(1)
    a, b = ((1, 2), (3, 4))[i % 2]
    out[i] = 10 * a + b


def in_some_threads(x, out):
    i = cuda.grid(1)
    if i < 3:
        out[i] = FACTORS[i]


def of_blocks(x, out):
    out[cuda.grid(1)] = FACTORS[cuda.blockIdx.x] * (x[0], x[1])[cuda.threadIdx.x % 2]


def by_a_constant(x, out):
    i = cuda.grid(1)
    first = 0
    also = first
    mixed = (2, float32(0.5), 1.5)
    out[i] = mixed[also] + mixed[POSITION] + mixed[-1]


def of_arrays(x, out):
    i = cuda.grid(1)
    for k in range(2):
        if k == 1:
            (x, out)[k][i] = (x, out)[0][i] + k


N, X = np.arange(96), np.arange(96.0) + 3
EXPECTED = {
    of_numbers: np.where(N % 2, -X, 2 * X),
    from_outside: np.array([2, -1, 0.5])[N % 3] * X,
    from_the_end: np.array([0.5, -1, 2])[N % 3] * X,
    of_variables: np.where(N % 2, X[0], X),
    of_tuples: np.where(N % 2, 34, 12),
    in_some_threads: np.where(N < 3, np.array([2, -1, 0.5])[np.minimum(N, 2)], 0),
    of_blocks: np.array([2, -1, 0.5])[N // 32] * X[N % 2],
    by_a_constant: np.full(96, 4.0),
    of_arrays: X + 1,
}


@pytest.mark.parametrize("kernel", EXPECTED, ids=lambda kernel: kernel.__name__)
def test_each_thread_takes_its_element(kernel):
    """By hand, with NumPy's own indexing."""
    x, out = X.copy(), np.zeros(96)
    s = simulate(kernel, 3, 32, x, out)
    np.testing.assert_array_equal(out, EXPECTED[kernel])
    assert not s.findings


@pytest.mark.parametrize("kernel", EXPECTED, ids=lambda kernel: kernel.__name__)
def test_numba_cuda_infers_a_type_for_each(kernel):
    """What runs here is compiled there: its inference, which needs no GPU, has an answer."""
    numba = pytest.importorskip("numba")
    compiler = pytest.importorskip("numba.cuda.compiler")
    double = numba.types.Array(numba.float64, 1, "C")
    compiler.compile_cuda(kernel, numba.void, (double, double), cc=(9, 0))
