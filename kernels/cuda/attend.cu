/*
 * Attention over the paged cache, of rows that attend alone:
 *
 *   ek_attend_plain   any type and head size, rows of prompts too; a block takes one row and one
 *                     query head.
 *   ek_attend_row_*   decode. Bound by reading K and V once: a block takes up to 8 query heads of
 *                     one KV head over a part of the context; the last block of a row's parts to
 *                     finish merges them (its counter resets itself).
 *
 * A cache of E4M3 (names that end in _f8) is expanded to the type of the model, exactly, in
 * registers. The scale of K is in that of the scores, the scale of V is multiplied to what comes
 * out.
 */
#include "kernels/cuda/attend.cuh"

DEV float kv_load(const struct cu_attend_args &a, cu_addr row, uint32_t i)
{
    const struct cu_view v = {row, 0, a.x.dtype};
    return a.kv_f8 ? e4m3_float(at<const uint8_t>(row)[i]) : load(&v, i);
}

#define PLAIN 128
EK_KERNEL(ek_attend_plain, struct cu_attend_args, PLAIN)
{
    __shared__ float score[PLAIN], work[32];
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, head = blockIdx.y, kv_head = head / (a.q_heads / a.kv_heads);
    const uint32_t n = a.head_dim, elem = a.x.dtype == EK_F32 ? 4 : 2;
    const uint32_t bytes = n * (a.kv_f8 ? 1 : elem);
    if (row >= s->rows)
        return;
    const uint32_t *table =
        array_of<uint32_t>(s, s->table_at) + at<const uint32_t>(a.row_table)[row];
    const uint32_t position = array_of<uint32_t>(s, s->position_at)[row];
    const uint64_t q = (uint64_t)row * a.x.stride + head * n;
    float m = -INFINITY, l = 0.0f, acc[CU_DIM_MOST / PLAIN] = {};

    for (uint32_t base = first_seen(position, a.window); base <= position; base += PLAIN) {
        uint32_t count = min(position + 1 - base, (uint32_t)PLAIN);
        float mine = -INFINITY;
        if (threadIdx.x < count) {
            cu_addr k = kv_at(s->kv, table, base + threadIdx.x, a.block_shift, a.block_bytes,
                              a.layer_at, kv_head, bytes);
            float sum = 0.0f;
            for (uint32_t i = 0; i < n; i++)
                sum += load(&a.x, q + i) * kv_load(a, k, i);
            mine = capped(sum, a.scale, a.softcap);
        }
        float most = fmaxf(m, block_max(mine, work));
        float factor = weight_of(m, most), p = weight_of(mine, most);
        score[threadIdx.x] = p;
        l = l * factor + block_sum(p, work); /* its barriers also publish the scores */
        m = most;
        for (uint32_t c = 0; c < CU_DIM_MOST / PLAIN; c++) {
            uint32_t i = c * PLAIN + threadIdx.x;
            float sum = acc[c] * factor;
            for (uint32_t k = 0; i < n && k < count; k++)
                sum += score[k] * kv_load(a,
                                          kv_at(s->kv, table, base + k, a.block_shift,
                                                a.block_bytes, a.layer_at, kv_head, bytes) +
                                              a.plane_bytes,
                                          i);
            acc[c] = sum;
        }
        __syncthreads();
    }
    for (uint32_t c = 0; c < CU_DIM_MOST / PLAIN; c++) {
        uint32_t i = c * PLAIN + threadIdx.x;
        if (i < n)
            store(&a.dst, (uint64_t)row * a.dst.stride + head * n + i,
                  acc[c] * whole_of(&a, head, m, l));
    }
}

#define WARPS 4

/* What one block of ek_attend_row works on. */
struct unit {
    struct cu_item item;
    uint32_t kv_head, group, first, heads; /* its query heads: first .. first + heads */
};

DEV struct unit unit_of(const struct cu_attend_args *a, const struct cu_step *s, uint32_t index)
{
    const uint32_t per_kv = a->q_heads / a->kv_heads, groups = (per_kv + CU_HEADS - 1) / CU_HEADS;
    struct unit u;

    u.group = index % groups;
    u.kv_head = index / groups % a->kv_heads;
    u.item = array_of<struct cu_item>(s, s->item_at)[index / (groups * a->kv_heads)];
    u.first = u.kv_head * per_kv + u.group * CU_HEADS;
    u.heads = min(CU_HEADS, per_kv - u.group * CU_HEADS);
    return u;
}

