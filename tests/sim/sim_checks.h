/*
 * What sim_engine.c demands beside the recount: of each request's output, of each plan, of the
 * request that is first in line and of names. Each calls fail(), which keeps the first complaint.
 */
#pragma once

#include <errno.h>

#include "tests/sim/sim_world.h"

/* The output is what the request alone would have got, cut where it was ended. */
static inline void check_output(struct sim *s, const struct request *r)
{
    const struct req_ask *ask = &r->ask;
    uint32_t got = atomic_load(&r->out_count), n = 0, owed = 0; /* tokens that must be 1 */
    enum req_finish how = REQ_FIN_NONE;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < ask->prompt_tokens; i++)
        sum += null_mark(ask->prompt[i], i);
    while (how == REQ_FIN_NONE && n < got) {
        int32_t token = 1;
        if (owed == 0)
            token = null_next(sum, ask->sampling.seed, ask->prompt_tokens + n, s->vocab);
        owed = owed > 0 ? owed - 1 : ask->grammar && token == 0 ? s->form.run : 0;
        if (r->out[n].id != token)
            return fail(s, "a request's output differs from its output alone");
        sum += null_mark(token, ask->prompt_tokens + n);
        n++;
        for (uint32_t k = 0; k < ask->stop_count && n >= ask->min_tokens; k++)
            if (ask->stop_ids[k] == token)
                how = REQ_FIN_STOP;
        if (how == REQ_FIN_NONE && n == ask->max_new_tokens)
            how = REQ_FIN_LENGTH;
    }
    if (n != got)
        fail(s, "a request went on after its end");
    if (r->cached_tokens > 0 &&
        (ask->cache_salt > SALTS || s->p.limits.value[LIMIT_PREFIX_CACHING] == 0))
        fail(s, "a request was given blocks that are not for it");
    bool cut = r->finish == REQ_FIN_ABORT || r->finish == REQ_FIN_ERROR;
    if (cut ? how != REQ_FIN_NONE : r->finish != how)
        fail(s, "a request ended for the wrong reason");
    bool refused = r->finish == REQ_FIN_ERROR && r->error == -ETIMEDOUT;
    if (refused && (got > 0 || r->preemptions + r->replays > 0))
        fail(s, "a request that had begun was refused for the queue's deadline");
    if (refused && ask->deadline_us == 0 &&
        r->done_us < r->queued_us + s->limits.value[LIMIT_QUEUE_DEADLINE] / 4 * 3)
        fail(s, "a request was refused long before the queue's deadline");
}

/* What else it asked for is there, and right. */
static inline void check_extras(struct sim *s, const struct request *r)
{
    const struct req_ask *ask = &r->ask;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < ask->prompt_tokens; i++)
        sum += null_mark(ask->prompt[i], i);
    for (uint32_t i = 1; ask->score && i < ask->prompt_tokens; i++)
        if (r->score[i].id != ask->prompt[i] || r->rank[i] != i ||
            r->score[i].logprob != null_score(ask->prompt[i], i))
            return fail(s, "a score of the prompt is wrong");
    for (uint32_t k = 0; ask->hidden && atomic_load(&r->out_count) == 1 && k < NULL_WIDTH; k++)
        if (r->hidden[k] != (float)(sum >> (16 * k) & 0xffff))
            fail(s, "a hidden state is wrong");
}

/* The request that is first in line is never preempted. */
static inline void check_first(struct sim *s, uint32_t entry, uint64_t number)
{
    const struct entry *e = &s->sched->entries.at[entry];

    if (e->number == number && e->state != ENTRY_RUNNING)
        fail(s, "the first in line was preempted");
}

/* How often the content that a host block has at the end of these copies is copied back by them. */
static inline uint32_t brought(const struct ek_step *step, uint32_t count, uint32_t block)
{
    uint32_t times = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct ek_block_copy *c = &ek_step_copies(step)[i];
        if (c->to_tier == EK_TIER_HOST && c->to == block)
            times = 0; /* it holds something else from here on */
        times += c->from_tier == EK_TIER_HOST && c->from == block;
    }
    return times;
}

