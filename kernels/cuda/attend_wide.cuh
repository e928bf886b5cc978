/*
 * Attention over the paged cache by blocks that keep a tile of the context in shared memory: a
 * block takes up to 32 (row, head) pairs of one KV head, of a prompt's tile or of a row that
 * attends alone, or a part of their context, and walks it 32 positions at a time. Its warps find
 * the scores together, then each has some columns of V, so that heads of 512 elements need no more
 * registers than smaller ones. K and then V of the positions lie in the same place. Parts are
 * merged by the block that comes last, in their order.
 *
 * A cache of 8 bits is expanded to the type of the model, exactly, on its way to shared memory.
 * Scales of E4M3 are those of the layer, see attend_tile.cu. Of int8 each position has its own: a
 * score is multiplied with that of its K, its weight with that of its V and with CU_I8_LIFT.
 *
 * A decode is bound by reading K and V once, a prompt by arithmetic and by reading Q and K from
 * shared memory for each product.
 */
#pragma once

#include "kernels/cuda/attend.cuh"

#define PAIRS ((int)CU_WIDE_PAIRS)
#define KEYS  ((int)CU_WIDE_KEYS)
#define TILES (PAIRS / 16)

template <int DIM> struct wide {
    enum {
        PITCH = DIM + 8, /* numbers from row to row: lanes meet few banks twice */
        THREADS = CU_WIDE_THREADS(DIM),
        WARPS = THREADS / 32,
        COLS = DIM / WARPS,                  /* of V that a warp mixes */
        EIGHTS = TILES * (KEYS / 8) / WARPS, /* of positions whose scores a warp finds */
        TEAM = THREADS / PAIRS,              /* lanes that find the weights of a pair, */
        EACH = KEYS / TEAM                   /* and of how many positions each does */
    };
};

/* Shared memory of a block. Scores are f32 [pair][position]; weights the same in 16 bits; shrink
 * is what a pair's sums are multiplied with before the tile's are added. */
template <int DIM> struct wide_room {
    uint16_t q[PAIRS * wide<DIM>::PITCH], kv[KEYS * wide<DIM>::PITCH];
    uint16_t weight[PAIRS * CU_WIDE_WEIGHTS];
    float score[PAIRS * CU_WIDE_SCORES], shrink[PAIRS];
    float scale[2][KEYS]; /* of int8: of K, and of V by which its weights are multiplied */
};

/* What a block works on: some pairs of the rows from `row` on and the query heads of a KV head,
 * counted row by row; positions [from, to). */
struct wide_unit {
    const uint32_t *table;
    uint32_t row, position; /* of the first row; its position */
    uint32_t kv_head, per_kv, first, pairs;
    uint32_t from, to, part, parts;
    float *partial;  /* of part 0: o [pairs][head_dim], then m and l [pairs][2]; */
    uint64_t stride; /* from part to part */
    uint32_t *counter;
};

DEV void wide_tile(const struct cu_attend_args &a, const struct cu_step *s, uint32_t index,
                   wide_unit &u)
{
    const uint32_t sub = index % a.subs, head = index / a.subs % a.kv_heads;
    const struct cu_tile t = array_of<struct cu_tile>(s, s->tile_at)[index / (a.subs * a.kv_heads)];
    const uint32_t all = t.rows * u.per_kv, room = PAIRS * (a.head_dim + 2);
    const uint64_t place = ((uint64_t)t.first_partial * a.kv_heads + head) * a.subs + sub;

    u.kv_head = head;
    u.row = t.row;
    u.position = t.position;
    u.first = sub * PAIRS;
    u.pairs = all > u.first ? min(all - u.first, (uint32_t)PAIRS) : 0;
    u.table = array_of<uint32_t>(s, s->table_at) + t.table;
    u.from = t.from;
    u.to = min(t.to, t.position + (u.first + u.pairs + u.per_kv - 1) / u.per_kv);
    u.part = t.part;
    u.parts = t.parts;
    u.partial = at<float>(a.tile_partials) + place * room;
    u.stride = (uint64_t)a.kv_heads * a.subs * room;
    u.counter = at<uint32_t>(a.tile_counters) + place;
}