/* What a block's warps found of a unit, each by itself: sums of values that are not divided yet,
 * scaled to the block's maximum m; l with all warps in it. Rows lie apart so that a warp's stores
 * meet few banks twice. */
template <int DIM> struct row_found {
    float o[WARPS][CU_HEADS][DIM + 4], m[WARPS][CU_HEADS], l[WARPS][CU_HEADS];
};

template <int DIM> DEV float row_value(const row_found<DIM> &f, uint32_t head, uint32_t d)
{
    float sum = 0.0f;

    for (int i = 0; i < WARPS; i++)
        sum += f.o[i][head][d];
    return sum;
}

/* Of all parts of a row: a warp for each head, four numbers a lane. */
template <class T>
DEV void merge_parts(const struct cu_attend_args *a, const struct unit *u, const float *partial,
                     uint64_t stride, uint64_t to)
{
    const uint32_t n = a->head_dim, size = CU_PARTIAL(n), parts = u->item.parts;
    const uint32_t lane = threadIdx.x % 32;

    for (uint32_t h = threadIdx.x / 32; h < u->heads; h += WARPS) {
        const float *head = partial + h * size, *ends = head + n;
        float most = -INFINITY, sum = 0.0f;
        for (uint32_t p = lane; p < parts; p += 32)
            most = fmaxf(most, ends[p * stride]);
        most = warp_max(most);
        for (uint32_t p = lane; p < parts; p += 32)
            sum += weight_of(ends[p * stride], most) * ends[p * stride + 1];
        const float by = whole_of(a, u->first + h, most, warp_sum(sum));
        for (uint32_t d = lane * 4; d < n; d += 128) {
            float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
            for (uint32_t p = 0; p < parts; p++) {
                const float w = weight_of(ends[p * stride], most);
                const float4 v = *(const float4 *)(head + p * stride + d);
                value.x += w * v.x, value.y += w * v.y, value.z += w * v.z, value.w += w * v.w;
            }
            *(uint2 *)(at<uint16_t>(a->dst.at) + to + h * n + d) = make_uint2(
                pack(T{}, value.x * by, value.y * by), pack(T{}, value.z * by, value.w * by));
        }
    }
}

/* The part's result of each head: to dst when it is the whole, else to its partials, of which the
 * block that comes last makes the whole. */
template <class T, int DIM>
DEV void finish_row(const struct cu_attend_args *a, const struct unit *u, const row_found<DIM> &f)
{
    const uint32_t n = a->head_dim, size = CU_PARTIAL(n), parts = u->item.parts;
    const uint64_t to = (uint64_t)u->item.row * a->dst.stride + (uint64_t)u->first * n;
    float *partial =
        at<float>(a->partials) + ((uint64_t)u->item.first_partial * a->q_heads + u->first) * size;
    const uint64_t stride = (uint64_t)a->q_heads * size; /* from part to part */

    for (uint32_t i = threadIdx.x; i < u->heads * n; i += blockDim.x) {
        const uint32_t head = i / n, d = i % n;
        const float value = row_value(f, head, d);
        if (parts == 1)
            store(&a->dst, to + i,
                  value * whole_of(a, u->first + head, f.m[0][head], f.l[0][head]));
        else
            partial[u->item.part * stride + head * size + d] = value;
    }
    if (parts == 1)
        return;
    if (threadIdx.x < u->heads) {
        float *end = partial + u->item.part * stride + threadIdx.x * size + n;
        end[0] = f.m[0][threadIdx.x];
        end[1] = f.l[0][threadIdx.x];
    }
    const uint32_t groups = (a->q_heads / a->kv_heads + CU_HEADS - 1) / CU_HEADS;
    const uint64_t counter =
        ((uint64_t)u->item.first_partial * a->kv_heads + u->kv_head) * groups + u->group;
    if (last_of(at<uint32_t>(a->counters) + counter, parts))
        merge_parts<T>(a, u, partial, stride, to);
}

/*
 * A warp takes 16 positions at a time, every fourth 16 of the part. Q is operand A (rows = heads, 8
 * to 15 empty), K is B: a lane's 16 bytes of K are 8 neighbours of dim, which Q matches. For the
 * second product V is B, and which column of B is which dim is free: lane group g loads dims
 * 64 c + 8 g .. + 7 of its positions and has with that one column of eight tiles.
 */
