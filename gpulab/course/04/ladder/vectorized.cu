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
