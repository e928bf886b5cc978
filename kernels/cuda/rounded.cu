/*
 * Products whose activations are 8 bits wide as well, for checkpoints that were made for that (W8A8
 * of integers): a row of x becomes integers with one scale, products are added as integers of 32
 * bits, which is exact, and both scales come last. So in whatever order sums are added, whatever
 * other rows there are, a row's answer is the same to the bit.
 *
 *   ek_round_*       one block for a row: its scale, its numbers, placed as those of packed weights
 *   ek_rounded8, 16  up to 32 rows: as ek_gemv_* does it, bound by reading w
 *   ek_rounded64, 128  tiles of 64 or 128 rows by 128 columns, as fused.cu has them; a warp
 *                    computes half of the rows of 32 columns. Bound by arithmetic.
 *
 * Weights are int8 with a scale for each row and no zeros (packed.cuh: stored plus 128).
 */
#include "kernels/cuda/tile.cuh"

DEV uint32_t chunks_of(const struct cu_gemm_args &a)
{
    return (a.k + 63) / 64;
}

/* Eight neighbours of a row as floats. */
template <class T> DEV void eight_of(T, const uint16_t *x, float f[8])
{
    const uint4 v = *(const uint4 *)x;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = to_float(T{(uint16_t)word(v, i)});
        f[2 * i + 1] = to_float(T{(uint16_t)(word(v, i) >> 16)});
    }
}

DEV uint32_t four_bytes(const float f[4], float by)
{
    uint32_t bytes = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int number = (int)rintf(fminf(fmaxf(f[i] * by, -128.0f), 127.0f));
        bytes |= ((uint32_t)number & 0xffu) << 8 * i;
    }
    return bytes;
}

/* A block: one row. What lies behind column k is zero and stays so. A row that is not finite has a
 * scale that is no number, and so has what comes of it. */
template <class T> DEV void round_row(const struct cu_gemm_args &a)
{
    __shared__ float work[32];
    const uint32_t row = blockIdx.x, cols = chunks_of(a) * 64;
    const uint16_t *x = at<const uint16_t>(a.x.at) + (uint64_t)row * a.x.stride;
    float most = 0.0f, bad = 0.0f, f[8];

    if (row >= rows_of(&a))
        return;
    for (uint32_t col = threadIdx.x * 8; col < cols; col += 256 * 8) {
        eight_of(T{}, x + col, f);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            most = fmaxf(most, fabsf(f[i]));
            bad += f[i] * 0.0f;
        }
    }
    most = block_max(most, work);
    bad = block_sum(bad, work);
    const float scale = a.input_scale > 0.0f ? a.input_scale : most / 127.0f;
    const float by = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (uint32_t col = threadIdx.x * 8; col < cols; col += 256 * 8) {
        eight_of(T{}, x + col, f);
        const uint32_t lane = col % 32 / 8, slice = col % 64 / 32;
        *(uint2 *)(at<unsigned char>(a.rounded) + (uint64_t)row * cols + col / 64 * 64 + lane * 16 +
                   slice * 8) = make_uint2(four_bytes(f, by), four_bytes(f + 4, by));
    }
    if (threadIdx.x == 0)
        at<float>(a.row_scales)[row] = scale + bad;
}

EK_KERNEL(ek_round_bf16, struct cu_gemm_args, 256)
{
    round_row<bf16>(a);
}
EK_KERNEL(ek_round_f16, struct cu_gemm_args, 256)
{
    round_row<f16>(a);
}

/* To c: an exact sum by the scales of its row and column. */
DEV void put_exact(const struct cu_gemm_args &a, uint32_t row, uint32_t col, int sum)
{
    const float scale = at<const float>(a.row_scales)[row] * scale_of(a.w, a.packing, col, 0);

    put(&a, row, col, (float)sum * scale);
}

/* Both slices of a chunk: 16 rows of w (p, q: rows g and g + 8) by 8 of x. */
DEV void mma_chunk(int c[4], const uint4 &p, const uint4 &q, const uint4 &b)
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const uint32_t m[4] = {word(p, 2 * s), word(q, 2 * s), word(p, 2 * s + 1),
                               word(q, 2 * s + 1)};
        mma_s8(c, m, word(b, 2 * s), word(b, 2 * s + 1));
    }
}

DEV uint4 as_signed(const uint4 &v)
{
    return make_uint4(v.x ^ 0x80808080u, v.y ^ 0x80808080u, v.z ^ 0x80808080u, v.w ^ 0x80808080u);
}