DEV void wide_item(const struct cu_attend_args &a, const struct cu_step *s, uint32_t index,
                   wide_unit &u)
{
    const uint32_t groups = CU_WIDE_GROUPS(u.per_kv), size = CU_PARTIAL(a.head_dim);
    const struct cu_item t = array_of<struct cu_item>(s, s->item_at)[index / (groups * a.kv_heads)];

    u.kv_head = index / groups % a.kv_heads;
    u.row = t.row;
    u.position = t.position;
    u.first = index % groups * PAIRS;
    u.pairs = min(u.per_kv - u.first, (uint32_t)PAIRS);
    u.table = array_of<uint32_t>(s, s->table_at) + t.table;
    u.from = t.from;
    u.to = t.to;
    u.part = t.part;
    u.parts = t.parts;
    u.partial = at<float>(a.partials) +
                ((uint64_t)t.first_partial * a.q_heads + u.kv_head * u.per_kv + u.first) * size;
    u.stride = (uint64_t)a.q_heads * size;
    u.counter = at<uint32_t>(a.counters) +
                ((uint64_t)t.first_partial * a.kv_heads + u.kv_head) * groups + index % groups;
}

DEV uint32_t wide_head(const wide_unit &u, uint32_t pair)
{
    return u.kv_head * u.per_kv + (u.first + pair) % u.per_kv;
}

/* Where a pair's head begins in rows of Q or of the result. */
DEV uint64_t wide_at(const wide_unit &u, uint32_t pair, uint32_t stride, uint32_t dim)
{
    return (uint64_t)(u.row + (u.first + pair) / u.per_kv) * stride +
           (uint64_t)wide_head(u, pair) * dim;
}

/* Q of the pairs, zeros where there is no pair or element. */
template <int DIM>
DEV void wide_queries(const struct cu_attend_args &a, const wide_unit &u, uint16_t *q)
{
    for (uint32_t i = threadIdx.x; i < PAIRS * DIM / 8; i += blockDim.x) {
        const uint32_t pair = i / (DIM / 8), d = i % (DIM / 8) * 8;
        const bool there = pair < u.pairs && d < a.head_dim;
        async_16(q + pair * wide<DIM>::PITCH + d,
                 at<const uint16_t>(a.x.at) +
                     (there ? wide_at(u, pair, a.x.stride, a.head_dim) + d : 0),
                 there);
    }
    async_commit();
}

/* K (of V: `plane` bytes further) of the positions from `base`, zeros behind the context's end. */
template <class T, int DIM>
DEV void wide_fetch(T, plain, const struct cu_attend_args &a, const struct cu_step *s,
                    const wide_unit &u, uint16_t *kv, uint32_t base, uint64_t plane)
{
    for (uint32_t i = threadIdx.x; i < KEYS * DIM / 8; i += blockDim.x) {
        const uint32_t key = i / (DIM / 8), d = i % (DIM / 8) * 8;
        const bool there = base + key < u.to && d < a.head_dim;
        const cu_addr from = kv_at(s->kv, u.table, min(base + key, u.to - 1), a.block_shift,
                                   a.block_bytes, a.layer_at + plane, u.kv_head, a.head_dim * 2);
        async_16(kv + key * wide<DIM>::PITCH + d, at<const void>(from + (there ? d * 2 : 0)),
                 there);
    }
    async_commit();
}

/* The same of bytes, expanded: all of a thread's are asked for before the first is. */
template <class T, int DIM, class KV>
DEV void wide_fetch(T t, KV, const struct cu_attend_args &a, const struct cu_step *s,
                    const wide_unit &u, uint16_t *kv, uint32_t base, uint64_t plane)
{
    const int each = KEYS * DIM / 16 / wide<DIM>::THREADS;
    uint4 v[each];

#pragma unroll
    for (int e = 0; e < each; e++) {
        const uint32_t i = e * wide<DIM>::THREADS + threadIdx.x;
        const uint32_t key = i / (DIM / 16), d = i % (DIM / 16) * 16;
        const cu_addr from = kv_at(s->kv, u.table, min(base + key, u.to - 1), a.block_shift,
                                   a.block_bytes, a.layer_at + plane, u.kv_head, a.head_dim);
        v[e] = load_stream(at<const uint4>(from + (d < a.head_dim ? d : 0)));
    }
#pragma unroll
    for (int e = 0; e < each; e++) {
        const uint32_t i = e * wide<DIM>::THREADS + threadIdx.x;
        const uint32_t key = i / (DIM / 16), d = i % (DIM / 16) * 16;
        const bool there = base + key < u.to && d < a.head_dim;
        uint32_t w[8];
#pragma unroll
        for (int k = 0; k < 4; k++)
            four(t, KV{}, word(v[e], k), base_of(t, KV{}, 0), w + 2 * k);
        uint4 *to = (uint4 *)(kv + key * wide<DIM>::PITCH + d);
        to[0] = there ? make_uint4(w[0], w[1], w[2], w[3]) : make_uint4(0, 0, 0, 0);
        to[1] = there ? make_uint4(w[4], w[5], w[6], w[7]) : make_uint4(0, 0, 0, 0);
    }
}

