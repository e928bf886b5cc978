/*
 * Planning one step: which rows of which requests it computes, as plain data. The engine calls
 * sched_plan() when the device can take another step.
 *
 * Deciding comes first. The step has a budget of rows, and one of work, in which rows far into a
 * long prompt cost more (price.h); both shrink as entries get rows (sched_charge()):
 *
 *   1. what waited for too long leaves; a pool that is to become smaller moves blocks instead
 *      (then the step is a copy and nothing else)
 *   2. a tenant with more than its part gives way to the first in line (yield.c)
 *   3. each running entry that decodes gets its row, or the rows of tokens that its form leaves no
 *      choice about. Where the budget does not cover all of them they take turns
 *   4. the oldest prompt that is being read gets its half, waiting requests are admitted while they
 *      fit, and the rest goes to prompts (share.c, admit.c)
 *
 * A row needs room in a block. Where there is none the entry preempts another one, or itself
 * (sched_plan_rows()). That takes rows back which were decided before, so nothing is counted as
 * computed until all is decided: `rows` of an entry is a wish until write_step().
 *
 * Then the decision is written, sequences with one row first, since kernels treat those apart. From
 * there on the entries count as computed (`computed`, `pending`), though the device has not begun:
 * the next plan goes on from there, with the tokens to come as EK_FROM_PREVIOUS. results.c corrects
 * that when the step has landed or failed.
 *
 * At most `depth` steps are in flight. A plan is put off (0 rows) where one that is made when the
 * step before has landed would get on further, see is_better_planned_later().
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "server/engine/sched.h"

#define SHARED_US 60000000u /* requests so long ago: another one may come any moment */

uint32_t sched_rows_wanted(const struct entry *e)
{
    const struct req_ask *ask = &e->req->ask;

    if (e->awaits_mask)
        return 0;
    if (e->known - ask->prompt_tokens + e->pending >= ask->max_new_tokens)
        return 0; /* a step in flight samples its last token */
    return e->known + e->pending - e->computed;
}

bool sched_wants_scores(const struct entry *e)
{
    return e->req->ask.score && e->scoring + 1 < e->req->ask.prompt_tokens;
}

/* Of the next `rows` rows those that are scored: not yet scored ones before the prompt's last. */
static uint32_t scores_in(const struct entry *e, uint32_t rows)
{
    uint32_t end = e->computed + rows, last = e->req->ask.prompt_tokens - 1;

    end = end < last ? end : last;
    return sched_wants_scores(e) && end > e->scoring ? end - e->scoring : 0;
}

uint32_t sched_words_of_set(const struct entry *e)
{
    const struct req_ask *ask = &e->req->ask;

    return ask->allowed + 2 * ask->biases + ask->bad + (ask->min_tokens > 0 ? ask->stop_count : 0) +
           (request_has_history(ask) ? e->known : 0);
}

uint32_t sched_rows_that_fit(const struct plan *p, const struct entry *e, uint32_t rows,
                             bool set_due)
{
    if (set_due && sched_words_of_set(e) > p->words)
        return 0;
    return scores_in(e, rows) > p->scores ? e->scoring + p->scores - e->computed : rows;
}

uint32_t sched_cost(const struct plan *p, const struct entry *e, uint32_t rows)
{
    return sched_is_decode(e, sched_rows_wanted(e)) ? rows : price_of(&p->price, e->computed, rows);
}

void sched_charge(struct plan *p, const struct entry *e, bool set_due)
{
    p->budget -= e->rows;
    p->work -= sched_cost(p, e, e->rows);
    p->scores -= scores_in(e, e->rows);
    p->words -= set_due ? sched_words_of_set(e) : 0;
}

void sched_refund(struct plan *p, const struct entry *e, bool set_due)
{
    if (e->rows == 0)
        return;
    p->budget += e->rows;
    p->work += sched_cost(p, e, e->rows);
    p->scores += scores_in(e, e->rows);
    p->words += set_due ? sched_words_of_set(e) : 0;
}

