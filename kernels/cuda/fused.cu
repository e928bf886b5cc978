/*
 * Products with packed weights (W8A16, W4A16) for some dozen to some hundred rows of x: too many to
 * read w again for every 16, too few to expand it in memory first. A block computes 64 or 128 rows
 * by 128 columns of c over a part of k. Pieces of x and w flow through shared memory, up to four in
 * flight; each warp has 16 rows of w, expands them in registers as gemv.cuh does, once for all rows
 * of x, and multiplies by mma. Bound by reading w where rows are few, by the tensor cores beyond.
 *
 * Matrices of few columns are cut along k as well, so that there are enough blocks: the block of a
 * tile's parts that comes last adds them in order. How it is cut depends on the shape of w alone
 * (cuda_fused_parts()), and tiles of 64 and of 128 rows add in the same order: a row's answer does
 * not depend on the other rows.
 */
#include "kernels/cuda/tile.cuh"

template <class W, int ROWS> struct fused_shape {
    enum {
        WIDE = 32 * W::SLICES, /* columns of a chunk */
        PIECES = 4 * W::SLICES,
        X_BYTES = ROWS * WIDE * 2,
        STAGE = CU_FUSED_STAGE(W::SLICES, ROWS),
        STAGES = CU_FUSED_STAGES(W::SLICES, ROWS)
    };
};

/* Where a lane's 8 columns of a slice of x lie in a stage: rows of 64 bytes, so that lanes of two
 * neighbouring rows hit all banks; in every other slice the two change places, for the writes. */
template <int ROWS> DEV uint32_t x_at(uint32_t slice, uint32_t row, uint32_t t)
{
    return (slice * ROWS + (row ^ (slice & 1u))) * 64 + t * 16;
}

/* One chunk of w, and what it is multiplied with of x. */
template <class W, int ROWS>
DEV void fused_fetch(const struct cu_gemm_args &a, unsigned char *stage, uint32_t rows, uint32_t n0,
                     uint32_t chunk)
{
    using S = fused_shape<W, ROWS>;
    const uint32_t chunks = (a.k + S::WIDE - 1) / S::WIDE, row0 = blockIdx.x * ROWS;

    /* by n the compiler can count the copies of a thread, and need not check each; with 128 rows
     * there are no registers left for several addresses at once, and nothing to count */
#pragma unroll(ROWS > 64 ? 1 : 4)
    for (uint32_t i = threadIdx.x, n = 0; ROWS > 64 ? i < ROWS * S::PIECES : n < S::PIECES / 4;
         i += 256, n++) {
        const uint32_t r = i / S::PIECES, piece = i % S::PIECES;
        const bool there = row0 + r < rows;
        const uint16_t *x = at<const uint16_t>(a.x.at) +
                            (uint64_t)(there ? row0 + r : 0) * a.x.stride + chunk * S::WIDE +
                            piece * 8;
        async_16(stage + x_at<ROWS>(piece / 4, r, piece % 4), x, there);
    }
#pragma unroll(ROWS > 64 ? 1 : 2)
    for (uint32_t i = threadIdx.x, n = 0; ROWS > 64 ? i < COLS * 4 : n < 2; i += 256, n++) {
        const uint64_t row = min(n0 + i / 4, a.n - 1);
        async_16(stage + S::X_BYTES + i * 16,
                 at<const uint4>(a.w) + (row * chunks + chunk) * 4 + i % 4, true);
    }
}

/* What a lane has of w: two rows, and what to take away from their numbers in the group at hand. */
struct fused_lane {
    uint32_t row[2], base[2];
};

/* Whether a group begins with this slice. */
DEV bool between_groups(const struct cu_gemm_args &a, uint32_t slice)
{
    return (slice & ((1u << (a.packing.group_shift - 5)) - 1)) == 0;
}

template <class T, class W>
DEV void fused_bases(const struct cu_gemm_args &a, const uint32_t row[2], uint32_t slice,
                     uint32_t base[2])
{
    const uint32_t group = min(slice >> (a.packing.group_shift - 5), a.packing.groups - 1);

    for (int i = 0; i < 2; i++)
        base[i] = base_of(T{}, W{}, zero_of(a.w, a.packing, row[i], group));
}

DEV void fused_scales(const struct cu_gemm_args &a, const uint32_t row[2], uint32_t slice,
                      struct gemv_group *ret)
{
    const uint32_t group = min(slice >> (a.packing.group_shift - 5), a.packing.groups - 1);

