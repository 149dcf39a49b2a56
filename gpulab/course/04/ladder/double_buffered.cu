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
