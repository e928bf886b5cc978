/*
 * Latent attention (server/model/latent.c): all query heads look at one head of keys, CU_LATENT_DIM
 * wide or less, whose first elements are the values, so the cache has no V.
 *
 *   ek_heads_*         a product for each head by itself: queries into the space of the latent, and
 *                      what was attended out of it. A block: 64 columns of a head by 64 rows, by
 *                      mma; with few rows bound by reading the weights once.
 *   ek_heads_plain     the same of any type and size, 16 x 16 results.
 *   ek_latent_*        attention. A block takes up to 32 pairs of a row and a head, or a part of
 *                      their context, and walks it in tiles of 32 positions in shared memory, which
 *                      serve as K and then as V. Rows of prompts and of decode are alike to it: a
 *                      position read from memory is multiplied with every head, so even one row
 *                      with 128 heads is bound by arithmetic, and blocks of the same row find the
 *                      context in the L2 cache. Parts are merged by the block that comes last.
 *   ek_latent_plain    attention of any type, a block for each row and query head.
 */
#include "kernels/cuda/args_latent.h"
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/pipeline.cuh"

/* ---- products by heads ---- */

/* What a block of either kind computes: rows from row0, columns from col0, of one head. */
struct heads_unit {
    uint32_t head, col0, row0, rows;
    uint64_t src, dst, step; /* columns where the head begins; elements of its weights' rows */
    cu_addr w;
};

DEV struct heads_unit heads_of(const struct cu_heads_args &a, uint32_t cols, uint32_t rows)
{
    struct heads_unit u;

    u.head = blockIdx.x / a.tiles;
    u.col0 = blockIdx.x % a.tiles * cols;
    u.row0 = blockIdx.y * rows;
    u.rows = step_of(a.step)->rows;
    u.src = (uint64_t)u.head * (a.k + a.rest);
    u.dst = (uint64_t)u.head * (a.n + a.rest);
    u.step = (a.k + 31) / 32 * 32;
    u.w = a.w + u.head * a.w_step;
    return u;
}

/* What is behind the product, by the blocks of a head's first columns. */
DEV void heads_rest(const struct cu_heads_args &a, const heads_unit &u, uint32_t rows)
{
    if (u.col0 > 0)
        return;
    const uint32_t count = min(rows, u.rows - u.row0);
    for (uint32_t i = threadIdx.x; i < count * a.rest; i += blockDim.x) {
        const uint64_t row = u.row0 + i / a.rest;
        const uint32_t e = i % a.rest;
        store(&a.dst, row * a.dst.stride + u.dst + a.n + e,
              load(&a.src, row * a.src.stride + u.src + a.k + e));
    }
}

#define HEAD_ROWS  ((int)CU_HEADS_TILE)
#define HEAD_COLS  ((int)CU_HEADS_TILE)
#define HEAD_DEPTH 32
#define HEAD_PITCH 40 /* halves from row to row: lanes of a quad group hit all banks */

struct heads_stage {
    uint16_t x[HEAD_ROWS * HEAD_PITCH], w[HEAD_COLS * HEAD_PITCH];
};

DEV void heads_fetch(const struct cu_heads_args &a, const heads_unit &u, heads_stage *stage,
                     uint32_t k0)
{
    for (uint32_t i = threadIdx.x; i < HEAD_COLS * HEAD_DEPTH / 8; i += blockDim.x) {
        const uint32_t r = i / 4, k = i % 4 * 8, col = min(u.col0 + r, a.n - 1);
        const bool there = u.row0 + r < u.rows && k0 + k < a.k;
        const uint64_t row = there ? u.row0 + r : 0;
        async_16(&stage->x[r * HEAD_PITCH + k],
                 at<const uint16_t>(a.src.at) + row * a.src.stride + u.src + (there ? k0 + k : 0),
                 there);
        async_16(&stage->w[r * HEAD_PITCH + k],
                 at<const uint16_t>(u.w) + (uint64_t)col * u.step + k0 + k, true);
    }
}

