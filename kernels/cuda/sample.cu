/*
 * From logits to tokens, as the CPU backend does it (kernels/cpu/sample.c, adjust.c): the log of
 * the sum of exp and the alternatives are of the raw logits; then what the slot wants changed, the
 * mask, then greedy, or temperature, min-p, typical-p, top-k, top-p in this order and one random
 * number, a function of (seed, position of the new token) alone. Ties go to the lower id.
 *
 * One block per sequence, after sample_scan.cu has read its logits with many: what is left is to
 * look at the pieces. Greedy takes the best of them. A draw from all tokens finds its piece by
 * sums of theirs and walks there. A draw under a top-k or top-p sorts the tokens that were
 * collected: the top k are a beginning of the list, what top-p keeps is a beginning of that, and
 * the token drawn lies in it.
 *
 * Where too many tokens weigh about the same to be collected, and for typical-p, the block searches
 * the row itself (sample_search.cuh). Both ways give the same token.
 */
#include "kernels/cuda/sample_search.cuh"

/* Apart from sm_100 on: registers are few, and there the assembler spills with all in one. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define APART_LATE APART
#else
#define APART_LATE DEV
#endif

/* The largest of these ids, 0 when there is none: of those that come behind `before`, unless it is
 * 0. */
DEV u64 largest(const struct sample_row *r, uint32_t from, uint32_t to, u64 before,
                struct sample_work *w)
{
    u64 most = 0;

    for (uint32_t id = from + threadIdx.x; id < to; id += THREADS) {
        float x = r->x[id];
        if (x != x)
            continue;
        u64 v = place_of(x, id);
        if (before == 0 || v < before)
            most = max64(most, v);
    }
    return block_max64(most, w);
}

DEV float lse_of(const struct sample_row *r, float max, struct sample_work *w)
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

/* floor(share * total), kept inside [0, total). */
DEV u64 share_of(double share, u64 total)
{
    u64 v = (u64)(share * (double)total);
    return v < total ? v : total - 1;
}

/* Number and mass of the row's weights. */
DEV void piece_totals(const struct cu_piece *piece, uint32_t pieces, struct sample_work *w,
                      uint32_t *ret_count, u64 *ret_mass)
{
    u64 mass = 0;
    uint32_t count = 0;

    for (uint32_t i = threadIdx.x; i < pieces; i += THREADS) {
        mass += piece[i].mass;
        count += piece[i].count;
    }
    block_totals(w, &count, &mass);
    *ret_mass = mass;
    *ret_count = count;
}

/* From the row in w; `known` as find_cut() takes it, `piece` what is known of weights by pieces, or
 * NULL. */
DEV uint32_t draw_from_row(struct sample_work *w, const struct ek_sampling *p, uint32_t position,
                           const struct cu_draw *known, const struct cu_piece *piece)
{
    const struct sample_row *r = &w->row;
    uint32_t count;
    u64 kept;

    if (piece)
        piece_totals(piece, pieces_of(r->n), w, &count, &kept);
    else
        totals(r, w, &count, &kept);
    if (!wants_cut(p))
        return find_id(r, w, share_of(random_at(p->seed, position), kept) + 1, of_all{}, 0, r->n);
    if (p->top_k > 0 && p->top_k < count) {
        struct sample_cut c = find_cut(r, w, p->top_k, true, by_weight{}, known);
        kept = mass_upto(&c, p->top_k);
    }
    if (p->top_p < 1.0f) { /* as many as are needed to hold top_p of it, one at least */
        const u64 limit = mass_for((double)p->top_p * (double)kept);
        struct sample_cut c = find_cut(r, w, limit, false, by_weight{}, known);
        u64 each = mass_of(__uint_as_float(c.bits));
        kept = c.mass + (limit - c.mass + each - 1) / each * each;
    }
    u64 limit = share_of(random_at(p->seed, position), kept) + 1;
    struct sample_cut c = find_cut(r, w, limit, false, by_weight{}, known);
    u64 rank = (limit - c.mass - 1) / mass_of(__uint_as_float(c.bits));
    return find_id(r, w, rank + 1, of_weight{c.bits}, 0, r->n);
}

/* ---- from what sample_scan.cu has found ---- */

/* The sum over threads up to this one. */
DEV u64 block_running(u64 v, struct sample_work *w)
{
    const uint32_t lane = threadIdx.x % 32;

    for (int i = 1; i < 32; i <<= 1) {
        u64 before = __shfl_up_sync(0xffffffffu, v, i);
        v += lane >= (uint32_t)i ? before : 0;
    }
    __syncthreads();
    if (lane == 31)
        w->warp_mass[threadIdx.x / 32] = v;
    __syncthreads();
    for (uint32_t i = 0; i < threadIdx.x / 32; i++)
        v += w->warp_mass[i];
    return v;
}