void sched_preempt(struct sched *s, struct plan *p, uint32_t at, enum engine_held for_other)
{
    struct entry *e = entries_running(&s->entries, at);

    if (p->at != SCHED_NONE && at <= p->at)
        p->at--;
    sched_refund(p, e, s->slots.at[e->slot].set_due);
    p->preempted = true;
    e->rows = 0;
    e->lost = s->slots.at[e->slot].settled;
    e->replayed = false;
    e->yielded = for_other != HELD_NONE;
    p->yielded = for_other;
    bool kept = swap_out(s, e, p->now_us);
    if (for_other == HELD_LIMIT) {
        s->stats.slots_yielded++;
    } else if (for_other == HELD_BLOCKS) {
        s->stats.blocks_yielded++;
    } else {
        *(kept ? &s->stats.preemptions_swap : &s->stats.preemptions_recompute) += 1;
        s->stats.preemptions++;
        e->lost_us = e->lost_us != 0 ? e->lost_us : p->now_us;
        e->thrown_out = true;
    }
    e->req->preemptions++;
    request_note(e->req, REQ_MET_PREEMPTION, p->now_us);
    s->tenants.at[e->tenant].preemptions++;
    sched_give_slot(s, at, p->now_us);
}

/* The entry that gives way, by its place among the running: of the least important the last one of
 * the tenant that holds most for its weight, counting what would come back; never the first in line
 * unless it is alone. */
static uint32_t choose_victim(struct sched *s)
{
    uint32_t last = s->entries.running_count - 1, victim = last;
    const struct entry *least = entries_running(&s->entries, last);
    uint64_t most = 0;

    if (s->tenants.count == 1)
        return last;
    sched_count_held(s, true);
    for (uint32_t i = last; i > 0; i--) {
        const struct entry *e = entries_running(&s->entries, i);
        const struct tenant *t = &s->tenants.at[e->tenant];
        if (entries_ranked(&s->entries, e, least))
            break;
        if ((uint64_t)t->held * t->price <= most)
            continue;
        most = (uint64_t)t->held * t->price;
        victim = i;
    }
    return victim;
}

void sched_plan_rows(struct sched *s, struct plan *p, uint32_t entry, uint32_t rows)
{
    struct entry *e = &s->entries.at[entry];
    bool set_due = s->slots.at[e->slot].set_due;

    rows = sched_rows_that_fit(p, e, rows, set_due);
    if (rows == 0) {
        p->lacking = true;
        return;
    }
    while (slots_grow(&s->slots, &s->blocks, e->slot, e->computed + rows, p->now_us) != 0) {
        if (slots_limbo(&s->slots) > 0) {
            p->lacking = true;
            return;
        }
        uint32_t victim = choose_victim(s);
        bool itself = s->entries.running[victim] == entry;
        sched_preempt(s, p, victim, HELD_NONE);
        if (itself)
            return;
    }
    e->rows = rows;
    sched_charge(p, e, set_due);
}

bool sched_is_decode(const struct entry *e, uint32_t want)
{
    return want == 1 ||
           (want > 1 && want <= SCHED_JUMP_FORWARD + 1 && e->computed >= e->req->ask.prompt_tokens);
}

/* Decodes from `from` up to `to`. Returns the place of the first that got no row for want of
 * budget, SCHED_NONE when all were served. */
static uint32_t plan_decodes(struct sched *s, struct plan *p, uint32_t from, uint32_t to)
{
    for (p->at = from; p->at < to && p->at < s->entries.running_count; p->at++) {
        uint32_t entry = s->entries.running[p->at];
        const struct entry *e = &s->entries.at[entry];
        uint32_t want = sched_rows_wanted(e);
        if (e->rows > 0 || !sched_is_decode(e, want)) /* a preemption may have moved it here */
            continue;
        if (p->budget == 0)
            return p->at;
        sched_plan_rows(s, p, entry, want < p->budget ? want : p->budget);
    }
    return SCHED_NONE;
}

static void plan_running(struct sched *s, struct plan *p)
{
    /* While a lowered budget does not cover all decodes, they take turns. */
    uint32_t turn = s->turn < s->entries.running_count ? s->turn : 0;
    uint32_t stop = plan_decodes(s, p, turn, SCHED_NONE);
    if (stop == SCHED_NONE)
        stop = plan_decodes(s, p, 0, turn);
    s->turn = stop == SCHED_NONE ? 0 : stop;
    sched_share_first(s, p);
}

