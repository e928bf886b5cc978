/*
 * Worlds of the equality oracle, see oracle.h. A turn waits for news of the engine, then looks at
 * every live request: those that are done are compared, and then arrivals, aborts and limit
 * changes are drawn.
 */
#include "tests/unit/server/oracle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "kernels/stage.h"
#include "tests/unit/server/oracle_world.h"

/* A prompt's own way of sampling: a half is greedy, the others bring all that has a state. */
static void set_sampling(uint32_t prompt, struct req_ask *ask)
{
    static const uint32_t words[] = {5, 0x40000000u, 9, 0xc0a00000u, /* biases: 2, -5 */
                                     1, 11,          2, 7,           12};
    if (prompt % 2 == 0)
        return;
    ask->sampling.temperature = 0.9f;
    ask->sampling.seed = prompt;
    ask->sampling.frequency = 0.4f;
    ask->sampling.presence = prompt % 4 == 1 ? 0.5f : 0;
    ask->sampling.repetition = prompt % 3 == 0 ? 1.3f : 0;
    ask->sampling.typical_p = prompt % 5 == 0 ? 0.9f : 0;
    ask->sampling.top_k = prompt % 7 == 0 ? 40 : 0;
    ask->words = words;
    ask->biases = 2;
    ask->bad = 5;
}

/* The outputs alone, of the long prompts or the others: one request at a time, whole prompts,
 * nothing shared, nothing short. */
static int run_alone(struct oracle *o, uint32_t dtype, bool longs)
{
    const uint32_t len = longs ? LONG_LEN : MODEL_LEN;
    const uint32_t first = longs ? PROMPTS : 0, end = longs ? PROMPTS + LONGS : PROMPTS;
    struct oracle_world w;

    world_init(&w, o);
    w.dtype = dtype;
    w.tenants = longs ? 2 : 1;
    w.p = (struct engine_params){.max_seqs = 1,
                                 .max_batched_tokens = len,
                                 .block_size = 16,
                                 .blocks = 2 + len / 16 + 1,
                                 .depth = 1};
    plain_limits(&w.p);
    int r = world_start(&w);
    for (uint32_t i = first; r == 0 && i < end; i++) {
        struct prompt *p = &o->prompts[i];
        struct alone *a = &p->alone[dtype];
        struct req_ask ask = {.prompt = p->id,
                              .prompt_tokens = p->tokens,
                              .max_new_tokens = OUT_MOST,
                              .sampling.top_p = 1,
                              .top = TOP};
        set_sampling(i, &ask);
        struct request *q = request_new(&ask);
        r = q ? engine_submit(w.engine, q, NULL, NULL) : -ENOMEM;
        while (r == 0 && atomic_load(&q->state) != REQ_DONE)
            r = wait_news(&w);
        if (r == 0) {
            a->count = atomic_load(&q->out_count);
            memcpy(a->out, q->out, a->count * sizeof(*a->out));
            memcpy(a->top, q->top_at, sizeof(*a->top) * a->count);
            if (a->count != OUT_MOST || q->finish != REQ_FIN_LENGTH)
                r = wrong(o, "prompt %u alone ended after %u tokens", i, a->count);
        }
        request_unref(q);
    }
    world_end(&w);
    return r;
}

