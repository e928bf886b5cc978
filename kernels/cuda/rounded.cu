/*
 * Products whose activations are 8 bits wide as well, for checkpoints that were made for that
 * (W8A8): a row of x becomes integers or numbers of E4M3 with a scale, and products of bytes are
 * added by mma.
 *
 *   ek_round_*, _f8_*  one block for a row: its scale, its numbers, placed as those of packed
 *                      weights; ek_round_groups_*: a scale for each 128 columns of it
 *   ek_rounded8, 16    up to 32 rows: as ek_gemv_* does it, bound by reading w
 *   ek_rounded64, 128  tiles of 64 or 128 rows by 128 columns, as fused.cu has them; a warp
 *                      computes half of the rows of 32 columns. Bound by arithmetic.
 *   ek_rounded8_f8 ... the same of E4M3
 *
 * Integers are added as such, exactly, and both scales come last. Their weights have a scale for
 * each row and no zeros (packed.cuh: stored plus 128). Sums of E4M3 leave the tensor cores, which
 * may keep fewer bits of them than a float has, after at most 128 columns, and take the scales of a
 * group of both operands where there are such. Either way a row's answer does not depend on what
 * other rows there are; of integers not on the way, either.
 *
 * sm_89 and sm_120 multiply E4M3 at twice the rate of 16 bits; on sm_90 and sm_100 the assembler
 * makes numbers of 16 bits of it (only wgmma and its like read bytes there), so that large products
 * are better left to cuBLASLt (product.c).
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

/* To what rows are rounded, and in what products of it are added. */
struct s8 {
    typedef int sum;
    enum { EXACT = 1 };
};
struct e4m3 {
    typedef float sum;
    enum { EXACT = 0 };
};

DEV uint32_t four_bytes(s8, const float f[4], float by)
{
    uint32_t bytes = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int number = (int)rintf(fminf(fmaxf(f[i] * by, -128.0f), 127.0f));
        bytes |= ((uint32_t)number & 0xffu) << 8 * i;
    }
    return bytes;
}

DEV uint32_t four_bytes(e4m3, const float f[4], float by)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t lo, hi;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(f[1] * by), "f"(f[0] * by));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(f[3] * by), "f"(f[2] * by));
    return (uint32_t)hi << 16 | lo;
#else
    uint32_t bytes = 0;

#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= (uint32_t)e4m3_of(f[i] * by) << 8 * i;
    return bytes;
#endif
}

/* Of a row whose largest magnitude this is. */
DEV float scale_from(s8, const struct cu_gemm_args &, float most)
{
    return most / 127.0f;
}
DEV float scale_from(e4m3, const struct cu_gemm_args &a, float most)
{
    if (a.input_most > 0.0f)
        most = fminf(most, a.input_most);
    return fmaxf(most / 448.0f, 1.0f / (448.0f * 512.0f)); /* the least that such models know */
}

/* The largest magnitude of eight, and something that is no number where one of them is not finite.
 */
DEV void measure(const float f[8], float &most, float &bad)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        most = fmaxf(most, fabsf(f[i]));
        bad += f[i] * 0.0f;
    }
}

template <class Q>
DEV void put_eight(Q, const struct cu_gemm_args &a, uint32_t row, uint32_t col, const float f[8],
                   float by)
{
    const uint32_t cols = chunks_of(a) * 64, lane = col % 32 / 8, slice = col % 64 / 32;

    *(uint2 *)(at<unsigned char>(a.rounded) + (uint64_t)row * cols + col / 64 * 64 + lane * 16 +
               slice * 8) = make_uint2(four_bytes(Q{}, f, by), four_bytes(Q{}, f + 4, by));
}

/* A block: one row. What lies behind column k is zero and stays so. A row that is not finite has a
 * scale that is no number, and so has what comes of it. */
