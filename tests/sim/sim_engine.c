/*
 * Simulation of the scheduler against the null backend: random arrivals, lengths, shared prefixes,
 * priorities, forms that append tokens, aborts at any moment, limit changes, failing steps, tiny
 * pools, one or two steps in flight. After each step everything is recounted; budgets and caps
 * hold; the first request in line always gets on; at the end all blocks are back, every request has
 * ended once, and each one's output is what it would have been alone.
 *
 *   sim_engine [SEEDS] [STEPS] [FIRST_SEED]
 *
 * A failure prints the seed and the command that replays it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/err.h"
#include "tests/share.h"
#include "tests/sim/sim_cost.h"
#include "tests/sim/sim_wait.h"

/* Whether the next step fails: the more likely, the more is under way to the host tier and back. */
static bool fails_now(struct sim *s)
{
    const struct host *h = &s->sched->host;
    uint32_t moving = h->copy_count > 0 ? 15 : 0;

    if (h->free_count < h->table_count)
        moving += 2;
    return s->fail_ppm > 0 && chance(s, s->fail_ppm * (1 + moving));
}

static void draw_marks(struct sim *s)
{
    struct limits *l = &s->limits;

    l->value[LIMIT_ADMISSION_HIGH] = chance(s, 850000) ? 0 : pick(s, 100000, 1000000);
    l->value[LIMIT_ADMISSION_LOW] =
        chance(s, 300000) ? 0 : pick(s, 0, (uint32_t)l->value[LIMIT_ADMISSION_HIGH]);
    l->value[LIMIT_SALT_SHARE] = chance(s, 600000) ? 0 : pick(s, 1, 1000000);
    l->value[LIMIT_STALLED_SHARE] = chance(s, 600000) ? 0 : pick(s, 1, 500000);
    l->value[LIMIT_LONG_PREFILL] = chance(s, 800000) ? 0 : pick(s, 1, 40);
}

static void draw_tenants(struct sim *s)
{
    s->tenants = chance(s, 500000) ? 1 : pick(s, 2, TENANTS);
    for (uint32_t i = 0; i < TENANTS; i++)
        s->price[i] = chance(s, 500000) ? TENANT_PRICE : pick(s, 100, 4 * TENANT_PRICE);
}

/* Of requests one tenant may send most. */
static struct tenant_ref draw_tenant(struct sim *s)
{
    uint32_t place = s->tenants == 1 || chance(s, 500000) ? 0 : pick(s, 0, s->tenants - 1);

    return (struct tenant_ref){.place = place, .stamp = place * 7, .price = s->price[place]};
}

/* A model with recurrent state, and from no to plenty of snapshots. */
static void draw_states(struct sim *s)
{
    uint32_t snapshots = chance(s, 150000) ? 0 : pick(s, 1, chance(s, 500000) ? 4 : 40);

    s->p.states = s->p.max_seqs + snapshots;
    s->p.states_every = pick(s, 1, 24);
    s->p.host_blocks = s->p.offload_blocks = 0;
}