static void make_prompts(struct oracle *o, uint32_t vocab)
{
    uint64_t rng = o->seed * 2654435761u + 1;
    int32_t base[BASES][PROMPT_MOST];

    for (uint32_t b = 0; b < BASES; b++)
        for (uint32_t i = 0; i < PROMPT_MOST; i++)
            base[b][i] = (int32_t)pick(&rng, 3, vocab - 1);
    for (uint32_t n = 0; n < PROMPTS; n++) {
        struct prompt *p = &o->prompts[n];
        uint32_t b = pick(&rng, 0, BASES - 1);
        p->tokens = chance(&rng, 850000) ? pick(&rng, 1, 32) : pick(&rng, 1, PROMPT_MOST);
        uint32_t shared = chance(&rng, 700000) ? pick(&rng, 0, p->tokens) : 0;
        for (uint32_t i = 0; i < p->tokens; i++)
            p->id[i] = i < shared ? base[b][i] : (int32_t)pick(&rng, 3, vocab - 1);
    }
    for (uint32_t n = PROMPTS; n < PROMPTS + LONGS; n++) {
        struct prompt *p = &o->prompts[n];
        p->tokens = pick(&rng, LONG_LEAST, LONG_MOST);
        for (uint32_t i = 0; i < p->tokens; i++)
            p->id[i] = (int32_t)pick(&rng, 3, vocab - 1);
    }
}

/* A tier of this machine for the products of each shape of weights. */
static int draw_forms(struct oracle *o, uint32_t dtype)
{
    static const char *const tiers[] = {"avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
    const char *have[sizeof(tiers) / sizeof(tiers[0])];
    struct ek_forms *forms = &o->forms[dtype];
    uint64_t rng = o->seed * 0x9e3779b97f4a7c15ull + dtype;
    uint32_t count = 0;

    for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
        const struct ek_open_params named = {.isa = tiers[i]};
        struct ek_device_info info;
        if (o->backend->probe(&named, &info, NULL) == 0)
            have[count++] = tiers[i];
    }
    const struct ek_open_params open = {0};
    int r = o->backend->choose(&open, &o->model[dtype]->graph, forms, NULL);
    for (uint32_t i = 0; r == 0 && count > 0 && i < forms->used; i++)
        (void)snprintf(forms->form[i].name, sizeof(forms->form[i].name), "%s%s",
                       have[pick(&rng, 0, count - 1)], chance(&rng, 500000) ? "-wide" : "");
    return r;
}

int oracle_new(const char *model_dir, uint64_t seed, struct oracle **ret_oracle)
{
    static const enum model_dtype dtypes[DTYPES] = {MODEL_DTYPE_BF16, MODEL_DTYPE_F32,
                                                    MODEL_DTYPE_BF16};
    struct oracle *o = calloc(1, sizeof(*o));
    struct ek_fault fault = {0};
    int r = 0;

    if (!o)
        return -ENOMEM;
    o->seed = seed;
    o->backend = ek_backend_find("cpu", &fault);
    if (!o->backend)
        r = wrong(o, "no CPU backend: %s", fault.msg);
    for (uint32_t d = 0; r == 0 && d < DTYPES; d++) {
        r = model_open(model_dir, dtypes[d], &o->model[d], &fault);
        if (r != 0)
            r = wrong(o, "%s does not open: %s", model_dir, fault.msg);
        else
            o->model[d]->graph.kv_i8 = d == 2;
    }
    if (r == 0)
        make_prompts(o, o->model[0]->graph.vocab);
    for (uint32_t d = 0; r == 0 && d < DTYPES; d++)
        r = draw_forms(o, d);
    for (uint32_t d = 0; r == 0 && d < DTYPES; d++)
        r = run_alone(o, d, false);
    *ret_oracle = o;
    return r;
}

void oracle_free(struct oracle *o)
{
    if (!o)
        return;
    for (uint32_t d = 0; d < DTYPES; d++)
        model_free(o->model[d]);
    free(o);
}

const char *oracle_wrong(const struct oracle *o)
{
    return o->wrong;
}

void oracle_totals(const struct oracle *o, struct oracle_totals *ret_totals)
{
    *ret_totals = o->totals;
}

/* Whether there is a rule where a second stage begins. */
static bool halves(const struct ek_graph *g)
{
    uint32_t begin[3];

    return ek_stage_divide(g, 2, begin, NULL) == 0;
}