/* Four warps, each 16 columns of all rows. */
template <class T> DEV void heads(const struct cu_heads_args &a)
{
    __shared__ __align__(16) struct heads_stage stage[2];
    const heads_unit u = heads_of(a, HEAD_COLS, HEAD_ROWS);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t wc = threadIdx.x / 32 * 16, steps = (a.k + HEAD_DEPTH - 1) / HEAD_DEPTH;
    const uint32_t x_row = lane % 16, w_row = wc + lane / 16 * 8 + lane % 8;
    float c[4][2][4] = {};

    if (u.row0 >= u.rows)
        return;
    const uint32_t tiles = (min((uint32_t)HEAD_ROWS, u.rows - u.row0) + 15) / 16;
    pipelined<2, sizeof(heads_stage)>(
        (unsigned char *)stage, 0, steps,
        [&](unsigned char *to, uint32_t step) {
            heads_fetch(a, u, (heads_stage *)to, step * HEAD_DEPTH);
        },
        [&](const unsigned char *from, uint32_t) {
            const struct heads_stage *s = (const struct heads_stage *)from;
#pragma unroll
            for (int k = 0; k < HEAD_DEPTH; k += 16) {
                uint32_t b[4];
                load_matrices(b, &s->w[w_row * HEAD_PITCH + k + lane / 8 % 2 * 8]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t f[4];
                    if ((uint32_t)i >= tiles)
                        continue;
                    load_matrices(f, &s->x[(i * 16 + x_row) * HEAD_PITCH + k + lane / 16 * 8]);
                    mma(T{}, c[i][0], f, b[0], b[1]);
                    mma(T{}, c[i][1], f, b[2], b[3]);
                }
            }
        });
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t row = u.row0 + i * 16 + g + e / 2 * 8,
                               col = u.col0 + wc + j * 8 + 2 * t + e % 2;
                if (row < u.rows && col < a.n)
                    store(&a.dst, (uint64_t)row * a.dst.stride + u.dst + col, c[i][j][e]);
            }
    heads_rest(a, u, HEAD_ROWS);
}

EK_KERNEL(ek_heads_bf16, struct cu_heads_args, CU_LATENT_THREADS)
{
    heads<bf16>(a);
}
EK_KERNEL(ek_heads_f16, struct cu_heads_args, CU_LATENT_THREADS)
{
    heads<f16>(a);
}

EK_KERNEL(ek_heads_plain, struct cu_heads_args, 256)
{
    __shared__ float x[16][17], w[16][17];
    const heads_unit u = heads_of(a, CU_HEADS_PLAIN, CU_HEADS_PLAIN);
    const uint32_t i = threadIdx.x / 16, j = threadIdx.x % 16;
    const uint32_t row = u.row0 + i, col = u.col0 + j, from = u.col0 + i;
    const struct cu_view weights = {u.w, 0, a.src.dtype};
    float sum = 0.0f;

    if (u.row0 >= u.rows)
        return;
    for (uint32_t k = 0; k < a.k; k += 16) {
        const bool in = k + j < a.k;
        x[i][j] =
            in && row < u.rows ? load(&a.src, row * (uint64_t)a.src.stride + u.src + k + j) : 0.0f;
        w[i][j] = in && from < a.n ? load(&weights, from * u.step + k + j) : 0.0f;
        __syncthreads();
        for (uint32_t e = 0; e < 16; e++)
            sum += x[i][e] * w[j][e];
        __syncthreads();
    }
    if (row < u.rows && col < a.n)
        store(&a.dst, (uint64_t)row * a.dst.stride + u.dst + col, sum);
    heads_rest(a, u, CU_HEADS_PLAIN);
}

/* ---- attention, plain ---- */

#define PLAIN 128

EK_KERNEL(ek_latent_plain, struct cu_attend_args, PLAIN)
{
    __shared__ float score[PLAIN], work[32];
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, head = blockIdx.y, n = a.key_dim;
    const uint32_t bytes = n * (a.x.dtype == EK_F32 ? 4 : 2);
    if (row >= s->rows)
        return;
    const uint32_t *table =
        array_of<uint32_t>(s, s->table_at) + at<const uint32_t>(a.row_table)[row];
    const uint32_t position = array_of<uint32_t>(s, s->position_at)[row];
    const uint64_t q = (uint64_t)row * a.x.stride + (uint64_t)head * n;
    float m = -INFINITY, l = 0.0f, acc[CU_LATENT_VALUE / PLAIN] = {};

    for (uint32_t base = first_seen(position, a.window); base <= position; base += PLAIN) {
        const uint32_t count = min(position + 1 - base, (uint32_t)PLAIN);
        float mine = -INFINITY;
        if (threadIdx.x < count) {
            const struct cu_view k = {kv_at(s->kv, table, base + threadIdx.x, a.block_shift,
                                            a.block_bytes, a.layer_at, 0, bytes),
                                      0, a.x.dtype};
            float sum = 0.0f;
            for (uint32_t i = 0; i < n; i++)
                sum += load(&a.x, q + i) * load(&k, i);
            mine = capped(sum, a.scale, a.softcap);
        }
        const float most = fmaxf(m, block_max(mine, work));
        const float factor = weight_of(m, most), p = weight_of(mine, most);
        score[threadIdx.x] = p;
        l = l * factor + block_sum(p, work); /* its barriers also publish the scores */
        m = most;
        for (uint32_t c = 0; c < CU_LATENT_VALUE / PLAIN; c++) {
            const uint32_t i = c * PLAIN + threadIdx.x;
            float sum = acc[c] * factor;
            for (uint32_t k = 0; i < a.head_dim && k < count; k++) {
                const struct cu_view v = {kv_at(s->kv, table, base + k, a.block_shift,
                                                a.block_bytes, a.layer_at, 0, bytes),
                                          0, a.x.dtype};
                sum += score[k] * load(&v, i);
            }
            acc[c] = sum;
        }
        __syncthreads();
    }
    for (uint32_t c = 0; c < CU_LATENT_VALUE / PLAIN; c++) {
        const uint32_t i = c * PLAIN + threadIdx.x;
        if (i < a.head_dim)
            store(&a.dst, (uint64_t)row * a.dst.stride + (uint64_t)head * a.head_dim + i,
                  acc[c] * whole_of(&a, head, m, l));
    }
}

