/*
 * What of the sampler needs all of a row, over as many multiprocessors as there are: ek_sample
 * (sample.cu), one block per sequence, then finds the token in what is left here.
 *
 *   scan     the logits as the slot wants them; of each piece of CU_PIECE logits the largest, raw
 *            and of those that may be chosen, and the sum of exp. That is all a greedy row needs.
 *   weigh    of rows that draw: how many tokens of a piece have weight, and how much; where there
 *            is a top-k or top-p the same of each bucket of weights
 *   collect  of rows with a top-k or top-p: the tokens of the buckets in which it must lie, if they
 *            are few
 *
 * A warp takes a piece, 32 logits a lane, so what is found of one does not depend on how many
 * blocks there are, floats included; sums over pieces are of integers (weights times 2^40), which
 * any order adds to the same. Bound by reading the logits: once for each of the three. Typical-p is
 * left to ek_sample, and rows of a lot of equal weights.
 */
#include "kernels/cuda/sample.cuh"

#define THREADS  128
#define WARPS    (THREADS / 32)
#define QUADS    (CU_PIECE / 128) /* loads of four logits of a lane */
#define EACH     (CU_DRAW_BUCKETS / THREADS)
#define SHIFT    20 /* of a weight's 30 bits: its bucket */
#define NO_TOKEN 0xffffffffu

/* The pieces of this block's share of its row. */
struct scan_share {
    uint32_t from, to;
};

DEV struct scan_share share_of_block(uint32_t pieces)
{
    return {(uint32_t)((u64)pieces * blockIdx.y / gridDim.y),
            (uint32_t)((u64)pieces * (blockIdx.y + 1) / gridDim.y)};
}

DEV uint32_t id_in_piece(uint32_t piece, uint32_t quad)
{
    return piece * CU_PIECE + quad * 128 + threadIdx.x % 32 * 4;
}

/* ---- the logits as the slot wants them ---- */

/* Tokens whose logits this block writes. */
struct scan_range {
    uint32_t from, to;
};

DEV bool in(const struct scan_range &ids, uint32_t id)
{
    return id >= ids.from && id < ids.to;
}

/* True for one of the threads that ask for an id. */
DEV bool first_time(uint32_t *seen, uint32_t id)
{
    return !(atomicOr(&seen[id / 32], 1u << (id % 32)) >> (id % 32) & 1u);
}

/* Pieces begin at multiples of 32 tokens, so a word of bits is one block's. */
DEV void clear_seen(uint32_t *seen, const struct scan_range &ids)
{
    __syncthreads();
    for (uint32_t i = ids.from / 32 + threadIdx.x; i < (ids.to + 31) / 32; i += THREADS)
        seen[i] = 0;
    __syncthreads();
}

DEV void penalise(float *x, const struct scan_range &ids, const struct ek_slot_set *s,
                  const uint32_t *history, uint32_t *seen)
{
    const struct ek_sampling *p = &s->sampling;
    const uint32_t *output = history + s->prompt;

    if (p->repetition != 0.0f && p->repetition != 1.0f) {
        clear_seen(seen, ids);
        for (uint32_t i = threadIdx.x; i < s->prompt + s->output; i += THREADS) {
            uint32_t id = history[i];
            if (in(ids, id) && first_time(seen, id))
                x[id] = x[id] > 0.0f ? x[id] / p->repetition : x[id] * p->repetition;
        }
    }
    if (p->frequency == 0.0f && p->presence == 0.0f)
        return;
    clear_seen(seen, ids);
    for (uint32_t i = threadIdx.x; i < s->output; i += THREADS)
        if (in(ids, output[i]))
            atomicAdd(&x[output[i]], -p->frequency); /* of one id all alike: any order */
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->output; i += THREADS)
        if (in(ids, output[i]) && first_time(seen, output[i]))
            x[output[i]] -= p->presence;
}

/* Atomically, because several threads may ask for the same. */
DEV void forbid(float *x, const struct scan_range &ids, uint32_t id)
{
    if (in(ids, id))
        atomicExch(&x[id], -INFINITY);
}

