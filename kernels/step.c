/*
 * Size, layout, packing and check of the flat step buffer. The check is what makes a step safe to
 * take from another process: after it every index of the step can be followed without another test.
 * It does not look for two sequences with the same slot: the device then keeps the later one's
 * token, or refuses the step where a slot has recurrent state.
 */
#include "kernels/step.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { ARRAYS = 8 };

/* The arrays in the order of the layout, for given counts. */
static void step_measure(const struct ek_step_ceiling *c, size_t bytes[ARRAYS])
{
    bytes[0] = (size_t)c->rows * sizeof(int32_t);
    bytes[1] = (size_t)c->rows * sizeof(uint32_t);
    bytes[2] = (size_t)c->rows * sizeof(uint32_t);
    bytes[3] = (size_t)c->seqs * sizeof(struct ek_step_seq);
    bytes[4] = (size_t)c->entries * sizeof(uint32_t);
    bytes[5] = (size_t)c->seqs * sizeof(struct ek_slot_set);
    bytes[6] = (size_t)c->copies * sizeof(struct ek_block_copy);
    bytes[7] = (size_t)c->words * sizeof(uint32_t);
}

size_t ek_step_size(const struct ek_step_ceiling *c)
{
    size_t bytes[ARRAYS], sum = sizeof(struct ek_step);

    step_measure(c, bytes);
    for (int i = 0; i < ARRAYS; i++)
        sum += (bytes[i] + 7) & ~(size_t)7;
    return sum > UINT32_MAX ? 0 : sum;
}

/* What the step has of each array, and where. */
static void step_have(const struct ek_step *s, size_t bytes[ARRAYS], uint32_t at[ARRAYS])
{
    const struct ek_step_ceiling have = {s->rows, s->seqs, s->entries, s->copies, s->words, 0};
    const uint32_t from[ARRAYS] = {s->token_at, s->position_at, s->kv_slot_at, s->seq_at,
                                   s->table_at, s->set_at,      s->copy_at,    s->word_at};

    step_measure(&have, bytes);
    bytes[5] = (size_t)s->sets * sizeof(struct ek_slot_set);
    memcpy(at, from, sizeof(from));
}

/* One array behind the other. */
static void step_place(struct ek_step *s, const size_t bytes[ARRAYS])
{
    size_t at = sizeof(*s);
    uint32_t start[ARRAYS];

    for (int i = 0; i < ARRAYS; i++) {
        start[i] = (uint32_t)at;
        at += (bytes[i] + 7) & ~(size_t)7;
    }
    s->bytes = (uint32_t)at;
    s->token_at = start[0];
    s->position_at = start[1];
    s->kv_slot_at = start[2];
    s->seq_at = start[3];
    s->table_at = start[4];
    s->set_at = start[5];
    s->copy_at = start[6];
    s->word_at = start[7];
}

void ek_step_layout(struct ek_step *s, const struct ek_step_ceiling *c)
{
    size_t bytes[ARRAYS];

    step_measure(c, bytes);
    *s = (struct ek_step){0};
    step_place(s, bytes);
}

void ek_step_pack(const struct ek_step *s, struct ek_step *ret_packed)
{
    size_t bytes[ARRAYS];
    uint32_t from[ARRAYS], to[ARRAYS];

    step_have(s, bytes, from);
    *ret_packed = *s;
    step_place(ret_packed, bytes);
    step_have(ret_packed, bytes, to);
    for (int i = 0; i < ARRAYS; i++)
        memcpy((char *)ret_packed + to[i], (const char *)s + from[i], bytes[i]);
}

static bool counts_fit(const struct ek_step *s, const struct ek_step_ceiling *c)
{
    return s->rows <= c->rows && s->seqs <= c->seqs && s->seqs <= s->rows &&
           s->logit_rows <= (uint64_t)s->seqs + c->scores && s->entries <= c->entries &&
           s->sets <= c->seqs && s->copies <= c->copies && s->words <= c->words;
}

static bool arrays_fit(const struct ek_step *s)
{
    size_t bytes[ARRAYS];
    uint32_t at[ARRAYS];

    step_have(s, bytes, at);
    for (int i = 0; i < ARRAYS; i++)
        if (at[i] % 8 != 0 || at[i] < sizeof(*s) || at[i] > s->bytes || bytes[i] > s->bytes - at[i])
            return false;
    return true;
}

