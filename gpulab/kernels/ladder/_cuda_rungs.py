"""The last rungs, in CUDA C++: loads of four floats, tiles for warps, Tensor Cores.

All take C = A B for square float32 matrices of multiples of 128, and have no guards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gpulab.errors import InputError, shown
from gpulab.kernels.ladder._rungs import checked_size

_REGISTERS = r"""
// The work of the Python rung registers-2d, loop by loop; only the language and its compiler are new.
extern "C" __global__ void __launch_bounds__(256) matmul_registers_2d(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[128][8];
    __shared__ float tile_b[8][128];
    int t = threadIdx.x, ty = t / 16, tx = t % 16, row = 128 * blockIdx.y, column = 128 * blockIdx.x;
    float totals[8][8] = {};
    for (int first = 0; first < n; first += 8) {
        for (int k = 0; k < 128; k += 32) tile_a[k + t / 8][t % 8] = a[(size_t)(row + k + t / 8) * n + first + t % 8];
        for (int k = 0; k < 8; k += 2) tile_b[k + t / 128][t % 128] = b[(size_t)(first + k + t / 128) * n + column + t % 128];
        __syncthreads();
        for (int k = 0; k < 8; k++) {
            float left[8], right[8];
            for (int m = 0; m < 8; m++) {
                left[m] = tile_a[ty + 16 * m][k];
                right[m] = tile_b[k][tx + 16 * m];
            }
            for (int m = 0; m < 8; m++)
                for (int j = 0; j < 8; j++) totals[m][j] += left[m] * right[j];
        }
        __syncthreads();
    }
    for (int m = 0; m < 8; m++)
        for (int j = 0; j < 8; j++) c[(size_t)(row + ty + 16 * m) * n + column + tx + 16 * j] = totals[m][j];
}
"""

_VECTORISED = r"""
// A block takes 128 x 128 of C, each of its 256 threads 8 x 8 of them; loads and stores move four floats at once.
extern "C" __global__ void __launch_bounds__(256) matmul_vectorised(const float* a, const float* b, float* c, int n) {
    __shared__ __align__(16) float tile_a[8][128];  // turned, so that neighbors in a column lie side by side
    __shared__ __align__(16) float tile_b[8][128];
    int t = threadIdx.x, ty = t / 16, tx = t % 16;
    a += (size_t)blockIdx.y * 128 * n;
    b += blockIdx.x * 128;
    c += (size_t)blockIdx.y * 128 * n + blockIdx.x * 128;
    float totals[8][8] = {};
    for (int first = 0; first < n; first += 8) {
        float4 four = *(const float4*)&a[(size_t)(t / 2) * n + first + 4 * (t % 2)];
        tile_a[4 * (t % 2)][t / 2] = four.x;
        tile_a[4 * (t % 2) + 1][t / 2] = four.y;
        tile_a[4 * (t % 2) + 2][t / 2] = four.z;
        tile_a[4 * (t % 2) + 3][t / 2] = four.w;
        *(float4*)&tile_b[t / 32][4 * (t % 32)] = *(const float4*)&b[(size_t)(first + t / 32) * n + 4 * (t % 32)];
        __syncthreads();
        for (int k = 0; k < 8; k++) {
            float left[8], right[8];
            for (int half = 0; half < 2; half++) {
                float4 l = *(float4*)&tile_a[k][64 * half + 4 * ty], r = *(float4*)&tile_b[k][64 * half + 4 * tx];
                left[4 * half] = l.x; left[4 * half + 1] = l.y; left[4 * half + 2] = l.z; left[4 * half + 3] = l.w;
                right[4 * half] = r.x; right[4 * half + 1] = r.y; right[4 * half + 2] = r.z; right[4 * half + 3] = r.w;
            }
            for (int m = 0; m < 8; m++)
                for (int j = 0; j < 8; j++) totals[m][j] += left[m] * right[j];
        }
        __syncthreads();
    }
    for (int m = 0; m < 8; m++) {
        int row = 64 * (m / 4) + 4 * ty + m % 4;
        for (int half = 0; half < 2; half++) {
            float4 four = {totals[m][4 * half], totals[m][4 * half + 1], totals[m][4 * half + 2], totals[m][4 * half + 3]};
            *(float4*)&c[(size_t)row * n + 64 * half + 4 * tx] = four;
        }
    }
}
"""

_WARP_TILED = r"""
// The same 128 x 128, but each warp takes 64 x 32 of it, so that its lanes ask shared memory for fewer different words.
#ifndef DEPTH
#define DEPTH 16  // columns of A and rows of B in a tile: 8, 16 or 32; the best is found by trying
#endif
extern "C" __global__ void __launch_bounds__(256) matmul_warp_tiled(const float* a, const float* b, float* c, int n) {
    __shared__ __align__(16) float tile_a[DEPTH][128];
    __shared__ __align__(16) float tile_b[DEPTH][128];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    int top = 64 * (warp / 4) + 4 * (lane / 4), left_edge = 32 * (warp % 4) + 4 * (lane % 4);
    a += (size_t)blockIdx.y * 128 * n;
    b += blockIdx.x * 128;
    c += (size_t)blockIdx.y * 128 * n + blockIdx.x * 128;
    float totals[8][8] = {};
    for (int first = 0; first < n; first += DEPTH) {
        for (int k = t; k < 32 * DEPTH; k += 256) {  // 128 x DEPTH floats, four at once
            int row = k / (DEPTH / 4), column = 4 * (k % (DEPTH / 4));
            float4 four = *(const float4*)&a[(size_t)row * n + first + column];
            tile_a[column][row] = four.x;
            tile_a[column + 1][row] = four.y;
            tile_a[column + 2][row] = four.z;
            tile_a[column + 3][row] = four.w;
            *(float4*)&tile_b[k / 32][4 * (k % 32)] = *(const float4*)&b[(size_t)(first + k / 32) * n + 4 * (k % 32)];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            float left[8], right[8];
            for (int half = 0; half < 2; half++) {
                float4 l = *(float4*)&tile_a[k][top + 32 * half], r = *(float4*)&tile_b[k][left_edge + 16 * half];
                left[4 * half] = l.x; left[4 * half + 1] = l.y; left[4 * half + 2] = l.z; left[4 * half + 3] = l.w;
                right[4 * half] = r.x; right[4 * half + 1] = r.y; right[4 * half + 2] = r.z; right[4 * half + 3] = r.w;
            }
            for (int m = 0; m < 8; m++)
                for (int j = 0; j < 8; j++) totals[m][j] += left[m] * right[j];
        }
        __syncthreads();
    }
    for (int m = 0; m < 8; m++) {
        int row = top + 32 * (m / 4) + m % 4;
        for (int half = 0; half < 2; half++) {
            float4 four = {totals[m][4 * half], totals[m][4 * half + 1], totals[m][4 * half + 2], totals[m][4 * half + 3]};
            *(float4*)&c[(size_t)row * n + left_edge + 16 * half] = four;
        }
    }
}
"""

_TENSOR = r"""
// Tensor Cores: a warp multiplies 16 x 8 by 8 x 16 in one instruction or two. Inputs are rounded to TF32, which keeps 10 bits.
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void __launch_bounds__(256) matmul_tensor(const float* a, const float* b, float* c, int n) {
    __shared__ __align__(32) float tile_a[128][24];  // 16 columns; the spare ones keep rows apart in the banks
    __shared__ __align__(32) float tile_b[16][136];
    int t = threadIdx.x, warp = t / 32, top = 64 * (warp / 4), left_edge = 32 * (warp % 4);
    a += (size_t)blockIdx.y * 128 * n;
    b += blockIdx.x * 128;
    c += (size_t)blockIdx.y * 128 * n + blockIdx.x * 128;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> totals[4][2];
    for (int m = 0; m < 4; m++)
        for (int j = 0; j < 2; j++) wmma::fill_fragment(totals[m][j], 0.0f);
    for (int first = 0; first < n; first += 16) {
        for (int k = t; k < 512; k += 256) {
            float4 left = *(const float4*)&a[(size_t)(k / 4) * n + first + 4 * (k % 4)];
            float4 right = *(const float4*)&b[(size_t)(first + k / 32) * n + 4 * (k % 32)];
            *(float4*)&tile_a[k / 4][4 * (k % 4)] = left;
            *(float4*)&tile_b[k / 32][4 * (k % 32)] = right;
        }
        __syncthreads();
        for (int k = 0; k < 16; k += 8) {
            wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> left;
            wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> right[2];
            for (int j = 0; j < 2; j++) {
                wmma::load_matrix_sync(right[j], &tile_b[k][left_edge + 16 * j], 136);
                for (int e = 0; e < right[j].num_elements; e++) right[j].x[e] = wmma::__float_to_tf32(right[j].x[e]);
            }
            for (int m = 0; m < 4; m++) {
                wmma::load_matrix_sync(left, &tile_a[top + 16 * m][k], 24);
                for (int e = 0; e < left.num_elements; e++) left.x[e] = wmma::__float_to_tf32(left.x[e]);
                for (int j = 0; j < 2; j++) wmma::mma_sync(totals[m][j], left, right[j], totals[m][j]);
            }
        }
        __syncthreads();
    }
    for (int m = 0; m < 4; m++)
        for (int j = 0; j < 2; j++)
            wmma::store_matrix_sync(&c[(size_t)(top + 16 * m) * n + left_edge + 16 * j], totals[m][j], n, wmma::mem_row_major);
}
"""


@dataclass(frozen=True)
class CudaRung:
    """A rung in CUDA C++; like ``Rung``, but without the microscope.

    Attributes
    ----------
    name, family, summary : str
    source, kernel : str
        The text, and the kernel's name in it.
    options : tuple of tuple of str
        Compiler options worth trying against each other; the first is the default.
    tolerance : float
        Of the result against float64, relative to its largest value.
    """

    name: str
    family: str
    summary: str
    source: str = field(repr=False)
    kernel: str
    options: tuple[tuple[str, ...], ...] = ((),)
    tolerance: float = 1e-5
    sizes: tuple[int, ...] = (128, 1024, 4096)
    multiple: ClassVar[int] = 128

    def launch(self, n: int) -> tuple[tuple[int, int], int]:
        """Return grid and block for size n.

        Raises
        ------
        InputError
            If n is not a multiple of 128.
        """
        tiles = checked_size(self, n) // self.multiple
        return (tiles, tiles), 256

    def arguments(self, n: int, seed: int = 0) -> tuple[Any, ...]:
        """Return fresh arguments for size n, the same for the same seed."""
        size = checked_size(self, n)
        rng = np.random.default_rng(seed)
        return (
            rng.random((size, size), dtype=np.float32),
            rng.random((size, size), dtype=np.float32),
            np.zeros((size, size), np.float32),
            np.int32(size),
        )

    def flops(self, n: int) -> float:
        """Return the operations of size n."""
        return 2.0 * int(n) ** 3

    def nbytes(self, n: int) -> float:
        """Return the bytes that must be read and written at least once."""
        return 12.0 * n * n


# TF32 keeps 10 bits: each factor may be off by 2^-11, and the products' errors partly cancel in a
# sum.
CUDA_RUNGS = (
    CudaRung(
        "matmul-registers-2d-cuda",
        "matmul",
        "CUDA C++: 64 results for each thread",
        _REGISTERS,
        "matmul_registers_2d",
    ),
    CudaRung(
        "matmul-vectorised",
        "matmul",
        "CUDA C++: four floats at once",
        _VECTORISED,
        "matmul_vectorised",
    ),
    CudaRung(
        "matmul-warp-tiled",
        "matmul",
        "CUDA C++: a tile for each warp",
        _WARP_TILED,
        "matmul_warp_tiled",
        ((), ("-DDEPTH=8",), ("-DDEPTH=32",)),
    ),
    CudaRung(
        "matmul-tensor",
        "matmul",
        "CUDA C++: Tensor Cores, TF32",
        _TENSOR,
        "matmul_tensor",
        tolerance=1e-3,
    ),
)


def cuda_rung(name: str) -> CudaRung:
    """Return the CUDA C++ rung of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    for each in CUDA_RUNGS:
        if each.name == name:
            return each
    raise InputError(
        f"ladder: {shown(name)} is not a rung in CUDA C++; expected one of "
        f"{', '.join(r.name for r in CUDA_RUNGS)}."
    )
