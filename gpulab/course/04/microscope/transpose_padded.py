import numpy as np

import gpulab as gl
from gpulab.kernels import cuda, float32


def transpose_padded(a, out):
    """Pad each row of the tile by one column: a column then lies in different banks."""
    tile = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = 32 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    tile[ty, tx] = a[row + ty, column + tx]
    cuda.syncthreads()
    out[column + ty, row + tx] = tile[tx, ty]


a = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
out = np.zeros((64, 64), np.float32)
