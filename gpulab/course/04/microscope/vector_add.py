import numpy as np

import gpulab as gl
from gpulab.kernels import cuda, float32


def vector_add(x, y, out):
    """Add two vectors; the last warp has more lanes than elements."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


x = np.arange(100, dtype=np.float32)
y = np.ones(100, np.float32)
out = np.zeros(100, np.float32)