/* Shapes of the world: its kind from the number, the rest drawn. */
static void shape(struct oracle_world *w, uint64_t number)
{
    static const uint32_t sizes[] = {8, 16, 32, 64, 128};
    uint64_t *rng = &w->rng;

    w->number = number;
    *rng = w->o->seed * 0x9e3779b97f4a7c15ull + number * 0xbf58476d1ce4e5b9ull;
    w->dtype = number % 8 == 4 || number % 8 == 6 ? 2 : number % 2;
    uint32_t block_size = sizes[number % 5], depth = 1 + number / 2 % 2;
    uint32_t seqs = pick(rng, 4, 20), most = (MODEL_LEN + block_size - 1) / block_size;
    uint32_t extra = chance(rng, 800000) ? most / 4 + (block_size > 32) : most * 4;
    uint32_t swap = number % 3 != 0 ? pick(rng, 4, 60) : 0;
    uint32_t offload = number % 3 == 2 ? pick(rng, 4, 40) : 0;
    uint32_t budget = chance(rng, 400000) ? 8 : chance(rng, 500000) ? 64 : 400;

    w->p = (struct engine_params){
        .max_seqs = seqs,
        .max_batched_tokens = seqs + pick(rng, 0, budget),
        .block_size = block_size,
        .blocks = 1 + most + pick(rng, 0, extra),
        .host_blocks = swap + offload,
        .offload_blocks = offload,
        .depth = depth,
        .gap_us = number % 2, /* 1: steps are planned when the one before is done */
        .prompt_rows = number % 5 == 0 ? 1 + number % 47 : 0,
        .priority_policy = chance(rng, 300000),
        .hash_secret = {draw(rng), draw(rng)},
    };
    plain_limits(&w->p);
    w->p.limits.value[LIMIT_WATERMARK] = chance(rng, 800000) ? 0 : pick(rng, 0, 100000);
    w->p.limits.start[LIMIT_PREFIX_CACHING] = chance(rng, 800000);
    w->p.limits.value[LIMIT_PREFIX_CACHING] = w->p.limits.start[LIMIT_PREFIX_CACHING];
    w->p.limits.value[LIMIT_STALLED_SHARE] = number % 3 == 1 ? 10000 : 0;
    w->arrive_ppm = pick(rng, 300000, 950000);
    w->abort_ppm = chance(rng, 700000) ? pick(rng, 0, 60000) : 0;
    w->limit_ppm = chance(rng, 600000) ? pick(rng, 5000, 100000) : 0;
    w->live_most = pick(rng, 8, LIVE_MOST);
    w->faulty.rng = draw(rng);
    w->faulty.fail_ppm = number % 7 == 6 ? pick(rng, 30000, 120000) : 0;
    w->tenants = 1;
    w->stages = number % 6 == 4 && halves(&w->o->model[w->dtype]->graph) ? 2 : 1;
}

/* Several tenants, long prompts and steps that have room for them, of which each tenant gets small
 * ones for the others' sake. */
static void shape_shared(struct oracle_world *w)
{
    uint64_t *rng = &w->rng;
    uint32_t most = (LONG_LEN + w->p.block_size - 1) / w->p.block_size;

    w->tenants = pick(rng, 2, 4);
    w->p.max_batched_tokens = w->p.max_seqs + pick(rng, LONG_MOST, 2 * LONG_MOST);
    w->p.blocks = 1 + most + pick(rng, most, 6 * most);
    const struct limits kept = w->p.limits;
    plain_limits(&w->p);
    w->p.limits.value[LIMIT_WATERMARK] = kept.value[LIMIT_WATERMARK];
    w->p.limits.start[LIMIT_PREFIX_CACHING] = kept.start[LIMIT_PREFIX_CACHING];
    w->p.limits.value[LIMIT_PREFIX_CACHING] = kept.value[LIMIT_PREFIX_CACHING];
    w->p.limits.value[LIMIT_STALLED_SHARE] = kept.value[LIMIT_STALLED_SHARE];
    w->live_most = LIVE_MOST;
}

