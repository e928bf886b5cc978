/*
 * Masks of a step: which tokens each request's grammar allows next (constrain.h). Called by the
 * engine's thread before a step is sampled.
 */
#include "server/engine/constrain.h"

#include <string.h>

#include "common/work.h"
#include "server/engine/maskers.h"
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
static struct request *constrained(const struct entries *live, const struct flight_seq *q)
{
    const struct entry *e = &live->at[q->entry];

    if (!q->sample || q->put_off || e->number != q->number)
        return NULL;
    const struct request *r = e->req;
    uint32_t count = atomic_load_explicit(&r->out_count, memory_order_relaxed);
    bool thinks =
        thinking_binds(&r->thinking, &r->ask.thinking, count, SCHED_DEPTH * EK_STEP_TOKENS);
    return r->ask.grammar || thinks ? e->req : NULL;
}

bool constrain_needed(const struct entries *all, const struct flight *f)
{
    for (uint32_t i = 0; i < f->seqs; i++)
        if (constrained(all, &f->seq[i]))
            return true;
    return false;
}

static void only_one(int32_t token, uint32_t words, uint32_t *bits)
{
    memset(bits, 0, words * sizeof(*bits));
    bits[(uint32_t)token / 32] = 1u << ((uint32_t)token % 32);
}

/* True when no form says what comes next: it has not begun, or there is none. Then that is any
 * token, or the mark that ends the thinking. */
static bool fill_free(struct request *r, uint32_t count, uint32_t *ret_first, uint32_t words,
                      uint32_t *bits)
{
    if (r->ask.grammar && constrain_begun(r, count, ret_first))
        return false;
    thinking_follow(&r->thinking, &r->ask.thinking, &r->out[0].id, sizeof(r->out[0]), count);
    int32_t only = thinking_forced(&r->thinking, &r->ask.thinking);
    if (only < 0)
        memset(bits, 0xff, words * sizeof(*bits));
    else
        only_one(only, words, bits);
    return true;
}

/* Where there is no choice of bytes, one token only: those that are appended without a step are the
 * same ones. False when the units are spent; then another try goes on from what has been found. */
static bool fill_row(struct request *r, struct ek_work *work, uint32_t words, uint32_t *bits)
{
    uint32_t count = atomic_load_explicit(&r->out_count, memory_order_relaxed);
    uint32_t room = r->ask.grammar_finish ? r->ask.max_new_tokens - count : MATCHER_MANY;
    uint32_t first;
    int32_t only;

    if (fill_free(r, count, &first, words, bits))
        return true;
    r->matcher.work = work;
    /* What does not fit leaves nothing to choose from, which ends the request. */
    (void)matcher_follow(&r->matcher, &r->out[first].id, sizeof(r->out[0]), count - first);
    if (ek_work_stopped(work))
        return false;
    if (!r->ask.grammar_jump_forward || matcher_jump_forward(&r->matcher, room, &only, 1) == 0) {
        if (!ek_work_stopped(work))
            (void)matcher_mask(&r->matcher, count - first < r->ask.grammar_least, room, bits);
        return !ek_work_stopped(work);
    }
    if (ek_work_stopped(work))
        return false;
    only_one(only, words, bits);
    return true;
}

/* ---- slow rows ---- */

/* The account of the owner of these rows. */
static uint64_t *spent_by(struct constrain *c, uint64_t owner)
{
    uint32_t least = 0;

    for (uint32_t i = 0; i < CONSTRAIN_OWNERS; i++) {
        if (c->owner[i].owner == owner && c->owner[i].spent > 0)
            return &c->owner[i].spent;
        if (c->owner[i].spent < c->owner[least].spent)
            least = i;
    }
    c->owner[least].owner = owner; /* in place of the owner that has spent least */
    c->owner[least].spent = 1;
    return &c->owner[least].spent;
}

/* Of several rows that of the owner whose rows have cost least goes first. Whether this owner's
 * does, before one that has cost *least, which then says what it has. */
static bool goes_first(struct constrain *c, uint64_t owner, uint64_t *least)
{
    uint64_t spent = *spent_by(c, owner);

    if (spent >= *least)
        return false;
    *least = spent;
    return true;
}

