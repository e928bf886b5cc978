/*
 * From logits to tokens, as the CPU backend does it (kernels/cpu/sample.c, adjust.c): the log of
 * the sum of exp and the alternatives are of the raw logits; then what the slot wants changed, the
 * mask, then greedy, or temperature, min-p, typical-p, top-k, top-p in this order and one random
 * number, a function of (seed, position of the new token) alone. Ties go to the lower id.
 *
 * One block per sequence, no sort. In the order "heaviest first, lower id first" the top k are a
 * beginning of the list, what top-p keeps is a beginning of that, and the token drawn lies in it;
 * so the same question is asked again and again: at which weight does a running count or sum reach
 * a limit? A search over the bits of the weights answers it in three passes. Sums are of integers
 * (weights times 2^40), so that no order of adding changes them.
 */
#include "kernels/cuda/dev.cuh"

#define THREADS  1024
#define WARPS    (THREADS / 32)
#define BUCKETS  1024
#define FARTHEST 0x7fffffffu
#define COLDEST  1e-5f            /* temperatures below are greedy */
#define UNIT     1099511627776.0f /* 2^40: a weight of 1 */

typedef unsigned long long u64;

struct row {
    const float *x;
    const uint32_t *mask; /* or NULL */
    uint32_t n;
    float max, factor, min_p;
};

/* For typical-p: the weight of all, and the surprise that is expected. */
struct surprise {
    double total, expected;
};

struct work {
    u64 mass[BUCKETS];
    uint32_t count[BUCKETS];
    u64 warp_mass[WARPS];
    uint32_t warp_count[WARPS];
    float warp_float[WARPS];
    double warp_double[WARPS];
    u64 answer[2];
    uint32_t found, found_count;
    struct surprise surprise;
    struct row row; /* that is sampled, here so that it takes no registers all the time */
};

/* Larger floats have larger keys; -0 and 0 the same. */
DEV uint32_t key_of(float f)
{
    uint32_t u = __float_as_uint(f + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

DEV bool allowed(const struct row *r, uint32_t id)
{
    return !r->mask || (r->mask[id / 32] >> (id % 32) & 1u);
}

/* How far a weight's surprise is from the expected one, as bits that order like the number. */
DEV uint32_t distance(const struct surprise &s, float w)
{
    return __float_as_uint((float)fabs(-log((double)w / s.total) - s.expected));
}

DEV float weight(const struct row *r, uint32_t id)
{
    if (!allowed(r, id))
        return 0.0f;
    float w = expf((r->x[id] - r->max) * r->factor);
    return w >= r->min_p ? w : 0.0f; /* not-a-number is no weight either */
}

DEV u64 mass_of(float w)
{
    return (u64)(w * UNIT);
}

DEV u64 max64(u64 a, u64 b)
{
    return a > b ? a : b;
}

DEV u64 block_max64(u64 v, struct work *w)
{
    for (int i = 16; i > 0; i >>= 1)
        v = max64(v, __shfl_xor_sync(0xffffffffu, v, i));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        w->warp_mass[threadIdx.x / 32] = v;
    __syncthreads();
    u64 most = w->warp_mass[0];
    for (int i = 1; i < WARPS; i++)
        most = max64(most, w->warp_mass[i]);
    return most;
}

/* The largest value and, of equals, the lowest id: value's key above, inverted id below. 0 when
 * there is none. Only ids that come behind `before` in that order, if it is not 0. */
DEV u64 largest(const struct row *r, bool masked, u64 before, struct work *w)
{
    u64 most = 0;

    for (uint32_t id = threadIdx.x; id < r->n; id += THREADS) {
        float x = r->x[id];
        if (x != x || (masked && !allowed(r, id)))
            continue;
        u64 v = (u64)key_of(x) << 32 | (0xffffffffu - id);
        if (before == 0 || v < before)
            most = max64(most, v);
    }
    return block_max64(most, w);
}

DEV float lse_of(const struct row *r, float max, struct work *w)
{
    float sum = 0.0f;

    for (uint32_t id = threadIdx.x; id < r->n; id += THREADS) {
        float e = expf(r->x[id] - max);
        sum += e == e ? e : 0.0f;
    }
    return max + logf(block_sum(sum, w->warp_float));
}

/* Philox 4x32, ten rounds: 53 random bits of (key, counter) as a number in [0, 1). */
DEV double random_at(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t p = (uint64_t)c[0] * 0xd2511f53u, q = (uint64_t)c[2] * 0xcd9e8d57u;
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)q;
        c[2] = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p;
    }
    return (double)(((uint64_t)c[0] << 32 | c[1]) >> 11) * 0x1p-53;
}