/* A name for messages: what a reader needs to see the world. */
static void world_name(const struct oracle_world *w, char *buf, size_t size)
{
    snprintf(buf, size,
             "world %llu (%s, depth %u, block size %u, %u blocks, %u host blocks, %u of them for "
             "prefixes, %u sequences, budget %u, prefix caching %s%s%s, %u tenants)",
             (unsigned long long)w->number, dtype_names[w->dtype], w->p.depth, w->p.block_size,
             w->p.blocks, w->p.host_blocks, w->p.offload_blocks, w->p.max_seqs,
             w->p.max_batched_tokens, w->p.limits.start[LIMIT_PREFIX_CACHING] ? "on" : "off",
             w->faulty.fail_ppm ? ", steps that lack memory" : "",
             w->stages > 1 ? ", two stages" : "", w->tenants);
}

static int arrive(struct oracle_world *w)
{
    uint64_t *rng = &w->rng;
    const bool longs = w->tenants > 1 && chance(rng, 300000);
    uint32_t at = longs ? pick(rng, PROMPTS, PROMPTS + LONGS - 1) : pick(rng, 0, PROMPTS - 1);
    const struct prompt *p = &w->o->prompts[at];
    struct req_ask ask = {
        .prompt = p->id,
        .prompt_tokens = p->tokens,
        .max_new_tokens = chance(rng, 500000) ? pick(rng, 1, 12) : pick(rng, 1, OUT_MOST),
        .sampling.top_p = 1,
        .top = pick(rng, 0, TOP),
        .sampling.seed = draw(rng),
        .priority = (int32_t)pick(rng, 0, 2) - 1,
        .cache_salt = chance(rng, 100000) ? pick(rng, 1, 3) : 0,
        .worker = pick(rng, 0, 3),
    };
    if (w->tenants > 1)
        ask.tenant.place = pick(rng, 1, w->tenants); /* 0 is without a key */
    set_sampling(at, &ask);
    if (chance(rng, 200000)) {
        ask.stop_ids[ask.stop_count++] = p->alone[w->dtype].out[pick(rng, 0, 11)].id;
        ask.min_tokens = pick(rng, 0, 4);
        /* a token that is kept from coming would change what comes */
        for (uint32_t i = 0; i < ask.min_tokens; i++)
            if (ask.sampling.temperature > 0 || p->alone[w->dtype].out[i].id == ask.stop_ids[0])
                ask.min_tokens = 0;
    }
    struct request *r = request_new(&ask);
    if (!r)
        return -ENOMEM;
    struct ek_fault fault = {0};
    int code = engine_submit(w->engine, r, NULL, &fault);
    if (code == 0) {
        w->live[w->live_count++] = (struct job){.req = r, .number = w->submitted, .prompt = at};
    } else {
        request_unref(r);
        w->o->totals.refused++;
        if (code != -EBADMSG && code != -EBUSY) /* the pool is small now; the queue is full */
            return wrong(w->o, "request %u was refused: %d %s", w->submitted, code, fault.msg);
    }
    w->submitted++;
    return 0;
}

