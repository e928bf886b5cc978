/*
 * What comes back from a step. The engine calls sched_apply() when the oldest step in flight has
 * landed, and sched_cancel() for the newest one when the device did not compute it.
 *
 * plan.c has counted the step's rows as computed when it planned them. Here that comes true, entry
 * by entry, in an order that matters:
 *
 *   settled   the rows are in the blocks now, so that a preemption may copy them
 *   names     blocks that became full get their name and can be found by later prompts (prefix.h)
 *   scores    of a prompt's tokens, where they were asked for
 *   tokens    the sampled one is appended; it may be followed by tokens that the form leaves no
 *             choice about, which the next step computes with it. Then what later steps in flight
 *             have sampled for this entry is for places that are known now, and is dropped
 *   end       a stop token or the length ends the request, which gives its slot and blocks back
 *
 * An entry may have ended, or its place been taken by another request, while the step was under
 * way: `number` tells them apart, and of one that is gone only the slot's lease is closed.
 *
 * A step that is cancelled is undone the other way: each entry goes back to what is sure to be in
 * its blocks (`sure`), with its sampling state to be sent again. A model with recurrent state has
 * no way back but to begin at its newest snapshot (sched_replay()). Where a request has to be
 * blamed it is the one with most rows.
 *
 * Tokens go to readers by r->out_count, the one field that other threads look at: it is written
 * last.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "common/work.h"
#include "server/engine/constrain.h"
#include "server/engine/sched.h"
#include "server/engine/tally.h"

/* Gives names to blocks that have become full, so that others can share them. */
static void name_blocks(struct sched *s, const struct entry *e, uint32_t slot)
{
    struct slot *t = &s->slots.at[slot];
    const uint32_t *table = slots_table(&s->slots, slot);

    if (!sched_caches(s) || t->quiet)
        return;
    while ((t->named + 1) * s->fixed.block_size <= t->settled) {
        for (uint32_t i = 0; i < s->fixed.block_size; i++)
            s->scratch.tokens[i] = sched_token(e, t->named * s->fixed.block_size + i);
        struct prefix_name name =
            prefix_hash(&s->prefix, t->tail, sched_salt(s, e), s->scratch.tokens);
        uint32_t id = table[t->named];
        if (prefix_add(&s->prefix, id, name, t->tail, s->scratch.tokens))
            blocks_name(&s->blocks, id, sched_owner(e));
        t->tail = name;
        t->named++;
        snapshot_named(s, t);
    }
}

/* `got` = NULL: it came without a step. `gap`: it is the first of its step. */
static void append_token(struct sched *s, struct entry *e, struct req_token t,
                         const struct ek_result_seq *got, bool gap, uint64_t now_us)
{
    struct request *r = e->req;
    uint32_t n = atomic_load_explicit(&r->out_count, memory_order_relaxed);

    t.top = got && got->top < r->ask.top ? got->top : got ? r->ask.top : 0;
    r->out[n] = t;
    for (uint32_t k = 0; k < t.top; k++)
        r->top_at[(size_t)n * r->ask.top + k] =
            (struct req_top){.id = got->top_id[k], .logprob = got->top_logit[k] - got->lse};
    e->known++;
    s->stats.generation_tokens++;
    growths_made(&s->growth, growths_kind(e->tenant, r->ask.prompt_tokens), n);
    tenants_answer(&s->tenants, e->tenant);
    if (n == 0) {
        r->first_token_us = now_us;
        tally_first_token(&s->stats, r);
    } else if (gap) {
        uint64_t waited = now_us > e->last_token_us ? now_us - e->last_token_us : 0;
        tally_gap(&s->stats, r, waited, now_us);
        if (!e->yielded)
            gaps_note(&s->gaps, waited, now_us);
        if (e->state == ENTRY_RUNNING) /* else a step brings it that was under way before */
            sched_resumed(&s->stats, e, now_us);
    }
    e->last_token_us = now_us;
    s->news |= 1u << r->ask.worker % ENGINE_WORKERS_MOST;
    atomic_store_explicit(&r->out_count, n + 1, memory_order_release);
}

/* The scores of a flight: of the entry's rows before the sampled one. */
static void apply_scores(struct entry *e, const struct flight_seq *q,
                         const struct ek_result_score *score)
{
    struct request *r = e->req;
    uint32_t at = q->first + q->rows - q->sample - q->scores + 1; /* the token after the row */

    for (uint32_t i = 0; i < q->scores; i++, at++) {
        uint32_t top = score[i].top < r->ask.top ? score[i].top : r->ask.top;
        r->score[at] = (struct req_token){
            .id = r->ask.prompt[at], .logprob = score[i].logit - score[i].lse, .top = top};
        r->rank[at] = score[i].rank;
        for (uint32_t k = 0; k < top; k++)
            r->score_top[(size_t)at * r->ask.top + k] = (struct req_top){
                .id = score[i].top_id[k], .logprob = score[i].top_logit[k] - score[i].lse};
    }
    if (q->scores > 0 && at - 1 > e->scored)
        e->scored = at - 1;
}

