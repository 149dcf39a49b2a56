"""The kernels of the last rungs, in CUDA C++: loads of four floats, tiles for warps, copies in flight
while the block multiplies, Tensor Cores.

All take C = A B for square matrices of multiples of 128 or 256, and have no guards. C is float32;
A and B are float32 too, but for the last rung, which takes bfloat16.
"""

REGISTERS = r"""
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

VECTORIZED = r"""
// A block takes 128 x 128 of C, each of its 256 threads 8 x 8 of them; loads and stores move four floats at once.
extern "C" __global__ void __launch_bounds__(256) matmul_vectorized(const float* a, const float* b, float* c, int n) {
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

WARP_TILED = r"""
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

DOUBLE_BUFFERED = r"""
// While a block multiplies one tile, cp.async brings the next ones from global to shared memory, past the registers.
// A block is 2 x 4 warps, each with 64 x 64 of its 128 x 256. A thread has 8 x 16: 128 products need 24 floats of shared memory.
#include <cuda_pipeline_primitives.h>
#define DEPTH 8  // columns of A and rows of B in a tile
#define TILES 3  // in shared memory: one in use, the others on their way
extern "C" __global__ void __launch_bounds__(256, 1) matmul_double_buffered(const float* a, const float* b, float* c, int n) {
    __shared__ __align__(16) float tile_a[TILES][DEPTH][132];  // turned; 4 spare floats keep its rows apart in the banks
    __shared__ __align__(16) float tile_b[TILES][DEPTH][256];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    // Lane l shares its floats of A with l + 1 and its floats of B with l + 2, so that one request serves more lanes.
    int top = 64 * (warp / 4) + 4 * (lane / 8 * 2 + lane / 2 % 2);
    int left_edge = 64 * (warp % 4) + 4 * (lane / 4 % 2 * 2 + lane % 2);
    a += (size_t)(blockIdx.y * 128 + t / 8) * n + t % 8;  // where this thread's part of a tile begins
    b += (size_t)(t / 64) * n + blockIdx.x * 256 + 4 * (t % 64);
    c += (size_t)(blockIdx.y * 128 + top) * n + blockIdx.x * 256 + left_edge;

    auto fetch = [&](int slot) {  // start the copies of the next tile, and go on
#pragma unroll
        for (int m = 0; m < 128; m += 32)  // one float at once, which turns the tile
            __pipeline_memcpy_async(&tile_a[slot][t % 8][t / 8 + m], &a[(size_t)m * n], 4);
#pragma unroll
        for (int k = 0; k < DEPTH; k += 4)
            __pipeline_memcpy_async(&tile_b[slot][t / 64 + k][4 * (t % 64)], &b[(size_t)k * n], 16);
        a += DEPTH;
        b += (size_t)DEPTH * n;
    };
    float left[2][8], right[2][16];  // of step k, and of the next, whose loads are on their way meanwhile
    auto load = [&](int slot, int k) {
#pragma unroll
        for (int m = 0; m < 8; m += 4) *(float4*)&left[k % 2][m] = *(float4*)&tile_a[slot][k][top + 8 * m];
#pragma unroll
        for (int j = 0; j < 16; j += 4) *(float4*)&right[k % 2][j] = *(float4*)&tile_b[slot][k][left_edge + 4 * j];
    };

#pragma unroll
    for (int slot = 0; slot < TILES - 1; slot++) {
        fetch(slot);
        __pipeline_commit();
    }
    __pipeline_wait_prior(TILES - 2);
    __syncthreads();
    load(0, 0);
    float totals[8][16] = {};
    int now = 0, unused = TILES - 1;  // slots
    for (int first = 0; first < n; first += DEPTH) {
        if (first + (TILES - 1) * DEPTH < n) fetch(unused);
        __pipeline_commit();  // also an empty group, so that the waits count right
        unused = now;
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (k == DEPTH - 1) {
                now = now + 1 == TILES ? 0 : now + 1;
                __pipeline_wait_prior(TILES - 2);  // this thread's part of the next tile is there,
                __syncthreads();                   // and now everyone's, and no one reads the old tile any more
            }
            load(now, (k + 1) % DEPTH);
#pragma unroll
            for (int j = 0; j < 16; j++)
#pragma unroll
                for (int i = 0; i < 8; i++) {  // there and back, so that one factor stays at each turn
                    int m = j % 2 ? 7 - i : i;
                    totals[m][j] += left[k % 2][m] * right[k % 2][j];
                }
        }
    }
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
        for (int j = 0; j < 16; j += 4)
            *(float4*)&c[(size_t)(32 * (m / 4) + m % 4) * n + 4 * j] = *(float4*)&totals[m][j];
}
"""

TENSOR_BF16 = r"""
// Tensor Cores on bfloat16: a warp multiplies 16 x 16 of A by 16 x 8 of B in one instruction, and adds in float32.
// (The library's kernels for an H100 use wgmma, which four warps issue together and which reads shared memory itself.)
#include <cuda_bf16.h>
#include <cuda_pipeline_primitives.h>
#define DEPTH 32  // columns of A and rows of B in a tile
#define TILES 4   // in shared memory: one in use, the others on their way
typedef __nv_bfloat16 bf16;

