import numpy as np

import gpulab as gl
from gpulab.kernels import cuda, float32


def block_sum(x, out):
    """Add up the block's elements: halve the number of terms until one is left."""
    terms = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    terms[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            terms[t] += terms[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = terms[0]


x = np.arange(256, dtype=np.float32)
out = np.zeros(2, np.float32)