/* Shapes of the world, drawn from the seed. */
static int sim_open(struct sim *s, uint64_t seed, uint32_t depth)
{
    *s = (struct sim){.seed = seed, .rng = seed * 2654435761u + 1, .now_us = 1000};
    static const uint32_t sizes[] = {4, 8, 16, 32, 64, 128};
    uint32_t block_size = sizes[pick(s, 0, chance(s, 900000) ? 3 : 5)];
    uint32_t seqs = chance(s, 300000) ? pick(s, 12, 48) : pick(s, 1, 12);
    uint32_t rows = seqs + pick(s, 0, chance(s, 500000) ? 8 : 96);
    uint32_t blocks = 2 + pick(s, 2, chance(s, 700000) ? 24 : 120);

    s->shares = seed % 5 == 1;
    if (s->shares)
        rows += PACE_SHARED_LEAST + seed % 37;

    s->vocab = pick(s, 2, 60);
    s->p = (struct engine_params){
        .max_seqs = seqs,
        .max_batched_tokens = rows,
        .max_model_len = pick(s, 16, 256),
        .block_size = block_size,
        .blocks = blocks,
        .host_blocks = chance(s, 600000) ? pick(s, 0, 80) : 0,
        .vocab = s->vocab,
        .depth = depth,
        .gap_us = seed % 3 == 0 ? ENGINE_GAP_CPU_US : 0,
        .prompt_rows = seed % 4 == 1 && rows > seqs ? rows - seqs : 0,
        .priority_policy = chance(s, 300000),
        .hash_secret = {seed, ~seed},
    };
    if (s->p.host_blocks > 1 && chance(s, 650000))
        s->p.offload_blocks = pick(s, 1, s->p.host_blocks - 1);
    s->arrive_ppm = pick(s, 20000, 400000);
    s->abort_ppm = chance(s, 500000) ? pick(s, 0, 30000) : 0;
    s->limit_ppm = chance(s, 500000) ? pick(s, 1000, 80000) : 0;
    s->fail_ppm = chance(s, 250000) ? 20000 : 0;
    s->tight_ppm = s->limit_ppm > 0 && chance(s, 400000) ? pick(s, 100000, 800000) : 0;
    s->late_ok = chance(s, 200000);
    s->limits.value[LIMIT_RUNNING_SEQS] = seqs;
    s->limits.value[LIMIT_BATCHED_TOKENS] = rows;
    s->limits.ceiling[LIMIT_QUEUED_REQS] = LIVE_MOST;
    s->limits.value[LIMIT_WATERMARK] = chance(s, 500000) ? 0 : pick(s, 0, 200000);
    s->limits.value[LIMIT_CACHED_SHARE] = chance(s, 500000) ? 0 : pick(s, 1, 1000000);
    s->limits.value[LIMIT_QUEUE_DEADLINE] = s->late_ok ? 200000 : 0;
    s->limits.value[LIMIT_PREFIX_CACHING] = chance(s, 800000);
    s->caching_moves = s->limits.value[LIMIT_PREFIX_CACHING] != 0 && chance(s, 500000);
    s->p.share_least = chance(s, 300000) ? 0 : pick(s, 1, 24);
    if (seed % 2 == 0) /* rows deep in a prompt are dear */
        s->dear = (struct price){.deeper = (double)(seed % 29) / 40,
                                 .fixed = (double)(seed % 7),
                                 .read = (double)(seed % 5)};
    if (seed % 3 == 0) /* some rows beside answers are free */
        s->knee = PACE_SPARE + (uint32_t)(seed % 61);
    s->plans_late = chance(s, 500000);
    s->copy_us = chance(s, 200000) ? pick(s, 0, 40000) : 0;
    draw_marks(s);
    draw_tenants(s);
    s->lose_ppm = chance(s, 250000) ? pick(s, 500, 30000) : 0;
    if (seed % 4 == 3)
        draw_states(s);
    s->quiet = seed % 5 == 2;
    if (s->quiet)
        s->limit_ppm = s->fail_ppm = s->lose_ppm = 0;
    s->p.limits = s->limits;
    for (uint32_t b = 0; b < BASES; b++)
        for (uint32_t i = 0; i < PROMPT_MOST; i++)
            s->base[b][i] = (int32_t)pick(s, 0, s->vocab - 1);

    struct ek_step_ceiling c;
    sched_ceiling(&s->p, &c);
    const struct null_params np = {c, blocks, s->p.host_blocks, block_size, s->vocab, s->p.states};
    if (sched_new(&s->p, &s->sched) != 0 || null_open(&np, &s->device) != 0)
        return -ENOMEM;
    s->sched->pool.resizable = chance(s, 700000);
    s->result_bytes = ek_result_bytes(c.seqs, c.scores, c.seqs, NULL_WIDTH);
    s->result = calloc(1, s->result_bytes);
    if (chance(s, 300000) && sim_form_open(&s->form, s->vocab, pick(s, 1, SCHED_JUMP_FORWARD)) != 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        s->steps[i] = calloc(1, ek_step_size(&c));
    return s->result && s->steps[0] && s->steps[1] ? 0 : -ENOMEM;
}

static void sim_close(struct sim *s)
{
    sched_free(s->sched);
    null_close(s->device);
    for (uint32_t i = 0; i < s->live_count; i++)
        request_unref(s->live[i]);
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        free(s->steps[i]);
    free(s->result);
    sim_form_close(&s->form);
}

static void change_limits(struct sim *s)
{
    struct limits *l = &s->limits;
    uint32_t seqs = pick(s, 1, s->p.max_seqs);

    l->value[LIMIT_RUNNING_SEQS] = seqs;
    l->value[LIMIT_BATCHED_TOKENS] = pick(s, seqs, s->p.max_batched_tokens);
    l->value[LIMIT_WATERMARK] = pick(s, 0, 300000);
    l->value[LIMIT_KV_BLOCKS] = chance(s, 300000) ? 0 : pick(s, 1, s->p.blocks - 1);
    draw_marks(s);
    if (s->caching_moves)
        l->value[LIMIT_PREFIX_CACHING] = chance(s, 700000);
    l->value[LIMIT_CACHED_SHARE] = chance(s, 300000) ? 0 : pick(s, 1, 1000000);
    sched_limits(s->sched, l, s->now_us);
}

/* The least that a tenant has been served who has work, 0 when nobody has. */
static uint64_t least_served(const struct sim *s)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < s->tenants; i++) {
        const struct tenant *t = &s->sched->tenants.at[i];
        if (t->active > 0 && t->served < least)
            least = t->served;
    }
    return least == UINT64_MAX ? 0 : least;
}