/* A sequence whose last token would come next, after all the others have just come, ends there. */
DEV void break_sequences(float *x, const struct scan_range &ids, const struct ek_slot_set *s,
                         const uint32_t *bad, const uint32_t *output)
{
    for (uint32_t i = 0; i < s->bad; i += bad[i] + 1) {
        uint32_t before = bad[i] - 1;
        bool same = before <= s->output;
        for (uint32_t k = 0; same && k < before; k++)
            same = bad[i + 1 + k] == output[s->output - before + k];
        if (same)
            forbid(x, ids, bad[i + bad[i]]);
    }
}

/* x: a copy of the logits as the slot wants them, of these ids; lists: its words. */
DEV void adjust(const float *raw, const struct scan_range &ids, const struct ek_slot_set *s,
                const uint32_t *lists, uint32_t position, float *x, uint32_t *seen)
{
    const uint32_t *biases = lists + s->allowed, *banned = biases + 2 * (uint64_t)s->biases;
    const uint32_t *bad = banned + s->banned, *history = bad + s->bad;

    for (uint32_t id = ids.from + threadIdx.x; id < ids.to; id += THREADS)
        x[id] = s->allowed == 0 || (lists[id / 32] >> (id % 32) & 1u) ? raw[id] : -INFINITY;
    __syncthreads();
    if (threadIdx.x == 0)
        break_sequences(x, ids, s, bad, history + s->prompt);
    for (uint32_t i = threadIdx.x; i < s->banned && position < s->banned_until; i += THREADS)
        forbid(x, ids, banned[i]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->biases; i += THREADS)
        if (in(ids, biases[2 * i]))
            atomicAdd(&x[biases[2 * i]], __uint_as_float(biases[2 * i + 1]));
    __syncthreads();
    if (has_penalties(&s->sampling) && s->prompt + s->output > 0)
        penalise(x, ids, s, history, seen);
    __syncthreads();
}

/* ---- scan ---- */

/* The largest of a lane's 32 logits, each lane's ids rise: the first of equals. */
DEV u64 lane_largest(const float (&f)[QUADS][4], uint32_t piece, uint32_t n)
{
    float most = -INFINITY;
    uint32_t at = NO_TOKEN;

#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t id = id_in_piece(piece, q) + k;
            if (id < n && (f[q][k] > most || (f[q][k] == most && at == NO_TOKEN)))
                most = f[q][k], at = id;
        }
    return at == NO_TOKEN ? 0 : place_of(most, at);
}

DEV float lane_sum(const float (&f)[QUADS][4], uint32_t piece, uint32_t n, float max)
{
    float sum = 0.0f;

#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            float e = expf(f[q][k] - max);
            sum += id_in_piece(piece, q) + k < n && e == e ? e : 0.0f;
        }
    return sum;
}

DEV void load_piece(const float *x, uint32_t piece, uint32_t n, float (&ret_f)[QUADS][4])
{
#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++) {
        const uint32_t id = id_in_piece(piece, q);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            ret_f[q][k] = -INFINITY;
        if (id < n)
            load_quad(x, id, ret_f[q]);
    }
}

/* The largest that may be chosen: what may not is no number. */
DEV u64 lane_choice(const struct sample_row *r, uint32_t piece)
{
    float f[QUADS][4];

    load_piece(r->x, piece, r->n, f);
#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++) {
        const uint32_t id = id_in_piece(piece, q);
        const uint32_t bits = id < r->n ? allowed_quad(r, id) : 0u;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            f[q][k] = bits >> k & 1u ? f[q][k] : NAN;
    }
    return lane_largest(f, piece, r->n);
}

