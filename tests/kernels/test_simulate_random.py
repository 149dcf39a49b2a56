"""The simulator on kernels that hypothesis made: whatever the control flow, each thread gets what it gets alone."""

from __future__ import annotations

import numpy as np
import per_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_kernels import function_of, kernel_texts

from gpulab.kernels import simulate

# At least 300; the soak profile asks for more.
_EXAMPLES = max(300, settings.default.max_examples if settings.default else 0)


@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])
@given(
    text=kernel_texts(), grid=st.integers(1, 3), block=st.sampled_from([1, 7, 33, 70]), seed=st.integers(0, 2**16),
    dtype=st.sampled_from(["int64", "int32", "int16", "int8"]),
)  # fmt: skip
def test_random_control_flow_gives_each_thread_what_it_gets_alone(text: str, grid: int, block: int, seed: int, dtype: str) -> None:
    """Results are equal, and nothing is found, since each thread has slots of its own."""
    kernel = function_of(text)
    n = grid * block
    rng = np.random.default_rng(seed)
    x = rng.integers(-100, 100, n).astype(dtype)
    start = rng.integers(0, 50, (n, 4))
    expected_out, expected_real = start.copy(), np.zeros(n)
    per_thread.run(kernel, grid, block, x, expected_out, expected_real)
    out, real = start.copy(), np.zeros(n)
    simulation = simulate(kernel, grid, block, x, out, real)
    np.testing.assert_array_equal(out, expected_out)
    np.testing.assert_array_equal(real, expected_real)
    assert simulation.findings == ()