static void arrive(struct sim *s)
{
    int32_t prompt[PROMPT_MOST];
    uint32_t most = s->p.max_model_len - 1 < PROMPT_MOST ? s->p.max_model_len - 1 : PROMPT_MOST;
    uint32_t n = chance(s, 700000) ? pick(s, 1, most < 40 ? most : 40) : pick(s, 1, most);
    uint32_t shared = chance(s, 600000) ? pick(s, 0, n) : 0, b = pick(s, 0, BASES - 1);

    for (uint32_t i = 0; i < n; i++)
        prompt[i] = i < shared ? s->base[b][i] : (int32_t)pick(s, 0, s->vocab - 1);
    /* Equal later on, but another beginning: nothing of it may be shared. */
    uint32_t other = chance(s, 200000) ? pick(s, 1, 2) * s->p.block_size : 0,
             o = pick(s, 0, BASES - 1);
    for (uint32_t i = 0; i < other && i < n; i++)
        prompt[i] = s->base[o][i];
    uint32_t room = s->p.max_model_len - n;
    struct req_ask ask = {
        .prompt = prompt,
        .prompt_tokens = n,
        .sampling.frequency = chance(s, 200000) ? 0.5f : 0,
        .score = chance(s, 100000),
        .hidden = chance(s, 50000),
        .hidden_width = NULL_WIDTH,
        .max_new_tokens = pick(s, 1, chance(s, 800000) && room > 30 ? 30 : room),
        .min_tokens = chance(s, 200000) ? pick(s, 0, 5) : 0,
        .sampling.top_p = 1,
        .sampling.seed = draw(s),
        .priority = (int32_t)pick(s, 0, 3) - 1,
        .cache_salt = chance(s, 100000) ? s->submitted + 1 + SALTS
                                        : (chance(s, 250000) ? pick(s, 1, SALTS) : 0),
        .worker = pick(s, 0, 3),
        .tenant = draw_tenant(s),
        .arrival_us = s->now_us,
        .deadline_us = s->late_ok && chance(s, 100000) ? s->now_us + pick(s, 1, 90000) : 0,
    };
    if (ask.cache_salt > SALTS) /* of a client of one of three keys */
        ask.cache_owner = 1 + ask.cache_salt % 3;
    if (s->form.grammar && !s->quiet && chance(s, 500000)) {
        ask.grammar = s->form.grammar;
        ask.grammar_jump_forward = ask.grammar_append = true;
        ask.grammar_finish = chance(s, 500000);
        ask.sampling.frequency = 0; /* they go without */
    }
    for (; ask.stop_count < 2 && chance(s, 500000); ask.stop_count++)
        ask.stop_ids[ask.stop_count] = (int32_t)pick(s, 0, s->vocab - 1);
    if (s->live_count == LIVE_MOST || sched_fit(s->sched, &ask, NULL) != 0)
        return;
    struct request *r = request_new(&ask);
    if (!r)
        return;
    request_ref(r);
    if (s->limit_ppm > 0 && chance(s, 40000))
        change_limits(s); /* between submission and queue */
    uint64_t least = least_served(s);
    if (sched_submit(s->sched, r, s->now_us) != 0) {
        fail(s, "a request was refused though there was room");
        request_unref(r);
        request_unref(r);
        return;
    }
    if (s->sched->tenants.at[ask.tenant.place].served < least)
        fail(s, "a tenant has saved up turns while it had no work");
    s->submitted++;
    s->pace[s->live_count].turns = 0;
    s->live[s->live_count++] = r;
}