static inline bool refilled(const struct ek_step *step, uint32_t count, uint32_t block)
{
    for (uint32_t i = 0; i < count; i++)
        if (ek_step_copies(step)[i].to_tier == EK_TIER_HOST && ek_step_copies(step)[i].to == block)
            return true;
    return false;
}

/* A block that comes back from the host tier comes once, however many share it. */
static inline void check_copies(struct sim *s, const struct ek_step *step)
{
    const struct ek_step *other =
        s->sched->flights.count == 2 ? s->steps[s->sched->flights.first] : NULL;

    for (uint32_t i = 0; i < step->copies; i++) {
        const struct ek_block_copy *c = &ek_step_copies(step)[i];
        if (c->from_tier != EK_TIER_HOST)
            continue;
        uint32_t times = brought(step, i + 1, c->from);
        if (other && !refilled(step, i, c->from))
            times += brought(other, other->copies, c->from);
        if (times > 1)
            fail(s, "a block comes back from the host tier twice at once");
    }
}

/* Whether the newest step should give prompts only what is free beside the answers: where several
 * tenants have requests, only if that is less than they get anyway. */
static inline bool step_spread(const struct sim *s)
{
    const struct flights *f = &s->sched->flights;

    return s->spread && (!f->at[flights_newest(f)].shared || s->knee < s->few);
}

/* Of the limit, and of what prompts may have beside the answers. */
static inline uint32_t step_limit(const struct sim *s)
{
    uint32_t most = (uint32_t)s->limits.value[LIMIT_BATCHED_TOKENS];
    uint32_t prompts = s->p.prompt_rows + s->answers + SHARE_OPEN;

    return s->p.prompt_rows != 0 && prompts < most ? prompts : most;
}

/* Rows that the newest step may have. */
static inline uint32_t step_most(const struct sim *s)
{
    const struct flights *f = &s->sched->flights;
    uint32_t most = step_limit(s);

    if (step_spread(s))
        return s->knee;
    return f->at[flights_newest(f)].shared && s->few < most ? s->few : most;
}

static inline void check_plan(struct sim *s, const struct ek_step *step, uint32_t rows)
{
    const struct flights *f = &s->sched->flights;

    check_copies(s, step);
    if (step->seqs > 0 && f->at[flights_newest(f)].spread != step_spread(s))
        fail(s, "prompts are read slowly where they should not be, or fast");
    if (step->seqs > 0 && s->several && !f->at[flights_newest(f)].shared &&
        s->few + SHARE_OPEN < step_limit(s))
        fail(s, "a step is large though several tenants have requests");
    if (step->seqs > 0 && step_spread(s) && f->at[flights_newest(f)].full)
        fail(s, "a step that was made short tells how fast prompts can be read");
    if (step->seqs == 0 ? rows != 1 || step->copies == 0 || step->rows != 0 : rows != step->rows)
        fail(s, "the plan does not say how many rows it has");
    if (step->rows > step_most(s))
        fail(s, "the token budget is exceeded");
    if (s->sched->entries.running_count > s->limits.value[LIMIT_RUNNING_SEQS] &&
        s->sched->entries.running_count > s->running_before)
        fail(s, "the cap on running sequences is exceeded");
}

/* Rows that a sequence of the newest step would have taken if it were alone. */
static inline uint32_t wanted(const struct sim *s, const struct flight_seq *q)
{
    const struct entry *e = &s->sched->entries.at[q->entry];

    return q->rows + e->known + e->pending - q->sample - e->computed;
}

/* Whether a prompt may not be given all of it at once. */
static inline bool capped(const struct sim *s)
{
    return s->sched->value[LIMIT_LONG_PREFILL] != 0 || s->p.states > s->p.max_seqs;
}