template <class T, class Q> DEV void round_row(const struct cu_gemm_args &a)
{
    __shared__ float work[32];
    const uint32_t row = blockIdx.x, cols = chunks_of(a) * 64;
    const uint16_t *x = at<const uint16_t>(a.x.at) + (uint64_t)row * a.x.stride;
    float most = 0.0f, bad = 0.0f, f[8];

    if (row >= rows_of(&a))
        return;
    for (uint32_t col = threadIdx.x * 8; col < cols; col += 256 * 8) {
        eight_of(T{}, x + col, f);
        measure(f, most, bad);
    }
    most = block_max(most, work);
    bad = block_sum(bad, work);
    const float scale = a.input_scale > 0.0f ? a.input_scale : scale_from(Q{}, a, most);
    const float by = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (uint32_t col = threadIdx.x * 8; col < cols; col += 256 * 8) {
        eight_of(T{}, x + col, f);
        put_eight(Q{}, a, row, col, f, by);
    }
    if (threadIdx.x == 0)
        at<float>(a.row_scales)[row] = scale + bad;
}

/* A block: one row, 16 threads for each group of 128 columns. */
template <class T> DEV void round_groups(const struct cu_gemm_args &a)
{
    const uint32_t row = blockIdx.x, cols = chunks_of(a) * 64;
    const uint16_t *x = at<const uint16_t>(a.x.at) + (uint64_t)row * a.x.stride;

    if (row >= rows_of(&a))
        return;
    for (uint32_t first = 0; first < cols; first += 256 * 8) { /* together: lanes exchange */
        const uint32_t col = first + threadIdx.x * 8;
        float most = 0.0f, bad = 0.0f, f[8] = {};
        if (col < cols)
            eight_of(T{}, x + col, f);
        measure(f, most, bad);
        for (int i = 8; i > 0; i >>= 1) {
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
            bad += __shfl_xor_sync(0xffffffffu, bad, i);
        }
        const float scale = fmaxf(most, 1e-10f) / 448.0f;
        if (col < cols)
            put_eight(e4m3{}, a, row, col, f, 1.0f / scale);
        if (col < cols && threadIdx.x % 16 == 0)
            at<float>(a.row_scales)[(uint64_t)(col / 128) * a.scale_stride + row] = scale + bad;
    }
}