/* Among all that have weight: first the piece, then the token in it. */
APART_LATE uint32_t draw_from_pieces(const struct sample_row *r, const struct cu_piece *piece,
                                     u64 limit, struct sample_work *w)
{
    const uint32_t pieces = pieces_of(r->n);
    u64 sum = 0;

    for (uint32_t first = 0; first < pieces; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        const u64 own = i < pieces ? piece[i].mass : 0, upto = sum + block_running(own, w);
        if (upto - own < limit && upto >= limit) { /* one thread of one turn */
            w->found = i;
            w->answer[0] = upto - own;
        }
        if (threadIdx.x == THREADS - 1)
            w->answer[1] = upto;
        __syncthreads();
        sum = w->answer[1];
    }
    const uint32_t from = w->found * CU_PIECE;
    const u64 before = w->answer[0];
    __syncthreads();
    return find_id(r, w, limit - before, of_all{}, from, min(from + CU_PIECE, r->n));
}

/* Sorts what was collected, heaviest first and of equals the lower id, and sums up. */
DEV void sort_list(const struct cu_draw *list, uint32_t count, struct sample_work *w)
{
    struct sample_sorted *s = &w->s;
    uint32_t size = 32;

    while (size < count)
        size *= 2;
    for (uint32_t i = threadIdx.x; i < CU_DRAW_LIST; i += THREADS)
        s->token[i] = i < count ? list->list[i] : 0;
    __syncthreads();
    for (uint32_t k = 2; k <= size; k *= 2)
        for (uint32_t j = k / 2; j > 0; j /= 2) {
            for (uint32_t i = threadIdx.x; i < size; i += THREADS) {
                if (i > (i ^ j))
                    continue; /* the other one's */
                const u64 a = s->token[i], b = s->token[i ^ j];
                if (i & k ? a > b : a < b) {
                    s->token[i] = b;
                    s->token[i ^ j] = a;
                }
            }
            __syncthreads();
        }
    const uint32_t i = 2 * threadIdx.x;
    const u64 first = mass_of(__uint_as_float((uint32_t)(s->token[i] >> 32)));
    const u64 second = mass_of(__uint_as_float((uint32_t)(s->token[i + 1] >> 32)));
    const u64 upto = block_running(first + second, w);
    s->mass[i] = upto - second;
    s->mass[i + 1] = upto;
    __syncthreads();
}

/* Where the running mass reaches limit. */
DEV uint32_t reaches(const struct sample_sorted *s, u64 limit)
{
    uint32_t from = 0, to = CU_DRAW_LIST - 1;

    while (from < to) {
        const uint32_t middle = (from + to) / 2;
        if (s->mass[middle] >= limit)
            to = middle;
        else
            from = middle + 1;
    }
    return from;
}

/* Among the heaviest top_k that together hold top_p, all of which were collected. */
APART uint32_t draw_from_list(const struct cu_draw *list, const struct cu_piece *piece,
                              const struct ek_sampling *p, uint32_t position, struct sample_work *w)
{
    uint32_t count;
    u64 kept;

    piece_totals(piece, pieces_of(w->row.n), w, &count, &kept);
    sort_list(list, list->listed, w);
    if (p->top_k > 0 && p->top_k < count)
        kept = w->s.mass[p->top_k - 1];
    if (p->top_p < 1.0f)
        kept = w->s.mass[reaches(&w->s, mass_for((double)p->top_p * (double)kept))];
    const u64 limit = share_of(random_at(p->seed, position), kept) + 1;
    return id_of(w->s.token[reaches(&w->s, limit)]);
}

/* The token of the row in w, -1 if none may be chosen. */
DEV int32_t choose_token(const struct cu_sample_args &a, uint32_t logit_row, u64 best,
                         const struct ek_sampling *p, uint32_t position, struct sample_work *w)
{
    const struct cu_piece *piece = pieces_at(&a, logit_row);
    const struct cu_draw *list = draw_at(&a, logit_row);
    struct sample_row r = w->row;
    const bool draws = temper(&r, p, best);
    uint32_t count;
    u64 mass;

    if (!(fabsf(r.max) <= 3.4028234664e38f))
        return -1;
    if (!draws)
        return (int32_t)id_of(best);
    __syncthreads();
    if (threadIdx.x == 0)
        w->row = r;
    __syncthreads();
    if (wants_typical(p))
        keep_typical(w, p->typical_p);
    if (wants_typical(p) || !a.weighed || (wants_cut(p) && (!a.collected || list->listed == 0)))
        return (int32_t)draw_from_row(w, p, position,
                                      a.weighed && wants_cut(p) && !wants_typical(p) ? list : NULL,
                                      a.weighed && !wants_typical(p) ? piece : NULL);
    if (wants_cut(p))
        return (int32_t)draw_from_list(list, piece, p, position, w);
    piece_totals(piece, pieces_of(w->row.n), w, &count, &mass);
    const u64 limit = share_of(random_at(p->seed, position), mass) + 1;
    return (int32_t)draw_from_pieces(&w->row, piece, limit, w);
}