static inline uint32_t could_use(const struct sim *s, const struct flight_seq *q)
{
    uint64_t cap = s->sched->value[LIMIT_LONG_PREFILL];
    const struct entry *e = &s->sched->entries.at[q->entry];
    uint32_t want = wanted(s, q);

    want = cap != 0 && cap < want ? (uint32_t)cap : want;
    if (s->p.states > 0) { /* up to where a snapshot is taken */
        struct entry before = *e;
        before.computed = q->first;
        want = snapshot_cut(s->sched, &before, want);
    }
    return want;
}

/* A prompt, or what a preemption took of it and its answer; scores are shared by another measure.
 */
static inline bool reads(const struct sim *s, const struct flight_seq *q)
{
    const struct req_ask *ask = &s->sched->entries.at[q->entry].req->ask;
    uint32_t want = wanted(s, q);

    return !ask->score && want > 1 &&
           (q->first < ask->prompt_tokens || want > SCHED_JUMP_FORWARD + 1);
}

/* What the tenant of a sequence had been served when the step was planned. */
static inline uint64_t served_before(const struct sim *s, const struct flight_seq *q)
{
    return s->served[s->sched->entries.at[q->entry].tenant];
}

/* Whether `q` comes before `o` for the half that the first in line has. */
static inline bool leads(const struct sim *s, const struct flight_seq *q,
                         const struct flight_seq *o)
{
    const struct sched *c = s->sched;
    const struct entry *x = &c->entries.at[q->entry], *y = &c->entries.at[o->entry];

    if ((c->entries.priority_policy && x->req->ask.priority != y->req->ask.priority) ||
        served_before(s, q) == served_before(s, o))
        return entries_before(&c->entries, q->entry, o->entry);
    return served_before(s, q) < served_before(s, o);
}

/* Prompts in the newest step: rows of those that end in it, of the first in line that goes on, of
 * the others that do; rows that nobody has; and the places in it for all prompts. */
struct token_shares {
    const struct flight_seq *leader, *first; /* in line; `first` goes on after the step, or NULL */
    uint32_t ending, others, other_count, left, places;
    bool mixed;     /* with some that share by another measure: of scores, or after a preemption */
    bool short_one; /* somebody could use more */
};

/* Whether its first token, or the next one after a preemption, comes of the step. */
static inline bool ends_here(const struct sim *s, const struct flight_seq *q, uint64_t lease)
{
    const struct entry *e = &s->sched->entries.at[q->entry];
    uint32_t want = wanted(s, q), prompt = e->req->ask.prompt_tokens;
    bool unanswered = e->known + e->pending - q->sample == prompt;
    bool decode =
        want == 1 || (q->lease < lease && want <= SCHED_JUMP_FORWARD + 1 && q->first >= prompt);

    return q->rows == want && (unanswered || !decode);
}

static inline struct token_shares add_shares(struct sim *s, uint32_t rows, uint64_t lease)
{
    const struct sched *c = s->sched;
    const struct flight *f = &c->flights.at[flights_newest(&c->flights)];
    struct token_shares sum = {.left = step_most(s) - rows, .places = step_most(s)};

    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct flight_seq *q = &f->seq[i];
        const struct entry *e = &c->entries.at[q->entry];
        uint32_t end = q->first + q->rows, prompt = e->req->ask.prompt_tokens;
        if (e->paid < (end < prompt ? end : prompt))
            fail(s, "nobody is charged for what is read of a prompt");
        if (ends_here(s, q, lease))
            sum.ending += q->rows;
        if (!reads(s, q)) {
            sum.places -= q->rows;
            sum.mixed |= e->req->ask.score || (q->lease >= lease && wanted(s, q) > 1);
            continue;
        }
        sum.short_one |= q->rows < could_use(s, q);
        if (q->lease < lease && (!sum.leader || leads(s, q, sum.leader)))
            sum.leader = q;
    }
    sum.first = sum.leader && !ends_here(s, sum.leader, lease) ? sum.leader : NULL;
    for (uint32_t i = 0; i < f->seqs; i++) {
        bool other =
            &f->seq[i] != sum.first && reads(s, &f->seq[i]) && !ends_here(s, &f->seq[i], lease);
        sum.others += other ? f->seq[i].rows : 0;
        sum.other_count += other;
    }
    return sum;
}