static int change_limits(struct oracle_world *w)
{
    uint64_t *rng = &w->rng;
    uint32_t seqs = pick(rng, 1, w->p.max_seqs);
    struct ek_fault fault = {0};
    struct limits_change c = {
        .set = 1u << LIMIT_RUNNING_SEQS | 1u << LIMIT_BATCHED_TOKENS | 1u << LIMIT_WATERMARK |
               1u << LIMIT_CACHED_SHARE,
        .value = {[LIMIT_RUNNING_SEQS] = seqs,
                  [LIMIT_BATCHED_TOKENS] = pick(rng, seqs, w->p.max_batched_tokens),
                  [LIMIT_WATERMARK] = chance(rng, 700000) ? 0 : pick(rng, 0, 200000),
                  [LIMIT_CACHED_SHARE] = chance(rng, 500000) ? 0 : pick(rng, 1, 1000000),
                  [LIMIT_KV_BLOCKS] = chance(rng, 500000)
                                          ? w->p.blocks - 1
                                          : pick(rng, w->p.blocks / 2, w->p.blocks - 1)}};
    if (chance(rng, 500000)) {
        c.set |= 1u << LIMIT_KV_BLOCKS;
        w->o->totals.pool_changes++;
    }
    if (chance(rng, 100000)) {
        c.set |= 1u << LIMIT_PREFIX_CACHING;
        c.value[LIMIT_PREFIX_CACHING] =
            chance(rng, 500000) ? w->p.limits.start[LIMIT_PREFIX_CACHING] : 0;
    }
    w->o->totals.limit_changes++;
    int r = engine_limits_apply(w->engine, &c, NULL, &fault);
    if (r == EK_EDEVMEM && w->faulty.fail_ppm != 0)
        return 0; /* no memory for a larger pool: then nothing has changed */
    return r == 0 ? 0 : wrong(w->o, "a change of limits was refused: %d %s", r, fault.msg);
}

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

/* Where the output must end: a stop id or the length. */
static uint32_t expected_count(const struct alone *a, const struct req_ask *ask,
                               enum req_finish *ret_how)
{
    *ret_how = REQ_FIN_STOP;
    for (uint32_t n = 1; n <= ask->max_new_tokens; n++)
        for (uint32_t k = 0; n >= ask->min_tokens && k < ask->stop_count; k++)
            if (a->out[n - 1].id == ask->stop_ids[k])
                return n;
    *ret_how = REQ_FIN_LENGTH;
    return ask->max_new_tokens;
}

static int differs(struct oracle_world *w, const struct job *j, uint32_t at, const char *what)
{
    char name[256];
    const struct request *r = j->req;
    const struct req_token *want = &w->o->prompts[j->prompt].alone[w->dtype].out[at];

    world_name(w, name, sizeof(name));
    return wrong(
        w->o,
        "%s: request %u (prompt %u of %u tokens, %u new, %u cached, %u preemptions): %s at "
        "token %u: %d %a, alone %d %a",
        name, j->number, j->prompt, r->ask.prompt_tokens, r->ask.max_new_tokens, r->cached_tokens,
        r->preemptions, what, at, r->out[at].id, (double)r->out[at].logprob, want->id,
        (double)want->logprob);
}

static int compare(struct oracle_world *w, const struct job *j)
{
    const struct request *r = j->req;
    const struct alone *a = &w->o->prompts[j->prompt].alone[w->dtype];
    uint32_t got = atomic_load(&r->out_count);
    enum req_finish how;

    for (uint32_t i = 0; i < got; i++) {
        if (r->out[i].id != a->out[i].id)
            return differs(w, j, i, "another token");
        if (!same_bits(r->out[i].logprob, a->out[i].logprob))
            return differs(w, j, i, "other bits of the logprob");
        if (r->out[i].top != r->ask.top)
            return differs(w, j, i, "too few alternatives");
        for (uint32_t k = 0; k < r->ask.top; k++) {
            const struct req_top *t = &r->top_at[(size_t)i * r->ask.top + k];
            if (t->id != a->top[i][k].id || !same_bits(t->logprob, a->top[i][k].logprob))
                return differs(w, j, i, "another alternative");
        }
    }
    w->o->totals.compared_tokens += got;
    uint32_t want = expected_count(a, &r->ask, &how);
    if (r->finish == REQ_FIN_ABORT && j->aborted) {
        w->o->totals.aborted++;
        return got <= want ? 0 : differs(w, j, got - 1, "went on after its end");
    }
    bool lacked = r->error == -ENOMEM || r->error == EK_EDEVMEM;
    if (r->finish == REQ_FIN_ERROR && lacked && w->faulty.fail_ppm != 0) {
        w->o->totals.victims++;
        return got < want ? 0 : differs(w, j, got - 1, "went on after its end");
    }
    w->o->totals.stopped += how == REQ_FIN_STOP;
    if (r->finish != how || got != want)
        return wrong(w->o,
                     "world %llu, request %u (prompt %u): ended as %s with %u tokens, alone "
                     "as %s with %u",
                     (unsigned long long)w->number, j->number, j->prompt,
                     request_finish_name(r->finish), got, request_finish_name(how), want);
    return 0;
}

