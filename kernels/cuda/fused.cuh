/*
 * Products in tiles of 64 or 128 rows by 128 columns over a part of k: what fused.cu says, of
 * packed weights, and skinny.cu of plain ones.
 */
#pragma once

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
 * neighbouring rows hit all banks; in every other slice the two change places, for who writes. */
template <int ROWS> DEV uint32_t x_at(uint32_t slice, uint32_t row, uint32_t t)
{
    return (slice * ROWS + (row ^ (slice & 1u))) * 64 + t * 16;
}

/* One chunk of x and w; a chunk behind the last is an empty group. */
template <class W, int ROWS>
DEV void fused_fetch(const struct cu_gemm_args &a, unsigned char *stage, uint32_t rows, uint32_t n0,
                     uint32_t chunk, uint32_t end)
{
    using S = fused_shape<W, ROWS>;
    const uint32_t chunks = (a.k + S::WIDE - 1) / S::WIDE, row0 = blockIdx.x * ROWS;

    if (chunk < end) {
#pragma unroll(ROWS > 64 ? 1 : 4)
        for (uint32_t i = threadIdx.x; i < ROWS * S::PIECES; i += 256) {
            const uint32_t r = i / S::PIECES, piece = i % S::PIECES;
            const bool there = row0 + r < rows;
            const uint16_t *x = at<const uint16_t>(a.x.at) +
                                (uint64_t)(there ? row0 + r : 0) * a.x.stride + chunk * S::WIDE +
                                piece * 8;
            async_16(stage + x_at<ROWS>(piece / 4, r, piece % 4), x, there);
        }
#pragma unroll(ROWS > 64 ? 1 : 2)
        for (uint32_t i = threadIdx.x; i < COLS * 4; i += 256) {
            const uint64_t row = min(n0 + i / 4, a.n - 1);
            async_16(stage + S::X_BYTES + i * 16,
                     at<const uint4>(a.w) + (row * chunks + chunk) * 4 + i % 4, true);
        }
    }
    async_commit();
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
    if (!W::PACKED)
        return;
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
        const bool ends = W::PACKED && between_groups(a, slice + 1);
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

DEV void put_float(const struct cu_gemm_args &a, uint32_t row, uint32_t col, float sum)
{
    put(&a, row, col, sum);
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
    for (int i = 0; i < S::STAGES - 1; i++)
        fused_fetch<W, 8 * NT>(a, shared + i * S::STAGE, rows, n0, first + i, end);
    for (uint32_t chunk = first, turn = 0; chunk < end; chunk++, turn = (turn + 1) % S::STAGES) {
        async_wait<S::STAGES - 2>();
        __syncthreads(); /* this one is there for all, the one before was read by all */
        fused_fetch<W, 8 * NT>(a, shared + (turn + S::STAGES - 1) % S::STAGES * S::STAGE, rows, n0,
                               chunk + S::STAGES - 1, end);
        fused_chunk<T, W, NT>(a, shared + turn * S::STAGE, chunk, f, c, sum);
    }
    if (W::PACKED && !between_groups(a, end * W::SLICES)) {
        struct gemv_group last = {};
        fused_scales(a, f.row, end * W::SLICES - 1, &last);
        gemv_fold<NT>(sum, c, last);
    }
    async_wait<0>();
    __syncthreads(); /* the stages become the tile of results */
    float *tile = (float *)shared;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile[(j * 8 + 2 * (lane % 4) + i % 2) * PITCH + warp * 16 + lane / 4 + i / 2 * 8] =
                W::PACKED ? sum[j][i] : c[j][i];
    __syncthreads();
    tile_end<8 * NT, float, put_float>(a, tile, rows);
}