static bool ids_fit(const uint32_t *ids, uint64_t count, uint32_t vocab)
{
    for (uint64_t i = 0; i < count; i++)
        if (ids[i] >= vocab)
            return false;
    return true;
}

static bool bad_fit(const uint32_t *words, uint32_t count, uint32_t vocab)
{
    for (uint32_t i = 0; i < count; i += words[i] + 1)
        if (words[i] == 0 || words[i] >= count - i || !ids_fit(words + i + 1, words[i], vocab))
            return false;
    return true;
}

/* The words of a slot, once they are known to lie in the step. */
static bool words_fit(const struct ek_step *s, const struct ek_slot_set *set, uint32_t vocab)
{
    const uint32_t *w = ek_step_words(s) + set->word + set->allowed;

    if (set->allowed != 0 && set->allowed != (vocab + 31) / 32)
        return false;
    for (uint32_t i = 0; i < set->biases; i++, w += 2) {
        float bias;
        memcpy(&bias, &w[1], sizeof(bias));
        if (w[0] >= vocab || !isfinite(bias))
            return false;
    }
    if (!ids_fit(w, set->banned, vocab) || !bad_fit(w + set->banned, set->bad, vocab))
        return false;
    return ids_fit(w + set->banned + set->bad, (uint64_t)set->prompt + set->output, vocab);
}

static bool set_fits(const struct ek_step *s, const struct ek_slot_set *set,
                     const struct ek_step_ceiling *c, uint32_t vocab)
{
    if (set->slot >= c->seqs || set->top > EK_TOP_MOST || !ek_sampling_fits(&set->sampling))
        return false;
    if (set->biases > EK_BIAS_MOST || set->banned > EK_BANNED_MOST || set->bad > EK_BAD_WORDS)
        return false;
    if (set->word > s->words || ek_slot_words(set) > s->words - set->word)
        return false;
    return words_fit(s, set, vocab);
}

static bool sets_fit(const struct ek_step *s, const struct ek_step_ceiling *c, uint32_t vocab)
{
    const struct ek_slot_set *set = ek_step_sets(s);

    for (uint32_t i = 0; i < s->sets; i++)
        if (!set_fits(s, &set[i], c, vocab))
            return false;
    return true;
}

static bool copies_fit(const struct ek_step *s, uint32_t kv_blocks, uint32_t states)
{
    const struct ek_block_copy *c = ek_step_copies(s);

    for (uint32_t i = 0; i < s->copies; i++) {
        if (c[i].from_tier == EK_TIER_STATE && c[i].to_tier == EK_TIER_STATE) {
            if (c[i].from >= states || c[i].to >= states)
                return false;
            continue;
        }
        if (c[i].from_tier > EK_TIER_HOST || c[i].to_tier > EK_TIER_HOST)
            return false;
        if (c[i].from_tier == EK_TIER_DEVICE && c[i].from >= kv_blocks)
            return false;
        if (c[i].to_tier == EK_TIER_DEVICE && (c[i].to == EK_NULL_BLOCK || c[i].to >= kv_blocks))
            return false;
    }
    return true;
}

/* Positions and KV slots of one sequence's rows, once its table is known to lie in the step. */
static bool rows_fit(const struct ek_step *s, const struct ek_step_seq *q, uint32_t block_size)
{
    const uint32_t *table = ek_step_tables(s) + q->table;
    const uint32_t *position = ek_step_positions(s), *kv_slot = ek_step_kv_slots(s);
    uint32_t first = q->context - q->rows;

    for (uint32_t i = 0; i < q->rows; i++) {
        uint32_t at = first + i, block = table[at / block_size];
        if (position[q->row + i] != at || block == EK_NULL_BLOCK ||
            kv_slot[q->row + i] != (uint64_t)block * block_size + at % block_size)
            return false;
    }
    return true;
}

/* Scores of one sequence; the logit rows of scores begin at `first`. */
static bool scores_fit(const struct ek_step *s, const struct ek_step_seq *q, uint32_t first,
                       uint32_t vocab)
{
    if (q->hidden > q->sample)
        return false;
    if (q->scores == 0)
        return true;
    return q->scores <= q->rows - q->sample && q->score_row == first && q->target <= s->words &&
           q->scores <= s->words - q->target &&
           ids_fit(ek_step_words(s) + q->target, q->scores, vocab);
}

