// matmul_double_buffered: C = A B, float32, row-major, n x n. A candidate for the ladder's next rung, NOT measured on a GPU yet (notes at the end):
// `python benchmarks/hardware_matmul.py --candidates` times it beside the ladder's rungs.
// While a block multiplies one tile, the next is on its way to registers; it goes into the other half of shared memory, so there is
// one barrier a tile. A warp takes 64 x (16 CHUNKS) of C, a thread 8 x (4 CHUNKS).
#ifndef DEPTH
#define DEPTH 16  // columns of A and rows of B in a tile: 8 or 16
#endif
#ifndef DOWN
#define DOWN 2  // warps of a block, one above the other
#endif
#ifndef ACROSS
#define ACROSS 4  // warps of a block side by side
#endif
#ifndef CHUNKS
#define CHUNKS 2  // groups of four columns that a thread has
#endif
#ifndef BLOCKS
#define BLOCKS 2  // blocks that shall fit on an SM: caps the registers
#endif
#define THREADS (32 * DOWN * ACROSS)
#define ROWS (64 * DOWN)
#define COLUMNS (16 * CHUNKS * ACROSS)
#define LOADS_A (ROWS * DEPTH / 4 / THREADS)     // groups of four floats that a thread brings
#define LOADS_B (COLUMNS * DEPTH / 4 / THREADS)
static_assert(DEPTH % 8 == 0 && ROWS * DEPTH % (4 * THREADS) == 0 && COLUMNS * DEPTH % (4 * THREADS) == 0, "tiles must divide evenly");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) matmul_double_buffered(const float* a, const float* b, float* c, int n) {
    __shared__ __align__(16) float tile_a[2][DEPTH][ROWS];  // turned, so that neighbours in a column lie side by side
    __shared__ __align__(16) float tile_b[2][DEPTH][COLUMNS];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    int top = 64 * (warp / ACROSS) + 4 * (lane / 4), left_edge = 16 * CHUNKS * (warp % ACROSS) + 4 * (lane % 4);
    a += (size_t)blockIdx.y * ROWS * n;
    b += blockIdx.x * COLUMNS;
    c += (size_t)blockIdx.y * ROWS * n + blockIdx.x * COLUMNS;
    float totals[8][4 * CHUNKS] = {};
    float4 next_a[LOADS_A], next_b[LOADS_B];
    for (int first = -DEPTH; first < n; first += DEPTH) {  // the first round only loads
        int now = (first / DEPTH) & 1, next = first + DEPTH;
        if (next < n) {
#pragma unroll
            for (int i = 0; i < LOADS_A; i++) {  // two neighbours bring 32 bytes of a row, so their stores meet in two banks at most
                int k = t + i * THREADS, row = k / 2 % ROWS, column = 8 * (k / (2 * ROWS)) + 4 * (k % 2);
                next_a[i] = *(const float4*)&a[(size_t)row * n + next + column];
            }
#pragma unroll
            for (int i = 0; i < LOADS_B; i++) {
                int k = t + i * THREADS, row = k / (COLUMNS / 4), column = 4 * (k % (COLUMNS / 4));
                next_b[i] = *(const float4*)&b[(size_t)(next + row) * n + column];
            }
        }
        if (first >= 0) {
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                float left[8], right[4 * CHUNKS];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float4 l = *(float4*)&tile_a[now][k][top + 32 * half];
                    left[4 * half] = l.x; left[4 * half + 1] = l.y; left[4 * half + 2] = l.z; left[4 * half + 3] = l.w;
                }
#pragma unroll
                for (int j = 0; j < CHUNKS; j++) {
                    float4 r = *(float4*)&tile_b[now][k][left_edge + 16 * j];
                    right[4 * j] = r.x; right[4 * j + 1] = r.y; right[4 * j + 2] = r.z; right[4 * j + 3] = r.w;
                }
#pragma unroll
                for (int m = 0; m < 8; m++)
#pragma unroll
                    for (int j = 0; j < 4 * CHUNKS; j++) totals[m][j] += left[m] * right[j];
            }
        }
        if (next < n) {  // the other half: all have done with it since the last barrier
            int other = (next / DEPTH) & 1;
#pragma unroll
            for (int i = 0; i < LOADS_A; i++) {
                int k = t + i * THREADS, row = k / 2 % ROWS, column = 8 * (k / (2 * ROWS)) + 4 * (k % 2);
                tile_a[other][column][row] = next_a[i].x;
                tile_a[other][column + 1][row] = next_a[i].y;
                tile_a[other][column + 2][row] = next_a[i].z;
                tile_a[other][column + 3][row] = next_a[i].w;
            }
#pragma unroll
            for (int i = 0; i < LOADS_B; i++) {
                int k = t + i * THREADS;
                *(float4*)&tile_b[other][k / (COLUMNS / 4)][4 * (k % (COLUMNS / 4))] = next_b[i];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 8; m++) {
        int row = top + 32 * (m / 4) + m % 4;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            float4 four = {totals[m][4 * j], totals[m][4 * j + 1], totals[m][4 * j + 2], totals[m][4 * j + 3]};
            *(float4*)&c[(size_t)row * n + left_edge + 16 * j] = four;
        }
    }
}