static void write_rows(const struct sched *s, const struct entry *e, struct ek_step *step)
{
    int32_t *tokens = ek_step_tokens(step) + step->rows;
    uint32_t *positions = ek_step_positions(step) + step->rows;
    uint32_t *kv_slots = ek_step_kv_slots(step) + step->rows;
    const uint32_t *table = slots_table(&s->slots, e->slot);

    for (uint32_t i = 0; i < e->rows; i++) {
        uint32_t at = e->computed + i;
        tokens[i] = at < e->known ? sched_token(e, at) : EK_FROM_PREVIOUS;
        positions[i] = at;
        kv_slots[i] =
            table[at / s->fixed.block_size] * s->fixed.block_size + at % s->fixed.block_size;
    }
    step->rows += e->rows;
}

static uint32_t *put_words(uint32_t *to, const void *from, uint32_t count)
{
    if (count > 0)
        memcpy(to, from, count * sizeof(*to));
    return to + count;
}

static void write_words(const struct entry *e, struct ek_slot_set *set, struct ek_step *step)
{
    const struct req_ask *ask = &e->req->ask;
    uint32_t lists = ask->allowed + 2 * ask->biases;
    uint32_t *w = ek_step_words(step) + step->words;

    set->word = step->words;
    set->allowed = ask->allowed;
    set->biases = ask->biases;
    set->banned = ask->min_tokens > 0 ? ask->stop_count : 0;
    set->banned_until = ask->prompt_tokens + ask->min_tokens;
    set->bad = ask->bad;
    w = put_words(w, ask->words, lists);
    w = put_words(w, ask->stop_ids, set->banned);
    w = put_words(w, ask->bad > 0 ? ask->words + lists : NULL, set->bad);
    if (request_has_history(ask)) {
        set->prompt = ask->prompt_tokens;
        set->output = e->known - ask->prompt_tokens;
        w = put_words(w, ask->prompt, set->prompt);
        for (uint32_t i = 0; i < set->output; i++)
            *w++ = (uint32_t)e->req->out[i].id;
    }
    step->words += (uint32_t)ek_slot_words(set);
}

static void write_set(const struct entry *e, struct ek_step *step)
{
    const struct req_ask *ask = &e->req->ask;
    struct ek_slot_set *set = &ek_step_sets(step)[step->sets++];

    *set = (struct ek_slot_set){
        .slot = e->slot,
        .top = ask->top,
        .sampling = ask->sampling,
    };
    write_words(e, set, step);
}

/* The tokens that follow the scored rows. */
static void write_targets(struct entry *e, uint32_t scores, struct ek_step_seq *q,
                          struct ek_step *step)
{
    q->scores = scores;
    q->target = step->words;
    (void)put_words(ek_step_words(step) + step->words, e->req->ask.prompt + e->scoring + 1, scores);
    step->words += scores;
    e->scoring += scores;
}

/* Rows that are the first to read their part of the prompt are the tenant's to pay. */
static void charge_tenant(struct tenants *t, struct entry *e, uint32_t after)
{
    uint32_t to = after < e->req->ask.prompt_tokens ? after : e->req->ask.prompt_tokens;
    uint32_t from = e->computed > e->paid ? e->computed : e->paid;

    if (to <= e->paid)
        return;
    tenants_read(t, e->tenant, to - e->paid, to > from ? to - from : 0);
    e->paid = to;
}