/* The one that goes first, NULL = none is left. */
static struct flight_seq *next_slow(struct constrain *c, const struct entries *all,
                                    struct flight *f)
{
    struct flight_seq *best = NULL;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct request *r = constrained(all, &f->seq[i]);
        if (r && r->mask_slow && goes_first(c, sched_owner(&all->at[f->seq[i].entry]), &least))
            best = &f->seq[i];
    }
    return best;
}

/* A try with all the credit there is; false when it was not enough. */
static bool try_slow(struct constrain *c, struct sched *s, struct flight_seq *q, uint32_t words,
                     uint32_t *bits)
{
    struct request *r = s->entries.at[q->entry].req;
    uint64_t *spent = spent_by(c, sched_owner(&s->entries.at[q->entry]));
    struct ek_work work = {.fuel = c->credit, .look = UINT64_MAX};
    bool all = c->credit >= CONSTRAIN_MOST, done = false;

    if (grammar_given_up(r->ask.grammar)) {
        r->mask_refused = true;
        c->refused++;
    } else {
        done = fill_row(r, &work, words, bits);
    }
    if (!done && !r->mask_refused) {
        work.used = c->credit;
        r->mask_need = c->credit * 2 < CONSTRAIN_MOST ? c->credit * 2 : CONSTRAIN_MOST;
        r->mask_tries += all;
        r->mask_refused = r->mask_tries >= CONSTRAIN_TRIES;
        c->refused += r->mask_refused;
        if (r->mask_refused)
            grammar_give_up(r->ask.grammar);
    }
    c->credit -= work.used;
    *spent += work.used;
    sched_charge_mask(s, q, work.used);
    if (r->mask_refused) /* nothing to choose from ends it */
        memset(bits, 0, words * sizeof(*bits));
    return done || r->mask_refused;
}

static uint32_t fill_slow(struct constrain *c, struct sched *s, struct flight *f,
                          const struct ek_step *step, struct ek_masks *masks)
{
    const struct ek_step_seq *at = ek_step_seqs(step);
    uint32_t made = 0;

    for (uint32_t i = 0; i < CONSTRAIN_OWNERS; i++)
        c->owner[i].spent -= c->owner[i].spent >> 10;
    for (struct flight_seq *q; (q = next_slow(c, &s->entries, f));) {
        struct request *r = s->entries.at[q->entry].req;
        uint32_t *bits = masks->bits + (size_t)at[q - f->seq].logit_row * masks->words;
        bool ends = grammar_given_up(r->ask.grammar);
        if (s->states.on) { /* it cannot be put off: others get their credit later */
            c->credit = CONSTRAIN_MOST;
            if (!try_slow(c, s, q, masks->words, bits))
                continue;
        } else if ((!ends && (c->credit <= CONSTRAIN_QUICK || c->credit < r->mask_need)) ||
                   !try_slow(c, s, q, masks->words, bits))
            break;
        r->mask_slow = false;
        r->mask_need = r->mask_tries = 0;
        made++;
    }
    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct request *r = constrained(&s->entries, &f->seq[i]);
        if (!r || !r->mask_slow)
            continue;
        memset(masks->bits + (size_t)at[i].logit_row * masks->words, 0xff,
               masks->words * sizeof(*masks->bits));
        sched_put_off(s, &f->seq[i]);
        c->put_off++;
    }
    return made;
}

/* ---- slow rows, with threads ---- */

int constrain_init(struct constrain *c, uint32_t vocab)
{
    *c = (struct constrain){.credit = CONSTRAIN_MOST};
    return maskers_new((vocab + 31) / 32, CONSTRAIN_MOST, fill_row, &c->maskers);
}

void constrain_done(struct constrain *c)
{
    maskers_free(c->maskers);
    c->maskers = NULL;
}

static void refuse(struct constrain *c, struct request *r)
{
    c->refused += !r->mask_refused;
    r->mask_refused = true;
    grammar_give_up(r->ask.grammar);
}

/* The request of a running entry, NULL when it has ended. */
static bool is_live(const struct sched *s, const struct request *r)
{
    return r->entry != UINT32_MAX && s->entries.at[r->entry].req == r;
}

/* A mask of its form was made, which others of the form may be at as well: they try themselves as
 * soon as the threads have given the form back. */