/* Of int8: the scales of the positions from `base`, of K and of V. */
template <class KV>
DEV void wide_scales(const struct cu_attend_args &a, const struct cu_step *s, const wide_unit &u,
                     float scale[2][KEYS], uint32_t base)
{
    if (!scaled<KV>::YES || threadIdx.x >= 2 * KEYS)
        return;
    const uint32_t v = threadIdx.x / KEYS, key = threadIdx.x % KEYS;
    const float it = base + key < u.to
                         ? kv_scale(a, s, u.table, base + key, u.kv_head, v ? a.plane_bytes : 0)
                         : 0.0f;
    /* That of a position which is not seen may be anything, not even a number: a finite one makes
     * nothing of its weight, which is 0. */
    scale[v][key] = v ? fminf(fabsf(it * CU_I8_LIFT), 3e38f) : it;
}

/* Scores of the tile: a warp has 16 pairs and some of the positions. */
template <class T, class KV, int DIM>
DEV void wide_scores(const struct cu_attend_args &a, const wide_unit &u, wide_room<DIM> &r,
                     uint32_t base)
{
    const int PITCH = wide<DIM>::PITCH, EIGHTS = wide<DIM>::EIGHTS;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t row0 = warp % TILES * 16, key0 = warp / TILES * (8 * EIGHTS);
    float c[wide<DIM>::EIGHTS][4] = {};

    if (row0 >= u.pairs)
        return;
#pragma unroll 4
    for (uint32_t d = 0; d < a.head_dim; d += 16) {
        const uint16_t *q = r.q + (row0 + g) * PITCH + d + 2 * t;
        const uint32_t f[4] = {pair(q), pair(q + 8 * PITCH), pair(q + 8), pair(q + 8 * PITCH + 8)};
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            const uint16_t *k = r.kv + (key0 + j * 8 + g) * PITCH + d + 2 * t;
            mma(T{}, c[j], f, pair(k), pair(k + 8));
        }
    }
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t row = row0 + g + e / 2 * 8, key = key0 + j * 8 + 2 * t + e % 2;
            const uint32_t own = u.position + (u.first + row) / u.per_kv, position = base + key;
            const bool seen = position <= own && position >= u.from && position < u.to &&
                              position >= first_seen(own, a.window);
            const float by = scaled<KV>::YES ? r.scale[0][key] : 1.0f;
            r.score[row * CU_WIDE_SCORES + key] =
                seen ? capped(c[j][e] * by, a.scale, a.softcap) : -INFINITY;
        }
}

/* Over the lanes of a pair. */
template <int TEAM> DEV float wide_max(float f)
{
    for (int i = TEAM / 2; i > 0; i >>= 1)
        f = fmaxf(f, __shfl_xor_sync(0xffffffffu, f, i));
    return f;
}
template <int TEAM> DEV float wide_sum(float f)
{
    for (int i = TEAM / 2; i > 0; i >>= 1)
        f += __shfl_xor_sync(0xffffffffu, f, i);
    return f;
}

/* Whether the 16 pairs of tile i are more than padding. */
DEV bool wide_has(const wide_unit &u, int i)
{
    return i == 0 || u.pairs > (uint32_t)i * 16;
}