#define ROUND(name, type)                                                                          \
    EK_KERNEL(ek_round_##name, struct cu_gemm_args, 256)                                           \
    {                                                                                              \
        round_row<type, s8>(a);                                                                    \
    }                                                                                              \
    EK_KERNEL(ek_round_f8_##name, struct cu_gemm_args, 256)                                        \
    {                                                                                              \
        round_row<type, e4m3>(a);                                                                  \
    }                                                                                              \
    EK_KERNEL(ek_round_groups_##name, struct cu_gemm_args, 256)                                    \
    {                                                                                              \
        round_groups<type>(a);                                                                     \
    }

ROUND(bf16, bf16)
ROUND(f16, f16)

/* To c: a sum by the scales of its row and column, unless it has had them group by group. */
template <class N>
DEV void put_rounded(const struct cu_gemm_args &a, uint32_t row, uint32_t col, N sum)
{
    float scale = 1.0f;

    if (a.packing.groups == 1)
        scale = at<const float>(a.row_scales)[row] * scale_of(a.w, a.packing, col, 0);
    put(&a, row, col, (float)sum * scale);
}

/* Results of bytes as they were multiplied elsewhere, without scales and bias. A block: 1024 of a
 * row. */
EK_KERNEL(ek_rescale, struct cu_gemm_args, 256)
{
    const uint32_t row = blockIdx.x, end = min(blockIdx.y * 1024 + 1024, a.n);

    if (row >= rows_of(&a))
        return;
    for (uint32_t col = blockIdx.y * 1024 + threadIdx.x; col < end; col += 256)
        put_rounded(a, row, col, load(&a.c, (uint64_t)row * a.c.stride + col));
}

DEV void tile_mma(s8, int c[4], const uint32_t m[4], uint32_t b0, uint32_t b1)
{
    mma_s8(c, m, b0, b1);
}
DEV void tile_mma(e4m3, float c[4], const uint32_t m[4], uint32_t b0, uint32_t b1)
{
    mma_e4m3(c, m, b0, b1);
}
DEV void tile_weights(s8, uint32_t m[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        m[i] ^= 0x80808080u;
}
DEV void tile_weights(e4m3, uint32_t *)
{
}

/* Scales of a lane's two neighbouring rows of x, and of its row of w, in the group of a chunk; 1
 * where they come at the end. Rows behind the last have something there, too. */
DEV float2 x_scales(const struct cu_gemm_args &a, uint32_t row, uint32_t chunk)
{
    if (a.packing.groups == 1)
        return make_float2(1.0f, 1.0f);
    return *(const float2 *)(at<const float>(a.row_scales) +
                             (uint64_t)(chunk / 2) * a.scale_stride + row);
}
DEV float w_scale(const struct cu_gemm_args &a, uint32_t row, uint32_t chunk)
{
    return a.packing.groups == 1 ? 1.0f : scale_of(a.w, a.packing, min(row, a.n - 1), chunk / 2);
}

/* Sums of a part of a group to all: of rows with scales x by columns with scales w. */
DEV void fold(float sum[4], const float c[4], float2 x, const float w[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum[i] += c[i] * ((i % 2 ? x.y : x.x) * w[i / 2]);
}

/* A chunk of 16 rows of w (p, q: rows g and g + 8) by one of 8 rows of x. */
template <class Q>
DEV void mma_chunk(Q, typename Q::sum c[4], const uint4 &p, const uint4 &q, const uint4 &b)
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint32_t m[4] = {word(p, 2 * s), word(q, 2 * s), word(p, 2 * s + 1), word(q, 2 * s + 1)};
        tile_weights(Q{}, m);
        tile_mma(Q{}, c, m, word(b, 2 * s), word(b, 2 * s + 1));
    }
}

/* A chunk of a few rows. */
DEV void few_chunk(s8, const struct cu_gemm_args &, int sum[4], const uint4 &p, const uint4 &q,
                   const uint4 &b, uint32_t, uint32_t, const float *)
{
    mma_chunk(s8{}, sum, p, q, b);
}
DEV void few_chunk(e4m3, const struct cu_gemm_args &a, float sum[4], const uint4 &p, const uint4 &q,
                   const uint4 &b, uint32_t row, uint32_t chunk, const float w[2])
{
    const float2 x = x_scales(a, row, chunk);
    float c[4] = {};

    mma_chunk(e4m3{}, c, p, q, b);
    fold(sum, c, x, w);
}

/* A block: 16 columns of c, and 8 * NT rows of it from row 8 * NT * blockIdx.y on. */
template <class Q, int NT> DEV void rounded_few(const struct cu_gemm_args &a)
{
    __shared__ typename Q::sum part[GEMV_WARPS][16 * 8 * NT];
    enum { TURNS = 4 };
    const uint32_t rows = rows_of(&a), row0 = blockIdx.y * 8 * NT, n0 = blockIdx.x * 16;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t chunks = chunks_of(a);
    const uint4 *w0 = at<const uint4>(a.w) + (uint64_t)min(n0 + g, a.n - 1) * chunks * 4 + t;
    const uint4 *w1 = at<const uint4>(a.w) + (uint64_t)min(n0 + g + 8, a.n - 1) * chunks * 4 + t;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    typename Q::sum c[NT][4] = {};

    if (row0 > 0 && row0 >= rows)
        return;
    const uint4 *x = at<const uint4>(a.rounded) + (uint64_t)(row0 + g) * chunks * 4 + t;
    for (uint32_t first = warp; first < chunks; first += GEMV_WARPS * TURNS) {
        uint4 p[TURNS], q[TURNS];
        float scale[TURNS][2];
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            const uint32_t chunk = first + u * GEMV_WARPS;
            p[u] = chunk < chunks ? load_stream(w0 + chunk * 4) : zero;
            q[u] = chunk < chunks ? load_stream(w1 + chunk * 4) : zero;
            for (int i = 0; !Q::EXACT && i < 2; i++)
                scale[u][i] = w_scale(a, n0 + g + 8 * i, min(chunk, chunks - 1));
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
                few_chunk(Q{}, a, c[j], p[u], q[u], b, row0 + j * 8 + 2 * t, chunk, scale[u]);
            }
        }
    }
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++)
            part[warp][(j * 8 + 2 * t + i % 2) * 16 + g + i / 2 * 8] = c[j][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 16 * 8 * NT; i += 256) {
        typename Q::sum sum = 0;
        for (int k = 0; k < GEMV_WARPS; k++)
            sum += part[k][i];
        if (row0 + i / 16 < rows && n0 + i % 16 < a.n)
            put_rounded(a, row0 + i / 16, n0 + i % 16, sum);
    }
}

