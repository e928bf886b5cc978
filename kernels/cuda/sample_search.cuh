/*
 * What the threads of a block that samples work with together, and how they search a row without
 * sorting it: for typical-p, and where too many tokens weigh about the same to be collected.
 *
 * The question is always at which weight a running count or sum reaches a limit; a search over the
 * bits of the weights answers it in three passes. Sums are of integers (weights times 2^40), so
 * whatever adds them first gives the same token. Used by sample.cu.
 */
#pragma once

#include "kernels/cuda/sample.cuh"

#define THREADS  1024
#define WARPS    (THREADS / 32)
#define BUCKETS  CU_DRAW_BUCKETS /* as many as threads */
#define FARTHEST 0x7fffffffu

/* For typical-p: the weight of all, and the surprise that is expected. */
struct surprise {
    double total, expected;
};

/* Tokens heaviest first (bits of the weight, inverted id), and the mass of each beginning. */
struct sample_sorted {
    u64 token[CU_DRAW_LIST], mass[CU_DRAW_LIST];
};

struct sample_work {
    union {
        struct buckets h;
        struct sample_sorted s;
    };
    u64 warp_mass[WARPS];
    uint32_t warp_count[WARPS];
    float warp_float[WARPS];
    double warp_double[WARPS];
    u64 answer[2];
    uint32_t found, found_count;
    struct surprise surprise;
    struct sample_row row; /* that is sampled, here so that it takes no registers all the time */
};

/* How far a weight's surprise is from the expected one, as bits that order like the number. */
DEV uint32_t distance(const struct surprise &s, float w)
{
    return __float_as_uint((float)fabs(-log((double)w / s.total) - s.expected));
}

DEV u64 block_max64(u64 v, struct sample_work *w)
{
    v = warp_max64(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        w->warp_mass[threadIdx.x / 32] = v;
    __syncthreads();
    u64 most = w->warp_mass[0];
    for (int i = 1; i < WARPS; i++)
        most = max64(most, w->warp_mass[i]);
    return most;
}

/* Over the block, for all its threads. */
DEV void block_totals(struct sample_work *w, uint32_t *count, u64 *mass)
{
    warp_totals(mass, count);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        w->warp_mass[threadIdx.x / 32] = *mass;
        w->warp_count[threadIdx.x / 32] = *count;
    }
    __syncthreads();
    *mass = w->warp_mass[threadIdx.x % 32]; /* as many warps as lanes */
    *count = w->warp_count[threadIdx.x % 32];
    warp_totals(mass, count);
    __syncthreads();
}

/* f(id, weight) for every weight above zero: each thread asks for eight logits at once, which would
 * be waited for one after the other. */
template <class F> DEV void each_weight(const struct sample_row *r, const F &f)
{
    for (uint32_t first = threadIdx.x * 4; first < r->n; first += THREADS * 8) {
        float x[2][4];
        uint32_t bits[2] = {};
#pragma unroll
        for (uint32_t q = 0; q < 2; q++) {
            const uint32_t id = first + q * THREADS * 4;
            if (id >= r->n)
                continue;
            load_quad(r->x, id, x[q]);
            bits[q] = allowed_quad(r, id) & (id + 4 <= r->n ? 15u : (1u << (r->n - id)) - 1);
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const float w = bits[i / 4] >> i % 4 & 1u ? weight_of(r, x[i / 4][i % 4]) : 0.0f;
            if (w > 0.0f)
                f(first + i / 4 * THREADS * 4 + i % 4, w);
        }
    }
}

/* Number and mass of all weights above zero. */
DEV void totals(const struct sample_row *r, struct sample_work *w, uint32_t *ret_count,
                u64 *ret_mass)
{
    u64 mass = 0;
    uint32_t count = 0;

    each_weight(r, [&](uint32_t, float f) {
        mass += mass_of(f);
        count++;
    });
    block_totals(w, &count, &mass);
    *ret_mass = mass;
    *ret_count = count;
}

