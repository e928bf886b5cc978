/* Masks of a step, see constrain.h. */
#include "server/engine/constrain.h"

#include <string.h>

#include "server/engine/request.h"
#include "server/engine/sched.h"

size_t constrain_bytes(uint32_t rows, uint32_t vocab)
{
    return sizeof(struct ek_masks) + (size_t)rows * ((vocab + 31) / 32) * sizeof(uint32_t);
}

static void pass_gate(struct request *r, int32_t id)
{
    const struct req_ask *a = &r->ask;

    if (r->gate_met == a->gates) { /* others may stand between it and the last one */
        r->form_open = id == a->gate_last;
        r->gate_met = id == a->gate[0] ? 1 : r->gate_met;
    } else if (id == a->gate[r->gate_met]) {
        r->gate_met++;
    } else {
        r->gate_met = id == a->gate[0];
    }
}

bool constrain_begun(struct request *r, uint32_t count, uint32_t *ret_first)
{
    while (!r->form_open && r->gate_read < count) {
        pass_gate(r, r->out[r->gate_read++].id);
        r->form_at = r->gate_read;
    }
    *ret_first = r->form_at;
    return r->form_open;
}

/* The request that the row is sampled for, NULL when it has ended or is free text. */
static struct request *constrained(const struct sched *s, const struct flight_seq *q)
{
    const struct entry *e = &s->entries[q->entry];

    return q->sample && e->number == q->number && e->req->ask.grammar ? e->req : NULL;
}

bool constrain_needed(const struct sched *s, const struct flight *f)
{
    for (uint32_t i = 0; i < f->seqs; i++)
        if (constrained(s, &f->seq[i]))
            return true;
    return false;
}

/* Where there is no choice of bytes, one token only: those that are appended without a step are the
 * same ones. */
static void fill_row(struct request *r, uint32_t words, uint32_t *bits)
{
    uint32_t count = atomic_load_explicit(&r->out_count, memory_order_relaxed);
    uint32_t room = r->ask.grammar_finish ? r->ask.max_new_tokens - count : MATCHER_MANY;
    uint32_t first;
    int32_t only;

    if (!constrain_begun(r, count, &first)) {
        memset(bits, 0xff, words * sizeof(*bits));
        return;
    }
    /* What does not fit leaves nothing to choose from, which ends the request. */
    (void)matcher_follow(&r->matcher, &r->out[first].id, sizeof(r->out[0]), count - first);
    if (!r->ask.grammar_forced || matcher_forced(&r->matcher, room, &only, 1) == 0) {
        (void)matcher_mask(&r->matcher, count - first < r->ask.grammar_least, room, bits);
        return;
    }
    memset(bits, 0, words * sizeof(*bits));
    bits[(uint32_t)only / 32] = 1u << ((uint32_t)only % 32);
}

uint32_t constrain_fill(const struct sched *s, const struct flight *f, const struct ek_step *step,
                        uint32_t vocab, struct ek_masks *masks)
{
    const struct ek_step_seq *q = ek_step_seqs(step);
    uint32_t rows = 0, words = (vocab + 31) / 32, made = 0;

    for (uint32_t i = 0; i < f->seqs; i++) {
        uint32_t *bits = masks->bits + (size_t)q[i].logit_row * words;
        if (!q[i].sample)
            continue;
        rows = q[i].logit_row + 1 > rows ? q[i].logit_row + 1 : rows;
        struct request *r = constrained(s, &f->seq[i]);
        if (!r) {
            memset(bits, 0xff, words * sizeof(*bits));
            continue;
        }
        fill_row(r, words, bits);
        made++;
    }
    masks->rows = rows;
    masks->words = words;
    return made;
}