static void reap(struct sim *s)
{
    for (uint32_t i = 0; i < s->live_count;) {
        struct request *r = s->live[i];
        if (atomic_load(&r->state) != REQ_DONE) {
            i++;
            continue;
        }
        check_output(s, r);
        if (atomic_load(&r->out_count) > 0)
            check_extras(s, r);
        s->ended[r->finish]++;
        s->live[i] = s->live[--s->live_count];
        s->pace[i] = s->pace[s->live_count];
        request_unref(r);
    }
}

static void disturb(struct sim *s, bool arrivals)
{
    if (arrivals)
        for (uint32_t n = 0; n < 4 && chance(s, s->arrive_ppm); n++)
            arrive(s);
    if (s->live_count > 0 && chance(s, s->abort_ppm)) {
        struct request *r = s->live[pick(s, 0, s->live_count - 1)];
        sched_finish(s->sched, r, REQ_FIN_ABORT, 0, s->now_us);
    }
    if (chance(s, s->limit_ppm))
        change_limits(s);
    if (s->limit_ppm > 0 && chance(s, 2000)) /* a larger pool is asked for, or not any more */
        sched_pool_floor(s->sched, chance(s, 500000) ? pick(s, 2, s->p.blocks) : 0, s->now_us);
    if (s->caching_moves && chance(s, 5000))
        sched_reset_prefix(s->sched);
    s->now_us += pick(s, 1, 2000);
}

/* A failed step costs time or a request, never the rest. */
static void start_failed(struct sim *s)
{
    sched_cancel(s->sched, chance(s, 300000) ? -ENOMEM : 0, s->now_us);
    s->stuck = 0;
}

/* What the engine does between steps when none is in flight. */
static void fit_device(struct sim *s)
{
    uint32_t due = s->sched->flights.count == 0 ? sched_pool_due(s->sched, s->now_us) : 0;

    if (due == 0)
        return;
    s->device->resize_fails = chance(s, s->tight_ppm) ? EK_EDEVMEM : 0;
    int r = null_backend.kv_resize(s->device, due);
    s->device->resize_fails = 0;
    if (r != 0 && r != EK_EDEVMEM)
        return fail(s, s->device->violation);
    sched_pool_done(s->sched, due, r, s->now_us);
    if (s->device->p.blocks != s->sched->pool.device)
        fail(s, "the scheduler does not know how large the device's pool is");
}