static bool stops_at(const struct req_ask *ask, int32_t token, uint32_t produced)
{
    if (produced < ask->min_tokens)
        return false;
    for (uint32_t i = 0; i < ask->stop_count; i++)
        if (ask->stop_ids[i] == token)
            return true;
    return false;
}

/* Whether the token that came last ends the request, and then ends it. */
static bool ends_with(struct sched *s, uint32_t entry, int32_t token, uint64_t now_us)
{
    const struct entry *e = &s->entries.at[entry];
    const struct req_ask *ask = &e->req->ask;
    uint32_t produced = e->known - ask->prompt_tokens;

    if (stops_at(ask, token, produced)) {
        e->req->stop_token = token;
        sched_end(s, entry, REQ_FIN_STOP, 0, now_us);
        return true;
    }
    if (produced >= ask->max_new_tokens) {
        sched_end(s, entry, REQ_FIN_LENGTH, 0, now_us);
        return true;
    }
    return false;
}

/* What later steps in flight sample for the entry is for places that are known now. */
static void drop_samples(struct sched *s, uint32_t entry)
{
    struct entry *e = &s->entries.at[entry];

    for (uint32_t i = 1; i < s->flights.count; i++) {
        struct flight *f = &s->flights.at[flights_place(&s->flights, i)];
        for (uint32_t k = 0; k < f->seqs; k++) {
            struct flight_seq *q = &f->seq[k];
            if (q->entry != entry || q->number != e->number || !q->sample || q->put_off)
                continue;
            q->sample = false;
            e->pending--;
        }
    }
}

/* Appends the tokens that the grammar leaves no choice about. */
static void append_jump_forward(struct sched *s, uint32_t entry, uint64_t now_us)
{
    struct entry *e = &s->entries.at[entry];
    struct request *r = e->req;
    uint32_t n = atomic_load_explicit(&r->out_count, memory_order_relaxed);
    int32_t token[SCHED_JUMP_FORWARD];
    uint32_t first;

    struct ek_work work = {.fuel = CONSTRAIN_QUICK, .look = UINT64_MAX};

    e->jumped = false;
    r->matcher.work = &work;
    if (!constrain_begun(r, n, &first) || grammar_is_lent(r->ask.grammar) ||
        !matcher_follow(&r->matcher, &r->out[first].id, sizeof(r->out[0]), n - first))
        return;
    uint32_t room = r->ask.grammar_finish ? r->ask.max_new_tokens - n : MATCHER_MANY;
    uint32_t most = r->ask.max_new_tokens - n;
    uint32_t count = matcher_jump_forward(&r->matcher, room, token,
                                          most < SCHED_JUMP_FORWARD ? most : SCHED_JUMP_FORWARD);
    if (ek_work_stopped(&work))
        return; /* they come with masks, one a step */
    e->jumped = count > 0;
    if (e->jumped)
        drop_samples(s, entry);
    s->stats.jump_forward_tokens += count;
    for (uint32_t i = 0; i < count; i++) {
        append_token(s, e, (struct req_token){.id = token[i]}, NULL, false, now_us);
        if (ends_with(s, entry, token[i], now_us))
            return;
    }
}

static void apply_tokens(struct sched *s, uint32_t entry, const struct ek_result_seq *got,
                         uint64_t now_us)
{
    struct entry *e = &s->entries.at[entry];
    uint32_t count = got->tokens < EK_STEP_TOKENS ? got->tokens : EK_STEP_TOKENS;

    if (count == 0) { /* every token was excluded, or the logits are no numbers */
        int code = isnan(got->lse) ? -EIO : e->req->mask_refused ? -E2BIG : -ENODATA;
        sched_end(s, entry, REQ_FIN_ERROR, code, now_us);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct req_token t = {.id = got->token[i], .logprob = got->logit[i] - got->lse};
        append_token(s, e, t, got, i == 0, now_us);
        if (ends_with(s, entry, got->token[i], now_us))
            return;
    }
    if (e->req->ask.grammar && e->req->ask.grammar_append)
        append_jump_forward(s, entry, now_us);
}

void sched_untimed(struct sched *s)
{
    s->flights.at[s->flights.first].untimed = true;
}