template <class T, int CHUNKS> struct row_state {
    uint32_t q[2 * CHUNKS][4]; /* of 32 dims each: a0, a2 of two mma */
    float o[CHUNKS][8][2];     /* of 64 dims each: tile j, columns 2t, 2t+1 = dims 64c+8(2t+i)+j */
    float m, l;                /* of head g; l is this lane's share */
};

/* Eight neighbouring numbers of a cache of E4M3. */
template <class T> DEV uint4 eight(T t, cu_addr row, uint32_t index)
{
    const uint2 v = load_stream(at<const uint2>(row) + index);
    uint32_t low[2], high[2];

    four(t, f8{}, v.x, 0, low);
    four(t, f8{}, v.y, 0, high);
    return make_uint4(low[0], low[1], high[0], high[1]);
}

/* Scores of 16 positions: k_of(i, c) is what the lane has of chunk c of its position i * 8 + g. */
template <class T, int CHUNKS, class K>
DEV void row_scores(const row_state<T, CHUNKS> &r, float s[2][2], const K &k_of)
{
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        const uint4 x = k_of(0, c), y = k_of(1, c);
        mma_half(T{}, s[0], r.q[c][0], r.q[c][1], x.x, x.y);
        mma_half(T{}, s[0], r.q[c][2], r.q[c][3], x.z, x.w);
        mma_half(T{}, s[1], r.q[c][0], r.q[c][1], y.x, y.y);
        mma_half(T{}, s[1], r.q[c][2], r.q[c][3], y.z, y.w);
    }
}

DEV uint32_t low_halves(uint32_t a, uint32_t b)
{
    return (a & 0xffffu) | b << 16;
}
DEV uint32_t high_halves(uint32_t a, uint32_t b)
{
    return a >> 16 | (b & 0xffff0000u);
}
DEV uint32_t part_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <class T, int CHUNKS, class V>
DEV void row_mix(row_state<T, CHUNKS> &r, uint32_t p0, uint32_t p1, const V &v_of)
{
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = v_of(i, c);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t e0 = part_of(x[0], w), e1 = part_of(x[1], w), e2 = part_of(x[2], w),
                     e3 = part_of(x[3], w);
            mma_half(T{}, r.o[c][2 * w], p0, p1, low_halves(e0, e1), low_halves(e2, e3));
            mma_half(T{}, r.o[c][2 * w + 1], p0, p1, high_halves(e0, e1), high_halves(e2, e3));
        }
    }
}

/* What a block attends to, of one KV head, and which of it is there. */
struct row_span {
    const uint32_t *table;
    uint32_t kv_head, from, to;
};

/* Where a lane's keys and values of a warp's 16 positions from base lie. */
struct row_places {
    cu_addr k[2], v[4];
};

template <class KV>
DEV struct row_places places_of(const struct cu_attend_args &a, const struct cu_step *s,
                                const struct row_span &span, uint32_t base)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t bytes = a.head_dim * (KV::PACKED ? 1 : 2);
    struct row_places p;

    for (int i = 0; i < 6; i++) {
        const uint32_t at = i < 2 ? base + i * 8 + g : base + 2 * t + i % 2 + (i - 2) / 2 * 8;
        const cu_addr place =
            kv_at(s->kv, span.table, max(span.from, min(at, span.to - 1)), a.block_shift,
                  a.block_bytes, a.layer_at, span.kv_head, bytes);
        if (i < 2)
            p.k[i] = place;
        else
            p.v[i - 2] = place + a.plane_bytes;
    }
    return p;
}

/* A turn of a block: the bytes that each lane multiplies, copied by itself. */
template <int CHUNKS> struct row_slot {
    uint4 k[2][2 * CHUNKS][WARPS * 32], v[4][CHUNKS][WARPS * 32];
};

template <int CHUNKS>
DEV void row_ask(const struct cu_attend_args &a, row_slot<CHUNKS> *slot,
                 const struct row_places &p)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool there = c * 32 + t * 8 < a.head_dim;
            async_16(&slot->k[i][c][threadIdx.x], at<const uint4>(p.k[i]) + (there ? c * 4 + t : 0),
                     there);
        }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool there = c * 64 + g * 8 < a.head_dim;
            async_16(&slot->v[i][c][threadIdx.x], at<const uint4>(p.v[i]) + (there ? c * 8 + g : 0),
                     there);
        }
}