static void note_known(struct sched *s, const struct request *made)
{
    bool others = false;

    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        struct request *r = e->req;
        if (r == made || r->mask_given || r->ask.grammar != made->ask.grammar)
            continue;
        r->mask_heavy = false;
        others |= e->awaits_mask;
    }
    if (others)
        grammar_await(made->ask.grammar);
}

/* One is done, or it was no use. */
static void take_mask(struct constrain *c, struct sched *s, const struct mask_done *d)
{
    struct request *r = d->request;

    *spent_by(c, d->owner) += d->used;
    r->mask_given = false;
    r->mask_ready = d->made;
    r->mask_heavy = !d->made || d->used > CONSTRAIN_QUICK;
    r->mask_tries = d->made ? 0 : r->mask_tries + (d->used > 0);
    if (r->mask_tries >= CONSTRAIN_TRIES)
        refuse(c, r);
    if (d->made)
        note_known(s, r);
    if (!is_live(s, r))
        return;
    sched_charge_mask(s, &(struct flight_seq){.entry = r->entry}, d->used);
    if (d->made || r->mask_refused)
        sched_await_mask(s, r->entry, false);
}

static void take_back(struct constrain *c, struct sched *s)
{
    struct mask_done d;

    while (maskers_take(c->maskers, &d)) {
        take_mask(c, s, &d);
        request_unref(d.request);
    }
}

/* False: it waits for its mask. */
static bool fill_or_wait(struct constrain *c, struct sched *s, struct flight_seq *q, uint32_t words,
                         uint32_t *bits)
{
    struct request *r = s->entries.at[q->entry].req;
    uint32_t count = atomic_load_explicit(&r->out_count, memory_order_relaxed), first;
    bool ready = r->mask_ready && r->mask_at == count;

    if (r->mask_given)
        return false;
    r->mask_ready = false;
    if (fill_free(r, count, &first, words, bits))
        return true;
    if (ready) {
        memcpy(bits, r->mask_bits, words * sizeof(*bits));
        return true;
    }
    if (r->mask_refused || grammar_given_up(r->ask.grammar)) {
        refuse(c, r);
        memset(bits, 0, words * sizeof(*bits)); /* nothing to choose from ends it */
        return true;
    }
    if (r->mask_heavy || c->left == 0 || grammar_is_lent(r->ask.grammar))
        return false;
    struct ek_work work = {.fuel = c->left < CONSTRAIN_QUICK ? c->left : CONSTRAIN_QUICK,
                           .look = UINT64_MAX};
    bool all = work.fuel == CONSTRAIN_QUICK, done = fill_row(r, &work, words, bits);
    r->mask_heavy = !done && all;
    c->left -= work.used < c->left ? work.used : c->left;
    sched_charge_mask(s, q, work.used);
    return done;
}

/* The entry that is given next, NULL = none is left whose owner may have another job. */
static const struct entry *next_to_give(struct constrain *c, struct sched *s)
{
    const struct entry *best = NULL;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        const struct request *r = e->req;
        if (!e->awaits_mask || r->mask_given)
            continue;
        if (grammar_given_up(r->ask.grammar)) { /* its next row ends it */
            sched_await_mask(s, r->entry, false);
            continue;
        }
        uint64_t owner = sched_owner(e);
        if (!grammar_is_awaited(r->ask.grammar) && maskers_room(c->maskers, owner) &&
            goes_first(c, owner, &least))
            best = e;
    }
    return best;
}

/* Gives slow rows to the threads while they take more. */
static void give_slow(struct constrain *c, struct sched *s)
{
    for (const struct entry *e; (e = next_to_give(c, s));) {
        struct request *r = e->req;
        maskers_give(c->maskers, r, sched_owner(e));
        r->mask_given = true;
        r->mask_vain = 0;
        r->mask_at = atomic_load_explicit(&r->out_count, memory_order_relaxed);
    }
}

/* Rows that waited for the form or for units alone try again: their masks may be known by now. */
static void let_quick_go(struct sched *s)
{
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *e = entries_running(&s->entries, i);
        const struct request *r = e->req;
        if (e->awaits_mask && !r->mask_given && !r->mask_heavy && !grammar_is_lent(r->ask.grammar))
            sched_await_mask(s, r->entry, false);
    }
}