void sched_apply(struct sched *s, const struct ek_result *result, uint64_t now_us)
{
    struct flight *f = &s->flights.at[s->flights.first];
    const struct ek_result_score *score = ek_result_scores(result);
    uint32_t hiddens = 0;

    assert(s->flights.count > 0 && result->step == f->id && result->seqs == f->seqs);
    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct flight_seq *q = &f->seq[i];
        struct entry *e = &s->entries.at[q->entry];
        bool live = e->number == q->number;

        /* In this order: the token completes what is known, naming reads it, the end frees. */
        if (live) {
            e->pending -= q->sample && !q->put_off;
            s->slots.at[q->slot].settled = q->first + q->rows - q->put_off;
            if (e->state == ENTRY_RUNNING && q->first + q->rows >= e->lost)
                sched_recovered(&s->stats, e, now_us);
            name_blocks(s, e, q->slot);
            apply_scores(e, q, score);
            if (q->hidden && !q->put_off && result->width == e->req->ask.hidden_width)
                memcpy(e->req->hidden, ek_result_hidden(result, hiddens),
                       result->width * sizeof(float));
            if (q->sample && !q->put_off) {
                sched_cleared(s, e); /* with it the step went well */
                apply_tokens(s, q->entry, &result->seq[i], now_us);
            }
        }
        score += q->scores;
        hiddens += q->hidden;
        slots_landed(&s->slots, &s->blocks, &s->states, q->slot, now_us);
    }
    if (f->seqs > 0)
        rates_landed(&s->rates, f, result->copy_us, now_us);
    else
        sched_migrated(s, true, now_us);
    s->stats.steps++;
    s->stats.last_step_us = now_us;
    ek_hist_observe(&s->stats.iteration_tokens, f->rows);
    flights_land(&s->flights);
}

void sched_charge_mask(struct sched *s, const struct flight_seq *q, uint64_t units)
{
    tenants_mask(&s->tenants, s->entries.at[q->entry].tenant, units);
}

void sched_put_off(struct sched *s, struct flight_seq *q)
{
    struct entry *e = &s->entries.at[q->entry];
    struct slot *t = &s->slots.at[q->slot];

    assert(!s->states.on && q->sample && !q->put_off && e->number == q->number && e->pending > 0);
    assert(e->computed == q->first + q->rows);
    q->put_off = true;
    e->pending--;
    e->computed--;
    t->sure = e->computed;
    /* what is sampled in vain is in the history that the device keeps */
    t->set_due |= request_has_history(&e->req->ask);
}

void sched_await_mask(struct sched *s, uint32_t entry, bool awaits)
{
    struct entry *e = &s->entries.at[entry];

    assert(!awaits || (!s->states.on && e->state == ENTRY_RUNNING && e->pending == 0));
    e->awaits_mask = awaits;
}

void sched_cancel(struct sched *s, int blame, uint64_t now_us)
{
    assert(s->flights.count > 0);
    struct flight *f = &s->flights.at[flights_newest(&s->flights)];
    uint32_t worst = SCHED_NONE, worst_rows = 0;

    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct flight_seq *q = &f->seq[i];
        struct entry *e = &s->entries.at[q->entry];
        if (e->number == q->number) {
            e->pending -= q->sample && !q->put_off;
            bool has_slot = e->state == ENTRY_RUNNING && s->slots.at[e->slot].lease == q->lease;
            if (has_slot && s->states.on) {
                sched_replay(s, entries_place(&s->entries, q->entry), now_us);
            } else if (has_slot) {
                e->computed = q->sure;
                e->scoring -= q->scores;
                if (s->slots.at[q->slot].settled > q->sure)
                    s->slots.at[q->slot].settled = q->sure;
                /* a newer step may have added to the history before the older one was seen to
                 * have failed */
                s->slots.at[q->slot].set_due |=
                    q->set || (q->sample && request_has_history(&e->req->ask));
            } else if (e->swapped.tokens > q->sure) {
                e->swapped.tokens = q->sure; /* the rest of what was saved never came to be */
            }
            if (q->rows >= worst_rows) { /* of equals the one that came last */
                worst = q->entry;
                worst_rows = q->rows;
            }
        }
        slots_landed(&s->slots, &s->blocks, &s->states, q->slot, now_us);
    }
    host_cancel(s, f->id, now_us);
    snapshot_cancel(s, f->id);
    if (f->seqs == 0)
        sched_migrated(s, false, now_us);
    flights_cancel(&s->flights);
    if (blame != 0 && worst != SCHED_NONE)
        sched_end(s, worst, REQ_FIN_ERROR, blame, now_us);
}

uint32_t sched_take_news(struct sched *s)
{
    uint32_t news = s->news;
    s->news = 0;
    return news;
}