EK_KERNEL(ek_sample_scan, struct cu_sample_args, THREADS)
{
    const struct cu_step *s = step_of(a.step);
    if (blockIdx.x >= s->seqs)
        return;
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + blockIdx.x;
    if (!q->sample)
        return;
    const struct ek_slot_set *set = &(at<struct cu_slot>(a.slots) + q->slot)->set;
    const struct sample_row raw = row_at(&a, q->logit_row), r = chosen_from(&a, set, q->logit_row);
    const struct scan_share mine = share_of_block(pieces_of(raw.n));
    const struct scan_range ids = {mine.from * CU_PIECE, min(mine.to * CU_PIECE, raw.n)};
    uint32_t *buckets = (uint32_t *)draw_at(&a, q->logit_row);

    if (r.x != raw.x)
        adjust(raw.x, ids, set, at<uint32_t>(a.words) + (uint64_t)q->slot * a.slot_words,
               q->context, (float *)(uintptr_t)r.x, (uint32_t *)(r.x + a.logit_stride));
    for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < CU_DRAW_CLEARED / 4;
         i += gridDim.y * THREADS)
        buckets[i] = 0;
    for (uint32_t p = mine.from + threadIdx.x / 32; p < mine.to; p += WARPS) {
        float f[QUADS][4];
        load_piece(raw.x, p, raw.n, f);
        const u64 largest = warp_max64(lane_largest(f, p, raw.n));
        const float max = largest ? value_of(largest) : -INFINITY;
        const float sum = warp_sum(lane_sum(f, p, raw.n, max));
        u64 best = largest;
        if (r.x != raw.x || r.mask)
            best = warp_max64(lane_choice(&r, p));
        if (threadIdx.x % 32 == 0)
            pieces_at(&a, q->logit_row)[p] = {largest, best, 0, sum, 0};
    }
}

/* ---- weigh and collect ---- */

/* Of all the row's pieces the best that may be chosen, for every thread. */
DEV u64 best_of_row(const struct cu_piece *piece, uint32_t pieces)
{
    u64 best = 0;

    for (uint32_t i = threadIdx.x % 32; i < pieces; i += 32)
        best = max64(best, piece[i].best);
    return warp_max64(best);
}

/* The row of this block's sequence, tempered; false where none is drawn from here. */
DEV bool row_to_draw(const struct cu_sample_args &a, const struct cu_step *s,
                     struct sample_row *ret_row, struct ek_sampling *ret_sampling,
                     uint32_t *ret_logit_row)
{
    if (blockIdx.x >= s->seqs)
        return false;
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + blockIdx.x;
    const struct ek_slot_set *set = &(at<struct cu_slot>(a.slots) + q->slot)->set;
    if (!q->sample || wants_typical(&set->sampling))
        return false;
    *ret_row = chosen_from(&a, set, q->logit_row);
    *ret_sampling = set->sampling;
    *ret_logit_row = q->logit_row;
    return temper(ret_row, ret_sampling,
                  best_of_row(pieces_at(&a, q->logit_row), pieces_of(a.vocab)));
}

/* The weights of a piece: the warp's sums. */
DEV void weigh_piece(const struct sample_row *r, uint32_t p, struct buckets *b, bool cut,
                     struct cu_piece *piece)
{
    u64 mass = 0;
    uint32_t count = 0;

    for (uint32_t q = 0; q < QUADS; q++) {
        const uint32_t id = id_in_piece(p, q);
        float f[4];
        if (id >= r->n)
            break;
        load_quad(r->x, id, f);
        const uint32_t bits = allowed_quad(r, id);
        for (uint32_t k = 0; k < 4; k++) {
            const float w = id + k < r->n && (bits >> k & 1u) ? weight_of(r, f[k]) : 0.0f;
            mass += mass_of(w);
            count += w > 0.0f;
            if (cut && w > 0.0f)
                put(b, __float_as_uint(w) >> SHIFT, w);
        }
    }
    warp_totals(&mass, &count);
    if (threadIdx.x % 32 == 0) {
        piece->mass = mass;
        piece->count = count;
    }
}

EK_KERNEL(ek_sample_weigh, struct cu_sample_args, THREADS)
{
    __shared__ struct buckets b;
    struct sample_row r;
    struct ek_sampling p;
    uint32_t logit_row;

    if (!row_to_draw(a, step_of(a.step), &r, &p, &logit_row))
        return;
    const bool cut = wants_cut(&p);
    const struct scan_share mine = share_of_block(pieces_of(r.n));
    for (uint32_t i = threadIdx.x; cut && i < CU_DRAW_BUCKETS; i += THREADS)
        b.low[i] = b.high[i] = b.count[i] = 0;
    __syncthreads();
    for (uint32_t i = mine.from + threadIdx.x / 32; i < mine.to; i += WARPS)
        weigh_piece(&r, i, &b, cut, &pieces_at(&a, logit_row)[i]);
    __syncthreads();
    struct cu_draw *draw = draw_at(&a, logit_row);
    for (uint32_t i = threadIdx.x; cut && i < CU_DRAW_BUCKETS; i += THREADS) {
        if (b.count[i] == 0)
            continue;
        atomicAdd((u64 *)&draw->mass[i], mass_in(&b, i));
        atomicAdd(&draw->count[i], b.count[i]);
    }
}

