/*
 * Writing K and V of a token and head to the paged cache, in the form that the tier reads: plain,
 * in pairs of bf16 (struct cpu_block), or in 8 bits with a scale, plain or in quads (cache.h).
 */
#include "kernels/cpu/cache.h"

#include <string.h>

#include "kernels/cpu/device.h"

bool cpu_cache_pairs(const struct ek_device *d, const struct cpu_cells *c)
{
    return d->ops->pairs && !d->graph->kv_i8 && d->graph->dtype == EK_BF16 && c->keys % 2 == 0 &&
           d->shape.block_size % 2 == 0;
}

const struct cpu_quad_cache *cpu_cache_quads(const struct ek_device *d, const struct cpu_cells *c)
{
    if (!d->graph->kv_i8 || c->keys % 4 != 0 || d->shape.block_size % 4 != 0)
        return NULL;
    return d->ops->cache;
}

/* A token's K and V of one head, and where they go. */
struct writing {
    const struct ek_device *d;
    const struct cpu_cells *c;
    char *block;  /* of the head */
    uint32_t key; /* in the block */
    const float *k, *v;
};

/* In 32 bits each. */
static void write_f32(const struct writing *w)
{
    const struct cpu_cells *c = w->c;
    float *to = (float *)(void *)w->block;

    for (uint32_t i = 0; i < c->keys; i++)
        to[cpu_key_index(false, w->d->shape.block_size, i, w->key)] = w->k[i];
    memcpy(w->block + c->k_bytes + w->key * c->values * sizeof(float), w->v,
           c->value_dim * sizeof(float));
}

/* In 16 bits, rounded in pieces, where two adjacent elements of a key and two adjacent keys of V
 * lie side by side. */
static void write_pairs(const struct writing *w)
{
    const struct ek_device *d = w->d;
    const uint32_t bs = d->shape.block_size, n = w->c->keys, values = w->c->value_dim;
    uint16_t half[64], *v_to = (uint16_t *)(void *)(w->block + w->c->k_bytes);
    uint32_t *k_to = (uint32_t *)(void *)w->block + w->key;

    v_to += cpu_value_index(true, w->c->values, 0, w->key);
    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t count = n - at < 64 ? n - at : 64;
        d->ops->store(d->graph->dtype, half, w->k + at, count);
        for (uint32_t i = 0; i < count; i += 2)
            memcpy(k_to + (size_t)(at + i) / 2 * bs, half + i, sizeof(*k_to));
    }
    for (uint32_t at = 0; at < values; at += 64) {
        uint32_t count = values - at < 64 ? values - at : 64;
        d->ops->store(d->graph->dtype, half, w->v + at, count);
        for (uint32_t i = 0; i < count; i++)
            v_to[(size_t)(at + i) * 2] = half[i];
    }
}

static void write_half(const struct writing *w)
{
    const struct ek_device *d = w->d;
    const uint32_t bs = d->shape.block_size, n = w->c->keys;
    uint16_t half[64], *k_to = (uint16_t *)(void *)w->block;
    uint16_t *v_to = (uint16_t *)(void *)(w->block + w->c->k_bytes);

    for (uint32_t at = 0; at < n; at += 64) {
        uint32_t count = n - at < 64 ? n - at : 64;
        d->ops->store(d->graph->dtype, half, w->k + at, count);
        for (uint32_t i = 0; i < count; i++)
            k_to[cpu_key_index(false, bs, at + i, w->key)] = half[i];
    }
    d->ops->store(d->graph->dtype, v_to + (size_t)w->key * w->c->values, w->v, w->c->value_dim);
}

/* In 8 bits, with their scales. */
static void write_i8(const struct writing *w)
{
    const struct ek_device *d = w->d;
    const uint32_t bs = d->shape.block_size, dim = w->c->values, n = w->c->keys;
    const uint32_t count = w->c->value_dim, key = w->key;
    char *block = w->block, *values = block + w->c->k_bytes;
    int8_t number[CPU_QUAD_DIM_MOST];

    float scale = d->ops->round8(number, w->k, n);
    memcpy(block + w->c->k_scale_at + key * sizeof(scale), &scale, sizeof(scale));
    if (cpu_cache_quads(d, w->c)) {
        for (uint32_t i = 0; i < n; i++)
            number[i] ^= (int8_t)-128; /* 128 is zero */
        for (uint32_t i = 0; i < n; i += 4)
            memcpy(block + cpu_quad_key_index(bs, i, key), number + i, 4);
    } else
        for (uint32_t i = 0; i < n; i++)
            block[cpu_key_index(false, bs, i, key)] = number[i];
    scale = d->ops->round8(number, w->v, count);
    memcpy(block + w->c->v_scale_at + key * sizeof(scale), &scale, sizeof(scale));
    if (!cpu_cache_quads(d, w->c))
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
    const struct cpu_cells *c = &d->cells[op->layer];

    const bool latent = op->u.attention.value_dim > 0;
    const float *keys = latent ? cpu_row(d, op->u.attention.keys, row)
                               : cpu_row(d, op->src, row) + (size_t)op->u.attention.q_heads * n;

    for (uint32_t h = 0; h < op->u.attention.kv_heads; h++) {
        struct writing w = {.d = d, .c = c, .key = slot % bs, .k = keys + (size_t)h * n};
        w.v = latent ? w.k : w.k + (size_t)op->u.attention.kv_heads * n;
        w.block = cpu_kv_at(d, slot / bs, c, h);
        if (d->graph->kv_i8)
            write_i8(&w);
        else if (d->graph->dtype == EK_F32)
            write_f32(&w);
        else if (cpu_cache_pairs(d, c))
            write_pairs(&w);
        else
            write_half(&w);
    }
}