/* Scores become weights; m and l of the thread's pair go on. */
template <class T, class KV, int DIM>
DEV void wide_weights(const wide_unit &u, wide_room<DIM> &r, float &m, float &l)
{
    const int TEAM = wide<DIM>::TEAM, EACH = wide<DIM>::EACH;
    const uint32_t row = threadIdx.x / TEAM, lane = threadIdx.x % TEAM, key0 = lane * EACH;
    if (!wide_has(u, (int)row / 16)) /* whole warps */
        return;
    const float *score = r.score + row * CU_WIDE_SCORES + key0;
    uint16_t *weight = r.weight + row * CU_WIDE_WEIGHTS + key0;
    float x[wide<DIM>::EACH], most = m, sum = 0.0f;

#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        const float4 v = *(const float4 *)(score + i);
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        most = fmaxf(most, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
    }
    most = wide_max<wide<DIM>::TEAM>(most);
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        float p = weight_of(x[i], most), q = weight_of(x[i + 1], most);
        sum += p + q;
        if (scaled<KV>::YES) {
            p *= r.scale[1][key0 + i];
            q *= r.scale[1][key0 + i + 1];
        }
        *(uint32_t *)(weight + i) = pack(T{}, p, q);
    }
    const float by = weight_of(m, most);
    if (lane == 0)
        r.shrink[row] = by;
    l = l * by + wide_sum<wide<DIM>::TEAM>(sum);
    m = most;
}

/* The first of the eight columns of V that a warp has in its tile n. */
template <int DIM> DEV uint32_t wide_col(int n)
{
    return threadIdx.x / 32 * wide<DIM>::COLS + (uint32_t)n * 8;
}

/* The tile's values by their weights, of all pairs. */
template <class T, int DIM>
DEV void wide_mix(const wide_unit &u, const wide_room<DIM> &r,
                  float o[TILES][wide<DIM>::COLS / 8][4])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if (!wide_has(u, i))
            continue;
        const float by[2] = {r.shrink[i * 16 + g], r.shrink[i * 16 + g + 8]};
#pragma unroll
        for (int n = 0; n < wide<DIM>::COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[i][n][e] *= by[e / 2];
    }
#pragma unroll
    for (int k = 0; k < KEYS; k += 16) {
        uint32_t f[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            f[i][0] = f[i][1] = f[i][2] = f[i][3] = 0;
            if (!wide_has(u, i))
                continue;
            const uint16_t *p = r.weight + (i * 16 + g) * CU_WIDE_WEIGHTS + k + 2 * t;
            f[i][0] = pair(p);
            f[i][1] = pair(p + 8 * CU_WIDE_WEIGHTS);
            f[i][2] = pair(p + 8);
            f[i][3] = pair(p + 8 * CU_WIDE_WEIGHTS + 8);
        }
#pragma unroll
        for (int n = 0; n < wide<DIM>::COLS / 8; n += 2) {
            uint32_t b[4];
            load_transposed(b, r.kv + (k + lane % 16) * wide<DIM>::PITCH + wide_col<DIM>(n) +
                                   lane / 16 * 8);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                if (!wide_has(u, i))
                    continue;
                mma(T{}, o[i][n], f[i], b[0], b[1]);
                mma(T{}, o[i][n + 1], f[i], b[2], b[3]);
            }
        }
    }
}

/* What the parts of a unit left, by the block that comes last. */
template <class T> DEV void wide_merge(const struct cu_attend_args &a, const wide_unit &u)
{
    const uint32_t n = a.head_dim;

    if (!last_of(u.counter, u.parts))
        return;
    for (uint32_t i = threadIdx.x * 4; i < u.pairs * n; i += blockDim.x * 4) {
        const uint32_t row = i / n;
        const float *ends = u.partial + u.pairs * n + row * 2;
        float most = -INFINITY, sum = 0.0f;
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint32_t p = 0; p < u.parts; p++)
            most = fmaxf(most, ends[p * u.stride]);
        for (uint32_t p = 0; p < u.parts; p++) {
            const float w = weight_of(ends[p * u.stride], most);
            const float4 v = *(const float4 *)(u.partial + p * u.stride + i);
            sum += w * ends[p * u.stride + 1];
            value.x += w * v.x, value.y += w * v.y, value.z += w * v.z, value.w += w * v.w;
        }
        const float by = whole_of(&a, wide_head(u, row), most, sum);
        *(uint2 *)(at<uint16_t>(a.dst.at) + wide_at(u, row, a.dst.stride, n) + i % n) = make_uint2(
            pack(T{}, value.x * by, value.y * by), pack(T{}, value.z * by, value.w * by));
    }
}