DEV void warp_totals(u64 *mass, uint32_t *count)
{
    for (int i = 16; i > 0; i >>= 1) {
        *mass += __shfl_xor_sync(0xffffffffu, *mass, i);
        *count += __shfl_xor_sync(0xffffffffu, *count, i);
    }
}

/* Number and mass of all weights above zero. */
DEV void totals(const struct row *r, struct work *w, uint32_t *ret_count, u64 *ret_mass)
{
    u64 mass = 0;
    uint32_t count = 0;

    for (uint32_t id = threadIdx.x; id < r->n; id += THREADS) {
        float f = weight(r, id);
        mass += mass_of(f);
        count += f > 0.0f;
    }
    warp_totals(&mass, &count);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        w->warp_mass[threadIdx.x / 32] = mass;
        w->warp_count[threadIdx.x / 32] = count;
    }
    __syncthreads();
    mass = w->warp_mass[threadIdx.x % 32]; /* as many warps as lanes */
    count = w->warp_count[threadIdx.x % 32];
    warp_totals(&mass, &count);
    *ret_mass = mass;
    *ret_count = count;
    __syncthreads();
}

/* A weight at which the order is cut, and what lies before all of that weight. */
struct cut {
    uint32_t bits; /* of the weight */
    uint32_t count;
    u64 mass;
};

/* In which bucket, from the highest down, the running sum first reaches limit; c grows by what lies
 * before. One thread per bucket. */