/* Each token of an answer counts for its tenant by the price of that. */
static void apply_counted(struct sim *s)
{
    const struct tenants *t = &s->sched->tenants;
    struct tenant before[TENANTS];

    memcpy(before, t->at, sizeof(before));
    sched_apply(s->sched, s->result, s->now_us);
    for (uint32_t i = 0; i < TENANTS; i++) {
        const uint64_t tokens = t->at[i].prompts - before[i].prompts +
                                TENANT_OUTPUT * (t->at[i].outputs - before[i].outputs);
        if (t->at[i].served - before[i].served < tokens * before[i].price)
            fail(s, "an answer's token is not counted");
    }
}

/* Masks cost: what one takes is its tenant's, by its price, and nobody else's. */
static void charge_some(struct sim *s, const struct flight *f)
{
    struct sched *c = s->sched;

    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct flight_seq *q = &f->seq[i];
        if (!q->sample || c->entries.at[q->entry].number != q->number || !chance(s, 100000))
            continue;
        const struct tenant *t = &c->tenants.at[c->entries.at[q->entry].tenant];
        uint64_t units = pick(s, 1, 1u << 22), all = 0, now = 0, had = t->served;
        for (uint32_t k = 0; k < TENANTS; k++)
            all += c->tenants.at[k].served;
        sched_charge_mask(c, q, units);
        for (uint32_t k = 0; k < TENANTS; k++)
            now += c->tenants.at[k].served;
        if (t->served - had != units * t->price / TENANT_MASK || now - all != t->served - had)
            fail(s, "a mask is not charged to who it is for");
    }
}

/* Masks that were long in coming come. */
static void bring_masks(struct sim *s)
{
    struct entries *l = &s->sched->entries;

    for (uint32_t i = 0; i < l->running_count; i++)
        if (entries_running(l, i)->awaits_mask && chance(s, 300000))
            sched_await_mask(s->sched, l->running[i], false);
}

/* What waits for one is in no step. */
static void check_masks(struct sim *s)
{
    const struct sched *c = s->sched;
    const struct flight *f = &c->flights.at[flights_newest(&c->flights)];

    for (uint32_t i = 0; i < f->seqs; i++)
        if (c->entries.at[f->seq[i].entry].awaits_mask)
            fail(s, "a step was planned with a row whose mask is waited for");
}

/* Masks that are not found in time: now and then what a row samples is not wanted. */
static void put_off_some(struct sim *s)
{
    struct sched *c = s->sched;
    struct flight *f = &c->flights.at[flights_newest(&c->flights)];

    charge_some(s, f);
    for (uint32_t i = 0; i < f->seqs && s->p.states == 0 && !s->quiet; i++)
        if (f->seq[i].sample && c->entries.at[f->seq[i].entry].number == f->seq[i].number &&
            chance(s, 50000)) {
            sched_put_off(c, &f->seq[i]);
            if (c->entries.at[f->seq[i].entry].pending == 0 && chance(s, 500000))
                sched_await_mask(c, f->seq[i].entry, true);
        }
}

/* Of the step that is planned next: whether prompts get only what is free beside the answers, and
 * what they get where several tenants have requests. */
static void set_knee(struct sim *s)
{
    const struct sched *c = s->sched;
    enum engine_held held = c->admission.held;
    uint32_t running = 0, has = 0, tenants = 0;

    for (uint32_t i = 0; i < c->entries.running_count; i++) {
        const struct entry *e = entries_running(&c->entries, i);
        uint32_t want = sched_rows_wanted(e);
        has |= 1u << e->tenant;
        running += sched_is_decode(e, want) ? want : 0;
    }
    s->answers = running;
    if (s->knee == 0 && !s->shares)
        return;
    s->sched->rates.pace =
        (struct pace){.line = {.known = true, .row_us = 1},
                      .knee = s->knee,
                      .planned = 1,
                      .shared_least = s->shares ? PACE_SHARED_LEAST : PACE_LEAST};
    for (uint32_t i = 1; i < c->tenants.count; i++)
        tenants += c->tenants.at[i].queue.head != SCHED_NONE || (has >> i & 1);
    s->several = s->shares && tenants > 1;
    s->few = s->shares ? PACE_SHARED_LEAST + running : 0;
    if (held == HELD_LIMIT && c->tenants.count > 1)
        held = HELD_NONE; /* slots are shared */
    s->spread = held != HELD_NONE && held != HELD_TOKENS && held != HELD_COPIES && running > 0 &&
                running + PACE_SPARE <= s->knee && 4 * running <= 3 * s->knee &&
                s->knee < step_limit(s);
}