/* A weight at which the order is cut, and what lies before all of that weight. */
struct sample_cut {
    uint32_t bits; /* of the weight */
    uint32_t count;
    u64 mass;
};

/* In which bucket, from the highest down, the running sum first reaches limit; c grows by what lies
 * before. One thread per bucket. */
DEV uint32_t find_bucket(struct sample_work *w, u64 limit, bool by_count, struct sample_cut *c)
{
    const uint32_t bucket = BUCKETS - 1 - threadIdx.x, lane = threadIdx.x % 32;
    const u64 mass = mass_in(&w->h, bucket);
    const uint32_t count = w->h.count[bucket];
    u64 upto_mass = mass;
    uint32_t upto_count = count;

    warp_upto(&upto_mass, &upto_count);
    if (lane == 31) {
        w->warp_mass[threadIdx.x / 32] = upto_mass;
        w->warp_count[threadIdx.x / 32] = upto_count;
    }
    __syncthreads();
    for (uint32_t i = 0; i < threadIdx.x / 32; i++) {
        upto_mass += w->warp_mass[i];
        upto_count += w->warp_count[i];
    }
    u64 before_mass = c->mass + upto_mass - mass;
    uint32_t before_count = c->count + upto_count - count;
    u64 before = by_count ? before_count : before_mass;
    if (before < limit && before + (by_count ? count : mass) >= limit) {
        w->found = bucket; /* one thread only: the running sum reaches the limit once */
        w->found_count = before_count;
        w->answer[0] = before_mass;
    }
    __syncthreads();
    c->mass = w->answer[0];
    c->count = w->found_count;
    return w->found;
}

/* Two orders: heaviest first, or nearest to the expected surprise first. */
struct by_weight {
    enum { HIGHEST = 20 }; /* weights are 0 .. 1 and have 30 bits, distances 31 */
};
struct by_distance {
    enum { HIGHEST = 30 };
    const struct surprise *s;
};

DEV uint32_t order_bits(const by_weight &, float w)
{
    return __float_as_uint(w);
}
DEV uint32_t order_bits(const by_distance &o, float w)
{
    return FARTHEST - distance(*o.s, w);
}

/* The place in the order at which the running count or mass reaches limit (1 .. total). `known`: of
 * weights what their highest bits are, or NULL. */
template <class O>
DEV struct sample_cut find_cut(const struct sample_row *r, struct sample_work *w, u64 limit,
                               bool by_count, const O &order, const struct cu_draw *known)
{
    struct sample_cut c = {0, 0, 0};

    for (int shift = O::HIGHEST; shift >= 0; shift -= 10) {
        const bool is_known = known && shift == O::HIGHEST;
        const u64 mass = is_known ? known->mass[threadIdx.x] : 0;
        w->h.low[threadIdx.x] = (uint32_t)mass;
        w->h.high[threadIdx.x] = (uint32_t)(mass >> 32);
        w->h.count[threadIdx.x] = is_known ? known->count[threadIdx.x] : 0;
        __syncthreads();
        if (!is_known)
            each_weight(r, [&](uint32_t, float f) {
                const uint32_t bits = order_bits(order, f);
                if ((u64)bits >> (shift + 10) == (u64)c.bits >> (shift + 10))
                    put(&w->h, bits >> shift & (BUCKETS - 1), f);
            });
        __syncthreads();
        c.bits |= find_bucket(w, limit, by_count, &c) << shift;
        __syncthreads();
    }
    return c;
}

/* What find_id() sums: every weight's mass, 1 for each weight of these bits, or the mass of those
 * at this distance. */
struct of_all {
};
struct of_weight {
    uint32_t bits;
};
struct at_distance {
    uint32_t bits;
    const struct surprise *s;
};

