/*
 * What the kernels of the sampler share: a row of logits, weights of tokens, the order of tokens,
 * and what a row's pieces are found to be on the way to its token (struct cu_draw, args.h).
 */
#pragma once

#include "kernels/cuda/dev.cuh"

#define UNIT 1099511627776.0f /* 2^40: a weight of 1 */

typedef unsigned long long u64;

struct sample_row {
    const float *x;
    const uint32_t *mask; /* or NULL */
    uint32_t n;
    float max, factor, min_p;
};

/* Larger floats have larger keys; -0 and 0 the same. */
DEV uint32_t key_of(float f)
{
    uint32_t u = __float_as_uint(f + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* A token in the order "largest first, lower id first"; 0 stands for none. */
DEV u64 place_of(float f, uint32_t id)
{
    return (u64)key_of(f) << 32 | (0xffffffffu - id);
}
DEV float value_of(u64 v)
{
    uint32_t key = (uint32_t)(v >> 32);
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
DEV uint32_t id_of(u64 v)
{
    return 0xffffffffu - (uint32_t)v;
}

DEV u64 max64(u64 a, u64 b)
{
    return a > b ? a : b;
}

DEV u64 warp_max64(u64 v)
{
    for (int i = 16; i > 0; i >>= 1)
        v = max64(v, __shfl_xor_sync(0xffffffffu, v, i));
    return v;
}

DEV void warp_totals(u64 *mass, uint32_t *count)
{
    for (int i = 16; i > 0; i >>= 1) {
        *mass += __shfl_xor_sync(0xffffffffu, *mass, i);
        *count += __shfl_xor_sync(0xffffffffu, *count, i);
    }
}

/* Of this lane and all before it. */
DEV void warp_upto(u64 *mass, uint32_t *count)
{
    const uint32_t lane = threadIdx.x % 32;

    for (int i = 1; i < 32; i <<= 1) {
        u64 m = __shfl_up_sync(0xffffffffu, *mass, i);
        uint32_t n = __shfl_up_sync(0xffffffffu, *count, i);
        *mass += lane >= (uint32_t)i ? m : 0;
        *count += lane >= (uint32_t)i ? n : 0;
    }
}

DEV bool allowed(const struct sample_row *r, uint32_t id)
{
    return !r->mask || (r->mask[id / 32] >> (id % 32) & 1u);
}

DEV float weight_of(const struct sample_row *r, float x)
{
    float w = expf((x - r->max) * r->factor);
    return w >= r->min_p ? w : 0.0f; /* not-a-number is no weight either */
}

DEV float weight(const struct sample_row *r, uint32_t id)
{
    return allowed(r, id) ? weight_of(r, r->x[id]) : 0.0f;
}

DEV u64 mass_of(float w)
{
    return (u64)(w * UNIT);
}

/* Four logits from `id`, a multiple of four; a row has room for whole ones. */
DEV void load_quad(const float *x, uint32_t id, float f[4])
{
    const float4 v = *(const float4 *)&x[id];
    f[0] = v.x, f[1] = v.y, f[2] = v.z, f[3] = v.w;
}

/* A bit for each of four tokens that may be chosen. */
DEV uint32_t allowed_quad(const struct sample_row *r, uint32_t id)
{
    return r->mask ? r->mask[id / 32] >> (id % 32) & 15u : 15u;
}

/* Weights by some of their bits: sums of 64 bits in halves: shared memory adds 32 bits at once. */
struct buckets {
    uint32_t low[CU_DRAW_BUCKETS], high[CU_DRAW_BUCKETS], count[CU_DRAW_BUCKETS];
};

DEV void put(struct buckets *b, uint32_t at, float w)
{
    const u64 mass = mass_of(w);
    const uint32_t low = (uint32_t)mass, before = atomicAdd(&b->low[at], low);
    const uint32_t high = (uint32_t)(mass >> 32) + (before + low < before);

    if (high > 0)
        atomicAdd(&b->high[at], high);
    atomicAdd(&b->count[at], 1u);
}

DEV u64 mass_in(const struct buckets *b, uint32_t at)
{
    return (u64)b->high[at] << 32 | b->low[at];
}

/* The smallest mass that is not below `wanted`, one at least. */
DEV u64 mass_for(double wanted)
{
    u64 limit = (u64)wanted;
    return limit + ((double)limit < wanted || limit == 0);
}

DEV uint32_t pieces_of(uint32_t n)
{
    return n / CU_PIECE + (n % CU_PIECE != 0);
}

DEV bool wants_typical(const struct ek_sampling *p)
{
    return p->typical_p > 0.0f && p->typical_p < 1.0f;
}

/* Whether a token is drawn from fewer than all that have weight. */
DEV bool wants_cut(const struct ek_sampling *p)
{
    return p->top_k > 0 || p->top_p < 1.0f;
}

/* ek_sampling_penalizes() for the device. */
DEV bool has_penalties(const struct ek_sampling *p)
{
    return p->frequency != 0.0f || p->presence != 0.0f ||
           (p->repetition != 0.0f && p->repetition != 1.0f);
}

DEV bool adjusts(const struct ek_slot_set *s)
{
    return s->allowed > 0 || s->biases > 0 || s->banned > 0 || s->bad > 0 ||
           (has_penalties(&s->sampling) && s->prompt + s->output > 0) ||
           wants_typical(&s->sampling);
}

/* The logits as the model has them. */
DEV struct sample_row row_at(const struct cu_sample_args *a, uint32_t logit_row)
{
    struct sample_row r = {};

    r.x = at<const float>(a->logits) + (uint64_t)logit_row * a->logit_stride;
    r.n = a->vocab;
    return r;
}

DEV float *adjusted_at(const struct cu_sample_args *a, uint32_t logit_row)
{
    return at<float>(a->adjusted) +
           (uint64_t)logit_row * CU_ADJUSTED(a->logit_stride, a->mask_words);
}

/* The logits that a token is chosen from: as the slot wants them, under the step's mask. */
DEV struct sample_row chosen_from(const struct cu_sample_args *a, const struct ek_slot_set *set,
                                  uint32_t logit_row)
{
    struct sample_row r = row_at(a, logit_row);

    if (adjusts(set))
        r.x = adjusted_at(a, logit_row);
    r.mask = a->masks ? at<const uint32_t>(a->masks) + (uint64_t)logit_row * a->mask_words : NULL;
    return r;
}

DEV struct cu_draw *draw_at(const struct cu_sample_args *a, uint32_t logit_row)
{
    return at<struct cu_draw>(a->draws) + logit_row;
}
DEV struct cu_piece *pieces_at(const struct cu_sample_args *a, uint32_t logit_row)
{
    return at<struct cu_piece>(a->pieces) + (uint64_t)logit_row * pieces_of(a->vocab);
}

/* Tempers a row whose largest logit has this place; false where no token is drawn. */
DEV bool temper(struct sample_row *r, const struct ek_sampling *p, u64 best)
{
    r->max = best ? value_of(best) : -INFINITY;
    r->factor = 1.0f / p->temperature;
    r->min_p = p->min_p;
    return fabsf(r->max) <= 3.4028234664e38f && !(p->temperature < CU_COLDEST);
}
