/* The scheduler's decisions, one by one, on the null backend. The simulation covers the rest. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/engine/sched.h"
#include "tests/sim/null_backend.h"
#include "tests/unit/alloc.h"

#define VOCAB 1000u

struct world {
    struct engine_params p;
    struct sched *s;
    struct ek_device *d;
    struct ek_step *steps[SCHED_DEPTH];
    struct ek_result *result;
    size_t bytes;
    uint64_t now_us;
};

static struct engine_params params(void)
{
    struct engine_params p = {
        .max_seqs = 4,
        .max_batched_tokens = 16,
        .max_model_len = 128,
        .block_size = 4,
        .blocks = 33,
        .vocab = VOCAB,
        .depth = 1,
        .hash_secret = {1, 2},
    };
    p.limits.value[LIMIT_RUNNING_SEQS] = 4;
    p.limits.value[LIMIT_PREFIX_CACHING] = 1;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 16;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = 8;
    return p;
}

static void open_world(struct world *w, const struct engine_params *p)
{
    struct ek_step_ceiling c;

    *w = (struct world){.p = *p, .now_us = 1000};
    sched_ceiling(p, &c);
    const struct null_params np = {c, p->blocks, p->host_blocks, p->block_size, p->vocab};
    assert_int_equal(sched_new(p, &w->s), 0);
    assert_int_equal(null_open(&np, &w->d), 0);
    w->bytes = ek_result_bytes(c.seqs, c.scores, c.seqs, NULL_WIDTH);
    w->result = calloc(1, w->bytes);
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        w->steps[i] = calloc(1, ek_step_size(&c));
}

static void close_world(struct world *w)
{
    assert_null(sched_check(w->s));
    sched_free(w->s);
    null_close(w->d);
    free(w->result);
    free(w->steps[0]);
    free(w->steps[1]);
}

static struct request *submit(struct world *w, uint32_t prompt_tokens, uint32_t max_new,
                              int32_t first)
{
    int32_t prompt[128];
    for (uint32_t i = 0; i < prompt_tokens; i++)
        prompt[i] = first + (int32_t)i;
    struct req_ask ask = {.prompt = prompt,
                          .prompt_tokens = prompt_tokens,
                          .max_new_tokens = max_new,
                          .top_p = 1,
                          .priority = first == 900 ? -1 : 0,
                          .arrival_us = w->now_us};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w->s, r, w->now_us), 0);
    return r;
}

static struct ek_step *plan(struct world *w, uint32_t rows)
{
    struct ek_step *step = w->steps[(w->s->flight_first + w->s->flying) % SCHED_DEPTH];
    assert_int_equal(sched_plan(w->s, w->now_us, step), rows);
    if (rows == 0)
        return NULL;
    assert_int_equal(null_backend.forward(w->d, step), 0);
    assert_int_equal(null_backend.sample(w->d, step, NULL), 0);
    return step;
}

static void land(struct world *w)
{
    w->now_us += 1000;
    assert_int_equal(
        null_backend.wait(w->d, w->s->flights[w->s->flight_first].id, w->result, w->bytes, 0), 0);
    sched_apply(w->s, w->result, w->now_us);
    assert_null(sched_check(w->s));
}

static void run_out(struct world *w)
{
    for (int i = 0; i < 1000 && !sched_idle(w->s); i++) {
        struct ek_step *step = w->steps[w->s->flight_first];
        assert_true(sched_plan(w->s, w->now_us, step) > 0);
        assert_int_equal(null_backend.forward(w->d, step), 0);
        land(w);
    }
    assert_true(sched_idle(w->s));
}

static void chunks_beside_decodes(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 9, 100), *b = submit(&w, 30, 2, 200);
    const struct ek_step *step = plan(&w, 16); /* 3 of a, 13 of b */
    assert_int_equal(step->seqs, 2);
    assert_int_equal(step->logit_rows, 1); /* b's chunk is not the last */
    assert_int_equal(step->sets, 2);
    land(&w);
    assert_int_equal(atomic_load(&a->out_count), 1);
    assert_int_equal(atomic_load(&b->out_count), 0);
    step = plan(&w, 16); /* a decodes, 15 of b */
    assert_int_equal(ek_step_seqs(step)[0].rows, 1);
    assert_int_equal(ek_step_seqs(step)[1].rows, 15);
    assert_int_equal(step->sets, 0);
    land(&w);
    step = plan(&w, 3); /* a decodes, the last 2 of b */
    assert_int_equal(step->logit_rows, 2);
    land(&w);
    assert_int_equal(atomic_load(&b->out_count), 1);
    run_out(&w);
    assert_int_equal(b->finish, REQ_FIN_LENGTH);
    assert_int_equal(atomic_load(&a->out_count), 9);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void takes_tokens_from_the_step_before(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 3, 100);
    plan(&w, 3);
    const struct ek_step *step = plan(&w, 1);
    assert_int_equal(ek_step_tokens(step)[0], EK_FROM_PREVIOUS);
    land(&w);
    plan(&w, 1);
    land(&w);
    plan(&w, 0); /* the step in flight samples the last token */
    land(&w);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    assert_true(sched_idle(w.s));
    request_unref(a);
    close_world(&w);
}