static int reap(struct oracle_world *w)
{
    for (uint32_t i = 0; i < w->live_count;) {
        struct job *j = &w->live[i];
        if (atomic_load(&j->req->state) != REQ_DONE) {
            i++;
            continue;
        }
        int r = compare(w, j);
        if (r != 0)
            return r;
        request_unref(j->req);
        w->live[i] = w->live[--w->live_count];
        w->o->totals.requests++;
    }
    return 0;
}

static int disturb(struct oracle_world *w, uint32_t requests)
{
    int r = 0;

    while (r == 0 && w->submitted < requests && w->live_count < w->live_most &&
           chance(&w->rng, w->arrive_ppm))
        r = arrive(w);
    if (r == 0 && w->live_count > 0 && chance(&w->rng, w->abort_ppm)) {
        struct job *j = &w->live[pick(&w->rng, 0, w->live_count - 1)];
        j->aborted = true;
        engine_finish(w->engine, j->req, REQ_FIN_ABORT);
    }
    if (r == 0 && chance(&w->rng, w->limit_ppm))
        r = change_limits(w);
    return r;
}

/* When all have ended, nothing may be left over. */
static int check_end(struct oracle_world *w)
{
    struct engine_stats st;
    struct oracle_totals *t = &w->o->totals;

    for (uint32_t n = 0; n < 1000; n++) { /* the last step in flight gives its blocks back */
        engine_stats(w->engine, &st);
        if (st.running + st.waiting + st.blocks_used + st.host_blocks_used == 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    t->worlds++;
    t->steps += st.steps;
    t->shared_steps += st.shared_steps;
    t->preemptions += st.preemptions;
    t->recomputed_tokens += st.recomputed_tokens;
    t->swapped_in_blocks += st.swapped_in_blocks;
    t->offload_in_blocks += st.offload_in_blocks;
    t->pool_resizes += st.pool_resizes;
    t->failed_steps += atomic_load(&w->faulty.failed_starts) + atomic_load(&w->faulty.failed_steps);
    t->failed_resizes += atomic_load(&w->faulty.failed_resizes);
    t->migrated_blocks += st.migrated_blocks;
    t->prefix_hits += st.prefix_hits;
    t->evictions += st.evictions;
    t->full_pools += st.preemptions > 0; /* the last block was given */
    if (st.running + st.waiting + st.blocks_used + st.host_blocks_used == 0)
        return 0;
    return wrong(
        w->o, "world %llu: %u running, %u waiting, %u blocks, %u host blocks are left over",
        (unsigned long long)w->number, st.running, st.waiting, st.blocks_used, st.host_blocks_used);
}

int oracle_world(struct oracle *o, uint64_t world, uint32_t requests)
{
    struct oracle_world w;
    int r = 0;

    for (uint32_t d = 0; r == 0 && d < DTYPES && world >= ORACLE_SHARED && !o->longs_known; d++)
        r = run_alone(o, d, true);
    if (r != 0)
        return r;
    o->longs_known = o->longs_known || world >= ORACLE_SHARED;
    world_init(&w, o);
    shape(&w, world);
    if (world >= ORACLE_SHARED)
        shape_shared(&w);
    r = world_start(&w);
    while (r == 0 && (w.submitted < requests || w.live_count > 0)) {
        r = disturb(&w, requests);
        if (r == 0 && w.live_count > 0)
            r = wait_news(&w);
        if (r == 0)
            r = reap(&w);
    }
    if (r == 0)
        r = check_end(&w);
    world_end(&w);
    return r;
}