/* One warp's 16 positions from base; those outside of the span weigh nothing. */
template <class T, int CHUNKS, class K, class V>
DEV void row_step(const struct cu_attend_args &a, row_state<T, CHUNKS> &r,
                  const struct row_span &span, uint32_t base, const K &k_of, const V &v_of)
{
    const uint32_t t = threadIdx.x % 4;
    float x[2][2] = {};

    row_scores(r, x, k_of);
    float most = r.m;
    for (int i = 0; i < 4; i++) {
        uint32_t position = base + i / 2 * 8 + 2 * t + i % 2;
        bool seen = position >= span.from && position < span.to;
        x[i / 2][i % 2] = seen ? capped(x[i / 2][i % 2], a.scale, a.softcap) : -INFINITY;
        most = fmaxf(most, x[i / 2][i % 2]);
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float factor = weight_of(r.m, most);
    for (int i = 0; i < 4; i++)
        x[i / 2][i % 2] = weight_of(x[i / 2][i % 2], most);
    r.l = r.l * factor + x[0][0] + x[0][1] + x[1][0] + x[1][1];
    r.m = most;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            r.o[c][j][0] *= factor, r.o[c][j][1] *= factor;
    row_mix(r, pack(T{}, x[0][0], x[0][1]), pack(T{}, x[1][0], x[1][1]), v_of);
}

/* All that a warp attends to, every fourth 16 positions of the span. Of a cache in the model's type
 * the next turns are under way while one is computed. */
template <class T, int CHUNKS>
DEV void row_turns(T, plain, const struct cu_attend_args &a, row_state<T, CHUNKS> &r,
                   const struct cu_step *s, const struct row_span &span, void *shared)
{
    enum { STAGES = CU_ROW_SHARED / sizeof(row_slot<CHUNKS>), AHEAD = STAGES > 1 ? STAGES - 1 : 0 };
    row_slot<CHUNKS> *slots = (row_slot<CHUNKS> *)shared;
    const uint32_t first = span.from / 16 * 16 + threadIdx.x / 32 * 16, each = 16 * WARPS;
    const uint32_t turns = first < span.to ? (span.to - first + each - 1) / each : 0;
    const auto ask = [&](uint32_t i) {
        if (i < turns)
            row_ask<CHUNKS>(a, &slots[i % STAGES], places_of<plain>(a, s, span, first + i * each));
        async_commit();
    };

    for (int i = 0; i < (int)AHEAD; i++)
        ask((uint32_t)i);
    for (uint32_t i = 0; i < turns; i++) {
        const row_slot<CHUNKS> *slot = &slots[i % STAGES];
        if (AHEAD == 0)
            ask(i);
        async_wait<(AHEAD > 0 ? AHEAD - 1 : 0)>();
        if (AHEAD > 0)
            ask(i + AHEAD);
        row_step(
            a, r, span, first + i * each,
            [&](int row, int c) { return slot->k[row][c][threadIdx.x]; },
            [&](int row, int c) { return slot->v[row][c][threadIdx.x]; });
    }
}

/* One of E4M3 is half as much to read, and goes to registers. */
template <class T, int CHUNKS>
DEV void row_turns(T type, f8, const struct cu_attend_args &a, row_state<T, CHUNKS> &r,
                   const struct cu_step *s, const struct row_span &span, void *)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0);

    for (uint32_t base = span.from / 16 * 16 + threadIdx.x / 32 * 16; base < span.to;
         base += 16 * WARPS) {
        const struct row_places p = places_of<f8>(a, s, span, base);
        row_step(
            a, r, span, base,
            [&](int row, int c) {
                return c * 32 + t * 8 < a.head_dim ? eight(type, p.k[row], c * 4 + t) : zero;
            },
            [&](int row, int c) {
                return c * 64 + g * 8 < a.head_dim ? eight(type, p.v[row], c * 8 + g) : zero;
            });
    }
}

template <class T, int CHUNKS>
DEV void row_begin(const struct cu_attend_args &a, const struct unit &u, row_state<T, CHUNKS> &r)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint16_t *q = at<const uint16_t>(a.x.at) + (uint64_t)u.item.row * a.x.stride +
                        (uint64_t)(u.first + g) * a.head_dim;

    r.m = -INFINITY;
    r.l = 0.0f;
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        uint32_t d = c * 32 + t * 8;
        uint4 x = g < u.heads && d < a.head_dim ? *(const uint4 *)(q + d) : make_uint4(0, 0, 0, 0);
        r.q[c][0] = x.x, r.q[c][1] = x.y, r.q[c][2] = x.z, r.q[c][3] = x.w;
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            r.o[c][j][0] = r.o[c][j][1] = 0.0f;
}

