/*
 * What the kernels of attention share: which scores count and how, and which of a prompt's tile is
 * whose row.
 *
 * All keep a running maximum and sum per query (m, l). A masked score is -infinity, a query that
 * saw nothing yet has m = -infinity, and exp() is never given infinity minus infinity. Block tables
 * are followed only for positions of the context: addresses behind it may not be mapped.
 */
#pragma once

#include "kernels/cuda/packed.cuh"

DEV float capped(float s, float scale, float cap)
{
    s *= scale;
    return cap > 0.0f ? cap * tanhf(s / cap) : s;
}

/* As ek_first_seen(). */
DEV uint32_t first_seen(uint32_t position, uint32_t window)
{
    const uint32_t size = window & ~CU_CHUNKS;
    if (size == 0 || position < size)
        return 0;
    return window & CU_CHUNKS ? position / size * size : position + 1 - size;
}

/* exp(s - m) with exp(-inf - anything) = 0. */
DEV float weight_of(float s, float m)
{
    return s == -INFINITY ? 0.0f : expf(s - m);
}

/* Whether each position of a cache has scales of its own, and that of a position's K (of V: `plane`
 * bytes further). */
template <class KV> struct scaled {
    enum { YES = 0 };
};
template <> struct scaled<i8> {
    enum { YES = 1 };
};
DEV float kv_scale(const struct cu_attend_args &a, const struct cu_step *s, const uint32_t *table,
                   uint32_t position, uint32_t kv_head, uint64_t plane)
{
    return *at<const float>(kv_at(s->kv, table, position, a.block_shift, a.block_bytes,
                                  a.layer_at + a.scale_at + plane, kv_head, sizeof(float)));
}

/* What o of a row is multiplied with in the end, where the sum of its weights is l: a sink has a
 * weight, too, but nothing to add. */
DEV float whole_of(const struct cu_attend_args *a, uint32_t head, float m, float l)
{
    if (a->sinks == 0)
        return a->v_scale / l;
    const float sink = at<const float>(a->sinks)[head], most = fmaxf(m, sink);
    const float by = weight_of(m, most);
    return by * a->v_scale / (l * by + expf(sink - most));
}

/* The head of one of a lane's two rows in a tile of a prompt. */
DEV uint32_t head_of_row(const struct cu_attend_args *a, uint32_t kv_head, int i)
{
    const uint32_t per_kv = a->q_heads / a->kv_heads;
    return kv_head * per_kv + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i * 8) % per_kv;
}

/* The two query rows of a lane in a tile of a prompt: g and g + 8 of its warp's 16. */
struct tile_rows {
    bool there[2];
    uint32_t position[2];
    const uint16_t *q[2];
    uint64_t out[2];
};

DEV struct tile_rows rows_of_tile(const struct cu_attend_args *a, const struct cu_tile *tile,
                                  uint32_t kv_head)
{
    const uint32_t per_kv = a->q_heads / a->kv_heads;
    struct tile_rows r;

    for (int i = 0; i < 2; i++) {
        uint32_t index = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i * 8;
        uint32_t row = index / per_kv, head = kv_head * per_kv + index % per_kv;
        r.there[i] = row < tile->rows;
        row = r.there[i] ? row : 0;
        r.position[i] = tile->position + row;
        r.q[i] = at<const uint16_t>(a->x.at) + (uint64_t)(tile->row + row) * a->x.stride +
                 (uint64_t)head * a->head_dim;
        r.out[i] = (uint64_t)(tile->row + row) * a->dst.stride + (uint64_t)head * a->head_dim;
    }
    return r;
}

/*
 * Parts of a tile's context leave sums that are not divided yet, with the maximum and the sum of
 * weights of each (row, head) pair: o [PAIRS][head_dim], then m and l [PAIRS][2]. The block that
 * comes last makes the tile's results of them, in the order of the parts.
 */
template <int PAIRS>
DEV float *tile_part(const struct cu_attend_args *a, const struct cu_tile *tile, uint32_t part,
                     uint32_t kv_head)
{
    return at<float>(a->tile_partials) +
           ((uint64_t)(tile->first_partial + part) * a->kv_heads + kv_head) * PAIRS *
               (a->head_dim + 2);
}

/* A lane's m and l of its two rows. */
template <int PAIRS>
DEV void tile_ends(const struct cu_attend_args *a, float *part, int i, float m, float l)
{
    const uint32_t pair = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i * 8;

    if (threadIdx.x % 4 == 0)
        *(float2 *)(part + PAIRS * a->head_dim + pair * 2) = make_float2(m, l);
}

/* All threads of a block come here. */
template <class T, int PAIRS>
DEV void tile_merge(const struct cu_attend_args *a, const struct cu_tile *tile, uint32_t kv_head)
{
    const uint32_t n = a->head_dim, per_kv = a->q_heads / a->kv_heads;
    const uint64_t stride = (uint64_t)a->kv_heads * PAIRS * (n + 2);
    const float *first = tile_part<PAIRS>(a, tile, 0, kv_head);

    if (!last_of(at<uint32_t>(a->tile_counters) + tile->first_partial * a->kv_heads + kv_head,
                 tile->parts))
        return;
    for (uint32_t i = threadIdx.x * 4; i < tile->rows * per_kv * n; i += blockDim.x * 4) {
        const uint32_t pair = i / n, head = kv_head * per_kv + pair % per_kv;
        const float *ends = first + PAIRS * n + pair * 2;
        float most = -INFINITY, sum = 0.0f;
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint32_t p = 0; p < tile->parts; p++)
            most = fmaxf(most, ends[p * stride]);
        for (uint32_t p = 0; p < tile->parts; p++) {
            const float w = weight_of(ends[p * stride], most);
            const float4 v = *(const float4 *)(first + p * stride + i);
            sum += w * ends[p * stride + 1];
            value.x += w * v.x, value.y += w * v.y, value.z += w * v.z, value.w += w * v.w;
        }
        const float by = whole_of(a, head, most, sum);
        *(uint2 *)(at<uint16_t>(a->dst.at) + (uint64_t)(tile->row + pair / per_kv) * a->dst.stride +
                   (uint64_t)head * n + i % n) = make_uint2(pack(T{}, value.x * by, value.y * by),
                                                            pack(T{}, value.z * by, value.w * by));
    }
}