struct scan_found {
    u64 mass[WARPS];
    uint32_t count[WARPS];
    uint32_t bucket, upto;
};

/* The bucket, from the highest down, in which top-k or else top-p must end (all: where neither cuts
 * anything off), and how many tokens there are down to it. */
DEV void last_bucket(const struct cu_draw *draw, const struct ek_sampling *p, struct scan_found *f)
{
    const uint32_t first = CU_DRAW_BUCKETS - 1 - threadIdx.x * EACH, lane = threadIdx.x % 32;
    u64 mass = 0, all_mass = 0;
    uint32_t count = 0, all = 0;

    for (uint32_t i = 0; i < EACH; i++) {
        mass += draw->mass[first - i];
        count += draw->count[first - i];
    }
    u64 upto_mass = mass;
    uint32_t upto = count;
    warp_upto(&upto_mass, &upto);
    if (lane == 31) {
        f->mass[threadIdx.x / 32] = upto_mass;
        f->count[threadIdx.x / 32] = upto;
    }
    __syncthreads();
    for (uint32_t i = 0; i < WARPS; i++) {
        upto_mass += i < threadIdx.x / 32 ? f->mass[i] : 0;
        upto += i < threadIdx.x / 32 ? f->count[i] : 0;
        all_mass += f->mass[i];
        all += f->count[i];
    }
    const bool by_mass = (p->top_k == 0 || p->top_k >= all) && p->top_p < 1.0f;
    const u64 limit = by_mass ? mass_for((double)p->top_p * (double)all_mass)
                              : min(p->top_k > 0 ? p->top_k : all, all);
    u64 sum = by_mass ? upto_mass - mass : upto - count;
    if (sum >= limit || (by_mass ? upto_mass : upto) < limit)
        return; /* another thread's */
    uint32_t bucket = first, tokens = upto - count;
    for (uint32_t i = 0; i < EACH && sum < limit; i++) {
        bucket = first - i;
        sum += by_mass ? draw->mass[bucket] : draw->count[bucket];
        tokens += draw->count[bucket];
    }
    f->bucket = bucket;
    f->upto = tokens;
}

/* Appends the tokens of a piece that weigh as much as the bucket or more. In any order. */
DEV void collect_piece(const struct sample_row *r, uint32_t p, uint32_t bucket,
                       struct cu_draw *draw)
{
    for (uint32_t q = 0; q < QUADS; q++) {
        const uint32_t id = id_in_piece(p, q);
        float f[4];
        if (id >= r->n)
            break;
        load_quad(r->x, id, f);
        const uint32_t bits = allowed_quad(r, id);
        for (uint32_t k = 0; k < 4; k++) {
            const float w = id + k < r->n && (bits >> k & 1u) ? weight_of(r, f[k]) : 0.0f;
            if (!(w > 0.0f) || __float_as_uint(w) >> SHIFT < bucket)
                continue;
            const uint32_t to = atomicAdd(&draw->listed, 1u);
            if (to < CU_DRAW_LIST)
                draw->list[to] = (u64)__float_as_uint(w) << 32 | (0xffffffffu - (id + k));
        }
    }
}

EK_KERNEL(ek_sample_collect, struct cu_sample_args, THREADS)
{
    __shared__ struct scan_found f;
    struct sample_row r;
    struct ek_sampling p;
    uint32_t logit_row;

    if (!row_to_draw(a, step_of(a.step), &r, &p, &logit_row) || !wants_cut(&p))
        return;
    struct cu_draw *draw = draw_at(&a, logit_row);
    last_bucket(draw, &p, &f);
    __syncthreads();
    if (f.upto > CU_DRAW_LIST)
        return;
    const struct scan_share mine = share_of_block(pieces_of(r.n));
    for (uint32_t i = mine.from + threadIdx.x / 32; i < mine.to; i += WARPS)
        collect_piece(&r, i, f.bucket, draw);
}