// Four 8 x 8 matrices from shared memory into the registers of a warp. Lane l has the address of row l % 8 of matrix l / 8.
__device__ void load(unsigned (&to)[4], const bf16* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(from)));
}
__device__ void load_turned(unsigned (&to)[4], const bf16* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(from)));
}
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128, 1) matmul_tensor_bf16(const bf16* a, const bf16* b, float* c, int n) {
    extern __shared__ __align__(16) bf16 tiles[];  // 74 KiB, which the launch has to ask for
    auto tile_a = (bf16(*)[128][DEPTH + 8])tiles;  // 8 spare numbers keep rows apart in the banks
    auto tile_b = (bf16(*)[DEPTH][136])(tiles + TILES * 128 * (DEPTH + 8));
    int t = threadIdx.x, warp = t / 32, lane = t % 32, top = 64 * (warp / 2), left_edge = 64 * (warp % 2);
    a += (size_t)(blockIdx.y * 128 + t / 4) * n + 8 * (t % 4);  // where this thread's part of a tile begins
    b += (size_t)(t / 16) * n + blockIdx.x * 128 + 8 * (t % 16);
    c += (size_t)(blockIdx.y * 128 + top + lane / 4) * n + blockIdx.x * 128 + left_edge + 2 * (lane % 4);

    auto fetch = [&](int slot) {  // start the copies of the next tile, and go on
#pragma unroll
        for (int m = 0; m < 128; m += 32)
            __pipeline_memcpy_async(&tile_a[slot][t / 4 + m][8 * (t % 4)], &a[(size_t)m * n], 16);
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8)
            __pipeline_memcpy_async(&tile_b[slot][t / 16 + k][8 * (t % 16)], &b[(size_t)k * n], 16);
        a += DEPTH;
        b += (size_t)DEPTH * n;
    };
#pragma unroll
    for (int slot = 0; slot < TILES - 1; slot++) {
        fetch(slot);
        __pipeline_commit();
    }
    float totals[4][8][4] = {};
    int now = 0, unused = TILES - 1;  // slots
    for (int first = 0; first < n; first += DEPTH) {
        __pipeline_wait_prior(TILES - 2);  // this thread's part of the tile is there,
        __syncthreads();                   // and now everyone's, and no one reads the tile before any more
        if (first + (TILES - 1) * DEPTH < n) fetch(unused);
        __pipeline_commit();  // also an empty group, so that the waits count right
        unused = now;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned left[4][4], right[4][4];
#pragma unroll
            for (int m = 0; m < 4; m++) load(left[m], &tile_a[now][top + 16 * m + lane % 16][k + 8 * (lane / 16)]);
#pragma unroll
            for (int j = 0; j < 4; j++) load_turned(right[j], &tile_b[now][k + lane % 16][left_edge + 16 * j + 8 * (lane / 16)]);
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int i = 0; i < 8; i++) {  // there and back, so that one factor stays at each turn
                    int j = m % 2 ? 7 - i : i;
                    multiply(totals[m][j], left[m], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
                }
        }
        now = now + 1 == TILES ? 0 : now + 1;
    }
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int j = 0; j < 8; j++) {  // a lane has two neighbors in each of two rows
            *(float2*)&c[(size_t)(16 * m) * n + 8 * j] = float2{totals[m][j][0], totals[m][j][1]};
            *(float2*)&c[(size_t)(16 * m + 8) * n + 8 * j] = float2{totals[m][j][2], totals[m][j][3]};
        }
}
"""