void constrain_look(struct constrain *c, struct sched *s)
{
    if (!c->maskers || s->states.on)
        return;
    take_back(c, s);
    let_quick_go(s);
    give_slow(c, s);
}

bool constrain_busy(const struct constrain *c)
{
    return c->maskers && maskers_busy(c->maskers);
}

/* Slow rows are put off, and given; those whose masks may be there soon are in the next step. */
static void put_off_slow(struct constrain *c, struct sched *s, struct flight *f)
{
    for (uint32_t i = 0; i < CONSTRAIN_OWNERS; i++)
        c->owner[i].spent -= c->owner[i].spent >> 10;
    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct request *r = constrained(&s->entries, &f->seq[i]);
        if (!r || !r->mask_slow)
            continue;
        sched_put_off(s, &f->seq[i]);
        sched_await_mask(s, f->seq[i].entry, true);
        c->put_off++;
    }
    give_slow(c, s);
    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct entry *e = &s->entries.at[f->seq[i].entry];
        if (f->seq[i].put_off && e->req->mask_given && e->req->mask_vain++ < CONSTRAIN_VAIN)
            sched_await_mask(s, f->seq[i].entry, false);
    }
}

static uint32_t fill_with_maskers(struct constrain *c, struct sched *s, struct flight *f,
                                  const struct ek_step *step, struct ek_masks *masks)
{
    const struct ek_step_seq *at = ek_step_seqs(step);
    uint32_t made = 0;
    bool waits = false;

    take_back(c, s);
    c->left = CONSTRAIN_STEP + (uint64_t)f->seqs * CONSTRAIN_ROW;
    for (uint32_t i = 0; i < f->seqs; i++) {
        uint32_t *bits = masks->bits + (size_t)at[i].logit_row * masks->words;
        struct request *r = constrained(&s->entries, &f->seq[i]);
        if (!r)
            continue;
        r->mask_slow = !fill_or_wait(c, s, &f->seq[i], masks->words, bits);
        made += !r->mask_slow;
        waits |= r->mask_slow;
        if (r->mask_slow) /* whatever it samples is not used */
            memset(bits, 0xff, masks->words * sizeof(*bits));
    }
    if (waits)
        put_off_slow(c, s, f);
    return made;
}

/* ---- all ---- */

static uint32_t fill_here(struct constrain *c, struct sched *s, struct flight *f,
                          const struct ek_step *step, struct ek_masks *masks)
{
    const struct ek_step_seq *q = ek_step_seqs(step);
    uint32_t made = 0;
    bool slow = false;

    for (uint32_t i = 0; i < f->seqs; i++) {
        struct request *r = constrained(&s->entries, &f->seq[i]);
        if (!r)
            continue;
        struct ek_work work = {.fuel = CONSTRAIN_QUICK, .look = UINT64_MAX};
        uint32_t *bits = masks->bits + (size_t)q[i].logit_row * masks->words;
        r->mask_slow = r->mask_slow || !fill_row(r, &work, masks->words, bits);
        sched_charge_mask(s, &f->seq[i], work.used);
        slow |= r->mask_slow;
        made += !r->mask_slow;
    }
    c->credit =
        c->credit + CONSTRAIN_STEP < CONSTRAIN_MOST ? c->credit + CONSTRAIN_STEP : CONSTRAIN_MOST;
    return slow ? made + fill_slow(c, s, f, step, masks) : made;
}

uint32_t constrain_fill(struct constrain *c, struct sched *s, struct flight *f,
                        const struct ek_step *step, uint32_t vocab, struct ek_masks *masks)
{
    const struct ek_step_seq *q = ek_step_seqs(step);
    uint32_t rows = 0, words = (vocab + 31) / 32;

    masks->words = words;
    for (uint32_t i = 0; i < f->seqs; i++) {
        if (!q[i].sample)
            continue;
        rows = q[i].logit_row + 1 > rows ? q[i].logit_row + 1 : rows;
        if (!constrained(&s->entries, &f->seq[i]))
            memset(masks->bits + (size_t)q[i].logit_row * words, 0xff, words * sizeof(uint32_t));
    }
    masks->rows = rows;
    return c->maskers && !s->states.on ? fill_with_maskers(c, s, f, step, masks)
                                       : fill_here(c, s, f, step, masks);
}
