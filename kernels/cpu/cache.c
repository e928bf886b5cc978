/*
 * Writing K and V of a token and head to the paged cache, in the form that the tier reads: plain,
 * in pairs of bf16 (struct cpu_block), or in 8 bits with a scale, plain or in quads (cache.h).
 */
#include "kernels/cpu/cache.h"

#include <string.h>

#include "kernels/cpu/cpu.h"

bool cpu_cache_pairs(const struct ek_device *d)
{
    return d->ops->pairs && !d->graph->kv_i8 && d->graph->dtype == EK_BF16 &&
           d->graph->head_dim % 2 == 0 && d->shape.block_size % 2 == 0;
}

const struct cpu_quad_cache *cpu_cache_quads(const struct ek_device *d)
{
    if (!d->graph->kv_i8 || d->graph->head_dim % 4 != 0 || d->shape.block_size % 4 != 0)
        return NULL;
    return d->ops->cache;
}

/* In 32 bits each. */
static void write_f32(const struct ek_device *d, char *block, uint32_t key, const float *k,
                      const float *v)
{
    const uint32_t bs = d->shape.block_size, n = d->graph->head_dim;
    float *to = (float *)(void *)block;

    for (uint32_t i = 0; i < n; i++)
        to[cpu_key_index(false, bs, i, key)] = k[i];
    memcpy(block + d->shape.k_bytes + key * d->shape.values * sizeof(float), v,
           ek_graph_value_dim(d->graph) * sizeof(float));
}

/* In 16 bits, rounded in pieces, where two adjacent elements of a key and two adjacent keys of V
 * lie side by side. */
static void write_pairs(const struct ek_device *d, char *block, uint32_t key, const float *k,
                        const float *v)
{
    const uint32_t bs = d->shape.block_size, n = d->graph->head_dim;
    const uint32_t values = ek_graph_value_dim(d->graph);
    uint16_t half[64], *v_to = (uint16_t *)(void *)(block + d->shape.k_bytes);
    uint32_t *k_to = (uint32_t *)(void *)block + key;

    v_to += cpu_value_index(true, d->shape.values, 0, key);
    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t count = n - at < 64 ? n - at : 64;
        d->ops->store(d->graph->dtype, half, k + at, count);
        for (uint32_t i = 0; i < count; i += 2)
            memcpy(k_to + (size_t)(at + i) / 2 * bs, half + i, sizeof(*k_to));
    }
    for (uint32_t at = 0; at < values; at += 64) {
        uint32_t count = values - at < 64 ? values - at : 64;
        d->ops->store(d->graph->dtype, half, v + at, count);
        for (uint32_t i = 0; i < count; i++)
            v_to[(size_t)(at + i) * 2] = half[i];
    }
}

static void write_half(const struct ek_device *d, char *block, uint32_t key, const float *k,
                       const float *v)
{
    const uint32_t bs = d->shape.block_size, n = d->graph->head_dim;
    uint16_t half[64], *k_to = (uint16_t *)(void *)block;
    uint16_t *v_to = (uint16_t *)(void *)(block + d->shape.k_bytes);

    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t count = n - at < 64 ? n - at : 64;
        d->ops->store(d->graph->dtype, half, k + at, count);
        for (uint32_t i = 0; i < count; i++)
            k_to[cpu_key_index(false, bs, at + i, key)] = half[i];
    }
    d->ops->store(d->graph->dtype, v_to + (size_t)key * d->shape.values, v,
                  ek_graph_value_dim(d->graph));
}

/* In 8 bits, with their scales. */
static void write_i8(const struct ek_device *d, char *block, uint32_t key, const float *k,
                     const float *v)
{
    const uint32_t bs = d->shape.block_size, dim = d->shape.values, n = d->graph->head_dim;
    const uint32_t count = ek_graph_value_dim(d->graph);
    char *values = block + d->shape.k_bytes;
    int8_t number[CPU_QUAD_DIM_MOST];

    float scale = d->ops->round8(number, k, n);
    memcpy(block + d->shape.k_scale_at + key * sizeof(scale), &scale, sizeof(scale));
    if (cpu_cache_quads(d)) {
        for (uint32_t i = 0; i < n; i++)
            number[i] ^= (int8_t)-128; /* 128 is zero */
        for (uint32_t i = 0; i < n; i += 4)
            memcpy(block + cpu_quad_key_index(bs, i, key), number + i, 4);
    } else
        for (uint32_t i = 0; i < n; i++)
            block[cpu_key_index(false, bs, i, key)] = number[i];
    scale = d->ops->round8(number, v, count);
    memcpy(block + d->shape.v_scale_at + key * sizeof(scale), &scale, sizeof(scale));
    if (!cpu_cache_quads(d))
        memcpy(values + cpu_value_index(false, dim, 0, key), number, count);
    else
        for (uint32_t i = 0; i < count; i++)
            values[cpu_quad_value_index(dim, i, key)] = number[i];
}

void cpu_kv_write(const struct ek_device *d, const struct ek_step *step, const struct ek_op *op,
                  uint32_t row)
{
    const uint32_t n = op->u.attention.head_dim, bs = d->shape.block_size;
    const uint32_t slot = ek_step_kv_slots(step)[row];

    const bool latent = op->u.attention.value_dim > 0;
    const float *keys = latent ? cpu_row(d, op->u.attention.keys, row)
                               : cpu_row(d, op->src, row) + (size_t)op->u.attention.q_heads * n;

    for (uint32_t h = 0; h < op->u.attention.kv_heads; h++) {
        const float *k = keys + (size_t)h * n;
        const float *v = latent ? k : k + (size_t)op->u.attention.kv_heads * n;
        char *block = cpu_kv_at(d, slot / bs, op->layer, h);
        if (d->graph->kv_i8)
            write_i8(d, block, slot % bs, k, v);
        else if (d->graph->dtype == EK_F32)
            write_f32(d, block, slot % bs, k, v);
        else if (cpu_cache_pairs(d))
            write_pairs(d, block, slot % bs, k, v);
        else
            write_half(d, block, slot % bs, k, v);
    }
}
