import numpy as np

import gpulab as gl
from gpulab.kernels import cuda, float32


def transpose_naive(a, out):
    """Read along rows, and therefore write along columns."""
    x, y = cuda.grid(2)
    value = a[y, x]
    out[x, y] = value


a = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
out = np.zeros((64, 64), np.float32)