static void start_steps(struct sim *s)
{
    fit_device(s);
    while (s->sched->flights.count < s->p.depth && !s->wrong) {
        struct ek_step *step = s->steps[flights_place(&s->sched->flights, s->sched->flights.count)];
        if (s->plans_late && sched_plan_after(s->sched) > s->now_us)
            return;
        s->running_before = s->sched->entries.running_count;
        uint64_t preempted = s->sched->stats.preemptions;
        uint64_t before = s->sched->slots.next_lease;
        for (uint32_t i = 0; i < TENANTS; i++)
            s->served[i] = s->sched->tenants.at[i].served;
        s->lent = s->sched->share.lent;
        uint32_t first = s->running_before > 0 ? s->sched->entries.running[0] : 0;
        uint64_t number = s->running_before > 0 ? s->sched->entries.at[first].number : 0;
        bool suspects = s->sched->suspects > 0;
        bring_masks(s);
        if (s->dear.deeper > 0)
            s->sched->rates.prices.now = s->dear;
        set_knee(s);
        look_at_head(s);
        uint32_t rows = sched_plan(s->sched, s->now_us, step);
        check_waits(s);
        check_head(s, rows, before);
        check_marks(s, before);
        if (suspects) /* who runs alone is nobody's turn */
            memset(s->pair, 0, sizeof(s->pair));
        else
            check_turns(s, before);
        check_pairs(s);
        if (number != 0)
            check_first(s, first, number);
        if (s->sched->stats.preemptions > preempted &&
            s->sched->entries.running_count >= s->running_before)
            fail(s, "a request was admitted in a step that preempted");
        if (rows == 0)
            return;
        check_plan(s, step, rows);
        check_masks(s);
        if (step->seqs > 0)
            (s->dear.deeper > 0 ? check_share_cost : check_share)(s, rows, before);
        if (fails_now(s))
            *(chance(s, 500000) ? &s->device->forward_fails : &s->device->sample_fails) =
                chance(s, 500000) ? -ENOMEM : EK_EDEVMEM;
        int r = null_backend.forward(s->device, step);
        if (r == 0)
            r = null_backend.sample(s->device, step, NULL);
        if (r == -ENOMEM || r == EK_EDEVMEM)
            return start_failed(s);
        put_off_some(s);
    }
}

static void land_step(struct sim *s)
{
    struct sched *c = s->sched;

    if (fails_now(s))
        s->device->wait_fails = -ENOMEM;
    (void)null_backend.wait(s->device, c->flights.at[c->flights.first].id, s->result,
                            s->result_bytes, 0); /* what goes wrong shows as a violation */
    if (s->device->violation)
        return fail(s, s->device->violation);
    if (s->result->error == 0) {
        s->result->copy_us = (uint64_t)c->flights.at[c->flights.first].copies * s->copy_us;
        apply_counted(s);
        s->steps_done++;
        return;
    }
    if (c->flights.count == 2) {
        (void)null_backend.wait(s->device, c->flights.at[1 - c->flights.first].id, s->result,
                                s->result_bytes, 0);
        if (s->device->violation)
            return fail(s, s->device->violation);
        sched_cancel(c, 0, s->now_us);
    }
    start_failed(s);
}

