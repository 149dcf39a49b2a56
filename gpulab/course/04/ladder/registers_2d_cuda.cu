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