/* ---- attention by mma ---- */

#define PAIRS CU_LATENT_PAIRS
#define KEYS  CU_LATENT_KEYS
#define PITCH CU_LATENT_PITCH
#define TILES ((int)PAIRS / 16)
#define WARPS (CU_LATENT_THREADS / 32)
#define COLS  ((int)CU_LATENT_VALUE / WARPS) /* of V that a warp mixes */
#define TEAM  (CU_LATENT_THREADS / PAIRS)    /* lanes that find the weights of a pair */
#define EACH  ((int)(KEYS / TEAM))           /* and of how many positions each does */

/* Shared memory of a block. Scores are f32 [pair][position]; weights the same in 16 bits; shrink
 * is what a pair's sums are multiplied with before the tile's are added. */
struct latent_room {
    uint16_t *q, *k, *weight;
    float *score, *shrink;
};

DEV struct latent_room room_of(unsigned char *shared)
{
    struct latent_room r;

    r.q = (uint16_t *)shared;
    r.k = r.q + PAIRS * PITCH;
    r.weight = r.k + KEYS * PITCH;
    r.score = (float *)(r.weight + PAIRS * CU_LATENT_WEIGHTS);
    r.shrink = r.score + PAIRS * CU_LATENT_SCORES;
    return r;
}

/* The pairs of a block: rows of a tile times the heads of a group. */
struct latent_unit {
    struct cu_tile tile;
    uint32_t group, each, pairs; /* heads of a group */
    const uint32_t *table;
};

DEV struct latent_unit latent_unit_of(const struct cu_attend_args &a, const struct cu_step *s,
                                      uint32_t index)
{
    struct latent_unit u;

    u.tile = array_of<struct cu_tile>(s, s->tile_at)[index / a.kv_heads];
    u.group = index % a.kv_heads;
    u.each = a.q_heads / a.kv_heads;
    u.pairs = u.tile.rows * u.each;
    u.table = array_of<uint32_t>(s, s->table_at) + u.tile.table;
    return u;
}

/* Where a pair's head begins in rows of `dim` a head. */
DEV uint64_t pair_at(const latent_unit &u, uint32_t pair, uint32_t stride, uint32_t dim)
{
    return (uint64_t)(u.tile.row + pair / u.each) * stride +
           (uint64_t)(u.group * u.each + pair % u.each) * dim;
}

/* Eights of numbers of Q and K that lie in shared memory: scores are of 16 at a time, and values of
 * half of the most or all; what is behind the last number is zeros. */
DEV uint32_t latent_eights(const struct cu_attend_args &a)
{
    const uint32_t values =
        a.head_dim > CU_LATENT_VALUE / 2 ? CU_LATENT_VALUE : CU_LATENT_VALUE / 2;
    return max((a.key_dim + 15) / 16 * 16, values) / 8;
}

/* Q of the pairs, zeros where there is no pair. */
DEV void latent_queries(const struct cu_attend_args &a, const latent_unit &u, uint16_t *q)
{
    const uint32_t eights = latent_eights(a);

    for (uint32_t i = threadIdx.x; i < PAIRS * eights; i += blockDim.x) {
        const uint32_t pair = i / eights, d = i % eights * 8;
        const bool there = pair < u.pairs && d < a.key_dim;
        async_16(q + pair * PITCH + d,
                 at<const uint16_t>(a.x.at) +
                     (there ? pair_at(u, pair, a.x.stride, a.key_dim) + d : 0),
                 there);
    }
}

