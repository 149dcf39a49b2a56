import numpy as np

import gpulab as gl
from gpulab.kernels import cuda, float32


def strided_copy(x, out):
    """Read every eighth element, and write one after the other."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[8 * i]


x = np.arange(1024, dtype=np.float32)
out = np.zeros(128, np.float32)