/* Suspects whose rows are in a step, and who do not run any more. */
static uint32_t waits_in(const struct sched *c, const struct flight *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->seqs; i++) {
        const struct entry *e = &c->entries.at[f->seq[i].entry];
        n += e->number == f->seq[i].number && e->state == ENTRY_WAITING && e->suspect;
    }
    return n;
}

/* The device goes away with all that was on it, with steps in flight or without. Whether it was a
 * fault decides who runs alone then; who did already is the cause. */
static void lose_device(struct sim *s)
{
    struct sched *c = s->sched;
    uint32_t fault = chance(s, 500000) ? 1 + chance(s, 500000) : 0;
    uint64_t failed = c->stats.finished[REQ_FIN_ERROR], alone = 0;

    for (uint32_t i = 0; i < c->entries.running_count; i++)
        alone += c->entries.at[c->entries.running[i]].suspect;
    for (uint32_t i = 0; i < c->flights.count;
         i++) /* it may have given way since, its step has not */
        alone += waits_in(c, &c->flights.at[flights_place(&c->flights, i)]);
    uint32_t ran = c->entries.running_count;
    bool host_stays = chance(s, 500000);
    if (sched_lost(c, host_stays, s->now_us) < ran)
        return fail(s, "a request that ran is not computed again");
    null_lose(s->device);
    if (c->entries.running_count > 0 || c->flights.count > 0 || c->blocks.referenced > 0 ||
        c->blocks.cached.count > 0 ||
        (!host_stays && c->host.blocks.referenced + c->host.blocks.cached.count > 0))
        return fail(s, "something is left of a device that was lost");
    if (host_stays && chance(s, 200000)) { /* it may have been what memory was short of */
        host_empty(c, s->now_us);
        host_stays = false;
    }
    if (!host_stays)
        null_lose_host(s->device);
    sched_found(c, fault, s->now_us);
    failed = c->stats.finished[REQ_FIN_ERROR] - failed;
    if (failed > (fault ? alone : 0))
        fail(s, "who did not run alone was taken for the cause");
    s->lost++;
    s->stuck = 0;
}

/* Suspects run alone. */
static void check_suspects(struct sim *s)
{
    const struct sched *c = s->sched;
    uint32_t suspects = 0, alone = 0;

    for (uint32_t i = 0; i < c->entries.count; i++)
        suspects += c->entries.at[i].state != ENTRY_FREE && c->entries.at[i].suspect;
    for (uint32_t i = 0; i < c->entries.running_count; i++)
        alone += c->entries.at[c->entries.running[i]].suspect;
    if (suspects != c->suspects)
        fail(s, "the suspects are counted wrong");
    if (alone > 0 && c->entries.running_count > 1)
        fail(s, "a suspect does not run alone");
}

static void turn(struct sim *s, bool arrivals)
{
    disturb(s, arrivals);
    start_steps(s);
    if (!s->wrong && chance(s, s->lose_ppm))
        lose_device(s);
    check_suspects(s);
    if (!s->wrong && s->sched->flights.count > 0)
        land_step(s);
    else
        s->idle_turns++;
    if (!s->wrong)
        check_progress(s);
    check_pace(s);
    if (s->steps_done % 16 == 0)
        check_names(s);
    reap(s);
    const char *wrong = sched_check(s->sched);
    if (wrong)
        fail(s, wrong);
    if (s->device->violation)
        fail(s, s->device->violation);
}