/* K of the positions from `base`, zeros behind the context's end. */
DEV void latent_fetch(const struct cu_attend_args &a, const struct cu_step *s, const latent_unit &u,
                      uint16_t *k, uint32_t base)
{
    const uint32_t eights = latent_eights(a);

    for (uint32_t i = threadIdx.x; i < KEYS * eights; i += blockDim.x) {
        const uint32_t key = i / eights, d = i % eights * 8;
        const bool there = base + key < u.tile.to && d < a.key_dim;
        const cu_addr from = kv_at(s->kv, u.table, min(base + key, u.tile.to - 1), a.block_shift,
                                   a.block_bytes, a.layer_at, 0, a.key_dim * 2);
        async_16(k + key * PITCH + d, at<const void>(from + (there ? d * 2 : 0)), there);
    }
    async_commit();
}

/* Scores of the tile: a warp has 16 pairs and some of the positions. */
template <class T>
DEV void latent_scores(const struct cu_attend_args &a, const latent_unit &u, const latent_room &r,
                       uint32_t base)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t row0 = warp % TILES * 16, key0 = warp / TILES * (8 * TILES);
    float c[TILES][4] = {};

    if (row0 >= u.pairs)
        return;
    for (uint32_t d = 0; d < a.key_dim; d += 16) {
        const uint16_t *q = r.q + (row0 + g) * PITCH + d + 2 * t;
        const uint32_t f[4] = {*(const uint32_t *)q, *(const uint32_t *)(q + 8 * PITCH),
                               *(const uint32_t *)(q + 8), *(const uint32_t *)(q + 8 * PITCH + 8)};
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const uint16_t *k = r.k + (key0 + j * 8 + g) * PITCH + d + 2 * t;
            mma(T{}, c[j], f, *(const uint32_t *)k, *(const uint32_t *)(k + 8));
        }
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t pair = row0 + g + e / 2 * 8, key = key0 + j * 8 + 2 * t + e % 2;
            const uint32_t own = u.tile.position + pair / u.each, position = base + key;
            const bool seen =
                position <= own && position < u.tile.to && position >= first_seen(own, a.window);
            r.score[pair * CU_LATENT_SCORES + key] =
                seen ? capped(c[j][e], a.scale, a.softcap) : -INFINITY;
        }
}

/* Over the lanes of a pair. */
DEV float team_max(float f)
{
    for (int i = TEAM / 2; i > 0; i >>= 1)
        f = fmaxf(f, __shfl_xor_sync(0xffffffffu, f, i));
    return f;
}
DEV float team_sum(float f)
{
    for (int i = TEAM / 2; i > 0; i >>= 1)
        f += __shfl_xor_sync(0xffffffffu, f, i);
    return f;
}

/* Whether the 16 pairs of tile i are more than padding. */
DEV bool latent_has(const latent_unit &u, int i)
{
    return i == 0 || u.pairs > (uint32_t)i * 16;
}

/* Scores become weights; m and l of the thread's pair go on. */
template <class T>
DEV void latent_weights(const latent_unit &u, const latent_room &r, float &m, float &l)
{
    const uint32_t pair = threadIdx.x / TEAM, lane = threadIdx.x % TEAM;
    if (!latent_has(u, (int)pair / 16)) /* whole warps */
        return;
    const float *score = r.score + pair * CU_LATENT_SCORES + lane * EACH;
    uint16_t *weight = r.weight + pair * CU_LATENT_WEIGHTS + lane * EACH;
    float x[EACH], most = m, sum = 0.0f;

#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        const float4 v = *(const float4 *)(score + i);
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        most = fmaxf(most, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
    }
    most = team_max(most);
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        const float p = weight_of(x[i], most), q = weight_of(x[i + 1], most);
        sum += p + q;
        *(uint32_t *)(weight + i) = pack(T{}, p, q);
    }
    const float by = weight_of(m, most);
    if (lane == 0)
        r.shrink[pair] = by;
    l = l * by + team_sum(sum);
    m = most;
}

/* The first of the eight columns of V that a warp has in its tile n: each fourth 16 of them. */
DEV uint32_t latent_col(int n)
{
    return (uint32_t)n / 2 * 16 * WARPS + threadIdx.x / 32 * 16 + (uint32_t)n % 2 * 8;
}

/* The tile's values by their weights, of all pairs: the first N eights of what a warp has. */
template <class T, int N>
DEV void latent_mix(const latent_unit &u, const latent_room &r, float o[TILES][COLS / 8][4])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if (!latent_has(u, i))
            continue;
        const float by[2] = {r.shrink[i * 16 + g], r.shrink[i * 16 + g + 8]};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[i][n][e] *= by[e / 2];
    }
