/*
 * What the kernels of attention share: which scores count and how, and who of a prompt's tile is
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