    for (int i = 0; i < 2; i++)
        ret->scale[i] = scale_of(a.w, a.packing, row[i], group);
}

/* Adds the products of a chunk; those of a finished group, with its scale, to `sum`. What the group
 * and the one behind it need is asked for before its last products. */
template <class T, class W, int NT>
DEV void fused_chunk(const struct cu_gemm_args &a, const unsigned char *stage, uint32_t chunk,
                     struct fused_lane &f, float c[NT][4], float sum[NT][4])
{
    using S = fused_shape<W, 8 * NT>;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4 *w = (const uint4 *)(stage + S::X_BYTES) + threadIdx.x / 32 * 64 + lane;
    const uint4 p = w[0], q = w[32];

    /* with 128 rows there are no registers left for several slices at once */
#pragma unroll(NT > 8 ? 1 : W::SLICES)
    for (int s = 0; s < W::SLICES; s++) {
        const uint32_t slice = chunk * W::SLICES + s;
        const bool ends = between_groups(a, slice + 1);
        struct gemv_group done = {};
        uint32_t e[4], h[4];
        expand(T{}, W{}, p, s, f.base[0], e);
        expand(T{}, W{}, q, s, f.base[1], h);
        if (ends) {
            fused_scales(a, f.row, slice, &done);
            fused_bases<T, W>(a, f.row, slice + 1, f.base);
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const uint4 b = *(const uint4 *)(stage + x_at<8 * NT>(s, j * 8 + g, t));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t m[4] = {e[2 * i], h[2 * i], e[2 * i + 1], h[2 * i + 1]};
                mma(T{}, c[j], m, word(b, 2 * i), word(b, 2 * i + 1));
            }
        }
        if (ends)
            gemv_fold<NT>(sum, c, done);
    }
}

/* Blocks: rows of c by columns of it times parts of k. */
template <class T, class W, int NT> DEV void fused(const struct cu_gemm_args &a)
{
    using S = fused_shape<W, 8 * NT>;
    EK_DYNAMIC(shared);
    const uint32_t rows = rows_of(&a), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t n0 = blockIdx.y / a.parts * COLS, part = blockIdx.y % a.parts;
    const uint32_t chunks = (a.k + S::WIDE - 1) / S::WIDE, mine = n0 + warp * 16 + lane / 4;
    const uint32_t first = chunks * part / a.parts, end = chunks * (part + 1) / a.parts;
    float c[NT][4] = {}, sum[NT][4] = {};

    if (blockIdx.x * 8 * NT >= rows)
        return;
    struct fused_lane f = {{min(mine, a.n - 1), min(mine + 8, a.n - 1)}, {}};
    fused_bases<T, W>(a, f.row, first * W::SLICES, f.base);
    pipelined<S::STAGES, S::STAGE>(
        shared, first, end,
        [&](unsigned char *stage, uint32_t chunk) {
            fused_fetch<W, 8 * NT>(a, stage, rows, n0, chunk);
        },
        [&](const unsigned char *stage, uint32_t chunk) {
            fused_chunk<T, W, NT>(a, stage, chunk, f, c, sum);
        });
    if (!between_groups(a, end * W::SLICES)) {
        struct gemv_group last = {};
        fused_scales(a, f.row, end * W::SLICES - 1, &last);
        gemv_fold<NT>(sum, c, last);
    }
    __syncthreads(); /* the stages become the tile of results */
    float *tile = (float *)shared;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile[(j * 8 + 2 * (lane % 4) + i % 2) * PITCH + warp * 16 + lane / 4 + i / 2 * 8] =
                sum[j][i];
    __syncthreads();
    tile_end<8 * NT, float, tile_put>(a, tile, rows);
}

#define FUSED(name, type, form)                                                                    \
    EK_KERNEL_ALONE(ek_fused64_##name, struct cu_gemm_args, 256)                                   \
    {                                                                                              \
        fused<type, form, 8>(a);                                                                   \
    }                                                                                              \
    EK_KERNEL_ALONE(ek_fused128_##name, struct cu_gemm_args, 256)                                  \
    {                                                                                              \
        fused<type, form, 16>(a);                                                                  \
    }

FUSED(bf16_i8, bf16, i8)
FUSED(bf16_f8, bf16, f8)
FUSED(bf16_i4, bf16, i4)
FUSED(f16_i8, f16, i8)
FUSED(f16_f8, f16, f8)
FUSED(f16_i4, f16, i4)
