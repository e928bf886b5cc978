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
 * out. So is one of int8 (_i8), whose positions have scales of their own: attend_wide.cuh says
 * where they go.
 */
#include "kernels/cuda/attend.cuh"

DEV float kv_load(const struct cu_attend_args &a, cu_addr row, uint32_t i)
{
    const struct cu_view v = {row, 0, a.x.dtype};
    if (a.scale_at > 0)
        return (float)at<const uint8_t>(row)[i] - 128.0f;
    return a.kv_f8 ? e4m3_float(at<const uint8_t>(row)[i]) : load(&v, i);
}

#define PLAIN 128
EK_KERNEL(ek_attend_plain, struct cu_attend_args, PLAIN)
{
    __shared__ float score[PLAIN], work[32];
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, head = blockIdx.y, kv_head = head / (a.q_heads / a.kv_heads);
    const uint32_t n = a.head_dim, elem = a.x.dtype == EK_F32 ? 4 : 2;
    const bool i8 = a.scale_at > 0;
    const uint32_t bytes = n * (a.kv_f8 || i8 ? 1 : elem);
    if (row >= s->rows)
        return;
    const uint32_t *table =
        array_of<uint32_t>(s, s->table_at) + at<const uint32_t>(a.row_table)[row];
    const uint32_t position = array_of<uint32_t>(s, s->position_at)[row];
    const uint64_t q = (uint64_t)row * a.x.stride + head * n;
    float m = -INFINITY, l = 0.0f, acc[CU_DIM_MOST / PLAIN] = {};

    for (uint32_t base = first_seen(position, a.window); base <= position; base += PLAIN) {
        uint32_t count = min(position + 1 - base, (uint32_t)PLAIN);
        float mine = -INFINITY, by = 1.0f;
        if (threadIdx.x < count) {
            cu_addr k = kv_at(s->kv, table, base + threadIdx.x, a.block_shift, a.block_bytes,
                              a.layer_at, kv_head, bytes);
            float sum = 0.0f;
            for (uint32_t i = 0; i < n; i++)
                sum += load(&a.x, q + i) * kv_load(a, k, i);
            if (i8) {
                sum *= kv_scale(a, s, table, base + threadIdx.x, kv_head, 0);
                by = CU_I8_LIFT * kv_scale(a, s, table, base + threadIdx.x, kv_head, a.plane_bytes);
            }
            mine = capped(sum, a.scale, a.softcap);
        }
        float most = fmaxf(m, block_max(mine, work));
        float factor = weight_of(m, most), p = weight_of(mine, most);
        score[threadIdx.x] = p * by;
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

#define WARPS (CU_ROW_THREADS / 32)

/* What one block of ek_attend_row works on. */
struct work_unit {
    struct cu_item item;
    uint32_t kv_head, group, first, heads; /* its query heads: first .. first + heads */
};

DEV struct work_unit unit_of(const struct cu_attend_args *a, const struct cu_step *s,
                             uint32_t index)
{
    const uint32_t per_kv = a->q_heads / a->kv_heads, groups = (per_kv + CU_HEADS - 1) / CU_HEADS;
    struct work_unit u;

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
DEV void merge_parts(const struct cu_attend_args *a, const struct work_unit *u,
                     const float *partial, uint64_t stride, uint64_t to)
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
DEV void finish_row(const struct cu_attend_args *a, const struct work_unit *u,
                    const row_found<DIM> &f)
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

/* Eight neighbouring numbers of the cache: where they are 16 bits wide, or 8. */
template <class T> DEV uint4 eight(T, plain, cu_addr row, uint32_t index)
{
    return load_stream(at<const uint4>(row) + index);
}
template <class T> DEV uint4 eight(T t, f8, cu_addr row, uint32_t index)
{
    const uint2 v = load_stream(at<const uint2>(row) + index);
    uint32_t low[2], high[2];

    four(t, f8{}, v.x, 0, low);
    four(t, f8{}, v.y, 0, high);
    return make_uint4(low[0], low[1], high[0], high[1]);
}

template <class T> DEV uint4 eight(T t, i8, cu_addr row, uint32_t index)
{
    const uint2 v = load_stream(at<const uint2>(row) + index);
    const uint32_t base = base_of(t, i8{}, 0);
    uint32_t low[2], high[2];

    four(t, i8{}, v.x, base, low);
    four(t, i8{}, v.y, base, high);
    return make_uint4(low[0], low[1], high[0], high[1]);
}

template <class T, class KV, int CHUNKS>
DEV void row_scores(const struct cu_attend_args &a, const row_state<T, CHUNKS> &r, float s[2][2],
                    cu_addr k0, cu_addr k1, uint32_t t)
{
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; c++) {
        bool there = c * 32 + t * 8 < a.head_dim;
        uint4 x = there ? eight(T{}, KV{}, k0, c * 4 + t) : zero;
        uint4 y = there ? eight(T{}, KV{}, k1, c * 4 + t) : zero;
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

template <class T, class KV, int CHUNKS>
DEV void row_mix(const struct cu_attend_args &a, row_state<T, CHUNKS> &r, uint32_t p0, uint32_t p1,
                 const cu_addr v[4], uint32_t g)
{
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        bool there = c * 64 + g * 8 < a.head_dim;
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = there ? eight(T{}, KV{}, v[i], c * 8 + g) : zero;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t e0 = part_of(x[0], w), e1 = part_of(x[1], w), e2 = part_of(x[2], w),
                     e3 = part_of(x[3], w);
            mma_half(T{}, r.o[c][2 * w], p0, p1, low_halves(e0, e1), low_halves(e2, e3));
            mma_half(T{}, r.o[c][2 * w + 1], p0, p1, high_halves(e0, e1), high_halves(e2, e3));
        }
    }
}

/* One warp's 16 positions from base; those outside [from, to) weigh nothing. */
template <class T, class KV, int CHUNKS>
DEV void row_step(const struct cu_attend_args &a, row_state<T, CHUNKS> &r, const struct cu_step *s,
                  const uint32_t *table, uint32_t kv_head, uint32_t base, uint32_t from,
                  uint32_t to)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t bytes = a.head_dim * (KV::PACKED ? 1 : 2);
    cu_addr k[2], v[4];
    float x[2][2] = {}, v_scale[4] = {};

    for (int i = 0; i < 2; i++)
        k[i] = kv_at(s->kv, table, max(from, min(base + i * 8 + g, to - 1)), a.block_shift,
                     a.block_bytes, a.layer_at, kv_head, bytes);
    for (int i = 0; i < 4; i++) {
        uint32_t position = base + 2 * t + i % 2 + i / 2 * 8;
        v[i] = kv_at(s->kv, table, max(from, min(position, to - 1)), a.block_shift, a.block_bytes,
                     a.layer_at, kv_head, bytes) +
               a.plane_bytes;
    }
    row_scores<T, KV, CHUNKS>(a, r, x, k[0], k[1], t);
    float most = r.m;
    for (int i = 0; i < 4; i++) {
        uint32_t position = base + i / 2 * 8 + 2 * t + i % 2;
        bool seen = position >= from && position < to;
        if (scaled<KV>::YES && seen) {
            x[i / 2][i % 2] *= kv_scale(a, s, table, position, kv_head, 0);
            v_scale[i] = CU_I8_LIFT * kv_scale(a, s, table, position, kv_head, a.plane_bytes);
        }
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
    for (int i = 0; scaled<KV>::YES && i < 4; i++)
        x[i / 2][i % 2] *= v_scale[i];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            r.o[c][j][0] *= factor, r.o[c][j][1] *= factor;
    row_mix<T, KV, CHUNKS>(a, r, pack(T{}, x[0][0], x[0][1]), pack(T{}, x[1][0], x[1][1]), v, g);
}

template <class T, int CHUNKS>
DEV void row_begin(const struct cu_attend_args &a, const struct work_unit &u,
                   row_state<T, CHUNKS> &r)
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
    __syncthreads(); /* the unit before is done with these */
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
    __shared__ __align__(16) row_found<CHUNKS * 64> f;
    const struct cu_step *s = step_of(a.step);
    const uint32_t per_kv = a.q_heads / a.kv_heads, warp = threadIdx.x / 32;
    const uint32_t units = s->items * a.kv_heads * ((per_kv + CU_HEADS - 1) / CU_HEADS);

    for (uint32_t i = blockIdx.x; i < units; i += gridDim.x) {
        const struct work_unit u = unit_of(&a, s, i);
        const uint32_t *table = array_of<uint32_t>(s, s->table_at) + u.item.table;
        const uint32_t seen = first_seen(u.item.position, a.window);
        const uint32_t from = max(u.item.from, seen), to = u.item.to;
        row_state<T, CHUNKS> r;

        row_begin<T, CHUNKS>(a, u, r);
        for (uint32_t base = from / 16 * 16 + warp * 16; base < to; base += 16 * WARPS)
            if (from < to)
                row_step<T, KV, CHUNKS>(a, r, s, table, u.kv_head, base, from, to);
        row_merge<T, CHUNKS>(r, f);
        finish_row<T>(&a, &u, f);
    }
}

#define FIVE_BLOCKS(name, type, threads)  EK_KERNEL_LATE(name, type, threads, 5)
#define FOUR_BLOCKS(name, type, threads)  EK_KERNEL_LATE(name, type, threads, 4)
#define THREE_BLOCKS(name, type, threads) EK_KERNEL_LATE(name, type, threads, 3)

/* `kernel` of a cache in the model's type, the others of one in E4M3 and in int8. */
#define ATTEND_ROW(type, dim, chunks, kernel, kernel_f8, kernel_i8)                                \
    kernel(ek_attend_row_##type##_##dim, struct cu_attend_args, CU_ROW_THREADS)                    \
    {                                                                                              \
        attend_row<type, plain, chunks>(a);                                                        \
    }                                                                                              \
    kernel_f8(ek_attend_row_##type##_##dim##_f8, struct cu_attend_args, CU_ROW_THREADS)            \
    {                                                                                              \
        attend_row<type, f8, chunks>(a);                                                           \
    }                                                                                              \
    kernel_i8(ek_attend_row_##type##_##dim##_i8, struct cu_attend_args, CU_ROW_THREADS)            \
    {                                                                                              \
        attend_row<type, i8, chunks>(a);                                                           \
    }

ATTEND_ROW(bf16, 64, 1, FOUR_BLOCKS, FIVE_BLOCKS, FIVE_BLOCKS)
ATTEND_ROW(bf16, 128, 2, EK_KERNEL, THREE_BLOCKS, EK_KERNEL_ALONE)
ATTEND_ROW(bf16, 256, 4, EK_KERNEL, EK_KERNEL, EK_KERNEL)
ATTEND_ROW(f16, 64, 1, FOUR_BLOCKS, FIVE_BLOCKS, FIVE_BLOCKS)
ATTEND_ROW(f16, 128, 2, EK_KERNEL, THREE_BLOCKS, EK_KERNEL_ALONE)
ATTEND_ROW(f16, 256, 4, EK_KERNEL, EK_KERNEL, EK_KERNEL)