static void check_end(struct sim *s)
{
    const struct engine_stats *st = &s->sched->stats;
    uint64_t ended = 0, counted = 0;

    for (uint32_t i = 0; i < REQ_FIN_KINDS; i++) {
        ended += s->ended[i];
        counted += st->finished[i];
    }
    if (s->live_count != 0 || !sched_idle(s->sched))
        fail(s, "requests are left over");
    if (ended != s->submitted || counted != s->submitted)
        fail(s, "admitted differs from finished + failed + aborted");
    if (s->sched->blocks.referenced != 0)
        fail(s, "blocks are left over");
    s->fail_ppm = s->limit_ppm = s->tight_ppm = s->lose_ppm = 0;
    sched_pool_floor(s->sched, 0, s->now_us); /* tries again at once */
    for (uint32_t i = 0; i < 4 && !s->wrong; i++)
        turn(s, false);
    if (s->sched->blocks.usable != s->sched->pool.limit)
        fail(s, "the pool did not become as small as wanted");
    if (s->sched->pool.resizable && s->device->p.blocks != s->sched->pool.limit)
        fail(s, "the device keeps memory that it should give back");
}

static const char *run(uint64_t seed, uint32_t depth, uint32_t steps, struct sim *s)
{
    if (sim_open(s, seed, depth) != 0)
        fail(s, "out of memory");
    while (!s->wrong && s->steps_done + s->idle_turns < steps)
        turn(s, true);
    for (uint32_t n = 0; !s->wrong && !sched_idle(s->sched) && n < 1000000; n++)
        turn(s, false);
    if (!s->wrong)
        check_end(s);
    return s->wrong;
}

static unsigned long number(const char *text, unsigned long otherwise)
{
    char *end;
    errno = 0;
    unsigned long n = text ? strtoul(text, &end, 10) : otherwise;
    return text && (errno != 0 || end == text || *end != '\0') ? otherwise : n;
}

int main(int argc, char **argv)
{
    unsigned long seeds = number(argc > 1 ? argv[1] : NULL, 1500);
    unsigned long steps = number(argc > 2 ? argv[2] : NULL, 1500);
    unsigned long first = number(argc > 3 ? argv[3] : NULL, 1);
    uint64_t done = 0, requests = 0, preemptions = 0, hits = 0, swaps = 0, offloads = 0;
    uint64_t resizes = 0, migrated = 0, forced = 0, lost = 0, large = 0;
    uint64_t begun = ek_now_us();

    for (unsigned long seed = share_next(first); seed < first + seeds;
         seed = share_next(seed + 1)) {
        for (uint32_t depth = 1; depth <= SCHED_DEPTH; depth++) {
            struct sim s;
            const char *wrong = run(seed, depth, (uint32_t)steps, &s);
            if (wrong) {
                printf("seed %lu depth %u step %llu: %s\nreplay: %s 1 %lu %lu\n", seed, depth,
                       (unsigned long long)s.steps_done, wrong, argv[0], steps, seed);
                return 1;
            }
            done += s.steps_done;
            requests += s.submitted;
            preemptions += s.sched->stats.preemptions;
            hits += s.sched->stats.prefix_hits;
            swaps += s.sched->stats.swapped_in_blocks;
            offloads += s.sched->stats.offload_in_blocks;
            resizes += s.sched->stats.pool_resizes;
            migrated += s.sched->stats.migrated_blocks;
            forced += s.sched->stats.jump_forward_tokens;
            lost += s.lost;
            large += s.waited_large;
            sim_close(&s);
        }
    }
    double took = (double)(ek_now_us() - begun) / 1e6;
    printf("%lu seeds, %llu steps, %llu requests, %llu preemptions, %llu cached tokens, "
           "%llu blocks swapped in, %llu prefix blocks brought back, %llu resizes "
           "of the device's pool, %llu blocks migrated, %llu tokens appended, %llu devices lost, "
           "%llu waited with more than their tenant's part: all right; %.0f steps a second\n",
           seeds, (unsigned long long)done, (unsigned long long)requests,
           (unsigned long long)preemptions, (unsigned long long)hits, (unsigned long long)swaps,
           (unsigned long long)offloads, (unsigned long long)resizes, (unsigned long long)migrated,
           (unsigned long long)forced, (unsigned long long)lost, (unsigned long long)large,
           (double)done / took);
    return 0;
}