static bool seqs_fit(const struct ek_step *s, const struct ek_step_ceiling *c, uint32_t vocab,
                     uint32_t block_size)
{
    const struct ek_step_seq *q = ek_step_seqs(s);
    uint32_t row = 0, logit_row = 0, scores = 0, samples = 0;

    for (uint32_t i = 0; i < s->seqs; i++)
        samples += q[i].sample == 1;

    for (uint32_t i = 0; i < s->seqs; i++, q++) {
        if (q->slot >= c->seqs || q->row != row || q->rows == 0 || q->rows > s->rows - row)
            return false;
        if (q->table > s->entries || q->blocks > s->entries - q->table)
            return false;
        if (q->context < q->rows || q->context > (uint64_t)q->blocks * block_size)
            return false;
        if (q->sample > 1 || (q->sample == 1 && q->logit_row != logit_row))
            return false;
        if (!rows_fit(s, q, block_size) || !scores_fit(s, q, samples + scores, vocab))
            return false;
        logit_row += q->sample;
        scores += q->scores;
        row += q->rows;
    }
    return row == s->rows && scores <= c->scores && logit_row + scores == s->logit_rows;
}

int ek_step_check(const struct ek_step *s, size_t bytes, const struct ek_step_ceiling *c,
                  uint32_t vocab, uint32_t kv_blocks, uint32_t block_size, uint32_t states)
{
    if (bytes < sizeof(*s) || s->bytes > bytes || block_size == 0)
        return -EBADMSG;
    if (!counts_fit(s, c) || !arrays_fit(s) || !sets_fit(s, c, vocab) ||
        !copies_fit(s, kv_blocks, states))
        return -EBADMSG;
    const int32_t *token = ek_step_tokens(s);
    for (uint32_t i = 0; i < s->rows; i++)
        if (token[i] != EK_FROM_PREVIOUS && (token[i] < 0 || (uint32_t)token[i] >= vocab))
            return -EBADMSG;
    const uint32_t *table = ek_step_tables(s);
    for (uint32_t i = 0; i < s->entries; i++)
        if (table[i] >= kv_blocks)
            return -EBADMSG;
    return seqs_fit(s, c, vocab, block_size) ? 0 : -EBADMSG;
}

size_t ek_result_bytes(uint32_t seqs, uint32_t scores, uint32_t hiddens, uint32_t width)
{
    size_t floats, sum = sizeof(struct ek_result);

    if (__builtin_mul_overflow((size_t)hiddens * sizeof(float), width, &floats) ||
        __builtin_add_overflow(sum, floats, &sum))
        return 0;
    sum += (size_t)seqs * sizeof(struct ek_result_seq);
    return sum + (size_t)scores * sizeof(struct ek_result_score);
}

uint32_t ek_result_sum(const struct ek_result *r)
{
    uint32_t sum = 0;

    if (r->seqs == 0)
        return r->sum;
    for (uint32_t i = 0; i < r->seqs; i++) {
        const struct ek_result_seq *q = &r->seq[i];
        sum = (sum ^ q->slot) * 16777619u;
        for (uint32_t k = 0; k < q->tokens; k++)
            sum = (sum ^ (uint32_t)q->token[k]) * 16777619u;
        sum = (sum ^ (q->tokens << 24)) * 16777619u;
    }
    return sum;
}

int ek_result_check(const struct ek_result *r, size_t bytes)
{
    if (bytes < sizeof(*r) || r->seqs > bytes / sizeof(r->seq[0]) ||
        r->scores > bytes / sizeof(struct ek_result_score) || ek_result_own_bytes(r) != bytes)
        return -EBADMSG;
    for (uint32_t i = 0; i < r->seqs; i++)
        if (r->seq[i].tokens > EK_STEP_TOKENS || r->seq[i].top > EK_TOP_MOST)
            return -EBADMSG;
    for (uint32_t i = 0; i < r->scores; i++)
        if (ek_result_scores(r)[i].top > EK_TOP_MOST)
            return -EBADMSG;
    return 0;
}
