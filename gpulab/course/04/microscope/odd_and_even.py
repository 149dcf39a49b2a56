import numpy as np

import gpulab as gl
from gpulab.kernels import cuda, float32


def odd_and_even(x, out):
    """Make the lanes of each warp diverge."""
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = 2 * x[i]
    else:
        out[i] = x[i] + 1


x = np.arange(128, dtype=np.float32)
out = np.zeros(128, np.float32)