/* Where prompts end in a step, or ended of late beside others, those that go on have this and no
 * more; where none do they are not bound. Returns what the first in line may have. */
static inline uint32_t check_length(struct sim *s, const struct token_shares *h)
{
    const struct sched *c = s->sched;
    uint32_t least = s->p.share_least != 0 ? s->p.share_least : SHARE_LEAST;
    uint32_t most = step_most(s);
    bool recent = c->share.beside_us != 0 && s->now_us < c->share.beside_us + 1000000u;

    uint32_t cap = (uint32_t)s->limits.value[LIMIT_LONG_PREFILL];
    uint32_t beside = cap != 0 && cap < most ? cap : most;
    least = least > beside / 4 ? least : beside / 4;
    uint32_t all = h->ending > least ? h->ending : least, first = h->ending + h->others;
    first = first > least ? first : least;
    if (h->ending == 0) {
        all = recent && most - most / 6 > least ? most - most / 6 : recent ? least : most;
        first = all - (h->others < all / 2 ? h->others : all / 2);
    }
    bool bound = h->ending > 0 || recent;
    if (h->left > 0 && h->short_one && !bound)
        fail(s, "a step has rows left that a prompt could use");
    if (h->mixed)
        return bound ? first : UINT32_MAX;
    uint32_t its = h->first ? all / 2 : all;
    if (h->left > 0 && h->short_one && !h->first && h->others < all)
        fail(s, "a step is shorter than it has to be");
    bool in_order = !c->entries.priority_policy && !capped(s); /* by length */
    if (bound && in_order && h->others > (its > h->other_count ? its : h->other_count))
        fail(s, "prompts that go on make a step long in which others end");
    if (bound && h->first && h->first->rows > first)
        fail(s, "the first in line makes a step long in which others end");
    return bound ? first : UINT32_MAX;
}

/* What the first in line lent in the step, no more than half a step in all; it is had back only by
 * what it has above its half. */
static inline uint32_t check_lent(struct sim *s, const struct token_shares *h)
{
    uint32_t before = s->lent, now = s->sched->share.lent, most = h->ending + h->others;
    uint32_t more = h->first && h->first->rows > most ? (h->first->rows - most) / 2 : 0;

    if (now > before && now > step_most(s) / 2)
        fail(s, "the first in line lends more than half a step");
    if (now > before && h->ending == 0)
        fail(s, "the first in line lends to somebody who does not end");
    if (now < before && h->leader && !h->mixed && before - now > more)
        fail(s, "what the first in line has lent is forgotten");
    return now > before ? now - before : 0;
}

/* At a plan nobody is left in the queue past its deadline. */
static inline void check_waits(struct sim *s)
{
    const struct sched *c = s->sched;
    uint64_t most_us = s->limits.value[LIMIT_QUEUE_DEADLINE];

    for (uint32_t i = c->entries.age.head; most_us != 0 && i != SCHED_NONE;
         i = c->entries.at[i].in[QUEUE_AGE].next) {
        const struct entry *e = &c->entries.at[i];
        if (!e->admitted && s->now_us >= e->req->queued_us + most_us)
            fail(s, "a request waits past the queue's deadline");
    }
}

/* The law of share.c, from what came of it: no row is left that somebody in the step could use,
 * unless others end in it and are not to wait; the first in line has half, less what it lends to
 * those who end, and what it has lent and not had back is no more than half a step; and nobody has
 * more than its least while one goes short whose tenant has had less, or that has less to do. This
 * is the law by tokens, sim_cost.h has it by cost.
 */
