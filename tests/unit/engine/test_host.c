/* The host tier on the null backend: preempted requests and evicted prefixes that come back. */
#include "tests/unit/engine/world.h"

/* Preempts once, with a prefill rate measured before, and tells what became of the content. */
static bool swaps_at(uint64_t copy_us, uint64_t *ret_lost_us)
{
    struct engine_params p = params();
    p.blocks = 9;
    p.host_blocks = 20;
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    struct world w;
    open_world(&w, &p);
    w.s->rates.copy = copy_us ? 1e6 / (double)copy_us : 0;
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    while (w.s->stats.preemptions == 0)
        step_once(&w, copy_us);
    bool swapped = w.s->stats.preemptions_swap == 1;
    assert_int_equal(w.s->stats.swaps_declined, swapped ? 0 : 1);
    while (!sched_idle(w.s))
        step_once(&w, copy_us);
    *ret_lost_us = w.s->stats.preemption_lost_us;
    assert_int_equal(atomic_load(&b->out_count), 20);
    assert_true((w.s->rates.copy > 0) == (copy_us > 0));
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
    w->s->rates.copy = copy_rate;
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
    w.s->rates.copy = 1;
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
    while (w.s->entries.preempted_count < 2 && !sched_idle(w.s))
        step_once(&w, 0);
    assert_int_equal(w.s->entries.preempted_count, 2);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swaps_when_that_is_faster),
        cmocka_unit_test(brings_evicted_prefixes_back),
        cmocka_unit_test(computes_prefixes_when_that_is_faster),
        cmocka_unit_test(stops_keeping_what_nobody_wants),
        cmocka_unit_test(swaps_shared_blocks_once),
        cmocka_unit_test(swaps_the_least_important),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