static void write_entry(struct sched *s, struct flight *f, uint32_t entry, struct ek_step *step)
{
    struct entry *e = &s->entries.at[entry];
    struct slot *t = &s->slots.at[e->slot];
    uint32_t after = e->computed + e->rows, blocks = slots_blocks_for(&s->slots, after);
    uint32_t scores = scores_in(e, e->rows);
    bool sample = after == e->known + e->pending;

    f->seq[f->seqs++] = (struct flight_seq){.entry = entry,
                                            .slot = e->slot,
                                            .number = e->number,
                                            .lease = t->lease,
                                            .first = e->computed,
                                            .rows = e->rows,
                                            .scores = scores,
                                            .hidden = sample && e->req->ask.hidden,
                                            .sure = t->sure < e->computed ? t->sure : e->computed,
                                            .sample = sample,
                                            .set = t->set_due};
    ek_step_seqs(step)[step->seqs++] = (struct ek_step_seq){
        .slot = e->slot,
        .row = step->rows,
        .rows = e->rows,
        .context = after,
        .table = step->entries,
        .blocks = blocks,
        .sample = sample,
        .logit_row = sample ? step->logit_rows++ : 0,
        .hidden = sample && e->req->ask.hidden,
        .prompt = e->req->ask.prompt_tokens,
    };
    if (s->states.on)
        snapshot_take(s, e);
    if (scores > 0)
        write_targets(e, scores, &ek_step_seqs(step)[step->seqs - 1], step);
    memcpy(ek_step_tables(step) + step->entries, slots_table(&s->slots, e->slot),
           blocks * sizeof(uint32_t));
    step->entries += blocks;
    write_rows(s, e, step);
    if (t->set_due)
        write_set(e, step);
    t->set_due = false;
    t->sure = SCHED_NONE;
    t->inflight++;
    if (e->computed < e->req->ask.prompt_tokens || !sched_is_decode(e, e->rows))
        f->prefill_rows += e->rows;
    charge_tenant(&s->tenants, e, after);
    if (sample && e->active) {
        tenants_end(&s->tenants, e->tenant);
        e->active = false;
    }
    e->computed = after;
    e->pending += sample;
    e->rows = 0;
}

/* What the step reads of what it has computed before. */
static void note_depth(struct flight *f, const struct ek_step *step)
{
    for (uint32_t i = 0; i < step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(step)[i];
        f->context += q->rows == 1 ? q->context : 0;
        f->read += q->rows > 1 ? q->context : 0;
        f->deep += q->rows > 1 ? q->rows * (q->context - q->rows / 2.0) : 0;
    }
}

/* Writes the decision: sequences with one row first, then the chunks. */
static void write_step(struct sched *s, const struct plan *p, struct ek_step *step)
{
    struct flight *f = flights_begin(&s->flights, p->now_us);

    ek_step_layout(step, &s->fixed.ceiling);
    step->id = f->id;
    f->spread = p->spread;
    f->shared = p->shared;
    f->full = !p->spread && (p->budget == 0 || (p->price.deeper > 0 && p->cut));
    s->stats.shared_steps += p->shared && f->full;
    for (uint32_t i = 0; i < s->entries.running_count; i++)
        if (s->entries.at[s->entries.running[i]].rows == 1)
            write_entry(s, f, s->entries.running[i], step);
    for (uint32_t i = 0; i < s->entries.running_count; i++)
        if (s->entries.at[s->entries.running[i]].rows > 0)
            write_entry(s, f, s->entries.running[i], step);
    for (uint32_t i = 0; i < step->seqs; i++) {
        struct ek_step_seq *q = &ek_step_seqs(step)[i];
        q->score_row = q->scores > 0 ? step->logit_rows : 0;
        step->logit_rows += q->scores;
    }
    host_write(&s->host, step);
    f->copies = step->copies;
    note_depth(f, step);
    states_write(&s->states, step);
    f->rows = step->rows;
}

uint64_t sched_plan_after(const struct sched *s)
{
    const struct flight *f = &s->flights.at[s->flights.first];

    return s->flights.count == 1 && f->seqs > 0 ? rates_plan_after(&s->rates, f) : 0;
}

/* Those that decode; *ret_rows: what they take of the step, with what a form has appended. */
static uint32_t decodes(const struct entries *e, uint32_t *ret_rows)
{
    uint32_t count = 0;

    *ret_rows = 0;
    for (uint32_t i = 0; i < e->running_count; i++) {
        uint32_t want = sched_rows_wanted(entries_running(e, i));
        count += want == 1;
        *ret_rows += sched_is_decode(entries_running(e, i), want) ? want : 0;
    }
    return count;
}

uint32_t sched_budget(const struct sched *s)
{
    uint64_t limit = s->value[LIMIT_BATCHED_TOKENS];

    return limit < s->fixed.max_rows ? (uint32_t)limit : s->fixed.max_rows;
}

/* A sequence waits for a token that its form, as the last time, may continue without a choice. In a
 * step planned now it has a row whose sample is dropped, and its tokens come a step later; in one
 * planned when the token is known it has them all. That one begins a gap late, for all. With n
 * sequences that can go on, f of them such ones, T for a step and G for the gap, guessed high, it
 * serves n in T + G where the other serves n - f/2 in T. */