static inline void check_share(struct sim *s, uint32_t rows, uint64_t lease)
{
    const struct sched *c = s->sched;
    const struct flight *f = &c->flights.at[flights_newest(&c->flights)];
    const struct token_shares h = add_shares(s, rows, lease);
    const struct flight_seq *first = h.first;
    uint32_t half = (h.places + 1) / 2, most = check_length(s, &h), lent = check_lent(s, &h);

    half = half < most ? half : most;
    if (first && could_use(s, first) < half)
        half = could_use(s, first);
    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct flight_seq *q = &f->seq[i];
        if (q == h.leader || !reads(s, q) || q->rows < 2)
            continue;
        if (first && !h.mixed && first->rows + lent < half)
            fail(s, "the first prompt in line has not its part of the step");
        for (uint32_t k = 0; k < f->seqs; k++) {
            const struct flight_seq *o = &f->seq[k];
            uint32_t mine = could_use(s, q), its = could_use(s, o);
            if (c->entries.priority_policy || capped(s) || !reads(s, o) || o->rows >= its)
                continue;
            if (served_before(s, o) < served_before(s, q))
                fail(s, "a tenant's prompt is read before that of one that was served less");
            if (served_before(s, o) == served_before(s, q) && its < mine)
                fail(s, "a longer prompt is read before a shorter one");
        }
    }
}

/* Above the high mark nobody new is admitted beside others: before the last one came, less was in
 * use than the mark. */
static inline void check_marks(struct sim *s, uint64_t lease)
{
    const struct sched *c = s->sched;
    uint64_t high = s->limits.value[LIMIT_ADMISSION_HIGH];

    for (uint32_t i = 0; high != 0 && i < c->entries.running_count; i++) {
        const struct entry *e = entries_running(&c->entries, i);
        const struct slot *t = &c->slots.at[e->slot];
        if (t->lease < lease || t->lease + 1 != c->slots.next_lease ||
            e->req->preemptions + e->req->replays > 0 || c->entries.running_count == 1)
            continue;
        uint64_t before = c->blocks.referenced - (uint64_t)t->blocks;
        if (before * 1000000u >= high * (c->blocks.usable - 1))
            fail(s, "a request was admitted above the high mark");
    }
}

/* Whether one of the tenant was admitted in this step: what of it is not to be paid, since it was
 * read before, makes its tenant stand better again when it is read. */
static inline bool came_now(const struct sched *c, uint32_t tenant, uint64_t lease)
{
    for (uint32_t i = 0; i < c->entries.running_count; i++) {
        const struct entry *e = entries_running(&c->entries, i);
        if (e->tenant == tenant && c->slots.at[e->slot].lease >= lease)
            return true;
    }
    return false;
}

/* The request admitted last stood no better than any that still waits: its own prompt, and what the
 * step serves, may have made it worse since. */
static inline void check_turns(struct sim *s, uint64_t lease)
{
    const struct sched *c = s->sched;

    for (uint32_t i = 0; i < c->entries.running_count && !c->entries.priority_policy; i++) {
        const struct entry *e = entries_running(&c->entries, i);
        if (c->slots.at[e->slot].lease < lease ||
            c->slots.at[e->slot].lease + 1 != c->slots.next_lease)
            continue;
        bool again = e->req->preemptions + e->req->replays > 0;
        if (again && c->entries.running_count == 1)
            continue; /* where too many have been admitted one of them goes on */
        uint64_t owed = again ? 0 : e->req->ask.prompt_tokens;
        uint64_t before = tenants_standing(&c->tenants, e->tenant);
        before -= before < owed * s->price[e->tenant] ? before : owed * s->price[e->tenant];
        for (uint32_t t = 0; t < s->tenants; t++)
            if (t != e->tenant && c->tenants.at[t].queue.head != SCHED_NONE &&
                !came_now(c, t, lease) && before > tenants_standing(&c->tenants, t))
                fail(s, "a request was admitted before that of a tenant that was served less");
    }
}

/* While two tenants have requests that wait, neither is served more than the other, for its weight,
 * by more than what its longest request and all that may run at once come to. What the other was
 * charged for masks counts as served; what it was charged itself only makes it wait longer. */