DEV u64 measure_of(const of_all &, float f)
{
    return mass_of(f);
}
DEV u64 measure_of(const of_weight &m, float f)
{
    return __float_as_uint(f) == m.bits;
}
DEV u64 measure_of(const at_distance &m, float f)
{
    return f > 0.0f && FARTHEST - distance(*m.s, f) == m.bits ? mass_of(f) : 0;
}

/* In order of ids: the first of these at which a running sum reaches limit. Warps share the range
 * until it is short, then one thread walks. */
template <class M>
DEV uint32_t find_id(const struct sample_row *r, struct sample_work *w, u64 limit, const M &m,
                     uint32_t from, uint32_t to)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 before = 0;

    while (to - from > 128) {
        uint32_t share = (to - from + WARPS - 1) / WARPS, first = min(from + warp * share, to);
        uint32_t end = min(first + share, to);
        u64 sum = 0;
#pragma unroll 4
        for (uint32_t id = first + lane; id < end; id += 32)
            sum += measure_of(m, weight(r, id));
        for (int i = 16; i > 0; i >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, i);
        __syncthreads();
        if (lane == 0)
            w->warp_mass[warp] = sum;
        __syncthreads();
        uint32_t at_warp = 0;
#pragma unroll 1 /* there are few registers left */
        while (at_warp + 1 < WARPS && before + w->warp_mass[at_warp] < limit)
            before += w->warp_mass[at_warp++];
        from = min(from + at_warp * share, to);
        to = min(from + share, to);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        uint32_t last = from;
        for (uint32_t id = from; id < to && before < limit; id++) {
            u64 mass = measure_of(m, weight(r, id));
            before += mass;
            last = mass > 0 ? id : last;
        }
        w->found = last;
    }
    __syncthreads();
    uint32_t id = w->found;
    __syncthreads();
    return id;
}

/* The mass of a beginning of the order that ends at the count-th entry. */
DEV u64 mass_upto(const struct sample_cut *c, uint32_t count)
{
    return c->mass + (u64)(count - c->count) * mass_of(__uint_as_float(c->bits));
}

DEV double block_sum_double(double f, double *work)
{
    for (int i = 16; i > 0; i >>= 1)
        f += __shfl_xor_sync(0xffffffffu, f, i);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        work[threadIdx.x / 32] = f;
    __syncthreads();
    double sum = 0.0;
    for (int i = 0; i < WARPS; i++)
        sum += work[i];
    __syncthreads();
    return sum;
}

/* Leaves only the tokens whose surprise is nearest to the expected one, until they hold typical_p
 * of the weight: of those that are farther, or as far with a later id, the logit becomes -infinity.
 * The row's logits are a copy then. A function of its own, so that its double precision takes no
 * registers from rows that do not ask for it. */
APART void keep_typical(struct sample_work *w, float typical_p)
{
    const struct sample_row *r = &w->row;
    float *x = (float *)(uintptr_t)r->x;
    double expected = 0.0;
    uint32_t count;
    u64 mass;

    totals(r, w, &count, &mass);
    const double total = (double)mass / (double)UNIT;
    for (uint32_t id = threadIdx.x; id < r->n; id += THREADS) {
        double p = (double)weight(r, id) / total;
        expected -= p > 0.0 ? p * log(p) : 0.0;
    }
    expected = block_sum_double(expected, w->warp_double);
    if (threadIdx.x == 0)
        w->surprise = {total, expected};
    __syncthreads();
    const u64 limit = mass_for((double)typical_p * (double)mass);
    struct sample_cut c = find_cut(r, w, limit, false, by_distance{&w->surprise}, NULL);
    uint32_t last = find_id(r, w, limit - c.mass, at_distance{c.bits, &w->surprise}, 0, r->n);
    for (uint32_t id = threadIdx.x; id < r->n; id += THREADS) {
        float f = weight(r, id);
        uint32_t d = f > 0.0f ? distance(w->surprise, f) : 0, far = FARTHEST - c.bits;
        if (d > far || (d == far && id > last))
            x[id] = -INFINITY;
    }
    __syncthreads();
}