static void drops_the_token_after_a_stop(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 50, 100);
    plan(&w, 3);
    plan(&w, 1);
    sched_finish(w.s, a, REQ_FIN_ABORT, 0, w.now_us);
    assert_int_equal(atomic_load(&a->state), REQ_DONE);
    assert_int_equal(w.s->blocks.referenced, 1); /* steps in flight write there */
    land(&w);
    assert_int_equal(w.s->blocks.referenced, 1);
    land(&w);
    assert_int_equal(w.s->blocks.referenced, 0);
    assert_int_equal(atomic_load(&a->out_count), 0);
    request_unref(a);
    close_world(&w);
}

static void preempts_the_last_and_resumes_it(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.blocks = 9; /* 8 blocks of 4 tokens */
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    while (w.s->stats.preemptions == 0) {
        assert_true(sched_plan(w.s, w.now_us, w.steps[w.s->flight_first]) > 0);
        assert_int_equal(null_backend.forward(w.d, w.steps[w.s->flight_first]), 0);
        land(&w);
    }
    assert_int_equal(a->preemptions, 0);
    assert_int_equal(b->preemptions, 1);
    assert_int_equal(atomic_load(&b->state), REQ_PREEMPTED);
    uint32_t kept = atomic_load(&b->out_count);
    assert_true(kept > 0);
    run_out(&w);
    assert_int_equal(atomic_load(&a->out_count), 20);
    assert_int_equal(atomic_load(&b->out_count), 20);
    assert_true(w.s->stats.recomputed_tokens > 0);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* One step; the copies in it take copy_us each. */
static void step_once(struct world *w, uint64_t copy_us)
{
    struct ek_step *step = w->steps[w->s->flight_first];
    const struct flight *f = &w->s->flights[w->s->flight_first];
    assert_true(sched_plan(w->s, w->now_us, step) > 0);
    assert_int_equal(null_backend.forward(w->d, step), 0);
    w->now_us += 1000;
    assert_int_equal(null_backend.wait(w->d, f->id, w->result, w->bytes, 0), 0);
    w->result->copy_us = f->copies * copy_us;
    sched_apply(w->s, w->result, w->now_us);
    assert_null(sched_check(w->s));
}

static void pauses_between_marks(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.blocks = 11; /* 10 blocks of 4 tokens */
    p.max_batched_tokens = 32;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 32;
    p.limits.value[LIMIT_ADMISSION_HIGH] = 600000;
    p.limits.value[LIMIT_ADMISSION_LOW] = 400000;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 12, 3, 100), *b = submit(&w, 12, 12, 200);
    struct request *c = submit(&w, 4, 2, 300);
    step_once(&w, 0); /* a, and of b what the budget holds; c waits above 6 of 10 blocks */
    assert_int_equal(w.s->running_count, 2);
    assert_true(w.s->paused);
    assert_int_equal(w.s->stats.admission_pauses, 1);
    while (atomic_load(&a->state) != REQ_DONE)
        step_once(&w, 0);
    assert_int_equal(atomic_load(&c->state), REQ_WAITING);
    step_once(&w, 0); /* b alone holds 4, which is not below 4 of 10 */
    assert_int_equal(atomic_load(&c->state), REQ_WAITING);
    run_out(&w); /* with nobody running c is admitted */
    assert_int_equal(c->finish, REQ_FIN_LENGTH);
    assert_false(w.s->paused);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

/* Preempts once, with a prefill rate measured before, and tells what became of the content. */
static bool swaps_at(uint64_t copy_us, uint64_t *ret_lost_us)
{
    struct engine_params p = params();
    p.blocks = 9;
    p.host_blocks = 20;
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    struct world w;
    open_world(&w, &p);
    w.s->copy_rate = copy_us ? 1e6 / (double)copy_us : 0;
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    while (w.s->stats.preemptions == 0)
        step_once(&w, copy_us);
    bool swapped = w.s->stats.preemptions_swap == 1;
    assert_int_equal(w.s->stats.swaps_declined, swapped ? 0 : 1);
    while (!sched_idle(w.s))
        step_once(&w, copy_us);
    *ret_lost_us = w.s->stats.preemption_lost_us;
    assert_int_equal(atomic_load(&b->out_count), 20);
    assert_true((w.s->copy_rate > 0) == (copy_us > 0));
    request_unref(a);
    request_unref(b);
    close_world(&w);
    return swapped;
}

static void swaps_when_that_is_faster(void **state)
{
    (void)state;
    uint64_t lost = 0;
    assert_true(swaps_at(0, &lost)); /* not known: copying is preferred */
    assert_true(lost > 0);
    assert_true(swaps_at(10, &lost));
    assert_false(swaps_at(1000000, &lost)); /* a second for each block */
    assert_true(lost > 0);
}

static void switches_the_prefix_cache(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *r[5];
    r[0] = submit(&w, 12, 1, 100);
    run_out(&w);
    r[1] = submit(&w, 12, 9, 100);
    step_once(&w, 0);
    sched_reset_prefix(w.s); /* while r[1] runs */
    assert_null(sched_check(w.s));
    assert_int_equal(w.s->blocks.cached.count, 0);
    run_out(&w);
    assert_int_equal(w.s->prefix.count, 0);
    r[2] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(r[2]->cached_tokens, 0);
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    sched_limits(w.s, &p.limits, w.now_us);
    r[3] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(w.s->blocks.cached.count, 0);
    p.limits.value[LIMIT_PREFIX_CACHING] = 1;
    sched_limits(w.s, &p.limits, w.now_us);
    r[4] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(w.s->blocks.cached.count, 3);
    assert_int_equal(w.s->stats.window_queries,
                     4 * 12); /* the one without a cache is not counted */
    assert_int_equal(w.s->stats.window_hits, 8);
    for (int i = 0; i < 5; i++)
        request_unref(r[i]);
    close_world(&w);
}

/* A pool of 8 blocks of 4 tokens and a host tier for prefixes; r[0]'s prefix was evicted by r[1].
 */
static void evict_a_prefix(struct world *w, double copy_rate, struct request *r[2])
{
    struct engine_params p = params();
    p.blocks = 9;
    p.host_blocks = 10;
    p.offload_blocks = 9;
    p.max_batched_tokens = 64;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 64;
    open_world(w, &p);
    r[0] = submit(w, 12, 1, 100);
    step_once(w, 0);
    w->s->copy_rate = copy_rate;
    r[1] = submit(w, 28, 5, 500);
    while (!sched_idle(w->s))
        step_once(w, copy_rate > 0 ? (uint64_t)(1e6 / copy_rate) : 0);
}

static void brings_evicted_prefixes_back(void **state)
{
    (void)state;
    struct world w;
    struct engine_stats st;
    struct request *r[5];
    evict_a_prefix(&w, 0, r);
    assert_int_equal(w.s->stats.offload_out_blocks, 3);
    r[2] = submit(&w, 12, 1, 100); /* both at once: what they share moves once */
    r[3] = submit(&w, 12, 1, 100);
    step_once(&w, 0);
    assert_int_equal(atomic_load(&r[2]->state), REQ_DONE);
    assert_int_equal(atomic_load(&r[3]->state), REQ_WAITING);
    run_out(&w);
    assert_int_equal(r[2]->cached_tokens, 8);
    assert_int_equal(r[3]->cached_tokens, 8);
    assert_int_equal(r[2]->out[0].id, r[0]->out[0].id);
    assert_int_equal(r[3]->out[0].id, r[0]->out[0].id);
    sched_stats(w.s, w.now_us, &st);
    assert_int_equal(st.offload_in_blocks, 2);
    assert_int_equal(st.offload_hits, 8);
    assert_true(st.host_blocks_cached >= 3);
    assert_int_equal(st.host_blocks_used, 0);
    sched_reset_prefix(w.s);
    assert_int_equal(w.s->host.blocks.cached.count, 0);
    r[4] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(r[4]->cached_tokens, 0);
    for (int i = 0; i < 5; i++)
        request_unref(r[i]);
    close_world(&w);
}

static void computes_prefixes_when_that_is_faster(void **state)
{
    (void)state;
    struct world w;
    struct request *r[3];
    evict_a_prefix(&w, 1, r); /* a second for each block: nothing leaves the device */
    assert_int_equal(w.s->stats.offload_out_blocks, 0);
    assert_true(w.s->stats.offloads_declined >= 3);
    request_unref(r[0]);
    request_unref(r[1]);
    close_world(&w);

    evict_a_prefix(&w, 1e6, r); /* it left; meanwhile copying has become slow */
    assert_int_equal(w.s->stats.offload_out_blocks, 3);
    w.s->copy_rate = 1;
    r[2] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(r[2]->cached_tokens, 0);
    assert_int_equal(w.s->stats.offload_in_blocks, 0);
    for (int i = 0; i < 3; i++)
        request_unref(r[i]);
    close_world(&w);
}

/* Nobody comes back: the tier is filled once, and tried again after four times its blocks. */
static void stops_keeping_what_nobody_wants(void **state)
{
    (void)state;
    struct world w;
    struct request *r[2];
    evict_a_prefix(&w, 1e6, r);
    const struct engine_stats *st = &w.s->stats;
    uint64_t evicted = 0;
    for (int32_t n = 0; n < 20 && st->offload_out_blocks <= 9; n++) {
        struct request *q = submit(&w, 28, 1, 30 + 45 * n);
        while (!sched_idle(w.s))
            step_once(&w, 1);
        request_unref(q);
        evicted = w.s->blocks.evictions;
        assert_true(st->offload_out_blocks <= 9 || evicted > 9 + 4 * 9);
    }
    assert_true(evicted > 9 + 4 * 9);
    assert_true(st->offload_out_blocks > 9);
    assert_true(st->offloads_declined >= 4 * 9);
    request_unref(r[0]);
    request_unref(r[1]);
    close_world(&w);
}

/* Two running requests with the same beginning are preempted: it is copied to the host once. */
static void swaps_shared_blocks_once(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.blocks = 10;
    p.host_blocks = 40;
    p.max_seqs = 3;
    p.limits.value[LIMIT_RUNNING_SEQS] = 3;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 4, 24, 900);
    struct request *b = submit(&w, 9, 20, 300);
    step_once(&w, 0);
    struct request *c = submit(&w, 9, 20, 300); /* shares two blocks with b */
    while (w.s->preempted_count < 2 && !sched_idle(w.s))
        step_once(&w, 0);
    assert_int_equal(w.s->preempted_count, 2);
    assert_true(w.s->stats.swap_shared_blocks >= 2);
    assert_int_equal(w.s->host.blocks.referenced, w.s->stats.swapped_out_blocks);
    run_out(&w);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    assert_int_equal(b->finish, REQ_FIN_LENGTH);
    assert_int_equal(c->finish, REQ_FIN_LENGTH);
    for (int i = 0; i < 20; i++)
        assert_true(b->out[i].id == c->out[i].id);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

static void shows_room(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct engine_stats st;
    struct world w;
    open_world(&w, &p);
    sched_stats(w.s, 0, &st);
    assert_int_equal(st.fit_longest, 1); /* 32 blocks, 128 tokens of 4 */
    assert_int_equal(st.fit_average, 1);
    struct request *a = submit(&w, 10, 4, 100), *b = submit(&w, 5, 4, 200);
    step_once(&w, 0);
    sched_stats(w.s, 0, &st);
    assert_int_equal(st.blocks_used, 5);
    assert_true(st.request_blocks == 2.5);
    assert_int_equal(st.fit_average, 10); /* 27 / 2.5 */
    assert_int_equal(st.table_pairs, 3);
    assert_int_equal(st.table_adjacent, 3);
    run_out(&w);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void shares_a_prefix(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 12, 1, 100);
    run_out(&w);
    struct request *b = submit(&w, 12, 1, 100);
    plan(&w, 4); /* of 3 full blocks, 2 are hit: the last token is always computed */
    land(&w);
    assert_int_equal(b->cached_tokens, 8);
    assert_int_equal(w.s->stats.prefix_queries, 24);
    assert_int_equal(w.s->stats.prefix_hits, 8);
    assert_int_equal(a->out[0].id, b->out[0].id);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void lowers_without_preempting(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *r[4];
    for (int i = 0; i < 4; i++)
        r[i] = submit(&w, 2, 6, 100 * i + 100);
    plan(&w, 8);
    land(&w);
    struct limits l = p.limits;
    l.value[LIMIT_RUNNING_SEQS] = 1;
    l.value[LIMIT_BATCHED_TOKENS] = 3; /* fewer than run: they take turns */
    sched_limits(w.s, &l, w.now_us);
    for (int i = 0; i < 4; i++) {
        plan(&w, 3);
        land(&w);
    }
    for (int i = 0; i < 4; i++)
        assert_true(atomic_load(&r[i]->out_count) >= 3);
    run_out(&w);
    assert_int_equal(w.s->stats.preemptions, 0);
    for (int i = 0; i < 4; i++)
        request_unref(r[i]);
    close_world(&w);
}

static void follows_priorities(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.priority_policy = true;
    p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 2, 1, 100), *b = submit(&w, 2, 1, 200);
    struct request *c = submit(&w, 2, 1, 900); /* more important */
    plan(&w, 2);
    land(&w);
    assert_int_equal(atomic_load(&c->state), REQ_DONE);
    plan(&w, 2);
    land(&w);
    assert_int_equal(atomic_load(&a->state), REQ_DONE);
    run_out(&w);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

/* The least important goes first, though it came first; what it had comes back from the host. */
static void swaps_the_least_important(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.priority_policy = true;
    p.blocks = 9;
    p.host_blocks = 20;
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 8, 20, 300);
    step_once(&w, 0);
    struct request *b = submit(&w, 8, 20, 900);
    while (w.s->stats.preemptions == 0)
        step_once(&w, 0);
    assert_int_equal(a->preemptions, 1);
    assert_int_equal(b->preemptions, 0);
    assert_int_equal(w.s->stats.preemptions_swap, 1);
    uint32_t held = w.s->host.blocks.referenced;
    assert_true(held > 0);
    struct request *c = submit(&w, 4, 2, 100); /* as important as a, but it came later */
    while (atomic_load(&b->state) != REQ_DONE)
        step_once(&w, 0);
    assert_int_equal(atomic_load(&c->out_count), 0);
    run_out(&w);
    assert_int_equal(w.s->stats.swapped_in_blocks, held);
    assert_int_equal(w.s->stats.recomputed_tokens, 0);
    assert_int_equal(w.s->host.blocks.referenced, 0);
    assert_int_equal(atomic_load(&a->out_count), 20);
    assert_int_equal(c->finish, REQ_FIN_LENGTH);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

static void refuses_what_waits_too_long(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    p.limits.value[LIMIT_QUEUE_DEADLINE] = 5000;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 2, 20, 100), *b = submit(&w, 2, 1, 200);
    plan(&w, 2);
    land(&w);
    w.now_us += 5000;
    plan(&w, 1);
    assert_int_equal(atomic_load(&b->state), REQ_DONE);
    assert_int_equal(b->finish, REQ_FIN_ERROR);
    assert_int_equal(b->error, -ETIMEDOUT);
    assert_int_equal(w.s->stats.refused_deadline, 1);
    land(&w);
    sched_finish_all(w.s, REQ_FIN_DEADLINE, 0, w.now_us);
    assert_int_equal(a->finish, REQ_FIN_DEADLINE);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void refuses_what_never_fits(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.blocks = 9;
    struct world w;
    open_world(&w, &p);
    struct ek_fault fault = {0};
    struct req_ask ask = {.prompt_tokens = 20, .max_new_tokens = 13};
    assert_int_equal(sched_fit(w.s, &ask, &fault),
                     0); /* 32 places for 33 tokens: the last has none */
    ask.max_new_tokens = 14;
    assert_int_equal(sched_fit(w.s, &ask, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "9 KV blocks of 4 tokens, but the pool has 8"));
    ask.max_new_tokens = UINT32_MAX;
    assert_int_equal(sched_fit(w.s, &ask, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "this model's maximum context length is"));
    close_world(&w);
}

static void takes_a_failed_step_back(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 4, 100), *b = submit(&w, 6, 4, 200);
    plan(&w, 9);
    plan(&w, 2);
    null_backend.wait(w.d, 1, w.result, w.bytes, 0);
    null_backend.wait(w.d, 2, w.result, w.bytes, 0);
    sched_cancel(w.s, 0, w.now_us);
    sched_cancel(w.s, -ENOMEM, w.now_us);
    assert_null(sched_check(w.s));
    assert_int_equal(b->finish, REQ_FIN_ERROR); /* brought most rows */
    assert_int_equal(b->error, -ENOMEM);
    const struct ek_step *step = plan(&w, 3);
    assert_int_equal(step->sets, 1); /* the slot is set again */
    land(&w);
    assert_int_equal(atomic_load(&a->out_count), 1);
    sched_finish_all(w.s, REQ_FIN_ABORT, 0, w.now_us);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void allocates_only_at_start(void **state)
{
    (void)state;
    struct engine_params p = params();
    for (long n = 1;; n++) {
        struct sched *s = NULL;
        alloc_fail_at(n);
        int r = sched_new(&p, &s);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            sched_free(s);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(s);
    }
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 30, 40, 100), *b = submit(&w, 30, 40, 300);
    unsigned long before = alloc_count();
    run_out(&w);
    assert_int_equal(alloc_count(), before);
    request_unref(a);
    request_unref(b);
    close_world(&w);
    p.max_batched_tokens = 3; /* fewer than the sequences */
    assert_int_equal(sched_new(&p, &w.s), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_beside_decodes),
        cmocka_unit_test(takes_tokens_from_the_step_before),
        cmocka_unit_test(drops_the_token_after_a_stop),
        cmocka_unit_test(preempts_the_last_and_resumes_it),
        cmocka_unit_test(pauses_between_marks),
        cmocka_unit_test(swaps_when_that_is_faster),
        cmocka_unit_test(switches_the_prefix_cache),
        cmocka_unit_test(brings_evicted_prefixes_back),
        cmocka_unit_test(computes_prefixes_when_that_is_faster),
        cmocka_unit_test(stops_keeping_what_nobody_wants),
        cmocka_unit_test(swaps_shared_blocks_once),
        cmocka_unit_test(shows_room),
        cmocka_unit_test(shares_a_prefix),
        cmocka_unit_test(lowers_without_preempting),
        cmocka_unit_test(follows_priorities),
        cmocka_unit_test(swaps_the_least_important),
        cmocka_unit_test(refuses_what_waits_too_long),
        cmocka_unit_test(refuses_what_never_fits),
        cmocka_unit_test(takes_a_failed_step_back),
        cmocka_unit_test(allocates_only_at_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