/* What this warp found, as all of the block need it. */
template <class T, int CHUNKS>
DEV void row_merge(const row_state<T, CHUNKS> &r, row_found<CHUNKS * 64> &f)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float sum = r.l;

    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    __syncthreads(); /* the turns that lay here are done with */
    if (t == 0)
        f.m[warp][g] = r.m, f.l[warp][g] = sum;
    __syncthreads();
    float most = f.m[0][g], total = 0.0f;
    for (int i = 1; i < WARPS; i++)
        most = fmaxf(most, f.m[i][g]);
    for (int i = 0; i < WARPS; i++)
        total += weight_of(f.m[i][g], most) * f.l[i][g];
    const float factor = weight_of(r.m, most);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                *(float4 *)&f.o[warp][g][c * 64 + 8 * (2 * t + i) + j] =
                    make_float4(r.o[c][j][i] * factor, r.o[c][j + 1][i] * factor,
                                r.o[c][j + 2][i] * factor, r.o[c][j + 3][i] * factor);
    __syncthreads();
    if (warp == 0 && t == 0)
        f.m[0][g] = most, f.l[0][g] = total;
    __syncthreads();
}

template <class T, class KV, int CHUNKS> DEV void attend_row(const struct cu_attend_args &a)
{
    EK_DYNAMIC(shared); /* turns of a unit, then what was found of it */
    row_found<CHUNKS * 64> &f = *(row_found<CHUNKS * 64> *)shared;
    const struct cu_step *s = step_of(a.step);
    const uint32_t per_kv = a.q_heads / a.kv_heads;
    const uint32_t units = s->items * a.kv_heads * ((per_kv + CU_HEADS - 1) / CU_HEADS);

    for (uint32_t i = blockIdx.x; i < units; i += gridDim.x) {
        const struct unit u = unit_of(&a, s, i);
        const uint32_t seen = first_seen(u.item.position, a.window);
        const struct row_span span = {array_of<uint32_t>(s, s->table_at) + u.item.table, u.kv_head,
                                      max(u.item.from, seen), u.item.to};
        row_state<T, CHUNKS> r;

        row_begin<T, CHUNKS>(a, u, r);
        if (span.from < span.to)
            row_turns(T{}, KV{}, a, r, s, span, shared);
        row_merge<T, CHUNKS>(r, f);
        finish_row<T>(&a, &u, f);
        __syncthreads(); /* before the next unit's turns lie there */
    }
}

#define FIVE_BLOCKS(name, type, threads)  EK_KERNEL_LATE(name, type, threads, 5)
#define FOUR_BLOCKS(name, type, threads)  EK_KERNEL_LATE(name, type, threads, 4)
#define THREE_BLOCKS(name, type, threads) EK_KERNEL_LATE(name, type, threads, 3)

/* `kernel` of a cache in the model's type, `kernel_f8` of one in E4M3. */
#define ATTEND_ROW(type, dim, chunks, kernel, kernel_f8)                                           \
    kernel(ek_attend_row_##type##_##dim, struct cu_attend_args, 128)                               \
    {                                                                                              \
        attend_row<type, plain, chunks>(a);                                                        \
    }                                                                                              \
    kernel_f8(ek_attend_row_##type##_##dim##_f8, struct cu_attend_args, 128)                       \
    {                                                                                              \
        attend_row<type, f8, chunks>(a);                                                           \
    }

ATTEND_ROW(bf16, 64, 1, FOUR_BLOCKS, FIVE_BLOCKS)
ATTEND_ROW(bf16, 128, 2, EK_KERNEL, THREE_BLOCKS)
ATTEND_ROW(bf16, 256, 4, EK_KERNEL, EK_KERNEL)
ATTEND_ROW(f16, 64, 1, FOUR_BLOCKS, FIVE_BLOCKS)
ATTEND_ROW(f16, 128, 2, EK_KERNEL, THREE_BLOCKS)
ATTEND_ROW(f16, 256, 4, EK_KERNEL, EK_KERNEL)