EK_KERNEL(ek_rounded8, struct cu_gemm_args, 256)
{
    rounded_few<s8, 1>(a);
}
EK_KERNEL(ek_rounded16, struct cu_gemm_args, 256)
{
    rounded_few<s8, 2>(a);
}
EK_KERNEL(ek_rounded8_f8, struct cu_gemm_args, 256)
{
    rounded_few<e4m3, 1>(a);
}
EK_KERNEL(ek_rounded16_f8, struct cu_gemm_args, 256)
{
    rounded_few<e4m3, 2>(a);
}

/* What was added since the last time, by the scales of the chunk's group. */
template <int ROWS>
DEV void rounded_fold(const struct cu_gemm_args &a, uint32_t chunk, float c[2][ROWS / 16][4],
                      float sum[2][ROWS / 16][4])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = blockIdx.x * ROWS + warp / 4 * (ROWS / 2) + 2 * (lane % 4);
    const uint32_t col = blockIdx.y / a.parts * COLS + warp % 4 * 32 + lane / 4;
    float w[2][2];

#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i / 2][i % 2] = w_scale(a, col + 8 * i, chunk);
#pragma unroll
    for (int j = 0; j < ROWS / 16; j++) {
        const float2 x = x_scales(a, row + 8 * j, chunk);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            fold(sum[m][j], c[m][j], x, w[m]);
            c[m][j][0] = c[m][j][1] = c[m][j][2] = c[m][j][3] = 0.0f;
        }
    }
}
template <int ROWS>
DEV void rounded_fold(const struct cu_gemm_args &, uint32_t, int[2][ROWS / 16][4],
                      int[2][ROWS / 16][4])
{
}

/* Blocks: rows of c by columns of it times parts of k. */
template <class Q, int ROWS> DEV void rounded(const struct cu_gemm_args &a)
{
    const uint32_t rows = rows_of(&a), chunks = chunks_of(a);
    const struct tile_operand of[2] = {{at<const uint4>(a.rounded), chunks * 4, rows},
                                       {at<const uint4>(a.w), chunks * 4, a.n}};
    typename Q::sum c[2][ROWS / 16][4] = {}, sum[2][ROWS / 16][4] = {};

    if (blockIdx.x * ROWS >= rows)
        return;
    tile_product<Q, ROWS, put_rounded<typename Q::sum>>(
        a, of, chunks, c, Q::EXACT ? c : sum, [&](uint32_t chunk, bool last) {
            if (chunk % 2 == 1 || last) /* 128 columns */
                rounded_fold<ROWS>(a, chunk, c, sum);
        });
}

EK_KERNEL(ek_rounded64, struct cu_gemm_args, 256)
{
    rounded<s8, 64>(a);
}
EK_KERNEL(ek_rounded128, struct cu_gemm_args, 256)
{
    rounded<s8, 128>(a);
}
EK_KERNEL_ALONE(ek_rounded64_f8, struct cu_gemm_args, 256)
{
    rounded<e4m3, 64>(a);
}
/* Where bytes become numbers of 16 bits first there are no registers for it: tiles of 64 rows do
 * all (product.c). */
EK_KERNEL_ALONE(ek_rounded128_f8, struct cu_gemm_args, 256)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200
    rounded<e4m3, 128>(a);
#endif
}