#pragma unroll
    for (int k = 0; k < (int)KEYS; k += 16) {
        uint32_t f[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            f[i][0] = f[i][1] = f[i][2] = f[i][3] = 0;
            if (!latent_has(u, i))
                continue;
            const uint16_t *p = r.weight + (i * 16 + g) * CU_LATENT_WEIGHTS + k + 2 * t;
            f[i][0] = *(const uint32_t *)p;
            f[i][1] = *(const uint32_t *)(p + 8 * CU_LATENT_WEIGHTS);
            f[i][2] = *(const uint32_t *)(p + 8);
            f[i][3] = *(const uint32_t *)(p + 8 * CU_LATENT_WEIGHTS + 8);
        }
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            load_transposed(b, r.k + (k + lane % 16) * PITCH + latent_col(n) + lane / 16 * 8);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                mma(T{}, o[i][n], f[i], b[0], b[1]);
                mma(T{}, o[i][n + 1], f[i], b[2], b[3]);
            }
        }
    }
}

/* The pairs' results to dst, or as sums of a part, of which the block that comes last makes them.
 * `ends` is the scores' room: m and l of each pair. */
template <class T>
DEV void latent_end(const struct cu_attend_args &a, const latent_unit &u, const float2 *ends,
                    const float o[TILES][COLS / 8][4])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool whole = u.tile.parts == 1;
    float *part = whole ? NULL : tile_part<PAIRS>(&a, &u.tile, u.tile.part, u.group);

#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t pair = i * 16 + h * 8 + g;
            if (pair >= u.pairs)
                continue;
            const float2 end = ends[pair];
            const float by =
                whole ? whole_of(&a, u.group * u.each + pair % u.each, end.x, end.y) : 1.0f;
            uint16_t *to = at<uint16_t>(a.dst.at) + pair_at(u, pair, a.dst.stride, a.head_dim);
#pragma unroll
            for (int n = 0; n < COLS / 8; n++) {
                const uint32_t d = latent_col(n) + 2 * t;
                const float x = o[i][n][2 * h] * by, y = o[i][n][2 * h + 1] * by;
                if (d >= a.head_dim)
                    continue;
                if (whole)
                    *(uint32_t *)(to + d) = pack(T{}, x, y);
                else
                    *(float2 *)(part + pair * a.head_dim + d) = make_float2(x, y);
            }
        }
    if (whole)
        return;
    for (uint32_t pair = threadIdx.x; pair < u.pairs; pair += blockDim.x)
        *(float2 *)(part + PAIRS * a.head_dim + pair * 2) = ends[pair];
    tile_merge<T, PAIRS>(&a, &u.tile, u.group);
}

template <class T> DEV void attend_latent(const struct cu_attend_args &a)
{
    EK_DYNAMIC(shared);
    const struct cu_step *s = step_of(a.step);
    const struct latent_room r = room_of(shared);
    const uint32_t units = s->tiles * a.kv_heads;

    for (uint32_t i = blockIdx.x; i < units; i += gridDim.x) {
        const struct latent_unit u = latent_unit_of(a, s, i);
        float o[TILES][COLS / 8][4] = {}, m = -INFINITY, l = 0.0f;

        const uint32_t first =
            max(u.tile.from, first_seen(u.tile.position, a.window) / KEYS * KEYS);

        if (first < u.tile.to) /* else no row of it sees this part */
            latent_queries(a, u, r.q);
        for (uint32_t base = first; base < u.tile.to; base += KEYS) {
            latent_fetch(a, s, u, r.k, base);
            async_wait<0>();
            __syncthreads();
            latent_scores<T>(a, u, r, base);
            __syncthreads();
            latent_weights<T>(u, r, m, l);
            __syncthreads();
            if (a.head_dim > CU_LATENT_VALUE / 2)
                latent_mix<T, COLS / 8>(u, r, o);
            else
                latent_mix<T, COLS / 16>(u, r, o);
            __syncthreads(); /* before K is fetched anew */
        }
        if (threadIdx.x % TEAM == 0) /* no tile is under way */
            ((float2 *)r.score)[threadIdx.x / TEAM] = make_float2(m, l);
        __syncthreads();
        latent_end<T>(a, u, (const float2 *)r.score, o);
        __syncthreads(); /* before the next unit's */
    }
}

EK_KERNEL(ek_latent_bf16, struct cu_attend_args, CU_LATENT_THREADS)
{
    attend_latent<bf16>(a);
}
EK_KERNEL(ek_latent_f16, struct cu_attend_args, CU_LATENT_THREADS)
{
    attend_latent<f16>(a);
}