static inline void check_pairs(struct sim *s)
{
    const struct sched *c = s->sched;
    uint64_t most =
        2ull * PROMPT_MOST + 2ull * TENANT_OUTPUT * c->fixed.max_seqs * c->fixed.max_model_len;

    for (uint32_t a = 0; a < s->tenants && !c->entries.priority_policy; a++) {
        for (uint32_t b = 0; b < s->tenants; b++) {
            const struct tenant *x = &c->tenants.at[a], *y = &c->tenants.at[b];
            bool both = x->queue.head != SCHED_NONE && y->queue.head != SCHED_NONE;
            if (both && !s->pair[a][b].on) {
                s->pair[a][b].mine = x->prompts + TENANT_OUTPUT * x->outputs;
                s->pair[a][b].its =
                    y->prompts + TENANT_OUTPUT * y->outputs + y->masks / TENANT_MASK;
            }
            s->pair[a][b].on = both;
            uint64_t mine = x->prompts + TENANT_OUTPUT * x->outputs - s->pair[a][b].mine;
            uint64_t its = y->prompts + TENANT_OUTPUT * y->outputs + y->masks / TENANT_MASK -
                           s->pair[a][b].its;
            uint64_t price = s->price[a] > s->price[b] ? s->price[a] : s->price[b];
            if (both && mine * s->price[a] > its * s->price[b] + most * price)
                fail(s, "a tenant is served more than its part while another one waits");
        }
    }
}

/* The request that is first in line gets a token within the steps that its whole length can take.
 */
static inline void check_progress(struct sim *s)
{
    const struct sched *c = s->sched;
    uint32_t first = c->entries.running_count > 0 ? c->entries.running[0] : SCHED_NONE;
    uint32_t head = sched_head(c);

    /* With several tenants the head may be older and wait for its turn, while the first gets on. */
    if (first == SCHED_NONE ||
        (head != SCHED_NONE && s->tenants == 1 && entries_before(&c->entries, head, first)))
        first = head;
    if (first == SCHED_NONE)
        return;
    const struct entry *e = &c->entries.at[first];
    uint32_t out = atomic_load(&e->req->out_count);
    if (e->number != s->first_number || out != s->first_out)
        s->stuck = 0;
    s->first_number = e->number;
    s->first_out = out;
    if (s->stuck++ > 2u * (s->p.max_model_len + s->p.max_seqs) * 4u)
        fail(s, "the first request in line does not get on");
}

/* While the budget does not cover all decodes, they take turns: none is left behind. */
static inline void check_pace(struct sim *s)
{
    for (uint32_t i = 0; i < s->live_count; i++) {
        const struct request *r = s->live[i];
        uint32_t out = atomic_load(&r->out_count);
        const struct entry *e = r->entry == SCHED_NONE ? NULL : &s->sched->entries.at[r->entry];
        if (!e || e->state != ENTRY_RUNNING || e->awaits_mask ||
            e->known + e->pending > e->computed + 1 || out != s->pace[i].out)
            s->pace[i].turns = 0;
        s->pace[i].out = out;
        if (s->pace[i].turns++ > 4u * s->p.max_seqs + 20u)
            fail(s, "a running request is left behind");
    }
}

/* A name stands for a whole prefix, so it never comes with another parent. */
static inline void check_names(struct sim *s)
{
    const struct prefix *p = &s->sched->prefix;

    for (uint32_t id = 1; id < p->total; id++) {
        struct prefix_name name = p->names[id], parent = p->parents[id];
        uint32_t at = (uint32_t)name.lo % NAMES;
        if (!s->sched->blocks.at[id].named)
            continue;
        if (s->seen[at].name.lo == name.lo && s->seen[at].name.hi == name.hi &&
            (s->seen[at].parent.lo != parent.lo || s->seen[at].parent.hi != parent.hi))
            fail(s, "a name stands for two prefixes");
        s->seen[at].name = name;
        s->seen[at].parent = parent;
    }
}
