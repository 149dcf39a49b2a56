"""What only some threads do, while the others hold anything: ranges, local arrays, slices, and the rest of a chain of comparisons."""

from __future__ import annotations

import numpy as np

from gpulab.kernels import cuda, simulate


def sieve(crossed):
    p = cuda.grid(1)
    if p >= 2:
        for k in range(p * p, crossed.size, p):
            crossed[k] = 1


def test_a_step_of_zero_in_threads_that_do_not_loop_is_no_fault():
    """Thread 0 never comes to its range; what stays is the primes below 48, as any table has them."""
    crossed = np.zeros(48, np.int32)
    s = simulate(sieve, 1, 32, crossed)
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]
    assert np.flatnonzero(crossed[2:] == 0).tolist() == [p - 2 for p in primes]
    assert not s.findings