static bool is_better_planned_later(const struct sched *s)
{
    uint64_t all = 0, jumped = 0;

    for (uint32_t i = 0; s->flights.count > 0 && i < s->entries.running_count; i++) {
        const struct entry *e = &s->entries.at[s->entries.running[i]];
        if (sched_rows_wanted(e) == 0)
            continue;
        all++;
        jumped += e->jumped && e->pending > 0;
    }
    return jumped * s->rates.landed_took_us > 2 * all * ENGINE_GAP_CARD_US;
}

/* Whether waiting entries wait for what running ones hold, and not for prompts to be read. With
 * other tenants a slot is not waited for long (yield.c), and one tenant that fills them all would
 * have the prompts of others read slowly for ever. */
static bool is_held_by_others(const struct sched *s)
{
    switch (s->admission.held) {
    case HELD_LIMIT: return s->tenants.count == 1;
    case HELD_PREEMPTED:
    case HELD_PAUSED:
    case HELD_BLOCKS:
    case HELD_GROWTH: return true;
    case HELD_NONE:
    case HELD_TOKENS:
    case HELD_COPIES:
    case HELD_COUNT: break;
    }
    return false;
}

/* Whether several tenants have requests here, or had of late. Where there are keys the one without
 * is evenkeeld, which asks for a token now and then. */
static bool is_shared(struct sched *s, uint64_t now_us)
{
    uint32_t tenants = 0;

    if (s->tenants.count == 1)
        return false;
    sched_count_held(s, false);
    for (uint32_t i = 1; i < s->tenants.count; i++)
        tenants += s->tenants.at[i].held > 0 || s->tenants.at[i].queue.head != SCHED_NONE;
    if (tenants > 1)
        s->share.several_us = now_us;
    return s->share.several_us != 0 && now_us < s->share.several_us + SHARED_US;
}

uint32_t sched_prompts_within(const struct sched_fixed *fixed, uint32_t rows, uint32_t answers)
{
    uint32_t most = answers + fixed->prompt_rows + SHARE_OPEN;

    return fixed->prompt_rows != 0 && most < rows ? most : rows;
}

/* Rows of the step. Where blocks are lacking, prompts that are read fast wait for blocks instead:
 * then they get what costs the answers nothing. As soon as one would be admitted but for those that
 * are being read, they are read as fast as pays. */
static uint32_t choose_rows(struct sched *s, struct plan *p)
{
    uint32_t taken, most = sched_budget(s), running = decodes(&s->entries, &taken);
    uint32_t rows =
        sched_prompts_within(&s->fixed, pace_rows(&s->rates.pace, most, running), taken);
    uint32_t few = is_shared(s, p->now_us) ? pace_shared(&s->rates.pace, most, taken) : 0;
    p->shared = few != 0 && few + SHARE_OPEN < rows;
    rows = p->shared ? few : rows;
    uint32_t spare = is_held_by_others(s) ? pace_spare(&s->rates.pace, most, taken) : 0;

    p->spread = spare != 0 && spare < rows;
    return p->spread ? spare : rows;
}

uint32_t sched_plan(struct sched *s, uint64_t now_us, struct ek_step *step)
{
    struct plan p = {.now_us = now_us,
                     .price = s->rates.prices.now,
                     .words = s->fixed.ceiling.words - s->fixed.ceiling.scores,
                     .scores = s->fixed.ceiling.scores};
    uint32_t most = choose_rows(s, &p);

    p.budget = most;
    p.most = prices_budget(&s->rates.prices, most);
    p.work = p.most;
    p.rows = most;
    assert(s->flights.count < s->fixed.depth);
    sched_expire(s, now_us);
    if (s->blocks.usable > s->pool.limit)
        sched_fit_pool(s, now_us);
    if (sched_pool_holds(s, now_us)) {
        if (s->flights.count > 0)
            return 0;
        if (sched_migrate(s, now_us, step))
            return 1;
    }
    if (is_better_planned_later(s))
        return 0;
    sched_make_way(s, &p);
    plan_running(s, &p);
    sched_admit(s, &p);
    sched_share_rest(s, &p);
    if (p.budget == most)
        return 0;
    write_step(s, &p, step);
    return most - p.budget;
}