DEV uint32_t find_bucket(struct work *w, u64 limit, bool by_count, struct cut *c)
{
    const uint32_t bucket = BUCKETS - 1 - threadIdx.x, lane = threadIdx.x % 32;
    const u64 mass = w->mass[bucket];
    const uint32_t count = w->count[bucket];
    u64 upto_mass = mass;
    uint32_t upto_count = count;

    for (int i = 1; i < 32; i <<= 1) {
        u64 m = __shfl_up_sync(0xffffffffu, upto_mass, i);
        uint32_t n = __shfl_up_sync(0xffffffffu, upto_count, i);
        upto_mass += lane >= (uint32_t)i ? m : 0;
        upto_count += lane >= (uint32_t)i ? n : 0;
    }
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

/* The place in the order at which the running count or mass reaches limit (1 .. total). */
template <class O>
DEV struct cut find_cut(const struct row *r, struct work *w, u64 limit, bool by_count,
                        const O &order)
{
    struct cut c = {0, 0, 0};

    for (int shift = O::HIGHEST; shift >= 0; shift -= 10) {
        w->mass[threadIdx.x] = 0;
        w->count[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t id = threadIdx.x; id < r->n; id += THREADS) {
            float f = weight(r, id);
            uint32_t bits = f > 0.0f ? order_bits(order, f) : 0;
            if (f > 0.0f && (u64)bits >> (shift + 10) == (u64)c.bits >> (shift + 10)) {
                atomicAdd(&w->mass[bits >> shift & (BUCKETS - 1)], mass_of(f));
                atomicAdd(&w->count[bits >> shift & (BUCKETS - 1)], 1u);
            }
        }
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

/* In order of ids: the first at which a running sum reaches limit. Warps share the range until it
 * is short, then one thread walks. */
template <class M> DEV uint32_t find_id(const struct row *r, struct work *w, u64 limit, const M &m)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t from = 0, to = r->n;
    u64 before = 0;

    while (to - from > 128) {
        uint32_t share = (to - from + WARPS - 1) / WARPS, first = min(from + warp * share, to);
        uint32_t end = min(first + share, to);
        u64 sum = 0;
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

/* floor(share * total), kept inside [0, total). */
DEV u64 share_of(double share, u64 total)
{
    u64 v = (u64)(share * (double)total);
    return v < total ? v : total - 1;
}

/* The mass of a beginning of the order that ends at the count-th entry. */
DEV u64 mass_upto(const struct cut *c, uint32_t count)
{
    return c->mass + (u64)(count - c->count) * mass_of(__uint_as_float(c->bits));
}

/* The smallest mass that is not below `wanted`, one at least. */
DEV u64 mass_for(double wanted)
{
    u64 limit = (u64)wanted;
    return limit + ((double)limit < wanted || limit == 0);
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
APART void keep_typical(struct work *w, float typical_p)
{
    const struct row *r = &w->row;
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
    struct cut c = find_cut(r, w, limit, false, by_distance{&w->surprise});
    uint32_t last = find_id(r, w, limit - c.mass, at_distance{c.bits, &w->surprise});
    for (uint32_t id = threadIdx.x; id < r->n; id += THREADS) {
        float f = weight(r, id);
        uint32_t d = f > 0.0f ? distance(w->surprise, f) : 0, far = FARTHEST - c.bits;
        if (d > far || (d == far && id > last))
            x[id] = -INFINITY;
    }
    __syncthreads();
}

DEV bool wants_typical(const struct ek_sampling *p)
{
    return p->typical_p > 0.0f && p->typical_p < 1.0f;
}

DEV uint32_t draw(const struct row *r, const struct ek_sampling *p, uint32_t position,
                  struct work *w)
{
    uint32_t count;
    u64 kept;

    totals(r, w, &count, &kept);
    if (p->top_k == 0 && p->top_p >= 1.0f)
        return find_id(r, w, share_of(random_at(p->seed, position), kept) + 1, of_all{});
    if (p->top_k > 0 && p->top_k < count) {
        struct cut c = find_cut(r, w, p->top_k, true, by_weight{});
        kept = mass_upto(&c, p->top_k);
    }
    if (p->top_p < 1.0f) { /* as many as are needed to hold top_p of it, one at least */
        const u64 limit = mass_for((double)p->top_p * (double)kept);
        struct cut c = find_cut(r, w, limit, false, by_weight{});
        u64 each = mass_of(__uint_as_float(c.bits));
        kept = c.mass + (limit - c.mass + each - 1) / each * each;
    }
    u64 limit = share_of(random_at(p->seed, position), kept) + 1;
    struct cut c = find_cut(r, w, limit, false, by_weight{});
    u64 rank = (limit - c.mass - 1) / mass_of(__uint_as_float(c.bits));
    return find_id(r, w, rank + 1, of_weight{c.bits});
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

/* The token of the row in w, -1 if none may be chosen. */
DEV int32_t choose(const struct ek_sampling *p, uint32_t position, struct work *w)
{
    struct row *r = &w->row;
    u64 best = largest(r, true, 0, w);
    float max = best ? value_of(best) : -INFINITY;

    if (!(fabsf(max) <= 3.4028234664e38f))
        return -1;
    if (p->temperature < COLDEST)
        return (int32_t)id_of(best);
    if (threadIdx.x == 0) {
        r->max = max;
        r->factor = 1.0f / p->temperature;
        r->min_p = p->min_p;
    }
    __syncthreads();
    if (wants_typical(p))
        keep_typical(w, p->typical_p);
    return (int32_t)draw(r, p, position, w);
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

/* True for one of the threads that ask for an id. */
DEV bool first_time(uint32_t *seen, uint32_t id)
{
    return !(atomicOr(&seen[id / 32], 1u << (id % 32)) >> (id % 32) & 1u);
}

DEV void clear_seen(uint32_t *seen, uint32_t n)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < (n + 31) / 32; i += THREADS)
        seen[i] = 0;
    __syncthreads();
}

DEV void penalise(float *x, uint32_t n, const struct ek_slot_set *s, const uint32_t *history,
                  uint32_t *seen)
{
    const struct ek_sampling *p = &s->sampling;
    const uint32_t *output = history + s->prompt;

    if (p->repetition != 0.0f && p->repetition != 1.0f) {
        clear_seen(seen, n);
        for (uint32_t i = threadIdx.x; i < s->prompt + s->output; i += THREADS) {
            uint32_t id = history[i];
            if (first_time(seen, id))
                x[id] = x[id] > 0.0f ? x[id] / p->repetition : x[id] * p->repetition;
        }
    }
    if (p->frequency == 0.0f && p->presence == 0.0f)
        return;
    clear_seen(seen, n);
    for (uint32_t i = threadIdx.x; i < s->output; i += THREADS)
        atomicAdd(&x[output[i]], -p->frequency); /* of one id all alike: any order */
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->output; i += THREADS)
        if (first_time(seen, output[i]))
            x[output[i]] -= p->presence;
}

/* Atomically, because several threads may ask for the same. */
DEV void forbid(float *x, uint32_t id)
{
    atomicExch(&x[id], -INFINITY);
}

/* A sequence whose last token would come next, after all the others have just come, ends there. */
DEV void break_sequences(float *x, const uint32_t *bad, uint32_t count, const uint32_t *output,
                         uint32_t outputs)
{
    for (uint32_t i = 0; i < count; i += bad[i] + 1) {
        uint32_t before = bad[i] - 1;
        bool same = before <= outputs;
        for (uint32_t k = 0; same && k < before; k++)
            same = bad[i + 1 + k] == output[outputs - before + k];
        if (same)
            forbid(x, bad[i + bad[i]]);
    }
}

/* x: a copy of the logits as the slot wants them; lists: its words. */
DEV void adjust(const struct row *r, const struct ek_slot_set *s, const uint32_t *lists,
                uint32_t position, float *x, uint32_t *seen)
{
    const uint32_t *biases = lists + s->allowed, *banned = biases + 2 * (uint64_t)s->biases;
    const uint32_t *bad = banned + s->banned, *history = bad + s->bad;

    for (uint32_t id = threadIdx.x; id < r->n; id += THREADS)
        x[id] = s->allowed == 0 || (lists[id / 32] >> (id % 32) & 1u) ? r->x[id] : -INFINITY;
    __syncthreads();
    if (threadIdx.x == 0)
        break_sequences(x, bad, s->bad, history + s->prompt, s->output);
    for (uint32_t i = threadIdx.x; i < s->banned && position < s->banned_until; i += THREADS)
        forbid(x, banned[i]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->biases; i += THREADS)
        atomicAdd(&x[biases[2 * i]], __uint_as_float(biases[2 * i + 1]));
    __syncthreads();
    if (has_penalties(&s->sampling) && s->prompt + s->output > 0)
        penalise(x, r->n, s, history, seen);
    __syncthreads();
}

/* The largest of all, largest first; the same for every thread. */
DEV uint32_t alternatives(const struct row *r, int32_t *ids, float *logits, uint32_t top,
                          struct work *w)
{
    u64 before = 0;
    uint32_t count = 0;

    top = min(top, min(r->n, EK_TOP_MOST));
    while (count < top) {
        before = largest(r, false, before, w);
        if (before == 0)
            break;
        if (threadIdx.x == 0) {
            ids[count] = (int32_t)id_of(before);
            logits[count] = r->x[id_of(before)];
        }
        count++;
    }
    return count;
}

/* The history grows by what was sampled; a step planned on top of none goes on with token 0. */
DEV void push(struct cu_slot *slot, uint32_t *lists, uint32_t room, int32_t token)
{
    struct ek_slot_set *s = &slot->set;

    slot->last = token;
    if (s->prompt + s->output == 0 || slot_words(s) >= room)
        return;
    lists[slot_words(s)] = (uint32_t)token;
    s->output++;
}

DEV struct row row_at(const struct cu_sample_args *a, uint32_t logit_row)
{
    struct row r = {};

    r.x = at<const float>(a->logits) + (uint64_t)logit_row * a->logit_stride;
    r.n = a->vocab;
    return r;
}

DEV float lse_of_row(const struct row *r, struct work *w)
{
    u64 best = largest(r, false, 0, w);
    return lse_of(r, best ? value_of(best) : -INFINITY, w);
}

DEV cu_addr results_at(const struct cu_sample_args *a)
{
    return a->results + sizeof(struct cu_flags);
}

/* The token of one sequence. What it is found with is not held beyond: registers are few. */
DEV int32_t sample_row(const struct cu_sample_args &a, const struct cu_step *s, struct work *w)
{
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + blockIdx.x;
    const uint32_t logit_row = q->logit_row, position = q->context;
    const struct ek_slot_set *set = &(at<struct cu_slot>(a.slots) + q->slot)->set;
    struct row r = row_at(&a, logit_row);

    if (adjusts(set)) {
        uint64_t words = (uint64_t)a.logit_stride + a.mask_words;
        float *x = at<float>(a.adjusted) + logit_row * words;
        adjust(&r, set, at<uint32_t>(a.words) + (uint64_t)q->slot * a.slot_words, position, x,
               (uint32_t *)(x + a.logit_stride));
        r.x = x;
    }
    r.mask = a.masks ? at<const uint32_t>(a.masks) + (uint64_t)logit_row * a.mask_words : NULL;
    if (threadIdx.x == 0)
        w->row = r;
    __syncthreads();
    return choose(&set->sampling, position, w);
}

EK_KERNEL(ek_sample, struct cu_sample_args, THREADS)
{
    __shared__ struct work w;
    const struct cu_step *s = step_of(a.step);
    if (blockIdx.x >= s->seqs)
        return;
    struct ek_result_seq *out = at<struct ek_result_seq>(results_at(&a)) + blockIdx.x;

    for (uint32_t i = threadIdx.x; i < sizeof(*out) / 4; i += THREADS)
        ((uint32_t *)out)[i] = 0;
    __syncthreads();
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + blockIdx.x;
    if (threadIdx.x == 0)
        out->slot = q->slot;
    if (!q->sample)
        return;
    const int32_t token = sample_row(a, s, &w);
    const struct row raw = row_at(&a, q->logit_row);
    struct cu_slot *slot = at<struct cu_slot>(a.slots) + q->slot;
    const float lse = lse_of_row(&raw, &w);
    const uint32_t top =
        token < 0 ? 0 : alternatives(&raw, out->top_id, out->top_logit, slot->set.top, &w);
    if (threadIdx.x > 0)
        return;
    out->lse = lse;
    push(slot, at<uint32_t>(a.words) + (uint64_t)q->slot * a.slot_words, a.slot_words,
         token < 0 ? 0 : token);
    if (token < 0)
        return;
    out->tokens = 1;
    out->token[0] = token;
    out->logit[0] = raw.x[token];
    out->top = top;
}

/* A block: one scored row; those lie behind the sampled ones. */
EK_KERNEL_ALONE(ek_score, struct cu_sample_args, THREADS)
{
    __shared__ struct work w;
    const struct cu_step *s = step_of(a.step);
    const uint32_t index = blockIdx.x;
    if (index >= s->scores)
        return;
    const struct cu_score score = array_of<struct cu_score>(s, s->score_at)[index];
    const struct row r = row_at(&a, s->logit_rows - s->scores + index);
    struct ek_result_score *out =
        (struct ek_result_score *)(at<struct ek_result_seq>(results_at(&a)) + s->seqs) + index;
    const float target = r.x[score.target];
    float above = 0.0f; /* counts: exact in f32 up to 16 million */

    for (uint32_t i = threadIdx.x; i < sizeof(*out) / 4; i += THREADS)
        ((uint32_t *)out)[i] = 0;
    for (uint32_t id = threadIdx.x; id < r.n; id += THREADS)
        above += r.x[id] > target ? 1.0f : 0.0f;
    above = block_sum(above, w.warp_float);
    const float lse = lse_of_row(&r, &w);
    const uint32_t top = alternatives(&r, out->top_id, out->top_logit,
                                      at<struct cu_slot>(a.slots)[score.slot].set.top, &w);
    if (threadIdx.x > 0)
        return;
    out->logit = target;
    out->lse = lse;
    out->rank = 1 + (uint32_t)above;
    out->top = top;
}

/* A block: one hidden state, as f32. */
EK_KERNEL(ek_hidden, struct cu_sample_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    if (blockIdx.x >= s->hiddens)
        return;
    const uint32_t row = array_of<uint32_t>(s, s->hidden_at)[blockIdx.x];
    cu_addr scores = results_at(&a) + (uint64_t)s->seqs * sizeof(struct ek_result_seq);
    float *to = at<float>(scores + (uint64_t)s->scores * sizeof(struct ek_result_score)) +
                (uint64_t)blockIdx.x * a.hidden_width;

    for (uint32_t i = threadIdx.x; i < a.hidden_width; i += blockDim.x)
        to[i] = load(&a.hidden, (uint64_t)row * a.hidden.stride + i);
}