/* The pairs' results to dst, or as sums of a part. `ends`: m and l of each pair. */
template <class T, int DIM>
DEV void wide_end(const struct cu_attend_args &a, const wide_unit &u, const float2 *ends,
                  const float o[TILES][wide<DIM>::COLS / 8][4])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool whole = u.parts == 1;
    float *part = u.partial + u.part * u.stride;

#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t row = i * 16 + h * 8 + g;
            if (row >= u.pairs)
                continue;
            const float2 end = ends[row];
            const float by = whole ? whole_of(&a, wide_head(u, row), end.x, end.y) : 1.0f;
            uint16_t *to = at<uint16_t>(a.dst.at) + wide_at(u, row, a.dst.stride, a.head_dim);
#pragma unroll
            for (int n = 0; n < wide<DIM>::COLS / 8; n++) {
                const uint32_t d = wide_col<DIM>(n) + 2 * t;
                const float x = o[i][n][2 * h] * by, y = o[i][n][2 * h + 1] * by;
                if (d >= a.head_dim)
                    continue;
                if (whole)
                    *(uint32_t *)(to + d) = pack(T{}, x, y);
                else
                    *(float2 *)(part + row * a.head_dim + d) = make_float2(x, y);
            }
        }
    if (whole)
        return;
    for (uint32_t row = threadIdx.x; row < u.pairs; row += blockDim.x)
        *(float2 *)(part + u.pairs * a.head_dim + row * 2) = ends[row];
    wide_merge<T>(a, u);
}

/* One unit from its first tile of the context to its results. */
template <class T, class KV, int DIM>
DEV void wide_attend(const struct cu_attend_args &a, const struct cu_step *s, const wide_unit &u,
                     wide_room<DIM> &r)
{
    float o[TILES][wide<DIM>::COLS / 8][4] = {}, m = -INFINITY, l = 0.0f;
    const uint32_t first =
        max(u.from, first_seen(u.position + u.first / u.per_kv, a.window)) / KEYS * KEYS;

    if (first < u.to) /* else no pair of it sees this part */
        wide_queries<DIM>(a, u, r.q);
    for (uint32_t base = first; base < u.to; base += KEYS) {
        wide_fetch<T, DIM>(T{}, KV{}, a, s, u, r.kv, base, 0);
        wide_scales<KV>(a, s, u, r.scale, base);
        async_wait<0>();
        __syncthreads();
        wide_scores<T, KV, DIM>(a, u, r, base);
        __syncthreads();
        wide_fetch<T, DIM>(T{}, KV{}, a, s, u, r.kv, base, a.plane_bytes);
        wide_weights<T, KV, DIM>(u, r, m, l);
        async_wait<0>();
        __syncthreads();
        wide_mix<T, DIM>(u, r, o);
        __syncthreads(); /* before K is fetched anew */
    }
    float2 *ends = (float2 *)r.score; /* no tile is under way */
    if (threadIdx.x % wide<DIM>::TEAM == 0)
        ends[threadIdx.x / wide<DIM>::TEAM] = make_float2(m, l);
    __syncthreads();
    wide_end<T, DIM>(a, u, ends, o);
    __syncthreads(); /* before the next unit's */
}

/* Tiles of prompts and, where that is wanted, rows that attend alone. */
template <class T, class KV, int DIM, bool ITEMS>
DEV void attend_wide(const struct cu_attend_args &a)
{
    EK_DYNAMIC(shared);
    static_assert(sizeof(wide_room<DIM>) == CU_WIDE_SHARED(DIM), "shared memory");
    wide_room<DIM> &r = *(wide_room<DIM> *)shared;
    const struct cu_step *s = step_of(a.step);
    wide_unit u;

    u.per_kv = a.q_heads / a.kv_heads;
    const uint32_t tiles = s->tiles * a.subs * a.kv_heads;
    const uint32_t items = ITEMS ? s->items * CU_WIDE_GROUPS(u.per_kv) * a.kv_heads : 0;
    for (uint32_t i = blockIdx.x; i < tiles + items; i += gridDim.x) {
        if (i < tiles)
            wide_tile(a, s, i, u);
        else
            wide_item(a, s, i - tiles, u);
        if (u.pairs > 0)
            wide_attend<T, KV, DIM>(a, s, u, r);
    }
}
