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