/* Notes for whoever has a GPU. Nothing below was measured on one.

Shown without a GPU
- It compiles for sm_90 without spills or stack in six forms:
    options                                        threads  registers  shared    loads of four words from shared memory : FFMA
    (none)                                         256      128        32 KiB    64 : 1,024     128 x 128, 2 blocks an SM
    -DDEPTH=8                                      256      128        16 KiB    32 : 512       128 x 128, 2 blocks
    -DACROSS=2 -DCHUNKS=4                          128      251        32 KiB    96 : 2,048     128 x 128, 2 blocks
    -DACROSS=2 -DCHUNKS=4 -DDEPTH=8                128      255        16 KiB    48 : 1,024     128 x 128, 2 blocks
    -DDOWN=4 -DACROSS=2 -DCHUNKS=4 -DBLOCKS=1      256      239        48 KiB    96 : 2,048     256 x 128, 1 block
    -DDOWN=4 -DACROSS=2 -DCHUNKS=4 -DBLOCKS=1 -DDEPTH=8   256   255    24 KiB    48 : 1,024     256 x 128, 1 block
  In the first, all LDG.128 stand before the first FFMA of a round and all stores after the last: that is the overlap which
  matmul_warp_tiled lacks. About 87 % of a round's instructions are FFMA.
- The same text, compiled as C++ with a thread for each CUDA thread and a barrier for __syncthreads, gives exact products of
  small integers in all six forms (n = 256 or 512: two blocks each way). ThreadSanitizer finds no race in it
  (-DDEPTH=8), and finds them, with wrong products, when the barrier is taken out.

Launch: grid (n / COLUMNS, n / ROWS), THREADS threads. The first two forms take the grid and block of today's rungs.
The others need a rung whose launch knows its options (128 threads; or n / 256 rows of blocks and n a multiple of 256).

Worth trying, in this order
1. The first two forms as options of a new rung; then the 256 x 128 and 128-thread forms (1.33 times fewer loads from shared memory an FFMA).
2. If short: -DBLOCKS=1 with the first form (more registers, so that ptxas may load fragments further ahead; one block an SM then hides less).
3. cp.async (LDGSTS, 16 bytes) for B with three or four stages in dynamic shared memory: frees 8 registers and the STS of B. A has to be
   turned, so it either stays with registers or is turned once by a kernel of its own (134 MB of traffic, about 0.03 ms of 2.9 ms).
4. Waves: 1,024 blocks over 132 SMs x 2 = 3.88, so four waves at 97 %; three blocks an SM would be 2.59 of 3, 86 %, so do not lower the
   registers to 84. 512 blocks of 256 x 128 over 132 are again 3.88. For the last 3 %: split K of the last wave, or persistent blocks.
5. The record has the note "throttled" for all: watch the clock; a share of cuBLAS in turns is fair, TFLOP/s alone are not.
*/