/* The largest of all, largest first; the same for every thread. */
DEV uint32_t alternatives(const struct sample_row *r, int32_t *ids, float *logits, uint32_t top,
                          struct sample_work *w)
{
    u64 before = 0;
    uint32_t count = 0;

    top = min(top, min(r->n, EK_TOP_MOST));
    while (count < top) {
        before = largest(r, 0, r->n, before, w);
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
DEV void push_token(struct cu_slot *slot, uint32_t *lists, uint32_t room, int32_t token)
{
    struct ek_slot_set *s = &slot->set;

    slot->last = token;
    if (s->prompt + s->output == 0 || slot_words(s) >= room)
        return;
    lists[slot_words(s)] = (uint32_t)token;
    s->output++;
}

/* The same by pieces, of which each tells its largest: only that of the one taken is sought anew.
 */
APART_LATE uint32_t alternatives_of(const struct sample_row *r, struct cu_piece *piece,
                                    int32_t *ids, float *logits, uint32_t top,
                                    struct sample_work *w)
{
    const uint32_t pieces = pieces_of(r->n);
    uint32_t count = 0;

    top = min(top, min(r->n, EK_TOP_MOST));
    for (; count < top; count++) {
        u64 most = 0;
        for (uint32_t i = threadIdx.x; i < pieces; i += THREADS)
            most = max64(most, piece[i].largest);
        most = block_max64(most, w);
        if (most == 0)
            break;
        const uint32_t id = id_of(most), from = id / CU_PIECE * CU_PIECE;
        const u64 next = largest(r, from, min(from + CU_PIECE, r->n), most, w);
        if (threadIdx.x == 0) {
            ids[count] = (int32_t)id;
            logits[count] = r->x[id];
            piece[id / CU_PIECE].largest = next;
        }
        __syncthreads();
    }
    return count;
}

DEV float lse_of_row(const struct sample_row *r, struct sample_work *w)
{
    u64 best = largest(r, 0, r->n, 0, w);
    return lse_of(r, best ? value_of(best) : -INFINITY, w);
}

DEV cu_addr results_at(const struct cu_sample_args *a)
{
    return a->results + sizeof(struct cu_flags);
}

/* Of the pieces: the best that may be chosen, and the log of the sum of exp. */
DEV u64 sum_pieces(const struct cu_piece *piece, uint32_t pieces, struct sample_work *w,
                   float *ret_lse)
{
    u64 largest = 0, best = 0;
    float sum = 0.0f;

    for (uint32_t i = threadIdx.x; i < pieces; i += THREADS) {
        largest = max64(largest, piece[i].largest);
        best = max64(best, piece[i].best);
    }
    largest = block_max64(largest, w);
    const float max = largest ? value_of(largest) : -INFINITY;
    for (uint32_t i = threadIdx.x; i < pieces; i += THREADS) {
        const float own = piece[i].largest ? value_of(piece[i].largest) : -INFINITY;
        sum += piece[i].sum * (own == max ? 1.0f : expf(own - max));
    }
    sum = block_sum(sum, w->warp_float);
    if (threadIdx.x == 0)
        *ret_lse = max + logf(sum);
    return block_max64(best, w);
}

EK_KERNEL(ek_sample, struct cu_sample_args, THREADS)
{
    __shared__ struct sample_work w;
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
    struct cu_slot *slot = at<struct cu_slot>(a.slots) + q->slot;
    struct cu_piece *piece = pieces_at(&a, q->logit_row);
    const struct sample_row raw = row_at(&a, q->logit_row);
    const u64 best = sum_pieces(piece, pieces_of(a.vocab), &w, &out->lse);
    if (threadIdx.x == 0)
        w.row = chosen_from(&a, &slot->set, q->logit_row);
    __syncthreads();
    const int32_t token = choose_token(a, q->logit_row, best, &slot->set.sampling, q->context, &w);
    const uint32_t top =
        token < 0 ? 0
                  : alternatives_of(&raw, piece, out->top_id, out->top_logit, slot->set.top, &w);
    if (threadIdx.x > 0)
        return;
    push_token(slot, at<uint32_t>(a.words) + (uint64_t)q->slot * a.slot_words, a.slot_words,
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
    __shared__ struct sample_work w;
    const struct cu_step *s = step_of(a.step);
    const uint32_t index = blockIdx.x;
    if (index >= s->scores)
        return;
    const struct cu_score score = array_of<struct cu_score>(s, s->score_at)[index];
    const struct sample_row r = row_at(&a, s->logit_rows - s->scores + index);
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