/* A block: 16 columns of c, and 8 * NT rows of it from row 8 * NT * blockIdx.y on. */
template <int NT> DEV void rounded_few(const struct cu_gemm_args &a)
{
    __shared__ int part[GEMV_WARPS][16 * 8 * NT];
    enum { TURNS = 4 };
    const uint32_t rows = rows_of(&a), row0 = blockIdx.y * 8 * NT, n0 = blockIdx.x * 16;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t chunks = chunks_of(a);
    const uint4 *w0 = at<const uint4>(a.w) + (uint64_t)min(n0 + g, a.n - 1) * chunks * 4 + t;
    const uint4 *w1 = at<const uint4>(a.w) + (uint64_t)min(n0 + g + 8, a.n - 1) * chunks * 4 + t;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    int c[NT][4] = {};

    if (row0 > 0 && row0 >= rows)
        return;
    const uint4 *x = at<const uint4>(a.rounded) + (uint64_t)(row0 + g) * chunks * 4 + t;
    for (uint32_t first = warp; first < chunks; first += GEMV_WARPS * TURNS) {
        uint4 p[TURNS], q[TURNS];
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            const uint32_t chunk = first + u * GEMV_WARPS;
            p[u] = chunk < chunks ? load_stream(w0 + chunk * 4) : zero;
            q[u] = chunk < chunks ? load_stream(w1 + chunk * 4) : zero;
        }
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            const uint32_t chunk = first + u * GEMV_WARPS;
            if (chunk >= chunks) /* the same for the whole warp */
                break;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const bool there = row0 + j * 8 + g < rows;
                const uint4 b = there ? x[((uint64_t)j * 8 * chunks + chunk) * 4] : zero;
                mma_chunk(c[j], as_signed(p[u]), as_signed(q[u]), b);
            }
        }
    }
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++)
            part[warp][(j * 8 + 2 * t + i % 2) * 16 + g + i / 2 * 8] = c[j][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 16 * 8 * NT; i += 256) {
        int sum = 0;
        for (int k = 0; k < GEMV_WARPS; k++)
            sum += part[k][i];
        if (row0 + i / 16 < rows && n0 + i % 16 < a.n)
            put_exact(a, row0 + i / 16, n0 + i % 16, sum);
    }
}

EK_KERNEL(ek_rounded8, struct cu_gemm_args, 256)
{
    rounded_few<1>(a);
}
EK_KERNEL(ek_rounded16, struct cu_gemm_args, 256)
{
    rounded_few<2>(a);
}

/* One chunk of x and w, a row of 64 bytes behind the other; a chunk behind the last is an empty
 * group. */
template <int ROWS>
DEV void rounded_fetch(const struct cu_gemm_args &a, unsigned char *stage, uint32_t rows,
                       uint32_t chunk, uint32_t end)
{
    const uint32_t chunks = chunks_of(a), row0 = blockIdx.x * ROWS,
                   n0 = blockIdx.y / a.parts * COLS;

    if (chunk < end) {
#pragma unroll
        for (uint32_t i = threadIdx.x; i < ROWS * 4; i += 256) {
            const bool there = row0 + i / 4 < rows;
            const uint64_t row = there ? row0 + i / 4 : 0;
            async_16(stage + i * 16,
                     at<const uint4>(a.rounded) + (row * chunks + chunk) * 4 + i % 4, there);
        }
#pragma unroll
        for (uint32_t i = threadIdx.x; i < COLS * 4; i += 256) {
            const uint64_t row = min(n0 + i / 4, a.n - 1);
            async_16(stage + ROWS * 64 + i * 16,
                     at<const uint4>(a.w) + (row * chunks + chunk) * 4 + i % 4, true);
        }
    }
    async_commit();
}

/* A warp's part of a tile: 32 columns (two times 16 rows of w) by half of the rows. */
template <int ROWS> DEV void rounded_chunk(const unsigned char *stage, int c[2][ROWS / 16][4])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint4 *x = (const uint4 *)stage + warp / 4 * (ROWS / 2) * 4 + lane;
    const uint4 *w = (const uint4 *)(stage + ROWS * 64) + warp % 4 * 32 * 4 + lane;
    uint4 p[2], q[2];

#pragma unroll
    for (int m = 0; m < 2; m++)
        p[m] = as_signed(w[m * 64]), q[m] = as_signed(w[m * 64 + 32]);
#pragma unroll
    for (int j = 0; j < ROWS / 16; j++) {
        const uint4 b = x[j * 32];
#pragma unroll
        for (int m = 0; m < 2; m++)
            mma_chunk(c[m][j], p[m], q[m], b);
    }
}

/* Blocks: rows of c by columns of it times parts of k. */
template <int ROWS> DEV void rounded(const struct cu_gemm_args &a)
{
    enum { STAGE = CU_ROUNDED_STAGE(ROWS), STAGES = CU_ROUNDED_STAGES(ROWS) };
    EK_DYNAMIC(shared);
    const uint32_t rows = rows_of(&a), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t part = blockIdx.y % a.parts, chunks = chunks_of(a);
    const uint32_t first = chunks * part / a.parts, end = chunks * (part + 1) / a.parts;
    int c[2][ROWS / 16][4] = {};

    if (blockIdx.x * ROWS >= rows)
        return;
    for (int i = 0; i < STAGES - 1; i++)
        rounded_fetch<ROWS>(a, shared + i * STAGE, rows, first + i, end);
    for (uint32_t chunk = first, turn = 0; chunk < end; chunk++, turn = (turn + 1) % STAGES) {
        async_wait<STAGES - 2>();
        __syncthreads(); /* this one is there for all, the one before was read by all */
        rounded_fetch<ROWS>(a, shared + (turn + STAGES - 1) % STAGES * STAGE, rows,
                            chunk + STAGES - 1, end);
        rounded_chunk<ROWS>(shared + turn * STAGE, c);
    }
    async_wait<0>();
    __syncthreads(); /* the stages become the tile of results */
    int *tile = (int *)shared;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < ROWS / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                tile[(warp / 4 * (ROWS / 2) + j * 8 + 2 * (lane % 4) + i % 2) * PITCH +
                     warp % 4 * 32 + m * 16 + lane / 4 + i / 2 * 8] = c[m][j][i];
    __syncthreads();
    tile_end<ROWS, int, put_exact>(a, tile, rows);
}

EK_KERNEL(ek_rounded64, struct cu_gemm_args, 256)
{
    rounded<64>(a);
}
EK_KERNEL(ek_rounded128, struct cu_gemm_args, 256)
{
    rounded<128>(a);
}
