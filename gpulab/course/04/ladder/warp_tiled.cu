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
